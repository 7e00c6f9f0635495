//! An origin's process: its machine, its stores, and how both start, die and are restored.

mod damage;
mod pair;

use self::damage::Written;
use super::troubles::Mend;
use super::{Event, World};
use crate::agenda::MILLI;
use crate::check::installed::Uninstalled;
use crate::check::oracle::Oracle;
use crate::check::quota::{self, Ledger};
use crate::check::rights::Allowed;
use crate::check::trimmed;
use crate::net::Proc;
use crate::plan::Plan;
use larder_core::commit::PartId;
use larder_core::id::{DomainId, HistoryId, PageId, Stamp};
use larder_core::machine::Machine;
use larder_core::origin::io::{OriginInput, OriginOutput, StoreFault};
use larder_core::origin::{Origin, OriginConfig, RecoverError, RecoveredDomain};
use larder_core::record::{LogRecord, Lsn};
use larder_core::rng::Rng;
use larder_core::time::WallTime;
use larder_store::driver::{DomainStore, OpenError};
use larder_store::log::LogConfig;
use larder_store::pages::ModelPages;
use larder_store::testing::{FaultDisk, Rot};
use std::collections::VecDeque;
use std::sync::Arc;

use pair::number_of;
pub(in crate::world) use pair::{ORIGIN, Told, is_said};

/// A domain's store: what outlives the process, and what is under way.
#[derive(Debug)]
pub(crate) struct StoreHost {
    /// The domain.
    pub domain: DomainId,
    /// Its log's disk.
    pub disk: FaultDisk,
    pages: Arc<ModelPages>,
    open: Option<DomainStore<FaultDisk, Arc<ModelPages>>>,
    made: bool,
    config: LogConfig,
    log: VecDeque<OriginOutput>,
    installs: VecDeque<OriginOutput>,
    loads: VecDeque<OriginOutput>,
    /// The next loads that fail, for a device's reasons.
    failing_loads: u64,
    /// Nothing asked of the log is ever answered, as long as this process lives.
    pub(super) hangs: bool,
    backup: Option<Backup>,
    /// Where the log's disk holds what was not written there, as far as nobody put it back.
    rots: Vec<Rot>,
    written: Written,
    /// The first record of the newest write that was answered.
    newest_write: Lsn,
    /// What its volumes take.
    pub(crate) ledger: Ledger,
    pub(super) allowed: Allowed,
    /// What its page engine may not have yet.
    uninstalled: Uninstalled,
    /// The last record that is durable, and the damages for which it may be lost: see `note_newest_rots`.
    last: Lsn,
    newest_rots: Vec<Rot>,
    /// The disk as it was before the first start that was refused, when something on it had rotted.
    mirror: Option<FaultDisk>,
}

/// A copy of a domain's store, made while it ran.
#[derive(Debug)]
struct Backup {
    disk: FaultDisk,
    pages: ModelPages,
    rots: Vec<Rot>,
    last: Lsn,
    durable: Stamp,
}

/// The queues of a store: within one, things happen in order; across them nothing is assumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Queue {
    /// Appends and trims.
    Log,
    /// Installs.
    Install,
    /// Loads.
    Load,
}

impl StoreHost {
    /// The store of a domain that is yet to be made.
    pub(crate) fn new(domain: DomainId, plan: &Plan, rng: &mut Rng) -> Self {
        // What a site of files gathers is committed in one record, which a segment has to hold: 64 MiB, against 4 MiB at
        // once.
        let gathers = plan.files.as_ref().is_some_and(|files| files.dirty_bytes.0 > 4096 * 8);
        let blocks = match (gathers, plan.short_segments) {
            (true, _) => [64; 3],
            (false, true) => [8; 3],
            (false, false) => [8, 16, 64],
        };
        let segment_bytes = 4096 * crate::plan::pick(rng, &blocks);
        Self {
            domain,
            disk: FaultDisk::new(Rng::new(rng.next_u64())),
            pages: Arc::new(ModelPages::new(plan.faults)),
            open: None,
            made: false,
            config: LogConfig { segment_bytes, reserve_bytes: 4096, faults: plan.faults },
            log: VecDeque::new(),
            installs: VecDeque::new(),
            loads: VecDeque::new(),
            failing_loads: 0,
            hangs: false,
            backup: None,
            rots: Vec::new(),
            written: Written::default(),
            newest_write: Lsn(0),
            ledger: Ledger::default(),
            allowed: Allowed::default(),
            uninstalled: Uninstalled::default(),
            last: Lsn(0),
            newest_rots: Vec::new(),
            mirror: None,
        }
    }

