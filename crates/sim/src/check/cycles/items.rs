//! What can be seen and written, and every state that it had.

use super::Part;
use super::graph::{Graph, Kind};
use bytes::Bytes;
use larder_core::commit::{Op, PageKind, Write};
use larder_core::id::{DomainId, Generation, ObjectId, PageId, Slot, Stamp};
use std::collections::BTreeMap;
use std::fmt;

/// Something that is seen as one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Item {
    /// An object's value.
    Object(ObjectId),
    /// Which object a slot holds.
    Slot(PageId, Slot),
    /// Which objects a page holds.
    List(PageId),
    /// A raw page's content.
    Raw(PageId),
}

/// What is seen of an item.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// Nobody can say: it was forgotten.
    Unknown,
    /// Nothing.
    Absent,
    /// Bytes.
    Bytes(Bytes),
    /// An object, by its generation.
    Held(Generation),
    /// Objects.
    Listed(Vec<(Slot, Generation)>),
}

/// What a transaction did to an object, wherever its bytes are kept.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Made it, or overwrote it.
    Put(ObjectId, Bytes),
    /// Removed it.
    Remove(ObjectId),
    /// Added to the number at an offset.
    Add(ObjectId, u32, i64),
    /// Raised the number at an offset.
    Max(ObjectId, u32, u64),
}

impl Effect {
    /// On which object.
    pub fn object(&self) -> ObjectId {
        match self {
            Self::Put(object, _)
            | Self::Remove(object)
            | Self::Add(object, ..)
            | Self::Max(object, ..) => *object,
        }
    }
}

/// A state that somebody made.
#[derive(Clone, Debug)]
struct Version {
    stamp: Stamp,
    tx: u32,
    state: State,
    /// It commutes with its neighbours that do, too.
    commutes: bool,
}

/// All states of an item, the oldest first.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    first: State,
    versions: Vec<Version>,
}

/// Where an item's states are in a graph: at `n`, those after `n` versions.
#[derive(Debug)]
pub(super) struct Places {
    /// Who sees the state comes after this.
    after: Vec<Option<u32>>,
    /// Who sees the state comes before this.
    before: Vec<Option<u32>>,
}

/// The states of all items, as commits are applied in the order of their stamps.
#[derive(Debug)]
pub(super) struct Chains {
    chains: BTreeMap<Item, (DomainId, Chain)>,
    forgetful: bool,
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object(ObjectId { page, slot, generation }) => {
                write!(f, "object {page} slot {} generation {}", slot.0, generation.0)
            }
            Self::Slot(page, slot) => write!(f, "slot {} of {page}", slot.0),
            Self::List(page) => write!(f, "the list of {page}"),
            Self::Raw(page) => write!(f, "raw page {page}"),
        }
    }
}

impl Item {
    /// What it is before anybody wrote it: a volume is made with its first page.
    #[must_use]
    pub fn first_state(&self) -> State {
        match self {
            Self::List(page) if page.page.0 == 1 => State::Listed(Vec::new()),
            _ => State::Absent,
        }
    }
}

impl Chain {
    fn last(&self) -> &State {
        self.versions.last().map_or(&self.first, |version| &version.state)
    }

    fn push(&mut self, stamp: Stamp, tx: u32, state: State, commutes: bool) {
        match self.versions.last_mut() {
            Some(last) if last.tx == tx => {
                last.state = state;
                last.commutes &= commutes;
            }
            _ => self.versions.push(Version { stamp, tx, state, commutes }),
        }
    }

    fn state(&self, versions: usize) -> &State {
        versions.checked_sub(1).map_or(&self.first, |last| &self.versions[last].state)
    }

    /// How many versions had been made when the item was seen like this. Most states are of one
    /// version alone; of those that come again (nothing, a list without what was removed) the one
    /// that was there `at` the stamp is taken, or else the nearest below, or above.
    #[must_use]
    pub(super) fn find(&self, state: &State, at: Stamp) -> Option<usize> {
        let there = self.versions.partition_point(|version| version.stamp <= at);
        let below = (0..=there).rev();
        below.chain(there + 1..=self.versions.len()).find(|versions| self.state(*versions) == state)
    }

    /// Whether the state after `seen` versions is the one at a stamp, or nobody can say.
    #[must_use]
    pub(super) fn same(&self, seen: usize, at: Stamp) -> bool {
        let there = self.state(self.versions.partition_point(|version| version.stamp <= at));
        *there == State::Unknown || there == self.state(seen)
    }

