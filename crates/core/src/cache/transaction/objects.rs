//! Objects: references with generations, forwards, large objects.
//!
//! An object's home is the slot its id names. A record there is its value, a forward to where it
//! moved when it outgrew its page (one hop), or the run of raw pages that hold it. References
//! never change (decision 0005).

use super::access::{Held, refuse};
use super::{Step, Stop, Transaction, TransactionError, Try};
use crate::commit::{Aspect, OBJECT_BYTES_MAX, Op, PageKind};
use crate::id::{Generation, ObjectId, PageId, PageNo, Slot, VolumeId};
use crate::machine::Fault;
use crate::page::{self, Page, Record};
use bytes::{Bytes, BytesMut};

/// The first object of a slot has this generation.
const FIRST: Generation = Generation(1);

impl Transaction {
    /// An object's value; none: it is gone (deleted, or its slot holds a later one: rule 18).
    pub fn read_object(&mut self, object: ObjectId) -> Step<Option<Bytes>> {
        match self.hit(object) {
            Some(value) => Step::Ready(Some(value)),
            None => {
                let result = self.object(object);
                self.told(result)
            }
        }
    }

    /// Creates an object in a page, in `slot` or else in the lowest empty one. Refused with
    /// `PageFull` when there is no room, and with `BadWrite` when the slot is filled.
    pub fn create_object(
        &mut self,
        page: PageId,
        slot: Option<Slot>,
        value: Bytes,
    ) -> Step<ObjectId> {
        let result = self.atomically(|tx| tx.create(page, slot, &value));
        self.told(result)
    }

    /// Overwrites an object. One that outgrows its page moves, and its id stays good. Conflicts
    /// with its deletion and its moves; with other updates only once it has moved.
    pub fn update_object(&mut self, object: ObjectId, value: Bytes) -> Step<()> {
        let result = self.atomically(|tx| tx.update(object, &value));
        self.told(result)
    }

    /// Deletes an object, with what it keeps in other pages.
    pub fn delete_object(&mut self, object: ObjectId) -> Step<()> {
        let result = self.atomically(|tx| {
            let record = tx.home(object)?;
            tx.free(object.page.volume, &record)?;
            let ObjectId { page, slot, generation } = object;
            tx.put_op(page, Op::Delete { slot, generation })
        });
        self.told(result)
    }

    /// Adds to the little-endian 64-bit number at `offset` of an object, wrapping. Commutes.
    pub fn add_to_object(&mut self, object: ObjectId, offset: u32, delta: i64) -> Step<()> {
        let result = self.atomically(|tx| {
            let at = tx.residence(object)?;
            let (slot, generation) = (at.slot, at.generation);
            tx.put_op(at.page, Op::Add { slot, generation, offset, delta })
        });
        self.told(result)
    }

    /// Raises the unsigned little-endian 64-bit number at `offset` of an object. Commutes.
    pub fn max_in_object(&mut self, object: ObjectId, offset: u32, value: u64) -> Step<()> {
        let result = self.atomically(|tx| {
            let at = tx.residence(object)?;
            let (slot, generation) = (at.slot, at.generation);
            tx.put_op(at.page, Op::Max { slot, generation, offset, value })
        });
        self.told(result)
    }

    /// Makes `count` pages with consecutive numbers; gives the first.
    pub fn create_pages(&mut self, volume: VolumeId, kind: PageKind, count: u64) -> Step<PageNo> {
        let result = self.atomically(|tx| {
            let first = tx.take_ids(volume, count)?;
            for page in (first.0..first.0 + count).map(PageNo) {
                tx.put_op(PageId { volume, page }, Op::CreatePage(kind))?;
            }
            Ok(first)
        });
        self.told(result)
    }

    /// Makes a page with a number that this transaction has read, and not written itself: that of the
    /// next page of a file's run. It was given on the line of what was read, to whomever; that this
    /// process was given the same number on another one says nothing of it. What it was read in is
    /// validated with the commit.
    pub fn create_named_page(&mut self, page: PageId, kind: PageKind) -> Step<()> {
        let result = self.atomically(|tx| {
            tx.put_op(page, Op::CreatePage(kind))?;
            tx.overlay.note_named(page);
            Ok(())
        });
        self.told(result)
    }

    /// Runs an operation of several writes: all of them, or none and the page numbers back.
    pub(super) fn atomically<T>(&mut self, run: impl FnOnce(&mut Self) -> Try<T>) -> Try<T> {
        self.alive()?;
        let (savepoint, ids, overflow) = (self.savepoint(), self.ids.clone(), self.overflow);
        let result = run(self);
        if result.is_err() {
            self.rollback_to(savepoint);
            (self.ids, self.overflow) = (ids, overflow);
        }
        result
    }

    // ---- reading ----

