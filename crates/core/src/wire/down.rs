//! Messages from parent to child, and the farewell of either.

use super::WireError;
use super::head::{self, id_field, id_of, need, stamp_of};
use super::message::{Body, kind};
use super::packed::{self, Packed};
use super::reason::{
    ending_head, ending_of, failure_head, failure_of, reason_head, reason_of, text,
};
use super::rights;
use crate::commit::{IdRange, PageKind};
use crate::id::{BootId, CommitId, DomainId, HistoryId, PageNo, RequestId, VolumeId};
use crate::message::{
    DOMAINS_MAX, DomainInfo, Echo, LinkLimits, Message, NoBoot, PAGES_PER_MESSAGE_MAX,
    ResumeAnswer, TOUCHED_PER_ADVANCE_MAX, VOLUMES_PER_MESSAGE_MAX, VolumeInfo,
};
use crate::page::{PAGE_BYTES_MAX, PAGE_BYTES_MIN};
use crate::rights::{ADMINS_MAX, Access, Right};
use crate::time::{Duration, Instant, WallTime};
use bytes::Bytes;
use prost::Message as _;

pub(super) fn body(message: &Message) -> Body<'_> {
    match message {
        Message::Goodbye { reason } => {
            let head = head::Goodbye { reason: Some(reason_head(reason)) };
            Body::plain(kind::GOODBYE, &head)
        }
        Message::KeepAlive => Body::plain(kind::KEEP_ALIVE, &head::KeepAlive {}),
        Message::Welcome { version, name, time, limits, domains } => {
            let head = head::Welcome {
                version: *version,
                name: name.clone(),
                time: time.0,
                requests_max: limits.requests_max,
                stream_window_bytes: limits.stream_window_bytes,
                bulk_window_bytes: limits.bulk_window_bytes,
                lease_ns: nanos(limits.lease),
                domains: domains.iter().map(domain_field).collect(),
            };
            Body::plain(kind::WELCOME, &head)
        }
        Message::Registered { domain, boot } => {
            Body::plain(kind::REGISTERED, &boot_of(*domain, *boot, 0))
        }
        Message::Unregistered { domain, boot, why } => {
            let why = match why {
                NoBoot::Unknown => 1,
                NoBoot::Taken => 2,
            };
            Body::plain(kind::UNREGISTERED, &boot_of(*domain, *boot, why))
        }
        Message::Committed { domain, id, outcome, history } => {
            let mut head = committed(*domain, *id, Some(ending_head(outcome)), None);
            head.history = id_field(history.0);
            Body::plain(kind::COMMITTED, &head)
        }
        Message::CommitDeferred { domain, id, error, passed } => {
            let mut head = committed(*domain, *id, None, Some(failure_head(error)));
            head.not_passed = !passed;
            Body::plain(kind::COMMIT_DEFERRED, &head)
        }
        Message::Ids { request, history, range } => {
            let head = head::Range {
                request: request.0,
                volume: id_field(range.volume.0),
                first: range.first.0,
                count: range.count,
                history: id_field(history.0),
            };
            Body::plain(kind::IDS, &head)
        }
        Message::Volume { request, info } => {
            let head = head::Volume { request: request.0, info: Some(volume_head(info)) };
            Body::plain(kind::VOLUME, &head)
        }
        Message::VolumeDeleted { request, volume } => {
            Body::plain(kind::VOLUME_DELETED, &head::named_volume(*request, *volume))
        }
        Message::Volumes { request, volumes, more } => {
            let head = head::Volumes {
                request: request.0,
                volumes: volumes.iter().map(volume_field).collect(),
                more: *more,
            };
            Body::plain(kind::VOLUMES, &head)
        }
        Message::Rights { request, rights, access } => {
            let head = head::Rights {
                request: request.0,
                rights: rights::field(rights),
                default: access.default.number(),
                admins: rights::names_field(&access.admins),
            };
            Body::plain(kind::RIGHTS, &head)
        }
        Message::Failed { request, pages, error } => {
            let head = head::Failed {
                request: request.0,
                error: Some(failure_head(error)),
                pages: Bytes::new(),
            };
            Body::with(kind::FAILED, &head, Packed::Pages(pages))
        }
        _ => unreachable!("the caller sorts kinds"),
    }
}

