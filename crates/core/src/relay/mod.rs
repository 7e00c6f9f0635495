//! The relay machine: a link up to each of its parents, mostly one, and many down, the same protocol on both sides.
//!
//! A relay keeps no pages. It keeps the ring of recent commits, so that its children's streams
//! cost its parent one; it registers a child before it asks for it (rule 10); it never holds bytes
//! for a child that has no credit for them, since it asks only for pages that the child may be
//! sent at once (P7). A relay under a relay is a child like others.

mod boots;
mod children;
mod commits;
mod config;
mod domain;
mod group;
pub mod io;
mod parent;
mod pending;
mod refresh;
#[cfg(feature = "faults")]
mod rest;
mod resumes;
mod search;
mod uplinks;

pub use config::RelayConfig;

use crate::commit::{Across, CommitRequest};
use crate::downlink::{Ask, COPY_RESERVED, Downlinks, LinkSink, ParentStatus};
use crate::group::GroupStatus;
use crate::group::directory::Directory;
use crate::hash::FixedMap;
use crate::id::{
    BootId, CommitId, DomainId, HistoryId, LinkId, PageId, RequestId, Stamp, VolumeId,
};
use crate::machine::{Fault, LinkInput, LinkOutput, Machine};
use crate::message::{CloseReason, Message};
use crate::rights::Denied;
use crate::share::Load;
use crate::time::{Instant, OnwardClock};
use boots::Carried;
use domain::RelayDomain;
use io::{RelayInput, RelayOutput};
use pending::{Pending, What};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use uplinks::Uplink;

impl LinkSink for Vec<RelayOutput> {
    fn link(&mut self, output: LinkOutput) {
        self.push(RelayOutput::Link(output));
    }
}

/// A commit that was passed on.
#[derive(Debug)]
struct Passed {
    /// Who waits for it.
    links: Vec<LinkId>,
    /// Of memory, on its way up.
    bytes: usize,
    /// The relay below may not do it now: only its outcome was asked for.
    denied: Option<DeniedCommit>,
    /// Pages that it makes (redirector).
    made: Vec<PageId>,
    /// It is a part of this transaction.
    across: Option<Box<Across>>,
    /// It is no request of its own: another domain decides.
    beside: bool,
    /// And what decides was not on its way when it went.
    alone: Alone,
    /// It only asks what became of a commit: it goes without the parts that it lists.
    asks: bool,
}

/// Why a commit may not be done, and where it would have been.
#[derive(Debug)]
struct DeniedCommit {
    why: Box<Denied>,
    history: HistoryId,
    base: Stamp,
}

/// Bytes of transactions over several domains, by the domains that decide them.
type WholeBytes = BTreeMap<DomainId, usize>;

/// Whether a part went up without the one that decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Alone {
    No,
    /// Within what each process may have of them.
    Little,
    Long,
}

impl Passed {
    /// What it is of what is on its way up.
    fn load(&self) -> Load {
        Load { count: usize::from(!self.beside), bytes: self.bytes }
    }
}

/// A commit for which the parent had no room.
#[derive(Debug)]
struct Held {
    /// Whose it is, the first of whom it counts for.
    links: Vec<LinkId>,
    domain: DomainId,
    commit: CommitRequest,
    /// The other parts, if it decides a transaction over several domains: they go with it.
    parts: Vec<HeldPart>,
    /// Of memory, its parts' too.
    bytes: usize,
}

/// A part that is kept with the deciding one.
#[derive(Debug)]
struct HeldPart {
    /// Over which it came.
    links: Vec<LinkId>,
    domain: DomainId,
    commit: CommitRequest,
}

/// A relay.
#[derive(Debug)]
pub struct Relay {
    config: RelayConfig,
    links: Downlinks,
    /// The ways to its parents, in the order of the configuration.
    uplinks: Vec<Uplink>,
    domains: BTreeMap<DomainId, RelayDomain>,
    pending: BTreeMap<RequestId, Pending>,
    deadlines: BTreeSet<(Instant, RequestId)>,
    last_request: u64,
    /// The boots of nodes below, as asked of the parent. Each is claimed below.
    boots: BTreeMap<(DomainId, BootId), Carried>,
    /// Commits passed on.
    commits: BTreeMap<(DomainId, CommitId), Passed>,
    /// Commits for which there was no room, at most one of each node's link and of each boot below another
    /// relay, in the order in which they came.
    held: VecDeque<Held>,
    /// Bytes of a page, as last seen per volume: what is reserved for one asked for.
    page_bytes: FixedMap<VolumeId, i64>,
    /// Where volumes are had from, as far as answers have told; of several parents alone.
    sources: FixedMap<VolumeId, usize>,
    told_ready: bool,
    /// Of a group's redirector.
    group: Option<Directory>,
    clock: OnwardClock,
}

