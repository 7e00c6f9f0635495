//! Parts of transactions over several domains: how a domain takes them on, decides or follows, and what it
//! says to the others (decision 0035; rules 14, 15 and 19).
//!
//! The way of a part: `take_part` (it is here: both sides tell each other) → all parts have arrived, an attempt
//! begins (`decide`) → its turn in each domain, ascending (`follow`: executed, taken back, logged as prepared) →
//! the deciding part is committed with its record → every other part is committed as it was prepared. Whatever
//! ends an attempt before the decision leaves the parts where they were: here, and to be tried again.
//!
//! Pages, rights and waiting are those of any commit: a part whose turn it is goes through `prepare` and
//! `execute_ready` like one, and comes out in `execute_part`.

mod decide;
mod follow;

use super::commit::{Waiting, leaving};
use super::volumes::{Growth, recovered};
use super::{Context, Domain, Event};
use crate::across::{Between, Coordinator, Ended, Next, Participant, Prepared, Turn};
use crate::commit::{Abort, Across, COMMIT_BYTES_MAX, CommitRequest, PageChange, PartId};
use crate::id::{Attempt, BootId, CommitId, DomainId, HistoryId, Stamp};
use crate::machine::{Fault, Faults};
use crate::message::RequestError;
use crate::origin::OriginConfig;
use crate::record::{Decided, Lsn};
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// So many parts are taken on, however few commits may wait.
const PARKED_MIN: usize = 256;
/// What was not answered is said again after this long.
const REPEAT: Duration = Duration::from_secs(1);

/// A part that is here and has no outcome.
#[derive(Debug)]
struct Parked {
    across: Across,
    since: Instant,
    /// When its attempt came on last: it is being served.
    moved: Instant,
    /// None: its turn has come, and it waits for pages or for room like any commit.
    waiting: Option<Waiting>,
    /// Of the deciding part: the domains whose parts have arrived.
    arrived: BTreeSet<DomainId>,
    /// The attempt that it is in.
    attempt: Option<Attempt>,
    /// Memory it takes, about.
    bytes: usize,
}

impl Parked {
    /// When it has waited for too long. One whose turn comes when it has waited nearly as long as it may would else
    /// be put off while it is served, and so would the next: nothing would be done while more come than are served.
    fn ends(&self, wait_max: Duration) -> Instant {
        let (queued, most) = (self.since.after(wait_max), self.since.after(wait_max * 3));
        match self.attempt {
            Some(_) => queued.max(self.moved.after(wait_max)).min(most),
            None => queued,
        }
    }
}

/// A refusal that is not told yet, since it would reveal what is not durable (rule 14).
#[derive(Debug)]
struct LateVote {
    reveals: Lsn,
    to: DomainId,
    attempt: Attempt,
    abort: Abort,
}

/// What a domain has to do with transactions over several.
#[derive(Debug)]
pub(super) struct Parts {
    coordinator: Coordinator,
    participant: Participant,
    parked: BTreeMap<CommitId, Parked>,
    parked_bytes: usize,
    /// Commits that what is prepared bars, in order.
    barred: VecDeque<Waiting>,
    late_votes: Vec<LateVote>,
    /// Transactions decided here whose refusal is on its way to the log.
    refusing: BTreeMap<CommitId, Across>,
    /// Where the log has what is prepared: it is not trimmed past it.
    held: Option<(Lsn, Stamp)>,
    /// When what was not answered is said again.
    repeat_at: Option<Instant>,
    /// Somebody's turn has come, who was not told.
    turn_came: bool,
    /// Since when what is ready here is in doubt.
    doubt: Option<(Attempt, Instant)>,
}

/// What the log says of a part that is prepared, with its place there.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    pub(super) prepared: Option<(Prepared, (Lsn, Stamp))>,
    pub(super) decided: Vec<Decided>,
}

impl Parts {
    /// As the log and the metadata have them.
    pub(super) fn recovered(domain: DomainId, history: HistoryId, replayed: Replayed) -> Self {
        let (prepared, held) = replayed.prepared.unzip();
        Self {
            coordinator: Coordinator::new(domain, history, replayed.decided),
            participant: Participant::recovered(prepared),
            parked: BTreeMap::new(),
            parked_bytes: 0,
            barred: VecDeque::new(),
            late_votes: Vec::new(),
            refusing: BTreeMap::new(),
            held,
            repeat_at: None,
            turn_came: false,
            doubt: None,
        }
    }

