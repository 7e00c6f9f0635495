//! Commits whose pages are to be loaded and have no room yet (`pinned_bytes_max`): they wait in line.
//!
//! Put off, to come again after a while, one that needs much would never find room while others come that need little (P10,
//! bug 212). Processes have it by turns, however many commits each has there; who is next waits for the room that it
//! needs, and all others for it.

use super::commit::Waiting;
use super::{Context, Domain};
use crate::commit::COMMIT_BYTES_MAX;
use crate::id::BootId;
use crate::message::RequestError;
use crate::origin::OriginConfig;
use crate::time::Instant;
use std::collections::{BTreeMap, VecDeque};

/// The line of a domain.
#[derive(Debug)]
pub(super) struct Line {
    boots: BTreeMap<BootId, VecDeque<Waiting>>,
    /// In the order of their turns.
    round: VecDeque<BootId>,
    len: usize,
    bytes: usize,
    /// When there was room for another one last.
    moved: Instant,
    /// Pages have been given back since.
    has_room_made: bool,
    /// Links are gone since those were taken out for whom nobody waits.
    has_lost_links: bool,
}

impl Line {
    pub(super) fn new(now: Instant) -> Self {
        let (boots, round) = (BTreeMap::new(), VecDeque::new());
        Self {
            boots,
            round,
            len: 0,
            bytes: 0,
            moved: now,
            has_room_made: false,
            has_lost_links: false,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.boots.values().flatten()
    }

    /// Pages were given back: it will move on.
    pub(super) fn room_is_made(&mut self) {
        self.has_room_made = true;
    }

    /// A link is gone, which somebody in line may have come over.
    pub(super) fn loses_link(&mut self) {
        self.has_lost_links = !self.is_empty();
    }

    /// Whether one more commit may wait, of this process and so many bytes: the first always may, one of each process while there is
    /// room for the longest in a domain, others while the line has half of what may wait there, and no process half of that.
    fn takes(&self, config: &OriginConfig, boot: BootId, bytes: usize) -> bool {
        let own = self.boots.get(&boot);
        let own_bytes = own.into_iter().flatten().map(|waiting| waiting.bytes).sum::<usize>();
        let own = own.map_or(0, VecDeque::len);
        let (most, bytes_max) = (config.waiting_commits_max / 2, config.waiting_bytes_max / 2);
        let room = self.len < most && self.bytes + bytes <= bytes_max;
        let share = own < most / 2 && own_bytes + bytes <= bytes_max / 2;
        // Commits that wait for nothing here have the rest.
        let firsts_max = config.waiting_bytes_max.saturating_sub(COMMIT_BYTES_MAX).max(bytes_max);
        // Each as if it were as long as one may be: a long one has its chance beside short ones that always come.
        let large = firsts_max / 2;
        let first = self.len == 0
            || self.len < config.waiting_commits_max.div_ceil(4) * 3
                && self.bytes + COMMIT_BYTES_MAX.min(large) <= firsts_max;
        own == 0 && first || room && share
    }

    fn push(&mut self, waiting: Waiting) {
        self.len += 1;
        self.bytes += waiting.bytes;
        let boot = waiting.request.id.boot;
        let of_boot = self.boots.entry(boot).or_default();
        if of_boot.is_empty() {
            self.round.push_back(boot);
        }
        of_boot.push_back(waiting);
    }

    fn next(&self) -> Option<&Waiting> {
        self.boots[self.round.front()?].front()
    }

    fn pop(&mut self) -> Option<Waiting> {
        let boot = self.round.pop_front()?;
        let of_boot = self.boots.get_mut(&boot).expect("it has a turn");
        let waiting = of_boot.pop_front().expect("who waits for nothing has no turn");
        match of_boot.is_empty() {
            true => drop(self.boots.remove(&boot)),
            false => self.round.push_back(boot),
        }
        self.len -= 1;
        self.bytes -= waiting.bytes;
        Some(waiting)
    }

    /// Takes out those of which that is said.
    pub(super) fn take_out(&mut self, mut out: impl FnMut(&Waiting) -> bool) -> Vec<Waiting> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut taken = Vec::new();
        for of_boot in self.boots.values_mut() {
            let all = std::mem::take(of_boot).into_iter();
            let (gone, rest): (VecDeque<_>, VecDeque<_>) = all.partition(&mut out);
            *of_boot = rest;
            taken.extend(gone);
        }
        self.boots.retain(|_, of_boot| !of_boot.is_empty());
        self.round.retain(|boot| self.boots.contains_key(boot));
        self.len -= taken.len();
        self.bytes -= taken.iter().map(|waiting| waiting.bytes).sum::<usize>();
        taken
    }

    /// Takes out those that have waited for too long: as long as one after the other has its turn, theirs will come (bug
    /// 148), but not for ever.
    pub(super) fn take_late(&mut self, config: &OriginConfig, now: Instant) -> Vec<Waiting> {
        let moved = if self.has_room_made { now } else { self.moved };
        let wait_max = config.wait_max;
        self.take_out(|Waiting { since, .. }| {
            let (queued, most) = ((*since).max(moved).after(wait_max), since.after(wait_max * 3));
            queued.min(most) <= now
        })
    }

