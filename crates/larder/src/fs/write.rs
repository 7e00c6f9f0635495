//! Writing: bytes gather per file on this node and are committed at fsync, close, when there are
//! many, or when they are old; every handle of the node reads through them.
//!
//! A write is kept only when there is room for it, in its file's share and in the node's: while
//! nothing can be committed, writers are refused within their time limit, and what was refused is
//! never committed later. A commit that fails for want of an answer leaves its bytes to be tried
//! again until the last handle goes; one that can never succeed loses those bytes alone, and every
//! handle of the file is told so once, at its next fsync or close.

use super::content::Piece;
use super::dirty::{COMMIT_BYTES, cost_max};
use super::open::{Handle, OpenFile};
use super::record::InodeId;
use super::tx::{Tx, TxError};
use super::{FileSystem, FsError, TxStore, lock, transact};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// What became of bytes that were to be kept.
enum Kept {
    Yes,
    /// The file has its share.
    FileFull,
    /// All files together have theirs.
    NodeFull,
}

impl<S: TxStore> FileSystem<S> {
    /// Writes: into the buffer. An error means that nothing of it was kept, but for the first
    /// parts of a write of more than 4 MiB.
    pub async fn write(&self, handle: &Handle, offset: u64, bytes: Bytes) -> Result<(), FsError> {
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(FsError::TooLarge);
        }
        self.store.standing()?;
        let mut done = 0;
        while done < bytes.len() {
            let part = bytes.slice(done..bytes.len().min(done + COMMIT_BYTES));
            let (at, length) = (offset + done as u64, part.len());
            // Given up before it is kept, or not at all: nothing waits once it is.
            let keeping = self.keep_when_there_is_room(handle, at, part);
            match tokio::time::timeout(self.options.write_limit, keeping).await {
                Ok(kept) => kept?,
                Err(_) => return Err(TxError::TimedOut.into()),
            }
            done += length;
        }
        Ok(())
    }

    async fn keep_when_there_is_room(
        &self,
        handle: &Handle,
        offset: u64,
        bytes: Bytes,
    ) -> Result<(), FsError> {
        loop {
            let freed = self.open_files.room.freed.notified();
            match self.keep(handle, offset, &bytes)? {
                Kept::Yes => return Ok(()),
                Kept::FileFull => self.write_back(&handle.file).await?,
                Kept::NodeFull => match self.oldest_dirty() {
                    Some(file) => self.write_back(&file).await?,
                    None => freed.await,
                },
            }
        }
    }

    fn keep(&self, handle: &Handle, offset: u64, bytes: &Bytes) -> Result<Kept, FsError> {
        let mut state = lock(&handle.file.state);
        if state.forgotten {
            return Err(FsError::Invalid("the file was closed"));
        }
        let before = state.dirty.cost();
        let most = cost_max(bytes.len());
        if before > 0 && before + most > self.options.dirty_bytes_max {
            return Ok(Kept::FileFull);
        }
        if !self.open_files.room.take(most) {
            return Ok(Kept::NodeFull);
        }
        state.dirty.put(offset, bytes.clone(), self.store.now());
        // Less than was taken where it lies over what was there.
        self.open_files.room.give_back(most + before - state.dirty.cost());
        Ok(Kept::Yes)
    }

    fn oldest_dirty(&self) -> Option<Arc<OpenFile>> {
        let since = |file: &Arc<OpenFile>| lock(&file.state).dirty.since;
        let dirty =
            self.open_files.all().into_iter().filter_map(|file| Some((since(&file)?, file)));
        dirty.min_by_key(|(since, _)| *since).map(|(_, file)| file)
    }

    /// Commits what was written to the file, by any handle of this node, and tells what was lost
    /// of it since this handle was told last.
    pub async fn flush(&self, handle: &Handle) -> Result<(), FsError> {
        let result = self.write_back(&handle.file).await;
        self.tell(handle, result)
    }

    fn tell(&self, handle: &Handle, result: Result<(), FsError>) -> Result<(), FsError> {
        let lost = lock(&handle.file.state).lost.tell(&mut lock(&handle.told));
        lost.map_or(result, Err)
    }

    /// Gives a handle back; with the last one what was written is committed or, if that fails,
    /// dropped, and a file without a name is removed. Once is enough; more do nothing.
    pub async fn release(&self, handle: &Handle) -> Result<(), FsError> {
        let file = &handle.file;
        let (result, reap) = {
            // Nobody commits older bytes after this, when the file may be open anew.
            let _ordered = file.commit.lock().await;
            let result =
                if lock(&file.state).orphan { Ok(()) } else { self.write_back_ordered(file).await };
            handle.give_back();
            (self.tell(handle, result), self.open_files.forget_unheld(file, false))
        };
        if reap {
            self.reap(handle.id()).await?;
        }
        result
    }

    /// Commits what waits in files written to more than `age` ago, and in files whose handles were
    /// dropped. Stops where nothing can be committed at present.
    pub async fn flush_aged(&self, age: Duration) {
        for file in self.open_files.all() {
            let (since, held) = {
                let state = lock(&file.state);
                (state.dirty.since, state.handles > 0)
            };
            if held && since.is_none_or(|since| since.elapsed() < age) {
                continue;
            }
            let result = self.write_back(&file).await;
            if let Err(FsError::Store(
                TxError::TimedOut
                | TxError::OutcomeUnknown
                | TxError::Stale(_)
                | TxError::Unavailable(_)
                | TxError::NoSpace(_),
            )) = result
            {
                return;
            }
            if !held {
                self.finish_dropped(&file).await;
            }
        }
    }

    /// Ends a file whose last handle was dropped.
    async fn finish_dropped(&self, file: &OpenFile) {
        let reap = {
            let _ordered = file.commit.lock().await;
            self.open_files.forget_unheld(file, false)
        };
        if reap {
            self.reap_later(file.id);
        }
    }

    /// Commits what waits in a file that may be open, so that a transaction sees it.
    pub(super) async fn flush_id(&self, id: InodeId) -> Result<(), FsError> {
        match self.open_files.get(id) {
            Some(file) => self.write_back(&file).await,
            None => Ok(()),
        }
    }

    /// Commits all that waits in a file. What can never be committed is noted as lost; an error
    /// says that the rest may still succeed, and waits.
    async fn write_back(&self, file: &OpenFile) -> Result<(), FsError> {
        let _ordered = file.commit.lock().await;
        self.write_back_ordered(file).await
    }

    /// The same, with the file's order of commits held.
    async fn write_back_ordered(&self, file: &OpenFile) -> Result<(), FsError> {
        loop {
            let ((batch, sequence), modified) = {
                let state = lock(&file.state);
                (state.dirty.batch(), state.dirty.modified)
            };
            if batch.is_empty() {
                return Ok(());
            }
            let result = self.commit_batch(file.id, &batch, modified).await;
            if let Err(error) = &result
                && may_pass(error)
            {
                return result;
            }
            let mut state = lock(&file.state);
            let before = state.dirty.cost();
            state.dirty.forget(&batch, sequence);
            self.open_files.room.give_back(before - state.dirty.cost());
            if let Err(error) = result {
                let bytes: usize = batch.iter().map(|(_, bytes)| bytes.len()).sum();
                tracing::error!(inode = %file.id, bytes, %error, "what was written is lost");
                state.lost.note(error);
            }
        }
    }

    async fn commit_batch(
        &self,
        id: InodeId,
        batch: &[Piece],
        modified: i64,
    ) -> Result<(), FsError> {
        transact!(self, tx => {
            let mut inode = self.inode(&tx, id).await?;
            self.write_content(&tx, id, &mut inode, batch).await?;
            inode.mtime = modified;
            inode.ctime = inode.ctime.max(modified);
            self.put_inode(&tx, id, &inode).await
        })
    }
}

/// Whether the same commit may succeed later.
fn may_pass(error: &FsError) -> bool {
    matches!(
        error,
        FsError::Store(
            TxError::TimedOut
                | TxError::OutcomeUnknown
                | TxError::Stale(_)
                | TxError::Unavailable(_)
                | TxError::NoSpace(_)
                | TxError::Conflict(_)
        )
    )
}
