//! What a world has to do once its troubles are over: first a chosen core of it, while the others stay
//! cut off, stopped or dead; then all of it. Within a budget every client of the core that can has
//! committed, every request is answered, queues are empty, caches agree with the origin, and nothing is
//! kept for children that are gone (P7, P10).

use super::process::Asked;
use super::relay::{ONE_BY_ONE, commit_bytes_max};
use super::{Machinery, Phase, World};
use crate::agenda::{SECOND, Time};
use crate::net::{Proc, Way, conn_of};
use larder_core::cache::io::CacheReply;
use larder_core::downlink::ParentStatus;
use larder_core::message::RequestError;
use std::collections::BTreeSet;

/// Virtual time within which every client has made its proofs.
const PROOF_NANOS: u64 = 240 * SECOND;
/// Events within which they are made: more, and something runs in circles.
const PROOF_EVENTS: u64 = 2_000_000;
/// The longest that a process outside the core stands still.
const STOP_NANOS: u64 = 60 * SECOND;

/// Who has waited for so long since all was mended has waited in vain, and for so many turns of the store:
/// with one that takes seconds for each batch, commits of many wait in line.
const IN_VAIN_NANOS: u64 = 30 * SECOND;
const IN_VAIN_STORES: u64 = 20;

/// The longest that a process that died takes until it starts.
const START_NANOS: u64 = 10 * SECOND;

impl World {
    /// Whether a process is of the core that is to work now: without a core every one is.
    pub(crate) fn is_in_core(&self, proc: Proc) -> bool {
        let (core, machine) = (self.core.as_ref(), self.net.machine_of(proc));
        !self.process(machine).retired && core.is_none_or(|core| core.contains(&machine))
    }

    /// A core of the world heals, and works, while all others are away. With a log that hangs, or
    /// nobody to leave out, there is none.
    pub(super) fn heal_core(&mut self) {
        if !self.plan.heals_core || self.hung().is_some() {
            return;
        }
        let core = self.draw_core();
        let others = (1..self.processes.len() as u16).map(Proc);
        let others = others.filter(|proc| {
            let is_beside = self.net.machine_of(*proc) != *proc;
            !core.contains(proc) && !self.process(*proc).retired && !is_beside
        });
        let others: Vec<Proc> = others.collect();
        if others.is_empty() {
            return;
        }
        self.trace.line(|| format!("the core is {core:?}"));
        self.core = Some(core);
        for proc in others {
            self.leave_out(proc);
        }
        self.heal_within();
        self.note_mended();
        self.come_to_rest(self.plan.events / 8);
        self.check_whole();
        self.tally.cores += 1;
        self.core = None;
        self.mended = None;
        self.held_down.clear();
    }

    /// The origins, some of the nodes, and the relays on their way.
    fn draw_core(&mut self) -> BTreeSet<Proc> {
        let first = 1 + self.plan.relays.len() as u16;
        let last = first + self.plan.nodes.len() as u16;
        let nodes: Vec<Proc> = (first..last).map(Proc).collect();
        let nodes: Vec<Proc> =
            nodes.into_iter().filter(|node| !self.process(*node).retired).collect();
        let mut core: BTreeSet<Proc> = self.origins().collect();
        let sure = nodes[self.rng.below(nodes.len() as u64) as usize];
        for node in nodes {
            if node == sure || self.rng.chance(1, 2) {
                if !self.seats.is_empty() {
                    self.add_to_core(node, &mut core);
                    continue;
                }
                let mut member = node;
                while core.insert(member)
                    && let Some((parent, _)) = self.process(member).parent
                {
                    member = parent;
                }
            }
        }
        core
    }

    /// A node, and somebody who may be the redirector of its group, and of the group above that.
    fn add_to_core(&mut self, node: Proc, core: &mut BTreeSet<Proc>) {
        core.insert(node);
        let mut group = self.seats.get(&node).map_or(0, |seat| seat.group);
        while group > 0 {
            let may = self.seats.iter().filter(|(proc, seat)| {
                seat.group == group && seat.relay.is_some() && !self.process(**proc).retired
            });
            let may: Vec<Proc> = may.map(|(proc, _)| *proc).collect();
            if !may.is_empty() && !may.iter().any(|proc| core.contains(proc)) {
                core.insert(may[self.rng.below(may.len() as u64) as usize]);
            }
            group = self.plan.relays[usize::from(group) - 1];
        }
    }

