//! The simulator's command line: see the crate's documentation.

use larder_core::machine::Faults;
use larder_core::rng::Rng;
use larder_sim::agenda::{Agenda, SECOND, Time};
use larder_sim::recording::Recording;
use larder_sim::run::{Failure, run_plan, run_printing, run_recorded, run_seed, transcript};
use larder_sim::scenario::SCENARIOS;
use larder_sim::shrink::shrink;
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage:
  larder-sim run SEED [--fault NAME]  plays a seed; prints the trace's end if it fails
  larder-sim run A..B [--jobs N] [--all]
                                      plays seeds, N at once, up to the first that fails, or all
                                      a run that fails is recorded in FOLDER (--record FOLDER)
  larder-sim replay FILE [--quiet]    plays a run that was recorded; prints what happens in it
  larder-sim shrink FILE [--seconds N] [--out FILE]
                                      makes a recorded run that fails smaller (default 60 s), and writes
                                      that beside it, with what happens in it as text
  larder-sim runtime A..B [--jobs N] [--all] [--trace] [--fault NAME]
                                      plays worlds of the real runtime; `run --runtime` is the same
  larder-sim scenario NAME A..B       plays worlds in which a named race is met
  larder-sim hash [--runtime | --files] A..B
                                      prints a hash for each seed: the same in every build
  larder-sim planted [--json] [--fault NAME] [--seeds N] [--jobs N]
                                      plants each fault and says how many seeds catch it
  larder-sim adya A..B                asks the crate adya about the clients' histories too (built with
                                      --features second-opinion)
  larder-sim probes A..B [--json] [--jobs N]
                                      plays seeds and says how often they came to rare branches
  larder-sim bench [--json]           measures events per second";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        #[cfg(feature = "runtime")]
        ["runtime", seeds, rest @ ..] | ["run", "--runtime", seeds, rest @ ..] => {
            runtime::run(seeds, rest)
        }
        #[cfg(feature = "runtime")]
        ["hash", "--runtime", seeds] => runtime::hash(seeds),
        #[cfg(feature = "files")]
        ["hash", "--files", seeds] => hash_files(seeds),
        ["run", seeds, rest @ ..] => run(seeds, rest),
        ["replay", file, rest @ ..] => replay(Path::new(file), rest),
        ["shrink", file, rest @ ..] => shrink_file(Path::new(file), rest),
        ["scenario", name, seeds] => scenario(name, seeds),
        ["hash", seeds] => hash(seeds),
        ["planted", rest @ ..] => planted(rest),
        #[cfg(feature = "second-opinion")]
        ["adya", seeds] => second_opinion(seeds),
        ["probes", seeds, rest @ ..] => probes(seeds, rest),
        ["bench", rest @ ..] => bench(rest),
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn parse_seeds(text: &str) -> Option<std::ops::Range<u64>> {
    match text.split_once("..") {
        Some((first, end)) => Some(first.parse().ok()?..end.parse().ok()?),
        None => {
            let seed: u64 = text.parse().ok()?;
            Some(seed..seed + 1)
        }
    }
}

fn option<'a>(words: &[&'a str], name: &str) -> Option<&'a str> {
    let place = words.iter().position(|word| *word == name)?;
    words.get(place + 1).copied()
}

