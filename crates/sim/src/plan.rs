//! What a seed draws: topology, limits, the mix of operations, the troubles. Swarm testing: every
//! run gets a random subset of operations and troubles with wild weights, so that rare ones meet.

mod aims;
mod bounds;
mod failover;
mod group;
mod troubles;

pub use bounds::Bounds;
pub use failover::FailoverPlan;
pub use group::GroupPlan;
pub use troubles::{Budget, TROUBLES, Trouble};

use crate::agenda::{MICRO, MILLI, SECOND};
use crate::check::cycles::Judges;
use crate::net::Line;
use larder_core::cache::PolicyKind;
use larder_core::machine::Faults;
use larder_core::rng::Rng;
use larder_core::time::Duration;
use serde::{Deserialize, Serialize};

/// Bytes of a page in every volume of a run: the smallest.
pub const PAGE_BYTES: u32 = 4096;

/// The stated bias: clocks are taken to be right within this. Checks of age allow for it.
pub const CLOCK_BIAS_PPM: u64 = 1_000;

/// Everything a run does that is not drawn on the way. A recording holds it: a field that comes later
/// says by `serde(default = ...)` what recordings without it mean.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Its seed.
    pub seed: u64,
    /// Planted faults.
    #[serde(with = "crate::recording::fault_names")]
    pub faults: Faults,
    /// Order domains at the origin.
    pub domains: u16,
    /// Volumes in each.
    pub volumes: u16,
    /// The parent of each relay: 0 is the origin, `n` the relay of number `n - 1`.
    pub relays: Vec<u16>,
    /// The parent of each node, likewise.
    pub nodes: Vec<u16>,
    /// Whether each node has a second parent, and from it the domains of even numbers.
    #[serde(default)]
    pub seconds: bool,
    /// Whether each relay below the origin has, in place of the nodes: whoever is below has all from it.
    #[serde(default)]
    pub relay_seconds: bool,
    /// Whether that second parent is another origin, with the domains of even numbers.
    #[serde(default)]
    pub second_origin: bool,
    /// Whether the last node has the name of the first: somebody copied its disk, and both run.
    pub twins: bool,
    /// Processes that are never started, by their place: the shrinker takes them away.
    pub absent: Vec<u16>,
    /// Clients that never do anything, likewise.
    pub idle: Vec<u16>,
    /// Clients of each node.
    pub clients: u16,
    /// Whether the clients of a node share one session: its transactions run side by side.
    pub shared_sessions: bool,
    /// Events before the troubles end.
    pub events: u64,
    /// Whether what clients see is compared with the origin's log; without, only the other checkers
    /// can find it wrong.
    pub replays: bool,
    /// Whether at the end a core of the processes has to work first, while the others are away.
    #[serde(default)]
    pub heals_core: bool,
    /// Who looks for what no order of transactions explains.
    #[serde(skip)]
    pub judges: Judges,
    /// Whether messages pass through their encoding.
    pub wire: bool,
    /// What transactions do.
    pub mix: Mix,
    /// How much may go wrong, and what holds all the same.
    #[serde(default = "of_old_recordings")]
    pub budget: Budget,
    /// What it was made to aim at.
    #[serde(default)]
    pub aims: Vec<String>,
    /// What goes wrong.
    pub troubles: Vec<(Trouble, u64)>,
    /// Bounds of the machines.
    pub limits: Limits,
    /// Those that few runs set.
    #[serde(default)]
    pub bounds: Bounds,
    /// Whether a process that dies is always back soon, and with a clock that begins anew: its machine was
    /// reset.
    #[serde(default)]
    pub machines_reset: bool,
    /// Segments of logs are as short as any: one is full after a few long records.
    #[serde(default)]
    pub short_segments: bool,
    /// Clocks drift by at most this. Beyond [`CLOCK_BIAS_PPM`] ages may be wrong by as much; no
    /// other promise may suffer.
    pub drift_ppm: i64,
    /// How far the processes' wall clocks are off at the beginning, in nanoseconds.
    pub wall_error: i64,
    /// The lines between children and parents, relays first.
    pub lines: Vec<Line>,
    /// Nanoseconds an append or install takes at most.
    pub store_nanos: u64,
    /// Clients of the file layer, if the run has any.
    pub files: Option<crate::files::FilesPlan>,
    /// Nodes below a relay are its group.
    #[serde(default)]
    pub group: Option<GroupPlan>,
}

