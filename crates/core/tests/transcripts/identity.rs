//! Transcripts of who may use which name and boot, at the origin (decision 0004).

use crate::origin::Run;
use crate::parent::*;
use larder_core::message::Role;
use larder_core::origin::OriginConfig;
use larder_core::time::Duration;

/// Relays r (link 8) and s (link 9) follow the domain.
fn two_relays(run: &mut Run) {
    for (link, name, boot) in [(8, "r", 80), (9, "s", 90)] {
        run.quietly(vec![
            opened_as(link, name, Role::Relay),
            hello_as(link, name, boot, Role::Relay),
            resume_new(link, 1),
        ]);
    }
}

/// Ten seconds each in which the relays are heard of: 360 are an hour.
fn beats(run: &mut Run, rounds: usize) {
    for _ in 0..rounds {
        run.quietly(vec![beat(8, larder_core::time::Instant(0))]);
        run.quietly(vec![beat(9, larder_core::time::Instant(0))]);
        run.pass(10);
    }
}

#[test]
fn a_boot_is_its_nodes_own() {
    let mut run = Run::new(
        "Found by reading (P11). Every change that is streamed names the boot that made it. b sees a's \
         boot 10 and confirms 10#2, which a has not heard of yet: its outcome was dropped, and a's \
         repeated commit answered 'unknown'. Or b commits as 10#3: when a sent its own third commit it \
         was told of b's. A link speaks for the boots registered on it, and for no other's; one that \
         does is cut off. When a is away its boot is still a's, by name, after a restart too.",
        OriginConfig::default(),
    );
    run.two_nodes();
    let commit = Commit::new(10, 2, 2).read(1, 1).put(1, 1, 1, "y");
    run.quietly(vec![commit.clone().on(1)]);
    run.link(vec![confirm(2, 10, 2)]);
    run.link(vec![commit.on(1)]);
    run.node(2, "b", 21);
    run.link(vec![Commit::new(10, 3, 3).put(1, 1, 1, "z").on(2)]);
    run.link(vec![closed(1)]);
    run.node(3, "b", 22);
    run.t.say("a is away. b may neither take its boot over nor use it.");
    run.link(vec![Commit::new(10, 3, 3).put(1, 1, 1, "z").on(3), confirm(3, 10, 2)]);
    run.link(vec![register_as(3, "b", 22, 10, false)]);
    run.restart(2);
    run.node(1, "b", 23);
    run.link(vec![register_as(1, "b", 23, 10, true)]);
    run.t.end("identity_a_boot_is_its_nodes_own");
}

#[test]
fn a_node_is_no_relay() {
    let mut run = Run::new(
        "Found by reading. What a child is was what it said: a node's certificate was enough to pose as \
         a relay and register any boot. The certificate says it now. A relay's may also be a node.",
        OriginConfig::default(),
    );
    run.link(vec![opened(1, "a"), hello_as(1, "a", 10, Role::Relay)]);
    run.link(vec![opened(2, "a"), hello(2, "a", 10)]);
    run.link(vec![register(2, "b", 20), left(2, "b")]);
    run.link(vec![opened_as(3, "r", Role::Relay), hello_as(3, "r", 30, Role::Relay)]);
    run.link(vec![opened_as(4, "r/probe", Role::Relay), opened_as(5, "r", Role::Relay)]);
    run.link(vec![hello(4, "r/probe", 40), hello(5, "r/probe", 50)]);
    run.t.end("identity_a_node_is_no_relay");
}

