//! Transcripts of rights, at the origin and at a relay (decision 0016).

use crate::origin::Run;
use crate::parent::*;
use crate::relay;
use larder_core::id::{RequestId, VolumeId};
use larder_core::machine::LinkInput;
use larder_core::message::{Message, PROTOCOL_VERSION, Role, VolumeChange, VolumeInfo, VolumeKey};
use larder_core::origin::OriginConfig;
use larder_core::origin::io::StoreFault;
use larder_core::rights::{Access, Right, Rights, RightsEdit};
use larder_core::time::Duration;

const NODE: (Role, u32) = (Role::Node, PROTOCOL_VERSION);
const RELAY: (Role, u32) = (Role::Relay, PROTOCOL_VERSION);
/// A child of the version before rights.
const OLD: u32 = 2;

/// Something asked on a link.
fn ask(link: u64, message: Message) -> (String, LinkInput) {
    received(link, message)
}

fn open(request: u64) -> Message {
    Message::OpenVolume { request: RequestId(request), key: VolumeKey::Name("v".into()) }
}

fn list(request: u64) -> Message {
    Message::ListVolumes { request: RequestId(request), after: String::new() }
}

fn ids(request: u64) -> Message {
    Message::AllocateIds { request: RequestId(request), volume: VOLUME, count: 1 }
}

fn look(request: u64) -> Message {
    Message::AskRights { request: RequestId(request), volume: VOLUME }
}

fn change(request: u64, force: bool, rights: &[(&str, Right)]) -> Message {
    let edit = |&(who, right): &(&str, Right)| RightsEdit { who: who.into(), right: Some(right) };
    let edits = rights.iter().map(edit).collect();
    let change = VolumeChange::Rights { edits, force };
    Message::ChangeVolume { request: RequestId(request), volume: VOLUME, change }
}

fn give(request: u64, rights: &[(&str, Right)]) -> Message {
    change(request, false, rights)
}

/// What a relay asks for somebody below.
fn for_(name: &str, message: Message) -> Message {
    Message::For { name: name.into(), message: Box::new(message) }
}

fn fetch_of(request: u64, pages: &[u64]) -> Message {
    let ask = |n: &u64| larder_core::message::PageAsk { page: page(*n), have: None };
    let pages = pages.iter().map(ask).collect();
    Message::Fetch { request: RequestId(request), domain: DOMAIN, pages, prefetch: false }
}

/// A node of today's version that follows the domain.
fn node(run: &mut Run, link: u64, name: &str, boot: u128) {
    let peer = larder_core::message::certificate_of(name);
    run.quietly(vec![
        opened(link, peer),
        hello_of(link, name, boot, NODE),
        resume_new(link, 1),
        register(link, name, boot),
    ]);
}

fn relay_of(run: &mut Run, link: u64, name: &str, boot: u128, version: u32) {
    run.quietly(vec![
        opened_as(link, name, Role::Relay),
        hello_of(link, name, boot, (Role::Relay, version)),
        resume_new(link, 1),
    ]);
}

/// Administrator a (link 1, boot 10) has made volume 7, with x in slot 1 of page 1 (stamp 2).
fn volume(prose: &str, config: OriginConfig) -> Run {
    let mut run = Run::new(prose, config);
    node(&mut run, 1, "a", 10);
    run.quietly(vec![create_volume(1, 2), ask(1, ids(3))]);
    run.quietly(vec![Commit::new(10, 1, 1).put(1, 1, 1, "x").on(1)]);
    run
}

#[test]
fn every_request_needs_its_right() {
    let mut run = volume(
        "Rights. a administers volume 7, b may read it, c nothing. b lists, opens and fetches; it gets \
         no page numbers, its commit is refused and kept as other refusals that may pass, and it may \
         neither change settings nor see who may do what. c does not see the volume, may not open it by \
         a name that it knows, and its fetch and its commit that only read are refused. Each refusal \
         names volume, identity and what is missing. With the right to write b may commit at once.",
        OriginConfig::default(),
    );
    let everybody = [("a", Right::Admin), ("b", Right::Read), ("*", Right::None)];
    run.link(vec![ask(1, give(4, &everybody))]);
    run.settle();
    node(&mut run, 2, "b", 20);
    node(&mut run, 3, "c/mount", 30);
    run.link(vec![ask(2, list(2)), ask(2, open(3)), fetch(2, 4, &[1])]);
    run.link(vec![ask(2, ids(5)), ask(2, give(6, &[("b", Right::Write)])), ask(2, look(7))]);
    run.link(vec![Commit::new(20, 1, 2).read(1, 1).put(1, 1, 1, "y").on(2)]);
    run.settle();
    run.link(vec![ask(3, list(2)), ask(3, open(3)), fetch(3, 4, &[1])]);
    run.link(vec![Commit::new(30, 1, 2).read(1, 1).on(3)]);
    run.settle();
    run.link(vec![ask(1, give(5, &[("b", Right::Write)])), ask(1, look(6))]);
    run.settle();
    run.link(vec![Commit::new(20, 2, 2).read(1, 1).put(1, 1, 1, "y").on(2)]);
    run.settle();
    run.t.end("rights_every_request_needs_its_right");
}

