//! Locks on ranges of files that hold at every node (`docs/decisions/0009-locks.md`).
//!
//! They are objects of the volume, in pages of their own: taking one is a serializable transaction.
//! A node that holds any is entered there with a lease, which it renews; one that has not done so
//! for the lease, by the clock of whoever looks, is removed, and all its locks are void with it. Every
//! commit of a file that this node holds a lock on reads the node's entry: a node that was removed
//! can write nothing more under its locks, whether it knows or not.

mod ranges;
mod record;
#[cfg(test)]
mod tests;

pub use ranges::{Holder, Lock, LockKind};

use super::record::{InodeId, ROOT_PAGE};
use super::tx::{Tx, TxError};
use super::write::may_pass;
use super::{FileSystem, FsError, TxStore, lock as guard, transact};
use crate::clock::{random_u64, random_u128};
use larder_core::commit::PageKind;
use larder_core::id::{Generation, PageNo, Slot};
use record::{Held, Lease, Table};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Where the table's record is, in page 1.
const TABLE_SLOT: Slot = Slot(1);
/// Pages of the table: one for nodes, the others for locks.
const TABLE_PAGES: u16 = 17;
/// Slots of a page that are used: even ones for nodes, with their leases beside them.
const SLOTS: u64 = 1 << 15;
/// Locks of one file at most, of all nodes together.
const FILE_LOCKS_MAX: usize = 256;
/// Files with locks of this node at most, and releases that wait for the line.
const FILES_MAX: usize = 4096;
/// Orders for operations on the locks of a file.
const ORDERS: usize = 64;

/// A node's entry: never means another one later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeRef {
    /// Its slot in the page of nodes.
    pub slot: Slot,
    /// Which of the slot's objects.
    pub generation: Generation,
}

/// A lock that is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockAsk {
    /// For whom, as the kernel numbers processes and open files.
    pub owner: u64,
    /// The process that asks: to be told of.
    pub pid: u32,
    /// What.
    pub kind: LockKind,
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
}

/// A range to be released when that can be done.
#[derive(Clone)]
struct Owed {
    id: InodeId,
    owner: u64,
    start: u64,
    end: u64,
    /// What its owner holds there and keeps: it asked for more, and what became of that is not
    /// known.
    kept: Vec<Lock>,
}

impl Owed {
    fn new(id: InodeId, owner: u64, start: u64, end: u64) -> Self {
        Self { id, owner, start, end, kept: Vec::new() }
    }

    /// What is left of it on both sides of a range.
    fn without(self, start: u64, end: u64) -> Vec<Self> {
        if self.end < start || end < self.start {
            return vec![self];
        }
        let part = |start: u64, end: u64| {
            let kept = ranges::within(&self.kept, start, end);
            Self { id: self.id, owner: self.owner, start, end, kept }
        };
        let before = (self.start < start).then(|| part(self.start, start - 1));
        let after = (end < self.end).then(|| part(end + 1, self.end));
        before.into_iter().chain(after).collect()
    }
}

#[derive(Default)]
struct State {
    table: Option<Table>,
    node: Option<NodeRef>,
    /// What this node holds, as committed.
    held: BTreeMap<InodeId, Vec<Lock>>,
    /// Files whose locks were lost, until they are closed here.
    lost: BTreeSet<InodeId>,
    owed: VecDeque<Owed>,
    /// Other nodes: the lease last seen, and since when it is the same.
    seen: BTreeMap<NodeRef, (Lease, Instant)>,
    /// When this node last renewed its own.
    renewed: Option<Instant>,
    /// When a lock was last wanted here.
    wanted: Option<Instant>,
}

/// The locks of this node.
pub(super) struct Locks {
    lease: Duration,
    state: Mutex<State>,
    orders: [tokio::sync::Mutex<()>; ORDERS],
    /// One makes the table or this node's entry.
    entering: tokio::sync::Mutex<()>,
}

impl Locks {
    pub(super) fn new(lease: Duration) -> Self {
        Self {
            lease,
            state: Mutex::default(),
            orders: std::array::from_fn(|_| tokio::sync::Mutex::default()),
            entering: tokio::sync::Mutex::default(),
        }
    }

