//! What the file layer needs of transactions: a small trait, so that the layer runs over the
//! client library, over the in-memory store of the tests, and in the simulator.

use bytes::Bytes;
use larder_core::commit::PageKind;
use larder_core::id::{Generation, PageNo, Slot};
use larder_core::rights::Right;
use std::future::Future;
use std::time::Duration;

/// Why the store could not do it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TxError {
    /// Something read was changed by another; nothing was done. Run it again.
    #[error("conflict: {0}")]
    Conflict(String),
    /// The page has no room for the write; nothing was done. Put it elsewhere.
    #[error("page {} is full", .0.0)]
    Full(PageNo),
    /// A page or object written to is not there (any more); nothing was done. Run it again: what
    /// led there will be read anew.
    #[error("page {} or an object of it is gone", .0.0)]
    Gone(PageNo),
    /// Over a limit of the store.
    #[error("too large: {0}")]
    TooLarge(String),
    /// No answer within the limit.
    #[error("no answer within the time limit")]
    TimedOut,
    /// The commit may have been done or not.
    #[error("the outcome of the commit is not known")]
    OutcomeUnknown,
    /// The cached state is older than the session allows.
    #[error("{0}")]
    Stale(String),
    /// The store cannot serve now.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The origin's store has no room; nothing was done.
    #[error("{0}")]
    NoSpace(String),
    /// The volume's quota does not allow it; nothing was done. What frees or shrinks is taken.
    #[error("{0}")]
    Quota(String),
    /// A right of the volume is short; nothing was done. It may be given again.
    #[error("{0}")]
    NoRight(String),
    /// Bytes at the origin are damaged.
    #[error("damaged: {0}")]
    Damaged(String),
    /// Not allowed.
    #[error("not allowed: {0}")]
    Denied(String),
    /// The store was restored from an old copy, and what was seen of it since is gone: nothing
    /// that is remembered of it means the same any more.
    #[error(
        "the origin was restored from an old copy, and lost what was seen here: unmount and mount \
         again"
    )]
    Forked,
    /// The volume was deleted: nothing of it will ever be there again.
    #[error("the volume was deleted; what was not committed is lost: unmount")]
    Deleted,
}

/// What a volume takes, and what it may take still.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Taken {
    /// Bytes that it takes at the origin.
    pub bytes: u64,
    /// Bytes that it may take beside them: what is left of its quota, and no more than the origin's
    /// store has room for. None: neither is known.
    pub free: Option<u64>,
}

/// What a transaction is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Reads and perhaps writes; serializable.
    Normal,
    /// Reads one state for as long as it takes, whatever changes meanwhile.
    Snapshot,
}

/// An object of a page: its slot, which of the slot's objects it is, its bytes.
pub type Object = (Slot, Generation, Bytes);

/// One transaction. Reads see its own writes. Dropping it undoes it. Page numbers are of one
/// volume; every method names what conflicts with it, in the words of `larder_core::commit`.
pub trait Tx: Send + Sync {
    /// The object in a slot. A value read, or, of an empty slot or absent page, a read of absence.
    fn get(
        &self,
        page: PageNo,
        slot: Slot,
    ) -> impl Future<Output = Result<Option<(Generation, Bytes)>, TxError>> + Send;

    /// All objects of a slotted page, ascending; none: no such page. A read of the whole page.
    fn get_all(
        &self,
        page: PageNo,
    ) -> impl Future<Output = Result<Option<Vec<Object>>, TxError>> + Send;

    /// Which slots of a slotted page are filled, ascending; none: no such page. Conflicts with
    /// creations and deletions in the page, not with changes of what is there.
    fn slots(
        &self,
        page: PageNo,
    ) -> impl Future<Output = Result<Option<Vec<(Slot, Generation)>>, TxError>> + Send;

    /// A raw page's bytes; none: no such page. A value read.
    fn get_raw(&self, page: PageNo) -> impl Future<Output = Result<Option<Bytes>, TxError>> + Send;

    /// Bytes of records a page has room for, own writes counted; none: no such page. A hint, not
    /// a read.
    fn room(&self, page: PageNo) -> impl Future<Output = Result<Option<usize>, TxError>> + Send;

    /// Brings pages at hand in one request. Not a read.
    fn fetch(&self, pages: &[PageNo]) -> impl Future<Output = Result<(), TxError>> + Send;

    /// Makes a page with a number from [`TxStore::allocate`].
    fn create_page(
        &self,
        page: PageNo,
        kind: PageKind,
    ) -> impl Future<Output = Result<(), TxError>> + Send;

    /// Makes a page with a number that a record names which this transaction has read, and has not
    /// written itself: whoever wrote it was given the number.
    fn create_named_page(
        &self,
        page: PageNo,
        kind: PageKind,
    ) -> impl Future<Output = Result<(), TxError>> + Send;

