//! Plans that aim at what the general mix seldom meets. An aim adds weight and forbids nothing: each part
//! of a plan that it sets is now and then left as it was drawn, and what it leaves out of the troubles
//! is there all the same in an eighth of its runs.

mod mixed;
mod neighbours;
mod stores;

use super::{Action, Budget, Limits, Mix, Plan, Trouble, pick};
use crate::agenda::{MICRO, MILLI, SECOND};
use larder_core::rng::Rng;
use larder_core::time::Duration;

/// What an aim may set of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// Domains, volumes, processes, lines, clients, and how many events there are.
    World,
    /// What transactions do.
    Mix,
    /// Bounds of the machines.
    Limits,
    /// How slow the stores are.
    Stores,
    /// What goes wrong.
    Troubles,
}

/// Something to aim at.
pub(crate) struct Aim {
    pub(crate) name: &'static str,
    /// All that it sets.
    pub(crate) sets: &'static [Part],
    aim: fn(&mut Plan, &mut Rng),
}

use Part::{Limits as L, Mix as M, Stores as S, Troubles as T, World as W};

const CROWDS: Aim = Aim { name: "crowds", sets: &[W, L], aim: Plan::aim_at_crowds };
const TWINS: Aim = Aim { name: "twins", sets: &[W, M, L, T], aim: Plan::aim_at_twins };
const THIEVES: Aim = Aim { name: "thieves", sets: &[T], aim: Plan::aim_at_thieves };
const LATE_STREAMS: Aim =
    Aim { name: "late-streams", sets: &[W, T], aim: Plan::aim_at_late_streams };
const RESTORES: Aim = Aim { name: "restores", sets: &[W, M, S, T], aim: Plan::aim_at_restores };
const EVICTIONS: Aim = Aim { name: "evictions", sets: &[W, M, L], aim: Plan::aim_at_evictions };
const LISTS: Aim = Aim { name: "lists", sets: &[W, M, L, S, T], aim: Plan::aim_at_lists };
const NARROWS: Aim = Aim { name: "narrows", sets: &[W, M, L, S, T], aim: Plan::aim_at_narrows };
const RESUMES_BELOW: Aim =
    Aim { name: "resumes-below", sets: &[W, M, L, S, T], aim: Plan::aim_at_resumes_below };
const OLD_ECHOES: Aim =
    Aim { name: "old-echoes", sets: &[W, M, L, S, T], aim: Plan::aim_at_old_echoes };
const NUMBERS: Aim = Aim { name: "numbers", sets: &[W, M, S, T], aim: Plan::aim_at_numbers };
const CLOCKS: Aim = Aim { name: "clocks", sets: &[W, M, L, S, T], aim: Plan::aim_at_clocks };
const TWO_DOMAINS: Aim =
    Aim { name: "two-domains", sets: &[W, M, L, S, T], aim: Plan::aim_at_two_domains };
const POWER_CUTS: Aim =
    Aim { name: "power-cuts", sets: &[W, M, L, S, T], aim: Plan::aim_at_power_cuts };
const WHOLES: Aim = Aim { name: "wholes", sets: &[W, M, L, S, T], aim: Plan::aim_at_wholes };
const TORN_APPENDS: Aim =
    Aim { name: "torn-appends", sets: &[W, M, L, S, T], aim: Plan::aim_at_torn_appends };
const FULL_STORES: Aim =
    Aim { name: "full-stores", sets: &[W, M, L, S, T], aim: Plan::aim_at_full_stores };
const EMPTIED_SLOTS: Aim =
    Aim { name: "emptied-slots", sets: &[M, S], aim: Plan::aim_at_emptied_slots };
const NEIGHBOURS: Aim =
    Aim { name: "neighbours", sets: &[W, M, L, S, T], aim: Plan::aim_at_neighbours };
const REFUSED_COPIES: Aim =
    Aim { name: "refused-copies", sets: &[W, M, L], aim: Plan::aim_at_refused_copies };

impl Aim {
    /// Gives a plan this weight.
    fn take(&self, plan: &mut Plan, rng: &mut Rng) {
        let drawn = plan.clone();
        (self.aim)(plan, rng);
        plan.aims.push(self.name.into());
        for part in self.sets {
            if *part == Part::Troubles {
                if rng.chance(1, 8) {
                    plan.keep_troubles(&drawn);
                }
            } else if rng.chance(1, 32) {
                part.keep(&drawn, plan);
            }
        }
    }
}

