//! Pages: one image format in memory, on the wire and at rest (`docs/formats/disk.md`).
//!
//! An image as it travels and rests is compact and canonical: equal pages have equal images. In
//! memory an image may hold slack and the remains of replaced records, so that most ops change
//! it in place. What an op does to a page depends on the page's content and the op alone, never
//! on whether the bytes are shared: every copy of a page goes through the same states.

mod raw;
mod record;
mod slotted;
#[cfg(test)]
mod tests;

pub use record::{Record, add, inline, large_pages, number, raise};

use crate::commit::{Aspect, Op, PageKind, Target};
use crate::id::{Generation, PageId, Slot};
use bytes::{Bytes, BytesMut};
use slotted::Tally;
use std::fmt;

/// Bytes of a page's header.
pub const HEADER_BYTES: usize = 32;
/// Every record of a slotted page has room for at least this, so that a forward (29 bytes) fits
/// in its place. The room is set aside by account ([`Page::free_bytes`]), not by padding.
pub const RECORD_BYTES_MIN: usize = 32;
/// Bytes a slotted page spends on an object beside its record.
pub const ENTRY_BYTES: usize = 12;
/// Smallest page of a volume, in bytes.
pub const PAGE_BYTES_MIN: u32 = 4 << 10;
/// Largest page of a volume, in bytes; no image is longer.
pub const PAGE_BYTES_MAX: u32 = 1 << 20;
/// The page format that this version writes, and the newest it reads.
pub const FORMAT: u8 = 1;
/// The oldest page format that this version reads.
pub const FORMAT_OLDEST: u8 = 1;

const MAGIC: [u8; 4] = *b"LRDp";
const CRC_AT: usize = 28;

/// The longest record that fits an otherwise empty slotted page of `page_bytes`.
#[must_use]
pub const fn record_bytes_max(page_bytes: u32) -> usize {
    (page_bytes as usize).saturating_sub(HEADER_BYTES + ENTRY_BYTES)
}

/// The most content a raw page of `page_bytes` holds.
#[must_use]
pub const fn raw_bytes_max(page_bytes: u32) -> usize {
    (page_bytes as usize).saturating_sub(HEADER_BYTES)
}

/// A page's image. Cloning shares the bytes; applying an op copies them when they are shared.
/// Equality is that of content: kind, objects with their generations, remembered generations.
#[derive(Clone)]
pub struct Page {
    /// Header space, then content. The header is written by `encode` alone; in memory its fields
    /// are the ones below.
    bytes: Bytes,
    kind: PageKind,
    /// What is in a slotted page; all zero in a raw one.
    tally: Tally,
    /// The checksum seed for which `bytes` is an encoded image; none: changed since.
    sealed: Option<u32>,
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
    /// The slot does not hold that generation any more.
    #[error("the object is gone")]
    Gone,
    /// No room.
    #[error("the page is full")]
    Full,
    /// The page has the other layout, or is there already.
    #[error("wrong kind of page")]
    Kind,
    /// Out of bounds, no record, too long for any page of the volume, a generation that is not
    /// the slot's next, or an addition to an object that is not inline.
    #[error("malformed write")]
    Malformed,
}

impl Page {
    /// An empty page.
    #[must_use]
    pub fn empty(kind: PageKind) -> Self {
        Self {
            bytes: Bytes::from_static(&[0; HEADER_BYTES]),
            kind,
            tally: Tally::default(),
            sealed: None,
        }
    }

