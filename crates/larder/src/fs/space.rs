//! Where a file has bytes and where holes: finding them, making them, copying around them.
//!
//! A page that was never made is a hole, and so is an empty one.

use super::content::PAGES_FREED_MAX;
use super::open::Handle;
use super::record::{Content, EXTENTS_MAX, Extents, Inode, InodeId};
use super::tx::Tx;
use super::{FileSystem, FsError, SetAttr, TxStore, transact};
use bytes::{Bytes, BytesMut};
use larder_core::id::PageNo;
use std::ops::Range;

/// Pages looked at in the first step of a search, and in one step at most.
const LOOKED_AT: (u64, u64) = (16, 1024);
/// Bytes copied by one call, so that it ends within the limit of an operation.
const COPIED_MAX: u64 = 16 << 20;
/// Bytes copied at a time.
const COPIED_AT_A_TIME: u64 = 1 << 20;

/// What to look for in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seek {
    /// Bytes.
    Data,
    /// A hole; the end of the file is one.
    Hole,
}

/// What to do with a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allocate {
    /// Make the file reach to its end. Nothing is reserved.
    Extend,
    /// Nothing: there is nothing to reserve beyond the end either.
    KeepSize,
    /// Make it a hole.
    PunchHole,
    /// Make it a hole, and let the file reach to its end.
    ZeroRange,
}

/// One step of a search.
enum Step {
    Found(u64),
    /// Nothing up to this offset.
    On(u64),
}

impl<S: TxStore> FileSystem<S> {
    /// Bytes of the largest file.
    #[must_use]
    pub fn file_bytes_max(&self) -> u64 {
        Extents::capacity(EXTENTS_MAX) * self.page_size()
    }

    /// Bytes that an inode's content takes, of those up to its size.
    #[must_use]
    pub fn bytes_taken(&self, inode: &Inode) -> u64 {
        match &inode.content {
            Content::Pages(extents) => {
                let pages = extents.high.saturating_sub(u64::from(extents.missing));
                inode.size.min(pages.saturating_mul(self.page_size()))
            }
            Content::Inline | Content::Trie(_) => inode.size,
            Content::Empty | Content::Device(_) => 0,
        }
    }

    /// Where bytes or a hole begin, at an offset or after it. Commits what was written before.
    /// [`FsError::NoData`]: at its end or past it, or no bytes follow.
    pub async fn seek(&self, handle: &Handle, offset: u64, what: Seek) -> Result<u64, FsError> {
        let id = handle.id();
        self.flush_id(id).await?;
        let (mut at, mut pages) = (offset, LOOKED_AT.0);
        loop {
            let step: Result<Step, FsError> = transact!(self, tx => {
                let inode = self.inode(&tx, id).await?;
                self.seek_step(&tx, &inode, at, (what, pages)).await
            });
            match step? {
                Step::Found(found) => return Ok(found),
                Step::On(next) => at = next,
            }
            pages = (pages * 2).min(LOOKED_AT.1);
        }
    }

    async fn seek_step(
        &self,
        tx: &S::Tx,
        inode: &Inode,
        at: u64,
        (what, most): (Seek, u64),
    ) -> Result<Step, FsError> {
        if at >= inode.size {
            // A search for a hole that came this far has found the end.
            return Err(FsError::NoData);
        }
        let in_bytes = |end: u64| match what {
            Seek::Data => Ok(Step::Found(at)),
            Seek::Hole => Ok(Step::Found(end.min(inode.size))),
        };
        let in_last_hole = match what {
            Seek::Data => Err(FsError::NoData),
            Seek::Hole => Ok(Step::Found(at)),
        };
        let extents = match &inode.content {
            Content::Pages(extents) => extents,
            Content::Inline => return in_bytes(inode.size),
            Content::Empty | Content::Trie(_) | Content::Device(_) => return in_last_hole,
        };
        let size = self.page_size();
        let first = at / size;
        if first >= extents.high {
            return in_last_hole;
        }
        if !extents.sparse {
            return in_bytes(extents.high * size);
        }
        let until = extents.high.min(first + most);
        let pages: Vec<PageNo> = (first..until).filter_map(|index| extents.page(index)).collect();
        tx.fetch(&pages).await?;
        for (index, page) in (first..until).zip(pages) {
            let has_bytes = tx.get_raw(page).await?.is_some_and(|bytes| !bytes.is_empty());
            if has_bytes == (what == Seek::Data) {
                return Ok(Step::Found(at.max(index * size)));
            }
        }
        let end = until * size;
        if what == Seek::Hole && end >= inode.size {
            return Ok(Step::Found(inode.size));
        }
        Ok(Step::On(end))
    }

