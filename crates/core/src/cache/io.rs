//! Inputs and outputs of the cache machine.

use crate::cache::{Awaited, CommitPart, PageCopy};
use crate::commit::{IdRange, Outcome, Read, Write};
use crate::group::Member;
use crate::id::{
    BootId, CommitId, DomainId, HistoryId, LinkId, PageId, RequestId, Stamp, VolumeId,
};
use crate::machine::{LinkInput, LinkOutput};
use crate::message::{
    CopyAnswer, CopyAsk, RequestError, VolumeChange, VolumeInfo, VolumeKey, VolumeSpec,
};
use crate::rights::{Access, Right, Rights};
use crate::time::{Duration, Instant};
use std::sync::Arc;

/// What the cache is told.
#[derive(Clone, PartialEq, Debug)]
pub enum CacheInput {
    /// Of the link to the parent.
    Link(LinkInput),
    /// Of links to neighbours, whoever dialled: their numbers are apart from the parent's.
    Neighbour(LinkInput),
    /// Neighbours reach this node at this address from now on: it joins its group when it is told so.
    /// Ignored by a node that is no member.
    Reachable(String),
    /// A user asks. Ids are the user's; never reused while the machine lives.
    Request {
        /// For the reply.
        id: RequestId,
        /// What.
        op: CacheOp,
        /// When the user stops waiting: answered `TimedOut` then.
        deadline: Instant,
    },
    /// The user waits no longer (dropped its future). A commit goes on all the same.
    Cancel {
        /// Which request.
        id: RequestId,
    },
    /// The node is about to end: its parents are told for which domains it commits nothing more, so that they need
    /// not keep its boot. What it is asked to commit after this goes under another one.
    End,
}

/// What a user may ask.
#[derive(Clone, PartialEq, Debug)]
pub enum CacheOp {
    /// Find a volume and attach its domain. Replied when the domain's stream has begun.
    OpenVolume(VolumeKey),
    /// All volumes.
    ListVolumes,
    /// Make a volume and attach its domain.
    CreateVolume(VolumeSpec),
    /// Change a volume.
    ChangeVolume(VolumeId, VolumeChange),
    /// Delete a volume, for good.
    DeleteVolume(VolumeId),
    /// Who may do what with a volume.
    AskRights(VolumeId),
    /// Bring pages into the cache (those it lacks, or has with holes). Replied with all of them,
    /// or at once with nothing for a prefetch.
    Fetch {
        /// Whose.
        domain: DomainId,
        /// Which; the first is wanted most.
        pages: Vec<PageId>,
        /// Nobody waits for them.
        prefetch: bool,
    },
    /// Commit a transaction.
    Commit {
        /// Of which domain.
        domain: DomainId,
        /// The history in which the reads were checked.
        history: HistoryId,
        /// The valid-through at which the reads were last checked.
        checked: Stamp,
        /// What was read, ascending, without repeats.
        reads: Vec<Read>,
        /// What to write.
        writes: Vec<Write>,
        /// Of the pages that it makes, those of which the numbers were read in it: ascending. They were
        /// given on the line of what was read, whatever numbers this process was given.
        named: Vec<PageId>,
    },
    /// Commit a transaction over several domains: its parts, ascending by domain, 2 to
    /// [`PARTS_MAX`](crate::commit::PARTS_MAX) of them. Its name is the commit of the first domain that it
    /// writes.
    CommitAcross(Vec<CommitPart>),
    /// Wait for the outcome of a commit that an earlier answer left in doubt, or of a transaction over
    /// several domains by its name.
    Outcome {
        /// Of which domain.
        domain: DomainId,
        /// Which commit.
        commit: CommitId,
    },
    /// Page numbers, for good.
    AllocateIds {
        /// Of which volume.
        volume: VolumeId,
        /// How many in one run.
        count: u64,
    },
    /// A part of a volume's pages, as the origin has them: nothing of it is cached. `Busy` and
    /// `Unavailable` pass.
    CopyPages(Box<CopyAsk>),
    /// Wait until valid-through reaches a stamp (a session's floor), or the line is lost that it is
    /// of, or was before: then the answer says nothing of it, and the session learns it at its next begin.
    WaitThrough(Awaited),
    /// Wait until the cache holds the state the origin has now, or later (a round trip).
    Refresh {
        /// Of which domain.
        domain: DomainId,
    },
}

