//! Planted faults: each one-line breakage of the machines must be caught by the checkers, and by those that
//! are about what it breaks.

pub mod by;

#[cfg(feature = "files")]
pub use crate::files::plan::FAULTS as FILE_FAULTS;
use crate::plan::Plan;
use crate::run::run_plan;
use by::By;
use larder_core::machine::{Fault, Faults};
use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A fault that is planted.
#[derive(Clone, Copy, Debug)]
pub struct Planted<F> {
    /// Which.
    pub fault: F,
    /// Its name on the command line.
    pub name: &'static str,
    /// What may catch it: anything else that is said when it is planted does not count.
    pub by: &'static [By],
}

/// An entry of a list.
pub(crate) const fn planted<F: Copy>(
    fault: F,
    name: &'static str,
    by: &'static [By],
) -> Planted<F> {
    Planted { fault, name, by }
}

const P1: By = By::Promise(1);
const P2: By = By::Promise(2);
const P3: By = By::Promise(3);
const P4: By = By::Promise(4);
const P5: By = By::Promise(5);
const P7: By = By::Promise(7);
const P8: By = By::Promise(8);
const P9: By = By::Promise(9);
const P10: By = By::Promise(10);
const P11: By = By::Promise(11);
const P12: By = By::Promise(12);
/// A cache shows a wrong state: in a copy that somebody looks at, to a reader, in what is committed upon it.
const STATE: &[By] = &[P2, P3, P5];
/// A transaction's reads are not of one state, though every copy is right.
const READS: &[By] = &[P2, P5];
const AGES: &[By] = &[By::Rule(8), By::Age];
/// Something is under way for ever, or somebody waits in vain.
const REST: &[By] = &[P7, P10, By::Progress];
const RIGHTS: &[By] = &[By::Rights];
/// What a transaction wrote, and took back, is not what it reads or what is committed.
const OWN: &[By] = &[By::Own, By::Asked, P2, P5];
/// Somebody commits in another's name: the log has it, or its owner is told what it never did.
const THEFT: &[By] = &[P11, By::Asked];
/// What was read ahead of the stream is not what it is taken for.
const AHEAD: &[By] = &[P2, P3, P4, P5, By::Refusal];
/// A transaction over several domains is done in some of them.
const WHOLES: &[By] = &[P2, P11];

