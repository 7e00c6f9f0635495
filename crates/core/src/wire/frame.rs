//! Frames: what a connection's bytes are made of.

use super::WireError;
use crate::message::Lane;

/// Bytes of a frame's header.
pub const FRAME_HEADER_BYTES: usize = 8;
/// Most bytes of a message in one frame: how long a small message waits for a large one.
pub const FRAGMENT_BYTES_MAX: usize = 16 << 10;
/// How many bulk messages may be under way at once on one connection.
pub(super) const BULK_SLOTS: usize = 8;

const LAST: u8 = 1;

/// A frame's header.
///
/// | bytes | field                                                         |
/// |-------|---------------------------------------------------------------|
/// | 0–2   | payload bytes, little-endian, 1 to 16,384                     |
/// | 3     | lane: 0 control, 1 stream, 2 bulk                             |
/// | 4     | flags: bit 0 ends its message; others are 0                   |
/// | 5     | bulk slot, 0 to 7; 0 in other lanes                           |
/// | 6     | 0                                                             |
/// | 7     | the lowest byte of the CRC-32C of bytes 0 to 6                |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// Bytes of payload that follow.
    pub length: usize,
    /// Whose message.
    pub lane: Lane,
    /// Which of the lane's messages under way, for bulk.
    pub slot: u8,
    /// Whether its message ends here.
    pub last: bool,
}

impl FrameHeader {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        assert!(
            (1..=FRAGMENT_BYTES_MAX).contains(&self.length),
            "senders cut messages into fragments"
        );
        let [low, middle, high, ..] = (self.length as u32).to_le_bytes();
        let flags = if self.last { LAST } else { 0 };
        let mut bytes = [low, middle, high, lane_number(self.lane), flags, self.slot, 0, 0];
        bytes[7] = check_byte(&bytes);
        bytes
    }

    /// Reads one.
    pub fn decode(bytes: [u8; FRAME_HEADER_BYTES]) -> Result<Self, WireError> {
        if bytes[7] != check_byte(&bytes) {
            return Err(WireError::Malformed("a frame header that does not check"));
        }
        let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]) as usize;
        if !(1..=FRAGMENT_BYTES_MAX).contains(&length) {
            return Err(WireError::Malformed("a frame's length"));
        }
        let (lane, slots) = match bytes[3] {
            0 => (Lane::Control, 1),
            1 => (Lane::Stream, 1),
            2 => (Lane::Bulk, BULK_SLOTS),
            _ => return Err(WireError::Malformed("no lane")),
        };
        if bytes[4] & !LAST != 0 || usize::from(bytes[5]) >= slots || bytes[6] != 0 {
            return Err(WireError::Malformed("a frame's flags"));
        }
        Ok(Self { length, lane, slot: bytes[5], last: bytes[4] & LAST != 0 })
    }
}

fn lane_number(lane: Lane) -> u8 {
    match lane {
        Lane::Control => 0,
        Lane::Stream => 1,
        Lane::Bulk => 2,
    }
}

fn check_byte(bytes: &[u8; FRAME_HEADER_BYTES]) -> u8 {
    crc32c::crc32c(&bytes[..7]) as u8
}
