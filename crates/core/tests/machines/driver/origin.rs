//! Liars at an origin.

use super::children::Children;
use super::choices::{Choices, DOMAIN, OTHER, PAGE_BYTES, volume_of};
use super::peers::{Liar, NAME};
use super::{EVENTS_MAX, Reached, narrow, pass, some_time};
use bytes::Bytes;
use larder_core::commit::{Op, Outcome, PageKind, Write};
use larder_core::downlink::DownlinkConfig;
use larder_core::id::{
    BootId, CommitId, DomainId, Generation, HistoryId, PageId, PageNo, Slot, Stamp,
};
use larder_core::machine::{LinkInput, LinkOutput, Machine};
use larder_core::message::{Epoch, Message};
use larder_core::origin::io::{LoadKey, Loaded, OriginInput, OriginOutput, PeerInput, StoreFault};
use larder_core::origin::{Origin, OriginConfig, RecoveredDomain};
use larder_core::page::Record;
use larder_core::record::{DomainMeta, InstallBatch, LogRecord, Lsn, StoredPage, VolumeMeta};
use larder_core::time::{Duration, Instant, WallTime};
use std::collections::{BTreeMap, BTreeSet};

/// The last stamp that is recovered.
const RECOVERED: u64 = 3;

/// One domain's log and pages.
#[derive(Default)]
struct Store {
    durable: Stamp,
    pages: BTreeMap<PageId, StoredPage>,
    index: BTreeSet<(Stamp, PageId)>,
    reached: Reached,
}

impl Store {
    fn load(&self, key: &LoadKey) -> Loaded {
        match key {
            LoadKey::Page(page) => Loaded::Page(self.pages.get(page).cloned()),
            LoadKey::ChangedAfter { after, limit } => {
                let mut rest = self.index.range(..).copied().filter(|entry| entry > after);
                let entries = rest.by_ref().take(*limit).collect();
                Loaded::Changed { entries, more: rest.next().is_some() }
            }
            LoadKey::Removable { volume, after, limit } => {
                let from = PageId { volume: *volume, page: PageNo(after.0 + 1) };
                let pages = self.pages.range(from..PageId::of_volume(*volume)).take(*limit);
                Loaded::Removable(pages.map(|(page, stored)| (*page, stored.version)).collect())
            }
        }
    }

    fn install(&mut self, batch: InstallBatch) {
        for page in batch.pages {
            self.index.remove(&(page.previous, page.page));
            self.index.insert((page.stored.version, page.page));
            self.pages.insert(page.page, page.stored);
        }
        for (page, version) in batch.removed {
            self.index.remove(&(version, page));
            self.pages.remove(&page);
        }
    }

    fn append(&mut self, records: &[(Lsn, LogRecord)]) {
        for (_, record) in records {
            self.reached.prepared += u64::from(matches!(record, LogRecord::Prepared { .. }));
            let decides = matches!(record, LogRecord::Commit { decided: Some(_), .. });
            self.reached.decided += u64::from(decides);
            if let LogRecord::Commit { stamp, .. }
            | LogRecord::Volume { stamp, .. }
            | LogRecord::Deleted { stamp, .. } = record
            {
                self.durable = *stamp;
            }
        }
    }
}

struct Run {
    origin: Origin,
    now: Instant,
    children: Children,
    liar: Liar,
    stores: BTreeMap<DomainId, Store>,
    /// Work of the stores, not yet carried out.
    work: Vec<OriginOutput>,
    /// A store has failed: links may be closed for it.
    failed: bool,
}

fn config() -> OriginConfig {
    OriginConfig {
        downlink: DownlinkConfig { ring_bytes_max: 2048, ..narrow() },
        peers: vec![NAME.into()],
        page_cache_bytes: 8192,
        dirty_bytes_max: 32_768,
        install_bytes: 8192,
        install_pages_max: 4,
        append_records_max: 4,
        append_bytes_max: 8192,
        commit_pages_max: 3,
        waiting_commits_max: 4,
        waiting_bytes_max: 16_384,
        pinned_bytes_max: 32_768,
        loads_max: 3,
        index_loads_max: 2,
        recent_writes_max: 16,
        boots_max: 8,
        boots_per_name_max: 3,
        volumes_max: 3,
        ids_max: 64,
        ..OriginConfig::default()
    }
}