    fn queue(&mut self, queue: Queue) -> &mut VecDeque<OriginOutput> {
        match queue {
            Queue::Log => &mut self.log,
            Queue::Install => &mut self.installs,
            Queue::Load => &mut self.loads,
        }
    }

    /// Opens the store, or makes it at the first time, and gives what the origin starts from. A store
    /// that is refused must have a reason to be.
    fn recover(&mut self, rng: &mut Rng) -> Result<RecoveredDomain, OpenError> {
        let (disk, pages, config) = (self.disk.clone(), Arc::clone(&self.pages), self.config);
        let ids = Rng::new(rng.next_u64());
        let opened = if self.made {
            DomainStore::open(disk, pages, config, ids)
        } else {
            DomainStore::create(disk, pages, config, self.domain, ids)
        };
        let (store, recovered) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let rotten = !self.rots.is_empty()
                    && !matches!(error, OpenError::Disk(_) | OpenError::Record { .. });
                assert!(rotten, "P8: the store of {:?} cannot be opened: {error}", self.domain);
                return Err(error);
            }
        };
        self.made = true;
        self.open = Some(store);
        self.check_read(&recovered.records);
        let found = RecoveredDomain {
            meta: recovered.meta,
            apart: recovered.apart,
            records: recovered.records,
            history: HistoryId(rng.next_u128()),
        };
        self.ledger = Ledger::recovered(&found);
        self.allowed = Allowed::recovered(&found);
        self.uninstalled.recover(&found);
        Ok(found)
    }

    /// The process dies: what was being written may be on its way to the disk.
    fn die(&mut self, rng: &mut Rng) {
        if let (Some(store), Some(write)) = (&mut self.open, self.log.pop_front())
            && rng.chance(2, 3)
        {
            if let OriginOutput::Append { records, .. } = &write {
                self.written.note(records, false);
            }
            self.disk.hold_syncs(true);
            // What it answers reaches nobody.
            let _unheard = store.carry_out(write);
            self.disk.hold_syncs(false);
        }
        self.pages.crash(rng.chance(1, 2));
        self.open = None;
        self.log.clear();
        self.installs.clear();
        self.loads.clear();
        self.failing_loads = 0;
        self.hangs = false;
    }
}

impl StoreHost {
    /// Pages that it holds, but for those that stand for volumes.
    pub(super) fn all_pages(&self) -> Vec<PageId> {
        let pages = self.pages.all().into_iter().map(|(page, _)| page);
        pages.filter(|page| !page.is_volume()).collect()
    }
}

