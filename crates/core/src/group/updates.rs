//! What neighbours commit, kept by the redirector until the stream tells of it (BuddyCache, section 3.2:
//! peer update).
//!
//! A commit passes here on its way up. Its writes are kept, under its id (rule 12), until its change comes or
//! is known not to come: then they go to all members ahead of the change, which are told of it
//! without them where anything is in doubt. The outcome may come before the change or after it.

use crate::commit::{Change, Outcome, Write};
use crate::id::{CommitId, Stamp};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Writes of a commit, and how many bytes they take, about.
#[derive(Clone, Debug)]
struct Kept {
    writes: Arc<[Write]>,
    bytes: usize,
    /// Where the origin put it, once that is known.
    at: Option<Stamp>,
}

/// Writes of one domain's commits.
#[derive(Debug, Default)]
pub(crate) struct Updates {
    /// Passed on, and not in the stream yet.
    under_way: BTreeMap<CommitId, Kept>,
    /// In the stream, for members that it has not reached.
    told: BTreeMap<Stamp, (CommitId, Kept)>,
    bytes: usize,
}

impl Updates {
    /// A commit is passed on. Where there is no room for what it writes its change comes as it is. Of one that
    /// is sent again with other writes none are kept: nobody knows which of them were done.
    pub(crate) fn keep(&mut self, id: CommitId, writes: &[Write], (one, all): (usize, usize)) {
        let bytes = bytes_of(writes);
        let before = self.forget(id);
        let differs = before.is_some_and(|kept| *kept.writes != *writes);
        if writes.is_empty() || bytes > one || differs {
            return;
        }
        while self.bytes + bytes > all
            && let Some((_, (_, oldest))) = self.told.pop_first()
        {
            crate::probe::probe("update-makes-room");
            self.bytes -= oldest.bytes;
        }
        if self.bytes + bytes > all {
            crate::probe::probe("update-not-kept");
            return;
        }
        self.bytes += bytes;
        self.under_way.insert(id, Kept { writes: writes.into(), bytes, at: None });
    }

    /// A commit was answered; none: it will be sent again, perhaps.
    pub(crate) fn outcome(&mut self, id: CommitId, outcome: Option<&Outcome>, through: Stamp) {
        match outcome {
            Some(Outcome::Committed(stamp)) if *stamp > through => {
                if let Some(kept) = self.under_way.get_mut(&id) {
                    crate::probe::probe("outcome-before-its-change");
                    kept.at = Some(*stamp);
                }
            }
            // Its change came, or did not concern anybody here, or there is none, or nobody knows.
            _ => drop(self.forget(id)),
        }
    }

    /// The stream tells of a change. Says whether its writes go along.
    pub(crate) fn change(&mut self, change: &Change, another: bool) -> bool {
        // A planted fault: it is taken for the oldest.
        let oldest = self.under_way.first_key_value().filter(|_| another);
        let id = oldest.map_or(change.id, |(id, _)| *id);
        let Some(kept) = self.under_way.remove(&id) else { return false };
        if kept.at.is_none() {
            crate::probe::probe("change-before-its-outcome");
        }
        self.told.insert(change.stamp, (change.id, kept));
        true
    }

    /// The stream has come to a stamp: what lies before it and did not come concerns nobody here.
    pub(crate) fn reached(&mut self, through: Stamp) {
        let passed = |kept: &Kept| kept.at.is_some_and(|at| at <= through);
        let over = self.under_way.iter().filter(|(_, kept)| passed(kept)).map(|(id, _)| *id);
        for id in over.collect::<Vec<_>>() {
            self.forget(id);
        }
    }

    /// The writes of a change that the stream has told.
    pub(crate) fn of(&self, change: &Change) -> Option<&[Write]> {
        let (id, kept) = self.told.get(&change.stamp)?;
        (*id == change.id).then_some(&*kept.writes)
    }

    /// All members are past a stamp.
    pub(crate) fn release(&mut self, through: Stamp) {
        while let Some(first) = self.told.first_entry()
            && *first.key() <= through
        {
            self.bytes -= first.remove().1.bytes;
        }
    }

    /// Nothing that is under way will be told as it was.
    pub(crate) fn forget_under_way(&mut self) {
        let bytes: usize = self.under_way.values().map(|kept| kept.bytes).sum();
        self.bytes -= bytes;
        self.under_way.clear();
    }

