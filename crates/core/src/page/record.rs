//! Records: what a slot of a slotted page holds.
//!
//! | kind    | bytes                                                             |
//! |---------|-------------------------------------------------------------------|
//! | inline  | 1, then the object's bytes                                        |
//! | forward | 2, volume u128, page u48, slot u16, generation u32: 29 bytes      |
//! | large   | 3, length u32, first page u48, count u32: 15 bytes                |
//!
//! Numbers are little-endian. A large object's count follows from its length and the volume's page
//! size, which bytes alone do not tell: [`large_pages`].

use super::{OpError, PAGE_BYTES_MAX, PAGE_BYTES_MIN, PageError};
use crate::commit::OBJECT_BYTES_MAX;
use crate::id::{Generation, ObjectId, PageId, PageNo, Slot, VolumeId};
use bytes::{Buf, Bytes};

const INLINE: u8 = 1;
const FORWARD: u8 = 2;
const LARGE: u8 = 3;
const FORWARD_BYTES: usize = 29;
const LARGE_BYTES: usize = 15;

/// What a slot holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// The object's bytes.
    Inline(Bytes),
    /// The object outgrew its page and lives there.
    Forward(ObjectId),
    /// The object's bytes fill consecutive raw pages of the same volume.
    Large {
        /// Bytes in all: 1 to [`OBJECT_BYTES_MAX`].
        length: u32,
        /// The first page.
        first: PageNo,
        /// How many pages: [`large_pages`].
        count: u32,
    },
}

impl Record {
    /// Reads a record; inline bytes are not copied.
    pub fn decode(mut bytes: Bytes) -> Result<Self, PageError> {
        check(&bytes)?;
        Ok(match bytes[0] {
            FORWARD => Self::Forward(forward(&bytes)),
            LARGE => {
                let (length, first, count) = large(&bytes);
                Self::Large { length, first: PageNo(first), count }
            }
            _ => {
                // In place: no second reference to count.
                bytes.advance(INLINE_BYTES);
                Self::Inline(bytes)
            }
        })
    }

    /// Writes one.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let bytes = match self {
            Self::Inline(value) => {
                let mut bytes = Vec::with_capacity(1 + value.len());
                bytes.push(INLINE);
                bytes.extend_from_slice(value);
                bytes
            }
            Self::Forward(object) => {
                let mut bytes = Vec::with_capacity(FORWARD_BYTES);
                bytes.push(FORWARD);
                bytes.extend_from_slice(&object.page.volume.0.to_le_bytes());
                put_page_no(&mut bytes, object.page.page);
                bytes.extend_from_slice(&object.slot.0.to_le_bytes());
                bytes.extend_from_slice(&object.generation.0.to_le_bytes());
                bytes
            }
            Self::Large { length, first, count } => {
                let mut bytes = Vec::with_capacity(LARGE_BYTES);
                bytes.push(LARGE);
                bytes.extend_from_slice(&length.to_le_bytes());
                put_page_no(&mut bytes, *first);
                bytes.extend_from_slice(&count.to_le_bytes());
                bytes
            }
        };
        bytes.into()
    }
}

/// Checks that bytes are a record. Every record in a [`super::Page`] has passed.
pub(super) fn check(bytes: &[u8]) -> Result<(), PageError> {
    let page_ok = |page: u64| page > 0 && page < PageNo::LIMIT;
    match bytes.first() {
        Some(&INLINE) => Ok(()),
        Some(&FORWARD) if bytes.len() == FORWARD_BYTES => {
            let object = forward(bytes);
            if page_ok(object.page.page.0) && object.generation.0 > 0 {
                Ok(())
            } else {
                Err(PageError::Damaged("a forward to no object"))
            }
        }
        Some(&LARGE) if bytes.len() == LARGE_BYTES => {
            let (length, first, count) = large(bytes);
            let counts = large_pages(length, PAGE_BYTES_MAX)..=large_pages(length, PAGE_BYTES_MIN);
            if (1..=OBJECT_BYTES_MAX).contains(&(length as usize))
                && counts.contains(&count)
                && page_ok(first)
                && page_ok(first + u64::from(count) - 1)
            {
                Ok(())
            } else {
                Err(PageError::Damaged("a large object out of bounds"))
            }
        }
        _ => Err(PageError::Damaged("no record")),
    }
}

