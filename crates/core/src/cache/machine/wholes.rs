//! Transactions over several domains: a commit in each of them, of which the user hears as of one (decision 0035).
//!
//! Its name is that of the part that decides. No outcome of a part is confirmed before all are there: who decides
//! would forget the transaction, and a part that is sent again could not be told what became of it.

use super::commits::Asked;
use super::{Cache, CacheReply, Out};
use crate::commit::{Abort, Across, Outcome, PARTS_MAX, PartId};
use crate::id::{CommitId, DomainId, RequestId, Stamp};
use crate::machine::Fault;
use crate::message::{ACROSS_SINCE, RequestError};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// So many transactions that were left in doubt, and have ended since, are remembered.
const ENDED_MAX: usize = 1 << 10;

type Answer = Result<CacheReply, RequestError>;

/// A transaction of which not all parts have an outcome.
#[derive(Debug)]
struct Whole {
    /// Who wait, until their time is up.
    users: BTreeSet<RequestId>,
    /// A user was told that it is in doubt, and may ask again.
    told_in_doubt: bool,
    across: Across,
    parts: BTreeMap<DomainId, CommitId>,
    /// Parts without an outcome.
    left: BTreeSet<DomainId>,
    /// Of parts that are committed.
    stamps: BTreeMap<DomainId, Stamp>,
    /// What became of it, if it is not committed.
    answer: Option<Answer>,
    /// Who decides knows nothing of it any more, and never said that it is done.
    decider_forgot: bool,
}

impl Whole {
    /// What its users are told, if that is known: it was not done, and will not be, or all parts have ended.
    fn known(&self) -> Option<Answer> {
        let over = self.left.is_empty();
        // What is committed in one domain is in all, but where it was lost since, or nobody can tell any more.
        if over && !self.stamps.is_empty() {
            let stamps = self.stamps.iter().map(|(domain, stamp)| (*domain, *stamp));
            return Some(Ok(CacheReply::Committed(stamps.collect())));
        }
        // Where one has followed all will, whatever another one says that its domain has lost since.
        let closed = |answer: &&Answer| self.stamps.is_empty() && !is_open(answer);
        self.answer.as_ref().filter(|answer| over || closed(answer)).cloned()
    }
}

/// Whether other parts may say something else: nobody can tell, or a domain knows nothing of it, which was restored
/// from an older copy, perhaps, after it was done there and elsewhere.
fn is_open(answer: &Answer) -> bool {
    match answer {
        Ok(CacheReply::InDoubt { .. }) => true,
        Ok(answer) => *answer == CacheReply::Outcome(Outcome::Aborted(Abort::History)),
        Err(_) => false,
    }
}

/// All of them, by their deciding parts.
#[derive(Debug, Default)]
pub(super) struct Wholes {
    open: BTreeMap<PartId, Whole>,
    /// How those ended that a user was told to be in doubt, in the order of their ends.
    ended: VecDeque<(PartId, Answer)>,
}

impl Wholes {
    /// See `crate::rest`.
    #[cfg(feature = "faults")]
    pub(super) fn under_way(&self) -> usize {
        self.open.len()
    }

    /// What becomes of a part that is put off, if it is not to be sent again: something is known of the transaction
    /// by another one. None: it is.
    pub(super) fn known(&self, name: PartId) -> Option<Answer> {
        let whole = self.open.get(&name)?;
        match &whole.answer {
            // It was done where it was decided, or may have been: nobody can tell any more.
            _ if whole.decider_forgot => {
                Some(Ok(CacheReply::InDoubt { commit: name.id, lost: true }))
            }
            // Where it was done in one, this one may be done as well, and its stamp is what its session has to see there.
            Some(answer) if whole.stamps.is_empty() && !is_open(answer) => {
                Some(Err(RequestError::Unavailable("the transaction is over".into())))
            }
            Some(_) | None => None,
        }
    }

    /// The user waits no longer, and the transaction goes on.
    pub(super) fn forget_user(&mut self, name: PartId, user: RequestId) {
        if let Some(whole) = self.open.get_mut(&name) {
            whole.users.remove(&user);
        }
    }

