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
    let victim = match victim % 3 {
        0 => Victim::Origin,
        1 => Victim::Cache,
        _ => Victim::Relay,
    };
    run(victim, &mut Choices::new(data));
});
