//! Clocks of processes: each has an offset and a drift, and counts its own suspension (rule 8). A
//! machine that starts again begins to count anew; what sets a running clock is a trouble.

use crate::agenda::Time;
use larder_core::time::{Clock, Instant};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// How a process's clock relates to virtual time.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// What it shows at time zero, in nanoseconds.
    pub offset: i128,
    /// How much faster than true it runs, in parts per million.
    pub drift_ppm: i64,
    /// When it stood still last, if it ever did.
    pub frozen: Option<(Time, Time)>,
}

impl Rate {
    /// What the clock shows at `time`.
    #[must_use]
    pub fn local(&self, time: Time) -> Instant {
        let elapsed = i128::from(time.0) - i128::from(self.stood_still(time));
        let local = self.offset + elapsed + elapsed * i128::from(self.drift_ppm) / 1_000_000;
        Instant(u64::try_from(local.max(0)).expect("runs end long before the clock"))
    }

    /// Sets the clock: forward, or back when `nanos` is negative.
    pub fn step(&mut self, nanos: i128) {
        self.offset += nanos;
    }

    /// It stands still from one time to another, and goes on from what it showed.
    pub fn freeze(&mut self, from: Time, until: Time) {
        self.thaw(from);
        let shown = self.local(from);
        self.frozen = Some((from, until));
        // What it stood still before is part of the offset from now on.
        self.offset += i128::from(shown.0) - i128::from(self.local(from).0);
    }

    /// It goes on now, if it stands still.
    pub fn thaw(&mut self, now: Time) {
        if let Some((_, until)) = &mut self.frozen {
            *until = now.min(*until);
        }
    }

    /// How long of the time until `time` it stood still, as far as it is not part of the offset.
    fn stood_still(&self, time: Time) -> u64 {
        self.frozen.map_or(0, |(from, until)| time.min(until).0.saturating_sub(from.0))
    }

    /// The machine starts at `time`: the clock begins to count.
    pub fn begin(&mut self, time: Time) {
        (self.offset, self.frozen) = (0, None);
        self.offset -= i128::from(self.local(time).0);
    }

    /// The first virtual time at which the clock shows `local` or more.
    #[must_use]
    pub fn global(&self, local: Instant) -> Time {
        let since = i128::from(local.0) - self.offset;
        let global = since * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm));
        let mut time = Time(u64::try_from(global.max(0)).unwrap_or(u64::MAX));
        if let Some((from, until)) = self.frozen
            && self.local(from) < local
        {
            // What it will show it shows after it has gone on.
            time = time.plus(until.0 - from.0).max(until);
        }
        while self.local(time) < local && time.0 < u64::MAX {
            time = time.plus(1);
        }
        time
    }
}

/// What happens while a reader looks at the clock: the machine, on another thread, goes on.
pub type Hook = Box<dyn FnMut() + Send>;

/// The clock that readers of a node's cache are given. The world sets it before every step, and
/// may let the machine take a step in the moment after a reader has looked at it.
#[derive(Clone, Default)]
pub struct SimClock(Arc<Shared>);

#[derive(Default)]
struct Shared {
    now: AtomicU64,
    looks: AtomicU64,
    hook: Mutex<Option<Hook>>,
}

impl SimClock {
    /// Sets what it shows.
    pub fn set(&self, now: Instant) {
        self.0.now.store(now.0, Ordering::Relaxed);
    }

    /// How often readers and the machine have looked.
    #[must_use]
    pub fn looks(&self) -> u64 {
        self.0.looks.load(Ordering::Relaxed)
    }

    /// Forgets all looks after the first `looks`.
    pub fn set_looks(&self, looks: u64) {
        self.0.looks.store(looks, Ordering::Relaxed);
    }

    /// Runs `hook` once, in the moment after the next look.
    pub fn arm(&self, hook: Hook) {
        *self.0.hook.lock().expect("no hook panics under this lock") = Some(hook);
    }

    /// Forgets a hook that was not run.
    pub fn disarm(&self) {
        *self.0.hook.lock().expect("no hook panics under this lock") = None;
    }
}

impl Clock for SimClock {
    fn now(&self) -> Instant {
        let now = Instant(self.0.now.load(Ordering::Relaxed));
        self.0.looks.fetch_add(1, Ordering::Relaxed);
        let hook = self.0.hook.lock().expect("no hook panics under this lock").take();
        if let Some(mut hook) = hook {
            hook();
        }
        now
    }
}

impl fmt::Debug for SimClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimClock({})", self.0.now.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_time_is_reached_at_its_global_time_and_not_before() {
        for drift_ppm in [-200, 0, 1, 137] {
            let mut rate = Rate { offset: 5_000, drift_ppm, frozen: None };
            for local in [5_000, 5_001, 999_999_999, 123_456_789_012] {
                let time = rate.global(Instant(local));
                assert!(rate.local(time) >= Instant(local));
                if time.0 > 0 {
                    assert!(rate.local(Time(time.0 - 1)) < Instant(local));
                }
            }
            rate.begin(Time(77_777_777));
            assert_eq!(rate.local(Time(77_777_777)), Instant(0));
            rate.step(-5);
            assert_eq!(rate.local(Time(77_777_777)), Instant(0), "no clock shows less");
            rate.step(1_005);
            assert_eq!(rate.local(Time(77_777_777)), Instant(1_000));
        }
    }

    #[test]
    fn a_clock_that_stood_still_goes_on_from_what_it_showed() {
        for drift_ppm in [-500, 0, 137] {
            let mut rate = Rate { offset: 5_000, drift_ppm, frozen: None };
            for (from, until) in [(1_000_000, 3_000_000_000), (7_000_000_000, 7_000_020_000)] {
                let (from, until) = (Time(from), Time(until));
                let shown = rate.local(from);
                rate.freeze(from, until);
                assert_eq!([rate.local(from), rate.local(until)], [shown; 2]);
                assert!(rate.local(until.plus(1_000_000)) > shown);
                assert_eq!(rate.global(shown), from);
                let next = rate.global(Instant(shown.0 + 5));
                assert!(next > until && next <= until.plus(6), "{next:?}");
            }
            let shown = rate.local(Time(9_000_000_000));
            rate.freeze(Time(9_000_000_000), Time(99_000_000_000));
            rate.thaw(Time(9_000_000_500));
            let later = rate.local(Time(9_000_001_500));
            assert!((999..=1_001).contains(&(later.0 - shown.0)), "{shown:?} {later:?}");
        }
    }
}
