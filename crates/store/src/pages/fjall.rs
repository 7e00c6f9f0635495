//! The default page engine: `fjall`, an LSM tree with images kept apart from keys.
//!
//! Four keyspaces, one atomic batch for all. Numbers in keys are big-endian, so that the order of
//! bytes is the order of ids; numbers in values are little-endian. `docs/formats/disk.md` defines
//! them:
//!
//! - `pages`: volume (16), page (8) → a value header of 16 bytes, then the image;
//! - `index`: stamp (8), volume (16), page (8) → nothing;
//! - `apart`: volume (16), page (8) → a value header whose version is the last change's, then the
//!   changes kept apart from a page that could not be read;
//! - `meta`: `domain` → a value header whose version is the installed stamp, then the metadata;
//! - each: the number of an install (16) → what `marks` says of it.

use super::engine::{Ended, Engine, Free, META_KEY};
use super::{Changed, KeptApart, Pages, PagesError, marks};
use bytes::Bytes;
use fjall::{PersistMode, Readable, UserKey};
use larder_core::id::{PageId, PageNo, Stamp, VolumeId};
use larder_core::record::{Apart, DomainMeta, InstallBatch, StoredPage};
use larder_core::wire;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// The format of values written.
const FORMAT: u8 = 1;
/// The oldest read.
const FORMAT_OLDEST: u8 = 1;
/// Bytes before an image: format, kind, two zeros, CRC-32C, version.
pub(super) const HEADER_BYTES: usize = 16;
/// Bytes of a page's entries beside its image, about.
const KEYS_BYTES: usize = 256;
const KIND_IMAGE: u8 = 0;
const KIND_TOMBSTONE: u8 = 1;
const KIND_META: u8 = 2;
const KIND_APART: u8 = 3;
/// Above every page.
const PAGE_MAX: PageId = PageId { volume: VolumeId(u128::MAX), page: PageNo(u64::MAX) };
/// An install's bytes are written this many times at most before any are given back: to the
/// engine's journal, to a table, and by a merge of tables.
const WRITTEN_TIMES: u64 = 3;

/// How long an install waits for what the engine still has to write.
const BEHIND_MAX: Duration = Duration::from_secs(5);
/// How often it looks meanwhile.
const BEHIND_LOOK: Duration = Duration::from_millis(10);
/// An engine that met a full disk is opened again after this, which doubles each time: what needed
/// the room is begun again at once, and may need it again.
const AGAIN_MIN: Duration = Duration::from_secs(1);
/// Not longer than this, so that it goes on soon when there is room.
const AGAIN_MAX: Duration = Duration::from_secs(8);

/// Bytes that installs of this process may still write, by file system.
static RESERVED: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

/// Room on a file system for one install, given back when this is dropped.
#[derive(Debug)]
struct Reserved {
    device: u64,
    bytes: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut reserved = RESERVED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = reserved.get_mut(&self.device) {
            *bytes = bytes.saturating_sub(self.bytes);
        }
    }
}

/// What the engine may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FjallConfig {
    /// Bytes of memory for its cache of blocks and images.
    pub cache_bytes: u64,
    /// Bytes of each of its four in-memory tables, before they are written out.
    pub memtable_bytes: u64,
    /// Threads for its background work.
    pub threads: usize,
    /// Free bytes that an install leaves: the engine also writes when it is not asked to.
    pub margin_bytes: u64,
}

impl Default for FjallConfig {
    fn default() -> Self {
        Self { cache_bytes: 64 << 20, memtable_bytes: 32 << 20, threads: 2, margin_bytes: 8 << 20 }
    }
}

/// A page engine on `fjall`.
pub struct FjallPages {
    place: PathBuf,
    /// Its file system.
    device: u64,
    /// Bytes free on its file system.
    free: Free,
    config: FjallConfig,
    /// None: it was closed after a full disk, and there was no room to open it.
    engine: RwLock<Option<Engine>>,
    installs: Mutex<Installs>,
}

