//! Writing through: an operation that is acknowledged when its commit is, for whom every operation
//! must be seen by all others. Nothing of it waits here: refused, it leaves nothing behind that could
//! be committed later.

use super::open::Handle;
use super::tx::{Tx, TxError};
use super::{FileSystem, FsError, TxStore, transact};
use bytes::Bytes;

/// Where bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// From this offset on.
    At(u64),
    /// After what the file holds when the commit is done: two that append never overwrite each other.
    End,
}

impl<S: TxStore> FileSystem<S> {
    /// Writes in one commit of its own, of at most 4 MiB. What was written to the file before and
    /// waits goes first. An error says that nothing was done, and nothing will be; but for
    /// [`TxError::OutcomeUnknown`], after which it may have been done.
    pub async fn write_through(
        &self,
        handle: &Handle,
        place: Place,
        bytes: Bytes,
    ) -> Result<(), FsError> {
        if bytes.len() > super::dirty::COMMIT_BYTES {
            return Err(TxError::TooLarge("bytes of one write".into()).into());
        }
        self.store().standing()?;
        self.come_true(handle.id()).await?;
        let file = handle.file();
        let _ordered = file.commit.lock().await;
        self.write_back_ordered(file).await?;
        let id = file.id;
        let written: Result<(), FsError> = transact!(self, tx => {
            let mut inode = self.inode(&tx, id).await?;
            let offset = match place {
                Place::At(offset) => offset,
                Place::End => inode.size,
            };
            let end = offset.checked_add(bytes.len() as u64);
            if end.is_none_or(|end| end > self.file_bytes_max()) {
                return Err(FsError::TooLarge);
            }
            self.locks.check(id)?;
            self.write_content(&tx, id, &mut inode, &[(offset, bytes.clone())]).await?;
            let now = self.store().now();
            inode.mtime = now;
            inode.ctime = inode.ctime.max(now);
            self.put_inode(&tx, id, &inode).await
        });
        if written.is_ok() {
            self.closes_stand();
        }
        written
    }
}
