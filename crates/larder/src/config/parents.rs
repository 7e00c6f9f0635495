//! Whose child a process is: a node or a relay may have several parents (decision 0037).

use super::{Config, ConfigError, NodeSection, OriginSection, RelaySection, invalid};
use larder_core::message::{certificate_of, is_node_name};

/// Most parents of a process.
const PARENTS_MAX: usize = 8;
/// Most other origins of an origin.
const PEERS_MAX: usize = 32;

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

impl OriginSection {
    /// The other origins that it speaks to: names and addresses.
    pub(crate) fn peers(&self) -> impl Iterator<Item = (&str, &str)> {
        listed(&self.peers).map(|one| one.split_once('=').unwrap_or((one, "")))
    }
}

impl Config {
    /// Whether the other origins will do.
    pub(super) fn check_peers(&self) -> Result<(), ConfigError> {
        let refused = |why: &str| Err(invalid("origin.peers", why));
        let mut names = std::collections::BTreeSet::new();
        for (name, address) in self.origin.peers() {
            let good = is_node_name(name) && certificate_of(name) == name;
            if !good || address.trim().is_empty() || address.contains('=') {
                return refused(
                    "not `name=host:port`, with commas between, each name that of a certificate",
                );
            }
            if name == self.name || !names.insert(name) {
                return refused(&format!("{name} is this origin itself, or there twice"));
            }
        }
        if names.len() > PEERS_MAX {
            return refused(&format!("more than {PEERS_MAX}"));
        }
        Ok(())
    }

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

    #[test]
    fn other_origins_have_names_and_addresses() {
        let config =
            with(&[("name", "east"), ("origin.peers", "west=b:1, north=c:2")]).expect("valid");
        let peers: Vec<_> = config.origin.peers().collect();
        assert_eq!(peers, [("west", "b:1"), ("north", "c:2")]);
        assert_eq!(with(&[]).expect("valid").origin.peers().count(), 0);
        for refused in
            ["west", "west=", "=b:1", "west=b:1,west=c:1", "we/st=b:1", "east=b:1", "west=b=1"]
        {
            let refused = with(&[("name", "east"), ("origin.peers", refused)]);
            let error = refused.expect_err("refused").to_string();
            assert!(error.contains("origin.peers"), "{error}");
        }
    }
}
