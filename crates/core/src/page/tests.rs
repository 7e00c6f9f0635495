use super::*;
use crate::id::{ObjectId, PageNo, VolumeId};
use proptest::prelude::*;
use std::collections::BTreeMap;

const PAGE_BYTES: u32 = 4096;

fn id() -> PageId {
    PageId { volume: VolumeId(7), page: PageNo(9) }
}

fn inline_record(value: &[u8]) -> Bytes {
    Record::Inline(Bytes::copy_from_slice(value)).encode()
}

fn put(slot: u16, generation: u32, value: &[u8]) -> Op {
    Op::Put { slot: Slot(slot), generation: Generation(generation), value: inline_record(value) }
}

fn delete(slot: u16, generation: u32) -> Op {
    Op::Delete { slot: Slot(slot), generation: Generation(generation) }
}

fn slotted_page(ops: &[Op]) -> Page {
    let mut page = Page::empty(PageKind::Slotted);
    for op in ops {
        page.apply(op, PAGE_BYTES).expect("the test's ops apply");
    }
    page
}

#[test]
fn an_almost_empty_page_is_short() {
    let page = slotted_page(&[put(40_000, 1, b"hello")]);
    assert_eq!(page.encode(id()).len(), HEADER_BYTES + ENTRY_BYTES + 6);
    assert_eq!(Page::empty(PageKind::Slotted).encode(id()).len(), HEADER_BYTES);
}

#[test]
fn a_page_of_another_id_does_not_check() {
    let image = slotted_page(&[put(1, 1, b"hello")]).encode(id());
    let other = PageId { volume: VolumeId(7), page: PageNo(10) };
    assert!(matches!(Page::decode(other, image), Err(PageError::Damaged(_))));
}

#[test]
fn sealing_makes_the_next_encode_free_and_changes_nothing() {
    let mut page = slotted_page(&[put(5, 1, b"five"), put(1, 1, b"one"), put(5, 1, b"5")]);
    let before = page.clone();
    let image = page.seal(id());
    assert_eq!(page, before);
    assert_eq!(page.encode(id()).as_ptr(), image.as_ptr());
    assert_eq!(before.encode(id()), image);
    page.apply(&put(2, 1, b"two"), PAGE_BYTES).expect("fits");
    assert_ne!(page.encode(id()), image);
}

#[test]
fn generations_go_on_after_deletion() {
    let mut page = slotted_page(&[put(3, 1, b"a"), delete(3, 1)]);
    assert_eq!(page.next_generation(Slot(3)), Some(Generation(2)));
    assert_eq!(page.apply(&put(3, 1, b"b"), PAGE_BYTES), Err(OpError::Gone));
    assert_eq!(page.apply(&put(3, 3, b"b"), PAGE_BYTES), Err(OpError::Malformed));
    assert_eq!(page.apply(&delete(3, 1), PAGE_BYTES), Err(OpError::Gone));
    page.apply(&put(3, 2, b"b"), PAGE_BYTES).expect("the next generation");
    assert_eq!(page.apply(&delete(3, 1), PAGE_BYTES), Err(OpError::Gone));
}

/// A page that sees many names come and go forgets their generations, and says so: the next
/// generation of slots that nobody named is another one afterwards.
#[test]
fn forgetting_generations_touches_the_page() {
    let mut page = Page::empty(PageKind::Slotted);
    let mut forgot = 0;
    for slot in 0..200 {
        let generation = page.next_generation(Slot(slot)).expect("empty");
        page.apply(&put(slot, generation.0, b"x"), PAGE_BYTES).expect("fits");
        let touched = page.apply(&delete(slot, generation.0), PAGE_BYTES).expect("there");
        forgot += u32::from(touched == (Target::Page, Aspect::Existence));
    }
    assert!((1..20).contains(&forgot), "{forgot}");
    assert!(page.encode(id()).len() < PAGE_BYTES as usize / 4);
    for slot in 0..300 {
        assert!(page.next_generation(Slot(slot)) > Some(Generation(1)), "slot {slot}");
    }
}

#[test]
fn a_forward_fits_in_a_full_page() {
    let mut page = Page::empty(PageKind::Slotted);
    let mut slot = 0;
    while page.apply(&put(slot, 1, b"tiny"), PAGE_BYTES) != Err(OpError::Full) {
        slot += 1;
    }
    assert_eq!(page.free_bytes(PAGE_BYTES), 0);
    let forward =
        Record::Forward(ObjectId { page: id(), slot: Slot(1), generation: Generation(1) });
    for slot in 0..slot {
        let op = Op::Put { slot: Slot(slot), generation: Generation(1), value: forward.encode() };
        let touched = page.apply(&op, PAGE_BYTES);
        assert_eq!(touched, Ok((Target::Slot(Slot(slot)), Aspect::Existence)));
    }
    assert!(page.encode(id()).len() <= PAGE_BYTES as usize);
}