    /// Stamps mean something else now, or nobody is told of them one by one.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    fn forget(&mut self, id: CommitId) -> Option<Kept> {
        let kept = self.under_way.remove(&id)?;
        self.bytes -= kept.bytes;
        Some(kept)
    }

    /// Commits whose writes are kept, and the bytes of those.
    pub(crate) fn kept(&self) -> (usize, usize) {
        (self.under_way.len() + self.told.len(), self.bytes)
    }

    /// Commits whose writes are kept.
    #[cfg(any(test, feature = "faults"))]
    pub(crate) fn len(&self) -> usize {
        self.kept().0
    }

    /// Whether the stream has told of changes whose writes are kept.
    pub(crate) fn has_told(&self) -> bool {
        !self.told.is_empty()
    }

    /// Panics when an invariant is broken.
    pub(crate) fn check(&self, all: usize) {
        let told = self.told.values().map(|(_, kept)| kept);
        let bytes: usize = self.under_way.values().chain(told).map(|kept| kept.bytes).sum();
        assert_eq!(bytes, self.bytes, "bytes of updates are counted");
        assert!(bytes <= all, "updates outgrew their bound");
    }
}

/// Memory that writes take, about.
pub(crate) fn bytes_of(writes: &[Write]) -> usize {
    let payload: usize = writes.iter().map(|write| write.op.payload_bytes()).sum();
    payload + size_of_val(writes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::{Op, PageKind};
    use crate::id::{BootId, PageId};

    const ROOM: (usize, usize) = (1 << 10, 4 << 10);

    fn id(sequence: u64) -> CommitId {
        CommitId { boot: BootId(10), sequence }
    }

    fn writes() -> Vec<Write> {
        vec![Write { page: PageId::default(), op: Op::CreatePage(PageKind::Slotted) }]
    }

    fn change(sequence: u64, stamp: u64) -> Change {
        Change { stamp: Stamp(stamp), id: id(sequence), pages: Vec::new() }
    }

    #[test]
    fn writes_are_kept_from_the_commit_until_all_are_past_its_change() {
        let mut updates = Updates::default();
        // The change comes first.
        updates.keep(id(1), &writes(), ROOM);
        assert!(updates.change(&change(1, 5), false));
        updates.outcome(id(1), Some(&Outcome::Committed(Stamp(5))), Stamp(5));
        assert_eq!(updates.of(&change(1, 5)), Some(&*writes()));
        // The outcome does.
        updates.keep(id(2), &writes(), ROOM);
        updates.outcome(id(2), Some(&Outcome::Committed(Stamp(7))), Stamp(5));
        assert!(updates.change(&change(2, 7), false));
        updates.reached(Stamp(7));
        updates.release(Stamp(6));
        assert_eq!(updates.of(&change(1, 5)), None, "all are past it");
        assert!(updates.of(&change(2, 7)).is_some());
        assert_eq!(updates.of(&change(3, 7)), None, "another commit at that stamp");
        updates.check(ROOM.1);
        updates.release(Stamp(7));
        assert_eq!(updates.len(), 0);
        updates.check(ROOM.1);
    }

    #[test]
    fn of_a_commit_with_other_writes_the_second_time_none_are_kept() {
        let mut updates = Updates::default();
        updates.keep(id(1), &writes(), ROOM);
        updates.keep(id(1), &writes(), ROOM);
        assert!(updates.change(&change(1, 5), false), "the same writes");
        updates.keep(id(2), &writes(), ROOM);
        updates.keep(id(2), &[writes(), writes()].concat(), ROOM);
        assert!(!updates.change(&change(2, 6), false), "nobody knows which were done");
        updates.check(ROOM.1);
    }

    #[test]
    fn what_is_in_doubt_is_not_kept() {
        let mut updates = Updates::default();
        for sequence in 1..=4 {
            updates.keep(id(sequence), &writes(), ROOM);
        }
        updates.outcome(id(1), Some(&Outcome::Unknown), Stamp(5));
        updates.outcome(id(2), None, Stamp(5));
        updates.outcome(id(3), Some(&Outcome::Committed(Stamp(4))), Stamp(5));
        assert_eq!(updates.len(), 1, "its change lies behind the stream");
        assert!(!updates.change(&change(1, 6), false));
        // Its change is of pages that nobody here holds.
        updates.outcome(id(4), Some(&Outcome::Committed(Stamp(6))), Stamp(5));
        updates.reached(Stamp(6));
        assert_eq!(updates.len(), 0);
        updates.keep(id(5), &writes(), ROOM);
        updates.forget_under_way();
        assert!(!updates.change(&change(5, 8), false));
        updates.check(ROOM.1);
    }

    #[test]
    fn updates_are_bounded_by_bytes_and_the_oldest_that_was_told_goes_first() {
        let one = bytes_of(&writes());
        let room = (one, 2 * one);
        let mut updates = Updates::default();
        let long = [writes(), writes()].concat();
        updates.keep(id(1), &long, room);
        assert_eq!(updates.len(), 0, "one that is too long");
        updates.keep(id(2), &writes(), room);
        updates.keep(id(3), &writes(), room);
        updates.keep(id(4), &writes(), room);
        assert_eq!(updates.len(), 2, "what is under way stays");
        assert!(updates.change(&change(2, 5), false));
        updates.keep(id(4), &writes(), room);
        assert_eq!(updates.of(&change(2, 5)), None);
        assert!(updates.change(&change(4, 6), false));
        updates.check(room.1);
    }
}
