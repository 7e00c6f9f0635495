//! Transcripts of what a relay has to tell its parent, so that nothing is left at rest.

use super::*;
use larder_core::commit::PageKind;
use larder_core::page::Page;

/// The answer to the relay's request: page `n` as it was made.
fn found(request: u64, n: u64) -> (String, LinkInput) {
    let body = PageBody::Data(Page::empty(PageKind::Slotted).encode(page(n)));
    let answer = PageAnswer { page: page(n), version: Stamp(2), as_of: Stamp(5), body };
    up(Message::Pages { request: RequestId(request), domain: DOMAIN, pages: vec![answer] })
}

#[test]
fn bug_82_a_list_for_which_too_much_was_gathered() {
    let mut run = Run::new(
        "Found at rest. The parent gathers what is fetched until this relay has listed what its children hold. a \
         is brought page 3 and evicts it. That is not passed on: b has come back, and holds nobody knows \
         what. Then b lists what it holds, without page 3, and the relay lists that: page 3 was fetched while \
         the parent gathered, and stayed counted for good. One more list follows.",
    );
    run.two_nodes();
    run.step(vec![resume(2, 2, &[(1, 1)], 5)]);
    run.step(vec![resumed(2, 5, 5, &[])]);
    run.step(vec![fetch(1, 5, &[3])]);
    run.step(vec![found(3, 3)]);
    run.step(vec![evicted(1, &[3])]);
    run.step(vec![holding(2, &[4])]);
    for _ in 0..3 {
        run.0.wait(Duration::from_secs(6));
        let now = run.0.now;
        run.step(vec![echoed(now)]);
    }
    run.0.end("relay_bug_82_a_list_for_which_too_much_was_gathered");
}

#[test]
fn bug_145_told_of_what_nobody_asks_for_any_more() {
    let mut run = Run::new(
        "Found at rest (seed 19374162460701 of a night). a asks for page 3, which nobody has made, and is gone when the \
         answer comes: that there is none. No notice is sent, since a commit that makes the page could be overtaken \
         by it. Then the page is made by somebody else: this relay is told, and was told of every change of it \
         from then on. Now a notice can do no harm. A page that b is being brought is not named in vain.",
    );
    run.two_nodes();
    run.step(vec![fetch(1, 5, &[3])]);
    run.step(vec![closed(1)]);
    run.step(vec![pages(2, 3, 0, 5)]);
    run.step(vec![advance(5, 6, 3)]);
    run.step(vec![fetch(2, 5, &[4])]);
    run.step(vec![advance(6, 7, 4)]);
    run.0.end("relay_bug_145_told_of_what_nobody_asks_for");
}

#[test]
fn bug_159_made_before_it_was_said_to_be_absent() {
    let mut run = Run::new(
        "Found at rest (seed 40000010952). a looks at page 3 ahead, which nobody has made, and does not wait for it. \
         Then it is made; a is told, holds nothing of it and says so, while the answer to its question is on its way \
         here, and so no notice is sent. The answer is of before: there is none. Of what is absent no notice was sent \
         then, and this relay was told of every change of the page from then on. But it is there by now.",
    );
    run.two_nodes();
    run.step(vec![fetch(1, 5, &[3])]);
    run.step(vec![advance(5, 6, 3)]);
    run.step(vec![evicted(1, &[3])]);
    run.step(vec![pages(2, 3, 0, 5)]);
    run.0.end("relay_bug_159_made_before_it_was_said_to_be_absent");
}

#[test]
fn bug_82_a_child_that_lists_less() {
    let mut run = Run::new(
        "Found at rest. b is brought page 3 while the parent gathers for this relay's list. Then b lists what it holds, \
         without page 3: of what went with a list no notice is passed on. This relay's own list does not name it \
         either, and it was gathered. One more list follows.",
    );
    run.two_nodes();
    run.step(vec![fetch(2, 5, &[3, 4])]);
    run.step(vec![found(2, 3)]);
    run.step(vec![found(2, 4)]);
    run.step(vec![holding(2, &[4])]);
    for _ in 0..3 {
        run.0.wait(Duration::from_secs(6));
        let now = run.0.now;
        run.step(vec![echoed(now)]);
    }
    run.0.end("relay_bug_82_a_child_that_lists_less");
}

