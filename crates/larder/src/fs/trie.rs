//! A directory's names: a hash trie of bucket pages.
//!
//! A name's 64-bit hash leads from the trie's root page down, five bits a level, to a bucket; 15
//! other bits of it are the slot there, in the upper half of the slots, whose object lists the names with these bits (nearly
//! always one). So a name looked up in vain is a read of an empty slot, which conflicts with its
//! creation; creations of two names touch two slots and do not conflict. Slot 0 of every page is
//! its header; a full bucket becomes an interior page, in the transaction that found it full, by
//! rewriting the header that everybody below has read.
//!
//! The lower half of the root page's slots is for inodes of what is named in the directory, with
//! the bytes of small files beside: all of a small directory is in one page. They stay there when
//! the bucket is split, when they are moved to another directory, and when this one is removed:
//! the page goes with the last of them.

use super::record::{Entry, FAN_OUT, InodeId, TrieHeader, decode_entries, encode_entries};
use super::tx::{Tx, TxStore};
use super::{FileSystem, FsError, FsFault};
use bytes::Bytes;
use larder_core::commit::PageKind;
use larder_core::id::{Generation, PageNo, Slot};
use std::collections::{BTreeMap, BTreeSet};

/// Slot of a trie page's header.
pub(super) const HEADER_SLOT: Slot = Slot(0);
/// First of the slots for names.
const NAMES_FROM: u16 = 0x8000;
/// Bits of hash that choose a child.
const LEVEL_BITS: u32 = 5;
/// Levels of interior pages; 45 bits of hash.
const LEVELS_MAX: u32 = 9;
/// What a new slot costs beside its bytes, and some room so that two creators seldom overfill.
const SLACK_BYTES: usize = 64;

/// Where a directory listing goes on: after this hash and name. The default is before all names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    /// The hash.
    pub hash: u64,
    /// The name; none: after every name of this hash.
    pub name: Option<Bytes>,
}

impl Default for Position {
    fn default() -> Self {
        Self { hash: 0, name: Some(Bytes::new()) }
    }
}

/// A name listed: where it is kept, its hash, the entry.
pub(super) type Listed = ((PageNo, Slot), u64, Entry);

/// A slot of a bucket with what it holds.
struct Place {
    page: PageNo,
    level: u32,
    slot: Slot,
    held: Option<(Generation, Vec<Entry>)>,
}

/// Which child of an interior page at this level leads to a hash.
pub(super) fn child_of(hash: u64, level: u32) -> usize {
    ((hash >> (64 - LEVEL_BITS * (level + 1))) & (FAN_OUT as u64 - 1)) as usize
}

/// The slot of a hash, in whatever bucket.
pub(super) fn slot_of(hash: u64) -> Slot {
    Slot(NAMES_FROM | (hash & 0x7fff) as u16)
}

/// Whether a slot is one for names.
pub(super) fn is_name(slot: Slot) -> bool {
    slot.0 >= NAMES_FROM
}

/// Where in its directory's first page the inode of a new name may be: two names seldom have the
/// same place, so two sites that create seldom meet.
pub(super) fn inode_slot_of(hash: u64) -> Slot {
    Slot(2 * (1 + ((hash >> 15) % 0x3fff) as u16))
}

pub(super) async fn header<T: Tx>(
    tx: &T,
    page: PageNo,
) -> Result<(Generation, TrieHeader), FsError> {
    match tx.get(page, HEADER_SLOT).await? {
        Some((generation, bytes)) => Ok((generation, TrieHeader::decode(&bytes)?)),
        None => Err(FsError::NotFound),
    }
}

async fn find_place<T: Tx>(tx: &T, root: PageNo, hash: u64) -> Result<Place, FsError> {
    let mut page = root;
    for level in 0..=LEVELS_MAX {
        match header(tx, page).await?.1.children {
            Some(children) => page = children[child_of(hash, level)],
            None => {
                let slot = slot_of(hash);
                let held = match tx.get(page, slot).await? {
                    Some((generation, bytes)) => Some((generation, decode_entries(&bytes)?)),
                    None => None,
                };
                return Ok(Place { page, level, slot, held });
            }
        }
    }
    Err(FsError::Damaged("directory too deep".into()))
}

