//! Origins and relays as processes run them.

mod origin;
mod relay;
mod store;

pub use origin::OriginServer;
pub use relay::RelayServer;

use crate::tls::TlsError;
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
