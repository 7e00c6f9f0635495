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
mod wanted;

pub use copy::{BackupOptions, back_up};
pub use restore::{RestoreOptions, Restored, restore};
#[doc(hidden)]
pub use wanted::check_restoration;

use crate::client::{Error, NotCopied};
use format::{Entry, FormatError, Header, Part, Parts, Trailer};
use larder_core::id::PageNo;
use std::collections::BTreeMap;
use std::io::Read;
use std::time::Duration;
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
    /// The volume was restored from this file, or another one of the same tree, and is another now.
    #[error(
        "volume {0} is whole: it was restored from a backup of this volume, and has changed since; use \
         it, or restore under another name"
    )]
    Changed(String),
    /// More page numbers than a restoration gives away.
    #[error(
        "its page numbers go up to {next}: a restoration gives away {} at most",
        restore::NUMBERS_MAX
    )]
    TooManyNumbers {
        /// The first that was never given away.
        next: u64,
    },
    /// The origin took no further copy for too long.
    #[error(
        "the origin is busy with other backups, for {waited:?} now: {reason}; back up later, or fewer \
         volumes at once"
    )]
    OriginBusy {
        /// How long that was waited for.
        waited: Duration,
        /// What the origin said at last.
        reason: String,
    },
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

impl From<NotCopied> for BackupError {
    fn from(error: NotCopied) -> Self {
        Self::Client(error.into())
    }
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
    /// Pages that were left out, since they could not be read at the origin: the first 1,000 of them.
    pub left_out: Vec<PageNo>,
}

/// What a walk through a whole file found beside its summary.
pub(crate) struct Verified {
    pub(crate) summary: Summary,
    /// Pages that are in the file more than once, or may be: where the last one is.
    pub(crate) last: BTreeMap<PageNo, u64>,
    /// Page 1, if it is there.
    pub(crate) root: Option<larder_core::page::Page>,
}

/// Looks through a whole file: every checksum, every page, the counts of its trailer. It needs half a
/// byte of memory for a page where numbers lie close together, and never more than a few times the
/// file's bytes.
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
                for Entry { page, version: _, held } in &entries {
                    tally.add(page.page, base, held)?;
                    if !base || last.contains_key(&page.page) {
                        last.insert(page.page, at);
                    }
                    if page.page == PageNo(1) {
                        root = held.image().map(|(_, image)| image.clone());
                    }
                    done.pages += 1;
                    done.bytes += held.image().map_or(0, |(bytes, _)| bytes.len() as u64);
                }
                progress(done);
            }
            Part::Trailer(trailer) => {
                tally.check(&trailer)?;
                let (bytes, left_out) = (parts.position(), tally.left_out());
                let summary = Summary { header, trailer, bytes, left_out };
                return Ok(Verified { summary, last, root });
            }
        }
    }
}
