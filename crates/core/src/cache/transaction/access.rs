//! Reading and writing pages within a transaction.

use super::ahead::Stamps;
use super::overlay::Written;
use super::{Consistency, Doom, Step, Stop, Transaction, TransactionError, Try};
use crate::cache::PageCopy;
use crate::commit::{Aspect, Op, PageKind};
use crate::id::{Generation, ObjectId, PageId, Slot};
use crate::machine::Fault;
use crate::page::{OpError, Page};
use bytes::Bytes;
use std::sync::Arc;

/// What a slot holds: generation and record bytes; none: nothing.
pub type Held = Option<(Generation, Bytes)>;
/// What a page holds: slots, generations and record bytes, ascending.
pub type Records = Vec<(Slot, Generation, Bytes)>;

impl Transaction {
    /// What a slot holds: its generation and record bytes. A read of its value; finding nothing
    /// is a read too (rule 9).
    pub fn read_slot(&mut self, page: PageId, slot: Slot) -> Step<Held> {
        let result = self.slot(page, slot);
        self.told(result)
    }

    /// Whether a slot is filled, and with which generation. A read of its existence alone.
    pub fn exists(&mut self, page: PageId, slot: Slot) -> Step<Option<Generation>> {
        let result = self.existence(page, slot);
        self.told(result)
    }

    /// Which slots of a page are filled, ascending; none: there is no such page. A read of which
    /// slots there are, not of their values. A raw page has none.
    pub fn slots(&mut self, page: PageId) -> Step<Option<Vec<(Slot, Generation)>>> {
        let result = self.whole(page, Aspect::Existence, |page| page.slots().collect());
        self.told(result)
    }

    /// All that a page holds, as slots, generations and records; none: there is no such page.
    pub fn read_all(&mut self, page: PageId) -> Step<Option<Records>> {
        let result = self.whole(page, Aspect::Value, |page| {
            let records = page.slots().map(|(slot, generation)| {
                let (_, record) = page.get(slot).expect("a filled slot holds a record");
                (slot, generation, record)
            });
            records.collect()
        });
        self.told(result)
    }

    /// The whole image of a page; none: there is no such page. A read of all of its values.
    pub fn read_page(&mut self, page: PageId) -> Step<Option<Page>> {
        let result = self.whole(page, Aspect::Value, Page::clone);
        self.told(result)
    }

    /// A raw page's bytes; none: there is no such page, or it is slotted.
    pub fn read_raw(&mut self, page: PageId) -> Step<Option<Bytes>> {
        let result = self.raw(page);
        self.told(result)
    }

    /// Looks at a page without recording a read: for hints (room left, a free slot) that the
    /// origin checks by itself. None: there is no such page.
    pub fn hint<T>(&mut self, page: PageId, look: impl FnMut(&Page) -> T) -> Step<Option<T>> {
        let result = self.peek(page, look);
        self.told(result)
    }

    /// Writes. The page is looked at, so that what the origin would refuse is refused here; a
    /// write to an object carries a read of its existence (decision 0002).
    pub fn write(&mut self, page: PageId, op: Op) -> Step<()> {
        // All or nothing: it may be refused for the age of the state after it was taken.
        let result = self.atomically(|tx| tx.put_op(page, op));
        self.told(result)
    }

    // ---- reads ----

    #[inline]
    pub(super) fn slot(&mut self, page: PageId, slot: Slot) -> Try<Held> {
        self.slot_as(page, slot, Aspect::Value)
    }

    /// What a slot holds, as a read of `aspect`: finding nothing is one of its existence.
    #[inline]
    pub(super) fn slot_as(&mut self, page: PageId, slot: Slot, aspect: Aspect) -> Try<Held> {
        self.alive()?;
        let unread = self.cache.faults.has(Fault::OwnUnread);
        if !self.overlay.is_empty() && self.overlay.get(page).is_some() && !unread {
            return self.own_slot(page, slot, aspect);
        }
        if let Some(held) = self.held_ahead(page, slot, aspect)? {
            return Ok(held);
        }
        let held =
            self.look(page, Some(slot), |copy| copy.page.as_ref().and_then(|page| page.get(slot)))?;
        if held.is_some() {
            self.note_slot(page, slot, aspect)?;
        } else if !self.cache.faults.has(Fault::ForgetAbsence) {
            self.note_slot(page, slot, Aspect::Existence)?;
        }
        Ok(held)
    }

