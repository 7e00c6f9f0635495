//! OO7 in virtual time: an origin, and clients with a line of a given latency each, on one module of a
//! database. What processors and network cards do takes what the course says, nothing at all by default, so
//! that all that is measured is what the protocol waits for; the same course gives the same figures everywhere.

mod client;

use super::cast::Cast;
use super::env::{Shared, lock};
use super::plan::{GroupPlan, Machines, NodePlan, Plan};
use super::{Failure, run_world};
use client::{Client, Meeting};
use larder::client::{Consistency, Node, SessionOptions, VolumeOptions};
use larder::config::{GroupSection, LinkConfig, NodeSection, OriginSection, Period};
use larder::limits::Limits;
use larder_oo7::{Mix, Operation, Parameters, Workload, build};
use larder_store::log::LogConfig;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

/// Longest wait for anything: nothing is in anybody's way.
pub(super) const LIMIT: Duration = Duration::from_secs(10_000_000);

/// The world's time goes so much slower than a course's, so that its milliseconds are hundredths of a
/// course's: no timer is finer than they are.
pub(super) const SLOW: u32 = 100;

/// The volume.
const NAME: &str = "design";

/// What work takes, beside what is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Costs {
    /// A client's processor, for an atomic part that a transaction comes to, its connections included.
    pub visit: Duration,
    /// The origin, for a commit: it takes one after another.
    pub commit: Duration,
    /// The origin's disk, for what it appends to its log at once.
    pub log_write: Duration,
    /// A network card, for a KiB that it sends.
    pub card_kib: Duration,
    /// The origin's processor, for a KiB that it sends.
    pub origin_kib: Duration,
    /// A redirector's, for a KiB that it sends.
    pub redirector_kib: Duration,
    /// A client's, for a KiB that it sends.
    pub client_kib: Duration,
}

/// Groups of clients, each with a redirector of its own, on a machine of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Groups {
    /// From one member to another, or to the redirector, and back, in steps of 20 microseconds.
    pub round_trip: Duration,
    /// The group of each client, readers first, by its number from 1.
    pub of: Vec<usize>,
    /// Copies with holes are sent between neighbours too.
    pub holes: bool,
}

impl Groups {
    /// One of so many.
    #[must_use]
    pub fn one(clients: usize, round_trip: Duration) -> Self {
        Self { round_trip, of: vec![1; clients], holes: false }
    }
}

/// What is measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Course {
    /// The database; all work on its first module.
    pub parameters: Parameters,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Who only reads: each transaction is a path to one composite part, which is drawn.
    pub readers: usize,
    /// Who changes the composite part in one of two transactions (T2b of it).
    pub writers: usize,
    /// From a client to the origin and back, in steps of 20 microseconds; in a group, from its redirector.
    pub round_trip: Duration,
    /// Who is in which group; none: all are alone.
    pub groups: Option<Groups>,
    /// Bytes of each client's cache.
    pub memory: u64,
    /// Transactions of each client before those that are measured.
    pub warm: u64,
    /// Those that are.
    pub transactions: u64,
    /// What passes between two transactions of a client.
    pub think: Duration,
    /// What work takes.
    pub costs: Costs,
    /// Every transaction is validated at the origin, those that only read too: the paper's mechanism; and a page is asked
    /// for when it is missed, also when it became stale with others.
    pub strict: bool,
    /// Clients ask for all of the module before they begin, and do not wait for it.
    pub ahead: bool,
    /// What is drawn comes from it.
    pub seed: u64,
}

/// What one client's measured transactions came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Measured {
    /// It changes what it comes to.
    pub writes: bool,
    /// Transactions.
    pub transactions: u64,
    /// Of them those that changed something.
    pub wrote: u64,
    /// What they took together, in virtual time, without what passed between them.
    pub took: Duration,
    /// Of that, what its processor was at.
    pub worked: Duration,
    /// Of that, their last commits.
    pub commits: Duration,
    /// Reads that waited for a page.
    pub misses: u64,
    /// Pages that came from neighbours.
    pub from_neighbours: u64,
    /// What they took, from their being asked for.
    pub neighbours: Duration,
    /// Transactions that waited for one, or met a conflict.
    pub missed: u64,
    /// Commits that were validated at the origin.
    pub at_origin: u64,
    /// Attempts that met a conflict.
    pub conflicts: u64,
}

impl Measured {
    /// What was waited for pages, and lost by conflicts.
    #[must_use]
    pub fn fetches(&self) -> Duration {
        self.took.saturating_sub(self.worked).saturating_sub(self.commits)
    }
}