impl Part {
    /// Takes this part of a plan from another.
    fn keep(self, from: &Plan, plan: &mut Plan) {
        match self {
            Self::World => {
                (plan.domains, plan.volumes) = (from.domains, from.volumes);
                (plan.relays, plan.nodes) = (from.relays.clone(), from.nodes.clone());
                (plan.lines, plan.twins) = (from.lines.clone(), from.twins);
                (plan.clients, plan.events) = (from.clients, from.events);
                plan.machines_reset = from.machines_reset;
            }
            Self::Mix => plan.mix = from.mix.clone(),
            Self::Limits => plan.limits = from.limits.clone(),
            Self::Stores => {
                (plan.store_nanos, plan.short_segments) = (from.store_nanos, from.short_segments);
            }
            Self::Troubles => plan.troubles = from.troubles.clone(),
        }
    }
}

impl Plan {
    /// Draws what it aims at, if anything.
    pub(super) fn draw_aims(&mut self) {
        let beyond = self.budget == Budget::Beyond;
        let rng = &mut Rng::new(self.seed ^ 0x00c0_0d50);
        if rng.chance(1, 25) {
            CROWDS.take(self, rng);
        }
        let rng = &mut Rng::new(self.seed ^ 0x0a_1a5e);
        if self.nodes.len() > 1 && beyond && rng.chance(1, 4) {
            TWINS.take(self, rng);
        }
        match rng.below(16) {
            0..=3 if !self.relays.is_empty() => LATE_STREAMS.take(self, rng),
            4..=8 if beyond => RESTORES.take(self, rng),
            9 | 10 => EVICTIONS.take(self, rng),
            _ => {}
        }
        let rng = &mut Rng::new(self.seed ^ 0x00ec_40e5);
        match rng.below(24) {
            0..=6 | 19 | 20 => LISTS.take(self, rng),
            7 | 17 | 18 => OLD_ECHOES.take(self, rng),
            8 | 9 if self.nodes.len() > 1 && beyond => NUMBERS.take(self, rng),
            10 | 11 => CLOCKS.take(self, rng),
            12 => TWO_DOMAINS.take(self, rng),
            13 => NARROWS.take(self, rng),
            14 => RESUMES_BELOW.take(self, rng),
            15 => TORN_APPENDS.take(self, rng),
            16 => FULL_STORES.take(self, rng),
            _ => {}
        }
        let rng = &mut Rng::new(self.seed ^ 0x0c07_b0e7);
        if rng.chance(1, 12) {
            POWER_CUTS.take(self, rng);
        }
        let rng = &mut Rng::new(self.seed ^ 0x0e_a971);
        if rng.chance(1, 24) {
            EMPTIED_SLOTS.take(self, rng);
        }
        let rng = &mut Rng::new(self.seed ^ 0x00_2bc0);
        // Of what slow stores and clocks aim at nothing would be left.
        let echoes = self.aims.iter().any(|aim| aim == OLD_ECHOES.name);
        if rng.chance(1, 8) && !echoes {
            WHOLES.take(self, rng);
        }
        self.draw_mixture(&mut Rng::new(self.seed ^ 0x77aa_a971));
        let rng = &mut Rng::new(self.seed ^ 0x007_41ef);
        if self.nodes.len() > 1 && beyond && rng.chance(1, 20) {
            THIEVES.take(self, rng);
        }
        let rng = &mut Rng::new(self.seed ^ 0x004e_1947);
        // Of what other aims set up little would be left.
        let seldom = if self.aims.is_empty() { 3 } else { 8 };
        if rng.chance(1, seldom) {
            NEIGHBOURS.take(self, rng);
        }
    }

    /// Whether it is about neighbours.
    pub(super) fn is_of_neighbours(&self) -> bool {
        self.aims.iter().any(|aim| aim == NEIGHBOURS.name)
    }

    /// Of plans with copies, half of those with relays.
    pub(super) fn draw_refused_copies(&mut self) {
        let rng = &mut Rng::new(self.seed ^ 0x0c0b_1e5f);
        if !self.relays.is_empty() && rng.chance(1, 2) {
            REFUSED_COPIES.take(self, rng);
        }
    }

