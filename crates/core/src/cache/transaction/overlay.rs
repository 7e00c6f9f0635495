//! A transaction's own writes, and the pages as they are after them.

use super::ahead::Stamps;
use crate::cache::PageCopy;
use crate::commit::{Op, PageKind, Write};
use crate::id::{PageId, Slot, Stamp};
use crate::page::{OpError, Page};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A page that the transaction has written.
#[derive(Default)]
pub(super) struct Written {
    /// The copy under the writes; none when others changed the page since, or it was made here.
    pub(super) base: Option<Arc<PageCopy>>,
    /// Made, or deleted unseen, by this transaction's first write to it: no base is needed.
    pub(super) made: bool,
    /// Made with a number that was read in this transaction.
    named: bool,
    /// Which of the transaction's writes, ascending.
    writes: Vec<usize>,
    /// The page after the first `applied` of them.
    image: Option<Page>,
    applied: usize,
    /// Slots whose content is this transaction's own, whatever the base holds.
    own: BTreeSet<Slot>,
    /// What stands ahead of the stream in the base.
    pub(super) ahead: Stamps,
}

impl Written {
    /// The page after the writes; none: absent. The image is up to date after `settle`.
    pub(super) fn image(&self) -> Option<&Page> {
        self.image.as_ref()
    }

    /// Whether what the slot holds comes from this transaction alone.
    pub(super) fn owns(&self, slot: Slot) -> bool {
        self.made || self.own.contains(&slot)
    }

    /// Whether only a complete base shows if its writes fit: this one has holes, or is put together of two states.
    pub(super) fn is_holed(&self) -> bool {
        let holed = self.base.as_ref().is_some_and(|base| !base.complete());
        holed || self.base.is_some() && !self.ahead.is_empty()
    }

    /// As of which stamp the base has a slot, if that lies ahead of the stream.
    pub(super) fn ahead_at(&self, slot: Slot) -> Option<Stamp> {
        self.ahead.iter().find(|(of, _)| *of == slot).map(|of| of.1)
    }

    fn reset(&mut self) {
        self.image = None;
        self.applied = 0;
        self.own.clear();
    }

    fn apply(&mut self, op: &Op, page_bytes: u32) -> Result<(), OpError> {
        match (op, &mut self.image) {
            (Op::CreatePage(kind), image @ None) => *image = Some(Page::empty(*kind)),
            (Op::DeletePage, image @ Some(_)) => *image = None,
            (Op::DeletePage, None) if self.made && self.applied == 0 => {}
            (Op::CreatePage(_), Some(_)) | (_, None) => return Err(OpError::Kind),
            (op, Some(page)) => {
                page.apply(op, page_bytes)?;
            }
        }
        match op {
            Op::Put { slot, .. } | Op::Delete { slot, .. } => {
                self.own.insert(*slot);
            }
            Op::CreatePage(_)
            | Op::DeletePage
            | Op::RestorePage { .. }
            | Op::Add { .. }
            | Op::Max { .. }
            | Op::WriteRaw { .. }
            | Op::TruncateRaw { .. } => {}
        }
        self.applied += 1;
        Ok(())
    }
}

/// All writes of a transaction.
#[derive(Default)]
pub(super) struct Overlay {
    writes: Vec<Write>,
    pages: BTreeMap<PageId, Written>,
    bytes: usize,
}

impl Overlay {
    pub(super) fn len(&self) -> usize {
        self.writes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn writes(&self) -> &[Write] {
        &self.writes
    }

    pub(super) fn take_writes(&mut self) -> Vec<Write> {
        self.pages.clear();
        std::mem::take(&mut self.writes)
    }

    pub(super) fn get(&self, page: PageId) -> Option<&Written> {
        self.pages.get(&page)
    }

    /// Whether the page is made by a write that still stands.
    pub(super) fn makes(&self, page: PageId) -> bool {
        self.pages.get(&page).is_some_and(|written| written.made)
    }

    /// Others changed the page: its base has to be looked up anew.
    pub(super) fn changed(&mut self, page: PageId) {
        if let Some(written) = self.pages.get_mut(&page) {
            written.base = None;
        }
    }

    /// Puts another base under the page's writes and applies them to it, with what stands ahead of the stream in it.
    pub(super) fn rebase(
        &mut self,
        page: PageId,
        (base, ahead): (Arc<PageCopy>, Stamps),
        page_bytes: u32,
    ) -> Result<(), OpError> {
        let written = self.pages.entry(page).or_default();
        written.reset();
        written.ahead = ahead;
        written.image = base.page.clone();
        written.base = Some(base);
        self.settle(page, page_bytes)
    }

    /// Applies what is not applied yet.
    pub(super) fn settle(&mut self, page: PageId, page_bytes: u32) -> Result<(), OpError> {
        let Some(written) = self.pages.get_mut(&page) else {
            return Ok(());
        };
        while let Some(&index) = written.writes.get(written.applied) {
            written.apply(&self.writes[index].op, page_bytes)?;
        }
        Ok(())
    }

    /// Pages made with numbers that were read in this transaction, ascending.
    pub(super) fn named(&self) -> Vec<PageId> {
        let named = self.pages.iter().filter(|(_, written)| written.named);
        named.map(|(&page, _)| page).collect()
    }

    /// Notes of a page made here that its number was read in this transaction.
    pub(super) fn note_named(&mut self, page: PageId) {
        self.pages.get_mut(&page).expect("just made").named = true;
    }

    /// Makes a page that has no base.
    pub(super) fn make(&mut self, page: PageId, kind: PageKind) -> Result<(), OpError> {
        let written = self.pages.entry(page).or_default();
        // A base may be here from a write that was refused.
        if !written.writes.is_empty() || written.image.is_some() {
            return Err(OpError::Kind);
        }
        written.made = true;
        self.push(page, Op::CreatePage(kind), 0)
    }

    /// Deletes a page that was not written before and whose content is not looked at.
    pub(super) fn remove(&mut self, page: PageId) {
        let written = self.pages.entry(page).or_default();
        assert!(written.writes.is_empty(), "written pages are deleted by `push`");
        written.made = true;
        self.push(page, Op::DeletePage, 0).expect("no page is there to refuse it");
    }

    /// Adds a write to a page that has a base, or was made here, and is settled.
    pub(super) fn push(&mut self, page: PageId, op: Op, page_bytes: u32) -> Result<(), OpError> {
        let written = self.pages.entry(page).or_default();
        written.apply(&op, page_bytes)?;
        written.writes.push(self.writes.len());
        self.bytes += op.payload_bytes();
        self.writes.push(Write { page, op });
        Ok(())
    }

    /// Takes back every write from the `len`th on.
    pub(super) fn truncate(&mut self, len: usize) {
        for write in self.writes.drain(len.min(self.writes.len())..).rev() {
            self.bytes -= write.op.payload_bytes();
            let Some(written) = self.pages.get_mut(&write.page) else {
                continue;
            };
            written.writes.pop();
            if written.writes.is_empty() {
                self.pages.remove(&write.page);
                continue;
            }
            // The rest is applied anew, at the next look: ops cannot be taken back one by one.
            written.reset();
            if let Some(base) = &written.base {
                written.image = base.page.clone();
            }
        }
    }
}
