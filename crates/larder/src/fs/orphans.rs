//! Files without a name: still open on the node that removed them, or with more pages than one
//! transaction frees. They hang in a hidden directory, so that a crash leaves them to be found.
//!
//! A node that holds one open says so now and then, by its time of change. What nobody has said
//! so of for long was left by a node that died, and is freed by whoever notices.

use super::content::PAGES_FREED_MAX;
use super::record::{Content, Entry, Inode, InodeId, Kind, Xattrs};
use super::removals::{Held, Taken};
use super::trie;
use super::tx::{Tx, TxError};
use super::write::{is_without_answer, may_pass};
use super::{FileSystem, FsError, FsFault, Position, TxStore, lock, transact};
use crate::clock::instant;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

fn orphan_name(id: InodeId) -> Bytes {
    Bytes::from(id.to_string())
}

impl<S: TxStore> FileSystem<S> {
    /// Enters an inode whose last name goes in this transaction.
    pub(super) async fn add_orphan(&self, tx: &S::Tx, id: InodeId) -> Result<(), FsError> {
        let trie = self.trie_of(self.root.orphans).await?;
        let entry = Entry { name: orphan_name(id), id, kind: Kind::File };
        self.insert_entry(tx, trie, entry).await?;
        Ok(())
    }

    /// Gives an inode's pages to a new one without a name.
    pub(super) async fn orphan_content(
        &self,
        tx: &S::Tx,
        inode: &Inode,
    ) -> Result<InodeId, FsError> {
        let (page, slot) = self.new_inode_place(self.root.orphans).await?;
        let mut orphan = inode.clone();
        orphan.kind = Kind::File;
        orphan.links = 0;
        orphan.xattrs = Xattrs::None;
        orphan.ctime = self.store.now();
        let generation = tx.create(page, slot, orphan.encode()).await?;
        let id = InodeId { page, slot, generation };
        self.add_orphan(tx, id).await?;
        Ok(id)
    }

    /// Whether removing the inode takes one transaction.
    pub(super) fn is_small(inode: &Inode) -> bool {
        !matches!(&inode.content, Content::Pages(extents) if extents.high > PAGES_FREED_MAX)
    }

    /// Removes an inode with its content, and its page when it was the last there.
    pub(super) async fn remove_inode(
        &self,
        tx: &S::Tx,
        id: InodeId,
        inode: &mut Inode,
    ) -> Result<(), FsError> {
        let leaves = self.options.faults.has(FsFault::LeavePages);
        let all = leaves || self.free_content(tx, id, inode).await?;
        assert!(all, "only small inodes are removed at once");
        self.accessed.forget(id);
        self.free_xattrs(tx, inode).await?;
        tx.delete(id.page, id.slot, id.generation).await?;
        let room = tx.room(id.page).await?.unwrap_or(0);
        let mostly_empty = room + 2048 > self.store.page_bytes() as usize * 15 / 16;
        if mostly_empty && !self.inode_pages.is_current(id.page) {
            self.free_inode_page(tx, id.page).await?;
        }
        Ok(())
    }

    /// Frees an orphan that this node made one.
    pub(super) async fn reap(&self, id: InodeId) -> Result<(), FsError> {
        self.reap_unchanged(id, None).await.map(|_| ())
    }

    /// Frees one orphan, in as many transactions as it takes; or, if a time of change is given,
    /// only while it is that: another one says that a node holds it open. Every transaction looks
    /// at that, and whether it is an orphan at all, since each may see a state of its own. Says
    /// whether it was freed.
    pub(super) async fn reap_unchanged(
        &self,
        id: InodeId,
        since: Option<i64>,
    ) -> Result<bool, FsError> {
        let (mark, foreign) = (self.open_files.mark_dropping(id), since.is_some());
        if mark.is_none() {
            // Opened again meanwhile, by its number: freed at the last close.
            self.reap_later(id);
            return Ok(false);
        }
        if let Err(error) = self.may_remove() {
            if !foreign {
                self.reap_later(id);
            }
            return Err(error);
        }
        let taken = Taken::of_freeing(id, mark, foreign);
        let held = Held::new(&self.unsettled, taken);
        let freed = self.free_orphan(id, since).await;
        let taken = held.done();
        match &freed {
            // Nobody opens it before it is known.
            Err(FsError::Store(TxError::OutcomeUnknown)) => {
                lock(&self.unsettled).push(taken);
            }
            Err(error) if may_pass(error) && !foreign => self.reap_later(id),
            _ => {}
        }
        freed
    }

