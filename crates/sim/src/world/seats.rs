//! Who takes part in groups that find their redirectors themselves (decision 0034): a machine of membership in
//! each process, datagrams between them, and relays that run while their process is the redirector.
//!
//! A node that may be the redirector has a second process beside it, which is its relay: both are on one
//! machine, die and stand still together, and are parted from others together.

use super::{Event, Machinery, World};
use crate::agenda::{MICRO, SECOND, Time};
use crate::net::{End, Line, Proc, link_of};
use crate::plan::Plan;
use larder_core::group::membership::{
    Candidacy, Claim, Membership, MembershipInput, MembershipOutput, Participant,
};
use larder_core::id::BootId;
use larder_core::machine::{LinkInput, Machine};
use larder_core::relay::Relay;
use std::collections::BTreeMap;

/// The line between a node and the relay beside it.
const BESIDE: Line = Line { latency: 20 * MICRO, jitter: 0, byte_nanos: 0, bulk_spread: 0 };

/// How late a datagram may come that went astray, in nanoseconds.
const STRAY_NANOS_MAX: u64 = 8 * SECOND;

/// A process that takes part in a group.
#[derive(Debug)]
pub(super) struct Seat {
    /// The group: the number of the relay that it begins with.
    pub(super) group: u16,
    /// The process that is the redirector if this one is elected: itself, or one beside it.
    pub(super) relay: Option<Proc>,
    /// Its line to a redirector elsewhere.
    line: Line,
    candidacy: Candidacy,
    /// Who is there, while it lives.
    pub(super) machine: Option<Membership>,
    timer_at: Option<Time>,
    /// Raised when it starts and when it ends: what was meant for the life before is void.
    pub(super) lives: u32,
}

/// All processes of groups that find their redirectors themselves.
pub(super) fn seats(plan: &Plan) -> BTreeMap<Proc, Seat> {
    let Some(failover) = plan.failover() else { return BTreeMap::new() };
    let relays = plan.relays.len() as u16;
    let seat = |group, relay, line, candidacy| Seat {
        group,
        relay,
        line,
        candidacy,
        machine: None,
        timer_at: None,
        lives: 0,
    };
    let line = |process: u16| plan.lines[usize::from(process) - 1];
    let own = (1..=relays).map(|relay| {
        (Proc(relay), seat(relay, Some(Proc(relay)), line(relay), failover.of_relay()))
    });
    let nodes = (0..).zip(&plan.nodes).filter(|(_, parent)| **parent > 0).map(|(node, group)| {
        let process = relays + 1 + node;
        let standby = failover.standbys.iter().position(|it| *it == node);
        let relay = standby.map(|place| first_standby(plan, place));
        (Proc(process), seat(*group, relay, line(process), failover.of_node(node)))
    });
    own.chain(nodes).collect()
}

/// The relay beside the node of this place among those that may be redirectors.
fn first_standby(plan: &Plan, place: usize) -> Proc {
    Proc((1 + plan.relays.len() + plan.nodes.len() + place) as u16)
}

/// Relays beside nodes: the node, and the relay of whose group it is.
pub(super) fn standbys(plan: &Plan) -> impl Iterator<Item = (Proc, u16)> + '_ {
    let first = 1 + plan.relays.len() as u16;
    let nodes = plan.group.iter().flat_map(|group| group.standbys());
    nodes.map(move |node| (Proc(first + node), plan.nodes[usize::from(*node)]))
}

impl World {
    /// The relays of a group: the one it begins with, and those beside its nodes.
    pub(super) fn relays_of(&self, group: u16) -> Vec<Proc> {
        self.seats
            .values()
            .filter(|seat| seat.group == group)
            .filter_map(|seat| seat.relay)
            .collect()
    }

    /// Processes on one machine with this one, itself among them.
    pub(super) fn on_machine_of(&self, proc: Proc) -> Vec<Proc> {
        let machine = self.net.machine_of(proc);
        let relay = self.seats.get(&machine).and_then(|seat| seat.relay);
        let beside = relay.filter(|relay| *relay != machine);
        std::iter::once(machine).chain(beside).collect()
    }

