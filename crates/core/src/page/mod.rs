//! Pages: one image format in memory, on the wire and at rest.

use crate::commit::{Aspect, Op, PageKind, Target};
use crate::id::{Generation, ObjectId, PageId, PageNo, Slot};
use bytes::Bytes;

/// Bytes of a page's header.
pub const HEADER_BYTES: usize = 32;
/// Every record of a slotted page has room for at least this, so that a forward fits in its place.
pub const RECORD_BYTES_MIN: usize = 20;

/// A page's image. Cloning shares the bytes; applying an op copies them when they are shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page {
    bytes: Bytes,
}

/// Why bytes are no page.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PageError {
    /// Checksum, bounds or order do not hold.
    #[error("damaged page: {0}")]
    Damaged(&'static str),
    /// A format of another time.
    #[error("page format {found}; this version reads {oldest} to {newest}")]
    Format {
        /// What the page says.
        found: u8,
        /// The oldest readable.
        oldest: u8,
        /// The newest.
        newest: u8,
    },
}

/// Why an op does not apply. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpError {
    /// The slot does not hold that generation.
    #[error("the object is gone")]
    Gone,
    /// No room.
    #[error("the page is full")]
    Full,
    /// The page has the other layout, or is there already.
    #[error("wrong kind of page")]
    Kind,
    /// Out of bounds, or a generation that is not the slot's next.
    #[error("malformed write")]
    Malformed,
}

/// What a slot holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The object's bytes.
    Inline(Bytes),
    /// The object outgrew its page and lives there.
    Forward(ObjectId),
    /// The object's bytes fill consecutive raw pages of the same volume.
    Large {
        /// Bytes in all.
        length: u32,
        /// The first page.
        first: PageNo,
        /// How many pages.
        count: u32,
    },
}

impl Page {
    /// An empty page.
    #[must_use]
    pub fn empty(_kind: PageKind) -> Self {
        todo!()
    }

    /// Checks an image that came from a peer or a disk: format, checksum (seeded by the page's
    /// id), every offset. Afterwards no accessor can go out of bounds.
    pub fn decode(_id: PageId, _image: Bytes) -> Result<Self, PageError> {
        todo!()
    }

    /// The image with its checksum set for this id.
    #[must_use]
    pub fn encode(&self, _id: PageId) -> Bytes {
        todo!()
    }

    /// Its layout.
    #[must_use]
    pub fn kind(&self) -> PageKind {
        todo!()
    }

    /// Bytes of the image.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// What a slot holds, as record bytes (see [`Record::decode`]), without copying.
    #[must_use]
    pub fn get(&self, _slot: Slot) -> Option<(Generation, Bytes)> {
        todo!()
    }

    /// The same, borrowed.
    #[must_use]
    pub fn get_ref(&self, _slot: Slot) -> Option<(Generation, &[u8])> {
        todo!()
    }

    /// The generation an object created in this empty slot must have; none: the slot is filled or
    /// retired.
    #[must_use]
    pub fn next_generation(&self, _slot: Slot) -> Option<Generation> {
        todo!()
    }

    /// Filled slots, ascending.
    pub fn slots(&self) -> impl Iterator<Item = (Slot, Generation)> + '_ {
        std::iter::empty()
    }

    /// A slot not yet filled, for objects that need no particular one; the lowest.
    #[must_use]
    pub fn free_slot(&self) -> Option<Slot> {
        todo!()
    }

    /// Bytes of records that could still be added in new slots (slotted), to a page of
    /// `page_bytes`.
    #[must_use]
    pub fn free_bytes(&self, _page_bytes: u32) -> usize {
        todo!()
    }

    /// A raw page's content.
    #[must_use]
    pub fn raw(&self) -> Option<Bytes> {
        todo!()
    }

    /// Applies an op other than `CreatePage` and `DeletePage`; says what it touched.
    pub fn apply(&mut self, _op: &Op, _page_bytes: u32) -> Result<(Target, Aspect), OpError> {
        todo!()
    }
}

impl Record {
    /// Reads a record.
    pub fn decode(_bytes: Bytes) -> Result<Self, PageError> {
        todo!()
    }

    /// Writes one.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        todo!()
    }
}