/// What an install leaves to the next one.
#[derive(Debug)]
struct Installs {
    /// How many were done, in this process and before.
    done: u64,
    /// The pages of one that met a full disk in its middle, with their versions: it was answered as
    /// not done, and may be found all the same when the engine is opened again.
    half_done: Option<Vec<(PageId, Stamp)>>,
    /// Those of ones that were found, whose versions the origin does not know of: the change index
    /// is rid of them when the pages are installed again.
    unknown: BTreeMap<PageId, Stamp>,
    /// An engine that has ended is not opened again before this.
    again_at: Option<Instant>,
    /// The pause until then.
    pause: Duration,
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
        let free = free_bytes;
        let engine = Engine::open(&place, config, free)?;
        let device = std::fs::metadata(&place).map_err(|error| PagesError::Failed {
            place: place.display().to_string(),
            detail: error.to_string(),
        })?;
        let device = device.dev();
        let done = engine.marks.last();
        let installs = Installs {
            done,
            half_done: None,
            unknown: BTreeMap::new(),
            again_at: None,
            pause: AGAIN_MIN,
        };
        Ok(Self {
            place,
            device,
            free,
            config: *config,
            engine: RwLock::new(Some(engine)),
            installs: Mutex::new(installs),
        })
    }

    fn full(&self) -> PagesError {
        PagesError::Full { place: self.place.display().to_string() }
    }

    /// Uses the engine, which nobody closes meanwhile.
    fn with<T>(
        &self,
        what: impl FnOnce(&Engine) -> Result<T, PagesError>,
    ) -> Result<T, PagesError> {
        // An engine is there whole, or not at all.
        let engine = self.engine.read().unwrap_or_else(PoisonError::into_inner);
        what(engine.as_ref().ok_or_else(|| self.full())?)
    }

    /// Opens an engine again that a full disk has ended. Whoever reads meanwhile waits; until then
    /// the old one is read.
    fn mend(&self, installs: &mut Installs) -> Result<(), PagesError> {
        {
            let engine = self.engine.read().unwrap_or_else(PoisonError::into_inner);
            let ended = engine.as_ref().map_or(Some(Ended::Full), Engine::ended);
            match ended {
                None => return Ok(()),
                Some(Ended::Failed) => {
                    let place = self.place.display().to_string();
                    let detail = "a write in the background failed".into();
                    return Err(PagesError::Failed { place, detail });
                }
                Some(Ended::Full) => {}
            }
            let now = Instant::now();
            let again_at = *installs.again_at.get_or_insert(now + installs.pause);
            // What still merges would be waited for, and every reader with it.
            if now < again_at || engine.as_ref().is_some_and(Engine::merges) {
                return Err(self.full());
            }
            installs.pause = (installs.pause * 2).min(AGAIN_MAX);
            installs.again_at = Some(now + installs.pause);
        }
        let mut slot = self.engine.write().unwrap_or_else(PoisonError::into_inner);
        // Closed first: it is locked against a second one.
        slot.take();
        let engine = Engine::open(&self.place, &self.config, self.free)?;
        let (found, done) = (engine.marks.last(), installs.done);
        match (found.checked_sub(done), installs.half_done.take()) {
            (Some(0), _) => {}
            (Some(1), Some(pages)) => {
                installs.unknown.extend(pages);
                installs.done = found;
            }
            _ => {
                return Err(PagesError::Lost {
                    place: self.place.display().to_string(),
                    what: "meta".into(),
                    detail: format!("{done} installs were done, and {found} are there"),
                });
            }
        }
        *slot = Some(engine);
        installs.again_at = None;
        Ok(())
    }

    /// Waits until the engine takes an install without making it wait.
    fn keep_up(&self, engine: &Engine) -> Result<(), PagesError> {
        let until = Instant::now() + BEHIND_MAX;
        while engine.lies_behind() {
            match engine.ended() {
                // The next try opens it again, or says that it failed.
                Some(_) => return Err(self.full()),
                None if Instant::now() >= until => {
                    let place = self.place.display().to_string();
                    return Err(PagesError::Behind { place });
                }
                None => std::thread::sleep(BEHIND_LOOK),
            }
        }
        Ok(())
    }

    /// Refuses an install for which there may be no room: one that fails half way ends the engine.
    /// The room is kept until the install is done: that of another domain on the same file system
    /// must not find it as well.
    fn reserve(&self, bytes: u64) -> Result<Reserved, PagesError> {
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
        let of_others = reserved.get(&device).copied().unwrap_or_default();
        if free < self.config.margin_bytes.saturating_add(bytes).saturating_add(of_others) {
            return Err(PagesError::Full { place });
        }
        reserved.insert(device, of_others.saturating_add(bytes));
        Ok(Reserved { device, bytes })
    }

    /// Writes the batch to the journal and to memory, and syncs the journal.
    fn commit(
        &self,
        engine: &Engine,
        batch: fjall::OwnedWriteBatch,
        of: &InstallBatch,
        installs: &mut Installs,
    ) -> Result<(), PagesError> {
        let pages = of.pages.iter().map(|page| (page.page, page.stored.version));
        match batch.commit() {
            Ok(()) => {}
            // It took nothing of it, and is opened again at the next try if a full disk is why.
            Err(fjall::Error::Poisoned) => return Err(self.full()),
            Err(error) => {
                let error = self.fault(&error);
                if matches!(error, PagesError::Full { .. }) {
                    // The rest of it is written when it is closed, if there is room by then.
                    installs.half_done = Some(pages.collect());
                }
                return Err(error);
            }
        }
        match engine.database.persist(PersistMode::SyncData) {
            Ok(()) => Ok(()),
            // Its background work ended in between: nothing was synced. The journal has all of it,
            // and is synced when it is opened again.
            Err(fjall::Error::Poisoned) => {
                installs.half_done = Some(pages.collect());
                Err(self.full())
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// An error of a sync is final: what a second one says of the same bytes means nothing.
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
        self.with(|engine| engine.database.disk_space().map_err(|error| self.fault(&error)))
    }

    fn fault(&self, error: &fjall::Error) -> PagesError {
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
        let damaged = |detail: String| self.damaged(what.to_owned(), detail);
        let Some(header) = value.get(..HEADER_BYTES) else {
            return Err(damaged(format!("{} bytes are too few", value.len())));
        };
        let stored_crc = u32::from_le_bytes(header[4..8].try_into().expect("four bytes"));
        if value_crc(key, header, &value[HEADER_BYTES..]) != stored_crc {
            return Err(damaged("its checksum does not match".into()));
        }
        if !(FORMAT_OLDEST..=FORMAT).contains(&header[0]) {
            return Err(damaged(format!(
                "it has format {}; this version reads {FORMAT_OLDEST} to {FORMAT}",
                header[0]
            )));
        }
        let version = Stamp(u64::from_le_bytes(header[8..16].try_into().expect("eight bytes")));
        Ok((header[1], version, value.slice(HEADER_BYTES..)))
    }
}

impl Pages for FjallPages {
    fn load(&self, page: PageId) -> Result<Option<StoredPage>, PagesError> {
        self.with(|engine| self.load_from(engine, page))
    }

    fn install(&self, batch: &InstallBatch) -> Result<(), PagesError> {
        let mut installs = self.installs();
        self.mend(&mut installs)?;
        self.with(|engine| self.install_in(engine, &mut installs, batch))
    }

    fn changed_after(&self, after: (Stamp, PageId), limit: usize) -> Result<Changed, PagesError> {
        use std::ops::Bound::{Excluded, Unbounded};
        // Marks come before every entry: no page has stamp 0.
        let (stamp, page) = after.max((Stamp::ZERO, PAGE_MAX));
        let range = (Excluded(index_key(stamp, page)), Unbounded);
        self.with(|engine| {
            let mut entries = Vec::new();
            let snapshot = engine.database.snapshot();
            for item in snapshot.range::<[u8; 32], _>(&engine.index, range) {
                let key = item.key().map_err(|error| self.fault(&error))?;
                if entries.len() == limit {
                    return Ok((entries, true));
                }
                entries.push(self.index_entry(&key)?);
            }
            Ok((entries, false))
        })
    }

    fn meta(&self) -> Result<Option<DomainMeta>, PagesError> {
        let value =
            self.with(|engine| engine.meta.get(META_KEY).map_err(|error| self.fault(&error)))?;
        let Some(value) = value else {
            return Ok(None);
        };
        let what = "the metadata";
        let (kind, _, bytes) = self.value(META_KEY, value.into(), what)?;
        if kind != KIND_META {
            return Err(self.damaged(what.into(), format!("it is of kind {kind}")));
        }
        match wire::decode_meta(bytes) {
            Ok(meta) => Ok(Some(meta)),
            Err(error) => Err(self.damaged(what.into(), error.to_string())),
        }
    }

    fn apart(&self) -> Result<KeptApart, PagesError> {
        self.with(|engine| {
            let mut all = Vec::new();
            for item in engine.database.snapshot().iter(&engine.apart) {
                let key = item.key().map_err(|error| self.fault(&error))?;
                if marks::is_mark(&key) {
                    continue;
                }
                let page = self.page_entry(&key)?;
                all.push(match self.apart_of(engine, page) {
                    Err(error @ PagesError::Damaged { .. }) => Err((page, error)),
                    other => Ok(other?),
                });
            }
            Ok(all)
        })
    }

    fn pages_of(
        &self,
        volume: VolumeId,
        after: PageNo,
        limit: usize,
    ) -> Result<Vec<PageId>, PagesError> {
        use std::ops::Bound::{Excluded, Included};
        let from = page_key(PageId { volume, page: after });
        let to = page_key(PageId { volume, page: PageNo(u64::MAX) });
        let range = (Excluded(from), Included(to));
        self.with(|engine| {
            let snapshot = engine.database.snapshot();
            snapshot
                .range::<[u8; 24], _>(&engine.pages, range)
                .take(limit)
                .map(|item| {
                    let key = item.key().map_err(|error| self.fault(&error))?;
                    self.page_entry(&key)
                })
                .collect()
        })
    }
}

impl FjallPages {
    fn installs(&self) -> MutexGuard<'_, Installs> {
        // What it says is of whole installs.
        self.installs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load_from(&self, engine: &Engine, page: PageId) -> Result<Option<StoredPage>, PagesError> {
        let key = page_key(page);
        // Page and index of one moment: an install may go on meanwhile.
        let snapshot = engine.database.snapshot();
        let value = snapshot.get(&engine.pages, key).map_err(|error| self.fault(&error))?;
        let Some(value) = value else {
            return Ok(None);
        };
        let what = format!("page {page}");
        let (kind, version, image) = self.value(&key, value.into(), &what)?;
        let image = match kind {
            KIND_IMAGE => Some(image),
            KIND_TOMBSTONE => None,
            other => return Err(self.damaged(what, format!("it is of kind {other}"))),
        };
        let indexed = snapshot.contains_key(&engine.index, index_key(version, page));
        if !indexed.map_err(|error| self.fault(&error))? {
            let place = self.place.display().to_string();
            return Err(PagesError::NotInstalled { place, page, version });
        }
        Ok(Some(StoredPage { version, image }))
    }

    fn install_in(
        &self,
        engine: &Engine,
        installs: &mut Installs,
        batch: &InstallBatch,
    ) -> Result<(), PagesError> {
        let images = batch.pages.iter().filter_map(|page| page.stored.image.as_ref());
        let bytes: usize = images.map(Bytes::len).sum();
        let meta = wire::encode_meta(&batch.meta);
        let apart: Vec<Bytes> = batch.apart.iter().map(wire::encode_apart).collect();
        let apart_bytes: usize = apart.iter().map(Bytes::len).sum();
        let keys = (batch.pages.len() + batch.apart.len() + batch.joined.len()) * KEYS_BYTES;
        self.keep_up(engine)?;
        let _reserved = self.reserve((bytes + apart_bytes + keys + meta.len()) as u64)?;
        let mut all = engine.database.batch().durability(Some(PersistMode::Buffer));
        for installed in &batch.pages {
            let key = page_key(installed.page);
            let stored = &installed.stored;
            let (kind, image) = match &stored.image {
                Some(image) => (KIND_IMAGE, &image[..]),
                None => (KIND_TOMBSTONE, &[][..]),
            };
            let value = encode_value(&key, kind, stored.version, image);
            all.insert(&engine.pages, key, value);
            let unknown = installs.unknown.get(&installed.page).copied();
            let superseded = [Some(installed.previous), unknown];
            for old in BTreeSet::from(superseded).into_iter().flatten() {
                // Both in one batch have one sequence number: of two for one key either might win.
                if ![Stamp::ZERO, stored.version].contains(&old) {
                    all.remove(&engine.index, index_key(old, installed.page));
                }
            }
            all.insert(&engine.index, index_key(stored.version, installed.page), []);
        }
        for (of, changes) in batch.apart.iter().zip(&apart) {
            let (key, last) = (page_key(of.page), of.changes.last());
            let version = last.map_or(Stamp::ZERO, |(stamp, _)| *stamp);
            all.insert(&engine.apart, key, encode_value(&key, KIND_APART, version, changes));
        }
        for page in &batch.joined {
            all.remove(&engine.apart, page_key(*page));
        }
        let value = encode_value(META_KEY, KIND_META, batch.meta.installed, &meta);
        all.insert(&engine.meta, META_KEY, value);
        engine.marks.put(&mut all, &engine.keyspaces());
        self.commit(engine, all, batch, installs)?;
        installs.done += 1;
        for of in &batch.pages {
            installs.unknown.remove(&of.page);
        }
        engine.marks.done(&engine.keyspaces()).map_err(|error| self.failed(&error))
    }

    fn apart_of(&self, engine: &Engine, page: PageId) -> Result<Apart, PagesError> {
        let key = page_key(page);
        let what = format!("what is kept apart from page {page}");
        let value = engine.apart.get(key).map_err(|error| self.fault(&error))?;
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
        let malformed = || self.damaged("the change index".into(), "a key of another length");
        let (stamp, page) = key.split_first_chunk().ok_or_else(malformed)?;
        let page = parse_page(page).ok_or_else(malformed)?;
        Ok((Stamp(u64::from_be_bytes(*stamp)), page))
    }

    fn page_entry(&self, key: &UserKey) -> Result<PageId, PagesError> {
        parse_page(key)
            .ok_or_else(|| self.damaged("the table of pages".into(), "a key of another length"))
    }
}

fn free_bytes(path: &Path) -> std::io::Result<u64> {
    let status = rustix::fs::statvfs(path)?;
    Ok(status.f_bavail.saturating_mul(status.f_frsize))
}

fn encode_value(key: &[u8], kind: u8, version: Stamp, body: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(HEADER_BYTES + body.len());
    value.extend_from_slice(&[FORMAT, kind, 0, 0, 0, 0, 0, 0]);
    value.extend_from_slice(&version.0.to_le_bytes());
    let crc = value_crc(key, &value, body);
    value[4..8].copy_from_slice(&crc.to_le_bytes());
    value.extend_from_slice(body);
    value
}

/// Covers the key, so that a misplaced value fails, and all of the value but the checksum.
fn value_crc(key: &[u8], header: &[u8], body: &[u8]) -> u32 {
    let crc = crc32c::crc32c(key);
    let crc = crc32c::crc32c_append(crc, &header[..4]);
    let crc = crc32c::crc32c_append(crc, &header[8..]);
    crc32c::crc32c_append(crc, body)
}

fn page_key(page: PageId) -> [u8; 24] {
    let mut key = [0; 24];
    key[..16].copy_from_slice(&page.volume.0.to_be_bytes());
    key[16..].copy_from_slice(&page.page.0.to_be_bytes());
    key
}

fn index_key(stamp: Stamp, page: PageId) -> [u8; 32] {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&stamp.0.to_be_bytes());
    key[8..].copy_from_slice(&page_key(page));
    key
}

