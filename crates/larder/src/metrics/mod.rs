//! Figures of a process, for Prometheus and for `larder status`.

mod asked;
mod group;
mod kind;
mod mount;

pub use asked::{Asked, AskedCounts};
pub(crate) use group::GroupFigures;
pub use group::{PeerFetch, Sources};
pub use kind::Kind;

use crate::fs::Kept;
use larder_core::cache::CompanionCounts;
use larder_core::id::{DomainId, Stamp};
use larder_core::message::{Lane, Message, PageAnswer};
use mount::MountFigures;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Which way a message went, as seen from here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// To a peer.
    Sent,
    /// From a peer.
    Received,
}

/// Which side of this process a link is on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Side {
    /// To the parent.
    Up,
    /// From a child.
    Down,
    /// To a neighbour, whoever dialled.
    Neighbour,
    /// Between origins, whoever dialled.
    Peer,
}

/// How a transaction ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ending {
    /// Committed, or validated, at the origin.
    Committed,
    /// Only read, and committed without a message.
    Local,
    /// Met a conflict.
    Conflict,
    /// Refused for another reason.
    Refused,
    /// Its outcome is not known yet.
    Unknown,
}

impl Ending {
    /// In the order of their numbers.
    const ALL: [Self; 5] =
        [Self::Committed, Self::Local, Self::Conflict, Self::Refused, Self::Unknown];

