//! What a domain holds in memory, and the notices and page lists by which its parent hears of that (rule 2).

use super::absences::is_absence;
use crate::cache::PageCopy;
use crate::id::{PageId, PageNo, VolumeId};
use crate::message::PAGES_PER_MESSAGE_MAX;
use crate::time::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// A page list under way to the parent.
pub(super) struct Listing {
    /// Of its beginning, ascending.
    pub(super) pages: Vec<PageId>,
    pub(super) next: usize,
    /// Held since, and not told yet.
    pub(super) late: BTreeSet<PageId>,
    pub(super) late_told: BTreeSet<PageId>,
}

impl Listing {
    pub(super) fn new(pages: BTreeSet<PageId>) -> Self {
        let pages = pages.into_iter().collect();
        Self { pages, next: 0, late: BTreeSet::new(), late_told: BTreeSet::new() }
    }

    /// Names a page that the beginning did not know of, once.
    pub(super) fn add(&mut self, page: PageId) {
        if self.pages.binary_search(&page).is_err() && !self.late_told.contains(&page) {
            self.late.insert(page);
        }
    }

    /// The next pages to be told, and whether they are the last.
    pub(super) fn next(&mut self) -> (Vec<PageId>, bool) {
        let end = self.pages.len().min(self.next + PAGES_PER_MESSAGE_MAX);
        let mut part = self.pages[self.next..end].to_vec();
        self.next = end;
        while part.len() < PAGES_PER_MESSAGE_MAX
            && let Some(page) = self.late.pop_first()
        {
            self.late_told.insert(page);
            part.push(page);
        }
        (part, end == self.pages.len() && self.late.is_empty())
    }
}

/// A notice that is owed.
#[derive(Clone, Copy)]
pub(super) struct Owed {
    /// Of the eviction.
    pub(super) epoch: u64,
    /// Nothing is sent in the end: only lists must name the page for as long.
    pub(super) silent: bool,
}

/// What a domain holds in memory, and what it owes the parent to know of that.
#[derive(Default)]
pub(super) struct Holdings {
    /// Copies in the shared maps, and what each costs.
    pub(super) resident: BTreeMap<PageId, usize>,
    /// Complete copies that may be stale as a whole: asked for with their version.
    pub(super) suspects: BTreeMap<PageId, Arc<PageCopy>>,
    /// Pages no longer held of which the parent must hear: not before all transactions of the time of
    /// their eviction have ended (rule 2). Lists name them until then.
    pub(super) owed: BTreeMap<PageId, Owed>,
    /// No notice that waits for a transaction is of an epoch before this one. While that transaction
    /// runs they need not be looked at, however many there are.
    pub(super) waits_from: u64,
    /// Notices that wait for something else: they are looked at every time.
    pub(super) held_up: Vec<PageId>,
    pub(super) listing: Option<Listing>,
    /// A list was begun by an empty part at this instant: it goes on when a later beat is echoed.
    pub(super) announced: Option<Instant>,
    /// The parent gathers nothing for a list unless it is announced: one was sent since the resume,
    /// or the resume held nothing, or nothing that the parent knows of.
    pub(super) announces: bool,
    /// A page list is wanted, once all transactions of this epoch have ended.
    pub(super) relist: Option<u64>,
    /// One more after that, likewise: notices were forgotten while the parent gathers what is fetched
    /// and made.
    pub(super) again: Option<u64>,
}

impl Holdings {
    /// Whether the page is in memory, whole or with holes.
    pub(super) fn holds(&self, page: PageId) -> bool {
        self.resident.contains_key(&page)
    }

    /// What its copy in memory costs.
    pub(super) fn cost_of(&self, page: PageId) -> Option<usize> {
        self.resident.get(&page).copied()
    }

    /// Copies of absent pages.
    pub(super) fn absences(&self) -> usize {
        self.resident.values().filter(|cost| is_absence(**cost)).count()
    }

    pub(super) fn suspect(&self, page: PageId) -> Option<Arc<PageCopy>> {
        self.suspects.get(&page).cloned()
    }

    /// Pages of a range: held, and suspects.
    pub(super) fn pages_in(&self, pages: Range<PageId>) -> (Vec<PageId>, Vec<PageId>) {
        let held = self.resident.range(pages.clone()).map(|(&page, _)| page).collect();
        (held, self.suspects.range(pages).map(|(&page, _)| page).collect())
    }

    /// Whether the page is in memory, or only suspected to be stale.
    pub(super) fn keeps(&self, page: PageId) -> bool {
        self.holds(page) || self.suspects.contains_key(&page)
    }

    /// Whether a page list is due, or under way.
    pub(super) fn lists(&self) -> bool {
        self.relist.is_some() || self.announced.is_some() || self.listing.is_some()
    }

    /// A page list is wanted, once all transactions of this epoch have ended; one that is due or under way
    /// may have been made too early.
    pub(super) fn list_anew(&mut self, epoch: u64) {
        let due = if self.lists() { &mut self.again } else { &mut self.relist };
        *due = (*due).max(Some(epoch));
    }

