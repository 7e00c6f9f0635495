//! OO7 in virtual time: an origin, and clients with a line of a given latency each, on one module of a
//! database. What a processor does takes no time here but for what is said to pass between two
//! transactions, so that all that is measured is what the protocol waits for; the same course gives the same
//! figures everywhere.

use super::cast::Cast;
use super::env::{Shared, lock};
use super::plan::{GroupPlan, NodePlan, Plan};
use super::{Failure, run_world};
use larder::client::{Consistency, Node, Session, SessionOptions, VolumeOptions};
use larder::config::{GroupSection, LinkConfig, NodeSection, OriginSection};
use larder::limits::Limits;
use larder_oo7::{Database, Mix, Operation, Parameters, Workload, build};
use larder_store::log::LogConfig;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Longest wait for anything: nothing is in anybody's way.
const LIMIT: Duration = Duration::from_secs(3600);

/// The volume.
const NAME: &str = "design";

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
    /// From a client to the origin and back; in a group, from its redirector.
    pub round_trip: Duration,
    /// The clients are a group: from one to another, or to their redirector, and back.
    pub group: Option<Duration>,
    /// Bytes of each client's cache.
    pub memory: u64,
    /// Transactions of each client before those that are measured.
    pub warm: u64,
    /// Those that are.
    pub transactions: u64,
    /// What a client computes between two transactions.
    pub think: Duration,
    /// Every transaction is validated at the origin, those that only read too: the paper's mechanism.
    pub strict: bool,
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
    /// What they took together, in virtual time, without what was computed between them.
    pub took: Duration,
    /// Of that, their last commits.
    pub commits: Duration,
    /// Reads that waited for a page.
    pub misses: u64,
    /// Attempts that met a conflict.
    pub conflicts: u64,
}

/// Runs a course; what each client measured, readers first.
///
/// # Errors
/// Whatever went wrong in its world, where nothing should.
pub fn measure(course: &Course) -> Result<Vec<Measured>, Failure> {
    let told: Arc<Mutex<Vec<Measured>>> = Arc::default();
    run_world(course.plan(), false, |shared| play(shared, course.clone(), told.clone()))?;
    let measured = std::mem::take(&mut *lock(&told));
    Ok(measured)
}

impl Course {
    /// A world without troubles, whose lines have room for everything.
    fn plan(&self) -> Plan {
        let (node, origin) = (NodeSection::default(), OriginSection::default());
        let one_way = |there_and_back: Duration| {
            u64::try_from(there_and_back.as_millis() / 2).unwrap_or(u64::MAX)
        };
        let near = one_way(self.group.unwrap_or(self.round_trip));
        let names = ["founder".into()].into_iter();
        let names = names.chain((0..self.readers + self.writers).map(|n| format!("client{n}")));
        let nodes = names.map(|name| NodePlan {
            parent: usize::from(self.group.is_some() && name != "founder"),
            latency_ms: if name == "founder" { 0 } else { near },
            name,
            clients: 1,
            memory: self.memory,
            watcher: None,
        });
        Plan {
            domains: 1,
            relays: self.group.iter().map(|_| 0).collect(),
            relay_latency_ms: Some(one_way(self.round_trip)),
            group: self.group.map(|_| GroupPlan {
                latency_ms: near,
                section: GroupSection::default(),
                outsider: None,
            }),
            nodes: nodes.collect(),
            limits: Limits::SHIPPED,
            link: LinkConfig::default(),
            beat: node.beat.0,
            lease: origin.lease.0,
            pipe_bytes: 16 << 20,
            fragment: 1 << 30,
            dawdle: 0,
            disk_ms: 0,
            log: LogConfig::default(),
            install_every: Duration::from_secs(1),
            requests_max: 65_536,
            windows: (1 << 20, 4 << 20),
            ..Plan::draw(self.seed, None)
        }
    }

    fn session(&self) -> SessionOptions {
        let consistency = if self.strict { Consistency::Strict } else { Consistency::Serializable };
        SessionOptions {
            consistency,
            time_limit: LIMIT,
            refresh_limit: LIMIT,
            ..Default::default()
        }
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

async fn play(shared: Arc<Shared>, course: Course, told: Arc<Mutex<Vec<Measured>>>) {
    let mut cast = Cast::new(&shared);
    cast.start_origin().await;
    if course.group.is_some() {
        cast.start_relay(0).await;
    }
    shared.net.heal(true);
    found(&cast, &course).await;
    let count = course.readers + course.writers;
    let meeting = Arc::new(Meeting { barrier: Barrier::new(count), busy: AtomicUsize::new(count) });
    let mut clients = JoinSet::new();
    for number in 0..count {
        let node = Node::start(cast.node_config(1 + number, LIMIT)).expect("its certificate does");
        let client = Client {
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

/// Where clients wait for each other.
struct Meeting {
    barrier: Barrier,
    /// Clients that have transactions left to be measured: the others go on until there are none.
    busy: AtomicUsize,
}

struct Client {
    course: Course,
    workload: Workload,
    node: Node,
    shared: Arc<Shared>,
    meeting: Arc<Meeting>,
}

impl Client {
    async fn run(self) -> Measured {
        self.node.linked(LIMIT).await.expect("nothing is in its way");
        let volume = self.node.volume(NAME).await.expect("it was made");
        let session = volume.session(self.course.session());
        let tx = session.begin_read().await.expect("nothing is in its way");
        let database = Database::open(&volume, &tx).await.expect("it was built");
        drop(tx);
        for number in 0..self.course.warm {
            self.one(&database, &session, number).await;
        }
        self.meeting.barrier.wait().await;
        let misses = || self.node.metrics().summary().misses;
        let before = misses();
        let mut measured = Measured {
            writes: !self.workload.mix.only_reads(),
            transactions: self.course.transactions,
            ..Measured::default()
        };
        let end = self.course.warm + self.course.transactions;
        for number in self.course.warm..end {
            let done = self.one(&database, &session, number).await;
            measured.took += done.took;
            measured.commits += done.commit;
            measured.conflicts += u64::from(done.attempts - 1);
        }
        measured.misses = misses() - before;
        self.meeting.busy.fetch_sub(1, Ordering::Relaxed);
        for number in end.. {
            if self.meeting.busy.load(Ordering::Relaxed) == 0 {
                break;
            }
            self.one(&database, &session, number).await;
        }
        self.node.shutdown().await;
        measured
    }

    async fn one(&self, database: &Database, session: &Session, number: u64) -> larder_oo7::Done {
        let done = self.workload.run(database, session, number, || self.shared.elapsed()).await;
        sleep(self.course.think).await;
        done.unwrap_or_else(|error| panic!("transaction {number}: {error}"))
    }
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
            group: None,
            memory: 40 << 20,
            warm: 60,
            transactions: 40,
            think: Duration::from_millis(1),
            strict: true,
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

    /// What one member has fetched its neighbours get from it: all they wait for beside their commits is what
    /// the first of them fetches for all, over the line.
    #[test]
    fn a_group_crosses_the_line_for_a_page_once() {
        let alone = Course { readers: 3, writers: 0, warm: 0, ..course() };
        let group = Course { group: Some(Duration::from_millis(2)), ..alone.clone() };
        let waited = |course: &Course| {
            let pages = |one: &Measured| one.took - one.commits;
            run(course).iter().map(pages).sum::<Duration>()
        };
        let (alone, group) = (waited(&alone), waited(&group));
        assert!(group < alone * 3 / 4, "{group:?} in a group, {alone:?} without");
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