impl World {
    pub(super) fn start_origin(&mut self, proc: Proc) {
        let now = self.process(proc).local(self.now);
        let wall = self.wall_time(proc);
        let config = self.origin_config(proc);
        let numbers = self.numbers_of(proc);
        let mut domains = Vec::new();
        let mut refused = None;
        for &number in &numbers {
            let store = &mut self.stores[number];
            store.note_newest_rots();
            if !store.rots.is_empty() && store.mirror.is_none() {
                store.mirror = Some(store.disk.copy());
            }
            match store.recover(&mut self.rng) {
                Ok(recovered) => domains.push(recovered),
                Err(error) => {
                    refused = Some((number, error));
                    break;
                }
            }
        }
        if let Some((number, error)) = refused {
            return self.mend_refused(number, &error);
        }
        let ends: Vec<(Lsn, Stamp)> = domains.iter().map(end_of).collect();
        for (number, found) in numbers.iter().zip(&domains) {
            self.answers.recovered(self.domains[*number], found, self.now);
        }
        let mut out = Vec::new();
        let origin = match Origin::new(config, now, wall, domains, &mut out) {
            Ok(origin) => origin,
            Err(error) => {
                let is_rotten = |number: &usize| !self.stores[*number].newest_rots.is_empty();
                let rotten = numbers.iter().copied().find(is_rotten);
                let behind = rotten.filter(|_| matches!(error, RecoverError::Behind { .. }));
                let number =
                    behind.unwrap_or_else(|| panic!("P8: the origin cannot start: {error}"));
                return self.mend_refused(number, &error);
            }
        };
        self.note_recovered(&numbers, &ends);
        for &number in &numbers {
            let domain = self.domains[number];
            self.acks.restarted(domain);
            self.reader_recovered(domain);
            self.oracle.restarted(domain);
        }
        self.process_mut(proc).origin().machine = Some(origin);
        self.trace.mix(0x0519 | u64::from(proc.0) << 16);
        self.trace.line(|| format!("{proc:?} starts, an origin"));
        self.origin_outputs(proc, out);
        self.enter_connect_second(proc);
    }

    /// Compares what was recovered with what was durable.
    fn note_recovered(&mut self, numbers: &[usize], ends: &[(Lsn, Stamp)]) {
        for (&number, &(last, stamp)) in numbers.iter().zip(ends) {
            let domain = self.domains[number];
            let store = &mut self.stores[number];
            let before = std::mem::replace(&mut store.last, last);
            let newest = std::mem::take(&mut store.newest_rots);
            store.mirror = None;
            if last < before {
                // Two damages may meet, one in the newest write and one in that before it; and a sector that was
                // written over may have held both.
                let many = store.rots.len() > 1 || store.rots.iter().any(|rot| rot.overwrites);
                let is_newest = many || last.0 + 1 >= store.newest_write.0;
                assert!(
                    !newest.is_empty() && is_newest,
                    "P1: the log of {domain:?} ends at record {}, and {} was durable, the newest write of \
                     it from {} on",
                    last.0,
                    before.0,
                    store.newest_write.0
                );
                store.forget_rots();
                self.trace.line(|| format!("{domain:?} has lost what is above {stamp}"));
                self.lost_to(number, stamp);
            } else {
                // What was never durable was cut off all the same (seed 19671562699998).
                store.rots.retain(|rot| !newest.contains(rot));
            }
            let store = &mut self.stores[number];
            if last != before {
                // Where the write began that is the newest now, only the log knows.
                store.newest_write = Lsn(0);
            }
        }
    }

    fn origin_config(&mut self, proc: Proc) -> OriginConfig {
        let accept_fork = self.process_mut(proc).origin().accept_fork;
        let limits = &self.plan.limits;
        let mut config = OriginConfig {
            accept_fork,
            downlink: self.downlink_config(&self.process(proc).name),
            peers: self
                .other_origin(proc)
                .map(|other| self.process(other).name.clone())
                .into_iter()
                .collect(),
            page_cache_bytes: limits.page_cache_bytes,
            install_bytes: limits.install_bytes,
            install_interval: limits.install_interval,
            install_pages_max: limits.install_pages_max,
            append_records_max: limits.append_records_max,
            recent_writes_max: limits.recent_writes_max,
            boots_per_name_max: limits.boots_per_name_max,
            copies_max: limits.copies_max,
            faults: self.plan.faults,
            ..OriginConfig::default()
        };
        if limits.requests_max <= 4 {
            config.index_part_max = 3;
        }
        config.dirty_bytes_max = (4 * limits.install_bytes).max(1 << 16);
        self.plan.bounds.of_origin(&mut config, self.processes.len());
        config
    }

