//! Transactions over several domains: their parts, and decisions.

use super::WireError;
use super::head::{self, id_field, id_of};
use super::varint::{Reader, Sink};
use crate::commit::{Across, PARTS_MAX, PartId};
use crate::id::{Attempt, BootId, CommitId, DomainId, HistoryId};
use crate::record::Decided;
use bytes::Bytes;
use prost::Message as _;

/// Most bytes of a part.
pub(super) const PART_BYTES_MAX: usize = 34;

/// Domain, boot and sequence, one part after another.
pub(super) fn field(parts: &[PartId]) -> Vec<u8> {
    let mut field = Vec::new();
    for part in parts {
        field.extend_from_slice(&part.domain.0.to_le_bytes());
        field.u128(part.id.boot.0);
        field.varint(part.id.sequence);
    }
    field
}

/// Parts, ascending by domain.
pub(super) fn parts_of(field: Vec<u8>) -> Result<Vec<PartId>, WireError> {
    let (mut reader, mut parts) = (Reader::new(field.into()), Vec::<PartId>::new());
    while !reader.is_empty() {
        let domain = reader.take(8)?;
        let domain = DomainId(u64::from_le_bytes(domain[..].try_into().expect("eight bytes")));
        let boot = BootId(id_of(&reader.take(16)?)?);
        let id = CommitId { boot, sequence: reader.varint()? };
        if parts.last().is_some_and(|last| last.domain >= domain) || parts.len() == PARTS_MAX {
            return Err(WireError::Malformed("parts out of order, or too many"));
        }
        parts.push(PartId { domain, id });
    }
    Ok(parts)
}

/// The parts of a transaction of which `own` is one; none: it is no part.
pub(super) fn across_of(
    field: Vec<u8>,
    coordinator: u64,
    own: PartId,
) -> Result<Option<Box<Across>>, WireError> {
    if field.is_empty() {
        return Ok(None);
    }
    let across = Across::new(parts_of(field)?, DomainId(coordinator));
    let across = across.filter(|across| across.parts().contains(&own));
    across.map(|across| Some(Box::new(across))).ok_or(WireError::Malformed("no parts of one whole"))
}

pub(super) fn decided_head(decided: &Decided) -> head::Decided {
    head::Decided {
        history: id_field(decided.attempt.history.0),
        number: decided.attempt.number,
        participants: field(&decided.participants),
    }
}

pub(super) fn decided_field(decided: &Decided) -> Bytes {
    decided_head(decided).encode_to_vec().into()
}

pub(super) fn decided_of(head: head::Decided) -> Result<Decided, WireError> {
    let participants = parts_of(head.participants)?;
    if participants.is_empty() {
        return Err(WireError::Malformed("a decision that concerns nobody"));
    }
    Ok(Decided { attempt: attempt_of(&head.history, head.number)?, participants })
}

pub(super) fn attempt_of(history: &[u8], number: u64) -> Result<Attempt, WireError> {
    Ok(Attempt { history: HistoryId(id_of(history)?), number })
}
