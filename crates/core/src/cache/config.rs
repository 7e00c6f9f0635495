//! Bounds and choices of one cache.

use super::versions::VersionLimits;
use crate::group::MemberConfig;
use crate::id::BootId;
use crate::machine::Faults;
use crate::message::Versions;
use crate::time::{Clock, Duration};
use std::sync::Arc;

/// Which copies go first when memory is short.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PolicyKind {
    /// Three queues: one visit through a small one, a main one, a memory of recent evictions.
    #[default]
    S3Fifo,
    /// The copy not used for longest goes first; a hit is noticed when the copy's turn comes.
    Lru,
}

/// Bounds and choices of one cache.
#[derive(Clone)]
pub struct CacheConfig {
    /// The node's name: must be the name in its certificate.
    pub name: String,
    /// This process's life: random, new at every start.
    pub boot: BootId,
    /// How many parents it has, each with domains of its own: at least one.
    pub parents: u32,
    /// The protocol versions spoken.
    pub versions: Versions,
    /// Seed of the machine's random numbers (a new boot for a domain that forgot this one).
    pub seed: u64,
    /// The process's clock, for readers on other threads (rule 8).
    pub clock: Arc<dyn Clock + Send + Sync>,
    /// Bytes of copies in memory, their overhead included. A fetch in flight may exceed it by the
    /// pages it was asked for.
    pub memory_bytes: usize,
    /// Which copies go first.
    pub policy: PolicyKind,
    /// Most copies that say only that a page is absent; of more the oldest go, but for those that
    /// requests have gathered. Not fewer than are asked for at once: who reads them one by one would have
    /// each of them asked for again.
    pub absences_max: usize,
    /// Most user requests that wait; more are answered `Busy`.
    pub requests_max: usize,
    /// Most commits without an outcome, those whose users no longer wait included; more are
    /// answered `Busy`.
    pub commits_max: usize,
    /// So many commits after one without an outcome, and the outcomes of others are confirmed without waiting for it: an
    /// origin keeps 65,536 that are not confirmed, and puts off what comes after them. To parents of a protocol version
    /// from 7 on. Default: 4096.
    pub open_after: u64,
    /// Bytes of such commits, from which on more are answered `Busy`.
    pub commit_bytes_max: usize,
    /// Bytes of commits under way on the link, from which on others wait. What a link may have to
    /// keep must be more by the longest commit (32 MiB, and 40 of reads), with several domains by three quarters of this too, and by
    /// what its stream needs.
    pub sent_bytes_max: usize,
    /// Refreshes of a domain without an answer: fewer than beats (64), or those would be forgotten before their echoes
    /// come. With so many the next one goes when one is answered, and stands for all that are wanted by then. At least 1. Default: 32.
    pub refreshes_max: usize,
    /// Most pages queued for prefetch; more are left out.
    pub prefetch_max: usize,
    /// Most pages that became stale here with others, of which is remembered with which: when a user comes back to one, the next of
    /// those are asked for ahead. 0: each is asked for when it is missed.
    pub companions_max: usize,
    /// Recent page changes kept for running transactions; one that has not looked at its reads
    /// for longer is doomed.
    pub recent_max: usize,
    /// Most changes kept for pages in flight, a domain; past it their detail is forgotten.
    pub kept_max: usize,
    /// Most eviction notices owed; past it they are dropped and the page list is sent anew.
    pub notices_max: usize,
    /// Most transactions running at once.
    pub transactions_max: usize,
    /// Bytes of older copies kept for snapshots that run.
    pub snapshot_bytes: usize,
    /// Bounds of what a domain keeps of own commits that its stream has not passed, for sessions that look ahead.
    pub ahead: VersionLimits,
    /// Time between two beats of a domain.
    pub beat_every: Duration,
    /// Without a sign from the parent for this long the link is closed.
    pub silence_max: Duration,
    /// The node is a member of a group of neighbours, if its parent is one's redirector.
    pub group: Option<MemberConfig>,
    /// Planted faults.
    pub faults: Faults,
}

impl CacheConfig {
    /// The usual bounds: 256 MiB, a beat a second, silence of ten.
    #[must_use]
    pub fn new(name: &str, boot: BootId, clock: Arc<dyn Clock + Send + Sync>) -> Self {
        Self {
            name: name.into(),
            boot,
            parents: 1,
            versions: Versions::SPOKEN,
            seed: boot.0 as u64,
            clock,
            memory_bytes: 256 << 20,
            policy: PolicyKind::S3Fifo,
            absences_max: 1 << 13,
            requests_max: 1 << 16,
            commits_max: 1 << 12,
            open_after: 1 << 12,
            commit_bytes_max: 256 << 20,
            sent_bytes_max: 64 << 20,
            refreshes_max: 32,
            prefetch_max: 1 << 14,
            companions_max: 1 << 14,
            recent_max: 1 << 14,
            kept_max: 1 << 14,
            notices_max: 1 << 14,
            transactions_max: 1 << 10,
            snapshot_bytes: 64 << 20,
            ahead: VersionLimits::default(),
            beat_every: Duration::from_secs(1),
            silence_max: Duration::from_secs(10),
            group: None,
            faults: Faults::NONE,
        }
    }
}
