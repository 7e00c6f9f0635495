//! The origin's settings and what it starts from.

use crate::downlink::DownlinkConfig;
use crate::id::HistoryId;
use crate::machine::Faults;
use crate::message::PAGES_PER_MESSAGE_MAX;
use crate::record::{Apart, DomainMeta, LogRecord, LostApart, Lsn};
use crate::rights::Access;
use crate::time::Duration;

/// The origin's settings. All byte counts are per domain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OriginConfig {
    /// Links down.
    pub downlink: DownlinkConfig,
    /// The names of the origins whose domains may be in a transaction with those here (decision 0038). Default: none.
    pub peers: Vec<String>,
    /// Bytes of clean pages kept in memory. Default: 256 MiB.
    pub page_cache_bytes: usize,
    /// Bytes of changed, not yet installed pages beyond which new commits wait. Default: 256 MiB.
    pub dirty_bytes_max: usize,
    /// Bytes of changed pages at which installing begins. Default: 32 MiB.
    pub install_bytes: usize,
    /// A changed page is installed at the latest about this long after. Default: 2 s.
    pub install_interval: Duration,
    /// Most pages in one install batch. Default: 1024.
    pub install_pages_max: usize,
    /// Most pages of a deleted volume that one step forgets. Default: 4096.
    pub forget_pages_max: usize,
    /// Most log records in one append. Default: 1024.
    pub append_records_max: usize,
    /// Bytes of writes at which an append is full. Default: 8 MiB (one commit may be larger).
    pub append_bytes_max: usize,
    /// Most pages that one commit may write, and about as many one append. Default: 16 384.
    pub commit_pages_max: usize,
    /// Most commits that wait for pages or for room in an append, and most answers that wait for
    /// one; a further commit is answered `Busy`. Default: 4096.
    pub waiting_commits_max: usize,
    /// Bytes of commits that wait; a further one is answered `Busy`. Default: 128 MiB.
    pub waiting_bytes_max: usize,
    /// Bytes of pages kept in memory for commits that wait; a further one that needs pages loaded
    /// waits in line, with half of all that may wait, and for three times `wait_max` at most. Default: 256 MiB (one
    /// commit may need more).
    pub pinned_bytes_max: usize,
    /// Most loads of pages from the page engine under way. Default: 256.
    pub loads_max: usize,
    /// Most loads from the change index under way. Default: 64.
    pub index_loads_max: usize,
    /// Most changed pages that one load from the change index brings, and one look at those not installed:
    /// at most as many as a message holds. Default: 4096.
    pub index_part_max: usize,
    /// How long a commit, a fetch or a resume waits for the store or for its turn before it is
    /// answered with an error. Default: 20 s.
    pub wait_max: Duration,
    /// Log records after which what is prepared, and not decided yet, is logged once more, so that it keeps back
    /// little of the log. Default: 4096.
    pub logged_again: u64,
    /// Entries (page and slot) of the table of recent writes. Default: 262 144.
    pub recent_writes_max: usize,
    /// Most boots whose outcomes are kept. Default: 65 536.
    pub boots_max: usize,
    /// Most boots of one certificate, so that nobody fills the table; beyond it the longest
    /// unheard of its own that is not connected is forgotten. Default: 4096.
    pub boots_per_name_max: usize,
    /// A boot not heard of for this long may be forgotten when there are too many. Default: 1 h.
    pub boot_forget_after: Duration,
    /// Most volumes. Default: 65 536.
    pub volumes_max: usize,
    /// Volumes that one step looks at for lists of volumes; commits wait behind it. Default: 4096.
    pub list_looks_max: usize,
    /// Most page numbers given in one answer. Default: 16 777 216, the longest
    /// run of a file.
    pub ids_max: u64,
    /// After an append or install found the store full, the next is tried after this long.
    /// Default: 1 s.
    pub full_retry: Duration,
    /// Bytes of changes kept apart from pages that cannot be read. Beyond it the log keeps such
    /// changes, and is not trimmed past them. Default: 64 MiB.
    pub apart_bytes_max: usize,
    /// Who may do what with volumes of which nothing is said, and who may do everything. Default:
    /// everybody may do everything.
    pub access: Access,
    /// Most parts of copies that are being made ready at once; a further one is answered `Busy`.
    /// Default: 16.
    pub copies_max: usize,
    /// Most states kept for copies at once; of whoever has more than his share one makes room for
    /// another's, else a further one is answered `Busy`. Default: 8.
    pub pins_max: usize,
    /// Bytes of page images kept for copies, since they changed meanwhile; beyond it a state that
    /// nobody asks for, else the one that needs most of them, is given up. Default: 256 MiB.
    pub pinned_copy_bytes_max: usize,
    /// A state that nobody asked for during this time is given up. Default: 60 s.
    pub pin_idle_max: Duration,
    /// A state is kept for this long at most. Default: 30 min.
    pub pin_age_max: Duration,
    /// The operator accepts that this origin was restored from an old copy: children that saw
    /// commits it does not have are answered from the fork, and other origins hear it again. Default: false.
    pub accept_fork: bool,
    /// Planted faults.
    pub faults: Faults,
}

