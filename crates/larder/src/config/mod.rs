//! One TOML file for every role; every key is also a `LARDER_…` variable, and a flag (`--set`). For
//! operators they are listed in `docs/settings.md`.
//!
//! The layers, weakest first: defaults, the file, the environment, flags. A key `memory` of section
//! `[node]` is the variable `LARDER_NODE_MEMORY`; a key outside sections, such as `name`, is
//! `LARDER_NAME`. Unknown keys are errors, so that a misspelt one is noticed.

mod group;
pub(crate) mod parents;
mod units;

pub use group::{GroupRole, GroupSection};
pub use units::{DefaultRight, Names, Period, Size};

use larder_core::message::{INSTANCE_MARK, is_node_name};
use larder_core::rights::Right;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {detail}", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system's words.
        detail: String,
    },
    /// A layer is not valid: names the layer, the key and why.
    #[error("{layer}: {detail}")]
    Invalid {
        /// The file, the variable or the flag.
        layer: String,
        /// What is wrong.
        detail: String,
    },
}

/// The whole configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// This process's name, as its certificate proves it.
    pub name: String,
    /// Folder of `ca.pem`, `NAME.pem` and `NAME-key.pem`.
    pub tls_dir: PathBuf,
    /// What holds for every link.
    pub link: LinkConfig,
    /// A node: `larder node`, a mount, or the library.
    pub node: NodeSection,
    /// An origin.
    pub origin: OriginSection,
    /// A relay.
    pub relay: RelaySection,
    /// A group of neighbours.
    pub group: GroupSection,
    /// Metrics, health and status.
    pub http: HttpConfig,
    /// Logs.
    pub log: LogConfig,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            name: "node".into(),
            tls_dir: "/etc/larder".into(),
            link: LinkConfig::default(),
            node: NodeSection::default(),
            origin: OriginSection::default(),
            relay: RelaySection::default(),
            group: GroupSection::default(),
            http: HttpConfig::default(),
            log: LogConfig::default(),
        }
    }
}

/// What holds for every link of a process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LinkConfig {
    /// Limit of dialling and of the handshake.
    pub connect_limit: Period,
    /// First pause before dialling again; doubled with every failure, and jittered.
    pub back_off_min: Period,
    /// Longest pause.
    pub back_off_max: Period,
    /// A write that makes no progress for this long closes the link.
    pub write_limit: Period,
    /// A link from which nothing came for this long is closed.
    pub silence_max: Period,
    /// Bytes queued towards a peer; a child that lets more wait is closed.
    pub queue: Size,
    /// Links from children at once; more are refused.
    pub links_max: u32,
    /// Refuse to start without `ca-crl.pem`, the list of revoked certificates. Off: it is used if
    /// it is there, and may not vanish while the process runs.
    pub crl_required: bool,
}

impl Default for LinkConfig {
    fn default() -> Self {
        Self {
            connect_limit: Period(Duration::from_secs(10)),
            back_off_min: Period(Duration::from_millis(50)),
            back_off_max: Period(Duration::from_secs(5)),
            write_limit: Period(Duration::from_secs(20)),
            silence_max: Period(Duration::from_secs(10)),
            queue: Size(64 << 20),
            links_max: 10_000,
            crl_required: false,
        }
    }
}

/// Which copies go first when memory is short.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// S3-FIFO.
    #[default]
    S3Fifo,
    /// Least recently used.
    Lru,
}

/// A node's section.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeSection {
    /// Which of the processes under this name it is: letters, digits, `-`, `_`, `.`. Each has an
    /// instance of its own; empty: the one without.
    pub instance: String,
    /// The parent's address, `host:port`; of several, each with domains of its own, all with commas between.
    pub parent: String,
    /// The name that the parent's certificate must prove, or one of those with commas between; empty: any that may
    /// serve.
    pub parent_name: String,
    /// Bytes of pages kept in memory.
    pub memory: Size,
    /// Which copies go first.
    pub policy: Policy,
    /// How long a request waits for its answer.
    pub request_limit: Period,
    /// Time between two beats of a domain.
    pub beat: Period,
    /// Page numbers asked for at once by transactions; the file layer asks for more.
    pub page_run: u64,
    /// Transactions at once.
    pub transactions_max: u32,
    /// Pages that became stale here, of which is remembered with which others: when one is missed the next of those are
    /// asked for ahead. 0: none is.
    pub companions: u32,
    /// A mount frees a file that was removed while open when no node has said for this long that
    /// it still holds it. A node cut off for longer loses such files.
    pub orphan_age: Period,
    /// Bytes written to all open files of a mount that may wait for their commit, with what they
    /// cost in memory: writers wait for room beyond it, and are refused after `request_limit`.
    pub dirty_bytes: Size,
    /// Writes of a mount under way at once, and as many other operations that change something:
    /// further ones wait.
    pub writers_max: u32,
    /// What was written through a mount to a file that nobody holds open any more, and could not
    /// be committed for this long since, is lost: later it would go over what others wrote.
    pub dropped_age: Period,
    /// A mount of which the origin hears nothing for this long loses its locks on files.
    pub lock_lease: Period,
    /// How long an operation of a mount waits for a state that may be served, where stale ones are
    /// refused. Enough for a round trip on any line, and nobody takes it for a hang.
    pub refuse_after: Period,
}

