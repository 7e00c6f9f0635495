//! A cached object read inside a transaction: time and allocations, over a hot set and a wide one.

use anyhow::{Result, ensure};
use larder::client::{Error, SessionOptions, Volume, VolumeOptions};
use larder::core::commit::PageKind;
use larder::core::id::ObjectId;
use larder::core::rng::Rng;
use larder_harness::median;
use larder_harness::servers::Origin;
use serde_json::{Value, json};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::collections::HashMap;
use std::hint::black_box;
use std::sync::{Arc, RwLock};
use std::time::Instant;

#[global_allocator]
pub(crate) static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const HOT: usize = 1_000;
const WIDE: usize = 100_000;
const OBJECT_BYTES: usize = 100;
const OBJECTS_PER_TRANSACTION: usize = 500;
/// Reads timed together, so that the clock's own cost is spread thin.
const BATCH: usize = 100;
const BATCHES: usize = 2_000;

pub(crate) async fn run() -> Result<Value> {
    let mut origin = Origin::start("bench-local-read", 1)?;
    let node = origin.node(0).await?;
    let options = VolumeOptions { name: "objects".into(), page_bytes: 8192, domain: None };
    let volume = node.create_volume(options).await?;
    let objects = fill(&volume, WIDE).await?;
    origin.alive()?;

    let (hot_ns, hot_allocations) = reads(&volume, &objects[..HOT]).await?;
    let (spread_ns, _) = reads(&volume, &objects).await?;
    let (rival_hot_ns, rival_spread_ns) = (rival(&objects[..HOT]), rival(&objects));
    node.shutdown().await;
    Ok(json!({
        "hot_ns": hot_ns,
        "spread_ns": spread_ns,
        "allocations": hot_allocations,
        "hash_map_hot_ns": rival_hot_ns,
        "hash_map_spread_ns": rival_spread_ns,
    }))
}

/// Makes `count` objects on as many pages as they need.
async fn fill(volume: &Volume, count: usize) -> Result<Vec<ObjectId>> {
    let session = volume.session(SessionOptions::default());
    let mut objects = Vec::with_capacity(count);
    while objects.len() < count {
        let id = volume.id();
        let made = session
            .transact(|tx| async move {
                let mut made = Vec::new();
                while made.len() < OBJECTS_PER_TRANSACTION {
                    let page = tx.create_page(id, PageKind::Slotted).await?;
                    for _ in 0..50 {
                        made.push(tx.create(page, vec![7; OBJECT_BYTES]).await?);
                    }
                }
                Ok::<_, Error>(made)
            })
            .await?;
        objects.extend(made);
    }
    objects.truncate(count);
    Ok(objects)
}

/// Median nanoseconds a read, and allocations a read once the read set has grown.
async fn reads(volume: &Volume, objects: &[ObjectId]) -> Result<(f64, f64)> {
    let session = volume.session(SessionOptions::default());
    let tx = session.begin_read().await?;
    for object in objects {
        ensure!(tx.get(*object).await?.len() == OBJECT_BYTES, "a wrong object was read");
    }
    let mut rng = Rng::new(1);
    let order: Vec<ObjectId> =
        (0..BATCH * BATCHES).map(|_| objects[rng.below(objects.len() as u64) as usize]).collect();
    let mut times = Vec::with_capacity(BATCHES);
    let region = Region::new(ALLOCATOR);
    for batch in order.chunks(BATCH) {
        let started = Instant::now();
        for object in batch {
            black_box(tx.get(*object).await?);
        }
        times.push(started.elapsed().as_nanos() as f64 / BATCH as f64);
    }
    let allocations = region.change().allocations as f64 / order.len() as f64;
    Ok((median(times).expect("batches were timed"), allocations))
}

/// What a program without consistency would do: a hash map behind a lock, values shared.
fn rival(objects: &[ObjectId]) -> f64 {
    let map: RwLock<HashMap<ObjectId, Arc<[u8]>>> =
        RwLock::new(objects.iter().map(|id| (*id, Arc::from([7u8; OBJECT_BYTES]))).collect());
    let mut rng = Rng::new(1);
    let mut times = Vec::with_capacity(BATCHES);
    let order: Vec<ObjectId> =
        (0..BATCH * BATCHES).map(|_| objects[rng.below(objects.len() as u64) as usize]).collect();
    for batch in order.chunks(BATCH) {
        let started = Instant::now();
        for object in batch {
            black_box(map.read().expect("nobody panics").get(object).cloned());
        }
        times.push(started.elapsed().as_nanos() as f64 / BATCH as f64);
    }
    median(times).expect("batches were timed")
}
