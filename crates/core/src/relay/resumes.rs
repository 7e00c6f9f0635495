//! Answers to resumes, the relay's own and those of its children (rule 17).

use super::Relay;
use super::domain::RelayDomain;
use super::io::RelayOutput;
use super::parent::violation;
use super::pending::{Gathered, Pending, What};
use crate::commit::Change;
use crate::downlink::{Answer, Phase, Recent, Walk};
use crate::id::{DomainId, LinkId, PageId, RequestId, Stamp};
use crate::machine::Fault;
use crate::message::{CloseReason, ResumeAnswer, Role};
use crate::rights::{Effective, Right};
use crate::time::Instant;

/// One part of an answer to a resume.
pub(super) struct Part {
    pub(super) domain: DomainId,
    pub(super) answer: ResumeAnswer,
    pub(super) stale: Vec<PageId>,
    pub(super) through: Stamp,
    pub(super) done: bool,
    /// This relay's position lies on the line that the answer tells of.
    pub(super) on_line: bool,
}

impl Relay {
    /// Part of an answer to a resume: the relay's own, or one asked for a child.
    pub(super) fn resumed(
        &mut self,
        now: Instant,
        request: RequestId,
        part: Part,
        out: &mut Vec<RelayOutput>,
    ) -> Result<(), CloseReason> {
        let entry = &self.domains[&part.domain];
        let own = entry.resume == Some(request);
        if own && !self.pending.contains_key(&request) {
            // The cursor fell off the parent's ring: our resume is answered again.
            self.pending.insert(request, Pending::own(entry.parent, part.domain, now));
        }
        let seen = entry.through();
        if own && entry.begun && part.through < seen && part.answer == ResumeAnswer::From(seen) {
            return violation("a resume that ends below its beginning");
        }
        if !own {
            let fits =
                |what: &What| matches!(what, What::Child { domain, .. } if *domain == part.domain);
            self.fits(entry.parent, request, fits)?;
        }
        let pages_max = self.config.resume_pages_max;
        let Some(pending) = self.pending.get_mut(&request) else {
            return Ok(());
        };
        let asker = pending.asker;
        match &mut pending.what {
            What::Own { gathered, .. } => gathered.add(part.stale, pages_max),
            What::Child { gathered, fallen, .. } => {
                let mut stale = part.stale;
                // The child has its registration still: what it does not hold is not kept for it.
                if *fallen
                    && let Some(follower) =
                        asker.and_then(|(link, _)| self.links.follower(link, part.domain))
                {
                    stale.retain(|page| follower.registration.contains(*page));
                }
                gathered.add(stale, pages_max);
            }
            What::Fetch { .. } | What::Other(_) => return Ok(()),
        }
        if !part.done {
            self.has_time(now, request);
            return Ok(());
        }
        let Some(pending) = self.answered(request) else {
            return Ok(());
        };
        match pending.what {
            What::Own { gathered, .. } => {
                let told = (&part.answer, part.on_line);
                self.own_resumed(now, part.domain, told, part.through, gathered, out);
                Ok(())
            }
            What::Child { fallen, gathered, .. } => {
                if part.through != self.domains[&part.domain].through() {
                    return violation("an answer away from the stream's position");
                }
                if let Some((link, asked)) = pending.asker {
                    let answer = if fallen {
                        again(asked, part.answer, gathered)
                    } else {
                        child_answer(asked, part.answer, gathered, part.through)
                    };
                    self.child_resumed(now, part.domain, link, answer, fallen, out);
                }
                Ok(())
            }
            What::Fetch { .. } | What::Other(_) => Ok(()),
        }
    }