fn boot_of(domain: DomainId, boot: BootId, upto: u64) -> head::BootOf {
    head::BootOf { domain: domain.0, boot: id_field(boot.0), upto, ..head::BootOf::default() }
}

/// Stream and pages.
pub(super) fn flow_body(message: &Message) -> Body<'_> {
    match message {
        Message::Resumed { request, domain, epochs, answer, stale, through, time, done } => {
            let head = head::Resumed {
                request: request.0,
                domain: domain.0,
                from: match answer {
                    ResumeAnswer::From(stamp) => Some(stamp.0),
                    ResumeAnswer::Reset => None,
                },
                through: through.0,
                time: time.0,
                done: *done,
                epochs: Bytes::new(),
                stale: Bytes::new(),
            };
            let lists = (Packed::Epochs(epochs), Packed::Pages(stale));
            Body::with_two(kind::RESUMED, &head, lists)
        }
        Message::Advance { domain, from, through, time, changes, stale, echo } => {
            let head = head::Advance {
                domain: domain.0,
                from: from.0,
                through: through.0,
                time: time.0,
                echo_sent: echo.map(|echo| echo.sent.0),
                echo_age_ns: echo.map_or(0, |echo| nanos(echo.age)),
                echo_by_clock: echo.is_some_and(|echo| echo.by_clock),
                changes: Bytes::new(),
                stale: Bytes::new(),
            };
            let lists = (Packed::Changes(changes), Packed::Pages(stale));
            Body::with_two(kind::ADVANCE, &head, lists)
        }
        Message::History { domain, epochs } => {
            let head = head::Domain { domain: domain.0, epochs: Bytes::new() };
            Body::with(kind::HISTORY, &head, Packed::Epochs(epochs))
        }
        Message::VolumeRights { domain, volume, rights } => {
            let head = head::VolumeRights {
                domain: domain.0,
                volume: id_field(volume.0),
                rights: rights::field(rights.list()),
            };
            Body::plain(kind::VOLUME_RIGHTS, &head)
        }
        Message::Pages { request, domain, pages } => {
            let head = head::Pages { request: request.0, domain: domain.0, answers: Bytes::new() };
            Body::with(kind::PAGES, &head, Packed::Answers(pages))
        }
        _ => unreachable!("the caller sorts kinds"),
    }
}

