//! Plans that aim at what the general mix seldom meets.

use super::{Action, Limits, Mix, Plan, Trouble, pick};
use crate::agenda::{MICRO, MILLI, SECOND};
use larder_core::rng::Rng;
use larder_core::time::Duration;

impl Plan {
    /// Small memory, slow lines on which answers overtake each other, many pages asked for ahead and
    /// not waited for (rules 2, 6 and 7).
    pub(super) fn aim_at_evictions(&mut self, rng: &mut Rng) {
        self.mix.aim_at_evictions(rng);
        self.limits.aim_at_evictions(rng);
        self.mix.patience = pick(rng, &[50, 200]) * MILLI;
        for line in &mut self.lines {
            line.latency = line.latency.max(60 * MILLI);
            line.bulk_spread = 8 * line.latency;
        }
    }

    /// Up to fifty nodes of one client each, which all want the same few pages.
    pub(super) fn aim_at_crowds(&mut self, rng: &mut Rng) {
        let relays = self.relays.len();
        let nodes = 8 + rng.below(43) as usize;
        self.lines.truncate(relays);
        self.nodes.clear();
        for _ in 0..nodes {
            self.nodes.push(super::pick_parent(rng, relays as u64));
        }
        while self.lines.len() < relays + nodes {
            self.lines.push(crate::net::draw_line(rng));
        }
        self.clients = 1;
        self.events = 20_000;
    }

    /// Two live processes of one name, and breaks after which now one, now the other comes first
    /// while the origin remembers one boot of a name or two.
    pub(super) fn aim_at_twins(&mut self, rng: &mut Rng) {
        self.twins = true;
        self.limits.boots_per_name_max = pick(rng, &[1, 1, 1, 2, 4_096]);
        // Commits are under way when a link breaks.
        self.mix.read_only_percent = pick(rng, &[0, 0, 30]);
        self.mix.consistency = pick(rng, &[[0, 1, 0], [1, 1, 0]]);
        self.add_trouble(Trouble::Break, pick(rng, &[200 * MILLI, SECOND]));
        self.add_trouble(Trouble::Partition, 2 * SECOND);
    }

    /// Children that come back again and again to relays whose stream is behind what they fetch
    /// (rule 11).
    pub(super) fn aim_at_late_streams(&mut self, rng: &mut Rng) {
        self.add_trouble(Trouble::Break, pick(rng, &[100 * MILLI, 400 * MILLI]));
        for (line, parent) in self.lines.iter_mut().zip(self.relays.iter().chain(&self.nodes)) {
            // Above a relay slow and uneven, below it quick.
            line.latency = if *parent == 0 { pick(rng, &[10, 40]) * MILLI } else { 100 * MICRO };
            line.jitter = if *parent == 0 { 4 * line.latency } else { 0 };
        }
    }

    /// Restores right after a copy was made, a commit or two in between, and outcomes that are there
    /// before the stream (bug 27).
    pub(super) fn aim_at_restores(&mut self, rng: &mut Rng) {
        self.troubles = vec![(Trouble::Restore, pick(rng, &[500 * MILLI, 2 * SECOND]))];
        self.store_nanos = MILLI;
        for line in &mut self.lines {
            line.latency = pick(rng, &[10, 80]) * MILLI;
            line.jitter = 4 * line.latency;
        }
        self.mix.length = pick(rng, &[1, 2]);
        self.mix.read_only_percent = 30;
        self.mix.think = pick(rng, &[20, 300]) * MILLI;
        self.mix.linger_percent = 0;
    }

    /// Page lists sent anew on links that stand, and notices of pages that nobody has made, in lanes
    /// on which commits that make pages overtake them (bugs 29 and 30).
    pub(super) fn aim_at_lists(&mut self, rng: &mut Rng) {
        self.troubles = vec![(Trouble::Break, pick(rng, &[SECOND, 4 * SECOND]))];
        self.mix.aim_at_making_pages(rng);
        // Whoever changes a page is registered for it anew.
        self.mix.parted = true;
        self.limits.aim_at_evictions(rng);
        self.limits.notices_max = pick(rng, &[0, 1, 1 << 10]);
        self.limits.memory_bytes = pick(rng, &[800, 2_000, 1 << 20]);
        // Between the lists of a relay, during which it is not told what it ought to be.
        self.limits.beat = Duration::from_millis(pick(rng, &[100, 1_000]));
        self.limits.lease = Duration::from_secs(15);
        self.limits.silence = Duration::from_secs(30);
        // The first is no relay's child: what it changes must be told to others over the relays.
        let below = self.relays.len() as u16;
        self.nodes = vec![0, below, below];
        self.clients = 3;
        self.events = 10_000;
        self.lines.resize(self.relays.len() + self.nodes.len(), self.lines[0]);
        self.store_nanos = MILLI;
        for line in &mut self.lines {
            line.latency = pick(rng, &[10, 30]) * MILLI;
            line.jitter = 6 * line.latency;
            (line.byte_nanos, line.bulk_spread) = (0, 0);
        }
        // It changes what is made while that is still told wrongly.
        let quick = &mut self.lines[self.relays.len()];
        (quick.latency, quick.jitter) = (MILLI, 0);
    }

