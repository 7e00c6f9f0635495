//! The relay machine: one link up, many down, the same protocol on both sides.
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
use crate::message::{CloseReason, LinkLimits, Message, RequestError, Role};
use crate::rights::Denied;
use crate::share::{CommitRoom, Load, Room};
use crate::time::{Instant, OnwardClock};
use boots::Carried;
use domain::RelayDomain;
use io::{RelayInput, RelayNotice, RelayOutput};
use pending::{Pending, What};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

impl LinkSink for Vec<RelayOutput> {
    fn link(&mut self, output: LinkOutput) {
        self.push(RelayOutput::Link(output));
    }
}

/// A resume has so many times the time of another request.
const RESUME_TIMES: u32 = 8;

/// The protocol version from which on a parent is told for whom something is asked.
const ASKS_FOR_SINCE: u32 = 3;

/// The link to the parent.
#[derive(Debug)]
struct Up {
    link: LinkId,
    /// The parent's bounds, once it welcomed us.
    limits: Option<LinkLimits>,
    /// The protocol version that it speaks with us.
    version: u32,
    heard: Instant,
    beat_at: Instant,
    /// When boots that the parent has not said yes to are asked for again.
    register_at: Instant,
    /// Requests that the parent has not answered.
    unanswered: u32,
    /// Bytes handled and not yet returned as credit.
    stream_handled: u32,
    bulk_handled: u32,
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

/// What the parent takes of commits now, and while requests wait for room beside them; none: nothing.
#[derive(Clone, Copy, Default)]
struct ParentRoom(Option<(CommitRoom, Option<Room>)>);

impl ParentRoom {
    /// Whether it takes one more of a domain's, of so many bytes.
    fn takes(self, own: Load, bytes: usize) -> bool {
        let Some((all, crowded)) = self.0 else {
            return false;
        };
        if !all.takes(own, bytes) {
            crate::probe::probe("relay-commits-full");
            return false;
        }
        crowded.is_none_or(|room| room.takes(own.count, 1))
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
    up: Option<Up>,
    domains: BTreeMap<DomainId, RelayDomain>,
    pending: BTreeMap<RequestId, Pending>,
    /// Requests to be sent, in order.
    waiting: VecDeque<RequestId>,
    deadlines: BTreeSet<(Instant, RequestId)>,
    last_request: u64,
    /// The boots of nodes below, as asked of the parent. Each is claimed below.
    boots: BTreeMap<(DomainId, BootId), Carried>,
    /// Commits passed on.
    commits: BTreeMap<(DomainId, CommitId), Passed>,
    /// Commits for which there was no room, at most one of each node's link and of each boot below another
    /// relay, in the order in which they came.
    held: VecDeque<Held>,
    /// The last that was sent when there was room again was a commit.
    commit_went: bool,
    /// Requests wait for nothing but room at the parent.
    crowded: bool,
    /// Bytes of a page, as last seen per volume: what is reserved for one asked for.
    page_bytes: FixedMap<VolumeId, i64>,
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
            up: None,
            domains: BTreeMap::new(),
            pending: BTreeMap::new(),
            waiting: VecDeque::new(),
            deadlines: BTreeSet::new(),
            last_request: 0,
            boots: BTreeMap::new(),
            commits: BTreeMap::new(),
            held: VecDeque::new(),
            commit_went: false,
            crowded: false,
            page_bytes: FixedMap::default(),
            told_ready: false,
            group: config.group.clone().map(Directory::new),
            clock: OnwardClock::default(),
            config,
        }
    }

    /// Whether the parent's domains are followed now, those that it serves.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let mut domains = self.domains.values();
        let welcomed = self.up.as_ref().is_some_and(|up| up.limits.is_some());
        let own = |domain: &RelayDomain| {
            domain.resume.is_some_and(|request| self.pending.contains_key(&request))
        };
        let asked = self.domains.values().any(|domain| !domain.following && own(domain));
        welcomed && !asked && domains.any(|domain| domain.following)
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