pub(super) fn message(kind: u32, body: Bytes) -> Result<Message, WireError> {
    Ok(match kind {
        kind::GOODBYE => {
            let head: head::Goodbye = head::read(body)?;
            Message::Goodbye { reason: reason_of(need(head.reason)?)? }
        }
        kind::KEEP_ALIVE => {
            let head::KeepAlive {} = head::read(body)?;
            Message::KeepAlive
        }
        kind::WELCOME => welcome_message(body)?,
        kind::REGISTERED => {
            let head: head::BootOf = head::read(body)?;
            Message::Registered { domain: DomainId(head.domain), boot: BootId(id_of(&head.boot)?) }
        }
        kind::UNREGISTERED => {
            let head: head::BootOf = head::read(body)?;
            Message::Unregistered {
                domain: DomainId(head.domain),
                boot: BootId(id_of(&head.boot)?),
                why: match head.upto {
                    1 => NoBoot::Unknown,
                    2 => NoBoot::Taken,
                    _ => return Err(WireError::Malformed("no reason for a boot")),
                },
            }
        }
        kind::COMMITTED | kind::COMMIT_DEFERRED => {
            let head: head::Committed = head::read(body)?;
            let domain = DomainId(head.domain);
            let id = CommitId { boot: BootId(id_of(&head.boot)?), sequence: head.sequence };
            if kind == kind::COMMITTED {
                let outcome = ending_of(need(head.outcome)?)?;
                let history = HistoryId(id_of(&head.history)?);
                Message::Committed { domain, id, outcome, history }
            } else {
                let error = failure_of(need(head.deferred)?)?;
                Message::CommitDeferred { domain, id, error, passed: !head.not_passed }
            }
        }
        kind::IDS => {
            let head: head::Range = head::read(body)?;
            let history = HistoryId(id_of(&head.history)?);
            Message::Ids { request: RequestId(head.request), history, range: range_of(&head)? }
        }
        kind::VOLUME => {
            let head: head::Volume = head::read(body)?;
            Message::Volume { request: RequestId(head.request), info: volume_of(need(head.info)?)? }
        }
        kind::VOLUME_DELETED => {
            let head: head::Range = head::read(body)?;
            Message::VolumeDeleted {
                request: RequestId(head.request),
                volume: VolumeId(id_of(&head.volume)?),
            }
        }
        kind::VOLUMES => {
            let head: head::Volumes = head::read(body)?;
            limited(head.volumes.len(), VOLUMES_PER_MESSAGE_MAX, "volumes")?;
            let volumes = head.volumes.into_iter().map(head::read);
            Message::Volumes {
                request: RequestId(head.request),
                volumes: volumes.map(|volume| volume_of(volume?)).collect::<Result<_, _>>()?,
                more: head.more,
            }
        }
        kind::RIGHTS => {
            let head: head::Rights = head::read(body)?;
            Message::Rights {
                request: RequestId(head.request),
                rights: rights::rights_of(head.rights)?,
                access: Access {
                    default: rights::right(head.default.into())?,
                    admins: rights::names_of(head.admins, ADMINS_MAX)?,
                },
            }
        }
        kind::FAILED => {
            let head: head::Failed = head::read(body)?;
            Message::Failed {
                request: RequestId(head.request),
                pages: packed::read_pages(head.pages, PAGES_PER_MESSAGE_MAX)?,
                error: failure_of(need(head.error)?)?,
            }
        }
        _ => return Err(WireError::UnknownKind(kind)),
    })
}

/// Stream and pages.
pub(super) fn flow_message(kind: u32, body: Bytes) -> Result<Message, WireError> {
    Ok(match kind {
        kind::RESUMED => {
            let head: head::Resumed = head::read(body)?;
            Message::Resumed {
                request: RequestId(head.request),
                domain: DomainId(head.domain),
                epochs: packed::read_epochs(head.epochs)?,
                answer: match head.from {
                    Some(from) => ResumeAnswer::From(stamp_of(from)?),
                    None => ResumeAnswer::Reset,
                },
                stale: packed::read_pages(head.stale, PAGES_PER_MESSAGE_MAX)?,
                through: stamp_of(head.through)?,
                time: WallTime(head.time),
                done: head.done,
            }
        }
        kind::ADVANCE => {
            let head: head::Advance = head::read(body)?;
            Message::Advance {
                domain: DomainId(head.domain),
                from: stamp_of(head.from)?,
                through: stamp_of(head.through)?,
                time: WallTime(head.time),
                changes: packed::read_changes(head.changes)?,
                stale: packed::read_pages(head.stale, TOUCHED_PER_ADVANCE_MAX)?,
                echo: head.echo_sent.map(|sent| Echo {
                    sent: Instant(sent),
                    age: Duration::from_nanos(head.echo_age_ns),
                    by_clock: head.echo_by_clock,
                }),
            }
        }
        kind::VOLUME_RIGHTS => {
            let head: head::VolumeRights = head::read(body)?;
            Message::VolumeRights {
                domain: DomainId(head.domain),
                volume: VolumeId(id_of(&head.volume)?),
                rights: rights::effective_of(head.rights)?,
            }
        }
        kind::HISTORY => {
            let DomainInfo { domain, epochs } = domain_of(body)?;
            Message::History { domain, epochs }
        }
        kind::PAGES => {
            let head: head::Pages = head::read(body)?;
            Message::Pages {
                request: RequestId(head.request),
                domain: DomainId(head.domain),
                pages: packed::read_answers(head.answers)?,
            }
        }
        _ => return Err(WireError::UnknownKind(kind)),
    })
}

