//! Opens a domain's store, recovers it, and carries out what the origin machine asks of it.
//!
//! The simulator calls [`DomainStore::carry_out`] for every output. A server splits the store: its
//! append thread owns the [`LogHalf`], and any number of threads share the [`PagesHalf`]; the
//! two meet only through the machine. Every call blocks until what it answers is durable.

mod identity;
mod list;
mod real;

pub use list::{LIST_NAME, folder_name, folder_number, read_list, write_list};
pub(crate) use real::parts_at;
pub use real::{PAGES_NAME, RealStore, StoreConfig, domain_at, list_at};

use crate::disk::{Disk, DiskError};
use crate::log::{Log, LogConfig, LogError, Records};
use crate::pages::{Pages, PagesError};
use larder_core::id::{DomainId, PageId};
use larder_core::origin::io::{
    LoadId, LoadKey, Loaded, OriginInput, OriginOutput, StoreFault, WriteId,
};
use larder_core::record::{Apart, DomainMeta, InstallBatch, LogRecord, LostApart, Lsn};
use larder_core::rng::Rng;
use larder_core::wire;

/// Why a domain's store cannot be opened or made.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// No identity file.
    #[error("there is no domain here: check the configured directory")]
    NoDomain,
    /// A domain is there already.
    #[error("domain {:016x} is here already: use another directory", .0.0)]
    Exists(DomainId),
    /// The identity file does not check.
    #[error("the identity file \"domain\" is damaged: restore the domain from a backup")]
    IdentityDamaged,
    /// The identity file is of another time.
    #[error("the identity file \"domain\" has format {found}; this version reads {known}")]
    IdentityFormat {
        /// What it says.
        found: u32,
        /// What is read.
        known: u32,
    },
    /// The list of domains does not check.
    #[error("the list \"domains\" is damaged: restore it from a backup")]
    ListDamaged,
    /// The list of domains is of another time.
    #[error("the list \"domains\" has format {found}; this version reads {known}")]
    ListFormat {
        /// What it says.
        found: u32,
        /// What is read.
        known: u32,
    },
    /// The page engine holds another domain.
    #[error(
        "the page engine holds domain {:016x} and the directory is domain {:016x}'s: put it back where it belongs",
        .found.0, .wanted.0
    )]
    OtherDomain {
        /// What the engine holds.
        found: DomainId,
        /// What was expected.
        wanted: DomainId,
    },
    /// A log record with a good checksum that is no record.
    #[error("log record {} cannot be read: {detail}; use the version that wrote it", .lsn.0)]
    Record {
        /// Its number.
        lsn: Lsn,
        /// What is wrong.
        detail: String,
    },
    /// The page engine is not empty though the directory has no identity file.
    #[error(
        "the page engine holds domain {:016x} and the identity file \"domain\" is missing: restore the domain from a backup",
        .0.0
    )]
    PagesInUse(DomainId),
    /// A file operation failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The page engine.
    #[error(transparent)]
    Pages(#[from] PagesError),
}

/// What a domain was when it was opened, all of it durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recovered {
    /// The metadata of the last install.
    pub meta: DomainMeta,
    /// What is kept apart from pages that could not be read; of some pages it may be damaged.
    pub apart: Vec<Result<Apart, LostApart>>,
    /// The log's records after it, ascending without gaps.
    pub records: Vec<(Lsn, LogRecord)>,
}

/// A domain's store.
#[derive(Debug)]
pub struct DomainStore<D: Disk, P: Pages> {
    log: LogHalf<D>,
    pages: PagesHalf<P>,
}

/// The log of a domain: for one thread.
#[derive(Debug)]
pub struct LogHalf<D: Disk> {
    domain: DomainId,
    log: Log<D>,
}

/// The page engine of a domain: for any number of threads, of which one installs.
#[derive(Debug)]
pub struct PagesHalf<P: Pages> {
    domain: DomainId,
    pages: P,
}

/// The domain of a directory; none: no domain was made there.
///
/// # Errors
/// A damaged identity file; disk errors.
pub fn domain_of<D: Disk>(disk: &D) -> Result<Option<DomainId>, OpenError> {
    identity::read(disk)
}

