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

/// The instants that one process's beats of one domain bore. An echo names its beat by the instant, so
/// that no two may bear the same, and what only a later beat answers bears one of its own: a clock that
/// stands still must not let the echo of a beat sent before a question pass for its answer (P2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct BeatClock(Option<Instant>);

impl BeatClock {
    /// For a question asked now: after every beat sent.
    pub(crate) fn after_sent(self, now: Instant) -> Instant {
        self.0.map_or(now, |last| now.max(last.after(Duration::from_nanos(1))))
    }

    /// Of a list announced now: not before any beat sent.
    pub(crate) fn not_before_sent(self, now: Instant) -> Instant {
        self.0.map_or(now, |last| now.max(last))
    }

    /// For a beat sent now.
    pub(crate) fn send(&mut self, now: Instant) -> Instant {
        let sent = self.after_sent(now);
        self.0 = Some(sent);
        sent
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

/// Instants that a machine was handed, each later than those before a step back of its process's clock. No
/// clock of ours is to run backwards, and one that does all the same must cost patience, not promises: an echo
/// names its beat by the instant, and one of before the step would pass for the answer to a later question
/// (P2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct OnwardClock(Instant);

impl OnwardClock {
    /// The instant for what happens now: the one handed in, unless that lies before an earlier one.
    pub(crate) fn at(&mut self, now: Instant) -> Instant {
        self.0 = if now < self.0 { Instant(self.0.0.saturating_add(1)) } else { now };
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: a node's clock was set back by 0.8 s. A user asked for the latest state; the beat sent for it
    /// bore an earlier instant than one on its way, whose echo, of before the user's own commit, answered him.
    #[test]
    fn a_clock_that_is_set_back_goes_on_slowly() {
        let mut clock = OnwardClock::default();
        let at = [5, 5, 900, 100, 100, 850, 903, 903].map(|now| clock.at(Instant(now)).0);
        assert_eq!(at, [5, 5, 900, 901, 902, 903, 903, 903]);
    }

    /// The story: a relay's clock stood still. A refresh that came then was answered by the echo of a beat sent
    /// before, which bore the same instant.
    #[test]
    fn no_two_beats_bear_the_same_instant() {
        let mut beats = BeatClock::default();
        assert_eq!(beats.after_sent(Instant(7)), Instant(7));
        assert_eq!([7, 7, 7, 20].map(|now| beats.send(Instant(now)).0), [7, 8, 9, 20]);
        assert_eq!(beats.after_sent(Instant(20)), Instant(21), "asked after it was sent");
        assert_eq!(beats.not_before_sent(Instant(20)), Instant(20));
        assert_eq!(beats.not_before_sent(Instant(19)), Instant(20));
    }
}
