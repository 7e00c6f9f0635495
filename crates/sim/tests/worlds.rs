//! Whole worlds from seeds: they keep all promises, they repeat, and broken machines are caught.
//!
//! Those that play many hundred seeds (`long`) are for a build with optimisation: `./x test` runs them
//! from one.

use larder_core::machine::{Fault, Faults};
use larder_sim::fleet::run_all;
use larder_sim::plan::{Budget, Plan, Trouble};
use larder_sim::planted::{catch, catch_in};
use larder_sim::run::{run_plan, run_seed};
use larder_sim::scenario::SCENARIOS;

#[test]
fn the_first_seeds_keep_all_promises() {
    let report = run_all(0..120, Faults::NONE, 2, true);
    for failure in &report.failures {
        println!("{failure}");
    }
    assert!(report.failures.is_empty());
    assert!(report.tally.committed > 1_000, "the workload does work");
    assert!(report.tally.copies_checked > 1_000, "the checkers look at copies");
}

#[test]
fn two_runs_of_a_seed_are_one_trace() {
    for seed in 0..40 {
        let hash = |readable| match run_seed(seed, Faults::NONE, readable) {
            Ok(clean) => (clean.hash, clean.events),
            Err(failure) => panic!("{failure}"),
        };
        assert_eq!(hash(false), hash(true), "seed {seed}");
    }
}

/// Debug and release builds, and builds to come, give the same hashes for the same machines; when
/// a machine changes on purpose, `larder-sim hash 0..1` prints the new one.
#[test]
fn different_seeds_are_different_traces() {
    let hash = |seed| run_seed(seed, Faults::NONE, false).expect("it is clean").hash;
    assert_ne!(hash(1), hash(2));
}

#[test]
fn the_named_races_are_survived() {
    for scenario in SCENARIOS {
        for seed in 0..12 {
            if let Err(failure) = run_plan(scenario.plan(seed), false) {
                panic!("{} ({})\n{failure}", scenario.name, scenario.story);
            }
        }
    }
}

fn assert_caught(fault: Fault, seeds_max: u64, promise: &str) {
    let caught = catch(fault, seeds_max).expect("a planted fault is caught");
    assert!(caught.what.contains(promise), "{fault:?} is caught as {}", caught.what);
}

#[test]
fn a_reader_that_is_not_doomed_is_caught() {
    assert_caught(Fault::SkipDoom, 100, "P");
}

#[test]
fn a_page_installed_ahead_of_the_stream_is_caught() {
    assert_caught(Fault::InstallAhead, 100, "P");
}

#[test]
fn a_change_forgotten_during_a_fetch_is_caught() {
    assert_caught(Fault::ForgetBuffered, 100, "P");
}

#[test]
fn an_absence_that_is_not_a_read_is_caught() {
    assert_caught(Fault::ForgetAbsence, 100, "client");
}

#[test]
fn an_acknowledgement_before_the_sync_is_caught() {
    assert_caught(Fault::AcknowledgeEarly, 100, "P");
}

#[test]
fn a_commit_validated_twice_is_caught() {
    assert_caught(Fault::ForgetOutcome, 200, "P");
}

#[test]
fn a_resume_that_registers_for_nothing_is_caught() {
    assert_caught(Fault::ResumeRegistersNothing, 200, "P");
}

/// Plants a fault that only one thing brings out: without it nothing is caught, in twice the seeds (or more) that catch it
/// with it.
fn assert_caught_only_with(fault: Fault, seeds_max: u64, without: impl Fn(&mut Plan)) {
    let missed = catch_in(fault, seeds_max, without);
    assert!(missed.is_none(), "{fault:?} is caught without it: {missed:?}");
    assert!(catch(fault, seeds_max).is_some(), "{fault:?} is not caught");
}

fn without(troubles: &[Trouble]) -> impl Fn(&mut Plan) {
    move |plan: &mut Plan| plan.troubles.retain(|(other, _)| !troubles.contains(other))
}

