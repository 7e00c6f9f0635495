//! Transcripts of peer update (BuddyCache, section 3.2): what members commit comes to their neighbours with
//! the change that names it.

use super::group::{MEMBERS, found, group, group_in, helped};
use super::*;
use larder_core::group::{GroupConfig, HelpEnd};

fn id(sequence: u64) -> CommitId {
    CommitId { boot: BootId(10), sequence }
}

/// The stream tells of a's commit: slot 1 of page `n`.
fn told(sequence: u64, from: u64, n: u64) -> (String, LinkInput) {
    let touched = vec![(Target::Slot(Slot(1)), Aspect::Value)];
    let pages = vec![PageChange { page: page(n), touched }];
    let change = Change { stamp: Stamp(from + 1), id: id(sequence), pages };
    up(Message::Advance {
        domain: DOMAIN,
        from: Stamp(from),
        through: Stamp(from + 1),
        time: WallTime(0),
        changes: vec![change],
        stale: Vec::new(),
        echo: None,
    })
}

fn committed(sequence: u64, outcome: Outcome) -> (String, LinkInput) {
    let history = HistoryId(1);
    up(Message::Committed { domain: DOMAIN, id: id(sequence), outcome, history })
}

fn commit(sequence: u64, base: u64, value: &str) -> (String, LinkInput) {
    Commit::new(10, sequence, base).put(3, 1, 1, value).on(1)
}

/// All three have page 3 complete.
fn group_with_a_page(prose: &str) -> Run {
    let mut run = group(prose);
    run.quietly(vec![fetch(1, 5, &[3]), found(2, 3), fetch(2, 5, &[3]), fetch(3, 5, &[3])]);
    run.quietly(vec![helped(2, 5, 3, HelpEnd::Came), helped(3, 5, 3, HelpEnd::Came)]);
    run
}

#[test]
fn what_one_commits_its_neighbours_receive() {
    let mut run = group_with_a_page(
        "a commits. Its neighbours hear what it wrote before the change that names the commit, a the change alone: \
         it has its writes. The outcome comes after the change. All copies stay complete: whoever misses the page is \
         pointed to any of them.",
    );
    run.step(vec![commit(1, 5, "x")]);
    run.step(vec![told(1, 5, 3)]);
    run.step(vec![committed(1, Outcome::Committed(Stamp(6)))]);
    run.0.say("The other way round; and c, which gave the page up, is told nothing of it.");
    run.step(vec![evicted(3, &[3])]);
    run.step(vec![commit(2, 6, "y")]);
    run.step(vec![committed(2, Outcome::Committed(Stamp(7)))]);
    run.step(vec![told(2, 6, 3)]);
    run.step(vec![fetch(3, 6, &[3])]);
    run.0.end("relay_updates_what_one_commits");
}

#[test]
fn on_doubt_a_change_comes_as_it_is() {
    let mut run = group_with_a_page(
        "Nobody knows what became of a's commit; its change comes all the same. What it wrote was let go when \
         the parent said so: the neighbours are told which slot changed.",
    );
    run.quietly(vec![commit(1, 5, "x")]);
    run.step(vec![committed(1, Outcome::Unknown)]);
    run.step(vec![told(1, 5, 3)]);
    run.0.end("relay_updates_on_doubt");
}

#[test]
fn a_member_that_dies_has_its_commit_told() {
    let mut run = group_with_a_page(
        "a dies with its commit under way. Its change names the commit: the neighbours receive what it wrote.",
    );
    run.quietly(vec![commit(1, 5, "x")]);
    run.step(vec![closed(MEMBERS[0].0)]);
    run.step(vec![told(1, 5, 3)]);
    run.0.end("relay_updates_of_the_dead");
}

#[test]
fn what_is_kept_is_bounded() {
    let config = GroupConfig { update_bytes_max: 150, ..GroupConfig::default() };
    let mut run = group_in("A commit that is too long for it goes without its writes.", config);
    run.quietly(vec![fetch(1, 5, &[3]), found(2, 3), fetch(2, 5, &[3])]);
    run.quietly(vec![helped(2, 5, 3, HelpEnd::Came)]);
    run.quietly(vec![commit(1, 5, &"x".repeat(200))]);
    run.step(vec![told(1, 5, 3)]);
    run.0.end("relay_updates_are_bounded");
}