    fn send_up(&self, message: Message, out: &mut Vec<RelayOutput>) {
        if let Some(up) = &self.up {
            out.link(LinkOutput::Send { link: up.link, message });
        }
    }

    fn up_opened(&mut self, now: Instant, link: LinkId, out: &mut Vec<RelayOutput>) {
        if self.up.is_some() {
            self.lost(now, None, out);
        }
        self.up = Some(Up {
            link,
            limits: None,
            version: self.config.downlink.versions.oldest,
            heard: now,
            beat_at: now,
            register_at: now,
            unanswered: 0,
            stream_handled: 0,
            bulk_handled: 0,
        });
        let hello = Message::Hello {
            min_version: self.config.downlink.versions.oldest,
            max_version: self.config.downlink.versions.newest,
            name: self.config.downlink.name.clone(),
            boot: self.config.boot,
            role: Role::Relay,
        };
        self.send_up(hello, out);
    }

    /// The link up is gone: what was asked is asked again on the next one, until its limit;
    /// commits are the children's to repeat.
    fn lost(&mut self, now: Instant, reason: Option<CloseReason>, out: &mut Vec<RelayOutput>) {
        if self.up.take().is_none() {
            return;
        }
        out.push(RelayOutput::Notice(RelayNotice::Lost));
        self.told_ready = false;
        for domain in self.domains.values_mut() {
            domain.lose_parent();
            if !self.config.faults.has(Fault::UpdatesOfLost) {
                domain.updates.forget_under_way();
            }
        }
        self.boots.values_mut().for_each(Carried::lose_parent);
        for ((domain, id), passed) in std::mem::take(&mut self.commits) {
            for link in passed.links {
                let error = RequestError::Unavailable("the link to the parent is down".into());
                self.links.defer(link, domain, id, error, out);
            }
        }
        let pending = std::mem::take(&mut self.pending);
        self.waiting.clear();
        self.deadlines.clear();
        for (_, mut pending) in pending {
            // Own resumes begin anew with the next link, and nobody waits for abandoned requests.
            if matches!(pending.what, What::Own { .. }) || pending.asker.is_none() {
                self.drop_pending(&pending);
                continue;
            }
            match &mut pending.what {
                What::Child { gathered, .. } => *gathered = pending::Gathered::default(),
                What::Fetch { .. } | What::Own { .. } | What::Other(_) => {}
            }
            pending.sent = false;
            self.enqueue(pending);
        }
        match reason {
            Some(CloseReason::Forked { domain, seen, fork }) => {
                for link in self.links.following(domain) {
                    let reason = CloseReason::Forked { domain, seen, fork };
                    self.close_child(now, link, reason, out);
                }
                let reason = CloseReason::Forked { domain, seen, fork };
                out.push(RelayOutput::Notice(RelayNotice::Refused { reason }));
            }
            Some(
                reason @ (CloseReason::Identity(_)
                | CloseReason::Version { .. }
                | CloseReason::Forbidden(_)),
            ) => out.push(RelayOutput::Notice(RelayNotice::Refused { reason })),
            _ => {}
        }
        self.welcome_held(out);
    }

    /// The parent does what the protocol does not allow.
    fn refuse_parent(&mut self, now: Instant, reason: CloseReason, out: &mut Vec<RelayOutput>) {
        if let Some(up) = &self.up {
            out.link(LinkOutput::Close { link: up.link, reason });
        }
        self.lost(now, None, out);
    }

    /// Puts a request in the queue under a new id.
    fn enqueue(&mut self, pending: Pending) -> RequestId {
        let request = self.number(pending);
        self.waiting.push_back(request);
        request
    }

    /// Gives a request a new id, under which it can be looked up.
    fn number(&mut self, pending: Pending) -> RequestId {
        self.last_request += 1;
        let request = RequestId(self.last_request);
        if pending.asker.is_some() {
            self.deadlines.insert((pending.deadline, request));
        }
        self.pending.insert(request, pending);
        request
    }

