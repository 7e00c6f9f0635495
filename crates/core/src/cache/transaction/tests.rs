//! A transaction's own view of what it writes, against `Page::apply`; objects that outgrow pages.

use super::*;
use crate::cache::VersionLimits;
use crate::cache::read::{RecentChange, VolumeEntry};
use crate::commit::{Aspect, Op, PageKind, Target};
use crate::id::{Generation, Slot};
use crate::machine::Faults;
use crate::page::{Page, Record};
use crate::time::Clock;
use bytes::Bytes;
use proptest::prelude::*;

const PAGE_BYTES: u32 = 4096;
const DOMAIN: DomainId = DomainId(1);

struct NoClock;

impl Clock for NoClock {
    fn now(&self) -> Instant {
        Instant(10)
    }
}

fn page(no: u64) -> PageId {
    PageId { volume: VolumeId(7), page: PageNo(no) }
}

/// A read cache with one domain at stamp 1, without a machine.
fn cache() -> (Arc<ReadCache>, Arc<DomainState>) {
    let shared = Arc::new(ReadCache::new(8, Arc::new(NoClock), Faults::NONE));
    let state =
        Arc::new(DomainState::new(DOMAIN, HistoryId(1), 64, 1 << 20, VersionLimits::default()));
    shared.attach(Arc::clone(&state));
    shared.set_volume(VolumeId(7), VolumeEntry { domain: DOMAIN, page_bytes: PAGE_BYTES });
    state.batch().set_through(Some(Stamp(1)));
    (shared, state)
}

fn put_page(shared: &ReadCache, no: u64, version: u64, image: Option<Page>) {
    shared.put(Arc::new(PageCopy {
        id: page(no),
        version: Stamp(version),
        page: image,
        holes: Vec::new(),
    }));
}

fn begin(shared: &Arc<ReadCache>) -> Transaction {
    let options = SessionOptions::default();
    Transaction::begin(shared, options, &Floors::default()).expect("few run")
}

fn inline(value: &[u8]) -> Bytes {
    Record::Inline(Bytes::copy_from_slice(value)).encode()
}

fn ops() -> impl Strategy<Value = Op> {
    let slot = (0..6u16).prop_map(Slot);
    let generation = (1..4u32).prop_map(Generation);
    let value = proptest::collection::vec(any::<u8>(), 0..900);
    prop_oneof![
        5 => (slot.clone(), generation.clone(), value).prop_map(|(slot, generation, value)| {
            Op::Put { slot, generation, value: inline(&value) }
        }),
        2 => (slot.clone(), generation.clone())
            .prop_map(|(slot, generation)| Op::Delete { slot, generation }),
        2 => (slot.clone(), generation.clone(), 0..20u32, any::<i64>()).prop_map(
            |(slot, generation, offset, delta)| Op::Add { slot, generation, offset, delta }
        ),
        1 => (slot, generation, 0..20u32, any::<u64>()).prop_map(
            |(slot, generation, offset, value)| Op::Max { slot, generation, offset, value }
        ),
        1 => (0..5000u32).prop_map(|length| Op::TruncateRaw { length }),
    ]
}

#[derive(Clone, Debug)]
enum Act {
    Write(Op),
    Savepoint,
    Rollback,
    /// Another transaction changed a slot that this one does not use.
    Others(u8),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        12 => ops().prop_map(Act::Write),
        1 => Just(Act::Savepoint),
        1 => Just(Act::Rollback),
        1 => any::<u8>().prop_map(Act::Others),
    ];
    proptest::collection::vec(act, 0..60)
}

/// The base and the writes up to now, applied by the page itself.
fn expected(base: &Page, ops: &[Op]) -> Page {
    let mut page = base.clone();
    for op in ops {
        page.apply(op, PAGE_BYTES).expect("it was accepted before");
    }
    page
}

