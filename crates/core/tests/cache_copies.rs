//! Properties of page copies: whatever the order of own commits, others' changes, fetches, answers
//! on their way, evictions and resumes, a copy is the origin's page at valid-through, to the byte
//! and to the generations of its empty slots, but for its holes.

use bytes::Bytes;
use larder_core::cache::io::{CacheInput, CacheOp, CacheOutput};
use larder_core::cache::{Cache, CacheConfig, PageCopy, ReadCache};
use larder_core::commit::{Aspect, Change, Op, Outcome, PageChange, PageKind, Target, Write};
use larder_core::id::{
    BootId, CommitId, DomainId, Generation, HistoryId, LinkId, PageId, PageNo, RequestId, Slot,
    Stamp, VolumeId,
};
use larder_core::machine::{LinkInput, LinkOutput, Machine};
use larder_core::message::{
    Echo, Epoch, LinkLimits, Message, PageAnswer, PageAsk, PageBody, ResumeAnswer, VolumeInfo,
    VolumeKey,
};
use larder_core::page::{Page, Record};
use larder_core::time::{Clock, Duration, Instant, WallTime};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

const VOLUME: VolumeId = VolumeId(7);
const DOMAIN: DomainId = DomainId(1);
const BOOT: BootId = BootId(100);
const PAGE_BYTES: u32 = 4096;
/// Pages 1 to 3 are slotted, 4 is raw, 5 and on are made later.
const PAGES: u64 = 4;
const SLOTS: u16 = 64;

struct NoClock;

impl Clock for NoClock {
    fn now(&self) -> Instant {
        Instant(0)
    }
}

fn page_id(no: u64) -> PageId {
    PageId { volume: VOLUME, page: PageNo(no) }
}

#[derive(Clone, Debug)]
struct State {
    version: Stamp,
    page: Option<Page>,
}

/// The origin: every page's states, ascending by version.
#[derive(Default)]
struct Origin {
    durable: Stamp,
    pages: BTreeMap<PageId, Vec<State>>,
    next_page: u64,
}

impl Origin {
    fn at(&self, page: PageId, stamp: Stamp) -> State {
        let nothing = State { version: Stamp::ZERO, page: None };
        let states = self.pages.get(&page).into_iter().flatten();
        states.rev().find(|state| state.version <= stamp).cloned().unwrap_or(nothing)
    }

    fn latest(&self, page: PageId) -> State {
        self.at(page, self.durable)
    }

    /// Executes a commit; says what it touched. None: it does not apply.
    fn execute(&mut self, writes: &[Write]) -> Option<Vec<PageChange>> {
        let stamp = self.durable.next();
        let mut images: BTreeMap<PageId, Option<Page>> = BTreeMap::new();
        let mut touched: BTreeMap<PageId, Vec<(Target, Aspect)>> = BTreeMap::new();
        for Write { page, op } in writes {
            let image = images.entry(*page).or_insert_with(|| self.at(*page, stamp).page);
            let what = match (op, &mut *image) {
                (Op::CreatePage(kind), None) => {
                    *image = Some(Page::empty(*kind));
                    (Target::Page, Aspect::Existence)
                }
                (Op::DeletePage, Some(_)) => {
                    *image = None;
                    (Target::Page, Aspect::Existence)
                }
                (op, Some(image)) => image.apply(op, PAGE_BYTES).ok()?,
                (_, None) => return None,
            };
            touched.entry(*page).or_default().push(what);
        }
        self.durable = stamp;
        for (page, image) in images {
            self.pages.entry(page).or_default().push(State { version: stamp, page: image });
        }
        let named = |(page, touched)| PageChange::named(page, touched);
        Some(touched.into_iter().map(named).collect())
    }

    fn changed_after(&self, stamp: Stamp) -> Vec<PageId> {
        let changed = |page: &&PageId| self.latest(**page).version > stamp;
        self.pages.keys().filter(changed).copied().collect()
    }
}