    /// Sends what waits and may be sent: commits that found no room and the requests in turn. Where the
    /// parent takes few, requests that always wait would leave no room to any commit.
    fn flush(&mut self, now: Instant, out: &mut Vec<RelayOutput>) {
        if !self.commit_went || self.waiting.is_empty() {
            self.send_held(out);
        }
        self.send_waiting(now, out);
        self.send_held(out);
    }

    /// Whether the parent takes one more commit now. While requests wait for room commits have a quarter
    /// of it: else one commit after another takes what the one before left, and no request ever goes
    /// (bug 97). What is under way is bounded in bytes too: the link would be closed for more than it may
    /// keep, and all who commit below would send the same anew (bug 123).
    fn room(&self) -> ParentRoom {
        let Some((up, limits)) = self.up.as_ref().and_then(|up| Some((up, up.limits?))) else {
            return ParentRoom::default();
        };
        if up.unanswered >= limits.requests_max {
            return ParentRoom::default();
        }
        let requests_max = limits.requests_max as usize;
        let loads = self.domains.values().map(|entry| entry.load);
        let all = CommitRoom::new(loads.clone(), requests_max, self.config.commit_bytes_max);
        let most = (requests_max / 4).max(1);
        let counts = loads.map(|load| load.count);
        let crowded = self.crowded.then(|| Room::new(counts, most));
        ParentRoom(Some((all, crowded)))
    }

    /// Sends commits that found no room, as far as there is some now; answers them if there is no parent.
    fn send_held(&mut self, out: &mut Vec<RelayOutput>) {
        let is_welcomed = self.up.as_ref().is_some_and(|up| up.limits.is_some());
        while !self.held.is_empty() {
            let room = self.room();
            let takes = |entry: &RelayDomain, bytes| !is_welcomed || room.takes(entry.load, bytes);
            if !self.domains.values().any(|entry| entry.held > 0 && takes(entry, 1)) {
                return;
            }
            // One that is too long now lets those pass that fit.
            let wholes = self.bytes_of_wholes();
            let has_room = |held: &Held| {
                !is_welcomed || self.has_room(&wholes, (held.domain, &held.commit), held.bytes)
            };
            let next = self.held.iter().position(has_room);
            let next = next.and_then(|place| self.held.remove(place));
            let Some(Held { mut links, domain, commit, parts, bytes }) = next else { return };
            self.domains.get_mut(&domain).expect("followed once").held -= bytes;
            // One that may not commit any more must not have its outcome asked for in the others' place.
            if let Some(may) = links.iter().position(|l| self.check_relayed(*l, &commit).is_ok()) {
                links.swap(0, may);
            }
            for link in links {
                self.commit_went = true;
                self.commit(link, domain, commit.clone(), out);
            }
            for HeldPart { links, domain, commit } in parts {
                for link in links {
                    self.commit(link, domain, commit.clone(), out);
                }
            }
        }
    }

