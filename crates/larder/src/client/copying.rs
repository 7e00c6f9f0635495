//! What backups need of a volume beside transactions: its pages past the cache, and pages made as
//! they once were.

use super::requests::{NoAnswer, reply_of};
use super::transaction::outcome_of;
use super::{Error, Result, Volume, ids};
use crate::clock::now;
use crate::fs::SlottedPages;
use larder_core::cache::io::{CacheOp, CacheReply};
use larder_core::commit::{Outcome, PageKind, Write};
use larder_core::id::{HistoryId, PageNo, Stamp};
use larder_core::message::{CopyAnswer, CopyAsk, PageBody, RequestError};
use larder_core::page::Page;
use std::collections::BTreeMap;
use std::time::Duration;

/// Most page numbers that an origin gives at once.
const NUMBERS_MAX: u64 = 1 << 24;

/// While the origin cannot tell a part of a copy it is asked again so often, and so long.
const PAUSE: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(120);

/// Why a part of a copy was not told.
#[derive(Debug)]
pub(crate) enum NotCopied {
    /// All places for copies are taken by others, who will end.
    Busy(String),
    /// [`Error::Unavailable`] may pass.
    Failed(Error),
}

impl From<NotCopied> for Error {
    fn from(error: NotCopied) -> Self {
        match error {
            NotCopied::Busy(reason) => Self::Unavailable(reason),
            NotCopied::Failed(error) => error,
        }
    }
}

impl Volume {
    /// Asks for a part of a copy.
    pub(crate) async fn copy_pages(&self, ask: CopyAsk) -> Result<CopyAnswer, NotCopied> {
        let shared = self.node().shared();
        let limit = shared.request_limit();
        let op = CacheOp::CopyPages(Box::new(ask));
        let answer = shared.requests.ask_raw(op, limit).await;
        if let Ok(Err(RequestError::Busy(reason))) = answer {
            return Err(NotCopied::Busy(reason));
        }
        match reply_of(answer, limit).map_err(NotCopied::Failed)? {
            CacheReply::Copied(answer) => Ok(*answer),
            other => unreachable!("a part of a copy was asked for: {other:?}"),
        }
    }

    /// The first part of a round that tells of all pages.
    pub(crate) fn copy_from_zero(&self) -> CopyAsk {
        let (volume, history) = (self.id(), HistoryId::default());
        CopyAsk { volume, history, since: Stamp::ZERO, cursor: None, pin: None }
    }

    /// Which pages are slotted, and which are damaged: by a round of a copy, of which nothing is kept.
    pub(crate) async fn slotted_pages(&self) -> Result<SlottedPages> {
        let mut ask = self.copy_from_zero();
        let mut found: BTreeMap<PageNo, Option<bool>> = BTreeMap::new();
        loop {
            let answer = self.copy_again(&ask).await?;
            for page in answer.pages {
                let number = page.page.page;
                let slotted = match page.body {
                    PageBody::Absent | PageBody::Valid => {
                        found.remove(&number);
                        continue;
                    }
                    PageBody::Holed(..) => None,
                    PageBody::Data(image) => Page::decode(page.page, image).ok(),
                };
                found.insert(number, slotted.map(|page| page.kind() == PageKind::Slotted));
            }
            match answer.cursor {
                Some(cursor) => ask.cursor = Some(cursor),
                None => break,
            }
        }
        let of = |wanted: Option<bool>| {
            let pages = found.iter().filter(move |(_, slotted)| **slotted == wanted);
            pages.map(|(page, _)| *page).collect()
        };
        Ok(SlottedPages { pages: of(Some(true)), damaged: of(None) })
    }

    /// Asks for a part until it is told, or will not be.
    pub(crate) async fn copy_again(&self, ask: &CopyAsk) -> Result<CopyAnswer> {
        let began = now();
        loop {
            match self.copy_pages(ask.clone()).await {
                Err(NotCopied::Busy(_) | NotCopied::Failed(Error::Unavailable(_)))
                    if now().since(began) < PATIENCE =>
                {
                    tokio::time::sleep(PAUSE).await;
                }
                other => return Ok(other?),
            }
        }
    }

    /// Commits writes of which nothing was read, past any transaction.
    pub(crate) async fn commit_writes(&self, writes: Vec<Write>) -> Result<Stamp> {
        let (shared, domain) = (self.node().shared(), self.domain());
        let line = self.line();
        let history = self.history().ok_or_else(|| Error::Unavailable("no stream yet".into()))?;
        let checked = self.valid_through();
        let limit = shared.request_limit();
        let (reads, named) = (Vec::new(), Vec::new());
        let op = CacheOp::Commit { domain, history, checked, reads, writes, named };
        let answer = shared.requests.ask_raw(op, limit).await;
        let mut outcome = outcome_of(answer, (domain, line), limit);
        // The node goes on asking as long as it lives.
        while let Err(Error::OutcomeUnknown(Some(doubt))) = &outcome
            && !doubt.lost
        {
            let op = CacheOp::Outcome { domain, commit: doubt.commit };
            let answer = shared.requests.ask_raw(op, limit).await;
            if let Ok(Err(RequestError::Busy(_))) | Err(NoAnswer::Full) = answer {
                // It was not asked.
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            outcome = outcome_of(answer, (domain, line), limit);
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
