//! The bytes of files and symbolic links: beside the inode while they are few, else in raw pages.

use super::late::INODE_ROOM;
use super::record::{Content, EXTENTS_MAX, Extents, Inode, InodeId};
use super::trie::HEADER_SLOT;
use super::tx::Tx;
use super::{FileSystem, FsError, FsFault, TxStore};
use bytes::{Bytes, BytesMut};
use larder_core::commit::PageKind;
use larder_core::id::PageNo;
use larder_core::page::HEADER_BYTES;

/// Pages freed or cut in one transaction: the origin holds every page of a commit in memory.
pub(super) const PAGES_FREED_MAX: u64 = 256;
/// Pages of a file with holes that are looked for in one transaction, to be freed if they are there.
const PAGES_SOUGHT_MAX: u64 = 1024;
/// Most numbers that an origin gives at once: the pages of the longest run.
const NUMBERS_AT_ONCE: u64 = 1 << 24;
/// What an object costs in its page beside its bytes, generously.
pub(super) const OBJECT_OVERHEAD: u64 = 64;

/// Bytes to be written somewhere in a file.
pub(super) type Piece = (u64, Bytes);

/// What became of a file whose size was to be set.
pub(super) struct Resized {
    /// It has that size.
    pub(super) done: bool,
    /// What it held, to be freed once this is committed.
    pub(super) left: Option<InodeId>,
}

impl<S: TxStore> FileSystem<S> {
    /// Bytes of content in a raw page: what its header leaves.
    pub(super) fn page_size(&self) -> u64 {
        u64::from(self.store.page_bytes()) - HEADER_BYTES as u64
    }

    /// Bytes of a file, fewer at its end.
    pub(super) async fn read_content(
        &self,
        tx: &S::Tx,
        id: InodeId,
        inode: &Inode,
        offset: u64,
        length: usize,
    ) -> Result<Bytes, FsError> {
        let left = inode.size.saturating_sub(offset);
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(length);
        if length == 0 {
            return Ok(Bytes::new());
        }
        match &inode.content {
            Content::Empty => Ok(BytesMut::zeroed(length).freeze()),
            Content::Inline => {
                let data = self.inline_data(tx, id).await?;
                let at = usize::try_from(offset).unwrap_or(usize::MAX).min(data.len());
                let end = at.saturating_add(length).min(data.len());
                Ok(zero_fill(data.slice(at..end), length))
            }
            Content::Pages(extents) => self.read_pages(tx, extents, offset, length).await,
            Content::Trie(_) => Err(FsError::IsDirectory),
            Content::Device(_) => Err(FsError::Invalid("a device has no content here")),
        }
    }

    async fn read_pages(
        &self,
        tx: &S::Tx,
        extents: &Extents,
        offset: u64,
        length: usize,
    ) -> Result<Bytes, FsError> {
        let size = self.page_size();
        let (first, last) = (offset / size, (offset + length as u64 - 1) / size);
        let wanted: Vec<PageNo> = (first..=last.min(extents.high.saturating_sub(1)))
            .filter_map(|index| extents.page(index))
            .collect();
        if wanted.len() > 1 {
            tx.fetch(&wanted).await?;
        }
        let mut out = BytesMut::new();
        for index in first..=last {
            let at = usize::try_from(offset.saturating_sub(index * size)).expect("below a page");
            let want = (length - out.len()).min(size as usize - at);
            let page = extents.page(index).filter(|_| index < extents.high);
            let bytes = match page {
                Some(page) => tx.get_raw(page).await?.unwrap_or_default(),
                None => Bytes::new(),
            };
            let at = at.min(bytes.len());
            let part = bytes.slice(at..(at + want).min(bytes.len()));
            if first == last {
                return Ok(zero_fill(part, want));
            }
            let filled = out.len() + want;
            out.extend_from_slice(&part);
            out.resize(filled, 0);
        }
        Ok(out.freeze())
    }

    pub(super) async fn inline_data(&self, tx: &S::Tx, id: InodeId) -> Result<Bytes, FsError> {
        match tx.get(id.page, id.data_slot()).await? {
            Some((_, data)) => Ok(data),
            None => Err(FsError::Damaged(format!("inode {id}: its bytes are missing"))),
        }
    }

    /// Writes pieces, ascending and without overlap, and updates the inode (which the caller puts). Its
    /// pages are those that this transaction has read, unless there are none: once for each file.
    pub(super) async fn write_content(
        &self,
        tx: &S::Tx,
        id: InodeId,
        inode: &mut Inode,
        pieces: &[Piece],
    ) -> Result<(), FsError> {
        let Some((offset, bytes)) = pieces.last() else {
            return Ok(());
        };
        let end = offset.checked_add(bytes.len() as u64).ok_or(FsError::TooLarge)?;
        let pages_before = inode.size.div_ceil(self.page_size());
        inode.size = inode.size.max(end);
        inode.change = inode.change.wrapping_add(1);
        if self.fits_inline(tx, id, inode).await? {
            return self.write_inline(tx, id, inode, pieces).await;
        }
        self.write_pages(tx, id, inode, (pieces, pages_before)).await
    }

