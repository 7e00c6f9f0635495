//! A cluster whose messages are delivered by hand: nothing is drawn, so a test is one schedule.

use bytes::Bytes;
use larder_core::cache::io::{CacheInput, CacheOp, CacheOutput, CacheReply, Notice};
use larder_core::cache::{
    BeginError, Cache, CacheConfig, Finish, ReadCache, Session, Step, Transaction, TransactionError,
};
use larder_core::commit::Outcome;
use larder_core::id::{
    BootId, DomainId, HistoryId, LinkId, ObjectId, PageId, PageNo, RequestId, Slot, VolumeId,
};
use larder_core::machine::{Fault, Faults, LinkInput, LinkOutput, Machine};
use larder_core::message::{CloseReason, Lane, Message, RequestError, Role, VolumeKey, VolumeSpec};
use larder_core::origin::io::{OriginInput, OriginOutput};
use larder_core::origin::{Origin, OriginConfig, RecoveredDomain};
use larder_core::relay::io::{RelayInput, RelayOutput};
use larder_core::relay::{Relay, RelayConfig};
use larder_core::rng::Rng;
use larder_core::time::{Clock, Duration, Instant, WallTime};
use larder_sim::net::Way;
use larder_store::driver::DomainStore;
use larder_store::log::LogConfig;
use larder_store::pages::ModelPages;
use larder_store::testing::FaultDisk;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The one domain and volume.
pub(crate) const DOMAIN: DomainId = DomainId(1);
const VOLUME: VolumeId = VolumeId(7);
const MILLI: u64 = 1_000_000;

/// Who takes part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Who {
    Origin,
    Relay,
    Node(usize),
}

/// A transaction of a node.
pub(crate) struct Tx {
    pub(crate) inner: Transaction,
    /// The fetch that it waits for.
    waiting: Option<u64>,
}

/// Why a transaction cannot go on now.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Stuck {
    /// Its pages are under way.
    Waits,
    Doomed,
    Refused(TransactionError),
}

#[derive(Clone, Default)]
struct HandClock(Arc<AtomicU64>);

impl Clock for HandClock {
    fn now(&self) -> Instant {
        Instant(self.0.load(Ordering::Relaxed))
    }
}

struct Line {
    link: LinkId,
    child: Who,
    parent: Who,
    lanes: [[VecDeque<Message>; 3]; 2],
    held: [[bool; 3]; 2],
}

struct Node {
    cache: Cache,
    read: Arc<ReadCache>,
    clock: HandClock,
    parent: Who,
    session: Session,
    requests: u64,
    replies: BTreeMap<u64, Result<CacheReply, RequestError>>,
    refused: Option<CloseReason>,
    /// How far its clock is behind, and since when it sleeps.
    behind: u64,
    asleep: Option<u64>,
}

/// The cluster.
pub(crate) struct Cluster {
    faults: Faults,
    now: u64,
    draws: u64,
    origin: Option<Origin>,
    store: Option<DomainStore<FaultDisk, Arc<ModelPages>>>,
    disk: FaultDisk,
    pages: Arc<ModelPages>,
    asked: VecDeque<OriginOutput>,
    relay: Option<Relay>,
    nodes: Vec<Node>,
    lines: Vec<Line>,
    links: u64,
}

impl Cluster {
    /// An origin without children.
    pub(crate) fn new(faults: Faults) -> Self {
        let mut cluster = Self {
            faults,
            now: 1_000 * MILLI,
            draws: 0,
            origin: None,
            store: None,
            disk: FaultDisk::default(),
            pages: Arc::new(ModelPages::new(faults)),
            asked: VecDeque::new(),
            relay: None,
            nodes: Vec::new(),
            lines: Vec::new(),
            links: 0,
        };
        cluster.start_origin(false);
        cluster
    }

    /// A relay below the origin.
    pub(crate) fn with_relay(mut self) -> Self {
        let config =
            RelayConfig { boot: BootId(50), faults: self.faults, ..RelayConfig::default() };
        self.relay = Some(Relay::new(config));
        self.connect(Who::Relay);
        self.run();
        self
    }

