//! Well-formed messages that lie, put to the origin, the relay and the cache: the first byte says
//! to which, the rest are choices (`crates/core/tests/machines/driver`).
#![no_main]

#[path = "../../crates/core/tests/machines/driver/mod.rs"]
mod driver;

use driver::{Choices, Victim, run};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((victim, data)) = data.split_first() else {
        return;
    };
    // The first three are those of inputs that were kept before there were groups.
    let victim = match (victim % 3, *victim < 128) {
        (0, _) => Victim::Origin,
        (1, true) => Victim::Cache,
        (1, false) => Victim::Member,
        (_, true) => Victim::Relay,
        (_, false) => Victim::Redirector,
    };
    let _ = run(victim, &mut Choices::new(data));
});
