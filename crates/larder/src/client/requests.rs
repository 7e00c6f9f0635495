//! Requests to the cache machine, and where its answers and notices go.

use super::{Error, Event, Result};
use crate::clock::now;
use crate::group::Neighbours;
use crate::host::{Inputs, Outlet};
use crate::planted::{RuntimeFault, planted};
use crate::transport::LinkSender;
use larder_core::cache::Cache;
use larder_core::cache::io::{CacheInput, CacheOp, CacheOutput, CacheReply, Notice};
use larder_core::id::{LinkId, RequestId};
use larder_core::message::RequestError;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{broadcast, oneshot};
use tokio::time::timeout;

/// The machine answers at the deadline; this much later its task is taken for stuck.
const GRACE: Duration = Duration::from_secs(5);

type Answer = Result<CacheReply, RequestError>;

/// Why the machine gave no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoAnswer {
    /// The node had ended before it took the request: nothing was done.
    NotTaken,
    /// The node ended while it had the request.
    Ended,
    /// Its task is stuck, and did not take the request: nothing was done.
    Full,
    /// Its task is stuck, with the request.
    Stuck,
}

/// An answer, or why there is none within `limit`.
pub(super) fn reply_of(answer: Result<Answer, NoAnswer>, limit: Duration) -> Result<CacheReply> {
    match answer {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(RequestError::TimedOut)) => Err(Error::TimedOut(limit)),
        Ok(Err(error)) => Err(error.into()),
        Err(NoAnswer::Full | NoAnswer::Stuck) => Err(Error::TimedOut(limit)),
        Err(NoAnswer::NotTaken | NoAnswer::Ended) => Err(Error::ShutDown),
    }
}

/// Who waits for which answer.
#[derive(Default)]
struct Waiting(Mutex<BTreeMap<RequestId, oneshot::Sender<Answer>>>);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<RequestId, oneshot::Sender<Answer>>> {
        // The map is whole between any two of its changes.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Asks the machine. Ids count up and are never used twice.
pub(super) struct Requests {
    inputs: Inputs<Cache>,
    waiting: Arc<Waiting>,
    next: AtomicU64,
}

/// Takes the request back when its asker stops waiting.
struct Asked<'a> {
    requests: &'a Requests,
    id: RequestId,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if planted(RuntimeFault::RequestKept) {
            return;
        }
        let unanswered = self.requests.waiting.lock().remove(&self.id).is_some();
        if unanswered {
            // When the queue is full the machine keeps it until its deadline.
            self.requests.inputs.try_send(CacheInput::Cancel { id: self.id });
        }
    }
}

impl Requests {
    pub(super) fn new(inputs: Inputs<Cache>) -> Self {
        Self { inputs, waiting: Arc::default(), next: AtomicU64::new(1) }
    }

    /// Asks, and waits at most `limit`.
    pub(super) async fn ask(&self, op: CacheOp, limit: Duration) -> Result<CacheReply> {
        reply_of(self.ask_raw(op, limit).await, limit)
    }

    /// The same, with the machine's own error.
    pub(super) async fn ask_raw(&self, op: CacheOp, limit: Duration) -> Result<Answer, NoAnswer> {
        let id = RequestId(self.next.fetch_add(1, Ordering::Relaxed));
        let (send, receive) = oneshot::channel();
        self.waiting.lock().insert(id, send);
        let _asked = Asked { requests: self, id };
        let deadline = now().after(limit);
        let request = CacheInput::Request { id, op, deadline };
        let mut taken = false;
        let answer = async {
            self.inputs.send(request).await.map_err(|_| NoAnswer::NotTaken)?;
            taken = true;
            receive.await.map_err(|_| NoAnswer::Ended)
        };
        match timeout(limit + GRACE, answer).await {
            Ok(answer) => answer,
            Err(_) if taken => Err(NoAnswer::Stuck),
            Err(_) => Err(NoAnswer::Full),
        }
    }

    /// How many wait for an answer.
    #[cfg(feature = "simulated")]
    pub(super) fn count(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Asks for something that nobody waits for; dropped when the machine has too much to do.
    pub(super) fn tell(&self, op: CacheOp, limit: Duration) {
        let id = RequestId(self.next.fetch_add(1, Ordering::Relaxed));
        let deadline = now().after(limit);
        self.inputs.try_send(CacheInput::Request { id, op, deadline });
    }
}

/// Carries out what the cache machine asks for beside its link.
pub(super) struct CacheOutlet {
    waiting: Arc<Waiting>,
    events: broadcast::Sender<Event>,
    /// What its machine says of neighbours; none: the node is no member of a group.
    neighbours: Option<Neighbours>,
}

impl CacheOutlet {
    pub(super) fn new(
        requests: &Requests,
        events: broadcast::Sender<Event>,
        neighbours: Option<Neighbours>,
    ) -> Self {
        Self { waiting: requests.waiting.clone(), events, neighbours }
    }
}

impl Drop for CacheOutlet {
    /// The machine's task ends: nobody will be answered any more.
    fn drop(&mut self) {
        self.waiting.lock().clear();
    }
}

impl Outlet<Cache> for CacheOutlet {
    fn carry_out(&mut self, output: CacheOutput, links: &BTreeMap<LinkId, LinkSender>) {
        match output {
            CacheOutput::Link(_) => unreachable!("the host keeps what is of links"),
            CacheOutput::Neighbour(output) => {
                if let Some(neighbours) = &self.neighbours {
                    neighbours.carry_out(output, links);
                }
            }
            CacheOutput::Reply { id, result } => {
                let mut waiting = self.waiting.lock();
                let whose = match planted(RuntimeFault::AnswerCrossed) {
                    true => waiting.keys().next().copied().unwrap_or(id),
                    false => id,
                };
                if let Some(sender) = waiting.remove(&whose) {
                    // The asker may have gone this moment.
                    let _ = sender.send(result);
                }
            }
            CacheOutput::Notice(notice) => {
                // An error means that nobody watches.
                let _ = self.events.send(event(notice));
            }
        }
    }
}

fn event(notice: Notice) -> Event {
    match notice {
        Notice::Changed { domain, pages } => Event::Changed { domain, pages: Arc::new(pages) },
        Notice::VolumeDeleted { domain, volume } => {
            tracing::warn!(%volume, "the volume was deleted: nothing of it can be read or written");
            Event::VolumeDeleted { domain, volume }
        }
        Notice::Reset { domain } => Event::Reset { domain },
        Notice::Rights { domain, volume, right } => Event::Rights { domain, volume, right },
        Notice::LeaseLapsed { domain } => Event::LeaseLapsed { domain },
        Notice::LeaseRegained { domain } => Event::LeaseRegained { domain },
        Notice::Refused { reason } => Event::Refused { reason },
    }
}
