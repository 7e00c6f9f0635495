//! One domain's part of the read cache: sequence, valid-through, age, recent changes, snapshots.

use super::super::{Ahead, PageCopy, PageVersions, VersionCache, VersionLimits};
use crate::commit::{Aspect, Target, Write};
use crate::id::{DomainId, HistoryId, PageId, Slot, Stamp};
use crate::machine::{Fault, Faults};
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Holds nothing yet.
const NONE: u64 = Stamp::LIMIT;
/// The machine panicked in the middle of a batch: nothing may be read any more.
const BROKEN: u64 = u64::MAX;

/// A change that running transactions may have to look at.
pub(crate) struct RecentChange {
    pub(crate) stamp: Stamp,
    pub(crate) page: PageId,
    pub(crate) touched: Box<[(Target, Aspect)]>,
}

struct Recent {
    history: HistoryId,
    /// Raised when stamps before can no longer be compared with stamps after (reset, fork).
    line: u64,
    entries: VecDeque<RecentChange>,
    /// How many entries ever stood before the first.
    dropped: u64,
    /// All changes above this stamp are kept.
    floor: Stamp,
    max: usize,
}

/// Whether a change of `changed` may be one of `page`: that of the volume's stand-in is one of all.
fn concerns(changed: PageId, page: PageId) -> bool {
    changed == page || changed.is_volume() && changed.volume == page.volume
}

/// What a look at the recent changes told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Recheck {
    /// All changes since were shown; the state up to here has been checked.
    Checked(Position),
    /// Some changes since are no longer kept.
    Overrun,
    /// The stamps of before mean nothing any more.
    NewLine,
}

/// A point in the sequence of changes, as a transaction remembers it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Position {
    pub(crate) sequence: u64,
    pub(crate) through: Stamp,
    pub(crate) history: HistoryId,
    pub(crate) line: u64,
    pub(crate) seen: u64,
}

struct Retained {
    /// Exact for every stamp in [version, until], holes aside.
    until: Stamp,
    copy: Arc<PageCopy>,
}

/// Copies replaced while a running snapshot may need them.
struct Snapshots {
    running: BTreeMap<Stamp, usize>,
    retained: BTreeMap<PageId, Vec<Retained>>,
    order: VecDeque<PageId>,
    bytes: usize,
    bytes_max: usize,
}

impl Snapshots {
    fn forget_oldest(&mut self) {
        let Some(page) = self.order.pop_front() else {
            return;
        };
        if let Some(list) = self.retained.get_mut(&page) {
            self.bytes -= list.remove(0).copy.cost();
            if list.is_empty() {
                self.retained.remove(&page);
            }
        }
    }

    fn clear(&mut self) {
        self.retained.clear();
        self.order.clear();
        self.bytes = 0;
    }
}

/// One domain's part of the read cache.
pub(crate) struct DomainState {
    id: DomainId,
    sequence: AtomicU64,
    through: AtomicU64,
    /// Nanoseconds + 1 of the child's clock; 0: never confirmed.
    confirmed_at: AtomicU64,
    lease: AtomicU64,
    /// The stream of the link that stands has begun, and tells of every change from here on.
    live: AtomicBool,
    /// Held while a batch is applied: readers that meet one wait here instead of spinning.
    gate: Mutex<()>,
    recent: RwLock<Recent>,
    snapshots: Mutex<Snapshots>,
    /// What this node has committed and the stream has not passed, and the highest stamp of it: looked at first.
    versions: Mutex<VersionCache>,
    ahead: AtomicU64,
}

impl DomainState {
    pub(crate) fn new(
        id: DomainId,
        history: HistoryId,
        recent_max: usize,
        snapshot_bytes: usize,
        ahead: VersionLimits,
    ) -> Self {
        Self {
            id,
            sequence: AtomicU64::new(0),
            through: AtomicU64::new(NONE),
            confirmed_at: AtomicU64::new(0),
            lease: AtomicU64::new(0),
            live: AtomicBool::new(false),
            gate: Mutex::new(()),
            recent: RwLock::new(Recent {
                history,
                line: 0,
                entries: VecDeque::new(),
                dropped: 0,
                floor: Stamp::ZERO,
                max: recent_max.max(1),
            }),
            snapshots: Mutex::new(Snapshots {
                running: BTreeMap::new(),
                retained: BTreeMap::new(),
                order: VecDeque::new(),
                bytes: 0,
                bytes_max: snapshot_bytes,
            }),
            versions: Mutex::new(VersionCache::new(ahead)),
            ahead: AtomicU64::new(0),
        }
    }

    pub(crate) fn id(&self) -> DomainId {
        self.id
    }

    pub(crate) fn through(&self) -> Option<Stamp> {
        let through = self.through.load(Ordering::Acquire);
        (through != NONE).then_some(Stamp(through))
    }