/// What to do to a page; the numbers pick among what is possible there.
#[derive(Clone, Debug)]
enum Edit {
    /// Fills an empty slot.
    Create(u16, usize),
    Overwrite(u16, usize),
    Delete(u16),
    Add(u16),
    Raw(u32, usize),
    Truncate(u32),
}

#[derive(Clone, Debug)]
enum Act {
    Foreign(u64, Vec<Edit>),
    /// With the outcome before the stream, or after it.
    Own(u64, Vec<Edit>, bool),
    OwnCreates(Vec<Edit>),
    OwnDeletes(u64),
    ForeignDeletes(u64),
    Fetch(u64),
    Deliver,
    Stream,
    /// Named without detail.
    StreamStale,
    Relink,
    Reset,
    Tick,
}

struct World {
    cache: Cache,
    shared: Arc<ReadCache>,
    origin: Origin,
    now: Instant,
    link: LinkId,
    asked: u64,
    /// Not told yet.
    changes: Vec<Change>,
    /// Answers on their way, made when the fetch came.
    answers: VecDeque<(RequestId, PageAnswer)>,
    outcomes: Vec<(CommitId, Stamp)>,
    others: u64,
    /// The next resume is answered by a reset.
    reset: bool,
    /// Pages of the lists sent, and whether the last one has ended.
    listed: BTreeSet<PageId>,
    listed_all: bool,
    /// The last beat, if it was not echoed.
    beat: Option<Instant>,
}

impl World {
    fn new(memory_bytes: usize) -> Self {
        Self::with(memory_bytes, |config| config)
    }

    fn with(memory_bytes: usize, change: impl FnOnce(CacheConfig) -> CacheConfig) -> Self {
        let config = CacheConfig { memory_bytes, ..CacheConfig::new("n", BOOT, Arc::new(NoClock)) };
        let (cache, shared) = Cache::new(change(config));
        let mut world = Self {
            cache,
            shared,
            origin: Origin { next_page: PAGES + 1, ..Origin::default() },
            now: Instant(0),
            link: LinkId(0),
            asked: 0,
            changes: Vec::new(),
            answers: VecDeque::new(),
            outcomes: Vec::new(),
            others: 0,
            reset: false,
            listed: BTreeSet::new(),
            listed_all: false,
            beat: None,
        };
        for no in 1..=PAGES {
            let kind = if no == PAGES { PageKind::Raw } else { PageKind::Slotted };
            let write = Write { page: page_id(no), op: Op::CreatePage(kind) };
            world.origin.execute(&[write]).expect("a new page");
        }
        world.open_link();
        world.ask(CacheOp::OpenVolume(VolumeKey::Id(VOLUME)));
        world
    }

    fn open_link(&mut self) {
        self.link = LinkId(self.link.0 + 1);
        let link = self.link;
        self.input(CacheInput::Link(LinkInput::UpOpened {
            link,
            parent: 0,
            peer: "origin".into(),
            in_group: true,
        }));
        let limits = LinkLimits {
            requests_max: 16_384,
            stream_window_bytes: 1 << 20,
            bulk_window_bytes: 1 << 20,
            lease: Duration::from_secs(3),
        };
        self.say(Message::Welcome {
            version: 1,
            name: "origin".into(),
            time: WallTime(0),
            limits,
            domains: Vec::new(),
        });
    }

    fn ask(&mut self, op: CacheOp) {
        self.asked += 1;
        let deadline = self.now.after(Duration::from_secs(1000));
        self.input(CacheInput::Request { id: RequestId(self.asked), op, deadline });
    }

    fn say(&mut self, message: Message) {
        let link = self.link;
        self.input(CacheInput::Link(LinkInput::Received { link, message, bytes: 100 }));
    }

    fn input(&mut self, input: CacheInput) {
        let mut out = Vec::new();
        self.cache.handle(self.now, input, &mut out);
        self.take(out);
        self.cache.check();
    }

    fn take(&mut self, out: Vec<CacheOutput>) {
        for output in out {
            match output {
                CacheOutput::Link(LinkOutput::Send { message, .. }) => self.hear(message),
                CacheOutput::Link(LinkOutput::Close { reason, .. }) => {
                    panic!("the cache closed the link: {reason}")
                }
                CacheOutput::Reply { .. } | CacheOutput::Notice(_) | CacheOutput::Neighbour(_) => {}
            }
        }
    }

