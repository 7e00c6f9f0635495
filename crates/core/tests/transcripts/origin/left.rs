//! Transcripts of what links leave behind at an origin whose store hangs.

use super::*;
use larder_core::machine::LinkInput;
use larder_core::message::Role;

/// Node b comes back on another link; the store has not answered.
fn come_back(run: &mut Run, link: u64, name: &str, boot: u128) {
    let comes = [opened(link, name), hello(link, name, boot), resume_new(link, 1)];
    let comes = comes.into_iter().chain([register(link, name, boot)]);
    run.quietly_without_store(comes.collect());
}

fn reads(sequence: u64) -> Commit {
    Commit::new(20, sequence, 2).read(1, 2)
}

fn conflicts(sequence: u64) -> Commit {
    Commit::new(20, sequence, 2).read(1, 1)
}

/// A commit that only reads, or conflicts, adds nothing to an append: its answer waits for one. While the log
/// hung there was no bound to those answers, and they stayed when their link was gone (P7).
#[test]
fn bug_130_withheld_answers_are_bounded() {
    let mut run = Run::new(
        "P7. The log hangs with a's commit. b sends commits that only read or conflict: answers to two are \
         withheld, as many as may be here, two more commits wait, and the fifth is put off. b's link \
         closes, and with it goes what was withheld for it: b comes back, and commits under new numbers, \
         again and again. The last time it repeats some and commits others, each is answered once, on the \
         link that is there, when the log has a's commit.",
        OriginConfig { waiting_commits_max: 2, ..OriginConfig::default() },
    );
    run.two_nodes();
    run.link(vec![Commit::new(10, 2, 2).put(1, 1, 1, "y").on(1)]);
    run.link(vec![reads(1).on(2), conflicts(2).on(2), reads(3).on(2), conflicts(4).on(2)]);
    run.link(vec![reads(5).on(2)]);
    run.link(vec![closed(2)]);
    for link in 3..=40 {
        come_back(&mut run, link, "b", 20);
        let commits = (1..=20).map(|n| reads(link * 100 + n).on(link)).chain([closed(link)]);
        run.quietly_without_store(commits.collect());
    }
    come_back(&mut run, 41, "b", 20);
    run.link(vec![reads(1).on(41), conflicts(2).on(41), reads(3).on(41), reads(4099).on(41)]);
    run.link(vec![reads(3).on(41), reads(4100).on(41)]);
    run.settle();
    run.t.end("origin_bug_130_withheld_answers");
}

/// What the look at old reads finds changed is refused before there is room for it: those answers are bounded
/// as well.
#[test]
fn bug_130_answers_to_old_reads_are_bounded() {
    let mut run = Run::new(
        "P7. The table of recent writes holds two stamps only, and the log hangs with a's commit. b's commits \
         from an older base read what changed in it: that is found by the page's version, at once. Answers \
         to two are withheld, the third commit is put off. One for which an older, durable change is found \
         is answered.",
        OriginConfig { waiting_commits_max: 2, recent_writes_max: 2, ..OriginConfig::default() },
    );
    run.two_nodes();
    let put = |sequence, slot| Commit::new(10, sequence, 2).put(1, slot, 1, "p").on(1);
    run.quietly(vec![put(2, 2), put(3, 3), put(4, 4)]);
    let create = larder_core::commit::Op::CreatePage(larder_core::commit::PageKind::Slotted);
    run.quietly(vec![Commit::new(10, 5, 5).op(2, create).put(2, 1, 1, "n").on(1)]);
    run.link(vec![Commit::new(10, 6, 6).put(2, 1, 1, "o").on(1)]);
    let old = |sequence, page| Commit::new(20, sequence, 2).read(page, 1).on(2);
    run.link(vec![old(1, 2), old(2, 2), old(3, 2), old(4, 1)]);
    run.settle();
    run.t.end("origin_bug_130_old_reads");
}

