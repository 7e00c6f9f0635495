//! What recovery changes on the disk after a scan.

use super::format::FRAME_BYTES;
use super::scan::{Found, Tail};
use super::segment::{Active, Spare, name_of};
use super::{LogConfig, LogError, SPARES_MAX};
use crate::disk::{Disk, DiskFile};
use larder_core::machine::{Fault, Faults};
use std::collections::{BTreeMap, VecDeque};

/// Makes the newest segment's end durable as it was read, and clears what a torn write left
/// beyond it, which could otherwise be taken for records after ones appended from now on.
pub(crate) fn recover_tail<D: Disk>(
    disk: &D,
    newest: &Found,
    tail: &Tail,
    faults: Faults,
) -> Result<Active<D::File>, LogError> {
    let name = name_of(newest.header.sequence);
    let file = disk.open(&name)?;
    let kept = faults.has(Fault::LeftoversKept);
    for offset in tail.leftovers.iter().filter(|_| !kept) {
        larder_core::probe::probe("torn-tail-cut");
        file.write_at(*offset, &[0; FRAME_BYTES])?;
    }
    let (header, bytes, end) = (newest.header, newest.bytes, tail.end);
    if faults.has(Fault::SkipRecoverySync) {
        return Ok(Active { header, file, bytes, end });
    }
    let length = usize::try_from(tail.end - tail.last_write).expect("it was read into memory");
    let mut last = vec![0; length];
    file.read_at(tail.last_write, &mut last)?;
    file.write_at(tail.last_write, &last)?;
    file.write_at(0, &newest.header.encode())?;
    file.sync()?;
    Ok(Active { header, file, bytes, end })
}

/// Takes over spare files that are whole and follow without gaps; removes the others.
pub(crate) fn keep_spares<D: Disk>(
    disk: &D,
    newest: u64,
    found: &BTreeMap<u64, u64>,
    config: &LogConfig,
) -> Result<VecDeque<Spare<D::File>>, LogError> {
    let mut spares = VecDeque::new();
    for (sequence, bytes) in found {
        let follows = *sequence == newest + 1 + spares.len() as u64;
        if !follows || *bytes != config.segment_bytes || spares.len() >= SPARES_MAX {
            disk.remove(&name_of(*sequence))?;
            continue;
        }
        let file = disk.open(&name_of(*sequence))?;
        file.sync()?;
        spares.push_back(Spare { sequence: *sequence, file, bytes: *bytes, written: *bytes });
    }
    Ok(spares)
}