/// Weights of what transactions do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// Weights by operation; see [`Action`].
    pub actions: Vec<(Action, u64)>,
    /// Weights of strict, serializable, snapshot sessions.
    pub consistency: [u64; 3],
    /// Most operations of a transaction.
    pub length: u64,
    /// Percent of transactions that only read.
    pub read_only_percent: u64,
    /// Pages of a volume that the clients aim at.
    pub pages: u64,
    /// Slots of a page that the clients aim at.
    pub slots: u64,
    /// Largest value, in bytes.
    pub value_bytes: u64,
    /// Longest pause between two operations of a client, in nanoseconds.
    pub think: u64,
    /// Percent of pauses inside a transaction that last as long as a lease.
    pub linger_percent: u64,
    /// Longest that a user waits for an answer, in nanoseconds.
    pub patience: u64,
    /// Whether every session has the lease for its age limit.
    #[serde(default)]
    pub ages_limited: bool,
    /// Percent of transactions over more than one volume.
    pub spread_percent: u64,
    /// Page numbers that a client asks for at once beyond what it needs, and keeps.
    pub numbers_ahead: u64,
    /// Percent of what clients do that sets a volume's quota.
    pub quota_percent: u64,
    /// Percent of what clients do that changes what a node may do with a volume.
    pub rights_percent: u64,
    /// Percent of what clients do that asks for the latest state.
    pub refresh_percent: u64,
    /// Percent of what clients do that copies a volume.
    pub copy_percent: u64,
    /// Whether relays, too, are given rights of their own, and nodes may lose all of a domain.
    pub rights_of_all: bool,
    /// Percent of what clients do that deletes a volume; another one takes its name and its place.
    pub delete_percent: u64,
    /// Whether only the first node changes what is there, and the others make pages and look.
    pub parted: bool,
    /// Percent of operations before which a transaction sets a savepoint, or goes back to the one it has.
    #[serde(default)]
    pub savepoint_percent: u64,
    /// Percent of serializable transactions that look ahead of the stream.
    #[serde(default)]
    pub ahead_percent: u64,
    /// Objects that a node keeps for them at most, in a domain; none: as many as it does by itself.
    #[serde(default)]
    pub ahead_max: Option<usize>,
}

/// One operation of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Action {
    /// Reads an object, by slot.
    Read,
    /// Reads an object by a reference of long ago (rule 18).
    ReadOld,
    /// Lists a page.
    List,
    /// Reads a raw page.
    ReadRaw,
    /// Overwrites an object, read before or not.
    Put,
    /// Fills an empty slot, seen to be empty.
    Create,
    /// Removes an object.
    Delete,
    /// Adds to a number, blindly.
    Add,
    /// Raises a number, blindly.
    Max,
    /// Makes a page.
    CreatePage,
    /// Removes a page.
    DeletePage,
    /// Writes into a raw page.
    WriteRaw,
    /// Cuts a raw page.
    TruncateRaw,
    /// Asks for pages without reading them.
    Prefetch,
    /// Looks at a page that nobody has made: the client has its number.
    ReadAhead,
}

/// All that any plan may draw.
const ACTIONS: [Action; 14] = [
    Action::Read,
    Action::ReadOld,
    Action::List,
    Action::ReadRaw,
    Action::Put,
    Action::Create,
    Action::Delete,
    Action::Add,
    Action::Max,
    Action::CreatePage,
    Action::DeletePage,
    Action::WriteRaw,
    Action::TruncateRaw,
    Action::Prefetch,
];

