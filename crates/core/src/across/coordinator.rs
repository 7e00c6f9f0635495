//! The side that decides.

use super::Between;
use crate::commit::{Across, PartId};
use crate::id::{Attempt, DomainId, HistoryId};
use crate::record::Decided;
use std::collections::{BTreeMap, BTreeSet};

/// What an attempt waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Next {
    /// The turn of the coordinator's own domain: then [`Coordinator::has_turn`].
    OwnTurn,
    /// The vote of a participant, to which this is to be said.
    Vote(DomainId, Between),
    /// All others are ready: the own part is to be committed, with a record that says so. Then
    /// [`Coordinator::has_decided`].
    Decide,
}

/// An attempt under way. Lost with the process: what is not decided then never will be.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Trying {
    across: Across,
    /// How many domains, in their order, are ready: of the own one, has given its turn.
    ready: usize,
}

/// What a domain coordinates.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Coordinator {
    domain: DomainId,
    history: HistoryId,
    next: u64,
    trying: BTreeMap<Attempt, Trying>,
    /// Durable: decisions, each with the parts that have not followed.
    decided: BTreeMap<Attempt, BTreeSet<PartId>>,
}

impl Coordinator {
    /// Of a domain whose history has just begun, with the decisions that its log and metadata hold: some may
    /// have been followed before the crash, which their participants will say.
    #[must_use]
    pub fn new(domain: DomainId, history: HistoryId, decided: Vec<Decided>) -> Self {
        let parts =
            |decided: Decided| (decided.attempt, decided.participants.into_iter().collect());
        let decided = decided.into_iter().map(parts).collect();
        Self { domain, history, next: 1, trying: BTreeMap::new(), decided }
    }

    /// Begins an attempt at a transaction whose deciding part is here, has no outcome and is under no other
    /// attempt.
    pub fn begin(&mut self, across: Across) -> (Attempt, Next) {
        assert_eq!(across.coordinator().domain, self.domain, "it is decided elsewhere");
        assert!(!self.tries(across.coordinator()), "one attempt at a time");
        let attempt = Attempt { history: self.history, number: self.next };
        self.next += 1;
        let trying = Trying { across, ready: 0 };
        let next = trying.next(attempt, self.domain);
        self.trying.insert(attempt, trying);
        (attempt, next)
    }

    /// Whether an attempt at the transaction of this deciding part is under way.
    #[must_use]
    pub fn tries(&self, part: PartId) -> bool {
        self.trying.values().any(|trying| trying.across.coordinator() == part)
    }

    /// The transaction that an attempt under way is at.
    #[must_use]
    pub fn across(&self, attempt: Attempt) -> Option<&Across> {
        self.trying.get(&attempt).map(|trying| &trying.across)
    }

