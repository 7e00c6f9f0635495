//! Extended attributes as bytes: a list of names and values, sorted by name.

use super::super::FsError;
use super::{damaged, version};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use larder_core::id::PageNo;
use std::collections::BTreeMap;

/// Version of lists in pages of their own.
const FORMAT: u8 = 1;
/// Bytes before the list in its first page: version, three zeros, length of the list.
pub const XATTR_HEAD_BYTES: usize = 8;
/// Longest name of an extended attribute, in bytes, its namespace included.
pub const XATTR_NAME_BYTES_MAX: usize = 255;
/// Longest value, in bytes.
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;
/// Bytes of an inode's whole list at most.
pub const XATTR_LIST_BYTES_MAX: usize = 256 << 10;
/// Pages of a list at most: of the smallest there are.
pub(super) const XATTR_PAGES_MAX: u64 = 65;
/// Bytes of the names of a list, each with a zero byte, at most: what a kernel lists.
pub const XATTR_NAMES_BYTES_MAX: usize = 64 << 10;

/// Where an inode's extended attributes are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Xattrs {
    /// It has none.
    #[default]
    None,
    /// In its record: the list as bytes.
    Here(Bytes),
    /// In a run of raw pages, which begins with this one.
    Pages(PageNo),
}

/// Extended attributes by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct XattrList(pub BTreeMap<Bytes, Bytes>);

impl XattrList {
    /// As bytes; none have no bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        for (name, value) in &self.0 {
            out.put_u8(u8::try_from(name.len()).expect("names are checked to be short"));
            out.put_slice(name);
            out.put_u32_le(u32::try_from(value.len()).expect("values are checked to be short"));
            out.put_slice(value);
        }
        out.freeze()
    }

    /// From bytes.
    pub fn decode(bytes: &Bytes) -> Result<Self, FsError> {
        let cut = |_| damaged("extended attributes: length");
        let mut list = BTreeMap::new();
        let mut rest = &bytes[..];
        let take = |rest: &mut &[u8], length: usize| {
            if rest.len() < length {
                return Err(damaged("extended attributes: length"));
            }
            let taken = bytes.slice_ref(&rest[..length]);
            rest.advance(length);
            Ok(taken)
        };
        while rest.has_remaining() {
            let length = usize::from(rest.get_u8());
            let name = take(&mut rest, length)?;
            let length = rest.try_get_u32_le().map_err(cut)? as usize;
            let value = take(&mut rest, length)?;
            let sorted = list.last_key_value().is_none_or(|(last, _)| *last < name);
            if name.is_empty() || !sorted || value.len() > XATTR_VALUE_BYTES_MAX {
                return Err(damaged("extended attributes: names and values"));
            }
            list.insert(name, value);
        }
        Ok(Self(list))
    }

    /// Whether it keeps to the limits.
    #[must_use]
    pub fn fits(&self) -> bool {
        let names: usize = self.0.keys().map(|name| name.len() + 1).sum();
        names <= XATTR_NAMES_BYTES_MAX && self.encode().len() <= XATTR_LIST_BYTES_MAX
    }
}

/// What the first page of a list begins with.
#[must_use]
pub fn encode_xattr_head(length: usize) -> Bytes {
    let mut out = BytesMut::with_capacity(XATTR_HEAD_BYTES);
    out.put_u8(FORMAT);
    out.put_bytes(0, 3);
    out.put_u32_le(u32::try_from(length).expect("lists are checked to be short"));
    out.freeze()
}

/// Bytes of the list whose first page this is.
pub fn decode_xattr_head(mut page: &[u8]) -> Result<usize, FsError> {
    version(&mut page, "extended attributes", FORMAT)?;
    if page.len() < XATTR_HEAD_BYTES - 1 {
        return Err(damaged("extended attributes: head"));
    }
    page.advance(3);
    let length = page.get_u32_le() as usize;
    if length > XATTR_LIST_BYTES_MAX {
        return Err(damaged("extended attributes: length"));
    }
    Ok(length)
}