#[test]
fn who_may_make_volumes() {
    let mut run = Run::new(
        "Rights. The origin's settings say that whoever is not named may read, and that ops-* may do \
         everything: a may not make a volume, ops-1 may, and no entry of a volume takes that from it.",
        OriginConfig {
            access: Access { default: Right::Read, admins: vec!["ops-*".into()] },
            ..OriginConfig::default()
        },
    );
    node(&mut run, 1, "a", 10);
    node(&mut run, 2, "ops-1", 20);
    run.link(vec![create_volume(1, 2)]);
    run.link(vec![create_volume(2, 2)]);
    run.settle();
    run.link(vec![ask(2, change(3, false, &[("ops-1", Right::None), ("*", Right::None)]))]);
    run.settle();
    run.link(vec![ask(1, open(3)), ask(2, open(4))]);
    run.t.end("rights_who_may_make_volumes");
}

#[test]
fn a_revocation_is_in_force_from_its_place_in_the_log() {
    let mut run = volume(
        "Rights. b's right to write goes. The change is gathered while another append is under way: b's \
         commit, which comes after it, is refused though the change is not durable yet, and so is what b \
         asks as an administrator. Neither is told of it before it is (bug 85: the administrator was). \
         The store is full and takes back all of it: the same commit passes. Then it is taken for good; b \
         hears on its stream what it may do now, before a is told that it is done.",
        OriginConfig::default(),
    );
    node(&mut run, 2, "b", 20);
    run.quietly(vec![fetch(2, 4, &[1])]);
    run.link(vec![Commit::new(10, 2, 2).put(1, 2, 1, "w").on(1)]);
    run.link(vec![ask(1, give(5, &[("b", Right::Read)]))]);
    run.link(vec![Commit::new(20, 1, 2).put(1, 1, 1, "y").on(2)]);
    run.link(vec![ask(2, give(5, &[("b", Right::Admin)]))]);
    run.store(Some(StoreFault::Full("no segment left".into())));
    run.settle();
    run.link(vec![Commit::new(20, 1, 2).put(1, 1, 1, "y").on(2)]);
    run.settle();
    run.link(vec![ask(1, give(6, &[("b", Right::Read)]))]);
    run.settle();
    run.link(vec![Commit::new(20, 2, 3).put(1, 1, 1, "z").on(2)]);
    run.settle();
    run.t.end("rights_a_revocation_in_the_log");
}

#[test]
fn what_an_administrator_may_not_do_is_judged_by_the_durable_log() {
    let mut run = volume(
        "Rights. a and b administer volume 7. a takes that from b, and while the change is in the append \
         gives up its own right too: nobody could administer the volume then. That was said at once (bug \
         100), in the name of a change that the full store then took back. Now a is told when that change \
         is durable, or with the store's error. Asked again with b's right as it was, it is refused for \
         a's sake, at once, for nothing is on its way; and with b's right gone for good, since nobody \
         could administer the volume.",
        OriginConfig::default(),
    );
    let rights = [("a", Right::Admin), ("b", Right::Admin), ("*", Right::None)];
    run.quietly(vec![ask(1, give(4, &rights))]);
    run.link(vec![ask(1, give(5, &[("b", Right::Read)]))]);
    run.link(vec![ask(1, give(6, &[("a", Right::Read)]))]);
    run.store(Some(StoreFault::Full("no segment left".into())));
    run.settle();
    run.link(vec![ask(1, give(7, &[("a", Right::Read)]))]);
    run.link(vec![ask(1, give(8, &[("b", Right::Read)]))]);
    run.link(vec![ask(1, give(9, &[("a", Right::Read)]))]);
    run.settle();
    run.t.end("rights_judged_by_the_durable_log");
}

/// Seed 8235: a node heard in an answer that it may not read, and never that it may again. It took each
/// page that it was sent for one from before, and asked for it again for ever.
#[test]
fn bug_115_a_right_given_before_the_stream_begins_is_told() {
    let mut run = volume(
        "Rights. c, which does not follow the domain, makes volume 7 once more: it is there, and c may not \
         read it. c is given the right before it asks for the stream: nothing told it. Now what an answer \
         told counts, and the stream begins with what has changed since. d hears the same answer, and \
         nothing has changed for it when it follows.",
        OriginConfig::default(),
    );
    let rights = [("a", Right::Admin), ("*", Right::None)];
    run.quietly(vec![ask(1, give(4, &rights))]);
    for (link, name, boot) in [(2, "c", 30), (3, "d", 40)] {
        run.quietly(vec![opened(link, name), hello_of(link, name, boot, NODE)]);
    }
    run.link(vec![create_volume(2, 2), create_volume(3, 2)]);
    run.link(vec![ask(1, give(5, &[("c", Right::Write)]))]);
    run.settle();
    run.link(vec![resume_new(2, 3), resume_new(3, 3)]);
    run.link(vec![fetch(2, 4, &[1])]);
    run.settle();
    run.t.end("rights_bug_115_before_the_stream");
}

#[test]
fn those_who_wait_for_a_revocation_leave_with_their_link() {
    let mut run = volume(
        "Rights. The log hangs with a change in it that takes b's right to administer. b asks for things \
         as an administrator, is not answered, and links anew, again and again. What waited for an answer \
         on a link that is gone stayed until the append ended, without a bound (bug 101, P7); and so did \
         who asked about a volume whose deletion hangs. It leaves with its link now: the machine's own \
         check, made after every step here, says so.",
        OriginConfig::default(),
    );
    run.quietly(vec![ask(1, give(4, &[("a", Right::Admin), ("b", Right::Admin)]))]);
    node(&mut run, 9, "a/second", 90);
    run.link(vec![ask(1, give(5, &[("b", Right::Read)]))]);
    let delete = |request| Message::DeleteVolume { request: RequestId(request), volume: VOLUME };
    for link in [2, 3] {
        let opens = vec![opened(link, "b"), hello_of(link, "b", 20, NODE)];
        run.link(opens);
        run.link(vec![ask(link, give(5, &[("b", Right::Admin)])), ask(link, delete(6))]);
        run.link(vec![closed(link)]);
    }
    // The same of those who ask about a volume that is being deleted.
    run.link(vec![ask(9, delete(4)), ask(9, ids(5))]);
    run.link(vec![closed(9)]);
    run.settle();
    run.t.end("rights_those_who_wait_leave_with_their_link");
}