/// Bounds of the machines.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes of copies a node holds.
    pub memory_bytes: usize,
    /// Which go first.
    #[serde(with = "crate::recording::policy_names")]
    pub policy: PolicyKind,
    /// Recent changes a node keeps.
    pub recent_max: usize,
    /// Eviction notices a node may owe.
    pub notices_max: usize,
    /// Changes a node keeps for pages in flight.
    pub kept_max: usize,
    /// Bytes of older copies a node keeps for snapshots.
    pub snapshot_bytes: usize,
    /// Requests a child may have open.
    pub requests_max: u32,
    /// Windows of a link.
    pub stream_window_bytes: u32,
    /// Windows of a link.
    pub bulk_window_bytes: u32,
    /// The link lease.
    pub lease: Duration,
    /// Between beats.
    pub beat: Duration,
    /// After which a link is given up.
    pub silence: Duration,
    /// Commits a ring keeps.
    pub ring_commits_max: usize,
    /// Bytes a ring keeps.
    pub ring_bytes_max: usize,
    /// Pages a registration names.
    pub registered_pages_max: usize,
    /// Where an advance is cut.
    pub advance_bytes: usize,
    /// Between empty advances.
    pub quiet_interval: Duration,
    /// Entries of the table of recent writes.
    pub recent_writes_max: usize,
    /// Bytes of clean pages the origin keeps.
    pub page_cache_bytes: usize,
    /// Bytes of changed pages at which the origin installs.
    pub install_bytes: usize,
    /// The longest a change waits for its install.
    pub install_interval: Duration,
    /// Pages in an install.
    pub install_pages_max: usize,
    /// Records in an append.
    pub append_records_max: usize,
    /// Pages gathered for a child's resume.
    pub resume_pages_max: usize,
    /// Boots of a name that the origin remembers.
    pub boots_per_name_max: usize,
    /// Parts of copies that the origin makes at once.
    #[serde(default = "copies_max")]
    pub copies_max: usize,
}

/// As many as are made at an origin that nobody has set up otherwise.
fn copies_max() -> usize {
    larder_core::origin::OriginConfig::default().copies_max
}

/// Recordings had no budget: all was allowed.
fn of_old_recordings() -> Budget {
    Budget::Beyond
}

/// A pick of one.
pub fn pick<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.below(choices.len() as u64) as usize]
}

/// A pick by weight.
pub fn weighted<T: Copy>(rng: &mut Rng, choices: &[(T, u64)]) -> T {
    let total = choices.iter().map(|(_, weight)| weight).sum();
    let mut left = rng.below(total);
    for (choice, weight) in choices {
        if left < *weight {
            return *choice;
        }
        left -= weight;
    }
    unreachable!("{left} is below the sum of all weights")
}

impl Plan {
    /// Whether a world can be made of it: one that somebody edited may name what is not there.
    pub fn check(&self) -> Result<(), String> {
        let relays = self.relays.len();
        let counts = [u64::from(self.domains), u64::from(self.volumes), u64::from(self.clients)];
        if counts.contains(&0) || counts.iter().any(|count| *count > 64) || self.nodes.is_empty() {
            return Err("domains, volumes, clients and nodes: at least one of each".into());
        }
        if relays + self.nodes.len() > 1_000 || self.lines.len() < relays + self.nodes.len() {
            return Err("each relay and each node needs a line, and there are 1,000 at most".into());
        }
        let mix = &self.mix;
        let weights = [
            mix.actions.iter().map(|(_, weight)| *weight).fold(0, u64::saturating_add),
            mix.consistency.iter().copied().fold(0, u64::saturating_add),
        ];
        if weights.iter().any(|sum| !(1..=1 << 32).contains(sum)) {
            return Err(
                "the weights of operations, and of sessions, are nothing or too much".into()
            );
        }
        if [mix.pages, mix.slots, mix.length, self.store_nanos].contains(&0) {
            return Err("pages, slots, operations and the store's time: more than nothing".into());
        }
        if self.troubles.iter().any(|(_, mean)| *mean == 0) {
            return Err("a trouble comes all the time".into());
        }
        if self.second_origin && !self.may_have_second_origin() {
            return Err("a second origin, and nobody with a second parent".into());
        }
        if let Some(outside) = self.outside_budget() {
            return Err(format!("its budget is {}, without {outside}", self.budget.name()));
        }
        if self.failover().is_some_and(|failover| !failover.is_sound(self)) {
            return Err("redirectors that are no members of a group".into());
        }
        let mut parents =
            self.relays.iter().zip(1..).chain(self.nodes.iter().map(|p| (p, relays + 1)));
        match parents.find(|(parent, below)| usize::from(**parent) >= *below) {
            Some((parent, _)) => Err(format!("there is no relay {parent} above its children")),
            None => Ok(()),
        }
    }

