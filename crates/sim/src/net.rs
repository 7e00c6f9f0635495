//! The network: connections of three lanes each way, with delay, clogs, breaks and loss.
//!
//! In the control and stream lanes messages arrive in order. Bulk messages take turns on the wire
//! (decision 0001), so each has a delay of its own and may overtake others. Across lanes nothing is
//! in order. A message is lost only with its connection: what was in flight at a break arrives in
//! part, a prefix of each ordered lane and any of the bulk messages, and each end learns of the
//! break at a time of its own. A clogged direction holds its
//! messages until it is cleared; a partition clogs every connection between two processes and
//! lets no new one be made.

use crate::agenda::{MICRO, Time};
use larder_core::id::LinkId;
use larder_core::message::{CloseReason, Lane, Message};
use larder_core::rng::Rng;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A process, by its place in the world: 0 is the origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Proc(pub u16);

/// Which way a message goes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Way {
    /// From child to parent.
    Up,
    /// From parent to child.
    Down,
}

/// Which end of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum End {
    /// The one that connected.
    Child,
    /// The one that was connected to.
    Parent,
}

/// How slow the line between two processes is.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// Nanoseconds that every message takes.
    pub latency: u64,
    /// At most so many more, drawn for each.
    pub jitter: u64,
    /// Nanoseconds a byte of the bulk lane takes.
    pub byte_nanos: u64,
    /// A bulk message takes at most so many more: others are sent by turns with it.
    pub bulk_spread: u64,
}

/// A connection. Both ends call it by one number.
#[derive(Debug)]
pub struct Conn {
    /// Who connected.
    pub child: Proc,
    /// To whom.
    pub parent: Proc,
    /// They are neighbours: neither is the other's parent.
    pub neighbours: bool,
    line: Line,
    ways: [Direction; 2],
    /// Whether the machine at each end has been told that it is open and not that it is closed.
    open: [bool; 2],
    broken: bool,
}

#[derive(Debug, Default)]
struct Direction {
    lanes: [VecDeque<Flight>; 3],
    due_last: [Time; 3],
    clogged: bool,
}

/// A message under way.
#[derive(Debug)]
pub struct Flight {
    /// What.
    pub message: Message,
    /// Its encoded size.
    pub bytes: u32,
    number: u64,
    due: Time,
}

/// All connections ever made, and which processes cannot reach which.
#[derive(Debug, Default)]
pub struct Net {
    conns: Vec<Conn>,
    /// Open or breaking ones, so that faults need not look at all that ever were.
    live: BTreeSet<u32>,
    /// Messages sent so far.
    sent: u64,
    /// By machines.
    blocked: BTreeSet<(Proc, Proc)>,
    /// Processes that run on another one's machine, and on whose.
    beside: BTreeMap<Proc, Proc>,
}

/// A message to be delivered, as the agenda has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// Over which connection.
    pub conn: u32,
    /// Which way.
    pub way: Way,
    /// In which lane.
    pub lane: Lane,
    /// Which of its messages: of those in order the first is delivered, whichever was due.
    number: u64,
}

impl Conn {
    fn way(&mut self, way: Way) -> &mut Direction {
        &mut self.ways[way as usize]
    }

    /// The process at an end.
    #[must_use]
    pub fn at(&self, end: End) -> Proc {
        match end {
            End::Child => self.child,
            End::Parent => self.parent,
        }
    }

    /// Whether the machine at `end` believes it open.
    #[must_use]
    pub fn is_open(&self, end: End) -> bool {
        self.open[end as usize]
    }

    fn in_flight(&self) -> usize {
        let lanes = self.ways.iter().flat_map(|way| way.lanes.iter());
        lanes.map(VecDeque::len).sum()
    }
}

/// The number by which both machines call a connection.
#[must_use]
pub fn link_of(conn: u32) -> LinkId {
    LinkId(u64::from(conn) + 1)
}

/// The connection that machines call `link`.
#[must_use]
pub fn conn_of(link: LinkId) -> u32 {
    u32::try_from(link.0 - 1).expect("fewer connections than that")
}

