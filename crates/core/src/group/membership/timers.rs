//! What `foca` wants to be reminded of.

use super::swim::Identity;
use crate::id::BootId;
use crate::time::{Duration, Instant};
use foca::Timer;
use std::collections::{BTreeMap, BTreeSet};

/// When, and in the order in which it asked.
type Due = (Instant, u64);

/// Reminders. That somebody gone is to be forgotten is kept once for each life: who is told of again and again,
/// under ever new identities, takes no more room than another.
#[derive(Default)]
pub(super) struct Timers {
    due: BTreeMap<Due, Timer<Identity>>,
    /// When which of the gone are forgotten.
    gone: BTreeMap<BootId, Due>,
    asked: u64,
}

impl Timers {
    pub(super) fn add(&mut self, at: Instant, timer: Timer<Identity>) {
        self.asked += 1;
        let key = (at, self.asked);
        if let Timer::RemoveDown(identity) = &timer
            && let Some(before) = self.gone.insert(identity.participant.life, key)
        {
            crate::probe::probe("gone-again");
            self.due.remove(&before);
        }
        self.due.insert(key, timer);
    }

    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes those that are due. What is asked for meanwhile is for later.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<Timer<Identity>> {
        let later = self.due.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut self.due, later);
        self.gone.retain(|_, key| !due.contains_key(key));
        due.into_values().collect()
    }

    /// Takes the reminders of so many who are gone and not spared, those first who are to be forgotten first.
    pub(super) fn take_gone(
        &mut self,
        count: usize,
        spared: &BTreeSet<BootId>,
    ) -> Vec<Timer<Identity>> {
        let others = self.gone.iter().filter(|(life, _)| !spared.contains(*life));
        let mut keys: Vec<Due> = others.map(|(_, key)| *key).collect();
        keys.sort_unstable();
        keys.truncate(count);
        self.gone.retain(|_, key| keys.binary_search(key).is_err());
        keys.iter().filter_map(|key| self.due.remove(key)).collect()
    }

    /// All of it is so much later.
    pub(super) fn put_off(&mut self, by: Duration) {
        let due = std::mem::take(&mut self.due);
        self.due = due.into_iter().map(|((at, n), timer)| ((at.after(by), n), timer)).collect();
        for (at, _) in self.gone.values_mut() {
            *at = at.after(by);
        }
    }

    pub(super) fn clear(&mut self) {
        self.due.clear();
        self.gone.clear();
    }

    /// Panics when an invariant is broken.
    pub(super) fn check(&self) {
        let removes = |timer: &&Timer<Identity>| matches!(timer, Timer::RemoveDown(_));
        let reminders = self.due.values().filter(removes).count();
        assert_eq!(reminders, self.gone.len(), "one for each life");
        assert!(self.gone.values().all(|key| self.due.contains_key(key)), "it is there");
    }
}
