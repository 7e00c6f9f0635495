//! Groups of neighbours that help each other all the time.

use super::{Action, Plan, Trouble, pick};
use crate::agenda::{MICRO, MILLI, SECOND};
use crate::net::Line;
use larder_core::rng::Rng;

impl Plan {
    /// Members of one group, one of which hears its redirector much later than its neighbours (rules 10 to 12); in
    /// half of them somebody beyond the group changes the same pages, and in some rights come and go.
    pub(super) fn aim_at_neighbours(&mut self, rng: &mut Rng) {
        self.domains = 1;
        if self.relays.is_empty() {
            self.relays.push(0);
        }
        let below = self.relays.len() as u16;
        self.nodes = vec![below; 3 + rng.below(2) as usize];
        if rng.chance(1, 2) {
            self.nodes.insert(0, 0);
        }
        (self.clients, self.events) = (pick(rng, &[1, 2]), 16_000);
        let latency = pick(rng, &[100 * MICRO, MILLI, 10 * MILLI]);
        let quick = Line { latency, jitter: latency, byte_nanos: 0, bulk_spread: 0 };
        self.lines = vec![quick; self.relays.len() + self.nodes.len()];
        let late = self.lines.last_mut().expect("there are nodes");
        (late.latency, late.jitter) = (pick(rng, &[20, 80]) * MILLI, pick(rng, &[0, 40]) * MILLI);
        self.store_nanos = MILLI;
        self.limits.memory_bytes = pick(rng, &[1_200, 3_000, 8_000, 1 << 20]);
        self.limits.requests_max = self.limits.requests_max.max(16);
        self.limits.stream_window_bytes = self.limits.stream_window_bytes.max(16_384);
        self.limits.bulk_window_bytes = self.limits.bulk_window_bytes.max(32_768);
        self.mix.actions.extend([(Action::Read, 6), (Action::Put, 6), (Action::Create, 2)]);
        self.mix.consistency = pick(rng, &[[0, 1, 0], [1, 3, 1]]);
        self.mix.length = pick(rng, &[1, 2, 4]);
        self.mix.read_only_percent = pick(rng, &[30, 60]);
        self.mix.pages = pick(rng, &[4, 12]);
        self.mix.slots = pick(rng, &[1, 4]);
        self.mix.value_bytes = pick(rng, &[60, 400]);
        self.mix.think = pick(rng, &[MILLI, 5 * MILLI, 20 * MILLI]);
        self.mix.linger_percent = 0;
        self.mix.patience = 2 * SECOND;
        if rng.chance(1, 3) {
            self.mix.rights_percent = pick(rng, &[2, 8]);
        }
        if rng.chance(1, 2) {
            self.add_trouble(Trouble::Break, pick(rng, &[SECOND / 2, 4 * SECOND]));
        }
        if rng.chance(1, 3) {
            self.add_trouble(Trouble::CrashNode, pick(rng, &[SECOND, 4 * SECOND]));
        }
    }
}
