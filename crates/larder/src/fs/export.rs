//! `larder volume export`: a volume's tree into a folder of the host.

use super::host::{host, set_xattrs};
use super::names::check_name;
use super::record::{Content, XattrList, Xattrs};
use super::{Attr, DirEntry, FileSystem, FsError, InodeId, Kind, Position, Tx, TxStore};
use bytes::Bytes;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Timespec, Timestamps, fchmod, fchown, mknodat, open,
    syncfs, utimensat,
};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{DirBuilder, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::task::JoinSet;

/// Names listed at a time.
const LIST: usize = 1000;
/// Files written side by side.
const PIPELINE: usize = 16;
/// Bytes of a file read at a time.
const PART_BYTES: usize = 4 << 20;

/// A file in a folder that is being exported to, which says that it is not whole. The export does not
/// make it, and removes it when all is on the disk.
pub const MARKER: &str = ".larder-export";

/// How to export.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExportOptions {
    /// Leave plain files as they are that are there with the same size, mode, time of modification
    /// and (if root exports) owner, and of which nothing was changed in the volume from this time on,
    /// in nanoseconds since 1970: an export that began then, by the clock of whoever changes files, has
    /// written them whole, since it sets what is compared when it is done with a file.
    pub keep_before: Option<i64>,
}

/// What has been done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ExportProgress {
    /// Files and directories known of so far.
    pub found: u64,
    /// Directories made.
    pub directories: u64,
    /// Files and links written.
    pub files: u64,
    /// Files that were there.
    pub skipped: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// Makes a folder for an export, and takes it for the exporter alone until all is there: see
/// [`export`].
pub fn take_target(target: &Path) -> Result<(), FsError> {
    if let Some(above) = target.parent() {
        std::fs::create_dir_all(above).map_err(host(above))?;
    }
    if !target.is_dir() {
        make_directory(target)?;
    }
    // The folder itself may be one that a link leads to.
    take_over(target, OFlags::empty())
}

/// Exports the tree below `source` into `target`, which is made if it is not there. Files that
/// are there are overwritten, others left alone. Until all is done the directories are the exporter's
/// alone (mode 0700): whoever owns one in the volume could put links into it otherwise, which would
/// be followed. Each directory is read as one state; the whole
/// is one state only if nobody changes it meanwhile. Owners are set if the host allows it.
pub async fn export<S: TxStore>(
    fs: &Arc<FileSystem<S>>,
    source: InodeId,
    target: &Path,
    options: ExportOptions,
    progress: &mut (dyn FnMut(&ExportProgress) + Send),
) -> Result<ExportProgress, FsError> {
    let mut done = ExportProgress { found: 1, ..ExportProgress::default() };
    let mut links: BTreeMap<InodeId, PathBuf> = BTreeMap::new();
    let mut met = BTreeSet::new();
    let mut made = vec![(fs.getattr(source).await?, target.to_path_buf())];
    let mut at = 0;
    while at < made.len() {
        let (attr, path) = made[at].clone();
        at += 1;
        if !met.insert(attr.id) {
            // There would be no end of directories that hold one another.
            let what = format!("{}: a directory that has another name as well", path.display());
            return Err(FsError::Damaged(what));
        }
        if path == target {
            take_target(&path)?;
        } else {
            make_directory(&path)?;
            take_over(&path, OFlags::NOFOLLOW)?;
        }
        done.directories += 1;
        // A directory's size is the number of its names.
        done.found += attr.inode.size;
        let mut running = JoinSet::new();
        let mut position = Position::default();
        loop {
            let listed = fs.read_dir(attr.id, &position, LIST, true).await?;
            let Some(last) = listed.last() else { break };
            position = last.position.clone();
            for entry in listed {
                // Whoever may write to the volume may have put any bytes there (bug 62).
                if check_name(&entry.entry.name).is_err() {
                    let name = entry.entry.name.escape_ascii();
                    let what = format!("{}: the entry '{name}' is no name", path.display());
                    return Err(FsError::Damaged(what));
                }
                let path = path.join(OsStr::from_bytes(&entry.entry.name));
                let Some(attr) = entry.attr.clone() else { continue };
                if options.keep_before.is_some() {
                    remove_other_kind(&path, attr.inode.kind == Kind::Directory)?;
                }
                if attr.inode.kind == Kind::Directory {
                    made.push((attr, path));
                } else if let Some(first) = links.get(&attr.id) {
                    // The first name must be written before it can be linked.
                    finish(&mut running, 0, &mut done).await?;
                    replace_by_link(first, &path)?;
                    done.files += 1;
                } else {
                    if attr.inode.links > 1 {
                        links.insert(attr.id, path.clone());
                    }
                    if options.keep_before.is_some_and(|before| is_same(&path, &attr, before)) {
                        done.skipped += 1;
                        continue;
                    }
                    let fs = fs.clone();
                    running.spawn(async move { write_file(&fs, &entry, &attr, &path).await });
                    finish(&mut running, PIPELINE, &mut done).await?;
                }
            }
            progress(&done);
        }
        finish(&mut running, 0, &mut done).await?;
        progress(&done);
    }
    // Children before parents: making names changes times, and a mode may forbid it.
    for (attr, path) in made.iter().rev() {
        if path == target {
            finish_target(path)?;
        }
        set_attributes(path, attr, &xattrs_of(fs, attr).await?)?;
    }
    progress(&done);
    Ok(done)
}