    pub(crate) fn history(&self) -> HistoryId {
        self.recent.read().unwrap_or_else(PoisonError::into_inner).history
    }

    pub(crate) fn line(&self) -> u64 {
        self.recent.read().unwrap_or_else(PoisonError::into_inner).line
    }

    pub(crate) fn age(&self, now: Instant) -> Option<Duration> {
        self.confirmed().map(|confirmed| now.since(confirmed))
    }

    /// When the state was last confirmed, by this process's clock.
    pub(crate) fn confirmed(&self) -> Option<Instant> {
        let confirmed = self.confirmed_at.load(Ordering::Acquire);
        (confirmed != 0).then(|| Instant(confirmed - 1))
    }

    pub(crate) fn lease(&self) -> Duration {
        Duration::from_nanos(self.lease.load(Ordering::Relaxed))
    }

    /// Whether the state's age at `now` is at most `limit` nanoseconds (none: the lease). The same
    /// as [`DomainState::age`] and [`DomainState::lease`] say, without a division.
    #[inline]
    pub(crate) fn within(&self, now: Instant, limit: Option<u64>) -> bool {
        let limit = limit.unwrap_or_else(|| self.lease.load(Ordering::Relaxed));
        match self.confirmed_at.load(Ordering::Acquire) {
            0 => false,
            confirmed => now.0.saturating_sub(confirmed - 1) <= limit,
        }
    }

