//! A parent's side of its links: what origin and relay share.
//!
//! `Downlinks::handle` takes what happens on links and gives back what the parent itself has to
//! answer (`Ask`); `Downlinks::pump` sends a domain's stream down one link as far as its
//! credits reach. A child that returns no credits is simply not pumped: it delays nobody (P7).

mod claims;
mod config;
mod follower;
mod intake;
mod link;
mod names;
mod pump;
mod registration;
#[cfg(feature = "faults")]
mod rest;
mod resume;
mod rights;
mod ring;
mod status;

pub(crate) use claims::{Register, anothers};
pub use config::DownlinkConfig;
pub(crate) use follower::{Answer, Follower, IndexWalk, Pace, Phase, Walk};
pub(crate) use intake::is_page;
pub(crate) use link::{Asked, Child, Greeting, Link};
pub(crate) use names::Gone;
pub(crate) use pump::{Feed, Part};
pub(crate) use registration::{PageSet, Registration};
pub(crate) use resume::{Verdict, judge};
pub(crate) use ring::{Recent, Ring};
pub use status::{
    ChildStatus, Directory, DomainMemory, DomainStatus, FollowerStatus, ParentStatus,
};

use crate::commit::{Abort, CommitRequest, Outcome};
use crate::confirmed::Confirmed;
use crate::group::GroupMessage;
use crate::id::{
    BootId, CommitId, DomainId, HistoryId, LinkId, PageId, RequestId, Stamp, VolumeId,
};
use crate::machine::{Fault, Faults, LinkOutput};
use crate::message::{
    COPY_BYTES, CloseReason, CopyAsk, DomainInfo, Epoch, Lane, Message, PageAnswer, RequestError,
    Role, VolumeChange, VolumeKey, VolumeSpec,
};
use crate::record::DELETED_MAX;
use crate::time::{Duration, Instant, WallTime};
use names::Names;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The protocol version from which on a refusal for its quota is known to a child.
const QUOTA_SINCE: u32 = 2;
/// The protocol version from which on a refusal for a deleted volume is known to a child.
const DELETED_SINCE: u32 = 3;
/// Bulk credit reserved for a part of a copy.
pub(crate) const COPY_RESERVED: i64 = COPY_BYTES as i64;

/// Where link outputs go: the machine's own list of outputs.
pub(crate) trait LinkSink {
    /// Appends one.
    fn link(&mut self, output: LinkOutput);
}

/// What the parent has to see to. Limits and registration are done already.
#[derive(Debug)]
pub(crate) enum Ask {
    /// A member of a group says something.
    Member(GroupMessage),
    /// A child said who it is: `welcome` it when the domains are ready.
    Greeted,
    /// A link is gone.
    Gone(LinkId),
    /// Start or answer.
    Resume {
        request: RequestId,
        domain: DomainId,
        epochs: Vec<Epoch>,
        through: Option<Stamp>,
    },
    /// A boot is to be registered: `claim` it first.
    Register(Register),
    /// Pages were queued on the link, or credit for them came.
    Serve,
    /// Stream credit came.
    Pump,
    /// A beat came.
    Beat(DomainId, Instant),
    /// One of those that follow, for a node below the child: by its name.
    For(String, Box<Self>),
    /// The child wants the origin's own state: see [`Message::Refresh`]. At an origin the echo of the
    /// beat before it says all.
    Refresh(DomainId, Instant),
    /// The child's registration lost these pages.
    Evicted(DomainId, Vec<PageId>),
    /// The child's registration was narrowed to its list; whether pages that it named went with that.
    Narrowed(DomainId, bool),
    Confirm(DomainId, BootId, Confirmed),
    AllocateIds(RequestId, crate::id::VolumeId, u64),
    OpenVolume(RequestId, VolumeKey),
    ListVolumes(RequestId, String),
    CreateVolume(RequestId, VolumeSpec),
    ChangeVolume(RequestId, VolumeId, VolumeChange),
    DeleteVolume(RequestId, VolumeId),
    Rights(RequestId, VolumeId),
    /// Credit for its answer is reserved: see [`Downlinks::unreserve`].
    CopyPages(RequestId, CopyAsk),
    Commit(DomainId, CommitRequest),
}

/// What a link waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Timer {
    /// The end of the handshake.
    Hello,
    /// To be heard.
    Silence,
    /// The next advance that says nothing but its stamp.
    Quiet,
}