/// Runs a course; what each client measured, readers first.
///
/// # Errors
/// Whatever went wrong in its world, where nothing should.
pub fn measure(course: &Course) -> Result<Vec<Measured>, Failure> {
    let told: Arc<Mutex<Vec<Measured>>> = Arc::default();
    run_world(course.world(), false, |shared| play(shared, course.clone(), told.clone()))?;
    let measured = std::mem::take(&mut *lock(&told));
    Ok(measured)
}

/// One way of a line, in milliseconds of a world that is slow.
pub(super) fn one_way_ms(there_and_back: Duration) -> u64 {
    u64::try_from((there_and_back / 2 * SLOW).as_millis()).unwrap_or(u64::MAX)
}

/// A world without troubles, whose lines have room for everything: a founder at the origin's side, and so many
/// clients at a distance, or in groups that are.
pub(super) fn calm(
    clients: usize,
    (round_trip, groups): (Duration, Option<&Groups>),
    memory: u64,
    costs: &Costs,
    seed: u64,
) -> Plan {
    let (node, origin, link) =
        (NodeSection::default(), OriginSection::default(), LinkConfig::default());
    let near = one_way_ms(groups.map_or(round_trip, |groups| groups.round_trip));
    let client = |number: usize| {
        let parent = groups.map_or(0, |groups| groups.of[number]);
        (format!("client{number}"), parent, near)
    };
    let nodes = std::iter::once(("founder".into(), 0, 0)).chain((0..clients).map(client));
    let nodes = nodes.map(|(name, parent, latency_ms)| NodePlan {
        name,
        latency_ms,
        parent,
        clients: 1,
        memory,
        watcher: None,
    });
    let long = |period: Period| Period(period.0 * SLOW);
    let count = groups.and_then(|groups| groups.of.iter().max()).copied().unwrap_or_default();
    Plan {
        domains: 1,
        relays: vec![0; count],
        relay_latency_ms: Some(one_way_ms(round_trip)),
        group: groups.map(|groups| GroupPlan {
            latency_ms: near,
            section: GroupSection { holes: groups.holes, ..unhurried() },
            outsider: None,
        }),
        nodes: nodes.collect(),
        limits: Limits::SHIPPED,
        link: LinkConfig {
            connect_limit: long(link.connect_limit),
            write_limit: long(link.write_limit),
            silence_max: long(link.silence_max),
            ..link
        },
        beat: long(node.beat).0,
        lease: long(origin.lease).0,
        pipe_bytes: 16 << 20,
        fragment: 1 << 30,
        dawdle: 0,
        disk_ms: 0,
        machines: costs.machines(),
        log: LogConfig::default(),
        install_every: Duration::from_secs(1) * SLOW,
        requests_max: 65_536,
        companions: false,
        windows: (1 << 20, 4 << 20),
        ..Plan::draw(seed, None)
    }
}

/// A group's limits, in a world that is slow.
fn unhurried() -> GroupSection {
    let group = GroupSection::default();
    let long = |period: Period| Period(period.0 * SLOW);
    GroupSection {
        help_wait: long(group.help_wait),
        help_wait_long: long(group.help_wait_long),
        redial: long(group.redial),
        rest: long(group.rest),
        ..group
    }
}

impl Costs {
    fn machines(&self) -> Machines {
        let byte =
            |kib: Duration| u64::try_from((kib * SLOW / 1024).as_nanos()).unwrap_or(u64::MAX);
        Machines {
            slow: SLOW,
            patience: 100 * SLOW,
            card: byte(self.card_kib),
            origin: byte(self.origin_kib),
            relay: byte(self.redirector_kib),
            node: byte(self.client_kib),
            log_write: self.log_write * SLOW,
        }
    }
}

impl Course {
    fn world(&self) -> Plan {
        let far = (self.round_trip, self.groups.as_ref());
        let calm = calm(self.readers + self.writers, far, self.memory, &self.costs, self.seed);
        Plan { companions: !self.strict, ..calm }
    }

    fn session(&self) -> SessionOptions {
        session(if self.strict { Consistency::Strict } else { Consistency::Serializable })
    }

    /// What a client does; readers come first.
    fn workload(&self, client: usize) -> Workload {
        let mix = match client < self.readers {
            true => Mix::only(Operation::Path),
            false => Mix::even([Operation::Path, Operation::PathChange]),
        };
        let seed = self.seed.wrapping_add(client as u64).wrapping_mul(0x2545_f491_4f6c_dd1d);
        Workload { mix, operations: 1, module: 0, seed }
    }
}

/// A session that waits as long as it takes.
pub(super) fn session(consistency: Consistency) -> SessionOptions {
    SessionOptions {
        consistency,
        time_limit: LIMIT,
        refresh_limit: LIMIT,
        attempts_max: u32::MAX,
        ..SessionOptions::default()
    }
}