    /// Whether the stream of the link that stands runs.
    pub(crate) fn live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    /// The sequence of a state that is stable now; waits for a batch under way. The wait is as
    /// long as the machine takes to apply one advance.
    #[inline]
    pub(crate) fn stable(&self) -> u64 {
        loop {
            let sequence = self.sequence.load(Ordering::Acquire);
            if sequence & 1 == 0 {
                return sequence;
            }
            assert!(sequence != BROKEN, "the cache machine panicked");
            drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Whether the state of `sequence` still stands: what was looked up since then belongs to it.
    #[inline]
    pub(crate) fn unmoved(&self, sequence: u64) -> bool {
        self.sequence.load(Ordering::Acquire) == sequence
    }

    /// Where the domain stands; none while it holds nothing.
    pub(crate) fn position(&self) -> Option<Position> {
        loop {
            let sequence = self.stable();
            let through = self.through()?;
            let recent = self.recent.read().unwrap_or_else(PoisonError::into_inner);
            let position = Position {
                sequence,
                through,
                history: recent.history,
                line: recent.line,
                seen: recent.dropped + recent.entries.len() as u64,
            };
            drop(recent);
            if self.unmoved(sequence) {
                return Some(position);
            }
        }
    }

    /// Shows every change since `from`, and says what state that covers. A change of a batch that
    /// is being applied may be shown too; it is shown again later.
    pub(crate) fn recheck(&self, from: Position, mut show: impl FnMut(&RecentChange)) -> Recheck {
        loop {
            let sequence = self.stable();
            let through = Stamp(self.through.load(Ordering::Acquire));
            let recent = self.recent.read().unwrap_or_else(PoisonError::into_inner);
            if recent.line != from.line {
                return Recheck::NewLine;
            }
            let Some(skip) = from.seen.checked_sub(recent.dropped) else {
                crate::probe::probe("reader-overrun");
                return Recheck::Overrun;
            };
            recent.entries.range(skip as usize..).for_each(&mut show);
            let position = Position {
                sequence,
                through,
                history: recent.history,
                line: recent.line,
                seen: recent.dropped + recent.entries.len() as u64,
            };
            drop(recent);
            if self.unmoved(sequence) {
                return Recheck::Checked(position);
            }
        }
    }

    /// Whether all changes above `stamp` are still kept and none of them names `page`.
    pub(crate) fn unchanged_since(&self, stamp: Stamp, page: PageId) -> bool {
        let recent = self.recent.read().unwrap_or_else(PoisonError::into_inner);
        stamp >= recent.floor
            && !recent
                .entries
                .iter()
                .rev()
                .take_while(|e| e.stamp > stamp)
                .any(|e| concerns(e.page, page))
    }

    // ---- snapshots ----

    /// Begins a snapshot of the state now.
    pub(crate) fn open_snapshot(&self, faults: Faults) -> Option<Position> {
        let beside = if faults.has(Fault::SnapshotKept) { 2 } else { 1 };
        loop {
            let position = self.position()?;
            self.lock_snapshots()
                .running
                .entry(position.through)
                .and_modify(|count| *count += beside)
                .or_insert(1);
            // A batch that began before the entry was made may have replaced copies without
            // keeping them.
            if self.unmoved(position.sequence) {
                return Some(position);
            }
            self.close_snapshot(position.through);
        }
    }

    pub(crate) fn close_snapshot(&self, stamp: Stamp) {
        let mut snapshots = self.lock_snapshots();
        if let Some(count) = snapshots.running.get_mut(&stamp) {
            *count -= 1;
            if *count == 0 {
                snapshots.running.remove(&stamp);
            }
        }
        if snapshots.running.is_empty() {
            snapshots.clear();
        }
    }

    /// A copy that was replaced and is exact for `stamp` at `slot` (or, without one, whole).
    pub(crate) fn retained(
        &self,
        page: PageId,
        stamp: Stamp,
        slot: Option<Slot>,
    ) -> Option<Arc<PageCopy>> {
        let snapshots = self.lock_snapshots();
        let fits = |kept: &&Retained| {
            kept.copy.version <= stamp
                && stamp <= kept.until
                && slot.map_or(kept.copy.complete(), |slot| !kept.copy.is_hole(slot))
        };
        let kept = snapshots.retained.get(&page)?.iter().find(fits)?;
        crate::probe::probe("snapshot-reads-a-retained-copy");
        Some(Arc::clone(&kept.copy))
    }

    /// Snapshots that run, and pages of which older copies are kept for them.
    #[cfg(feature = "faults")]
    pub(crate) fn snapshots(&self) -> (usize, usize) {
        let snapshots = self.lock_snapshots();
        (snapshots.running.len(), snapshots.retained.len())
    }

    fn lock_snapshots(&self) -> MutexGuard<'_, Snapshots> {
        self.snapshots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- ahead of the stream ----

    /// What this node has committed of a page and the stream has not passed at `through`; none: nothing.
    pub(crate) fn ahead_of(&self, page: PageId, through: Stamp) -> Option<PageVersions> {
        self.versions_above(through)?.of_page(page, through)
    }

    /// The same of one slot.
    pub(crate) fn ahead_at(&self, page: PageId, slot: Slot, through: Stamp) -> Ahead {
        self.versions_above(through).map_or(Ahead::Nothing, |it| it.get(page, slot, through))
    }

    /// The highest stamp of it, of anything of the page.
    pub(crate) fn newest_ahead(&self, page: PageId, through: Stamp) -> Option<Stamp> {
        self.versions_above(through)?.above(page, through)
    }

    /// A commit of this node is done as of a stamp that the stream has not passed, before anybody is told so. None: what
    /// it wrote is not known any more.
    pub(crate) fn committed_ahead(&self, stamp: Stamp, writes: Option<&[Write]>) {
        let mut versions = self.lock_versions();
        match writes {
            // What is forgotten at the bound is not fetched: its copy is here, and exact where the stream is. Whoever
            // looks ahead at it waits.
            Some(writes) => drop(versions.committed(stamp, writes)),
            None => versions.committed_unknown(stamp),
        }
        self.ahead.fetch_max(stamp.0, Ordering::Release);
    }

    /// What stands ahead up to a stamp may have changed there without a word to who begins from now on: a part of an answer to
    /// a resume names what changed, and the stream is there with the last part alone.
    pub(crate) fn forget_ahead(&self, through: Stamp) {
        let mut versions = self.lock_versions();
        versions.passed(through);
        versions.committed_unknown(through);
        self.ahead.fetch_max(through.0, Ordering::Release);
    }

    /// The stream has passed a stamp.
    pub(crate) fn passed_ahead(&self, through: Stamp) {
        if self.ahead.load(Ordering::Relaxed) > 0 {
            let mut versions = self.lock_versions();
            versions.passed(through);
            if versions.is_passed(through) {
                self.ahead.store(0, Ordering::Release);
            }
        }
    }

    /// Objects that stand ahead of the stream.
    pub(crate) fn objects_ahead(&self) -> usize {
        self.lock_versions().objects()
    }

    /// None: nothing stands above it.
    fn versions_above(&self, through: Stamp) -> Option<MutexGuard<'_, VersionCache>> {
        (self.ahead.load(Ordering::Acquire) > through.0).then(|| self.lock_versions())
    }

    fn lock_versions(&self) -> MutexGuard<'_, VersionCache> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    // ---- for the machine ----

    /// Keeps a copy that is about to be replaced if a running snapshot may need it. `until` is the
    /// valid-through up to which it is exact. To be called before it is replaced.
    pub(crate) fn keep_for_snapshots(&self, copy: &Arc<PageCopy>, until: Stamp) {
        let mut snapshots = self.lock_snapshots();
        if copy.version > until
            || snapshots.running.range(copy.version..=until).next().is_none()
            || copy.cost() > snapshots.bytes_max
        {
            return;
        }
        snapshots.bytes += copy.cost();
        snapshots.order.push_back(copy.id);
        let copy = Arc::clone(copy);
        snapshots.retained.entry(copy.id).or_default().push(Retained { until, copy });
        while snapshots.bytes > snapshots.bytes_max {
            snapshots.forget_oldest();
        }
    }

    pub(crate) fn set_live(&self, live: bool) {
        self.live.store(live, Ordering::Release);
    }

    pub(crate) fn set_confirmed(&self, at: Instant, lease: Duration) {
        self.lease.store(u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.confirmed_at.store(at.0.saturating_add(1), Ordering::Release);
    }

    /// Begins a batch of changes: readers of this domain wait until it is dropped.
    pub(crate) fn batch(&self) -> Batch<'_> {
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let sequence = self.sequence.load(Ordering::Relaxed);
        assert!(sequence & 1 == 0, "one batch at a time");
        self.sequence.store(sequence + 1, Ordering::Release);
        Batch { state: self, sequence, _gate: gate }
    }
}

/// A batch of changes under way.
pub(crate) struct Batch<'a> {
    state: &'a DomainState,
    sequence: u64,
    _gate: MutexGuard<'a, ()>,
}