    /// What a process's wall clock shows.
    pub(super) fn wall_time(&self, proc: Proc) -> WallTime {
        let right = 1_700_000_000_000_000_000 + self.now.0;
        WallTime(right.saturating_add_signed(self.process(proc).wall_error))
    }

    pub(super) fn origin_wall(&mut self, proc: Proc) {
        let wall = self.wall_time(proc);
        self.origin_input(proc, OriginInput::WallClock(wall));
        self.look_at_peers(proc);
    }

    pub(super) fn origin_input(&mut self, proc: Proc, input: OriginInput) {
        let now = self.process(proc).local(self.now);
        let mut out = Vec::new();
        let Some(machine) = &mut self.process_mut(proc).origin().machine else {
            return;
        };
        machine.handle(now, input, &mut out);
        self.origin_outputs(proc, out);
    }

    pub(super) fn origin_timeout(&mut self, proc: Proc) {
        let now = self.process(proc).local(self.now);
        let mut out = Vec::new();
        let Some(machine) = &mut self.process_mut(proc).origin().machine else {
            return;
        };
        machine.handle_timeout(now, &mut out);
        self.origin_outputs(proc, out);
    }

    fn origin_outputs(&mut self, proc: Proc, out: Vec<OriginOutput>) {
        for output in out {
            match output {
                OriginOutput::Link(output) => self.link_output(proc, output),
                OriginOutput::Append { domain, ref records, .. } => {
                    for (_, record) in records {
                        self.oracle.appended(domain, record);
                        self.note_boot(domain, record);
                    }
                    self.enter_store(domain, Queue::Log, output);
                }
                OriginOutput::TrimLog { domain, .. } => {
                    self.enter_store(domain, Queue::Log, output)
                }
                OriginOutput::Install { domain, .. } => {
                    self.enter_store(domain, Queue::Install, output);
                }
                OriginOutput::Load { domain, .. } => self.enter_store(domain, Queue::Load, output),
                OriginOutput::GiveBack { .. }
                | OriginOutput::InstallsWait { .. }
                | OriginOutput::InstallsGoOn { .. }
                | OriginOutput::RemovalWaits { .. }
                | OriginOutput::RemovalGoesOn { .. }
                | OriginOutput::VolumeRenamed { .. }
                | OriginOutput::DomainWaits { .. }
                | OriginOutput::DomainServes { .. }
                | OriginOutput::PagesUnreadable { .. } => {}
                OriginOutput::DomainFailed { domain, fault } => {
                    assert!(
                        self.oracle.truth(domain).has_failed(),
                        "{domain:?} ends its service for no reason: {fault}"
                    );
                    self.oracle.store_failed(domain);
                    self.operator_restarts(proc);
                }
            }
        }
        self.enter_timer(proc);
    }

    /// An operator starts an origin again, after a while, if nothing else does.
    pub(super) fn operator_restarts(&mut self, origin: Proc) {
        let delay = self.rng.below(3_000 * MILLI);
        let incarnation = self.process(origin).incarnation;
        let power = self.rng.chance(1, 2);
        let mend = Mend::RestartOrigin { origin, incarnation, power };
        self.enter_mend(delay, mend);
    }

    pub(crate) fn store_host(&mut self, domain: DomainId) -> &mut StoreHost {
        &mut self.stores[number_of(domain)]
    }

    fn enter_store(&mut self, domain: DomainId, queue: Queue, output: OriginOutput) {
        self.trace.line(|| format!("store: {output:?}"));
        let nanos = match queue {
            Queue::Load => self.plan.store_nanos / 4,
            Queue::Log | Queue::Install => self.plan.store_nanos,
        };
        let delay = 1 + self.rng.below(nanos);
        self.store_host(domain).queue(queue).push_back(output);
        let number = number_of(domain);
        let incarnation = self.process(self.origin_of(number)).incarnation;
        self.agenda.enter(self.now.plus(delay), Event::Store(number as u16, incarnation, queue));
    }