    /// Checks an image that came from a peer or a disk: format, checksum (seeded by the page's
    /// id), every offset, every record. Afterwards no accessor can go out of bounds.
    ///
    /// The page keeps `image` without copying, and with it the whole buffer that `image` is a
    /// slice of: see [`Page::unpinned`]. Whether the image is longer than the volume's pages is
    /// for the caller to check.
    pub fn decode(id: PageId, image: Bytes) -> Result<Self, PageError> {
        if image.len() < HEADER_BYTES {
            return Err(PageError::Damaged("shorter than a header"));
        }
        if image.len() > PAGE_BYTES_MAX as usize {
            return Err(PageError::Damaged("longer than any page"));
        }
        if image[..4] != MAGIC {
            return Err(PageError::Damaged("no page magic"));
        }
        if !(FORMAT_OLDEST..=FORMAT).contains(&image[4]) {
            return Err(PageError::Format {
                found: image[4],
                oldest: FORMAT_OLDEST,
                newest: FORMAT,
            });
        }
        let seed = seed(id);
        if checksum(seed, &image) != u32_at(&image, CRC_AT) {
            return Err(PageError::Damaged("checksum, or another page's bytes"));
        }
        if image[6..8] != [0; 2] || image[20..CRC_AT] != [0; 8] {
            return Err(PageError::Damaged("reserved bytes in use"));
        }
        if u32_at(&image, 16) as usize != image.len() - HEADER_BYTES {
            return Err(PageError::Damaged("length"));
        }
        let (entries, floor) = (u32_at(&image, 8), u32_at(&image, 12));
        let (kind, tally) = match image[5] {
            1 => (PageKind::Slotted, slotted::validate(&image, entries, floor)?),
            2 if entries == 0 && floor == 0 => (PageKind::Raw, Tally::default()),
            2 => return Err(PageError::Damaged("a raw page with a directory")),
            _ => return Err(PageError::Damaged("unknown layout")),
        };
        Ok(Self { bytes: image, kind, tally, sealed: Some(seed) })
    }

    /// The image with its checksum set for this id: compact, and the same for equal pages. Costs
    /// nothing for a page unchanged since it was decoded or sealed, else a copy.
    #[must_use]
    pub fn encode(&self, id: PageId) -> Bytes {
        let seed = seed(id);
        if self.sealed == Some(seed) {
            return self.bytes.clone();
        }
        let mut image = match self.kind {
            PageKind::Slotted => slotted::compact(self),
            PageKind::Raw => self.bytes.to_vec(),
        };
        let content = u32::try_from(image.len() - HEADER_BYTES).expect("at most 1 MiB");
        image[..4].copy_from_slice(&MAGIC);
        image[4] = FORMAT;
        image[5] = match self.kind {
            PageKind::Slotted => 1,
            PageKind::Raw => 2,
        };
        image[6..8].fill(0);
        image[8..12].copy_from_slice(&self.tally.entries.to_le_bytes());
        image[12..16].copy_from_slice(&self.tally.floor.to_le_bytes());
        image[16..20].copy_from_slice(&content.to_le_bytes());
        image[20..CRC_AT].fill(0);
        let crc = checksum(seed, &image);
        image[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        image.into()
    }

    /// Encodes, and keeps the encoded image in place of its own bytes, so that the next `encode`
    /// for this id costs nothing.
    pub fn seal(&mut self, id: PageId) -> Bytes {
        self.bytes = self.encode(id);
        self.tally.settle();
        self.sealed = Some(seed(id));
        self.bytes.clone()
    }

    /// The same page in an allocation of its own, free of the buffer that it was decoded from.
    /// A cache calls it at install: a slice would pin the whole message it came in.
    #[must_use]
    pub fn unpinned(mut self) -> Self {
        self.bytes = Bytes::copy_from_slice(&self.bytes);
        self
    }

    /// Its layout.
    #[must_use]
    pub fn kind(&self) -> PageKind {
        self.kind
    }

    /// Bytes of the image in memory. An encoded image is this long or shorter.
    #[must_use]
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of the encoded image: what the page takes where it is kept.
    #[must_use]
    pub fn encoded_bytes(&self) -> usize {
        match self.kind {
            PageKind::Slotted => self.tally.compact_bytes(),
            PageKind::Raw => self.bytes.len(),
        }
    }

    /// What a slot holds, as record bytes (see [`Record::decode`]), without copying. A raw page
    /// has no records: see [`Page::raw`].
    #[must_use]
    #[inline]
    pub fn get(&self, slot: Slot) -> Option<(Generation, Bytes)> {
        let entry = slotted::filled(self, slot)?;
        Some((entry.generation, self.bytes.slice(entry.range(&self.bytes))))
    }

    /// The same, borrowed.
    #[must_use]
    #[inline]
    pub fn get_ref(&self, slot: Slot) -> Option<(Generation, &[u8])> {
        let entry = slotted::filled(self, slot)?;
        Some((entry.generation, &self.bytes[entry.range(&self.bytes)]))
    }

    /// An object's bytes, when the slot holds it and its record holds them, without copying; none:
    /// anything else, which [`Page::get`] tells apart. In a page whose records all hold their
    /// objects' bytes this reads the directory alone: the bytes are not looked at.
    #[must_use]
    #[inline]
    pub fn inline(&self, slot: Slot, generation: Generation) -> Option<Bytes> {
        let entry = slotted::filled(self, slot)?;
        let range = entry.range(&self.bytes);
        let elsewhere = self.tally.elsewhere > 0 && record::elsewhere(&self.bytes[range.clone()]);
        if entry.generation != generation || elsewhere {
            return None;
        }
        Some(self.bytes.slice(range.start + record::INLINE_BYTES..range.end))
    }

    /// The generation an object created in this empty slot must have; none: the slot is filled or
    /// retired, or the page is raw.
    #[must_use]
    pub fn next_generation(&self, slot: Slot) -> Option<Generation> {
        match self.kind {
            PageKind::Slotted => slotted::next_generation(self, slot),
            PageKind::Raw => None,
        }
    }

    /// The planted fault of rule 18: forgets how far the generations of slots were that have no entry.
    pub(crate) fn forget_floor(&mut self) {
        self.tally.floor = 0;
    }

    /// Filled slots, ascending; none in a raw page.
    pub fn slots(&self) -> impl Iterator<Item = (Slot, Generation)> + '_ {
        slotted::entries(self)
            .filter(|entry| entry.is_filled())
            .map(|entry| (entry.slot, entry.generation))
    }

