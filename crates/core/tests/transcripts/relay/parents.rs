//! Transcripts of a relay with two parents, each another origin's (decision 0037). The first is number 9, up; the second
//! number 8.

use super::crowds::numbered;
use super::*;
use larder_core::id::{PageNo, VolumeId};
use larder_core::message::{PageAsk, VolumeKey};

/// The domain that is had from the second parent, and its volume.
const SECOND: DomainId = DomainId(2);
const ITS_VOLUME: VolumeId = VolumeId(8);

/// The second parent says something.
fn second(message: Message) -> (String, LinkInput) {
    received(8, message)
}

fn second_opens(domains: &[DomainId], lease: Duration) -> Vec<(String, LinkInput)> {
    let opened =
        LinkInput::UpOpened { link: LinkId(8), parent: 1, peer: "other".into(), in_group: false };
    vec![("second parent opened".into(), opened), second(welcome("other", 5, domains, lease))]
}

fn resumed_there(request: u64) -> (String, LinkInput) {
    second(Message::Resumed {
        request: RequestId(request),
        domain: SECOND,
        epochs: line(),
        answer: ResumeAnswer::From(Stamp(3)),
        stale: Vec::new(),
        through: Stamp(3),
        time: WallTime(0),
        done: true,
    })
}

/// It follows domain 1 at 5 by the first, and domain 2 at 3 by the second; its next request is 3.
fn between_two(prose: &str) -> Run {
    let config = RelayConfig { parents: 2, ..RelayConfig::default() };
    let mut run = Run(Transcript::new(Relay::new(config), prose, show));
    run.quietly(welcomed_by(5, &[DOMAIN], Duration::from_secs(15)));
    run.quietly(vec![resumed(1, 5, 5, &[])]);
    run.quietly(second_opens(&[SECOND], Duration::from_secs(15)));
    run.quietly(vec![resumed_there(2)]);
    run
}

/// Node a (link 1, boot 10) follows both domains, and may commit in both.
fn node_of_both(run: &mut Run) {
    let resume = Message::Resume {
        request: RequestId(2),
        domain: SECOND,
        epochs: Vec::new(),
        through: None,
    };
    let boot = BootId(10);
    let there =
        Message::Register { domain: SECOND, boot, name: "a".into(), life: boot, fresh: true };
    run.quietly(vec![
        opened(1, "a"),
        hello_of(1, "a", 10, (Role::Node, 5)),
        resume_new(1, 1),
        received(1, resume),
        register(1, "a", 10),
        received(1, there),
        up(Message::Registered { domain: DOMAIN, boot }),
        second(Message::Registered { domain: SECOND, boot }),
    ]);
}

fn fetch_there(request: u64, n: u64) -> (String, LinkInput) {
    let page = PageId { volume: ITS_VOLUME, page: PageNo(n) };
    let pages = vec![PageAsk { page, have: None }];
    received(
        1,
        Message::Fetch { request: RequestId(request), domain: SECOND, pages, prefetch: false },
    )
}

fn volume_there(request: u64) -> (String, LinkInput) {
    let info = VolumeInfo { id: ITS_VOLUME, domain: SECOND, name: "w".into(), ..volume_info() };
    second(Message::Volume { request: RequestId(request), info })
}

fn open(request: u64, key: VolumeKey) -> (String, LinkInput) {
    received(1, Message::OpenVolume { request: RequestId(request), key })
}

fn failed(request: u64, error: RequestError) -> Message {
    Message::Failed { request: RequestId(request), pages: Vec::new(), error }
}

#[test]
fn what_is_of_a_domain_goes_to_its_parent() {
    let mut run = between_two(
        "Domain 1 is had from the first parent, domain 2 from the second. A node is welcomed with both, and what it \
         asks goes to the one of the domain. The first is lost: commits of its domain are put off, and the other \
         one's stream goes on; the relay is not told to be without a parent.",
    );
    run.step(vec![opened(2, "b"), hello_of(2, "b", 20, (Role::Node, 5))]);
    node_of_both(&mut run);
    run.step(vec![fetch(1, 5, &[3]), fetch_there(6, 4)]);
    run.step(vec![Commit::new(10, 1, 5).put(1, 1, 1, "a").on(1)]);
    let touched = vec![(Target::Slot(Slot(1)), Aspect::Value)];
    let page = PageId { volume: ITS_VOLUME, page: PageNo(4) };
    let pages = vec![PageChange { page, touched }];
    let change = Change { stamp: Stamp(4), id: CommitId::default(), pages };
    let advance = Message::Advance {
        domain: SECOND,
        from: Stamp(3),
        through: Stamp(4),
        time: WallTime(0),
        changes: vec![change],
        stale: Vec::new(),
        echo: None,
    };
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.step(vec![second(advance)]);
    run.0.say("The first is back: what was asked of it is asked anew, of it alone.");
    run.step(welcomed_by(5, &[DOMAIN], Duration::from_secs(15)));
    run.step(vec![resumed(6, 5, 5, &[])]);
    run.0.end("relay_parents_what_is_of_a_domain_goes_to_its_parent");
}

