//! What every long-running command does: logs, the HTTP endpoint, an orderly end.

use crate::args::{Common, NodeArgs, OriginArgs, RelayArgs};
use crate::settings::Flags;
use anyhow::{Context, Result};
use larder::client::Node;
use larder::config::Config;
use larder::http::{HttpServer, Probe};
use larder::server::{OriginServer, RelayServer};
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

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

/// Waits for SIGINT or SIGTERM.
pub(crate) async fn until_stopped() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result?,
        _ = terminate.recv() => {}
    }
    tracing::info!("stopping");
    Ok(())
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
        .set("origin.data", arguments.data.as_ref().map(|path| path.display()))
        .set("origin.listen", arguments.listen.as_ref())
        .set("origin.create", arguments.create.then_some(true))
        .set("origin.domains", arguments.domains)
        .set("origin.accept_fork", arguments.accept_fork.then_some(true))
        .set("http.listen", arguments.serve.http.as_ref())
        .load(common)?;
    larder::log::init(&config.log)?;
    let server = Arc::new(OriginServer::start(config.origin()).await?);
    let endpoint = http(&config, server.clone()).await?;
    until_stopped().await?;
    drop(endpoint);
    sole(server).await?.shutdown().await;
    Ok(())
}

/// `larder relay`.
pub(crate) async fn relay(arguments: &RelayArgs, common: &Common) -> Result<()> {
    let config = Flags::default()
        .uplink("relay", &arguments.uplink)
        .set("relay.listen", arguments.listen.as_ref())
        .set("http.listen", arguments.serve.http.as_ref())
        .load(common)?;
    larder::log::init(&config.log)?;
    let server = Arc::new(RelayServer::start(config.relay()).await?);
    let endpoint = http(&config, server.clone()).await?;
    until_stopped().await?;
    drop(endpoint);
    sole(server).await?.shutdown().await;
    Ok(())
}

/// `larder node`.
pub(crate) async fn node(arguments: &NodeArgs, common: &Common) -> Result<()> {
    let config = Flags::default()
        .uplink("node", &arguments.uplink)
        .set("node.memory", arguments.memory.memory.as_ref())
        .set("http.listen", arguments.serve.http.as_ref())
        .load(common)?;
    larder::log::init(&config.log)?;
    let node = Node::connect(config.node()).await?;
    let _endpoint = http(&config, Arc::new(node.clone())).await?;
    let mut volumes = Vec::new();
    for name in &arguments.volumes {
        volumes.push(node.volume(name).await?);
        tracing::info!(volume = %name, "attached");
    }
    until_stopped().await?;
    node.shutdown().await;
    Ok(())
}