    /// By how much what is prepared will grow volumes.
    pub(super) fn growth(&self) -> Vec<Growth> {
        let prepared = self.participant.prepared();
        prepared.map_or_else(Vec::new, |prepared| recovered(&prepared.writes, &prepared.grown))
    }

    /// Whether what is prepared has read or will write anything of these pages' volume.
    pub(super) fn holds(&self, volume: crate::id::VolumeId) -> Option<DomainId> {
        let prepared = self.participant.prepared()?;
        let reads = prepared.reads.iter().map(|read| read.page.volume);
        let mut volumes = reads.chain(prepared.writes.iter().map(|write| write.page.volume));
        volumes.any(|of| of == volume).then_some(prepared.coordinator.domain)
    }

    /// Whether a commit of this domain alone has to wait for what is prepared.
    pub(super) fn bars(&self, commit: &CommitRequest, faults: Faults) -> bool {
        let spared = faults.has(Fault::WritesUnbarred);
        let spared = spared.then(|| CommitRequest { writes: Vec::new(), ..commit.clone() });
        let looked_at = spared.as_ref().unwrap_or(commit);
        let barred = commit.across.is_none() && self.participant.bars(looked_at);
        barred && !faults.has(Fault::NothingBarred)
    }

    /// It waits aside until what is prepared has ended.
    pub(super) fn bar(&mut self, waiting: Waiting) {
        crate::probe::probe("commit-waits-for-what-is-prepared");
        self.barred.push_back(waiting);
    }

    /// Whether a part is prepared here.
    pub(super) fn has_prepared(&self, id: CommitId) -> bool {
        self.participant.has_prepared(id)
    }

    /// Whose part is.
    pub(super) fn boot_of_prepared(&self) -> Option<BootId> {
        self.participant.prepared().map(|prepared| prepared.id.boot)
    }

    /// Whether this part follows a decision: nothing can refuse it any more.
    pub(super) fn follows(&self, id: CommitId) -> bool {
        self.participant.follows(id)
    }

    /// The first place in the log that it must keep.
    pub(super) fn held(&self) -> Option<(Lsn, Stamp)> {
        self.held
    }

    /// Decisions that others have to follow, for the metadata.
    pub(super) fn decided(&self) -> Vec<Decided> {
        self.coordinator.meta()
    }

    /// Whether no more parts of a process are taken on, of so many bytes: there is room for more of them than for
    /// other commits, since they wait for each other.
    /// No process has more than a quarter of it, or one.
    pub(super) fn is_full(&self, config: &OriginConfig, of: BootId, bytes: usize) -> bool {
        let most = config.waiting_commits_max.max(PARKED_MIN);
        let bytes_max = config.waiting_bytes_max.max(COMMIT_BYTES_MAX).saturating_mul(2);
        let (mut own, mut own_bytes) = (0, 0);
        let first = CommitId { boot: of, sequence: 0 };
        for (_, parked) in self.parked.range(first..).take_while(|(id, _)| id.boot == of) {
            own += 1;
            own_bytes += parked.bytes;
        }
        let share = own > 0 && (own >= most / 4 || own_bytes + bytes > bytes_max / 4);
        share || self.parked.len() >= most || self.parked_bytes() + bytes > bytes_max
    }

    /// Bytes of parts that are here, at work or not.
    pub(super) fn parked_bytes(&self) -> usize {
        self.parked_bytes
    }

    /// Commits that are barred.
    pub(super) fn barred(&self) -> usize {
        self.barred.len()
    }

