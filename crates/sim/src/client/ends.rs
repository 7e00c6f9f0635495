//! How a client's transaction ends, and what the checkers make of it.

use super::proof::is_an_answer;
use super::{Ending, Kind, Other, Reads, Run, SeenFloors, Stage};
use crate::agenda::SECOND;
use crate::check::refusals::{self, Asked};
use crate::world::World;
use larder_core::cache::io::{CacheOp, CacheReply};
use larder_core::cache::{CommitPart, Finish, Seen as Floor, commit_ops, decides};
use larder_core::commit::{Abort, Outcome, PartId};
use larder_core::id::{CommitId, DomainId, Stamp};
use larder_core::message::RequestError;
use std::collections::BTreeMap;

/// When somebody who was told of doubt comes back to it.
const DOUBT_NANOS: u64 = 5 * SECOND;

impl World {
    /// Ends the transaction: here, or by asking for its commit.
    pub(super) fn client_ends(&mut self, index: usize, mut run: Run) {
        let unused = run.tx.take_unused_ids();
        self.clients[index].ids.extend(unused);
        let Run {
            tx, kind, tag, reads, floors, made, pages_made, real_time, effects, begun, ..
        } = run;
        self.arm_clock(index, kind.age_max.is_some());
        let finish = tx.finish();
        self.disarm_clock();
        match finish {
            Finish::Local { seen, .. } => {
                assert!(
                    !kind.strict || reads.is_empty(),
                    "P2: a strict transaction is committed without its origin"
                );
                self.check_parts(index, kind, &reads, &seen, &floors);
                self.raise_floors(index, kind, &reads, &seen);
                let history = self.tell(index, kind, begun, &reads, &seen);
                self.add_reader(history);
                self.client_proved(index, reads.is_empty() && self.may_be_refused());
                self.tally.committed += 1;
                self.client_thinks(index);
            }
            Finish::Send { parts, seen, .. } => {
                self.check_parts(index, kind, &reads, &seen, &floors);
                self.raise_floors(index, kind, &reads, &seen);
                let all: Vec<Floor> = parts.iter().map(|part| part.seen(part.checked)).collect();
                let all = [seen, all].concat();
                let history = self.tell(index, kind, begun, &reads, &all);
                let reader = self.add_writer(history, tag, &effects, &parts);
                let (sent, rest, others) = self.divide(tag, &reads, parts);
                let branches = self.oracle.truth(sent.domain).branch_count();
                if others.is_empty() {
                    self.note_asked(tag, &reads, &sent);
                }
                let ending = Ending {
                    kind,
                    tag,
                    reads,
                    made,
                    pages_made,
                    real_time,
                    sent,
                    rest,
                    others,
                    reader,
                    branches,
                    asked_again: false,
                    doubt: None,
                };
                self.client_sends(index, Box::new(ending));
            }
            Finish::Doomed(_) | Finish::Refused(_) => {
                self.tally.aborted += 1;
                self.client_thinks(index);
            }
        }
    }

    /// The part that is sent first, those that are sent after it, and those that are sent with it since it writes.
    fn divide(
        &mut self,
        tag: Option<u64>,
        reads: &BTreeMap<DomainId, Reads>,
        mut parts: Vec<CommitPart>,
    ) -> (CommitPart, Vec<CommitPart>, Vec<Other>) {
        let decides = decides(&parts).filter(|_| parts.len() > 1);
        let (Some(decides), Some(tag)) = (decides, tag) else {
            parts.reverse();
            let sent = parts.pop().expect("something is to be sent");
            return (sent, parts, Vec::new());
        };
        let place =
            parts.iter().position(|part| part.domain == decides).expect("it is one of them");
        let sent = parts.remove(place);
        let domains: Vec<DomainId> = parts.iter().map(|part| part.domain).collect();
        let tags = self.oracle.divides(tag, &domains);
        for (tag, part) in
            [tag].into_iter().chain(tags.clone()).zip([&sent].into_iter().chain(&parts))
        {
            let seen = reads.get(&part.domain).map_or(Vec::new(), |reads| reads.seen.clone());
            self.oracle.asks(tag, seen, part);
        }
        let others = parts.into_iter().zip(tags).map(|(part, tag)| {
            let branches = self.oracle.truth(part.domain).branch_count();
            Other { part, tag, branches }
        });
        let others = others.collect();
        (sent, Vec::new(), others)
    }

