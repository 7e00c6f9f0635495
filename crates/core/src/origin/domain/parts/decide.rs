//! A domain as the coordinator of transactions whose deciding part is its own.

use super::{Context, Domain};
use crate::across::{Between, Ended, Next, Turn, Vote};
use crate::commit::{Abort, Across, CommitRequest, PartId};
use crate::id::{Attempt, CommitId, DomainId, Stamp};
use crate::machine::Fault;
use crate::message::{RequestError, certificate_of};
use crate::origin::domain::boots::Known;

impl Domain {
    /// A part of another domain has come there, and is not prepared.
    pub(super) fn arrived(
        &mut self,
        cx: &mut Context<'_>,
        from: DomainId,
        (coordinator, part): (CommitId, CommitId),
        name: &str,
    ) {
        let of = PartId { domain: from, id: part };
        if let Some(parked) = self.parts.parked.get_mut(&coordinator) {
            if parked.across.coordinator().domain == self.id && parked.across.parts().contains(&of)
            {
                parked.arrived.insert(from);
                self.try_transaction(cx, coordinator);
            }
            return;
        }
        // It is under way, and those who are told have heard of it or will; or it is another's, of which
        // nobody else is told anything: of another certificate. The process of a part has another number there once
        // either was registered anew (bug 202), and may have another name, since it is had from another parent
        // (bug 210).
        let of = certificate_of(name);
        let own =
            self.boots.owner(coordinator.boot).is_none_or(|known| certificate_of(known) == of);
        if self.pending.has(coordinator) || !own {
            return;
        }
        let ended = match self.boots.look_up(coordinator, 0, cx.now) {
            Known::New | Known::Full | Known::Leaving => return,
            Known::Aborted(abort) => Ended::Refused(abort),
            // Of a commit that was decided every part is prepared, unless that was lost with what a
            // restored domain forgot.
            Known::Committed(_) | Known::Expired => Ended::Unknown,
        };
        self.say(cx, from, Between::Ended { coordinator, part, ended });
    }

    /// Begins an attempt if all parts have arrived.
    fn try_transaction(&mut self, cx: &mut Context<'_>, id: CommitId) {
        let parked = self.parts.parked.get_mut(&id).expect("looked up by the caller");
        let missing = parked.across.parts().len() > parked.arrived.len() + 1;
        if parked.attempt.is_some() || missing {
            return;
        }
        let (attempt, next) = self.parts.coordinator.begin(parked.across.clone());
        parked.attempt = Some(attempt);
        self.go_on(cx, attempt, next);
    }

    fn go_on(&mut self, cx: &mut Context<'_>, attempt: Attempt, next: Next) {
        match next {
            Next::Vote(to, between) => self.say(cx, to, between),
            Next::OwnTurn => {
                let skipped = cx.config.faults.has(Fault::OwnTurnSkipped);
                if skipped || self.parts.participant.ask(Turn::Own(attempt)) {
                    self.own_turn(cx, attempt);
                }
            }
            Next::Decide => {
                let across = self.parts.coordinator.across(attempt).expect("it is under way");
                let id = across.coordinator().id;
                let parked = self.parts.parked.get_mut(&id).expect("it is tried");
                let mut waiting = parked.waiting.take().expect("it was not decided before");
                waiting.since = cx.now;
                self.prepare(cx, waiting);
            }
        }
    }

    /// It is the turn of an attempt of this domain's own.
    pub(super) fn own_turn(&mut self, cx: &mut Context<'_>, attempt: Attempt) {
        if let Some(next) = self.parts.coordinator.has_turn(attempt) {
            self.comes_on(cx, attempt);
            self.go_on(cx, attempt, next);
        }
    }

    /// It is served now, and has its limit from here on.
    fn comes_on(&mut self, cx: &Context<'_>, attempt: Attempt) {
        let across = self.parts.coordinator.across(attempt);
        let id = across.map(|across| across.coordinator().id);
        if let Some(parked) = id.and_then(|id| self.parts.parked.get_mut(&id)) {
            parked.moved = cx.now;
        }
    }

    /// A participant has voted.
    pub(super) fn voted(
        &mut self,
        cx: &mut Context<'_>,
        from: DomainId,
        attempt: Attempt,
        vote: Vote,
    ) {
        if !self.parts.coordinator.waits_for_vote(attempt, from) {
            // Of an attempt that is over: it may not have heard what became of it.
            if vote == Vote::Ready
                && let Some(answer) = self.parts.coordinator.asked(attempt, from)
            {
                self.say(cx, from, answer);
            }
            return;
        }
        if vote == Vote::Ready {
            if let Some(next) = self.parts.coordinator.is_ready(attempt, from) {
                self.comes_on(cx, attempt);
                self.go_on(cx, attempt, next);
            }
            return;
        }
        let across = self.parts.coordinator.across(attempt).expect("it waits for a vote").clone();
        let id = across.coordinator().id;
        self.give_up_attempt(cx, attempt);
        match vote {
            Vote::Ready => {}
            Vote::Refused(abort) => {
                self.drop_part(id);
                self.refuse_transaction(cx, across, abort);
            }
            Vote::Later(error) => {
                self.drop_part(id);
                self.put_off_transaction(cx, &across, &error);
            }
            Vote::Absent => {
                crate::probe::probe("part-gone-before-its-turn");
                let Some(parked) = self.parts.parked.get_mut(&id) else { return };
                parked.arrived.remove(&from);
                let part = across.parts().iter().find(|part| part.domain == from);
                let part = part.expect("it was waited for").id;
                self.say(cx, from, Between::Await { coordinator: id, part });
            }
        }
    }