    /// Draws the plan of a seed: the same, whatever is planted.
    #[must_use]
    pub fn draw(seed: u64, faults: Faults) -> Self {
        let mut plan = Self::draw_general(seed, faults);
        plan.draw_more_troubles();
        plan.draw_aims();
        plan.draw_deeds_of_administrators();
        plan.heals_core = Rng::new(seed ^ 0x00c0_4e00).chance(1, 2);
        plan.group = GroupPlan::draw(&plan);
        plan.draw_failover();
        let nodes = plan.nodes.len();
        if let Some(group) = &mut plan.group {
            group.draw_strangers(seed, nodes);
        }
        plan.give_files(crate::files::draw(seed, plan.store_nanos));
        plan.seconds = plan.draws_seconds();
        plan.relay_seconds = plan.draws_relay_seconds();
        let rng = &mut Rng::new(seed ^ 0x5ec0_0419);
        plan.second_origin = plan.may_have_second_origin() && rng.chance(3, 4);
        if plan.second_origin {
            plan.mix.spread_percent = plan.mix.spread_percent.max(30);
        }
        if plan.second_origin && plan.budget == Budget::Beyond && rng.chance(1, 2) {
            plan.add_trouble(Trouble::Restore, pick(rng, &[2 * SECOND, 8 * SECOND]));
        }
        plan.draw_ahead();
        plan.bounds = Bounds::draw(&plan);
        plan.limits.silence = plan.limits.silence.max(silence_min(&plan.lines, plan.store_nanos));
        let outside = plan.outside_budget();
        assert!(outside.is_none(), "seed {seed} is {:?} and has {outside:?}", plan.budget);
        plan
    }

    /// In a third of the worlds some transactions look ahead of the stream; a third of those whose streams are late anyway, or
    /// that aim at nothing else, aim at that. Where restores are aimed at sessions have to be held to what they were told.
    fn draw_ahead(&mut self) {
        let rng = &mut Rng::new(self.seed ^ 0xa4ea_d419);
        let aims_at = |name: &str| self.aims.iter().any(|aim| aim == name);
        if aims_at("restores") && !aims_at("lists") {
            return;
        }
        if rng.chance(1, 3) {
            self.mix.ahead_percent = pick(rng, &[30, 100]);
            self.mix.ahead_max = pick(rng, &[None, None, Some(0), Some(1), Some(3)]);
        }
        let may = self.aims.is_empty() || aims_at("lists") || aims_at("late-streams");
        if may && self.group.is_none() && self.files.is_none() && rng.chance(1, 3) {
            self.aim_at_ahead(rng);
        }
    }

    /// Outcomes that are there before the stream, in several sessions of a node that are after the same few objects.
    fn aim_at_ahead(&mut self, rng: &mut Rng) {
        self.aims.push("ahead".into());
        (self.mix.ahead_percent, self.mix.ahead_max) = (100, None);
        self.mix.consistency = [0, 1, 0];
        (self.mix.pages, self.mix.slots) = (1, pick(rng, &[2, 3]));
        (self.mix.length, self.mix.read_only_percent) = (pick(rng, &[2, 4]), 30);
        (self.mix.think, self.mix.linger_percent) = (pick(rng, &[MILLI, 20 * MILLI]), 0);
        self.clients = self.clients.max(3);
        if self.aims.len() == 1 {
            self.nodes.truncate(3);
            for line in &mut self.lines {
                line.latency = pick(rng, &[10, 40]) * MILLI;
                line.jitter = 4 * line.latency;
            }
        }
    }

    /// A third of the worlds in which there is something to be had from each of two parents.
    fn draws_seconds(&self) -> bool {
        let rng = &mut Rng::new(self.seed ^ 0x5ec0_4d50);
        let may = self.domains > 1 && self.group.is_none() && !self.twins;
        may && rng.chance(1, 3)
    }

    /// Half of the other worlds with relays. Whoever moves would be another process at the origin afterwards, for what
    /// it had over a second link.
    fn draws_relay_seconds(&self) -> bool {
        let rng = &mut Rng::new(self.seed ^ 0x005e_c04d_5e1a);
        let moves = self.troubles.iter().any(|(trouble, _)| *trouble == Trouble::Move);
        let may = self.domains > 1 && self.group.is_none() && !self.twins && !moves;
        may && !self.seconds && self.relays.contains(&0) && rng.chance(1, 2)
    }

    /// Whether there can be a second origin: everybody has two parents, or one above that has.
    fn may_have_second_origin(&self) -> bool {
        self.domains > 1 && self.group.is_none() && (self.seconds || self.relay_seconds)
    }