/// What makes the log's bytes others than those that were written and synced.
const DAMAGE: &[Trouble] = &[Trouble::Rot, Trouble::LoseWrite, Trouble::MisdirectWrite];
/// What happens to redirectors that groups find themselves.
const OF_REDIRECTORS: &[Trouble] = &[
    Trouble::KillRedirector,
    Trouble::PartRedirector,
    Trouble::PauseRedirector,
    Trouble::PartMembers,
    Trouble::HandOver,
];
/// What sets a wall clock, or stops it.
const WALL_CLOCKS: &[Trouble] = &[Trouble::SetWall, Trouble::FreezeWall];

/// No decision depends on wall clocks: with them set at random a run is the same, message by
/// message.
#[test]
fn wall_clocks_change_nothing() {
    for seed in 0..20 {
        let hash = |wall_error: i64| {
            let mut plan = Plan::draw(seed, Faults::NONE);
            without(WALL_CLOCKS)(&mut plan);
            // It falls on bytes that are not zero, and those of the times in the log's records may be.
            without(DAMAGE)(&mut plan);
            plan.wall_error = wall_error;
            run_plan(plan, false).unwrap_or_else(|failure| panic!("{failure}")).hash
        };
        let right = hash(0);
        assert_eq!(right, hash(1_000_000_000_000_000), "seed {seed}: eleven days ahead");
        assert_eq!(right, hash(-600_000_000_000_000_000), "seed {seed}: nineteen years behind");
    }
}

#[test]
fn generations_that_are_not_compared_are_caught() {
    assert_caught(Fault::IgnoreGeneration, 100, "P");
}

/// The story: a disk was copied, certificate and all, and both machines were started. The second
/// process of a name is refused as long as the first is heard from, and takes its place when the
/// first is cut off; no promise is broken meanwhile, to neither.
#[test]
fn two_processes_of_one_name_break_no_promise_and_one_is_refused() {
    let mut refused = 0;
    for seed in 0..40 {
        let mut plan = Plan::draw(seed, Faults::NONE);
        if plan.nodes.len() > 1 {
            plan.twins = true;
            plan.budget = Budget::Beyond;
            plan.troubles.push((Trouble::Break, 300_000_000));
            refused += run_plan(plan, false)
                .unwrap_or_else(|failure| panic!("{failure}"))
                .tally
                .refused_twins;
        }
    }
    assert!(refused > 50, "{refused} times one of two was refused");
}

/// Domains of two origins say much to each other, and transactions over both are done (decision 0038).
#[test]
fn two_origins_commit_together() {
    let (mut said, mut wholes) = (0, 0);
    for seed in 0..40 {
        let mut plan = Plan::draw(seed, Faults::NONE);
        plan.give_second_origin();
        let clean = run_plan(plan, false).unwrap_or_else(|failure| panic!("{failure}"));
        said += clean.tally.between_origins;
        wholes += clean.tally.wholes;
    }
    assert!(said > 1_000 && wholes > 300, "{wholes} transactions with {said} words");
}

/// The story: the device under one domain's log took a write and never answered. That domain stands
/// still until somebody ends the process; every other domain goes on (P10).
#[test]
fn a_log_that_never_answers_holds_up_its_own_domain_alone() {
    let mut went_on = 0;
    for seed in 0..40 {
        let mut plan = Plan::draw(seed, Faults::NONE);
        plan.domains = 2;
        plan.troubles.retain(|(trouble, _)| *trouble != Trouble::Hang);
        plan.troubles.push((Trouble::Hang, 1_000_000_000));
        went_on +=
            run_plan(plan, false).unwrap_or_else(|failure| panic!("{failure}")).tally.went_on;
    }
    assert!(went_on > 50, "{went_on} answers beside a log that hung");
}

/// The story of bug 31: a node keeps numbers over a restore that loses nothing else it has seen.
#[test]
fn numbers_of_a_lost_branch_are_caught() {
    assert_caught(Fault::LostNumbers, 200, "P12");
}

#[test]
fn acknowledgements_in_another_order_are_caught() {
    assert_caught(Fault::AcknowledgeInAnyOrder, 100, "rule 14");
}

#[test]
fn a_node_that_left_unsaid_is_caught() {
    assert_caught(Fault::LeftUnsaid, 100, "progress");
}

