//! Transactions: read the shared copies, keep writes to themselves, and end in a commit request.
//!
//! A transaction is stepped: every operation answers a [`Step`]. On [`Step::Need`] ask the machine
//! to fetch the pages, hand its reply to [`Transaction::supply`] and repeat the operation; on
//! [`Step::NeedIds`] ask for page numbers and hand them to [`Transaction::supply_ids`]. Nothing
//! here waits for the machine, so the same code runs on any thread and in the simulator.
//!
//! Kinds of method, in the order of use: `begin` · reads (`read_slot`, `exists`, `slots`,
//! `read_all`, `read_raw`, `read_object`) · writes (`write` and the objects' conveniences) ·
//! `savepoint`, `rollback_to` · `finish`. Dropping it aborts it.

mod access;
mod ahead;
mod hit;
mod objects;
mod overlay;
mod reads;
mod session;

pub use access::{Held, Records};
pub use session::{
    AgeLimit, Consistency, Floors, Line, Mark, Session, SessionOptions, TransactionLimits,
};

use self::ahead::LookedAhead;
use self::session::Unseen;
use super::io::CacheOp;
use super::read::{DomainState, Position, ReadCache, Recheck, Ticket};
use crate::cache::PageCopy;
use crate::commit::{Aspect, IdRange, PARTS_MAX, Read, Target, Write};
use crate::id::{DomainId, HistoryId, ObjectId, PageId, PageNo, Stamp, VolumeId};
use crate::machine::Fault;
use crate::time::{Duration, Instant};
use overlay::Overlay;
use reads::ReadSet;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// How an operation of a transaction went.
#[derive(Clone, PartialEq, Debug)]
#[must_use]
pub enum Step<T> {
    /// Done.
    Ready(T),
    /// Pages are missing: fetch them (a request made after the transaction began), hand them to
    /// [`Transaction::supply`], repeat.
    Need {
        /// Their domain.
        domain: DomainId,
        /// The pages; the first is wanted most.
        pages: Vec<PageId>,
    },
    /// Page numbers are missing: allocate them, hand them to [`Transaction::supply_ids`], repeat.
    NeedIds {
        /// Of which volume.
        volume: VolumeId,
        /// How many, in one run.
        count: u64,
    },
    /// What it looks for has changed ahead of the stream, and nobody here knows to what, or not all of it: ask for
    /// [`CacheOp::WaitThrough`], repeat. Only of sessions that look ahead.
    Wait(Awaited),
    /// The transaction can only be dropped and run again.
    Doomed(Doom),
    /// The operation is refused; the transaction may go on.
    Refused(TransactionError),
}

/// Why a transaction can only be run again.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Doom {
    /// Something it read was changed (rule 1).
    #[error("something read of page {} has changed", .0.page)]
    Conflict(Read),
    /// It looked away for so long that its reads can no longer be checked (rule 3).
    #[error("more has changed in domain {0:?} than is remembered")]
    Overrun(DomainId),
    /// The domain was reset, or its line forked below what was seen.
    #[error("the history of domain {0:?} is another one now")]
    HistoryLost(DomainId),
    /// The state of a snapshot's begin is no longer to be had.
    #[error("page {0} is no longer held as it was at the snapshot")]
    SnapshotTooOld(PageId),
    /// What it wrote no longer applies to the page, which others changed meanwhile.
    #[error("a write no longer fits page {0}, which has changed")]
    WriteFailed(PageId),
}