    async fn fits_inline(&self, tx: &S::Tx, id: InodeId, inode: &Inode) -> Result<bool, FsError> {
        if inode.size > self.inline_bytes_max() || self.is_full(id.page) {
            return Ok(false);
        }
        let old = match inode.content {
            Content::Empty => 0,
            Content::Inline => self.inline_data(tx, id).await?.len() as u64,
            Content::Pages(_) | Content::Trie(_) | Content::Device(_) => return Ok(false),
        };
        let room = tx.room(id.page).await?.unwrap_or(0) as u64;
        let for_names = match tx.get(id.page, HEADER_SLOT).await? {
            Some(_) => self.room_for_names() as u64,
            None => 0,
        };
        // Those whose inodes are to come here, itself among them perhaps.
        let for_inodes = (self.open_files.made_on(id.page) * INODE_ROOM) as u64;
        Ok(room >= inode.size.saturating_sub(old) + OBJECT_OVERHEAD + for_names + for_inodes)
    }

    async fn write_inline(
        &self,
        tx: &S::Tx,
        id: InodeId,
        inode: &mut Inode,
        pieces: &[Piece],
    ) -> Result<(), FsError> {
        let held = match inode.content {
            Content::Inline => tx.get(id.page, id.data_slot()).await?,
            _ => None,
        };
        let mut data = held.as_ref().map_or(Vec::new(), |(_, data)| data.to_vec());
        data.resize(usize::try_from(inode.size).expect("checked to be small"), 0);
        for (offset, bytes) in pieces {
            let at = usize::try_from(*offset).expect("below the size");
            data[at..at + bytes.len()].copy_from_slice(bytes);
        }
        match held {
            Some((generation, _)) => {
                tx.put(id.page, id.data_slot(), generation, data.into()).await?;
            }
            None => {
                tx.create(id.page, id.data_slot(), data.into()).await?;
                inode.content = Content::Inline;
            }
        }
        Ok(())
    }

    async fn write_pages(
        &self,
        tx: &S::Tx,
        id: InodeId,
        inode: &mut Inode,
        (pieces, pages_before): (&[Piece], u64),
    ) -> Result<(), FsError> {
        let mut read = 0;
        let mut extents = match std::mem::replace(&mut inode.content, Content::Empty) {
            Content::Pages(extents) => {
                read = Extents::capacity(extents.firsts.len());
                extents
            }
            Content::Inline => self.move_out(tx, id).await?,
            Content::Empty => Extents::default(),
            Content::Trie(_) => return Err(FsError::IsDirectory),
            Content::Device(_) => return Err(FsError::Invalid("a device has no content here")),
        };
        let pieces = by_page(pieces, self.page_size());
        // All that must be looked at is asked for at once.
        let looks = |index: u64| extents.looks_at(index, pages_before);
        let looked_at = pieces.iter().filter(|(index, ..)| looks(*index));
        let looked_at: Vec<PageNo> =
            looked_at.filter_map(|(index, ..)| extents.page(*index)).collect();
        tx.fetch(&looked_at).await?;
        let mut last = None;
        for (index, at, bytes) in pieces {
            // Several pieces may be of one page, which is counted once.
            let page = match last.filter(|(before, _)| *before == index) {
                Some((_, page)) => page,
                None => {
                    let of = (pages_before, read);
                    self.page_for_writing(tx, &mut extents, index, of).await?
                }
            };
            last = Some((index, page));
            tx.write_raw(page, at, bytes).await?;
        }
        inode.content = Content::Pages(extents);
        Ok(())
    }

    /// Moves the bytes beside an inode to a raw page.
    async fn move_out(&self, tx: &S::Tx, id: InodeId) -> Result<Extents, FsError> {
        let mut extents = Extents::default();
        if let Some((generation, data)) = tx.get(id.page, id.data_slot()).await? {
            tx.delete(id.page, id.data_slot(), generation).await?;
            let page = self.page_for_writing(tx, &mut extents, 0, (0, 0)).await?;
            tx.write_raw(page, 0, data).await?;
        }
        Ok(extents)
    }

