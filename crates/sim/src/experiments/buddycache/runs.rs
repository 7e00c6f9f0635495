//! What is run, and what each run came to.

use super::machines::{LOCAL, costs};
use crate::runtime::Failure;
use crate::runtime::oo7::{Course, Measured, measure};
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
    pub(super) clients: Vec<usize>,
    /// Of these there are runs at all latencies.
    pub(super) curves: Vec<usize>,
    pub(super) latencies_ms: Vec<u32>,
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
            latencies_ms: vec![1, 5, 10, 20, 40, 60, 80, 120, 160, 200],
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
            clients: vec![1, 3],
            curves: vec![3],
            latencies_ms: vec![1, 40, 80],
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
        let mut runs = Vec::new();
        for system in [System::Base, System::Best] {
            let cold =
                |clients, round_trip_ms| Run { load: Load::Cold, system, clients, round_trip_ms };
            let hot = |round_trip_ms| Run {
                load: Load::Hot,
                system,
                clients: HOT_CLIENTS,
                round_trip_ms,
            };
            let some = [0, 40, 80];
            runs.extend(self.clients.iter().flat_map(|clients| some.map(|ms| cold(*clients, ms))));
            let curves = self.curves.iter();
            runs.extend(
                curves.flat_map(|clients| self.latencies_ms.iter().map(|ms| cold(*clients, *ms))),
            );
            runs.extend(some.map(hot));
            runs.extend(self.latencies_ms.iter().map(|ms| hot(*ms)));
        }
        runs.sort();
        runs.dedup();
        runs
    }

    fn course(&self, run: Run) -> Course {
        let writers = usize::from(run.load == Load::Hot);
        let (warm, transactions) = match run.load {
            Load::Cold => (0, self.cold),
            Load::Hot => (self.warm, self.hot),
        };
        let best = run.system == System::Best;
        // Whatever the distance, the local networks at both its ends are crossed too.
        let line = Duration::from_millis(u64::from(run.round_trip_ms));
        Course {
            parameters: self.parameters,
            page_bytes: self.page_bytes,
            readers: run.clients - writers,
            writers,
            round_trip: LOCAL + line,
            memory: self.memory,
            warm,
            transactions,
            think: Duration::ZERO,
            costs: costs(),
            strict: !best,
            ahead: best && run.load == Load::Cold,
            seed: self.seed,
        }
    }
}

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

/// What all runs came to.
pub(super) type Outcomes = BTreeMap<Run, Outcome>;

/// Runs all of a scale, so many at once, and says how far it is.
pub(super) fn run_all(
    scale: &Scale,
    jobs: usize,
    progress: impl Fn(usize, usize) + Sync,
) -> Result<Outcomes, Failure> {
    let mut runs = scale.runs();
    // The longest first, so that nobody waits for one at the end.
    runs.sort_by_key(|run| std::cmp::Reverse((run.load, run.clients)));
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Ok(Outcomes::new())));
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let measured = measure(&scale.course(*run));
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    let Ok(outcomes) = &mut *done else { return };
                    match measured {
                        Ok(measured) => {
                            let of = |writes| {
                                Mean::of(measured.iter().filter(move |one| one.writes == writes))
                            };
                            outcomes
                                .insert(*run, Outcome { readers: of(false), writers: of(true) });
                            progress(outcomes.len(), runs.len());
                        }
                        Err(failure) => *done = Err(failure),
                    }
                }
            });
        }
    });
    done.into_inner().unwrap_or_else(PoisonError::into_inner)
}
