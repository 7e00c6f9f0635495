//! Messages about neighbours.

use super::WireError;
use super::head::{self, id_field, id_of, stamp_of};
use super::message::{Body, kind};
use super::packed::{self, Packed};
use super::reason::text;
use super::varint::Reader;
use crate::group::{ADDRESS_BYTES_MAX, GroupMessage, HelpEnd, Lack, MEMBERS_MAX, Member};
use crate::id::{BootId, CommitId, DomainId, PageId, RequestId};
use crate::message::{PAGES_PER_MESSAGE_MAX, Versions};
use bytes::Bytes;
use prost::Message as _;

/// Bytes of a life.
const LIFE_BYTES: u64 = 16;

pub(super) fn body(message: &GroupMessage) -> Body<'_> {
    match message {
        GroupMessage::Join { address } => {
            Body::plain(kind::JOIN, &head::Join { address: address.clone() })
        }
        GroupMessage::Reach { members } => {
            let members = members.iter().flat_map(|life| life.0.to_le_bytes());
            let head = head::Reach { members: members.collect::<Vec<u8>>().into() };
            Body::plain(kind::REACH, &head)
        }
        GroupMessage::Helped { request, domain, pages, end } => {
            let head = head::Transfer { end: end_number(*end), ..transfer(*request, *domain) };
            Body::with(kind::HELPED, &head, Packed::Pages(pages))
        }
        GroupMessage::Members { members } => {
            let head = head::Members { members: members.iter().map(member_field).collect() };
            Body::plain(kind::MEMBERS, &head)
        }
        GroupMessage::Pointed { request, domain, pages, helper, holes } => {
            let (neighbour, holes) = (id_field(helper.0), *holes);
            let head = head::Transfer { neighbour, holes, ..transfer(*request, *domain) };
            Body::with(kind::POINTED, &head, Packed::Pages(pages))
        }
        GroupMessage::Help { request, domain, pages, asker, position, holes } => {
            let (neighbour, position, holes) = (id_field(asker.0), position.0, *holes);
            let head = head::Transfer { neighbour, position, holes, ..transfer(*request, *domain) };
            Body::with(kind::HELP, &head, Packed::Pages(pages))
        }
        GroupMessage::Complete { domain, pages } => {
            let head = transfer(RequestId(0), *domain);
            Body::with(kind::COMPLETE, &head, Packed::Pages(pages))
        }
        GroupMessage::Acknowledged { domain, through } => {
            let head = transfer(RequestId(0), *domain);
            Body::plain(kind::ACKNOWLEDGED, &head::Transfer { position: through.0, ..head })
        }
        GroupMessage::Update { domain, id, stamp, writes } => {
            let (boot, sequence) = (id_field(id.boot.0), id.sequence);
            let (domain, stamp) = (domain.0, stamp.0);
            let head = head::Update { domain, boot, sequence, stamp, writes: Bytes::new() };
            Body::with(kind::UPDATE, &head, Packed::Writes(writes))
        }
        GroupMessage::Peer { versions, name, life } => {
            let head = head::Hello {
                min_version: versions.oldest,
                max_version: versions.newest,
                name: name.clone(),
                boot: id_field(life.0),
                role: 0,
            };
            Body::plain(kind::PEER, &head)
        }
        GroupMessage::Lacks { request, domain, pages, why } => {
            let end = match why {
                Lack::Lacks => 1,
                Lack::Waits => 2,
                Lack::NotNow => 3,
            };
            let head = head::Transfer { end, ..transfer(*request, *domain) };
            Body::with(kind::LACKS, &head, Packed::Pages(pages))
        }
    }
}

fn transfer(request: RequestId, domain: DomainId) -> head::Transfer {
    head::Transfer { request: request.0, domain: domain.0, ..head::Transfer::default() }
}

fn member_field(member: &Member) -> Bytes {
    let head = head::Member {
        life: id_field(member.life.0),
        name: member.name.clone(),
        address: member.address.clone(),
    };
    head.encode_to_vec().into()
}

