//! Many seeds on several threads. Each run has a thread of its own: they share nothing.

use crate::plan::{Plan, TROUBLES};
use crate::probes::Counts;
use crate::run::{Failure, run_plan};
use crate::world::Tally;
use larder_core::machine::Faults;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// What became of many seeds.
#[derive(Debug, Default)]
pub struct Report {
    /// Seeds played.
    pub seeds: u64,
    /// Of those that were clean, so many of each budget: recoverable, and beyond.
    pub budgets: [u64; 2],
    /// Clean runs in which each kind of trouble struck, in the order of the kinds.
    pub struck: [u64; TROUBLES.len()],
    /// Events in all.
    pub events: u64,
    /// Sums over all runs that were clean.
    pub tally: Tally,
    /// How long all clients of each run together took to prove that they can commit once it was mended, in
    /// nanoseconds.
    pub proofs: Vec<u64>,
    /// How often rare branches were taken in runs that were clean.
    pub probes: Counts,
    /// Runs that broke a promise, by seed.
    pub failures: Vec<Failure>,
}

/// Plays seeds, `jobs` at once; stops at the first failure unless told to play `all`.
#[must_use]
pub fn run_all(seeds: Range<u64>, faults: Faults, jobs: usize, all: bool) -> Report {
    run_plans(seeds, |seed| Plan::draw(seed, faults), jobs, all)
}

/// The same with plans of one's own.
#[must_use]
pub fn run_plans(
    seeds: Range<u64>,
    plan: impl Fn(u64) -> Plan + Sync,
    jobs: usize,
    all: bool,
) -> Report {
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
                    let result = run_plan(plan(seed), false);
                    let mut report = report.lock().expect("nothing panics while it is held");
                    report.add(result);
                    if !all && !report.failures.is_empty() {
                        next.store(seeds.end, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let mut report = report.into_inner().expect("nothing panics while it is held");
    report.failures.sort_by_key(|failure| failure.seed);
    report
}

impl Report {
    /// How long it took in all but so many of a hundred runs until everybody had committed, in seconds.
    #[must_use]
    pub fn proved_within(&self, but_percent: usize) -> f64 {
        let mut proofs = self.proofs.clone();
        proofs.sort_unstable();
        let place = proofs.len() * (100 - but_percent) / 100;
        proofs.get(place).or(proofs.last()).map_or(0.0, |nanos| *nanos as f64 / 1e9)
    }

    fn add(&mut self, result: Result<crate::run::Clean, Failure>) {
        self.seeds += 1;
        match result {
            Ok(clean) => {
                self.events += clean.events;
                self.budgets[clean.budget as usize] += 1;
                for (kind, struck) in clean.tally.struck.into_iter().enumerate() {
                    self.tally.struck[kind] += struck;
                    self.struck[kind] += u64::from(struck > 0);
                }
                for (name, count) in clean.probes {
                    *self.probes.entry(name).or_default() += count;
                }
                self.tally.committed += clean.tally.committed;
                self.tally.aborted += clean.tally.aborted;
                self.tally.unknown += clean.tally.unknown;
                self.tally.copies_checked += clean.tally.copies_checked;
                self.tally.troubles += clean.tally.troubles;
                self.tally.forks += clean.tally.forks;
                self.tally.refused_stores += clean.tally.refused_stores;
                self.tally.deletions += clean.tally.deletions;
                self.tally.wholes += clean.tally.wholes;
                self.tally.between_origins += clean.tally.between_origins;
                self.tally.refused_twins += clean.tally.refused_twins;
                self.tally.went_on += clean.tally.went_on;
                self.tally.cores += clean.tally.cores;
                self.proofs.push(clean.tally.proof_nanos_max);
                self.tally.refreshed += clean.tally.refreshed;
                self.tally.copied += clean.tally.copied;
                self.tally.file_operations += clean.tally.file_operations;
            }
            Err(failure) => self.failures.push(failure),
        }
    }
}