    /// Clients that keep numbers of pages over restores which may lose nothing else that their node
    /// has seen, beside others that are given the same ones (bug 31).
    pub(super) fn aim_at_numbers(&mut self, rng: &mut Rng) {
        self.troubles = vec![(Trouble::Restore, pick(rng, &[500 * MILLI, 2 * SECOND]))];
        self.mix.aim_at_making_pages(rng);
        self.mix.actions = vec![(Action::CreatePage, 6), (Action::Create, 1), (Action::Read, 3)];
        self.mix.read_only_percent = 60;
        self.mix.length = 1;
        self.mix.think = pick(rng, &[100, 500]) * MILLI;
        self.mix.patience = 2 * SECOND;
        self.store_nanos = MILLI;
        self.lines.iter_mut().for_each(|line| line.latency = line.latency.min(10 * MILLI));
    }

    /// Writers that would use two domains, many at once on few objects (P2).
    pub(super) fn aim_at_two_domains(&mut self, rng: &mut Rng) {
        self.troubles = Vec::new();
        (self.domains, self.volumes, self.clients) = (2, 1, 3);
        self.limits.memory_bytes = 1 << 20;
        self.store_nanos = MILLI;
        self.lines.iter_mut().for_each(|line| line.latency = line.latency.min(10 * MILLI));
        self.mix.actions = vec![(Action::Read, 4), (Action::Put, 4), (Action::Create, 2)];
        self.mix.consistency = [0, 1, 0];
        self.mix.spread_percent = 100;
        self.mix.read_only_percent = 0;
        self.mix.length = pick(rng, &[2, 4]);
        (self.mix.pages, self.mix.slots, self.mix.value_bytes) = (1, 2, 60);
        self.mix.think = pick(rng, &[MILLI, 20 * MILLI]);
        self.mix.linger_percent = 0;
    }

    /// Copies below a relay that come to nothing, beside fetches over the same link, to the very end:
    /// what waits for the credit that was reserved for them is served by nothing else (bug 75).
    pub(super) fn aim_at_refused_copies(&mut self) {
        self.limits.copies_max = 0;
        // With room for one request at a time commits behind a relay would wait for ever (finding 320).
        self.limits.requests_max = self.limits.requests_max.max(16);
        self.mix.copy_percent = 40;
        self.limits.memory_bytes = 2_000;
        self.clients = 2;
        self.nodes.iter_mut().for_each(|parent| *parent = (*parent).max(1));
    }

    /// Wall clocks that are set, machines that sleep, and caches that are cut off for about a lease:
    /// what a process takes for the time shows in the ages that it tells (rule 8).
    pub(super) fn aim_at_clocks(&mut self, rng: &mut Rng) {
        self.troubles = vec![
            (Trouble::SetWall, pick(rng, &[300 * MILLI, 2 * SECOND])),
            (Trouble::Pause, pick(rng, &[500 * MILLI, 4 * SECOND])),
            (Trouble::Clog, pick(rng, &[300 * MILLI, SECOND])),
            (Trouble::Partition, SECOND),
        ];
        self.aim_at_ages(rng);
    }

