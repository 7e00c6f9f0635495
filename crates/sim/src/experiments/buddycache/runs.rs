//! What is run, and what each run came to.

use super::machines::{LOCAL, costs};
use crate::runtime::Failure;
use crate::runtime::oo7::{Course, Groups, Measured, measure};
use crate::runtime::sharing;
use larder_oo7::{Layout, Parameters, Size};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What clients do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Load {
    /// All read, and begin with an empty cache (section 6.4.1).
    Cold,
    /// Three read what one changes, and all have what they work on (section 6.4.2).
    Hot,
}

impl Load {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Hot => "hot",
        }
    }
}

/// Who is in a group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Topology {
    /// Each is linked to the origin.
    Alone,
    /// All are one group.
    Group,
    /// Two readers and the writer are one, which is measured, and a reader is another.
    WriterGroup,
    /// The readers are one, which is measured, and the writer another.
    ReaderGroup,
}

impl Topology {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Alone => "alone",
            Self::Group => "group",
            Self::WriterGroup => "writer group",
            Self::ReaderGroup => "reader group",
        }
    }

    /// The group of each client, readers first; who is measured is of the first.
    fn groups(self, clients: usize) -> Option<Vec<usize>> {
        match self {
            Self::Alone => None,
            Self::Group => Some(vec![1; clients]),
            Self::WriterGroup => Some(vec![1, 1, 2, 1]),
            Self::ReaderGroup => Some(vec![1, 1, 1, 2]),
        }
    }
}

/// One run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Run {
    pub(super) load: Load,
    pub(super) topology: Topology,
    /// With what Larder has: what is only read is committed where it is, and cold clients ask for the module
    /// ahead. Else as the paper's: pages when they are missed, one at a time, and every commit validated at
    /// the origin.
    pub(super) best: bool,
    /// Clients; of a hot run one of them writes.
    pub(super) clients: usize,
    /// There and back; zero: on the local network.
    pub(super) round_trip_ms: u32,
    /// MiB of a client's cache; zero: as much as the paper's.
    pub(super) memory_mib: u32,
    /// Neighbours send each other copies with holes too.
    pub(super) holes: bool,
}

impl Run {
    /// A cold run as the paper's are, on the local network.
    pub(super) fn cold(topology: Topology, clients: usize) -> Self {
        let load = Load::Cold;
        let (best, holes) = (false, false);
        Self { load, topology, best, clients, round_trip_ms: 0, memory_mib: 0, holes }
    }

    /// A hot run as the paper's are, on the local network.
    pub(super) fn hot(topology: Topology) -> Self {
        Self { load: Load::Hot, ..Self::cold(topology, HOT_CLIENTS) }
    }

    /// The same at a distance.
    pub(super) fn far(self, round_trip_ms: u32) -> Self {
        Self { round_trip_ms, ..self }
    }

    /// The same with what Larder has.
    pub(super) fn best(self) -> Self {
        Self { best: true, ..self }
    }

    /// Cold clients with caches of another size.
    pub(super) fn small(topology: Topology, memory_mib: u32) -> Self {
        Self { memory_mib, ..Self::cold(topology, SMALL_CLIENTS) }
    }

    /// Readers who are a group, with caches of another size, while somebody elsewhere changes what they read; with
    /// complete copies from neighbours, or with holes too.
    pub(super) fn holed(memory_mib: u32, holes: bool) -> Self {
        Self { memory_mib, holes, ..Self::hot(Topology::ReaderGroup) }
    }
}

/// How much is run.
#[derive(Clone, Debug)]
pub struct Scale {
    parameters: Parameters,
    page_bytes: u32,
    memory: u64,
    cold: u64,
    warm: u64,
    hot: u64,
    /// Transactions of each client that shares a page.
    shares: u64,
    /// Clients of cold runs on the local network.
    pub(super) clients: Vec<usize>,
    /// Of these there are runs far away too.
    pub(super) curves: Vec<usize>,
    /// Distances that are derived.
    pub(super) latencies_ms: Vec<u32>,
    /// Sizes of caches, MiB.
    pub(super) caches_mib: Vec<u32>,
    /// Clients that share a page.
    pub(super) sharing: Vec<usize>,
    /// What a slow member takes to acknowledge a change.
    pub(super) slow_ms: Vec<u32>,
    seed: u64,
}

impl Scale {
    /// The paper's set-up (section 6.2), on one private module.
    #[must_use]
    pub fn paper() -> Self {
        let parameters =
            Parameters { layout: Layout::ByCreation, ..Parameters::new(Size::Medium, 3) };
        Self {
            parameters,
            page_bytes: 8 << 10,
            memory: 40 << 20,
            cold: 1000,
            warm: 2000,
            hot: 1000,
            shares: 200,
            clients: vec![1, 2, 3, 5, 10],
            curves: vec![3, 5, 10],
            latencies_ms: vec![1, 5, 10, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200],
            caches_mib: vec![10, 20, 40],
            sharing: vec![1, 2, 4, 7, 10],
            slow_ms: vec![0, 10, 20, 40, 60, 80, 100, 150, 200, 400],
            seed: 1,
        }
    }

