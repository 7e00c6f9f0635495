//! What can go wrong for a user of the library.

use crate::tls::TlsError;
use larder_core::cache::{Line, TransactionError};
use larder_core::commit::Abort;
use larder_core::id::{CommitId, DomainId, HistoryId, ObjectId, PageId, Stamp};
use larder_core::message::{CloseReason, RequestError};
use larder_core::rights::Denied;
use std::time::Duration;

/// A result of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong for a user of the library. Every wait has a limit, so every call ends in a
/// result or in one of these.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something the transaction read was changed by another before it could commit. Nothing of
    /// it was done. [`crate::client::Session::transact`] runs it again by itself, and returns
    /// this when its attempts or its time are used up.
    #[error("conflict, after {attempts} attempt(s): {reason}")]
    Conflict {
        /// How often it was tried.
        attempts: u32,
        /// What conflicted at the last attempt.
        reason: String,
    },
    /// The cache's state is older than the session allows, and the parent could not be asked.
    #[error("the cached state is {}", age_text(.age))]
    Stale {
        /// How old; none: nothing was ever confirmed.
        age: Option<Duration>,
    },
    /// The parent, or the store behind it, cannot serve now.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// Whether the commit was done cannot be told yet: it was sent, and no answer came within the
    /// limit. It may have been done, or be done later, at most once: the node goes on asking.
    ///
    /// Do not simply run the transaction again: then it may be done twice. Instead
    /// - ask for its outcome, as often as you like, with [`crate::client::Session::outcome`], as
    ///   long as this node lives; or
    /// - write something that tells it apart, such as an object of a new page or a number of your
    ///   own beside what is changed, and look for it. As long as the outcome is not known "not
    ///   there" means "not yet", unless you change in the same transaction something that the one
    ///   in doubt had read: if that comes after it, it conflicts and is not done.
    ///
    /// None: the node was shut down, or is stuck, before it could say which commit it is. Then only
    /// the second way is left, as it is in another process.
    #[error("the outcome of the commit is not known{}", doubt_text(.0))]
    OutcomeUnknown(Option<InDoubt>),
    /// The object was deleted, or its slot holds a later object.
    #[error("object {} slot {} generation {} is gone", .0.page, .0.slot.0, .0.generation.0)]
    Gone(ObjectId),
    /// The page is not there, or has the other layout.
    #[error("page {0} is not there, or not of that kind")]
    NoPage(PageId),
    /// The page has no room for the write.
    #[error("page {0} is full")]
    PageFull(PageId),
    /// The origin's store has no room. Nothing was done.
    #[error("the origin's store is full: {0}")]
    StoreFull(String),
    /// The volume's quota does not allow it. Nothing was done; what frees or shrinks is taken.
    #[error(
        "volume {volume} would pass its quota of {limit} bytes: it takes {used}, and this adds {more}; remove something, or ask an administrator for `larder volume quota {volume}`"
    )]
    QuotaPassed {
        /// The volume's name.
        volume: String,
        /// Its quota in bytes.
        limit: u64,
        /// What it takes.
        used: u64,
        /// What would be added.
        more: u64,
    },
    /// No parent took the commit on within the limit, or it could not be sent. Nothing was done, nor will be: do it again.
    #[error("the commit is not done: {0}")]
    NotDone(String),
    /// No answer within the limit.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// The origin's history forked below what this process has seen: it was restored from an old
    /// copy. Or another history has begun since the session did something there of which no stamp was told, and nobody
    /// can tell whether a restore took it (decision 0035). The session is over.
    #[error("the history of domain {:016x} forked: {detail}", .domain.0)]
    HistoryForked {
        /// The domain.
        domain: DomainId,
        /// What is known of it.
        detail: String,
    },
    /// The snapshot's state is no longer held. Begin a new one.
    #[error("the snapshot is too old: its state is no longer held")]
    SnapshotTooOld,
    /// A write in a read-only transaction or a snapshot.
    #[error("the transaction is read-only")]
    ReadOnly,
    /// The transaction is over its limits.
    #[error("the transaction is too large: {0}")]
    TooLarge(String),
    /// The transaction has been committed or aborted already.
    #[error("the transaction is over")]
    Finished,
    /// No volume of that name or id.
    #[error("no volume {0}")]
    NoVolume(String),
    /// The volume was deleted, for good. By its name or its id.
    #[error("volume {0} was deleted")]
    VolumeDeleted(String),
    /// A volume of that name is there.
    #[error("volume {0} exists")]
    Exists(String),
    /// The call makes no sense.
    #[error("invalid: {0}")]
    Invalid(String),
    /// A page's bytes are damaged at the origin.
    #[error("page {page} is damaged at the origin: {detail}")]
    Damaged {
        /// Which.
        page: PageId,
        /// How.
        detail: String,
    },
    /// Not allowed.
    #[error("not allowed: {0}")]
    Forbidden(String),
    /// A right of the volume is short.
    #[error(transparent)]
    Denied(Box<Denied>),
    /// The parent refuses this node, in a way that waiting does not mend.
    #[error("refused by the parent: {0}")]
    Refused(CloseReason),
    /// A certificate does not do: names the file and the remedy.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// There is nothing to be had where a member of a group was to listen for neighbours.
    #[error(
        "cannot listen for neighbours at {address}: {detail}; give group.listen (--group-listen) another address, or port 0 for any"
    )]
    Listen {
        /// Where.
        address: String,
        /// The system's words.
        detail: String,
    },
    /// The node was shut down.
    #[error("the node has been shut down")]
    ShutDown,
}

