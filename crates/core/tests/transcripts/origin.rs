//! Transcripts of the origin: one test per protocol rule or named race, each told by its prose.

mod copies;
mod crowds;
mod deletions;
mod forgotten;
mod left;
mod parts;
mod races;
mod stores;
mod turns;
mod volumes;

use crate::parent::*;
use crate::transcript::Transcript;
use larder_core::id::{Attempt, DomainId, HistoryId, PageId, Stamp};
use larder_core::machine::{LinkInput, LinkOutput};
use larder_core::origin::io::{
    LoadId, LoadKey, Loaded, OriginInput, OriginOutput, StoreFault, WriteId,
};
use larder_core::origin::{Origin, OriginConfig, RecoveredDomain};
use larder_core::record::{Apart, DomainMeta, InstallBatch, LogRecord, LostApart, Lsn, StoredPage};
use larder_core::time::{Duration, Instant, WallTime};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

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
        OriginOutput::Load { load, key: LoadKey::Removable { volume, after, limit }, .. } => {
            let (load, volume, after) = (load.0, volume.0, after.0);
            format!("load {load} {limit} removable pages of volume {volume} after {after}")
        }
        OriginOutput::GiveBack { .. } => "give space back".into(),
        OriginOutput::Install { write, batch, .. } => {
            let pages: Vec<String> = batch
                .pages
                .iter()
                .map(|p| format!("{} {}→{}", p.page, p.previous, p.stored.version))
                .collect();
            let lsn = batch.meta.installed_lsn.0;
            let (pages, stamp) = (pages.join(", "), batch.meta.installed);
            let mut text = format!("install w{} [{pages}] log {lsn} stamp {stamp}", write.0);
            for apart in &batch.apart {
                let stamps: Vec<String> = apart.changes.iter().map(|c| c.0.to_string()).collect();
                let _ = write!(text, ", apart {} [{}]", apart.page, stamps.join(", "));
            }
            if !batch.removed.is_empty() {
                let removed = batch.removed.iter().map(|(page, stamp)| format!("{page} {stamp}"));
                let removed: Vec<String> = removed.collect();
                let _ = write!(text, ", removed [{}]", removed.join(", "));
            }
            if !batch.joined.is_empty() {
                let _ = write!(text, ", joined {:?}", batch.joined);
            }
            text
        }
        OriginOutput::TrimLog { through, .. } => format!("trim log {}", through.0),
        OriginOutput::DomainWaits { fault, .. } => format!("domain waits: {fault}"),
        OriginOutput::PagesUnreadable { unreadable, .. } => {
            let named: Vec<String> =
                unreadable.named.iter().map(|(page, detail)| format!("{page}: {detail}")).collect();
            let full = if unreadable.full { ", no room for more" } else { "" };
            format!(
                "unreadable {} [{}] apart {} bytes, {} in the log{full}",
                unreadable.pages,
                named.join(", "),
                unreadable.apart_bytes,
                unreadable.in_log
            )
        }
        OriginOutput::InstallsWait { fault, .. } => format!("installs wait: {fault}"),
        OriginOutput::InstallsGoOn { .. } => "installs go on".into(),
        OriginOutput::RemovalWaits { volume, name, fault, .. } => {
            format!("removal of volume {} waits, {name}: {fault}", volume.0)
        }
        OriginOutput::RemovalGoesOn { volume, .. } => {
            format!("removal of volume {} goes on", volume.0)
        }
        OriginOutput::VolumeRenamed { domain, volume, from, to } => {
            format!("volume {} of domain {}, {from}, is {to} now", volume.0, domain.0)
        }
        OriginOutput::DomainServes { .. } => return None,
        OriginOutput::DomainFailed { fault, .. } => format!("domain failed: {fault}"),
    })
}

