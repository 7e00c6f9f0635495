//! What a tree keeps in memory between operations, told: memory that grows is in these figures, or is
//! kept by mistake.

use super::open::OpenFile;
use super::{FileSystem, TxStore, lock};
use std::mem::size_of;

/// A part of what is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeptPart {
    /// Files that are open, or have something that waits for its commit: what waits is not counted.
    OpenFiles,
    /// First pages of directories.
    Directories,
    /// Pages of inodes that are filled here, or were.
    InodePages,
    /// Times at which files were read.
    Accesses,
    /// Directories and files near those who walk through the tree.
    Walk,
}

impl KeptPart {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::OpenFiles, Self::Directories, Self::InodePages, Self::Accesses, Self::Walk];

    /// How it is called in figures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::OpenFiles => "open_files",
            Self::Directories => "directories",
            Self::InodePages => "inode_pages",
            Self::Accesses => "accesses",
            Self::Walk => "walk",
        }
    }
}

/// How much is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Kept {
    /// So many entries.
    pub entries: u64,
    /// Bytes of memory that they take, about.
    pub bytes: u64,
}

impl Kept {
    /// So many entries, each of about so many bytes.
    #[must_use]
    pub fn of(entries: usize, bytes_each: usize) -> Self {
        Self { entries: entries as u64, bytes: (entries * bytes_each) as u64 }
    }
}

/// Of an entry of a tree map of keys and values of so many bytes: its nodes are two thirds full.
const fn in_map(bytes: usize) -> usize {
    bytes * 3 / 2
}

impl<S: TxStore> FileSystem<S> {
    /// What is kept of a part.
    #[must_use]
    pub fn kept(&self, part: KeptPart) -> Kept {
        match part {
            KeptPart::OpenFiles => {
                Kept::of(self.open_files.len(), in_map(32) + size_of::<OpenFile>())
            }
            KeptPart::Directories => Kept::of(lock(&self.tries).len(), in_map(32)),
            KeptPart::InodePages => Kept::of(self.inode_pages.len(), in_map(40)),
            KeptPart::Accesses => Kept::of(self.accessed.len(), in_map(40)),
            KeptPart::Walk => {
                let (directories, files) = self.crawler.known();
                let of_directories = Kept::of(directories, in_map(super::walk::NODE_BYTES));
                let of_files = Kept::of(files, super::walk::FILE_BYTES);
                Kept {
                    entries: of_directories.entries + of_files.entries,
                    bytes: of_directories.bytes + of_files.bytes,
                }
            }
        }
    }
}
