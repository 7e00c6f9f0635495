//! Outcomes that a node has not received, below others that it has: their sequences, ascending, each as the distance from
//! the one before.

use super::WireError;
use super::varint::{Reader, Sink};
use bytes::Bytes;

pub(super) fn field(open: &[u64]) -> Bytes {
    let (mut field, mut before) = (Vec::new(), 0u64);
    for sequence in open {
        field.varint(sequence.wrapping_sub(before));
        before = *sequence;
    }
    field.into()
}

/// At most `max`, and none above `upto`.
pub(super) fn of(field: Bytes, upto: u64, max: usize) -> Result<Vec<u64>, WireError> {
    let (mut reader, mut open, mut sequence) = (Reader::new(field), Vec::new(), 0u64);
    while !reader.is_empty() {
        let next = sequence.checked_add(reader.varint()?).filter(|next| *next > sequence);
        let Some(next) = next.filter(|next| *next <= upto && open.len() < max) else {
            return Err(WireError::Malformed("open outcomes out of order, or too many"));
        };
        open.push(next);
        sequence = next;
    }
    Ok(open)
}