    /// So small that it takes a test a moment.
    #[must_use]
    pub fn quick() -> Self {
        let parameters = Parameters { layout: Layout::ByCreation, ..Parameters::tiny() };
        Self {
            parameters: Parameters {
                atomic_per_composite: 40,
                composites_per_module: 20,
                ..parameters
            },
            page_bytes: 4 << 10,
            cold: 60,
            warm: 60,
            hot: 60,
            shares: 20,
            clients: vec![1, 3, 5],
            curves: vec![3, 5],
            latencies_ms: vec![1, 20, 40, 60, 80, 100],
            caches_mib: vec![1],
            sharing: vec![1, 3],
            slow_ms: vec![0, 100],
            ..Self::paper()
        }
    }

    /// The most clients of which there are runs far away.
    pub(super) fn most(&self) -> usize {
        *self.curves.last().expect("a scale has some")
    }

    /// Transactions of a cold run.
    pub(super) fn cold(&self) -> u64 {
        self.cold
    }

    /// Transactions of a hot run that are timed.
    pub(super) fn hot(&self) -> u64 {
        self.hot
    }

    /// All runs.
    pub(super) fn runs(&self) -> Vec<Run> {
        use Topology as T;
        let mut runs = Vec::new();
        for topology in [T::Alone, T::Group] {
            runs.extend(self.clients.iter().map(|&clients| Run::cold(topology, clients)));
            runs.extend(self.curves.iter().map(|&k| Run::cold(topology, k).far(FAR_MS)));
            runs.push(Run::cold(topology, self.most()).far(FAR_MS).best());
            runs.extend(self.caches_mib.iter().map(|mib| Run::small(topology, *mib)));
        }
        for topology in [T::Alone, T::WriterGroup, T::ReaderGroup] {
            runs.push(Run::hot(topology));
            runs.push(Run::hot(topology).far(FAR_MS));
            runs.push(Run::hot(topology).far(FAR_MS).best());
        }
        for holes in [false, true] {
            runs.extend(self.caches_mib.iter().map(|mib| Run::holed(*mib, holes)));
        }
        runs
    }

    /// False sharing among so many, who may read of one another, and may be a group.
    pub(super) fn sharing(&self, clients: usize, how: Sharing) -> sharing::Course {
        sharing::Course {
            clients,
            objects: 4,
            reads_others: how.reads_others,
            round_trip: LOCAL + Duration::from_millis(u64::from(FAR_MS)),
            groups: how.group.then(|| Groups::one(clients, LOCAL)),
            slow: None,
            transactions: self.shares,
            costs: costs(),
            seed: self.seed,
        }
    }

    /// Figure 4: one member changes an object again and again, one acknowledges what is told at once, and one
    /// after so long.
    pub(super) fn slow_peer(&self, slow_ms: u32, group_ack: bool) -> sharing::Course {
        let clients = SLOW_CLIENTS;
        let how = Sharing { reads_others: false, group: true };
        let round_trip = LOCAL + Duration::from_millis(u64::from(slow_ms));
        sharing::Course {
            objects: 1,
            slow: Some(sharing::Slow { round_trip, group_ack }),
            ..self.sharing(clients, how)
        }
    }

    fn course(&self, run: Run) -> Course {
        let writers = usize::from(run.load == Load::Hot);
        let (warm, transactions) = match run.load {
            Load::Cold => (0, self.cold),
            Load::Hot => (self.warm, self.hot),
        };
        let memory = match run.memory_mib {
            0 => self.memory,
            mib => u64::from(mib) << 20,
        };
        // Whatever the distance, the local networks at both its ends are crossed too.
        let line = Duration::from_millis(u64::from(run.round_trip_ms));
        Course {
            parameters: self.parameters,
            page_bytes: self.page_bytes,
            readers: run.clients - writers,
            writers,
            round_trip: LOCAL + line,
            groups: run.topology.groups(run.clients).map(|of| Groups {
                round_trip: LOCAL,
                of,
                holes: run.holes,
            }),
            memory,
            warm,
            transactions,
            think: Duration::ZERO,
            costs: costs(),
            strict: !run.best,
            ahead: run.best && run.load == Load::Cold,
            seed: self.seed,
        }
    }
}

/// The distance at which clients are that are far away: the paper's, and that of the targets.
pub(super) const FAR_MS: u32 = 40;

/// Members of the group with a slow one.
const SLOW_CLIENTS: usize = 3;

/// Clients with small caches.
const SMALL_CLIENTS: usize = 3;

/// Clients of a hot run: one writer and three readers.
pub(super) const HOT_CLIENTS: usize = 4;

/// What a client of one kind measured, on average. Times are in seconds, of all its transactions.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Mean {
    pub(super) transactions: f64,
    pub(super) compute: f64,
    /// From above, and what conflicts cost.
    pub(super) fetch: f64,
    pub(super) commit: f64,
    pub(super) misses: f64,
    /// Pages that came from neighbours.
    pub(super) from_neighbours: f64,
    /// Seconds that those took.
    pub(super) peer: f64,
    /// Transactions that waited for a page.
    pub(super) missed: f64,
    pub(super) commits_at_origin: f64,
    pub(super) conflicts: f64,
}