fn parse_page(key: &[u8]) -> Option<PageId> {
    let key: &[u8; 24] = key.try_into().ok()?;
    let (volume, page) = key.split_at(16);
    Some(PageId {
        volume: VolumeId(u128::from_be_bytes(volume.try_into().ok()?)),
        page: PageNo(u64::from_be_bytes(page.try_into().ok()?)),
    })
}

pub(super) fn fault(place: &Path, error: &fjall::Error) -> PagesError {
    let place = place.display().to_string();
    let io = match error {
        fjall::Error::Io(io) => Some(io),
        fjall::Error::Storage(fjall::LsmError::Io(io)) => Some(io),
        _ => None,
    };
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    match (error, io.map(std::io::Error::kind)) {
        (_, Some(StorageFull | QuotaExceeded)) => PagesError::Full { place },
        (fjall::Error::Locked, _) => PagesError::Locked { place },
        (fjall::Error::Io(_) | fjall::Error::Poisoned, _) => {
            PagesError::Failed { place, detail: error.to_string() }
        }
        _ => PagesError::Damaged { place, what: "something".into(), detail: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden bytes of the keys and of the value header. A difference is a change of format.
    #[test]
    fn keys_and_values_are_as_documented() {
        let page = PageId { volume: VolumeId(0x0102), page: PageNo(0x0304) };
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let key = page_key(page);
        assert_eq!(hex(&key), "000000000000000000000000000001020000000000000304");
        let index = index_key(Stamp(0x0506), page);
        assert_eq!(hex(&index), format!("0000000000000506{}", hex(&key)));
        let value = encode_value(&key, KIND_IMAGE, Stamp(0x0506), b"image");
        assert_eq!(hex(&value), GOLDEN_VALUE);
    }

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
        pages.free = |_| Ok((8 << 20) + 4096);
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
            pages.free = |_| Ok((8 << 20) + WRITTEN_TIMES * 1000);
            pages
        };
        let (one, other) = (open("one"), open("other"));
        let first = one.reserve(1000).expect("there is room");
        let refused = other.reserve(1).expect_err("the other one's install takes it");
        assert!(matches!(refused, PagesError::Full { .. }), "{refused}");
        drop(first);
        drop(other.reserve(1000).expect("the install is done"));
    }

    const GOLDEN_VALUE: &str = "010000002ed38e110605000000000000696d616765";
}