    /// The origin hears a message of the cache.
    fn hear(&mut self, message: Message) {
        match message {
            Message::OpenVolume { request, .. } => self.say(Message::Volume {
                request,
                info: VolumeInfo {
                    id: VOLUME,
                    domain: DOMAIN,
                    name: "v".into(),
                    page_bytes: PAGE_BYTES,
                    root: PageKind::Slotted,
                    version: Stamp::ZERO,
                    pages: 1,
                    bytes: 0,
                    quota: None,
                    room: None,
                    right: None,
                },
            }),
            Message::Resume { request, through, .. } => self.resumed(request, through),
            Message::Register { boot, .. } => {
                self.say(Message::Registered { domain: DOMAIN, boot });
            }
            Message::Fetch { request, pages, .. } => {
                for PageAsk { page, have } in pages {
                    let State { version, page: image } = self.origin.latest(page);
                    let body = match image {
                        Some(_) if have == Some(version) => PageBody::Valid,
                        Some(image) => PageBody::Data(image.encode(page)),
                        None => PageBody::Absent,
                    };
                    let as_of = self.origin.durable;
                    self.answers.push_back((request, PageAnswer { page, version, as_of, body }));
                }
            }
            Message::Commit { commit, .. } => {
                let Some(pages) = self.origin.execute(&commit.writes) else {
                    let outcome = Outcome::Unknown;
                    panic!("{:?} is not told: {outcome:?}", commit.writes);
                };
                let stamp = self.origin.durable;
                self.changes.push(Change { stamp, id: commit.id, pages });
                self.outcomes.push((commit.id, stamp));
            }
            Message::Beat { sent, .. } => self.beat = Some(sent),
            Message::Credit { .. }
            | Message::Confirm { .. }
            | Message::Evicted { .. }
            | Message::Hello { .. } => {}
            Message::Holding { pages, done, .. } => {
                self.listed.extend(pages);
                self.listed_all = done;
            }
            other => panic!("{other:?}"),
        }
    }

    fn resumed(&mut self, request: RequestId, from: Option<Stamp>) {
        self.changes.clear();
        let through = self.origin.durable;
        let (answer, stale) = match from {
            None => (ResumeAnswer::From(through), Vec::new()),
            Some(_) if std::mem::take(&mut self.reset) => (ResumeAnswer::Reset, Vec::new()),
            Some(from) => (ResumeAnswer::From(from), self.origin.changed_after(from)),
        };
        self.say(Message::Resumed {
            request,
            domain: DOMAIN,
            epochs: vec![Epoch { history: HistoryId(1), first: Stamp(1) }],
            answer,
            stale,
            through,
            time: WallTime(0),
            done: true,
        });
    }

    fn through(&self) -> Stamp {
        self.shared.through(DOMAIN).expect("the stream has begun")
    }

    fn stream(&mut self, detail: bool) {
        let from = self.through();
        let through = self.origin.durable;
        let changes = std::mem::take(&mut self.changes);
        let (changes, stale) = if detail {
            (changes, Vec::new())
        } else {
            (Vec::new(), self.origin.changed_after(from))
        };
        let echo: Option<Echo> = None;
        let time = WallTime(0);
        self.say(Message::Advance { domain: DOMAIN, from, through, time, changes, stale, echo });
    }

    /// Tells nothing but that the last beat was handled.
    fn echo(&mut self) {
        let through = self.through();
        let echo = self.beat.take().map(|sent| Echo { sent, age: Duration::ZERO, by_clock: false });
        self.say(Message::Advance {
            domain: DOMAIN,
            from: through,
            through,
            time: WallTime(0),
            changes: Vec::new(),
            stale: Vec::new(),
            echo,
        });
    }