/// Faults of the machines and the store.
pub const FAULTS: &[Planted<Fault>] = &[
    planted(Fault::SkipDoom, "skip-doom", STATE),
    planted(Fault::UnpinnedNotice, "unpinned-notice", STATE),
    planted(Fault::SkipRecheck, "skip-recheck", STATE),
    planted(Fault::InstallAhead, "install-ahead", STATE),
    planted(Fault::ForgetBuffered, "forget-buffered", STATE),
    planted(Fault::IgnoreRequestId, "ignore-request-id", STATE),
    planted(Fault::JoinAcrossNotice, "join-across-notice", STATE),
    planted(Fault::LeaseBeforeCopy, "lease-before-copy", AGES),
    planted(Fault::ForgetAbsence, "forget-absence", READS),
    planted(Fault::RegisterLate, "register-late", STATE),
    planted(Fault::HelpOvertakes, "help-overtakes", &[P1, P3, P5]),
    planted(Fault::EarlyAnswerWrong, "early-answer-wrong", &[By::Rule(13)]),
    planted(Fault::AcknowledgeEarly, "acknowledge-early", &[P1]),
    planted(Fault::IgnoreSyncError, "ignore-sync-error", &[P1, By::Log, By::Store]),
    planted(Fault::ForgetOutcome, "forget-outcome", &[P11]),
    planted(Fault::IgnoreFork, "ignore-fork", &[P3, P4, P12]),
    planted(Fault::ResumeRegistersNothing, "resume-registers-nothing", STATE),
    planted(Fault::ResumeForgetsUninstalled, "resume-forgets-uninstalled", STATE),
    planted(Fault::IgnoreGeneration, "ignore-generation", READS),
    planted(Fault::ReuseIds, "reuse-ids", &[By::Rule(18)]),
    planted(Fault::SkipIndex, "skip-index", STATE),
    planted(Fault::ResumeSparesReaders, "resume-spares-readers", READS),
    planted(Fault::AnswersInOrder, "answers-in-order", STATE),
    planted(Fault::WallClockAsOwn, "wall-clock-as-own", AGES),
    planted(Fault::ClockStopsAsleep, "clock-stops-asleep", AGES),
    planted(Fault::ForgetListing, "forget-listing", READS),
    planted(Fault::RevealEarly, "reveal-early", &[P1, By::Rule(13)]),
    planted(Fault::SkipRecoverySync, "skip-recovery-sync", &[P1, P8]),
    planted(Fault::LoseOutcomes, "lose-outcomes", &[P11]),
    planted(Fault::KeepLostCopies, "keep-lost-copies", &[P2, P3, P4, P5, P12]),
    planted(Fault::IgnoreChecksum, "ignore-checksum", &[P1, P3, P8, P9, By::Asked]),
    planted(Fault::DamageAsTail, "damage-as-tail", &[P1, P9]),
    planted(Fault::BootOfAnyName, "boot-of-any-name", THEFT),
    planted(Fault::AnothersBoot, "anothers-boot", THEFT),
    planted(Fault::ExpiredBootAnew, "expired-boot-anew", &[P11]),
    planted(Fault::LeftUnsaid, "left-unsaid", &[By::Progress]),
    planted(Fault::ForgetTold, "forget-told", &[P4, P12]),
    planted(Fault::ReadElsewhere, "read-elsewhere", &[P2]),
    planted(Fault::AcknowledgeInAnyOrder, "acknowledge-in-any-order", &[By::Rule(14)]),
    planted(Fault::ListUnannounced, "list-unannounced", STATE),
    planted(Fault::NarrowUnannounced, "narrow-unannounced", STATE),
    planted(Fault::NoticeUnanswered, "notice-unanswered", STATE),
    planted(Fault::LostNumbers, "lost-numbers", &[P12]),
    planted(Fault::QuotaUncounted, "quota-uncounted", &[By::Quota]),
    planted(Fault::CommitToDeleted, "commit-to-deleted", &[P2, By::Deletions]),
    planted(Fault::ForgetRemoval, "forget-removal", &[By::Progress]),
    planted(Fault::CommitUnchecked, "commit-unchecked", RIGHTS),
    planted(Fault::FetchUnchecked, "fetch-unchecked", RIGHTS),
    planted(Fault::RelayAsksForAll, "relay-asks-for-all", RIGHTS),
    planted(Fault::RevokedUntold, "revoked-untold", RIGHTS),
    planted(Fault::RefreshJoined, "refresh-joined", &[P2]),
    planted(Fault::PinUnkept, "pin-unkept", &[P3, P5]),
    planted(Fault::ForgetFloor, "forget-floor", &[P4]),
    planted(Fault::SilentKept, "silent-kept", &[P7, By::Progress]),
    planted(Fault::PatienceForgotten, "patience-forgotten", &[P10]),
    planted(Fault::ReservedUnserved, "reserved-unserved", &[P7, By::Progress]),
    planted(Fault::PutOffCounted, "put-off-counted", REST),
    planted(Fault::GatheredKept, "gathered-kept", REST),
    planted(Fault::WritesRetained, "writes-retained", REST),
    planted(Fault::SnapshotKept, "snapshot-kept", REST),
    planted(Fault::WaitForgotten, "wait-forgotten", REST),
    planted(Fault::PutOffUnsent, "put-off-unsent", REST),
    planted(Fault::OutcomesKept, "outcomes-kept", REST),
    planted(Fault::WrittenUntold, "written-untold", REST),
    planted(Fault::ReservationKept, "reservation-kept", REST),
    planted(Fault::FetchingKept, "fetching-kept", REST),
    planted(Fault::PinAsNow, "pin-as-now", &[P3, P5]),
    planted(Fault::PinLosesLast, "pin-loses-last", &[P3, P5]),
    planted(Fault::AppliedAgain, "applied-again", &[P2, P3, P5, P9]),
    planted(Fault::NarrowsUnknown, "narrows-unknown", STATE),
    planted(Fault::NamesUnsynced, "names-unsynced", &[P1, P8, By::Log]),
    planted(Fault::OwnUnread, "own-unread", OWN),
    planted(Fault::RollbackKeeps, "rollback-keeps", OWN),
    planted(Fault::AheadUnvalidated, "ahead-unvalidated", AHEAD),
    planted(Fault::AheadUnwaited, "ahead-unwaited", AHEAD),
    planted(Fault::AheadReadTwice, "ahead-read-twice", AHEAD),
    planted(Fault::AgeFromZero, "age-from-zero", AGES),
    planted(Fault::RefusedWithRight, "refused-with-right", &[By::Refusal]),
    planted(Fault::ChangedEarly, "changed-early", &[P1]),
    planted(Fault::GenerationsAnew, "generations-anew", &[P2, P5, By::Rule(18)]),
    planted(Fault::TrimmedTooFar, "trimmed-too-far", &[P1, P8]),
    planted(Fault::NewNameUnsynced, "new-name-unsynced", &[P1, P8, P9, By::Log]),
    planted(Fault::EarlyRepeated, "early-repeated", &[P11, By::Asked]),
    planted(Fault::LoseRefusals, "lose-refusals", &[P11]),
    planted(Fault::TakenBackUnrecorded, "taken-back-unrecorded", &[P11, By::Rule(15)]),
    planted(Fault::LeftoversKept, "leftovers-kept", &[P1, P8, P9, By::Log]),
    planted(Fault::DeniedInFull, "denied-in-full", RIGHTS),
    planted(Fault::VoteEarly, "vote-early", WHOLES),
    planted(Fault::PreparedForgotten, "prepared-forgotten", WHOLES),
    planted(Fault::DecisionForgotten, "decision-forgotten", WHOLES),
    planted(Fault::NothingBarred, "nothing-barred", &[P2, P5, By::Machines]),
    planted(Fault::OwnTurnSkipped, "own-turn-skipped", &[P2, By::Machines]),
    planted(Fault::WritesUnbarred, "writes-unbarred", &[P2, P5, By::Machines]),
    planted(Fault::OutcomesUnkept, "outcomes-unkept", &[P2, P11, By::Machines]),
    planted(Fault::WholeForgotten, "whole-forgotten", &[P11]),
    planted(Fault::WholesUnsent, "wholes-unsent", REST),
    planted(Fault::KnownIsExpired, "known-is-expired", &[P11]),
    planted(Fault::RefusedInVain, "refused-in-vain", &[By::Refusal]),
    planted(Fault::ConflictByPage, "conflict-by-page", &[By::Rule(13), By::Rule(15)]),
    planted(Fault::InstallFromNewest, "install-from-newest", &[P1, P8]),
    planted(Fault::BootUnlisted, "boot-unlisted", &[P11]),
    planted(Fault::OpenConfirmed, "open-confirmed", &[P11]),
    planted(Fault::OpenUnlisted, "open-unlisted", &[P11]),
    planted(Fault::LostUnpassed, "lost-unpassed", &[P1, P11]),
    planted(Fault::DecisionsUnlisted, "decisions-unlisted", WHOLES),
    planted(Fault::TurnStays, "turn-stays", &[P10, By::Progress, By::Machines]),
    planted(Fault::PeerToldEarly, "peer-told-early", &[P1, P12]),
    planted(Fault::CopyHeard, "copy-heard", &[P12]),
    planted(Fault::PeersUntold, "peers-untold", REST),
];