    /// Makes it a plan of two origins, whatever else was drawn; in half of them there are transactions over both all the time.
    pub fn give_second_origin(&mut self) {
        let rng = &mut Rng::new(self.seed ^ 0x2011_0419);
        (self.group, self.twins, self.domains) = (None, false, self.domains.max(2));
        // Of a crowd behind a narrow relay everybody waits for long anyway.
        if rng.chance(1, 2) && self.nodes.len() <= 8 {
            self.aim_at_wholes(rng);
        }
        self.mix.spread_percent = self.mix.spread_percent.max(30);
        if self.troubles.iter().any(|(trouble, _)| *trouble == Trouble::Hang) {
            self.mix.delete_percent = 0;
        }
        let moves = self.troubles.iter().any(|(trouble, _)| *trouble == Trouble::Move);
        self.relay_seconds = self.relays.contains(&0) && !moves && rng.chance(1, 2);
        self.seconds = !self.relay_seconds;
        self.second_origin = true;
        self.bounds = Bounds::draw(self);
    }

    /// Clients of files, or none.
    pub fn give_files(&mut self, files: Option<crate::files::FilesPlan>) {
        self.files = files;
        if self.files.is_some() && self.store_nanos > 20 * MILLI {
            // A directory's page that is full is hundreds of pages: commits would wait for their installs, one
            // after the other, for minutes.
            self.limits.install_pages_max = self.limits.install_pages_max.max(64);
        }
    }

    /// Troubles that not every world can have, and some that are seldom drawn otherwise. Each group is drawn
    /// apart, so that the other seeds stay what they were.
    fn draw_more_troubles(&mut self) {
        let seed = self.seed;
        let rng = &mut Rng::new(seed ^ 0x30_7e5e);
        if !self.relays.is_empty() && rng.chance(1, 3) {
            self.add_trouble(Trouble::Move, pick(rng, &[500 * MILLI, 2 * SECOND, 8 * SECOND]));
        }
        let rng = &mut Rng::new(seed ^ 0x00c1_0c5e);
        if rng.chance(1, 5) {
            self.add_trouble(Trouble::Swizzle, pick(rng, &[SECOND, 8 * SECOND]));
        }
        if rng.chance(1, 5) {
            self.add_trouble(Trouble::Isolate, pick(rng, &[2 * SECOND, 15 * SECOND]));
        }
        if rng.chance(1, 5) {
            self.add_trouble(Trouble::Wipe, pick(rng, &[8 * SECOND, 30 * SECOND]));
        }
        if rng.chance(1, 6) {
            self.add_trouble(Trouble::Rot, pick(rng, &[SECOND, 4 * SECOND]));
        }
        let rng = &mut Rng::new(seed ^ 0x00d1_5c05);
        if rng.chance(1, 4) {
            self.add_trouble(Trouble::LoseWrite, pick(rng, &[SECOND, 4 * SECOND]));
        }
        if rng.chance(1, 5) {
            self.add_trouble(Trouble::MisdirectWrite, pick(rng, &[SECOND, 4 * SECOND]));
        }
        let rng = &mut Rng::new(seed ^ 0x00f0_46e5);
        if self.nodes.len() > 1 && rng.chance(1, 2) {
            self.add_trouble(Trouble::Forge, pick(rng, &[SECOND / 2, SECOND, 4 * SECOND]));
        }
        if self.domains > 1 && rng.chance(1, 3) {
            self.add_trouble(Trouble::Hang, pick(rng, &[2 * SECOND, 15 * SECOND]));
        }
    }

    /// What administrators do beside the clients.
    fn draw_deeds_of_administrators(&mut self) {
        let seed = self.seed;
        let rng = &mut Rng::new(seed ^ 0x0090_07a5);
        if rng.chance(1, 8) {
            self.mix.quota_percent = pick(rng, &[2, 10]);
        }
        let rng = &mut Rng::new(seed ^ 0x00de_1e7e);
        // Where one domain's log hangs, it is looked whether the volumes of the others go on.
        let hangs = self.troubles.iter().any(|(trouble, _)| *trouble == Trouble::Hang);
        if rng.chance(1, 5) && !hangs && self.mix.rights_percent == 0 {
            self.mix.delete_percent = pick(rng, &[1, 3]);
        }
        let rng = &mut Rng::new(seed ^ 0x0041_6875);
        if rng.chance(1, 5) && self.mix.delete_percent == 0 {
            self.mix.rights_percent = pick(rng, &[2, 8]);
            self.mix.rights_of_all = rng.chance(1, 2);
        }
        let rng = &mut Rng::new(seed ^ 0x001a_7e57);
        if rng.chance(1, 4) {
            self.mix.refresh_percent = pick(rng, &[2, 10, 40]);
        }
        if rng.chance(1, 6) {
            self.mix.copy_percent = pick(rng, &[1, 5]);
            self.draw_refused_copies();
        }
        let rng = &mut Rng::new(seed ^ 0x005a_7e90);
        if rng.chance(1, 3) {
            self.mix.savepoint_percent = pick(rng, &[10, 40]);
        }
    }

