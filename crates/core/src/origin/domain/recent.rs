//! The table of recent writes: what commits are validated against (decision 0002).

use crate::commit::{Aspect, PageChange, Target};
use crate::hash::FixedMap;
use crate::id::{PageId, Slot, Stamp};
use std::collections::VecDeque;

/// The last stamps that changed a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Last {
    existence: Stamp,
    value: Stamp,
}

impl Last {
    /// The last stamp that concerns a reader of this aspect.
    fn concerning(self, aspect: Aspect) -> Stamp {
        match aspect {
            Aspect::Existence => self.existence,
            Aspect::Value => self.existence.max(self.value),
        }
    }

    fn raise(&mut self, aspect: Aspect, stamp: Stamp) {
        match aspect {
            Aspect::Existence => self.existence = stamp,
            Aspect::Value => self.value = stamp,
        }
    }

    fn clamp(&mut self, most: Stamp) {
        self.existence = self.existence.min(most);
        self.value = self.value.min(most);
    }
}

/// The last stamps of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct PageLast {
    /// Changes of the page as a whole.
    whole: Stamp,
    /// Changes of anything in it.
    any: Last,
}

/// What changed after the horizon, tentative commits included. Bounded: beyond the bound the
/// oldest stamps are forgotten and the horizon rises.
#[derive(Debug)]
pub(super) struct RecentWrites {
    horizon: Stamp,
    /// Up to here it may name changes that were taken back.
    taken_back: Stamp,
    pages: FixedMap<PageId, PageLast>,
    slots: FixedMap<(PageId, Slot), Last>,
    /// One entry per stamp and target, in order of stamps; no slot: the page.
    order: VecDeque<(Stamp, PageId, Option<Slot>)>,
    entries_max: usize,
}

impl RecentWrites {
    pub(super) fn new(horizon: Stamp, entries_max: usize) -> Self {
        Self {
            horizon,
            taken_back: Stamp::ZERO,
            pages: FixedMap::default(),
            slots: FixedMap::default(),
            order: VecDeque::new(),
            entries_max,
        }
    }

    /// Bases below it are judged by stored page versions.
    pub(super) fn horizon(&self) -> Stamp {
        self.horizon
    }

    /// The last stamp after `base` that concerns a reader of this; none: the read still holds.
    /// `base` must not be below the horizon.
    pub(super) fn conflict(
        &self,
        page: PageId,
        target: Target,
        aspect: Aspect,
        base: Stamp,
    ) -> Option<Stamp> {
        let last = self.pages.get(&page)?;
        // Most reads end here: nothing in the page changed after the base.
        if last.any.concerning(Aspect::Value) <= base {
            return None;
        }
        let stamp = match target {
            Target::Page => last.any.concerning(aspect),
            Target::Slot(slot) => {
                let slot = self.slots.get(&(page, slot)).copied().unwrap_or_default();
                last.whole.max(slot.concerning(aspect))
            }
        };
        (stamp > base).then_some(stamp)
    }

    /// Whether a conflict with this stamp will be one whenever it is looked for.
    pub(super) fn is_for_good(&self, conflict: Stamp) -> bool {
        conflict > self.taken_back
    }

    /// Takes a commit's changes.
    pub(super) fn record(&mut self, stamp: Stamp, changes: &[PageChange]) {
        for change in changes {
            let last = self.pages.entry(change.page).or_default();
            for &(target, aspect) in &change.touched {
                last.any.raise(aspect, stamp);
                match target {
                    Target::Page => last.whole = stamp,
                    Target::Slot(slot) => {
                        let slots = self.slots.entry((change.page, slot)).or_default();
                        slots.raise(aspect, stamp);
                        self.order.push_back((stamp, change.page, Some(slot)));
                    }
                }
            }
            self.order.push_back((stamp, change.page, None));
        }
        while self.order.len() > self.entries_max {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some((stamp, _, _)) = self.order.front().copied() else {
            return;
        };
        self.horizon = stamp;
        while let Some(&(same, page, slot)) = self.order.front()
            && same == stamp
        {
            self.order.pop_front();
            if let Some(slot) = slot {
                let key = (page, slot);
                let last = self.slots.get(&key).copied().unwrap_or_default();
                if last.concerning(Aspect::Value) <= stamp {
                    self.slots.remove(&key);
                }
            } else {
                let last = self.pages.get(&page).copied().unwrap_or_default();
                if last.any.concerning(Aspect::Value) <= stamp {
                    self.pages.remove(&page);
                }
            }
        }
    }

    /// Commits after `durable` were rolled back. What they overwrote in this table is lost, so
    /// their targets count as changed at `durable`: bases below it may conflict in vain.
    pub(super) fn roll_back(&mut self, durable: Stamp) {
        for (stamp, page, slot) in self.order.iter_mut().rev() {
            if *stamp <= durable {
                break;
            }
            *stamp = durable;
            if let Some(slot) = slot {
                if let Some(last) = self.slots.get_mut(&(*page, *slot)) {
                    last.clamp(durable);
                }
            } else if let Some(last) = self.pages.get_mut(page) {
                last.whole = last.whole.min(durable);
                last.any.clamp(durable);
            }
        }
        self.horizon = self.horizon.min(durable);
        self.taken_back = durable;
    }

    pub(super) fn check(&self, stamped: Stamp) {
        assert!(self.order.len() <= self.entries_max.max(1), "recent writes outgrew their bound");
        assert!(self.pages.len() + self.slots.len() <= self.order.len(), "recent writes leak");
        assert!(self.horizon <= stamped, "a horizon in the future");
    }
}
