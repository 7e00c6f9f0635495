//! Worlds of the real runtime: `larder`'s nodes, relays and origin, their hosts, links and client
//! library, in virtual time, by a seed (`docs/decisions/0023-the-runtime-simulated.md`).

mod cast;
mod client;
mod env;
mod gate;
mod ledger;
mod net;
pub mod oo7;
mod panics;
pub mod plan;
pub mod planted;
pub mod sharing;
mod watch;
mod work;
mod world;

pub use env::Tally;

use env::{Env, Shared, lock};
use larder::planted::RuntimeFault;
use plan::Plan;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A run that kept all promises.
#[derive(Clone, Debug)]
pub struct Clean {
    /// The hash of what its clients saw.
    pub hash: u64,
    /// How much that was.
    pub events: u64,
    /// What happened.
    pub tally: Tally,
    /// What was seen last, if that was asked for.
    pub tail: String,
}

/// A run that broke one.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// What was planted.
    pub fault: Option<RuntimeFault>,
    /// The hash up to the failure.
    pub hash: u64,
    /// The promise broken, and how.
    pub what: String,
    /// What was seen last, if that was asked for.
    pub tail: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tail)?;
        writeln!(f, "runtime seed {}: {}", self.seed, self.what)?;
        write!(f, "again: {}", self.again())
    }
}

impl Failure {
    /// The command that plays it again.
    #[must_use]
    pub fn again(&self) -> String {
        let fault = self.fault.and_then(planted::name);
        let fault = fault.map(|name| format!(" --fault {name}")).unwrap_or_default();
        format!("./x sim --runtime {}{fault}", self.seed)
    }
}

/// Plays a seed. With `readable` a failure carries what was seen last.
pub fn run_seed(seed: u64, fault: Option<RuntimeFault>, readable: bool) -> Result<Clean, Failure> {
    run_plan(Plan::draw(seed, fault), readable)
}

/// Plays a plan.
pub fn run_plan(plan: Plan, readable: bool) -> Result<Clean, Failure> {
    run_world(plan, readable, world::play)
}

/// Plays something in a plan's world.
fn run_world<Run: Future<Output = ()>>(
    plan: Plan,
    readable: bool,
    play: impl FnOnce(Arc<Shared>) -> Run,
) -> Result<Clean, Failure> {
    let (seed, fault) = (plan.seed, plan.fault);
    let kept: OnceLock<Arc<Shared>> = OnceLock::new();
    panics::begin();
    // A panic of the world itself is noted like those of its tasks.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime of one thread needs nothing");
        runtime.block_on(async {
            let shared = kept.get_or_init(|| Arc::new(Shared::new(plan, readable))).clone();
            let _world = larder::simulated::enter(Rc::new(Env(shared.clone())));
            let run = std::pin::pin!(play(shared));
            first_panic(run).await;
        });
    }));
    let what = panics::end();
    let (hash, events, tail, tally) = kept.get().map_or_else(Default::default, |shared| {
        let trace = lock(&shared.trace);
        (trace.hash(), trace.events(), trace.to_string(), *lock(&shared.tally))
    });
    match what {
        None => Ok(Clean { hash, events, tally, tail }),
        Some(what) => Err(Failure { seed, fault, hash, what, tail }),
    }
}

/// Runs until the world has ended, or somebody in it has panicked.
async fn first_panic(mut run: std::pin::Pin<&mut impl Future<Output = ()>>) {
    loop {
        let look = tokio::time::sleep(std::time::Duration::from_millis(500));
        tokio::select! {
            biased;
            () = run.as_mut() => return,
            () = look => if panics::any() { return },
        }
    }
}

/// What became of many seeds.
#[derive(Debug, Default)]
pub struct Report {
    /// Seeds played.
    pub seeds: u64,
    /// What clients saw, in all.
    pub events: u64,
    /// Sums over all runs that were clean.
    pub tally: Tally,
    /// Runs that broke a promise, by seed.
    pub failures: Vec<Failure>,
}

/// Plays seeds, `jobs` at once; stops at the first failure unless told to play `all`.
#[must_use]
pub fn run_all(seeds: Range<u64>, fault: Option<RuntimeFault>, jobs: usize, all: bool) -> Report {
    let next = AtomicU64::new(seeds.start);
    let report = Mutex::new(Report::default());
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let result = run_seed(seed, fault, false);
                    let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
                    report.add(result);
                    if !all && !report.failures.is_empty() {
                        next.store(seeds.end, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.failures.sort_by_key(|failure| failure.seed);
    report
}

impl Report {
    fn add(&mut self, result: Result<Clean, Failure>) {
        self.seeds += 1;
        match result {
            Ok(Clean { events, tally, .. }) => {
                self.events += events;
                self.tally.committed += tally.committed;
                self.tally.aborted += tally.aborted;
                self.tally.unknown += tally.unknown;
                self.tally.dropped += tally.dropped;
                self.tally.heard += tally.heard;
                self.tally.troubles += tally.troubles;
            }
            Err(failure) => self.failures.push(failure),
        }
    }
}