    fn tell_outcomes(&mut self) {
        for (id, stamp) in std::mem::take(&mut self.outcomes) {
            let outcome = Outcome::Committed(stamp);
            let history = HistoryId(1);
            self.say(Message::Committed { domain: DOMAIN, id, outcome, history });
        }
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::Foreign(no, edits) => {
                let page = self.pick(*no);
                let writes = self.writes(page, edits);
                self.foreign(&writes);
            }
            Act::ForeignDeletes(no) => {
                let page = self.pick(*no);
                if page.page.0 > PAGES && self.origin.latest(page).page.is_some() {
                    self.foreign(&[Write { page, op: Op::DeletePage }]);
                }
            }
            Act::Own(no, edits, outcome_first) => {
                let page = self.pick(*no);
                let writes = self.writes(page, edits);
                self.own(writes, *outcome_first);
            }
            Act::OwnCreates(edits) => {
                let page = page_id(self.origin.next_page);
                self.origin.next_page += 1;
                let mut image = Page::empty(PageKind::Slotted);
                let mut writes = vec![Write { page, op: Op::CreatePage(PageKind::Slotted) }];
                writes.extend(edit_all(&mut image, page, edits));
                self.own(writes, false);
            }
            Act::OwnDeletes(no) => {
                let page = self.pick(*no);
                if page.page.0 > PAGES && self.origin.latest(page).page.is_some() {
                    self.own(vec![Write { page, op: Op::DeletePage }], true);
                }
            }
            Act::Fetch(no) => {
                let pages = vec![self.pick(*no)];
                self.ask(CacheOp::Fetch { domain: DOMAIN, pages, prefetch: false });
            }
            Act::Deliver => {
                if let Some((request, answer)) = self.answers.pop_front() {
                    self.say(Message::Pages { request, domain: DOMAIN, pages: vec![answer] });
                }
            }
            Act::Stream => self.stream(true),
            Act::StreamStale => self.stream(false),
            Act::Relink | Act::Reset => {
                let link = self.link;
                self.reset = matches!(act, Act::Reset);
                self.answers.clear();
                self.input(CacheInput::Link(LinkInput::Closed { link, reason: None }));
                self.open_link();
                self.tell_outcomes();
            }
            Act::Tick => {
                self.tick();
                self.stream(true);
            }
        }
    }

    fn tick(&mut self) {
        self.now = self.now.after(Duration::from_millis(300));
        let mut out = Vec::new();
        self.cache.handle_timeout(self.now, &mut out);
        self.take(out);
    }

    /// One of all pages ever made, those most that are there from the beginning.
    fn pick(&self, no: u64) -> PageId {
        page_id(1 + no % (self.origin.next_page - 1))
    }

    fn writes(&self, page: PageId, edits: &[Edit]) -> Vec<Write> {
        let Some(mut image) = self.origin.latest(page).page else {
            return Vec::new();
        };
        edit_all(&mut image, page, edits)
    }

    fn foreign(&mut self, writes: &[Write]) {
        if writes.is_empty() {
            return;
        }
        let pages = self.origin.execute(writes).expect("made for this state");
        self.others += 1;
        let id = CommitId { boot: BootId(200), sequence: self.others };
        self.changes.push(Change { stamp: self.origin.durable, id, pages });
    }

    fn own(&mut self, writes: Vec<Write>, outcome_first: bool) {
        if writes.is_empty() {
            return;
        }
        self.quietly_own(writes);
        if outcome_first {
            self.tell_outcomes();
            self.stream(true);
        } else {
            self.stream(true);
            self.tell_outcomes();
        }
    }

    /// An own commit of which the cache hears nothing yet.
    fn quietly_own(&mut self, writes: Vec<Write>) {
        let op = CacheOp::Commit {
            domain: DOMAIN,
            history: HistoryId(1),
            checked: self.through(),
            reads: Vec::new(),
            writes,
            named: Vec::new(),
        };
        self.ask(op);
    }

    /// Every copy is the origin's page at valid-through.
    fn compare(&self) -> Result<usize, TestCaseError> {
        let through = self.through();
        let mut held = 0;
        for no in 1..self.origin.next_page {
            if let Some(copy) = self.shared.peek(page_id(no)) {
                held += 1;
                compare(&copy, &self.origin.at(copy.id, through))?;
            }
        }
        Ok(held)
    }
}

