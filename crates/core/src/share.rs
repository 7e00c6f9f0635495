//! Room for commits on a link that order domains share. A domain's log may hang, and what was sent
//! to it stays under way for as long: it must leave room to the others (P7). One half of the room is
//! divided evenly, and a domain's part of it is its own. Of the other half each may have as much as is
//! left free (a dynamic threshold, as Choudhury and Hahne gave them for the buffers of switches in
//! 1998): one that is busy beside idle ones has much, and one that hangs never all. A domain that is
//! alone may have all.

use std::ops::{AddAssign, SubAssign};

/// What is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Load {
    /// Commits.
    pub(crate) count: usize,
    /// Of their memory.
    pub(crate) bytes: usize,
}

impl AddAssign for Load {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.bytes += other.bytes;
    }
}

impl SubAssign for Load {
    fn sub_assign(&mut self, other: Self) {
        self.count -= other.count;
        self.bytes -= other.bytes;
    }
}

impl std::iter::Sum for Load {
    fn sum<I: Iterator<Item = Self>>(loads: I) -> Self {
        loads.fold(Self::default(), |mut sum, load| {
            sum += load;
            sum
        })
    }
}

/// Room of which several take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// What is a domain's own, whatever the others have.
    part: usize,
    /// Of the other half, what each may have at most.
    free: usize,
    /// What each has, and at least its part, of all together.
    claimed: usize,
    /// Nothing is given beyond a part when the others have claimed so much.
    claimed_max: usize,
}

impl Room {
    /// Of at most `max` for all domains, of which each has what `loads` gives. One thing may be far longer
    /// than a domain's part: all of them together have less than three quarters of `max` above it, and one
    /// thing. With less than one for each there are no parts: each may have one while there are any.
    pub fn new(loads: impl Iterator<Item = usize> + Clone, max: usize) -> Self {
        let (domains, sum) =
            loads.clone().fold((0, 0), |(count, sum), load| (count + 1, sum + load));
        if domains <= 1 {
            return Self { part: max, free: 0, claimed: sum.max(max), claimed_max: usize::MAX };
        }
        if domains > max {
            let free = usize::from(sum < max);
            return Self { part: 0, free, claimed: sum, claimed_max: usize::MAX };
        }
        let part = (max / 2 / domains).max(1);
        let taken: usize = loads.clone().map(|load: usize| load.saturating_sub(part)).sum();
        Self {
            part,
            free: max.saturating_sub(domains * part).saturating_sub(taken),
            claimed: loads.map(|load| load.max(part)).sum(),
            claimed_max: max.saturating_add(max / 2),
        }
    }

    /// Whether a domain that has `own` may have the `next` thing too, which may be longer than what is left.
    #[must_use]
    pub fn takes(self, own: usize, next: usize) -> bool {
        let of_others = self.claimed - own.max(self.part);
        own.saturating_add(next) <= self.part
            || of_others < self.claimed_max && (own < self.part || own - self.part < self.free)
    }
}

/// Room for commits on a link that takes `requests_max` requests and `bytes_max` of commits. Of several
/// domains' commits half as many are under way as there may be requests: what else is asked finds room
/// beside logs that hang. Where that is less than one for each domain there are more of them, as long as
/// requests have the place that they need (a relay's have it up to three quarters).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CommitRoom {
    bytes: Room,
    counts: Option<Room>,
}

impl CommitRoom {
    /// Of all domains.
    pub(crate) fn new(
        loads: impl Iterator<Item = Load> + Clone,
        requests_max: usize,
        bytes_max: usize,
    ) -> Self {
        let domains = loads.clone().count();
        let counts = loads.clone().map(|load| load.count);
        let bytes = Room::new(loads.map(|load| load.bytes), bytes_max);
        let most = (requests_max - requests_max / 4).saturating_sub(1);
        let max = (requests_max / 2).max(domains.min(most)).max(1);
        Self { bytes, counts: (domains > 1).then(|| Room::new(counts, max)) }
    }

