//! The records of a volume of files (`docs/formats/files.md`). Every record begins with a version
//! byte; whatever does not decode is damage, reported with its place, never a panic.

use super::FsError;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use larder_core::id::{Generation, PageNo, Slot};
use siphasher::sip::SipHasher13;
use std::hash::Hasher;

mod xattrs;

pub use xattrs::{
    XATTR_HEAD_BYTES, XATTR_LIST_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_NAMES_BYTES_MAX,
    XATTR_VALUE_BYTES_MAX, XattrList, Xattrs, decode_xattr_head, encode_xattr_head,
};

/// Version of every record written now, but for the next two.
pub const FORMAT: u8 = 1;
/// Version of the record of an inode with extended attributes or holes that are counted; others
/// have [`FORMAT`].
pub const INODE_FORMAT: u8 = 2;
/// Version of the root record and of the headers of directory pages, which stand for where names
/// and inodes are: in 1 names were in the slots that now are for inodes.
pub const LAYOUT: u8 = 2;
/// Bytes of an inode record: fixed, so that no update of it can fail for want of room. Extended
/// attributes may follow, where there was room for them.
pub const INODE_BYTES: usize = 128;
/// Where the root record is.
pub const ROOT_PAGE: PageNo = PageNo(1);
/// Its slot there.
pub const ROOT_SLOT: Slot = Slot(0);
/// Offset of the link count in an inode record (`Add`).
pub const LINKS_AT: u32 = 16;
/// Offset of the size: bytes of a file, names in a directory (`Add`).
pub const SIZE_AT: u32 = 24;
/// Offset of the time of modification (`Max`).
pub const MTIME_AT: u32 = 32;
/// Offset of the time of change (`Max`).
pub const CTIME_AT: u32 = 40;
/// Offset of the first page of extended attributes.
const XATTRS_AT: usize = 120;
/// Most extents of a file.
pub const EXTENTS_MAX: usize = 6;
/// Longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Children of an interior node of a directory.
pub const FAN_OUT: usize = 32;

/// A file, directory or symbolic link: its inode's object. Never means another one later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InodeId {
    /// The inode page.
    pub page: PageNo,
    /// Its slot; even and below 32768. The slot after it holds the bytes of a small file.
    pub slot: Slot,
    /// Which of the slot's objects.
    pub generation: Generation,
}

impl InodeId {
    /// The inode number: page and slot in 64 bits.
    #[must_use]
    pub fn number(self) -> u64 {
        (self.page.0 << 16) | u64::from(self.slot.0)
    }

    /// Where a small file's bytes are.
    #[must_use]
    pub(super) fn data_slot(self) -> Slot {
        Slot(self.slot.0 | 1)
    }
}

impl std::fmt::Display for InodeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}.{}", self.page.0, self.slot.0, self.generation.0)
    }
}

/// What an inode is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Bytes.
    File,
    /// Names.
    Directory,
    /// A path, kept like a file's bytes.
    Symlink,
    /// A named pipe: a name for processes of one host to meet at, as are the kinds that follow.
    Fifo,
    /// A socket.
    Socket,
    /// A device of characters.
    CharDevice,
    /// A device of blocks.
    BlockDevice,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::File,
        Self::Directory,
        Self::Symlink,
        Self::Fifo,
        Self::Socket,
        Self::CharDevice,
        Self::BlockDevice,
    ];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.byte() == byte)
    }

    /// Whether it stands for a device, and has its number.
    #[must_use]
    pub fn is_device(self) -> bool {
        matches!(self, Self::CharDevice | Self::BlockDevice)
    }

    /// Whether it has no content here: a pipe, a socket or a device.
    #[must_use]
    pub fn is_special(self) -> bool {
        self.is_device() || matches!(self, Self::Fifo | Self::Socket)
    }

    fn byte(self) -> u8 {
        match self {
            Self::File => 1,
            Self::Directory => 2,
            Self::Symlink => 3,
            Self::Fifo => 4,
            Self::Socket => 5,
            Self::CharDevice => 6,
            Self::BlockDevice => 7,
        }
    }
}

/// An inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    /// What it is.
    pub kind: Kind,
    /// Permission bits (12 of them).
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names that lead to it; of a directory 2 and its subdirectories.
    pub links: u64,
    /// Bytes; of a directory its names.
    pub size: u64,
    /// Time of modification, nanoseconds since 1970 UTC.
    pub mtime: i64,
    /// Time of change.
    pub ctime: i64,
    /// Time of access: set by users. What reading makes of it is kept by each node, and is here
    /// after the node's next change of the inode.
    pub atime: i64,
    /// Counts updates of the content, so that no two contents have equal records.
    pub change: u32,
    /// Where the content is.
    pub content: Content,
    /// Where the extended attributes are.
    pub xattrs: Xattrs,
}

