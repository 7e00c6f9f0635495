//! What a parent has under way for its children; see `crate::rest`.

use super::{Downlinks, Follower, Link, Phase};
use crate::id::{BootId, DomainId, LinkId, PageId};
use crate::rest::first;

impl Downlinks {
    pub(crate) fn under_way(&self) -> Option<String> {
        let own = first(&[
            ("processes that left untold", self.left.len()),
            ("links whose credit was freed", self.freed.len()),
        ]);
        let links = || self.iter().find_map(|(_, link)| link.under_way());
        own.or_else(links)
    }

    /// What the child of a link is registered for, by domain; none: everything.
    pub(crate) fn registrations(&self, link: LinkId) -> Vec<(DomainId, Option<Vec<PageId>>)> {
        let followers = self.get(link).into_iter().flat_map(|link| &link.followers);
        let pages = |follower: &Follower| {
            let pages = follower.registration.pages()?;
            Some(pages.iter().collect())
        };
        followers.map(|(domain, follower)| (*domain, pages(follower))).collect()
    }

    /// Processes that are believed to be there, with their lives.
    pub(crate) fn present(&self) -> Vec<(String, BootId)> {
        self.names.present()
    }
}

impl Link {
    fn under_way(&self) -> Option<String> {
        let name = self.named().map_or(&self.peer, |child| &child.name);
        let reserved = usize::try_from(self.bulk_reserved).unwrap_or_default();
        let own = first(&[
            ("requests without an answer", self.unanswered as usize),
            ("parts without an answer", self.beside.len()),
            ("fetches", self.fetches.len()),
            ("bytes of credit reserved", reserved),
        ]);
        let followers = self.followers.iter();
        let of_domain = |(domain, follower): (&DomainId, &Follower)| {
            Some(format!("{domain:?}: {}", follower.under_way()?))
        };
        let what = own.or_else(|| followers.into_iter().find_map(of_domain))?;
        Some(format!("for {name}: {what}"))
    }
}

impl Follower {
    fn under_way(&self) -> Option<String> {
        first(&[
            ("streams that do not run", usize::from(!matches!(self.phase, Phase::Streaming))),
            ("resumes to be answered", self.asked.len()),
            ("pages to be answered", self.queued()),
            ("volumes whose rights are to be told", self.owed.len() + self.lost.len()),
            ("refreshes that wait", self.refreshes_waiting()),
            ("beats of before its own age was known", usize::from(self.early_beat.is_some())),
        ])
    }
}
