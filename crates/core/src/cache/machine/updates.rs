//! What neighbours committed: their writes come ahead of the change that names them, and are applied with it
//! (BuddyCache, section 3.2: peer update; decision 0031).

use super::Cache;
use super::link::violation;
use super::memory::updated;
use crate::commit::{Op, PageChange, Write};
use crate::group::updates::bytes_of;
use crate::id::{CommitId, DomainId, PageId, Stamp};
use crate::message::CloseReason;
use std::collections::BTreeMap;

/// Bytes of writes that may wait for their changes.
const UPDATES_BYTES_MAX: usize = 16 << 20;

/// What a commit wrote.
struct Update {
    id: CommitId,
    pages: BTreeMap<PageId, Vec<Op>>,
    bytes: usize,
}

/// Writes of neighbours whose changes are to come.
#[derive(Default)]
pub(super) struct Updates {
    coming: BTreeMap<Stamp, Update>,
    bytes: usize,
}

impl Updates {
    /// What a commit wrote to a page.
    fn ops(&self, id: CommitId, stamp: Stamp, page: PageId) -> Option<&[Op]> {
        let update = self.coming.get(&stamp).filter(|update| update.id == id)?;
        update.pages.get(&page).map(|ops| &**ops)
    }

    /// Whether a change's writes came ahead of it.
    pub(super) fn has(&self, id: CommitId, stamp: Stamp) -> bool {
        self.coming.get(&stamp).is_some_and(|update| update.id == id)
    }

    /// The stream has passed them.
    pub(super) fn reached(&mut self, through: Stamp) {
        while let Some(first) = self.coming.first_entry()
            && *first.key() <= through
        {
            self.bytes -= first.remove().bytes;
        }
    }

    /// Takes what is to come; says whether there was room.
    fn add(&mut self, stamp: Stamp, update: Update) -> bool {
        self.bytes += update.bytes;
        if let Some(before) = self.coming.insert(stamp, update) {
            self.bytes -= before.bytes;
        }
        self.bytes <= UPDATES_BYTES_MAX
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Commits whose changes are to come.
    #[cfg(feature = "faults")]
    pub(super) fn len(&self) -> usize {
        self.coming.len()
    }
}

impl Cache {
    /// What a neighbour's commit wrote; its change is to come.
    pub(super) fn on_update(
        &mut self,
        domain: DomainId,
        (id, stamp): (CommitId, Stamp),
        writes: Vec<Write>,
    ) -> Result<(), CloseReason> {
        if self.neighbours.is_none() {
            return violation("an update of somebody who is no member");
        }
        let Some(entry) = self.domains.get_mut(&domain).filter(|entry| entry.live()) else {
            return violation("an update of a domain whose stream has not begun");
        };
        if entry.position.is_none_or(|position| stamp <= position) {
            return violation("an update of what has passed");
        }
        let bytes = bytes_of(&writes);
        let mut pages: BTreeMap<PageId, Vec<Op>> = BTreeMap::new();
        for Write { page, op } in writes {
            pages.entry(page).or_default().push(op);
        }
        if !entry.updates.add(stamp, Update { id, pages, bytes }) {
            return violation("too many updates ahead of the stream");
        }
        Ok(())
    }

    /// Others changed a page. If one of them is a neighbour, and what it wrote came along and can be
    /// applied, the copy is as good as before; else there are holes, or it goes: says whether there was one.
    pub(super) fn update_or_invalidate(
        &mut self,
        domain: DomainId,
        from: Stamp,
        (id, stamp): (CommitId, Stamp),
        change: &PageChange,
    ) -> bool {
        let page = change.page;
        let copy = self.shared.peek(page).zip(self.shared.volume(page.volume));
        let entry = &self.domains[&domain];
        let new = copy.and_then(|(old, volume)| {
            let ops = entry.updates.ops(id, stamp, page)?;
            let new = updated(Some(&old), change, stamp, ops, volume.page_bytes);
            if new.is_none() {
                crate::probe::probe("update-not-applied");
            }
            new.map(|new| (old, new))
        });
        match new {
            Some((old, new)) => {
                crate::probe::probe("update-applied");
                self.keep_for_snapshots(domain, &old, from);
                self.put(domain, new);
                false
            }
            None => self.invalidate(domain, from, change),
        }
    }
}