proptest! {
    /// What a transaction reads is exactly what the origin's page would hold after its writes.
    #[test]
    fn own_writes_read_as_applied(before in proptest::collection::vec(ops(), 0..12), acts in acts()) {
        let (shared, state) = cache();
        let mut base = Page::empty(PageKind::Slotted);
        for op in &before {
            let _ = base.apply(op, PAGE_BYTES);
        }
        put_page(&shared, 5, 1, Some(base.clone()));
        let mut transaction = begin(&shared);
        let (mut ops, mut saved, mut stamp): (Vec<Op>, _, u64) = (Vec::new(), Vec::new(), 1);
        for act in acts {
            match act {
                Act::Write(op) => {
                    let result = expected(&base, &ops).apply(&op, PAGE_BYTES);
                    match transaction.write(page(5), op.clone()) {
                        Step::Ready(()) => {
                            prop_assert!(result.is_ok(), "{op:?} should fail");
                            ops.push(op);
                        }
                        Step::Refused(_) => prop_assert!(result.is_err(), "{op:?} should apply"),
                        other => prop_assert!(false, "{other:?}"),
                    }
                }
                Act::Savepoint => saved.push((transaction.savepoint(), ops.len())),
                Act::Rollback => {
                    if let Some((savepoint, len)) = saved.pop() {
                        transaction.rollback_to(savepoint);
                        ops.truncate(len);
                    }
                }
                Act::Others(value) => {
                    let slot = Slot(100);
                    let put = Op::Put { slot, generation: Generation(1), value: inline(&[value]) };
                    let mut changed = base.clone();
                    prop_assume!(changed.apply(&put, PAGE_BYTES).is_ok());
                    // Otherwise the writes no longer fit, and the transaction is rightly doomed.
                    let mut image = changed.clone();
                    prop_assume!(ops.iter().all(|op| image.apply(op, PAGE_BYTES).is_ok()));
                    stamp += 1;
                    let batch = state.batch();
                    let touched = [(Target::Slot(slot), Aspect::Value)].as_slice().into();
                    batch.note(RecentChange { stamp: Stamp(stamp), page: page(5), touched });
                    put_page(&shared, 5, stamp, Some(changed.clone()));
                    batch.set_through(Some(Stamp(stamp)));
                    base = changed;
                }
            }
            let wanted = expected(&base, &ops);
            for slot in (0..6).chain([100]).map(Slot) {
                prop_assert_eq!(transaction.read_slot(page(5), slot), Step::Ready(wanted.get(slot)));
                if slot.0 == 100 {
                    break;
                }
            }
            // Reading slot 100 makes later changes of others conflicts: begin anew, with the same
            // writes.
            let mut again = begin(&shared);
            for op in &ops {
                prop_assert_eq!(again.write(page(5), op.clone()), Step::Ready(()));
            }
            saved.clear();
            transaction = again;
        }
        match transaction.finish() {
            Finish::Send { parts, .. } => {
                let sent: Vec<Op> = parts[0].writes.iter().map(|write| write.op.clone()).collect();
                prop_assert_eq!(sent, ops);
                prop_assert!(parts[0].reads.is_sorted());
            }
            Finish::Local { .. } => prop_assert!(ops.is_empty()),
            other => prop_assert!(false, "{other:?}"),
        }
    }
}

fn until(line: Line, stamp: u64) -> Awaited {
    Awaited { domain: DOMAIN, line, stamp: Stamp(stamp) }
}

fn ready<T>(step: Step<T>) -> T {
    match step {
        Step::Ready(value) => value,
        Step::Need { pages, .. } => panic!("needs {pages:?}"),
        Step::NeedIds { count, .. } => panic!("needs {count} page numbers"),
        Step::Wait(awaited) => panic!("waits for {awaited:?}"),
        Step::Doomed(doom) => panic!("{doom}"),
        Step::Refused(error) => panic!("{error}"),
    }
}

fn ids(transaction: &mut Transaction, first: u64, count: u64) {
    transaction.supply_ids(IdRange { volume: VolumeId(7), first: PageNo(first), count });
}

#[test]
fn an_object_outgrows_its_page_and_moves_and_comes_home() {
    let (shared, _) = cache();
    put_page(&shared, 5, 1, Some(Page::empty(PageKind::Slotted)));
    let mut transaction = begin(&shared);
    let small = ready(transaction.create_object(page(5), None, Bytes::from_static(b"small")));
    let other = vec![1; 3900];
    ready(transaction.create_object(page(5), None, other.into()));
    let long = Bytes::from(vec![2; 1000]);
    // No half of it is done while page numbers are missing.
    let writes = transaction.writes().len();
    let step = transaction.update_object(small, long.clone());
    assert!(matches!(step, Step::NeedIds { count: 1, .. }));
    assert_eq!(transaction.writes().len(), writes);
    ids(&mut transaction, 20, 10);
    ready(transaction.update_object(small, long.clone()));
    assert_eq!(ready(transaction.read_object(small)), Some(long));
    // The number at offset 0 is changed where the object lives now.
    ready(transaction.add_to_object(small, 0, 1));
    assert_eq!(ready(transaction.read_object(small)).expect("there")[0], 3);
    // Large: over raw pages, and back to a few bytes.
    let large = Bytes::from(vec![3; 10_000]);
    ready(transaction.update_object(small, large.clone()));
    assert_eq!(ready(transaction.read_object(small)), Some(large));
    ready(transaction.update_object(small, Bytes::from_static(b"home")));
    assert_eq!(ready(transaction.read_object(small)), Some(Bytes::from_static(b"home")));
    ready(transaction.delete_object(small));
    assert_eq!(ready(transaction.read_object(small)), None);
    let left: u64 = transaction.take_unused_ids().iter().map(|range| range.count).sum();
    assert_eq!(left, 6, "one page for the move, three for the large object");
}

