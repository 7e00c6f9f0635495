//! Time as the machines see it: numbers handed in from outside.

pub use core::time::Duration;

/// A reading of this process's own clock, in nanoseconds. The clock never runs backwards and
/// counts suspension (rule 8): `CLOCK_BOOTTIME`, or the simulator's virtual clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// Nanoseconds from `earlier` to `self`, or nothing when `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// `self` + `duration`; stays at the end of time (584 years).
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Wall-clock time at an origin, in nanoseconds since 1970 UTC. Shown to people and stored in
/// records; no protocol decision depends on it, since it may jump.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct WallTime(pub u64);

/// Reads the clock: for code that runs outside a machine's `handle`, on a reader's thread.
pub trait Clock {
    /// The time now.
    fn now(&self) -> Instant;
}