    /// One ended that a user was told to be in doubt.
    fn note_ended(&mut self, name: PartId, answer: &Answer) {
        if self.ended.len() == ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back((name, answer.clone()));
    }

    /// Whether this is the deciding part of a transaction that is, or was, over several domains.
    pub(super) fn knows(&self, name: PartId) -> bool {
        self.open.contains_key(&name) || self.ended.iter().any(|(ended, _)| *ended == name)
    }

    /// A user asks about a transaction: its answer, if it is known now.
    pub(super) fn ask_about(&mut self, name: PartId, user: RequestId) -> Option<Answer> {
        if let Some(whole) = self.open.get_mut(&name) {
            if let Some(answer) = whole.known() {
                return Some(answer);
            }
            whole.users.insert(user);
            return None;
        }
        let ended = self.ended.iter().find(|(ended, _)| *ended == name);
        let lost = Ok(CacheReply::InDoubt { commit: name.id, lost: true });
        Some(ended.map_or(lost, |(_, answer)| answer.clone()))
    }
}

impl Cache {
    /// Takes on the parts of a transaction, ascending by domain, and gives its name; or what its user is answered
    /// at once.
    pub(super) fn take_across(
        &mut self,
        user: RequestId,
        parts: Vec<(DomainId, Asked)>,
    ) -> Result<PartId, Answer> {
        let writes = |(_, asked): &&(DomainId, Asked)| !asked.writes.is_empty();
        let decides = parts.iter().find(writes).map(|(domain, _)| *domain);
        let (Some(decides), 2..=PARTS_MAX) = (decides, parts.len()) else {
            let error = format!("a transaction has 2 to {PARTS_MAX} domains, and writes in one");
            return Err(Err(RequestError::Invalid(error)));
        };
        let links = parts.iter().filter_map(|(domain, _)| self.link_of(*domain));
        let versions = links.filter(|link| link.is_welcomed()).map(|link| link.version);
        if let Some(version) = versions.min().filter(|version| *version < ACROSS_SINCE) {
            return Err(Err(RequestError::older_parent(version, ACROSS_SINCE)));
        }
        let mut requests = Vec::with_capacity(parts.len());
        let mut before = 0;
        for (domain, asked) in parts {
            let request = self.request_of(domain, asked, before)?;
            before += request.memory_bytes();
            requests.push((domain, request));
        }
        let ids =
            requests.iter().map(|(domain, request)| PartId { domain: *domain, id: request.id });
        let Some(across) = Across::new(ids.collect(), decides) else {
            let error = "the parts of a transaction are not in the order of their domains";
            return Err(Err(RequestError::Invalid(error.into())));
        };
        for (domain, request) in &mut requests {
            request.across = Some(Box::new(across.clone()));
            if let Err(abort) = crate::wire::check_commit(*domain, request) {
                return Err(Ok(CacheReply::Outcome(Outcome::Aborted(abort))));
            }
        }
        let name = across.coordinator();
        let whole = Whole {
            users: BTreeSet::from([user]),
            told_in_doubt: false,
            parts: across.parts().iter().map(|part| (part.domain, part.id)).collect(),
            left: across.parts().iter().map(|part| part.domain).collect(),
            stamps: BTreeMap::new(),
            answer: None,
            decider_forgot: false,
            across,
        };
        for (domain, request) in requests {
            // What it takes of memory is counted with its parts, as when it is sent.
            self.put_commit(domain, None, request);
        }
        self.wholes.open.insert(name, whole);
        Ok(name)
    }

