//! All objects of a volume, page by page.

use super::{Error, Object, Result, Session, Volume};
use larder_core::id::{PageId, PageNo};
use std::collections::VecDeque;

/// Pages fetched and read in one transaction.
const BATCH: u64 = 64;

/// Goes through the objects of a volume's slotted pages, ascending. Each batch of pages is read in
/// a transaction of its own: pages are exact each, and the whole is of no one moment.
pub struct Scan {
    volume: Volume,
    session: Session,
    next: u64,
    limit: PageNo,
    found: VecDeque<(PageId, Vec<Object>)>,
}

impl Volume {
    /// Goes through all objects, of the pages there are now.
    pub async fn scan(&self, session: &Session) -> Result<Scan> {
        Ok(Scan {
            volume: self.clone(),
            session: session.clone(),
            next: 1,
            limit: self.page_limit().await?,
            found: VecDeque::new(),
        })
    }
}

impl Scan {
    /// The next page that holds objects, and these, ascending by slot.
    pub async fn next(&mut self) -> Result<Option<(PageId, Vec<Object>)>> {
        while self.found.is_empty() && self.next < self.limit.0 {
            let end = self.next.saturating_add(BATCH).min(self.limit.0);
            let pages: Vec<PageId> =
                (self.next..end).map(|page| self.volume.page(PageNo(page))).collect();
            let read = |tx: super::Transaction| {
                let pages = &pages;
                async move {
                    tx.fetch(pages).await?;
                    let mut found = VecDeque::new();
                    for &page in pages {
                        match tx.read_all(page).await? {
                            Some(objects) if !objects.is_empty() => {
                                found.push_back((page, objects));
                            }
                            _ => {}
                        }
                    }
                    Ok::<_, Error>(found)
                }
            };
            self.found = self.session.read(read).await?;
            self.next = end;
        }
        Ok(self.found.pop_front())
    }
}
