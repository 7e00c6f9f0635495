//! What an origin's domain makes durable: log records, install batches, metadata.
//!
//! The machines speak of these as plain data; `wire` encodes them; the `store` crate keeps bytes.

use crate::commit::{Abort, Op, PartId, Read, Write};
use crate::id::{Attempt, BootId, CommitId, DomainId, HistoryId, PageId, PageNo, Stamp, VolumeId};
use crate::message::Epoch;
use crate::rights::Rights;
use crate::time::WallTime;
use bytes::Bytes;

/// Number of a log record: +1 a record, never reused in a domain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lsn(pub u64);

/// A log record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogRecord {
    /// A committed writing transaction.
    Commit {
        /// Its stamp: one more than the record before that carries one.
        stamp: Stamp,
        /// Its id.
        id: CommitId,
        /// Wall clock at the origin.
        time: WallTime,
        /// By how many bytes of page images it grows each volume that it writes, in the order of
        /// their first writes. Empty: written before bytes were counted.
        grown: Vec<i64>,
        /// What it wrote.
        writes: Vec<Write>,
        /// It decides a transaction over several domains: this record is the decision.
        decided: Option<Box<Decided>>,
    },
    /// A part of a transaction over several domains is ready to be committed, and is as soon as its
    /// coordinator has decided so: by a `Commit` of its id. Until then its domain keeps what it read as it is,
    /// and the pages that it writes. One that follows in the log without an end of the one before ends it.
    Prepared {
        /// The try that it belongs to.
        attempt: Attempt,
        /// Who decides.
        coordinator: PartId,
        /// The commit.
        id: CommitId,
        /// By how many bytes it will grow each volume, as for a `Commit`.
        grown: Vec<i64>,
        /// What it read.
        reads: Vec<Read>,
        /// What it will write.
        writes: Vec<Write>,
    },
    /// What was prepared is not any more: it was not decided to commit, or it writes nothing.
    Released {
        /// The try that it belonged to.
        attempt: Attempt,
    },
    /// A boot may commit from here on.
    Boot {
        /// Which.
        boot: BootId,
        /// The name of its node: nobody else may use it.
        name: String,
    },
    /// A boot's outcomes up to `upto` may be forgotten; with `upto` = `u64::MAX` the boot itself.
    Confirmed {
        /// Which boot.
        boot: BootId,
        /// Last sequence.
        upto: u64,
    },
    /// A commit was refused for a reason that may pass. A copy of it that comes later, over
    /// another path, is refused as well: its node was told so.
    Aborted {
        /// Which.
        id: CommitId,
        /// Why.
        abort: Abort,
    },
    /// Page numbers below `next` have been given away.
    Ids {
        /// Of which volume.
        volume: VolumeId,
        /// The first number not given.
        next: PageNo,
    },
    /// A volume was made. Takes a stamp like a commit and makes its page 1.
    Volume {
        /// Its stamp.
        stamp: Stamp,
        /// The volume.
        volume: VolumeMeta,
    },
    /// A volume was deleted, with all its pages. Takes a stamp like a commit, and changes the page
    /// that stands for the volume ([`PageId::of_volume`]).
    Deleted {
        /// Its stamp.
        stamp: Stamp,
        /// Which volume.
        volume: VolumeId,
    },
    /// A volume's settings from here on.
    Settings {
        /// Of which volume.
        volume: VolumeId,
        /// All of them.
        settings: VolumeSettings,
    },
    /// A history begins.
    Epoch {
        /// Which.
        epoch: Epoch,
    },
}

/// The decision to commit a transaction over several domains, kept by its coordinator's domain until all
/// others have followed it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Decided {
    /// The try that came to it.
    pub attempt: Attempt,
    /// The parts of the other domains: ascending by domain.
    pub participants: Vec<PartId>,
}

/// What an administrator says of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VolumeSettings {
    /// Most bytes of page images that it may take; none: as many as the store has room for.
    pub quota: Option<u64>,
    /// Who may do what with it, as far as it was said.
    pub rights: Rights,
}

/// A volume, as kept by its domain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VolumeMeta {
    /// Its id.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// The first page number not given away.
    pub next_page: PageNo,
    /// The highest version of its pages.
    pub version: Stamp,
    /// Pages that are there.
    pub pages: u64,
    /// Bytes of their images.
    pub bytes: u64,
    /// What was said of it.
    pub settings: VolumeSettings,
    /// In which history numbers were given, ascending: the last few histories in which any were.
    pub given: Vec<Given>,
}

