//! How messages and records become bytes (`docs/formats/wire.md`).
//!
//! Every message and record is a protobuf message: an envelope with one field, whose number is
//! the kind. Its body has plain fields (`head`) and, for everything that comes in numbers, one
//! packed list to a `bytes` field (`packed`), which is decoded under a limit and shares the
//! input's memory for payload. So no repeated field can make a short input a large allocation.
//!
//! Decoding is total: any bytes give a value or a [`WireError`]. Encoding trusts its caller to
//! keep the limits and orders that the types' documentation states, and panics where a broken
//! one could not be written.

mod copy;
mod down;
mod frame;
mod group;
mod head;
mod lanes;
mod message;
mod open;
mod origins;
mod packed;
mod parts;
mod reason;
mod record;
mod rights;
#[cfg(test)]
mod tests;
mod up;
mod varint;

pub use frame::{FRAGMENT_BYTES_MAX, FRAME_HEADER_BYTES, FrameHeader};
pub use lanes::{Fragment, LaneReceiver, LaneSender, Overflow, QueueLimits};
pub use message::{check_commit, decode, encode, encoded_len};
pub use record::{
    decode_apart, decode_meta, decode_record, encode_apart, encode_meta, encode_record, meta_format,
};

use crate::message::{CloseReason, Lane, Versions};

/// Kinds of control message with these numbers are skipped by a receiver that does not know them.
pub const KINDS_IGNORED: std::ops::Range<u32> = 1000..2000;
/// Longest name or explanation in a message, in bytes. Longer explanations are cut when sent.
pub const TEXT_BYTES_MAX: usize = 1024;
/// The metadata format that this version writes, and the newest it reads.
pub const META_FORMAT: u32 = 5;
/// The oldest metadata format that this version reads.
pub const META_FORMAT_OLDEST: u32 = 1;

/// The longest encoded message of a lane, in bytes.
#[must_use]
pub const fn message_bytes_max(lane: Lane) -> usize {
    match lane {
        Lane::Control => 1 << 20,
        Lane::Stream => 8 << 20,
        Lane::Bulk => 40 << 20,
    }
}

/// The version that a parent and a child speak with each other: the newest in common.
///
/// Version N talks to N − 1: a field new in N is optional and has a meaning when it is absent, so
/// that decoding needs no version; a kind new in N is sent only on a link whose `Welcome` said N, or
/// has a number in [`KINDS_IGNORED`].
pub fn negotiate(parent: Versions, child: Versions) -> Result<u32, CloseReason> {
    parent.common(child).ok_or(CloseReason::Version { parent, child })
}

/// Why bytes are no message, no record, or no frame.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// They break off, or a field is not what it must be.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// A boot without the name of its node, as written before boots had names.
    #[error(
        "a boot without the name of its node, as written before boots had names: use the version that wrote it, or make the domain anew"
    )]
    Nameless,
    /// A kind that this version does not know, and may not ignore.
    #[error("unknown kind {0}")]
    UnknownKind(u32),
    /// A message in a lane that is not its own.
    #[error("kind {kind} does not travel in the {lane:?} lane")]
    WrongLane {
        /// The kind's number.
        kind: u32,
        /// Where it came.
        lane: Lane,
    },
    /// More than a limit allows.
    #[error("too many {what}: the limit is {limit}")]
    Limit {
        /// Of what.
        what: &'static str,
        /// The most allowed.
        limit: usize,
    },
    /// A format of another time.
    #[error("metadata format {found}; this version reads {oldest} to {newest}")]
    Format {
        /// What the bytes say.
        found: u32,
        /// The oldest readable.
        oldest: u32,
        /// The newest.
        newest: u32,
    },
}

impl From<WireError> for CloseReason {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Limit { .. } => Self::Limit(error.to_string()),
            WireError::WrongLane { .. } => Self::Protocol(error.to_string()),
            _ => Self::Malformed(error.to_string()),
        }
    }
}