fn welcome_message(body: Bytes) -> Result<Message, WireError> {
    let head: head::Welcome = head::read(body)?;
    limited(head.domains.len(), DOMAINS_MAX, "domains")?;
    Ok(Message::Welcome {
        version: head.version,
        name: text(head.name)?,
        time: WallTime(head.time),
        limits: LinkLimits {
            requests_max: head.requests_max,
            stream_window_bytes: head.stream_window_bytes,
            bulk_window_bytes: head.bulk_window_bytes,
            lease: Duration::from_nanos(head.lease_ns),
        },
        domains: head.domains.into_iter().map(domain_of).collect::<Result<_, _>>()?,
    })
}

fn limited(count: usize, limit: usize, what: &'static str) -> Result<(), WireError> {
    if count > limit { Err(WireError::Limit { what, limit }) } else { Ok(()) }
}

/// Nanoseconds; anything longer than 584 years is 584 years.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn committed(
    domain: DomainId,
    id: CommitId,
    outcome: Option<head::Ending>,
    deferred: Option<head::Failure>,
) -> head::Committed {
    head::Committed {
        domain: domain.0,
        boot: id_field(id.boot.0),
        sequence: id.sequence,
        outcome,
        deferred,
        history: Vec::new(),
        not_passed: false,
    }
}

fn range_of(head: &head::Range) -> Result<IdRange, WireError> {
    let end = head.first.checked_add(head.count);
    if head.first == 0 || end.is_none_or(|end| end > PageNo::LIMIT) {
        return Err(WireError::Malformed("no page numbers"));
    }
    Ok(IdRange {
        volume: VolumeId(id_of(&head.volume)?),
        first: PageNo(head.first),
        count: head.count,
    })
}

pub(super) fn domain_field(info: &DomainInfo) -> Bytes {
    let mut epochs = Vec::new();
    Packed::Epochs(&info.epochs).write(&mut epochs);
    let head = head::Domain { domain: info.domain.0, epochs: epochs.into() };
    head.encode_to_vec().into()
}

pub(super) fn domain_of(bytes: Bytes) -> Result<DomainInfo, WireError> {
    let head: head::Domain = head::read(bytes)?;
    Ok(DomainInfo { domain: DomainId(head.domain), epochs: packed::read_epochs(head.epochs)? })
}

fn volume_head(info: &VolumeInfo) -> head::VolumeHead {
    head::VolumeHead {
        id: id_field(info.id.0),
        domain: info.domain.0,
        name: info.name.clone(),
        page_bytes: info.page_bytes,
        raw_root: info.root == PageKind::Raw,
        version: info.version.0,
        pages: info.pages,
        next_page: 0,
        bytes: info.bytes,
        settings: Some(head::Settings { quota: info.quota, rights: Bytes::new() }),
        room: info.room,
        right: info.right.map(Right::number),
        given: Bytes::new(),
    }
}

fn volume_field(info: &VolumeInfo) -> Bytes {
    volume_head(info).encode_to_vec().into()
}

fn volume_of(head: head::VolumeHead) -> Result<VolumeInfo, WireError> {
    Ok(VolumeInfo {
        id: VolumeId(id_of(&head.id)?),
        domain: DomainId(head.domain),
        name: text(head.name)?,
        page_bytes: page_bytes(head.page_bytes)?,
        root: if head.raw_root { PageKind::Raw } else { PageKind::Slotted },
        version: stamp_of(head.version)?,
        pages: head.pages,
        bytes: head.bytes,
        quota: head.settings.and_then(|settings| settings.quota),
        room: head.room,
        right: head.right.map(|number| rights::right(number.into())).transpose()?,
    })
}

/// Pages are used with this size by whoever reads it: a size that is none is refused here.
pub(super) fn page_bytes(bytes: u32) -> Result<u32, WireError> {
    if bytes.is_power_of_two() && (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&bytes) {
        Ok(bytes)
    } else {
        Err(WireError::Malformed("no page size"))
    }
}
