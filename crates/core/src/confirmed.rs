//! Which outcomes of its commits a node has received (rule 15, decision 0040).

use std::collections::BTreeSet;

/// Sequences of one boot: all up to a number, but for those that are open. It only ever grows, in whatever order what a
/// node says comes in.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Confirmed {
    upto: u64,
    /// None of them above `upto`.
    open: BTreeSet<u64>,
}

impl Confirmed {
    /// All up to `upto`, but for those of `open` that are not above it. Sequences begin at 1.
    pub fn new(upto: u64, open: impl IntoIterator<Item = u64>) -> Self {
        let open = open.into_iter().filter(|sequence| (1..=upto).contains(sequence)).collect();
        Self { upto, open }
    }

    /// The highest number that is confirmed, or one below an open one.
    #[must_use]
    pub fn upto(&self) -> u64 {
        self.upto
    }

    /// Those below it that are not, ascending.
    pub fn open(&self) -> impl Iterator<Item = u64> + '_ {
        self.open.iter().copied()
    }

    /// How many those are.
    #[must_use]
    pub fn open_len(&self) -> usize {
        self.open.len()
    }

    /// All up to here are: what an older parent may be told.
    #[must_use]
    pub fn through(&self) -> u64 {
        self.open.first().map_or(self.upto, |first| first - 1)
    }

    /// Whether this one is.
    #[must_use]
    pub fn has(&self, sequence: u64) -> bool {
        sequence <= self.upto && !self.open.contains(&sequence)
    }

    /// Those of `other` are too. Gives whether that is anything new.
    pub fn add(&mut self, other: &Self) -> bool {
        let before = (self.upto, self.open.len());
        if other.upto > self.upto {
            let upto = self.upto;
            self.open.retain(|sequence| other.open.contains(sequence));
            self.open.extend(other.open.range(upto.saturating_add(1)..));
            self.upto = other.upto;
        } else {
            // Mostly none: what a commit says is below the first one.
            let told = self.open.range(..=other.upto).copied();
            let told: Vec<u64> = told.filter(|sequence| other.has(*sequence)).collect();
            for sequence in told {
                self.open.remove(&sequence);
            }
        }
        before != (self.upto, self.open.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any() -> impl Strategy<Value = Confirmed> {
        (0u64..12, prop::collection::vec(1u64..14, 0..6))
            .prop_map(|(upto, open)| Confirmed::new(upto, open))
    }

    fn all(of: &Confirmed) -> BTreeSet<u64> {
        (1..20).filter(|sequence| of.has(*sequence)).collect()
    }

    proptest! {
        /// In whatever order they come, what is confirmed is what any of them confirms.
        #[test]
        fn it_is_a_union(one in any(), other in any(), third in any()) {
            let mut sum = one.clone();
            let grew = sum.add(&other);
            prop_assert_eq!(all(&sum), &all(&one) | &all(&other));
            prop_assert!(grew || sum == one);
            prop_assert!(sum.open().all(|sequence| sequence <= sum.upto()));
            let mut turned = other.clone();
            turned.add(&third);
            turned.add(&one);
            sum.add(&third);
            prop_assert_eq!(&sum, &turned);
            let mut again = sum.clone();
            prop_assert!(!again.add(&other));
        }

        #[test]
        fn what_an_older_parent_is_told_is_confirmed(of in any()) {
            prop_assert!((1..=of.through()).all(|sequence| of.has(sequence)));
            prop_assert!(!of.has(of.through().saturating_add(1)));
        }
    }

    #[test]
    fn the_greatest_number_stays_the_greatest() {
        let mut of = Confirmed::new(7, [3]);
        of.add(&Confirmed::new(u64::MAX, []));
        assert_eq!(of.through(), u64::MAX);
    }
}