/// What a user is answered.
#[derive(Clone, PartialEq, Debug)]
pub enum CacheReply {
    /// To `OpenVolume`, `CreateVolume`, `ChangeVolume`.
    Volume(VolumeInfo),
    /// To `DeleteVolume`: the deletion is durable.
    Deleted,
    /// To `AskRights`: what was said of the volume, and what the origin says of all.
    Rights(Rights, Access),
    /// To `ListVolumes`.
    Volumes(Vec<VolumeInfo>),
    /// To `Fetch`: the copies, each exact at `through`, in the order asked (empty for a prefetch).
    Fetched {
        /// The domain's valid-through now.
        through: Stamp,
        /// The copies.
        pages: Vec<Arc<PageCopy>>,
    },
    /// To `Commit`, `Outcome`: how it ended, never `Unknown`.
    Outcome(Outcome),
    /// To `CommitAcross`, and to `Outcome` about one: it is committed, in each domain as this stamp,
    /// ascending. What else became of it is told as of a commit.
    Committed(Vec<(DomainId, Stamp)>),
    /// To `Commit`, `CommitAcross`, `Outcome`: it may have been done, or may yet be. An error instead says that it
    /// is not done, and never will be; but for `Busy` to `Outcome`, which says that it was not asked.
    InDoubt {
        /// Which commit: to be asked about with [`CacheOp::Outcome`].
        commit: CommitId,
        /// Nobody will ever be told: the domain has forgotten the boot, or this cache the outcome.
        /// Else the time is up, and the cache goes on asking.
        lost: bool,
    },
    /// To `AllocateIds`.
    Ids(IdRange),
    /// To `CopyPages`.
    Copied(Box<CopyAnswer>),
    /// To `WaitThrough`, `Refresh`: valid-through now; zero where the domain stands nowhere.
    Through(Stamp),
}

/// What the machine tells its process, unasked.
#[derive(Clone, PartialEq, Debug)]
pub enum Notice {
    /// Objects changed (own commits included): kernel caches and watchers must hear of it. Sent
    /// after valid-through was published.
    Changed {
        /// Whose.
        domain: DomainId,
        /// What, per page: whole pages where no detail is known.
        pages: Vec<crate::commit::PageChange>,
    },
    /// A volume that was opened here was deleted: nothing of it will ever be there again. Sent after
    /// `Changed` with the page that stands for it.
    VolumeDeleted {
        /// Of which domain.
        domain: DomainId,
        /// Which.
        volume: VolumeId,
    },
    /// The domain was answered `Reset`: everything may have changed.
    Reset {
        /// Which.
        domain: DomainId,
    },
    /// What this node may do with an open volume is another right now. Less than read: its copies are
    /// gone, and whatever is kept of it elsewhere must go.
    Rights {
        /// Its domain.
        domain: DomainId,
        /// Which.
        volume: VolumeId,
        /// What it may do now.
        right: Right,
    },
    /// The link lease lapsed: nothing may be called current any more.
    LeaseLapsed {
        /// Which.
        domain: DomainId,
    },
    /// A beat was confirmed again after a lapse.
    LeaseRegained {
        /// Which.
        domain: DomainId,
    },
    /// The link was refused in a way that waiting does not mend (identity, version, forked
    /// history, rights): to be shown to the user.
    Refused {
        /// Why.
        reason: crate::message::CloseReason,
    },
}

/// What is asked of the links to neighbours.
#[derive(Clone, PartialEq, Debug)]
pub enum NeighbourOutput {
    /// Connect to one. Asked again while no link to it is greeted.
    Dial(Member),
    /// All who are greeted now, and on which link: pages may be sent to them.
    Reached(Vec<(BootId, LinkId)>),
    /// For figures: so many pages of a fetch came from a neighbour, so long after they were asked for.
    Came {
        /// How many.
        pages: usize,
        /// How long.
        took: Duration,
    },
    /// On a link that stands.
    Link(LinkOutput),
}

/// What the cache asks for.
#[derive(Clone, PartialEq, Debug)]
pub enum CacheOutput {
    /// On the link.
    Link(LinkOutput),
    /// To neighbours.
    Neighbour(NeighbourOutput),
    /// Answer a request.
    Reply {
        /// Which.
        id: RequestId,
        /// The answer.
        result: Result<CacheReply, RequestError>,
    },
    /// Tell the process.
    Notice(Notice),
}
