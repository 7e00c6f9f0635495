//! A domain as a participant in transactions that others decide.

use super::{Context, Domain, LateVote, Parked};
use crate::across::{Between, Followed, Prepared, Turn, Vote};
use crate::commit::{Abort, Across, CommitRequest, PartId};
use crate::id::{Attempt, CommitId, DomainId, HistoryId, Stamp};
use crate::machine::Fault;
use crate::message::RequestError;
use crate::origin::domain::batch::Item;
use crate::origin::domain::commit::Waiting;
use crate::record::{LogRecord, Lsn};

impl Domain {
    /// What is said of a part of a transaction of which another domain is not reached, for this reason. One that is
    /// prepared may have been decided there, and is followed once that domain is back.
    pub(in crate::origin) fn cannot_reach(
        &self,
        id: CommitId,
        domain: DomainId,
        why: RequestError,
    ) -> RequestError {
        if self.parts.participant.has_prepared(id) {
            crate::probe::probe("prepared-and-out-of-reach");
            let prepared = "a transaction that is prepared here waits for it";
            return RequestError::Unavailable(format!(
                "domain {} is not reached, and {prepared}",
                domain.0
            ));
        }
        why
    }

    /// The deciding part has come, and asks for this one.
    pub(super) fn awaited(
        &mut self,
        cx: &mut Context<'_>,
        from: DomainId,
        coordinator: CommitId,
        part: CommitId,
    ) {
        let decides = PartId { domain: from, id: coordinator };
        let parked = self.parts.parked.get(&part);
        let here = parked.is_some_and(|parked| parked.across.coordinator() == decides);
        if here && !self.parts.participant.has_prepared(part) {
            self.say(cx, from, self.has_arrived(coordinator, part));
        }
    }

    /// What is said to who decides of a part that is here, and not prepared.
    pub(super) fn has_arrived(&self, coordinator: CommitId, part: CommitId) -> Between {
        let name = self.boots.owner(part.boot).unwrap_or_default().to_owned();
        Between::Arrived { coordinator, part, name }
    }

    /// A part is to be prepared, when its turn comes.
    pub(super) fn asked_to_prepare(
        &mut self,
        cx: &mut Context<'_>,
        attempt: Attempt,
        coordinator: PartId,
        id: CommitId,
    ) {
        if self.parts.participant.is_ready(attempt) {
            // Its vote may be lost.
            let vote = Vote::Ready;
            return self.say(cx, coordinator.domain, Between::Vote { attempt, vote });
        }
        // Its vote waits for the log.
        if self.parts.late_votes.iter().any(|vote| vote.attempt == attempt) {
            return;
        }
        let turn = Turn::Part(attempt, id);
        let parked = self.parts.parked.get_mut(&id);
        let Some(parked) = parked.filter(|parked| parked.across.coordinator() == coordinator)
        else {
            let vote = Vote::Absent;
            return self.say(cx, coordinator.domain, Between::Vote { attempt, vote });
        };
        let before = parked.attempt.replace(attempt);
        if before != Some(attempt) {
            parked.moved = cx.now;
        }
        if let Some(earlier) = before.filter(|earlier| *earlier != attempt) {
            // Its release is lost or late. What is prepared keeps its turn until it has heard of it.
            if self.parts.participant.has_prepared(id) {
                return self.say(cx, coordinator.domain, Between::Ask { attempt: earlier });
            }
            self.leave_turn(Turn::Part(earlier, id));
        }
        if self.parts.participant.ask(turn) {
            self.part_turn(cx, id);
        }
    }

    /// It is a part's turn: it is made ready, unless it is already.
    pub(super) fn part_turn(&mut self, cx: &mut Context<'_>, id: CommitId) {
        if self.parts.participant.prepared().is_some() {
            return;
        }
        let parked = self.parts.parked.get_mut(&id);
        let Some(mut waiting) = parked.and_then(|parked| parked.waiting.take()) else {
            return;
        };
        (waiting.since, waiting.rights_seen) = (cx.now, u64::MAX);
        // Before anything is loaded for it: nothing else looks at it.
        let known = self.boots.name(waiting.request.id.boot).is_some();
        let checked = self.check_request(cx, &waiting.request);
        let checked = checked.and_then(|()| match known {
            true => self.check_rights(cx, self.pending.passers(id), &waiting.request),
            false => Ok(()),
        });
        if let Err(abort) = checked {
            self.leave(&waiting);
            return self.refuse_part(cx, waiting, abort);
        }
        self.prepare(cx, waiting);
    }

