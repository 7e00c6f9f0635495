//! A domain as a relay follows it and passes it on.

use super::config::RelayConfig;
use crate::commit::{Change, Write};
use crate::downlink::{Answer, Feed, Follower, Part, Ring, Walk};
use crate::group::updates::Updates;
use crate::id::{DomainId, LinkId, PageId, RequestId, Stamp, VolumeId};
use crate::message::{DomainInfo, Echo, Epoch, PAGES_PER_MESSAGE_MAX};
use crate::share::Load;
use crate::time::{BeatClock, Duration, Instant, WallTime};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A domain at a relay: no pages, only the stream.
#[derive(Debug)]
pub(super) struct RelayDomain {
    pub(super) id: DomainId,
    /// From which parent it is had: the first that offered it.
    pub(super) parent: usize,
    pub(super) epochs: Vec<Epoch>,
    epochs_version: u64,
    /// Recent commits; its head is the relay's valid-through.
    pub(super) ring: Ring,
    /// The stream began once: children may be served.
    pub(super) begun: bool,
    /// The stream runs on the link that is up now.
    pub(super) following: bool,
    /// The relay's own resume on this link: an answer to it may be repeated in the stream.
    pub(super) resume: Option<RequestId>,
    /// It has not begun, and the parent was asked for it on the link that is up: children that say
    /// hello wait for it until then.
    pub(super) awaited_until: Option<Instant>,
    /// The echo that tells of the newest state: this relay's own age.
    anchor: Option<Echo>,
    /// Instants of the beats sent up.
    pub(super) beat_clock: BeatClock,
    /// Refreshes sent on this link and not answered, ascending.
    refreshes: VecDeque<Instant>,
    pub(super) wall: WallTime,
    /// Commits passed on and not answered.
    pub(super) load: Load,
    /// Bytes of commits that found no room.
    pub(super) held: usize,
    /// Pages asked of the parent and not answered, with how often.
    pub(super) fetching: BTreeMap<PageId, Asking>,
    /// Resumes asked of the parent for children.
    pub(super) resuming: u32,
    /// When the relay's own registration is narrowed.
    pub(super) narrow_at: Option<Instant>,
    /// A list of what the children hold was begun by an empty part at this instant: it goes on when a
    /// later beat is echoed.
    pub(super) announced: Option<Instant>,
    /// The parent gathers what is fetched and made, for a list that is under way or to come.
    pub(super) gathering: bool,
    /// One more list is to follow: the parent gathered what is not held any more.
    pub(super) again: bool,
    /// Volumes whose rights the parent told on this link.
    pub(super) rights_told: BTreeSet<VolumeId>,
    /// The highest as-of that pages brought which may still be on their way to children, or wait there.
    pub(super) passed: Stamp,
    /// What members commit, until the stream has told all others of it (redirector).
    pub(super) updates: Updates,
    /// The highest as-of that pages ever brought (planted fault of rule 11).
    pub(super) ahead: Stamp,
}

impl RelayDomain {
    pub(super) fn new(config: &RelayConfig, parent: usize, info: DomainInfo) -> Self {
        let down = &config.downlink;
        Self {
            id: info.domain,
            parent,
            epochs: info.epochs,
            epochs_version: 1,
            ring: Ring::new(Stamp::ZERO, down.ring_bytes_max, down.ring_commits_max),
            begun: false,
            following: false,
            resume: None,
            awaited_until: None,
            anchor: None,
            beat_clock: BeatClock::default(),
            refreshes: VecDeque::new(),
            wall: WallTime::default(),
            load: Load::default(),
            held: 0,
            fetching: BTreeMap::new(),
            resuming: 0,
            narrow_at: None,
            announced: None,
            gathering: false,
            again: false,
            rights_told: BTreeSet::new(),
            passed: Stamp::ZERO,
            updates: Updates::default(),
            ahead: Stamp::ZERO,
        }
    }

    /// Everything up to it has come from the parent.
    pub(super) fn through(&self) -> Stamp {
        self.ring.head()
    }

    pub(super) fn info(&self) -> DomainInfo {
        DomainInfo { domain: self.id, epochs: self.epochs.clone() }
    }

    /// Whether one that is new here begins below what pages brought: the origin was restored, and what they
    /// brought may be of the branch that was lost.
    pub(super) fn loses_ahead(&mut self, epochs: &[Epoch]) -> bool {
        let is_new = |epoch: &&Epoch| !self.epochs.contains(epoch);
        let lost = epochs.iter().filter(is_new).any(|epoch| epoch.first <= self.passed);
        if lost {
            self.passed = Stamp::ZERO;
        }
        lost
    }

    /// All that it knew is forgotten: its stream goes on from here.
    pub(super) fn reset(&mut self, through: Stamp) {
        self.ring.reset(through);
        self.updates.clear();
    }