/// Why an operation is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TransactionError {
    /// The volume was not opened.
    #[error("volume {0} is not open")]
    NoVolume(VolumeId),
    /// The domain's stream has not begun.
    #[error("domain {0:?} is not attached")]
    NotAttached(DomainId),
    /// A snapshot may not write.
    #[error("a snapshot is read-only")]
    ReadOnly,
    /// Over one of [`TransactionLimits`], or longer than an object may be.
    #[error("too large: {0}")]
    TooLarge(&'static str),
    /// The domain's state is older than the session allows; none: its age is not known.
    #[error("the cached state is older than the session allows: {}", age_in_words(.0))]
    TooOld(Option<Duration>),
    /// The object is not there: deleted, or its slot holds a later one.
    #[error("object {0:?} is gone")]
    Gone(ObjectId),
    /// The page is not there, there already, or of the other kind.
    #[error("page {0} is not there, or not of that kind")]
    BadPage(PageId),
    /// The write does not fit in the page.
    #[error("page {0} is full")]
    PageFull(PageId),
    /// The write makes no sense for the page.
    #[error("malformed write to page {0}")]
    BadWrite(PageId),
    /// What the page holds makes no sense: a forward to a forward, a large object cut short.
    #[error("object {0:?} is damaged")]
    Damaged(ObjectId),
}

fn age_in_words(age: &Option<Duration>) -> String {
    age.map_or_else(|| "its age is not known".to_owned(), |age| format!("{age:?}"))
}

/// Why a transaction does not begin.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BeginError {
    /// The session has seen more than the cache has: its floor is awaited.
    #[error("domain {:?} has not reached stamp {}", .0.domain, .0.stamp)]
    Wait(Awaited),
    /// The session has written something in a domain that nobody can tell the stamp of: the cache has to be refreshed
    /// there.
    #[error("what was written in domain {domain:?} has no stamp that is known")]
    Unseen {
        /// Which domain.
        domain: DomainId,
        /// For [`Session::refreshed`].
        mark: Mark,
    },
    /// What the session has seen belongs to a history that is no more.
    #[error("the history of domain {0:?} is another one now")]
    HistoryLost(DomainId),
    /// Too many transactions run.
    #[error("too many transactions run")]
    TooMany,
}

/// What a domain's stream has to reach: for [`CacheOp::WaitThrough`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Awaited {
    /// Which domain.
    pub domain: DomainId,
    /// The line the stamp belongs to: on another one it may never come.
    pub line: Line,
    /// Where valid-through has to be.
    pub stamp: Stamp,
}

/// What a transaction saw of a domain, for the session's floors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Which domain.
    pub domain: DomainId,
    /// The line the stamp belongs to.
    pub line: Line,
    /// All reads held at this stamp.
    pub stamp: Stamp,
}

/// One domain's part of a commit, for [`CacheOp::Commit`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommitPart {
    /// Which domain.
    pub domain: DomainId,
    /// The history in which the reads were checked.
    pub history: HistoryId,
    /// The line of stamps, for the floors.
    pub line: Line,
    /// The valid-through at which the reads were last checked: the base.
    pub checked: Stamp,
    /// What was read, ascending, without repeats.
    pub reads: Vec<Read>,
    /// What to write, in order.
    pub writes: Vec<Write>,
    /// Of the pages that it makes, those of which it has read the numbers: ascending.
    pub named: Vec<PageId>,
}

/// What the machine is asked for, so that these parts of one transaction are committed. One that writes in
/// several domains, or writes in one and has read in others, is committed as a whole (decision 0035); parts
/// that only read are validated one by one.
#[must_use]
pub fn commit_ops(parts: Vec<CommitPart>) -> Vec<CacheOp> {
    if parts.len() > 1 && decides(&parts).is_some() {
        return vec![CacheOp::CommitAcross(parts)];
    }
    parts.into_iter().map(CommitPart::into_op).collect()
}

/// The domain whose part of a transaction decides: the lowest that it writes. None: it writes nowhere.
#[must_use]
pub fn decides(parts: &[CommitPart]) -> Option<DomainId> {
    parts.iter().find(|part| !part.writes.is_empty()).map(|part| part.domain)
}

impl CommitPart {
    /// The request to the machine.
    #[must_use]
    pub fn into_op(self) -> CacheOp {
        CacheOp::Commit {
            domain: self.domain,
            history: self.history,
            checked: self.checked,
            reads: self.reads,
            writes: self.writes,
            named: self.named,
        }
    }

