//! The right to read (decision 0016), at both ends: whatever of a volume the origin sends is for
//! somebody who may read it, as the durable log says, and in whose name it was asked; and what reaches
//! a node is nothing that it could not read for as long as the message can have been under way,
//! whatever relays did in between.
//!
//! A right that was taken binds from the end of the step in which the origin hears that the record is
//! durable, one that was given from that step's beginning. Through a relay nobody may do more than the
//! relay itself. Names only, no patterns: that is what runs say.

use super::rights::Allowed;
use crate::agenda::Time;
use larder_core::id::{DomainId, RequestId, VolumeId};
use larder_core::message::{Message, certificate_of};
use larder_core::record::LogRecord;
use larder_core::rights::Right;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Who may read what, and what was asked.
#[derive(Debug, Default)]
pub struct Readers {
    /// Nothing is noted in a run in which nobody changes rights.
    watches: bool,
    /// Since when somebody may not read a volume.
    denied: BTreeMap<(VolumeId, String), Time>,
    /// Lost in the step under way.
    losing: BTreeSet<(VolumeId, String)>,
    /// What the log has and the origin has not been told of, by append.
    under_way: BTreeMap<DomainId, VecDeque<Vec<LogRecord>>>,
    /// In whose name the origin was asked, by connection.
    asked: BTreeMap<(u32, RequestId), String>,
    /// When a node asked.
    sent: BTreeMap<(u32, RequestId), Time>,
}

impl Readers {
    /// Of a run in which rights change, or do not.
    #[must_use]
    pub fn new(watches: bool) -> Self {
        Self { watches, ..Self::default() }
    }

    /// Whether anything is noted.
    #[must_use]
    pub fn watches(&self) -> bool {
        self.watches
    }

    /// The process that serves a domain ends: it hears of no append any more.
    pub fn died(&mut self, domain: DomainId) {
        self.under_way.remove(&domain);
        self.losing.clear();
    }

    /// The origin serves a domain from a store in which this is said.
    pub fn recovered(&mut self, allowed: &Allowed, volumes: &[VolumeId], now: Time) {
        for volume in volumes {
            let unreadable: BTreeSet<String> = allowed.unreadable(*volume).collect();
            self.denied.retain(|(of, who), _| of != volume || unreadable.contains(who));
            for who in unreadable {
                self.denied.entry((*volume, who)).or_insert(now);
            }
        }
    }

    /// An append is durable; the origin hears of it later.
    pub fn appended(
        &mut self,
        domain: DomainId,
        records: &[(larder_core::record::Lsn, LogRecord)],
    ) {
        if self.watches {
            let says = |record: &&LogRecord| {
                matches!(record, LogRecord::Settings { .. } | LogRecord::Deleted { .. })
            };
            let records = records.iter().map(|(_, record)| record).filter(says).cloned().collect();
            self.under_way.entry(domain).or_default().push_back(records);
        }
    }

    /// The origin is about to hear of the oldest of them.
    pub fn told(&mut self, domain: DomainId) {
        let append = self.under_way.get_mut(&domain).and_then(VecDeque::pop_front);
        for record in append.unwrap_or_default() {
            match record {
                LogRecord::Settings { volume, settings } => {
                    let entries = settings.rights.entries();
                    let unreadable = entries.filter(|(_, right)| *right < Right::Read);
                    let unreadable: BTreeSet<(VolumeId, String)> =
                        unreadable.map(|(who, _)| (volume, who.to_owned())).collect();
                    self.denied.retain(|key, _| key.0 != volume || unreadable.contains(key));
                    self.losing.retain(|key| key.0 != volume);
                    self.losing.extend(unreadable);
                }
                LogRecord::Deleted { volume, .. } => {
                    self.denied.retain(|(of, _), _| *of != volume);
                    self.losing.retain(|(of, _)| *of != volume);
                }
                _ => {}
            }
        }
    }

    /// The step in which the origin heard of it is over.
    pub fn settled(&mut self, now: Time) {
        for lost in std::mem::take(&mut self.losing) {
            self.denied.entry(lost).or_insert(now);
        }
    }

    /// Since when somebody may not read a volume.
    #[must_use]
    pub fn denied_since(&self, volume: VolumeId, name: &str) -> Option<Time> {
        if self.denied.is_empty() {
            return None;
        }
        self.denied.get(&(volume, certificate_of(name).to_owned())).copied()
    }

    /// The origin is asked over a connection.
    pub fn origin_asked(&mut self, conn: u32, message: &Message) {
        if let Message::For { name, message } = message
            && self.watches
            && let Some(request) = request_of(message)
        {
            self.asked.insert((conn, request), name.clone());
        }
    }

    /// A node asks for pages over a connection.
    pub fn node_asks(&mut self, conn: u32, message: &Message, now: Time) {
        if let Some(request) = request_of(message).filter(|_| self.watches) {
            self.sent.insert((conn, request), now);
        }
    }

    /// When a node asked for what is answered; none: nothing of a volume is.
    #[must_use]
    pub fn asked_at(&self, conn: u32, message: &Message) -> Option<Time> {
        let (Message::Pages { request, .. } | Message::Copied { request, .. }) = message else {
            return None;
        };
        self.sent.get(&(conn, *request)).copied()
    }

    /// The origin sends a message to a child: it, and whoever it asked for, may read what is in it.
    pub fn origin_sends(&self, conn: u32, child: &str, message: &Message) {
        if self.denied.is_empty() {
            return;
        }
        let request = match message {
            Message::Pages { request, .. }
            | Message::Copied { request, .. }
            | Message::Volumes { request, .. } => Some(*request),
            _ => None,
        };
        let asker = request.and_then(|request| self.asked.get(&(conn, request)));
        for volume in volumes_in(message) {
            for who in [Some(child), asker.map(String::as_str)].into_iter().flatten() {
                let denied = self.denied_since(volume, who);
                assert!(
                    denied.is_none(),
                    "rights: the origin sends to {child} what {who} may not read since {denied:?}: \
                     {message:?}"
                );
            }
        }
    }
}

/// The request of a message that asks for what is in a volume.
fn request_of(message: &Message) -> Option<RequestId> {
    match message {
        Message::Fetch { request, .. }
        | Message::CopyPages { request, .. }
        | Message::ListVolumes { request, .. } => Some(*request),
        _ => None,
    }
}

/// The volumes of which a message tells anything. Of a deletion everybody may hear.
pub fn volumes_in(message: &Message) -> BTreeSet<VolumeId> {
    let pages: Vec<_> = match message {
        Message::Pages { pages, .. } => pages.iter().map(|answer| answer.page).collect(),
        Message::Copied { answer, .. } => answer.pages.iter().map(|answer| answer.page).collect(),
        Message::Advance { changes, stale, .. } => {
            let changed = changes.iter().flat_map(|change| &change.pages);
            changed.map(|change| change.page).chain(stale.iter().copied()).collect()
        }
        Message::Resumed { stale, .. } => stale.clone(),
        Message::Volumes { volumes, .. } => {
            return volumes.iter().map(|info| info.id).collect();
        }
        _ => Vec::new(),
    };
    let told = pages.into_iter().filter(|page| !page.is_volume());
    told.map(|page| page.volume).collect()
}