    /// Panics when an invariant is broken.
    pub(super) fn check(&self, config: &OriginConfig) {
        let bytes: usize = self.iter().map(|waiting| waiting.bytes).sum();
        assert_eq!((self.iter().count(), bytes), (self.len, self.bytes), "the line is miscounted");
        assert_eq!(self.boots.len(), self.round.len(), "each process has one turn in a round");
        assert!(self.round.iter().all(|boot| self.boots.contains_key(boot)), "a turn of nobody");
        assert!(self.len <= config.waiting_commits_max, "the line is too long");
        let parts = self.iter().filter(|waiting| waiting.request.across.is_some());
        assert_eq!(parts.count(), 0, "a part of a transaction waits in line");
    }
}

impl Domain {
    /// A commit needs pages that are not here. Whether it is to wait in line for room for those that it writes.
    pub(super) fn has_to_line_up(&self, cx: &Context<'_>, waiting: &mut Waiting) -> bool {
        // Parts wait for each other, and would do so here too: of each domain one or two are loaded at a time. Who has had
        // its turn goes on.
        if waiting.request.across.is_some() || !waiting.pinned.is_empty() {
            return false;
        }
        waiting.pins = self.bytes_pinned_for(&waiting.request);
        waiting.pins > 0
            && (!self.line.is_empty() || self.pinned_bytes > 0 && !self.may_pin(cx, waiting.pins))
    }

    /// One that was taken on before is never sent away.
    pub(super) fn line_up(&mut self, cx: &mut Context<'_>, mut waiting: Waiting) {
        let (boot, bytes) = (waiting.request.id.boot, waiting.bytes);
        if !waiting.taken_on && !self.line.takes(cx.config, boot, bytes) {
            self.leave_line();
            if !self.line.takes(cx.config, boot, bytes) {
                let waits = self.line.len();
                let error = format!("{waits} commits wait for room for pages that they need");
                return self.give_up(cx, waiting, &RequestError::Busy(error));
            }
        }
        crate::probe::probe("commit-waits-for-room-for-pages");
        waiting.since = cx.now;
        self.line.has_lost_links |= !self.pending.is_waited_for(waiting.request.id);
        self.line.push(waiting);
    }

    /// Loads pages for those who are next, as far as there is room for them.
    pub(super) fn load_for_next(&mut self, cx: &mut Context<'_>) {
        if std::mem::take(&mut self.line.has_room_made) {
            self.line.moved = cx.now;
        }
        while self.has_room_for_next(cx) {
            let mut waiting = self.line.pop().expect("there is a next one");
            self.line.moved = cx.now;
            waiting.since = cx.now;
            self.pin_for(&mut waiting);
            self.prepare(cx, waiting);
        }
    }

    /// Whether there is a next one, and room for its pages. One for whom nobody waits any more leaves, as if it had not come:
    /// who is gone may come back, and asks again.
    pub(super) fn has_room_for_next(&mut self, cx: &Context<'_>) -> bool {
        while let Some(next) = self.line.next()
            && !self.pending.is_waited_for(next.request.id)
        {
            let gone = self.line.pop().expect("just seen");
            self.has_left_line(&gone);
        }
        let next = self.line.next().map(|next| next.pins);
        next.is_some_and(|pins| self.pinned_bytes == 0 || self.may_pin(cx, pins))
    }

    /// The same of all in line, where links have gone since and their places are wanted.
    pub(super) fn leave_line(&mut self) {
        if !std::mem::take(&mut self.line.has_lost_links) {
            return;
        }
        let pending = &self.pending;
        for gone in self.line.take_out(|waiting| !pending.is_waited_for(waiting.request.id)) {
            self.has_left_line(&gone);
        }
    }

    fn has_left_line(&mut self, waiting: &Waiting) {
        crate::probe::probe("commit-left-in-line");
        self.leave(waiting);
        self.pending.take(waiting.request.id);
    }

    /// Whether pages of so many bytes have room beside those of other commits.
    fn may_pin(&self, cx: &Context<'_>, bytes: usize) -> bool {
        self.pinned_bytes + bytes <= cx.config.pinned_bytes_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: firsts of processes were let into the line up to 96 MiB before the last of them was added, so four
    /// commits of 32 MiB left nothing for those that wait for nothing here: they were put off for as long as the line
    /// stood, `wait_max` (bug 222).
    #[test]
    fn long_firsts_leave_room_for_commits_that_wait_for_nothing() {
        let config = OriginConfig::default();
        let mut line = Line::new(Instant(0));
        let mut taken = 0;
        while line.takes(&config, BootId(taken), COMMIT_BYTES_MAX) {
            (line.len, line.bytes, taken) =
                (line.len + 1, line.bytes + COMMIT_BYTES_MAX, taken + 1);
        }
        assert_eq!(taken, 3);
        assert!(line.bytes + COMMIT_BYTES_MAX <= config.waiting_bytes_max);
        assert!(!line.takes(&config, BootId(taken), 1), "not beside three that fill it");
        // One alone always may, and a long one beside short ones.
        let config = OriginConfig { waiting_bytes_max: 4_096, ..config };
        let mut line = Line::new(Instant(0));
        assert!(line.takes(&config, BootId(1), COMMIT_BYTES_MAX));
        (line.len, line.bytes) = (10, 1_000);
        assert!(line.takes(&config, BootId(1), COMMIT_BYTES_MAX));
        line.bytes = 1_100;
        assert!(!line.takes(&config, BootId(1), COMMIT_BYTES_MAX));
    }
}