/// An append takes a bounded number of commits; page numbers that were asked for, and changes of volumes, were
/// gathered without a bound while the log hung, by one child that came again and again (P7).
#[test]
fn bug_119_what_is_gathered_beside_commits_is_bounded() {
    let mut run = volume(
        "Rights, and page numbers. The log hangs. a asks for page numbers, links anew and asks again, until \
         256 changes wait: more numbers, and a change of rights, are refused as long as that is so, and \
         taken again once the log has what was gathered.",
        OriginConfig { append_records_max: 4, ..OriginConfig::default() },
    );
    run.link(vec![Commit::new(10, 2, 2).put(1, 2, 1, "w").on(1)]);
    for link in 2..=17 {
        let mut asked = vec![opened(link, "a"), hello_of(link, "a/other", 90, NODE)];
        asked.extend((2..18).map(|request| ask(link, ids(request))));
        asked.push(closed(link));
        run.quietly_without_store(asked);
    }
    run.link(vec![ask(1, ids(5)), ask(1, give(6, &[("b", Right::Read)]))]);
    run.carry_out_quietly();
    run.link(vec![ask(1, ids(7))]);
    run.settle();
    run.t.end("rights_bug_119_gathered_beside_commits");
}

#[test]
fn a_fetch_that_waits_is_looked_at_again() {
    let mut run = volume(
        "Rights. b's fetch waits for the page to be read from the store when b's right to read goes: it \
         is refused when the page comes. A commit of b that waits for the same page is refused too.",
        OriginConfig::default(),
    );
    run.settle_pages();
    run.restart(2);
    node(&mut run, 1, "a", 10);
    node(&mut run, 2, "b", 20);
    run.link(vec![fetch(2, 4, &[1])]);
    run.link(vec![Commit::new(20, 1, 2).put(1, 1, 1, "y").on(2)]);
    run.link(vec![ask(1, give(6, &[("b", Right::None)]))]);
    run.store_last();
    run.settle();
    run.t.end("rights_a_fetch_that_waits");
}

#[test]
fn what_is_withheld_is_told_first() {
    let mut run = volume(
        "Rights. b holds page 1 and comes back after its right to read went. It is registered for \
         everything, and page 1 has changed: the change is not told, but before valid-through passes it \
         b hears that it may not read the volume. d comes back holding page 1 as it is: it hears so with \
         its page list. Given the right again, both hear that, and what changes from then on. e speaks \
         the version before rights: it is told of the change, since its copy would pass for current.",
        OriginConfig::default(),
    );
    run.quietly(vec![ask(
        1,
        give(4, &[("b", Right::None), ("d", Right::None), ("e", Right::None)]),
    )]);
    run.quietly(vec![Commit::new(10, 2, 2).put(1, 1, 1, "y").on(1)]);
    run.link(vec![opened(2, "b"), hello_of(2, "b", 20, NODE), resume(2, 1, &[(1, 1)], 2)]);
    run.link(vec![opened(4, "d"), hello_of(4, "d", 40, NODE), resume(4, 1, &[(1, 1)], 3)]);
    run.link(vec![holding(4, &[1])]);
    let old = (Role::Node, OLD);
    run.link(vec![opened(5, "e"), hello_of(5, "e", 50, old), resume(5, 1, &[(1, 1)], 2)]);
    run.link(vec![Commit::new(10, 3, 3).put(1, 1, 1, "z").on(1)]);
    run.settle();
    run.wait(1);
    run.link(vec![ask(1, give(5, &[("b", Right::Read), ("d", Right::Read)]))]);
    run.settle();
    run.link(vec![Commit::new(10, 4, 4).put(1, 1, 1, "w").on(1)]);
    run.settle();
    run.t.end("rights_what_is_withheld_is_told_first");
}

#[test]
fn through_a_relay_nobody_may_do_more_than_the_relay() {
    let mut run = volume(
        "Rights. Relay r may write; b may write, c read, d nothing. r is told who may do what with its \
         stream, as far as its own right goes. It asks for each in its name: for c a commit is refused, \
         for d everything. Nobody administers through r, for it may not itself, whatever name it says: \
         so a relay that lies gets no more than it was given. When r may only read, b's commit is refused \
         and r is named. Only a relay asks for others, and only what may be asked so.",
        OriginConfig::default(),
    );
    let rights = [
        ("a", Right::Admin),
        ("b", Right::Write),
        ("c", Right::Read),
        ("r", Right::Write),
        ("*", Right::None),
    ];
    run.quietly(vec![ask(1, give(4, &rights))]);
    run.link(vec![opened_as(8, "r", Role::Relay), hello_of(8, "r", 80, RELAY), resume_new(8, 1)]);
    run.quietly(vec![register(8, "b", 20), register(8, "c", 30), register(8, "d", 40)]);
    run.link(vec![ask(8, for_("b", fetch_of(2, &[1]))), ask(8, for_("c/x", fetch_of(3, &[1])))]);
    run.link(vec![ask(8, for_("d", fetch_of(4, &[1]))), ask(8, for_("d", list(5)))]);
    run.link(vec![ask(8, for_("c", ids(6))), ask(8, for_("b", ids(7)))]);
    run.link(vec![Commit::new(30, 1, 2).put(1, 1, 1, "c").on(8)]);
    run.link(vec![Commit::new(40, 1, 2).read(1, 1).on(8)]);
    run.link(vec![ask(8, for_("a", give(8, &[("d", Right::Admin)])))]);
    run.settle();
    run.link(vec![ask(1, give(5, &[("r", Right::Read)]))]);
    run.settle();
    run.link(vec![Commit::new(20, 1, 2).put(1, 1, 1, "b").on(8)]);
    run.settle();
    node(&mut run, 2, "e", 50);
    run.link(vec![ask(2, for_("a", open(3)))]);
    run.link(vec![ask(8, for_("a", Message::KeepAlive))]);
    run.t.end("rights_through_a_relay");
}