    /// For people: what was seen, and what there was.
    #[must_use]
    pub(super) fn tell(&self, seen: usize, at: Stamp) -> String {
        let there = self.versions.partition_point(|version| version.stamp <= at);
        let since = |count: usize| count.checked_sub(1).map(|last| self.versions[last].stamp);
        format!(
            "{:?} (of {:?}); it was {:?} (since {:?})",
            self.state(seen),
            since(seen),
            self.state(there),
            since(there)
        )
    }

    /// Enters the order of all who wrote the item.
    pub(super) fn enter(&self, graph: &mut Graph, item: u32) -> Places {
        let count = self.versions.len();
        let mut places = Places { after: vec![None; count + 1], before: vec![None; count + 1] };
        for (number, version) in (1..).zip(&self.versions) {
            let earlier = places.after[number - 1];
            if version.commutes {
                let node = graph.add_node();
                graph.enter(version.tx, node, Kind::Sees, item);
                if let Some(earlier) = earlier {
                    graph.enter(earlier, node, Kind::Sees, item);
                }
                places.after[number] = Some(node);
            } else {
                if let Some(earlier) = earlier {
                    graph.enter(earlier, version.tx, Kind::Overwrites, item);
                }
                places.after[number] = Some(version.tx);
            }
        }
        for number in (0..count).rev() {
            let next = &self.versions[number];
            if !next.commutes {
                places.before[number] = Some(next.tx);
                continue;
            }
            let node = graph.add_node();
            graph.enter(node, next.tx, Kind::Misses, item);
            if let Some(later) = places.before[number + 1] {
                graph.enter(node, later, Kind::Misses, item);
            }
            places.before[number] = Some(node);
            let earlier = number.checked_sub(1).map(|last| &self.versions[last]);
            if let Some(earlier) = earlier.filter(|earlier| !earlier.commutes) {
                graph.enter(earlier.tx, node, Kind::Overwrites, item);
            }
        }
        places
    }

    /// Enters that a transaction saw the item after `seen` versions.
    pub(super) fn enter_read(
        &self,
        graph: &mut Graph,
        item: u32,
        places: &Places,
        tx: u32,
        seen: usize,
    ) {
        if let Some(after) = places.after[seen] {
            graph.enter(after, tx, Kind::Sees, item);
        }
        let mut from = seen;
        if let Some(own) = self.own(tx, seen) {
            // Through a node in between it would seem to come before itself.
            for version in &self.versions[seen..own] {
                graph.enter(tx, version.tx, Kind::Misses, item);
            }
            if !self.versions[own].commutes {
                return;
            }
            from = own + 1;
        }
        if let Some(before) = places.before[from] {
            graph.enter(tx, before, Kind::Misses, item);
        }
    }

    /// The version that a reader made itself, if it is among those that nodes in between join with
    /// what it saw.
    fn own(&self, tx: u32, seen: usize) -> Option<usize> {
        for (number, version) in (seen..).zip(&self.versions[seen..]) {
            if version.tx == tx {
                return Some(number);
            }
            if !version.commutes {
                return None;
            }
        }
        None
    }
}

impl Chains {
    /// No item was written.
    #[must_use]
    pub(super) fn new(forgetful: bool) -> Self {
        Self { chains: BTreeMap::new(), forgetful }
    }

    fn chain(&mut self, domain: DomainId, item: Item) -> &mut Chain {
        let first = if self.forgetful { State::Unknown } else { item.first_state() };
        let entry = self.chains.entry(item);
        &mut entry.or_insert_with(|| (domain, Chain { first, versions: Vec::new() })).1
    }

    /// Applies what a transaction wrote.
    pub(super) fn write(&mut self, domain: DomainId, stamp: Stamp, tx: u32, part: &Part) {
        for effect in &part.effects {
            let (Effect::Put(object, _)
            | Effect::Remove(object)
            | Effect::Add(object, ..)
            | Effect::Max(object, ..)) = effect;
            let chain = self.chain(domain, Item::Object(*object));
            let (state, commutes) = match effect {
                Effect::Put(_, value) => (State::Bytes(value.clone()), false),
                Effect::Remove(_) => (State::Absent, false),
                Effect::Add(_, offset, delta) => {
                    let add = |old: u64| old.wrapping_add(*delta as u64);
                    (with_number(chain.last(), *offset, add), true)
                }
                Effect::Max(_, offset, least) => {
                    (with_number(chain.last(), *offset, |old| old.max(*least)), true)
                }
            };
            chain.push(stamp, tx, state, commutes);
        }
        for write in &part.writes {
            self.write_page(domain, stamp, tx, write);
        }
    }

