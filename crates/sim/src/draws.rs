//! Where a run's randomness comes from. Every event draws from a generator of its own, seeded by the
//! run's seed, by what the event is about and by how many such events there were: a trouble that is
//! left out, or a client that does one thing less, leaves the draws of all else as they were. That
//! makes recorded runs small when they are shrunk ([`crate::shrink`]).

use larder_core::rng::Rng;
use std::collections::BTreeMap;

/// What an event is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum About {
    /// A message on its way from or to this child: twice its number, and one more on the way up.
    Message(u32),
    /// The connection of this child, as it is made or ends.
    Connection(u16),
    /// A process's timer.
    Timer(u16),
    /// A process that starts.
    Start(u16),
    /// A queue of a domain's store, three a domain.
    Store(u16),
    /// What the store answers.
    Answer,
    /// Wall clocks.
    Wall,
    /// A transaction of a client: the client in the upper half, its transaction's number in the lower.
    Transaction(u64),
    /// The troubles of a kind.
    Trouble(u8),
    /// The end of a trouble, by a number drawn when it began.
    Mend(u64),
}

impl About {
    /// A number for each.
    fn number(self) -> u64 {
        let (kind, which) = match self {
            Self::Message(which) => (1, u64::from(which)),
            Self::Connection(child) => (2, u64::from(child)),
            Self::Timer(process) => (3, u64::from(process)),
            Self::Start(process) => (4, u64::from(process)),
            Self::Store(queue) => (5, u64::from(queue)),
            Self::Answer => (6, 0),
            Self::Wall => (7, 0),
            Self::Transaction(which) => (8, which),
            Self::Trouble(kind) => (9, u64::from(kind)),
            Self::Mend(which) => (10, which),
        };
        (which ^ u64::rotate_left(kind, 57)).wrapping_mul(0xd6e8_feb8_6659_fd93)
    }
}

/// Hands out the generators of a run.
#[derive(Debug)]
pub struct Draws {
    seed: u64,
    events: BTreeMap<About, u64>,
}

impl Draws {
    /// Those of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, events: BTreeMap::new() }
    }

    /// The generator of the next event about this.
    pub fn next(&mut self, about: About) -> Rng {
        // Of these there are many, and each is about few events.
        if let About::Mend(_) = about {
            return self.of(about, 0);
        }
        let events = self.events.entry(about).or_default();
        *events += 1;
        let number = *events;
        self.of(about, number)
    }

    /// The generator of the event of this number about this.
    #[must_use]
    pub fn of(&self, about: About, number: u64) -> Rng {
        let mixed = (self.seed ^ about.number()).rotate_left(31).wrapping_add(number);
        Rng::new(mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_event_draws_depends_on_no_other_kind_of_event() {
        let (mut all, mut fewer) = (Draws::new(7), Draws::new(7));
        all.next(About::Trouble(1));
        all.next(About::Timer(1));
        let drawn = |draws: &mut Draws| {
            [About::Timer(2), About::Wall, About::Timer(2)]
                .map(|about| draws.next(about).next_u64())
        };
        let [first, wall, second] = drawn(&mut all);
        assert_eq!([first, wall, second], drawn(&mut fewer));
        assert!(first != second && first != wall);
    }
}
