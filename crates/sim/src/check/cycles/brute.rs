//! The cycle test against all orders: of small histories drawn at random, those and only those are
//! found wrong that no order of their transactions explains, when it is played step by step.

use super::{Effect, History, Item, Moment, Part, State, Tx};
use bytes::Bytes;
use larder_core::commit::{Op, Write};
use larder_core::id::{DomainId, Generation, ObjectId, PageId, PageNo, Slot, Stamp, VolumeId};
use larder_core::rng::Rng;
use std::collections::{BTreeMap, BTreeSet};

/// Objects of a domain: in those of even number values are put, to the others numbers are added.
const OBJECTS: u16 = 4;
/// Slots of a domain's page that are filled: all together are its list.
const SLOTS: u16 = 2;
const TRANSACTIONS_MAX: u64 = 6;
const HISTORIES: u64 = 4_000;

fn page(domain: DomainId) -> PageId {
    PageId { volume: VolumeId(domain.0.into()), page: PageNo(1) }
}

fn object(domain: DomainId, slot: u16) -> ObjectId {
    ObjectId { page: page(domain), slot: Slot(100 + slot), generation: Generation(1) }
}

fn value(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

/// What a domain holds while an order is played.
#[derive(Clone, Default)]
struct Held {
    numbers: BTreeMap<u16, u64>,
    slots: BTreeMap<u16, u32>,
}

impl Held {
    fn apply(&mut self, part: &Part) {
        for effect in &part.effects {
            match effect {
                Effect::Put(object, bytes) => {
                    let bytes = bytes.as_ref().try_into().expect("eight bytes");
                    self.numbers.insert(object.slot.0, u64::from_le_bytes(bytes));
                }
                Effect::Add(object, _, delta) => {
                    *self.numbers.entry(object.slot.0).or_default() += *delta as u64;
                }
                other => unreachable!("{other:?} is not drawn"),
            }
        }
        for write in &part.writes {
            let Op::Put { slot, generation, .. } = &write.op else {
                unreachable!("only slots are filled");
            };
            self.slots.insert(slot.0, generation.0);
        }
    }

    fn shows(&self, item: &Item, state: &State) -> bool {
        let shown = match item {
            Item::Object(object) => match self.numbers.get(&object.slot.0) {
                Some(number) => State::Bytes(value(*number)),
                None => State::Absent,
            },
            Item::Slot(_, slot) => match self.slots.get(&slot.0) {
                Some(generation) => State::Held(Generation(*generation)),
                None => State::Absent,
            },
            Item::List(_) => {
                let list = self.slots.iter();
                State::Listed(list.map(|(slot, held)| (Slot(*slot), Generation(*held))).collect())
            }
            Item::Raw(page) => unreachable!("{page} is not drawn"),
        };
        shown == *state
    }
}

/// A history under construction: who writes what as which commit is drawn first, and then what
/// everybody saw: of each item the state after some of its writers, in the order of their stamps.
#[derive(Debug)]
struct Drawn {
    domains: Vec<DomainId>,
    txs: Vec<Tx>,
}

fn draw(rng: &mut Rng) -> Drawn {
    let domains: Vec<DomainId> = (1..=1 + rng.below(2)).map(DomainId).collect();
    let count = 2 + rng.below(TRANSACTIONS_MAX - 1);
    let mut txs = vec![filler(&domains)];
    let mut moments: Vec<u64> = (10..10 + 2 * count).collect();
    for place in 0..moments.len() {
        let other = rng.below(2 * count) as usize;
        moments.swap(place, other);
    }
    let mut stamps = BTreeMap::new();
    for number in 0..count {
        let pair = [moments[2 * number as usize], moments[2 * number as usize + 1]];
        let session = if rng.chance(1, 3) { 1 } else { 10 + number as usize };
        txs.push(Tx {
            who: format!("tx {number}"),
            tag: None,
            session,
            strict: rng.chance(1, 3),
            begun: Moment(pair[0].min(pair[1])),
            ended: rng.chance(5, 6).then_some(Moment(pair[0].max(pair[1]))),
            parts: BTreeMap::new(),
        });
    }
    for tx in &mut txs[1..] {
        if rng.chance(2, 3) {
            let domain = domains[rng.below(domains.len() as u64) as usize];
            let stamp = stamps.entry(domain).or_insert(1);
            *stamp += 1;
            draw_writes(rng, domain, *stamp, tx);
        }
    }
    let after = states(&domains, &txs);
    for number in 1..txs.len() {
        draw_reads(rng, &domains, &after, &mut txs, number);
    }
    Drawn { domains, txs }
}

/// Zero in every object to which numbers are added.
fn filler(domains: &[DomainId]) -> Tx {
    let mut parts = BTreeMap::new();
    for domain in domains {
        let zero = |slot| Effect::Put(object(*domain, slot), value(0));
        let effects = (0..OBJECTS).filter(|slot| slot % 2 == 1).map(zero).collect();
        parts.insert(*domain, Part { stamp: Some(Stamp(1)), effects, ..Part::default() });
    }
    let (begun, ended) = (Moment(1), Some(Moment(2)));
    Tx { who: "filler".into(), tag: None, session: 0, strict: false, begun, ended, parts }
}

fn draw_writes(rng: &mut Rng, domain: DomainId, stamp: u64, tx: &mut Tx) {
    let mut part = Part { stamp: Some(Stamp(stamp)), ..Part::default() };
    for slot in 0..OBJECTS {
        if rng.chance(1, 3) {
            let object = object(domain, slot);
            let put = slot.is_multiple_of(2) || rng.chance(1, 4);
            // No sum of some of them is another's value.
            let number = 1 << (8 + stamp);
            part.effects.push(match put {
                true => Effect::Put(object, value(number | 1 << (30 + stamp))),
                false => Effect::Add(object, 0, number as i64),
            });
        }
    }
    for slot in (0..SLOTS).filter(|_| rng.chance(1, 3)) {
        let generation = Generation(stamp as u32);
        let op = Op::Put { slot: Slot(slot), generation, value: Bytes::new() };
        part.writes.push(Write { page: page(domain), op });
    }
    if part.writes() {
        tx.parts.insert(domain, part);
    }
}

/// The states of every item: who made each, and what it is after that.
type States = BTreeMap<(DomainId, Item), Vec<(Option<usize>, State)>>;

fn states(domains: &[DomainId], txs: &[Tx]) -> States {
    let mut states = States::new();
    for domain in domains {
        let of_domain = |(number, tx): (usize, &Tx)| {
            let part = tx.parts.get(domain)?.clone();
            Some((part.stamp?, number, part))
        };
        let mut writers: Vec<(Stamp, usize, Part)> =
            txs.iter().enumerate().filter_map(of_domain).collect();
        writers.sort_by_key(|(stamp, ..)| *stamp);
        let objects = (0..OBJECTS).map(|slot| Item::Object(object(*domain, slot)));
        let slots = (0..SLOTS).map(|slot| Item::Slot(page(*domain), Slot(slot)));
        for item in objects.chain(slots).chain([Item::List(page(*domain))]) {
            let mut held = Held::default();
            let mut list = vec![(None, item.first_state())];
            for (_, number, part) in &writers {
                held.apply(part);
                let state = shown(&held, &item);
                if list.last().is_none_or(|(_, last)| *last != state) {
                    list.push((Some(*number), state));
                }
            }
            states.insert((*domain, item), list);
        }
    }
    states
}

fn shown(held: &Held, item: &Item) -> State {
    match item {
        Item::Object(object) => {
            held.numbers.get(&object.slot.0).map_or(State::Absent, |n| State::Bytes(value(*n)))
        }
        Item::Slot(_, slot) => {
            held.slots.get(&slot.0).map_or(State::Absent, |held| State::Held(Generation(*held)))
        }
        _ => State::Listed(held.slots.iter().map(|(s, g)| (Slot(*s), Generation(*g))).collect()),
    }
}

fn draw_reads(rng: &mut Rng, domains: &[DomainId], after: &States, txs: &mut [Tx], number: usize) {
    let wide = rng.chance(1, 4);
    let only = domains[rng.below(domains.len() as u64) as usize];
    let of_domain = |home: &DomainId| wide || *home == only;
    // Most see what is nearly right: the last state, or that before their own write.
    let slip = 2 + rng.below(4);
    for ((domain, item), list) in after.iter().filter(|((home, _), _)| of_domain(home)) {
        if rng.chance(1, 2) {
            continue;
        }
        let own = list.iter().position(|(by, _)| *by == Some(number));
        let last = own.map_or(list.len() - 1, |own| own - 1);
        let seen = match rng.chance(1, slip) {
            true => rng.below(list.len() as u64) as usize,
            false => last.min(list.len() - 1),
        };
        // What it wrote itself is no read.
        if own == Some(seen) {
            continue;
        }
        let part = txs[number].parts.entry(*domain).or_default();
        part.stamp.get_or_insert(Stamp(1));
        part.reads.push((*item, list[seen].1.clone()));
    }
}

impl Drawn {
    /// Whether some order of those who take part explains all that they saw.
    fn is_explained(&self, domain: Option<DomainId>) -> bool {
        let takes_part = |tx: &&Tx| match domain {
            Some(domain) => tx.parts.contains_key(&domain),
            None => !tx.is_per_domain(),
        };
        let txs: Vec<&Tx> = self.txs.iter().filter(takes_part).collect();
        let before = |a: &Tx, b: &Tx| {
            let binds =
                b.strict && (a.strict || a.writes()) || domain.is_some() && a.session == b.session;
            binds && a.ended.is_some_and(|ended| ended < b.begun) || must_precede(a, b, domain)
        };
        let mut left: Vec<&Tx> = txs;
        self.goes_on(domain, &BTreeMap::new(), &mut left, &before)
    }

    /// Whether those who are left can come one after the other.
    fn goes_on(
        &self,
        domain: Option<DomainId>,
        held: &BTreeMap<DomainId, Held>,
        left: &mut Vec<&Tx>,
        before: &impl Fn(&Tx, &Tx) -> bool,
    ) -> bool {
        if left.is_empty() {
            return true;
        }
        for place in 0..left.len() {
            let tx = left.remove(place);
            let mut next = held.clone();
            let home = |other: &DomainId| domain.is_none_or(|domain| domain == *other);
            let mut parts = tx.parts.iter().filter(|(other, _)| home(other));
            let fits = !left.iter().any(|other| before(other, tx))
                && parts.all(|(domain, part)| {
                    let held = next.entry(*domain).or_default();
                    let fits = part.reads.iter().all(|(item, state)| held.shows(item, state));
                    held.apply(part);
                    fits
                });
            let explained = fits && self.goes_on(domain, &next, left, before);
            left.insert(place, tx);
            if explained {
                return true;
            }
        }
        false
    }
}

/// Writers of one item are in the order of their stamps, unless both of them add to it.
fn must_precede(a: &Tx, b: &Tx, domain: Option<DomainId>) -> bool {
    let home = |other: &DomainId| domain.is_none_or(|domain| domain == *other);
    a.parts.iter().filter(|(other, _)| home(other)).any(|(domain, one)| {
        let Some(other) = b.parts.get(domain) else {
            return false;
        };
        one.writes() && other.writes() && one.stamp < other.stamp && conflict(one, other)
    })
}

fn conflict(one: &Part, other: &Part) -> bool {
    let wrote = |part: &Part| -> BTreeMap<u16, bool> {
        let objects = part.effects.iter().map(|effect| match effect {
            Effect::Put(object, _) => (object.slot.0, false),
            Effect::Add(object, ..) => (object.slot.0, true),
            other => unreachable!("{other:?} is not drawn"),
        });
        let slots = part.writes.iter().map(|write| match &write.op {
            Op::Put { slot, .. } => (slot.0, false),
            other => unreachable!("{other:?} is not drawn"),
        });
        objects.chain(slots).collect()
    };
    let (one, other) = (wrote(one), wrote(other));
    one.iter().any(|(slot, adds)| other.get(slot).is_some_and(|also| !(*adds && *also)))
}

#[test]
fn the_cycle_test_finds_what_no_order_explains_and_nothing_else() {
    let mut found = BTreeSet::new();
    let mut wrong = 0;
    for seed in 0..HISTORIES {
        let drawn = draw(&mut Rng::new(seed));
        let mut domains: Vec<Option<DomainId>> = drawn.domains.iter().copied().map(Some).collect();
        domains.push(None);
        let explained = domains.iter().all(|domain| drawn.is_explained(*domain));
        let mut history = History::default();
        drawn.txs.iter().for_each(|tx| history.add(tx.clone()));
        let checked = history.search();
        assert_eq!(checked.is_ok(), explained, "seed {seed}: {checked:?} of {:#?}", drawn.txs);
        wrong += u64::from(!explained);
        if let Err(text) = checked {
            found.insert(text.matches('\n').count());
        }
    }
    assert!((HISTORIES / 10..HISTORIES * 9 / 10).contains(&wrong), "{wrong} are wrong");
    assert!(found.len() > 3, "cycles of different lengths: {found:?}");
}

/// What others wrote says the same, as far as it can be told: of values that are put and slots that are
/// filled, and of real time for all.
#[cfg(feature = "second-opinion")]
#[test]
fn a_second_opinion_agrees() {
    let mut wrong = 0;
    for seed in 0..HISTORIES {
        let mut drawn = draw(&mut Rng::new(seed));
        let strict = seed.is_multiple_of(2);
        for (number, tx) in drawn.txs.iter_mut().enumerate() {
            (tx.strict, tx.session) = (strict, number);
            // It holds all writers to real time.
            tx.ended = tx.ended.filter(|_| strict);
            for part in tx.parts.values_mut() {
                part.effects.retain(|effect| matches!(effect, Effect::Put(..)));
                part.reads.retain(|(item, _)| {
                    !matches!(item, Item::List(_))
                        && !matches!(item, Item::Object(object) if object.slot.0 % 2 == 1)
                });
            }
            tx.parts.retain(|_, part| part.writes() || !part.reads.is_empty());
        }
        // A reader of several domains is two for it.
        drawn.txs.retain(|tx| !tx.is_per_domain());
        let history = |judges| {
            let mut history = History::judged_by(judges);
            drawn.txs.iter().for_each(|tx| history.add(tx.clone()));
            history
        };
        let ours = history(super::Judges::Ours).search();
        let theirs = history(super::Judges::Theirs).check();
        assert_eq!(ours.is_ok(), theirs.is_ok(), "seed {seed}: {ours:?}, {theirs:?}: {drawn:#?}");
        wrong += u64::from(ours.is_err());
    }
    assert!((HISTORIES / 10..HISTORIES * 9 / 10).contains(&wrong), "{wrong} are wrong");
}
