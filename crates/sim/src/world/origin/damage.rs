//! What a disk does to a log that no disk may: bits that flip, writes that it said it had made and did not,
//! or made elsewhere. The origin must refuse to start, and name what is damaged, or give what was written;
//! only the newest write may go as one that was torn. Never may it read what nobody wrote.

use super::{ORIGIN, StoreHost};
use crate::plan::Trouble;
use crate::world::World;
use larder_core::record::{LogRecord, Lsn};

/// Damages in one log that were not mended, at most.
const ROTS_MAX: usize = 2;
/// The first page of a segment is its header: no record is there.
const SEGMENT_HEADER_BYTES: u64 = 4096;

impl StoreHost {
    /// Whether something in the newest write is damaged: recovery must take that for a write that was
    /// torn and never answered (decision 0005), and those who saw it find that it is gone. Noted until a
    /// start has succeeded, since recovery changes the disk.
    pub(super) fn note_newest_rots(&mut self) {
        let mut rots = self.rots.iter();
        let newest = rots.any(|rot| self.disk.is_newest_from(rot, SEGMENT_HEADER_BYTES));
        self.last_is_rotten |= newest;
    }

    /// The newest write was cut off as torn, and what is left was read: there is nothing to put back any more,
    /// and what would be put back behind the end would be damage.
    pub(super) fn forget_rots(&mut self) {
        self.rots.clear();
    }

    /// Whatever is read of a log was written there, last of all under its number.
    pub(super) fn check_read(&self, records: &[(Lsn, LogRecord)]) {
        for (lsn, record) in records {
            let written = self.written.get(lsn);
            assert!(
                written == Some(record),
                "P9: the log of {:?} gives as record {} {record:?}, and what was written is {written:?}",
                self.domain,
                lsn.0
            );
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
        for store in &mut self.processes[0].origin().stores {
            store.open = None;
        }
        let store = &mut self.processes[0].origin().stores[number];
        if store.backup.as_ref().is_some_and(|backup| backup.rots.is_empty()) {
            self.restore();
        } else {
            // As it was before recovery cut off what it took for torn.
            store.disk = store.mirror.take().expect("made before it was opened");
            store.mend_rots();
            store.last_is_rotten = false;
        }
        self.after_death(ORIGIN);
    }

    /// The disk of a domain's log does what no disk may.
    pub(in crate::world) fn damage(&mut self, trouble: Trouble) {
        self.back_up();
        let number = self.rng.below(self.domains.len() as u64) as usize;
        let store = &mut self.processes[0].origin().stores[number];
        if store.rots.len() >= ROTS_MAX {
            return;
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
            self.processes[0].origin().stores[number].rots.push(rot);
        }
    }
}
