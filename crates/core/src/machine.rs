//! The shape of every state machine, and the inputs and outputs they share.
//!
//! A machine is fed inputs and asked for outputs; it owns no clock, thread, socket or file. Call
//! `handle` for every input, `handle_timeout` when `next_timeout` has come, and carry out the
//! outputs in their order. The control and stream lanes of a link are FIFO queues and each store is
//! one; across queues, and among bulk messages, nothing is assumed. What depends on durability is withheld until the store's answer is handled.

use crate::id::LinkId;
use crate::message::{CloseReason, Message, Role};
use crate::time::Instant;

/// A state machine.
pub trait Machine {
    /// What it is told.
    type Input;
    /// What it asks for: plain comparable data.
    type Output;

    /// Takes one input.
    fn handle(&mut self, now: Instant, input: Self::Input, out: &mut Vec<Self::Output>);
    /// To be called when `next_timeout` has come (or any time later).
    fn handle_timeout(&mut self, now: Instant, out: &mut Vec<Self::Output>);
    /// When it next wants `handle_timeout`.
    fn next_timeout(&self) -> Option<Instant>;
    /// Checks whole-state invariants; panics when one is broken. Costs time in proportion to the
    /// state: the simulator calls it now and then.
    fn check(&self);
}

/// What happens on links.
#[derive(Clone, PartialEq, Debug)]
pub enum LinkInput {
    /// A connection to a parent stands; `peer` is the name its certificate proved.
    UpOpened {
        /// Its number.
        link: LinkId,
        /// Which of the parents, counted from 0 in the order of the configuration; 0 of a neighbour.
        parent: u32,
        /// Who is at the other end.
        peer: String,
        /// Its certificate is of the group that this process is in; false where it is in none.
        in_group: bool,
    },
    /// A connection from a child stands; `peer` is the name its certificate proved.
    DownOpened {
        /// Its number.
        link: LinkId,
        /// Who is at the other end.
        peer: String,
        /// What its certificate lets it be.
        role: Role,
        /// Its certificate is of the group that this process is in; false where it is in none.
        in_group: bool,
    },
    /// The connection is gone; nothing more comes from it, and what was sent may be lost.
    Closed {
        /// Its number.
        link: LinkId,
        /// What the other side said, if it said anything.
        reason: Option<CloseReason>,
    },
    /// A message came.
    Received {
        /// From which link.
        link: LinkId,
        /// What.
        message: Message,
        /// Its encoded size, for credits.
        bytes: u32,
    },
}

/// What is asked of links.
#[derive(Clone, PartialEq, Debug)]
pub enum LinkOutput {
    /// Send this.
    Send {
        /// To which link.
        link: LinkId,
        /// What.
        message: Message,
    },
    /// Send `Goodbye` with this reason if it can be done at once, and close.
    Close {
        /// Which link.
        link: LinkId,
        /// Why.
        reason: CloseReason,
    },
}

/// Planted faults: one-line breakages that the simulator must catch. All are off unless a test
/// build of the simulator switches one on; release builds hold no switch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Faults([u128; 2]);

