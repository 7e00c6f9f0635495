//! Reasons and outcomes as codes with arguments. A reason or error whose code is not known, from a
//! later version, is kept as text: it says no less than that the link or request ended. An outcome
//! whose code is not known is refused.

use super::head::{Ending, Failure, Reason, id_field, id_of, stamp_of};
use super::rights::right;
use super::{TEXT_BYTES_MAX, WireError};
use crate::commit::{Abort, Aspect, LIMIT_NAMES, Outcome, Read, Target};
use crate::id::{DomainId, Generation, PageId, PageNo, Slot, Stamp, VolumeId};
use crate::message::{CloseReason, RequestError, Versions};
use crate::rights::Denied;

/// A text from outside, within its limit.
pub(super) fn text(text: String) -> Result<String, WireError> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(WireError::Limit { what: "bytes of text", limit: TEXT_BYTES_MAX });
    }
    Ok(text)
}

/// An explanation, cut to what may be sent.
fn cut(text: &str) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

pub(super) fn reason_head(reason: &CloseReason) -> Reason {
    let mut head = Reason::default();
    let (code, detail) = match reason {
        CloseReason::Version { parent, child } => {
            (head.min, head.max) = (parent.oldest, parent.newest);
            (head.child_min, head.child_max) = (child.oldest, child.newest);
            (1, "")
        }
        CloseReason::Protocol(detail) => (2, detail.as_str()),
        CloseReason::Malformed(detail) => (3, detail.as_str()),
        CloseReason::Limit(detail) => (4, detail.as_str()),
        CloseReason::Silent => (5, ""),
        CloseReason::Identity(detail) => (6, detail.as_str()),
        CloseReason::Forked { domain, seen, fork } => {
            (head.domain, head.seen, head.fork) = (domain.0, seen.0, fork.0);
            (7, "")
        }
        CloseReason::OutOfService(detail) => (8, detail.as_str()),
        CloseReason::Shutdown => (9, ""),
        CloseReason::Forbidden(detail) => (10, detail.as_str()),
    };
    head.code = code;
    head.text = cut(detail);
    head
}

pub(super) fn reason_of(head: Reason) -> Result<CloseReason, WireError> {
    let detail = text(head.text)?;
    Ok(match head.code {
        1 => CloseReason::Version {
            parent: Versions { oldest: head.min, newest: head.max },
            child: Versions { oldest: head.child_min, newest: head.child_max },
        },
        2 => CloseReason::Protocol(detail),
        3 => CloseReason::Malformed(detail),
        4 => CloseReason::Limit(detail),
        5 => CloseReason::Silent,
        6 => CloseReason::Identity(detail),
        7 => CloseReason::Forked {
            domain: DomainId(head.domain),
            seen: Stamp(head.seen),
            fork: Stamp(head.fork),
        },
        8 => CloseReason::OutOfService(detail),
        9 => CloseReason::Shutdown,
        10 => CloseReason::Forbidden(detail),
        code => CloseReason::OutOfService(format!("reason {code}: {detail}")),
    })
}

pub(super) fn failure_head(error: &RequestError) -> Failure {
    let mut head = Failure::default();
    let (code, detail) = match error {
        RequestError::NoVolume(detail) => (1, detail.as_str()),
        RequestError::NoDomain(domain) => {
            head.domain = domain.0;
            (2, "")
        }
        RequestError::Exists(detail) => (3, detail.as_str()),
        RequestError::Invalid(detail) => (4, detail.as_str()),
        RequestError::Damaged { page, detail } => {
            head.volume = id_field(page.volume.0);
            head.page = page.page.0;
            (5, detail.as_str())
        }
        RequestError::Unavailable(detail) => (6, detail.as_str()),
        RequestError::TimedOut => (7, ""),
        RequestError::Busy(detail) => (8, detail.as_str()),
        RequestError::Forbidden(detail) => (9, detail.as_str()),
        RequestError::Full(detail) => (10, detail.as_str()),
        RequestError::Deleted(detail) => (11, detail.as_str()),
        RequestError::Denied(denied) => {
            head.who = cut(&denied.who);
            (head.has, head.needs) = (denied.has.number(), denied.needs.number());
            (12, denied.volume.as_str())
        }
    };
    head.code = code;
    head.text = cut(detail);
    head
}

pub(super) fn failure_of(head: Failure) -> Result<RequestError, WireError> {
    let detail = text(head.text)?;
    Ok(match head.code {
        1 => RequestError::NoVolume(detail),
        2 => RequestError::NoDomain(DomainId(head.domain)),
        3 => RequestError::Exists(detail),
        4 => RequestError::Invalid(detail),
        5 => RequestError::Damaged {
            page: PageId { volume: VolumeId(id_of(&head.volume)?), page: PageNo(head.page) },
            detail,
        },
        6 => RequestError::Unavailable(detail),
        7 => RequestError::TimedOut,
        8 => RequestError::Busy(detail),
        9 => RequestError::Forbidden(detail),
        10 => RequestError::Full(detail),
        11 => RequestError::Deleted(detail),
        12 => RequestError::Denied(denied(detail, head.who, (head.has, head.needs))?),
        code => RequestError::Unavailable(format!("error {code}: {detail}")),
    })
}