impl Net {
    /// Makes a connection, not yet told to either end.
    pub fn connect(&mut self, child: Proc, parent: Proc, line: Line) -> u32 {
        let number = u32::try_from(self.conns.len()).expect("fewer connections than that");
        let mut ways = [Direction::default(), Direction::default()];
        ways[Way::Up as usize].clogged = self.is_blocked(child, parent);
        ways[Way::Down as usize].clogged = self.is_blocked(parent, child);
        let (open, neighbours) = ([false, false], false);
        self.conns.push(Conn { child, parent, neighbours, line, ways, open, broken: false });
        self.live.insert(number);
        number
    }

    /// The same between neighbours: the one that dials counts as the child.
    pub fn connect_neighbours(&mut self, from: Proc, to: Proc, line: Line) -> u32 {
        let conn = self.connect(from, to, line);
        self.conns[conn as usize].neighbours = true;
        conn
    }

    /// A process runs on another one's machine: what parts that from others parts it, too.
    pub fn put_beside(&mut self, process: Proc, other: Proc) {
        self.beside.insert(process, other);
    }

    /// The process whose machine it runs on: itself, mostly.
    #[must_use]
    pub fn machine_of(&self, process: Proc) -> Proc {
        self.beside.get(&process).copied().unwrap_or(process)
    }

    /// Whether nothing from `from` reaches `to`.
    #[must_use]
    pub fn is_blocked(&self, from: Proc, to: Proc) -> bool {
        self.blocked.contains(&(self.machine_of(from), self.machine_of(to)))
    }

    /// Whether a new connection can be made now: messages pass both ways.
    #[must_use]
    pub fn reachable(&self, a: Proc, b: Proc) -> bool {
        !self.is_blocked(a, b) && !self.is_blocked(b, a)
    }

    /// A connection.
    #[must_use]
    pub fn conn(&self, conn: u32) -> &Conn {
        &self.conns[conn as usize]
    }

    /// Connections that are not over, in order.
    #[must_use]
    pub fn live(&self) -> Vec<u32> {
        self.live.iter().copied().collect()
    }