    /// The store carries out the next thing of a queue; the answer takes its time.
    pub(super) fn store_step(&mut self, number: u16, incarnation: u32, queue: Queue) {
        let origin = self.origin_of(usize::from(number));
        if self.process(origin).incarnation != incarnation {
            return;
        }
        let domain = self.domains[number as usize];
        let store = self.store_host(domain);
        if store.hangs && queue == Queue::Log {
            return;
        }
        let output = store.queue(queue).pop_front().expect("one event for each thing asked");
        let append = match &output {
            OriginOutput::Append { records, .. } => records.clone(),
            _ => Vec::new(),
        };
        let installing = match &output {
            OriginOutput::Install { batch, .. } => Some(batch.clone()),
            _ => None,
        };
        let trims = matches!(output, OriginOutput::TrimLog { .. });
        let failing = matches!(output, OriginOutput::Load { .. }) && store.failing_loads > 0;
        store.failing_loads -= u64::from(failing);
        let answer = match output {
            OriginOutput::Load { domain, load, .. } if failing => {
                let result = Err(StoreFault::Failed("input/output error (simulated)".into()));
                Some(OriginInput::Loaded { domain, load, result })
            }
            output => store.open.as_mut().expect("open while the origin lives").carry_out(output),
        };
        if trims && store.rots.is_empty() {
            trimmed::check(domain, &store.disk, &store.pages);
        }
        let answered = matches!(answer, Some(OriginInput::Appended { result: Ok(()), .. }));
        store.written.note(&append, answered);
        self.trace.mix(0x5703 | u64::from(number) << 32);
        let Some(answer) = answer else {
            return;
        };
        let mut followed = Vec::new();
        let store = self.store_host(domain);
        if let (OriginInput::Installed { result: Ok(()), .. }, Some(batch)) = (&answer, installing)
        {
            quota::check_installed(&batch, &store.pages, store.last);
            followed = store.uninstalled.installed(&batch, &store.pages);
        }
        if let Some((last, _)) = append.last() {
            if matches!(answer, OriginInput::Appended { result: Ok(()), .. }) {
                (store.last, store.newest_write) = (*last, append[0].0);
                append.iter().for_each(|(_, record)| store.ledger.durable(record));
                append.iter().for_each(|(_, record)| store.allowed.durable(record));
                append.iter().for_each(|(lsn, record)| store.uninstalled.durable(*lsn, record));
                self.readers.appended(domain, &append);
                let records = append.iter().map(|(_, record)| record);
                self.answers.durable(domain, records);
            }
            note_append(&mut self.oracle, domain, &answer);
        }
        self.have_followed(&followed);
        let delay = 1 + self.rng.below(self.plan.store_nanos / 2 + 1);
        self.agenda
            .enter(self.now.plus(delay), Event::Stored(origin, incarnation, Box::new(answer)));
    }

    /// Of parts a decision is not kept for any more: their domains have ended them, durably.
    fn have_followed(&mut self, parts: &[PartId]) {
        let stores = &self.stores;
        if stores.iter().any(|store| store.uninstalled.has_branched()) {
            return;
        }
        for part in parts {
            let store = stores.iter().find(|store| store.domain == part.domain);
            let ended = store.is_none_or(|store| store.uninstalled.has_ended(part.id));
            assert!(ended, "P11: the decision of {part:?} is in no record that is read again");
        }
    }