    /// Changes what a range of a file takes. Commits what was written before.
    pub async fn allocate(
        &self,
        handle: &Handle,
        range: Range<u64>,
        how: Allocate,
    ) -> Result<(), FsError> {
        let id = handle.id();
        if range.end > self.file_bytes_max() && how != Allocate::PunchHole {
            return Err(FsError::TooLarge);
        }
        self.flush_id(id).await?;
        if matches!(how, Allocate::PunchHole | Allocate::ZeroRange) {
            self.punch(id, range.clone()).await?;
        }
        if matches!(how, Allocate::Extend | Allocate::ZeroRange)
            && self.getattr(id).await?.inode.size < range.end
        {
            self.setattr(id, SetAttr { size: Some(range.end), ..SetAttr::default() }).await?;
        }
        Ok(())
    }

    /// Makes a range a hole, in as many transactions as it takes.
    async fn punch(&self, id: InodeId, range: Range<u64>) -> Result<(), FsError> {
        let mut at = range.start;
        while at < range.end {
            let now = self.store.now();
            let done: Result<u64, FsError> = transact!(self, tx => {
                let mut inode = self.inode(&tx, id).await?;
                let done = self.punch_step(&tx, id, &mut inode, at..range.end).await?;
                inode.change = inode.change.wrapping_add(1);
                (inode.mtime, inode.ctime) = (now, now);
                self.put_inode(&tx, id, &inode).await?;
                Ok(done)
            });
            at = done?;
        }
        Ok(())
    }

    /// Makes a hole of the first pages of a range; says how far it came.
    async fn punch_step(
        &self,
        tx: &S::Tx,
        id: InodeId,
        inode: &mut Inode,
        range: Range<u64>,
    ) -> Result<u64, FsError> {
        let (size, file_size) = (self.page_size(), inode.size);
        let end = range.end.min(file_size);
        let extents = match &mut inode.content {
            Content::Pages(extents) if range.start < end => extents,
            Content::Inline if range.start < end => {
                let zeros = vec![0; (end - range.start) as usize].into();
                self.write_content(tx, id, inode, &[(range.start, zeros)]).await?;
                return Ok(range.end);
            }
            _ => return Ok(range.end),
        };
        let first = range.start / size;
        let until = end.div_ceil(size).min(extents.high).min(first + PAGES_FREED_MAX);
        let pages: Vec<PageNo> = (first..until).filter_map(|index| extents.page(index)).collect();
        if extents.sparse {
            tx.fetch(&pages).await?;
        }
        for (index, page) in (first..until).zip(pages) {
            let from = range.start.saturating_sub(index * size);
            let to = (end - index * size).min(size);
            let whole = from == 0 && (to == size || end == file_size);
            if whole && !extents.sparse {
                tx.truncate_raw(page, 0).await?;
                extents.missing += 1;
            } else if let Some(bytes) = tx.get_raw(page).await?
                && bytes.len() as u64 > from
            {
                if whole || from == 0 && bytes.len() as u64 <= to {
                    tx.truncate_raw(page, 0).await?;
                    extents.missing += 1;
                } else {
                    let zeros = to.min(bytes.len() as u64) - from;
                    let zeros = BytesMut::zeroed(zeros as usize).freeze();
                    tx.write_raw(page, from as u32, zeros).await?;
                }
            }
        }
        extents.sparse |= extents.missing > 0;
        // Beyond the last page there is nothing to do.
        Ok(if until == end.div_ceil(size).min(extents.high) { range.end } else { until * size })
    }

    /// Copies bytes from a file to another, or to another place of it, through this node; says how
    /// many: fewer at the end of the file, and 16 MiB at most. What is zero and would lie beyond
    /// the target's end becomes a hole.
    pub async fn copy_range(
        &self,
        (from, from_offset): (&Handle, u64),
        (to, to_offset): (&Handle, u64),
        length: u64,
    ) -> Result<u64, FsError> {
        let length = length.min(COPIED_MAX);
        if to_offset.checked_add(length).is_none_or(|end| end > self.file_bytes_max()) {
            return Err(FsError::TooLarge);
        }
        let mut size = self.getattr(to.id()).await?.inode.size;
        let (mut done, mut left_out) = (0, false);
        while done < length {
            let want = (length - done).min(COPIED_AT_A_TIME) as usize;
            let bytes: Bytes = self.read(from, from_offset + done, want).await?;
            if bytes.is_empty() {
                break;
            }
            let (at, count) = (to_offset + done, bytes.len() as u64);
            left_out = at >= size && bytes.iter().all(|byte| *byte == 0);
            if !left_out {
                self.write(to, at, bytes).await?;
                size = size.max(at + count);
            }
            done += count;
        }
        if left_out {
            let set = SetAttr { size: Some(to_offset + done), ..SetAttr::default() };
            self.setattr(to.id(), set).await?;
        }
        Ok(done)
    }
}
