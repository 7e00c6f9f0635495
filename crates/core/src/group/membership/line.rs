//! Whether a redirector's own line to its group's parent stands, and whose does if it does not (decision 0042).
//!
//! A redirector whose line is cut says so to all. Of those who may be the redirector one after the other looks
//! whether his own line stands. Who finds that it does says so in turn, upon which the redirector tries its line
//! once more, and is the redirector if it stays cut. Where the origin itself is away, nobody's line stands, and
//! nothing changes.

use super::config::{Candidacy, LineTimes, Participant};
use crate::id::BootId;
use crate::time::{Duration, Instant};
use std::collections::BTreeMap;

/// How often it is said that a line stands again.
const AGAIN_TIMES: u8 = 3;
/// A pause grows to so many times the first one.
const PAUSE_GROWS: u32 = 16;
/// A line that stood for so many times the first pause is a good one: the pauses begin anew.
const GOOD_TIMES: u32 = 4;
/// A word is believed for so many times the interval at which it is said.
const FRESH_TIMES: u32 = 3;
/// So many times as long as for the first of them the others whose lines stand wait for him.
const LATE_TIMES: u32 = 4;
/// A look that was asked for is not waited for longer than so many times the limit of a first link.
const LOOK_TIMES: u32 = 2;

/// What somebody said of his own line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LineWord {
    /// Each word of one life has a higher one: what comes later than a newer word is void.
    pub(super) number: u64,
    pub(super) stands: bool,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    word: LineWord,
    at: Instant,
}

type There = BTreeMap<BootId, Participant>;

/// This process's line while it leads.
#[derive(Debug)]
struct Lead {
    /// There is a link, or there is none, since then.
    up: (bool, Instant),
    /// It stands, or it does not, since then: one that comes for a moment does not.
    stands: (bool, Instant),
    /// It stood once since this process leads.
    stood: bool,
    /// It is cut, as far as this process knows since it leads.
    cut: bool,
}

/// Looks of who does not lead at his own line.
#[derive(Debug)]
struct Looks {
    /// None before, while the redirector says that it is cut.
    not_before: Option<Instant>,
    /// None before, of who gave way, while it does not.
    away_until: Option<Instant>,
    pause: Duration,
    /// One was asked for, and is awaited until then.
    awaited: Option<Instant>,
    /// It was found to stand, first then, and last then.
    found: Option<(Instant, Instant)>,
}

/// What is to be done now.
#[derive(Default, Debug, PartialEq, Eq)]
pub(super) struct LineSteps {
    /// To be said to all.
    pub(super) say: Option<LineWord>,
    /// This process is to try whether its line stands.
    pub(super) look: bool,
}

/// This process's line, and what is known of those of others.
#[derive(Debug)]
pub(super) struct Lines {
    own: Participant,
    times: LineTimes,
    /// Of the relay that it is if it leads; none: there is none.
    line: Option<bool>,
    lead: Option<Lead>,
    /// It led while it was cut, and was not found to stand since.
    cut: bool,
    /// How long it does not look after it gave way the next time.
    away: Duration,
    looks: Looks,
    heard: BTreeMap<BootId, Heard>,
    number: u64,
    said_at: Option<Instant>,
    /// How often it is to be said still that it stands.
    again: u8,
    wake_at: Option<Instant>,
}

impl Lines {
    pub(super) fn new(own: Participant, times: LineTimes) -> Self {
        let pause = times.look_every;
        Self {
            own,
            times,
            line: None,
            lead: None,
            cut: false,
            away: times.away,
            looks: Looks { not_before: None, away_until: None, pause, awaited: None, found: None },
            heard: BTreeMap::new(),
            number: 0,
            said_at: None,
            again: 0,
            wake_at: None,
        }
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.wake_at
    }

    /// Whether somebody said, or found, that his line is cut, and not that it stands since.
    pub(super) fn is_cut(&self, life: BootId) -> bool {
        if life == self.own.life {
            return self.cut;
        }
        self.heard.get(&life).is_some_and(|heard| !heard.word.stands)
    }

    /// Where the line of the relay is that this process is if it leads; none: there is none.
    pub(super) fn is(&mut self, line: Option<bool>) {
        self.line = line;
    }

    /// A look that was asked for has ended.
    pub(super) fn looked(&mut self, now: Instant, stands: bool) {
        if self.looks.awaited.take().is_none() || self.lead.is_some() {
            return;
        }
        if stands {
            let first = self.looks.found.map_or(now, |(first, _)| first);
            self.looks.found = Some((first, now));
            self.looks.pause = self.times.look_every;
            if std::mem::take(&mut self.cut) {
                crate::probe::probe("line-found-again");
                self.again = AGAIN_TIMES;
            }
        } else {
            self.looks.found = None;
            self.looks.away_until = Some(now.after(self.away));
            self.looks.not_before = Some(now.after(self.looks.pause));
            self.looks.pause = (self.looks.pause * 2).min(self.times.look_every * PAUSE_GROWS);
        }
    }