    /// The relay's own stream begins, or goes on after a gap.
    fn own_resumed(
        &mut self,
        now: Instant,
        domain: DomainId,
        (answer, on_line): (&ResumeAnswer, bool),
        through: Stamp,
        mut gathered: Gathered,
        out: &mut Vec<RelayOutput>,
    ) {
        let entry = self.domains.get_mut(&domain).expect("looked up by the caller");
        let seen = entry.through();
        // A reset on our own line only says that the parent cannot name what changed.
        let continues = match answer {
            ResumeAnswer::From(from) => *from == seen,
            ResumeAnswer::Reset => on_line,
        };
        let unnamed = gathered.over || *answer == ResumeAnswer::Reset;
        if unnamed || !continues {
            self.directory_forgets(None, domain);
        } else {
            self.directory_stale(domain, &gathered.pages);
        }
        let entry = self.domains.get_mut(&domain).expect("looked up above");
        if entry.begun && !continues {
            // Our line is not the parent's: what the children hold is judged when they resume.
            let fork = match answer {
                ResumeAnswer::From(from) => *from,
                ResumeAnswer::Reset => Stamp::ZERO,
            };
            entry.reset(through);
            for link in self.links.following(domain) {
                let reason = CloseReason::Forked { domain, seen, fork };
                self.close_child(now, link, reason, out);
            }
        } else if !entry.begun || unnamed {
            crate::probe::probe("relay-cursors-all-off");
            // All cursors are off the ring now: each child's copies are asked about one by one.
            entry.reset(through);
        } else if through > seen {
            if !gathered.pages.is_empty() {
                gathered.pages.sort_unstable();
                gathered.pages.dedup();
                entry.ring.push(Recent::Stale(through, gathered.pages));
            }
            entry.ring.raise(through);
            entry.updates.reached(through);
        }
        let entry = self.domains.get_mut(&domain).expect("looked up above");
        let new = !std::mem::replace(&mut entry.begun, true);
        // Of what the parent did not tell on this link, before its stream, everybody may read all.
        let all = Effective::same(Right::Admin);
        let mut untold = self.links.restricted(domain);
        untold.retain(|volume| !entry.rights_told.contains(volume));
        let mut regained = untold.clone();
        regained.retain(|volume| self.links.is_regained(*volume, &all));
        self.regains(domain, &regained);
        for volume in untold {
            self.links.set_rights((domain, volume), "", all.clone(), RequestId(0));
        }
        let entry = self.domains.get_mut(&domain).expect("looked up above");
        entry.following = true;
        entry.gathering = true;
        entry.awaited_until = None;
        // Not put off again by a stream that falls again and again: it would never be narrowed.
        entry.narrow_at.get_or_insert(now.after(self.config.narrow_delay));
        let parent = entry.parent;
        if let Some(up) = &mut self.uplinks[parent].up {
            up.beat_at = now;
        }
        self.beat_up(now, parent, out);
        if self.refresh_waits(domain).is_some() {
            self.refresh_up(now, domain, out);
        }
        if new {
            self.tell_of_domain(now, domain, out);
        }
        self.pump_all(now, domain, out);
        self.tell_ready(out);
        self.welcome_held(out);
    }

    /// A domain came up that no child was told of: the parent listed it only on this link. A node
    /// asks for the domains of its volumes; a relay follows what its `Welcome` listed and would
    /// refuse the domain to its own children for ever, so it is made to ask for a new one.
    fn tell_of_domain(&mut self, now: Instant, domain: DomainId, out: &mut Vec<RelayOutput>) {
        let relays = self.links.welcomed().filter(|(_, role)| *role == Role::Relay);
        let relays: Vec<LinkId> = relays.map(|(link, _)| link).collect();
        for link in relays {
            let reason = CloseReason::OutOfService(format!("domain {} came up", domain.0));
            self.close_child(now, link, reason, out);
        }
    }

