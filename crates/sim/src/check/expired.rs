//! Whether an outcome may be said to be forgotten (P11): its process must be unknown to the domain, or have confirmed
//! it; of a transaction over several domains, in one of them.

use larder_core::commit::{CommitRequest, Outcome, PartId};
use larder_core::id::{BootId, CommitId, DomainId};
use larder_core::message::Message;
use larder_core::origin::RecoveredDomain;
use larder_core::record::LogRecord;
use std::collections::{BTreeMap, BTreeSet};

/// Outcomes that were said to be received: up to a number, but for some.
type ButFor = (u64, Vec<u64>);

/// Processes as the durable log has them, and what the origin heard of them.
#[derive(Debug, Default)]
pub struct Expired {
    known: BTreeSet<(DomainId, BootId)>,
    /// Were known, and were not later.
    forgotten: BTreeSet<(DomainId, BootId)>,
    /// Outcomes up to here were said to be received.
    confirmed: BTreeMap<(DomainId, BootId), u64>,
    /// And up to here, but for some: each time that this was said.
    but_for: BTreeMap<(DomainId, BootId), BTreeSet<ButFor>>,
    /// Parts that their domains may have lost, to a copy from the past.
    lost: BTreeSet<PartId>,
    /// What else a part belongs to.
    parts: BTreeMap<PartId, Vec<PartId>>,
    /// Parts that their nodes have withdrawn: what they are of is never done (`withdrawn`).
    withdrawn: BTreeSet<PartId>,
}

impl Expired {
    /// A domain loses what was durable.
    pub fn branch(&mut self, domain: DomainId) {
        self.lost.extend(self.parts.keys().filter(|part| part.domain == domain));
    }

    /// The origin serves a domain from what was recovered.
    pub fn recovered(&mut self, domain: DomainId, found: &RecoveredDomain) {
        let before: Vec<_> = self.known.iter().copied().filter(|(of, _)| *of == domain).collect();
        self.known.retain(|(of, _)| *of != domain);
        for meta in &found.meta.boots {
            self.known.insert((domain, meta.boot));
            self.confirms(domain, meta.boot, (meta.confirmed, &meta.open));
        }
        for (_, record) in &found.records {
            self.durable(domain, record);
        }
        self.forgotten.extend(before.into_iter().filter(|boot| !self.known.contains(boot)));
    }

    /// A record is durable.
    pub fn durable(&mut self, domain: DomainId, record: &LogRecord) {
        match record {
            LogRecord::Boot { boot, .. } => {
                self.known.insert((domain, *boot));
            }
            LogRecord::Confirmed { boot, upto: u64::MAX } => {
                self.known.remove(&(domain, *boot));
                self.forgotten.insert((domain, *boot));
            }
            LogRecord::Confirmed { boot, upto } => self.confirms(domain, *boot, (*upto, &[])),
            // It was sent again, and is known once more.
            LogRecord::Commit { id, .. } | LogRecord::Aborted { id, .. } => {
                self.lost.remove(&PartId { domain, id: *id });
            }
            _ => {}
        }
    }

    fn confirms(&mut self, domain: DomainId, boot: BootId, (upto, open): (u64, &[u64])) {
        if !open.is_empty() {
            self.but_for.entry((domain, boot)).or_default().insert((upto, open.to_vec()));
            return;
        }
        let confirmed = self.confirmed.entry((domain, boot)).or_default();
        *confirmed = upto.max(*confirmed);
    }

    /// A node has withdrawn a commit.
    pub fn withdrawn(&mut self, domain: DomainId, id: CommitId) {
        self.withdrawn.insert(PartId { domain, id });
    }

    /// The origin hears something.
    pub fn asked(&mut self, message: &Message) {
        match message {
            Message::Confirm { domain, boot, upto, open } => {
                self.confirms(*domain, *boot, (*upto, open));
            }
            Message::Commit { domain, commit } => self.asked_commit(*domain, commit),
            _ => {}
        }
    }

    fn asked_commit(&mut self, domain: DomainId, commit: &CommitRequest) {
        self.confirms(domain, commit.id.boot, (commit.confirmed, &[]));
        if let Some(across) = &commit.across {
            let part = PartId { domain, id: commit.id };
            self.parts.insert(part, across.parts().to_vec());
        }
    }

    /// The origin says something. Panics if it says for no reason that an outcome is forgotten.
    pub fn answered(&self, message: &Message) {
        if let Message::Committed { domain, id, outcome: Outcome::Unknown, .. } = message {
            assert!(
                self.may_be(PartId { domain: *domain, id: *id }),
                "P11: {id:?} of {domain:?} is said to be forgotten, and its process is known: {:?}",
                self.confirmed.get(&(*domain, id.boot))
            );
        }
    }

    /// Whether nobody may be able to tell what became of a transaction, of which these parts are known.
    #[must_use]
    pub fn may_be(&self, part: PartId) -> bool {
        // Who decides may know of a transaction that it was done, and the part's own domain have lost it (decision
        // 0035).
        self.lost.contains(&part)
            || self.is_expired(part.domain, part.id)
            || self.may_be_lost(&[part])
            || self.is_given_up(part)
    }