    /// A node that holds at most so many bytes, with the volume open.
    pub(crate) fn node(&mut self, parent: Who, memory_bytes: usize) -> usize {
        let number = self.nodes.len();
        let clock = HandClock::default();
        clock.0.store(self.now, Ordering::Relaxed);
        let boot = BootId(100 + number as u128);
        let mut config = CacheConfig::new(&format!("node{number}"), boot, Arc::new(clock.clone()));
        config.memory_bytes = memory_bytes;
        config.faults = self.faults;
        config.silence_max = Duration::from_secs(60);
        let (cache, read) = Cache::new(config);
        self.nodes.push(Node {
            cache,
            read,
            clock,
            parent,
            session: Session::default(),
            requests: 0,
            replies: BTreeMap::new(),
            refused: None,
            behind: 0,
            asleep: None,
        });
        self.connect(Who::Node(number));
        self.run();
        let op = if number == 0 {
            CacheOp::CreateVolume(VolumeSpec {
                id: VOLUME,
                name: "v".into(),
                page_bytes: 4096,
                domain: Some(DOMAIN),
            })
        } else {
            CacheOp::OpenVolume(VolumeKey::Id(VOLUME))
        };
        let opened = self.ask(number, op);
        assert!(matches!(opened, Some(Ok(CacheReply::Volume(_)))), "{opened:?}");
        self.run();
        number
    }

    // ---- the origin ----

    /// Starts the origin from its disk.
    pub(crate) fn start_origin(&mut self, accept_fork: bool) {
        self.draws += 1;
        let config = LogConfig { segment_bytes: 1 << 16, reserve_bytes: 0, faults: self.faults };
        let (disk, pages) = (self.disk.clone(), Arc::clone(&self.pages));
        let ids = Rng::new(self.draws);
        let opened = if self.draws == 1 {
            DomainStore::create(disk, pages, config, DOMAIN, ids)
        } else {
            DomainStore::open(disk, pages, config, ids)
        };
        let (store, recovered) = opened.expect("nothing is wrong with the disk");
        self.store = Some(store);
        let recovered = RecoveredDomain {
            meta: recovered.meta,
            apart: recovered.apart,
            records: recovered.records,
            history: HistoryId(u128::from(self.draws)),
        };
        let mut config =
            OriginConfig { accept_fork, faults: self.faults, ..OriginConfig::default() };
        config.downlink.silence_max = Duration::from_secs(60);
        // Nothing is installed, and who misses two commits is off the ring.
        config.install_interval = Duration::from_secs(3_600);
        config.downlink.ring_commits_max = 1;
        let mut out = Vec::new();
        let (now, wall) = (Instant(self.now), WallTime(0));
        let origin = Origin::new(config, now, wall, vec![recovered], &mut out);
        self.origin = Some(origin.expect("what was recovered hangs together"));
        self.origin_outputs(out);
        self.run();
    }

    /// The origin's process ends, and all its links.
    pub(crate) fn stop_origin(&mut self) {
        self.origin = None;
        self.store = None;
        self.asked.clear();
        self.pages.crash(false);
        while let Some(line) = self.lines.iter().find(|line| line.parent == Who::Origin) {
            self.cut(line.child);
        }
    }

    /// A copy of the origin's store.
    pub(crate) fn back_up(&self) -> (FaultDisk, ModelPages) {
        (self.disk.copy(), (*self.pages).clone())
    }

    /// Puts a copy in the place of the store. The origin must have stopped.
    pub(crate) fn restore(&mut self, (disk, pages): (FaultDisk, ModelPages)) {
        assert!(self.origin.is_none());
        self.disk = disk;
        self.pages = Arc::new(pages);
    }

    // ---- lines ----

    /// A child connects to its parent.
    pub(crate) fn connect(&mut self, child: Who) {
        let parent = match child {
            Who::Node(number) => self.nodes[number].parent,
            Who::Relay => Who::Origin,
            Who::Origin => panic!("the origin has no parent"),
        };
        self.links += 1;
        let link = LinkId(self.links);
        let line =
            Line { link, child, parent, lanes: Default::default(), held: Default::default() };
        self.lines.push(line);
        let peer = self.name(child);
        let role = if child == Who::Relay { Role::Relay } else { Role::Node };
        self.feed(parent, LinkInput::DownOpened { link, peer, role, in_group: true });
        let peer = self.name(parent);
        self.feed(child, LinkInput::UpOpened { link, parent: 0, peer, in_group: true });
    }

    /// A child's line breaks: what was under way on it is lost, and both ends learn it.
    pub(crate) fn cut(&mut self, child: Who) {
        let place = self.lines.iter().position(|line| line.child == child).expect("it has a line");
        let line = self.lines.remove(place);
        for end in [line.parent, line.child] {
            self.feed(end, LinkInput::Closed { link: line.link, reason: None });
        }
    }

    /// Holds up a lane of a child's line.
    pub(crate) fn hold(&mut self, child: Who, way: Way, lane: Lane) {
        self.line(child).held[way as usize][lane as usize] = true;
    }

