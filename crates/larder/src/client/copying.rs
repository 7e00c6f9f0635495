//! What backups need of a volume beside transactions: its pages past the cache, and pages made as
//! they once were.

use super::transaction::outcome_of;
use super::{Error, Result, Volume, ids};
use larder_core::cache::io::{CacheOp, CacheReply};
use larder_core::commit::{Outcome, Write};
use larder_core::id::{PageNo, Stamp};
use larder_core::message::{CopyAnswer, CopyAsk};

/// Most page numbers that an origin gives at once.
const NUMBERS_MAX: u64 = 1 << 24;

impl Volume {
    /// Asks for a part of a copy. [`Error::Unavailable`] may pass.
    pub(crate) async fn copy_pages(&self, ask: CopyAsk) -> Result<CopyAnswer> {
        let shared = self.node().shared();
        match shared.requests.ask(CacheOp::CopyPages(Box::new(ask)), shared.request_limit()).await?
        {
            CacheReply::Copied(answer) => Ok(*answer),
            other => unreachable!("a part of a copy was asked for: {other:?}"),
        }
    }

    /// Commits writes of which nothing was read, past any transaction.
    pub(crate) async fn commit_writes(&self, writes: Vec<Write>) -> Result<Stamp> {
        let (shared, domain) = (self.node().shared(), self.domain());
        let line = self.line();
        let history = self.history().ok_or_else(|| Error::Unavailable("no stream yet".into()))?;
        let checked = self.valid_through();
        let limit = shared.request_limit();
        let op = CacheOp::Commit { domain, history, checked, reads: Vec::new(), writes };
        let answer = shared.requests.ask_raw(op, limit).await;
        let mut outcome = outcome_of(answer, (domain, line), limit);
        // The node goes on asking as long as it lives.
        while let Err(Error::OutcomeUnknown(Some(doubt))) = &outcome
            && !doubt.lost
        {
            let op = CacheOp::Outcome { domain, commit: doubt.commit };
            let answer = shared.requests.ask_raw(op, limit).await;
            let again = outcome_of(answer, (domain, line), limit);
            if let Err(Error::Unavailable(_)) = again {
                // It was not asked.
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
                continue;
            }
            outcome = again;
        }
        match outcome? {
            Outcome::Committed(stamp) => Ok(stamp),
            Outcome::Aborted(abort) => Err(abort.into()),
            Outcome::Unknown => unreachable!("the cache says that it is in doubt"),
        }
    }

    /// Sees to it that all page numbers below this one are given away, and used by nobody.
    pub(crate) async fn give_away_below(&self, next: PageNo) -> Result<()> {
        let shared = self.node().shared();
        let mut count = 1;
        loop {
            let range = ids::ask(shared, self.id(), count, shared.request_limit()).await?;
            let given = range.first.0 + range.count;
            if given >= next.0 {
                return Ok(());
            }
            count = (next.0 - given).min(NUMBERS_MAX);
        }
    }
}