    fn draw_general(seed: u64, faults: Faults) -> Self {
        let rng = &mut Rng::new(seed ^ 0x1a2d_e500);
        let relays: Vec<u16> = match rng.below(4) {
            0 | 1 => Vec::new(),
            2 => vec![0],
            _ => vec![0, pick(rng, &[0, 1, 1])],
        };
        let nodes = 1 + pick(rng, &[0, 1, 1, 1, 2, 2, 3, 5]);
        let nodes: Vec<u16> = (0..nodes).map(|_| pick_parent(rng, relays.len() as u64)).collect();
        let even = rng.chance(1, 2).then(|| crate::net::draw_line(rng));
        let lines: Vec<Line> = (0..relays.len() + nodes.len())
            .map(|_| even.unwrap_or_else(|| crate::net::draw_line(rng)))
            .collect();
        let store_nanos = pick(rng, &[100 * MICRO, MILLI, 20 * MILLI, 200 * MILLI]);
        let mut limits = Limits::draw(rng);
        limits.silence = limits.silence.max(silence_min(&lines, store_nanos));
        let mut mix = Mix::draw(rng);
        let mut lines = lines;
        if rng.chance(1, 10) {
            mix.aim_at_evictions(rng);
            limits.aim_at_evictions(rng);
            lines.iter_mut().for_each(|line| line.latency = line.latency.max(60 * MILLI));
        }
        let shared_sessions = rng.chance(1, 3);
        let budget = Budget::draw(seed);
        let drifts: &[i64] = match budget {
            Budget::Recoverable => &[0, 50, 500, 500],
            Budget::Beyond => &[0, 50, 500, 50_000],
        };
        Self {
            seconds: false,
            relay_seconds: false,
            second_origin: false,
            seed,
            faults,
            domains: pick(rng, &[1, 1, 1, 1, 2, 2, 3]),
            volumes: pick(rng, &[1, 1, 2, 3]),
            relays,
            nodes,
            twins: false,
            absent: Vec::new(),
            idle: Vec::new(),
            clients: pick(rng, &[1, 2, 3]),
            shared_sessions,
            events: pick(rng, &[2_000, 5_000, 10_000]),
            replays: true,
            heals_core: false,
            bounds: Bounds::default(),
            machines_reset: false,
            short_segments: false,
            judges: Judges::Ours,
            wire: rng.chance(1, 8),
            mix,
            budget,
            aims: Vec::new(),
            troubles: troubles::draw(rng, budget),
            limits,
            drift_ppm: pick(rng, drifts),
            wall_error: 0,
            lines,
            store_nanos,
            files: None,
            group: None,
        }
    }
}

/// The shortest silence after which a link may be given up: answers cross three lines at most,
/// there and back, and wait for the store.
fn silence_min(lines: &[Line], store_nanos: u64) -> Duration {
    let slowest = lines.iter().map(|line| line.latency + line.jitter + line.bulk_spread).max();
    let slowest = slowest.unwrap_or_default();
    Duration::from_nanos(2 * (6 * slowest + 3 * store_nanos))
}

fn pick_parent(rng: &mut Rng, relays: u64) -> u16 {
    if relays > 0 && rng.chance(3, 4) {
        return 1 + rng.below(relays) as u16;
    }
    0
}

