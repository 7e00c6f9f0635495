//! Readers on threads of their own, while the machine applies changes: rule 3, P5.
//!
//! Two objects are always changed together. No transaction may ever see them different, not even
//! one that is doomed. No assertion looks at time; the run is as long as its count of commits.
#![allow(clippy::disallowed_methods, reason = "readers have threads; the machine has none")]

use bytes::Bytes;
use larder_core::cache::io::{CacheInput, CacheOp, CacheOutput};
use larder_core::cache::{
    Cache, CacheConfig, Consistency, Finish, ReadCache, Session, SessionOptions, Step,
};
use larder_core::commit::{Aspect, Change, Op, Outcome, PageChange, PageKind, Target, Write};
use larder_core::id::{
    BootId, CommitId, DomainId, Generation, HistoryId, LinkId, PageId, PageNo, RequestId, Slot,
    Stamp, VolumeId,
};
use larder_core::machine::{LinkInput, LinkOutput, Machine};
use larder_core::message::{
    Epoch, LinkLimits, Message, PageAnswer, PageBody, ResumeAnswer, VolumeInfo, VolumeKey,
};
use larder_core::page::{Page, Record};
use larder_core::time::{Clock, Duration, Instant, WallTime};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const DOMAIN: DomainId = DomainId(1);
const BOOT: BootId = BootId(100);
const LINK: LinkId = LinkId(1);
const COMMITS: u64 = 4000;

struct NoClock;

impl Clock for NoClock {
    fn now(&self) -> Instant {
        Instant(0)
    }
}

fn page(no: u64) -> PageId {
    PageId { volume: VolumeId(7), page: PageNo(no) }
}

fn put(value: u64) -> Op {
    Op::Put {
        slot: Slot(0),
        generation: Generation(1),
        value: Record::Inline(Bytes::copy_from_slice(&value.to_le_bytes())).encode(),
    }
}

/// A cache with its parent's lines said by hand.
struct Driver {
    cache: Cache,
    asked: u64,
    fetches: Vec<(RequestId, PageId)>,
}

impl Driver {
    fn new() -> (Self, Arc<ReadCache>) {
        let config = CacheConfig::new("node", BOOT, Arc::new(NoClock));
        let (cache, shared) = Cache::new(config);
        let mut driver = Self { cache, asked: 0, fetches: Vec::new() };
        driver.open();
        (driver, shared)
    }

    fn input(&mut self, input: CacheInput) {
        let mut out = Vec::new();
        self.cache.handle(Instant(0), input, &mut out);
        for output in out {
            match output {
                CacheOutput::Link(LinkOutput::Send {
                    message: Message::Fetch { request, pages, .. },
                    ..
                }) => self.fetches.extend(pages.iter().map(|ask| (request, ask.page))),
                CacheOutput::Link(LinkOutput::Close { reason, .. }) => panic!("closed: {reason}"),
                _ => {}
            }
        }
    }

    fn say(&mut self, message: Message) {
        let (link, bytes) = (LINK, 10);
        self.input(CacheInput::Link(LinkInput::Received { link, message, bytes }));
    }

    fn ask(&mut self, op: CacheOp) {
        self.asked += 1;
        let (id, deadline) = (RequestId(self.asked), Instant(1));
        self.input(CacheInput::Request { id, op, deadline });
    }

    fn open(&mut self) {
        let (link, peer) = (LINK, "origin".into());
        self.input(CacheInput::Link(LinkInput::UpOpened { link, parent: 0, peer, in_group: true }));
        self.say(Message::Welcome {
            version: 1,
            name: "origin".into(),
            time: WallTime(0),
            limits: LinkLimits {
                requests_max: 64,
                stream_window_bytes: 1 << 20,
                bulk_window_bytes: 1 << 20,
                lease: Duration::from_secs(3),
            },
            domains: Vec::new(),
        });
        self.ask(CacheOp::OpenVolume(VolumeKey::Id(VolumeId(7))));
        self.say(Message::Volume {
            request: RequestId(1),
            info: VolumeInfo {
                id: VolumeId(7),
                domain: DOMAIN,
                name: "v".into(),
                page_bytes: 4096,
                root: PageKind::Slotted,
                version: Stamp::ZERO,
                pages: 1,
                bytes: 0,
                quota: None,
                room: None,
                right: None,
            },
        });
        self.say(Message::Resumed {
            request: RequestId(2),
            domain: DOMAIN,
            epochs: vec![Epoch { history: HistoryId(1), first: Stamp(1) }],
            answer: ResumeAnswer::From(Stamp::ZERO),
            stale: Vec::new(),
            through: Stamp::ZERO,
            time: WallTime(0),
            done: true,
        });
        self.say(Message::Registered { domain: DOMAIN, boot: BOOT });
    }

