//! Messages from child to parent.

use super::WireError;
use super::head::{self, id_field, id_of, stamp_of};
use super::message::{Body, decode, encode, kind, open as opened};
use super::open;
use super::packed::{self, Packed};
use super::parts;
use super::reason::text;
use super::rights;
use super::varint::{Reader, Sink};
use crate::commit::{COMMIT_WRITES_MAX, CommitRequest, Numbered, PartId};
use crate::id::{BootId, CommitId, DomainId, HistoryId, RequestId, VolumeId};
use crate::message::{
    Lane, Message, OPEN_MAX, PAGES_PER_MESSAGE_MAX, Role, VolumeChange, VolumeKey, VolumeSpec,
};
use crate::time::Instant;
use bytes::Bytes;

pub(super) fn body(message: &Message) -> Body<'_> {
    match message {
        Message::Hello { min_version, max_version, name, boot, role } => {
            let head = head::Hello {
                min_version: *min_version,
                max_version: *max_version,
                name: name.clone(),
                boot: id_field(boot.0),
                role: match role {
                    Role::Node => 1,
                    Role::Relay => 2,
                },
            };
            Body::plain(kind::HELLO, &head)
        }
        Message::Resume { request, domain, epochs, through } => {
            let head = head::Resume {
                request: request.0,
                domain: domain.0,
                through: through.map(|stamp| stamp.0),
                epochs: Bytes::new(),
            };
            Body::with(kind::RESUME, &head, Packed::Epochs(epochs))
        }
        Message::Register { domain, boot, name, life, fresh } => {
            let head = head::Register {
                domain: domain.0,
                boot: id_field(boot.0),
                name: name.clone(),
                life: id_field(life.0),
                fresh: *fresh,
            };
            Body::plain(kind::REGISTER, &head)
        }
        Message::Left { name } => Body::plain(kind::LEFT, &head::Left { name: name.clone() }),
        Message::Fetch { request, domain, pages, prefetch } => {
            let head = head::Fetch {
                request: request.0,
                domain: domain.0,
                prefetch: *prefetch,
                asks: Bytes::new(),
            };
            Body::with(kind::FETCH, &head, Packed::Asks(pages))
        }
        Message::Evicted { domain, pages } => {
            Body::with(kind::EVICTED, &held(*domain, false), Packed::Pages(pages))
        }
        Message::Holding { domain, pages, done } => {
            Body::with(kind::HOLDING, &held(*domain, *done), Packed::Pages(pages))
        }
        Message::Confirm { domain, boot, upto, open: left } => {
            let (boot, name) = (id_field(boot.0), String::new());
            let open = open::field(left);
            let head = head::BootOf { domain: domain.0, boot, upto: *upto, name, open };
            Body::plain(kind::CONFIRM, &head)
        }
        Message::Beat { domain, sent } => {
            let head = head::Beat { domain: domain.0, sent: sent.0 };
            Body::plain(kind::BEAT, &head)
        }
        Message::Refresh { domain, sent } => {
            let head = head::Beat { domain: domain.0, sent: sent.0 };
            Body::plain(kind::REFRESH, &head)
        }
        Message::Credit { lane, bytes } => {
            let head = head::Credit {
                lane: match lane {
                    Lane::Control => panic!("the control lane has no credits"),
                    Lane::Stream => 1,
                    Lane::Bulk => 2,
                },
                bytes: *bytes,
            };
            Body::plain(kind::CREDIT, &head)
        }
        Message::Commit { domain, commit } => commit_body(*domain, commit),
        _ => unreachable!("the caller sorts kinds"),
    }
}

fn held(domain: DomainId, done: bool) -> head::Held {
    head::Held { domain: domain.0, done, pages: Bytes::new() }
}

pub(super) fn commit_body(domain: DomainId, commit: &CommitRequest) -> Body<'_> {
    let across = commit.across.as_deref();
    let head = head::Commit {
        domain: domain.0,
        boot: id_field(commit.id.boot.0),
        sequence: commit.id.sequence,
        confirmed: commit.confirmed,
        history: id_field(commit.history.0),
        base: commit.base.0,
        numbers: numbers_field(&commit.numbers),
        parts: across.map_or_else(Vec::new, |across| parts::field(across.parts())),
        coordinator: across.map_or(0, |across| across.coordinator().domain.0),
        reads: Bytes::new(),
        writes: Bytes::new(),
    };
    let lists = (Packed::Reads(&commit.reads), Packed::Writes(&commit.writes));
    Body::with_two(kind::COMMIT, &head, lists)
}

/// History and count, one after another. Most commits make no page.
fn numbers_field(numbers: &[Numbered]) -> Vec<u8> {
    let mut field = Vec::new();
    for told in numbers {
        field.extend_from_slice(&told.history.0.to_le_bytes());
        field.varint(u64::from(told.pages));
    }
    field
}

