//! What stands behind a command.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::str::FromStr;

/// Options with values, and switches.
pub(crate) struct Options<'a> {
    values: BTreeMap<&'a str, &'a str>,
    switches: BTreeSet<&'a str>,
}

impl<'a> Options<'a> {
    /// None: there is one that the command does not know, one twice, or one without its value.
    pub(crate) fn parse(words: &[&'a str], values: &[&str], switches: &[&str]) -> Option<Self> {
        let mut options = Self { values: BTreeMap::new(), switches: BTreeSet::new() };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let new = if values.contains(word) {
                options.values.insert(word, words.next()?).is_none()
            } else {
                switches.contains(word) && options.switches.insert(word)
            };
            if !new {
                return None;
            }
        }
        Some(options)
    }

    /// The value of an option.
    pub(crate) fn value(&self, name: &str) -> Option<&'a str> {
        self.values.get(name).copied()
    }

    /// A number, or what it is if nothing is said. None: it is no number.
    pub(crate) fn number<T: FromStr>(&self, name: &str, unsaid: T) -> Option<T> {
        self.value(name).map_or(Some(unsaid), |value| value.parse().ok())
    }

    /// How many at once: as many as there are processors, if nothing is said.
    pub(crate) fn jobs(&self) -> Option<usize> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        self.number("--jobs", cores).filter(|jobs| *jobs > 0)
    }

    /// Whether a switch is set.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.switches.contains(name)
    }
}

/// One seed, or some that follow each other.
pub(crate) fn parse_seeds(text: &str) -> Option<Range<u64>> {
    let seeds: Range<u64> = match text.split_once("..") {
        Some((first, end)) => first.parse().ok()?..end.parse().ok()?,
        None => {
            let seed: u64 = text.parse().ok()?;
            seed..seed.checked_add(1)?
        }
    };
    (!seeds.is_empty()).then_some(seeds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_command_does_not_know_is_refused() {
        let parse = |words: &[&'static str]| Options::parse(words, &["--jobs"], &["--all"]);
        assert!(parse(&["--jobs", "2", "--all"]).is_some_and(|it| it.jobs() == Some(2)));
        assert!(parse(&["--jobs", "two"]).is_some_and(|it| it.jobs().is_none()));
        assert!(parse(&["--jobs", "0"]).is_some_and(|it| it.jobs().is_none()));
        for wrong in [&["--jobs"][..], &["--all", "--all"], &["--fault", "x"], &["17"]] {
            assert!(parse(wrong).is_none(), "{wrong:?}");
        }
    }

    #[test]
    fn seeds_are_one_or_some() {
        assert_eq!(parse_seeds("7"), Some(7..8));
        assert_eq!(parse_seeds("7..9"), Some(7..9));
        for wrong in ["", "9..7", "7..7", "x", "7..", "18446744073709551615"] {
            assert_eq!(parse_seeds(wrong), None, "{wrong}");
        }
    }
}
