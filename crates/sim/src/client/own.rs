//! What a transaction wrote itself: what it is to read of that again, and what going back to a savepoint
//! leaves of it.

use super::Run;
use crate::check::cycles::Effect;
use crate::check::seen::Seen;
use bytes::Bytes;
use larder_core::cache::Savepoint;
use larder_core::id::{Generation, ObjectId, PageId, Slot};
use std::collections::{BTreeMap, BTreeSet};

/// What is known of a slot that the transaction wrote.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Held {
    /// It was emptied.
    Nothing,
    /// This object, with this value.
    Value(Generation, Bytes),
    /// This object, of whose value a part is the cache's.
    Some(Generation),
}

impl Held {
    fn generation(&self) -> Option<Generation> {
        match self {
            Self::Nothing => None,
            Self::Value(generation, _) | Self::Some(generation) => Some(*generation),
        }
    }
}

/// What a transaction wrote.
#[derive(Clone, Debug, Default)]
pub(super) struct Own {
    slots: BTreeMap<(PageId, Slot), Held>,
    /// Pages of which something was written.
    pages: BTreeSet<PageId>,
    /// Pages that were made or removed.
    removed: BTreeSet<PageId>,
}

impl Own {
    /// Writes an object, as it was asked to.
    pub(super) fn wrote(&mut self, effect: &Effect) {
        let (object, held) = match effect {
            Effect::Put(object, value) => (object, Held::Value(object.generation, value.clone())),
            Effect::Add(object, ..) | Effect::Max(object, ..) => {
                (object, Held::Some(object.generation))
            }
            Effect::Remove(object) => (object, Held::Nothing),
        };
        let ObjectId { page, slot, .. } = *object;
        self.slots.insert((page, slot), held);
        self.pages.insert(page);
    }

    /// Writes to a raw page.
    pub(super) fn wrote_raw(&mut self, page: PageId) {
        self.pages.insert(page);
    }

    /// Makes a page, or removes it.
    pub(super) fn moved(&mut self, page: PageId) {
        self.pages.insert(page);
        self.removed.insert(page);
    }

    /// Whether what was seen is of the transaction's own writes, and so no business of the log's.
    /// Panics when it is not as they left it.
    pub(super) fn hides(&self, seen: &Seen, who: &dyn std::fmt::Debug) -> bool {
        let page = seen.page();
        if self.removed.contains(&page) {
            return true;
        }
        match seen {
            Seen::Object(object, value) => {
                let Some(held) = self.slots.get(&(page, object.slot)) else { return false };
                let there = held.generation() == Some(object.generation);
                let fits = match (held, value) {
                    (_, value) if !there => value.is_none(),
                    (Held::Value(_, own), Some(value)) => own == value,
                    (_, value) => value.is_some(),
                };
                assert!(fits, "own writes: {who:?} saw {seen:?} after it wrote {held:?}");
                true
            }
            Seen::Slot(_, slot, found) => {
                let Some(held) = self.slots.get(&(page, *slot)) else { return false };
                let fits = *found == held.generation();
                assert!(fits, "own writes: {who:?} saw {seen:?} after it wrote {held:?}");
                true
            }
            Seen::Slots(_, found) => {
                let of_page = self.slots.range((page, Slot(0))..=(page, Slot(u16::MAX)));
                for ((_, slot), held) in of_page {
                    let mut listed = found.iter().flatten().filter(|(other, _)| other == slot);
                    let fits = listed.next().map(|(_, generation)| *generation);
                    assert!(
                        fits == held.generation() && listed.next().is_none(),
                        "own writes: {who:?} saw {seen:?} after it wrote {held:?} to {slot:?}"
                    );
                }
                self.pages.contains(&page)
            }
            Seen::Raw(..) => self.pages.contains(&page),
        }
    }
}

/// A place in a transaction, to which it may go back.
pub(super) struct Saved {
    point: Savepoint,
    own: Own,
    effects: usize,
    made: usize,
    pages_made: usize,
}

impl Run {
    /// Goes back to the place that was noted, or notes this one. What was read stays read.
    pub(super) fn go_back_or_save(&mut self) {
        match self.saved.take() {
            Some(saved) => {
                self.tx.rollback_to(saved.point);
                self.own = saved.own;
                self.effects.truncate(saved.effects);
                self.made.truncate(saved.made);
                self.pages_made.truncate(saved.pages_made);
            }
            None => {
                self.saved = Some(Saved {
                    point: self.tx.savepoint(),
                    own: self.own.clone(),
                    effects: self.effects.len(),
                    made: self.made.len(),
                    pages_made: self.pages_made.len(),
                });
            }
        }
    }
}