    fn own_slot(&mut self, page: PageId, slot: Slot, aspect: Aspect) -> Try<Held> {
        self.settle(page, Some(slot))?;
        let written = self.overlay.get(page).expect("asked for a written page");
        let held = written.image().and_then(|page| page.get(slot));
        if !written.owns(slot) {
            let aspect = held.as_ref().map_or(Aspect::Existence, |_| aspect);
            self.note_based(page, slot, aspect)?;
        }
        Ok(held)
    }

    pub(super) fn existence(&mut self, page: PageId, slot: Slot) -> Try<Option<Generation>> {
        self.alive()?;
        let find = |page: &Page| page.get_ref(slot).map(|(generation, _)| generation);
        let (generation, own) = if self.overlay.get(page).is_some() {
            self.settle(page, Some(slot))?;
            let written = self.overlay.get(page).expect("asked for a written page");
            (written.image().and_then(find), written.owns(slot))
        } else {
            if let Some(held) = self.held_ahead(page, slot, Aspect::Existence)? {
                return Ok(held.map(|(generation, _)| generation));
            }
            let found = self.look(page, Some(slot), |copy| copy.page.as_ref().and_then(find))?;
            (found, false)
        };
        let forget = generation.is_none() && self.cache.faults.has(Fault::ForgetAbsence);
        if !own && !forget {
            self.note_based(page, slot, Aspect::Existence)?;
        }
        Ok(generation)
    }

    pub(super) fn raw(&mut self, page: PageId) -> Try<Option<Bytes>> {
        let raw = self.peek(page, Page::raw)?;
        if !self.overlay.makes(page) {
            self.note_slot(page, Slot(0), Aspect::Value)?;
        }
        Ok(raw.flatten())
    }

    fn whole<T>(
        &mut self,
        page: PageId,
        aspect: Aspect,
        look: impl FnMut(&Page) -> T,
    ) -> Try<Option<T>> {
        let seen = self.peek(page, look)?;
        let forget = seen.is_none() && self.cache.faults.has(Fault::ForgetAbsence);
        let forget = forget || self.cache.faults.has(Fault::ForgetListing);
        if !self.overlay.makes(page) && !forget {
            self.reads.add_page(page, aspect);
            self.after_read(page)?;
        }
        Ok(seen)
    }

    /// Looks at a complete page, own writes included, without recording a read.
    pub(super) fn peek<T>(
        &mut self,
        page: PageId,
        mut look: impl FnMut(&Page) -> T,
    ) -> Try<Option<T>> {
        self.alive()?;
        if self.overlay.get(page).is_some() {
            self.settle(page, None)?;
            let written = self.overlay.get(page).expect("asked for a written page");
            return Ok(written.image().map(look));
        }
        self.look(page, None, |copy| copy.page.as_ref().map(&mut look))
    }

    #[inline]
    fn note_slot(&mut self, page: PageId, slot: Slot, aspect: Aspect) -> Try<()> {
        self.reads.add_slot(page, slot, aspect);
        self.after_read(page)
    }

    /// The same of a page that may be written: as of the stamp that its base has the slot of.
    fn note_based(&mut self, page: PageId, slot: Slot, aspect: Aspect) -> Try<()> {
        let written = self.overlay.get(page);
        match written.and_then(|written| written.ahead_at(slot)) {
            Some(stamp) => self.note_ahead((page, slot), aspect, stamp)?,
            None if self.options.ahead => self.check_not_ahead((page, slot), aspect)?,
            None => {}
        }
        self.note_slot(page, slot, aspect)
    }

    /// Bounds, and the age of the state, which counts only when looked at after the copy (rule 8).
    #[inline]
    pub(super) fn after_read(&mut self, page: PageId) -> Try<()> {
        if self.reads.len() > self.options.limits.reads_max {
            return refuse(TransactionError::TooLarge("reads"));
        }
        if self.cache.faults.has(Fault::LeaseBeforeCopy) {
            return Ok(());
        }
        let domain = self.domain_of(page)?;
        self.check_age(domain)
    }

