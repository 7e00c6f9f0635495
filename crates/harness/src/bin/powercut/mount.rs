//! The tree of [`super::disk`] as a mount over `/dev/fuse`, and the moment at which the power goes.
//!
//! Nothing is kept by the kernel: names and attributes are believed for no time at all, and bytes go
//! past its cache (`FOPEN_DIRECT_IO`), so that every write, and nothing else, is in the tree's own
//! list of what is not synced. (Files can therefore not be mapped for writing; the store maps none.)
//! When the power goes, the process is killed by its number within the operation under way, before
//! that is answered; from then on nothing is done any more, until the tree is set going again.

use super::disk::{Disk, DiskFault, Kind, ROOT};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use larder_core::rng::Rng;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nothing is believed.
const NO_TIME: Duration = Duration::ZERO;
const BLOCK_BYTES: u32 = 4096;
/// Blocks that are free, as far as anybody is told: 64 GiB.
const BLOCKS: u64 = 16 << 20;

/// What `lseek` is asked for: where something, or nothing, was written.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// Which syncs a planted fault leaves out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Unsynced {
    /// None: the file system does what it promises.
    #[default]
    None,
    /// Those of files.
    Files,
    /// Those of folders.
    Folders,
    /// Those of the page engine's files.
    Engine,
    /// Those of the log's files.
    Log,
}

/// A tree that can be mounted. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Tree(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    disk: Disk,
    power: Power,
    /// Changing operations since the power came.
    changes: u64,
    unsynced: Unsynced,
    /// The way from the root to the page engine's folder.
    engine: &'static [&'static str],
}

/// When a process is killed, and the power goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kill {
    /// At this change, or the first one after it that will do.
    pub(crate) change: u64,
    /// Only a sync will do: something is not synced then.
    pub(crate) in_sync: bool,
    pub(crate) process: Pid,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Power {
    /// Whoever asks is served, until a process is to be killed.
    On { kills: Option<Kill> },
    /// Nothing is done.
    Off,
}

impl Tree {
    /// An empty tree without power. `engine`: the way from the root to the page engine's folder.
    pub(crate) fn new(unsynced: Unsynced, engine: &'static [&'static str]) -> Self {
        let state = State { disk: Disk::new(), power: Power::Off, changes: 0, unsynced, engine };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Mounts it.
    pub(crate) fn mount(&self, at: &Path) -> std::io::Result<BackgroundSession> {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("powercut".into()),
            MountOption::CUSTOM("subtype=powercut".into()),
            MountOption::RW,
        ];
        fuser::spawn_mount(self.clone(), at, &config)
    }

    /// The power comes.
    pub(crate) fn power_on(&self) {
        let mut state = self.state();
        state.changes = 0;
        state.power = Power::On { kills: None };
    }

    /// Says when the power goes, and a process with it.
    pub(crate) fn kill(&self, kill: Kill) {
        let mut state = self.state();
        if state.power != Power::Off {
            state.power = Power::On { kills: Some(kill) };
        }
    }

    /// The power goes now. The process is the caller's to end.
    pub(crate) fn power_off(&self) {
        self.state().power = Power::Off;
    }

    /// Whether there is no power.
    pub(crate) fn is_off(&self) -> bool {
        self.state().power == Power::Off
    }

    /// Changing operations since the power came.
    pub(crate) fn changes(&self) -> u64 {
        self.state().changes
    }

    /// The tree itself, while there is no power.
    pub(crate) fn disk<T>(&self, use_it: impl FnOnce(&mut Disk) -> T) -> T {
        let mut state = self.state();
        assert_eq!(state.power, Power::Off, "somebody may be using it");
        use_it(&mut state.disk)
    }

    /// What was not synced is kept or lost.
    pub(crate) fn cut_power(&self, rng: &mut Rng) {
        self.disk(|disk| disk.cut_power(rng));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To look at something.
    fn look(&self) -> Result<MutexGuard<'_, State>, Errno> {
        let state = self.state();
        match state.power {
            Power::On { .. } => Ok(state),
            Power::Off => Err(Errno::EIO),
        }
    }

    /// To change something: here the power may go. What it goes at is tried (`at_the_end`), as the
    /// last thing that is done, and is not answered.
    fn change<T>(
        &self,
        change: impl FnOnce(&mut State) -> Result<T, DiskFault>,
        at_the_end: bool,
    ) -> Result<T, Errno> {
        let mut state = self.look()?;
        state.changes += 1;
        if let Power::On { kills: Some(kill) } = state.power
            && state.changes >= kill.change
            && !(kill.in_sync && at_the_end)
        {
            if at_the_end {
                let _not_answered = change(&mut state);
            }
            state.power = Power::Off;
            // It cannot be gone: it waits for this.
            let _gone = kill_process(kill.process, Signal::KILL);
            return Err(Errno::EIO);
        }
        change(&mut state).map_err(errno)
    }
}

impl State {
    /// Whether a planted fault leaves out the sync of a file.
    fn leaves_out(&self, node: u64) -> bool {
        match self.unsynced {
            Unsynced::None | Unsynced::Folders => false,
            Unsynced::Files => true,
            Unsynced::Engine => self.disk.is_below(node, self.engine),
            Unsynced::Log => !self.disk.is_below(node, self.engine),
        }
    }

