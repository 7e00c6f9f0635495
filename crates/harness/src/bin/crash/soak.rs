//! Hours of steady mixed work, after which nothing has grown: neither memory, nor descriptors,
//! threads or the origin's disk.
//!
//! At both sites files are made, written, renamed and removed, numbers are added to under locks, and
//! transfers are committed; beside them volumes are made, backed up and deleted, and lines are cut.
//!
//! The rule: of the samples of the later half, in four windows of equal length, the least of each
//! window counts: what is taken for a while and given back does not. Through the four minima goes a
//! line by least squares; the process fails if along it a figure has risen by more than its allowance.
//! A leak of one page a second is found in twenty minutes, one of a page a minute in a night.
//!
//! Logs of the origin have a limit of their own: how many spare segments they keep says how late installs once were.
//! So have the journals of its page engine, of which each goes when all in it is in tables: a saw whose teeth may be
//! longer than a window; and the descriptors of its tables.
//!
//! Of the origin's memory that is taken away which it says it keeps on purpose, in parts that have limits of their
//! own: until they are full they grow, and a short soak is over before that. Such parts, of mounts too, are held to
//! their limits.

use crate::keeps::{is_limited, keeps, may_fill};
use crate::locks;
use crate::samples::{FIGURES, MEMORY, Sample, longest, sample};
use crate::work::Work;
use crate::world::{ENGINE_MIB, LINES, NODE_MIB, ORIGIN_MIB, Pace, Part, VOLUME, World};
use anyhow::{Context, Result, ensure};
use larder_core::rng::Rng;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

/// Between two samples.
const EVERY: Duration = Duration::from_secs(3);
/// Samples between two steps of the administrator.
const STEP: usize = 3;
/// The later half is looked at in so many windows.
const WINDOWS: usize = 4;
/// Samples between two comparisons.
const COMPARE: usize = 20;
/// Samples below which there is no telling.
const SAMPLES_MIN: usize = 40;
/// By how much the figures may rise along the later half: bytes of memory, descriptors, threads, bytes
/// of disk (what an install writes before it frees the old).
const ALLOWED: [f64; FIGURES.len()] = [4e6, 4.0, 4.0, 40e6];
/// Bytes that the log of a domain may take: of segments of 64 MiB the one that is filled, one that is not trimmed yet, and
/// two spares. How many spares there are is a matter of how late installs once were; so logs are held to their limit,
/// and not judged as growth.
const LOG_MOST: u64 = 4 * (64 << 20) + (1 << 20);
/// Bytes that the journals of a domain may take: the one that is written, which is looked at when a table of 32 MiB is
/// to be written out, and the sealed one before it, until all tables of what it holds are.
const JOURNALS_MOST: u64 = (2 * (64 + 32)) << 20;
/// Descriptors of tables: of eight keyspaces sixteen each, of which one that leaks has more within minutes.
const TABLES_MOST: u64 = 128;
/// Memory may also rise by this part of itself.
const ALLOWED_PART: f64 = 0.06;

