//! Where a link stands in one domain's stream: a cursor, not a queue.

use super::link::Asked;
use super::registration::Registration;
use crate::id::{PageId, RequestId, Stamp, VolumeId};
use crate::message::{Echo, ResumeAnswer};
use crate::time::{Duration, Instant};
use std::collections::{BTreeSet, VecDeque};

/// Which of the pages asked for are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    /// Those that somebody waits for, and those loaded already.
    Demand,
    /// Those that are read ahead as well.
    All,
}

/// A link's place in one domain. Constant memory, apart from its registration and at most
/// `requests_max` resumes not yet begun.
#[derive(Debug)]
pub(crate) struct Follower {
    /// What the child is believed to hold.
    pub(crate) registration: Registration,
    /// Everything up to it has been told.
    pub(crate) cursor: Stamp,
    /// Everything in (cursor, scanned] concerns pages not registered, or volumes that the child may not read.
    pub(crate) scanned: Stamp,
    /// Of the changes up to it the writes went ahead, as far as they go to the child (member of a group).
    pub(crate) updated: Stamp,
    /// Bytes of those since the last advance.
    pub(crate) updates_bytes: usize,
    /// What the stream does.
    pub(crate) phase: Phase,
    /// Resumes to be answered at the cursor's place, once it has reached their `from`.
    pub(crate) asked: VecDeque<Answer>,
    /// Pages that changed in parts of the stream that were lost, for the answers that wait beyond them.
    skipped: BTreeSet<PageId>,
    /// The child's resume of this link: its request is named when the cursor fell off the ring.
    pub(crate) request: RequestId,
    /// The stamp at which this link's stream began. A transaction with a later base began after
    /// the link did (rule 13).
    pub(crate) began: Stamp,
    /// What the child has acknowledged, where an experiment has it do so.
    pub(crate) acknowledged: Stamp,
    /// The last commit sequence of the child's own boot on this link (rule 13).
    pub(crate) sequence_max: u64,
    /// Pages asked for and not answered: those just loaded, those that somebody waits for, others.
    pub(crate) loaded: VecDeque<Asked>,
    demand: VecDeque<Asked>,
    prefetch: VecDeque<Asked>,
    /// Volumes whose rights the child must hear of, before anything else of the stream.
    pub(crate) owed: BTreeSet<VolumeId>,
    /// Of those, the ones that it could not read for a while since it heard of them last.
    pub(crate) lost: BTreeSet<VolumeId>,
    /// Volumes with which it, or somebody below it, may do less than an answer has told, as far as was heard here
    /// (relay): told again when they are heard of again.
    pub(crate) hopes: BTreeSet<VolumeId>,
    /// Volumes of which something was withheld from the child since it could read them last.
    pub(crate) withheld: BTreeSet<VolumeId>,
    /// Those that it may read again in the middle of an answer to a resume: named in it as a whole.
    pub(crate) regained: BTreeSet<VolumeId>,
    /// Volumes whose rights it heard of on this link.
    pub(crate) told: BTreeSet<VolumeId>,
    /// How many changes of the table of histories were told.
    pub(crate) epochs_told: u64,
    /// The child waits to be advanced to this stamp, though that may carry nothing.
    pub(crate) hastened_to: Stamp,
    /// When an advance was last sent.
    pub(crate) sent_at: Instant,
    /// Beats to be echoed.
    beats: Echoes,
    /// A beat that came before this parent knew its own age.
    pub(crate) early_beat: Option<Instant>,
    /// Refreshes that wait until the parent's own parent has answered, ascending (relay).
    refreshes: VecDeque<Refresh>,
    /// Refreshes to be answered. Apart from beats, whose echoes tell of an older state.
    refreshed: Echoes,
}

/// Refreshes of a child that wait at most: with more, the newest stands for the one before it.
const REFRESHES_MAX: usize = 64;

/// A refresh that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Refresh {
    /// When it came, by the clock here.
    came: Instant,
    /// When it was sent, by the child's.
    sent: Instant,
}