async fn play(shared: Arc<Shared>, course: Course, told: Arc<Mutex<Vec<Measured>>>) {
    let mut cast = Cast::new(&shared);
    cast.start_origin().await;
    for number in 0..shared.plan.relays.len() {
        cast.start_relay(number).await;
    }
    shared.net.heal(true);
    found(&cast, &course).await;
    let count = course.readers + course.writers;
    let meeting = Arc::new(Meeting::new(count));
    let mut clients = JoinSet::new();
    for number in 0..count {
        let node = Node::start(cast.node_config(1 + number, LIMIT)).expect("its certificate does");
        let client = Client {
            number,
            workload: course.workload(number),
            course: course.clone(),
            node,
            shared: shared.clone(),
            meeting: meeting.clone(),
        };
        clients.spawn(async move { (number, client.run().await) });
    }
    let mut measured = clients.join_all().await;
    measured.sort_by_key(|(number, _)| *number);
    lock(&told).extend(measured.into_iter().map(|(_, measured)| measured));
    cast.relays.clear();
    cast.end_origin().await;
}

/// The volume and its database.
async fn found(cast: &Cast, course: &Course) {
    let node = Node::start(cast.node_config(0, LIMIT)).expect("its certificate does");
    node.linked(LIMIT).await.expect("nothing is in its way");
    let options = VolumeOptions { page_bytes: course.page_bytes, ..VolumeOptions::new(NAME) };
    let volume = node.create_volume(options).await.expect("nothing is in its way");
    let session = volume.session(SessionOptions { time_limit: LIMIT, ..Default::default() });
    let built = build(&volume, &session, &course.parameters, |_| ()).await;
    built.expect("nothing is in its way");
    node.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course() -> Course {
        Course {
            parameters: Parameters::tiny(),
            page_bytes: 4096,
            readers: 2,
            writers: 1,
            round_trip: Duration::from_millis(40),
            groups: None,
            memory: 40 << 20,
            warm: 60,
            transactions: 40,
            think: Duration::from_millis(1),
            costs: Costs::default(),
            strict: true,
            ahead: false,
            seed: 3,
        }
    }

    fn run(course: &Course) -> Vec<Measured> {
        measure(course).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Everything that takes time is a round trip: one for each commit, one for each page waited for.
    #[test]
    fn a_strict_reader_waits_for_its_commits_and_its_pages() {
        let cold = Course { readers: 1, writers: 0, warm: 0, ..course() };
        let [reader] = run(&cold)[..] else { panic!("one client") };
        assert_eq!(reader.commits, 40 * cold.round_trip);
        let waited = reader.took - reader.commits;
        assert_eq!(waited, cold.round_trip * u32::try_from(reader.misses).expect("few"));
        assert!(reader.misses > 3 && reader.conflicts == 0, "{reader:?}");
    }

    /// What one member has fetched its neighbours get from it: fewer than half of what they miss crosses the
    /// line. Who misses what a neighbour is still fetching waits as long as it does.
    #[test]
    fn a_group_crosses_the_line_for_a_page_once() {
        let alone = Course { readers: 3, writers: 0, warm: 0, ..course() };
        let near = Duration::from_millis(2);
        let group = Course { groups: Some(Groups::one(3, near)), ..alone.clone() };
        let (alone, group) = (run(&alone), run(&group));
        let waited = |of: &[Measured]| of.iter().map(Measured::fetches).sum::<Duration>();
        let missed: u64 = group.iter().map(|one| one.misses).sum();
        let helped: u64 = group.iter().map(|one| one.from_neighbours).sum();
        assert!(2 * helped > missed, "{group:?}");
        assert!(waited(&group) < waited(&alone), "{group:?} in a group, {alone:?} without");
    }

    /// What is in memory is read, and committed, without a message.
    #[test]
    fn a_warm_reader_waits_for_nothing() {
        let warm = Course { writers: 0, strict: false, ..course() };
        for reader in run(&warm) {
            assert_eq!((reader.took, reader.misses), (Duration::ZERO, 0), "{reader:?}");
        }
    }

    /// The same course, the same figures; and what a writer changes its readers miss.
    #[test]
    fn a_course_gives_the_same_figures_again() {
        let measured = run(&course());
        assert_eq!(measured, run(&course()));
        assert_eq!(measured.iter().map(|one| one.writes).collect::<Vec<_>>(), [false, false, true]);
        assert!(measured.iter().take(2).all(|reader| reader.misses > 0), "{measured:?}");
    }
}
