//! A world from its beginning to its end: troubles, peace, and what must hold then.

use super::cast::{Cast, Life, neighbour_address, open, strict};
use super::client::{Task, run_task};
use super::env::{Shared, lock};
use super::net::to_neighbours;
use super::plan::Trouble;
use super::watch::{Held, look};
use larder::client::Node;
use larder::http::Probe;
use larder_core::message::Role;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

/// Within this long after the last trouble everything answers again.
const BUDGET: Duration = Duration::from_secs(60);
/// The longest that one page takes from the origin: there and back over the longest lines (a node's 80 ms,
/// two relays' 60 ms each), and the slowest load.
const TRIP_MAX: Duration = Duration::from_millis(500);
/// Within this long a watcher has read what it was told of.
const WATCH_BUDGET: Duration = Duration::from_secs(20);
/// Within this long a peer that says nothing sensible is rid of.
const STRANGER_LIMIT: Duration = Duration::from_secs(12);
/// Within this long a parent hears of a link's end.
const HEARD: Duration = Duration::from_millis(500);
/// When everything has ended, nothing is left after this long.
const REST: Duration = Duration::from_secs(5);

/// Plays it.
pub(super) async fn play(shared: Arc<Shared>) {
    let mut cast = Cast::new(&shared);
    cast.start_origin().await;
    for number in 0..shared.plan.relays.len() {
        cast.start_relay(number).await;
    }
    shared.net.heal(true);
    cast.found().await;
    shared.net.heal(false);
    for number in 0..shared.plan.nodes.len() {
        cast.start_node(number, true);
    }
    cast.troubles().await;
    cast.heal().await;
    cast.stop_clients().await;
    cast.settle().await;
    cast.rest().await;
    cast.end().await;
}

impl Cast {
    async fn troubles(&mut self) {
        let shared = self.shared.clone();
        let plan = &shared.plan;
        let until = shared.elapsed() + plan.busy;
        while shared.elapsed() < until && !super::panics::any() {
            let left = until - shared.elapsed();
            if plan.trouble_ms == 0 || plan.troubles.is_empty() {
                sleep(left.min(Duration::from_millis(100))).await;
                continue;
            }
            let pause = Duration::from_millis(shared.below(2 * plan.trouble_ms));
            sleep(pause.min(left)).await;
            let trouble = shared.pick(&plan.troubles);
            shared.saw(&[50, trouble as u64], || format!("trouble: {trouble:?}"));
            lock(&shared.tally).troubles += 1;
            self.trouble(trouble).await;
        }
    }

    /// Somebody with a line up.
    fn somebody(&self) -> String {
        let relays = self.relays.len();
        let number = self.shared.below((relays + self.nodes.len()) as u64) as usize;
        match number.checked_sub(relays) {
            None => format!("relay{}", number + 1),
            Some(node) => self.shared.plan.nodes[node].name.clone(),
        }
    }

    /// Something that a task does some time later.
    fn later(&self, most_ms: u64, what: impl FnOnce(&Shared) + Send + 'static) {
        let shared = self.shared.clone();
        let pause = Duration::from_millis(shared.below(most_ms));
        tokio::spawn(async move {
            sleep(pause).await;
            what(&shared);
        });
    }

