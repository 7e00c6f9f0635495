//! Groups that are to work again within a while after they lost their redirector: by then whoever took its place has
//! carried a beat of each member that lives to the origin and back, and has answered what waited when it was lost.

use super::{Event, Machinery, World};
use crate::agenda::Time;
use crate::net::Proc;
use larder_core::id::DomainId;
use larder_core::time::Instant;
use std::collections::BTreeMap;

/// How far a clock may be from the others' after a few seconds, where none drifts by more than clocks may.
const CLOCKS_NANOS: u64 = 1_000_000;

/// A redirector that was lost.
#[derive(Debug)]
pub(super) struct Lost {
    /// Each has a higher one.
    number: u32,
    at: Time,
    /// Members that lived then, and followed it: their lives, and what their clocks showed.
    members: BTreeMap<Proc, (u32, Instant)>,
}

impl World {
    /// A group has lost its redirector, by the process that its members follow.
    pub(super) fn note_lost(&mut self, group: u16, redirector: Proc) {
        let Some(within) = self.plan.failover().and_then(|failover| failover.works_within) else {
            return;
        };
        let seats = self.seats.iter().filter(|(_, seat)| seat.group == group);
        let members = seats.filter_map(|(proc, _)| {
            let process = self.process(*proc);
            let is_node = matches!(process.machinery, Machinery::Node(_));
            let follows = process.parent.is_some_and(|(parent, _)| parent == redirector);
            (is_node && process.is_up() && follows)
                .then(|| (*proc, (process.incarnation, process.local(self.now))))
        });
        let number = self.lost.get(&group).map_or(1, |lost| lost.number + 1);
        let lost = Lost { number, at: self.now, members: members.collect() };
        self.lost.insert(group, lost);
        self.agenda.enter(self.now.plus(within), Event::Works(group, number));
    }

    /// The time is over that a group may take.
    pub(super) fn check_works(&mut self, group: u16, number: u32) {
        // It lost another one since; and what is mended at the end stops clients, and starts whoever is down.
        let Some(lost) = self.lost.get(&group).filter(|lost| lost.number == number) else { return };
        if self.mended.is_some() {
            return;
        }
        let mut judged = 0;
        for (proc, (incarnation, at)) in &lost.members {
            let process = self.process(*proc);
            if process.incarnation != *incarnation || !process.is_up() {
                continue;
            }
            judged += 1;
            let (node, now) = (process.node_ref(), process.local(self.now));
            let waits = node.asked.values().any(|asked| asked.at <= lost.at);
            let read = node.read.as_ref().expect("it lives");
            let is_told = |domain: &DomainId| {
                let age = read.age(*domain, now);
                age.is_some_and(|age| age.as_nanos() < u128::from(now.0 - at.0 + CLOCKS_NANOS))
            };
            let told = self.domains.iter().all(is_told);
            assert!(
                told && !waits,
                "{proc:?} does not work {} ms after group {group} lost its redirector at {:?}: heard of the origin: \
                 {told}, waits for what it asked before: {waits}",
                (self.now.0 - lost.at.0) / 1_000_000,
                lost.at
            );
        }
        self.tally.failovers += judged;
    }
}
