//! Processes: what each is made of, alive or dead.

use super::seats::standbys;
use crate::agenda::{SECOND, Time};
use crate::clock::{Rate, SimClock};
use crate::net::{Line, Proc};
use crate::plan::Plan;
use larder_core::cache::{Cache, ReadCache};
use larder_core::id::{BootId, DomainId, HistoryId, LinkId, PageId, Stamp};
use larder_core::machine::Machine;
use larder_core::origin::Origin;
use larder_core::relay::Relay;
use larder_core::rng::Rng;
use larder_core::time::Instant;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};

/// A process of the world.
#[derive(Debug)]
pub struct Process {
    /// Its name, as in its certificate.
    pub name: String,
    /// Raised when it dies: what was meant for the one before is void.
    pub incarnation: u32,
    /// Its clock.
    pub rate: Rate,
    /// How far its wall clock is off, in nanoseconds.
    pub wall_error: i64,
    /// Since when its wall clock stands still, if it does.
    pub wall_stands: Option<Time>,
    /// An operator took it away for good.
    pub retired: bool,
    /// It does nothing before this time.
    pub paused_until: Time,
    /// The earliest timer entered for it.
    pub timer_at: Option<Time>,
    /// Its link up: the connection, or none. An origin has none.
    pub uplink: Option<u32>,
    /// The same to its second parent; the one that an origin dialed to another.
    pub second: Option<u32>,
    /// Its parent and the line to it. An origin has none.
    pub parent: Option<(Proc, Line)>,
    /// Those that may be its parent in turn, where that is a group's redirector.
    pub parents: Vec<Proc>,
    /// Connection attempts that failed one after the other.
    pub attempts: u32,
    /// What it runs.
    pub machinery: Machinery,
}

/// What a process runs.
#[derive(Debug)]
pub enum Machinery {
    /// An origin.
    Origin(Box<OriginHost>),
    /// A relay.
    Relay(Box<RelayHost>),
    /// A node.
    Node(Box<Node>),
}

/// An origin's process.
#[derive(Debug, Default)]
pub struct OriginHost {
    /// The machine, while it lives.
    pub machine: Option<Origin>,
    /// Whether it is started with `--accept-fork`.
    pub accept_fork: bool,
}

/// A relay's process.
#[derive(Debug, Default)]
pub struct RelayHost {
    /// The machine, while it lives.
    pub machine: Option<Relay>,
}

/// The machine of a node, reachable from the clock that readers ask: a reader may find that
/// the machine went on while it read.
pub(super) type SharedCache = Arc<Mutex<Cache>>;

/// A request under way.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// When it was asked.
    pub at: Time,
    /// Its user's, in nanoseconds.
    pub patience: u64,
    /// Of how many pages.
    pub pages: usize,
    /// Of how many that an origin may have to load.
    pub loads: usize,
    /// Requests that had no answer of an origin then: what waits for its log comes first.
    pub ahead: usize,
}

/// A node's process.
#[derive(Default)]
pub struct Node {
    /// The machine, while it lives.
    pub machine: Option<SharedCache>,
    /// What its clients read.
    pub read: Option<Arc<ReadCache>>,
    /// The clock of both.
    pub clock: SimClock,
    /// This life.
    pub boot: BootId,
    /// Per domain the history and valid-through last seen published.
    pub through: BTreeMap<DomainId, (HistoryId, Stamp)>,
    /// Pages whose answer came ahead of valid-through: they may become visible with any step.
    pub early: BTreeSet<PageId>,
    /// Requests under way, by number: which client waits.
    pub waiting: BTreeMap<u64, u16>,
    /// Every request under way.
    pub asked: BTreeMap<u64, Asked>,
    /// The last request number.
    pub requests: u64,
    /// The link was refused for good: an operator must act.
    pub refused: bool,
    /// Neighbours who are greeted, and their links.
    pub reached: BTreeMap<BootId, LinkId>,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({:?}, {:?})", self.boot, self.through)
    }
}

impl Process {
    /// What its clock shows.
    #[must_use]
    pub fn local(&self, now: Time) -> Instant {
        self.rate.local(now)
    }

    /// Whether it lives.
    #[must_use]
    pub fn is_up(&self) -> bool {
        match &self.machinery {
            Machinery::Origin(host) => host.machine.is_some(),
            Machinery::Relay(host) => host.machine.is_some(),
            Machinery::Node(node) => node.machine.is_some(),
        }
    }

