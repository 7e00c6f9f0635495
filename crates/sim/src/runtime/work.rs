//! What a transaction of a client does, and what the checkers are to know of it.

use super::env::{Shared, lock};
use super::ledger::{tag_in, value};
use crate::check::cycles::{Effect, Item, Moment, Part, State, Tx};
use larder::client::{Error, Result, Transaction};
use larder_core::commit::{Op, PageKind, Write};
use larder_core::id::{DomainId, ObjectId, PageId, PageNo, Slot, VolumeId};
use larder_core::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What clients of a volume aim at.
#[derive(Clone, Debug)]
pub(super) struct Aims {
    pub(super) name: String,
    pub(super) volume: VolumeId,
    pub(super) domain: DomainId,
    pub(super) pages: Vec<PageId>,
    /// Pages that are there from the beginning.
    pub(super) watched: Vec<PageId>,
    pub(super) raw: Vec<PageId>,
    pub(super) objects: Vec<ObjectId>,
    /// Objects of which each is one client's, for transactions that else leave no tag.
    pub(super) diaries: Vec<ObjectId>,
}

/// Most objects and pages that are aimed at.
const AIMS_MAX: usize = 100;

/// Who runs a transaction.
#[derive(Clone)]
pub(super) struct Who {
    pub(super) shared: Arc<Shared>,
    pub(super) name: String,
    pub(super) place: usize,
    pub(super) domain: DomainId,
    pub(super) session: usize,
    pub(super) strict: bool,
    pub(super) read_only: bool,
    pub(super) diary: ObjectId,
}

/// A transaction, as its client knows it.
pub(super) struct Work {
    pub(super) who: Who,
    pub(super) tag: u64,
    pub(super) begun: Moment,
    /// It asked for the commit of something to be written.
    pub(super) writer: bool,
    reads: Vec<(Item, State)>,
    effects: Vec<Effect>,
    touched: BTreeSet<Item>,
    pages_touched: BTreeSet<PageId>,
    made: Vec<ObjectId>,
    pages_made: Vec<(PageId, PageKind)>,
    rng: Rng,
}

impl Work {
    pub(super) fn new(who: Who, tag: u64) -> Self {
        let begun = lock(&who.shared.history).now();
        let rng = who.shared.split();
        Self {
            who,
            tag,
            begun,
            writer: false,
            reads: Vec::new(),
            effects: Vec::new(),
            touched: BTreeSet::new(),
            pages_touched: BTreeSet::new(),
            made: Vec::new(),
            pages_made: Vec::new(),
            rng,
        }
    }

    fn pick<T: Copy>(&mut self, of: impl Fn(&Aims) -> &Vec<T>) -> Option<T> {
        let aims = lock(&self.who.shared.aims);
        let list = of(&aims[self.who.place]);
        (!list.is_empty()).then(|| list[self.rng.below(list.len() as u64) as usize])
    }

    fn volume(&self) -> VolumeId {
        lock(&self.who.shared.aims)[self.who.place].volume
    }

    fn value(&mut self) -> Vec<u8> {
        let fill = self.rng.below(self.who.shared.plan.fill + 1);
        value(self.rng.below(1000), self.tag, fill)
    }

