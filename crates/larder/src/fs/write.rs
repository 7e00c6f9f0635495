//! Writing: bytes gather per file on this node and are committed at fsync, close, when there are
//! many, or when they are old; every handle of the node reads through them.
//!
//! A write is kept only when there is room for it, in its file's share and in the node's: while
//! nothing can be committed, writers are refused within their time limit, and what was refused is
//! never committed later. A commit that fails for want of an answer leaves its bytes to be tried
//! again until the last handle goes; one that can never succeed loses those bytes alone, and every
//! handle of the file is told so once, at its next fsync or close. Before bytes are tried again it
//! is found out whether they had been committed after all: others may have written over them since.

use super::caller::Callers;
use super::content::Piece;
use super::dirty::{Attempt, COMMIT_BYTES, Span, Verdict, Waiting, cost_max};
use super::open::{Forget, Handle, OpenFile, OpenState};
use super::record::InodeId;
use super::tx::{Tx, TxError};
use super::{FileSystem, FsError, FsFault, TxStore, lock, transact};
use crate::clock::{instant, timeout};
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
        let end = offset.checked_add(bytes.len() as u64);
        if end.is_none_or(|end| end > self.file_bytes_max()) {
            return Err(FsError::TooLarge);
        }
        self.store.standing()?;
        self.locks.check(handle.id())?;
        self.locks.check_callers()?;
        let mut done = 0;
        while done < bytes.len() {
            let part = bytes.slice(done..bytes.len().min(done + COMMIT_BYTES));
            let (at, length) = (offset + done as u64, part.len());
            // Given up before it is kept, or not at all: nothing waits once it is.
            let keeping = self.keep_when_there_is_room(handle, at, part);
            match timeout(self.options.write_limit, keeping).await {
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
                Kept::FileFull => self.write_back(handle.file()).await?,
                Kept::NodeFull => {
                    if !self.make_room().await? {
                        freed.await;
                    }
                }
            }
        }
    }

    fn keep(&self, handle: &Handle, offset: u64, bytes: &Bytes) -> Result<Kept, FsError> {
        let (_, mut state) = handle.locked();
        if state.forgotten {
            return Err(FsError::Invalid("the file was closed"));
        }
        if state.never_was {
            return Err(FsError::NotFound);
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
        state.writers.add(&Callers::current());
        // Less than was taken where it lies over what was there.
        self.open_files.room.give_back(most + before - state.dirty.cost());
        Ok(Kept::Yes)
    }

    /// Commits a file, the one written to longest ago for which it can be done; says whether
    /// there was any.
    async fn make_room(&self) -> Result<bool, FsError> {
        let mut first = None;
        for file in self.dirty_by_age() {
            match self.write_back(&file).await {
                Ok(()) => return Ok(true),
                Err(error) => first = first.or(Some(error)),
            }
        }
        first.map_or(Ok(false), Err)
    }

    /// Files in which something waits, the oldest first; those whose last commit did not succeed,
    /// or is under way, come last.
    fn dirty_by_age(&self) -> Vec<Arc<OpenFile>> {
        let age = |file: &Arc<OpenFile>| {
            let state = lock(&file.state);
            Some((state.troubled, state.dirty.since?))
        };
        let dirty = self.open_files.all().into_iter().filter_map(|file| Some((age(&file)?, file)));
        let mut dirty: Vec<_> = dirty.collect();
        dirty.sort_by_key(|(age, _)| *age);
        dirty.into_iter().map(|(_, file)| file).collect()
    }

    /// Commits what was written to the file, by any handle of this node, and tells what was lost
    /// of it since this handle was told last.
    pub async fn flush(&self, handle: &Handle) -> Result<(), FsError> {
        if self.options.faults.has(FsFault::SyncLate)
            && let Some(told) = self.close_late(handle)
        {
            return told;
        }
        let waits = handle.locked().1.waits();
        let file = handle.file().clone();
        let mut result = self.write_back(&file).await;
        if file.became.get().is_some() && result.is_ok() {
            // While it was waited for.
            result = self.write_back(handle.file()).await;
        }
        if waits && result.is_ok() {
            self.closes_stand();
        }
        self.tell(handle, result)
    }

    /// What was lost of a file since a handle was told last.
    pub(super) fn told(&self, handle: &Handle) -> Result<(), FsError> {
        self.tell(handle, Ok(()))
    }

    fn tell(&self, handle: &Handle, result: Result<(), FsError>) -> Result<(), FsError> {
        let lost = handle.locked().1.lost.tell(&mut lock(&handle.told));
        lost.map_or(result, Err)
    }

    /// Gives a handle back; with the last one what was written is committed or, if that fails,
    /// dropped, and a file without a name is removed. Once is enough; more do nothing.
    pub async fn release(&self, handle: &Handle) -> Result<(), FsError> {
        self.release_as(handle, true).await
    }

    /// The same where nobody hears of the result: what was lost is left to be told to others.
    pub async fn release_unheard(&self, handle: &Handle) -> Result<(), FsError> {
        self.release_as(handle, false).await
    }

    async fn release_as(&self, handle: &Handle, heard: bool) -> Result<(), FsError> {
        if handle.locked().1.promised.is_some() {
            // In its turn. It is not held from here on, though that may take long.
            handle.give_back();
            self.after_closes().await;
        }
        self.release_now(handle, heard).await
    }

    /// The same, out of turn: for who commits what is closed.
    pub(super) async fn release_now(&self, handle: &Handle, heard: bool) -> Result<(), FsError> {
        let file = &handle.file().clone();
        let (result, reap) = {
            // Nobody commits older bytes after this, when the file may be open anew.
            let _ordered = file.commit.lock().await;
            let result =
                if lock(&file.state).orphan { Ok(()) } else { self.write_back_ordered(file).await };
            handle.give_back();
            let result = if heard { self.tell(handle, result) } else { result };
            let unheard = result.as_ref().err().filter(|_| !heard).cloned();
            let promised = lock(&file.state).promised.is_some();
            let forget = match &result {
                // Whoever closed it was told that all is well: it is tried again for a while.
                Err(error) if !heard && promised && may_pass(error) => Forget::IfCommitted,
                _ => Forget::Always(unheard),
            };
            let mut reap = self.open_files.forget_unheld(file, forget);
            if file.became.get().is_some() {
                // What waits there was promised, or waits for others.
                reap |= self.open_files.forget_unheld(handle.file(), Forget::IfCommitted);
            }
            (result, reap)
        };
        if reap {
            self.reap(handle.id()).await?;
        }
        result
    }

    /// Commits what waits in files written to more than `age` ago, and in files whose handles were
    /// dropped. A file that the store refuses does not stop the others; without an answer it stops,
    /// and the next time begins with the file after.
    pub async fn flush_aged(&self, age: Duration) {
        for file in self.open_files.all() {
            // One that is being committed is looked at by who does that.
            if let Ok(_ordered) = file.commit.try_lock() {
                self.give_up_dropped(&file);
            }
        }
        for file in self.open_files.in_turn() {
            let (since, held, orphan) = {
                let state = lock(&file.state);
                let made = state.creation.as_ref().map(|creation| creation.since);
                (made.or(state.dirty.since), state.handles > 0, state.orphan)
            };
            if held && since.is_none_or(|since| instant().saturating_duration_since(since) < age) {
                continue;
            }
            if orphan && !held {
                self.finish_dropped(&file).await;
                continue;
            }
            match self.write_back(&file).await {
                Ok(()) if held => {}
                Ok(()) => self.finish_dropped(&file).await,
                Err(error) if is_without_answer(&error) || self.is_cut_off() => {
                    self.open_files.stopped_at(file.id);
                    return;
                }
                Err(error) => {
                    tracing::debug!(inode = %file.id, %error, "cannot be committed at present");
                }
            }
        }
    }

    /// Commits all that waits, in files whose handles were dropped as well: for the end. An error
    /// says that some of it could not be committed, or was lost before and nobody was told.
    pub async fn flush_all(&self) -> Result<(), FsError> {
        let mut result = Ok(());
        for file in self.open_files.all() {
            if lock(&file.state).orphan {
                // Of one that was closed before it was known to have no name nothing is written any more: it is
                // to be freed (bug 166).
                self.finish_dropped(&file).await;
                continue;
            }
            let written = self.write_back(&file).await;
            let (held, lost) = {
                let state = lock(&file.state);
                (state.handles > 0, state.lost.untold().cloned())
            };
            result = result.and(written.clone()).and(lost.map_or(Ok(()), Err));
            match written {
                Ok(()) if held => {}
                Ok(()) => self.finish_dropped(&file).await,
                Err(error) if is_without_answer(&error) || self.is_cut_off() => break,
                Err(_) => {}
            }
        }
        result = result.and(self.open_files.untold().map_or(Ok(()), Err));
        for file in self.open_files.all() {
            let state = lock(&file.state);
            if state.waits() && !state.orphan {
                let bytes = state.dirty.bytes();
                tracing::warn!(inode = %file.id, bytes, "what was written could not be committed");
            }
        }
        result
    }

    /// Ends a file whose last handle was dropped, unless something waits there again.
    pub(super) async fn finish_dropped(&self, file: &OpenFile) {
        let reap = {
            let _ordered = file.commit.lock().await;
            self.open_files.forget_unheld(file, Forget::IfCommitted)
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

    /// Commits all that waits in a file at this moment, not what comes meanwhile. What can never be
    /// committed is noted as lost; an error says that the rest may still succeed, and waits.
    pub(super) async fn write_back(&self, file: &OpenFile) -> Result<(), FsError> {
        let _ordered = file.commit.lock().await;
        self.write_back_ordered(file).await
    }

    /// The same, with the file's order of commits held.
    pub(super) async fn write_back_ordered(&self, file: &OpenFile) -> Result<(), FsError> {
        self.give_up_dropped(file);
        self.make_late(file).await?;
        self.settle_attempt(file).await?;
        let waiting = lock(&file.state).dirty.waiting();
        for batch in &waiting.batches {
            lock(&file.state).troubled = true;
            let forgets = self.options.faults.has(FsFault::ForgetUncommitted);
            let lost = match self.commit_batch(file, batch, &waiting).await {
                Ok(true) => None,
                Ok(false) => Some(TxError::TimedOut.into()),
                Err(_) if forgets => None,
                Err(error) if may_pass(&error) => return Err(error),
                Err(error) => Some(error),
            };
            self.forget_dirty(file, &waiting.span(batch), lost);
        }
        Ok(())
    }

    /// Says whether it was done: not where it is late, and others wrote to the file later.
    async fn commit_batch(
        &self,
        file: &OpenFile,
        batch: &[Piece],
        of: &Waiting,
    ) -> Result<bool, FsError> {
        let id = file.id;
        let (writers, late) = {
            let state = lock(&file.state);
            (state.writers.clone(), self.is_late(&state))
        };
        let note = |attempt| lock(&file.state).attempt = attempt;
        let work = async {
            transact!(self, tx => {
                note(None);
                if late && self.inode(&tx, id).await?.mtime > of.modified {
                    return Ok(false);
                }
                let before = self.write_batch(&tx, id, batch, of.modified).await?;
                // From here on it may be done, also when nobody waits for it any more.
                note(Some(Attempt { span: of.span(batch), before, modified: of.modified }));
                Ok(true)
            })
        };
        // A lock that one of them lost is the loss of what they wrote.
        let result = writers.doing(work).await;
        if result != Err(TxError::OutcomeUnknown.into()) {
            note(None);
        }
        result
    }

    /// Puts bytes into a file in a transaction; gives the count of updates that it had before.
    pub(super) async fn write_batch(
        &self,
        tx: &S::Tx,
        id: InodeId,
        batch: &[Piece],
        modified: i64,
    ) -> Result<u32, FsError> {
        let mut inode = self.inode(tx, id).await?;
        let before = inode.change;
        let last = batch.len().saturating_sub(1);
        let skipped = if self.options.faults.has(FsFault::CommitLastPiece) { last } else { 0 };
        let batch = &batch[skipped..];
        self.locks.check(id)?;
        self.write_content(tx, id, &mut inode, batch).await?;
        inode.mtime = modified;
        inode.ctime = inode.ctime.max(modified);
        self.put_inode(tx, id, &inode).await?;
        Ok(before)
    }

    /// Finds out what became of a commit without an answer, so that its bytes are not committed
    /// again over what others wrote after it. One that may still come is kept from being done, by a
    /// change of the inode.
    async fn settle_attempt(&self, file: &OpenFile) -> Result<(), FsError> {
        if self.options.faults.has(FsFault::AgainUnseen) {
            lock(&file.state).attempt = None;
        }
        let Some(attempt) = lock(&file.state).attempt else { return Ok(()) };
        let settling = async {
            transact!(self, tx => {
                let mut inode = self.inode(&tx, file.id).await?;
                let verdict = attempt.verdict(&inode);
                if verdict == Verdict::NotYet {
                    inode.ctime = self.store.now().max(inode.ctime.saturating_add(1));
                    self.put_inode(&tx, file.id, &inode).await?;
                }
                Ok(verdict)
            })
        };
        // Whoever asks: it is a fact of the file.
        let verdict: Result<Verdict, FsError> = Callers::default().doing(settling).await;
        let done = self.options.faults.has(FsFault::UnknownIsDone);
        match verdict.map(|verdict| if done { Verdict::Done } else { verdict }) {
            Ok(Verdict::Done) => self.forget_dirty(file, &attempt.span, None),
            Ok(Verdict::Unclear) => {
                self.forget_dirty(file, &attempt.span, Some(TxError::OutcomeUnknown.into()));
            }
            Ok(Verdict::NotYet | Verdict::Again) => {}
            Err(error) if may_pass(&error) => return Err(error),
            // The bytes' own commit meets the same.
            Err(_) => {}
        }
        lock(&file.state).attempt = None;
        Ok(())
    }

    /// Forgets bytes that were committed, or that are lost by an error.
    pub(super) fn forget_dirty(&self, file: &OpenFile, span: &Span, lost: Option<FsError>) {
        self.open_files.settle();
        let mut state = lock(&file.state);
        state.troubled = false;
        let (cost, bytes) = (state.dirty.cost(), state.dirty.bytes());
        state.dirty.forget(span);
        if !state.waits() {
            state.writers = Callers::default();
            state.promised = None;
        }
        self.open_files.room.give_back(cost - state.dirty.cost());
        let bytes = bytes - state.dirty.bytes();
        if let Some(error) = lost {
            self.closes_wait();
            tracing::error!(inode = %file.id, bytes, %error, "what was written is lost");
            state.lost.note(error);
            drop(state);
            self.open_files.tell_lost(file.id, bytes);
        }
    }

    /// Whether nobody has held a file for [`FsOptions::dropped_age`], by a clock that never stands: others
    /// may have written to it meanwhile.
    ///
    /// [`FsOptions::dropped_age`]: super::FsOptions::dropped_age
    pub(super) fn is_late(&self, state: &OpenState) -> bool {
        let at = self.open_files.awake.look().at;
        state.unheld_since.is_some_and(|since| at.since(since.at) >= self.options.dropped_age)
    }

    /// Drops what waits in a file that nobody has held for [`FsOptions::dropped_age`]: committed
    /// so much later it would go over what others wrote meanwhile. Time in which nothing could be tried,
    /// since the machine slept, does not count.
    ///
    /// [`FsOptions::dropped_age`]: super::FsOptions::dropped_age
    fn give_up_dropped(&self, file: &OpenFile) {
        let awake = self.open_files.awake.look().awake;
        let mut state = lock(&file.state);
        let age = state.unheld_since.map(|since| awake.saturating_sub(since.awake));
        if age.is_none_or(|age| age < self.options.dropped_age) || !state.waits() || state.orphan {
            return;
        }
        let (cost, bytes) = (state.dirty.cost(), state.dirty.bytes());
        state.dirty.clear();
        state.writers = Callers::default();
        (state.attempt, state.troubled, state.promised) = (None, false, None);
        let made = state.creation.is_some();
        state.never_was |= made;
        self.open_files.room.give_back(cost);
        tracing::error!(
            inode = %file.id, bytes, ?age,
            "what was written is lost: nobody has the file open, and it could not be committed"
        );
        state.lost.note(TxError::TimedOut.into());
        drop(state);
        if made {
            self.open_files.end_creation(file);
        }
        self.open_files.tell_lost(file.id, bytes);
    }
}

/// Whether nothing at all may get an answer at present, after a wait each.
pub(super) fn is_without_answer(error: &FsError) -> bool {
    use TxError::{OutcomeUnknown, Stale, TimedOut};
    matches!(error, FsError::Store(TimedOut | OutcomeUnknown | Stale(_)))
}

/// Whether the same commit may succeed later.
pub(super) fn may_pass(error: &FsError) -> bool {
    matches!(
        error,
        FsError::Store(
            TxError::TimedOut
                | TxError::OutcomeUnknown
                | TxError::Stale(_)
                | TxError::Unavailable(_)
                | TxError::NoSpace(_)
                | TxError::Quota(_)
                | TxError::NoRight(_)
                | TxError::Conflict(_)
        )
    )
}
