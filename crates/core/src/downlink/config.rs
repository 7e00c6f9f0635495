//! What a parent grants each of its children.

use crate::message::{LinkLimits, Versions};
use crate::time::Duration;

/// Bounds and intervals of the links down, shared by origin and relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DownlinkConfig {
    /// The parent's name, told to children. Default: `parent`.
    pub name: String,
    /// The protocol versions spoken, with children and, by a relay, with its parent. Default: all
    /// that this code knows.
    pub versions: Versions,
    /// The bounds told to children. Default: 8192 requests, 1 MiB of stream, 4 MiB of pages, a
    /// lease of 15 s.
    pub limits: LinkLimits,
    /// Most links; a further one is closed. Default: 4096.
    pub links_max: usize,
    /// Most processes of one certificate that are there at once, each under an instance of its
    /// own; a further one is refused. Default: 1024.
    pub processes_max: usize,
    /// Most nodes that one relay may bring; a further one is not registered. Default: 16 384.
    pub names_per_link_max: usize,
    /// A link from which nothing is heard for this long is closed. Default: 20 s.
    pub silence_max: Duration,
    /// A link whose handshake is not complete after this long is closed. Default: 10 s.
    pub hello_max: Duration,
    /// An advance that carries nothing but its stamp is sent at most this often: a child that
    /// waits for a stamp is told at once. Default: 20 ms.
    pub quiet_interval: Duration,
    /// Most pages a link's registration of one domain may name before it becomes "all".
    /// Default: 1 048 576.
    pub registered_pages_max: usize,
    /// Bytes that this may take, about, likewise. Default: 16 MiB.
    pub registered_bytes_max: usize,
    /// Bytes after which an advance is cut (at a stamp). Default: 64 KiB.
    pub advance_bytes: usize,
    /// Bytes of recent changes kept per domain. Default: 16 MiB.
    pub ring_bytes_max: usize,
    /// Commits kept per domain as recent changes. Default: 65 536.
    pub ring_commits_max: usize,
}

impl Default for DownlinkConfig {
    fn default() -> Self {
        Self {
            name: "parent".into(),
            versions: Versions::SPOKEN,
            limits: LinkLimits {
                requests_max: 8192,
                stream_window_bytes: 1 << 20,
                bulk_window_bytes: 4 << 20,
                lease: Duration::from_secs(15),
            },
            links_max: 4096,
            processes_max: 1024,
            names_per_link_max: 16_384,
            silence_max: Duration::from_secs(20),
            hello_max: Duration::from_secs(10),
            quiet_interval: Duration::from_millis(20),
            registered_pages_max: 1 << 20,
            registered_bytes_max: 16 << 20,
            advance_bytes: 64 << 10,
            ring_bytes_max: 16 << 20,
            ring_commits_max: 65_536,
        }
    }
}
