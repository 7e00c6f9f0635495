//! The cache of a node: a machine that speaks with the parent, a read cache that any thread may
//! read, and the transactions that read it.
//!
//! [`Cache`] is the only writer of [`ReadCache`]. A [`Transaction`] belongs to one thread, reads
//! the shared copies without asking the machine, and turns to it only for what is missing
//! ([`Step::Need`]) and at its end ([`Finish::Send`]).

pub mod config;
pub mod io;
pub mod machine;
pub mod policy;
pub mod read;
pub mod transaction;
pub mod versions;

pub use config::{CacheConfig, PolicyKind};
pub use machine::{Cache, CompanionCounts};
pub use read::ReadCache;
pub use transaction::{
    AgeLimit, Awaited, BeginError, CommitPart, Consistency, Doom, Finish, Floors, Held, Line, Mark,
    Records, Savepoint, Seen, Session, SessionOptions, Step, Transaction, TransactionError,
    TransactionLimits, commit_ops, decides,
};
pub use versions::{Ahead, PageVersions, VersionCache, VersionLimits};

use crate::id::{PageId, Slot, Stamp};
use crate::page::Page;

/// A cached page, or the knowledge that there is none.
#[derive(Clone, PartialEq, Debug)]
pub struct PageCopy {
    /// Which.
    pub id: PageId,
    /// The stamp that last changed the bytes held here.
    pub version: Stamp,
    /// Its image; none: the page is absent.
    pub page: Option<Page>,
    /// Slots known stale, ascending.
    pub holes: Vec<Slot>,
}

impl PageCopy {
    /// Bytes counted for a copy beside its image: entries of the map, the policy and the list.
    pub const OVERHEAD_BYTES: usize = 320;

    /// A copy of which more slots are known stale is not worth its place.
    pub const HOLES_MAX: usize = crate::message::HOLES_MAX;

    /// Whether no slot is known stale.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.holes.is_empty()
    }

    /// Whether `slot` is known stale.
    #[must_use]
    #[inline]
    pub fn is_hole(&self, slot: Slot) -> bool {
        !self.holes.is_empty() && self.holes.binary_search(&slot).is_ok()
    }

    /// Bytes it counts for in the cache's budget.
    #[must_use]
    pub fn cost(&self) -> usize {
        Self::OVERHEAD_BYTES + self.page.as_ref().map_or(0, Page::size) + self.holes.len() * 2
    }
}
