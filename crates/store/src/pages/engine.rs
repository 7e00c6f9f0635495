//! `fjall` itself: opened, watched, and given back before it is opened again.
//!
//! It writes in the background: what is in memory to tables, and tables merged into others, which
//! may take as much room as a part of all that it holds. When that fails it takes nothing more, for
//! good, and does not say why; what it has can be read all the same. After a full disk that need not
//! be the end. Nothing that was installed is lost: it is in the journals, synced, until it is in
//! tables, synced. Opened again, the engine throws away what it had begun to write, gives that room
//! back, and goes on.

use super::PagesError;
use super::fjall::{FjallConfig, fault};
use super::marks::Marks;
use fjall::{
    AbstractTree, CompressionType, Database, Error, Keyspace, KeyspaceCreateOptions,
    KvSeparationOptions, PersistMode,
};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Values from this size on are kept apart from the keys: every image but the smallest.
const SEPARATION_BYTES: u32 = 1024;
/// All but marks: rot in a value leaves the key that names its page.
const APART_SEPARATION_BYTES: u32 = super::fjall::HEADER_BYTES as u32;
/// Key of the metadata.
pub(super) const META_KEY: &[u8] = b"domain";

/// How often it is looked at whether the work in the background goes on.
const WATCH_EVERY: Duration = Duration::from_millis(200);
/// With less than this free when that has ended, a full disk has ended it: what it had begun to
/// write is still there, and the log may have given back two segments and its reserve meanwhile.
const SHORT_BYTES: u64 = 256 << 20;
/// With so many tables to be merged installs wait: from 20 on the engine slows them down, from 30
/// on it lets them wait without limit.
const RUNS_MAX: usize = 20;
/// With more in-memory tables of a keyspace to be written installs wait: from 4 on the engine lets
/// them wait without limit, and an install may add two.
const SEALED_MAX: usize = 1;

/// Bytes free on a file system.
pub(super) type Free = fn(&Path) -> std::io::Result<u64>;

/// An open engine.
pub(super) struct Engine {
    // Before the database, which it looks at, is closed.
    watch: Watch,
    pub(super) database: Database,
    pub(super) pages: Keyspace,
    pub(super) index: Keyspace,
    pub(super) apart: Keyspace,
    pub(super) meta: Keyspace,
    pub(super) marks: Marks,
}

impl Engine {
    /// Opens it, or makes it. What it holds is synced before this returns, since it may have been
    /// read from the system's cache (rule 14).
    pub(super) fn open(place: &Path, config: &FjallConfig, free: Free) -> Result<Self, PagesError> {
        let failed = |error: Error| fault(place, &error);
        let database = Database::builder(place)
            .cache_size(config.cache_bytes)
            .worker_threads(config.threads)
            .manual_journal_persist(true)
            .open()
            .map_err(failed)?;
        let plain = || KeyspaceCreateOptions::default().max_memtable_size(config.memtable_bytes);
        let separated = |from: u32| {
            let separation = KvSeparationOptions::default()
                .separation_threshold(from)
                .compression(CompressionType::None);
            plain().with_kv_separation(Some(separation))
        };
        let pages = database.keyspace("pages", || separated(SEPARATION_BYTES)).map_err(failed)?;
        let index = database.keyspace("index", plain).map_err(failed)?;
        let apart =
            database.keyspace("apart", || separated(APART_SEPARATION_BYTES)).map_err(failed)?;
        let meta = database.keyspace("meta", plain).map_err(failed)?;
        database.persist(PersistMode::SyncAll).map_err(failed)?;
        let all = [("pages", &pages), ("index", &index), ("apart", &apart), ("meta", &meta)];
        let marks = Marks::check(&database, place, &all, failed)?;
        if marks.any() != meta.contains_key(META_KEY).map_err(failed)? {
            return Err(PagesError::Lost {
                place: place.display().to_string(),
                what: "meta".into(),
                detail: "the metadata and the marks of installs are not of one time".into(),
            });
        }
        let watch = Watch::begin(database.clone(), place.to_owned(), free)?;
        Ok(Self { watch, database, pages, index, apart, meta, marks })
    }

    pub(super) fn keyspaces(&self) -> [&Keyspace; 4] {
        [&self.pages, &self.index, &self.apart, &self.meta]
    }

    /// Why its background work has ended; none: it has not.
    pub(super) fn ended(&self) -> Option<Ended> {
        self.watch.look(&self.database)
    }

    /// Whether it has so much left to write that an install would wait for it, without limit.
    pub(super) fn lies_behind(&self) -> bool {
        self.keyspaces().into_iter().any(|keyspace| {
            let tree = &keyspace.tree;
            tree.sealed_memtable_count() > SEALED_MAX || tree.l0_run_count() >= RUNS_MAX
        })
    }

    /// Whether a merge is still under way, which closing it would wait for.
    pub(super) fn merges(&self) -> bool {
        self.database.active_compactions() > 0
    }
}

/// Why an engine's background work has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ended {
    /// The disk was full.
    Full,
    /// Something else; the engine tells the system's log only.
    Failed,
}

/// Notes at once what state the disk was in when the background work ended: an idle domain would
/// find it out at its next install, hours later perhaps.
struct Watch {
    /// Dropped to end it.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    found: Arc<Found>,
}

struct Found {
    place: PathBuf,
    free: Free,
    ended: OnceLock<Ended>,
}

impl Found {
    fn look(&self, database: &Database) -> Option<Ended> {
        if let Some(ended) = self.ended.get() {
            return Some(*ended);
        }
        // Nothing is buffered between installs: this asks only whether it takes more.
        let Err(Error::Poisoned) = database.persist(PersistMode::Buffer) else {
            return None;
        };
        let short = (self.free)(&self.place).is_ok_and(|free| free < SHORT_BYTES);
        Some(*self.ended.get_or_init(|| if short { Ended::Full } else { Ended::Failed }))
    }
}

impl Watch {
    fn begin(database: Database, place: PathBuf, free: Free) -> Result<Self, PagesError> {
        let found = Arc::new(Found { place, free, ended: OnceLock::new() });
        let (stop, stopped) = mpsc::channel::<()>();
        let watched = Arc::clone(&found);
        let watch = move || {
            while stopped.recv_timeout(WATCH_EVERY) == Err(RecvTimeoutError::Timeout) {
                if watched.look(&database).is_some() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("larder:pages".into()).spawn(watch);
        let thread = thread.map_err(|error| PagesError::Failed {
            place: found.place.display().to_string(),
            detail: error.to_string(),
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread), found })
    }

    fn look(&self, database: &Database) -> Option<Ended> {
        self.found.look(database)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // It only looks: if it panicked, nothing depends on it.
            let _ended = thread.join();
        }
    }
}