    /// Commits that wait here.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        let parked = self.parked.values().filter_map(|parked| parked.waiting.as_ref());
        parked.chain(&self.barred)
    }

    /// What is under way, in words and numbers; see `crate::rest`.
    #[cfg(feature = "faults")]
    pub(super) fn under_way(&self) -> [(&'static str, usize); 5] {
        [
            ("parts of transactions", self.parked.len() + self.refusing.len()),
            ("commits that wait for what is prepared", self.barred.len()),
            ("votes that wait for the log", self.late_votes.len()),
            ("transactions that are decided here", usize::from(!self.coordinator.is_idle())),
            ("turns of transactions", usize::from(self.participant.turn().is_some())),
        ]
    }

    fn check(&self, config: &OriginConfig) {
        assert!(
            self.parked.len() <= config.waiting_commits_max.max(PARKED_MIN),
            "too many parts are here"
        );
        let bytes: usize = self.parked.values().map(|parked| parked.bytes).sum();
        assert_eq!(bytes, self.parked_bytes, "bytes of parts are miscounted");
        assert!(!self.turn_came, "whose turn has come does not go on");
        self.coordinator.check();
        self.participant.check();
        let prepared = self.participant.prepared();
        assert!(self.barred.is_empty() || prepared.is_some(), "a commit is barred by nothing");
        assert!(self.held.is_none() || prepared.is_some(), "the log is kept for nothing");
    }
}

impl Domain {
    /// Of what a part is: none of a commit of one domain. Errors: it is not one that this domain can take.
    pub(super) fn check_across(&self, request: &CommitRequest) -> Result<(), RequestError> {
        let Some(across) = &request.across else {
            return Ok(());
        };
        let own = PartId { domain: self.id, id: request.id };
        let error = if !across.parts().contains(&own) {
            "a commit is none of the parts that it names"
        } else if across.coordinator() == own && request.writes.is_empty() && !asks(request) {
            "the part that decides writes nothing"
        } else {
            return Ok(());
        };
        Err(RequestError::Invalid(error.into()))
    }

    /// Whether a commit has the id of a part that is prepared, and is not that part.
    pub(super) fn is_anothers_part(&self, request: &CommitRequest) -> bool {
        let prepared = self.parts.participant.prepared().filter(|part| part.id == request.id);
        let of = request.across.as_ref().map(|across| across.coordinator());
        prepared.is_some_and(|prepared| Some(prepared.coordinator) != of)
    }

    /// Takes on a part, of which nothing is known here.
    pub(super) fn take_part(&mut self, cx: &mut Context<'_>, waiting: Waiting) {
        let id = waiting.request.id;
        let across = *waiting.request.across.clone().expect("it is a part");
        let coordinator = across.coordinator();
        if coordinator.domain == self.id {
            for part in across.participants() {
                let (coordinator, part_id) = (id, part.id);
                self.say(cx, part.domain, Between::Await { coordinator, part: part_id });
            }
        } else if !self.parts.participant.has_prepared(id) {
            self.say(cx, coordinator.domain, self.has_arrived(coordinator.id, id));
        }
        let (since, arrived) = (cx.now, BTreeSet::new());
        let bytes = waiting.bytes;
        self.parts.parked_bytes += bytes;
        let waiting = Some(waiting);
        let moved = since;
        let parked = Parked { across, since, moved, waiting, arrived, attempt: None, bytes };
        let before = self.parts.parked.insert(id, parked);
        assert!(before.is_none(), "a part is taken on once");
    }

    /// Another domain says something.
    pub(in crate::origin) fn between(
        &mut self,
        cx: &mut Context<'_>,
        from: DomainId,
        between: Between,
    ) {
        if self.is_failed() || !self.is_for_it_to_say(from, &between) {
            return;
        }
        match between {
            Between::Await { coordinator, part } => self.awaited(cx, from, coordinator, part),
            Between::Arrived { coordinator, part, name } => {
                self.arrived(cx, from, (coordinator, part), &name);
            }
            Between::Ended { coordinator, part, ended } => {
                self.part_ended(cx, PartId { domain: from, id: coordinator }, part, ended);
            }
            Between::Prepare { attempt, coordinator, part } => {
                self.asked_to_prepare(cx, attempt, coordinator, part);
            }
            Between::Vote { attempt, vote } => self.voted(cx, from, attempt, vote),
            Between::Decide { attempt } => self.follow(cx, from, attempt),
            Between::Release { attempt } => self.release(from, attempt),
            Between::Ask { attempt } => {
                if let Some(answer) = self.parts.coordinator.asked(attempt, from) {
                    self.say(cx, from, answer);
                }
            }
            Between::Followed { attempt } => self.parts.coordinator.has_followed(attempt, from),
        }
    }

