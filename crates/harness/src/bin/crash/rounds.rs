//! Rounds of faults while transactions and file work go on; after each one everything is compared.

use crate::faults::{Kind, inflict, plan};
use crate::samples;
use crate::work::Work;
use crate::world::{Pace, World};
use anyhow::{Context, Result, ensure};
use larder_core::rng::Rng;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// What is asked for.
pub(crate) struct Options {
    pub(crate) rounds: u64,
    /// The number of the first round.
    pub(crate) first: u64,
    /// No round begins after this.
    pub(crate) limit: Option<Duration>,
    pub(crate) seed: u64,
    pub(crate) only: Vec<Kind>,
    pub(crate) keep: bool,
}

struct Run {
    world: World,
    work: Work,
    /// How often each fault came.
    faults: BTreeMap<&'static str, u64>,
}

/// Runs them.
///
/// # Errors
/// At the first round after which something is not as it must be: names the command that repeats it.
pub(crate) fn run(binary: &Path, options: &Options) -> Result<Value> {
    let started = Instant::now();
    let world = World::new(binary, options.seed, Pace::Quick, options.keep)?;
    let work = Work::new(&world, options.seed)?;
    let mut run = Run { world, work, faults: BTreeMap::new() };
    let mut done = 0;
    for number in options.first..options.first + options.rounds {
        if options.limit.is_some_and(|limit| started.elapsed() > limit) {
            break;
        }
        if let Err(error) = run.round(options, number) {
            run.world.site.keep();
            return Err(error.context(repeat(options, number)));
        }
        done += 1;
    }
    let figures = samples::to_json(&samples::sample(&mut run.world)?);
    let Run { world, work: Work { files, found, .. }, faults } = run;
    ensure!(done == 0 || found.across > 0, "no transfer was over two domains");
    let (refused, ended) = (world.refused_starts, world.ended_services);
    world.stop().with_context(|| repeat(options, options.first + done))?;
    Ok(json!({
        "seed": options.seed,
        "rounds": done,
        "seconds": started.elapsed().as_secs_f64(),
        "faults": faults,
        "transfers": found.done,
        "over_two_domains": found.across,
        "seconds_in_one_domain_alone": found.apart.as_secs_f64(),
        "acknowledged": found.acknowledged,
        "unknown": found.unknown,
        "lost": 0,
        "file_operations": files.steps,
        "names_checked": files.checked,
        "refused_starts": refused,
        "ended_services": ended,
        "processes": figures,
    }))
}

/// How to see a failure again.
fn repeat(options: &Options, number: u64) -> String {
    let only: String = options.only.iter().map(|kind| format!(" --only {}", kind.name())).collect();
    let (seed, first) = (options.seed, options.first);
    let rounds = number + 1 - first;
    format!(
        "round {number} of seed {seed}; again: ./x crash --seed {seed} --first {number} --rounds 1{only}, \
         with all before it: ./x crash --seed {seed} --first {first} --rounds {rounds}{only}"
    )
}

impl Run {
    fn round(&mut self, options: &Options, number: u64) -> Result<()> {
        let started = Instant::now();
        // Of this round alone, so that it can be repeated without those before it.
        let mut rng = Rng::new(options.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ number);
        let faults = plan(&mut rng, &options.only);
        let text: Vec<_> = faults.iter().map(ToString::to_string).collect();
        self.work.start(&mut self.world, &mut rng)?;
        inflict(&mut self.world, &faults).with_context(|| text.join(", "))?;
        std::thread::sleep(Duration::from_millis(rng.below(200)));
        let worked = started.elapsed();
        self.work.verify(&mut self.world).with_context(|| text.join(", "))?;
        for fault in &faults {
            *self.faults.entry(fault.kind.name()).or_default() += 1;
        }
        eprintln!(
            "crash: round {number}: {}; {} of {} transfers acknowledged; {:.1} s, {:.1} s of them comparing",
            text.join(", "),
            self.work.found.acknowledged,
            self.work.found.done,
            started.elapsed().as_secs_f64(),
            (started.elapsed() - worked).as_secs_f64()
        );
        Ok(())
    }
}
