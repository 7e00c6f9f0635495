//! Power cuts: the real log and the real page engine on a file system that forgets, tears and reorders
//! what was not synced.
//!
//! `powercut [CUTS] [--seed N] [--jobs N] [--json] [--keep FOLDER]`: stores one after the other, each
//! through 20 power cuts, kills and orderly ends, and after each a process that recovers, tells all
//! that it holds and works on. `powercut --planted [--fault NAME] [--json]`: the same with faults that
//! must be found. It needs root and `/dev/fuse`.
//!
//! [`disk`] is the file system and its fault model, [`mount`] gives it to the kernel; [`worker`] is the
//! process that is killed; [`model`] knows what must be there and judges; [`run`] drives. A store's
//! seed gives its limits, what is done to it, when the power goes and what is lost then. Log and engine
//! have threads of their own, so that a seed repeats the same plan and not the same instant: what is
//! found again may need a few more cuts.

mod disk;
mod model;
mod mount;
mod planted;
mod run;
mod work;
mod worker;

use anyhow::{Context, Result, bail};
use run::{Bench, Counts, Planted};
use serde_json::json;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// Power cuts that a store goes through.
pub(crate) const CUTS_A_STORE: u64 = 20;
/// Set once the process has a table of mounts of its own.
const APART: &str = "LARDER_POWERCUT_APART";

/// The command line.
#[derive(Debug)]
pub(crate) struct Options {
    cuts: u64,
    pub(crate) seed: u64,
    jobs: usize,
    pub(crate) json: bool,
    keep: Option<PathBuf>,
    planted: bool,
    pub(crate) fault: Option<String>,
}

fn main() -> Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "worker") {
        worker::run(&words[1..])?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = options(&words)?;
    apart()?;
    if options.planted {
        planted::run(&options)?;
        return Ok(ExitCode::SUCCESS);
    }
    cut(&options)
}

fn options(words: &[String]) -> Result<Options> {
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    let mut options =
        Options { cuts: 400, seed: 0, jobs, json: false, keep: None, planted: false, fault: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} wants a value"));
        match word.as_str() {
            "--seed" => options.seed = value()?.parse().context("--seed wants a number")?,
            "--jobs" => options.jobs = value()?.parse().context("--jobs wants a number")?,
            "--keep" => options.keep = Some(value()?.into()),
            "--fault" => options.fault = Some(value()?.clone()),
            "--json" => options.json = true,
            "--planted" => options.planted = true,
            cuts => match cuts.parse() {
                Ok(cuts) => options.cuts = cuts,
                Err(_) => bail!(
                    "usage: powercut [CUTS] [--seed N] [--jobs N] [--json] [--keep FOLDER] | --planted [--fault NAME] [--json]"
                ),
            },
        }
    }
    Ok(options)
}

/// Goes on in a table of mounts of its own: whatever becomes of this process, no mount stays.
fn apart() -> Result<()> {
    if std::env::var_os(APART).is_some() {
        return Ok(());
    }
    let error = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(APART, "1")
        .exec();
    Err(error).context("starting unshare")
}

fn cut(options: &Options) -> Result<ExitCode> {
    let begin = Instant::now();
    let stores = options.cuts.div_ceil(CUTS_A_STORE);
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (total, found) = (Mutex::new(Counts::default()), Mutex::new(Vec::new()));
    let job = |number: usize| -> Result<()> {
        let mut bench = Bench::new(Planted::default(), number, options.keep.is_some())?;
        loop {
            let store = next.fetch_add(1, Ordering::Relaxed);
            if store >= stores || stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let (seed, mut counts) = (options.seed + store, Counts::default());
            let cuts = CUTS_A_STORE.min(options.cuts - store * CUTS_A_STORE);
            if let Err(error) = bench.run(seed, cuts, &mut counts) {
                stop.store(true, Ordering::Relaxed);
                if let Some(folder) = &options.keep {
                    bench.write_out(folder)?;
                }
                let error = format!("store {seed}, after {} cuts: {error:#}", counts.cuts);
                found.lock().expect("no job panics with it").push((seed, error));
            }
            total.lock().expect("no job panics with it").add(&counts);
        }
    };
    std::thread::scope(|scope| {
        let jobs: Vec<_> =
            (0..options.jobs.max(1)).map(|number| scope.spawn(move || job(number))).collect();
        jobs.into_iter()
            .try_for_each(|job| job.join().map_err(|_panic| anyhow::anyhow!("a job panicked"))?)
    })?;
    let counts = total.into_inner().expect("no job panics with it");
    let found = found.into_inner().expect("no job panics with it");
    tell(options, &counts, &found, begin.elapsed().as_secs_f64());
    Ok(if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tell(options: &Options, counts: &Counts, found: &[(u64, String)], seconds: f64) {
    for (seed, error) in found {
        eprintln!("{error}\nagain: ./x powercut {CUTS_A_STORE} --seed {seed}");
    }
    let cuts_per_s = counts.cuts as f64 / seconds;
    if options.json {
        let found: Vec<&str> = found.iter().map(|(_, error)| error.as_str()).collect();
        println!(
            "{}",
            json!({
                "cuts": counts.cuts, "in_recovery": counts.in_recovery, "kills": counts.kills,
                "ends": counts.ends, "stores": counts.stores, "appends": counts.appends,
                "installs": counts.installs, "changes": counts.changes,
                "seconds": seconds, "cuts_per_s": cuts_per_s, "found": found,
            })
        );
    } else {
        println!(
            "{} power cuts ({} of them during a recovery), {} kills and {} orderly ends of {} stores; {} appends, {} installs, {} changes of files; {seconds:.1} s, {cuts_per_s:.0} cuts a second; {}",
            counts.cuts,
            counts.in_recovery,
            counts.kills,
            counts.ends,
            counts.stores,
            counts.appends,
            counts.installs,
            counts.changes,
            if found.is_empty() { "nothing found" } else { "something is wrong" }
        );
    }
}
