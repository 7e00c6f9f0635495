//! Aims at what stores do: power cuts, appends that are torn, disks that are full.

use crate::agenda::{MILLI, SECOND};
use crate::plan::{Action, Plan, Trouble, pick};
use larder_core::rng::Rng;
use larder_core::time::Duration;

impl Plan {
    /// A log that goes from one small segment to the next all the time, on a machine that loses power again and
    /// again (rule 14).
    pub(super) fn aim_at_power_cuts(&mut self, rng: &mut Rng) {
        self.troubles = vec![
            (Trouble::CutPower, pick(rng, &[SECOND, 3 * SECOND])),
            (Trouble::KillOrigin, 4 * SECOND),
        ];
        self.domains = 1;
        self.clients = self.clients.max(2);
        self.limits.memory_bytes = 1 << 20;
        self.store_nanos = MILLI;
        self.lines.iter_mut().for_each(|line| line.latency = line.latency.min(10 * MILLI));
        self.mix.actions = vec![(Action::Put, 6), (Action::Create, 2), (Action::Read, 1)];
        self.mix.consistency = [0, 1, 0];
        self.mix.length = 1;
        self.mix.read_only_percent = 0;
        self.mix.think = pick(rng, &[MILLI, 20 * MILLI]);
        self.mix.linger_percent = 0;
        self.mix.quota_percent = 0;
        // Segments that are used again, and a cut before their new names are there for good.
        if rng.chance(1, 2) {
            self.limits.install_interval = Duration::from_millis(10);
            self.limits.install_pages_max = 1 << 10;
            self.mix.value_bytes = pick(rng, &[400, 2_000]);
            self.mix.slots = 1;
        }
        // A kill, after which records are read that were never synced, and a cut before the next sync.
        if rng.chance(1, 2) {
            self.troubles[1].1 = SECOND;
            self.store_nanos = 100 * MILLI;
        }
    }

    /// Appends of many short records to a slow log, each power cut tearing one and the next coming soon: what one
    /// left is beyond a new end that has gone on by records as long as those that it took the place of (rule
    /// 14). Quotas refuse what they permit when it is sent again (rule 15).
    pub(super) fn aim_at_torn_appends(&mut self, _rng: &mut Rng) {
        self.troubles = vec![(Trouble::CutPower, 120 * MILLI)];
        self.machines_reset = true;
        (self.domains, self.volumes) = (1, 1);
        (self.clients, self.events) = (10, 20_000);
        for line in &mut self.lines {
            (line.latency, line.jitter, line.byte_nanos, line.bulk_spread) = (MILLI, 0, 0, 0);
        }
        self.store_nanos = 100 * MILLI;
        self.limits.memory_bytes = 1 << 20;
        self.limits.requests_max = 64;
        self.limits.append_records_max = 1 << 10;
        self.limits.install_interval = Duration::from_secs(20);
        (self.limits.lease, self.limits.silence) =
            (Duration::from_secs(15), Duration::from_secs(30));
        // The record of page numbers that were given is as long as that of a start.
        self.mix.actions = vec![(Action::CreatePage, 8), (Action::Create, 1)];
        self.mix.consistency = [0, 1, 0];
        self.mix.length = 1;
        self.mix.read_only_percent = 0;
        self.mix.value_bytes = 24;
        self.mix.think = MILLI;
        self.mix.linger_percent = 0;
        self.mix.patience = 16 * SECOND;
        self.mix.quota_percent = 30;
    }

