//! What the origin's log holds, as its disk was told: what clients were told is held to it.

use larder_core::commit::Op;
use larder_core::id::{DomainId, ObjectId, PageId, Slot, Stamp};
use larder_core::page::Record;
use larder_core::record::{LogRecord, Lsn};
use std::collections::{BTreeMap, BTreeSet};

/// Marks the tag of a writer among the bytes of a value.
const MARK: [u8; 8] = *b"written:";

/// A value: a number that may be added to, and whose it is.
pub(super) fn value(number: u64, tag: u64, fill: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.extend(MARK);
    value.extend(tag.to_le_bytes());
    value.resize(value.len() + fill as usize, 0x2e);
    value
}

/// The tag in some bytes.
pub(super) fn tag_in(bytes: &[u8]) -> Option<u64> {
    let at = bytes.windows(MARK.len()).position(|part| part == MARK)? + MARK.len();
    let tag = bytes.get(at..at + 8)?;
    Some(u64::from_le_bytes(tag.try_into().expect("eight bytes")))
}

/// A record: its stamp, if it is a commit, and the tags of who wrote it.
type Entry = (Option<Stamp>, BTreeSet<u64>);

/// The records of all domains.
#[derive(Default)]
pub(super) struct Ledger {
    domains: BTreeMap<DomainId, BTreeMap<Lsn, Entry>>,
    /// Slots whose objects outgrew their pages at some time: their bytes are elsewhere since.
    moved: BTreeSet<(PageId, Slot)>,
    /// What clients were told: the stamp of what was done, or none for what was not.
    told: BTreeMap<u64, (DomainId, Option<Stamp>)>,
}

fn entry(record: &LogRecord) -> Entry {
    let LogRecord::Commit { stamp, writes, .. } = record else {
        return (None, BTreeSet::new());
    };
    let tags = writes.iter().filter_map(|write| match &write.op {
        Op::Put { value, .. } => tag_in(value),
        Op::WriteRaw { bytes, .. } => tag_in(bytes),
        _ => None,
    });
    (Some(*stamp), tags.collect())
}

impl Ledger {
    /// Records are about to be appended: those of the same numbers were not.
    pub(super) fn appends(&mut self, domain: DomainId, records: &[(Lsn, LogRecord)]) {
        self.note_moved(records);
        let log = self.domains.entry(domain).or_default();
        if let Some((first, _)) = records.first() {
            log.split_off(first);
        }
        log.extend(records.iter().map(|(lsn, record)| (*lsn, entry(record))));
    }

    /// The log was opened: what it does not have any more is lost.
    pub(super) fn recovered(
        &mut self,
        domain: DomainId,
        installed: Lsn,
        records: &[(Lsn, LogRecord)],
    ) {
        let log = self.domains.entry(domain).or_default();
        log.split_off(&Lsn(installed.0 + 1));
        log.extend(records.iter().map(|(lsn, record)| (*lsn, entry(record))));
    }

    fn note_moved(&mut self, records: &[(Lsn, LogRecord)]) {
        for (_, record) in records {
            let LogRecord::Commit { writes, .. } = record else { continue };
            for write in writes {
                if let Op::Put { slot, value, .. } = &write.op
                    && let Ok(Record::Forward(_)) = Record::decode(value.clone())
                {
                    self.moved.insert((write.page, *slot));
                }
            }
        }
    }

    /// Whether an object may be kept in another page than its own: that page's changes tell of it.
    pub(super) fn may_have_moved(&self, object: ObjectId) -> bool {
        self.moved.contains(&(object.page, object.slot))
    }

    /// Somebody was told that a commit was done, or that it was not.
    pub(super) fn told(&mut self, tag: u64, domain: DomainId, stamp: Option<Stamp>) {
        let before = self.told.insert(tag, (domain, stamp));
        assert!(
            before.is_none_or(|before| before == (domain, stamp)),
            "P11: commit {tag:x} was told as {before:?}, and then as {stamp:?}"
        );
    }

    /// The stamps at which a writer is in the log.
    pub(super) fn stamps(&self, domain: DomainId, tag: u64) -> Vec<Stamp> {
        let records = self.domains.get(&domain).into_iter().flat_map(BTreeMap::values);
        records.filter(|(_, tags)| tags.contains(&tag)).filter_map(|(stamp, _)| *stamp).collect()
    }

    /// By tag, where each writer is in the log. Each is there once.
    pub(super) fn all(&self) -> BTreeMap<u64, Stamp> {
        let mut all = BTreeMap::new();
        for (stamp, tags) in self.domains.values().flat_map(BTreeMap::values) {
            for tag in tags {
                let stamp = stamp.expect("only commits have tags");
                let before = all.insert(*tag, stamp);
                assert!(before.is_none(), "P11: {tag:x} was done at {before:?} and at {stamp}");
            }
        }
        all
    }

    /// The number of the last commit.
    pub(super) fn last_commit(&self, domain: DomainId) -> Option<Lsn> {
        let mut records = self.domains.get(&domain)?.iter();
        records.rfind(|(_, (stamp, _))| stamp.is_some()).map(|(lsn, _)| *lsn)
    }

    /// Everything that clients were told is so.
    pub(super) fn check(&self) {
        let all = self.all();
        for (tag, (_, told)) in &self.told {
            let is = all.get(tag);
            assert!(
                is == told.as_ref(),
                "P1, P11: the client of {tag:x} was told {told:?}, and the log has it at {is:?}"
            );
        }
    }
}