    fn object(&mut self, object: ObjectId) -> Try<Option<Bytes>> {
        let home = self.slot(object.page, object.slot)?;
        let Some(record) = self.matching(object, home)? else {
            return Ok(None);
        };
        match record {
            Record::Inline(value) => Ok(Some(value)),
            Record::Forward(moved) => {
                let held = self.slot(moved.page, moved.slot)?;
                match self.matching(moved, held)? {
                    Some(Record::Inline(value)) => Ok(Some(value)),
                    _ => refuse(TransactionError::Damaged(object)),
                }
            }
            Record::Large { length, first, count } => {
                self.check_large(object, &record)?;
                self.large(object, length as usize, first, count).map(Some)
            }
        }
    }

    /// A large object's pages are as many as its length fills: a record that says otherwise would
    /// make its readers ask for millions of pages, and a writer delete those of others.
    fn check_large(&mut self, object: ObjectId, record: &Record) -> Try<()> {
        let page_bytes = self.page_bytes(object.page.volume)?;
        match record {
            Record::Large { length, count, .. }
                if *count != page::large_pages(*length, page_bytes) =>
            {
                refuse(TransactionError::Damaged(object))
            }
            _ => Ok(()),
        }
    }

    fn large(&mut self, object: ObjectId, length: usize, first: PageNo, count: u32) -> Try<Bytes> {
        let mut missing = Vec::new();
        let mut domain = None;
        let mut value = BytesMut::with_capacity(length);
        for page in (first.0..first.0 + u64::from(count)).map(PageNo) {
            let volume = object.page.volume;
            match self.raw(PageId { volume, page }) {
                Ok(Some(piece)) => value.extend_from_slice(&piece),
                Ok(None) => return refuse(TransactionError::Damaged(object)),
                // All missing pages are asked for at once.
                Err(Stop::Need(of, mut pages)) => {
                    domain = Some(of);
                    missing.append(&mut pages);
                }
                Err(other) => return Err(other),
            }
        }
        match domain {
            Some(domain) => Err(Stop::Need(domain, missing)),
            None if value.len() == length => Ok(value.freeze()),
            None => refuse(TransactionError::Damaged(object)),
        }
    }

    /// The record of a slot, if it is that object's (rule 18).
    fn matching(&self, object: ObjectId, held: Held) -> Try<Option<Record>> {
        let ignore = self.cache.faults.has(Fault::IgnoreGeneration);
        match held {
            Some((generation, record)) if generation == object.generation || ignore => {
                match Record::decode(record) {
                    Ok(record) => Ok(Some(record)),
                    Err(_) => refuse(TransactionError::Damaged(object)),
                }
            }
            _ => Ok(None),
        }
    }

    /// The record at an object's home, for a write: a read of its existence, and of its value as
    /// well when it points elsewhere.
    fn home(&mut self, object: ObjectId) -> Try<Record> {
        let held = self.slot_as(object.page, object.slot, Aspect::Existence)?;
        let Some(record) = self.matching(object, held)? else {
            return refuse(TransactionError::Gone(object));
        };
        self.check_large(object, &record)?;
        if !matches!(record, Record::Inline(_)) {
            self.slot(object.page, object.slot)?;
        }
        Ok(record)
    }

    /// Where an object's bytes are, for commutative updates.
    fn residence(&mut self, object: ObjectId) -> Try<ObjectId> {
        let held = self.slot_as(object.page, object.slot, Aspect::Existence)?;
        match self.matching(object, held)? {
            Some(Record::Inline(_)) => Ok(object),
            Some(Record::Forward(moved)) => Ok(moved),
            Some(Record::Large { .. }) => refuse(TransactionError::BadWrite(object.page)),
            None => refuse(TransactionError::Gone(object)),
        }
    }

    // ---- writing ----

    fn create(&mut self, page: PageId, slot: Option<Slot>, value: &Bytes) -> Try<ObjectId> {
        let slot = match slot {
            Some(slot) => slot,
            None => match self.peek(page, Page::free_slot)? {
                Some(Some(slot)) => slot,
                Some(None) => return refuse(TransactionError::PageFull(page)),
                None => return refuse(TransactionError::BadPage(page)),
            },
        };
        if self.existence(page, slot)?.is_some() {
            return refuse(TransactionError::BadWrite(page));
        }
        // Which generation comes next is known even beside holes in other slots; with some of
        // them remembered elsewhere the origin has the last word.
        let next = self.peek(page, |page| page.next_generation(slot))?;
        let generation = match next {
            Some(Some(generation)) => generation,
            Some(None) => return refuse(TransactionError::BadWrite(page)),
            None => return refuse(TransactionError::BadPage(page)),
        };
        let object = ObjectId { page, slot, generation };
        let page_bytes = self.page_bytes(page.volume)?;
        let record = if value.len() < page::record_bytes_max(page_bytes) {
            Record::Inline(value.clone())
        } else {
            self.place_large(page.volume, value)?
        };
        self.put_record(object, &record)?;
        Ok(object)
    }