/// All samples of a figure, by process.
type Series = BTreeMap<String, Vec<Sample>>;
/// The same for what processes say they keep on purpose, by process and part.
type Kept = BTreeMap<(String, &'static str), Vec<u64>>;
/// Of its disk, beside what it says of its memory: parts with a limit each.
const LOG: &str = "log_on_disk";
const JOURNALS: &str = "journals_on_disk";
/// Descriptors of its tables.
const TABLES: &str = "open_tables";

/// Works for `length`, and prints the report.
///
/// # Errors
/// When something is lost, or has grown: after the table.
pub(crate) fn run(binary: &Path, length: Duration, seed: u64, keep: bool) -> Result<()> {
    let mut world = World::new(binary, seed, Pace::Shipped, keep)?;
    let done = work(&mut world, length, seed);
    if done.is_err() {
        world.site.keep();
    }
    let (mut report, rises) = done?;
    let stopped = world.stop();
    table(&rises);
    stopped?;
    report["rises"] = rises.iter().map(Rise::to_json).collect();
    let grown: Vec<_> = rises.iter().filter(|rise| rise.is_too_much()).map(Rise::name).collect();
    report["grown"] = json!(grown);
    println!("{report}");
    ensure!(grown.is_empty(), "these grew: {}", grown.join(", "));
    Ok(())
}

fn work(world: &mut World, length: Duration, seed: u64) -> Result<(Value, Vec<Rise>)> {
    let started = Instant::now();
    let mut going = Work::new(world, seed)?;
    let mut rng = Rng::new(seed);
    going.start(world, &mut rng)?;
    locks::start(world)?;
    let (mut series, mut steps, mut volumes) = (Series::new(), 0, 0);
    let mut kept = Kept::new();
    let mut next = started;
    while started.elapsed() < length {
        next += EVERY;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        for (name, sample) in sample(world)? {
            if name == Part::Origin.name() {
                kept.entry((name.clone(), TABLES)).or_default().push(sample.open_tables);
            }
            series.entry(name).or_default().push(sample);
        }
        let disk = longest(world);
        let disk = [(LOG, disk.log), (JOURNALS, disk.journals)]
            .map(|(part, bytes)| ((Part::Origin.name(), part), bytes));
        for (part, bytes) in keeps(world)?.into_iter().chain(disk) {
            kept.entry(part).or_default().push(bytes);
        }
        steps += 1;
        if steps % STEP == 0 {
            volumes += administer(world, &mut rng, steps).context("the administrator")?;
        }
        // Now and then all is compared, and a tree that has grown is cleared.
        if going.files.has_ended(world)? || steps % COMPARE == 0 {
            going.verify(world)?;
            going.start(world, &mut rng)?;
        }
    }
    going.verify(world)?;
    let added = locks::stop(world)?;
    hold_to_limits(&kept)?;
    let rises = rises(&series, &kept)?;
    let report = json!({
        "seconds": started.elapsed().as_secs_f64(),
        "samples": steps,
        "transfers": going.found.done,
        "seconds_in_one_domain_alone": going.found.apart.as_secs_f64(),
        "file_operations": going.files.steps,
        "additions_under_locks": added,
        "volumes_made_and_deleted": volumes,
        "keeps": kept_to_json(&kept),
    });
    Ok((report, rises))
}

/// What has a limit has kept to it, an eighth aside: changes that are told to children who come back have one
/// beside that of the pages, which is less.
fn hold_to_limits(kept: &Kept) -> Result<()> {
    for (what, limit) in [(LOG, LOG_MOST), (JOURNALS, JOURNALS_MOST), (TABLES, TABLES_MOST)] {
        let all = kept.iter().filter(|((_, part), _)| *part == what);
        let most = all.flat_map(|(_, all)| all).max().copied().unwrap_or_default();
        ensure!(most > 0 && most <= limit, "{what}: {most}, which may be {limit}");
    }
    let mut sums: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for ((process, _), bytes) in kept.iter().filter(|((_, part), _)| is_limited(part)) {
        let sums = sums.entry(process).or_insert_with(|| vec![0; bytes.len()]);
        sums.iter_mut().zip(bytes).for_each(|(sum, part)| *sum += *part);
    }
    let most = sums
        .into_iter()
        .map(|(process, sums)| (process, sums.into_iter().max().unwrap_or_default()));
    for (process, most) in most {
        let mib = if process == "origin" { ORIGIN_MIB + ENGINE_MIB } else { NODE_MIB };
        let limit = (mib << 20) + (mib << 17);
        ensure!(most <= limit, "{process} keeps {most} bytes in parts that may have {limit}");
    }
    Ok(())
}

/// What each process kept along the later half, by its name and the part's.
fn kept_to_json(kept: &Kept) -> Value {
    let mut all = json!({});
    for ((process, part), figures) in kept {
        let (from, rise) = trend(&figures[figures.len() / 2..]);
        let most = figures.iter().max();
        all[process][part] = json!({ "from": from.round(), "rise": rise.round(), "most": most, "minima": minima(figures) });
    }
    all
}

/// One step of many: a volume is made, backed up and deleted, or a line is cut for a moment. How many
/// volumes it made.
fn administer(world: &mut World, rng: &mut Rng, step: usize) -> Result<u32> {
    if step.is_multiple_of(2 * STEP) {
        let line = rng.below(LINES as u64) as usize;
        world.lines[line].proxy.cut();
        std::thread::sleep(Duration::from_millis(rng.below(400)));
        world.lines[line].proxy.heal();
        return Ok(0);
    }
    let tree = world.site.path("small");
    if !tree.exists() {
        std::fs::create_dir(&tree)?;
        for number in 0..20 {
            std::fs::write(tree.join(format!("file-{number}")), vec![number; 5000])?;
        }
    }
    let (from, backup) =
        (tree.display().to_string(), world.site.path("backup").display().to_string());
    world.volume(&["import", "passing", &from, "--create", "--quiet"])?;
    world.volume(&["backup", "passing", &backup, "--quiet"])?;
    world.volume(&["backup", VOLUME, &backup, "--quiet"])?;
    world.volume(&["delete", "passing", "--yes"])?;
    Ok(1)
}

/// How a figure of a process went along the later half.
struct Rise {
    process: String,
    figure: usize,
    /// At the line's beginning.
    from: f64,
    rise: f64,
    most: u64,
    /// Of twice as many windows along the whole time: whether it rose at once, or all along.
    minima: Vec<u64>,
}

impl Rise {
    fn name(&self) -> String {
        format!("{} of {}", FIGURES[self.figure], self.process)
    }

    fn allowed(&self) -> f64 {
        let part = if self.figure == MEMORY { self.from * ALLOWED_PART } else { 0.0 };
        ALLOWED[self.figure].max(part)
    }

    fn is_too_much(&self) -> bool {
        self.rise > self.allowed()
    }

    fn to_json(&self) -> Value {
        json!({
            "process": self.process,
            "figure": FIGURES[self.figure],
            "from": self.from.round(),
            "rise": self.rise.round(),
            "allowed": self.allowed().round(),
            "most": self.most,
            "minima": self.minima,
        })
    }
}

fn table(rises: &[Rise]) {
    eprintln!(
        "{:<12} {:<12} {:>13} {:>11} {:>11} {:>13}",
        "process", "figure", "later half", "rise", "allowed", "most"
    );
    for rise in rises.iter().filter(|rise| rise.most > 0) {
        let (process, figure) = (&rise.process, FIGURES[rise.figure]);
        let (from, by, allowed, most) = (rise.from, rise.rise, rise.allowed(), rise.most);
        let mark = if rise.is_too_much() { "  grew" } else { "" };
        eprintln!(
            "{process:<12} {figure:<12} {from:>13.0} {by:>11.0} {allowed:>11.0} {most:>13}{mark}"
        );
    }
}

fn rises(series: &Series, kept: &Kept) -> Result<Vec<Rise>> {
    let mut rises = Vec::new();
    for (process, samples) in series {
        ensure!(
            samples.len() >= SAMPLES_MIN,
            "{} samples, one every {EVERY:?}, are too few to tell: it takes {SAMPLES_MIN}",
            samples.len()
        );
        for figure in 0..FIGURES.len() {
            let mut all: Vec<u64> = samples.iter().map(|sample| sample.figures()[figure]).collect();
            if figure == MEMORY {
                let of_it = kept.iter().filter(|((of, part), _)| of == process && may_fill(part));
                for (_, bytes) in of_it {
                    all.iter_mut()
                        .zip(bytes)
                        .for_each(|(all, part)| *all = all.saturating_sub(*part));
                }
            }
            let (from, rise) = trend(&all[all.len() / 2..]);
            let most = all.iter().copied().max().unwrap_or_default();
            let (process, minima) = (process.clone(), minima(&all));
            rises.push(Rise { process, figure, from, rise, most, minima });
        }
    }
    Ok(rises)
}

/// Where the line through the windows' minima begins, and by how much it rises to the last of them.
fn trend(figures: &[u64]) -> (f64, f64) {
    let minima: Vec<f64> = lows(figures, WINDOWS).map(|low| low as f64).collect();
    let middle = (WINDOWS - 1) as f64 / 2.0;
    let mean = minima.iter().sum::<f64>() / WINDOWS as f64;
    let (mut above, mut below) = (0.0, 0.0);
    for (at, minimum) in minima.iter().enumerate() {
        let off = at as f64 - middle;
        above += off * (minimum - mean);
        below += off * off;
    }
    let slope = above / below;
    (mean - slope * middle, slope * (WINDOWS - 1) as f64)
}

/// The least of each of so many windows.
fn lows(figures: &[u64], windows: usize) -> impl Iterator<Item = u64> {
    let length = figures.len() / windows;
    let windows = (0..windows).map(move |at| &figures[at * length..(at + 1) * length]);
    windows.map(|window| window.iter().copied().min().unwrap_or_default())
}

fn minima(figures: &[u64]) -> Vec<u64> {
    lows(figures, 2 * WINDOWS).collect()
}

/// A length of time as the command line says it.
pub(crate) fn parse_hours(text: &str) -> Result<Duration> {
    let hours: f64 = text.parse().with_context(|| format!("{text}: no number of hours"))?;
    ensure!(hours.is_finite() && (0.0..=1000.0).contains(&hours), "{text}: from 0 to 1000 hours");
    Ok(Duration::from_secs_f64(hours * 3600.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_back_is_no_growth_and_what_is_kept_is() {
        // A saw: up and down again, with the same teeth.
        let saw: Vec<u64> = (0..200).map(|at| 1000 + at % 17 * 50).collect();
        assert!(trend(&saw).1.abs() < 1.0, "{:?}", trend(&saw));
        // The same saw, every tooth ten above the one before.
        let growing: Vec<u64> = (0..200).map(|at| 1000 + at % 17 * 50 + at / 17 * 10).collect();
        assert!(trend(&growing).1 > 50.0, "{:?}", trend(&growing));
        let (from, rise) = trend(&(0..400).collect::<Vec<_>>());
        assert_eq!((from, rise), (0.0, 300.0));
    }

    #[test]
    fn hours_may_be_parts_of_hours() {
        assert_eq!(parse_hours("0.5").expect("half an hour"), Duration::from_secs(1800));
        assert!(parse_hours("-1").is_err() && parse_hours("NaN").is_err());
    }
}