#[test]
fn a_relay_of_the_version_before_is_held_to_its_own_rights() {
    let mut run = volume(
        "Rights. Relay r speaks the version before rights: it cannot say for whom it asks, and is held to \
         its own right, which is to read. It is told nothing of rights, and of every change. A commit of \
         b, who may write, is refused for the relay; it is told so in words that it knows. When r may \
         write, b's commit passes and c's, who may only read, does not: whose a boot is, is known.",
        OriginConfig::default(),
    );
    let rights = [("a", Right::Admin), ("b", Right::Write), ("r", Right::Read), ("*", Right::None)];
    run.quietly(vec![ask(1, give(4, &rights))]);
    relay_of(&mut run, 8, "r", 80, OLD);
    run.quietly(vec![register(8, "b", 20), register(8, "c", 30)]);
    run.link(vec![fetch(8, 2, &[1]), ask(8, ids(3))]);
    run.link(vec![Commit::new(20, 1, 2).put(1, 1, 1, "b").on(8)]);
    run.settle();
    run.link(vec![ask(1, give(5, &[("r", Right::Write), ("c", Right::Read)]))]);
    run.settle();
    run.link(vec![Commit::new(20, 2, 2).put(1, 1, 1, "b").on(8)]);
    run.settle();
    run.link(vec![Commit::new(30, 1, 3).put(1, 1, 1, "c").on(8)]);
    run.settle();
    run.t.end("rights_a_relay_of_the_version_before");
}

#[test]
fn nobody_locks_himself_out_unasked() {
    let mut run = volume(
        "Rights. a takes its own right to administer: refused, since nobody else has it; with b as an \
         administrator it is refused for a's sake; forced, it is done. Too long a list, and a name that \
         is none, change nothing.",
        OriginConfig::default(),
    );
    node(&mut run, 2, "b", 20);
    run.link(vec![ask(1, give(4, &[("*", Right::Write)]))]);
    run.link(vec![ask(1, give(5, &[("*", Right::Write), ("b", Right::Admin)]))]);
    run.link(vec![ask(1, give(6, &[("no/name", Right::Read)]))]);
    run.link(vec![ask(1, change(7, true, &[("*", Right::Write), ("b", Right::Admin)]))]);
    run.settle();
    run.link(vec![ask(1, look(8)), ask(2, look(2))]);
    run.t.end("rights_nobody_locks_himself_out");
}

#[test]
fn rights_survive() {
    let mut run = volume(
        "Rights. Who may do what is the same after a start from the log alone, after an install, and \
         after a start from what was installed.",
        OriginConfig::default(),
    );
    run.quietly(vec![ask(1, give(4, &[("a", Right::Admin), ("*", Right::None)]))]);
    for history in [2, 3] {
        run.restart(history);
        node(&mut run, 1, "a", 10);
        node(&mut run, 2, "b", 20);
        run.link(vec![ask(1, look(2)), ask(2, open(2))]);
        run.settle_pages();
    }
    run.t.end("rights_survive");
}

#[test]
fn a_commit_of_a_relay_whose_link_is_gone() {
    let mut run = volume(
        "Rights. b's commit came through relay r, and waits for the page to be read from the store. r's \
         right to write goes, and then r's link. When the page comes the commit is looked at again: of \
         the link nothing was known any more, and so the commit was done, on nobody's right but b's. Now \
         it is known that it came through r, and it is refused for r. b, who has a link of its own by \
         then, is answered the same; a new commit of b passes there.",
        OriginConfig::default(),
    );
    run.settle_pages();
    run.restart(2);
    node(&mut run, 1, "a", 10);
    relay_of(&mut run, 8, "r", 80, PROTOCOL_VERSION);
    run.quietly(vec![register(8, "b", 20)]);
    run.link(vec![Commit::new(20, 1, 2).put(1, 1, 1, "y").on(8)]);
    run.link(vec![ask(1, give(6, &[("r", Right::Read)]))]);
    run.link(vec![closed(8)]);
    run.store_last();
    run.settle();
    node(&mut run, 2, "b", 20);
    run.link(vec![Commit::new(20, 1, 2).put(1, 1, 1, "y").on(2)]);
    run.link(vec![Commit::new(20, 2, 2).put(1, 1, 1, "z").on(2)]);
    run.settle();
    run.t.end("rights_a_commit_of_a_relay_that_is_gone");
}

