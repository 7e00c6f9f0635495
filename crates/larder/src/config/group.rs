//! The section of groups of neighbours.

use super::units::{Period, Size};
use larder_core::group::membership::Candidacy;
use larder_core::group::{GroupConfig, MemberConfig};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::time::Duration;

/// Seeds that are listed, at most.
const SEEDS_MAX: usize = 64;

/// Whether a process may become its group's redirector, where the group finds its redirector itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupRole {
    /// It may be elected, if its certificate lets it serve: of those who may, relays before nodes.
    #[default]
    Elected,
    /// It is, whenever it runs.
    Pinned,
    /// It never is.
    Member,
}

impl GroupRole {
    /// What a relay is in an election, whose certificate lets it serve, or does not.
    pub(crate) fn of_relay(self, may_serve: bool) -> Candidacy {
        self.with(0, may_serve)
    }

    /// The same of a node or mount.
    pub(crate) fn of_node(self, may_serve: bool) -> Candidacy {
        self.with(1, may_serve)
    }

    fn with(self, number: u8, may_serve: bool) -> Candidacy {
        match self {
            Self::Elected if may_serve => Candidacy::May(number),
            Self::Pinned if may_serve => Candidacy::Pinned,
            _ => Candidacy::Never,
        }
    }
}

/// A group's section: for nodes and mounts that are its members, and for the relay that is its redirector.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GroupSection {
    /// The group; empty: none. The process's certificate must be of it.
    pub name: String,
    /// Where a member listens for neighbours, `IP:PORT`; port 0: any that is free.
    pub listen: String,
    /// Where neighbours reach a member, `host:port`; empty: at `listen`, or if that is every address of the
    /// machine at the one by which it reaches its parent.
    pub address: String,
    /// Addresses at which others of the group may be found, `host:port`, with commas between: the group then finds
    /// its redirector itself, and the configured parent is the redirector's.
    pub seeds: String,
    /// The address and port of a multicast on the LAN by which others are found, as `239.255.47.85:4785`; empty: none.
    pub multicast: String,
    /// Whether this process may become the redirector.
    pub role: GroupRole,
    /// A neighbour that was to send a page, and says nothing for so long, is late.
    pub help_wait: Period,
    /// The same, once it said that the page is on its way to itself.
    pub help_wait_long: Period,
    /// Pages of neighbours' misses that wait at a member until they can be sent.
    pub helps_max: u32,
    /// Time between two attempts to link to a neighbour.
    pub redial: Period,
    /// Bytes queued towards a neighbour: pages that would fill more than half are not to be had.
    pub queue: Size,
    /// Memory of one member's part of a redirector's directory, a domain.
    pub directory: Size,
    /// Pages under way from one helper at a time.
    pub helping_max: u32,
    /// Pages that one member awaits from neighbours at a time.
    pub asking_max: u32,
    /// A helper that was late is not pointed to for so long.
    pub rest: Period,
    /// Bytes of a commit's writes up to which they go to neighbours with its change; zero: none do.
    pub update: Size,
    /// Bytes of writes kept of a domain's commits until all members are past them.
    pub updates: Size,
    /// A page that nobody has complete is had with holes from who has it so.
    pub holes: bool,
    /// For experiments: a commit waits for what every member has acknowledged, in place of standing for itself.
    pub ack: bool,
}

impl Default for GroupSection {
    fn default() -> Self {
        let (member, group) = (MemberConfig::default(), GroupConfig::default());
        let count = |count: usize| u32::try_from(count).expect("a small bound");
        Self {
            name: String::new(),
            listen: "0.0.0.0:0".into(),
            address: String::new(),
            seeds: String::new(),
            multicast: String::new(),
            role: GroupRole::default(),
            help_wait: Period(member.help_wait),
            help_wait_long: Period(member.help_wait_long),
            helps_max: count(member.helps_max),
            redial: Period(member.redial),
            queue: Size(8 << 20),
            directory: Size(group.directory_bytes_max as u64),
            helping_max: count(group.helping_max),
            asking_max: count(group.asking_max),
            rest: Period(group.rest),
            update: Size(group.update_bytes_max as u64),
            updates: Size(group.updates_bytes_max as u64),
            holes: group.holes,
            ack: group.ack,
        }
    }
}