fn numbers_of(field: Vec<u8>) -> Result<Vec<Numbered>, WireError> {
    let (mut reader, mut numbers, mut all) = (Reader::new(field.into()), Vec::new(), 0u64);
    while !reader.is_empty() {
        let history = HistoryId(id_of(&reader.take(16)?)?);
        let pages: u32 = reader.number()?;
        all += u64::from(pages);
        if pages == 0 || all > COMMIT_WRITES_MAX as u64 {
            return Err(WireError::Malformed("numbers of no page"));
        }
        numbers.push(Numbered { history, pages });
    }
    Ok(numbers)
}

pub(super) fn volume_body(message: &Message) -> Body<'_> {
    match message {
        Message::AllocateIds { request, volume, count } => {
            let head = head::Range {
                request: request.0,
                volume: id_field(volume.0),
                first: 0,
                count: *count,
                history: Vec::new(),
            };
            Body::plain(kind::ALLOCATE_IDS, &head)
        }
        Message::OpenVolume { request, key } => {
            let (name, id) = match key {
                VolumeKey::Name(name) => (Some(name.clone()), None),
                VolumeKey::Id(id) => (None, Some(id_field(id.0))),
            };
            let head = head::OpenVolume { request: request.0, name, id };
            Body::plain(kind::OPEN_VOLUME, &head)
        }
        Message::ListVolumes { request, after } => {
            let head = head::ListVolumes { request: request.0, after: after.clone() };
            Body::plain(kind::LIST_VOLUMES, &head)
        }
        Message::CreateVolume { request, spec } => {
            let head = head::CreateVolume {
                request: request.0,
                id: id_field(spec.id.0),
                name: spec.name.clone(),
                page_bytes: spec.page_bytes,
                domain: spec.domain.map(|domain| domain.0),
            };
            Body::plain(kind::CREATE_VOLUME, &head)
        }
        Message::ChangeVolume { request, volume, change } => {
            let mut head = head::ChangeVolume {
                request: request.0,
                volume: id_field(volume.0),
                ..head::ChangeVolume::default()
            };
            head.what = match change {
                VolumeChange::Quota(quota) => {
                    head.quota = *quota;
                    1
                }
                VolumeChange::Rights { edits, force } => {
                    head.edits = rights::edits_field(edits);
                    head.force = *force;
                    3
                }
            };
            Body::plain(kind::CHANGE_VOLUME, &head)
        }
        Message::DeleteVolume { request, volume } => {
            Body::plain(kind::DELETE_VOLUME, &head::named_volume(*request, *volume))
        }
        Message::AskRights { request, volume } => {
            let head = head::AskRights { request: request.0, volume: id_field(volume.0) };
            Body::plain(kind::ASK_RIGHTS, &head)
        }
        Message::For { name, message } => {
            let head = head::For { name: name.clone(), message: encode(message) };
            Body::plain(kind::FOR, &head)
        }
        _ => unreachable!("the caller sorts kinds"),
    }
}

pub(super) fn message(kind: u32, body: Bytes) -> Result<Message, WireError> {
    Ok(match kind {
        kind::HELLO => {
            let head: head::Hello = head::read(body)?;
            Message::Hello {
                min_version: head.min_version,
                max_version: head.max_version,
                name: text(head.name)?,
                boot: BootId(id_of(&head.boot)?),
                role: match head.role {
                    1 => Role::Node,
                    2 => Role::Relay,
                    _ => return Err(WireError::Malformed("no role")),
                },
            }
        }
        kind::RESUME => {
            let head: head::Resume = head::read(body)?;
            Message::Resume {
                request: RequestId(head.request),
                domain: DomainId(head.domain),
                epochs: packed::read_epochs(head.epochs)?,
                through: head.through.map(stamp_of).transpose()?,
            }
        }
        kind::REGISTER => {
            let head: head::Register = head::read(body)?;
            Message::Register {
                domain: DomainId(head.domain),
                boot: BootId(id_of(&head.boot)?),
                name: text(head.name)?,
                life: BootId(id_of(&head.life)?),
                fresh: head.fresh,
            }
        }
        kind::LEFT => {
            let head: head::Left = head::read(body)?;
            Message::Left { name: text(head.name)? }
        }
        kind::FETCH => {
            let head: head::Fetch = head::read(body)?;
            Message::Fetch {
                request: RequestId(head.request),
                domain: DomainId(head.domain),
                pages: packed::read_asks(head.asks)?,
                prefetch: head.prefetch,
            }
        }
        kind::EVICTED | kind::HOLDING => {
            let head: head::Held = head::read(body)?;
            let (domain, done) = (DomainId(head.domain), head.done);
            let pages = packed::read_pages(head.pages, PAGES_PER_MESSAGE_MAX)?;
            if kind == kind::EVICTED {
                Message::Evicted { domain, pages }
            } else {
                Message::Holding { domain, pages, done }
            }
        }
        kind::CONFIRM => {
            let head: head::BootOf = head::read(body)?;
            Message::Confirm {
                domain: DomainId(head.domain),
                boot: BootId(id_of(&head.boot)?),
                upto: head.upto,
                open: open::of(head.open, head.upto, OPEN_MAX)?,
            }
        }
        kind::BEAT => {
            let head: head::Beat = head::read(body)?;
            Message::Beat { domain: DomainId(head.domain), sent: Instant(head.sent) }
        }
        kind::REFRESH => {
            let head: head::Beat = head::read(body)?;
            Message::Refresh { domain: DomainId(head.domain), sent: Instant(head.sent) }
        }
        kind::CREDIT => {
            let head: head::Credit = head::read(body)?;
            Message::Credit {
                lane: match head.lane {
                    1 => Lane::Stream,
                    2 => Lane::Bulk,
                    _ => return Err(WireError::Malformed("no lane with credits")),
                },
                bytes: head.bytes,
            }
        }
        kind::COMMIT => commit_message(body)?,
        _ => return Err(WireError::UnknownKind(kind)),
    })
}