pub(super) fn message(kind: u32, body: Bytes) -> Result<GroupMessage, WireError> {
    Ok(match kind {
        kind::JOIN => {
            let head: head::Join = head::read(body)?;
            GroupMessage::Join { address: address(head.address)? }
        }
        kind::REACH => GroupMessage::Reach { members: lives(head::read(body)?)? },
        kind::MEMBERS => {
            let head: head::Members = head::read(body)?;
            if head.members.len() > MEMBERS_MAX {
                return Err(WireError::Limit { what: "members", limit: MEMBERS_MAX });
            }
            let members = head.members.into_iter().map(member_of);
            GroupMessage::Members { members: members.collect::<Result<_, _>>()? }
        }
        kind::PEER => {
            let head: head::Hello = head::read(body)?;
            GroupMessage::Peer {
                versions: Versions { oldest: head.min_version, newest: head.max_version },
                name: text(head.name)?,
                life: BootId(id_of(&head.boot)?),
            }
        }
        kind::UPDATE => {
            let head: head::Update = head::read(body)?;
            let id = CommitId { boot: BootId(id_of(&head.boot)?), sequence: head.sequence };
            let stamp = stamp_of(head.stamp)?;
            let writes = packed::read_writes(head.writes)?;
            GroupMessage::Update { domain: DomainId(head.domain), id, stamp, writes }
        }
        _ => transfer_message(kind, head::read(body)?)?,
    })
}

/// Those that name pages of a fetch.
fn transfer_message(kind: u32, head: head::Transfer) -> Result<GroupMessage, WireError> {
    let (request, domain) = (RequestId(head.request), DomainId(head.domain));
    let pages: Vec<PageId> = packed::read_pages(head.pages, PAGES_PER_MESSAGE_MAX)?;
    let neighbour = |field: &[u8]| id_of(field).map(BootId);
    Ok(match kind {
        kind::HELPED => {
            let end = match head.end {
                1 => HelpEnd::Came,
                2 => HelpEnd::Lacked,
                3 => HelpEnd::Late,
                4 => HelpEnd::NotSent,
                _ => return Err(WireError::Malformed("no end of a transfer")),
            };
            GroupMessage::Helped { request, domain, pages, end }
        }
        kind::COMPLETE => GroupMessage::Complete { domain, pages },
        kind::ACKNOWLEDGED => {
            GroupMessage::Acknowledged { domain, through: stamp_of(head.position)? }
        }
        kind::POINTED => {
            let (helper, holes) = (neighbour(&head.neighbour)?, head.holes);
            GroupMessage::Pointed { request, domain, pages, helper, holes }
        }
        kind::HELP => {
            let (asker, position) = (neighbour(&head.neighbour)?, stamp_of(head.position)?);
            let holes = head.holes;
            GroupMessage::Help { request, domain, pages, asker, position, holes }
        }
        kind::LACKS => {
            let why = match head.end {
                1 => Lack::Lacks,
                2 => Lack::Waits,
                3 => Lack::NotNow,
                _ => return Err(WireError::Malformed("no reason why pages are not sent")),
            };
            GroupMessage::Lacks { request, domain, pages, why }
        }
        _ => return Err(WireError::UnknownKind(kind)),
    })
}

fn end_number(end: HelpEnd) -> u32 {
    match end {
        HelpEnd::Came => 1,
        HelpEnd::Lacked => 2,
        HelpEnd::Late => 3,
        HelpEnd::NotSent => 4,
    }
}

fn member_of(field: Bytes) -> Result<Member, WireError> {
    let head: head::Member = head::read(field)?;
    Ok(Member {
        life: BootId(id_of(&head.life)?),
        name: text(head.name)?,
        address: address(head.address)?,
    })
}

fn address(address: String) -> Result<String, WireError> {
    if address.len() > ADDRESS_BYTES_MAX {
        return Err(WireError::Limit { what: "bytes of an address", limit: ADDRESS_BYTES_MAX });
    }
    Ok(address)
}

fn lives(head: head::Reach) -> Result<Vec<BootId>, WireError> {
    if head.members.len() > MEMBERS_MAX * LIFE_BYTES as usize {
        return Err(WireError::Limit { what: "members", limit: MEMBERS_MAX });
    }
    let (mut reader, mut lives) = (Reader::new(head.members), Vec::new());
    while !reader.is_empty() {
        lives.push(BootId(id_of(&reader.take(LIFE_BYTES)?)?));
    }
    Ok(lives)
}
