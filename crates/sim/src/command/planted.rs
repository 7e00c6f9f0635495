//! Plants faults, and says what caught them.

use super::options::Options;
use larder_sim::planted::{Entry, Hunt, all, hunt_all};
use serde_json::{Map, Value, json};
use std::process::ExitCode;

/// With `--json` prints one object: how many were planted and caught, the most seeds that one needed, and
/// each by its name with the seeds it needed (null: it was not caught), by what, and how many seeds
/// before did not count. None: it is not asked for as it has to be.
pub(crate) fn run(words: &[&str]) -> Option<ExitCode> {
    let options = Options::parse(words, &["--fault", "--seeds", "--jobs"], &["--json"])?;
    let seeds: u64 = options.number("--seeds", 1_000)?;
    let (jobs, json) = (options.jobs()?, options.has("--json"));
    let only = options.value("--fault");
    let mut entries = all();
    entries.retain(|entry| only.is_none_or(|only| only == entry.name));
    if entries.is_empty() || seeds == 0 {
        return None;
    }
    let tell = |entry: &Entry, hunt: &Hunt| {
        for line in lines(entry, hunt, seeds) {
            if json { eprintln!("{line}") } else { println!("{line}") }
        }
    };
    let hunts = hunt_all(&entries, seeds, jobs, tell);
    let caught: Vec<u64> =
        hunts.iter().filter_map(|hunt| Some(hunt.caught.as_ref()?.seeds)).collect();
    let worst = caught.iter().max().copied().unwrap_or_default();
    if json {
        let each: Map<String, Value> = entries
            .iter()
            .zip(&hunts)
            .map(|(entry, hunt)| (entry.name.to_owned(), of_fault(hunt)))
            .collect();
        println!(
            "{}",
            json!({
                "planted": entries.len(),
                "caught": caught.len(),
                "worst_seeds": worst,
                "faults": each,
            })
        );
    } else {
        println!("{} of {} caught, with {worst} seeds at most", caught.len(), entries.len());
    }
    let well = caught.len() == entries.len();
    Some(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What became of a fault, for readers.
fn lines(entry: &Entry, hunt: &Hunt, seeds: u64) -> Vec<String> {
    let name = entry.name;
    let mut lines: Vec<String> = hunt
        .unfit
        .iter()
        .map(|unfit| {
            let why = if unfit.without { "fails without it" } else { "not what it breaks" };
            format!("{name:24} seed {} does not count, {why}: {}", unfit.seed, unfit.what)
        })
        .collect();
    lines.push(match &hunt.caught {
        Some(caught) => format!("{name:24} {:>4} seeds: {}", caught.seeds, caught.what),
        None => format!("{name:24} not caught in {seeds} seeds"),
    });
    lines
}

fn of_fault(hunt: &Hunt) -> Value {
    let caught = hunt.caught.as_ref();
    let by: Vec<String> =
        caught.map(|it| it.by.iter().map(ToString::to_string).collect()).unwrap_or_default();
    json!({
        "seeds": caught.map(|caught| caught.seeds),
        "by": by,
        "unfit": hunt.unfit.len(),
    })
}
