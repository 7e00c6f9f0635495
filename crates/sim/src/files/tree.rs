//! The tree of files as a commit left it: decoded from what the log holds, by the words of
//! `docs/formats/files.md` and with none of the file layer's code; and what must hold of any such
//! tree, whatever was done.

use crate::check::history::Branch;
use crate::check::seen::value;
use bytes::{Buf, Bytes};
use larder::fs::InodeId;
use larder_core::commit::PageKind;
use larder_core::id::{Generation, ObjectId, PageId, PageNo, Slot, Stamp, VolumeId};
use larder_core::page::Record;
use siphasher::sip::SipHasher13;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::sync::Arc;

/// A kind of inode, as its record has it.
pub const FILE: u8 = 1;
/// See [`FILE`].
pub const DIRECTORY: u8 = 2;
/// See [`FILE`].
pub const SYMLINK: u8 = 3;
/// Names of a bucket are in slots from here on.
const NAMES_FROM: u16 = 0x8000;
/// Bytes of a raw page's header.
const HEADER_BYTES: u64 = 32;

/// Names of a directory: what each leads to, and as what.
pub type Names = BTreeMap<Bytes, (InodeId, u8)>;

/// The tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    /// All inodes, those of files without a name among them.
    pub inodes: BTreeMap<InodeId, Arc<Inode>>,
    /// The root directory.
    pub root: InodeId,
    /// The directory of files without a name.
    pub orphans: InodeId,
    /// Bytes of content in a raw page.
    pub page_bytes: u64,
}

impl Tree {
    /// Files without a name.
    #[must_use]
    pub fn nameless(&self) -> BTreeSet<InodeId> {
        self.inodes[&self.orphans].names.values().map(|(id, _)| *id).collect()
    }
}

/// An inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    /// What it is: [`FILE`] …
    pub kind: u8,
    /// Permission bits.
    pub mode: u16,
    /// Names that lead to it, as it says.
    pub links: u64,
    /// Bytes, or names.
    pub size: u64,
    /// Counts updates of the content.
    pub change: u32,
    /// Time of change, as it is kept.
    pub ctime: u64,
    /// What it holds.
    pub body: Body,
    /// Extended attributes, as bytes.
    pub xattrs: Bytes,
    /// Of a directory.
    pub names: Names,
}

/// Where bytes are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// All zeros, or none.
    Empty,
    /// Beside the inode.
    Inline(Bytes),
    /// In pages, by their place in the file; those that are not there are holes.
    Pages(BTreeMap<u64, Bytes>),
}

impl Inode {
    /// Eight bytes of the content; an offset that is a multiple of eight.
    #[must_use]
    pub fn cell(&self, offset: u64, page_bytes: u64) -> u64 {
        let at = |bytes: &Bytes, offset: u64| {
            let mut cell = [0; 8];
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
            let to = from.saturating_add(8).min(bytes.len());
            cell[..to - from].copy_from_slice(&bytes[from..to]);
            u64::from_le_bytes(cell)
        };
        match &self.body {
            _ if offset >= self.size => 0,
            Body::Empty => 0,
            Body::Inline(bytes) => at(bytes, offset),
            Body::Pages(pages) => {
                let page = pages.get(&(offset / page_bytes));
                page.map_or(0, |bytes| at(bytes, offset % page_bytes))
            }
        }
    }

    /// Offsets of cells that differ from another inode's, ascending.
    #[must_use]
    pub fn differing(&self, other: &Self, page_bytes: u64) -> Vec<u64> {
        let nothing = Bytes::new();
        let (one, two) = (self.chunks(), other.chunks());
        let mut places: Vec<u64> = one.keys().chain(two.keys()).copied().collect();
        places.sort_unstable();
        places.dedup();
        let mut cells = Vec::new();
        for place in places {
            let mine = one.get(&place).copied().unwrap_or(&nothing);
            let theirs = two.get(&place).copied().unwrap_or(&nothing);
            if mine == theirs && self.size == other.size {
                continue;
            }
            let first = place * page_bytes;
            let length = mine.len().max(theirs.len()) as u64;
            let within = (first..first + length).step_by(8);
            cells.extend(
                within.filter(|at| self.cell(*at, page_bytes) != other.cell(*at, page_bytes)),
            );
        }
        cells
    }

