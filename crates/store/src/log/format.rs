//! The bytes of a segment: its header and its frames. Defined in `docs/formats/disk.md`.

use larder_core::id::DomainId;
use larder_core::record::Lsn;

/// The format written.
pub(crate) const FORMAT: u32 = 1;
/// The oldest format read.
pub(crate) const FORMAT_OLDEST: u32 = 1;
/// Bytes that the header takes: a page, so that no frame shares a sector with it.
pub(crate) const HEADER_BYTES: usize = 4096;
/// Bytes of a frame before its body.
pub(crate) const FRAME_BYTES: usize = 32;
/// Frames begin at multiples of this.
pub(crate) const ALIGN: usize = 8;

const MAGIC: &[u8; 8] = b"LARDRLOG";
/// Bytes of the header that mean something; the rest is zero.
const HEADER_USED: usize = 64;

/// A segment's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Header {
    pub(crate) domain: DomainId,
    /// Position in the chain of segments; also in the file's name.
    pub(crate) sequence: u64,
    /// Number of the first record.
    pub(crate) first: Lsn,
    /// Random, drawn at every use of a file: frames of an earlier use have another.
    pub(crate) id: u64,
    /// Bytes of the file: one that is shorter has lost its end, and records with it.
    pub(crate) bytes: u64,
}

/// What the first bytes of a segment file say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeaderState {
    /// A header.
    Valid(Header),
    /// A header of a format that is not read here.
    Format(u32),
    /// Nothing was ever written.
    Blank,
    /// Bytes that are no header.
    Damaged,
}

/// A frame's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Frame {
    /// Bytes of its body.
    pub(crate) length: u32,
    /// CRC-32C of its body.
    pub(crate) body_crc: u32,
    /// Number of its record.
    pub(crate) lsn: Lsn,
    /// The segment's id.
    pub(crate) segment: u64,
    /// How many records of the same write come before it in this segment.
    pub(crate) index: u32,
}

impl Header {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[0..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.domain.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.first.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.id.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.bytes.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[..HEADER_USED - 4]);
        bytes[HEADER_USED - 4..HEADER_USED].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> HeaderState {
        let Some(used) = bytes.get(..HEADER_USED) else {
            return if bytes.iter().all(|byte| *byte == 0) {
                HeaderState::Blank
            } else {
                HeaderState::Damaged
            };
        };
        if used.iter().all(|byte| *byte == 0) {
            return HeaderState::Blank;
        }
        let crc = crc32c::crc32c(&used[..HEADER_USED - 4]);
        if &used[0..8] != MAGIC || crc != u32_at(used, HEADER_USED - 4) {
            return HeaderState::Damaged;
        }
        let format = u32_at(used, 8);
        if !(FORMAT_OLDEST..=FORMAT).contains(&format) {
            return HeaderState::Format(format);
        }
        HeaderState::Valid(Self {
            domain: DomainId(u64_at(used, 16)),
            sequence: u64_at(used, 24),
            first: Lsn(u64_at(used, 32)),
            id: u64_at(used, 40),
            bytes: u64_at(used, 48),
        })
    }
}

impl Frame {
    /// Appends the frame with its body and padding.
    pub(crate) fn write(lsn: Lsn, segment: u64, index: u32, body: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        let length = u32::try_from(body.len()).expect("records are bounded by the segment");
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(body).to_le_bytes());
        out.extend_from_slice(&lsn.0.to_le_bytes());
        out.extend_from_slice(&segment.to_le_bytes());
        out.extend_from_slice(&index.to_le_bytes());
        let crc = crc32c::crc32c(&out[start..]);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(body);
        out.resize(start + frame_bytes(body.len()), 0);
    }

    /// Reads the frame header at the beginning of `bytes`; none when it does not check.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let header = bytes.get(..FRAME_BYTES)?;
        let frame = Self {
            length: u32_at(header, 0),
            body_crc: u32_at(header, 4),
            lsn: Lsn(u64_at(header, 8)),
            segment: u64_at(header, 16),
            index: u32_at(header, 24),
        };
        // A record number is at least 1, and the place in its write is below it.
        let sane = frame.lsn.0 > u64::from(frame.index);
        (sane && crc32c::crc32c(&header[..28]) == u32_at(header, 28)).then_some(frame)
    }

    /// The same, for a frame of the segment with this id; quick where there is none.
    pub(crate) fn decode_of(bytes: &[u8], segment: u64) -> Option<Self> {
        (bytes.get(16..24)? == segment.to_le_bytes()).then(|| Self::decode(bytes)).flatten()
    }

    /// Its body, if the bytes from the frame's beginning hold it undamaged. Only a planted fault does
    /// not `check`.
    pub(crate) fn body<'a>(&self, bytes: &'a [u8], check: bool) -> Option<&'a [u8]> {
        let end = FRAME_BYTES.checked_add(self.length as usize)?;
        let body = bytes.get(FRAME_BYTES..end)?;
        (!check || crc32c::crc32c(body) == self.body_crc).then_some(body)
    }

    /// Number of the first record of the write that this frame was part of.
    pub(crate) fn write_first(&self) -> Lsn {
        Lsn(self.lsn.0 - u64::from(self.index))
    }
}

/// Bytes in a segment of a record of `body` bytes.
pub(crate) fn frame_bytes(body: usize) -> usize {
    (FRAME_BYTES + body).next_multiple_of(ALIGN)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
