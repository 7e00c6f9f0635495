//! The default page engine: `fjall`, an LSM tree with images kept apart from keys.
//!
//! Four keyspaces, one atomic batch for all (`format` has their keys and values; `docs/formats/disk.md`
//! defines them):
//!
//! - `pages`: volume (16), page (8) → a value header of 16 bytes, then the image;
//! - `index`: stamp (8), volume (16), page (8) → nothing;
//! - `apart`: volume (16), page (8) → a value header whose version is the last change's, then the
//!   changes kept apart from a page that could not be read;
//! - `meta`: `domain` → a value header whose version is the installed stamp, then the metadata;
//! - each: the number of an install (16) → what `marks` says of it.

use super::format::{
    HEADER_BYTES, KIND_APART, KIND_IMAGE, KIND_META, KIND_TOMBSTONE, Unread, decode_value,
    encode_value, index_key, page_key, parse_index, parse_page, volume_range,
};
use super::marks::{self, Marks};
use super::space::{Filters, NEW_TABLES_MAX};
use super::{Changed, KeptApart, Pages, PagesError, moves, unfinished};
use bytes::Bytes;
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode, Readable, UserKey};
use larder_core::id::{DomainId, PageId, PageNo, Stamp, VolumeId};
use larder_core::record::{Apart, DomainMeta, InstallBatch, StoredPage};
use larder_core::wire;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

/// The metadata format from which on it is told what volumes take.
const BYTES_COUNTED_SINCE: u32 = 2;
/// Bytes of a page's entries beside its image, about.
const KEYS_BYTES: usize = 256;
const META_KEY: &[u8] = b"domain";
/// The folder of its keyspaces' folders.
pub(super) const KEYSPACES_NAME: &str = "keyspaces";
/// Above every page.
const PAGE_MAX: PageId = PageId { volume: VolumeId(u128::MAX), page: PageNo(u64::MAX) };
/// Values from this size on are kept apart from the keys: every image but the smallest.
const SEPARATION_BYTES: u32 = 1024;

/// Bytes of sealed journals, at least: about one, and the least that the engine takes.
const JOURNALS_BYTES_MIN: u64 = 64 << 20;

/// Free bytes that an install leaves: the engine also writes when it is not asked to.
const MARGIN_BYTES: u64 = 8 << 20;
/// Bytes of an install, about, at most.
const INSTALL_BYTES: u64 = 8 << 20;
/// An install's bytes are written this many times at most before any are given back: to the
/// engine's journal, to a table, and by a merge of tables.
const WRITTEN_TIMES: u64 = 3;

/// Bytes that this process may still write, by file system.
static RESERVED: Mutex<BTreeMap<u64, Shares>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy, Default, Debug)]
struct Shares {
    installs: u64,
    compactions: u64,
}

impl Shares {
    fn of(&mut self, writer: Writer) -> &mut u64 {
        match writer {
            Writer::Install => &mut self.installs,
            Writer::Compaction => &mut self.compactions,
        }
    }
}

/// Who writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Writer {
    /// One that begins is done: it minds what others have reserved.
    Install,
    /// One that is stopped before an install would find no room: what it reserved is in no install's way,
    /// and what it has written by then is not counted twice.
    Compaction,
}

/// Room on a file system for one writer, given back when this is dropped.
#[derive(Debug)]
pub(super) struct Reserved {
    device: u64,
    writer: Writer,
    bytes: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shares) = reserved.get_mut(&self.device) {
            let share = shares.of(self.writer);
            *share = share.saturating_sub(self.bytes);
        }
    }
}

/// Whether a compaction may go on: installs under way on a file system, and one more, find room. Where that
/// cannot be told it may.
pub(super) fn has_room(place: &Path, free: fn(&Path) -> std::io::Result<u64>, device: u64) -> bool {
    let reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
    let installs = reserved.get(&device).map_or(0, |shares| shares.installs);
    let wanted = (2 * MARGIN_BYTES + WRITTEN_TIMES * INSTALL_BYTES).saturating_add(installs);
    free(place).map_or(true, |free| free >= wanted)
}

