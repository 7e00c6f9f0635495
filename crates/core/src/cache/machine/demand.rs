//! Pages that users wait for and that are not asked for yet, and which of them is next.
//!
//! Asked for in the order in which they were wanted, the pages of a user who wants two hundred at once,
//! from a parent that takes one request at a time, kept everybody else waiting until the last of them (bug
//! 144). So every other page is one of the user who waits for the fewest, and the others are the oldest
//! user's. Nobody waits for ever behind those who come later: who has waited longest has every second page.
//! And few users have some of their pages and lack others, since turns of all alike would have the pages of
//! everybody in memory until the end.

use crate::id::{PageId, RequestId};
use std::collections::{BTreeMap, BTreeSet};

/// Which user waits for which pages that are to be asked for.
#[derive(Default)]
pub(super) struct Demand {
    /// By user, the oldest first: their numbers ascend.
    waits: BTreeMap<RequestId, BTreeSet<PageId>>,
    /// Users by how many pages they wait for.
    fewest: BTreeSet<(usize, RequestId)>,
    /// The last page was one of the oldest user's.
    was_oldest: bool,
}

impl Demand {
    pub(super) fn add(&mut self, user: RequestId, page: PageId) {
        let pages = self.waits.entry(user).or_default();
        let count = pages.len();
        if pages.insert(page) {
            self.fewest.remove(&(count, user));
            self.fewest.insert((count + 1, user));
        }
    }

    pub(super) fn remove(&mut self, user: RequestId, page: PageId) {
        let Some(pages) = self.waits.get_mut(&user) else { return };
        let count = pages.len();
        if pages.remove(&page) {
            self.fewest.remove(&(count, user));
            if count > 1 {
                self.fewest.insert((count - 1, user));
            } else {
                self.waits.remove(&user);
            }
        }
    }

    /// The lowest page of the user whose turn it is. It stays until it is removed, for each who waits for it.
    pub(super) fn turn(&mut self) -> Option<PageId> {
        let (_, few) = self.fewest.first()?;
        let user = if self.was_oldest { few } else { self.waits.first_key_value()?.0 };
        self.was_oldest = !self.was_oldest;
        self.waits[user].first().copied()
    }

    /// Who waits for the page, according to this.
    pub(super) fn waits(&self, user: RequestId, page: PageId) -> bool {
        self.waits.get(&user).is_some_and(|pages| pages.contains(&page))
    }

    /// Pages waited for, each as often as it is.
    pub(super) fn len(&self) -> usize {
        self.waits.values().map(BTreeSet::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{PageNo, VolumeId};

    fn page(number: u64) -> PageId {
        PageId { volume: VolumeId(1), page: PageNo(number) }
    }

    /// The next, which is asked for.
    fn next(demand: &mut Demand) -> Option<u64> {
        let next = demand.turn()?;
        let users: Vec<RequestId> = demand.waits.keys().copied().collect();
        users.into_iter().for_each(|user| demand.remove(user, next));
        Some(next.page.0)
    }

    /// With turns in the order of their numbers, whoever came later was before who had waited, as long as
    /// somebody came.
    #[test]
    fn who_waits_is_not_kept_by_those_who_come() {
        let demand = &mut Demand::default();
        (0..10).for_each(|number| demand.add(RequestId(1), page(number)));
        let mut of_the_first = 0;
        for number in 0..20 {
            demand.add(RequestId(10 + number), page(100 + number));
            demand.add(RequestId(40 + number), page(200 + number));
            of_the_first += usize::from(next(demand).is_some_and(|page| page < 10));
        }
        assert_eq!(of_the_first, 10);
    }

    #[test]
    fn few_pages_do_not_wait_for_many() {
        let demand = &mut Demand::default();
        (0..200).for_each(|number| demand.add(RequestId(1), page(number)));
        (300..303).for_each(|number| demand.add(RequestId(2), page(number)));
        demand.add(RequestId(3), page(400));
        demand.add(RequestId(3), page(0));
        let asked: Vec<u64> = (0..8).map_while(|_| next(demand)).collect();
        assert_eq!(asked, [0, 400, 1, 300, 2, 301, 3, 302]);
        (0..192).for_each(|_| assert!(next(demand).is_some()));
        assert_eq!((demand.len(), next(demand), demand.fewest.len()), (4, Some(196), 1));
    }
}