    async fn trouble(&mut self, trouble: Trouble) {
        let shared = self.shared.clone();
        let whose = self.somebody();
        let node = shared.below(self.nodes.len() as u64) as usize;
        match trouble {
            Trouble::Cut => shared.net.cut(&whose),
            Trouble::Stall => {
                let way = shared.below(2) as usize;
                shared.net.stall(&whose, way, true);
                self.later(3_000, move |shared| shared.net.stall(&whose, way, false));
            }
            Trouble::Partition => {
                shared.net.part(&whose);
                self.later(3_000, move |shared| shared.net.join(&whose));
            }
            Trouble::NodeDies => {
                self.kill_node(node).await;
                self.pause(500).await;
                self.start_node(node, true);
            }
            Trouble::NodeEnds => {
                self.end_node(node).await;
                self.start_node(node, true);
            }
            Trouble::RelayDies if !self.relays.is_empty() => {
                let relay = shared.below(self.relays.len() as u64) as usize;
                self.relays[relay] = None;
                self.pause(1_000).await;
                self.start_relay(relay).await;
            }
            Trouble::RelayDies => {}
            Trouble::OriginDies | Trouble::PowerCut => {
                self.kill_origin(trouble == Trouble::PowerCut).await;
                self.pause(1_500).await;
                self.start_origin().await;
            }
            Trouble::OriginEnds => {
                self.end_origin().await;
                self.start_origin().await;
            }
            Trouble::FullDisk => self.full_disk(),
            Trouble::SlowDisk => {
                shared.disk_slow.store(true, Ordering::Relaxed);
                self.later(3_000, |shared| shared.disk_slow.store(false, Ordering::Relaxed));
            }
            Trouble::SyncFails => {
                let disk = shared.below(shared.disks.len() as u64) as usize;
                shared.disks[disk].disk.fail_syncs(1);
                self.pause(1_000).await;
                self.kill_origin(shared.chance(1, 2)).await;
                self.start_origin().await;
            }
            Trouble::WallClock => {
                let error = shared.below(7_200_000_000_000) as i64 - 3_600_000_000_000;
                shared.wall_error.store(error, Ordering::Relaxed);
            }
            Trouble::Sleep => {
                shared.slept.fetch_add(shared.below(4_000_000_000), Ordering::Relaxed);
            }
            Trouble::Garbage | Trouble::NeverReads => {
                let parent = shared.below(1 + self.relays.len() as u64);
                let to = format!("10.0.0.{}:1", parent + 1);
                self.stranger(to, trouble == Trouble::Garbage);
            }
            Trouble::NeighboursCut => shared.net.cut(&to_neighbours(&shared.plan.nodes[node].name)),
            Trouble::NeighboursStall => {
                let line = to_neighbours(&shared.plan.nodes[node].name);
                let way = shared.below(2) as usize;
                shared.net.stall(&line, way, true);
                self.later(3_000, move |shared| shared.net.stall(&line, way, false));
            }
            Trouble::Stranger => self.stranger(neighbour_address(node), shared.chance(1, 2)),
            Trouble::Twin => self.twin(node),
        }
    }

    async fn pause(&self, most_ms: u64) {
        sleep(Duration::from_millis(self.shared.below(most_ms))).await;
    }

    fn full_disk(&self) {
        for disk in &self.shared.disks {
            disk.disk.set_capacity(Some(disk.disk.used()));
            disk.pages.set_full(self.shared.chance(1, 2));
        }
        self.later(3_000, |shared| {
            for disk in &shared.disks {
                disk.disk.set_capacity(None);
                disk.pages.set_full(false);
            }
        });
    }

    /// Somebody who speaks no protocol: he is rid of, and told why if he sent something.
    fn stranger(&self, to: String, garbage: bool) {
        let shared = self.shared.clone();
        let name = format!("stranger{}", shared.next_client());
        let line = shared.net.line(&shared.plan.nodes[0].name);
        shared.net.set_line(&name, line);
        shared.net.set_line(&to_neighbours(&name), line);
        let opening = shared.net.connect(&name, Role::Node, &to);
        tokio::spawn(async move {
            let Ok((mut stream, _)) = opening.await else { return };
            let ends = async {
                if garbage {
                    let mut bytes = Vec::new();
                    for _ in 0..1 + shared.below(200) {
                        bytes.push(shared.below(256) as u8);
                    }
                    let _ = stream.write_all(&bytes).await;
                }
                let mut received = Vec::new();
                let _ = stream.read_to_end(&mut received).await;
            };
            let ended = timeout(STRANGER_LIMIT, ends).await;
            assert!(ended.is_ok(), "P7, P10: {to} keeps the link of one who says nothing sensible");
        });
    }

