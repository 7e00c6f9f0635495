//! The link to the parent: dialled again and again, with pauses that grow and are jittered, so
//! that a returning parent is not stormed.

use super::connect::{Dialed, Failure, Pauses, Target, broken, lasting};
use super::link::{End, LinkSetup};
use crate::clock::now;
use crate::config::LinkConfig;
use crate::group::Helper;
use crate::metrics::Side;
use crate::planted::{RuntimeFault, planted};
use crate::tls::{Credentials, TlsError};
use larder_core::across::OriginMessage;
use larder_core::id::LinkId;
use larder_core::message::{CloseReason, Message};
use larder_core::time::Instant;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// A link that lived this long was a good one: the pauses begin anew.
pub(super) const GOOD_LINK: Duration = Duration::from_secs(5);

/// An attempt that has not come to a connection by then may be broken off when its line is said to be back: what was lost of
/// it is sent again only after as long.
const HANGS_AFTER: Duration = Duration::from_secs(3);

/// Where the link to the parent is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// It is being dialled; what went wrong last, if anything did.
    Down(Option<String>),
    /// The parent welcomed this process.
    Up {
        /// Its name.
        parent: String,
    },
    /// The parent refuses this process in a way that waiting does not mend. Dialled on all the
    /// same, slowly: the operator may mend it at the parent.
    Refused(CloseReason),
    /// A certificate does not do. Dialled on slowly.
    Untrusted(TlsError),
}

impl LinkState {
    /// The best of several links: one that stands, or else one that is dialled still. With the tasks that watch them.
    pub(crate) fn best_of(links: &[LinkWatch]) -> (LinkWatch, Vec<AbortHandle>) {
        if let [only] = links {
            return (only.clone(), Vec::new());
        }
        let best = Arc::new(watch::Sender::new(Self::Down(None)));
        let watch = best.subscribe();
        let tasks = links.iter().cloned().map(|mut link| {
            let (all, best) = (links.to_vec(), best.clone());
            let watches = async move {
                loop {
                    // Seen within: who looks last says last.
                    best.send_if_modified(|state| {
                        let states = all.iter().map(|link| link.borrow().clone());
                        let next = states.min_by_key(Self::rank).expect("there are several");
                        let changes = *state != next;
                        *state = next;
                        changes
                    });
                    if link.changed().await.is_err() {
                        return;
                    }
                }
            };
            tokio::spawn(watches).abort_handle()
        });
        (watch, tasks.collect())
    }

    fn rank(&self) -> u8 {
        match self {
            Self::Up { .. } => 0,
            Self::Down(_) => 1,
            Self::Refused(_) | Self::Untrusted(_) => 2,
        }
    }

    /// Why there is no link; none: there is one.
    pub(crate) fn trouble(&self) -> Option<String> {
        match self {
            Self::Up { .. } => None,
            Self::Down(why) => Some(why.clone().unwrap_or_else(|| "not linked yet".into())),
            Self::Refused(reason) => Some(format!("refused by the parent: {reason}")),
            Self::Untrusted(error) => Some(error.to_string()),
        }
    }
}

pub(crate) type LinkWatch = watch::Receiver<LinkState>;

/// Who is to be the parent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Parent {
    /// `host:port`.
    pub(crate) address: String,
    /// It is the redirector that the group has found, and must be of the group.
    pub(crate) found: bool,
}

/// Who it is now; none: nobody is known. It stays as it is once nobody is left who could change it.
pub(crate) type ParentWatch = watch::Receiver<Option<Parent>>;

impl Parent {
    /// One that is configured.
    pub(crate) fn configured(address: &str) -> Self {
        Self { address: address.to_owned(), found: false }
    }

    /// It alone, for good.
    pub(crate) fn only(self) -> ParentWatch {
        watch::channel(Some(self)).1
    }
}