    fn order(&self, id: InodeId) -> &tokio::sync::Mutex<()> {
        &self.orders[(id.number() >> 1) as usize % ORDERS]
    }

    /// Nothing may be written under locks that are lost.
    pub(super) fn check(&self, id: InodeId) -> Result<(), FsError> {
        let state = guard(&self.state);
        if !state.lost.is_empty() && state.lost.contains(&id) {
            return Err(FsError::LockLost);
        }
        Ok(())
    }

    /// The entry that a commit of this file depends on.
    fn entry_for(&self, id: InodeId) -> Option<(PageNo, NodeRef)> {
        let state = guard(&self.state);
        if state.held.is_empty() || !state.held.contains_key(&id) {
            return None;
        }
        Some((state.table?.first, state.node?))
    }

    /// This node's entry is gone, and its locks with it. Who has a file open cannot go on with it as
    /// if nothing had been.
    fn lose(&self, node: NodeRef, is_open: impl Fn(InodeId) -> bool) {
        let mut state = guard(&self.state);
        if state.node != Some(node) {
            return;
        }
        state.node = None;
        state.renewed = None;
        let files: Vec<InodeId> = std::mem::take(&mut state.held).into_keys().collect();
        if !files.is_empty() {
            tracing::error!(
                files = files.len(),
                "locks were lost: this node was not heard of for longer than their lease; what is \
                 written to these files is refused until they are closed"
            );
        }
        state.lost.extend(files.into_iter().filter(|id| is_open(*id)));
        state.owed.clear();
    }
}

impl State {
    fn release(&mut self, id: InodeId, holder: Holder, start: u64, end: u64) {
        if let Some(locks) = self.held.get_mut(&id) {
            ranges::release(locks, holder, start, end);
            if locks.is_empty() {
                self.held.remove(&id);
            }
        }
    }

    /// Nothing is held, nor was wanted for so long that a node that is gone would have been noticed.
    fn is_idle(&self, own: Duration) -> bool {
        let leases = self.seen.values().map(|(lease, _)| Duration::from_nanos(lease.nanos));
        let long = 4 * leases.max().unwrap_or_default().max(own);
        self.held.is_empty()
            && self.owed.is_empty()
            && self.wanted.is_none_or(|at| at.elapsed() > long)
    }

    /// An owner has been given a range anew, or has released it: nothing more is owed of it.
    fn settle(&mut self, (id, owner): (InodeId, u64), start: u64, end: u64) {
        let owed = std::mem::take(&mut self.owed);
        let left = |owed: Owed| {
            if owed.id == id && owed.owner == owner { owed.without(start, end) } else { vec![owed] }
        };
        self.owed = owed.into_iter().flat_map(left).collect();
    }

    fn owe(&mut self, owed: Owed) {
        self.settle((owed.id, owed.owner), owed.start, owed.end);
        if self.owed.len() < FILES_MAX {
            self.owed.push_back(owed);
        }
    }
}

impl<S: TxStore> FileSystem<S> {
    /// Takes a lock, or gives one that is in its way. What was written here to the file is
    /// committed first; what is read of it from here on is at least as new as the last release of a
    /// lock that was in the way. [`FsError::NoLocks`]: a limit is reached; [`FsError::LockLost`]:
    /// this node lost locks of the file, which must be closed first.
    pub async fn lock(&self, id: InodeId, ask: &LockAsk) -> Result<Option<Lock>, FsError> {
        self.locks.check(id)?;
        {
            let state = guard(&self.locks.state);
            if state.held.len() >= FILES_MAX && !state.held.contains_key(&id) {
                return Err(FsError::NoLocks);
            }
        }
        let _ordered = self.locks.order(id).lock().await;
        self.flush_id(id).await?;
        let first = self.try_lock(id, ask).await?;
        if first.is_none() {
            return Ok(None);
        }
        // What was in the way may be gone, and not heard of here.
        self.store.refresh().await?;
        self.try_lock(id, ask).await
    }

