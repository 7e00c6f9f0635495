//! Planted faults of the runtime: each must be caught by the checkers of its worlds.

use super::run_seed;
use crate::planted::Caught;
use larder::planted::RuntimeFault;

/// With the names they have on the command line; those that no run catches yet are not among them.
pub const FAULTS: [(RuntimeFault, &str); 16] = [
    (RuntimeFault::RoomKept, "room-kept"),
    (RuntimeFault::BudgetKept, "budget-kept"),
    (RuntimeFault::AnswerCrossed, "answer-crossed"),
    (RuntimeFault::RequestKept, "request-kept"),
    (RuntimeFault::DoubtAsAbort, "doubt-as-abort"),
    (RuntimeFault::BoundaryByte, "boundary-byte"),
    (RuntimeFault::ShortWrite, "short-write"),
    (RuntimeFault::LanesReversed, "lanes-reversed"),
    (RuntimeFault::ClosedUntold, "closed-untold"),
    (RuntimeFault::AppendUnchecked, "append-unchecked"),
    (RuntimeFault::InstallLost, "install-lost"),
    (RuntimeFault::IdsTwice, "ids-twice"),
    (RuntimeFault::RefreshHere, "refresh-here"),
    (RuntimeFault::LagUntold, "lag-untold"),
    (RuntimeFault::DialAtOnce, "dial-at-once"),
    (RuntimeFault::FloorForgotten, "floor-forgotten"),
];

/// The name of a fault.
#[must_use]
pub fn name(fault: RuntimeFault) -> Option<&'static str> {
    FAULTS.iter().find(|(known, _)| *known == fault).map(|(_, name)| *name)
}

/// The fault of a name.
#[must_use]
pub fn fault(name: &str) -> Option<RuntimeFault> {
    FAULTS.iter().find(|(_, known)| *known == name).map(|(fault, _)| *fault)
}

/// Plants a fault and plays seeds from 0 until it is caught, at most `seeds_max`.
#[must_use]
pub fn catch(fault: RuntimeFault, seeds_max: u64) -> Option<Caught> {
    (0..seeds_max).find_map(|seed| {
        let failure = run_seed(seed, Some(fault), false).err()?;
        Some(Caught { seeds: seed + 1, what: failure.what })
    })
}