/// Echoes owed: the oldest, and the newest after it. The oldest is kept: were it replaced by every
/// other, a stream that lags by more than the time between them would never echo.
#[derive(Debug, Default)]
struct Echoes {
    oldest: Option<Owed>,
    newest: Option<Owed>,
}

impl Echoes {
    fn add(&mut self, owed: Owed) {
        let place = if self.oldest.is_none() { &mut self.oldest } else { &mut self.newest };
        *place = Some(owed);
    }

    /// Whether an advance up to `through` would complete one.
    fn due(&self, through: Stamp) -> bool {
        self.oldest.is_some_and(|owed| owed.at <= through)
    }

    /// The newest that an advance up to `through` completes.
    fn take(&mut self, through: Stamp) -> Option<Echo> {
        let mut echo = None;
        while let Some(owed) = self.oldest.filter(|owed| owed.at <= through) {
            echo = Some(owed.echo);
            self.oldest = self.newest.take();
        }
        echo
    }
}

/// A beat to be echoed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owed {
    echo: Echo,
    /// With an advance that reaches this stamp.
    at: Stamp,
}

/// What a domain's stream on a link does.
#[derive(Debug)]
pub(crate) enum Phase {
    /// A resume came, its answer is not known yet (a relay asks its parent).
    Waiting,
    /// A resume is being answered, part by part.
    Answering(Answer),
    /// Advances.
    Streaming,
    /// The cursor fell off the ring and the parent has been asked (relay).
    Fallen,
}

/// A resume being answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Answer {
    /// The child's request.
    pub(crate) request: RequestId,
    /// What holds of its copies.
    pub(crate) answer: ResumeAnswer,
    /// Only registered pages are named: the stream goes on, its cursor had fallen off the ring.
    pub(crate) filtered: bool,
    /// The stamp up to which a given list tells all: the stream stops there for it (relay).
    pub(crate) at: Option<Stamp>,
    /// Its place was in a part of the stream that was lost: it tells of what changed there too (relay).
    pub(crate) beyond: bool,
    /// It counts as one of the link's requests in flight.
    pub(crate) counted: bool,
    /// How far the walk over changed pages is.
    pub(crate) walk: Walk,
}

impl Answer {
    /// Whether the stream is where this answer belongs.
    pub(crate) fn is_due(&self, cursor: Stamp) -> bool {
        self.from() <= cursor && self.at.is_none_or(|at| at <= cursor)
    }

    /// The stamp after which changed pages are named.
    pub(crate) fn from(&self) -> Stamp {
        match self.answer {
            ResumeAnswer::From(from) => from,
            ResumeAnswer::Reset => Stamp::ZERO,
        }
    }
}

/// A walk over the pages changed after a stamp. First those not installed, by page, then the
/// index, by stamp: a page that is installed meanwhile was met by the first part or is in the
/// index before the second begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Walk {
    /// Pages changed and not installed, after this one.
    Uninstalled(PageId),
    /// The change index.
    Index(IndexWalk),
    /// A given list, from this position (relay).
    List(Vec<PageId>, usize),
    /// All that the child is registered for, after this page: the parent cannot say which of them
    /// changed (relay).
    Registered(PageId),
    /// Nothing to tell.
    Nothing,
}

/// A walk over the change index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct IndexWalk {
    /// Above this stamp and page.
    pub(crate) after: (Stamp, PageId),
    /// A load is under way.
    pub(crate) asked: bool,
    /// What the last load found, and whether there is more.
    pub(crate) found: Option<(Vec<(Stamp, PageId)>, bool)>,
}

