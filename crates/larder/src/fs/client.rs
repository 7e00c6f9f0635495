//! The file layer's transactions over the client library.

use super::tx::{Mode, SlottedPages, Taken, Tx, TxError, TxStore};
use crate::client::{Consistency, Error, Freshness, Session, SessionOptions, Transaction, Volume};
use bytes::Bytes;
use larder_core::cache::Line;
use larder_core::commit::{Op, PageKind};
use larder_core::id::{Generation, ObjectId, PageId, PageNo, Slot};
use larder_core::message::VolumeInfo;
use larder_core::rights::Right;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// A volume, as the file layer uses it: on the line of its domain's stamps on which it was when
/// this was made. When the origin is restored from an old copy, and had shown this node what is
/// lost, all that the file layer remembers is of the lost branch; so every operation fails with
/// [`TxError::Forked`] from then on; and with [`TxError::Deleted`] once the volume is deleted.
#[derive(Clone)]
pub struct VolumeStore {
    volume: Volume,
    line: Line,
    told: Arc<AtomicBool>,
    normal: Session,
    snapshots: Session,
    current_max: Duration,
    usage: Arc<Mutex<Seen>>,
}

/// What the origin said last of what the volume takes.
struct Seen {
    taken: Taken,
    /// When it was asked last.
    asked: Instant,
    /// When that was said.
    told: Instant,
}

impl Seen {
    /// Bytes that are free, as far as that is known: said long ago they may be used up by others.
    fn free(&self) -> Option<u64> {
        if self.told.elapsed() < SEEN_FOR { self.taken.free } else { Some(0) }
    }
}

/// How long a snapshot may be read. What is not retained any more ends it long before.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(86_400);
/// What a volume takes is asked for again after this long.
const TAKEN_FOR: Duration = Duration::from_secs(2);
/// What was said longer ago counts for nothing where a commit is promised.
const SEEN_FOR: Duration = Duration::from_secs(10);
/// So long an answer is waited for: else what was said before is told.
const TAKEN_WAIT: Duration = Duration::from_secs(1);

fn taken_of(info: &VolumeInfo) -> Taken {
    let left = info.quota.map(|quota| quota.saturating_sub(info.bytes));
    let free = match (left, info.room) {
        (Some(left), Some(room)) => Some(left.min(room)),
        (left, room) => left.or(room),
    };
    Taken { bytes: info.bytes, free }
}

/// A transaction on a volume.
pub struct VolumeTx {
    volume: Volume,
    transaction: Transaction,
}

impl VolumeStore {
    /// Uses a volume. `freshness` says what is served while the link is down; every operation
    /// ends within `time_limit`, and one that may not be served within `refresh_limit`;
    /// `current_max` is how long attributes may be kept outside at most.
    #[must_use]
    pub fn new(
        volume: Volume,
        freshness: Freshness,
        time_limit: Duration,
        refresh_limit: Duration,
        current_max: Duration,
    ) -> Self {
        let line = volume.line();
        let options = SessionOptions {
            line: Some(line),
            freshness,
            time_limit,
            operation_limit: time_limit,
            refresh_limit,
            ..SessionOptions::default()
        };
        // A snapshot is as fresh as is asked for when it begins. It gets older while it is read,
        // which is what it is for: a check of a large tree takes as long as it takes.
        let snapshots = SessionOptions {
            consistency: Consistency::Snapshot,
            freshness: Freshness::Any,
            time_limit: SNAPSHOT_LIMIT,
            ..options.clone()
        };
        Self {
            normal: volume.session(options),
            snapshots: volume.session(snapshots),
            usage: Arc::new(Mutex::new(Seen {
                taken: taken_of(volume.info()),
                asked: Instant::now(),
                told: Instant::now(),
            })),
            volume,
            line,
            told: Arc::default(),
            current_max,
        }
    }

    async fn begin_as(&self, mode: Mode) -> Result<Transaction, Error> {
        match mode {
            Mode::Normal => self.normal.begin().await,
            Mode::Snapshot => {
                self.normal.freshen().await?;
                self.snapshots.begin_read().await
            }
        }
    }

    /// The volume.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }
}

/// Nanoseconds since 1970 UTC by the host's clock; only for the times of files.
pub(super) fn wall_time() -> i64 {
    i64::try_from(crate::clock::wall_time().0).unwrap_or(i64::MAX)
}