#[test]
fn one_name_below_two_parents() {
    let mut run = Run::new(
        "Found by reading (P12). Node a (life 10) came over relay r, another process of the name (life \
         11) over relay s: each relay saw one a, and both were served. The name travels with the \
         registration: the second is refused while the first is there, in whatever domain. When r says \
         that a left, the name is free. And the same process may come over another parent at any time: \
         the one it came over before is told.",
        OriginConfig::default(),
    );
    run.node(1, "a", 1);
    run.quietly(vec![create_volume(1, 2), closed(1)]);
    two_relays(&mut run);
    run.link(vec![register(8, "a", 10)]);
    run.settle();
    run.link(vec![register(9, "a", 11)]);
    run.link(vec![opened(2, "a"), hello(2, "a", 12)]);
    run.link(vec![left(8, "a"), register(9, "a", 11)]);
    run.settle();
    run.t.say("a's process connects directly; r's late word that a left is about a link of old.");
    run.link(vec![opened(3, "a"), hello(3, "a", 11)]);
    run.link(vec![left(9, "a"), register_as(3, "a", 11, 11, false)]);
    run.t.say("What s had under way for a is put off, not done under a's name over two links.");
    run.link(vec![Commit::new(11, 1, 1).put(1, 1, 1, "x").on(9)]);
    run.link(vec![Commit::new(11, 1, 1).put(1, 1, 1, "x").on(3)]);
    run.settle();
    run.t.end("identity_one_name_below_two_parents");
}

#[test]
fn boots_behind_a_relay_are_connected() {
    let mut run = Run::new(
        "Found by reading. The table of boots was full, and a's boot, behind a relay, had not been heard \
         of for an hour since a only read: it was forgotten though a was there, and a's next commit was \
         answered 'unknown'. A relay's nodes count as connected as long as it has not said that they \
         left. c's registration waits, is asked again, and gets b's place when b is gone.",
        OriginConfig { boots_max: 2, ..OriginConfig::default() },
    );
    two_relays(&mut run);
    run.quietly(vec![register(8, "a", 10), register(9, "b", 20)]);
    beats(&mut run, 360);
    run.link(vec![register(8, "c", 30)]);
    run.link(vec![left(9, "b"), register(8, "c", 30)]);
    run.settle();
    run.t.end("identity_boots_behind_a_relay_are_connected");
}

#[test]
fn nobody_fills_the_table_of_boots() {
    let mut run = Run::new(
        "Found by reading (P7). A node that came again and again with a new boot filled the table of boots, \
         and nobody else was registered for an hour. A certificate has a bound of its own (here 2): \
         beyond it its own boot that is missed least is forgotten. One boot a link and domain: a further \
         one takes the place of the one before.",
        OriginConfig { boots_max: 4, boots_per_name_max: 2, ..OriginConfig::default() },
    );
    run.node(1, "a", 10);
    run.quietly(vec![closed(1)]);
    run.node(1, "a/two", 11);
    run.link(vec![opened(2, "a"), hello(2, "a", 12), register(2, "a", 12)]);
    run.settle();
    run.link(vec![register_as(2, "a", 12, 13, true)]);
    run.settle();
    run.link(vec![register_as(2, "a", 12, 12, false)]);
    run.t.end("identity_nobody_fills_the_table_of_boots");
}

#[test]
fn a_boot_that_ended() {
    let mut run = Run::new(
        "Measured, in a soak: each command that a timer starts left a boot behind, until its certificate had 4,096 \
         of them, and all were written with each install. A node that ends says so: it confirms all that can be. \
         A copy of its commit that a relay kept comes late, in its name and as of a new boot: it is not done a \
         second time, nor is another one under that boot. So the boot is kept for as long as such a copy may \
         travel, and forgotten with the first append after that; one that is said to be there then is kept for as \
         long again.",
        OriginConfig::default(),
    );
    two_relays(&mut run);
    run.node(1, "a", 10);
    run.quietly(vec![create_volume(1, 2)]);
    run.link(vec![Commit::new(10, 1, 1).put(1, 1, 1, "x").on(1)]);
    run.settle();
    run.link(vec![confirm(1, 10, u64::MAX), closed(1)]);
    run.link(vec![register(8, "a", 10)]);
    run.link(vec![Commit::new(10, 1, 1).put(1, 1, 1, "x").on(8)]);
    run.link(vec![Commit::new(10, 2, 2).put(1, 1, 1, "y").on(8)]);
    beats(&mut run, 360);
    run.t.say("It is still said to be there, when another node comes.");
    run.link(vec![register(9, "b", 20)]);
    run.settle();
    run.quietly(vec![left(8, "a")]);
    beats(&mut run, 359);
    run.t.say("Now it is not.");
    run.t.now = run.t.now.after(Duration::from_secs(11));
    run.link(vec![register(9, "c", 30)]);
    run.settle();
    run.t.end("identity_a_boot_that_ended");
}

