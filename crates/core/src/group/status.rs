//! What a group tells operators: plain data.

use super::directory::Directory;
use super::{Member, updates::Updates};
use crate::id::LinkId;

/// A group, as its redirector knows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupStatus {
    /// Its members, by their links.
    pub members: Vec<MemberStatus>,
    /// Pages on their way between them.
    pub transfers: usize,
    /// Commits whose writes are kept for members, and bytes of those, about.
    pub updates: usize,
    /// See above.
    pub updates_bytes: usize,
}

/// A member, as its redirector knows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemberStatus {
    /// Who.
    pub member: Member,
    /// Its link to the redirector.
    pub link: LinkId,
    /// Neighbours that it reaches.
    pub reaches: usize,
    /// Pages that it is known to have complete, and the memory which that takes, about.
    pub pages: usize,
    /// See above.
    pub bytes: usize,
    /// Pages under way from it, and to it.
    pub helping: usize,
    /// See above.
    pub asking: usize,
    /// Pages for which it was chosen as a helper since it came.
    pub chosen: u64,
}

/// A group, as one of its members knows it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MembershipStatus {
    /// Where neighbours reach it; empty: not known yet.
    pub address: String,
    /// The parent is, or may be, the group's redirector: its certificate is of the group, and the link stands.
    pub redirector: bool,
    /// The other members, ascending.
    pub neighbours: Vec<NeighbourStatus>,
    /// Pages that are to come from them.
    pub asking: usize,
    /// Pages that they wait for here.
    pub helping: usize,
}

/// A neighbour.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NeighbourStatus {
    /// Who.
    pub member: Member,
    /// The link to it; none: it is not reached.
    pub link: Option<LinkId>,
}

impl GroupStatus {
    /// Of a directory, and what is kept of all domains' commits.
    pub(crate) fn new<'a>(
        directory: &Directory,
        updates: impl Iterator<Item = &'a Updates>,
    ) -> Self {
        let mut status = Self { transfers: directory.transfers(), ..Self::default() };
        status.members = directory.status();
        for (count, bytes) in updates.map(Updates::kept) {
            status.updates += count;
            status.updates_bytes += bytes;
        }
        status
    }
}
