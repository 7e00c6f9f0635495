//! Bounds of a group: of its redirector, and of its members.

use crate::time::Duration;

/// Bounds of a group's redirector.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupConfig {
    /// Memory of one member's part of the directory, a domain, about. Past it that part is forgotten:
    /// its pages come from above until they are fetched anew. Default: 16 MiB.
    pub directory_bytes_max: usize,
    /// Pages under way from one helper at a time, over all who ask; more come from above. Default: 512.
    pub helping_max: usize,
    /// Pages that one member awaits from neighbours at a time; more come from above. Default: 4096.
    pub asking_max: usize,
    /// A helper from which nothing came in time is not pointed to for so long. Default: 1 s.
    pub rest: Duration,
    /// Members are told of each other at most so often. Who links anew within it has never been away for
    /// them. Default: 200 ms.
    pub members_every: Duration,
    /// Bytes of a commit's writes, about, up to which they go to neighbours with its change; with more they
    /// are told which pages changed. Default: 64 KiB.
    pub update_bytes_max: usize,
    /// Bytes of writes kept of a domain's commits, about, until all members are past them; those that find no
    /// room are as if they were too long. Default: 16 MiB.
    pub updates_bytes_max: usize,
    /// A transfer of which its asker says nothing for so long is taken for one that is over: the
    /// redirector sends no notice for the page meanwhile (rule 7). Default: 60 s.
    pub transfer_max: Duration,
    /// A page that nobody has complete, and that somebody has with holes, is had from there by who has no copy of it; what he
    /// misses then comes from above. Default: no, neighbours send complete copies.
    pub holes: bool,
    /// For experiments: a commit of a member counts as of the state that every member has acknowledged that may
    /// hold a page of which it read (group acknowledgement, BuddyCache, section 3.3), so that a slow one has
    /// others' transactions aborted. Default: no, each commit stands for itself (solo commit).
    pub ack: bool,
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self {
            directory_bytes_max: 16 << 20,
            helping_max: 512,
            asking_max: 4096,
            rest: Duration::from_secs(1),
            members_every: Duration::from_millis(200),
            update_bytes_max: 64 << 10,
            updates_bytes_max: 16 << 20,
            transfer_max: Duration::from_secs(60),
            holes: false,
            ack: false,
        }
    }
}

/// What a member of a group needs beside a cache's other settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberConfig {
    /// Where neighbours reach it: of no meaning to the machines. Empty: not known yet.
    pub address: String,
    /// A neighbour that was to send a page, and says nothing for so long, is late: the page is asked for
    /// anew. Default: 100 ms.
    pub help_wait: Duration,
    /// The same, once it said that the page is on its way to itself. Default: 5 s.
    pub help_wait_long: Duration,
    /// Pages of neighbours' misses that wait here until they can be sent; with more the helper cannot
    /// help. Default: 1024.
    pub helps_max: usize,
    /// Time between two attempts to link to a neighbour, and for a link to be greeted; attempts whose links do
    /// not stand come less and less often. Default: 1 s.
    pub redial: Duration,
    /// When the redirector is another one, links to neighbours that it has not named yet are kept for so
    /// long. Default: 2 s.
    pub regroup: Duration,
    /// For experiments: the redirector is told how far this member's stream is ([`GroupConfig::ack`]).
    /// Default: no.
    pub ack: bool,
}

impl Default for MemberConfig {
    fn default() -> Self {
        Self {
            address: String::new(),
            help_wait: Duration::from_millis(100),
            help_wait_long: Duration::from_secs(5),
            helps_max: 1024,
            redial: Duration::from_secs(1),
            regroup: Duration::from_secs(2),
            ack: false,
        }
    }
}
