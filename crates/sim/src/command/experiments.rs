//! The papers' experiments.

use super::options::Options;
use larder_sim::experiments::buddycache::{Scale, run};
use std::path::Path;
use std::process::ExitCode;

/// Runs BuddyCache's; none: it is not asked for as it has to be.
pub(crate) fn buddycache(words: &[&str]) -> Option<ExitCode> {
    let options = Options::parse(words, &["--out", "--jobs"], &["--json", "--quick"])?;
    let scale = if options.has("--quick") { Scale::quick() } else { Scale::paper() };
    let jobs = options.jobs()?.min(2);
    let started = std::time::Instant::now();
    let results = run(scale, jobs, |done, of| {
        eprintln!("{done} of {of} runs, {:.0} s", started.elapsed().as_secs_f64());
    });
    let results = match results {
        Ok(results) => results,
        Err(failure) => {
            eprintln!("{}", failure.what);
            return Some(ExitCode::FAILURE);
        }
    };
    let folder = options.value("--out").unwrap_or("buddycache");
    if let Err(error) = results.write(Path::new(folder)) {
        eprintln!("{folder}: {error}");
        return Some(ExitCode::FAILURE);
    }
    eprintln!("figures are in {folder}");
    eprint!("{}", results.summary());
    if options.has("--json") {
        println!("{}", results.json());
    }
    Some(ExitCode::SUCCESS)
}
