//! Bounds that are what is shipped in most runs, and tiny in some: what happens beyond them.

use super::{Plan, Trouble, pick};
use crate::agenda::SECOND;
use larder_core::cache::CacheConfig;
use larder_core::downlink::DownlinkConfig;
use larder_core::origin::OriginConfig;
use larder_core::relay::RelayConfig;
use larder_core::rng::Rng;
use larder_core::time::Duration;
use serde::{Deserialize, Serialize};

/// Bounds of the machines that few runs set; those that are not set are what is shipped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bounds {
    /// Commits that wait at the origin.
    pub waiting_commits_max: Option<usize>,
    /// Bytes of them.
    pub waiting_bytes_max: Option<usize>,
    /// Bytes of pages kept in memory for them.
    pub pinned_bytes_max: Option<usize>,
    /// Pages in an append, and in a commit.
    pub commit_pages_max: Option<usize>,
    /// Bytes of an append.
    pub append_bytes_max: Option<usize>,
    /// Loads from the page engine under way.
    pub loads_max: Option<usize>,
    /// Loads from the change index under way.
    pub index_loads_max: Option<usize>,
    /// How long the origin waits for its store, in nanoseconds.
    pub wait_nanos: Option<u64>,
    /// Pages of a deleted volume that one step forgets.
    pub forget_pages_max: Option<usize>,
    /// Volumes that one step looks at for a list of volumes.
    pub list_looks_max: Option<usize>,
    /// Bytes of changes kept apart from pages that cannot be read.
    pub apart_bytes_max: Option<usize>,
    /// States kept for copies.
    pub pins_max: Option<usize>,
    /// Bytes of images kept for them.
    pub pinned_copy_bytes_max: Option<usize>,
    /// How long a state is kept of which nobody asks anything, in nanoseconds; three times as long at most.
    pub pin_idle_nanos: Option<u64>,
    /// Records after which what is prepared is logged once more.
    pub logged_again: Option<u64>,
    /// Processes that a domain remembers beyond those that there are at a time.
    pub boots_spare: Option<usize>,
    /// Bytes of a registration.
    pub registered_bytes_max: Option<usize>,
    /// Requests of users that wait at a node.
    pub requests_max: Option<usize>,
    /// Commits of a node without an outcome.
    pub commits_max: Option<usize>,
    /// How many commits after one without an outcome a node confirms others without it.
    pub open_after: Option<u64>,
    /// Bytes of them.
    pub commit_bytes_max: Option<usize>,
    /// Pages that a node has yet to prefetch.
    pub prefetch_max: Option<usize>,
    /// Refreshes of a domain on their way, of nodes and relays.
    pub refreshes_max: Option<usize>,
}

/// A bound of one run in three, of those that have any.
fn some<T: Copy>(rng: &mut Rng, choices: &[T]) -> Option<T> {
    rng.chance(1, 3).then(|| pick(rng, choices))
}

impl Bounds {
    /// In a quarter of the runs, drawn apart.
    pub(super) fn draw(plan: &Plan) -> Self {
        let rng = &mut Rng::new(plan.seed ^ 0x00b0_47d5);
        if !rng.chance(1, 4) {
            return Self::default().wait_less(plan).leave_open(plan);
        }
        let wait_least = wait_least(plan);
        let mut bounds = Self {
            waiting_commits_max: some(rng, &[1, 2, 16]),
            waiting_bytes_max: some(rng, &[1, 4_096]),
            pinned_bytes_max: some(rng, &[1, 16_384]),
            commit_pages_max: some(rng, &[16]),
            append_bytes_max: some(rng, &[1, 4_096]),
            loads_max: some(rng, &[1, 4]),
            index_loads_max: some(rng, &[1, 2]),
            wait_nanos: some(rng, &[wait_least, 3 * wait_least]),
            forget_pages_max: some(rng, &[1, 3]),
            list_looks_max: some(rng, &[1, 2]),
            apart_bytes_max: some(rng, &[1, 4_096]),
            pins_max: some(rng, &[1, 2]),
            pinned_copy_bytes_max: some(rng, &[1, 8_192]),
            pin_idle_nanos: some(rng, &[1_000_000_000, 10_000_000_000]),
            logged_again: some(rng, &[1, 16]),
            boots_spare: some(rng, &[1, 4]),
            registered_bytes_max: some(rng, &[1, 600]),
            requests_max: some(rng, &[2, 4]),
            commits_max: some(rng, &[1, 2]),
            open_after: None,
            commit_bytes_max: some(rng, &[1, 600]),
            prefetch_max: some(rng, &[1, 4]),
            refreshes_max: some(rng, &[1, 2]),
        };
        if plan.store_nanos >= SECOND {
            // With a store that takes seconds for each batch, one commit at a time of a node is one in ten seconds: its
            // clients would wait in line for minutes.
            (bounds.requests_max, bounds.commits_max, bounds.commit_bytes_max) = (None, None, None);
        }
        bounds.wait_less(plan).leave_open(plan)
    }