    /// An attempt is over, and nothing was committed: whoever was asked is released.
    pub(super) fn give_up_attempt(&mut self, cx: &mut Context<'_>, attempt: Attempt) {
        let across = self.parts.coordinator.across(attempt);
        if let Some(id) = across.map(|across| across.coordinator().id)
            && let Some(parked) = self.parts.parked.get_mut(&id)
        {
            parked.attempt = None;
        }
        for (to, between) in self.parts.coordinator.give_up(attempt) {
            self.say(cx, to, between);
        }
        self.leave_turn(Turn::Own(attempt));
    }

    /// Refuses a transaction for good: the refusal is logged, as the outcome of its deciding part, and told to
    /// the others when it is durable.
    pub(in crate::origin::domain) fn refuse_transaction(
        &mut self,
        cx: &mut Context<'_>,
        across: Across,
        abort: Abort,
    ) {
        crate::probe::probe("transaction-over-several-refused");
        let id = across.coordinator().id;
        if let Err(full) = self.takes_request(cx) {
            return self.put_off_transaction(cx, &across, &full);
        }
        self.parts.refusing.insert(id, across);
        self.gather_abort(id, abort);
    }

    /// A refusal of a transaction is durable.
    pub(in crate::origin::domain) fn transaction_refused(
        &mut self,
        cx: &mut Context<'_>,
        id: CommitId,
        abort: &Abort,
    ) {
        if let Some(across) = self.parts.refusing.remove(&id) {
            self.tell_ended(cx, &across, &Ended::Refused(abort.clone()));
        }
    }

    /// A refusal of a transaction was taken back.
    pub(in crate::origin::domain) fn refusal_taken_back(
        &mut self,
        cx: &mut Context<'_>,
        id: CommitId,
        error: &RequestError,
    ) {
        if let Some(across) = self.parts.refusing.remove(&id) {
            self.tell_ended(cx, &across, &Ended::Later(error.clone()));
        }
    }

    /// Puts a transaction off: whoever waits for one of its parts is told so.
    pub(super) fn put_off_transaction(
        &mut self,
        cx: &mut Context<'_>,
        across: &Across,
        error: &RequestError,
    ) {
        crate::probe::probe("transaction-over-several-put-off");
        self.defer(cx, across.coordinator().id, error);
        self.tell_ended(cx, across, &Ended::Later(error.clone()));
    }

    pub(super) fn tell_ended(&self, cx: &mut Context<'_>, across: &Across, ended: &Ended) {
        let coordinator = across.coordinator().id;
        for part in across.participants() {
            let ended = Between::Ended { coordinator, part: part.id, ended: ended.clone() };
            self.say(cx, part.domain, ended);
        }
    }

    /// All others are ready: the own part is executed, and its record is the decision.
    pub(super) fn execute_deciding(
        &mut self,
        cx: &mut Context<'_>,
        request: CommitRequest,
        base: Stamp,
        attempt: Attempt,
    ) {
        let id = request.id;
        let decided = self.parts.coordinator.decision(attempt).expect("all are ready");
        let part = Some((Turn::Own(attempt), Some(Box::new(decided))));
        let checked = self.check_part(&request, base);
        match checked.and_then(|()| self.gather_commit(cx, request, part)) {
            Ok(()) => drop(self.drop_part(id)),
            // Logged after all that it reveals.
            Err(abort) => {
                if let Some(across) = self.end_deciding(cx, id) {
                    self.refuse_transaction(cx, across, abort);
                }
            }
        }
    }

    /// The decision is durable: those who follow are told.
    pub(in crate::origin::domain) fn has_decided(
        &mut self,
        cx: &mut Context<'_>,
        attempt: Attempt,
    ) {
        crate::probe::probe("transaction-over-several-committed");
        for (to, between) in self.parts.coordinator.has_decided(attempt) {
            self.say(cx, to, between);
        }
        self.leave_turn(Turn::Own(attempt));
    }

    /// The decision was not to be: its append was taken back, or failed.
    pub(in crate::origin::domain) fn decision_taken_back(
        &mut self,
        cx: &mut Context<'_>,
        attempt: Attempt,
        error: &RequestError,
    ) {
        let across = self.parts.coordinator.across(attempt).cloned();
        self.give_up_attempt(cx, attempt);
        if let Some(across) = across {
            crate::probe::probe("decision-taken-back");
            self.tell_ended(cx, &across, &Ended::Later(error.clone()));
        }
    }
}