    fn write_page(&mut self, domain: DomainId, stamp: Stamp, tx: u32, write: &Write) {
        let page = write.page;
        match &write.op {
            Op::CreatePage(PageKind::Slotted) => {
                let list = self.chain(domain, Item::List(page));
                list.push(stamp, tx, State::Listed(Vec::new()), false);
            }
            Op::CreatePage(PageKind::Raw) => {
                let raw = self.chain(domain, Item::Raw(page));
                raw.push(stamp, tx, State::Bytes(Bytes::new()), false);
            }
            Op::DeletePage => self.delete_page(stamp, tx, page),
            Op::Put { slot, generation, .. } => {
                let chain = self.chain(domain, Item::Slot(page, *slot));
                if *chain.last() != State::Held(*generation) {
                    chain.push(stamp, tx, State::Held(*generation), false);
                    self.list(domain, stamp, tx, page, *slot, Some(*generation));
                }
            }
            Op::Delete { slot, .. } => {
                self.chain(domain, Item::Slot(page, *slot)).push(stamp, tx, State::Absent, false);
                self.list(domain, stamp, tx, page, *slot, None);
            }
            Op::Add { .. } | Op::Max { .. } => {}
            // No client of the simulator restores.
            Op::RestorePage { .. } => {
                self.chain(domain, Item::List(page)).push(stamp, tx, State::Unknown, false);
            }
            Op::WriteRaw { offset, bytes } => {
                let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                self.write_raw(domain, stamp, tx, page, |content| {
                    content.resize(content.len().max(end), 0);
                    content[start..end].copy_from_slice(bytes);
                });
            }
            Op::TruncateRaw { length } => {
                self.write_raw(domain, stamp, tx, page, |content| {
                    content.resize(*length as usize, 0);
                });
            }
        }
    }

    fn write_raw(
        &mut self,
        domain: DomainId,
        stamp: Stamp,
        tx: u32,
        page: PageId,
        change: impl FnOnce(&mut Vec<u8>),
    ) {
        let chain = self.chain(domain, Item::Raw(page));
        let state = match chain.last() {
            State::Bytes(content) => {
                let mut content = content.to_vec();
                change(&mut content);
                State::Bytes(content.into())
            }
            _ => State::Unknown,
        };
        chain.push(stamp, tx, state, false);
    }

    /// Creations and removals in different slots of a page commute; those of one slot are in order
    /// by the slot.
    fn list(
        &mut self,
        domain: DomainId,
        stamp: Stamp,
        tx: u32,
        page: PageId,
        slot: Slot,
        now: Option<Generation>,
    ) {
        let chain = self.chain(domain, Item::List(page));
        let state = match chain.last() {
            State::Listed(list) => {
                let mut list = list.clone();
                list.retain(|(other, _)| *other != slot);
                let place = list.partition_point(|(other, _)| *other < slot);
                if let Some(generation) = now {
                    list.insert(place, (slot, generation));
                }
                State::Listed(list)
            }
            _ => State::Unknown,
        };
        chain.push(stamp, tx, state, true);
    }

    fn delete_page(&mut self, stamp: Stamp, tx: u32, page: PageId) {
        let first = ObjectId { page, slot: Slot(0), generation: Generation(0) };
        let last = ObjectId { page, slot: Slot(u16::MAX), generation: Generation(u32::MAX) };
        let ranges = [
            Item::Object(first)..=Item::Object(last),
            Item::Slot(page, Slot(0))..=Item::Slot(page, Slot(u16::MAX)),
            Item::List(page)..=Item::List(page),
            Item::Raw(page)..=Item::Raw(page),
        ];
        for range in ranges {
            for (_, (_, chain)) in self.chains.range_mut(range) {
                if *chain.last() != State::Absent {
                    chain.push(stamp, tx, State::Absent, false);
                }
            }
        }
    }

    /// All items that were written, in order.
    #[must_use]
    pub(super) fn finish(self) -> Vec<(DomainId, Item, Chain)> {
        self.chains.into_iter().map(|(item, (domain, chain))| (domain, item, chain)).collect()
    }
}

fn with_number(state: &State, offset: u32, change: impl Fn(u64) -> u64) -> State {
    let place = offset as usize..offset as usize + 8;
    let State::Bytes(bytes) = state else {
        return State::Unknown;
    };
    let mut bytes = bytes.to_vec();
    let Some(number) = bytes.get_mut(place) else {
        return State::Unknown;
    };
    let mut old = [0; 8];
    old.copy_from_slice(number);
    number.copy_from_slice(&change(u64::from_le_bytes(old)).to_le_bytes());
    State::Bytes(bytes.into())
}
