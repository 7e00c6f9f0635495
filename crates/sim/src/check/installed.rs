//! What the page engine holds of a durable log: all that an install's metadata says that recovery need not read again. A
//! start from there would show what is missing, but only a power cut that comes before the next install.

use larder_core::commit::{PartId, Write};
use larder_core::id::{Attempt, BootId, CommitId, HistoryId, PageId, PageNo, Stamp, VolumeId};
use larder_core::message::EPOCHS_MAX;
use larder_core::origin::RecoveredDomain;
use larder_core::record::{Apart, DomainMeta, InstallBatch, LogRecord, Lsn, VolumeSettings};
use larder_store::pages::{ModelPages, Pages};
use std::collections::{BTreeMap, BTreeSet};

/// What a durable record says that has to outlive it.
#[derive(Clone, Debug)]
enum Kept {
    /// Pages are of this version.
    Pages(Stamp, Vec<PageId>),
    /// A commit ended.
    Outcome(CommitId),
    /// Numbers below this one are given away.
    Ids(VolumeId, PageNo),
    /// A history began.
    History(HistoryId),
}

/// The durable records of a domain that may not be installed yet, by what has to outlive them.
#[derive(Clone, Debug, Default)]
pub struct Uninstalled {
    records: BTreeMap<Lsn, Vec<Kept>>,
    /// Boots that are not forgotten, each with the record that registered it.
    boots: BTreeMap<BootId, Lsn>,
    /// Volumes that are there, each with the record that made it.
    volumes: BTreeMap<VolumeId, Lsn>,
    /// What was said of a volume last, and by which record.
    settings: BTreeMap<VolumeId, (Lsn, VolumeSettings)>,
    /// Records up to this one are not read again.
    through: Lsn,
    /// What is prepared and has not ended, as far as the log says.
    prepared: Option<(Lsn, CommitId)>,
    /// Decisions, each with the record that it is and the parts that may not have been followed.
    decided: BTreeMap<Attempt, (Lsn, Vec<PartId>)>,
    /// Parts that were prepared here and have ended.
    ended: BTreeSet<CommitId>,
    /// A copy from the past, or nothing, is in the place of what was durable.
    branched: bool,
    /// What was kept apart from these is damaged: nothing of them is.
    lost: BTreeSet<PageId>,
}

impl Uninstalled {
    /// As a store was recovered.
    pub fn recover(&mut self, found: &RecoveredDomain) {
        let mut this = Self { through: found.meta.installed_lsn, ..Self::default() };
        (this.ended, this.branched) = (std::mem::take(&mut self.ended), self.branched);
        let decided = found.meta.decided.iter();
        this.decided.extend(decided.map(|it| (it.attempt, (Lsn(0), it.participants.clone()))));
        this.volumes.extend(found.meta.volumes.iter().map(|volume| (volume.id, Lsn(0))));
        this.boots.extend(found.meta.boots.iter().map(|boot| (boot.boot, Lsn(0))));
        this.lost.extend(found.apart.iter().filter_map(|apart| Some(apart.as_ref().err()?.page)));
        for (lsn, record) in &found.records {
            this.durable(*lsn, record);
            // What metadata says of it is newer, and may be of a record that was lost with the end of the log.
            if let LogRecord::Volume { volume, .. } = record
                && found.meta.volumes.iter().any(|meta| meta.id == volume.id)
            {
                this.settings.remove(&volume.id);
            }
        }
        *self = this;
    }

    /// What was durable is lost.
    pub fn branch(&mut self) {
        self.branched = true;
    }

    /// Whether any of it is.
    #[must_use]
    pub fn has_branched(&self) -> bool {
        self.branched
    }

    /// Whether a part that was prepared here has ended.
    #[must_use]
    pub fn has_ended(&self, part: CommitId) -> bool {
        self.ended.contains(&part)
    }

    /// A record has become durable.
    pub fn durable(&mut self, lsn: Lsn, record: &LogRecord) {
        let kept = match record {
            LogRecord::Commit { stamp, id, writes, decided, .. } => {
                if let Some(decided) = decided {
                    self.decided.insert(decided.attempt, (lsn, decided.participants.clone()));
                }
                if let Some((lsn, _)) = self.prepared.take_if(|(_, prepared)| prepared == id) {
                    assert!(
                        lsn > self.through,
                        "P8: {id:?}, which was prepared by record {}, is committed after an install up to {}: until \
                         then a start would have known nothing of it",
                        lsn.0,
                        self.through.0
                    );
                    self.ended.insert(*id);
                }
                vec![Kept::Outcome(*id), Kept::Pages(*stamp, pages(writes))]
            }
            LogRecord::Prepared { id, .. } => {
                self.prepared = Some((lsn, *id));
                self.ended.remove(id);
                Vec::new()
            }
            LogRecord::Released { .. } => {
                self.prepared = None;
                Vec::new()
            }
            LogRecord::Aborted { id, .. } => vec![Kept::Outcome(*id)],
            LogRecord::Ids { volume, next } => vec![Kept::Ids(*volume, *next)],
            LogRecord::Volume { volume, stamp } => {
                self.volumes.entry(volume.id).or_insert(lsn);
                self.settings.insert(volume.id, (lsn, volume.settings.clone()));
                vec![Kept::Pages(*stamp, vec![PageId { volume: volume.id, page: PageNo(1) }])]
            }
            LogRecord::Settings { volume, settings } => {
                self.settings.insert(*volume, (lsn, settings.clone()));
                Vec::new()
            }
            LogRecord::Epoch { epoch } => vec![Kept::History(epoch.history)],
            // A boot that is forgotten may be made anew, and has no outcomes then.
            LogRecord::Confirmed { boot, upto: u64::MAX } => {
                self.boots.remove(boot);
                let is_its = |kept: &Kept| matches!(kept, Kept::Outcome(id) if id.boot == *boot);
                self.records.values_mut().for_each(|kept| kept.retain(|kept| !is_its(kept)));
                Vec::new()
            }
            LogRecord::Deleted { volume, stamp } => {
                self.volumes.remove(volume);
                self.settings.remove(volume);
                vec![Kept::Pages(*stamp, vec![PageId::of_volume(*volume)])]
            }
            LogRecord::Boot { boot, .. } => {
                self.boots.entry(*boot).or_insert(lsn);
                Vec::new()
            }
            LogRecord::Confirmed { .. } => Vec::new(),
        };
        if !kept.is_empty() {
            self.records.insert(lsn, kept);
        }
    }

