//! A second opinion on what clients did: the crate `adya`, a checker of histories that others wrote,
//! is told what every transaction read and wrote, with the commits' stamps as the order of versions.
//!
//! It knows registers alone. Told as registers are objects that are only ever put (by reference, so
//! never made again) and slots (which generation they hold). Left out are objects to which somebody
//! adds or which somebody raises; what is seen of a list (a predicate) and of a raw page (written in
//! parts); and reads of an absence in a slot that was ever emptied, in a page that was ever deleted, or
//! of an object that was ever removed: a register is empty at its beginning alone. The order of
//! sessions is left to the cycle test.
//!
//! It is asked twice: whether all transactions together are serializable, and whether those that real
//! time binds (writers, and strict readers) are strictly so. A reader of several domains is labelled as
//! per-domain, and told as one reader in each.

use super::cycles::{Effect, Item, Part, State, Tx};
use adya::history::{Interner, Mop, Op, OpType, ReadValue, Scalar};
use adya::{History, Opts, Valid, Workload, check};
use larder_core::commit::Op as Written;
use larder_core::id::{DomainId, Generation, ObjectId, PageId, Slot, Stamp};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Says what `adya` finds wrong with a history, if anything.
pub fn ask(txs: &[Tx]) -> Result<Asked, String> {
    let known = Known::new(txs);
    let all = Told::new(&known, txs, false).ask("serializable")?;
    let bound = Told::new(&known, txs, true).ask("strict-serializable")?;
    Ok(Asked { transactions: all.max(bound), left_out: known.left_out(txs) })
}

/// What it was asked about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// Transactions, each once for every domain that it used.
    pub transactions: usize,
    /// Reads that it cannot be told of.
    pub left_out: usize,
}

/// What of the history can be told.
#[derive(Default)]
struct Known {
    /// Objects that somebody adds to.
    counted: BTreeSet<ObjectId>,
    removed: BTreeSet<ObjectId>,
    emptied: BTreeSet<(PageId, Slot)>,
    deleted: BTreeSet<PageId>,
    /// The commit that first put a generation in a slot.
    made: BTreeMap<(PageId, Slot, Generation), Stamp>,
}

impl Known {
    fn new(txs: &[Tx]) -> Self {
        let mut known = Self::default();
        for part in txs.iter().flat_map(|tx| tx.parts.values()) {
            for effect in &part.effects {
                match effect {
                    Effect::Put(..) => {}
                    Effect::Remove(object) => {
                        known.removed.insert(*object);
                    }
                    Effect::Add(object, ..) | Effect::Max(object, ..) => {
                        known.counted.insert(*object);
                    }
                }
            }
            let Some(stamp) = part.stamp else { continue };
            for write in &part.writes {
                match &write.op {
                    Written::DeletePage | Written::RestorePage { .. } => {
                        known.deleted.insert(write.page);
                    }
                    Written::Delete { slot, .. } => {
                        known.emptied.insert((write.page, *slot));
                    }
                    Written::Put { slot, generation, .. } => {
                        let made = known.made.entry((write.page, *slot, *generation));
                        let first = made.or_insert(stamp);
                        *first = stamp.min(*first);
                    }
                    _ => {}
                }
            }
        }
        known
    }

    /// A register's name and what was read there; none: it cannot be told.
    fn read(&self, (item, state): &(Item, State)) -> Option<(String, Option<String>)> {
        match (item, state) {
            (Item::Object(object), State::Bytes(bytes)) => {
                let told = !self.counted.contains(object);
                told.then(|| (name_of(object), Some(format!("{bytes:?}"))))
            }
            (Item::Object(object), State::Absent) => {
                let again = self.counted.contains(object)
                    || self.removed.contains(object)
                    || self.deleted.contains(&object.page);
                (!again).then(|| (name_of(object), None))
            }
            (Item::Slot(page, slot), State::Held(generation)) => {
                Some((slot_name(*page, *slot), Some(generation.0.to_string())))
            }
            (Item::Slot(page, slot), State::Absent) => {
                let again = self.emptied.contains(&(*page, *slot)) || self.deleted.contains(page);
                (!again).then(|| (slot_name(*page, *slot), None))
            }
            _ => None,
        }
    }

    /// The registers that a part writes.
    fn writes(&self, part: &Part) -> Vec<(String, String)> {
        let mut writes = Vec::new();
        for effect in &part.effects {
            if let Effect::Put(object, bytes) = effect
                && !self.counted.contains(object)
            {
                put(&mut writes, name_of(object), format!("{bytes:?}"));
            }
        }
        for write in &part.writes {
            let Written::Put { slot, generation, .. } = &write.op else { continue };
            if self.made.get(&(write.page, *slot, *generation)) == part.stamp.as_ref() {
                put(&mut writes, slot_name(write.page, *slot), generation.0.to_string());
            }
        }
        writes
    }

    fn left_out(&self, txs: &[Tx]) -> usize {
        let parts = txs.iter().flat_map(|tx| tx.parts.values());
        parts.flat_map(|part| &part.reads).filter(|read| self.read(read).is_none()).count()
    }
}

