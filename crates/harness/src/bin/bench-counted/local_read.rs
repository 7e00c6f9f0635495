//! A cached object read inside a transaction: time and allocations, over a hot set and a wide one.
//!
//! What counts is the first read of an object in a fresh transaction, which records the read; all
//! of the objects have been used before. Reading one again is told beside it, and so are first reads
//! whose reader looks at the value: a read hands out the bytes without touching them.

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
/// First reads of one transaction: each of another object.
const READS_PER_TRANSACTION: usize = 1_000;
/// Reads timed together, so that the clock's own cost is spread thin.
const BATCH: usize = 100;
const BATCHES: usize = 2_000;
/// What grows with a read set: its list of pages and the index over them, each doubling.
const GROWING: f64 = 2.0;

pub(crate) async fn run() -> Result<Value> {
    let mut origin = Origin::start("bench-local-read", 1)?;
    let node = origin.node(0).await?;
    let options = VolumeOptions { name: "objects".into(), page_bytes: 8192, domain: None };
    let volume = node.create_volume(options).await?;
    let objects = fill(&volume, WIDE).await?;
    origin.alive()?;

    let hot = first_reads(&volume, &objects[..HOT], false).await?;
    let spread = first_reads(&volume, &objects, false).await?;
    let used = first_reads(&volume, &objects, true).await?;
    let (hot_again_ns, hot_again_allocations) = reads_again(&volume, &objects[..HOT]).await?;
    let (spread_again_ns, _) = reads_again(&volume, &objects).await?;
    let (rival_hot_ns, rival_spread_ns) = (rival(&objects[..HOT]), rival(&objects));
    node.shutdown().await;
    Ok(json!({
        "hot_ns": hot.median_ns,
        "spread_ns": spread.median_ns,
        "allocations": hot.beyond_growth.max(spread.beyond_growth),
        "hot_mean_ns": hot.mean_ns,
        "spread_mean_ns": spread.mean_ns,
        "spread_used_ns": used.median_ns,
        "reads_per_transaction": READS_PER_TRANSACTION,
        "hot_allocations_per_transaction": hot.allocations,
        "spread_allocations_per_transaction": spread.allocations,
        "growth_per_transaction": growth(),
        "hot_again_ns": hot_again_ns,
        "spread_again_ns": spread_again_ns,
        "hot_again_allocations": hot_again_allocations,
        "hash_map_hot_ns": rival_hot_ns,
        "hash_map_spread_ns": rival_spread_ns,
    }))
}

/// Allocations that the doubling of a read set costs a transaction, at most.
fn growth() -> f64 {
    GROWING * ((READS_PER_TRANSACTION as f64).log2().ceil() + 1.0)
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

/// What first reads cost.
struct FirstReads {
    /// Of a read, over batches.
    median_ns: f64,
    /// Of a read, the growth of the read set with it.
    mean_ns: f64,
    /// Of a transaction's reads, growth with them.
    allocations: f64,
    /// Allocations a read that the growth of the read set does not explain.
    beyond_growth: f64,
}

/// Reads of fresh transactions, each object once in each: none has been recorded before. With `look`
/// the reader uses the value: it looks at a byte of it.
async fn first_reads(volume: &Volume, objects: &[ObjectId], look: bool) -> Result<FirstReads> {
    let session = volume.session(SessionOptions::default());
    let mut order = objects.to_vec();
    let mut rng = Rng::new(1);
    // Once for all, so that every object is cached and was used lately.
    for part in order.chunks(READS_PER_TRANSACTION) {
        let tx = session.begin_read().await?;
        for object in part {
            ensure!(tx.get(*object).await?.len() == OBJECT_BYTES, "a wrong object was read");
        }
        tx.commit().await?;
    }
    let (mut times, mut allocations) = (Vec::with_capacity(BATCHES), Vec::new());
    while times.len() < BATCHES {
        for place in (1..order.len()).rev() {
            order.swap(place, rng.below(place as u64 + 1) as usize);
        }
        for part in order.chunks(READS_PER_TRANSACTION) {
            if times.len() >= BATCHES {
                break;
            }
            let tx = session.begin_read().await?;
            let region = Region::new(ALLOCATOR);
            for batch in part.chunks(BATCH) {
                let started = Instant::now();
                for object in batch {
                    let value = black_box(tx.get(*object).await?);
                    if look {
                        black_box(value[0]);
                    }
                }
                times.push(started.elapsed().as_nanos() as f64 / batch.len() as f64);
            }
            let change = region.change();
            allocations.push((change.allocations + change.reallocations) as f64);
            tx.commit().await?;
        }
    }
    let mean_ns = times.iter().sum::<f64>() / times.len() as f64;
    // The median: what other tasks of the process allocate meanwhile is not the reads'.
    let allocations = median(allocations).expect("transactions were counted");
    let beyond = (allocations - growth()).max(0.0) / READS_PER_TRANSACTION as f64;
    let median_ns = median(times).expect("batches were timed");
    Ok(FirstReads { median_ns, mean_ns, allocations, beyond_growth: beyond })
}

/// Median nanoseconds, and allocations, of reading an object that the transaction has read.
async fn reads_again(volume: &Volume, objects: &[ObjectId]) -> Result<(f64, f64)> {
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
