//! The messages of a link. One protocol for every parent (origin, relay, later redirector) and
//! every child (node, relay).
//!
//! A link has three lanes in each direction. Within control and stream messages arrive in order;
//! bulk messages may overtake one another, and across lanes nothing may be assumed
//! (`docs/decisions/0001-page-copies-and-cursors.md`).

mod pages;

pub use pages::{
    COPY_BYTES, CopyAnswer, CopyAsk, CopyCursor, CopyPart, PageAnswer, PageAsk, PageBody, PinId,
};

use crate::across::{ORIGINS_SINCE, OriginMessage};
use crate::commit::{Change, CommitRequest, IdRange, Outcome, PageKind};
use crate::group::{GROUPS_SINCE, GroupMessage};
use crate::id::{BootId, CommitId, DomainId, HistoryId, PageId, RequestId, Stamp, VolumeId};
use crate::rights::{Access, Denied, Effective, Right, Rights, RightsEdit};
use crate::time::{Duration, Instant, WallTime};

/// The newest protocol version spoken here.
pub const PROTOCOL_VERSION: u32 = 7;
/// The oldest protocol version spoken here.
pub const PROTOCOL_VERSION_OLDEST: u32 = 1;

/// The protocol version that brought [`crate::commit::Op::RestorePage`].
pub const RESTORES_SINCE: u32 = 3;
/// The protocol version that brought transactions over several domains. An older parent would take a part
/// for a commit of its own.
pub const ACROSS_SINCE: u32 = 5;

/// The protocol version that brought outcomes left open in [`Message::Confirm`]. An older parent would take all up to the
/// number for received.
pub const OPEN_SINCE: u32 = 7;

/// Protocol versions, from one to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions {
    /// The oldest.
    pub oldest: u32,
    /// The newest.
    pub newest: u32,
}

impl Versions {
    /// What this code speaks.
    pub const SPOKEN: Self = Self { oldest: PROTOCOL_VERSION_OLDEST, newest: PROTOCOL_VERSION };

    /// The newest that both speak; none: they do not meet.
    #[must_use]
    pub fn common(self, other: Self) -> Option<u32> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }

    /// Whether `version` is among them.
    #[must_use]
    pub fn holds(self, version: u32) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.oldest == self.newest {
            true => write!(f, "{}", self.newest),
            false => write!(f, "{} to {}", self.oldest, self.newest),
        }
    }
}

/// Most pages in one `Fetch`, `Pages`, `Evicted`, `Holding` or `Resumed`.
pub const PAGES_PER_MESSAGE_MAX: usize = 4096;
/// Most changes in one `Advance`.
pub const CHANGES_PER_ADVANCE_MAX: usize = 1 << 16;
/// Most things named ([`crate::commit::PageChange::touched`]) in one `Advance`, which is more than
/// one commit can write; and most of its stale pages: those of one stamp are never parted.
pub const TOUCHED_PER_ADVANCE_MAX: usize = 1 << 19;
/// Most outcomes left open in one `Confirm`.
pub const OPEN_MAX: usize = 4096;
/// Most slots of a page that are not known ([`PageBody::Holed`]).
pub const HOLES_MAX: usize = 1024;
/// Most volumes in one `Volumes`.
pub const VOLUMES_PER_MESSAGE_MAX: usize = 1024;
/// Most domains in one `Welcome`.
pub const DOMAINS_MAX: usize = 256;

/// Which of a link's queues a message travels in. Lower sends first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Lane {
    /// Small messages: requests, outcomes, errors, credits. Bounded by the requests in flight.
    Control,
    /// What a parent tells of changes. Bounded by credits.
    Stream,
    /// Pages and commits, which take turns: the order in which they were sent is not kept. Bounded
    /// by credits downwards, by the requests in flight upwards.
    Bulk,
}

/// What the child is. Its certificate says what it may be; a relay may also be a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A cache with users.
    Node,
    /// One link up, many down.
    Relay,
}

/// Why a boot may not commit over a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoBoot {
    /// The domain does not know it, or no longer: its commits can only be answered "unknown".
    Unknown,
    /// Another process has its name, or it is another name's.
    Taken,
}