/// What the engine may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FjallConfig {
    /// Bytes of memory for its cache of blocks and images.
    pub cache_bytes: u64,
    /// Bytes of each of its four in-memory tables, before they are written out.
    pub memtable_bytes: u64,
    /// Bytes of sealed journals at which what keeps the oldest of them is written out, 64 MiB at least: else a
    /// keyspace with little in it would keep it for long.
    pub journals_bytes: u64,
    /// Threads for its background work.
    pub threads: usize,
    /// Files of its tables that it keeps open, at most: a domain that has more opens them again.
    pub open_files: usize,
}

impl Default for FjallConfig {
    fn default() -> Self {
        Self {
            cache_bytes: 64 << 20,
            memtable_bytes: 32 << 20,
            journals_bytes: JOURNALS_BYTES_MIN,
            threads: 2,
            open_files: 256,
        }
    }
}

/// A page engine on `fjall`.
pub struct FjallPages {
    pub(super) place: PathBuf,
    /// Its file system.
    pub(super) device: u64,
    /// Bytes free on its file system.
    pub(super) free: fn(&Path) -> std::io::Result<u64>,
    database: Database,
    pub(super) pages: Keyspace,
    pub(super) index: Keyspace,
    pub(super) apart: Keyspace,
    meta: Keyspace,
    marks: Marks,
    /// It is to be closed: space is not given back any more.
    pub(super) closed: Arc<AtomicBool>,
    /// Runs of newest tables of a keyspace at which a compaction is stopped.
    pub(super) new_tables_max: usize,
}

impl std::fmt::Debug for FjallPages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FjallPages({})", self.place.display())
    }
}

impl FjallPages {
    /// Opens the engine in a directory, or makes it. What it holds is synced before this returns,
    /// since it may have been read from the system's cache (rule 14).
    ///
    /// # Errors
    /// [`PagesError::Locked`] when another process has it open; failures; damage.
    pub fn open(place: impl Into<PathBuf>, config: &FjallConfig) -> Result<Self, PagesError> {
        let place = place.into();
        unfinished::make(&place, |aside| Self::open_made(aside.into(), config).map(drop))?;
        unfinished::mend(&place)?;
        Self::open_made(place, config)
    }

    fn open_made(place: PathBuf, config: &FjallConfig) -> Result<Self, PagesError> {
        let failed = |error: fjall::Error| fault(&place, &error);
        let (mut database, mut keyspaces) = open_engine(&place, config).map_err(failed)?;
        if keyspaces.iter().any(moves::engine_moves) {
            // Made by an earlier version.
            drop((database, keyspaces));
            moves::forbid_engine(&place).map_err(failed)?;
            (database, keyspaces) = open_engine(&place, config).map_err(failed)?;
        }
        let [pages, index, apart, meta] = keyspaces;
        database.persist(PersistMode::SyncAll).map_err(failed)?;
        // The engine syncs what is in its keyspaces' folders, and leaves out their own names.
        sync_folder(&place.join(KEYSPACES_NAME)).map_err(|error| failed(error.into()))?;
        let device = std::fs::metadata(&place).map_err(|error| PagesError::Failed {
            place: place.display().to_string(),
            detail: error.to_string(),
        })?;
        let device = device.dev();
        let all = [("pages", &pages), ("index", &index), ("apart", &apart), ("meta", &meta)];
        let marks = Marks::check(&database, &place, &all, failed)?;
        if marks.any() != meta.contains_key(META_KEY).map_err(|error| fault(&place, &error))? {
            return Err(PagesError::Lost {
                place: place.display().to_string(),
                what: "meta".into(),
                detail: "the metadata and the marks of installs are not of one time".into(),
            });
        }
        let (free, closed, new_tables_max) = (free_bytes as _, Arc::default(), NEW_TABLES_MAX);
        Ok(Self {
            place,
            device,
            free,
            database,
            pages,
            index,
            apart,
            meta,
            marks,
            closed,
            new_tables_max,
        })
    }

    pub(super) fn keyspaces(&self) -> [&Keyspace; 4] {
        [&self.pages, &self.index, &self.apart, &self.meta]
    }

