//! Worlds of the runtime.

use super::options::{Options, parse_seeds};
use larder_sim::runtime::{planted::fault, run_all, run_seed};
use std::process::ExitCode;

/// Plays them; none: they are not asked for as they have to be.
pub(crate) fn run(seeds: &str, words: &[&str]) -> Option<ExitCode> {
    let seeds = parse_seeds(seeds)?;
    // A run of the runtime is repeated by its seed: where recordings go is said for all runs alike.
    let options = Options::parse(words, &["--fault", "--jobs", "--record"], &["--all", "--trace"])?;
    let planted = match options.value("--fault") {
        None => None,
        Some(name) => Some(fault(name)?),
    };
    let jobs: usize = options.number("--jobs", 1)?;
    let all = options.has("--all");
    if options.has("--trace") {
        let mut well = true;
        for seed in seeds.clone() {
            match run_seed(seed, planted, true) {
                Ok(clean) => println!("{}", clean.tail),
                Err(failure) => {
                    println!("{failure}");
                    well = false;
                }
            }
        }
        return Some(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let started = std::time::Instant::now();
    let one = seeds.end - seeds.start == 1;
    let report = run_all(seeds, planted, jobs, all);
    for failure in &report.failures {
        if all && !one {
            println!("seed {}: {}\nagain: {}", failure.seed, failure.what, failure.again());
            continue;
        }
        // Again, now with what was seen.
        match run_seed(failure.seed, planted, true) {
            Err(again) => println!("{again}"),
            Ok(_) => println!("{failure}\nand it does not fail again: not deterministic"),
        }
    }
    println!(
        "{} runtime seeds, {} failed; {} events in {:.1} s; {} transactions committed, {} \
         aborted, {} unknown; {} calls dropped, {} events heard, {} troubles",
        report.seeds,
        report.failures.len(),
        report.events,
        started.elapsed().as_secs_f64(),
        report.tally.committed,
        report.tally.aborted,
        report.tally.unknown,
        report.tally.dropped,
        report.tally.heard,
        report.tally.troubles,
    );
    Some(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints a hash for each.
pub(crate) fn hash(seeds: &str) -> Option<ExitCode> {
    for seed in parse_seeds(seeds)? {
        match run_seed(seed, None, false) {
            Ok(clean) => println!("runtime {seed} {:016x} {}", clean.hash, clean.events),
            Err(failure) => println!("runtime {seed} {:016x} failed", failure.hash),
        }
    }
    Some(ExitCode::SUCCESS)
}
