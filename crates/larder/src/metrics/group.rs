//! Figures of a group: where pages come from and go to, and what its redirector keeps.

use super::{Direction, Label, Side, counters, seconds};
use larder_core::group::{GroupStatus, MembershipStatus};
use larder_core::message::Message;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use serde::Serialize;
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Fetches from neighbours of which the time is remembered, for the median that people are shown.
const RECENT: usize = 512;

type Bytes = Gauge<u64, AtomicU64>;

/// The figures.
pub(crate) struct GroupFigures {
    /// From the parent, from neighbours; to children, to neighbours.
    pages: [Counter; 4],
    peer_fetch_seconds: Histogram,
    recent: Mutex<VecDeque<Duration>>,
    members: Family<Label, Gauge>,
    directory_pages: Gauge,
    directory_bytes: Bytes,
    updates: Gauge,
    updates_bytes: Bytes,
}

/// Where the pages came from that a member has read, as shares of all reads.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Sources {
    /// Reads answered by the own memory.
    pub memory: f64,
    /// Reads that waited for a page of a neighbour, about: misses are divided as pages are.
    pub neighbour: f64,
    /// Reads that waited for a page from above.
    pub origin: f64,
}

/// How long pages of neighbours took, of the last few hundred fetches.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct PeerFetch {
    /// Pages that came from neighbours, in all.
    pub pages: u64,
    /// Pages that were sent to them.
    pub sent_pages: u64,
    /// Half of the fetches took no longer, in microseconds.
    pub median_us: Option<f64>,
    /// All but a hundredth.
    pub p99_us: Option<f64>,
}

impl GroupFigures {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let r = registry;
        let ends = ["from_parent", "from_neighbour", "to_child", "to_neighbour"];
        let help = "Pages with their bytes, by the end of a link that they came from or went to";
        let figures = Self {
            pages: counters(r, "pages_moved", help, ends),
            peer_fetch_seconds: seconds(),
            recent: Mutex::default(),
            members: Family::default(),
            directory_pages: Gauge::default(),
            directory_bytes: Bytes::default(),
            updates: Gauge::default(),
            updates_bytes: Bytes::default(),
        };
        let help = "Members of the group beside this process, and those to whom a link stands";
        r.register("group_members", help, figures.members.clone());
        let help = "Pages that members are known to have complete";
        r.register("group_directory_pages", help, figures.directory_pages.clone());
        let help = "Memory of the directory of complete pages";
        let bytes = figures.directory_bytes.clone();
        r.register_with_unit("group_directory", help, Unit::Bytes, bytes);
        let help = "Commits whose writes are kept for members";
        r.register("group_updates", help, figures.updates.clone());
        let help = "Writes kept for members";
        let bytes = figures.updates_bytes.clone();
        r.register_with_unit("group_updates", help, Unit::Bytes, bytes);
        let help = "Pages of neighbours, from their being asked for until they are here";
        let histogram = figures.peer_fetch_seconds.clone();
        r.register_with_unit("peer_fetch", help, Unit::Seconds, histogram);
        figures
    }

    /// Counts the pages of a message on a link of a side.
    pub(crate) fn moved(&self, side: Side, direction: Direction, message: &Message) {
        let Message::Pages { pages, .. } = message else { return };
        let end = match (side, direction) {
            (Side::Up, Direction::Received) => 0,
            (Side::Down, Direction::Sent) => 2,
            (Side::Neighbour, Direction::Sent) => 3,
            // Of those from neighbours the ones count that are of use: see `peer_fetch`.
            (Side::Neighbour, Direction::Received)
            | (Side::Peer, _)
            | (Side::Up, Direction::Sent)
            | (Side::Down, Direction::Received) => return,
        };
        let with_bytes = pages.iter().filter(|page| page.body.image().is_some());
        self.pages[end].inc_by(with_bytes.count() as u64);
    }

    /// So many pages came from a neighbour, whole and not given up yet, so long after they were asked for.
    pub(crate) fn peer_fetch(&self, pages: usize, took: Duration) {
        self.pages[1].inc_by(pages as u64);
        self.peer_fetch_seconds.observe(took.as_secs_f64());
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == RECENT {
            recent.pop_front();
        }
        recent.push_back(took);
    }

    /// How long pages of neighbours took.
    pub(crate) fn peer_fetches(&self) -> PeerFetch {
        let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let mut recent: Vec<Duration> = recent.iter().copied().collect();
        recent.sort_unstable();
        let at = |hundredths: usize| {
            let place = (recent.len() * hundredths).div_ceil(100).max(1) - 1;
            recent.get(place).map(|took| took.as_secs_f64() * 1e6)
        };
        PeerFetch {
            pages: self.pages[1].get(),
            sent_pages: self.pages[3].get(),
            median_us: at(50),
            p99_us: at(99),
        }
    }

    /// Of so many hits and misses.
    pub(crate) fn sources(&self, hits: u64, misses: u64) -> Sources {
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let reads = (hits + misses) as f64;
        let [parent, neighbour] = [0, 1].map(|end: usize| self.pages[end].get() as f64);
        let missed = share(misses as f64, reads);
        let from_neighbour = missed * share(neighbour, parent + neighbour);
        Sources {
            memory: share(hits as f64, reads),
            neighbour: from_neighbour,
            origin: missed - from_neighbour,
        }
    }

    /// Brings the gauges of a redirector up to date.
    pub(crate) fn redirector(&self, status: &GroupStatus) {
        self.count("members", status.members.len());
        let pages: usize = status.members.iter().map(|member| member.pages).sum();
        let bytes: usize = status.members.iter().map(|member| member.bytes).sum();
        self.directory_pages.set(pages as i64);
        self.directory_bytes.set(bytes as u64);
        self.updates.set(status.updates as i64);
        self.updates_bytes.set(status.updates_bytes as u64);
    }

    /// Brings those of a member up to date.
    pub(crate) fn member(&self, status: &MembershipStatus) {
        let reached = status.neighbours.iter().filter(|neighbour| neighbour.link.is_some());
        self.count("members", status.neighbours.len());
        self.count("reached", reached.count());
    }

    fn count(&self, what: &'static str, count: usize) {
        self.members.get_or_create(&Label { what }).set(count as i64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_divided_as_pages_are() {
        let figures = GroupFigures::new(&mut Registry::default());
        assert_eq!(figures.sources(0, 0), Sources::default());
        figures.pages[0].inc_by(1);
        figures.pages[1].inc_by(3);
        let sources = figures.sources(60, 40);
        let near = |one: f64, other: f64| (one - other).abs() < 1e-9;
        assert!(near(sources.memory, 0.6), "{sources:?}");
        assert!(near(sources.neighbour, 0.3) && near(sources.origin, 0.1), "{sources:?}");
    }

    #[test]
    fn the_last_fetches_have_a_median() {
        let figures = GroupFigures::new(&mut Registry::default());
        assert_eq!(figures.peer_fetches().median_us, None);
        for micros in (1..=2 * RECENT as u64).rev() {
            figures.peer_fetch(1, Duration::from_micros(micros));
        }
        let PeerFetch { pages, median_us, p99_us, .. } = figures.peer_fetches();
        assert_eq!(pages, 2 * RECENT as u64);
        assert_eq!(median_us.map(f64::round), Some(256.0));
        assert_eq!(p99_us.map(f64::round), Some(507.0));
    }
}