/// Those of groups.
pub const GROUP_FAULTS: &[Planted<Fault>] = &[
    planted(Fault::HelpUnawaited, "help-unawaited", STATE),
    planted(Fault::PointedForgetsKept, "pointed-forgets-kept", STATE),
    planted(Fault::HolesHelped, "holes-helped", STATE),
    planted(Fault::HolesFilled, "holes-filled", STATE),
    planted(Fault::PointsToAll, "points-to-all", &[By::Rights, By::Progress]),
    planted(Fault::TransferOfGone, "transfer-of-gone", REST),
    planted(Fault::TransferUntimed, "transfer-untimed", REST),
    planted(Fault::LateHelpTaken, "late-help-taken", STATE),
    planted(Fault::PointedUnregistered, "pointed-unregistered", STATE),
    planted(Fault::UpdateOfAnother, "update-of-another", STATE),
    planted(Fault::UpdateSparesFlight, "update-spares-flight", STATE),
    planted(Fault::UpdatesStay, "updates-stay", REST),
    planted(Fault::UpdatesOfLost, "updates-of-lost", REST),
];

/// Those of failover.
pub const FAILOVER_FAULTS: &[Planted<Fault>] = &[
    planted(Fault::FollowsOlder, "follows-older", REST),
    planted(Fault::LeadsOn, "leads-on", REST),
    planted(Fault::DeadIsFollowed, "dead-is-followed", REST),
    planted(Fault::GoneForGood, "gone-for-good", REST),
    planted(Fault::RepeatedAnew, "repeated-anew", &[P11, By::Asked]),
    planted(Fault::StaleKept, "stale-kept", STATE),
];

