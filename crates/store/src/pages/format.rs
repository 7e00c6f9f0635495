//! Keys and values of the engine's keyspaces (`docs/formats/disk.md`, section 5).
//!
//! Numbers in keys are big-endian, so that the order of bytes is the order of ids; numbers in values are
//! little-endian. The engine is trusted with neither: a value's checksum covers its key.

use bytes::Bytes;
use larder_core::id::{PageId, PageNo, Stamp, VolumeId};
use std::ops::Bound;

/// The format of values written.
const FORMAT: u8 = 1;
/// The oldest read.
const FORMAT_OLDEST: u8 = 1;
/// Bytes before an image: format, kind, two zeros, CRC-32C, version.
pub(super) const HEADER_BYTES: usize = 16;
pub(super) const KIND_IMAGE: u8 = 0;
pub(super) const KIND_TOMBSTONE: u8 = 1;
pub(super) const KIND_META: u8 = 2;
pub(super) const KIND_APART: u8 = 3;

/// What is wrong with a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Unread {
    /// Its bytes do not check.
    Damaged(String),
    /// It is of another format.
    Format(String),
}

pub(super) fn encode_value(key: &[u8], kind: u8, version: Stamp, body: &[u8]) -> Vec<u8> {
    let mut value = Vec::with_capacity(HEADER_BYTES + body.len());
    value.extend_from_slice(&[FORMAT, kind, 0, 0, 0, 0, 0, 0]);
    value.extend_from_slice(&version.0.to_le_bytes());
    let crc = value_crc(key, &value, body);
    value[4..8].copy_from_slice(&crc.to_le_bytes());
    value.extend_from_slice(body);
    value
}

/// Checks a value; gives its kind, its version and what follows its header.
pub(super) fn decode_value(key: &[u8], value: Bytes) -> Result<(u8, Stamp, Bytes), Unread> {
    let Some(header) = value.get(..HEADER_BYTES) else {
        return Err(Unread::Damaged(format!("{} bytes are too few", value.len())));
    };
    let stored_crc = u32::from_le_bytes(header[4..8].try_into().expect("four bytes"));
    if value_crc(key, header, &value[HEADER_BYTES..]) != stored_crc {
        return Err(Unread::Damaged("its checksum does not match".into()));
    }
    if !(FORMAT_OLDEST..=FORMAT).contains(&header[0]) {
        let (found, oldest) = (header[0], FORMAT_OLDEST);
        return Err(Unread::Format(format!("format {found}; this one reads {oldest} to {FORMAT}")));
    }
    let version = Stamp(u64::from_le_bytes(header[8..16].try_into().expect("eight bytes")));
    Ok((header[1], version, value.slice(HEADER_BYTES..)))
}

/// Covers the key, so that a misplaced value fails, and all of the value but the checksum.
fn value_crc(key: &[u8], header: &[u8], body: &[u8]) -> u32 {
    let crc = crc32c::crc32c(key);
    let crc = crc32c::crc32c_append(crc, &header[..4]);
    let crc = crc32c::crc32c_append(crc, &header[8..]);
    crc32c::crc32c_append(crc, body)
}

pub(super) fn page_key(page: PageId) -> [u8; 24] {
    let mut key = [0; 24];
    key[..16].copy_from_slice(&page.volume.0.to_be_bytes());
    key[16..].copy_from_slice(&page.page.0.to_be_bytes());
    key
}

/// The pages of a volume above a number, but for the one that stands for the volume.
pub(super) fn volume_range(volume: VolumeId, after: PageNo) -> (Bound<[u8; 24]>, Bound<[u8; 24]>) {
    let from = page_key(PageId { volume, page: after });
    (Bound::Excluded(from), Bound::Excluded(page_key(PageId::of_volume(volume))))
}

pub(super) fn index_key(stamp: Stamp, page: PageId) -> [u8; 32] {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&stamp.0.to_be_bytes());
    key[8..].copy_from_slice(&page_key(page));
    key
}

pub(super) fn parse_page(key: &[u8]) -> Option<PageId> {
    let key: &[u8; 24] = key.try_into().ok()?;
    let (volume, page) = key.split_at(16);
    Some(PageId {
        volume: VolumeId(u128::from_be_bytes(volume.try_into().ok()?)),
        page: PageNo(u64::from_be_bytes(page.try_into().ok()?)),
    })
}

pub(super) fn parse_index(key: &[u8]) -> Option<(Stamp, PageId)> {
    let (stamp, page) = key.split_first_chunk()?;
    Some((Stamp(u64::from_be_bytes(*stamp)), parse_page(page)?))
}

/// Bytes as keys, and as a value after a page's key: as they are, and with a checksum that fits.
#[cfg(feature = "testing")]
pub(super) fn check_decoders(bytes: &[u8]) {
    if let Some(page) = parse_page(bytes) {
        assert_eq!(page_key(page)[..], *bytes);
    }
    if let Some((stamp, page)) = parse_index(bytes) {
        assert_eq!(index_key(stamp, page)[..], *bytes);
    }
    let Some((key, value)) = bytes.split_first_chunk::<24>() else { return };
    let mut mended = value.to_vec();
    if let Some((header, body)) = value.split_first_chunk::<HEADER_BYTES>() {
        mended[4..8].copy_from_slice(&value_crc(key, header, body).to_le_bytes());
        let told = decode_value(key, mended.clone().into());
        let known = (FORMAT_OLDEST..=FORMAT).contains(&header[0]);
        assert_eq!(known, told.is_ok(), "all that is wrong with it is its format: {told:?}");
        assert!(known || matches!(told, Err(Unread::Format(_))), "nothing is damaged: {told:?}");
    }
    for value in [value, &mended] {
        let Ok((kind, version, body)) = decode_value(key, Bytes::copy_from_slice(value)) else {
            continue;
        };
        let mut again = encode_value(key, kind, version, &body);
        assert_eq!(decode_value(key, again.clone().into()), Ok((kind, version, body)));
        if value[2..4] == [0; 2] && value[0] == FORMAT {
            assert_eq!(again, value);
        }
        // Under another key, and with another bit, it is none.
        let mut other = *key;
        other[23] ^= 1;
        assert!(matches!(decode_value(&other, again.clone().into()), Err(Unread::Damaged(_))));
        let last = again.len() - 1;
        again[last] ^= 0x80;
        assert!(matches!(decode_value(key, again.into()), Err(Unread::Damaged(_))));
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
        assert_eq!(parse_index(&index), Some((Stamp(0x0506), page)));
        let value = encode_value(&key, KIND_IMAGE, Stamp(0x0506), b"image");
        assert_eq!(hex(&value), "010000002ed38e110605000000000000696d616765");
    }
}
