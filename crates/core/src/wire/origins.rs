//! Messages between origins.

use super::WireError;
use super::down::{domain_field, domain_of};
use super::head::{self, id_field, id_of, stamp_of};
use super::message::{Body, kind};
use super::parts::attempt_of;
use super::reason::{ending_head, ending_of, failure_head, failure_of, text};
use crate::across::{Between, Ended, OriginMessage, Vote};
use crate::commit::{Abort, Outcome, PartId};
use crate::id::{Attempt, BootId, CommitId, DomainId};
use crate::message::{DOMAINS_MAX, Versions};
use bytes::Bytes;

pub(super) fn body(message: &OriginMessage) -> Body<'_> {
    match message {
        OriginMessage::Greets { versions, name, accept_fork } => {
            let head = head::Greets {
                min_version: versions.oldest,
                max_version: versions.newest,
                name: name.clone(),
                accept_fork: *accept_fork,
            };
            Body::plain(kind::GREETS, &head)
        }
        OriginMessage::Serves { domains } => {
            let domains = domains.iter().map(domain_field).collect();
            Body::plain(kind::SERVES, &head::Serves { domains })
        }
        OriginMessage::Says { from, to, through, between } => {
            let head = head::Says { from: from.0, to: to.0, through: through.0, ..said(between) };
            Body::plain(kind::SAYS, &head)
        }
    }
}

pub(super) fn message(kind: u32, body: Bytes) -> Result<OriginMessage, WireError> {
    Ok(match kind {
        kind::GREETS => {
            let head: head::Greets = head::read(body)?;
            let versions = Versions { oldest: head.min_version, newest: head.max_version };
            let accept_fork = head.accept_fork;
            OriginMessage::Greets { versions, name: text(head.name)?, accept_fork }
        }
        kind::SERVES => {
            let head: head::Serves = head::read(body)?;
            if head.domains.len() > DOMAINS_MAX {
                return Err(WireError::Limit { what: "domains", limit: DOMAINS_MAX });
            }
            let domains = head.domains.into_iter().map(domain_of).collect::<Result<Vec<_>, _>>()?;
            if !domains.is_sorted_by(|before, after| before.domain < after.domain) {
                return Err(WireError::Malformed("domains out of order"));
            }
            OriginMessage::Serves { domains }
        }
        kind::SAYS => {
            let head: head::Says = head::read(body)?;
            let (from, to) = (DomainId(head.from), DomainId(head.to));
            let through = stamp_of(head.through)?;
            OriginMessage::Says { from, to, through, between: between_of(head)? }
        }
        _ => return Err(WireError::UnknownKind(kind)),
    })
}

fn of_attempt(what: u32, attempt: &Attempt) -> head::Says {
    let (history, number) = (id_field(attempt.history.0), attempt.number);
    head::Says { what, history, number, ..head::Says::default() }
}

fn of_parts(what: u32, coordinator: &CommitId, part: &CommitId) -> head::Says {
    head::Says {
        what,
        coordinator: Some(commit_head(coordinator)),
        part: Some(commit_head(part)),
        ..head::Says::default()
    }
}

fn said(between: &Between) -> head::Says {
    match between {
        Between::Await { coordinator, part } => of_parts(1, coordinator, part),
        Between::Arrived { coordinator, part, name } => {
            head::Says { name: name.clone(), ..of_parts(2, coordinator, part) }
        }
        Between::Ended { coordinator, part, ended } => {
            let head = of_parts(3, coordinator, part);
            match ended {
                Ended::Refused(abort) => head::Says { refused: Some(refused(abort)), ..head },
                Ended::Later(error) => head::Says { later: Some(failure_head(error)), ..head },
                Ended::Unknown => head,
            }
        }
        Between::Prepare { attempt, coordinator, part } => head::Says {
            domain: coordinator.domain.0,
            coordinator: Some(commit_head(&coordinator.id)),
            part: Some(commit_head(part)),
            ..of_attempt(4, attempt)
        },
        Between::Vote { attempt, vote } => {
            let head = of_attempt(5, attempt);
            match vote {
                Vote::Ready => head::Says { ready: true, ..head },
                Vote::Refused(abort) => head::Says { refused: Some(refused(abort)), ..head },
                Vote::Later(error) => head::Says { later: Some(failure_head(error)), ..head },
                Vote::Absent => head,
            }
        }
        Between::Decide { attempt } => of_attempt(6, attempt),
        Between::Release { attempt } => of_attempt(7, attempt),
        Between::Ask { attempt } => of_attempt(8, attempt),
        Between::Followed { attempt } => of_attempt(9, attempt),
    }
}

fn between_of(mut head: head::Says) -> Result<Between, WireError> {
    let (what, ready) = (head.what, head.ready);
    let refused = head.refused.take().map(abort_of).transpose()?;
    let later = head.later.take().map(failure_of).transpose()?;
    if usize::from(ready) + usize::from(refused.is_some()) + usize::from(later.is_some()) > 1 {
        return Err(WireError::Malformed("several answers in one"));
    }
    let attempt = || attempt_of(&head.history, head.number);
    let coordinator = || commit_of(head.coordinator.as_ref());
    let part = || commit_of(head.part.as_ref());
    Ok(match what {
        1 => Between::Await { coordinator: coordinator()?, part: part()? },
        2 => {
            let (coordinator, part) = (coordinator()?, part()?);
            Between::Arrived { coordinator, part, name: text(head.name)? }
        }
        3 => {
            let ended = match (refused, later) {
                (Some(abort), _) => Ended::Refused(abort),
                (None, Some(error)) => Ended::Later(error),
                (None, None) => Ended::Unknown,
            };
            Between::Ended { coordinator: coordinator()?, part: part()?, ended }
        }
        4 => {
            let decides = PartId { domain: DomainId(head.domain), id: coordinator()? };
            Between::Prepare { attempt: attempt()?, coordinator: decides, part: part()? }
        }
        5 => {
            let vote = match (ready, refused, later) {
                (true, ..) => Vote::Ready,
                (false, Some(abort), _) => Vote::Refused(abort),
                (false, None, Some(error)) => Vote::Later(error),
                (false, None, None) => Vote::Absent,
            };
            Between::Vote { attempt: attempt()?, vote }
        }
        6 => Between::Decide { attempt: attempt()? },
        7 => Between::Release { attempt: attempt()? },
        8 => Between::Ask { attempt: attempt()? },
        9 => Between::Followed { attempt: attempt()? },
        _ => return Err(WireError::Malformed("nothing that domains say to each other")),
    })
}

fn refused(abort: &Abort) -> head::Ending {
    ending_head(&Outcome::Aborted(abort.clone()))
}

fn abort_of(head: head::Ending) -> Result<Abort, WireError> {
    match ending_of(head)? {
        Outcome::Aborted(abort) => Ok(abort),
        Outcome::Committed(_) | Outcome::Unknown => Err(WireError::Malformed("no refusal")),
    }
}

fn commit_head(id: &CommitId) -> head::CommitName {
    head::CommitName { boot: id_field(id.boot.0), sequence: id.sequence }
}

fn commit_of(head: Option<&head::CommitName>) -> Result<CommitId, WireError> {
    let head = head.ok_or(WireError::Malformed("a part is missing"))?;
    Ok(CommitId { boot: BootId(id_of(&head.boot)?), sequence: head.sequence })
}
