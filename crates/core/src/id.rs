//! Names of things: domains, stamps, volumes, pages, objects, nodes, commits.
//!
//! Every id is a plain number in a newtype. Ids are given away for good: a page number, a volume
//! id, a commit id or a boot id is never used for a second thing (rules 15, 16 and 18).

use std::fmt;

/// An order domain: a set of volumes with one commit order. Random, drawn when the domain is made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DomainId(pub u64);

/// One run of an order domain's origin: random, new at every start (rule 16).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct HistoryId(pub u128);

/// An order domain's commit number: +1 for every committed writing transaction. `Stamp(0)` is the
/// empty domain, before any commit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Before every commit.
    pub const ZERO: Self = Self(0);
    /// One past the largest stamp that a message may tell: the read cache writes "none" so.
    pub const LIMIT: u64 = u64::MAX;

    /// The stamp after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("2^64 commits"))
    }

    /// The stamp before this one; `ZERO` stays.
    #[must_use]
    pub fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A volume: unit of naming, rights and quota. 128 bits, random, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VolumeId(pub u128);

/// A page's number in its volume. `PageNo(0)` is never a page. Below 2^48, so that a page and a
/// slot fit in 64 bits. Numbers come from ranges that the origin gives away for good.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PageNo(pub u64);

impl PageNo {
    /// One past the largest page number.
    pub const LIMIT: u64 = 1 << 48;
    /// The last number, which stands for the volume: see [`PageId::of_volume`].
    pub const VOLUME: Self = Self(Self::LIMIT - 1);
}

/// A page, named across volumes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PageId {
    /// The volume it belongs to.
    pub volume: VolumeId,
    /// Its number there.
    pub page: PageNo,
}

impl PageId {
    /// The volume itself, as streams, the change index and the page engine name it: the
    /// page of the last number, which is never given away. A change of its existence: the volume was deleted, and with it every page of it.
    /// A change of its value: what is said of it has changed; whoever uses it asks again. Every child
    /// is told of either, whatever it is registered for.
    #[must_use]
    pub fn of_volume(volume: VolumeId) -> Self {
        Self { volume, page: PageNo::VOLUME }
    }

    /// Whether it stands for its volume: see [`PageId::of_volume`].
    #[must_use]
    pub fn is_volume(self) -> bool {
        self.page == PageNo::VOLUME
    }
}

/// A slot of a page. Slots of a slotted page are sparse: any number may be used (a directory uses
/// a hash of the name). A raw page has the one slot 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Slot(pub u16);

/// How often a slot has been filled anew; the first object of a slot has generation 1. References
/// carry it, so that a reused slot is never taken for the old object (rule 18).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Generation(pub u32);

/// An object: the unit of coherence and conflict.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ObjectId {
    /// The page it lives in.
    pub page: PageId,
    /// The slot there.
    pub slot: Slot,
    /// Which of the slot's objects.
    pub generation: Generation,
}

/// One life of a node process: random, drawn at its start. Commit ids, id ranges and registrations
/// belong to it, so that a restored node disk cannot reuse them (rule 16).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BootId(pub u128);

/// A commit: (node boot id, sequence), the key under which its outcome is kept (rule 15).
/// Sequences of a boot and domain start at 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct CommitId {
    /// The committing node's boot.
    pub boot: BootId,
    /// Its number there.
    pub sequence: u64,
}

/// One try of a coordinator at a transaction over several domains, numbered in its domain's history; no
/// number is used twice in one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Attempt {
    /// The history of the coordinator's domain when it began.
    pub history: HistoryId,
    /// Its number there.
    pub number: u64,
}

/// One connection between a child and its parent, as numbered by whoever drives the machine;
/// never reused while the machine lives. Not on the wire.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LinkId(pub u64);

/// A request over a link, numbered by the asker; never reused while its process lives (rule 6).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct RequestId(pub u64);

macro_rules! hex_format {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                // Transcripts use small ids; they read better without 30 zeros.
                if self.0 < 1 << 32 {
                    write!(f, "{}({})", stringify!($name), self.0)
                } else {
                    write!(f, "{}({:032x})", stringify!($name), self.0)
                }
            }
        }
    )*};
}
hex_format!(HistoryId, VolumeId, BootId);

impl fmt::Debug for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.volume.0 < 1 << 32 {
            write!(f, "{}/", self.volume.0)?;
        } else {
            write!(f, "{:032x}/", self.volume.0)?;
        }
        if self.is_volume() { f.write_str("volume") } else { write!(f, "{}", self.page.0) }
    }
}