/// Parts the certificate's name from the instance in a node's name: `alice/mount` is one of the
/// processes of `alice`.
pub const INSTANCE_MARK: char = '/';
/// Longest name of a child, instance included, in bytes.
pub const NAME_BYTES_MAX: usize = 256;

/// The certificate's part of a node's name.
#[must_use]
pub fn certificate_of(name: &str) -> &str {
    name.split_once(INSTANCE_MARK).map_or(name, |(certificate, _)| certificate)
}

/// Whether a node may be called so: a certificate's name, or that, a slash and an instance of
/// letters, digits, `-`, `_`, `.`.
#[must_use]
pub fn is_node_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let (certificate, instance) = match name.split_once(INSTANCE_MARK) {
        Some((certificate, instance)) => (certificate, Some(instance)),
        None => (name, None),
    };
    !certificate.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && instance.is_none_or(|part| !part.is_empty() && part.chars().all(plain))
}

/// A link's bounds, set by the parent in `Welcome`; a child that passes one is cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkLimits {
    /// Most requests of a child without an answer, commits and pages asked for included.
    pub requests_max: u32,
    /// Bytes of stream a parent may send ahead of the child's credits.
    pub stream_window_bytes: u32,
    /// Bytes of pages a parent may send ahead of the child's credits.
    pub bulk_window_bytes: u32,
    /// How long after a confirmed beat a child may call its state current.
    pub lease: Duration,
}

/// One history of a domain and the first stamp committed in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Epoch {
    /// Its name.
    pub history: HistoryId,
    /// The first stamp it may have committed.
    pub first: Stamp,
}

/// Whether `position`, reached in the last of the histories `known`, lies on a line of histories
/// that stands at `through`.
#[must_use]
pub fn is_on_line(known: &[Epoch], position: Stamp, line: &[Epoch], through: Stamp) -> bool {
    let Some(last) = known.last() else {
        return false;
    };
    let Some(place) = line.iter().position(|epoch| epoch.history == last.history) else {
        return false;
    };
    line.get(place + 1).is_none_or(|next| position < next.first) && position <= through
}

/// A domain as a parent presents it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DomainInfo {
    /// Its name.
    pub domain: DomainId,
    /// Its histories, oldest first, the running one last. At most [`EPOCHS_MAX`]; older ones fall
    /// off the front.
    pub epochs: Vec<Epoch>,
}

/// Most histories kept of a domain.
pub const EPOCHS_MAX: usize = 64;

/// A volume as its users see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeInfo {
    /// Its id.
    pub id: VolumeId,
    /// Its domain.
    pub domain: DomainId,
    /// Its name, unique in the origin: 1 to 128 bytes of letters, digits, `-`, `_`, `.`.
    pub name: String,
    /// Bytes of a page: a power of two from 4 KiB to 1 MiB.
    pub page_bytes: u32,
    /// Layout of page 1, which is made with the volume, and where its root object lives (slot 0).
    pub root: PageKind,
    /// The highest version of its pages.
    pub version: Stamp,
    /// Pages that are there.
    pub pages: u64,
    /// Bytes of their images: what it takes of its quota.
    pub bytes: u64,
    /// Most bytes that it may take; none: as many as the store has room for.
    pub quota: Option<u64>,
    /// Bytes free where its store is; none: not known.
    pub room: Option<u64>,
    /// What the asker may do with it; none: not said, by a parent of a version that knows no rights.
    pub right: Option<Right>,
}

/// A change of a volume by an administrator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VolumeChange {
    /// The most bytes that it may take; none: no bound but the store's room.
    Quota(Option<u64>),
    /// Who may do what with it.
    Rights {
        /// In this order; all of them or none.
        edits: Vec<RightsEdit>,
        /// The asker may lose his own right to administer.
        force: bool,
    },
}

/// A volume to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeSpec {
    /// Its id, drawn by the asker, so that a repeated request makes one volume.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Which domain; none: the origin chooses.
    pub domain: Option<DomainId>,
}

