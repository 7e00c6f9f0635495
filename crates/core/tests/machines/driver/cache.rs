//! A node with a lying parent.

use super::choices::{Choices, DOMAIN, VOLUME};
use super::neighbours::{self, Neighbours};
use super::parent::Parent;
use super::{EVENTS_MAX, Reached, assert_carried, carried, is_upward, pass, some_time};
use larder_core::cache::io::{CacheInput, CacheOp, CacheOutput, CacheReply, NeighbourOutput};
use larder_core::cache::{
    Awaited, Cache, CacheConfig, Consistency, Finish, Line, PageCopy, ReadCache, Session,
    SessionOptions, Step, Transaction,
};
use larder_core::group::MemberConfig;
use larder_core::id::{BootId, HistoryId, LinkId, PageId, PageNo, RequestId, Slot, Stamp};
use larder_core::machine::{LinkInput, LinkOutput, Machine};
use larder_core::message::{CopyAsk, Message, VolumeChange, VolumeKey, VolumeSpec};
use larder_core::time::{Clock, Duration, Instant};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How long users wait.
const PATIENCE: Duration = Duration::from_secs(30);
/// Bytes of copies.
const MEMORY: usize = 48 << 10;

struct Shown(Arc<AtomicU64>);

impl Clock for Shown {
    fn now(&self) -> Instant {
        Instant(self.0.load(Ordering::Relaxed))
    }
}

struct Run {
    cache: Cache,
    shared: Arc<ReadCache>,
    clock: Arc<AtomicU64>,
    now: Instant,
    parent: Parent,
    up: Option<LinkId>,
    ups: u64,
    /// Users who wait.
    users: BTreeSet<RequestId>,
    asked: u64,
    session: Session,
    transaction: Option<Transaction>,
    /// The request that the transaction waits for, and what it brought.
    needs: Option<RequestId>,
    supply: Option<(Stamp, Vec<Arc<PageCopy>>)>,
    neighbours: Neighbours,
}

pub(super) fn run(c: &mut Choices<'_>, is_member: bool) -> Reached {
    let clock = Arc::new(AtomicU64::new(1_000_000_000_000));
    let config = CacheConfig {
        memory_bytes: MEMORY,
        requests_max: 24,
        commits_max: 6,
        prefetch_max: 6,
        refreshes_max: 2,
        recent_max: 16,
        kept_max: 8,
        notices_max: 4,
        absences_max: 2,
        transactions_max: 4,
        snapshot_bytes: 16 << 10,
        group: is_member.then(member),
        ..CacheConfig::new("node", BootId(1), Arc::new(Shown(Arc::clone(&clock))))
    };
    let (cache, shared) = Cache::new(config);
    let mut run = Run {
        cache,
        shared,
        now: Instant(clock.load(Ordering::Relaxed)),
        clock,
        parent: Parent::new(BootId(1)),
        up: None,
        ups: 0,
        users: BTreeSet::new(),
        asked: 0,
        session: Session::default(),
        transaction: None,
        needs: None,
        supply: None,
        neighbours: Neighbours::default(),
    };
    run.connect(c);
    run.ask(CacheOp::OpenVolume(VolumeKey::Name("v".into())));
    run.begin(c, 3);
    for _ in 0..EVENTS_MAX {
        if c.over() {
            break;
        }
        if is_member && c.rarely(3) {
            run.neighbours(c);
        }
        match c.below(20) {
            0 | 1 => {
                let until = run.now.after(some_time(c));
                run.pass(until);
            }
            2 if c.rarely(10) => run.cut(c),
            2..=8 => {
                let message = run.parent.answers(c);
                run.parent_says(&message);
            }
            9..=11 => {
                let message = run.parent.says(c);
                run.parent_says(&message);
            }
            12..=14 => run.user(c),
            _ => run.reader(c),
        }
        if run.up.is_none() && c.rarely(3) {
            run.connect(c);
            if is_member {
                run.begin(c, 6);
                // Something to help with.
                let pages = (1..=4).map(|number| PageId { volume: VOLUME, page: PageNo(number) });
                let (domain, pages) = (DOMAIN, pages.collect());
                run.ask(CacheOp::Fetch { domain, pages, prefetch: false });
                run.begin(c, 3);
            }
        }
        run.cache.check();
    }
    drop(run.transaction.take());
    run.pass(run.now.after(PATIENCE));
    run.cache.check();
    assert!(run.users.is_empty(), "users wait for ever: {:?}", run.users);
    assert!(run.cache.memory_bytes() <= MEMORY, "memory outgrew its bound");
    Reached { helped: run.neighbours.helped, ..Reached::default() }
}

