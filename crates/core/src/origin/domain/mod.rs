//! One order domain: one log, one page engine, one line of stamps.
//!
//! The way of a commit: `commit` (known outcome? limits? pages in memory?) → `execute` (validated
//! against everything stamped, applied to tentative images, stamped, gathered) → `append` (one
//! append under way; the next one gathers meanwhile) → `promote` (images, ring, streams, outcomes,
//! acknowledgements in stamp order) → `install` (in the background, with the change index).

mod apart;
mod append;
mod batch;
mod boots;
mod commit;
mod copy;
mod execute;
mod fetch;
mod install;
mod limits;
mod line;
mod load;
mod load_queue;
mod look;
mod pages;
mod parts;
mod pending;
mod recent;
mod recover;
mod removal;
#[cfg(feature = "faults")]
mod rest;
mod resume;
mod volumes;

use crate::across::Between;
use crate::downlink::{Asked, DomainMemory, Downlinks, LinkSink, Pace, Ring};
use crate::id::{DomainId, HistoryId, LinkId, PageId, RequestId, Stamp, VolumeId};
use crate::machine::{Faults, LinkOutput};
use crate::message::{CloseReason, DomainInfo, Epoch, RequestError};
use crate::origin::OriginConfig;
use crate::origin::io::{LoadId, OriginOutput, StoreFault, WriteId};
use crate::record::Lsn;
use crate::time::{Instant, WallTime};
use batch::Batch;
use boots::Boots;
use commit::Waiting;
use copy::Copies;
use line::Line;
use pages::Pages;
use parts::Parts;
use pending::Pending;
use recent::RecentWrites;
use removal::Removal;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
pub(super) use volumes::Asker;
use volumes::Volume;

/// What a domain works with while it handles one input.
pub(super) struct Context<'a> {
    pub(super) now: Instant,
    pub(super) config: &'a OriginConfig,
    pub(super) links: &'a mut Downlinks,
    pub(super) out: &'a mut Vec<OriginOutput>,
    /// What the front must hear of.
    pub(super) events: &'a mut Vec<Event>,
}

impl LinkSink for Vec<OriginOutput> {
    fn link(&mut self, output: LinkOutput) {
        self.push(OriginOutput::Link(output));
    }
}

/// What a domain tells the front.
#[derive(Debug)]
pub(super) enum Event {
    /// It serves from now on.
    Ready,
    /// Its store had no room at its start, or has not answered for long: it serves when it does.
    Waits,
    /// Its service has ended.
    Failed,
    /// It has ended a link.
    Gone(LinkId),
    /// A volume is there.
    VolumeMade(VolumeId),
    /// A volume of this name is deleted.
    VolumeDeleted(VolumeId, String),
    /// A volume could not be made.
    VolumeNotMade(VolumeId, String),
    /// Whether a volume was made shows at the next start only.
    VolumeUnsure(VolumeId, String),
    /// One domain says this to another.
    Between { from: DomainId, to: DomainId, between: Between },
    /// Whether a volume that is not there was deleted in this domain; or why nobody can tell.
    Looked(DomainId, VolumeId, Result<bool, String>),
}

/// Whether it serves.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Service {
    /// Its epoch is not durable yet.
    Starting,
    /// Its epoch is not durable yet, since its store had no room for it.
    Full,
    Open,
    /// Its store failed (P1).
    Failed(StoreFault),
}

/// What a load is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LoadFor {
    Page(PageId),
    /// For a link that has waited since an instant.
    Index(LinkId, Instant),
    /// To remove what a deleted volume left.
    Removal,
    /// Whether this volume was deleted.
    Deleted(VolumeId),
    /// Part of the change index, for a copy.
    Copy(u64),
}

/// A link's walk of the change index that wants a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct IndexWanted {
    link: LinkId,
    after: (Stamp, PageId),
    since: Instant,
}

/// Who waits for a page.
#[derive(Debug, Default)]
struct Loading {
    commits: Vec<u64>,
    copies: Vec<u64>,
    /// With the time since when each waits.
    fetches: Vec<(LinkId, Asked, Instant)>,
}

/// An order domain.
#[derive(Debug)]
pub(super) struct Domain {
    id: DomainId,
    service: Service,
    /// Children wait for its start until then, and no longer: other domains serve.
    awaited_until: Option<Instant>,
    /// See the configuration.
    index_part_max: usize,
    faults: Faults,
    epochs: Vec<Epoch>,
    /// The last stamp that is durable.
    durable: Stamp,
    /// The last stamp given, tentative ones included.
    stamped: Stamp,
    durable_lsn: Lsn,
    next_lsn: Lsn,
    installed_lsn: Lsn,
    wall: (WallTime, Instant),
    /// Bytes free where the store is.
    room: Option<u64>,