fn record(lsn: Lsn, record: &LogRecord) -> String {
    let what = match record {
        LogRecord::Commit { stamp, id, decided, .. } => {
            let decided = decided.as_ref().map_or_else(String::new, |decided| {
                let domains = decided.participants.iter().map(|part| part.domain.0);
                format!(
                    ", decides {} for {:?}",
                    attempt(decided.attempt),
                    domains.collect::<Vec<_>>()
                )
            });
            format!("commit {}#{} stamp {stamp}{decided}", id.boot.0, id.sequence)
        }
        LogRecord::Prepared { attempt: name, id, coordinator, .. } => {
            let (name, decides) = (attempt(*name), coordinator.domain.0);
            format!("prepared {}#{} for {name}, d{decides} decides", id.boot.0, id.sequence)
        }
        LogRecord::Released { attempt: name } => format!("released {}", attempt(*name)),
        LogRecord::Boot { boot, name } => format!("boot {} of {name}", boot.0),
        LogRecord::Aborted { id, abort } => {
            format!("aborted {}#{}: {abort}", id.boot.0, id.sequence)
        }
        LogRecord::Confirmed { boot, upto } => format!("confirmed boot {} {upto}", boot.0),
        LogRecord::Ids { next, .. } => format!("ids below {}", next.0),
        LogRecord::Volume { stamp, .. } => format!("volume stamp {stamp}"),
        LogRecord::Deleted { stamp, volume } => {
            format!("deleted volume {} stamp {stamp}", volume.0)
        }
        LogRecord::Settings { volume, settings } => {
            let rights = match settings.rights.is_empty() {
                true => String::new(),
                false => format!(", {}", crate::notation::rights_list(&settings.rights)),
            };
            format!("settings of {volume:?}: quota {:?}{rights}", settings.quota)
        }
        LogRecord::Epoch { epoch } => format!("epoch h{} from {}", epoch.history.0, epoch.first),
    };
    format!("{}: {what}", lsn.0)
}

fn attempt(attempt: Attempt) -> String {
    format!("h{}/{}", attempt.history.0, attempt.number)
}

/// An origin and what its store would hold.
pub(crate) struct Run {
    pub(crate) t: Transcript<Origin>,
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
    apart: BTreeMap<PageId, Apart>,
    /// Pages that cannot be read.
    damaged: BTreeSet<PageId>,
    /// What is kept apart from these cannot be read.
    lost: BTreeSet<PageId>,
    /// Appends, installs and loads not yet carried out.
    queue: Vec<OriginOutput>,
}

impl Store {
    /// As the engines do it: an image that the change index does not name is refused.
    fn load(&self, key: &LoadKey) -> Result<Loaded, StoreFault> {
        Ok(match key {
            LoadKey::Page(page) => {
                let found = self.pages.get(page);
                if let Some(StoredPage { version, .. }) = found
                    && !self.index.contains(&(*version, *page))
                {
                    let detail = format!("it is as of {version}, not as it was last installed");
                    return Err(StoreFault::Damaged(detail));
                }
                Loaded::Page(found.cloned())
            }
            LoadKey::ChangedAfter { after, limit } => {
                let mut rest = self.index.iter().copied().filter(|entry| entry > after);
                let entries = rest.by_ref().take(*limit).collect();
                Loaded::Changed { entries, more: rest.next().is_some() }
            }
            LoadKey::Removable { volume, after, limit } => {
                let above = |page: &PageId| page.page > *after && !page.is_volume();
                let of_volume = |page: &PageId| page.volume == *volume && above(page);
                let mut found: BTreeMap<PageId, Stamp> = BTreeMap::new();
                found.extend(self.apart.keys().map(|page| (*page, Stamp::ZERO)));
                found.extend(self.pages.iter().map(|(page, stored)| (*page, stored.version)));
                let found = found.into_iter().filter(|(page, _)| of_volume(page));
                Loaded::Removable(found.take(*limit).collect())
            }
        })
    }

    fn install(&mut self, batch: InstallBatch) {
        for page in batch.pages {
            self.index.remove(&(page.previous, page.page));
            self.index.insert((page.stored.version, page.page));
            self.pages.insert(page.page, page.stored);
        }
        for (page, version) in &batch.removed {
            self.index.remove(&(*version, *page));
            self.pages.remove(page);
            self.apart.remove(page);
        }
        for page in &batch.joined {
            self.apart.remove(page);
        }
        self.apart.extend(batch.apart.into_iter().map(|apart| (apart.page, apart)));
        self.meta = batch.meta;
    }

