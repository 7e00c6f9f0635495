//! Connections: made, used, broken, as the runtime would.

use super::origin::is_said;
use super::{Event, Machinery, World};
use crate::agenda::MILLI;
use crate::digest::digest;
use crate::net::{Delivery, End, Proc, Way, conn_of, link_of};
use larder_core::commit::Outcome;
use larder_core::group::Member;
use larder_core::group::membership::MembershipInput;
use larder_core::machine::{LinkInput, LinkOutput};
use larder_core::message::{CloseReason, Message, Role};
use larder_core::origin::io::{OriginInput, PeerInput};
use larder_core::wire;

/// After which it is looked again whether an end can hear that its connection is over.
const CUT_NANOS: u64 = 500 * MILLI;
/// The longest pause between two attempts to connect, in nanoseconds.
const BACKOFF_MAX: u64 = 2_000 * MILLI;

impl World {
    /// A process without a link up will try to get one after a pause.
    pub(super) fn enter_connect(&mut self, child: Proc) {
        let process = self.process_mut(child);
        process.attempts = (process.attempts + 1).min(8);
        let (attempts, incarnation) = (process.attempts, process.incarnation);
        let longest = BACKOFF_MAX.min((10 * MILLI) << attempts);
        let pause = self.rng.below(longest) + MILLI;
        self.agenda.enter(self.now.plus(pause), Event::Connect(child, incarnation));
    }

    pub(super) fn connect(&mut self, child: Proc, incarnation: u32) {
        let process = self.process(child);
        if process.incarnation != incarnation || !process.is_up() || process.uplink.is_some() {
            return;
        }
        if self.waits(child, || Event::Connect(child, incarnation)) {
            return;
        }
        let (parent, line) = self.process(child).parent.expect("only origins have none");
        if !self.net.reachable(child, parent) || !self.process(parent).is_up() {
            self.next_parent(child);
            self.enter_connect(child);
            return;
        }
        let conn = self.net.connect(child, parent, line);
        self.process_mut(child).uplink = Some(conn);
        self.trace.line(|| format!("{child:?} connects to {parent:?} as {conn}"));
        self.enter_opens(conn, line.latency);
    }

    /// Both ends hear that they are connected: the parent first, as a listener does.
    pub(super) fn enter_opens(&mut self, conn: u32, latency: u64) {
        let first = self.now.plus(latency);
        self.agenda.enter(first, Event::Open(conn, End::Parent));
        self.agenda.enter(first.plus(latency + 1), Event::Open(conn, End::Child));
    }

    /// A member connects to a neighbour. One that is not reached is dialled again by the machine.
    pub(super) fn dial(&mut self, from: Proc, member: &Member) {
        let group = self.plan.group.as_ref().expect("only members have neighbours");
        let (line, to) = (group.line, Proc(member.address.parse().expect("a place in the world")));
        if !self.net.reachable(from, to) || !self.process(to).is_up() {
            return;
        }
        let conn = self.net.connect_neighbours(from, to, line);
        self.trace.line(|| format!("{from:?} dials its neighbour {to:?} as {conn}"));
        self.enter_opens(conn, line.latency);
    }

    pub(super) fn open_at(&mut self, conn: u32, end: End) {
        let proc = self.net.conn(conn).at(end);
        if self.waits(proc, || Event::Open(conn, end)) {
            return;
        }
        if end == End::Child && !self.net.conn(conn).is_open(End::Parent) {
            // The parent stands still, or has gone.
            if self.net.is_broken(conn) {
                return;
            }
            if self.net.conn(conn).neighbours {
                // The machine dials again; what it dialled for a minute would all be taken at once.
                self.net.closed(conn, end);
                return;
            }
            if self.net.is_cut(conn, end) {
                // Whoever dials waits for so long and no longer.
                self.break_conn(conn);
                return;
            }
            self.agenda.enter(self.now.plus(MILLI), Event::Open(conn, end));
            return;
        }
        if !self.process(proc).is_up() || !self.net.opened(conn, end) {
            return;
        }
        let link = link_of(conn);
        if self.is_between_origins(conn) {
            return self.peer_opened(conn, end);
        }
        let in_group = !self.is_stranger(self.net.conn(conn).child);
        let input = match end {
            End::Child => LinkInput::UpOpened {
                link,
                parent: u32::from(self.is_second(conn)),
                peer: self.process(self.net.conn(conn).parent).name.clone(),
                in_group,
            },
            End::Parent => {
                let child = self.process(self.net.conn(conn).child);
                let role = match child.machinery {
                    Machinery::Relay(_) => Role::Relay,
                    Machinery::Node(_) | Machinery::Origin(_) => Role::Node,
                };
                LinkInput::DownOpened { link, peer: child.name.clone(), role, in_group }
            }
        };
        self.trace.mix(0x0be0 | u64::from(conn) << 16);
        self.link_input(proc, input);
    }

