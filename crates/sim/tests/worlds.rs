//! Whole worlds from seeds: they keep all promises, they repeat, and broken machines are caught.

use larder_core::machine::{Fault, Faults};
use larder_sim::fleet::run_all;
use larder_sim::planted::catch;
use larder_sim::run::{run_plan, run_seed};
use larder_sim::scenario::SCENARIOS;

#[test]
fn the_first_seeds_keep_all_promises() {
    let report = run_all(0..120, Faults::NONE, 2, true);
    for failure in &report.failures {
        println!("{failure}");
    }
    assert!(report.failures.is_empty());
    assert!(report.tally.committed > 1_000, "the workload does work");
    assert!(report.tally.copies_checked > 1_000, "the checkers look at copies");
}

#[test]
fn two_runs_of_a_seed_are_one_trace() {
    for seed in 0..40 {
        let hash = |readable| match run_seed(seed, Faults::NONE, readable) {
            Ok(clean) => (clean.hash, clean.events),
            Err(failure) => panic!("{failure}"),
        };
        assert_eq!(hash(false), hash(true), "seed {seed}");
    }
}

/// Debug and release builds, and builds to come, give the same hashes for the same machines; when
/// a machine changes on purpose, `larder-sim hash 0..1` prints the new one.
#[test]
fn different_seeds_are_different_traces() {
    let hash = |seed| run_seed(seed, Faults::NONE, false).expect("it is clean").hash;
    assert_ne!(hash(1), hash(2));
}

#[test]
fn the_named_races_are_survived() {
    for scenario in SCENARIOS {
        for seed in 0..12 {
            if let Err(failure) = run_plan(scenario.plan(seed), false) {
                panic!("{} ({})\n{failure}", scenario.name, scenario.story);
            }
        }
    }
}

fn assert_caught(fault: Fault, seeds_max: u64, promise: &str) {
    let caught = catch(fault, seeds_max).expect("a planted fault is caught");
    assert!(caught.what.contains(promise), "{fault:?} is caught as {}", caught.what);
}

#[test]
fn a_reader_that_is_not_doomed_is_caught() {
    assert_caught(Fault::SkipDoom, 100, "P");
}

#[test]
fn a_page_installed_ahead_of_the_stream_is_caught() {
    assert_caught(Fault::InstallAhead, 100, "P3");
}

#[test]
fn a_change_forgotten_during_a_fetch_is_caught() {
    assert_caught(Fault::ForgetBuffered, 100, "P");
}

#[test]
fn an_absence_that_is_not_a_read_is_caught() {
    assert_caught(Fault::ForgetAbsence, 100, "P");
}

#[test]
fn an_acknowledgement_before_the_sync_is_caught() {
    assert_caught(Fault::AcknowledgeEarly, 100, "P1");
}

#[test]
fn a_commit_validated_twice_is_caught() {
    assert_caught(Fault::ForgetOutcome, 200, "P");
}

#[test]
fn a_resume_that_registers_for_nothing_is_caught() {
    assert_caught(Fault::ResumeRegistersNothing, 200, "P");
}

#[test]
fn generations_that_are_not_compared_are_caught() {
    assert_caught(Fault::IgnoreGeneration, 100, "P");
}
