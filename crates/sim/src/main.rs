//! The simulator's command line: see the crate's documentation.

mod command;

use command::options::{Options, parse_seeds};
use larder_core::machine::Faults;
use larder_core::rng::Rng;
use larder_sim::agenda::{Agenda, SECOND, Time};
use larder_sim::plan::Plan;
use larder_sim::run::{Failure, run_plan, run_plan_printing, run_seed};
use larder_sim::scenario::SCENARIOS;
use std::path::Path;
use std::process::ExitCode;

const USAGE: &str = "usage:
  larder-sim run SEED [--fault NAME] [--files] [--trace]
                                      plays a seed; prints the trace's end if it fails, or all of it
  larder-sim run A..B [--jobs N] [--all] [--files] [--within S,T]
                                      plays seeds, N at once, up to the first that fails, or all; fails, too, when
                                      in the middle run it takes more than S virtual seconds, or in all but a
                                      tenth of the runs more than T, until everybody can commit again
                                      a run that fails is recorded in FOLDER (--record FOLDER);
                                      with --files worlds that are about files
  larder-sim replay FILE [--quiet]    plays a run that was recorded; prints what happens in it
  larder-sim shrink FILE [--seconds N] [--out FILE]
                                      makes a recorded run that fails smaller (default 60 s), and writes
                                      that beside it, with what happens in it as text
  larder-sim runtime A..B [--jobs N] [--all] [--trace] [--fault NAME]
                                      plays worlds of the real runtime; `run --runtime` is the same
  larder-sim oo7 [--size tiny|small|medium] [--readers N] [--writers N] [--rtt-ms N] [--warm N]
      [--transactions N] [--think-us N] [--memory-mib N] [--local-reads] [--seed N] [--json]
                                      measures in virtual time what users of a database wait for
  larder-sim experiments buddycache [--json] [--out FOLDER] [--jobs N] [--quick]
                                      measures a paper's experiments anew; writes figures to FOLDER
  larder-sim scenario NAME A..B [--fault NAME] [--record FOLDER]
                                      plays worlds in which a named race is met
  larder-sim hash [--runtime | --files] A..B
                                      prints a hash for each seed: the same in every build
  larder-sim planted [--json] [--fault NAME] [--seeds N] [--jobs N]
                                      plants each fault and says how many seeds catch it, and by what
  larder-sim adya A..B                asks the crate adya about the clients' histories too (built with
                                      --features second-opinion)
  larder-sim probes A..B [--json] [--jobs N]
                                      plays seeds and says how often they came to rare branches
  larder-sim troubles A..B [--jobs N] plays seeds and says which troubles struck, and how often
  larder-sim bench [--json]           measures events per second
0: well; 1: a promise is broken, or a fault not caught; 2: nothing was played, since it was not asked for so";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    command(&words).unwrap_or_else(|| {
        eprintln!("{USAGE}");
        ExitCode::from(2)
    })
}

/// Does what is asked for: none if it is not asked for as it has to be. Whoever reads a run's result tells
/// it by this: 0 is well, 1 is a promise broken, 2 is that nothing was played.
fn command(words: &[&str]) -> Option<ExitCode> {
    match words {
        #[cfg(feature = "runtime")]
        ["runtime", seeds, rest @ ..] | ["run", "--runtime", seeds, rest @ ..] => {
            command::runtime::run(seeds, rest)
        }
        #[cfg(feature = "runtime")]
        ["hash", "--runtime", seeds] => command::runtime::hash(seeds),
        #[cfg(feature = "runtime")]
        ["oo7", rest @ ..] => command::oo7::run(rest),
        #[cfg(feature = "runtime")]
        ["experiments", "buddycache", rest @ ..] => command::experiments::buddycache(rest),
        #[cfg(feature = "files")]
        ["hash", "--files", seeds] => hash_files(seeds),
        ["run", seeds, rest @ ..] => run(seeds, rest),
        ["replay", file, rest @ ..] => command::recorded::replay(Path::new(file), rest),
        ["shrink", file, rest @ ..] => command::recorded::shrink_file(Path::new(file), rest),
        ["scenario", name, seeds, rest @ ..] => scenario(name, seeds, rest),
        ["hash", seeds] => hash(seeds),
        ["planted", rest @ ..] => command::planted::run(rest),
        #[cfg(feature = "second-opinion")]
        ["adya", seeds] => second_opinion(seeds),
        ["probes", seeds, rest @ ..] => probes(seeds, rest),
        ["troubles", seeds, rest @ ..] => troubles(seeds, rest),
        ["bench", rest @ ..] => bench(rest),
        _ => None,
    }
}

