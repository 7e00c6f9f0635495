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

impl Load {
    /// One commit.
    pub(crate) fn of(bytes: usize) -> Self {
        Self { count: 1, bytes }
    }
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

/// Whether a domain that has `own` under way may have more, of at most `max` for all domains, of which
/// each has what `loads` gives, its own among them.
pub(crate) fn has_room(own: usize, loads: impl Iterator<Item = usize> + Clone, max: usize) -> bool {
    let domains = loads.clone().count();
    if domains <= 1 {
        return own < max;
    }
    let part = (max / 2 / domains).max(1);
    let pool = max.saturating_sub(domains * part);
    let taken: usize = loads.map(|load| load.saturating_sub(part)).sum();
    own < part || own - part < pool.saturating_sub(taken)
}

/// The same for its commits on a link that takes `requests_max` requests and `bytes_max` of commits.
/// Of several domains' commits half as many are under way as there may be requests: what else is
/// asked finds room beside logs that hang.
pub(crate) fn takes_commit(
    own: Load,
    loads: impl Iterator<Item = Load> + Clone,
    requests_max: usize,
    bytes_max: usize,
) -> bool {
    let alone = loads.clone().nth(1).is_none();
    let counts = loads.clone().map(|load| load.count);
    has_room(own.bytes, loads.map(|load| load.bytes), bytes_max)
        && (alone || has_room(own.count, counts, (requests_max / 2).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How much each has when these, in their order, take all they can.
    fn filled(order: &[usize], domains: usize, max: usize) -> Vec<usize> {
        let mut own = vec![0; domains];
        for &domain in order {
            while has_room(own[domain], own.iter().copied(), max) {
                own[domain] += 1;
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
                let own = filled(&order[..hang], domains, max);
                assert!(own.iter().sum::<usize>() + (domains - hang) * part <= max);
                let own = filled(&order, domains, max);
                assert!(own.iter().all(|own| *own >= part), "{own:?}");
                assert!(own.iter().sum::<usize>() <= max, "{own:?}");
            }
        }
        assert_eq!(filled(&[0], 1, max), [1000], "one alone may have all");
        assert_eq!(filled(&[0], 2, max), [500, 0], "one that is busy has half of it");
    }

    #[test]
    fn commits_of_several_domains_take_half_of_the_requests() {
        let load = |count| Load { count, bytes: count };
        let takes = |own: usize, other: Option<usize>, requests, bytes| {
            let loads: Vec<Load> = std::iter::once(own).chain(other).map(load).collect();
            takes_commit(load(own), loads.iter().copied(), requests, bytes)
        };
        assert!(takes(99, None, 100, 1000));
        assert!(!takes(99, None, 100, 99));
        assert!(takes(24, Some(0), 100, 1000));
        assert!(!takes(25, Some(0), 100, 1000));
        assert!(takes(0, Some(25), 100, 1000));
        assert!(takes(0, Some(1), 1, 1), "one always");
        assert!(!takes(1, Some(0), 1, 1));
    }
}