    /// Whether a process is not of the group of who is above it.
    fn is_stranger(&self, proc: Proc) -> bool {
        let Some(group) = &self.plan.group else { return false };
        let place = usize::from(proc.0).checked_sub(1 + self.plan.relays.len());
        place.is_some_and(|place| group.strangers.iter().any(|it| usize::from(*it) == place))
    }

    pub(super) fn close_at(&mut self, conn: u32, end: End, reason: Option<CloseReason>) {
        let proc = self.net.conn(conn).at(end);
        if self.waits(proc, || Event::Close(conn, end, reason.clone())) {
            return;
        }
        // Over a line that is cut nobody hears of an end: who does not notice the silence knows nothing. An
        // attempt that was not answered ends by itself.
        let silent = self.net.is_cut(conn, end) && self.net.conn(conn).is_open(end);
        if silent && self.process(proc).is_up() {
            self.agenda.enter(self.now.plus(CUT_NANOS), Event::Close(conn, end, reason));
            return;
        }
        let told = self.net.closed(conn, end);
        if !self.process(proc).is_up() {
            return;
        }
        let broke = told && reason.is_none() && self.process(proc).uplink == Some(conn);
        self.trace.mix(0xc105 | u64::from(conn) << 16);
        self.trace.line(|| format!("{proc:?} hears that {conn} is closed ({reason:?})"));
        if told {
            let link = link_of(conn);
            match self.is_between_origins(conn) {
                true => self.peer_input(proc, PeerInput::Closed { link, reason }),
                false => self.link_input(proc, LinkInput::Closed { link, reason }),
            }
        }
        self.lost_uplink(proc, conn);
        if broke && self.is_member(proc) {
            self.seat_input(proc, MembershipInput::Broke);
        }
    }

    fn lost_uplink(&mut self, proc: Proc, conn: u32) {
        if self.process(proc).uplink == Some(conn) {
            self.process_mut(proc).uplink = None;
            self.enter_connect(proc);
        }
        if self.process(proc).second == Some(conn) {
            self.process_mut(proc).second = None;
            self.enter_connect_second(proc);
        }
    }

    /// Breaks a connection: each end hears of it at a time of its own.
    pub(super) fn break_conn(&mut self, conn: u32) {
        self.net.break_off(&mut self.rng, conn);
        for end in [End::Child, End::Parent] {
            let spread = if self.rng.chance(1, 3) { 8_000 * MILLI } else { 20 * MILLI };
            let delay = self.rng.below(spread);
            self.agenda.enter(self.now.plus(delay), Event::Close(conn, end, None));
        }
    }

    /// The process at `end` ended or closed the connection; the other end hears of it.
    pub(super) fn close_from(&mut self, conn: u32, end: End, reason: Option<CloseReason>) {
        let other = if end == End::Child { End::Parent } else { End::Child };
        self.net.break_off(&mut self.rng, conn);
        self.net.closed(conn, end);
        let delay = 1 + self.rng.below(50 * MILLI);
        self.agenda.enter(self.now.plus(delay), Event::Close(conn, other, reason));
    }

    /// All connections of a process that died.
    pub(super) fn close_all(&mut self, proc: Proc) {
        for conn in self.net.live() {
            for end in [End::Child, End::Parent] {
                if self.net.conn(conn).at(end) == proc {
                    self.close_from(conn, end, None);
                }
            }
        }
        let process = self.process_mut(proc);
        (process.uplink, process.second) = (None, None);
    }

    /// Carries out what a machine asks of its links.
    pub(super) fn link_output(&mut self, proc: Proc, output: LinkOutput) {
        match output {
            LinkOutput::Send { link, message } => self.send(proc, conn_of(link), message),
            LinkOutput::Close { link, reason } => {
                let conn = conn_of(link);
                let end = self.end_of(proc, conn);
                if !self.net.conn(conn).is_open(end) {
                    return;
                }
                self.trace.mix(0xc10c | u64::from(conn) << 16);
                self.trace.line(|| format!("{proc:?} closes {conn}: {reason}"));
                let accuses =
                    matches!(reason, CloseReason::Protocol(_) | CloseReason::Malformed(_));
                assert!(
                    !accuses || !self.set_backs.is_empty() || self.is_forged(conn, &reason),
                    "{proc:?} accuses the other end of {conn}, which is a machine of ours: {reason}"
                );
                let said = self.rng.chance(3, 4).then_some(reason);
                self.close_from(conn, end, said);
                if end == End::Child {
                    self.lost_uplink(proc, conn);
                }
            }
        }
    }

    fn end_of(&self, proc: Proc, conn: u32) -> End {
        if self.net.conn(conn).child == proc { End::Child } else { End::Parent }
    }