    /// Looks at a copy of the page that is exact at the valid-through at which all earlier reads
    /// hold (rule 3), and that has no hole at `slot` (none: no hole at all).
    #[inline]
    fn look<T>(
        &mut self,
        page: PageId,
        slot: Option<Slot>,
        mut find: impl FnMut(&Arc<PageCopy>) -> T,
    ) -> Try<T> {
        let domain = self.domain_of(page)?;
        if self.cache.faults.has(Fault::LeaseBeforeCopy) {
            self.check_age(domain)?;
        }
        if self.options.consistency == Consistency::Snapshot {
            return self.look_back(domain, page, slot, find);
        }
        if slot.is_none() && self.options.ahead {
            self.check_whole_ahead(domain, page)?;
        }
        loop {
            self.note_confirmed(domain);
            let attached = &self.domains[domain];
            let sequence = attached.state.stable();
            if sequence != attached.at.sequence {
                self.recheck(domain)?;
                continue;
            }
            let found = self.cache.with(page, |copy| usable(copy, slot).then(|| find(copy)));
            if !attached.state.unmoved(sequence) {
                continue;
            }
            if let Some(found) = found.flatten() {
                return Ok(found);
            }
            // Kept exact by `recheck`, which drops what a change names.
            if let Some(copy) = self.supplied.copies.get(&page)
                && usable(copy, slot)
            {
                return Ok(find(copy));
            }
            return Err(Stop::Need(attached.state.id(), vec![page]));
        }
    }

    /// The same for a snapshot: a copy that is exact at the stamp of its begin.
    fn look_back<T>(
        &mut self,
        domain: usize,
        page: PageId,
        slot: Option<Slot>,
        mut find: impl FnMut(&Arc<PageCopy>) -> T,
    ) -> Try<T> {
        let (state, at) = (Arc::clone(&self.domains[domain].state), self.domains[domain].at);
        loop {
            let sequence = state.stable();
            if state.line() != at.line {
                return self.doom_with(Doom::HistoryLost(state.id()));
            }
            let mut late = false;
            let found = self.cache.with(page, |copy| {
                late = copy.version > at.through;
                (!late && usable(copy, slot)).then(|| find(copy))
            });
            if !state.unmoved(sequence) {
                continue;
            }
            if let Some(found) = found.flatten() {
                return Ok(found);
            }
            if let Some(copy) = state.retained(page, at.through, slot) {
                return Ok(find(&copy));
            }
            if let Some(copy) = self.supplied.copies.get(&page)
                && usable(copy, slot)
            {
                return Ok(find(copy));
            }
            if late {
                crate::probe::probe("snapshot-too-old");
                return self.doom_with(Doom::SnapshotTooOld(page));
            }
            return Err(Stop::Need(state.id(), vec![page]));
        }
    }

    /// A copy handed to a snapshot: one of a later version shows that the state is gone.
    pub(super) fn refuse_late(&mut self, domain: usize, copy: &PageCopy) -> Try<()> {
        let Self { domains, .. } = self;
        let (state, at) = (&domains[domain].state, domains[domain].at);
        if state.line() != at.line {
            let id = state.id();
            return self.doom_with(Doom::HistoryLost(id));
        }
        if copy.version > at.through && state.retained(copy.id, at.through, None).is_none() {
            return self.doom_with(Doom::SnapshotTooOld(copy.id));
        }
        Ok(())
    }

    // ---- writes ----

    pub(super) fn put_op(&mut self, page: PageId, op: Op) -> Try<()> {
        self.alive()?;
        self.check_write(page, &op)?;
        let page_bytes = self.page_bytes(page.volume)?;
        if let Op::CreatePage(kind) = op {
            return self.make_page(page, kind);
        }
        if op == Op::DeletePage && self.overlay.get(page).is_none() {
            return self.remove_page(page);
        }
        let slot = op_slot(&op);
        if self.overlay.get(page).is_none() {
            let base = self.base(page, slot)?;
            self.overlay.rebase(page, base, page_bytes).expect("no writes to apply");
        } else {
            self.settle(page, slot)?;
        }
        // Existence is read by the write itself, unless this transaction made what it writes to.
        let written = self.overlay.get(page).expect("has a base by now");
        let own = slot.map_or(written.made, |slot| written.owns(slot));
        let holed = written.is_holed();
        let mut pushed = self.overlay.push(page, op.clone(), page_bytes);
        if matches!(pushed, Err(OpError::Full | OpError::Malformed)) && holed {
            // Stale records may take the room: look again at the whole page.
            self.settle(page, None)?;
            pushed = self.overlay.push(page, op.clone(), page_bytes);
        }
        pushed.map_err(|error| Stop::Refused(refusal(page, &op, error)))?;
        if !own {
            match slot {
                Some(slot) => self.note_based(page, slot, Aspect::Existence)?,
                None => self.reads.add_page(page, Aspect::Existence),
            }
        }
        Ok(())
    }

    fn make_page(&mut self, page: PageId, kind: PageKind) -> Try<()> {
        // Its number is new by right; if not, the origin says so. A page known to be there is
        // refused at once.
        let there = self.cache.peek(page).is_some_and(|copy| copy.page.is_some());
        if there || self.overlay.make(page, kind).is_err() {
            return refuse(TransactionError::BadPage(page));
        }
        Ok(())
    }

