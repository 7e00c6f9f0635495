//! Ranges of one file that are locked: which locks conflict, and what a lock, an upgrade, a
//! downgrade and an unlock of a part leave. Pure: no store, no clock.

use super::NodeRef;

/// Reading, which others may share, or writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockKind {
    /// Shared.
    Read,
    /// Alone.
    Write,
}

/// Whose a lock is: of a process or of an open file, as the kernel of its node numbers them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Holder {
    /// The node.
    pub node: NodeRef,
    /// Who there.
    pub owner: u64,
}

/// A lock on a range of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// Whose.
    pub holder: Holder,
    /// What.
    pub kind: LockKind,
    /// The first byte.
    pub start: u64,
    /// The last byte: `u64::MAX` for all that follow.
    pub end: u64,
    /// The process that asked for it, on its node: to be told of, no more.
    pub pid: u32,
}

impl Lock {
    fn overlaps(&self, start: u64, end: u64) -> bool {
        self.start <= end && start <= self.end
    }

    /// Whether the two cannot be held at once.
    pub(super) fn conflicts(&self, other: &Self) -> bool {
        self.holder != other.holder
            && self.overlaps(other.start, other.end)
            && (self.kind == LockKind::Write || other.kind == LockKind::Write)
    }
}

/// Takes a range from a holder: what lies in it goes, what lies around it stays.
pub(super) fn release(locks: &mut Vec<Lock>, holder: Holder, start: u64, end: u64) {
    let mut kept = Vec::with_capacity(locks.len() + 1);
    for lock in locks.drain(..) {
        if lock.holder != holder || !lock.overlaps(start, end) {
            kept.push(lock);
            continue;
        }
        if lock.start < start {
            kept.push(Lock { end: start - 1, ..lock });
        }
        if lock.end > end {
            kept.push(Lock { start: end + 1, ..lock });
        }
    }
    *locks = kept;
}

/// What of locks lies within a range.
pub(super) fn within(locks: &[Lock], start: u64, end: u64) -> Vec<Lock> {
    let clip = |lock: &Lock| {
        lock.overlaps(start, end).then_some(Lock {
            start: lock.start.max(start),
            end: lock.end.min(end),
            ..*lock
        })
    };
    locks.iter().filter_map(clip).collect()
}

/// Gives a range to a holder, whatever kind of lock it had there; those of one kind that touch
/// become one. The caller has looked for conflicts.
pub(super) fn acquire(locks: &mut Vec<Lock>, new: Lock) {
    release(locks, new.holder, new.start, new.end);
    let touches = |lock: &Lock| {
        lock.holder == new.holder
            && lock.kind == new.kind
            && (lock.end.checked_add(1) == Some(new.start)
                || new.end.checked_add(1) == Some(lock.start))
    };
    let mut whole = new;
    locks.retain(|lock| {
        let joins = touches(lock);
        if joins {
            whole.start = whole.start.min(lock.start);
            whole.end = whole.end.max(lock.end);
        }
        !joins
    });
    locks.push(whole);
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::id::{Generation, Slot};
    use larder_core::rng::Rng;

    fn holder(owner: u64) -> Holder {
        Holder { node: NodeRef { slot: Slot(2), generation: Generation(1) }, owner }
    }

    fn lock(owner: u64, kind: LockKind, start: u64, end: u64) -> Lock {
        Lock { holder: holder(owner), kind, start, end, pid: 1 }
    }

    /// What each byte of a small file is locked for, by owner: the plainest model there is.
    fn bytes(locks: &[Lock], owner: u64) -> Vec<Option<LockKind>> {
        let held = |at: u64| {
            let mut over = locks.iter().filter(|l| l.holder == holder(owner) && l.overlaps(at, at));
            let kind = over.next().map(|lock| lock.kind);
            assert!(over.next().is_none(), "byte {at} is locked twice by {owner}");
            kind
        };
        (0..24).map(held).collect()
    }

    #[test]
    fn a_part_unlocked_leaves_both_sides_and_an_upgrade_of_it_three_locks() {
        let mut locks = Vec::new();
        acquire(&mut locks, lock(1, LockKind::Read, 0, u64::MAX));
        acquire(&mut locks, lock(1, LockKind::Write, 10, 19));
        assert_eq!(locks.len(), 3);
        acquire(&mut locks, lock(1, LockKind::Read, 10, 19));
        assert_eq!(locks, [lock(1, LockKind::Read, 0, u64::MAX)]);
        release(&mut locks, holder(1), 5, 5);
        assert_eq!(
            locks.iter().map(|l| (l.start, l.end)).collect::<Vec<_>>(),
            [(0, 4), (6, u64::MAX)]
        );
        release(&mut locks, holder(1), 0, u64::MAX);
        assert!(locks.is_empty());
    }

    #[test]
    fn ranges_are_as_their_bytes() {
        let mut rng = Rng::new(9);
        for _ in 0..2_000 {
            let mut locks: Vec<Lock> = Vec::new();
            let mut model = vec![vec![None; 24]; 3];
            for _ in 0..30 {
                let (owner, a, b) = (rng.below(3), rng.below(24), rng.below(24));
                let (start, end) = (a.min(b), a.max(b));
                let range = start as usize..=end as usize;
                let kind =
                    [None, Some(LockKind::Read), Some(LockKind::Write)][rng.below(3) as usize];
                if let Some(kind) = kind {
                    let new = lock(owner, kind, start, end);
                    let conflicts = locks.iter().any(|lock| lock.conflicts(&new));
                    let others = (0..3usize).filter(|other| *other as u64 != owner);
                    let wanted =
                        others.flat_map(|other| &model[other][range.clone()]).any(|held| {
                            matches!(held, Some(LockKind::Write))
                                || held.is_some() && kind == LockKind::Write
                        });
                    assert_eq!(conflicts, wanted);
                    if conflicts {
                        continue;
                    }
                    acquire(&mut locks, new);
                } else {
                    release(&mut locks, holder(owner), start, end);
                }
                model[owner as usize][range].fill(kind);
                for owner in 0..3 {
                    assert_eq!(bytes(&locks, owner), model[owner as usize]);
                }
            }
        }
    }
}
