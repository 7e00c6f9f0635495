//! What a node knows of its commits in a domain: each under one id until an outcome is known (rule 15), its writes
//! retained until the stream has passed them (rule 12).

use super::CacheReply;
use crate::commit::{Abort, Across, CommitRequest, Numbered, Op, Outcome, PartId, Read, Write};
use crate::confirmed::Confirmed;
use crate::id::{BootId, CommitId, HistoryId, PageId, RequestId, Stamp};
use crate::message::{OPEN_MAX, RequestError};
use crate::share::Load;
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The pause before a commit that was put off is sent again; doubled each time.
const PAUSE: Duration = Duration::from_millis(10);
/// A registration that is not answered is asked for again after this long: the parent may have
/// had no room for it, or its own parent was away.
const REGISTER_AGAIN: Duration = Duration::from_secs(2);
/// So many commits that were left in doubt, and have ended since, a domain remembers.
const ENDED_MAX: usize = 1 << 10;

/// What a user is answered.
pub(super) type Answer = Result<CacheReply, RequestError>;

/// A commit whose outcome, or whose place in the stream, is to come.
pub(super) struct Pending {
    pub(super) history: HistoryId,
    pub(super) base: Stamp,
    pub(super) numbers: Vec<Numbered>,
    pub(super) reads: Vec<Read>,
    pub(super) writes: Vec<Write>,
    /// It is a part of a transaction over several domains.
    pub(super) across: Option<Box<Across>>,
    /// It is no request of its own on a link: another domain decides.
    pub(super) beside: bool,
    /// What became of it is asked, of the part that decides; other parts do not go with it.
    pub(super) asks: bool,
    /// The users who wait, until their time is up: the one who asked for it, and those who asked
    /// about it later.
    pub(super) users: BTreeSet<RequestId>,
    /// A user was told that it is in doubt, and may ask again.
    pub(super) told_in_doubt: bool,
    /// Of memory.
    pub(super) bytes: usize,
    /// On the link that stands now.
    pub(super) sent: bool,
    /// On any link: whether it was done can only be told by its outcome.
    pub(super) ever_sent: bool,
    pub(super) pause: Duration,
    /// A copy may be under way that nothing answers: it was sent on a link that ended, or put off
    /// by a parent that had passed it on.
    pub(super) in_doubt: bool,
    /// Why it was turned away last: nothing is under way of what was sent then.
    pub(super) turned_away: Option<RequestError>,
    /// A store that is full, or cannot read a page, put it off: since when, and why. Unless it is in doubt it is not
    /// done, and will not be if it is not sent again.
    pub(super) unable: Option<(Instant, RequestError)>,
    /// Its stamp, once known; kept until valid-through has reached it.
    pub(super) stamp: Option<Stamp>,
}

impl Pending {
    /// One that was not sent, and of which nobody waits to hear.
    pub(super) fn new(asked: CommitRequest, beside: bool) -> Self {
        let bytes = asked.memory_bytes();
        Self {
            history: asked.history,
            base: asked.base,
            numbers: asked.numbers,
            reads: asked.reads,
            writes: asked.writes,
            across: asked.across,
            beside,
            asks: false,
            users: BTreeSet::new(),
            told_in_doubt: false,
            bytes,
            sent: false,
            ever_sent: false,
            pause: PAUSE,
            in_doubt: false,
            turned_away: None,
            unable: None,
            stamp: None,
        }
    }

    /// What it is of what is on its way over a link.
    pub(super) fn load(&self) -> Load {
        Load { count: usize::from(!self.beside), bytes: self.bytes }
    }

    /// The error of a commit that its store has refused; none: it may be done, or be under way.
    pub(super) fn refused(&self) -> Option<RequestError> {
        let (_, error) = self.unable.as_ref().filter(|_| !self.sent && !self.in_doubt)?;
        Some(error.clone())
    }

    /// The same of one that was turned away: it is not done, and will not be if it is not sent again.
    pub(super) fn not_done(&self) -> Option<RequestError> {
        let why = self.turned_away.as_ref().filter(|_| !self.sent && !self.in_doubt);
        let why = why.map(|why| format!("the commit was put off ({why}), and is not done"));
        self.refused().or_else(|| why.map(RequestError::Unavailable))
    }

