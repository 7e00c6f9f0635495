//! Durable small commits between processes on loopback, beside a bare append and sync: by one client
//! of a node, by 64 clients (sessions, each with transactions of its own) of that node, and, for the
//! origin a harder load, by 64 nodes with a client and a link each, all in one process.

use anyhow::Result;
use larder::client::{Error, Node, SessionOptions, VolumeOptions};
use larder::core::commit::PageKind;
use larder::core::id::ObjectId;
use larder_harness::median;
use larder_harness::servers::Origin;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const CLIENTS: usize = 64;
const OBJECT_BYTES: usize = 100;
const SECONDS: u64 = 5;

pub(crate) async fn run() -> Result<Value> {
    let mut origin = Origin::start("bench-commit", CLIENTS)?;
    let first = origin.node(0).await?;
    let options = VolumeOptions { name: "objects".into(), page_bytes: 8192, domain: None };
    first.create_volume(options).await?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(client(first.clone()).await?);
    }
    origin.alive()?;

    let bare_us = larder_store::bench::bare_sync_median(&origin.folder(), OBJECT_BYTES, 2_000)?
        .as_secs_f64()
        * 1e6;
    let alone = clients.swap_remove(0);
    let (one, alone) = commits(alone, Duration::from_secs(SECONDS)).await?;
    clients.push(alone);
    let many_per_s = together(clients).await?;
    origin.alive()?;
    first.shutdown().await;

    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        clients.push(client(origin.node(number).await?).await?);
    }
    let nodes_per_s = together(clients).await?;
    origin.alive()?;
    Ok(json!({
        "one_median_us": median(one.clone()).unwrap_or_default(),
        "bare_sync_median_us": bare_us,
        "one_per_s": one.len() as f64 / SECONDS as f64,
        "sixty_four_per_s": many_per_s,
        "sixty_four_nodes_per_s": nodes_per_s,
    }))
}

/// Commits of all of them together, a second.
async fn together(clients: Vec<Client>) -> Result<f64> {
    let started = Instant::now();
    let time = Duration::from_secs(SECONDS);
    let tasks: Vec<_> =
        clients.into_iter().map(|client| tokio::spawn(commits(client, time))).collect();
    let mut all = 0;
    for task in tasks {
        all += task.await??.0.len();
    }
    Ok(all as f64 / started.elapsed().as_secs_f64())
}

struct Client {
    // Keeps the link up.
    _node: Node,
    session: larder::client::Session,
    object: ObjectId,
}

/// A client with an object on a page of its own.
async fn client(node: Node) -> Result<Client> {
    let volume = node.volume("objects").await?;
    let session = volume.session(SessionOptions::default());
    let id = volume.id();
    let object = session
        .transact(|tx| async move {
            let page = tx.create_page(id, PageKind::Slotted).await?;
            tx.create(page, vec![0; OBJECT_BYTES]).await
        })
        .await?;
    Ok(Client { _node: node, session, object })
}

/// Commits until the time is over: microseconds of each.
async fn commits(client: Client, time: Duration) -> Result<(Vec<f64>, Client)> {
    let (end, mut times) = (Instant::now() + time, Vec::new());
    let object = client.object;
    while Instant::now() < end {
        let started = Instant::now();
        let value = vec![times.len() as u8; OBJECT_BYTES];
        client
            .session
            .transact(|tx| {
                let value = value.clone();
                async move {
                    tx.get(object).await?;
                    tx.update(object, value).await?;
                    Ok::<_, Error>(())
                }
            })
            .await?;
        times.push(started.elapsed().as_secs_f64() * 1e6);
    }
    Ok((times, client))
}