impl Run {
    fn connect(&mut self, c: &mut Choices<'_>) {
        self.ups += 1;
        let link = LinkId(self.ups);
        self.up = Some(link);
        self.parent.opened();
        let in_group = !c.rarely(24);
        self.link(LinkInput::UpOpened { link, parent: 0, peer: "origin".into(), in_group });
        let welcome = self.parent.welcome(c);
        self.parent_says(&welcome);
        // Else nobody is a neighbour for long.
        let members = neighbours::members(c);
        self.parent_says(&members);
    }

    /// So many answers.
    fn begin(&mut self, c: &mut Choices<'_>, answers: usize) {
        for _ in 0..answers {
            let message = self.parent.answers(c);
            self.parent_says(&message);
        }
    }

    fn cut(&mut self, c: &mut Choices<'_>) {
        if let Some(link) = self.up.take() {
            self.link(LinkInput::Closed { link, reason: c.rarely(2).then(|| c.reason()) });
        }
    }

    fn parent_says(&mut self, message: &Message) {
        if let (Some(link), Some((message, bytes))) = (self.up, carried(message)) {
            self.link(LinkInput::Received { link, message, bytes });
        }
    }

    fn link(&mut self, input: LinkInput) {
        self.input(CacheInput::Link(input));
    }

    /// A neighbour does something, or the redirector says something of them.
    fn neighbours(&mut self, c: &mut Choices<'_>) {
        let fetch = if c.rarely(5) { None } else { self.parent.fetch_to_answer(c) };
        if c.rarely(3) {
            let through = self.parent.hints.through;
            let message = neighbours::redirector_says(c, fetch, through);
            return self.parent_says(&message);
        }
        for input in self.neighbours.act(c, fetch) {
            if matches!(&input, LinkInput::Received { link, .. } if !self.neighbours.holds(*link)) {
                continue;
            }
            self.input(CacheInput::Neighbour(input));
        }
    }

    fn input(&mut self, input: CacheInput) {
        let mut out = Vec::new();
        self.cache.handle(self.now, input, &mut out);
        self.carry_out(out);
    }

    fn ask(&mut self, op: CacheOp) -> RequestId {
        self.asked += 1;
        let id = RequestId(self.asked);
        self.users.insert(id);
        self.input(CacheInput::Request { id, op, deadline: self.now.after(PATIENCE) });
        id
    }

    fn pass(&mut self, until: Instant) {
        let mut all = Vec::new();
        let clock = Arc::clone(&self.clock);
        pass(&mut self.cache, &mut self.now, until, |now, out| {
            clock.store(now.0, Ordering::Relaxed);
            all.extend(out);
        });
        self.clock.store(self.now.0, Ordering::Relaxed);
        self.carry_out(all);
    }

    fn carry_out(&mut self, out: Vec<CacheOutput>) {
        for output in out {
            match output {
                CacheOutput::Link(LinkOutput::Send { link, message }) => {
                    assert_eq!(self.up, Some(link), "said to a link that is closed");
                    assert_carried(&message);
                    let either = matches!(message, Message::Goodbye { .. } | Message::KeepAlive);
                    assert!(either || is_upward(&message), "a child says {message:?}");
                    self.parent.hears(&message);
                }
                CacheOutput::Link(LinkOutput::Close { link, .. }) => {
                    assert_eq!(self.up.take(), Some(link), "a link is closed that is not open");
                }
                CacheOutput::Reply { id, result } => {
                    assert!(self.users.remove(&id), "{id:?} is answered twice: {result:?}");
                    if self.needs == Some(id) {
                        self.needs = None;
                        if let Ok(CacheReply::Fetched { through, pages }) = result {
                            self.supply = Some((through, pages));
                        }
                    }
                }
                CacheOutput::Neighbour(NeighbourOutput::Dial(member)) => {
                    assert!(member.life < BootId(1), "the higher life dials");
                }
                CacheOutput::Neighbour(NeighbourOutput::Came { pages, .. }) => {
                    assert!(pages > 0, "nothing came from a neighbour");
                }
                CacheOutput::Neighbour(NeighbourOutput::Reached(reached)) => {
                    let open = |(_, link): &(BootId, LinkId)| self.neighbours.holds(*link);
                    assert!(reached.iter().all(open), "reached over a link that is closed");
                }
                CacheOutput::Neighbour(NeighbourOutput::Link(output)) => {
                    self.neighbours.told(&output);
                }
                CacheOutput::Notice(_) => {}
            }
        }
    }