/// All faults of the machines and the store, those of groups among them.
fn of_machines() -> impl Iterator<Item = &'static Planted<Fault>> {
    FAULTS.iter().chain(GROUP_FAULTS).chain(FAILOVER_FAULTS)
}

/// The fault of the machines of a name.
#[must_use]
pub fn of_name(name: &str) -> Option<Fault> {
    of_machines().find(|known| known.name == name).map(|known| known.fault)
}

/// The fault of the file layer of a name.
#[cfg(feature = "files")]
#[must_use]
pub fn file_fault_of_name(name: &str) -> Option<larder::fs::FsFault> {
    FILE_FAULTS.iter().find(|known| known.name == name).map(|known| known.fault)
}

/// The name of what is planted, if anything is.
#[must_use]
pub fn name_of(faults: Faults) -> Option<&'static str> {
    of_machines().find(|known| faults.has(known.fault)).map(|known| known.name)
}

/// How a fault was caught.
#[derive(Clone, Debug)]
pub struct Caught {
    /// Seeds it took, the last one included.
    pub seeds: u64,
    /// What the checkers said.
    pub what: String,
    /// Which of them spoke.
    pub by: BTreeSet<By>,
}

/// A seed that failed when a fault was planted, and does not count.
#[derive(Clone, Debug)]
pub struct Unfit {
    /// The seed.
    pub seed: u64,
    /// What the checkers said.
    pub what: String,
    /// Whether it fails without the fault as well; else nothing that was said is about the fault.
    pub without: bool,
}

/// What came of planting a fault.
#[derive(Clone, Debug, Default)]
pub struct Hunt {
    /// None: no seed counted.
    pub caught: Option<Caught>,
    /// Seeds before that failed otherwise.
    pub unfit: Vec<Unfit>,
}

/// Plays seeds from 0, at most `seeds_max`, until one fails for what may catch the fault and passes without
/// it. `play` is given the seed and whether to plant, and gives what the checkers said.
pub(crate) fn hunt(by: &[By], seeds_max: u64, play: impl Fn(u64, bool) -> Option<String>) -> Hunt {
    let mut hunt = Hunt::default();
    for seed in 0..seeds_max {
        let Some(what) = play(seed, true) else { continue };
        let said = By::of(&what);
        let fits = said.iter().any(|said| by.contains(said));
        let without = play(seed, false).is_some();
        if fits && !without {
            hunt.caught = Some(Caught { seeds: seed + 1, what, by: said });
            return hunt;
        }
        hunt.unfit.push(Unfit { seed, what, without });
    }
    hunt
}

/// One fault of any kind, ready to be planted.
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    hunt: Box<dyn Fn(u64) -> Hunt + Send + Sync>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// All faults of the machines, of the file layer and of the runtime.
#[must_use]
pub fn all() -> Vec<Entry> {
    let of_machines = of_machines().map(|planted| Entry {
        name: planted.name,
        hunt: Box::new(|seeds| hunt_in(planted, seeds, |_| ())),
    });
    #[cfg_attr(not(any(feature = "files", feature = "runtime")), expect(unused_mut))]
    let mut entries: Vec<Entry> = of_machines.collect();
    #[cfg(feature = "files")]
    entries.extend(FILE_FAULTS.iter().map(|planted| Entry {
        name: planted.name,
        hunt: Box::new(|seeds| hunt_in_files(planted, seeds)),
    }));
    #[cfg(feature = "runtime")]
    entries.extend(crate::runtime::planted::FAULTS.iter().map(|planted| Entry {
        name: planted.name,
        hunt: Box::new(|seeds| crate::runtime::planted::hunt(planted, seeds)),
    }));
    entries
}

