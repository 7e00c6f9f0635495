//! Where a file has bytes and where holes: finding them, making them, copying around them.
//!
//! A page that was never made is a hole, and so is an empty one.

use super::content::PAGES_FREED_MAX;
use super::open::Handle;
use super::record::{Content, EXTENTS_MAX, Extents, Inode, InodeId};
use super::tx::Tx;
use super::{FileSystem, FsError, FsFault, TxError, TxStore, transact};
use crate::clock::instant;
use bytes::{Bytes, BytesMut};
use larder_core::id::PageNo;
use std::ops::Range;
use tokio::time::Instant;

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

/// What a step of making a hole came to.
struct Punched {
    /// Up to where there is a hole now.
    until: u64,
    changed: bool,
    /// The pages of the range were known to be no holes.
    full: bool,
}

/// An error when nobody waits any more: what comes later might undo what was done since.
fn in_time(until: Instant) -> Result<(), FsError> {
    if Instant::from_std(instant()) < until { Ok(()) } else { Err(TxError::TimedOut.into()) }
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
            // Made long, it has its few bytes still.
            Content::Inline => inode.size.min(self.inline_bytes_max()),
            Content::Trie(_) => inode.size,
            Content::Empty | Content::Device(_) => 0,
        }
    }

    /// Where bytes or a hole begin, at an offset or after it. Commits what was written before.
    /// [`FsError::NoData`]: at its end or past it, or no bytes follow.
    pub async fn seek(&self, handle: &Handle, offset: u64, what: Seek) -> Result<u64, FsError> {
        self.flush_id(handle.id()).await?;
        let id = handle.id();
        let (mut at, mut pages) = (offset, LOOKED_AT.0);
        loop {
            let step: Result<Step, FsError> = transact!(self, tx => {
                let inode = self.inode(&tx, id).await?;
                self.seek_step(&tx, (id, &inode), at, (what, pages)).await
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
        (id, inode): (InodeId, &Inode),
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
            Content::Inline => {
                let held = self.inline_data(tx, id).await?.len() as u64;
                return if at < held { in_bytes(held) } else { in_last_hole };
            }
            Content::Empty | Content::Trie(_) | Content::Device(_) => return in_last_hole,
        };
        let size = self.page_size();
        let first = at / size;
        if first >= extents.high {
            return in_last_hole;
        }
        let in_file = inode.size.div_ceil(size);
        if !extents.has_holes(in_file) {
            return in_bytes(extents.high * size);
        }
        let until = extents.high.min(in_file).min(first + most);
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

    /// Changes what a range of a file takes. Commits what was written before. What takes several
    /// transactions ends with an error once it is `until`, since nobody waits for it any more.
    pub async fn allocate(
        &self,
        handle: &Handle,
        range: Range<u64>,
        how: Allocate,
        until: Instant,
    ) -> Result<(), FsError> {
        if range.end > self.file_bytes_max() && how != Allocate::PunchHole {
            return Err(FsError::TooLarge);
        }
        self.flush_id(handle.id()).await?;
        let id = handle.id();
        if matches!(how, Allocate::PunchHole | Allocate::ZeroRange) {
            self.punch(id, range.clone(), until).await?;
        }
        if matches!(how, Allocate::Extend | Allocate::ZeroRange) {
            self.grow(id, range.end).await?;
        }
        Ok(())
    }

    /// Lets a file reach to `size`; one that reaches further, by another site's doing perhaps, stays
    /// as it is.
    async fn grow(&self, id: InodeId, size: u64) -> Result<(), FsError> {
        let now = self.store.now();
        transact!(self, tx => {
            let mut inode = self.inode(&tx, id).await?;
            if inode.size < size {
                self.locks.check(id)?;
                self.resize_content(&tx, id, &mut inode, size).await?;
                (inode.mtime, inode.ctime) = (now, now);
                self.put_inode(&tx, id, &inode).await?;
            }
            Ok(())
        })
    }

    /// Makes a range a hole, in as many transactions as it takes.
    async fn punch(&self, id: InodeId, range: Range<u64>, until: Instant) -> Result<(), FsError> {
        let mut at = range.start;
        // The file's change count after a step before which its range was known to have no holes.
        let mut full: Option<u32> = None;
        while at < range.end {
            in_time(until)?;
            let now = self.store.now();
            let step: Result<(u64, Option<u32>), FsError> = transact!(self, tx => {
                let mut inode = self.inode(&tx, id).await?;
                self.locks.check(id)?;
                let was_full = full == Some(inode.change);
                let punched =
                    self.punch_step(&tx, id, &mut inode, (at..range.end, was_full)).await?;
                if punched.changed || at == range.start {
                    inode.change = inode.change.wrapping_add(1);
                    (inode.mtime, inode.ctime) = (now, now);
                    self.put_inode(&tx, id, &inode).await?;
                }
                Ok((punched.until, punched.full.then_some(inode.change)))
            });
            (at, full) = step?;
        }
        Ok(())
    }

    /// Makes a hole of the first pages of a range, which may be known to have none.
    async fn punch_step(
        &self,
        tx: &S::Tx,
        id: InodeId,
        inode: &mut Inode,
        (range, was_full): (Range<u64>, bool),
    ) -> Result<Punched, FsError> {
        let (size, file_size) = (self.page_size(), inode.size);
        let end = range.end.min(file_size);
        let extents = match &mut inode.content {
            Content::Pages(extents) if range.start < end => extents,
            Content::Inline if range.start < end => {
                let changed = self.zero_inline(tx, id, range.start..end).await?;
                return Ok(Punched { until: range.end, changed, full: false });
            }
            _ => return Ok(Punched { until: range.end, changed: false, full: false }),
        };
        let first = range.start / size;
        let last = end.div_ceil(size).min(extents.high);
        let full = was_full || !extents.has_holes(file_size.div_ceil(size));
        let most = if full { PAGES_FREED_MAX } else { LOOKED_AT.1 };
        let until = last.min(first + most);
        let pages: Vec<PageNo> = (first..until).filter_map(|index| extents.page(index)).collect();
        if !full {
            tx.fetch(&pages).await?;
        }
        let (mut changes, mut reached) = (0, until);
        for (index, page) in (first..until).zip(pages) {
            if changes == PAGES_FREED_MAX {
                reached = index;
                break;
            }
            let from = range.start.saturating_sub(index * size);
            let to = (end - index * size).min(size);
            let whole = from == 0 && (to == size || end == file_size);
            if whole && full {
                tx.truncate_raw(page, 0).await?;
                extents.missing += 1;
                changes += 1;
            } else if let Some(bytes) = tx.get_raw(page).await?
                && bytes.len() as u64 > from
            {
                if whole || from == 0 && bytes.len() as u64 <= to {
                    tx.truncate_raw(page, 0).await?;
                    extents.missing += 1;
                } else {
                    let zeros = to.min(bytes.len() as u64) - from;
                    let zeros = BytesMut::zeroed(zeros as usize).freeze();
                    if !self.options.faults.has(FsFault::HoleKeepsBytes) {
                        tx.write_raw(page, from as u32, zeros).await?;
                    }
                }
                changes += 1;
            }
        }
        // Beyond the last page there is nothing to do.
        let until = if reached >= last { range.end } else { reached * size };
        Ok(Punched { until, changed: changes > 0, full })
    }

    /// Zeros of the bytes beside an inode those in a range; says whether there were any.
    async fn zero_inline(
        &self,
        tx: &S::Tx,
        id: InodeId,
        range: Range<u64>,
    ) -> Result<bool, FsError> {
        let Some((generation, data)) = tx.get(id.page, id.data_slot()).await? else {
            return Ok(false);
        };
        // However long the file was made.
        let [start, end] = [range.start, range.end].map(|at| at.min(data.len() as u64) as usize);
        if start < end {
            let mut data = data.to_vec();
            data[start..end].fill(0);
            tx.put(id.page, id.data_slot(), generation, data.into()).await?;
        }
        Ok(start < end)
    }

    /// Copies bytes from a file to another, or to another place of it, through this node; says how
    /// many: fewer at the end of the file, 16 MiB at most, and what was done by then when it fails on
    /// the way or it is `until`. What is zero and would lie beyond the target's end becomes a hole.
    pub async fn copy_range(
        &self,
        (from, from_offset): (&Handle, u64),
        (to, to_offset): (&Handle, u64),
        length: u64,
        until: Instant,
    ) -> Result<u64, FsError> {
        let length = length.min(COPIED_MAX);
        if to_offset.checked_add(length).is_none_or(|end| end > self.file_bytes_max()) {
            return Err(FsError::TooLarge);
        }
        let mut size = self.getattr(to.id()).await?.inode.size;
        let (mut done, mut left_out) = (0, false);
        while done < length {
            let want = (length - done).min(COPIED_AT_A_TIME) as usize;
            let step = async {
                in_time(until)?;
                let bytes: Bytes = self.read(from, from_offset + done, want).await?;
                let (at, count) = (to_offset + done, bytes.len() as u64);
                let hole = at >= size && bytes.iter().all(|byte| *byte == 0);
                if !hole {
                    self.write(to, at, bytes).await?;
                }
                Ok::<_, FsError>((count, hole))
            };
            match step.await {
                Ok((0, _)) => break,
                Ok((count, hole)) => {
                    done += count;
                    left_out = hole;
                    size = if hole { size } else { size.max(to_offset + done) };
                }
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        if left_out {
            let id = self.come_true(to.id()).await?;
            self.grow(id, to_offset + done).await?;
        }
        Ok(done)
    }
}