impl Default for NodeSection {
    fn default() -> Self {
        Self {
            instance: String::new(),
            parent: "localhost:4780".into(),
            parent_name: String::new(),
            memory: Size(1 << 30),
            policy: Policy::default(),
            request_limit: Period(Duration::from_secs(30)),
            beat: Period(Duration::from_secs(1)),
            page_run: 256,
            transactions_max: 1024,
            companions: 1 << 14,
            orphan_age: Period(Duration::from_secs(86_400)),
            dirty_bytes: Size(128 << 20),
            writers_max: 1024,
            dropped_age: Period(Duration::from_secs(300)),
            lock_lease: Period(Duration::from_secs(30)),
            refuse_after: Period(Duration::from_secs(1)),
        }
    }
}

/// An origin's section.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OriginSection {
    /// Where links are accepted.
    pub listen: String,
    /// Folder of the store; one folder per domain in it.
    pub data: PathBuf,
    /// Make the store: for the first start alone, refused where one is. Off: a folder without a
    /// store is refused, since its disk may not be mounted.
    pub create: bool,
    /// Order domains of the store; more than it has are made, and none is ever left out.
    pub domains: u32,
    /// Serve children that have seen commits this store does not have, and be heard by other origins that have: it was
    /// restored from an old copy, and that is known and wanted.
    pub accept_fork: bool,
    /// Bytes of pages kept in memory.
    pub memory: Size,
    /// Bytes of memory for the page engines: their caches, and what they have not written out.
    pub engine_memory: Size,
    /// How long after a confirmed beat a child may call its state current.
    pub lease: Period,
    /// What everybody may do with a volume whose rights say nothing of him.
    pub default_rights: DefaultRight,
    /// Names, and beginnings of names with `*`, of certificates whose holders may make volumes and
    /// do everything with each. Where `default_rights` is `admin` everybody may.
    pub admins: Names,
    /// Other origins, with whose domains there may be transactions over both: `name=host:port`, with commas between.
    /// Each is to list this one, too.
    pub peers: String,
}

impl Default for OriginSection {
    fn default() -> Self {
        Self {
            listen: "0.0.0.0:4780".into(),
            data: "/var/lib/larder".into(),
            create: false,
            domains: 1,
            accept_fork: false,
            memory: Size(1 << 30),
            engine_memory: Size(192 << 20),
            lease: Period(Duration::from_secs(10)),
            default_rights: DefaultRight(Right::Admin),
            admins: Names::default(),
            peers: String::new(),
        }
    }
}

/// A relay's section.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RelaySection {
    /// Where links are accepted.
    pub listen: String,
    /// The parent's address, `host:port`; of several, each with domains of its own, all with commas between.
    pub parent: String,
    /// The name that the parent's certificate must prove, or one of those with commas between; empty: any that may
    /// serve.
    pub parent_name: String,
    /// Bytes of recent changes kept for each domain, for children that come back.
    pub recent_memory: Size,
}

impl Default for RelaySection {
    fn default() -> Self {
        Self {
            listen: "0.0.0.0:4780".into(),
            parent: "localhost:4781".into(),
            parent_name: String::new(),
            recent_memory: Size(16 << 20),
        }
    }
}

/// The HTTP endpoint's section.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpConfig {
    /// Where `/metrics`, `/healthz`, `/readyz` and `/status` are served; empty: nowhere.
    pub listen: String,
}

/// The log's section.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// What is logged: `info`, or `larder=debug,info`; empty: what suits the command, `info` for
    /// whoever serves.
    pub filter: String,
    /// Lines of JSON instead of text.
    pub json: bool,
    /// The file that lines are appended to; empty: standard error, or for a mount in the background
    /// a file of its own.
    pub file: PathBuf,
}