fn compare(copy: &PageCopy, truth: &State) -> Result<(), TestCaseError> {
    let (Some(here), Some(there)) = (&copy.page, &truth.page) else {
        prop_assert_eq!(copy.page.is_some(), truth.page.is_some(), "{} is there or not", copy.id);
        return Ok(());
    };
    if copy.complete() {
        prop_assert_eq!(copy.version, truth.version, "version of {}", copy.id);
        prop_assert_eq!(here.encode(copy.id), there.encode(copy.id), "bytes of {}", copy.id);
    }
    if here.kind() == PageKind::Raw {
        return Ok(());
    }
    for slot in (0..SLOTS).chain([9999]).map(Slot).filter(|slot| !copy.is_hole(*slot)) {
        prop_assert_eq!(here.get(slot), there.get(slot), "{} slot {}", copy.id, slot.0);
        let (next, truly) = (here.next_generation(slot), there.next_generation(slot));
        prop_assert_eq!(next, truly, "next generation of {} slot {}", copy.id, slot.0);
    }
    Ok(())
}

/// What of the edits applies to the image, as writes.
fn edit_all(image: &mut Page, page: PageId, edits: &[Edit]) -> Vec<Write> {
    let mut writes = Vec::new();
    for edit in edits {
        let ops: Vec<Op> = op_of(image, edit).into_iter().collect();
        for op in ops {
            if image.apply(&op, PAGE_BYTES).is_ok() {
                writes.push(Write { page, op });
            }
        }
    }
    writes
}

fn op_of(image: &Page, edit: &Edit) -> Option<Op> {
    let filled: Vec<(Slot, Generation)> = image.slots().collect();
    let one = |no: u16| (!filled.is_empty()).then(|| filled[usize::from(no) % filled.len()]);
    let value = |bytes: usize| Record::Inline(Bytes::from(vec![bytes as u8; 8 + bytes])).encode();
    Some(match edit {
        Edit::Create(no, bytes) => {
            let slots = (0..SLOTS).map(|by| Slot((no + by) % SLOTS));
            let empty = |slot: Slot| image.next_generation(slot).map(|next| (slot, next));
            let (slot, generation) = slots.filter_map(empty).next()?;
            Op::Put { slot, generation, value: value(*bytes) }
        }
        Edit::Overwrite(no, bytes) => {
            let (slot, generation) = one(*no)?;
            Op::Put { slot, generation, value: value(*bytes) }
        }
        Edit::Delete(no) => {
            let (slot, generation) = one(*no)?;
            Op::Delete { slot, generation }
        }
        Edit::Add(no) => {
            let (slot, generation) = one(*no)?;
            Op::Add { slot, generation, offset: 0, delta: 3 }
        }
        Edit::Raw(offset, bytes) => {
            Op::WriteRaw { offset: *offset, bytes: Bytes::from(vec![7; *bytes]) }
        }
        Edit::Truncate(length) => Op::TruncateRaw { length: *length },
    })
}

fn edits(most: usize) -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        6 => (0..SLOTS, 0..80usize).prop_map(|(no, bytes)| Edit::Create(no, bytes)),
        3 => (0..SLOTS, 0..200usize).prop_map(|(no, bytes)| Edit::Overwrite(no, bytes)),
        6 => (0..SLOTS).prop_map(Edit::Delete),
        2 => (0..SLOTS).prop_map(Edit::Add),
        1 => (0..3000u32, 1..900usize).prop_map(|(offset, bytes)| Edit::Raw(offset, bytes)),
        1 => (0..4000u32).prop_map(Edit::Truncate),
    ];
    proptest::collection::vec(edit, 1..most)
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let no = 0..6u64;
    let act = prop_oneof![
        8 => (no.clone(), edits(24)).prop_map(|(no, edits)| Act::Foreign(no, edits)),
        8 => (no.clone(), edits(24), any::<bool>())
            .prop_map(|(no, edits, first)| Act::Own(no, edits, first)),
        1 => edits(40).prop_map(Act::OwnCreates),
        1 => no.clone().prop_map(Act::OwnDeletes),
        1 => no.clone().prop_map(Act::ForeignDeletes),
        8 => no.prop_map(Act::Fetch),
        10 => Just(Act::Deliver),
        6 => Just(Act::Stream),
        1 => Just(Act::StreamStale),
        1 => Just(Act::Relink),
        1 => Just(Act::Reset),
        2 => Just(Act::Tick),
    ];
    proptest::collection::vec(act, 1..160)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn a_copy_is_the_origins_page(small in any::<bool>(), acts in acts()) {
        let mut world = World::new(if small { 9000 } else { 1 << 20 });
        for act in &acts {
            world.act(act);
            world.compare()?;
        }
    }
}