#[test]
fn nobody_locks_himself_out_through_his_relay() {
    let mut run = volume(
        "Rights. b administers volume 7 through relay r, which may do as much. b takes that from r: it \
         was done, since b's own right stays, and b could not give it back, nor do anything else as an \
         administrator at this site. Now it is refused for r's sake; forced, it is done. What b asks \
         behind it, before it is durable, is refused for r too.",
        OriginConfig::default(),
    );
    let rights =
        [("a", Right::Admin), ("b", Right::Admin), ("r", Right::Admin), ("*", Right::None)];
    run.quietly(vec![ask(1, give(4, &rights))]);
    relay_of(&mut run, 8, "r", 80, PROTOCOL_VERSION);
    run.link(vec![ask(8, for_("b", give(2, &[("r", Right::Write)])))]);
    run.link(vec![ask(8, for_("b", change(3, true, &[("r", Right::Write)])))]);
    run.link(vec![ask(8, for_("b", give(4, &[("c", Right::Read)])))]);
    let delete = Message::DeleteVolume { request: RequestId(5), volume: VOLUME };
    run.link(vec![ask(8, for_("b", delete))]);
    run.settle();
    run.t.end("rights_nobody_locks_himself_out_through_his_relay");
}

#[test]
fn a_new_volume_is_no_news_for_nodes() {
    let mut run = Run::new(
        "Rights. Whoever is not named may do nothing, and a makes volumes. Each of them was told to \
         every node, which holds nothing of it. Now b hears nothing of a new volume, and relay r does, \
         before its stream. When b gets the right to read it, it is told so, and told when that goes; \
         what changes is told to it in between only. After the deletion nothing is kept of it.",
        OriginConfig {
            access: Access { default: Right::None, admins: vec!["a".into()] },
            ..OriginConfig::default()
        },
    );
    node(&mut run, 1, "a", 10);
    node(&mut run, 2, "b", 20);
    relay_of(&mut run, 8, "r", 80, PROTOCOL_VERSION);
    run.link(vec![create_volume(1, 2)]);
    run.settle();
    run.link(vec![ask(1, ids(3))]);
    run.settle();
    for (request, right) in [(4, Right::Read), (6, Right::None)] {
        run.link(vec![Commit::new(10, request, 1).put(1, 1, 1, "x").on(1)]);
        run.settle();
        run.link(vec![ask(1, give(request, &[("b", right)]))]);
        run.settle();
    }
    run.link(vec![Commit::new(10, 8, 1).put(1, 1, 1, "x").on(1)]);
    run.settle();
    run.link(vec![ask(1, Message::DeleteVolume { request: RequestId(9), volume: VOLUME })]);
    run.settle();
    run.t.end("rights_a_new_volume_is_no_news");
}

#[test]
fn a_list_of_what_may_be_read_is_made_in_steps() {
    let mut run = Run::new(
        "Rights. Of nine volumes b may read two. A list looked at all volumes in one step, and with many \
         of them commits waited behind it. Now a step looks at four of them; what comes meanwhile is \
         taken, and lists of two nodes go on one after the other.",
        OriginConfig { list_looks_max: 4, ..OriginConfig::default() },
    );
    node(&mut run, 1, "a", 10);
    node(&mut run, 2, "b", 20);
    for n in 1..=9 {
        let (id, name) = (VolumeId(n), format!("v{n}"));
        let spec = larder_core::message::VolumeSpec { id, name, page_bytes: 4096, domain: None };
        run.quietly(vec![ask(1, Message::CreateVolume { request: RequestId(2), spec })]);
        if ![4, 9].contains(&n) {
            let edit = |who: &str, right| RightsEdit { who: who.into(), right: Some(right) };
            let edits = vec![edit("a", Right::Admin), edit("*", Right::None)];
            let (request, change) = (RequestId(3), VolumeChange::Rights { edits, force: false });
            let message = Message::ChangeVolume { request, volume: VolumeId(n), change };
            run.quietly(vec![ask(1, message)]);
        }
    }
    run.link(vec![ask(2, list(2))]);
    run.link(vec![ask(1, list(4))]);
    run.wait(0);
    run.t.end("rights_a_list_is_made_in_steps");
}

/// The relay's parent tells who may do what.
fn told(rights: &[(&str, Right)]) -> (String, LinkInput) {
    told_of(VOLUME, rights)
}

fn told_of(volume: VolumeId, rights: &[(&str, Right)]) -> (String, LinkInput) {
    let entries = rights.iter().map(|&(who, right)| (who.to_owned(), right));
    let rights = Rights::new(entries, 9).expect("a list");
    let rights = larder_core::rights::Effective::of_list(rights);
    relay::up(Message::VolumeRights { domain: DOMAIN, volume, rights })
}

fn relay_with(prose: &str, version: u32) -> relay::Run {
    let mut run = relay::Run::with(prose, larder_core::relay::RelayConfig::default());
    again(&mut run, version);
    for (link, name, boot) in [(1, "a", 10), (2, "b/mount", 20)] {
        let peer = larder_core::message::certificate_of(name);
        run.quietly(vec![opened(link, peer), hello_of(link, name, boot, NODE)]);
        let boot = larder_core::id::BootId(boot);
        let registered = relay::up(Message::Registered { domain: DOMAIN, boot });
        run.quietly(vec![resume_new(link, 1), register(link, name, boot.0), registered]);
    }
    run
}

/// The stream begins, and node x comes below relay m at link 3. Gives x's boot.
fn below_m(run: &mut relay::Run) -> larder_core::id::BootId {
    run.quietly(vec![relay::resumed(2, 5, 5, &[])]);
    run.quietly(vec![opened_as(3, "m", Role::Relay), hello_of(3, "m", 30, RELAY)]);
    let boot = larder_core::id::BootId(40);
    let registered = relay::up(Message::Registered { domain: DOMAIN, boot });
    run.quietly(vec![resume_new(3, 1), register(3, "a/x", 40), registered]);
    boot
}

