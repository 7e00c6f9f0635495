//! Commits of which a node says that they are not done, and never will be (P11): none of them is in a log, however much of it
//! was sent before it was turned away.

use larder_core::id::{CommitId, DomainId};
use larder_core::record::LogRecord;
use std::collections::BTreeSet;

/// What was withdrawn, and what was durable, at any time.
#[derive(Debug, Default)]
pub struct Withdrawn {
    not_done: BTreeSet<(DomainId, CommitId)>,
    done: BTreeSet<(DomainId, CommitId)>,
}

impl Withdrawn {
    /// A domain loses what was durable: it may be said not to be done.
    pub fn branch(&mut self, domain: DomainId) {
        self.done.retain(|(of, _)| *of != domain);
    }

    /// A node has withdrawn a commit. Panics if it is done.
    pub fn said(&mut self, domain: DomainId, id: CommitId) {
        self.not_done.insert((domain, id));
        self.check(domain, id);
    }

    /// A record is durable. Panics if it is a commit that was withdrawn.
    pub fn durable(&mut self, domain: DomainId, record: &LogRecord) {
        if let LogRecord::Commit { id, .. } = record {
            self.done.insert((domain, *id));
            self.check(domain, *id);
        }
    }

    fn check(&self, domain: DomainId, id: CommitId) {
        let both = self.done.contains(&(domain, id)) && self.not_done.contains(&(domain, id));
        assert!(!both, "P11: {id:?} of {domain:?} was said not to be done, and is in the log");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::id::{BootId, Stamp};
    use larder_core::time::WallTime;

    const ONE: DomainId = DomainId(1);

    fn commit(sequence: u64) -> (CommitId, LogRecord) {
        let id = CommitId { boot: BootId(7), sequence };
        let (grown, writes) = (Vec::new(), Vec::new());
        let (stamp, time, decided) = (Stamp(sequence), WallTime(0), None);
        (id, LogRecord::Commit { stamp, id, time, grown, writes, decided })
    }

    #[test]
    fn others_may_be_done() {
        let mut withdrawn = Withdrawn::default();
        withdrawn.said(ONE, commit(1).0);
        withdrawn.durable(ONE, &commit(2).1);
        withdrawn.durable(DomainId(2), &commit(1).1);
    }

    #[test]
    fn what_a_restore_lost_is_not_done() {
        let mut withdrawn = Withdrawn::default();
        withdrawn.durable(ONE, &commit(1).1);
        withdrawn.branch(ONE);
        withdrawn.said(ONE, commit(1).0);
    }

    #[test]
    #[should_panic(expected = "P11")]
    fn what_was_withdrawn_is_not_done_later() {
        let mut withdrawn = Withdrawn::default();
        withdrawn.said(ONE, commit(1).0);
        withdrawn.durable(ONE, &commit(1).1);
    }

    #[test]
    #[should_panic(expected = "P11")]
    fn what_is_done_is_not_withdrawn() {
        let mut withdrawn = Withdrawn::default();
        withdrawn.durable(ONE, &commit(1).1);
        withdrawn.said(ONE, commit(1).0);
    }
}