    /// Whether the parts of transactions in this domain may be sent: the deciding one when all others can go with
    /// it, another one by itself only when that has an outcome.
    pub(super) fn wholes_that_go(&self, domain: DomainId) -> BTreeMap<(DomainId, CommitId), bool> {
        let here = self.wholes.open.iter().filter_map(|(name, whole)| {
            let part = PartId { domain, id: *whole.parts.get(&domain)? };
            let goes = match part == *name {
                true if self.config.faults.has(Fault::WholesUnsent) => false,
                true if self.domains[&domain].commits.is_ask(part.id) => true,
                true => whole.left.iter().all(|of| {
                    let entry = &self.domains[of];
                    entry.live() && entry.commits.is_registered()
                }),
                false => self.is_sent(*name).is_none(),
            };
            Some(((domain, part.id), goes))
        });
        here.collect()
    }

    /// A part was put off. If it is not the one that decides, and that has an outcome, its domain may have lost it: it was
    /// restored from an older copy since, and would never hear of it again, while the others wait for each other's
    /// parts for good (bug 184). It is asked how that ended, and answers the same, or refuses it, which is told to
    /// the others there. Nothing of it is done by this. The one that decides is asked about likewise from when
    /// another one has ended, of which nothing is done there: what waits for that would wait for good.
    pub(super) fn ask_who_decides(&mut self, name: PartId, put_off: DomainId) {
        let Some(whole) = self.wholes.open.get_mut(&name) else { return };
        let decides = put_off == name.domain;
        let none_has_ended = whole.answer.is_none() && whole.stamps.is_empty();
        if decides && none_has_ended || !decides && !whole.left.insert(name.domain) {
            return;
        }
        let across = Some(Box::new(whole.across.clone()));
        let entry = self.domains.get_mut(&name.domain).expect("it is attached");
        if !entry.commits.is_ask(name.id) {
            crate::probe::probe("who-decides-is-asked");
            entry.commits.ask(name.id, across);
        }
    }

    /// Bytes of all parts of a transaction that are not sent.
    pub(super) fn unsent_bytes(&self, name: PartId) -> usize {
        let parts = self.wholes.open.get(&name).into_iter().flat_map(|whole| &whole.parts);
        parts.map(|(domain, id)| self.domains[domain].commits.unsent_bytes(*id)).sum()
    }

    /// Sends the parts of a transaction whose deciding part is on its way, as far as they are not.
    pub(super) fn send_others(&mut self, name: PartId, out: &mut Out) {
        let Some(whole) = self.wholes.open.get(&name) else {
            return;
        };
        let parts: Vec<(DomainId, CommitId)> =
            whole.parts.iter().map(|(domain, id)| (*domain, *id)).collect();
        for (domain, id) in parts.into_iter().filter(|part| *part != (name.domain, name.id)) {
            self.send_part(domain, id, out);
        }
    }

    /// The same of all transactions.
    pub(super) fn send_all_others(&mut self, out: &mut Out) {
        let sent = |name: &PartId| self.is_sent(*name) == Some(true);
        let names: Vec<PartId> = self.wholes.open.keys().copied().filter(sent).collect();
        for name in names {
            self.send_others(name, out);
        }
    }

    /// The user's time is up. A transaction of which nothing was sent, or all that was sent was turned away, is withdrawn,
    /// unless others wait for it; any other goes on, and is in doubt.
    pub(super) fn leave_whole(&mut self, name: PartId, user: RequestId) -> Answer {
        let in_doubt = Ok(CacheReply::InDoubt { commit: name.id, lost: false });
        let Some(whole) = self.wholes.open.get_mut(&name) else {
            return in_doubt;
        };
        whole.users.remove(&user);
        let may_be_done = whole.parts.iter().any(|(domain, id)| {
            let entry = self.domains.get(domain).expect("it is attached");
            entry.commits.may_be_done(*id)
        });
        if may_be_done || !whole.users.is_empty() {
            crate::probe::probe("transaction-over-several-in-doubt");
            whole.told_in_doubt = true;
            return in_doubt;
        }
        crate::probe::probe("transaction-over-several-withdrawn");
        let whole = self.wholes.open.remove(&name).expect("just seen");
        for (domain, id) in &whole.parts {
            let entry = self.domains.get_mut(domain).expect("it is attached");
            entry.commits.withdraw(*id);
        }
        let why = "the transaction was not sent, or was put off, and is not done";
        let answer = Err(RequestError::Unavailable(why.into()));
        if whole.told_in_doubt {
            self.wholes.note_ended(name, &answer);
        }
        answer
    }