    /// Whether a domain says this of an attempt of its own. One of another origin may lie, and is heard about nobody else's.
    fn is_for_it_to_say(&self, from: DomainId, between: &Between) -> bool {
        let prepared = |attempt: &Attempt| {
            let prepared = self.parts.participant.prepared().filter(|it| it.attempt == *attempt);
            prepared.is_none_or(|prepared| prepared.coordinator.domain == from)
        };
        match between {
            Between::Prepare { attempt, coordinator, .. } => {
                coordinator.domain == from && from != self.id && prepared(attempt)
            }
            Between::Decide { attempt } | Between::Release { attempt } => prepared(attempt),
            _ => true,
        }
    }

    fn say(&self, cx: &mut Context<'_>, to: DomainId, between: Between) {
        cx.events.push(Event::Between { from: self.id, to, between });
    }

    /// Somebody wants no turn any more, or has had it. Whose it is now goes on at the end of the step: one
    /// that is refused at once gives it to the next, and they may be thousands.
    fn leave_turn(&mut self, turn: Turn) {
        if self.faults.has(Fault::TurnStays) && self.parts.participant.turn() != Some(turn) {
            return;
        }
        let next = self.parts.participant.leave(turn);
        self.parts.turn_came |= next.is_some();
    }

    /// Whether somebody's turn has come, who was not told.
    pub(super) fn turn_has_come(&self) -> bool {
        self.parts.turn_came
    }

    /// Whose turn has come goes on.
    pub(super) fn take_turns(&mut self, cx: &mut Context<'_>) {
        while std::mem::take(&mut self.parts.turn_came) {
            match self.parts.participant.turn() {
                Some(Turn::Own(attempt)) => self.own_turn(cx, attempt),
                Some(Turn::Part(_, id)) => self.part_turn(cx, id),
                None => {}
            }
        }
    }

    /// A part whose pages are in memory, and whose reads held at `base`.
    pub(super) fn execute_part(&mut self, cx: &mut Context<'_>, waiting: Waiting, base: Stamp) {
        let id = waiting.request.id;
        if self.parts.follows(id) {
            return self.execute_following(cx, waiting.request);
        }
        let Some(parked) = self.parts.parked.get(&id) else {
            return;
        };
        let decides = parked.across.coordinator().domain == self.id;
        match (parked.attempt, self.parts.participant.turn()) {
            (Some(attempt), turn)
                if decides
                    && (turn == Some(Turn::Own(attempt))
                        || cx.config.faults.has(Fault::OwnTurnSkipped)) =>
            {
                self.execute_deciding(cx, waiting.request, base, attempt);
            }
            (Some(attempt), Some(turn)) if turn == Turn::Part(attempt, id) => {
                self.execute_preparing(cx, waiting, base, attempt);
            }
            // The attempt was given up meanwhile.
            _ => self.park_again(cx, waiting),
        }
    }

    /// A part waits again for what becomes of it; its pages are kept in memory no longer.
    fn park_again(&mut self, cx: &mut Context<'_>, waiting: Waiting) {
        let id = waiting.request.id;
        let Some(parked) = self.parts.parked.get_mut(&id) else {
            return;
        };
        self.waiting_bytes += waiting.bytes;
        let (pinned, pinned_bytes, look) = (Vec::new(), 0, None);
        parked.waiting = Some(Waiting { pinned, pinned_bytes, missing: 0, look, ..waiting });
        if let Some(attempt) = parked.attempt
            && self.parts.participant.turn() == Some(Turn::Part(attempt, id))
            && self.parts.participant.prepared().is_none()
        {
            self.part_turn(cx, id);
        }
    }

    /// A part is here no longer.
    fn drop_part(&mut self, id: CommitId) -> Option<Parked> {
        let mut parked = self.parts.parked.remove(&id)?;
        self.parts.parked_bytes -= parked.bytes;
        if let Some(waiting) = parked.waiting.take() {
            self.leave(&waiting);
        }
        Some(parked)
    }

    /// A part that has left the queues cannot be taken on: what it needs could not be had.
    pub(super) fn give_up_part(
        &mut self,
        cx: &mut Context<'_>,
        waiting: Waiting,
        error: &RequestError,
    ) {
        let id = waiting.request.id;
        if self.parts.follows(id) {
            // Asked again before long: it is decided.
            crate::probe::probe("decision-waits-for-pages");
            self.parts.participant.is_put_off();
            return;
        }
        let abort = match error {
            RequestError::Damaged { page, .. } => Some(Abort::Lost(*page)),
            RequestError::Deleted(_) => self.check_volumes(&waiting.request).err(),
            _ => None,
        };
        match abort {
            Some(abort) => self.refuse_part(cx, waiting, abort),
            None if waiting.request.is_beside(self.id) => {
                self.put_off_vote(cx, id, error.clone());
                self.park_again(cx, waiting);
            }
            None => {
                if let Some(across) = self.end_deciding(cx, id) {
                    self.put_off_transaction(cx, &across, error);
                }
            }
        }
    }

