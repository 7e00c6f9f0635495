//! The file layer in the simulator: it keeps its promises, runs repeat, and a broken one is caught.
#![cfg(feature = "files")]

use larder::fs::FsFault;
use larder_core::machine::Faults;
use larder_sim::files::aim;
use larder_sim::plan::Plan;
use larder_sim::planted::catch_in_files;
use larder_sim::recording::Recording;
use larder_sim::run::{run_plan, run_recorded};
use larder_sim::shrink::shrink;
use std::time::Duration;

fn plan(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed, Faults::NONE);
    aim(&mut plan, None);
    plan
}

/// The same, with the whole tree judged at each commit as well: to the same verdict.
fn judged_twice(mut plan: Plan) -> Plan {
    let files = plan.files.as_mut().expect("it is about files");
    files.whole_every = Some(1);
    plan
}

#[test]
fn trees_of_files_keep_all_promises_and_are_judged_alike() {
    let mut operations = 0;
    for seed in 0..24 {
        match run_plan(judged_twice(plan(seed)), false) {
            Ok(clean) => operations += clean.tally.file_operations,
            Err(failure) => panic!("{failure}"),
        }
    }
    assert!(operations > 1_000, "the clients do work: {operations}");
}

/// A tree that a fault broke is found to be broken by what a commit changed, when the whole is.
#[test]
fn broken_trees_are_judged_alike() {
    let broken = [
        FsFault::RenameKeepsName,
        FsFault::RenameLeavesLink,
        FsFault::UnlinkKeepsLink,
        FsFault::LinkUncounted,
        FsFault::RemoveFullDirectory,
        FsFault::ForgetParent,
        FsFault::MoveIntoItself,
        FsFault::LeavePages,
        FsFault::SplitLosesName,
        FsFault::LockBesideAnother,
    ];
    for fault in broken {
        let found = (0..100).find_map(|seed| {
            let mut plan = Plan::draw(seed, Faults::NONE);
            aim(&mut plan, Some(fault));
            run_plan(judged_twice(plan), false).err()
        });
        let what = found.unwrap_or_else(|| panic!("{fault:?} is not caught")).what;
        let differ = ["two verdicts", "is not what its changes made"];
        assert!(!differ.iter().any(|words| what.contains(words)), "{fault:?}: {what}");
    }
}

/// What clients of files did is recorded, and played again it is the same to the last event; what is
/// left out one by one leaves the rest as it was, so that a run becomes small.
#[test]
fn runs_with_files_are_recorded_and_become_small() {
    let failures = (0..40).filter_map(|seed| {
        let mut plan = Plan::draw(seed, Faults::NONE);
        aim(&mut plan, Some(FsFault::UnlinkKeepsLink));
        run_plan(plan, false).err()
    });
    let failures: Vec<_> = failures.take(4).collect();
    for failure in &failures {
        let text = serde_json::to_string(&failure.recording).expect("it can be written");
        let recording: Recording = serde_json::from_str(&text).expect("and read");
        let again = run_recorded(&recording, false).expect_err("it failed before");
        assert_eq!((again.hash, &again.what), (failure.hash, &failure.what));
        assert_eq!(again.recording.decisions, failure.recording.decisions);
    }
    let large = failures.iter().max_by_key(|failure| failure.recording.decisions.len());
    let recording = &large.expect("they are caught").recording;
    let shrunk = shrink(recording, Duration::from_secs(300), &mut |_, _| ()).expect("it fails");
    let left = &shrunk.recording.decisions;
    assert!(left.len() <= 12, "{} of {}", left.len(), recording.decisions.len());
    assert!(run_recorded(&shrunk.recording, false).is_err());
}

#[test]
fn two_runs_of_a_tree_are_one_trace() {
    for seed in 0..4 {
        let hash = |readable| match run_plan(plan(seed), readable) {
            Ok(clean) => (clean.hash, clean.events),
            Err(failure) => panic!("{failure}"),
        };
        assert_eq!(hash(false), hash(true), "seed {seed}");
    }
}

/// All of them take longer: `larder-sim planted` plants each.
#[test]
fn quick_faults_of_the_file_layer_are_caught() {
    let quick = [FsFault::UnlinkKeepsLink, FsFault::LinkUncounted, FsFault::LeavePages];
    for fault in quick {
        let caught = catch_in_files(fault, 100);
        let caught = caught.unwrap_or_else(|| panic!("{fault:?} is not caught"));
        assert!(caught.what.starts_with("files"), "{fault:?} is caught as {}", caught.what);
    }
}