/// One planted fault; the list grows with the protocol. See `docs/planted-faults.md`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Fault {
    /// Rule 1: a change naming an object already read does not doom its reader.
    SkipDoom,
    /// Rule 2: an eviction notice is sent although a running transaction has read the page.
    UnpinnedNotice,
    /// Rule 3: a reader does not check its reads again when valid-through has risen.
    SkipRecheck,
    /// Rule 4: a page is installed though its version is above valid-through.
    InstallAhead,
    /// Rule 5: changes to a page being fetched are not kept for its install.
    ForgetBuffered,
    /// Rule 6: a reply is taken for the newest fetch of the page, whatever its request id.
    IgnoreRequestId,
    /// Rule 7: a request joins a fetch that an eviction notice has followed.
    JoinAcrossNotice,
    /// Rule 8: the lease is checked before the copy is made.
    LeaseBeforeCopy,
    /// Rule 9: an absence is not recorded as a read.
    ForgetAbsence,
    /// Rule 10: a fetch registers its child only when it is answered.
    RegisterLate,
    /// Rule 11: a relay's children are served ahead of its stream.
    HelpOvertakes,
    /// Rule 13: a relay answers "aborted" for a commit whose base is after the change it saw.
    EarlyAnswerWrong,
    /// Rule 14: a commit is acknowledged, and shown, before its sync.
    AcknowledgeEarly,
    /// Rule 14: after a failed sync service goes on.
    IgnoreSyncError,
    /// Rule 15: a repeated commit is validated anew instead of answered from its outcome.
    ForgetOutcome,
    /// Rule 16: a resume from a lost branch is answered as if the histories were one.
    IgnoreFork,
    /// Rule 17: a resume registers only for the pages it names.
    ResumeRegistersNothing,
    /// Rule 17: a resume answers from the change index alone, without commits not yet installed.
    ResumeForgetsUninstalled,
    /// Rule 18: generations are not compared.
    IgnoreGeneration,
    /// Rule 18: after a restart page numbers are given again.
    ReuseIds,
    /// Rule 20: pages are installed without their change index entries.
    SkipIndex,
    /// Rule 2: a resume does not doom transactions that read the pages it names.
    ResumeSparesReaders,
    /// Rule 5: changes kept for pages in flight are let go up to the as-of of any answer, as if
    /// answers came in the order in which they were sent.
    AnswersInOrder,
    /// Rule 8: a process takes its wall clock for one that never runs backwards.
    WallClockAsOwn,
    /// Rule 8: a process uses a clock that stands still while it is suspended.
    ClockStopsAsleep,
    /// Rule 9: looking at all of a page is not recorded as a read.
    ForgetListing,
    /// Rule 14: an answer does not wait until the commit that it reveals is durable.
    RevealEarly,
    /// Rule 14: recovery serves what it read without writing and syncing it again.
    SkipRecoverySync,
    /// Rule 15: outcomes of commits are not recovered from the log.
    LoseOutcomes,
    /// Rule 16: a child past a fork keeps copies of the branch that is lost.
    KeepLostCopies,
    /// P9: the checksum of a log record is not compared.
    IgnoreChecksum,
    /// P9: damage in the log is taken for the end of a write that was torn.
    DamageAsTail,
    /// Names: a domain lets a boot commit for a node of another name than it is registered under.
    BootOfAnyName,
    /// Names: a child may speak for a boot that came over another's link.
    AnothersBoot,
    /// Names, rule 15: a boot that a domain has forgotten is registered anew.
    ExpiredBootAnew,
    /// Names: a relay does not say that a node left.
    LeftUnsaid,
    /// P4, P12: what an outcome told ahead of the stream is not remembered.
    ForgetTold,
    /// P2: what a transaction that writes has read in domains that it does not write is not validated.
    ReadElsewhere,
    /// Rule 14: the commits of an append are acknowledged in another order than that of their stamps.
    AcknowledgeInAnyOrder,
    /// Rule 17: a node sends its page list anew without announcing it.
    ListUnannounced,
    /// Rule 17: a relay narrows its registration without announcing it.
    NarrowUnannounced,
    /// Rule 7: a fetch that is given up is noticed before its answer says that there is such a page.
    NoticeUnanswered,
    /// Rule 8: an echo that is older than the clock confirms the state of the clock's beginning.
    AgeFromZero,
    /// Rule 16: a page may be made with a number that was given in a branch that is lost.
    LostNumbers,
    /// P2: a relay takes the answer to a beat that it had sent before for the answer to a child's
    /// refresh.
    RefreshJoined,
    /// Quotas: a commit that passes its volume's quota is taken.
    QuotaUncounted,
    /// Deletions: a commit to a volume is taken while the volume's deletion is on its way to the log.
    CommitToDeleted,
    /// Deletions: what a deleted volume left is not removed after a restart.
    ForgetRemoval,
    /// Rights: a commit is taken whatever its node may do.
    CommitUnchecked,
    /// Rights: a page is answered whatever the asker may read.
    FetchUnchecked,
    /// Rights: what is asked for somebody below a relay is held against the relay's rights alone.
    RelayAsksForAll,
    /// Rights: nobody is told that a right was taken.
    RevokedUntold,
    /// Copies: a page that changes after the stamp of a pinned copy leaves nothing behind for it.
    PinUnkept,
    /// P4: a transaction begins below what its session has seen or written.
    ForgetFloor,
    /// P7: a parent keeps the link of a child from which nothing comes any more.
    SilentKept,
    /// P10: a request goes on when its user has stopped waiting.
    PatienceForgotten,
    /// P7: pages that wait for credit which was reserved are not served when it is given back.
    ReservedUnserved,
    /// Rest: a commit that was put off goes on counting as a request.
    PutOffCounted,
    /// Rest: pages that were gathered for a request stay when its user stops waiting.
    GatheredKept,
    /// Rest: a commit's writes are kept when the stream has passed them.
    WritesRetained,
    /// Rest: of two snapshots of one stamp three have to end before it leaves the table of those that run.
    SnapshotKept,
    /// Rest: a user who waits for a stamp is not answered when the stream comes to it.
    WaitForgotten,
    /// Rest: a commit that was put off is not sent again.
    PutOffUnsent,
    /// Rest: outcomes that their node has confirmed are forgotten with its next commit only.
    OutcomesKept,
    /// Rest: a node does not say that it does not hold what its commits changed.
    WrittenUntold,
    /// Rest: credit reserved for a part of a copy is not given back when there is none.
    ReservationKept,
    /// Rest: a relay believes a page to be on its way that could not be had.
    FetchingKept,
    /// Copies: a page that changed after the stamp of a pinned copy is given as it is now.
    PinAsNow,
    /// Copies: a page that changed at the very stamp of a pinned copy leaves nothing behind for it.
    PinLosesLast,
    /// Log: recovered changes are applied to an image that has them.
    AppliedAgain,
    /// Relay: it narrows its registration though a child may hold anything.
    NarrowsUnknown,
    /// Log: the directory is not synced when a segment is ready.
    NamesUnsynced,
    /// Own writes: a transaction reads the cache's state of what it has written itself.
    OwnUnread,
    /// Own writes: a transaction that goes back to a savepoint keeps what it has written since.
    RollbackKeeps,
    /// Rule 21: what was read ahead of the stream is not compared with later changes.
    AheadUnvalidated,
    /// Rule 21: a transaction that looked ahead ends before the stream has passed what it saw.
    AheadUnwaited,
    /// Rule 21: what was read as of valid-through, and ahead of it after that, counts as read as of the later.
    AheadReadTwice,
    /// Rights: a commit is refused to who has just the right that it needs.
    RefusedWithRight,
    /// P1: a change of a volume is acknowledged before it is durable.
    ChangedEarly,
    /// Rule 11: a member helps before its valid-through has reached the position that is named.
    HelpUnawaited,
    /// Rule 5: changes that came before a page is pointed are not kept for it.
    PointedForgetsKept,
    /// Groups: a member helps with copies that have holes.
    HolesHelped,
    /// Rights: who is pointed to whom is held against nobody's rights.
    PointsToAll,
    /// Rule 7: a page on its way to a member whose link ends stays on its way.
    TransferOfGone,
    /// Groups: a page that is to come from a neighbour is waited for without a limit.
    TransferUntimed,
    /// Rule 6: a page that comes late from a neighbour is taken for the answer to the newest fetch of it.
    LateHelpTaken,
    /// Rule 10: who is pointed to a neighbour is not registered.
    PointedUnregistered,
    /// Rule 12: of commits under way the oldest is taken for the one that a change names.
    UpdateOfAnother,
    /// Rule 5: a page in flight does not keep a change whose writes came along.
    UpdateSparesFlight,
    /// Groups: writes that neighbours made stay when the stream has passed them.
    UpdatesStay,
    /// Groups: what the redirector keeps of commits stays when its link to the parent is lost.
    UpdatesOfLost,
    /// Failover: of two redirectors the one with the older claim is followed.
    FollowsOlder,
    /// Failover: a redirector goes on as one when another has replaced it.
    LeadsOn,
    /// Failover: a redirector that is gone is followed on.
    DeadIsFollowed,
    /// Failover: who was taken for gone is not told so, and stays out.
    GoneForGood,
    /// Rule 15: a commit in doubt is sent on another link as another commit.
    RepeatedAnew,
    /// Rule 17: pages that a resume names as changed are kept as they are.
    StaleKept,
    /// Rule 18: where the generation of an empty slot was forgotten, generations begin anew.
    GenerationsAnew,
    /// Log: a segment goes although its last record is not installed.
    TrimmedTooFar,
    /// Log: the new name of a segment that is used again is not synced.
    NewNameUnsynced,
    /// Rule 13: a relay rejects commits that may have been sent before.
    EarlyRepeated,
    /// Rule 15: refusals of commits are not recovered from the log.
    LoseRefusals,
    /// Rule 15: a conflict with what was taken back is told without a record.
    TakenBackUnrecorded,
    /// Log: what a torn write left beyond the end is not cleared.
    LeftoversKept,
    /// Rights: a relay passes a commit on in full that it may only ask about.
    DeniedInFull,
    /// Two-phase commit: a participant votes before its record is durable.
    VoteEarly,
    /// Two-phase commit: what is prepared is not recovered from the log.
    PreparedForgotten,
    /// Two-phase commit: decisions are not recovered, and taken for what was given up.
    DecisionForgotten,
    /// Two-phase commit: commits of one domain do not wait for what is prepared.
    NothingBarred,
    /// Rule 19: a coordinator does not wait for its own domain's turn.
    OwnTurnSkipped,
    /// Rule 19: who writes what is prepared with its reads, or its pages, does not wait for it.
    WritesUnbarred,
    /// Two-phase commit: outcomes are confirmed before all parts have theirs.
    OutcomesUnkept,
    /// Two-phase commit: how a transaction ended that was in doubt is forgotten.
    WholeForgotten,
    /// Two-phase commit: no part is ever sent.
    WholesUnsent,
    /// P11: of a commit that comes again it is said that its outcome is forgotten.
    KnownIsExpired,
    /// The origin refuses a write now and then, for no reason.
    RefusedInVain,
    /// Validation: what was read conflicts with any change of its page.
    ConflictByPage,
    /// P8: of a page changed while its install was refused the newer of two first changes is kept, and the log trimmed up
    /// to it.
    InstallFromNewest,
    /// P11: metadata leaves out a boot.
    BootUnlisted,
    /// Two-phase commit: metadata does not say what is decided and not followed yet.
    DecisionsUnlisted,
    /// Rule 19: who leaves before its turn has come stays in the queue for it.
    TurnStays,
    /// P12: an origin tells another what is not durable yet, as if it were.
    PeerToldEarly,
    /// Between origins: a domain that serves again is not said to be there.
    PeersUntold,
    /// P12: what another origin says is heard, whether its line has what it said before or not.
    CopyHeard,
    /// Rule 15: an outcome that its node left open counts as confirmed.
    OpenConfirmed,
    /// Rule 15: metadata does not say which outcomes were left open.
    OpenUnlisted,
    /// Groups: what a copy from a neighbour does not know is taken for known.
    HolesFilled,
    /// P11: a relay says of what was on its way over a line that was lost that it was not passed on.
    LostUnpassed,
}

impl Faults {
    /// None.
    pub const NONE: Self = Self([0; 2]);
    /// Whether any can be planted: only with the `faults` feature.
    pub const COMPILED_IN: bool = cfg!(feature = "faults");

    /// Just this one.
    #[must_use]
    pub fn only(fault: Fault) -> Self {
        let mut bits = [0; 2];
        bits[fault as usize / 128] = 1 << (fault as u8 % 128);
        Self(bits)
    }

    /// Whether `fault` is planted. Always false without the `faults` feature.
    #[must_use]
    #[inline]
    pub fn has(self, fault: Fault) -> bool {
        Self::COMPILED_IN && self.0[fault as usize / 128] & (1 << (fault as u8 % 128)) != 0
    }
}