    async fn try_lock(&self, id: InodeId, ask: &LockAsk) -> Result<Option<Lock>, FsError> {
        loop {
            guard(&self.locks.state).wanted = Some(Instant::now());
            let (table, node) = self.lock_node().await?;
            let new = ask.lock(node);
            let tried: Result<Option<Lock>, FsError> = transact!(self, tx => {
                self.node_stands(&tx, table, node).await?;
                let (place, mut held) = self.held_locks(&tx, table, id).await?;
                let locks = held.of(id);
                self.drop_void(&tx, table, locks).await?;
                if let Some(other) = locks.iter().find(|lock| lock.conflicts(&new)) {
                    return Ok(Some(*other));
                }
                ranges::acquire(locks, new);
                if locks.len() > FILE_LOCKS_MAX {
                    return Err(FsError::NoLocks);
                }
                self.put_locks(&tx, place, &held).await?;
                Ok(None)
            });
            match tried {
                Ok(None) => {
                    let mut state = guard(&self.locks.state);
                    // What was to be released of it is wanted again.
                    state.settle((id, ask.owner), ask.start, ask.end);
                    if state.node == Some(node) {
                        ranges::acquire(state.held.entry(id).or_default(), new);
                        return Ok(None);
                    }
                    // This node left meanwhile, having had nothing to do.
                }
                Err(FsError::LockLost) => {
                    self.lose_locks(node);
                    self.locks.check(id)?;
                }
                Err(FsError::Store(TxError::Full(_))) => return Err(FsError::NoLocks),
                Err(error) => {
                    if error == TxError::OutcomeUnknown.into() {
                        let mut state = guard(&self.locks.state);
                        let held = state.held.get(&id).map_or(&[][..], Vec::as_slice);
                        let mut kept = ranges::within(held, ask.start, ask.end);
                        kept.retain(|lock| lock.holder.owner == ask.owner);
                        let owed = Owed::new(id, ask.owner, ask.start, ask.end);
                        state.owe(Owed { kept, ..owed });
                    }
                    return Err(error);
                }
                other => return other,
            }
        }
    }

    /// The lock that would be in the way of one, at the latest state.
    pub async fn lock_in_the_way(
        &self,
        id: InodeId,
        ask: &LockAsk,
    ) -> Result<Option<Lock>, FsError> {
        self.store.refresh().await?;
        let Some(table) = self.lock_table(false).await? else { return Ok(None) };
        // Without an entry every lock is another's.
        let none = NodeRef { slot: Slot(0), generation: Generation(0) };
        let new = ask.lock(guard(&self.locks.state).node.unwrap_or(none));
        transact!(self, tx => {
            let (_, mut held) = self.held_locks(&tx, table, id).await?;
            let locks = held.of(id);
            self.drop_void(&tx, table, locks).await?;
            Ok(locks.iter().find(|lock| lock.conflicts(&new)).copied())
        })
    }

    /// Releases what an owner holds in a range. What was written here to the file is committed
    /// before the release is seen. After an error it is released as soon as that can be done.
    pub async fn unlock(
        &self,
        id: InodeId,
        owner: u64,
        start: u64,
        end: u64,
    ) -> Result<(), FsError> {
        // One that is being taken is waited for.
        let _ordered = self.locks.order(id).lock().await;
        if !self.holds_lock(id, owner) {
            return Ok(());
        }
        let owed = Owed::new(id, owner, start, end);
        let result = self.release_lock(&owed).await;
        if result.is_err() {
            guard(&self.locks.state).owe(owed);
        }
        result
    }