    /// Takes the messages that wait now in a lane that is held up, does something, and delivers just
    /// them.
    pub(crate) fn let_one<T>(
        &mut self,
        child: Who,
        way: Way,
        lane: Lane,
        meanwhile: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let line = self.line(child);
        let to = if way == Way::Up { line.parent } else { line.child };
        let (link, now) = (line.link, std::mem::take(&mut line.lanes[way as usize][lane as usize]));
        assert!(!now.is_empty(), "nothing waits there");
        let result = meanwhile(self);
        for message in now {
            self.feed(to, LinkInput::Received { link, message, bytes: 100 });
        }
        self.run();
        result
    }

    /// Lets go of all lanes of a child's line, and of what they bring.
    pub(crate) fn release(&mut self, child: Who) {
        self.line(child).held = Default::default();
        self.run();
    }

    /// The last bulk message of a child's line overtakes the others.
    pub(crate) fn overtake(&mut self, child: Who, way: Way) {
        let bulk = &mut self.line(child).lanes[way as usize][Lane::Bulk as usize];
        assert!(bulk.len() > 1, "there is nothing to be overtaken");
        bulk.rotate_right(1);
    }

    fn line(&mut self, child: Who) -> &mut Line {
        self.lines.iter_mut().find(|line| line.child == child).expect("it has a line")
    }

    fn name(&self, who: Who) -> String {
        match who {
            Who::Origin => "origin".into(),
            Who::Relay => "relay".into(),
            Who::Node(number) => format!("node{number}"),
        }
    }

    // ---- time ----

    /// Delivers everything that is not held up, until nothing is under way.
    pub(crate) fn run(&mut self) {
        while self.deliver_one() {}
    }

    fn deliver_one(&mut self) -> bool {
        if let Some(asked) = self.asked.pop_front() {
            let store = self.store.as_mut().expect("open while the origin lives");
            if let Some(answer) = store.carry_out(asked) {
                self.pages.answered();
                self.feed_origin(answer);
            }
            return true;
        }
        for place in 0..self.lines.len() {
            for (way, lane) in (0..2).flat_map(|way| (0..3).map(move |lane| (way, lane))) {
                let line = &mut self.lines[place];
                let to = if way == Way::Up as usize { line.parent } else { line.child };
                let asleep = matches!(to, Who::Node(number) if self.nodes[number].asleep.is_some());
                if line.held[way][lane] || asleep {
                    continue;
                }
                if let Some(message) = line.lanes[way][lane].pop_front() {
                    let link = line.link;
                    self.feed(to, LinkInput::Received { link, message, bytes: 100 });
                    return true;
                }
            }
        }
        false
    }

    /// Lets time pass: what falls due is done, what is sent arrives.
    pub(crate) fn wait(&mut self, milliseconds: u64) {
        let until = self.now + milliseconds * MILLI;
        while self.now < until {
            self.now = until.min(self.now + 50 * MILLI);
            let now = Instant(self.now);
            for number in 0..self.nodes.len() {
                self.set_clock(number);
                let node = &mut self.nodes[number];
                let local = node.clock.now();
                if node.asleep.is_none() && node.cache.next_timeout().is_some_and(|at| at <= local)
                {
                    let mut out = Vec::new();
                    node.cache.handle_timeout(local, &mut out);
                    self.node_outputs(number, out);
                }
            }
            if let Some(relay) = &mut self.relay {
                let mut out = Vec::new();
                relay.handle_timeout(now, &mut out);
                self.relay_outputs(out);
            }
            if let Some(origin) = &mut self.origin {
                let mut out = Vec::new();
                origin.handle_timeout(now, &mut out);
                self.origin_outputs(out);
            }
            self.run();
        }
    }

    /// A node's machine is suspended: nothing reaches it, and it does nothing.
    pub(crate) fn sleep(&mut self, node: usize) {
        self.nodes[node].asleep = Some(self.now);
    }

    /// The node goes on. Messages that came meanwhile still wait.
    pub(crate) fn wake(&mut self, node: usize) {
        let since = self.nodes[node].asleep.take().expect("it sleeps");
        if self.faults.has(Fault::ClockStopsAsleep) {
            self.nodes[node].behind += self.now - since;
        }
        self.set_clock(node);
    }

    fn set_clock(&mut self, number: usize) {
        let node = &self.nodes[number];
        node.clock.0.store(self.now - node.behind, Ordering::Relaxed);
    }

    // ---- machines ----