    /// Nothing reaches it or comes from it; it may be dead, or stand still, as well.
    fn leave_out(&mut self, proc: Proc) {
        let (parent, _) = self.process(proc).parent.expect("origins are of every core");
        let core = self.core.clone().filter(|_| !self.seats.is_empty()).unwrap_or_default();
        let second = self.has_second(proc).then(|| self.second_parent(proc));
        for other in std::iter::once(parent).chain(second).chain(core) {
            self.net.block(proc, other);
            self.net.block(other, proc);
        }
        match self.rng.below(3) {
            0 => {}
            1 => {
                self.held_down.insert(proc);
                match self.process(proc).machinery {
                    Machinery::Relay(_) => self.kill_relay(proc),
                    _ => self.kill_node(proc),
                }
            }
            _ => self.stand_still(proc, STOP_NANOS),
        }
    }

    /// Troubles that last are mended, between processes of the core.
    fn heal_within(&mut self) {
        for (from, to) in self.net.blocked() {
            if self.is_in_core(from) && self.is_in_core(to) {
                let deliveries = self.net.unblock(self.now, from, to);
                self.enter_deliveries(deliveries);
            }
        }
        for conn in self.net.live() {
            let ends = self.net.conn(conn);
            if self.is_in_core(ends.child) && self.is_in_core(ends.parent) {
                for way in [Way::Up, Way::Down] {
                    let deliveries = self.net.unclog(self.now, conn, way);
                    self.enter_deliveries(deliveries);
                }
            }
        }
        for number in 0..self.domains.len() {
            self.set_full(number, false);
        }
        for number in 0..self.processes.len() {
            if self.is_in_core(Proc(number as u16)) {
                let process = &mut self.processes[number];
                process.paused_until = process.paused_until.min(self.now.plus(SECOND));
            }
        }
        self.clocks_go_on();
    }

    /// Every client of the core commits: a strict reader, then a writer of an object of its own, which
    /// nobody else is after.
    pub(super) fn prove(&mut self) {
        if self.calm {
            return;
        }
        self.phase = Phase::Proving(self.now);
        self.clients.iter_mut().for_each(crate::client::Client::begin_proofs);
        self.wake_clients();
        let (until, events_max) = (self.now.plus(PROOF_NANOS), self.trace.events() + PROOF_EVENTS);
        while let Some(client) = self.unproved() {
            assert!(
                self.now < until && self.trace.events() < events_max,
                "progress: {} s after healing client {client} has ended {} of {} transactions: \
                 {:?}",
                (self.now.0 + PROOF_NANOS - until.0) / SECOND,
                self.clients[client].proofs(),
                self.proofs_of(client),
                self.clients[client]
            );
            for _ in 0..16 {
                self.step();
            }
        }
        let took = self.now.0 + PROOF_NANOS - until.0;
        self.tally.proof_nanos_max = self.tally.proof_nanos_max.max(took);
    }

    /// A client of the core that has not committed what it has to.
    fn unproved(&self) -> Option<usize> {
        let open = |(number, client): &(u16, &crate::client::Client)| {
            let idle = self.plan.idle.contains(number);
            client.proofs() < self.proofs_of(usize::from(*number))
                && self.is_in_core(client.node)
                && !idle
        };
        let found = (0..).zip(&self.clients).find(open);
        found.map(|(number, _)| usize::from(number))
    }

    /// Whether clients have to commit now; whether this one does.
    pub(crate) fn client_has_to_prove(&self, client: usize) -> Option<bool> {
        let node = self.client_node(client);
        matches!(self.phase, Phase::Proving(_)).then(|| self.is_in_core(node))
    }

