//! Planted faults: each one-line breakage of the machines must be caught by the checkers.

#[cfg(feature = "files")]
pub use crate::files::plan::FAULTS as FILE_FAULTS;
use crate::plan::Plan;
use crate::run::run_plan;
use larder_core::machine::{Fault, Faults};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// All faults, with the names they have on the command line.
pub const FAULTS: [(Fault, &str); 67] = [
    (Fault::SkipDoom, "skip-doom"),
    (Fault::UnpinnedNotice, "unpinned-notice"),
    (Fault::SkipRecheck, "skip-recheck"),
    (Fault::InstallAhead, "install-ahead"),
    (Fault::ForgetBuffered, "forget-buffered"),
    (Fault::IgnoreRequestId, "ignore-request-id"),
    (Fault::JoinAcrossNotice, "join-across-notice"),
    (Fault::LeaseBeforeCopy, "lease-before-copy"),
    (Fault::ForgetAbsence, "forget-absence"),
    (Fault::RegisterLate, "register-late"),
    (Fault::HelpOvertakes, "help-overtakes"),
    (Fault::EarlyAnswerWrong, "early-answer-wrong"),
    (Fault::AcknowledgeEarly, "acknowledge-early"),
    (Fault::IgnoreSyncError, "ignore-sync-error"),
    (Fault::ForgetOutcome, "forget-outcome"),
    (Fault::IgnoreFork, "ignore-fork"),
    (Fault::ResumeRegistersNothing, "resume-registers-nothing"),
    (Fault::ResumeForgetsUninstalled, "resume-forgets-uninstalled"),
    (Fault::IgnoreGeneration, "ignore-generation"),
    (Fault::ReuseIds, "reuse-ids"),
    (Fault::SkipIndex, "skip-index"),
    (Fault::ResumeSparesReaders, "resume-spares-readers"),
    (Fault::AnswersInOrder, "answers-in-order"),
    (Fault::WallClockAsOwn, "wall-clock-as-own"),
    (Fault::ClockStopsAsleep, "clock-stops-asleep"),
    (Fault::ForgetListing, "forget-listing"),
    (Fault::RevealEarly, "reveal-early"),
    (Fault::SkipRecoverySync, "skip-recovery-sync"),
    (Fault::LoseOutcomes, "lose-outcomes"),
    (Fault::KeepLostCopies, "keep-lost-copies"),
    (Fault::IgnoreChecksum, "ignore-checksum"),
    (Fault::DamageAsTail, "damage-as-tail"),
    (Fault::BootOfAnyName, "boot-of-any-name"),
    (Fault::AnothersBoot, "anothers-boot"),
    (Fault::ExpiredBootAnew, "expired-boot-anew"),
    (Fault::LeftUnsaid, "left-unsaid"),
    (Fault::ForgetTold, "forget-told"),
    (Fault::ReadElsewhere, "read-elsewhere"),
    (Fault::AcknowledgeInAnyOrder, "acknowledge-in-any-order"),
    (Fault::ListUnannounced, "list-unannounced"),
    (Fault::NarrowUnannounced, "narrow-unannounced"),
    (Fault::NoticeUnanswered, "notice-unanswered"),
    (Fault::LostNumbers, "lost-numbers"),
    (Fault::QuotaUncounted, "quota-uncounted"),
    (Fault::CommitToDeleted, "commit-to-deleted"),
    (Fault::ForgetRemoval, "forget-removal"),
    (Fault::CommitUnchecked, "commit-unchecked"),
    (Fault::FetchUnchecked, "fetch-unchecked"),
    (Fault::RelayAsksForAll, "relay-asks-for-all"),
    (Fault::RevokedUntold, "revoked-untold"),
    (Fault::RefreshJoined, "refresh-joined"),
    (Fault::PinUnkept, "pin-unkept"),
    (Fault::ForgetFloor, "forget-floor"),
    (Fault::SilentKept, "silent-kept"),
    (Fault::PatienceForgotten, "patience-forgotten"),
    (Fault::ReservedUnserved, "reserved-unserved"),
    (Fault::PutOffCounted, "put-off-counted"),
    (Fault::GatheredKept, "gathered-kept"),
    (Fault::WritesRetained, "writes-retained"),
    (Fault::SnapshotKept, "snapshot-kept"),
    (Fault::WaitForgotten, "wait-forgotten"),
    (Fault::PutOffUnsent, "put-off-unsent"),
    (Fault::OutcomesKept, "outcomes-kept"),
    (Fault::WrittenUntold, "written-untold"),
    (Fault::ReservationKept, "reservation-kept"),
    (Fault::FetchingKept, "fetching-kept"),
    (Fault::AgeFromZero, "age-from-zero"),
];

/// How a fault was caught.
#[derive(Clone, Debug)]
pub struct Caught {
    /// Seeds it took, the last one included.
    pub seeds: u64,
    /// What the checkers said.
    pub what: String,
}

/// Plants faults one by one, `jobs` at once, each against at most `seeds_max` seeds, and tells of each as
/// it ends; gives what became of them, in their order.
#[must_use]
pub fn catch_all(
    faults: &[(Fault, &'static str)],
    seeds_max: u64,
    jobs: usize,
    tell: impl Fn(&str, Option<&Caught>) + Sync,
) -> Vec<Option<Caught>> {
    let next = AtomicUsize::new(0);
    let caught: Vec<Mutex<Option<Caught>>> = faults.iter().map(|_| Mutex::default()).collect();
    std::thread::scope(|scope| {
        for _ in 0..jobs.max(1) {
            scope.spawn(|| {
                while let Some((fault, name)) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let place = faults.iter().position(|(_, other)| other == name);
                    let found = catch(*fault, seeds_max);
                    tell(name, found.as_ref());
                    let place = place.expect("it is one of them");
                    *caught[place].lock().expect("nothing panics while it is held") = found;
                }
            });
        }
    });
    let ended =
        |it: Mutex<Option<Caught>>| it.into_inner().expect("nothing panics while it is held");
    caught.into_iter().map(ended).collect()
}

/// Plants a fault and plays seeds from 0 until it is caught, at most `seeds_max`.
#[must_use]
pub fn catch(fault: Fault, seeds_max: u64) -> Option<Caught> {
    catch_in(fault, seeds_max, |_| ())
}

/// The same for a fault of the file layer, in worlds that are about files.
#[cfg(feature = "files")]
#[must_use]
pub fn catch_in_files(fault: larder::fs::FsFault, seeds_max: u64) -> Option<Caught> {
    (0..seeds_max).find_map(|seed| {
        let mut plan = Plan::draw(seed, Faults::NONE);
        crate::files::aim(&mut plan, Some(fault));
        let failure = run_plan(plan, false).err()?;
        Some(Caught { seeds: seed + 1, what: failure.what })
    })
}

/// The same with every plan changed first: a fault that only one kind of trouble brings out is not
/// caught without it.
#[must_use]
pub fn catch_in(fault: Fault, seeds_max: u64, change: impl Fn(&mut Plan)) -> Option<Caught> {
    (0..seeds_max).find_map(|seed| {
        let mut plan = Plan::draw(seed, Faults::only(fault));
        change(&mut plan);
        let failure = run_plan(plan, false).err()?;
        Some(Caught { seeds: seed + 1, what: failure.what })
    })
}