    /// The answer reaches its origin.
    pub(super) fn stored(&mut self, origin: Proc, incarnation: u32, input: OriginInput) {
        if self.process(origin).incarnation != incarnation {
            return;
        }
        if self.process(origin).paused_until > self.now {
            let until = self.process(origin).paused_until;
            self.agenda.enter(until, Event::Stored(origin, incarnation, Box::new(input)));
            return;
        }
        self.trace.mix(0x5702);
        self.trace.line(|| format!("store answers: {input:?}"));
        match &input {
            OriginInput::Appended { domain, result: Err(fault), .. }
            | OriginInput::Installed { domain, result: Err(fault), .. }
                if !matches!(fault, StoreFault::Full(_)) =>
            {
                self.oracle.store_failed(*domain);
            }
            OriginInput::Appended { domain, result: Ok(()), .. } => {
                self.oracle.told(*domain, self.now);
                self.readers.told(*domain);
            }
            OriginInput::Installed { domain, result: Ok(()), .. } => {
                self.store_host(*domain).pages.answered();
            }
            _ => {}
        }
        let heard = match &input {
            OriginInput::Appended { domain, result: Ok(()), .. } => Some(*domain),
            _ => None,
        };
        self.origin_input(origin, input);
        self.readers.settled(self.now);
        if let Some(domain) = heard {
            self.answers.told(domain, self.now);
        }
    }

    /// An origin's process ends; with `power` its machine's memory and unsynced bytes go too.
    pub(super) fn kill_origin(&mut self, proc: Proc, power: bool) {
        if self.process_mut(proc).origin().machine.take().is_none() {
            return;
        }
        for number in self.numbers_of(proc) {
            self.readers.died(self.domains[number]);
            let store = &mut self.stores[number];
            store.die(&mut self.rng);
            if power {
                store.disk.cut_power();
            }
            store.disk.fail_syncs(0);
        }
        self.trace.mix(0xdead);
        self.trace.line(|| format!("{proc:?}, an origin, dies (power: {power})"));
        self.after_death(proc);
    }

    /// The next syncs of a domain fail.
    pub(super) fn fail_syncs(&mut self) {
        let number = self.rng.below(self.domains.len() as u64) as usize;
        if self.process(self.origin_of(number)).is_up() {
            self.stores[number].disk.fail_syncs(1);
        }
    }

    /// The disk of a domain has no more room, or has again.
    pub(super) fn set_full(&mut self, number: usize, full: bool) {
        let loads = if full { self.rng.below(8) } else { 0 };
        let store = &mut self.stores[number];
        if full && !store.made {
            return;
        }
        // A device that runs full is one that fails reads as well.
        store.failing_loads = loads;
        let pages_full = full && self.rng.chance(1, 2);
        // The log may have a device of its own, or room that it keeps: it goes on while installs are refused.
        let log_full = full && !(pages_full && loads % 2 == 0);
        store.disk.set_capacity(log_full.then(|| store.disk.used()));
        store.pages.set_full(pages_full);
    }

    /// Makes a copy of all stores, as a backup would, while their origins serve from them.
    pub(super) fn back_up(&mut self) {
        for number in 0..self.domains.len() {
            if !self.process(self.origin_of(number)).is_up() {
                continue;
            }
            let branch = self.oracle.truth(self.domains[number]).current();
            let (durable, last) = (branch.durable(), branch.last());
            let store = &mut self.stores[number];
            // While an append is under way nobody can say which of its records a copy has.
            if !store.made || durable != last {
                continue;
            }
            let pages = (*store.pages).clone();
            pages.crash(false);
            let (disk, rots, last) = (store.disk.copy(), store.rots.clone(), store.last);
            store.backup = Some(Backup { disk, pages, rots, last, durable });
        }
    }

    /// Puts the copies in the places of an origin's stores. It must be dead.
    pub(super) fn restore(&mut self, origin: Proc) {
        let mut numbers = self.numbers_of(origin);
        // Where transactions are over several domains: one is restored, and the others go on with what it has lost.
        if self.plan.mix.spread_percent == 100 && numbers.len() > 1 && self.rng.chance(1, 2) {
            let one = self.rng.below(numbers.len() as u64) as usize;
            numbers = vec![numbers[one]];
        }
        for number in numbers {
            let domain = self.domains[number];
            let store = &mut self.stores[number];
            let Some(backup) = store.backup.take() else {
                continue;
            };
            self.trace.line(|| format!("{domain:?} is restored from {}", backup.durable));
            store.disk = backup.disk;
            store.pages = Arc::new(backup.pages);
            // Whoever copies a full device restores to one that has room.
            store.pages.set_full(false);
            (store.rots, store.last) = (backup.rots, backup.last);
            // Of what the copy holds nobody knows where its newest write began.
            store.newest_write = Lsn(0);
            store.newest_rots.clear();
            store.mirror = None;
            self.lost_to(number, backup.durable);
        }
    }