impl Relay {
    /// A relay without links; it holds nothing.
    #[must_use]
    pub fn new(config: RelayConfig) -> Self {
        Self {
            links: Downlinks::new(config.downlink.clone(), config.faults),
            uplinks: (0..config.parents.max(1)).map(|_| Uplink::default()).collect(),
            domains: BTreeMap::new(),
            pending: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            last_request: 0,
            boots: BTreeMap::new(),
            commits: BTreeMap::new(),
            held: VecDeque::new(),
            page_bytes: FixedMap::default(),
            sources: FixedMap::default(),
            told_ready: false,
            group: config.group.clone().map(Directory::new),
            clock: OnwardClock::default(),
            config,
        }
    }

    /// Whether the parent's domains are followed now, those that it serves; of several parents those of one.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let own = |domain: &RelayDomain| {
            domain.resume.is_some_and(|request| self.pending.contains_key(&request))
        };
        let follows = |parent: usize| {
            let asked = self.of_parent(parent).any(|domain| !domain.following && own(domain));
            let mut domains = self.of_parent(parent);
            self.uplinks[parent].is_welcomed() && !asked && domains.any(|domain| domain.following)
        };
        (0..self.uplinks.len()).any(follows)
    }

    /// What it does, for operators.
    #[must_use]
    pub fn status(&self) -> ParentStatus {
        self.links.status(self.domains.values().map(|d| (d.id, d.following, d.through())))
    }

    /// What it knows of its group, for operators; none: it is no redirector.
    #[must_use]
    pub fn group_status(&self) -> Option<GroupStatus> {
        let updates = self.domains.values().map(|domain| &domain.updates);
        self.group.as_ref().map(|group| GroupStatus::new(group, updates))
    }

    /// A request is over; what was counted for it is taken back.
    fn drop_pending(&mut self, pending: &Pending) {
        match &pending.what {
            What::Fetch { domain, pages, .. } => {
                for (ask, reserved) in pages {
                    if let Some(domain) = self.domains.get_mut(domain) {
                        domain.fetch_ends(ask.page);
                    }
                    self.unreserve(pending.asker.map(|(link, _)| link), *reserved);
                }
            }
            What::Child { domain, .. } => {
                if let Some(domain) = self.domains.get_mut(domain) {
                    domain.resuming -= 1;
                }
            }
            What::Other(Message::CopyPages { .. })
                if !self.config.faults.has(Fault::ReservationKept) =>
            {
                self.unreserve(pending.asker.map(|(link, _)| link), COPY_RESERVED);
            }
            What::Own { .. } | What::Other(_) => {}
        }
    }

    fn unreserve(&mut self, link: Option<LinkId>, bytes: i64) {
        if let Some(link) = link {
            self.links.unreserve(link, bytes);
        }
    }

    /// Sends a domain's stream to a child; asks upward when its cursor fell off the ring.
    fn pump(&mut self, now: Instant, domain: DomainId, link: LinkId, out: &mut Vec<RelayOutput>) {
        self.pump_one(now, domain, link, out);
        self.release_updates(domain);
    }

    fn pump_one(
        &mut self,
        now: Instant,
        domain: DomainId,
        link: LinkId,
        out: &mut Vec<RelayOutput>,
    ) {
        let Some(entry) = self.domains.get_mut(&domain).filter(|entry| entry.begun) else {
            return;
        };
        if self.links.pump(now, link, entry, out) {
            self.child_fell(now, domain, link);
        }
    }

    fn pump_all(&mut self, now: Instant, domain: DomainId, out: &mut Vec<RelayOutput>) {
        for link in self.links.following(domain) {
            self.pump_one(now, domain, link, out);
        }
        self.release_updates(domain);
    }

    /// Children that said hello have waited long enough for domains that have not begun.
    fn await_no_longer(&mut self, now: Instant, out: &mut Vec<RelayOutput>) {
        let mut over = false;
        for domain in self.domains.values_mut() {
            if domain.awaited_until.is_some_and(|until| until <= now) {
                domain.awaited_until = None;
                over = true;
            }
        }
        if over {
            self.welcome_held(out);
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let ups = self.uplinks.iter().filter_map(|uplink| uplink.up.as_ref());
        let up = ups.map(|up| up.due(self.config.silence_max)).min();
        let narrow = self.domains.values().filter_map(|domain| domain.narrow_at).min();
        let awaited = self.domains.values().filter_map(|domain| domain.awaited_until).min();
        let request = self.deadlines.first().map(|(at, _)| *at);
        let group = self.group.as_ref().and_then(Directory::next_timeout);
        let own = [up, narrow, awaited, request, group];
        own.into_iter().chain([self.links.next_timeout()]).flatten().min()
    }
}