    /// Refuses an install for which there may be no room: one that fails half way ends the engine.
    /// The room is kept until the install is done: that of another domain on the same file system
    /// must not find it as well.
    pub(super) fn reserve(&self, writer: Writer, bytes: u64) -> Result<Reserved, PagesError> {
        let place = self.place.display().to_string();
        let failed = |error: std::io::Error| {
            let (place, detail) = (place.clone(), error.to_string());
            PagesError::Failed { place, detail }
        };
        let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
        // Looked at under the lock: what others have written by now they may still have reserved.
        let free = (self.free)(&self.place).map_err(failed)?;
        let bytes = bytes.saturating_mul(WRITTEN_TIMES);
        let device = self.device;
        let shares = reserved.entry(device).or_default();
        let of_others = match writer {
            Writer::Install => shares.installs,
            Writer::Compaction => shares.installs.saturating_add(shares.compactions),
        };
        if free < MARGIN_BYTES.saturating_add(bytes).saturating_add(of_others) {
            return Err(PagesError::Full { place });
        }
        let share = shares.of(writer);
        *share = share.saturating_add(bytes);
        Ok(Reserved { device, writer, bytes })
    }

    /// A full disk met in the middle of an install, where nobody can tell how much of it is done.
    fn failed(&self, error: &fjall::Error) -> PagesError {
        match self.fault(error) {
            PagesError::Full { place } => PagesError::Failed { place, detail: error.to_string() },
            other => other,
        }
    }

    /// Bytes of its files.
    ///
    /// # Errors
    /// Failures of the engine.
    pub fn disk_bytes(&self) -> Result<u64, PagesError> {
        self.database.disk_space().map_err(|error| self.fault(&error))
    }

    /// Memory that it takes now: its cache of blocks, and its tables of what is not in files yet.
    #[must_use]
    pub fn memory_bytes(&self) -> (u64, u64) {
        (self.database.cache_size(), self.database.write_buffer_size())
    }

    pub(super) fn fault(&self, error: &fjall::Error) -> PagesError {
        fault(&self.place, error)
    }

    fn damaged(&self, what: String, detail: impl Into<String>) -> PagesError {
        PagesError::Damaged { place: self.place.display().to_string(), what, detail: detail.into() }
    }

    /// Checks a value and takes it apart.
    fn value(
        &self,
        key: &[u8],
        value: Bytes,
        what: &str,
    ) -> Result<(u8, Stamp, Bytes), PagesError> {
        decode_value(key, value).map_err(|unread| match unread {
            Unread::Damaged(detail) => self.damaged(what.to_owned(), detail),
            Unread::Format(detail) => PagesError::Format {
                place: self.place.display().to_string(),
                what: what.to_owned(),
                detail,
            },
        })
    }
}

impl FjallPages {
    fn meta_damaged(&self, detail: &str) -> PagesError {
        self.damaged("the metadata".into(), detail.to_owned())
    }

    /// Metadata that are not understood.
    fn meta_unread(&self, error: &wire::WireError) -> PagesError {
        match error {
            wire::WireError::Format { .. } => PagesError::Format {
                place: self.place.display().to_string(),
                what: "the metadata".into(),
                detail: error.to_string(),
            },
            _ => self.meta_damaged(&error.to_string()),
        }
    }

    fn meta_bytes(&self) -> Result<Option<Bytes>, PagesError> {
        let value = self.meta.get(META_KEY).map_err(|error| self.fault(&error))?;
        let Some(value) = value else {
            return Ok(None);
        };
        let (kind, _, bytes) = self.value(META_KEY, value.into(), "the metadata")?;
        if kind != KIND_META {
            return Err(self.meta_damaged(&format!("it is of kind {kind}")));
        }
        Ok(Some(bytes))
    }

    /// The format of the metadata; none: nothing was ever installed.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn meta_format(&self) -> Result<Option<u32>, PagesError> {
        let Some(bytes) = self.meta_bytes()? else { return Ok(None) };
        wire::meta_format(bytes).map(Some).map_err(|error| self.meta_unread(&error))
    }

    /// Writes the metadata anew if they are of an older format, or not there: versions that do not
    /// know today's refuse the store from then on. Else they would take it up to the first install,
    /// and pass over what they do not know in the records of its log.
    pub(crate) fn claim(&self, domain: DomainId) -> Result<(), PagesError> {
        if self.meta_format()? == Some(wire::META_FORMAT) {
            return Ok(());
        }
        let none = DomainMeta { domain, ..DomainMeta::default() };
        let meta = self.meta()?.unwrap_or(none);
        self.install(&InstallBatch { meta, ..InstallBatch::default() })
    }
}