/// Finds a name, and where it is or would be.
pub(super) async fn find<T: Tx>(
    tx: &T,
    root: PageNo,
    hash: u64,
    name: &[u8],
) -> Result<(Option<Entry>, (PageNo, Slot)), FsError> {
    let place = find_place(tx, root, hash).await?;
    let entry = place.held.and_then(|(_, entries)| entries.into_iter().find(|e| e.name == name));
    Ok((entry, (place.page, place.slot)))
}

/// Creates an empty trie.
pub(super) async fn create<T: Tx>(tx: &T, root: PageNo, parent: InodeId) -> Result<(), FsError> {
    tx.create_page(root, PageKind::Slotted).await?;
    let header = TrieHeader { parent: Some(parent), children: None };
    tx.create(root, HEADER_SLOT, header.encode()).await?;
    Ok(())
}

/// Says which directory holds this one from now on.
pub(super) async fn set_parent<T: Tx>(
    tx: &T,
    root: PageNo,
    parent: InodeId,
) -> Result<(), FsError> {
    let (generation, mut header) = header(tx, root).await?;
    header.parent = Some(parent);
    tx.put(root, HEADER_SLOT, generation, header.encode()).await?;
    Ok(())
}

/// Removes a name.
pub(super) async fn remove<T: Tx>(
    tx: &T,
    root: PageNo,
    hash: u64,
    name: &[u8],
) -> Result<Entry, FsError> {
    let place = find_place(tx, root, hash).await?;
    let Some((generation, mut entries)) = place.held else {
        return Err(FsError::NotFound);
    };
    let at = entries.iter().position(|entry| entry.name == name).ok_or(FsError::NotFound)?;
    let removed = entries.remove(at);
    if entries.is_empty() {
        tx.delete(place.page, place.slot, generation).await?;
    } else {
        let value = encode_entries(&entries);
        tx.put(place.page, place.slot, generation, value).await?;
    }
    Ok(removed)
}

/// Every page of the trie, the root first; in batches, level by level.
pub(super) async fn pages<T: Tx>(tx: &T, root: PageNo) -> Result<Vec<PageNo>, FsError> {
    let mut all = vec![root];
    let mut seen = BTreeSet::from([root]);
    let mut at = 0;
    while at < all.len() {
        let page = all[at];
        at += 1;
        if let Some(children) = header(tx, page).await?.1.children {
            if !children.iter().all(|child| seen.insert(*child)) {
                return Err(FsError::Damaged("pages of a directory hold one another".into()));
            }
            tx.fetch(&children).await?;
            all.extend(children);
        }
    }
    Ok(all)
}

/// Deletes an empty trie, reading which slots of every page are filled, so that it conflicts with
/// every creation. A root page with inodes of other directories' files in it stays without its
/// header; what they are is not read, or this would not come to an end beside their updates.
pub(super) async fn delete_empty<T: Tx>(tx: &T, root: PageNo) -> Result<(), FsError> {
    let pages = pages(tx, root).await?;
    let mut kept = None;
    for page in &pages {
        let slots = tx.slots(*page).await?.ok_or(FsError::NotFound)?;
        if slots.iter().any(|(slot, _)| is_name(*slot)) {
            return Err(FsError::NotEmpty);
        }
        if slots.iter().any(|(slot, _)| *slot != HEADER_SLOT) {
            let header = slots.iter().find(|(slot, _)| *slot == HEADER_SLOT);
            kept = header.map(|(_, generation)| (*page, *generation));
        }
    }
    for page in pages {
        match kept {
            Some((at, generation)) if at == page => {
                tx.delete(page, HEADER_SLOT, generation).await?
            }
            _ => tx.delete_page(page).await?,
        }
    }
    Ok(())
}