    /// Filled slots with their records, ascending; none in a raw page.
    pub fn records(&self) -> impl Iterator<Item = (Slot, Generation, &[u8])> + '_ {
        slotted::entries(self).filter(|entry| entry.is_filled()).map(|entry| {
            let record = &self.bytes[entry.range(&self.bytes)];
            (entry.slot, entry.generation, record)
        })
    }

    /// How many slots are filled.
    #[must_use]
    pub fn filled(&self) -> usize {
        self.tally.filled as usize
    }

    /// A slot not yet filled, for objects that need no particular one; the lowest.
    #[must_use]
    pub fn free_slot(&self) -> Option<Slot> {
        match self.kind {
            PageKind::Slotted => slotted::free_slot(self),
            PageKind::Raw => None,
        }
    }

    /// The longest record that could still be added in a new slot to a page of `page_bytes`;
    /// below [`RECORD_BYTES_MIN`] nothing fits and the answer is 0. None fits a raw page.
    #[must_use]
    pub fn free_bytes(&self, page_bytes: u32) -> usize {
        if self.kind == PageKind::Raw {
            return 0;
        }
        let free = (page_bytes as usize).saturating_sub(self.tally.used() + ENTRY_BYTES);
        if free < RECORD_BYTES_MIN { 0 } else { free }
    }

    /// A raw page's content.
    #[must_use]
    pub fn raw(&self) -> Option<Bytes> {
        (self.kind == PageKind::Raw).then(|| self.bytes.slice(HEADER_BYTES..))
    }

    /// Applies an op other than `CreatePage`, `DeletePage` and `RestorePage`; says what it touched, which is what
    /// a change must name:
    /// - a `Put` that turns an object from inline to forward or large, or back, touches its
    ///   existence, so that an `Add` made for the object's old place conflicts;
    /// - an op that makes the page forget generations touches the whole page: the next generation
    ///   of other empty slots is another now. A cache that applies its own write to a copy with
    ///   holes may forget where the origin did not: it drops a copy for which this returns
    ///   `Target::Page`, or an error.
    ///
    /// Nothing is changed when an error is returned.
    pub fn apply(&mut self, op: &Op, page_bytes: u32) -> Result<(Target, Aspect), OpError> {
        assert!(page_bytes <= PAGE_BYTES_MAX, "volumes with larger pages are refused");
        let page_bytes = page_bytes as usize;
        match (op, self.kind) {
            (Op::CreatePage(_) | Op::DeletePage | Op::RestorePage { .. }, _) => Err(OpError::Kind),
            (Op::Put { slot, generation, value }, PageKind::Slotted) => {
                slotted::put(self, *slot, *generation, value, page_bytes)
            }
            (Op::Delete { slot, generation }, PageKind::Slotted) => {
                slotted::delete(self, *slot, *generation, page_bytes)
            }
            (Op::Add { slot, generation, offset, delta }, PageKind::Slotted) => {
                slotted::edit_number(self, (*slot, *generation), *offset, |value| {
                    add(value, *offset, *delta)
                })
            }
            (Op::Max { slot, generation, offset, value: least }, PageKind::Slotted) => {
                slotted::edit_number(self, (*slot, *generation), *offset, |value| {
                    raise(value, *offset, *least)
                })
            }
            (Op::WriteRaw { offset, bytes }, PageKind::Raw) => {
                raw::write(self, *offset as usize, bytes, page_bytes)
            }
            (Op::TruncateRaw { length }, PageKind::Raw) => {
                raw::truncate(self, *length as usize, page_bytes)
            }
            _ => Err(OpError::Kind),
        }
    }

    /// Changes the bytes in place, or a copy of them when they are shared.
    fn modify(&mut self, change: impl FnOnce(&mut [u8])) {
        let mut bytes = std::mem::take(&mut self.bytes)
            .try_into_mut()
            .unwrap_or_else(|shared| BytesMut::from(&shared[..]));
        change(&mut bytes);
        self.bytes = bytes.freeze();
        self.sealed = None;
    }

    /// Puts other bytes in place of its own.
    fn replace(&mut self, bytes: Vec<u8>) {
        self.bytes = bytes.into();
        self.sealed = None;
    }
}