    /// What was drawn of troubles is there beside what it aims with.
    fn keep_troubles(&mut self, drawn: &Self) {
        for (trouble, mean) in &drawn.troubles {
            if self.troubles.iter().all(|(other, _)| other != trouble) {
                self.add_trouble(*trouble, *mean);
            }
        }
    }
}

impl Plan {
    /// Small memory, slow lines on which answers overtake each other, many pages asked for ahead and
    /// not waited for (rules 2, 6 and 7).
    fn aim_at_evictions(&mut self, rng: &mut Rng) {
        self.mix.aim_at_evictions(rng);
        self.limits.aim_at_evictions(rng);
        self.mix.patience = pick(rng, &[50, 200]) * MILLI;
        for line in &mut self.lines {
            line.latency = line.latency.max(60 * MILLI);
            line.bulk_spread = 8 * line.latency;
        }
    }

    /// Up to fifty nodes of one client each, which all want the same few pages.
    fn aim_at_crowds(&mut self, rng: &mut Rng) {
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
        if relays > 0 {
            // One request at a time, of dozens of nodes: those behind a relay whose line is slow wait minutes for a
            // transaction. No operator would run that.
            self.limits.requests_max = self.limits.requests_max.max(4);
        }
    }

    /// Two live processes of one name, and breaks after which now one, now the other comes first
    /// while the origin remembers one boot of a name or two.
    fn aim_at_twins(&mut self, rng: &mut Rng) {
        self.twins = true;
        self.limits.boots_per_name_max = pick(rng, &[1, 1, 1, 2, 4_096]);
        // Commits are under way when a link breaks.
        self.mix.read_only_percent = pick(rng, &[0, 0, 30]);
        self.mix.consistency = pick(rng, &[[0, 1, 0], [1, 1, 0]]);
        self.add_trouble(Trouble::Break, pick(rng, &[200 * MILLI, SECOND]));
        self.add_trouble(Trouble::Partition, 2 * SECOND);
        // Who broke into one speaks for others, too.
        if rng.chance(1, 2) {
            self.add_trouble(Trouble::Forge, pick(rng, &[100, 400]) * MILLI);
        }
    }

    /// Somebody who speaks for others, and little else that goes wrong: he is heard.
    fn aim_at_thieves(&mut self, rng: &mut Rng) {
        self.troubles = vec![(Trouble::Forge, pick(rng, &[100, 400]) * MILLI)];
    }

    /// Children that come back again and again to relays whose stream is behind what they fetch
    /// (rule 11).
    fn aim_at_late_streams(&mut self, rng: &mut Rng) {
        self.add_trouble(Trouble::Break, pick(rng, &[100 * MILLI, 400 * MILLI]));
        for (line, parent) in self.lines.iter_mut().zip(self.relays.iter().chain(&self.nodes)) {
            // Above a relay slow and uneven, below it quick.
            line.latency = if *parent == 0 { pick(rng, &[10, 40]) * MILLI } else { 100 * MICRO };
            line.jitter = if *parent == 0 { 4 * line.latency } else { 0 };
        }
    }

