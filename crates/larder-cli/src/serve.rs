//! What every long-running command does: logs, the HTTP endpoint, an orderly end.

use crate::args::{Common, NodeArgs, OriginArgs, RelayArgs};
use crate::limits::{allow_descriptors, tell_of_few};
use crate::settings::Flags;
use anyhow::{Context, Result};
use larder::client::Node;
use larder::config::Config;
use larder::http::{HttpServer, Probe};
use larder::server::{OriginServer, RelayServer};
use std::future::Future;
use std::sync::Arc;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What is said of a process that a broken invariant has ended.
pub(crate) const ENDED_BY_FAULT: &str = "ended by a fault of its own: the log tells of it";

/// Starts the HTTP endpoint if the configuration names an address for it.
pub(crate) async fn http(config: &Config, probe: Arc<dyn Probe>) -> Result<Option<HttpServer>> {
    let listen = &config.http.listen;
    if listen.is_empty() {
        return Ok(None);
    }
    let server = HttpServer::start(listen, probe)
        .await
        .with_context(|| format!("http.listen {listen}: cannot serve there"))?;
    tracing::info!(address = %server.address(), "HTTP endpoint");
    Ok(Some(server))
}

/// SIGINT, SIGTERM and SIGHUP, but not one that whoever started us wants ignored (`nohup`).
/// Listened for from the start, so that none that comes while a process is starting ends it
/// half-way: a mount would be left behind.
pub(crate) struct Stopping {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
    /// Whether SIGHUP has certificates looked at, and ends nothing.
    reloads: bool,
}

impl Stopping {
    /// Listens from now on.
    pub(crate) fn listen() -> Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        let terminate = signal(SignalKind::terminate())?;
        let hangup = (!ignores_hangup()).then(|| signal(SignalKind::hangup())).transpose()?;
        Ok(Self { interrupt, terminate, hangup, reloads: false })
    }

    /// The same for a server. Without a terminal that could hang up, SIGHUP is somebody who wants
    /// new certificate files to be read.
    fn listen_as_server() -> Result<Self> {
        Ok(Self { reloads: std::fs::File::open("/dev/tty").is_err(), ..Self::listen()? })
    }

    /// Waits for one of them that ends the process.
    pub(crate) async fn asked(&mut self) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => break,
                _ = self.terminate.recv() => break,
                () = hung_up(&mut self.hangup) => {
                    if !self.reloads {
                        break;
                    }
                    tracing::info!("looking at the certificate files");
                    larder::tls::look_again();
                }
            }
        }
        tracing::info!("stopping");
    }

    /// Starts something; none: it was given up, because the process is to end.
    pub(crate) async fn during<T>(
        &mut self,
        start: impl Future<Output = Result<T>>,
    ) -> Result<Option<T>> {
        tokio::select! {
            started = start => started.map(Some),
            () = self.asked() => Ok(None),
        }
    }

    /// Waits until one of them comes. An error: the process has `ended` before, by a fault that
    /// its log tells of, and whoever started it must know.
    async fn or_ended(&mut self, ended: impl Future<Output = ()>) -> Result<()> {
        tokio::select! {
            () = self.asked() => Ok(()),
            () = ended => anyhow::bail!(ENDED_BY_FAULT),
        }
    }
}

async fn hung_up(hangup: &mut Option<Signal>) {
    match hangup {
        Some(hangup) => drop(hangup.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether SIGHUP is ignored, as it was when this process began; false where that cannot be told.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

/// A server that is shared with the HTTP endpoint, taken back from it once that has ended.
async fn sole<T>(mut shared: Arc<T>) -> Result<T> {
    // The endpoint's task lets go at its next turn; a probe under way takes a few milliseconds.
    for _ in 0..1000 {
        match Arc::try_unwrap(shared) {
            Ok(server) => return Ok(server),
            Err(still_shared) => shared = still_shared,
        }
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    anyhow::bail!("the HTTP endpoint did not end: leaving without a goodbye, which loses nothing")
}

/// `larder origin`.
pub(crate) async fn origin(arguments: &OriginArgs, common: &Common) -> Result<()> {
    let config = Flags::default()
        .identity(&arguments.identity)
        .path("origin.data", arguments.data.as_ref())
        .set("origin.listen", arguments.listen.as_ref())
        .set(
            "origin.peers",
            (!arguments.peers.is_empty()).then(|| arguments.peers.join(",")).as_ref(),
        )
        .set("origin.create", arguments.create.then_some(true))
        .set("origin.domains", arguments.domains)
        .set("origin.accept_fork", arguments.accept_fork.then_some(true))
        .set("http.listen", arguments.serve.http.as_ref())
        .load(common)?;
    larder::log::init(&config.log)?;
    let allowed = allow_descriptors();
    let mut stopping = Stopping::listen_as_server()?;
    let server = Arc::new(OriginServer::start(config.origin()).await?);
    tell_of_few(allowed, config.link.links_max, server.domains().len());
    let endpoint = http(&config, server.clone()).await?;
    stopping.or_ended(server.ended()).await?;
    drop(endpoint);
    sole(server).await?.shutdown().await;
    Ok(())
}

/// `larder relay`.
pub(crate) async fn relay(arguments: &RelayArgs, common: &Common) -> Result<()> {
    let config = Flags::default()
        .parent("relay", &arguments.parent)
        .set("relay.listen", arguments.listen.as_ref())
        .set("group.name", arguments.group.as_ref())
        .election(&arguments.election)
        .set("http.listen", arguments.serve.http.as_ref())
        .load(common)?;
    larder::log::init(&config.log)?;
    tell_of_few(allow_descriptors(), config.link.links_max, 0);
    let mut stopping = Stopping::listen_as_server()?;
    let server = Arc::new(RelayServer::start(config.relay()).await?);
    let endpoint = http(&config, server.clone()).await?;
    stopping.or_ended(server.ended()).await?;
    drop(endpoint);
    sole(server).await?.shutdown().await;
    Ok(())
}

/// `larder node`.
pub(crate) async fn node(arguments: &NodeArgs, common: &Common) -> Result<()> {
    let config = Flags::default()
        .uplink(&arguments.uplink)
        .membership(&arguments.membership)
        .set("node.memory", arguments.memory.memory.as_ref())
        .set("http.listen", arguments.serve.http.as_ref())
        .load(common)?;
    larder::log::init(&config.log)?;
    allow_descriptors();
    let mut stopping = Stopping::listen_as_server()?;
    let start = async {
        let node = Node::connect(config.node()).await?;
        let endpoint = http(&config, Arc::new(node.clone())).await?;
        let mut volumes = Vec::new();
        for name in &arguments.volumes {
            volumes.push(node.volume(name).await?);
            tracing::info!(volume = %name, "attached");
        }
        Ok((node, endpoint, volumes))
    };
    let Some((node, _endpoint, _volumes)) = stopping.during(start).await? else {
        return Ok(());
    };
    stopping.or_ended(node.ended()).await?;
    node.shutdown().await;
    Ok(())
}
