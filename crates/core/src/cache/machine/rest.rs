//! What a node has under way; see `crate::rest`.

use super::domain::{Domain, Stream};
use super::{Cache, Link};
use crate::id::{CommitId, DomainId, PageId};
use crate::rest::first;

impl Cache {
    /// Commits that were withdrawn since this was asked last: they are not done.
    #[must_use]
    pub fn take_withdrawn(&mut self) -> Vec<(DomainId, CommitId)> {
        let of = |(domain, entry): (&DomainId, &mut Domain)| {
            let ids = std::mem::take(&mut entry.commits.withdrawn);
            ids.into_iter().map(|id| (*domain, id)).collect::<Vec<_>>()
        };
        self.domains.iter_mut().flat_map(of).collect()
    }

    /// What is under way here, in words: when nobody asks for anything any more, nothing.
    #[must_use]
    pub fn under_way(&self) -> Option<String> {
        if !self.connected() {
            return Some("no parent has welcomed it".into());
        }
        let links = || self.links.values().find_map(Link::under_way);
        let own = first(&[
            ("requests of users", self.users.len()),
            ("deadlines", self.deadlines.len()),
            ("calls to be sent", self.calls.len()),
            ("volumes to be asked about", self.doubts.len()),
            ("pages gathered for requests", self.memory.pinned()),
            ("pages that neighbours wait for", self.helps.len()),
            ("transactions in the table", self.shared.running().count()),
            ("transactions over several domains", self.wholes.under_way()),
        ]);
        let domains = self.domains.iter();
        let domains = || {
            domains
                .into_iter()
                .find_map(|(id, entry)| Some(format!("{id:?}: {}", entry.under_way()?)))
        };
        own.or_else(links).or_else(domains)
    }

    /// Whether the parent may take the page for held: it is, or is on its way, or the parent is about to
    /// hear that it is not.
    #[must_use]
    pub fn keeps(&self, domain: DomainId, page: PageId) -> bool {
        self.domains.get(&domain).is_some_and(|entry| entry.keeps(page))
    }
}

impl Link {
    fn under_way(&self) -> Option<String> {
        // Fetches that failed stay until the link ends, a few of them: late answers are known by them.
        first(&[
            ("requests and pages counted as asked for", self.outstanding),
            ("fetches sent", self.fetches.len()),
            ("pages to come from neighbours", self.transfers.len()),
            ("pages that came before their word", self.transfers.early()),
            ("calls sent", self.calls.len()),
            ("calls that wait for room", self.waiting.len()),
            ("questions after volumes", self.doubts.len()),
        ])
    }
}

impl Domain {
    fn under_way(&self) -> Option<String> {
        let (running, kept) = self.state.snapshots();
        let own = first(&[
            ("streams that do not run", usize::from(!matches!(self.stream(), Stream::Live(_)))),
            ("users who wait for a stamp", self.waits.len()),
            ("users who wait for the latest", self.refreshes.len()),
            ("users who wait for the stream", self.openings.len()),
            ("refreshes without an answer", self.refreshes_sent.len()),
            ("commits of neighbours ahead of the stream", self.updates.len()),
            ("stamps told ahead of the stream", self.told.len()),
            ("snapshots that run", running),
            ("pages kept for snapshots", kept),
        ]);
        let flights = || self.flights.under_way();
        own.or_else(flights)
            .or_else(|| self.holdings.under_way())
            .or_else(|| self.commits.under_way())
    }

    fn keeps(&self, page: PageId) -> bool {
        self.holdings.keeps(page) || self.concerns(page)
    }
}
