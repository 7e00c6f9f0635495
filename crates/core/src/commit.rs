//! What a transaction asks the origin to commit, and what a commit did.
//!
//! A commit carries its base (the valid-through at which all its reads held), its reads (objects,
//! absences, whole pages) and its writes. The origin accepts it if nothing read has changed after
//! the base (Thor's optimistic validation; BuddyCache section 4). Two kinds of read keep apart what
//! commutes: an *existence* read conflicts with creation and deletion only, so that it passes
//! beside a commutative update of the same object; a *value* read conflicts with every change.

use crate::id::{CommitId, DomainId, Generation, HistoryId, PageId, PageNo, Slot, Stamp, VolumeId};
use crate::rights::Denied;
use bytes::Bytes;

/// Largest object, in bytes; kept in raw pages when it outgrows its slotted page.
pub const OBJECT_BYTES_MAX: usize = 16 << 20;
/// Largest commit: bytes of all writes.
pub const COMMIT_BYTES_MAX: usize = 32 << 20;
/// Most reads in one commit.
pub const COMMIT_READS_MAX: usize = 1 << 20;
/// Most writes in one commit.
pub const COMMIT_WRITES_MAX: usize = 1 << 18;
/// Most domains of one transaction.
pub const PARTS_MAX: usize = 16;

/// The limits that [`Abort::TooLarge`] names. A name that is not among these is told to the other
/// side as "a limit of the origin".
pub const LIMIT_NAMES: [&str; 6] = ["reads", "writes", "bytes", "object", "pages", "message"];

/// What part of a page a read or a change names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Target {
    /// All of the page: its existence, every slot, and which slots there are.
    Page,
    /// One slot, filled or empty.
    Slot(Slot),
}

/// What of the target matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Aspect {
    /// Whether the slot (or the page) is filled, and with which generation. As a read: conflicts
    /// with creation and deletion. Absence is read this way (rule 9). As a change: created or
    /// deleted, which concerns every reader of the target.
    Existence,
    /// The bytes. As a read: conflicts with every change. As a change: written, added to, raised.
    Value,
}

/// One thing a transaction read.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Read {
    /// Where.
    pub page: PageId,
    /// What of the page.
    pub target: Target,
    /// What of the target.
    pub aspect: Aspect,
}

/// How a page is laid out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PageKind {
    /// Many small objects.
    Slotted,
    /// One object, slot 0: a block, a piece of a file or of a large object.
    Raw,
}

/// One write to one page. Writes of a commit apply in their order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Makes the page, empty. Fails when the number was ever used before.
    CreatePage(PageKind),
    /// Removes the page with all its objects, for good.
    DeletePage,
    /// Makes the page as an image says, with its objects and generations: a volume is restored. Page
    /// 1, which is there from the beginning, must be as it was made; any other number must never have
    /// been used, and must have been given away. The only op of its page in a commit; only in a
    /// commit of a link with protocol version 3.
    RestorePage {
        /// The image, sealed for this page.
        image: Bytes,
    },
    /// Creates the object (the slot is empty and the generation is the slot's next) or overwrites
    /// it (the slot is filled with this generation).
    Put {
        /// Which slot.
        slot: Slot,
        /// Which object of the slot.
        generation: Generation,
        /// Its record: see [`crate::page::Record`] for how it is encoded.
        value: Bytes,
    },
    /// Removes the object; its generation stays used.
    Delete {
        /// Which slot.
        slot: Slot,
        /// Which object of the slot.
        generation: Generation,
    },
    /// Adds to the little-endian 64-bit number at `offset` of the object's value, wrapping.
    /// Commutes with other `Add`s.
    Add {
        /// Which slot.
        slot: Slot,
        /// Which object of the slot.
        generation: Generation,
        /// Byte offset in the object's value.
        offset: u32,
        /// What to add.
        delta: i64,
    },
    /// Raises the unsigned little-endian 64-bit number at `offset` to at least `value`. Commutes
    /// with other `Max`s.
    Max {
        /// Which slot.
        slot: Slot,
        /// Which object of the slot.
        generation: Generation,
        /// Byte offset in the object's value.
        offset: u32,
        /// The least value afterwards.
        value: u64,
    },
    /// Writes bytes into a raw page, growing it with zeros as needed.
    WriteRaw {
        /// Where in the page.
        offset: u32,
        /// What.
        bytes: Bytes,
    },
    /// Cuts or zero-extends a raw page.
    TruncateRaw {
        /// Bytes afterwards.
        length: u32,
    },
}

