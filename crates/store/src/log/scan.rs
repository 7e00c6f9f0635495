//! Reading a log back: which records it holds, and whether it is whole. Changes nothing.
//!
//! Where a segment's last frames do not check, two things look alike and must be told apart:
//! a *torn tail*, the write that was under way at a crash and was never answered, and *damage* to
//! records that were. A disk may keep any of the sectors of an unsynced write, so valid frames after
//! a bad one prove nothing by themselves. But a write begins only after the one before was synced:
//! a valid frame of a *later write* proves that the bad record had been durable. Every frame
//! therefore says how many records of its write come before it.

use super::LogError;
use super::format::{ALIGN, FRAME_BYTES, Frame, HEADER_BYTES, Header, HeaderState, frame_bytes};
use super::segment::{name_of, sequence_of};
use crate::disk::{Disk, DiskFile, read_all};
use bytes::Bytes;
use larder_core::id::DomainId;
use larder_core::machine::{Fault, Faults};
use larder_core::record::Lsn;
use std::collections::BTreeMap;

/// A segment in use, as found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) header: Header,
    /// Bytes of its file.
    pub(crate) bytes: u64,
}

/// The last segment's end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tail {
    /// Where the next frame goes.
    pub(crate) end: u64,
    /// Where the last write begins: its sync may have failed before the crash.
    pub(crate) last_write: u64,
    /// Frame headers of this segment beyond the end, left by a torn write.
    pub(crate) leftovers: Vec<u64>,
}

/// What a log directory holds.
#[derive(Debug)]
pub(crate) struct Scan {
    /// The chain of segments in use, oldest first; the last one is being filled.
    pub(crate) chain: Vec<Found>,
    /// Files not in use that come after the chain, by sequence, with their length.
    pub(crate) spares: BTreeMap<u64, u64>,
    /// Files that belong to nothing: trimmed once.
    pub(crate) strays: Vec<u64>,
    /// The last segment's end.
    pub(crate) tail: Tail,
    /// Number of the next record.
    pub(crate) next: Lsn,
    /// The records asked for.
    pub(crate) records: Vec<(Lsn, Bytes)>,
    /// Planted faults.
    faults: Faults,
}

/// Reads the log of `domain` from record `from` on.
pub(crate) fn scan<D: Disk>(
    disk: &D,
    domain: DomainId,
    from: Lsn,
    faults: Faults,
) -> Result<Scan, LogError> {
    let files = headers(disk)?;
    let chain = chain(&files, domain, from)?;
    let (Some(oldest), Some(newest)) = (chain.first(), chain.last()) else {
        return Err(LogError::Missing);
    };
    if oldest.header.first > from {
        return Err(LogError::Gap { wanted: from, oldest: oldest.header.first });
    }
    let mut scan = Scan {
        spares: BTreeMap::new(),
        strays: Vec::new(),
        tail: Tail { end: 0, last_write: 0, leftovers: Vec::new() },
        next: oldest.header.first,
        records: Vec::new(),
        chain: Vec::new(),
        faults,
    };
    for (index, found) in chain.iter().enumerate() {
        match chain.get(index + 1) {
            // Every record of it is below what is wanted.
            Some(after) if after.header.first <= from => scan.next = after.header.first,
            Some(after) => scan.sealed(disk, found, after.header.first, from)?,
            None => scan.last(disk, found, from)?,
        }
    }
    if scan.next < from {
        return Err(LogError::Behind { next: scan.next, wanted: from });
    }
    for (sequence, (state, length)) in &files {
        if *sequence > newest.header.sequence {
            scan.check_unused(disk, *sequence, *state)?;
            scan.spares.insert(*sequence, *length);
        } else if *sequence < oldest.header.sequence {
            scan.strays.push(*sequence);
        }
    }
    scan.chain = chain;
    Ok(scan)
}

type Headers = BTreeMap<u64, (HeaderState, u64)>;

/// The header state and length of every segment file.
fn headers<D: Disk>(disk: &D) -> Result<Headers, LogError> {
    let mut files = BTreeMap::new();
    for name in disk.list()? {
        let Some(sequence) = sequence_of(&name) else {
            continue;
        };
        let file = disk.open(&name)?;
        let mut bytes = vec![0; HEADER_BYTES];
        let read = file.read_at(0, &mut bytes)?;
        files.insert(sequence, (Header::decode(&bytes[..read]), file.length()?));
    }
    Ok(files)
}