/// Of several writes of a transaction to a register the last one counts.
fn put(writes: &mut Vec<(String, String)>, register: String, value: String) {
    writes.retain(|(other, _)| *other != register);
    writes.push((register, value));
}

fn name_of(object: &ObjectId) -> String {
    Item::Object(*object).to_string()
}

fn slot_name(page: PageId, slot: Slot) -> String {
    Item::Slot(page, slot).to_string()
}

/// A history as `adya` has it.
#[derive(Default)]
struct Told {
    interner: Interner,
    /// Operations by their moment.
    ops: Vec<((u64, bool), Op)>,
    /// Those that write in each domain, by their stamps.
    order: BTreeMap<DomainId, BTreeMap<Stamp, i64>>,
    processes: i64,
}

impl Told {
    /// Those that are known to be done: all, or those alone that real time binds.
    fn new(known: &Known, txs: &[Tx], bound: bool) -> Self {
        let mut told = Self::default();
        for tx in txs.iter().filter(|tx| tx.is_done()) {
            let parts: Vec<(&DomainId, &Part)> = tx.parts.iter().collect();
            if bound && !tx.strict && !tx.writes() {
                continue;
            }
            // A reader of several domains is labelled as per-domain.
            if tx.is_per_domain() {
                parts.iter().for_each(|part| told.tell(known, tx, &[*part]));
            } else {
                told.tell(known, tx, &parts);
            }
        }
        told
    }

    fn tell(&mut self, known: &Known, tx: &Tx, parts: &[(&DomainId, &Part)]) {
        self.processes += 1;
        let mut value = Vec::new();
        let reads = parts.iter().flat_map(|(_, part)| &part.reads);
        for (key, seen) in reads.filter_map(|read| known.read(read)) {
            let key = self.interner.intern(Scalar::Str(key));
            let seen = seen.map(|seen| self.interner.intern(Scalar::Str(seen)));
            value.push(Mop::Read { key, value: seen.map_or(ReadValue::Nil, ReadValue::Scalar) });
        }
        for (domain, part) in parts.iter().filter(|(_, part)| part.writes()) {
            for (key, written) in known.writes(part) {
                let key = self.interner.intern(Scalar::Str(key));
                let written = self.interner.intern(Scalar::Str(written));
                value.push(Mop::Write { key, value: written });
            }
            let of_domain = self.order.entry(**domain).or_default();
            of_domain.insert(part.stamp.unwrap_or_default(), self.processes);
        }
        // Who was never told is done at the end.
        let ended = tx.ended.map_or(u64::MAX, |ended| ended.number());
        let process = Some(self.processes);
        for (kind, moment) in [(OpType::Invoke, tx.begun.number()), (OpType::Ok, ended)] {
            let op = Op { index: 0, kind, process, value: value.clone(), time: None };
            self.ops.push(((moment, kind == OpType::Ok), op));
        }
    }

    /// One order of all that write in which those of each domain are in that of their stamps; none: there is none.
    fn ranks(&self) -> Option<BTreeMap<i64, i64>> {
        let mut after: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        let mut awaits: BTreeMap<i64, usize> = BTreeMap::new();
        for of_domain in self.order.values() {
            for one in of_domain.values() {
                awaits.entry(*one).or_default();
            }
            for (one, next) in of_domain.values().zip(of_domain.values().skip(1)) {
                after.entry(*one).or_default().push(*next);
                *awaits.entry(*next).or_default() += 1;
            }
        }
        let mut ready: BTreeSet<i64> =
            awaits.iter().filter(|(_, count)| **count == 0).map(|(one, _)| *one).collect();
        let mut ranks = BTreeMap::new();
        while let Some(one) = ready.pop_first() {
            ranks.insert(one, i64::try_from(ranks.len()).expect("a run has few"));
            for next in after.remove(&one).unwrap_or_default() {
                let count = awaits.get_mut(&next).expect("it was entered");
                *count -= 1;
                if *count == 0 {
                    ready.insert(next);
                }
            }
        }
        (ranks.len() == awaits.len()).then_some(ranks)
    }

    fn ask(mut self, model: &str) -> Result<usize, String> {
        let ranks = self.ranks().ok_or("P2: writers of several domains are in a circle")?;
        self.ops.sort_by_key(|(moment, _)| *moment);
        let mut order = HashMap::new();
        let mut ops = Vec::with_capacity(self.ops.len());
        for (index, (_, mut op)) in (0..).zip(self.ops) {
            op.index = index;
            let rank = op.process.and_then(|process| ranks.get(&process));
            if let (OpType::Ok, Some(rank)) = (op.kind, rank) {
                order.insert(index, *rank);
            }
            ops.push(op);
        }
        let count = ops.len() / 2;
        let history = History::from_ops(ops, self.interner);
        let options =
            Opts { models: vec![model.into()], transaction_order: Some(order), ..Opts::default() };
        let report = check(&history, Workload::RwRegister, &options);
        // Unknown: nothing depends on anything.
        if report.valid != Valid::False {
            return Ok(count);
        }
        let anomalies = report.anomalies.values().flatten();
        let said: Vec<&str> = anomalies.map(|found| found.explanation.as_str()).take(3).collect();
        Err(format!("P2: adya: not {model}: {:?}: {}", report.anomaly_types, said.join("; ")))
    }
}
