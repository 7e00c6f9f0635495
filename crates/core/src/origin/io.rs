//! Inputs and outputs of the origin machine.

use crate::id::{DomainId, LinkId, PageId, PageNo, Stamp, VolumeId};
use crate::machine::{LinkInput, LinkOutput};
use crate::message::{CloseReason, Message};
use crate::record::{InstallBatch, LogRecord, Lsn, StoredPage};
use crate::time::WallTime;

/// Names one append or install until it is answered; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WriteId(pub u64);

/// Names one load until it is answered; never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LoadId(pub u64);

/// What is to be read from the page engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LoadKey {
    /// A page.
    Page(PageId),
    /// At most `limit` entries of the change index with a (stamp, page) above this pair, ascending.
    ChangedAfter {
        /// Above this stamp and page.
        after: (Stamp, PageId),
        /// How many at most.
        limit: usize,
    },
    /// At most `limit` pages of a deleted volume with numbers above `after`, to be removed.
    Removable {
        /// The volume.
        volume: VolumeId,
        /// Above this number.
        after: PageNo,
        /// How many at most.
        limit: usize,
    },
}

/// What a load found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Loaded {
    /// The page, if it ever was.
    Page(Option<StoredPage>),
    /// Entries of the change index, and whether there are more.
    Changed {
        /// (stamp, page), ascending.
        entries: Vec<(Stamp, PageId)>,
        /// Whether the limit cut them off.
        more: bool,
    },
    /// Pages with their versions, ascending; fewer than asked for: there are no more.
    Removable(Vec<(PageId, Stamp)>),
}

/// Why the store could not do what was asked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreFault {
    /// Reading or writing failed: names the file and the system's error.
    #[error("store failed: {0}")]
    Failed(String),
    /// No room. The log keeps room for its own needs and refuses before it is lost.
    #[error("store is full: {0}")]
    Full(String),
    /// Bytes do not check: names what and where.
    #[error("store is damaged: {0}")]
    Damaged(String),
}

/// Pages that have changes which are not installed, since the page cannot be read.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unreadable {
    /// How many there are.
    pub pages: usize,
    /// The first few, ascending, each with what is wrong with it.
    pub named: Vec<(PageId, String)>,
    /// Bytes of changes kept apart.
    pub apart_bytes: usize,
    /// For how many of them the log keeps the changes, and is not trimmed past them: until those are
    /// kept apart, or, when the bound of what is kept so is reached, until the page can be read.
    pub in_log: usize,
    /// The bound is reached: the log grows until pages are restored.
    pub full: bool,
}

/// What happens on links to other origins (decision 0038).
#[derive(Clone, PartialEq, Debug)]
pub enum PeerInput {
    /// A connection to another origin stands; `peer` is the name its certificate proved, which is an origin's.
    Opened {
        /// Its number, of no link to a child.
        link: LinkId,
        /// Who is at the other end.
        peer: String,
        /// This side has dialed: of two links between the same origins each dials one.
        dialed: bool,
    },
    /// The connection is gone; nothing more comes from it, and what was sent may be lost.
    Closed {
        /// Its number.
        link: LinkId,
        /// What the other side said, if it said anything.
        reason: Option<CloseReason>,
    },
    /// A message came.
    Received {
        /// From which link.
        link: LinkId,
        /// What.
        message: Message,
    },
}