    pub(super) fn send(&mut self, proc: Proc, conn: u32, message: Message) {
        let way = match self.end_of(proc, conn) {
            End::Child => Way::Up,
            End::Parent => Way::Down,
        };
        let message = self.to_parent(proc, conn, message);
        if self.is_between_origins(conn) {
            self.oracle.sent_by_origin(&message);
            self.tally.between_origins += u64::from(is_said(&message));
        } else if self.is_origin(proc) {
            self.oracle.sent_by_origin(&message);
            self.note_answer(&message);
            let child = &self.process(self.net.conn(conn).child).name;
            self.readers.origin_sends(conn, child, &message);
            self.answers.answered(conn, &message);
        } else if matches!(self.process(proc).machinery, Machinery::Node(_))
            && !self.net.conn(conn).neighbours
        {
            self.readers.node_asks(conn, &message, self.now);
        } else if matches!(self.process(proc).machinery, Machinery::Relay(_)) && way == Way::Up {
            self.passing.passes(proc.0, conn, &message);
        } else if matches!(self.process(proc).machinery, Machinery::Relay(_)) {
            let child = &self.process(self.net.conn(conn).child).name;
            self.passing.points(proc.0, self.process(proc).uplink, child, &message);
        }
        self.trace.mix(digest(&message));
        self.trace.line(|| format!("{proc:?} sends over {conn}: {message:?}"));
        let bytes = wire::encoded_len(&message);
        let bytes = u32::try_from(bytes).expect("messages are bounded far below 4 GiB");
        let sent = self.net.send(self.now, &mut self.rng, conn, way, message, bytes);
        if let Some((due, delivery)) = sent {
            self.agenda.enter(due, Event::Deliver(delivery));
        }
    }

    /// Commits are acknowledged in the order of their stamps; validations without a commit have none.
    fn note_answer(&mut self, message: &Message) {
        let Message::Committed { domain, id, outcome: Outcome::Committed(stamp), .. } = message
        else {
            return;
        };
        if self.oracle.truth(*domain).current().stamp_of(*id) == Some(*stamp) {
            self.acks.answered(*domain, *id, *stamp);
        }
    }

    /// Deliveries that were held up come now.
    pub(super) fn enter_deliveries(&mut self, deliveries: Vec<(crate::agenda::Time, Delivery)>) {
        for (due, delivery) in deliveries {
            self.agenda.enter(due, Event::Deliver(delivery));
        }
    }

    pub(super) fn deliver(&mut self, delivery: Delivery) {
        let end = if delivery.way == Way::Up { End::Parent } else { End::Child };
        let proc = self.net.conn(delivery.conn).at(end);
        if self.waits(proc, || Event::Deliver(delivery)) {
            return;
        }
        let Some(flight) = self.net.arrive(self.now, delivery) else {
            return;
        };
        let bytes = flight.bytes;
        let message = if self.plan.wire { through_wire(flight.message) } else { flight.message };
        let message = self.of_parent(proc, delivery.conn, message);
        self.trace.mix(digest(&message));
        self.trace.line(|| {
            let conn = delivery.conn;
            format!("{proc:?} receives over {conn}: {message:?}")
        });
        if self.is_between_origins(delivery.conn) {
            return self.peer_says(delivery.conn, proc, message);
        }
        if self.is_origin(proc) {
            if let Message::Commit { domain, commit } = &message {
                self.acks.asked(*domain, commit.id);
            }
            self.readers.origin_asked(delivery.conn, &message);
            self.answers.asked(delivery.conn, &message, self.now);
        } else {
            self.check_reaches(proc, delivery.conn, &message);
            self.note_failed_pages(proc, &message);
            self.note_passing(proc, delivery, &message);
        }
        let link = link_of(delivery.conn);
        self.link_input(proc, LinkInput::Received { link, message, bytes });
    }

    fn link_input(&mut self, proc: Proc, input: LinkInput) {
        let (LinkInput::UpOpened { link, .. }
        | LinkInput::DownOpened { link, .. }
        | LinkInput::Closed { link, .. }
        | LinkInput::Received { link, .. }) = &input;
        if self.net.conn(conn_of(*link)).neighbours {
            return self.node_neighbour(proc, input);
        }
        match self.process(proc).machinery {
            Machinery::Origin(_) => self.origin_input(proc, OriginInput::Link(input)),
            Machinery::Relay(_) => self.relay_link(proc, input),
            Machinery::Node(_) => self.node_link(proc, input),
        }
    }
}

/// Encodes and decodes a message, as a real link does.
fn through_wire(message: Message) -> Message {
    let bytes = wire::encode(&message);
    let again = wire::decode(message.lane(), bytes).expect("what a machine sends can be decoded");
    let again = again.expect("machines send no message that may be ignored");
    assert!(again == message, "the wire changes {message:?} into {again:?}");
    again
}
