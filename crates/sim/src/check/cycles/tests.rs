//! Histories written by hand: what is no order of transactions is found, and what is one is not.

use super::{Effect, History, Item, Moment, Part, State, Tx};
use bytes::Bytes;
use larder_core::commit::{Op, Write};
use larder_core::id::{DomainId, Generation, ObjectId, PageId, PageNo, Slot, Stamp, VolumeId};
use std::collections::BTreeMap;

const ONE: DomainId = DomainId(1);
const TWO: DomainId = DomainId(2);

/// The object in a slot of a domain's volume.
fn object(domain: DomainId, slot: u16) -> ObjectId {
    let page = PageId { volume: VolumeId(domain.0.into()), page: PageNo(1) };
    ObjectId { page, slot: Slot(slot), generation: Generation(1) }
}

fn value(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

/// A transaction that took no time, unless it is said when it ended.
struct Told(Tx);

impl Told {
    fn new(who: &str, moment: u64) -> Self {
        Self(Tx {
            who: who.into(),
            tag: None,
            session: 1_000 + moment as usize,
            strict: false,
            begun: Moment(2 * moment),
            ended: Some(Moment(2 * moment + 1)),
            parts: BTreeMap::new(),
        })
    }

    fn part(&mut self, domain: DomainId) -> &mut Part {
        self.0.parts.entry(domain).or_default()
    }

    fn at(mut self, domain: DomainId, stamp: u64) -> Self {
        self.part(domain).stamp = Some(Stamp(stamp));
        self
    }

    fn sees(mut self, domain: DomainId, slot: u16, number: u64) -> Self {
        let state = State::Bytes(value(number));
        self.part(domain).reads.push((Item::Object(object(domain, slot)), state));
        self
    }

    fn puts(self, domain: DomainId, slot: u16, number: u64) -> Self {
        self.does(domain, Effect::Put(object(domain, slot), value(number)))
    }

    fn adds(self, domain: DomainId, slot: u16, number: i64) -> Self {
        self.does(domain, Effect::Add(object(domain, slot), 0, number))
    }

    fn does(mut self, domain: DomainId, effect: Effect) -> Self {
        self.part(domain).effects.push(effect);
        self
    }

    fn writes(mut self, domain: DomainId, slot: u16, generation: Option<u32>) -> Self {
        let object = object(domain, slot);
        let op = match generation {
            Some(generation) => Op::Put {
                slot: object.slot,
                generation: Generation(generation),
                value: Bytes::new(),
            },
            None => Op::Delete { slot: object.slot, generation: object.generation },
        };
        self.part(domain).writes.push(Write { page: object.page, op });
        self
    }

    fn observes(mut self, domain: DomainId, item: Item, state: State) -> Self {
        self.part(domain).reads.push((item, state));
        self
    }

    fn strict(mut self) -> Self {
        self.0.strict = true;
        self
    }

    fn in_session(mut self, session: usize) -> Self {
        self.0.session = session;
        self
    }

    fn until(mut self, moment: u64) -> Self {
        self.0.ended = Some(Moment(2 * moment + 1));
        self
    }
}

/// Two objects with 10 and 20 in them, in each of two domains.
fn base() -> Vec<Told> {
    vec![
        Told::new("base", 0).at(ONE, 1).puts(ONE, 0, 10).puts(ONE, 1, 20),
        Told::new("base", 1).at(TWO, 1).puts(TWO, 0, 10).puts(TWO, 1, 20),
    ]
}

fn check(told: impl IntoIterator<Item = Told>) -> Result<(), String> {
    let mut history = History::default();
    for Told(tx) in base().into_iter().chain(told) {
        history.add(tx);
    }
    history.search()
}

/// What is asked beside the cycle test.
fn check_all(told: impl IntoIterator<Item = Told>) -> Result<(), String> {
    let mut history = History::default();
    for Told(tx) in base().into_iter().chain(told) {
        history.add(tx);
    }
    history.check()
}

#[track_caller]
fn found(told: impl IntoIterator<Item = Told>, words: &[&str]) {
    let text = check(told).expect_err("no order explains it");
    for word in words {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
}

#[track_caller]
fn clean(told: impl IntoIterator<Item = Told>) {
    assert_eq!(check(told), Ok(()));
}

/// Each of two saw both objects and changed one of them.
#[test]
fn write_skew_is_found() {
    let skew = |who, slot, stamp| {
        let seen = Told::new(who, stamp).sees(ONE, 0, 10).sees(ONE, 1, 20);
        seen.puts(ONE, slot, 100 + stamp).at(ONE, stamp)
    };
    found(
        [skew("first", 0, 2), skew("second", 1, 3)],
        &[
            "a cycle of 2 transactions in DomainId(1)",
            "T2 (first, commit 2 of DomainId(1))",
            "T3 (second, commit 3 of DomainId(1)) saw object",
            "as it was before T2",
        ],
    );
}

/// The same over two domains: each of them is in order by itself, together they are not.
#[test]
fn write_skew_over_two_domains_is_found() {
    let skew = |who, home, stamp| {
        let seen = Told::new(who, stamp).sees(ONE, 0, 10).sees(TWO, 0, 10);
        seen.at(ONE, 1).at(TWO, 1).puts(home, 0, 30).at(home, 2)
    };
    found(
        [skew("first", ONE, 2), skew("second", TWO, 3)],
        &["a cycle of 2 transactions over all domains"],
    );
}

/// Both saw 10 and wrote what follows from it.
#[test]
fn a_lost_update_is_found() {
    let update =
        |who, stamp| Told::new(who, stamp).sees(ONE, 0, 10).puts(ONE, 0, 10 + stamp).at(ONE, stamp);
    found([update("first", 2), update("second", 3)], &["a cycle of 2", "before T3 (second"]);
}

/// It was told 10 after somebody was told that 11 is there.
#[test]
fn a_stale_strict_read_is_found() {
    let history = |reader: Told| {
        [Told::new("writer", 2).puts(ONE, 0, 11).at(ONE, 2), reader.sees(ONE, 0, 10).at(ONE, 1)]
    };
    found(history(Told::new("reader", 3).strict()), &["which is strict"]);
    // A session that is not strict may see the past, and one that began before may be in time.
    clean(history(Told::new("reader", 3)));
    clean(history(Told::new("reader", 1).strict().until(4)));
}

/// Two readers see two writers in opposite orders; over two domains, real time says so.
#[test]
fn a_long_fork_is_found() {
    let writer = |who, slot, stamp| Told::new(who, stamp).puts(ONE, slot, 30).at(ONE, stamp);
    let reader =
        |who, one, other| Told::new(who, 9).sees(ONE, 0, one).sees(ONE, 1, other).at(ONE, 3);
    found(
        [writer("w", 0, 2), writer("w", 1, 3), reader("r", 30, 20), reader("s", 10, 30)],
        &["a cycle of 4"],
    );
    clean([writer("w", 0, 2), writer("w", 1, 3), reader("r", 30, 20), reader("s", 30, 30)]);

    let writer = |who, home, moment| Told::new(who, moment).puts(home, 0, 30).at(home, 2);
    let reader = |who, home, moment, seen, stamp| {
        Told::new(who, moment).strict().sees(home, 0, seen).at(home, stamp)
    };
    found(
        [writer("w", ONE, 2), writer("w", TWO, 3), reader("r", TWO, 5, 30, 2), {
            reader("s", ONE, 6, 10, 1)
        }],
        &["which is strict"],
    );
}

/// Each saw what the other wrote (G1c).
#[test]
fn circular_information_is_found() {
    found(
        [
            Told::new("first", 2).sees(ONE, 1, 31).puts(ONE, 0, 30).at(ONE, 2),
            Told::new("second", 3).sees(ONE, 0, 30).puts(ONE, 1, 31).at(ONE, 3),
        ],
        &["a cycle of 2", "with what"],
    );
}

#[test]
fn a_value_that_nobody_committed_is_found() {
    let seen = Told::new("reader", 2).sees(ONE, 0, 99).at(ONE, 1);
    found([seen], &["which nobody committed"]);
    let mut aborted = Told::new("writer", 2).puts(ONE, 0, 99);
    aborted.0.ended = None;
    found([aborted, Told::new("reader", 3).sees(ONE, 0, 99).at(ONE, 1)], &["nobody committed"]);
}

/// A writer's user was told where it was done but for a domain that had forgotten its process: what it did there was
/// taken for nobody's, though the log has it (seed 10582).
#[test]
fn what_a_domain_has_forgotten_is_learned() {
    let mut history = History::default();
    for told in base() {
        history.add(told.0);
    }
    let mut writer = Told::new("writer", 2).puts(ONE, 0, 30).puts(TWO, 0, 31);
    (writer.0.tag, writer.0.ended) = (Some(7), None);
    history.add(writer.0);
    history.committed(7, &[(ONE, Stamp(2))]);
    history.add(Told::new("reader", 40).sees(TWO, 0, 31).at(TWO, 5).0);
    history.learn(|_, domain| Some(Stamp(if domain == TWO { 5 } else { 9 })));
    assert_eq!(history.search(), Ok(()), "it was done in both");
}

/// Two found a slot empty, and each filled another: their absences are reads.
#[test]
fn a_missed_creation_is_found() {
    let filler = |who, sees: u16, fills: u16, stamp| {
        let item = Item::Slot(object(ONE, 0).page, Slot(sees));
        let told = Told::new(who, stamp).observes(ONE, item, State::Absent);
        told.writes(ONE, fills, Some(1)).at(ONE, stamp)
    };
    found([filler("first", 6, 5, 2), filler("second", 5, 6, 3)], &["a cycle of 2", "slot 5"]);
    clean([filler("first", 6, 5, 2), filler("second", 7, 6, 3)]);
}

/// Two listed a page and made something in it: neither is in the other's list.
#[test]
fn a_missed_entry_of_a_list_is_found() {
    let maker = |who, slot, stamp, list: &[u16]| {
        let list = list.iter().map(|slot| (Slot(*slot), Generation(1))).collect();
        let item = Item::List(object(ONE, 0).page);
        let told = Told::new(who, stamp).observes(ONE, item, State::Listed(list));
        told.writes(ONE, slot, Some(1)).at(ONE, stamp)
    };
    found(
        [maker("first", 5, 2, &[]), maker("second", 6, 3, &[])],
        &["a cycle of 2", "the list of"],
    );
    clean([maker("first", 5, 2, &[]), maker("second", 6, 3, &[5])]);
}

/// Additions commute: two that saw each other's objects unchanged are in order when only one of
/// them matters, and those who see a sum come after its parts and before the next.
#[test]
fn additions_commute_and_sums_do_not() {
    let add = |who, stamp| Told::new(who, stamp).adds(ONE, 0, 1 << stamp).at(ONE, stamp);
    let reader = |who, sum, stamp| Told::new(who, 20 + stamp).sees(ONE, 0, sum).at(ONE, stamp);
    clean([add("a", 2), add("b", 3), reader("r", 14, 2), reader("s", 22, 3)]);
    // Somebody who read the old value adds to it: before or after the other, it is all the same.
    clean([add("a", 2), add("b", 3).sees(ONE, 0, 10)]);
    // Who overwrites it after somebody has added to it has lost that.
    let late = Told::new("late", 3).sees(ONE, 0, 10).puts(ONE, 0, 40).at(ONE, 3);
    found([add("a", 2), late], &["a cycle of 2"]);
    // One saw only a's addition; another says b was done before a.
    let witness = Told::new("witness", 5).sees(ONE, 0, 14).puts(ONE, 1, 50).at(ONE, 4);
    let b = Told::new("b", 3).sees(ONE, 1, 50).adds(ONE, 0, 8).at(ONE, 3);
    clean([add("a", 2), witness, b]);
    let witness = Told::new("witness", 5).sees(ONE, 0, 14).puts(ONE, 1, 50).at(ONE, 4);
    let reader = Told::new("reader", 6).sees(ONE, 0, 22).sees(ONE, 1, 20).at(ONE, 3);
    found(
        [add("a", 2), add("b", 3), witness, reader, {
            Told::new("other", 7).sees(ONE, 1, 50).sees(ONE, 0, 10).at(ONE, 1)
        }],
        &["a cycle"],
    );
}

/// A session sees no less than it has seen; that is promised for each domain.
#[test]
fn a_session_that_goes_back_is_found() {
    let history = |home, stamp, seen| {
        let writer = Told::new("writer", 2).puts(ONE, 0, 11).at(ONE, 2);
        let first = Told::new("reader", 3).sees(ONE, 0, 11).at(ONE, 2).in_session(7);
        let then = Told::new("reader", 4).sees(home, 0, seen).at(home, stamp).in_session(7);
        [writer, first, then]
    };
    found(history(ONE, 1, 10), &["of its session began"]);
    clean(history(ONE, 2, 11));
    clean(history(TWO, 1, 10));
}

/// A reader of several domains is labelled as per-domain: each part is in order by itself.
#[test]
fn a_reader_of_two_domains_is_in_order_in_each() {
    let writer = |who, home, moment| Told::new(who, moment).strict().puts(home, 0, 30).at(home, 2);
    let reader = |one, other, stamp, another| {
        let told = Told::new("reader", 9).sees(ONE, 0, one).sees(TWO, 0, other);
        told.at(ONE, stamp).at(TWO, another)
    };
    let history = |reader| [writer("w", ONE, 2), writer("w", TWO, 3), reader];
    clean(history(reader(30, 10, 2, 1)));
    clean(history(reader(10, 30, 1, 2)));
}

#[test]
fn two_commits_of_a_stamp_are_found() {
    let writer = |who, slot| Told::new(who, 2).puts(ONE, slot, 30).at(ONE, 2);
    found([writer("first", 0), writer("second", 1)], &["both are commit 2"]);
}

/// What was lost with an old copy of the origin is no part of the history, nor is who saw it; what
/// comes under the same stamps is.
#[test]
fn a_restore_begins_another_history() {
    let mut history = History::default();
    let mut lost = Told::new("lost", 2).puts(ONE, 0, 11).at(ONE, 2);
    lost.0.tag = Some(7);
    let mut kept = base();
    kept[0].0.tag = Some(1);
    kept[1].0.tag = Some(2);
    let saw = Told::new("reader", 3).sees(ONE, 0, 11).at(ONE, 2);
    for Told(tx) in kept.into_iter().chain([lost, saw]) {
        history.add(tx);
    }
    assert_eq!(history.check(), Ok(()));
    history.restored(ONE);
    history.learn(|tag, _| (tag == 1).then_some(Stamp(1)));
    history.add(Told::new("again", 4).sees(ONE, 0, 10).puts(ONE, 0, 12).at(ONE, 2).0);
    assert_eq!(history.check(), Ok(()));
    history.add(Told::new("late", 5).sees(ONE, 0, 11).at(ONE, 2).0);
    assert!(history.check().is_err(), "what is lost is not seen any more");
}

/// No cycle shows it, since nobody saw both: but the reader was told that it saw the state of 2.
#[test]
fn a_read_of_another_state_than_was_told_is_found() {
    let history = |stamp: u64, seen: u64| {
        let writer = Told::new("writer", 2).puts(ONE, 0, 11).at(ONE, 2);
        [writer, Told::new("reader", 3).sees(ONE, 0, seen).at(ONE, stamp)]
    };
    assert_eq!(check(history(2, 10)), Ok(()));
    let text = check_all(history(2, 10)).expect_err("10 was overwritten at 2");
    assert!(text.starts_with("P5: T3 (reader, reads at 2 of DomainId(1)) says"), "{text}");
    assert!(check_all(history(1, 11)).is_err(), "11 was not there yet");
    assert_eq!(check_all(history(1, 10)), Ok(()));
    assert_eq!(check_all(history(2, 11)), Ok(()));
}

/// What it saw was the same at both stamps: the stamps say that it went back.
#[test]
fn a_session_that_is_told_an_older_stamp_is_found() {
    let history = |then: u64, after: u64, home| {
        let writer = Told::new("writer", 2).puts(ONE, 0, 11).at(ONE, 2);
        let first = Told::new("first", 3).sees(ONE, 1, 20).at(ONE, 2).in_session(7);
        let then = Told::new("then", after).sees(home, 1, 20).at(home, then).in_session(7);
        [writer, first, then]
    };
    assert_eq!(check(history(1, 4, ONE)), Ok(()));
    let text = check_all(history(1, 4, ONE)).expect_err("it was at 2 before");
    assert!(text.starts_with("P4: T4 (then"), "{text}");
    assert_eq!(check_all(history(2, 4, ONE)), Ok(()));
    assert_eq!(check_all(history(1, 4, TWO)), Ok(()), "domains are apart");
    // One that began before the other was done says nothing about it.
    let [writer, first, then] = history(1, 4, ONE);
    assert_eq!(check_all([writer, first.until(9), then]), Ok(()));
}