    /// A page list is wanted that does not name what is owed silently of a volume: a list names it for as
    /// long as that is so, and nothing is sent in the end.
    pub(super) fn list_without(&mut self, volume: VolumeId) {
        let first = PageId { volume, page: PageNo(0) };
        let owed = self.owed.range(first..=PageId::of_volume(volume)).map(|(_, owed)| owed);
        let silent = owed.filter(|owed| owed.silent).map(|owed| owed.epoch);
        self.list_anew(silent.max().unwrap_or_default());
    }

    /// See `crate::rest`.
    #[cfg(feature = "faults")]
    pub(super) fn under_way(&self) -> Option<String> {
        crate::rest::first(&[
            ("notices owed", self.owed.len()),
            ("page lists due", usize::from(self.lists())),
        ])
    }

    pub(super) fn owe(&mut self, page: PageId, mut owed: Owed) {
        let epoch = owed.epoch;
        owed.silent &= self.owed.get(&page).is_none_or(|before| before.silent);
        self.owed.insert(page, owed);
        self.waits_from = self.waits_from.min(epoch);
    }

    /// Pages of notices that may have become free: some of them, or all where a transaction has ended
    /// for which one may have waited.
    fn looked_at(&mut self, oldest: u64) -> Vec<PageId> {
        if oldest <= self.waits_from {
            return std::mem::take(&mut self.held_up);
        }
        self.waits_from = u64::MAX;
        self.held_up.clear();
        self.owed.keys().copied().collect()
    }

    /// Takes out notices for pages that no transaction from `oldest` on can have read, and that nothing
    /// else holds up; gives those of which the parent must hear.
    pub(super) fn take_free(
        &mut self,
        oldest: u64,
        mut held_up: impl FnMut(PageId) -> bool,
    ) -> Vec<PageId> {
        let mut pages = Vec::new();
        for page in self.looked_at(oldest) {
            let Some(&Owed { epoch, silent }) = self.owed.get(&page) else { continue };
            if epoch < oldest && !held_up(page) {
                self.owed.remove(&page);
                if !silent && !self.holds(page) {
                    pages.push(page);
                }
                continue;
            }
            crate::probe::probe("notice-waits");
            if epoch < oldest {
                self.held_up.push(page);
            } else {
                self.waits_from = self.waits_from.min(epoch);
            }
        }
        pages
    }

    pub(super) fn cancel_notice(&mut self, page: PageId) {
        self.owed.remove(&page);
    }

    /// A resume is sent. From one that holds something on the parent gathers what is fetched and
    /// made, and wants a list of all else.
    pub(super) fn resume(&mut self, holds: bool) {
        self.listing = None;
        self.announced = None;
        self.again = None;
        self.announces = !holds;
        if holds {
            self.relist = self.relist.max(Some(0));
        }
    }

    /// The parent could not tell what became of the copies: it takes this node for one that holds
    /// nothing, and gathers nothing (bug 141).
    pub(super) fn reset(&mut self) {
        self.announces = true;
    }

    /// What was sent up to a beat has been handled by the parent.
    pub(super) fn echoed(&mut self, sent: Instant) -> bool {
        self.announced.take_if(|announced| *announced < sent).is_some()
    }

    pub(super) fn lose_link(&mut self) {
        self.listing = None;
        self.announced = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{PageNo, VolumeId};

    fn page(number: u64) -> PageId {
        PageId { volume: VolumeId(7), page: PageNo(number) }
    }

    /// While a transaction ran that may have read them, thousands of notices were looked at after every
    /// message, though none of them could have become free (bug 104). They are when it has ended.
    #[test]
    fn notices_that_wait_for_a_transaction_are_not_looked_at_while_it_runs() {
        let owed = |epoch| Owed { epoch, silent: false };
        let mut holdings = Holdings::default();
        // Page 1 is of before the transaction, and is being fetched.
        (1..1000).for_each(|number| holdings.owe(page(number), owed(4 + number)));
        let fetched = |one| one == page(1);
        assert_eq!(holdings.take_free(6, fetched), []);
        assert_eq!(holdings.looked_at(6), [page(1)], "the others cannot be free");
        holdings.held_up.push(page(1));
        // One more is evicted. Then the fetch is given up.
        holdings.owe(page(1000), owed(2000));
        assert_eq!(holdings.take_free(6, fetched), []);
        assert_eq!(holdings.looked_at(6), [page(1)]);
        holdings.held_up.push(page(1));
        assert_eq!(holdings.take_free(6, |_| false), [page(1)]);
        assert_eq!(holdings.looked_at(6), []);
        // The next transaction began at epoch 500; it ends, and none runs. Page 600 is held again.
        let freed: Vec<PageId> = (2..496).map(page).collect();
        assert_eq!(holdings.take_free(500, |_| false), freed);
        holdings.resident.insert(page(600), 1);
        assert_eq!(holdings.take_free(500, |_| false), []);
        let freed: Vec<PageId> = (496..=1000).filter(|n| *n != 600).map(page).collect();
        assert_eq!(holdings.take_free(u64::MAX, |_| false), freed);
        assert!(holdings.owed.is_empty());
        // With none running, the next one is free at once.
        holdings.owe(page(3), owed(3000));
        assert_eq!(holdings.take_free(u64::MAX, |_| false), [page(3)]);
    }
}