    /// Another process under a node's name.
    fn twin(&self, node: usize) {
        let mut config = self.node_config(node, Duration::from_secs(1));
        let shared = self.shared.clone();
        if config.group.group().is_some() {
            // Of one machine: what the other listens at is taken.
            let free = neighbour_address(100 + shared.next_client() as usize % 100);
            (config.group.listen, config.group.address) = (free.clone(), free);
        }
        shared.net.shares(&config.name);
        let pause = Duration::from_millis(shared.below(2_000));
        tokio::spawn(async move {
            let twin = Node::start(config).expect("its certificate does");
            sleep(pause).await;
            twin.shutdown().await;
        });
    }

    /// Ends all troubles, and starts whatever is down.
    async fn heal(&mut self) {
        let shared = self.shared.clone();
        shared.saw(&[52], || "the troubles end".into());
        // Whatever was to end later has.
        sleep(Duration::from_secs(3)).await;
        shared.net.heal(true);
        for disk in &shared.disks {
            disk.disk.set_capacity(None);
            disk.disk.fail_syncs(0);
            disk.pages.set_full(false);
        }
        shared.disk_slow.store(false, Ordering::Relaxed);
        if self.origin.as_ref().is_none_or(|origin| origin.ready().is_err()) {
            self.kill_origin(false).await;
            self.start_origin().await;
        }
        assert!(self.origin.is_some(), "progress: the origin does not start on a healthy disk");
    }

