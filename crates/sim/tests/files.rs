//! The file layer in the simulator: it keeps its promises, runs repeat, and a broken one is caught.
#![cfg(feature = "files")]

use larder::fs::FsFault;
use larder_core::machine::Faults;
use larder_sim::files::aim;
use larder_sim::plan::Plan;
use larder_sim::planted::catch_in_files;
use larder_sim::run::run_plan;

fn plan(seed: u64) -> Plan {
    let mut plan = Plan::draw(seed, Faults::NONE);
    aim(&mut plan, None);
    plan
}

#[test]
fn trees_of_files_keep_all_promises() {
    let mut operations = 0;
    for seed in 0..24 {
        match run_plan(plan(seed), false) {
            Ok(clean) => operations += clean.tally.file_operations,
            Err(failure) => panic!("{failure}"),
        }
    }
    assert!(operations > 1_000, "the clients do work: {operations}");
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