    /// Restores right after a copy was made, a commit or two in between, and outcomes that are there
    /// before the stream (bug 27).
    fn aim_at_restores(&mut self, rng: &mut Rng) {
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
    fn aim_at_lists(&mut self, rng: &mut Rng) {
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
        // Whoever looks at a page ahead gives up before the answer, now and then.
        self.mix.patience = pick(rng, &[100 * MILLI, 2 * SECOND]);
    }

    /// Relays that narrow themselves all the time, since children leave them and come back, while those
    /// make pages: commits that overtake the relay's own list, which travels slowly (rule 17).
    fn aim_at_narrows(&mut self, rng: &mut Rng) {
        self.relays = vec![0];
        self.aim_at_lists(rng);
        self.troubles = vec![(Trouble::Break, pick(rng, &[200, 600]) * MILLI)];
        // A relay narrows itself after a beat.
        self.limits.beat = Duration::from_millis(50);
        self.limits.memory_bytes = 1 << 20;
        for line in &mut self.lines[1..] {
            (line.latency, line.jitter) = (MILLI, 0);
        }
    }

    /// Nodes that come back again and again below two relays, between which little fits on the way: what is
    /// answered for a node has its place in the stream of the relay that asked, which is not there yet, or falls
    /// off the upper one's ring before it is (rule 11, bug 157).
    fn aim_at_resumes_below(&mut self, rng: &mut Rng) {
        self.troubles = vec![(Trouble::Break, pick(rng, &[100, 400]) * MILLI)];
        (self.domains, self.volumes) = (1, 1);
        (self.relays, self.nodes) = (vec![0, 1], vec![0, 0, 2, 2, 2]);
        (self.clients, self.events) = (3, 20_000);
        self.lines.resize(self.relays.len() + self.nodes.len(), self.lines[0]);
        for line in &mut self.lines {
            (line.latency, line.jitter, line.byte_nanos, line.bulk_spread) = (MILLI, 0, 0, 0);
        }
        self.lines[1].latency = pick(rng, &[10, 40]) * MILLI;
        self.limits.stream_window_bytes = pick(rng, &[100, 300, 1_000]);
        self.limits.ring_commits_max = pick(rng, &[4, 64, 1 << 12]);
        self.limits.registered_pages_max = pick(rng, &[2, 8, 1 << 10]);
        self.limits.resume_pages_max = pick(rng, &[1, 8, 65_536]);
        self.limits.memory_bytes = 1 << 20;
        self.limits.requests_max = 64;
        (self.limits.lease, self.limits.silence) =
            (Duration::from_secs(15), Duration::from_secs(30));
        self.limits.beat = Duration::from_millis(pick(rng, &[100, 1_000]));
        self.store_nanos = MILLI;
        self.mix.actions = vec![(Action::Read, 5), (Action::Put, 4), (Action::Create, 1)];
        self.mix.consistency = [0, 1, 0];
        self.mix.length = pick(rng, &[1, 2]);
        self.mix.read_only_percent = 40;
        (self.mix.pages, self.mix.slots, self.mix.value_bytes) = (6, 2, 60);
        self.mix.think = pick(rng, &[1, 5]) * MILLI;
        self.mix.linger_percent = 0;
        self.mix.patience = 2 * SECOND;
        // The lower relay loses rights, too, while commits are sent again: those may only be asked about.
        self.mix.rights_percent = pick(rng, &[0, 8]);
        self.mix.rights_of_all = true;
    }

    /// Clients that keep numbers of pages over restores which may lose nothing else that their node
    /// has seen, beside others that are given the same ones (bug 31).
    fn aim_at_numbers(&mut self, rng: &mut Rng) {
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
    fn aim_at_two_domains(&mut self, rng: &mut Rng) {
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

    /// Pages of many small objects that are made and removed all the time: more slots are empty than a page
    /// has room to remember, while clients keep references to what was in them (rule 18).
    fn aim_at_emptied_slots(&mut self, rng: &mut Rng) {
        self.mix.actions = vec![
            (Action::Create, 6),
            (Action::Delete, 5),
            (Action::Read, 1),
            (Action::ReadOld, 2),
            (Action::List, 1),
        ];
        self.mix.consistency = [0, 1, 0];
        self.mix.length = pick(rng, &[4, 8]);
        self.mix.read_only_percent = pick(rng, &[0, 30]);
        (self.mix.pages, self.mix.slots, self.mix.value_bytes) = (1, 96, 24);
        self.mix.think = pick(rng, &[10 * MICRO, MILLI]);
        self.mix.linger_percent = 0;
        self.mix.quota_percent = 0;
        self.store_nanos = MILLI;
    }

    /// Copies below a relay that come to nothing, beside fetches over the same link, to the very end:
    /// what waits for the credit that was reserved for them is served by nothing else (bug 75).
    fn aim_at_refused_copies(&mut self, _rng: &mut Rng) {
        self.limits.copies_max = 0;
        self.mix.copy_percent = 40;
        self.limits.memory_bytes = 2_000;
        self.clients = 2;
        self.nodes.iter_mut().for_each(|parent| *parent = (*parent).max(1));
    }

    /// Wall clocks that are set, machines that sleep, and caches that are cut off for about a lease:
    /// what a process takes for the time shows in the ages that it tells (rule 8).
    fn aim_at_clocks(&mut self, rng: &mut Rng) {
        self.troubles = vec![
            (Trouble::SetWall, pick(rng, &[300 * MILLI, 2 * SECOND])),
            (Trouble::FreezeWall, 2 * SECOND),
            (Trouble::Pause, pick(rng, &[500 * MILLI, 4 * SECOND])),
            (Trouble::Clog, pick(rng, &[300 * MILLI, SECOND])),
            (Trouble::Partition, SECOND),
        ];
        self.aim_at_ages(rng);
    }

    /// Machines that begin anew, their clocks with them, below a relay whose state is older than that
    /// (bug 39). Each batch of commits puts the relay's cursor off the ring, and only the change index,
    /// which takes longer than a lease, can tell what it missed; meanwhile it serves the state of before,
    /// volumes are opened, and pages are answered that have not changed.
    fn aim_at_old_echoes(&mut self, rng: &mut Rng) {
        self.aim_at_ages(rng);
        self.troubles = vec![
            (Trouble::CrashNode, pick(rng, &[1, 2]) * SECOND),
            (Trouble::Break, pick(rng, &[1, 2]) * SECOND),
        ];
        self.machines_reset = true;
        (self.domains, self.volumes, self.clients, self.events) = (1, 1, 4, 30_000);
        (self.relays, self.nodes) = (vec![0], vec![0, 1, 1]);
        self.lines.resize(self.relays.len() + self.nodes.len(), self.lines[0]);
        // Many commits in a batch, and a ring of one.
        self.limits.requests_max = 64;
        self.limits.ring_commits_max = 1;
        self.mix.quota_percent = 0;
        self.limits.page_cache_bytes = 1 << 20;
        self.store_nanos = pick(rng, &[1_000, 1_500]) * MILLI;
        self.mix.patience = 16 * SECOND;
        self.mix.ages_limited = true;
        // A page that changed is told of at once to who asks for it.
        self.mix.parted = true;
        self.mix.actions.push((Action::CreatePage, 4));
        self.mix.pages = 8;
        self.mix.read_only_percent = 50;
        self.mix.think = pick(rng, &[50, 200]) * MILLI;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::TROUBLES;
    use larder_core::machine::Faults;
    use std::collections::BTreeSet;

    const AIMS: [Aim; 17] = [
        CROWDS,
        TWINS,
        LATE_STREAMS,
        RESTORES,
        EVICTIONS,
        LISTS,
        OLD_ECHOES,
        NUMBERS,
        THIEVES,
        CLOCKS,
        TWO_DOMAINS,
        TORN_APPENDS,
        WHOLES,
        FULL_STORES,
        EMPTIED_SLOTS,
        NEIGHBOURS,
        REFUSED_COPIES,
    ];

    /// What is not named in `sets` is as it was, whatever is aimed at.
    #[test]
    fn an_aim_sets_what_it_says_and_nothing_else() {
        let all = [W, M, L, S, T];
        for aim in AIMS {
            for seed in 0..40 {
                let mut plan = Plan::draw_general(seed, Faults::NONE);
                plan.budget = Budget::Beyond;
                let drawn = plan.clone();
                (aim.aim)(&mut plan, &mut Rng::new(seed));
                for part in aim.sets {
                    part.keep(&drawn, &mut plan);
                }
                assert_eq!(format!("{plan:?}"), format!("{drawn:?}"), "{}", aim.name);
            }
            assert!(aim.sets.iter().all(|part| all.contains(part)));
        }
    }

    /// No aim keeps a kind of trouble out of the runs that have it. An aim is drawn for one run in
    /// twenty-four, and a trouble for one in eight: that takes more seeds than are played in a day to see
    /// in runs, and no time in plans.
    #[test]
    fn each_trouble_comes_with_each_aim() {
        let mut met = BTreeSet::new();
        for seed in 0..40_000 {
            let plan = Plan::draw(seed, Faults::NONE);
            for aim in &plan.aims {
                met.extend(plan.troubles.iter().map(|(trouble, _)| (aim.clone(), *trouble)));
            }
        }
        for aim in AIMS {
            for trouble in TROUBLES {
                assert!(met.contains(&(aim.name.into(), trouble)), "{} and {trouble:?}", aim.name);
            }
        }
    }
}