/// Names from `after` on, ascending by (hash, name): at least `limit` of them if there are, whole
/// buckets at a time.
pub(super) async fn list<T: Tx, S: TxStore>(
    fs: &FileSystem<S>,
    tx: &T,
    root: PageNo,
    after: &Position,
    limit: usize,
) -> Result<Vec<Listed>, FsError> {
    let mut found: Vec<Listed> = Vec::new();
    // Pages still to visit, the next one last, with their levels and whether `after` lies inside.
    let mut waiting = vec![(root, 0, true)];
    while let Some((page, level, first)) = waiting.pop() {
        if let Some(children) = header(tx, page).await?.1.children {
            if level >= LEVELS_MAX {
                // Its pages hold one another.
                return Err(FsError::Damaged("directory too deep".into()));
            }
            let skipped = if first { child_of(after.hash, level) } else { 0 };
            tx.fetch(&children[skipped..]).await?;
            for (i, child) in children.iter().enumerate().skip(skipped).rev() {
                waiting.push((*child, level + 1, first && i == skipped));
            }
            continue;
        }
        let mut bucket = Vec::new();
        for (slot, _, bytes) in tx.get_all(page).await?.ok_or(FsError::NotFound)? {
            if is_name(slot) {
                for entry in decode_entries(&bytes)? {
                    bucket.push(((page, slot), fs.hash(&entry.name), entry));
                }
            }
        }
        bucket.retain(|(_, hash, entry)| match &after.name {
            Some(name) => (*hash, &entry.name) > (after.hash, name),
            None => *hash > after.hash,
        });
        bucket.sort_by(|a, b| (a.1, &a.2.name).cmp(&(b.1, &b.2.name)));
        found.append(&mut bucket);
        if found.len() >= limit || fs.options.faults.has(FsFault::ListFirstBucket) {
            break;
        }
    }
    Ok(found)
}

impl<S: TxStore> FileSystem<S> {
    /// Adds a name that must not be there; says where it is kept.
    pub(super) async fn insert_entry(
        &self,
        tx: &S::Tx,
        root: PageNo,
        entry: Entry,
    ) -> Result<(PageNo, Slot), FsError> {
        let hash = self.hash(&entry.name);
        loop {
            let place = find_place(tx, root, hash).await?;
            let mut entries = match &place.held {
                Some((_, entries)) => entries.clone(),
                None => Vec::new(),
            };
            if entries.iter().any(|there| there.name == entry.name) {
                return Err(FsError::Exists);
            }
            let room = tx.room(place.page).await?.ok_or(FsError::NotFound)?;
            let need = entry.name.len() + SLACK_BYTES;
            if room < need || self.is_full(place.page) {
                self.split(tx, place.page, place.level).await?;
                continue;
            }
            entries.push(entry);
            let value = encode_entries(&entries);
            match place.held {
                Some((generation, _)) => tx.put(place.page, place.slot, generation, value).await?,
                None => {
                    tx.create(place.page, place.slot, value).await?;
                }
            }
            return Ok((place.page, place.slot));
        }
    }

    /// Makes a full bucket an interior page with 32 buckets below it. Of a first page only the
    /// names are read: beside the updates of the small files in it this would seldom succeed.
    async fn split(&self, tx: &S::Tx, page: PageNo, level: u32) -> Result<(), FsError> {
        if level >= LEVELS_MAX {
            return Err(FsError::NoSpace);
        }
        let first = self.numbers.take(&self.store, FAN_OUT as u64).await?;
        let children: Vec<PageNo> = (0..FAN_OUT as u64).map(|i| PageNo(first.0 + i)).collect();
        let mut parts: Vec<BTreeMap<Slot, Vec<Entry>>> = vec![BTreeMap::new(); FAN_OUT];
        let slots = tx.slots(page).await?.ok_or(FsError::NotFound)?;
        for (slot, _) in slots.into_iter().filter(|(slot, _)| is_name(*slot)) {
            let Some((generation, bytes)) = tx.get(page, slot).await? else { continue };
            tx.delete(page, slot, generation).await?;
            let lost = usize::from(self.options.faults.has(FsFault::SplitLosesName));
            for entry in decode_entries(&bytes)?.into_iter().skip(lost) {
                let index = child_of(self.hash(&entry.name), level);
                parts[index].entry(slot).or_default().push(entry);
            }
        }
        let bucket = TrieHeader { parent: None, children: None };
        for (child, part) in children.iter().zip(&parts) {
            tx.create_page(*child, PageKind::Slotted).await?;
            tx.create(*child, HEADER_SLOT, bucket.encode()).await?;
            for (slot, entries) in part {
                tx.create(*child, *slot, encode_entries(entries)).await?;
            }
        }
        let (generation, mut header) = header(tx, page).await?;
        header.children = Some(children);
        tx.put(page, HEADER_SLOT, generation, header.encode()).await?;
        self.not_full(page);
        Ok(())
    }
}
