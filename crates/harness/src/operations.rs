//! File operations drawn from a seed, done at a mount and on the local disk alike: what a local file
//! system answers is what is wanted of the mount.

use larder_core::rng::Rng;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

/// Paths that the operations use, some of them below what may or may not be a directory.
const PATHS: [&str; 12] =
    ["a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/a", "f", "f/a", "f/e", "f/e/b"];
/// What symbolic links say.
const TARGETS: [&str; 5] = ["a", "../a", "d", "d/e", "nowhere"];

/// An operation; paths are by their place in a list.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Opens for writing what may not be there.
    Create(usize),
    /// Makes what may not be there yet.
    CreateNew(usize),
    /// Makes a directory.
    Directory(usize),
    /// Gives a file a second name.
    Link(usize, usize),
    /// Makes a symbolic link to one of some targets.
    Symlink(usize, usize),
    /// Makes a pipe.
    Fifo(usize),
    /// Renames, in one of its forms.
    Rename(usize, usize, RenameFlags),
    /// Removes a name.
    Unlink(usize),
    /// Removes a directory.
    RemoveDirectory(usize),
    /// Sets the mode.
    Mode(usize, u32),
    /// Sets owner and group, of a link itself.
    Owner(usize, u32, u32),
    /// Cuts or lengthens.
    Truncate(usize, u64),
    /// Writes 100 bytes somewhere.
    WriteAt(usize, u64, u8),
    /// Writes 10 bytes at the end.
    Append(usize, u8),
    /// Opens a file and keeps it open, in the place of another.
    Hold(usize),
    /// Writes 50 bytes into the file that is open.
    WriteHeld(u64, u8),
    /// Reads a file.
    Read(usize),
    /// Reads the file that is open.
    ReadHeld,
    /// Lists a directory.
    List(usize),
    /// Looks at what a name leads to.
    Look(usize),
}

impl Op {
    /// Whether it may be seen half done when it is cut off: all others happen or do not.
    #[must_use]
    pub fn has_steps(self) -> bool {
        matches!(self, Self::Truncate(..) | Self::WriteAt(..) | Self::Append(..))
    }

    /// Draws one.
    #[must_use]
    pub fn draw(rng: &mut Rng) -> Self {
        let mut path = || rng.below(PATHS.len() as u64) as usize;
        let (one, two) = (path(), path());
        let byte = b'a' + rng.below(26) as u8;
        match rng.below(24) {
            0 | 1 => Self::Create(one),
            2 => Self::CreateNew(one),
            3 | 4 => Self::Directory(one),
            5 => Self::Link(one, two),
            6 => Self::Symlink(rng.below(TARGETS.len() as u64) as usize, one),
            7 => Self::Fifo(one),
            8 => Self::Rename(one, two, RenameFlags::empty()),
            9 => Self::Rename(one, two, RenameFlags::NOREPLACE),
            10 => Self::Rename(one, two, RenameFlags::EXCHANGE),
            11 | 12 => Self::Unlink(one),
            13 => Self::RemoveDirectory(one),
            14 => Self::Mode(one, rng.below(0o10000) as u32),
            15 => Self::Owner(one, rng.below(3) as u32, rng.below(3) as u32),
            16 => Self::Truncate(one, rng.below(3) * 9000),
            17 => Self::WriteAt(one, rng.below(3) * 5000, byte),
            18 => Self::Append(one, byte),
            19 => Self::Hold(one),
            20 => Self::WriteHeld(rng.below(2) * 7000, byte),
            21 => Self::ReadHeld,
            22 => Self::Read(one),
            _ if byte < b'm' => Self::List(one),
            _ => Self::Look(one),
        }
    }
}

/// What an operation showed, or the error's number.
pub type Seen = std::result::Result<String, Option<i32>>;

/// What somebody sees of a name, without what differs between file systems.
fn looks(path: &Path) -> std::io::Result<String> {
    let about = fs::symlink_metadata(path)?;
    let kind = about.file_type();
    let mut text = format!("{:o} {}:{}", about.mode(), about.uid(), about.gid());
    if !kind.is_dir() {
        let _infallible = write!(text, " links {}", about.nlink());
    }
    if kind.is_file() {
        let _infallible = write!(text, " size {}", about.len());
    } else if kind.is_symlink() {
        let _infallible = write!(text, " to {}", fs::read_link(path)?.display());
    }
    Ok(text)
}

/// A place where the operations are done, with the file that is held open there.
pub struct Place {
    /// The folder.
    pub root: PathBuf,
    held: Option<File>,
    synced: bool,
}

