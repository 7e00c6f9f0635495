//! Answers to the kernel's requests.

mod run;
mod space;
mod told;
mod xattrs;

pub(super) use run::{Adapter, Answer, failed, failed_there};

use super::attributes::{kind_of_mode, nanos, probe};
use super::listing::{Ask, list};
use super::locks::{self, Awaited, UNLOCK};
use super::silent::{PROBE, SILENT};
use super::{Open, Shared};
use bytes::Bytes;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use larder::fs::{
    Create, FsError, Handle, InodeId, Kind, Place, RenameMode, SetAttr, TxStore, on_behalf_of,
};
use larder::metrics::Asked;
use run::reply_empty;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};
use told::{Told, reply_entry};

/// Bytes of one write request at most.
const WRITE_BYTES_MAX: u32 = 1 << 20;
/// Requests that the kernel may send in the background, reading ahead mostly.
const BACKGROUND_MAX: u16 = 64;
/// Flags of `open`, on most systems and in FUSE: for appending, and for a name that must be free.
const O_APPEND: i32 = 0o2000;
const O_EXCL: i32 = 0o200;
const O_TRUNC: i32 = 0o1000;

impl<S: TxStore> Shared<S> {
    pub(super) fn id(&self, number: INodeNo) -> Answer<InodeId> {
        let known = self.known().id(number.0);
        if known.is_none() {
            tracing::debug!(number = number.0, "the kernel means an inode that it has given back");
        }
        known.ok_or(Errno::ESTALE)
    }

    pub(super) fn file(&self, handle: FileHandle) -> Answer<Arc<Handle>> {
        match self.handles().get(&handle.0) {
            Some(Open::File(file)) => Ok(file.clone()),
            _ => Err(Errno::EBADF),
        }
    }
}

fn new_thing(kind: Kind, mode: u32, umask: u32, req: &Request) -> Create {
    Create {
        kind,
        mode: (mode & 0o7777) as u16,
        umask: (umask & 0o777) as u16,
        uid: req.uid(),
        gid: req.gid(),
        target: Bytes::new(),
        device: 0,
    }
}

fn lock_ask(
    req: &Request,
    (number, handle): (INodeNo, FileHandle),
    owner: LockOwner,
    range: (u64, u64),
    (kind, pid): (i32, u32),
    waits: bool,
) -> locks::Ask {
    let (owner, thread) = (owner.0, req.pid());
    locks::Ask { number, handle, owner, range, kind, pid, thread, waits }
}

impl<S: TxStore> Adapter<S> {
    fn create_entry(
        &self,
        req: &Request,
        (parent, name): (INodeNo, &OsStr),
        create: Create,
        reply: ReplyEntry,
    ) {
        self.count(Asked::Change);
        let told = Told::new(&self.shared, parent, name);
        let name = told.name.clone();
        self.run_to_its_end(
            req,
            |shared| async move {
                let parent = shared.id(parent)?;
                failed(shared.fs.create(parent, &name, &create).await)
            },
            reply_entry(told, reply),
        );
    }
}

