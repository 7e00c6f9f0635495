//! An open volume.

use super::{Node, Result, Session, SessionOptions};
use larder_core::id::{DomainId, PageId, PageNo, Stamp, VolumeId};
use larder_core::message::VolumeInfo;
use std::time::Duration;

/// An open volume. Cloning shares it.
#[derive(Clone)]
pub struct Volume {
    node: Node,
    info: std::sync::Arc<VolumeInfo>,
}

impl Volume {
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

    /// Page 1, which is made with the volume.
    #[must_use]
    pub fn root(&self) -> PageId {
        self.page(PageNo(1))
    }

    /// A session: a user of the node, with a consistency of its own. It may touch every volume of
    /// the node's origin, and write in one domain per transaction.
    #[must_use]
    pub fn session(&self, _options: SessionOptions) -> Session {
        todo!()
    }

    /// Waits until the cache holds the state that the origin has now, or later: one round trip.
    pub async fn refresh(&self) -> Result<Stamp> {
        todo!()
    }

    /// How old the cached state is at most; none: never confirmed.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        todo!()
    }

    /// The stamp up to which every change that concerns this cache is applied.
    #[must_use]
    pub fn valid_through(&self) -> Stamp {
        todo!()
    }

    /// Asks for pages that will be wanted soon, and does not wait for them.
    pub fn prefetch(&self, _pages: &[PageNo]) {
        todo!()
    }

    /// Page numbers never used before, given to this node for good. Usually without a round trip:
    /// the node keeps a range and asks ahead.
    pub async fn allocate_pages(&self, _count: u64) -> Result<Vec<PageNo>> {
        todo!()
    }

    /// One past the highest page number that anybody may have used up to now. Costs one number.
    pub async fn page_limit(&self) -> Result<PageNo> {
        todo!()
    }
}
