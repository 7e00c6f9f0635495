//! The neighbours of a member, and what its redirector and they say of pages between them: all liars.

use super::carried;
use super::choices::{Choices, DOMAIN, VOLUME};
use larder_core::group::{GroupMessage, HelpEnd, Lack, Member};
use larder_core::id::{BootId, DomainId, LinkId, PageId, RequestId, Slot};
use larder_core::machine::{LinkInput, LinkOutput};
use larder_core::message::{Message, PageAnswer, PageBody, Role, Versions, certificate_of};
use std::collections::BTreeSet;

/// Links to neighbours have numbers from here.
const FIRST: u64 = 1 << 40;
/// Who they say that they are.
const NAMES: [(u128, &str); 3] = [(0, "alice/a"), (2, "alice/b"), (3, "bob/a")];

/// A fetch that was sent: its number, its domain, its pages.
pub(super) type Fetch = (RequestId, DomainId, Vec<PageId>);

fn life(c: &mut Choices<'_>) -> BootId {
    BootId(NAMES[c.below(NAMES.len())].0)
}

/// A member comes, and reaches everybody.
pub(super) fn joins() -> [Message; 2] {
    let members = (1..=4).map(BootId).collect();
    [GroupMessage::Join { address: "here".into() }, GroupMessage::Reach { members }]
        .map(Message::Group)
}

/// What a member says to its redirector.
pub(super) fn member_says(c: &mut Choices<'_>) -> Message {
    Message::Group(match c.below(7) {
        6 => GroupMessage::Complete { domain: c.domain(), pages: c.page_set() },
        0 => GroupMessage::Join { address: c.name() },
        1 | 2 => {
            let members: BTreeSet<BootId> = (0..c.below(4)).map(|_| c.boot(BootId(2))).collect();
            GroupMessage::Reach { members: members.into_iter().collect() }
        }
        _ => {
            let (request, domain, pages) = (RequestId(c.near(3)), c.domain(), c.page_set());
            let end = [HelpEnd::Came, HelpEnd::Lacked, HelpEnd::Late, HelpEnd::NotSent][c.below(4)];
            GroupMessage::Helped { request, domain, pages, end }
        }
    })
}

/// Who belongs to the group, most of them.
pub(super) fn members(c: &mut Choices<'_>) -> Message {
    let member = |(life, name): &(u128, &str)| Member {
        life: BootId(*life),
        name: (*name).into(),
        address: String::new(),
    };
    let members = NAMES.iter().filter(|_| !c.rarely(4)).map(member).collect();
    Message::Group(GroupMessage::Members { members })
}

/// What a redirector says of neighbours; `through`: where its stream is.
pub(super) fn redirector_says(c: &mut Choices<'_>, fetch: Option<Fetch>, through: u64) -> Message {
    let (request, domain, asked) = fetch.unwrap_or((RequestId(c.near(3)), DOMAIN, c.page_set()));
    let pages = if c.rarely(6) { c.page_set() } else { asked };
    Message::Group(match c.below(6) {
        5 => {
            let (id, stamp) = (c.commit_id(BootId(2), 3), c.stamp(5));
            GroupMessage::Update { domain, id, stamp, writes: c.writes() }
        }
        0 => return members(c),
        1 | 2 => {
            let (helper, holes) = (life(c), c.rarely(3));
            GroupMessage::Pointed { request, domain, pages, helper, holes }
        }
        _ => {
            let (asker, position) = (life(c), c.stamp(through));
            let (domain, mut pages) = (c.domain(), c.page_set());
            pages.retain(|page| page.volume == VOLUME || c.rarely(4));
            let holes = c.rarely(3);
            GroupMessage::Help { request, domain, pages, asker, position, holes }
        }
    })
}

/// Links to neighbours.
#[derive(Default)]
pub(super) struct Neighbours {
    links: Vec<LinkId>,
    opened: u64,
    /// Messages with pages that the member sent.
    pub(super) helped: u64,
}