    async fn free_orphan(&self, id: InodeId, since: Option<i64>) -> Result<bool, FsError> {
        let trie = self.trie_of(self.root.orphans).await?;
        let name = orphan_name(id);
        loop {
            let done: Result<bool, FsError> = transact!(self, tx => {
                let mut inode = self.inode(&tx, id).await?;
                let (entry, _) = trie::find(&tx, trie, self.hash(&name), &name).await?;
                let held = since.is_some_and(|since| since != inode.ctime);
                if held || inode.links > 0 || entry.is_none_or(|entry| entry.id != id) {
                    return Err(FsError::NotFound);
                }
                if Self::is_small(&inode) {
                    trie::remove(&tx, trie, self.hash(&name), &name).await?;
                    self.remove_inode(&tx, id, &mut inode).await?;
                    Ok(true)
                } else {
                    self.free_content(&tx, id, &mut inode).await?;
                    self.put_inode(&tx, id, &inode).await?;
                    Ok(false)
                }
            });
            match done {
                Ok(true) => return Ok(true),
                // Another node was faster, or holds it.
                Err(FsError::NotFound) => return Ok(false),
                Ok(false) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Frees what waits to be freed, a few at a time, so that who removes many files is not far ahead;
    /// and pages of inodes that were filled here and are empty.
    pub async fn reap_waiting(&self) -> Result<(), FsError> {
        // What comes to wait anew meanwhile waits for the next time.
        let left = AtomicUsize::new(lock(&self.to_reap).len());
        let frees = || async {
            while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                let Some(id) = lock(&self.to_reap).pop_front() else { break };
                self.reap(id).await?;
            }
            Ok::<(), FsError>(())
        };
        let done = tokio::join!(frees(), frees(), frees(), frees(), frees(), frees());
        let freed = done.0.and(done.1).and(done.2).and(done.3).and(done.4).and(done.5);
        // Whatever became of those: one that cannot be freed must not keep empty pages for good.
        let left = self.free_left_pages().await;
        freed.and(left)
    }

    /// Files without a name and their sizes, of which some may be open on some node.
    pub async fn orphans(&self) -> Result<Vec<(InodeId, u64)>, FsError> {
        let found = self.orphan_inodes().await?;
        Ok(found.into_iter().map(|(id, inode)| (id, inode.size)).collect())
    }

    /// Frees files without a name of which no node has said for `age`, by the wall clock, that it
    /// holds them open: what crashed nodes left behind. Says how many.
    pub async fn reap_orphans(&self, age: Duration) -> Result<u64, FsError> {
        let age = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
        let now = self.store.now();
        let mut reaped = 0;
        for (id, inode) in self.orphan_inodes().await? {
            if inode.ctime < now.saturating_sub(age) && !self.open_files.is_open(id) {
                reaped += u64::from(self.reap_unchanged(id, Some(inode.ctime)).await?);
            }
        }
        Ok(reaped)
    }

    /// To be called every [`FsOptions::orphan_touch`](super::FsOptions): says of the files without
    /// a name that are open here that they are, and frees those of which no node has said so for
    /// `orphan_age`. Only this node's clock counts, so that no wrong one frees an open file. Says
    /// how many were freed.
    pub async fn tend_orphans(&self) -> Result<u64, FsError> {
        let mut touched = Ok(());
        for id in self.open_files.orphans() {
            match self.touch_orphan(id).await {
                // Freed by somebody who had not heard of this node for long.
                Ok(()) | Err(FsError::NotFound) => {}
                Err(error) if is_without_answer(&error) => return Err(error),
                // One that is damaged is not to have others freed.
                Err(error) => touched = touched.and(Err(error)),
            }
        }
        let found = self.orphan_inodes().await?;
        let frees = self.options.faults.has(FsFault::FreeHeldOrphan);
        let age = if frees { Duration::ZERO } else { self.options.orphan_age };
        let old = lock(&self.orphans_seen).look(&found, age, instant());
        let mut reaped = 0;
        for (id, ctime) in old {
            if !self.open_files.is_open(id) {
                reaped += u64::from(self.reap_unchanged(id, Some(ctime)).await?);
            }
        }
        touched.map(|()| reaped)
    }

    async fn touch_orphan(&self, id: InodeId) -> Result<(), FsError> {
        transact!(self, tx => {
            let mut inode = self.inode(&tx, id).await?;
            inode.ctime = self.store.now().max(inode.ctime.saturating_add(1));
            self.put_inode(&tx, id, &inode).await
        })
    }

    async fn orphan_inodes(&self) -> Result<Vec<(InodeId, Inode)>, FsError> {
        let trie = self.trie_of(self.root.orphans).await?;
        transact!(self, tx => {
            let entries = trie::list(self, &tx, trie, &Position::default(), usize::MAX).await?;
            let mut found = Vec::new();
            for (_, _, entry) in entries {
                match self.inode(&tx, entry.id).await {
                    Ok(inode) => found.push((entry.id, inode)),
                    // `check` tells of it.
                    Err(FsError::NotFound | FsError::Damaged(_)) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(found)
        })
    }
}

/// Files without a name as this node saw them last: the time each was last said to be open, and
/// since when that has not changed. Bounded by what the volume holds of them.
#[derive(Default)]
pub(super) struct OrphansSeen {
    seen: BTreeMap<InodeId, (i64, Instant)>,
}

impl OrphansSeen {
    /// Takes what is there now; gives those that have not changed for `age`.
    fn look(
        &mut self,
        found: &[(InodeId, Inode)],
        age: Duration,
        now: Instant,
    ) -> Vec<(InodeId, i64)> {
        let before = std::mem::take(&mut self.seen);
        let mut old = Vec::new();
        for (id, inode) in found {
            let since = match before.get(id) {
                Some((ctime, since)) if *ctime == inode.ctime => *since,
                _ => now,
            };
            if now.saturating_duration_since(since) >= age && before.contains_key(id) {
                old.push((*id, inode.ctime));
            }
            self.seen.insert(*id, (inode.ctime, since));
        }
        old
    }
}
