//! Lies told to the machines: what `driver` says, with drawn bytes.

mod driver;

use driver::{Choices, Victim, run};
use larder_core::rng::Rng;

/// Runs for each machine, unless `LARDER_LIES` says another number.
const RUNS: u64 = 600;
/// Seeds that found something once. 4804: a stream of one domain named a page of another, whose
/// copy went and was counted on; the node panicked at its next reset.
const FOUND: [u64; 1] = [4804];

fn lie_to(victim: Victim) {
    #[expect(clippy::disallowed_methods, reason = "a test is told by whom it is run for")]
    let runs = std::env::var("LARDER_LIES").map_or(RUNS, |runs| runs.parse().expect("a number"));
    for seed in (0..runs).chain(FOUND) {
        let mut rng = Rng::new(seed);
        let length = 200 + rng.below(8000);
        let bytes: Vec<u8> = (0..length).map(|_| rng.below(256) as u8).collect();
        let lies = std::panic::AssertUnwindSafe(|| run(victim, &mut Choices::new(&bytes)));
        if let Err(panic) = std::panic::catch_unwind(lies) {
            eprintln!("lies to the {victim:?} with seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn lies_to_an_origin() {
    lie_to(Victim::Origin);
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
    lie_to(Victim::Member);
}

#[test]
fn lies_to_a_redirector() {
    lie_to(Victim::Redirector);
}
