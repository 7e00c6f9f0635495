//! What a node tells its process unasked: which pages changed, and when nothing is current.

use crate::planted::{RuntimeFault, planted};
use larder_core::commit::PageChange;
use larder_core::id::{DomainId, VolumeId};
use larder_core::message::CloseReason;
use larder_core::rights::Right;
use std::sync::Arc;
use tokio::sync::broadcast;

/// Something a watcher (a kernel cache, a user of files) must hear of. Sent after the cache shows
/// the new state.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// These pages changed, by commits of this node or of others.
    Changed {
        /// Whose.
        domain: DomainId,
        /// What, per page.
        pages: Arc<Vec<PageChange>>,
    },
    /// A volume that this node has opened was deleted: whatever is done in it fails.
    VolumeDeleted {
        /// Of which domain.
        domain: DomainId,
        /// Which.
        volume: VolumeId,
    },
    /// Everything of the domain may have changed.
    Reset {
        /// Which.
        domain: DomainId,
    },
    /// Events were lost because the watcher was slow: everything may have changed.
    Overflow,
    /// What this node may do with a volume is another right now. Less than read: nothing of it is held
    /// any more.
    Rights {
        /// Its domain.
        domain: DomainId,
        /// Which.
        volume: VolumeId,
        /// What it may do.
        right: Right,
    },
    /// The link lease lapsed: nothing of the domain may be called current.
    LeaseLapsed {
        /// Which.
        domain: DomainId,
    },
    /// The parent confirmed the domain's state again.
    LeaseRegained {
        /// Which.
        domain: DomainId,
    },
    /// The parent refuses this node, in a way that waiting does not mend.
    Refused {
        /// Why.
        reason: CloseReason,
    },
}

/// A subscription to a node's events: bounded; a watcher that falls behind gets
/// [`Event::Overflow`] instead of what it missed.
pub struct Notices {
    receiver: broadcast::Receiver<Event>,
}

impl Notices {
    pub(crate) fn new(receiver: broadcast::Receiver<Event>) -> Self {
        Self { receiver }
    }

    /// The next event; none when the node was shut down.
    pub async fn next(&mut self) -> Option<Event> {
        match self.receiver.recv().await {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(_)) if planted(RuntimeFault::LagUntold) => {
                self.receiver.recv().await.ok()
            }
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Event::Overflow),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }

    /// The next event, for a thread of its own outside the runtime; none when the node was shut
    /// down.
    pub fn next_blocking(&mut self) -> Option<Event> {
        match self.receiver.blocking_recv() {
            Ok(event) => Some(event),
            Err(broadcast::error::RecvError::Lagged(_)) => Some(Event::Overflow),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_slow_watcher_is_told_that_everything_may_have_changed() {
        let (sender, receiver) = broadcast::channel(2);
        let mut notices = Notices::new(receiver);
        for domain in 1..=5 {
            sender.send(Event::Reset { domain: DomainId(domain) }).expect("one watches");
        }
        assert_eq!(notices.next().await, Some(Event::Overflow));
        assert_eq!(notices.next().await, Some(Event::Reset { domain: DomainId(4) }));
        assert_eq!(notices.next().await, Some(Event::Reset { domain: DomainId(5) }));
        drop(sender);
        assert_eq!(notices.next().await, None);
    }
}
