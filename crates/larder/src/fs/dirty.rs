//! What was written to open files and waits for its commit: pieces per file, errors of those that
//! were lost, and one budget for all files of the node.

use super::content::Piece;
use super::record::Inode;
use super::{FsError, lock};
use crate::clock::instant;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Instant;
use tokio::sync::Notify;

/// Bytes committed in one transaction.
pub(super) const COMMIT_BYTES: usize = 4 << 20;
/// What a piece costs in memory beside its bytes, generously.
const PIECE_COST: usize = 128;

/// What a write may cost at most: its bytes, its own piece, and one more where it parts another.
pub(super) fn cost_max(length: usize) -> usize {
    length + 2 * PIECE_COST
}

/// Bytes written and not yet committed: no two pieces overlap.
#[derive(Default)]
pub(super) struct Dirty {
    pieces: BTreeMap<u64, (Bytes, u64)>,
    bytes: usize,
    /// Counts writes; every piece knows the write it came from.
    sequence: u64,
    /// None of it was written before.
    pub(super) since: Option<Instant>,
    pub(super) modified: i64,
}

/// What waited at one moment, to be committed batch by batch. Who asks for a commit asks for what
/// was written before: were it for what comes meanwhile too, it would have no end beside a steady
/// writer. It is kept as it was, also where it is written over meanwhile: else neither the old
/// bytes nor the new ones would be durable there when the commit is said to be done.
pub(super) struct Waiting {
    pub(super) batches: Vec<Vec<Piece>>,
    pub(super) modified: i64,
    /// The count of writes it includes.
    sequence: u64,
    taken: Instant,
}

impl Waiting {
    /// All of it.
    pub(super) fn whole(&self) -> Span {
        Span { from: 0, to: u64::MAX, sequence: self.sequence, taken: self.taken }
    }

    /// What one of its batches is of.
    pub(super) fn span(&self, batch: &[Piece]) -> Span {
        let from = batch.first().map_or(0, |(offset, _)| *offset);
        let to = batch.last().map_or(from, |(offset, bytes)| offset + bytes.len() as u64);
        Span { from, to, sequence: self.sequence, taken: self.taken }
    }
}

/// Which bytes a commit is of: those of a part of the file that were written up to some write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    from: u64,
    to: u64,
    sequence: u64,
    taken: Instant,
}

/// A commit of which nobody knows whether it was done, or will be. It reads the inode, and so is
/// done on the very inode it saw or not at all; from what has become of that inode it can be told
/// which, unless the file was written twice since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    pub(super) span: Span,
    /// The count of updates that it saw; done, it makes the next.
    pub(super) before: u32,
    /// The time of modification that it gives.
    pub(super) modified: i64,
}

/// What became of an attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It was done.
    Done,
    /// It was not done yet, and may be.
    NotYet,
    /// It was not done, or nothing was written since but what it wrote: it can be made again.
    Again,
    /// Others wrote since, and it may have been done before.
    Unclear,
}

impl Attempt {
    pub(super) fn verdict(&self, now: &Inode) -> Verdict {
        match now.change.wrapping_sub(self.before) {
            0 => Verdict::NotYet,
            1 if now.mtime == self.modified => Verdict::Done,
            // Another's update, or this one with its times set since.
            1 => Verdict::Again,
            _ => Verdict::Unclear,
        }
    }
}

impl Dirty {
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// What it costs in memory.
    pub(super) fn cost(&self) -> usize {
        self.bytes + self.pieces.len() * PIECE_COST
    }

    /// Where the last byte ends.
    pub(super) fn end(&self) -> u64 {
        self.pieces.last_key_value().map_or(0, |(offset, (bytes, _))| offset + bytes.len() as u64)
    }

    /// The pieces that touch `from .. to`.
    pub(super) fn within(&self, from: u64, to: u64) -> Vec<Piece> {
        self.pieces
            .range(self.first_over(from)..to)
            .map(|(at, (bytes, _))| (*at, bytes.clone()))
            .collect()
    }

    /// Where the piece begins that holds `at`, if one does; else `at`.
    fn first_over(&self, at: u64) -> u64 {
        match self.pieces.range(..at).next_back() {
            Some((offset, (bytes, _))) if offset + bytes.len() as u64 > at => *offset,
            _ => at,
        }
    }

    pub(super) fn put(&mut self, offset: u64, bytes: Bytes, now: i64) {
        self.cut(offset, offset + bytes.len() as u64);
        self.sequence += 1;
        self.bytes += bytes.len();
        self.pieces.insert(offset, (bytes, self.sequence));
        self.since.get_or_insert_with(instant);
        self.modified = now;
    }

