//! Where new things go: page numbers, and the inode pages that a node fills for each directory.
//!
//! A few inodes of a directory are beside their names, in its first page. The others that a node
//! creates there it puts into pages of its own for that directory, so that listing finds
//! neighbours together and two sites never meet in one page. Slots of such a page are given out by
//! counting and never twice, so two creations here never meet in one slot.
//!
//! A page goes with the last inode in it, unless it is being filled: more are to come. Who fills one
//! no longer looks at it once more: its last inode may have gone before.

use super::content::OBJECT_OVERHEAD;
use super::record::{INODE_BYTES, InodeId};
use super::trie::HEADER_SLOT;
use super::trie::inode_slot_of;
use super::write::may_pass;
use super::{FileSystem, FsError, TxStore, lock, transact};
use crate::clock::instant;
use crate::fs::Tx;
use larder_core::commit::PageKind;
use larder_core::id::{PageNo, Slot};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Page numbers asked for at a time.
const NUMBERS_PER_ASK: u64 = 4096;
/// Empty inode pages made at a time.
const SPARE_PAGES: u64 = 16;
/// Inodes put into one page by creation: leaves room for the bytes of small files.
const INODES_PER_PAGE: u16 = 24;
/// Directories whose current inode page is remembered.
const DIRECTORIES_MAX: usize = 8192;
/// Pages that are to be looked at, since they are filled no longer; of more the oldest stay, empty or
/// not.
const LEFT_MAX: usize = 1 << 14;
/// So many of them are looked at in one transaction.
const LOOKED_AT_ONCE: usize = 64;

/// Page numbers to hand out.
#[derive(Default)]
pub(super) struct Numbers {
    left: tokio::sync::Mutex<Left>,
}

#[derive(Default)]
struct Left {
    /// The store's history when they were asked for: in another they may be somebody else's.
    history: u128,
    numbers: std::ops::Range<u64>,
}

impl Numbers {
    /// The first of a run of `count` numbers never used before.
    pub(super) async fn take<S: TxStore>(&self, store: &S, count: u64) -> Result<PageNo, FsError> {
        if count > NUMBERS_PER_ASK / 4 {
            return Ok(store.allocate(count).await?);
        }
        let mut left = self.left.lock().await;
        let history = store.history();
        if left.history != history || left.numbers.end - left.numbers.start < count {
            let first = store.allocate(NUMBERS_PER_ASK).await?.0;
            *left = Left { history, numbers: first..first + NUMBERS_PER_ASK };
        }
        let first = left.numbers.start;
        left.numbers.start += count;
        Ok(PageNo(first))
    }
}

/// The inode pages being filled.
#[derive(Default)]
pub(super) struct InodePages {
    state: Mutex<Pages>,
    refill: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Pages {
    current: BTreeMap<InodeId, (PageNo, u16)>,
    spare: BTreeSet<PageNo>,
    /// Filled no longer, since when: to be looked at, oldest first.
    left: VecDeque<(Instant, PageNo)>,
}

impl Pages {
    fn is_filled(&self, page: PageNo) -> bool {
        self.spare.contains(&page) || self.current.values().any(|(current, _)| *current == page)
    }

    fn leave(&mut self, page: PageNo) {
        if self.left.len() == LEFT_MAX {
            self.left.pop_front();
        }
        self.left.push_back((instant(), page));
    }
}

impl InodePages {
    /// Never gives slots of this page again: it is full or gone.
    pub(super) fn retire(&self, page: PageNo) {
        let mut state = lock(&self.state);
        state.spare.remove(&page);
        let before = state.current.len();
        state.current.retain(|_, (current, _)| *current != page);
        if state.current.len() < before {
            state.leave(page);
        }
    }

    /// Whether this node still fills the page.
    pub(super) fn is_current(&self, page: PageNo) -> bool {
        lock(&self.state).is_filled(page)
    }

    /// None is filled any longer: each is to be looked at.
    fn leave_all(&self) {
        let mut state = lock(&self.state);
        let filled = std::mem::take(&mut state.current).into_values().map(|(page, _)| page);
        let spare = std::mem::take(&mut state.spare);
        filled.chain(spare).for_each(|page| state.leave(page));
    }

    fn take(&self, directory: InodeId) -> Option<(PageNo, Slot)> {
        let mut state = lock(&self.state);
        let (page, used) = match state.current.get(&directory) {
            Some((page, used)) if *used < INODES_PER_PAGE => (*page, *used),
            _ => (state.spare.pop_first()?, 0),
        };
        if state.current.len() >= DIRECTORIES_MAX {
            let all = std::mem::take(&mut state.current);
            all.into_values()
                .filter(|(left, _)| *left != page)
                .for_each(|(left, _)| state.leave(left));
        }
        let before = state.current.insert(directory, (page, used + 1));
        if let Some((full, _)) = before.filter(|(before, _)| *before != page) {
            state.leave(full);
        }
        Some((page, Slot(2 * (used + 1))))
    }

    /// A directory is gone: its page is filled no longer.
    pub(super) fn end(&self, directory: InodeId) {
        let mut state = lock(&self.state);
        if let Some((page, _)) = state.current.remove(&directory) {
            state.leave(page);
        }
    }

    /// Pages that are filled, or to be filled or looked at.
    pub(super) fn len(&self) -> usize {
        let state = lock(&self.state);
        state.current.len() + state.spare.len() + state.left.len()
    }