    /// Whether a process is a relay that runs only while its process is the redirector.
    pub(super) fn runs_when_elected(&self, proc: Proc) -> bool {
        self.seats.get(&self.net.machine_of(proc)).is_some_and(|seat| seat.relay == Some(proc))
    }

    // ---- life and death ----

    pub(super) fn start_seat(&mut self, proc: Proc) {
        let Some(seat) = self.seats.get(&proc) else { return };
        let group = seat.group;
        let life = match &self.process(proc).machinery {
            Machinery::Node(node) => node.boot,
            Machinery::Relay(_) | Machinery::Origin(_) => BootId(self.rng.next_u128()),
        };
        let (name, address) = (self.process(proc).name.clone(), proc.0.to_string());
        let candidacy = self.seats[&proc].candidacy;
        let own = Participant { life, name, address, candidacy };
        let of_group = self.seats.iter().filter(|(_, seat)| seat.group == group);
        let seeds = of_group.map(|(proc, _)| proc.0.to_string()).collect();
        let failover = self.plan.failover().expect("there are groups that find redirectors");
        let mut config = failover.config(group, own, seeds);
        config.faults = self.plan.faults;
        let seat = self.seats.get_mut(&proc).expect("looked up above");
        (seat.machine, seat.timer_at) = (Some(Membership::new(config)), None);
        seat.lives += 1;
        self.trace.mix(0x5ea7 << 16 | u64::from(proc.0));
        self.enter_seat_timer(proc);
    }

    /// A process of a group ends: nobody hears of it. Says whether it lived.
    pub(super) fn end_seat(&mut self, proc: Proc) -> bool {
        let Some(seat) = self.seats.get_mut(&proc) else { return false };
        let lived = seat.machine.take().is_some();
        seat.timer_at = None;
        seat.lives += 1;
        if let Some(relay) = seat.relay.filter(|relay| *relay != proc) {
            self.stop_relay(relay);
        }
        lived
    }

    /// A process is the redirector no longer.
    pub(super) fn stop_relay(&mut self, relay: Proc) {
        if self.process_mut(relay).relay().machine.take().is_none() {
            return;
        }
        self.trace.mix(0x5709 << 16 | u64::from(relay.0));
        self.trace.line(|| format!("{relay:?} is no redirector any more"));
        self.close_all(relay);
        let process = self.process_mut(relay);
        process.incarnation += 1;
        (process.timer_at, process.attempts) = (None, 0);
        self.line_is(relay, None);
    }

    /// The line of a relay that runs while its process is the redirector stands, or does not; none: it has ended.
    pub(super) fn line_is(&mut self, relay: Proc, line: Option<bool>) {
        if self.runs_when_elected(relay) {
            self.seat_input(self.net.machine_of(relay), MembershipInput::Line(line));
        }
    }

    /// A process is to find out whether its line stands: as long as that takes later. A relay that runs dials now.
    fn look(&mut self, proc: Proc) {
        let seat = &self.seats[&proc];
        let (relay, life) = (seat.relay.expect("who may be elected has one"), seat.lives);
        if self.process(relay).is_relaying() {
            let incarnation = self.process(relay).incarnation;
            self.agenda.enter(self.now.plus(MICRO), Event::Connect(relay, incarnation));
            return;
        }
        let (_, line) = self.process(relay).parent.expect("only origins have none");
        let at = self.now.plus(4 * line.latency + MICRO);
        self.agenda.enter(at, Event::Look(proc, life));
    }

    pub(super) fn looked(&mut self, proc: Proc, life: u32) {
        let seat = &self.seats[&proc];
        let relay = seat.relay.expect("it looked");
        if seat.lives != life || self.process(relay).is_relaying() {
            return;
        }
        if self.waits(proc, || Event::Look(proc, life)) {
            return;
        }
        let welcomes = |parent: &Proc| {
            let process = self.process(*parent);
            let serves = match &process.machinery {
                Machinery::Relay(host) => host.machine.as_ref().is_some_and(Relay::is_ready),
                Machinery::Origin(_) | Machinery::Node(_) => process.is_up(),
            };
            serves && self.net.reachable(relay, *parent)
        };
        let stands = self.process(relay).parents.iter().any(welcomes);
        self.seat_input(proc, MembershipInput::Looked(stands));
    }

    // ---- steps ----