    /// Nodes that begin anew behind a relay whose own line is cut for long, and follow it as soon as the
    /// line is back, while it is told what it has missed: its state is older than their clocks then
    /// (bug 39). And what has changed, which concerns nobody below, is not told to them at once.
    pub(super) fn aim_at_old_echoes(&mut self, rng: &mut Rng) {
        self.troubles = vec![
            (Trouble::CrashNode, pick(rng, &[SECOND, 2 * SECOND])),
            (Trouble::Partition, pick(rng, &[500 * MILLI, SECOND])),
        ];
        self.aim_at_ages(rng);
        (self.domains, self.volumes, self.clients, self.events) = (1, 1, 3, 10_000);
        self.limits.lease = Duration::from_secs(3);
        self.limits.beat = Duration::from_millis(1_500);
        self.limits.quiet_interval = Duration::from_secs(2);
        (self.relays, self.nodes) = (vec![0], vec![0, 0, 1, 1, 1]);
        self.lines.resize(self.relays.len() + self.nodes.len(), self.lines[0]);
        (self.lines[0].latency, self.lines[0].jitter) = (20 * MILLI, 160 * MILLI);
        // A page that changed is told of at once to who asks for it.
        self.mix.actions.push((Action::CreatePage, 2));
        self.mix.pages = 8;
        self.mix.read_only_percent = 95;
    }

    /// A short lease, and pages that are looked at again and again.
    fn aim_at_ages(&mut self, rng: &mut Rng) {
        self.limits.lease = Duration::from_secs(1);
        self.limits.beat = Duration::from_millis(100);
        self.limits.silence = Duration::from_secs(2);
        self.limits.memory_bytes = 1 << 20;
        self.store_nanos = MILLI;
        for line in &mut self.lines {
            line.latency = line.latency.min(MILLI);
            (line.jitter, line.byte_nanos, line.bulk_spread) = (0, 0, 0);
        }
        let weights = [(Action::Read, 6), (Action::Put, 3), (Action::Create, 2)];
        self.mix.actions = weights.to_vec();
        self.mix.consistency = [0, 1, 0];
        self.mix.length = pick(rng, &[1, 2]);
        self.mix.read_only_percent = 60;
        (self.mix.pages, self.mix.slots, self.mix.value_bytes) = (2, 2, 60);
        self.mix.think = 20 * MILLI;
        self.mix.linger_percent = 0;
        self.mix.patience = 2 * SECOND;
    }

    pub(super) fn add_trouble(&mut self, trouble: Trouble, mean: u64) {
        self.troubles.retain(|(other, _)| *other != trouble);
        self.troubles.push((trouble, mean));
    }
}

impl Mix {
    /// Short transactions over more pages than fit, many of them asked for ahead: pages leave while
    /// they are on their way back (rules 2 and 7).
    pub(super) fn aim_at_evictions(&mut self, rng: &mut Rng) {
        let more = [
            (Action::Prefetch, 8),
            (Action::Put, 4),
            (Action::Read, 4),
            (Action::Create, 3),
            (Action::CreatePage, 1),
        ];
        self.actions = more.to_vec();
        self.consistency = [0, 1, 0];
        self.length = 1;
        self.pages = pick(rng, &[4, 12]);
        self.value_bytes = 60;
        self.think = 20 * MILLI;
        self.linger_percent = 0;
        self.patience = pick(rng, &[50 * MILLI, SECOND]);
    }

    /// Short transactions that make pages with numbers asked for ahead, look at them before they are
    /// made, and change those made last.
    fn aim_at_making_pages(&mut self, rng: &mut Rng) {
        let weights = [
            (Action::CreatePage, 4),
            (Action::ReadAhead, 4),
            (Action::Put, 4),
            (Action::Create, 3),
            (Action::Read, 3),
            (Action::WriteRaw, 2),
        ];
        self.actions = weights.to_vec();
        self.consistency = [0, 1, 0];
        self.length = pick(rng, &[1, 2]);
        self.pages = pick(rng, &[2, 4]);
        self.slots = 2;
        self.value_bytes = 60;
        self.think = 20 * MILLI;
        self.linger_percent = 0;
        self.read_only_percent = 0;
        self.patience = 2 * SECOND;
        self.numbers_ahead = pick(rng, &[1, 4]);
    }
}

impl Limits {
    /// Small memory, everything else ample.
    pub(super) fn aim_at_evictions(&mut self, rng: &mut Rng) {
        self.memory_bytes = pick(rng, &[800, 2_000]);
        self.notices_max = 1 << 10;
        self.kept_max = 1 << 10;
        self.recent_max = 1 << 10;
        self.requests_max = 1 << 10;
        self.stream_window_bytes = 1 << 20;
        self.bulk_window_bytes = 1 << 20;
        self.registered_pages_max = 1 << 10;
        self.ring_commits_max = 1 << 12;
        self.ring_bytes_max = 1 << 20;
        self.beat = Duration::from_millis(100);
    }
}
