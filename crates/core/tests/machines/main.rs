//! Lies told to the machines: what `driver` says, with drawn bytes.

mod driver;

use driver::{Choices, Reached, Victim, run};
use larder_core::rng::Rng;

/// Runs for each machine, unless `LARDER_LIES` says another number.
const RUNS: u64 = 600;
/// Seeds that found something once. 4804: a stream of one domain named a page of another, whose
/// copy went and was counted on; the node panicked at its next reset.
const FOUND: [u64; 1] = [4804];

/// Lies to a machine, and how far they came, all together.
fn lie_to(victim: Victim) -> Reached {
    let mut reached = Reached::default();
    #[expect(clippy::disallowed_methods, reason = "a test is told by whom it is run for")]
    let runs = std::env::var("LARDER_LIES").map_or(RUNS, |runs| runs.parse().expect("a number"));
    for seed in (0..runs).chain(FOUND) {
        let mut rng = Rng::new(seed);
        let length = 200 + rng.below(8000);
        let bytes: Vec<u8> = (0..length).map(|_| rng.below(256) as u8).collect();
        let lies = std::panic::AssertUnwindSafe(|| run(victim, &mut Choices::new(&bytes)));
        match std::panic::catch_unwind(lies) {
            Ok(of) => {
                reached.prepared += of.prepared;
                reached.decided += of.decided;
                reached.pointed += of.pointed;
                reached.helped += of.helped;
            }
            Err(panic) => {
                eprintln!("lies to the {victim:?} with seed {seed}");
                std::panic::resume_unwind(panic);
            }
        }
    }
    reached
}

#[test]
fn lies_to_an_origin() {
    let reached = lie_to(Victim::Origin);
    assert!(reached.prepared > 0 && reached.decided > 0, "no lie was a transaction: {reached:?}");
}

#[test]
fn lies_to_a_cache() {
    lie_to(Victim::Cache);
}

#[test]
fn lies_to_a_relay() {
    lie_to(Victim::Relay);
}

#[test]
fn lies_to_a_member() {
    let reached = lie_to(Victim::Member);
    assert!(reached.helped > 0, "no neighbour was helped: {reached:?}");
}

#[test]
fn lies_to_a_redirector() {
    let reached = lie_to(Victim::Redirector);
    assert!(reached.pointed > 0, "nobody was pointed to a neighbour: {reached:?}");
}