    /// This process stood still: what was found before is of the past, and words that came meanwhile are yet to be read.
    /// Its own line was not tried for so long: that is no time of a cut, what was before it is.
    pub(super) fn stood_still(&mut self, now: Instant, late: Duration) {
        self.looks.found = None;
        let Some(Lead { up, stands, .. }) = &mut self.lead else { return };
        if let (false, since) = stands {
            *since = since.after(late).min(now);
        }
        // Nor did a link stand for so long that came before: it may have broken again meanwhile.
        if let (true, since) = up {
            *since = since.after(late).min(now);
        }
    }

    /// Somebody who is known said this of his line.
    pub(super) fn heard(&mut self, now: Instant, life: BootId, word: LineWord) {
        let newer = self.heard.get(&life).is_none_or(|heard| heard.word.number < word.number);
        if newer && life != self.own.life {
            self.heard.insert(life, Heard { word, at: now });
        }
    }

    fn fresh(&self, now: Instant, life: BootId) -> Option<bool> {
        let heard = self.heard.get(&life)?;
        let is_fresh = now.since(heard.at) <= self.times.say_every * FRESH_TIMES;
        is_fresh.then_some(heard.word.stands)
    }

    /// Who may be the redirector in the place of this one, the first of them first.
    fn others<'a>(&'a self, there: &'a There, leader: BootId) -> Vec<&'a Participant> {
        let may = |one: &&Participant| one.life != leader && one.candidacy != Candidacy::Never;
        let mut others: Vec<&Participant> = there.values().filter(may).collect();
        others.sort_by_key(|one| (self.is_cut(one.life), one.candidacy, one.life));
        others
    }

    /// Whether this process is to be the redirector in the place of this one, whose line is cut while its own stands.
    pub(super) fn takes_over(&self, now: Instant, leader: BootId, there: &There) -> bool {
        let Some((first, _)) = self.found(now) else { return false };
        if leader == self.own.life || self.fresh(now, leader) != Some(false) {
            return false;
        }
        let waited = now.since(first);
        let stands = |one: &&Participant| {
            one.life == self.own.life || self.fresh(now, one.life) == Some(true)
        };
        let others = self.others(there, leader);
        let is_first = others.into_iter().find(stands).map(|one| one.life) == Some(self.own.life);
        waited >= self.times.grace * if is_first { 1 } else { LATE_TIMES }
    }

    /// Since when the own line is known to stand, and when that was found last; not for long after.
    fn found(&self, now: Instant) -> Option<(Instant, Instant)> {
        self.looks.found.filter(|(_, last)| now.since(*last) <= self.times.look_every)
    }

    /// Looks what is to be done, once it is known who is followed.
    pub(super) fn settle(
        &mut self,
        now: Instant,
        leader: Option<BootId>,
        there: &There,
    ) -> LineSteps {
        self.heard.retain(|life, _| there.contains_key(life));
        self.leads(now, leader == Some(self.own.life));
        let mut steps = LineSteps::default();
        let soon = now.after(self.times.say_every / 4);
        self.wake_at = if self.lead.is_some() {
            self.settle_as_leader(now, there, &mut steps);
            let stands = self.lead.as_ref().is_some_and(|lead| lead.stands.0);
            (!stands || self.again > 0).then_some(soon)
        } else {
            let awaits = leader.is_some_and(|leader| self.fresh(now, leader) == Some(false));
            self.settle_as_member(now, leader.filter(|_| awaits), there, &mut steps);
            let looks = self.looks.awaited.or(self.looks.away_until).unwrap_or(soon);
            if awaits || self.again > 0 { Some(soon) } else { self.cut.then_some(looks.max(soon)) }
        };
        if let Some(word) = &mut steps.say {
            self.number += 1;
            word.number = self.number;
            self.said_at = Some(now);
        }
        steps
    }

