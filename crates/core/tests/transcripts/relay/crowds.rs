//! Transcripts of a relay whose parent takes fewer requests than its children have.

use super::*;
use larder_core::commit::{Across, CommitRequest, PartId};

/// Commits of a that change page 1.
fn commits(sequences: std::ops::RangeInclusive<u64>) -> Vec<(String, LinkInput)> {
    sequences.map(|sequence| Commit::new(10, sequence, 5).put(1, 1, 1, "a").on(1)).collect()
}

fn committed(sequence: u64) -> (String, LinkInput) {
    up(Message::Committed {
        domain: DOMAIN,
        id: CommitId { boot: BootId(10), sequence },
        outcome: Outcome::Committed(Stamp(5 + sequence)),
        history: HistoryId(1),
    })
}

/// Its parent takes so many requests at once.
fn crowded(prose: &str, requests_max: u32) -> Run {
    let mut run = Run::new(prose);
    run.quietly(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    let mut inputs = welcomed(&[DOMAIN]);
    if let (_, LinkInput::Received { message: Message::Welcome { limits, .. }, .. }) =
        &mut inputs[1]
    {
        limits.requests_max = requests_max;
    }
    run.quietly(inputs);
    run.quietly(vec![resumed(2, 5, 5, &[])]);
    run.two_nodes();
    run
}

#[test]
fn bug_97_commits_that_leave_no_room() {
    let mut run = crowded(
        "The parent takes four requests at once, and a commits all the time. b asks for three pages. Each outcome \
         made room for one request, which the next commit took in the same step: b's were given up after their \
         limit, and so was the resume of whoever came back. While requests wait for room commits have a \
         quarter of it, and what is asked for in one message goes up in parts, as there is room.",
        4,
    );
    run.step(commits(1..=4));
    run.step(vec![fetch(2, 5, &[3, 4, 5])]);
    run.step(commits(5..=5));
    run.step(vec![committed(1)]);
    run.step(vec![committed(2)]);
    run.step(vec![committed(3)]);
    run.step(commits(6..=6));
    run.step(vec![pages(3, 3, 2, 5)]);
    run.step(vec![committed(4)]);
    run.0.end("relay_bug_97_commits_that_leave_no_room");
}

#[test]
fn bug_97_commits_of_each_child_in_turn() {
    let mut run = crowded(
        "The parent takes one request at a time. One commit that found no room was kept, and those of all others came \
         again each second: they met the one place full by whoever had been quick when it became free. One of each \
         child is kept now, and they go in the order in which they came.",
        1,
    );
    run.step(commits(1..=1));
    run.step(vec![Commit::new(20, 1, 5).put(2, 1, 1, "b").on(2)]);
    run.step(commits(2..=3));
    run.step(vec![committed(1)]);
    run.0.say("What is kept of a child that is gone is not sent.");
    run.step(vec![closed(1)]);
    run.step(vec![up(Message::Committed {
        domain: DOMAIN,
        id: CommitId { boot: BootId(20), sequence: 1 },
        outcome: Outcome::Committed(Stamp(7)),
        history: HistoryId(1),
    })]);
    run.0.end("relay_bug_97_commits_of_each_child_in_turn");
}

/// Nobody counted the bytes of the commits that a relay passes on. Five nodes with 64 MiB each were enough: the
/// link up was closed for what had to wait, all of them sent the same anew, and so on.
#[test]
fn bug_123_bytes_of_commits_are_bounded() {
    let config = RelayConfig { commit_bytes_max: 1, ..RelayConfig::default() };
    let mut run = Run::with(
        "One commit fills what may be under way to the parent. a's goes up, b's is kept until it has its outcome, and \
         c's is put off: what is kept is bounded likewise. Of two that wait for the parent's room the first goes.",
        config,
    );
    run.two_nodes();
    run.quietly(vec![opened(3, "c"), hello(3, "c", 30), resume_new(3, 1), register(3, "c", 30)]);
    let registered = Message::Registered { domain: DOMAIN, boot: BootId(30) };
    run.quietly(vec![up(registered)]);
    run.step(commits(1..=1));
    run.step(vec![Commit::new(20, 1, 5).put(2, 1, 1, "b").on(2)]);
    run.step(vec![Commit::new(30, 1, 5).put(3, 1, 1, "c").on(3)]);
    run.step(vec![committed(1)]);
    run.step(vec![Commit::new(30, 1, 5).put(3, 1, 1, "c").on(3)]);
    run.0.end("relay_bug_123_bytes_of_commits");
}

/// What a relay had passed on remembered each link that asked for its outcome, gone or not: while the origin's log
/// hung a node that came back again and again added one to each of its commits (P7).
#[test]
fn bug_133_outcomes_for_links_that_are_gone() {
    let mut run = Run::new(
        "a's commit is on its way up, and its link breaks. It comes back, and asks again: the outcome goes to the \
         link that is there. The machine's own check says that none is remembered that is not.",
    );
    run.two_nodes();
    run.step(commits(1..=1));
    for link in [3, 4] {
        run.quietly(vec![closed(if link == 3 { 1 } else { 3 })]);
        run.quietly(vec![opened(link, "a"), hello(link, "a", 10), resume_new(link, 1)]);
        run.quietly(vec![register(link, "a", 10)]);
        run.step(vec![Commit::new(10, 1, 5).put(1, 1, 1, "a").on(link)]);
    }
    run.step(vec![committed(1)]);
    run.0.end("relay_bug_133_outcomes_for_links_that_are_gone");
}

/// Commits of many boots below another relay took all the room that is kept for those that wait: whoever was
/// directly below came again each second, and found it full.
#[test]
fn bug_133_the_first_of_each_link() {
    let config = RelayConfig { commit_bytes_max: 500, ..RelayConfig::default() };
    let mut run = Run::with(
        "Relay m is below, and two boots below it. a's commits fill what may be under way. One of m's is kept, its \
         second is put off, since a quarter is full; b's is kept, as the first of its link, and goes after m's.",
        config,
    );
    run.two_nodes();
    run.quietly(vec![opened_as(3, "m", Role::Relay)]);
    run.quietly(vec![hello_of(3, "m", 30, (Role::Relay, 3)), resume_new(3, 1)]);
    for (name, boot) in [("x", 40), ("y", 50)] {
        run.quietly(vec![register(3, name, boot)]);
        run.quietly(vec![up(Message::Registered { domain: DOMAIN, boot: BootId(boot) })]);
    }
    run.quietly(commits(1..=3));
    run.step(vec![Commit::new(40, 1, 5).put(3, 1, 1, "x").on(3)]);
    run.step(vec![Commit::new(50, 1, 5).put(4, 1, 1, "y").on(3)]);
    run.step(vec![Commit::new(20, 1, 5).put(2, 1, 1, "b").on(2)]);
    for sequence in 1..=2 {
        run.step(vec![committed(sequence)]);
    }
    run.0.end("relay_bug_133_the_first_of_each_link");
}

/// The same in domain 2.
fn in_two(input: (String, LinkInput)) -> (String, LinkInput) {
    in_other(2, input)
}

/// The same in another domain.
fn in_other(other: u64, (note, mut input): (String, LinkInput)) -> (String, LinkInput) {
    if let LinkInput::Received { message, .. } = &mut input {
        match message {
            Message::Resume { domain, .. }
            | Message::Register { domain, .. }
            | Message::Registered { domain, .. }
            | Message::Fetch { domain, .. }
            | Message::Commit { domain, .. } => *domain = DomainId(other),
            other => panic!("{other:?}"),
        }
    }
    (note, input)
}

/// The log of one domain of two hung. Its commits took all that the parent takes at once, by their number: what was
/// bounded for a domain was their bytes alone. Fetches and commits of the other waited for ever.
#[test]
fn bug_136_a_domain_that_hangs() {
    let mut run = crowded(
        "The parent takes eight requests at once, and has two domains. The first one's log hangs: of a's five commits \
         there two go up, one is kept, and two are put off. b's commit in the other domain goes, and its fetch.",
        8,
    );
    run.quietly(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    let mut inputs = welcomed(&[DOMAIN, DomainId(2)]);
    if let (_, LinkInput::Received { message: Message::Welcome { limits, .. }, .. }) =
        &mut inputs[1]
    {
        limits.requests_max = 8;
    }
    run.quietly(inputs);
    run.quietly(vec![resumed(3, 5, 5, &[]), resumed_in(DomainId(2), 4, 5, 5, &[])]);
    run.quietly(vec![in_two(resume_new(2, 1)), in_two(register(2, "b", 20))]);
    let registered = |boot| up(Message::Registered { domain: DOMAIN, boot: BootId(boot) });
    run.quietly(vec![registered(10), registered(20), in_two(registered(20))]);
    run.step(commits(1..=5));
    run.step(vec![in_two(Commit::new(20, 1, 5).put(2, 1, 1, "b").on(2))]);
    run.step(vec![in_two(fetch(2, 5, &[3]))]);
    run.step(vec![committed(1)]);
    run.0.end("relay_bug_136_a_domain_that_hangs");
}

/// The logs of two domains of three hung, each with one commit that took nearly all that may be under way. What was
/// said to be the third one's own was taken from it: together they had more than one and a half times the bound.
#[test]
fn bug_142_a_part_is_left_beside_long_commits() {
    let config = RelayConfig { commit_bytes_max: 1800, ..RelayConfig::default() };
    let mut run = Run::with(
        "1,800 bytes of commits may be under way, and there are three domains. Two hang with a long commit each. In \
         the third a long one of b's is kept, since the others have too much; a short one of c's goes all the same.",
        config,
    );
    run.two_nodes();
    run.quietly(vec![opened(3, "c"), hello(3, "c", 30)]);
    run.quietly(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.quietly(welcomed(&[DOMAIN, DomainId(2), DomainId(3)]));
    let registered = |boot| up(Message::Registered { domain: DOMAIN, boot: BootId(boot) });
    run.quietly(vec![resumed(2, 5, 5, &[]), registered(10)]);
    for (domain, request) in [(2, 3), (3, 4)] {
        run.quietly(vec![resumed_in(DomainId(domain), request, 5, 5, &[])]);
        run.quietly(vec![in_other(domain, resume_new(2, 1)), in_other(domain, resume_new(3, 1))]);
        for (link, name, boot) in [(2, "b", 20), (3, "c", 30)] {
            run.quietly(vec![in_other(domain, register(link, name, boot))]);
            run.quietly(vec![in_other(domain, registered(boot))]);
        }
    }
    let long = "-".repeat(1_500);
    run.step(vec![Commit::new(10, 1, 5).put(1, 1, 1, &long).on(1)]);
    run.step(vec![in_two(Commit::new(20, 1, 5).put(2, 1, 1, &long).on(2))]);
    run.step(vec![in_other(3, Commit::new(20, 2, 5).put(2, 1, 1, &long).on(2))]);
    run.step(vec![in_other(3, Commit::new(30, 1, 5).put(3, 1, 1, "c").on(3))]);
    run.step(vec![committed(1)]);
    run.0.end("relay_bug_142_a_part_is_left");
}

/// A transaction of a node's: what decides in domain 1, and a part in domain 2 that is `long`.
fn of_two_domains((link, boot): (u64, u128), long: &str) -> [(String, LinkInput); 2] {
    let decides = Commit::new(boot, 1, 5).put(link, 1, 1, "short").on(link);
    let part = in_two(Commit::new(boot, 1, 5).put(link, 1, 1, long).on(link));
    let id = CommitId { boot: BootId(boot), sequence: 1 };
    let parts = [1, 2].map(|domain| PartId { domain: DomainId(domain), id });
    let across =
        Across::new(parts.to_vec(), DomainId(1)).expect("ascending, with the one that decides");
    [decides, part]
        .map(|part| changed(part, |commit| commit.across = Some(Box::new(across.clone()))))
}

/// A commit that is received, changed.
fn changed(
    (_, input): (String, LinkInput),
    change: impl FnOnce(&mut CommitRequest),
) -> (String, LinkInput) {
    let LinkInput::Received { link, message: Message::Commit { domain, mut commit }, .. } = input
    else {
        panic!("a commit");
    };
    change(&mut commit);
    received(link.0, Message::Commit { domain, commit })
}

/// A later transaction of a's.
pub(super) fn numbered(sequence: u64, long: &str) -> [(String, LinkInput); 2] {
    of_two_domains((1, 10), long).map(|part| {
        changed(part, |commit| {
            commit.id.sequence = sequence;
            let id = CommitId { boot: BootId(10), sequence };
            let parts = [1, 2].map(|domain| PartId { domain: DomainId(domain), id });
            commit.across = Across::new(parts.to_vec(), DomainId(1)).map(Box::new);
        })
    })
}

/// Nodes a, b and c at links 1 to 3, registered in both domains of a parent that knows of parts.
fn with_two_domains(mut run: Run) -> Run {
    run.two_nodes();
    run.quietly(vec![opened(3, "c"), hello(3, "c", 30)]);
    run.quietly(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    let mut inputs = welcomed(&[DOMAIN, DomainId(2)]);
    if let (_, LinkInput::Received { message: Message::Welcome { version, .. }, .. }) =
        &mut inputs[1]
    {
        *version = 5;
    }
    run.quietly(inputs);
    let registered = |boot| up(Message::Registered { domain: DOMAIN, boot: BootId(boot) });
    run.quietly(vec![resumed(2, 5, 5, &[]), resumed_in(DomainId(2), 3, 5, 5, &[])]);
    run.quietly(vec![resume_new(3, 1), register(3, "c", 30)]);
    for (link, name, boot) in [(1, "a", 10), (2, "b", 20), (3, "c", 30)] {
        run.quietly(vec![in_two(resume_new(link, 1)), in_two(register(link, name, boot))]);
        run.quietly(vec![registered(boot), in_two(registered(boot))]);
    }
    run
}

/// Found by reading (finding 471). What decided a transaction was let in by its own bytes, and its parts in another
/// domain followed whatever they took: three nodes that wrote 30 MiB there had the relay's line up closed for what
/// had to wait, again and again.
#[test]
fn parts_are_bounded_with_the_one_that_decides() {
    let config = RelayConfig { commit_bytes_max: 900, ..RelayConfig::default() };
    let run = Run::with(
        "900 bytes of commits may be under way. a, b and c have a transaction each, decided in domain 1 by a few \
         bytes, with a part of 800 bytes in domain 2. a's goes up, its part with it. b's is kept, its part too, until \
         a has its outcomes, and c's is put off: what is kept is bounded likewise.",
        config,
    );
    let mut run = with_two_domains(run);
    let long = "-".repeat(800);
    for node in [(1, 10), (2, 20), (3, 30)] {
        run.step(of_two_domains(node, &long).to_vec());
    }
    for (boot, stamp) in [(10, 6), (20, 7)] {
        let ended = |domain| Message::Committed {
            domain: DomainId(domain),
            id: CommitId { boot: BootId(boot), sequence: 1 },
            outcome: Outcome::Committed(Stamp(stamp)),
            history: HistoryId(1),
        };
        run.step([1, 2].map(|domain| up(ended(domain))).to_vec());
    }
    run.0.end("relay_parts_are_bounded");
}

/// Found by reading. A part waits at the origin for the deciding one, which may never come: with a few of them a
/// child took what all may have on its way up, for twenty seconds, again and again.
#[test]
fn parts_whose_deciding_one_does_not_come() {
    let config = RelayConfig { commit_bytes_max: 6_400, ..RelayConfig::default() };
    let run = Run::with(
        "6,400 bytes of commits may be under way. a sends parts of 800 bytes alone: one goes up, the others are put \
         off. b's transaction goes, and a second one of it only when the part of the first is there.",
        config,
    );
    let mut run = with_two_domains(run);
    let long = "-".repeat(800);
    let [_, alone] = of_two_domains((1, 10), &long);
    run.step(vec![alone]);
    let numbered = |sequence| numbered(sequence, &long);
    let [_, alone] = numbered(2);
    run.step(vec![alone]);
    let [decides, part] = of_two_domains((2, 20), &long);
    run.step(vec![decides, part]);
    let [decides, part] = numbered(3);
    run.step(vec![decides]);
    let [next, _] = numbered(4);
    run.step(vec![next]);
    run.step(vec![part]);
    run.0.end("relay_parts_alone");
}

/// Found by reading (finding 495). While it was asked how a transaction ended, by its deciding part alone, that waited for
/// parts which never came: no other one of the same process that is decided in its domain was passed on meanwhile,
/// for as long as the origin took.
#[test]
fn a_question_keeps_no_transaction_back() {
    let run = Run::new(
        "a asks what became of its first transaction, where that was decided. The next one is decided in the same \
         domain: it goes up at once.",
    );
    let mut run = with_two_domains(run);
    let [decides, _] = of_two_domains((1, 10), "long");
    let question = changed(decides, |commit| {
        commit.history = HistoryId::default();
        (commit.reads, commit.writes) = (Vec::new(), Vec::new());
    });
    run.step(vec![question]);
    run.step(numbered(2, "long").to_vec());
    run.0.end("relay_a_question_keeps_no_transaction_back");
}

#[test]
fn what_was_sent_has_its_limit_from_then_on() {
    let mut run = crowded(
        "The parent takes one request at a time, and its answers take 6 s. What waited here for as long had 4 s left when \
         it was sent: it was given up while its answer was on the way, and whoever asked asked again, so that \
         a full line brought nothing to anybody.",
        1,
    );
    run.step(vec![fetch(1, 5, &[3]), fetch(2, 5, &[4])]);
    run.0.wait(Duration::from_secs(6));
    run.step(vec![pages(3, 3, 2, 5)]);
    run.0.wait(Duration::from_secs(6));
    run.step(vec![pages(4, 4, 2, 5)]);
    run.0.end("relay_what_was_sent_has_its_limit_from_then_on");
}

#[test]
fn bug_105_a_page_ahead_of_a_quiet_stream() {
    let mut run = Run::new(
        "b asks for page 3, and its answer, of 6, overtakes the stream. What the stream brings then is nothing that b \
         holds: it was not told before the stream had been quiet for long enough, by a clock that stands still after \
         it was set back, and the page waited at b for as long. It is told at once, as by the origin.",
    );
    run.two_nodes();
    run.step(vec![fetch(2, 5, &[3])]);
    run.step(vec![pages(2, 3, 6, 6)]);
    run.step(vec![advance(5, 6, 20)]);
    run.0.end("relay_bug_105_a_page_ahead_of_a_quiet_stream");
}