/// Waits until another parent is wanted, or the same one is wanted now.
async fn moved(parents: &mut ParentWatch) {
    if parents.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Waits until another parent than this target is wanted.
async fn moved_from(parents: &mut ParentWatch, target: &Target) {
    while target.is_to(parents.borrow_and_update().as_ref()) {
        moved(parents).await;
    }
}

impl Target {
    fn is_to(&self, parent: Option<&Parent>) -> bool {
        parent.is_some_and(|it| it.address == self.address && it.found == self.found)
    }
}

/// How a link to the parent ended.
enum Ended {
    /// The machine's task is gone.
    Stopped,
    /// Another parent is wanted.
    Elsewhere,
    /// As this says.
    Failed(LinkState),
}

/// Keeps a link to the parent.
pub(crate) struct Dialer {
    parents: ParentWatch,
    target: Target,
    /// What links share.
    setup: LinkSetup,
    /// Where the state is told.
    state: watch::Sender<LinkState>,
    /// Where it is told by which address the parent sees this process.
    local: watch::Sender<Option<IpAddr>>,
    /// Whether the link to a redirector that the group found broke, and none has stood since.
    broke: watch::Sender<bool>,
    /// A member of a group helps neighbours while its machine is busy.
    helper: Option<Helper>,
    /// What the redirector that the group found has against this process, or the reverse.
    unfit: Option<String>,
}

impl Dialer {
    /// Of whoever is the parent.
    pub(crate) fn new(
        parents: ParentWatch,
        setup: LinkSetup,
        credentials: Arc<Credentials>,
        link: LinkConfig,
        state: watch::Sender<LinkState>,
    ) -> Self {
        let (side, address) = (Side::Up, String::new());
        let expects = String::new();
        let target = Target { side, address, parent: 0, credentials, link, found: false, expects };
        Self {
            parents,
            target,
            setup,
            state,
            local: watch::Sender::new(None),
            broke: watch::Sender::new(false),
            helper: None,
            unfit: None,
        }
    }

    /// It is to another origin, of this name.
    pub(crate) fn of_peer(mut self, name: &str) -> Self {
        (self.target.side, self.target.expects) = (Side::Peer, name.to_owned());
        self
    }

    /// It is of this one of several parents.
    pub(crate) fn of_parent(mut self, parent: u32) -> Self {
        self.target.parent = parent;
        self
    }

    /// Has misses of neighbours answered where the link is read, as far as that can be.
    pub(crate) fn helps(&mut self, helper: Helper) {
        self.helper = Some(helper);
    }

    /// By which address the parent sees this process: none before the first link.
    pub(crate) fn local(&self) -> watch::Receiver<Option<IpAddr>> {
        self.local.subscribe()
    }

    /// Whether the link to a redirector that the group found broke, without a goodbye of either side, and none has stood
    /// since: its process may have ended.
    pub(crate) fn broke(&self) -> watch::Receiver<bool> {
        self.broke.subscribe()
    }

    /// Runs until the machine's task is gone.
    pub(crate) async fn run(mut self, mut next_link: u64) {
        let mut pauses = Pauses::new(&self.target.link);
        let mut parents = self.parents.clone();
        // When one was broken off for that.
        let mut restarted = Instant(0);
        loop {
            let parent = parents.borrow_and_update().clone();
            let Some(Parent { address, found }) = parent else {
                self.tell(LinkState::Down(Some("the group has no redirector yet".into())));
                moved(&mut parents).await;
                continue;
            };
            if (&address, found) != (&self.target.address, self.target.found) {
                (self.target.address, self.target.found) = (address, found);
                pauses.reset();
            }
            let begun = now();
            let connected = {
                let mut connecting = std::pin::pin!(self.target.connect());
                loop {
                    tokio::select! {
                        biased;
                        connected = &mut connecting => break Some(connected),
                        () = moved(&mut parents) => {}
                    }
                    // An attempt that began while the line was away may wait for long still, though it is back. One that
                    // is begun for that is given its time.
                    let at = now();
                    let hangs = at.since(begun) >= HANGS_AFTER
                        && at.since(restarted) >= self.target.link.connect_limit.0;
                    if hangs {
                        restarted = at;
                    }
                    if hangs || !self.target.is_to(parents.borrow_and_update().as_ref()) {
                        break None;
                    }
                }
            };
            let Some(connected) = connected else { continue };
            match connected {
                Ok(dialed) => {
                    let opened = now();
                    let link = LinkId(next_link);
                    next_link += 1;
                    let ended = self.run_link(dialed, link, &mut parents).await;
                    if matches!(*self.state.borrow(), LinkState::Up { .. }) {
                        self.unfit = None;
                    }
                    let failed = match ended {
                        Ended::Stopped => return,
                        Ended::Elsewhere => {
                            // Not to be taken for a link to the one that is dialled now.
                            self.state.send_replace(LinkState::Down(None));
                            continue;
                        }
                        Ended::Failed(failed) => failed,
                    };
                    if now().since(opened) >= GOOD_LINK {
                        pauses.reset();
                    }
                    self.tell(failed);
                }
                Err(failure) => {
                    self.setup.metrics.link_failed(self.target.side);
                    self.tell(match failure {
                        Failure::Tls(error) => LinkState::Untrusted(error),
                        Failure::Other(why) => LinkState::Down(Some(why)),
                    });
                }
            }
            let hopeless =
                matches!(&*self.state.borrow(), LinkState::Refused(_) | LinkState::Untrusted(_));
            let mut pause = pauses.next(hopeless);
            if planted(RuntimeFault::DialAtOnce) {
                pause = Duration::ZERO;
            }
            if hopeless && planted(RuntimeFault::DialGivesUp) {
                return;
            }
            // New certificate files may be what was missing.
            tokio::select! {
                biased;
                () = sleep(pause) => {}
                () = self.target.credentials.changed() => pauses.reset(),
                () = moved(&mut parents) => {}
            }
        }
    }

    /// Runs a link to its end, or until another parent is wanted.
    async fn run_link(&self, dialed: Dialed, link: LinkId, parents: &mut ParentWatch) -> Ended {
        self.local.send_if_modified(|local| std::mem::replace(local, dialed.local) != dialed.local);
        let first = |message: Message| {
            if let Message::Welcome { name, .. } = &message {
                tracing::info!(parent = %name, address = %self.target.address, "linked");
                self.state.send_replace(LinkState::Up { parent: name.clone() });
                self.broke.send_if_modified(std::mem::take);
            }
            if let Message::Origin(OriginMessage::Greets { name, .. }) = &message {
                tracing::info!(origin = %name, address = %self.target.address, "linked");
                self.state.send_replace(LinkState::Up { parent: name.clone() });
            }
            match &self.helper {
                Some(helper) => helper.help(message),
                None => Some(message),
            }
        };
        let elsewhere = moved_from(parents, &self.target);
        let end = self.target.run(dialed, &self.setup, link, first, elsewhere).await;
        let stood = matches!(*self.state.borrow(), LinkState::Up { .. });
        if self.target.found && stood && self.may_have_ended(&end) {
            self.broke.send_replace(true);
        }
        Ended::Failed(match end {
            // This process ends: nothing is wrong, and nothing is dialled any more.
            End::Stopped | End::Closed(CloseReason::Shutdown) => return Ended::Stopped,
            End::Elsewhere => return Ended::Elsewhere,
            End::Goodbye(reason) | End::Closed(reason) if lasting(&reason) => {
                LinkState::Refused(reason)
            }
            End::Goodbye(reason) | End::Closed(reason) => LinkState::Down(Some(reason.to_string())),
            End::Distrusted(error) => LinkState::Untrusted(error),
            End::Broken(error) => match self.target.refused(&error) {
                Some(refused) => LinkState::Untrusted(refused),
                None => LinkState::Down(Some(broken(&error))),
            },
        })
    }

    /// Whether a link ended as it does when the other side's process does. That this side is not trusted, or that the line is
    /// cut, is another matter.
    fn may_have_ended(&self, end: &End) -> bool {
        let End::Broken(error) = end else { return false };
        let cut = [ErrorKind::TimedOut, ErrorKind::HostUnreachable, ErrorKind::NetworkUnreachable];
        !cut.contains(&error.kind()) && self.target.refused(error).is_none()
    }

    /// Says where the link is; logged once, not at every attempt.
    fn tell(&mut self, state: LinkState) {
        // A redirector that the group has found is done without after a while, whatever it has against this process
        // or the reverse: it is the configured parent that may refuse for good. Whoever has no other way is told of it
        // all the same.
        let lasts = matches!(state, LinkState::Refused(_) | LinkState::Untrusted(_));
        let state = match (state.trouble(), self.unfit.take()) {
            (Some(trouble), _) if self.target.found => {
                self.unfit = lasts.then(|| format!("the group's redirector: {trouble}"));
                LinkState::Down(Some(trouble))
            }
            (Some(trouble), Some(unfit)) if !lasts => {
                let both = format!("{trouble}; {unfit}");
                self.unfit = Some(unfit);
                LinkState::Down(Some(both))
            }
            (_, unfit) => {
                self.unfit = unfit.filter(|_| lasts);
                state
            }
        };
        if *self.state.borrow() == state {
            return;
        }
        match &state {
            LinkState::Down(why) => {
                let why = why.as_deref().unwrap_or_default();
                tracing::warn!(parent = %self.target.address, why, "no link to the parent");
            }
            LinkState::Refused(reason) => {
                tracing::error!(parent = %self.target.address, %reason, "refused by the parent");
            }
            LinkState::Untrusted(error) => {
                tracing::error!(parent = %self.target.address, %error, "no trust between parent and us");
            }
            LinkState::Up { .. } => {}
        }
        self.state.send_replace(state);
    }
}
