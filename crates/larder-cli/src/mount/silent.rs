//! Opens without a message, at a mount that follows
//! (`docs/decisions/0018-opens-without-a-message.md`).
//!
//! An `open` that is answered `ENOSYS` is the last that the kernel sends, and so is such a `flush`:
//! it opens and closes files by itself from then on, and names them in what it asks by their inode
//! alone. The stream takes back what it keeps, as at any mount that follows.
//!
//! What opens and closes told is known in other ways then. *Closes* of files that were written are
//! heard of beside the connection ([`super::heard`]). *A file that is removed here* may be open as
//! long as the kernel refers to its inode, and keeps its content until then. *Locks* go when what
//! holds them does ([`super::holders`]).
//!
//! A file that is replaced elsewhere just before the kernel hears of it is opened all the same, and
//! a read of what the kernel did not keep of it fails with `ESTALE`.

use super::adapter::{Answer, failed_there};
use super::fresh::Consistency;
use super::heard::{Closed, Ear, Heard};
use super::known::ROOT;
use super::{MountOptions, Shared};
use bytes::Bytes;
use fuser::{FileHandle, INodeNo};
use larder::fs::{Attr, FsError, Handle, InodeId, Place, TxStore};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The handle of a file that was opened without a message.
pub(super) const SILENT: FileHandle = FileHandle(0);
/// Files of which is known where they are read; beyond it all are forgotten.
const READERS_MAX: usize = 256;
/// The number of the file that is opened once, so that the kernel learns not to ask.
pub(super) const PROBE: INodeNo = INodeNo(u64::MAX - 1);

/// Files that are read and written by inode.
pub(super) struct Silent {
    begun: AtomicBool,
    /// Hears of closes; none: files that may be written are opened by a message.
    pub(super) heard: Option<Arc<Heard>>,
    /// A name that nobody else knows, in the root directory.
    probe: String,
    readers: Mutex<HashMap<u64, Arc<Handle>>>,
    /// Those that were written, or made, and that were not heard to be closed since.
    writers: Mutex<HashMap<u64, Arc<Handle>>>,
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("holders of this lock do not panic")
}

impl Silent {
    /// With an ear that hears of closes, if there is one.
    pub(super) fn new(hears: bool) -> io::Result<Self> {
        let heard = if hears { Some(Arc::new(Heard::new()?)) } else { None };
        let mut random = [0; 8];
        getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Self {
            begun: AtomicBool::new(false),
            heard,
            probe: format!(".larder-opens-{:016x}", u64::from_ne_bytes(random)),
            readers: Mutex::default(),
            writers: Mutex::default(),
        })
    }

    /// Whether a mount may be one whose closes are heard of beside its connection.
    pub(super) fn may_hear(options: &MountOptions) -> bool {
        let follows = options.consistency == Consistency::Follow;
        options.silent_opens && follows && !options.wait_commits && !options.read_only
    }

    /// Begins, where it may be done and the kernel can do it.
    pub(super) fn begin(&self, options: &MountOptions, kernel_can: bool) {
        let reads = options.read_only && options.consistency == Consistency::Follow;
        self.begun.store(kernel_can && (reads || self.heard.is_some()), Ordering::Relaxed);
    }

    /// Whether opens and closes are told nobody.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// Whether files are written that are opened and closed without a message.
    pub(super) fn are_written(&self) -> bool {
        self.has_begun() && self.heard.is_some()
    }

    /// Whether this is the name that is opened once.
    pub(super) fn is_probe(&self, parent: INodeNo, name: &[u8]) -> bool {
        parent.0 == ROOT && name == self.probe.as_bytes() && self.has_begun()
    }

    fn written(&self, number: INodeNo) -> Option<Arc<Handle>> {
        guard(&self.writers).get(&number.0).cloned()
    }

    /// Files that are written.
    pub(super) fn take_written(&self) -> Vec<Arc<Handle>> {
        guard(&self.readers).clear();
        guard(&self.writers).drain().map(|(_, file)| file).collect()
    }
}

/// Opens, polls and closes a file once, after which the kernel asks for none of these any more. Not
/// for a thread that answers it.
fn open_once(path: &Path) -> rustix::io::Result<()> {
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    poll(&mut [PollFd::new(&file, PollFlags::IN)], Some(&Timespec::default()))?;
    Ok(())
}

impl<S: TxStore> Shared<S> {
    /// Begins to hear of closes, once it is mounted.
    pub(super) fn hear(self: &Arc<Self>, ear: Option<Ear>, point: &Path) -> io::Result<()> {
        if let (Some(ear), Some(heard)) = (ear, self.silent.heard.clone()) {
            let removed = Arc::downgrade(self);
            self.fs.when_removed(move |id| {
                removed.upgrade().is_some_and(|shared| shared.known().refers_to(id))
            });
            let shared = self.clone();
            ear.listen(point, heard, move |closed| shared.was_closed(closed))?;
        }
        let name = self.silent.has_begun().then(|| point.join(&self.silent.probe));
        // On a machine with one processor this may be the one thread of the runtime's, and what it asks
        // may need another.
        let opened = name.map(|name| tokio::task::block_in_place(|| open_once(&name)));
        if let Some(Err(error)) = opened {
            tracing::debug!(%error, "the kernel will learn with the first file not to ask");
        }
        Ok(())
    }