    /// How many messages are under way over all connections.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.live.iter().map(|conn| self.conns[*conn as usize].in_flight()).sum()
    }

    /// Notes that the machine at `end` was told that the connection stands. False: it broke
    /// before, and the machine must not be told.
    pub fn opened(&mut self, conn: u32, end: End) -> bool {
        let conn = &mut self.conns[conn as usize];
        if !conn.broken {
            conn.open[end as usize] = true;
        }
        !conn.broken
    }

    /// Notes that the machine at `end` knows the connection is over. False: it knew before.
    pub fn closed(&mut self, number: u32, end: End) -> bool {
        let conn = &mut self.conns[number as usize];
        let was_open = std::mem::replace(&mut conn.open[end as usize], false);
        conn.broken = true;
        let toward = if end == End::Child { Way::Down } else { Way::Up };
        for lane in &mut conn.way(toward).lanes {
            lane.clear();
        }
        if !conn.open[0] && !conn.open[1] {
            self.live.remove(&number);
        }
        was_open
    }

    /// Sends a message. Gives the time of its delivery, to be entered in the agenda; none when
    /// the connection is broken and it is lost.
    pub fn send(
        &mut self,
        now: Time,
        rng: &mut Rng,
        conn: u32,
        way: Way,
        message: Message,
        bytes: u32,
    ) -> Option<(Time, Delivery)> {
        let lane = message.lane();
        let entry = &mut self.conns[conn as usize];
        if entry.broken {
            return None;
        }
        let line = entry.line;
        let direction = &mut entry.ways[way as usize];
        let mut due = now.plus(line.latency + rng.below(line.jitter + 1));
        if lane == Lane::Bulk {
            let turns = rng.below(line.bulk_spread + 1);
            due = due.plus(u64::from(bytes) * line.byte_nanos + turns);
        } else {
            let last = &mut direction.due_last[lane as usize];
            due = due.max(last.plus(1));
            *last = due;
        }
        self.sent += 1;
        let number = self.sent;
        direction.lanes[lane as usize].push_back(Flight { message, bytes, number, due });
        Some((due, Delivery { conn, way, lane, number }))
    }

    /// Takes the message whose delivery is due, unless it is held up, lost or taken already.
    pub fn arrive(&mut self, now: Time, delivery: Delivery) -> Option<Flight> {
        let conn = &mut self.conns[delivery.conn as usize];
        let end = if delivery.way == Way::Up { End::Parent } else { End::Child };
        if !conn.open[end as usize] {
            return None;
        }
        let direction = conn.way(delivery.way);
        if direction.clogged {
            return None;
        }
        let lane = &mut direction.lanes[delivery.lane as usize];
        let place = match delivery.lane {
            Lane::Control | Lane::Stream => 0,
            Lane::Bulk => lane.iter().position(|flight| flight.number == delivery.number)?,
        };
        if lane.get(place)?.due > now {
            return None;
        }
        lane.remove(place)
    }

    /// Takes the next message of a lane before it is due, as another schedule would have it.
    pub fn take_early(&mut self, conn: u32, way: Way, lane: Lane) -> Option<Flight> {
        let conn = &mut self.conns[conn as usize];
        let end = if way == Way::Up { End::Parent } else { End::Child };
        if !conn.open[end as usize] || conn.way(way).clogged {
            return None;
        }
        conn.way(way).lanes[lane as usize].pop_front()
    }

    /// Breaks a connection: of what is in flight a prefix of each ordered lane and any of the bulk
    /// messages still arrive, as far as the ends are not told before. The caller enters the two closings in the agenda.
    pub fn break_off(&mut self, rng: &mut Rng, conn: u32) {
        let conn = &mut self.conns[conn as usize];
        conn.broken = true;
        for direction in &mut conn.ways {
            for lane in [Lane::Control, Lane::Stream] {
                let lane = &mut direction.lanes[lane as usize];
                let kept = rng.below(lane.len() as u64 + 1);
                lane.truncate(usize::try_from(kept).expect("a prefix of a queue"));
            }
            let bulk = &mut direction.lanes[Lane::Bulk as usize];
            let percent = rng.below(101);
            bulk.retain(|_| rng.below(100) < percent);
        }
    }

    /// Whether it is broken.
    #[must_use]
    pub fn is_broken(&self, conn: u32) -> bool {
        self.conns[conn as usize].broken
    }

    /// Holds up one direction of one connection.
    pub fn clog(&mut self, conn: u32, way: Way) {
        self.conns[conn as usize].way(way).clogged = true;
    }

    /// Lets go of it, unless a partition holds it too. Gives the deliveries to be entered anew.
    pub fn unclog(&mut self, now: Time, conn: u32, way: Way) -> Vec<(Time, Delivery)> {
        let entry = self.conn(conn);
        let (from, to) = match way {
            Way::Up => (entry.child, entry.parent),
            Way::Down => (entry.parent, entry.child),
        };
        if self.is_blocked(from, to) {
            return Vec::new();
        }
        let direction = self.conns[conn as usize].way(way);
        direction.clogged = false;
        let mut deliveries = Vec::new();
        for (lane, queue) in
            [Lane::Control, Lane::Stream, Lane::Bulk].into_iter().zip(&direction.lanes)
        {
            for flight in queue {
                let number = flight.number;
                deliveries.push((flight.due.max(now), Delivery { conn, way, lane, number }));
            }
        }
        deliveries
    }

    /// Nothing from `from` reaches `to` until it is unblocked.
    pub fn block(&mut self, from: Proc, to: Proc) {
        let (from, to) = (self.machine_of(from), self.machine_of(to));
        if from == to {
            return;
        }
        self.blocked.insert((from, to));
        for (conn, way) in self.between(from, to) {
            self.clog(conn, way);
        }
    }

    /// Ends that. Gives the deliveries to be entered anew.
    pub fn unblock(&mut self, now: Time, from: Proc, to: Proc) -> Vec<(Time, Delivery)> {
        let (from, to) = (self.machine_of(from), self.machine_of(to));
        self.blocked.remove(&(from, to));
        let mut deliveries = Vec::new();
        for (conn, way) in self.between(from, to) {
            deliveries.extend(self.unclog(now, conn, way));
        }
        deliveries
    }

    /// Whether nothing from the other end reaches this one.
    #[must_use]
    pub fn is_cut(&self, conn: u32, end: End) -> bool {
        let conn = &self.conns[conn as usize];
        let other = if end == End::Child { conn.parent } else { conn.child };
        self.is_blocked(other, conn.at(end))
    }

    /// Pairs of machines that are blocked.
    #[must_use]
    pub fn blocked(&self) -> Vec<(Proc, Proc)> {
        self.blocked.iter().copied().collect()
    }

    fn between(&self, from: Proc, to: Proc) -> Vec<(u32, Way)> {
        let live = self.live.iter();
        live.filter_map(|number| {
            let conn = &self.conns[*number as usize];
            let (child, parent) = (self.machine_of(conn.child), self.machine_of(conn.parent));
            if (child, parent) == (from, to) {
                Some((*number, Way::Up))
            } else if (parent, child) == (from, to) {
                Some((*number, Way::Down))
            } else {
                None
            }
        })
        .collect()
    }
}