impl Follower {
    /// A stream that has not begun.
    pub(crate) fn new(request: RequestId, registration: Registration) -> Self {
        Self {
            registration,
            cursor: Stamp::ZERO,
            scanned: Stamp::ZERO,
            updated: Stamp::ZERO,
            updates_bytes: 0,
            phase: Phase::Waiting,
            asked: VecDeque::new(),
            skipped: BTreeSet::new(),
            request,
            began: Stamp::ZERO,
            acknowledged: Stamp::ZERO,
            sequence_max: 0,
            loaded: VecDeque::new(),
            demand: VecDeque::new(),
            prefetch: VecDeque::new(),
            owed: BTreeSet::new(),
            lost: BTreeSet::new(),
            hopes: BTreeSet::new(),
            withheld: BTreeSet::new(),
            regained: BTreeSet::new(),
            told: BTreeSet::new(),
            epochs_told: 0,
            hastened_to: Stamp::ZERO,
            sent_at: Instant::default(),
            beats: Echoes::default(),
            early_beat: None,
            refreshes: VecDeque::new(),
            refreshed: Echoes::default(),
        }
    }

    /// Begins the stream at `at`, with the answer to the link's resume.
    pub(crate) fn begin(&mut self, answer: Answer, at: Stamp) {
        self.began = at;
        self.answer(answer, at);
    }

    /// Answers a resume at `at`, where the stream then goes on.
    pub(crate) fn answer(&mut self, answer: Answer, at: Stamp) {
        assert!(at >= self.cursor, "a stream does not go back");
        self.cursor = at;
        self.scanned = at;
        self.updated = at;
        self.phase = Phase::Answering(answer);
    }

    /// An answer that led from `from` to the cursor cannot be given: the stream is off the ring, at `from`.
    pub(crate) fn fall_back(&mut self, from: Stamp) {
        assert!(from <= self.cursor, "an answer leads forward");
        self.cursor = from;
        self.scanned = from;
        self.updated = from;
        self.phase = Phase::Fallen;
    }

    /// The stream goes on at `at` after a part of it was lost, in which these pages changed; none: too many.
    /// Answers whose place was in that part have it at `at` now, and tell of what was lost as well (bug 157); all
    /// that wait name no more than `pages_max` pages, what was lost counted once.
    pub(crate) fn move_asked(&mut self, at: Stamp, lost: Option<&[PageId]>, pages_max: usize) {
        let short = |answer: &&mut Answer| answer.at.is_some_and(|told| told < at);
        for answer in self.asked.iter_mut().filter(short) {
            crate::probe::probe("answer-beyond-a-lost-part");
            answer.at = Some(at);
            answer.beyond = answer.answer != ResumeAnswer::Reset;
        }
        if !self.asked.iter().any(|answer| answer.beyond) {
            return;
        }
        let lists = self.asked.iter().map(|answer| match &answer.walk {
            Walk::List(pages, _) => pages.len(),
            _ => 0,
        });
        let held: usize = lists.sum();
        self.skipped.extend(lost.unwrap_or_default());
        if lost.is_some() && held + self.skipped.len() <= pages_max {
            return;
        }
        for answer in self.asked.iter_mut().filter(|answer| answer.beyond) {
            if let Walk::List(pages, _) = &mut answer.walk {
                (answer.answer, answer.beyond) = (ResumeAnswer::Reset, false);
                pages.clear();
            }
        }
        self.skipped.clear();
    }

    /// The next resume to be answered here, if the stream is at its place.
    pub(super) fn take_answer(&mut self) -> Option<Answer> {
        self.asked.front().filter(|first| first.is_due(self.cursor))?;
        let mut answer = self.asked.pop_front()?;
        if answer.beyond
            && let Walk::List(pages, _) = &mut answer.walk
        {
            pages.extend(&self.skipped);
            pages.sort_unstable();
            pages.dedup();
        }
        if !self.asked.iter().any(|answer| answer.beyond) {
            self.skipped.clear();
        }
        Some(answer)
    }

    /// The child was told of this stamp on another lane: it may wait until its stream is there.
    pub(crate) fn told(&mut self, stamp: Stamp) {
        self.hastened_to = self.hastened_to.max(stamp);
    }

    /// Queues a page to be answered when there is credit.
    pub(crate) fn queue(&mut self, asked: Asked) {
        if asked.prefetch {
            self.prefetch.push_back(asked);
        } else {
            self.demand.push_back(asked);
        }
    }