    /// Notes whether this process leads now, and how its line is if it does.
    fn leads(&mut self, now: Instant, leads: bool) {
        if !leads {
            if self.lead.take().is_some_and(|lead| lead.cut) {
                crate::probe::probe("cut-redirector-gives-way");
                self.looks.away_until = Some(now.after(self.away));
                self.away = (self.away * 2).min(self.times.away * PAUSE_GROWS);
            }
            return;
        }
        let up = self.line == Some(true);
        let lead = self.lead.get_or_insert_with(|| {
            (self.looks.found, self.looks.awaited) = (None, None);
            Lead { up: (up, now), stands: (up, now), stood: up, cut: false }
        });
        if lead.up.0 != up {
            lead.up = (up, now);
        }
        let (stands, since) = lead.stands;
        // Down at once, up when it has been for a while: a link that comes and goes is none.
        if stands && !up {
            // One that comes and goes takes longer each time until it is trusted again.
            if now.since(since) >= self.times.away * GOOD_TIMES {
                self.away = self.times.away;
            }
            lead.stands = (false, now);
        } else if !stands && up && now.since(lead.up.1) >= self.times.say_every {
            (lead.stands, lead.stood) = ((true, now), true);
        }
        let (stands, since) = lead.stands;
        let limit = if lead.stood { self.times.cut_after } else { self.times.begun_after };
        if stands {
            lead.cut = false;
            if std::mem::take(&mut self.cut) {
                self.again = AGAIN_TIMES;
                self.said_at = None;
            }
        } else if !lead.cut && !up && now.since(since) >= limit {
            crate::probe::probe("redirector-is-cut");
            (lead.cut, self.cut) = (true, true);
            (self.again, self.said_at) = (0, None);
            self.looks.not_before = None;
        }
    }

    fn says(&self, now: Instant) -> bool {
        self.said_at.is_none_or(|at| now.since(at) >= self.times.say_every)
    }

    fn settle_as_leader(&mut self, now: Instant, there: &There, steps: &mut LineSteps) {
        let lead = self.lead.as_ref();
        let (stands, cut) = lead.map_or((false, false), |lead| (lead.stands.0, lead.cut));
        if !stands {
            self.again = 0;
        }
        if !self.says_again(now, steps) && cut && self.says(now) {
            steps.say = Some(LineWord { number: 0, stands: false });
        }
        // Somebody's line stands: it may be that this one's does too, which is not dialled at every moment.
        let other = there.keys().any(|life| self.fresh(now, *life) == Some(true));
        if cut && other && self.looks.not_before.is_none_or(|at| at <= now) {
            // So that the last attempt begins well before another one takes over.
            self.looks.not_before = Some(now.after(self.times.say_every));
            steps.look = true;
        }
    }

    /// `cut`: the redirector, which says that its line is.
    fn settle_as_member(
        &mut self,
        now: Instant,
        cut: Option<BootId>,
        there: &There,
        steps: &mut LineSteps,
    ) {
        if self.own.candidacy == Candidacy::Never {
            return;
        }
        let Some(leader) = cut else {
            // What held for one redirector does not for the next.
            (self.looks.found, self.looks.not_before) = (None, None);
            self.looks.pause = self.times.look_every;
            if !self.says_again(now, steps) && self.cut {
                steps.look = self.asks(now, self.looks.away_until.unwrap_or(now));
            }
            return;
        };
        let others = self.others(there, leader);
        let place = others.iter().position(|one| one.life == self.own.life).unwrap_or_default();
        let another = others
            .iter()
            .any(|one| one.life != self.own.life && self.fresh(now, one.life) == Some(true));
        if self.found(now).is_some() {
            self.again = 0;
            if self.says(now) {
                steps.say = Some(LineWord { number: 0, stands: true });
            }
            // Once more before it is not known any more.
            let old = self
                .looks
                .found
                .is_none_or(|(_, last)| now.since(last) >= self.times.look_every / 2);
            steps.look = old && self.looks_now(now, Duration::ZERO);
        } else if !another {
            self.looks.found = None;
            // One after the other, so that not all of a large group ask at once.
            let turn = self.times.say_every / 4 * place as u32;
            steps.look = self.looks_now(now, turn);
        }
    }

    /// Whether a look is asked for now; the first one after this pause.
    fn looks_now(&mut self, now: Instant, turn: Duration) -> bool {
        let at = *self.looks.not_before.get_or_insert_with(|| now.after(turn));
        self.asks(now, at)
    }

    /// Whether a look is asked for now that is due at `at`, if none is under way.
    fn asks(&mut self, now: Instant, at: Instant) -> bool {
        if now < at || self.looks.awaited.is_some_and(|until| now < until) {
            return false;
        }
        self.looks.awaited = Some(now.after(self.times.begun_after * LOOK_TIMES));
        true
    }

    fn says_again(&mut self, now: Instant, steps: &mut LineSteps) -> bool {
        if self.again == 0 {
            return false;
        }
        if self.says(now) {
            self.again -= 1;
            steps.say = Some(LineWord { number: 0, stands: true });
        }
        true
    }
}