/// A reason for the end of a connection that breaks, as nobody said any.
pub const NO_REASON: Option<CloseReason> = None;

/// Draws a line: most are quick, some cross an ocean, some are uneven.
#[must_use]
pub fn draw_line(rng: &mut Rng) -> Line {
    let latency = MICRO * [20, 100, 1_000, 10_000, 80_000][rng.below(5) as usize];
    let jitter = match rng.below(3) {
        0 => 0,
        1 => latency / 4,
        _ => latency * 4,
    };
    let byte_nanos = [0, 1, 10, 1_000][rng.below(4) as usize];
    let bulk_spread = latency * [0, 1, 8][rng.below(3) as usize];
    Line { latency, jitter, byte_nanos, bulk_spread }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::id::{BootId, DomainId, RequestId};

    /// Sends forty messages of a lane at once and gives the order in which they arrive.
    fn arrivals(message: impl Fn(u64) -> Message, read: impl Fn(&Message) -> u64) -> Vec<u64> {
        let mut net = Net::default();
        let mut rng = Rng::new(1);
        let line = Line { latency: 1_000, jitter: 500, byte_nanos: 0, bulk_spread: 5_000 };
        let conn = net.connect(Proc(1), Proc(0), line);
        assert!(net.opened(conn, End::Child) && net.opened(conn, End::Parent));
        let sent = (0..40).filter_map(|number| {
            net.send(Time(0), &mut rng, conn, Way::Down, message(number), 100)
        });
        let mut due: Vec<(Time, Delivery)> = sent.collect();
        due.sort_by_key(|(time, _)| *time);
        let arrived = due.iter().map(|(time, delivery)| {
            let flight = net.arrive(*time, *delivery).expect("nothing is held up");
            read(&flight.message)
        });
        arrived.collect()
    }

    #[test]
    fn bulk_messages_overtake_each_other() {
        let pages = |number| Message::Pages {
            request: RequestId(number),
            domain: DomainId(1),
            pages: Vec::new(),
        };
        let arrived = arrivals(pages, |message| match message {
            Message::Pages { request, .. } => request.0,
            other => panic!("{other:?} was not sent"),
        });
        assert!(!arrived.is_sorted());
        assert_eq!(arrived.iter().collect::<BTreeSet<_>>().len(), 40);
    }

    #[test]
    fn control_messages_stay_in_order() {
        let registered =
            |number| Message::Registered { domain: DomainId(1), boot: BootId(u128::from(number)) };
        let arrived = arrivals(registered, |message| match message {
            Message::Registered { boot, .. } => boot.0 as u64,
            other => panic!("{other:?} was not sent"),
        });
        assert_eq!(arrived, (0..40).collect::<Vec<_>>());
    }
}
