//! Readers are threads of their own: while one of them reads, the machine may take a step. The
//! moment for it is a reader's look at the clock (rule 8).

use super::World;
use super::process::lock;
use crate::digest::digest;
use crate::net::{Proc, Way, link_of};
use larder_core::cache::io::{CacheInput, CacheOutput};
use larder_core::id::{DomainId, HistoryId, Stamp};
use larder_core::machine::{LinkInput, Machine};
use larder_core::message::Lane;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A step of a machine that waits for a reader's look at the clock.
#[derive(Debug)]
pub(super) struct Armed {
    node: Proc,
    /// What the readers could see before.
    before: BTreeMap<DomainId, (HistoryId, Stamp)>,
    step: Arc<Mutex<Step>>,
}

#[derive(Debug)]
struct Step {
    input: Option<LinkInput>,
    out: Vec<CacheOutput>,
    /// How often the clock had been looked at when the step was taken.
    looks: Option<u64>,
}

impl World {
    /// If the next message of the stream of the client's node is under way, lets it arrive in the
    /// middle of the client's next operation.
    pub(crate) fn arm_clock(&mut self, client: usize, aged: bool) {
        self.shown_before.clear();
        if !aged || !self.rng.chance(1, 4) {
            return;
        }
        let proc = self.client_node(client);
        let Some(conn) = self.process(proc).uplink else {
            return;
        };
        let Some(flight) = self.net.take_early(conn, Way::Down, Lane::Stream) else {
            return;
        };
        self.trace.mix(digest(&flight.message));
        self.trace.line(|| format!("{proc:?} receives while it reads: {:?}", flight.message));
        let input = LinkInput::Received {
            link: link_of(conn),
            message: flight.message,
            bytes: flight.bytes,
        };
        let now = self.process(proc).local(self.now);
        let node = self.process(proc).node_ref();
        let machine = Arc::clone(node.machine.as_ref().expect("its client lives"));
        let read = node.read.as_ref().expect("its client lives");
        let domains = self.domains.iter();
        let shown =
            |domain: &DomainId| Some((*domain, (read.history(*domain)?, read.through(*domain)?)));
        let before = domains.filter_map(shown).collect();
        let step = Arc::new(Mutex::new(Step { input: Some(input), out: Vec::new(), looks: None }));
        let clock = node.clock.clone();
        let (step_there, clock_there) = (Arc::clone(&step), clock.clone());
        clock.arm(Box::new(move || {
            let mut step = step_there.lock().expect("taken by one thread");
            let looks = clock_there.looks();
            if let Some(input) = step.input.take() {
                lock(&machine).handle(now, CacheInput::Link(input), &mut step.out);
                // The machine's own looks do not count.
                clock_there.set_looks(looks);
                step.looks = Some(looks);
            }
        }));
        self.armed = Some(Armed { node: proc, before, step });
    }

    /// A read succeeded at `stamp`: the age of that state was looked at after it was copied.
    pub(crate) fn check_clock(
        &self,
        client: usize,
        age_max: Option<u64>,
        domain: DomainId,
        stamp: Stamp,
    ) {
        if let Some(age_max) = age_max {
            self.check_age(client, age_max, domain, stamp);
        }
        let Some(armed) = &self.armed else {
            return;
        };
        let Some(looks) = armed.step.lock().expect("taken by one thread").looks else {
            return;
        };
        let clock = &self.process(armed.node).node_ref().clock;
        let before = armed.before.get(&domain).map_or(Stamp::ZERO, |(_, stamp)| *stamp);
        assert!(
            clock.looks() > looks || stamp <= before,
            "rule 8: client {client} is given the state of {stamp}, but looked at the clock when \
             valid-through was {before}"
        );
    }

    /// The history that the client's node showed with `stamp` when its operation began, if the
    /// machine went on in the middle of it.
    pub(crate) fn history_before(&self, domain: DomainId, stamp: Stamp) -> Option<HistoryId> {
        let shown = match &self.armed {
            Some(armed) => {
                armed.step.lock().expect("taken by one thread").looks?;
                &armed.before
            }
            None => &self.shown_before,
        };
        let (history, before) = *shown.get(&domain)?;
        (before == stamp).then_some(history)
    }

    /// The operation is over: what the machine did meanwhile takes effect. If the reader never
    /// looked, the message arrives now.
    pub(crate) fn disarm_clock(&mut self) {
        let Some(armed) = self.armed.take() else {
            return;
        };
        self.process(armed.node).node_ref().clock.disarm();
        let (input, out, ran) = {
            let mut step = armed.step.lock().expect("taken by one thread");
            (step.input.take(), std::mem::take(&mut step.out), step.looks.is_some())
        };
        if ran {
            self.shown_before = armed.before;
            self.node_outputs(armed.node, out);
        } else if let Some(input) = input {
            self.node_link(armed.node, input);
        }
    }
}
