//! Opens without a message, at a mount that follows and through which nothing is changed
//! (`docs/decisions/0011-listings-and-silent-opens.md`).
//!
//! An `open` that is answered `ENOSYS` is the last that the kernel sends, and so is such a `flush`:
//! it opens and closes files by itself from then on, and names them in what it asks by their inode
//! alone. The stream takes back what it keeps, as at any mount that follows. Where files are written,
//! or locked at other sites too, every close has to be heard of: there the kernel goes on asking.
//!
//! A file that is replaced just before the kernel hears of it is opened all the same, and a read
//! of what the kernel did not keep of it fails with `ESTALE`.

use super::adapter::{Answer, failed_there};
use super::fresh::Consistency;
use super::{MountOptions, Shared};
use fuser::{FileHandle, INodeNo};
use larder::fs::{Attr, Handle, TxStore};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The handle of a file that was opened without a message.
pub(super) const SILENT: FileHandle = FileHandle(0);
/// Files of which is known where they are read; beyond it all are forgotten.
const READERS_MAX: usize = 256;

/// Files that are read by inode.
#[derive(Default)]
pub(super) struct Readers {
    silent: AtomicBool,
    handles: Mutex<HashMap<u64, Arc<Handle>>>,
}

impl Readers {
    fn handles(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Arc<Handle>>> {
        self.handles.lock().expect("holders of this lock do not panic")
    }

    /// Begins, where it may be done and the kernel can do it.
    pub(super) fn begin(&self, options: &MountOptions, kernel_can: bool) {
        let may = options.read_only && options.consistency == Consistency::Follow;
        self.silent.store(may && kernel_can, Ordering::Relaxed);
    }

    /// Whether opens and closes are told nobody.
    pub(super) fn are_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// The kernel does not refer to the inode any more.
    pub(super) fn forget(&self, number: INodeNo) {
        if self.are_silent() {
            self.handles().remove(&number.0);
        }
    }
}

impl<S: TxStore> Shared<S> {
    /// Attributes are told. Where opens are silent it is here that bytes are found to be of another
    /// update than the file is: a change that concerns no page of the node's cache is not heard of.
    pub(super) fn check_pages(&self, attr: &Attr) {
        if !self.readers.are_silent() || !self.known().keeps_other_pages(attr) {
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

    /// The file that the kernel reads.
    pub(super) async fn read_file(
        &self,
        number: INodeNo,
        handle: FileHandle,
    ) -> Answer<Arc<Handle>> {
        if handle != SILENT {
            return self.file(handle);
        }
        let id = self.id(number)?;
        let known = self.readers.handles().get(&number.0).cloned();
        if let Some(reader) = known.filter(|reader| reader.id() == id) {
            return Ok(reader);
        }
        let (reader, _) = failed_there(self.fs.open_file(id).await)?;
        let reader = Arc::new(reader);
        let mut readers = self.readers.handles();
        if readers.len() >= READERS_MAX {
            readers.clear();
        }
        readers.insert(number.0, reader.clone());
        Ok(reader)
    }
}
