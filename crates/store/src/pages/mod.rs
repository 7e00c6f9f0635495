//! The page engine: images and tombstones of pages, the change index, and the domain's metadata.
//!
//! An engine takes over what the origin installs: all of a batch or nothing of it, durable when
//! answered. It is behind the log, never ahead of it. Everything blocks; `load` and `install` may
//! be called from different threads at once.

mod fjall;
mod format;
mod journal;
mod marks;
mod model;
mod moves;
mod space;
mod unfinished;

pub use fjall::{FjallConfig, FjallPages, free_bytes};
pub use model::ModelPages;

use larder_core::id::{PageId, PageNo, Stamp, VolumeId};
use larder_core::record::{Apart, DomainMeta, InstallBatch, StoredPage};

/// Any bytes as keys, values and marks of the engine, and as what it says of where an image is. What is
/// accepted is written and read again the same. For fuzzing.
///
/// # Panics
/// It is not.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub fn check_decoders(bytes: &[u8]) {
    format::check_decoders(bytes);
    marks::check_decoders(bytes);
    let _ = moves::file_of(bytes);
}

/// Any bytes as the engine's journal, and batches that were written well, of which one is harmed: of those
/// none that is whole is cut off. For fuzzing.
///
/// # Panics
/// One is.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub fn check_journal(bytes: &[u8]) {
    journal::check(bytes);
}

/// Entries of the change index, ascending, and whether there are more.
pub type Changed = (Vec<(Stamp, PageId)>, bool);

/// Changes kept apart, or what is wrong with those of a page.
pub type KeptApart = Vec<Result<Apart, (PageId, PagesError)>>;

/// A page engine.
pub trait Pages {
    /// A page as last installed; none: it never was. An image of a version that the change index
    /// does not name for the page is not that one, but from a backup, say: it is refused. Else what
    /// was committed between that version and the last one installed would be lost without a word.
    fn load(&self, page: PageId) -> Result<Option<StoredPage>, PagesError>;

    /// Takes over a batch in one atomic step, durable when this returns. In the same step every
    /// page's index entry (version, page) is added and that of its `previous` version discarded:
    /// without being read, since the origin knows it (rule 20). Of pages to be removed nothing is
    /// left, nor of what is kept apart from them; their index entries are discarded too.
    ///
    /// # Errors
    /// [`PagesError::Full`]: nothing was done; try again when there is room. Anything else: whether
    /// the batch will be found after a restart is not known; the engine must not be used for
    /// another install.
    fn install(&self, batch: &InstallBatch) -> Result<(), PagesError>;

    /// At most `limit` entries of the change index above (stamp, page), ascending.
    fn changed_after(&self, after: (Stamp, PageId), limit: usize) -> Result<Changed, PagesError>;

    /// The metadata of the last install; none: nothing was ever installed.
    fn meta(&self) -> Result<Option<DomainMeta>, PagesError>;

    /// All that is kept apart from pages that could not be read, ascending by page. Damage of one
    /// page's changes is told beside those of the others.
    fn apart(&self) -> Result<KeptApart, PagesError>;

    /// At most `limit` pages of a deleted volume with numbers above `after` that hold anything, what
    /// is kept apart included, ascending, each with the version of its index entry (as far as it can
    /// be read: another one does no harm); not the page that stands for the volume. Fewer than
    /// `limit`: there are no more.
    fn removable(
        &self,
        volume: VolumeId,
        after: PageNo,
        limit: usize,
    ) -> Result<Vec<(PageId, Stamp)>, PagesError>;

    /// Gives back the space of what was removed or replaced. May take long and write much; loads and
    /// installs go on meanwhile, and it ends before they would have to wait for it.
    ///
    /// # Errors
    /// [`PagesError::Full`] and [`PagesError::PutOff`]: it is to be tried again later.
    fn give_back(&self) -> Result<(), PagesError>;

    /// At most `limit` pages of a volume with numbers above `after`, ascending, tombstones
    /// included, but for the page that stands for the volume. Fewer than `limit`: there are no more.
    fn pages_of(
        &self,
        volume: VolumeId,
        after: PageNo,
        limit: usize,
    ) -> Result<Vec<PageId>, PagesError>;
}

/// Why the page engine could not do what was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PagesError {
    /// No room.
    #[error("the page engine in {place} is full: free space on its file system")]
    Full {
        /// Its directory.
        place: String,
    },
    /// Space was not given back, or not all of it.
    #[error("space in {place} is given back later: {why}")]
    PutOff {
        /// Its directory.
        place: String,
        /// What was in the way.
        why: String,
    },
    /// The engine failed.
    #[error(
        "the page engine in {place} failed: {detail}; check the device and the system's log before a restart"
    )]
    Failed {
        /// Its directory.
        place: String,
        /// What it said.
        detail: String,
    },
    /// Another process uses it.
    #[error("the page engine in {place} is locked: another process serves it; stop that one first")]
    Locked {
        /// Its directory.
        place: String,
    },
    /// Some of what was installed is not there, though later things are.
    #[error(
        "the page engine in {place} has lost some of what was installed (keyspace {what}: {detail}): its journal or a table was damaged; restore the domain from a backup"
    )]
    Lost {
        /// Its directory.
        place: String,
        /// Which of its parts.
        what: String,
        /// What is missing.
        detail: String,
    },
    /// An image that checks, and is not the one last installed.
    #[error(
        "page {page} in the page engine in {place} is as of stamp {version}, and was last installed as of another: an image from an older backup is refused, since what was committed after it would be lost; restore the one last installed, or the whole domain (the check of the store names both stamps)"
    )]
    NotInstalled {
        /// Its directory.
        place: String,
        /// Which page.
        page: PageId,
        /// The image's version.
        version: Stamp,
    },
    /// A format of another time: nothing is wrong with the bytes.
    #[error(
        "{what} in the page engine in {place} is of another version: {detail}: use the version that wrote it"
    )]
    Format {
        /// Its directory.
        place: String,
        /// Which page, or the metadata.
        what: String,
        /// Which format it has, and which are read.
        detail: String,
    },
    /// Bytes that do not check.
    #[error("{what} in the page engine in {place} is damaged: {detail}; restore it from a backup")]
    Damaged {
        /// Its directory.
        place: String,
        /// Which page, or the metadata.
        what: String,
        /// What is wrong.
        detail: String,
    },
}

impl<P: Pages + ?Sized> Pages for std::sync::Arc<P> {
    fn load(&self, page: PageId) -> Result<Option<StoredPage>, PagesError> {
        (**self).load(page)
    }
    fn install(&self, batch: &InstallBatch) -> Result<(), PagesError> {
        (**self).install(batch)
    }
    fn changed_after(&self, after: (Stamp, PageId), limit: usize) -> Result<Changed, PagesError> {
        (**self).changed_after(after, limit)
    }
    fn meta(&self) -> Result<Option<DomainMeta>, PagesError> {
        (**self).meta()
    }
    fn apart(&self) -> Result<KeptApart, PagesError> {
        (**self).apart()
    }
    fn removable(
        &self,
        volume: VolumeId,
        after: PageNo,
        limit: usize,
    ) -> Result<Vec<(PageId, Stamp)>, PagesError> {
        (**self).removable(volume, after, limit)
    }
    fn give_back(&self) -> Result<(), PagesError> {
        (**self).give_back()
    }
    fn pages_of(
        &self,
        volume: VolumeId,
        after: PageNo,
        limit: usize,
    ) -> Result<Vec<PageId>, PagesError> {
        (**self).pages_of(volume, after, limit)
    }
}