impl Machine for Relay {
    type Input = RelayInput;
    type Output = RelayOutput;

    fn handle(&mut self, now: Instant, input: RelayInput, out: &mut Vec<RelayOutput>) {
        let RelayInput::Link(input) = input else {
            return;
        };
        let now = self.clock.at(now);
        let up = match &input {
            LinkInput::Closed { link, .. } | LinkInput::Received { link, .. } => {
                self.parent_at(*link)
            }
            _ => None,
        };
        match (input, up) {
            (LinkInput::UpOpened { link, parent, .. }, _) => {
                self.up_opened(now, (link, parent as usize), out);
            }
            (LinkInput::Closed { reason, .. }, Some(parent)) => {
                self.lost(now, parent, reason, out);
            }
            (LinkInput::Received { message, bytes, .. }, Some(parent)) => {
                self.hear_parent(now, parent, message, bytes, out);
            }
            (input, _) => {
                for (link, ask) in self.links.handle(now, input, out) {
                    self.ask(now, link, ask, out);
                }
            }
        }
        self.serve_freed(now, out);
        self.tell_left(out);
        self.tell_members(now, out);
        self.flush(now, out);
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Vec<RelayOutput>) {
        let now = self.clock.at(now);
        let (gone, quiet) = self.links.timeouts(now, out);
        for link in gone {
            self.ask(now, link, Ask::Gone(link), out);
        }
        for link in quiet {
            self.ask(now, link, Ask::Pump, out);
        }
        for parent in 0..self.uplinks.len() {
            let up = self.uplinks[parent].up.as_ref();
            if up.is_some_and(|up| up.heard.after(self.config.silence_max) <= now) {
                self.refuse_parent(now, parent, CloseReason::Silent, out);
            }
            self.beat_up(now, parent, out);
        }
        while let Some(&(at, request)) = self.deadlines.first()
            && at <= now
        {
            self.deadlines.pop_first();
            self.give_up(now, request, out);
        }
        self.await_no_longer(now, out);
        self.end_transfers(now);
        let due = |domain: &RelayDomain| domain.narrow_at.is_some_and(|at| at <= now);
        let narrow: Vec<DomainId> =
            self.domains.values().filter(|d| due(d)).map(|domain| domain.id).collect();
        for domain in narrow {
            self.announce(now, domain, out);
        }
        self.serve_freed(now, out);
        self.tell_left(out);
        self.tell_members(now, out);
        self.flush(now, out);
    }

    fn next_timeout(&self) -> Option<Instant> {
        self.next_deadline()
    }

    fn check(&self) {
        self.links.check();
        if let Some(group) = &self.group {
            group.check();
        }
        for (domain, boot) in self.boots.keys() {
            assert!(self.links.is_claimed(*domain, *boot), "a boot that is nobody's below");
        }
        for domain in self.domains.values() {
            domain.ring.check();
            let group = self.config.group.as_ref();
            domain.updates.check(group.map_or(0, |group| group.updates_bytes_max));
            let asked = self.pending.values().filter(
                |pending| matches!(&pending.what, What::Child { domain: d, .. } if *d == domain.id),
            );
            assert_eq!(asked.count(), domain.resuming as usize, "resumes are miscounted");
        }
        for held in &self.held {
            let stand = held.links.iter().all(|link| self.links.get(*link).is_some());
            assert!(stand && !held.links.is_empty(), "a commit is kept for a link that is gone");
        }
        for passed in self.commits.values() {
            let stand = passed.links.iter().all(|link| self.links.get(*link).is_some());
            assert!(stand, "a commit's outcome waits for a link that is gone (P7)");
        }
        let passed = |of: DomainId| -> Load {
            let commits = self.commits.iter().filter(|((domain, _), _)| of == *domain);
            commits.map(|(_, passed)| passed.load()).sum()
        };
        let held = |of: DomainId| -> usize {
            let held = self.held.iter().filter(|held| held.domain == of);
            held.map(|held| held.bytes).sum()
        };
        for (id, entry) in &self.domains {
            assert_eq!(passed(*id), entry.load, "commits passed on of a domain are counted");
            assert_eq!(held(*id), entry.held, "commits that are held are counted");
        }
        for (parent, uplink) in self.uplinks.iter().enumerate() {
            for pending in uplink.waiting.iter().filter_map(|request| self.pending.get(request)) {
                assert!(!pending.sent, "a request waits that was sent");
                assert_eq!(pending.parent, parent, "a request waits for its own parent");
            }
        }
        for (_, link) in self.links.iter() {
            assert!(link.bulk_reserved >= 0, "more credit given back than reserved");
        }
    }
}
