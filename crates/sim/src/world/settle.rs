//! The end of a run: troubles cease, all is mended, clients go on for a while and stop; then every
//! request must be answered, every queue empty, every cache agree with the origin.

use super::process::lock;
use super::{Machinery, Phase, World};
use crate::agenda::SECOND;
use crate::client::Client;
use crate::net::Proc;
use larder_core::machine::Machine;

/// Virtual time that clients go on after healing.
const ACTIVE_NANOS: u64 = 20 * SECOND;
/// Virtual time after which processes of files leave the field to those who have yet to prove that they
/// can commit.
const FILES_PROVING_NANOS: u64 = 60 * SECOND;
/// Changes that a node keeps for its readers: with so many, none is doomed by others' commits alone.
const RECENT_AMPLE: usize = 1 << 10;
/// Virtual time after which all must be at rest.
const REST_NANOS: u64 = 240 * SECOND;
/// Events after healing beyond which something runs in circles, and so many more for each process.
const REST_EVENTS: u64 = 150_000;
const REST_EVENTS_EACH: u64 = 20_000;

impl World {
    /// Heals the world, a core of it first, and waits until it is at rest. Panics when it does not come
    /// to rest.
    pub(super) fn settle(&mut self) {
        self.retire_copy();
        self.heal_core();
        self.heal();
        self.others_go_on();
        self.note_mended();
        self.come_to_rest(self.plan.events / 2);
        self.check_whole();
        self.files_at_rest();
        self.oracle.check_wholes();
        self.check_cycles();
    }

    /// Clients go on for a while, at most for so many events; then each proves that it can commit; then
    /// they stop, and all that was begun ends.
    pub(super) fn come_to_rest(&mut self, events: u64) {
        let active_until = self.now.plus(ACTIVE_NANOS);
        let active_events = self.trace.events() + events;
        self.phase = Phase::Healing(active_until);
        self.wake_clients();
        while !self.calm && self.now < active_until && self.trace.events() < active_events {
            self.step();
        }
        self.prove();
        self.phase = Phase::Draining;
        let rest_until = self.now.plus(REST_NANOS);
        let processes = self.processes.len() as u64;
        let events_max = self.trace.events() + REST_EVENTS + processes * REST_EVENTS_EACH;
        loop {
            for _ in 0..64 {
                self.step();
            }
            let Some(why) = self.unrest() else {
                break;
            };
            assert!(
                self.now < rest_until && self.trace.events() < events_max,
                "progress: {} s after healing {why}",
                (self.now.0 + REST_NANOS - rest_until.0) / SECOND
            );
        }
    }

    /// What another checker of histories was asked about.
    #[cfg(feature = "second-opinion")]
    #[must_use]
    pub fn asked(&self) -> crate::check::second::Asked {
        self.cycles.asked()
    }

    /// Whether clients are to begin nothing new.
    pub(crate) fn clients_drain(&self) -> bool {
        self.phase == Phase::Draining
    }

    /// The same for processes of files, which have no end of their own. A node that keeps no more than the
    /// last few changes dooms every reader whose page comes later than those, and whose cache keeps no
    /// page meanwhile (one in each 7,000 worlds): a proof asks for progress where nobody is in the way.
    #[cfg(feature = "files")]
    pub(crate) fn files_drain(&self) -> bool {
        match self.phase {
            Phase::Proving(since) => {
                let few = self.plan.limits.recent_max < RECENT_AMPLE;
                few && self.now >= since.plus(FILES_PROVING_NANOS)
            }
            Phase::Wild | Phase::Healing(_) => false,
            Phase::Draining => true,
        }
    }

    /// How long users wait for answers, in nanoseconds.
    pub(crate) fn patience(&self) -> u64 {
        match self.phase {
            Phase::Wild => self.plan.mix.patience,
            // Longer than anybody may have to wait.
            Phase::Healing(_) | Phase::Proving(_) | Phase::Draining => {
                (60 * SECOND).max(self.in_vain_nanos() + 20 * SECOND)
            }
        }
    }

