//! An open volume.

use super::ids;
use super::{Error, Node, Result, Session, SessionOptions};
use crate::clock::now;
use larder_core::cache::Line;
use larder_core::cache::io::{CacheOp, CacheReply};
use larder_core::id::{DomainId, HistoryId, PageId, PageNo, Stamp, VolumeId};
use larder_core::message::VolumeInfo;
use larder_core::rights::Right;
use std::sync::Arc;
use std::time::Duration;

/// An open volume. Cloning shares it.
#[derive(Clone)]
pub struct Volume {
    node: Node,
    info: Arc<VolumeInfo>,
}

impl Volume {
    pub(super) fn new(node: Node, info: VolumeInfo) -> Self {
        Self { node, info: Arc::new(info) }
    }

    /// As it was when opened.
    #[must_use]
    pub fn info(&self) -> &VolumeInfo {
        &self.info
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> VolumeId {
        self.info.id
    }

    /// What this node may do with it now, as its parent last told. The origin decides: what is asked
    /// without the right fails with [`Error::Denied`].
    #[must_use]
    pub fn right(&self) -> Right {
        self.node.shared().cache.right(self.info.id)
    }

    /// Its order domain.
    #[must_use]
    pub fn domain(&self) -> DomainId {
        self.info.domain
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> u32 {
        self.info.page_bytes
    }

    /// The node it was opened through.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// A page's full name.
    #[must_use]
    pub fn page(&self, page: PageNo) -> PageId {
        PageId { volume: self.info.id, page }
    }

    /// Whether this node knows that the volume was deleted: whatever is done in it fails with
    /// [`Error::VolumeDeleted`] then.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.node.shared().cache.is_deleted(self.id())
    }

    /// Page 1, which is made with the volume.
    #[must_use]
    pub fn root(&self) -> PageId {
        self.page(PageNo(1))
    }

    /// A session: a user of the node, with a consistency of its own. It may touch every open
    /// volume of the node. A transaction over several order domains that writes is committed in all of
    /// them or in none, for one more sync at each end than in one (`docs/decisions/0035-two-phase-commit.md`).
    #[must_use]
    pub fn session(&self, options: SessionOptions) -> Session {
        Session::new(self.node.shared().clone(), self.domain(), options)
    }

    /// Waits until the cache holds the state that the origin has now, or later: one round trip.
    pub async fn refresh(&self) -> Result<Stamp> {
        let shared = self.node.shared();
        let op = CacheOp::Refresh { domain: self.domain() };
        match shared.requests.ask(op, shared.request_limit()).await? {
            CacheReply::Through(stamp) => Ok(stamp),
            other => unreachable!("a stamp was asked for: {other:?}"),
        }
    }

    /// How old the cached state is at most; none: never confirmed.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        self.node.shared().cache.age(self.domain(), now())
    }

    /// How long the cached state may be called current, if nothing is confirmed meanwhile; zero:
    /// it may not.
    #[must_use]
    pub fn lease_left(&self) -> Duration {
        self.node.shared().cache.lease_left(self.domain(), now())
    }

    /// The stamp up to which every change that concerns this cache is applied.
    #[must_use]
    pub fn valid_through(&self) -> Stamp {
        self.node.shared().cache.through(self.domain()).unwrap_or(Stamp::ZERO)
    }

    /// The line of its domain's stamps now: another one once the origin was restored from an old
    /// copy and this node had seen what was lost.
    #[must_use]
    pub fn line(&self) -> Line {
        self.node.shared().cache.line(self.domain())
    }

    /// The run of its domain's origin that this node follows now. Page numbers that were given in
    /// an earlier one are not to be used any more: it may have been of a line that was lost, and
    /// they may have been given to another node since.
    #[must_use]
    pub fn history(&self) -> Option<HistoryId> {
        self.node.shared().cache.history(self.domain())
    }

    /// Asks for pages that will be wanted soon, and does not wait for them. Dropped when the node
    /// has too much to do.
    pub fn prefetch(&self, pages: &[PageNo]) {
        let shared = self.node.shared();
        let held = |page: &PageId| shared.cache.peek(*page).is_some_and(|copy| copy.complete());
        let pages: Vec<PageId> =
            pages.iter().map(|&page| self.page(page)).filter(|page| !held(page)).collect();
        if pages.is_empty() {
            return;
        }
        let op = CacheOp::Fetch { domain: self.domain(), pages, prefetch: true };
        shared.requests.tell(op, shared.request_limit());
    }

    /// Consecutive page numbers never used before, given to this node for good, unless the origin
    /// is restored from an old copy ([`Volume::history`]); the first of them. Usually without a round trip: the node keeps a range and asks ahead.
    pub async fn allocate_pages(&self, count: u64) -> Result<PageNo> {
        let shared = self.node.shared();
        let limit = shared.request_limit();
        let (range, _) = ids::allocate(shared, self.id(), count, limit).await?;
        Ok(range.first)
    }

    /// One past the highest page number that anybody may have used up to now: for tools that look
    /// at every page. A round trip; costs a number.
    pub async fn page_limit(&self) -> Result<PageNo> {
        let shared = self.node.shared();
        let range = ids::ask(shared, self.id(), 1, shared.request_limit()).await?;
        if range.count == 0 {
            return Err(Error::Unavailable("no page number was given".into()));
        }
        Ok(range.first)
    }
}
