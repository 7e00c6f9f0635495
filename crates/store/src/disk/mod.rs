//! The small set of file operations that the log needs: the seam below which faults are injected.
//!
//! Everything blocks. A disk is one flat directory of files. What a crash keeps: bytes written to a
//! file before its last successful `sync`, and names created, renamed or removed before the last
//! successful `sync_directory`. Anything later may be kept or lost, sector by sector (512 bytes) and
//! name by name, in any combination. A failed sync says nothing about what was kept, now or later.

mod real;

pub use real::RealDisk;

/// A directory of files.
pub trait Disk {
    /// An open file.
    type File: DiskFile + std::fmt::Debug;

    /// Makes an empty file; it must not be there.
    fn create(&self, name: &str) -> Result<Self::File, DiskError>;
    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> Result<Self::File, DiskError>;
    /// Names of all files, ascending.
    fn list(&self) -> Result<Vec<String>, DiskError>;
    /// Removes a file.
    fn remove(&self, name: &str) -> Result<(), DiskError>;
    /// Renames a file, replacing what had the new name.
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError>;
    /// Makes the names durable.
    fn sync_directory(&self) -> Result<(), DiskError>;
    /// Bytes that could still be allocated.
    fn free_bytes(&self) -> Result<u64, DiskError>;
}

/// An open file of a [`Disk`].
pub trait DiskFile {
    /// Its length in bytes.
    fn length(&self) -> Result<u64, DiskError>;
    /// Makes it `bytes` long, with room reserved for all of them; new bytes read as zeros.
    fn preallocate(&self, bytes: u64) -> Result<(), DiskError>;
    /// Reads until `buffer` is full or the file ends; says how many bytes were read.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError>;
    /// Writes all of `bytes`.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError>;
    /// Makes the file's bytes durable. After an error nothing is known of them, and asking again
    /// proves nothing: the system may have dropped them and then report success.
    fn sync(&self) -> Result<(), DiskError>;
}

/// Why a file operation failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DiskError {
    /// No room.
    #[error("no room to {operation} {file}: free space on its file system, or raise the quota")]
    Full {
        /// Which file.
        file: String,
        /// What was tried.
        operation: &'static str,
    },
    /// No such file.
    #[error("{file} is missing: restore it from a backup, or check the configured directory")]
    Missing {
        /// Which file.
        file: String,
    },
    /// A file of that name is there.
    #[error("{file} is there already: use another directory, or move it away")]
    Exists {
        /// Which file.
        file: String,
    },
    /// Another process uses the directory.
    #[error("{file} is locked: another process serves this directory; stop that one first")]
    Locked {
        /// The lock file.
        file: String,
    },
    /// Anything else the system said.
    #[error(
        "cannot {operation} {file}: {detail}; check the device and the system's log before a restart"
    )]
    Failed {
        /// Which file.
        file: String,
        /// What was tried.
        operation: &'static str,
        /// What the system said.
        detail: String,
    },
}

impl<D: Disk + ?Sized> Disk for std::sync::Arc<D> {
    type File = D::File;

    fn create(&self, name: &str) -> Result<Self::File, DiskError> {
        (**self).create(name)
    }
    fn open(&self, name: &str) -> Result<Self::File, DiskError> {
        (**self).open(name)
    }
    fn list(&self) -> Result<Vec<String>, DiskError> {
        (**self).list()
    }
    fn remove(&self, name: &str) -> Result<(), DiskError> {
        (**self).remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        (**self).rename(from, to)
    }
    fn sync_directory(&self) -> Result<(), DiskError> {
        (**self).sync_directory()
    }
    fn free_bytes(&self) -> Result<u64, DiskError> {
        (**self).free_bytes()
    }
}

/// Reads a whole file.
pub(crate) fn read_all<F: DiskFile>(file: &F, name: &str) -> Result<Vec<u8>, DiskError> {
    let length = usize::try_from(file.length()?).map_err(|_| DiskError::Failed {
        file: name.into(),
        operation: "read",
        detail: "longer than memory".into(),
    })?;
    let mut bytes = vec![0; length];
    let read = file.read_at(0, &mut bytes)?;
    bytes.truncate(read);
    Ok(bytes)
}