    /// A batch was installed. Panics when anything of the records that recovery will not read again is missing. Gives
    /// the parts that have followed what was decided here, as it says.
    #[must_use]
    pub fn installed(&mut self, batch: &InstallBatch, pages: &ModelPages) -> Vec<PartId> {
        let meta = &batch.meta;
        let through = meta.installed_lsn;
        self.through = through;
        for (volume, lsn) in &self.volumes {
            let there = meta.volumes.iter().any(|meta| meta.id == *volume);
            assert!(there || *lsn > through, "P8: {volume} is not in the metadata any more");
        }
        for (boot, lsn) in &self.boots {
            let there = meta.boots.binary_search_by_key(boot, |meta| meta.boot).is_ok();
            assert!(there || *lsn > through, "P11: {boot:?} is not in the metadata any more");
        }
        for (volume, (lsn, settings)) in &self.settings {
            let said = meta.volumes.iter().find(|meta| meta.id == *volume);
            let is_it = said.is_none_or(|said| said.settings == *settings);
            assert!(is_it || *lsn > through, "P8: what was said of {volume} last is not installed");
        }
        let later = self.records.split_off(&Lsn(through.0 + 1));
        for (lsn, kept) in std::mem::replace(&mut self.records, later) {
            kept.iter().for_each(|kept| self.holds(lsn, kept, meta, pages));
        }
        self.followed(meta)
    }

    fn followed(&mut self, meta: &DomainMeta) -> Vec<PartId> {
        let mut followed = Vec::new();
        for (attempt, (lsn, left)) in &mut self.decided {
            let said = meta.decided.iter().find(|it| it.attempt == *attempt);
            if *lsn <= meta.installed_lsn {
                let still = |part: &PartId| said.is_some_and(|it| it.participants.contains(part));
                followed.extend(left.extract_if(.., |part| !still(part)));
            }
        }
        self.decided.retain(|_, (_, left)| !left.is_empty());
        followed
    }

    fn holds(&self, lsn: Lsn, kept: &Kept, meta: &DomainMeta, pages: &ModelPages) {
        match kept {
            Kept::Pages(stamp, written) => {
                for page in written {
                    let there = page.is_volume() || self.volumes.contains_key(&page.volume);
                    assert!(
                        !there || self.lost.contains(page) || has(pages, *page, *stamp),
                        "P8: page {page} is not installed as of {stamp}, and record {}, which changed it, is not \
                         read again",
                        lsn.0
                    );
                }
            }
            Kept::Outcome(id) => {
                // One that is not there was never registered, or was forgotten.
                let boot = meta.boots.iter().find(|boot| boot.boot == id.boot);
                let known = boot.is_none_or(|boot| {
                    id.sequence <= boot.confirmed
                        || boot.committed.iter().any(|(sequence, _)| *sequence == id.sequence)
                        || boot.aborted.iter().any(|(sequence, _)| *sequence == id.sequence)
                });
                assert!(known, "P11: how {id:?} ended is in no record that is read again");
            }
            Kept::Ids(volume, next) => {
                let meta = meta.volumes.iter().find(|meta| meta.id == *volume);
                let given = meta.is_none_or(|meta| meta.next_page >= *next);
                assert!(given, "numbers of {volume} below {next:?} would be given again");
            }
            Kept::History(history) => {
                // The one that begins is one of those that are kept, and not durable yet.
                let many = meta.epochs.len() + 1 >= EPOCHS_MAX;
                let there = many || meta.epochs.iter().any(|epoch| epoch.history == *history);
                assert!(there, "P12: {history:?} is in no record that is read again");
            }
        }
    }
}

/// Whether the engine has a page as of a stamp.
fn has(pages: &ModelPages, page: PageId, stamp: Stamp) -> bool {
    let of_page = |apart: &Apart| apart.page == page;
    let apart = pages.apart().expect("the model has it in memory");
    let apart = apart.into_iter().filter_map(Result::ok).find(of_page);
    let through = apart.and_then(|apart| apart.changes.last().map(|(stamp, _)| *stamp));
    through.is_some_and(|through| through >= stamp)
        || pages.load(page).is_ok_and(|stored| stored.is_some_and(|it| it.version >= stamp))
}

fn pages(writes: &[Write]) -> Vec<PageId> {
    writes.iter().map(|write| write.page).collect()
}
