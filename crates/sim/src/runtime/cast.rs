//! The processes of a world: started, killed, ended, and started again.

use super::client::{Client, Task, run_task};
use super::env::{Shared, lock};
use super::net::{Line, NEIGHBOURS, Speed, to_neighbours};
use super::watch::{View, watch};
use super::work::{Aims, Who, Work};
use larder::client::{Consistency, Error, Node, NodeConfig, SessionOptions, Volume, VolumeOptions};
use larder::config::{GroupSection, OriginConfig, RelayConfig, RelaySection};
use larder::server::{OriginServer, RelayServer};
use larder_core::id::{Generation, ObjectId, PageId, PageNo, Slot};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// How often the first volumes are tried to be filled.
const FOUNDINGS: u64 = 50;
/// Diaries of a volume.
const DIARIES: u64 = 16;
/// How long an end with a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(3);
/// How long clients may go on after they were told to stop: the longest limit, and more.
const STOP: Duration = Duration::from_secs(30);

/// All processes.
pub(super) struct Cast {
    pub(super) shared: Arc<Shared>,
    pub(super) origin: Option<OriginServer>,
    pub(super) relays: Vec<Option<RelayServer>>,
    pub(super) nodes: Vec<Option<Life>>,
}

/// A node that lives.
pub(super) struct Life {
    pub(super) node: Node,
    pub(super) view: Arc<Mutex<View>>,
    pub(super) stop: Arc<AtomicBool>,
    clients: Option<JoinHandle<()>>,
    watcher: Option<JoinHandle<()>>,
}

/// Where a node listens for neighbours.
pub(super) fn neighbour_address(node: usize) -> String {
    format!("{NEIGHBOURS}{}:1", node + 1)
}

fn address(process: usize) -> String {
    format!("10.0.0.{}:1", process + 1)
}