    fn update(&mut self, object: ObjectId, value: &Bytes) -> Try<()> {
        let old = self.home(object)?;
        let volume = object.page.volume;
        let page_bytes = self.page_bytes(volume)?;
        if value.len() >= page::record_bytes_max(page_bytes) {
            self.free(volume, &old)?;
            let record = self.place_large(volume, value)?;
            return self.put_record(object, &record);
        }
        let inline = Record::Inline(value.clone());
        if let Record::Forward(moved) = old {
            return match self.put_record(moved, &inline) {
                Err(Stop::Refused(TransactionError::PageFull(_))) => {
                    self.free(volume, &old)?;
                    self.place(object, &inline)
                }
                result => result,
            };
        }
        self.free(volume, &old)?;
        self.place(object, &inline)
    }

    /// Puts a record at the object's home, or, when it is full, elsewhere with a forward at home.
    fn place(&mut self, object: ObjectId, record: &Record) -> Try<()> {
        match self.put_record(object, record) {
            Err(Stop::Refused(TransactionError::PageFull(_))) => {}
            result => return result,
        }
        let volume = object.page.volume;
        // Objects moved by one transaction share pages. A slot may have held one that is gone again.
        let shared = self.overflow.filter(|page| page.volume == volume);
        let free = |page: &Page| {
            let slot = page.free_slot()?;
            Some((slot, page.next_generation(slot)?))
        };
        if let Some(page) = shared
            && let Some(Some((slot, generation))) = self.peek(page, free)?
        {
            let moved = ObjectId { page, slot, generation };
            match self.put_record(moved, record) {
                Ok(()) => return self.put_record(object, &Record::Forward(moved)),
                Err(Stop::Refused(TransactionError::PageFull(_))) => {}
                Err(other) => return Err(other),
            }
        }
        let page = self.take_ids(volume, 1)?;
        let page = PageId { volume, page };
        self.put_op(page, Op::CreatePage(PageKind::Slotted))?;
        self.overflow = Some(page);
        let moved = ObjectId { page, slot: Slot(0), generation: FIRST };
        self.put_record(moved, record)?;
        self.put_record(object, &Record::Forward(moved))
    }

    /// Writes a value into raw pages of its own.
    fn place_large(&mut self, volume: VolumeId, value: &Bytes) -> Try<Record> {
        if value.len() > OBJECT_BYTES_MAX {
            return refuse(TransactionError::TooLarge("object"));
        }
        let piece = page::raw_bytes_max(self.page_bytes(volume)?);
        let count = value.len().div_ceil(piece);
        let first = self.take_ids(volume, count as u64)?;
        for index in 0..count {
            let page = PageNo(first.0 + index as u64);
            let page = PageId { volume, page };
            let bytes = value.slice(index * piece..value.len().min((index + 1) * piece));
            self.put_op(page, Op::CreatePage(PageKind::Raw))?;
            self.put_op(page, Op::WriteRaw { offset: 0, bytes })?;
        }
        Ok(Record::Large {
            length: u32::try_from(value.len()).expect("at most 16 MiB"),
            first,
            count: u32::try_from(count).expect("at most 16 MiB in pieces"),
        })
    }

    /// Removes what a record keeps in other pages.
    fn free(&mut self, volume: VolumeId, record: &Record) -> Try<()> {
        match *record {
            Record::Inline(_) => Ok(()),
            Record::Forward(moved) => {
                // Pages made for moved objects go with their last one.
                let alone = self.peek(moved.page, |page| page.filled() == 1)?;
                let (slot, generation) = (moved.slot, moved.generation);
                let op = if alone == Some(true) {
                    Op::DeletePage
                } else {
                    Op::Delete { slot, generation }
                };
                self.put_op(moved.page, op)
            }
            Record::Large { first, count, .. } => {
                for page in (first.0..first.0 + u64::from(count)).map(PageNo) {
                    self.put_op(PageId { volume, page }, Op::DeletePage)?;
                }
                Ok(())
            }
        }
    }

    fn put_record(&mut self, object: ObjectId, record: &Record) -> Try<()> {
        let op =
            Op::Put { slot: object.slot, generation: object.generation, value: record.encode() };
        self.put_op(object.page, op)
    }

    /// A run of page numbers out of those handed in.
    fn take_ids(&mut self, volume: VolumeId, count: u64) -> Try<PageNo> {
        let fits =
            |range: &&mut crate::commit::IdRange| range.volume == volume && range.count >= count;
        let Some(range) = self.ids.iter_mut().find(fits) else {
            return Err(Stop::NeedIds(volume, count));
        };
        let first = range.first;
        range.first = PageNo(first.0 + count);
        range.count -= count;
        self.ids.retain(|range| range.count > 0);
        Ok(first)
    }
}
