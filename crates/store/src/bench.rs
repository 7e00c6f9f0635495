//! Figures of the log and their rival: the same bytes written and synced to the same kind of file.

use crate::disk::{Disk, DiskError, DiskFile, RealDisk};
use crate::log::{FIRST, Log, LogConfig, LogError};
use bytes::Bytes;
use larder_core::id::DomainId;
use larder_core::record::Lsn;
use larder_core::rng::Rng;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of the file that the bare writes go to, as of a log segment.
const FILE_BYTES: u64 = 64 << 20;

/// Median time to write `bytes` bytes at the end of what was written before and sync them, over
/// `rounds` rounds, in a file filled beforehand as a log segment is. The file is made in `path` and
/// removed.
///
/// # Errors
/// Disk errors; the directory must not be a domain's (it is locked, and the file's name is taken).
///
/// # Panics
/// When `bytes` is 0 or more than the file holds, or `rounds` is 0.
pub fn bare_sync_median(path: &Path, bytes: usize, rounds: usize) -> Result<Duration, DiskError> {
    assert!((1..=FILE_BYTES as usize).contains(&bytes), "bytes in range");
    let name = "bench.bare";
    let disk = RealDisk::open(path)?;
    let file = disk.create(name)?;
    file.preallocate(FILE_BYTES)?;
    let zeros = vec![0; 1 << 20];
    for piece in 0..FILE_BYTES >> 20 {
        file.write_at(piece << 20, &zeros)?;
    }
    file.sync()?;
    let written = vec![7; bytes];
    let mut at = 0;
    let mut times = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        if at + bytes as u64 > FILE_BYTES {
            at = 0;
        }
        let begin = Instant::now();
        file.write_at(at, &written)?;
        file.sync()?;
        times.push(begin.elapsed());
        at += bytes as u64;
    }
    drop(file);
    disk.remove(name)?;
    Ok(median(times))
}

/// Median time to append one record of `bytes` bytes to a log in `path`, made there and removed.
///
/// # Errors
/// Those of the log.
///
/// # Panics
/// When `rounds` is 0.
pub fn append_median(path: &Path, bytes: usize, rounds: usize) -> Result<Duration, LogError> {
    let disk = std::sync::Arc::new(RealDisk::open(path)?);
    let config = LogConfig::default();
    let domain = DomainId(0);
    let mut log = Log::create(std::sync::Arc::clone(&disk), config, domain, Rng::new(1))?;
    while log.maintain()? {}
    let body = Bytes::from(vec![7; bytes]);
    let mut times = Vec::with_capacity(rounds);
    for lsn in (FIRST.0..).take(rounds) {
        let begin = Instant::now();
        log.append(&[(Lsn(lsn), body.clone())])?;
        times.push(begin.elapsed());
        log.maintain()?;
    }
    drop(log);
    for name in disk.list()? {
        if name.starts_with("log-") {
            disk.remove(&name)?;
        }
    }
    Ok(median(times))
}

fn median(mut times: Vec<Duration>) -> Duration {
    assert!(!times.is_empty(), "at least one round");
    times.sort_unstable();
    times[times.len() / 2]
}
