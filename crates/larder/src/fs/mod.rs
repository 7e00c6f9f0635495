//! The file layer: a tree of files over a volume's pages, by transactions of the client library.
//!
//! `docs/decisions/0006-file-layer.md` says how and why, `docs/formats/files.md` is the format.
//! Every operation is one serializable transaction, run again by itself when it met a conflict.
//! The layer is generic over [`TxStore`], so that tests run it over `memory::MemoryStore`.
//!
//! [`FileSystem`] holds what this node remembers between operations: page numbers to hand out,
//! the inode page each directory is being filled into, open files with what was written to them
//! and not yet committed. None of it is needed for correctness; all of it is bounded.

mod accessed;
mod acl;
mod ahead;
mod alloc;
mod awake;
mod caller;
pub mod check;
#[cfg(feature = "runtime")]
pub mod client;
mod closes;
mod content;
mod crawl;
mod dirty;
#[cfg(feature = "runtime")]
pub mod export;
mod faults;
#[cfg(feature = "runtime")]
mod host;
#[cfg(feature = "runtime")]
pub mod import;
mod kept;
mod late;
mod locks;
#[cfg(any(test, feature = "memory-store"))]
pub mod memory;
mod names;
mod open;
mod operations;
mod orphans;
pub mod record;
mod removals;
mod rename;
pub mod repair;
mod space;
#[cfg(test)]
mod tests;
mod through;
mod trie;
mod tx;
mod unreached;
mod walk;
mod write;
mod xattr;

pub use ahead::ReadAhead;
pub use caller::on_behalf_of;
#[cfg(feature = "runtime")]
pub use client::VolumeStore;
pub use faults::{FsFault, FsFaults};
pub use kept::{Kept, KeptPart};
pub use locks::{Holder, Lock, LockAsk, LockKind, NodeRef};
#[cfg(feature = "runtime")]
pub(crate) use locks::{forget_lock_holders, lock_holders_page};
pub use names::Create;
pub use open::{Handle, Read};
pub use operations::{Attr, DirEntry, Found, SetAttr, Usage};
pub use record::{Content, InodeId, Kind, XattrList};
pub use rename::RenameMode;
pub use space::{Allocate, Seek};
pub use through::Place;
pub use trie::Position;
pub use tx::{Mode, Object, SlottedPages, Taken, Tx, TxError, TxStore};
pub use xattr::XattrMode;

use accessed::Accessed;
use alloc::{InodePages, Numbers};
use closes::Closes;
use crawl::Crawler;
use open::OpenFiles;
use orphans::OrphansSeen;
use record::{Inode, ROOT_PAGE, ROOT_SLOT, Root, Xattrs};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use larder_core::id::{PageNo, Slot};

/// What other nodes may have written beside the records of [`record`]: locks, and access lists. What is accepted of
/// any bytes is written and read again the same. For fuzzing.
///
/// # Panics
/// It is not.
#[doc(hidden)]
pub fn check_decoders(bytes: &[u8]) {
    locks::check_records(bytes);
    if let Ok(Some(list)) = acl::Acl::decode(bytes) {
        assert_eq!(acl::Acl::decode(&list.encode()), Ok(Some(list)));
    }
}

/// Bytes of a page of a volume made for files.
pub const PAGE_BYTES: u32 = 32 << 10;
/// Pages known to be full at most; what is beyond is found out again.
const FULL_MAX: usize = 1 << 16;
/// Tries known at most, likewise. Of directories that others remove nobody hears here.
const TRIES_MAX: usize = 1 << 13;