impl<D: Disk, P: Pages> DomainStore<D, P> {
    /// Makes a domain in a directory, durably. What an unfinished attempt left is replaced. `rng`
    /// draws ids of log segments: seed it apart from any generator whose numbers clients see.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn create(
        disk: D,
        pages: P,
        config: LogConfig,
        domain: DomainId,
        rng: Rng,
    ) -> Result<(Self, Recovered), OpenError> {
        if let Some(found) = identity::read(&disk)? {
            return Err(OpenError::Exists(found));
        }
        if let Some(meta) = pages.meta()? {
            return Err(OpenError::PagesInUse(meta.domain));
        }
        let log = Log::create(disk, config, domain, rng)?;
        identity::write(log.disk(), domain)?;
        let recovered =
            Recovered { meta: empty_meta(domain), apart: Vec::new(), records: Vec::new() };
        Ok((Self::of(domain, log, pages), recovered))
    }

    /// Opens the domain of a directory and recovers it. All that is returned is durable (rule 14).
    ///
    /// # Errors
    /// See [`OpenError`]: nothing is served from a store that does not hang together.
    pub fn open(
        disk: D,
        pages: P,
        config: LogConfig,
        rng: Rng,
    ) -> Result<(Self, Recovered), OpenError> {
        let domain = identity::read(&disk)?.ok_or(OpenError::NoDomain)?;
        let meta = meta_of(&pages, domain)?;
        let lost =
            |(page, error): (PageId, PagesError)| LostApart { page, detail: error.to_string() };
        let apart = pages.apart()?.into_iter().map(|apart| apart.map_err(lost)).collect();
        let from = Lsn(meta.installed_lsn.0 + 1);
        let (log, records) = Log::open(disk, config, domain, rng, from)?;
        let records = decode_records(records)?;
        Ok((Self::of(domain, log, pages), Recovered { meta, apart, records }))
    }

    /// Carries out an output of the origin machine, and returns the input that answers it; none
    /// for one that has no answer. A failed trim shows at the next append.
    pub fn carry_out(&mut self, output: OriginOutput) -> Option<OriginInput> {
        match output {
            OriginOutput::Append { write, records, .. } => {
                let answer = self.log.append(write, &records);
                self.log.maintain();
                Some(answer)
            }
            OriginOutput::TrimLog { through, .. } => {
                self.log.trim(through);
                None
            }
            OriginOutput::Load { load, key, .. } => Some(self.pages.load(load, &key)),
            OriginOutput::Install { write, batch, .. } => Some(self.pages.install(write, &batch)),
            OriginOutput::GiveBack { .. } => {
                // A failure shows at the next install, or costs space only.
                let _kept = self.pages.give_back();
                None
            }
            OriginOutput::Link(_)
            | OriginOutput::InstallsWait { .. }
            | OriginOutput::InstallsGoOn { .. }
            | OriginOutput::RemovalWaits { .. }
            | OriginOutput::RemovalGoesOn { .. }
            | OriginOutput::VolumeRenamed { .. }
            | OriginOutput::PagesUnreadable { .. }
            | OriginOutput::DomainWaits { .. }
            | OriginOutput::DomainServes { .. }
            | OriginOutput::DomainFailed { .. } => None,
        }
    }

    /// The domain.
    #[must_use]
    pub fn domain(&self) -> DomainId {
        self.log.domain
    }

    /// The log's half.
    #[must_use]
    pub fn log(&self) -> &LogHalf<D> {
        &self.log
    }

    /// The page engine's half.
    #[must_use]
    pub fn pages(&self) -> &PagesHalf<P> {
        &self.pages
    }

    /// The two halves, to be used from different threads.
    #[must_use]
    pub fn split(self) -> (LogHalf<D>, PagesHalf<P>) {
        (self.log, self.pages)
    }

    fn of(domain: DomainId, log: Log<D>, pages: P) -> Self {
        Self { log: LogHalf { domain, log }, pages: PagesHalf { domain, pages } }
    }
}