#[test]
fn reading_again_costs_no_memory_and_the_stronger_read_stays() {
    let (shared, _) = cache();
    let mut image = Page::empty(PageKind::Slotted);
    let put = Op::Put { slot: Slot(0), generation: Generation(1), value: inline(b"x") };
    image.apply(&put, PAGE_BYTES).expect("fits");
    put_page(&shared, 5, 1, Some(image));
    let options = SessionOptions { consistency: Consistency::Strict, ..SessionOptions::default() };
    let mut strict = Transaction::begin(&shared, options, &Floors::default()).expect("few run");
    for _ in 0..100 {
        ready(strict.exists(page(5), Slot(0)));
        ready(strict.read_slot(page(5), Slot(0)));
        ready(strict.read_slot(page(5), Slot(9)));
    }
    assert_eq!(strict.reads_len(), 2);
    let Finish::Send { parts, .. } = strict.finish() else {
        panic!("strict transactions are validated at the origin");
    };
    let aspects: Vec<_> = parts[0].reads.iter().map(|read| (read.target, read.aspect)).collect();
    let value = (Target::Slot(Slot(0)), Aspect::Value);
    let absence = (Target::Slot(Slot(9)), Aspect::Existence);
    assert_eq!(aspects, [value, absence]);
}

/// A page with one object in slot 0, and another that another page holds, in slot 1.
fn page_of_two() -> (Page, ObjectId, ObjectId) {
    let mut image = Page::empty(PageKind::Slotted);
    let generation = Generation(1);
    let [here, there] = [0, 1].map(|slot| ObjectId { page: page(5), slot: Slot(slot), generation });
    let moved = ObjectId { page: page(6), ..here };
    let records = [(Slot(0), inline(b"x")), (Slot(1), Record::Forward(moved).encode())];
    for (slot, value) in records {
        let put = Op::Put { slot, generation, value };
        image.apply(&put, PAGE_BYTES).expect("fits");
    }
    (image, here, there)
}

/// The short road of a read gives what the long one would and records the same read; in every case
/// that is not plain it gives nothing and records nothing.
#[test]
fn a_hit_is_a_read_and_anything_else_is_left_to_the_long_road() {
    let (shared, state) = cache();
    let (image, here, there) = page_of_two();
    put_page(&shared, 5, 1, Some(image.clone()));
    let mut tx = begin(&shared);
    assert_eq!(tx.hit(here), None, "the volume is attached by the long road");
    assert_eq!(ready(tx.exists(page(5), Slot(9))), None);
    assert_eq!(tx.hit(here).as_deref(), Some(&b"x"[..]));
    assert_eq!(tx.reads_len(), 2);
    assert_eq!(tx.hit(there), None, "its bytes are elsewhere");
    assert_eq!(tx.hit(ObjectId { generation: Generation(2), ..here }), None, "another object");
    assert_eq!(tx.hit(ObjectId { page: page(9), ..here }), None, "no such copy");
    assert_eq!(tx.reads_len(), 2);

    // A batch under way, and one that has passed since the last check of the reads.
    let batch = state.batch();
    assert_eq!(tx.hit(here), None);
    batch.set_through(Some(Stamp(2)));
    drop(batch);
    assert_eq!(tx.hit(here), None);
    assert_eq!(ready(tx.read_object(here)).as_deref(), Some(&b"x"[..]));
    assert_eq!(tx.hit(here).as_deref(), Some(&b"x"[..]));

    // A slot known stale.
    let holes = vec![Slot(0)];
    let (id, version) = (page(5), Stamp(2));
    shared.put(Arc::new(PageCopy { id, version, page: Some(image), holes }));
    assert_eq!(tx.hit(here), None);

    // What it wrote itself.
    let (image, ..) = page_of_two();
    put_page(&shared, 5, 2, Some(image));
    assert_eq!(tx.hit(here).as_deref(), Some(&b"x"[..]));
    ready(tx.update_object(here, Bytes::from_static(b"y")));
    assert_eq!(tx.hit(here), None);
    assert_eq!(ready(tx.read_object(here)).as_deref(), Some(&b"y"[..]));
}