impl Op {
    /// What a change made by this op names.
    #[must_use]
    pub fn touches(&self, created: bool) -> (Target, Aspect) {
        match self {
            Self::CreatePage(_) | Self::DeletePage | Self::RestorePage { .. } => {
                (Target::Page, Aspect::Existence)
            }
            Self::Put { slot, .. } if created => (Target::Slot(*slot), Aspect::Existence),
            Self::Delete { slot, .. } => (Target::Slot(*slot), Aspect::Existence),
            Self::Put { slot, .. } | Self::Add { slot, .. } | Self::Max { slot, .. } => {
                (Target::Slot(*slot), Aspect::Value)
            }
            Self::WriteRaw { .. } | Self::TruncateRaw { .. } => {
                (Target::Slot(Slot(0)), Aspect::Value)
            }
        }
    }

    /// Bytes of payload it carries.
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        match self {
            Self::Put { value, .. } => value.len(),
            Self::WriteRaw { bytes, .. } => bytes.len(),
            Self::RestorePage { image } => image.len(),
            _ => 0,
        }
    }
}

/// One write of a commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Write {
    /// The page written.
    pub page: PageId,
    /// What is done to it.
    pub op: Op,
}

/// Page numbers used one after another by the writes of a commit that make pages, and how their node
/// came by them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbered {
    /// The history in which they were given to this process of the node. The default: they were not;
    /// it has read them in what is committed, as those of a file's run.
    pub history: HistoryId,
    /// How many: at least one.
    pub pages: u32,
}

/// What a transaction over several domains commits in one of them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PartId {
    /// Which domain.
    pub domain: DomainId,
    /// The commit there.
    pub id: CommitId,
}

/// All parts of a transaction over several domains, told with each of them (decision 0035).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Across {
    parts: Vec<PartId>,
    coordinator: usize,
}

impl Across {
    /// Of 2 to [`PARTS_MAX`] parts, ascending by domain, decided by that of the coordinator's domain. None:
    /// they are not such.
    #[must_use]
    pub fn new(parts: Vec<PartId>, coordinator: DomainId) -> Option<Self> {
        let ascending = parts.is_sorted_by(|one, next| one.domain < next.domain);
        let coordinator = parts.iter().position(|part| part.domain == coordinator)?;
        let several = (2..=PARTS_MAX).contains(&parts.len());
        (ascending && several).then_some(Self { parts, coordinator })
    }

    /// All of them, ascending by domain.
    #[must_use]
    pub fn parts(&self) -> &[PartId] {
        &self.parts
    }

    /// The part that decides: what is known of it is what is known of the transaction.
    #[must_use]
    pub fn coordinator(&self) -> PartId {
        self.parts[self.coordinator]
    }

    /// Whether the part of this domain is decided elsewhere. Such a part is no request of its own on a link: it
    /// comes beside the deciding one, and those would wait for each other's place.
    #[must_use]
    pub fn is_beside(&self, domain: DomainId) -> bool {
        self.coordinator().domain != domain
    }

    /// The other parts.
    pub fn participants(&self) -> impl Iterator<Item = PartId> + '_ {
        let coordinator = self.coordinator();
        self.parts.iter().copied().filter(move |part| *part != coordinator)
    }
}

/// A transaction, as sent to the origin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommitRequest {
    /// Its name for good.
    pub id: CommitId,
    /// Every outcome of this boot up to this sequence has been received: the origin may forget it.
    pub confirmed: u64,
    /// The history in which `base` was seen.
    pub history: HistoryId,
    /// All reads held at this stamp.
    pub base: Stamp,
    /// Of the pages that it makes, in the order of their writes.
    pub numbers: Vec<Numbered>,
    /// What was read, ascending, without repeats.
    pub reads: Vec<Read>,
    /// What to write, in order. Empty: only validate (a strict read-only transaction).
    pub writes: Vec<Write>,
    /// It is one part of a transaction over several domains. Only on a link of protocol version 5.
    pub across: Option<Box<Across>>,
}

impl CommitRequest {
    /// Whether it restores pages.
    #[must_use]
    pub fn restores(&self) -> bool {
        self.writes.iter().any(|write| matches!(write.op, Op::RestorePage { .. }))
    }

    /// Whether it is a part that a domain other than this one decides.
    #[must_use]
    pub fn is_beside(&self, domain: DomainId) -> bool {
        self.across.as_ref().is_some_and(|across| across.is_beside(domain))
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let payload: usize = self.writes.iter().map(|write| write.op.payload_bytes()).sum();
        let parts = self.across.as_ref().map_or(0, |across| size_of_val(across.parts()));
        let reads = size_of_val(&self.reads[..]);
        size_of::<Self>() + reads + size_of_val(&self.writes[..]) + payload + parts
    }
}

/// How a commit ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Durable, as this stamp. For a commit without writes: valid as of this stamp.
    Committed(Stamp),
    /// Nothing of it was done, and nothing will be.
    Aborted(Abort),
    /// Whether it was done can no longer be told: its id has expired (P11).
    Unknown,
}

