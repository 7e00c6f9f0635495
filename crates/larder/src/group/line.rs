//! A process's own line to its group's parent, for the machine of membership (decision 0042): that of the relay which
//! it is while it is the redirector, and looks at the parent while it is not.

use crate::transport::{LinkState, LinkWatch, Looker, Parent};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// The link of a relay to its parent.
#[derive(Clone)]
pub(crate) struct Uplink {
    pub(crate) link: LinkWatch,
    /// Who its parent is: said anew it is dialled at once, if there is no link to it.
    pub(crate) parent: watch::Sender<Option<Parent>>,
}

impl Uplink {
    fn dial(&self) {
        self.parent.send_modify(|_| {});
    }

    /// Whether it stands within this time, dialled now.
    async fn stands(mut self, within: Duration) -> bool {
        let up = |link: &LinkState| matches!(link, LinkState::Up { .. });
        if !up(&self.link.borrow()) {
            self.dial();
        }
        matches!(timeout(within, self.link.wait_for(up)).await, Ok(Ok(_)))
    }
}

/// What a process needs for it.
#[derive(Clone)]
pub(crate) struct OwnLine {
    /// Of the relay that runs: while this process is the redirector, or always, if it is a relay itself; none: none does.
    relay: watch::Receiver<Option<Uplink>>,
    /// Looks while none runs; none: one always does.
    looker: Option<Arc<Looker>>,
    /// How long a relay that runs may take to have a link.
    within: Duration,
    told: Option<bool>,
}

impl OwnLine {
    pub(crate) fn new(
        relay: watch::Receiver<Option<Uplink>>,
        looker: Option<Looker>,
        within: Duration,
    ) -> Self {
        Self { relay, looker: looker.map(Arc::new), within, told: None }
    }

    /// Waits until it stands, or does not, and did otherwise when it was asked last; none: there is no relay.
    pub(super) async fn changes(&mut self) -> Option<bool> {
        loop {
            let mut uplink = self.relay.borrow_and_update().clone();
            let up = |uplink: &mut Uplink| {
                matches!(*uplink.link.borrow_and_update(), LinkState::Up { .. })
            };
            let stands = uplink.as_mut().map(up);
            if std::mem::replace(&mut self.told, stands) != stands {
                return stands;
            }
            tokio::select! {
                () = changed(&mut self.relay) => {}
                () = async {
                    match &mut uplink {
                        Some(uplink) => changed(&mut uplink.link).await,
                        None => std::future::pending().await,
                    }
                } => {}
            }
        }
    }

    /// Has the redirector's relay dial now, or else finds out whether the parent serves this process, and says so.
    pub(super) fn look(&self, leads: bool, found: &mpsc::Sender<bool>) -> Option<AbortHandle> {
        let uplink = self.relay.borrow().clone();
        if leads {
            if let Some(uplink) = uplink {
                uplink.dial();
            }
            return None;
        }
        let (looker, within, found) = (self.looker.clone(), self.within, found.clone());
        let looks = async move {
            let stands = match (uplink, looker) {
                (Some(uplink), _) => uplink.stands(within).await,
                (None, Some(looker)) => looker.serves().await,
                (None, None) => false,
            };
            tracing::debug!(stands, "looked whether the group's parent serves this process");
            let _ = found.send(stands).await;
        };
        Some(tokio::spawn(looks).abort_handle())
    }
}

/// Waits for a change; once nobody is left to make one, for ever.
async fn changed<T>(watched: &mut watch::Receiver<T>) {
    if watched.changed().await.is_err() {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    fn up() -> LinkState {
        LinkState::Up { parent: "origin".into() }
    }

    /// What changed before it was asked for is told once, and only what differs.
    #[tokio::test]
    async fn each_change_is_told_once() {
        let (relay, watched) = watch::channel(None);
        let mut line = OwnLine::new(watched, None, Duration::from_secs(1));
        let (state, link) = watch::channel(LinkState::Down(None));
        let (parent, mut dials) = watch::channel(Some(Parent::configured("o:1")));
        let none = |line: OwnLine| async move {
            let mut line = line;
            timeout(Duration::from_millis(20), line.changes()).await.is_err()
        };
        assert!(none(line.clone()).await, "there is no relay, as was said");
        relay.send_replace(Some(Uplink { link, parent }));
        assert_eq!(line.changes().await, Some(false));
        state.send_replace(LinkState::Down(Some("again".into())));
        assert!(none(line.clone()).await, "it is down as before");
        state.send_replace(up());
        assert_eq!(line.changes().await, Some(true));
        assert!(!dials.has_changed().expect("it is watched"));
        dials.mark_unchanged();
        // While it stands nothing is dialled; else it is looked at until it does.
        let uplink = || relay.borrow().clone().expect("it runs");
        assert!(uplink().stands(Duration::ZERO).await);
        assert!(!dials.has_changed().expect("it is watched"));
        state.send_replace(LinkState::Down(None));
        assert!(!uplink().stands(Duration::from_millis(20)).await);
        assert!(dials.has_changed().expect("it is watched"));
        assert_eq!(line.changes().await, Some(false));
        let (looks, _) = tokio::join!(uplink().stands(Duration::from_secs(60)), async {
            state.send_replace(up());
        });
        assert!(looks);
        assert_eq!(line.changes().await, Some(true));
        relay.send_replace(None);
        assert_eq!(line.changes().await, None);
        drop((relay, state));
        assert!(none(line).await, "nobody is left to change it");
    }
}