/// The state's age counts on the short road too, and is looked at after the copy (rule 8); so do
/// the bounds of a transaction, and a snapshot never takes it.
#[test]
fn a_hit_keeps_to_the_limits_of_its_session() {
    let (shared, state) = cache();
    let (image, here, _) = page_of_two();
    put_page(&shared, 5, 1, Some(image));
    let begin = |options: SessionOptions| {
        let mut tx = Transaction::begin(&shared, options, &Floors::default()).expect("few run");
        let _attached = tx.exists(page(5), Slot(9));
        tx.hit(here)
    };
    let plain = SessionOptions { age_limit: AgeLimit::Lease, ..SessionOptions::default() };
    let limit = Duration::from_nanos(5);
    let at_most = SessionOptions { age_limit: AgeLimit::AtMost(limit), ..plain };
    for options in [plain, at_most] {
        assert_eq!(begin(options), None, "never confirmed");
    }
    // The clock stands at 10.
    let now = Instant(10);
    for (confirmed, lease, within) in [(5, 5, true), (4, 5, false), (0, 10, true), (0, 9, false)] {
        state.set_confirmed(Instant(confirmed), Duration::from_nanos(lease));
        assert_eq!(state.age(now).expect("confirmed") <= state.lease(), within);
        assert_eq!(begin(plain).is_some(), within, "confirmed {confirmed}, lease {lease}");
        assert_eq!(begin(at_most).is_some(), confirmed >= 5);
    }
    state.set_confirmed(now, Duration::from_nanos(5));
    let limits = TransactionLimits { reads_max: 0, ..TransactionLimits::default() };
    assert_eq!(begin(SessionOptions { limits, ..plain }), None);
    let consistency = Consistency::Snapshot;
    assert_eq!(begin(SessionOptions { consistency, ..plain }), None);
    assert!(begin(plain).is_some());
}