async fn finish(
    running: &mut JoinSet<Result<u64, FsError>>,
    leave: usize,
    done: &mut ExportProgress,
) -> Result<(), FsError> {
    while running.len() > leave {
        let result = running.join_next().await.expect("not empty");
        done.bytes += result.expect("writing a file does not panic")?;
        done.files += 1;
    }
    Ok(())
}

/// All that was written is on the disk before the mark goes, and the mark goes before the folder gets
/// its times.
fn finish_target(target: &Path) -> Result<(), FsError> {
    let folder = File::open(target).map_err(host(target))?;
    syncfs(&folder).map_err(|error| host(target)(error.into()))?;
    remove_if_there(&target.join(MARKER))
}

/// Whether an export has written this plain file whole, and it has not changed since.
fn is_same(path: &Path, attr: &Attr, before: i64) -> bool {
    let Ok(there) = std::fs::symlink_metadata(path) else {
        return false;
    };
    let modified = i128::from(there.mtime()) * 1_000_000_000 + i128::from(there.mtime_nsec());
    // Who may not give files away keeps them all.
    let owned =
        !geteuid().is_root() || (there.uid(), there.gid()) == (attr.inode.uid, attr.inode.gid);
    attr.inode.kind == Kind::File
        && attr.inode.ctime < before
        && owned
        && there.is_file()
        && there.len() == attr.inode.size
        && there.mode() & 0o7777 == u32::from(attr.inode.mode)
        && modified == i128::from(attr.inode.mtime)
}

/// Makes a directory, if none is there.
fn make_directory(path: &Path) -> Result<(), FsError> {
    let there = || std::fs::symlink_metadata(path).is_ok_and(|there| there.is_dir());
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists && there() => Ok(()),
        other => other.map_err(host(path)),
    }
}

/// Makes a directory the exporter's alone: one of an earlier run may have been given to its owner.
fn take_over(path: &Path, flags: OFlags) -> Result<(), FsError> {
    let failed = |error: Errno| host(path)(error.into());
    let flags = flags | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = File::from(open(path, flags, Mode::empty()).map_err(failed)?);
    let about = folder.metadata().map_err(host(path))?;
    if about.uid() != geteuid().as_raw() {
        fchown(&folder, Some(geteuid()), Some(getegid())).map_err(failed)?;
    }
    fchmod(&folder, Mode::RWXU).map_err(failed)
}

/// Removes what an export before this one left at a name that is of another kind by now, a link to
/// a directory too: nothing is written where a link leads.
fn remove_other_kind(path: &Path, directory: bool) -> Result<(), FsError> {
    let removed = match std::fs::symlink_metadata(path) {
        Ok(there) if there.is_dir() && !directory => std::fs::remove_dir_all(path),
        Ok(there) if !there.is_dir() && directory => std::fs::remove_file(path),
        _ => return Ok(()),
    };
    removed.map_err(host(path))
}

fn remove_if_there(path: &Path) -> Result<(), FsError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other.map_err(host(path)),
    }
}

fn replace_by_link(first: &Path, path: &Path) -> Result<(), FsError> {
    remove_if_there(path)?;
    std::fs::hard_link(first, path).map_err(host(path))
}

/// Writes one file, link or special file; gives its bytes.
async fn write_file<S: TxStore>(
    fs: &FileSystem<S>,
    entry: &DirEntry,
    attr: &Attr,
    path: &Path,
) -> Result<u64, FsError> {
    if attr.inode.kind == Kind::Symlink {
        let target = fs.readlink(entry.entry.id).await?;
        remove_if_there(path)?;
        std::os::unix::fs::symlink(OsStr::from_bytes(&target), path).map_err(host(path))?;
        own(path, attr);
        set_xattrs(path, &xattrs_of(fs, attr).await?)?;
        set_times(path, attr)?;
        return Ok(0);
    }
    remove_if_there(path)?;
    if attr.inode.kind.is_special() {
        make_special(path, attr, &xattrs_of(fs, attr).await?)?;
        return Ok(0);
    }
    let file = File::create_new(path).map_err(host(path))?;
    let mut offset = 0;
    while offset < attr.inode.size {
        let bytes = fs.read_part(attr.id, offset, PART_BYTES).await?;
        if bytes.is_empty() {
            break;
        }
        write_at(&file, offset, &bytes).map_err(host(path))?;
        offset += bytes.len() as u64;
    }
    drop(file);
    set_attributes(path, attr, &xattrs_of(fs, attr).await?)?;
    Ok(offset)
}