impl<S: TxStore> Filesystem for Adapter<S> {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wanted in [
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_AUTO_INVAL_DATA,
            InitFlags::FUSE_CACHE_SYMLINKS,
            // What these leave to us is in `docs/decisions/0007-attributes-and-holes.md`.
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DONT_MASK,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_POSIX_LOCKS,
            InitFlags::FUSE_FLOCK_LOCKS,
        ] {
            // Locks are kept in the volume: where nothing may be written, they are this host's.
            let locks = InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
            if self.shared.options.read_only && locks.contains(wanted) {
                continue;
            }
            if config.add_capabilities(wanted).is_err() {
                tracing::debug!(?wanted, "the kernel lacks this");
            }
        }
        let silently = config.add_capabilities(InitFlags::FUSE_NO_OPEN_SUPPORT).is_ok();
        self.shared.silent.begin(&self.shared.options, silently);
        let _nearest = config.set_max_write(WRITE_BYTES_MAX);
        let _nearest = config.set_max_readahead(WRITE_BYTES_MAX);
        let _nearest = config.set_max_background(BACKGROUND_MAX);
        Ok(())
    }

    fn destroy(&mut self) {
        self.shared.options.standing.end();
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.count(Asked::Lookup);
        let told = Told::new(&self.shared, parent, name);
        if self.shared.silent.is_probe(parent, &told.name) {
            let (soon, none) = (Duration::from_secs(1), Duration::ZERO);
            return reply.entry_with_ttls(&soon, &none, &probe(PROBE), Generation(0));
        }
        let name = told.name.clone();
        self.run(
            |shared| async move {
                let parent = shared.id(parent)?;
                let found = failed(shared.fs.lookup(parent, &name).await)?;
                if found.attr.is_none() && shared.latest_for_absence().await? {
                    return failed(shared.fs.lookup(parent, &name).await);
                }
                Ok(found)
            },
            reply_entry(told, reply),
        );
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.shared.forget(ino, nlookup);
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.count(Asked::Attributes);
        let position = self.shared.known().position();
        self.run(
            move |shared| async move { failed_there(shared.fs.getattr(shared.id(ino)?).await) },
            move |shared, result| match result {
                Ok(attr) => shared.tell_attr(position, &attr, reply),
                Err(error) => reply.error(error),
            },
        );
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        self.count(Asked::Change);
        let position = self.shared.known().position();
        let now = self.shared.fs.store().now();
        let owns = uid.is_some() || gid.is_some();
        let sets = mode.is_some() || size.is_some() || atime.is_some() || mtime.is_some();
        let set = SetAttr {
            // Where nothing is set the kernel means this.
            drop_privileges: owns || !sets || size.is_some() && req.uid() != 0,
            mode: mode.map(|mode| (mode & 0o7777) as u16),
            uid,
            gid,
            size,
            atime: atime.map(|time| nanos(time, now)),
            mtime: mtime.map(|time| nanos(time, now)),
        };
        self.run_late_or_to_its_end(
            req,
            move |shared| async move {
                let id = shared.id(ino).ok()?;
                failed_there(shared.fs.set_late(id, &set)).transpose()
            },
            move |shared| async move { failed_there(shared.fs.setattr(shared.id(ino)?, set).await) },
            move |shared, result| match result {
                Ok(attr) => shared.tell_attr(position, &attr, reply),
                Err(error) => reply.error(error),
            },
        );
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.count(Asked::Read);
        self.run(
            move |shared| async move { failed_there(shared.fs.readlink(shared.id(ino)?).await) },
            |_, result| match result {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(error),
            },
        );
    }

    fn mknod(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = kind_of_mode(mode) else {
            return reply.error(Errno::EINVAL);
        };
        let create = Create { device: u64::from(rdev), ..new_thing(kind, mode, umask, req) };
        self.create_entry(req, (parent, name), create, reply);
    }

    fn mkdir(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let create = new_thing(Kind::Directory, mode, umask, req);
        self.create_entry(req, (parent, name), create, reply);
    }

    fn symlink(
        &self,
        req: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let mut create = new_thing(Kind::Symlink, 0o777, 0, req);
        create.target = Bytes::copy_from_slice(target.as_os_str().as_bytes());
        self.create_entry(req, (parent, link_name), create, reply);
    }

    fn unlink(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.count(Asked::Change);
        let name = name.as_bytes().to_vec();
        self.run_to_its_end(
            req,
            move |shared| async move { failed(shared.fs.unlink(shared.id(parent)?, &name).await) },
            reply_empty(reply),
        );
    }

    fn rmdir(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.count(Asked::Change);
        let name = name.as_bytes().to_vec();
        self.run_to_its_end(
            req,
            move |shared| async move { failed(shared.fs.rmdir(shared.id(parent)?, &name).await) },
            reply_empty(reply),
        );
    }

    fn rename(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        self.count(Asked::Change);
        let mode = if flags.is_empty() {
            RenameMode::Replace
        } else if flags == RenameFlags::RENAME_NOREPLACE {
            RenameMode::NoReplace
        } else if flags == RenameFlags::RENAME_EXCHANGE {
            RenameMode::Exchange
        } else {
            return reply.error(Errno::EINVAL);
        };
        let (from, to) = (name.as_bytes().to_vec(), newname.as_bytes().to_vec());
        self.run_to_its_end(
            req,
            move |shared| async move {
                let (parent, newparent) = (shared.id(parent)?, shared.id(newparent)?);
                failed(shared.fs.rename((parent, &from), (newparent, &to), mode).await)
            },
            reply_empty(reply),
        );
    }

    fn link(
        &self,
        req: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        self.count(Asked::Change);
        let told = Told::new(&self.shared, newparent, newname);
        let name = told.name.clone();
        self.run_to_its_end(
            req,
            move |shared| async move {
                let (id, parent) = (shared.id(ino)?, shared.id(newparent)?);
                failed(shared.fs.link(id, parent, &name).await)
            },
            reply_entry(told, reply),
        );
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        self.count(Asked::Open);
        if self.shared.silent.has_begun() {
            return reply.error(Errno::ENOSYS);
        }
        self.run(
            move |shared| async move {
                shared.latest_for_open(ino).await?;
                failed_there(shared.fs.open_file(shared.id(ino)?).await)
            },
            move |shared, result| match result {
                Ok((handle, attr)) => {
                    shared.forget_attributes(ino);
                    // The kernel may keep the bytes it read before if they are still the same;
                    // else it drops them now.
                    let same = shared.known().open_pages(ino.0, attr.inode.change);
                    let mut told = FopenFlags::empty();
                    told.set(FopenFlags::FOPEN_KEEP_CACHE, same);
                    told.set(FopenFlags::FOPEN_DIRECT_IO, shared.is_strict());
                    // Who only reads has nothing to commit when it closes, nor waits for others.
                    let reads = flags.acc_mode() == OpenAccMode::O_RDONLY;
                    told.set(FopenFlags::FOPEN_NOFLUSH, reads);
                    let number = shared.add_handle(Open::File(Arc::new(handle)));
                    reply.opened(FileHandle(number), told);
                }
                Err(error) => reply.error(error),
            },
        );
    }

    fn create(
        &self,
        req: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        self.count(Asked::Change);
        if self.shared.silent.has_begun() && !self.shared.silent.are_written() {
            // Mounted anew so that it can be written: nobody would hear of the close.
            return reply.error(Errno::EROFS);
        }
        let told = Told::new(&self.shared, parent, name);
        let name = told.name.clone();
        let create = new_thing(Kind::File, mode, umask, req);
        let (late_name, late_create) = (name.clone(), create.clone());
        self.run_late_or_to_its_end(
            req,
            move |shared| async move {
                // Who appends means the end of the file that all see.
                if flags & (O_EXCL | O_APPEND) != 0 || !shared.commits_late() {
                    return None;
                }
                let (parent, cuts) = (shared.id(parent).ok()?, flags & O_TRUNC != 0);
                match shared.fs.create_late(parent, &late_name, &late_create, cuts).await {
                    Err(FsError::Exists) => Some(Err(Errno::ESTALE)),
                    created => failed(created).transpose(),
                }
            },
            move |shared| async move {
                let parent = shared.id(parent)?;
                match shared.fs.create_file(parent, &name, &create).await {
                    // Made elsewhere since the kernel looked: it looks again, and opens that.
                    Err(FsError::Exists) if flags & O_EXCL == 0 => Err(Errno::ESTALE),
                    created => failed(created),
                }
            },
            move |shared, result| match result {
                Ok((handle, found)) => {
                    let writes = OpenFlags(flags).acc_mode() != OpenAccMode::O_RDONLY;
                    shared.tell_created(&told, (handle, writes), &found, reply);
                }
                Err(error) => reply.error(error),
            },
        );
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.count(Asked::Read);
        let reading = self.shared.known().begin_read(ino.0);
        self.run(
            move |shared| async move {
                let file = shared.file_of(ino, fh).await?;
                failed_there(shared.fs.read_counted(&file, offset, size as usize).await)
            },
            move |shared, result| match result {
                Ok(read) => {
                    shared.known().tell_pages(&reading, read.change);
                    reply.data(&read.bytes);
                }
                Err(error) => {
                    shared.known().end_read(&reading);
                    reply.error(error);
                }
            },
        );
    }

    fn write(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.count(Asked::Write);
        if let Err(error) = self.shared.may_change() {
            if write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
                self.shared.refused_mapped.store(true, Ordering::SeqCst);
            }
            return reply.error(error);
        }
        let bytes = Bytes::copy_from_slice(data);
        let drops = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        if self.shared.is_strict() {
            let place = if flags.0 & O_APPEND != 0 { Place::End } else { Place::At(offset) };
            return self.write_through(req, fh, place, (bytes, drops), reply);
        }
        self.shared.known().take_pages(ino.0);
        let counted = self.shared.under_way.begin();
        let by = self.shared.process_of(req.pid());
        self.run(
            move |shared| {
                on_behalf_of(by, async move {
                    let _counted = counted;
                    shared.may_change()?;
                    let _place = shared.writers.acquire().await.map_err(|_| Errno::ESHUTDOWN)?;
                    let file = shared.file_to_write(ino, fh).await?;
                    if drops {
                        failed(shared.fs.drop_privileges(file.id()).await)?;
                    }
                    let written = bytes.len() as u32;
                    failed_there(match fh {
                        SILENT => shared.write_silent(&file, offset, bytes).await,
                        _ => shared.fs.write(&file, offset, bytes).await,
                    })?;
                    Ok(written)
                })
            },
            |_, result| match result {
                Ok(written) => reply.written(written),
                Err(error) => reply.error(error),
            },
        );
    }

    fn flush(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        if fh == SILENT && self.shared.silent.has_begun() {
            return reply.error(Errno::ENOSYS);
        }
        if !self.shared.is_locked_by(fh, lock_owner.0) {
            return self.commit(req, (ino, fh), self.shared.commits_late(), reply);
        }
        self.count(Asked::Commit);
        let shared = self.shared.clone();
        let by = self.shared.process_of(req.pid());
        let work = on_behalf_of(by, async move {
            let file = shared.file(fh)?;
            let committed = failed(shared.fs.flush(&file).await);
            let released = shared.closed_by(fh, lock_owner.0).await;
            committed.and(released)
        });
        self.run_in_any_case(work, reply);
    }

    fn getlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: ReplyLock,
    ) {
        self.count(Asked::Attributes);
        let ask = lock_ask(req, (ino, fh), lock_owner, (start, end), (typ, pid), false);
        self.run(
            move |shared| async move { shared.lock_in_the_way(ask).await },
            move |_, result| match result {
                Ok(Some((lock, kind))) => reply.locked(lock.start, lock.end, kind, lock.pid),
                Ok(None) => reply.locked(start, end, UNLOCK, 0),
                Err(error) => reply.error(error),
            },
        );
    }

    fn setlk(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        lock_owner: LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        self.count(Asked::Change);
        let ask = lock_ask(req, (ino, fh), lock_owner, (start, end), (typ, pid), sleep);
        if typ == UNLOCK {
            let shared = self.shared.clone();
            let work = async move { shared.set_lock(ask, &Awaited::default()).await };
            return self.run_in_any_case(work, reply);
        }
        if !sleep {
            return self.lock_at_once(ask, reply);
        }
        // Waits for as long as its user does.
        let shared = self.shared.clone();
        self.start(async move {
            match shared.set_lock(ask, &Awaited::default()).await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error),
            }
        });
    }

    fn fsync(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        if fh == SILENT && self.shared.silent.has_begun() && !self.shared.silent.are_written() {
            return reply.ok();
        }
        self.commit(req, (ino, fh), false, reply);
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        // Not cut off at the limit, or the file would stay open here: the kernel does not wait
        // for it, nor tells anybody of its result, and each step of it has a limit of its own.
        let (shared, open) = (self.shared.clone(), self.shared.handles().remove(&fh.0));
        let counted = self.shared.under_way.begin();
        self.start(async move {
            let _counted = counted;
            shared.handle_gone(fh).await;
            let result = match open {
                Some(Open::File(file)) => {
                    let result = failed(shared.fs.release_unheard(&file).await);
                    shared.fs.lock_file_closed(file.id());
                    result
                }
                _ => Err(Errno::EBADF),
            };
            match result {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error),
            }
        });
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.run(
            move |shared| async move { shared.latest_for_open(ino).await },
            move |shared, result| match result {
                Ok(()) => {
                    shared.forget_attributes(ino);
                    let number = shared.add_handle(Open::Directory(Arc::default()));
                    reply.opened(FileHandle(number), shared.directory_flags(ino));
                }
                Err(error) => reply.error(error),
            },
        );
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.count(Asked::List);
        let ask = Ask { directory: ino, handle: fh, cookie: offset, attributes: false };
        self.run(
            |shared| list(shared, ask),
            |shared, result| match result {
                Ok(listing) => listing.names(shared, reply),
                Err(error) => reply.error(error),
            },
        );
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.count(Asked::List);
        let ask = Ask { directory: ino, handle: fh, cookie: offset, attributes: true };
        self.run(
            |shared| list(shared, ask),
            |shared, result| match result {
                Ok(listing) => listing.tell(shared, reply),
                Err(error) => reply.error(error),
            },
        );
    }

    fn releasedir(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.shared.handles().remove(&fh.0);
        reply.ok();
    }

    fn fsyncdir(
        &self,
        req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        if !self.shared.commits_late() {
            // Names are durable when they are made.
            return reply.ok();
        }
        self.run_to_its_end(
            req,
            move |shared| async move { failed(shared.fs.come_true_in(shared.id(ino)?).await) },
            reply_empty(reply),
        );
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        self.tell_usage(reply);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.get_xattr(ino, name, size, reply);
    }

    fn listxattr(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.list_xattrs(req, ino, size, reply);
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        self.set_xattr(req, ino, (name, value), flags, reply);
    }

    fn removexattr(&self, req: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove_xattr(req, ino, name, reply);
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        self.allocate(req, (ino, fh, offset), length, mode, reply);
    }

    fn lseek(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.seek(req, (ino, fh), (offset, whence), reply);
    }

    fn copy_file_range(
        &self,
        req: &Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        self.copy(req, (ino_in, fh_in, offset_in), (ino_out, fh_out, offset_out), len, reply);
    }
}

