//! Acknowledgement in stamp order (design section 2, rule 14): a domain's commits are answered in
//! the order of their stamps, over all links together. A commit that was asked for again is answered
//! whenever it is: its first answer may have been lost with its link.

use larder_core::id::{CommitId, DomainId, Stamp};
use std::collections::{BTreeMap, BTreeSet};

/// What the origin was asked for and has answered, in one life of its process.
#[derive(Clone, Debug, Default)]
pub struct Acks {
    asked: BTreeSet<(DomainId, CommitId)>,
    /// Asked for more than once, in this life or before.
    again: BTreeSet<(DomainId, CommitId)>,
    /// The last stamp answered, and to whom.
    last: BTreeMap<DomainId, (Stamp, CommitId)>,
}

impl Acks {
    /// The origin is asked for a commit.
    pub fn asked(&mut self, domain: DomainId, id: CommitId) {
        if !self.asked.insert((domain, id)) {
            self.again.insert((domain, id));
        }
    }

    /// A domain is served again by a process that starts: what was asked for before may be asked for again, and
    /// stamps that were not durable are given again.
    pub fn restarted(&mut self, domain: DomainId) {
        self.last.remove(&domain);
    }

    /// The origin answers that a commit, which is in the log, is done. Panics when one with a higher
    /// stamp was answered before.
    pub fn answered(&mut self, domain: DomainId, id: CommitId, stamp: Stamp) {
        if self.again.contains(&(domain, id)) {
            return;
        }
        let before = self.last.insert(domain, (stamp, id));
        assert!(
            before.is_none_or(|(last, _)| last < stamp),
            "rule 14: {domain:?} acknowledges {id:?} as commit {stamp} after {before:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::id::BootId;

    const ONE: DomainId = DomainId(1);

    fn id(sequence: u64) -> CommitId {
        CommitId { boot: BootId(1), sequence }
    }

    fn asked(ids: &[u64]) -> Acks {
        let mut acks = Acks::default();
        ids.iter().for_each(|sequence| acks.asked(ONE, id(*sequence)));
        acks
    }

    #[test]
    fn answers_in_stamp_order_pass() {
        let mut acks = asked(&[1, 2, 3]);
        acks.asked(DomainId(2), id(1));
        acks.answered(ONE, id(2), Stamp(4));
        acks.answered(ONE, id(1), Stamp(7));
        // Another domain has stamps of its own.
        acks.answered(DomainId(2), id(1), Stamp(1));
        acks.answered(ONE, id(3), Stamp(8));
    }

    #[test]
    #[should_panic(expected = "rule 14: DomainId(1) acknowledges")]
    fn an_answer_that_overtakes_is_found() {
        let mut acks = asked(&[1, 2]);
        acks.answered(ONE, id(2), Stamp(5));
        acks.answered(ONE, id(1), Stamp(4));
    }

    #[test]
    #[should_panic(expected = "rule 14")]
    fn a_stamp_acknowledged_twice_is_found() {
        let mut acks = asked(&[1, 2]);
        acks.answered(ONE, id(1), Stamp(5));
        acks.answered(ONE, id(2), Stamp(5));
    }

    #[test]
    fn a_repetition_is_answered_at_any_time() {
        let mut acks = asked(&[1, 2, 1]);
        acks.answered(ONE, id(2), Stamp(5));
        acks.answered(ONE, id(1), Stamp(4));
        // After a start stamps above the durable one are given again.
        acks.asked(ONE, id(3));
        acks.restarted(ONE);
        acks.answered(ONE, id(3), Stamp(5));
    }
}
