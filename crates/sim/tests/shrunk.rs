//! Runs that failed once, made small: each is played again, and what happens in it is compared with
//! what is written beside it. A run with a planted fault must fail; all others must be clean.
//!
//! `./x sim --shrink` writes both files. `LARDER_REGENERATE=1` writes the texts anew, to be reviewed
//! as a difference.

use larder_core::machine::{Fault, Faults};
use larder_sim::recording::Recording;
use larder_sim::run::{run_recorded, run_seed, transcript};
use larder_sim::shrink::{NotShrunk, likeness, shrink};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shrunk")
}

#[test]
fn runs_that_failed_once_do_what_is_written_beside_them() {
    let files = std::fs::read_dir(folder()).expect("the folder is there");
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("it can be read").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        let recording = Recording::read(&file).unwrap_or_else(|error| panic!("{error}"));
        let result = run_recorded(&recording, false);
        let planted = recording.plan.faults != Faults::NONE;
        assert_eq!(result.is_err(), planted, "{}: {result:?}", file.display());
        let (text, now) = (file.with_extension("txt"), transcript(&recording));
        if std::env::var_os("LARDER_REGENERATE").is_some() {
            std::fs::write(&text, now).expect("it can be written");
        } else {
            let then = std::fs::read_to_string(&text).unwrap_or_default();
            assert!(then == now, "{}: something else happens:\n{now}", text.display());
        }
    }
}

mod long {
    use super::*;

    /// What was recorded is the whole run: played again it is the same to the last event.
    #[test]
    #[cfg_attr(debug_assertions, ignore = "long: with --release")]
    fn a_recording_is_the_run() {
        for seed in 0..400 {
            let Err(failure) = run_seed(seed, Faults::only(Fault::InstallAhead), false) else {
                continue;
            };
            let text = serde_json::to_string(&failure.recording).expect("it can be written");
            let recording: Recording = serde_json::from_str(&text).expect("and read");
            let again = run_recorded(&recording, false).expect_err("it failed before");
            assert_eq!((again.hash, &again.what), (failure.hash, &failure.what), "seed {seed}");
            assert_eq!(again.recording.decisions, failure.recording.decisions);
        }
    }
}

#[test]
fn a_run_that_fails_becomes_small() {
    let failures = (0..400).filter_map(|seed| {
        run_seed(seed, Faults::only(Fault::SkipDoom), false).err().map(|failure| failure.recording)
    });
    let large = |recording: &Recording| recording.decisions.len() > 60;
    let recording = failures.into_iter().find(|it| large(it)).expect("one of them is large");
    let shrunk = shrink(&recording, Duration::from_secs(20), &mut |_, _| ()).expect("it fails");
    let left = &shrunk.recording.decisions;
    assert!(left.len() * 4 < recording.decisions.len(), "{left:?}");
    let again = run_recorded(&shrunk.recording, false).expect_err("what is left fails");
    let said = recording.fails.as_deref().expect("it failed");
    assert_eq!(likeness(&again.what), likeness(said));
}

/// However long a run takes, nobody waits for longer than he said.
#[test]
fn shrinking_ends_in_time() {
    let mut recording = Recording::read(&folder().join("skip-doom.json")).expect("it is one");
    recording.plan.faults = Faults::NONE;
    recording.plan.events = u64::MAX;
    recording.wild_until = u64::MAX;
    let began = std::time::Instant::now();
    let result = shrink(&recording, Duration::from_millis(500), &mut |_, _| ());
    assert!(matches!(result, Err(NotShrunk::TimeOver)), "{result:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
}

#[test]
fn what_is_no_recording_is_refused_by_name() {
    let folder = std::env::temp_dir().join(format!("larder-recording-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("it can be made");
    let file = folder.join("wrong.json");
    let failure = |text: &str| {
        std::fs::write(&file, text).expect("it can be written");
        Recording::read(&file).expect_err("it is wrong").to_string()
    };
    for text in ["", "{}", "[]", "{\"fails\": null}"] {
        assert!(failure(text).contains("wrong.json"), "{text}");
    }
    // Of another version: a field less, a field more, a field that says something impossible.
    let right =
        std::fs::read_to_string(self::folder().join("skip-doom.json")).expect("it is there");
    let changes = [
        ("\"volumes\":", "\"volumen\":"),
        ("\"plan\": {", "\"plan\": {\n    \"moons\": 2,"),
        ("\"mix\": {", "\"mix\": {\n    \"moons\": 2,"),
        ("\"limits\": {", "\"limits\": {\n    \"moons\": 2,"),
        ("\"domains\": 1", "\"domains\": 0"),
    ];
    for (then, now) in changes {
        assert!(right.contains(then), "{then}");
        let error = failure(&right.replacen(then, now, 1));
        assert!(error.contains("wrong.json"), "{now}: {error}");
    }
    std::fs::remove_dir_all(&folder).expect("it was made here");
}