fn denied(volume: String, who: String, (has, needs): (u32, u32)) -> Result<Box<Denied>, WireError> {
    let (has, needs) = (right(has.into())?, right(needs.into())?);
    Ok(Box::new(Denied { volume, who: text(who)?, has, needs }))
}

pub(super) fn ending_head(outcome: &Outcome) -> Ending {
    let mut head = Ending::default();
    let mut name = |page: &PageId| {
        head.volume = id_field(page.volume.0);
        head.page = page.page.0;
    };
    head.code = match outcome {
        Outcome::Committed(stamp) => {
            head.stamp = stamp.0;
            1
        }
        Outcome::Unknown => 2,
        Outcome::Aborted(Abort::Conflict(read)) => {
            name(&read.page);
            head.slot = match read.target {
                Target::Page => None,
                Target::Slot(slot) => Some(u32::from(slot.0)),
            };
            head.value = read.aspect == Aspect::Value;
            3
        }
        Outcome::Aborted(Abort::Gone { page, slot, generation }) => {
            name(page);
            head.slot = Some(u32::from(slot.0));
            head.generation = generation.0;
            4
        }
        Outcome::Aborted(Abort::BadPage(page)) => {
            name(page);
            5
        }
        Outcome::Aborted(Abort::PageFull(page)) => {
            name(page);
            6
        }
        Outcome::Aborted(Abort::BadWrite(page)) => {
            name(page);
            7
        }
        Outcome::Aborted(Abort::NoVolume(volume)) => {
            head.volume = id_field(volume.0);
            8
        }
        Outcome::Aborted(Abort::StaleNumber(page)) => {
            name(page);
            11
        }
        Outcome::Aborted(Abort::Lost(page)) => {
            name(page);
            12
        }
        Outcome::Aborted(Abort::Quota { volume, name, limit, used, more }) => {
            head.volume = id_field(volume.0);
            head.text = cut(name);
            (head.limit, head.used, head.more) = (*limit, *used, *more);
            13
        }
        Outcome::Aborted(Abort::Deleted(volume)) => {
            head.volume = id_field(volume.0);
            14
        }
        Outcome::Aborted(Abort::Denied(denied)) => {
            (head.text, head.who) = (cut(&denied.volume), cut(&denied.who));
            (head.has, head.needs) = (denied.has.number(), denied.needs.number());
            15
        }
        Outcome::Aborted(Abort::History) => 9,
        Outcome::Aborted(Abort::TooLarge(limit)) => {
            head.text = cut(limit);
            10
        }
    };
    head
}

pub(super) fn ending_of(head: Ending) -> Result<Outcome, WireError> {
    let volume = VolumeId(id_of(&head.volume)?);
    let page = PageId { volume, page: PageNo(head.page) };
    let slot = head
        .slot
        .map(|slot| u16::try_from(slot).map(Slot))
        .transpose()
        .map_err(|_| WireError::Malformed("no slot"))?;
    Ok(Outcome::Aborted(match head.code {
        1 => return Ok(Outcome::Committed(stamp_of(head.stamp)?)),
        2 => return Ok(Outcome::Unknown),
        3 => Abort::Conflict(Read {
            page,
            target: slot.map_or(Target::Page, Target::Slot),
            aspect: if head.value { Aspect::Value } else { Aspect::Existence },
        }),
        4 => Abort::Gone {
            page,
            slot: slot.ok_or(WireError::Malformed("a part is missing"))?,
            generation: Generation(head.generation),
        },
        5 => Abort::BadPage(page),
        6 => Abort::PageFull(page),
        7 => Abort::BadWrite(page),
        8 => Abort::NoVolume(volume),
        9 => Abort::History,
        10 => {
            let known = LIMIT_NAMES.into_iter().find(|name| *name == head.text);
            Abort::TooLarge(known.unwrap_or("a limit of the origin"))
        }
        11 => Abort::StaleNumber(page),
        12 => Abort::Lost(page),
        13 => Abort::Quota {
            volume,
            name: text(head.text)?,
            limit: head.limit,
            used: head.used,
            more: head.more,
        },
        14 => Abort::Deleted(volume),
        15 => Abort::Denied(denied(text(head.text)?, head.who, (head.has, head.needs))?),
        // Not to be guessed at: whether it committed decides what the user is told.
        _ => return Err(WireError::Malformed("an outcome of no known kind")),
    }))
}