    /// Takes out some pages that are filled no longer for at least so long.
    fn take_left(&self, age: Duration) -> Vec<PageNo> {
        let mut state = lock(&self.state);
        let now = instant();
        let old = |(since, _): &&(Instant, PageNo)| now.saturating_duration_since(*since) >= age;
        let count = state.left.iter().take(LOOKED_AT_ONCE).take_while(old).count();
        state.left.drain(..count).map(|(_, page)| page).collect()
    }

    /// They are to be looked at again.
    fn leave_again(&self, pages: &[PageNo]) {
        let mut state = lock(&self.state);
        pages.iter().for_each(|page| state.leave(*page));
    }
}

impl<S: TxStore> FileSystem<S> {
    /// A place for the inode of a new name, with `data` bytes beside it, in the first page of its
    /// directory; none: names need what room is left there.
    pub(super) async fn place_beside_name(
        &self,
        tx: &S::Tx,
        root: PageNo,
        hash: u64,
        data: usize,
    ) -> Result<Option<(PageNo, Slot)>, FsError> {
        let room = tx.room(root).await?.unwrap_or(0);
        let slot = inode_slot_of(hash);
        if self.is_full(root)
            || room < self.room_for_names() + INODE_BYTES + data + 2 * OBJECT_OVERHEAD as usize
            || tx.get(root, slot).await?.is_some()
            || (data > 0 && tx.get(root, Slot(slot.0 | 1)).await?.is_some())
        {
            return Ok(None);
        }
        Ok(Some((root, slot)))
    }

    /// Room of a directory's first page that is kept for names.
    pub(super) fn room_for_names(&self) -> usize {
        self.store.page_bytes() as usize / 2
    }

    /// Removes pages that were filled here and are empty: while they were filled nobody removed them, and
    /// nobody will. Not before whoever found one being filled has ended: a removal that left it there,
    /// a creation that was given a slot in it.
    pub(super) async fn free_left_pages(&self) -> Result<(), FsError> {
        self.free_left_for(self.options.write_limit).await
    }

    /// Removes what is empty of the pages that are filled here, and those that were made ahead: for the end
    /// of a mount, when no operation is under way. What is made later gets pages of its own.
    ///
    /// # Errors
    ///
    /// Of the store: pages stay, empty, and are used by nobody.
    pub async fn free_empty_pages(&self) -> Result<(), FsError> {
        self.inode_pages.leave_all();
        self.free_left_for(Duration::ZERO).await
    }

    async fn free_left_for(&self, age: Duration) -> Result<(), FsError> {
        let mut again = Vec::new();
        let freed = self.free_left(age, &mut again).await;
        self.inode_pages.leave_again(&again);
        freed
    }

    async fn free_left(&self, age: Duration, again: &mut Vec<PageNo>) -> Result<(), FsError> {
        loop {
            let pages = self.inode_pages.take_left(age);
            if pages.is_empty() {
                return Ok(());
            }
            let (made, pages): (Vec<_>, Vec<_>) =
                pages.into_iter().partition(|page| self.open_files.made_on(*page) > 0);
            again.extend(made);
            let freed = transact!(self, tx => {
                tx.fetch(&pages).await?;
                for page in &pages {
                    self.free_inode_page(&tx, *page).await?;
                }
                Ok(())
            });
            if let Err(error) = freed {
                if may_pass(&error) {
                    again.extend(pages);
                }
                return Err(error);
            }
        }
    }

    /// Removes an inode page if nothing is in it.
    pub(super) async fn free_inode_page(&self, tx: &S::Tx, page: PageNo) -> Result<(), FsError> {
        // The page of a directory, and page 1, have something in slot 0.
        if tx.get(page, HEADER_SLOT).await?.is_none()
            && tx.slots(page).await?.is_some_and(|slots| slots.is_empty())
        {
            tx.delete_page(page).await?;
        }
        Ok(())
    }

    /// A place for a new inode of a directory: in a page that is there, in a slot that nobody
    /// else is given.
    pub(super) async fn new_inode_place(
        &self,
        directory: InodeId,
    ) -> Result<(PageNo, Slot), FsError> {
        loop {
            if let Some(place) = self.inode_pages.take(directory) {
                return Ok(place);
            }
            let _one_refills = self.inode_pages.refill.lock().await;
            if lock(&self.inode_pages.state).spare.is_empty() {
                let made: Result<Vec<PageNo>, FsError> = transact!(self, tx => {
                    // Others at every attempt: the origin may refuse those of a lost branch.
                    let first = self.numbers.take(&self.store, SPARE_PAGES).await?;
                    let made: Vec<PageNo> = (0..SPARE_PAGES).map(|i| PageNo(first.0 + i)).collect();
                    for page in &made {
                        tx.create_page(*page, PageKind::Slotted).await?;
                    }
                    Ok(made)
                });
                lock(&self.inode_pages.state).spare.extend(made?);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::MemoryStore;
    use super::*;

    /// An origin was restored from a copy of before it gave a node numbers. The node had seen
    /// nothing of what was lost, went on using them, and freed pages of files that another node had
    /// made with them since.
    #[tokio::test]
    async fn no_number_is_used_that_may_be_given_again() {
        let store = MemoryStore::new(4096);
        let numbers = Numbers::default();
        let first = numbers.take(&store, 1).await.expect("it works");
        assert_eq!(numbers.take(&store, 1).await, Ok(PageNo(first.0 + 1)));
        store.give_again(PageNo(first.0 + 1));
        let theirs = store.allocate(100).await.expect("it works");
        assert_eq!(numbers.take(&store, 1).await, Ok(PageNo(theirs.0 + 100)));
    }
}