/// What the relay beside a node is called.
const BESIDE: &str = "redirector";
/// What its name ends with where it only looks whether its parent serves it (decision 0042).
const LOOK: &str = "-look";

/// What a node is started with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeConfig {
    /// This node's name, as its certificate proves it.
    pub name: String,
    /// Folder of `ca.pem`, `NAME.pem` and `NAME-key.pem`.
    pub tls_dir: PathBuf,
    /// Its parent, memory and limits.
    pub node: NodeSection,
    /// The group it is a member of, if it is.
    pub group: GroupSection,
    /// What holds for its link.
    pub link: LinkConfig,
}

impl NodeConfig {
    /// The usual configuration, for a name, its certificate's folder and a parent.
    #[must_use]
    pub fn new(name: &str, tls_dir: impl Into<PathBuf>, parent: &str) -> Self {
        Self {
            name: name.into(),
            tls_dir: tls_dir.into(),
            node: NodeSection { parent: parent.into(), ..NodeSection::default() },
            group: GroupSection::default(),
            link: LinkConfig::default(),
        }
    }

    /// For a process that does one task and ends: unless an instance was chosen it gets one of
    /// its own, so that it runs beside others of the name. It is in no group, which would hear of it
    /// only to see it go.
    #[must_use]
    pub fn for_task(mut self, task: &str) -> Self {
        self.group.name.clear();
        self.for_member_task(task)
    }

    /// The same of one that runs for long enough to be a member of its group, if it is given one.
    #[must_use]
    pub fn for_member_task(mut self, task: &str) -> Self {
        if self.node.instance.is_empty() {
            self.node.instance = format!("{task}-{:016x}", crate::clock::random_u64());
        }
        self
    }

    /// The relay beside the node's cache, which runs while the node is its group's redirector.
    pub(crate) fn redirector(&self) -> RelayConfig {
        let beside = match self.node.instance.as_str() {
            "" => BESIDE.to_owned(),
            instance => format!("{instance}-{BESIDE}"),
        };
        let relay = RelaySection {
            parent: self.node.parent.clone(),
            parent_name: self.node.parent_name.clone(),
            ..RelaySection::default()
        };
        RelayConfig {
            name: format!("{}{INSTANCE_MARK}{beside}", self.name),
            tls_dir: self.tls_dir.clone(),
            relay,
            group: self.group.clone(),
            link: self.link.clone(),
        }
    }

    /// The name under which it is looked whether the parent of [`Self::redirector`] serves it.
    pub(crate) fn look_name(&self) -> String {
        format!("{}{LOOK}", self.redirector().name)
    }

    /// What the node is called: its name, or that, a slash and its instance.
    #[must_use]
    pub fn full_name(&self) -> String {
        if self.node.instance.is_empty() {
            return self.name.clone();
        }
        format!("{}{INSTANCE_MARK}{}", self.name, self.node.instance)
    }
}

/// What an origin is started with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OriginConfig {
    /// Its name, as its certificate proves it.
    pub name: String,
    /// Folder of its certificate.
    pub tls_dir: PathBuf,
    /// Its store, address and limits.
    pub origin: OriginSection,
    /// What holds for its links.
    pub link: LinkConfig,
}

/// What a relay is started with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RelayConfig {
    /// Its name, as its certificate proves it.
    pub name: String,
    /// Folder of its certificate.
    pub tls_dir: PathBuf,
    /// Its parent and address.
    pub relay: RelaySection,
    /// The group it is the redirector of, if it is.
    pub group: GroupSection,
    /// What holds for its links.
    pub link: LinkConfig,
}

impl Config {
    /// Reads the file, if one is named, and lays the environment and then `flags` over it. A flag
    /// is a key with its section (`node.memory`) and its value as text.
    pub fn load(
        file: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let Some(path) = file else {
            return Self::from_text("", "", environment, flags);
        };
        let text = std::fs::read_to_string(path)
            .map_err(|e| ConfigError::File { path: path.to_owned(), detail: e.to_string() })?;
        Self::from_text(&text, &path.display().to_string(), environment, flags)
    }

