//! The commit log: numbered records, durable when `append` returns. Promise P1 rests on it alone.
//!
//! A log is a chain of preallocated segment files; one is being filled, the ones before it wait to
//! be trimmed, the ones after it (spares) are ready to be used, so that neither a full disk nor
//! the making of a file is met in the middle of an append. Call, in this order:
//!
//! 1. [`Log::create`], once in a domain's life, or [`Log::open`], which recovers.
//! 2. [`Log::append`] for every batch: one write and one sync (one each a segment).
//! 3. [`Log::maintain`] after every append, once it has been answered: it prepares the next
//!    segment a piece at a time. Without it the append that needs the segment makes it.
//! 4. [`Log::trim`] when records will never be read again.
//!
//! After any error other than [`LogError::Full`] the log is poisoned and answers nothing but
//! [`LogError::Poisoned`]: a failed sync is never retried, since the system may have dropped the
//! bytes and then report success.

pub(crate) mod format;
mod recover;
pub(crate) mod scan;
mod segment;

use crate::disk::{Disk, DiskError, DiskFile};
use bytes::Bytes;
use format::{FRAME_BYTES, Frame, HEADER_BYTES, frame_bytes};
use larder_core::id::DomainId;
use larder_core::machine::{Fault, Faults};
use larder_core::record::Lsn;
use larder_core::rng::Rng;
use recover::{keep_spares, recover_tail};
use segment::{Active, PIECE_BYTES, Spare, name_of, sequence_of};
use std::collections::VecDeque;

/// Records with their numbers, ascending without gaps.
pub type Records = Vec<(Lsn, Bytes)>;

/// Number of the first record of a domain's log.
pub const FIRST: Lsn = Lsn(1);
/// Most spare segments kept; further trimmed ones are removed.
const SPARES_MAX: usize = 2;

/// What a log may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogConfig {
    /// Bytes of a new segment file; bounds a record at 4128 bytes less. A multiple of 4096.
    pub segment_bytes: u64,
    /// With less than this free on the disk appends are refused as `Full`, so that the page engine
    /// can still install, after which the log's space is given back.
    pub reserve_bytes: u64,
    /// Planted faults.
    pub faults: Faults,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { segment_bytes: 64 << 20, reserve_bytes: 64 << 20, faults: Faults::NONE }
    }
}

/// Why the log could not do what was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LogError {
    /// No room. Nothing of the batch was written; try again when there is room.
    #[error("the log has no room for more: {0}")]
    Full(String),
    /// A file operation failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// An earlier operation failed. The domain must be recovered by a restart.
    #[error("the log has failed and must be recovered by a restart: {0}")]
    Poisoned(String),
    /// Bytes that were durable once do not check.
    #[error(
        "log file {file} is damaged at byte {offset}: {detail}; restore the domain from a backup"
    )]
    Damaged {
        /// Which file.
        file: String,
        /// Where.
        offset: u64,
        /// What is wrong.
        detail: &'static str,
    },
    /// A format of another time.
    #[error(
        "log file {file} has format {found}; this version reads {} to {}: use the version that wrote it",
        format::FORMAT_OLDEST,
        format::FORMAT
    )]
    Format {
        /// Which file.
        file: String,
        /// What it says.
        found: u32,
    },
    /// A file of another domain's log.
    #[error(
        "log file {file} belongs to domain {:016x}, not to {:016x}: put it back there",
        .found.0, .wanted.0
    )]
    OtherDomain {
        /// Which file.
        file: String,
        /// What it says.
        found: DomainId,
        /// What was expected.
        wanted: DomainId,
    },
    /// No segment in use.
    #[error("the log is missing: no segment file holds anything; restore the domain from a backup")]
    Missing,
    /// Records that are not installed were trimmed, or the pages are older than the log.
    #[error(
        "record {} is wanted and the log begins at {}: the page engine in \"pages\" is older than the log, an older copy or one whose journal was damaged; restore both from the same backup",
        .wanted.0, .oldest.0
    )]
    Gap {
        /// The first record wanted.
        wanted: Lsn,
        /// The first record there is.
        oldest: Lsn,
    },
    /// Records that are installed are not in the log.
    #[error(
        "the log ends before record {} and the page engine has installed all before {}: the log is older than the pages; restore both from the same backup",
        .next.0, .wanted.0
    )]
    Behind {
        /// The first record not there.
        next: Lsn,
        /// The first record wanted.
        wanted: Lsn,
    },
    /// A record that no segment can hold.
    #[error("a record of {bytes} bytes; a segment holds at most {max}: commit less at once")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The limit.
        max: u64,
    },
}

/// A full segment.
#[derive(Debug)]
struct Sealed {
    sequence: u64,
    /// Number of its last record.
    last: Lsn,
    /// Bytes of its file.
    bytes: u64,
}

