//! Runs that were recorded: played again, and made smaller.

use super::options::Options;
use larder_sim::recording::Recording;
use larder_sim::run::{run_printing, run_recorded, transcript};
use larder_sim::shrink::{likeness, shrink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

fn read(file: &Path) -> Result<Recording, ExitCode> {
    Recording::read(file).map_err(|error| {
        eprintln!("larder-sim: {error}");
        ExitCode::from(2)
    })
}

/// Plays one again; none: it is not asked for as it has to be.
pub(crate) fn replay(file: &Path, rest: &[&str]) -> Option<ExitCode> {
    let options = Options::parse(rest, &[], &["--quiet"])?;
    Some(
        read(file)
            .map_or_else(|code| code, |it| replay_recording(file, &it, options.has("--quiet"))),
    )
}

fn replay_recording(file: &Path, recording: &Recording, quiet: bool) -> ExitCode {
    let result = if quiet {
        run_recorded(recording, false)
    } else {
        run_printing(recording, |line| println!("{line}"))
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

/// Makes one smaller; none: it is not asked for as it has to be.
pub(crate) fn shrink_file(file: &Path, rest: &[&str]) -> Option<ExitCode> {
    let options = Options::parse(rest, &["--seconds", "--out"], &[])?;
    let limit = Duration::from_secs(options.number("--seconds", 60)?);
    let out = options.value("--out");
    let out = out.map_or_else(|| file.with_extension("small.json"), PathBuf::from);
    Some(read(file).map_or_else(|code| code, |it| shrink_recording(file, &it, limit, &out)))
}

fn shrink_recording(file: &Path, recording: &Recording, limit: Duration, out: &Path) -> ExitCode {
    let mut told = std::time::Instant::now();
    let mut tell = |best: &Recording, tried: u64| {
        if told.elapsed().as_secs() >= 2 {
            told = std::time::Instant::now();
            eprintln!("{tried} runs tried, {} decisions left", best.decisions.len());
        }
    };
    let shrunk = match shrink(recording, limit, &mut tell) {
        Ok(shrunk) => shrunk,
        Err(error) => {
            eprintln!("larder-sim: {}: {error}", file.display());
            return ExitCode::from(2);
        }
    };
    let fails = shrunk.recording.fails.as_deref().unwrap_or_default();
    if recording.fails.as_deref().is_some_and(|then| likeness(then) != likeness(fails)) {
        eprintln!("larder-sim: it fails otherwise than it did when it was recorded");
    }
    let text = out.with_extension("txt");
    let written = shrunk.recording.write(out).map_err(|error| error.to_string()).and_then(|()| {
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
        fails,
        out.display(),
        out.display(),
        text.display(),
    );
    ExitCode::SUCCESS
}
