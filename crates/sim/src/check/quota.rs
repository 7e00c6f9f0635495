//! What volumes take, and whether a commit passed a quota: by the log and by the images of pages, as
//! the store has them, not by what the origin counts.

use larder_core::commit::{Op, Write};
use larder_core::id::{CommitId, Stamp, VolumeId};
use larder_core::origin::RecoveredDomain;
use larder_core::record::{InstallBatch, LogRecord, Lsn};
use larder_store::pages::{ModelPages, Pages};
use std::collections::{BTreeMap, BTreeSet};

/// What a commit that deletes may grow a volume past its quota, in bytes.
const FREEING_BYTES: i64 = 64 << 10;

/// A volume by the log.
#[derive(Clone, Copy, Debug, Default)]
struct Volume {
    bytes: i64,
    quota: Option<u64>,
    /// Commits up to this one are counted.
    counted: Stamp,
}

/// The volumes of a domain, by its durable log records.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    volumes: BTreeMap<VolumeId, Volume>,
    /// Parts of transactions over several domains that were.
    prepared: BTreeSet<CommitId>,
}

impl Ledger {
    /// As a store was recovered.
    #[must_use]
    pub fn recovered(found: &RecoveredDomain) -> Self {
        let mut ledger = Self::default();
        for meta in &found.meta.volumes {
            let bytes = i64::try_from(meta.bytes).expect("a volume of a run is small");
            let (quota, counted) = (meta.settings.quota, meta.version);
            ledger.volumes.insert(meta.id, Volume { bytes, quota, counted });
        }
        for (_, record) in &found.records {
            // A commit may be of before a quota that the metadata tells already.
            ledger.take(record, false);
        }
        ledger
    }

    /// A record has become durable.
    pub fn durable(&mut self, record: &LogRecord) {
        self.take(record, true);
    }

    /// What a volume takes.
    #[must_use]
    pub fn bytes(&self, volume: VolumeId) -> u64 {
        let bytes = self.volumes.get(&volume).map_or(0, |volume| volume.bytes);
        u64::try_from(bytes).expect("no volume takes less than nothing")
    }

    fn take(&mut self, record: &LogRecord, held: bool) {
        match record {
            LogRecord::Volume { stamp, volume } => {
                let bytes = i64::try_from(volume.bytes).expect("a volume of a run is small");
                let made = Volume { bytes, quota: volume.settings.quota, counted: *stamp };
                self.volumes.entry(volume.id).or_insert(made);
            }
            LogRecord::Settings { volume, settings } => {
                self.volumes.entry(*volume).or_default().quota = settings.quota;
            }
            // What is decided is not judged again: it is counted when it is prepared (decision 0035).
            LogRecord::Prepared { id, .. } => {
                self.prepared.insert(*id);
            }
            LogRecord::Commit { stamp, id, writes, grown, .. } => {
                let held = held && !self.prepared.remove(id);
                for (volume, by) in volumes(writes).into_iter().zip(grown) {
                    let entry = self.volumes.entry(volume).or_default();
                    if entry.counted >= *stamp {
                        continue;
                    }
                    (entry.bytes, entry.counted) = (entry.bytes + by, *stamp);
                    let frees = |write: &Write| {
                        matches!(write.op, Op::Delete { .. } | Op::DeletePage)
                            && write.page.volume == volume
                    };
                    let reserve = if writes.iter().any(frees) { FREEING_BYTES } else { 0 };
                    let quota = entry.quota.and_then(|quota| i64::try_from(quota).ok());
                    assert!(
                        !held || *by <= 0 || quota.is_none_or(|most| entry.bytes <= most + reserve),
                        "quota: commit {stamp} grew {volume} by {by} to {entry:?}"
                    );
                }
            }
            LogRecord::Deleted { volume, .. } => {
                self.volumes.remove(volume);
            }
            LogRecord::Boot { .. }
            | LogRecord::Aborted { .. }
            | LogRecord::Confirmed { .. }
            | LogRecord::Ids { .. }
            | LogRecord::Released { .. }
            | LogRecord::Epoch { .. } => {}
        }
    }
}

/// The volumes that a commit writes, in the order of their first writes.
fn volumes(writes: &[Write]) -> Vec<VolumeId> {
    let mut volumes = Vec::new();
    for write in writes {
        if !volumes.contains(&write.page.volume) {
            volumes.push(write.page.volume);
        }
    }
    volumes
}

/// When all that is durable is installed, what is told of a volume is what its images are. Nothing is
/// said of a store with pages that cannot be read.
pub fn check_installed(batch: &InstallBatch, pages: &ModelPages, last: Lsn) {
    if batch.meta.installed_lsn != last || pages.apart() != Ok(Vec::new()) {
        return;
    }
    let mut found: BTreeMap<VolumeId, (u64, u64)> = BTreeMap::new();
    for (page, stored) in pages.all() {
        if pages.load(page).is_err() {
            return;
        }
        if let Some(image) = stored.image {
            let (count, bytes) = found.entry(page.volume).or_default();
            (*count, *bytes) = (*count + 1, *bytes + image.len() as u64);
        }
    }
    for volume in &batch.meta.volumes {
        let images = found.get(&volume.id).copied().unwrap_or_default();
        assert_eq!(images, (volume.pages, volume.bytes), "what {} takes is miscounted", volume.id);
    }
}
