//! Room and holes of files, and copies within the volume.

use super::{Adapter, failed, failed_there, reply_empty};
use fuser::{Errno, FileHandle, INodeNo, ReplyEmpty, ReplyLseek, ReplyStatfs, ReplyWrite, Request};
use larder::fs::{Allocate, Seek, TxStore};
use larder::metrics::Asked;
use tokio::time::Instant;

/// `FALLOC_FL_` flags of `fallocate`, and `SEEK_` of `lseek`.
const KEEP_SIZE: i32 = 0x01;
const PUNCH_HOLE: i32 = 0x02;
const ZERO_RANGE: i32 = 0x10;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// What `statfs` calls free when the origin does not say what room there is: one of an earlier
/// version.
const UNKNOWN_ROOM_BYTES: u64 = 1 << 50;

/// A file handle of the kernel's with its inode and a place in it.
pub(super) type Place = (INodeNo, FileHandle, u64);

/// What `fallocate` is asked for; none: it cannot do that.
fn allocation(mode: i32) -> Option<Allocate> {
    const PUNCH: i32 = PUNCH_HOLE | KEEP_SIZE;
    const ZERO: i32 = ZERO_RANGE | KEEP_SIZE;
    match mode {
        0 => Some(Allocate::Extend),
        KEEP_SIZE => Some(Allocate::KeepSize),
        PUNCH | ZERO => Some(Allocate::PunchHole),
        ZERO_RANGE => Some(Allocate::ZeroRange),
        _ => None,
    }
}

impl<S: TxStore> Adapter<S> {
    /// When an operation that begins now is answered at the latest, done or not.
    fn answered_by(&self) -> Instant {
        Instant::now() + self.shared.options.operation_limit
    }

    /// What the volume takes, and what is free by its quota or in the origin's store.
    pub(super) fn tell_usage(&self, reply: ReplyStatfs) {
        let shared = self.shared.clone();
        self.start(async move {
            let usage = shared.fs.usage().await;
            let (block, name) = (usage.page_bytes, usage.name_bytes_max);
            let of = |bytes: u64| bytes / u64::from(block);
            let taken = usage.taken.bytes.div_ceil(u64::from(block));
            let free = of(usage.taken.free.unwrap_or(UNKNOWN_ROOM_BYTES));
            // Inodes have no bound of their own: as many as there may be pages.
            reply.statfs(taken + free, free, free, taken + free, free, block, name, block);
        });
    }

    pub(super) fn allocate(
        &self,
        req: &Request,
        (ino, fh, offset): Place,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.count(Asked::Change);
        let Some(how) = allocation(mode) else { return reply.error(Errno::EOPNOTSUPP) };
        let Some(end) = offset.checked_add(length) else { return reply.error(Errno::EFBIG) };
        let (root, until) = (req.uid() == 0, self.answered_by());
        self.run_to_its_end(
            req,
            move |shared| async move {
                let file = shared.file_to_write(ino, fh).await?;
                if !root {
                    failed_there(shared.fs.drop_privileges(shared.id(ino)?).await)?;
                }
                failed(shared.fs.allocate(&file, offset..end, how, until).await)
            },
            reply_empty(reply),
        );
    }

    pub(super) fn seek(
        &self,
        req: &Request,
        (ino, fh): (INodeNo, FileHandle),
        (offset, whence): (i64, i32),
        reply: ReplyLseek,
    ) {
        self.count(Asked::Attributes);
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        // What was written before is committed first.
        self.run_to_its_end(
            req,
            move |shared| async move {
                let file = shared.file_of(ino, fh).await?;
                let found = failed_there(shared.fs.seek(&file, offset, what).await)?;
                i64::try_from(found).map_err(|_| Errno::EOVERFLOW)
            },
            |_, result| match result {
                Ok(found) => reply.offset(found),
                Err(error) => reply.error(error),
            },
        );
    }

    pub(super) fn copy(
        &self,
        req: &Request,
        from: Place,
        to: Place,
        length: u64,
        reply: ReplyWrite,
    ) {
        self.count(Asked::Write);
        if self.shared.is_strict() {
            // The kernel reads and writes then, and each write is committed: what is refused never
            // waits here to be committed later.
            return reply.error(Errno::EOPNOTSUPP);
        }
        self.shared.known().take_pages(to.0.0);
        let (root, until) = (req.uid() == 0, self.answered_by());
        self.run_to_its_end(
            req,
            move |shared| async move {
                let source = shared.file_of(from.0, from.1).await?;
                let target = shared.file_to_write(to.0, to.1).await?;
                if !root {
                    failed_there(shared.fs.drop_privileges(shared.id(to.0)?).await)?;
                }
                let (from, place) = ((&*source, from.2), (&*target, to.2));
                let copied = failed(shared.fs.copy_range(from, place, length, until).await)?;
                u32::try_from(copied).map_err(|_| Errno::EOVERFLOW)
            },
            |_, result| match result {
                Ok(copied) => reply.written(copied),
                Err(error) => reply.error(error),
            },
        );
    }
}
