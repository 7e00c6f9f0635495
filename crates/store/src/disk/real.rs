//! A directory of the operating system.

use super::{Disk, DiskError, DiskFile};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Name of the file whose lock keeps a second process out.
const LOCK_NAME: &str = "lock";

/// A directory of the operating system, locked against other processes while it is open.
#[derive(Debug)]
pub struct RealDisk {
    path: PathBuf,
    /// Held for its advisory lock, which the system gives back when the process ends, however.
    _lock: File,
}

/// An open file of a [`RealDisk`].
#[derive(Debug)]
pub struct RealFile {
    path: PathBuf,
    file: File,
}

impl RealDisk {
    /// Opens a directory, making it (durably) if it is not there, and locks it.
    ///
    /// # Errors
    /// [`DiskError::Locked`] when another process (or another `RealDisk` of this one) has it open.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, DiskError> {
        let path = path.into();
        make_folder(&path, &mut sync_folder)?;
        let lock_path = path.join(LOCK_NAME);
        let lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock_path)
            .map_err(|error| failed(&lock_path, "open", &error))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                Err(DiskError::Locked { file: lock_path.display().to_string() })
            }
            Err(TryLockError::Error(error)) => Err(failed(&lock_path, "lock", &error)),
        }
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Disk for RealDisk {
    type File = RealFile;

    fn create(&self, name: &str) -> Result<RealFile, DiskError> {
        let path = self.path.join(name);
        OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(|error| failed(&path, "create", &error))
            .map(|file| RealFile { path, file })
    }

    fn open(&self, name: &str) -> Result<RealFile, DiskError> {
        let path = self.path.join(name);
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|error| failed(&path, "open", &error))
            .map(|file| RealFile { path, file })
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        let failed = |error: &io::Error| failed(&self.path, "list", error);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(|error| failed(&error))? {
            let entry = entry.map_err(|error| failed(&error))?;
            let is_file = entry.file_type().map_err(|error| failed(&error))?.is_file();
            // A name that is not UTF-8 is none of ours.
            if let (true, Ok(name)) = (is_file, entry.file_name().into_string()) {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        let path = self.path.join(name);
        std::fs::remove_file(&path).map_err(|error| failed(&path, "remove", &error))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let path = self.path.join(from);
        std::fs::rename(&path, self.path.join(to)).map_err(|error| failed(&path, "rename", &error))
    }

    fn sync_directory(&self) -> Result<(), DiskError> {
        sync_folder(&self.path)
    }

    fn free_bytes(&self) -> Result<u64, DiskError> {
        rustix::fs::statvfs(&self.path)
            .map(|status| status.f_bavail.saturating_mul(status.f_frsize))
            .map_err(|error| failed(&self.path, "look at", &error.into()))
    }
}

impl DiskFile for RealFile {
    fn length(&self) -> Result<u64, DiskError> {
        self.file
            .metadata()
            .map(|metadata| metadata.len())
            .map_err(|error| failed(&self.path, "look at", &error))
    }

    fn preallocate(&self, bytes: u64) -> Result<(), DiskError> {
        let flags = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(&self.file, flags, 0, bytes) {
            // File systems without reservation: the log writes zeros over all of it before use.
            Err(rustix::io::Errno::OPNOTSUPP) => self.file.set_len(bytes),
            other => other.map_err(Into::into),
        }
        .map_err(|error| failed(&self.path, "extend", &error))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(&self.path, "read", &error)),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.file.write_all_at(bytes, offset).map_err(|error| failed(&self.path, "write", &error))
    }

    fn sync(&self) -> Result<(), DiskError> {
        self.file.sync_data().map_err(|error| failed(&self.path, "sync", &error))
    }
}

/// Makes a folder and those above it that are not there, each with `sync` of the one it is named
/// in. That of `path` itself is synced in any case: whoever made it may have died before.
fn make_folder(
    path: &Path,
    sync: &mut impl FnMut(&Path) -> Result<(), DiskError>,
) -> Result<(), DiskError> {
    let above = match path.parent() {
        Some(above) if above.as_os_str().is_empty() => Path::new("."),
        Some(above) => above,
        // The root of all.
        None => return Ok(()),
    };
    if !path.is_dir() {
        if !above.is_dir() {
            make_folder(above, sync)?;
        }
        match std::fs::create_dir(path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(failed(path, "create", &error));
            }
            _ => {}
        }
    }
    sync(above)
}

fn sync_folder(path: &Path) -> Result<(), DiskError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| failed(path, "sync", &error))
}

fn failed(path: &Path, operation: &'static str, error: &io::Error) -> DiskError {
    let file = path.display().to_string();
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => DiskError::Full { file, operation },
        ErrorKind::NotFound => DiskError::Missing { file },
        ErrorKind::AlreadyExists => DiskError::Exists { file },
        _ => DiskError::Failed { file, operation, detail: error.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Folders were made and the ones they are named in were not synced: a power cut after the
    /// first commits of a new store took its folder away, and with it all that was acknowledged.
    #[test]
    fn the_name_of_a_new_folder_is_synced_and_so_are_those_above_it() {
        let root = std::env::temp_dir().join(format!("larder-folder-{}", std::process::id()));
        std::fs::create_dir(&root).expect("a new name");
        let mut synced = Vec::new();
        let path = root.join("a/b");
        let mut note = |path: &Path| {
            synced.push((path.to_owned(), path.join("b").is_dir()));
            Ok(())
        };
        make_folder(&path, &mut note).expect("writable");
        make_folder(&path, &mut note).expect("there already");
        let above = (root.join("a"), true);
        assert_eq!(synced, [(root.clone(), false), above.clone(), above]);
        std::fs::remove_dir_all(&root).expect("removes");
    }
}
