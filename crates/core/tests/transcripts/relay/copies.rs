//! Transcripts of copies of a volume through a relay.

use super::*;
use larder_core::commit::Op;
use larder_core::id::PageNo;
use larder_core::message::{CopyAnswer, CopyAsk, CopyPart};
use larder_core::page::Page;

fn copy(link: u64, request: u64) -> (String, LinkInput) {
    let ask =
        CopyAsk { volume: VOLUME, history: HistoryId(1), since: Stamp(3), cursor: None, pin: None };
    received(link, Message::CopyPages { request: RequestId(request), ask })
}

fn copied(request: u64) -> (String, LinkInput) {
    let page =
        PageAnswer { page: page(3), version: Stamp(4), as_of: Stamp(5), body: PageBody::Absent };
    let answer = CopyAnswer {
        history: HistoryId(1),
        through: Stamp(5),
        next_page: PageNo(50),
        pages: vec![page],
        part: CopyPart::Index,
        cursor: None,
    };
    up(Message::Copied { request: RequestId(request), answer })
}

#[test]
fn copies_pass_as_they_are() {
    let mut run = Run::new(
        "Copies through a relay. A question goes up in the name of who asks, under a number of the relay's own, and \
         its answer down: the relay registers nobody and keeps nothing. A failure passes too. The link up \
         breaks with a question on its way: it is asked again on the next one. A child that is gone is \
         answered no more.",
    );
    run.connect_in(3);
    run.quietly(vec![resumed(2, 5, 5, &[])]);
    run.two_nodes();
    run.step(vec![copy(1, 5), copy(2, 5)]);
    run.step(vec![copied(4)]);
    let error = RequestError::Unavailable("the state is kept no longer".into());
    run.step(vec![up(Message::Failed { request: RequestId(3), pages: Vec::new(), error })]);
    run.step(vec![copy(1, 6)]);
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.step(welcomed_in(3));
    run.step(vec![resumed(7, 5, 5, &[])]);
    run.step(vec![closed(1)]);
    run.step(vec![copied(6)]);
    run.0.end("relay_copies");
}

#[test]
fn bug_75_credit_of_a_copy_that_fails() {
    let mut run = Run::new(
        "Four parts of a copy reserve all credit of a's link, and its fetch waits for that. The origin refuses one \
         of them. The credit was given back, and nobody served the fetch: a failure takes no credit, so that none of \
         a's messages would ever say that there is some. It is passed up in the same step.",
    );
    run.connect_in(3);
    run.quietly(vec![resumed(2, 5, 5, &[])]);
    run.two_nodes();
    run.step(vec![copy(1, 5), copy(1, 6), copy(1, 7), copy(1, 8), fetch(1, 9, &[3])]);
    let error = RequestError::Unavailable("the state is kept no longer".into());
    run.step(vec![up(Message::Failed { request: RequestId(3), pages: Vec::new(), error })]);
    run.0.end("relay_bug_75_credit_of_a_copy_that_fails");
}

#[test]
fn an_older_parent_is_not_asked() {
    let mut run = Run::new(
        "Copies through a relay whose parent speaks protocol version 2: the question is answered at the \
         relay, with what to update, and so is a commit that restores a page.",
    );
    run.connect_in(2);
    run.quietly(vec![resumed(2, 5, 5, &[])]);
    run.two_nodes();
    run.step(vec![copy(1, 5)]);
    let image = Page::empty(larder_core::commit::PageKind::Raw).encode(page(9));
    run.step(vec![Commit::new(10, 1, 5).op(9, Op::RestorePage { image }).on(1)]);
    run.0.end("relay_copies_of_an_older_parent");
}