    /// What the session has seen when the commit succeeded as `stamp`.
    #[must_use]
    pub fn seen(&self, stamp: Stamp) -> Seen {
        Seen { domain: self.domain, line: self.line, stamp }
    }
}

/// How a transaction ends.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Finish {
    /// Committed here, without a message: it read only, and all of it held at these stamps.
    Local {
        /// Per domain read, ascending.
        seen: Vec<Seen>,
        /// It read from several domains: serializable in each, not across them.
        per_domain: bool,
    },
    /// To be committed at the origin: it is committed when every part is.
    Send {
        /// The parts, ascending by domain: see [`commit_ops`].
        parts: Vec<CommitPart>,
        /// What it saw of domains that are not among the parts.
        seen: Vec<Seen>,
        /// It only read, from several domains: valid in each, not at one instant across them.
        per_domain: bool,
    },
    /// It is aborted.
    Doomed(Doom),
    /// It could not be ended well within its limits of age. Nothing was done.
    Refused(TransactionError),
}

/// A point to come back to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Savepoint(usize);

/// Why an operation stops short; the inside of [`Step`].
enum Stop {
    Need(DomainId, Vec<PageId>),
    NeedIds(VolumeId, u64),
    Wait(Awaited),
    Doomed(Doom),
    Refused(TransactionError),
}

type Try<T> = Result<T, Stop>;

impl<T> From<Try<T>> for Step<T> {
    fn from(result: Try<T>) -> Self {
        match result {
            Ok(value) => Self::Ready(value),
            Err(Stop::Need(domain, pages)) => Self::Need { domain, pages },
            Err(Stop::NeedIds(volume, count)) => Self::NeedIds { volume, count },
            Err(Stop::Wait(awaited)) => Self::Wait(awaited),
            Err(Stop::Doomed(doom)) => Self::Doomed(doom),
            Err(Stop::Refused(error)) => Self::Refused(error),
        }
    }
}

/// A domain that a transaction touches.
struct Attached {
    state: Arc<DomainState>,
    /// Up to where its reads have been checked; for a snapshot, where it stands for good.
    at: Position,
    /// The stamp registered as a running snapshot, given back at the end.
    snapshot: bool,
    /// When the state of a snapshot's begin was last confirmed; of others, no later than that in which they
    /// looked last, as far as somebody asks for an age.
    confirmed: Option<Instant>,
    /// Where the stream has to be before it can end, since it has looked ahead to there, or its session has.
    ends_at: Stamp,
}

impl Attached {
    /// A stamp of its line, which is awaited.
    fn until(&self, stamp: Stamp) -> Awaited {
        Awaited { domain: self.state.id(), line: Line(self.at.line), stamp }
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        if self.snapshot {
            self.state.close_snapshot(self.at.through);
        }
    }
}

/// Copies handed in by `supply`: exact at the checked valid-through of their domain, like those in
/// the shared maps, since a recheck drops what a change names.
#[derive(Default)]
struct Supplied {
    copies: BTreeMap<PageId, Arc<PageCopy>>,
    order: VecDeque<PageId>,
    bytes: usize,
}

impl Supplied {
    fn insert(&mut self, copy: Arc<PageCopy>, bytes_max: usize) {
        self.remove(copy.id);
        self.bytes += copy.cost();
        self.order.push_back(copy.id);
        self.copies.insert(copy.id, copy);
        while self.bytes > bytes_max && self.copies.len() > 1 {
            let Some(oldest) = self.order.front().copied() else {
                break;
            };
            self.remove(oldest);
        }
    }

    fn remove(&mut self, page: PageId) {
        if let Some(copy) = self.copies.remove(&page) {
            self.bytes -= copy.cost();
            self.order.retain(|&other| other != page);
        }
    }
}

