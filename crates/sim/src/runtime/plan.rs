//! What a seed draws for a world of the runtime.

use larder::config::{GroupSection, LinkConfig, NodeSection, OriginSection, Period, Size};
use larder::limits::Limits;
use larder::planted::RuntimeFault;
use larder_core::rng::Rng;
use larder_store::log::LogConfig;
use std::time::Duration;

/// A world to be played.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its seed.
    pub seed: u64,
    /// What is planted.
    pub fault: Option<RuntimeFault>,
    /// Order domains.
    pub domains: usize,
    /// Relays: each is below the origin, or below the one before.
    pub relays: Vec<usize>,
    /// Latency of each relay to its parent, in milliseconds; none: it is drawn.
    pub relay_latency_ms: Option<u64>,
    /// Nodes: each below the origin (0) or a relay (its number from 1).
    pub nodes: Vec<NodePlan>,
    /// How long clients work while there are troubles.
    pub busy: Duration,
    /// Bounds inside processes.
    pub limits: Limits,
    /// What holds for links.
    pub link: LinkConfig,
    /// Beats of nodes, and the origin's lease.
    pub beat: Duration,
    /// See above.
    pub lease: Duration,
    /// Bytes that a connection takes in each direction before it has delivered them.
    pub pipe_bytes: usize,
    /// Most bytes that a read or a write moves.
    pub fragment: u64,
    /// Of sixteen reads and writes, so many are put off for no reason.
    pub dawdle: u64,
    /// The most that an append, an install or a load takes, in milliseconds.
    pub disk_ms: u64,
    /// The commit log.
    pub log: LogConfig,
    /// What work takes.
    pub machines: Machines,
    /// Changed pages are installed after this long.
    pub install_every: Duration,
    /// What the cache keeps for commits: `commits_max`, `requests_max` of a node.
    pub requests_max: usize,
    /// Pages that became stale together are asked for together.
    pub companions: bool,
    /// Bytes of a link's stream, and of its pages, that may be under way.
    pub windows: (u64, u64),
    /// What a client does at most.
    pub acts: u64,
    /// Clients think for up to so many milliseconds.
    pub think_ms: u64,
    /// Bytes that objects are filled up with.
    pub fill: u64,
    /// Objects that everybody works on.
    pub objects: u64,
    /// Of sixteen calls, so many are dropped before they end.
    pub cancels: u64,
    /// How often troubles come: one in so many milliseconds, about; zero: never.
    pub trouble_ms: u64,
    /// Which troubles there are.
    pub troubles: Vec<Trouble>,
    /// The nodes below each relay are a group, and it is their redirector.
    pub group: Option<GroupPlan>,
}

/// What groups of a world are like.
#[derive(Clone, Debug)]
pub struct GroupPlan {
    /// Between two neighbours, one way, in milliseconds.
    pub latency_ms: u64,
    /// Bounds and limits; its name and addresses are those of each process.
    pub section: GroupSection,
    /// A node whose certificate is of no group, and that is in none.
    pub outsider: Option<usize>,
}

/// A node of a plan.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// Its name and instance.
    pub name: String,
    /// Zero: the origin; else a relay.
    pub parent: usize,
    /// Its clients.
    pub clients: usize,
    /// Bytes of its cache; with a watcher there is room for all.
    pub memory: u64,
    /// Whether somebody watches what changes, and how slow he is, in milliseconds.
    pub watcher: Option<u64>,
    /// Latency to its parent, in milliseconds.
    pub latency_ms: u64,
}

/// What work takes the machines of a world: nothing in those that a seed draws.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Machines {
    /// Everything takes so many times as long as is meant: tokio's timers are no finer than a
    /// millisecond.
    pub slow: u32,
    /// Limits of waits that a world sets itself are so many times as long.
    pub patience: u32,
    /// Nanoseconds that a network card takes for a byte.
    pub card: u64,
    /// Nanoseconds that the origin's processor takes for a byte that it sends.
    pub origin: u64,
    /// The same of a relay.
    pub relay: u64,
    /// The same of a node.
    pub node: u64,
    /// What an append to the log takes, beside what is drawn.
    pub log_write: Duration,
}

impl Machines {
    /// Work takes no time.
    pub const NONE: Self = Self {
        slow: 1,
        patience: 1,
        card: 0,
        origin: 0,
        relay: 0,
        node: 0,
        log_write: Duration::ZERO,
    };
}