/// Each link over which a commit came was remembered until the commit was answered: one more for every time
/// that its node came back and repeated it (P7).
#[test]
fn bug_130_repeated_over_one_link_after_the_other() {
    let mut run = Run::new(
        "P7. a's commit needs a page, and the page engine hangs. a closes its link and repeats the commit on \
         the next one, again and again, and so does relay r, through which it came too. One link of a's, \
         and one of r's, is remembered, as the machine's own check says after every step. The commit is \
         answered once, on the link that is there.",
        OriginConfig { page_cache_bytes: 0, ..OriginConfig::default() },
    );
    run.two_nodes();
    run.pages(4);
    let commit = Commit::new(10, 9, 5).put(4, 1, 1, "y");
    run.link(vec![commit.clone().on(1)]);
    run.link(vec![closed(1)]);
    for link in 3..=8 {
        if link % 2 == 0 {
            let relay: Vec<(String, LinkInput)> = vec![
                opened_as(link, "r", Role::Relay),
                hello_as(link, "r", 30, Role::Relay),
                resume_new(link, 1),
                register(link, "a", 10),
            ];
            run.quietly_without_store(relay);
        } else {
            come_back(&mut run, link, "a", 10);
        }
        run.link(vec![commit.clone().on(link)]);
        if link < 8 {
            run.link(vec![closed(link)]);
        }
    }
    run.settle();
    run.t.end("origin_bug_130_repeated");
}

/// Loads that were asked for on a link stayed in their queue when it was gone, before those of everybody else,
/// and as many came with each link (P7).
#[test]
fn bug_131_loads_leave_with_their_link() {
    let mut run = Run::new(
        "P7. One page is loaded at a time. a fetches pages 2 to 5 and closes its link, and comes back for 3 and \
         5, again and again. b fetches pages 4 and 6. Page 2 is on its way when a is gone; 3 and 5 are wanted \
         by nobody, and were loaded before 6 all the same. Now they are not.",
        OriginConfig { page_cache_bytes: 0, loads_max: 1, ..OriginConfig::default() },
    );
    run.two_nodes();
    run.pages(6);
    run.link(vec![fetch(1, 5, &[2, 3, 4, 5])]);
    run.link(vec![fetch(2, 5, &[4])]);
    run.link(vec![closed(1)]);
    for link in 3..=6 {
        come_back(&mut run, link, "a", 10);
        run.link(vec![fetch(link, 5, &[3, 5]), closed(link)]);
    }
    run.link(vec![fetch(2, 6, &[6])]);
    run.settle();
    run.t.end("origin_bug_131_loads_leave");
}

/// Bug 212, found by a night (seed 20992268555311). A commit for whose pages there was no room was put off, and came again
/// after a while that grows: whoever came at the right moment was served, and one could wait for ever (P10). They wait in
/// line, and one for whom nobody waits any more leaves it.
#[test]
fn bug_212_commits_wait_in_line_for_their_pages() {
    let mut run = Run::new(
        "P10. Pages of one commit alone are loaded at a time. a writes page 2, b pages 3 and 4, a page 5, and c \
         page 6. a closes its link, and its commit of page 5 is as if it had not come: c's is next after b's.",
        OriginConfig { page_cache_bytes: 0, pinned_bytes_max: 1, ..OriginConfig::default() },
    );
    run.two_nodes();
    come_back(&mut run, 3, "c", 30);
    run.pages(6);
    run.link(vec![Commit::new(10, 100, 7).put(2, 1, 1, "x").on(1)]);
    run.link(vec![Commit::new(20, 100, 7).put(3, 1, 1, "x").put(4, 1, 1, "x").on(2)]);
    run.link(vec![Commit::new(10, 101, 7).put(5, 1, 1, "x").on(1)]);
    run.link(vec![Commit::new(30, 1, 7).put(6, 1, 1, "x").on(3)]);
    run.link(vec![closed(1)]);
    run.settle();
    run.t.end("origin_bug_212_in_line");
}

/// Bug 223, found by a seed (5989). Pages were loaded in the order in which they were asked for, whosever they were: a commit
/// of thousands of pages that are not here was before the one page of everybody else (P10). Now one goes to who waits
/// longest, and one to the next of all who wait.
#[test]
fn bug_223_loads_go_by_turns() {
    let mut run = Run::new(
        "P10. One page is loaded at a time. a writes pages 2 to 8; b fetches page 9, and c writes page 10. Both \
         were loaded after all of a's. Now every second load is of the next of those who wait, and b and c have \
         their pages long before a has its last.",
        OriginConfig { page_cache_bytes: 0, loads_max: 1, ..OriginConfig::default() },
    );
    run.two_nodes();
    come_back(&mut run, 3, "c", 30);
    run.pages(10);
    let long = (2..=8).fold(Commit::new(10, 100, 11), |commit, page| commit.put(page, 1, 1, "x"));
    run.link(vec![long.on(1)]);
    run.link(vec![fetch(2, 5, &[9])]);
    run.link(vec![Commit::new(30, 1, 11).put(10, 1, 1, "x").on(3)]);
    run.settle();
    run.t.end("origin_bug_223_loads_go_by_turns");
}
