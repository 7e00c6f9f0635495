//! The client library: a node embedded in its user's process.
//!
//! [`Node::connect`] starts the node, [`Node::volume`] opens a volume, [`Volume::session`] a
//! session with a consistency of its own, and [`Session::transact`] runs a transaction, again
//! when it met a conflict. A read that hits the cache happens on the caller's thread: the future
//! is ready at its first poll and no task is woken.
//!
//! Every error but one says that nothing was done. [`Error::OutcomeUnknown`] names a commit that
//! may have been done, or may yet be: [`Session::outcome`] asks for its outcome.

mod copying;
mod error;
mod ids;
mod node;
mod notice;
mod requests;
mod rooms;
mod scan;
mod session;
mod transaction;
mod volume;

pub(crate) use copying::NotCopied;
pub use error::{Error, InDoubt, Result};
pub use node::{DomainStatus, Node, NodeStatus, ParentStatus, VolumeOptions};
pub use notice::{Event, Notices};
pub use scan::Scan;
pub use session::{Consistency, Freshness, Session, SessionOptions};
pub use transaction::{Committed, Object, Savepoint, Transaction};
pub use volume::Volume;

pub use crate::config::NodeConfig;
