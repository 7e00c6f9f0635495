//! Segment files: the one being filled, and spares.

use super::format::{HEADER_BYTES, Header};
use crate::disk::{Disk, DiskError, DiskFile};
use larder_core::id::DomainId;
use larder_core::record::Lsn;
use larder_core::rng::Rng;

/// Bytes written at once when a spare is filled with zeros, and at least by one `maintain`.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;

/// The segment being filled.
#[derive(Debug)]
pub(crate) struct Active<F> {
    pub(crate) header: Header,
    pub(crate) file: F,
    /// Bytes of its file.
    pub(crate) bytes: u64,
    /// Where the next frame goes.
    pub(crate) end: u64,
}

/// A segment to come.
#[derive(Debug)]
pub(crate) struct Spare<F> {
    pub(crate) sequence: u64,
    pub(crate) file: F,
    /// Bytes of its file.
    pub(crate) bytes: u64,
    /// Bytes written, so that a later sync finds no metadata to update. All: ready.
    pub(crate) written: u64,
}

impl<F: DiskFile> Active<F> {
    /// Begins a segment in a spare file. Its header is durable before any record is written, so
    /// that a file without one holds nothing that was ever answered.
    pub(crate) fn begin(
        spare: Spare<F>,
        domain: DomainId,
        first: Lsn,
        rng: &mut Rng,
    ) -> Result<Self, DiskError> {
        let (sequence, bytes) = (spare.sequence, spare.bytes);
        let header = Header { domain, sequence, first, id: rng.next_u64(), bytes };
        spare.file.write_at(0, &header.encode())?;
        spare.file.sync()?;
        Ok(Self { header, file: spare.file, bytes: spare.bytes, end: HEADER_BYTES as u64 })
    }
}

impl<F: DiskFile> Spare<F> {
    /// A new file with its room reserved.
    pub(crate) fn create<D: Disk<File = F>>(
        disk: &D,
        sequence: u64,
        bytes: u64,
    ) -> Result<Self, DiskError> {
        let file = disk.create(&name_of(sequence))?;
        file.preallocate(bytes)?;
        Ok(Self { sequence, file, bytes, written: 0 })
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.written == self.bytes
    }

    /// Writes zeros over up to `budget` bytes more, and syncs when all are written. Reserved but
    /// unwritten blocks would make every later sync update metadata too.
    pub(crate) fn write_zeros(&mut self, budget: u64) -> Result<(), DiskError> {
        let until = self.bytes.min(self.written.saturating_add(budget));
        let zeros = vec![0; PIECE_BYTES.min(self.bytes) as usize];
        while self.written < until {
            let piece = (until - self.written).min(zeros.len() as u64);
            self.file.write_at(self.written, &zeros[..piece as usize])?;
            self.written += piece;
        }
        if self.is_ready() {
            self.file.sync()?;
        }
        Ok(())
    }
}

/// The file of a segment.
pub(crate) fn name_of(sequence: u64) -> String {
    format!("log-{sequence:016x}.seg")
}

/// The segment of a file, if it is one's.
pub(crate) fn sequence_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("log-")?.strip_suffix(".seg")?;
    let sequence = u64::from_str_radix(digits, 16).ok()?;
    (name_of(sequence) == name).then_some(sequence)
}