impl From<Error> for TxError {
    fn from(error: Error) -> Self {
        match error {
            Error::Conflict { reason, .. } => Self::Conflict(reason),
            Error::SnapshotTooOld => Self::Conflict(error.to_string()),
            Error::Gone(id) => Self::Gone(id.page.page),
            Error::NoPage(id) => Self::Gone(id.page),
            Error::PageFull(id) => Self::Full(id.page),
            Error::Stale { .. } => Self::Stale(error.to_string()),
            Error::OutcomeUnknown(_) => Self::OutcomeUnknown,
            Error::TimedOut(_) | Error::NotDone(_) => Self::TimedOut,
            Error::TooLarge(what) => Self::TooLarge(what),
            Error::Damaged { .. } => Self::Damaged(error.to_string()),
            Error::StoreFull(_) => Self::NoSpace(error.to_string()),
            Error::QuotaPassed { .. } => Self::Quota(error.to_string()),
            Error::Forbidden(what) => Self::Denied(what),
            Error::Denied(_) => Self::NoRight(error.to_string()),
            Error::HistoryForked { .. } => Self::Forked,
            Error::VolumeDeleted(_) => Self::Deleted,
            other => Self::Unavailable(other.to_string()),
        }
    }
}

impl VolumeTx {
    fn id(&self, page: PageNo) -> PageId {
        self.volume.page(page)
    }

    fn object(&self, page: PageNo, slot: Slot, generation: Generation) -> ObjectId {
        ObjectId { page: self.id(page), slot, generation }
    }
}

impl Tx for VolumeTx {
    async fn get(&self, page: PageNo, slot: Slot) -> Result<Option<(Generation, Bytes)>, TxError> {
        let found = self.transaction.read_slot(self.id(page), slot).await?;
        Ok(found.map(|object| (object.id.generation, object.value)))
    }

    async fn get_all(
        &self,
        page: PageNo,
    ) -> Result<Option<Vec<(Slot, Generation, Bytes)>>, TxError> {
        let found = self.transaction.read_all(self.id(page)).await?;
        Ok(found.map(|objects| {
            objects
                .into_iter()
                .map(|object| (object.id.slot, object.id.generation, object.value))
                .collect()
        }))
    }

    async fn slots(&self, page: PageNo) -> Result<Option<Vec<(Slot, Generation)>>, TxError> {
        Ok(self.transaction.slots(self.id(page)).await?)
    }

    async fn get_raw(&self, page: PageNo) -> Result<Option<Bytes>, TxError> {
        Ok(self.transaction.read_raw(self.id(page)).await?)
    }

    async fn room(&self, page: PageNo) -> Result<Option<usize>, TxError> {
        Ok(self.transaction.free_bytes(self.id(page)).await?)
    }

    async fn fetch(&self, pages: &[PageNo]) -> Result<(), TxError> {
        let pages: Vec<PageId> = pages.iter().map(|page| self.id(*page)).collect();
        Ok(self.transaction.fetch(&pages).await?)
    }

    async fn create_page(&self, page: PageNo, kind: PageKind) -> Result<(), TxError> {
        let op = Op::CreatePage(kind);
        Ok(self.transaction.write(self.id(page), op).await?)
    }

    async fn create_named_page(&self, page: PageNo, kind: PageKind) -> Result<(), TxError> {
        Ok(self.transaction.create_named_page(self.id(page), kind).await?)
    }

    async fn delete_page(&self, page: PageNo) -> Result<(), TxError> {
        Ok(self.transaction.delete_page(self.id(page)).await?)
    }

    async fn create(&self, page: PageNo, slot: Slot, value: Bytes) -> Result<Generation, TxError> {
        let id = self.transaction.create_at(self.id(page), slot, value).await?;
        Ok(id.generation)
    }

    async fn put(
        &self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
        value: Bytes,
    ) -> Result<(), TxError> {
        let id = self.object(page, slot, generation);
        Ok(self.transaction.update(id, value).await?)
    }

    async fn delete(
        &self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
    ) -> Result<(), TxError> {
        let id = self.object(page, slot, generation);
        Ok(self.transaction.delete(id).await?)
    }

    async fn add(
        &self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
        offset: u32,
        delta: i64,
    ) -> Result<(), TxError> {
        let id = self.object(page, slot, generation);
        Ok(self.transaction.add(id, offset, delta).await?)
    }

    async fn max(
        &self,
        page: PageNo,
        slot: Slot,
        generation: Generation,
        offset: u32,
        value: u64,
    ) -> Result<(), TxError> {
        let id = self.object(page, slot, generation);
        Ok(self.transaction.max(id, offset, value).await?)
    }

    async fn write_raw(&self, page: PageNo, offset: u32, bytes: Bytes) -> Result<(), TxError> {
        Ok(self.transaction.write_raw(self.id(page), offset, bytes).await?)
    }