    /// Pages that it changes and that are there: of those that it was to make this is known if it is
    /// committed, and of the one that a refusal says to be there. A notice of another one could be
    /// overtaken by the commit that makes it, and would end the registration that came with that.
    pub(super) fn changed(&self, refused: Option<&Abort>) -> impl Iterator<Item = PageId> + '_ {
        let makes = |op: &Op| matches!(op, Op::CreatePage(_) | Op::RestorePage { .. });
        let made = self.writes.iter().filter(|write| makes(&write.op)).map(|write| write.page);
        let mut unknown: BTreeSet<PageId> = made.collect();
        if self.stamp.is_some() {
            unknown.clear();
        } else if let Some(Abort::BadPage(there)) = refused {
            unknown.remove(there);
        }
        let pages = self.writes.chunk_by(|one, next| one.page == next.page);
        pages.map(|ops| ops[0].page).filter(move |page| !unknown.contains(page))
    }
}

/// A domain's commits.
pub(super) struct Commits {
    /// Whose life they are of; another than the node's once the domain has forgotten that.
    pub(super) boot: BootId,
    /// The domain had the boot on record, durably, once. It is never registered anew: after it
    /// had expired, a repeated commit could be done twice (decision 0004).
    pub(super) known: bool,
    /// It may commit over the link that stands.
    pub(super) registered: bool,
    /// When that was asked for last.
    pub(super) asked_at: Option<Instant>,
    /// Some commits are of boots that the domain has forgotten.
    pub(super) expired: bool,
    pub(super) next: u64,
    pub(super) pending: BTreeMap<CommitId, Pending>,
    pub(super) unresolved: BTreeSet<CommitId>,
    /// Bytes of those without an outcome, and of those of them that are sent.
    pub(super) bytes: usize,
    pub(super) sent: Load,
    pub(super) queue: VecDeque<CommitId>,
    /// Put off by the parent, and until when.
    pub(super) paused: BTreeSet<(Instant, CommitId)>,
    /// How those ended that a user was told to be in doubt, in the order of their ends.
    pub(super) ended: VecDeque<(CommitId, Answer)>,
    /// Parts that have an outcome, of transactions of which others have none.
    pub(super) kept: BTreeSet<CommitId>,
    /// Confirmed to the parent on this link.
    pub(super) told: Confirmed,
    /// Pages that commits changed which are over: the parent counts the node for them, held or not.
    pub(super) left: Vec<PageId>,
    /// Pages that those under way write, and how many writes there are.
    pub(super) written: BTreeMap<PageId, usize>,
    /// Pages that the parent named on this link, and that commits under way are to make.
    pub(super) named: BTreeSet<PageId>,
    /// Of those, the ones whose commit has ended, and did not make them: the parent counts the node for them.
    pub(super) vain: Vec<PageId>,
    /// Those that were withdrawn since somebody looked: for a checker.
    #[cfg(feature = "faults")]
    pub(super) withdrawn: Vec<CommitId>,
}

impl Commits {
    pub(super) fn new(boot: BootId) -> Self {
        Self {
            boot,
            known: false,
            registered: false,
            asked_at: None,
            expired: false,
            next: 1,
            pending: BTreeMap::new(),
            unresolved: BTreeSet::new(),
            bytes: 0,
            sent: Load::default(),
            queue: VecDeque::new(),
            paused: BTreeSet::new(),
            ended: VecDeque::new(),
            kept: BTreeSet::new(),
            told: Confirmed::default(),
            left: Vec::new(),
            written: BTreeMap::new(),
            named: BTreeSet::new(),
            vain: Vec::new(),
            #[cfg(feature = "faults")]
            withdrawn: Vec::new(),
        }
    }

    /// The parent names a page that is not held. Whether a commit under way writes it: then it is remembered until
    /// that has ended.
    pub(super) fn named(&mut self, page: PageId) -> bool {
        let written = self.writes(page);
        if written {
            self.named.insert(page);
        }
        written
    }

    /// The registration was asked for on this link, and not answered for long.
    pub(super) fn asks_again(&self, now: Instant) -> bool {
        !self.registered && self.asked_long_ago(now)
    }

    pub(super) fn asked_long_ago(&self, now: Instant) -> bool {
        self.asked_at.is_none_or(|at| at.after(REGISTER_AGAIN) <= now)
    }

    pub(super) fn unresolved(&self) -> usize {
        self.unresolved.len()
    }

    /// When a commit that was put off is to be sent.
    pub(super) fn resumes_at(&self) -> Option<Instant> {
        self.paused.first().map(|&(at, _)| at)
    }