impl PartialEq for Page {
    fn eq(&self, other: &Self) -> bool {
        if self.kind != other.kind || self.tally.floor != other.tally.floor {
            return false;
        }
        match self.kind {
            PageKind::Raw => self.bytes[HEADER_BYTES..] == other.bytes[HEADER_BYTES..],
            PageKind::Slotted => slotted::entries(self)
                .map(|entry| entry.content(&self.bytes))
                .eq(slotted::entries(other).map(|entry| entry.content(&other.bytes))),
        }
    }
}

impl Eq for Page {}

impl fmt::Debug for Page {
    /// Slots, generations and lengths: transcripts hold pages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            PageKind::Raw => write!(f, "Raw({} bytes)", self.bytes.len() - HEADER_BYTES),
            PageKind::Slotted => {
                write!(f, "Slotted(")?;
                for (index, (slot, generation, record)) in self.records().enumerate() {
                    let gap = if index == 0 { "" } else { ", " };
                    write!(f, "{gap}{}.{}: {} bytes", slot.0, generation.0, record.len())?;
                }
                write!(f, ")")
            }
        }
    }
}

/// The checksum covers the page's id, so that a misdirected page fails: it starts from this.
fn seed(id: PageId) -> u32 {
    let volume = crc32c::crc32c(&id.volume.0.to_le_bytes());
    crc32c::crc32c_append(volume, &id.page.0.to_le_bytes())
}

/// Of everything but the checksum itself.
fn checksum(seed: u32, image: &[u8]) -> u32 {
    let header = crc32c::crc32c_append(seed, &image[..CRC_AT]);
    crc32c::crc32c_append(header, &image[HEADER_BYTES..])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
