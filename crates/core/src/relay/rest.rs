//! What a relay has under way; see `crate::rest`.

use super::Relay;
use super::domain::RelayDomain;
use super::uplinks::Uplink;
use crate::group::directory::Directory;
use crate::id::{BootId, DomainId, LinkId, PageId};
use crate::rest::first;

impl Relay {
    /// What is under way here, in words: when nobody asks for anything any more, nothing.
    #[must_use]
    pub fn under_way(&self) -> Option<String> {
        if self.uplinks.iter().any(|uplink| !uplink.is_welcomed()) {
            return Some("a parent has not welcomed it".into());
        }
        let ups = self.uplinks.iter().filter_map(Uplink::welcomed);
        let unanswered: u32 = ups.map(|up| up.unanswered).sum();
        let claimed = |(domain, boot): &(DomainId, BootId)| self.links.is_claimed(*domain, *boot);
        let own = first(&[
            ("requests counted as asked for", unanswered as usize),
            ("requests", self.pending.len()),
            ("requests to be sent", self.uplinks.iter().map(|uplink| uplink.waiting.len()).sum()),
            ("deadlines", self.deadlines.len()),
            ("pages between neighbours", self.group.as_ref().map_or(0, Directory::transfers)),
            ("commits passed on", self.commits.len()),
            ("commits that found no room", self.held.len()),
            ("boots not registered", self.boots.values().filter(|boot| !boot.registered()).count()),
            ("boots of nobody", self.boots.keys().filter(|key| !claimed(key)).count()),
        ]);
        let domains = || {
            let mut domains = self.domains.values();
            domains.find_map(|domain| Some(format!("{:?}: {}", domain.id, domain.under_way()?)))
        };
        own.or_else(domains).or_else(|| self.links.under_way())
    }

    /// What the child of a link is registered for, by domain; none: everything.
    #[must_use]
    pub fn registrations(&self, link: LinkId) -> Vec<(DomainId, Option<Vec<PageId>>)> {
        self.links.registrations(link)
    }

    /// Whether its parent may take the page for held below: a child is registered for it, or is being
    /// brought it.
    #[must_use]
    pub fn keeps(&self, domain: DomainId, page: PageId) -> bool {
        let fetched =
            self.domains.get(&domain).is_some_and(|entry| entry.fetching.contains_key(&page));
        fetched || self.is_held_below(domain, page)
    }

    /// Processes below that are believed to be there, with their lives.
    #[must_use]
    pub fn present(&self) -> Vec<(String, BootId)> {
        self.links.present()
    }
}

impl RelayDomain {
    fn under_way(&self) -> Option<String> {
        first(&[
            ("streams that do not run", usize::from(!self.following)),
            ("pages asked for", self.fetching.len()),
            ("commits kept for neighbours", self.updates.len()),
            ("resumes asked for", self.resuming as usize),
            ("refreshes without an answer", self.refreshes_waiting()),
            ("lists announced", usize::from(self.announced.is_some())),
            ("lists due", usize::from(self.narrow_at.is_some())),
        ])
    }
}
