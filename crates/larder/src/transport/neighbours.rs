//! Links to neighbours: dialled when the machine wants them, one at a time for each.

use super::connect::{Failure, Pauses, Target, broken};
use super::dial::GOOD_LINK;
use super::link::{End, LinkSetup};
use crate::clock::now;
use crate::config::LinkConfig;
use crate::metrics::Side;
use crate::tls::Credentials;
use larder_core::group::{MEMBERS_MAX, Member};
use larder_core::id::{BootId, LinkId};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Dials neighbours.
pub(crate) struct NeighbourDialer {
    /// What their links share.
    pub(crate) setup: LinkSetup,
    /// Who this process is, and whom it trusts.
    pub(crate) credentials: Arc<Credentials>,
    /// Limits and pauses.
    pub(crate) link: LinkConfig,
    /// Whom the machine wants dialled: it says so again as long as it does.
    pub(crate) wanted: mpsc::Receiver<Member>,
}

/// What is known of one that was dialled.
struct Known {
    pauses: Pauses,
    address: String,
    /// When it was dialled last; none: it never was.
    tried_at: Option<Instant>,
    /// It is not dialled before then.
    pause_until: Instant,
    /// It is being dialled, or its link stands.
    busy: bool,
    /// What went wrong last, if it did: logged once.
    trouble: Option<String>,
}

/// How an attempt and its link ended.
struct Ended {
    life: BootId,
    name: String,
    address: String,
    /// What went wrong; none: the link was a good one.
    trouble: Option<String>,
    /// Waiting does not mend it.
    hopeless: bool,
    /// The machine's task is gone.
    stopped: bool,
}

impl NeighbourDialer {
    /// Runs until the machine's task is gone. Links are numbered from `next_link`.
    pub(crate) async fn run(mut self, mut next_link: u64) {
        let mut known: BTreeMap<BootId, Known> = BTreeMap::new();
        let mut attempts: JoinSet<Ended> = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                Some(ended) = attempts.join_next() => {
                    // One that panicked ends no process: its neighbour stays busy, and is not dialled.
                    let Ok(ended) = ended else { continue };
                    if ended.stopped {
                        return;
                    }
                    if let Some(known) = known.get_mut(&ended.life) {
                        known.ended(ended);
                    }
                }
                wanted = self.wanted.recv() => {
                    let Some(member) = wanted else { return };
                    if known.len() >= 2 * MEMBERS_MAX {
                        known.retain(|_, known| known.busy);
                    }
                    let now = Instant::now();
                    // Of one that has started again its last life may be named still: at the address at which
                    // it is now, so that one of two attempts comes to nothing. It is named again soon.
                    let tried = known.iter().any(|(life, one)| {
                        *life != member.life && one.was_tried(&member.address, now, &self.link)
                    });
                    let one = known.entry(member.life).or_insert_with(|| Known::new(&self.link));
                    if tried || one.busy || one.pause_until > now {
                        continue;
                    }
                    one.busy = true;
                    (one.address, one.tried_at) = (member.address.clone(), Some(now));
                    let link = LinkId(next_link);
                    next_link += 1;
                    attempts.spawn(dial(self.target(&member), self.setup.clone(), member, link));
                }
            }
        }
    }

    fn target(&self, member: &Member) -> Target {
        Target {
            side: Side::Neighbour,
            address: member.address.clone(),
            parent: 0,
            credentials: self.credentials.clone(),
            link: self.link.clone(),
            found: false,
            expects: String::new(),
        }
    }
}

impl Known {
    fn new(link: &LinkConfig) -> Self {
        let pauses = Pauses::new(link);
        let (address, tried_at) = (String::new(), None);
        Self { address, tried_at, pauses, pause_until: Instant::now(), busy: false, trouble: None }
    }

    /// Whether it was dialled at an address a moment ago: so short that a new life waits for nothing.
    fn was_tried(&self, address: &str, now: Instant, link: &LinkConfig) -> bool {
        let recent = |at: Instant| now < at + link.back_off_min.0;
        self.address == address && self.tried_at.is_some_and(recent)
    }

    fn ended(&mut self, ended: Ended) {
        self.busy = false;
        match &ended.trouble {
            None => self.pauses.reset(),
            Some(why) if ended.trouble != self.trouble => {
                let Ended { name, address, .. } = &ended;
                tracing::warn!(neighbour = %name, %address, why, "no link to a neighbour");
            }
            Some(_) => {}
        }
        self.trouble = ended.trouble;
        self.pause_until = Instant::now() + self.pauses.next(ended.hopeless);
    }
}

/// Dials a neighbour, and runs the link until it ends.
async fn dial(target: Target, setup: LinkSetup, member: Member, link: LinkId) -> Ended {
    let Member { life, name, address } = member;
    let ended = |trouble, hopeless| {
        let (name, address) = (name.clone(), address.clone());
        Ended { life, name, address, trouble, hopeless, stopped: false }
    };
    let dialed = match target.connect().await {
        Ok(dialed) => dialed,
        Err(failure) => {
            setup.metrics.link_failed(Side::Neighbour);
            return match failure {
                Failure::Tls(error) => ended(Some(error.to_string()), true),
                Failure::Other(why) => ended(Some(why), false),
            };
        }
    };
    let opened = now();
    tracing::info!(neighbour = %name, address = %target.address, link = link.0, "neighbour dialled");
    let end = target.run(dialed, &setup, link, Some, std::future::pending()).await;
    let (why, hopeless) = match end {
        End::Stopped | End::Elsewhere => return Ended { stopped: true, ..ended(None, false) },
        // Also one that has not been told of this member yet: it comes to know it, and pauses grow.
        End::Goodbye(reason) | End::Closed(reason) => (reason.to_string(), false),
        End::Distrusted(error) => (error.to_string(), true),
        End::Broken(error) => match target.refused(&error) {
            Some(refused) => (refused.to_string(), true),
            None => (broken(&error), false),
        },
    };
    let good = now().since(opened) >= GOOD_LINK;
    tracing::info!(neighbour = %name, link = link.0, why, "neighbour gone");
    ended((!good).then_some(why), hopeless)
}