impl<D: Disk> LogHalf<D> {
    /// Carries out `OriginOutput::Append`: the records are durable when it is answered `Ok`.
    pub fn append(&mut self, write: WriteId, records: &[(Lsn, LogRecord)]) -> OriginInput {
        let encoded: Vec<_> =
            records.iter().map(|(lsn, record)| (*lsn, wire::encode_record(record))).collect();
        OriginInput::Appended {
            domain: self.domain,
            write,
            result: self.log.append(&encoded).map_err(log_fault),
        }
    }

    /// Prepares the next segment, a piece at a time; says whether there is more to do. Call it
    /// once after every append when that has been answered, and as often as it says when idle. A
    /// failure shows at the next append.
    pub fn maintain(&mut self) -> bool {
        self.log.maintain().unwrap_or(false)
    }

    /// Carries out `OriginOutput::TrimLog`. A failure shows at the next append.
    pub fn trim(&mut self, through: Lsn) {
        // The log keeps the error and answers it from now on.
        let _kept = self.log.trim(through);
    }

    /// Bytes of the log's files.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        self.log.disk_bytes()
    }

    /// The log itself.
    #[must_use]
    pub fn log(&self) -> &Log<D> {
        &self.log
    }
}

impl<P: Pages> PagesHalf<P> {
    /// Carries out `OriginOutput::Load`.
    pub fn load(&self, load: LoadId, key: &LoadKey) -> OriginInput {
        let result = match *key {
            LoadKey::Page(page) => self.pages.load(page).map(Loaded::Page),
            LoadKey::ChangedAfter { after, limit } => self
                .pages
                .changed_after(after, limit)
                .map(|(entries, more)| Loaded::Changed { entries, more }),
            LoadKey::Removable { volume, after, limit } => {
                self.pages.removable(volume, after, limit).map(Loaded::Removable)
            }
        };
        OriginInput::Loaded { domain: self.domain, load, result: result.map_err(pages_fault) }
    }

    /// Carries out `OriginOutput::Install`: the batch is durable when it is answered `Ok`.
    pub fn install(&self, write: WriteId, batch: &InstallBatch) -> OriginInput {
        OriginInput::Installed {
            domain: self.domain,
            write,
            result: self.pages.install(batch).map_err(pages_fault),
        }
    }

    /// Carries out `OriginOutput::GiveBack`: it may take long, and wants a thread of its own.
    ///
    /// # Errors
    /// What the engine says. Nothing is lost but the space.
    pub fn give_back(&self) -> Result<(), PagesError> {
        self.pages.give_back()
    }

    /// The page engine itself.
    #[must_use]
    pub fn engine(&self) -> &P {
        &self.pages
    }
}

/// The engine's metadata, if it is the domain's.
pub(crate) fn meta_of<P: Pages>(pages: &P, domain: DomainId) -> Result<DomainMeta, OpenError> {
    match pages.meta()? {
        Some(meta) if meta.domain == domain => Ok(meta),
        Some(meta) => Err(OpenError::OtherDomain { found: meta.domain, wanted: domain }),
        None => Ok(empty_meta(domain)),
    }
}

fn empty_meta(domain: DomainId) -> DomainMeta {
    DomainMeta { domain, ..DomainMeta::default() }
}

fn decode_records(records: Records) -> Result<Vec<(Lsn, LogRecord)>, OpenError> {
    records
        .into_iter()
        .map(|(lsn, bytes)| match wire::decode_record(bytes) {
            Ok(record) => Ok((lsn, record)),
            Err(error) => Err(OpenError::Record { lsn, detail: error.to_string() }),
        })
        .collect()
}

/// `Full` is what the machine may try again; after anything else the domain's service ends.
fn log_fault(error: LogError) -> StoreFault {
    match error {
        LogError::Full(_) => StoreFault::Full(error.to_string()),
        LogError::Damaged { .. } => StoreFault::Damaged(error.to_string()),
        _ => StoreFault::Failed(error.to_string()),
    }
}

/// `Full` is what the machine may try again: the engine looks for room before it begins.
fn pages_fault(error: PagesError) -> StoreFault {
    match error {
        PagesError::Full { .. } => StoreFault::Full(error.to_string()),
        PagesError::Damaged { .. } | PagesError::NotInstalled { .. } => {
            StoreFault::Damaged(error.to_string())
        }
        _ => StoreFault::Failed(error.to_string()),
    }
}
