//! Commits: under one id until an outcome is known (rule 15), their writes retained until the
//! stream has passed them (rule 12).

use super::link::violation;
use super::{Cache, CacheReply, Out};
use crate::cache::transaction::CommitPart;
use crate::commit::{Abort, Across, CommitRequest, Numbered, Op, Outcome, PartId, Read, Write};
use crate::id::{BootId, CommitId, DomainId, HistoryId, PageId, RequestId, Stamp};
use crate::machine::Fault;
use crate::message::{ACROSS_SINCE, CloseReason, Message, NoBoot, RESTORES_SINCE, RequestError};
use crate::share::{CommitRoom, Load, Room};
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The pause before a commit that was put off is sent again; doubled each time.
const PAUSE: Duration = Duration::from_millis(10);
/// A store that cannot take the commit for this long refuses it: installing may make room before, a
/// page may be read the next time.
const STORE_PATIENCE: Duration = Duration::from_secs(2);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// A registration that is not answered is asked for again after this long: the parent may have
/// had no room for it, or its own parent was away.
const REGISTER_AGAIN: Duration = Duration::from_secs(2);
/// So many commits that were left in doubt, and have ended since, a domain remembers.
const ENDED_MAX: usize = 1 << 10;

/// What a user is answered.
type Answer = Result<CacheReply, RequestError>;

struct Pending {
    history: HistoryId,
    base: Stamp,
    numbers: Vec<Numbered>,
    reads: Vec<Read>,
    writes: Vec<Write>,
    /// It is a part of a transaction over several domains.
    across: Option<Box<Across>>,
    /// It is no request of its own on a link: another domain decides.
    beside: bool,
    /// What became of it is asked, of the part that decides; other parts do not go with it.
    asks: bool,
    /// The users who wait, until their time is up: the one who asked for it, and those who asked
    /// about it later.
    users: BTreeSet<RequestId>,
    /// A user was told that it is in doubt, and may ask again.
    told_in_doubt: bool,
    /// Of memory.
    bytes: usize,
    /// On the link that stands now.
    sent: bool,
    /// On any link: whether it was done can only be told by its outcome.
    ever_sent: bool,
    pause: Duration,
    /// A copy may be under way that nothing answers: it was sent on a link that ended, or put off
    /// by a parent that had passed it on.
    in_doubt: bool,
    /// A store that is full, or cannot read a page, put it off: since when, and why. Unless it is in doubt it is not
    /// done, and will not be if it is not sent again.
    unable: Option<(Instant, RequestError)>,
    /// Its stamp, once known; kept until valid-through has reached it.
    stamp: Option<Stamp>,
}

