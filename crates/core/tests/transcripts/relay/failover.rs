//! Transcripts of a redirector that takes another one's place (BuddyCache, appendix; decision 0034): a relay
//! that has just begun, to which members come with their caches and with what they had under way.

use super::group::found;
use super::*;
use larder_core::group::{GroupConfig, GroupMessage};

fn says(link: u64, message: GroupMessage) -> (String, LinkInput) {
    received(link, Message::Group(message))
}

/// A member comes that was at 5 with the redirector before, and reaches the others.
fn comes(link: u64, name: &str, boot: u128, others: &[u128]) -> Vec<(String, LinkInput)> {
    let members = others.iter().map(|life| BootId(*life)).collect();
    vec![
        opened(link, name),
        hello_of(link, name, boot, (Role::Node, 4)),
        says(link, GroupMessage::Join { address: format!("at-{name}") }),
        says(link, GroupMessage::Reach { members }),
        resume(link, 1, &[(1, 1)], 5),
    ]
}

fn new_redirector(prose: &str) -> Run {
    let group = Some(GroupConfig { members_every: Duration::ZERO, ..GroupConfig::default() });
    Run::with(prose, RelayConfig { group, ..RelayConfig::default() })
}

fn complete(link: u64, pages: &[u64]) -> (String, LinkInput) {
    let pages = pages.iter().map(|n| page(*n)).collect();
    says(link, GroupMessage::Complete { domain: DOMAIN, pages })
}

#[test]
fn the_directory_comes_with_the_lists_of_members() {
    let mut run = new_redirector(
        "a and b come from the redirector that is gone, with what they had; their resumes are passed up. The list of a \
         names pages 3 and 8, and only of 3 is its copy complete. b misses both: 3 comes from a, 8 from above.",
    );
    run.step(comes(1, "a", 10, &[20]));
    run.step(comes(2, "b", 20, &[10]));
    run.step(vec![resumed(2, 5, 5, &[]), resumed(3, 5, 5, &[])]);
    run.step(vec![holding(1, &[3, 8]), complete(1, &[3])]);
    run.step(vec![fetch(2, 5, &[3, 8])]);
    run.0.end("relay_failover_the_directory_comes_with_lists");
}

#[test]
fn a_commit_in_doubt_is_sent_again() {
    let mut run = new_redirector(
        "a's commit was on its way when the redirector died. It is sent again under its id, with its writes. It had been \
         done, at 6: the outcome says so. b, which has the page, is told what a wrote with the change that names \
         the commit, as if it had come through here the first time.",
    );
    run.quietly(comes(1, "a", 10, &[20]));
    run.quietly(comes(2, "b", 20, &[10]));
    run.quietly(vec![resumed(2, 5, 5, &[]), resumed(3, 5, 5, &[])]);
    run.quietly(vec![
        register(1, "a", 10),
        up(Message::Registered { domain: DOMAIN, boot: BootId(10) }),
    ]);
    run.quietly(vec![fetch(2, 5, &[3]), found(4, 3)]);
    run.step(vec![Commit::new(10, 1, 5).put(3, 1, 1, "x").on(1)]);
    let id = CommitId { boot: BootId(10), sequence: 1 };
    let (outcome, history) = (Outcome::Committed(Stamp(6)), HistoryId(1));
    run.step(vec![up(Message::Committed { domain: DOMAIN, id, outcome, history })]);
    let touched = vec![(Target::Slot(Slot(1)), Aspect::Value)];
    let pages = vec![PageChange { page: page(3), touched }];
    run.step(vec![up(Message::Advance {
        domain: DOMAIN,
        from: Stamp(5),
        through: Stamp(6),
        time: WallTime(0),
        changes: vec![Change { stamp: Stamp(6), id, pages }],
        stale: Vec::new(),
        echo: None,
    })]);
    run.0.end("relay_failover_a_commit_in_doubt");
}

#[test]
fn a_redirector_below_a_redirector() {
    let mut run = new_redirector(
        "The redirector of a group of its own is a child of this one, and no member: it is pointed to nobody, and helps \
         nobody. What it fetched is asked for above again when a misses it; what a has, it gets from above.",
    );
    run.quietly(comes(1, "a", 10, &[20]));
    run.quietly(vec![resumed(2, 5, 5, &[])]);
    run.step(vec![
        opened_as(2, "below", Role::Relay),
        hello_of(2, "below", 20, (Role::Relay, 4)),
        resume_new(2, 1),
    ]);
    run.step(vec![fetch(2, 5, &[3])]);
    run.step(vec![found(3, 3)]);
    run.step(vec![fetch(1, 5, &[3])]);
    run.step(vec![found(4, 3)]);
    run.step(vec![fetch(2, 6, &[3])]);
    run.0.say("One that says it is a member is turned away: relays help nobody.");
    run.step(vec![says(2, GroupMessage::Join { address: "at-below".into() })]);
    run.0.end("relay_failover_a_redirector_below");
}