    fn feed(&mut self, who: Who, input: LinkInput) {
        let now = Instant(self.now);
        match who {
            Who::Origin => self.feed_origin(OriginInput::Link(input)),
            Who::Relay => {
                let mut out = Vec::new();
                let relay = self.relay.as_mut().expect("there is a relay");
                relay.handle(now, RelayInput::Link(input), &mut out);
                relay.check();
                self.relay_outputs(out);
            }
            Who::Node(number) => self.feed_node(number, CacheInput::Link(input)),
        }
    }

    fn feed_origin(&mut self, input: OriginInput) {
        let mut out = Vec::new();
        if let Some(origin) = &mut self.origin {
            origin.handle(Instant(self.now), input, &mut out);
            origin.check();
        }
        self.origin_outputs(out);
    }

    fn feed_node(&mut self, number: usize, input: CacheInput) {
        let mut out = Vec::new();
        let node = &mut self.nodes[number];
        node.cache.handle(node.clock.now(), input, &mut out);
        node.cache.check();
        self.node_outputs(number, out);
    }

    fn origin_outputs(&mut self, out: Vec<OriginOutput>) {
        for output in out {
            match output {
                OriginOutput::Link(output) => self.link_output(Who::Origin, output),
                OriginOutput::DomainFailed { fault, .. } => panic!("the store failed: {fault}"),
                asked => self.asked.push_back(asked),
            }
        }
    }

    fn relay_outputs(&mut self, out: Vec<RelayOutput>) {
        for output in out {
            if let RelayOutput::Link(output) = output {
                self.link_output(Who::Relay, output);
            }
        }
    }

    fn node_outputs(&mut self, number: usize, out: Vec<CacheOutput>) {
        for output in out {
            match output {
                CacheOutput::Link(output) => self.link_output(Who::Node(number), output),
                CacheOutput::Reply { id, result } => {
                    self.nodes[number].replies.insert(id.0, result);
                }
                CacheOutput::Notice(Notice::Refused { reason }) => {
                    self.nodes[number].refused = Some(reason);
                }
                CacheOutput::Notice(_) | CacheOutput::Neighbour(_) => {}
            }
        }
    }

    fn link_output(&mut self, from: Who, output: LinkOutput) {
        match output {
            LinkOutput::Send { link, message } => {
                if let Some(line) = self.lines.iter_mut().find(|line| line.link == link) {
                    let way = if line.child == from { Way::Up } else { Way::Down };
                    line.lanes[way as usize][message.lane() as usize].push_back(message);
                }
            }
            LinkOutput::Close { link, reason } => {
                if let Some(place) = self.lines.iter().position(|line| line.link == link) {
                    let line = self.lines.remove(place);
                    let other = if line.child == from { line.parent } else { line.child };
                    self.feed(other, LinkInput::Closed { link, reason: Some(reason) });
                }
            }
        }
    }

    // ---- users ----

    /// Asks a node's machine.
    pub(crate) fn request(&mut self, number: usize, op: CacheOp) -> u64 {
        let node = &mut self.nodes[number];
        node.requests += 1;
        let id = node.requests;
        let deadline = node.clock.now().after(Duration::from_secs(60));
        self.feed_node(number, CacheInput::Request { id: RequestId(id), op, deadline });
        id
    }

    /// Asks, delivers what is not held up, and gives the reply if it came.
    pub(crate) fn ask(
        &mut self,
        number: usize,
        op: CacheOp,
    ) -> Option<Result<CacheReply, RequestError>> {
        let id = self.request(number, op);
        self.run();
        self.reply(number, id)
    }

    /// The reply to a request, if it came.
    pub(crate) fn reply(
        &mut self,
        number: usize,
        id: u64,
    ) -> Option<Result<CacheReply, RequestError>> {
        self.nodes[number].replies.remove(&id)
    }

    /// Why the node's link was refused for good, if it was.
    pub(crate) fn refused(&self, number: usize) -> Option<&CloseReason> {
        self.nodes[number].refused.as_ref()
    }

    /// The node's session.
    pub(crate) fn session(&mut self, number: usize) -> &mut Session {
        &mut self.nodes[number].session
    }

    /// Begins a transaction of the node's session.
    pub(crate) fn begin(&mut self, number: usize) -> Result<Tx, BeginError> {
        let node = &self.nodes[number];
        let begun = match node.session.begin(&node.read) {
            Err(BeginError::Wait(awaited)) => {
                self.ask(number, CacheOp::WaitThrough(awaited));
                let node = &self.nodes[number];
                node.session.begin(&node.read)
            }
            begun => begun,
        };
        begun.map(|inner| Tx { inner, waiting: None })
    }