    /// Some operations, at random.
    pub(super) async fn run(&mut self, tx: &Transaction) -> Result<()> {
        for _ in 0..=self.rng.below(5) {
            let writes = !self.who.read_only && self.rng.chance(1, 2);
            let done = if writes { self.write(tx).await } else { self.read(tx).await };
            match done {
                Ok(()) | Err(Error::Gone(_) | Error::NoPage(_) | Error::PageFull(_)) => {}
                // An object that is another, or too short to add to.
                Err(Error::Invalid(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let writes = tx.writes_now();
        let tagged = writes.iter().any(|write| match &write.op {
            Op::Put { value, .. } => tag_in(value) == Some(self.tag),
            Op::WriteRaw { bytes, .. } => tag_in(bytes) == Some(self.tag),
            _ => false,
        });
        if !writes.is_empty() && !tagged {
            self.write_diary(tx).await?;
        }
        Ok(())
    }

    /// Leaves a tag.
    pub(super) async fn write_diary(&mut self, tx: &Transaction) -> Result<()> {
        let (diary, value) = (self.who.diary, self.value());
        tx.update(diary, value.clone()).await?;
        self.put(diary, value);
        Ok(())
    }

    async fn read(&mut self, tx: &Transaction) -> Result<()> {
        match self.rng.below(8) {
            0..4 => {
                let Some(object) = self.pick(|aims| &aims.objects) else { return Ok(()) };
                let found = tx.find(object).await?;
                self.saw(Item::Object(object), found.map_or(State::Absent, State::Bytes));
            }
            4 => {
                let Some(object) = self.pick(|aims| &aims.diaries) else { return Ok(()) };
                let found = tx.find(object).await?;
                self.saw(Item::Object(object), found.map_or(State::Absent, State::Bytes));
            }
            5 => {
                let Some(page) = self.pick(|aims| &aims.pages) else { return Ok(()) };
                let slots = tx.slots(page).await?;
                self.saw(Item::List(page), slots.map_or(State::Absent, State::Listed));
            }
            6 => {
                let Some(page) = self.pick(|aims| &aims.pages) else { return Ok(()) };
                let slot = Slot(self.rng.below(8) as u16);
                let held = tx.exists(page, slot).await?;
                self.saw(Item::Slot(page, slot), held.map_or(State::Absent, State::Held));
            }
            _ => {
                let Some(page) = self.pick(|aims| &aims.raw) else { return Ok(()) };
                let bytes = tx.read_raw(page).await?;
                self.saw(Item::Raw(page), bytes.map_or(State::Absent, State::Bytes));
            }
        }
        Ok(())
    }

    async fn write(&mut self, tx: &Transaction) -> Result<()> {
        match self.rng.below(16) {
            0..7 => {
                let Some(object) = self.pick(|aims| &aims.objects) else { return Ok(()) };
                let value = self.value();
                tx.update(object, value.clone()).await?;
                self.put(object, value);
            }
            7 | 8 => {
                let Some(object) = self.pick(|aims| &aims.objects) else { return Ok(()) };
                let delta = self.rng.below(10) as i64 - 5;
                tx.add(object, 0, delta).await?;
                self.effect(Effect::Add(object, 0, delta), object);
            }
            9 => {
                let Some(object) = self.pick(|aims| &aims.objects) else { return Ok(()) };
                let least = self.rng.below(2000);
                tx.max(object, 0, least).await?;
                self.effect(Effect::Max(object, 0, least), object);
            }
            10 | 11 => {
                let Some(page) = self.pick(|aims| &aims.pages) else { return Ok(()) };
                let value = self.value();
                let object = tx.create(page, value.clone()).await?;
                self.put(object, value);
                self.made.push(object);
            }
            12 => {
                let Some(object) = self.pick(|aims| &aims.objects) else { return Ok(()) };
                tx.delete(object).await?;
                self.effect(Effect::Remove(object), object);
            }
            13 => {
                let kind = if self.rng.chance(1, 2) { PageKind::Raw } else { PageKind::Slotted };
                let page = tx.create_page(self.volume(), kind).await?;
                self.pages_touched.insert(page);
                self.pages_made.push((page, kind));
            }
            _ => {
                let Some(page) = self.pick(|aims| &aims.raw) else { return Ok(()) };
                let (offset, value) = (self.rng.below(100) as u32, self.value());
                tx.write_raw(page, offset, value).await?;
                self.pages_touched.insert(page);
            }
        }
        Ok(())
    }

    fn saw(&mut self, item: Item, state: State) {
        let page = match item {
            Item::Object(ObjectId { page, .. })
            | Item::Slot(page, _)
            | Item::List(page)
            | Item::Raw(page) => page,
        };
        if !self.touched.contains(&item) && !self.pages_touched.contains(&page) {
            self.reads.push((item, state));
        }
    }

    fn put(&mut self, object: ObjectId, value: Vec<u8>) {
        self.effect(Effect::Put(object, value.into()), object);
    }

    fn effect(&mut self, effect: Effect, object: ObjectId) {
        self.effects.push(effect);
        self.touched.insert(Item::Object(object));
        self.touched.insert(Item::Slot(object.page, object.slot));
        self.touched.insert(Item::List(object.page));
    }

    /// For the checkers, before its end is asked for. `writes`: what it writes.
    pub(super) fn tx(&self, writes: Vec<Write>) -> Tx {
        let (reads, effects) = (self.reads.clone(), self.effects.clone());
        let tag = (!writes.is_empty()).then_some(self.tag);
        let part = Part { stamp: None, reads, effects, writes };
        Tx {
            who: self.who.name.clone(),
            tag,
            session: self.who.session,
            strict: self.who.strict,
            begun: self.begun,
            ended: None,
            parts: BTreeMap::from([(self.who.domain, part)]),
        }
    }

    /// Makes what clients aim at from the beginning: objects on pages of a few each, and raw pages.
    pub(super) async fn found(&mut self, tx: &Transaction, objects: u64) -> Result<()> {
        let volume = self.volume();
        let mut page = PageId { volume, page: PageNo(1) };
        for number in 0..objects {
            if number % 5 == 4 {
                page = tx.create_page(volume, PageKind::Slotted).await?;
                self.pages_made.push((page, PageKind::Slotted));
            }
            let value = self.value();
            let object = tx.create(page, value.clone()).await?;
            self.put(object, value);
            self.made.push(object);
        }
        for _ in 0..2 {
            let page = tx.create_page(volume, PageKind::Raw).await?;
            self.pages_made.push((page, PageKind::Raw));
        }
        Ok(())
    }

    /// Reads everything that is aimed at.
    pub(super) async fn read_all(&mut self, tx: &Transaction) -> Result<()> {
        let aims = lock(&self.who.shared.aims)[self.who.place].clone();
        for object in aims.objects.into_iter().chain(aims.diaries) {
            let found = tx.find(object).await?;
            self.saw(Item::Object(object), found.map_or(State::Absent, State::Bytes));
        }
        for page in aims.raw {
            let bytes = tx.read_raw(page).await?;
            self.saw(Item::Raw(page), bytes.map_or(State::Absent, State::Bytes));
        }
        for page in aims.pages {
            let slots = tx.slots(page).await?;
            self.saw(Item::List(page), slots.map_or(State::Absent, State::Listed));
        }
        Ok(())
    }

    /// It is done: others aim at what it made.
    pub(super) fn remember(&self) {
        let mut aims = lock(&self.who.shared.aims);
        let aims = &mut aims[self.who.place];
        for object in &self.made {
            if aims.objects.len() < AIMS_MAX {
                aims.objects.push(*object);
            }
        }
        for (page, kind) in &self.pages_made {
            let list = match kind {
                PageKind::Raw => &mut aims.raw,
                PageKind::Slotted => &mut aims.pages,
            };
            if list.len() < AIMS_MAX {
                list.push(*page);
            }
        }
    }
}
