//! Named races: worlds arranged so that one known race is met in nearly every run. Each is a plan
//! with few free choices; the seed still draws the order of events.

use crate::agenda::{MICRO, MILLI, SECOND};
use crate::net::Line;
use crate::plan::{Action, Bounds, Budget, FailoverPlan, GroupPlan, Limits, Plan, Trouble};
use larder_core::machine::Faults;
use larder_core::time::Duration;

/// A race that corrupted others' caches, and a world in which it is met.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// The schedule to be met.
    pub story: &'static str,
    arrange: fn(&mut Plan),
}

/// All of them.
pub const SCENARIOS: &[Scenario] = &[
    #[cfg(feature = "files")]
    Scenario {
        name: "files",
        story: "Clients of the file layer, in whatever world the seed draws.",
        arrange: |_| (),
    },
    Scenario {
        name: "two-origins",
        story: "Domains of two origins, in whatever world the seed draws, and transactions over both (decision 0038).",
        arrange: Plan::give_second_origin,
    },
    Scenario {
        name: "fetch-overtaken",
        story: "A fetch is answered; before the page arrives a change to it does (rules 4, 5), also \
                when the page is absent or was evicted meanwhile.",
        arrange: fetch_overtaken,
    },
    Scenario {
        name: "joined-fetch",
        story: "A request joins a fetch in flight whose page is evicted and noticed (rule 7).",
        arrange: joined_fetch,
    },
    Scenario {
        name: "dead-link",
        story: "Changes are sent down a link that is dead; the child returns and must learn of them \
                (rule 17).",
        arrange: dead_link,
    },
    Scenario {
        name: "created-again",
        story: "A name is removed and created again; old references must not find the new object \
                (rule 18).",
        arrange: created_again,
    },
    Scenario {
        name: "silent-holder",
        story: "A holder of a page stands still for longer than a lease; nobody waits for it, and \
                what it shows afterwards is marked as old (P7, rule 8).",
        arrange: silent_holder,
    },
    Scenario {
        name: "diverged-origin",
        story: "The origin is restored from an old copy and commits other things under the same \
                stamps; children of the lost branch return (rule 16).",
        arrange: diverged_origin,
    },
    Scenario {
        name: "owed-changes",
        story: "A child returns to a parent that owes it changes, and asks for pages at once: the \
                answer to its resume comes first (rule 17), and its commits are not done twice \
                (rule 15).",
        arrange: owed_changes,
    },
    Scenario {
        name: "redirector-killed",
        story: "A group on a LAN, far from the origin, whose redirectors die again and again: within two seconds each \
                member that lives is current again by the next one, and has its answers.",
        arrange: redirector_killed,
    },
    Scenario {
        name: "side-by-side",
        story: "Transactions of one session run side by side while the origin is restored from an old \
                copy: what one of them saw is gone, and the session is told, whichever ends first \
                (P4, P12).",
        arrange: side_by_side,
    },
];

impl Scenario {
    /// The plan of a seed.
    #[must_use]
    pub fn plan(&self, seed: u64) -> Plan {
        let mut plan = Plan::draw(seed, Faults::NONE);
        #[cfg(feature = "files")]
        if self.name == "files" {
            crate::files::aim(&mut plan, None);
            return plan;
        }
        if self.name == "two-origins" {
            (self.arrange)(&mut plan);
            return plan;
        }
        plan.events = 3_000;
        // Whatever the race needs.
        plan.budget = Budget::Beyond;
        (plan.domains, plan.second_origin) = (1, false);
        plan.relays = if seed.is_multiple_of(2) { Vec::new() } else { vec![0] };
        plan.nodes = vec![plan.relays.len() as u16; 3];
        plan.bounds = Bounds::default();
        // What was drawn of its nodes is about others.
        plan.group = plan.group.filter(|_| !plan.relays.is_empty());
        if let Some(group) = &mut plan.group {
            (group.failover, group.strangers) = (None, Vec::new());
        }
        plan.clients = 2;
        plan.mix.pages = 2;
        plan.mix.slots = 2;
        plan.mix.value_bytes = 60;
        plan.mix.think = 20 * MILLI;
        plan.mix.linger_percent = 1;
        plan.mix.patience = 2 * SECOND;
        plan.limits.silence = Duration::from_secs(4);
        plan.limits.memory_bytes = 1 << 20;
        plan.troubles.clear();
        let line = Line {
            latency: 40 * MILLI,
            jitter: 40 * MILLI,
            byte_nanos: 100,
            bulk_spread: 80 * MILLI,
        };
        plan.lines = vec![line; 4];
        (self.arrange)(&mut plan);
        plan
    }
}

fn actions(plan: &mut Plan, weights: &[(Action, u64)]) {
    plan.mix.actions = weights.to_vec();
}

fn fetch_overtaken(plan: &mut Plan) {
    // Pages crawl, changes fly.
    plan.lines.iter_mut().for_each(|line| line.byte_nanos = 1_000_000);
    plan.limits.memory_bytes = 600;
    actions(plan, &[(Action::Read, 4), (Action::List, 2), (Action::Put, 4), (Action::Create, 2)]);
}

