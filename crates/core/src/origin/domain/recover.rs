//! A domain from what its store recovered. Pages are not read: recovered ops wait for their page.

use super::batch::{Batch, Item};
use super::boots::Boots;
use super::install::Installing;
use super::line::Line;
use super::load_queue::LoadQueue;
use super::pages::Pages;
use super::parts::{Parts, Replayed};
use super::pending::Pending;
use super::recent::RecentWrites;
use super::removal::Removal;
use super::volumes::Volume;
use super::{Domain, Service};
use crate::across::Prepared;
use crate::commit::{Op, PageKind, Write};
use crate::confirmed::Confirmed;
use crate::downlink::Ring;
use crate::id::{HistoryId, PageId, PageNo, Stamp, VolumeId};
use crate::machine::Fault;
use crate::message::{EPOCHS_MAX, Epoch};
use crate::origin::{OriginConfig, RecoverError, RecoveredDomain};
use crate::record::{Apart, DomainMeta, LogRecord, LostApart, Lsn, VolumeMeta};
use crate::time::{Instant, WallTime};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

impl Domain {
    /// Rebuilds the domain and gathers its new epoch; `settle` sends it.
    pub(in crate::origin) fn recover(
        config: &OriginConfig,
        now: Instant,
        wall: WallTime,
        recovered: RecoveredDomain,
    ) -> Result<Self, RecoverError> {
        let RecoveredDomain { meta, apart, records, history } = recovered;
        let mut domain = Self::from_meta(config, now, wall, &meta);
        let there = |page: PageId| meta.volumes.iter().any(|volume| volume.id == page.volume);
        for apart in apart {
            match apart {
                // Of a volume that was deleted: it will be removed.
                Ok(Apart { page, .. }) | Err(LostApart { page, .. }) if !there(page) => {}
                Ok(apart) => {
                    domain.install.damage.recovered(apart.page);
                    domain.pages.recover_apart(apart);
                }
                Err(lost) => {
                    domain.install.damage.lost(&lost);
                    domain.pages.recover_lost(lost);
                }
            }
        }
        let deleted = |record: &(Lsn, LogRecord)| match record.1 {
            LogRecord::Deleted { volume, .. } => Some(volume),
            _ => None,
        };
        let deleted: BTreeSet<VolumeId> = records.iter().filter_map(deleted).collect();
        let mut replayed = Replayed { prepared: None, decided: meta.decided.clone() };
        for (lsn, record) in records {
            if lsn != domain.next_lsn {
                return Err(RecoverError::Gap { expected: domain.next_lsn, found: lsn });
            }
            domain.next_lsn = Lsn(lsn.0 + 1);
            domain.durable_lsn = lsn;
            domain.replay(config, now, (lsn, record), (&deleted, &mut replayed))?;
        }
        domain.check_reaches(&meta)?;
        domain.pages.date_lost(domain.durable);
        let downlink = &config.downlink;
        domain.ring = Ring::new(domain.durable, downlink.ring_bytes_max, downlink.ring_commits_max);
        domain.recent = RecentWrites::new(domain.durable, config.recent_writes_max);
        domain.stamped = domain.durable;
        let epoch = Epoch { history, first: domain.durable.next() };
        assert!(
            domain.epochs.iter().all(|known| known.history != history),
            "a history's name is drawn anew at every start"
        );
        domain.add_epoch(epoch);
        if config.faults.has(Fault::DecisionForgotten) {
            replayed.decided.clear();
        }
        domain.recover_parts(history, replayed);
        domain.gather_epoch();
        Ok(domain)
    }

    /// The metadata was written with everything durable at the time, pages with it. When the log ends
    /// before that, its newest records are lost, and the engine may hold pages as they made them:
    /// the next commits would take their stamps, and the pages would pass for theirs.
    fn check_reaches(&self, meta: &DomainMeta) -> Result<(), RecoverError> {
        let there = meta.volumes.iter().map(|volume| (volume.version, volume.id));
        let deleted = meta.deleted.iter().map(|volume| (volume.stamp, volume.id));
        match there.chain(deleted).max().filter(|(version, _)| *version > self.durable) {
            Some((version, volume)) => {
                crate::probe::probe("pages-ahead-of-the-log");
                Err(RecoverError::Behind { volume, version, durable: self.durable })
            }
            None => Ok(()),
        }
    }

