//! What an origin has under way; see `crate::rest`.

use super::Origin;
use crate::id::{BootId, DomainId, LinkId, PageId};
use crate::rest::first;

impl Origin {
    /// What is under way here, in words: when nobody asks for anything any more, nothing.
    #[must_use]
    pub fn under_way(&self) -> Option<String> {
        let own = first(&[
            ("volumes being made", self.volumes.making()),
            ("lists of volumes", usize::from(self.volumes.is_listing())),
            ("volumes that are looked for", self.looks.len()),
        ]);
        let domains = || {
            let mut domains = self.domains.values();
            domains.find_map(|domain| {
                Some(format!("{:?}: {}", domain.id(), domain.under_way(&self.links)?))
            })
        };
        own.or_else(|| self.links.under_way()).or_else(domains)
    }

    /// What the child of a link is registered for, by domain; none: everything.
    #[must_use]
    pub fn registrations(&self, link: LinkId) -> Vec<(DomainId, Option<Vec<PageId>>)> {
        self.links.registrations(link)
    }

    /// Processes below that are believed to be there, with their lives.
    #[must_use]
    pub fn present(&self) -> Vec<(String, BootId)> {
        self.links.present()
    }
}