    async fn release_lock(&self, owed: &Owed) -> Result<(), FsError> {
        let Owed { id, owner, start, end, .. } = *owed;
        match self.flush_id(id).await {
            Err(error) if may_pass(&error) => return Err(error),
            // It is told at the close.
            _ => {}
        }
        let (Some(table), Some(node)) = ({
            let state = guard(&self.locks.state);
            (state.table, state.node)
        }) else {
            return Ok(());
        };
        let holder = Holder { node, owner };
        let released: Result<(), FsError> = transact!(self, tx => {
            self.node_stands(&tx, table, node).await?;
            let (place, mut held) = self.held_locks(&tx, table, id).await?;
            let locks = held.of(id);
            ranges::release(locks, holder, start, end);
            owed.kept.iter().for_each(|kept| ranges::acquire(locks, *kept));
            self.put_locks(&tx, place, &held).await
        });
        match released {
            Ok(()) => {
                let mut state = guard(&self.locks.state);
                state.settle((id, owner), start, end);
                state.release(id, holder, start, end);
                for kept in &owed.kept {
                    ranges::acquire(state.held.entry(id).or_default(), *kept);
                }
                Ok(())
            }
            Err(FsError::LockLost) => {
                self.lose_locks(node);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Whether an owner holds a lock on a file here.
    #[must_use]
    pub fn holds_lock(&self, id: InodeId, owner: u64) -> bool {
        let state = guard(&self.locks.state);
        let held = state.held.get(&id);
        held.is_some_and(|locks| locks.iter().any(|lock| lock.holder.owner == owner))
    }

    /// Whether changes of these pages may be of locks.
    #[must_use]
    pub fn has_locks_in(&self, pages: impl IntoIterator<Item = PageNo>) -> bool {
        let Some(table) = guard(&self.locks.state).table else { return false };
        pages.into_iter().any(|page| table.has(page))
    }

    /// A file was closed here: if nobody has it open any more, the loss of its locks is forgotten.
    pub fn lock_file_closed(&self, id: InodeId) {
        if !self.open_files.is_open(id) {
            guard(&self.locks.state).lost.remove(&id);
        }
    }

    /// How often [`Self::tend_locks`] is to be called.
    #[must_use]
    pub fn lock_renewal(&self) -> Duration {
        self.locks.lease / 4
    }

    fn lose_locks(&self, node: NodeRef) {
        self.locks.lose(node, |id| self.open_files.is_open(id));
    }

    /// Renews this node's lease, and removes nodes that have not renewed theirs: only the time counts in which this node renewed its own, or a
    /// pause of the origin would make all nodes dead for each other.
    pub async fn tend_locks(&self) -> Result<(), FsError> {
        let (Some(table), Some(node)) = ({
            let state = guard(&self.locks.state);
            (state.table, state.node)
        }) else {
            return Ok(());
        };
        let renewed: Result<(), FsError> = transact!(self, tx => {
            self.node_stands(&tx, table, node).await?;
            let beside = Slot(node.slot.0 | 1);
            let Some((generation, bytes)) = tx.get(table.first, beside).await? else {
                return Err(FsError::LockLost);
            };
            let mut lease = Lease::decode(&bytes)?;
            lease.count += 1;
            Ok(tx.put(table.first, beside, generation, lease.encode()).await?)
        });
        if renewed == Err(FsError::LockLost) {
            self.lose_locks(node);
            return Ok(());
        }
        renewed?;
        let dead = self.look_at_nodes(table, node).await?;
        for (other, lease) in dead {
            self.remove_node(table, other, lease).await?;
        }
        // After the look: somebody who tries now and then must find a dead node's locks gone.
        if guard(&self.locks.state).is_idle(self.locks.lease) {
            return self.release_all_locks().await;
        }
        Ok(())
    }

    /// Releases what could not be released before: beside the renewal of the lease, since what was
    /// written is committed first, which may take long.
    pub async fn release_owed_locks(&self) -> Result<(), FsError> {
        let count = guard(&self.locks.state).owed.len();
        for _ in 0..count {
            let Some(id) = guard(&self.locks.state).owed.front().map(|owed| owed.id) else { break };
            let _ordered = self.locks.order(id).lock().await;
            // Within the order: until then its owner may have been given it anew.
            let owed = {
                let mut state = guard(&self.locks.state);
                let place = state.owed.iter().position(|owed| owed.id == id);
                place.and_then(|place| state.owed.remove(place))
            };
            let Some(owed) = owed else { continue };
            if let Err(error) = self.release_lock(&owed).await {
                guard(&self.locks.state).owe(owed);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Notes the leases of other nodes; gives those that have run out.
    async fn look_at_nodes(
        &self,
        table: Table,
        own: NodeRef,
    ) -> Result<Vec<(NodeRef, Lease)>, FsError> {
        let objects = transact!(self, tx => Ok(tx.get_all(table.first).await?))?;
        let objects = objects.unwrap_or_default();
        let mut leases = BTreeMap::new();
        for (slot, generation, _) in objects.iter().filter(|(slot, ..)| slot.0 % 2 == 0) {
            let node = NodeRef { slot: *slot, generation: *generation };
            let beside = objects.iter().find(|(other, ..)| other.0 == slot.0 | 1);
            if let Some((_, _, bytes)) = beside.filter(|_| node != own) {
                leases.insert(node, Lease::decode(bytes)?);
            }
        }
        let now = Instant::now();
        let mut state = guard(&self.locks.state);
        let steady = state.renewed.is_some_and(|at| now.duration_since(at) <= self.locks.lease / 2);
        state.renewed = Some(now);
        let before = std::mem::take(&mut state.seen);
        let mut dead = Vec::new();
        for (node, lease) in leases {
            let since = match before.get(&node) {
                Some((seen, since)) if *seen == lease && steady => *since,
                _ => now,
            };
            if now.duration_since(since) >= Duration::from_nanos(lease.nanos) {
                dead.push((node, lease));
            }
            state.seen.insert(node, (lease, since));
        }
        Ok(dead)
    }

    /// Removes a node, unless it has renewed its lease: then it conflicts, and is as it was.
    async fn remove_node(&self, table: Table, node: NodeRef, lease: Lease) -> Result<(), FsError> {
        let beside = Slot(node.slot.0 | 1);
        let removed: Result<bool, FsError> = transact!(self, tx => {
            let Some((generation, bytes)) = tx.get(table.first, beside).await? else {
                return Ok(false);
            };
            let there = tx.get(table.first, node.slot).await?;
            let same = there.is_some_and(|(generation, _)| generation == node.generation);
            if !same || Lease::decode(&bytes)? != lease {
                return Ok(false);
            }
            tx.delete(table.first, node.slot, node.generation).await?;
            tx.delete(table.first, beside, generation).await?;
            Ok(true)
        });
        if removed? {
            tracing::warn!(node = node.slot.0, "a node is gone: its locks are released");
        }
        Ok(())
    }

    /// Releases all locks of this node and takes it off the table: for the end, or when there has
    /// been nothing to lock for long.
    pub async fn release_all_locks(&self) -> Result<(), FsError> {
        let (Some(table), Some(node)) = ({
            let mut state = guard(&self.locks.state);
            state.held.clear();
            (state.table, state.node.take())
        }) else {
            return Ok(());
        };
        let beside = Slot(node.slot.0 | 1);
        let left: Result<(), FsError> = transact!(self, tx => {
            self.node_stands(&tx, table, node).await?;
            tx.delete(table.first, node.slot, node.generation).await?;
            if let Some((generation, _)) = tx.get(table.first, beside).await? {
                tx.delete(table.first, beside, generation).await?;
            }
            Ok(())
        });
        if left == Err(FsError::LockLost) { Ok(()) } else { left }
    }

    /// To be called in every transaction that changes a file's content: it fails with
    /// [`FsError::LockLost`] when this node's locks on the file are void.
    pub(super) async fn keeps_locks(&self, tx: &S::Tx, id: InodeId) -> Result<(), FsError> {
        self.locks.check(id)?;
        let Some((page, node)) = self.locks.entry_for(id) else { return Ok(()) };
        match tx.get(page, node.slot).await? {
            Some((generation, _)) if generation == node.generation => Ok(()),
            _ => {
                self.lose_locks(node);
                Err(FsError::LockLost)
            }
        }
    }

    async fn node_stands(&self, tx: &S::Tx, table: Table, node: NodeRef) -> Result<(), FsError> {
        match tx.get(table.first, node.slot).await? {
            Some((generation, _)) if generation == node.generation => Ok(()),
            _ => Err(FsError::LockLost),
        }
    }

    async fn held_locks(
        &self,
        tx: &S::Tx,
        table: Table,
        id: InodeId,
    ) -> Result<(Place, Held), FsError> {
        let (page, slot) = table.place(self.hash(id.to_string().as_bytes()));
        let found = tx.get(page, slot).await?;
        let generation = found.as_ref().map(|(generation, _)| *generation);
        let held = found.map_or(Ok(Held::default()), |(_, bytes)| Held::decode(&bytes))?;
        Ok((Place { page, slot, generation }, held))
    }

    async fn put_locks(&self, tx: &S::Tx, place: Place, held: &Held) -> Result<(), FsError> {
        let Place { page, slot, generation } = place;
        match (generation, held.is_empty()) {
            (Some(generation), true) => tx.delete(page, slot, generation).await?,
            (Some(generation), false) => tx.put(page, slot, generation, held.encode()).await?,
            (None, true) => {}
            (None, false) => {
                tx.create(page, slot, held.encode()).await?;
            }
        }
        Ok(())
    }

    /// Drops locks of nodes that are gone.
    async fn drop_void(
        &self,
        tx: &S::Tx,
        table: Table,
        locks: &mut Vec<Lock>,
    ) -> Result<(), FsError> {
        let nodes: BTreeSet<NodeRef> = locks.iter().map(|lock| lock.holder.node).collect();
        for node in nodes {
            if self.node_stands(tx, table, node).await == Err(FsError::LockLost) {
                locks.retain(|lock| lock.holder.node != node);
            }
        }
        Ok(())
    }

    /// The table of locks, which is made if it is wanted and not there.
    async fn lock_table(&self, make: bool) -> Result<Option<Table>, FsError> {
        if let Some(table) = guard(&self.locks.state).table {
            return Ok(Some(table));
        }
        let table: Result<Option<Table>, FsError> = transact!(self, tx => {
            if let Some((_, bytes)) = tx.get(ROOT_PAGE, TABLE_SLOT).await? {
                return Table::decode(&bytes).map(Some);
            }
            if !make {
                return Ok(None);
            }
            let first = self.numbers.take(&self.store, u64::from(TABLE_PAGES)).await?;
            let table = Table { first, pages: TABLE_PAGES };
            for page in 0..u64::from(TABLE_PAGES) {
                tx.create_page(PageNo(first.0 + page), PageKind::Slotted).await?;
            }
            tx.create(ROOT_PAGE, TABLE_SLOT, table.encode()).await?;
            Ok(Some(table))
        });
        let table = table?;
        guard(&self.locks.state).table = table;
        Ok(table)
    }

    /// This node's entry, which is made if it has none.
    async fn lock_node(&self) -> Result<(Table, NodeRef), FsError> {
        let _one = self.locks.entering.lock().await;
        let table = self.lock_table(true).await?.ok_or(FsError::NoLocks)?;
        if let Some(node) = guard(&self.locks.state).node {
            return Ok((table, node));
        }
        let nanos = u64::try_from(self.locks.lease.as_nanos()).unwrap_or(u64::MAX);
        let entered: Result<NodeRef, FsError> = transact!(self, tx => {
            let slot = Slot((2 + random_u64() % (SLOTS - 4) / 2 * 2) as u16);
            let beside = Slot(slot.0 | 1);
            let free = tx.get(table.first, slot).await?.is_none()
                && tx.get(table.first, beside).await?.is_none();
            if !free {
                return Err(TxError::Conflict("another node's slot".into()).into());
            }
            let name = random_u128().to_le_bytes().to_vec();
            let generation = tx.create(table.first, slot, name.into()).await?;
            let lease = Lease { count: 0, nanos };
            tx.create(table.first, beside, lease.encode()).await?;
            Ok(NodeRef { slot, generation })
        });
        let node = match entered {
            Err(FsError::Store(TxError::Full(_))) => return Err(FsError::NoLocks),
            other => other?,
        };
        guard(&self.locks.state).node = Some(node);
        Ok((table, node))
    }
}

/// Where the locks of a file are kept.
struct Place {
    page: PageNo,
    slot: Slot,
    /// None: nothing is there.
    generation: Option<Generation>,
}

impl Table {
    fn place(self, hash: u64) -> (PageNo, Slot) {
        let page = 1 + (hash / SLOTS) % u64::from(self.pages - 1);
        (PageNo(self.first.0 + page), Slot((hash % SLOTS) as u16))
    }

    fn has(self, page: PageNo) -> bool {
        (self.first.0..self.first.0 + u64::from(self.pages)).contains(&page.0)
    }
}

impl LockAsk {
    fn lock(&self, node: NodeRef) -> Lock {
        let holder = Holder { node, owner: self.owner };
        Lock { holder, kind: self.kind, start: self.start, end: self.end, pid: self.pid }
    }
}