    /// Bytes by their page's place in the file.
    fn chunks(&self) -> BTreeMap<u64, &Bytes> {
        match &self.body {
            Body::Empty => BTreeMap::new(),
            Body::Inline(bytes) => BTreeMap::from([(0, bytes)]),
            Body::Pages(pages) => pages.iter().map(|(place, bytes)| (*place, bytes)).collect(),
        }
    }
}

/// A part of a page that decoding looked at: the page, and a slot of it or [`ALL`]. Bytes of raw
/// pages are in slot 0, as commits have them.
pub(super) type Look = (PageNo, u32);
/// Whatever is in a page.
pub(super) const ALL: u32 = u32::MAX;

/// What decoding goes through.
pub(super) struct Decoder<'a> {
    branch: &'a Branch,
    stamp: Stamp,
    volume: VolumeId,
    pub(super) key: [u8; 16],
    /// Pages that something leads to.
    pub(super) used: BTreeSet<PageNo>,
    /// Those of them that nothing else may lead to.
    pub(super) alone: BTreeSet<PageNo>,
    /// Where objects are that had no room in their own places.
    pub(super) moved: BTreeSet<(PageNo, Slot)>,
    /// All that was looked at.
    pub(super) looked: BTreeSet<Look>,
}

/// A directory's inode, and what it says is above it.
pub(super) struct Decoded {
    pub(super) inode: Inode,
    pub(super) parent: Option<InodeId>,
}

/// What is wrong with a tree.
pub(super) type Check<T> = Result<T, String>;

/// The record of page 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Roots {
    pub(super) key: [u8; 16],
    pub(super) root: InodeId,
    pub(super) orphans: InodeId,
}

fn reference(bytes: &mut &[u8]) -> InodeId {
    let (page, slot) = (PageNo(bytes.get_u64_le()), Slot(bytes.get_u16_le()));
    InodeId { page, slot, generation: Generation(bytes.get_u32_le()) }
}

/// Bytes of content in a raw page.
pub(super) fn content_bytes(page_bytes: u64) -> u64 {
    page_bytes - HEADER_BYTES
}

impl<'a> Decoder<'a> {
    /// Of a volume at a stamp; nothing was looked at yet.
    pub(super) fn new(branch: &'a Branch, stamp: Stamp, volume: VolumeId) -> Self {
        Self {
            branch,
            stamp,
            volume,
            key: [0; 16],
            used: BTreeSet::new(),
            alone: BTreeSet::new(),
            moved: BTreeSet::new(),
            looked: BTreeSet::new(),
        }
    }
}