    fn send_waiting(&mut self, now: Instant, out: &mut Vec<RelayOutput>) {
        self.crowded = false;
        let Some(limits) = self.up.as_ref().and_then(|up| up.limits) else {
            return;
        };
        // A quarter of what the parent allows is kept for commits.
        let most = limits.requests_max - limits.requests_max / 4;
        let mut kept = VecDeque::new();
        let mut unknown = Vec::new();
        while let Some(request) = self.waiting.pop_front() {
            let Some(pending) = self.pending.get_mut(&request) else {
                continue;
            };
            let domain = pending.what.domain();
            let follows = |id| self.domains.get(&id).is_some_and(|domain| domain.following);
            if domain.is_some_and(|domain| !follows(domain)) {
                kept.push_back(request);
                continue;
            }
            let up = self.up.as_mut().expect("seen above");
            if let What::Other(message) = &pending.what
                && message.since() > up.version
            {
                let error = RequestError::older_parent(up.version, message.since());
                unknown.push((request, error));
                continue;
            }
            let room = most.saturating_sub(up.unanswered);
            if room == 0 {
                self.crowded = true;
                kept.push_back(request);
                break;
            }
            let rest = pending.what.split_off(room);
            let count = pending.what.count();
            up.unanswered += count;
            self.commit_went = false;
            pending.sent = true;
            let mut message = pending.what.message(request, &[]);
            if let (What::Own { domain, .. }, Message::Resume { epochs, through, .. }) =
                (&pending.what, &mut message)
                && let Some(domain) = self.domains.get(domain).filter(|domain| domain.begun)
            {
                epochs.clone_from(&domain.epochs);
                *through = Some(domain.through());
            }
            // One of an earlier version takes all for this relay's own.
            if let Some(name) = pending.of.clone().filter(|_| up.version >= ASKS_FOR_SINCE) {
                message = Message::For { name, message: Box::new(message) };
            }
            let rest = rest.map(|what| pending.with(what));
            self.wait_anew(now, request);
            if let Some(rest) = rest {
                let rest = self.number(rest);
                self.waiting.push_front(rest);
            }
            out.link(LinkOutput::Send {
                link: self.up.as_ref().expect("seen above").link,
                message,
            });
        }
        kept.append(&mut self.waiting);
        self.waiting = kept;
        for (request, error) in unknown {
            if let Some((link, asked)) = self.answered(request).and_then(|pending| pending.asker) {
                self.links.fail(link, asked, error, out);
            }
        }
    }

    /// What is sent has its limit from then on: what waited here for long would be given up while its
    /// answer is on the way, and asked for again, so that a full line brought nothing to anybody. Once
    /// alone: over a line that breaks again and again it would never be given up.
    fn wait_anew(&mut self, now: Instant, request: RequestId) {
        let fresh = |pending: &&mut Pending| pending.asker.is_some() && !pending.ever_sent;
        if let Some(pending) = self.pending.get_mut(&request).filter(fresh) {
            pending.ever_sent = true;
            self.has_time(now, request);
        }
    }

    /// A request that somebody waits for is given up when nothing more comes of it from now on. How long a resume
    /// takes is for the stores above to say: given up and asked anew, one that takes longer than other requests would
    /// never be answered (bug 189).
    fn has_time(&mut self, now: Instant, request: RequestId) {
        let Some(pending) = self.pending.get_mut(&request).filter(|it| it.asker.is_some()) else {
            return;
        };
        let times = if matches!(pending.what, What::Child { .. }) { RESUME_TIMES } else { 1 };
        let deadline = now.after(self.config.request_max.saturating_mul(times));
        self.deadlines.remove(&(pending.deadline, request));
        pending.deadline = deadline;
        self.deadlines.insert((deadline, request));
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
        let up = self.up.as_ref().map(|up| {
            let silent = up.heard.after(self.config.silence_max);
            if up.limits.is_some() { silent.min(up.beat_at) } else { silent }
        });
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
        let up = self.up.as_ref().map(|up| up.link);
        match input {
            LinkInput::UpOpened { link, .. } => self.up_opened(now, link, out),
            LinkInput::Closed { link, reason } if Some(link) == up => self.lost(now, reason, out),
            LinkInput::Received { link, message, bytes } if Some(link) == up => {
                self.hear_parent(now, message, bytes, out);
            }
            input => {
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
        if let Some(up) = &self.up
            && up.heard.after(self.config.silence_max) <= now
        {
            self.refuse_parent(now, CloseReason::Silent, out);
        }
        self.beat_up(now, out);
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
        for request in &self.waiting {
            let sent = self.pending.get(request).is_some_and(|pending| pending.sent);
            assert!(!sent, "a request waits that was sent");
        }
        for (_, link) in self.links.iter() {
            assert!(link.bulk_reserved >= 0, "more credit given back than reserved");
        }
    }
}