impl Mean {
    /// Where pages are asked for ahead, what those of neighbours took is no part of what was waited.
    fn of<'a>(measured: impl Iterator<Item = &'a Measured>, ahead: bool) -> Self {
        let peer = |one: &Measured| if ahead { Duration::ZERO } else { one.neighbours };
        let all: Vec<&Measured> = measured.collect();
        let mean = |of: &dyn Fn(&Measured) -> f64| {
            all.iter().map(|one| of(one)).sum::<f64>() / all.len().max(1) as f64
        };
        Self {
            transactions: mean(&|one| one.transactions as f64),
            compute: mean(&|one| one.worked.as_secs_f64()),
            fetch: mean(&|one| one.fetches().saturating_sub(peer(one)).as_secs_f64()),
            commit: mean(&|one| one.commits.as_secs_f64()),
            misses: mean(&|one| one.misses as f64),
            from_neighbours: mean(&|one| one.from_neighbours as f64),
            peer: mean(&|one| peer(one).as_secs_f64()),
            missed: mean(&|one| one.missed as f64),
            commits_at_origin: mean(&|one| one.at_origin as f64),
            conflicts: mean(&|one| one.conflicts as f64),
        }
    }

    pub(super) fn total(&self) -> f64 {
        self.compute + self.waited()
    }

    /// What it waited for the network.
    pub(super) fn waited(&self) -> f64 {
        self.fetch + self.peer + self.commit
    }

    /// Misses that were fetched from above.
    pub(super) fn fetched(&self) -> f64 {
        (self.misses - self.from_neighbours).max(0.0)
    }

    /// The same at a distance, as the paper derives it: each request that crosses the line takes so much
    /// longer, and all else is as on the local network.
    pub(super) fn at(&self, round_trip_ms: u32) -> Self {
        let seconds = f64::from(round_trip_ms) / 1e3;
        Self {
            fetch: self.fetch + self.fetched() * seconds,
            commit: self.commit + self.commits_at_origin * seconds,
            ..*self
        }
    }
}

/// What a run came to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Outcome {
    /// Who only reads, of the group that is measured.
    pub(super) readers: Mean,
    /// Who writes.
    pub(super) writers: Mean,
}

impl Outcome {
    fn of(run: Run, measured: &[Measured]) -> Self {
        let groups = run.topology.groups(run.clients).unwrap_or_else(|| vec![1; run.clients]);
        let of = |writes| {
            let some = measured.iter().zip(&groups).filter(move |(one, _)| one.writes == writes);
            let some = some.filter(|(_, group)| writes || **group == 1);
            Mean::of(some.map(|(one, _)| one), run.best)
        };
        Self { readers: of(false), writers: of(true) }
    }
}

/// How a page is shared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Sharing {
    /// Each reads an object of another too.
    pub(super) reads_others: bool,
    /// All are a group.
    pub(super) group: bool,
}

impl Sharing {
    pub(super) const ALL: [Self; 4] = [
        Self { reads_others: false, group: false },
        Self { reads_others: false, group: true },
        Self { reads_others: true, group: false },
        Self { reads_others: true, group: true },
    ];
}

/// What all runs came to.
#[derive(Default)]
pub(super) struct Outcomes {
    pub(super) runs: BTreeMap<Run, Outcome>,
    /// By clients.
    pub(super) sharing: BTreeMap<(usize, Sharing), sharing::Measured>,
    /// By how slow the slow member is, and whether commits wait for it.
    pub(super) slow: BTreeMap<(u32, bool), sharing::Measured>,
}

/// Runs all of a scale, so many at once, and says how far it is.
pub(super) fn run_all(
    scale: &Scale,
    jobs: usize,
    progress: impl Fn(usize, usize) + Sync,
) -> Result<Outcomes, Failure> {
    let mut runs = scale.runs();
    // The longest first, so that nobody waits for one at the end.
    runs.sort_by_key(|run| std::cmp::Reverse((run.load, run.clients)));
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Ok(Outcomes::default())));
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let measured = measure(&scale.course(*run));
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    let Ok(outcomes) = &mut *done else { return };
                    match measured {
                        Ok(measured) => {
                            outcomes.runs.insert(*run, Outcome::of(*run, &measured));
                            progress(outcomes.runs.len(), runs.len());
                        }
                        Err(failure) => *done = Err(failure),
                    }
                }
            });
        }
    });
    let mut outcomes = done.into_inner().unwrap_or_else(PoisonError::into_inner)?;
    for &clients in &scale.sharing {
        for how in Sharing::ALL {
            let measured = sharing::measure(&scale.sharing(clients, how))?;
            outcomes.sharing.insert((clients, how), measured);
        }
    }
    for &slow_ms in &scale.slow_ms {
        for group_ack in [false, true] {
            let measured = sharing::measure(&scale.slow_peer(slow_ms, group_ack))?;
            outcomes.slow.insert((slow_ms, group_ack), measured);
        }
    }
    Ok(outcomes)
}
