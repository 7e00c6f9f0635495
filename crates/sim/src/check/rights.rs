//! Whether a commit had the right to write, by the log: who its boot belongs to and what was said of
//! the volume before it. Names only, no patterns: that is what runs say.

use larder_core::commit::Write;
use larder_core::id::{BootId, CommitId, VolumeId};
use larder_core::message::certificate_of;
use larder_core::origin::RecoveredDomain;
use larder_core::record::LogRecord;
use larder_core::rights::{Right, Rights};
use std::collections::{BTreeMap, BTreeSet};

/// Who may do what in a domain, by its durable log records. Of whom nothing is said may do everything.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    names: BTreeMap<BootId, String>,
    rights: BTreeMap<VolumeId, BTreeMap<String, Right>>,
    /// Parts of transactions over several domains that were.
    prepared: BTreeSet<CommitId>,
}

impl Allowed {
    /// As a store was recovered.
    #[must_use]
    pub fn recovered(found: &RecoveredDomain) -> Self {
        let mut allowed = Self::default();
        for boot in &found.meta.boots {
            allowed.names.insert(boot.boot, boot.name.clone());
        }
        for volume in &found.meta.volumes {
            allowed.say(volume.id, &volume.settings.rights);
        }
        for (_, record) in &found.records {
            // A commit may be of before a change that the metadata tells already.
            allowed.take(record, false);
        }
        allowed
    }

    /// Who may not read a volume.
    pub fn unreadable(&self, volume: VolumeId) -> impl Iterator<Item = String> {
        let said = self.rights.get(&volume).into_iter().flatten();
        said.filter(|(_, right)| **right < Right::Read).map(|(who, _)| who.clone())
    }

    /// A record has become durable.
    pub fn durable(&mut self, record: &LogRecord) {
        self.take(record, true);
    }

    fn say(&mut self, volume: VolumeId, rights: &Rights) {
        let said = rights.entries().map(|(who, right)| (who.to_owned(), right));
        self.rights.insert(volume, said.collect());
    }

    fn take(&mut self, record: &LogRecord, held: bool) {
        match record {
            LogRecord::Boot { boot, name } => {
                self.names.insert(*boot, name.clone());
            }
            LogRecord::Settings { volume, settings } => self.say(*volume, &settings.rights),
            // What is decided is not judged again: rights count when it is prepared (decision 0035).
            LogRecord::Prepared { id, writes, .. } => {
                self.prepared.insert(*id);
                if held {
                    self.judge("what was prepared", *id, writes);
                }
            }
            LogRecord::Commit { stamp, id, writes, .. } if held && !self.prepared.remove(id) => {
                self.judge(&format!("commit {stamp}"), *id, writes);
            }
            _ => {}
        }
    }

    fn judge(&self, what: &str, id: CommitId, writes: &[Write]) {
        for write in writes {
            let name = self.names.get(&id.boot).map_or("", |name| certificate_of(name));
            let said = self.rights.get(&write.page.volume).and_then(|said| said.get(name));
            let right = said.copied().unwrap_or(Right::Admin);
            assert!(
                right >= Right::Write,
                "rights: {what} of {name}, which has {right}, wrote to {}",
                write.page.volume
            );
        }
    }
}