impl Decoder<'_> {
    fn id(&self, page: PageNo) -> PageId {
        PageId { volume: self.volume, page }
    }

    /// The record of page 1; none: the volume has no tree yet.
    pub(super) fn roots(&mut self) -> Check<Option<Roots>> {
        let Some((_, record)) = self.object(PageNo(1), Slot(0)) else { return Ok(None) };
        let mut record = &record[..];
        if record.len() != 48 || record.get_u8() != 2 || &record[..3] != b"LFS" {
            return Err("page 1: no root record".into());
        }
        record.advance(3);
        record.copy_to_slice(&mut self.key);
        let (root, orphans) = (reference(&mut record), reference(&mut record));
        self.used.insert(PageNo(1));
        Ok(Some(Roots { key: self.key, root, orphans }))
    }

    fn object(&mut self, page: PageNo, slot: Slot) -> Option<(Generation, Bytes)> {
        let id = self.id(page);
        self.looked.insert((page, u32::from(slot.0)));
        let (generation, record) = self.branch.slot(id, slot, self.stamp)?;
        let mut at = record;
        while let Record::Forward(to) = at {
            self.used.insert(to.page.page);
            self.moved.insert((to.page.page, to.slot));
            self.looked.insert((to.page.page, u32::from(to.slot.0)));
            at = &self.branch.slot(to.page, to.slot, self.stamp)?.1;
        }
        if let Record::Large { first, count, .. } = at {
            let pages = (0..u64::from(*count)).map(|i| PageNo(first.0 + i));
            self.looked.extend(pages.clone().map(|page| (page, 0)));
            self.used.extend(pages);
        }
        let object = ObjectId { page: id, slot, generation: *generation };
        Some((*generation, value(self.branch, object, self.stamp)?))
    }

    fn raw(&mut self, page: PageNo) -> Option<Bytes> {
        let id = self.id(page);
        self.looked.insert((page, 0));
        self.branch.kind(id, self.stamp)?;
        self.branch.raw(id, self.stamp).cloned()
    }

    /// Decodes an inode, and the pages that it leads to: those of names as well.
    pub(super) fn inode(&mut self, id: InodeId) -> Check<Decoded> {
        let (mut inode, trie) = self.inode_alone(id)?;
        let Some(trie) = trie else { return Ok(Decoded { inode, parent: None }) };
        let (names, parent) = self.names(id, trie)?;
        inode.names = names;
        Ok(Decoded { inode, parent: Some(parent) })
    }

    fn inode_alone(&mut self, id: InodeId) -> Check<(Inode, Option<PageNo>)> {
        let damaged = |what: &str| Err(format!("inode {id}: {what}"));
        let found = self.object(id.page, id.slot);
        let Some((_, record)) = found.filter(|(generation, _)| *generation == id.generation) else {
            return damaged("a name leads to it, and it is not there");
        };
        self.used.insert(id.page);
        let mut bytes = &record[..];
        if bytes.len() < 128 {
            return damaged("too short");
        }
        let version = bytes.get_u8();
        let (kind, mode) = (bytes.get_u8(), bytes.get_u16_le());
        bytes.advance(8);
        let (change, links, size) = (bytes.get_u32_le(), bytes.get_u64_le(), bytes.get_u64_le());
        bytes.advance(8);
        let ctime = bytes.get_u64_le();
        let mut content = &record[56..];
        let (how, sparse, runs) = (content.get_u8(), content.get_u8() != 0, content.get_u8());
        content.advance(1);
        content.advance(4);
        let first = content.get_u64_le();
        let mut trie = None;
        let body = match how {
            0 | 4 => Body::Empty,
            1 => {
                let data = self.object(id.page, Slot(id.slot.0 | 1));
                let Some((_, data)) = data else { return damaged("its bytes are not beside it") };
                Body::Inline(data)
            }
            2 => Body::Pages(self.pages_of(id, (first, sparse, runs), content)?),
            3 => {
                trie = Some(PageNo(first));
                Body::Empty
            }
            _ => return damaged("content of no kind"),
        };
        let mut at = &record[120..];
        let away = at.get_u64_le();
        let xattrs = match (version, away) {
            (1, _) => Bytes::new(),
            (_, 0) => record.slice(128..),
            (_, first) => self.xattrs(id, PageNo(first))?,
        };
        if trie.is_some() != (kind == DIRECTORY) {
            return damaged("its content is not of its kind");
        }
        let names = Names::new();
        Ok((Inode { kind, mode, links, size, change, ctime, body, xattrs, names }, trie))
    }

    fn pages_of(
        &mut self,
        id: InodeId,
        (high, sparse, runs): (u64, bool, u8),
        mut firsts: &[u8],
    ) -> Check<BTreeMap<u64, Bytes>> {
        let mut pages = BTreeMap::new();
        let mut index = 0;
        for run in 0..u32::from(runs) {
            let first = firsts.get_u64_le();
            for at in 0..16_u64 << (4 * run) {
                if index >= high + 64 {
                    break;
                }
                match self.raw(PageNo(first + at)) {
                    Some(_) if index >= high => {
                        return Err(format!("inode {id}: page {index} is beyond its high mark"));
                    }
                    Some(bytes) => {
                        if !self.used.insert(PageNo(first + at)) {
                            return Err(format!("inode {id}: page {index} is another file's too"));
                        }
                        self.alone.insert(PageNo(first + at));
                        pages.insert(index, bytes);
                    }
                    None if index < high && !sparse => {
                        return Err(format!("inode {id}: page {index} is not there"));
                    }
                    None => {}
                }
                index += 1;
            }
        }
        Ok(pages)
    }

    fn xattrs(&mut self, id: InodeId, first: PageNo) -> Check<Bytes> {
        let mut list = Vec::new();
        let mut length = 0;
        for number in first.0.. {
            let Some(page) = self.raw(PageNo(number)) else {
                return Err(format!("inode {id}: a page of its attributes is not there"));
            };
            self.used.insert(PageNo(number));
            list.extend_from_slice(&page);
            if number == first.0 {
                length = 8 + (&list[4..8]).get_u32_le() as usize;
            }
            if list.len() >= length {
                break;
            }
        }
        Ok(Bytes::from(list).slice(8..length))
    }

    /// The names of a directory, and which one its pages say is above it.
    fn names(&mut self, id: InodeId, trie: PageNo) -> Check<(Names, InodeId)> {
        let mut names = Names::new();
        let mut waiting = vec![(trie, 0_u32, 0_u64)];
        let mut parent = None;
        while let Some(page) = waiting.pop() {
            let found = self.bucket((id, trie), page, &mut names, &mut waiting)?;
            parent = parent.or(found);
        }
        let parent = parent.ok_or(format!("directory {id} says nothing of its parent"))?;
        Ok((names, parent))
    }

    fn bucket(
        &mut self,
        (id, trie): (InodeId, PageNo),
        (page, level, prefix): (PageNo, u32, u64),
        names: &mut Names,
        waiting: &mut Vec<(PageNo, u32, u64)>,
    ) -> Check<Option<InodeId>> {
        let damaged = |what: &str| Err(format!("directory {id}, page {}: {what}", page.0));
        let Some((_, header)) = self.object(page, Slot(0)) else { return damaged("no header") };
        self.looked.insert((page, ALL));
        if !self.used.insert(page) && page != trie {
            return damaged("it has another use");
        }
        if page != trie {
            self.alone.insert(page);
        }
        let mut header = &header[..];
        header.advance(1);
        let flags = header.get_u8();
        let parent = (flags & 1 != 0).then(|| reference(&mut header));
        if (flags & 1 != 0) != (page == trie) {
            return damaged("a parent in the wrong page");
        }
        if flags & 2 != 0 {
            for child in 0..32 {
                waiting.push((PageNo(header.get_u64_le()), level + 1, prefix << 5 | child));
            }
        }
        let filled: Vec<Slot> =
            self.branch.slots(self.id(page), self.stamp).map(|(slot, _)| slot).collect();
        for slot in filled.into_iter().filter(|slot| slot.0 >= NAMES_FROM) {
            if flags & 2 != 0 {
                return damaged("names in an interior page");
            }
            let Some((_, entries)) = self.object(page, slot) else { return damaged("a slot") };
            let mut entries = &entries[..];
            entries.advance(1);
            while entries.has_remaining() {
                let kind = entries.get_u8();
                let to = reference(&mut entries);
                let length = usize::from(entries.get_u8());
                let name = Bytes::copy_from_slice(&entries[..length]);
                entries.advance(length);
                let hash = self.hash(&name);
                let way = if level == 0 { 0 } else { hash >> (64 - 5 * level) };
                if slot.0 != NAMES_FROM | (hash & 0x7fff) as u16 || way != prefix {
                    return damaged("a name where nobody looks for it");
                }
                if names.insert(name.clone(), (to, kind)).is_some() {
                    return Err(format!("directory {id} has the name {name:?} twice"));
                }
            }
        }
        Ok(parent)
    }

    fn hash(&self, name: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_key(&self.key);
        hasher.write(name);
        hasher.finish()
    }

    /// No two locks of living nodes are in each other's way.
    pub(super) fn locks(&mut self) -> Check<()> {
        let Some((_, table)) = self.object(PageNo(1), Slot(1)) else { return Ok(()) };
        let mut table = &table[4..];
        let (first, pages) = (table.get_u64_le(), u64::from(table.get_u16_le()));
        self.used.extend((0..pages).map(|page| PageNo(first + page)));
        self.looked.insert((PageNo(first), ALL));
        for page in 1..pages {
            let page = PageNo(first + page);
            self.looked.insert((page, ALL));
            let slots: Vec<Slot> =
                self.branch.slots(self.id(page), self.stamp).map(|(slot, _)| slot).collect();
            for slot in slots {
                let Some((_, held)) = self.object(page, slot) else { continue };
                let mut held = &held[1..];
                while held.has_remaining() {
                    let id = reference(&mut held);
                    let count = held.get_u16_le();
                    let mut locks = Vec::new();
                    for _ in 0..count {
                        let node = (Slot(held.get_u16_le()), Generation(held.get_u32_le()));
                        let (owner, _pid) = (held.get_u64_le(), held.get_u32_le());
                        let exclusive = held.get_u8() == 1;
                        let range = (held.get_u64_le(), held.get_u64_le());
                        let there = self.branch.slot(self.id(PageNo(first)), node.0, self.stamp);
                        if there.is_some_and(|(generation, _)| *generation == node.1) {
                            locks.push((node, owner, exclusive, range));
                        }
                    }
                    for (i, one) in locks.iter().enumerate() {
                        for other in &locks[i + 1..] {
                            let apart = (one.0, one.1) != (other.0, other.1);
                            let meet = one.3.0 <= other.3.1 && other.3.0 <= one.3.1;
                            if apart && meet && (one.2 || other.2) {
                                return Err(format!("locks of {id}: {one:?} beside {other:?}"));
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether all that is in a page is led to, by what `leads` knows.
    pub(super) fn leaks(&self, page: PageNo, leads: &impl Leads) -> Check<()> {
        match self.branch.kind(self.id(page), self.stamp) {
            None => Ok(()),
            Some(PageKind::Raw) if leads.to_page(page) => Ok(()),
            Some(PageKind::Raw) => Err(format!("nothing leads to raw page {}", page.0)),
            Some(PageKind::Slotted) => self.leaks_in(page, leads),
        }
    }

    fn leaks_in(&self, page: PageNo, leads: &impl Leads) -> Check<()> {
        for (slot, (generation, _)) in self.branch.slots(self.id(page), self.stamp) {
            // A header, a table, names: with the page they are in.
            if slot.0 < 2 || slot.0 >= NAMES_FROM {
                if !leads.to_page(page) {
                    return Err(format!("nothing leads to page {}, slot {}", page.0, slot.0));
                }
                continue;
            }
            let even = Slot(slot.0 & !1);
            let known = match slot.0 % 2 {
                0 => leads.to_inode(InodeId { page, slot: even, generation: *generation }),
                _ => leads.to_data(page, even),
            };
            if !known && !self.is_of_locks(page) && !leads.to_moved(page, slot) {
                return Err(format!("nothing leads to slot {} of page {}", slot.0, page.0));
            }
        }
        Ok(())
    }

    /// Whether a page that is in use has no inodes, but what only its owner knows.
    fn is_of_locks(&self, page: PageNo) -> bool {
        let there = self.branch.slot(self.id(PageNo(1)), Slot(1), self.stamp);
        let Some((_, Record::Inline(table))) = there else { return false };
        let mut table = &table[4..];
        let (first, pages) = (table.get_u64_le(), u64::from(table.get_u16_le()));
        (first..first + pages).contains(&page.0)
    }
}

/// What a tree is known to lead to.
pub(super) trait Leads {
    /// A page that is somebody's.
    fn to_page(&self, page: PageNo) -> bool;
    /// An inode.
    fn to_inode(&self, id: InodeId) -> bool;
    /// The bytes beside the inode of a slot.
    fn to_data(&self, page: PageNo, slot: Slot) -> bool;
    /// An object that had no room in its own place.
    fn to_moved(&self, page: PageNo, slot: Slot) -> bool;
}

/// Whether one of these inodes, in this slot, has bytes beside it.
pub(super) fn has_data(inodes: &BTreeMap<InodeId, Arc<Inode>>, page: PageNo, slot: Slot) -> bool {
    let first = InodeId { page, slot, generation: Generation(0) };
    let last = InodeId { page, slot, generation: Generation(u32::MAX) };
    inodes.range(first..=last).any(|(_, inode)| matches!(inode.body, Body::Inline(_)))
}