impl GroupSection {
    /// The group; none: it is in none.
    #[must_use]
    pub fn group(&self) -> Option<&str> {
        Some(self.name.as_str()).filter(|name| !name.is_empty())
    }

    /// Whether the group finds its redirector itself.
    #[must_use]
    pub fn elects(&self) -> bool {
        let found = self.seeds().next().is_some() || !self.multicast.is_empty();
        self.group().is_some() && found
    }

    /// Where others of the group may be found.
    pub(crate) fn seeds(&self) -> impl Iterator<Item = &str> {
        super::parents::listed(&self.seeds)
    }

    /// What does not do: which key, and why.
    pub(super) fn fault(&self) -> Option<(&'static str, &'static str)> {
        let has_port = |address: &str| {
            address.rsplit_once(':').is_some_and(|(host, port)| {
                // `fe80::1:4785` may be an address without a port; at `0.0.0.0` nobody is reached.
                let bare = host.contains(':') && !(host.starts_with('[') && host.ends_with(']'));
                let anywhere = address
                    .parse::<std::net::SocketAddr>()
                    .is_ok_and(|address| address.ip().is_unspecified());
                let port = port.parse::<u16>().is_ok_and(|port| port > 0);
                !host.is_empty() && !bare && !anywhere && port
            })
        };
        let name = self.group();
        let rules = [
            (
                name.is_none_or(crate::tls::is_group_name),
                "group.name",
                "not 1 to 63 letters, digits, `-`, `_` and `.`, beginning with a letter or digit",
            ),
            (
                self.listen.parse::<SocketAddr>().is_ok(),
                "group.listen",
                "no address of this machine with a port, as `0.0.0.0:4785`, or `0.0.0.0:0` for any port",
            ),
            (
                self.address.is_empty()
                    || has_port(&self.address)
                        && self.address.len() <= larder_core::group::ADDRESS_BYTES_MAX,
                "group.address",
                "not `host:port` (`[host]:port` with IPv6), where neighbours reach this process, or longer than 256 bytes",
            ),
            (
                self.seeds().all(|seed| {
                    has_port(seed) && seed.len() <= larder_core::group::ADDRESS_BYTES_MAX
                }),
                "group.seeds",
                "not `host:port` of others of the group, with commas between",
            ),
            (self.seeds().count() <= SEEDS_MAX, "group.seeds", "more than 64"),
            (
                self.multicast.is_empty()
                    || self
                        .multicast
                        .parse::<SocketAddr>()
                        .is_ok_and(|at| at.ip().is_multicast() && at.is_ipv4() && at.port() > 0),
                "group.multicast",
                "no IPv4 multicast address with a port, as `239.255.47.85:4785`",
            ),
            (
                self.role == GroupRole::Elected || name.is_none() || self.elects(),
                "group.role",
                "set, and the group does not find its redirector itself: name group.seeds or group.multicast",
            ),
            (
                self.help_wait.0 <= self.help_wait_long.0,
                "group.help_wait",
                "above group.help_wait_long",
            ),
            (!self.help_wait.0.is_zero(), "group.help_wait", "zero: no neighbour is that fast"),
            (self.redial.0 >= Duration::from_millis(10), "group.redial", "less than 10ms"),
            (self.helps_max > 0, "group.helps_max", "zero"),
            (
                self.queue.0 >= 4 << 20,
                "group.queue",
                "less than 4MiB: the longest pages do not fit",
            ),
            (self.directory.0 >= 1 << 10, "group.directory", "less than 1KiB"),
            (self.update.0 <= 1 << 20, "group.update", "more than 1MiB"),
        ];
        rules.into_iter().find(|(holds, ..)| !holds).map(|(_, key, why)| (key, why))
    }
}