    /// Carries out a piece of work, or fails it.
    fn carry_out(
        &mut self,
        work: OriginOutput,
        fault: Option<StoreFault>,
    ) -> (String, OriginInput) {
        let result = fault.map_or(Ok(()), Err);
        let result = result.and_then(|()| match &work {
            OriginOutput::Load { key: LoadKey::Page(page), .. } if self.damaged.contains(page) => {
                Err(StoreFault::Damaged("its checksum does not match".into()))
            }
            _ => Ok(()),
        });
        let ended = result.as_ref().map_or_else(ToString::to_string, |()| "done".into());
        match work {
            OriginOutput::Append { domain, write, records } => {
                if result.is_ok() {
                    self.log.extend(records);
                }
                let WriteId(w) = write;
                (format!("append w{w}: {ended}"), OriginInput::Appended { domain, write, result })
            }
            OriginOutput::Install { domain, write, batch } => {
                if result.is_ok() {
                    self.install(batch);
                }
                let WriteId(w) = write;
                (format!("install w{w}: {ended}"), OriginInput::Installed { domain, write, result })
            }
            OriginOutput::Load { domain, load, key } => {
                let LoadId(l) = load;
                let result = result.and_then(|()| self.load(&key));
                let ended = result.as_ref().map_or_else(ToString::to_string, |_| "done".into());
                (format!("load {l}: {ended}"), OriginInput::Loaded { domain, load, result })
            }
            other => panic!("no work: {other:?}"),
        }
    }

    /// What an origin recovers from it.
    fn recovered(&self, history: u128) -> RecoveredDomain {
        let first = Lsn(self.meta.installed_lsn.0 + 1);
        let records = self.log.iter().filter(|(lsn, _)| *lsn >= first).cloned().collect();
        let apart = self.apart.values().map(|apart| match self.lost.contains(&apart.page) {
            true => Err(LostApart { page: apart.page, detail: "changes of it are damaged".into() }),
            false => Ok(apart.clone()),
        });
        let (meta, apart) = (self.meta.clone(), apart.collect());
        RecoveredDomain { meta, apart, records, history: HistoryId(history) }
    }
}

/// What the store has to do.
fn is_work(output: &OriginOutput) -> bool {
    matches!(
        output,
        OriginOutput::Append { .. } | OriginOutput::Load { .. } | OriginOutput::Install { .. }
    )
}

/// Recovers an origin; its first work is the store's queue.
fn open(config: &OriginConfig, now: Instant, store: &mut Store, history: u128) -> Origin {
    let recovered = store.recovered(history);
    store.queue.clear();
    let origin = Origin::new(config.clone(), now, WallTime(0), vec![recovered], &mut store.queue)
        .expect("it recovers");
    store.queue.retain(|output| !matches!(output, OriginOutput::PagesUnreadable { .. }));
    origin
}

impl Run {
    /// An origin with domain 1 in history 1, its epoch durable.
    pub(crate) fn new(prose: &str, config: OriginConfig) -> Self {
        let meta = DomainMeta { domain: DomainId(1), ..DomainMeta::default() };
        let store = Store { meta, ..Store::default() };
        Self::start(prose, config, store, 1)
    }

    /// An origin started from a store.
    fn start(prose: &str, config: OriginConfig, mut store: Store, history: u128) -> Self {
        let origin = open(&config, Instant::default(), &mut store, history);
        let mut run = Self { t: Transcript::new(origin, prose, show), store, config };
        run.carry_out_quietly();
        run
    }

    /// The origin is killed: what was appended and synced is there, the machine is new.
    pub(crate) fn restart(&mut self, history: u128) {
        self.t.say("the origin is started again");
        self.t.machine = open(&self.config, self.t.now, &mut self.store, history);
        self.carry_out_quietly();
    }

    /// The same with what was listed in the middle lost.
    pub(crate) fn restart_midway(&mut self, history: u128) {
        self.t.say("the origin is started again, and what was under way is lost");
        self.t.machine = open(&self.config, self.t.now, &mut self.store, history);
    }

    /// The store carries out its last piece of work first.
    pub(crate) fn store_last(&mut self) {
        let last = self.store.queue.pop().expect("there is work");
        self.store.queue.insert(0, last);
        self.store(None);
    }