    /// A part that has left the queues is refused, for what may be gathered and not durable yet.
    pub(super) fn refuse_part(&mut self, cx: &mut Context<'_>, waiting: Waiting, abort: Abort) {
        let id = waiting.request.id;
        if waiting.request.is_beside(self.id) {
            self.vote_against(cx, id, abort);
            self.park_again(cx, waiting);
        } else if let Some(across) = self.end_deciding(cx, id) {
            self.refuse_transaction(cx, across, abort);
        }
    }

    /// The process of a part that has left the queues is not known any more: nor what became of it.
    pub(super) fn forget_part(&mut self, cx: &mut Context<'_>, waiting: &Waiting) {
        let id = waiting.request.id;
        if waiting.request.is_beside(self.id) {
            self.put_off_vote(cx, id, RequestError::Busy("its process was forgotten".into()));
            self.drop_part(id);
        } else if let Some(across) = self.end_deciding(cx, id) {
            match self.boots.is_leaving(id.boot) {
                true => self.tell_ended(cx, &across, &Ended::Later(leaving())),
                false => self.tell_ended(cx, &across, &Ended::Unknown),
            }
        }
        match self.boots.is_leaving(id.boot) {
            true => self.defer(cx, id, &leaving()),
            false => self.answer(cx, id, &crate::commit::Outcome::Unknown),
        }
    }

    /// The deciding part has left the queues, and will not be committed at this attempt.
    fn end_deciding(&mut self, cx: &mut Context<'_>, id: CommitId) -> Option<Across> {
        let parked = self.drop_part(id)?;
        if let Some(attempt) = parked.attempt {
            self.give_up_attempt(cx, attempt);
        }
        Some(parked.across)
    }

    /// What is prepared has ended: whom it barred goes on, before all others.
    fn unbar(&mut self) {
        self.parts.held = None;
        while let Some(waiting) = self.parts.barred.pop_back() {
            self.ready.push_front(waiting);
        }
    }

    /// An append is durable: refusals that waited for it are told.
    pub(super) fn tell_late_votes(&mut self, cx: &mut Context<'_>) {
        let durable = self.durable_lsn;
        let votes = std::mem::take(&mut self.parts.late_votes);
        let (now, later) = votes.into_iter().partition(|vote| vote.reveals <= durable);
        self.parts.late_votes = later;
        for LateVote { to, attempt, abort, .. } in Vec::from_iter(now) {
            let vote = crate::across::Vote::Refused(abort);
            self.say(cx, to, Between::Vote { attempt, vote });
        }
    }

    /// The store took back what was gathered: what refusals were for may never be.
    pub(super) fn take_back_votes(&mut self, cx: &mut Context<'_>, error: &RequestError) {
        for LateVote { to, attempt, .. } in std::mem::take(&mut self.parts.late_votes) {
            let vote = crate::across::Vote::Later(error.clone());
            self.say(cx, to, Between::Vote { attempt, vote });
        }
        // What was counted is what is durable: and what is prepared, which is as good.
        for growth in self.parts.growth() {
            self.count_taken(growth, 1);
        }
    }

    /// Counts by how much what is prepared will grow a volume, or takes that back.
    /// What it will free is not given to others before.
    fn count_taken(&mut self, growth: Growth, sign: i64) {
        if let Some(volume) = self.volumes.get_mut(&growth.volume) {
            volume.taken = volume.taken.saturating_add_signed(sign * growth.bytes.max(0));
        }
    }

    /// Counts what the log has as prepared, and pages that it will write.
    pub(super) fn recover_parts(&mut self, history: HistoryId, replayed: Replayed) {
        self.parts = Parts::recovered(self.id, history, replayed);
        for growth in self.parts.growth() {
            self.count_taken(growth, 1);
        }
    }