    fn name(self) -> &'static str {
        match self {
            Self::Committed => "committed",
            Self::Local => "local",
            Self::Conflict => "conflict",
            Self::Refused => "refused",
            Self::Unknown => "unknown",
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct MessageLabels {
    kind: &'static str,
    lane: &'static str,
    direction: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct Label {
    what: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct DomainLabels {
    domain: String,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct StoreLabels {
    domain: String,
    part: &'static str,
}

/// A part of the memory that a domain takes at its origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryPart {
    /// Pages that are in the page engine as they are in memory.
    Clean,
    /// Pages with changes that are not installed yet.
    Uninstalled,
    /// The ring of recent commits.
    Recent,
    /// The page engine's cache of blocks.
    EngineCache,
    /// The page engine's tables of what is not in its files yet.
    EngineTables,
}

/// A part of a domain's store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StorePart {
    /// The commit log.
    Log,
    /// The page engine.
    Pages,
}

/// Messages and bytes of one kind and direction.
struct Tally {
    messages: Counter,
    bytes: Counter,
}

/// The figures of one process. Counting costs an atomic addition.
pub struct Metrics {
    registry: Registry,
    /// By kind; sent, then received.
    tallies: [Vec<Tally>; 2],
    /// Sent, then received.
    wire_bytes: [Counter; 2],
    links: Family<Label, Gauge>,
    connects: Family<Label, Counter>,
    /// Hits, then misses.
    reads: [Counter; 2],
    /// By ending.
    transactions: [Counter; 5],
    commit_seconds: Histogram,
    fetch_seconds: Histogram,
    through: Family<DomainLabels, Gauge<u64, AtomicU64>>,
    age_seconds: Family<DomainLabels, Gauge<f64, AtomicU64>>,
    pages_received: Counter,
    pages_unchanged: Counter,
    /// The states from which this process resumed last.
    resumed: Mutex<BTreeMap<DomainId, Stamp>>,
    append_records: Counter,
    append_seconds: Histogram,
    install_pages: Counter,
    installs_refused: Counter,
    install_seconds: Histogram,
    loads: Counter,
    store_bytes: Family<StoreLabels, Gauge<u64, AtomicU64>>,
    memory_bytes: Family<StoreLabels, Gauge<u64, AtomicU64>>,
    queued_bytes: Gauge<u64, AtomicU64>,
    /// What copies take, and what they may.
    cache_bytes: [Gauge<u64, AtomicU64>; 2],
    directory_pages: Family<DomainLabels, Gauge<u64, AtomicU64>>,
    directory_bytes: Family<DomainLabels, Gauge<u64, AtomicU64>>,
    lag_stamps: Family<DomainLabels, Gauge<u64, AtomicU64>>,
    in_doubt: Family<DomainLabels, Gauge<f64, AtomicU64>>,
    removing_volumes: Family<DomainLabels, Gauge<u64, AtomicU64>>,
    removing_pages: Family<DomainLabels, Gauge<u64, AtomicU64>>,
    domains_failed: Gauge,
    lost_bytes: Counter,
    certificate_expires: Family<Label, Gauge>,
    pages_unreadable: Family<DomainLabels, Gauge<u64, AtomicU64>>,
    apart_bytes: Family<DomainLabels, Gauge<u64, AtomicU64>>,
    companions: [Counter; 2],
    asked: AskedCounts,
    mount: MountFigures,
    group: GroupFigures,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// 20 µs to 10 s, doubling: from a hop on loopback to a very slow line.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(20e-6, 2.0, 20))
}

impl Metrics {
    /// All at zero.
    #[must_use]
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("larder");
        let tallies = tallies(&mut registry);
        let r = &mut registry;
        let wire = Family::<Label, Counter>::default();
        let wire_bytes = ["sent", "received"].map(|what| wire.get_or_create_owned(&Label { what }));
        let help = "Bytes on sockets, before encryption";
        r.register_with_unit("wire", help, Unit::Bytes, wire);
        let mut metrics = Self {
            tallies,
            wire_bytes,
            reads: counters(r, "reads", "Reads of transactions: hits and misses", ["hit", "miss"]),
            transactions: counters(
                r,
                "transactions",
                "Transactions, by their end",
                Ending::ALL.map(Ending::name),
            ),
            registry: Registry::default(),
            links: Family::default(),
            connects: Family::default(),
            commit_seconds: seconds(),
            fetch_seconds: seconds(),
            through: Family::default(),
            age_seconds: Family::default(),
            pages_received: Counter::default(),
            pages_unchanged: Counter::default(),
            resumed: Mutex::default(),
            append_records: Counter::default(),
            append_seconds: seconds(),
            install_pages: Counter::default(),
            installs_refused: Counter::default(),
            install_seconds: seconds(),
            loads: Counter::default(),
            store_bytes: Family::default(),
            memory_bytes: Family::default(),
            queued_bytes: Gauge::default(),
            cache_bytes: Default::default(),
            directory_pages: Family::default(),
            directory_bytes: Family::default(),
            lag_stamps: Family::default(),
            in_doubt: Family::default(),
            removing_volumes: Family::default(),
            removing_pages: Family::default(),
            domains_failed: Gauge::default(),
            lost_bytes: Counter::default(),
            certificate_expires: Family::default(),
            pages_unreadable: Family::default(),
            apart_bytes: Family::default(),
            companions: counters(
                r,
                "companions",
                "Pages asked for ahead because they became stale with one that was missed, and those of them that were \
                 known to have been read when they changed again",
                ["asked", "read"],
            ),
            asked: AskedCounts(counters(
                r,
                "kernel_requests",
                "What the kernel asked a mount for: what its own caches answer is not among it",
                Asked::ALL.map(Asked::name),
            )),
            mount: MountFigures::new(r),
            group: GroupFigures::new(r),
        };
        metrics.register(&mut registry);
        metrics.registry = registry;
        metrics
    }

    fn register(&self, registry: &mut Registry) {
        let r = registry;
        r.register("links", "Links that stand", self.links.clone());
        r.register("connects", "Links opened and failed", self.connects.clone());
        let through = self.through.clone();
        r.register("valid_through", "Stamp up to which all changes are applied", through);
        r.register_with_unit(
            "state_age",
            "Age of a domain's state",
            Unit::Seconds,
            self.age_seconds.clone(),
        );
        let pages = self.pages_received.clone();
        r.register("pages_received", "Pages whose bytes came here", pages);
        let help = "Pages received that had not changed since the last resume: never had here, \
                    evicted, or fetched again for nothing";
        r.register("pages_unchanged", help, self.pages_unchanged.clone());
        r.register("append_records", "Log records appended", self.append_records.clone());
        r.register("install_pages", "Pages installed", self.install_pages.clone());
        let help = "Installs that the page engine refused, most of them for lack of room";
        r.register("installs_refused", help, self.installs_refused.clone());
        r.register("loads", "Loads from the page engine", self.loads.clone());
        r.register_with_unit("store", "Bytes of files", Unit::Bytes, self.store_bytes.clone());
        let memory = self.memory_bytes.clone();
        r.register_with_unit("memory", "What a domain takes in memory", Unit::Bytes, memory);
        r.register_with_unit(
            "queued",
            "Bytes that wait for peers to take them",
            Unit::Bytes,
            self.queued_bytes.clone(),
        );
        let [used, most] = self.cache_bytes.clone();
        let help = "Memory of the page copies in a node's cache, their overhead included";
        r.register_with_unit("cache", help, Unit::Bytes, used);
        let help = "Memory that page copies may take (node.memory)";
        r.register_with_unit("cache_max", help, Unit::Bytes, most);
        let help = "For how long a transaction over several domains waits for its decision";
        r.register_with_unit("in_doubt", help, Unit::Seconds, self.in_doubt.clone());
        let removing = self.removing_volumes.clone();
        r.register("removing_volumes", "Deleted volumes of which pages are left", removing);
        let removing = self.removing_pages.clone();
        r.register("removing_pages", "Pages left of deleted volumes, about", removing);
        let pages = self.directory_pages.clone();
        r.register("directory_pages", "Pages registered for children", pages);
        r.register_with_unit(
            "directory",
            "Memory of the pages registered for children",
            Unit::Bytes,
            self.directory_bytes.clone(),
        );
        let lag = self.lag_stamps.clone();
        r.register("lag_stamps", "Commits not sent yet to the child furthest behind", lag);
        let failed = self.domains_failed.clone();
        r.register("domains_failed", "Domains whose store failed", failed);
        let help = "Bytes written to files that could not be committed, and are lost";
        r.register_with_unit("lost", help, Unit::Bytes, self.lost_bytes.clone());
        let help =
            "Lines of this process's log that did not fit into its queue, or could not be written";
        r.register("log_lines_dropped", help, crate::log::dropped().clone());
        let help = "Time until the process's own certificate, and its authority, expire";
        let expires = self.certificate_expires.clone();
        r.register_with_unit("certificate_expires", help, Unit::Seconds, expires);
        let pages = self.pages_unreadable.clone();
        r.register("pages_unreadable", "Changed pages that cannot be read from the store", pages);
        r.register_with_unit(
            "apart",
            "Changes kept apart from pages that cannot be read",
            Unit::Bytes,
            self.apart_bytes.clone(),
        );
        for (name, help, histogram) in [
            ("commit", "Commits, as their user waits", &self.commit_seconds),
            ("fetch", "Fetches, as their user waits", &self.fetch_seconds),
            ("append", "Appends to the log with their sync", &self.append_seconds),
            ("install", "Installs into the page engine", &self.install_seconds),
        ] {
            r.register_with_unit(name, help, Unit::Seconds, histogram.clone());
        }
    }

    /// All figures in the text format of OpenMetrics.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)
            .expect("writing to a string does not fail");
        text
    }

    /// Counts a message and its encoded size.
    pub fn message(&self, direction: Direction, message: &Message, bytes: u64) {
        let tally = &self.tallies[direction as usize][Kind::of(message) as usize];
        tally.messages.inc();
        tally.bytes.inc_by(bytes);
        match (direction, message) {
            (Direction::Sent, Message::Resume { domain, through: Some(through), .. }) => {
                self.resumed().insert(*domain, *through);
            }
            (Direction::Received, Message::Pages { domain, pages, .. }) => {
                self.pages(*domain, pages);
            }
            _ => {}
        }
    }

    fn pages(&self, domain: DomainId, pages: &[PageAnswer]) {
        let with_bytes = || pages.iter().filter(|page| page.body.image().is_some());
        self.pages_received.inc_by(with_bytes().count() as u64);
        if let Some(&resumed) = self.resumed().get(&domain) {
            let unchanged = with_bytes().filter(|page| page.version <= resumed);
            self.pages_unchanged.inc_by(unchanged.count() as u64);
        }
    }

    fn resumed(&self) -> MutexGuard<'_, BTreeMap<DomainId, Stamp>> {
        self.resumed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Messages of a kind and their bytes so far.
    #[must_use]
    pub fn messages(&self, direction: Direction, kind: Kind) -> (u64, u64) {
        let tally = &self.tallies[direction as usize][kind as usize];
        (tally.messages.get(), tally.bytes.get())
    }

    /// Those of the process's group.
    pub(crate) fn group(&self) -> &GroupFigures {
        &self.group
    }

    /// How long pages of neighbours took.
    #[must_use]
    pub fn peer_fetches(&self) -> PeerFetch {
        self.group.peer_fetches()
    }

    /// Counts bytes on a socket.
    pub fn wire(&self, direction: Direction, bytes: u64) {
        self.wire_bytes[direction as usize].inc_by(bytes);
    }

    /// A link was opened (`true`) or is gone.
    pub fn link(&self, side: Side, opened: bool) {
        let what = side_name(side);
        let gauge = self.links.get_or_create_owned(&Label { what });
        if opened {
            gauge.inc();
            self.connects.get_or_create(&Label { what }).inc();
        } else {
            gauge.dec();
        }
    }

    /// A link could not be opened.
    pub fn link_failed(&self, side: Side) {
        let what = match side {
            Side::Up => "up_failed",
            Side::Down => "down_failed",
            Side::Neighbour => "neighbour_failed",
            Side::Peer => "peer_failed",
        };
        self.connects.get_or_create(&Label { what }).inc();
    }

    /// Links of a side that stand.
    #[must_use]
    pub fn links(&self, side: Side) -> i64 {
        let what = side_name(side);
        self.links.get_or_create(&Label { what }).get()
    }

    /// A transaction ended, after this many hits and misses.
    pub fn transaction(&self, ending: Ending, hits: u64, misses: u64) {
        let [hit, miss] = &self.reads;
        hit.inc_by(hits);
        miss.inc_by(misses);
        self.transactions[ending as usize].inc();
    }

    /// A commit took this long.
    pub fn commit(&self, took: Duration) {
        self.commit_seconds.observe(took.as_secs_f64());
    }

    /// A fetch took this long.
    pub fn fetch(&self, took: Duration) {
        self.fetch_seconds.observe(took.as_secs_f64());
    }

    /// A domain's state: its valid-through, and its age if it was ever confirmed.
    pub fn domain(&self, domain: DomainId, through: Stamp, age: Option<Duration>) {
        let labels = DomainLabels { domain: format!("{:016x}", domain.0) };
        self.through.get_or_create(&labels).set(through.0);
        if let Some(age) = age {
            self.age_seconds.get_or_create(&labels).set(age.as_secs_f64());
        }
    }

    /// An append of so many records took this long.
    pub fn append(&self, records: usize, took: Duration) {
        self.append_records.inc_by(records as u64);
        self.append_seconds.observe(took.as_secs_f64());
    }

    /// An install of so many pages took this long.
    pub fn install(&self, pages: usize, took: Duration) {
        self.install_pages.inc_by(pages as u64);
        self.install_seconds.observe(took.as_secs_f64());
    }

    /// An install was refused, or failed.
    pub fn install_refused(&self) {
        self.installs_refused.inc();
    }

    /// A load from the page engine.
    pub fn load(&self) {
        self.loads.inc();
    }

    /// A part of a domain's store takes so many bytes.
    pub fn store(&self, domain: DomainId, part: StorePart, bytes: u64) {
        self.store_bytes.get_or_create(&store_labels(domain, part)).set(bytes);
    }

    /// A part of what a domain takes in memory.
    pub fn memory(&self, domain: DomainId, part: MemoryPart, bytes: u64) {
        let part = match part {
            MemoryPart::Clean => "clean",
            MemoryPart::Uninstalled => "uninstalled",
            MemoryPart::Recent => "recent",
            MemoryPart::EngineCache => "engine_cache",
            MemoryPart::EngineTables => "engine_tables",
        };
        let labels = StoreLabels { domain: format!("{:016x}", domain.0), part };
        self.memory_bytes.get_or_create(&labels).set(bytes);
    }

    /// What a part of a domain's store takes; none: not known yet.
    #[must_use]
    pub fn store_bytes(&self, domain: DomainId, part: StorePart) -> Option<u64> {
        let gauge = self.store_bytes.get(&store_labels(domain, part))?;
        Some(gauge.get())
    }

    /// Bytes that copies in the cache take, and that they may.
    pub fn cache(&self, used: u64, most: u64) {
        for (gauge, bytes) in self.cache_bytes.iter().zip([used, most]) {
            gauge.set(bytes);
        }
    }

    /// What came of asking ahead for pages that became stale together, since the process started.
    pub(crate) fn companions(&self, counts: CompanionCounts) {
        for (counter, count) in self.companions.iter().zip([counts.asked, counts.read]) {
            counter.inc_by(count.saturating_sub(counter.get()));
        }
    }

    /// Bytes that wait for peers to take them.
    pub fn queued(&self, bytes: u64) {
        self.queued_bytes.set(bytes);
    }

    /// For how long a transaction waits to be decided, of which a part is ready in a domain; zero: none does.
    pub fn in_doubt(&self, domain: DomainId, waits: Duration) {
        let labels = DomainLabels { domain: format!("{:016x}", domain.0) };
        self.in_doubt.get_or_create(&labels).set(waits.as_secs_f64());
    }

    /// What a domain has still to remove of deleted volumes.
    pub fn removing(&self, domain: DomainId, volumes: u64, pages: u64) {
        let labels = DomainLabels { domain: format!("{:016x}", domain.0) };
        self.removing_volumes.get_or_create(&labels).set(volumes);
        self.removing_pages.get_or_create(&labels).set(pages);
    }

    /// A domain's directory, and by how many commits the last of its children lies behind.
    pub fn directory(&self, domain: DomainId, pages: u64, bytes: u64, lag: u64) {
        let labels = DomainLabels { domain: format!("{:016x}", domain.0) };
        self.directory_pages.get_or_create(&labels).set(pages);
        self.directory_bytes.get_or_create(&labels).set(bytes);
        self.lag_stamps.get_or_create(&labels).set(lag);
    }

    /// Pages of a domain that have changes and cannot be read, and the bytes kept apart from them.
    pub fn unreadable(&self, domain: DomainId, pages: u64, apart_bytes: u64) {
        let labels = DomainLabels { domain: format!("{:016x}", domain.0) };
        self.pages_unreadable.get_or_create(&labels).set(pages);
        self.apart_bytes.get_or_create(&labels).set(apart_bytes);
    }

    /// A domain's store failed.
    pub fn domain_failed(&self) {
        self.domains_failed.inc();
    }

    /// Bytes that were written to files are lost.
    pub fn lost(&self, bytes: u64) {
        self.lost_bytes.inc_by(bytes);
    }

    /// Seconds until the process's own certificate and its authority expire.
    pub fn certificate(&self, own: i64, authority: i64) {
        for (what, left) in [("own", own), ("authority", authority)] {
            self.certificate_expires.get_or_create(&Label { what }).set(left);
        }
    }

    /// Counters of what the kernel asks a mount of this node for.
    #[must_use]
    pub fn asked(&self) -> AskedCounts {
        self.asked.clone()
    }

    /// What a mount of this node keeps of a part of what it knows, beside page copies.
    pub fn mount(&self, part: &'static str, kept: Kept) {
        self.mount.keeps(part, kept);
    }

    /// The counts that people ask for most, for `/status`.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let ended = |ending: Ending| self.transactions[ending as usize].get();
        let messages = |direction: Direction| {
            Kind::ALL
                .iter()
                .map(|&kind| (kind.name(), self.messages(direction, kind)))
                .filter(|(_, (count, _))| *count > 0)
                .map(|(name, (messages, bytes))| (name, MessageCount { messages, bytes }))
                .collect()
        };
        Summary {
            hits: self.reads[0].get(),
            misses: self.reads[1].get(),
            companions_asked: self.companions[0].get(),
            companions_read: self.companions[1].get(),
            committed: ended(Ending::Committed),
            local: ended(Ending::Local),
            conflicts: ended(Ending::Conflict),
            unknown: ended(Ending::Unknown),
            lost_bytes: self.lost_bytes.get(),
            links_up: self.links(Side::Up),
            links_down: self.links(Side::Down),
            connects: self.connects.get_or_create(&Label { what: "up" }).get(),
            resumes: self.messages(Direction::Sent, Kind::Resume).0,
            resumed_bytes: self.messages(Direction::Received, Kind::Resumed).1,
            sent: messages(Direction::Sent),
            received: messages(Direction::Received),
        }
    }
}