    pub(super) fn enter_seat_timer(&mut self, proc: Proc) {
        let machine = self.seats.get(&proc).and_then(|seat| seat.machine.as_ref());
        let Some(machine) = machine else { return };
        let Some(local) = machine.next_timeout() else { return };
        let at = self.process(proc).rate.global(local).max(self.now);
        let seat = self.seats.get_mut(&proc).expect("looked up above");
        if seat.timer_at.is_none_or(|entered| at < entered) {
            seat.timer_at = Some(at);
            self.agenda.enter(at, Event::Seat(proc, seat.lives));
        }
    }

    /// The time of a machine of membership has come.
    pub(super) fn seat_timer(&mut self, proc: Proc, life: u32) {
        let seat = &self.seats[&proc];
        if seat.lives != life || seat.timer_at.is_none_or(|at| at > self.now) {
            return;
        }
        if self.waits(proc, || Event::Seat(proc, life)) {
            let until = self.process(proc).paused_until;
            self.seats.get_mut(&proc).expect("it has a timer").timer_at = Some(until);
            return;
        }
        let now = self.process(proc).local(self.now);
        let seat = self.seats.get_mut(&proc).expect("it has a timer");
        seat.timer_at = None;
        let Some(machine) = &mut seat.machine else { return };
        let mut out = Vec::new();
        machine.handle_timeout(now, &mut out);
        self.seat_outputs(proc, out);
    }

    pub(super) fn datagram_comes(&mut self, from: Proc, to: Proc, datagram: bytes::Bytes) {
        if self.waits(to, || Event::Datagram(from, to, datagram.clone())) {
            return;
        }
        let from = from.0.to_string();
        self.seat_input(to, MembershipInput::Received { from, datagram });
    }

    /// Whether a process is a node of a group that finds its redirectors itself.
    pub(super) fn is_member(&self, proc: Proc) -> bool {
        self.seats.contains_key(&proc) && matches!(self.process(proc).machinery, Machinery::Node(_))
    }

    pub(super) fn seat_input(&mut self, proc: Proc, input: MembershipInput) {
        let now = self.process(proc).local(self.now);
        let seat = self.seats.get_mut(&proc).expect("only processes of groups are told");
        let Some(machine) = &mut seat.machine else { return };
        let mut out = Vec::new();
        machine.handle(now, input, &mut out);
        self.seat_outputs(proc, out);
    }

    fn seat_outputs(&mut self, proc: Proc, out: Vec<MembershipOutput>) {
        for output in out {
            match output {
                MembershipOutput::Send { to, datagram } => {
                    self.send_datagram(proc, Proc(place(&to)), datagram);
                }
                MembershipOutput::Redirector(redirector) => self.follow(proc, redirector),
                MembershipOutput::Look => self.look(proc),
            }
        }
        self.enter_seat_timer(proc);
    }

