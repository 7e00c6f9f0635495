//! Page numbers that the origin gave to this node and nobody has used yet.
//!
//! They are good for the history in which they were asked for. The origin keeps what it has given
//! away over its restarts, but one that was restored from an old copy does not know of the last,
//! and gives them to others: so none is kept beyond a history.

use super::node::NodeShared;
use super::session::remaining;
use super::{Error, Result};
use crate::clock::now;
use crate::planted::{RuntimeFault, planted};
use larder_core::cache::io::{CacheOp, CacheReply};
use larder_core::commit::IdRange;
use larder_core::id::{HistoryId, PageNo, VolumeId};
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

/// The history in which numbers were asked for; none: the volume's domain has none yet.
pub(super) type Asked = Option<HistoryId>;

#[derive(Default)]
struct Pool {
    asked: Asked,
    ranges: Vec<IdRange>,
    asking: bool,
}

impl Pool {
    /// Forgets what was asked for in another history than the one of now.
    fn in_history(&mut self, history: Asked) -> &mut Self {
        if self.asked != history {
            self.ranges.clear();
            self.asked = history;
        }
        self
    }

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

    /// Takes back what was not used of what was asked for in a history.
    pub(super) fn put(&self, range: IdRange, asked: Asked) {
        let mut pools = self.lock();
        let pool = pools.entry(range.volume).or_default();
        if pool.asked == asked {
            pool.put(range);
        }
    }
}

/// `count` consecutive numbers, from the pool or else from the origin, and the history in which
/// they were asked for. Asks ahead when the pool has run low.
pub(super) async fn allocate(
    node: &Arc<NodeShared>,
    volume: VolumeId,
    count: u64,
    limit: Duration,
) -> Result<(IdRange, Asked)> {
    if count == 0 {
        return Err(Error::Invalid("no page numbers asked for".into()));
    }
    let deadline = now().after(limit);
    loop {
        let history = node.history_of(volume);
        let (taken, ask_ahead) = {
            let mut pools = node.ids.lock();
            let pool = pools.entry(volume).or_default().in_history(history);
            let taken = pool.take(count);
            let low = pool.left() < node.ids.run / 4 && !pool.asking && node.ids.run > 1;
            pool.asking |= taken.is_some() && low;
            (taken, low)
        };
        if let Some(range) = taken {
            if ask_ahead {
                tokio::spawn(refill(node.clone(), volume));
            }
            return Ok((range, history));
        }
        let run = ask(node, volume, count.max(node.ids.run), remaining(deadline)?).await?;
        if run.count < count {
            return Err(Error::Unavailable(format!("no run of {count} page numbers was given")));
        }
        keep(node, run, history);
    }
}

/// Keeps numbers unless the history in which they were asked for has ended.
fn keep(node: &NodeShared, range: IdRange, asked: Asked) {
    let mut pools = node.ids.lock();
    let history = node.history_of(range.volume);
    let pool = pools.entry(range.volume).or_default().in_history(history);
    if asked == history {
        pool.put(range);
    }
}

async fn refill(node: Arc<NodeShared>, volume: VolumeId) {
    let history = node.history_of(volume);
    let answer = ask(&node, volume, node.ids.run, node.request_limit()).await;
    // Without an answer the next transaction that finds the pool empty asks by itself.
    if let Ok(range) = answer {
        if planted(RuntimeFault::IdsTwice) {
            keep(&node, range, history);
        }
        keep(&node, range, history);
    }
    node.ids.lock().entry(volume).or_default().asking = false;
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

    /// An origin was restored from a copy of before it gave a node numbers, and gave the same to
    /// another node: the first made pages that the second took for its own.
    #[test]
    fn no_number_is_used_in_another_history_than_it_was_asked_for_in() {
        let (old, new) = (Some(HistoryId(1)), Some(HistoryId(2)));
        let range = IdRange { volume: VolumeId(1), first: PageNo(100), count: 10 };
        let pools = IdPools::new(8);
        pools.lock().entry(range.volume).or_default().in_history(old).put(range);
        assert_eq!(pools.lock().entry(range.volume).or_default().in_history(new).take(1), None);
        // A transaction of before gives back what it did not use.
        pools.put(range, old);
        let left = || pools.lock().entry(range.volume).or_default().left();
        assert_eq!(left(), 0);
        pools.put(range, new);
        assert_eq!(left(), 10);
    }

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