    /// The parent's histories now.
    pub(super) fn set_epochs(&mut self, epochs: Vec<Epoch>) {
        if epochs != self.epochs {
            self.epochs = epochs;
            self.epochs_version += 1;
            self.updates.clear();
        }
    }

    /// The parent confirmed what was known at `echo.sent`, less the age of its state. Gives the
    /// instant, if it lies on our clock.
    pub(super) fn confirmed(&mut self, echo: Echo) -> Option<Instant> {
        let newer = |old: &Echo| echo.sent.after(old.age) >= old.sent.after(echo.age);
        if self.anchor.as_ref().is_none_or(newer) {
            self.anchor = Some(echo);
        }
        let age = u64::try_from(echo.age.as_nanos()).unwrap_or(u64::MAX);
        let confirmed = echo.sent.0.checked_sub(age).map(Instant)?;
        if !echo.by_clock {
            self.refreshes.retain(|sent| *sent > confirmed);
        }
        Some(confirmed)
    }

    /// Notes that a refresh is sent now, by the beat of the instant given; none: it must not be.
    pub(super) fn refresh(&mut self, now: Instant, refreshes_max: usize) -> Option<Instant> {
        if !self.following || self.refreshes.len() >= refreshes_max {
            return None;
        }
        let sent = self.beat_clock.send(now);
        self.refreshes.push_back(sent);
        Some(sent)
    }

    /// When the last refresh was sent that has no answer.
    pub(super) fn refreshed_at(&self) -> Option<Instant> {
        self.refreshes.back().copied()
    }

    /// Refreshes sent and not answered.
    #[cfg(feature = "faults")]
    pub(super) fn refreshes_waiting(&self) -> usize {
        self.refreshes.len()
    }

    /// The link to the parent is gone.
    pub(super) fn lose_parent(&mut self) {
        self.following = false;
        // What comes next may be another line, on which it was not made.
        self.fetching.values_mut().for_each(|asking| asking.named = false);
        self.resume = None;
        self.awaited_until = None;
        self.announced = None;
        self.narrow_at = None;
        self.again = false;
        self.rights_told.clear();
        self.refreshes.clear();
        self.load = Load::default();
    }

    /// How old the relay's state is; none: it was never confirmed.
    pub(super) fn age(&self, now: Instant) -> Option<Duration> {
        // No message tells of more.
        let most = Duration::from_nanos(u64::MAX);
        self.anchor.map(|echo| now.since(echo.sent).saturating_add(echo.age).min(most))
    }

    /// A page was asked of the parent.
    pub(super) fn fetch_begins(&mut self, page: PageId) {
        self.fetching.entry(page).or_default().count += 1;
    }

    /// A page asked of the parent was answered, or will not be. Says whether the stream named it meanwhile.
    pub(super) fn fetch_ends(&mut self, page: PageId) -> bool {
        let asking = self.fetching.get_mut(&page).expect("it was begun");
        asking.count -= 1;
        let named = asking.named;
        if asking.count == 0 {
            self.fetching.remove(&page);
        }
        named
    }

    /// The stream tells of these: whoever is asked for is there now.
    pub(super) fn named(&mut self, changes: &[Change]) {
        for change in changes.iter().flat_map(|change| &change.pages) {
            if let Some(asking) = self.fetching.get_mut(&change.page) {
                asking.named = true;
            }
        }
    }
}

/// A page that is asked of the parent.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Asking {
    /// So often.
    count: u32,
    /// The stream has told of a change of it since.
    named: bool,
}

/// A child's beat is answered with the age of what is known here.
pub(super) fn by_clock(sent: Instant, age: Duration) -> Echo {
    Echo { sent, age, by_clock: true }
}

impl Feed for RelayDomain {
    fn domain(&self) -> DomainId {
        self.id
    }

    fn ring(&self) -> &Ring {
        &self.ring
    }

    fn epochs(&self) -> (&[Epoch], u64) {
        (&self.epochs, self.epochs_version)
    }

    fn wall(&self, _now: Instant) -> WallTime {
        self.wall
    }

    fn writes(&self, change: &Change) -> Option<&[Write]> {
        self.updates.of(change)
    }

    fn walk(&mut self, _link: LinkId, answer: &mut Answer) -> Part {
        // What a child is registered for is walked by its link.
        let Walk::List(pages, next) = &mut answer.walk else {
            return Part::Pages(Vec::new(), true);
        };
        let end = pages.len().min(*next + PAGES_PER_MESSAGE_MAX);
        let part = pages[*next..end].to_vec();
        *next = end;
        Part::Pages(part, end == pages.len())
    }

    fn fallen(&mut self, _follower: &mut Follower) {
        // The relay asks its parent: it has no index.
    }
}
