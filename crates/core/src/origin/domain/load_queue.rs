//! Pages that are wanted from the page engine and are not asked for yet.
//!
//! One page goes to who waits longest, and one to the next of all who wait, by turns: of the processes, and of the commits of
//! each. A commit of thousands of pages that are not here (a large file is freed) is not before the one page of another, of
//! its own process or not, and is not behind all who come after it either. Whoever it is waits for about twice as long as if
//! each page were loaded in the order in which it was first asked for, or for two pages of each who takes turns with it and,
//! times these, of each that takes turns with it there (bug 223). Turns are those of processes with commits, of links that
//! fetch, of the copies of volumes, and of the origin itself.

use crate::id::{BootId, LinkId, PageId, RequestId};
use crate::turns::Turns;
use std::collections::{BTreeMap, BTreeSet};

/// Who takes turns with others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Party {
    Boot(BootId),
    Link(LinkId),
    Copies,
    Own,
}

/// For whom a page is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Claimant {
    /// A process's commit, by its ticket.
    Commit(BootId, u64),
    /// What a child has asked for.
    Fetch(LinkId, RequestId),
    /// A part of a volume's copy.
    Copy(u64),
    /// The origin itself, which installs.
    Own,
}

impl Claimant {
    /// Who takes turns with others, and what with the rest of that.
    fn place(self) -> (Party, u64) {
        match self {
            Self::Commit(boot, ticket) => (Party::Boot(boot), ticket),
            Self::Fetch(link, request) => (Party::Link(link), request.0),
            Self::Copy(copy) => (Party::Copies, copy),
            Self::Own => (Party::Own, 0),
        }
    }
}

/// What is wanted of one thing, by age.
type Pages = BTreeMap<u64, PageId>;

/// A page that waits.
#[derive(Debug)]
struct Queued {
    /// Its place among all, by when it was first asked for.
    age: u64,
    /// Those who want it.
    places: Vec<(Party, u64)>,
}

/// The queue of a domain.
#[derive(Debug, Default)]
pub(super) struct LoadQueue {
    pages: BTreeMap<PageId, Queued>,
    by_age: Pages,
    parties: Turns<Party, Turns<u64, Pages>>,
    next_age: u64,
    /// The last page went to who waits longest.
    oldest_had: bool,
}

impl LoadQueue {
    pub(super) fn len(&self) -> usize {
        self.pages.len()
    }

    pub(super) fn has(&self, page: PageId) -> bool {
        self.pages.contains_key(&page)
    }

    /// A page is to be loaded.
    pub(super) fn push(&mut self, page: PageId, claimant: Claimant) {
        let age = self.next_age;
        self.next_age += 1;
        self.pages.insert(page, Queued { age, places: Vec::new() });
        self.by_age.insert(age, page);
        self.claim(page, claimant);
    }

    /// One more wants a page, if that waits still.
    pub(super) fn claim(&mut self, page: PageId, claimant: Claimant) {
        let Some(queued) = self.pages.get_mut(&page) else { return };
        let (party, what) = claimant.place();
        if self.parties.entry(party).entry(what).insert(queued.age, page).is_none() {
            queued.places.push((party, what));
        }
    }

    /// The page that is loaded next.
    pub(super) fn pop(&mut self) -> Option<PageId> {
        let (_, oldest) = self.by_age.first_key_value()?;
        self.oldest_had = !self.oldest_had;
        let page = match self.oldest_had {
            true => *oldest,
            false => self.next_in_round(),
        };
        self.remove(page);
        Some(page)
    }

    /// The oldest page of who has its turn, who goes to the end of the round.
    fn next_in_round(&mut self) -> PageId {
        let party = self.parties.next().expect("each page is somebody's");
        self.parties.has_had(party);
        let of_party = self.parties.entry(party);
        let what = of_party.next().expect("who wants nothing has left");
        of_party.has_had(what);
        *of_party.entry(what).first_key_value().expect("who wants nothing has left").1
    }

    /// A page that waits is wanted by these alone any more; says whether there are any. By nobody: it is not loaded.
    pub(super) fn keep(&mut self, page: PageId, claimants: impl Iterator<Item = Claimant>) -> bool {
        let kept: BTreeSet<(Party, u64)> = claimants.map(Claimant::place).collect();
        if kept.is_empty() {
            self.remove(page);
            return false;
        }
        let queued = self.pages.get_mut(&page).expect("it waits");
        let gone = queued.places.extract_if(.., |place| !kept.contains(place));
        let (age, gone) = (queued.age, gone.collect::<Vec<_>>());
        gone.into_iter().for_each(|place| self.leave(age, place));
        true
    }

