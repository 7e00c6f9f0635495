//! The read cache: what any thread may read while the machine changes it (decision 0001).
//!
//! The machine is the only writer. Per domain a sequence number says whether a batch of changes is
//! being applied (odd) or the state is stable (even); a reader looks up, then compares the
//! sequence, and tries again when it moved. The copies themselves lie in sharded maps behind
//! read-write locks, so nothing is ever torn; the sequence makes several look-ups one state.

mod domain;
mod help;
mod running;

pub(crate) use domain::{Batch, DomainState, Position, RecentChange, Recheck};
pub(crate) use help::Help;
pub(crate) use running::Ticket;

use crate::cache::{Line, PageCopy};
use crate::id::{DomainId, HistoryId, ObjectId, PageId, Stamp, VolumeId};
use crate::machine::Faults;
use crate::rights::Right;
use crate::time::{Clock, Duration, Instant};
use bytes::Bytes;
use hashbrown::HashTable;
use running::Running;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Shards of the page map: enough that readers on many cores seldom meet at one lock.
const SHARDS: usize = 256;

/// A hit count stops here: all that a policy wants to know is "never, once, twice, often".
const HEAT_MAX: u8 = 3;

/// Mixes page ids, which are no secret and mostly consecutive. Fixed, so that runs repeat.
#[derive(Default, Clone, Copy)]
pub(crate) struct PageHasher(u64);

impl Hasher for PageHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
    fn write_u128(&mut self, word: u128) {
        // A volume's id, drawn at random: the product that follows with the page mixes it well.
        self.0 ^= (word as u64) ^ ((word >> 64) as u64).rotate_left(32);
    }
}

pub(crate) type PageMap<V> = HashMap<PageId, V, BuildHasherDefault<PageHasher>>;

/// The hash of a page's id, for shards and every table of pages: one is enough for a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PageHash(pub(crate) u64);