#[test]
fn the_last_generation_retires_its_slot() {
    // Built by hand: nobody deletes 2^32 times.
    let page = slotted_page(&[put(0, 1, b"x"), put(1, 1, b"y")]);
    let mut image = page.encode(id()).to_vec();
    image[HEADER_BYTES + 2..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
    let crc = checksum(seed(id()), &image);
    image[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    let mut page = Page::decode(id(), image.into()).expect("valid");
    page.apply(&delete(0, u32::MAX), PAGE_BYTES).expect("there");
    assert_eq!(page.next_generation(Slot(0)), None);
    assert_eq!(page.free_slot(), Some(Slot(2)));
    assert_eq!(page.apply(&put(0, 1, b"z"), PAGE_BYTES), Err(OpError::Gone));
}

#[test]
fn additions_and_maxima_work_on_inline_bytes() {
    let mut page = slotted_page(&[put(0, 1, &[0xff; 12])]);
    let (slot, generation) = (Slot(0), Generation(1));
    let add = |offset, delta| Op::Add { slot, generation, offset, delta };
    let max = |offset, value| Op::Max { slot, generation, offset, value };
    page.apply(&add(4, 2), PAGE_BYTES).expect("in bounds");
    page.apply(&max(4, 1), PAGE_BYTES).expect("in bounds");
    page.apply(&max(4, 77), PAGE_BYTES).expect("in bounds");
    assert_eq!(page.apply(&add(5, 1), PAGE_BYTES), Err(OpError::Malformed));
    assert_eq!(page.apply(&add(u32::MAX, 1), PAGE_BYTES), Err(OpError::Malformed));
    let (_, record) = page.get_ref(slot).expect("filled");
    let value = inline(record).expect("inline");
    assert_eq!(&value[..4], &[0xff; 4]);
    assert_eq!(number(value, 4), Some(77));
}

#[test]
fn raw_pages_grow_and_shrink() {
    let mut page = Page::empty(PageKind::Raw);
    let write =
        |offset, bytes: &'static [u8]| Op::WriteRaw { offset, bytes: Bytes::from_static(bytes) };
    page.apply(&write(4, b"abc"), PAGE_BYTES).expect("fits");
    assert_eq!(page.raw().expect("raw"), &b"\0\0\0\0abc"[..]);
    let snapshot = page.clone();
    page.apply(&write(1, b"xy"), PAGE_BYTES).expect("fits");
    page.apply(&Op::TruncateRaw { length: 5 }, PAGE_BYTES).expect("fits");
    assert_eq!(page.raw().expect("raw"), &b"\0xy\0a"[..]);
    assert_eq!(snapshot.raw().expect("raw"), &b"\0\0\0\0abc"[..]);
    let last = PAGE_BYTES - HEADER_BYTES as u32;
    assert_eq!(page.apply(&write(last, b"x"), PAGE_BYTES), Err(OpError::Malformed));
    page.apply(&write(last - 1, b"x"), PAGE_BYTES).expect("fits");
    assert_eq!(page.encode(id()).len(), PAGE_BYTES as usize);
    let decoded = Page::decode(id(), page.encode(id())).expect("valid");
    assert_eq!(decoded, page);
    assert_eq!(page.apply(&put(0, 1, b"x"), PAGE_BYTES), Err(OpError::Kind));
}

#[test]
fn ops_on_an_unshared_page_stay_in_place() {
    let mut page = slotted_page(&[put(0, 1, &[1; 100]), put(1, 1, &[2; 100])]);
    let before = page.bytes.as_ptr();
    page.apply(&put(0, 1, &[3; 90]), PAGE_BYTES).expect("fits");
    assert_eq!(page.bytes.as_ptr(), before);
    let shared = page.clone();
    page.apply(&put(0, 1, &[4; 90]), PAGE_BYTES).expect("fits");
    assert_ne!(page.bytes.as_ptr(), before);
    assert_eq!(shared.get_ref(Slot(0)).expect("filled").1[1..], [3; 90]);
}

#[test]
fn other_formats_are_named() {
    let mut image = Page::empty(PageKind::Raw).encode(id()).to_vec();
    image[4] = 9;
    let error = Page::decode(id(), image.into()).expect_err("format 9");
    assert_eq!(error.to_string(), "page format 9; this version reads 1 to 1");
}

/// A random step; slots from a small set so that they meet.
#[derive(Clone, Debug)]
enum Step {
    Put(u16, Vec<u8>),
    Forward(u16),
    Delete(u16),
    Add(u16, u32, i64),
    Max(u16, u32, u64),
    Reload,
    Share,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let slot = prop_oneof![4 => 0..20u16, 2 => 0..300u16, 1 => 65_530..=u16::MAX];
    let value = prop_oneof![
        6 => prop::collection::vec(any::<u8>(), 0..60),
        1 => prop::collection::vec(any::<u8>(), 0..1500),
    ];
    let step = prop_oneof![
        8 => (slot.clone(), value).prop_map(|(slot, value)| Step::Put(slot, value)),
        1 => slot.clone().prop_map(Step::Forward),
        6 => slot.clone().prop_map(Step::Delete),
        1 => (slot.clone(), 0..40u32, any::<i64>()).prop_map(|(s, o, d)| Step::Add(s, o, d)),
        1 => (slot, 0..40u32, any::<u64>()).prop_map(|(s, o, v)| Step::Max(s, o, v)),
        1 => Just(Step::Reload),
        1 => Just(Step::Share),
    ];
    prop::collection::vec(step, 1..300)
}

#[derive(Default)]
struct Model {
    objects: BTreeMap<u16, (u32, Vec<u8>)>,
    /// The highest generation each slot ever had.
    used: BTreeMap<u16, u32>,
}

impl Model {
    fn op(&self, page: &Page, step: &Step) -> Option<Op> {
        let held = |slot: &u16| {
            let generation = self.objects.get(slot).map(|object| Generation(object.0));
            (Slot(*slot), generation)
        };
        let fresh = |slot: &u16| match held(slot) {
            (slot, Some(generation)) => Some((slot, generation)),
            (slot, None) => page.next_generation(slot).map(|generation| (slot, generation)),
        };
        Some(match step {
            Step::Put(slot, value) => {
                let (slot, generation) = fresh(slot)?;
                Op::Put { slot, generation, value: inline_record(value) }
            }
            Step::Forward(slot) => {
                let (slot, generation) = fresh(slot)?;
                let there = ObjectId { page: id(), slot, generation: Generation(1) };
                Op::Put { slot, generation, value: Record::Forward(there).encode() }
            }
            Step::Delete(slot) => {
                let (slot, generation) = held(slot);
                Op::Delete { slot, generation: generation.unwrap_or(Generation(1)) }
            }
            Step::Add(slot, offset, delta) => {
                let (slot, generation) = held(slot);
                Op::Add { slot, generation: generation?, offset: *offset, delta: *delta }
            }
            Step::Max(slot, offset, value) => {
                let (slot, generation) = held(slot);
                Op::Max { slot, generation: generation?, offset: *offset, value: *value }
            }
            Step::Reload | Step::Share => return None,
        })
    }

    /// Applies what the page accepted.
    fn follow(&mut self, op: &Op) {
        match op {
            Op::Put { slot, generation, value } => {
                self.objects.insert(slot.0, (generation.0, value.to_vec()));
                let used = self.used.entry(slot.0).or_default();
                *used = (*used).max(generation.0);
            }
            Op::Delete { slot, .. } => {
                self.objects.remove(&slot.0);
            }
            Op::Add { slot, offset, delta, .. } => {
                let record = &mut self.objects.get_mut(&slot.0).expect("held").1;
                add(&mut record[1..], *offset, *delta).expect("the page took it");
            }
            Op::Max { slot, offset, value, .. } => {
                let record = &mut self.objects.get_mut(&slot.0).expect("held").1;
                raise(&mut record[1..], *offset, *value).expect("the page took it");
            }
            _ => unreachable!("no such step"),
        }
    }

    fn check(&self, page: &Page) {
        let found: Vec<_> = page.records().map(|(s, g, r)| (s.0, (g.0, r.to_vec()))).collect();
        let expected: Vec<_> = self.objects.clone().into_iter().collect();
        assert_eq!(found, expected);
        for (slot, (generation, record)) in &self.objects {
            let (got, bytes) = page.get(Slot(*slot)).expect("filled");
            assert_eq!((got.0, &bytes[..]), (*generation, &record[..]));
            // The short road says the same as the record, or nothing.
            let value = inline(record).map(Bytes::copy_from_slice);
            assert_eq!(page.inline(Slot(*slot), got), value);
            assert_eq!(page.inline(Slot(*slot), Generation(got.0 + 1)), None);
            assert_eq!(page.next_generation(Slot(*slot)), None);
        }
        for (slot, used) in &self.used {
            if !self.objects.contains_key(slot) {
                assert_eq!(page.get_ref(Slot(*slot)), None);
                assert_eq!(page.inline(Slot(*slot), Generation(*used)), None);
                let next = page.next_generation(Slot(*slot)).expect("not retired");
                assert!(next.0 > *used, "generation {used} of slot {slot} came back");
            }
        }
        let lowest = (0..=u16::MAX).find(|slot| !self.objects.contains_key(slot)).map(Slot);
        assert_eq!(page.free_slot(), lowest);
    }
}

/// Whether a refusal was right.
fn check_refusal(model: &Model, page: &Page, op: &Op, error: OpError) {
    match (op, error) {
        (Op::Put { slot, value, .. }, OpError::Full) => {
            let old = model.objects.get(&slot.0).map(|object| object.1.len());
            let room = match old {
                Some(old) => page.free_bytes(PAGE_BYTES) + old.max(RECORD_BYTES_MIN),
                None => page.free_bytes(PAGE_BYTES),
            };
            assert!(value.len().max(RECORD_BYTES_MIN) > room, "refused although it fits");
        }
        (Op::Delete { slot, .. }, OpError::Gone | OpError::Malformed) => {
            assert!(!model.objects.contains_key(&slot.0));
        }
        (Op::Add { slot, offset, .. } | Op::Max { slot, offset, .. }, OpError::Malformed) => {
            let record = &model.objects[&slot.0].1;
            assert!(inline(record).is_none_or(|value| number(value, *offset).is_none()));
        }
        _ => panic!("{op:?} refused with {error:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_page_is_a_map_of_objects(steps in steps()) {
        let mut page = Page::empty(PageKind::Slotted);
        let mut model = Model::default();
        let mut shared = None;
        for step in steps {
            match (&step, model.op(&page, &step)) {
                (Step::Reload, _) => page = Page::decode(id(), page.encode(id())).expect("valid"),
                (Step::Share, _) => shared = Some((page.clone(), page.encode(id()))),
                (_, Some(op)) => {
                    // Another copy of the page, with its bytes laid out and shared otherwise.
                    let mut twin = Page::decode(id(), page.encode(id())).expect("valid");
                    let before = page.encode(id());
                    let result = page.apply(&op, PAGE_BYTES);
                    prop_assert_eq!(twin.apply(&op, PAGE_BYTES), result);
                    prop_assert_eq!(&twin, &page);
                    prop_assert_eq!(twin.encode(id()), page.encode(id()));
                    match result {
                        Ok(_) => model.follow(&op),
                        Err(error) => {
                            check_refusal(&model, &page, &op, error);
                            prop_assert_eq!(&page.encode(id()), &before);
                        }
                    }
                }
                _ => {}
            }
            prop_assert!(page.size() <= PAGE_BYTES as usize);
            prop_assert!(page.encode(id()).len() <= page.size());
            if let Some((copy, image)) = &shared {
                prop_assert_eq!(&copy.encode(id()), image);
            }
        }
        model.check(&page);
        model.check(&Page::decode(id(), page.encode(id())).expect("valid"));
    }

    /// Bytes that pass the checksum but were made by nobody of ours.
    #[test]
    fn hostile_images_are_refused_or_harmless(
        steps in steps(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut page = Page::empty(PageKind::Slotted);
        let model = Model::default();
        for step in steps.iter().take(40) {
            if let Some(op) = model.op(&page, step) {
                let _refused = page.apply(&op, PAGE_BYTES);
            }
        }
        let mut image = page.encode(id()).to_vec();
        for (at, byte) in flips {
            let at = at.index(image.len());
            image[at] = byte;
        }
        let crc = checksum(seed(id()), &image);
        image[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        exercise(image.into());
    }
}

/// Uses every accessor of whatever the bytes are.
fn exercise(image: Bytes) {
    let Ok(mut page) = Page::decode(id(), image.clone()) else {
        return;
    };
    assert_eq!(page.encode(id()), image);
    for (slot, generation, record) in page.clone().records() {
        Record::decode(Bytes::copy_from_slice(record)).expect("pages hold records only");
        let _touched = page.apply(&delete(slot.0, generation.0), PAGE_BYTES);
    }
    if let Some(slot) = page.free_slot() {
        let generation = page.next_generation(slot).expect("free");
        let _touched = page.apply(&put(slot.0, generation.0, b"new"), PAGE_BYTES);
    }
    let image = page.encode(id());
    assert_eq!(Page::decode(id(), image).expect("valid"), page);
}