    /// What is shipped is never reached. In half of the runs, drawn apart.
    fn leave_open(mut self, plan: &Plan) -> Self {
        let rng = &mut Rng::new(plan.seed ^ 0x0000_93e1);
        self.open_after = rng.chance(1, 2).then(|| pick(rng, &[0, 3, 16]));
        self
    }

    /// Where logs stand still and others wait for them, the origin waits for them for as short as it may: the runs are over
    /// before what is shipped has passed.
    fn wait_less(mut self, plan: &Plan) -> Self {
        let hangs = plan.troubles.iter().any(|(trouble, _)| *trouble == Trouble::Hang);
        if hangs && plan.mix.spread_percent == 100 {
            self.wait_nanos = self.wait_nanos.or(Some(wait_least(plan)));
        }
        if plan.second_origin {
            // Of a node that died one part may be put off at its origin, and another wait for it at the other (finding 543):
            // for less than until all must be at rest.
            let most = wait_least(plan).min(60 * SECOND);
            self.wait_nanos = self.wait_nanos.map(|it| it.min(most));
        }
        self
    }

    /// Sets those of the origin, of so many processes.
    pub(crate) fn of_origin(&self, config: &mut OriginConfig, processes: usize) {
        set(&mut config.waiting_commits_max, self.waiting_commits_max);
        set(&mut config.waiting_bytes_max, self.waiting_bytes_max);
        set(&mut config.pinned_bytes_max, self.pinned_bytes_max);
        set(&mut config.commit_pages_max, self.commit_pages_max);
        set(&mut config.append_bytes_max, self.append_bytes_max);
        set(&mut config.loads_max, self.loads_max);
        set(&mut config.index_loads_max, self.index_loads_max);
        set(&mut config.wait_max, self.wait_nanos.map(Duration::from_nanos));
        set(&mut config.forget_pages_max, self.forget_pages_max);
        set(&mut config.list_looks_max, self.list_looks_max);
        set(&mut config.apart_bytes_max, self.apart_bytes_max);
        set(&mut config.pins_max, self.pins_max);
        set(&mut config.pinned_copy_bytes_max, self.pinned_copy_bytes_max);
        set(&mut config.pin_idle_max, self.pin_idle_nanos.map(Duration::from_nanos));
        set(&mut config.pin_age_max, self.pin_idle_nanos.map(|it| Duration::from_nanos(3 * it)));
        set(&mut config.logged_again, self.logged_again);
        if let Some(spare) = self.boots_spare {
            (config.boots_max, config.boot_forget_after) =
                (processes + spare, Duration::from_secs(1));
        }
    }

    /// Those of links down.
    pub(crate) fn of_downlink(&self, config: &mut DownlinkConfig) {
        set(&mut config.registered_bytes_max, self.registered_bytes_max);
    }

    /// Those of a node.
    pub(crate) fn of_node(&self, config: &mut CacheConfig) {
        set(&mut config.requests_max, self.requests_max);
        set(&mut config.commits_max, self.commits_max);
        set(&mut config.open_after, self.open_after);
        set(&mut config.commit_bytes_max, self.commit_bytes_max);
        set(&mut config.prefetch_max, self.prefetch_max);
        set(&mut config.refreshes_max, self.refreshes_max);
    }

    /// Those of a relay.
    pub(crate) fn of_relay(&self, config: &mut RelayConfig) {
        set(&mut config.refreshes_max, self.refreshes_max);
    }
}

/// The shortest time for which an origin may wait for its store.
fn wait_least(plan: &Plan) -> u64 {
    (2 * SECOND).max(200 * plan.store_nanos)
}

fn set<T>(bound: &mut T, drawn: Option<T>) {
    if let Some(drawn) = drawn {
        *bound = drawn;
    }
}
