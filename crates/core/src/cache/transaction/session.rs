//! Sessions: what a user of the node chose, and what it has already seen.

use super::{BeginError, Seen, Transaction};
use crate::cache::ReadCache;
use crate::id::{DomainId, HistoryId, Stamp};
use crate::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How a transaction relates to others (decision 0002).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Consistency {
    /// Validated at the origin even when it only reads: real time is respected.
    Strict,
    /// Read-only transactions are valid at valid-through, committed locally; writers are validated
    /// at the origin.
    #[default]
    Serializable,
    /// Reads the state of its first read in a domain; may not write.
    Snapshot,
}

/// How old a state a read may return, by the node's clock, checked after the copy (rule 8).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AgeLimit {
    /// Any age.
    #[default]
    None,
    /// The link's lease.
    Lease,
    /// This much.
    AtMost(Duration),
}

/// Bounds of one transaction; beyond them it gets [`super::TransactionError::TooLarge`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TransactionLimits {
    /// Most objects, absences and pages read.
    pub reads_max: usize,
    /// Most writes.
    pub writes_max: usize,
    /// Most bytes of all writes.
    pub bytes_max: usize,
    /// Bytes of copies that came by [`Transaction::supply`] and are kept; the oldest go first.
    pub supplied_bytes_max: usize,
}

impl Default for TransactionLimits {
    fn default() -> Self {
        Self {
            reads_max: crate::commit::COMMIT_READS_MAX,
            writes_max: crate::commit::COMMIT_WRITES_MAX,
            bytes_max: crate::commit::COMMIT_BYTES_MAX,
            supplied_bytes_max: 48 << 20,
        }
    }
}

/// A session's choices.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionOptions {
    /// How its transactions relate to others.
    pub consistency: Consistency,
    /// How old what it reads may be.
    pub age_limit: AgeLimit,
    /// Bounds of each transaction.
    pub limits: TransactionLimits,
    /// Its transactions look ahead of the stream at what this node has committed (the version cache of BuddyCache, section
    /// 4.5; decision 0035): they begin before the stream has passed what the session has written, see that, and all else as
    /// of valid-through. So while one runs it may have seen two states (P5 does not hold for it); it ends when the stream
    /// has passed all that it saw ([`Transaction::waits`]), and is of one state then, or doomed. Of serializable
    /// sessions alone.
    pub ahead: bool,
}

impl SessionOptions {
    /// Whether its transactions look ahead of the stream.
    pub(super) fn looks_ahead(&self) -> bool {
        self.ahead && self.consistency == Consistency::Serializable
    }
}

/// A line of a domain's stamps, as counted by this process: stamps of one line can be compared.
/// A new one begins when the domain was restored from an old copy, or recreated (rule 16).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Line(pub u64);

/// How often something of a session was done in a domain without a stamp that is known: a state that was asked for
/// before has no more than what was done by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark(u64);

/// What a session has seen or written, per domain: it never sees less (P4).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Floors {
    pub(super) stamps: BTreeMap<DomainId, (Line, Stamp)>,
    /// Where something of the session is done, and nobody can tell its stamp any more.
    pub(super) unseen: BTreeMap<DomainId, Unseen>,
    /// Where that may be lost: another history began since.
    pub(super) lost: BTreeSet<DomainId>,
    /// The last mark given: none comes again, whatever was forgotten since.
    marks: u64,
}

/// What a session did in a domain without a stamp that is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Unseen {
    pub(super) line: Line,
    pub(super) mark: Mark,
    /// In which the first of it was asked for.
    history: HistoryId,
}

impl Floors {
    /// Raises the floor of a domain; says whether it could: stamps of two lines cannot be compared.
    /// When the domain has begun another line between the two, the floor is that of the older one,
    /// so that the session is told before it goes on ([`BeginError::HistoryLost`]), whichever of its
    /// transactions ended first.
    #[must_use]
    pub fn raise(&mut self, seen: Seen) -> bool {
        let floor = self.stamps.entry(seen.domain).or_insert((seen.line, seen.stamp));
        let same = floor.0 == seen.line;
        if same {
            floor.1 = floor.1.max(seen.stamp);
        } else if seen.line < floor.0 {
            *floor = (seen.line, seen.stamp);
        }
        same
    }

