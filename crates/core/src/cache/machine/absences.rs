//! Copies that say only that there is no such page. Whoever removes many pages would have the memory fill
//! with them, though hardly anybody asks again for what is gone.

use super::Cache;
use crate::cache::PageCopy;
use crate::id::{DomainId, PageId};
use std::collections::{BTreeSet, VecDeque};

/// A queue shorter than this is not tidied.
const QUEUE_MIN: usize = 64;

/// Those that requests have gathered are looked at so often after an input; the rest waits for the next.
const PINNED_LOOKED_AT_MAX: usize = 64;

/// Which copies are such, of all domains.
#[derive(Default)]
pub(super) struct Absences {
    count: usize,
    /// The oldest first; some are none any more, or stand here twice.
    order: VecDeque<(DomainId, PageId)>,
}

/// Whether a copy of this cost is one of an absent page: any image takes bytes, and what is not there has
/// no holes.
pub(super) fn is_absence(cost: usize) -> bool {
    cost == PageCopy::OVERHEAD_BYTES
}

impl Absences {
    /// A page's copy of one cost was replaced by one of another; none: there was, or is, no copy.
    pub(super) fn replaced(
        &mut self,
        (domain, page): (DomainId, PageId),
        before: Option<usize>,
        after: Option<usize>,
    ) {
        let (was, is) = (before.is_some_and(is_absence), after.is_some_and(is_absence));
        if is && !was {
            self.count += 1;
            self.order.push_back((domain, page));
        } else if was && !is {
            self.count -= 1;
        }
    }
}

impl Cache {
    /// Lets the oldest go when there are too many, as an eviction would. Those that requests have gathered
    /// stay.
    pub(super) fn shed_absences(&mut self) {
        let most = PINNED_LOOKED_AT_MAX.min(self.memory.absences.order.len());
        let mut looked_at = 0;
        while self.memory.absences.count > self.config.absences_max
            && looked_at < most
            && let Some((domain, page)) = self.memory.absences.order.pop_front()
        {
            if !self.holds_absence(domain, page) {
                continue;
            }
            if self.memory.is_pinned(page) {
                self.memory.absences.order.push_back((domain, page));
                looked_at += 1;
                continue;
            }
            crate::probe::probe("absence-shed");
            self.evict(domain, page);
        }
        self.tidy_absences();
    }

    fn holds_absence(&self, domain: DomainId, page: PageId) -> bool {
        let holdings = self.domains.get(&domain).map(|entry| &entry.holdings);
        holdings.and_then(|holdings| holdings.cost_of(page)).is_some_and(is_absence)
    }

    /// Drops entries of those that are none any more, once they are more than half.
    fn tidy_absences(&mut self) {
        if self.memory.absences.order.len() <= 2 * self.memory.absences.count + QUEUE_MIN {
            return;
        }
        let mut order = std::mem::take(&mut self.memory.absences.order);
        let mut seen = BTreeSet::new();
        order.retain(|&(domain, page)| self.holds_absence(domain, page) && seen.insert(page));
        self.memory.absences.order = order;
    }

    /// Panics when an invariant is broken.
    pub(super) fn check_absences(&self, held: usize) {
        let Absences { count, order } = &self.memory.absences;
        assert_eq!(*count, held, "absences are counted");
        let listed: BTreeSet<PageId> = order
            .iter()
            .filter(|(domain, page)| self.holds_absence(*domain, *page))
            .map(|(_, page)| *page)
            .collect();
        assert_eq!(listed.len(), held, "every absence may be shed");
    }
}