    fn note_asked(
        &mut self,
        tag: Option<u64>,
        reads: &BTreeMap<DomainId, Reads>,
        part: &CommitPart,
    ) {
        if part.writes.is_empty() {
            return;
        }
        let tag = tag.expect("only writers write");
        let seen = reads.get(&part.domain).map_or(Vec::new(), |reads| reads.seen.clone());
        self.oracle.asks(tag, seen, part);
    }

    /// Asks for the commit of the part whose turn it is.
    pub(super) fn client_sends(&mut self, index: usize, ending: Box<Ending>) {
        let mut parts: Vec<CommitPart> =
            ending.others.iter().map(|other| other.part.clone()).collect();
        parts.push(ending.sent.clone());
        parts.sort_unstable_by_key(|part| part.domain);
        let op = commit_ops(parts).pop().expect("one part, or all together");
        self.clients[index].stage = Stage::Commit(ending);
        self.client_asks(index, op);
    }

    /// The outcome of a part, or that it is not known.
    pub(super) fn client_answered(
        &mut self,
        index: usize,
        mut ending: Box<Ending>,
        result: Result<CacheReply, RequestError>,
    ) {
        let mut stamps = Vec::new();
        self.clients[index].put_off = matches!(result, Err(RequestError::Busy(_)));
        let outcome = match result {
            Ok(CacheReply::Committed(all)) => {
                stamps = all;
                self.outcome_told(&ending, &stamps)
            }
            Ok(CacheReply::Outcome(outcome)) => {
                let whole = !ending.others.is_empty();
                assert!(
                    !whole || !matches!(outcome, Outcome::Committed(_)),
                    "of a transaction over several domains one stamp is told"
                );
                outcome
            }
            // What is answered then is held to the truth as well.
            Ok(CacheReply::InDoubt { commit, lost: false }) if !ending.asked_again => {
                self.trace.line(|| format!("client {index}: in doubt: {commit:?}"));
                ending.asked_again = true;
                // Some do something else first: then it may have ended before anybody asks.
                let later = !ending.others.is_empty() && ending.tag.is_some_and(|tag| tag % 2 == 1);
                if later {
                    ending.doubt = Some(commit);
                    self.clients[index].stage = Stage::Commit(ending);
                    return self.client_goes_on(index, DOUBT_NANOS);
                }
                return self.client_asks_again(index, ending, commit);
            }
            Ok(CacheReply::InDoubt { lost, .. }) => {
                self.check_lost(&ending, lost);
                Outcome::Unknown
            }
            Ok(other) => panic!("{other:?} is no outcome"),
            // Not done, and never will be: the oracle holds it to that as to an abort.
            Err(RequestError::Full(_)) => Outcome::Aborted(Abort::History),
            // Withdrawn before it was sent: the oracle, which knows commits by what they ask, would
            // take another client's that asks the same for it.
            Err(_) => Outcome::Unknown,
        };
        self.trace.line(|| format!("client {index}: {outcome:?}"));
        let writes = !ending.sent.writes.is_empty();
        if let (true, Some(tag)) = (writes, ending.tag) {
            self.oracle.answered(tag, &outcome);
        }
        for other in &ending.others {
            let stamp = stamps.iter().find(|(domain, _)| *domain == other.part.domain);
            let of_part = match (stamp, &outcome) {
                (Some((_, stamp)), _) => Outcome::Committed(*stamp),
                (None, Outcome::Committed(_)) => {
                    self.check_untold(&ending, (&other.part, other.tag, other.branches));
                    Outcome::Unknown
                }
                (None, outcome) => outcome.clone(),
            };
            self.oracle.answered(other.tag, &of_part);
        }
        self.note_unseen(index, &ending, &stamps);
        match &outcome {
            Outcome::Committed(stamp) => {
                self.part_committed(index, &ending, *stamp);
                let told = self.stamps_told(&ending, *stamp, &stamps);
                self.others_committed(index, &mut ending, &stamps);
                self.told_committed(&mut ending, *stamp, &told);
                if let Some(next) = ending.rest.pop() {
                    ending.sent = next;
                    (ending.asked_again, ending.doubt) = (false, None);
                    self.note_asked(ending.tag, &ending.reads, &ending.sent);
                    return self.client_sends(index, ending);
                }
                self.remember(&ending);
                self.client_proved(index, ending.kind.reads_only || ending.tag.is_some());
                self.tally.committed += 1;
            }
            Outcome::Aborted(abort) => {
                if matches!(abort, Abort::Deleted(_)) {
                    self.volumes_deleted();
                }
                self.check_abort(&ending, abort);
                self.client_proved(index, is_an_answer(abort));
                self.tally.aborted += 1;
            }
            Outcome::Unknown => {
                // Where it was done all the same it is held to what it saw, and seen from now on.
                if !stamps.is_empty() {
                    self.others_committed(index, &mut ending, &stamps);
                }
                self.tally.unknown += 1;
            }
        }
        self.client_thinks(index);
    }

