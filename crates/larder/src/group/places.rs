//! What a node does about who its group's redirector is (decision 0036): it links to it, or, if it is the
//! redirector itself, runs a relay beside its cache, to which it links as the others do.

use super::seat::{Followed, Seat};
use super::told_by_redirector;
use crate::config::{GroupSection, RelayConfig};
use crate::metrics::{Metrics, Side};
use crate::server::Relaying;
use crate::tls::Credentials;
use crate::transport::{Guests, Parent};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

/// A relay that is the redirector no longer goes on for those who have not left it for so long.
const RETIRES_AFTER: Duration = Duration::from_secs(5);
/// A node that follows nobody any more does not take itself for alone before this.
const NOBODY_AFTER: Duration = Duration::from_secs(1);
/// How long those have who are told to find another one.
const HAND_OVER: Duration = Duration::from_millis(300);

/// The relay beside a node's cache.
struct Half {
    relaying: Relaying,
    metrics: Arc<Metrics>,
    /// It is not the redirector any more, and ends then.
    retires_at: Option<Instant>,
}

/// A node's place in its group.
pub(crate) struct Places {
    seat: Seat,
    section: GroupSection,
    half: Arc<Mutex<Option<Half>>>,
    task: AbortHandle,
}

impl Drop for Places {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a node needs to be the redirector.
pub(crate) struct Stage {
    pub(crate) relay: RelayConfig,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) guests: Guests,
    /// Who is its parent.
    pub(crate) parents: watch::Sender<Option<Parent>>,
}

impl Places {
    pub(crate) fn new(seat: Seat, stage: Stage) -> Self {
        let half = Arc::new(Mutex::new(None));
        let section = stage.relay.group.clone();
        let task = tokio::spawn(stage.follow(seat.followed(), half.clone())).abort_handle();
        Self { seat, section, half, task }
    }

    /// What is to be seen of it: of the election, and of the relay beside the cache if it is the redirector.
    pub(crate) async fn told(&self) -> (Value, Option<Value>) {
        let half = self.half.lock().await;
        let leads = half.as_ref().filter(|half| half.retires_at.is_none());
        let looks = leads.map(|half| (half.relaying.looks_at_group(), half.metrics.clone()));
        // What follows waits, and the relay may have to begin or end meanwhile.
        drop(half);
        let redirects = match looks {
            Some((status, metrics)) => status.await.map(|status| {
                metrics.group().redirector(&status);
                told_by_redirector(&self.section, &status)
            }),
            None => None,
        };
        (self.seat.told().await, redirects)
    }

    /// Leaves the group, and has others take over what this process is in it.
    pub(crate) async fn leave(&self) {
        self.seat.leave().await;
        self.task.abort();
        let half = self.half.lock().await.take();
        if let Some(half) = half {
            tokio::time::sleep(HAND_OVER).await;
            half.relaying.shutdown().await;
        }
    }
}

impl Stage {
    async fn follow(self, mut followed: watch::Receiver<Followed>, half: Arc<Mutex<Option<Half>>>) {
        loop {
            let now = followed.borrow_and_update().clone();
            if now == Followed::Nobody
                && let Ok(changed) = timeout(NOBODY_AFTER, followed.changed()).await
            {
                // Another one was elected in the place of the one that is gone.
                if changed.is_err() {
                    return;
                }
                continue;
            }
            self.act(&now, &mut *half.lock().await);
            let retires_at = half.lock().await.as_ref().and_then(|half| half.retires_at);
            tokio::select! {
                changed = followed.changed() => if changed.is_err() {
                    return;
                },
                () = until(retires_at) => {
                    self.guests.keep_out(Side::Down);
                    let retired = half.lock().await.take();
                    if let Some(half) = retired {
                        half.relaying.shutdown().await;
                    }
                }
            }
        }
    }

    fn act(&self, followed: &Followed, half: &mut Option<Half>) {
        let parent = match followed {
            Followed::Unknown => return,
            // Whoever is alone has the redirector's parent.
            Followed::Nobody => Parent::configured(&self.relay.relay.parent),
            Followed::Own(address) | Followed::Other(address) => {
                Parent { address: address.clone(), found: true }
            }
        };
        match (matches!(followed, Followed::Own(_)), half) {
            (true, half @ None) => *half = Some(self.begin()),
            (true, Some(half)) => half.retires_at = None,
            (false, Some(half)) => {
                half.retires_at.get_or_insert_with(|| Instant::now() + RETIRES_AFTER);
            }
            (false, None) => {}
        }
        self.parents.send_if_modified(|before| {
            let changes = before.as_ref() != Some(&parent);
            *before = Some(parent);
            changes
        });
    }

    fn begin(&self) -> Half {
        let metrics = Arc::new(Metrics::new());
        let relaying = Relaying::start(&self.relay, &self.credentials, &metrics);
        self.guests.let_in(relaying.children(&self.credentials));
        Half { relaying, metrics, retires_at: None }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
