//! Asking ahead within a file: what a reader will want next is on its way before it is asked for.

use super::operations::PREFETCH_PAGES_MAX;
use super::record::{Content, Extents, Inode};
use super::{FileSystem, TxStore};
use larder_core::id::PageNo;

/// First step of reading ahead.
const READ_AHEAD_FIRST: u64 = 128 << 10;

/// Finds sequential readers and says what to ask for ahead of them.
#[derive(Default, Debug)]
pub struct ReadAhead {
    next: u64,
    window: u64,
    asked: u64,
}

impl ReadAhead {
    /// Notes a read of `offset .. offset + length`; gives the bytes to ask for now. The window
    /// starts at 128 KiB, doubles with every sequential read up to `window_max`, and is dropped
    /// by a jump.
    pub fn note(&mut self, offset: u64, length: u64, window_max: u64) -> std::ops::Range<u64> {
        let end = offset + length;
        if offset != self.next {
            (self.window, self.asked) = (0, 0);
        } else {
            self.window = (self.window * 2).clamp(READ_AHEAD_FIRST, window_max);
        }
        self.next = end;
        let until = end + self.window;
        let from = self.asked.max(end);
        // Asked in steps of half a window, so that requests are few and large.
        if until < from + self.window / 2 || until <= from {
            return 0..0;
        }
        self.asked = until;
        from..until
    }
}

impl<S: TxStore> FileSystem<S> {
    /// Asks for the pages of a range of a file, and does not wait.
    pub(super) fn prefetch_content(&self, inode: &Inode, range: std::ops::Range<u64>) {
        let Content::Pages(extents) = &inode.content else {
            return;
        };
        let size = self.page_size();
        let end = range.end.min(inode.size).div_ceil(size).min(extents.high);
        let pages: Vec<PageNo> = (range.start / size..end)
            .take(PREFETCH_PAGES_MAX)
            .filter_map(|index| Extents::page(extents, index))
            .collect();
        if !pages.is_empty() {
            self.store.prefetch(&pages);
        }
    }
}
