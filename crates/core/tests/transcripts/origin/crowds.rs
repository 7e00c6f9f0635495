//! Transcripts of more commits than the log takes at once.

use super::*;

/// One record at a time.
fn one_at_a_time() -> OriginConfig {
    OriginConfig { append_records_max: 1, ..OriginConfig::default() }
}

/// The n-th commit of node a, to an object of its own.
fn commit(n: u64) -> (String, LinkInput) {
    Commit::new(10, n, 2).put(1, 10 + u16::try_from(n).expect("few"), 1, "y").on(1)
}

/// Both nodes are heard of.
fn stay(run: &mut Run) {
    let heard = [1, 2].map(|link| received(link, larder_core::message::Message::KeepAlive));
    run.quietly_without_store(heard.into());
}

#[test]
fn bug_146_a_refusal_finds_its_place() {
    let mut run = Run::new(
        "Bug 146 (found by the simulator, seed 19374162458190). The append takes one record at a time, \
         and node a's commits wait for it in turn: each place that becomes free has its commit. b's \
         commit is of a history that is not this domain's, and its refusal is to be logged. It was sent \
         away for want of a place, and again whenever it came, for minutes: those that wait were always \
         before it. What changes no page has its place beside the commits; and it takes none of theirs.",
        one_at_a_time(),
    );
    run.two_nodes();
    run.link((2..=5).map(commit).collect());
    run.link(vec![Commit::new(20, 1, 2).in_history(9).put(1, 2, 1, "z").on(2)]);
    run.settle();
    run.t.end("origin_bug_146_a_refusal_finds_its_place");
}

#[test]
fn bug_148_turns_that_come_are_waited_for() {
    let mut run = Run::new(
        "Bug 148 (found by the simulator, files of seed 19374162451309). The log is slow: each append \
         takes 15 seconds, and a's commits wait for it in turn. The last was sent away after 20 seconds, \
         came back behind all others, and was sent away again: for more than a minute it was in doubt. \
         As long as one after the other has its turn, its own will come. Then the log hangs: what waits \
         for it is put off after 20 seconds, as before.",
        one_at_a_time(),
    );
    run.two_nodes();
    run.link((2..=6).map(commit).collect());
    for _ in 0..4 {
        for _ in 0..3 {
            run.pass_without_store(5);
            stay(&mut run);
        }
        // The append, and the install of the one before.
        run.store(None);
        run.store_quietly(None);
    }
    run.link((7..=9).map(commit).collect());
    for _ in 0..5 {
        let out = run.t.wait(Duration::from_secs(5));
        run.keep(&out);
        stay(&mut run);
    }
    run.settle();
    run.t.end("origin_bug_148_turns_that_come_are_waited_for");
}