/// What can go wrong in the file layer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FsError {
    /// No such name, or the file has been removed.
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken.
    #[error("file exists")]
    Exists,
    /// A directory is needed here.
    #[error("not a directory")]
    NotDirectory,
    /// A directory cannot be used here.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has names in it.
    #[error("directory not empty")]
    NotEmpty,
    /// A name of more than 255 bytes, or a link's path of more than 4095.
    #[error("name too long")]
    NameTooLong,
    /// Empty names, names with a slash or zero byte, a directory moved into itself.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// Larger than a file can be.
    #[error("file too large")]
    TooLarge,
    /// No place could be found for it.
    #[error("no space left")]
    NoSpace,
    /// No bytes there or after it.
    #[error("no data there")]
    NoData,
    /// No such extended attribute.
    #[error("no such attribute")]
    NoXattr,
    /// Not what a volume of files can do.
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    /// The volume holds no tree of files, and perhaps a program's own objects.
    #[error(
        "the volume holds no tree of files: `larder volume import --create` makes one if the volume \
         is empty; else use another"
    )]
    Unformatted,
    /// Records that make no sense.
    #[error("damaged: {0}")]
    Damaged(String),
    /// Records of another version.
    #[error(
        "{what}: format {found}, and this version of larder reads {reads}: export the volume with \
         the version that wrote it, and import that into a new one"
    )]
    Format {
        /// Which record.
        what: &'static str,
        /// Its version.
        found: u8,
        /// The version that is read here.
        reads: u8,
    },
    /// A limit of locks is reached.
    #[error("no more locks: a file has 256, a node those of 4,096 files")]
    NoLocks,
    /// This node was not heard of for longer than the lease of its locks: they are another's by
    /// now, and what was written under them is lost.
    #[error("locks of the file were lost: close it, and open it again")]
    LockLost,
    /// The store failed; a conflict only when all attempts were used up.
    #[error(transparent)]
    Store(#[from] TxError),
    /// The host's files, at import and export.
    #[error("{path}: {error}")]
    Host {
        /// Which file.
        path: std::path::PathBuf,
        /// What happened.
        error: String,
    },
}

impl FsError {
    /// Whether running the transaction again may succeed.
    fn is_retryable(&self) -> bool {
        matches!(self, Self::Store(TxError::Conflict(_) | TxError::Full(_) | TxError::Gone(_)))
    }
}

/// Limits of the file layer.
#[derive(Clone, Debug)]
pub struct FsOptions {
    /// How often an operation is tried before its conflict is reported.
    pub attempts_max: u32,
    /// Bytes written to one open file that may wait for their commit; the writer that would pass
    /// this commits them first.
    pub dirty_bytes_max: usize,
    /// The same for all open files together.
    pub dirty_total_max: usize,
    /// How long a writer may wait for room, and whoever opens a file for a removal of it whose outcome is
    /// not known, before he is refused.
    pub write_limit: Duration,
    /// Most bytes asked for ahead of a sequential reader.
    pub read_ahead_bytes_max: u64,
    /// A file without a name of which no node has said for this long that it is open there is
    /// freed. A node that is cut off for longer loses those it holds.
    pub orphan_age: Duration,
    /// What was written to a file that nobody holds open any more, and could not be committed for
    /// this long since, is lost: later it would go over what others wrote.
    pub dropped_age: Duration,
    /// A node of which nothing is heard for this long loses its locks.
    pub lock_lease: Duration,
    /// Planted faults, for tests of the simulator.
    pub faults: FsFaults,
}

impl FsOptions {
    /// How often a node is to say which files without a name it holds open.
    #[must_use]
    pub fn orphan_touch(&self) -> Duration {
        self.orphan_age / 8
    }
}

impl Default for FsOptions {
    fn default() -> Self {
        Self {
            attempts_max: 100,
            dirty_bytes_max: 8 << 20,
            dirty_total_max: 128 << 20,
            write_limit: Duration::from_secs(30),
            read_ahead_bytes_max: 4 << 20,
            orphan_age: Duration::from_secs(86_400),
            dropped_age: Duration::from_secs(300),
            lock_lease: Duration::from_secs(30),
            faults: FsFaults::NONE,
        }
    }
}

/// Runs a transaction until it commits: `transact!(fs, tx => body)`, the body an expression of
/// type `Result<_, FsError>` over `&tx`. An error of the body ends it without a commit.
macro_rules! transact {
    ($fs:expr, $tx:ident => $body:expr) => {
        async {
            let mut attempt = 0;
            loop {
                let $tx = $fs.store.begin($crate::fs::Mode::Normal).await?;
                let result: Result<_, $crate::fs::FsError> = async { $body }.await;
                let result = match result {
                    Ok(value) => match $fs.locks_stand(&$tx).await {
                        Ok(()) => $tx.commit().await.map(|()| value).map_err(Into::into),
                        Err(error) => Err(error),
                    },
                    Err(error) => Err(error),
                };
                match result {
                    Ok(value) => break Ok::<_, $crate::fs::FsError>(value),
                    Err(error) => $fs.again(&mut attempt, error).await?,
                }
            }
        }
        .await
    };
}
pub(crate) use transact;

