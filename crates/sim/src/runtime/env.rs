//! A world's clocks, random numbers, disks and limits, as the runtime asks for them.

use super::ledger::Ledger;
use super::net::Net;
use super::plan::{Plan, group_name};
use super::work::Aims;
use crate::check::cycles::History;
use crate::trace::Trace;
use larder::limits::Limits;
use larder::planted::RuntimeFault;
use larder::simulated::{Incoming, Job, Later, SimStore, Stream, World};
use larder_core::id::{DomainId, Stamp, VolumeId};
use larder_core::message::Role;
use larder_core::record::{LogRecord, Lsn};
use larder_core::rng::Rng;
use larder_core::time::{Instant, WallTime};
use larder_core::{cache, origin, relay};
use larder_store::driver::{DomainStore, OpenError, Recovered, domain_of};
use larder_store::log::LogConfig;
use larder_store::pages::{ModelPages, Pages};
use larder_store::testing::FaultDisk;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// When worlds begin, by every process's own clock, in nanoseconds.
const BEGINNING: u64 = 1_000_000_000_000;
/// And by the wall clock.
const WALL_BEGINNING: u64 = 1_700_000_000_000_000_000;

/// What all tasks of a world share.
pub(super) struct Shared {
    pub(super) plan: Plan,
    pub(super) net: Net,
    pub(super) disks: Vec<Disk>,
    start: tokio::time::Instant,
    /// Nanoseconds that all machines slept.
    pub(super) slept: AtomicU64,
    /// By how many nanoseconds the wall clock is off.
    pub(super) wall_error: AtomicI64,
    pub(super) disk_slow: AtomicBool,
    /// What tasks draw from, one after the other: their order is that of the run.
    pub(super) rng: Mutex<Rng>,
    pub(super) ledger: Mutex<Ledger>,
    pub(super) history: Mutex<History>,
    pub(super) trace: Mutex<Trace>,
    /// What clients aim at, by volume.
    pub(super) aims: Mutex<Vec<Aims>>,
    /// Page numbers that clients were given.
    pub(super) given: Mutex<BTreeSet<(VolumeId, u64)>>,
    clients: AtomicU64,
    /// The last stamp of each domain that somebody was told.
    pub(super) told: Mutex<BTreeMap<DomainId, Stamp>>,
    pub(super) tally: Mutex<Tally>,
}

/// What happened in a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Transactions that were done.
    pub committed: u64,
    /// That met a conflict, or were refused.
    pub aborted: u64,
    /// Of which nobody knows.
    pub unknown: u64,
    /// Calls that were dropped.
    pub dropped: u64,
    /// Events that watchers heard.
    pub heard: u64,
    /// Troubles.
    pub troubles: u64,
}

/// A domain's disk.
pub(super) struct Disk {
    pub(super) domain: DomainId,
    pub(super) disk: FaultDisk,
    pub(super) pages: Arc<ModelPages>,
}

pub(super) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(plan: Plan, readable: bool) -> Self {
        let mut rng = Rng::new(plan.seed ^ 0x776f_726c_6400);
        let disks = (0..plan.domains).map(|_| Disk::new(&mut rng)).collect();
        let pause_min = plan.link.back_off_min.0 / 2;
        Self {
            net: Net::new(Rng::new(rng.next_u64()), pause_min),
            disks,
            start: tokio::time::Instant::now(),
            slept: AtomicU64::new(0),
            wall_error: AtomicI64::new(0),
            disk_slow: AtomicBool::new(false),
            rng: Mutex::new(rng),
            ledger: Mutex::default(),
            history: Mutex::default(),
            trace: Mutex::new(Trace::new(readable)),
            aims: Mutex::default(),
            given: Mutex::default(),
            clients: AtomicU64::new(1),
            told: Mutex::default(),
            tally: Mutex::default(),
            plan,
        }
    }

    pub(super) fn below(&self, bound: u64) -> u64 {
        lock(&self.rng).below(bound)
    }

    pub(super) fn chance(&self, numerator: u64, denominator: u64) -> bool {
        lock(&self.rng).chance(numerator, denominator)
    }

    pub(super) fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// A number that no client had.
    pub(super) fn next_client(&self) -> u64 {
        self.clients.fetch_add(1, Ordering::Relaxed)
    }

    /// A generator of somebody's own.
    pub(super) fn split(&self) -> Rng {
        Rng::new(lock(&self.rng).next_u64())
    }

    /// Time since the beginning, without sleep.
    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Something that somebody saw.
    pub(super) fn saw(&self, numbers: &[u64], line: impl FnOnce() -> String) {
        let mut trace = lock(&self.trace);
        let nanos = u64::try_from(self.elapsed().as_nanos()).unwrap_or(u64::MAX);
        trace.event(crate::agenda::Time(nanos));
        for number in numbers {
            trace.mix(*number);
        }
        trace.line(line);
    }

    pub(super) fn tell(&self, domain: DomainId, stamp: Stamp) {
        let mut told = lock(&self.told);
        let last = told.entry(domain).or_insert(Stamp::ZERO);
        *last = stamp.max(*last);
    }

    pub(super) fn told(&self, domain: DomainId) -> Stamp {
        lock(&self.told).get(&domain).copied().unwrap_or(Stamp::ZERO)
    }
}