impl Batch<'_> {
    /// Notes a change for running transactions (rule 3). Stamps ascend among what is kept: one that is noted where the stream
    /// stands, after changes that a part of a resume has named and that are above it, passes for the last of those (bug 224): who
    /// has looked ahead may be doomed by it in vain.
    pub(crate) fn note(&self, mut change: RecentChange) {
        let mut recent = self.state.recent.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(newest) = recent.entries.back() {
            change.stamp = change.stamp.max(newest.stamp);
        }
        if recent.entries.len() == recent.max
            && let Some(oldest) = recent.entries.pop_front()
        {
            recent.dropped += 1;
            recent.floor = oldest.stamp;
        }
        recent.entries.push_back(change);
    }

    /// Sets valid-through, visible when the batch is dropped. None: nothing may be read for now.
    pub(crate) fn set_through(&self, through: Option<Stamp>) {
        let through = through.map_or(NONE, |stamp| stamp.0);
        self.state.through.store(through, Ordering::Release);
    }

    /// Goes on under another history, in which the stamps of before still hold.
    pub(crate) fn set_history(&self, history: HistoryId) {
        self.state.recent.write().unwrap_or_else(PoisonError::into_inner).history = history;
    }

    /// Forgets all recent changes up to `floor`: running transactions can no longer be checked.
    pub(crate) fn forget_recent(&self, floor: Stamp) {
        let mut recent = self.state.recent.write().unwrap_or_else(PoisonError::into_inner);
        // One more than there were, so that whoever looked at all of them notices too.
        recent.dropped += recent.entries.len() as u64 + 1;
        recent.entries.clear();
        recent.floor = floor;
        drop(recent);
        self.state.lock_snapshots().clear();
    }

    /// Ends the line: stamps of before cannot be compared with those to come, and every running
    /// transaction is doomed. The new line's changes are kept from `floor` on.
    pub(crate) fn new_line(&self, floor: Stamp) {
        let mut recent = self.state.recent.write().unwrap_or_else(PoisonError::into_inner);
        recent.line += 1;
        recent.dropped += recent.entries.len() as u64;
        recent.entries.clear();
        recent.floor = floor;
        drop(recent);
        self.state.lock_snapshots().clear();
        self.state.lock_versions().clear();
        self.state.ahead.store(0, Ordering::Release);
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let next = if std::thread::panicking() { BROKEN } else { self.sequence + 2 };
        self.state.sequence.store(next, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{PageNo, VolumeId};

    /// The story: what is noted of a volume that may not be read any more is noted where the stream stands. After changes
    /// that a part of a resume had named, which are above that, it hid them from whoever looked back from the newest, and a
    /// page of before them passed for unchanged (bug 224, by reading).
    #[test]
    fn a_note_of_a_volume_hides_no_change() {
        let version = VersionLimits::default();
        let state = DomainState::new(DomainId(1), HistoryId(1), 2, 1 << 20, version);
        let page = |volume, page| PageId { volume: VolumeId(volume), page: PageNo(page) };
        let note = |stamp, page| {
            let touched = Box::new([(Target::Slot(Slot(1)), Aspect::Value)]);
            state.batch().note(RecentChange { stamp: Stamp(stamp), page, touched });
        };
        note(20, page(7, 1));
        note(5, PageId::of_volume(VolumeId(8)));
        assert!(!state.unchanged_since(Stamp(10), page(7, 1)));
        assert!(state.unchanged_since(Stamp(10), page(7, 2)));
        assert!(!state.unchanged_since(Stamp(10), page(8, 2)), "it is not known when");
        // What is not kept any more hides nothing either.
        note(21, page(7, 3));
        assert!(!state.unchanged_since(Stamp(10), page(7, 1)));
        note(22, page(7, 3));
        assert!(!state.unchanged_since(Stamp(19), page(7, 1)));
    }
}