    fn send_datagram(&mut self, from: Proc, to: Proc, datagram: bytes::Bytes) {
        let group = self.plan.group.as_ref().expect("there are groups");
        let failover = self.plan.failover().expect("there are groups that find redirectors");
        let (line, loss, stray) = (group.line, failover.loss_percent, failover.stray_percent);
        let delay = line.latency + self.rng.below(line.jitter + 1);
        if self.rng.below(100) < loss || self.net.is_blocked(from, to) {
            return;
        }
        for part in datagram.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.trace.mix(u64::from_le_bytes(word));
        }
        // A fault like others: it stops when all is mended.
        let strays = stray > 0 && self.mended.is_none() && self.rng.below(100) < stray;
        if strays {
            let late = delay + self.rng.below(STRAY_NANOS_MAX);
            self.agenda.enter(self.now.plus(late), Event::Datagram(from, to, datagram.clone()));
        }
        if !strays || self.rng.chance(1, 2) {
            self.agenda.enter(self.now.plus(delay), Event::Datagram(from, to, datagram));
        }
    }

    // ---- whom they follow ----

    /// A process hears who its group's redirector is. Who knows of none keeps the link that it has.
    fn follow(&mut self, proc: Proc, redirector: Option<Participant>) {
        self.trace.line(|| format!("{proc:?} follows {redirector:?}"));
        let Some(redirector) = redirector else { return };
        let (own, leader) = (&self.seats[&proc], Proc(place(&redirector.address)));
        self.trace.mix(0xf0110 << 16 | u64::from(leader.0));
        let (own_relay, line) = (own.relay, own.line);
        let relay = self.seats[&leader].relay.expect("who is elected may be");
        if let Some(own_relay) = own_relay {
            match (leader == proc, self.process(own_relay).is_relaying()) {
                (true, false) => self.start_relay(own_relay),
                (false, true) => self.stop_relay(own_relay),
                _ => {}
            }
        }
        if matches!(self.process(proc).machinery, Machinery::Node(_)) {
            self.take_parent(proc, relay, if leader == proc { BESIDE } else { line });
        }
    }

    /// A node goes to another parent, as the same process.
    fn take_parent(&mut self, node: Proc, to: Proc, line: Line) {
        let process = self.process_mut(node);
        let before = process.parent.replace((to, line));
        process.attempts = 0;
        let Some(conn) = self.process(node).uplink else {
            // It is dialled now, and not when the pause before another attempt at the one before is over.
            return self.enter_connect(node);
        };
        if before.is_some_and(|(parent, _)| parent == to) {
            return;
        }
        self.close_from(conn, End::Child, None);
        self.process_mut(node).uplink = None;
        self.node_link(node, LinkInput::Closed { link: link_of(conn), reason: None });
        self.enter_connect(node);
    }

    /// The next of the processes that may be the parent of a relay, if there are several.
    pub(super) fn next_parent(&mut self, child: Proc) {
        let process = self.process_mut(child);
        if process.parents.len() > 1
            && let Some((parent, _)) = &mut process.parent
        {
            let place = process.parents.iter().position(|it| it == parent).unwrap_or_default();
            *parent = process.parents[(place + 1) % process.parents.len()];
        }
    }

    // ---- what they are at rest ----

    /// What is not yet as it must be at rest in the groups: each has one redirector, whom all follow.
    pub(super) fn groups_unrest(&self) -> Option<String> {
        let groups: Vec<u16> = (1..=self.plan.relays.len() as u16).collect();
        groups.into_iter().find_map(|group| self.group_unrest(group))
    }

    fn group_unrest(&self, group: u16) -> Option<String> {
        let seats = self.seats.iter().filter(|(_, seat)| seat.group == group);
        let seats: Vec<(Proc, &Seat)> = seats
            .map(|(proc, seat)| (*proc, seat))
            .filter(|(proc, _)| self.is_in_core(*proc))
            .collect();
        if seats.iter().all(|(_, seat)| seat.relay.is_none()) {
            return None;
        }
        if let Some((proc, _)) = seats.iter().find(|(_, seat)| seat.machine.is_none()) {
            return Some(format!("{} is down", self.process(*proc).name));
        }
        let leads = |(_, seat): &&(Proc, &Seat)| {
            seat.relay.is_some_and(|relay| self.process(relay).is_relaying())
        };
        let leaders: Vec<&(Proc, &Seat)> = seats.iter().filter(leads).collect();
        let [(leader, of_leader)] = leaders.as_slice() else {
            let names: Vec<&String> =
                leaders.iter().map(|(proc, _)| &self.process(*proc).name).collect();
            return Some(format!("the redirectors of group {group} are {names:?}"));
        };
        let claim = |seat: &Seat| seat.machine.as_ref().and_then(Membership::claim);
        let leads: Option<Claim> = claim(of_leader);
        let other = seats.iter().find(|(_, seat)| {
            claim(seat).map(|claim| claim.leader) != leads.map(|claim| claim.leader)
        });
        if let Some((proc, _)) = other {
            let (name, leader) = (&self.process(*proc).name, &self.process(*leader).name);
            return Some(format!("{name} does not follow {leader}, the redirector of its group"));
        }
        seats.iter().find_map(|(proc, _)| {
            let process = self.process(*proc);
            let conn =
                process.uplink.filter(|_| matches!(process.machinery, Machinery::Node(_)))?;
            let parent = self.net.conn(conn).parent;
            let elsewhere = Some(parent) != of_leader.relay;
            elsewhere.then(|| format!("{} is linked to {parent:?}, no redirector", process.name))
        })
    }
}

fn place(address: &str) -> u16 {
    address.parse().expect("a place in the world")
}
