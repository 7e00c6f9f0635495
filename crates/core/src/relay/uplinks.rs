//! The links up, one to each parent (decision 0037): their beginning and end, and what is sent over them in which order.

use super::domain::RelayDomain;
use super::io::{RelayNotice, RelayOutput};
use super::pending::{self, Pending, What};
use super::{Held, HeldPart, Relay};
use crate::downlink::LinkSink;
use crate::id::{DomainId, LinkId, RequestId};
use crate::machine::{Fault, LinkOutput};
use crate::message::{CloseReason, LinkLimits, Message, RequestError, Role};
use crate::share::{CommitRoom, Load, Room};
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};

/// A resume has so many times the time of another request.
const RESUME_TIMES: u32 = 8;

/// The protocol version from which on a parent is told for whom something is asked.
const ASKS_FOR_SINCE: u32 = 3;

/// The link to a parent.
#[derive(Debug)]
pub(super) struct Up {
    pub(super) link: LinkId,
    /// The parent's bounds, once it welcomed us.
    pub(super) limits: Option<LinkLimits>,
    /// The protocol version that it speaks with us.
    pub(super) version: u32,
    pub(super) heard: Instant,
    pub(super) beat_at: Instant,
    /// When boots that the parent has not said yes to are asked for again.
    pub(super) register_at: Instant,
    /// Requests that the parent has not answered.
    pub(super) unanswered: u32,
    /// Bytes handled and not yet returned as credit.
    pub(super) stream_handled: u32,
    pub(super) bulk_handled: u32,
}

impl Up {
    /// When something is due on it.
    pub(super) fn due(&self, silence_max: Duration) -> Instant {
        let silent = self.heard.after(silence_max);
        if self.limits.is_some() { silent.min(self.beat_at) } else { silent }
    }
}

/// The way to a parent.
#[derive(Debug, Default)]
pub(super) struct Uplink {
    pub(super) up: Option<Up>,
    /// Requests to be sent, in order.
    pub(super) waiting: VecDeque<RequestId>,
    /// The last that was sent when there was room again was a commit.
    commit_went: bool,
    /// Requests wait for nothing but room at the parent.
    crowded: bool,
    /// As it told last.
    pub(super) lease: Option<Duration>,
}

impl Uplink {
    /// Whether the parent has welcomed this relay.
    pub(super) fn is_welcomed(&self) -> bool {
        self.welcomed().is_some()
    }

    /// The link to the parent, if it has.
    pub(super) fn welcomed(&self) -> Option<&Up> {
        self.up.as_ref().filter(|up| up.limits.is_some())
    }
}

/// What the parent takes of commits now, and while requests wait for room beside them; none: nothing.
#[derive(Clone, Copy, Default)]
pub(super) struct ParentRoom(Option<(CommitRoom, Option<Room>)>);

