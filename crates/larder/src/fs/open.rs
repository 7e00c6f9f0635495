//! Open files: what was written and not yet committed, and reading ahead.
//!
//! Writes gather per file on this node and are committed at fsync, close, when there are many, or
//! when they are old; every handle of the node reads through them. A commit that fails for good is
//! reported at the next fsync or close of each handle's file, and the bytes are dropped; one that
//! fails because the origin cannot be reached is reported too, and the bytes are kept and tried
//! again until the last handle goes.

use super::content::Piece;
use super::record::{Inode, InodeId, Kind};
use super::tx::TxError;
use super::{Attr, FileSystem, FsError, TxStore, lock, transact};
use crate::fs::Tx;
use bytes::{Bytes, BytesMut};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes committed in one transaction.
const COMMIT_BYTES: usize = 4 << 20;
/// First step of reading ahead.
const READ_AHEAD_FIRST: u64 = 128 << 10;

/// The files that this node holds open.
#[derive(Default)]
pub(super) struct OpenFiles {
    files: Mutex<BTreeMap<InodeId, Arc<OpenFile>>>,
}

impl OpenFiles {
    pub(super) fn is_open(&self, id: InodeId) -> bool {
        lock(&self.files).contains_key(&id)
    }

    fn get(&self, id: InodeId) -> Option<Arc<OpenFile>> {
        lock(&self.files).get(&id).cloned()
    }

    /// Says that the file has lost its last name; false: it is not open, nobody keeps it.
    pub(super) fn mark_orphan(&self, id: InodeId) -> bool {
        match self.get(id) {
            Some(file) => {
                lock(&file.state).orphan = true;
                true
            }
            None => false,
        }
    }
}

struct OpenFile {
    id: InodeId,
    state: Mutex<OpenState>,
    /// Held while the file's writes are committed, so that they keep their order.
    commit: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct OpenState {
    handles: u32,
    dirty: Dirty,
    error: Option<FsError>,
    orphan: bool,
}

/// Bytes written and not yet committed: no two pieces overlap.
#[derive(Default)]
struct Dirty {
    pieces: BTreeMap<u64, (Bytes, u64)>,
    bytes: usize,
    /// Counts writes; every piece knows the write it came from.
    sequence: u64,
    since: Option<Instant>,
    modified: i64,
}

impl Dirty {
    fn end(&self) -> u64 {
        self.pieces.last_key_value().map_or(0, |(offset, (bytes, _))| offset + bytes.len() as u64)
    }

    fn put(&mut self, offset: u64, bytes: Bytes, now: i64) {
        self.cut(offset, offset + bytes.len() as u64);
        self.sequence += 1;
        self.bytes += bytes.len();
        self.pieces.insert(offset, (bytes, self.sequence));
        self.since.get_or_insert_with(Instant::now);
        self.modified = now;
    }

    /// Forgets what lies in `from .. to`.
    fn cut(&mut self, from: u64, to: u64) {
        let first = match self.pieces.range(..from).next_back() {
            Some((offset, (bytes, _))) if offset + bytes.len() as u64 > from => *offset,
            _ => from,
        };
        let hit: Vec<u64> = self.pieces.range(first..to).map(|(offset, _)| *offset).collect();
        for offset in hit {
            let (bytes, sequence) = self.pieces.remove(&offset).expect("just seen");
            self.bytes -= bytes.len();
            let end = offset + bytes.len() as u64;
            let mut keep = |at: u64, part: Bytes| {
                self.bytes += part.len();
                self.pieces.insert(at, (part, sequence));
            };
            if offset < from {
                keep(offset, bytes.slice(..(from - offset) as usize));
            }
            if end > to {
                keep(to, bytes.slice((to - offset) as usize..));
            }
        }
    }

    /// The next pieces to commit, with the count of writes they include.
    fn batch(&self) -> (Vec<Piece>, u64) {
        let mut bytes = 0;
        let mut batch = Vec::new();
        for (offset, (piece, _)) in &self.pieces {
            if bytes > 0 && bytes + piece.len() > COMMIT_BYTES {
                break;
            }
            bytes += piece.len();
            batch.push((*offset, piece.clone()));
        }
        (batch, self.sequence)
    }

