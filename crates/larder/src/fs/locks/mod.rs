//! Locks on ranges of files that hold at every node (`docs/decisions/0009-locks.md`).
//!
//! They are objects of the volume, in pages of their own: taking one is a serializable transaction.
//! A node that holds any is entered there with a lease, which it renews; one that has not done so
//! for the lease, by the clock of whoever looks, is removed, and all its locks are void with it. While
//! this node holds any lock, every commit of it reads the node's entry: a node that was removed
//! can change nothing more under its locks, whether it knows or not. Then the processes that held
//! them are refused whatever they would change, names and files beside the locked one included,
//! until they have closed what they lost.

mod nodes;
mod ranges;
mod record;
#[cfg(test)]
mod tests;

pub use ranges::{Holder, Lock, LockKind};

use super::caller::Callers;
use super::record::{InodeId, ROOT_PAGE};
use super::tx::{Tx, TxError};
use super::write::may_pass;
use super::{FileSystem, FsError, FsFault, TxStore, lock as guard, transact};
use crate::clock::instant;
use larder_core::commit::PageKind;
use larder_core::id::{Generation, PageNo, Slot};
use record::{Held, Lease, Table};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Records of locks from any bytes; what is accepted is written and read again the same. For fuzzing.
pub(super) fn check_records(bytes: &[u8]) {
    if let Ok(table) = Table::decode(bytes) {
        assert_eq!(Table::decode(&table.encode()), Ok(table));
    }
    if let Ok(lease) = Lease::decode(bytes) {
        assert_eq!(Lease::decode(&lease.encode()), Ok(lease));
    }
    if let Ok(held) = Held::decode(bytes) {
        // Files without a lock are left out.
        let again = held.encode();
        assert_eq!(Held::decode(&again).map(|held| held.encode()), Ok(again));
    }
}

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

/// The page in which a volume's nodes are entered, by its page 1; none: no lock was ever taken, or
/// the volume holds no tree of files.
#[cfg(feature = "runtime")]
pub(crate) fn lock_holders_page(root: &larder_core::page::Page) -> Option<PageNo> {
    use super::record::{ROOT_SLOT, Root};
    use larder_core::page::Record;
    let object = |slot| match Record::decode(root.get(slot)?.1) {
        Ok(Record::Inline(bytes)) => Some(bytes),
        _ => None,
    };
    Root::decode(&object(ROOT_SLOT)?).ok()?;
    Table::decode(&object(TABLE_SLOT)?).ok().map(|table| table.first)
}

impl<S: TxStore> FileSystem<S> {
    /// Slotted pages that hold neither names nor what names lead to: page 1, which is read by itself,
    /// and the table of locks.
    pub(super) async fn pages_of_their_own(&self, tx: &S::Tx) -> Result<BTreeSet<PageNo>, FsError> {
        let mut pages = BTreeSet::from([ROOT_PAGE]);
        if let Some((_, bytes)) = tx.get(ROOT_PAGE, TABLE_SLOT).await? {
            let table = Table::decode(&bytes)?;
            pages.extend((0..u64::from(table.pages)).map(|i| PageNo(table.first.0 + i)));
        }
        Ok(pages)
    }
}

/// Takes all nodes out of that page: their locks are void with them.
#[cfg(feature = "runtime")]
pub(crate) fn forget_lock_holders(page: &mut larder_core::page::Page) {
    use larder_core::{commit::Op, page::PAGE_BYTES_MAX};
    let entries: Vec<_> = page.slots().collect();
    for (slot, generation) in entries {
        let gone = page.apply(&Op::Delete { slot, generation }, PAGE_BYTES_MAX);
        gone.expect("it is there");
    }
}

/// A node's entry: never means another one later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeRef {
    /// Its slot in the page of nodes.
    pub slot: Slot,
    /// Which of the slot's objects.
    pub generation: Generation,
}

/// The entry of a node that has none: every lock is another's.
const NO_NODE: NodeRef = NodeRef { slot: Slot(0), generation: Generation(0) };

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
    /// Of which of this node's entries: with that one gone, the lock is.
    node: NodeRef,
    owner: u64,
    start: u64,
    end: u64,
    /// What its owner holds there and keeps: it asked for more, and what became of that is not
    /// known, or nobody wants it any more.
    kept: Vec<Lock>,
}

impl Owed {
    fn holder(&self) -> Holder {
        Holder { node: self.node, owner: self.owner }
    }