/// What clients saw is not compared with the log: the cycle test must see by itself that no order of
/// their transactions explains it.
fn assert_caught_by_cycles(fault: Fault, seeds_max: u64) {
    let found = (0..seeds_max).find_map(|seed| {
        let mut plan = Plan::draw(seed, Faults::only(fault));
        plan.replays = false;
        // Volumes that go, or may not be read, end the transactions that would show it.
        (plan.mix.rights_percent, plan.mix.delete_percent) = (0, 0);
        run_plan(plan, false).err().filter(|failure| failure.what.contains("P2: a cycle of"))
    });
    assert!(found.is_some(), "the cycle test does not catch {fault:?}");
}

#[test]
fn the_cycle_test_alone_catches_readers_that_are_not_doomed() {
    assert_caught_by_cycles(Fault::SkipDoom, 40);
    assert_caught_by_cycles(Fault::SkipRecheck, 40);
}

#[test]
fn the_cycle_test_alone_catches_absences_that_are_not_reads() {
    assert_caught_by_cycles(Fault::ForgetAbsence, 40);
    assert_caught_by_cycles(Fault::ForgetListing, 300);
}

/// The story: T1 read x in one domain and wrote y in another, T2 read y and wrote x. Each was right
/// where it was validated, and only a cycle over both domains shows that both cannot be.
#[test]
fn the_cycle_test_alone_catches_writers_that_read_in_another_domain() {
    let two_domains = |plan: &mut Plan| {
        plan.domains = 2;
        plan.volumes = 1;
        plan.mix.spread_percent = 100;
        plan.mix.read_only_percent = 0;
        (plan.mix.pages, plan.mix.slots, plan.mix.length) = (1, 2, 4);
    };
    let caught = catch_in(Fault::ReadElsewhere, 60, two_domains).expect("it is caught");
    assert!(caught.what.contains("over all domains"), "it is caught as {}", caught.what);
}

/// Writers that use several domains are in the workload, and are committed as a whole.
#[test]
fn writers_that_use_two_domains_are_committed() {
    let mut wholes = 0;
    for seed in 0..25 {
        let mut plan = Plan::draw(seed, Faults::NONE);
        plan.domains = 2;
        plan.mix.spread_percent = 100;
        let clean = run_plan(plan, false).unwrap_or_else(|failure| panic!("{failure}"));
        wholes += clean.tally.wholes;
    }
    assert!(wholes > 100, "{wholes} transactions over two domains");
}

/// What nobody may read is answered to nobody, neither by the origin nor in the name of a relay, and who
/// lost a right is told.
#[test]
fn rights_to_read_that_are_not_looked_at_are_caught() {
    assert_caught(Fault::FetchUnchecked, 100, "rights");
    assert_caught(Fault::RelayAsksForAll, 100, "rights");
    assert_caught(Fault::RevokedUntold, 100, "rights");
}

#[test]
fn a_session_that_forgets_its_floor_is_caught() {
    assert_caught(Fault::ForgetFloor, 100, "P4");
}

/// The others are cut off, dead or stand still, and a core of the world has to work without them.
#[test]
fn a_core_works_while_the_others_are_away() {
    let report = run_all(0..40, Faults::NONE, 2, true);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert!(report.tally.cores > 5, "{} cores", report.tally.cores);
}

#[test]
fn a_request_that_outlives_its_users_patience_is_caught() {
    assert_caught(Fault::PatienceForgotten, 100, "P10");
}

/// A checker that others wrote, alone: it catches what the cycle test catches, and finds nothing wrong
/// where nothing is.
#[cfg(feature = "second-opinion")]
#[test]
fn a_second_opinion_alone_catches_readers_that_are_not_doomed() {
    use larder_sim::check::cycles::Judges;
    let found = |fault: Faults| {
        (0..40).find_map(|seed| {
            let mut plan = Plan::draw(seed, fault);
            (plan.replays, plan.judges) = (false, Judges::Theirs);
            let failure = run_plan(plan, false).err()?;
            failure.what.contains("P2: adya: not").then_some(seed)
        })
    };
    assert!(found(Faults::only(Fault::SkipDoom)).is_some());
    assert!(found(Faults::only(Fault::SkipRecheck)).is_some());
    assert_eq!(found(Faults::NONE), None);
}

/// Those that play many hundred seeds.
mod long {
    use super::*;

