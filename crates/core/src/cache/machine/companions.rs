//! Pages that one commit of others made stale here: who comes back to one of them will want the others.
//!
//! A reader that comes back to what somebody changed (a composite part of OO7, a file) finds its pages stale one after another, and
//! waits a round trip for each: BuddyCache's reader group (section 6.3) waits for four to five in each such visit. With the
//! first that a user asks for the next of them are asked for ahead. What was asked for so and read by nobody until it became stale
//! again is left out, until a user asks for it.

use crate::id::PageId;
use std::collections::{BTreeMap, BTreeSet};

/// Most that are asked for ahead with one page.
const AT_ONCE: usize = 16;

/// What a domain knows of them: hints, and no more.
#[derive(Default)]
pub(super) struct Companions {
    /// Pages that are stale, by the commit that made them so last.
    commits: BTreeMap<u64, BTreeSet<PageId>>,
    of: BTreeMap<PageId, u64>,
    next_commit: u64,
    /// Those that were asked for ahead, and that nobody is known to have used since.
    unasked: BTreeSet<PageId>,
    /// All that were asked for ahead, and those of them that somebody was known to have read when they changed again.
    counts: CompanionCounts,
}

/// What came of asking ahead for pages that became stale together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CompanionCounts {
    /// Pages that were asked for so.
    pub asked: u64,
    /// Of those, the ones that somebody was known to have read when they changed again.
    pub read: u64,
}

impl Companions {
    /// It was asked for ahead, and nobody is known to have used it.
    pub(super) fn is_unasked(&self, page: PageId) -> bool {
        self.unasked.contains(&page)
    }

    /// Somebody has.
    pub(super) fn used(&mut self, page: PageId) {
        self.counts.read += u64::from(self.unasked.remove(&page));
    }

    pub(super) fn counts(&self) -> CompanionCounts {
        self.counts
    }

    /// A commit made these stale here; of all of them at most so many are remembered.
    pub(super) fn stale(&mut self, pages: Vec<PageId>, max: usize) {
        let mut together = BTreeSet::new();
        for page in pages {
            self.leave(page);
            if !self.unasked.contains(&page) && together.len() < max {
                together.insert(page);
            }
        }
        if together.len() < 2 {
            return;
        }
        self.of.extend(together.iter().map(|page| (*page, self.next_commit)));
        self.commits.insert(self.next_commit, together);
        self.next_commit += 1;
        while self.of.len() > max
            && let Some((_, forgotten)) = self.commits.pop_first()
        {
            for page in forgotten {
                self.of.remove(&page);
            }
        }
    }

    /// A user asks for a page that is not here, or is stale; gives the next ones that became so with it, to be asked for ahead.
    pub(super) fn asked(&mut self, page: PageId) -> Vec<PageId> {
        self.unasked.remove(&page);
        let Some(commit) = self.leave(page) else { return Vec::new() };
        let Some(together) = self.commits.get(&commit) else { return Vec::new() };
        let following = together.range(page..).chain(together.range(..page));
        let following: Vec<PageId> = following.copied().take(AT_ONCE).collect();
        for companion in &following {
            self.leave(*companion);
        }
        following
    }

    /// It is asked for ahead.
    pub(super) fn asked_ahead(&mut self, page: PageId, max: usize) {
        self.unasked.insert(page);
        self.counts.asked += 1;
        while self.unasked.len() > max {
            self.unasked.pop_first();
        }
    }

    fn leave(&mut self, page: PageId) -> Option<u64> {
        let commit = self.of.remove(&page)?;
        let together = self.commits.get_mut(&commit).expect("it names its commit");
        together.remove(&page);
        if together.is_empty() {
            self.commits.remove(&commit);
        }
        Some(commit)
    }

    /// Panics when an invariant is broken.
    pub(super) fn check(&self, max: usize) {
        let all =
            self.commits.iter().flat_map(|(commit, pages)| pages.iter().map(|it| (*it, *commit)));
        let all: BTreeMap<PageId, u64> = all.collect();
        assert_eq!(all, self.of, "each page names its commit");
        assert!(!self.commits.values().any(BTreeSet::is_empty), "a commit without pages");
        assert!(self.of.len() <= max && self.unasked.len() <= max, "too many companions");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{PageNo, VolumeId};

    fn page(number: u64) -> PageId {
        PageId { volume: VolumeId(1), page: PageNo(number) }
    }

    fn pages(numbers: impl IntoIterator<Item = u64>) -> Vec<PageId> {
        numbers.into_iter().map(page).collect()
    }

    fn ask(companions: &mut Companions, number: u64, max: usize) -> Vec<PageId> {
        let ahead = companions.asked(page(number));
        ahead.iter().for_each(|page| companions.asked_ahead(*page, max));
        ahead
    }

    #[test]
    fn what_became_stale_together_is_asked_for_together() {
        let mut companions = Companions::default();
        companions.stale(pages([1, 3, 5, 7]), 100);
        companions.stale(pages([5, 9]), 100);
        companions.check(100);
        assert_eq!(ask(&mut companions, 2, 100), []);
        assert_eq!(ask(&mut companions, 3, 100), pages([7, 1]), "5 is with 9 since");
        assert_eq!(ask(&mut companions, 1, 100), [], "it was asked for");
        companions.check(100);
        // 7 was asked for ahead, and nobody has read it; 1 a user did.
        companions.stale(pages([1, 3, 7]), 100);
        assert_eq!(ask(&mut companions, 3, 100), pages([1]));
        // A user asks for it after all, and another one reads what was asked for ahead.
        assert_eq!(ask(&mut companions, 7, 100), []);
        companions.used(page(1));
        companions.stale(pages([1, 3, 7]), 100);
        assert_eq!(ask(&mut companions, 3, 100), pages([7, 1]));
        assert_eq!(ask(&mut companions, 5, 100), pages([9]));
        assert_eq!(companions.counts(), CompanionCounts { asked: 6, read: 1 });
        companions.check(100);
        assert!(companions.commits.is_empty() && companions.of.is_empty());
    }

    #[test]
    fn many_are_asked_for_by_and_by_and_few_are_remembered() {
        let mut companions = Companions::default();
        companions.stale(pages(0..100), 120);
        assert_eq!(ask(&mut companions, 90, 120), pages((91..100).chain(0..7)));
        assert_eq!(ask(&mut companions, 7, 120), pages(8..24));
        companions.check(120);
        // 67 of the first are left: with 60 more they are too many, and the older ones go.
        companions.stale(pages(200..260), 120);
        companions.check(120);
        assert_eq!(ask(&mut companions, 30, 120), []);
        assert_eq!(ask(&mut companions, 200, 120).len(), AT_ONCE);
        (0..200).for_each(|number| companions.used(page(number)));
        companions.stale(pages(0..200), 120);
        companions.check(120);
        assert_eq!(ask(&mut companions, 150, 120), [], "more than are remembered at all");
        assert_eq!(ask(&mut companions, 50, 120), pages(51..67));
        // None at all.
        let mut none = Companions::default();
        none.stale(pages(0..100), 0);
        none.check(0);
        assert_eq!(ask(&mut none, 1, 0), []);
    }
}
