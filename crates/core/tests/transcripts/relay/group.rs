//! Transcripts of a group's redirector (decision 0031): who is pointed to whom.

use super::*;
use larder_core::commit::{Op, PageKind};
use larder_core::group::{GroupConfig, GroupMessage, HOLES_SINCE, HelpEnd};
use larder_core::page::Page;
use larder_core::rights::{Effective, Right, Rights};

pub(super) const MEMBERS: [(u64, &str, u128); 3] = [(1, "a", 10), (2, "b", 20), (3, "c", 30)];

/// The answer from above: page `n` as it was made.
pub(super) fn found(request: u64, n: u64) -> (String, LinkInput) {
    let body = PageBody::Data(Page::empty(PageKind::Slotted).encode(page(n)));
    let answer = PageAnswer { page: page(n), version: Stamp(2), as_of: Stamp(5), body };
    up(Message::Pages { request: RequestId(request), domain: DOMAIN, pages: vec![answer] })
}

fn says(link: u64, message: GroupMessage) -> (String, LinkInput) {
    received(link, Message::Group(message))
}

pub(super) fn helped(link: u64, request: u64, n: u64, end: HelpEnd) -> (String, LinkInput) {
    let (request, pages) = (RequestId(request), vec![page(n)]);
    says(link, GroupMessage::Helped { request, domain: DOMAIN, pages, end })
}

fn reach(link: u64) -> (String, LinkInput) {
    let others = MEMBERS.iter().filter(|(other, ..)| *other != link);
    let members = others.map(|(_, _, life)| BootId(*life)).collect();
    says(link, GroupMessage::Reach { members })
}

/// Members a, b and c at links 1 to 3, with lives 10, 20 and 30, who all reach each other.
pub(super) fn group(prose: &str) -> Run {
    group_in(prose, GroupConfig::default())
}

/// The same with other bounds. They are told of each other at once.
pub(super) fn group_in(prose: &str, config: GroupConfig) -> Run {
    let members_every = Duration::ZERO;
    let version = if config.holes { HOLES_SINCE } else { 4 };
    let group = Some(GroupConfig { members_every, ..config });
    let mut run = Run::with(prose, RelayConfig { group, ..RelayConfig::default() });
    for (link, name, boot) in MEMBERS {
        run.quietly(vec![
            opened(link, name),
            hello_of(link, name, boot, (Role::Node, version)),
            says(link, GroupMessage::Join { address: format!("at-{name}") }),
            resume_new(link, 1),
            register(link, name, boot),
            up(Message::Registered { domain: DOMAIN, boot: BootId(boot) }),
            reach(link),
        ]);
    }
    run
}

#[test]
fn members_hear_of_each_other() {
    let group = Some(GroupConfig::default());
    let mut run = Run::with(
        "Whoever joins is told of all others, and they of it; so are they when it leaves. All are told at most \
         every 200 ms: who comes and goes all the time costs them no more. A child that did not join, and one \
         of an older version, is a child as before.",
        RelayConfig { group, ..RelayConfig::default() },
    );
    for (link, name, boot) in MEMBERS {
        run.quietly(vec![opened(link, name), hello_of(link, name, boot, (Role::Node, 4))]);
    }
    run.step(vec![says(1, GroupMessage::Join { address: "at-a".into() })]);
    run.step(vec![says(2, GroupMessage::Join { address: "at-b".into() })]);
    let quiet = Duration::from_millis(201);
    run.0.wait(quiet);
    run.0.say("Said again, and nothing is new; then it is reached elsewhere.");
    run.step(vec![says(2, GroupMessage::Join { address: "at-b".into() })]);
    run.0.wait(quiet);
    run.step(vec![says(2, GroupMessage::Join { address: "elsewhere".into() })]);
    run.step(vec![closed(1)]);
    run.0.wait(quiet);
    run.0.say("Whose certificate is not of the group does not join it.");
    run.quietly(vec![stranger(4, "d"), hello_of(4, "d", 40, (Role::Node, 4))]);
    run.step(vec![says(4, GroupMessage::Join { address: "at-d".into() })]);
    run.0.say("What only a redirector says ends the link of who says it.");
    run.step(vec![says(3, GroupMessage::Members { members: Vec::new() })]);
    run.0.end("relay_group_members_hear_of_each_other");
}

