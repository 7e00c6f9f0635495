//! Who sends next, where the parent takes only so many requests at once.
//!
//! Calls, questions of the cache itself, and each domain's commits and fetches send one message by turns,
//! and whoever sent last is the last of the next round. In an order that never changes, whoever comes
//! first and always has something to send keeps all others waiting for ever: a domain whose users fetch
//! without a pause took all the room, and a reader of the next domain was never answered.
//!
//! Streams that have not been asked for come before all: there are no more of them than domains, each asks
//! once on a link, and whatever the domain's users wait for waits for it.

use super::domain::Stream;
use super::{Cache, Out};
use crate::id::DomainId;
use crate::time::Instant;

/// Who sends, in the order of a round.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Turn {
    Calls,
    Doubts,
    Commits(DomainId),
    Fetches(DomainId),
}

impl Cache {
    /// Sends what waits, as far as the parent's limits allow.
    pub(super) fn pump(&mut self, now: Instant, out: &mut Out) {
        if !self.connected() {
            return;
        }
        let domains: Vec<DomainId> = self.domains.keys().copied().collect();
        for domain in &domains {
            self.end_expired(*domain, out);
            if self.domains[domain].stream() == Stream::Waits {
                self.resume(now, *domain, out);
            }
        }
        self.send_all_others(out);
        let count = 2 + 2 * domains.len();
        let turn = |at: usize| match at {
            0 => Turn::Calls,
            1 => Turn::Doubts,
            at if at < 2 + domains.len() => Turn::Commits(domains[at - 2]),
            at => Turn::Fetches(domains[at - 2 - domains.len()]),
        };
        let mut at = (0..count).find(|&at| Some(turn(at)) > self.sent_last).unwrap_or_default();
        let mut idle = 0;
        while idle < count && self.links.values().any(|link| link.room() > 0) {
            let sends = turn(at);
            let sent = match sends {
                Turn::Calls => self.send_call(out),
                Turn::Doubts => self.send_doubt(out),
                Turn::Commits(domain) => self.send_commit(domain, out),
                Turn::Fetches(domain) => self.send_fetch(now, domain, out),
            };
            if sent {
                self.sent_last = Some(sends);
                idle = 0;
            } else {
                idle += 1;
            }
            at = (at + 1) % count;
        }
    }
}
