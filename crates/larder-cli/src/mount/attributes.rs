//! Between the file layer's words and the kernel's.

use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};
use larder::fs::{Attr, Content, FsError, Kind, TxError};
use std::time::{Duration, SystemTime};

/// Bytes of a block in `st_blocks`, by definition.
const BLOCK_BYTES: u64 = 512;

pub(super) fn errno(error: &FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::ENOENT,
        FsError::Exists => Errno::EEXIST,
        FsError::NotDirectory => Errno::ENOTDIR,
        FsError::IsDirectory => Errno::EISDIR,
        FsError::NotEmpty => Errno::ENOTEMPTY,
        FsError::NameTooLong => Errno::ENAMETOOLONG,
        FsError::Invalid(_) => Errno::EINVAL,
        FsError::NoData => Errno::ENXIO,
        FsError::NoXattr => Errno::ENODATA,
        FsError::Unsupported(_) => Errno::EOPNOTSUPP,
        FsError::TooLarge | FsError::Store(TxError::TooLarge(_)) => Errno::EFBIG,
        FsError::NoSpace | FsError::Store(TxError::Full(_) | TxError::NoSpace(_)) => Errno::ENOSPC,
        FsError::Store(TxError::Quota(_)) => Errno::EDQUOT,
        FsError::Store(TxError::TimedOut | TxError::OutcomeUnknown) => Errno::ETIMEDOUT,
        FsError::Store(TxError::Conflict(_)) => Errno::EAGAIN,
        FsError::Store(TxError::Gone(_) | TxError::Forked | TxError::Deleted) => Errno::ESTALE,
        FsError::Store(TxError::Denied(_) | TxError::NoRight(_)) => Errno::EACCES,
        FsError::NoLocks => Errno::ENOLCK,
        FsError::Unformatted
        | FsError::LockLost
        | FsError::Damaged(_)
        | FsError::Format { .. }
        | FsError::Host { .. }
        | FsError::Store(TxError::Stale(_) | TxError::Unavailable(_) | TxError::Damaged(_)) => {
            Errno::EIO
        }
    }
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

/// What `mknod` is asked for by the type bits of a mode; none: it cannot make that.
pub(super) fn kind_of_mode(mode: u32) -> Option<Kind> {
    match mode & 0o170_000 {
        0 | 0o100_000 => Some(Kind::File),
        0o010_000 => Some(Kind::Fifo),
        0o020_000 => Some(Kind::CharDevice),
        0o060_000 => Some(Kind::BlockDevice),
        0o140_000 => Some(Kind::Socket),
        _ => None,
    }
}

pub(super) fn attributes(number: u64, attr: &Attr, taken: u64, page_bytes: u32) -> FileAttr {
    let inode = &attr.inode;
    FileAttr {
        ino: INodeNo(number),
        size: inode.size,
        blocks: taken.div_ceil(BLOCK_BYTES),
        atime: system_time(inode.atime),
        mtime: system_time(inode.mtime),
        ctime: system_time(inode.ctime),
        crtime: SystemTime::UNIX_EPOCH,
        kind: file_type(inode.kind),
        perm: inode.mode,
        nlink: u32::try_from(inode.links).unwrap_or(u32::MAX),
        uid: inode.uid,
        gid: inode.gid,
        rdev: match inode.content {
            // The kernel's word has 32 bits, and so had the number when it came.
            Content::Device(number) => u32::try_from(number).unwrap_or(0),
            _ => 0,
        },
        blksize: page_bytes,
        flags: 0,
    }
}

/// What the kernel is given for a name that is not there, to believe in its absence.
pub(super) fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// The file that is opened once so that the kernel learns not to ask: empty, for whoever mounts.
pub(super) fn probe(number: INodeNo) -> FileAttr {
    let uid = rustix::process::geteuid().as_raw();
    FileAttr { ino: number, perm: 0o400, nlink: 1, uid, ..absent() }
}

fn system_time(nanos: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanos.unsigned_abs());
    if nanos >= 0 { SystemTime::UNIX_EPOCH + distance } else { SystemTime::UNIX_EPOCH - distance }
}

pub(super) fn nanos(time: TimeOrNow, now: i64) -> i64 {
    let TimeOrNow::SpecificTime(time) = time else {
        return now;
    };
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_nanos()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_nanos()).map_or(i64::MIN, |nanos| -nanos),
    }
}