    /// Whether all that was done in a domain has been seen, and none of it may be lost.
    #[must_use]
    pub fn is_at_rest(&self, domain: DomainId) -> bool {
        !self.unseen.contains_key(&domain) && !self.lost.contains(&domain)
    }

    /// The floor of a domain.
    #[must_use]
    pub fn get(&self, domain: DomainId) -> Option<Stamp> {
        self.stamps.get(&domain).map(|floor| floor.1)
    }

    /// Forgets a domain's floor: the answer to [`BeginError::HistoryLost`], by a user who accepts
    /// that what was seen may be gone.
    pub fn forget(&mut self, domain: DomainId) {
        self.stamps.remove(&domain);
        self.unseen.remove(&domain);
        self.lost.remove(&domain);
    }
}

/// A user of the node: options and floors.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Session {
    /// Its choices.
    pub options: SessionOptions,
    /// What it has seen.
    pub floors: Floors,
}

impl Session {
    /// A session that has seen nothing.
    #[must_use]
    pub fn new(options: SessionOptions) -> Self {
        Self { options, floors: Floors::default() }
    }

    /// Begins a transaction. On [`BeginError::Wait`] ask the machine for
    /// [`crate::cache::io::CacheOp::WaitThrough`] and try again; on [`BeginError::Unseen`] for
    /// [`crate::cache::io::CacheOp::Refresh`], and tell [`Session::refreshed`].
    pub fn begin(&self, cache: &Arc<ReadCache>) -> Result<Transaction, BeginError> {
        Transaction::begin(cache, self.options, &self.floors)
    }

    /// A transaction of the session over several domains is done, and nobody can tell the stamp of its part in this one:
    /// its process was forgotten there, or the domain was restored. The next begin asks for the newest state, which has it
    /// (P4), if the domain still has the history in which it was asked for.
    pub fn wrote_unseen(&mut self, domain: DomainId, line: Line, history: HistoryId) {
        self.floors.marks += 1;
        let mark = Mark(self.floors.marks);
        let unseen = self.floors.unseen.entry(domain).or_insert(Unseen { line, mark, history });
        (unseen.line, unseen.mark) = (line.min(unseen.line), mark);
        if unseen.history != history {
            // One of the two has ended, whichever is told first.
            self.floors.lost.insert(domain);
        }
    }

    /// The cache has reached the state that the origin had after the begin that failed with [`BeginError::Unseen`], which
    /// gave this mark: the stamp is what the machine answered, and the history what the cache has since. In another one than
    /// before nobody can tell whether what was done was before it began: a restore may have lost it, and nothing that the
    /// stream told (bug 217). The next begin says so (P12).
    pub fn refreshed(&mut self, domain: DomainId, mark: Mark, stamp: Stamp, history: HistoryId) {
        // What was done since is in a newer state.
        let unseen = self.floors.unseen.get(&domain).copied();
        let Some(Unseen { line, history: before, .. }) = unseen.filter(|it| it.mark == mark) else {
            return;
        };
        self.floors.unseen.remove(&domain);
        if history != before {
            crate::probe::probe("unseen-may-be-lost");
            self.floors.lost.insert(domain);
        }
        self.saw(&[Seen { domain, line, stamp }]);
    }

    /// Raises the floors by what a transaction has seen. Gives the first domain whose line is not
    /// that of what the session saw before: what a transaction beside this one saw may be gone, and
    /// the next begin says so.
    pub fn saw(&mut self, seen: &[Seen]) -> Option<DomainId> {
        let mut lost = None;
        for &seen in seen {
            if !self.floors.raise(seen) {
                lost.get_or_insert(seen.domain);
            }
        }
        lost
    }
}