impl Pending {
    /// One that was not sent, and of which nobody waits to hear.
    fn new(asked: CommitRequest, beside: bool) -> Self {
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
            unable: None,
            stamp: None,
        }
    }

    /// What it is of what is on its way over a link.
    fn load(&self) -> Load {
        Load { count: usize::from(!self.beside), bytes: self.bytes }
    }

    /// The error of a commit that its store has refused; none: it may be done, or be under way.
    fn refused(&self) -> Option<RequestError> {
        let (_, error) = self.unable.as_ref().filter(|_| !self.sent && !self.in_doubt)?;
        Some(error.clone())
    }

    /// Pages that it changes and that are there: of those that it was to make this is known if it is
    /// committed, and of the one that a refusal says to be there. A notice of another one could be
    /// overtaken by the commit that makes it, and would end the registration that came with that.
    fn changed(&self, refused: Option<&Abort>) -> impl Iterator<Item = PageId> + '_ {
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
    boot: BootId,
    /// The domain had the boot on record, durably, once. It is never registered anew: after it
    /// had expired, a repeated commit could be done twice (decision 0004).
    known: bool,
    /// It may commit over the link that stands.
    registered: bool,
    /// When that was asked for last.
    asked_at: Option<Instant>,
    /// Some commits are of boots that the domain has forgotten.
    expired: bool,
    next: u64,
    pending: BTreeMap<CommitId, Pending>,
    unresolved: BTreeSet<CommitId>,
    /// Bytes of those without an outcome, and of those of them that are sent.
    bytes: usize,
    sent: Load,
    queue: VecDeque<CommitId>,
    /// Put off by the parent, and until when.
    paused: BTreeSet<(Instant, CommitId)>,
    /// How those ended that a user was told to be in doubt, in the order of their ends.
    ended: VecDeque<(CommitId, Answer)>,
    /// Parts that have an outcome, of transactions of which others have none.
    kept: BTreeSet<CommitId>,
    /// Confirmed to the parent on this link.
    told: u64,
    /// Pages that commits changed which are over: the parent counts the node for them, held or not.
    pub(super) left: Vec<PageId>,
    /// Pages that those under way write, and how many writes there are.
    written: BTreeMap<PageId, usize>,
    /// Pages that the parent named on this link, and that commits under way are to make.
    named: BTreeSet<PageId>,
    /// Of those, the ones whose commit has ended, and did not make them: the parent counts the node for them.
    pub(super) vain: Vec<PageId>,
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
            told: 0,
            left: Vec::new(),
            written: BTreeMap::new(),
            named: BTreeSet::new(),
            vain: Vec::new(),
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

    fn asked_long_ago(&self, now: Instant) -> bool {
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
        self.told = 0;
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
    fn forget(&mut self, id: CommitId, refused: Option<&Abort>) {
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
    fn end(&mut self, id: CommitId, answer: &Answer) -> BTreeSet<RequestId> {
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
    fn settle(&mut self, id: CommitId) {
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
    fn put(&mut self, id: CommitId, pending: Pending) {
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

    /// Whether it was ever sent, or is over.
    pub(super) fn was_sent(&self, id: CommitId) -> bool {
        self.pending.get(&id).is_none_or(|pending| pending.ever_sent)
    }

    /// Whether it is sent, or a copy of it may be under way.
    pub(super) fn is_on_its_way(&self, id: CommitId) -> bool {
        self.pending.get(&id).is_some_and(|pending| pending.sent || pending.in_doubt)
    }

    /// The transaction that a commit is a part of.
    fn whole(&self, id: CommitId) -> Option<PartId> {
        self.pending.get(&id)?.across.as_ref().map(|across| across.coordinator())
    }

    /// It is not done, and never will be.
    pub(super) fn withdraw(&mut self, id: CommitId) {
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
    fn begin_anew(&mut self, boot: BootId) {
        self.boot = boot;
        self.known = false;
        self.registered = false;
        self.next = 1;
        self.told = 0;
    }

    /// Every outcome up to this sequence has been received.
    fn confirmed(&self) -> u64 {
        let first = CommitId { boot: self.boot, sequence: 0 };
        let of = |ids: &BTreeSet<CommitId>| {
            let own = ids.range(first..).next().filter(|id| id.boot == self.boot);
            own.map_or(self.next, |id| id.sequence)
        };
        of(&self.unresolved).min(of(&self.kept)) - 1
    }

    /// Its outcome is known. What was not committed leaves nothing behind.
    fn resolve(&mut self, id: CommitId, outcome: &Outcome, retained_max: usize) {
        self.settle(id);
        let Outcome::Committed(stamp) = outcome else {
            let refused = match outcome {
                Outcome::Aborted(abort) => Some(abort),
                Outcome::Committed(_) | Outcome::Unknown => None,
            };
            self.forget(id, refused);
            return;
        };
        if let Some(pending) = self.pending.get_mut(&id) {
            (pending.stamp, pending.asks) = (Some(*stamp), false);
            pending.reads = Vec::new();
        }
        // Past the bound the oldest fall back to invalidation.
        if self.pending.len() - self.unresolved.len() > retained_max {
            let oldest = self.pending.iter().find(|(_, p)| p.stamp.is_some()).map(|(&id, _)| id);
            oldest.into_iter().for_each(|id| self.forget(id, None));
        }
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
            ("outcomes not confirmed", usize::from(self.confirmed() > self.told)),
        ])
    }

    fn request(&self, id: CommitId) -> CommitRequest {
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

/// A commit as its user asks for it.
pub(super) struct Asked {
    pub(super) history: HistoryId,
    pub(super) base: Stamp,
    pub(super) reads: Vec<Read>,
    pub(super) writes: Vec<Write>,
    /// Pages made with numbers that were read in it, ascending.
    pub(super) named: Vec<PageId>,
}

impl Asked {
    /// As its transaction ends.
    pub(super) fn of(part: CommitPart) -> Self {
        let CommitPart { history, checked, reads, writes, named, .. } = part;
        Self { history, base: checked, reads, writes, named }
    }
}

impl Cache {
    /// Takes a commit on, and gives its id; or what its user is answered at once.
    pub(super) fn take_commit(
        &mut self,
        domain: DomainId,
        user: RequestId,
        asked: Asked,
    ) -> Result<CommitId, Answer> {
        let request = self.request_of(domain, asked, 0)?;
        let id = request.id;
        self.put_commit(domain, Some(user), request);
        Ok(id)
    }

    /// What is to be sent for a commit, if there is room for it beside so many bytes more; or what its user is answered at once.
    pub(super) fn request_of(
        &self,
        domain: DomainId,
        asked: Asked,
        before: usize,
    ) -> Result<CommitRequest, Answer> {
        let max = self.config.commits_max;
        let entry = &self.domains[&domain];
        if entry.commits.unresolved.len() >= max {
            return Err(Err(RequestError::Busy(format!("{max} commits have no outcome yet"))));
        }
        let id = CommitId { boot: entry.commits.boot, sequence: entry.commits.next };
        // As long as it may become: a link that it is too long for would break, and the next one.
        let Asked { history, base, reads, writes, named } = asked;
        let numbers = self.numbers.of(&writes, &named);
        let asked = CommitRequest {
            id,
            confirmed: u64::MAX,
            history,
            base,
            numbers,
            reads,
            writes,
            across: None,
        };
        if let Err(abort) = crate::wire::check_commit(domain, &asked) {
            return Err(Ok(CacheReply::Outcome(Outcome::Aborted(abort))));
        }
        // Of several domains none takes all of it: its log may hang (bugs 133 and 136).
        let bytes = asked.memory_bytes();
        let loads = self.domains.values().map(|entry| entry.commits.bytes);
        let room = Room::new(loads.clone(), self.config.commit_bytes_max);
        if !room.takes(entry.commits.bytes, bytes + before) {
            let bytes: usize = loads.sum();
            let error = format!("commits of {bytes} bytes have no outcome yet");
            return Err(Err(RequestError::Busy(error)));
        }
        Ok(asked)
    }

    /// Takes a commit on, for which there is room. Without a user of its own it is a part of a transaction.
    pub(super) fn put_commit(
        &mut self,
        domain: DomainId,
        user: Option<RequestId>,
        asked: CommitRequest,
    ) {
        let (id, beside) = (asked.id, asked.is_beside(domain));
        let mut pending = Pending::new(asked, beside);
        pending.users.extend(user);
        let commits = &mut self.domains.get_mut(&domain).expect("attached").commits;
        commits.next += 1;
        commits.put(id, pending);
    }

    /// The user's time is up. A commit that was never sent, or that its store has refused, is
    /// withdrawn unless others wait for it; any other goes on, and is in doubt.
    pub(super) fn leave_commit(
        &mut self,
        domain: DomainId,
        id: CommitId,
        user: RequestId,
    ) -> Answer {
        let connected = self.link_of(domain).is_some_and(|link| link.is_welcomed());
        let commits = &mut self.domains.get_mut(&domain).expect("attached").commits;
        let in_doubt = Ok(CacheReply::InDoubt { commit: id, lost: false });
        let Some(pending) = commits.pending.get_mut(&id) else {
            return in_doubt;
        };
        pending.users.remove(&user);
        let refused = pending.refused();
        if !pending.users.is_empty() || (pending.ever_sent && refused.is_none()) {
            crate::probe::probe("commit-in-doubt");
            pending.told_in_doubt = true;
            return in_doubt;
        }
        let why = if commits.registered || !connected {
            "the commit was not sent, and is not done"
        } else {
            "the origin has not registered this node for commits (a full disk or a limit there puts \
             it off): the commit was not sent, and is not done"
        };
        let answer = Err(refused.unwrap_or_else(|| RequestError::Unavailable(why.into())));
        crate::probe::probe("commit-withdrawn");
        commits.end(id, &answer);
        commits.withdraw(id);
        answer
    }

    /// Asks that the boot may commit over this link.
    pub(super) fn register(&mut self, now: Instant, domain: DomainId, out: &mut Out) {
        let (name, life) = (self.config.name.clone(), self.config.boot);
        let commits = &mut self.domains.get_mut(&domain).expect("attached").commits;
        commits.asked_at = Some(now);
        let (boot, fresh) = (commits.boot, !commits.known);
        self.send(domain, Message::Register { domain, boot, name, life, fresh }, out);
    }

    /// Sends the first commit that waits and for which there is room; says whether one was sent. All that are without
    /// an outcome are sent anew on each link: what the link has to keep is bounded in bytes too, or it would
    /// be closed for that, and the next one, for ever (bug 124).
    pub(super) fn send_commit(&mut self, domain: DomainId, out: &mut Out) -> bool {
        let entry = &self.domains[&domain];
        let link = self.link_of(domain).filter(|link| link.room() > 0);
        let Some(link) = link.filter(|_| entry.live() && entry.commits.registered) else {
            return false;
        };
        let (up, version) = (link.id, link.version);
        let requests_max = link.limits.map_or(0, |limits| limits.requests_max as usize);
        let goes = self.wholes_that_go(domain);
        let decided = goes.keys().map(|(domain, id)| PartId { domain: *domain, id: *id });
        let whole_bytes: BTreeMap<CommitId, usize> = decided
            .filter(|name| !self.domains[&domain].commits.is_ask(name.id))
            .map(|name| (name.id, self.unsent_bytes(name)))
            .filter(|(_, n)| *n > 0)
            .collect();
        let on_it = self.domains.values().filter(|entry| entry.up == Some(up));
        let loads = on_it.map(|entry| entry.commits.sent);
        let room = CommitRoom::new(loads, requests_max, self.config.sent_bytes_max);
        let commits = &mut self.domains.get_mut(&domain).expect("looked at above").commits;
        let mut place = 0;
        while let Some(&id) = commits.queue.get(place) {
            let due = commits.pending.get_mut(&id).filter(|pending| {
                // It waits for a link to a newer parent, or for the end of its user's time.
                let restores =
                    || pending.writes.iter().any(|w| matches!(w.op, Op::RestorePage { .. }));
                !pending.sent
                    && commits.unresolved.contains(&id)
                    && (version >= RESTORES_SINCE || !restores())
                    && (version >= ACROSS_SINCE || pending.across.is_none())
            });
            let Some(pending) = due else {
                commits.queue.remove(place);
                continue;
            };
            if let Some(goes) = goes.get(&(domain, id)) {
                // Others may pass it: it goes with its whole transaction.
                if !*goes {
                    place += 1;
                    continue;
                }
            }
            // The parts of a transaction go together.
            let bytes = whole_bytes.get(&id).copied().unwrap_or(pending.bytes);
            if !room.takes(commits.sent, bytes) {
                crate::probe::probe("commits-sent-full");
                if !room.takes(commits.sent, 1) {
                    return false;
                }
                // One that is too long now lets those pass that fit: it may be one that nobody waits for
                // any more, sent on the link before.
                place += 1;
                continue;
            }
            commits.queue.remove(place);
            pending.sent = true;
            pending.ever_sent = true;
            let (beside, asks) = (pending.beside, pending.asks);
            commits.sent += pending.load();
            let commit = commits.request(id);
            commits.told = commits.told.max(commit.confirmed);
            let count = usize::from(!beside);
            self.standing(domain).outstanding += count;
            let across = commit.across.as_deref().filter(|_| !asks).map(Across::coordinator);
            self.send(domain, Message::Commit { domain, commit }, out);
            if let Some(name) = across {
                self.send_others(name, out);
            }
            return true;
        }
        false
    }

    /// Sends a part of a transaction whose deciding part is on its way, whatever room there is: else the one
    /// would wait at its origin for the other, and take the room that this one needs.
    pub(super) fn send_part(&mut self, domain: DomainId, id: CommitId, out: &mut Out) {
        let version = self.link_of(domain).map_or(0, |link| link.version);
        let entry = self.domains.get_mut(&domain).expect("it is attached");
        let live = entry.live() && entry.commits.registered && version >= ACROSS_SINCE;
        let commits = &mut entry.commits;
        let paused = commits.paused.iter().any(|(_, paused)| *paused == id);
        let unresolved = commits.unresolved.contains(&id);
        let due = commits.pending.get_mut(&id).filter(|pending| !pending.sent && unresolved);
        let Some(pending) = due.filter(|_| live && !paused) else {
            return;
        };
        (pending.sent, pending.ever_sent) = (true, true);
        commits.sent += pending.load();
        let commit = commits.request(id);
        commits.told = commits.told.max(commit.confirmed);
        self.send(domain, Message::Commit { domain, commit }, out);
    }

    /// Whether a commit is on its way over the link that stands; none: it has an outcome, or is asked about.
    pub(super) fn is_sent(&self, of: PartId) -> Option<bool> {
        let commits = &self.domains.get(&of.domain)?.commits;
        let unresolved = commits.unresolved.contains(&of.id);
        let pending = commits.pending.get(&of.id).filter(|pending| unresolved && !pending.asks);
        pending.map(|pending| pending.sent)
    }

    pub(super) fn on_registered(
        &mut self,
        domain: DomainId,
        boot: BootId,
    ) -> Result<(), CloseReason> {
        let Some(entry) = self.domains.get_mut(&domain) else {
            return violation("a registration in a domain that was not asked for");
        };
        if entry.commits.boot == boot {
            entry.commits.known = true;
            entry.commits.registered = true;
            // What was confirmed before went nowhere, perhaps: a relay had no link, or the origin had
            // forgotten the boot.
            entry.commits.told = 0;
        }
        Ok(())
    }

    pub(super) fn on_unregistered(
        &mut self,
        now: Instant,
        (domain, boot): (DomainId, BootId),
        why: NoBoot,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        if !self.domains.contains_key(&domain) {
            return violation("a registration in a domain that was not asked for");
        }
        if why == NoBoot::Taken {
            return Err(CloseReason::Identity(self.config.name.clone()));
        }
        self.renew_boot(now, domain, boot, out);
        Ok(())
    }

    pub(super) fn on_committed(
        &mut self,
        domain: DomainId,
        id: CommitId,
        (outcome, history): (Outcome, HistoryId),
        now: Instant,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let max = self.config.commits_max;
        let Some(commits) = self.domains.get_mut(&domain).map(|entry| &mut entry.commits) else {
            return violation("an outcome in a domain that was not asked for");
        };
        if !commits.pending.get(&id).is_some_and(|pending| pending.sent) {
            return violation("an outcome of no commit");
        }
        if !commits.unresolved.contains(&id) {
            return violation("a second outcome of a commit");
        }
        let expired = outcome == Outcome::Unknown;
        let answer = Ok(if expired {
            CacheReply::InDoubt { commit: id, lost: true }
        } else {
            CacheReply::Outcome(outcome.clone())
        });
        let users = commits.end(id, &answer);
        let whole = commits.whole(id);
        let beside = commits.pending.get(&id).is_some_and(|pending| pending.beside);
        commits.resolve(id, &outcome, max);
        let entry = self.domains.get_mut(&domain).expect("looked up above");
        if let Outcome::Committed(stamp) = outcome
            && entry.position.is_none_or(|position| stamp > position)
            && !self.config.faults.has(Fault::ForgetTold)
        {
            entry.told.note(history, stamp);
        }
        if let Some(through) = self.domains[&domain].state.through() {
            let commits = &mut self.domains.get_mut(&domain).expect("looked up above").commits;
            commits.release(through);
        }
        let count = usize::from(!beside);
        self.standing(domain).outstanding -= count;
        self.reply_all(users, &answer, out);
        if let Some(whole) = whole {
            self.part_ended(whole, domain, &answer, out);
        }
        // Of a part that another domain decides it may be that one which has forgotten the process. If it is this
        // one, the next commit here hears of it (bug 186).
        if expired && !beside {
            self.renew_boot(now, domain, id.boot, out);
        }
        Ok(())
    }

    /// The domain has forgotten this boot: commits go on under a new one.
    fn renew_boot(&mut self, now: Instant, domain: DomainId, expired: BootId, out: &mut Out) {
        let boot = BootId(self.rng.next_u128());
        let commits = &mut self.domains.get_mut(&domain).expect("attached").commits;
        if commits.boot != expired {
            return;
        }
        commits.begin_anew(boot);
        crate::probe::probe("boot-renewed");
        commits.expired = true;
        self.register(now, domain, out);
    }

    /// The node ends: of every domain that owes it no outcome, the parent is told that its boot has ended
    /// (decision 0004).
    pub(super) fn end_boots(&mut self, out: &mut Out) {
        let domains: Vec<DomainId> = self.domains.keys().copied().collect();
        for domain in domains {
            let anew = BootId(self.rng.next_u128());
            let entry = self.domains.get_mut(&domain).expect("just seen");
            let (live, commits) = (entry.live(), &mut entry.commits);
            if !live || !commits.registered || commits.confirmed() + 1 < commits.next {
                continue;
            }
            let boot = commits.boot;
            commits.begin_anew(anew);
            crate::probe::probe("boot-ended");
            self.send(domain, Message::Confirm { domain, boot, upto: u64::MAX }, out);
        }
    }

    /// Commits of a boot that the domain has forgotten have no outcome any more, but those that
    /// were never sent are not done. Those under way on this link are answered yet.
    pub(super) fn end_expired(&mut self, domain: DomainId, out: &mut Out) {
        let max = self.config.commits_max;
        let commits = &mut self.domains.get_mut(&domain).expect("attached").commits;
        if !commits.expired {
            return;
        }
        let boot = commits.boot;
        let old: Vec<CommitId> =
            commits.unresolved.iter().copied().filter(|id| id.boot != boot).collect();
        let mut ended = Vec::new();
        for id in &old {
            let Some(pending) = commits.pending.get(id).filter(|pending| !pending.sent) else {
                continue;
            };
            let unsent = "the commit was not sent, and is not done";
            let answer = if pending.ever_sent {
                Ok(CacheReply::InDoubt { commit: *id, lost: true })
            } else {
                Err(RequestError::Unavailable(unsent.into()))
            };
            ended.push((commits.end(*id, &answer), commits.whole(*id), answer));
            commits.resolve(*id, &Outcome::Unknown, max);
        }
        commits.expired = ended.len() < old.len();
        for (users, whole, answer) in ended {
            self.reply_all(users, &answer, out);
            if let Some(whole) = whole {
                self.part_ended(whole, domain, &answer, out);
            }
        }
    }

    fn reply_all(&mut self, users: BTreeSet<RequestId>, answer: &Answer, out: &mut Out) {
        for user in users {
            self.reply(user, answer.clone(), out);
        }
    }

    pub(super) fn on_deferred(
        &mut self,
        now: Instant,
        (domain, id): (DomainId, CommitId),
        error: RequestError,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let Some(entry) = self.domains.get_mut(&domain) else {
            return violation("a commit put off in a domain that was not asked for");
        };
        let link = entry.up.and_then(|up| self.links.get_mut(&up)).expect("it came on this link");
        let commits = &mut entry.commits;
        let unresolved = commits.unresolved.contains(&id);
        let pending = commits.pending.get_mut(&id).filter(|pending| pending.sent && unresolved);
        let Some(pending) = pending else {
            return violation("no commit to be put off");
        };
        pending.sent = false;
        commits.sent -= pending.load();
        if !self.config.faults.has(Fault::PutOffCounted) && !pending.beside {
            link.outstanding -= 1;
        }
        // It may be that its boot is not registered there any more (bug 196).
        let registers = matches!(error, RequestError::Unavailable(_));
        match error {
            RequestError::Full(_) | RequestError::Damaged { .. } | RequestError::Invalid(_) => {
                let since = pending.unable.take().map_or(now, |(since, _)| since);
                pending.unable = Some((since, error));
            }
            _ => {
                pending.unable = None;
                pending.in_doubt = true;
            }
        }
        let lasting =
            pending.unable.as_ref().is_some_and(|(at, _)| now.since(*at) >= STORE_PATIENCE);
        let whole = pending.across.as_ref().map(|across| across.coordinator());
        // Of a transaction of which another part has ended so nothing is asked any more.
        let known = whole.and_then(|whole| self.wholes.known(whole));
        if let Some(whole) = whole
            && let Some(known @ Ok(_)) = &known
        {
            commits.resolve(id, &Outcome::Unknown, self.config.commits_max);
            self.part_ended(whole, domain, known, out);
            return Ok(());
        }
        let ended = known.and_then(Result::err);
        // Whether somebody still waits or not: it is not done, and would be sent for good.
        let never = pending.unable.as_ref().and_then(|(_, error)| cannot_be_done(error));
        if let Some(refused) = pending.refused().filter(|_| lasting).or(never).or(ended) {
            crate::probe::probe("commit-refused-by-a-full-store");
            let answer = Err(refused.clone());
            let in_doubt = pending.in_doubt;
            let users = commits.end(id, &answer);
            commits.withdraw(id);
            self.reply_all(users, &answer, out);
            if let Some(whole) = whole {
                match in_doubt {
                    true => self.part_ended(whole, domain, &answer, out),
                    false => self.part_withdrawn(whole, (domain, id), &refused, out),
                }
                self.withdraw_others(whole, &refused, out);
            }
            return Ok(());
        }
        commits.paused.insert((now.after(pending.pause), id));
        pending.pause = (pending.pause * 2).min(PAUSE_MAX);
        let asks = whole.filter(|_| pending.unable.is_none());
        if registers && commits.asked_long_ago(now) {
            crate::probe::probe("boot-registered-anew");
            self.register(now, domain, out);
        }
        if let Some(whole) = asks {
            self.ask_who_decides(whole, domain);
        }
        Ok(())
    }

    /// Commits whose pause is over.
    pub(super) fn resume_commits(&mut self, now: Instant) {
        for entry in self.domains.values_mut() {
            while let Some(&(at, id)) = entry.commits.paused.first()
                && at <= now
            {
                entry.commits.paused.pop_first();
                if !self.config.faults.has(Fault::PutOffUnsent) {
                    entry.commits.queue.push_back(id);
                }
            }
        }
    }

    /// Regular work: outcomes received are confirmed, so that the origin may forget them.
    pub(super) fn confirm(&mut self, domain: DomainId, out: &mut Out) {
        let entry = self.domains.get_mut(&domain).expect("attached");
        let live = entry.live();
        let (upto, commits) = (entry.commits.confirmed(), &mut entry.commits);
        let boot = commits.boot;
        if live && upto > commits.told {
            commits.told = upto;
            self.send(domain, Message::Confirm { domain, boot, upto }, out);
        }
    }
}

/// What is said of a commit that its origin takes in no case, and did not before: it is not tried again.
fn cannot_be_done(error: &RequestError) -> Option<RequestError> {
    matches!(error, RequestError::Invalid(_)).then(|| error.clone())
}
