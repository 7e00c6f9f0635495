//! What may go wrong, and the budget of a run: how much of it must be survived as if nothing had
//! happened, and what goes beyond that (`docs/decisions/0029-two-budgets.md`).

use super::{CLOCK_BIAS_PPM, Plan, pick};
use crate::agenda::{MILLI, SECOND};
use larder_core::rng::Rng;
use serde::{Deserialize, Serialize};

/// How much may go wrong in a run, and what must hold all the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Budget {
    /// What the machines are built for: nothing durable is lost, no store and no line is refused, ages are
    /// right within the stated bias, and all goes on once it is mended.
    Recoverable,
    /// More than that as well: what was lost may be missed, and service refused until somebody mends it;
    /// nobody is ever shown what is wrong.
    Beyond,
}

/// Something that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Trouble {
    /// A connection breaks.
    Break,
    /// One direction of a connection is held up for a while.
    Clog,
    /// Two processes cannot reach each other, one way or both.
    Partition,
    /// A node's process ends; another begins.
    CrashNode,
    /// A relay's likewise.
    CrashRelay,
    /// The origin's process ends; what it wrote is still there.
    KillOrigin,
    /// The origin's machine loses power.
    CutPower,
    /// A process stands still, longer than a lease perhaps.
    Pause,
    /// A sync fails.
    SyncFails,
    /// The origin's disk is full for a while.
    DiskFull,
    /// The origin is restored from a backup.
    Restore,
    /// A node goes to another parent, as the same process or as a new one.
    Move,
    /// A bit of the origin's log flips on the disk, long after it was synced.
    Rot,
    /// The wall clock of a process is set, forward or back.
    SetWall,
    /// A process's own clock is set, against its promise: only ages may be wrong by as much.
    SetClock,
    /// The device of one domain's log never answers again, until the origin's process is ended.
    Hang,
    /// Somebody broke into a node, and speaks for another one's boot.
    Forge,
    /// Some connections are held up one after the other, and let go in another order.
    Swizzle,
    /// The origin is started on an empty disk: what it had is gone, and another history begins.
    Wipe,
    /// A process reaches no other, or no other reaches it, or both.
    Isolate,
    /// The disk of a log said that a write was done, and never made it.
    LoseWrite,
    /// It made one in the place of another.
    MisdirectWrite,
    /// The wall clock of a process stands still for a while, and goes on from there.
    FreezeWall,
    /// A process's own clock likewise: within the stated bias or, beyond the recoverable, for leases.
    FreezeClock,
    /// The redirector of a group dies: for good, if it has no clients.
    KillRedirector,
    /// It reaches some members of its group no more, or they it; the origin too, perhaps.
    PartRedirector,
    /// It stands still, longer than it takes to be replaced.
    PauseRedirector,
    /// Two members of a group do not reach each other.
    PartMembers,
    /// A redirector is told to end, as for an upgrade: it says so, and starts anew.
    HandOver,
}

/// All kinds, in their order.
pub const TROUBLES: [Trouble; 29] = [
    Trouble::Break,
    Trouble::Clog,
    Trouble::Partition,
    Trouble::CrashNode,
    Trouble::CrashRelay,
    Trouble::KillOrigin,
    Trouble::CutPower,
    Trouble::Pause,
    Trouble::SyncFails,
    Trouble::DiskFull,
    Trouble::Restore,
    Trouble::Move,
    Trouble::Rot,
    Trouble::SetWall,
    Trouble::SetClock,
    Trouble::Hang,
    Trouble::Forge,
    Trouble::Swizzle,
    Trouble::Wipe,
    Trouble::Isolate,
    Trouble::LoseWrite,
    Trouble::MisdirectWrite,
    Trouble::FreezeWall,
    Trouble::FreezeClock,
    Trouble::KillRedirector,
    Trouble::PartRedirector,
    Trouble::PauseRedirector,
    Trouble::PartMembers,
    Trouble::HandOver,
];

/// Those that any plan may have: the others are drawn apart, where there is something to do them to.
const GENERAL: [Trouble; 16] = [
    Trouble::Break,
    Trouble::Clog,
    Trouble::Partition,
    Trouble::CrashNode,
    Trouble::CrashRelay,
    Trouble::KillOrigin,
    Trouble::CutPower,
    Trouble::Pause,
    Trouble::SyncFails,
    Trouble::DiskFull,
    Trouble::Restore,
    Trouble::Rot,
    Trouble::SetWall,
    Trouble::SetClock,
    Trouble::FreezeWall,
    Trouble::FreezeClock,
];