    /// Everything answers again, and all see the same.
    async fn settle(&mut self) {
        let shared = self.shared.clone();
        let mut tag = 1 << 20;
        for number in 0..self.nodes.len() {
            let life = self.nodes[number].as_ref().expect("all were started");
            let node = life.node.clone();
            for place in 0..shared.disks.len() {
                for (task, read_only) in [(Task::Write, false), (Task::ReadAll, true)] {
                    let walk = if read_only { self.walk(place) } else { Duration::ZERO };
                    let until = shared.elapsed() + BUDGET + walk;
                    loop {
                        let left = until.saturating_sub(shared.elapsed());
                        let name = life.name();
                        let volume = timeout(left, open(&shared, &node, place)).await;
                        let Ok(Some(volume)) = volume else {
                            panic!("progress: {name} opens no volume: {:?}", node.ready());
                        };
                        tag += 1;
                        let mut work = self.work(place, &name, tag, read_only);
                        work.who.strict = true;
                        let mut options = strict();
                        options.time_limit += walk;
                        let (result, _) = run_task(volume.session(options), work, task).await;
                        shared.saw(&[53, super::client::code(&result)], || {
                            format!("{name} settles: {result:?}")
                        });
                        match result {
                            Ok(_) => break,
                            Err(error) => assert!(
                                shared.elapsed() < until && !super::panics::any(),
                                "progress: {name} does not answer {BUDGET:?} after the last trouble: {error}"
                            ),
                        }
                        sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        }
        for life in self.nodes.iter().flatten() {
            watched(&shared, life).await;
        }
    }

    /// How long it takes to read everything, where the cache holds next to nothing of it: one trip for each
    /// page, one after the other, and every attempt begins anew.
    fn walk(&self, place: usize) -> Duration {
        let aims = &lock(&self.shared.aims)[place];
        let reads = aims.objects.len() + aims.diaries.len() + aims.raw.len() + aims.pages.len();
        TRIP_MAX * reads as u32
    }

    /// Nothing is held, nothing waits, and everybody was told what is.
    async fn rest(&mut self) {
        let shared = self.shared.clone();
        sleep(Duration::from_secs(6) + shared.plan.install_every).await;
        for life in self.nodes.iter().flatten() {
            let held = life.node.held();
            assert!(held == (0, 0), "P10: {} holds {held:?} at rest", life.name());
        }
        let origin = self.origin.as_ref().expect("it was started");
        let status = origin.status().await;
        let empty = Vec::new();
        let children = status["children"].as_array().unwrap_or(&empty);
        for child in children {
            let queued = child["queued_bytes"].as_u64();
            assert!(queued == Some(0), "P10: at rest {queued:?} bytes wait for {}", child["name"]);
        }
        let plan = &shared.plan;
        let below = plan.nodes.iter().filter(|node| node.parent == 0).count()
            + plan.relays.iter().filter(|parent| **parent == 0).count();
        assert!(children.len() == below, "P10: {} links at rest, of {below}", children.len());
        let until = shared.elapsed() + BUDGET;
        for disk in &shared.disks {
            let last = lock(&shared.ledger).last_commit(disk.domain);
            // An install that found a full disk is tried again some time later.
            while last.is_some_and(|last| last > disk.installed()) {
                assert!(
                    shared.elapsed() < until && !super::panics::any(),
                    "progress: commits up to {last:?} are not installed at rest, but to {:?}",
                    disk.installed()
                );
                sleep(Duration::from_millis(500)).await;
            }
        }
        let ledger = lock(&shared.ledger);
        ledger.check();
        let all = ledger.all();
        let mut history = lock(&shared.history);
        history.learn(|tag, _| all.get(&tag).copied());
        if let Err(what) = history.check() {
            panic!("{what}");
        }
    }

    /// A parent knows at once that a child has ended: not only when it has been silent for long.
    async fn gone(&self, number: usize) {
        let node = &self.shared.plan.nodes[number];
        let origin = self.origin.as_ref().expect("it was started");
        sleep(HEARD).await;
        let status = origin.status().await;
        let named = status["children"].as_array().into_iter().flatten();
        let there = named.filter(|child| child["name"] == *node.name).count();
        assert!(there == 0, "links: {HEARD:?} after {} ended the origin has its link", node.name);
    }

    /// Ends all with goodbyes; nothing is left.
    async fn end(&mut self) {
        for number in 0..self.nodes.len() {
            self.end_node(number).await;
            self.gone(number).await;
        }
        for relay in self.relays.iter_mut().filter_map(Option::take) {
            let ended = timeout(REST, relay.shutdown()).await;
            assert!(ended.is_ok(), "P10: a relay that is to end does not");
        }
        self.end_origin().await;
        sleep(2 * REST).await;
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        assert!(tasks == 0, "leak: {tasks} tasks are left when everything has ended");
        let standing = self.shared.net.standing();
        assert!(standing == 0, "leak: {standing} connections are left when everything has ended");
    }
}

/// A watcher that reads again only what it was told of ends with what is.
async fn watched(shared: &Arc<Shared>, life: &Life) {
    if !life.watches() {
        return;
    }
    let Some(volume) = open(shared, &life.node, 0).await else {
        panic!("progress: {} has ended", life.name());
    };
    let until = shared.elapsed() + WATCH_BUDGET;
    loop {
        let refreshed = volume.refresh().await.is_ok();
        sleep(Duration::from_millis(200)).await;
        let (idle, pages) = {
            let view = lock(&life.view);
            (view.idle, view.pages.clone())
        };
        let mut other = None;
        for (page, held) in &pages {
            // An object that has moved changes where it is kept, and its own page is not named.
            let stays = |held: &Held| {
                let ledger = lock(&shared.ledger);
                let objects = held.iter().flatten();
                let stay = objects.filter(|object| !ledger.may_have_moved(object.id));
                (held.is_some(), stay.cloned().collect::<Vec<_>>())
            };
            let now = look(&volume, *page).await;
            if now.as_ref().ok().map(stays) != Some(stays(held)) {
                other = Some((*page, held.clone(), now));
            }
        }
        if refreshed && idle && other.is_none() && !pages.is_empty() {
            return;
        }
        assert!(
            shared.elapsed() < until && !super::panics::any(),
            "events: the watcher of {} was not told (idle: {idle}): {other:?}",
            life.name()
        );
    }
}
