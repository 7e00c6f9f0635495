//! A redirector whose links broke (decision 0034). Its process may have ended: of that the kernel tells whoever was
//! linked to it at once, and SWIM a second or two later, when it is somebody's turn to ask it. So it is asked by all whose
//! links broke, again and again. Who gets no answer for a while says that it is missed, and when more than half of all
//! others say so at the same time, it is gone. One whose own line to it is cut has nobody replaced.

use crate::id::BootId;
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// What is heard of it so soon may have been said before its link broke, and come late: it is asked on.
const STALE: Duration = Duration::from_millis(250);

/// A word that it is missed counts for so many pauses: it is said again after each.
const COUNTS_FOR: u32 = 3;

/// The redirector, while the link to it is broken or others say so.
#[derive(Debug)]
pub(super) struct Missed {
    life: BootId,
    /// How this process looks for it; none: its own link has not broken.
    look: Option<Look>,
    /// Others who miss it, and when they said so last.
    by: BTreeMap<BootId, Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Look {
    began: Instant,
    /// It is asked again then.
    due: Instant,
    /// It is missed if nothing is heard of it until then.
    missed_at: Instant,
    /// And looked for until then.
    until: Instant,
}

/// What is to be done about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Nothing yet.
    Wait,
    /// It is asked whether it is there.
    Ask,
    /// The same, and all are told that it is missed.
    Say,
    /// It is not looked for any more: others do not miss it.
    Over,
}

impl Missed {
    pub(super) fn new(life: BootId) -> Self {
        Self { life, look: None, by: BTreeMap::new() }
    }

    pub(super) fn life(&self) -> BootId {
        self.life
    }

    /// This process's own link broke. It is missed when it has said nothing for so long, and for as long again.
    pub(super) fn broke(&mut self, now: Instant, silent_for: Duration) {
        self.look.get_or_insert(Look {
            began: now,
            due: now,
            missed_at: now.after(silent_for),
            until: now.after(silent_for * 2),
        });
    }

    /// It said something. Whether it is there, and not looked for any more; else it is missed so much later.
    pub(super) fn is_heard(&mut self, now: Instant, silent_for: Duration) -> bool {
        match &mut self.look {
            Some(look) if now.since(look.began) < STALE => {
                look.missed_at = now.after(silent_for);
                look.until = now.after(silent_for * 2);
                false
            }
            _ => true,
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.look.map(|look| look.due)
    }

    /// Another one misses it.
    pub(super) fn is_missed_by(&mut self, now: Instant, life: BootId) {
        self.by.insert(life, now);
    }

    /// Whether it is gone, as far as these say who are there besides it, this process among them.
    pub(super) fn is_gone(&self, now: Instant, others: &BTreeSet<BootId>, pause: Duration) -> bool {
        let missed = self.look.is_some_and(|look| look.missed_at <= now);
        let counts = |(life, at): &(&BootId, &Instant)| {
            others.contains(life) && at.after(pause * COUNTS_FOR) >= now
        };
        missed && 2 * (1 + self.by.iter().filter(counts).count()) > others.len()
    }

    /// This process stood still for so long: what it was answered meanwhile is yet to be read.
    pub(super) fn stood_still(&mut self, now: Instant, late: Duration, pause: Duration) {
        if let Some(look) = &mut self.look {
            look.due = now.after(pause);
            look.missed_at = look.missed_at.after(late).max(now.after(pause * 2));
            look.until = look.until.after(late).max(look.missed_at.after(pause * COUNTS_FOR));
        }
    }

    /// The next step; a pause lies between two of them.
    pub(super) fn step(&mut self, now: Instant, pause: Duration) -> Step {
        let Some(look) = self.look.as_mut().filter(|look| look.due <= now) else {
            return Step::Wait;
        };
        look.due = now.after(pause);
        if look.until <= now {
            return Step::Over;
        }
        if look.missed_at <= now {
            return Step::Say;
        }
        look.due = look.due.min(look.missed_at);
        Step::Ask
    }
}