    /// When there is something that others may have missed, it is said again.
    pub(super) fn watch_parts(&mut self, cx: &Context<'_>) {
        let parts = &mut self.parts;
        // It stays in doubt when its decision cannot be followed yet, and is asked for again.
        let prepared = parts.participant.prepared().map(|prepared| prepared.attempt);
        parts.doubt = parts.doubt.filter(|(attempt, _)| prepared == Some(*attempt));
        if let Some((attempt, _)) = parts.participant.in_doubt() {
            parts.doubt.get_or_insert((attempt, cx.now));
        }
        let idle = parts.coordinator.is_idle()
            && parts.participant.turn().is_none()
            && parts.parked.is_empty();
        if idle {
            parts.repeat_at = None;
        } else if parts.repeat_at.is_none() {
            parts.repeat_at = Some(cx.now.after(REPEAT));
        }
    }

    /// Who decides what is prepared here, and in which history its attempt began.
    pub(in crate::origin) fn named_by_prepared(&self) -> Option<(DomainId, HistoryId)> {
        let prepared = self.parts.participant.prepared()?;
        Some((prepared.coordinator.domain, prepared.attempt.history))
    }

    /// Who decides what is in doubt here, and since when it is.
    pub(in crate::origin) fn in_doubt(&self) -> Option<(DomainId, Instant)> {
        let prepared = self.parts.participant.prepared()?;
        Some((prepared.coordinator.domain, self.parts.doubt?.1))
    }

    /// When the parts have something to do.
    pub(super) fn parts_due(&self) -> Option<Instant> {
        self.parts.repeat_at
    }

    /// Ends waits that were too long, and says again what is not answered.
    pub(super) fn limit_parts(&mut self, cx: &mut Context<'_>) {
        if self.parts.repeat_at.is_none_or(|at| at > cx.now) {
            return;
        }
        self.parts.repeat_at = None;
        if !self.is_open() {
            return;
        }
        self.limit_barred(cx);
        let late = |parked: &Parked| parked.ends(cx.config.wait_max) <= cx.now;
        let late = self.parts.parked.iter().filter(|(_, parked)| late(parked));
        for id in late.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.late_part(cx, id);
        }
        self.say_again(cx);
    }

    fn limit_barred(&mut self, cx: &mut Context<'_>) {
        let Some(with) = self.parts.participant.prepared().map(|p| p.coordinator.domain) else {
            return;
        };
        let late = |w: &Waiting| w.since.after(cx.config.wait_max) <= cx.now;
        let barred = std::mem::take(&mut self.parts.barred).into_iter();
        let (late, rest): (VecDeque<_>, VecDeque<_>) = barred.partition(late);
        self.parts.barred = rest;
        let error = RequestError::Busy(format!(
            "it waits for a transaction that domain {} decides, which did not answer within {:?}",
            with.0, cx.config.wait_max
        ));
        for waiting in late {
            self.give_up(cx, waiting, &error);
        }
    }

    /// A part has waited for too long for the others.
    fn late_part(&mut self, cx: &mut Context<'_>, id: CommitId) {
        let error = RequestError::Busy(format!(
            "the other parts of the transaction were not ready within {:?}",
            cx.config.wait_max
        ));
        let Some(parked) = self.parts.parked.get(&id) else {
            return;
        };
        // Where it waits for pages, or is prepared, that has limits of its own, or none.
        if parked.waiting.is_none() || self.parts.participant.has_prepared(id) {
            return;
        }
        crate::probe::probe("part-waits-too-long");
        let parked = self.drop_part(id).expect("just seen");
        if parked.across.coordinator().domain == self.id {
            if let Some(attempt) = parked.attempt {
                self.give_up_attempt(cx, attempt);
            }
            self.put_off_transaction(cx, &parked.across, &error);
        } else {
            if let Some(attempt) = parked.attempt {
                let (to, vote) = (parked.across.coordinator().domain, crate::across::Vote::Absent);
                self.say(cx, to, Between::Vote { attempt, vote });
                self.leave_turn(Turn::Part(attempt, id));
            }
            self.defer(cx, id, &error);
        }
    }

    /// Says again what was not answered: it, or the answer, may be lost, or the other domain out of service.
    pub(in crate::origin) fn say_again(&mut self, cx: &mut Context<'_>) {
        if !self.is_open() {
            return;
        }
        let Parts { coordinator, participant, parked, .. } = &self.parts;
        let mut said: Vec<(DomainId, Between)> = coordinator.untold();
        for attempt in coordinator.attempts() {
            if let Some(Next::Vote(to, between)) = coordinator.waits_for(attempt) {
                said.push((to, between));
            }
        }
        if let Some((attempt, decides)) = participant.in_doubt() {
            said.push((decides.domain, Between::Ask { attempt }));
        }
        for (id, parked) in parked.iter().filter(|(_, parked)| parked.attempt.is_none()) {
            let coordinator = parked.across.coordinator();
            if coordinator.domain != self.id {
                if !participant.has_prepared(*id) {
                    said.push((coordinator.domain, self.has_arrived(coordinator.id, *id)));
                }
                continue;
            }
            let here = |part: &PartId| parked.arrived.contains(&part.domain);
            for part in parked.across.participants().filter(|part| !here(part)) {
                said.push((part.domain, Between::Await { coordinator: *id, part: part.id }));
            }
        }
        for (to, between) in said {
            self.say(cx, to, between);
        }
    }

    /// Service has ended: whoever waits for a part is told.
    pub(super) fn fail_parts(&mut self, cx: &mut Context<'_>, error: &RequestError) {
        let history = self.history();
        let failed = Parts::recovered(self.id, history, Replayed::default());
        let Parts { parked, barred, .. } = std::mem::replace(&mut self.parts, failed);
        let barred = barred.into_iter().map(|waiting| waiting.request.id);
        for id in parked.into_keys().chain(barred).collect::<Vec<_>>() {
            self.defer(cx, id, error);
        }
    }

    /// Panics when an invariant of parts is broken.
    pub(super) fn check_parts(&self, config: &OriginConfig) {
        self.parts.check(config);
        for (id, parked) in &self.parts.parked {
            assert!(self.pending.has(*id), "a part is here, and nobody waits for it");
            let own = PartId { domain: self.id, id: *id };
            assert!(parked.across.parts().contains(&own), "a part of another transaction");
        }
        for turn in self.parts.participant.turns() {
            let wanted = match turn {
                Turn::Own(attempt) => self.parts.coordinator.waits_for(attempt).is_some(),
                Turn::Part(attempt, id) => {
                    let parked = self.parts.parked.get(&id).and_then(|parked| parked.attempt);
                    let prepared = self.parts.participant.prepared();
                    let prepared = prepared.is_some_and(|it| it.id == id && it.attempt == attempt);
                    parked == Some(attempt) || prepared
                }
            };
            assert!(wanted, "P10: {turn:?} is waited for, and wanted by nobody");
        }
    }
}

