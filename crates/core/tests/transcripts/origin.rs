//! Transcripts of the origin: one test per protocol rule or named race, each told by its prose.

use crate::parent::*;
use crate::transcript::Transcript;
use larder_core::id::{DomainId, HistoryId, PageId, Stamp};
use larder_core::machine::{LinkInput, LinkOutput};
use larder_core::origin::io::{
    LoadId, LoadKey, Loaded, OriginInput, OriginOutput, StoreFault, WriteId,
};
use larder_core::origin::{Origin, OriginConfig, RecoveredDomain};
use larder_core::record::{DomainMeta, InstallBatch, LogRecord, Lsn, StoredPage};
use larder_core::time::{Duration, Instant, WallTime};
use std::collections::{BTreeMap, BTreeSet};

fn show(output: &OriginOutput) -> Option<String> {
    Some(match output {
        OriginOutput::Link(LinkOutput::Send { link, message }) => {
            format!("link {} < {}", link.0, crate::notation::message(message))
        }
        OriginOutput::Link(LinkOutput::Close { link, reason }) => {
            format!("link {} closed: {reason}", link.0)
        }
        OriginOutput::Append { write, records, .. } => {
            let records: Vec<String> = records.iter().map(|(lsn, r)| record(*lsn, r)).collect();
            format!("append w{} [{}]", write.0, records.join(", "))
        }
        OriginOutput::Load { load, key: LoadKey::Page(page), .. } => {
            format!("load {} page {page}", load.0)
        }
        OriginOutput::Load { load, key: LoadKey::ChangedAfter { after, .. }, .. } => {
            format!("load {} index after {}", load.0, after.0)
        }
        OriginOutput::Install { write, batch, .. } => {
            let pages: Vec<String> = batch
                .pages
                .iter()
                .map(|p| format!("{} {}→{}", p.page, p.previous, p.stored.version))
                .collect();
            let lsn = batch.meta.installed_lsn.0;
            format!(
                "install w{} [{}] log {lsn} stamp {}",
                write.0,
                pages.join(", "),
                batch.meta.installed
            )
        }
        OriginOutput::TrimLog { through, .. } => format!("trim log {}", through.0),
        OriginOutput::DomainFailed { fault, .. } => format!("domain failed: {fault}"),
    })
}

fn record(lsn: Lsn, record: &LogRecord) -> String {
    let what = match record {
        LogRecord::Commit { stamp, id, .. } => {
            format!("commit {}#{} stamp {stamp}", id.boot.0, id.sequence)
        }
        LogRecord::Boot { boot } => format!("boot {}", boot.0),
        LogRecord::Confirmed { boot, upto } => format!("confirmed boot {} {upto}", boot.0),
        LogRecord::Ids { next, .. } => format!("ids below {}", next.0),
        LogRecord::Volume { stamp, .. } => format!("volume stamp {stamp}"),
        LogRecord::Epoch { epoch } => format!("epoch h{} from {}", epoch.history.0, epoch.first),
    };
    format!("{}: {what}", lsn.0)
}

/// An origin and what its store would hold.
struct Run {
    t: Transcript<Origin>,
    store: Store,
    config: OriginConfig,
}

/// The log and the page engine as the machine sees them.
#[derive(Clone, Default)]
struct Store {
    log: Vec<(Lsn, LogRecord)>,
    meta: DomainMeta,
    pages: BTreeMap<PageId, StoredPage>,
    index: BTreeSet<(Stamp, PageId)>,
    /// Appends, installs and loads not yet carried out.
    queue: Vec<OriginOutput>,
}

impl Store {
    fn load(&self, key: &LoadKey) -> Loaded {
        match key {
            LoadKey::Page(page) => Loaded::Page(self.pages.get(page).cloned()),
            LoadKey::ChangedAfter { after, limit } => {
                let mut rest = self.index.iter().copied().filter(|entry| entry > after);
                let entries = rest.by_ref().take(*limit).collect();
                Loaded::Changed { entries, more: rest.next().is_some() }
            }
        }
    }

    fn install(&mut self, batch: InstallBatch) {
        for page in batch.pages {
            self.index.remove(&(page.previous, page.page));
            self.index.insert((page.stored.version, page.page));
            self.pages.insert(page.page, page.stored);
        }
        self.meta = batch.meta;
    }
}

impl Run {
    /// An origin with domain 1 in history 1, its epoch durable.
    fn new(prose: &str, config: OriginConfig) -> Self {
        let meta = DomainMeta { domain: DomainId(1), ..DomainMeta::default() };
        let store = Store { meta, ..Store::default() };
        Self::start(prose, config, store, 1)
    }

    /// An origin started from a store.
    fn start(prose: &str, config: OriginConfig, mut store: Store, history: u128) -> Self {
        let first = Lsn(store.meta.installed_lsn.0 + 1);
        let records = store.log.iter().filter(|(lsn, _)| *lsn >= first).cloned().collect();
        let recovered =
            RecoveredDomain { meta: store.meta.clone(), records, history: HistoryId(history) };
        let mut out = Vec::new();
        let origin =
            Origin::new(config.clone(), Instant::default(), WallTime(0), vec![recovered], &mut out)
                .expect("it recovers");
        store.queue = out;
        let mut run = Self { t: Transcript::new(origin, prose, show), store, config };
        run.carry_out_quietly();
        run
    }