impl Pages for FjallPages {
    fn load(&self, page: PageId) -> Result<Option<StoredPage>, PagesError> {
        let key = page_key(page);
        // Page and index of one moment: an install may go on meanwhile.
        let snapshot = self.database.snapshot();
        let what = format!("page {page}");
        let value = snapshot.get(&self.pages, key).map_err(|error| match self.fault(&error) {
            // The engine found it, and does not say in what.
            PagesError::Damaged { detail, .. } => self.damaged(what.clone(), detail),
            other => other,
        })?;
        let Some(value) = value else {
            return Ok(None);
        };
        let (kind, version, image) = self.value(&key, value.into(), &what)?;
        let image = match kind {
            KIND_IMAGE => Some(image),
            KIND_TOMBSTONE => None,
            other => return Err(self.damaged(what, format!("it is of kind {other}"))),
        };
        let indexed = snapshot.contains_key(&self.index, index_key(version, page));
        if !indexed.map_err(|error| self.fault(&error))? {
            let place = self.place.display().to_string();
            return Err(PagesError::NotInstalled { place, page, version });
        }
        Ok(Some(StoredPage { version, image }))
    }

    fn install(&self, batch: &InstallBatch) -> Result<(), PagesError> {
        let images = batch.pages.iter().filter_map(|page| page.stored.image.as_ref());
        let bytes: usize = images.map(Bytes::len).sum();
        let meta = wire::encode_meta(&batch.meta);
        let apart: Vec<Bytes> = batch.apart.iter().map(wire::encode_apart).collect();
        let apart_bytes: usize = apart.iter().map(Bytes::len).sum();
        let removed = batch.removed.len();
        let keys = batch.pages.len() + batch.apart.len() + batch.joined.len() + removed;
        let keys = keys * KEYS_BYTES;
        let _reserved =
            self.reserve(Writer::Install, (bytes + apart_bytes + keys + meta.len()) as u64)?;
        let mut all = self.database.batch().durability(Some(PersistMode::SyncData));
        for installed in &batch.pages {
            let key = page_key(installed.page);
            let stored = &installed.stored;
            let (kind, image) = match &stored.image {
                Some(image) => (KIND_IMAGE, &image[..]),
                None => (KIND_TOMBSTONE, &[][..]),
            };
            let value = encode_value(&key, kind, stored.version, image);
            all.insert(&self.pages, key, value);
            // Both in one batch have one sequence number: of two for one key either might win.
            if ![Stamp::ZERO, stored.version].contains(&installed.previous) {
                all.remove(&self.index, index_key(installed.previous, installed.page));
            }
            all.insert(&self.index, index_key(stored.version, installed.page), []);
        }
        for (of, changes) in batch.apart.iter().zip(&apart) {
            let (key, last) = (page_key(of.page), of.changes.last());
            let version = last.map_or(Stamp::ZERO, |(stamp, _)| *stamp);
            all.insert(&self.apart, key, encode_value(&key, KIND_APART, version, changes));
        }
        for page in &batch.joined {
            all.remove(&self.apart, page_key(*page));
        }
        for (page, version) in &batch.removed {
            all.remove(&self.pages, page_key(*page));
            all.remove(&self.apart, page_key(*page));
            all.remove(&self.index, index_key(*version, *page));
        }
        let value = encode_value(META_KEY, KIND_META, batch.meta.installed, &meta);
        all.insert(&self.meta, META_KEY, value);
        self.marks.put(&mut all, &self.keyspaces());
        all.commit().map_err(|error| self.failed(&error))?;
        self.marks.done(&self.keyspaces()).map_err(|error| self.failed(&error))
    }