/// What a returning child is told of its copies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ResumeAnswer {
    /// Copies with a version above `from` are to be dropped (they belong to a lost branch; none
    /// does unless `from` is below the child's valid-through); of the others all but the pages in
    /// the `stale` lists are exact up to `through`.
    From(Stamp),
    /// No common history: every copy must go.
    Reset,
}

/// Why a parent or child ends a link.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CloseReason {
    /// No protocol version in common.
    #[error(
        "no common protocol version: the parent speaks {parent}, the child {child}; update the older of the two"
    )]
    Version {
        /// What the parent speaks.
        parent: Versions,
        /// What the child said that it speaks.
        child: Versions,
    },
    /// A message that the protocol does not allow here.
    #[error("protocol violation: {0}")]
    Protocol(String),
    /// Bytes that are no message.
    #[error("malformed message: {0}")]
    Malformed(String),
    /// A limit of [`LinkLimits`] was passed.
    #[error("limit passed: {0}")]
    Limit(String),
    /// Nothing was heard for too long.
    #[error("nothing heard for too long")]
    Silent,
    /// Another link of the same process took over, or two processes use one name.
    #[error(
        "another process uses the name {0}; give each process an instance (a relay: a name) of its own"
    )]
    Identity(String),
    /// The child saw commits that this origin does not have: it was restored from an old copy.
    #[error(
        "domain {:016x} was restored from an old copy: this child saw stamp {seen}, the copy goes on after stamp {fork}; restore a later copy, or accept the loss by starting the origin with --accept-fork", .domain.0
    )]
    Forked {
        /// The domain.
        domain: DomainId,
        /// The child's valid-through.
        seen: Stamp,
        /// Where the histories part.
        fork: Stamp,
    },
    /// The parent cannot serve (its store failed, its own parent is gone).
    #[error("out of service: {0}")]
    OutOfService(String),
    /// The process ends.
    #[error("shutting down")]
    Shutdown,
    /// Not allowed.
    #[error("not allowed: {0}")]
    Forbidden(String),
}

/// Why a request failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RequestError {
    /// No volume of that name or id.
    #[error("no volume {0}")]
    NoVolume(String),
    /// The domain is not served here.
    #[error("no domain {0:?}")]
    NoDomain(DomainId),
    /// The volume was deleted, for good. Named by its name or its id.
    #[error("volume {0} was deleted")]
    Deleted(String),
    /// A volume of that name, or that id with another specification, is there.
    #[error("volume {0} exists")]
    Exists(String),
    /// The request makes no sense.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// A page's bytes at the origin are damaged (P9).
    #[error("page {page} is damaged at the origin: {detail}")]
    Damaged {
        /// The page.
        page: PageId,
        /// What is wrong.
        detail: String,
    },
    /// The parent cannot serve now. Of a commit it says nothing: its node may have to be registered anew, and how it
    /// ended may be known.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// No answer within the limit.
    #[error("no answer within the time limit")]
    TimedOut,
    /// Too many requests wait. Of a part of a transaction over several domains its own domain says so alone, and that it
    /// knows of no outcome: the part is given up where the domain that decided has forgotten the transaction (bug 200).
    #[error("too busy: {0}")]
    Busy(String),
    /// Not allowed.
    #[error("not allowed: {0}")]
    Forbidden(String),
    /// The store has no room. Nothing of the request was done, and nothing of it is under way.
    #[error("the store is full: {0}")]
    Full(String),
    /// A right is short.
    #[error("{0}")]
    Denied(Box<Denied>),
}

impl RequestError {
    /// The parent speaks a version that does not know this.
    pub(crate) fn older_parent(parent: u32, needed: u32) -> Self {
        Self::Invalid(format!(
            "this needs protocol version {needed}, and the parent or one above it speaks {parent}: update it"
        ))
    }
}

/// A volume, by name or id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VolumeKey {
    /// By name.
    Name(String),
    /// By id.
    Id(VolumeId),
}

