//! What the origin may hold in its tables beside the durable log: commits that reached it and have no answer.

use larder_core::id::{CommitId, DomainId};
use larder_core::message::Message;
use larder_core::record::LogRecord;
use std::collections::BTreeMap;

/// Writes of those commits, by domain and commit.
#[derive(Debug, Default)]
pub struct UnderWay(BTreeMap<(DomainId, CommitId), usize>);

impl UnderWay {
    /// Writes that reached a domain, of commits that are neither durable nor answered.
    #[must_use]
    pub fn writes(&self, domain: DomainId) -> usize {
        let first = (domain, CommitId::default());
        self.0.range(first..).take_while(|((of, _), _)| *of == domain).map(|(_, count)| count).sum()
    }

    /// The origin hears something.
    pub fn asked(&mut self, message: &Message) {
        if let Message::Commit { domain, commit } = message {
            // What only asks for its outcome joins one that waits, if there is one.
            let writes = self.0.entry((*domain, commit.id)).or_default();
            *writes = commit.writes.len().max(*writes);
        }
    }

    /// The origin says something.
    pub fn answered(&mut self, message: &Message) {
        if let Message::Committed { domain, id, .. } | Message::CommitDeferred { domain, id, .. } =
            message
        {
            self.0.remove(&(*domain, *id));
        }
    }

    /// A record is durable.
    pub fn durable(&mut self, domain: DomainId, record: &LogRecord) {
        if let LogRecord::Commit { id, .. } | LogRecord::Aborted { id, .. } = record {
            self.0.remove(&(domain, *id));
        }
    }

    /// The origin serves a domain anew: it remembers nothing else.
    pub fn recovered(&mut self, domain: DomainId) {
        self.0.retain(|(of, _), _| *of != domain);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::commit::{CommitRequest, Op, Outcome, Write};
    use larder_core::id::{BootId, HistoryId, PageId, Stamp};

    #[test]
    fn what_is_asked_is_under_way_until_it_is_answered_or_the_domain_begins_anew() {
        let (one, two) = (DomainId(1), DomainId(2));
        let commit = |sequence| CommitRequest {
            id: CommitId { boot: BootId(7), sequence },
            confirmed: 0,
            history: HistoryId(1),
            base: Stamp(1),
            numbers: Vec::new(),
            reads: Vec::new(),
            writes: vec![Write { page: PageId::default(), op: Op::DeletePage }; 3],
            across: None,
        };
        let mut under_way = UnderWay::default();
        for (domain, sequence) in [(one, 1), (one, 2), (two, 1)] {
            under_way.asked(&Message::Commit { domain, commit: commit(sequence) });
        }
        assert_eq!((under_way.writes(one), under_way.writes(two)), (6, 3));
        let (id, outcome) = (commit(1).id, Outcome::Committed(Stamp(2)));
        let history = HistoryId(1);
        under_way.answered(&Message::Committed { domain: one, id, outcome, history });
        assert_eq!((under_way.writes(one), under_way.writes(two)), (3, 3));
        under_way.recovered(one);
        assert_eq!((under_way.writes(one), under_way.writes(two)), (0, 3));
    }
}
