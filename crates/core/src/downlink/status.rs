//! What a parent tells operators of its children and of its directory: plain data.

use super::follower::Phase;
use super::{Downlinks, Registration};
use crate::id::{DomainId, LinkId, Stamp};
use crate::message::Role;
use crate::time::Instant;

/// What is shown to operators of an origin or a relay.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ParentStatus {
    /// Its domains, ascending.
    pub domains: Vec<DomainStatus>,
    /// Its links to children, ascending.
    pub children: Vec<ChildStatus>,
}

/// A domain, as a parent serves it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DomainStatus {
    /// Which.
    pub domain: DomainId,
    /// Whether it is served now.
    pub open: bool,
    /// The last stamp that may be shown.
    pub stamp: Stamp,
    /// What the directory of this domain takes, over all children.
    pub directory: Directory,
    /// Volumes that were deleted and of which pages are still to be removed.
    pub removing_volumes: u64,
    /// Those pages, about.
    pub removing_pages: u64,
    /// What it takes in memory beside the directory; none: at a relay.
    pub memory: Option<DomainMemory>,
    /// The domain that decides a transaction over several, of which a part is ready here, and since when: what that
    /// has read and will write is barred meanwhile.
    pub in_doubt: Option<(DomainId, Instant)>,
}

/// What a domain takes in its machine's memory, in bytes, about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DomainMemory {
    /// Pages that are in the page engine as they are here.
    pub clean: usize,
    /// Pages with changes that are not installed yet.
    pub uninstalled: usize,
    /// The ring of recent commits.
    pub recent: usize,
}

/// What is registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Directory {
    /// Children registered for everything: they cost nothing.
    pub whole: usize,
    /// Pages registered one by one, each as often as it is registered.
    pub pages: usize,
    /// Memory that these take, about.
    pub bytes: usize,
}

/// A link to a child.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChildStatus {
    /// Which.
    pub link: LinkId,
    /// The child's name; until it has said one, its certificate's.
    pub name: String,
    /// What it is; none: it has not said.
    pub role: Option<Role>,
    /// When something last came from it.
    pub heard: Instant,
    /// Requests and pages without an answer.
    pub unanswered: u32,
    /// The domains it follows, ascending.
    pub domains: Vec<FollowerStatus>,
}

/// Where a child stands in a domain's stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FollowerStatus {
    /// Which domain.
    pub domain: DomainId,
    /// Everything up to it has been sent.
    pub cursor: Stamp,
    /// Whether advances are sent: else a resume is being answered.
    pub streaming: bool,
    /// What is registered for it.
    pub directory: Directory,
}

impl Registration {
    fn status(&self) -> Directory {
        match self.pages() {
            None => Directory { whole: 1, ..Directory::default() },
            Some(pages) => Directory { whole: 0, pages: pages.len(), bytes: pages.bytes() },
        }
    }
}

impl Directory {
    fn add(&mut self, other: Self) {
        self.whole += other.whole;
        self.pages += other.pages;
        self.bytes += other.bytes;
    }
}

impl Downlinks {
    /// All links and the directory, with what the parent says of its domains: which, whether it is
    /// served, and the last stamp that may be shown.
    pub(crate) fn status(
        &self,
        domains: impl Iterator<Item = (DomainId, bool, Stamp)>,
    ) -> ParentStatus {
        let children: Vec<_> = self
            .iter()
            .map(|(id, link)| ChildStatus {
                link: id,
                name: link.named().map_or_else(|| link.peer.clone(), |child| child.name.clone()),
                role: link.named().map(|child| child.role),
                heard: link.heard,
                unanswered: link.unanswered,
                domains: link
                    .followers
                    .iter()
                    .map(|(domain, follower)| FollowerStatus {
                        domain: *domain,
                        cursor: follower.cursor,
                        streaming: matches!(follower.phase, Phase::Streaming),
                        directory: follower.registration.status(),
                    })
                    .collect(),
            })
            .collect();
        let domains = domains.map(|(domain, open, stamp)| {
            let mut directory = Directory::default();
            let followed = children.iter().flat_map(|child| &child.domains);
            followed.filter(|f| f.domain == domain).for_each(|f| directory.add(f.directory));
            DomainStatus {
                domain,
                open,
                stamp,
                directory,
                removing_volumes: 0,
                removing_pages: 0,
                memory: None,
                in_doubt: None,
            }
        });
        ParentStatus { domains: domains.collect(), children }
    }
}
