//! Closes that do not wait: what was written to closed files is committed in the order in which
//! they were closed, many files in one transaction (`docs/decisions/0017-late-commits.md`).

use super::caller::Callers;
use super::dirty::{Attempt, COMMIT_BYTES, Waiting};
use super::late::Creation;
use super::open::{Forget, Handle, OpenFile, OpenState};
use super::record::InodeId;
use super::tx::{Tx, TxError};
use super::write::is_without_answer;
use super::{FileSystem, FsError, TxStore, lock, transact};
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Notify;

/// Files committed in one transaction.
const TOGETHER_MAX: usize = if cfg!(test) { 4 } else { 128 };
/// Closed files that wait; the next one that is closed waits for its commit.
const QUEUE_MAX: usize = 1024;
/// So much must be free beyond what waits, or else closes wait: who writes into a volume that is
/// nearly full is told by the close.
const FREE_MIN: u64 = 64 << 20;

/// Files that were closed and wait for their commit.
pub(super) struct Closes {
    queue: Mutex<Queue>,
    wake: Notify,
    /// More of those that came were looked after.
    went_on: Notify,
    /// The last commit of closed files did not succeed.
    troubled: AtomicBool,
    /// Files that wait though somebody who closed them was told that all is well.
    promises: Arc<AtomicUsize>,
    /// Somebody commits what is closed.
    runs: AtomicBool,
}

#[derive(Default)]
struct Queue {
    files: VecDeque<Arc<OpenFile>>,
    /// How many came.
    came: u64,
    /// How many of them were looked after.
    done: u64,
}

impl Default for Closes {
    fn default() -> Self {
        Self {
            queue: Mutex::default(),
            wake: Notify::new(),
            went_on: Notify::new(),
            troubled: AtomicBool::new(false),
            promises: Arc::default(),
            runs: AtomicBool::new(false),
        }
    }
}

impl Closes {
    fn promise(&self, state: &mut OpenState) {
        state.promised.get_or_insert_with(|| {
            self.promises.fetch_add(1, Ordering::SeqCst);
            Promise(self.promises.clone())
        });
    }

    /// Adds files at the end; false: nobody commits what is closed.
    fn add(&self, files: impl IntoIterator<Item = Arc<OpenFile>>) -> bool {
        let mut queue = lock(&self.queue);
        if !self.runs.load(Ordering::SeqCst) {
            return false;
        }
        let before = queue.files.len();
        queue.files.extend(files);
        queue.came += (queue.files.len() - before) as u64;
        drop(queue);
        self.wake.notify_one();
        true
    }
}

/// What was promised of a file, for as long as that waits: counted.
pub(super) struct Promise(Arc<AtomicUsize>);

impl Drop for Promise {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// One file of a transaction.
struct Part<'a> {
    file: &'a OpenFile,
    /// Nobody else commits it meanwhile.
    _ordered: tokio::sync::MutexGuard<'a, ()>,
    creation: Option<Creation>,
    waiting: Waiting,
}

impl Part<'_> {
    fn note(&self, attempt: Option<Attempt>) {
        lock(&self.file.state).attempt = attempt;
    }
}

impl<S: TxStore> FileSystem<S> {
    /// Whether a commit may be promised: it will succeed by all that is known here.
    pub(super) fn is_well(&self) -> bool {
        let closes = &self.closes;
        let waiting = self.waiting_bytes();
        // Asks now and then, for those that come after this.
        self.store.look_at_room();
        let free = self.store.free_seen();
        closes.runs.load(Ordering::SeqCst)
            && !closes.troubled.load(Ordering::Relaxed)
            && self.store.current_for().is_none_or(|left| !left.is_zero())
            && free.is_none_or(|free| free >= FREE_MIN + waiting as u64)
            && waiting <= self.options.dirty_total_max / 2
            && lock(&closes.queue).files.len() < QUEUE_MAX
    }

    /// Closes a file without waiting for the commit of what was written to it, and tells what was
    /// lost of it before; none: that is not to be had, and [`Self::flush`] is to be asked.
    pub fn close_late(&self, handle: &Handle) -> Option<Result<(), FsError>> {
        {
            let (_, mut state) = handle.locked();
            // One that is troubled is being committed, or could not be.
            let lost = self.locks.check(handle.id()).is_err();
            if state.orphan || state.never_was || state.troubled || lost || !self.is_well() {
                return None;
            }
            if !state.waits() {
                drop(state);
                return Some(self.told(handle));
            }
            self.closes.promise(&mut state);
        }
        self.closes.add([handle.file().clone()]).then(|| self.told(handle))
    }