/// The relay's link to its parent stands anew; its stream has not begun.
fn again(run: &mut relay::Run, version: u32) {
    run.quietly(relay::welcomed_by(version, &[DOMAIN], Duration::from_secs(15)));
}

#[test]
fn a_relay_asks_in_names_and_tells_whom_it_concerns() {
    let mut run = relay_with(
        "Rights at a relay. What its children ask goes up in their names: the origin judges. The relay \
         is told that b may not read volume 7, before its stream tells of that volume; b hears it, a \
         hears its own right alone. b holds page 1 nevertheless: what changes of it is told to a, not to \
         b. b's commit is not answered early from what it may not see. Given the right, b hears that and \
         the changes from then on.",
        PROTOCOL_VERSION,
    );
    run.quietly(vec![relay::resumed(2, 5, 5, &[])]);
    run.step(vec![fetch(1, 5, &[1]), fetch(2, 5, &[1])]);
    run.step(vec![ask(2, open(6))]);
    run.step(vec![told(&[("a", Right::Write), ("*", Right::None)])]);
    run.step(vec![relay::advance(5, 6, 1)]);
    run.step(vec![Commit::new(20, 1, 5).read(1, 1).on(2)]);
    run.step(vec![told(&[("a", Right::Write), ("b", Right::Read), ("*", Right::None)])]);
    run.step(vec![relay::advance(6, 7, 1)]);
    run.0.end("rights_a_relay_asks_in_names");
}

#[test]
fn bug_226_a_relay_may_read_again() {
    let mut run = relay_with(
        "Bug 226, found by reading. The relay itself may not read volume 7 for a while, and page 1 changes at 6, of which it \
         hears nothing; a and b stand at 5 still. Given the right again, they hear that it was gone, and dropped what \
         they had; but what is exact up to 5 and was on its way to them would pass for current at 6. The relay tells \
         them that all of the volume has changed up to there.",
        PROTOCOL_VERSION,
    );
    run.quietly(vec![relay::resumed(2, 5, 5, &[])]);
    run.step(vec![fetch(1, 5, &[1]), fetch(2, 5, &[1])]);
    run.step(vec![told(&[("*", Right::None)])]);
    run.step(vec![relay::advance(5, 6, 9)]);
    run.step(vec![told(&[("a", Right::Write), ("*", Right::Read)])]);
    run.step(vec![relay::advance(6, 7, 1)]);
    run.0.end("rights_bug_226_a_relay_may_read_again");
}

#[test]
fn a_relay_forgets_rights_that_its_parent_does_not_tell_again() {
    let mut run = relay_with(
        "Rights at a relay. Volume 7 was b's to see no more. The line to the parent is lost, and on the \
         new one the parent tells of volume 8 alone before its stream begins: with volume 7 everybody \
         may do everything, and b hears so.",
        PROTOCOL_VERSION,
    );
    run.quietly(vec![relay::resumed(2, 5, 5, &[])]);
    run.step(vec![told(&[("a", Right::Write), ("*", Right::None)])]);
    run.step(vec![closed(9)]);
    again(&mut run, PROTOCOL_VERSION);
    run.step(vec![told_of(VolumeId(8), &[("a", Right::Read), ("*", Right::None)])]);
    run.step(vec![relay::resumed(3, 5, 6, &[])]);
    run.0.end("rights_a_relay_forgets");
}

#[test]
fn a_parent_of_the_version_before_is_asked_without_names() {
    let mut run = relay_with(
        "Rights at a relay. Its parent speaks the version before rights: it is asked without names, and \
         holds all to the relay's own rights. A change of rights is refused, naming the versions.",
        OLD,
    );
    run.quietly(vec![relay::resumed(2, 5, 5, &[])]);
    run.step(vec![fetch(2, 5, &[1]), ask(2, open(6))]);
    run.step(vec![ask(2, give(7, &[("b", Right::Write)])), ask(2, look(8))]);
    run.0.end("rights_a_parent_of_the_version_before");
}

/// A relay's certificate was worth as much as that of the relay above it: whoever had one asked there
/// in anybody's name.
#[test]
fn a_relay_below_another_asks_no_more_than_for_itself() {
    let mut run = relay_with(
        "Rights at a relay. Relay m hangs below it, and may not read volume 7, as a may. What m asks in \
         a's name is refused here: the origin would look at the upper relay and at a alone. Nor are a's \
         commits passed on for m. Given the right to read, m's questions for a go up, its commits not.",
        PROTOCOL_VERSION,
    );
    run.quietly(vec![relay::resumed(2, 5, 5, &[])]);
    run.quietly(vec![opened_as(3, "m", Role::Relay), hello_of(3, "m", 30, RELAY)]);
    run.quietly(vec![resume_new(3, 1)]);
    let boot = larder_core::id::BootId(40);
    let registered = relay::up(Message::Registered { domain: DOMAIN, boot });
    run.quietly(vec![register(3, "a/x", 40), registered]);
    run.step(vec![told(&[("a", Right::Admin), ("*", Right::None)])]);
    let by_id =
        |request| Message::OpenVolume { request: RequestId(request), key: VolumeKey::Id(VOLUME) };
    run.step(vec![ask(3, for_("a", by_id(2))), ask(3, for_("a", ids(3)))]);
    run.step(vec![ask(3, for_("a", fetch_of(4, &[1]))), ask(3, for_("a", look(5)))]);
    run.step(vec![Commit::new(40, 1, 5).put(1, 1, 1, "a").on(3)]);
    run.step(vec![told(&[("a", Right::Admin), ("m", Right::Read), ("*", Right::None)])]);
    run.step(vec![ask(3, for_("a", by_id(6))), ask(3, for_("a", ids(7)))]);
    run.step(vec![Commit::new(40, 2, 5).put(1, 1, 1, "a").on(3)]);
    run.0.end("rights_a_relay_below");
}