#[test]
fn what_one_has_fetched_its_neighbours_get_from_it() {
    let mut run = group(
        "a fetches page 3; it is asked for above. b misses it while it is on its way: b is pointed to a, and \
         a is asked to help when it has it. One fetch goes up for both. c misses it when both have it: the one \
         who helped less is chosen. Whoever is pointed is registered: the change that follows comes to all.",
    );
    run.step(vec![fetch(1, 5, &[3])]);
    run.step(vec![fetch(2, 5, &[3])]);
    run.step(vec![found(2, 3)]);
    run.step(vec![helped(2, 5, 3, HelpEnd::Came)]);
    run.step(vec![fetch(3, 5, &[3, 4])]);
    run.step(vec![helped(3, 5, 3, HelpEnd::Came)]);
    run.step(vec![advance(5, 6, 3)]);
    run.0.say("Nobody has it complete now.");
    run.step(vec![fetch(1, 6, &[3])]);
    run.0.end("relay_group_what_one_has_fetched");
}

#[test]
fn a_helper_that_does_not_help_costs_one_wait() {
    let mut run = group(
        "b is pointed to a, which turns out not to have the page complete: b says so and asks anew, and the page \
         is asked for above. c is pointed to b, since that is on its way; b is late: it rests, and c's next \
         miss goes up too though b has that page. After its rest it is asked again.",
    );
    run.quietly(vec![fetch(1, 5, &[3]), found(2, 3)]);
    run.quietly(vec![fetch(2, 4, &[8]), found(3, 8)]);
    run.step(vec![fetch(2, 5, &[3])]);
    run.step(vec![helped(2, 5, 3, HelpEnd::Lacked), fetch(2, 6, &[3])]);
    run.step(vec![fetch(3, 5, &[3])]);
    run.step(vec![helped(3, 5, 3, HelpEnd::Late), fetch(3, 6, &[3])]);
    run.step(vec![fetch(3, 7, &[8])]);
    run.0.wait(Duration::from_millis(1001));
    run.step(vec![fetch(1, 7, &[8])]);
    run.0.end("relay_group_a_helper_that_does_not_help");
}

#[test]
fn rule_7_no_notice_while_a_neighbour_sends() {
    let mut run = group(
        "Rule 7. a has page 3, b is pointed to it. a evicts it, and b's own notice comes too (it gave the \
         page up) while the transfer is under way: a notice now would unregister this relay for what b may be about to \
         hold. It is sent when b says that the page came.",
    );
    run.quietly(vec![fetch(1, 5, &[3, 4]), found(2, 3), found(2, 4)]);
    run.step(vec![fetch(2, 5, &[3])]);
    run.step(vec![evicted(1, &[3])]);
    run.step(vec![evicted(2, &[3])]);
    run.step(vec![helped(2, 5, 3, HelpEnd::Came)]);
    run.0.say("One that did not come: nothing says that there is such a page, and a commit that makes it could \
               overtake the notice (P3). The parent is told by a list.");
    run.step(vec![fetch(2, 6, &[4])]);
    run.step(vec![evicted(1, &[4]), evicted(2, &[4])]);
    run.step(vec![helped(2, 6, 4, HelpEnd::NotSent)]);
    run.0.wait(Duration::from_secs(6));
    run.0.end("relay_group_rule_7");
}

#[test]
fn what_a_member_changes_it_keeps() {
    let mut run = group(
        "a and b have page 3 complete. a commits a change of it: its own copy stays complete, b's has a hole. c is \
         pointed to a, whatever comes first, the outcome or the change. A page that a commit makes is \
         complete where it was made.",
    );
    run.quietly(vec![fetch(1, 5, &[3]), found(2, 3), fetch(2, 5, &[3])]);
    run.quietly(vec![helped(2, 5, 3, HelpEnd::Came)]);
    let make = Op::CreatePage(PageKind::Slotted);
    run.step(vec![Commit::new(10, 1, 5).put(3, 1, 1, "x").op(9, make).on(1)]);
    let id = CommitId { boot: BootId(10), sequence: 1 };
    let touched =
        |n| PageChange { page: page(n), touched: vec![(Target::Slot(Slot(1)), Aspect::Value)] };
    let change = Change { stamp: Stamp(6), id, pages: vec![touched(3)] };
    run.step(vec![up(Message::Advance {
        domain: DOMAIN,
        from: Stamp(5),
        through: Stamp(6),
        time: WallTime(0),
        changes: vec![change],
        stale: Vec::new(),
        echo: None,
    })]);
    let (outcome, history) = (Outcome::Committed(Stamp(6)), HistoryId(1));
    run.step(vec![up(Message::Committed { domain: DOMAIN, id, outcome, history })]);
    run.step(vec![fetch(3, 5, &[3, 9])]);
    run.0.end("relay_group_what_a_member_changes");
}

