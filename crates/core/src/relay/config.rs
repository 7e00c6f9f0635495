//! The relay's settings.

use crate::downlink::DownlinkConfig;
use crate::group::GroupConfig;
use crate::id::BootId;
use crate::machine::Faults;
use crate::time::Duration;

/// The relay's settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RelayConfig {
    /// Links down; its `name` is also the relay's own, as its certificate has it. The lease is not
    /// used: children are told the parent's.
    pub downlink: DownlinkConfig,
    /// This process's life: random, drawn at its start.
    pub boot: BootId,
    /// Parents, each another origin's (decision 0037); at least 1. Default: 1.
    pub parents: u32,
    /// How often it asks its parent for an echo; a quarter of the parent's lease if that is
    /// shorter. Default: 2 s.
    pub beat_interval: Duration,
    /// The link up is given up when nothing was heard for this long. Default: 20 s.
    pub silence_max: Duration,
    /// A child's request that could not be sent for this long, or that is not answered for this long
    /// once it was, fails with `Unavailable`; a resume has eight times as long for each part of its answer. Default:
    /// 10 s.
    pub request_max: Duration,
    /// Most pages gathered for one child's resume; beyond it the child is answered `Reset`.
    /// Default: 65 536 (32 bytes each while the resume lasts).
    pub resume_pages_max: usize,
    /// Bytes of commits under way to the parent, from which on others wait here or are put off, and as many
    /// of those that wait. What the link may have to keep must be more by the longest commit (32 MiB, and 40 of
    /// reads), with several domains by three quarters of this too, and by what else is asked. Default: 64 MiB.
    pub commit_bytes_max: usize,
    /// Refreshes of a domain on their way to the parent; with so many the next one goes when one is answered, and stands
    /// for all that came meanwhile. At least 1. Default: 64.
    pub refreshes_max: usize,
    /// After children left or resumed, the relay narrows its own registration after this long.
    /// Default: 5 s.
    pub narrow_delay: Duration,
    /// It is the redirector of a group of neighbours, with these bounds. Default: it is not.
    pub group: Option<GroupConfig>,
    /// Planted faults.
    pub faults: Faults,
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            downlink: DownlinkConfig { name: "relay".into(), ..DownlinkConfig::default() },
            boot: BootId(0),
            parents: 1,
            beat_interval: Duration::from_secs(2),
            silence_max: Duration::from_secs(20),
            request_max: Duration::from_secs(10),
            resume_pages_max: 65_536,
            commit_bytes_max: 64 << 20,
            refreshes_max: 64,
            narrow_delay: Duration::from_secs(5),
            group: None,
            faults: Faults::NONE,
        }
    }
}