    fn user(&mut self, c: &mut Choices<'_>) {
        let op = match c.below(12) {
            0 => CacheOp::OpenVolume(VolumeKey::Id(VOLUME)),
            1 => CacheOp::ListVolumes,
            2 => {
                let (id, name) = (c.volume(), "w".into());
                CacheOp::CreateVolume(VolumeSpec { id, name, page_bytes: 4096, domain: None })
            }
            3..=5 => {
                let pages = c.page_set();
                CacheOp::Fetch { domain: c.domain(), pages, prefetch: c.rarely(3) }
            }
            6 => CacheOp::AllocateIds { volume: VOLUME, count: 1 + c.below(8) as u64 },
            7 => {
                let stamp = c.stamp(self.parent.hints.through);
                // Mostly of the line that stands.
                let line = Line(u64::from(stamp.0 % 4 == 3));
                CacheOp::WaitThrough(Awaited { domain: c.domain(), line, stamp })
            }
            8 if c.rarely(6) => CacheOp::CopyPages(Box::new(CopyAsk {
                volume: c.volume(),
                history: HistoryId::default(),
                since: Stamp::ZERO,
                cursor: None,
                pin: None,
            })),
            8 if c.rarely(3) => CacheOp::ChangeVolume(c.volume(), VolumeChange::Quota(None)),
            8 if c.rarely(3) => CacheOp::DeleteVolume(c.volume()),
            8 => CacheOp::Refresh { domain: c.domain() },
            9 => {
                let waiting: Vec<RequestId> = self.users.iter().copied().collect();
                if let Some(id) = c.pick(&waiting) {
                    self.users.remove(&id);
                    self.needs = self.needs.filter(|needs| *needs != id);
                    self.input(CacheInput::Cancel { id });
                }
                return;
            }
            _ => return self.write(c),
        };
        self.ask(op);
    }

    /// A commit without reads: the machine takes what its users hand over.
    fn write(&mut self, c: &mut Choices<'_>) {
        let (Some(history), Some(checked)) =
            (self.shared.history(DOMAIN), self.shared.through(DOMAIN))
        else {
            return;
        };
        let (reads, writes, named) = (c.reads(), c.writes(), Vec::new());
        self.ask(CacheOp::Commit { domain: DOMAIN, history, checked, reads, writes, named });
    }

    /// A transaction goes on.
    fn reader(&mut self, c: &mut Choices<'_>) {
        let Some(mut transaction) = self.transaction.take() else {
            let consistency = match c.below(3) {
                0 => Consistency::Snapshot,
                1 => Consistency::Strict,
                _ => Consistency::Serializable,
            };
            let options = SessionOptions { consistency, ..SessionOptions::default() };
            self.transaction = Transaction::begin(&self.shared, options, &self.session.floors).ok();
            return;
        };
        if let Some((through, pages)) = self.supply.take() {
            let _ = transaction.supply(through, &pages);
        }
        let page = c.page();
        match c.below(8) {
            0..=2 => {
                let step = transaction.read_slot(page, Slot(c.below(4) as u16));
                self.step(step);
            }
            3 => {
                let step = transaction.read_all(page);
                self.step(step);
            }
            4 => {
                let step = transaction.slots(page);
                self.step(step);
            }
            5 | 6 => {
                let step = transaction.write(page, c.op());
                self.step(step);
            }
            _ => {
                self.needs = None;
                match transaction.finish() {
                    Finish::Local { seen, .. } => {
                        self.session.saw(&seen);
                    }
                    Finish::Send { parts, .. } => {
                        for op in larder_core::cache::commit_ops(parts) {
                            self.ask(op);
                        }
                    }
                    Finish::Doomed(_) | Finish::Refused(_) => self.session = Session::default(),
                }
                return;
            }
        }
        self.transaction = Some(transaction);
    }

    fn step<T>(&mut self, step: Step<T>) {
        if let Step::Need { domain, pages, .. } = step {
            let pages: Vec<PageId> = pages;
            self.needs = Some(self.ask(CacheOp::Fetch { domain, pages, prefetch: false }));
        }
    }
}

fn member() -> MemberConfig {
    MemberConfig { address: "here".into(), helps_max: 4, ..MemberConfig::default() }
}