/// Answers a `Beat`: the stream before it held all the parent knew when it handled the beat; and a
/// `Refresh`: it held all the origin knew when the child asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Echo {
    /// The child's clock when it sent the beat.
    pub sent: Instant,
    /// How old the parent's own state was when it handled the beat: zero at an origin.
    pub age: Duration,
    /// A relay measured the age, by its own clock, which may stand still: it is good for leases, whose
    /// bound on clocks is stated, and answers no `Refresh`, which needs none. An origin's echo is not
    /// by a clock, nor one that answers a `Refresh`; of a relay that is older than this none is.
    pub by_clock: bool,
}

/// A message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    // ---- both ways, Control ----
    /// From a child that follows no domain, so has no beats to send: asks whether its parent is
    /// there. The parent answers with the same.
    KeepAlive,
    /// The sender ends the link.
    Goodbye {
        /// Why.
        reason: CloseReason,
    },

    /// About neighbours: between a member of a group and its redirector, or between two members. Not on a
    /// link of a protocol version before 4.
    Group(GroupMessage),
    /// What origins say to each other.
    Origin(OriginMessage),

    // ---- child to parent, Control ----
    /// First message of a link.
    Hello {
        /// Oldest protocol version spoken.
        min_version: u32,
        /// Newest.
        max_version: u32,
        /// Who: the certificate's name, or that, a slash and an instance ([`is_node_name`]).
        name: String,
        /// This process's life.
        boot: BootId,
        /// What.
        role: Role,
    },
    /// "Here is where I was": starts the domain's stream on this link. Sent once a link and domain
    /// by a node; a relay sends one for itself and one for every child that returns.
    Resume {
        /// For the answer.
        request: RequestId,
        /// Which domain.
        domain: DomainId,
        /// Histories the child knows, oldest first; empty when it holds nothing.
        epochs: Vec<Epoch>,
        /// Its valid-through; none when it holds nothing.
        through: Option<Stamp>,
    },
    /// Asks that a boot may commit over this link: once a link and domain by a node, and again
    /// while it is not answered; by a relay for every node below it.
    Register {
        /// Which domain.
        domain: DomainId,
        /// Which boot.
        boot: BootId,
        /// Whose: the name of the node. A relay vouches for it.
        name: String,
        /// The node's process, as in its `Hello`.
        life: BootId,
        /// The domain may not know it yet: it never was answered `Registered`. Otherwise it is
        /// not made anew: a repeated commit could be done twice.
        fresh: bool,
    },
    /// A relay's: the node of this name is there no longer.
    Left {
        /// Which.
        name: String,
    },
    /// Asks for pages. Registers the child for them (rule 10).
    Fetch {
        /// For the answers.
        request: RequestId,
        /// Which domain.
        domain: DomainId,
        /// Which pages.
        pages: Vec<PageAsk>,
        /// Nobody waits: answer after demand fetches.
        prefetch: bool,
    },
    /// These pages are held no longer (rules 2, 7).
    Evicted {
        /// Which domain.
        domain: DomainId,
        /// Which pages.
        pages: Vec<PageId>,
    },
    /// Part of the list of all pages held, sent after a resume; with `done` the parent may narrow
    /// the child's registration to what it has gathered (rule 17).
    Holding {
        /// Which domain.
        domain: DomainId,
        /// Some pages held.
        pages: Vec<PageId>,
        /// Whether the list is complete.
        done: bool,
    },
    /// Outcomes of this boot up to `upto` have been received, but for those that are `open`. With the greatest number
    /// there is, and none open, the node says that it ends: it commits nothing more under this boot.
    Confirm {
        /// Which domain.
        domain: DomainId,
        /// Whose.
        boot: BootId,
        /// The last sequence confirmed.
        upto: u64,
        /// Those that are not, ascending, none above `upto`; at most [`OPEN_MAX`]. None to a parent of a protocol version
        /// before 7.
        open: Vec<u64>,
    },
    /// Asks for page numbers, for good.
    AllocateIds {
        /// For the answer.
        request: RequestId,
        /// Which volume's.
        volume: VolumeId,
        /// How many, in one run.
        count: u64,
    },
    /// Asks for a volume.
    OpenVolume {
        /// For the answer.
        request: RequestId,
        /// Which.
        key: VolumeKey,
    },
    /// Asks for all volumes, those after `after` in order of names.
    ListVolumes {
        /// For the answer.
        request: RequestId,
        /// The last name seen, or empty.
        after: String,
    },
    /// Makes a volume.
    CreateVolume {
        /// For the answer.
        request: RequestId,
        /// What.
        spec: VolumeSpec,
    },
    /// Changes a volume. Not to a parent of protocol version 1.
    ChangeVolume {
        /// For the answer.
        request: RequestId,
        /// Which. By id: repeated, it must not meet another one of that name.
        volume: VolumeId,
        /// How.
        change: VolumeChange,
    },
    /// Deletes a volume, for good. Since protocol version 3.
    DeleteVolume {
        /// For the answer.
        request: RequestId,
        /// Which. By id: repeated, it must not meet another one of that name.
        volume: VolumeId,
    },
    /// Asks who may do what with a volume. Not to a parent of a protocol version before 3.
    AskRights {
        /// For the answer.
        request: RequestId,
        /// Which.
        volume: VolumeId,
    },
    /// A relay's: what a node below asks: `Resume`, `Fetch`, or a message about ids and volumes. Its
    /// rights are looked at, and the relay's. Not to a parent of a protocol version before 3, which
    /// takes all for the relay's own.
    For {
        /// The name of the node. A relay vouches for it.
        name: String,
        /// What it asks.
        message: Box<Message>,
    },
    /// Asks for a part of a volume's pages, as the origin has them. Registers nobody for them, and
    /// passes relays as it is. Not to a parent of protocol version 2.
    CopyPages {
        /// For the answer.
        request: RequestId,
        /// What.
        ask: CopyAsk,
    },
    /// Keep-alive and age: answered by an `Echo` in the stream.
    Beat {
        /// Which domain.
        domain: DomainId,
        /// The child's clock.
        sent: Instant,
    },
    /// Precedes the `Beat` of the same instant: the child wants the origin's own state, not the
    /// parent's. A relay asks above for it, by a beat that it sends after this came, and echoes the
    /// child's beat, with no age and not by its clock, when it is answered. From children of a version before 7 it
    /// comes after the beat, which is echoed at once too, with the relay's age. An origin's
    /// echo says all. A relay that is older than this message ignores it: the child then waits
    /// until a later beat confirms a state that is new enough.
    Refresh {
        /// Which domain.
        domain: DomainId,
        /// The child's clock, as in the beat.
        sent: Instant,
    },
    /// Bytes of a lane that the child has taken in and that may be sent anew.
    Credit {
        /// `Stream` or `Bulk`.
        lane: Lane,
        /// How many.
        bytes: u32,
    },

    // ---- child to parent, Bulk ----
    /// Asks for a commit.
    Commit {
        /// Which domain.
        domain: DomainId,
        /// What.
        commit: CommitRequest,
    },

    // ---- parent to child, Control ----
    /// Answers `Hello`.
    Welcome {
        /// The version both speak.
        version: u32,
        /// The parent's name.
        name: String,
        /// The parent's clock, for people.
        time: WallTime,
        /// The link's bounds.
        limits: LinkLimits,
        /// All domains to be had here.
        domains: Vec<DomainInfo>,
    },
    /// The boot may commit.
    Registered {
        /// Which domain.
        domain: DomainId,
        /// Which boot.
        boot: BootId,
    },
    /// The boot may not commit over this link (any more).
    Unregistered {
        /// Which domain.
        domain: DomainId,
        /// Which boot.
        boot: BootId,
        /// Why.
        why: NoBoot,
    },
    /// How a commit ended.
    Committed {
        /// Which domain.
        domain: DomainId,
        /// Which commit.
        id: CommitId,
        /// How.
        outcome: Outcome,
        /// The history that a committed one's stamp is of: its stream may not be there yet, and a
        /// stamp without its history says nothing (rule 16).
        history: HistoryId,
    },
    /// A commit could not be taken on now; nothing is known to be done; ask again with the same id.
    CommitDeferred {
        /// Which domain.
        domain: DomainId,
        /// Which commit.
        id: CommitId,
        /// Why.
        error: RequestError,
        /// It was taken on, or passed on: what was sent may be under way yet, and be done, though nobody is told. Of one
        /// that was not, nothing is done by what was sent. A parent of a protocol version before 7 does not say.
        passed: bool,
    },
    /// Answers `AllocateIds`.
    Ids {
        /// Which request.
        request: RequestId,
        /// The history in which they are given: a commit that makes pages with them names it.
        history: HistoryId,
        /// The numbers.
        range: IdRange,
    },
    /// Answers `OpenVolume`, `CreateVolume` and `ChangeVolume`.
    Volume {
        /// Which request.
        request: RequestId,
        /// The volume.
        info: VolumeInfo,
    },
    /// Answers `DeleteVolume`: the deletion is durable.
    VolumeDeleted {
        /// Which request.
        request: RequestId,
        /// The volume.
        volume: VolumeId,
    },
    /// Answers `ListVolumes`.
    Volumes {
        /// Which request.
        request: RequestId,
        /// Some volumes, ascending by name.
        volumes: Vec<VolumeInfo>,
        /// Whether there are more.
        more: bool,
    },
    /// Answers `AskRights`.
    Rights {
        /// Which request.
        request: RequestId,
        /// What was said of the volume.
        rights: Rights,
        /// What the origin says of all its volumes.
        access: Access,
    },
    /// A request failed: `Fetch`, `AllocateIds`, `Resume`, `CopyPages`, volumes.
    Failed {
        /// Which request.
        request: RequestId,
        /// The pages of a `Fetch` that it failed for; none: the request as a whole failed, for all
        /// its pages not yet answered.
        pages: Vec<PageId>,
        /// Why.
        error: RequestError,
    },

    // ---- parent to child, Stream ----
    /// Answers `Resume`, in the stream: pages named here and in the parts before it (same request)
    /// changed after `from`; with `done` valid-through becomes `through`, which is this link's
    /// stream position.
    Resumed {
        /// Which request.
        request: RequestId,
        /// Which domain.
        domain: DomainId,
        /// Its histories now.
        epochs: Vec<Epoch>,
        /// What holds of the copies.
        answer: ResumeAnswer,
        /// Pages changed.
        stale: Vec<PageId>,
        /// The stamp up to which the answer tells all.
        through: Stamp,
        /// The origin's wall clock.
        time: WallTime,
        /// Whether this was the last part.
        done: bool,
    },
    /// Raises valid-through from `from` to `through`.
    Advance {
        /// Which domain.
        domain: DomainId,
        /// The child's valid-through before: a mismatch is a protocol violation.
        from: Stamp,
        /// And after.
        through: Stamp,
        /// The origin's wall clock when `through` was current.
        time: WallTime,
        /// Changes in (from, through] to pages the child is registered for, ascending.
        changes: Vec<Change>,
        /// Pages changed in (from, through] of which no detail is kept any more.
        stale: Vec<PageId>,
        /// The newest beat whose state this advance completes.
        echo: Option<Echo>,
    },
    /// The domain's history went on under a new name without loss (the origin restarted).
    History {
        /// Which domain.
        domain: DomainId,
        /// Its histories now.
        epochs: Vec<Epoch>,
    },

    /// Who may do what with a volume from here on: to a node its own right alone. A node is told when
    /// its right changes, and before anything is withheld from it; a relay is told of every volume that
    /// not everybody may do everything with. Not to a child of a protocol version before 3.
    VolumeRights {
        /// Whose.
        domain: DomainId,
        /// Which.
        volume: VolumeId,
        /// What holds.
        rights: Effective,
    },

    // ---- parent to child, Bulk ----
    /// Answers some pages of a `Fetch`. Every page asked for is answered once.
    Pages {
        /// Which request.
        request: RequestId,
        /// Which domain.
        domain: DomainId,
        /// The pages.
        pages: Vec<PageAnswer>,
    },
    /// Answers `CopyPages`.
    Copied {
        /// Which request.
        request: RequestId,
        /// The part.
        answer: CopyAnswer,
    },
}