    /// The story: what it took a group to work again was printed and not looked at. It was longer than two seconds one
    /// time in twenty, since a redirector was missed when it was its turn to be asked and not when its links broke.
    #[test]
    #[cfg_attr(debug_assertions, ignore = "long: with --release")]
    fn a_group_works_again_two_seconds_after_its_redirector_died() {
        let found = SCENARIOS.iter().find(|scenario| scenario.name == "redirector-killed");
        let scenario = found.expect("it is there");
        let mut failovers = 0;
        for seed in 0..150 {
            let clean = run_plan(scenario.plan(seed), false);
            failovers += clean.unwrap_or_else(|failure| panic!("{failure}")).tally.failovers;
        }
        assert!(failovers > 1_000, "{failovers} times");
        // It is looked at: nobody works again as soon as this.
        let mut plan = scenario.plan(0);
        let failover = plan.group.as_mut().and_then(|group| group.failover.as_mut());
        failover.expect("it is about that").works_within = Some(200_000_000);
        let failure = run_plan(plan, false).expect_err("it takes longer");
        assert!(failure.what.contains("lost its redirector"), "{}", failure.what);
    }

    /// Damage is told from the end of a write that was torn: torn writes alone do not show it.
    #[test]
    #[cfg_attr(debug_assertions, ignore = "long: with --release")]
    fn only_rot_brings_out_a_log_that_takes_damage_for_its_end() {
        assert_caught_only_with(Fault::DamageAsTail, 400, without(DAMAGE));
    }

    /// Machines are handed a clock that never runs backwards and counts suspension (rule 8). A twelfth of
    /// the plans aims at clocks: in so many seeds a plan that draws anew finds one all the same.
    #[test]
    #[cfg_attr(debug_assertions, ignore = "long: with --release")]
    fn only_clocks_that_are_set_bring_out_a_process_that_uses_the_wrong_one() {
        assert_caught_only_with(Fault::WallClockAsOwn, 100, without(WALL_CLOCKS));
        assert_caught_only_with(Fault::ClockStopsAsleep, 200, without(&[Trouble::Pause]));
    }

    /// Bulk messages take turns on the wire (decision 0001): a cache that takes their lane for a queue
    /// lets go of changes that an older answer, still under way, needs.
    #[test]
    #[cfg_attr(debug_assertions, ignore = "long: with --release")]
    fn only_overtaking_brings_out_a_cache_that_takes_the_bulk_lane_for_a_queue() {
        let in_order = |plan: &mut Plan| {
            for line in &mut plan.lines {
                (line.jitter, line.byte_nanos, line.bulk_spread) = (0, 0, 0);
            }
            // What a neighbour sends overtakes what the parent does.
            if plan.group.take().is_some() {
                without(OF_REDIRECTORS)(plan);
            }
        };
        assert_caught_only_with(Fault::AnswersInOrder, 100, in_order);
    }

    /// Names: a boot is its node's, whoever knows it (decision 0004). Machines of ours speak for their
    /// own; somebody who broke into one does not.
    #[test]
    #[cfg_attr(debug_assertions, ignore = "long: with --release")]
    fn only_a_thief_brings_out_boots_that_are_not_held_to_their_names() {
        assert_caught_only_with(Fault::AnothersBoot, 300, without(&[Trouble::Forge]));
        assert_caught_only_with(Fault::BootOfAnyName, 250, without(&[Trouble::Forge]));
    }

    /// Rule 15: while a node was cut off, another process of its name took its place, and the origin,
    /// which keeps few boots of a name, forgot its boot with its outcomes. Registered anew, it would
    /// repeat a commit that was done. A forger is a second process too.
    #[test]
    #[cfg_attr(debug_assertions, ignore = "long: with --release")]
    fn only_a_second_process_of_a_name_brings_out_a_boot_registered_anew() {
        assert_caught_only_with(Fault::ExpiredBootAnew, 250, |plan| {
            plan.twins = false;
            without(&[Trouble::Forge])(plan);
        });
    }

    /// The stories of bugs 29 and 30: what a parent is told of the pages held below it comes after a commit
    /// that makes one. One of a few hundred runs shows either.
    #[test]
    #[cfg_attr(debug_assertions, ignore = "long: with --release")]
    fn what_is_told_of_pages_held_without_announcing_it_is_caught() {
        assert_caught(Fault::ListUnannounced, 1_000, "P3");
        assert_caught(Fault::NoticeUnanswered, 1_000, "P3");
    }
}