async fn xattrs_of<S: TxStore>(fs: &FileSystem<S>, attr: &Attr) -> Result<XattrList, FsError> {
    match &attr.inode.xattrs {
        Xattrs::None => Ok(XattrList::default()),
        Xattrs::Here(list) => XattrList::decode(list),
        Xattrs::Pages(_) => fs.xattrs(attr.id).await,
    }
}

/// Pages of zeros are left out: they may be holes.
fn write_at(file: &File, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
    use std::os::unix::fs::FileExt;
    let end = offset + bytes.len() as u64;
    for (i, part) in bytes.chunks(1 << 16).enumerate() {
        if part.iter().any(|byte| *byte != 0) {
            file.write_all_at(part, offset + ((i as u64) << 16))?;
        }
    }
    if file.metadata()?.len() < end {
        file.set_len(end)?;
    }
    Ok(())
}

fn system_time(nanos: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanos.unsigned_abs());
    if nanos >= 0 { SystemTime::UNIX_EPOCH + distance } else { SystemTime::UNIX_EPOCH - distance }
}

/// Who may not give files away keeps them.
fn own(path: &Path, attr: &Attr) {
    let _refused = std::os::unix::fs::lchown(path, Some(attr.inode.uid), Some(attr.inode.gid));
}

/// Makes a pipe, socket or device, which must not be opened to be given its attributes.
fn make_special(path: &Path, attr: &Attr, xattrs: &XattrList) -> Result<(), FsError> {
    let kind = match attr.inode.kind {
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharacterDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        _ => FileType::Fifo,
    };
    let device = match attr.inode.content {
        Content::Device(number) => number,
        _ => 0,
    };
    let made = mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), device);
    made.map_err(|error| match error {
        Errno::PERM => FsError::Host {
            path: path.into(),
            error: "only root may make a device: export as root, or remove it from the volume"
                .into(),
        },
        error => host(path)(error.into()),
    })?;
    own(path, attr);
    set_xattrs(path, xattrs)?;
    let mode = std::fs::Permissions::from_mode(u32::from(attr.inode.mode));
    std::fs::set_permissions(path, mode).map_err(host(path))?;
    set_times(path, attr)
}

fn set_times(path: &Path, attr: &Attr) -> Result<(), FsError> {
    let time = |nanos: i64| Timespec {
        tv_sec: nanos.div_euclid(1_000_000_000),
        tv_nsec: nanos.rem_euclid(1_000_000_000),
    };
    let times = Timestamps {
        last_access: time(attr.inode.atime),
        last_modification: time(attr.inode.mtime),
    };
    utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| host(path)(error.into()))
}

fn set_attributes(path: &Path, attr: &Attr, xattrs: &XattrList) -> Result<(), FsError> {
    own(path, attr);
    // Open before an access list or mode may forbid it.
    let file = File::open(path).map_err(host(path))?;
    set_xattrs(path, xattrs)?;
    let times = std::fs::FileTimes::new()
        .set_accessed(system_time(attr.inode.atime))
        .set_modified(system_time(attr.inode.mtime));
    file.set_times(times).map_err(host(path))?;
    let mode = std::fs::Permissions::from_mode(u32::from(attr.inode.mode));
    file.set_permissions(mode).map_err(host(path))
}

impl<S: TxStore> FileSystem<S> {
    /// A part of a file as committed, without opening it.
    pub async fn read_part(
        &self,
        id: InodeId,
        offset: u64,
        length: usize,
    ) -> Result<Bytes, FsError> {
        super::transact!(self, tx => {
            let inode = self.inode(&tx, id).await?;
            if offset == 0 {
                self.crawler.read(&inode);
            }
            let size = inode.size;
            let next = offset + length as u64;
            self.prefetch_content(&inode, next..size.min(next + length as u64));
            self.read_content(&tx, id, &inode, offset, length).await
        })
    }

    /// Walks names to an inode, from the root: `a/b/c`. Symbolic links are not followed.
    pub async fn resolve(&self, path: &[u8]) -> Result<Attr, FsError> {
        let mut attr = self.getattr(self.root()).await?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let found = self.lookup(attr.id, name).await?;
            attr = found.attr.ok_or(FsError::NotFound)?;
        }
        Ok(attr)
    }

    /// Whether the volume can be read now: begins and ends a transaction.
    pub async fn probe(&self) -> Result<(), FsError> {
        let tx = self.store.begin(super::Mode::Normal).await?;
        tx.get(super::ROOT_PAGE, super::ROOT_SLOT).await?;
        Ok(())
    }
}