    pages: Pages,
    recent: RecentWrites,
    volumes: BTreeMap<VolumeId, Volume>,
    /// How often rights have changed: commits that waited meanwhile are held against them again.
    rights_changes: u64,
    boots: Boots,
    ring: Ring,

    /// Commits taken on and not answered.
    pending: Pending,
    /// Commits that wait for pages, by ticket.
    loading_commits: BTreeMap<u64, Waiting>,
    /// Commits whose pages are to be loaded when there is room for them.
    line: Line,
    /// Commits that wait for room in an append, in order.
    ready: VecDeque<Waiting>,
    /// When one of those last had its turn.
    taken_at: Instant,
    /// Of transactions over several domains.
    parts: Parts,
    waiting_bytes: usize,
    /// Of pages kept in memory for those.
    pinned_bytes: usize,
    next_ticket: u64,

    gathering: Batch,
    flying: Option<(WriteId, Batch)>,
    /// The store had no room for the epoch: the next append is not before this.
    append_after: Option<Instant>,
    /// The store took nothing of an append: until then nothing is logged that can wait, which would make each
    /// append longer, and others follow it (bug 206).
    house_after: Option<Instant>,
    /// Boots to be registered.
    registering: BTreeMap<crate::id::BootId, boots::Registering>,

    loading: BTreeMap<PageId, Loading>,
    /// Those of them that wait for their turn.
    load_queue: load_queue::LoadQueue,
    /// The links that wait for pages, with the pages.
    fetching: BTreeSet<(LinkId, PageId)>,
    loads: BTreeMap<LoadId, LoadFor>,
    page_loads: usize,
    /// Index walks that want a load, collected while streams are pumped.
    index_wanted: Vec<(LinkId, (Stamp, PageId))>,
    /// Those that wait for their turn.
    index_queue: VecDeque<IndexWanted>,
    index_loads: usize,
    /// Resumes of links whose stream has begun, which wait for their place in it.
    asked: VecDeque<(Instant, LinkId, RequestId)>,
    /// When those who wait are looked at next.
    limits_at: Option<Instant>,

    install: install::Installing,
    removal: Removal,
    copies: Copies,
    next_write: u64,
    next_load: u64,
    /// Links whose pages came, to be served at the end of the step.
    serve: BTreeSet<LinkId>,
}

impl Domain {
    pub(super) fn id(&self) -> DomainId {
        self.id
    }

    /// Whether children may be served.
    pub(super) fn is_open(&self) -> bool {
        self.service == Service::Open
    }

    /// Whether children are to wait until it serves: it will, or end, as soon as its store answers,
    /// which it should before long.
    pub(super) fn is_starting(&self) -> bool {
        self.service == Service::Starting && self.awaited_until.is_some()
    }

    /// Whether it neither serves nor will.
    pub(super) fn is_failed(&self) -> bool {
        matches!(self.service, Service::Failed(_))
    }

    pub(super) fn info(&self) -> DomainInfo {
        DomainInfo { domain: self.id, epochs: self.epochs.clone() }
    }

    pub(super) fn durable(&self) -> Stamp {
        self.durable
    }

    /// The last stamp that was given.
    pub(super) fn stamped(&self) -> Stamp {
        self.stamped
    }

    /// What it takes in memory beside the directory.
    pub(super) fn memory(&self) -> DomainMemory {
        DomainMemory {
            clean: self.pages.clean_bytes(),
            uninstalled: self.pages.dirty_bytes(),
            recent: self.ring.bytes(),
        }
    }

    pub(super) fn set_room(&mut self, bytes: u64) {
        self.room = Some(bytes);
    }

    pub(super) fn set_wall(&mut self, wall: WallTime, now: Instant) {
        self.wall = (wall, now);
    }

    /// The history that runs.
    fn history(&self) -> HistoryId {
        self.epochs.last().expect("drawn at every start").history
    }

    /// The log record and the stamp after the durable ones.
    fn after_durable(&self) -> (Lsn, Stamp) {
        (Lsn(self.durable_lsn.0 + 1), self.durable.next())
    }

    fn write_id(&mut self) -> WriteId {
        self.next_write += 1;
        WriteId(self.next_write)
    }

    fn load_id(&mut self) -> LoadId {
        self.next_load += 1;
        LoadId(self.next_load)
    }

    /// Sends the stream to every link that follows.
    fn pump_all(&mut self, cx: &mut Context<'_>) {
        for link in cx.links.following(self.id) {
            self.pump(cx, link);
        }
    }

    /// Sends the stream to one link.
    pub(super) fn pump(&mut self, cx: &mut Context<'_>, link: LinkId) {
        if !self.is_open() {
            return;
        }
        cx.links.pump(cx.now, link, self, cx.out);
        self.load_index(cx);
    }