    /// Where it is done and no stamp is told, the session asks for the newest state, and sees no less than the log has of
    /// it.
    fn note_unseen(&mut self, index: usize, ending: &Ending, stamps: &[(DomainId, Stamp)]) {
        if ending.others.is_empty() || stamps.is_empty() {
            return;
        }
        let others = ending.others.iter().map(|other| (&other.part, Some(other.tag)));
        let parts = others.chain([(&ending.sent, ending.tag)]);
        for (part, tag) in parts.filter(|(part, _)| !part.writes.is_empty()) {
            if stamps.iter().any(|(domain, _)| *domain == part.domain) {
                continue;
            }
            self.session(index).session.wrote_unseen(part.domain, part.line, part.history);
            self.session(index).unseen.insert(part.domain);
            let tag = tag.expect("only writers write");
            let truth = self.oracle.truth(part.domain);
            let logged = self.oracle.intent(tag).id.and_then(|id| truth.last_of(id));
            if let Some((branch, stamp)) = logged {
                self.session(index).raise_floor(part.seen(stamp), branch);
            }
        }
    }

    /// What is told of the part sent, of which a stamp may be missing.
    fn outcome_told(&self, ending: &Ending, stamps: &[(DomainId, Stamp)]) -> Outcome {
        if let Some((_, stamp)) = stamps.iter().find(|(domain, _)| *domain == ending.sent.domain) {
            return Outcome::Committed(*stamp);
        }
        let whole = !ending.others.is_empty() && !stamps.is_empty();
        assert!(whole, "it is told where it was done");
        let tag = ending.tag.expect("only writers are done in several domains");
        self.check_untold(ending, (&ending.sent, tag, ending.branches));
        Outcome::Unknown
    }

    /// Asks how a commit ended that was in doubt.
    pub(super) fn client_asks_again(
        &mut self,
        index: usize,
        mut ending: Box<Ending>,
        commit: CommitId,
    ) {
        ending.doubt = None;
        let op = CacheOp::Outcome { domain: ending.sent.domain, commit };
        self.clients[index].stage = Stage::Commit(ending);
        self.client_asks(index, op);
    }

    /// A part is acknowledged: its reads held, and the session sees no less from now on.
    fn part_committed(&mut self, index: usize, ending: &Ending, stamp: Stamp) {
        self.check_committed(index, ending, stamp);
        let floor = ending.sent.seen(stamp);
        self.session(index).session.saw(&[floor]);
        if let Some(number) = self.branch_of_commit(ending, stamp) {
            self.session(index).raise_floor(floor, number);
        }
    }

    /// The same of the parts beside the deciding one.
    fn others_committed(
        &mut self,
        index: usize,
        ending: &mut Ending,
        stamps: &[(DomainId, Stamp)],
    ) {
        if ending.others.is_empty() {
            return;
        }
        self.tally.wholes += 1;
        let own = (ending.sent.clone(), ending.tag, ending.branches);
        for Other { part, tag, branches } in std::mem::take(&mut ending.others) {
            let stamp = stamps.iter().find(|(domain, _)| *domain == part.domain);
            let Some((_, stamp)) = stamp.copied() else { continue };
            (ending.sent, ending.tag, ending.branches) = (part, Some(tag), branches);
            self.part_committed(index, ending, stamp);
        }
        (ending.sent, ending.tag, ending.branches) = own;
    }

    /// What was read held at one stamp, which is not below what the session had seen at the begin:
    /// transactions side by side say nothing about each other.
    fn check_parts(
        &mut self,
        index: usize,
        kind: Kind,
        reads: &BTreeMap<DomainId, Reads>,
        seen: &[Floor],
        floors: &SeenFloors,
    ) {
        for floor in seen {
            let Some(reads) = reads.get(&floor.domain) else {
                continue;
            };
            let number = self.branch_of(index, kind, reads, floor);
            let truth = self.oracle.truth(floor.domain);
            let branch = truth.branch_at(number);
            for read in &reads.seen {
                read.assert_at(
                    branch,
                    floor.stamp,
                    "P2 (reads only)",
                    &format_args!("client {index}"),
                );
            }
            for (branch, stamp) in floors.get(&floor.domain).into_iter().flatten() {
                assert!(
                    floor.stamp >= *stamp && truth.common(*branch, number) >= *stamp,
                    "P4: client {index} ({kind:?}) reads {:?} at {} of branch {number} after it saw \
                     {stamp} of branch {branch}",
                    floor.domain,
                    floor.stamp
                );
            }
        }
    }