    /// Removes a page for good, without reading it.
    fn delete_page(&self, page: PageNo) -> impl Future<Output = Result<(), TxError>> + Send;

    /// Creates an object in a slot that must be empty.
    fn create(
        &self,
        page: PageNo,
        slot: Slot,
        value: Bytes,
    ) -> impl Future<Output = Result<Generation, TxError>> + Send;

    /// Overwrites an object, without reading its bytes.
    fn put(
        &self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
        value: Bytes,
    ) -> impl Future<Output = Result<(), TxError>> + Send;

    /// Deletes an object.
    fn delete(
        &self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
    ) -> impl Future<Output = Result<(), TxError>> + Send;

    /// Adds to a 64-bit number of an object. Commutes with its like.
    fn add(
        &self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
        offset: u32,
        delta: i64,
    ) -> impl Future<Output = Result<(), TxError>> + Send;

    /// Raises a 64-bit number of an object. Commutes with its like.
    fn max(
        &self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
        offset: u32,
        value: u64,
    ) -> impl Future<Output = Result<(), TxError>> + Send;

    /// Writes into a raw page, without reading it.
    fn write_raw(
        &self,
        page: PageNo,
        offset: u32,
        bytes: Bytes,
    ) -> impl Future<Output = Result<(), TxError>> + Send;

    /// Cuts or zero-extends a raw page, without reading it.
    fn truncate_raw(
        &self,
        page: PageNo,
        length: u32,
    ) -> impl Future<Output = Result<(), TxError>> + Send;

    /// Whether anything is to be written.
    fn writes(&self) -> bool;

    /// Commits: durable when it returns. Without writes, says whether all it read still held.
    fn commit(self) -> impl Future<Output = Result<(), TxError>> + Send;
}

/// The pages of a volume that may hold names and inodes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SlottedPages {
    /// Those that are slotted, ascending.
    pub pages: Vec<PageNo>,
    /// Those that are damaged at the origin, of whatever kind, ascending.
    pub damaged: Vec<PageNo>,
}

/// One volume, as a source of transactions. A clone shares it.
pub trait TxStore: Clone + Send + Sync + 'static {
    /// Its transactions.
    type Tx: Tx;

    /// Bytes of a page.
    fn page_bytes(&self) -> u32;

    /// Begins a transaction, on a state that shows every earlier commit of this store.
    fn begin(&self, mode: Mode) -> impl Future<Output = Result<Self::Tx, TxError>> + Send;

    /// Waits until what is read from here on is the state that the origin has now, or a later one.
    fn refresh(&self) -> impl Future<Output = Result<(), TxError>> + Send;

    /// Page numbers never used before: the first of a run of `count`. Good while
    /// [`TxStore::history`] stays the same.
    fn allocate(&self, count: u64) -> impl Future<Output = Result<PageNo, TxError>> + Send;

    /// Changes whenever numbers from [`TxStore::allocate`] are not to be used any more, since they
    /// may be given to somebody else.
    fn history(&self) -> u128;

    /// Whether what was read may still be relied on: [`TxError::Forked`] or
    /// [`TxError::Deleted`] once all transactions fail with that, [`TxError::NoRight`] as long as the
    /// volume may not be read.
    fn standing(&self) -> Result<(), TxError>;

    /// What may be done with the volume now, as far as is known here.
    fn right(&self) -> Right;

    /// Asks for pages that will be wanted soon; does not wait for them.
    fn prefetch(&self, pages: &[PageNo]);

    /// Waits before the next attempt (`attempt` counts from 1) after a conflict, with jitter.
    fn pause(&self, attempt: u32) -> impl Future<Output = ()> + Send;

    /// Nanoseconds since 1970 UTC: for the times of files.
    fn now(&self) -> i64;

    /// How long what is read now may be called current; none: no such limit, zero: not at all.
    fn current_for(&self) -> Option<Duration>;

    /// What the volume takes, as it was a few seconds ago at most; when the origin does not say so
    /// soon, as it was when it did last. Never waits for long.
    fn taken(&self) -> impl Future<Output = Taken> + Send;

    /// What is free by what was said last ([`Self::taken`]), without a wait.
    fn free_seen(&self) -> Option<u64>;

    /// Has [`Self::free_seen`] be asked for anew, soon, if that was not done lately.
    fn look_at_room(&self);

    /// Every slotted page of the volume, by what the origin has of it: for repairs, which look for what
    /// nothing leads to. It may copy the whole volume.
    fn slotted_pages(&self) -> impl Future<Output = Result<SlottedPages, TxError>> + Send;

    /// Counts bytes that were written to files and are lost, for those who watch over the node.
    fn count_lost(&self, bytes: u64);
}