    /// The next page to be answered; `ahead`: rather one that is read ahead than one that somebody waits for.
    pub(super) fn take_asked(&mut self, pace: Pace, ahead: bool) -> Option<Asked> {
        let Self { loaded, demand, prefetch, .. } = self;
        let first = loaded.pop_front();
        match pace {
            _ if ahead => first.or_else(|| prefetch.pop_front()).or_else(|| demand.pop_front()),
            Pace::Demand => first.or_else(|| demand.pop_front()),
            Pace::All => first.or_else(|| demand.pop_front()).or_else(|| prefetch.pop_front()),
        }
    }

    /// Pages queued.
    pub(crate) fn queued(&self) -> usize {
        self.loaded.len() + self.demand.len() + self.prefetch.len()
    }

    /// Registers a page; what was skipped as unregistered is looked at again.
    pub(crate) fn register(&mut self, page: PageId) {
        if self.registration.insert(page) {
            self.scanned = self.cursor;
        }
    }

    /// Registers for everything.
    pub(crate) fn register_all(&mut self) {
        self.registration.all();
        self.scanned = self.cursor;
    }

    /// A beat came when the parent's state was `at`: what answers it. That of a refresh which waits is echoed with the
    /// answer alone: an echo of a relay's own age before it would cost both sides a message, and tell less.
    pub(crate) fn beat(&mut self, echo: Echo, at: Stamp) {
        if self.refreshes.back().is_none_or(|refresh| refresh.sent != echo.sent) {
            self.beats.add(Owed { echo, at });
        }
    }

    /// A refresh came, to be answered from above.
    pub(crate) fn refresh(&mut self, came: Instant, sent: Instant) {
        if self.refreshes.len() == REFRESHES_MAX {
            self.refreshes.pop_back();
        }
        self.refreshes.push_back(Refresh { came, sent });
    }

    /// Refreshes that wait.
    #[cfg(feature = "faults")]
    pub(crate) fn refreshes_waiting(&self) -> usize {
        self.refreshes.len()
    }

    /// When the newest refresh came that waits.
    pub(crate) fn refresh_waits(&self) -> Option<Instant> {
        self.refreshes.back().map(|refresh| refresh.came)
    }

    /// The state `at` holds all that the origin had at `confirmed`, by the clock here: refreshes
    /// that came until then are answered.
    pub(crate) fn answer_refreshes(&mut self, confirmed: Instant, at: Stamp) {
        let mut answered = None;
        while let Some(refresh) = self.refreshes.front().filter(|one| one.came <= confirmed) {
            answered = Some(refresh.sent);
            self.refreshes.pop_front();
        }
        if let Some(sent) = answered {
            let echo = Echo { sent, age: Duration::ZERO, by_clock: false };
            self.refreshed.add(Owed { echo, at });
        }
    }

    /// Whether an advance up to `through` would complete a beat or a refresh.
    pub(crate) fn owes_echo(&self, through: Stamp) -> bool {
        self.beats.due(through) || self.refreshed.due(through)
    }

    /// The echo that an advance up to `through` carries: the newest completed, of a refresh first.
    pub(crate) fn take_echo(&mut self, through: Stamp) -> Option<Echo> {
        self.refreshed.take(through).or_else(|| self.beats.take(through))
    }

    /// Panics when an invariant is broken.
    pub(crate) fn check(&self, requests_max: usize) {
        self.registration.check();
        assert!(self.cursor <= self.scanned, "scanned less than told");
        assert!(self.asked.len() <= requests_max, "too many resumes wait");
        assert!(
            self.skipped.is_empty() || self.asked.iter().any(|answer| answer.beyond),
            "what was lost is kept for nobody"
        );
        for echoes in [&self.beats, &self.refreshed] {
            assert!(echoes.oldest.is_some() || echoes.newest.is_none(), "an echo is lost");
        }
        assert!(self.refreshes.len() <= REFRESHES_MAX, "too many refreshes wait");
    }
}