/// What the log of a domain tells: a volume, its pages 1 to 4, a boot that committed.
fn recovered(domain: DomainId) -> RecoveredDomain {
    let id = volume_of(domain);
    let page = |page| PageId { volume: id, page: PageNo(page) };
    let put = |page, slot| {
        let value = Record::Inline(Bytes::from_static(b"twelve bytes")).encode();
        Write { page, op: Op::Put { slot: Slot(slot), generation: Generation(1), value } }
    };
    let volume = VolumeMeta {
        id,
        name: if domain == DOMAIN { "v" } else { "z" }.into(),
        page_bytes: PAGE_BYTES,
        next_page: PageNo(2),
        version: Stamp(1),
        pages: 1,
        // More than what is there: not so of a volume whose store did not count it, and a sum stops at nothing.
        bytes: 2048,
        settings: larder_core::record::VolumeSettings::default(),
        given: Vec::new(),
    };
    let commit = |stamp, writes| LogRecord::Commit {
        stamp: Stamp(stamp),
        id: CommitId { boot: BootId(1), sequence: stamp },
        time: WallTime(0),
        grown: vec![],
        writes,
        decided: None,
    };
    let make = |number, kind| Write { page: page(number), op: Op::CreatePage(kind) };
    let records = vec![
        LogRecord::Epoch { epoch: Epoch { history: HistoryId(1), first: Stamp(1) } },
        LogRecord::Volume { stamp: Stamp(1), volume },
        LogRecord::Boot { boot: BootId(1), name: "alice/a".into() },
        LogRecord::Ids { volume: id, next: PageNo(10) },
        commit(2, vec![make(2, PageKind::Slotted), put(page(2), 1), put(page(1), 0)]),
        commit(3, vec![make(3, PageKind::Raw), make(4, PageKind::Slotted), put(page(4), 2)]),
    ];
    RecoveredDomain {
        meta: DomainMeta { domain, ..DomainMeta::default() },
        apart: Vec::new(),
        records: records.into_iter().zip(1..).map(|(record, lsn)| (Lsn(lsn), record)).collect(),
        history: HistoryId(2),
    }
}

pub(super) fn run(c: &mut Choices<'_>) -> Reached {
    let now = Instant(1_000_000_000_000);
    let mut out = Vec::new();
    let domains = vec![recovered(DOMAIN), recovered(OTHER)];
    let origin = Origin::new(config(), now, WallTime(0), domains, &mut out);
    let stores = [(DOMAIN, RECOVERED), (OTHER, RECOVERED)];
    let store = |(domain, durable)| (domain, Store { durable: Stamp(durable), ..Store::default() });
    let mut run = Run {
        origin: origin.expect("the log hangs together"),
        now,
        children: Children::new(RECOVERED),
        liar: Liar::default(),
        stores: stores.into_iter().map(store).collect(),
        work: Vec::new(),
        failed: false,
    };
    run.carry_out(out);
    run.settle();
    for input in run.children.honest() {
        run.input(OriginInput::Link(input));
        run.settle();
    }
    let mut prompt = true;
    for _ in 0..EVENTS_MAX {
        if c.over() {
            break;
        }
        match c.below(16) {
            0 => prompt = !c.rarely(3),
            1 | 2 => run.store(c),
            3 => {
                let until = run.now.after(some_time(c));
                run.pass(until);
            }
            4 => {
                for input in run.liar.act(c) {
                    run.peer(input);
                }
            }
            _ => {
                for input in run.children.act(c, run.now) {
                    run.link(input);
                }
            }
        }
        if prompt {
            run.settle();
        }
        run.origin.check();
    }
    run.settle();
    run.pass(run.now.after(Duration::from_secs(60)));
    run.settle();
    run.origin.check();
    assert!(run.failed || run.children.is_honest_there(), "the honest child was cut off");
    let reached = run.stores.values().map(|store| store.reached);
    reached.fold(Reached::default(), |sum, of| Reached {
        prepared: sum.prepared + of.prepared,
        decided: sum.decided + of.decided,
        ..sum
    })
}

impl Run {
    fn input(&mut self, input: OriginInput) {
        let mut out = Vec::new();
        self.origin.handle(self.now, input, &mut out);
        self.carry_out(out);
    }

    /// What a liar says after it was cut off does not arrive.
    fn link(&mut self, input: LinkInput) {
        if let LinkInput::Received { link, .. } = &input
            && !self.children.holds(*link)
        {
            return;
        }
        self.input(OriginInput::Link(input));
    }

