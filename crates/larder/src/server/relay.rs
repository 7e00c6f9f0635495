//! A relay: a link up to each of its parents, mostly one, and many down.

use super::status::{Seen, directory, domain_name};
use super::{FIRST_DOWN_LINK, ServerError};
use crate::client::ParentStatus;
use crate::clock::{random_u128, wall_time};
use crate::config::parents::LINKS_OF_PARENT;
use crate::config::{GroupSection, RelayConfig};
use crate::group::{self, Candidate, OwnLine, Seat, Uplink};
use crate::host::{Host, Inputs, Outlet, Queues};
use crate::http::{Probe, Telling};
use crate::metrics::{Metrics, Side};
use crate::tls::{Credentials, Uses};
use crate::transport::{
    Dialer, Door, Guests, LinkEvent, LinkSender, LinkSetup, LinkState, Links, Listener, Parent,
};
use larder_core::commit::COMMIT_BYTES_MAX;
use larder_core::downlink::{DomainStatus, DownlinkConfig};
use larder_core::group::GroupStatus;
use larder_core::id::{BootId, LinkId};
use larder_core::relay::io::{RelayInput, RelayNotice, RelayOutput};
use larder_core::relay::{self, Relay};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

/// How often the machine is told the wall clock.
const WALL_CLOCK_EVERY: Duration = Duration::from_millis(200);

/// What the queue towards the parent has for a commit that is one too many, and for how commits are weighed.
const COMMIT_ROOM: usize = 2 * COMMIT_BYTES_MAX;

/// A running relay; it ends when dropped, and with a goodbye by [`RelayServer::shutdown`].
pub struct RelayServer {
    name: String,
    address: SocketAddr,
    parent: String,
    group: GroupSection,
    relaying: Relaying,
    credentials: Arc<Credentials>,
    seat: Option<Seat>,
    tasks: Vec<AbortHandle>,
}

impl Drop for RelayServer {
    fn drop(&mut self) {
        self.abort();
    }
}