/// What a deletion changes of the page that stands for the volume: nothing that a transaction has of
/// the volume holds any more.
const VOLUME_GONE: (Target, Aspect) = (Target::Page, Aspect::Existence);

/// A transaction: see the module.
pub struct Transaction {
    cache: Arc<ReadCache>,
    options: SessionOptions,
    /// The floors of its begin: a domain may end its line before it is first used.
    floors: Vec<(DomainId, Line, Stamp)>,
    /// Domains touched, in the order of their first use.
    domains: Vec<Attached>,
    /// Volumes touched: id, place in `domains`, bytes of a page.
    volumes: Vec<(VolumeId, usize, u32)>,
    reads: ReadSet,
    overlay: Overlay,
    supplied: Supplied,
    /// What it has read ahead of the stream.
    ahead: LookedAhead,
    /// Page numbers handed in and not used.
    ids: Vec<IdRange>,
    /// A page made here for objects that outgrew theirs.
    overflow: Option<PageId>,
    doomed: Option<Doom>,
    /// Given back when the transaction is dropped: eviction notices wait for it (rule 2).
    _ticket: Ticket,
}

impl Transaction {
    /// Begins a transaction that sees at least `floors`.
    pub fn begin(
        cache: &Arc<ReadCache>,
        options: SessionOptions,
        floors: &Floors,
    ) -> Result<Self, BeginError> {
        let forget = cache.faults.has(Fault::ForgetFloor);
        if let Some((&domain, &Unseen { mark, .. })) = floors.unseen.first_key_value() {
            return Err(BeginError::Unseen { domain, mark });
        }
        if let Some(domain) = floors.lost.first() {
            return Err(BeginError::HistoryLost(*domain));
        }
        for (&domain, &(line, stamp)) in &floors.stamps {
            let state = cache.domain(domain);
            let position = state.as_ref().and_then(|state| state.position());
            // A line may have ended, and the next one not be there yet.
            let now = match position {
                Some(at) => Some(at.line),
                None => state.map(|state| state.line()),
            };
            if now.is_some_and(|now| now != line.0) {
                return Err(BeginError::HistoryLost(domain));
            }
            match position {
                Some(at) if at.through >= stamp || forget || options.looks_ahead() => {}
                _ => return Err(BeginError::Wait(Awaited { domain, line, stamp })),
            }
        }
        let ticket = Ticket::take(cache).ok_or(BeginError::TooMany)?;
        if options.looks_ahead() {
            cache.look_ahead();
        }
        Ok(Self {
            cache: Arc::clone(cache),
            options,
            floors: floors.stamps.iter().map(|(&domain, &(line, at))| (domain, line, at)).collect(),
            domains: Vec::new(),
            volumes: Vec::new(),
            reads: ReadSet::default(),
            overlay: Overlay::default(),
            supplied: Supplied::default(),
            ahead: LookedAhead::default(),
            ids: Vec::new(),
            overflow: None,
            doomed: None,
            _ticket: ticket,
        })
    }

    /// Hands in the reply to a fetch: copies that were exact at `through`. The fetch must have
    /// been requested while this transaction ran (rule 2 protects nobody else).
    pub fn supply(&mut self, through: Stamp, pages: &[Arc<PageCopy>]) -> Step<()> {
        self.try_supply(through, pages).into()
    }

    fn try_supply(&mut self, through: Stamp, pages: &[Arc<PageCopy>]) -> Try<()> {
        self.alive()?;
        for copy in pages {
            let domain = self.domain_of(copy.id)?;
            let snapshot = self.domains[domain].snapshot;
            if snapshot {
                self.refuse_late(domain, copy)?;
            } else {
                self.recheck(domain)?;
            }
            // A snapshot takes what has the right version; what changed since lies above it. A copy
            // that is too new for it may come while the right one is kept beside: that one may go.
            let Attached { state, at, .. } = &self.domains[domain];
            let exact = if snapshot {
                copy.version <= at.through
            } else {
                state.unchanged_since(through, copy.id)
            };
            if exact {
                self.supplied.insert(Arc::clone(copy), self.options.limits.supplied_bytes_max);
            }
        }
        Ok(())
    }

