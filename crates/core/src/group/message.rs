//! What members, their redirector, and neighbours say to each other (decision 0031). It travels
//! in the control lane, updates in the stream's; pages between neighbours are [`crate::message::Message::Pages`].

use crate::commit::Write;
use crate::id::{BootId, CommitId, DomainId, PageId, RequestId, Stamp};
use crate::message::{Lane, Message, PageAnswer, Versions};

/// The protocol version that brought groups.
pub const GROUPS_SINCE: u32 = 4;
/// The protocol version that brought copies with holes between neighbours.
pub const HOLES_SINCE: u32 = 7;
/// Most members of a group that are told of.
pub const MEMBERS_MAX: usize = 256;
/// Longest address of a member, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 256;

/// A member of a group, as its neighbours need it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Member {
    /// Its process. Of two neighbours the one with the higher life dials.
    pub life: BootId,
    /// Its name, as in its `Hello`.
    pub name: String,
    /// Where it listens for neighbours: of no meaning to the machines.
    pub address: String,
}

/// How a transfer between neighbours ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HelpEnd {
    /// The page is here, and complete.
    Came,
    /// The helper does not have it, or is not reached.
    Lacked,
    /// The helper said nothing for too long.
    Late,
    /// The helper cannot send it now, or is not reached. What it has is not known to be other.
    NotSent,
}

/// Why a helper does not send a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Lack {
    /// It does not have it, or not complete.
    Lacks,
    /// Its stream, or the page, is on its way to it: the page will be sent when that is there.
    Waits,
    /// It may have it, and cannot send it: its stream does not run, too many wait, or its copy is newer than
    /// the position that was named.
    NotNow,
}

/// A message about neighbours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum GroupMessage {
    // ---- member to redirector ----
    /// Neighbours reach it here, and it helps them. Said again when the address is another.
    Join {
        /// At most [`ADDRESS_BYTES_MAX`] bytes.
        address: String,
    },
    /// All neighbours to whom a link stands, by their lives: nobody else is pointed to. At most
    /// [`MEMBERS_MAX`].
    Reach {
        /// Ascending.
        members: Vec<BootId>,
    },
    /// A transfer between neighbours is over, for these pages. Said at every end of one: of pages that
    /// did not come before they are asked for anew.
    Helped {
        /// The fetch that was pointed.
        request: RequestId,
        /// Of which domain.
        domain: DomainId,
        /// Which pages of it.
        pages: Vec<PageId>,
        /// How it ended.
        end: HelpEnd,
    },
    /// Of these pages, which a list of what the member holds has just named, its copies are complete. Of
    /// others in the list they have holes, or are owed or on their way.
    Complete {
        /// Of which domain.
        domain: DomainId,
        /// Which pages of it.
        pages: Vec<PageId>,
    },
    /// The member has taken in all changes up to here. Said only under [`super::MemberConfig::ack`], for the
    /// experiments: nothing of Larder's own waits for it.
    Acknowledged {
        /// Of which domain.
        domain: DomainId,
        /// Its valid-through.
        through: Stamp,
    },

    // ---- redirector to member ----
    /// Who belongs to the group now, the member itself left out. At most [`MEMBERS_MAX`].
    Members {
        /// Ascending.
        members: Vec<Member>,
    },
    /// These pages of a fetch come from a neighbour. They count as answered here; what becomes of them
    /// is the asker's to see, who says so with `Helped`.
    Pointed {
        /// The asker's fetch.
        request: RequestId,
        /// Of which domain.
        domain: DomainId,
        /// Which pages of it.
        pages: Vec<PageId>,
        /// Who has them.
        helper: BootId,
        /// Copies with holes come too: the helper was told that they do. Of protocol version 7.
        holes: bool,
    },
    /// Send these pages to a neighbour. Names the redirector's position, and is answered when
    /// valid-through has reached it (rule 11).
    Help {
        /// The asker's fetch.
        request: RequestId,
        /// Of which domain.
        domain: DomainId,
        /// Which pages.
        pages: Vec<PageId>,
        /// Who wants them.
        asker: BootId,
        /// How far the redirector's stream was.
        position: Stamp,
        /// Copies with holes do as well. Not for an asker of a protocol version before 7, and heard by helpers from 7 on.
        holes: bool,
    },

    /// What a commit of a neighbour wrote to pages that the member is registered for; said before the
    /// advance that tells of its change, with which it is applied.
    Update {
        /// In which domain.
        domain: DomainId,
        /// The commit that the change names (rule 12).
        id: CommitId,
        /// The change's stamp.
        stamp: Stamp,
        /// In their order.
        writes: Vec<Write>,
    },

    // ---- between neighbours ----
    /// First message of a link between neighbours, both ways.
    Peer {
        /// Protocol versions spoken.
        versions: Versions,
        /// Who speaks, as in its `Hello`.
        name: String,
        /// Its process.
        life: BootId,
    },
    /// These pages of a `Help` are not to be had from the sender, or not yet.
    Lacks {
        /// The asker's fetch.
        request: RequestId,
        /// Of which domain.
        domain: DomainId,
        /// Which pages.
        pages: Vec<PageId>,
        /// Why, and whether they will come.
        why: Lack,
    },
}

/// Bytes of pages in one message to a neighbour, about: one page more may be in it. A helper that sends is not taken for
/// one that is late (`help_wait`), and what several askers wait for shares its card: a message of a mebibyte is 90 ms of
/// one of 100 Mb/s.
const HELP_BYTES: usize = 64 << 10;

/// The messages in which pages go to a neighbour that asked for them.
#[must_use]
pub fn messages(request: RequestId, domain: DomainId, answers: Vec<PageAnswer>) -> Vec<Message> {
    let (mut all, mut pages, mut bytes) = (Vec::new(), Vec::new(), 0);
    for answer in answers {
        if bytes >= HELP_BYTES {
            let pages = std::mem::take(&mut pages);
            all.push(Message::Pages { request, domain, pages });
            bytes = 0;
        }
        let image = answer.body.image().map_or(0, |image| image.len());
        bytes += image + size_of_val(answer.body.holes());
        pages.push(answer);
    }
    if !pages.is_empty() {
        all.push(Message::Pages { request, domain, pages });
    }
    all
}

/// Who sends a message about neighbours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sender {
    /// A member, to its redirector.
    Member,
    /// The redirector, to a member.
    Redirector,
    /// A member, to a neighbour.
    Neighbour,
}

impl GroupMessage {
    /// In which lane it travels: an update in that of the stream, before its change.
    #[must_use]
    pub fn lane(&self) -> Lane {
        match self {
            Self::Update { .. } => Lane::Stream,
            _ => Lane::Control,
        }
    }

    /// Who sends it.
    #[must_use]
    pub fn sender(&self) -> Sender {
        match self {
            Self::Join { .. }
            | Self::Reach { .. }
            | Self::Helped { .. }
            | Self::Complete { .. }
            | Self::Acknowledged { .. } => Sender::Member,
            Self::Members { .. }
            | Self::Pointed { .. }
            | Self::Help { .. }
            | Self::Update { .. } => Sender::Redirector,
            Self::Peer { .. } | Self::Lacks { .. } => Sender::Neighbour,
        }
    }
}