/// Plants faults one by one, `jobs` at once, each against at most `seeds_max` seeds, and tells of each as
/// it ends; gives what became of them, in their order.
#[must_use]
pub fn hunt_all(
    entries: &[Entry],
    seeds_max: u64,
    jobs: usize,
    tell: impl Fn(&Entry, &Hunt) + Sync,
) -> Vec<Hunt> {
    let next = AtomicUsize::new(0);
    let hunts: Vec<Mutex<Hunt>> = entries.iter().map(|_| Mutex::default()).collect();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let place = next.fetch_add(1, Ordering::Relaxed);
                    let Some(entry) = entries.get(place) else { return };
                    let hunt = (entry.hunt)(seeds_max);
                    tell(entry, &hunt);
                    *hunts[place].lock().expect("nothing panics while it is held") = hunt;
                }
            });
        }
    });
    let ended = |it: Mutex<Hunt>| it.into_inner().expect("nothing panics while it is held");
    hunts.into_iter().map(ended).collect()
}

/// Plants a fault and plays seeds from 0 until it is caught, at most `seeds_max`.
#[must_use]
pub fn catch(fault: Fault, seeds_max: u64) -> Option<Caught> {
    catch_in(fault, seeds_max, |_| ())
}

/// The same with every plan changed first: a fault that only one kind of trouble brings out is not
/// caught without it.
#[must_use]
pub fn catch_in(fault: Fault, seeds_max: u64, change: impl Fn(&mut Plan)) -> Option<Caught> {
    let planted = of_machines().find(|known| known.fault == fault);
    hunt_in(planted.expect("every fault is in the list"), seeds_max, change).caught
}

fn hunt_in(planted: &Planted<Fault>, seeds_max: u64, change: impl Fn(&mut Plan)) -> Hunt {
    hunt(planted.by, seeds_max, |seed, plants| {
        // The world is the same without the fault.
        let mut plan = Plan::draw(seed, Faults::only(planted.fault));
        if !plants {
            plan.faults = Faults::NONE;
        }
        change(&mut plan);
        run_plan(plan, false).err().map(|failure| failure.what)
    })
}

/// The same for a fault of the file layer, in worlds that are about files.
#[cfg(feature = "files")]
#[must_use]
pub fn catch_in_files(fault: larder::fs::FsFault, seeds_max: u64) -> Option<Caught> {
    let planted = FILE_FAULTS.iter().find(|known| known.fault == fault)?;
    hunt_in_files(planted, seeds_max).caught
}

#[cfg(feature = "files")]
fn hunt_in_files(planted: &Planted<larder::fs::FsFault>, seeds_max: u64) -> Hunt {
    hunt(planted.by, seeds_max, |seed, plants| {
        let mut plan = Plan::draw(seed, Faults::NONE);
        crate::files::aim(&mut plan, plants.then_some(planted.fault));
        run_plan(plan, false).err().map(|failure| failure.what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "P3: a copy is wrong [crates/sim/src/check/copies.rs:1:1]";

    /// What fits and passes without the fault counts; what says something else, or fails anyway, does not.
    #[test]
    fn only_what_fits_and_passes_without_the_fault_counts() {
        let said = |seed: u64, plants: bool| match (seed, plants) {
            (1, _) | (5, true) => Some(SAID.to_owned()),
            (3, true) => Some("progress: nothing moves [x.rs:1:1]".to_owned()),
            _ => None,
        };
        let hunt_one = |by| hunt(by, 6, said);
        let found = hunt_one(&[P3, P5]);
        assert_eq!(found.caught.as_ref().map(|caught| caught.seeds), Some(6));
        let unfit: Vec<(u64, bool)> = found.unfit.iter().map(|it| (it.seed, it.without)).collect();
        assert_eq!(unfit, [(1, true), (3, false)]);
        let found = hunt_one(&[P2]);
        assert!(found.caught.is_none(), "{:?}", found.caught);
        assert_eq!(found.unfit.len(), 3);
    }

    #[test]
    fn each_fault_has_a_name_of_its_own_and_something_that_catches_it() {
        let mut names: Vec<&str> = all().iter().map(|entry| entry.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        for planted in of_machines() {
            assert!(!planted.by.is_empty() && !planted.by.contains(&By::Other), "{planted:?}");
            assert_eq!(name_of(Faults::only(planted.fault)), Some(planted.name));
        }
    }
}