    /// Hands in page numbers, given to this node for good.
    pub fn supply_ids(&mut self, range: IdRange) {
        if range.count > 0 {
            self.ids.push(range);
        }
    }

    /// Page numbers handed in and not used, to be used by another transaction. After a rollback,
    /// numbers used by the writes taken back are lost, which does no harm.
    #[must_use]
    pub fn take_unused_ids(&mut self) -> Vec<IdRange> {
        std::mem::take(&mut self.ids)
    }

    /// A point to come back to.
    #[must_use]
    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.overlay.len())
    }

    /// Takes back every write since the savepoint. What was read stays read.
    pub fn rollback_to(&mut self, savepoint: Savepoint) {
        let kept = self.cache.faults.has(Fault::RollbackKeeps);
        self.overlay.truncate(if kept { usize::MAX } else { savepoint.0 });
        if self.overflow.is_some_and(|page| !self.overlay.makes(page)) {
            self.overflow = None;
        }
    }

    /// Whether it can only be run again, as far as it knows: it looks at every operation.
    #[must_use]
    pub fn doom(&self) -> Option<&Doom> {
        self.doomed.as_ref()
    }

    /// How many reads are recorded.
    #[must_use]
    pub fn reads_len(&self) -> usize {
        self.reads.len()
    }

    /// Its writes up to now, in order.
    #[must_use]
    pub fn writes(&self) -> &[Write] {
        self.overlay.writes()
    }

    /// The valid-through at which all it read from `domain` is known to hold; none: not touched.
    #[must_use]
    pub fn stamp(&self, domain: DomainId) -> Option<Stamp> {
        let attached = self.domains.iter().find(|a| a.state.id() == domain)?;
        Some(attached.at.through)
    }

    /// Whether it has used several domains: unless it writes, what it has read is of one state in each of
    /// them, not of one instant across them (P2).
    #[must_use]
    pub fn per_domain(&self) -> bool {
        self.domains.len() > 1
    }

    /// How old the state of `domain` is at most at `now`; none: never confirmed.
    #[must_use]
    pub fn age(&self, domain: DomainId, now: Instant) -> Option<Duration> {
        self.cache.age(domain, now)
    }

    /// Ends it: checks the reads a last time, and says what is left to do. One that still [waits](Self::waits) is doomed.
    pub fn finish(mut self) -> Finish {
        match self.try_finish() {
            Ok(finish) => finish,
            Err(Stop::Doomed(doom)) => Finish::Doomed(doom),
            Err(Stop::Refused(error)) => Finish::Refused(error),
            Err(Stop::Wait(awaited)) => Finish::Doomed(Doom::Overrun(awaited.domain)),
            Err(Stop::Need(..) | Stop::NeedIds(..)) => {
                unreachable!("checking reads asks for nothing")
            }
        }
    }

    fn try_finish(&mut self) -> Try<Finish> {
        self.alive()?;
        for domain in 0..self.domains.len() {
            if !self.domains[domain].snapshot {
                self.note_confirmed(domain);
                self.recheck(domain)?;
            }
            self.check_ended(domain)?;
            self.check_age(domain)?;
        }
        let mut own: Vec<(Vec<Write>, Vec<PageId>)> = Vec::new();
        own.resize_with(self.domains.len(), Default::default);
        for page in self.overlay.named() {
            let place = self.domain_of(page)?;
            own[place].1.push(page);
        }
        let writes = self.overlay.take_writes();
        let writing = !writes.is_empty();
        for write in writes {
            let place = self.domain_of(write.page)?;
            own[place].0.push(write);
        }
        let strict = self.options.consistency == Consistency::Strict;
        let mut places: Vec<usize> = (0..self.domains.len()).collect();
        places.sort_unstable_by_key(|&place| self.domains[place].state.id());
        let per_domain = self.per_domain() && !writing;
        let unvalidated = self.cache.faults.has(Fault::ReadElsewhere);
        let (mut parts, mut seen) = (Vec::new(), Vec::new());
        for place in places {
            let part = self.part(place, std::mem::take(&mut own[place]));
            let read = !part.reads.is_empty() && writing && !unvalidated;
            if strict || read || !part.writes.is_empty() {
                parts.push(part);
            } else {
                seen.push(self.seen(place));
            }
        }
        if writing && parts.len() > PARTS_MAX {
            return Err(Stop::Refused(TransactionError::TooLarge("domains")));
        }
        Ok(if parts.is_empty() {
            Finish::Local { seen, per_domain }
        } else {
            Finish::Send { parts, seen, per_domain }
        })
    }

    fn part(&self, place: usize, (writes, named): (Vec<Write>, Vec<PageId>)) -> CommitPart {
        let Attached { state, at, .. } = &self.domains[place];
        let reads = self.reads.sorted(|page| {
            self.volumes.iter().any(|&(volume, domain, _)| volume == page.volume && domain == place)
        });
        CommitPart {
            domain: state.id(),
            history: at.history,
            line: Line(at.line),
            checked: at.through,
            reads,
            writes,
            named,
        }
    }

    fn seen(&self, place: usize) -> Seen {
        let Attached { state, at, .. } = &self.domains[place];
        Seen { domain: state.id(), line: Line(at.line), stamp: at.through }
    }

    fn alive(&self) -> Try<()> {
        match &self.doomed {
            Some(doom) => Err(Stop::Doomed(doom.clone())),
            None => Ok(()),
        }
    }

    fn doom_with<T>(&mut self, doom: Doom) -> Try<T> {
        self.doomed = Some(doom.clone());
        Err(Stop::Doomed(doom))
    }

    /// Brings the reads of a domain up to its valid-through, or dooms the transaction (rules 1, 3).
    #[cold]
    fn recheck(&mut self, domain: usize) -> Try<()> {
        let attached = &mut self.domains[domain];
        let faults = self.cache.faults;
        if faults.has(Fault::SkipRecheck) {
            attached.at = attached.state.position().unwrap_or(attached.at);
            return Ok(());
        }
        if attached.state.unmoved(attached.at.sequence) {
            return Ok(());
        }
        let (reads, overlay, supplied) = (&self.reads, &mut self.overlay, &mut self.supplied);
        let ahead = &self.ahead;
        let volumes = &self.volumes;
        let mut conflict = None;
        let recheck = attached.state.recheck(attached.at, |change| {
            if change.page.is_volume() && change.touched.contains(&VOLUME_GONE) {
                let touched = volumes.iter().any(|known| known.0 == change.page.volume);
                let (target, aspect) = VOLUME_GONE;
                let read = Read { page: change.page, target, aspect };
                conflict = conflict.or(touched.then_some(read));
                return;
            }
            supplied.remove(change.page);
            overlay.changed(change.page);
            if conflict.is_none() && !faults.has(Fault::SkipDoom) {
                let seen = |target| ahead.has_seen(change, target, faults);
                conflict = reads.conflict(change.page, &change.touched, seen);
            }
        });
        let id = attached.state.id();
        match (recheck, conflict) {
            (Recheck::NewLine, _) => {
                crate::probe::probe("doomed-by-a-new-line");
                self.doom_with(Doom::HistoryLost(id))
            }
            (_, Some(read)) => {
                crate::probe::probe("doomed-by-a-change");
                self.doom_with(Doom::Conflict(read))
            }
            (Recheck::Overrun, None) => self.doom_with(Doom::Overrun(id)),
            (Recheck::Checked(position), None) => {
                self.domains[domain].at = position;
                Ok(())
            }
        }
    }

    /// The place in `domains` of a page's domain, which is attached at its first use.
    #[inline]
    fn domain_of(&mut self, page: PageId) -> Try<usize> {
        match self.volumes.iter().find(|known| known.0 == page.volume) {
            Some(known) => Ok(known.1),
            None => self.attach(page.volume),
        }
    }

    #[cold]
    fn attach(&mut self, volume: VolumeId) -> Try<usize> {
        let refused = |error| Err(Stop::Refused(error));
        let Some(entry) = self.cache.volume(volume) else {
            return refused(TransactionError::NoVolume(volume));
        };
        let place = self.domains.iter().position(|attached| attached.state.id() == entry.domain);
        let place = if let Some(place) = place {
            place
        } else {
            let snapshot = self.options.consistency == Consistency::Snapshot;
            let attached = self.cache.domain(entry.domain).and_then(|state| {
                // Before the position: a confirmation that comes between belongs to a later state.
                let confirmed = state.confirmed();
                let at = if snapshot {
                    state.open_snapshot(self.cache.faults)
                } else {
                    state.position()
                }?;
                Some(Attached { state, at, snapshot, confirmed, ends_at: Stamp::ZERO })
            });
            let Some(mut attached) = attached else {
                return refused(TransactionError::NotAttached(entry.domain));
            };
            // Within a line the floor looked at in the beginning still holds. On another one the
            // session must be told before it sees less than it has seen (P4, P12).
            let floor = self.floors.iter().find(|(domain, ..)| *domain == entry.domain);
            if floor.is_some_and(|(_, line, _)| line.0 != attached.at.line) {
                return self.doom_with(Doom::HistoryLost(entry.domain));
            }
            attached.ends_at = floor.map_or(Stamp::ZERO, |floor| floor.2);
            self.domains.push(attached);
            self.domains.len() - 1
        };
        self.volumes.push((volume, place, entry.page_bytes));
        Ok(place)
    }

    fn page_bytes(&mut self, volume: VolumeId) -> Try<u32> {
        let page = PageNo(0);
        self.domain_of(PageId { volume, page })?;
        let known = self.volumes.iter().find(|known| known.0 == volume);
        Ok(known.expect("attached just above").2)
    }

    /// How old the state is that a transaction reads. A snapshot's grows older as soon as the domain
    /// has moved on from it, however often that is confirmed.
    fn age_of(&self, domain: usize, now: Instant) -> Option<Duration> {
        let Attached { state, at, snapshot, confirmed, .. } = &self.domains[domain];
        let age = state.age(now);
        // What confirmed a later state says nothing of this one (bug 94).
        let moved = if *snapshot {
            state.through() != Some(at.through)
        } else {
            !state.unmoved(at.sequence)
        };
        if moved { confirmed.map(|confirmed| now.since(confirmed)) } else { age }
    }

    /// Notes when the state was confirmed, before somebody looks whether it has moved: so that is at most
    /// the state in which he looks.
    #[inline]
    fn note_confirmed(&mut self, domain: usize) {
        if self.options.age_limit != AgeLimit::None {
            let attached = &mut self.domains[domain];
            if !attached.snapshot {
                attached.confirmed = attached.state.confirmed();
            }
        }
    }

    /// Checks the age of what was read, after the copy (rule 8).
    #[inline]
    fn check_age(&self, domain: usize) -> Try<()> {
        let state = &self.domains[domain].state;
        let limit = match self.options.age_limit {
            AgeLimit::None => return Ok(()),
            AgeLimit::Lease => state.lease(),
            AgeLimit::AtMost(limit) => limit,
        };
        match self.age_of(domain, self.cache.now()) {
            Some(age) if age <= limit => Ok(()),
            age => {
                crate::probe::probe("state-too-old");
                Err(Stop::Refused(TransactionError::TooOld(age)))
            }
        }
    }
}

#[cfg(test)]
mod tests;