    /// Whether it is a relay that runs.
    #[must_use]
    pub fn is_relaying(&self) -> bool {
        matches!(&self.machinery, Machinery::Relay(host) if host.machine.is_some())
    }

    /// When its machine wants to be called.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Instant> {
        match &self.machinery {
            Machinery::Origin(host) => host.machine.as_ref()?.next_timeout(),
            Machinery::Relay(host) => host.machine.as_ref()?.next_timeout(),
            Machinery::Node(node) => lock(node.machine.as_ref()?).next_timeout(),
        }
    }

    /// The origin's host; panics for others.
    pub fn origin(&mut self) -> &mut OriginHost {
        match &mut self.machinery {
            Machinery::Origin(host) => host,
            other => panic!("{other:?} is not the origin"),
        }
    }

    /// The relay's host; panics for others.
    pub fn relay(&mut self) -> &mut RelayHost {
        match &mut self.machinery {
            Machinery::Relay(host) => host,
            other => panic!("{other:?} is no relay"),
        }
    }

    /// The node; panics for others.
    pub fn node(&mut self) -> &mut Node {
        match &mut self.machinery {
            Machinery::Node(node) => node,
            other => panic!("{other:?} is no node"),
        }
    }

    /// The node, to look at; panics for others.
    #[must_use]
    pub fn node_ref(&self) -> &Node {
        match &self.machinery {
            Machinery::Node(node) => node,
            other => panic!("{other:?} is no node"),
        }
    }
}

/// The machine behind its lock, which only one thread ever takes.
pub(super) fn lock(cache: &SharedCache) -> std::sync::MutexGuard<'_, Cache> {
    cache.lock().expect("one thread, and a panic ends the run")
}

/// All processes, none of them started.
pub(super) fn make(plan: &Plan, rng: &mut Rng) -> Vec<Process> {
    let origin = || Machinery::Origin(Box::default());
    let mut processes = vec![process(plan, rng, "origin".into(), None, origin())];
    let mut lines = plan.lines.iter().copied();
    for (number, parent) in plan.relays.iter().enumerate() {
        let parent = lines.next().map(|line| (Proc(*parent), line));
        let machinery = Machinery::Relay(Box::default());
        processes.push(process(plan, rng, format!("relay{}", number + 1), parent, machinery));
    }
    for (number, parent) in plan.nodes.iter().enumerate() {
        let parent = lines.next().map(|line| (Proc(*parent), line));
        let machinery = Machinery::Node(Box::default());
        let copy = plan.twins && number + 1 == plan.nodes.len();
        let name = if copy { 1 } else { number + 1 };
        processes.push(process(plan, rng, format!("node{name}"), parent, machinery));
    }
    for (node, group) in standbys(plan) {
        let name = format!("standby-{}", processes[usize::from(node.0)].name);
        let parent = processes[usize::from(group)].parent;
        let machinery = Machinery::Relay(Box::default());
        processes.push(process(plan, rng, name, parent, machinery));
    }
    let first = 1 + plan.relays.len() + plan.nodes.len();
    let beside: Vec<u16> = standbys(plan).map(|(_, group)| group).collect();
    for place in (1..=plan.relays.len()).chain(first..processes.len()) {
        let group = if place < first { place } else { usize::from(beside[place - first]) };
        let above = plan.relays[group - 1];
        let of_above = (0..).zip(&beside).filter(|(_, group)| **group == above && above > 0);
        let of_above = of_above.map(|(number, _): (usize, _)| Proc((first + number) as u16));
        processes[place].parents = std::iter::once(Proc(above)).chain(of_above).collect();
    }
    if plan.second_origin {
        processes.push(process(plan, rng, "second".into(), None, origin()));
    }
    processes
}

fn process(
    plan: &Plan,
    rng: &mut Rng,
    name: String,
    parent: Option<(Proc, Line)>,
    machinery: Machinery,
) -> Process {
    let span = plan.drift_ppm.unsigned_abs();
    let drift = rng.below(2 * span + 1) as i64 - span as i64;
    Process {
        name,
        incarnation: 0,
        rate: Rate {
            offset: i128::from(rng.below(1_000_000 * SECOND)),
            drift_ppm: drift,
            frozen: None,
        },
        wall_error: plan.wall_error,
        wall_stands: None,
        retired: false,
        paused_until: Time(0),
        timer_at: None,
        uplink: None,
        second: None,
        parent,
        parents: Vec::new(),
        attempts: 0,
        machinery,
    }
}