/// Found by an attack. A boot that had ended stayed when there was no room for the record that it is forgotten, and was to be
/// forgotten again at once: one append that found no room followed another for as long as the store was full, and a core
/// with them.
#[test]
fn bug_206_a_boot_that_ended_and_a_full_store() {
    let mut run = Run::new(
        "A boot ended long ago, and is forgotten with the next append. There is no room for it: the boot stays, and its \
         turn comes when as long has passed again, not at once.",
        OriginConfig::default(),
    );
    two_relays(&mut run);
    run.node(1, "a", 10);
    run.quietly(vec![create_volume(1, 2)]);
    run.link(vec![confirm(1, 10, u64::MAX), closed(1)]);
    run.settle();
    beats(&mut run, 359);
    run.t.now = run.t.now.after(Duration::from_secs(11));
    run.link(vec![register(9, "b", 20)]);
    run.store(Some(larder_core::origin::io::StoreFault::Full("no segment left".into())));
    run.link(vec![register(9, "b", 20)]);
    run.settle();
    run.t.end("identity_bug_206_ended_and_full");
}

#[test]
fn a_boot_that_ended_while_it_was_registered() {
    let mut run = Run::new(
        "Found by an attack on the mend of bug 199. A command that only reads has ended before the log has taken its \
         boot, which nobody asks for: it stayed. What has not gone to the log yet is not made; what is on its way is \
         noted as ended when it is durable.",
        OriginConfig::default(),
    );
    run.link(vec![opened(1, "a"), hello(1, "a", 10), resume_new(1, 1)]);
    run.link(vec![register(1, "a", 10)]);
    run.link(vec![confirm(1, 10, u64::MAX), closed(1)]);
    run.link(vec![opened(2, "b"), hello(2, "b", 20), resume_new(2, 1), register(2, "b", 20)]);
    run.link(vec![confirm(2, 20, u64::MAX), closed(2)]);
    run.settle();
    run.t.end("identity_a_boot_that_ended_while_it_was_registered");
}

#[test]
fn a_name_for_each_process() {
    let mut config = OriginConfig::default();
    config.downlink.processes_max = 3;
    let mut run = Run::new(
        "A person has one certificate and runs a mount and a command: the command was refused under the \
         mount's name. Each process may have an instance of its own after the name, and is a node of its \
         own. A true duplicate is refused, by its full name; so is an instance of somebody else's \
         certificate, one that is no name, and one more than a certificate may have.",
        config,
    );
    run.link(vec![opened(1, "a"), hello(1, "a", 10)]);
    run.link(vec![opened(2, "a"), hello(2, "a/check-7f", 11)]);
    run.link(vec![opened(3, "a"), hello(3, "a/check-7f", 12)]);
    run.link(vec![opened(4, "b"), hello(4, "a/mount", 13)]);
    run.link(vec![opened(5, "a"), hello(5, "a/", 13), opened(6, "a"), hello(6, "a/x y", 13)]);
    run.link(vec![opened(7, "a"), hello(7, "a/mount", 13), opened(8, "a"), hello(8, "a/4", 14)]);
    run.link(vec![opened(9, "a-b"), hello(9, "a-b", 15)]);
    run.t.end("identity_a_name_for_each_process");
}