/// A review found it. Another node deleted an object of a page of which this node held a copy: a
/// hole. The page remembered as many generations as it may when this node deleted an object of its
/// own, and the origin forgot some; the copy remembered one less, and forgot none. From then on the
/// copy, called exact, gave new objects generations that the origin refused, and every repetition
/// of the transaction did the same.
#[test]
fn bug13_generations_forgotten_beside_a_hole() {
    let mut world = World::new(1 << 20);
    let page = page_id(1);
    let put = |slot, generation, value: &[u8]| {
        let value = Record::Inline(Bytes::copy_from_slice(value)).encode();
        let (slot, generation) = (Slot(slot), Generation(generation));
        Write { page, op: Op::Put { slot, generation, value } }
    };
    let delete =
        |slot| Write { page, op: Op::Delete { slot: Slot(slot), generation: Generation(1) } };
    let filled: Vec<Write> = (0..50).map(|slot| put(slot, 1, b"x")).collect();
    world.foreign(&filled);
    world.foreign(&(0..41).map(delete).collect::<Vec<_>>());
    world.stream(true);
    world.act(&Act::Fetch(0));
    world.act(&Act::Deliver);
    assert_eq!(world.compare().expect("fetched just now"), 1);
    world.foreign(&[delete(41)]);
    world.stream(true);
    assert_eq!(world.compare().expect("a hole"), 1);
    world.own(vec![delete(42)], true);
    assert_eq!(world.compare().expect("the copy is gone, or exact"), 0);
}

/// The same with the copy's own order of looks: a `Put` that filled a hole, and for whose room the
/// copy forgot generations that the origin, where the hole's record was shorter, did not forget.
#[test]
fn bug13_generations_forgotten_by_filling_a_hole() {
    let mut world = World::new(1 << 20);
    let page = page_id(1);
    let put = |slot, bytes| {
        let value = Record::Inline(Bytes::from(vec![1; bytes])).encode();
        let (slot, generation) = (Slot(slot), Generation(1));
        Write { page, op: Op::Put { slot, generation, value } }
    };
    let delete =
        |slot| Write { page, op: Op::Delete { slot: Slot(slot), generation: Generation(1) } };
    let room = PAGE_BYTES as usize - 32;
    // Slots 0 and 1 take all but the room of a few remembered generations.
    world.foreign(&(0..10).map(|slot| put(slot, 40)).collect::<Vec<_>>());
    world.foreign(&(2..10).map(delete).collect::<Vec<_>>());
    world.foreign(&[put(0, room / 2), put(1, room / 2 - 140)]);
    world.stream(true);
    world.act(&Act::Fetch(0));
    world.act(&Act::Deliver);
    assert_eq!(world.compare().expect("fetched just now"), 1);
    // A hole: slot 1 is short now. The node's own slot 0 grows.
    world.foreign(&[put(1, 40)]);
    world.foreign(&[put(0, 40)]);
    world.stream(true);
    world.own(vec![put(0, room / 2 + 40)], true);
    world.compare().expect("the copy is gone, or exact");
}