#[test]
fn a_volume_is_sought_at_one_parent_after_the_other() {
    let mut run = between_two(
        "A volume by its name is asked for at the first parent, and at the second when that has none: whichever is \
         connected, it is the same volume. From then on the relay knows where its id is.",
    );
    node_of_both(&mut run);
    run.step(vec![open(5, VolumeKey::Name("w".into()))]);
    run.step(vec![up(failed(3, RequestError::NoVolume("w".into())))]);
    run.step(vec![volume_there(4)]);
    run.step(vec![open(6, VolumeKey::Id(ITS_VOLUME))]);
    run.0.say("That there is none any more is believed of that parent.");
    run.step(vec![second(failed(5, RequestError::NoVolume("w".into())))]);
    run.0.say("Nobody has this one.");
    run.step(vec![open(7, VolumeKey::Name("x".into()))]);
    run.step(vec![up(failed(6, RequestError::NoVolume("x".into())))]);
    run.step(vec![second(failed(7, RequestError::NoVolume("x".into())))]);
    run.0.say(
        "Past a parent that is away no name is asked for. An id is, and waits there for the other.",
    );
    run.step(vec![("up closed".into(), LinkInput::Closed { link: LinkId(9), reason: None })]);
    run.step(vec![open(8, VolumeKey::Name("w".into())), open(9, VolumeKey::Id(VolumeId(99)))]);
    run.step(vec![second(failed(9, RequestError::NoVolume("99".into())))]);
    run.0.end("relay_parents_a_volume_is_sought_at_one_parent_after_the_other");
}

fn named(name: &str, id: u128) -> VolumeInfo {
    VolumeInfo { id: VolumeId(id), name: name.into(), ..volume_info() }
}

fn named_there(name: &str, id: u128) -> VolumeInfo {
    VolumeInfo { domain: SECOND, ..named(name, id) }
}

#[test]
fn a_list_is_of_all_parents() {
    let mut run = between_two(
        "The list of the first goes on after `e`, and that of the second ends: what is told of both goes as far as \
         `e`, and on after that.",
    );
    node_of_both(&mut run);
    let list = |request, after: &str| {
        received(1, Message::ListVolumes { request: RequestId(request), after: after.into() })
    };
    run.step(vec![list(5, "")]);
    let part =
        |request, volumes, more| Message::Volumes { request: RequestId(request), volumes, more };
    run.step(vec![up(part(3, vec![named("a", 21), named("e", 22)], true))]);
    run.step(vec![second(part(4, vec![named_there("b", 31), named_there("f", 32)], false))]);
    run.0.say("What the first has is not the second's to name, and a list goes on: it is asked anew of who says otherwise.");
    run.step(vec![list(6, "e")]);
    run.step(vec![up(part(5, vec![named("g", 23)], false))]);
    run.step(vec![second(part(6, Vec::new(), true))]);
    run.quietly(second_opens(&[SECOND], Duration::from_secs(15)));
    run.step(vec![resumed_there(8)]);
    run.step(vec![second(part(7, vec![named("g", 23), named_there("h", 33)], false))]);
    run.0.end("relay_parents_a_list_is_of_all_parents");
}

#[test]
fn two_ways_to_one_origin_are_refused() {
    let config = RelayConfig { parents: 2, ..RelayConfig::default() };
    let prose = "Both parents have domain 1: they lead to one origin, which would take whoever is below for one that moves \
                 between them. The second is refused, and the operator is told. One that speaks of a domain that is \
                 had from the other is refused too.";
    let mut run = Run(Transcript::new(Relay::new(config), prose, show));
    run.quietly(welcomed_by(5, &[DOMAIN], Duration::from_secs(15)));
    run.quietly(vec![resumed(1, 5, 5, &[])]);
    run.step(second_opens(&[DOMAIN], Duration::from_secs(15)));
    run.step(second_opens(&[SECOND], Duration::from_secs(15)));
    run.step(vec![resumed_there(2)]);
    run.step(vec![second(Message::History { domain: DOMAIN, epochs: Vec::new() })]);
    run.0.end("relay_parents_two_ways_to_one_origin_are_refused");
}

#[test]
fn the_shortest_lease_holds() {
    let mut run = between_two(
        "The first parent's lease is 15 s, and so is the second's. That comes back with one of 6: whoever was told \
         15 is parted with, and told 6 when it is back, as long as the second's was the last that it told.",
    );
    node_of_both(&mut run);
    run.step(vec![closed(8)]);
    run.step(second_opens(&[SECOND], Duration::from_secs(6)));
    run.step(vec![opened(1, "a"), hello_of(1, "a", 10, (Role::Node, 5))]);
    run.0.end("relay_parents_the_shortest_lease_holds");
}

#[test]
fn a_deciding_part_waits_at_no_relay_for_parts_that_come_another_way() {
    let mut run = Run::new(
        "A transaction of domains 1 and 2, of which this relay has domain 1 alone: the other part goes to its origin by \
         another way. The next one of the same process does not wait for it.",
    );
    run.quietly(vec![closed(9)]);
    run.quietly(welcomed_by(5, &[DOMAIN], Duration::from_secs(15)));
    run.quietly(vec![resumed(2, 5, 5, &[])]);
    run.two_nodes();
    for sequence in [1, 2] {
        let [decides, _] = numbered(sequence, "long");
        run.step(vec![decides]);
    }
    run.0.end("relay_parents_a_deciding_part_waits_at_no_relay");
}
