//! A node: a cache in this process and its link to a parent.

use super::ids::IdPools;
use super::requests::{CacheOutlet, Requests};
use super::rooms::CommitRooms;
use super::{Error, Event, Notices, Result, Volume};
use crate::clock::{BootClock, now, random_u128};
use crate::config::parents::LINKS_OF_PARENT;
use crate::config::{NodeConfig, Policy};
use crate::group::{self, Candidate, Membership, OwnLine, Places, Seat, Stage};
use crate::host::{Host, Inputs, Queues};
use crate::http::{Probe, Telling};
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::tls::{CertificateStatus, Credentials, Uses};
use crate::transport::{Dialer, LinkSetup, LinkState, LinkWatch, Looker, Parent, ParentWatch};
use larder_core::cache::io::{CacheInput, CacheOp, CacheReply};
use larder_core::cache::{Cache, CacheConfig, PageCopy, PolicyKind, ReadCache};
use larder_core::id::{BootId, DomainId, HistoryId, Stamp, VolumeId};
use larder_core::message::{
    PAGES_PER_MESSAGE_MAX, VolumeChange, VolumeInfo, VolumeKey, VolumeSpec,
};
use larder_core::rights::{Access, Rights, RightsEdit};
use serde::Serialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{broadcast, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::timeout;

/// What to make.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Its name: 1 to 128 bytes of letters, digits, `-`, `_`, `.`.
    pub name: String,
    /// Bytes of a page: a power of two from 4 KiB to 1 MiB.
    pub page_bytes: u32,
    /// Which domain; none: the origin chooses.
    pub domain: Option<DomainId>,
}

impl VolumeOptions {
    /// A volume with pages of 8 KiB, wherever the origin wants it.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), page_bytes: 8192, domain: None }
    }
}

/// What a node knows of a domain.
#[derive(Clone, Debug, Serialize)]
pub struct DomainStatus {
    /// Its id, in hexadecimal.
    pub domain: String,
    /// Its valid-through here.
    pub through: u64,
    /// How old this state is at most, in milliseconds; none: never confirmed.
    pub age_ms: Option<u64>,
    /// Whether it may be called current: its age is within the lease.
    pub leased: bool,
}

/// What a node knows of itself.
#[derive(Clone, Debug, Serialize)]
pub struct NodeStatus {
    /// Its name, instance included.
    pub name: String,
    /// This process's life, in hexadecimal.
    pub boot: String,
    /// The address of its parent; of several, all with commas between.
    pub parent: String,
    /// Whether the link to the parent stands; to all of several.
    pub connected: bool,
    /// Why it does not.
    pub trouble: Option<String>,
    /// Each parent, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parents: Vec<ParentStatus>,
    /// Its own certificate.
    pub certificate: CertificateStatus,
    /// The domains whose volumes are open.
    pub domains: Vec<DomainStatus>,
}

/// What a node knows of one of its parents.
#[derive(Clone, Debug, Serialize)]
pub struct ParentStatus {
    /// Its address.
    pub address: String,
    /// Whether the link to it stands.
    pub connected: bool,
    /// Why it does not.
    pub trouble: Option<String>,
}

impl ParentStatus {
    /// What an operator is to know, if the link does not stand.
    pub(crate) fn note(&self) -> Option<String> {
        let trouble = self.trouble.as_deref().unwrap_or_default();
        (!self.connected).then(|| format!("no link to the parent {}: {trouble}", self.address))
    }
}

/// A cache in this process, linked to its parent. Cloning shares it; it ends with
/// [`Node::shutdown`], or when the last clone, volume, session and transaction of it is dropped.
#[derive(Clone)]
pub struct Node {
    shared: Arc<NodeShared>,
}

pub(super) struct NodeShared {
    pub(super) config: NodeConfig,
    boot: BootId,
    inputs: Inputs<Cache>,
    pub(super) cache: Arc<ReadCache>,
    pub(super) requests: Requests,
    pub(super) metrics: Arc<Metrics>,
    events: broadcast::Sender<Event>,
    /// The best of its links.
    link: LinkWatch,
    /// Each of several.
    links: Vec<LinkWatch>,
    credentials: Arc<Credentials>,
    parents: Vec<ParentWatch>,
    places: Option<Places>,
    pub(super) ids: IdPools,
    pub(super) commit_rooms: CommitRooms,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Drop for NodeShared {
    fn drop(&mut self) {
        self.abort();
    }
}

impl NodeShared {
    fn abort(&self) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        for task in tasks.drain(..) {
            task.abort();
        }
    }