    /// Puts the epoch of this start into the append being gathered.
    pub(super) fn gather_epoch(&mut self) {
        let epoch = *self.epochs.last().expect("drawn at every start");
        self.gather(LogRecord::Epoch { epoch }, Item::Epoch);
    }

    fn from_meta(config: &OriginConfig, now: Instant, wall: WallTime, meta: &DomainMeta) -> Self {
        let reuse = config.faults.has(Fault::ReuseIds);
        let volumes = meta.volumes.iter().map(|meta| {
            let mut volume = Volume::new(meta.clone(), &config.access);
            if reuse {
                let (next_page, given) = (PageNo(2), Vec::new());
                let reused = VolumeMeta { next_page, given, ..meta.clone() };
                volume = Volume::new(reused, &config.access);
            }
            (meta.id, volume)
        });
        let downlink = &config.downlink;
        Self {
            id: meta.domain,
            service: Service::Starting,
            // Half of what a child's handshake may take.
            awaited_until: Some(now.after(config.downlink.hello_max / 2)),
            index_part_max: config.index_part_max,
            faults: config.faults,
            epochs: meta.epochs.clone(),
            durable: meta.installed,
            stamped: meta.installed,
            durable_lsn: meta.installed_lsn,
            next_lsn: Lsn(meta.installed_lsn.0 + 1),
            installed_lsn: meta.installed_lsn,
            wall: (wall, now),
            room: None,
            pages: Pages::new(config.page_cache_bytes),
            recent: RecentWrites::new(Stamp::ZERO, config.recent_writes_max),
            volumes: volumes.collect(),
            rights_changes: 0,
            boots: Boots::recover(&meta.boots, now),
            ring: Ring::new(Stamp::ZERO, downlink.ring_bytes_max, downlink.ring_commits_max),
            pending: Pending::default(),
            loading_commits: BTreeMap::new(),
            line: Line::new(now),
            ready: VecDeque::new(),
            taken_at: now,
            parts: Parts::recovered(meta.domain, HistoryId::default(), Replayed::default()),
            waiting_bytes: 0,
            pinned_bytes: 0,
            next_ticket: 0,
            gathering: Batch::default(),
            flying: None,
            append_after: None,
            house_after: None,
            registering: BTreeMap::new(),
            loading: BTreeMap::new(),
            load_queue: LoadQueue::default(),
            fetching: BTreeSet::new(),
            loads: BTreeMap::new(),
            page_loads: 0,
            index_wanted: Vec::new(),
            index_queue: VecDeque::new(),
            index_loads: 0,
            asked: VecDeque::new(),
            limits_at: None,
            install: Installing::recovered(meta.installed_lsn),
            removal: Removal::recovered(&meta.deleted, config.faults),
            copies: super::copy::Copies::default(),
            next_write: 0,
            next_load: 0,
            serve: BTreeSet::new(),
        }
    }