    fn raise_floors(
        &mut self,
        index: usize,
        kind: Kind,
        reads: &BTreeMap<DomainId, Reads>,
        seen: &[Floor],
    ) {
        self.session(index).session.saw(seen);
        for floor in seen {
            if let Some(reads) = reads.get(&floor.domain) {
                let number = self.branch_of(index, kind, reads, floor);
                self.session(index).raise_floor(*floor, number);
            }
        }
    }

    /// The branch of history that what a transaction saw belongs to.
    pub(super) fn branch_of(
        &self,
        index: usize,
        kind: Kind,
        reads: &Reads,
        floor: &Floor,
    ) -> usize {
        // Where the node went on in the middle of the end to the same stamp of another branch: of a line
        // that is lost nothing ends well, so this was before (seed 140825518523).
        let before = self.history_before(floor.domain, floor.stamp);
        let truth = self.oracle.truth(floor.domain);
        if before.is_some_and(|history| truth.branch_number(history) == reads.branch) {
            return reads.branch;
        }
        let now = self.branch_at_node(index, floor.domain, floor.stamp);
        now.filter(|_| !kind.snapshot).unwrap_or(reads.branch)
    }

    /// The branch that an acknowledged part belongs to: its acknowledgement may have been under way
    /// when the origin was restored. None: nobody can tell.
    fn branch_of_commit(&self, ending: &Ending, stamp: Stamp) -> Option<usize> {
        let truth = self.oracle.truth(ending.sent.domain);
        if ending.sent.writes.is_empty() {
            let last = truth.branch_count();
            return (last == ending.branches).then(|| last - 1);
        }
        let tag = ending.tag.expect("only writers write");
        truth.branch_of(self.oracle.intent(tag).id?, stamp)
    }

    /// An acknowledged part: its reads held, and real time is respected.
    fn check_committed(&mut self, index: usize, ending: &Ending, stamp: Stamp) {
        let domain = ending.sent.domain;
        let truth = self.oracle.truth(domain);
        if truth.branch_count() != ending.branches {
            return;
        }
        let who = format_args!("client {index}");
        if ending.sent.writes.is_empty() {
            let reads = ending.reads.get(&domain).into_iter().flat_map(|reads| &reads.seen);
            for read in reads {
                read.assert_at(truth.current(), stamp, "P2 (validated)", &who);
            }
        }
        let (branches, floor) = ending.real_time[&domain];
        assert!(
            !ending.kind.strict || stamp >= floor || branches != truth.branch_count(),
            "P2: {who} is ordered at {stamp} of {domain:?}, after {floor} was acknowledged"
        );
        if ending.kind.strict {
            self.oracle.answered_strict(domain, stamp);
        }
    }

    /// A conflict that is reported must have been one, and must be durable (rules 13, 14), or must be kept as a
    /// refusal: it may not be found again (rule 15).
    fn check_abort(&mut self, ending: &Ending, abort: &Abort) {
        let Abort::Conflict(read) = abort else {
            return self.check_refusal(ending, abort);
        };
        // Of a transaction over several domains any part may be refused, and all are told.
        let others = ending.others.iter().map(|other| &other.part);
        let mut parts = [&ending.sent].into_iter().chain(others);
        let part = parts.find(|part| part.reads.contains(read)).unwrap_or(&ending.sent);
        let truth = self.oracle.truth(part.domain);
        let number = truth.branch_number(part.history);
        if truth.branch_count() != number + 1 {
            return;
        }
        let branch = truth.current();
        let changed = branch.version(read.page, branch.durable());
        let id = ending.tag.and_then(|tag| self.oracle.intent(tag).id);
        // Some that were answered to nobody are counted for longer: no more than clients may have under way.
        let many = self.clients.len() * self.plan.mix.length as usize;
        let under_way = self.answers.under_way.writes(part.domain).min(many);
        let most = self.plan.limits.recent_writes_max;
        let known_from = truth.known_from(part.checked, under_way, most);
        let known = (known_from, self.least_page_bytes());
        if refusals::had_conflict(branch, asked_of(part), read, known)
            || id.is_none() && truth.has_taken_back()
        {
            return;
        }
        // What was taken back in one domain is a reason that another one has logged.
        let whole = ending.tag.filter(|_| !ending.others.is_empty() && truth.has_taken_back());
        if whole.is_some_and(|tag| self.oracle.has_refused_whole(tag)) {
            return;
        }
        let rule = if truth.has_taken_back() { 15 } else { 13 };
        assert!(
            id.is_some_and(|id| truth.has_refused(id)),
            "rule {rule}: told of a conflict on {read:?} after {}, but the page last changed at \
             {changed} (durable {})",
            part.checked,
            branch.durable()
        );
    }

