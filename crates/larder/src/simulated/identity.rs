//! Certificates for processes of worlds, which prove nothing to anybody: made once, kept in memory.

use crate::tls::{Identity, Role, TlsError, init};
use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex, PoisonError};

static MADE: LazyLock<Mutex<BTreeMap<String, Identity>>> = LazyLock::new(Mutex::default);

/// A process's certificate; none: this thread has no world.
pub(crate) fn identity(name: &str) -> Option<Result<Identity, TlsError>> {
    super::world()?;
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(identity) = made.get(name) {
        return Some(Ok(identity.clone()));
    }
    // Serial numbers are drawn, once in a process: not from the world, which would go on otherwise.
    let identity = super::outside(|| make(name));
    if let Ok(identity) = &identity {
        made.insert(name.into(), identity.clone());
    }
    Some(identity)
}

fn make(name: &str) -> Result<Identity, TlsError> {
    let folder = format!("larder-identity-{name}-{}", std::process::id());
    let folder = std::env::temp_dir().join(folder);
    let _ = std::fs::remove_dir_all(&folder);
    let made = init(&folder, "worlds").and_then(|authority| {
        authority.issue(&folder, name, Role::Relay, 3650)?;
        Identity::load(&folder, name)
    });
    let _ = std::fs::remove_dir_all(&folder);
    made
}