/// Why a commit was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Abort {
    /// Something it read changed after its base.
    #[error("{} of page {} changed after it was read", target_name(.0.target), .0.page)]
    Conflict(Read),
    /// The object is not there: deleted, or its slot holds a later generation.
    #[error("object {slot:?} generation {generation:?} of page {page} is gone")]
    Gone {
        /// The page.
        page: PageId,
        /// The slot.
        slot: Slot,
        /// The generation asked for.
        generation: Generation,
    },
    /// The page is not there, or it was created twice, or it has the other layout.
    #[error("page {0} is not there, or not of that kind")]
    BadPage(PageId),
    /// The objects no longer fit in the page: move one of them and try again.
    #[error("page {0} is full")]
    PageFull(PageId),
    /// The page was made with a number that was not given away in the history which the commit
    /// names, or that history is not on the domain's line, or too old: take new numbers and try
    /// again.
    #[error(
        "page {0} was made with a number that was not given to this node in a history of the domain: take a new one"
    )]
    StaleNumber(PageId),
    /// The page is damaged at the origin (P9), as it was last installed or in its changes kept apart:
    /// the commit is not done, and never will be; another one may be, once the page is restored.
    #[error("page {0} is damaged at the origin: restore it from a backup")]
    Lost(PageId),
    /// An op that makes no sense for its object: out of bounds, too long, bad generation.
    #[error("write to page {0} is malformed")]
    BadWrite(PageId),
    /// The volume is not of this domain, or unknown.
    #[error("volume {0} is not in this domain")]
    NoVolume(VolumeId),
    /// The volume was deleted: nothing of it will ever be there again.
    #[error("volume {0} was deleted")]
    Deleted(VolumeId),
    /// The base belongs to a history this domain does not have, or lies past its fork.
    #[error("the base stamp belongs to another history of the domain")]
    History,
    /// It would grow a volume past its quota. What frees or shrinks is always taken.
    #[error(
        "volume {name} would pass its quota of {limit} bytes: it takes {used}, and this adds {more}; remove something, or ask an administrator for `larder volume quota`"
    )]
    Quota {
        /// Which volume.
        volume: VolumeId,
        /// Its name.
        name: String,
        /// Its quota in bytes.
        limit: u64,
        /// What it takes.
        used: u64,
        /// What the commit would add.
        more: u64,
    },
    /// A right is short: to read what was read, or to write what was written.
    #[error("{0}")]
    Denied(Box<Denied>),
    /// A limit of the origin: too large, too many.
    #[error("the commit is over a limit: {0}")]
    TooLarge(&'static str),
}

fn target_name(target: Target) -> String {
    match target {
        Target::Page => "all".into(),
        Target::Slot(slot) => format!("slot {}", slot.0),
    }
}

/// What one commit did to one page, as told to caches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageChange {
    /// The page.
    pub page: PageId,
    /// What of it, ascending. `[(Page, Existence)]` alone for a page made, deleted, or changed in
    /// ways not known in detail.
    pub touched: Vec<(Target, Aspect)>,
}

impl PageChange {
    /// What ops touched of a page, as it is told: ascending, and a target whose existence changed
    /// named once.
    #[must_use]
    pub fn named(page: PageId, mut touched: Vec<(Target, Aspect)>) -> Self {
        touched.sort_unstable();
        // `Page` sorts before every slot, `Existence` before `Value`: both cover what follows.
        if touched.first().is_some_and(|first| first.0 == Target::Page) {
            touched.truncate(1);
        }
        touched.dedup_by_key(|touched| touched.0);
        Self { page, touched }
    }

    /// All of the page: for changes whose detail is not known (change index, resume).
    #[must_use]
    pub fn whole(page: PageId) -> Self {
        Self { page, touched: vec![(Target::Page, Aspect::Existence)] }
    }
}

/// What one commit did, as told to caches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Change {
    /// The commit's stamp.
    pub stamp: Stamp,
    /// Whose commit it was. The committing node finds its own updates by this (rule 12).
    pub id: CommitId,
    /// The pages, ascending; filtered to those the receiver is registered for.
    pub pages: Vec<PageChange>,
}

/// Whether a change to (`target`, `aspect`) of some page concerns a read of the same page.
#[must_use]
pub fn conflicts(read: (Target, Aspect), change: (Target, Aspect)) -> bool {
    let overlap = match (read.0, change.0) {
        (Target::Slot(a), Target::Slot(b)) => a == b,
        // A slot created or deleted changes which slots there are; a slot's bytes changing
        // concerns a reader of all values. A whole-page change concerns every reader.
        (Target::Page, _) | (_, Target::Page) => true,
    };
    overlap && (read.1 == Aspect::Value || change.1 == Aspect::Existence)
}

/// A range of page numbers, given to a node for good: `first .. first + count`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdRange {
    /// Of which volume.
    pub volume: VolumeId,
    /// The first number.
    pub first: PageNo,
    /// How many.
    pub count: u64,
}
