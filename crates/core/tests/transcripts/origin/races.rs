//! Transcripts of the order of answers, of what is owed to a child that returns, and of the change
//! index.

use super::*;
use larder_core::commit::{Op, PageKind};

#[test]
fn rule_14_acknowledged_in_stamp_order() {
    let mut run = Run::new(
        "Rule 14. While an append is under way b, a and b ask for commits, which are gathered and \
         become durable together, as 4, 5 and 6. They are acknowledged in the order of their \
         stamps, whoever asked: who is told of a commit may count on all before it being told of, \
         or lost with a link. And the streams come first.",
        OriginConfig::default(),
    );
    run.two_nodes();
    run.link(vec![
        Commit::new(10, 2, 2).put(1, 2, 1, "3").on(1),
        Commit::new(20, 1, 2).put(1, 3, 1, "4").on(2),
        Commit::new(10, 3, 2).put(1, 4, 1, "5").on(1),
        Commit::new(20, 2, 2).put(1, 5, 1, "6").on(2),
    ]);
    run.settle();
    run.t.end("origin_rule_14_acknowledged_in_stamp_order");
}

#[test]
fn race_callbacks_lost_on_a_dead_link() {
    let mut config = OriginConfig::default();
    config.downlink.ring_commits_max = 2;
    let mut run = Run::new(
        "The race of callbacks lost on a dead link. a and b hold pages 1 and 2. a's line dies \
         without a word: change 4 goes down it, and nobody learns that it did not arrive. a \
         returns on another link and says up to where it has heard: the answer begins there, \
         whatever was sent before, and the stream tells change 4 again. What a holds was forgotten \
         with its link; it is registered for everything in the same step, so that change 5, to \
         page 2, comes as well. Its line dies again, for so long that the ring of two commits has \
         passed by: the answer names the pages, though nothing of them is installed. Only a list \
         of a's own narrows.",
        config,
    );
    run.two_nodes();
    let create = Op::CreatePage(PageKind::Slotted);
    run.quietly(vec![Commit::new(20, 1, 2).op(2, create).put(2, 1, 1, "n").on(2)]);
    run.quietly(vec![fetch(1, 5, &[2])]);
    run.link(vec![Commit::new(20, 2, 3).put(1, 1, 1, "y").on(2)]);
    run.settle();
    run.t.say("a has heard nothing of change 4: its line is dead.");
    run.link(vec![opened(3, "a"), hello(3, "a", 10), resume(3, 1, &[(1, 1)], 3)]);
    run.link(vec![Commit::new(20, 3, 4).put(2, 1, 1, "o").on(2)]);
    run.settle();
    run.link(vec![holding(3, &[1, 2])]);
    run.t.say("It is dead again: changes 6 to 8.");
    for (sequence, n) in [(4, 1), (5, 2), (6, 1)] {
        run.quietly(vec![Commit::new(20, sequence, sequence + 1).put(n, 1, 1, "z").on(2)]);
    }
    run.link(vec![opened(4, "a"), hello(4, "a", 10), resume(4, 1, &[(1, 1)], 5)]);
    run.link(vec![holding(4, &[2])]);
    run.link(vec![Commit::new(20, 7, 8).put(1, 1, 1, "p").put(2, 1, 1, "q").on(2)]);
    run.settle();
    run.t.end("origin_race_callbacks_lost_on_a_dead_link");
}

#[test]
fn race_owed_changes_before_the_first_request() {
    let mut run = Run::new(
        "The race of changes owed to a returning child. Pages 1 and 2 are always changed together. \
         The origin is started again, so that what changed while a was away is in the change \
         index, which has to be read. a asks for page 2 in one breath with its resume. That page \
         is answered when it can be, in another lane, and may be there first: it says that it is \
         of commit 4, and a, which is at 2, holds it back until the answer to its resume has named \
         page 1 and raised it to 4 (rule 4; a of ours does not even ask before, \
         `race_owed_changes_first`). And change 5, which comes before that answer is complete, \
         goes down behind it.",
        OriginConfig::default(),
    );
    run.two_nodes();
    let create = Op::CreatePage(PageKind::Slotted);
    run.quietly(vec![
        Commit::new(10, 2, 2).op(2, create).put(2, 1, 1, "x").on(1),
        Commit::new(20, 1, 3).put(1, 1, 1, "y").put(2, 1, 1, "y").on(2),
    ]);
    run.pass(3);
    run.restart(2);
    run.node(2, "b", 20);
    run.link(vec![
        opened(1, "a"),
        hello(1, "a", 10),
        resume(1, 1, &[(1, 1)], 2),
        fetch(1, 2, &[2]),
    ]);
    let index = run.store.queue.remove(0);
    run.store(None);
    run.link(vec![Commit::new(20, 2, 4).put(1, 2, 1, "z").put(2, 2, 1, "z").on(2)]);
    run.settle();
    run.t.say("The index has been read.");
    run.store.queue.push(index);
    run.settle();
    run.t.end("origin_race_owed_changes_before_the_first_request");
}