    /// What is left of it on both sides of a range.
    fn without(self, start: u64, end: u64) -> Vec<Self> {
        if self.end < start || end < self.start {
            return vec![self];
        }
        let part = |start: u64, end: u64| {
            let kept = ranges::within(&self.kept, start, end);
            Self { id: self.id, node: self.node, owner: self.owner, start, end, kept }
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
    /// Files whose locks were lost, until they are closed here, with the processes that held them.
    lost: BTreeMap<InodeId, BTreeSet<u32>>,
    owed: VecDeque<Owed>,
    /// Other nodes: the lease last seen, and since when it is the same.
    seen: BTreeMap<NodeRef, (Lease, Instant)>,
    /// When this node last renewed its own.
    renewed: Option<Instant>,
    /// When a lock was last wanted here.
    wanted: Option<Instant>,
    /// A node was removed, and its locks are in the table still.
    sweeps: bool,
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
        if state.lost.contains_key(&id) { Err(FsError::LockLost) } else { Ok(()) }
    }

    /// What a commit for these processes depends on. One look: between two the locks may be lost.
    fn fence(&self, callers: &Callers) -> Fence {
        let state = guard(&self.state);
        if state.lost_by(callers) {
            return Fence::Lost;
        }
        match (state.table, state.node) {
            (Some(table), Some(node)) if !state.held.is_empty() => Fence::Entry(table.first, node),
            _ => Fence::None,
        }
    }

    /// Nothing is to be written for a process that lost a lock.
    pub(super) fn check_callers(&self) -> Result<(), FsError> {
        let lost = guard(&self.state).lost_by(&Callers::current());
        if lost { Err(FsError::LockLost) } else { Ok(()) }
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
        let held = std::mem::take(&mut state.held);
        if !held.is_empty() {
            tracing::error!(
                files = held.len(),
                "locks were lost: this node was not heard of for longer than their lease; what \
                 their holders write and rename is refused until they have closed these files"
            );
        }
        for (id, locks) in held.into_iter().filter(|(id, _)| is_open(*id)) {
            state.lost.entry(id).or_default().extend(locks.iter().map(|lock| lock.pid));
        }
        state.owed.clear();
    }
}

impl State {
    /// Whether one of these processes lost a lock, and has not closed its file since.
    fn lost_by(&self, callers: &Callers) -> bool {
        let lost = |process| self.lost.values().any(|held_by| held_by.contains(&process));
        !self.lost.is_empty() && callers.may_be(lost)
    }

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
            && self.wanted.is_none_or(|at| instant().saturating_duration_since(at) > long)
    }

    /// An owner has been given a range anew, or has released it: nothing more is owed of it.
    fn settle(&mut self, (id, owner): (InodeId, u64), start: u64, end: u64) {
        let owed = std::mem::take(&mut self.owed);
        let left = |owed: Owed| {
            if owed.id == id && owed.owner == owner { owed.without(start, end) } else { vec![owed] }
        };
        self.owed = owed.into_iter().flat_map(left).collect();
    }

    /// What an owner holds in a range and is not about to give back.
    fn kept(&self, (id, holder): (InodeId, Holder), start: u64, end: u64) -> Vec<Lock> {
        let held = self.held.get(&id).map_or(&[][..], Vec::as_slice);
        let mut kept = ranges::within(held, start, end);
        kept.retain(|lock| lock.holder == holder);
        for owed in self.owed.iter().filter(|owed| owed.id == id && owed.holder() == holder) {
            ranges::release(&mut kept, holder, owed.start, owed.end);
            let left = ranges::within(&owed.kept, start, end);
            left.into_iter().for_each(|lock| ranges::acquire(&mut kept, lock));
        }
        kept
    }

    fn owe(&mut self, owed: Owed) {
        if self.node != Some(owed.node) {
            return;
        }
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
        self.lock_if_wanted(id, ask, || std::future::ready(true)).await
    }

    /// The same for somebody who may not wait any more by the time: `wanted` is asked once when the
    /// lock is taken, before any other operation on the locks of this file. If it is not wanted,
    /// its owner holds again what it held before.
    pub async fn lock_if_wanted<W: Future<Output = bool>>(
        &self,
        id: InodeId,
        ask: &LockAsk,
        wanted: impl FnOnce() -> W,
    ) -> Result<Option<Lock>, FsError> {
        // What is kept of locks is this node's, whoever asks.
        Callers::default().doing(self.lock_within(id, ask, wanted)).await
    }

    async fn lock_within<W: Future<Output = bool>>(
        &self,
        id: InodeId,
        ask: &LockAsk,
        wanted: impl FnOnce() -> W,
    ) -> Result<Option<Lock>, FsError> {
        self.locks.check(id)?;
        {
            let state = guard(&self.locks.state);
            if state.held.len() >= FILES_MAX && !state.held.contains_key(&id) {
                return Err(FsError::NoLocks);
            }
            // One of this node's own is in the way: nobody need be asked.
            if let (Some(node), Some(held)) = (state.node, state.held.get(&id)) {
                let new = ask.lock(node);
                let own = held.iter().find(|lock| lock.conflicts(&new));
                if let Some(own) = own {
                    return Ok(Some(*own));
                }
            }
        }
        let _ordered = self.locks.order(id).lock().await;
        self.flush_id(id).await?;
        let mut tried = self.try_lock(id, ask).await?;
        if let Tried::InTheWay(_) = tried {
            // What was in the way may be gone, and not heard of here.
            self.store.refresh().await?;
            tried = self.try_lock(id, ask).await?;
        }
        match tried {
            Tried::InTheWay(other) => Ok(Some(other)),
            Tried::Taken(_) if wanted().await => Ok(None),
            Tried::Taken(undo) => {
                if self.release_lock(&undo).await.is_err() {
                    guard(&self.locks.state).owe(undo);
                }
                Ok(None)
            }
        }
    }