/// Messages of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct MessageCount {
    /// How many.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The counts that people ask for most, since the process started.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Summary {
    /// Reads answered by the cache.
    pub hits: u64,
    /// Reads that had to wait for a page.
    pub misses: u64,
    /// Pages asked for ahead because they became stale with one that was missed. This and the next are of when the status or
    /// the metrics were asked for last.
    pub companions_asked: u64,
    /// Of those, the ones that were known to have been read when they changed again.
    pub companions_read: u64,
    /// Transactions committed at the origin.
    pub committed: u64,
    /// Transactions that only read, and were committed here.
    pub local: u64,
    /// Transactions that met a conflict.
    pub conflicts: u64,
    /// Commits whose outcome was not known within the limit.
    pub unknown: u64,
    /// Bytes written to files that could not be committed, and are lost.
    pub lost_bytes: u64,
    /// Links to the parent that stand.
    pub links_up: i64,
    /// Links from children that stand.
    pub links_down: i64,
    /// Links to the parent opened.
    pub connects: u64,
    /// `Resume`s sent: one per link and domain, one round trip each.
    pub resumes: u64,
    /// Bytes of their answers.
    pub resumed_bytes: u64,
    /// Messages sent, by kind.
    pub sent: BTreeMap<&'static str, MessageCount>,
    /// Messages received, by kind.
    pub received: BTreeMap<&'static str, MessageCount>,
}