    /// A file was closed, and nobody waits to be told anything: what was written to it is committed
    /// in its turn, and tried again while that cannot be.
    pub fn close_unheard(&self, id: InodeId) {
        let Some(file) = self.open_files.get(id) else { return };
        {
            let mut state = lock(&file.state);
            if state.orphan || state.never_was || !state.waits() {
                return;
            }
            self.closes.promise(&mut state);
        }
        self.closes.add([file]);
    }

    /// The same for whatever was written: any of it may have been closed.
    pub fn close_all_unheard(&self) {
        self.open_files.all().into_iter().for_each(|file| self.close_unheard(file.id));
    }

    /// Whether anything that was written or made waits for its commit.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        self.waiting_bytes() > 0 || !self.open_files.has_no_creations()
    }

    /// Whether a write is to be committed before it is acknowledged, since nobody may hear of a loss
    /// later: closed files could not be committed, though the line stands, or there is little room.
    #[must_use]
    pub fn writes_through(&self) -> bool {
        let closes = &self.closes;
        // What is not known because nobody asked lately is known soon.
        self.store.look_at_room();
        let little = || {
            let free = self.store.free_seen();
            free.is_some_and(|free| free < FREE_MIN + self.waiting_bytes() as u64)
        };
        let refused = closes.troubled.load(Ordering::Relaxed);
        !self.is_cut_off() && (refused || lock(&closes.queue).files.len() >= QUEUE_MAX || little())
    }

    /// Has files committed together, in their turn, and waits for it; false: nobody does that.
    pub(super) async fn commit_in_turn(&self, files: Vec<Arc<OpenFile>>) -> bool {
        let added = self.closes.add(files);
        if added {
            self.after_closes().await;
        }
        added
    }

    /// Commits what a close promised and could not be committed yet: before something is done that
    /// lets others in, such as the release of a lock. Whether anything else was committed since says
    /// nothing of it.
    pub(super) async fn keep_promises(&self) -> Result<(), FsError> {
        self.after_closes().await;
        if self.closes.promises.load(Ordering::SeqCst) == 0 {
            return Ok(());
        }
        for file in self.open_files.all() {
            let promised = {
                let state = lock(&file.state);
                state.promised.is_some() && state.waits()
            };
            if promised {
                self.write_back(&file).await?;
            }
        }
        Ok(())
    }

    /// Waits until an attempt was made to commit what was closed here before: what is done after it
    /// is seen after it.
    pub async fn after_closes(&self) {
        let came = lock(&self.closes.queue).came;
        loop {
            let mut went_on = pin!(self.closes.went_on.notified());
            // From here on it is heard.
            went_on.as_mut().enable();
            if lock(&self.closes.queue).done >= came {
                return;
            }
            went_on.await;
        }
    }

    /// Commits closed files for as long as it is polled: by one task at a time.
    pub async fn commit_closed(&self) {
        struct Runs<'a>(&'a Closes);
        impl Drop for Runs<'_> {
            fn drop(&mut self) {
                let mut queue = lock(&self.0.queue);
                self.0.runs.store(false, Ordering::SeqCst);
                queue.files.clear();
                // Nobody waits for what nobody does.
                queue.done = queue.came;
                self.0.went_on.notify_waiters();
            }
        }
        let closes = &self.closes;
        closes.runs.store(true, Ordering::SeqCst);
        let _runs = Runs(closes);
        loop {
            let woken = closes.wake.notified();
            let files: Vec<_> = {
                let mut queue = lock(&closes.queue);
                let most = queue.files.len().min(TOGETHER_MAX);
                queue.files.drain(..most).collect()
            };
            if files.is_empty() {
                woken.await;
                continue;
            }
            let committed = self.commit_in_order(&files).await;
            if committed.is_err() {
                self.closes_wait();
            }
            lock(&closes.queue).done += files.len() as u64;
            closes.went_on.notify_waiters();
        }
    }

    /// Something that was written is lost: closes wait, and tell, until something is committed.
    pub(super) fn closes_wait(&self) {
        self.closes.troubled.store(true, Ordering::Relaxed);
    }

    /// Something was committed: closes need not wait any more.
    pub(super) fn closes_stand(&self) {
        self.closes.troubled.store(false, Ordering::Relaxed);
    }

    /// Commits files in the order in which they were closed. An error says that some wait still.
    async fn commit_in_order(&self, files: &[Arc<OpenFile>]) -> Result<(), FsError> {
        let mut result = Ok(());
        let mut together = Vec::new();
        let mut bytes = 0;
        for file in files {
            let mut part = self.part(file);
            let more = part.as_ref().map_or(0, |part| bytes_of(&part.waiting));
            if part.is_none() || bytes + more > COMMIT_BYTES {
                // Not held meanwhile: one of them may turn out to be this file.
                part = None;
                result = result.and(self.commit_parts(std::mem::take(&mut together)).await);
                bytes = 0;
                if result.is_err() && self.is_cut_off() {
                    return result;
                }
                if more > 0 {
                    part = self.part(file);
                }
            }
            match part {
                Some(part) => {
                    bytes += more;
                    together.push(part);
                }
                None => result = result.and(self.commit_alone(file).await),
            }
        }
        result.and(self.commit_parts(together).await)
    }

    /// Nobody answers, and everything that waits for an answer waits for long.
    pub(super) fn is_cut_off(&self) -> bool {
        self.store.current_for().is_some_and(|left| left.is_zero())
    }

    /// A file as a part of a transaction; none: it is to be committed alone.
    fn part<'a>(&self, file: &'a OpenFile) -> Option<Part<'a>> {
        let ordered = file.commit.try_lock().ok()?;
        let mut state = lock(&file.state);
        if state.orphan || state.forgotten || state.attempt.is_some() || !state.waits() {
            return None;
        }
        if self.is_late(&state) {
            // It is looked whether others wrote to it meanwhile.
            return None;
        }
        let waiting = state.dirty.waiting();
        if waiting.batches.len() > 1 {
            return None;
        }
        state.troubled = true;
        if let Some(creation) = state.creation.as_mut() {
            creation.begun = true;
        }
        let creation = state.creation.clone();
        drop(state);
        Some(Part { file, _ordered: ordered, creation, waiting })
    }

    /// Commits files in one transaction; each alone if that does not succeed.
    async fn commit_parts(&self, parts: Vec<Part<'_>>) -> Result<(), FsError> {
        if parts.is_empty() {
            return Ok(());
        }
        let mut writers = Callers::default();
        for part in &parts {
            writers.add(&lock(&part.file.state).writers);
        }
        let committed = writers.doing(self.commit_together(&parts)).await;
        if committed != Err(TxError::OutcomeUnknown.into()) {
            parts.iter().for_each(|part| part.note(None));
        }
        if let Err(error) = &committed
            && (is_without_answer(error) || self.is_cut_off())
        {
            for Part { file, .. } in &parts {
                let mut state = lock(&file.state);
                let begun = state.attempt.is_some();
                if let Some(creation) = state.creation.as_mut() {
                    creation.begun = begun;
                }
            }
            tracing::debug!(%error, files = parts.len(), "closed files are not committed yet");
            return committed.map(drop);
        }
        if let Ok(moved) = &committed {
            for (Part { file, waiting, .. }, moved) in parts.iter().zip(moved) {
                let batch = waiting.batches.first().map_or(&[][..], |batch| &batch[..]);
                self.made(file, waiting, batch, *moved);
                self.forget_closed(file);
            }
            return Ok(());
        }
        // What is in the way of one is found there. None is held meanwhile: one of them may turn out
        // to be another of them.
        let files: Vec<&OpenFile> = parts.iter().map(|part| part.file).collect();
        drop(parts);
        let mut result = Ok(());
        for file in files {
            let of = self.commit_alone(file).await;
            if let Err(error) = &of {
                tracing::debug!(inode = %file.id, %error, "a closed file is not committed yet");
            }
            result = result.and(of);
            if result.is_err() && self.is_cut_off() {
                break;
            }
        }
        result
    }

    /// Says of each whether its name is kept elsewhere than was told.
    async fn commit_together(&self, parts: &[Part<'_>]) -> Result<Vec<bool>, FsError> {
        let batch_of = |part: &Part<'_>| part.waiting.batches.first().cloned().unwrap_or_default();
        transact!(self, tx => {
            let mut before = Vec::with_capacity(parts.len());
            let mut all_moved = Vec::with_capacity(parts.len());
            for part in parts {
                part.note(None);
                let (id, batch, modified) = (part.file.id, batch_of(part), part.waiting.modified);
                let (moved, count) = match &part.creation {
                    Some(creation) => {
                        (self.make_among(&tx, id, creation, (&batch, modified)).await?, 0)
                    }
                    None => (false, self.write_batch(&tx, id, &batch, modified).await?),
                };
                all_moved.push(moved);
                before.push(count);
            }
            // From here on it may be done.
            for (part, before) in parts.iter().zip(before) {
                let (span, modified) = (part.waiting.whole(), part.waiting.modified);
                part.note(Some(Attempt { span, before, modified }));
            }
            Ok(all_moved)
        })
    }

    async fn commit_alone(&self, file: &OpenFile) -> Result<(), FsError> {
        let _ordered = file.commit.lock().await;
        let result = self.write_back_ordered(file).await;
        self.forget_closed(file);
        result
    }

    fn forget_closed(&self, file: &OpenFile) {
        if self.open_files.forget_unheld(file, Forget::IfCommitted) {
            self.reap_later(file.id);
        }
    }
}

fn bytes_of(waiting: &Waiting) -> usize {
    waiting.batches.iter().flatten().map(|(_, bytes)| bytes.len()).sum()
}
