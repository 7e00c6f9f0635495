//! Room for the commits of a node's users.

use larder_core::id::DomainId;
use larder_core::share::Room;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Bytes of commits whose users wait, which domains share: the log of one may hang. Who waits for room in a
/// domain stands behind those who came before in that domain alone (finding 404). A domain has no more commits of its own at once than
/// the machine takes on: who is told there that there are too many has no turn (bug 218). Parts of transactions over several have no
/// such place: they would hold it in one domain while they wait in another, whose log may hang.
#[derive(Debug)]
pub(super) struct CommitRooms {
    bytes: usize,
    /// Most commits of a domain.
    commits: usize,
    domains: Mutex<BTreeMap<DomainId, Taken>>,
    given_back: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: usize,
    commits: usize,
    /// Whose turn it is to wait for room.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// Room that was taken, until it is dropped.
#[derive(Debug)]
pub(super) struct Share<'a> {
    rooms: &'a CommitRooms,
    domain: DomainId,
    bytes: usize,
    /// One of the commits of the domain alone, or none.
    place: usize,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        if let Some(taken) = self.rooms.domains().get_mut(&self.domain) {
            taken.bytes -= self.bytes;
            taken.commits -= self.place;
        }
        self.rooms.given_back.notify_waiters();
    }
}

impl CommitRooms {
    /// Of so many bytes, for at most so many commits of each domain.
    pub(super) fn new(bytes: usize, commits: usize) -> Self {
        Self { bytes, commits, domains: Mutex::default(), given_back: Notify::new() }
    }

    /// Waits for room for a commit of so many bytes; of a domain `alone`, or a part of one of several.
    pub(super) async fn take(&self, domain: DomainId, bytes: usize, alone: bool) -> Share<'_> {
        let turn = Arc::clone(&self.domains().entry(domain).or_default().turn);
        let _turn = turn.lock().await;
        loop {
            // Before it looks: what is given back from here on is heard of.
            let mut given_back = std::pin::pin!(self.given_back.notified());
            given_back.as_mut().enable();
            if let Some(share) = self.try_take(domain, bytes, usize::from(alone)) {
                return share;
            }
            given_back.await;
        }
    }

    fn try_take(&self, domain: DomainId, bytes: usize, place: usize) -> Option<Share<'_>> {
        let mut domains = self.domains();
        let busy = domains.iter().filter(|(id, taken)| **id == domain || taken.bytes > 0);
        let room = Room::new(busy.map(|(_, taken)| taken.bytes), self.bytes);
        let taken = domains.get_mut(&domain)?;
        if taken.commits + place > self.commits || !room.takes(taken.bytes, bytes) {
            return None;
        }
        taken.bytes += bytes;
        taken.commits += place;
        Some(Share { rooms: self, domain, bytes, place })
    }

    fn domains(&self) -> MutexGuard<'_, BTreeMap<DomainId, Taken>> {
        self.domains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are taken.
    #[cfg(any(test, feature = "simulated"))]
    pub(super) fn taken(&self) -> usize {
        self.domains().values().map(|taken| taken.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    /// What it gives at once.
    fn at_once<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    /// The story: one count for all domains, first in, first out. The log of domain 1 hung with 33 of 64 bytes; its
    /// next commits waited, and behind them all commits of domain 2.
    #[test]
    fn a_domain_whose_log_hangs_takes_no_room_of_others() {
        let rooms = CommitRooms::new(64, 64);
        let take = |domain, bytes| at_once(pin!(rooms.take(DomainId(domain), bytes, true)));
        let hangs: Vec<_> = (0..2).map(|_| take(1, 33).expect("there is room")).collect();
        let mut waits = pin!(rooms.take(DomainId(1), 32, true));
        let mut behind = pin!(rooms.take(DomainId(1), 1, true));
        assert!(at_once(waits.as_mut()).is_none());
        assert!(at_once(behind.as_mut()).is_none());
        let other = take(2, 10).expect("its own part");
        let long = take(2, 40).expect("it may be longer");
        assert_eq!(take(2, 10).map(|share| share.bytes), None, "its part is taken");
        assert_eq!(rooms.taken(), 66 + 50);
        drop((hangs, other, long));
        let share = at_once(waits).expect("there is room now");
        assert!(at_once(behind).is_some(), "one that comes after has its turn");
        drop(share);
        assert_eq!(rooms.taken(), 0);
    }

    #[test]
    fn one_that_is_longer_than_all_the_room_goes_and_one_that_leaves_takes_nothing() {
        let rooms = CommitRooms::new(64, 64);
        let long =
            at_once(pin!(rooms.take(DomainId(1), 100, true))).expect("nothing else is there");
        {
            let mut leaves = Box::pin(rooms.take(DomainId(1), 1, true));
            assert!(at_once(leaves.as_mut()).is_none());
        }
        drop(long);
        assert!(at_once(pin!(rooms.take(DomainId(1), 1, true))).is_some());
        assert_eq!(rooms.taken(), 0);
    }

    /// Bug 218: a node has as many commits without an outcome as its machine takes on, and each takes seconds. Whoever
    /// came next was told `Busy`, and came again after a pause: the one that had just ended took the place each time,
    /// and of the others none ever did.
    #[test]
    fn who_comes_when_there_are_as_many_as_the_machine_takes_has_the_next_place() {
        let rooms = CommitRooms::new(64, 2);
        let take = |bytes| Box::pin(rooms.take(DomainId(1), bytes, true));
        let first = at_once(take(1).as_mut()).expect("nothing else is there");
        let second = at_once(take(1).as_mut()).expect("two are taken on");
        let mut waits = take(1);
        assert!(at_once(waits.as_mut()).is_none(), "a third one is not");
        drop(first);
        let mut again = take(1);
        assert!(at_once(again.as_mut()).is_none(), "who comes later stands behind");
        assert!(at_once(waits.as_mut()).is_some(), "the place is that of who waited");
        drop(second);
    }
}