/// A clock whose next reading takes so long that something happens meanwhile.
#[derive(Default)]
struct SlowClock(std::sync::Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl Clock for SlowClock {
    fn now(&self) -> Instant {
        let meanwhile = self.0.lock().expect("no panic").take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        Instant(100)
    }
}

/// A transaction that wants a state younger than ten, and an object of page 5. When it looks at the clock next
/// it is held up, and meanwhile the object changes to "new", and the state with the change is confirmed; the one
/// that it reads was confirmed long ago.
fn held_up() -> (Transaction, ObjectId) {
    let clock = Arc::new(SlowClock::default());
    let shared = Arc::new(ReadCache::new(8, clock.clone(), Faults::NONE));
    let state =
        Arc::new(DomainState::new(DOMAIN, HistoryId(1), 64, 1 << 20, VersionLimits::default()));
    shared.attach(Arc::clone(&state));
    shared.set_volume(VolumeId(7), VolumeEntry { domain: DOMAIN, page_bytes: PAGE_BYTES });
    state.batch().set_through(Some(Stamp(1)));
    let (image, here, _) = page_of_two();
    put_page(&shared, 5, 1, Some(image.clone()));
    put_page(&shared, 6, 1, Some(image));
    let lease = Duration::from_nanos(10);
    state.set_confirmed(Instant(95), lease);
    let options = SessionOptions { age_limit: AgeLimit::Lease, ..SessionOptions::default() };
    let mut tx = Transaction::begin(&shared, options, &Floors::default()).expect("few run");
    let other = ObjectId { page: page(6), ..here };
    assert_eq!(ready(tx.read_object(other)).as_deref(), Some(&b"x"[..]));
    state.set_confirmed(Instant(1), lease);
    let (later, cache) = (Arc::clone(&state), Arc::clone(&shared));
    *clock.0.lock().expect("no panic") = Some(Box::new(move || {
        let batch = later.batch();
        let touched = Box::new([(Target::Slot(Slot(0)), Aspect::Value)]);
        batch.note(RecentChange { stamp: Stamp(2), page: page(5), touched });
        let mut changed = Page::empty(PageKind::Slotted);
        let (slot, generation) = (Slot(0), Generation(1));
        let put = Op::Put { slot, generation, value: inline(b"new") };
        changed.apply(&put, PAGE_BYTES).expect("fits");
        put_page(&cache, 5, 2, Some(changed));
        batch.set_through(Some(Stamp(2)));
        drop(batch);
        later.set_confirmed(Instant(100), lease);
    }));
    (tx, here)
}

/// A reader copied an object and was held up for longer than its session's limit of age. Meanwhile
/// the object changed, and the state with the change was confirmed: by that confirmation what had been
/// copied before passed for young on the short road (rule 8).
#[test]
fn bug45_a_confirmation_of_a_later_state() {
    let (mut tx, here) = held_up();
    assert_eq!(tx.hit(here), None);
    assert_eq!(ready(tx.read_object(here)).as_deref(), Some(&b"new"[..]));
}

/// Bug 94: the same on the long road, which looks at the clock after it has looked whether anything moved. What
/// it had copied was given out as young, since the later state had just been confirmed. It is refused, and
/// counts as read: the transaction can only be run again.
#[test]
fn bug94_a_confirmation_of_a_later_state_on_the_long_road() {
    let (mut tx, here) = held_up();
    let refused = tx.read_slot(here.page, here.slot);
    assert!(too_old(&refused), "{refused:?}");
    let again = tx.read_slot(here.page, here.slot);
    assert!(matches!(again, Step::Doomed(Doom::Conflict(_))), "{again:?}");
}

/// Bug 94: and at the end of a transaction, where all that it read is said to be young.
#[test]
fn bug94_a_confirmation_of_a_later_state_at_the_end() {
    let (tx, _) = held_up();
    let finish = tx.finish();
    assert!(
        matches!(&finish, Finish::Refused(TransactionError::TooOld(Some(age))) if age.as_nanos() == 99),
        "{finish:?}"
    );
}

fn too_old<T>(step: &Step<T>) -> bool {
    matches!(step, Step::Refused(TransactionError::TooOld(Some(age))) if age.as_nanos() == 99)
}

/// A snapshot goes on reading its state from copies kept beside the new ones.
#[test]
fn a_snapshot_reads_the_state_of_its_begin() {
    let (shared, state) = cache();
    put_page(&shared, 4, 1, Some(Page::empty(PageKind::Slotted)));
    put_page(&shared, 5, 1, Some(Page::empty(PageKind::Slotted)));
    let options =
        SessionOptions { consistency: Consistency::Snapshot, ..SessionOptions::default() };
    let mut snapshot = Transaction::begin(&shared, options, &Floors::default()).expect("few run");
    assert_eq!(ready(snapshot.read_slot(page(4), Slot(0))), None);
    let mut changed = Page::empty(PageKind::Slotted);
    let put = Op::Put { slot: Slot(0), generation: Generation(1), value: inline(b"new") };
    changed.apply(&put, PAGE_BYTES).expect("fits");
    let batch = state.batch();
    let old = shared.peek(page(5)).expect("put above");
    state.keep_for_snapshots(&old, Stamp(1));
    put_page(&shared, 5, 2, Some(changed.clone()));
    put_page(&shared, 6, 2, Some(changed));
    batch.set_through(Some(Stamp(2)));
    drop(batch);
    assert_eq!(ready(snapshot.read_slot(page(5), Slot(0))), None);
    let write = snapshot.write(page(5), put);
    assert_eq!(write, Step::Refused(TransactionError::ReadOnly));
    // Page 6 was never here as it was.
    let late = snapshot.read_slot(page(6), Slot(0));
    assert_eq!(late, Step::Doomed(Doom::SnapshotTooOld(page(6))));
}

/// Two transactions of one session ran side by side. The first saw stamp 61; the domain was restored
/// from a copy at 60 and began another line, on which the second read 5. That replaced the floor: the
/// session went on as if it had never seen 61, and nobody told its user (P4, P12). Whichever of the
/// two ends first, the next begin must fail, until its user has accepted the loss.
#[test]
fn bug15_two_transactions_beside_a_restore() {
    for turned in [false, true] {
        let (shared, state) = cache();
        put_page(&shared, 5, 1, Some(Page::empty(PageKind::Slotted)));
        let mut session = Session::default();
        let mut old = session.begin(&shared).expect("nothing seen yet");
        let mut new = session.begin(&shared).expect("nothing seen yet");
        assert_eq!(ready(old.read_slot(page(5), Slot(0))), None);
        let Finish::Local { seen: before, .. } = old.finish() else { panic!("it read only") };
        let batch = state.batch();
        batch.new_line(Stamp(0));
        batch.set_through(Some(Stamp(5)));
        drop(batch);
        assert_eq!(ready(new.read_slot(page(5), Slot(0))), None);
        let Finish::Local { seen: after, .. } = new.finish() else { panic!("it read only") };
        let (first, second) = if turned { (&after, &before) } else { (&before, &after) };
        assert_eq!(session.saw(first), None);
        assert_eq!(session.saw(second), Some(DOMAIN));
        assert_eq!(session.begin(&shared).err(), Some(BeginError::HistoryLost(DOMAIN)));
        session.floors.forget(DOMAIN);
        assert!(session.begin(&shared).is_ok());
    }
}

/// A transaction over several domains was done, and the domain that decided had forgotten its process: the others told their
/// stamps, and that one none. Its session went on there at its floor of before, without what it had written itself (P4).
#[test]
fn bug215_what_is_written_without_a_stamp_is_seen_all_the_same() {
    const ONE: HistoryId = HistoryId(1);
    let (shared, state) = cache();
    put_page(&shared, 5, 1, Some(Page::empty(PageKind::Slotted)));
    let mut session = Session::default();
    let mut transaction = session.begin(&shared).expect("nothing seen yet");
    assert_eq!(ready(transaction.read_slot(page(5), Slot(0))), None);
    let Finish::Local { seen, .. } = transaction.finish() else { panic!("it read only") };
    assert_eq!(session.saw(&seen), None);
    session.wrote_unseen(DOMAIN, seen[0].line, ONE);
    let unseen = |session: &Session| match session.begin(&shared).err() {
        Some(BeginError::Unseen { domain: DOMAIN, mark }) => mark,
        other => panic!("{other:?}"),
    };
    // Another one is done meanwhile: the state that was asked for before may not have it.
    let before = unseen(&session);
    session.wrote_unseen(DOMAIN, seen[0].line, ONE);
    session.refreshed(DOMAIN, before, Stamp(6), ONE);
    let mark = unseen(&session);
    // The machine says that the origin is at 7, and the cache has to be there.
    session.refreshed(DOMAIN, mark, Stamp(7), ONE);
    let waits = BeginError::Wait(until(seen[0].line, 7));
    assert_eq!(session.begin(&shared).err(), Some(waits));
    state.batch().set_through(Some(Stamp(7)));
    assert!(session.begin(&shared).is_ok());
    // On another line it is gone, perhaps, and its user is told.
    session.wrote_unseen(DOMAIN, seen[0].line, ONE);
    let mark = unseen(&session);
    let batch = state.batch();
    batch.new_line(Stamp(0));
    batch.set_through(Some(Stamp(5)));
    drop(batch);
    session.refreshed(DOMAIN, mark, Stamp(5), ONE);
    assert_eq!(session.begin(&shared).err(), Some(BeginError::HistoryLost(DOMAIN)));
    session.wrote_unseen(DOMAIN, seen[0].line, ONE);
    session.floors.forget(DOMAIN);
    assert!(session.begin(&shared).is_ok());
}

/// Bug 217 (found by reading). The domain that decided was restored from a copy of before the transaction, at a stamp that the node
/// had not passed: nothing that the stream had told was lost, and the line stayed. The session asked for the newest state, and
/// went on without what it had written. Another history than it was asked for in may have lost it, and the session is told.
#[test]
fn bug217_what_was_written_without_a_stamp_before_another_history_may_be_lost() {
    let (shared, _state) = cache();
    let mut session = Session::default();
    let unseen = |session: &Session| match session.begin(&shared).err() {
        Some(BeginError::Unseen { domain: DOMAIN, mark }) => mark,
        other => panic!("{other:?}"),
    };
    let line = shared.line(DOMAIN);
    session.wrote_unseen(DOMAIN, line, HistoryId(1));
    // Of two one may be lost, though the other was asked for in the history that there is: whichever is told first, since
    // transactions of one session run side by side.
    let mut other = Session::default();
    other.wrote_unseen(DOMAIN, line, HistoryId(2));
    other.wrote_unseen(DOMAIN, line, HistoryId(1));
    other.refreshed(DOMAIN, unseen(&other), Stamp(0), HistoryId(2));
    assert_eq!(other.begin(&shared).err(), Some(BeginError::HistoryLost(DOMAIN)));
    session.wrote_unseen(DOMAIN, line, HistoryId(2));
    let mark = unseen(&session);
    session.refreshed(DOMAIN, mark, Stamp(0), HistoryId(2));
    assert_eq!(session.begin(&shared).err(), Some(BeginError::HistoryLost(DOMAIN)));
    assert_eq!(
        session.begin(&shared).err(),
        Some(BeginError::HistoryLost(DOMAIN)),
        "until it is accepted"
    );
    session.floors.forget(DOMAIN);
    session.wrote_unseen(DOMAIN, line, HistoryId(2));
    let mark = unseen(&session);
    session.refreshed(DOMAIN, mark, Stamp(0), HistoryId(2));
    assert!(session.begin(&shared).is_ok());
}

/// A page held a large record of 5,000 bytes whose count was 5,000: its reader asked for 5,000 pages,
/// its deleter deleted as many, whosever they were. Up to 16 million it could be.
#[test]
fn bug16_a_large_record_that_counts_more_pages_than_it_fills() {
    let (shared, _) = cache();
    let large = |count| Record::Large { length: 5000, first: PageNo(30), count }.encode();
    // Over pages of another size the count is right: bytes alone do not tell.
    let mut image = Page::empty(PageKind::Slotted);
    let put = |value| Op::Put { slot: Slot(0), generation: Generation(1), value };
    image.apply(&put(large(1)), 1 << 16).expect("right for this size");
    assert_eq!(image.apply(&put(large(2)), 1 << 16), Err(crate::page::OpError::Malformed));
    put_page(&shared, 5, 1, Some(image));
    let object = ObjectId { page: page(5), slot: Slot(0), generation: Generation(1) };
    let mut transaction = begin(&shared);
    let damaged = TransactionError::Damaged(object);
    assert_eq!(transaction.read_object(object), Step::Refused(damaged.clone()));
    assert_eq!(transaction.delete_object(object), Step::Refused(damaged.clone()));
    assert_eq!(transaction.update_object(object, Bytes::new()), Step::Refused(damaged));
    let malformed = Step::Refused(TransactionError::BadWrite(page(5)));
    assert_eq!(transaction.write(page(5), put(large(5000))), malformed);
    assert!(Record::decode(large(3)).is_err(), "of no size of pages");
    assert!(Record::decode(large(0)).is_err(), "of no size of pages");
}

/// A write to a page was refused, which left the page's copy in the overlay; the copy was evicted, and
/// the transaction then made the page anew, which was refused as well, but only after the page was
/// noted as made. From then on its reads of that page were not recorded: it would have committed
/// whatever others had done to it.
#[test]
fn bug17_a_page_noted_as_made_that_was_refused() {
    let (shared, _) = cache();
    let mut image = Page::empty(PageKind::Slotted);
    let put = |generation| Op::Put {
        slot: Slot(0),
        generation: Generation(generation),
        value: inline(b"x"),
    };
    image.apply(&put(1), PAGE_BYTES).expect("fits");
    put_page(&shared, 5, 1, Some(image));
    put_page(&shared, 6, 1, Some(Page::empty(PageKind::Slotted)));
    let mut transaction = begin(&shared);
    ready(transaction.write(page(6), put(1)));
    assert!(matches!(transaction.write(page(5), put(9)), Step::Refused(_)));
    shared.remove(page(5));
    let make = transaction.write(page(5), Op::CreatePage(PageKind::Slotted));
    assert_eq!(make, Step::Refused(TransactionError::BadPage(page(5))));
    put_page(&shared, 5, 1, None);
    let _ = transaction.read_slot(page(5), Slot(0));
    assert_eq!(transaction.reads_len(), 2);
}

/// A snapshot fetched a page; before the answer came the page was changed, and the copy of the
/// snapshot's state was kept beside the new one. The new one, handed in, was taken all the same; when
/// the kept one had to go for others, the snapshot read from the new one: two states mixed (P5).
#[test]
fn bug18_a_snapshot_supplied_with_a_later_copy() {
    let (shared, state) = cache();
    let put =
        |value: &[u8]| Op::Put { slot: Slot(0), generation: Generation(1), value: inline(value) };
    let image = |value: &[u8]| {
        let mut image = Page::empty(PageKind::Slotted);
        image.apply(&put(value), PAGE_BYTES).expect("fits");
        image
    };
    put_page(&shared, 4, 1, Some(image(b"old")));
    put_page(&shared, 5, 1, Some(image(b"old")));
    let options =
        SessionOptions { consistency: Consistency::Snapshot, ..SessionOptions::default() };
    let mut snapshot = Transaction::begin(&shared, options, &Floors::default()).expect("few run");
    assert!(ready(snapshot.read_slot(page(4), Slot(0))).is_some());
    let batch = state.batch();
    state.keep_for_snapshots(&shared.peek(page(5)).expect("put above"), Stamp(1));
    put_page(&shared, 5, 2, Some(image(b"new")));
    batch.set_through(Some(Stamp(2)));
    drop(batch);
    let new = shared.peek(page(5)).expect("put above");
    assert_eq!(snapshot.supply(Stamp(2), &[new]), Step::Ready(()));
    let held = ready(snapshot.read_slot(page(5), Slot(0))).expect("kept");
    assert_eq!(held.1, inline(b"old"));
    // Others take the room of what is kept.
    for no in 10..300 {
        let mut other = Page::empty(PageKind::Raw);
        let write = Op::WriteRaw { offset: 0, bytes: vec![1; 4000].into() };
        other.apply(&write, PAGE_BYTES).expect("fits");
        put_page(&shared, no, 1, Some(other));
        state.keep_for_snapshots(&shared.peek(page(no)).expect("put above"), Stamp(1));
    }
    let late = snapshot.read_slot(page(5), Slot(0));
    assert_eq!(late, Step::Doomed(Doom::SnapshotTooOld(page(5))));
}

/// Three objects outgrew their page in one transaction, which deleted the first before it moved the
/// third: that took the first one's slot in the page they share, with the generation of a first
/// object. It was told that the object was gone, though it was there.
#[test]
fn bug19_a_moved_object_takes_the_slot_of_one_that_is_gone() {
    let (shared, _) = cache();
    put_page(&shared, 5, 1, Some(Page::empty(PageKind::Slotted)));
    let mut transaction = begin(&shared);
    let mut objects = Vec::new();
    for _ in 0..3 {
        let object = transaction.create_object(page(5), None, Bytes::from_static(b"small"));
        objects.push(ready(object));
    }
    ready(transaction.create_object(page(5), None, vec![1; 3700].into()));
    ids(&mut transaction, 20, 10);
    let long = Bytes::from(vec![2; 1000]);
    ready(transaction.update_object(objects[0], long.clone()));
    ready(transaction.update_object(objects[1], long.clone()));
    ready(transaction.delete_object(objects[0]));
    ready(transaction.update_object(objects[2], long.clone()));
    assert_eq!(ready(transaction.read_object(objects[2])), Some(long));
    let left: u64 = transaction.take_unused_ids().iter().map(|range| range.count).sum();
    assert_eq!(left, 9, "they share one page");
}

/// T1 reads x in one domain and writes y in another; T2 reads y and writes x. Each was validated
/// only where it wrote, and both committed: a write skew. A transaction over several domains has a part in each
/// that it has read or writes, committed as a whole; one that only touched a domain has none there.
#[test]
fn a_transaction_has_a_part_in_each_domain_that_it_uses() {
    let (shared, _) = cache();
    let state = Arc::new(DomainState::new(
        DomainId(2),
        HistoryId(2),
        64,
        1 << 20,
        VersionLimits::default(),
    ));
    shared.attach(Arc::clone(&state));
    shared.set_volume(VolumeId(8), VolumeEntry { domain: DomainId(2), page_bytes: PAGE_BYTES });
    state.batch().set_through(Some(Stamp(1)));
    let other = PageId { volume: VolumeId(8), page: PageNo(5) };
    let image = |value: &[u8]| {
        let mut image = Page::empty(PageKind::Slotted);
        let op = Op::Put { slot: Slot(0), generation: Generation(1), value: inline(value) };
        image.apply(&op, PAGE_BYTES).expect("room");
        image
    };
    put_page(&shared, 5, 1, Some(image(b"x")));
    let copy =
        PageCopy { id: other, version: Stamp(1), page: Some(image(b"y")), holes: Vec::new() };
    shared.put(Arc::new(copy));
    let object = |page| ObjectId { page, slot: Slot(0), generation: Generation(1) };
    let (x, y) = (object(page(5)), object(other));
    let mut skew = begin(&shared);
    assert!(matches!(skew.update_object(y, Bytes::from_static(b"skew")), Step::Ready(_)));
    assert!(matches!(skew.read_object(x), Step::Ready(_)));
    let Finish::Send { parts, seen, per_domain } = skew.finish() else {
        panic!("what writes is committed at the origin");
    };
    assert!(seen.is_empty() && !per_domain);
    let kinds = parts.iter().map(|part| (part.domain, part.reads.len(), part.writes.len()));
    assert_eq!(kinds.collect::<Vec<_>>(), [(DOMAIN, 1, 0), (DomainId(2), 1, 1)]);
    assert_eq!(decides(&parts), Some(DomainId(2)), "the lowest that is written");
    assert!(matches!(&commit_ops(parts)[..], [CacheOp::CommitAcross(parts)] if parts.len() == 2));

    let mut touches = begin(&shared);
    assert!(matches!(touches.hint(page(5), |_| ()), Step::Ready(Some(()))));
    assert!(matches!(touches.update_object(y, Bytes::from_static(b"alone")), Step::Ready(_)));
    let Finish::Send { parts, seen, .. } = touches.finish() else {
        panic!("what writes is committed at the origin");
    };
    assert_eq!((parts.len(), seen.len()), (1, 1));
    assert!(matches!(&commit_ops(parts)[..], [CacheOp::Commit { domain: DomainId(2), .. }]));

    // Reading alone is not one instant, and says so.
    let mut reads = begin(&shared);
    assert!(matches!(
        (reads.read_object(x), reads.read_object(y)),
        (Step::Ready(_), Step::Ready(_))
    ));
    assert!(reads.per_domain());
    assert!(matches!(reads.finish(), Finish::Local { per_domain: true, .. }));
}

/// What stood ahead of the stream on a line that is lost is nothing on the next one, whose stamps are others': not for who
/// wrote it, and not for who comes later.
#[test]
fn nothing_stands_ahead_of_another_line() {
    let (shared, state) = cache();
    let (image, here, _) = page_of_two();
    put_page(&shared, 5, 1, Some(image));
    let put = Op::Put { slot: here.slot, generation: here.generation, value: inline(b"lost") };
    state.committed_ahead(Stamp(12), Some(&[Write { page: page(5), op: put }]));
    let options = SessionOptions { ahead: true, ..SessionOptions::default() };
    let session_at = |stamp| {
        let mut session = Session::new(options);
        let line = Line(state.line());
        assert_eq!(session.saw(&[Seen { domain: DOMAIN, line, stamp: Stamp(stamp) }]), None);
        session
    };
    let session = session_at(12);
    let mut tx = session.begin(&shared).expect("it looks ahead");
    assert_eq!(ready(tx.read_object(here)).as_deref(), Some(&b"lost"[..]));
    let batch = state.batch();
    batch.new_line(Stamp(1));
    batch.set_through(Some(Stamp(1)));
    drop(batch);
    assert_eq!(tx.waits(), None);
    assert!(matches!(tx.finish(), Finish::Doomed(Doom::HistoryLost(DOMAIN))));
    assert!(matches!(session.begin(&shared), Err(BeginError::HistoryLost(DOMAIN))));
    assert_eq!(shared.objects_ahead(DOMAIN), 0);
    // Bug 225: also before the new line stands anywhere; its user would wait for a stamp that does not come.
    state.batch().set_through(None);
    assert!(matches!(session.begin(&shared), Err(BeginError::HistoryLost(DOMAIN))));
    state.batch().set_through(Some(Stamp(1)));
    let mut tx = session_at(3).begin(&shared).expect("it looks ahead");
    assert_eq!(ready(tx.read_object(here)).as_deref(), Some(&b"x"[..]));
    assert_eq!(tx.waits(), Some(until(Line(state.line()), 3)));
}
