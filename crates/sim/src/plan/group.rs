//! Groups: the nodes below each relay are neighbours, and the relay is their redirector.

use super::{Plan, pick};
use crate::agenda::{MICRO, MILLI, SECOND};
use crate::net::Line;
use larder_core::group::{GroupConfig, MemberConfig};
use larder_core::rng::Rng;
use larder_core::time::Duration;
use serde::{Deserialize, Serialize};

/// What the groups of a run are like.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroupPlan {
    /// The line between two neighbours.
    pub line: Line,
    /// How long a neighbour is waited for, in nanoseconds.
    pub help_wait: u64,
    /// The same of one that waits itself.
    pub help_wait_long: u64,
    /// Pages that wait at a helper.
    pub helps_max: usize,
    /// Pages under way from one member.
    pub helping_max: usize,
    /// Pages under way to one.
    pub asking_max: usize,
    /// Bytes of a member's part of the directory.
    pub directory_bytes_max: usize,
    /// How long one that was late is not asked, in nanoseconds.
    pub rest: u64,
    /// Bytes of a commit that go to neighbours.
    pub update_bytes_max: usize,
    /// Bytes of all that are kept for them.
    pub updates_bytes_max: usize,
    /// Copies with holes are sent where nobody has a complete one.
    #[serde(default)]
    pub holes: bool,
    /// Nodes, by their places, whose certificates are not of the group of the relay above them.
    #[serde(default)]
    pub strangers: Vec<u16>,
    /// Whether groups find their redirectors themselves; else it is the relay above.
    #[serde(default)]
    pub failover: Option<super::FailoverPlan>,
}

impl GroupPlan {
    /// In half of the runs that have relays, and in all that are about neighbours. Drawn apart, so that the others
    /// stay what they were.
    pub(super) fn draw(plan: &Plan) -> Option<Self> {
        let rng = &mut Rng::new(plan.seed ^ 0x0047_4f55);
        let none = rng.chance(1, 2) && !plan.is_of_neighbours();
        if plan.relays.is_empty() || plan.nodes.len() < 2 || none {
            return None;
        }
        let latency = pick(rng, &[20 * MICRO, 100 * MICRO, 100 * MICRO, 20 * MILLI, 80 * MILLI]);
        let line = Line {
            latency,
            jitter: pick(rng, &[0, latency / 4, latency * 4]),
            byte_nanos: pick(rng, &[0, 10]),
            bulk_spread: latency * pick(rng, &[0, 1, 8]),
        };
        let mut group = Self {
            line,
            help_wait: pick(rng, &[MILLI, 5 * MILLI, 100 * MILLI, SECOND]),
            help_wait_long: pick(rng, &[SECOND, 5 * SECOND]),
            helps_max: pick(rng, &[1, 4, 1024]),
            helping_max: pick(rng, &[1, 4, 256]),
            asking_max: pick(rng, &[1, 4, 4096]),
            directory_bytes_max: pick(rng, &[300, 1 << 20]),
            rest: pick(rng, &[MILLI, SECOND]),
            update_bytes_max: pick(rng, &[0, 200, 64 << 10, 64 << 10]),
            updates_bytes_max: pick(rng, &[300, 16 << 20, 16 << 20]),
            // Drawn apart.
            holes: Rng::new(plan.seed ^ 0x4013_5000).chance(1, 2),
            strangers: Vec::new(),
            failover: None,
        };
        if plan.is_of_neighbours() && rng.chance(1, 2) {
            group.aim_at_help(rng);
        }
        Some(group)
    }

    /// Neighbours who are near, wait for each other and are not left out for long: who hears the redirector late is
    /// asked again and again for what has just changed (rule 11).
    fn aim_at_help(&mut self, rng: &mut Rng) {
        self.line.latency = pick(rng, &[20, 100]) * MICRO;
        (self.line.jitter, self.line.bulk_spread) = (self.line.latency, 0);
        self.help_wait = pick(rng, &[100 * MILLI, SECOND]);
        self.rest = MILLI;
        self.helping_max = 256;
        self.directory_bytes_max = 1 << 20;
        (self.update_bytes_max, self.updates_bytes_max) = (64 << 10, 16 << 20);
    }

    /// In a quarter of the runs whose redirectors are given. Drawn apart.
    pub(super) fn draw_strangers(&mut self, seed: u64, nodes: usize) {
        let rng = &mut Rng::new(seed ^ 0x57a4_17e5);
        if self.failover.is_none() && rng.chance(1, 4) {
            self.strangers = (0..nodes as u16).filter(|_| rng.chance(1, 3)).collect();
        }
    }

    /// The redirector's bounds.
    #[must_use]
    pub fn redirector(&self) -> GroupConfig {
        GroupConfig {
            directory_bytes_max: self.directory_bytes_max,
            helping_max: self.helping_max,
            asking_max: self.asking_max,
            rest: Duration::from_nanos(self.rest),
            update_bytes_max: self.update_bytes_max,
            updates_bytes_max: self.updates_bytes_max,
            holes: self.holes,
            ..GroupConfig::default()
        }
    }

    /// Those of the member at an address.
    #[must_use]
    pub fn member(&self, address: String) -> MemberConfig {
        MemberConfig {
            address,
            help_wait: Duration::from_nanos(self.help_wait),
            help_wait_long: Duration::from_nanos(self.help_wait_long),
            helps_max: self.helps_max,
            ..MemberConfig::default()
        }
    }
}