/// The segments in use: the newest, and those before it as far as their sequences are unbroken.
fn chain(files: &Headers, domain: DomainId, from: Lsn) -> Result<Vec<Found>, LogError> {
    let mut chain: Vec<Found> = Vec::new();
    for (sequence, (state, length)) in files.iter().rev() {
        let name = name_of(*sequence);
        let unbroken = chain.last().is_none_or(|after| after.header.sequence == sequence + 1);
        match *state {
            // A recycled file still has the header of its earlier use.
            HeaderState::Valid(header) if header.sequence == *sequence => {
                if header.domain != domain {
                    return Err(LogError::OtherDomain {
                        file: name,
                        found: header.domain,
                        wanted: domain,
                    });
                }
                if !unbroken {
                    break;
                }
                if let Some(after) = chain.last()
                    && after.header.first < header.first
                {
                    return Err(damaged(&name, 0, "records are numbered backwards"));
                }
                // Its zeros were synced before it was used: no crash makes it shorter.
                if *length < header.bytes {
                    return Err(damaged(&name, *length, "the file was cut short"));
                }
                chain.push(Found { header, bytes: *length });
            }
            HeaderState::Format(found) => return Err(LogError::Format { file: name, found }),
            _ if chain.is_empty() => {}
            // A segment that was in use stays in its place until it is trimmed, header and all.
            _ if unbroken && chain.last().is_some_and(|after| after.header.first > from) => {
                return Err(damaged(&name, 0, BAD_HEADER));
            }
            _ => break,
        }
    }
    // With no segment in use, one whose header does not check may have been.
    if let (true, Some((sequence, _))) =
        (chain.is_empty(), files.iter().find(|(_, (state, _))| *state == HeaderState::Damaged))
    {
        return Err(damaged(&name_of(*sequence), 0, BAD_HEADER));
    }
    chain.reverse();
    Ok(chain)
}

impl Scan {
    /// A segment with a successor: it must hold every record up to the successor's first.
    fn sealed<D: Disk>(
        &mut self,
        disk: &D,
        found: &Found,
        until: Lsn,
        from: Lsn,
    ) -> Result<(), LogError> {
        let name = name_of(found.header.sequence);
        let bytes = read_all(&disk.open(&name)?, &name)?;
        let walk = self.walk(&bytes, &found.header, until, from);
        if self.next < until {
            return Err(damaged(&name, walk.end, "a record does not check"));
        }
        Ok(())
    }

    /// The segment being filled.
    fn last<D: Disk>(&mut self, disk: &D, found: &Found, from: Lsn) -> Result<(), LogError> {
        let name = name_of(found.header.sequence);
        let bytes = read_all(&disk.open(&name)?, &name)?;
        self.tail = self.walk(&bytes, &found.header, Lsn(u64::MAX), from);
        let mut at = self.tail.end as usize;
        while let Some(rest) = bytes.get(at..) {
            if let Some(frame) = Frame::decode_of(rest, found.header.id) {
                let later = frame.write_first() > self.next;
                if later && !self.faults.has(Fault::DamageAsTail) {
                    larder_core::probe::probe("damaged-log-refused");
                    return Err(damaged(
                        &name,
                        self.tail.end,
                        "a record does not check, and later ones do",
                    ));
                }
                self.tail.leftovers.push(at as u64);
            }
            at += ALIGN;
        }
        Ok(())
    }

    /// Takes the records of a segment, up to the first frame that does not check or to `until`.
    fn walk(&mut self, bytes: &[u8], header: &Header, until: Lsn, from: Lsn) -> Tail {
        self.next = header.first;
        let mut at = HEADER_BYTES;
        let mut last_write = at;
        while self.next < until
            && let Some(rest) = bytes.get(at..)
            && let Some(frame) = Frame::decode_of(rest, header.id)
            && frame.lsn == self.next
            && let Some(body) = frame.body(rest, !self.faults.has(Fault::IgnoreChecksum))
        {
            if frame.index == 0 {
                last_write = at;
            }
            if frame.lsn >= from {
                self.records.push((frame.lsn, Bytes::copy_from_slice(body)));
            }
            self.next = Lsn(frame.lsn.0 + 1);
            at += frame_bytes(body.len());
        }
        Tail { end: at as u64, last_write: last_write as u64, leftovers: Vec::new() }
    }

    /// A file after the newest segment holds nothing that was ever answered: its header is synced
    /// before its first record is written. The next record in it, or a later one, says that a header
    /// was there, and is damaged: what an earlier use left is older. In a file that has the header of
    /// an earlier use only the first place counts: elsewhere a client's bytes may look like anything.
    /// In any other every place is looked at: what met the header may have met the first record too.
    fn check_unused<D: Disk>(
        &self,
        disk: &D,
        sequence: u64,
        state: HeaderState,
    ) -> Result<(), LogError> {
        let name = name_of(sequence);
        let file = disk.open(&name)?;
        let looked_at = match state {
            HeaderState::Valid(_) => FRAME_BYTES,
            _ => file.length()?.saturating_sub(HEADER_BYTES as u64) as usize,
        };
        let mut bytes = vec![0; looked_at];
        let read = file.read_at(HEADER_BYTES as u64, &mut bytes)?;
        bytes.truncate(read);
        let is_later =
            |at: usize| Frame::decode(&bytes[at..]).is_some_and(|frame| frame.lsn >= self.next);
        match (0..bytes.len()).step_by(ALIGN).any(is_later) {
            true => Err(damaged(&name, 0, BAD_HEADER)),
            false => Ok(()),
        }
    }
}

const BAD_HEADER: &str = "the segment's header does not check";

fn damaged(file: &str, offset: u64, detail: &'static str) -> LogError {
    LogError::Damaged { file: file.into(), offset, detail }
}