    /// The store failed: service ends and is never resumed by this process (P1).
    fn fail(&mut self, cx: &mut Context<'_>, fault: StoreFault) {
        if self.is_failed() {
            return;
        }
        self.service = Service::Failed(fault.clone());
        for link in cx.links.following(self.id) {
            self.close(cx, link, CloseReason::OutOfService(fault.to_string()));
        }
        self.refuse_all(cx, &fault);
        self.fail_copies(cx, &RequestError::Unavailable(format!("the store failed: {fault}")));
        self.give_up_looks(cx, &format!("the store failed: {fault}"));
        self.forget_loads();
        self.registering.clear();
        cx.out.push(OriginOutput::DomainFailed { domain: self.id, fault });
        cx.events.push(Event::Failed);
    }

    /// What is left to do at the end of every step.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) {
        if self.is_failed() {
            return;
        }
        self.execute_ready(cx);
        if self.append(cx) {
            // The next one has room, before records that change no page have taken it.
            self.execute_ready(cx);
        }
        self.start_copy_loads(cx);
        while let Some(link) = self.serve.pop_first() {
            self.serve_pages(cx, link, Pace::All);
        }
        self.forget_disowned(cx);
        self.look_for_removable(cx);
        self.install(cx);
        self.tell_unreadable(cx);
        self.pages.trim();
        self.watch_parts(cx);
        self.watch_limits(cx);
    }

    /// A link is gone: nobody waits behind it.
    pub(super) fn gone(&mut self, link: LinkId) {
        let copied = self.copies.gone(link);
        self.gone_from_loads(link, copied);
        self.index_queue.retain(|wanted| wanted.link != link);
        self.gone_from_pending(link);
        self.serve.remove(&link);
        self.gone_from_batches(link);
    }

    /// Ends a link for this domain's sake. What it waits for in others is given up too.
    fn close(&mut self, cx: &mut Context<'_>, link: LinkId, reason: CloseReason) {
        cx.links.close(link, reason, cx.out);
        self.gone(link);
        cx.events.push(Event::Gone(link));
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        if self.is_failed() {
            return None;
        }
        // An answered append is followed by the next one at once, unless it has to wait.
        let append = self.append_after.filter(|_| self.flying.is_none());
        let install = self.install.due().filter(|_| self.installs());
        let removal =
            self.removal.due().filter(|_| self.installs() && !self.install.is_under_way());
        install
            .into_iter()
            .chain(removal)
            .chain(self.removal.forgets_on)
            .chain(append)
            .chain(self.house_after.filter(|_| self.flying.is_none()))
            .chain(self.limits_at)
            .chain(self.parts_due())
            .chain(self.awaited_until)
            .chain(self.copies.due())
            .min()
    }

    /// Panics when an invariant is broken.
    pub(super) fn check(&self, config: &OriginConfig, links: &Downlinks) {
        if self.is_failed() {
            return;
        }
        let mut waiting = self.waiting_for_batches();
        let stands = |link| links.get(link).is_some();
        assert!(waiting.all(stands), "somebody waits on a link that is gone (P7)");
        assert!(self.durable <= self.stamped, "durable before it was stamped");
        assert!(self.durable_lsn < self.next_lsn, "a log record before its number");
        assert_eq!(self.ring.head(), self.durable, "the ring is not at the durable stamp");
        self.ring.check();
        self.pages.check(self.durable);
        self.recent.check(self.stamped);
        let forgets = |item: &&batch::Item| matches!(item, batch::Item::Forgotten(_));
        let under_way = self.flying.iter().map(|(_, batch)| batch).chain([&self.gathering]);
        let forgotten = under_way.flat_map(|batch| &batch.items).filter(forgets).count();
        self.boots.check(self.durable, forgotten);
        let waiting = || self.waiting_commits().chain(self.parts.waiting());
        let parts = waiting().filter(|waiting| waiting.request.across.is_some()).count();
        assert!(waiting().count() - parts <= config.waiting_commits_max, "too many commits wait");
        let bytes: usize = waiting().map(|w| w.bytes).sum();
        assert_eq!(bytes, self.waiting_bytes, "waiting bytes are miscounted");
        let pinned: usize = waiting().map(|w| w.pinned_bytes).sum();
        assert_eq!(pinned, self.pinned_bytes, "pinned bytes are miscounted");
        assert!(self.page_loads <= config.loads_max, "too many loads");
        assert!(self.index_loads <= config.index_loads_max, "too many loads of the index");
        let stamps = self.stamped.0 - self.durable.0;
        let tentative =
            |batch: &Batch| batch.items.iter().filter_map(batch::Item::stamp).count() as u64;
        let flying = self.flying.as_ref().map_or(0, |(_, batch)| tentative(batch));
        assert_eq!(stamps, flying + tentative(&self.gathering), "a stamp without its commit");
        self.line.check(config);
        self.check_pending(config, links);
        self.check_parts(config);
        self.check_loads(links);
        self.check_taken();
        self.removal.check(&self.volumes);
        self.copies.check(config);
    }
}
