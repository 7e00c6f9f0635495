//! Time in which this process could do something.

use super::lock;
use crate::clock::now;
use larder_core::time::Instant;
use std::sync::Mutex;
use std::time::Duration;

/// At most so much counts between two looks: nobody who runs looks more rarely.
const BETWEEN_MAX: Duration = Duration::from_secs(10);

/// A clock that stands while nobody looks at it, as while the machine sleeps.
#[derive(Debug)]
pub(super) struct Awake(Mutex<State>);

#[derive(Debug)]
struct State {
    last: Moment,
    #[cfg(test)]
    slept: Duration,
}

/// A moment, by two clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Moment {
    /// By one that never stands.
    pub(super) at: Instant,
    /// By this one.
    pub(super) awake: Duration,
}

impl Default for Awake {
    fn default() -> Self {
        let last = Moment { at: now(), awake: Duration::ZERO };
        Self(Mutex::new(State {
            last,
            #[cfg(test)]
            slept: Duration::ZERO,
        }))
    }
}

impl Awake {
    /// Looks at it.
    pub(super) fn look(&self) -> Moment {
        let mut state = lock(&self.0);
        let at = now();
        #[cfg(test)]
        let at = at.after(state.slept);
        let Moment { at: last, awake } = state.last;
        let awake = awake + at.since(last).min(BETWEEN_MAX);
        state.last = Moment { at: at.max(last), awake };
        state.last
    }

    /// The machine sleeps for so long.
    #[cfg(test)]
    pub(super) fn sleep(&self, time: Duration) {
        lock(&self.0).slept += time;
    }
}