    /// Forgets what lies in `from .. to`. What is left of a piece is copied, or a byte of it would
    /// hold all of it in memory.
    fn cut(&mut self, from: u64, to: u64) {
        let hit: Vec<u64> =
            self.pieces.range(self.first_over(from)..to).map(|(offset, _)| *offset).collect();
        for offset in hit {
            let Some((bytes, sequence)) = self.pieces.remove(&offset) else { continue };
            self.bytes -= bytes.len();
            let end = offset + bytes.len() as u64;
            let mut keep = |at: u64, part: &[u8]| {
                self.bytes += part.len();
                self.pieces.insert(at, (Bytes::copy_from_slice(part), sequence));
            };
            if offset < from {
                keep(offset, &bytes[..(from - offset) as usize]);
            }
            if end > to {
                keep(to, &bytes[(to - offset) as usize..]);
            }
        }
    }

    /// Takes what waits of another file, which lies over what waits here.
    pub(super) fn take_over(&mut self, other: &mut Self) {
        let modified = self.modified.max(other.modified);
        for (offset, (bytes, _)) in std::mem::take(&mut other.pieces) {
            self.put(offset, bytes, modified);
        }
        other.clear();
    }

    /// All that waits now.
    pub(super) fn waiting(&self) -> Waiting {
        let mut bytes = 0;
        let mut batches = Vec::new();
        let mut batch = Vec::new();
        for (offset, (piece, _)) in &self.pieces {
            if bytes > 0 && bytes + piece.len() > COMMIT_BYTES {
                batches.push(std::mem::take(&mut batch));
                bytes = 0;
            }
            bytes += piece.len();
            batch.push((*offset, piece.clone()));
        }
        if !batch.is_empty() {
            batches.push(batch);
        }
        let (sequence, modified) = (self.sequence, self.modified);
        Waiting { batches, sequence, modified, taken: instant() }
    }

    /// Forgets bytes that were committed, or that never can be, but nothing written over them
    /// since.
    pub(super) fn forget(&mut self, of: &Span) {
        let sequence = of.sequence;
        let done: Vec<u64> = self
            .pieces
            .range(of.from..of.to)
            .filter(|(_, (_, written))| *written <= sequence)
            .map(|(offset, _)| *offset)
            .collect();
        for offset in done {
            if let Some((bytes, _)) = self.pieces.remove(&offset) {
                self.bytes -= bytes.len();
            }
        }
        if self.pieces.is_empty() {
            self.since = None;
        } else if self.pieces.values().all(|(_, written)| *written > sequence) {
            self.since = Some(of.taken);
        }
    }

    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.bytes = 0;
        self.since = None;
    }
}

/// The last error for which bytes of a file were lost. It has a number, and every handle knows
/// the number up to which it has been told: each is told once (Linux has this as `errseq_t`).
#[derive(Default)]
pub(super) struct Lost {
    number: u64,
    error: Option<FsError>,
    /// Some handle has been told the last one.
    told: bool,
}

impl Lost {
    pub(super) fn note(&mut self, error: FsError) {
        self.number += 1;
        self.error = Some(error);
        self.told = false;
    }

    /// The number a new handle begins with: an error that nobody was told is still to be told.
    pub(super) fn begin(&self) -> u64 {
        if self.told { self.number } else { self.number.saturating_sub(1) }
    }

    /// The error that a handle is to be told, which has been told those up to `told`.
    pub(super) fn tell(&mut self, told: &mut u64) -> Option<FsError> {
        if *told == self.number {
            return None;
        }
        *told = self.number;
        self.told = true;
        self.error.clone()
    }

    /// The error that nobody was told.
    pub(super) fn untold(&self) -> Option<&FsError> {
        self.error.as_ref().filter(|_| !self.told)
    }
}

/// The budget of memory for what waits in all open files of the node.
pub(super) struct Room {
    max: usize,
    used: Mutex<usize>,
    /// Some of it was given back.
    pub(super) freed: Notify,
}

impl Room {
    pub(super) fn new(max: usize) -> Self {
        Self { max, used: Mutex::new(0), freed: Notify::new() }
    }

    /// Takes some if there is so much. One that wants more than there can ever be is served when
    /// nobody else holds any.
    pub(super) fn take(&self, cost: usize) -> bool {
        let mut used = lock(&self.used);
        if *used > 0 && *used + cost > self.max {
            return false;
        }
        *used += cost;
        true
    }

    pub(super) fn give_back(&self, cost: usize) {
        *lock(&self.used) -= cost;
        self.freed.notify_waiters();
    }

    /// What took `before` takes `after` from now on, though it be more than there is.
    pub(super) fn exchange(&self, before: usize, after: usize) {
        let mut used = lock(&self.used);
        *used = *used + after - before;
        drop(used);
        self.freed.notify_waiters();
    }

    /// What is taken.
    pub(super) fn used(&self) -> usize {
        *lock(&self.used)
    }
}
