//! A process's certificates without the process.

use crate::tls::{CertificateStatus, Credentials, Protocol, TlsError, Uses};
use std::path::Path;
use std::sync::Arc;

/// What a process reads when it starts, and looks at for as long as it runs. Nobody looks but who
/// says so.
pub struct Watched {
    credentials: Arc<Credentials>,
}

impl Watched {
    /// Reads and checks the files of `name` in `dir`, as an origin does if it `serves`, and as a node
    /// does if not.
    pub fn load(dir: &Path, name: &str, serves: bool) -> Result<Self, TlsError> {
        let uses = Uses { serves, dials: !serves, ..Uses::default() };
        Ok(Self { credentials: Credentials::load(dir, name, uses)? })
    }

    /// Looks at the files, uses what does, and tells what is to be seen to.
    pub fn look(&self) -> CertificateStatus {
        self.credentials.look(true);
        self.credentials.status()
    }

    /// With what links are accepted now; none: this is a node.
    #[must_use]
    pub fn server_config(&self) -> Option<Arc<rustls::ServerConfig>> {
        self.credentials.current().server(Protocol::Tree)
    }
}