    /// Forgets committed pieces, but nothing written over them since.
    fn committed(&mut self, batch: &[Piece], sequence: u64) {
        let (Some((from, _)), Some((last, bytes))) = (batch.first(), batch.last()) else {
            return;
        };
        let to = last + bytes.len() as u64;
        let done: Vec<u64> = self
            .pieces
            .range(*from..to)
            .filter(|(_, (_, written))| *written <= sequence)
            .map(|(offset, _)| *offset)
            .collect();
        for offset in done {
            if let Some((bytes, _)) = self.pieces.remove(&offset) {
                self.bytes -= bytes.len();
            }
        }
        if self.pieces.is_empty() {
            self.since = None;
        }
    }

    fn clear(&mut self) {
        self.pieces.clear();
        self.bytes = 0;
        self.since = None;
    }
}

/// An open file. Give it back with [`FileSystem::release`].
pub struct Handle {
    file: Arc<OpenFile>,
    ahead: Mutex<ReadAhead>,
    given_back: AtomicBool,
}

impl Handle {
    /// Which file.
    #[must_use]
    pub fn id(&self) -> InodeId {
        self.file.id
    }

    /// Bytes written and not yet committed.
    #[must_use]
    pub fn dirty_bytes(&self) -> usize {
        lock(&self.file.state).dirty.bytes
    }
}

/// Finds sequential readers and says what to ask for ahead of them.
#[derive(Default, Debug)]
pub struct ReadAhead {
    next: u64,
    window: u64,
    asked: u64,
}

impl ReadAhead {
    /// Notes a read of `offset .. offset + length`; gives the bytes to ask for now. The window
    /// starts at 128 KiB, doubles with every sequential read up to `window_max`, and is dropped
    /// by a jump.
    pub fn note(&mut self, offset: u64, length: u64, window_max: u64) -> std::ops::Range<u64> {
        let end = offset + length;
        if offset != self.next {
            (self.window, self.asked) = (0, 0);
        } else {
            self.window = (self.window * 2).clamp(READ_AHEAD_FIRST, window_max);
        }
        self.next = end;
        let until = end + self.window;
        let from = self.asked.max(end);
        // Asked in steps of half a window, so that requests are few and large.
        if until < from + self.window / 2 || until <= from {
            return 0..0;
        }
        self.asked = until;
        from..until
    }
}

impl<S: TxStore> FileSystem<S> {
    /// Opens a file.
    pub async fn open_file(&self, id: InodeId) -> Result<(Handle, Attr), FsError> {
        let handle = self.hold(id);
        match self.getattr(id).await {
            Ok(attr) if attr.inode.kind == Kind::Directory => {
                self.let_go(&handle);
                Err(FsError::IsDirectory)
            }
            Ok(attr) => Ok((handle, attr)),
            Err(error) => {
                self.let_go(&handle);
                Err(error)
            }
        }
    }

    /// Registers a handle.
    pub(super) fn hold(&self, id: InodeId) -> Handle {
        let mut files = lock(&self.open_files.files);
        let file = files.entry(id).or_insert_with(|| {
            Arc::new(OpenFile {
                id,
                state: Mutex::default(),
                commit: tokio::sync::Mutex::default(),
            })
        });
        lock(&file.state).handles += 1;
        Handle { file: file.clone(), ahead: Mutex::default(), given_back: AtomicBool::new(false) }
    }

    /// Unregisters a handle; says whether it was the last of a file without a name.
    fn let_go(&self, handle: &Handle) -> bool {
        if handle.given_back.swap(true, Ordering::Relaxed) {
            return false;
        }
        let mut files = lock(&self.open_files.files);
        let mut state = lock(&handle.file.state);
        state.handles -= 1;
        if state.handles > 0 {
            return false;
        }
        files.remove(&handle.id());
        state.orphan
    }