    /// The same of a file's text. `layer` is what its errors call it.
    pub fn from_text(
        text: &str,
        layer: &str,
        environment: impl IntoIterator<Item = (String, String)>,
        flags: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let mut table: toml::Table =
            text.parse().map_err(|e: toml::de::Error| invalid(layer, &e.to_string()))?;
        parse(&table, layer)?;
        let keys = keys();
        for (variable, value) in environment {
            let Some(name) = variable.strip_prefix("LARDER_") else {
                continue;
            };
            let key = keys.iter().find(|key| key.replace('.', "_").eq_ignore_ascii_case(name));
            // Other tools may have variables of that prefix; only ours are looked at.
            if let Some(key) = key {
                set(&mut table, key, &value, &variable)?;
            }
        }
        for (key, value) in flags {
            let layer = format!("--{key}");
            if !keys.contains(&key) {
                return Err(invalid(&layer, "there is no such key"));
            }
            set(&mut table, &key, &value, &layer)?;
        }
        let config = parse(&table, "configuration")?;
        config.validate()?;
        Ok(config)
    }

    /// The configuration as a file that could be read again.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("the structures hold plain values only")
    }

    /// For a node.
    #[must_use]
    pub fn node(&self) -> NodeConfig {
        NodeConfig {
            name: self.name.clone(),
            tls_dir: self.tls_dir.clone(),
            node: self.node.clone(),
            group: self.group.clone(),
            link: self.link.clone(),
        }
    }

    /// For an origin.
    #[must_use]
    pub fn origin(&self) -> OriginConfig {
        OriginConfig {
            name: self.name.clone(),
            tls_dir: self.tls_dir.clone(),
            origin: self.origin.clone(),
            link: self.link.clone(),
        }
    }

    /// For a relay.
    #[must_use]
    pub fn relay(&self) -> RelayConfig {
        RelayConfig {
            name: self.name.clone(),
            tls_dir: self.tls_dir.clone(),
            relay: self.relay.clone(),
            group: self.group.clone(),
            link: self.link.clone(),
        }
    }

    fn validate(&self) -> Result<(), ConfigError> {
        let rules = [
            (!self.name.is_empty(), "name", "it is empty"),
            (
                !self.name.contains(INSTANCE_MARK),
                "name",
                "with `/`: which of its processes it is, is told by node.instance",
            ),
            (
                is_node_name(&self.node().full_name()),
                "node.instance",
                "not made of letters, digits, `-`, `_` and `.`, or too long",
            ),
            (self.node.memory.0 >= 1 << 20, "node.memory", "less than 1MiB"),
            (self.origin.memory.0 >= 1 << 20, "origin.memory", "less than 1MiB"),
            (self.origin.engine_memory.0 >= 6 << 20, "origin.engine_memory", "less than 6MiB"),
            (self.relay.recent_memory.0 >= 1 << 20, "relay.recent_memory", "less than 1MiB"),
            ((1..=64).contains(&self.origin.domains), "origin.domains", "not from 1 to 64"),
            ((1..=1 << 20).contains(&self.node.page_run), "node.page_run", "not from 1 to 1048576"),
            (self.node.transactions_max > 0, "node.transactions_max", "zero"),
            (self.node.companions <= 1 << 20, "node.companions", "above 1048576"),
            (
                self.node.dirty_bytes.0 >= 8 << 20,
                "node.dirty_bytes",
                "less than 8MiB: what one file may have waiting does not fit",
            ),
            (
                (1..=1 << 20).contains(&self.node.writers_max),
                "node.writers_max",
                "not from 1 to 1048576",
            ),
            (
                self.link.queue.0 >= 4 << 20,
                "link.queue",
                "less than 4MiB: the windows of a link do not fit",
            ),
            (
                self.link.back_off_min <= self.link.back_off_max,
                "link.back_off_min",
                "above link.back_off_max",
            ),
            (
                self.node.beat < self.link.silence_max,
                "node.beat",
                "not below link.silence_max: a live link would be called silent",
            ),
        ];
        let periods = [
            (self.link.connect_limit, "link.connect_limit"),
            (self.link.back_off_min, "link.back_off_min"),
            (self.link.write_limit, "link.write_limit"),
            (self.link.silence_max, "link.silence_max"),
            (self.node.request_limit, "node.request_limit"),
            (self.node.beat, "node.beat"),
            (self.node.orphan_age, "node.orphan_age"),
            (self.node.dropped_age, "node.dropped_age"),
            (self.node.lock_lease, "node.lock_lease"),
            (self.node.refuse_after, "node.refuse_after"),
            (self.origin.lease, "origin.lease"),
        ];
        for (holds, key, why) in rules {
            if !holds {
                return Err(invalid(key, why));
            }
        }
        if let Some((key, why)) = self.group.fault() {
            return Err(invalid(key, why));
        }
        self.check_parents()?;
        self.check_peers()?;
        if self.group.elects() {
            let node = self.node();
            if !is_node_name(&node.look_name()) {
                return Err(invalid("node.instance", "too long for the relay beside the node"));
            }
            let own = self.node.instance.strip_suffix(LOOK).unwrap_or(&self.node.instance);
            if own == BESIDE || own.ends_with(&format!("-{BESIDE}")) {
                return Err(invalid("node.instance", "the relay beside a node is called so"));
            }
            let parents =
                [(&self.node.parent, "node.parent"), (&self.relay.parent, "relay.parent")];
            for (parent, key) in parents {
                if self.group.seeds().any(|seed| seed == parent) {
                    let why = "one of group.seeds: the group's redirector dials it, so that it is not in the group";
                    return Err(invalid(key, why));
                }
            }
        }
        for (period, key) in periods {
            if period.0.is_zero() {
                return Err(invalid(key, "zero: every wait needs a limit above it"));
            }
        }
        Ok(())
    }
}

