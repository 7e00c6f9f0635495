//! Raw pages: one object of any length up to the page size less the header.

use super::{HEADER_BYTES, OpError, Page};
use crate::commit::{Aspect, Target};
use crate::id::Slot;

const TOUCHED: (Target, Aspect) = (Target::Slot(Slot(0)), Aspect::Value);

/// Writes bytes at an offset, growing the content with zeros as needed.
pub(super) fn write(
    page: &mut Page,
    offset: usize,
    new: &[u8],
    page_bytes: usize,
) -> Result<(Target, Aspect), OpError> {
    let end = offset.checked_add(new.len()).ok_or(OpError::Malformed)?;
    let (from, to) = (HEADER_BYTES + offset, HEADER_BYTES.saturating_add(end));
    if to > page_bytes {
        return Err(OpError::Malformed);
    }
    if to <= page.bytes.len() {
        page.modify(|bytes| bytes[from..to].copy_from_slice(new));
    } else {
        // To the byte, since memory budgets count lengths and not capacities.
        let mut bytes = Vec::with_capacity(to);
        bytes.extend_from_slice(&page.bytes[..page.bytes.len().min(from)]);
        bytes.resize(from, 0);
        bytes.extend_from_slice(new);
        page.replace(bytes);
    }
    Ok(TOUCHED)
}

/// Cuts or zero-extends the content.
pub(super) fn truncate(
    page: &mut Page,
    length: usize,
    page_bytes: usize,
) -> Result<(Target, Aspect), OpError> {
    let length = HEADER_BYTES.saturating_add(length);
    if length > page_bytes {
        return Err(OpError::Malformed);
    }
    if length != page.bytes.len() {
        let mut bytes = Vec::with_capacity(length);
        bytes.extend_from_slice(&page.bytes[..page.bytes.len().min(length)]);
        bytes.resize(length, 0);
        page.replace(bytes);
    }
    Ok(TOUCHED)
}
