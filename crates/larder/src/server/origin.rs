//! An origin: domains' stores, the machine, and links from children.

use super::data::{OpenDomain, Parts, open_all};
use super::peers::{FIRST_PEER_LINK, PeerLinks};
use super::status::{Seen, directory, domain_name, unreadable_pages};
use super::store::StoreThreads;
use super::{FIRST_DOWN_LINK, ServerError};
use crate::clock::{now, wall_time};
use crate::config::OriginConfig;
use crate::host::{Host, Inputs, Outlet, Queues};
use crate::http::{Probe, Telling};
use crate::metrics::{Metrics, Side, StorePart};
use crate::tls::{Credentials, Uses};
use crate::transport::{Door, Guests, LinkSender, LinkSetup, Links, Listener};
use larder_core::downlink::DownlinkConfig;
use larder_core::id::{DomainId, LinkId, VolumeId};
use larder_core::message::LinkLimits;
use larder_core::origin::io::{OriginInput, OriginOutput, StoreFault, Unreadable};
use larder_core::origin::{self, Origin};
use larder_core::rights::Access;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::{AbortHandle, JoinHandle};

/// How often the machine is told the wall clock.
const WALL_CLOCK_EVERY: Duration = Duration::from_millis(200);

/// How often the machine is told what is free where the store is.
const ROOM_EVERY: Duration = Duration::from_secs(5);

/// A running origin. It ends with [`OriginServer::shutdown`]; dropping it ends it like a crash,
/// which loses nothing that was acknowledged.
pub struct OriginServer {
    name: String,
    address: SocketAddr,
    inputs: Inputs<Origin>,
    metrics: Arc<Metrics>,
    credentials: Arc<Credentials>,
    domains: Vec<DomainId>,
    failed: Failed,
    damaged: Damaged,
    told: Told,
    peers: PeerLinks,
    host: Mutex<Option<JoinHandle<()>>>,
    tasks: Vec<AbortHandle>,
}

/// Domains that do not serve, and why.
type Failed = Arc<Mutex<BTreeMap<DomainId, StoreFault>>>;

/// Domains with pages that have changes and cannot be read.
type Damaged = Arc<Mutex<BTreeMap<DomainId, Unreadable>>>;

/// What else an operator is to know of domains.
type Told = Arc<Mutex<BTreeMap<DomainId, Notes>>>;

/// What an operator is to know of a domain.
#[derive(Default)]
struct Notes {
    /// Why installs wait.
    installs: Option<StoreFault>,
    /// Deleted volumes whose pages are not removed, and why.
    removals: BTreeMap<VolumeId, String>,
    /// Volumes that got another name at this start.
    renamed: Vec<String>,
}

impl Drop for OriginServer {
    fn drop(&mut self) {
        self.abort();
    }
}

impl OriginServer {
    /// Opens the store, recovers its domains, and serves links. Store errors name the folder.
    pub async fn start(config: OriginConfig) -> Result<Self, ServerError> {
        let crl_required = config.link.crl_required;
        let origins = config.origin.peers().next().is_some();
        let uses = Uses { serves: true, origins, crl_required, ..Uses::default() };
        let credentials = Credentials::load(&config.tls_dir, &config.name, uses)?;
        let domains = open_domains(&config).await?;
        let ids: Vec<DomainId> = domains.iter().map(|d| d.recovered.meta.domain).collect();
        let metrics = Arc::new(Metrics::new());
        let queues = Queues::<Origin>::new();
        let inputs = queues.inputs.clone();
        let setup = LinkSetup::new(
            queues.links.clone(),
            metrics.clone(),
            usize::try_from(config.link.queue.0).unwrap_or(usize::MAX),
            config.link.write_limit.0,
        );
        let listen = &config.origin.listen;
        let listen_error = |error: std::io::Error| ServerError::Listen {
            address: listen.clone(),
            detail: error.to_string(),
        };
        let door = Door::open(listen, &credentials).await.map_err(listen_error)?;
        let address = door.address().map_err(listen_error)?;
        let links = |side, first| Links::new(side, setup.clone(), credentials.clone(), first);
        let guests = Guests::default();
        guests.let_in(links(Side::Down, FIRST_DOWN_LINK));
        if origins {
            guests.let_in(links(Side::Peer, FIRST_PEER_LINK));
        }
        let listener = Listener::new(door, guests, credentials.clone(), config.link.clone());
        let failed = Failed::default();
        let damaged = Damaged::default();
        let told = Told::default();
        let outlet = (&failed, &damaged, &told);
        let host = start_machine(&config, domains, queues, &metrics, outlet)?;
        let (peers, dials) = PeerLinks::start(&config, &setup, &credentials);
        let accept = tokio::spawn(listener.run());
        let clock = tokio::spawn(wall_clock(inputs.clone()));
        let watch = tokio::spawn(credentials.clone().watch(metrics.clone()));
        let room = tokio::spawn(tell_room(inputs.clone(), ids.clone(), config.origin.data.clone()));
        tracing::info!(name = %config.name, %address, domains = ids.len(), "origin started");
        Ok(Self {
            name: config.name,
            address,
            inputs,
            metrics,
            domains: ids,
            failed,
            damaged,
            told,
            credentials,
            peers,
            tasks: [&accept, &clock, &watch, &room, &host]
                .map(JoinHandle::abort_handle)
                .into_iter()
                .chain(dials)
                .collect(),
            host: Mutex::new(Some(host)),
        })
    }

