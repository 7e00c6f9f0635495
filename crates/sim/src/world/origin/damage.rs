//! What a disk does to a log that no disk may: bits that flip, writes that it said it had made and did not,
//! or made elsewhere. The origin must refuse to start, and name what is damaged, or give what was written;
//! only the newest write may go as one that was torn. Never may it read what nobody wrote.

use super::StoreHost;
use crate::net::Proc;
use crate::plan::Trouble;
use crate::world::World;
use larder_core::record::{LogRecord, Lsn};
use std::collections::BTreeMap;

/// Damages in one log that were not mended, at most.
const ROTS_MAX: usize = 2;
/// The first page of a segment is its header: no record is there.
const SEGMENT_HEADER_BYTES: u64 = 4096;

/// What may be read of a log, by number: what was answered, or else anything written there since what is
/// before it was. Of two writes to one place of which neither was answered, each torn by a power cut, the
/// disk may make up the first one whole (seed 19671562689427).
#[derive(Debug, Default)]
pub(super) struct Written(BTreeMap<Lsn, Vec<LogRecord>>);

impl Written {
    /// These are written; once that is answered, nothing else may be read from the first of them on.
    pub(super) fn note(&mut self, records: &[(Lsn, LogRecord)], answered: bool) {
        if let (Some((first, _)), true) = (records.first(), answered) {
            drop(self.0.split_off(first));
        }
        for (lsn, record) in records {
            self.0.entry(*lsn).or_default().push(record.clone());
        }
    }

    /// A start reads this one, which no other replaces any more but by being written; or what may be read.
    fn read(&mut self, lsn: Lsn, record: &LogRecord) -> Result<(), &[LogRecord]> {
        let written = self.0.entry(lsn).or_default();
        if !written.contains(record) {
            return Err(written);
        }
        *written = vec![record.clone()];
        Ok(())
    }
}

impl StoreHost {
    /// Whether something in the newest write is damaged: recovery must take that for a write that was
    /// torn and never answered (decision 0005), and those who saw it find that it is gone. Noted until a
    /// start has succeeded, since recovery changes the disk.
    pub(super) fn note_newest_rots(&mut self) {
        for rot in self.disk.newest_of(&self.rots, SEGMENT_HEADER_BYTES) {
            if !self.newest_rots.contains(&rot) {
                self.newest_rots.push(rot);
            }
        }
    }

    /// The newest write was cut off as torn, and what is left was read: there is nothing to put back any more,
    /// and what would be put back behind the end would be damage.
    pub(super) fn forget_rots(&mut self) {
        self.rots.clear();
    }

    /// Whatever is read of a log was written there.
    pub(super) fn check_read(&mut self, records: &[(Lsn, LogRecord)]) {
        for (lsn, record) in records {
            if let Err(written) = self.written.read(*lsn, record) {
                panic!(
                    "P9: the log of {:?} gives as record {} {record:?}, and what was written is {written:?}",
                    self.domain, lsn.0
                );
            }
        }
    }

    /// An operator puts back from a mirror what was damaged.
    fn mend_rots(&mut self) {
        // The last first: the same byte may have been damaged twice.
        for rot in self.rots.drain(..).rev() {
            self.disk.mend_rot(&rot);
        }
    }
}

impl World {
    /// The origin refuses to start, and names what is damaged: an operator puts back what was
    /// there, from a backup if there is one.
    pub(super) fn mend_refused(&mut self, number: usize, error: &dyn std::error::Error) {
        self.needs_beyond("the origin does not start");
        self.trace.mix(0x4ef5);
        self.trace.line(|| format!("the origin does not start: {error}"));
        self.tally.refused_stores += 1;
        let origin = self.origin_of(number);
        for number in self.numbers_of(origin) {
            self.stores[number].open = None;
        }
        let store = &mut self.stores[number];
        if store.backup.as_ref().is_some_and(|backup| backup.rots.is_empty()) {
            self.restore(origin);
        } else {
            // As it was before recovery cut off what it took for torn.
            store.disk = store.mirror.take().expect("made before it was opened");
            store.mend_rots();
            store.newest_rots.clear();
        }
        self.after_death(origin);
    }

    /// The disk of a domain's log does what no disk may. Gives the origin that uses it.
    pub(in crate::world) fn damage(&mut self, trouble: Trouble) -> Proc {
        self.back_up();
        let number = self.rng.below(self.domains.len() as u64) as usize;
        let store = &mut self.stores[number];
        if store.rots.len() >= ROTS_MAX {
            return self.origin_of(number);
        }
        let rot = match trouble {
            Trouble::Rot => store.disk.rot(),
            Trouble::LoseWrite => store.disk.lose_write(),
            Trouble::MisdirectWrite => store.disk.misdirect_write(),
            other => panic!("{other:?} damages no disk"),
        };
        if let Some(rot) = rot {
            self.trace.mix(rot.offset);
            self.trace.line(|| format!("{rot:?}"));
            self.stores[number].rots.push(rot);
        }
        self.origin_of(number)
    }
}

#[cfg(test)]
mod tests {
    use super::Written;
    use larder_core::id::{HistoryId, Stamp};
    use larder_core::record::{LogRecord, Lsn};

    fn epoch(history: u128) -> LogRecord {
        LogRecord::Epoch {
            epoch: larder_core::message::Epoch { history: HistoryId(history), first: Stamp(1) },
        }
    }

    /// The story of seed 19671562689427: the origin died twice while the beginning of its time was being
    /// written, and the disk gave the first one. Nobody had been told of either.
    #[test]
    fn either_of_two_writes_that_were_not_answered_may_be_read() {
        let mut written = Written::default();
        written.note(&[(Lsn(1), epoch(1))], true);
        written.note(&[(Lsn(2), epoch(2)), (Lsn(3), epoch(3))], false);
        written.note(&[(Lsn(2), epoch(4))], false);
        assert_eq!(written.read(Lsn(2), &epoch(2)), Ok(()));
        assert!(written.read(Lsn(2), &epoch(4)).is_err(), "a start has read the other one");
        assert!(written.read(Lsn(1), &epoch(2)).is_err());
        written.note(&[(Lsn(2), epoch(5))], true);
        assert!(written.read(Lsn(2), &epoch(2)).is_err(), "what was answered stands");
        assert!(written.read(Lsn(3), &epoch(3)).is_err(), "and nothing is behind it");
    }
}