/// A tree of files in a volume. See the module's documentation.
pub struct FileSystem<S: TxStore> {
    store: S,
    root: Root,
    options: FsOptions,
    numbers: Numbers,
    inode_pages: InodePages,
    open_files: Arc<OpenFiles>,
    accessed: Accessed,
    /// Pages that the origin found full although they looked otherwise here.
    full: Mutex<BTreeSet<PageNo>>,
    /// Trie root pages of directories: fixed for an inode's life.
    tries: Mutex<BTreeMap<InodeId, PageNo>>,
    crawler: Crawler<S>,
    /// Files without a name that nobody here holds open.
    to_reap: Mutex<VecDeque<InodeId>>,
    orphans_seen: Mutex<OrphansSeen>,
    /// Removals whose outcome is not known.
    unsettled: Mutex<removals::Unsettled>,
    locks: locks::Locks,
    closes: Closes,
}

/// Takes a lock whose holders cannot panic half-way.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no code that holds this lock can panic half-way")
}

impl<S: TxStore> FileSystem<S> {
    /// Opens the tree of a volume.
    pub async fn open(store: S, options: FsOptions) -> Result<Self, FsError> {
        let tx = store.begin(Mode::Normal).await?;
        let found = tx.get(ROOT_PAGE, ROOT_SLOT).await?;
        drop(tx);
        let (_, bytes) = found.ok_or(FsError::Unformatted)?;
        Ok(Self::with_root(store, options, Root::decode(&bytes)?))
    }

    /// Opens the tree of a volume, after making it if the volume is empty: [`FsError::Unformatted`]
    /// if its page 1 holds something else. Two nodes may do it at once: the second finds the
    /// first's.
    pub async fn open_or_format(
        store: S,
        options: FsOptions,
        hash_key: [u8; 16],
    ) -> Result<Self, FsError> {
        for _ in 0..options.attempts_max.max(1) {
            match Self::open(store.clone(), options.clone()).await {
                Err(FsError::Unformatted) => {}
                other => return other,
            }
            match Self::format(&store, hash_key).await {
                // Somebody else is at it, or the origin was restored under it.
                Err(error) if error.is_retryable() => {}
                other => other?,
            }
            // What this node has may be of before the other's commit: it would find no tree.
            store.refresh().await?;
        }
        Self::open(store, options).await
    }

    fn with_root(store: S, options: FsOptions, root: Root) -> Self {
        let crawler = Crawler::new(store.clone(), root.clone());
        let counter = store.clone();
        let locks = locks::Locks::new(options.lock_lease);
        let open_files =
            OpenFiles::new(options.dirty_total_max, move |bytes| counter.count_lost(bytes));
        Self {
            store,
            root,
            open_files: Arc::new(open_files),
            accessed: Accessed::default(),
            options,
            numbers: Numbers::default(),
            inode_pages: InodePages::default(),
            full: Mutex::default(),
            tries: Mutex::default(),
            crawler,
            to_reap: Mutex::default(),
            orphans_seen: Mutex::default(),
            unsettled: Mutex::default(),
            locks,
            closes: Closes::default(),
        }
    }

    async fn format(store: &S, hash_key: [u8; 16]) -> Result<(), FsError> {
        let first = store.allocate(2).await?;
        let tx = store.begin(Mode::Normal).await?;
        if tx.get(ROOT_PAGE, ROOT_SLOT).await?.is_some() {
            return Ok(());
        }
        // What a program of its own keeps there is no place for a tree.
        if tx.slots(ROOT_PAGE).await?.is_some_and(|slots| !slots.is_empty()) {
            return Err(FsError::Unformatted);
        }
        let now = store.now();
        let mut ids = Vec::new();
        for (slot, trie) in [(Slot(2), first), (Slot(4), PageNo(first.0 + 1))] {
            let directory = Inode {
                kind: Kind::Directory,
                mode: 0o755,
                uid: 0,
                gid: 0,
                links: 2,
                size: 0,
                mtime: now,
                ctime: now,
                atime: now,
                change: 0,
                content: Content::Trie(trie),
                xattrs: Xattrs::None,
            };
            let generation = tx.create(ROOT_PAGE, slot, directory.encode()).await?;
            let id = InodeId { page: ROOT_PAGE, slot, generation };
            trie::create(&tx, trie, id).await?;
            ids.push(id);
        }
        let root = Root { hash_key, root: ids[0], orphans: ids[1] };
        tx.create(ROOT_PAGE, ROOT_SLOT, root.encode()).await?;
        match tx.commit().await {
            // Somebody else was faster.
            Err(TxError::Conflict(_) | TxError::Gone(_)) => Ok(()),
            other => Ok(other?),
        }
    }