impl ParentRoom {
    /// Whether it takes one more of a domain's, of so many bytes.
    pub(super) fn takes(self, own: Load, bytes: usize) -> bool {
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

impl Relay {
    /// The parent at the other end of a link.
    pub(super) fn parent_at(&self, link: LinkId) -> Option<usize> {
        let at = |uplink: &Uplink| uplink.up.as_ref().is_some_and(|up| up.link == link);
        self.uplinks.iter().position(at)
    }

    /// From which parent a domain is had; none: it is not known.
    pub(super) fn parent_of(&self, domain: DomainId) -> Option<usize> {
        self.domains.get(&domain).map(|entry| entry.parent)
    }

    pub(super) fn send_up(&self, parent: usize, message: Message, out: &mut Vec<RelayOutput>) {
        if let Some(up) = &self.uplinks[parent].up {
            out.link(LinkOutput::Send { link: up.link, message });
        }
    }

    /// Sends what is of a domain, to its parent.
    pub(super) fn send_of(&self, domain: DomainId, message: Message, out: &mut Vec<RelayOutput>) {
        if let Some(parent) = self.parent_of(domain) {
            self.send_up(parent, message, out);
        }
    }

    pub(super) fn up_opened(
        &mut self,
        now: Instant,
        (link, parent): (LinkId, usize),
        out: &mut Vec<RelayOutput>,
    ) {
        if self.uplinks[parent].up.is_some() {
            self.lost(now, parent, None, out);
        }
        self.uplinks[parent].up = Some(Up {
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
        self.send_up(parent, hello, out);
    }

    /// The link to a parent is gone: what was asked is asked again on the next one, until its limit;
    /// commits are the children's to repeat. What is had from other parents does not notice.
    pub(super) fn lost(
        &mut self,
        now: Instant,
        parent: usize,
        reason: Option<CloseReason>,
        out: &mut Vec<RelayOutput>,
    ) {
        if self.uplinks[parent].up.take().is_none() {
            return;
        }
        for domain in self.domains.values_mut().filter(|domain| domain.parent == parent) {
            domain.lose_parent();
            if !self.config.faults.has(Fault::UpdatesOfLost) {
                domain.updates.forget_under_way();
            }
        }
        if !self.is_ready() {
            out.push(RelayOutput::Notice(RelayNotice::Lost));
            self.told_ready = false;
        }
        let domains = &self.domains;
        let lost = |domain: &DomainId| domains.get(domain).is_some_and(|it| it.parent == parent);
        let boots = self.boots.iter_mut().filter(|((domain, _), _)| lost(domain));
        boots.for_each(|(_, carried)| carried.lose_parent());
        let commits = std::mem::take(&mut self.commits).into_iter();
        let (gone, kept): (BTreeMap<_, _>, _) = commits.partition(|((domain, _), _)| lost(domain));
        self.commits = kept;
        for ((domain, id), passed) in gone {
            for link in passed.links {
                let error = RequestError::Unavailable("the link to the parent is down".into());
                let passed = !self.config.faults.has(Fault::LostUnpassed);
                self.links.put_off(link, (domain, id), (error, passed), out);
            }
        }
        let pending = std::mem::take(&mut self.pending).into_iter();
        let (asked, kept): (BTreeMap<_, _>, _) =
            pending.partition(|(_, pending)| pending.parent == parent);
        self.pending = kept;
        self.uplinks[parent].waiting.clear();
        for (request, mut pending) in asked {
            self.deadlines.remove(&(pending.deadline, request));
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
            // Of what is had from another parent nobody is told by this one.
            Some(CloseReason::Forked { domain, seen, fork })
                if self.parent_of(domain).is_none_or(|of| of == parent) =>
            {
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
        // What is had from others may have waited for this one to be told of.
        self.tell_ready(out);
        self.welcome_held(out);
    }

    /// A parent does what the protocol does not allow.
    pub(super) fn refuse_parent(
        &mut self,
        now: Instant,
        parent: usize,
        reason: CloseReason,
        out: &mut Vec<RelayOutput>,
    ) {
        if let Some(up) = &self.uplinks[parent].up {
            out.link(LinkOutput::Close { link: up.link, reason });
        }
        self.lost(now, parent, None, out);
    }

    /// Puts a request in its parent's queue under a new id.
    pub(super) fn enqueue(&mut self, pending: Pending) -> RequestId {
        let parent = pending.parent;
        let request = self.number(pending);
        self.uplinks[parent].waiting.push_back(request);
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

    /// Sends what waits and may be sent: commits that found no room and the requests in turn. Where a
    /// parent takes few, requests that always wait would leave no room to any commit.
    pub(super) fn flush(&mut self, now: Instant, out: &mut Vec<RelayOutput>) {
        for parent in 0..self.uplinks.len() {
            let uplink = &self.uplinks[parent];
            if !uplink.commit_went || uplink.waiting.is_empty() {
                self.send_held(parent, out);
            }
            self.send_waiting(now, parent, out);
            self.send_held(parent, out);
        }
    }

    /// Whether the parent takes one more commit now. While requests wait for room commits have a quarter
    /// of it: else one commit after another takes what the one before left, and no request ever goes
    /// (bug 97). What is under way is bounded in bytes too: the link would be closed for more than it may
    /// keep, and all who commit below would send the same anew (bug 123).
    pub(super) fn room(&self, parent: usize) -> ParentRoom {
        let uplink = &self.uplinks[parent];
        let Some((up, limits)) = uplink.up.as_ref().and_then(|up| Some((up, up.limits?))) else {
            return ParentRoom::default();
        };
        if up.unanswered >= limits.requests_max {
            return ParentRoom::default();
        }
        let requests_max = limits.requests_max as usize;
        let loads = self.of_parent(parent).map(|entry| entry.load);
        let all = CommitRoom::new(loads.clone(), requests_max, self.config.commit_bytes_max);
        let most = (requests_max / 4).max(1);
        let counts = loads.map(|load| load.count);
        let crowded = uplink.crowded.then(|| Room::new(counts, most));
        ParentRoom(Some((all, crowded)))
    }

    /// The domains that are had from a parent.
    pub(super) fn of_parent(&self, parent: usize) -> impl Iterator<Item = &RelayDomain> + Clone {
        self.domains.values().filter(move |entry| entry.parent == parent)
    }

    /// Sends commits that found no room, as far as there is some now; answers them if there is no parent.
    fn send_held(&mut self, parent: usize, out: &mut Vec<RelayOutput>) {
        let is_welcomed = self.uplinks[parent].is_welcomed();
        while !self.held.is_empty() {
            let room = self.room(parent);
            let takes = |entry: &RelayDomain, bytes| !is_welcomed || room.takes(entry.load, bytes);
            if !self.of_parent(parent).any(|entry| entry.held > 0 && takes(entry, 1)) {
                return;
            }
            // One that is too long now lets those pass that fit.
            let wholes = self.bytes_of_wholes();
            let has_room = |held: &Held| {
                self.parent_of(held.domain) == Some(parent)
                    && (!is_welcomed
                        || self.has_room(&wholes, (held.domain, &held.commit), held.bytes))
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
                self.uplinks[parent].commit_went = true;
                self.commit(link, domain, commit.clone(), out);
            }
            for HeldPart { links, domain, commit } in parts {
                for link in links {
                    self.commit(link, domain, commit.clone(), out);
                }
            }
        }
    }

    fn send_waiting(&mut self, now: Instant, parent: usize, out: &mut Vec<RelayOutput>) {
        let uplink = &mut self.uplinks[parent];
        uplink.crowded = false;
        let Some(limits) = uplink.up.as_ref().and_then(|up| up.limits) else {
            return;
        };
        // A quarter of what the parent allows is kept for commits.
        let most = limits.requests_max - limits.requests_max / 4;
        let mut kept = VecDeque::new();
        let mut unknown = Vec::new();
        while let Some(request) = self.uplinks[parent].waiting.pop_front() {
            let Some(pending) = self.pending.get_mut(&request) else {
                continue;
            };
            let domain = pending.what.domain();
            let follows = |id| self.domains.get(&id).is_some_and(|domain| domain.following);
            if domain.is_some_and(|domain| !follows(domain)) {
                kept.push_back(request);
                continue;
            }
            let uplink = &mut self.uplinks[parent];
            let up = uplink.up.as_mut().expect("seen above");
            if let What::Other(message) = &pending.what
                && message.since() > up.version
            {
                let error = RequestError::older_parent(up.version, message.since());
                unknown.push((request, error));
                continue;
            }
            let room = most.saturating_sub(up.unanswered);
            if room == 0 {
                uplink.crowded = true;
                kept.push_back(request);
                break;
            }
            let rest = pending.what.split_off(room);
            let count = pending.what.count();
            up.unanswered += count;
            uplink.commit_went = false;
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
                self.uplinks[parent].waiting.push_front(rest);
            }
            self.send_up(parent, message, out);
        }
        let waiting = &mut self.uplinks[parent].waiting;
        kept.append(waiting);
        *waiting = kept;
        for (request, error) in unknown {
            let Some(mut pending) = self.answered(request) else { continue };
            let Some((link, asked)) = pending.asker else { continue };
            if self.seeks_elsewhere(now, &mut pending, None) {
                self.enqueue(pending);
            } else {
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
    pub(super) fn has_time(&mut self, now: Instant, request: RequestId) {
        let Some(pending) = self.pending.get_mut(&request).filter(|it| it.asker.is_some()) else {
            return;
        };
        let times = if matches!(pending.what, What::Child { .. }) { RESUME_TIMES } else { 1 };
        let deadline = now.after(self.config.request_max.saturating_mul(times));
        self.deadlines.remove(&(pending.deadline, request));
        pending.deadline = deadline;
        self.deadlines.insert((deadline, request));
    }
}