    /// The page of this index, made if it is not there. The file had so many pages before, and runs for
    /// so many were read in this transaction.
    async fn page_for_writing(
        &self,
        tx: &S::Tx,
        extents: &mut Extents,
        index: u64,
        (pages_before, read): (u64, u64),
    ) -> Result<PageNo, FsError> {
        self.take_runs(tx, extents, index).await?;
        let page = extents.page(index).expect("the runs cover it");
        let there = if index >= extents.high {
            extents.sparse |= index > extents.high;
            extents.missing += (index - extents.high) as u32;
            extents.high = index + 1;
            false
        } else if extents.looks_at(index, pages_before) {
            let found = tx.get_raw(page).await?;
            if found.as_ref().is_none_or(Bytes::is_empty) {
                extents.missing = extents.missing.saturating_sub(1);
            }
            found.is_some()
        } else {
            // Behind the end they are empty.
            extents.missing = extents.missing.saturating_sub(u32::from(index >= pages_before));
            true
        };
        if !there && index < read {
            tx.create_named_page(page, PageKind::Raw).await?;
        } else if !there {
            tx.create_page(page, PageKind::Raw).await?;
        }
        Ok(page)
    }

    /// Takes numbers for the runs up to the one of this index, of which the caller makes a page. They are
    /// taken at once, so that they were given at once: by that page the origin knows whether they were on
    /// its line, and whoever reads them in what is committed relies on it (bug 125).
    async fn take_runs(
        &self,
        tx: &S::Tx,
        extents: &mut Extents,
        index: u64,
    ) -> Result<(), FsError> {
        if index >= Extents::capacity(EXTENTS_MAX) {
            return Err(FsError::TooLarge);
        }
        while Extents::capacity(extents.firsts.len()) <= index {
            let from = extents.firsts.len();
            let before = Extents::capacity(from);
            let mut to = from + 1;
            while Extents::capacity(to) <= index
                && Extents::capacity(to + 1) - before <= NUMBERS_AT_ONCE
            {
                to += 1;
            }
            let count = Extents::capacity(to) - before;
            let first = self.numbers.take(&self.store, count).await?;
            let places = (from..to).map(|run| Extents::capacity(run) - before);
            extents.firsts.extend(places.map(|place| PageNo(first.0 + place)));
            if Extents::capacity(to) <= index {
                // The rest is given apart: an empty page shows that these are of the line.
                tx.create_page(first, PageKind::Raw).await?;
            }
        }
        Ok(())
    }

    /// Sets a file's size and updates the inode (which the caller puts). It is not done when the
    /// file was cut only part of the way, since more pages are concerned than one transaction
    /// should touch: call it again in another one.
    pub(super) async fn resize_content(
        &self,
        tx: &S::Tx,
        id: InodeId,
        inode: &mut Inode,
        size: u64,
    ) -> Result<Resized, FsError> {
        if size.div_ceil(self.page_size()) > Extents::capacity(EXTENTS_MAX) {
            return Err(FsError::TooLarge);
        }
        inode.change = inode.change.wrapping_add(1);
        let (mut reached, mut left) = (size, None);
        if size == 0 {
            left = self.free_or_orphan(tx, id, inode).await?;
        } else if size < inode.size {
            match &mut inode.content {
                Content::Inline => self.cut_inline(tx, id, size).await?,
                Content::Pages(extents) => {
                    reached = self.cut_pages(tx, extents, inode.size, size).await?;
                }
                Content::Empty | Content::Trie(_) | Content::Device(_) => {}
            }
        }
        inode.size = reached;
        Ok(Resized { done: reached == size, left })
    }

    async fn cut_inline(&self, tx: &S::Tx, id: InodeId, size: u64) -> Result<(), FsError> {
        if let Some((generation, data)) = tx.get(id.page, id.data_slot()).await? {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            if size < data.len() {
                tx.put(id.page, id.data_slot(), generation, data.slice(..size)).await?;
            }
        }
        Ok(())
    }

    /// Pages past the end stay, empty: their numbers could not be used again if they went.
    async fn cut_pages(
        &self,
        tx: &S::Tx,
        extents: &mut Extents,
        old: u64,
        size: u64,
    ) -> Result<u64, FsError> {
        let page_size = self.page_size();
        let used = old.div_ceil(page_size).min(extents.high);
        let target = size.div_ceil(page_size);
        let from = target.max(used.saturating_sub(PAGES_FREED_MAX));
        let reached = if from == target { size } else { from * page_size };
        let mut cuts: Vec<(u64, u32)> = (from..used).map(|index| (index, 0)).collect();
        let rest = u32::try_from(reached % page_size).expect("below a page");
        if rest != 0 && reached / page_size < extents.high {
            cuts.push((reached / page_size, rest));
        }
        let cuts: Vec<(PageNo, u32)> = cuts
            .into_iter()
            .filter_map(|(index, length)| Some((extents.page(index)?, length)))
            .collect();
        let looks = extents.has_holes(old.div_ceil(page_size));
        if looks {
            let pages: Vec<PageNo> = cuts.iter().map(|(page, _)| *page).collect();
            tx.fetch(&pages).await?;
        }
        for (page, length) in cuts {
            if length > 0 && self.options.faults.has(FsFault::CutLeavesBytes) {
                continue;
            }
            let long = if looks { raw_length(tx, page).await? } else { u64::MAX };
            if long > u64::from(length) {
                tx.truncate_raw(page, length).await?;
                extents.missing += u32::from(length == 0);
            }
        }
        Ok(reached)
    }