    fn changed_after(&self, after: (Stamp, PageId), limit: usize) -> Result<Changed, PagesError> {
        use std::ops::Bound::{Excluded, Unbounded};
        // Marks come before every entry: no page has stamp 0.
        let (stamp, page) = after.max((Stamp::ZERO, PAGE_MAX));
        let range = (Excluded(index_key(stamp, page)), Unbounded);
        let mut entries = Vec::new();
        let snapshot = self.database.snapshot();
        for item in snapshot.range::<[u8; 32], _>(&self.index, range) {
            let key = item.key().map_err(|error| self.fault(&error))?;
            if entries.len() == limit {
                return Ok((entries, true));
            }
            entries.push(self.index_entry(&key)?);
        }
        Ok((entries, false))
    }

    fn meta(&self) -> Result<Option<DomainMeta>, PagesError> {
        let Some(bytes) = self.meta_bytes()? else {
            return Ok(None);
        };
        let unread = |error: wire::WireError| self.meta_unread(&error);
        let counted = wire::meta_format(bytes.clone()).map_err(unread)? >= BYTES_COUNTED_SINCE;
        let mut meta = wire::decode_meta(bytes).map_err(unread)?;
        for volume in meta.volumes.iter_mut().filter(|_| !counted) {
            volume.bytes = self.image_bytes(volume.id)?;
        }
        Ok(Some(meta))
    }

    fn apart(&self) -> Result<KeptApart, PagesError> {
        let mut all = Vec::new();
        for item in self.database.snapshot().iter(&self.apart) {
            let key = item.key().map_err(|error| self.fault(&error))?;
            if marks::is_mark(&key) {
                continue;
            }
            let page = self.page_entry(&key)?;
            all.push(match self.apart_of(page) {
                Err(error @ PagesError::Damaged { .. }) => Err((page, error)),
                other => Ok(other?),
            });
        }
        Ok(all)
    }

    fn removable(
        &self,
        volume: VolumeId,
        after: PageNo,
        limit: usize,
    ) -> Result<Vec<(PageId, Stamp)>, PagesError> {
        let snapshot = self.database.snapshot();
        let mut found = BTreeMap::new();
        let range = volume_range(volume, after);
        for item in snapshot.range::<[u8; 24], _>(&self.apart, range).take(limit) {
            let key = item.key().map_err(|error| self.fault(&error))?;
            found.insert(self.page_entry(&key)?, Stamp::ZERO);
        }
        for item in snapshot.range::<[u8; 24], _>(&self.pages, range).take(limit) {
            let key = item.key().map_err(|error| self.fault(&error))?;
            // Damage is no reason to keep it: an index entry that is left behind names no page.
            let value = snapshot.get(&self.pages, &key).ok().flatten().unwrap_or_default();
            let version = value.get(8..HEADER_BYTES).and_then(|bytes| bytes.try_into().ok());
            let version = Stamp(version.map_or(0, u64::from_le_bytes));
            found.insert(self.page_entry(&key)?, version);
        }
        Ok(found.into_iter().take(limit).collect())
    }

    fn give_back(&self) -> Result<(), PagesError> {
        self.compact()
    }

    fn pages_of(
        &self,
        volume: VolumeId,
        after: PageNo,
        limit: usize,
    ) -> Result<Vec<PageId>, PagesError> {
        let range = volume_range(volume, after);
        let snapshot = self.database.snapshot();
        snapshot
            .range::<[u8; 24], _>(&self.pages, range)
            .take(limit)
            .map(|item| {
                let key = item.key().map_err(|error| self.fault(&error))?;
                self.page_entry(&key)
            })
            .collect()
    }
}

impl FjallPages {
    /// Bytes of a volume's images, each looked at: for metadata that does not tell them.
    fn image_bytes(&self, volume: VolumeId) -> Result<u64, PagesError> {
        let from = page_key(PageId { volume, page: PageNo(0) });
        let to = page_key(PageId { volume, page: PageNo(u64::MAX) });
        let mut bytes = 0;
        for item in self.database.snapshot().range::<[u8; 24], _>(&self.pages, from..=to) {
            let length = item.size().map_err(|error| self.fault(&error))?;
            bytes += u64::from(length).saturating_sub(HEADER_BYTES as u64);
        }
        Ok(bytes)
    }