    /// A part has ended.
    pub(super) fn part_ended(
        &mut self,
        name: PartId,
        domain: DomainId,
        answer: &Answer,
        out: &mut Out,
    ) {
        let Some(whole) = self.wholes.open.get_mut(&name) else {
            return;
        };
        whole.left.remove(&domain);
        match answer {
            Ok(CacheReply::Outcome(Outcome::Committed(stamp))) => {
                whole.stamps.insert(domain, *stamp);
            }
            // What was done there, and is forgotten since, says nothing of the others.
            Ok(CacheReply::InDoubt { .. }) if whole.stamps.contains_key(&domain) => {}
            // Not that of a part whose outcome is lost, if another one says that nothing was done, and why.
            Ok(CacheReply::InDoubt { .. }) => {
                whole.decider_forgot |= domain == name.domain;
                let lost = Ok(CacheReply::InDoubt { commit: name.id, lost: true });
                if whole.answer.as_ref().is_none_or(is_open) {
                    whole.answer = Some(lost);
                }
            }
            // The first that says why: of the others it may be said that the transaction is over.
            known => {
                // It was done there, and is no more.
                whole.stamps.remove(&domain);
                let before = whole.answer.as_ref();
                if before.is_none_or(|answer| is_open(answer) && !is_open(known)) {
                    whole.answer = Some(known.clone());
                }
            }
        }
        let own = whole.parts[&domain];
        let over = whole.left.is_empty();
        let known = whole.known();
        let entry = self.domains.get_mut(&domain).expect("it is attached");
        if !self.config.faults.has(Fault::OutcomesUnkept) {
            entry.commits.keep(own);
        }
        let Some(answer) = known else { return };
        let whole = self.wholes.open.get_mut(&name).expect("just seen");
        let users = std::mem::take(&mut whole.users);
        if over {
            self.end_whole(name, &answer);
        }
        for user in users {
            self.reply(user, answer.clone(), out);
        }
    }

    /// All parts have an outcome: they may be confirmed.
    fn end_whole(&mut self, name: PartId, answer: &Answer) {
        let whole = self.wholes.open.remove(&name).expect("looked up by the caller");
        for (domain, id) in &whole.parts {
            let entry = self.domains.get_mut(domain).expect("it is attached");
            entry.commits.keep_no_longer(*id);
        }
        let forgotten = self.config.faults.has(Fault::WholeForgotten);
        let known = !matches!(answer, Ok(CacheReply::InDoubt { .. })) && !forgotten;
        if whole.told_in_doubt && known {
            self.wholes.note_ended(name, answer);
        }
    }

    /// A part will not be done: neither is the transaction. Other parts that are not sent are withdrawn, and those
    /// that are will be when they are put off.
    pub(super) fn withdraw_others(&mut self, name: PartId, refused: &RequestError, out: &mut Out) {
        let Some(whole) = self.wholes.open.get(&name) else {
            return;
        };
        let left: Vec<(DomainId, CommitId)> =
            whole.left.iter().map(|domain| (*domain, whole.parts[domain])).collect();
        for (domain, id) in left {
            let entry = self.domains.get_mut(&domain).expect("it is attached");
            if entry.commits.is_on_its_way(id) {
                continue;
            }
            entry.commits.withdraw(id);
            self.part_withdrawn(name, (domain, id), refused, out);
        }
    }

    /// A part is withdrawn, and never had an outcome: none is kept of it until those of the others are there, of
    /// which one may never be.
    pub(super) fn part_withdrawn(
        &mut self,
        name: PartId,
        (domain, id): (DomainId, CommitId),
        refused: &RequestError,
        out: &mut Out,
    ) {
        self.part_ended(name, domain, &Err(refused.clone()), out);
        let entry = self.domains.get_mut(&domain).expect("it is attached");
        entry.commits.keep_no_longer(id);
    }
}