/// Whether a relay asks what became of a part, which it may not pass on: it is of no history, and refused for that
/// if it is new.
fn asks(request: &CommitRequest) -> bool {
    request.history == HistoryId::default()
}

/// What writes of a recovered part may touch: all of what each may.
pub(super) fn touched(writes: &[crate::commit::Write]) -> Vec<PageChange> {
    let mut pages: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for write in writes {
        pages.entry(write.page).or_default().push(write.op.touches(true));
    }
    pages.into_iter().map(|(page, touched)| PageChange::named(page, touched)).collect()
}

impl Domain {
    /// What became of a transaction of which a part is here, and not prepared.
    fn part_ended(
        &mut self,
        cx: &mut Context<'_>,
        coordinator: PartId,
        id: CommitId,
        ended: Ended,
    ) {
        let parked = self.parts.parked.get(&id);
        let decides = parked.is_some_and(|parked| parked.across.coordinator() == coordinator);
        if !decides || self.parts.participant.has_prepared(id) {
            return;
        }
        let at_work = parked.is_some_and(|parked| parked.waiting.is_none());
        if at_work {
            // It is asked again when it comes back from where it waits for pages.
            return;
        }
        let parked = self.drop_part(id).expect("just seen");
        if let Some(attempt) = parked.attempt {
            self.leave_turn(Turn::Part(attempt, id));
        }
        match ended {
            Ended::Refused(abort) => {
                let outcome = crate::commit::Outcome::Aborted(abort);
                self.answer(cx, id, &outcome);
            }
            Ended::Unknown => self.answer(cx, id, &crate::commit::Outcome::Unknown),
            Ended::Later(error) => self.defer(cx, id, &error),
        }
    }
}