/// A relay's machine and its lines up. Who is to be its children is let in where it listens. It ends when
/// dropped.
pub(crate) struct Relaying {
    inputs: Inputs<Relay>,
    links: mpsc::Sender<LinkEvent>,
    queue_bytes: usize,
    write_limit: Duration,
    metrics: Arc<Metrics>,
    /// Its parents, by their addresses.
    parents: Vec<(String, Uplink)>,
    ready: watch::Receiver<bool>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Relaying {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

impl Relaying {
    /// Dials its parents, again and again.
    pub(crate) fn start(
        config: &RelayConfig,
        credentials: &Arc<Credentials>,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let queues = Queues::<Relay>::new();
        let (inputs, links) = (queues.inputs.clone(), queues.links.clone());
        let queue_bytes = usize::try_from(config.link.queue.0).unwrap_or(usize::MAX);
        let write_limit = config.link.write_limit.0;
        let settings = machine_config(config);
        #[cfg(feature = "simulated")]
        let settings = tuned(settings);
        let machine = Relay::new(settings);
        // Towards a parent lies what all its children commit at once: the machine bounds it to three and
        // a half queues and the longest commit. The rest is what else they ask for.
        let up = queue_bytes.saturating_mul(4).saturating_add(COMMIT_ROOM);
        let up = LinkSetup::new(links.clone(), metrics.clone(), up, write_limit);
        let (ready_sender, ready) = watch::channel(false);
        let outlet = RelayOutlet { ready: ready_sender };
        let host = Host::spawn(machine, outlet, queues, Vec::new());
        let clock = tokio::spawn(wall_clock(inputs.clone()));
        let mut tasks = [&clock, &host].map(tokio::task::JoinHandle::abort_handle).to_vec();
        let mut parents = Vec::new();
        for (number, address) in (0..).zip(config.relay.parents()) {
            let (state, link) = watch::channel(LinkState::Down(None));
            let (parent, dialled) = watch::channel(Some(Parent::configured(address)));
            let dialer =
                Dialer::new(dialled, up.clone(), credentials.clone(), config.link.clone(), state);
            // Each numbers its links by itself.
            let dials = dialer.of_parent(number).run(1 + u64::from(number) * LINKS_OF_PARENT);
            tasks.push(tokio::spawn(dials).abort_handle());
            parents.push((address.to_owned(), Uplink { link, parent }));
        }
        let metrics = metrics.clone();
        Self { inputs, links, queue_bytes, write_limit, metrics, parents, ready, tasks }
    }

    /// Its links to children.
    pub(crate) fn children(&self, credentials: &Arc<Credentials>) -> Links {
        let (links, metrics) = (self.links.clone(), self.metrics.clone());
        let setup = LinkSetup::new(links, metrics, self.queue_bytes, self.write_limit);
        Links::new(Side::Down, setup, credentials.clone(), FIRST_DOWN_LINK)
    }

    /// Says goodbye to its children and its parent, and ends.
    pub(crate) async fn shutdown(&self) {
        self.inputs.stop().await;
    }

    /// Waits until it has ended: a broken invariant ends it.
    pub(crate) fn gone(&self) -> impl Future<Output = ()> + use<> {
        let inputs = self.inputs.clone();
        async move { inputs.gone().await }
    }

    /// Why it has no parent, or not all of several; none: it has.
    pub(crate) fn trouble(&self) -> Option<String> {
        if let [(_, only)] = self.parents.as_slice() {
            return only.link.borrow().trouble();
        }
        let each = self.parents.iter().filter_map(|(address, uplink)| {
            uplink.link.borrow().trouble().map(|trouble| format!("{address}: {trouble}"))
        });
        Some(each.collect::<Vec<_>>().join(", ")).filter(|trouble| !trouble.is_empty())
    }

    /// Its link to its parent; none: it has several, and is in no group that elects.
    pub(crate) fn uplink(&self) -> Option<Uplink> {
        match self.parents.as_slice() {
            [(_, only)] => Some(only.clone()),
            _ => None,
        }
    }

    /// Each of several parents; nothing of an only one.
    fn parents(&self) -> Vec<ParentStatus> {
        let several = self.parents.iter().filter(|_| self.parents.len() > 1);
        let seen = several.map(|(address, uplink)| {
            let link = uplink.link.borrow();
            let connected = matches!(*link, LinkState::Up { .. });
            ParentStatus { address: address.clone(), connected, trouble: link.trouble() }
        });
        seen.collect()
    }

    /// What a redirector's machine knows of its group; none: it is none, or has no time to say.
    pub(crate) fn looks_at_group(&self) -> impl Future<Output = Option<GroupStatus>> + use<> {
        let inputs = self.inputs.clone();
        async move { inputs.look(|relay, _| relay.group_status()).await.flatten() }
    }
}

impl RelayServer {
    /// Serves links and dials the parents, again and again. Children are welcomed when one answers.
    pub async fn start(config: RelayConfig) -> Result<Self, ServerError> {
        let wanted = Some(config.relay.parent_name.clone()).filter(|name| !name.is_empty());
        let crl_required = config.link.crl_required;
        let uses = Uses {
            serves: true,
            dials: true,
            parent_name: wanted,
            crl_required,
            ..Uses::default()
        };
        let uses = group::redirector_uses(&config.group, uses);
        let credentials = Credentials::load(&config.tls_dir, &config.name, uses)?;
        let metrics = Arc::new(Metrics::new());
        let listen = config.relay.listen.clone();
        let listen_error = |error: std::io::Error| ServerError::Listen {
            address: listen.clone(),
            detail: error.to_string(),
        };
        let door = Door::open(&listen, &credentials).await.map_err(listen_error)?;
        let address = door.address().map_err(listen_error)?;
        let relaying = Relaying::start(&config, &credentials, &metrics);
        let guests = Guests::default();
        guests.let_in(relaying.children(&credentials));
        let room = group::room_of_door(&config.group, &config.link);
        let listener = Listener::new(door, guests.clone(), credentials.clone(), room);
        let accept = tokio::spawn(listener.run());
        let watch = tokio::spawn(credentials.clone().watch(metrics));
        let tasks = [&accept, &watch].map(tokio::task::JoinHandle::abort_handle).to_vec();
        let link = config.link.clone();
        let candidate = Candidate {
            section: config.group.clone(),
            name: config.name.clone(),
            listen: address,
            is_relay: true,
            credentials: credentials.clone(),
            line: OwnLine::new(watch::channel(relaying.uplink()).1, None, link.connect_limit.0),
            link,
            broke: None,
            member: None,
        };
        let seat = config.group.elects().then(|| Seat::take(candidate, &guests));
        tracing::info!(name = %config.name, %address, parent = %config.relay.parent, "relay started");
        let parent = config.relay.parent;
        let (name, group) = (config.name, config.group);
        Ok(Self { name, address, parent, group, relaying, credentials, seat, tasks })
    }

    /// Waits until it has ended: a broken invariant ends it, and its process should end with it.
    pub async fn ended(&self) {
        match &self.seat {
            Some(seat) => tokio::select! {
                () = self.relaying.inputs.gone() => {}
                () = seat.ended() => {}
            },
            None => self.relaying.inputs.gone().await,
        }
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says goodbye to its children and its parent, and ends.
    pub async fn shutdown(&self) {
        if let Some(seat) = &self.seat {
            seat.leave().await;
        }
        self.relaying.shutdown().await;
        self.abort();
    }

    fn abort(&self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// As this thread's world wants it.
#[cfg(feature = "simulated")]
fn tuned(mut settings: relay::RelayConfig) -> relay::RelayConfig {
    if let Some(world) = crate::simulated::world() {
        world.tune_relay(&mut settings);
    }
    settings
}

fn machine_config(config: &RelayConfig) -> relay::RelayConfig {
    let defaults = relay::RelayConfig::default();
    let recent = usize::try_from(config.relay.recent_memory.0).unwrap_or(usize::MAX);
    relay::RelayConfig {
        parents: u32::try_from(config.relay.parents().count()).unwrap_or(u32::MAX),
        downlink: DownlinkConfig {
            ring_bytes_max: recent,
            // One of them takes about as much.
            ring_commits_max: recent / 256,
            name: config.name.clone(),
            links_max: config.link.links_max as usize,
            silence_max: config.link.silence_max.0,
            hello_max: config.link.connect_limit.0,
            ..defaults.downlink
        },
        boot: BootId(random_u128()),
        // A beat and its echo come well before the link is called silent.
        beat_interval: defaults.beat_interval.min(config.link.silence_max.0 / 4),
        silence_max: config.link.silence_max.0,
        commit_bytes_max: usize::try_from(config.link.queue.0)
            .unwrap_or(usize::MAX)
            .saturating_mul(2),
        group: group::redirector(&config.group),
        ..defaults
    }
}

async fn wall_clock(inputs: Inputs<Relay>) {
    let mut ticks = tokio::time::interval(WALL_CLOCK_EVERY);
    loop {
        ticks.tick().await;
        if inputs.send(RelayInput::WallClock(wall_time())).await.is_err() {
            return;
        }
    }
}

/// Carries out what the relay asks for beside its links.
struct RelayOutlet {
    ready: watch::Sender<bool>,
}

impl Outlet<Relay> for RelayOutlet {
    fn carry_out(&mut self, output: RelayOutput, _: &BTreeMap<LinkId, LinkSender>) {
        match output {
            RelayOutput::Link(_) => unreachable!("the host keeps what is of links"),
            RelayOutput::Notice(RelayNotice::Ready) => {
                tracing::info!("the relay follows its parent");
                self.ready.send_replace(true);
            }
            RelayOutput::Notice(RelayNotice::Lost) => {
                tracing::warn!("the relay lost its parent");
                self.ready.send_replace(false);
            }
            RelayOutput::Notice(RelayNotice::Refused { reason }) => {
                // Of several another one may serve: who is followed no more is told of as lost.
                tracing::error!(%reason, "the relay is refused by a parent");
            }
        }
    }
}

impl Probe for RelayServer {
    fn metrics(&self) -> &Metrics {
        &self.relaying.metrics
    }

    fn healthy(&self) -> Result<(), String> {
        if self.relaying.inputs.is_gone() {
            return Err("the relay's task has ended".into());
        }
        if self.seat.as_ref().is_some_and(Seat::has_ended) {
            return Err("its part in its group has ended".into());
        }
        Ok(())
    }

    fn ready(&self) -> Result<(), String> {
        self.healthy()?;
        if *self.relaying.ready.borrow() {
            return Ok(());
        }
        let trouble = self.relaying.trouble();
        Err(trouble.unwrap_or_else(|| "the parent's domains are not followed yet".into()))
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = self.credentials.notes();
        notes.extend(self.relaying.parents().iter().filter_map(ParentStatus::note));
        notes
    }

    fn status(&self) -> Telling<'_> {
        Box::pin(async {
            let relaying = &self.relaying;
            let seen = relaying
                .inputs
                .look(|relay, links| (Seen::new(relay.status(), links), relay.group_status()));
            let (seen, group) = seen.await.unzip();
            if let Some(seen) = &seen {
                seen.measure(&relaying.metrics);
            }
            let domain = |status: &DomainStatus| {
                serde_json::json!({
                    "domain": domain_name(status.domain),
                    "following": status.open,
                    "stamp": status.stamp.0,
                    "directory": directory(status.directory),
                })
            };
            let mut status = serde_json::json!({
                "role": "relay",
                "name": self.name,
                "address": self.address.to_string(),
                "parent": self.parent,
                "ready": Probe::ready(self).is_ok(),
                "trouble": relaying.trouble(),
                "parents": relaying.parents(),
                "certificate": self.credentials.status(),
                "domains": seen.as_ref().map(|seen| seen.domains().map(domain).collect::<Vec<_>>()),
                "children": seen.as_ref().map(Seen::children),
                "figures": relaying.metrics.summary(),
            });
            if let Some(group) = group.flatten() {
                relaying.metrics.group().redirector(&group);
                status["group"] = group::told_by_redirector(&self.group, &group);
                if let Some(seat) = &self.seat {
                    status["group"]["election"] = seat.told().await;
                    if !seat.leads() {
                        // It serves whoever links to it all the same.
                        status["group"]["role"] = "standby".into();
                    }
                }
            }
            status
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Period};

    /// A relay asked for an echo every 2 s whatever `link.silence_max` was: with 1 s it called its
    /// parent silent between two beats, and dropped a link on which nothing was wrong.
    #[test]
    fn a_relay_beats_well_before_its_link_is_called_silent() {
        let mut config = Config::default().relay();
        assert_eq!(machine_config(&config).beat_interval, Duration::from_secs(2));
        config.link.silence_max = Period(Duration::from_secs(1));
        assert_eq!(machine_config(&config).beat_interval, Duration::from_millis(250));
    }
}
