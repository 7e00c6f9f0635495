//! The process's clock, and its random numbers.

use larder_core::time::{Clock, Instant, WallTime};
use rustix::time::{ClockId, clock_gettime};
use std::time::{SystemTime, UNIX_EPOCH};

/// `CLOCK_BOOTTIME`: never runs backwards, and counts the time that the machine was suspended, so
/// that a lease ends while a laptop sleeps (rule 8).
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Instant {
        now()
    }
}

/// The time now.
#[must_use]
pub fn now() -> Instant {
    #[cfg(feature = "simulated")]
    if let Some(world) = crate::simulated::world() {
        return world.now();
    }
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).expect("the clock counts from the machine's start");
    let nanos = u64::try_from(time.tv_nsec).expect("the system keeps it below a second");
    Instant(seconds * 1_000_000_000 + nanos)
}

/// The wall clock, for people; zero when it is set before 1970.
#[must_use]
pub fn wall_time() -> WallTime {
    #[cfg(feature = "simulated")]
    if let Some(world) = crate::simulated::world() {
        return world.wall_time();
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanos = i128::try_from(since.as_nanos()).unwrap_or(i128::MAX).saturating_add(shift());
    WallTime(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX))
}

/// Nanoseconds by which a test has set the wall clock forward or back: the seconds in the file
/// that `LARDER_TEST_CLOCK_SHIFT` names. Builds for release know no such thing.
fn shift() -> i128 {
    if !cfg!(debug_assertions) {
        return 0;
    }
    let file = std::env::var_os("LARDER_TEST_CLOCK_SHIFT");
    let seconds = file.and_then(|file| std::fs::read_to_string(file).ok());
    seconds.and_then(|text| text.trim().parse::<i128>().ok()).unwrap_or(0) * 1_000_000_000
}

/// 128 bits that nobody can guess or has ever had: boots, histories, ids.
#[must_use]
pub fn random_u128() -> u128 {
    #[cfg(feature = "simulated")]
    if let Some(world) = crate::simulated::world() {
        return world.random();
    }
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the kernel's generator answers once the machine is up");
    u128::from_le_bytes(bytes)
}

/// 64 such bits: seeds, domains.
#[must_use]
pub fn random_u64() -> u64 {
    random_u128() as u64
}