    /// Waits until it has ended: a broken invariant ends it, and its process should end with it.
    pub async fn ended(&self) {
        self.inputs.gone().await;
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its order domains.
    #[must_use]
    pub fn domains(&self) -> &[DomainId] {
        &self.domains
    }

    /// Says goodbye to the children and closes the store; it may be opened anew when this returns.
    pub async fn shutdown(&self) {
        self.inputs.stop().await;
        self.close().await;
    }

    /// Ends like a crash, without a goodbye; the store may be opened anew when this returns.
    pub async fn kill(&self) {
        self.abort();
        self.close().await;
    }

    async fn close(&self) {
        self.abort();
        let host = self.host.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(host) = host {
            // Aborted or ended: either way the outlet, and so the store's threads, are gone.
            let _ = host.await;
        }
        tracing::info!(name = %self.name, "origin ended");
    }

    fn abort(&self) {
        for task in &self.tasks {
            task.abort();
        }
    }

    fn unreadable(&self) -> BTreeMap<DomainId, Unreadable> {
        self.damaged.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn faults(&self) -> BTreeMap<DomainId, StoreFault> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn open_domains(config: &OriginConfig) -> Result<Vec<OpenDomain>, ServerError> {
    let section = config.origin.clone();
    #[cfg(feature = "simulated")]
    if let Some(opened) = super::data::open_world(&section) {
        return opened;
    }
    let opened = tokio::task::spawn_blocking(move || open_all(&section)).await;
    opened.expect("opening ends in a result, and is not cancelled")
}

fn start_machine(
    config: &OriginConfig,
    domains: Vec<OpenDomain>,
    queues: Queues<Origin>,
    metrics: &Arc<Metrics>,
    (failed, damaged, told): (&Failed, &Damaged, &Told),
) -> Result<JoinHandle<()>, ServerError> {
    let mut outputs = Vec::new();
    let recovered = domains.iter().map(|domain| domain.recovered.clone()).collect();
    let settings = machine_config(config, domains.len());
    #[cfg(feature = "simulated")]
    let settings = tuned(settings);
    let machine = Origin::new(settings, now(), wall_time(), recovered, &mut outputs)?;
    let mut stores = BTreeMap::new();
    for domain in domains {
        let id = domain.recovered.meta.domain;
        let store = Store::start(id, domain.parts, &queues.inputs, metrics);
        let store = store.map_err(|error| ServerError::Data {
            path: config.origin.data.clone(),
            detail: format!("no threads for it: {error}"),
        })?;
        stores.insert(id, store);
    }
    let outlet = OriginOutlet {
        stores,
        failed: failed.clone(),
        damaged: damaged.clone(),
        told: told.clone(),
        metrics: metrics.clone(),
    };
    Ok(Host::spawn(machine, outlet, queues, outputs))
}

/// As this thread's world wants it.
#[cfg(feature = "simulated")]
fn tuned(mut settings: origin::OriginConfig) -> origin::OriginConfig {
    if let Some(world) = crate::simulated::world() {
        world.tune_origin(&mut settings);
    }
    settings
}

/// For a store of so many domains: more perhaps than are configured, since none is left out.
fn machine_config(config: &OriginConfig, domains: usize) -> origin::OriginConfig {
    let defaults = origin::OriginConfig::default();
    let memory = usize::try_from(config.origin.memory.0).unwrap_or(usize::MAX);
    let of_domain = memory / domains.max(1);
    let share = of_domain / 2;
    // What is remembered of recent changes, less of it where there is little memory: a sixteenth of it for what
    // children may have missed, of about 256 bytes a commit, and a tenth for what commits are looked at for.
    // The least holds what most appends and commits bring: else every child would be off the ring after each,
    // and every commit under way would be judged by whole pages.
    let append = 4 * defaults.append_records_max;
    let ring_bytes_max = defaults.downlink.ring_bytes_max.min(of_domain / 16).max(append * 256);
    let ring_commits_max = defaults.downlink.ring_commits_max.min(of_domain / 16 / 256).max(append);
    let commit = 2 * defaults.commit_pages_max;
    let recent_writes_max = defaults.recent_writes_max.min(of_domain / 1024).max(commit);
    origin::OriginConfig {
        downlink: DownlinkConfig {
            ring_bytes_max,
            ring_commits_max,
            name: config.name.clone(),
            limits: LinkLimits { lease: config.origin.lease.0, ..defaults.downlink.limits },
            links_max: config.link.links_max as usize,
            silence_max: config.link.silence_max.0,
            hello_max: config.link.connect_limit.0,
            ..defaults.downlink
        },
        peers: config.origin.peers().map(|(name, _)| name.to_owned()).collect(),
        recent_writes_max,
        page_cache_bytes: share,
        dirty_bytes_max: share,
        accept_fork: config.origin.accept_fork,
        access: Access {
            default: config.origin.default_rights.0,
            admins: config.origin.admins.0.clone(),
        },
        ..defaults
    }
}

async fn wall_clock(inputs: Inputs<Origin>) {
    let mut ticks = tokio::time::interval(WALL_CLOCK_EVERY);
    loop {
        ticks.tick().await;
        if inputs.send(OriginInput::WallClock(wall_time())).await.is_err() {
            return;
        }
    }
}

/// Tells the machine what is free where the store is, for those who ask what a volume may take.
async fn tell_room(inputs: Inputs<Origin>, domains: Vec<DomainId>, data: PathBuf) {
    let mut ticks = tokio::time::interval(ROOM_EVERY);
    loop {
        ticks.tick().await;
        // What cannot be told now is left as it was.
        let Some(bytes) = free_bytes(&data).await else { continue };
        for domain in &domains {
            let domain = *domain;
            if inputs.send(OriginInput::Room { domain, bytes }).await.is_err() {
                return;
            }
        }
    }
}

async fn free_bytes(data: &Path) -> Option<u64> {
    #[cfg(feature = "simulated")]
    if let Some(world) = crate::simulated::world() {
        return Some(world.free_bytes(data));
    }
    let place = data.to_owned();
    let looked = tokio::task::spawn_blocking(move || larder_store::pages::free_bytes(&place));
    looked.await.ok()?.ok()
}

/// A domain's store at work.
enum Store {
    Threads(StoreThreads),
    #[cfg(feature = "simulated")]
    Tasks(super::tasks::StoreTasks),
}

impl Store {
    fn start(
        id: DomainId,
        parts: Parts,
        inputs: &Inputs<Origin>,
        metrics: &Arc<Metrics>,
    ) -> std::io::Result<Self> {
        Ok(match parts {
            Parts::Files(log, pages) => {
                Self::Threads(StoreThreads::start(id, (log, pages), inputs, metrics)?)
            }
            #[cfg(feature = "simulated")]
            Parts::World(store) => {
                Self::Tasks(super::tasks::StoreTasks::start(id, store, inputs, metrics))
            }
        })
    }

    fn carry_out(&self, output: OriginOutput) {
        match self {
            Self::Threads(threads) => threads.carry_out(output),
            #[cfg(feature = "simulated")]
            Self::Tasks(tasks) => tasks.carry_out(output),
        }
    }

    fn end(self) {
        match self {
            Self::Threads(threads) => threads.end(),
            #[cfg(feature = "simulated")]
            Self::Tasks(tasks) => drop(tasks),
        }
    }
}

/// Carries out what the origin asks for beside its links.
struct OriginOutlet {
    stores: BTreeMap<DomainId, Store>,
    failed: Failed,
    damaged: Damaged,
    told: Told,
    metrics: Arc<Metrics>,
}

impl Drop for OriginOutlet {
    fn drop(&mut self) {
        for (_, store) in std::mem::take(&mut self.stores) {
            store.end();
        }
    }
}

impl Outlet<Origin> for OriginOutlet {
    fn carry_out(&mut self, output: OriginOutput, _: &BTreeMap<LinkId, LinkSender>) {
        let domain = match &output {
            OriginOutput::Link(_) => unreachable!("the host keeps what is of links"),
            OriginOutput::Append { domain, .. }
            | OriginOutput::Load { domain, .. }
            | OriginOutput::Install { domain, .. }
            | OriginOutput::GiveBack { domain }
            | OriginOutput::TrimLog { domain, .. } => *domain,
            OriginOutput::PagesUnreadable { domain, unreadable } => {
                self.unreadable(*domain, unreadable.clone());
                return;
            }
            OriginOutput::InstallsWait { .. }
            | OriginOutput::InstallsGoOn { .. }
            | OriginOutput::RemovalWaits { .. }
            | OriginOutput::RemovalGoesOn { .. }
            | OriginOutput::VolumeRenamed { .. } => return self.note(output),
            OriginOutput::DomainWaits { domain, fault } => {
                let name = format!("{:016x}", domain.0);
                tracing::warn!(domain = %name, %fault, "domain waits for room in its store");
                let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.insert(*domain, fault.clone());
                return;
            }
            OriginOutput::DomainServes { domain } => {
                let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                if failed.remove(domain).is_some() {
                    tracing::info!(domain = %format!("{:016x}", domain.0), "domain serves");
                }
                return;
            }
            OriginOutput::DomainFailed { domain, fault } => {
                tracing::error!(domain = %format!("{:016x}", domain.0), %fault, "domain failed");
                self.metrics.domain_failed();
                let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.insert(*domain, fault.clone());
                return;
            }
        };
        let store = self.stores.get(&domain).expect("the machine knows the domains it was given");
        store.carry_out(output);
    }
}

impl OriginOutlet {
    /// Notes what the operator is to know, and logs it.
    fn note(&mut self, output: OriginOutput) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        match output {
            OriginOutput::InstallsWait { domain, fault } => {
                tracing::warn!("{}", installs_wait(domain, &fault));
                told.entry(domain).or_default().installs = Some(fault);
            }
            OriginOutput::InstallsGoOn { domain } => {
                tracing::info!(domain = %domain_name(domain), "commits are installed again");
                told.entry(domain).or_default().installs = None;
            }
            OriginOutput::RemovalWaits { domain, volume, name, fault } => {
                let note = format!(
                    "domain {}: what deleted volume {name} left cannot be listed, and keeps its space: {fault}; what other deleted volumes left is removed, and it is tried again",
                    domain_name(domain)
                );
                tracing::warn!("{note}");
                told.entry(domain).or_default().removals.insert(volume, note);
            }
            OriginOutput::RemovalGoesOn { domain, volume } => {
                tracing::info!(domain = %domain_name(domain), %volume, "what a deleted volume left is removed");
                told.entry(domain).or_default().removals.remove(&volume);
            }
            OriginOutput::VolumeRenamed { domain, from, to, .. } => {
                let note = format!(
                    "domain {}: volume {from} is called {to} now: another domain has a volume of its name, since one of the two was restored from an older copy; keep the one that is wanted, and delete the other",
                    domain_name(domain)
                );
                tracing::warn!("{note}");
                told.entry(domain).or_default().renamed.push(note);
            }
            _ => unreachable!("no note"),
        }
    }

    fn unreadable(&self, domain: DomainId, unreadable: Unreadable) {
        let Unreadable { pages, apart_bytes, .. } = unreadable;
        self.metrics.unreadable(domain, pages as u64, apart_bytes as u64);
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        match note(domain, &unreadable) {
            Some(note) if unreadable.full => tracing::error!("{note}"),
            Some(note) => tracing::warn!("{note}"),
            None => tracing::info!(domain = %domain_name(domain), "all changed pages can be read"),
        }
        if pages == 0 {
            damaged.remove(&domain);
        } else {
            damaged.insert(domain, unreadable);
        }
    }
}

/// What an operator is told of installs that wait.
fn installs_wait(domain: DomainId, fault: &StoreFault) -> String {
    format!(
        "domain {}: what is committed is not installed, and commits go on until the log is full: {fault}",
        domain_name(domain)
    )
}

/// What an operator is told of pages that have changes and cannot be read; none: there are none.
fn note(domain: DomainId, unreadable: &Unreadable) -> Option<String> {
    let Unreadable { pages, named, in_log, full, .. } = unreadable;
    let (page, detail) = named.first()?;
    let kept = match (full, in_log) {
        (true, _) => {
            "no more changes can be kept apart: the log is not trimmed, and grows until pages are restored"
        }
        (false, 0) => {
            "their changes are kept apart; restore the pages as they were last installed, or the domain if those are damaged too"
        }
        (false, _) => "their changes are being kept apart",
    };
    let domain = domain_name(domain);
    Some(format!(
        "domain {domain}: {pages} changed page(s) cannot be read, page {page} first: {detail}; {kept}"
    ))
}

impl Probe for OriginServer {
    fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    fn healthy(&self) -> Result<(), String> {
        if self.inputs.is_gone() {
            return Err("the origin's task has ended".into());
        }
        Ok(())
    }

    fn ready(&self) -> Result<(), String> {
        self.healthy()?;
        if let Some((domain, fault)) = self.faults().into_iter().next() {
            return Err(format!("domain {:016x}: {fault}", domain.0));
        }
        let unreadable = self.unreadable();
        match unreadable.values().any(|unreadable| unreadable.full) {
            true => Err("changed pages cannot be read, and the log keeps their changes".into()),
            false => Ok(()),
        }
    }

    fn notes(&self) -> Vec<String> {
        let unreadable = self.unreadable();
        let notes = unreadable.iter().filter_map(|(domain, pages)| note(*domain, pages));
        let mut notes: Vec<String> = notes.collect();
        for (domain, told) in &*self.told.lock().unwrap_or_else(PoisonError::into_inner) {
            notes.extend(told.installs.iter().map(|fault| installs_wait(*domain, fault)));
            notes.extend(told.removals.values().cloned());
            notes.extend(told.renamed.iter().cloned());
        }
        notes.extend(self.peers.notes());
        notes.extend(self.credentials.notes());
        notes
    }

    fn status(&self) -> Telling<'_> {
        Box::pin(async {
            let seen = self.inputs.look(|origin, links| Seen::new(origin.status(), links)).await;
            if let Some(seen) = &seen {
                seen.measure(&self.metrics);
            }
            let peers = self.peers.status(&self.inputs).await;
            let (faults, unreadable) = (self.faults(), self.unreadable());
            let domain = |id: &DomainId| {
                let status = seen.as_ref().and_then(|seen| seen.domain(*id));
                serde_json::json!({
                    "domain": domain_name(*id),
                    "fault": faults.get(id).map(ToString::to_string),
                    "open": status.map(|status| status.open),
                    "stamp": status.map(|status| status.stamp.0),
                    "directory": status.map(|status| directory(status.directory)),
                    "unreadable": unreadable.get(id).map(unreadable_pages),
                    "in_doubt": seen.as_ref().and_then(|seen| seen.in_doubt(*id)),
                    "log_bytes": self.metrics.store_bytes(*id, StorePart::Log),
                    "store_bytes": self.metrics.store_bytes(*id, StorePart::Pages),
                })
            };
            serde_json::json!({
                "role": "origin",
                "name": self.name,
                "address": self.address.to_string(),
                "certificate": self.credentials.status(),
                "domains": self.domains.iter().map(domain).collect::<Vec<_>>(),
                "children": seen.as_ref().map(Seen::children),
                "peers": peers,
                "figures": self.metrics.summary(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Size};

    /// The memory was divided by `origin.domains`, and a store has more when it was once made with
    /// more: an origin of 8 domains, started with the default of 1, took 8 times its memory.
    #[test]
    fn memory_is_divided_by_the_domains_that_are_there() {
        let mut config = Config::default().origin();
        config.origin.memory = Size(64 << 20);
        assert_eq!(config.origin.domains, 1);
        let settings = machine_config(&config, 8);
        assert_eq!(8 * (settings.page_cache_bytes + settings.dirty_bytes_max), 64 << 20);
        let (ring, recent) = (settings.downlink.ring_bytes_max, settings.recent_writes_max);
        assert_eq!((ring, recent), (1 << 20, 32 << 10), "recent changes take of it too");
        config.origin.memory = Size(1 << 30);
        let (settings, defaults) = (machine_config(&config, 1), origin::OriginConfig::default());
        assert_eq!(settings.downlink.ring_bytes_max, defaults.downlink.ring_bytes_max);
        assert_eq!(settings.downlink.ring_commits_max, defaults.downlink.ring_commits_max);
        assert_eq!(settings.recent_writes_max, defaults.recent_writes_max);
    }
}
