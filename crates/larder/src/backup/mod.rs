//! Backups: a volume in one file, as it was at one stamp, though it is written to all the time; and
//! volumes made from such files.
//!
//! `docs/decisions/0015-backups.md` says how and why, `docs/formats/backup.md` is the format.
//! [`back_up`] copies a volume, [`verify`] looks at a file without an origin, [`restore()`] makes a
//! volume of it.

mod copy;
pub mod format;
mod restore;
mod tally;
#[cfg(test)]
mod tests;

pub use copy::{BackupOptions, back_up};
pub use restore::{Restored, restore};

use crate::client::Error;
use format::{Entry, FormatError, Header, Part, Parts, Trailer};
use larder_core::id::PageNo;
use std::collections::BTreeMap;
use std::io::Read;
use tally::Tally;

/// What can go wrong with a backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The file is no backup, or not a whole one.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Reading or writing the file failed.
    #[error("the backup file: {0}")]
    Io(#[from] std::io::Error),
    /// The volume could not be read or written.
    #[error(transparent)]
    Client(#[from] Error),
    /// The volume that is to be restored into is another one.
    #[error(
        "volume {0} is there and is no unfinished restoration of this file: restore under another name"
    )]
    Taken(String),
    /// The volume changes faster than it can be read.
    #[error(
        "the volume was written to faster than it could be read, {attempts} times: {reason}; back it up nearer to its origin, or when less is written"
    )]
    TooBusy {
        /// How often its last state was asked for.
        attempts: u32,
        /// What the origin said at last.
        reason: String,
    },
}

/// How far a backup or a restoration is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BackupProgress {
    /// Pages done.
    pub pages: u64,
    /// Pages known to be done in all.
    pub known: u64,
    /// Bytes of their images.
    pub bytes: u64,
}

/// What a backup holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Of which volume.
    pub header: Header,
    /// As of when.
    pub trailer: Trailer,
    /// Bytes of the file.
    pub bytes: u64,
}

/// What a walk through a whole file found beside its summary.
pub(crate) struct Verified {
    pub(crate) summary: Summary,
    /// Pages that are in the file more than once, or may be: where the last one is.
    pub(crate) last: BTreeMap<PageNo, u64>,
    /// Page 1, if it is there.
    pub(crate) root: Option<larder_core::page::Page>,
}

/// Looks through a whole file: every checksum, every page, the counts of its trailer. It needs
/// memory for the pages that were copied again, and two bits for each other page.
pub fn verify(
    file: impl Read,
    progress: &mut (dyn FnMut(BackupProgress) + Send),
) -> Result<Summary, BackupError> {
    Ok(look_through(file, progress)?.summary)
}

pub(crate) fn look_through(
    file: impl Read,
    progress: &mut (dyn FnMut(BackupProgress) + Send),
) -> Result<Verified, BackupError> {
    let mut parts = Parts::new(file)?;
    let header = parts.header().clone();
    let (mut tally, mut last, mut root) = (Tally::default(), BTreeMap::new(), None);
    let mut done = BackupProgress::default();
    loop {
        let at = parts.position();
        match parts.next()? {
            Part::Pages { base, entries } => {
                for Entry { page, version: _, image } in &entries {
                    tally.add(page.page, base, image.is_some())?;
                    if !base || last.contains_key(&page.page) {
                        last.insert(page.page, at);
                    }
                    if page.page == PageNo(1) {
                        root = image.as_ref().map(|(_, image)| image.clone());
                    }
                    done.pages += 1;
                    done.bytes += image.as_ref().map_or(0, |(bytes, _)| bytes.len() as u64);
                }
                progress(done);
            }
            Part::Trailer(trailer) => {
                tally.check(&trailer)?;
                let summary = Summary { header, trailer, bytes: parts.position() };
                return Ok(Verified { summary, last, root });
            }
        }
    }
}