/// Each domain's volumes; none: not known (relay).
#[derive(Debug, Default)]
struct Volumes {
    there: Option<BTreeMap<VolumeId, DomainId>>,
    /// The last ones that were deleted.
    deleted: VecDeque<VolumeId>,
}

impl Volumes {
    /// Whether the page may be there.
    fn may_have(&self, domain: DomainId, page: PageId) -> bool {
        let known = self.there.as_ref();
        known.is_none_or(|volumes| volumes.get(&page.volume) == Some(&domain))
    }
}

/// All links down.
#[derive(Debug)]
pub(crate) struct Downlinks {
    config: DownlinkConfig,
    faults: Faults,
    links: BTreeMap<LinkId, Link>,
    /// Who is there below.
    names: Names,
    /// Who left, and was not taken note of yet.
    left: Vec<Gone>,
    volumes: Volumes,
    /// Volumes with which not everybody may do everything.
    restricted: rights::Table,
    /// How often that table has changed.
    rights_changes: u64,
    timers: BTreeSet<(Instant, LinkId, Timer)>,
    /// Links with credit that was reserved, and pages that wait for it.
    freed: BTreeSet<LinkId>,
}

impl Downlinks {
    pub(crate) fn new(config: DownlinkConfig, faults: Faults) -> Self {
        Self {
            config,
            faults,
            links: BTreeMap::new(),
            names: Names::default(),
            left: Vec::new(),
            volumes: Volumes::default(),
            restricted: rights::Table::new(),
            rights_changes: 0,
            timers: BTreeSet::new(),
            freed: BTreeSet::new(),
        }
    }

    /// These volumes are there, and those told before. Whoever asks for a page of others is not registered for it.
    pub(crate) fn add_volumes(
        &mut self,
        domain: DomainId,
        volumes: impl IntoIterator<Item = VolumeId>,
    ) {
        let known = self.volumes.there.get_or_insert_default();
        known.extend(volumes.into_iter().map(|volume| (volume, domain)));
    }

    /// A volume was deleted: what is asked of it is refused. What a link is registered for of it stays,
    /// since its stream may still have to tell of changes before; the child gives it back itself.
    pub(crate) fn delete_volume(&mut self, volume: VolumeId) {
        self.volumes.there.get_or_insert_default().remove(&volume);
        self.forget_rights(volume);
        self.volumes.deleted.push_back(volume);
        if self.volumes.deleted.len() > DELETED_MAX {
            self.volumes.deleted.pop_front();
        }
    }

    pub(crate) fn get(&self, link: LinkId) -> Option<&Link> {
        self.links.get(&link)
    }

    pub(crate) fn get_mut(&mut self, link: LinkId) -> Option<&mut Link> {
        self.links.get_mut(&link)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (LinkId, &Link)> + '_ {
        self.links.iter().map(|(id, link)| (*id, link))
    }

    /// See [`Link::turns`]; none when the link is gone.
    pub(crate) fn turns(&self, link: LinkId) -> Vec<(DomainId, Pace)> {
        self.get(link).map_or_else(Vec::new, Link::turns)
    }

    /// See [`Link::streams`]; none when the link is gone.
    pub(crate) fn streams(&self, link: LinkId) -> Vec<DomainId> {
        self.get(link).map_or_else(Vec::new, Link::streams)
    }

    pub(crate) fn follower(&mut self, link: LinkId, domain: DomainId) -> Option<&mut Follower> {
        self.links.get_mut(&link)?.followers.get_mut(&domain)
    }

    /// Links that follow a domain, ascending.
    pub(crate) fn following(&self, domain: DomainId) -> Vec<LinkId> {
        self.iter()
            .filter(|(_, link)| link.followers.contains_key(&domain))
            .map(|(id, _)| id)
            .collect()
    }