    /// Whether the outcome of another part was confirmed, of a transaction of which its node has withdrawn a part: it asks for
    /// no more, though one may be on its way still. Of any other it confirms none before all have theirs.
    fn is_given_up(&self, part: PartId) -> bool {
        let whole = || self.parts.get(&part).into_iter().flatten();
        let mut others = whole().filter(|other| **other != part);
        whole().any(|part| self.withdrawn.contains(part))
            && others.any(|other| self.is_expired(other.domain, other.id))
    }

    /// Whether a node may say so to its user, who was not told before: it confirms what it has told.
    #[must_use]
    pub fn may_be_lost(&self, parts: &[PartId]) -> bool {
        let whole = parts.iter().flat_map(|part| self.parts.get(part).into_iter().flatten());
        whole.chain(parts).any(|part| self.is_forgotten(part.domain, part.id.boot))
    }

    /// Whether a part's own domain may know nothing of its process any more.
    #[must_use]
    pub fn knows_no_more(&self, part: PartId) -> bool {
        self.is_forgotten(part.domain, part.id.boot)
    }

    fn is_expired(&self, domain: DomainId, id: CommitId) -> bool {
        let confirmed = self.confirmed.get(&(domain, id.boot));
        let but_for = self.but_for.get(&(domain, id.boot)).into_iter().flatten();
        let mut but_for = but_for.filter(|(upto, _)| id.sequence <= *upto);
        confirmed.is_some_and(|upto| id.sequence <= *upto)
            || but_for.any(|(_, open)| !open.contains(&id.sequence))
            || self.is_forgotten(domain, id.boot)
    }

    fn is_forgotten(&self, domain: DomainId, boot: BootId) -> bool {
        let boot = (domain, boot);
        self.forgotten.contains(&boot) || !self.known.contains(&boot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::id::HistoryId;

    const ONE: DomainId = DomainId(1);

    fn told(sequence: u64) -> Message {
        let id = CommitId { boot: BootId(7), sequence };
        let (outcome, history) = (Outcome::Unknown, HistoryId(1));
        Message::Committed { domain: ONE, id, outcome, history }
    }

    fn known() -> Expired {
        let mut expired = Expired::default();
        expired.durable(ONE, &LogRecord::Boot { boot: BootId(7), name: "a".into() });
        let (boot, open) = (BootId(7), Vec::new());
        expired.asked(&Message::Confirm { domain: ONE, boot, upto: 3, open });
        expired
    }

    fn said_but_for_six() -> Expired {
        let (mut expired, boot, open) = (known(), BootId(7), vec![6]);
        expired.asked(&Message::Confirm { domain: ONE, boot, upto: 8, open });
        expired
    }

    #[test]
    fn what_is_confirmed_above_one_that_is_open_may_be() {
        let expired = said_but_for_six();
        expired.answered(&told(5));
        expired.answered(&told(7));
    }

    #[test]
    #[should_panic(expected = "P11")]
    fn what_was_left_open_may_not() {
        said_but_for_six().answered(&told(6));
    }

    #[test]
    fn what_is_confirmed_or_of_a_process_that_is_forgotten_may_be() {
        let mut expired = known();
        expired.answered(&told(3));
        expired.durable(ONE, &LogRecord::Confirmed { boot: BootId(7), upto: u64::MAX });
        expired.answered(&told(4));
    }

    /// Both domains know the process; part 4 of the second was heard of a transaction whose part 3 of the first is
    /// confirmed.
    fn of_two() -> Expired {
        let mut expired = known();
        let two = DomainId(2);
        expired.durable(two, &LogRecord::Boot { boot: BootId(7), name: "a".into() });
        let id = |sequence| CommitId { boot: BootId(7), sequence };
        let parts = vec![PartId { domain: ONE, id: id(3) }, PartId { domain: two, id: id(4) }];
        for part in &parts {
            expired.parts.insert(*part, parts.clone());
        }
        expired
    }

    fn told_of_two() -> Message {
        let id = CommitId { boot: BootId(7), sequence: 4 };
        let (outcome, history) = (Outcome::Unknown, HistoryId(1));
        Message::Committed { domain: DomainId(2), id, outcome, history }
    }

    /// Seed 22410724201143 of two origins: a transaction was refused where it was decided; the node that was told so withdrew
    /// the other part, which was put off, and confirmed the outcome. That part came late all the same: there nobody could
    /// be asked any more, and nobody waited.
    #[test]
    fn a_part_of_what_its_node_has_given_up_may_be() {
        let mut expired = of_two();
        expired.withdrawn(DomainId(2), CommitId { boot: BootId(7), sequence: 4 });
        expired.answered(&told_of_two());
    }

    #[test]
    #[should_panic(expected = "P11")]
    fn a_part_of_what_is_waited_for_may_not() {
        of_two().answered(&told_of_two());
    }

    #[test]
    #[should_panic(expected = "P11")]
    fn what_is_not_confirmed_of_a_known_process_may_not() {
        known().answered(&told(4));
    }
}
