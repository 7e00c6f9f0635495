//! Several aims at once.

use super::{
    CLOCKS, EVICTIONS, FULL_STORES, LATE_STREAMS, LISTS, NARROWS, NUMBERS, POWER_CUTS, RESTORES,
    RESUMES_BELOW, TORN_APPENDS, TWO_DOMAINS,
};
use crate::agenda::{MILLI, SECOND};
use crate::plan::{Budget, Plan, Trouble, pick};
use larder_core::rng::Rng;

impl Plan {
    /// Aims on top of one another, each of which sets what the one before has set, and what none of them
    /// has: four bugs were found at once where only single aims had been drawn (162 to 165).
    pub(super) fn draw_mixture(&mut self, rng: &mut Rng) {
        if !rng.chance(1, 8) {
            return;
        }
        self.aims.push("mixed".into());
        let beyond = self.budget == Budget::Beyond;
        let several = self.nodes.len() > 1;
        for _ in 0..1 + rng.below(3) {
            match rng.below(12) {
                0 => TWO_DOMAINS.take(self, rng),
                1 if !self.relays.is_empty() => LATE_STREAMS.take(self, rng),
                2 if beyond => RESTORES.take(self, rng),
                3 => EVICTIONS.take(self, rng),
                4 => LISTS.take(self, rng),
                5 if several && beyond => NUMBERS.take(self, rng),
                6 => NARROWS.take(self, rng),
                7 => RESUMES_BELOW.take(self, rng),
                8 => TORN_APPENDS.take(self, rng),
                9 => FULL_STORES.take(self, rng),
                10 => POWER_CUTS.take(self, rng),
                _ => CLOCKS.take(self, rng),
            }
        }
        if beyond && self.nodes.len() > 1 && rng.chance(1, 3) {
            self.twins = true;
            self.limits.boots_per_name_max = pick(rng, &[1, 2, 4_096]);
        }
        if beyond && rng.chance(1, 2) {
            self.add_trouble(Trouble::Restore, pick(rng, &[500 * MILLI, 2 * SECOND]));
        }
        if rng.chance(1, 3) {
            self.mix.numbers_ahead = 4;
        }
        // Where a log hangs, it is looked whether the volumes of the other domain go on.
        let hangs = self.troubles.iter().any(|(trouble, _)| *trouble == Trouble::Hang);
        if rng.chance(1, 3) && !hangs {
            self.mix.delete_percent = pick(rng, &[5, 20]);
        }
        if rng.chance(1, 4) {
            // Less than a message at a time over two slow lines takes longer than anybody waits.
            let least = if self.relays.is_empty() { 100 } else { 1_000 };
            self.limits.stream_window_bytes = pick(rng, &[least, 1_000]);
        }
        if rng.chance(1, 2) {
            self.add_trouble(Trouble::Break, pick(rng, &[100 * MILLI, SECOND]));
        }
        if rng.chance(1, 3) {
            self.add_trouble(Trouble::CutPower, pick(rng, &[100 * MILLI, SECOND]));
        }
        if self.nodes.len() > 8 {
            // As in a crowd behind two relays.
            self.limits.requests_max = self.limits.requests_max.max(4);
        }
        self.store_nanos = self.store_nanos.min(20 * MILLI);
        self.events = self.events.min(10_000);
    }
}