    async fn try_lock(&self, id: InodeId, ask: &LockAsk) -> Result<Tried, FsError> {
        loop {
            guard(&self.locks.state).wanted = Some(instant());
            let (table, node) = self.lock_node().await?;
            let new = ask.lock(node);
            let tried: Result<Option<Lock>, FsError> = transact!(self, tx => {
                self.node_stands(&tx, table, node).await?;
                let (place, mut held) = self.held_locks(&tx, table, id).await?;
                let locks = held.of(id);
                self.drop_void(&tx, table, locks).await?;
                let beside = self.options.faults.has(FsFault::LockBesideAnother);
                let other = locks.iter().find(|lock| lock.conflicts(&new) && !beside);
                if let Some(other) = other {
                    return Ok(Some(*other));
                }
                ranges::acquire(locks, new);
                if locks.len() > FILE_LOCKS_MAX {
                    return Err(FsError::NoLocks);
                }
                self.put_locks(&tx, place, &held).await?;
                Ok(None)
            });
            // How it is given back.
            let undo = {
                let state = guard(&self.locks.state);
                let kept = state.kept((id, new.holder), ask.start, ask.end);
                Owed { id, node, owner: ask.owner, start: ask.start, end: ask.end, kept }
            };
            match tried {
                Ok(Some(other)) => return Ok(Tried::InTheWay(other)),
                Ok(None) => {
                    let mut state = guard(&self.locks.state);
                    if state.node == Some(node) {
                        // What was to be released of it is wanted again.
                        state.settle((id, ask.owner), ask.start, ask.end);
                        ranges::acquire(state.held.entry(id).or_default(), new);
                        return Ok(Tried::Taken(undo));
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
                        guard(&self.locks.state).owe(undo);
                    }
                    return Err(error);
                }
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
        let new = ask.lock(guard(&self.locks.state).node.unwrap_or(NO_NODE));
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
        Callers::default().doing(self.unlock_within(id, owner, start, end)).await
    }

    async fn unlock_within(
        &self,
        id: InodeId,
        owner: u64,
        start: u64,
        end: u64,
    ) -> Result<(), FsError> {
        // One that is being taken is waited for.
        let _ordered = self.locks.order(id).lock().await;
        let node = guard(&self.locks.state).node;
        let Some(node) = node.filter(|_| self.holds_lock(id, owner)) else { return Ok(()) };
        let owed = Owed { id, node, owner, start, end, kept: Vec::new() };
        let result = self.release_lock(&owed).await;
        if result.is_err() {
            guard(&self.locks.state).owe(owed);
        }
        result
    }

    async fn release_lock(&self, owed: &Owed) -> Result<(), FsError> {
        let Owed { id, node, owner, start, end, .. } = *owed;
        match self.flush_id(id).await.and(self.keep_promises().await) {
            Err(error) if may_pass(&error) => return Err(error),
            // It is told at the close.
            _ => {}
        }
        let Some(table) = guard(&self.locks.state).table else { return Ok(()) };
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
                if state.node != Some(node) {
                    return Ok(());
                }
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

    /// Whether a lock is this node's own.
    #[must_use]
    pub fn is_own_lock(&self, lock: &Lock) -> bool {
        guard(&self.locks.state).node == Some(lock.holder.node)
    }

    /// Whether a lock that was in somebody's way is in this one's as well.
    #[must_use]
    pub fn is_in_the_way(&self, lock: &Lock, ask: &LockAsk) -> bool {
        let node = guard(&self.locks.state).node.unwrap_or(NO_NODE);
        lock.conflicts(&ask.lock(node))
    }

    /// Whether an owner holds a lock on a file here.
    #[must_use]
    pub fn holds_lock(&self, id: InodeId, owner: u64) -> bool {
        let state = guard(&self.locks.state);
        let held = state.held.get(&id);
        held.is_some_and(|locks| locks.iter().any(|lock| lock.holder.owner == owner))
    }

    /// Whether any lock is held here, or was lost on a file that is not closed yet.
    #[must_use]
    pub fn has_locks(&self) -> bool {
        let state = guard(&self.locks.state);
        !state.held.is_empty() || !state.lost.is_empty()
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
            let released = Callers::default().doing(self.release_lock(&owed)).await;
            if let Err(error) = released {
                guard(&self.locks.state).owe(owed);
                return Err(error);
            }
        }
        Ok(())
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
}

/// What a commit depends on.
enum Fence {
    None,
    /// That this node's entry stands.
    Entry(PageNo, NodeRef),
    /// It is done for a process that lost a lock.
    Lost,
}

/// What became of a try.
enum Tried {
    /// It is held: how it is given back.
    Taken(Owed),
    InTheWay(Lock),
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

    /// All pages but that of nodes.
    fn lock_pages(self) -> impl Iterator<Item = PageNo> {
        (1..u64::from(self.pages)).map(move |page| PageNo(self.first.0 + page))
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