    /// The store is killed: what was appended and synced is there, the machine is new.
    fn restart(self, history: u128) -> Self {
        let store = Store { queue: Vec::new(), ..self.store };
        Self::start("", self.config, store, history)
    }

    fn link(&mut self, inputs: Vec<(String, LinkInput)>) -> Vec<OriginOutput> {
        let inputs = inputs.into_iter().map(|(s, i)| (s, OriginInput::Link(i))).collect();
        let out = self.t.step(inputs);
        self.keep(&out);
        out
    }

    fn keep(&mut self, out: &[OriginOutput]) {
        let work = |o: &&OriginOutput| {
            matches!(
                o,
                OriginOutput::Append { .. }
                    | OriginOutput::Load { .. }
                    | OriginOutput::Install { .. }
            )
        };
        self.store.queue.extend(out.iter().filter(work).cloned());
    }

    /// What the store answers to its first piece of work.
    fn answer(&mut self, fault: Option<StoreFault>) -> (String, OriginInput) {
        let result = fault.map_or(Ok(()), Err);
        let ended = result.as_ref().map_or_else(ToString::to_string, |()| "done".into());
        match self.store.queue.remove(0) {
            OriginOutput::Append { domain, write, records } => {
                if result.is_ok() {
                    self.store.log.extend(records);
                }
                let WriteId(w) = write;
                (format!("append w{w}: {ended}"), OriginInput::Appended { domain, write, result })
            }
            OriginOutput::Install { domain, write, batch } => {
                if result.is_ok() {
                    self.store.install(batch);
                }
                let WriteId(w) = write;
                (format!("install w{w}: {ended}"), OriginInput::Installed { domain, write, result })
            }
            OriginOutput::Load { domain, load, key } => {
                let LoadId(l) = load;
                let result = result.map(|()| self.store.load(&key));
                (format!("load {l}: {ended}"), OriginInput::Loaded { domain, load, result })
            }
            other => panic!("no work: {other:?}"),
        }
    }

    /// The store carries out its first piece of work, or fails it.
    fn store(&mut self, fault: Option<StoreFault>) -> Vec<OriginOutput> {
        let answer = self.answer(fault);
        let out = self.t.step(vec![answer]);
        self.keep(&out);
        out
    }

    /// The store carries out all of its work.
    fn settle(&mut self) {
        while !self.store.queue.is_empty() {
            self.store(None);
        }
    }

    /// The same, unwritten.
    fn carry_out_quietly(&mut self) -> Vec<OriginOutput> {
        let mut all = Vec::new();
        while !self.store.queue.is_empty() {
            let (_, input) = self.answer(None);
            let mut out = Vec::new();
            larder_core::machine::Machine::handle(&mut self.t.machine, self.t.now, input, &mut out);
            self.keep(&out);
            all.extend(out);
        }
        all
    }

    /// Feeds inputs without writing them, and lets the store do its work.
    fn quietly(&mut self, inputs: Vec<(String, LinkInput)>) -> Vec<OriginOutput> {
        let mut all = Vec::new();
        for (_, input) in inputs {
            let mut out = Vec::new();
            let input = OriginInput::Link(input);
            larder_core::machine::Machine::handle(&mut self.t.machine, self.t.now, input, &mut out);
            self.keep(&out);
            all.extend(out);
            all.extend(self.carry_out_quietly());
        }
        all
    }

    /// Node a (link 1, boot 10) and node b (link 2, boot 20) follow the domain; volume 7 is made
    /// (stamp 1), pages up to 99 are given, page 1 holds x in slot 1 (stamp 2), both hold page 1.
    fn two_nodes(&mut self) {
        self.node(1, "a", 10);
        self.node(2, "b", 20);
        self.quietly(vec![create_volume(1, 2)]);
        self.quietly(vec![received(
            1,
            larder_core::message::Message::AllocateIds {
                request: larder_core::id::RequestId(3),
                volume: VOLUME,
                count: 98,
            },
        )]);
        self.quietly(vec![Commit::new(10, 1, 1).put(1, 1, 1, "x").on(1)]);
        self.quietly(vec![fetch(1, 4, &[1]), fetch(2, 4, &[1])]);
    }

    fn node(&mut self, link: u64, name: &str, boot: u128) {
        self.quietly(vec![opened(link, name), hello(link, name, boot), resume_new(link, 1, boot)]);
    }
}

#[test]
fn rule_14_only_the_durable_is_shown() {
    let mut run = Run::new(
        "Rule 14. Node a commits x = y. Before the append is durable b fetches the page and commits \
         against x: b must see neither the bytes nor a reason for abort that reveals them. When the \
         append is done the stream tells b, a is acknowledged, and only then is b's abort told.",
        OriginConfig::default(),
    );
    run.two_nodes();
    run.link(vec![Commit::new(10, 2, 2).read(1, 1).put(1, 1, 1, "y").on(1)]);
    run.link(vec![fetch(2, 5, &[1]), Commit::new(20, 1, 2).read(1, 1).put(1, 1, 1, "z").on(2)]);
    run.store(None);
    run.t.end("origin_rule_14_only_the_durable_is_shown");
}