impl Cast {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        let plan = &shared.plan;
        set_speeds(shared);
        for (number, _) in plan.relays.iter().enumerate() {
            let drawn = || shared.pick(&[0, 5, 20, 60]);
            let latency = plan.relay_latency_ms.unwrap_or_else(drawn);
            set_line(shared, &format!("relay{}", number + 1), latency);
        }
        for node in &plan.nodes {
            set_line(shared, &node.name, node.latency_ms);
            if let Some(group) = &plan.group {
                set_line(shared, &to_neighbours(&node.name), group.latency_ms);
            }
        }
        Self {
            shared: shared.clone(),
            origin: None,
            relays: plan.relays.iter().map(|_| None).collect(),
            nodes: plan.nodes.iter().map(|_| None).collect(),
        }
    }

    pub(super) async fn start_origin(&mut self) {
        let plan = &self.shared.plan;
        let config = OriginConfig {
            name: "origin".into(),
            tls_dir: "/world".into(),
            origin: plan.origin_section(address(0)),
            link: plan.link.clone(),
        };
        // A full disk may be in its way: it is tried again.
        match OriginServer::start(config).await {
            Ok(origin) => self.origin = Some(origin),
            Err(error) => self.shared.saw(&[51], || format!("no origin: {error}")),
        }
    }

    pub(super) async fn start_relay(&mut self, number: usize) {
        let plan = &self.shared.plan;
        let name = format!("relay{}", number + 1);
        let config = RelayConfig {
            name: name.clone(),
            tls_dir: "/world".into(),
            relay: RelaySection {
                listen: address(number + 1),
                parent: address(plan.relays[number]),
                ..RelaySection::default()
            },
            group: self.group_section(&name, String::new()),
            link: plan.link.clone(),
        };
        self.shared.net.begins(&name);
        self.relays[number] =
            Some(RelayServer::start(config).await.expect("a relay needs nothing to start"));
    }

    pub(super) fn node_config(&self, number: usize, request_limit: Duration) -> NodeConfig {
        let plan = &self.shared.plan;
        let node = &plan.nodes[number];
        NodeConfig {
            name: node.name.clone(),
            tls_dir: "/world".into(),
            node: plan.node_section(node, address(node.parent), request_limit),
            group: self.group_section(&node.name, neighbour_address(number)),
            link: plan.link.clone(),
        }
    }

    /// What a process is in its group, and where neighbours reach it.
    fn group_section(&self, name: &str, address: String) -> GroupSection {
        let plan = &self.shared.plan;
        let group = plan.group.as_ref().zip(plan.group_of(name));
        group.map_or_else(GroupSection::default, |(group, place)| group.section(place, address))
    }

    /// Starts a node, its clients, if it is to have any, and its watcher.
    pub(super) fn start_node(&mut self, number: usize, works: bool) {
        let shared = self.shared.clone();
        let plan = &shared.plan.nodes[number];
        let limit = Duration::from_millis(shared.pick(&[600, 2_000, 5_000]));
        shared.net.begins(&plan.name);
        let node = Node::start(self.node_config(number, limit)).expect("its certificate does");
        let (view, stop) = (Arc::<Mutex<View>>::default(), Arc::new(AtomicBool::new(false)));
        let clients = if works { plan.clients } else { 0 };
        let clients = live(shared.clone(), node.clone(), clients, limit, stop.clone());
        let clients = Some(tokio::spawn(clients));
        let watcher = plan.watcher.filter(|_| !lock(&shared.aims).is_empty()).map(|pause| {
            let (shared, node) = (shared.clone(), node.clone());
            let (view, stop) = (view.clone(), stop.clone());
            tokio::spawn(async move {
                let Some(volume) = open(&shared, &node, 0).await else { return };
                let pages = lock(&shared.aims)[0].watched.clone();
                let pause = Duration::from_millis(pause);
                watch(shared, node, volume, pages, pause, (view, stop)).await;
            })
        });
        self.nodes[number] = Some(Life { node, view, stop, clients, watcher });
    }

    /// The first volumes, with what everybody works on.
    pub(super) async fn found(&mut self) {
        let shared = self.shared.clone();
        let config = self.node_config(0, Duration::from_secs(20));
        let node = Node::start(config).expect("its certificate does");
        node.linked(Duration::from_secs(20)).await.expect("nothing is in its way yet");
        for (place, disk) in shared.disks.iter().enumerate() {
            let options = VolumeOptions {
                name: format!("main{place}"),
                page_bytes: 4096,
                domain: Some(disk.domain),
            };
            let volume = node.create_volume(options).await.expect("nothing is in its way yet");
            let root = volume.root();
            lock(&shared.aims).push(Aims {
                name: format!("main{place}"),
                volume: volume.id(),
                domain: disk.domain,
                pages: vec![root],
                watched: vec![root],
                raw: Vec::new(),
                objects: Vec::new(),
                diaries: Vec::new(),
            });
            // The node may not follow the domain yet.
            for attempt in 0.. {
                let tag = 1 + (place as u64) + (attempt << 8);
                let work = self.work(place, "the founder", tag, false);
                let session = volume.session(SessionOptions::default());
                let objects = shared.plan.objects + DIARIES;
                match run_task(session, work, Task::Found(objects)).await {
                    (Ok(_), _) => break,
                    (Err(Error::Stale { .. }), _) if attempt < FOUNDINGS => {
                        sleep(Duration::from_millis(200)).await;
                    }
                    (Err(error), _) => panic!("nothing is in its way yet: {error:?}"),
                }
            }
            let aims = &mut lock(&shared.aims)[place];
            aims.diaries = aims.objects.split_off(shared.plan.objects as usize);
            aims.watched = aims.pages.clone();
        }
        node.shutdown().await;
        self.shared.net.begins(&self.shared.plan.nodes[0].name);
    }

    /// A transaction of the world's own.
    pub(super) fn work(&self, place: usize, name: &str, tag: u64, read_only: bool) -> Work {
        let aims = &lock(&self.shared.aims)[place];
        let none = ObjectId {
            page: PageId { volume: aims.volume, page: PageNo(1) },
            slot: Slot(0),
            generation: Generation(0),
        };
        let who = Who {
            shared: self.shared.clone(),
            name: name.into(),
            place,
            domain: aims.domain,
            session: self.shared.next_client() as usize,
            strict: false,
            read_only,
            diary: aims.diaries.first().copied().unwrap_or(none),
        };
        Work::new(who, tag)
    }

    pub(super) async fn kill_origin(&mut self, power: bool) {
        let Some(origin) = self.origin.take() else { return };
        origin.kill().await;
        drop(origin);
        for disk in &self.shared.disks {
            disk.pages.crash(self.shared.chance(1, 2));
            if power {
                disk.disk.cut_power();
            }
        }
    }

    pub(super) async fn end_origin(&mut self) {
        let Some(origin) = self.origin.take() else { return };
        let ended = timeout(GOODBYE, origin.shutdown()).await;
        assert!(ended.is_ok(), "P10: an origin that is to end does not");
        for disk in &self.shared.disks {
            disk.pages.crash(false);
        }
    }

    pub(super) async fn kill_node(&mut self, number: usize) {
        let Some(life) = self.nodes[number].take() else { return };
        for task in [&life.clients, &life.watcher].into_iter().flatten() {
            task.abort();
        }
        life.node.kill();
        drop(life);
    }

    /// Ends a node with a goodbye, in the middle of what its clients do.
    pub(super) async fn end_node(&mut self, number: usize) {
        let Some(life) = self.nodes[number].take() else { return };
        let ended = timeout(GOODBYE, life.node.shutdown()).await;
        assert!(ended.is_ok(), "P10: a node that is to end does not");
        life.ends().await;
    }

    /// Tells all clients to stop, and waits until they have.
    pub(super) async fn stop_clients(&mut self) {
        for life in self.nodes.iter().flatten() {
            life.stop.store(true, Ordering::Relaxed);
        }
        for life in self.nodes.iter_mut().flatten() {
            life.clients_end().await;
        }
    }
}