    fn apart_of(&self, page: PageId) -> Result<Apart, PagesError> {
        let key = page_key(page);
        let what = format!("what is kept apart from page {page}");
        let value = self.apart.get(key).map_err(|error| self.fault(&error))?;
        let Some(value) = value else {
            return Err(self.damaged(what, "its key is there, its value is not"));
        };
        let (kind, _, bytes) = self.value(&key, value.into(), &what)?;
        if kind != KIND_APART {
            return Err(self.damaged(what, format!("it is of kind {kind}")));
        }
        wire::decode_apart(page, bytes).map_err(|error| self.damaged(what, error.to_string()))
    }

    fn index_entry(&self, key: &UserKey) -> Result<(Stamp, PageId), PagesError> {
        parse_index(key)
            .ok_or_else(|| self.damaged("the change index".into(), "a key of another length"))
    }

    fn page_entry(&self, key: &UserKey) -> Result<PageId, PagesError> {
        parse_page(key)
            .ok_or_else(|| self.damaged("the table of pages".into(), "a key of another length"))
    }
}

/// Bytes that are free to this process on the file system of a path.
///
/// # Errors
/// What the system says of the path.
pub fn free_bytes(path: &Path) -> std::io::Result<u64> {
    let status = rustix::fs::statvfs(path)?;
    Ok(status.f_bavail.saturating_mul(status.f_frsize))
}

/// Opens the engine itself: its pages, their index, what is kept apart of them, and the metadata.
fn open_engine(place: &Path, config: &FjallConfig) -> fjall::Result<(Database, [Keyspace; 4])> {
    let database = Database::builder(place)
        .cache_size(config.cache_bytes)
        .worker_threads(config.threads)
        .max_cached_files(Some(config.open_files))
        .manual_journal_persist(true)
        .max_journaling_size(config.journals_bytes.max(JOURNALS_BYTES_MIN))
        .with_compaction_filter_factories(Arc::new(|_| Some(Arc::new(Filters))))
        .open()?;
    let plain = || KeyspaceCreateOptions::default().max_memtable_size(config.memtable_bytes);
    let separated = |from_bytes| plain().with_kv_separation(Some(moves::separation(from_bytes)));
    let pages = database.keyspace("pages", || separated(SEPARATION_BYTES))?;
    let index = database.keyspace("index", plain)?;
    // All but marks: rot in a value leaves the key that names its page.
    let apart = database.keyspace("apart", || separated(HEADER_BYTES as u32))?;
    let meta = database.keyspace("meta", plain)?;
    Ok((database, [pages, index, apart, meta]))
}

pub(super) fn sync_folder(path: &Path) -> std::io::Result<()> {
    std::fs::File::open(path)?.sync_all()
}