    /// A child's resume was answered by the parent, at the relay's own position.
    fn child_resumed(
        &mut self,
        now: Instant,
        domain: DomainId,
        link: LinkId,
        mut answer: Answer,
        fallen: bool,
        out: &mut Vec<RelayOutput>,
    ) {
        let is_relay = self.links.relay_of(link).is_some();
        let entry = &self.domains[&domain];
        let mut at = entry.through();
        if self.config.faults.has(Fault::HelpOvertakes) && !fallen {
            at = at.max(entry.ahead);
        }
        let Some(follower) = self.links.follower(link, domain) else {
            return;
        };
        match follower.phase {
            Phase::Waiting => follower.begin(answer, at),
            Phase::Fallen if fallen => {
                let lost = match &answer.walk {
                    Walk::List(pages, _) => Some(&pages[..]),
                    _ => None,
                };
                follower.move_asked(at, lost, self.config.resume_pages_max);
                answer.answer = ResumeAnswer::From(follower.cursor);
                if lost.is_none() && follower.registration.pages().is_none() {
                    if !is_relay {
                        // What it holds is not known, what changed is too much: it comes back, and its
                        // new link, on which nothing is under way, may begin with a reset.
                        let reason = CloseReason::Limit("too much changed to be told here".into());
                        self.close_child(now, link, reason, out);
                        return;
                    }
                    // A relay is told just that: it asks for each of its children what changed of what
                    // that one holds or is being brought. On a new link it would have to ask for them all
                    // before the next time that too much changes (bug 157).
                    crate::probe::probe("relay-below-reset");
                    (answer.answer, answer.walk) = (ResumeAnswer::Reset, Walk::Nothing);
                }
                follower.answer(answer, at);
            }
            // Its place may be in the part of the stream that is lost: it waits for what is told of that.
            Phase::Fallen | Phase::Answering(_) | Phase::Streaming => {
                if answer.at.is_some_and(|at| at > follower.cursor) {
                    crate::probe::probe("answer-waits-for-its-place");
                }
                follower.asked.push_back(answer);
            }
        }
        self.pump(now, domain, link, out);
    }
}

/// What an advance tells goes to the ring.
pub(super) fn raise(
    entry: &mut RelayDomain,
    (from, through): (Stamp, Stamp),
    changes: Vec<Change>,
    stale: Vec<PageId>,
) -> Result<(), CloseReason> {
    if from != entry.through() || through < from {
        return violation("an advance from another stamp");
    }
    let mut last = from;
    for change in changes {
        if change.stamp <= last || change.stamp > through {
            return violation("changes out of order");
        }
        last = change.stamp;
        entry.ring.push(Recent::Change(change));
    }
    if !stale.is_empty() && through == from {
        return violation("stale pages without an advance");
    }
    // What is told of this stamp in detail may be more than the ring keeps: every cursor is off it
    // then.
    if !stale.is_empty() && through > entry.ring.tail() {
        entry.ring.push(Recent::Stale(through, stale));
    }
    entry.ring.raise(through);
    Ok(())
}

/// What a child is told whose stream goes on after a gap: never `Reset`, which would not name what
/// overtook a fetch that is under way (bug 11). Whatever it holds may have changed when that cannot
/// be said more exactly.
fn again(request: RequestId, answer: ResumeAnswer, gathered: Gathered) -> Answer {
    let unnamed = gathered.over || answer == ResumeAnswer::Reset;
    if unnamed {
        crate::probe::probe("relay-child-told-all");
    }
    let walk =
        if unnamed { Walk::Registered(PageId::default()) } else { Walk::List(gathered.pages, 0) };
    Answer { request, answer, filtered: true, at: None, beyond: false, counted: false, walk }
}

/// What a child is told of its copies.
fn child_answer(
    request: RequestId,
    answer: ResumeAnswer,
    gathered: Gathered,
    through: Stamp,
) -> Answer {
    let (answer, pages) =
        if gathered.over { (ResumeAnswer::Reset, Vec::new()) } else { (answer, gathered.pages) };
    Answer {
        request,
        answer,
        filtered: false,
        at: Some(through),
        beyond: false,
        counted: true,
        walk: Walk::List(pages, 0),
    }
}