    /// Takes over one log record. The metadata may hold what it says already (it is written with
    /// everything durable at the time of an install), so that each is taken at most once.
    fn replay(
        &mut self,
        config: &OriginConfig,
        now: Instant,
        (lsn, record): (Lsn, LogRecord),
        (deleted, replayed): (&BTreeSet<VolumeId>, &mut Replayed),
    ) -> Result<(), RecoverError> {
        match record {
            LogRecord::Commit { stamp, id, grown, writes, decided, .. } => {
                self.replay_stamp(stamp)?;
                replayed.decided.extend(decided.map(|decided| *decided));
                replayed.prepared.take_if(|(prepared, _)| prepared.id == id);
                for growth in super::volumes::recovered(&writes, &grown) {
                    match self.volumes.get_mut(&growth.volume) {
                        Some(volume) => volume.replayed(stamp, growth),
                        // It was installed when that was durable already.
                        None if deleted.contains(&growth.volume) => {}
                        None => return Err(RecoverError::NoVolume(growth.volume)),
                    }
                }
                for Write { page, op } in writes {
                    if self.volumes.contains_key(&page.volume) {
                        self.pages.recover_op(page, lsn, stamp, op);
                    }
                }
                if !config.faults.has(Fault::LoseOutcomes) {
                    self.boots.committed(id, stamp);
                }
            }
            LogRecord::Boot { boot, name } => self.boots.register(boot, &name, now),
            LogRecord::Aborted { id, abort } => {
                if !config.faults.has(Fault::LoseRefusals) {
                    self.boots.aborted(id, &abort);
                }
            }
            LogRecord::Confirmed { boot, upto } if upto == u64::MAX => self.boots.forget(boot),
            LogRecord::Confirmed { boot, upto } => {
                self.boots.confirm(boot, &Confirmed::new(upto, []), now);
            }
            LogRecord::Ids { volume, next } => {
                let entry = match self.volumes.get_mut(&volume) {
                    None if deleted.contains(&volume) => return Ok(()),
                    entry => entry.ok_or(RecoverError::NoVolume(volume))?,
                };
                if !config.faults.has(Fault::ReuseIds) {
                    entry.meta.next_page = entry.meta.next_page.max(next);
                    entry.given = entry.meta.next_page;
                }
            }
            LogRecord::Volume { stamp, volume } => {
                self.replay_stamp(stamp)?;
                let root = PageId { volume: volume.id, page: PageNo(1) };
                let create = Op::CreatePage(PageKind::Slotted);
                self.pages.recover_op(root, lsn, stamp, create);
                let made = Volume::new(volume, &config.access);
                self.volumes.entry(made.meta.id).or_insert(made);
            }
            LogRecord::Settings { volume, settings } => {
                let entry = match self.volumes.get_mut(&volume) {
                    None if deleted.contains(&volume) => return Ok(()),
                    entry => entry.ok_or(RecoverError::NoVolume(volume))?,
                };
                entry.replay_settings(settings, &config.access);
            }
            LogRecord::Deleted { stamp, volume } => {
                self.replay_stamp(stamp)?;
                self.replay_deletion(stamp, volume, lsn);
            }
            LogRecord::Prepared { attempt, coordinator, id, grown, reads, writes } => {
                let changes = super::parts::touched(&writes);
                let prepared = Prepared { attempt, coordinator, id, grown, reads, writes, changes };
                if !config.faults.has(Fault::PreparedForgotten) {
                    replayed.prepared = Some((prepared, (lsn, self.durable.next())));
                }
            }
            LogRecord::Released { attempt } => {
                replayed.prepared.take_if(|(prepared, _)| prepared.attempt == attempt);
            }
            LogRecord::Epoch { epoch } => self.add_epoch(epoch),
        }
        Ok(())
    }

    fn replay_stamp(&mut self, stamp: Stamp) -> Result<(), RecoverError> {
        let expected = self.durable.next();
        if stamp != expected {
            return Err(RecoverError::Stamp { expected, found: stamp });
        }
        self.durable = stamp;
        Ok(())
    }

    fn add_epoch(&mut self, epoch: Epoch) {
        if self.epochs.iter().any(|known| known.history == epoch.history) {
            return;
        }
        self.epochs.push(epoch);
        self.volumes.values_mut().for_each(|volume| volume.begin(epoch.history));
        let surplus = self.epochs.len().saturating_sub(EPOCHS_MAX);
        self.epochs.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::DomainId;
    use crate::origin::Origin;

    /// The story: an install took page 9 as commit 11 had made it, though page 8 of commit 10 was not
    /// installed yet, so that its metadata names the log only up to before 10. The newest write of
    /// the log, with 11, rotted; recovery took it for a write that was torn, and began at 10. The next
    /// commit 11 was another, and page 9 passed for its work.
    #[test]
    fn pages_ahead_of_the_log_are_refused() {
        let volume = |version| VolumeMeta {
            id: VolumeId(5),
            name: "five".into(),
            page_bytes: 4096,
            next_page: PageNo(10),
            version: Stamp(version),
            pages: 2,
            bytes: 64,
            settings: crate::record::VolumeSettings::default(),
            given: Vec::new(),
        };
        let started = |version| {
            let meta = DomainMeta {
                domain: DomainId(1),
                installed_lsn: Lsn(20),
                installed: Stamp(10),
                epochs: Vec::new(),
                volumes: vec![volume(version)],
                deleted: Vec::new(),
                boots: Vec::new(),
                decided: Vec::new(),
            };
            let recovered = RecoveredDomain {
                meta,
                apart: Vec::new(),
                records: Vec::new(),
                history: HistoryId(1),
            };
            let (config, mut out) = (OriginConfig::default(), Vec::new());
            let origin = Origin::new(config, Instant(0), WallTime(0), vec![recovered], &mut out);
            origin.map(|_| ())
        };
        assert_eq!(started(10), Ok(()));
        let (volume, version, durable) = (VolumeId(5), Stamp(11), Stamp(10));
        assert_eq!(started(11), Err(RecoverError::Behind { volume, version, durable }));
    }
}
