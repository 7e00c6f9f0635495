//! What the cycle test is told of the clients' transactions.

use super::{Ending, Kind, Reads};
use crate::check::cycles::{Effect, Item, Moment, Part, State, Tx};
use crate::check::oracle::Fate;
use crate::check::seen::Seen;
use crate::world::World;
use larder_core::cache::{CommitPart, Seen as Floor, decides};
use larder_core::id::{DomainId, Stamp};
use std::collections::BTreeMap;

impl World {
    /// A transaction as it would be if it were done. Reads of a line of history that is lost are
    /// left out; none: of a reader that makes all of it void.
    pub(super) fn tell(
        &self,
        index: usize,
        kind: Kind,
        begun: (Moment, usize),
        reads: &BTreeMap<DomainId, Reads>,
        seen: &[Floor],
    ) -> (Tx, bool) {
        let mut tx = Tx {
            who: format!("client {index}"),
            tag: None,
            session: begun.1,
            strict: kind.strict,
            begun: begun.0,
            ended: None,
            parts: BTreeMap::new(),
        };
        let mut lost = false;
        for (domain, reads) in reads {
            let floor = seen.iter().find(|floor| floor.domain == *domain);
            let floor = floor.expect("what was read is seen or sent");
            let branch = self.branch_of(index, kind, reads, floor);
            let mut part = Part { stamp: Some(floor.stamp), ..Part::default() };
            if branch + 1 == self.oracle.truth(*domain).branch_count() {
                part.reads = reads.seen.iter().map(as_read).collect();
            } else {
                lost = true;
            }
            tx.parts.insert(*domain, part);
        }
        (tx, lost)
    }

    /// It only read, and is done.
    pub(super) fn add_reader(&mut self, (mut tx, lost): (Tx, bool)) {
        tx.ended = Some(self.cycles.now());
        if !lost {
            self.cycles.add(tx);
        }
    }

    /// It is about to ask for its commit. Given back if it has nothing to write: it is done when all
    /// of its parts are.
    pub(super) fn add_writer(
        &mut self,
        (mut tx, lost): (Tx, bool),
        tag: Option<u64>,
        effects: &[Effect],
        parts: &[CommitPart],
    ) -> Option<(Tx, u32)> {
        if decides(parts).is_none() {
            return (!lost).then_some((tx, self.cycles.restores()));
        }
        for written in parts.iter().filter(|part| !part.writes.is_empty()) {
            let here = |effect: &&Effect| {
                let volume = effect.object().page.volume;
                written.writes.iter().any(|write| write.page.volume == volume)
            };
            let part = tx.parts.entry(written.domain).or_default();
            part.stamp = None;
            part.effects = effects.iter().filter(here).cloned().collect();
            part.writes = written.writes.clone();
        }
        tx.tag = tag;
        tx.strict &= !lost;
        self.cycles.add(tx);
        None
    }

    /// The stamps of parts in domains that were not restored since they were sent: others may be another's now, and
    /// of two origins one is restored alone.
    pub(super) fn stamps_told(
        &self,
        ending: &Ending,
        stamp: Stamp,
        stamps: &[(DomainId, Stamp)],
    ) -> Vec<(DomainId, Stamp)> {
        let own = [(ending.sent.domain, stamp)];
        let stamps = if stamps.is_empty() { &own } else { stamps };
        let others = ending.others.iter().map(|other| (other.part.domain, other.branches));
        let sent: Vec<(DomainId, usize)> =
            others.chain([(ending.sent.domain, ending.branches)]).collect();
        let stands = |(domain, _): &&(DomainId, Stamp)| {
            sent.contains(&(*domain, self.oracle.truth(*domain).branch_count()))
        };
        stamps.iter().filter(stands).copied().collect()
    }

    /// A part is done, as its user is told: with the stamps that stand.
    pub(super) fn told_committed(
        &mut self,
        ending: &mut Ending,
        stamp: Stamp,
        stamps: &[(DomainId, Stamp)],
    ) {
        if !ending.sent.writes.is_empty() {
            let tag = ending.tag.expect("only writers write");
            if !stamps.is_empty() {
                self.cycles.committed(tag, stamps);
            }
            return;
        }
        let Some((tx, restores)) = &mut ending.reader else {
            return;
        };
        if let Some(part) = tx.parts.get_mut(&ending.sent.domain) {
            part.stamp = Some(stamp);
        }
        if *restores != self.cycles.restores() {
            ending.reader = None;
        } else if ending.rest.is_empty() {
            let reader = ending.reader.take();
            self.add_reader((reader.expect("looked at above").0, false));
        }
    }

    /// No order of all transactions may be contradicted by what they saw (P2).
    pub(crate) fn check_cycles(&mut self) {
        let oracle = &self.oracle;
        self.cycles.learn(|tag, domain| match oracle.fate(tag, domain) {
            Fate::Logged(stamp) | Fate::Acknowledged(stamp) => Some(stamp),
            Fate::Open | Fate::Aborted | Fate::Lost => None,
        });
        if let Err(cycle) = self.cycles.check() {
            panic!("{cycle}");
        }
    }

    /// A domain was restored: what is lost is no part of its history any more.
    pub(crate) fn forget_lost(&mut self, domain: DomainId) {
        self.cycles.restored(domain);
    }
}

fn as_read(seen: &Seen) -> (Item, State) {
    let present = |state: Option<State>| state.unwrap_or(State::Absent);
    match seen {
        Seen::Object(object, value) => {
            (Item::Object(*object), present(value.clone().map(State::Bytes)))
        }
        Seen::Slot(page, slot, generation) => {
            (Item::Slot(*page, *slot), present(generation.map(State::Held)))
        }
        Seen::Slots(page, slots) => (Item::List(*page), present(slots.clone().map(State::Listed))),
        Seen::Raw(page, bytes) => (Item::Raw(*page), present(bytes.clone().map(State::Bytes))),
    }
}
