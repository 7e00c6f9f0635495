//! Whose child a process is: a node or a relay may have several parents (decision 0037).

use super::{Config, ConfigError, NodeSection, RelaySection, invalid};

/// Most parents of a process.
const PARENTS_MAX: usize = 8;

/// Links to a parent are numbered from a multiple of this on.
pub(crate) const LINKS_OF_PARENT: u64 = 1 << 32;

/// What is listed with commas between.
pub(crate) fn listed(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|one| !one.is_empty())
}

impl NodeSection {
    /// Its parents' addresses, in their order: a volume's name is looked up at one after the other.
    pub(crate) fn parents(&self) -> impl Iterator<Item = &str> {
        listed(&self.parent)
    }
}

impl RelaySection {
    /// Its parents' addresses, likewise.
    pub(crate) fn parents(&self) -> impl Iterator<Item = &str> {
        listed(&self.parent)
    }
}

impl Config {
    /// Whether the parents will do.
    pub(super) fn check_parents(&self) -> Result<(), ConfigError> {
        check_listed("node.parent", self.node.parents())?;
        check_listed("relay.parent", self.relay.parents())?;
        let in_group = !self.group.name.is_empty();
        if in_group && self.node.parents().count() > 1 {
            let why = "several, and group.name: a member of a group has its redirector for its only parent";
            return Err(invalid("node.parent", why));
        }
        if in_group && self.group.elects() && self.relay.parents().count() > 1 {
            let why = "several, and a group that finds its redirector itself: another member could take its place, \
                       which has one parent";
            return Err(invalid("relay.parent", why));
        }
        Ok(())
    }
}

fn check_listed<'a>(
    key: &'static str,
    parents: impl Iterator<Item = &'a str>,
) -> Result<(), ConfigError> {
    let mut parents: Vec<&str> = parents.collect();
    if !(1..=PARENTS_MAX).contains(&parents.len()) {
        return Err(invalid(key, "not from 1 to 8 addresses, with commas between"));
    }
    parents.sort_unstable();
    match parents.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(invalid(key, &format!("{} twice", pair[0]))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Config::load(None, [], pairs.collect::<Vec<_>>())
    }

    #[test]
    fn nodes_and_relays_take_several_parents_and_who_is_elected_does_not() {
        let config = with(&[("node.parent", "a:1, b:2,c:3")]).expect("valid");
        assert_eq!(config.node.parents().collect::<Vec<_>>(), ["a:1", "b:2", "c:3"]);
        let config = with(&[("relay.parent", "a:1,b:2"), ("group.name", "site1")]).expect("valid");
        assert_eq!(config.relay.parents().collect::<Vec<_>>(), ["a:1", "b:2"]);
        let elects = [("relay.parent", "a:1,b:2"), ("group.name", "g"), ("group.seeds", "c:3")];
        let refused: [&[(&str, &str)]; 7] = [
            &[("node.parent", " , ")],
            &[("node.parent", "a:1,b:2,a:1")],
            &[("node.parent", "a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9")],
            &[("node.parent", "a:1,b:2"), ("group.name", "site1"), ("group.address", "here:4785")],
            &[("relay.parent", "a:1,a:1")],
            &[("relay.parent", ",")],
            &elects,
        ];
        for pairs in refused {
            let error = with(pairs).expect_err("refused").to_string();
            assert!(error.contains("parent"), "{error}");
        }
    }
}
