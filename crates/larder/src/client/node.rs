//! A node: a cache in this process and its link to a parent.

use super::{Notices, Result, Volume};
use larder_core::id::{BootId, DomainId, Stamp, VolumeId};
use larder_core::message::VolumeInfo;
use std::time::Duration;

/// How to reach a parent and who to be.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The parent's address, `host:port`.
    pub parent: String,
    /// The name in the parent's certificate; none: any certificate of the authority.
    pub parent_name: Option<String>,
    /// The folder with `ca.pem`, `NAME.pem` and `NAME-key.pem`.
    pub tls_dir: std::path::PathBuf,
    /// This node's name, as its certificate proves it.
    pub name: String,
    /// Bytes of pages kept in memory.
    pub memory_bytes: u64,
    /// How long requests wait for an answer.
    pub request_limit: Duration,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            parent: "localhost:4780".into(),
            parent_name: None,
            tls_dir: "tls".into(),
            name: "node".into(),
            memory_bytes: 1 << 30,
            request_limit: Duration::from_secs(30),
        }
    }
}

/// What to make.
#[derive(Clone, Debug)]
pub struct VolumeOptions {
    /// Its name: 1 to 128 bytes of letters, digits, `-`, `_`, `.`.
    pub name: String,
    /// Bytes of a page: a power of two from 4 KiB to 1 MiB.
    pub page_bytes: u32,
    /// Which domain; none: the origin chooses.
    pub domain: Option<DomainId>,
}

/// What a node knows of a domain.
#[derive(Clone, Debug)]
pub struct DomainStatus {
    /// Which.
    pub domain: DomainId,
    /// Its valid-through here.
    pub through: Stamp,
    /// How old this state is at most; none: never confirmed.
    pub age: Option<Duration>,
}

/// What a node knows of itself.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// This process's life.
    pub boot: BootId,
    /// Whether the link to the parent stands.
    pub connected: bool,
    /// The domains whose volumes are open.
    pub domains: Vec<DomainStatus>,
}

/// A cache in this process, linked to its parent. Cloning shares it; it ends with
/// [`Node::shutdown`], or when the last clone is dropped.
#[derive(Clone)]
pub struct Node {}

impl Node {
    /// Starts a node. Returns when the link stands; a parent that does not answer within
    /// `request_limit` is an error.
    pub async fn connect(_options: NodeOptions) -> Result<Self> {
        todo!()
    }

    /// Opens a volume by its name.
    pub async fn volume(&self, _name: &str) -> Result<Volume> {
        todo!()
    }

    /// Opens a volume by its id.
    pub async fn volume_by_id(&self, _id: VolumeId) -> Result<Volume> {
        todo!()
    }

    /// Makes a volume and opens it. Its page 1 is there, slotted and empty.
    pub async fn create_volume(&self, _options: VolumeOptions) -> Result<Volume> {
        todo!()
    }

    /// All volumes of the origin.
    pub async fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        todo!()
    }

    /// What changes from now on.
    #[must_use]
    pub fn notices(&self) -> Notices {
        todo!()
    }

    /// What the node knows of itself.
    #[must_use]
    pub fn status(&self) -> NodeStatus {
        todo!()
    }

    /// This process's life.
    #[must_use]
    pub fn boot(&self) -> BootId {
        todo!()
    }

    /// Says goodbye to the parent and ends the node; calls after it fail with
    /// [`super::Error::ShutDown`].
    pub async fn shutdown(&self) {
        todo!()
    }
}
