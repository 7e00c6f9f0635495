//! Who is a group's redirector, among those who are there.

use super::config::{Candidacy, Participant};
use super::line::Lines;
use crate::group::MEMBERS_MAX;
use crate::id::BootId;
use crate::machine::{Fault, Faults};
use crate::time::{Duration, Instant};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// No claim of a higher term is believed: raised once a millisecond, it is reached in thousands of years.
const TERM_MAX: u64 = 1 << 48;

/// Somebody says to be the redirector. Of two the greater is followed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Claim {
    /// Raised a while after it was made, if at least half of those are there who were before: one more
    /// than any that is known then.
    pub term: u64,
    /// Who makes it has seen so many at once since, itself among them.
    pub weight: u32,
    /// Who makes it. Of two claims that are alike otherwise that of the lower life is followed.
    pub leader: BootId,
}

impl Claim {
    fn order(self) -> (u64, u32, Reverse<BootId>) {
        (self.term, self.weight, Reverse(self.leader))
    }
}

type There = BTreeMap<BootId, Participant>;

/// How many follow whoever is there: of more than are believed, as many as are.
fn weight(there: &There) -> u32 {
    there.len().min(MEMBERS_MAX) as u32
}

/// Whom one process follows.
#[derive(Debug)]
pub(super) struct Election {
    own: Participant,
    faults: Faults,
    /// It is there, or was when it was looked at last.
    followed: Option<Claim>,
    /// The highest term that was heard of.
    term: u64,
    /// Most that were there at once since somebody else was followed.
    most: usize,
    /// No claim is made before then; none: not begun.
    settled_at: Option<Instant>,
    settled: bool,
    /// Since when nobody is followed; none: not begun, or somebody is.
    alone_since: Option<Instant>,
    /// When a process whose line is cut waits for others no longer.
    patient_until: Option<Instant>,
    /// Somebody follows a claim of this process that it gave up.
    named: bool,
    /// When this process's claim is to be raised, and how many were there before it was made.
    raise_at: Option<(Instant, usize)>,
}

impl Election {
    pub(super) fn new(own: Participant, faults: Faults) -> Self {
        Self {
            own,
            faults,
            followed: None,
            term: 0,
            most: 0,
            settled_at: None,
            settled: false,
            alone_since: None,
            patient_until: None,
            named: false,
            raise_at: None,
        }
    }

    pub(super) fn begin(&mut self, settled_at: Instant) {
        self.settled_at = Some(settled_at);
    }

    pub(super) fn followed(&self) -> Option<Claim> {
        self.followed
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let settled_at = self.settled_at.filter(|_| !self.settled);
        [settled_at, self.raise_at(), self.patient_until].into_iter().flatten().min()
    }

    /// When this process's claim is to be raised.
    pub(super) fn raise_at(&self) -> Option<Instant> {
        self.raise_at.map(|(at, _)| at)
    }

    /// It is to be so much later.
    pub(super) fn put_off(&mut self, by: Duration) {
        self.raise_at = self.raise_at.map(|(at, most)| (at.after(by), most));
    }

    pub(super) fn leave(&mut self) {
        (self.followed, self.raise_at, self.patient_until) = (None, None, None);
    }

    /// Somebody follows this claim. It counts when who made it is there, and may make it. What others say of this
    /// process's own claims is of the past: if it made way since, and would not know by what it follows that
    /// others are better followed, it must claim anew, or who says so has nobody who leads.
    pub(super) fn heard(&mut self, claim: Claim, there: &There) {
        if there.get(&claim.leader).is_none_or(|one| one.candidacy == Candidacy::Never) {
            return;
        }
        // Nobody comes to such a one by itself; were it believed, no honest claim could exceed it.
        if claim.term > TERM_MAX || claim.weight as usize > MEMBERS_MAX {
            crate::probe::probe("claim-beyond-belief");
            return;
        }
        self.term = self.term.max(claim.term);
        if claim.leader == self.own.life {
            self.named |= self.followed.is_none_or(|followed| {
                followed.leader != self.own.life && claim.order() > followed.order()
            });
            return;
        }
        if self.faults.has(Fault::LeadsOn) && self.leads() {
            return;
        }
        let older = self.faults.has(Fault::FollowsOlder);
        let followed = self.followed.filter(|followed| there.contains_key(&followed.leader));
        let is_newer = |followed: Claim| (claim.order() > followed.order()) != older;
        if followed.is_none_or(|followed| followed != claim && is_newer(followed)) {
            self.follow(claim, there);
        }
    }

