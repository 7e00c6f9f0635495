//! The state of one domain in the machine.

use super::companions::Companions;
use super::flights::Flights;
use super::holdings::Holdings;
use super::ledger::Commits;
use super::told::Told;
use super::updates::Updates;
use crate::cache::read::DomainState;
use crate::id::{BootId, LinkId, RequestId, Stamp, VolumeId};
use crate::message::{Epoch, VolumeInfo};
use crate::time::{BeatClock, Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// How far the domain's stream on this link is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stream {
    /// Not asked for on this link, or refused: asked again at a tick.
    Off,
    /// The parent took no more requests when it was to be asked for: it is, before anything else, as
    /// soon as there is room. At a tick there may never be any, where users always wait for some.
    Waits,
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
    /// The link on which it is had, or was asked for.
    pub(super) up: Option<LinkId>,
    /// Parents that were asked for it in turn, and do not have it.
    pub(super) refused: BTreeSet<u32>,
    /// That link's lease, or the last one's: how long a confirmed state may be called current.
    pub(super) lease: Duration,
    /// Its histories, as last told.
    pub(super) epochs: Vec<Epoch>,
    stream: Stream,
    /// Where the link's stream stands. The valid-through that readers see, except while a resume
    /// from a lost branch is under way: then they see none.
    pub(super) position: Option<Stamp>,
    pub(super) flights: Flights,
    pub(super) companions: Companions,
    pub(super) holdings: Holdings,
    pub(super) commits: Commits,
    /// What neighbours wrote, ahead of the stream.
    pub(super) updates: Updates,
    /// What outcomes told ahead of the stream.
    pub(super) told: Told,
    /// Beats sent on this link and not echoed, ascending.
    pub(super) beats: VecDeque<Instant>,
    /// Instants of the beats sent.
    pub(super) beat_clock: BeatClock,
    /// The newest of the beats that are no longer remembered, though they may still be answered.
    pub(super) forgotten: Option<Instant>,
    /// Refreshes sent on this link of which no state confirmed tells yet, ascending.
    pub(super) refreshes_sent: VecDeque<Instant>,
    /// The newest refresh sent on this link: it and those before may be answered still.
    pub(super) refreshed_at: Option<Instant>,
    pub(super) beat_at: Instant,
    /// The stream was refused: it is not asked for again before then.
    pub(super) asks_again_at: Instant,
    /// Since when no parent that is there offers it.
    pub(super) missing_since: Option<Instant>,
    /// All that the origin had then is in the state here.
    pub(super) confirmed_at: Option<Instant>,
    /// The lapse of the lease was told.
    pub(super) lapsed: bool,
    /// Users who wait for a stamp.
    pub(super) waits: BTreeSet<(Stamp, RequestId)>,
    /// Users who wait for the state of a time.
    pub(super) refreshes: BTreeSet<(Instant, RequestId)>,
    /// Volumes that were refused before the stream began: they are asked for again.
    pub(super) denied: BTreeSet<VolumeId>,
    /// Users who wait for the stream to begin, and what they are then told.
    pub(super) openings: BTreeMap<RequestId, VolumeInfo>,
}

/// Beats without an echo at most; the oldest are forgotten.
const BEATS_MAX: usize = 64;

impl Domain {
    pub(super) fn new(state: Arc<DomainState>, boot: BootId) -> Self {
        Self {
            state,
            up: None,
            refused: BTreeSet::new(),
            lease: Duration::ZERO,
            epochs: Vec::new(),
            stream: Stream::Off,
            position: None,
            flights: Flights::default(),
            companions: Companions::default(),
            holdings: Holdings::default(),
            commits: Commits::new(boot),
            updates: Updates::default(),
            told: Told::default(),
            beats: VecDeque::new(),
            beat_clock: BeatClock::default(),
            forgotten: None,
            refreshes_sent: VecDeque::new(),
            refreshed_at: None,
            beat_at: Instant(0),
            asks_again_at: Instant(0),
            missing_since: None,
            confirmed_at: None,
            lapsed: false,
            waits: BTreeSet::new(),
            refreshes: BTreeSet::new(),
            denied: BTreeSet::new(),
            openings: BTreeMap::new(),
        }
    }

    pub(super) fn stream(&self) -> Stream {
        self.stream
    }

    /// The stream is so far now. Neighbours are helped by any thread while it runs.
    pub(super) fn set_stream(&mut self, stream: Stream) {
        self.stream = stream;
        self.state.set_live(self.live());
    }

    /// Its parent has answered for it on the link that stands.
    pub(super) fn is_had(&self) -> bool {
        !matches!(self.stream, Stream::Off | Stream::Waits | Stream::Asked(_))
    }

    pub(super) fn live(&self) -> bool {
        matches!(self.stream, Stream::Live(_))
    }

    /// When the lease lapses, unless it has or there never was one.
    pub(super) fn lapses_at(&self) -> Option<Instant> {
        let confirmed = self.confirmed_at.filter(|_| !self.lapsed)?;
        Some(confirmed.after(self.lease).after(Duration::from_nanos(1)))
    }

    pub(super) fn lose_link(&mut self) {
        self.set_stream(Stream::Off);
        self.up = None;
        self.asks_again_at = Instant(0);
        self.missing_since = None;
        // All that are restricted are asked for anew.
        self.denied.clear();
        self.beats.clear();
        self.forgotten = None;
        self.refreshes_sent.clear();
        self.refreshed_at = None;
        self.flights.lose_link();
        self.commits.lose_link();
        self.updates.clear();
        self.holdings.lose_link();
    }

    /// Notes that a refresh is sent now, by the beat of the instant given; none: it must not be.
    pub(super) fn refresh(&mut self, now: Instant, refreshes_max: usize) -> Option<Instant> {
        if !self.live() || self.refreshes_sent.len() >= refreshes_max {
            return None;
        }
        let sent = self.beat(now);
        self.refreshes_sent.push_back(sent);
        self.refreshed_at = Some(sent);
        Some(sent)
    }

    /// Whether somebody waits whose question came after the last refresh was sent.
    pub(super) fn wants_refresh(&self) -> bool {
        let last = self.refreshes.last().map(|(asked, _)| *asked);
        last.is_some_and(|asked| self.refreshed_at.is_none_or(|sent| sent < asked))
    }

    /// Notes a beat sent now; gives the instant that it bears.
    pub(super) fn beat(&mut self, now: Instant) -> Instant {
        if self.beats.len() == BEATS_MAX {
            self.forgotten = self.beats.pop_front();
        }
        let sent = self.beat_clock.send(now);
        self.beats.push_back(sent);
        sent
    }
}