impl Place {
    /// A folder that is there.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self { root, held: None, synced: false }
    }

    /// The same, with every file synced that was written to.
    #[must_use]
    pub fn synced(root: PathBuf) -> Self {
        Self { synced: true, ..Self::new(root) }
    }

    /// How many names the file that is held open has; none: it cannot be told.
    #[must_use]
    pub fn held_links(&self) -> Option<u64> {
        Some(self.held.as_ref()?.metadata().ok()?.nlink())
    }

    /// Holds nothing open any more.
    pub fn let_go(&mut self) {
        self.held = None;
    }

    fn at(&self, path: usize) -> PathBuf {
        self.root.join(PATHS[path])
    }

    /// Opens without waiting for whoever is at the other end of a pipe.
    fn open(&self, path: usize, flags: OFlags) -> std::io::Result<File> {
        let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::open(self.at(path), flags, Mode::from_raw_mode(0o666))?))
    }

    /// Does an operation.
    ///
    /// # Errors
    /// The number of what went wrong; none: what has no number.
    pub fn run(&mut self, op: Op) -> Seen {
        self.try_run(op).map_err(|error| error.raw_os_error())
    }

    fn change(
        &self,
        at: usize,
        flags: OFlags,
        work: impl FnOnce(&File) -> std::io::Result<()>,
    ) -> std::io::Result<String> {
        let file = self.open(at, flags)?;
        work(&file)?;
        if self.synced && file.metadata()?.is_file() {
            file.sync_all()?;
        }
        Ok(String::new())
    }

    fn try_run(&mut self, op: Op) -> std::io::Result<String> {
        let done = |()| String::new();
        match op {
            Op::Create(at) => self.change(at, OFlags::WRONLY | OFlags::CREATE, |_| Ok(())),
            Op::CreateNew(at) => {
                self.change(at, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, |_| Ok(()))
            }
            Op::Directory(at) => fs::create_dir(self.at(at)).map(done),
            Op::Link(from, to) => fs::hard_link(self.at(from), self.at(to)).map(done),
            Op::Symlink(target, at) => symlink(TARGETS[target], self.at(at)).map(done),
            Op::Fifo(at) => {
                let (kind, mode) = (FileType::Fifo, Mode::from_raw_mode(0o644));
                Ok(done(rustix::fs::mknodat(CWD, self.at(at), kind, mode, 0)?))
            }
            Op::Rename(from, to, flags) => {
                // A directory that another site moved, and that the kernel meets first in a rename from
                // one directory to another, it answers by ESTALE, as over NFS.
                let _either = (self.at(from).symlink_metadata(), self.at(to).symlink_metadata());
                Ok(done(rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags)?))
            }
            Op::Unlink(at) => Ok(done(rustix::fs::unlinkat(CWD, self.at(at), AtFlags::empty())?)),
            Op::RemoveDirectory(at) => fs::remove_dir(self.at(at)).map(done),
            Op::Mode(at, mode) => {
                fs::set_permissions(self.at(at), fs::Permissions::from_mode(mode)).map(done)
            }
            Op::Owner(at, uid, gid) => lchown(self.at(at), Some(uid), Some(gid)).map(done),
            Op::Truncate(at, length) => {
                self.change(at, OFlags::WRONLY, |file| file.set_len(length))
            }
            Op::WriteAt(at, offset, byte) => {
                self.change(at, OFlags::WRONLY, |file| file.write_all_at(&[byte; 100], offset))
            }
            Op::Append(at, byte) => {
                let flags = OFlags::WRONLY | OFlags::APPEND;
                self.change(at, flags, |mut file| file.write_all(&[byte; 10]))
            }
            Op::Hold(at) => {
                self.held = None;
                let file = self.open(at, OFlags::RDWR)?;
                if file.metadata()?.file_type().is_fifo() {
                    return Ok("a pipe".into());
                }
                self.held = Some(file);
                Ok(String::new())
            }
            Op::WriteHeld(offset, byte) => match &self.held {
                Some(file) => file.write_all_at(&[byte; 50], offset).map(done),
                None => Ok("none is held".into()),
            },
            Op::ReadHeld => match &self.held {
                Some(file) => {
                    let mut bytes = vec![0; 40_000];
                    let length = file.read_at(&mut bytes, 0)?;
                    let links = file.metadata()?.nlink();
                    Ok(format!("{links} {:?}", &bytes[..length]))
                }
                None => Ok("none is held".into()),
            },
            Op::Read(at) => {
                let file = self.open(at, OFlags::RDONLY)?;
                if !file.metadata()?.is_file() {
                    return Ok("no file".into());
                }
                let mut bytes = vec![0; 40_000];
                let length = file.read_at(&mut bytes, 0)?;
                Ok(format!("{:?}", &bytes[..length]))
            }
            Op::List(at) => {
                let names = fs::read_dir(self.at(at))?;
                let mut names: Vec<_> = names
                    .map(|entry| entry.map(|e| e.file_name()))
                    .collect::<std::io::Result<_>>()?;
                names.sort();
                Ok(format!("{names:?}"))
            }
            Op::Look(at) => looks(&self.at(at)),
        }
    }
}

/// Everything below a folder: what each name looks like, with the bytes of files.
///
/// # Errors
/// When something cannot be looked at.
pub fn tree(root: &Path) -> std::io::Result<BTreeMap<PathBuf, String>> {
    let (mut seen, mut ahead) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(folder) = ahead.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let mut text = looks(&path)?;
            if path.symlink_metadata()?.is_file() {
                let _infallible = write!(text, " {}", fs::read(&path)?.escape_ascii());
            } else if path.symlink_metadata()?.is_dir() {
                ahead.push(path.clone());
            }
            let below = path.strip_prefix(root).map(Path::to_path_buf);
            seen.insert(below.map_err(std::io::Error::other)?, text);
        }
    }
    Ok(seen)
}