/// Where an inode's content is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    /// Nowhere: all zeros.
    Empty,
    /// In the slot beside the inode.
    Inline,
    /// In raw pages.
    Pages(Extents),
    /// Of a directory: the root page of its hash trie.
    Trie(PageNo),
    /// Of a device: its number, as the host's `st_rdev`.
    Device(u64),
}

/// A file's raw pages: runs of reserved page numbers, each 16 times as long as the one before. A
/// page that was never made is a hole of zeros.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Extents {
    /// First pages of the runs; run `i` has `16^(i+1)` pages.
    pub firsts: Vec<PageNo>,
    /// Pages at this index and after were never made.
    pub high: u64,
    /// Pages before `high` may never have been made too. Without it every one of them is there, be
    /// it empty, and may be written, cut and deleted unseen.
    pub sparse: bool,
    /// How many pages before `high` were never made or are empty, as far as they were counted:
    /// those of files of before are not. In a file of `n` pages that is not sparse, those from `n`
    /// on are all empty.
    pub missing: u32,
}

impl Extents {
    /// Pages in run `i`.
    #[must_use]
    pub fn run_pages(i: usize) -> u64 {
        16 << (4 * i)
    }

    /// Whether run `i` has the page.
    #[must_use]
    pub fn run_holds(&self, i: usize, page: PageNo) -> bool {
        let first = self.firsts.get(i).map(|first| first.0);
        first.is_some_and(|first| (first..first + Self::run_pages(i)).contains(&page.0))
    }

    /// Pages in the first `runs` runs.
    #[must_use]
    pub fn capacity(runs: usize) -> u64 {
        (0..runs).map(Self::run_pages).sum()
    }

    /// Any node that may write can make a record: its numbers must be such as can be reckoned with.
    fn check(&self) -> Result<(), FsError> {
        if self.high > Self::capacity(self.firsts.len()) || u64::from(self.missing) > self.high {
            return Err(damaged("inode: pages beyond its extents"));
        }
        let fits = |(i, first): (usize, &PageNo)| {
            let last = first.0.checked_add(Self::run_pages(i) - 1);
            first.0 > 0 && last.is_some_and(|last| last < PageNo::LIMIT)
        };
        if self.firsts.iter().enumerate().all(fits) {
            Ok(())
        } else {
            Err(damaged("inode: its extents are no pages"))
        }
    }

    /// Whether some of a file's first `pages` may be holes: what is done to them, and counted, takes
    /// a look then.
    #[must_use]
    pub fn has_holes(&self, pages: u64) -> bool {
        self.sparse || u64::from(self.missing) > self.high.saturating_sub(pages)
    }

    /// Whether a page must be looked at before it is written: it may not be there, or be a hole that
    /// is counted. A file of `pages` before the write.
    #[must_use]
    pub fn looks_at(&self, index: u64, pages: u64) -> bool {
        index < self.high && (self.sparse || index < pages && self.has_holes(pages))
    }

    /// The number of the file's page `index`, if a run covers it.
    #[must_use]
    pub fn page(&self, index: u64) -> Option<PageNo> {
        let mut before = 0;
        for (i, first) in self.firsts.iter().enumerate() {
            if index - before < Self::run_pages(i) {
                return Some(PageNo(first.0 + index - before));
            }
            before += Self::run_pages(i);
        }
        None
    }
}

/// Times are kept with the sign bit flipped, so that `Max` on unsigned numbers orders them.
#[must_use]
pub fn time_to_field(time: i64) -> u64 {
    (time as u64) ^ (1 << 63)
}

fn time_from_field(field: u64) -> i64 {
    (field ^ (1 << 63)) as i64
}

fn damaged(what: &str) -> FsError {
    FsError::Damaged(what.into())
}

fn version(bytes: &mut impl Buf, what: &'static str, reads: u8) -> Result<(), FsError> {
    version_from(bytes, what, reads, reads).map(drop)
}

/// The version of a record of which several are read.
fn version_from(
    bytes: &mut impl Buf,
    what: &'static str,
    from: u8,
    reads: u8,
) -> Result<u8, FsError> {
    match bytes.try_get_u8() {
        Ok(found) if (from..=reads).contains(&found) => Ok(found),
        Ok(found) => Err(FsError::Format { what, found, reads }),
        Err(_) => Err(damaged(what)),
    }
}

