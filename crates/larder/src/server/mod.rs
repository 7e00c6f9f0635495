//! Origins and relays as processes run them.

mod data;
mod origin;
mod pace;
mod peers;
mod relay;
mod status;
mod store;
#[cfg(feature = "simulated")]
mod tasks;

pub use origin::OriginServer;
pub use relay::RelayServer;
pub(crate) use relay::Relaying;

use crate::tls::TlsError;
use larder_core::id::DomainId;
use larder_core::origin::RecoverError;
use larder_store::driver::OpenError;
use std::path::PathBuf;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// A certificate does not do.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {detail}")]
    Listen {
        /// Which.
        address: String,
        /// The system's words.
        detail: String,
    },
    /// A domain's store cannot be opened.
    #[error("{path}: {error}", path = path.display())]
    Store {
        /// Its folder.
        path: PathBuf,
        /// Why.
        error: OpenError,
    },
    /// There is no store, and none is to be made.
    #[error(
        "{path} holds no store: if it has one, mount its disk there, or set origin.data to its \
         folder; if it is to be made, start the origin once with --create",
        path = path.display()
    )]
    NoStore {
        /// The data folder.
        path: PathBuf,
    },
    /// A store is to be made where one is.
    #[error(
        "{path} holds a store: start the origin without --create (origin.create), which is for the \
         first start alone",
        path = path.display()
    )]
    StoreExists {
        /// The data folder.
        path: PathBuf,
    },
    /// A domain of the store is not there.
    #[error(
        "{path} is missing, and domain {domain:016x} with it, which the store's list names: mount \
         its disk there, or restore it from a backup",
        path = path.display(),
        domain = domain.0
    )]
    DomainMissing {
        /// Where it was.
        path: PathBuf,
        /// Which.
        domain: DomainId,
    },
    /// A domain's folder holds another domain than the store's list says.
    #[error(
        "{path} holds domain {found:016x}, and the store's list names {wanted:016x} there: put \
         each disk back where it belongs",
        path = path.display(),
        found = found.0,
        wanted = wanted.0
    )]
    OtherDomain {
        /// Where.
        path: PathBuf,
        /// What is there.
        found: DomainId,
        /// What belongs there.
        wanted: DomainId,
    },
    /// A domain that the store's list does not name.
    #[error(
        "{path} holds domain {domain:016x}, which the store's list does not name: set \
         origin.domains to {wanted} to serve it, or move the folder away",
        path = path.display(),
        domain = domain.0
    )]
    Unlisted {
        /// Where.
        path: PathBuf,
        /// Which.
        domain: DomainId,
        /// How many domains there are with it.
        wanted: usize,
    },
    /// The data folder cannot be used.
    #[error("{path}: {detail}", path = path.display())]
    Data {
        /// Which.
        path: PathBuf,
        /// The system's words.
        detail: String,
    },
    /// The domains' stores do not hang together.
    #[error("the store does not hang together: {0}; restore it from a backup")]
    Recover(#[from] RecoverError),
}

/// Links to children and to a parent are numbered apart.
const FIRST_DOWN_LINK: u64 = 1 << 40;