    async fn truncate_raw(&self, page: PageNo, length: u32) -> Result<(), TxError> {
        Ok(self.transaction.truncate_raw(self.id(page), length).await?)
    }

    fn writes(&self) -> bool {
        self.transaction.writes()
    }

    async fn commit(self) -> Result<(), TxError> {
        self.transaction.commit().await?;
        Ok(())
    }
}

impl VolumeStore {
    /// What the volume takes, asked for anew if that was not done lately, and waited for at most so long.
    async fn taken_within(&self, wait: Duration) -> Taken {
        let lock = || self.usage.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut seen = lock();
            if seen.asked.elapsed() < TAKEN_FOR {
                return seen.taken;
            }
            // Whoever asks meanwhile is told what was said before.
            seen.asked = Instant::now();
        }
        let asked = self.volume.node().volume_info(self.volume.id());
        if let Ok(Ok(info)) = tokio::time::timeout(wait, asked).await {
            let mut seen = lock();
            (seen.taken, seen.told) = (taken_of(&info), Instant::now());
        }
        lock().taken
    }
}

impl TxStore for VolumeStore {
    type Tx = VolumeTx;

    fn page_bytes(&self) -> u32 {
        self.volume.page_bytes()
    }

    async fn begin(&self, mode: Mode) -> Result<VolumeTx, TxError> {
        self.standing()?;
        let transaction = self.begin_as(mode).await?;
        Ok(VolumeTx { volume: self.volume.clone(), transaction })
    }

    async fn refresh(&self) -> Result<(), TxError> {
        Ok(self.normal.refresh().await?)
    }

    fn history(&self) -> u128 {
        self.volume.history().map_or(0, |history| history.0)
    }

    fn right(&self) -> Right {
        self.volume.right()
    }

    fn standing(&self) -> Result<(), TxError> {
        let error = if self.volume.is_deleted() {
            TxError::Deleted
        } else if self.volume.line() != self.line {
            TxError::Forked
        } else if self.volume.right() < Right::Read {
            let volume = &self.volume.info().name;
            return Err(TxError::NoRight(format!("volume {volume} may not be read here any more")));
        } else {
            return Ok(());
        };
        if !self.told.swap(true, Ordering::Relaxed) {
            let volume = &self.volume.info().name;
            tracing::error!(%volume, "every operation fails: {error}");
        }
        Err(error)
    }

    async fn allocate(&self, count: u64) -> Result<PageNo, TxError> {
        Ok(self.volume.allocate_pages(count).await?)
    }

    fn prefetch(&self, pages: &[PageNo]) {
        self.volume.prefetch(pages);
    }

    async fn pause(&self, attempt: u32) {
        // Jitter from the clock's low digits: two nodes that conflicted do not meet again.
        let jitter = u64::try_from(wall_time() % 1009).unwrap_or(0);
        let wait = (1 << attempt.min(7)) * (500 + jitter);
        tokio::time::sleep(Duration::from_micros(wait)).await;
    }

    fn now(&self) -> i64 {
        wall_time()
    }

    fn current_for(&self) -> Option<Duration> {
        Some(self.volume.lease_left().min(self.current_max))
    }

    async fn taken(&self) -> Taken {
        self.taken_within(TAKEN_WAIT).await
    }

    fn free_seen(&self) -> Option<u64> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner).free()
    }

    fn look_at_room(&self) {
        let asked = self.usage.lock().unwrap_or_else(PoisonError::into_inner).asked;
        // Somebody may ask from a thread that no runtime knows: others ask as well.
        if asked.elapsed() >= TAKEN_FOR
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let store = self.clone();
            // Nobody waits for it: also over a line on which an answer takes long.
            runtime.spawn(async move { store.taken_within(SEEN_FOR).await });
        }
    }

    async fn slotted_pages(&self) -> Result<SlottedPages, TxError> {
        Ok(self.volume.slotted_pages().await?)
    }

    fn count_lost(&self, bytes: u64) {
        self.volume.node().metrics().lost(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: over a line with a round trip of more than a second no answer came in time, and the room of
    /// the mount's beginning counted as told by each question: closes were promised for a volume that others
    /// had filled.
    #[test]
    fn room_that_was_asked_for_and_not_told_is_not_known() {
        let taken = Taken { bytes: 1, free: Some(1 << 30) };
        let long_ago = Instant::now().checked_sub(SEEN_FOR).expect("the machine is up for longer");
        let seen = |asked, told| Seen { taken, asked, told }.free();
        assert_eq!(seen(Instant::now(), Instant::now()), Some(1 << 30));
        assert_eq!(seen(Instant::now(), long_ago), Some(0));
    }
}
