//! Page numbers that the origin gave to this node and nobody has used yet.

use super::node::NodeShared;
use super::{Error, Result};
use larder_core::cache::io::{CacheOp, CacheReply};
use larder_core::commit::IdRange;
use larder_core::id::{PageNo, VolumeId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Ranges kept of a volume; the shortest go first when there are more. What is dropped is lost,
/// which does no harm: there are 2^48.
const RANGES_MAX: usize = 64;

/// The node's page numbers, by volume.
pub(super) struct IdPools {
    pools: Mutex<BTreeMap<VolumeId, Pool>>,
    run: u64,
}

#[derive(Default)]
struct Pool {
    ranges: Vec<IdRange>,
    asking: bool,
}

impl Pool {
    fn left(&self) -> u64 {
        self.ranges.iter().map(|range| range.count).sum()
    }

    fn take(&mut self, count: u64) -> Option<IdRange> {
        // The shortest that does keeps long runs for those who need them.
        let fitting = self.ranges.iter_mut().filter(|range| range.count >= count);
        let range = fitting.min_by_key(|range| range.count)?;
        let taken = IdRange { count, ..*range };
        range.first = PageNo(range.first.0 + count);
        range.count -= count;
        self.ranges.retain(|range| range.count > 0);
        Some(taken)
    }

    fn put(&mut self, range: IdRange) {
        self.ranges.push(range);
        self.ranges.sort_unstable_by_key(|range| std::cmp::Reverse(range.count));
        self.ranges.truncate(RANGES_MAX);
    }
}

impl IdPools {
    pub(super) fn new(run: u64) -> Self {
        Self { pools: Mutex::default(), run }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<VolumeId, Pool>> {
        // A pool is whole between any two of its changes.
        self.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back what was not used.
    pub(super) fn put(&self, range: IdRange) {
        self.lock().entry(range.volume).or_default().put(range);
    }
}

/// `count` consecutive numbers, from the pool or else from the origin. Asks ahead when the pool
/// has run low.
pub(super) async fn allocate(
    node: &Arc<NodeShared>,
    volume: VolumeId,
    count: u64,
    limit: Duration,
) -> Result<IdRange> {
    if count == 0 {
        return Err(Error::Invalid("no page numbers asked for".into()));
    }
    let (taken, ask_ahead) = {
        let mut pools = node.ids.lock();
        let pool = pools.entry(volume).or_default();
        let taken = pool.take(count);
        let low = pool.left() < node.ids.run / 4 && !pool.asking && node.ids.run > 1;
        pool.asking |= taken.is_some() && low;
        (taken, low)
    };
    if let Some(range) = taken {
        if ask_ahead {
            tokio::spawn(refill(node.clone(), volume));
        }
        return Ok(range);
    }
    let run = ask(node, volume, count.max(node.ids.run), limit).await?;
    let mut pools = node.ids.lock();
    let pool = pools.entry(volume).or_default();
    pool.put(run);
    pool.take(count)
        .ok_or_else(|| Error::Unavailable(format!("no run of {count} page numbers was given")))
}

async fn refill(node: Arc<NodeShared>, volume: VolumeId) {
    let answer = ask(&node, volume, node.ids.run, node.request_limit()).await;
    let mut pools = node.ids.lock();
    let pool = pools.entry(volume).or_default();
    pool.asking = false;
    // Without an answer the next transaction that finds the pool empty asks by itself.
    if let Ok(range) = answer {
        pool.put(range);
    }
}

/// Numbers straight from the origin.
pub(super) async fn ask(
    node: &NodeShared,
    volume: VolumeId,
    count: u64,
    limit: Duration,
) -> Result<IdRange> {
    match node.requests.ask(CacheOp::AllocateIds { volume, count }, limit).await? {
        CacheReply::Ids(range) => Ok(range),
        other => unreachable!("page numbers were asked for: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_shortest_run_that_does_and_never_gives_a_number_twice() {
        let volume = VolumeId(1);
        let mut pool = Pool::default();
        for (first, count) in [(100, 10), (200, 3)] {
            pool.put(IdRange { volume, first: PageNo(first), count });
        }
        let take = |pool: &mut Pool, count| pool.take(count).map(|range| range.first.0);
        assert_eq!(take(&mut pool, 2), Some(200));
        assert_eq!(take(&mut pool, 2), Some(100));
        assert_eq!(take(&mut pool, 1), Some(202));
        assert_eq!(take(&mut pool, 9), None);
        assert_eq!(take(&mut pool, 8), Some(102));
        assert_eq!(pool.left(), 0);
    }
}