/// Records that go into one segment.
struct Run {
    /// The first and one past the last, as positions in the batch.
    records: std::ops::Range<usize>,
    /// Whether a new segment begins with it.
    switch: bool,
}

/// A commit log. See the module's documentation for the order of calls.
#[derive(Debug)]
pub struct Log<D: Disk> {
    disk: D,
    config: LogConfig,
    domain: DomainId,
    rng: Rng,
    sealed: VecDeque<Sealed>,
    active: Active<D::File>,
    /// By sequence, from the active segment's on without gaps; only the last may not be ready.
    spares: VecDeque<Spare<D::File>>,
    /// Number of the next record.
    next: Lsn,
    /// Bytes appended since the last call of `maintain`.
    appended: u64,
    poisoned: Option<String>,
}

impl<D: Disk> Log<D> {
    /// Makes the log of a new domain. Segment files of an earlier, unfinished attempt are removed.
    /// `rng` draws segment ids: seed it apart from any generator whose numbers clients see.
    ///
    /// # Errors
    /// [`LogError::Damaged`] when a segment file holds records; disk errors.
    pub fn create(
        disk: D,
        config: LogConfig,
        domain: DomainId,
        mut rng: Rng,
    ) -> Result<Self, LogError> {
        check_config(&config);
        for name in disk.list()? {
            if sequence_of(&name).is_some() {
                refuse_records(&disk, &name)?;
                disk.remove(&name)?;
            }
        }
        let mut spare = Spare::create(&disk, 1, config.segment_bytes)?;
        spare.write_zeros(u64::MAX)?;
        disk.sync_directory()?;
        let active = Active::begin(spare, domain, FIRST, &mut rng)?;
        Ok(Self {
            disk,
            config,
            domain,
            rng,
            sealed: VecDeque::new(),
            active,
            spares: VecDeque::new(),
            next: FIRST,
            appended: 0,
            poisoned: None,
        })
    }

    /// Opens a log and returns its records from number `from` on. What it returns is durable: the
    /// bytes may have come from the system's cache, so the last write, whose sync may have failed,
    /// is written again, and all is synced before this returns (rule 14).
    ///
    /// # Errors
    /// See [`LogError`]; damage, gaps and foreign files are refused, a torn tail is cut off.
    pub fn open(
        disk: D,
        config: LogConfig,
        domain: DomainId,
        rng: Rng,
        from: Lsn,
    ) -> Result<(Self, Records), LogError> {
        check_config(&config);
        let scan = scan::scan(&disk, domain, from, config.faults)?;
        let (newest, before) = scan.chain.split_last().ok_or(LogError::Missing)?;
        let active = recover_tail(&disk, newest, &scan.tail, config.faults)?;
        for sequence in &scan.strays {
            disk.remove(&name_of(*sequence))?;
        }
        let spares = keep_spares(&disk, newest.header.sequence, &scan.spares, &config)?;
        disk.sync_directory()?;
        let firsts = scan.chain.iter().skip(1).map(|found| found.header.first);
        let sealed = before
            .iter()
            .zip(firsts)
            .map(|(found, after)| Sealed {
                sequence: found.header.sequence,
                last: Lsn(after.0 - 1),
                bytes: found.bytes,
            })
            .collect();
        let log = Self {
            config,
            domain,
            rng,
            sealed,
            active,
            spares,
            next: scan.next,
            appended: 0,
            poisoned: None,
            disk,
        };
        Ok((log, scan.records))
    }

    /// Number of the next record.
    #[must_use]
    pub fn next(&self) -> Lsn {
        self.next
    }