/// How many pages of `page_bytes` an object of this length fills.
#[must_use]
pub fn large_pages(length: u32, page_bytes: u32) -> u32 {
    let piece = u32::try_from(super::raw_bytes_max(page_bytes)).expect("shorter than a page");
    length.div_ceil(piece.max(1))
}

/// Whether a record that has passed [`check`] makes sense in a volume with such pages.
pub(super) fn fits_volume(record: &[u8], page_bytes: usize) -> bool {
    if record.first() != Some(&LARGE) {
        return true;
    }
    let (length, _, count) = large(record);
    u32::try_from(page_bytes).is_ok_and(|page_bytes| count == large_pages(length, page_bytes))
}

/// Bytes of a record before an inline object's own.
pub(super) const INLINE_BYTES: usize = 1;

/// Whether a record says where the object's bytes are, in place of holding them. An empty slot's
/// (no bytes) does not.
pub(super) fn elsewhere(record: &[u8]) -> bool {
    record.first().is_some_and(|&kind| kind != INLINE)
}

/// The object's bytes in a record's bytes, when they are inline.
#[must_use]
pub fn inline(record: &[u8]) -> Option<&[u8]> {
    match record.split_first() {
        Some((&INLINE, value)) => Some(value),
        _ => None,
    }
}

/// The same, to be changed.
pub(super) fn inline_mut(record: &mut [u8]) -> Option<&mut [u8]> {
    match record.split_first_mut() {
        Some((&mut INLINE, value)) => Some(value),
        _ => None,
    }
}

/// Whether two records are of one kind.
pub(super) fn same_kind(a: &[u8], b: &[u8]) -> bool {
    a.first() == b.first()
}

/// The little-endian 64-bit number at `offset` of an object's value, which `Add` and `Max` work
/// on; none: out of bounds.
#[must_use]
pub fn number(value: &[u8], offset: u32) -> Option<u64> {
    let end = (offset as usize).checked_add(8)?;
    let field = value.get(offset as usize..end)?;
    Some(u64::from_le_bytes(field.try_into().expect("eight bytes")))
}

/// What [`crate::commit::Op::Add`] does to an object's value.
pub fn add(value: &mut [u8], offset: u32, delta: i64) -> Result<(), OpError> {
    let old = number(value, offset).ok_or(OpError::Malformed)?;
    set_number(value, offset, old.wrapping_add_signed(delta));
    Ok(())
}

/// What [`crate::commit::Op::Max`] does to an object's value.
pub fn raise(value: &mut [u8], offset: u32, least: u64) -> Result<(), OpError> {
    let old = number(value, offset).ok_or(OpError::Malformed)?;
    set_number(value, offset, old.max(least));
    Ok(())
}

fn set_number(value: &mut [u8], offset: u32, new: u64) {
    value[offset as usize..][..8].copy_from_slice(&new.to_le_bytes());
}

/// Of bytes with a forward's length.
fn forward(bytes: &[u8]) -> ObjectId {
    ObjectId {
        page: PageId {
            volume: VolumeId(u128::from_le_bytes(bytes[1..17].try_into().expect("sixteen bytes"))),
            page: PageNo(page_no(&bytes[17..23])),
        },
        slot: Slot(u16::from_le_bytes([bytes[23], bytes[24]])),
        generation: Generation(super::u32_at(bytes, 25)),
    }
}

/// (length, first, count) of bytes with a large record's length.
fn large(bytes: &[u8]) -> (u32, u64, u32) {
    (super::u32_at(bytes, 1), page_no(&bytes[5..11]), super::u32_at(bytes, 11))
}

fn page_no(bytes: &[u8]) -> u64 {
    let mut number = [0; 8];
    number[..6].copy_from_slice(bytes);
    u64::from_le_bytes(number)
}

fn put_page_no(bytes: &mut Vec<u8>, page: PageNo) {
    assert!(page.0 < PageNo::LIMIT, "page numbers have 48 bits");
    bytes.extend_from_slice(&page.0.to_le_bytes()[..6]);
}