    /// A part whose turn it is, and whose pages are there: executed to see whether that can be done, taken back,
    /// and logged as prepared.
    pub(super) fn execute_preparing(
        &mut self,
        cx: &mut Context<'_>,
        waiting: Waiting,
        base: Stamp,
        attempt: Attempt,
    ) {
        let checked = self.check_request(cx, &waiting.request);
        let checked = checked.and_then(|()| self.check_part(&waiting.request, base));
        let (at, faults) = ((self.next_lsn, self.stamped.next()), cx.config.faults);
        let applied = checked.and_then(|()| self.apply_all(&waiting.request, at, (false, faults)));
        let (changes, grown) = match applied {
            Ok(applied) => applied,
            Err(abort) => return self.refuse_part(cx, waiting, abort),
        };
        self.undo(&waiting.request.writes, at.1);
        let CommitRequest { id, reads, writes, across, .. } = &waiting.request;
        let coordinator = across.as_ref().expect("it is a part").coordinator();
        let prepared = Prepared {
            attempt,
            coordinator,
            id: *id,
            grown: grown.iter().map(|growth| growth.bytes).collect(),
            reads: reads.clone(),
            writes: writes.clone(),
            changes,
        };
        crate::probe::probe("part-prepared");
        self.log_prepared(&prepared, false);
        self.parts.participant.prepare(prepared);
        grown.into_iter().for_each(|growth| self.count_taken(growth, 1));
        if faults.has(Fault::VoteEarly) && self.parts.participant.has_logged(attempt) {
            let vote = Vote::Ready;
            self.say(cx, coordinator.domain, Between::Vote { attempt, vote });
        }
        self.park_again(cx, waiting);
    }

    fn log_prepared(&mut self, prepared: &Prepared, again: bool) {
        let Prepared { attempt, coordinator, id, grown, reads, writes, .. } = prepared.clone();
        let payload = writes.iter().map(|write| 32 + write.op.payload_bytes()).sum::<usize>();
        self.gathering.bytes += payload + size_of_val(&reads[..]);
        let at = (self.next_lsn, self.stamped.next());
        let record = LogRecord::Prepared { attempt, coordinator, id, grown, reads, writes };
        self.gather(record, Item::Prepared { attempt, at, again });
    }

    /// What is prepared keeps back much of the log: it is logged once more.
    pub(in crate::origin::domain) fn log_prepared_again(&mut self, cx: &Context<'_>) {
        let again = |lsn: Lsn| lsn.0 + cx.config.logged_again < self.durable_lsn.0;
        let held = self.parts.held.filter(|(lsn, _)| again(*lsn));
        // Before it serves nothing goes with the epoch, which may be taken back again and again (bug 207).
        let may = self.is_open() && self.house_after.is_none();
        if !may || held.is_none() || self.parts.participant.in_doubt().is_none() {
            return;
        }
        let gathered = |item: &Item| matches!(item, Item::Prepared { .. });
        let flying = self.flying.iter().flat_map(|(_, batch)| &batch.items);
        if !flying.chain(&self.gathering.items).any(gathered) {
            crate::probe::probe("prepared-logged-again");
            let prepared = self.parts.participant.prepared().expect("it is in doubt").clone();
            self.log_prepared(&prepared, true);
        }
    }

    /// The record of what is prepared is durable: the coordinator is told.
    pub(in crate::origin::domain) fn is_prepared(
        &mut self,
        cx: &mut Context<'_>,
        attempt: Attempt,
        at: (Lsn, Stamp),
    ) {
        let Some(prepared) = self.parts.participant.prepared().filter(|p| p.attempt == attempt)
        else {
            return;
        };
        let to = prepared.coordinator.domain;
        self.parts.held = Some(at);
        if self.parts.participant.has_logged(attempt) {
            let vote = Vote::Ready;
            self.say(cx, to, Between::Vote { attempt, vote });
        }
    }

    /// The store took back the record of what is prepared.
    pub(in crate::origin::domain) fn preparation_taken_back(
        &mut self,
        cx: &mut Context<'_>,
        attempt: Attempt,
        error: &RequestError,
    ) {
        let Some(prepared) = self.parts.participant.end(attempt, true) else {
            return;
        };
        crate::probe::probe("preparation-taken-back");
        let (to, vote) = (prepared.coordinator.domain, Vote::Later(error.clone()));
        self.say(cx, to, Between::Vote { attempt, vote });
        self.leave_part(attempt, prepared.id);
    }

    /// A part is in no attempt any more.
    fn leave_part(&mut self, attempt: Attempt, id: CommitId) {
        if let Some(parked) = self.parts.parked.get_mut(&id)
            && parked.attempt == Some(attempt)
        {
            parked.attempt = None;
        }
        self.unbar();
        self.leave_turn(Turn::Part(attempt, id));
    }

    /// A part cannot be committed: its coordinator is told when all that it may be for is durable (rule 14).
    pub(super) fn vote_against(&mut self, cx: &mut Context<'_>, id: CommitId, abort: Abort) {
        let Some((to, attempt)) = self.leave_attempt(id) else {
            return;
        };
        crate::probe::probe("part-refused");
        let reveals = Lsn(self.next_lsn.0 - 1);
        if reveals > self.durable_lsn {
            self.parts.late_votes.push(LateVote { reveals, to, attempt, abort });
        } else {
            let vote = Vote::Refused(abort);
            self.say(cx, to, Between::Vote { attempt, vote });
        }
    }