    /// What parents of the core keep for children that are gone, or of requests that are over.
    pub(super) fn left_behind(&self) -> Option<String> {
        for (number, process) in self.processes.iter().enumerate() {
            if !self.is_in_core(Proc(number as u16)) {
                continue;
            }
            let status = match &process.machinery {
                Machinery::Origin(host) => host.machine.as_ref().map(|machine| machine.status()),
                Machinery::Relay(host) => host.machine.as_ref().map(|machine| machine.status()),
                Machinery::Node(node) if node.asked.is_empty() => None,
                Machinery::Node(node) => {
                    return Some(format!("{} has not answered {:?}", process.name, node.asked));
                }
            };
            if let Some(what) = status.and_then(|status| self.kept_in_vain(&status)) {
                return Some(format!("{} {what}", process.name));
            }
        }
        None
    }

    fn kept_in_vain(&self, status: &ParentStatus) -> Option<String> {
        for child in &status.children {
            let conn = conn_of(child.link);
            let proc = self.net.conn(conn).child;
            let process = self.process(proc);
            let links = [process.uplink, process.second];
            if !self.is_in_core(proc) || !links.contains(&Some(conn)) {
                return Some(format!("keeps a link of {}, which is gone", child.name));
            }
            if child.unanswered > 0 {
                let count = child.unanswered;
                return Some(format!("has {count} requests of {} without an answer", child.name));
            }
            for followed in &child.domains {
                assert!(
                    followed.directory.pages <= self.plan.limits.registered_pages_max,
                    "P7: {} is registered for more than it may be: {followed:?}",
                    child.name
                );
            }
        }
        None
    }

    /// A process does nothing for so long.
    pub(super) fn stand_still(&mut self, proc: Proc, nanos: u64) {
        let until = self.now.plus(nanos);
        for proc in self.on_machine_of(proc) {
            self.process_mut(proc).paused_until = until;
            self.stalls.push((proc, until));
        }
    }

    /// Every request ends with its user's patience (P10), but for what clocks are off, and for pauses.
    pub(super) fn check_patience(&self, proc: Proc, number: u64) {
        let Some(request) = self.process(proc).node_ref().asked.get(&number) else { return };
        let Asked { at: asked, patience, .. } = request;
        let bias = self.bias_ppm();
        let mut due = asked.plus(patience + patience * bias / 1_000_000 + SLACK_NANOS);
        for (time, nanos) in &self.set_backs {
            // One that was set back below its beginning stands still for as long, from that on: a
            // machine that is off begins to count when it starts.
            if time.plus(*nanos + START_NANOS) >= *asked {
                due = due.plus(*nanos + *nanos * bias / 1_000_000);
            }
        }
        for (stalled, until) in &self.stalls {
            if *stalled == proc && until >= asked {
                due = due.max(until.plus(SLACK_NANOS));
            }
        }
        assert!(
            self.now <= due,
            "P10: request {number} of {proc:?} was asked at {asked:?} with the patience of {patience} \
             ns, and at {:?} it has no answer; due at {due:?}, bias {bias} ppm, set back {:?}",
            self.now,
            self.set_backs
        );
    }

    /// All is mended now, and may take a while to come back: links that are dead are noticed, those who
    /// died start, what was held up comes through.
    pub(super) fn note_mended(&mut self) {
        let back = 2 * u64::try_from(self.plan.limits.silence.as_nanos()).unwrap_or(u64::MAX);
        let back = back.saturating_add(self.plan.failover_nanos() + self.plan.taken_over_nanos());
        self.mended = Some(self.now.plus(back.saturating_add(START_NANOS)));
    }

    /// Once all is mended nobody waits in vain (P10): a user whose time is up has not only been told
    /// so, but should have been answered.
    pub(super) fn check_answered(
        &self,
        proc: Proc,
        number: u64,
        result: &Result<CacheReply, RequestError>,
    ) {
        let Some(request) = self.process(proc).node_ref().asked.get(&number) else { return };
        let asked = request.at;
        let unanswered = matches!(
            result,
            Err(RequestError::TimedOut | RequestError::Unavailable(_))
                | Ok(CacheReply::InDoubt { lost: false, .. })
        );
        let since = self.mended.map_or(asked, |mended| mended.max(asked));
        let way = self.way_up(proc);
        let stalls = self.stalls.iter().filter(|(stalled, _)| way.contains(stalled));
        let since = stalls.map(|(_, until)| *until).fold(since, Time::max);
        let waited = self.now.0.saturating_sub(since.0);
        assert!(
            !unanswered
                || waited < self.in_vain_nanos() + self.turns_nanos(&way, request)
                || self.mended.is_none()
                || !self.is_in_core(proc),
            "progress: request {number} of {proc:?} waited in vain for {} s after all was mended: \
             {result:?}",
            waited / SECOND
        );
    }