    /// Lets time pass, unwritten.
    pub(crate) fn pass(&mut self, seconds: u64) {
        self.t.now = self.t.now.after(Duration::from_secs(seconds));
        let mut out = Vec::new();
        larder_core::machine::Machine::handle_timeout(&mut self.t.machine, self.t.now, &mut out);
        self.keep(&out);
        self.carry_out_quietly();
    }

    /// Lets time pass, unwritten; the store has not answered.
    fn pass_without_store(&mut self, seconds: u64) {
        self.t.now = self.t.now.after(Duration::from_secs(seconds));
        let mut out = Vec::new();
        larder_core::machine::Machine::handle_timeout(&mut self.t.machine, self.t.now, &mut out);
        self.keep(&out);
    }

    /// The store carries out its first piece of work, or fails it, unwritten.
    fn store_quietly(&mut self, fault: Option<StoreFault>) {
        let (_, input) = self.answer(fault);
        let mut out = Vec::new();
        larder_core::machine::Machine::handle(&mut self.t.machine, self.t.now, input, &mut out);
        self.keep(&out);
    }

    /// Lets time pass and the store do its work.
    pub(crate) fn wait(&mut self, seconds: u64) {
        let out = self.t.wait(Duration::from_secs(seconds));
        self.keep(&out);
    }

    pub(crate) fn link(&mut self, inputs: Vec<(String, LinkInput)>) -> Vec<OriginOutput> {
        let inputs = inputs.into_iter().map(|(s, i)| (s, OriginInput::Link(i))).collect();
        let out = self.t.step(inputs);
        self.keep(&out);
        out
    }

    fn keep(&mut self, out: &[OriginOutput]) {
        self.store.queue.extend(out.iter().filter(|output| is_work(output)).cloned());
    }

    /// What the store answers to its first piece of work.
    fn answer(&mut self, fault: Option<StoreFault>) -> (String, OriginInput) {
        let work = self.store.queue.remove(0);
        self.store.carry_out(work, fault)
    }

    /// The store carries out its first piece of work, or fails it.
    pub(crate) fn store(&mut self, fault: Option<StoreFault>) -> Vec<OriginOutput> {
        let answer = self.answer(fault);
        let out = self.t.step(vec![answer]);
        self.keep(&out);
        out
    }

    /// The store carries out all of its work.
    pub(crate) fn settle(&mut self) {
        while !self.store.queue.is_empty() {
            self.store(None);
        }
    }

    /// The same, up to where it is to list what is to be removed.
    fn settle_until_listing(&mut self) {
        let lists = |work: &OriginOutput| {
            matches!(work, OriginOutput::Load { key: LoadKey::Removable { .. }, .. })
        };
        while !lists(self.store.queue.first().expect("it is to be listed")) {
            self.store(None);
        }
    }

