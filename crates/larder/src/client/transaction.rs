//! A transaction, as its user sees it.

use super::Result;
use bytes::Bytes;
use larder_core::commit::{Op, PageKind};
use larder_core::id::{Generation, ObjectId, PageId, Slot, Stamp, VolumeId};
use std::time::Duration;

/// An object read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Object {
    /// Its name.
    pub id: ObjectId,
    /// Its bytes.
    pub value: Bytes,
}

/// A point of a transaction to which its writes can be taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Savepoint(pub(crate) usize);

/// How a transaction ended well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Committed {
    /// The commit's stamp; for a transaction without writes the stamp at which all it read held.
    pub stamp: Stamp,
}

/// A unit of work: everything it reads is of one state, everything it writes is done at once or
/// not at all. A handle: cloning it gives another handle to the same transaction, so that reads
/// may run side by side. Dropping the last handle aborts it.
///
/// A read of something cached is ready at the first poll; a miss fetches the page and waits at
/// most the session's time limit. Any call may return [`super::Error::Conflict`]: something read
/// before has changed, and the transaction can only be run again.
#[derive(Clone)]
pub struct Transaction {}

impl Transaction {
    // ---- objects ----

    /// An object's bytes. `Gone` when it was deleted or its slot holds a later object.
    pub async fn get(&self, _id: ObjectId) -> Result<Bytes> {
        todo!()
    }

    /// What a slot holds, whatever its generation. Finding nothing is a read too: somebody's
    /// filling the slot conflicts with it.
    pub async fn read_slot(&self, _page: PageId, _slot: Slot) -> Result<Option<Object>> {
        todo!()
    }

    /// Whether a slot is filled, and with which generation. Conflicts with creation and deletion
    /// only, not with updates.
    pub async fn exists(&self, _page: PageId, _slot: Slot) -> Result<Option<Generation>> {
        todo!()
    }

    /// Which slots of a page are filled, ascending; none: there is no such page. Conflicts with
    /// creations and deletions in the page.
    pub async fn slots(&self, _page: PageId) -> Result<Option<Vec<(Slot, Generation)>>> {
        todo!()
    }

    /// All objects of a page, ascending by slot; none: there is no such page. Conflicts with every
    /// change in the page.
    pub async fn read_all(&self, _page: PageId) -> Result<Option<Vec<Object>>> {
        todo!()
    }

    /// Creates an object in an empty slot: an error when the slot is filled.
    pub async fn create_at(
        &self,
        _page: PageId,
        _slot: Slot,
        _value: impl Into<Bytes> + Send,
    ) -> Result<ObjectId> {
        todo!()
    }

    /// Creates an object in a page, in its lowest empty slot. `PageFull` when there is no room.
    pub async fn create(&self, _page: PageId, _value: impl Into<Bytes> + Send) -> Result<ObjectId> {
        todo!()
    }

    /// Overwrites an object. One that outgrows its page is moved, and its id stays good. Blind:
    /// conflicts with deletion only.
    pub async fn update(&self, _id: ObjectId, _value: impl Into<Bytes> + Send) -> Result<()> {
        todo!()
    }

    /// Deletes an object, with whatever it kept in other pages.
    pub async fn delete(&self, _id: ObjectId) -> Result<()> {
        todo!()
    }

    /// Adds to the little-endian 64-bit number at `offset` of the object, wrapping. Two additions
    /// do not conflict.
    pub async fn add(&self, _id: ObjectId, _offset: u32, _delta: i64) -> Result<()> {
        todo!()
    }

    /// Raises the unsigned little-endian 64-bit number at `offset` of the object to at least
    /// `value`. Does not conflict with others of its kind.
    pub async fn max(&self, _id: ObjectId, _offset: u32, _value: u64) -> Result<()> {
        todo!()
    }

    // ---- pages ----

    /// A raw page's bytes; none: there is no such page. Bytes past its end are zeros.
    pub async fn read_raw(&self, _page: PageId) -> Result<Option<Bytes>> {
        todo!()
    }

    /// Makes a page, with a number of its own.
    pub async fn create_page(&self, _volume: VolumeId, _kind: PageKind) -> Result<PageId> {
        todo!()
    }

    /// Makes a run of pages with consecutive numbers; gives the first.
    pub async fn create_pages(
        &self,
        _volume: VolumeId,
        _kind: PageKind,
        _count: u64,
    ) -> Result<PageId> {
        todo!()
    }

    /// Removes a page with all its objects.
    pub async fn delete_page(&self, _page: PageId) -> Result<()> {
        todo!()
    }

    /// Writes into a raw page, without reading it.
    pub async fn write_raw(
        &self,
        _page: PageId,
        _offset: u32,
        _bytes: impl Into<Bytes> + Send,
    ) -> Result<()> {
        todo!()
    }

    /// Cuts or zero-extends a raw page.
    pub async fn truncate_raw(&self, _page: PageId, _length: u32) -> Result<()> {
        todo!()
    }

    /// One op as it is, for callers that encode records themselves.
    pub async fn write(&self, _page: PageId, _op: Op) -> Result<()> {
        todo!()
    }

    /// Fetches pages in one request, so that reads of them hit. Reads nothing by itself.
    pub async fn fetch(&self, _pages: &[PageId]) -> Result<()> {
        todo!()
    }

    /// Bytes of records that a page has room for; none: there is no such page, or it is raw. A
    /// hint, which is not recorded as a read.
    pub async fn free_bytes(&self, _page: PageId) -> Result<Option<usize>> {
        todo!()
    }

    // ---- the transaction itself ----

    /// A point to come back to.
    #[must_use]
    pub fn savepoint(&self) -> Savepoint {
        todo!()
    }

    /// Takes back every write since the savepoint; what was read stays read.
    pub fn rollback_to(&self, _savepoint: Savepoint) -> Result<()> {
        todo!()
    }

    /// The stamp whose state the transaction sees.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        todo!()
    }

    /// How old the state that it sees is at most; none: never confirmed.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        todo!()
    }

    /// Whether it can only end in a conflict.
    #[must_use]
    pub fn is_doomed(&self) -> bool {
        todo!()
    }

    /// Commits it. Durable at the origin when this returns; without writes it is checked here, or
    /// at the origin for a strict session.
    pub async fn commit(self) -> Result<Committed> {
        todo!()
    }

    /// Ends it without doing anything.
    pub fn abort(self) {
        todo!()
    }
}
