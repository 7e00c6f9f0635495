//! The state of one domain in the machine.

use super::commits::Commits;
use super::flights::Flights;
use super::memory::Holdings;
use super::told::Told;
use crate::cache::read::DomainState;
use crate::id::{BootId, RequestId, Stamp};
use crate::message::{Epoch, VolumeInfo};
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// How far the domain's stream on this link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stream {
    /// Not asked for on this link, or refused: asked again at a tick.
    Off,
    /// `Resume` is sent.
    Asked(RequestId),
    /// Parts of the answer came.
    Begun(RequestId),
    /// Advances come. The parent may answer this resume again, when it lost its place (0003).
    Live(RequestId),
    /// Parts of that further answer came.
    Again(RequestId),
}

/// One domain.
pub(super) struct Domain {
    pub(super) state: Arc<DomainState>,
    /// Its histories, as last told.
    pub(super) epochs: Vec<Epoch>,
    pub(super) stream: Stream,
    /// Where the link's stream stands. The valid-through that readers see, except while a resume
    /// from a lost branch is under way: then they see none.
    pub(super) position: Option<Stamp>,
    pub(super) flights: Flights,
    pub(super) holdings: Holdings,
    pub(super) commits: Commits,
    /// What outcomes told ahead of the stream.
    pub(super) told: Told,
    /// Beats sent on this link and not echoed, ascending.
    pub(super) beats: VecDeque<Instant>,
    /// The newest of the beats that are no longer remembered, though they may still be answered.
    pub(super) forgotten: Option<Instant>,
    pub(super) beat_at: Instant,
    /// All that the origin had then is in the state here.
    pub(super) confirmed_at: Option<Instant>,
    /// The lapse of the lease was told.
    pub(super) lapsed: bool,
    /// Users who wait for a stamp.
    pub(super) waits: BTreeSet<(Stamp, RequestId)>,
    /// Users who wait for the state of a time.
    pub(super) refreshes: BTreeSet<(Instant, RequestId)>,
    /// Users who wait for the stream to begin, and what they are then told.
    pub(super) openings: BTreeMap<RequestId, VolumeInfo>,
}

/// Beats without an echo at most; the oldest are forgotten.
const BEATS_MAX: usize = 64;

impl Domain {
    pub(super) fn new(state: Arc<DomainState>, boot: BootId) -> Self {
        Self {
            state,
            epochs: Vec::new(),
            stream: Stream::Off,
            position: None,
            flights: Flights::default(),
            holdings: Holdings::default(),
            commits: Commits::new(boot),
            told: Told::default(),
            beats: VecDeque::new(),
            forgotten: None,
            beat_at: Instant(0),
            confirmed_at: None,
            lapsed: false,
            waits: BTreeSet::new(),
            refreshes: BTreeSet::new(),
            openings: BTreeMap::new(),
        }
    }

    pub(super) fn live(&self) -> bool {
        matches!(self.stream, Stream::Live(_))
    }

    /// When the lease lapses, unless it has or there never was one.
    pub(super) fn lapses_at(&self, lease: Duration) -> Option<Instant> {
        let confirmed = self.confirmed_at.filter(|_| !self.lapsed)?;
        Some(confirmed.after(lease).after(Duration::from_nanos(1)))
    }

    pub(super) fn lose_link(&mut self) {
        self.stream = Stream::Off;
        self.beats.clear();
        self.forgotten = None;
        self.flights.lose_link();
        self.commits.lose_link();
        self.holdings.lose_link();
    }

    /// Notes a beat sent.
    pub(super) fn beat(&mut self, now: Instant) {
        if self.beats.len() == BEATS_MAX {
            self.forgotten = self.beats.pop_front();
        }
        self.beats.push_back(now);
    }
}
