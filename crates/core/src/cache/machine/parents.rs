//! Which parent has what (decision 0037): a domain is had from the first parent that offers it, for as long as
//! that link stands.

use super::domain::Stream;
use super::link::Link;
use super::{Cache, CacheOutput, Out};
use crate::id::{DomainId, LinkId};
use crate::machine::LinkOutput;
use crate::message::Message;
use crate::time::{Duration, Instant};
use std::collections::BTreeSet;

/// A domain that nobody offers is asked for at any parent when it has been missing for so long, though others are away:
/// a relay may begin a domain after it has welcomed its children.
const OFFER_PATIENCE: Duration = Duration::from_secs(2);

impl Cache {
    /// Whether a parent has welcomed this node.
    #[must_use]
    pub fn connected(&self) -> bool {
        self.links.values().any(Link::is_welcomed)
    }

    /// The link on which a domain can be had: of those that offer it the first parent's.
    pub(super) fn offering(&self, domain: DomainId) -> Option<LinkId> {
        let only = self.config.parents == 1;
        let has = |link: &&Link| link.is_welcomed() && (only || link.offers.contains(&domain));
        self.links.values().filter(has).min_by_key(|link| link.parent).map(|link| link.id)
    }

    /// The link on which a domain's stream is asked for. One that no parent offers may have come into service at one of
    /// them since: they are asked in turn, and say that they do not have it. While another one is away that may be the
    /// one that has it, only after a while: who is cut off from it finds back to it at once.
    pub(super) fn next_link(&mut self, now: Instant, domain: DomainId) -> Option<LinkId> {
        let offering = self.offering(domain);
        let entry = self.domains.get_mut(&domain).expect("attached");
        if offering.is_some() {
            entry.missing_since = None;
            return offering;
        }
        let since = *entry.missing_since.get_or_insert(now);
        let refused = |link: &Link| self.domains[&domain].refused.contains(&link.parent);
        let welcomed = self.links.values().filter(|link| link.is_welcomed());
        let all = welcomed.clone().count() == self.config.parents as usize;
        let asked = all || now.since(since) >= OFFER_PATIENCE;
        let next = welcomed.filter(|_| asked).min_by_key(|link| (refused(link), link.parent));
        next.map(|link| link.id)
    }

    /// Resumes the domains that a parent is known to have since, those also that were asked for at another one, which
    /// does not offer them, and may take its time to say so.
    pub(super) fn resume_offered(&mut self, now: Instant, id: LinkId, out: &mut Out) {
        let here = |domain: &DomainId| self.offering(*domain) == Some(id);
        let offered: Vec<DomainId> = self.domains.keys().copied().filter(here).collect();
        for domain in offered {
            let entry = &self.domains[&domain];
            match entry.stream() {
                Stream::Off => {}
                Stream::Asked(request) if entry.up != Some(id) => {
                    let before = entry.up.and_then(|up| self.links.get_mut(&up));
                    let Some(before) = before.filter(|up| !up.offers.contains(&domain)) else {
                        continue;
                    };
                    crate::probe::probe("resume-abandoned");
                    before.abandoned.insert(request);
                }
                _ => continue,
            }
            self.resume(now, domain, out);
        }
    }

    /// Where something of a domain is asked: where it is had, or else offered.
    pub(super) fn source_of(&self, domain: DomainId) -> Option<LinkId> {
        let had = self.domains.get(&domain).filter(|entry| entry.is_had()).and_then(|had| had.up);
        had.or_else(|| self.offering(domain))
    }

    /// Whether a parent may speak of a domain: not of one that is had from, or offered by, another. It may not have
    /// offered it itself, since it was not in service then.
    pub(super) fn may_have(&self, link: LinkId, domain: DomainId) -> bool {
        let source = self.source_of(domain);
        source.is_none_or(|source| source == link)
    }

    /// Whether a domain is had, or was asked for, on another link than this, or on none.
    pub(super) fn is_elsewhere(&self, link: LinkId, domain: DomainId) -> bool {
        self.domains.get(&domain).is_some_and(|entry| entry.up != Some(link))
    }

    /// Whether somebody else has one of these domains: two ways to one origin would cut each other off there, since it
    /// takes a process for one that has moved.
    pub(super) fn is_had_elsewhere(&self, link: LinkId, domains: &BTreeSet<DomainId>) -> bool {
        let others = self.links.values().filter(|other| other.id != link && other.is_welcomed());
        others.into_iter().any(|other| !other.offers.is_disjoint(domains))
    }

    /// The welcomed link to a parent.
    pub(super) fn link_to_parent(&self, parent: u32) -> Option<&Link> {
        self.links.values().find(|link| link.parent == parent && link.is_welcomed())
    }

    /// The link of a domain, if it has one.
    pub(super) fn link_of(&self, domain: DomainId) -> Option<&Link> {
        self.links.get(&self.domains.get(&domain)?.up?)
    }

    /// The same.
    pub(super) fn link_of_mut(&mut self, domain: DomainId) -> Option<&mut Link> {
        self.links.get_mut(&self.domains.get(&domain)?.up?)
    }

    /// The link on which something of a domain came, or goes.
    pub(super) fn standing(&mut self, domain: DomainId) -> &mut Link {
        self.link_of_mut(domain).expect("only called while the domain's link stands")
    }

    /// The link to the group's redirector.
    pub(super) fn redirector(&mut self) -> Option<&mut Link> {
        self.links.get_mut(&self.redirector?)
    }

    pub(super) fn send_on(&self, link: LinkId, message: Message, out: &mut Out) {
        out.push(CacheOutput::Link(LinkOutput::Send { link, message }));
    }

    /// Sends what is of a domain, to its parent.
    pub(super) fn send(&self, domain: DomainId, message: Message, out: &mut Out) {
        let link = self.link_of(domain).expect("only called while the domain's link stands");
        self.send_on(link.id, message, out);
    }

    /// Sends to the redirector, if there is one.
    pub(super) fn send_to_redirector(&self, message: Message, out: &mut Out) {
        if let Some(link) = self.redirector {
            self.send_on(link, message, out);
        }
    }
}