/// A commit whose outcome is not known. [`crate::client::Session::outcome`] asks for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InDoubt {
    /// Its domain; of a transaction over several, the one that decides.
    pub domain: DomainId,
    /// Its id, which is also in the origin's log. Ids count by domain: two domains may have
    /// commits of the same.
    pub commit: CommitId,
    /// Nobody will be told any more: the domain has forgotten this node, which was cut off for too
    /// long, or this node has forgotten the commit.
    pub lost: bool,
    /// What its stamps are stamps of, by domain.
    pub(super) lines: Vec<SentPart>,
}

/// What was counted on in a domain when a part was sent there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SentPart {
    pub(super) domain: DomainId,
    pub(super) line: Line,
    /// Where its reads held.
    pub(super) checked: Stamp,
    /// In which it writes, if it does.
    pub(super) writes_in: Option<HistoryId>,
}

impl std::fmt::Display for InDoubt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let CommitId { boot, sequence } = self.commit;
        write!(f, "commit {boot}/{sequence} of domain {:016x}", self.domain.0)?;
        f.write_str(match self.lost {
            true => ", which will not be told any more",
            false => "; the node goes on asking",
        })
    }
}

fn doubt_text(doubt: &Option<InDoubt>) -> String {
    match doubt {
        Some(doubt) => format!(": {doubt}"),
        None => ": the node ended, or is stuck".into(),
    }
}

fn age_text(age: &Option<Duration>) -> String {
    match age {
        Some(age) => format!("{age:?} old, which is more than the session allows"),
        None => "not confirmed by the parent yet".into(),
    }
}

impl Error {
    /// What a session has seen of a domain belongs to a line that is no more.
    pub(super) fn lost(domain: DomainId) -> Self {
        let detail = "the session has seen commits that are not in it".into();
        Self::HistoryForked { domain, detail }
    }

    /// Whether running the transaction again may succeed.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Conflict { .. } | Self::SnapshotTooOld)
    }
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Self {
        match error {
            RequestError::NoVolume(name) => Self::NoVolume(name),
            RequestError::Deleted(name) => Self::VolumeDeleted(name),
            RequestError::NoDomain(domain) => {
                Self::Unavailable(format!("domain {:016x} is not served here", domain.0))
            }
            RequestError::Exists(name) => Self::Exists(name),
            RequestError::Invalid(what) => Self::Invalid(what),
            RequestError::Damaged { page, detail } => Self::Damaged { page, detail },
            RequestError::Unavailable(what) | RequestError::Busy(what) => Self::Unavailable(what),
            RequestError::TimedOut => Self::TimedOut(Duration::ZERO),
            RequestError::Forbidden(what) => Self::Forbidden(what),
            RequestError::Full(what) => Self::StoreFull(what),
            RequestError::Denied(denied) => Self::Denied(denied),
        }
    }
}

impl From<Abort> for Error {
    fn from(abort: Abort) -> Self {
        match abort {
            Abort::NoVolume(volume) => Self::NoVolume(volume.to_string()),
            Abort::Deleted(volume) => Self::VolumeDeleted(volume.to_string()),
            Abort::TooLarge(what) => Self::TooLarge(what.into()),
            Abort::Lost(page) => Self::Damaged { page, detail: abort.to_string() },
            Abort::Quota { volume: _, name, limit, used, more } => {
                Self::QuotaPassed { volume: name, limit, used, more }
            }
            Abort::Denied(denied) => Self::Denied(denied),
            // What the transaction wrote fitted the state it saw: the origin's is another one.
            Abort::Conflict(_)
            | Abort::Gone { .. }
            | Abort::BadPage(_)
            | Abort::StaleNumber(_)
            | Abort::PageFull(_)
            | Abort::BadWrite(_)
            | Abort::History => Self::Conflict { attempts: 1, reason: abort.to_string() },
        }
    }
}

impl From<TransactionError> for Error {
    fn from(error: TransactionError) -> Self {
        match error {
            TransactionError::NoVolume(volume) => Self::NoVolume(volume.to_string()),
            TransactionError::NotAttached(_) => Self::Unavailable(error.to_string()),
            TransactionError::ReadOnly => Self::ReadOnly,
            TransactionError::TooLarge(what) => Self::TooLarge(what.into()),
            TransactionError::TooOld(age) => Self::Stale { age },
            TransactionError::Gone(object) => Self::Gone(object),
            TransactionError::BadPage(page) => Self::NoPage(page),
            TransactionError::PageFull(page) => Self::PageFull(page),
            TransactionError::BadWrite(_) => Self::Invalid(error.to_string()),
            TransactionError::Damaged(object) => {
                Self::Damaged { page: object.page, detail: error.to_string() }
            }
        }
    }
}