impl Message {
    /// The domain that a message of a parent is about, where only the parent from which it is had may send it.
    pub(crate) fn only_from_its_parent(&self) -> Option<DomainId> {
        match self {
            Self::Committed { domain, .. }
            | Self::CommitDeferred { domain, .. }
            | Self::Resumed { domain, .. }
            | Self::Advance { domain, .. }
            | Self::History { domain, .. }
            | Self::VolumeRights { domain, .. }
            | Self::Pages { domain, .. } => Some(*domain),
            Self::Group(
                GroupMessage::Pointed { domain, .. }
                | GroupMessage::Update { domain, .. }
                | GroupMessage::Help { domain, .. },
            ) => Some(*domain),
            _ => None,
        }
    }

    /// The protocol version that brought a request: on a link of an earlier one it is not sent up. (What has to be kept
    /// from older children and members is decided where it is made.)
    #[must_use]
    pub fn since(&self) -> u32 {
        match self {
            Self::ChangeVolume { change: VolumeChange::Rights { .. }, .. }
            | Self::AskRights { .. }
            | Self::For { .. }
            | Self::VolumeRights { .. } => 3,
            Self::ChangeVolume { .. } => 2,
            Self::DeleteVolume { .. } | Self::VolumeDeleted { .. } => 3,
            Self::CopyPages { .. } | Self::Copied { .. } => 3,
            Self::Commit { commit, .. } if commit.across.is_some() => ACROSS_SINCE,
            Self::Commit { commit, .. } if commit.restores() => RESTORES_SINCE,
            Self::Confirm { open, .. } if !open.is_empty() => OPEN_SINCE,
            Self::Group(_) => GROUPS_SINCE,
            Self::Origin(_) => ORIGINS_SINCE,
            _ => 1,
        }
    }

