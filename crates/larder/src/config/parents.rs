//! Whose child a process is: a node may have several parents (decision 0037).

use super::{Config, ConfigError, NodeSection, invalid};

/// Most parents of a node.
const PARENTS_MAX: usize = 8;

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

impl Config {
    /// Whether the parents will do.
    pub(super) fn check_parents(&self) -> Result<(), ConfigError> {
        let mut parents: Vec<&str> = self.node.parents().collect();
        if !(1..=PARENTS_MAX).contains(&parents.len()) {
            return Err(invalid("node.parent", "not from 1 to 8 addresses, with commas between"));
        }
        if parents.len() > 1 && !self.group.name.is_empty() {
            let why = "several, and group.name: a member of a group has its redirector for its only parent";
            return Err(invalid("node.parent", why));
        }
        if listed(&self.relay.parent).count() != 1 {
            return Err(invalid("relay.parent", "not one address: a relay has one parent"));
        }
        parents.sort_unstable();
        match parents.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(invalid("node.parent", &format!("{} twice", pair[0]))),
            None => Ok(()),
        }
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
    fn a_node_takes_several_parents_and_others_do_not() {
        let config = with(&[("node.parent", "a:1, b:2,c:3")]).expect("valid");
        assert_eq!(config.node.parents().collect::<Vec<_>>(), ["a:1", "b:2", "c:3"]);
        let refused: [&[(&str, &str)]; 5] = [
            &[("node.parent", " , ")],
            &[("node.parent", "a:1,b:2,a:1")],
            &[("node.parent", "a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9")],
            &[("node.parent", "a:1,b:2"), ("group.name", "site1"), ("group.address", "here:4785")],
            &[("relay.parent", "a:1,b:2")],
        ];
        for pairs in refused {
            let error = with(pairs).expect_err("refused").to_string();
            assert!(error.contains("parent"), "{error}");
        }
    }
}