impl Disk {
    fn new(rng: &mut Rng) -> Self {
        Self {
            domain: DomainId(rng.next_u64()),
            disk: FaultDisk::new(Rng::new(rng.next_u64())),
            pages: Arc::new(ModelPages::default()),
        }
    }

    fn open(&self, rng: Rng, log: LogConfig) -> Result<(SimStore, Recovered), OpenError> {
        let (disk, pages) = (self.disk.clone(), self.pages.clone());
        match domain_of(&disk)? {
            Some(_) => DomainStore::open(disk, pages, log, rng),
            None => DomainStore::create(disk, pages, log, self.domain, rng),
        }
    }

    /// The log record up to which everything is installed.
    pub(super) fn installed(&self) -> Lsn {
        let meta = self.pages.meta().expect("the model answers");
        meta.map_or(Lsn(0), |meta| meta.installed_lsn)
    }
}

/// The world as the runtime sees it.
pub(super) struct Env(pub(super) Arc<Shared>);

impl World for Env {
    fn now(&self) -> Instant {
        let nanos = u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Instant(BEGINNING + nanos + self.0.slept.load(Ordering::Relaxed))
    }

    fn wall_time(&self) -> WallTime {
        let since = self.now().0 - BEGINNING;
        let error = self.0.wall_error.load(Ordering::Relaxed);
        WallTime((WALL_BEGINNING + since).saturating_add_signed(error))
    }

    fn random(&self) -> u128 {
        lock(&self.0.rng).next_u128()
    }

    fn limits(&self) -> Limits {
        self.0.plan.limits
    }

    fn fault(&self) -> Option<RuntimeFault> {
        self.0.plan.fault
    }

    fn connect(&self, from: &str, role: Role, to: &str) -> Later<io::Result<(Stream, String)>> {
        self.0.net.connect(from, role, to)
    }

    fn groups(&self, name: &str) -> Vec<String> {
        self.0.plan.group_of(name).map(group_name).into_iter().collect()
    }

    fn listen(&self, name: &str, at: &str) -> io::Result<(mpsc::Receiver<Incoming>, SocketAddr)> {
        self.0.net.listen(name, at)
    }

    fn open(&self, _data: &Path) -> Result<Vec<(SimStore, Recovered)>, OpenError> {
        let mut opened = Vec::new();
        for disk in &self.0.disks {
            let (store, recovered) = disk.open(self.0.split(), self.0.plan.log)?;
            lock(&self.0.ledger).recovered(
                disk.domain,
                recovered.meta.installed_lsn,
                &recovered.records,
            );
            opened.push((store, recovered));
        }
        Ok(opened)
    }

    fn delays(&self, _domain: DomainId, job: Job) -> (Duration, Duration) {
        let slow = self.0.disk_slow.load(Ordering::Relaxed);
        let most = match (slow, job) {
            (true, _) => 800,
            (false, Job::Append | Job::Load) => self.0.plan.disk_ms,
            (false, Job::Install) => 3 * self.0.plan.disk_ms,
        };
        let mut rng = lock(&self.0.rng);
        let mut delay = || Duration::from_millis(rng.below(most + 1));
        let (done, told) = (delay(), delay());
        let write =
            if job == Job::Append { self.0.plan.machines.log_write } else { Duration::ZERO };
        (done + write, told)
    }

    fn appends(&self, domain: DomainId, records: &[(Lsn, LogRecord)]) {
        lock(&self.0.ledger).appends(domain, records);
    }

    fn free_bytes(&self, _data: &Path) -> u64 {
        use larder_store::disk::Disk as _;
        self.0.disks.iter().filter_map(|disk| disk.disk.free_bytes().ok()).min().unwrap_or(0)
    }

    fn tune_origin(&self, config: &mut origin::OriginConfig) {
        let plan = &self.0.plan;
        config.install_interval = plan.install_every;
        config.downlink.limits.stream_window_bytes = plan.windows.0 as _;
        config.downlink.limits.bulk_window_bytes = plan.windows.1 as _;
        config.downlink.hello_max *= plan.machines.patience;
        config.wait_max = Duration::from_secs(4) * plan.machines.patience;
    }

    fn tune_relay(&self, config: &mut relay::RelayConfig) {
        let plan = &self.0.plan;
        config.downlink.limits.stream_window_bytes = plan.windows.0 as _;
        config.downlink.limits.bulk_window_bytes = plan.windows.1 as _;
        config.downlink.hello_max *= plan.machines.patience;
        config.request_max = Duration::from_secs(3) * plan.machines.patience;
        config.narrow_delay = Duration::from_secs(1) * plan.machines.slow;
    }

    fn tune_cache(&self, config: &mut cache::CacheConfig) {
        config.requests_max = self.0.plan.requests_max;
        config.commits_max = self.0.plan.requests_max;
        if !self.0.plan.companions {
            config.companions_max = 0;
        }
    }
}