impl Default for OriginConfig {
    fn default() -> Self {
        Self {
            downlink: DownlinkConfig { name: "origin".into(), ..DownlinkConfig::default() },
            peers: Vec::new(),
            page_cache_bytes: 256 << 20,
            dirty_bytes_max: 256 << 20,
            install_bytes: 32 << 20,
            install_interval: Duration::from_secs(2),
            install_pages_max: 1024,
            forget_pages_max: 4096,
            append_records_max: 1024,
            append_bytes_max: 8 << 20,
            commit_pages_max: 16_384,
            waiting_commits_max: 4096,
            waiting_bytes_max: 128 << 20,
            pinned_bytes_max: 256 << 20,
            loads_max: 256,
            index_loads_max: 64,
            index_part_max: PAGES_PER_MESSAGE_MAX,
            wait_max: Duration::from_secs(20),
            logged_again: 4096,
            recent_writes_max: 262_144,
            boots_max: 65_536,
            boots_per_name_max: 4096,
            boot_forget_after: Duration::from_secs(3600),
            volumes_max: 65_536,
            list_looks_max: 4096,
            ids_max: 1 << 24,
            full_retry: Duration::from_secs(1),
            apart_bytes_max: 64 << 20,
            access: Access::default(),
            copies_max: 16,
            pins_max: 8,
            pinned_copy_bytes_max: 256 << 20,
            pin_idle_max: Duration::from_secs(60),
            pin_age_max: Duration::from_secs(30 * 60),
            accept_fork: false,
            faults: Faults::NONE,
        }
    }
}

/// What a domain starts from, as its store recovered and synced it (rule 14).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecoveredDomain {
    /// The page engine's metadata. For a new domain: the default with its `domain` set.
    pub meta: DomainMeta,
    /// What the page engine keeps apart from pages that could not be read, or could not be read of it.
    pub apart: Vec<Result<Apart, LostApart>>,
    /// The log's records after `meta.installed_lsn`, ascending without gaps.
    pub records: Vec<(Lsn, LogRecord)>,
    /// The new history's name: random, drawn at this start (rule 16).
    pub history: HistoryId,
}

/// Why an origin cannot start from what its stores hold.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RecoverError {
    /// Log records are missing.
    #[error("log record {expected:?} is missing: found {found:?}")]
    Gap {
        /// The next number.
        expected: Lsn,
        /// What came.
        found: Lsn,
    },
    /// Stamps of the log do not follow each other.
    #[error("stamp {expected} is missing: found {found}")]
    Stamp {
        /// The next stamp.
        expected: crate::id::Stamp,
        /// What came.
        found: crate::id::Stamp,
    },
    /// Two domains claim one volume or one name.
    #[error("two domains hold {0}")]
    Twice(String),
    /// A commit writes to a volume that is not there.
    #[error("the log writes to volume {0}, which is not there")]
    NoVolume(crate::id::VolumeId),
    /// The metadata of the pages tells of commits that the log does not have.
    #[error(
        "volume {volume} was installed at stamp {version} and the log ends at {durable}: its newest records are lost; restore log and pages from one backup"
    )]
    Behind {
        /// A volume with such commits.
        volume: crate::id::VolumeId,
        /// Its version in the metadata.
        version: crate::id::Stamp,
        /// The last stamp of the log.
        durable: crate::id::Stamp,
    },
}