    /// Whether a relay may ask it for a node below ([`Message::For`]).
    #[must_use]
    pub fn is_for_somebody(&self) -> bool {
        matches!(
            self,
            Self::Resume { .. }
                | Self::Fetch { .. }
                | Self::AllocateIds { .. }
                | Self::OpenVolume { .. }
                | Self::ListVolumes { .. }
                | Self::CreateVolume { .. }
                | Self::ChangeVolume { .. }
                | Self::DeleteVolume { .. }
                | Self::CopyPages { .. }
                | Self::AskRights { .. }
        )
    }

    /// The lane it travels in.
    #[must_use]
    pub fn lane(&self) -> Lane {
        match self {
            Self::Goodbye { .. }
            | Self::KeepAlive
            | Self::Hello { .. }
            | Self::Resume { .. }
            | Self::Register { .. }
            | Self::Left { .. }
            | Self::Fetch { .. }
            | Self::Evicted { .. }
            | Self::Holding { .. }
            | Self::Confirm { .. }
            | Self::AllocateIds { .. }
            | Self::OpenVolume { .. }
            | Self::ListVolumes { .. }
            | Self::CreateVolume { .. }
            | Self::ChangeVolume { .. }
            | Self::DeleteVolume { .. }
            | Self::AskRights { .. }
            | Self::For { .. }
            | Self::CopyPages { .. }
            | Self::Beat { .. }
            | Self::Refresh { .. }
            | Self::Credit { .. }
            | Self::Welcome { .. }
            | Self::Registered { .. }
            | Self::Unregistered { .. }
            | Self::Committed { .. }
            | Self::CommitDeferred { .. }
            | Self::Ids { .. }
            | Self::Volume { .. }
            | Self::VolumeDeleted { .. }
            | Self::Volumes { .. }
            | Self::Rights { .. }
            | Self::Origin(_)
            | Self::Failed { .. } => Lane::Control,
            Self::Group(message) => message.lane(),
            Self::Resumed { .. }
            | Self::Advance { .. }
            | Self::History { .. }
            | Self::VolumeRights { .. } => Lane::Stream,
            Self::Commit { .. } | Self::Pages { .. } | Self::Copied { .. } => Lane::Bulk,
        }
    }
}