/// What the origin is told.
#[derive(Clone, PartialEq, Debug)]
pub enum OriginInput {
    /// Of links to children.
    Link(LinkInput),
    /// Of links to other origins.
    Peer(PeerInput),
    /// The origin's wall clock, handed in with a regular tick (at least once a second).
    WallClock(WallTime),
    /// Bytes that are free where a domain's store is, handed in now and then: told with volumes.
    Room {
        /// Whose.
        domain: DomainId,
        /// How many.
        bytes: u64,
    },
    /// The records of an append are durable, or the append failed for good.
    Appended {
        /// Whose log.
        domain: DomainId,
        /// Which append.
        write: WriteId,
        /// How it ended. `Full` before anything was written is the one fault after which the
        /// domain goes on; any other ends its service.
        result: Result<(), StoreFault>,
    },
    /// A load is done.
    Loaded {
        /// Whose store.
        domain: DomainId,
        /// Which load.
        load: LoadId,
        /// What it found.
        result: Result<Loaded, StoreFault>,
    },
    /// An install is durable, or failed for good.
    Installed {
        /// Whose store.
        domain: DomainId,
        /// Which install.
        write: WriteId,
        /// How it ended.
        result: Result<(), StoreFault>,
    },
}

/// What the origin asks for. Appends of a domain are carried out in order, each one synced before
/// it is answered; at most one append and one install of a domain are under way.
#[derive(Clone, PartialEq, Debug)]
pub enum OriginOutput {
    /// On a link.
    Link(LinkOutput),
    /// Append these records and sync.
    Append {
        /// Whose log.
        domain: DomainId,
        /// For the answer.
        write: WriteId,
        /// The records with their numbers, ascending without gaps.
        records: Vec<(Lsn, LogRecord)>,
    },
    /// Read from the page engine.
    Load {
        /// Whose store.
        domain: DomainId,
        /// For the answer.
        load: LoadId,
        /// What.
        key: LoadKey,
    },
    /// Put pages and metadata into the page engine, atomically, and sync.
    Install {
        /// Whose store.
        domain: DomainId,
        /// For the answer.
        write: WriteId,
        /// What.
        batch: InstallBatch,
    },
    /// Log records up to this one will never be read again: give their space back.
    TrimLog {
        /// Whose log.
        domain: DomainId,
        /// Up to and with this one.
        through: Lsn,
    },
    /// Much of what the page engine held was removed or cut: give its space back, in the background.
    GiveBack {
        /// Whose engine.
        domain: DomainId,
    },
    /// Pages with changes cannot be read, or can again. Tell the operator.
    PagesUnreadable {
        /// Of which domain.
        domain: DomainId,
        /// Which, and what becomes of their changes.
        unreadable: Unreadable,
    },
    /// The page engine had no room for an install: commits go on until the log is full. Tell the
    /// operator. Told once, until it is over.
    InstallsWait {
        /// Of which domain.
        domain: DomainId,
        /// What the engine said.
        fault: StoreFault,
    },
    /// That is over: installs find room.
    InstallsGoOn {
        /// Of which domain.
        domain: DomainId,
    },
    /// What is left of a deleted volume could not be listed by the page engine, and so its space is not
    /// given back: it is asked again and again, after what is left of others. Tell the operator. Told once,
    /// until it is over.
    RemovalWaits {
        /// Of which domain.
        domain: DomainId,
        /// Which volume.
        volume: VolumeId,
        /// Its name.
        name: String,
        /// What the engine said.
        fault: StoreFault,
    },
    /// That is over.
    RemovalGoesOn {
        /// Of which domain.
        domain: DomainId,
        /// Which volume.
        volume: VolumeId,
    },
    /// A volume's name is another volume's, of a domain that comes first: one of the two domains was
    /// restored alone, from a copy of before a deletion. This one has a new name. Tell the operator.
    VolumeRenamed {
        /// Whose volume.
        domain: DomainId,
        /// Which.
        volume: VolumeId,
        /// Its name before.
        from: String,
        /// Its name now.
        to: String,
    },
    /// The domain's store had no room at its start. It serves as soon as there is some; tell the
    /// operator, fail readiness.
    DomainWaits {
        /// Which.
        domain: DomainId,
        /// What its store said.
        fault: StoreFault,
    },
    /// The domain serves from now on.
    DomainServes {
        /// Which.
        domain: DomainId,
    },
    /// The domain's service has ended: its store failed. Tell the operator, fail readiness.
    DomainFailed {
        /// Which.
        domain: DomainId,
        /// Why.
        fault: StoreFault,
    },
}
