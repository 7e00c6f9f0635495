//! Lists of rights as bytes: for each entry the length of its name, the name, and its right.

use super::WireError;
use super::varint::{Reader, Sink};
use crate::message::NAME_BYTES_MAX;
use crate::rights::{Effective, RIGHTS_MAX, Right, Rights, RightsEdit};
use bytes::Bytes;

/// Most changes of a list in one message.
const EDITS_MAX: usize = 2 * RIGHTS_MAX;

pub(super) fn field(rights: &Rights) -> Bytes {
    let entries = rights.entries().map(|(who, right)| (who, u64::from(right.number())));
    packed(entries)
}

/// A volume's list, as it was given.
pub(super) fn rights_of(field: Bytes) -> Result<Rights, WireError> {
    list_of(field, RIGHTS_MAX)
}

/// A complete list.
pub(super) fn effective_of(field: Bytes) -> Result<Effective, WireError> {
    Ok(Effective::of_list(list_of(field, Effective::ENTRIES_MAX)?))
}

fn list_of(field: Bytes, most: usize) -> Result<Rights, WireError> {
    let entries = unpacked(field, most)?.into_iter().map(|(who, number)| Ok((who, right(number)?)));
    let entries: Vec<(String, Right)> = entries.collect::<Result<_, WireError>>()?;
    let ascending = entries.iter().zip(entries.iter().skip(1)).all(|(one, next)| one.0 < next.0);
    if !ascending {
        return Err(WireError::Malformed("rights out of order"));
    }
    Rights::new(entries, most).map_err(|_| WireError::Malformed("rights of no name"))
}

/// Changes of a list; 0: the entry goes.
pub(super) fn edits_field(edits: &[RightsEdit]) -> Bytes {
    let number = |right: Right| u64::from(right.number()) + 1;
    packed(edits.iter().map(|edit| (edit.who.as_str(), edit.right.map_or(0, number))))
}

pub(super) fn edits_of(field: Bytes) -> Result<Vec<RightsEdit>, WireError> {
    let edits = unpacked(field, EDITS_MAX)?.into_iter().map(|(who, number)| {
        let right = number.checked_sub(1).map(right).transpose()?;
        Ok(RightsEdit { who, right })
    });
    edits.collect()
}

/// Names alone.
pub(super) fn names_field(names: &[String]) -> Bytes {
    packed(names.iter().map(|name| (name.as_str(), 0)))
}

pub(super) fn names_of(field: Bytes, most: usize) -> Result<Vec<String>, WireError> {
    Ok(unpacked(field, most)?.into_iter().map(|(name, _)| name).collect())
}

/// The right of a number.
pub(super) fn right(number: u64) -> Result<Right, WireError> {
    let number = u32::try_from(number).ok();
    number.and_then(Right::of_number).ok_or(WireError::Malformed("no right"))
}

fn packed<'a>(entries: impl Iterator<Item = (&'a str, u64)>) -> Bytes {
    let mut field = Vec::new();
    for (who, number) in entries {
        field.varint(who.len() as u64);
        field.extend_from_slice(who.as_bytes());
        field.varint(number);
    }
    field.into()
}

fn unpacked(field: Bytes, most: usize) -> Result<Vec<(String, u64)>, WireError> {
    let (mut reader, mut entries) = (Reader::new(field), Vec::new());
    while !reader.is_empty() {
        if entries.len() == most {
            return Err(WireError::Limit { what: "rights", limit: most });
        }
        let length = reader.varint()?;
        if length > NAME_BYTES_MAX as u64 {
            return Err(WireError::Limit { what: "bytes of a name", limit: NAME_BYTES_MAX });
        }
        let who = String::from_utf8(reader.take(length)?.to_vec());
        let who = who.map_err(|_| WireError::Malformed("a name that is no text"))?;
        entries.push((who, reader.varint()?));
    }
    Ok(entries)
}