impl<S: TxStore> Adapter<S> {
    /// A write that is acknowledged when it is committed; before it the file's privileges are
    /// dropped if so asked.
    fn write_through(
        &self,
        req: &Request,
        fh: FileHandle,
        place: Place,
        (bytes, drops): (Bytes, bool),
        reply: ReplyWrite,
    ) {
        self.run_to_its_end(
            req,
            move |shared| async move {
                let file = shared.file(fh)?;
                if drops {
                    failed(shared.fs.drop_privileges(file.id()).await)?;
                }
                let written = bytes.len() as u32;
                failed_there(shared.fs.write_through(&file, place, bytes).await)?;
                Ok(written)
            },
            |_, result| match result {
                Ok(written) => reply.written(written),
                Err(error) => reply.error(error),
            },
        );
    }

    fn commit(
        &self,
        req: &Request,
        (ino, fh): (INodeNo, FileHandle),
        late: bool,
        reply: ReplyEmpty,
    ) {
        self.count(Asked::Commit);
        // Written through: nothing waits, and a close is refused by no line that is down.
        let written = self.shared.file(fh).is_ok_and(|file| file.dirty_bytes() == 0);
        if self.shared.is_strict() && written {
            return reply.ok();
        }
        self.commit_late_or_to_its_end(
            req,
            move |shared| async move {
                let file = shared.file(fh).ok().filter(|_| late)?;
                shared.fs.close_late(&file).map(failed)
            },
            move |shared| async move {
                let file = shared.file_of(ino, fh).await?;
                failed(shared.fs.flush(&file).await)
            },
            reply_empty(reply),
        );
    }
}