    /// Somebody starts these origins on empty disks, or one domain of theirs. They must be dead.
    pub(super) fn wipe(&mut self, origins: &[Proc]) {
        let all = self.rng.chance(1, 2);
        let one = self.rng.below(self.domains.len() as u64) as usize;
        for number in (0..self.domains.len()).filter(|number| all || *number == one) {
            if !origins.contains(&self.origin_of(number)) {
                continue;
            }
            let domain = self.domains[number];
            self.trace.line(|| format!("{domain:?} is wiped"));
            let store = StoreHost::new(domain, &self.plan, &mut self.rng);
            self.stores[number] = store;
            self.lost_to(number, Stamp::ZERO);
        }
    }

    /// What a domain has above `stamp` is lost: another branch begins there.
    fn lost_to(&mut self, number: usize, stamp: Stamp) {
        self.needs_beyond("what was durable is lost");
        let domain = self.domains[number];
        let store = &mut self.stores[number];
        // A copy of what the log has lost since is of another branch than the one that begins here.
        let last = store.last;
        store.uninstalled.branch();
        self.answers.expired.branch(domain);
        self.answers.withdrawn.branch(domain);
        let store = &mut self.stores[number];
        let is_newer = |backup: &Backup| backup.durable > stamp || backup.last > last;
        if store.backup.as_ref().is_some_and(is_newer) {
            store.backup = None;
        }
        self.check_cycles();
        self.oracle.restored(domain, stamp);
        self.forget_lost(domain);
        let branch = self.oracle.truth(domain).current();
        for volume in self.volumes.iter_mut().filter(|volume| volume.domain == domain) {
            volume.forget_lost(branch);
        }
    }

    /// From the next start on an origin accepts children that saw more than it has.
    pub(super) fn accept_fork(&mut self, origin: Proc) {
        self.process_mut(origin).origin().accept_fork = true;
    }

    /// Whether the stores have nothing to do.
    pub(super) fn stores_idle(&mut self) -> bool {
        let stores = &self.stores;
        stores.iter().all(|store| store.log.is_empty() && store.loads.is_empty())
    }
}

/// The last record and stamp of what was recovered.
fn end_of(found: &RecoveredDomain) -> (Lsn, Stamp) {
    let last = found.records.last().map_or(found.meta.installed_lsn, |(lsn, _)| *lsn);
    let stamps = found.records.iter().filter_map(|(_, record)| record_stamp(record));
    (last, stamps.max().unwrap_or(found.meta.installed))
}

/// The stamp of a record that has one.
fn record_stamp(record: &LogRecord) -> Option<Stamp> {
    match record {
        LogRecord::Commit { stamp, .. }
        | LogRecord::Volume { stamp, .. }
        | LogRecord::Deleted { stamp, .. } => Some(*stamp),
        LogRecord::Aborted { .. }
        | LogRecord::Boot { .. }
        | LogRecord::Confirmed { .. }
        | LogRecord::Ids { .. }
        | LogRecord::Prepared { .. }
        | LogRecord::Released { .. }
        | LogRecord::Settings { .. }
        | LogRecord::Epoch { .. } => None,
    }
}

/// Tells the oracle how an append ended: what the disk did, not what the log says, is the truth.
fn note_append(oracle: &mut Oracle, domain: DomainId, answer: &OriginInput) {
    match answer {
        OriginInput::Appended { result: Ok(()), .. } => oracle.synced(domain),
        OriginInput::Appended { result: Err(StoreFault::Full(_)), .. } => oracle.refused(domain),
        _ => {}
    }
}