/// A volume that was deleted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeletedVolume {
    /// Its id, which is never used again.
    pub id: VolumeId,
    /// Its name when it was deleted: another volume may have it now.
    pub name: String,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// The stamp of its deletion.
    pub stamp: Stamp,
    /// Pages that the engine still holds of it, about; none: all are removed.
    pub left: Option<u64>,
}

/// Volumes kept of those that were deleted and removed, the last ones: whoever still uses one is told
/// so, and a deletion that is repeated is answered as it was. Of an older one it is only known that it
/// is not there.
pub const DELETED_MAX: usize = 256;

/// Histories kept of those in which a volume's page numbers were given. Numbers of an older one are refused
/// as those of a branch that is lost: nobody can tell them apart any more.
pub const GIVEN_MAX: usize = 16;

/// Page numbers given in one history: from `first` to where those of the next one begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Given {
    /// Which history.
    pub history: HistoryId,
    /// The first number given in it, if any was.
    pub first: PageNo,
}

/// A boot's commits that its node has not confirmed.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BootMeta {
    /// The boot.
    pub boot: BootId,
    /// The name of its node.
    pub name: String,
    /// Everything up to this sequence is confirmed and forgotten.
    pub confirmed: u64,
    /// But for these, ascending. Since format 5 of the metadata.
    pub open: Vec<u64>,
    /// (sequence, stamp) of those committed that are not confirmed, ascending.
    pub committed: Vec<(u64, Stamp)>,
    /// (sequence, reason) of those refused, for reasons that may pass, that are not confirmed, ascending.
    pub aborted: Vec<(u64, Abort)>,
}

/// A domain's metadata, kept beside its pages and written with every install.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DomainMeta {
    /// The domain.
    pub domain: DomainId,
    /// Log records up to this one are installed: recovery reads from the next.
    pub installed_lsn: Lsn,
    /// Commits up to this stamp are installed.
    pub installed: Stamp,
    /// Histories, oldest first.
    pub epochs: Vec<Epoch>,
    /// Volumes, ascending by id.
    pub volumes: Vec<VolumeMeta>,
    /// Volumes that were deleted, ascending by id: all those of which pages are still to be removed,
    /// and the last [`DELETED_MAX`] of the others.
    pub deleted: Vec<DeletedVolume>,
    /// Boots, ascending by id.
    pub boots: Vec<BootMeta>,
    /// Decisions that not all domains have followed, each with those that have not: ascending by attempt.
    pub decided: Vec<Decided>,
}

/// A page as the page engine holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredPage {
    /// The stamp that last changed it.
    pub version: Stamp,
    /// Its image (checksummed), or none: deleted, for good.
    pub image: Option<Bytes>,
}

/// One page of an install.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InstalledPage {
    /// Which.
    pub page: PageId,
    /// The version the engine holds before this batch, whose index entry is discarded; `ZERO`: none.
    pub previous: Stamp,
    /// What it holds afterwards.
    pub stored: StoredPage,
}

/// Changes of a page that cannot be read: kept apart from it until it can, so that the log need not
/// keep them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Apart {
    /// Which page.
    pub page: PageId,
    /// What commits did to it, in order: those that are not in the stored page, or all of them.
    pub changes: Vec<(Stamp, Op)>,
}

impl Apart {
    /// Bytes that they take, about.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let changes = self.changes.iter();
        changes.map(|(_, op)| size_of::<(Stamp, Op)>() + op.payload_bytes()).sum()
    }
}

/// Changes that were kept apart from a page, and are damaged: what the page was last is lost for good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostApart {
    /// Which page.
    pub page: PageId,
    /// What is wrong with them.
    pub detail: String,
}

/// What the page engine takes over in one atomic step, durable when answered.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct InstallBatch {
    /// Pages, ascending, each once. The engine also keeps (version, page) in the change index.
    pub pages: Vec<InstalledPage>,
    /// Changes to be kept apart, in the place of what is kept of the same page. Of no page that is
    /// installed by this batch.
    pub apart: Vec<Apart>,
    /// Pages, installed by this batch, of which nothing is kept apart any more.
    pub joined: Vec<PageId>,
    /// Pages of deleted volumes, removed with what is kept apart of them, and each with the version
    /// whose index entry goes too. Of no page that is installed by this batch.
    pub removed: Vec<(PageId, Stamp)>,
    /// The domain's metadata afterwards.
    pub meta: DomainMeta,
}