    fn attributes(&self, node: u64) -> Result<FileAttr, Errno> {
        let (kind, size) = self.disk.about(node).map_err(errno)?;
        let (kind, perm) = match kind {
            Kind::File => (FileType::RegularFile, 0o600),
            Kind::Folder => (FileType::Directory, 0o700),
        };
        Ok(FileAttr {
            ino: INodeNo(node),
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: BLOCK_BYTES,
            flags: 0,
        })
    }
}

fn errno(fault: DiskFault) -> Errno {
    match fault {
        DiskFault::Missing => Errno::ENOENT,
        DiskFault::Exists => Errno::EEXIST,
        DiskFault::NotAFile => Errno::EISDIR,
        DiskFault::NotAFolder => Errno::ENOTDIR,
        DiskFault::NotEmpty => Errno::ENOTEMPTY,
    }
}

fn finish(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn entry(reply: ReplyEntry, attributes: Result<FileAttr, Errno>) {
    match attributes {
        Ok(attributes) => reply.entry(&NO_TIME, &attributes, Generation(0)),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Tree {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.look().and_then(|state| {
            let node = state.disk.look_up(parent.0, name).map_err(errno)?;
            state.attributes(node)
        });
        entry(reply, found);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        // Of the root also without power: the mount itself is asked for it.
        let found = match self.look() {
            Ok(state) => state.attributes(ino.0),
            Err(_) if ino.0 == ROOT => self.state().attributes(ROOT),
            Err(error) => Err(error),
        };
        match found {
            Ok(attributes) => reply.attr(&NO_TIME, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = |state: &mut State| {
            if let Some(size) = size {
                state.disk.file(ino.0)?.set_length(size);
            }
            Ok(())
        };
        let done = self.change(set, true).and_then(|()| self.look()?.attributes(ino.0));
        match done {
            Ok(attributes) => reply.attr(&NO_TIME, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let place = (parent.0, name.to_owned());
        let made = self.change(|state| state.disk.make(place, Kind::Folder), true);
        entry(reply, made.and_then(|node| self.look()?.attributes(node)));
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let place = (parent.0, name.to_owned());
        finish(reply, self.change(|state| state.disk.remove(place, Kind::File), true));
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let place = (parent.0, name.to_owned());
        finish(reply, self.change(|state| state.disk.remove(place, Kind::Folder), true));
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if !flags.is_empty() {
            return reply.error(Errno::EINVAL);
        }
        let (from, to) = ((parent.0, name.to_owned()), (newparent.0, newname.to_owned()));
        finish(reply, self.change(|state| state.disk.rename(from, to), true));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let place = (parent.0, name.to_owned());
        let made = self.change(|state| state.disk.make(place, Kind::File), true);
        match made.and_then(|node| self.look()?.attributes(node)) {
            Ok(attributes) => {
                let (handle, flags) = (FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
                reply.created(&NO_TIME, &attributes, Generation(0), handle, flags);
            }
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = self.look().and_then(|mut state| {
            let file = state.disk.file(ino.0).map_err(errno)?;
            let left = file.length().saturating_sub(offset).min(u64::from(size));
            let mut bytes = vec![0; left as usize];
            file.read(offset, &mut bytes);
            Ok(bytes)
        });
        match read {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let write = |state: &mut State| {
            state.disk.file(ino.0)?.write(offset, data);
            Ok(())
        };
        match self.change(write, true) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let sync = |state: &mut State| {
            if !state.leaves_out(ino.0) {
                state.disk.file(ino.0)?.sync();
                if state.disk.is_below(ino.0, state.engine) {
                    state.disk.sync_name(ino.0);
                }
            }
            Ok(())
        };
        finish(reply, self.change(sync, false));
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.look().and_then(|state| {
            let names = state.disk.list(ino.0).map_err(errno)?;
            let kinds = names.into_iter().map(|(name, node)| {
                let (kind, _) = state.disk.about(node).map_err(errno)?;
                Ok((name, node, kind))
            });
            kinds.collect::<Result<Vec<_>, Errno>>()
        });
        match listed {
            Ok(names) => {
                let mut place = offset;
                for (name, node, kind) in names.into_iter().skip(offset as usize) {
                    let kind = match kind {
                        Kind::File => FileType::RegularFile,
                        Kind::Folder => FileType::Directory,
                    };
                    place += 1;
                    if reply.add(INodeNo(node), place, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(error),
        }
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let sync = |state: &mut State| match state.unsynced {
            Unsynced::Folders => Ok(()),
            _ => state.disk.sync_folder(ino.0),
        };
        finish(reply, self.change(sync, false));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(BLOCKS, BLOCKS, BLOCKS, BLOCKS, BLOCKS, BLOCK_BYTES, 255, BLOCK_BYTES);
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if mode != 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let extend = |state: &mut State| {
            let file = state.disk.file(ino.0)?;
            let end = offset + length;
            if file.length() < end {
                file.set_length(end);
            }
            Ok(())
        };
        finish(reply, self.change(extend, true));
    }

    fn lseek(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let found = self.look().and_then(|mut state| {
            let file = state.disk.file(ino.0).map_err(errno)?;
            let at = u64::try_from(offset).map_err(|_negative| Errno::ENXIO)?;
            match whence {
                SEEK_DATA if at < file.used() => Ok(at),
                SEEK_HOLE if at < file.length() => Ok(at.max(file.used())),
                SEEK_DATA | SEEK_HOLE => Err(Errno::ENXIO),
                _ => Err(Errno::EINVAL),
            }
        });
        match found {
            Ok(at) => reply.offset(at as i64),
            Err(error) => reply.error(error),
        }
    }
}