/// A counter for each value of a label, found without a look-up.
fn counters<const N: usize>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    whats: [&'static str; N],
) -> [Counter; N] {
    let family = Family::<Label, Counter>::default();
    let counters = whats.map(|what| family.get_or_create_owned(&Label { what }));
    registry.register(name, help, family);
    counters
}

fn tallies(registry: &mut Registry) -> [Vec<Tally>; 2] {
    let messages = Family::<MessageLabels, Counter>::default();
    let bytes = Family::<MessageLabels, Counter>::default();
    let tallies = [Direction::Sent, Direction::Received].map(|direction| {
        let tally = |kind: &Kind| {
            let labels = MessageLabels {
                kind: kind.name(),
                lane: lane_name(kind.lane()),
                direction: direction_name(direction),
            };
            Tally {
                messages: messages.get_or_create_owned(&labels),
                bytes: bytes.get_or_create_owned(&labels),
            }
        };
        Kind::ALL.iter().map(tally).collect()
    });
    registry.register("messages", "Messages on links", messages);
    registry.register_with_unit("message", "Bytes of messages on links", Unit::Bytes, bytes);
    tallies
}

fn store_labels(domain: DomainId, part: StorePart) -> StoreLabels {
    let part = match part {
        StorePart::Log => "log",
        StorePart::Pages => "pages",
    };
    StoreLabels { domain: format!("{:016x}", domain.0), part }
}

fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Sent => "sent",
        Direction::Received => "received",
    }
}

fn side_name(side: Side) -> &'static str {
    match side {
        Side::Up => "up",
        Side::Down => "down",
        Side::Neighbour => "neighbour",
        Side::Peer => "peer",
    }
}

fn lane_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Control => "control",
        Lane::Stream => "stream",
        Lane::Bulk => "bulk",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use larder_core::id::{PageId, PageNo, RequestId, VolumeId};
    use larder_core::message::PageBody;
    use larder_core::time::Instant;

    #[test]
    fn counts_show_in_the_text_and_in_the_summary() {
        let metrics = Metrics::new();
        let message = Message::Beat { domain: DomainId(1), sent: Instant(0) };
        metrics.message(Direction::Sent, &message, 20);
        metrics.link(Side::Up, true);
        metrics.transaction(Ending::Local, 10, 2);
        metrics.domain(DomainId(1), Stamp(7), Some(Duration::from_millis(1500)));
        let text = metrics.encode();
        for line in [
            "larder_messages_total{kind=\"beat\",lane=\"control\",direction=\"sent\"} 1",
            "larder_message_bytes_total{kind=\"beat\",lane=\"control\",direction=\"sent\"} 20",
            "larder_links{what=\"up\"} 1",
            "larder_reads_total{what=\"hit\"} 10",
            "larder_valid_through{domain=\"0000000000000001\"} 7",
            "larder_state_age_seconds{domain=\"0000000000000001\"} 1.5",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        let summary = metrics.summary();
        assert_eq!((summary.hits, summary.misses, summary.links_up), (10, 2, 1));
        assert_eq!(summary.sent["beat"].bytes, 20);
    }

    /// The line was cut and healed, and who watched over the cache could not see whether it had been
    /// thrown away: pages that changed and pages that did not were one figure.
    #[test]
    fn pages_that_did_not_change_are_counted_apart() {
        let metrics = Metrics::new();
        let (domain, request) = (DomainId(1), RequestId(1));
        let page = |version, body| PageAnswer {
            page: PageId { volume: VolumeId(1), page: PageNo(1) },
            version: Stamp(version),
            as_of: Stamp(30),
            body,
        };
        let pages = [
            page(9, PageBody::Data(Bytes::new())),
            page(10, PageBody::Data(Bytes::new())),
            page(11, PageBody::Data(Bytes::new())),
            page(8, PageBody::Valid),
        ];
        let pages = Message::Pages { request, domain, pages: pages.to_vec() };
        let unchanged = |through| {
            let resume = Message::Resume { request, domain, epochs: Vec::new(), through };
            metrics.message(Direction::Sent, &resume, 1);
            metrics.message(Direction::Received, &pages, 1);
            (metrics.pages_received.get(), metrics.pages_unchanged.get())
        };
        assert_eq!(unchanged(None), (3, 0), "it held nothing");
        assert_eq!(unchanged(Some(Stamp(10))), (6, 2));
    }

    #[test]
    fn every_kind_is_in_the_lane_its_message_says() {
        let beat = Message::Beat { domain: DomainId(1), sent: Instant(0) };
        assert_eq!(Kind::of(&beat).lane(), beat.lane());
        for (number, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, number);
        }
    }
}
