//! One link down: who is there, what it may still ask and be sent.

use super::follower::{Follower, Pace};
use super::rights::Answered;
use crate::id::{BootId, CommitId, DomainId, PageId, RequestId, Stamp, VolumeId};
use crate::message::{Message, Role};
use crate::rights::Right;
use crate::time::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// After so many pages that somebody waits for comes one that is read ahead.
const AHEAD_AFTER: u8 = 7;

/// How far the handshake is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Greeting {
    /// Nothing came yet.
    Awaited,
    /// `Hello` came, the parent is not ready yet.
    Held(Child),
    /// `Welcome` was sent.
    Done(Child),
}

/// The child of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Child {
    pub(crate) name: String,
    pub(crate) boot: BootId,
    pub(crate) role: Role,
    /// The protocol version both speak.
    pub(crate) version: u32,
}

/// A page asked for and not yet answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked {
    pub(crate) request: RequestId,
    pub(crate) page: PageId,
    pub(crate) have: Option<Stamp>,
    pub(crate) prefetch: bool,
}

/// A fetch of which pages are still to be answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fetching {
    pub(crate) left: u32,
    /// For whom below the child, if not for itself.
    pub(crate) of: Option<String>,
    /// Changes of rights that were known when it was taken.
    pub(crate) rights_seen: u64,
}

/// A link down. Constant memory: its queues hold ids only, at most `requests_max` of them.
#[derive(Debug)]
pub(crate) struct Link {
    /// The name that its certificate proved, and what that lets it be.
    pub(crate) peer: String,
    pub(crate) role: Role,
    /// That certificate is of this redirector's group.
    pub(crate) in_group: bool,
    pub(crate) greeting: Greeting,
    pub(crate) heard: Instant,
    /// Bytes that may be sent; below zero by at most one message.
    pub(crate) stream_credit: i64,
    pub(crate) bulk_credit: i64,
    /// Bulk bytes expected from above for this link (relay).
    pub(crate) bulk_reserved: i64,
    /// Requests and pages without an answer.
    pub(crate) unanswered: u32,
    /// Parts of transactions that are decided by other domains, without an answer.
    pub(crate) beside: BTreeSet<(DomainId, CommitId)>,
    pub(crate) fetches: BTreeMap<RequestId, Fetching>,
    pub(crate) followers: BTreeMap<DomainId, Follower>,
    /// The child is a member of this redirector's group: changes come with their writes.
    pub(crate) member: bool,
    /// The domain of the last page that was taken to be answered.
    served_last: Option<DomainId>,
    /// Pages taken since one was that is only read ahead.
    since_ahead: u8,
    /// The domain whose stream took the last of the credit.
    pub(super) streamed_last: Option<DomainId>,
    /// What its child may do, as far as it was asked: forgotten when it changes.
    pub(crate) resolved: BTreeMap<VolumeId, Right>,
    /// What its child was told in answers of volumes whose domain it did not follow yet.
    pub(super) answered: BTreeMap<VolumeId, Answered>,
    /// Of some volumes it was not kept what was answered.
    pub(super) unremembered: bool,
    /// A quiet timer is set.
    pub(crate) quiet_armed: bool,
}

impl Link {
    pub(crate) fn new((peer, role, in_group): (String, Role, bool), now: Instant) -> Self {
        Self {
            peer,
            role,
            in_group,
            greeting: Greeting::Awaited,
            heard: now,
            stream_credit: 0,
            bulk_credit: 0,
            bulk_reserved: 0,
            unanswered: 0,
            beside: BTreeSet::new(),
            fetches: BTreeMap::new(),
            followers: BTreeMap::new(),
            member: false,
            served_last: None,
            since_ahead: 0,
            streamed_last: None,
            resolved: BTreeMap::new(),
            answered: BTreeMap::new(),
            unremembered: false,
            quiet_armed: false,
        }
    }

    /// The child, once welcomed.
    pub(crate) fn child(&self) -> Option<&Child> {
        match &self.greeting {
            Greeting::Done(child) => Some(child),
            Greeting::Awaited | Greeting::Held(_) => None,
        }
    }

    /// The child, once it said who it is.
    pub(crate) fn named(&self) -> Option<&Child> {
        match &self.greeting {
            Greeting::Done(child) | Greeting::Held(child) => Some(child),
            Greeting::Awaited => None,
        }
    }

    /// In which order credit is spent on pages: the domains by turns, and all that somebody waits for
    /// before what is only read ahead. Were the first domain always first, a child that never stops
    /// asking for its pages would keep those of the others waiting for ever.
    pub(crate) fn turns(&self) -> Vec<(DomainId, Pace)> {
        let domains = self.domains_after(self.served_last);
        let of = |pace| domains.iter().map(move |domain| (*domain, pace));
        of(Pace::Demand).chain(of(Pace::All)).collect()
    }

    /// In which order credit is spent on streams, likewise: the domain after the one that took the last.
    pub(crate) fn streams(&self) -> Vec<DomainId> {
        self.domains_after(self.streamed_last)
    }

    fn domains_after(&self, last: Option<DomainId>) -> Vec<DomainId> {
        let mut domains: Vec<DomainId> = self.followers.keys().copied().collect();
        let first = domains.partition_point(|domain| Some(*domain) <= last);
        domains.rotate_left(first);
        domains
    }

    /// The next page of a domain to be answered, if the link may be sent pages. After each seven that
    /// somebody waits for, or waited for, one that is read ahead has its turn: somebody may have come to wait
    /// for it since, and the child cannot say so.
    pub(crate) fn take_asked(&mut self, domain: DomainId, pace: Pace) -> Option<Asked> {
        if self.bulk_credit - self.bulk_reserved <= 0 {
            crate::probe::probe("bulk-credit-exhausted");
            return None;
        }
        let ahead = self.since_ahead >= AHEAD_AFTER;
        let asked = self.followers.get_mut(&domain)?.take_asked(pace, ahead);
        if let Some(asked) = asked {
            self.served_last = Some(domain);
            self.since_ahead = if asked.prefetch { 0 } else { self.since_ahead.saturating_add(1) };
        }
        asked
    }

    /// One page of a fetch is answered, or has failed.
    pub(crate) fn page_done(&mut self, request: RequestId) {
        assert!(self.unanswered > 0, "more answers than pages asked for");
        self.unanswered -= 1;
        if let Some(fetching) = self.fetches.get_mut(&request) {
            fetching.left -= 1;
            if fetching.left == 0 {
                self.fetches.remove(&request);
            }
        }
    }
}

/// What a message costs in credits: its encoded bytes.
pub(crate) fn cost(message: &Message) -> i64 {
    i64::try_from(crate::wire::encoded_len(message)).expect("a message fits in memory")
}