    pub(super) fn lose_link(&mut self) {
        self.queue = self.unresolved.iter().copied().collect();
        self.sent = Load::default();
        self.paused.clear();
        self.told = Confirmed::default();
        self.registered = false;
        self.asked_at = None;
        self.named.clear();
        for pending in self.pending.values_mut() {
            pending.in_doubt |= pending.sent;
            pending.sent = false;
            pending.pause = PAUSE;
        }
    }

    /// A planted fault: what is in doubt is another commit from now on.
    pub(super) fn number_anew(&mut self) {
        let alone = |id: &CommitId| self.pending[id].across.is_none();
        let in_doubt =
            |id: &&CommitId| id.boot == self.boot && self.pending[*id].in_doubt && alone(id);
        let doubted: Vec<CommitId> = self.unresolved.iter().filter(in_doubt).copied().collect();
        for id in doubted {
            let anew = CommitId { boot: self.boot, sequence: self.next };
            self.next += 1;
            self.unresolved.remove(&id);
            self.unresolved.insert(anew);
            let pending = self.pending.remove(&id);
            self.pending.extend(pending.map(|pending| (anew, pending)));
        }
        self.queue = self.unresolved.iter().copied().collect();
    }

    /// A commit's writes by page, if it is one of ours (rule 12: matched by its id only).
    pub(super) fn retained(&self, id: CommitId) -> Option<BTreeMap<PageId, Vec<Op>>> {
        let pending = self.pending.get(&id)?;
        let mut pages: BTreeMap<PageId, Vec<Op>> = BTreeMap::new();
        for write in &pending.writes {
            pages.entry(write.page).or_default().push(write.op.clone());
        }
        Some(pages)
    }

    /// Valid-through has passed them: nothing of them comes any more.
    pub(super) fn release(&mut self, through: Stamp) {
        let passed = |pending: &Pending| pending.stamp.is_some_and(|stamp| stamp <= through);
        let over = self.pending.iter().filter(|(_, pending)| passed(pending)).map(|(&id, _)| id);
        for id in over.collect::<Vec<_>>() {
            self.forget(id, None);
        }
    }

    /// It is over, and nothing of it is retained.
    pub(super) fn forget(&mut self, id: CommitId, refused: Option<&Abort>) {
        let Some(pending) = self.pending.remove(&id) else { return };
        Self::count_written(&mut self.written, &pending.writes, false);
        let vain = pending.writes.iter().map(|write| write.page);
        self.vain.extend(vain.filter(|page| self.named.remove(page)));
        if pending.ever_sent {
            self.left.extend(pending.changed(refused));
        }
    }