impl Trouble {
    /// The trouble of this name, as recordings have it.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        serde_json::from_value(serde_json::Value::String(name.into())).ok()
    }

    /// The smallest budget that has it.
    #[must_use]
    pub fn budget(self) -> Budget {
        match self {
            Self::Restore
            | Self::Wipe
            | Self::Rot
            | Self::LoseWrite
            | Self::MisdirectWrite
            | Self::SetClock
            | Self::Forge => Budget::Beyond,
            Self::Break
            | Self::Clog
            | Self::Partition
            | Self::CrashNode
            | Self::CrashRelay
            | Self::KillOrigin
            | Self::CutPower
            | Self::Pause
            | Self::SyncFails
            | Self::DiskFull
            | Self::Move
            | Self::SetWall
            | Self::Hang
            | Self::Swizzle
            | Self::Isolate
            | Self::FreezeWall
            | Self::FreezeClock
            | Self::KillRedirector
            | Self::PartRedirector
            | Self::PauseRedirector
            | Self::PartMembers
            | Self::HandOver => Budget::Recoverable,
        }
    }
}

impl Budget {
    /// Draws it: three of eight runs must be survived as if nothing had happened.
    pub(super) fn draw(seed: u64) -> Self {
        let rng = &mut Rng::new(seed ^ 0x00b0_d6e7);
        if rng.chance(3, 8) { Self::Recoverable } else { Self::Beyond }
    }

    /// Whether a run of this budget may have a trouble.
    #[must_use]
    pub fn permits(self, trouble: Trouble) -> bool {
        trouble.budget() <= self
    }

    /// As it is told.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Recoverable => "recoverable",
            Self::Beyond => "beyond",
        }
    }
}

impl Plan {
    /// What is in it that its budget does not have.
    #[must_use]
    pub fn outside_budget(&self) -> Option<String> {
        let outside = self.troubles.iter().find(|(kind, _)| !self.budget.permits(*kind));
        if let Some((trouble, _)) = outside {
            return Some(format!("{trouble:?}"));
        }
        if self.budget == Budget::Beyond {
            return None;
        }
        if self.drift_ppm.unsigned_abs() > CLOCK_BIAS_PPM {
            return Some(format!("clocks that drift by {} ppm", self.drift_ppm));
        }
        self.twins.then(|| "a copy of a node that runs beside it".to_owned())
    }

    /// Its budget and its aims, for people.
    #[must_use]
    pub fn told(&self) -> String {
        match self.aims.as_slice() {
            [] => self.budget.name().into(),
            aims => format!("{}, aimed at {}", self.budget.name(), aims.join(" and ")),
        }
    }

    /// Adds a trouble, if the budget has it, in the place of one of its kind.
    pub fn add_trouble(&mut self, trouble: Trouble, mean: u64) {
        if self.budget.permits(trouble) {
            self.troubles.retain(|(other, _)| *other != trouble);
            self.troubles.push((trouble, mean));
        }
    }
}

/// A subset of the general troubles with wild weights. What only one budget has comes more often where
/// it may, as there are fewer such runs.
pub(super) fn draw(rng: &mut Rng, budget: Budget) -> Vec<(Trouble, u64)> {
    if rng.chance(1, 6) {
        return Vec::new();
    }
    let mut troubles = Vec::new();
    for trouble in GENERAL {
        let is_beyond = trouble.budget() == Budget::Beyond;
        let is_rare = is_beyond || matches!(trouble, Trouble::SyncFails | Trouble::DiskFull);
        let sixteenths = match (is_beyond, is_rare) {
            (true, _) => 4,
            (_, true) => 3,
            _ => 5,
        };
        if rng.chance(sixteenths, 16) {
            let mean = pick(rng, &[200 * MILLI, SECOND, 4 * SECOND, 15 * SECOND]);
            if budget.permits(trouble) {
                troubles.push((trouble, if is_rare { mean * 8 } else { mean }));
            }
        }
    }
    troubles
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::machine::Faults;

    #[test]
    fn all_kinds_are_listed_in_their_order() {
        for (number, trouble) in TROUBLES.iter().enumerate() {
            assert_eq!(*trouble as usize, number);
        }
    }

    #[test]
    fn each_budget_has_all_its_troubles_and_no_other() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..1_000 {
            let plan = Plan::draw(seed, Faults::NONE);
            assert_eq!(plan.outside_budget(), None, "seed {seed}");
            seen.extend(plan.troubles.iter().map(|(trouble, _)| (plan.budget, *trouble)));
        }
        for trouble in TROUBLES {
            for budget in [Budget::Recoverable, Budget::Beyond] {
                let expected = budget.permits(trouble);
                assert_eq!(seen.contains(&(budget, trouble)), expected, "{budget:?} {trouble:?}");
            }
        }
    }

    #[test]
    fn what_is_outside_a_budget_is_named() {
        let mut plan = Plan::draw(0, Faults::NONE);
        plan.budget = Budget::Recoverable;
        (plan.troubles, plan.twins, plan.drift_ppm) = (Vec::new(), false, 0);
        assert_eq!(plan.outside_budget(), None);
        plan.add_trouble(Trouble::Rot, SECOND);
        assert!(plan.troubles.is_empty());
        plan.troubles.push((Trouble::Rot, SECOND));
        assert_eq!(plan.outside_budget().as_deref(), Some("Rot"));
        plan.budget = Budget::Beyond;
        assert_eq!(plan.outside_budget(), None);
    }
}
