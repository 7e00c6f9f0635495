//! Pages that users wait for and that are not asked for yet.
//!
//! One page goes to who waits longest, and one to the next of all who wait, by turns. Who wants one page waits for two of
//! each other at most, and not until all is here that somebody wants who came before; and who wants many has half of
//! what there is once all have theirs who came before, however many come after: about twice as long as if each were
//! served in the order in which it came, whoever it is (bug 213).

use crate::id::{PageId, RequestId};
use crate::turns::Turns;
use std::collections::{BTreeSet, VecDeque};

/// A queue shorter than this is not tidied.
const QUEUED_MIN: usize = 64;

/// The queue of a domain. An entry may be of a page that nobody wants any more, or that is asked for.
#[derive(Default)]
pub(super) struct Demand {
    /// Before all others: what was asked for and did not come.
    again: VecDeque<PageId>,
    /// What each user waits for, by the age of their requests.
    users: Turns<RequestId, VecDeque<PageId>>,
    /// The last page went to who waits longest.
    oldest_had: bool,
    /// Entries of users.
    queued: usize,
    /// With more of them it is to be tidied.
    tidy_at: usize,
}

impl Demand {
    /// Entries. See `crate::rest`.
    #[cfg(feature = "faults")]
    pub(super) fn len(&self) -> usize {
        self.again.len() + self.queued
    }

    /// A user waits for the page.
    pub(super) fn push(&mut self, user: RequestId, page: PageId) {
        self.users.entry(user).push_back(page);
        self.queued += 1;
    }

    /// The page is to be asked for anew, before all others.
    pub(super) fn push_again(&mut self, page: PageId) {
        self.again.push_back(page);
    }

    /// The next one that is still wanted.
    pub(super) fn pop(&mut self, wanted: impl Fn(PageId) -> bool) -> Option<PageId> {
        while let Some(page) = self.again.pop_front() {
            if wanted(page) {
                return Some(page);
            }
        }
        self.oldest_had = !self.oldest_had;
        loop {
            let user = match self.oldest_had {
                true => self.users.first()?,
                false => self.users.next()?,
            };
            if let Some(page) = self.pop_of(user, &wanted) {
                return Some(page);
            }
        }
    }

    /// The next one of a user, whose turn this is.
    fn pop_of(&mut self, user: RequestId, wanted: impl Fn(PageId) -> bool) -> Option<PageId> {
        let pages = self.users.get_mut(user).expect("it is in the round");
        let mut page = None;
        while let Some(next) = pages.pop_front() {
            self.queued -= 1;
            if wanted(next) {
                page = Some(next);
                break;
            }
        }
        if pages.is_empty() {
            self.users.remove(user);
        } else if !self.oldest_had {
            self.users.has_had(user);
        }
        self.tidy_at = self.tidy_at.min(2 * self.queued.max(QUEUED_MIN));
        page
    }

    /// Nothing is queued any more.
    pub(super) fn clear(&mut self) {
        self.again.clear();
        self.users.clear();
        (self.queued, self.tidy_at) = (0, 0);
    }

    /// Drops what nobody waits for any more, once it may be as much as what somebody does: without a link nothing else
    /// takes it out.
    pub(super) fn tidy(&mut self, wanted: impl Fn(RequestId, PageId) -> bool) {
        if self.queued <= self.tidy_at.max(QUEUED_MIN) {
            return;
        }
        self.users.retain(|user, pages| {
            let mut seen = BTreeSet::new();
            pages.retain(|page| wanted(user, *page) && seen.insert(*page));
            !pages.is_empty()
        });
        self.queued = self.users.values().map(VecDeque::len).sum();
        self.tidy_at = 2 * self.queued;
    }

    /// Panics when an invariant is broken.
    pub(super) fn check(&self) {
        let queued: usize = self.users.values().map(VecDeque::len).sum();
        assert_eq!(queued, self.queued, "queued pages are counted");
        assert!(queued <= self.tidy_at.max(QUEUED_MIN) + 1, "queued fetches are bounded");
        assert!(self.users.values().all(|pages| !pages.is_empty()), "who wants nothing has left");
        self.users.check();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{PageNo, VolumeId};
    use std::collections::BTreeMap;

    fn page(number: u64) -> PageId {
        PageId { volume: VolumeId(1), page: PageNo(number) }
    }

    /// Whoever keeps coming keeps nobody waiting: neither who wants many pages and came first, nor who came second.
    #[test]
    fn nobody_waits_for_those_who_come_after() {
        let mut demand = Demand::default();
        for number in 0..200 {
            demand.push(RequestId(1), page(number));
        }
        for number in 200..300 {
            demand.push(RequestId(2), page(number));
        }
        let mut had = BTreeMap::new();
        // Each time a page is asked for, somebody else comes who wants one.
        for turn in 0..1000 {
            demand.push(RequestId(3 + turn), page(1000 + turn));
            let page = demand.pop(|_| true).expect("there is something").page.0;
            had.insert(page, turn);
            demand.tidy(|_, _| true);
            demand.check();
        }
        let all_by = |mut pages: std::ops::Range<u64>, turn| {
            pages.all(|page| had.get(&page).is_some_and(|had| *had < turn))
        };
        assert!(all_by(0..200, 2 * 200 + 2), "{had:?}");
        assert!(all_by(200..300, 2 * 300 + 2), "{had:?}");
        // Of those who came with one page alone the first ones waited for a few turns.
        assert!(had[&1000] < 8, "{had:?}");
    }
}
