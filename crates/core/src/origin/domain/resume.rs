//! The domain as the links' streams see it, and the answers to resumes (rule 17).

use super::boots::{ENDED, Registering};
use super::{Context, Domain};
use crate::confirmed::Confirmed;
use crate::downlink::{
    Answer, Feed, Follower, IndexWalk, Part, Phase, Register, Registration, Ring, Verdict, Walk,
    anothers, judge,
};
use crate::id::{BootId, DomainId, LinkId, PageId, PageNo, RequestId, Stamp, VolumeId};
use crate::machine::{Fault, Faults};
use crate::message::{CloseReason, Echo, Epoch, NoBoot, RequestError, ResumeAnswer};
use crate::origin::Event;
use crate::time::{Duration, Instant, WallTime};

/// After every page of a stamp.
const LAST_PAGE: PageId = PageId { volume: VolumeId(u128::MAX), page: PageNo(u64::MAX) };

/// Most boots that wait to be registered.
const REGISTERING_MAX: usize = 4096;

impl Domain {
    /// A child starts its stream, or a relay asks for one of its children.
    pub(in crate::origin) fn resume(
        &mut self,
        cx: &mut Context<'_>,
        link: LinkId,
        request: RequestId,
        claim: (&[Epoch], Option<Stamp>),
    ) {
        let verdict = match claim {
            (epochs, Some(through)) => {
                Some((judge(&self.epochs, self.durable, epochs, through), through))
            }
            (_, None) => None,
        };
        // Not judged: the child holds nothing.
        let verdict = match verdict {
            Some((Verdict::Forked(_), through)) if cx.config.faults.has(Fault::IgnoreFork) => {
                Some(Verdict::From(through.min(self.durable)))
            }
            Some((Verdict::Forked(fork), _)) if cx.config.accept_fork => {
                crate::probe::probe("fork-accepted");
                Some(Verdict::From(fork))
            }
            Some((Verdict::Forked(fork), through)) => {
                crate::probe::probe("fork-refused");
                self.refuse(cx, link, request, fork, through);
                return;
            }
            Some((verdict, _)) => Some(verdict),
            None => None,
        };
        let registration = Registration::nothing(&cx.config.downlink);
        let faults = cx.config.faults;
        let Some(entry) = cx.links.get_mut(link) else {
            return;
        };
        if let Some(follower) = entry.followers.get_mut(&self.id) {
            let answer = self.repeated(follower, request, verdict);
            if matches!(verdict, Some(Verdict::From(_))) {
                follower.register_all();
            }
            follower.asked.push_back(answer);
            self.note_asked(cx, link, request);
        } else {
            let mut follower = Follower::new(request, registration);
            self.first(&mut follower, request, verdict, faults);
            entry.followers.insert(self.id, follower);
            cx.links.owe_rights(link, self.id);
        }
        self.pump(cx, link);
    }

    /// The child saw commits that this domain does not have.
    fn refuse(
        &mut self,
        cx: &mut Context<'_>,
        link: LinkId,
        request: RequestId,
        fork: Stamp,
        seen: Stamp,
    ) {
        let reason = CloseReason::Forked { domain: self.id, seen, fork };
        if cx.links.follower(link, self.id).is_some() {
            // A relay asks for a child: the relay itself is on this line.
            let error = RequestError::Forbidden(reason.to_string());
            cx.links.fail(link, request, error, cx.out);
        } else {
            self.close(cx, link, reason);
        }
    }

    /// A boot is claimed for its name, in place of `replaced`. Known under it, it may commit at once; not known, it is made
    /// durable first, unless it may have been known once (decision 0004).
    pub(in crate::origin) fn register(
        &mut self,
        cx: &mut Context<'_>,
        register: Register,
        replaced: Option<BootId>,
    ) {
        if let Some(boot) = replaced {
            self.registering.remove(&boot);
        }
        let Register { domain, boot, name, fresh, .. } = register;
        let faults = cx.config.faults;
        let refused = match self.boots.owner(boot) {
            // Asked again: whether it is forgotten is not known yet.
            Some(known) if known == name && self.boots.is_leaving(boot) => return,
            Some(known) if known == name || faults.has(Fault::BootOfAnyName) => {
                self.boots.register(boot, &name, cx.now);
                cx.links.registered(domain, boot, cx.out);
                return;
            }
            Some(_) => NoBoot::Taken,
            None if fresh || faults.has(Fault::ExpiredBootAnew) => {
                // Beyond the bound, and when it cannot be made: asked again.
                if self.registering.len() < REGISTERING_MAX {
                    self.registering.insert(boot, Registering { name, ended: false });
                }
                return;
            }
            None => NoBoot::Unknown,
        };
        if let Some(link) = cx.links.unregistered((domain, boot), refused, |_| anothers(), cx.out) {
            self.gone(link);
            cx.events.push(Event::Gone(link));
        }
    }

    /// The answer to a link's first resume: its stream begins.
    fn first(
        &self,
        follower: &mut Follower,
        request: RequestId,
        verdict: Option<Verdict>,
        faults: Faults,
    ) {
        let mut answer = Answer {
            request,
            answer: ResumeAnswer::From(self.durable),
            filtered: false,
            at: None,
            beyond: false,
            counted: true,
            walk: Walk::Nothing,
        };
        let mut at = self.durable;
        match verdict {
            None => {}
            Some(Verdict::Reset | Verdict::Forked(_)) => {
                crate::probe::probe("resume-reset");
                answer.answer = ResumeAnswer::Reset;
            }
            Some(Verdict::From(from)) => {
                answer.answer = ResumeAnswer::From(from);
                if from >= self.ring.tail() {
                    crate::probe::probe("resume-within-the-ring");
                    // All since is in the ring, in detail: the stream itself tells it.
                    at = from;
                } else {
                    answer.walk = Walk::Uninstalled(PageId::default());
                }
                if !faults.has(Fault::ResumeRegistersNothing) {
                    follower.register_all();
                }
            }
        }
        follower.begin(answer, at);
    }