fn fault(place: &Path, error: &fjall::Error) -> PagesError {
    let place = place.display().to_string();
    let io = match error {
        fjall::Error::Io(io) => Some(io),
        fjall::Error::Storage(fjall::LsmError::Io(io)) => Some(io),
        _ => None,
    };
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    // What the device or the process met is no damage; what a file holds, or lacks, is.
    let met = io.and_then(std::io::Error::raw_os_error).is_some_and(|code| {
        let met = [Errno::IO, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::ACCESS, Errno::ROFS];
        met.contains(&Errno::from_raw_os_error(code))
    });
    match (error, io.map(std::io::Error::kind)) {
        (_, Some(StorageFull | QuotaExceeded)) => PagesError::Full { place },
        (fjall::Error::Locked, _) => PagesError::Locked { place },
        (fjall::Error::Io(_) | fjall::Error::Poisoned, _) => {
            PagesError::Failed { place, detail: error.to_string() }
        }
        _ if met => PagesError::Failed { place, detail: error.to_string() },
        _ => PagesError::Damaged { place, what: "something".into(), detail: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The disk was full when the engine was to install: the engine failed for good, and with it
    /// the domain's service, though nothing had been lost and room came back.
    #[test]
    fn an_install_without_room_is_refused_before_it_begins() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let mut pages =
            FjallPages::open(place.path(), &FjallConfig::default()).expect("it is ours");
        let page = PageId { volume: VolumeId(1), page: PageNo(1) };
        let stored = StoredPage { version: Stamp(1), image: Some(vec![7; 4096].into()) };
        let installed = larder_core::record::InstalledPage { page, previous: Stamp(0), stored };
        let batch = InstallBatch { pages: vec![installed], ..InstallBatch::default() };
        pages.free = |_| Ok(MARGIN_BYTES + 4096);
        let refused = pages.install(&batch).expect_err("there is no room");
        assert!(matches!(refused, PagesError::Full { .. }), "{refused}");
        assert_eq!(pages.load(page), Ok(None), "nothing was done");
        pages.free = free_bytes;
        pages.install(&batch).expect("there is room again");
        assert!(pages.load(page).expect("no fault").is_some());
    }

    /// Two domains of one process lay on one file system and installed at once. Each found the same
    /// room; one met the full disk in the middle of its install, which ended its service.
    #[test]
    fn two_installs_do_not_find_the_same_room() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let open = |name: &str| {
            let place = place.path().join(name);
            let mut pages = FjallPages::open(place, &FjallConfig::default()).expect("it is ours");
            // A file system of this test's own.
            pages.device = u64::MAX;
            pages.free = |_| Ok(MARGIN_BYTES + WRITTEN_TIMES * 1000);
            pages
        };
        let (one, other) = (open("one"), open("other"));
        let first = one.reserve(Writer::Install, 1000).expect("there is room");
        let refused =
            other.reserve(Writer::Install, 1).expect_err("the other one's install takes it");
        assert!(matches!(refused, PagesError::Full { .. }), "{refused}");
        drop(first);
        drop(other.reserve(Writer::Install, 1000).expect("the install is done"));
    }

    /// An older version said of a store of a newer one that it was damaged, and was to be restored from a backup,
    /// which would have lost what the newer one had committed.
    #[test]
    fn what_a_newer_version_wrote_is_not_damaged() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let pages =
            FjallPages::open(place.path(), &FjallConfig::default()).expect("a new directory");
        let meta = DomainMeta { domain: DomainId(7), ..DomainMeta::default() };
        let mut newer = wire::encode_meta(&meta).to_vec();
        assert_eq!(newer[..2], [0x08, u8::try_from(wire::META_FORMAT).expect("it is small")]);
        newer[1] += 1;
        let value = encode_value(META_KEY, KIND_META, Stamp(5), &newer);
        pages.meta.insert(META_KEY, value).expect("there is room");
        let refused = pages.meta().expect_err("it is not known");
        assert!(matches!(refused, PagesError::Format { .. }), "{refused}");
        assert!(refused.to_string().ends_with("use the version that wrote it"), "{refused}");
    }

    /// A volume was made private by this version, and the version before was started again on the store:
    /// it took it, up to the first install, and everybody could read the volume. The metadata, whose
    /// format it would have refused, were still its own, and of the record in the log it skipped the
    /// rights, which it did not know.
    #[test]
    fn a_store_is_refused_by_older_versions_from_its_first_start_on() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let pages =
            FjallPages::open(place.path(), &FjallConfig::default()).expect("a new directory");
        assert_eq!(pages.meta_format(), Ok(None));
        pages.claim(DomainId(7)).expect("there is room");
        assert_eq!(pages.meta_format(), Ok(Some(wire::META_FORMAT)));
        let made = pages.meta().expect("it is readable").expect("it was written");
        assert_eq!(made, DomainMeta { domain: DomainId(7), ..DomainMeta::default() });

        let golden = include_str!("../../../core/tests/golden/v2/meta/domain.hex");
        let byte = |text: &str| u8::from_str_radix(text, 16).expect("hexadecimal");
        let old: Vec<u8> = golden.split_whitespace().map(byte).collect();
        let value = encode_value(META_KEY, KIND_META, Stamp(5), &old);
        pages.meta.insert(META_KEY, value).expect("there is room");
        assert_eq!(pages.meta_format(), Ok(Some(2)));
        let before = pages.meta().expect("it is readable").expect("it is there");
        pages.claim(before.domain).expect("there is room");
        assert_eq!(pages.meta_format(), Ok(Some(wire::META_FORMAT)));
        assert_eq!(pages.meta(), Ok(Some(before)), "it says the same");
    }
}
