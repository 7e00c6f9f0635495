//! Room for the commits of a node's users.

use larder_core::id::DomainId;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Bytes of commits whose users wait. Each domain has as many: the log of one may hang, and who waits for
/// room stands in the order in which they came (finding 404). What the link takes of all domains is the
/// cache's to share out.
#[derive(Debug)]
pub(super) struct CommitRooms {
    bytes: usize,
    domains: Mutex<BTreeMap<DomainId, Arc<Semaphore>>>,
}

impl CommitRooms {
    /// Of so many bytes for each domain, below 4 GiB.
    pub(super) fn new(bytes: usize) -> Self {
        Self { bytes, domains: Mutex::default() }
    }

    /// Waits for room for a commit of so many bytes; one longer than all the room takes all of it.
    pub(super) async fn take(
        &self,
        domain: DomainId,
        bytes: usize,
    ) -> Result<OwnedSemaphorePermit, AcquireError> {
        let room = {
            let mut domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
            let new = || Arc::new(Semaphore::new(self.bytes));
            Arc::clone(domains.entry(domain).or_insert_with(new))
        };
        let share = u32::try_from(bytes.clamp(1, self.bytes)).expect("far below 4 GiB");
        room.acquire_many_owned(share).await
    }

    /// Bytes that are taken.
    #[cfg(any(test, feature = "simulated"))]
    pub(super) fn taken(&self) -> usize {
        let domains = self.domains.lock().unwrap_or_else(PoisonError::into_inner);
        domains.values().map(|room| self.bytes - room.available_permits()).sum()
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
    /// next commit of 32 waited, and behind it all commits of domain 2.
    #[test]
    fn a_domain_whose_log_hangs_takes_no_room_of_others() {
        let rooms = CommitRooms::new(64);
        let take = |domain, bytes| at_once(pin!(rooms.take(DomainId(domain), bytes)));
        let hangs = take(1, 33).expect("there is room").expect("it is open");
        let mut waits = pin!(rooms.take(DomainId(1), 32));
        assert!(at_once(waits.as_mut()).is_none());
        let other = take(2, 1).expect("it has its own room").expect("it is open");
        let long = take(3, 100).expect("it takes all of it").expect("it is open");
        assert_eq!(rooms.taken(), 33 + 1 + 64);
        drop((hangs, other, long));
        assert!(at_once(waits).expect("there is room now").is_ok());
        assert_eq!(rooms.taken(), 0);
    }
}