    /// How long somebody may wait once all is mended.
    pub(super) fn in_vain_nanos(&self) -> u64 {
        IN_VAIN_NANOS + IN_VAIN_STORES * self.plan.store_nanos
    }

    /// Requests that no origin has answered, where the log takes few commits at once.
    pub(super) fn waiting_at_origins(&self) -> usize {
        if self.plan.limits.append_records_max > 4 {
            return 0;
        }
        let statuses = self.processes.iter().filter_map(|process| match &process.machinery {
            Machinery::Origin(host) => host.machine.as_ref().map(|machine| machine.status()),
            Machinery::Relay(_) | Machinery::Node(_) => None,
        });
        let waiting = |status: ParentStatus| -> usize {
            status.children.iter().map(|child| child.unanswered as usize).sum()
        };
        statuses.map(waiting).sum()
    }

    /// How long so many pages take whose answers come one after the other, where a link takes few requests, and the node's
    /// users have turns (bug 213);
    /// below a relay, whose link all share, what each of the others asks: a request, and one before; and what
    /// was ahead of it at a log that takes few commits at once. And what an origin may have to load for it, as many of each
    /// other and as many for those who came before.
    fn turns_nanos(&self, way: &BTreeSet<Proc>, asked: &Asked) -> u64 {
        let Asked { pages, loads, ahead, .. } = *asked;
        let each = |line: &crate::net::Line| 2 * (line.latency + line.jitter) + line.bulk_spread;
        let slowest = self.plan.lines.iter().map(each).max().unwrap_or_default();
        let requests = u64::from(self.plan.limits.requests_max);
        let one_by_one = commit_bytes_max(&self.plan.limits) == ONE_BY_ONE;
        let places = if one_by_one { 1 } else { requests };
        let kinds = self.processes.iter().map(|process| &process.machinery);
        let nodes = kinds.filter(|kind| matches!(kind, Machinery::Node(_))).count() as u64;
        let crowd = if way.len() > 2 { 2 * nodes / places * slowest } else { 0 };
        let appends = (ahead / self.plan.limits.append_records_max) as u64;
        let log = appends * (IN_VAIN_STORES / 2) * self.plan.store_nanos;
        let of_files = self.plan.files.as_ref().map_or(0, |files| files.clients);
        let users = (self.plan.clients as u64).max(of_files as u64) + 1;
        let everybody = (self.plan.clients + of_files) as u64 + 1;
        let few = self.plan.bounds.loads_max;
        let in_turn = self.plan.store_nanos / 4 * 2 * loads as u64 * everybody;
        let store = few.map_or(0, |few| in_turn / few as u64);
        pages as u64 * users / requests * slowest + crowd + log + store
    }

    /// A process and all above it, by any way.
    fn way_up(&self, proc: Proc) -> BTreeSet<Proc> {
        let parent = |proc: &Proc| self.process(*proc).parent.map(|(parent, _)| parent);
        let mut way: BTreeSet<Proc> = std::iter::successors(Some(proc), parent).collect();
        // What is done over two origins waits for both.
        way.extend(self.second_origin());
        way
    }

    /// The same for all that are open.
    pub(super) fn check_all_patience(&self, proc: Proc) {
        let process = self.process(proc);
        if process.paused_until > self.now {
            return;
        }
        for number in process.node_ref().asked.keys() {
            self.check_patience(proc, *number);
        }
    }
}

/// What an answer may come late by: events of one moment take turns.
const SLACK_NANOS: u64 = 1_000_000;