    /// Links that were welcomed, ascending, with their roles.
    pub(crate) fn welcomed(&self) -> impl Iterator<Item = (LinkId, Role)> + '_ {
        self.iter().filter_map(|(id, link)| match &link.greeting {
            Greeting::Done(child) => Some((id, child.role)),
            Greeting::Awaited | Greeting::Held(_) => None,
        })
    }

    /// The lease that children are told from now on. Whether it is shorter than the one before.
    pub(crate) fn set_lease(&mut self, lease: Duration) -> bool {
        let before = std::mem::replace(&mut self.config.limits.lease, lease);
        lease < before
    }

    /// Links whose `Hello` is held, ascending.
    pub(crate) fn held(&self) -> Vec<LinkId> {
        self.iter()
            .filter(|(_, link)| matches!(link.greeting, Greeting::Held(_)))
            .map(|(id, _)| id)
            .collect()
    }

    /// Answers a held `Hello`.
    pub(crate) fn welcome(
        &mut self,
        link: LinkId,
        time: WallTime,
        domains: Vec<DomainInfo>,
        out: &mut dyn LinkSink,
    ) {
        let limits = self.config.limits;
        let name = self.config.name.clone();
        let Some(entry) = self.links.get_mut(&link) else {
            return;
        };
        let Greeting::Held(child) = &entry.greeting else {
            return;
        };
        let child = child.clone();
        let version = child.version;
        entry.greeting = Greeting::Done(child);
        entry.stream_credit = i64::from(limits.stream_window_bytes);
        entry.bulk_credit = i64::from(limits.bulk_window_bytes);
        let message = Message::Welcome { version, name, time, limits, domains };
        out.link(LinkOutput::Send { link, message });
    }

    /// Sends a message that answers nothing counted. Nothing happens when the link is gone.
    pub(crate) fn send(&mut self, link: LinkId, message: Message, out: &mut dyn LinkSink) {
        let Some(entry) = self.links.get_mut(&link) else {
            return;
        };
        match message.lane() {
            Lane::Control => {}
            Lane::Stream => entry.stream_credit -= link::cost(&message),
            Lane::Bulk => entry.bulk_credit -= link::cost(&message),
        }
        out.link(LinkOutput::Send { link, message });
    }

    /// Sends a message that answers one request.
    pub(crate) fn reply(&mut self, link: LinkId, message: Message, out: &mut dyn LinkSink) {
        self.pass_reply(link, (message, RequestId(u64::MAX)), out);
    }

    /// The same, of an answer that a relay passes on, to the question above of that number.
    pub(crate) fn pass_reply(
        &mut self,
        link: LinkId,
        (message, asked): (Message, RequestId),
        out: &mut dyn LinkSink,
    ) {
        self.forget_request(link);
        if let Message::Volume { info, .. } = &message {
            self.right_answered(link, info, asked);
        }
        self.send(link, message, out);
    }

    /// One request less: it was a repetition of one that is under way.
    pub(crate) fn forget_request(&mut self, link: LinkId) {
        if let Some(entry) = self.links.get_mut(&link) {
            assert!(entry.unanswered > 0, "more answers than requests");
            entry.unanswered -= 1;
        }
    }

    /// Reserves bulk credit for a part of a copy; none is to be had: the child is told to come again.
    fn reserve_copy(&mut self, link: LinkId, request: RequestId, out: &mut dyn LinkSink) -> bool {
        let Some(entry) = self.links.get_mut(&link) else {
            return false;
        };
        if entry.bulk_credit - entry.bulk_reserved > 0 {
            entry.bulk_reserved += COPY_RESERVED;
            return true;
        }
        let error = RequestError::Busy("pages on their way fill the link".into());
        self.fail(link, request, error, out);
        false
    }

    /// Gives reserved bulk credit back: what it was for is sent, or will not be. Pages that waited for
    /// it are to be served: see [`Downlinks::take_freed`].
    pub(crate) fn unreserve(&mut self, link: LinkId, bytes: i64) {
        if let Some(entry) = self.links.get_mut(&link) {
            entry.bulk_reserved -= bytes;
            assert!(entry.bulk_reserved >= 0, "more credit given back than reserved");
            let waits = entry.followers.values().any(|follower| follower.queued() > 0);
            if waits && entry.bulk_credit > entry.bulk_reserved {
                self.freed.insert(link);
            }
        }
    }

    /// A link whose pages waited for credit that was given back. No message of the child tells of it, as
    /// its own credit does: whoever gives back must serve in the same step, or they wait for ever.
    pub(crate) fn take_freed(&mut self) -> Option<LinkId> {
        let freed = self.freed.pop_first();
        freed.filter(|_| !self.faults.has(Fault::ReservedUnserved))
    }

    /// Says how a commit ended.
    pub(crate) fn outcome(
        &mut self,
        link: LinkId,
        domain: DomainId,
        id: CommitId,
        (outcome, history): (Outcome, HistoryId),
        out: &mut dyn LinkSink,
    ) {
        // An outcome that it does not know would end its link.
        let older = |than| self.version(link).is_some_and(|version| version < than);
        let outcome = match outcome {
            Outcome::Aborted(Abort::Quota { .. }) if older(QUOTA_SINCE) => {
                Outcome::Aborted(Abort::TooLarge("bytes"))
            }
            Outcome::Aborted(Abort::Deleted(volume)) if older(DELETED_SINCE) => {
                Outcome::Aborted(Abort::NoVolume(volume))
            }
            Outcome::Aborted(Abort::Denied(_)) if !self.knows_rights(link) => {
                Outcome::Aborted(Abort::TooLarge("a limit of the origin"))
            }
            other => other,
        };
        let message = Message::Committed { domain, id, outcome, history };
        self.answer_commit(link, (domain, id), message, out);
    }

    fn answer_commit(
        &mut self,
        link: LinkId,
        commit: (DomainId, CommitId),
        message: Message,
        out: &mut dyn LinkSink,
    ) {
        match self.links.get_mut(&link).is_some_and(|entry| entry.beside.remove(&commit)) {
            true => self.send(link, message, out),
            false => self.reply(link, message, out),
        }
    }

    fn knows_rights(&self, link: LinkId) -> bool {
        self.links.get(&link).is_none_or(Link::knows_rights)
    }

    /// The protocol version spoken on a link.
    pub(crate) fn version(&self, link: LinkId) -> Option<u32> {
        self.links.get(&link)?.child().map(|child| child.version)
    }

    /// Says that a commit could not be taken on, or is not heard of any more: it may be done yet.
    pub(crate) fn defer(
        &mut self,
        link: LinkId,
        domain: DomainId,
        id: CommitId,
        error: RequestError,
        out: &mut dyn LinkSink,
    ) {
        self.put_off(link, (domain, id), (error, true), out);
    }

    /// Says that nothing is done, or passed on, of what was sent of a commit.
    pub(crate) fn turn_away(
        &mut self,
        link: LinkId,
        domain: DomainId,
        id: CommitId,
        error: RequestError,
        out: &mut dyn LinkSink,
    ) {
        self.put_off(link, (domain, id), (error, false), out);
    }

    /// One of the two, as it was said of what was passed on.
    pub(crate) fn put_off(
        &mut self,
        link: LinkId,
        (domain, id): (DomainId, CommitId),
        (error, passed): (RequestError, bool),
        out: &mut dyn LinkSink,
    ) {
        let error = self.known_error(link, error);
        let message = Message::CommitDeferred { domain, id, error, passed };
        self.answer_commit(link, (domain, id), message, out);
    }

    /// Says that a request failed.
    pub(crate) fn fail(
        &mut self,
        link: LinkId,
        request: RequestId,
        error: RequestError,
        out: &mut dyn LinkSink,
    ) {
        let error = self.known_error(link, error);
        self.reply(link, Message::Failed { request, pages: Vec::new(), error }, out);
    }

    /// The error as a child of an older version knows it.
    fn known_error(&self, link: LinkId, error: RequestError) -> RequestError {
        match error {
            RequestError::Deleted(volume)
                if self.version(link).is_some_and(|version| version < DELETED_SINCE) =>
            {
                RequestError::NoVolume(volume)
            }
            RequestError::Denied(denied) if !self.knows_rights(link) => {
                RequestError::Forbidden(denied.to_string())
            }
            other => other,
        }
    }

    /// Answers pages of one fetch.
    pub(crate) fn answer_pages(
        &mut self,
        link: LinkId,
        request: RequestId,
        domain: DomainId,
        pages: Vec<PageAnswer>,
        out: &mut dyn LinkSink,
    ) {
        let Some(entry) = self.links.get_mut(&link) else {
            return;
        };
        for _ in &pages {
            entry.page_done(request);
        }
        let message = Message::Pages { request, domain, pages };
        self.send(link, message, out);
    }

    /// Pages of a fetch come from a neighbour of the child.
    pub(crate) fn point(
        &mut self,
        link: LinkId,
        (request, domain): (RequestId, DomainId),
        (pages, helper, holes): (&[PageId], BootId, bool),
        out: &mut dyn LinkSink,
    ) {
        let Some(entry) = self.links.get_mut(&link) else {
            return;
        };
        for _ in pages {
            entry.page_done(request);
        }
        let pages = pages.to_vec();
        let message = GroupMessage::Pointed { request, domain, pages, helper, holes };
        self.send(link, Message::Group(message), out);
    }

    /// How far all members of a group have been told a domain's stream, of those to whom it runs.
    pub(crate) fn least_told(&self, domain: DomainId) -> Option<Stamp> {
        let members = self.links.values().filter(|link| link.member);
        let followers = members.filter_map(|link| link.followers.get(&domain));
        let runs = |follower: &&Follower| {
            matches!(follower.phase, Phase::Streaming | Phase::Answering(..))
        };
        followers.filter(runs).map(|follower| follower.cursor).min()
    }

    /// Pages of a fetch cannot be answered. The failure names them: it may overtake answers for the
    /// other pages, whose users it does not concern. One message for all that fail in one step: a
    /// child is owed no more answers than it has sent requests.
    pub(crate) fn fail_pages(
        &mut self,
        link: LinkId,
        (request, pages): (RequestId, Vec<PageId>),
        error: RequestError,
        out: &mut dyn LinkSink,
    ) {
        let error = self.known_error(link, error);
        let Some(entry) = self.links.get_mut(&link).filter(|_| !pages.is_empty()) else {
            return;
        };
        for _ in &pages {
            entry.page_done(request);
        }
        self.send(link, Message::Failed { request, pages, error }, out);
    }

    /// The same for one page.
    pub(crate) fn fail_page(
        &mut self,
        link: LinkId,
        (request, page): (RequestId, PageId),
        error: RequestError,
        out: &mut dyn LinkSink,
    ) {
        self.fail_pages(link, (request, vec![page]), error, out);
    }

    /// Ends a link; says whether it was there.
    pub(crate) fn close(
        &mut self,
        link: LinkId,
        reason: CloseReason,
        out: &mut dyn LinkSink,
    ) -> bool {
        let gone = self.remove(link);
        if gone {
            out.link(LinkOutput::Close { link, reason });
        }
        gone
    }

    fn remove(&mut self, link: LinkId) -> bool {
        if self.links.remove(&link).is_none() {
            return false;
        }
        self.left.extend(self.names.leave_link(link));
        true
    }

    /// When `timeouts` is wanted next.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _, _)| *at)
    }

    /// Closes links that were silent for too long; gives those links, and those whose quiet
    /// interval is over.
    pub(crate) fn timeouts(
        &mut self,
        now: Instant,
        out: &mut dyn LinkSink,
    ) -> (Vec<LinkId>, Vec<LinkId>) {
        let mut gone = Vec::new();
        let mut quiet = Vec::new();
        while let Some(&(at, link, timer)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let Some(entry) = self.links.get_mut(&link) else {
                continue;
            };
            let silent_at = entry.heard.after(self.config.silence_max);
            let close = match timer {
                Timer::Quiet => {
                    entry.quiet_armed = false;
                    quiet.push(link);
                    false
                }
                Timer::Hello => entry.child().is_none(),
                Timer::Silence if silent_at > now => {
                    self.timers.insert((silent_at, link, Timer::Silence));
                    false
                }
                Timer::Silence => {
                    crate::probe::probe("silent-child-closed");
                    !self.faults.has(Fault::SilentKept)
                }
            };
            if close && self.close(link, CloseReason::Silent, out) {
                gone.push(link);
            }
        }
        (gone, quiet)
    }

    /// Panics when an invariant is broken: among them that a link takes constant memory.
    pub(crate) fn check(&self) {
        let requests_max = self.config.limits.requests_max as usize;
        assert!(self.links.len() <= self.config.links_max, "too many links");
        self.names.check();
        for (id, link) in &self.links {
            let names_max = match link.named() {
                None => 0,
                Some(child) if child.role == Role::Node => 1,
                Some(_) => 1 + self.config.names_per_link_max,
            };
            assert!(self.names.brought(*id) <= names_max, "a link brought too many names");
            assert!(link.unanswered as usize <= requests_max, "too many requests in flight");
            let most = requests_max.saturating_mul(crate::commit::PARTS_MAX);
            assert!(link.beside.len() <= most, "too many parts in flight");
            let queued: usize = link.followers.values().map(Follower::queued).sum();
            assert!(queued <= requests_max, "too many pages queued");
            assert!(link.fetches.len() <= requests_max, "too many fetches");
            let pages: u32 = link.fetches.values().map(|fetching| fetching.left).sum();
            assert!(pages <= link.unanswered, "pages asked for are not counted");
            assert!(
                link.stream_credit <= i64::from(self.config.limits.stream_window_bytes)
                    && link.bulk_credit <= i64::from(self.config.limits.bulk_window_bytes),
                "more credit than the window"
            );
            for follower in link.followers.values() {
                follower.check(requests_max);
            }
        }
        assert!(
            self.timers.len() <= 3 * (self.config.links_max + self.links.len()) + 64
                || self.timers.len() <= 4 * self.links.len() + 4096,
            "timers pile up"
        );
    }
}