/// A kind of trouble.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// A connection breaks.
    Cut,
    /// A connection takes nothing on, one way.
    Stall,
    /// A line is gone for a while.
    Partition,
    /// A node dies.
    NodeDies,
    /// A node ends with a goodbye.
    NodeEnds,
    /// A relay dies.
    RelayDies,
    /// The origin dies.
    OriginDies,
    /// The origin's machine loses its power.
    PowerCut,
    /// The origin ends with a goodbye.
    OriginEnds,
    /// The store's disk is full for a while.
    FullDisk,
    /// The store's disk is slow for a while.
    SlowDisk,
    /// A sync fails; the origin is started anew some time later.
    SyncFails,
    /// The wall clock is set.
    WallClock,
    /// All machines sleep.
    Sleep,
    /// Somebody sends what is no message.
    Garbage,
    /// Somebody opens a link and never reads.
    NeverReads,
    /// Somebody comes under the name of a node.
    Twin,
    /// Links between neighbours break.
    NeighboursCut,
    /// A node takes nothing from its neighbours for a while, or sends them nothing.
    NeighboursStall,
    /// Somebody without a certificate of the group comes to a member.
    Stranger,
}

/// Troubles of worlds with groups, beside the others.
const GROUP_TROUBLES: [Trouble; 3] =
    [Trouble::NeighboursCut, Trouble::NeighboursStall, Trouble::Stranger];

/// All of them.
pub const TROUBLES: [Trouble; 17] = [
    Trouble::Cut,
    Trouble::Stall,
    Trouble::Partition,
    Trouble::NodeDies,
    Trouble::NodeEnds,
    Trouble::RelayDies,
    Trouble::OriginDies,
    Trouble::PowerCut,
    Trouble::OriginEnds,
    Trouble::FullDisk,
    Trouble::SlowDisk,
    Trouble::SyncFails,
    Trouble::WallClock,
    Trouble::Sleep,
    Trouble::Garbage,
    Trouble::NeverReads,
    Trouble::Twin,
];

fn pick<T: Copy>(rng: &mut Rng, of: &[T]) -> T {
    of[rng.below(of.len() as u64) as usize]
}

impl Plan {
    /// Draws a world.
    #[must_use]
    pub fn draw(seed: u64, fault: Option<RuntimeFault>) -> Self {
        let mut rng = Rng::new(seed ^ 0x7275_6e74_696d_6500);
        let rng = &mut rng;
        let relays: Vec<usize> = (0..pick(rng, &[0, 0, 0, 1, 1, 2]))
            .map(|number| if number > 0 && rng.chance(1, 2) { number } else { 0 })
            .collect();
        let count = pick(rng, &[1, 2, 2, 3, 3, 4, 5, 8]);
        let nodes = (0..count).map(|number| NodePlan::draw(rng, number, relays.len())).collect();
        let some: Vec<Trouble> = TROUBLES.into_iter().filter(|_| rng.chance(1, 3)).collect();
        let calm = rng.chance(1, 8);
        let group = GroupPlan::draw(seed, relays.len(), count);
        let troubles = some.into_iter().chain(group.iter().flat_map(|_| GROUP_TROUBLES));
        let troubles = troubles.collect();
        Self {
            seed,
            fault,
            domains: pick(rng, &[1, 1, 1, 2]),
            relays,
            relay_latency_ms: None,
            nodes,
            busy: Duration::from_millis(pick(rng, &[1_000, 3_000, 6_000, 12_000])),
            limits: limits(rng),
            link: link(rng),
            beat: Duration::from_millis(pick(rng, &[100, 300, 700])),
            lease: Duration::from_millis(pick(rng, &[600, 2_000, 10_000])),
            pipe_bytes: pick(rng, &[64, 1_000, 10_000, 100_000]),
            fragment: pick(rng, &[1, 7, 100, 5_000, 100_000]),
            dawdle: pick(rng, &[0, 1, 4]),
            disk_ms: pick(rng, &[0, 2, 10, 40]),
            log: LogConfig {
                segment_bytes: 128 << 10,
                reserve_bytes: 64 << 10,
                ..LogConfig::default()
            },
            machines: Machines::NONE,
            install_every: Duration::from_millis(pick(rng, &[50, 500, 2_000])),
            requests_max: pick(rng, &[4, 32, 1_000, 65_536]),
            companions: true,
            windows: pick(rng, &[(2_000, 10_000), (20_000, 100_000), (1 << 20, 4 << 20)]),
            acts: pick(rng, &[10, 30, 60, 120]),
            think_ms: pick(rng, &[1, 10, 50, 200]),
            fill: pick(rng, &[0, 0, 50, 500]),
            objects: pick(rng, &[2, 5, 12, 30]),
            cancels: pick(rng, &[0, 1, 3]),
            trouble_ms: if calm { 0 } else { pick(rng, &[150, 500, 1_500]) },
            troubles,
            group,
        }
    }

    /// A node's section.
    #[must_use]
    pub fn node_section(
        &self,
        node: &NodePlan,
        parent: String,
        request_limit: Duration,
    ) -> NodeSection {
        NodeSection {
            parent,
            memory: Size(node.memory),
            request_limit: Period(request_limit),
            beat: Period(self.beat),
            page_run: 8,
            transactions_max: 6,
            ..NodeSection::default()
        }
    }