fn invalid(layer: &str, detail: &str) -> ConfigError {
    ConfigError::Invalid { layer: layer.to_owned(), detail: detail.to_owned() }
}

fn parse(table: &toml::Table, layer: &str) -> Result<Config, ConfigError> {
    Config::deserialize(table.clone()).map_err(|e| invalid(layer, &e.to_string()))
}

/// All keys, with their sections.
fn keys() -> Vec<String> {
    let table =
        toml::Table::try_from(Config::default()).expect("the structures hold plain values only");
    let mut keys = Vec::new();
    for (name, value) in table {
        match value {
            toml::Value::Table(section) => {
                keys.extend(section.keys().map(|key| format!("{name}.{key}")));
            }
            _ => keys.push(name),
        }
    }
    keys
}

/// Sets a key from text, and tries the result at once, so that the error names the layer.
fn set(table: &mut toml::Table, key: &str, text: &str, layer: &str) -> Result<(), ConfigError> {
    // As text first: the name `007` is not the number 7.
    let candidates = [
        Some(toml::Value::String(text.to_owned())),
        text.parse::<i64>().ok().map(toml::Value::Integer),
        text.parse::<bool>().ok().map(toml::Value::Boolean),
    ];
    let mut error = None;
    for value in candidates.into_iter().flatten() {
        let mut tried = table.clone();
        let target = match key.split_once('.') {
            Some((section, key)) => tried
                .entry(section)
                .or_insert_with(|| toml::Value::Table(toml::Table::new()))
                .as_table_mut()
                .map(|section| (section, key)),
            None => Some((&mut tried, key)),
        };
        let (section, key) =
            target.ok_or_else(|| invalid(layer, "its section is no table in the file"))?;
        section.insert(key.to_owned(), value);
        match parse(&tried, layer) {
            Ok(_) => {
                *table = tried;
                return Ok(());
            }
            Err(e) => error = error.or(Some(e)),
        }
    }
    Err(error.expect("text is always tried"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
        list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn layers_cover_each_other_in_their_order() {
        let path = std::env::temp_dir().join(format!("larder-config-{}.toml", std::process::id()));
        std::fs::write(
            &path,
            "name = \"a\"\n[node]\nmemory = \"2GiB\"\nparent = \"x:1\"\npolicy = \"lru\"\n",
        )
        .expect("writes");
        let environment = pairs(&[
            ("LARDER_NODE_PARENT", "y:2"),
            ("LARDER_ORIGIN_ACCEPT_FORK", "true"),
            ("LARDER_ORIGIN_DEFAULT_RIGHTS", "read"),
            ("LARDER_ORIGIN_ADMINS", "ops, render-*"),
            ("LARDER_NAME", "42"),
            ("LARDER_OTHER", "ignored"),
            ("PATH", "/bin"),
        ]);
        let flags = pairs(&[("node.parent", "z:3"), ("link.silence_max", "3s")]);
        let config = Config::load(Some(&path), environment, flags).expect("valid");
        assert_eq!(config.name, "42", "a name of digits is still a name");
        assert_eq!(config.node.memory, Size(2 << 30));
        assert_eq!(config.node.policy, Policy::Lru);
        assert_eq!(config.node.parent, "z:3");
        assert!(config.origin.accept_fork);
        assert_eq!(config.origin.default_rights, DefaultRight(Right::Read));
        assert_eq!(config.origin.admins.0, ["ops", "render-*"]);
        assert_eq!(config.link.silence_max.0, Duration::from_secs(3));
        std::fs::write(&path, config.to_toml()).expect("writes");
        let again = Config::load(Some(&path), [], []).expect("valid");
        assert_eq!(again, config);
        std::fs::remove_file(&path).expect("removes");
    }

    #[test]
    fn mistakes_name_their_layer() {
        let flag = |key: &str, value: &str| {
            Config::load(None, [], pairs(&[(key, value)])).expect_err("invalid").to_string()
        };
        assert!(flag("node.memory", "lots").contains("--node.memory"));
        assert!(flag("node.memory", "lots").contains("`lots` is no size"));
        assert!(flag("node.memroy", "1GiB").contains("--node.memroy: there is no such key"));
        assert!(flag("", "1GiB").contains("--: there is no such key"));
        assert!(flag("node.page_run", "-1").contains("--node.page_run"));
        assert!(flag("origin.domains", "0").contains("origin.domains"));
        assert!(flag("node.beat", "0").contains("node.beat"));
        assert!(flag("node.dirty_bytes", "1MiB").contains("less than 8MiB"));
        assert!(flag("node.writers_max", "0").contains("node.writers_max"));
        assert!(flag("node.dropped_age", "0").contains("node.dropped_age"));
        assert!(flag("origin.default_rights", "all").contains("none, read, write or admin"));
        assert!(flag("origin.admins", "ops,a=b").contains("a=b"));
        let environment = pairs(&[("LARDER_NODE_MEMORY", "lots")]);
        let text = Config::load(None, environment, []).expect_err("invalid").to_string();
        assert!(text.contains("LARDER_NODE_MEMORY"), "{text}");
    }

    /// A key that operators are not told of is of no use to them.
    #[test]
    fn every_key_stands_in_the_page_of_settings() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");
        let page = std::fs::read_to_string(page).expect("the page is there");
        let left_out: Vec<String> =
            keys().into_iter().filter(|key| !page.contains(&format!("`{key}`"))).collect();
        assert!(left_out.is_empty(), "docs/settings.md does not name {left_out:?}");
    }

    #[test]
    fn mistakes_of_a_group_name_their_key() {
        let text = |key: &str, value: &str| {
            Config::load(None, [], pairs(&[(key, value)])).expect_err("invalid").to_string()
        };
        for (key, value) in [
            ("group.name", "the LAN"),
            ("group.listen", "somewhere"),
            ("group.address", "host"),
            ("group.address", "host:0"),
            ("group.address", "0.0.0.0:4785"),
            ("group.address", "[::]:4785"),
            ("group.address", "fe80::1:4785"),
            ("group.help_wait", "9s"),
            ("group.help_wait", "0"),
            ("group.redial", "1ms"),
            ("group.queue", "1MiB"),
            ("node.companions", "1048577"),
        ] {
            assert!(text(key, value).contains(key), "{}", text(key, value));
        }
        let flags = pairs(&[("group.name", "site1"), ("group.address", "[fe80::1]:4785")]);
        let config = Config::load(None, [], flags).expect("valid");
        assert_eq!(config.node().group.group(), Some("site1"));
    }

    /// Bug 110: flags and variables were tried as numbers first. The administrator `007` of the
    /// environment was `7`, who then might do everything, while `007` was refused.
    #[test]
    fn a_name_of_digits_is_the_same_in_every_layer() {
        let flags = pairs(&[("origin.admins", "007"), ("node.parent_name", "+1")]);
        let config = Config::load(None, [], flags).expect("valid");
        assert_eq!(config.origin.admins.0, ["007"]);
        assert_eq!(config.node.parent_name, "+1");
        let environment =
            pairs(&[("LARDER_ORIGIN_ADMINS", "0042"), ("LARDER_ORIGIN_DOMAINS", "4")]);
        let config = Config::load(None, environment, []).expect("valid");
        assert_eq!(
            (&*config.origin.admins.0, config.origin.domains),
            (&["0042".to_owned()][..], 4)
        );
    }

    /// Bug 111: the name `alice/mount` was taken, and read as the process `mount` of `alice`, whose
    /// certificate would have been looked for in a folder `alice`.
    #[test]
    fn a_name_does_not_say_which_process_it_is() {
        let named = |name: &str| Config::load(None, [], pairs(&[("name", name)]));
        let text = named("alice/mount").expect_err("a name and an instance").to_string();
        assert!(text.contains("name") && text.contains("node.instance"), "{text}");
        assert_eq!(named("alice").expect("a name").node().full_name(), "alice");
    }
}
