//! Nodes in the table of locks: each with an entry and a lease that it renews, and removed by others
//! when it does not.

use super::super::caller::Callers;
use super::super::tx::{Tx, TxError};
use super::super::{FileSystem, FsError, TxStore, lock as guard, transact};
use super::ranges::Lock;
use super::record::{Held, Lease, Table};
use super::{Fence, NodeRef, Place, SLOTS};
use crate::clock::{instant, random_u64, random_u128};
use larder_core::id::Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

impl<S: TxStore> FileSystem<S> {
    /// How often [`Self::tend_locks`] is to be called.
    #[must_use]
    pub fn lock_renewal(&self) -> Duration {
        self.locks.lease / 4
    }

    /// Renews this node's lease, and removes nodes that have not renewed theirs: only the time counts in which this node renewed its own, or a
    /// pause of the origin would make all nodes dead for each other.
    pub async fn tend_locks(&self) -> Result<(), FsError> {
        Callers::default().doing(self.tend()).await
    }

    async fn tend(&self) -> Result<(), FsError> {
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
            return self.leave().await;
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
        let now = instant();
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
            guard(&self.locks.state).sweeps = true;
        }
        Ok(())
    }

    /// Takes out of the table what nodes left there that are gone: void as it is, it would fill the
    /// pages in which the locks of files are kept that are locked only once. To be called now and
    /// then beside [`Self::tend_locks`], since it may take long: it does something when that has
    /// removed a node, a transaction a page, and goes on after an error.
    pub async fn sweep_void_locks(&self) -> Result<(), FsError> {
        Callers::default().doing(self.sweep()).await
    }

    async fn sweep(&self) -> Result<(), FsError> {
        let Some(table) = ({
            let state = guard(&self.locks.state);
            state.table.filter(|_| state.sweeps)
        }) else {
            return Ok(());
        };
        for page in table.lock_pages() {
            let swept: Result<(), FsError> = transact!(self, tx => {
                for (slot, generation, bytes) in tx.get_all(page).await?.unwrap_or_default() {
                    let mut held = Held::decode(&bytes)?;
                    let before = held.clone();
                    for (_, locks) in &mut held.0 {
                        self.drop_void(&tx, table, locks).await?;
                    }
                    if held != before {
                        let place = Place { page, slot, generation: Some(generation) };
                        self.put_locks(&tx, place, &held).await?;
                    }
                }
                Ok(())
            });
            swept?;
        }
        guard(&self.locks.state).sweeps = false;
        Ok(())
    }

    /// Releases all locks of this node and takes it off the table: for the end, or when there has
    /// been nothing to lock for long.
    pub async fn release_all_locks(&self) -> Result<(), FsError> {
        Callers::default().doing(self.leave()).await
    }

    async fn leave(&self) -> Result<(), FsError> {
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

    pub(super) fn lose_locks(&self, node: NodeRef) {
        self.locks.lose(node, |id| self.open_files.is_open(id));
    }

    /// To be called by every transaction when all else of it is done: one that writes fails with
    /// [`FsError::LockLost`] if it is done for a process that lost a lock, and reads this node's
    /// entry while the node holds any.
    pub(in crate::fs) async fn locks_stand(&self, tx: &S::Tx) -> Result<(), FsError> {
        if !tx.writes() {
            return Ok(());
        }
        let (page, node) = match self.locks.fence(&Callers::current()) {
            Fence::Lost => return Err(FsError::LockLost),
            Fence::Entry(page, node) => (page, node),
            Fence::None => return Ok(()),
        };
        match tx.get(page, node.slot).await? {
            Some((generation, _)) if generation == node.generation => Ok(()),
            _ => {
                self.lose_locks(node);
                // Who lost none runs it again, and meets what was lost of the files it writes to.
                Err(TxError::Conflict("the locks of this node were lost".into()).into())
            }
        }
    }

    pub(super) async fn node_stands(
        &self,
        tx: &S::Tx,
        table: Table,
        node: NodeRef,
    ) -> Result<(), FsError> {
        match tx.get(table.first, node.slot).await? {
            Some((generation, _)) if generation == node.generation => Ok(()),
            _ => Err(FsError::LockLost),
        }
    }

    /// Drops locks of nodes that are gone.
    pub(super) async fn drop_void(
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

    /// This node's entry, which is made if it has none.
    pub(super) async fn lock_node(&self) -> Result<(Table, NodeRef), FsError> {
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