    /// A part cannot be made ready now.
    pub(super) fn put_off_vote(&mut self, cx: &mut Context<'_>, id: CommitId, error: RequestError) {
        if let Some((to, attempt)) = self.leave_attempt(id) {
            let vote = Vote::Later(error);
            self.say(cx, to, Between::Vote { attempt, vote });
        }
    }

    /// A part is not made ready at the attempt that it is in, and has no turn there.
    fn leave_attempt(&mut self, id: CommitId) -> Option<(DomainId, Attempt)> {
        let Parked { across, attempt, .. } = self.parts.parked.get_mut(&id)?;
        let (to, attempt) = (across.coordinator().domain, attempt.take()?);
        self.leave_turn(Turn::Part(attempt, id));
        Some((to, attempt))
    }

    /// An attempt is over, and nothing was committed.
    pub(super) fn release(&mut self, from: DomainId, attempt: Attempt) {
        if let Some(prepared) = self.parts.participant.end(attempt, true) {
            crate::probe::probe("prepared-part-released");
            let growth =
                crate::origin::domain::volumes::recovered(&prepared.writes, &prepared.grown);
            growth.into_iter().for_each(|growth| self.count_taken(growth, -1));
            self.gather(LogRecord::Released { attempt }, Item::Released);
            return self.leave_part(attempt, prepared.id);
        }
        if self.parts.participant.prepared().is_some_and(|p| p.attempt == attempt) {
            // It is decided: a release that comes after that is of nothing.
            return;
        }
        let of = |(_, parked): &(&CommitId, &Parked)| {
            parked.attempt == Some(attempt) && parked.across.coordinator().domain == from
        };
        if let Some((id, _)) = self.parts.parked.iter().find(of) {
            let id = *id;
            self.leave_attempt(id);
        }
    }

    /// It was decided to commit a transaction.
    pub(super) fn follow(&mut self, cx: &mut Context<'_>, from: DomainId, attempt: Attempt) {
        match self.parts.participant.decided(attempt) {
            Followed::Now => {
                let prepared = self.parts.participant.prepared().expect("it follows");
                let request = following(self.id, prepared, self.durable, self.history());
                let bytes = request.memory_bytes();
                self.waiting_bytes += bytes;
                let rights_seen = self.rights_changes;
                let waiting = Waiting::new(request, bytes, cx.now, rights_seen);
                self.prepare(cx, waiting);
            }
            Followed::UnderWay => {}
            Followed::Before => self.say(cx, from, Between::Followed { attempt }),
        }
    }

    /// A part that follows, whose pages are there: what is prepared gets its stamp.
    pub(super) fn execute_following(&mut self, cx: &mut Context<'_>, request: CommitRequest) {
        let prepared = self.parts.participant.prepared().expect("it follows");
        let turn = Turn::Part(prepared.attempt, prepared.id);
        // It is counted with its commit from here on.
        for growth in self.parts.growth() {
            self.count_taken(growth, -1);
        }
        let gathered = self.gather_commit(cx, request, Some((turn, None)));
        assert!(
            gathered.is_ok(),
            "what is prepared can be committed, since it bars what could undo that"
        );
    }

    /// A part that follows is durable.
    pub(in crate::origin::domain) fn has_followed(
        &mut self,
        cx: &mut Context<'_>,
        attempt: Attempt,
        id: CommitId,
    ) {
        let prepared = self.parts.participant.end(attempt, false).expect("it was being committed");
        self.drop_part(id);
        self.say(cx, prepared.coordinator.domain, Between::Followed { attempt });
        self.leave_part(attempt, id);
    }

    /// The store took back the commit of what is prepared: it is prepared still, and asks again.
    pub(in crate::origin::domain) fn following_taken_back(&mut self) {
        crate::probe::probe("following-taken-back");
        self.parts.participant.is_put_off();
    }

    /// What is checked when a part is executed, whoever decides.
    pub(super) fn check_part(&self, request: &CommitRequest, base: Stamp) -> Result<(), Abort> {
        self.check_volumes(request)?;
        self.validate(request, base).map_err(|refused| refused.abort)
    }
}

/// What is prepared, as the commit that follows its decision. What it read holds since it was prepared.
fn following(
    domain: DomainId,
    prepared: &Prepared,
    base: Stamp,
    history: HistoryId,
) -> CommitRequest {
    let mut parts = vec![prepared.coordinator, PartId { domain, id: prepared.id }];
    parts.sort_unstable();
    let across = Across::new(parts, prepared.coordinator.domain).map(Box::new);
    CommitRequest {
        id: prepared.id,
        confirmed: 0,
        history,
        base,
        numbers: Vec::new(),
        reads: Vec::new(),
        writes: prepared.writes.clone(),
        across,
    }
}