    /// Takes a step of a transaction, fetching what it needs.
    pub(crate) fn step<T>(
        &mut self,
        number: usize,
        tx: &mut Tx,
        mut step: impl FnMut(&mut Transaction) -> Step<T>,
    ) -> Result<T, Stuck> {
        for _ in 0..20 {
            if let Some(id) = tx.waiting {
                self.run();
                let Some(reply) = self.reply(number, id) else {
                    return Err(Stuck::Waits);
                };
                tx.waiting = None;
                match reply {
                    Ok(CacheReply::Fetched { through, pages }) => {
                        if let Step::Doomed(_) = tx.inner.supply(through, &pages) {
                            return Err(Stuck::Doomed);
                        }
                    }
                    Ok(CacheReply::Ids(range)) => tx.inner.supply_ids(range),
                    other => panic!("{other:?} is not what was asked for"),
                }
            }
            let op = match step(&mut tx.inner) {
                Step::Ready(value) => return Ok(value),
                Step::Need { domain, pages } => CacheOp::Fetch { domain, pages, prefetch: false },
                Step::NeedIds { volume, count } => CacheOp::AllocateIds { volume, count },
                Step::Wait(awaited) => CacheOp::WaitThrough(awaited),
                Step::Doomed(_) => return Err(Stuck::Doomed),
                Step::Refused(error) => return Err(Stuck::Refused(error)),
            };
            tx.waiting = Some(self.request(number, op));
        }
        panic!("node {number} runs in circles");
    }

    /// The text in a slot, as a transaction sees it.
    pub(crate) fn read(
        &mut self,
        number: usize,
        tx: &mut Tx,
        page: PageId,
        slot: u16,
    ) -> Result<Option<String>, Stuck> {
        let slot = Slot(slot);
        let Some(generation) = self.step(number, tx, |tx| tx.exists(page, slot))? else {
            return Ok(None);
        };
        let object = ObjectId { page, slot, generation };
        let value = self.step(number, tx, |tx| tx.read_object(object))?;
        Ok(value.map(|value| String::from_utf8_lossy(&value).into_owned()))
    }

    /// Writes a text into a slot.
    pub(crate) fn write(
        &mut self,
        number: usize,
        tx: &mut Tx,
        page: PageId,
        slot: u16,
        text: &str,
    ) -> ObjectId {
        let slot = Slot(slot);
        let value = Bytes::copy_from_slice(text.as_bytes());
        let found = self.step(number, tx, |tx| tx.exists(page, slot)).expect("nothing is held up");
        let written = match found {
            Some(generation) => {
                let object = ObjectId { page, slot, generation };
                self.step(number, tx, |tx| tx.update_object(object, value.clone())).map(|()| object)
            }
            None => self.step(number, tx, |tx| tx.create_object(page, Some(slot), value.clone())),
        };
        written.expect("nothing is held up")
    }

    /// Ends a transaction; none: its outcome is still under way.
    pub(crate) fn commit(&mut self, number: usize, tx: Tx) -> Option<Outcome> {
        let part = match tx.inner.finish() {
            Finish::Send { mut parts, .. } => parts.pop().expect("one domain"),
            other => panic!("{other:?} is nothing to be sent"),
        };
        match self.ask(number, part.clone().into_op()) {
            Some(Ok(CacheReply::Outcome(outcome))) => {
                if let Outcome::Committed(stamp) = outcome {
                    let _line = self.nodes[number].session.saw(&[part.seen(stamp)]);
                }
                Some(outcome)
            }
            None => None,
            other => panic!("{other:?} is no outcome"),
        }
    }

    /// A transaction that writes one text.
    pub(crate) fn put(&mut self, number: usize, page: PageId, slot: u16, text: &str) -> ObjectId {
        let mut tx = self.begin(number).expect("its session is well");
        let object = self.write(number, &mut tx, page, slot, text);
        let outcome = self.commit(number, tx);
        assert!(matches!(outcome, Some(Outcome::Committed(_))), "{outcome:?}");
        object
    }

    /// A transaction that reads one text.
    pub(crate) fn get(
        &mut self,
        number: usize,
        page: PageId,
        slot: u16,
    ) -> Result<Option<String>, Stuck> {
        let mut tx = self.begin(number).expect("its session is well");
        self.read(number, &mut tx, page, slot)
    }
}

/// A page of the volume: 1 is there from the beginning.
pub(crate) fn page(number: u64) -> PageId {
    PageId { volume: VOLUME, page: PageNo(number) }
}
