//! What a relay has asked of its parent, under request ids of its own (rule 6).

use super::search::Search;
use crate::id::{DomainId, LinkId, PageId, RequestId, Stamp};
use crate::message::{Epoch, Message, PageAsk, VolumeKey};
use crate::time::Instant;

/// A request to a parent.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) what: What,
    /// Which of them.
    pub(super) parent: usize,
    /// What others answered, of a question about volumes that nobody is known to have.
    pub(super) search: Search,
    /// Who is to be answered; none: nobody waits any more, but the parent has not answered.
    pub(super) asker: Option<(LinkId, RequestId)>,
    /// For whom it is asked: the name of a node below; none: for this relay itself.
    pub(super) of: Option<String>,
    /// It was sent on the link that is up now.
    pub(super) sent: bool,
    /// On that or an earlier one: its limit counts from then on.
    pub(super) ever_sent: bool,
    pub(super) deadline: Instant,
}

impl Pending {
    /// The relay's own resume of a domain; nothing ends it but the link.
    pub(super) fn own(parent: usize, domain: DomainId, now: Instant) -> Self {
        Self {
            what: What::Own { domain, gathered: Gathered::default() },
            parent,
            search: Search::default(),
            asker: None,
            of: None,
            sent: false,
            ever_sent: false,
            deadline: now,
        }
    }

    /// Another request of the same child, not sent yet.
    pub(super) fn with(&self, what: What) -> Self {
        let (parent, search) = (self.parent, Search::default());
        let (asker, of, deadline) = (self.asker, self.of.clone(), self.deadline);
        let ever_sent = self.ever_sent;
        Self { what, parent, search, asker, of, sent: false, ever_sent, deadline }
    }
}

/// What was asked.
#[derive(Debug)]
pub(super) enum What {
    /// Pages not yet answered, each with the credit reserved for it.
    Fetch { domain: DomainId, pages: Vec<(PageAsk, i64)>, prefetch: bool },
    /// The relay's own stream.
    Own { domain: DomainId, gathered: Gathered },
    /// A child's copies (its first resume, one through it, or its cursor fell off the ring).
    Child { domain: DomainId, epochs: Vec<Epoch>, through: Stamp, fallen: bool, gathered: Gathered },
    /// A message about ids or volumes, to be sent with an id of the relay's own.
    Other(Message),
}

/// Stale pages gathered from the parts of an answer; bounded.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    pub(super) pages: Vec<PageId>,
    /// There were more than the bound.
    pub(super) over: bool,
}

impl Gathered {
    pub(super) fn add(&mut self, pages: Vec<PageId>, pages_max: usize) {
        if self.over || self.pages.len() + pages.len() > pages_max {
            self.over = true;
            self.pages = Vec::new();
        } else {
            self.pages.extend(pages);
        }
    }
}

impl What {
    /// The domain whose stream must run before it is sent.
    pub(super) fn domain(&self) -> Option<DomainId> {
        match self {
            Self::Fetch { domain, .. } | Self::Child { domain, .. } => Some(*domain),
            Self::Own { .. } | Self::Other(_) => None,
        }
    }

    /// How many requests it counts for at the parent.
    pub(super) fn count(&self) -> u32 {
        match self {
            Self::Fetch { pages, .. } => u32::try_from(pages.len()).expect("at most a message's"),
            _ => 1,
        }
    }

    /// Leaves so many pages in a fetch, and takes out the rest.
    pub(super) fn split_off(&mut self, count: u32) -> Option<Self> {
        let Self::Fetch { domain, pages, prefetch } = self else { return None };
        let count = count as usize;
        if pages.len() <= count {
            return None;
        }
        let rest = pages.split_off(count);
        Some(Self::Fetch { domain: *domain, pages: rest, prefetch: *prefetch })
    }

    /// Whether a message about ids or volumes answers it.
    /// It is about what was asked about: whoever asked would part with this relay for another answer.
    pub(super) fn is_answered_by(&self, answer: &Message) -> bool {
        let Self::Other(asked) = self else { return false };
        match (asked, answer) {
            (Message::AllocateIds { volume, count, .. }, Message::Ids { range, .. }) => {
                (range.volume, range.count) == (*volume, *count)
            }
            (Message::DeleteVolume { volume, .. }, Message::VolumeDeleted { volume: of, .. }) => {
                volume == of
            }
            (Message::CopyPages { ask, .. }, Message::Copied { answer, .. }) => {
                answer.pages.iter().all(|answer| answer.page.volume == ask.volume)
            }
            (
                Message::OpenVolume { key: VolumeKey::Id(volume), .. }
                | Message::ChangeVolume { volume, .. },
                Message::Volume { info, .. },
            ) => info.id == *volume,
            (Message::CreateVolume { spec, .. }, Message::Volume { info, .. }) => {
                info.id == spec.id
            }
            (Message::OpenVolume { .. }, Message::Volume { .. })
            | (Message::ListVolumes { .. }, Message::Volumes { .. })
            | (Message::AskRights { .. }, Message::Rights { .. }) => true,
            _ => false,
        }
    }

    /// The message that asks, under `request`.
    pub(super) fn message(&self, request: RequestId, line: &[Epoch]) -> Message {
        match self {
            Self::Fetch { domain, pages, prefetch } => Message::Fetch {
                request,
                domain: *domain,
                pages: pages.iter().map(|(ask, _)| *ask).collect(),
                prefetch: *prefetch,
            },
            Self::Own { domain, .. } => {
                Message::Resume { request, domain: *domain, epochs: line.to_vec(), through: None }
            }
            Self::Child { domain, epochs, through, .. } => Message::Resume {
                request,
                domain: *domain,
                epochs: epochs.clone(),
                through: Some(*through),
            },
            Self::Other(message) => renumbered(message.clone(), request),
        }
    }
}

/// The same message under another request id.
pub(super) fn renumbered(mut message: Message, to: RequestId) -> Message {
    match &mut message {
        Message::AllocateIds { request, .. }
        | Message::OpenVolume { request, .. }
        | Message::ListVolumes { request, .. }
        | Message::CreateVolume { request, .. }
        | Message::ChangeVolume { request, .. }
        | Message::DeleteVolume { request, .. }
        | Message::VolumeDeleted { request, .. }
        | Message::AskRights { request, .. }
        | Message::Rights { request, .. }
        | Message::CopyPages { request, .. }
        | Message::Copied { request, .. }
        | Message::Ids { request, .. }
        | Message::Volume { request, .. }
        | Message::Volumes { request, .. } => *request = to,
        other => unreachable!("{other:?} is not passed on by number"),
    }
    message
}
