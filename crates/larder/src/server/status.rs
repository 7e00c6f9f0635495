//! What origins and relays tell operators of their children and their directory.

use crate::clock::now;
use crate::metrics::{MemoryPart, Metrics};
use crate::transport::LinkSender;
use larder_core::downlink::{ChildStatus, Directory, DomainMemory, DomainStatus, ParentStatus};
use larder_core::id::{DomainId, LinkId, PageId, Stamp};
use larder_core::message::Role;
use larder_core::origin::io::Unreadable;
use larder_core::time::Instant;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A machine's own words, with what the process knows of the links.
pub(super) struct Seen {
    status: ParentStatus,
    links: BTreeMap<LinkId, Wire>,
    at: Instant,
}

/// A link, as the process sees it.
struct Wire {
    address: String,
    opened: Instant,
    queued_bytes: usize,
}

pub(super) fn domain_name(domain: DomainId) -> String {
    format!("{:016x}", domain.0)
}

impl Seen {
    pub(super) fn new(status: ParentStatus, links: &BTreeMap<LinkId, LinkSender>) -> Self {
        let wire = |(link, sender): (&LinkId, &LinkSender)| {
            let address = sender.address().to_owned();
            let queued_bytes = sender.queued_bytes();
            (*link, Wire { address, opened: sender.opened(), queued_bytes })
        };
        Self { status, links: links.iter().map(wire).collect(), at: now() }
    }

    /// The links to children, one JSON object each.
    pub(super) fn children(&self) -> Vec<Value> {
        let stamps: BTreeMap<DomainId, Stamp> =
            self.status.domains.iter().map(|domain| (domain.domain, domain.stamp)).collect();
        self.status.children.iter().map(|child| self.child(child, &stamps)).collect()
    }

    fn child(&self, child: &ChildStatus, stamps: &BTreeMap<DomainId, Stamp>) -> Value {
        let wire = self.links.get(&child.link);
        let domains = child.domains.iter().map(|follower| {
            let head = stamps.get(&follower.domain).copied().unwrap_or(follower.cursor);
            json!({
                "domain": domain_name(follower.domain),
                "stamp": follower.cursor.0,
                "lag": head.0.saturating_sub(follower.cursor.0),
                "streaming": follower.streaming,
                "directory": directory(follower.directory),
            })
        });
        json!({
            "name": child.name,
            "role": child.role.map_or("unknown", role_name),
            "address": wire.map(|wire| wire.address.as_str()),
            "connected_s": wire.map(|wire| self.at.since(wire.opened).as_secs_f64()),
            "heard_s": self.at.since(child.heard).as_secs_f64(),
            "queued_bytes": wire.map_or(0, |wire| wire.queued_bytes),
            "unanswered": child.unanswered,
            "domains": domains.collect::<Vec<_>>(),
        })
    }

    /// What is said of a domain.
    pub(super) fn domain(&self, id: DomainId) -> Option<&DomainStatus> {
        self.status.domains.iter().find(|domain| domain.domain == id)
    }

    /// The transaction over several domains that one waits to be decided, if any.
    pub(super) fn in_doubt(&self, id: DomainId) -> Option<Value> {
        let (decides, since) = self.domain(id)?.in_doubt?;
        let waits = self.at.since(since).as_secs_f64();
        Some(json!({ "decided_by": domain_name(decides), "waits_s": waits }))
    }

    /// The domains, ascending.
    pub(super) fn domains(&self) -> impl Iterator<Item = &DomainStatus> {
        self.status.domains.iter()
    }

    /// Brings the gauges up to date.
    pub(super) fn measure(&self, metrics: &Metrics) {
        metrics.queued(self.links.values().map(|wire| wire.queued_bytes as u64).sum());
        for domain in &self.status.domains {
            let followers = self.status.children.iter().flat_map(|child| &child.domains);
            let cursors = followers.filter(|follower| follower.domain == domain.domain);
            let lag = cursors.map(|follower| domain.stamp.0.saturating_sub(follower.cursor.0));
            let Directory { pages, bytes, .. } = domain.directory;
            let lag = lag.max().unwrap_or(0);
            metrics.removing(domain.domain, domain.removing_volumes, domain.removing_pages);
            metrics.directory(domain.domain, pages as u64, bytes as u64, lag);
            let waits = domain.in_doubt.map(|(_, since)| self.at.since(since));
            metrics.in_doubt(domain.domain, waits.unwrap_or_default());
            if let Some(DomainMemory { clean, uninstalled, recent }) = domain.memory {
                metrics.memory(domain.domain, MemoryPart::Clean, clean as u64);
                metrics.memory(domain.domain, MemoryPart::Uninstalled, uninstalled as u64);
                metrics.memory(domain.domain, MemoryPart::Recent, recent as u64);
            }
        }
    }
}

/// Pages that have changes and cannot be read.
pub(super) fn unreadable_pages(unreadable: &Unreadable) -> Value {
    let page =
        |(page, detail): &(PageId, String)| json!({ "page": page.to_string(), "detail": detail });
    json!({
        "pages": unreadable.pages,
        "named": unreadable.named.iter().map(page).collect::<Vec<_>>(),
        "apart_bytes": unreadable.apart_bytes,
        "in_log": unreadable.in_log,
        "full": unreadable.full,
    })
}

pub(super) fn directory(directory: Directory) -> Value {
    json!({ "pages": directory.pages, "bytes": directory.bytes, "whole": directory.whole })
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Node => "node",
        Role::Relay => "relay",
    }
}