/// Finding 571: what is said of copies with holes is of those, and not of complete ones.
#[test]
fn a_copy_with_holes_is_pointed_to_and_lacked_as_one() {
    let mut run = group_in(
        "Copies with holes are sent. a and b had page 3, which somebody outside changed: both have it with holes. c is \
         pointed to one of them, and told so, and so is the helper. It turns out to have no copy at all: c asks above. \
         Another miss of it finds the other one; and once nobody has a copy it is asked for above.",
        GroupConfig { holes: true, ..GroupConfig::default() },
    );
    run.quietly(vec![fetch(1, 5, &[3]), found(2, 3), fetch(2, 5, &[3])]);
    run.quietly(vec![helped(2, 5, 3, HelpEnd::Came)]);
    run.step(vec![advance(5, 6, 3)]);
    run.step(vec![fetch(3, 5, &[3])]);
    run.step(vec![helped(3, 5, 3, HelpEnd::Lacked), fetch(3, 6, &[3])]);
    run.quietly(vec![evicted(3, &[3])]);
    run.step(vec![fetch(3, 7, &[3])]);
    run.step(vec![helped(3, 7, 3, HelpEnd::Lacked), fetch(3, 8, &[3])]);
    run.quietly(vec![evicted(3, &[3])]);
    run.step(vec![fetch(3, 9, &[3])]);
    run.0.end("relay_group_a_copy_with_holes");
}

fn acknowledges(link: u64, through: u64) -> (String, LinkInput) {
    says(link, GroupMessage::Acknowledged { domain: DOMAIN, through: Stamp(through) })
}

/// BuddyCache's figure 4, and what solo commit is for.
#[test]
fn group_acknowledgement_has_a_slow_member_abort_others() {
    let mut run = group_in(
        "For an experiment commits count as of what all members have acknowledged that may hold what was read. a and b \
         have page 3, c has not. a changes it, and changes it again: b has not acknowledged the first change, and a's \
         second commit goes up with the base before it, at which the origin finds that what a read changed since. When \
         b has, it goes up as it is. For c, which has nothing of it, nobody waits.",
        GroupConfig { ack: true, ..GroupConfig::default() },
    );
    run.quietly([1, 2, 3].map(|link| acknowledges(link, 5)).to_vec());
    run.quietly(vec![fetch(1, 5, &[3]), found(2, 3), fetch(2, 5, &[3])]);
    run.quietly(vec![helped(2, 5, 3, HelpEnd::Came)]);
    run.quietly(vec![Commit::new(10, 1, 5).put(3, 1, 1, "x").on(1)]);
    let id = CommitId { boot: BootId(10), sequence: 1 };
    let touched = vec![(Target::Slot(Slot(1)), Aspect::Value)];
    let change = Change { stamp: Stamp(6), id, pages: vec![PageChange { page: page(3), touched }] };
    run.quietly(vec![up(Message::Advance {
        domain: DOMAIN,
        from: Stamp(5),
        through: Stamp(6),
        time: WallTime(0),
        changes: vec![change],
        stale: Vec::new(),
        echo: None,
    })]);
    let (outcome, history) = (Outcome::Committed(Stamp(6)), HistoryId(1));
    run.quietly(vec![up(Message::Committed { domain: DOMAIN, id, outcome, history })]);
    run.step(vec![acknowledges(1, 6), Commit::new(10, 2, 6).read(3, 1).put(3, 1, 1, "y").on(1)]);
    run.step(vec![acknowledges(2, 6), Commit::new(10, 3, 6).read(3, 1).put(3, 1, 1, "z").on(1)]);
    run.0.end("relay_group_acknowledgement");
}

