//! What is run, and what each run came to.

use super::machines::{LOCAL, costs};
use crate::runtime::Failure;
use crate::runtime::oo7::{Course, Measured, measure};
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

/// How they do it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum System {
    /// Each by itself, as the paper's: pages when they are missed, one at a time, and every commit validated at
    /// the origin.
    Base,
    /// Each by itself, with what Larder has: what is only read is committed where it is, and cold clients ask
    /// for the module ahead.
    Best,
}

/// One run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Run {
    pub(super) load: Load,
    pub(super) system: System,
    /// Clients; of a hot run one of them writes.
    pub(super) clients: usize,
    /// There and back; zero: on the local network.
    pub(super) round_trip_ms: u32,
    /// Each does the work of so many, one after the other.
    pub(super) work: usize,
    /// MiB of a client's cache; zero: as much as the paper's.
    pub(super) memory_mib: u32,
}

impl Run {
    /// A cold run as the paper's are, on the local network.
    pub(super) fn cold(system: System, clients: usize) -> Self {
        Self { load: Load::Cold, system, clients, round_trip_ms: 0, work: 1, memory_mib: 0 }
    }

    /// A hot run as the paper's are, on the local network.
    pub(super) fn hot(system: System) -> Self {
        Self { load: Load::Hot, ..Self::cold(system, HOT_CLIENTS) }
    }

    /// The same at a distance.
    pub(super) fn far(self, round_trip_ms: u32) -> Self {
        Self { round_trip_ms, ..self }
    }

    /// One client that does the work of so many: what it misses is what they miss together, each page counted
    /// once.
    pub(super) fn alone(clients: usize) -> Self {
        Self { work: clients, ..Self::cold(System::Base, 1) }
    }

    /// One client with a cache of another size, and the work of two.
    pub(super) fn small(memory_mib: u32) -> Self {
        Self { memory_mib, ..Self::alone(2) }
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
    /// Clients of cold runs on the local network.
    pub(super) clients: Vec<usize>,
    /// Of these there are runs far away too.
    pub(super) curves: Vec<usize>,
    /// Distances that are derived.
    pub(super) latencies_ms: Vec<u32>,
    /// Distances at which hot clients are.
    pub(super) far_ms: Vec<u32>,
    /// Sizes of caches, MiB.
    pub(super) caches_mib: Vec<u32>,
    /// Clients that share a page.
    pub(super) sharing: Vec<usize>,
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
            clients: (1..=10).collect(),
            curves: vec![3, 5, 10],
            latencies_ms: vec![1, 5, 10, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200],
            far_ms: vec![1, 20, 40, 80, 200],
            caches_mib: vec![5, 10, 20, 30, 40],
            sharing: vec![1, 2, 4, 6, 8, 10],
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
            clients: vec![1, 3, 5],
            curves: vec![3, 5],
            latencies_ms: vec![1, 20, 40, 60, 80, 100],
            far_ms: vec![40, 80],
            caches_mib: vec![1, 40],
            sharing: vec![1, 3],
            ..Self::paper()
        }
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
        let mut runs: Vec<Run> =
            self.clients.iter().map(|&clients| Run::cold(System::Base, clients)).collect();
        for &clients in &self.curves {
            for system in [System::Base, System::Best] {
                runs.extend(FAR_MS.map(|ms| Run::cold(system, clients).far(ms)));
            }
            runs.push(Run::alone(clients));
        }
        runs.push(Run::hot(System::Base));
        runs.extend(self.far_ms.iter().map(|ms| Run::hot(System::Base).far(*ms)));
        runs.extend(FAR_MS.map(|ms| Run::hot(System::Best).far(ms)));
        runs.extend(self.caches_mib.iter().map(|mib| Run::small(*mib)));
        runs
    }

    /// False sharing among so many, which may read of one another.
    pub(super) fn sharing(&self, clients: usize, reads_others: bool) -> sharing::Course {
        sharing::Course {
            clients,
            objects: 4,
            reads_others,
            round_trip: LOCAL + Duration::from_millis(40),
            transactions: self.hot,
            costs: costs(),
            seed: self.seed,
        }
    }

    fn course(&self, run: Run) -> Course {
        let writers = usize::from(run.load == Load::Hot);
        let (warm, transactions) = match run.load {
            Load::Cold => (0, self.cold),
            Load::Hot => (self.warm, self.hot),
        };
        let best = run.system == System::Best;
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
            memory,
            warm,
            transactions: transactions * run.work as u64,
            think: Duration::ZERO,
            costs: costs(),
            strict: !best,
            ahead: best && run.load == Load::Cold,
            seed: self.seed,
        }
    }
}

