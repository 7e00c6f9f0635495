//! Transcripts of a relay whose children's streams fall off its ring.

use super::*;
use larder_core::downlink::DownlinkConfig;
use larder_core::message::{Lane, PAGES_PER_MESSAGE_MAX, PROTOCOL_VERSION};
use larder_core::rights::{Effective, Right, Rights};

/// A relay that keeps one recent commit, and whose children take one message of a stream at a time.
fn narrow() -> RelayConfig {
    let limits = LinkLimits {
        requests_max: 8192,
        stream_window_bytes: 1,
        bulk_window_bytes: 4 << 20,
        lease: Duration::from_secs(15),
    };
    let downlink = DownlinkConfig { limits, ring_commits_max: 1, ..DownlinkConfig::default() };
    RelayConfig { downlink, ..RelayConfig::default() }
}

fn credit(link: u64, bytes: u32) -> (String, LinkInput) {
    received(link, Message::Credit { lane: Lane::Stream, bytes })
}

/// Relay m (link 3), which holds page 3, and whose stream has no credit.
fn relay_below(run: &mut Run) {
    run.quietly(vec![
        opened_as(3, "m", Role::Relay),
        hello_as(3, "m", 30, Role::Relay),
        resume_new(3, 1),
        fetch(3, 2, &[3]),
        pages(2, 3, 2, 5),
    ]);
}

/// A relay asks the one above for each of its nodes that came back, and the answer's place is in the stream. When
/// that fell off the ring before the place, its link was closed; on the new one it asked for all its nodes
/// again, and where that took longer than the ring lasts the link was closed again, for ever.
#[test]
fn bug_157_a_question_whose_place_is_lost() {
    let mut run = Run::with(
        "m asks for x, which stands at 4, and for y, which stands at 2. The answer for x is known at 6, where m's \
         stream, at 5, cannot be since it has no credit. Then the ring goes on without it. What m lost is asked for, \
         and the answer for y comes in between: both wait, and are told behind what was lost, each with that as \
         well if it ended before it.",
        narrow(),
    );
    relay_below(&mut run);
    run.step(vec![resume(3, 4, &[(1, 1)], 4), resume(3, 5, &[(1, 1)], 2)]);
    run.step(vec![advance(5, 6, 3), resumed(3, 4, 6, &[9])]);
    run.step(vec![advance(6, 7, 3), advance(7, 8, 4)]);
    run.step(vec![credit(3, 10_000)]);
    run.step(vec![resumed(4, 2, 8, &[10])]);
    run.step(vec![advance(8, 9, 5), resumed(5, 5, 9, &[3, 4, 5])]);
    run.0.say("m takes one message after the other.");
    run.step(vec![credit(3, 10_000)]);
    run.step(vec![credit(3, 10_000)]);
    run.step(vec![advance(9, 10, 3), credit(3, 10_000)]);
    run.0.end("relay_bug_157_a_question_whose_place_is_lost");
}

/// The same, and more changed than may be named. A node that had not listed what it holds had to come back for that,
/// and a relay too, which then asked for all its nodes.
#[test]
fn bug_157_a_relay_is_told_that_all_may_have_changed() {
    let config = RelayConfig { resume_pages_max: 2, ..narrow() };
    let mut run = Run::with(
        "m asked for x, and has not listed what it holds since. Three pages changed in the part of its stream that \
         is lost, and two can be gathered. m is told a reset on its link, and x as well: m asks for each of its \
         nodes what changed of what that one holds.",
        config,
    );
    relay_below(&mut run);
    run.step(vec![resume(3, 4, &[(1, 1)], 4)]);
    run.step(vec![advance(5, 6, 3), resumed(3, 4, 6, &[9])]);
    run.step(vec![advance(6, 7, 3), advance(7, 8, 4)]);
    run.step(vec![credit(3, 10_000)]);
    run.step(vec![resumed(4, 5, 8, &[3, 4, 5])]);
    run.step(vec![credit(3, 10_000)]);
    run.step(vec![advance(8, 9, 3), credit(3, 10_000)]);
    run.0.end("relay_bug_157_a_relay_is_told_that_all_may_have_changed");
}

/// Found by reading. The parent could not say what changed, and so a was to be told all that it holds, part by part. In
/// the middle of that a's registration overflowed: the parent is asked once more. It was asked since where the
/// answer would have led, 7, and not since 5, where a is: what changed in between, of the pages not yet named, was
/// told to nobody, and a went on with the old (P3).
#[test]
fn bug_158_a_registration_forgotten_in_the_middle_of_an_answer() {
    let most = PAGES_PER_MESSAGE_MAX + 2;
    let mut config = narrow();
    config.downlink.registered_pages_max = most;
    let mut run = Run::with("", config);
    run.quietly(vec![opened(1, "a"), hello(1, "a", 10), resume_new(1, 1)]);
    let all: Vec<u64> = (1..=most as u64).collect();
    run.quietly(vec![fetch(1, 5, &all[..PAGES_PER_MESSAGE_MAX])]);
    run.quietly(vec![fetch(1, 6, &all[PAGES_PER_MESSAGE_MAX..])]);
    let last = most as u64;
    run.quietly(vec![advance(5, 6, last), advance(6, 7, 1)]);

    let request = run.asked_since(vec![credit(1, 200)], 5).expect("a fell off the ring");
    run.quietly(vec![reset(request.0, 7)]);
    run.quietly(vec![fetch(1, 7, &[last + 1])]);
    let again = run.asked_since(vec![credit(1, 1 << 20)], 5);
    assert!(again.is_some(), "since where a stands: not all was named");
}

/// A child that had been answered that it may read fell off the ring of a relay that may not: nothing had changed, it was
/// told, since the relay hears of no change there, and its old copy passed for current (P3). And when the right came
/// before the answer did, that alone was said. Found by the simulator in a night.
#[test]
fn bug_187_a_child_fell_at_a_relay_that_may_not_read() {
    let mut run = Run::with(
        "Nobody may read volume 7, as far as the relay has heard. a falls off the ring, and is asked about: it is owed \
         that it may not read. The right comes before the answer: a hears first that it could not.",
        narrow(),
    );
    let told = |right| {
        let list = Rights::new([("*".to_owned(), right)], 9).expect("a list");
        let rights = Effective::of_list(list);
        up(Message::VolumeRights { domain: DOMAIN, volume: VOLUME, rights })
    };
    run.quietly(vec![
        told(Right::None),
        opened(1, "a"),
        hello_of(1, "a", 10, (Role::Node, PROTOCOL_VERSION)),
        resume_new(1, 1),
    ]);
    run.quietly(vec![advance(5, 6, 3), advance(6, 7, 4)]);
    run.step(vec![credit(1, 10_000)]);
    run.step(vec![told(Right::Write)]);
    run.step(vec![resumed(2, 5, 7, &[])]);
    run.step(vec![credit(1, 10_000)]);
    run.0.end("relay_bug_187_a_child_fell");
}

impl Run {
    /// The request by which the parent is asked what changed since a stamp, if these lead to that.
    fn asked_since(&mut self, inputs: Vec<(String, LinkInput)>, since: u64) -> Option<RequestId> {
        let mut out = Vec::new();
        for (_, input) in inputs {
            self.0.machine.handle(self.0.now, RelayInput::Link(input), &mut out);
        }
        out.iter().find_map(|output| match output {
            RelayOutput::Link(LinkOutput::Send {
                link: LinkId(9),
                message: Message::Resume { request, through, .. },
            }) if *through == Some(Stamp(since)) => Some(*request),
            _ => None,
        })
    }
}