    /// How long a request may wait that is not bound by a session.
    pub(super) fn request_limit(&self) -> Duration {
        self.config.node.request_limit.0
    }

    /// The history of a volume's domain that this node follows.
    pub(super) fn history_of(&self, volume: VolumeId) -> Option<HistoryId> {
        self.cache.history(self.cache.volume(volume)?.domain)
    }
}

impl Node {
    /// Starts a node and waits until its parent has welcomed it, or one of several. Fails when a certificate does
    /// not do, when the parent refuses this node, and when there is no link within
    /// `request_limit`.
    pub async fn connect(config: NodeConfig) -> Result<Self> {
        let limit = config.node.request_limit.0;
        let node = Self::start(config)?;
        node.linked(limit).await?;
        Ok(node)
    }

    /// Starts a node and does not wait for its parent, which it goes on dialling. Fails when its
    /// own certificate does not do. Needs a tokio runtime.
    pub fn start(config: NodeConfig) -> Result<Self> {
        let uses = Uses {
            serves: false,
            dials: true,
            parent_name: Some(config.node.parent_name.clone()).filter(|name| !name.is_empty()),
            crl_required: config.link.crl_required,
            ..Uses::default()
        };
        let uses = group::member_uses(&config.group, uses);
        let credentials = Credentials::load(&config.tls_dir, &config.name, uses)?;
        let boot = BootId(random_u128());
        let metrics = Arc::new(Metrics::new());
        let membership =
            Membership::open(&config.group, &credentials, &metrics).map_err(|error| {
                Error::Listen { address: config.group.listen.clone(), detail: error.to_string() }
            })?;
        let group = membership.as_ref().map(|membership| membership.config.clone());
        let settings = CacheConfig { group, ..cache_config(&config, boot) };
        #[cfg(feature = "simulated")]
        let settings = tuned(settings);
        let commits_max = settings.commits_max;
        let (machine, cache) = Cache::new(settings);
        let queues = Queues::<Cache>::new();
        let inputs = queues.inputs.clone();
        let Limits { commit_bytes, events, .. } = Limits::here();
        // The cache lets less than twice as much be under way, and one commit: its own parent is never cut
        // off for slowness.
        let queue_bytes = 3 * commit_bytes + config.link.queue.0 as usize;
        let setup = LinkSetup::new(
            queues.links.clone(),
            metrics.clone(),
            queue_bytes,
            config.link.write_limit.0,
        );
        // Where the group finds its redirector itself, that is the parent, once it is known.
        let (elected, parents) = watch::channel(None);
        let parents: Vec<ParentWatch> = match config.group.elects() {
            true => vec![parents],
            false => config.node.parents().map(|at| Parent::configured(at).only()).collect(),
        };
        let mut links = Vec::new();
        let mut dialers = Vec::new();
        for (number, parents) in (0..).zip(&parents) {
            let (state, link) = watch::channel(LinkState::Down(None));
            let (setup, keys, limits) = (setup.clone(), credentials.clone(), config.link.clone());
            let dialer = Dialer::new(parents.clone(), setup, keys, limits, state);
            dialers.push(dialer.of_parent(number));
            links.push(link);
        }
        let others = dialers.split_off(1);
        let mut dialer = dialers.pop().expect("a node has a parent");
        let (link, watched) = LinkState::best_of(&links);
        let (events, _) = broadcast::channel(events);
        let requests = Requests::new(inputs.clone());
        let neighbours = membership.as_ref().map(|membership| membership.neighbours.clone());
        if let Some(neighbours) = &neighbours {
            dialer.helps(neighbours.helper(cache.clone()));
        }
        let outlet = CacheOutlet::new(&requests, events.clone(), neighbours);
        let places = membership.as_ref().filter(|_| config.group.elects()).map(|membership| {
            let door = (membership, &credentials);
            take_part(&config, door, inputs.clone(), (elected, link.clone(), dialer.broke()))
        });
        let neighbours = membership.map_or_else(Vec::new, |membership| {
            let trust = (&credentials, &config.link);
            membership.start(&queues, &metrics, trust, dialer.local())
        });
        let host = Host::spawn(machine, outlet, queues, Vec::new());
        let dial = tokio::spawn(dialer.run(1));
        let dials = (1..).zip(others).map(|(number, dialer)| {
            // Each numbers its links by itself.
            tokio::spawn(dialer.run(1 + number * LINKS_OF_PARENT)).abort_handle()
        });
        let watch = tokio::spawn(credentials.clone().watch(metrics.clone()));
        tracing::info!(name = %config.full_name(), %boot, parent = %config.node.parent, "node started");
        let mut tasks = [&host, &dial, &watch].map(JoinHandle::abort_handle).to_vec();
        tasks.extend(neighbours);
        tasks.extend(dials);
        tasks.extend(watched);
        let shared = NodeShared {
            ids: IdPools::new(config.node.page_run),
            config,
            boot,
            inputs,
            cache,
            requests,
            metrics,
            events,
            link,
            links,
            commit_rooms: CommitRooms::new(commit_bytes, commits_max),
            credentials,
            parents,
            places,
            tasks: Mutex::new(tasks),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Waits until the parent has welcomed this node.
    pub async fn linked(&self, limit: Duration) -> Result<()> {
        let mut link = self.shared.link.clone();
        let settled = link.wait_for(|state| !matches!(state, LinkState::Down(_)));
        let state = match timeout(limit, settled).await {
            Ok(Ok(state)) => state.clone(),
            Ok(Err(_)) => return Err(Error::ShutDown),
            Err(_) => self.shared.link.borrow().clone(),
        };
        match state {
            LinkState::Up { .. } => Ok(()),
            LinkState::Refused(reason) => Err(Error::Refused(reason)),
            LinkState::Untrusted(error) => Err(Error::Tls(error)),
            LinkState::Down(why) => Err(Error::Unavailable(
                why.unwrap_or_else(|| format!("no link to the parent within {limit:?}")),
            )),
        }
    }

    /// Opens a volume by its name.
    pub async fn volume(&self, name: &str) -> Result<Volume> {
        self.open(CacheOp::OpenVolume(VolumeKey::Name(name.into()))).await
    }

    /// Opens a volume by its id.
    pub async fn volume_by_id(&self, id: VolumeId) -> Result<Volume> {
        self.open(CacheOp::OpenVolume(VolumeKey::Id(id))).await
    }

    /// Makes a volume and opens it. Its page 1 is there, slotted and empty.
    pub async fn create_volume(&self, options: VolumeOptions) -> Result<Volume> {
        let VolumeOptions { name, page_bytes, domain } = options;
        let id = VolumeId(random_u128());
        let spec = VolumeSpec { id, name, page_bytes, domain };
        self.open(CacheOp::CreateVolume(spec)).await
    }

    async fn open(&self, op: CacheOp) -> Result<Volume> {
        Ok(Volume::new(self.clone(), self.ask_volume(op).await?))
    }

    async fn ask_volume(&self, op: CacheOp) -> Result<VolumeInfo> {
        match self.shared.requests.ask(op, self.shared.request_limit()).await? {
            CacheReply::Volume(info) => Ok(info),
            other => unreachable!("a volume was asked for: {other:?}"),
        }
    }

    /// What the origin says of a volume now: what it takes, its quota. A round trip.
    pub async fn volume_info(&self, id: VolumeId) -> Result<VolumeInfo> {
        self.ask_volume(CacheOp::OpenVolume(VolumeKey::Id(id))).await
    }

    /// Sets the most bytes that a volume may take; none: as many as the store has room for. One
    /// that takes more already is left as it is, and may shrink. Durable when this returns.
    pub async fn set_quota(&self, id: VolumeId, bytes: Option<u64>) -> Result<VolumeInfo> {
        self.ask_volume(CacheOp::ChangeVolume(id, VolumeChange::Quota(bytes))).await
    }

    /// Deletes a volume, for good: durable when this returns. Whoever uses it is refused from then
    /// on; its pages are removed at the origin in the background. Repeated, it is answered the same.
    pub async fn delete_volume(&self, id: VolumeId) -> Result<()> {
        let limit = self.shared.request_limit();
        match self.shared.requests.ask(CacheOp::DeleteVolume(id), limit).await? {
            CacheReply::Deleted => Ok(()),
            other => unreachable!("a deletion was asked for: {other:?}"),
        }
    }

    /// Changes who may do what with a volume: all of it or nothing, durable and in force when this
    /// returns. Refused if it takes this node's own right to administer it, unless forced.
    pub async fn change_rights(
        &self,
        id: VolumeId,
        edits: Vec<RightsEdit>,
        force: bool,
    ) -> Result<VolumeInfo> {
        let change = VolumeChange::Rights { edits, force };
        self.ask_volume(CacheOp::ChangeVolume(id, change)).await
    }

    /// Who may do what with a volume: what was said of it, and what the origin says of all.
    pub async fn rights(&self, id: VolumeId) -> Result<(Rights, Access)> {
        let limit = self.shared.request_limit();
        match self.shared.requests.ask(CacheOp::AskRights(id), limit).await? {
            CacheReply::Rights(rights, access) => Ok((rights, access)),
            other => unreachable!("rights were asked for: {other:?}"),
        }
    }

    /// The volumes of the origin that this node may read.
    pub async fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        let limit = self.shared.request_limit();
        match self.shared.requests.ask(CacheOp::ListVolumes, limit).await? {
            CacheReply::Volumes(volumes) => Ok(volumes),
            other => unreachable!("volumes were asked for: {other:?}"),
        }
    }

    /// What changes from now on.
    #[must_use]
    pub fn notices(&self) -> Notices {
        Notices::new(self.shared.events.subscribe())
    }

    /// Waits until the node has ended: by [`Node::shutdown`], or because an invariant broke, when
    /// its process should end with it.
    pub async fn ended(&self) {
        match &self.shared.places {
            Some(places) => tokio::select! {
                () = self.shared.inputs.gone() => {}
                () = places.broken() => {}
            },
            None => self.shared.inputs.gone().await,
        }
    }

    /// What the node knows of itself.
    #[must_use]
    pub fn status(&self) -> NodeStatus {
        let shared = &self.shared;
        let at = now();
        let domain = |domain: DomainId| {
            let through = shared.cache.through(domain).unwrap_or(Stamp::ZERO);
            let age = shared.cache.age(domain, at);
            shared.metrics.domain(domain, through, age);
            DomainStatus {
                domain: format!("{:016x}", domain.0),
                through: through.0,
                age_ms: age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
                leased: shared.cache.leased(domain, at),
            }
        };
        let parents: Vec<ParentStatus> = std::iter::zip(&shared.parents, &shared.links)
            .map(|(parent, link)| {
                let (address, link) = (self.address_of(parent), link.borrow().clone());
                let connected = matches!(link, LinkState::Up { .. });
                ParentStatus { address, connected, trouble: link.trouble() }
            })
            .collect();
        let all = |part: fn(&ParentStatus) -> Option<String>| {
            let parts: Vec<String> = parents.iter().filter_map(part).collect();
            parts.join(", ")
        };
        let trouble = match parents.as_slice() {
            [only] => only.trouble.clone(),
            _ => Some(all(|one| Some(format!("{}: {}", one.address, one.trouble.as_ref()?))))
                .filter(|trouble| !trouble.is_empty()),
        };
        NodeStatus {
            name: shared.config.full_name(),
            boot: shared.boot.to_string(),
            parent: all(|one| Some(one.address.clone())),
            connected: parents.iter().all(|parent| parent.connected),
            trouble,
            certificate: shared.credentials.status(),
            domains: shared.cache.domains().into_iter().map(domain).collect(),
            parents: if parents.len() > 1 { parents } else { Vec::new() },
        }
    }

    /// The address of a parent now: a group that finds its redirector itself may have another one soon.
    fn address_of(&self, parent: &ParentWatch) -> String {
        let parent = parent.borrow().as_ref().map(|parent| parent.address.clone());
        parent.unwrap_or_else(|| self.shared.config.node.parent.clone())
    }

    /// This process's life.
    #[must_use]
    pub fn boot(&self) -> BootId {
        self.shared.boot
    }

    /// The figures of this node.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Says goodbye to the parent and ends the node; calls after it fail with
    /// [`Error::ShutDown`].
    pub async fn shutdown(&self) {
        // Where so much waits that there is no room the boot is not said to have ended.
        self.shared.inputs.try_send(CacheInput::End);
        if let Some(places) = &self.shared.places {
            places.leave().await;
        }
        self.shared.inputs.stop().await;
        self.shared.abort();
    }

    pub(super) fn shared(&self) -> &Arc<NodeShared> {
        &self.shared
    }
}

#[cfg(test)]
impl Node {
    /// Has the machine's task do nothing else for so long.
    pub(crate) async fn keep_busy(&self, time: Duration) {
        let sleep = move || std::thread::sleep(time);
        self.shared.inputs.look(move |_, _| tokio::task::block_in_place(sleep)).await;
    }
}

/// For the simulator.
#[cfg(feature = "simulated")]
impl Node {
    /// Ends the node like a crash, without a goodbye.
    pub fn kill(&self) {
        self.shared.abort();
    }

