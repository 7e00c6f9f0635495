//! What one append holds: log records, and what each of them leads to once it is durable.

use super::volumes::Growth;
use crate::across::Turn;
use crate::commit::{Abort, Outcome, PageChange};
use crate::id::{Attempt, BootId, CommitId, LinkId, PageId, PageNo, RequestId, Stamp, VolumeId};
use crate::message::RequestError;
use crate::record::{LogRecord, Lsn, VolumeMeta, VolumeSettings};

/// What a log record leads to once it is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Item {
    /// A commit to be told and acknowledged.
    Commit {
        stamp: Stamp,
        id: CommitId,
        changes: Vec<PageChange>,
        /// By how much, per volume written.
        grown: Vec<Growth>,
        /// It is a part of a transaction over several domains.
        turn: Option<Turn>,
    },
    /// A part of one is prepared, with its place in the log and the stamp after it; or is logged once more.
    Prepared { attempt: Attempt, at: (Lsn, Stamp), again: bool },
    /// What was prepared is not any more.
    Released,
    /// A commit is refused, for a reason that may pass.
    Aborted { id: CommitId, abort: Abort },
    /// A boot may commit.
    Boot { boot: BootId, name: String },
    /// A boot ended: nobody waits for it.
    Ended,
    /// A boot is forgotten: nobody waits for it.
    Forgotten(BootId),
    /// Page numbers are given.
    Ids { link: LinkId, request: RequestId, volume: VolumeId, first: PageNo, count: u64 },
    /// A volume is made.
    Volume { stamp: Stamp, meta: VolumeMeta },
    /// A volume's settings are others.
    Settings { link: LinkId, request: RequestId, volume: VolumeId, settings: VolumeSettings },
    /// A volume is deleted.
    Deleted { stamp: Stamp, volume: VolumeId },
    /// The history begins.
    Epoch,
}

impl Item {
    /// The stamp it took, if it took one.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        match self {
            Self::Commit { stamp, .. }
            | Self::Volume { stamp, .. }
            | Self::Deleted { stamp, .. } => Some(*stamp),
            Self::Aborted { .. }
            | Self::Prepared { .. }
            | Self::Released
            | Self::Boot { .. }
            | Self::Ended
            | Self::Forgotten(_)
            | Self::Ids { .. }
            | Self::Settings { .. }
            | Self::Epoch => None,
        }
    }
}

/// An answer that would reveal a commit that is not durable yet: withheld until it is (rule 14).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Withheld {
    pub(super) id: CommitId,
    pub(super) outcome: Outcome,
}

/// One append: gathered, then under way.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Emptied when the append is sent.
    pub(super) records: Vec<(Lsn, LogRecord)>,
    /// One per record, in the same order.
    pub(super) items: Vec<Item>,
    /// Pages changed, with the record and stamp that first did, each once.
    pub(super) pages: Vec<(PageId, (Lsn, Stamp))>,
    /// Answers that wait for it.
    pub(super) withheld: Vec<Withheld>,
    /// Requests that are refused for what it says of volumes, likewise.
    pub(super) refused: Vec<(LinkId, RequestId, RequestError)>,
    /// Bytes of its writes.
    pub(super) bytes: usize,
    /// Its last record.
    pub(super) last: Lsn,
}

impl Batch {
    /// Whether there is nothing to append.
    pub(super) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The stamp of its last commit; `before` when it has none.
    pub(super) fn last_stamp(&self, before: Stamp) -> Stamp {
        let stamps = self.items.iter().rev().find_map(Item::stamp);
        stamps.unwrap_or(before)
    }

    pub(super) fn push(&mut self, lsn: Lsn, record: LogRecord, item: Item) {
        self.records.push((lsn, record));
        self.items.push(item);
        self.last = lsn;
    }
}