/// The paper's distances.
const FAR_MS: [u32; 2] = [40, 80];

/// Clients of a hot run: one writer and three readers.
pub(super) const HOT_CLIENTS: usize = 4;

/// What a client of one kind measured, on average. Times are in seconds, of all its transactions.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Mean {
    pub(super) transactions: f64,
    pub(super) compute: f64,
    pub(super) fetch: f64,
    pub(super) commit: f64,
    pub(super) misses: f64,
    /// Transactions that waited for a page.
    pub(super) missed: f64,
    pub(super) commits_at_origin: f64,
    pub(super) conflicts: f64,
}

impl Mean {
    fn of<'a>(measured: impl Iterator<Item = &'a Measured>) -> Self {
        let all: Vec<&Measured> = measured.collect();
        let mean = |of: &dyn Fn(&Measured) -> f64| {
            all.iter().map(|one| of(one)).sum::<f64>() / all.len().max(1) as f64
        };
        Self {
            transactions: mean(&|one| one.transactions as f64),
            compute: mean(&|one| one.worked.as_secs_f64()),
            fetch: mean(&|one| one.fetches().as_secs_f64()),
            commit: mean(&|one| one.commits.as_secs_f64()),
            misses: mean(&|one| one.misses as f64),
            missed: mean(&|one| one.missed as f64),
            commits_at_origin: mean(&|one| one.at_origin as f64),
            conflicts: mean(&|one| one.conflicts as f64),
        }
    }

    pub(super) fn total(&self) -> f64 {
        self.compute + self.fetch + self.commit
    }

    /// What it waited for the network.
    pub(super) fn waited(&self) -> f64 {
        self.fetch + self.commit
    }

    /// The same at a distance, as the paper derives it: each request that crosses the line takes so much
    /// longer, and all else is as on the local network.
    pub(super) fn at(&self, round_trip_ms: u32) -> Self {
        let seconds = f64::from(round_trip_ms) / 1e3;
        Self {
            fetch: self.fetch + self.misses * seconds,
            commit: self.commit + self.commits_at_origin * seconds,
            ..*self
        }
    }
}

/// What a run came to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Outcome {
    /// Who only reads.
    pub(super) readers: Mean,
    /// Who writes.
    pub(super) writers: Mean,
}

impl Outcome {
    fn of(measured: &[Measured]) -> Self {
        let of = |writes| Mean::of(measured.iter().filter(move |one| one.writes == writes));
        Self { readers: of(false), writers: of(true) }
    }
}

/// What all runs came to.
#[derive(Default)]
pub(super) struct Outcomes {
    pub(super) runs: BTreeMap<Run, Outcome>,
    /// By clients, and whether they read of one another.
    pub(super) sharing: BTreeMap<(usize, bool), sharing::Measured>,
}

/// Runs all of a scale, so many at once, and says how far it is.
pub(super) fn run_all(
    scale: &Scale,
    jobs: usize,
    progress: impl Fn(usize, usize) + Sync,
) -> Result<Outcomes, Failure> {
    let mut runs = scale.runs();
    // The longest first, so that nobody waits for one at the end.
    runs.sort_by_key(|run| std::cmp::Reverse((run.load, run.clients * run.work)));
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
                            outcomes.runs.insert(*run, Outcome::of(&measured));
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
        for others in [false, true] {
            let measured = sharing::measure(&scale.sharing(clients, others))?;
            outcomes.sharing.insert((clients, others), measured);
        }
    }
    Ok(outcomes)
}