    /// The answer to a further resume: a relay asks for a child.
    fn repeated(
        &self,
        follower: &Follower,
        request: RequestId,
        verdict: Option<Verdict>,
    ) -> Answer {
        let (answer, walk) = match verdict {
            None => (ResumeAnswer::From(follower.cursor), Walk::Nothing),
            Some(Verdict::From(from)) => {
                (ResumeAnswer::From(from), Walk::Uninstalled(PageId::default()))
            }
            Some(Verdict::Reset | Verdict::Forked(_)) => (ResumeAnswer::Reset, Walk::Nothing),
        };
        Answer { request, answer, filtered: false, at: None, beyond: false, counted: true, walk }
    }

    /// Part of the change index came for a link's walk.
    pub(super) fn index_loaded(
        &mut self,
        cx: &mut Context<'_>,
        link: LinkId,
        mut entries: Vec<(Stamp, PageId)>,
        more: bool,
    ) {
        if cx.config.faults.has(Fault::SkipIndex) {
            entries.clear();
        }
        if let Some(follower) = cx.links.follower(link, self.id)
            && let Phase::Answering(answer) = &mut follower.phase
            && let Walk::Index(walk) = &mut answer.walk
        {
            walk.asked = false;
            walk.found = Some((entries, more));
            self.pump(cx, link);
        }
    }

    /// A beat: the echo goes with the advance that completes what is known now.
    pub(in crate::origin) fn beat(&mut self, cx: &mut Context<'_>, link: LinkId, sent: Instant) {
        let durable = self.durable;
        if let Some(follower) = cx.links.follower(link, self.id) {
            let age = Duration::ZERO;
            follower.beat(Echo { sent, age, by_clock: false }, durable);
            self.pump(cx, link);
        }
    }

    /// Outcomes were received.
    pub(in crate::origin) fn confirm(&mut self, boot: BootId, confirmed: &Confirmed, now: Instant) {
        let all = Confirmed::new(confirmed.upto(), []);
        let confirmed = if self.faults.has(Fault::OpenConfirmed) { &all } else { confirmed };
        if let Some(registering) = self.registering.get_mut(&boot) {
            registering.ended |= confirmed.through() >= ENDED;
        }
        if !self.faults.has(Fault::OutcomesKept) {
            self.boots.told(boot, confirmed, now);
        }
    }

    /// The wall clock now: the last reading carried on by the machine's clock.
    pub(super) fn wall_at(&self, now: Instant) -> WallTime {
        let (wall, at) = self.wall;
        let since = u64::try_from(now.since(at).as_nanos()).unwrap_or(u64::MAX);
        WallTime(wall.0.saturating_add(since))
    }
}

impl Feed for Domain {
    fn domain(&self) -> DomainId {
        self.id
    }

    fn ring(&self) -> &Ring {
        &self.ring
    }

    fn epochs(&self) -> (&[Epoch], u64) {
        // Histories change at starts only.
        (&self.epochs, 1)
    }

    fn wall(&self, now: Instant) -> WallTime {
        self.wall_at(now)
    }

    fn walk(&mut self, link: LinkId, answer: &mut Answer) -> Part {
        let from = answer.from();
        match &mut answer.walk {
            Walk::Nothing => Part::Pages(Vec::new(), true),
            Walk::Uninstalled(after) => {
                let limit = self.index_part_max;
                let looked: Vec<_> = self.pages.uninstalled_after(*after).take(limit).collect();
                match looked.last() {
                    Some((last, _)) if looked.len() == limit => *after = *last,
                    _ => answer.walk = self.index_walk(from),
                }
                let mut pages: Vec<PageId> = looked
                    .iter()
                    .filter(|(_, version)| *version > from)
                    .map(|(page, _)| *page)
                    .collect();
                if self.faults.has(Fault::ResumeForgetsUninstalled) {
                    pages.clear();
                }
                let done = matches!(answer.walk, Walk::Nothing);
                Part::Pages(pages, done)
            }
            Walk::Index(walk) => {
                if let Some((entries, more)) = walk.found.take() {
                    if more {
                        crate::probe::probe("index-page-continued");
                    }
                    walk.after = entries.last().copied().unwrap_or(walk.after);
                    return Part::Pages(entries.into_iter().map(|(_, page)| page).collect(), !more);
                }
                if !walk.asked {
                    walk.asked = true;
                    self.index_wanted.push((link, walk.after));
                }
                Part::Wait
            }
            Walk::List(..) | Walk::Registered(_) => {
                unreachable!("only a relay answers from lists")
            }
        }
    }

    fn fallen(&mut self, follower: &mut Follower) {
        crate::probe::probe("fell-off-the-ring");
        let answer = Answer {
            request: follower.request,
            answer: ResumeAnswer::From(follower.cursor),
            filtered: true,
            at: None,
            beyond: false,
            counted: false,
            walk: Walk::Uninstalled(PageId::default()),
        };
        follower.answer(answer, self.durable);
    }
}

impl Domain {
    fn index_walk(&self, from: Stamp) -> Walk {
        if !self.install.index_may_have(from) {
            return Walk::Nothing;
        }
        crate::probe::probe("resume-from-index");
        Walk::Index(IndexWalk { after: (from, LAST_PAGE), asked: false, found: None })
    }
}
