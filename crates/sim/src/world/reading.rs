//! What reaches a node is held against its right to read (see `check/reading.rs`).

use super::{Machinery, World};
use crate::agenda::Time;
use crate::check::reading::volumes_in;
use crate::net::{Delivery, Proc, Way};
use larder_core::id::{DomainId, VolumeId};
use larder_core::message::{Message, certificate_of};

impl World {
    /// A domain is served from a store that was just recovered.
    pub(super) fn reader_recovered(&mut self, domain: DomainId) {
        if !self.readers.watches() {
            return;
        }
        let of_domain = self.volumes.iter().filter(|plan| plan.domain == domain);
        let volumes: Vec<VolumeId> = of_domain.map(|plan| plan.spec.id).collect();
        let allowed = self.store_host(domain).allowed.clone();
        self.readers.recovered(&allowed, &volumes, self.now);
    }

    /// Since when a node may not read a volume, by its own right or by that of the relay through which
    /// it reaches the origin.
    pub(super) fn unreadable_since(&self, node: Proc, volume: VolumeId) -> Option<Time> {
        let own = self.readers.denied_since(volume, &self.process(node).name);
        let mut above = node;
        while let Some((parent, _)) = self.process(above).parent
            && !self.is_origin(parent)
        {
            above = parent;
        }
        let relay = (above != node).then(|| self.process(above).name.as_str());
        let relay = relay.and_then(|name| self.readers.denied_since(volume, name));
        [own, relay].into_iter().flatten().min()
    }

    /// A message reaches a node: nothing in it may be of a volume that the node could not read for as
    /// long as that can have been under way: an answer since it was asked for, a change since it was
    /// durable.
    pub(super) fn check_reaches(&self, node: Proc, conn: u32, message: &Message) {
        if !self.readers.watches()
            || !matches!(self.process(node).machinery, Machinery::Node(_))
            || self.process(node).parent.map(|(parent, _)| parent)
                != Some(self.net.conn(conn).parent)
        {
            return;
        }
        if let Some(asked) = self.readers.asked_at(conn, message) {
            for volume in volumes_in(message) {
                self.check_under_way(node, volume, asked, message);
            }
        }
        let Message::Advance { domain, changes, .. } = message else {
            return;
        };
        for change in changes {
            let Some(durable) = self.durable_since(node, *domain, change.stamp) else { continue };
            for page in change.pages.iter().filter(|change| !change.page.is_volume()) {
                self.check_under_way(node, page.page.volume, durable, message);
            }
        }
    }

    /// What a relay is told by its parent, and commits that come to it.
    pub(super) fn note_passing(&mut self, relay: Proc, delivery: Delivery, message: &Message) {
        if !matches!(self.process(relay).machinery, Machinery::Relay(_)) {
            return;
        }
        if delivery.way == Way::Down {
            return self.passing.told(delivery.conn, message);
        }
        let child = self.process(self.net.conn(delivery.conn).child);
        let is_relay = matches!(child.machinery, Machinery::Relay(_));
        let from = is_relay.then(|| certificate_of(&child.name).to_owned());
        self.passing.comes(relay.0, from, message);
    }

    /// When a change was durable, if it is of the branch that the origin is on.
    fn durable_since(
        &self,
        node: Proc,
        domain: DomainId,
        stamp: larder_core::id::Stamp,
    ) -> Option<Time> {
        let truth = self.oracle.truth(domain);
        let history = self.process(node).node_ref().read.as_ref()?.history(domain)?;
        let current = truth.branch_number(history) + 1 == truth.branch_count();
        truth.known_since(stamp).filter(|_| current)
    }

    fn check_under_way(&self, node: Proc, volume: VolumeId, since: Time, message: &Message) {
        let denied = self.unreadable_since(node, volume);
        assert!(
            denied.is_none_or(|denied| denied >= since),
            "rights: {node:?} is told what was under way since {since:?}, of {volume}, which it may \
             not read since {denied:?}: {message:?}"
        );
    }
}