    /// The same, unwritten.
    pub(crate) fn carry_out_quietly(&mut self) -> Vec<OriginOutput> {
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

    /// Writes the change index.
    fn say_index(&mut self) {
        let index = self.store.index.iter();
        let entries: Vec<String> = index.map(|(stamp, page)| format!("{stamp} {page}")).collect();
        self.t.say(&format!("the change index: {}", entries.join(", ")));
    }

    /// Feeds inputs without writing them, and lets the store do its work.
    pub(crate) fn quietly(&mut self, inputs: Vec<(String, LinkInput)>) -> Vec<OriginOutput> {
        let mut all = Vec::new();
        for input in inputs {
            all.extend(self.quietly_without_store(vec![input]));
            all.extend(self.carry_out_quietly());
        }
        all
    }

    /// The same; the store has not answered.
    pub(crate) fn quietly_without_store(
        &mut self,
        inputs: Vec<(String, LinkInput)>,
    ) -> Vec<OriginOutput> {
        let mut all = Vec::new();
        for (_, input) in inputs {
            let mut out = Vec::new();
            let input = OriginInput::Link(input);
            larder_core::machine::Machine::handle(&mut self.t.machine, self.t.now, input, &mut out);
            self.keep(&out);
            all.extend(out);
        }
        all
    }

    /// Node a (link 1, boot 10) and node b (link 2, boot 20) follow the domain; volume 7 is made
    /// (stamp 1), pages up to 99 are given, page 1 holds x in slot 1 (stamp 2), both hold page 1.
    pub(crate) fn two_nodes(&mut self) {
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

    pub(crate) fn node(&mut self, link: u64, name: &str, boot: u128) {
        self.quietly(vec![
            opened(link, name),
            hello(link, name, boot),
            resume_new(link, 1),
            register(link, name, boot),
        ]);
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

#[test]
fn rule_14_a_failed_sync_ends_service() {
    let mut run = Run::new(
        "Rule 14. The sync of a's commit fails. Whether it is on the disk cannot be known: nobody is \
         told anything of it, the links are closed, and the domain serves no more.",
        OriginConfig::default(),
    );
    run.two_nodes();
    run.link(vec![Commit::new(10, 2, 2).put(1, 1, 1, "y").on(1)]);
    run.store(Some(StoreFault::Failed("log/000001: input/output error".into())));
    run.link(vec![opened(3, "c"), hello(3, "c", 30)]);
    run.t.end("origin_rule_14_a_failed_sync_ends_service");
}

#[test]
fn a_full_store_rolls_back() {
    let mut run = Run::new(
        "a's commit x = y is in the append under way; b's commit, validated on top of it, is \
         gathered. The store is full and took nothing. Both are rolled back and may be asked for \
         again; c's abort, which would have revealed a's commit, is taken back as well. When there \
         is room again the same commit passes, under the same stamp and log number.",
        OriginConfig::default(),
    );
    run.two_nodes();
    run.link(vec![Commit::new(10, 2, 2).read(1, 1).put(1, 1, 1, "y").on(1)]);
    run.link(vec![
        Commit::new(20, 1, 2).put(1, 2, 1, "z").on(2),
        Commit::new(20, 2, 2).read(1, 1).put(1, 1, 1, "w").on(2),
    ]);
    run.store(Some(StoreFault::Full("no segment left".into())));
    run.settle();
    run.link(vec![Commit::new(10, 2, 2).read(1, 1).put(1, 1, 1, "y").on(1)]);
    run.settle();
    run.t.end("origin_a_full_store_rolls_back");
}

#[test]
fn a_full_store_takes_a_registration_with_it() {
    let mut run = Run::new(
        "The append that held the registration of a's boot found the store full, and is rolled back. \
         Nobody is told. a asks again on its link, and the boot is registered.",
        OriginConfig::default(),
    );
    run.link(vec![opened(1, "a"), hello(1, "a", 10), resume_new(1, 1), register(1, "a", 10)]);
    run.store(Some(StoreFault::Full("no segment left".into())));
    run.link(vec![register(1, "a", 10)]);
    run.settle();
    run.t.end("origin_a_full_store_takes_a_registration_with_it");
}

#[test]
fn rule_15_exactly_once() {
    let mut run = Run::new(
        "Rule 15. a's commit is durable, but its link dies before the answer is there. On its next \
         link a asks again, with the old base: validated anew it would conflict with itself. It is \
         answered from its outcome. The same after the origin was killed and recovered from its \
         log. Once a has confirmed it the answer is 'unknown', never 'aborted'; and under a boot \
         that is not registered on the link nothing is done, and nothing said to be.",
        OriginConfig::default(),
    );
    run.two_nodes();
    let commit = Commit::new(10, 2, 2).read(1, 1).put(1, 1, 1, "y");
    run.link(vec![commit.clone().on(1)]);
    run.link(vec![closed(1)]);
    run.store(None);
    run.node(3, "a", 10);
    run.link(vec![commit.clone().on(3)]);
    run.restart(2);
    run.node(1, "a", 10);
    run.link(vec![commit.clone().on(1)]);
    run.link(vec![Commit::new(10, 3, 3).confirmed(2).put(1, 1, 1, "z").on(1)]);
    run.link(vec![commit.on(1)]);
    run.link(vec![Commit::new(77, 1, 3).put(1, 1, 1, "z").on(1)]);
    run.t.end("origin_rule_15_exactly_once");
}

#[test]
fn rule_16_numbers_of_a_lost_branch() {
    let mut run = Run::new(
        "Rule 16. Node a is given page numbers 100 to 109, and nothing else happens before the origin \
         dies and is restored from a copy of before. a has seen nothing that is lost, so its line goes \
         on. The copy gives the same numbers to b. Were a's commit, which was under way, to make page \
         100, b's references to its own page 100 would find what a put there. A commit names the \
         history of its numbers: a's are refused, durably, and taken anew; b's are good. Numbers \
         given before the copy was made are good as well, and b's still are after a restart that \
         loses nothing, also beside others; those of a history that nobody knows are not. Of a number \
         that a node has read in what is committed, as that of a file's run, it names no history: once \
         such a number was refused to all but the process that had taken it, and no file could grow \
         after a restart of its node.",
        OriginConfig::default(),
    );
    run.two_nodes();
    let copy = run.store.clone();
    let ask = |link| {
        let message = larder_core::message::Message::AllocateIds {
            request: larder_core::id::RequestId(9),
            volume: VOLUME,
            count: 10,
        };
        vec![received(link, message)]
    };
    run.link(ask(1));
    run.settle();
    run.t.say("the origin is restored from the copy");
    run.store = copy;
    run.restart(2);
    run.node(1, "a", 10);
    run.node(2, "b", 20);
    run.link(ask(2));
    run.settle();
    let create = || larder_core::commit::Op::CreatePage(larder_core::commit::PageKind::Slotted);
    let make = |boot, sequence, page| Commit::new(boot, sequence, 2).op(page, create());
    run.link(vec![make(10, 2, 100).numbers_of(1).on(1)]);
    run.settle();
    run.link(vec![make(20, 1, 100).numbers_of(2).on(2), make(10, 3, 50).numbers_of(1).on(1)]);
    run.settle();
    run.link(vec![make(10, 2, 100).numbers_of(1).on(1), make(10, 4, 51).numbers_of(2).on(1)]);
    run.settle();
    run.restart(3);
    run.node(2, "b", 20);
    run.link(vec![make(20, 2, 101).numbers_of(2).on(2), make(20, 3, 102).numbers_of(7).on(2)]);
    run.settle();
    let two = make(20, 4, 103).numbers_of(2).op(52, create()).numbers_of(1);
    run.link(vec![two.on(2), make(20, 5, 104).on(2), make(20, 6, 5000).on(2)]);
    run.settle();
    run.t.end("origin_rule_16_numbers_of_a_lost_branch");
}

#[test]
fn rule_16_a_restored_origin_is_refused() {
    let mut run = Run::new(
        "Rule 16. Node a saw stamp 3 of history 1. The origin's disk is then restored from a copy \
         that was made at stamp 2, and started: history 2 begins at stamp 3. Answered 'nothing \
         changed', a would keep an x that never was. It is refused by name; node b, at stamp 2, \
         goes on. A domain that a never knew resets it.",
        OriginConfig::default(),
    );
    run.two_nodes();
    let copy = run.store.clone();
    run.quietly(vec![Commit::new(10, 2, 2).put(1, 1, 1, "y").on(1)]);
    run.store = copy;
    run.restart(2);
    run.link(vec![opened(1, "a"), hello(1, "a", 10), resume(1, 1, &[(1, 1)], 3)]);
    run.link(vec![opened(2, "b"), hello(2, "b", 20), resume(2, 1, &[(1, 1)], 2)]);
    run.link(vec![opened(3, "c"), hello(3, "c", 30), resume(3, 1, &[(9, 1)], 2)]);
    run.t.end("origin_rule_16_a_restored_origin_is_refused");
}

#[test]
fn rule_17_resume_names_what_is_not_installed() {
    let mut run = Run::new(
        "Rules 17 and 20. Page 1 was installed with stamp 2. Commits 3 (page 1) and 4 (page 2, new) \
         follow; only page 1 is installed again, so that the index names it alone. The origin is \
         restarted. a returns at 2: the answer names both, and in the same step a is registered \
         for everything: change 5 to page 2 goes down at once. a's list narrows it.",
        OriginConfig { install_pages_max: 1, ..OriginConfig::default() },
    );
    run.two_nodes();
    run.wait(3);
    run.settle();
    let create = larder_core::commit::Op::CreatePage(larder_core::commit::PageKind::Slotted);
    run.quietly(vec![
        Commit::new(10, 2, 2).put(1, 1, 1, "y").on(1),
        Commit::new(10, 3, 3).op(2, create).put(2, 1, 1, "n").on(1),
    ]);
    run.wait(3);
    run.store(None);
    run.restart(2);
    run.link(vec![opened(1, "a"), hello(1, "a", 10), resume(1, 1, &[(1, 1)], 2)]);
    run.settle();
    run.node(2, "b", 20);
    run.link(vec![Commit::new(20, 1, 4).put(2, 1, 1, "o").on(2)]);
    run.settle();
    run.link(vec![holding(1, &[1])]);
    run.link(vec![Commit::new(20, 2, 5).in_history(2).put(2, 1, 1, "p").on(2)]);
    run.settle();
    run.t.end("origin_rule_17_resume_names_what_is_not_installed");
}

#[test]
fn rule_18_a_name_removed_and_created_again() {
    let mut run = Run::new(
        "Rule 18. a removes object (1, 1, generation 1) and makes another in its slot. b, which \
         still refers to generation 1 and read nothing else, writes it: gone, not the new object \
         overwritten. Page 2 is made, removed, and cannot be made again. After a restart page \
         numbers go on where they were.",
        OriginConfig::default(),
    );
    run.two_nodes();
    let create = larder_core::commit::Op::CreatePage(larder_core::commit::PageKind::Slotted);
    let delete = larder_core::commit::Op::DeletePage;
    run.quietly(vec![
        Commit::new(10, 2, 2).delete(1, 1, 1).on(1),
        Commit::new(10, 3, 3).put(1, 1, 2, "new").op(2, create.clone()).on(1),
        Commit::new(10, 4, 4).op(2, delete).on(1),
    ]);
    run.link(vec![Commit::new(20, 1, 5).put(1, 1, 1, "old").on(2)]);
    run.settle();
    run.link(vec![Commit::new(20, 2, 5).op(2, create).on(2)]);
    run.settle();
    run.restart(2);
    run.node(1, "a", 10);
    let ids = |request| larder_core::message::Message::AllocateIds {
        request: larder_core::id::RequestId(request),
        volume: VOLUME,
        count: 10,
    };
    run.link(vec![received(1, ids(7))]);
    run.settle();
    run.t.end("origin_rule_18_a_name_removed_and_created_again");
}

#[test]
fn a_refused_commit_leaves_nothing() {
    let mut run = Run::new(
        "b's commit writes slot 2, then an object that is gone: all of it is taken back from the \
         gathered images, and what a's commit of the same append wrote to the page stays.",
        OriginConfig::default(),
    );
    run.two_nodes();
    run.link(vec![Commit::new(10, 2, 2).put(1, 9, 1, "first").on(1)]);
    run.link(vec![
        Commit::new(10, 3, 2).put(1, 3, 1, "a").on(1),
        Commit::new(20, 1, 2).put(1, 2, 1, "b").put(1, 1, 9, "gone").on(2),
    ]);
    run.settle();
    run.link(vec![fetch(2, 8, &[1])]);
    run.t.end("origin_a_refused_commit_leaves_nothing");
}

#[test]
fn race_a_fetch_overtaken_by_a_change() {
    let mut run = Run::new(
        "Rule 10 and the race of a fetch overtaken by an invalidation. The page must be loaded \
         first, and a's commit to it waits for the same load. c is sent the page as of 2, and then \
         change 3, in another lane: which of them comes first cannot be known. c is registered since \
         it asked, so the change is sent, and has what it needs to mend the page (rule 5).",
        OriginConfig { page_cache_bytes: 0, install_bytes: 0, ..OriginConfig::default() },
    );
    run.two_nodes();
    run.node(3, "c", 30);
    run.link(vec![fetch(3, 5, &[1])]);
    run.link(vec![Commit::new(10, 2, 2).put(1, 1, 1, "y").on(1)]);
    run.settle();
    run.t.end("origin_race_a_fetch_overtaken_by_a_change");
}

#[test]
fn race_a_holder_that_never_answers() {
    let mut config = OriginConfig::default();
    config.downlink.limits.stream_window_bytes = 100;
    config.downlink.ring_commits_max = 4;
    let mut run = Run::new(
        "P7. b holds page 1 and returns no credits. a's commits go on; nothing is kept for b but \
         its cursor. When credit comes, b's cursor is off the ring of 4 commits: its resume is \
         answered again, from where it was, and the stream goes on from there.",
        config,
    );
    run.two_nodes();
    for sequence in 2..14 {
        let credit = larder_core::message::Message::Credit {
            lane: larder_core::message::Lane::Stream,
            bytes: 100,
        };
        run.quietly(vec![Commit::new(10, sequence, sequence).put(1, 1, 1, "y").on(1)]);
        run.quietly(vec![received(1, credit)]);
    }
    let credit = larder_core::message::Message::Credit {
        lane: larder_core::message::Lane::Stream,
        bytes: 100,
    };
    run.link(vec![received(2, credit)]);
    run.settle();
    run.t.end("origin_race_a_holder_that_never_answers");
}

/// A stream that fell off the ring again while its answer was being read told nothing of the beats that came
/// meanwhile: its child's lease lapsed, and the link was called silent by both.
#[test]
fn bug_137_a_stream_that_falls_again_and_again() {
    let mut config = OriginConfig { install_bytes: 0, ..OriginConfig::default() };
    config.downlink.limits.stream_window_bytes = 100;
    config.downlink.ring_commits_max = 2;
    let mut run = Run::new(
        "b returns no credits for a while, and its cursor is off the ring of two commits. The change index is read \
         for it, and a beat comes meanwhile. When that is read the cursor is off the ring again: the beat is echoed \
         before the index is read once more, since all that was known when it came has been told.",
        config,
    );
    run.two_nodes();
    let commit = |sequence| Commit::new(10, sequence, sequence).put(1, 1, 1, "y").on(1);
    let credit = |link| {
        let lane = larder_core::message::Lane::Stream;
        received(link, larder_core::message::Message::Credit { lane, bytes: 100 })
    };
    for sequence in 2..6 {
        run.quietly(vec![commit(sequence), credit(1)]);
    }
    run.settle();
    run.link(vec![credit(2), credit(2), credit(2)]);
    run.link(vec![beat(2, Instant(1))]);
    for sequence in 6..10 {
        run.link(vec![commit(sequence), credit(1)]);
        run.store_last();
    }
    run.settle();
    run.t.end("origin_bug_137_a_stream_that_falls_again_and_again");
}

/// With less memory than what one install takes, commits filled what may be changed and not installed, and then
/// waited for the interval of two seconds, each time.
#[test]
fn bug_138_an_install_before_memory_is_full() {
    let mut run = Run::new(
        "Changed pages may take 4 KiB, and an install is due from 32 MiB on, or after two seconds. It is due at \
         2 KiB: commits do not wait for the clock.",
        OriginConfig { dirty_bytes_max: 4 << 10, ..OriginConfig::default() },
    );
    run.two_nodes();
    let commit = Commit::new(10, 2, 2).put(1, 2, 1, &"y".repeat(3000));
    run.quietly_without_store(vec![commit.on(1)]);
    run.settle();
    run.t.end("origin_bug_138_an_install_before_memory_is_full");
}

#[test]
fn two_nodes_of_one_identity() {
    let mut run = Run::new(
        "Decision 0004. A second link of the same process replaces the first. Another process under \
         the name is refused while the first is heard from, and so is a name that is not the \
         certificate's.",
        OriginConfig::default(),
    );
    run.link(vec![opened(1, "a"), hello(1, "a", 10)]);
    run.link(vec![opened(2, "a"), hello(2, "a", 10)]);
    run.link(vec![opened(3, "a"), hello(3, "a", 11)]);
    run.link(vec![opened(4, "b"), hello(4, "a", 10)]);
    run.wait(30);
    run.t.end("origin_two_nodes_of_one_identity");
}