    /// The kernel does not refer to an inode any more.
    pub(super) fn forget(self: &Arc<Self>, number: INodeNo, lookups: u64) {
        let (id, by_others) = {
            let mut known = self.known();
            let Some(id) = known.id(number.0) else { return };
            if !known.forget(number.0, lookups) {
                return;
            }
            (id, known.refers_to(id))
        };
        if self.silent.has_begun() {
            guard(&self.silent.readers).remove(&number.0);
            let written = guard(&self.silent.writers).remove(&number.0);
            if let Some(file) = written {
                self.close(file.id());
            }
            if !by_others {
                self.fs.not_open(id);
            }
        }
    }

    /// Attributes are told. Where opens are silent it is here that bytes are found to be of another
    /// update than the file is: a change that concerns no page of the node's cache is not heard of.
    pub(super) fn check_pages(&self, attr: &Attr) {
        if !self.silent.has_begun() || !self.known().keeps_other_pages(attr) {
            return;
        }
        let numbers = self.known().drop_pages(attr.id);
        let Some(notifier) = self.notifier.get().cloned() else { return };
        // The kernel may make this wait for a read.
        tokio::task::spawn_blocking(move || {
            for number in numbers {
                if let Err(error) = notifier.inval_inode(INodeNo(number), 0, 0) {
                    tracing::debug!(%error, "bytes of before are not taken back");
                }
            }
        });
    }

    /// The file that the kernel reads, or syncs.
    pub(super) async fn file_of(&self, number: INodeNo, handle: FileHandle) -> Answer<Arc<Handle>> {
        if handle != SILENT {
            return self.file(handle);
        }
        let id = self.id(number)?;
        let known = self.silent.written(number);
        let known = known.or_else(|| guard(&self.silent.readers).get(&number.0).cloned());
        if let Some(file) = known.filter(|file| file.id() == id) {
            return Ok(file);
        }
        let (reader, _) = failed_there(self.fs.open_file(id).await)?;
        let reader = Arc::new(reader);
        let mut readers = guard(&self.silent.readers);
        if readers.len() >= READERS_MAX {
            readers.clear();
        }
        readers.insert(number.0, reader.clone());
        Ok(reader)
    }

    /// The file that the kernel writes: one that was not closed since.
    pub(super) async fn file_to_write(
        &self,
        number: INodeNo,
        handle: FileHandle,
    ) -> Answer<Arc<Handle>> {
        if handle != SILENT {
            return self.file(handle);
        }
        let file = self.file_of(number, handle).await?;
        let mut writers = guard(&self.silent.writers);
        let known = writers.entry(number.0).or_insert_with(|| file.clone());
        if known.id() != file.id() {
            *known = file.clone();
        }
        Ok(file)
    }

    /// A file was made, and is opened: to be written, or else it is as good as closed.
    pub(super) fn made(&self, number: u64, file: Handle, writes: bool) -> FileHandle {
        if writes {
            guard(&self.silent.writers).insert(number, Arc::new(file));
        } else {
            self.fs.close_unheard(file.id());
        }
        SILENT
    }

    /// Writes, where nobody is told by a close what becomes of it.
    pub(super) async fn write_silent(
        &self,
        file: &Handle,
        offset: u64,
        bytes: Bytes,
    ) -> Result<(), FsError> {
        if self.fs.writes_through() {
            return self.fs.write_through(file, Place::At(offset), bytes).await;
        }
        self.fs.write(file, offset, bytes).await
    }

    /// A file was closed that could be written, perhaps not by all who have it open.
    fn was_closed(self: &Arc<Self>, closed: Closed) {
        let Closed::File(number) = closed else {
            let files: Vec<_> = guard(&self.silent.writers).drain().collect();
            files.iter().for_each(|(_, file)| self.close(file.id()));
            return self.fs.close_all_unheard();
        };
        // A file that turned out to be another has two numbers: the kernel's own, and the one that
        // attributes have, by which it is told here.
        let numbers = self.known().numbers_like(number);
        for (number, id) in numbers {
            guard(&self.silent.readers).remove(&number);
            // Without one it was written by somebody who has it open since another closed it.
            let file = guard(&self.silent.writers).remove(&number);
            self.close(file.map_or(id, |file| file.id()));
        }
    }

    fn close(self: &Arc<Self>, id: InodeId) {
        self.fs.close_unheard(id);
        if self.fs.has_locks() {
            let shared = self.clone();
            self.runtime.spawn(async move {
                shared.fs.after_closes().await;
                shared.fs.lock_file_closed(id);
            });
        }
    }

    /// A file that nothing else counts as open for: for who locks it.
    pub(super) async fn file_to_lock(&self, number: INodeNo, id: InodeId) -> Answer<Arc<Handle>> {
        guard(&self.silent.readers).remove(&number.0);
        let (file, _) = failed_there(self.fs.open_file(id).await)?;
        Ok(Arc::new(file))
    }

    /// Waits until all that was closed before is committed, or could not be.
    pub(super) async fn after_closes(&self) {
        if let Some(heard) = &self.silent.heard
            && self.fs.has_waiting()
        {
            heard.all().await;
        }
        self.fs.after_closes().await;
    }
}