impl Neighbours {
    /// Something that a neighbour does.
    pub(super) fn act(&mut self, c: &mut Choices<'_>, fetch: Option<Fetch>) -> Vec<LinkInput> {
        let Some(link) = c.pick(&self.links).filter(|_| self.links.len() >= 4 || !c.rarely(8))
        else {
            return self.open(c);
        };
        if c.rarely(16) {
            self.links.retain(|other| *other != link);
            return vec![LinkInput::Closed { link, reason: None }];
        }
        let (request, domain, pages) =
            fetch.unwrap_or((RequestId(c.near(3)), DOMAIN, c.page_set()));
        let message = match c.below(6) {
            0 => hello(c),
            1 => {
                let why = [Lack::Lacks, Lack::Waits, Lack::NotNow][c.below(3)];
                Message::Group(GroupMessage::Lacks { request, domain, pages, why })
            }
            _ => {
                let answer = |page: &PageId| {
                    let (version, as_of) = (c.stamp(3), c.stamp(5));
                    let body = match c.below(6) {
                        0 => PageBody::Absent,
                        1 => PageBody::Valid,
                        2 => PageBody::Holed(c.image(*page), vec![Slot(c.below(3) as u16)]),
                        _ => PageBody::Data(c.image(*page)),
                    };
                    PageAnswer { page: *page, version, as_of, body }
                };
                let pages = pages.iter().map(answer).collect();
                Message::Pages { request, domain, pages }
            }
        };
        received(link, &message).into_iter().collect()
    }

    /// One comes, and says who it is: else nothing that it says gets far.
    fn open(&mut self, c: &mut Choices<'_>) -> Vec<LinkInput> {
        if self.links.len() >= 4 {
            return Vec::new();
        }
        self.opened += 1;
        let link = LinkId(FIRST + self.opened);
        self.links.push(link);
        let hello = hello(c);
        let peer = match &hello {
            Message::Group(GroupMessage::Peer { name, .. }) if !c.rarely(8) => {
                certificate_of(name).into()
            }
            _ => c.name(),
        };
        let in_group = !c.rarely(24);
        let opened = match c.rarely(2) {
            true => LinkInput::DownOpened { link, peer, role: Role::Node, in_group },
            false => LinkInput::UpOpened { link, parent: 0, peer, in_group },
        };
        std::iter::once(opened).chain(received(link, &hello)).collect()
    }

    /// Whether it is open: what came on one that was closed meanwhile does not come.
    pub(super) fn holds(&self, link: LinkId) -> bool {
        self.links.contains(&link)
    }

    /// What the member does.
    pub(super) fn told(&mut self, output: &LinkOutput) {
        match output {
            LinkOutput::Send { link, message } => {
                assert!(self.holds(*link), "said to a neighbour whose link is closed");
                super::assert_carried(message);
                let group = matches!(
                    message,
                    Message::Group(GroupMessage::Peer { .. } | GroupMessage::Lacks { .. })
                );
                let pages = matches!(message, Message::Pages { .. });
                self.helped += u64::from(pages);
                assert!(group || pages, "a neighbour says {message:?}");
            }
            LinkOutput::Close { link, .. } => {
                assert!(self.holds(*link), "a link is closed that is not open");
                self.links.retain(|other| other != link);
            }
        }
    }
}

fn hello(c: &mut Choices<'_>) -> Message {
    let (life, name) = NAMES[c.below(NAMES.len())];
    let versions = if c.rarely(10) {
        Versions { oldest: 1, newest: c.near(4) as u32 }
    } else {
        Versions::SPOKEN
    };
    Message::Group(GroupMessage::Peer { versions, name: name.into(), life: BootId(life) })
}

fn received(link: LinkId, message: &Message) -> Option<LinkInput> {
    let (message, bytes) = carried(message)?;
    Some(LinkInput::Received { link, message, bytes })
}