fn result(well: bool) -> Option<ExitCode> {
    Some(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run(seeds: &str, rest: &[&str]) -> Option<ExitCode> {
    let seeds = parse_seeds(seeds)?;
    let options = Options::parse(
        rest,
        &["--fault", "--jobs", "--record", "--within"],
        &["--all", "--files", "--trace"],
    )?;
    let within = options.value("--within").map(parse_within);
    let within = match within {
        Some(None) => return None,
        Some(within) => within,
        None => None,
    };
    let plan = plans(&options)?;
    if options.has("--trace") {
        return trace(seeds, &plan);
    }
    let jobs: usize = options.number("--jobs", 1)?;
    let all = options.has("--all");
    let started = std::time::Instant::now();
    let report = larder_sim::fleet::run_plans(seeds.clone(), &plan, jobs, all);
    for failure in &report.failures {
        if all && seeds.end - seeds.start > 1 {
            let told = failure.recording.plan.told();
            println!("seed {} ({told}): {}", failure.seed, failure.what);
        } else {
            report_failure(failure, &plan);
        }
        record(failure, options.value("--record"));
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{} seeds ({} recoverable, {} beyond), {} failed; {} events in {seconds:.1} s; {} transactions committed, {} over \
         several domains, {} aborted, {} unknown; {} words between origins; {} operations on files; {} copies compared, {} damaged stores refused, \
         {} deletions asked for, {} volumes copied, {} times the latest asked for, \
         {} cores worked alone; {:.1} virtual seconds until all had committed in the middle run, {:.1} in all but a tenth, \
         {:.0} at most",
        report.seeds,
        report.budgets[0],
        report.budgets[1],
        report.failures.len(),
        report.events,
        report.tally.committed,
        report.tally.wholes,
        report.tally.aborted,
        report.tally.unknown,
        report.tally.between_origins,
        report.tally.file_operations,
        report.tally.copies_checked,
        report.tally.refused_stores,
        report.tally.deletions,
        report.tally.copied,
        report.tally.refreshed,
        report.tally.cores,
        report.proved_within(50),
        report.proved_within(10),
        report.proved_within(0),
    );
    let is_slow = within.is_some_and(|(middle, most)| {
        report.proved_within(50) > middle || report.proved_within(10) > most
    });
    if let (true, Some((middle, most))) = (is_slow, within) {
        println!(
            "progress: {middle} s were allowed in the middle run, and {most} s in all but a tenth"
        );
    }
    result(report.failures.is_empty() && !is_slow)
}

/// Seconds of the middle run, and of all but a tenth.
fn parse_within(text: &str) -> Option<(f64, f64)> {
    let (middle, most) = text.split_once(',')?;
    Some((middle.parse().ok()?, most.parse().ok()?))
}

/// The plans that the words of a command ask for: with a planted fault, about files.
fn plans(options: &Options<'_>) -> Option<Box<dyn Fn(u64) -> Plan + Sync>> {
    let fault = options.value("--fault");
    #[cfg(feature = "files")]
    {
        let of_files = fault.and_then(larder_sim::planted::file_fault_of_name);
        if of_files.is_some() || (fault.is_none() && options.has("--files")) {
            return Some(Box::new(move |seed| {
                let mut plan = Plan::draw(seed, Faults::NONE);
                larder_sim::files::aim(&mut plan, of_files);
                plan
            }));
        }
    }
    let faults = match fault {
        None => Faults::NONE,
        Some(name) => Faults::only(larder_sim::planted::of_name(name)?),
    };
    Some(Box::new(move |seed| Plan::draw(seed, faults)))
}

/// Plays seeds and prints all that happens in them, whether they fail or not.
fn trace(seeds: std::ops::Range<u64>, plan: &dyn Fn(u64) -> Plan) -> Option<ExitCode> {
    let mut well = true;
    for seed in seeds {
        match run_plan_printing(plan(seed), |line| println!("{line}")) {
            Ok(clean) => println!("seed {seed}: clean, hash {:016x}", clean.hash),
            Err(failure) => {
                println!("{failure}");
                well = false;
            }
        }
    }
    result(well)
}

fn scenario(name: &str, seeds: &str, rest: &[&str]) -> Option<ExitCode> {
    let Some(scenario) = SCENARIOS.iter().find(|scenario| scenario.name == name) else {
        let names: Vec<&str> = SCENARIOS.iter().map(|scenario| scenario.name).collect();
        eprintln!("the scenarios are {}", names.join(", "));
        return None;
    };
    let seeds = parse_seeds(seeds)?;
    let options = Options::parse(rest, &["--fault", "--record"], &[])?;
    let (plant, again) = match options.value("--fault") {
        None => (None, String::new()),
        Some(fault) => (Some(planter(name, fault)?), format!(" --fault {fault}")),
    };
    let readable = seeds.end - seeds.start == 1;
    let mut failed = 0;
    for seed in seeds.clone() {
        let mut plan = scenario.plan(seed);
        if let Some(plant) = &plant {
            plant(&mut plan);
        }
        if let Err(failure) = run_plan(plan, readable) {
            failed += 1;
            println!("{}seed {seed}: {}", failure.tail, failure.what);
            println!("again: larder-sim scenario {name} {seed}{again}");
            // What is planted in the file layer is in no recording.
            record(&failure, options.value("--record").filter(|_| plant.is_none()));
        }
    }
    println!("{name}: {} seeds, {failed} failed", seeds.end - seeds.start);
    result(failed == 0)
}

/// Changes a plan.
type Plant = Box<dyn Fn(&mut Plan)>;

/// Plants a fault by its name, one of the file layer where a scenario is about files.
fn planter(scenario: &str, fault: &str) -> Option<Plant> {
    #[cfg(feature = "files")]
    if scenario == "files" {
        let fault = larder_sim::planted::file_fault_of_name(fault)?;
        return Some(Box::new(move |plan| larder_sim::files::aim(plan, Some(fault))));
    }
    let fault = larder_sim::planted::of_name(fault)?;
    Some(Box::new(move |plan| plan.faults = Faults::only(fault)))
}

/// Plays a failed seed again, now with its trace, and prints that.
fn report_failure(failure: &Failure, plan: &impl Fn(u64) -> Plan) {
    match run_plan(plan(failure.seed), true) {
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

fn hash(seeds: &str) -> Option<ExitCode> {
    for seed in parse_seeds(seeds)? {
        told(&seed.to_string(), run_seed(seed, Faults::NONE, false));
    }
    result(true)
}

fn told(of: &str, result: Result<larder_sim::run::Clean, larder_sim::run::Failure>) {
    match result {
        Ok(clean) => println!("{of} {:016x} {}", clean.hash, clean.events),
        Err(failure) => println!("{of} {:016x} failed", failure.hash),
    }
}

/// The same of worlds that are about files.
#[cfg(feature = "files")]
fn hash_files(seeds: &str) -> Option<ExitCode> {
    for seed in parse_seeds(seeds)? {
        let mut plan = Plan::draw(seed, Faults::NONE);
        larder_sim::files::aim(&mut plan, None);
        told(&format!("files {seed}"), run_plan(plan, false));
    }
    result(true)
}

/// Plays seeds, and says how often the branches that carry a probe were taken. Fails when a run does, or
/// when one that is not marked rare was never taken.
fn probes(seeds: &str, rest: &[&str]) -> Option<ExitCode> {
    let seeds = parse_seeds(seeds)?;
    let options = Options::parse(rest, &["--jobs"], &["--json"])?;
    let report = larder_sim::fleet::run_all(seeds, Faults::NONE, options.jobs()?, true);
    let count = |name: &str| report.probes.get(name).copied().unwrap_or_default();
    let missed = larder_sim::probes::missed(&report.probes);
    if options.has("--json") {
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
        report_failure(failure, &|seed| Plan::draw(seed, Faults::NONE));
    }
    for name in &missed {
        eprintln!("larder-sim: no run came to {name}");
    }
    result(report.failures.is_empty() && missed.is_empty())
}

/// Plays seeds, and says of each kind of trouble which budget has it, in how many runs it struck, and how
/// often.
fn troubles(seeds: &str, rest: &[&str]) -> Option<ExitCode> {
    let seeds = parse_seeds(seeds)?;
    let options = Options::parse(rest, &["--jobs"], &[])?;
    let report = larder_sim::fleet::run_all(seeds, Faults::NONE, options.jobs()?, true);
    println!(
        "{} seeds: {} recoverable, {} beyond; {} failed",
        report.seeds,
        report.budgets[0],
        report.budgets[1],
        report.failures.len()
    );
    for (kind, trouble) in larder_sim::plan::TROUBLES.iter().enumerate() {
        let (runs, times) = (report.struck[kind], report.tally.struck[kind]);
        let name = format!("{trouble:?}");
        println!("{name:16} {:12} {runs:>6} runs {times:>8} times", trouble.budget().name());
    }
    for failure in &report.failures {
        println!("seed {}: {}", failure.seed, failure.what);
    }
    result(report.failures.is_empty())
}

#[cfg(feature = "second-opinion")]
fn second_opinion(seeds: &str) -> Option<ExitCode> {
    let seeds = parse_seeds(seeds)?;
    let (mut failed, mut transactions, mut left_out) = (0, 0, 0);
    for seed in seeds.clone() {
        let mut plan = Plan::draw(seed, Faults::NONE);
        plan.judges = larder_sim::check::cycles::Judges::Both;
        match run_plan(plan, false) {
            Ok(clean) => {
                transactions += clean.asked.transactions;
                left_out += clean.asked.left_out;
            }
            Err(failure) => {
                failed += 1;
                println!("seed {seed}: {}\nagain: larder-sim adya {seed}", failure.what);
            }
        }
    }
    println!(
        "adya: {} seeds, {failed} failed; {transactions} transactions judged, some of them more \
         than once; {left_out} reads left out, of what it has no word for",
        seeds.end - seeds.start
    );
    result(failed == 0)
}

fn bench(rest: &[&str]) -> Option<ExitCode> {
    let options = Options::parse(rest, &[], &["--json"])?;
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
    if options.has("--json") {
        println!(
            "{{\"events_per_s\": {per_second}, \"failures\": {}, \
             \"empty_loop_events_per_s\": {rival}}}",
            report.failures.len()
        );
    }
    // Events of a run that broke a promise are worth nothing.
    result(report.failures.is_empty())
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