    /// The same of the other origin.
    fn peer(&mut self, input: PeerInput) {
        if let PeerInput::Received { link, .. } = &input
            && !self.liar.is_open(*link)
        {
            return;
        }
        self.input(OriginInput::Peer(input));
    }

    fn pass(&mut self, until: Instant) {
        while self.now < until {
            for input in self.children.honest_beats(self.now) {
                self.input(OriginInput::Link(input));
            }
            let next = until.min(self.now.after(Duration::from_secs(4)));
            let mut all = Vec::new();
            pass(&mut self.origin, &mut self.now, next, |_, out| all.extend(out));
            self.carry_out(all);
        }
    }

    fn carry_out(&mut self, out: Vec<OriginOutput>) {
        for output in out {
            match output {
                OriginOutput::Link(output) if Liar::is_on(&output) => self.liar.told(&output),
                OriginOutput::Link(output) => {
                    self.assert_durable(&output);
                    self.children.told(&output);
                }
                OriginOutput::Append { .. }
                | OriginOutput::Load { .. }
                | OriginOutput::Install { .. } => self.work.push(output),
                OriginOutput::DomainWaits { .. } | OriginOutput::DomainFailed { .. } => {
                    self.failed = true;
                }
                OriginOutput::TrimLog { .. }
                | OriginOutput::GiveBack { .. }
                | OriginOutput::InstallsWait { .. }
                | OriginOutput::InstallsGoOn { .. }
                | OriginOutput::RemovalWaits { .. }
                | OriginOutput::RemovalGoesOn { .. }
                | OriginOutput::VolumeRenamed { .. }
                | OriginOutput::PagesUnreadable { .. }
                | OriginOutput::DomainServes { .. } => {}
            }
        }
        assert!(self.work.len() < 64, "the store has too much to do");
    }

    /// P1: nothing is shown before it is durable.
    fn assert_durable(&self, output: &LinkOutput) {
        let LinkOutput::Send { message, .. } = output else { return };
        let shown = match message {
            Message::Resumed { domain, through, .. } | Message::Advance { domain, through, .. } => {
                Some((domain, *through))
            }
            Message::Committed { domain, outcome: Outcome::Committed(stamp), .. } => {
                Some((domain, *stamp))
            }
            Message::Pages { domain, pages, .. } => {
                pages.iter().map(|page| page.as_of.max(page.version)).max().map(|at| (domain, at))
            }
            _ => None,
        };
        if let Some((domain, stamp)) = shown {
            let durable = self.stores[domain].durable;
            assert!(stamp <= durable, "shown at {durable}: {message:?}");
        }
    }

    /// The store carries out all that it is asked.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            if self.work.is_empty() {
                return;
            }
            self.answer(0, None);
        }
        panic!("the store is never done");
    }

    /// The store carries out one thing, now and then not the first, or fails it.
    fn store(&mut self, c: &mut Choices<'_>) {
        if self.work.is_empty() {
            return;
        }
        // Loads overtake one another; appends and installs of a domain are one at a time.
        let place = c.below(self.work.len());
        let fault = match c.below(40) {
            39 if c.rarely(8) => Some(StoreFault::Failed("the disk is gone".into())),
            38 => Some(StoreFault::Full("no space left".into())),
            37 => Some(StoreFault::Damaged("its checksum does not match".into())),
            _ => None,
        };
        self.answer(place, fault);
    }

    fn answer(&mut self, place: usize, fault: Option<StoreFault>) {
        let input = match self.work.remove(place) {
            OriginOutput::Append { domain, write, records } => {
                let result = fault.map_or(Ok(()), Err);
                if let (Ok(()), Some(store)) = (&result, self.stores.get_mut(&domain)) {
                    store.append(&records);
                }
                OriginInput::Appended { domain, write, result }
            }
            OriginOutput::Install { domain, write, batch } => {
                let result = fault.map_or(Ok(()), Err);
                if let (Ok(()), Some(store)) = (&result, self.stores.get_mut(&domain)) {
                    store.install(batch);
                }
                OriginInput::Installed { domain, write, result }
            }
            OriginOutput::Load { domain, load, key } => {
                let result = fault.map_or_else(|| Ok(self.stores[&domain].load(&key)), Err);
                OriginInput::Loaded { domain, load, result }
            }
            other => panic!("no work: {other:?}"),
        };
        self.input(input);
    }
}