    /// What is not yet as it must be at rest.
    fn unrest(&mut self) -> Option<String> {
        for (number, process) in self.processes.iter().enumerate() {
            let proc = Proc(number as u16);
            // One that is elected now and then: its group is looked at as a whole.
            let rests = self.runs_when_elected(proc) && !process.is_up();
            if !self.is_in_core(proc) || rests {
                continue;
            }
            if !process.is_up() {
                return Some(format!("{} is down", process.name));
            }
            if !self.is_origin(proc) && process.uplink.is_none() {
                return Some(format!("{} has no link up", process.name));
            }
            if self.has_second(proc) && process.second.is_none() {
                return Some(format!("{} has no second link", process.name));
            }
        }
        if let Some(why) = self.groups_unrest() {
            return Some(why);
        }
        let busy = |(number, client): &(u16, &Client)| {
            let there = self.is_in_core(client.node) && !self.plan.idle.contains(number);
            there && !client.is_idle()
        };
        if let Some((client, _)) = (0..).zip(&self.clients).find(busy) {
            let client = usize::from(client);
            return Some(format!("client {client} is not done: {:?}", self.clients[client]));
        }
        if let Some(why) = self.files_unrest() {
            return Some(why);
        }
        if !self.stores_idle() {
            return Some("a store has work".into());
        }
        let unrest = self.cache_unrest().or_else(|| self.left_behind());
        unrest.or_else(|| self.left_of_the_deleted()).or_else(|| self.under_way())
    }

    /// What is still in the stores of volumes that were deleted.
    fn left_of_the_deleted(&mut self) -> Option<String> {
        let domains = self.domains.clone();
        domains.into_iter().find_map(|domain| {
            let pages = self.store_host(domain).all_pages();
            let branch = self.oracle.truth(domain).current();
            let left = pages.into_iter().find(|page| branch.deleted(page.volume).is_some())?;
            Some(format!("page {left} of a deleted volume is in the store"))
        })
    }

    fn cache_unrest(&mut self) -> Option<String> {
        for domain in &self.domains {
            let truth = self.oracle.truth(*domain);
            if truth.has_failed() {
                return Some(format!("{domain:?} has failed"));
            }
            let durable = truth.current().durable();
            for (number, process) in self.processes.iter().enumerate() {
                let Machinery::Node(node) = &process.machinery else {
                    continue;
                };
                if !self.is_in_core(Proc(number as u16)) {
                    continue;
                }
                let read = node.read.as_ref().expect("it is up");
                let Some(through) = read.through(*domain) else {
                    if self.plan.mix.rights_of_all {
                        // It may read nothing there, or could not when it looked last.
                        continue;
                    }
                    return Some(format!("{} is not attached to {domain:?}", process.name));
                };
                let current = truth.branch_count() - 1;
                let history = read.history(*domain).expect("attached");
                if through != durable || truth.branch_number(history) != current {
                    return Some(format!(
                        "{} is at {through} of {domain:?}, not {durable}",
                        process.name
                    ));
                }
                // Over slow lines a short lease may never be had; a sign of life must be.
                let age = read.age(*domain, process.local(self.now));
                if age.is_none_or(|age| age.as_secs() > 10) {
                    return Some(format!("{} knows {domain:?} as of {age:?} ago", process.name));
                }
            }
        }
        None
    }

    /// Checks the whole state: every machine's own invariants, every copy of every cache.
    pub(super) fn check_whole(&mut self) {
        if self.cycles.is_due() {
            self.check_cycles();
        }
        self.seats.values().filter_map(|seat| seat.machine.as_ref()).for_each(Machine::check);
        for number in 0..self.processes.len() {
            let proc = Proc(number as u16);
            match &self.processes[number].machinery {
                Machinery::Relay(host) => {
                    if let Some(machine) = &host.machine {
                        machine.check();
                    }
                }
                Machinery::Node(node) => {
                    if let Some(machine) = &node.machine {
                        lock(machine).check();
                    }
                    self.check_node(proc);
                    self.check_all_patience(proc);
                }
                Machinery::Origin(host) => {
                    if let Some(machine) = &host.machine {
                        machine.check();
                    }
                }
            }
        }
    }
}