impl Inode {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let missing = match &self.content {
            Content::Pages(extents) => extents.missing,
            _ => 0,
        };
        let is_plain = self.xattrs == Xattrs::None && missing == 0;
        let mut out = BytesMut::with_capacity(INODE_BYTES);
        out.put_u8(if is_plain { FORMAT } else { INODE_FORMAT });
        out.put_u8(self.kind.byte());
        out.put_u16_le(self.mode);
        out.put_u32_le(self.uid);
        out.put_u32_le(self.gid);
        out.put_u32_le(self.change);
        out.put_u64_le(self.links);
        out.put_u64_le(self.size);
        out.put_u64_le(time_to_field(self.mtime));
        out.put_u64_le(time_to_field(self.ctime));
        out.put_u64_le(time_to_field(self.atime));
        match &self.content {
            Content::Empty => out.put_u8(0),
            Content::Inline => out.put_u8(1),
            Content::Pages(extents) => {
                out.put_u8(2);
                out.put_u8(u8::from(extents.sparse));
                out.put_u8(u8::try_from(extents.firsts.len()).expect("at most EXTENTS_MAX"));
                out.put_u8(0);
                out.put_u32_le(missing);
                out.put_u64_le(extents.high);
                for first in &extents.firsts {
                    out.put_u64_le(first.0);
                }
            }
            Content::Trie(root) => {
                out.put_u8(3);
                out.put_bytes(0, 7);
                out.put_u64_le(root.0);
            }
            Content::Device(number) => {
                out.put_u8(4);
                out.put_bytes(0, 7);
                out.put_u64_le(*number);
            }
        }
        assert!(out.len() <= XATTRS_AT, "the fields of an inode record have fixed places");
        out.resize(XATTRS_AT, 0);
        match &self.xattrs {
            Xattrs::None => out.put_u64_le(0),
            Xattrs::Here(list) => {
                out.put_u64_le(0);
                out.put_slice(list);
            }
            Xattrs::Pages(first) => out.put_u64_le(first.0),
        }
        out.freeze()
    }

    /// From bytes.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, FsError> {
        let whole = bytes;
        if bytes.len() < INODE_BYTES {
            return Err(damaged("inode: length"));
        }
        let version = version_from(&mut bytes, "inode", FORMAT, INODE_FORMAT)?;
        let kind = Kind::from_byte(bytes.get_u8()).ok_or_else(|| damaged("inode: kind"))?;
        let mode = bytes.get_u16_le();
        let (uid, gid, change) = (bytes.get_u32_le(), bytes.get_u32_le(), bytes.get_u32_le());
        let (links, size) = (bytes.get_u64_le(), bytes.get_u64_le());
        let mut time = || time_from_field(bytes.get_u64_le());
        let (mtime, ctime, atime) = (time(), time(), time());
        let mut content = Self::decode_content(bytes)?;
        if let Content::Pages(extents) = &mut content
            && version == FORMAT
        {
            // Not counted then.
            extents.missing = 0;
        }
        if let Content::Pages(extents) = &content {
            extents.check()?;
        }
        let xattrs = Self::decode_xattrs(version, whole)?;
        let fits = match content {
            Content::Trie(_) => kind == Kind::Directory,
            Content::Device(_) => kind.is_device(),
            Content::Empty => kind != Kind::Directory && !kind.is_device(),
            Content::Inline | Content::Pages(_) => matches!(kind, Kind::File | Kind::Symlink),
        };
        if !fits {
            return Err(damaged("inode: content of another kind"));
        }
        Ok(Self { kind, mode, uid, gid, links, size, mtime, ctime, atime, change, content, xattrs })
    }

    fn decode_xattrs(version: u8, record: &[u8]) -> Result<Xattrs, FsError> {
        let (head, list) = record.split_at(INODE_BYTES);
        let first = (&head[XATTRS_AT..]).get_u64_le();
        if version == FORMAT || first != 0 {
            if !list.is_empty() {
                return Err(damaged("inode: length"));
            }
            if version != FORMAT && first >= PageNo::LIMIT - xattrs::XATTR_PAGES_MAX {
                return Err(damaged("inode: page of its extended attributes"));
            }
            return Ok(match version {
                FORMAT => Xattrs::None,
                _ => Xattrs::Pages(PageNo(first)),
            });
        }
        if list.is_empty() {
            return Ok(Xattrs::None);
        }
        let list = Bytes::copy_from_slice(list);
        XattrList::decode(&list)?;
        Ok(Xattrs::Here(list))
    }

    fn decode_content(mut bytes: &[u8]) -> Result<Content, FsError> {
        let tag = bytes.get_u8();
        let sparse = bytes.get_u8() != 0;
        let count = usize::from(bytes.get_u8());
        bytes.advance(1);
        let missing = bytes.get_u32_le();
        match tag {
            0 => Ok(Content::Empty),
            1 => Ok(Content::Inline),
            2 if count <= EXTENTS_MAX => {
                let high = bytes.get_u64_le();
                let firsts = (0..count).map(|_| PageNo(bytes.get_u64_le())).collect();
                Ok(Content::Pages(Extents { firsts, high, sparse, missing }))
            }
            3 => Ok(Content::Trie(PageNo(bytes.get_u64_le()))),
            4 => Ok(Content::Device(bytes.get_u64_le())),
            _ => Err(damaged("inode: content")),
        }
    }

    /// Its trie's root page.
    pub fn trie(&self) -> Result<PageNo, FsError> {
        match self.content {
            Content::Trie(root) => Ok(root),
            _ => Err(FsError::NotDirectory),
        }
    }
}