    /// Frees all content, or, when that is too much for one transaction, hands it to an inode
    /// without a name, from which it is freed bit by bit.
    async fn free_or_orphan(
        &self,
        tx: &S::Tx,
        id: InodeId,
        inode: &mut Inode,
    ) -> Result<Option<InodeId>, FsError> {
        let mut left = None;
        if let Content::Pages(extents) = &inode.content
            && extents.high > PAGES_FREED_MAX
        {
            left = Some(self.orphan_content(tx, inode).await?);
        } else {
            self.free_content(tx, id, inode).await?;
        }
        inode.content = Content::Empty;
        Ok(left)
    }

    /// Frees up to [`PAGES_FREED_MAX`] pages of content from its end; says whether that was all.
    pub(super) async fn free_content(
        &self,
        tx: &S::Tx,
        id: InodeId,
        inode: &mut Inode,
    ) -> Result<bool, FsError> {
        match &mut inode.content {
            Content::Empty | Content::Trie(_) | Content::Device(_) => {}
            Content::Inline => {
                if let Some((generation, _)) = tx.get(id.page, id.data_slot()).await? {
                    tx.delete(id.page, id.data_slot(), generation).await?;
                }
            }
            Content::Pages(extents) => {
                let most = if extents.sparse { PAGES_SOUGHT_MAX } else { PAGES_FREED_MAX };
                let from = extents.high.saturating_sub(most);
                let pages: Vec<(u64, PageNo)> = (from..extents.high)
                    .filter_map(|index| Some((index, extents.page(index)?)))
                    .collect();
                if extents.sparse {
                    let numbers: Vec<PageNo> = pages.iter().map(|(_, page)| *page).collect();
                    tx.fetch(&numbers).await?;
                }
                let mut freed = 0;
                for (index, page) in pages.into_iter().rev() {
                    if freed == PAGES_FREED_MAX {
                        break;
                    }
                    let there = !extents.sparse || tx.get_raw(page).await?.is_some();
                    if there {
                        tx.delete_page(page).await?;
                        freed += 1;
                    }
                    extents.high = index;
                }
                // Which of those that went were counted is of no interest any more.
                extents.missing = extents.missing.min(extents.high as u32);
                inode.size = inode.size.min(extents.high * self.page_size());
                return Ok(extents.high == 0);
            }
        }
        inode.content = Content::Empty;
        inode.size = 0;
        Ok(true)
    }
}

/// Bytes that a page holds: none when it is not there.
async fn raw_length<T: Tx>(tx: &T, page: PageNo) -> Result<u64, FsError> {
    Ok(tx.get_raw(page).await?.map_or(0, |bytes| bytes.len() as u64))
}

fn zero_fill(bytes: Bytes, length: usize) -> Bytes {
    if bytes.len() == length {
        return bytes;
    }
    let mut out = BytesMut::with_capacity(length);
    out.extend_from_slice(&bytes);
    out.resize(length, 0);
    out.freeze()
}

/// Cuts pieces at page boundaries and joins those that touch within a page: (index, offset in the
/// page, bytes), ascending.
fn by_page(pieces: &[Piece], page_size: u64) -> Vec<(u64, u32, Bytes)> {
    let mut out: Vec<(u64, u32, Vec<Bytes>, usize)> = Vec::new();
    for (offset, bytes) in pieces {
        let mut done = 0;
        while done < bytes.len() {
            let position = offset + done as u64;
            let (index, at) = (position / page_size, position % page_size);
            let length = (bytes.len() - done).min((page_size - at) as usize);
            let part = bytes.slice(done..done + length);
            done += length;
            match out.last_mut() {
                Some((last, start, parts, held))
                    if *last == index && u64::from(*start) + *held as u64 == at =>
                {
                    parts.push(part);
                    *held += length;
                }
                _ => out.push((index, at as u32, vec![part], length)),
            }
        }
    }
    out.into_iter()
        .map(|(index, at, mut parts, held)| {
            if parts.len() == 1 {
                return (index, at, parts.remove(0));
            }
            let mut joined = BytesMut::with_capacity(held);
            for part in parts {
                joined.extend_from_slice(&part);
            }
            (index, at, joined.freeze())
        })
        .collect()
}