    /// What calls under way hold: requests without an answer, and bytes of room for commits.
    #[must_use]
    pub fn held(&self) -> (usize, usize) {
        (self.shared.requests.count(), self.shared.commit_rooms.taken())
    }
}

impl Probe for Node {
    fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    fn healthy(&self) -> std::result::Result<(), String> {
        if self.shared.inputs.is_gone() {
            return Err("the cache's task has ended".into());
        }
        if self.shared.places.as_ref().is_some_and(Places::is_broken) {
            return Err("the task of the relay beside the cache has ended".into());
        }
        Ok(())
    }

    fn ready(&self) -> std::result::Result<(), String> {
        self.healthy()?;
        match self.shared.link.borrow().trouble() {
            None => Ok(()),
            Some(trouble) => Err(trouble),
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.shared.credentials.notes();
        notes.extend(self.status().parents.iter().filter_map(ParentStatus::note));
        notes
    }

    fn status(&self) -> Telling<'_> {
        Box::pin(async {
            let shared = &self.shared;
            let seen = shared.inputs.look(|cache, _| {
                ((cache.memory_bytes(), cache.companion_counts()), cache.membership_status())
            });
            let (seen, membership) = seen.await.unzip();
            if let Some((used, companions)) = seen {
                shared.metrics.cache(used as u64, shared.config.node.memory.0);
                shared.metrics.companions(companions);
            }
            let mut status = serde_json::json!({
                "role": "node",
                "node": Node::status(self),
                "figures": shared.metrics.summary(),
            });
            if let Some(membership) = membership.flatten() {
                shared.metrics.group().member(&membership);
                let told = group::told_by_member(&shared.config.group, &membership, self.metrics());
                status["group"] = told;
                if let Some(places) = &shared.places {
                    let (election, redirects) = places.told().await;
                    status["group"]["election"] = election;
                    if let Some(redirects) = redirects {
                        status["group"]["redirects"] = redirects;
                    }
                }
            }
            status
        })
    }
}

/// Takes the node's seat in a group that finds its redirector itself.
fn take_part(
    config: &NodeConfig,
    (membership, credentials): (&Membership, &Arc<Credentials>),
    member: Inputs<Cache>,
    (parents, link, broke): (watch::Sender<Option<Parent>>, LinkWatch, watch::Receiver<bool>),
) -> Places {
    let relay = config.redirector();
    let line = watch::Sender::new(None);
    let above = &relay.relay.parent;
    let name = config.look_name();
    let looker = Looker::new(above, name, credentials.clone(), config.link.clone());
    let candidate = Candidate {
        section: config.group.clone(),
        name: config.full_name(),
        listen: membership.listen,
        is_relay: false,
        credentials: credentials.clone(),
        link: config.link.clone(),
        line: OwnLine::new(line.subscribe(), Some(looker), config.link.connect_limit.0),
        broke: Some(broke),
        member: Some(member),
    };
    let guests = membership.guests.clone();
    let seat = Seat::take(candidate, &guests);
    let credentials = credentials.clone();
    Places::new(seat, Stage { relay, credentials, guests, parents, link, line })
}

/// As this thread's world wants it.
#[cfg(feature = "simulated")]
fn tuned(mut settings: CacheConfig) -> CacheConfig {
    if let Some(world) = crate::simulated::world() {
        world.tune_cache(&mut settings);
    }
    settings
}

/// Copies of absent pages, of a memory of so many bytes: a 64th of it, and not fewer than one request may
/// ask for.
fn absences_max(memory: u64) -> usize {
    let part = memory / 64 / PageCopy::OVERHEAD_BYTES as u64;
    usize::try_from(part).unwrap_or(usize::MAX).max(PAGES_PER_MESSAGE_MAX)
}

fn cache_config(config: &NodeConfig, boot: BootId) -> CacheConfig {
    CacheConfig {
        parents: u32::try_from(config.node.parents().count()).unwrap_or(u32::MAX),
        memory_bytes: usize::try_from(config.node.memory.0).unwrap_or(usize::MAX),
        absences_max: absences_max(config.node.memory.0),
        policy: match config.node.policy {
            Policy::S3Fifo => PolicyKind::S3Fifo,
            Policy::Lru => PolicyKind::Lru,
        },
        transactions_max: config.node.transactions_max as usize,
        companions_max: config.node.companions as usize,
        beat_every: config.node.beat.0,
        sent_bytes_max: Limits::here().commit_bytes,
        silence_max: config.link.silence_max.0,
        ..CacheConfig::new(&config.full_name(), boot, Arc::new(BootClock))
    }
}