/// A node with more pages than one message lists sent its list anew, in parts. Between two parts a
/// commit of its own made a page: no longer under way and not of the list's beginning, it was in no
/// part. The parent narrowed the registration, and the node never heard of that page's changes (P3).
/// And a commit of more pages than a message lists, put off for long, kept the list from ending.
#[test]
fn bug21_a_page_made_beside_a_list() {
    let config = |config: CacheConfig| CacheConfig { notices_max: 1, ..config };
    let mut world = World::with(1 << 30, config);
    let many: Vec<PageId> = (1000..6000).map(page_id).collect();
    for pages in many.chunks(1000) {
        let pages = pages.to_vec();
        world.ask(CacheOp::Fetch { domain: DOMAIN, pages, prefetch: false });
    }
    for no in 0..3 {
        world.act(&Act::Fetch(no));
    }
    while !world.answers.is_empty() {
        world.act(&Act::Deliver);
    }
    // More notices are owed than it keeps: a list is wanted.
    let now: Vec<Change> = (1..=3)
        .map(|no| {
            world.origin.durable = world.origin.durable.next();
            let stamp = world.origin.durable;
            let id = CommitId { boot: BootId(200), sequence: no };
            Change { stamp, id, pages: vec![PageChange::whole(page_id(no))] }
        })
        .collect();
    world.changes.extend(now);
    world.stream(true);
    let page = page_id(9000);
    let make = Write { page, op: Op::CreatePage(PageKind::Slotted) };
    let mut big = vec![make];
    big.extend(
        (10_000..15_000).map(page_id).map(|page| Write { page, op: Op::CreatePage(PageKind::Raw) }),
    );
    world.listed.clear();
    world.quietly_own(big);
    for _ in 0..12 {
        // The list is announced, and made when a beat is echoed.
        world.tick();
        if !world.listed.is_empty() {
            break;
        }
        world.echo();
    }
    assert!(!world.listed.is_empty() && !world.listed_all, "the first part is out");
    world.tell_outcomes();
    world.stream(true);
    for _ in 0..8 {
        world.tick();
    }
    assert!(world.listed_all, "the list ends");
    assert!(world.listed.contains(&page), "made beside the list");
    let held: Vec<PageId> = many.into_iter().filter(|p| world.shared.peek(*p).is_some()).collect();
    assert!(held.iter().all(|page| world.listed.contains(page)));
}

/// A mount at which files and directories came and went had its memory fill with copies that said of
/// pages that they were gone: 320 bytes each, up to all of `node.memory`, a gigabyte if nobody had set it.
/// Only so many are kept, the last ones; of the others it is asked again.
#[test]
fn bug155_pages_that_are_gone_do_not_fill_the_memory() {
    let config = |config: CacheConfig| CacheConfig { absences_max: 100, ..config };
    let mut world = World::with(1 << 20, config);
    let first = world.origin.next_page;
    for no in first..first + 150 {
        let (page, kind) = (page_id(no), PageKind::Slotted);
        world.origin.next_page = no + 1;
        world.own(vec![Write { page, op: Op::CreatePage(kind) }], true);
        world.own(vec![Write { page, op: Op::DeletePage }], true);
    }
    let held: Vec<u64> = (first..world.origin.next_page)
        .filter(|no| world.shared.peek(page_id(*no)).is_some())
        .collect();
    assert_eq!(held, (world.origin.next_page - 100..world.origin.next_page).collect::<Vec<_>>());
    world.compare().expect("they are absent at the origin");
    // One that was shed, and is made again by somebody else.
    world.act(&Act::Fetch(first - 1));
    world.act(&Act::Deliver);
    assert!(world.shared.peek(page_id(first)).is_some_and(|copy| copy.page.is_none()));
    world.foreign(&[Write { page: page_id(first), op: Op::CreatePage(PageKind::Raw) }]);
    world.stream(true);
    world.compare().expect("it is not held, or it is there");
    // A page of which it was known that it is absent is there: the next ones are counted as before.
    let page = page_id(world.origin.next_page);
    world.origin.next_page += 1;
    world.own(vec![Write { page, op: Op::CreatePage(PageKind::Slotted) }], true);
    let held = world.compare().expect("all are exact");
    assert!((100..=101).contains(&held), "{held} copies");
}