#[test]
fn bug_83_a_confirmation_that_nobody_takes() {
    let mut run = Run::new(
        "Found by reading. The line up was lost, and a confirms an outcome: here nobody takes it, before the parent \
         has a's boot on the new line. It was passed on as soon as the stream was followed, and the parent dropped it. \
         The registration is told to a, which confirms anew, and that is passed on.",
    );
    run.two_nodes();
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.step(vec![confirm(1, 10, 3)]);
    run.step(welcomed(&[DOMAIN]));
    run.step(vec![resumed(2, 5, 5, &[])]);
    run.step(vec![confirm(1, 10, 3)]);
    run.step(vec![up(Message::Registered { domain: DOMAIN, boot: BootId(10) })]);
    run.step(vec![confirm(1, 10, 3)]);
    run.0.end("relay_bug_83_a_confirmation_that_nobody_takes");
}

#[test]
fn bug_84_fetched_for_nobody() {
    let mut run = Run::new(
        "Found by reading. b holds page 3, and a asks for it. b evicts it: that is held back, since the page is on its way \
         (rule 7). a's link ends. The page comes for nobody, and the parent counted it as held here for as long as \
         the link stood. It is given back.",
    );
    run.two_nodes();
    run.step(vec![fetch(2, 5, &[3])]);
    run.step(vec![found(2, 3)]);
    run.step(vec![fetch(1, 5, &[3])]);
    run.step(vec![evicted(2, &[3])]);
    run.step(vec![closed(1)]);
    run.step(vec![found(3, 3)]);
    run.0.say(
        "Of a page that is not there nothing is said: a commit that makes it could be overtaken.",
    );
    run.step(vec![opened(3, "c"), hello(3, "c", 30), resume_new(3, 1)]);
    run.step(vec![fetch(3, 5, &[4])]);
    run.step(vec![closed(3)]);
    run.step(vec![pages(4, 4, 0, 5)]);
    run.0.end("relay_bug_84_fetched_for_nobody");
}

/// The line up is lost, and a parent that speaks this version is there: a's boot is registered anew.
fn with_a_parent_of(run: &mut Run, version: u32, request: u64) {
    run.connect_in(version);
    run.quietly(vec![resumed(request, 5, 5, &[])]);
    run.quietly(vec![up(Message::Registered { domain: DOMAIN, boot: BootId(10) })]);
}

#[test]
fn bug_229_outcomes_left_open_below() {
    let mut run = Run::new(
        "A node waits for the outcome of its second commit, whose transaction has a part in a domain that is out of \
         service, and has received all others (bug 229). So it says, and the relay passes it on. A parent of before, \
         which would take all five for received, is told of the first.",
    );
    run.two_nodes();
    with_a_parent_of(&mut run, 7, 2);
    run.step(vec![confirm_but_for(1, 10, 5, &[2])]);
    with_a_parent_of(&mut run, 6, 3);
    run.step(vec![confirm_but_for(1, 10, 5, &[2])]);
    run.step(vec![confirm(1, 10, 5)]);
    run.0.end("relay_bug_229_outcomes_left_open_below");
}

#[test]
fn bug_230_lost_with_the_line_or_turned_away() {
    let mut run = Run::new(
        "A commit is passed on, and the line up is lost: it may be done, and a is told that it was passed on. It comes \
         again, and goes nowhere: nothing is done of that. On the next line the parent puts off what it did not take \
         on, and then what it did: a is told what the parent says.",
    );
    run.two_nodes();
    let commit = Commit::new(10, 1, 5).put(3, 1, 1, "x");
    run.step(vec![commit.clone().on(1)]);
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.step(vec![commit.clone().on(1)]);
    with_a_parent_of(&mut run, 7, 2);
    for passed in [false, true] {
        let (id, error) = (commit.0.id, RequestError::Busy("64 commits wait".into()));
        run.step(vec![commit.clone().on(1)]);
        run.step(vec![up(Message::CommitDeferred { domain: DOMAIN, id, error, passed })]);
    }
    run.0.end("relay_bug_230_lost_with_the_line_or_turned_away");
}