    /// Deletes a page without looking at its bytes: of a large object they would all be fetched.
    fn remove_page(&mut self, page: PageId) -> Try<()> {
        if self.options.ahead {
            let domain = self.domain_of(page)?;
            self.check_whole_ahead(domain, page)?;
        }
        if self.cache.peek(page).is_some_and(|copy| copy.page.is_none()) {
            return refuse(TransactionError::BadPage(page));
        }
        self.overlay.remove(page);
        self.reads.add_page(page, Aspect::Existence);
        self.after_read(page)
    }

    /// Brings the image of a written page up to date: an exact base without a hole at `slot`
    /// (none: without any), and all writes applied.
    fn settle(&mut self, page: PageId, slot: Option<Slot>) -> Try<()> {
        let page_bytes = self.page_bytes(page.volume)?;
        let domain = self.domain_of(page)?;
        self.recheck(domain)?;
        let written = self.overlay.get(page).expect("asked for a written page");
        let whole = slot.is_some() || written.ahead.is_empty();
        let usable = written.made
            || slot.is_some_and(|slot| written.owns(slot) && written.base.is_some())
            || written.base.as_ref().is_some_and(|base| whole && usable(base, slot));
        let result = if usable {
            self.overlay.settle(page, page_bytes)
        } else {
            let base = self.base(page, slot)?;
            self.overlay.rebase(page, base, page_bytes)
        };
        match result {
            Ok(()) => Ok(()),
            // Holes hold stale records: only a complete base shows whether the writes still fit.
            Err(_) if self.holed(page) => {
                let base = self.base(page, None)?;
                match self.overlay.rebase(page, base, page_bytes) {
                    Ok(()) => Ok(()),
                    Err(_) => self.doom_with(Doom::WriteFailed(page)),
                }
            }
            Err(_) => {
                crate::probe::probe("writes-no-longer-fit");
                self.doom_with(Doom::WriteFailed(page))
            }
        }
    }

    fn holed(&self, page: PageId) -> bool {
        self.overlay.get(page).is_some_and(Written::is_holed)
    }

    /// What the page's writes are put on, and what stands ahead of the stream in it.
    fn base(&mut self, page: PageId, slot: Option<Slot>) -> Try<(Arc<PageCopy>, Stamps)> {
        if self.options.ahead
            && let Some(base) = self.base_ahead(page, slot)?
        {
            return Ok(base);
        }
        Ok((self.look(page, slot, Arc::clone)?, Stamps::new()))
    }

    fn check_write(&mut self, page: PageId, op: &Op) -> Try<()> {
        if self.options.consistency == Consistency::Snapshot {
            return refuse(TransactionError::ReadOnly);
        }
        let limits = self.options.limits;
        if self.overlay.len() >= limits.writes_max {
            return refuse(TransactionError::TooLarge("writes"));
        }
        if self.overlay.bytes() + op.payload_bytes() > limits.bytes_max {
            return refuse(TransactionError::TooLarge("bytes of writes"));
        }
        self.domain_of(page).map(drop)
    }
}

#[inline]
fn usable(copy: &PageCopy, slot: Option<Slot>) -> bool {
    match slot {
        Some(slot) => !copy.is_hole(slot),
        None => copy.complete(),
    }
}

pub(super) fn refuse<T>(error: TransactionError) -> Try<T> {
    Err(Stop::Refused(error))
}

/// The slot whose content matters to an op; none: all of the page.
fn op_slot(op: &Op) -> Option<Slot> {
    match op {
        Op::Put { slot, .. } | Op::Delete { slot, .. } => Some(*slot),
        Op::Add { slot, .. } | Op::Max { slot, .. } => Some(*slot),
        Op::WriteRaw { .. } | Op::TruncateRaw { .. } => Some(Slot(0)),
        Op::CreatePage(_) | Op::DeletePage | Op::RestorePage { .. } => None,
    }
}

fn refusal(page: PageId, op: &Op, error: OpError) -> TransactionError {
    match (error, op) {
        (
            OpError::Gone,
            Op::Put { slot, generation, .. }
            | Op::Delete { slot, generation }
            | Op::Add { slot, generation, .. }
            | Op::Max { slot, generation, .. },
        ) => TransactionError::Gone(ObjectId { page, slot: *slot, generation: *generation }),
        (OpError::Full, _) => TransactionError::PageFull(page),
        (OpError::Malformed, _) => TransactionError::BadWrite(page),
        (OpError::Kind | OpError::Gone, _) => TransactionError::BadPage(page),
    }
}