fn run(seeds: &str, rest: &[&str]) -> ExitCode {
    let Some(seeds) = parse_seeds(seeds) else {
        return usage();
    };
    let faults = match option(rest, "--fault") {
        None => Faults::NONE,
        Some(name) => {
            let mut known = larder_sim::planted::FAULTS.iter();
            match known.find(|(_, known)| *known == name) {
                Some((fault, _)) => Faults::only(*fault),
                None => return usage(),
            }
        }
    };
    let jobs = option(rest, "--jobs").and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
    let all = rest.contains(&"--all");
    let started = std::time::Instant::now();
    let report = larder_sim::fleet::run_all(seeds.clone(), faults, jobs, all);
    for failure in &report.failures {
        if all && seeds.end - seeds.start > 1 {
            println!("seed {}: {}", failure.seed, failure.what);
        } else {
            report_failure(failure, faults);
            record(failure, option(rest, "--record"));
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{} seeds, {} failed; {} events in {seconds:.1} s; {} transactions committed, {} aborted, \
         {} unknown; {} copies compared, {} damaged stores refused, \
         {} deletions asked for, {} volumes copied, {} times the latest asked for, \
         {} cores worked alone, at most {:.0} s until all had committed",
        report.seeds,
        report.failures.len(),
        report.events,
        report.tally.committed,
        report.tally.aborted,
        report.tally.unknown,
        report.tally.copies_checked,
        report.tally.refused_stores,
        report.tally.deletions,
        report.tally.copied,
        report.tally.refreshed,
        report.tally.cores,
        report.tally.proof_nanos_max as f64 / 1e9,
    );
    if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn scenario(name: &str, seeds: &str) -> ExitCode {
    let scenario = SCENARIOS.iter().find(|scenario| scenario.name == name);
    let (Some(scenario), Some(seeds)) = (scenario, parse_seeds(seeds)) else {
        let names: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        eprintln!("the scenarios are {}", names.join(", "));
        return usage();
    };
    let readable = seeds.end - seeds.start == 1;
    let mut failed = 0;
    for seed in seeds.clone() {
        if let Err(failure) = run_plan(scenario.plan(seed), readable) {
            failed += 1;
            println!("{}seed {seed}: {}", failure.tail, failure.what);
        }
    }
    println!("{name}: {} seeds, {failed} failed", seeds.end - seeds.start);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plays a failed seed again, now with its trace, and prints that.
fn report_failure(failure: &Failure, faults: Faults) {
    match run_seed(failure.seed, faults, true) {
        Err(again) => println!("{again}"),
        Ok(_) => println!("{failure}\nand it does not fail when played again: not deterministic"),
    }
}

/// Keeps a run that failed, and says how to look into it.
fn record(failure: &Failure, folder: Option<&str>) {
    let Some(folder) = folder else {
        return;
    };
    let path = Path::new(folder).join(format!("seed-{}.json", failure.seed));
    match failure.recording.write(&path) {
        Ok(()) => println!("smaller: ./x sim --shrink {}", path.display()),
        Err(error) => eprintln!("larder-sim: the run is not recorded: {error}"),
    }
}

fn read(file: &Path) -> Result<Recording, ExitCode> {
    Recording::read(file).map_err(|error| {
        eprintln!("larder-sim: {error}");
        ExitCode::from(2)
    })
}

fn replay(file: &Path, rest: &[&str]) -> ExitCode {
    let recording = match read(file) {
        Ok(recording) => recording,
        Err(code) => return code,
    };
    let result = if rest.contains(&"--quiet") {
        run_recorded(&recording, false)
    } else {
        run_printing(&recording, |line| println!("{line}"))
    };
    match result {
        Ok(clean) => {
            println!("clean: {} events, hash {:016x}", clean.events, clean.hash);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            println!("{}\nagain: ./x sim --replay {}", failure.what, file.display());
            ExitCode::FAILURE
        }
    }
}

fn shrink_file(file: &Path, rest: &[&str]) -> ExitCode {
    let recording = match read(file) {
        Ok(recording) => recording,
        Err(code) => return code,
    };
    let seconds = option(rest, "--seconds").map_or(Ok(60), str::parse);
    let Ok(seconds) = seconds else {
        return usage();
    };
    let out = option(rest, "--out").map_or_else(|| file.with_extension("small.json"), Into::into);
    let mut told = std::time::Instant::now();
    let mut tell = |best: &Recording, tried: u64| {
        if told.elapsed().as_secs() >= 2 {
            told = std::time::Instant::now();
            eprintln!("{tried} runs tried, {} decisions left", best.decisions.len());
        }
    };
    let limit = std::time::Duration::from_secs(seconds);
    let Some(shrunk) = shrink(&recording, limit, &mut tell) else {
        println!("{} does not fail: there is nothing to shrink", file.display());
        return ExitCode::FAILURE;
    };
    let text = out.with_extension("txt");
    let written = shrunk.recording.write(&out).map_err(|error| error.to_string()).and_then(|()| {
        let transcript = transcript(&shrunk.recording);
        std::fs::write(&text, transcript).map_err(|error| format!("{}: {error}", text.display()))
    });
    if let Err(error) = written {
        eprintln!("larder-sim: {error}");
        return ExitCode::from(2);
    }
    println!(
        "{} decisions of {}, after {} runs{}: {}\nagain: ./x sim --replay {}\nas a test: put {} and {} into \
         crates/sim/tests/shrunk",
        shrunk.recording.decisions.len(),
        recording.decisions.len(),
        shrunk.tried,
        if shrunk.done { "" } else { ", and the time was over" },
        shrunk.recording.fails.as_deref().unwrap_or_default(),
        out.display(),
        out.display(),
        text.display(),
    );
    ExitCode::SUCCESS
}

fn hash(seeds: &str) -> ExitCode {
    let Some(seeds) = parse_seeds(seeds) else {
        return usage();
    };
    for seed in seeds {
        told(&seed.to_string(), run_seed(seed, Faults::NONE, false));
    }
    ExitCode::SUCCESS
}

fn told(of: &str, result: Result<larder_sim::run::Clean, larder_sim::run::Failure>) {
    match result {
        Ok(clean) => println!("{of} {:016x} {}", clean.hash, clean.events),
        Err(failure) => println!("{of} {:016x} failed", failure.hash),
    }
}

/// The same of worlds that are about files.
#[cfg(feature = "files")]
fn hash_files(seeds: &str) -> ExitCode {
    let Some(seeds) = parse_seeds(seeds) else {
        return usage();
    };
    for seed in seeds {
        let mut plan = larder_sim::plan::Plan::draw(seed, Faults::NONE);
        larder_sim::files::aim(&mut plan, None);
        told(&format!("files {seed}"), larder_sim::run::run_plan(plan, false));
    }
    ExitCode::SUCCESS
}

/// Plants faults; with `--json` prints one object: how many were planted and caught, the most seeds that
/// one needed, and each by its name with the seeds it needed (none: it was not caught).
fn planted(rest: &[&str]) -> ExitCode {
    let only = option(rest, "--fault");
    let seeds = option(rest, "--seeds").and_then(|seeds| seeds.parse().ok()).unwrap_or(1_000);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let jobs = option(rest, "--jobs").and_then(|jobs| jobs.parse().ok()).unwrap_or(cores);
    let json = rest.contains(&"--json");
    let faults: Vec<_> = larder_sim::planted::FAULTS
        .into_iter()
        .filter(|(_, name)| only.is_none_or(|only| only == *name))
        .collect();
    let caught = larder_sim::planted::catch_all(&faults, seeds, jobs, |name, caught| {
        let line = match caught {
            Some(caught) => format!("{name:24} {:>4} seeds: {}", caught.seeds, caught.what),
            None => format!("{name:24} not caught in {seeds} seeds"),
        };
        if json { eprintln!("{line}") } else { println!("{line}") }
    });
    let seeds_of = |caught: &larder_sim::planted::Caught| caught.seeds.to_string();
    let of = |caught: &Option<_>| caught.as_ref().map_or("null".to_owned(), seeds_of);
    let each = faults.iter().zip(&caught);
    let mut lines: Vec<String> =
        each.map(|((_, name), it)| format!("\"{name}\": {}", of(it))).collect();
    let uncaught = faults.iter().zip(&caught).filter(|(_, caught)| caught.is_none());
    let mut missed: Vec<&str> = uncaught.map(|((_, name), _)| *name).collect();
    #[cfg(feature = "files")]
    planted_in_files((only, seeds, json), &mut lines, &mut missed);
    #[cfg(feature = "runtime")]
    runtime::planted(only, seeds, &mut lines, &mut missed);
    lines.sort();
    missed.sort_unstable();
    let worst = lines.iter().filter_map(|line| line.rsplit(": ").next()?.parse::<u64>().ok()).max();
    let (count, worst) = (lines.len() - missed.len(), worst.unwrap_or_default());
    if json {
        println!(
            "{{\"planted\": {}, \"caught\": {count}, \"worst_seeds\": {worst}, \"faults\": {{{}}}}}",
            lines.len(),
            lines.join(", ")
        );
    } else {
        println!("{count} of {} caught, with {worst} seeds at most", lines.len());
    }
    if missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plays seeds, and says how often the branches that carry a probe were taken. Fails when a run does, or
/// when one that is not marked rare was never taken.
fn probes(seeds: &str, rest: &[&str]) -> ExitCode {
    let Some(seeds) = parse_seeds(seeds) else {
        return usage();
    };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let jobs = option(rest, "--jobs").and_then(|jobs| jobs.parse().ok()).unwrap_or(cores);
    let report = larder_sim::fleet::run_all(seeds, Faults::NONE, jobs, false);
    let count = |name: &str| report.probes.get(name).copied().unwrap_or_default();
    let missed = larder_sim::probes::missed(&report.probes);
    if rest.contains(&"--json") {
        let each: Vec<String> = larder_sim::probes::PROBES
            .iter()
            .map(|(name, _)| format!("\"{name}\": {}", count(name)))
            .collect();
        let missed: Vec<String> = missed.iter().map(|name| format!("\"{name}\"")).collect();
        println!(
            "{{\"seeds\": {}, \"failed\": {}, \"missed\": [{}], \"probes\": {{{}}}}}",
            report.seeds,
            report.failures.len(),
            missed.join(", "),
            each.join(", ")
        );
    } else {
        for (name, reached) in larder_sim::probes::PROBES {
            println!("{:>12} {name} ({reached:?})", count(name));
        }
    }
    for failure in &report.failures {
        report_failure(failure, Faults::NONE);
    }
    for name in &missed {
        eprintln!("larder-sim: no run came to {name}");
    }
    if report.failures.is_empty() && missed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(feature = "second-opinion")]
fn second_opinion(seeds: &str) -> ExitCode {
    let Some(seeds) = parse_seeds(seeds) else {
        return usage();
    };
    let (mut failed, mut transactions, mut left_out) = (0, 0, 0);
    for seed in seeds.clone() {
        let mut plan = larder_sim::plan::Plan::draw(seed, Faults::NONE);
        plan.judges = larder_sim::check::cycles::Judges::Both;
        match run_plan(plan, false) {
            Ok(clean) => {
                transactions += clean.asked.transactions;
                left_out += clean.asked.left_out;
            }
            Err(failure) => {
                failed += 1;
                println!("seed {seed}: {}", failure.what);
            }
        }
    }
    println!(
        "adya: {} seeds, {failed} failed; {transactions} transactions judged, some of them more \
         than once; {left_out} reads left out, of what it has no word for",
        seeds.end - seeds.start
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Worlds of the runtime.
#[cfg(feature = "runtime")]
mod runtime {
    use super::{ExitCode, option, parse_seeds, usage};
    use larder_sim::runtime::{planted::FAULTS, planted::catch, planted::fault, run_all, run_seed};

    pub(super) fn run(seeds: &str, rest: &[&str]) -> ExitCode {
        let Some(seeds) = parse_seeds(seeds) else {
            return usage();
        };
        let name = option(rest, "--fault");
        let planted = name.and_then(fault);
        if name.is_some() && planted.is_none() {
            return usage();
        }
        let jobs = option(rest, "--jobs").and_then(|jobs| jobs.parse().ok()).unwrap_or(1);
        let all = rest.contains(&"--all");
        if rest.contains(&"--trace") {
            for seed in seeds.clone() {
                match run_seed(seed, planted, true) {
                    Ok(clean) => println!("{}", clean.tail),
                    Err(failure) => println!("{failure}"),
                }
            }
            return ExitCode::SUCCESS;
        }
        let started = std::time::Instant::now();
        let one = seeds.end - seeds.start == 1;
        let report = run_all(seeds, planted, jobs, all);
        for failure in &report.failures {
            if all && !one {
                println!("seed {}: {}", failure.seed, failure.what);
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
        if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    pub(super) fn hash(seeds: &str) -> ExitCode {
        let Some(seeds) = parse_seeds(seeds) else {
            return usage();
        };
        for seed in seeds {
            match run_seed(seed, None, false) {
                Ok(clean) => println!("runtime {seed} {:016x} {}", clean.hash, clean.events),
                Err(failure) => println!("runtime {seed} {:016x} failed", failure.hash),
            }
        }
        ExitCode::SUCCESS
    }

    /// Plants the runtime's faults.
    pub(super) fn planted(
        only: Option<&str>,
        seeds: u64,
        lines: &mut Vec<String>,
        missed: &mut Vec<&str>,
    ) {
        for (fault, name) in
            FAULTS.into_iter().filter(|(_, name)| only.is_none_or(|one| one == *name))
        {
            match catch(fault, seeds) {
                Some(caught) => {
                    eprintln!("{name:24} {:>4} seeds: {}", caught.seeds, caught.what);
                    lines.push(format!("\"{name}\": {}", caught.seeds));
                }
                None => {
                    eprintln!("{name:24} not caught in {seeds} seeds");
                    lines.push(format!("\"{name}\": null"));
                    missed.push(name);
                }
            }
        }
    }
}

/// The same for the faults of the file layer.
#[cfg(feature = "files")]
fn planted_in_files(
    (only, seeds, json): (Option<&str>, u64, bool),
    lines: &mut Vec<String>,
    missed: &mut Vec<&str>,
) {
    let faults = larder_sim::planted::FILE_FAULTS.into_iter();
    for (fault, name) in faults.filter(|(_, name)| only.is_none_or(|only| only == *name)) {
        let caught = larder_sim::planted::catch_in_files(fault, seeds);
        let line = match &caught {
            Some(caught) => format!("{name:24} {:>4} seeds: {}", caught.seeds, caught.what),
            None => format!("{name:24} not caught in {seeds} seeds"),
        };
        if json {
            eprintln!("{line}")
        } else {
            println!("{line}")
        }
        let count = caught.as_ref().map_or("null".to_owned(), |caught| caught.seeds.to_string());
        lines.push(format!("\"{name}\": {count}"));
        if caught.is_none() {
            missed.push(name);
        }
    }
}

fn bench(rest: &[&str]) -> ExitCode {
    let started = std::time::Instant::now();
    let report = larder_sim::fleet::run_all(0..100, Faults::NONE, 1, true);
    let seconds = started.elapsed().as_secs_f64();
    let per_second = (report.events as f64 / seconds) as u64;
    println!(
        "{} events of {} seeds in {seconds:.2} s, one thread, checks on",
        report.events, report.seeds
    );
    let rival = empty_loop_per_second(report.events);
    println!("an event loop that does nothing: {rival} events/s");
    for failure in &report.failures {
        eprintln!("seed {}: {}", failure.seed, failure.what);
    }
    if rest.contains(&"--json") {
        println!(
            "{{\"events_per_s\": {per_second}, \"failures\": {}, \
             \"empty_loop_events_per_s\": {rival}}}",
            report.failures.len()
        );
    }
    // Events of a run that broke a promise are worth nothing.
    if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What a simulation of nothing does: the agenda alone, with as many events as a world has waiting.
fn empty_loop_per_second(events: u64) -> u64 {
    const WAITING: u64 = 64;
    let (mut agenda, mut rng) = (Agenda::default(), Rng::new(1));
    for event in 0..WAITING {
        agenda.enter(Time(rng.below(SECOND)), event);
    }
    let started = std::time::Instant::now();
    for _ in 0..events {
        let Some((now, event)) = agenda.pop() else {
            break;
        };
        agenda.enter(now.plus(rng.below(SECOND)), std::hint::black_box(event));
    }
    (events as f64 / started.elapsed().as_secs_f64()) as u64
}