    /// Reads; fewer bytes at the end of the file.
    pub async fn read(
        &self,
        handle: &Handle,
        offset: u64,
        length: usize,
    ) -> Result<Bytes, FsError> {
        // The pieces are taken before the content is read: a commit between the two then shows
        // its bytes twice, never not at all.
        let (pieces, end) = {
            let state = lock(&handle.file.state);
            let pieces: Vec<Piece> = state
                .dirty
                .pieces
                .iter()
                .map(|(at, (bytes, _))| (*at, bytes.clone()))
                .filter(|(at, bytes)| {
                    *at < offset + length as u64 && at + bytes.len() as u64 > offset
                })
                .collect();
            (pieces, state.dirty.end())
        };
        let (inode, content) = self.read_committed(handle, offset, length).await?;
        if pieces.is_empty() && end <= inode.size {
            return Ok(content);
        }
        let size = inode.size.max(end).saturating_sub(offset);
        let length = usize::try_from(size).unwrap_or(usize::MAX).min(length);
        let mut out = BytesMut::from(&content[..]);
        out.resize(length, 0);
        for (at, bytes) in pieces {
            let from = at.max(offset);
            let to = (at + bytes.len() as u64).min(offset + length as u64);
            if from < to {
                out[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
            }
        }
        Ok(out.freeze())
    }

    async fn read_committed(
        &self,
        handle: &Handle,
        offset: u64,
        length: usize,
    ) -> Result<(Inode, Bytes), FsError> {
        let id = handle.id();
        let (inode, content) = transact!(self, tx => {
            let inode = self.inode(&tx, id).await?;
            let content = self.read_content(&tx, id, &inode, offset, length).await?;
            Ok((inode, content))
        })?;
        let ahead =
            lock(&handle.ahead).note(offset, length as u64, self.options.read_ahead_bytes_max);
        self.prefetch_content(&inode, ahead);
        Ok((inode, content))
    }

    /// Writes: into the buffer, and commits when that holds much.
    pub async fn write(&self, handle: &Handle, offset: u64, bytes: Bytes) -> Result<(), FsError> {
        if bytes.is_empty() {
            return Ok(());
        }
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(FsError::TooLarge);
        }
        let much = {
            let mut state = lock(&handle.file.state);
            state.dirty.put(offset, bytes, self.store.now());
            state.dirty.bytes >= self.options.dirty_bytes_max
        };
        if much {
            self.commit_writes(&handle.file).await?;
        }
        Ok(())
    }

    /// Commits what was written to the file, by any handle of this node, and reports what failed
    /// since the last report.
    pub async fn flush(&self, handle: &Handle) -> Result<(), FsError> {
        let result = self.commit_writes(&handle.file).await;
        let earlier = lock(&handle.file.state).error.take();
        match (earlier, result) {
            // What failed for want of an answer has been committed since.
            (Some(error), Ok(())) if may_pass(&error) => Ok(()),
            (Some(error), _) | (None, Err(error)) => Err(error),
            (None, Ok(())) => Ok(()),
        }
    }

    /// Gives a handle back; with the last one what was written is committed, and a file without a
    /// name is removed. Once is enough; more do nothing.
    pub async fn release(&self, handle: &Handle) -> Result<(), FsError> {
        let result =
            if lock(&handle.file.state).orphan { Ok(()) } else { self.flush(handle).await };
        if self.let_go(handle) {
            self.reap(handle.id()).await?;
        }
        result
    }

    /// Commits what waits in files written to more than `age` ago. Errors are kept for fsync and
    /// close.
    pub async fn flush_aged(&self, age: Duration) {
        let files: Vec<Arc<OpenFile>> = lock(&self.open_files.files).values().cloned().collect();
        for file in files {
            let since = lock(&file.state).dirty.since;
            if since.is_some_and(|since| since.elapsed() >= age)
                && let Err(error) = self.commit_writes(&file).await
            {
                lock(&file.state).error.get_or_insert(error);
            }
        }
    }

    /// Commits what waits in a file that may be open, so that a transaction sees it.
    pub(super) async fn flush_id(&self, id: InodeId) -> Result<(), FsError> {
        match self.open_files.get(id) {
            Some(file) => self.commit_writes(&file).await,
            None => Ok(()),
        }
    }

    /// Adds what waits for its commit to a file's attributes.
    pub(super) fn with_dirty(&self, mut attr: Attr) -> Attr {
        if let Some(file) = self.open_files.get(attr.id) {
            let state = lock(&file.state);
            if !state.dirty.pieces.is_empty() {
                attr.inode.size = attr.inode.size.max(state.dirty.end());
                attr.inode.mtime = attr.inode.mtime.max(state.dirty.modified);
                attr.inode.ctime = attr.inode.ctime.max(state.dirty.modified);
            }
        }
        attr
    }

    async fn commit_writes(&self, file: &OpenFile) -> Result<(), FsError> {
        let _ordered = file.commit.lock().await;
        loop {
            let ((batch, sequence), modified) = {
                let state = lock(&file.state);
                (state.dirty.batch(), state.dirty.modified)
            };
            if batch.is_empty() {
                return Ok(());
            }
            match self.commit_batch(file.id, &batch, modified).await {
                Ok(()) => lock(&file.state).dirty.committed(&batch, sequence),
                Err(error) => {
                    if !may_pass(&error) {
                        lock(&file.state).dirty.clear();
                    }
                    return Err(error);
                }
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
                | TxError::Conflict(_)
        )
    )
}