    /// Answers every fetch with both objects at `stamp`.
    fn answer(&mut self, stamp: u64) {
        for (request, id) in std::mem::take(&mut self.fetches) {
            let mut page = Page::empty(PageKind::Slotted);
            page.apply(&put(stamp), 4096).expect("fits");
            let answer = PageAnswer {
                page: id,
                version: Stamp(stamp),
                as_of: Stamp(stamp),
                body: PageBody::Data(page.encode(id)),
            };
            self.say(Message::Pages { request, domain: DOMAIN, pages: vec![answer] });
        }
    }

    fn fetch(&mut self, stamp: u64) {
        let (domain, pages, prefetch) = (DOMAIN, vec![page(5), page(6)], false);
        self.ask(CacheOp::Fetch { domain, pages, prefetch });
        self.answer(stamp);
    }

    /// Stamp `stamp` sets both objects to `stamp`: by a commit of this node (an update), or by
    /// another's (holes, fetched again).
    fn change(&mut self, stamp: u64, own: Option<u64>) {
        let mut id = CommitId { boot: BootId(200), sequence: stamp };
        if let Some(sequence) = own {
            id = CommitId { boot: BOOT, sequence };
            let write = |no| Write { page: page(no), op: put(stamp) };
            self.ask(CacheOp::Commit {
                domain: DOMAIN,
                history: HistoryId(1),
                checked: Stamp(stamp - 1),
                reads: Vec::new(),
                writes: vec![write(5), write(6)],
                named: Vec::new(),
            });
            let outcome = Outcome::Committed(Stamp(stamp));
            let history = HistoryId(1);
            self.say(Message::Committed { domain: DOMAIN, id, outcome, history });
        }
        let touched = |no| PageChange {
            page: page(no),
            touched: vec![(Target::Slot(Slot(0)), Aspect::Value)],
        };
        self.say(Message::Advance {
            domain: DOMAIN,
            from: Stamp(stamp - 1),
            through: Stamp(stamp),
            time: WallTime(0),
            changes: vec![Change { stamp: Stamp(stamp), id, pages: vec![touched(5), touched(6)] }],
            stale: Vec::new(),
            echo: None,
        });
        if own.is_none() {
            self.fetch(stamp);
        }
    }
}

/// What a step gave, if it gave something.
fn value(step: Step<Option<(Generation, Bytes)>>) -> Option<u64> {
    let Step::Ready(Some((_, record))) = step else {
        return None;
    };
    let Ok(Record::Inline(value)) = Record::decode(record) else {
        panic!("a record");
    };
    Some(u64::from_le_bytes(value[..].try_into().expect("eight bytes")))
}

/// Reads both objects until told to stop; gives how many transactions saw both and committed.
fn read(shared: &Arc<ReadCache>, consistency: Consistency, stop: &AtomicBool) -> u64 {
    let mut session = Session::new(SessionOptions { consistency, ..SessionOptions::default() });
    let mut committed = 0;
    let mut last = false;
    while !last {
        // One more after the machine has stopped: it finds both objects, however the threads ran.
        last = stop.load(Ordering::Relaxed);
        let mut transaction = session.begin(shared).expect("few transactions run");
        let x = value(transaction.read_slot(page(5), Slot(0)));
        let y = value(transaction.read_slot(page(6), Slot(0)));
        if let (Some(x), Some(y)) = (x, y) {
            assert_eq!(x, y, "a transaction saw two states mixed");
            // Looked at once more: the same, or doomed.
            if let Some(again) = value(transaction.read_slot(page(5), Slot(0))) {
                assert_eq!(again, x, "a transaction saw a value change");
            }
        }
        if let Finish::Local { seen, .. } = transaction.finish() {
            session.saw(&seen);
            for (value, seen) in x.iter().zip(&seen) {
                assert!(*value <= seen.stamp.0, "a value from above valid-through");
                // Validity (P3): serializable ones are exact at the stamp that they claim.
                let exact = consistency == Consistency::Snapshot || *value == seen.stamp.0;
                assert!(exact, "value {value} is not the one of stamp {}", seen.stamp);
            }
            committed += u64::from(x.is_some() && y.is_some());
        }
    }
    committed
}

/// Machine and readers side by side; `own` says which stamps are this node's commits.
fn race(consistency: Consistency, own: impl Fn(u64) -> bool) {
    let (mut driver, shared) = Driver::new();
    driver.fetch(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> =
            (0..3).map(|_| scope.spawn(|| read(&shared, consistency, &stop))).collect();
        let mut sequence = 0;
        for stamp in 1..=COMMITS {
            let own = own(stamp).then(|| {
                sequence += 1;
                sequence
            });
            driver.change(stamp, own);
        }
        driver.cache.check();
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            let committed = reader.join().expect("no reader failed");
            assert!(committed > 0, "the last transaction finds both objects");
        }
    });
}

#[test]
fn readers_never_see_updates_mixed() {
    race(Consistency::Serializable, |_| true);
}

#[test]
fn readers_never_see_holes_and_installs_mixed() {
    race(Consistency::Serializable, |stamp| stamp % 3 == 0);
}

#[test]
fn snapshots_never_see_states_mixed() {
    race(Consistency::Snapshot, |stamp| stamp % 3 != 0);
}