    /// Attempts under way, ascending.
    pub fn attempts(&self) -> impl Iterator<Item = Attempt> + '_ {
        self.trying.keys().copied()
    }

    /// Whether an attempt waits for this domain's vote.
    #[must_use]
    pub fn waits_for_vote(&self, attempt: Attempt, domain: DomainId) -> bool {
        let waits_for = self.trying.get(&attempt).and_then(Trying::waits_for);
        domain != self.domain && waits_for.is_some_and(|part| part.domain == domain)
    }

    /// It is the own domain's turn. None: the attempt is over.
    pub fn has_turn(&mut self, attempt: Attempt) -> Option<Next> {
        self.ready(attempt, self.domain)
    }

    /// A participant is ready. None: that was known, or the attempt is over. It is in one transaction at a time:
    /// so it has followed what was decided before, though it may not have been heard to say so.
    pub fn is_ready(&mut self, attempt: Attempt, domain: DomainId) -> Option<Next> {
        assert_ne!(domain, self.domain, "the own domain does not vote");
        let next = self.ready(attempt, domain)?;
        for decided in self.decided.keys().copied().collect::<Vec<_>>() {
            self.has_followed(decided, domain);
        }
        Some(next)
    }

    fn ready(&mut self, attempt: Attempt, domain: DomainId) -> Option<Next> {
        let trying = self.trying.get_mut(&attempt)?;
        if trying.waits_for()?.domain != domain {
            return None;
        }
        trying.ready += 1;
        Some(trying.next(attempt, self.domain))
    }

    /// What an attempt waits for, to be said again: messages may be lost.
    #[must_use]
    pub fn waits_for(&self, attempt: Attempt) -> Option<Next> {
        Some(self.trying.get(&attempt)?.next(attempt, self.domain))
    }

    /// The attempt is over, and nothing was committed. Whom to tell.
    pub fn give_up(&mut self, attempt: Attempt) -> Vec<(DomainId, Between)> {
        let Some(trying) = self.trying.remove(&attempt) else {
            return Vec::new();
        };
        let asked = &trying.across.parts()[..trying.across.parts().len().min(trying.ready + 1)];
        let others = asked.iter().filter(|part| part.domain != self.domain);
        others.map(|part| (part.domain, Between::Release { attempt })).collect()
    }

    /// What the record of the deciding commit says.
    #[must_use]
    pub fn decision(&self, attempt: Attempt) -> Option<Decided> {
        let trying = self.trying.get(&attempt).filter(|trying| trying.waits_for().is_none())?;
        Some(Decided { attempt, participants: trying.across.participants().collect() })
    }

    /// That record is durable. Whom to tell.
    pub fn has_decided(&mut self, attempt: Attempt) -> Vec<(DomainId, Between)> {
        let decided = self.decision(attempt).expect("all are ready");
        self.trying.remove(&attempt);
        self.decided.insert(attempt, decided.participants.into_iter().collect());
        self.tell(attempt)
    }

    /// A participant is in doubt. Of what is under way nobody knows; of what is neither under way nor decided
    /// the coordinator has lost its memory, or has given it up: it will never be committed.
    #[must_use]
    pub fn asked(&self, attempt: Attempt, domain: DomainId) -> Option<Between> {
        let decided = self.decided.get(&attempt);
        if decided.is_some_and(|left| left.iter().any(|part| part.domain == domain)) {
            return Some(Between::Decide { attempt });
        }
        (!self.trying.contains_key(&attempt)).then_some(Between::Release { attempt })
    }

    /// A participant has committed its part, durably.
    pub fn has_followed(&mut self, attempt: Attempt, domain: DomainId) {
        if let Some(left) = self.decided.get_mut(&attempt) {
            left.retain(|part| part.domain != domain);
            if left.is_empty() {
                self.decided.remove(&attempt);
            }
        }
    }

    /// Whether there are attempts under way, or decisions that were not followed yet.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.trying.is_empty() && self.decided.is_empty()
    }

    /// Decisions that were not followed yet, to be told again.
    #[must_use]
    pub fn untold(&self) -> Vec<(DomainId, Between)> {
        self.decided.keys().flat_map(|attempt| self.tell(*attempt)).collect()
    }

    /// For the metadata: ascending.
    #[must_use]
    pub fn meta(&self) -> Vec<Decided> {
        let decided = self.decided.iter().map(|(attempt, left)| Decided {
            attempt: *attempt,
            participants: left.iter().copied().collect(),
        });
        decided.collect()
    }

    fn tell(&self, attempt: Attempt) -> Vec<(DomainId, Between)> {
        let left = self.decided.get(&attempt).into_iter().flatten();
        left.map(|part| (part.domain, Between::Decide { attempt })).collect()
    }

    /// Panics when an invariant is broken.
    pub fn check(&self) {
        let parts: BTreeSet<PartId> =
            self.trying.values().map(|trying| trying.across.coordinator()).collect();
        assert_eq!(parts.len(), self.trying.len(), "two attempts at one transaction");
        for attempt in self.trying.keys() {
            assert_eq!(attempt.history, self.history, "an attempt outlived its process");
            assert!(attempt.number < self.next, "an attempt of a number not given");
            assert!(!self.decided.contains_key(attempt), "it is decided, and under way");
        }
    }
}

impl Trying {
    /// The part of the domain that is next; none: all are ready.
    fn waits_for(&self) -> Option<PartId> {
        self.across.parts().get(self.ready).copied()
    }

    fn next(&self, attempt: Attempt, own: DomainId) -> Next {
        match self.waits_for() {
            None => Next::Decide,
            Some(part) if part.domain == own => Next::OwnTurn,
            Some(PartId { domain, id: part }) => {
                let coordinator = self.across.coordinator();
                Next::Vote(domain, Between::Prepare { attempt, coordinator, part })
            }
        }
    }
}