/// The same below a relay: the answer passes through it, and the stream told of the right before there was
/// anybody to tell.
#[test]
fn bug_115_an_answer_that_is_older_than_what_the_relay_heard() {
    let mut run = relay_with(
        "Rights at a relay. c may not read volume 7, asks for it, and follows the domain while its question \
         is on its way. The right is given, and the relay hears that on its stream, before c's stream is \
         there. Then the answer comes, from before: c is told at once what the relay heard. d's answer is \
         newer than what the relay heard, and says more: d is told nothing of the older state.",
        PROTOCOL_VERSION,
    );
    run.quietly(vec![relay::resumed(2, 5, 5, &[])]);
    run.quietly(vec![told(&[("a", Right::Admin), ("*", Right::None)])]);
    for (link, name, boot) in [(3, "c", 30), (4, "d", 40)] {
        run.quietly(vec![opened(link, name), hello_of(link, name, boot, NODE)]);
    }
    run.step(vec![create_volume(3, 2)]);
    run.step(vec![told(&[("a", Right::Admin), ("c", Right::Write), ("*", Right::None)])]);
    run.step(vec![resume_new(3, 3)]);
    let answer = |request, right| {
        let info = VolumeInfo { right: Some(right), ..relay::volume_info() };
        relay::up(Message::Volume { request: RequestId(request), info })
    };
    run.step(vec![answer(3, Right::None)]);
    run.step(vec![create_volume(4, 2), resume_new(4, 3)]);
    run.step(vec![answer(4, Right::Read)]);
    let both = [("a", Right::Admin), ("c", Right::Write), ("d", Right::Read), ("*", Right::None)];
    run.step(vec![told(&both)]);
    run.0.end("rights_bug_115_an_older_answer");
}

/// Node x below relay m committed, and the outcome was lost with a line. Then m's right went: when x asked again it was
/// told that its commit was refused, though it was done (P11).
#[test]
fn bug_99_a_commit_that_is_repeated_is_not_refused_in_the_relays_name() {
    let mut run = relay_with(
        "Rights at a relay. Node x below relay m commits for the first time, and the line up is lost: x asks \
         again. m may not write any more. Of a commit that may have been done only the origin knows; it is \
         asked by what it can only refuse, and then for good. One that was never sent by any way is \
         refused at once.",
        PROTOCOL_VERSION,
    );
    let boot = below_m(&mut run);
    run.step(vec![Commit::new(40, 1, 5).put(1, 1, 1, "a").on(3)]);
    run.step(vec![closed(9)]);
    again(&mut run, PROTOCOL_VERSION);
    run.quietly(vec![told(&[("a", Right::Admin), ("*", Right::None)])]);
    run.quietly(vec![relay::resumed(3, 5, 5, &[])]);
    run.quietly(vec![relay::up(Message::Registered { domain: DOMAIN, boot })]);
    run.step(vec![Commit::new(40, 1, 5).put(1, 1, 1, "a").on(3)]);
    let refused = Message::Committed {
        domain: DOMAIN,
        id: larder_core::id::CommitId { boot, sequence: 1 },
        outcome: larder_core::commit::Outcome::Aborted(larder_core::commit::Abort::History),
        history: larder_core::id::HistoryId(1),
    };
    run.step(vec![relay::up(refused)]);
    run.step(vec![Commit::new(40, 2, 5).put(1, 1, 1, "a").on(3)]);
    run.0.end("rights_bug_99_a_commit_that_is_repeated");
}

/// Node x below relay m, which may not write any more, repeats a part of a transaction that is of one history; its domain
/// refuses it in another.
fn repeats_a_part(prose: &str, of: u64, refused_in: u64, name: &str) {
    let mut run = relay_with(prose, PROTOCOL_VERSION);
    let boot = below_m(&mut run);
    run.quietly(vec![told(&[("a", Right::Admin), ("*", Right::None)])]);
    let id = larder_core::id::CommitId { boot, sequence: 1 };
    let part = |domain| larder_core::commit::PartId { domain, id };
    let parts = vec![part(DOMAIN), part(larder_core::id::DomainId(2))];
    let mut commit = Commit::new(40, 1, 5).put(1, 1, 1, "a");
    commit.0.across = larder_core::commit::Across::new(parts, DOMAIN).map(Box::new);
    commit.0.history = larder_core::id::HistoryId(of.into());
    run.step(vec![commit.on(3)]);
    let refused = Message::Committed {
        domain: DOMAIN,
        id,
        outcome: larder_core::commit::Outcome::Aborted(larder_core::commit::Abort::History),
        history: larder_core::id::HistoryId(refused_in.into()),
    };
    run.step(vec![relay::up(refused)]);
    run.0.end(name);
}

/// Found by reading (finding 496). A transaction over two domains was done, and one of them was restored from a copy of before.
/// x asks again, and m has lost its right meanwhile: the relay told that of its part, which is the end of the whole,
/// and x heard that nothing was done, though the other domain has it (P12). It is of another line: of that the
/// others may say more.
#[test]
fn bug_203_a_part_of_another_line_that_may_not_be_done() {
    repeats_a_part(
        "Rights at a relay. Node x below relay m, which may not write any more, repeats a part of a transaction that is of a \
         history which the domain does not have any more: it hears that, and not that m lacks the right.",
        77,
        1,
        "rights_bug_203_of_another_line",
    );
}