    /// The origin's section.
    #[must_use]
    pub fn origin_section(&self, listen: String) -> OriginSection {
        OriginSection {
            listen,
            data: "/world/origin".into(),
            domains: self.domains as u32,
            memory: Size(1 << 20),
            lease: Period(self.lease),
            ..OriginSection::default()
        }
    }
}

impl GroupPlan {
    /// In half of the worlds that have relays. Drawn apart, so that the others stay what they were.
    fn draw(seed: u64, relays: usize, nodes: usize) -> Option<Self> {
        let rng = &mut Rng::new(seed ^ 0x0067_726f_7570_7300);
        if relays == 0 || nodes < 2 || rng.chance(1, 2) {
            return None;
        }
        let ms = |ms: u64| Period(Duration::from_millis(ms));
        let section = GroupSection {
            help_wait: ms(pick(rng, &[2, 20, 100, 1_000])),
            help_wait_long: ms(pick(rng, &[1_000, 5_000])),
            helps_max: pick(rng, &[1, 4, 1_024]),
            redial: ms(pick(rng, &[20, 200, 1_000])),
            queue: Size(pick(rng, &[2_000, 20_000, 4 << 20])),
            directory: Size(pick(rng, &[1 << 10, 1 << 20])),
            helping_max: pick(rng, &[1, 4, 256]),
            asking_max: pick(rng, &[1, 4, 4_096]),
            rest: ms(pick(rng, &[1, 1_000])),
            update: Size(pick(rng, &[0, 200, 64 << 10, 64 << 10])),
            updates: Size(pick(rng, &[300, 16 << 20, 16 << 20])),
            ..GroupSection::default()
        };
        let outsider = rng.chance(1, 3).then(|| rng.below(nodes as u64) as usize);
        Some(Self { latency_ms: pick(rng, &[0, 0, 1, 5, 40]), section, outsider })
    }

    /// A group's section for one of its processes: `place` is its redirector's number.
    #[must_use]
    pub fn section(&self, place: usize, address: String) -> GroupSection {
        let (listen, name) = (address.clone(), group_name(place));
        GroupSection { name, listen, address, ..self.section.clone() }
    }
}

/// The group below a relay; of the nodes below the origin another, which has no redirector.
#[must_use]
pub fn group_name(place: usize) -> String {
    format!("group{place}")
}

impl Plan {
    /// The group whose certificate a process has.
    #[must_use]
    pub fn group_of(&self, name: &str) -> Option<usize> {
        let group = self.group.as_ref()?;
        if let Some(number) = name.strip_prefix("relay") {
            return number.parse().ok();
        }
        let node = self.nodes.iter().position(|node| node.name == name)?;
        (group.outsider != Some(node)).then(|| self.nodes[node].parent)
    }
}

impl NodePlan {
    fn draw(rng: &mut Rng, number: usize, relays: usize) -> Self {
        let watcher = rng.chance(1, 2).then(|| pick(rng, &[0, 0, 20, 150]));
        let memory = match watcher {
            Some(_) => 64 << 20,
            None => pick(rng, &[20_000, 60_000, 1 << 20]),
        };
        Self {
            name: format!("node{}", number + 1),
            parent: rng.below(relays as u64 + 1) as usize,
            clients: pick(rng, &[1, 1, 2, 4]),
            memory,
            watcher,
            latency_ms: pick(rng, &[0, 1, 5, 30, 80]),
        }
    }
}

fn limits(rng: &mut Rng) -> Limits {
    Limits {
        inputs: pick(rng, &[1, 2, 16, 4096]),
        batch: pick(rng, &[1, 2, 128]),
        batch_bytes: pick(rng, &[64, 1_000, 64 << 10]),
        small_bytes: pick(rng, &[64, 500, 16 << 10]),
        input_bytes: pick(rng, &[500, 5_000, 128 << 20]),
        events: pick(rng, &[1, 2, 8, 4096]),
        commit_bytes: pick(rng, &[100, 400, 2_000, 64 << 20]),
    }
}

fn link(rng: &mut Rng) -> LinkConfig {
    let ms = |ms: u64| Period(Duration::from_millis(ms));
    LinkConfig {
        connect_limit: ms(pick(rng, &[400, 2_000])),
        back_off_min: ms(pick(rng, &[10, 50])),
        back_off_max: ms(pick(rng, &[200, 1_000])),
        write_limit: ms(pick(rng, &[500, 3_000])),
        silence_max: ms(pick(rng, &[1_500, 4_000])),
        queue: Size(pick(rng, &[200 << 10, 4 << 20])),
        links_max: 64,
        ..LinkConfig::default()
    }
}
