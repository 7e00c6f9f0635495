//! Which transactions run: an eviction notice waits for those that may have read the page (rule 2).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::ReadCache;

/// The table of running transactions. A slot holds 0 (free) or the epoch at which its transaction
/// began; the machine raises the epoch with every eviction.
///
/// A transaction that read page p from the map had stored its slot before, and the machine took p
/// out of the map (same lock) before it looks at the slots: so it sees the slot. One that begins
/// later finds the raised epoch, and no p.
pub(crate) struct Running {
    epoch: AtomicU64,
    slots: Box<[AtomicU64]>,
    hint: AtomicUsize,
}

impl Running {
    pub(super) fn new(transactions_max: usize) -> Self {
        Self {
            epoch: AtomicU64::new(1),
            slots: (0..transactions_max.max(1)).map(|_| AtomicU64::new(0)).collect(),
            hint: AtomicUsize::new(0),
        }
    }

    /// The epoch for notices owed now; transactions that begin from here on have a higher one.
    pub(crate) fn close_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, Ordering::AcqRel)
    }

    /// The epoch of the oldest running transaction; `u64::MAX` when none runs.
    pub(crate) fn oldest(&self) -> u64 {
        self.slots
            .iter()
            .map(|slot| slot.load(Ordering::Acquire))
            .filter(|&epoch| epoch != 0)
            .min()
            .unwrap_or(u64::MAX)
    }

    /// How many run.
    #[cfg(feature = "faults")]
    pub(crate) fn count(&self) -> usize {
        self.slots.iter().filter(|slot| slot.load(Ordering::Acquire) != 0).count()
    }

    fn enter(&self) -> Option<usize> {
        let start = self.hint.load(Ordering::Relaxed);
        let count = self.slots.len();
        for index in (0..count).map(|i| (start + i) % count) {
            let epoch = self.epoch.load(Ordering::Acquire);
            let slot = &self.slots[index];
            if slot.load(Ordering::Relaxed) == 0
                && slot.compare_exchange(0, epoch, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            {
                self.hint.store(index + 1, Ordering::Relaxed);
                return Some(index);
            }
        }
        None
    }

    fn leave(&self, index: usize) {
        self.slots[index].store(0, Ordering::Release);
        self.hint.store(index, Ordering::Relaxed);
    }
}

/// A running transaction's place in the table, given back when dropped.
pub(crate) struct Ticket {
    cache: Arc<ReadCache>,
    index: usize,
}

impl Ticket {
    /// None: too many run already.
    pub(crate) fn take(cache: &Arc<ReadCache>) -> Option<Self> {
        let index = cache.running.enter()?;
        Some(Self { cache: Arc::clone(cache), index })
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.cache.running.leave(self.index);
    }
}