    fn remove(&mut self, page: PageId) {
        let Queued { age, places } = self.pages.remove(&page).expect("it waits");
        self.by_age.remove(&age);
        places.into_iter().for_each(|place| self.leave(age, place));
    }

    fn leave(&mut self, age: u64, (party, what): (Party, u64)) {
        let of_party = self.parties.get_mut(party).expect("it is in the round");
        let pages = of_party.get_mut(what).expect("it wants the page");
        pages.remove(&age);
        if pages.is_empty() {
            of_party.remove(what);
        }
        if of_party.is_empty() {
            self.parties.remove(party);
        }
    }

    pub(super) fn clear(&mut self) {
        self.pages.clear();
        self.by_age.clear();
        self.parties.clear();
    }

    /// Panics when an invariant is broken.
    pub(super) fn check(&self) {
        let by_age: Pages = self.pages.iter().map(|(page, queued)| (queued.age, *page)).collect();
        assert_eq!(by_age, self.by_age, "each page that waits has one place");
        let places: usize = self.pages.values().map(|queued| queued.places.len()).sum();
        let claimed = self.parties.values().flat_map(Turns::values).map(Pages::len);
        assert_eq!(places, claimed.sum::<usize>(), "claims are miscounted");
        assert!(self.pages.values().all(|queued| !queued.places.is_empty()), "nobody's page");
        assert!(!self.parties.values().any(Turns::is_empty), "a party that wants nothing");
        let nothing = self.parties.values().flat_map(Turns::values).any(Pages::is_empty);
        assert!(!nothing, "nothing is claimed");
        self.parties.check();
        self.parties.values().for_each(Turns::check);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{PageNo, VolumeId};

    fn page(number: u64) -> PageId {
        PageId { volume: VolumeId(1), page: PageNo(number) }
    }

    /// The story: pages were loaded in the order in which they were asked for, so that a commit of thousands of them was
    /// before the one page of another process; and by turns alone it would be behind all who keep coming (bug 223).
    #[test]
    fn neither_many_pages_nor_many_claimants_are_in_the_way() {
        let mut queue = LoadQueue::default();
        for number in 0..1000 {
            queue.push(page(number), Claimant::Commit(BootId(1), 7));
        }
        queue.push(page(5000), Claimant::Fetch(LinkId(1), RequestId(1)));
        // Of one process what is short is not behind what is long.
        queue.push(page(5001), Claimant::Commit(BootId(1), 8));
        // Who comes late for a page that waits has it at its own turn.
        queue.claim(page(900), Claimant::Copy(1));
        queue.claim(page(900), Claimant::Copy(1));
        let mut had = BTreeMap::new();
        for turn in 0..3000 {
            let boot = BootId(u128::from(2 + turn % 20));
            queue.push(page(10_000 + turn), Claimant::Commit(boot, turn));
            queue.check();
            had.insert(queue.pop().expect("there is one").page.0, turn);
        }
        assert!(had[&5000] < 8, "{:?}", had[&5000]);
        assert!(had[&900] < 10, "{:?}", had[&900]);
        assert!(had[&5001] < 100, "{:?}", had[&5001]);
        assert!((0..1000).all(|number| had[&number] < 2_001), "half is for who came first");
        assert!((0..200).all(|turn| had[&(10_000 + turn)] < 2_500), "{had:?}");
        while queue.pop().is_some() {}
        queue.check();
        assert!(!queue.has(page(900)) && queue.parties.is_empty());
    }

    /// Children come, fetch what waits long for others, and go: nothing of them stays, and no turn (P7).
    #[test]
    fn who_has_gone_leaves_nothing() {
        let mut queue = LoadQueue::default();
        let (commit, fetch) =
            (Claimant::Commit(BootId(1), 7), Claimant::Fetch(LinkId(1), RequestId(1)));
        queue.push(page(1), fetch);
        queue.push(page(2), commit);
        queue.claim(page(2), fetch);
        assert!(!queue.keep(page(1), std::iter::empty()));
        assert!(queue.keep(page(2), [commit].into_iter()));
        queue.check();
        assert_eq!(queue.parties.values().count(), 1);
        assert!(queue.keep(page(2), [commit, fetch].into_iter()), "a claim is not made so");
        assert_eq!(queue.parties.values().count(), 1);
        assert_eq!((queue.pop(), queue.pop()), (Some(page(2)), None));
        queue.check();
    }
}