/// The root record of a volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Root {
    /// Key of the hash of names.
    pub hash_key: [u8; 16],
    /// The root directory.
    pub root: InodeId,
    /// The hidden directory of files that have no name but are still open somewhere, or whose
    /// pages are still being freed.
    pub orphans: InodeId,
}

impl Root {
    /// The hash of a name.
    #[must_use]
    pub(super) fn hash(&self, name: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.hash_key);
        hasher.write(name);
        hasher.finish()
    }

    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(LAYOUT);
        out.put_slice(b"LFS");
        out.put_slice(&self.hash_key);
        put_id(&mut out, self.root);
        put_id(&mut out, self.orphans);
        out.freeze()
    }

    /// From bytes.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, FsError> {
        version(&mut bytes, "root record", LAYOUT)?;
        if bytes.len() < 3 + 16 + 28 || &bytes[..3] != b"LFS" {
            return Err(damaged("root record"));
        }
        bytes.advance(3);
        let mut hash_key = [0; 16];
        bytes.copy_to_slice(&mut hash_key);
        Ok(Self { hash_key, root: get_id(&mut bytes)?, orphans: get_id(&mut bytes)? })
    }
}

fn put_id(out: &mut BytesMut, id: InodeId) {
    out.put_u64_le(id.page.0);
    out.put_u16_le(id.slot.0);
    out.put_u32_le(id.generation.0);
}

fn get_id(bytes: &mut &[u8]) -> Result<InodeId, FsError> {
    if bytes.len() < 14 {
        return Err(damaged("reference to an inode"));
    }
    let page = bytes.get_u64_le();
    if page == 0 || page >= PageNo::LIMIT {
        return Err(damaged("reference to an inode: page"));
    }
    Ok(InodeId {
        page: PageNo(page),
        slot: Slot(bytes.get_u16_le()),
        generation: Generation(bytes.get_u32_le()),
    })
}

/// A name in a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The name.
    pub name: Bytes,
    /// What it leads to.
    pub id: InodeId,
    /// What that is.
    pub kind: Kind,
}

/// The names of one slot of a bucket, as bytes.
#[must_use]
pub fn encode_entries(entries: &[Entry]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(FORMAT);
    for entry in entries {
        out.put_u8(entry.kind.byte());
        put_id(&mut out, entry.id);
        out.put_u8(u8::try_from(entry.name.len()).expect("names are checked to be short"));
        out.put_slice(&entry.name);
    }
    out.freeze()
}

/// From bytes.
pub fn decode_entries(bytes: &Bytes) -> Result<Vec<Entry>, FsError> {
    let mut rest = &bytes[..];
    version(&mut rest, "names", FORMAT)?;
    let mut entries = Vec::with_capacity(1);
    while rest.has_remaining() {
        let kind = Kind::from_byte(rest.get_u8()).ok_or_else(|| damaged("names: kind"))?;
        let id = get_id(&mut rest)?;
        let length = usize::from(rest.try_get_u8().map_err(|_| damaged("names: length"))?);
        if rest.len() < length {
            return Err(damaged("names: length"));
        }
        let name = bytes.slice_ref(&rest[..length]);
        rest.advance(length);
        entries.push(Entry { name, id, kind });
    }
    Ok(entries)
}

/// The header of a page of a directory's trie, in slot 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TrieHeader {
    /// In the root page: the directory that holds this one (the root directory holds itself).
    pub parent: Option<InodeId>,
    /// Of an interior page: its 32 children. Of a bucket: none.
    pub children: Option<Vec<PageNo>>,
}

impl TrieHeader {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(LAYOUT);
        out.put_u8(u8::from(self.parent.is_some()) | u8::from(self.children.is_some()) << 1);
        if let Some(parent) = self.parent {
            put_id(&mut out, parent);
        }
        for child in self.children.iter().flatten() {
            out.put_u64_le(child.0);
        }
        out.freeze()
    }

    /// From bytes.
    pub fn decode(mut bytes: &[u8]) -> Result<Self, FsError> {
        version(&mut bytes, "directory page", LAYOUT)?;
        let flags = bytes.try_get_u8().map_err(|_| damaged("directory page: header"))?;
        let parent = (flags & 1 != 0).then(|| get_id(&mut bytes)).transpose()?;
        let children = if flags & 2 != 0 {
            if bytes.len() != 8 * FAN_OUT {
                return Err(damaged("directory page: children"));
            }
            Some((0..FAN_OUT).map(|_| PageNo(bytes.get_u64_le())).collect())
        } else {
            None
        };
        Ok(Self { parent, children })
    }
}