#[test]
fn who_leaves_helps_nobody_and_is_not_waited_for() {
    let mut run = group(
        "b is pointed to a, whose link ends: b, which is told who is left, asks anew by itself. What a had \
         is forgotten. Of c, which leaves while a page is on its way to it, no word is awaited: the notice of the page \
         is not held up.",
    );
    run.quietly(vec![fetch(1, 5, &[3]), found(2, 3)]);
    run.step(vec![fetch(2, 5, &[3])]);
    run.step(vec![closed(1)]);
    run.step(vec![helped(2, 5, 3, HelpEnd::Lacked), fetch(2, 6, &[3])]);
    run.step(vec![found(3, 3)]);
    run.step(vec![fetch(3, 5, &[3])]);
    run.step(vec![closed(3)]);
    run.step(vec![evicted(2, &[3])]);
    run.0.end("relay_group_who_leaves");
}

#[test]
fn a_member_that_comes_back_says_what_it_holds() {
    let mut run = group(
        "a comes back with what it had: until its list comes nobody is pointed to it, since pages of it may have changed. A page \
         of which it says then that its copy is complete is one that it can help with.",
    );
    run.quietly(vec![fetch(1, 5, &[3, 8]), found(2, 3), found(2, 8)]);
    run.quietly(vec![closed(1), opened(4, "a"), hello_of(4, "a", 10, (Role::Node, 4))]);
    run.quietly(vec![says(4, GroupMessage::Join { address: "at-a".into() })]);
    run.quietly(vec![says(4, GroupMessage::Reach { members: vec![BootId(20), BootId(30)] })]);
    run.step(vec![resume(4, 1, &[(1, 1)], 5)]);
    run.step(vec![resumed(3, 5, 5, &[])]);
    run.step(vec![fetch(2, 5, &[3])]);
    let pages = vec![page(3), page(8)];
    let complete = says(4, GroupMessage::Complete { domain: DOMAIN, pages });
    run.step(vec![holding(4, &[3, 8]), complete]);
    run.step(vec![fetch(3, 5, &[8])]);
    run.0.end("relay_group_a_member_that_comes_back");
}

#[test]
fn nobody_is_pointed_to_what_it_may_not_read() {
    let mut run = group(
        "The volume is closed to b. What b asks of it is asked above, which refuses it, though a neighbour has the \
         page: nobody would judge what comes from a neighbour. c is pointed.",
    );
    run.quietly(vec![fetch(1, 5, &[3]), found(2, 3)]);
    let entries = [("b".into(), Right::None), ("*".into(), Right::Admin)];
    let rights = Rights::new(entries, 8).expect("a list");
    let (volume, rights) = (page(3).volume, Effective::of_list(rights));
    run.step(vec![up(Message::VolumeRights { domain: DOMAIN, volume, rights })]);
    run.step(vec![fetch(2, 5, &[3])]);
    run.step(vec![fetch(3, 5, &[3])]);
    run.0.end("relay_group_nobody_is_pointed_to_what_it_may_not_read");
}

#[test]
fn a_transfer_of_which_nothing_is_said() {
    let mut run = group(
        "b is pointed to a and says no more of it, though its link stands. After a minute the transfer is \
         taken for over; a word that comes later is of nothing.",
    );
    run.quietly(vec![fetch(1, 5, &[3]), found(2, 3)]);
    run.quietly(vec![fetch(2, 5, &[3]), evicted(1, &[3]), evicted(2, &[3])]);
    for _ in 0..7 {
        run.0.wait(Duration::from_secs(9));
        run.quietly((1..=3).map(|link| beat(link, Instant(0))).collect());
        let now = run.0.now;
        run.quietly(vec![echo_of(now)]);
    }
    run.step(vec![helped(2, 5, 3, HelpEnd::Came)]);
    run.0.end("relay_group_a_transfer_of_which_nothing_is_said");
}

/// The parent is heard from.
fn echo_of(_now: Instant) -> (String, LinkInput) {
    up(Message::KeepAlive)
}