fn commit_message(body: Bytes) -> Result<Message, WireError> {
    let head: head::Commit = head::read(body)?;
    let domain = DomainId(head.domain);
    let id = CommitId { boot: BootId(id_of(&head.boot)?), sequence: head.sequence };
    Ok(Message::Commit {
        domain,
        commit: CommitRequest {
            id,
            confirmed: head.confirmed,
            history: HistoryId(id_of(&head.history)?),
            base: stamp_of(head.base)?,
            numbers: numbers_of(head.numbers)?,
            reads: packed::read_reads(head.reads)?,
            writes: packed::read_writes(head.writes)?,
            across: parts::across_of(head.parts, head.coordinator, PartId { domain, id })?,
        },
    })
}

pub(super) fn volume_message(kind: u32, body: Bytes) -> Result<Message, WireError> {
    Ok(match kind {
        kind::ALLOCATE_IDS => {
            let head: head::Range = head::read(body)?;
            Message::AllocateIds {
                request: RequestId(head.request),
                volume: VolumeId(id_of(&head.volume)?),
                count: head.count,
            }
        }
        kind::OPEN_VOLUME => {
            let head: head::OpenVolume = head::read(body)?;
            let key = match (head.name, head.id) {
                (Some(name), None) => VolumeKey::Name(text(name)?),
                (None, Some(id)) => VolumeKey::Id(VolumeId(id_of(&id)?)),
                _ => return Err(WireError::Malformed("neither a name nor an id")),
            };
            Message::OpenVolume { request: RequestId(head.request), key }
        }
        kind::LIST_VOLUMES => {
            let head: head::ListVolumes = head::read(body)?;
            Message::ListVolumes { request: RequestId(head.request), after: text(head.after)? }
        }
        kind::CREATE_VOLUME => {
            let head: head::CreateVolume = head::read(body)?;
            Message::CreateVolume {
                request: RequestId(head.request),
                spec: VolumeSpec {
                    id: VolumeId(id_of(&head.id)?),
                    name: text(head.name)?,
                    page_bytes: head.page_bytes,
                    domain: head.domain.map(DomainId),
                },
            }
        }
        kind::DELETE_VOLUME => {
            let head: head::Range = head::read(body)?;
            Message::DeleteVolume {
                request: RequestId(head.request),
                volume: VolumeId(id_of(&head.volume)?),
            }
        }
        kind::CHANGE_VOLUME => {
            let head: head::ChangeVolume = head::read(body)?;
            Message::ChangeVolume {
                request: RequestId(head.request),
                volume: VolumeId(id_of(&head.volume)?),
                change: match head.what {
                    1 => VolumeChange::Quota(head.quota),
                    3 => VolumeChange::Rights {
                        edits: rights::edits_of(head.edits)?,
                        force: head.force,
                    },
                    _ => return Err(WireError::Malformed("no change of a volume")),
                },
            }
        }
        kind::ASK_RIGHTS => {
            let head: head::AskRights = head::read(body)?;
            Message::AskRights {
                request: RequestId(head.request),
                volume: VolumeId(id_of(&head.volume)?),
            }
        }
        kind::FOR => for_message(head::read(body)?)?,
        _ => return Err(WireError::UnknownKind(kind)),
    })
}

/// What a relay asks for somebody below. Only what is counted as a request: so never another of its
/// kind, which would nest without end.
fn for_message(head: head::For) -> Result<Message, WireError> {
    let (inner, _) = opened(head.message.clone())?;
    let message = if inner == kind::FOR { None } else { decode(Lane::Control, head.message)? };
    let message = message.filter(Message::is_for_somebody);
    let message = Box::new(message.ok_or(WireError::Malformed("no request for somebody"))?);
    Ok(Message::For { name: text(head.name)?, message })
}