fn joined_fetch(plan: &mut Plan) {
    plan.limits.memory_bytes = 800;
    plan.limits.notices_max = 1 << 10;
    plan.limits.registered_pages_max = 1 << 10;
    plan.limits.beat = Duration::from_millis(100);
    plan.mix.length = 1;
    plan.mix.pages = 6;
    let weights = [
        (Action::Prefetch, 6),
        (Action::Read, 4),
        (Action::Put, 4),
        (Action::Create, 2),
        (Action::CreatePage, 1),
    ];
    actions(plan, &weights);
}

fn dead_link(plan: &mut Plan) {
    plan.troubles = vec![
        (Trouble::Break, 300 * MILLI),
        (Trouble::Clog, 500 * MILLI),
        (Trouble::Partition, SECOND),
    ];
    actions(plan, &[(Action::Read, 4), (Action::Put, 4), (Action::Create, 2), (Action::Delete, 1)]);
}

fn created_again(plan: &mut Plan) {
    plan.mix.slots = 1;
    let weights = [
        (Action::ReadOld, 4),
        (Action::Create, 4),
        (Action::Delete, 4),
        (Action::Put, 2),
        (Action::CreatePage, 1),
        (Action::DeletePage, 2),
    ];
    actions(plan, &weights);
}

fn silent_holder(plan: &mut Plan) {
    plan.limits.lease = Duration::from_secs(1);
    plan.limits.beat = Duration::from_millis(100);
    plan.troubles = vec![(Trouble::Pause, 500 * MILLI)];
    actions(plan, &[(Action::Read, 4), (Action::Put, 4), (Action::Create, 2)]);
}

fn diverged_origin(plan: &mut Plan) {
    plan.troubles = vec![(Trouble::Restore, 4 * SECOND), (Trouble::Break, SECOND)];
    actions(plan, &[(Action::Read, 4), (Action::Put, 4), (Action::Create, 2), (Action::Add, 2)]);
}

fn owed_changes(plan: &mut Plan) {
    plan.troubles = vec![
        (Trouble::Break, 400 * MILLI),
        (Trouble::KillOrigin, 2 * SECOND),
        (Trouble::CutPower, 3 * SECOND),
    ];
    plan.limits.ring_commits_max = 1;
    plan.limits.install_interval = Duration::from_millis(10);
    actions(plan, &[(Action::Read, 4), (Action::Add, 4), (Action::Create, 2), (Action::Max, 2)]);
}

fn redirector_killed(plan: &mut Plan) {
    let members = 3 + (plan.seed / 2 % 4) as u16;
    (plan.relays, plan.nodes) = (vec![0], vec![1; usize::from(members)]);
    let lan = Line { latency: 100 * MICRO, jitter: 100 * MICRO, byte_nanos: 8, bulk_spread: 0 };
    let far = Line { latency: 40 * MILLI, jitter: 0, byte_nanos: 8, bulk_spread: 0 };
    plan.lines = std::iter::once(far).chain(vec![lan; usize::from(members)]).collect();
    plan.clients = members;
    plan.group = Some(GroupPlan {
        line: lan,
        help_wait: 100 * MILLI,
        help_wait_long: SECOND,
        helps_max: 1024,
        helping_max: 256,
        asking_max: 4096,
        directory_bytes_max: 1 << 20,
        rest: SECOND,
        update_bytes_max: 64 << 10,
        updates_bytes_max: 16 << 20,
        holes: false,
        strangers: Vec::new(),
        failover: Some(FailoverPlan {
            standbys: (0..members).collect(),
            relay_is_pinned: false,
            probe_wait: 80 * MILLI,
            suspect: 500 * MILLI,
            loss_percent: 0,
            stray_percent: 0,
            works_within: Some(2 * SECOND),
        }),
    });
    plan.events = 30_000;
    (plan.drift_ppm, plan.store_nanos, plan.mix.patience) = (0, MILLI, 20 * SECOND);
    plan.limits = Limits::ample();
    (plan.twins, plan.seconds, plan.relay_seconds) = (false, false, false);
    plan.troubles = vec![(Trouble::KillRedirector, 8 * SECOND)];
    actions(plan, &[(Action::Read, 4), (Action::Put, 8), (Action::Create, 2)]);
}

fn side_by_side(plan: &mut Plan) {
    plan.shared_sessions = true;
    plan.clients = 3;
    plan.mix.consistency = [0, 1, 1];
    plan.mix.linger_percent = 10;
    plan.limits.lease = Duration::from_secs(1);
    plan.limits.beat = Duration::from_millis(100);
    plan.troubles = vec![(Trouble::Restore, 3 * SECOND), (Trouble::Break, 2 * SECOND)];
    actions(plan, &[(Action::Read, 6), (Action::Put, 2), (Action::Create, 2), (Action::List, 2)]);
}
