//! Planted faults of the runtime: each must be caught by the checkers of its worlds.

use super::run_seed;
use crate::planted::by::By;
use crate::planted::{Hunt, Planted, planted};
use larder::planted::RuntimeFault;

const P1: By = By::Promise(1);
const P2: By = By::Promise(2);
const P4: By = By::Promise(4);
const P10: By = By::Promise(10);
const P11: By = By::Promise(11);

/// Those that some run catches.
pub const FAULTS: &[Planted<RuntimeFault>] = &[
    planted(RuntimeFault::RoomKept, "room-kept", &[By::Held]),
    planted(RuntimeFault::BudgetKept, "budget-kept", &[By::Progress, By::Held]),
    planted(RuntimeFault::AnswerCrossed, "answer-crossed", &[By::Crossed]),
    planted(RuntimeFault::RequestKept, "request-kept", &[By::Held]),
    planted(RuntimeFault::DoubtAsAbort, "doubt-as-abort", &[P1, P11]),
    planted(RuntimeFault::BoundaryByte, "boundary-byte", &[By::Progress, By::Protocol]),
    planted(RuntimeFault::ShortWrite, "short-write", &[P1, P2, P10, By::Progress, By::Protocol]),
    planted(
        RuntimeFault::LanesReversed,
        "lanes-reversed",
        &[By::Protocol, By::Machines, By::Progress],
    ),
    planted(RuntimeFault::ClosedUntold, "closed-untold", &[By::Links, By::Held, By::Progress]),
    planted(RuntimeFault::AppendUnchecked, "append-unchecked", &[P1, By::Log, By::Store]),
    planted(RuntimeFault::InstallLost, "install-lost", &[By::Progress]),
    planted(RuntimeFault::IdsTwice, "ids-twice", &[By::Rule(18)]),
    planted(RuntimeFault::RefreshHere, "refresh-here", &[P2]),
    planted(RuntimeFault::LagUntold, "lag-untold", &[By::Events]),
    planted(RuntimeFault::DialAtOnce, "dial-at-once", &[P10]),
    planted(RuntimeFault::FloorForgotten, "floor-forgotten", &[P2, P4]),
];

/// The name of a fault.
#[must_use]
pub fn name(fault: RuntimeFault) -> Option<&'static str> {
    FAULTS.iter().find(|known| known.fault == fault).map(|known| known.name)
}

/// The fault of a name.
#[must_use]
pub fn fault(name: &str) -> Option<RuntimeFault> {
    FAULTS.iter().find(|known| known.name == name).map(|known| known.fault)
}

/// Plants a fault and plays seeds from 0 until it is caught, at most `seeds_max`.
#[must_use]
pub fn hunt(planted: &Planted<RuntimeFault>, seeds_max: u64) -> Hunt {
    crate::planted::hunt(planted.by, seeds_max, |seed, plants| {
        let fault = plants.then_some(planted.fault);
        run_seed(seed, fault, false).err().map(|failure| failure.what)
    })
}