    /// The root directory.
    #[must_use]
    pub fn root(&self) -> InodeId {
        self.root.root
    }

    /// The volume.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Memory taken by what was written and waits for its commit, of all open files: at most
    /// [`FsOptions::dirty_total_max`].
    #[must_use]
    pub fn waiting_bytes(&self) -> usize {
        self.open_files.room.used()
    }

    /// Its limits.
    #[must_use]
    pub fn options(&self) -> &FsOptions {
        &self.options
    }

    /// Bytes up to which a file is kept beside its inode.
    #[must_use]
    pub fn inline_bytes_max(&self) -> u64 {
        u64::from(self.store.page_bytes()) / 8
    }

    pub(crate) fn hash(&self, name: &[u8]) -> u64 {
        self.root.hash(name)
    }

    /// Prepares the next attempt after a failed one, or gives the error back.
    async fn again(&self, attempt: &mut u32, error: FsError) -> Result<(), FsError> {
        *attempt += 1;
        if !error.is_retryable() || *attempt >= self.options.attempts_max {
            return Err(error);
        }
        if let FsError::Store(TxError::Full(page) | TxError::Gone(page)) = &error {
            self.inode_pages.retire(*page);
        }
        if let FsError::Store(TxError::Full(page)) = &error {
            let mut full = lock(&self.full);
            if full.len() >= FULL_MAX {
                full.clear();
            }
            full.insert(*page);
        }
        self.store.pause(*attempt).await;
        Ok(())
    }

    fn is_full(&self, page: PageNo) -> bool {
        lock(&self.full).contains(&page)
    }

    fn not_full(&self, page: PageNo) {
        lock(&self.full).remove(&page);
    }

    /// A directory's trie, without a read of its inode, which every creation in it changes.
    async fn trie_of(&self, directory: InodeId) -> Result<PageNo, FsError> {
        if let Some(root) = lock(&self.tries).get(&directory) {
            return Ok(*root);
        }
        let tx = self.store.begin(Mode::Normal).await?;
        let root = self.inode(&tx, directory).await?.trie()?;
        self.remember_trie(directory, root);
        Ok(root)
    }

    fn remember_trie(&self, directory: InodeId, root: PageNo) {
        let mut tries = lock(&self.tries);
        if tries.len() >= TRIES_MAX {
            tries.clear();
        }
        tries.insert(directory, root);
    }

    /// A directory is gone.
    fn forget_directory(&self, directory: InodeId) {
        let page = lock(&self.tries).remove(&directory);
        page.into_iter().for_each(|page| self.crawler.forget(page));
        self.inode_pages.end(directory);
    }

    /// An inode, with the time of access that is known here. A value read.
    async fn inode(&self, tx: &S::Tx, id: InodeId) -> Result<Inode, FsError> {
        match tx.get(id.page, id.slot).await? {
            Some((generation, bytes)) if generation == id.generation => {
                let mut inode = Inode::decode(&bytes)
                    .map_err(|error| FsError::Damaged(format!("inode {id}: {error}")))?;
                self.saw_inode(id, &inode);
                self.accessed.apply(id, &mut inode);
                Ok(inode)
            }
            _ => Err(FsError::NotFound),
        }
    }

    async fn put_inode(&self, tx: &S::Tx, id: InodeId, inode: &Inode) -> Result<(), FsError> {
        Ok(tx.put(id.page, id.slot, id.generation, inode.encode()).await?)
    }
}
