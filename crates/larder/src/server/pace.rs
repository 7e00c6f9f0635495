//! When space of a page engine is given back: not all the time, and again when it was put off.

use larder_core::time::{Duration, Instant};

/// An engine is asked what earlier processes left to be given back so long after the start.
const LOOK_AFTER: Duration = Duration::from_secs(60);
/// Giving space back takes at most one part in so many of the time, but for a pause of `PAUSE_MAX`.
const SHARE: u32 = 10;
/// The longest pause, also when it fails again and again.
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// The pause after it was put off, the first time; twice as long each time after that.
const PAUSE: Duration = Duration::from_secs(60);

/// What is to be done now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Due {
    /// Look whether much is owed.
    Look,
    /// Give space back.
    GiveBack,
}

/// When it is done next.
#[derive(Debug)]
pub(super) struct Pace {
    /// It is to be done.
    wanted: bool,
    not_before: Instant,
    /// The engine is to be asked then.
    look_at: Option<Instant>,
    /// How often it was put off since it was last done.
    put_off: u32,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self { wanted: false, not_before: now, look_at: Some(now.after(LOOK_AFTER)), put_off: 0 }
    }

    /// Something was removed or cut.
    pub(super) fn asked(&mut self) {
        self.wanted = true;
    }

    /// How long nothing is to be done; none: until somebody asks.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let wanted = self.wanted.then_some(self.not_before);
        let at = wanted.into_iter().chain(self.look_at).min()?;
        Some(at.since(now))
    }

    /// What is to be done now.
    pub(super) fn due(&mut self, now: Instant) -> Option<Due> {
        if self.wanted && self.not_before <= now {
            return Some(Due::GiveBack);
        }
        let look = self.look_at.take_if(|at| *at <= now);
        look.filter(|_| !self.wanted).map(|_| Due::Look)
    }

    /// It was done, or put off.
    pub(super) fn ended(&mut self, done: bool, begun: Instant, now: Instant) {
        let took = now.since(begun);
        let pause = if done {
            (self.wanted, self.put_off) = (false, 0);
            took.saturating_mul(SHARE - 1)
        } else {
            self.put_off += 1;
            let more = 1 << (self.put_off - 1).min(16);
            took.saturating_mul(SHARE - 1).max(PAUSE.saturating_mul(more))
        };
        self.not_before = now.after(pause.min(PAUSE_MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::default().after(Duration::from_secs(seconds))
    }

    /// The story: each volume that was deleted had the whole store compacted, one after the other; and
    /// when there was no room for it, or the process ended before, nobody came back to it.
    #[test]
    fn space_is_given_back_in_its_time() {
        let mut pace = Pace::new(at(0));
        assert_eq!(pace.wait(at(0)), Some(LOOK_AFTER));
        assert_eq!(pace.due(at(1)), None);
        pace.asked();
        assert_eq!(
            (pace.wait(at(1)), pace.due(at(1))),
            (Some(Duration::ZERO), Some(Due::GiveBack))
        );
        pace.ended(true, at(1), at(11));
        // It took ten seconds: what is asked for now waits for ninety.
        pace.asked();
        assert_eq!(pace.due(at(12)), None);
        assert_eq!(pace.due(at(70)), None, "what is owed will be given back anyway");
        assert_eq!(pace.wait(at(71)), Some(Duration::from_secs(30)));
        assert_eq!(pace.due(at(101)), Some(Due::GiveBack));
        // Put off, it is tried again, ever later.
        pace.ended(false, at(101), at(101));
        assert_eq!(pace.wait(at(101)), Some(PAUSE));
        assert_eq!(pace.due(at(161)), Some(Due::GiveBack));
        pace.ended(false, at(161), at(161));
        assert_eq!(pace.wait(at(161)), Some(PAUSE * 2));
        for _ in 0..40 {
            pace.ended(false, at(161), at(161));
        }
        assert_eq!(pace.wait(at(161)), Some(PAUSE_MAX));
        pace.ended(true, at(4000), at(4000));
        assert_eq!(pace.wait(at(4000)), None);
        // Whoever starts looks once.
        let mut pace = Pace::new(at(0));
        assert_eq!(pace.due(at(60)), Some(Due::Look));
        assert_eq!((pace.due(at(60)), pace.wait(at(60))), (None, None));
    }
}
