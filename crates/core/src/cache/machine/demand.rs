//! Pages that users wait for and that are not asked for yet, and which of them is next.
//!
//! Asked for in the order in which they were wanted, the pages of a user who wants two hundred at once,
//! from a parent that takes one request at a time, kept everybody else waiting until the last of them (bug
//! 144). So each user is due: as many pages after he came as he wants, and whoever is due first is next. Who
//! wants few pages goes before who wants many, and nobody waits for ever behind those who come: they are due
//! later. Turns of all alike would let whoever came later go first as long as somebody came, and have a part
//! of the pages of everybody in memory until the end; who is let before another here wants less than is left
//! to the other.

use crate::id::{PageId, RequestId};
use std::collections::{BTreeMap, BTreeSet};

/// Which user waits for which pages that are to be asked for.
#[derive(Default)]
pub(super) struct Demand {
    waits: BTreeMap<RequestId, Wants>,
    /// Users by when they are due.
    order: BTreeSet<(u64, RequestId)>,
    /// Pages that were asked for.
    taken: u64,
}

struct Wants {
    /// Pages that had been asked for when he came, and as many as he wanted.
    due: u64,
    pages: BTreeSet<PageId>,
}

impl Demand {
    /// Who wants more, or one again, is due later by it.
    pub(super) fn add(&mut self, user: RequestId, page: PageId) {
        let new = || Wants { due: self.taken, pages: BTreeSet::new() };
        let wants = self.waits.entry(user).or_insert_with(new);
        if wants.pages.insert(page) {
            self.order.remove(&(wants.due, user));
            wants.due += 1;
            self.order.insert((wants.due, user));
        }
    }

    pub(super) fn remove(&mut self, user: RequestId, page: PageId) {
        let Some(wants) = self.waits.get_mut(&user) else { return };
        if wants.pages.remove(&page) && wants.pages.is_empty() {
            self.order.remove(&(wants.due, user));
            self.waits.remove(&user);
        }
    }

    /// The lowest page of who is due first, to be asked for now. It stays until it is removed, for each who
    /// waits for it.
    pub(super) fn turn(&mut self) -> Option<PageId> {
        let (_, user) = self.order.first()?;
        self.taken += 1;
        self.waits[user].pages.first().copied()
    }

    /// Whether the user waits for the page, according to this.
    pub(super) fn waits(&self, user: RequestId, page: PageId) -> bool {
        self.waits.get(&user).is_some_and(|wants| wants.pages.contains(&page))
    }

    /// Pages waited for, each as often as it is.
    pub(super) fn len(&self) -> usize {
        self.waits.values().map(|wants| wants.pages.len()).sum()
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

    fn want(demand: &mut Demand, user: u64, pages: std::ops::Range<u64>) {
        pages.for_each(|number| demand.add(RequestId(user), page(number)));
    }

    /// With turns in the order of their numbers whoever came later was before who had waited, as long as
    /// somebody came.
    #[test]
    fn who_waits_is_not_kept_by_those_who_come() {
        let demand = &mut Demand::default();
        want(demand, 1, 0..10);
        let mut asked = Vec::new();
        for number in 0..28 {
            want(demand, 10 + number, 100 + number..101 + number);
            want(demand, 50 + number, 200 + number..201 + number);
            asked.extend(next(demand));
        }
        assert_eq!(asked.iter().filter(|page| **page < 10).count(), 10, "{asked:?}");
    }

    /// With every other page the oldest user's, and the others of who wants the fewest, somebody between the
    /// two had none.
    #[test]
    fn who_wants_some_waits_neither_for_many_nor_for_ones() {
        let demand = &mut Demand::default();
        want(demand, 1, 0..200);
        want(demand, 2, 300..320);
        let mut asked = Vec::new();
        for number in 0..60 {
            want(demand, 10 + number, 400 + number..401 + number);
            asked.extend(next(demand));
        }
        assert!(
            asked[..40].iter().filter(|page| (300..320).contains(*page)).count() == 20,
            "{asked:?}"
        );
    }

    #[test]
    fn few_pages_do_not_wait_for_many() {
        let demand = &mut Demand::default();
        want(demand, 1, 0..200);
        want(demand, 2, 300..303);
        want(demand, 3, 400..401);
        demand.add(RequestId(3), page(0));
        let asked: Vec<u64> = (0..6).map_while(|_| next(demand)).collect();
        assert_eq!(asked, [0, 400, 300, 301, 302, 1]);
        (0..198).for_each(|_| assert!(next(demand).is_some()));
        assert_eq!((demand.len(), next(demand), demand.order.len()), (0, None, 0));
    }
}