impl Life {
    pub(super) fn name(&self) -> String {
        self.node.status().name
    }

    pub(super) fn watches(&self) -> bool {
        self.watcher.is_some()
    }

    /// Waits until its clients have ended.
    async fn clients_end(&mut self) {
        if let Some(clients) = self.clients.take() {
            let ended = timeout(STOP, clients).await;
            assert!(ended.is_ok(), "P10: a call of a client of {} does not end", self.name());
        }
    }

    /// Waits for all that is of it.
    pub(super) async fn ends(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.clients_end().await;
        if let Some(watcher) = self.watcher.take() {
            watcher.abort();
        }
    }
}

/// What work takes whom.
fn set_speeds(shared: &Shared) {
    let plan = &shared.plan;
    let card = plan.machines.card;
    let set = |name: &str, processor| shared.net.set_speed(name, Speed { processor, card });
    set("origin", plan.machines.origin);
    for number in 1..=plan.relays.len() {
        set(&format!("relay{number}"), plan.machines.relay);
    }
    for node in &plan.nodes {
        set(&node.name, plan.machines.node);
    }
}

fn set_line(shared: &Shared, name: &str, latency_ms: u64) {
    let plan = &shared.plan;
    shared.net.set_line(
        name,
        Line {
            latency: Duration::from_millis(latency_ms),
            bytes: plan.pipe_bytes,
            fragment: plan.fragment,
            dawdle: plan.dawdle,
        },
    );
}

/// Opens a volume, however long it takes; none: the node has ended.
pub(super) async fn open(shared: &Shared, node: &Node, place: usize) -> Option<Volume> {
    let name = lock(&shared.aims)[place].name.clone();
    loop {
        match node.volume(&name).await {
            Ok(volume) => return Some(volume),
            Err(Error::ShutDown) => return None,
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

/// A node's clients, until all have stopped.
async fn live(
    shared: Arc<Shared>,
    node: Node,
    clients: usize,
    request_limit: Duration,
    stop: Arc<AtomicBool>,
) {
    if clients == 0 {
        return;
    }
    let linked = async {
        while node.linked(Duration::from_secs(1)).await.is_err() && !stop.load(Ordering::Relaxed) {
            // Refused, perhaps, which is told at once.
            sleep(Duration::from_millis(20)).await;
        }
    };
    linked.await;
    let places = lock(&shared.aims).len();
    let mut all = JoinSet::new();
    for number in 0..clients {
        let place = number % places;
        let opened = async {
            while !stop.load(Ordering::Relaxed) {
                let name = lock(&shared.aims)[place].name.clone();
                match node.volume(&name).await {
                    Ok(volume) => return Some(volume),
                    Err(_) => sleep(Duration::from_millis(50)).await,
                }
            }
            None
        };
        let Some(volume) = opened.await else { break };
        all.spawn(Client::new(&shared, &node, &volume, place, request_limit, &stop).run());
    }
    while all.join_next().await.is_some() {}
}

/// A session whose transactions are validated at the origin.
pub(super) fn strict() -> SessionOptions {
    SessionOptions {
        consistency: Consistency::Strict,
        time_limit: Duration::from_secs(20),
        refresh_limit: Duration::from_secs(5),
        ..SessionOptions::default()
    }
}