    /// The disk it is on.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// Bytes of its segment files.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        let sealed: u64 = self.sealed.iter().map(|segment| segment.bytes).sum();
        let spares: u64 = self.spares.iter().map(|spare| spare.bytes).sum();
        sealed + self.active.bytes + spares
    }

    /// Writes records and syncs them: all are durable when this returns.
    ///
    /// # Errors
    /// [`LogError::Full`]: nothing was written and the log is as before. Anything else: the log
    /// has failed for good, and whether the records will be found by recovery is not known.
    ///
    /// # Panics
    /// When the numbers do not continue the log's.
    pub fn append(&mut self, records: &[(Lsn, Bytes)]) -> Result<(), LogError> {
        self.check_alive()?;
        let mut expected = self.next;
        for (lsn, _) in records {
            assert_eq!(*lsn, expected, "records are numbered without gaps");
            expected = Lsn(lsn.0 + 1);
        }
        if records.is_empty() {
            return Ok(());
        }
        let runs = self.plan(records)?;
        let switches = runs.iter().filter(|run| run.switch).count();
        self.check_reserve(switches)?;
        self.ensure_spares(switches)?;
        for run in runs {
            let written = self.write_run(&run, &records[run.records.clone()]);
            self.poison_on_error(written)?;
        }
        self.next = expected;
        Ok(())
    }

    /// Does a bounded piece of preparing the next segment; says whether there is more to do. A
    /// full disk is no error here.
    ///
    /// # Errors
    /// The log has failed for good.
    pub fn maintain(&mut self) -> Result<bool, LogError> {
        self.check_alive()?;
        let budget = PIECE_BYTES.max(std::mem::take(&mut self.appended).saturating_mul(2));
        if self.spares.iter().any(Spare::is_ready) {
            return Ok(false);
        }
        let room = self.config.segment_bytes + self.config.reserve_bytes;
        if self.spares.is_empty() {
            let free = self.disk.free_bytes();
            if self.poison_on_error(free.map_err(Into::into))? < room {
                return Ok(false);
            }
        }
        match self.prepare(budget) {
            Ok(ready) => Ok(!ready),
            Err(LogError::Full(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Records up to and with `through` will never be read again: segments of nothing else are
    /// recycled or removed.
    ///
    /// # Errors
    /// The log has failed for good.
    pub fn trim(&mut self, through: Lsn) -> Result<(), LogError> {
        self.check_alive()?;
        let trimmed = self.trim_segments(through);
        self.poison_on_error(trimmed)
    }

    fn trim_segments(&mut self, through: Lsn) -> Result<(), LogError> {
        let mut changed = false;
        let beyond = u64::from(self.config.faults.has(Fault::TrimmedTooFar));
        let limit = Lsn(through.0 + beyond);
        while let Some(oldest) = self.sealed.front()
            && oldest.last <= limit
        {
            let name = name_of(oldest.sequence);
            let fits = oldest.bytes == self.config.segment_bytes;
            self.sealed.pop_front();
            changed = true;
            // A used file is worth more than one still to be written.
            if let Some(unready) = self.take_unready() {
                self.disk.remove(&name_of(unready.sequence))?;
            }
            if !fits || self.spares.len() >= SPARES_MAX {
                self.disk.remove(&name)?;
                continue;
            }
            let sequence = self.next_sequence();
            larder_core::probe::probe("segment-recycled");
            self.disk.rename(&name, &name_of(sequence))?;
            self.spares.push_back(Spare {
                sequence,
                file: self.disk.open(&name_of(sequence))?,
                bytes: self.config.segment_bytes,
                written: self.config.segment_bytes,
            });
        }
        if changed && !self.config.faults.has(Fault::NewNameUnsynced) {
            // Else a spare could be filled under its new name and found under its old one.
            self.disk.sync_directory()?;
        }
        Ok(())
    }

    /// Cuts a batch into what goes into the active segment and into the ones after it.
    fn plan(&self, records: &[(Lsn, Bytes)]) -> Result<Vec<Run>, LogError> {
        let max = self.config.segment_bytes - HEADER_BYTES as u64;
        let mut room = self.active.bytes - self.active.end;
        let mut runs = vec![Run { records: 0..0, switch: false }];
        for (index, (_, body)) in records.iter().enumerate() {
            let bytes = frame_bytes(body.len()) as u64;
            if bytes > max {
                return Err(LogError::TooLarge {
                    bytes: body.len(),
                    max: max - FRAME_BYTES as u64,
                });
            }
            if bytes > room {
                room = max;
                runs.push(Run { records: index..index, switch: true });
            }
            room -= bytes;
            let run = runs.last_mut().expect("there is always a first run");
            run.records.end = index + 1;
        }
        runs.retain(|run| !run.records.is_empty());
        Ok(runs)
    }

    fn write_run(&mut self, run: &Run, records: &[(Lsn, Bytes)]) -> Result<(), LogError> {
        if run.switch {
            let spare = self.spares.pop_front().expect("spares were ensured");
            assert!(spare.is_ready(), "spares were ensured");
            larder_core::probe::probe("segment-switched");
            let last = Lsn(records[0].0.0 - 1);
            let active = Active::begin(spare, self.domain, records[0].0, &mut self.rng)?;
            let full = std::mem::replace(&mut self.active, active);
            self.sealed.push_back(Sealed {
                sequence: full.header.sequence,
                last,
                bytes: full.bytes,
            });
        }
        let active = &mut self.active;
        let mut bytes = Vec::new();
        for ((lsn, body), index) in records.iter().zip(0..) {
            Frame::write(*lsn, active.header.id, index, body, &mut bytes);
        }
        assert!(active.end + bytes.len() as u64 <= active.bytes, "runs fit their segment");
        active.file.write_at(active.end, &bytes)?;
        // P1: only the durable is answered. A planted fault skips the sync, or its outcome.
        if !self.config.faults.has(Fault::AcknowledgeEarly) {
            let synced = active.file.sync();
            if !self.config.faults.has(Fault::IgnoreSyncError) {
                synced?;
            }
        }
        active.end += bytes.len() as u64;
        self.appended += bytes.len() as u64;
        Ok(())
    }

    /// Makes at least `count` spares ready, or takes back what it began.
    fn ensure_spares(&mut self, count: usize) -> Result<(), LogError> {
        while self.spares.iter().filter(|spare| spare.is_ready()).count() < count {
            self.prepare(u64::MAX)?;
        }
        Ok(())
    }

    /// Writes up to `budget` bytes of a spare that is not ready, making one if there is none; says
    /// whether it is ready now.
    fn prepare(&mut self, budget: u64) -> Result<bool, LogError> {
        let mut spare = match self.take_unready() {
            Some(spare) => spare,
            None => {
                let sequence = self.next_sequence();
                let made = Spare::create(&self.disk, sequence, self.config.segment_bytes);
                self.unless_full(sequence, made)?
            }
        };
        let sequence = spare.sequence;
        let written = spare.write_zeros(budget).map(|()| spare);
        let spare = self.unless_full(sequence, written)?;
        let ready = spare.is_ready();
        self.spares.push_back(spare);
        if ready && !self.config.faults.has(Fault::NamesUnsynced) {
            let synced = self.disk.sync_directory().map_err(Into::into);
            self.poison_on_error(synced)?;
        }
        Ok(ready)
    }

    /// A spare that met a full disk is removed; any other error ends the log.
    fn unless_full<T>(
        &mut self,
        sequence: u64,
        result: Result<T, DiskError>,
    ) -> Result<T, LogError> {
        let error = match result {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if !matches!(error, DiskError::Full { .. }) {
            return self.poison_on_error(Err(error.into()));
        }
        match self.disk.remove(&name_of(sequence)) {
            Ok(()) | Err(DiskError::Missing { .. }) => Err(LogError::Full(error.to_string())),
            Err(error) => self.poison_on_error(Err(error.into())),
        }
    }

    /// Refuses an append that finds less than the reserve free. Spares that it does not need are
    /// given up first: else trimmed segments, kept as spares, would never make room.
    fn check_reserve(&mut self, needed: usize) -> Result<(), LogError> {
        if self.config.reserve_bytes == 0 {
            return Ok(());
        }
        loop {
            let free = self.disk.free_bytes().map_err(Into::into);
            let free = self.poison_on_error(free)?;
            if free >= self.config.reserve_bytes {
                return Ok(());
            }
            let spare = (self.spares.len() > needed).then(|| self.spares.pop_back()).flatten();
            let Some(Spare { sequence, file, .. }) = spare else {
                larder_core::probe::probe("log-keeps-its-reserve");
                return Err(LogError::Full(format!(
                    "{free} bytes are free and {} are kept for the page engine: free space on the log's file system",
                    self.config.reserve_bytes
                )));
            };
            drop(file);
            let removed = self.disk.remove(&name_of(sequence)).map_err(Into::into);
            self.poison_on_error(removed)?;
        }
    }

    fn take_unready(&mut self) -> Option<Spare<D::File>> {
        let unready = self.spares.back().is_some_and(|spare| !spare.is_ready());
        unready.then(|| self.spares.pop_back()).flatten()
    }

    fn next_sequence(&self) -> u64 {
        self.spares.back().map_or(self.active.header.sequence, |spare| spare.sequence) + 1
    }

    fn check_alive(&self) -> Result<(), LogError> {
        match &self.poisoned {
            Some(reason) => Err(LogError::Poisoned(reason.clone())),
            None => Ok(()),
        }
    }

    fn poison_on_error<T>(&mut self, result: Result<T, LogError>) -> Result<T, LogError> {
        if let Err(error) = &result {
            self.poisoned = Some(error.to_string());
        }
        result
    }
}

/// A new log is never laid over one that holds records.
fn refuse_records<D: Disk>(disk: &D, name: &str) -> Result<(), LogError> {
    let mut bytes = [0; FRAME_BYTES];
    let read = disk.open(name)?.read_at(HEADER_BYTES as u64, &mut bytes)?;
    match Frame::decode(&bytes[..read]) {
        None => Ok(()),
        Some(_) => Err(LogError::Damaged {
            file: name.into(),
            offset: HEADER_BYTES as u64,
            detail: "it holds records, but the domain's identity file is missing",
        }),
    }
}

fn check_config(config: &LogConfig) {
    assert!(
        config.segment_bytes >= 2 * HEADER_BYTES as u64
            && config.segment_bytes.is_multiple_of(HEADER_BYTES as u64),
        "a segment is at least two pages, and whole ones"
    );
}
