//! The process's clock, its random numbers, its waits and its work in the background.
//!
//! What the file layer needs of these it has from here, so that the simulator can put its own in
//! their place ([`simulated`]).

#[cfg(feature = "virtual")]
pub mod simulated;

use larder_core::time::{Clock, Instant, WallTime};
use rustix::time::{ClockId, clock_gettime};
use std::future::Future;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
    #[cfg(feature = "virtual")]
    if let Some(nanos) = simulated::nanos() {
        return Instant(nanos);
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

/// The time now, as the standard library has it: it stands still while the machine is suspended.
#[must_use]
pub fn instant() -> std::time::Instant {
    #[cfg(feature = "virtual")]
    if let Some(instant) = simulated::instant() {
        return instant;
    }
    std::time::Instant::now()
}

/// Waits for so long.
pub async fn sleep(time: Duration) {
    #[cfg(feature = "virtual")]
    if let Some(sleep) = simulated::sleep(time) {
        return sleep.await;
    }
    tokio::time::sleep(time).await;
}

/// The time was over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Elapsed;

/// What work comes to, unless it takes longer.
pub async fn timeout<T>(time: Duration, work: impl Future<Output = T>) -> Result<T, Elapsed> {
    #[cfg(feature = "virtual")]
    if let Some(sleep) = simulated::sleep(time) {
        return simulated::race(work, sleep).await.ok_or(Elapsed);
    }
    tokio::time::timeout(time, work).await.map_err(|_| Elapsed)
}

/// Has work done in the background; given back where there is nobody to do it.
pub fn spawn<F: Future<Output = ()> + Send + 'static>(work: F) -> Result<(), F> {
    #[cfg(feature = "virtual")]
    if simulated::nanos().is_some() {
        simulated::spawn(Box::pin(work));
        return Ok(());
    }
    match tokio::runtime::Handle::try_current() {
        Ok(runtime) => {
            runtime.spawn(work);
            Ok(())
        }
        Err(_) => Err(work),
    }
}

/// 128 bits that nobody can guess or has ever had: boots, histories, ids.
#[must_use]
pub fn random_u128() -> u128 {
    #[cfg(feature = "simulated")]
    if let Some(world) = crate::simulated::world() {
        return world.random();
    }
    #[cfg(feature = "virtual")]
    if let Some(bits) = simulated::random() {
        return bits;
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
