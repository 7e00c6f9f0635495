//! Failover: groups find their redirectors themselves, and lose them.
//!
//! The relay of a group is one of those who may be its redirector, and so are some of its nodes: each of these
//! has a relay of its own in the same process, which runs only while the node is the redirector.

use super::{GroupPlan, Plan, Trouble, pick};
use crate::agenda::{MILLI, SECOND};
use larder_core::group::membership::{Candidacy, LineTimes, MembershipConfig, Participant};
use larder_core::rng::Rng;
use larder_core::time::Duration;
use serde::{Deserialize, Serialize};

/// How groups find their redirectors.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailoverPlan {
    /// Nodes that may be redirectors, by their places among the nodes.
    pub standbys: Vec<u16>,
    /// Whether the relay that a group begins with is one before all others.
    pub relay_is_pinned: bool,
    /// How long one that is asked whether it is there is waited for, in nanoseconds; others follow from it.
    pub probe_wait: u64,
    /// How long one that is suspected may object, in nanoseconds.
    pub suspect: u64,
    /// Percent of datagrams that are lost.
    pub loss_percent: u64,
    /// Percent of datagrams that come twice, or seconds late.
    #[serde(default)]
    pub stray_percent: u64,
    /// A group that lost its redirector works again within so long, in nanoseconds; none: that is not looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub works_within: Option<u64>,
}

/// The troubles of groups that can lose their redirectors.
const TROUBLES: [Trouble; 5] = [
    Trouble::KillRedirector,
    Trouble::PartRedirector,
    Trouble::PauseRedirector,
    Trouble::PartMembers,
    Trouble::HandOver,
];

impl Plan {
    /// In a third of the runs with groups, and in most that are about neighbours. Drawn apart.
    pub(super) fn draw_failover(&mut self) {
        let rng = &mut Rng::new(self.seed ^ 0x00fa_110e);
        let Some(group) = self.group.as_ref().filter(|_| !self.twins) else { return };
        let members =
            |relay: u16| (0..).zip(&self.nodes).filter(move |(_, parent)| **parent == relay);
        let none = !rng.chance(1, 3);
        let seldom = !self.is_of_neighbours() || rng.chance(1, 3);
        if none && seldom {
            return;
        }
        let mut standbys = Vec::new();
        for relay in 1..=self.relays.len() as u16 {
            let members: Vec<u16> = members(relay).map(|(node, _)| node).collect();
            // One at least, as long as there is any.
            let sure = rng.below(members.len().max(1) as u64) as usize;
            let may =
                |(place, node): (usize, u16)| (place == sure || rng.chance(2, 3)).then_some(node);
            standbys.extend(members.into_iter().enumerate().filter_map(may));
        }
        // In the order of the nodes, whatever group they are of: else what is recorded is refused.
        standbys.sort_unstable();
        let way = group.line.latency + group.line.jitter;
        let probe_wait = (80 * MILLI).max(2 * way + MILLI);
        let failover = FailoverPlan {
            standbys,
            relay_is_pinned: rng.chance(1, 6),
            probe_wait,
            suspect: probe_wait * pick(rng, &[2, 6]),
            loss_percent: pick(rng, &[0, 0, 2, 20]),
            stray_percent: pick(&mut Rng::new(self.seed ^ 0x00da_7a67), &[0, 0, 5, 40]),
            works_within: None,
        };
        if failover.standbys.is_empty() {
            return;
        }
        let means: Vec<Option<u64>> = TROUBLES
            .iter()
            .map(|_| rng.chance(1, 2).then(|| pick(rng, &[2 * SECOND, 8 * SECOND, 20 * SECOND])))
            .collect();
        for (trouble, mean) in TROUBLES.into_iter().zip(means) {
            if let Some(mean) = mean {
                self.add_trouble(trouble, mean);
            }
        }
        // Nodes go where their group's redirector is.
        self.troubles.retain(|(trouble, _)| *trouble != Trouble::Move);
        if let Some(group) = &mut self.group {
            group.failover = Some(failover);
        }
    }

    /// How groups find their redirectors, if they do.
    #[must_use]
    pub fn failover(&self) -> Option<&FailoverPlan> {
        self.group.as_ref()?.failover.as_ref()
    }

    /// The longest that a group takes to find its redirector once all is mended, in nanoseconds.
    #[must_use]
    pub fn failover_nanos(&self) -> u64 {
        self.failover().map_or(0, |it| 40 * it.probe_wait + 2 * it.suspect)
    }

    /// The longest that a redirector is replaced after its line was mended, since others have not heard of that, in
    /// nanoseconds.
    #[must_use]
    pub fn taken_over_nanos(&self) -> u64 {
        self.failover().map_or(0, |it| {
            let LineTimes { say_every, grace, .. } = it.line();
            (say_every * 4 + grace).as_nanos() as u64
        })
    }
}

impl FailoverPlan {
    /// Whether something in it is not there, in a plan that somebody edited.
    pub(super) fn is_sound(&self, plan: &Plan) -> bool {
        let parent = |node: &u16| plan.nodes.get(usize::from(*node));
        let below_a_relay = self.standbys.iter().all(|node| parent(node).is_some_and(|it| *it > 0));
        below_a_relay
            && self.standbys.is_sorted()
            && self.probe_wait > 0
            && self.loss_percent <= 100
            && self.stray_percent <= 100
    }

    /// In the times of the group.
    fn line(&self) -> LineTimes {
        let every = Duration::from_nanos(3 * self.probe_wait);
        LineTimes {
            cut_after: every * 6,
            begun_after: every * 18,
            say_every: every,
            grace: every * 4,
            look_every: every * 6,
            away: every * 18,
        }
    }

    /// What a participant of the group of a relay is told.
    #[must_use]
    pub fn config(&self, relay: u16, own: Participant, seeds: Vec<String>) -> MembershipConfig {
        let every = 3 * self.probe_wait;
        MembershipConfig {
            seeds,
            probe_every: Duration::from_nanos(every),
            probe_wait: Duration::from_nanos(self.probe_wait),
            suspect_max: Duration::from_nanos(self.suspect),
            forget_after: Duration::from_secs(30),
            seek_every: Duration::from_nanos(2 * every),
            settle: Duration::from_nanos(2 * every),
            line: self.line(),
            ..MembershipConfig::new(&format!("group{relay}"), own)
        }
    }

    /// Whether the relay that a group begins with is to be its redirector.
    #[must_use]
    pub fn of_relay(&self) -> Candidacy {
        if self.relay_is_pinned { Candidacy::Pinned } else { Candidacy::May(0) }
    }

    /// Whether a node, by its place, may be one.
    #[must_use]
    pub fn of_node(&self, node: u16) -> Candidacy {
        if self.standbys.contains(&node) { Candidacy::May(1) } else { Candidacy::Never }
    }
}

impl GroupPlan {
    /// Nodes with a relay of their own.
    #[must_use]
    pub fn standbys(&self) -> &[u16] {
        self.failover.as_ref().map_or(&[], |failover| &failover.standbys)
    }
}