    /// Transactions over two or three domains, beside those of one, while the origin dies, loses power and finds
    /// no room: between what is prepared, decided and followed (decision 0035).
    pub(in crate::plan) fn aim_at_wholes(&mut self, rng: &mut Rng) {
        self.troubles = vec![(Trouble::KillOrigin, pick(rng, &[300 * MILLI, 2 * SECOND]))];
        if rng.chance(1, 2) {
            self.troubles.push((Trouble::CutPower, pick(rng, &[500 * MILLI, 2 * SECOND])));
        }
        let fills = rng.chance(1, 3);
        if fills && rng.chance(1, 3) {
            // Starts upon what is prepared find no room.
            self.troubles.push((Trouble::DiskFull, pick(rng, &[200 * MILLI, SECOND])));
        } else if fills {
            self.troubles = vec![
                (Trouble::DiskFull, pick(rng, &[50 * MILLI, 500 * MILLI])),
                (Trouble::KillOrigin, pick(rng, &[4, 20]) * SECOND),
            ];
        }
        // Outcomes of some parts are known, and of others not.
        if rng.chance(1, 2) {
            self.troubles.push((Trouble::Break, pick(rng, &[100, 400]) * MILLI));
        }
        (self.domains, self.volumes) = (2 + rng.below(2) as u16, 1);
        (self.clients, self.events) = (3 + rng.below(4) as u16, 10_000);
        self.lines.iter_mut().for_each(|line| line.latency = line.latency.min(10 * MILLI));
        self.store_nanos = pick(rng, &[MILLI, 20 * MILLI]);
        self.limits.memory_bytes = 1 << 20;
        self.mix.actions = vec![(Action::Read, 4), (Action::Put, 4), (Action::Create, 2)];
        self.mix.consistency = [1, 4, 0];
        self.mix.spread_percent = 100;
        self.mix.read_only_percent = pick(rng, &[0, 20]);
        self.mix.length = pick(rng, &[2, 4]);
        (self.mix.pages, self.mix.slots, self.mix.value_bytes) = (1, pick(rng, &[2, 16]), 60);
        self.mix.think = pick(rng, &[MILLI, 20 * MILLI]);
        self.mix.linger_percent = 0;
        self.mix.quota_percent = pick(rng, &[0, 0, 30]);
        // A log that goes to its next segment all the time finds no room for that, in the middle of whatever is done:
        // where installs come late no segment is used again meanwhile.
        if fills {
            (self.mix.slots, self.mix.value_bytes) = (2, 1_800);
            self.limits.install_interval = Duration::from_secs(pick(rng, &[2, 20]));
            self.short_segments = true;
        }
        // A log stands still, with what is prepared elsewhere: who waits for a turn there gives up before it comes
        // (rule 19).
        if !fills && rng.chance(1, 4) {
            self.troubles = vec![(Trouble::Hang, pick(rng, &[SECOND, 5 * SECOND]))];
        }
    }

    /// Writers who want the same few objects while there is room for none of them, now and then: whoever read
    /// what was taken back with an append that found no room is in conflict with nothing (rule 15).
    pub(super) fn aim_at_full_stores(&mut self, rng: &mut Rng) {
        self.troubles = vec![(Trouble::DiskFull, pick(rng, &[500 * MILLI, 2 * SECOND]))];
        (self.domains, self.volumes) = (1, 1);
        (self.clients, self.events) = (4, 10_000);
        for line in &mut self.lines {
            (line.latency, line.jitter) = (10 * MILLI, 20 * MILLI);
            (line.byte_nanos, line.bulk_spread) = (0, 0);
        }
        self.store_nanos = pick(rng, &[MILLI, 20 * MILLI]);
        self.limits.memory_bytes = 1 << 20;
        self.limits.requests_max = 64;
        self.limits.append_records_max = 1 << 10;
        self.limits.recent_writes_max = 1 << 12;
        self.mix.actions =
            vec![(Action::Read, 4), (Action::Put, 4), (Action::Create, 2), (Action::CreatePage, 1)];
        self.mix.consistency = [0, 1, 0];
        self.mix.length = pick(rng, &[1, 2]);
        self.mix.read_only_percent = 0;
        (self.mix.pages, self.mix.slots, self.mix.value_bytes) = (8, 2, 60);
        self.mix.think = 20 * MILLI;
        self.mix.linger_percent = 0;
        self.mix.patience = 2 * SECOND;
        // Installs all the time, of a few pages each, which change while they are being refused: what is installed
        // between has the log trimmed (P8).
        if rng.chance(1, 2) {
            self.limits.install_interval = Duration::from_millis(10);
            self.limits.install_pages_max = pick(rng, &[2, 8]);
        }
    }
}