    /// Whether a domain that has `own` may have one more commit, of `bytes`.
    pub(crate) fn takes(self, own: Load, bytes: usize) -> bool {
        self.bytes.takes(own.bytes, bytes)
            && self.counts.is_none_or(|counts| counts.takes(own.count, 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much each has when these, in their order, take all they can, so much at a time.
    fn filled(order: &[usize], domains: usize, max: usize, each: usize) -> Vec<usize> {
        let mut own = vec![0; domains];
        for &domain in order {
            while Room::new(own.iter().copied(), max).takes(own[domain], each) {
                own[domain] += each;
            }
        }
        own
    }

    /// The story: of three domains two hung, and each took one half: the third found no room.
    #[test]
    fn however_many_hang_each_other_has_its_part() {
        let max = 1000;
        for domains in 2..64 {
            let part = max / 2 / domains;
            for hang in 1..domains {
                let order: Vec<usize> = (0..domains).collect();
                let own = filled(&order[..hang], domains, max, 1);
                assert!(own.iter().sum::<usize>() + (domains - hang) * part <= max);
                let own = filled(&order, domains, max, 1);
                assert!(own.iter().all(|own| *own >= part), "{own:?}");
                assert!(own.iter().sum::<usize>() <= max, "{own:?}");
            }
        }
        assert_eq!(filled(&[0], 1, max, 1), [1000], "one alone may have all");
        assert_eq!(filled(&[0], 2, max, 1), [500, 0], "one that is busy has half of it");
    }

    /// The story: a domain with nothing under way could always send, and with one long commit of each domain the
    /// link had more to keep than it may, was closed, and the next one as well (bugs 123 and 124 again).
    #[test]
    fn long_commits_of_many_domains_are_bounded_together() {
        for domains in 1..64 {
            for each in [1, 7, 100, 600, 5000] {
                let order: Vec<usize> = (0..domains).collect();
                let sum: usize = filled(&order, domains, 1000, each).iter().sum();
                assert!(sum < 1750 + each, "{sum} of {domains} domains, by {each}");
            }
        }
    }

    /// The story: with fewer places than domains each domain had one all the same, and together they took what
    /// was to be left to requests (bug 97 again).
    #[test]
    fn fewer_places_than_domains_are_all_that_there_are() {
        for domains in 2..10 {
            for max in 1..domains {
                let order: Vec<usize> = (0..domains).collect();
                let own = filled(&order, domains, max, 1);
                assert_eq!(own.iter().sum::<usize>(), max);
                assert!(own.iter().all(|own| *own <= 1), "one that hangs leaves the others theirs");
            }
        }
    }

    /// The story: what is longer than a part was refused as soon as all together had the bound, though half as
    /// much again was to be had.
    #[test]
    fn long_ones_are_taken_while_there_is_room_above_the_bound() {
        let mib = |counts: [usize; 3]| counts.map(|mib| mib << 20);
        let takes = |own, next: usize| {
            Room::new(mib(own).into_iter(), 64 << 20).takes(own[0] << 20, next << 20)
        };
        assert!(takes([0, 32, 32], 30));
        assert!(!takes([30, 32, 32], 30));
        assert!(!takes([0, 64, 32], 30));
        assert!(takes([0, 64, 64], 10), "its own");
        // The story: short ones of its own domain kept a long one from ever going.
        assert!(takes([10, 42, 53], 30));
    }

    /// The story (finding 403): three of four domains hung, each with a commit of half of all the room, and the
    /// bound on all together took from the fourth what was said to be its own.
    #[test]
    fn a_part_is_left_whatever_is_long() {
        let max = 64 << 20;
        for domains in 2..16 {
            for each in [1 << 20, 16 << 20, 32 << 20, 64 << 20] {
                let order: Vec<usize> = (1..domains).collect();
                let mut own = filled(&order, domains, max, each);
                let part = max / 2 / domains;
                while Room::new(own.iter().copied(), max).takes(own[0], 1 << 10) {
                    own[0] += 1 << 10;
                }
                assert!(own[0] + (1 << 10) > part, "{own:?}");
                assert!(own.iter().sum::<usize>() < max + max / 4 * 3 + each, "{own:?}");
            }
        }
    }

    #[test]
    fn commits_of_several_domains_take_half_of_the_requests() {
        let load = |count| Load { count, bytes: count };
        let takes = |own: usize, other: Option<usize>, requests, bytes| {
            let loads: Vec<Load> = std::iter::once(own).chain(other).map(load).collect();
            CommitRoom::new(loads.iter().copied(), requests, bytes).takes(load(own), 1)
        };
        assert!(takes(99, None, 100, 1000));
        assert!(!takes(99, None, 100, 99));
        assert!(takes(24, Some(0), 100, 1000));
        assert!(!takes(25, Some(0), 100, 1000));
        assert!(takes(0, Some(25), 100, 1000));
        assert!(takes(0, Some(0), 1, 1), "one always");
        assert!(!takes(1, Some(0), 1, 1));
        assert!(takes(0, Some(1), 3, 1000), "one of each, and one request");
        assert!(!takes(0, Some(1), 2, 1000), "else the request would have no place");
        assert!(takes(5, Some(5), usize::MAX, usize::MAX), "a bound may be as good as none");
    }
}