#[test]
fn rule_20_the_index_goes_with_the_pages() {
    let mut run = Run::new(
        "Rule 20. Page 1 is stored as of 2 and page 2 as of 3. Commits 4 and 5 change page 1, and \
         6 removes page 2. One batch holds what becomes of both pages and their entries of the \
         change index, each with the one entry that it supersedes: nothing of the index is read \
         for it. The process is killed before the batch is written: both are as before, the log \
         has the rest, and a, which comes back at 3, is told of both pages from there. Were an \
         image stored without its entry, page 1 would be named by neither log nor index after the \
         next start, and a would keep it. Then the batch is written, and the log is trimmed: the \
         origin is started again, and the index alone tells a of page 1, once, and of page 2, \
         which is gone. A child at 5 is told of page 2 alone, for of page 1 there is no other \
         entry, and one at 6 costs no look.",
        OriginConfig { page_cache_bytes: 0, ..OriginConfig::default() },
    );
    run.two_nodes();
    run.pages(2);
    run.say_index();
    run.quietly(vec![
        Commit::new(10, 11, 3).put(1, 1, 1, "y").on(1),
        Commit::new(10, 12, 4).put(1, 1, 1, "z").on(1),
        Commit::new(10, 13, 5).op(2, Op::DeletePage).on(1),
    ]);
    run.wait(3);
    run.t.say("It is killed before the batch is written.");
    run.restart(2);
    run.say_index();
    run.link(vec![opened(1, "a"), hello(1, "a", 10), resume(1, 1, &[(1, 1)], 3)]);
    run.settle();
    run.wait(3);
    run.settle();
    run.wait(3);
    run.settle();
    run.say_index();
    run.restart(3);
    for (link, through) in [(1, 3), (2, 5), (3, 6)] {
        let back = resume(link, 1, &[(1, 1), (2, 7)], through);
        run.link(vec![opened(link, "a"), hello(link, "a", 10), back]);
        run.settle();
    }
    run.t.end("origin_rule_20_the_index_goes_with_the_pages");
}

/// Found by the simulator, when refusals were looked at (seed 584). Of the slots that a page had emptied it remembered
/// too many once a transaction emptied one more, and so forgot their generations: the next object in any slot that
/// was never filled gets a higher one. The transaction had filled such a slot. Meanwhile another one had filled one
/// that was empty: now the page had nothing to forget, and the write was said to be malformed, for good.
#[test]
fn bug_171_generations_that_are_not_forgotten_after_all() {
    let mut run = Run::new(
        "Page 1 has 42 slots that were emptied, and remembers no more. b removes one object, has seen that generations \
         are forgotten then, and fills slot 60 with the generation after that. Before it a fills one of the empty \
         slots, which b has not read: nothing is forgotten, and slot 60's generation is another one. b has met a \
         conflict, and tries again.",
        OriginConfig::default(),
    );
    run.two_nodes();
    let slots = 2..=44;
    let fill = slots.fold(Commit::new(10, 2, 2), |commit, slot| commit.put(1, slot, 1, "0"));
    run.quietly(vec![fill.on(1)]);
    let empty = (2..=43).fold(Commit::new(10, 3, 3), |commit, slot| commit.delete(1, slot, 1));
    run.quietly(vec![empty.on(1)]);
    run.link(vec![Commit::new(10, 4, 4).put(1, 2, 2, "a").on(1)]);
    let both = |sequence, base, generation| {
        let commit = Commit::new(20, sequence, base).read(1, 44).read(1, 60).delete(1, 44, 1);
        commit.put(1, 60, generation, "b").on(2)
    };
    run.link(vec![both(1, 4, 2)]);
    run.settle();
    run.link(vec![both(2, 5, 1)]);
    run.settle();
    run.t.end("origin_bug_171_generations");
}