impl Mix {
    fn draw(rng: &mut Rng) -> Self {
        let mut actions: Vec<(Action, u64)> = Vec::new();
        for action in ACTIONS {
            if rng.chance(2, 3) {
                actions.push((action, pick(rng, &[1, 3, 10])));
            }
        }
        // Something must fill slots and something must look.
        actions.push((Action::Create, 2));
        actions.push((Action::Read, 4));
        let consistency = pick(rng, &[[1, 1, 1], [0, 1, 0], [1, 3, 1], [1, 0, 0], [0, 1, 2]]);
        Self {
            actions,
            consistency,
            length: pick(rng, &[1, 2, 4, 8]),
            read_only_percent: pick(rng, &[0, 30, 60, 90]),
            pages: pick(rng, &[1, 2, 4, 12]),
            slots: pick(rng, &[1, 2, 4, 16]),
            value_bytes: pick(rng, &[24, 60, 60, 400, 6_000]),
            think: pick(rng, &[10 * MICRO, MILLI, 20 * MILLI, 300 * MILLI]),
            linger_percent: pick(rng, &[0, 0, 1, 10]),
            patience: pick(rng, &[100 * MILLI, 2 * SECOND, 30 * SECOND]),
            spread_percent: pick(rng, &[0, 30, 100]),
            numbers_ahead: 0,
            quota_percent: 0,
            delete_percent: 0,
            rights_percent: 0,
            rights_of_all: false,
            refresh_percent: 0,
            copy_percent: 0,
            parted: false,
            savepoint_percent: 0,
            ahead_percent: 0,
            ahead_max: None,
            ages_limited: false,
        }
    }
}

impl Limits {
    fn draw(rng: &mut Rng) -> Self {
        let lease = pick(rng, &[1, 3, 15]);
        Self {
            memory_bytes: pick(rng, &[1, 600, 2_000, 8_000, 1 << 20]),
            policy: pick(rng, &[PolicyKind::S3Fifo, PolicyKind::Lru]),
            recent_max: pick(rng, &[2, 8, 1 << 10]),
            notices_max: pick(rng, &[1, 4, 1 << 10]),
            kept_max: pick(rng, &[1, 8, 1 << 10]),
            snapshot_bytes: pick(rng, &[0, 4_096, 1 << 20]),
            requests_max: pick(rng, &[1, 4, 16, 1024]),
            stream_window_bytes: pick(rng, &[4_096, 16_384, 1 << 20]),
            bulk_window_bytes: pick(rng, &[8_192, 32_768, 1 << 20]),
            lease: Duration::from_secs(lease),
            beat: Duration::from_millis(lease * pick(rng, &[100, 250])),
            silence: Duration::from_millis(lease * pick(rng, &[1_000, 2_000])),
            ring_commits_max: pick(rng, &[1, 4, 64, 1 << 12]),
            ring_bytes_max: pick(rng, &[512, 4_096, 1 << 20]),
            registered_pages_max: pick(rng, &[1, 4, 1 << 10]),
            advance_bytes: pick(rng, &[128, 1_024, 1 << 16]),
            quiet_interval: Duration::from_micros(pick(rng, &[10, 5_000, 200_000])),
            recent_writes_max: pick(rng, &[1, 8, 64, 1 << 12]),
            page_cache_bytes: pick(rng, &[1, 16_384, 1 << 20]),
            install_bytes: pick(rng, &[1, 8_192, 1 << 20]),
            install_interval: Duration::from_millis(pick(rng, &[10, 500, 20_000])),
            install_pages_max: pick(rng, &[1, 3, 1024]),
            append_records_max: pick(rng, &[1, 3, 1024]),
            resume_pages_max: pick(rng, &[1, 8, 65_536]),
            boots_per_name_max: 4_096,
            copies_max: copies_max(),
        }
    }

    /// More of everything than a run of a few members needs, and times about as they are shipped.
    #[must_use]
    pub fn ample() -> Self {
        Self {
            memory_bytes: 1 << 20,
            policy: PolicyKind::S3Fifo,
            recent_max: 1 << 10,
            notices_max: 1 << 10,
            kept_max: 1 << 10,
            snapshot_bytes: 1 << 20,
            requests_max: 1024,
            stream_window_bytes: 1 << 20,
            bulk_window_bytes: 1 << 20,
            lease: Duration::from_secs(15),
            beat: Duration::from_secs(2),
            silence: Duration::from_secs(10),
            ring_commits_max: 1 << 12,
            ring_bytes_max: 1 << 20,
            registered_pages_max: 1 << 10,
            advance_bytes: 1 << 16,
            quiet_interval: Duration::from_millis(5),
            recent_writes_max: 1 << 12,
            page_cache_bytes: 1 << 20,
            install_bytes: 1 << 20,
            install_interval: Duration::from_millis(500),
            install_pages_max: 1024,
            append_records_max: 1024,
            resume_pages_max: 65_536,
            boots_per_name_max: 4_096,
            copies_max: copies_max(),
        }
    }
}
