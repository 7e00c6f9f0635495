//! The version cache with 200 reordered objects, as the paper measured its own (BuddyCache, section 6.3.2):
//! outcome processed, every object looked up at the next commit, the stream passing; beside a locked hash
//! map of the same objects.

use anyhow::{Result, ensure};
use larder::core::cache::{Ahead, VersionCache, VersionLimits};
use larder::core::commit::{Op, Write};
use larder::core::id::{Generation, PageId, PageNo, Slot, Stamp, VolumeId};
use larder_harness::median;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::hint::black_box;
use std::sync::RwLock;
use std::time::Instant;

const OBJECTS: usize = 200;
const OBJECT_BYTES: usize = 100;
const ROUNDS: usize = 5_000;
/// Pages that the objects lie on: as OO7 clusters them, and each on a page of its own.
const PAGES: [(&str, usize); 2] = [("clustered", 20), ("scattered", OBJECTS)];

pub(crate) fn run() -> Result<Value> {
    let mut figures = serde_json::Map::new();
    for (name, pages) in PAGES {
        let writes = writes(pages);
        let phases = reordered(&writes)?;
        let [insert, look_up, pass] = phases.map(microseconds);
        figures.insert(
            name.into(),
            json!({
                "pages": pages,
                "total_us": insert + look_up + pass,
                "insert_us": insert,
                "look_up_us": look_up,
                "pass_us": pass,
                "hash_map_us": microseconds(rival(&writes)),
            }),
        );
    }
    figures.insert("objects".into(), OBJECTS.into());
    Ok(Value::Object(figures))
}

fn writes(pages: usize) -> Vec<Write> {
    let write = |index: usize| {
        let page =
            PageId { volume: VolumeId(7), page: PageNo((index * pages / OBJECTS) as u64 + 2) };
        let (slot, generation) = (Slot((index * 3 % 1_000) as u16), Generation(1));
        Write { page, op: Op::Put { slot, generation, value: vec![7; OBJECT_BYTES].into() } }
    };
    (0..OBJECTS).map(write).collect()
}

fn slot_of(write: &Write) -> Slot {
    let Op::Put { slot, .. } = &write.op else { unreachable!("made above") };
    *slot
}

/// Nanoseconds of each phase, by round.
fn reordered(writes: &[Write]) -> Result<[Vec<f64>; 3]> {
    let mut ahead = VersionCache::new(VersionLimits::default());
    let mut phases = [const { Vec::new() }; 3];
    for round in 0..ROUNDS as u64 {
        let (through, stamp) = (Stamp(2 * round), Stamp(2 * round + 2));
        let begun = Instant::now();
        let purged = ahead.committed(stamp, black_box(writes));
        let inserted = Instant::now();
        let looked = |write: &Write| ahead.get(write.page, slot_of(write), through);
        let found = writes.iter().filter(|w| matches!(looked(w), Ahead::Object { .. })).count();
        let looked_up = Instant::now();
        ahead.passed(stamp);
        let passed = Instant::now();
        ensure!(purged.is_empty() && found == OBJECTS, "an object does not stand ahead");
        ensure!(ahead.is_passed(stamp), "the stream has passed, and something stands ahead");
        let times = [inserted - begun, looked_up - inserted, passed - looked_up];
        for (phase, time) in phases.iter_mut().zip(times) {
            phase.push(time.as_nanos() as f64);
        }
    }
    Ok(phases)
}

/// The same with the standard library: nanoseconds by round.
fn rival(writes: &[Write]) -> Vec<f64> {
    let map = RwLock::new(HashMap::new());
    let rounds = (0..ROUNDS).map(|round| {
        let begun = Instant::now();
        for write in black_box(writes) {
            let Op::Put { value, .. } = &write.op else { unreachable!("made above") };
            let entry = (round, value.clone());
            map.write().expect("one thread").insert((write.page, slot_of(write)), entry);
        }
        for write in writes {
            black_box(map.read().expect("one thread").get(&(write.page, slot_of(write))).cloned());
        }
        for write in writes {
            map.write().expect("one thread").remove(&(write.page, slot_of(write)));
        }
        begun.elapsed().as_nanos() as f64
    });
    rounds.collect()
}

fn microseconds(rounds: Vec<f64>) -> f64 {
    median(rounds).expect("there are rounds") / 1e3
}
