//! Commits: under one id until an outcome is known (rule 15), their writes retained until the
//! stream has passed them (rule 12).

use super::ledger::{Answer, Pending};
use super::link::violation;
use super::{Cache, CacheReply, Out};
use crate::cache::transaction::CommitPart;
use crate::commit::{Across, CommitRequest, Op, Outcome, PartId, Read, Write};
use crate::confirmed::Confirmed;
use crate::id::{CommitId, DomainId, HistoryId, PageId, RequestId, Stamp};
use crate::machine::Fault;
use crate::message::{
    ACROSS_SINCE, CloseReason, Message, OPEN_SINCE, RESTORES_SINCE, RequestError,
};
use crate::share::{CommitRoom, Room};
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// A store that cannot take the commit for this long refuses it: installing may make room before, a
/// page may be read the next time.
const STORE_PATIENCE: Duration = Duration::from_secs(2);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(1);
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
        if entry.commits.unresolved.len() + entry.commits.kept.len() >= max {
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

    /// The user's time is up. A commit that was never sent, or that was turned away, is
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
        let refused = pending.not_done();
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

    /// Sends the next commit that may go; false: none does. Those without
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
            commits.told.add(&Confirmed::new(commit.confirmed, []));
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
        commits.told.add(&Confirmed::new(commit.confirmed, []));
        self.send(domain, Message::Commit { domain, commit }, out);
    }

    /// Whether a commit is on its way over the link that stands; none: it has an outcome, or is asked about.
    pub(super) fn is_sent(&self, of: PartId) -> Option<bool> {
        let commits = &self.domains.get(&of.domain)?.commits;
        let unresolved = commits.unresolved.contains(&of.id);
        let pending = commits.pending.get(&of.id).filter(|pending| unresolved && !pending.asks);
        pending.map(|pending| pending.sent)
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
        let entry = self.domains.get_mut(&domain).expect("looked up above");
        if let Outcome::Committed(stamp) = outcome
            && entry.position.is_none_or(|position| stamp > position)
        {
            if self.shared.is_looked_ahead() {
                // Of one that was asked about since, what it wrote is forgotten.
                let known = entry.commits.pending.get(&id).filter(|pending| !pending.asks);
                let writes = known.map(|pending| &pending.writes[..]);
                entry.state.committed_ahead(stamp, writes);
            }
            if !self.config.faults.has(Fault::ForgetTold) {
                entry.told.note(history, stamp);
            }
        }
        if let Some(forgotten) = entry.commits.resolve(id, &outcome, max) {
            entry.state.forget_ahead(forgotten);
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

    pub(super) fn reply_all(&mut self, users: BTreeSet<RequestId>, answer: &Answer, out: &mut Out) {
        for user in users {
            self.reply(user, answer.clone(), out);
        }
    }

    pub(super) fn on_deferred(
        &mut self,
        now: Instant,
        (domain, id): (DomainId, CommitId),
        (error, passed): (RequestError, bool),
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
        // Who can say how it ended has said that it waits for the others, in vain perhaps.
        let waits_for_others = matches!(error, RequestError::Busy(_));
        // It may be that its boot is not registered there any more (bug 196).
        let registers = matches!(error, RequestError::Unavailable(_));
        match error {
            RequestError::Full(_) | RequestError::Damaged { .. } | RequestError::Invalid(_) => {
                let since = pending.unable.take().map_or(now, |(since, _)| since);
                (pending.unable, pending.turned_away) = (Some((since, error)), None);
            }
            _ => {
                pending.unable = None;
                pending.in_doubt |= passed;
                pending.turned_away = (!passed).then_some(error);
            }
        }
        let lasting =
            pending.unable.as_ref().is_some_and(|(at, _)| now.since(*at) >= STORE_PATIENCE);
        let whole = pending.across.as_ref().map(|across| across.coordinator());
        // Of a transaction of which another part has ended so nothing is asked any more.
        let known = whole.and_then(|whole| self.wholes.known(whole));
        if let Some(whole) = whole
            && let Some(known @ Ok(_)) = &known
            && waits_for_others
        {
            commits.resolve(id, &Outcome::Unknown, self.config.commits_max);
            self.part_ended(whole, domain, known, out);
            return Ok(());
        }
        let ended = known.and_then(Result::err);
        // Whether somebody still waits or not: it is not done, and would be sent for good.
        let never = pending.unable.as_ref().and_then(|(_, error)| cannot_be_done(error));
        if never.is_some() && pending.in_doubt {
            // It may be done: a parent that cannot pass it on does not know (bug 205).
            crate::probe::probe("refused-after-it-was-sent");
            let lost = Ok(CacheReply::InDoubt { commit: id, lost: true });
            let users = commits.end(id, &lost);
            commits.resolve(id, &Outcome::Unknown, self.config.commits_max);
            self.reply_all(users, &lost, out);
            if let Some(whole) = whole {
                self.part_ended(whole, domain, &lost, out);
            }
            return Ok(());
        }
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
        let version = self.link_of(domain).map_or(0, |link| link.version);
        let open_after = if version >= OPEN_SINCE { self.config.open_after } else { u64::MAX };
        let entry = self.domains.get_mut(&domain).expect("attached");
        let (live, commits) = (entry.live(), &mut entry.commits);
        let (boot, received) = (commits.boot, commits.received(open_after));
        if live && commits.told.add(&received) {
            let (upto, open) = (received.upto(), received.open().collect());
            self.send(domain, Message::Confirm { domain, boot, upto, open }, out);
        }
    }
}

/// What is said of a commit that its origin takes in no case, and did not before: it is not tried again.
fn cannot_be_done(error: &RequestError) -> Option<RequestError> {
    matches!(error, RequestError::Invalid(_)).then(|| error.clone())
}