    /// The user waits no longer, and the commit goes on.
    pub(super) fn forget_user(&mut self, id: CommitId, user: RequestId) {
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.users.remove(&user);
        }
    }

    /// A user asks about a commit: its answer, if it is known now.
    pub(super) fn ask_about(&mut self, id: CommitId, user: RequestId) -> Option<Answer> {
        if let Some(pending) = self.pending.get_mut(&id) {
            if let Some(stamp) = pending.stamp {
                return Some(Ok(CacheReply::Outcome(Outcome::Committed(stamp))));
            }
            pending.users.insert(user);
            return None;
        }
        let ended = self.ended.iter().find(|(ended, _)| *ended == id);
        let lost = Ok(CacheReply::InDoubt { commit: id, lost: true });
        Some(ended.map_or(lost, |(_, answer)| answer.clone()))
    }

    /// It has ended. Gives the users who wait; those who may ask later are answered the same.
    pub(super) fn end(&mut self, id: CommitId, answer: &Answer) -> BTreeSet<RequestId> {
        let Some(pending) = self.pending.get_mut(&id) else {
            return BTreeSet::new();
        };
        // Of what is lost nothing needs to be remembered.
        if pending.told_in_doubt && !matches!(answer, Ok(CacheReply::InDoubt { .. })) {
            if self.ended.len() == ENDED_MAX {
                self.ended.pop_front();
            }
            self.ended.push_back((id, answer.clone()));
        }
        std::mem::take(&mut pending.users)
    }

    /// Nothing more is to be heard of it.
    pub(super) fn settle(&mut self, id: CommitId) {
        if !self.unresolved.remove(&id) {
            return;
        }
        let pending = &self.pending[&id];
        self.bytes -= pending.bytes;
        if pending.sent {
            self.sent -= pending.load();
        }
    }

    /// Whether it is asked about, and may not be done.
    pub(super) fn is_ask(&self, id: CommitId) -> bool {
        self.pending.get(&id).is_some_and(|pending| pending.asks)
    }

    /// It is asked about from now on, as something that may not be done (see `relay`).
    pub(super) fn ask(&mut self, id: CommitId, across: Option<Box<Across>>) {
        self.settle(id);
        self.paused.retain(|(_, paused)| *paused != id);
        // Of what it wrote the stream tells by pages from now on.
        self.forget(id, None);
        // Its boot is known no longer: the same of the outcome.
        self.expired |= id.boot != self.boot;
        let (history, base) = (HistoryId::default(), Stamp::ZERO);
        let (numbers, reads, writes) = (Vec::new(), Vec::new(), Vec::new());
        let asks =
            CommitRequest { id, confirmed: 0, history, base, numbers, reads, writes, across };
        let mut pending = Pending::new(asks, false);
        (pending.ever_sent, pending.in_doubt, pending.asks) = (true, true, true);
        self.put(id, pending);
    }

    /// It is to be sent.
    pub(super) fn put(&mut self, id: CommitId, pending: Pending) {
        self.unresolved.insert(id);
        self.bytes += pending.bytes;
        self.queue.push_back(id);
        Self::count_written(&mut self.written, &pending.writes, true);
        self.pending.insert(id, pending);
    }

    /// A part has an outcome, which is not confirmed before those of all others are there.
    pub(super) fn keep(&mut self, id: CommitId) {
        self.kept.insert(id);
    }

    /// All parts have an outcome.
    pub(super) fn keep_no_longer(&mut self, id: CommitId) {
        self.kept.remove(&id);
    }

    /// Whether the boot may commit over the link that stands.
    pub(super) fn is_registered(&self) -> bool {
        self.registered
    }

    /// Bytes of a part that is not sent.
    pub(super) fn unsent_bytes(&self, id: CommitId) -> usize {
        let pending = self.pending.get(&id).filter(|_| self.unresolved.contains(&id));
        pending.filter(|pending| !pending.sent).map_or(0, |pending| pending.bytes)
    }

    /// Whether it is done, or may be, or is over.
    pub(super) fn may_be_done(&self, id: CommitId) -> bool {
        let may = |pending: &Pending| pending.stamp.is_some() || pending.sent || pending.in_doubt;
        self.pending.get(&id).is_none_or(may)
    }

    /// Whether it is sent, or a copy of it may be under way.
    pub(super) fn is_on_its_way(&self, id: CommitId) -> bool {
        self.pending.get(&id).is_some_and(|pending| pending.sent || pending.in_doubt)
    }

    /// The transaction that a commit is a part of.
    pub(super) fn whole(&self, id: CommitId) -> Option<PartId> {
        self.pending.get(&id)?.across.as_ref().map(|across| across.coordinator())
    }

    /// It is not done, and never will be.
    pub(super) fn withdraw(&mut self, id: CommitId) {
        #[cfg(feature = "faults")]
        self.withdrawn.push(id);
        self.settle(id);
        self.forget(id, None);
        // Without a link nothing else takes it out.
        self.queue.retain(|queued| *queued != id);
    }

    /// Panics when an invariant is broken.
    pub(super) fn check(&self) {
        let bytes = |only_sent: bool| {
            let of = self.unresolved.iter().map(|id| &self.pending[id]);
            of.filter(|p| p.sent || !only_sent).map(|p| p.load()).sum::<Load>()
        };
        assert_eq!(self.bytes, bytes(false).bytes, "commits without an outcome are counted");
        assert_eq!(self.sent, bytes(true), "commits that are sent are counted");
        let writes: usize = self.pending.values().map(|pending| pending.writes.len()).sum();
        assert_eq!(self.written.values().sum::<usize>(), writes, "writes under way are counted");
    }

    /// Pages that commits under way write.
    pub(super) fn pages(&self) -> BTreeSet<PageId> {
        self.written.keys().copied().collect()
    }

    /// Whether a commit under way writes the page.
    pub(super) fn writes(&self, page: PageId) -> bool {
        self.written.contains_key(&page)
    }

    /// A commit is taken, or is over: its pages are written by one more, or by one less.
    fn count_written(written: &mut BTreeMap<PageId, usize>, writes: &[Write], more: bool) {
        for write in writes {
            if more {
                *written.entry(write.page).or_default() += 1;
            } else if let Some(count) = written.get_mut(&write.page) {
                *count -= 1;
                if *count == 0 {
                    written.remove(&write.page);
                }
            }
        }
    }

    /// Commits from now on are of this boot, which no domain knows.
    pub(super) fn begin_anew(&mut self, boot: BootId) {
        self.boot = boot;
        self.known = false;
        self.registered = false;
        self.asked_at = None;
        self.next = 1;
        self.told = Confirmed::default();
    }

    /// Every outcome up to this sequence has been received.
    pub(super) fn confirmed(&self) -> u64 {
        let first = CommitId { boot: self.boot, sequence: 0 };
        let of = |ids: &BTreeSet<CommitId>| {
            let own = ids.range(first..).next().filter(|id| id.boot == self.boot);
            own.map_or(self.next, |id| id.sequence)
        };
        of(&self.unresolved).min(of(&self.kept)) - 1
    }

    /// Outcomes that have been received, for the parent to be told: those up to the first that has not. When more than
    /// `open_after` commits were numbered since that one, all but those that have not: it may wait for another domain's
    /// outage, and the origin puts off what comes after too many that are not confirmed (decision 0040).
    pub(super) fn received(&self, open_after: u64) -> Confirmed {
        let through = self.confirmed();
        let last = self.next - 1;
        if last - through <= open_after {
            return Confirmed::new(through, []);
        }
        let first = CommitId { boot: self.boot, sequence: 0 };
        let of = |ids: &BTreeSet<CommitId>| -> BTreeSet<u64> {
            let own = ids.range(first..).take_while(|id| id.boot == self.boot);
            own.map(|id| id.sequence).collect()
        };
        let mut open = of(&self.unresolved);
        open.append(&mut of(&self.kept));
        let upto = open.iter().nth(OPEN_MAX).map_or(last, |beyond| beyond - 1);
        crate::probe::probe("outcomes-left-open");
        Confirmed::new(upto, open)
    }

    /// Its outcome is known. What was not committed leaves nothing behind. Gives the stamp of one that is retained no more,
    /// for want of room: a change of its pages after it may be told to nobody.
    pub(super) fn resolve(
        &mut self,
        id: CommitId,
        outcome: &Outcome,
        retained_max: usize,
    ) -> Option<Stamp> {
        self.settle(id);
        let Outcome::Committed(stamp) = outcome else {
            let refused = match outcome {
                Outcome::Aborted(abort) => Some(abort),
                Outcome::Committed(_) | Outcome::Unknown => None,
            };
            self.forget(id, refused);
            return None;
        };
        if let Some(pending) = self.pending.get_mut(&id) {
            (pending.stamp, pending.asks) = (Some(*stamp), false);
            pending.reads = Vec::new();
        }
        // Past the bound the oldest fall back to invalidation.
        if self.pending.len() - self.unresolved.len() > retained_max {
            let oldest = self.pending.iter().find_map(|(&id, p)| Some((id, p.stamp?)));
            let (id, stamp) = oldest?;
            self.forget(id, None);
            return Some(stamp);
        }
        None
    }

    /// See `crate::rest`.
    #[cfg(feature = "faults")]
    pub(super) fn under_way(&self) -> Option<String> {
        crate::rest::first(&[
            ("commits without an outcome", self.unresolved.len()),
            ("commits whose writes are retained", self.pending.len()),
            ("commits queued", self.queue.len()),
            ("commits put off", self.paused.len()),
            ("parts with an outcome that is kept", self.kept.len()),
            ("pages of commits that are over", self.left.len() + self.vain.len()),
            ("pages that were named while a commit was to make them", self.named.len()),
            ("commits of a forgotten boot", usize::from(self.expired)),
            ("outcomes not confirmed", usize::from(self.confirmed() > self.told.through())),
        ])
    }

    pub(super) fn request(&self, id: CommitId) -> CommitRequest {
        let pending = &self.pending[&id];
        CommitRequest {
            id,
            confirmed: if id.boot == self.boot { self.confirmed() } else { 0 },
            history: pending.history,
            base: pending.base,
            numbers: pending.numbers.clone(),
            reads: pending.reads.clone(),
            writes: pending.writes.clone(),
            across: pending.across.clone(),
        }
    }
}
