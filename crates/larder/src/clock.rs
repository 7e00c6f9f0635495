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
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).expect("the clock counts from the machine's start");
    let nanos = u64::try_from(time.tv_nsec).expect("the system keeps it below a second");
    Instant(seconds * 1_000_000_000 + nanos)
}

/// The wall clock, for people; zero when it is set before 1970.
#[must_use]
pub fn wall_time() -> WallTime {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    WallTime(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// 128 bits that nobody can guess or has ever had: boots, histories, ids.
#[must_use]
pub fn random_u128() -> u128 {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the kernel's generator answers once the machine is up");
    u128::from_le_bytes(bytes)
}

/// 64 such bits: seeds, domains.
#[must_use]
pub fn random_u64() -> u64 {
    random_u128() as u64
}
