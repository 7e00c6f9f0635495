//! The named races of the design, each as one fixed schedule on the real machines: origin, log,
//! relay, caches. Every test tells its story, plays it, and plays it again with the rule taken out
//! that the story is about: then it must go wrong, or the story would prove nothing.

mod cluster;

use cluster::{Cluster, DOMAIN, Stuck, Who, page};
use larder_core::cache::io::{CacheOp, CacheReply};
use larder_core::cache::{AgeLimit, BeginError, Finish, Session, SessionOptions, TransactionError};
use larder_core::commit::{Outcome, PageKind};
use larder_core::machine::{Fault, Faults};
use larder_core::message::{CloseReason, Lane};
use larder_sim::net::Way;

const ROOM: usize = 1 << 20;
/// So little memory that no page stays when nobody uses it.
const NO_ROOM: usize = 1;

/// How a story went: what was seen that must not be, if anything.
type Told = Result<(), String>;

/// Plays a story, which goes well, and again without each of the rules that it is about.
fn tell(story: fn(Faults) -> Told, faults: &[Fault]) {
    story(Faults::NONE).expect("the race is survived");
    for fault in faults {
        let told = story(Faults::only(*fault));
        assert!(told.is_err(), "the story goes well without the rule of {fault:?}");
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, seen: &T, wanted: &T) -> Told {
    if seen == wanted { Ok(()) } else { Err(format!("{what}: {seen:?}, not {wanted:?}")) }
}

fn text(text: &str) -> Result<Option<String>, Stuck> {
    Ok(Some(text.into()))
}

/// A fetch overtaken by an invalidation. 1. a asks for page 1; the answer, as of 2, is under way.
/// 2. b's commit 3 changes it, and reaches a on the stream. 3. The page arrives. Taken as it is, it
/// would stay stale at a for good: nothing will name it again.
#[test]
fn a_fetch_is_overtaken_by_an_invalidation() {
    fn story(faults: Faults) -> Told {
        let mut cluster = Cluster::new(faults);
        let b = cluster.node(Who::Origin, ROOM);
        let a = cluster.node(Who::Origin, ROOM);
        cluster.put(b, page(1), 0, "old");
        cluster.hold(Who::Node(a), Way::Down, Lane::Bulk);
        let mut tx = cluster.begin(a).expect("its session is well");
        same("a", &cluster.read(a, &mut tx, page(1), 0), &Err(Stuck::Waits))?;
        cluster.put(b, page(1), 0, "new");
        cluster.release(Who::Node(a));
        same("a", &cluster.read(a, &mut tx, page(1), 0), &text("new"))
    }
    tell(story, &[Fault::ForgetBuffered]);
}

/// The same when there is nothing yet. 1. a asks for a page that was never made; "absent" is under
/// way. 2. b makes the page. 3. "Absent" arrives.
#[test]
fn an_absence_is_overtaken_by_a_creation() {
    fn story(faults: Faults) -> Told {
        let mut cluster = Cluster::new(faults);
        let b = cluster.node(Who::Origin, ROOM);
        let a = cluster.node(Who::Origin, ROOM);
        let mut tx = cluster.begin(b).expect("its session is well");
        let volume = page(1).volume;
        let made = cluster.step(b, &mut tx, |tx| tx.create_pages(volume, PageKind::Slotted, 1));
        let made = page(made.expect("nothing is held up").0);
        cluster.write(b, &mut tx, made, 0, "new");
        cluster.hold(Who::Node(a), Way::Down, Lane::Bulk);
        let mut late = cluster.begin(a).expect("its session is well");
        same("a", &cluster.read(a, &mut late, made, 0), &Err(Stuck::Waits))?;
        assert!(matches!(cluster.commit(b, tx), Some(Outcome::Committed(_))));
        cluster.release(Who::Node(a));
        same("a", &cluster.read(a, &mut late, made, 0), &text("new"))
    }
    tell(story, &[Fault::ForgetBuffered]);
}

/// The same when the entry was evicted. 1. a had page 1 and has evicted it; its notice is owed.
/// 2. a asks for it again; the answer is under way. 3. The notice, sent now, would unregister a for
/// the page that it is about to hold, and b's change would never come; kept back, it comes, and
/// overtakes the page.
#[test]
fn a_fetch_after_an_eviction_is_overtaken_by_an_invalidation() {
    fn story(faults: Faults) -> Told {
        let mut cluster = Cluster::new(faults);
        let b = cluster.node(Who::Origin, ROOM);
        let a = cluster.node(Who::Origin, NO_ROOM);
        cluster.put(b, page(1), 0, "old");
        same("a", &cluster.get(a, page(1), 0), &text("old"))?;
        cluster.hold(Who::Node(a), Way::Down, Lane::Bulk);
        let mut tx = cluster.begin(a).expect("its session is well");
        same("a", &cluster.read(a, &mut tx, page(1), 0), &Err(Stuck::Waits))?;
        cluster.wait(2_000);
        cluster.put(b, page(1), 0, "new");
        cluster.release(Who::Node(a));
        same("a", &cluster.read(a, &mut tx, page(1), 0), &text("new"))
    }
    tell(story, &[Fault::ForgetBuffered, Fault::JoinAcrossNotice]);
}

/// A request joins such a fetch. 1. b, below a relay, asks for page 1; the origin's answer is under
/// way to the relay. 2. c's change passes it. The relay has registered b before it asked, so b hears
/// of it. 3. Another user of b asks for the page and joins the fetch. 4. The answer arrives, older
/// than the change: neither of them may have it as it is.
#[test]
fn a_request_joins_a_fetch_that_was_overtaken() {
    fn story(faults: Faults) -> Told {
        let mut cluster = Cluster::new(faults).with_relay();
        let c = cluster.node(Who::Origin, ROOM);
        let b = cluster.node(Who::Relay, ROOM);
        cluster.put(c, page(1), 0, "old");
        cluster.wait(2_000);
        cluster.hold(Who::Relay, Way::Down, Lane::Bulk);
        let mut first = cluster.begin(b).expect("its session is well");
        same("b", &cluster.read(b, &mut first, page(1), 0), &Err(Stuck::Waits))?;
        cluster.put(c, page(1), 0, "new");
        cluster.wait(2_000);
        let mut second = cluster.begin(b).expect("its session is well");
        same("b", &cluster.read(b, &mut second, page(1), 0), &Err(Stuck::Waits))?;
        cluster.release(Who::Relay);
        same("b", &cluster.read(b, &mut second, page(1), 0), &text("new"))?;
        same("b", &cluster.read(b, &mut first, page(1), 0), &text("new"))
    }
    tell(story, &[Fault::RegisterLate, Fault::ForgetBuffered]);
}

/// A refresh joins one that was sent before. 1. b, below a relay, wants the origin's own state; the
/// relay asks above, and the answer, of stamp 2, is under way. 2. c's commit 3 is done, and c is told
/// so. 3. Another user of the relay, d, wants the state of now. Were it to join b's question, it would
/// be told that it has the latest, and read what c had replaced before.
#[test]
fn a_refresh_joins_an_older_one() {
    fn story(faults: Faults) -> Told {
        let mut cluster = Cluster::new(faults).with_relay();
        let c = cluster.node(Who::Origin, ROOM);
        let b = cluster.node(Who::Relay, ROOM);
        let d = cluster.node(Who::Relay, ROOM);
        cluster.put(c, page(1), 0, "old");
        cluster.wait(2_000);
        same("d", &cluster.get(d, page(1), 0), &text("old"))?;
        cluster.hold(Who::Relay, Way::Down, Lane::Stream);
        let first = cluster.request(b, CacheOp::Refresh { domain: DOMAIN });
        cluster.run();
        let late = cluster.let_one(Who::Relay, Way::Down, Lane::Stream, |cluster| {
            cluster.put(c, page(1), 0, "new");
            cluster.wait(50);
            let late = cluster.request(d, CacheOp::Refresh { domain: DOMAIN });
            cluster.run();
            late
        });
        let told = cluster.reply(b, first);
        same("b", &matches!(told, Some(Ok(CacheReply::Through(_)))), &true)?;
        if cluster.reply(d, late).is_some() {
            same("d, told that it has the latest", &cluster.get(d, page(1), 0), &text("new"))?;
        }
        cluster.release(Who::Relay);
        same("d, at the end", &cluster.get(d, page(1), 0), &text("new"))
    }
    tell(story, &[Fault::RefreshJoined]);
}

/// Below a relay the latest is one round trip away, whatever the relay's own beat is.
#[test]
fn a_refresh_below_a_relay_does_not_wait_for_its_beat() {
    let mut cluster = Cluster::new(Faults::NONE).with_relay();
    let c = cluster.node(Who::Origin, ROOM);
    let b = cluster.node(Who::Relay, ROOM);
    for round in 0..5 {
        cluster.put(c, page(1), 0, &format!("round {round}"));
        // No time passes in which anything could fall due: it is the question that brings the answer.
        let told = cluster.ask(b, CacheOp::Refresh { domain: DOMAIN });
        assert!(matches!(told, Some(Ok(CacheReply::Through(_)))), "{told:?}");
        let wanted = Ok(Some(format!("round {round}")));
        assert_eq!(cluster.get(b, page(1), 0), wanted);
    }
}

/// Lost callbacks on a dead link. 1. a holds page 1. 2. Its line dies; b's changes are sent into it.
/// 3. a returns. It learns of the change though nothing of it is installed yet, and of the next
/// change though its parent knows nothing any more of what it holds.
#[test]
fn callbacks_are_lost_on_a_dead_link() {
    fn story(faults: Faults) -> Told {
        let mut cluster = Cluster::new(faults);
        let b = cluster.node(Who::Origin, ROOM);
        let a = cluster.node(Who::Origin, ROOM);
        cluster.put(b, page(1), 0, "old");
        same("a", &cluster.get(a, page(1), 0), &text("old"))?;
        cluster.hold(Who::Node(a), Way::Down, Lane::Stream);
        cluster.put(b, page(1), 0, "new");
        cluster.put(b, page(1), 1, "more");
        cluster.cut(Who::Node(a));
        same("a, cut off", &cluster.get(a, page(1), 0), &text("old"))?;
        cluster.connect(Who::Node(a));
        cluster.run();
        same("a, returned", &cluster.get(a, page(1), 0), &text("new"))?;
        cluster.cut(Who::Node(a));
        cluster.connect(Who::Node(a));
        cluster.run();
        cluster.put(b, page(1), 0, "newer");
        same("a, later", &cluster.get(a, page(1), 0), &text("newer"))
    }
    tell(story, &[Fault::ResumeForgetsUninstalled, Fault::ResumeRegistersNothing]);
}

/// A name is removed and created again. 1. a keeps a reference to an object. 2. b deletes it and
/// puts another in its slot. 3. a reads, and writes, by its reference: it is gone, at the node and
/// at the origin.
#[test]
fn a_name_is_removed_and_created_again() {
    fn story(faults: Faults) -> Told {
        let mut cluster = Cluster::new(faults);
        let b = cluster.node(Who::Origin, ROOM);
        let a = cluster.node(Who::Origin, ROOM);
        let object = cluster.put(b, page(1), 0, "one");
        same("a", &cluster.get(a, page(1), 0), &text("one"))?;
        let mut tx = cluster.begin(b).expect("its session is well");
        cluster.step(b, &mut tx, |tx| tx.delete_object(object)).expect("it is there");
        assert!(matches!(cluster.commit(b, tx), Some(Outcome::Committed(_))));
        cluster.put(b, page(1), 0, "another");
        let mut tx = cluster.begin(a).expect("its session is well");
        let seen = cluster.step(a, &mut tx, |tx| tx.read_object(object));
        same("a", &seen, &Ok(None))?;
        let written = cluster.step(a, &mut tx, |tx| tx.update_object(object, "mine".into()));
        same("a", &written, &Err(Stuck::Refused(TransactionError::Gone(object))))
    }
    tell(story, &[Fault::IgnoreGeneration]);
}

/// A holder never answers. 1. a holds page 1 and is suspended. 2. b's commit is acknowledged at
/// once: nobody waits for a. 3. a goes on after its lease, and before a word of what it missed has
/// reached it a session that wants current state asks: it is told that the state is too old.
#[test]
fn a_holder_never_answers() {
    fn story(faults: Faults) -> Told {
        let mut cluster = Cluster::new(faults);
        let b = cluster.node(Who::Origin, ROOM);
        let a = cluster.node(Who::Origin, ROOM);
        cluster.put(b, page(1), 0, "old");
        cluster.wait(2_000);
        let options = SessionOptions { age_limit: AgeLimit::Lease, ..SessionOptions::default() };
        *cluster.session(a) = Session::new(options);
        same("a", &cluster.get(a, page(1), 0), &text("old"))?;
        cluster.sleep(a);
        cluster.put(b, page(1), 0, "new");
        cluster.wait(16_000);
        for lane in [Lane::Control, Lane::Stream, Lane::Bulk] {
            cluster.hold(Who::Node(a), Way::Down, lane);
        }
        cluster.wake(a);
        let late = cluster.get(a, page(1), 0);
        let refused = matches!(late, Err(Stuck::Refused(TransactionError::TooOld(_))));
        same("a is told that its state is too old", &refused, &true)?;
        cluster.release(Who::Node(a));
        cluster.wait(2_000);
        same("a", &cluster.get(a, page(1), 0), &text("new"))
    }
    tell(story, &[Fault::ClockStopsAsleep]);
}

/// A rejoining node with diverged state. 1. The origin is restored from a copy, and commits another
/// thing under the stamp that a has seen. 2. a rejoins: it is refused by name. 3. The operator
/// accepts the fork: a's session is told, and a keeps nothing of the lost branch, though no list of
/// changed pages can name what only the lost branch had changed.
#[test]
fn a_node_rejoins_with_diverged_state() {
    fn story(faults: Faults) -> Told {
        let mut cluster = Cluster::new(faults);
        let b = cluster.node(Who::Origin, ROOM);
        let a = cluster.node(Who::Origin, ROOM);
        let mut tx = cluster.begin(b).expect("its session is well");
        let volume = page(1).volume;
        let made = cluster.step(b, &mut tx, |tx| tx.create_pages(volume, PageKind::Slotted, 1));
        let second = page(made.expect("nothing is held up").0);
        cluster.write(b, &mut tx, second, 0, "kept");
        assert!(matches!(cluster.commit(b, tx), Some(Outcome::Committed(_))));
        let copy = cluster.back_up();
        cluster.put(b, second, 0, "lost");
        same("a", &cluster.get(a, second, 0), &text("lost"))?;
        let mut seen = cluster.begin(a).expect("its session is well");
        same("a", &cluster.read(a, &mut seen, second, 0), &text("lost"))?;
        if let Finish::Local { seen, .. } = seen.inner.finish() {
            let _line = cluster.session(a).saw(&seen);
        }
        cluster.stop_origin();
        cluster.restore(copy);
        cluster.start_origin(false);
        let c = cluster.node(Who::Origin, ROOM);
        cluster.put(c, page(1), 0, "other");
        cluster.connect(Who::Node(a));
        cluster.run();
        let refused = matches!(cluster.refused(a), Some(CloseReason::Forked { .. }));
        same("a is refused by name", &refused, &true)?;
        cluster.stop_origin();
        cluster.start_origin(true);
        cluster.connect(Who::Node(a));
        cluster.run();
        let lost = cluster.begin(a).map(|_| ());
        same("a's session", &lost, &Err(BeginError::HistoryLost(DOMAIN)))?;
        *cluster.session(a) = Session::default();
        same("a", &cluster.get(a, page(1), 0), &text("other"))?;
        same("a", &cluster.get(a, second, 0), &text("kept"))
    }
    tell(story, &[Fault::IgnoreFork, Fault::KeepLostCopies]);
}

/// Changes owed to a returning child come before its first request is served. 1. a holds pages 1
/// and 2, which are always alike; a transaction has read page 1. 2. a's line dies; b changes both.
/// 3. a returns, and its transaction asks for page 2 before a word of the answer to its resume has
/// come: it waits, or reads the old one. 4. Then it is doomed: it must not see the new one.
#[test]
fn owed_changes_come_before_the_first_request_is_served() {
    fn story(faults: Faults) -> Told {
        let mut cluster = Cluster::new(faults);
        let b = cluster.node(Who::Origin, ROOM);
        let a = cluster.node(Who::Origin, ROOM);
        let mut tx = cluster.begin(b).expect("its session is well");
        let volume = page(1).volume;
        let made = cluster.step(b, &mut tx, |tx| tx.create_pages(volume, PageKind::Slotted, 1));
        let second = page(made.expect("nothing is held up").0);
        for page in [page(1), second] {
            cluster.write(b, &mut tx, page, 0, "old");
        }
        assert!(matches!(cluster.commit(b, tx), Some(Outcome::Committed(_))));
        let mut reader = cluster.begin(a).expect("its session is well");
        same("a", &cluster.read(a, &mut reader, page(1), 0), &text("old"))?;
        cluster.cut(Who::Node(a));
        let mut tx = cluster.begin(b).expect("its session is well");
        for page in [page(1), second] {
            cluster.write(b, &mut tx, page, 0, "new");
        }
        assert!(matches!(cluster.commit(b, tx), Some(Outcome::Committed(_))));
        cluster.put(b, page(1), 1, "more");
        cluster.connect(Who::Node(a));
        cluster.hold(Who::Node(a), Way::Down, Lane::Stream);
        same("a", &cluster.read(a, &mut reader, second, 0), &Err(Stuck::Waits))?;
        cluster.release(Who::Node(a));
        same("a", &cluster.read(a, &mut reader, second, 0), &Err(Stuck::Doomed))?;
        same("a, again", &cluster.get(a, page(1), 0), &text("new"))?;
        same("a, again", &cluster.get(a, second, 0), &text("new"))
    }
    tell(story, &[Fault::ResumeSparesReaders]);
}

/// And its commits are not done twice. 1. a's commit is executed; the answer is under way when the
/// line dies. 2. a returns and asks again under the same id, with its old base, which its own
/// commit is in conflict with. 3. It is answered from the outcome, also by an origin that has
/// started again meanwhile.
#[test]
fn a_repeated_commit_is_answered_from_its_outcome() {
    fn story(faults: Faults) -> Told {
        let mut cluster = Cluster::new(faults);
        let a = cluster.node(Who::Origin, ROOM);
        for restarts in [false, true] {
            let mut tx = cluster.begin(a).expect("its session is well");
            let before = cluster.read(a, &mut tx, page(1), 0).expect("nothing is held up");
            let after = format!("{}+1", before.unwrap_or_default());
            cluster.write(a, &mut tx, page(1), 0, &after);
            let part = match tx.inner.finish() {
                Finish::Send { mut parts, .. } => parts.pop().expect("one domain"),
                other => panic!("{other:?} is nothing to be sent"),
            };
            for lane in [Lane::Control, Lane::Stream] {
                cluster.hold(Who::Node(a), Way::Down, lane);
            }
            let asked = cluster.request(a, part.into_op());
            cluster.run();
            if restarts {
                cluster.stop_origin();
                cluster.start_origin(false);
            } else {
                cluster.cut(Who::Node(a));
            }
            cluster.connect(Who::Node(a));
            cluster.run();
            let outcome = cluster.reply(a, asked);
            let committed = matches!(outcome, Some(Ok(CacheReply::Outcome(Outcome::Committed(_)))));
            same("a's commit", &committed, &true)?;
            same("a", &cluster.get(a, page(1), 0), &text(&after))?;
        }
        Ok(())
    }
    tell(story, &[Fault::ForgetOutcome, Fault::LoseOutcomes]);
}

/// Answers overtake each other. 1. a asks for pages 1 and 2, one after the other; both answers are
/// under way. 2. b's change of page 1 passes them. 3. Page 2, asked for after the change, comes
/// first: from its as-of nothing follows for page 1, whose older answer is still to come.
#[test]
fn an_answer_is_overtaken_by_a_younger_one() {
    fn story(faults: Faults) -> Told {
        let mut cluster = Cluster::new(faults);
        let b = cluster.node(Who::Origin, ROOM);
        let a = cluster.node(Who::Origin, ROOM);
        cluster.put(b, page(1), 0, "old");
        cluster.hold(Who::Node(a), Way::Down, Lane::Bulk);
        let mut tx = cluster.begin(a).expect("its session is well");
        same("a", &cluster.read(a, &mut tx, page(1), 0), &Err(Stuck::Waits))?;
        cluster.put(b, page(1), 0, "new");
        let pages = vec![page(9)];
        cluster.request(a, CacheOp::Fetch { domain: DOMAIN, pages, prefetch: true });
        cluster.run();
        cluster.overtake(Who::Node(a), Way::Down);
        cluster.release(Who::Node(a));
        same("a", &cluster.read(a, &mut tx, page(1), 0), &text("new"))
    }
    tell(story, &[Fault::AnswersInOrder]);
}
