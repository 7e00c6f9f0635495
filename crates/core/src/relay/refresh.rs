//! Passing up what a child wants to know now: the origin's own state, not this relay's.
//!
//! A child's refresh is answered by the echo of a beat that was sent up after it came. It never joins
//! one that was sent before: the origin may have handled that one already, and somebody may have
//! been told since of a commit that the answer lacks. So each is sent on at once; only with many of
//! them without an answer does the next wait for one, and then stands for all that came meanwhile.

use super::Relay;
use super::io::RelayOutput;
use crate::id::DomainId;
use crate::machine::Fault;
use crate::message::Message;
use crate::time::Instant;

impl Relay {
    /// Asks the parent for the origin's state now, for children that wait for it.
    pub(super) fn refresh_up(
        &mut self,
        now: Instant,
        domain: DomainId,
        out: &mut Vec<RelayOutput>,
    ) {
        let joins = self.config.faults.has(Fault::RefreshJoined);
        let Some(entry) = self.domains.get_mut(&domain) else {
            return;
        };
        if joins && entry.refreshed_at().is_some() {
            return;
        }
        if let Some(sent) = entry.refresh(now, self.config.refreshes_max) {
            // First, so that a relay above leaves the beat's own echo out.
            self.send_of(domain, Message::Refresh { domain, sent }, out);
            self.send_of(domain, Message::Beat { domain, sent }, out);
        }
    }

    /// When the newest refresh came that waits here.
    pub(super) fn refresh_waits(&mut self, domain: DomainId) -> Option<Instant> {
        let links = self.links.following(domain);
        let waits = |link| self.links.follower(link, domain)?.refresh_waits();
        links.into_iter().filter_map(waits).max()
    }

    /// All that the origin had at `confirmed`, by our clock, has come.
    pub(super) fn answer_refreshes(
        &mut self,
        now: Instant,
        domain: DomainId,
        confirmed: Instant,
        out: &mut Vec<RelayOutput>,
    ) {
        let through = self.domains[&domain].through();
        let joined = self.config.faults.has(Fault::RefreshJoined);
        let until = if joined { now } else { confirmed };
        for link in self.links.following(domain) {
            if let Some(follower) = self.links.follower(link, domain) {
                follower.answer_refreshes(until, through);
            }
        }
        // What came while too many were without an answer is asked for now.
        let asked = self.domains[&domain].refreshed_at();
        if self.refresh_waits(domain).is_some_and(|came| asked.is_none_or(|asked| asked < came)) {
            self.refresh_up(now, domain, out);
        }
    }
}