    /// Nobody says that a writer's outcome is lost while its domain knows of its process (P11).
    fn check_lost(&self, ending: &Ending, lost: bool) {
        if !lost || ending.sent.writes.is_empty() {
            return;
        }
        let tags = ending.tag.into_iter().chain(ending.others.iter().map(|other| other.tag));
        let part = |tag| {
            let intent = self.oracle.intent(tag);
            Some(PartId { domain: intent.domain, id: intent.id? })
        };
        let parts: Vec<PartId> = tags.filter_map(part).collect();
        assert!(
            self.answers.expired.may_be_lost(&parts),
            "P11: an outcome is said to be lost, and its domains know its process: {parts:?}"
        );
    }

    /// A transaction is said to be done, and of its part in this domain nothing: that, or the one that decides, has
    /// forgotten the process (P11), or the domain was restored from an older copy since it was asked.
    fn check_untold(&self, ending: &Ending, (part, tag, branches): (&CommitPart, u64, usize)) {
        let forgotten = |tag: u64| {
            let intent = self.oracle.intent(tag);
            let part = intent.id.map(|id| PartId { domain: intent.domain, id });
            part.is_some_and(|part| self.answers.expired.knows_no_more(part))
        };
        let restored = self.oracle.truth(part.domain).branch_count() > branches;
        assert!(
            restored || forgotten(tag) || ending.tag.is_some_and(forgotten),
            "P11: a transaction is done, and of its part in {:?}, which knows its process, nothing is told",
            part.domain
        );
    }

    fn least_page_bytes(&self) -> u32 {
        self.volumes.iter().map(|volume| volume.spec.page_bytes).min().unwrap_or_default()
    }

    /// What is refused for another reason had one.
    fn check_refusal(&mut self, ending: &Ending, abort: &Abort) {
        let parts = || [&ending.sent].into_iter().chain(ending.others.iter().map(|o| &o.part));
        let quiet = parts().all(|part| {
            let truth = self.oracle.truth(part.domain);
            let last = truth.branch_count() == truth.branch_number(part.history) + 1;
            last && !truth.has_taken_back()
        });
        if !quiet {
            return;
        }
        let asked: Vec<_> = parts()
            .map(|part| (self.oracle.truth(part.domain).current(), asked_of(part)))
            .collect();
        let unjust = refusals::unjust(&asked, abort, self.least_page_bytes());
        assert!(
            unjust.is_none(),
            "refusal: {abort:?}: {}: {:?}",
            unjust.unwrap_or_default(),
            parts().collect::<Vec<_>>()
        );
    }

    /// Objects and pages that others may aim at from now on.
    fn remember(&mut self, ending: &Ending) {
        if self.oracle.truth(ending.sent.domain).branch_count() != ending.branches {
            return;
        }
        for object in &ending.made {
            let volumes = &mut self.volumes;
            let volume = volumes.iter_mut().find(|volume| volume.spec.id == object.page.volume);
            // None: it was deleted meanwhile.
            if let Some(volume) = volume {
                volume.remember(*object);
            }
        }
        for (page, raw) in &ending.pages_made {
            let volumes = &mut self.volumes;
            let volume = volumes.iter_mut().find(|volume| volume.spec.id == page.volume);
            let Some(volume) = volume else { continue };
            let list = if *raw { &mut volume.raw } else { &mut volume.slotted };
            list.push(*page);
        }
    }

    /// A request was refused. Who was put off comes again a little later.
    pub(super) fn note_request_error(&mut self, index: usize, error: &RequestError) {
        self.clients[index].put_off |= matches!(error, RequestError::Busy(_));
        self.trace.line(|| format!("client {index}: {error}"));
        assert!(
            !matches!(error, RequestError::Damaged { .. }),
            "P9: damage where none was done: {error}"
        );
    }
}

fn asked_of(part: &CommitPart) -> Asked<'_> {
    Asked { base: part.checked, reads: &part.reads, writes: &part.writes }
}