impl PageHash {
    #[inline]
    pub(crate) fn of(page: PageId) -> Self {
        let mut hasher = PageHasher::default();
        page.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// A page held. Its id is that of the copy: a reader needs the copy's memory anyway, and the table
/// is a third as large as one that repeats the id.
struct Entry {
    copy: Arc<PageCopy>,
    heat: AtomicU8,
}

impl Entry {
    /// Counts a use.
    #[inline]
    fn warm(&self) {
        let heat = self.heat.load(Ordering::Relaxed);
        if heat < HEAT_MAX {
            self.heat.store(heat + 1, Ordering::Relaxed);
        }
    }
}

/// A part of all pages held.
#[derive(Default)]
struct Shard {
    entries: HashTable<Entry>,
}

impl Shard {
    #[inline]
    fn get(&self, hash: PageHash, page: PageId) -> Option<&Entry> {
        self.entries.find(hash.0, |entry| entry.copy.id == page)
    }
}

/// What the read cache knows of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VolumeEntry {
    /// Its domain.
    pub domain: DomainId,
    /// Bytes of a page.
    pub page_bytes: u32,
}

/// The shared read cache of a node. Cheap to share (`Arc`); every method may be called from any
/// thread at any time.
pub struct ReadCache {
    shards: Box<[RwLock<Shard>]>,
    domains: RwLock<BTreeMap<DomainId, Arc<DomainState>>>,
    volumes: RwLock<BTreeMap<VolumeId, VolumeEntry>>,
    /// Those of them that are known to be deleted.
    deleted: RwLock<BTreeSet<VolumeId>>,
    /// What this node may do with its volumes, as last told.
    rights: RwLock<BTreeMap<VolumeId, Right>>,
    running: Running,
    /// Somebody has looked ahead of the stream: what is committed from then on is noted for that.
    looks_ahead: AtomicBool,
    clock: Arc<dyn Clock + Send + Sync>,
    pub(crate) faults: Faults,
}

impl ReadCache {
    pub(crate) fn new(
        transactions_max: usize,
        clock: Arc<dyn Clock + Send + Sync>,
        faults: Faults,
    ) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            domains: RwLock::default(),
            volumes: RwLock::default(),
            deleted: RwLock::default(),
            rights: RwLock::default(),
            running: Running::new(transactions_max),
            looks_ahead: AtomicBool::new(false),
            clock,
            faults,
        }
    }

    /// The domain's valid-through; none while it is not attached.
    #[must_use]
    pub fn through(&self, domain: DomainId) -> Option<Stamp> {
        self.domain(domain).and_then(|d| d.through())
    }

    /// The history the domain's stream is in now.
    #[must_use]
    pub fn history(&self, domain: DomainId) -> Option<HistoryId> {
        self.domain(domain).map(|d| d.history())
    }

    /// The line of the domain's stamps now: another one once a branch was lost that this process
    /// had seen.
    #[must_use]
    pub fn line(&self, domain: DomainId) -> Line {
        Line(self.domain(domain).map_or(0, |d| d.line()))
    }

    /// How old the domain's state may be at `now`: the origin's state of `now - age` is in it.
    /// None: never confirmed.
    #[must_use]
    pub fn age(&self, domain: DomainId, now: Instant) -> Option<Duration> {
        self.domain(domain).and_then(|d| d.age(now))
    }

    /// Whether the domain's state may be called current at `now`: its age is within the lease.
    #[must_use]
    pub fn leased(&self, domain: DomainId, now: Instant) -> bool {
        self.domain(domain).is_some_and(|d| d.age(now).is_some_and(|age| age <= d.lease()))
    }

    /// How long the domain's state may be called current from `now` on, if nothing is confirmed
    /// meanwhile; zero: it may not.
    #[must_use]
    pub fn lease_left(&self, domain: DomainId, now: Instant) -> Duration {
        let left = |d: Arc<DomainState>| Some(d.lease().saturating_sub(d.age(now)?));
        self.domain(domain).and_then(left).unwrap_or_default()
    }

    /// Domains attached, ascending.
    #[must_use]
    pub fn domains(&self) -> Vec<DomainId> {
        self.domains.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect()
    }

    /// What is known of a volume; none until it was opened.
    #[must_use]
    pub fn volume(&self, volume: VolumeId) -> Option<VolumeEntry> {
        self.volumes.read().unwrap_or_else(PoisonError::into_inner).get(&volume).copied()
    }

    /// Whether a volume that was opened is known to be deleted.
    #[must_use]
    pub fn is_deleted(&self, volume: VolumeId) -> bool {
        self.deleted.read().unwrap_or_else(PoisonError::into_inner).contains(&volume)
    }

    /// The copy of a page as it is held now, for tools and checks: counts as no use of it.
    #[must_use]
    pub fn peek(&self, page: PageId) -> Option<Arc<PageCopy>> {
        let hash = PageHash::of(page);
        let shard = self.shard(hash).read().unwrap_or_else(PoisonError::into_inner);
        shard.get(hash, page).map(|entry| Arc::clone(&entry.copy))
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn running(&self) -> &Running {
        &self.running
    }

    pub(crate) fn domain(&self, domain: DomainId) -> Option<Arc<DomainState>> {
        self.domains.read().unwrap_or_else(PoisonError::into_inner).get(&domain).cloned()
    }

    /// Reads a copy under its shard's lock, counting a use. The caller compares sequences.
    #[inline]
    pub(crate) fn with<T>(
        &self,
        page: PageId,
        read: impl FnOnce(&Arc<PageCopy>) -> T,
    ) -> Option<T> {
        let hash = PageHash::of(page);
        let shard = self.shard(hash).read().unwrap_or_else(PoisonError::into_inner);
        let entry = shard.get(hash, page)?;
        entry.warm();
        Some(read(&entry.copy))
    }

    /// An object's bytes, when its page is held, known at its slot, and holds them itself; counts
    /// a use then. None: anything else. The caller compares sequences.
    #[inline]
    pub(crate) fn inline(&self, hash: PageHash, object: ObjectId) -> Option<Bytes> {
        let shard = self.shard(hash).read().unwrap_or_else(PoisonError::into_inner);
        let entry = shard.get(hash, object.page)?;
        let page = entry.copy.page.as_ref().filter(|_| !entry.copy.is_hole(object.slot))?;
        let value = page.inline(object.slot, object.generation)?;
        entry.warm();
        Some(value)
    }

    /// Objects that this node has committed in a domain and that its stream has not passed: what sessions that look ahead
    /// read of them.
    #[must_use]
    pub fn objects_ahead(&self, domain: DomainId) -> usize {
        self.domain(domain).map_or(0, |state| state.objects_ahead())
    }

    /// A transaction looks ahead of the stream.
    pub(crate) fn look_ahead(&self) {
        if !self.looks_ahead.load(Ordering::Relaxed) {
            self.looks_ahead.store(true, Ordering::Release);
        }
    }

    // ---- for the machine ----

    /// Whether any transaction has looked ahead of the stream.
    pub(crate) fn is_looked_ahead(&self) -> bool {
        self.looks_ahead.load(Ordering::Acquire)
    }

    pub(crate) fn attach(&self, state: Arc<DomainState>) {
        self.domains.write().unwrap_or_else(PoisonError::into_inner).insert(state.id(), state);
    }

    /// What this node may do with a volume, as last told; one that was not opened: nothing. The origin
    /// decides: this only says what it is about to.
    #[must_use]
    pub fn right(&self, volume: VolumeId) -> Right {
        let rights = self.rights.read().unwrap_or_else(PoisonError::into_inner);
        rights.get(&volume).copied().unwrap_or_default()
    }

    /// What the node was told that it may do with a volume, if it was told.
    pub(crate) fn told_right(&self, volume: VolumeId) -> Option<Right> {
        let rights = self.rights.read().unwrap_or_else(PoisonError::into_inner);
        rights.get(&volume).copied()
    }

    /// Volumes with which the node may not do everything, as far as it was told.
    pub(crate) fn restricted_volumes(&self) -> Vec<VolumeId> {
        let rights = self.rights.read().unwrap_or_else(PoisonError::into_inner);
        let restricted = rights
            .iter()
            .filter(|(volume, right)| **right < Right::Admin && !self.is_deleted(**volume));
        restricted.map(|(volume, _)| *volume).collect()
    }

    /// Whether the node was told that it may not read a volume: not of one that it has not opened.
    #[must_use]
    pub fn is_unreadable(&self, volume: VolumeId) -> bool {
        self.told_right(volume).is_some_and(|right| right < Right::Read)
    }

    pub(crate) fn set_right(&self, volume: VolumeId, right: Right) {
        self.rights.write().unwrap_or_else(PoisonError::into_inner).insert(volume, right);
    }

    /// A parent of a version that knows no rights says nothing of them.
    pub(crate) fn set_right_unknown(&self, volume: VolumeId) {
        let mut rights = self.rights.write().unwrap_or_else(PoisonError::into_inner);
        rights.entry(volume).or_insert(Right::Admin);
    }

    pub(crate) fn set_volume(&self, volume: VolumeId, entry: VolumeEntry) {
        self.volumes.write().unwrap_or_else(PoisonError::into_inner).insert(volume, entry);
    }

    /// Notes that a volume was deleted; says whether that is new.
    pub(crate) fn set_deleted(&self, volume: VolumeId) -> bool {
        self.deleted.write().unwrap_or_else(PoisonError::into_inner).insert(volume)
    }

    /// A volume that passed for deleted is there.
    pub(crate) fn unset_deleted(&self, volume: VolumeId) {
        self.deleted.write().unwrap_or_else(PoisonError::into_inner).remove(&volume);
    }

    /// Volumes of a domain are not known to be deleted any more: its line has ended. Gives those that were.
    pub(crate) fn forget_deleted(&self, domain: DomainId) -> Vec<VolumeId> {
        let of = |volume: &VolumeId| self.volume(*volume).is_some_and(|v| v.domain == domain);
        let mut deleted = self.deleted.write().unwrap_or_else(PoisonError::into_inner);
        let back = deleted.iter().copied().filter(of).collect();
        deleted.retain(|volume| !of(volume));
        back
    }

    /// Puts a copy in, or in another's place; its heat stays.
    pub(crate) fn put(&self, copy: Arc<PageCopy>) {
        let hash = PageHash::of(copy.id);
        let mut shard = self.shard(hash).write().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = shard.entries.find_mut(hash.0, |entry| entry.copy.id == copy.id) {
            entry.copy = copy;
        } else {
            let entry = Entry { copy, heat: AtomicU8::new(0) };
            shard.entries.insert_unique(hash.0, entry, |entry| PageHash::of(entry.copy.id).0);
        }
    }

    pub(crate) fn remove(&self, page: PageId) -> Option<Arc<PageCopy>> {
        let hash = PageHash::of(page);
        let mut shard = self.shard(hash).write().unwrap_or_else(PoisonError::into_inner);
        let found = shard.entries.find_entry(hash.0, |entry| entry.copy.id == page).ok()?;
        Some(found.remove().0.copy)
    }

    /// Whether the page was used since [`Self::take_heat`] was last asked.
    pub(crate) fn is_read(&self, page: PageId) -> bool {
        let hash = PageHash::of(page);
        let shard = self.shard(hash).read().unwrap_or_else(PoisonError::into_inner);
        shard.get(hash, page).is_some_and(|entry| entry.heat.load(Ordering::Relaxed) > 0)
    }

    /// How often the page was used since this was last asked, up to three.
    pub(crate) fn take_heat(&self, page: PageId) -> u8 {
        let hash = PageHash::of(page);
        let shard = self.shard(hash).read().unwrap_or_else(PoisonError::into_inner);
        shard.get(hash, page).map_or(0, |entry| entry.heat.swap(0, Ordering::Relaxed))
    }

    #[inline]
    fn shard(&self, hash: PageHash) -> &RwLock<Shard> {
        // The table inside takes the low bits and the top seven: the shard takes others.
        &self.shards[(hash.0 >> 40) as usize % SHARDS]
    }
}