    fn leads(&self) -> bool {
        self.followed.is_some_and(|claim| claim.leader == self.own.life)
    }

    fn follow(&mut self, claim: Claim, there: &There) {
        let before = self.followed.replace(claim);
        if before.is_none_or(|before| before.leader != claim.leader) {
            if self.own.life != claim.leader && before.is_some_and(|it| it.leader == self.own.life)
            {
                crate::probe::probe("redirector-gives-way");
            }
            self.most = there.len();
            self.raise_at = None;
        }
    }

    /// Looks who is there now; says whether this process makes a new claim. `last` is how long it takes until
    /// the last of so many that are gone is known to be. Who gave way since his line was cut waits for others, for
    /// `patience` if nobody is followed.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        (there, lines): (&There, &Lines),
        last: impl Fn(usize) -> Duration,
        patience: Duration,
    ) -> bool {
        self.settled |= self.settled_at.is_some_and(|at| at <= now);
        let is_gone = |claim: &Claim| !there.contains_key(&claim.leader);
        let dead = self.faults.has(Fault::DeadIsFollowed);
        if self.followed.as_ref().is_some_and(is_gone) && !dead {
            crate::probe::probe("redirector-is-gone");
            self.followed = None;
        }
        if self.followed.is_some() {
            self.most = self.most.max(there.len());
        }
        if let Some(claim) = self.followed.as_mut().filter(|claim| claim.leader == self.own.life) {
            claim.weight = claim.weight.max(weight(there));
        }
        if self.raise_at.is_some_and(|(at, _)| at <= now) {
            return self.raise(there);
        }
        self.alone_since = match self.followed {
            None if self.settled => Some(self.alone_since.unwrap_or(now)),
            _ => None,
        };
        let until = self.alone_since.map(|since| since.after(patience));
        let waited = until.is_some_and(|until| until <= now);
        self.patient_until = until.filter(|_| !waited && lines.is_cut(self.own.life));
        let named = std::mem::take(&mut self.named);
        if named {
            crate::probe::probe("follower-of-a-claim-given-up");
        }
        if !self.settled || !(named || self.is_wanted(now, there, lines, waited)) {
            return false;
        }
        // Another one that is there, and a claim that was given up, give way to nothing less.
        let raised = u64::from(named || self.followed.is_some());
        self.term = (self.term + raised).min(TERM_MAX);
        let (term, weight, most) = (self.term, weight(there), self.most);
        self.follow(Claim { term, weight, leader: self.own.life }, there);
        self.raise_at = Some((now.after(last(most)), most));
        true
    }

    /// By now it is known of all that are gone. A part of less than half gives way when it meets the other
    /// one: its claim stays as it is.
    fn raise(&mut self, there: &There) -> bool {
        let Some((_, most)) = self.raise_at.take() else { return false };
        let Some(claim) = self.followed.as_mut().filter(|claim| claim.leader == self.own.life)
        else {
            return false;
        };
        if 2 * there.len() < most {
            crate::probe::probe("claim-of-the-smaller-part");
            return false;
        }
        self.term = (self.term + 1).min(TERM_MAX);
        claim.term = self.term;
        true
    }

    /// Whether it is this process that should be the redirector now, and is not. `waited`: it has been alone for long.
    fn is_wanted(&self, now: Instant, there: &There, lines: &Lines, waited: bool) -> bool {
        let own = self.own.life;
        if let Some(claim) = self.followed
            && lines.takes_over(now, claim.leader, there)
        {
            crate::probe::probe("cut-redirector-is-replaced");
            return true;
        }
        // Who knows that his line is cut leaves it to others, and to whom they know of less. In each one's eyes
        // the first of all claims in the end: at once if he does not know himself cut, later if he does.
        if lines.is_cut(own) && !waited {
            return false;
        }
        let whole =
            |one: &&Participant| one.life == own || lines.is_cut(own) || !lines.is_cut(one.life);
        let may = there.values().filter(|one| one.candidacy != Candidacy::Never).filter(whole);
        let first = may.min_by_key(|one| (one.candidacy, one.life));
        if first.is_none_or(|first| first.life != own) {
            return false;
        }
        let Some(claim) = self.followed else { return true };
        // One that is pinned waits for nobody who is not.
        let followed = there.get(&claim.leader).map(|one| one.candidacy);
        self.own.candidacy == Candidacy::Pinned && followed != Some(Candidacy::Pinned)
    }

    pub(super) fn check(&self) {
        if let Some(claim) = self.followed {
            assert!(claim.term <= self.term, "the highest term is known");
        }
    }
}