/// Found by reading (an attack on the mend of bug 203, finding 526). The domain was restored, and the refusal of a part that
/// had been done there came through a chain of relays before the word of the new line: m held it to be on the line
/// that it knew, and told x that it lacks the right, which is the end of the whole, though the other domain may have it.
#[test]
fn bug_220_a_refusal_that_overtakes_the_word_of_a_new_line() {
    repeats_a_part(
        "Rights at a relay. Node x below relay m, which may not write any more, repeats a part of a transaction. It is refused \
         in a history of which m has not heard yet: x hears that, and not that m lacks the right.",
        1,
        2,
        "rights_bug_220_a_refusal_overtakes",
    );
}

/// A right was given and taken again, and a relay heard of neither but by an answer that it passed on: what it was told
/// then was what it knew, and the child that had been answered was told nothing. Its copies passed for current (P3).
#[test]
fn bug_187_a_right_that_a_child_alone_has_heard_of() {
    let mut run = relay_with(
        "Rights at a relay. Nobody may read volume 7. Node a asks for it, and so does one below relay m: each is \
         answered that it may. That was given, and the relay has not heard of it. Before it does, it was taken again: \
         what it hears is what it knew. a and m are told all the same; b is not. Then again: nobody is.",
        PROTOCOL_VERSION,
    );
    run.quietly(vec![relay::resumed(2, 5, 5, &[])]);
    run.quietly(vec![told(&[("*", Right::None)])]);
    run.quietly(vec![opened_as(3, "m", Role::Relay), hello_of(3, "m", 30, RELAY)]);
    run.quietly(vec![resume_new(3, 1)]);
    let info = VolumeInfo { right: Some(Right::Read), ..relay::volume_info() };
    run.step(vec![create_volume(1, 2), ask(3, for_("n", open(4)))]);
    run.step(vec![relay::up(Message::Volume { request: RequestId(3), info: info.clone() })]);
    run.step(vec![relay::up(Message::Volume { request: RequestId(4), info })]);
    run.step(vec![told(&[("*", Right::None)])]);
    run.step(vec![told(&[("*", Right::None)])]);
    run.0.end("rights_bug_187_a_child_alone_has_heard");
}

/// The same before there is a stream: what was answered is remembered until it begins.
#[test]
fn bug_187_a_right_that_was_answered_before_the_stream() {
    let mut run = relay_with(
        "Rights at a relay. Nobody may read volume 7. Node c, which follows nothing yet, asks for it, and is answered \
         that it may: that was given, and the relay has not heard of it. Its stream begins, and the relay hears that \
         nobody may. c is told.",
        PROTOCOL_VERSION,
    );
    run.quietly(vec![relay::resumed(2, 5, 5, &[])]);
    run.quietly(vec![told(&[("*", Right::None)])]);
    run.quietly(vec![opened(3, "c"), hello_of(3, "c", 30, NODE)]);
    run.step(vec![create_volume(3, 2)]);
    let info = VolumeInfo { right: Some(Right::Read), ..relay::volume_info() };
    run.step(vec![relay::up(Message::Volume { request: RequestId(3), info })]);
    run.step(vec![resume_new(3, 3)]);
    run.step(vec![told(&[("*", Right::None)])]);
    run.0.end("rights_bug_187_answered_before_the_stream");
}

/// The word that a right was taken overtook the answer that told of it, in a lane of its own: nothing more is said
/// of the volume, and nothing of what changes in it.
#[test]
fn bug_187_an_answer_that_was_overtaken() {
    let mut run = relay_with(
        "Rights at a relay. Nobody may read volume 7. Node a asks for it. That it may was given and is taken again, \
         and the relay hears that first, then the answer from between. a is told at once.",
        PROTOCOL_VERSION,
    );
    run.quietly(vec![relay::resumed(2, 5, 5, &[])]);
    run.quietly(vec![told(&[("*", Right::None)])]);
    run.step(vec![create_volume(1, 2)]);
    run.step(vec![told(&[("*", Right::None)])]);
    let info = VolumeInfo { right: Some(Right::Read), ..relay::volume_info() };
    run.step(vec![relay::up(Message::Volume { request: RequestId(3), info })]);
    run.0.end("rights_bug_187_an_answer_overtaken");
}

/// A relay that may not read a volume hears nothing of its changes: its children's copies passed for
/// current, once the right was back or they had come back themselves.
#[test]
fn a_relay_without_the_right_says_so_to_who_comes_back() {
    let mut run = relay_with(
        "Rights at a relay. It may not read volume 7 itself. Node c comes back with copies of 3: it is \
         told that it may not read the volume before its stream goes on. Then the right is given, taken \
         and given again: each hears of all, since what changed meanwhile never came here.",
        PROTOCOL_VERSION,
    );
    run.quietly(vec![relay::resumed(2, 5, 5, &[])]);
    run.step(vec![told(&[("*", Right::None)])]);
    run.step(vec![opened(3, "c"), hello_of(3, "c", 30, NODE), resume(3, 1, &[(1, 0)], 3)]);
    run.step(vec![told(&[("*", Right::Write)])]);
    run.step(vec![told(&[("*", Right::None)]), told(&[("*", Right::Write)])]);
    run.0.end("rights_a_relay_without_the_right");
}
