//! A disk in memory with the faults that the log must live with.
//!
//! The fault model, by sector of 512 bytes and by name:
//! - Written and not synced: at a power cut each sector is kept, lost, or kept with a bit flipped
//!   among the bytes that the write changed. What the sector held before stays whole.
//! - Made, renamed or removed and the directory not synced: at a power cut each such step is kept
//!   or lost by itself.
//! - A failed sync: some of the sectors reached the disk, the others never will, and a later sync
//!   says nothing of them. Until the power is cut the process still reads what it wrote.
//! - A full disk: what needs room fails before anything is written.
//! - A killed process loses nothing that it wrote: the next one reads it, synced or not.

use larder_core::rng::Rng;
use larder_store::disk::{Disk, DiskError, DiskFile};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

const SECTOR_BYTES: usize = 512;

/// The disk of one domain. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct SimDisk(Arc<Mutex<State>>);

/// An open file of it.
#[derive(Debug)]
pub struct SimFile {
    disk: SimDisk,
    name: String,
    inode: usize,
}

#[derive(Clone, Debug, Default)]
struct State {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    names_durable: BTreeMap<String, usize>,
    /// Steps since the directory was last synced.
    steps: Vec<Step>,
    quota_bytes: Option<u64>,
    sync_fails: u32,
    /// The process dies before any sync that it asks for is done.
    syncs_held: bool,
    syncs: u64,
    rng: Option<Rng>,
}

#[derive(Clone, Debug)]
enum Step {
    Create(String, usize),
    Remove(String),
    Rename(String, String),
}

#[derive(Clone, Debug, Default)]
struct Inode {
    now: Content,
    durable: Content,
    /// Sectors that differ, as far as the system still means to write them.
    dirty: BTreeSet<u64>,
}

#[derive(Clone, Debug, Default)]
struct Content {
    length: u64,
    sectors: BTreeMap<u64, [u8; SECTOR_BYTES]>,
}

impl SimDisk {
    /// An empty disk, whose faults are drawn from `rng`.
    #[must_use]
    pub fn new(rng: Rng) -> Self {
        let disk = Self::default();
        disk.state().rng = Some(rng);
        disk
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no step of a disk panics while it holds the lock")
    }

    /// A disk of its own with the same content: what a backup made now would hold.
    #[must_use]
    pub fn copy(&self) -> Self {
        let mut state = self.state().clone();
        for inode in &mut state.inodes {
            inode.now = inode.durable.clone();
            inode.dirty.clear();
        }
        state.names = state.names_durable.clone();
        state.steps.clear();
        state.sync_fails = 0;
        state.quota_bytes = None;
        Self(Arc::new(Mutex::new(state)))
    }

    /// The power is cut: what was not synced is kept or lost.
    pub fn cut_power(&self) {
        let mut state = self.state();
        let state = &mut *state;
        let rng = state.rng.as_mut().expect("set when it was made");
        // Wild weights: mostly all lost, mostly all kept, or a mixture.
        let kept_percent = [0, 10, 50, 90, 100][rng.below(5) as usize];
        let rot = rng.chance(1, 4);
        for inode in &mut state.inodes {
            inode.cut_power(rng, kept_percent, rot);
        }
        for step in std::mem::take(&mut state.steps) {
            if rng.below(100) < kept_percent {
                step.apply(&mut state.names_durable);
            }
        }
        state.names = state.names_durable.clone();
        state.sync_fails = 0;
    }

    /// The next `count` syncs fail.
    pub fn fail_syncs(&self, count: u32) {
        self.state().sync_fails = count;
    }

    /// The process is dying: syncs end in an error and do nothing, while writes are still made.
    pub fn hold_syncs(&self, held: bool) {
        self.state().syncs_held = held;
    }

    /// At most so many bytes may be allocated from now on; none: no limit.
    pub fn set_quota(&self, bytes: Option<u64>) {
        self.state().quota_bytes = bytes;
    }

    /// Bytes allocated.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.state().allocated()
    }

    /// Syncs that succeeded so far.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.state().syncs
    }

    fn file(&self, name: &str, inode: usize) -> SimFile {
        SimFile { disk: self.clone(), name: name.into(), inode }
    }
}

impl State {
    fn allocated(&self) -> u64 {
        self.names.values().map(|inode| self.inodes[*inode].now.length).sum()
    }

    fn room(&self, more: u64, file: &str, operation: &'static str) -> Result<(), DiskError> {
        match self.quota_bytes {
            Some(quota) if more > 0 && self.allocated() + more > quota => {
                Err(DiskError::Full { file: file.into(), operation })
            }
            _ => Ok(()),
        }
    }

    fn sync_may_fail(&mut self, file: &str, inode: Option<usize>) -> Result<(), DiskError> {
        if self.sync_fails == 0 && !self.syncs_held {
            self.syncs += 1;
            return Ok(());
        }
        self.sync_fails = self.sync_fails.saturating_sub(1);
        if let (Some(inode), false) = (inode, self.syncs_held) {
            let rng = self.rng.as_mut().expect("set when it was made");
            self.inodes[inode].sync_fails(rng);
        }
        Err(DiskError::Failed {
            file: file.into(),
            operation: "sync",
            detail: "input/output error (simulated)".into(),
        })
    }
}

impl Step {
    fn apply(self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Create(name, inode) => {
                names.insert(name, inode);
            }
            Self::Remove(name) => {
                names.remove(&name);
            }
            Self::Rename(from, to) => {
                if let Some(inode) = names.remove(&from) {
                    names.insert(to, inode);
                }
            }
        }
    }
}

impl Inode {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.now.write(offset, bytes);
        let first = offset / SECTOR_BYTES as u64;
        let last = (offset + bytes.len() as u64).saturating_sub(1) / SECTOR_BYTES as u64;
        self.dirty.extend(first..=last);
    }

    fn sync(&mut self) {
        for sector in std::mem::take(&mut self.dirty) {
            self.persist(sector);
        }
        self.durable.length = self.now.length;
    }

    fn persist(&mut self, sector: u64) {
        if let Some(bytes) = self.now.sectors.get(&sector) {
            self.durable.sectors.insert(sector, *bytes);
        }
    }

    fn sync_fails(&mut self, rng: &mut Rng) {
        for sector in std::mem::take(&mut self.dirty) {
            if rng.chance(1, 2) {
                self.persist(sector);
            }
        }
        if rng.chance(1, 2) {
            self.durable.length = self.now.length;
        }
    }

    fn cut_power(&mut self, rng: &mut Rng, kept_percent: u64, rot: bool) {
        for sector in std::mem::take(&mut self.dirty) {
            if rng.below(100) < kept_percent {
                let before = self.durable.sectors.get(&sector).copied();
                self.persist(sector);
                if rot && rng.chance(1, 3) {
                    self.rot(rng, sector, before.unwrap_or([0; SECTOR_BYTES]));
                }
            }
        }
        if self.durable.length != self.now.length && rng.below(100) < kept_percent {
            self.durable.length = self.now.length;
        }
        self.now = self.durable.clone();
    }

    /// Flips a bit of a byte that the unsynced write changed.
    fn rot(&mut self, rng: &mut Rng, sector: u64, before: [u8; SECTOR_BYTES]) {
        let Some(bytes) = self.durable.sectors.get_mut(&sector) else {
            return;
        };
        let changed: Vec<usize> =
            (0..SECTOR_BYTES).filter(|place| bytes[*place] != before[*place]).collect();
        if !changed.is_empty() {
            bytes[changed[rng.below(changed.len() as u64) as usize]] ^= 1 << rng.below(8);
        }
    }
}

impl Content {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut offset = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let within = (offset % SECTOR_BYTES as u64) as usize;
            let count = rest.len().min(SECTOR_BYTES - within);
            let sector =
                self.sectors.entry(offset / SECTOR_BYTES as u64).or_insert([0; SECTOR_BYTES]);
            sector[within..within + count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            offset += count as u64;
        }
        self.length = self.length.max(offset);
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let left = self.length.saturating_sub(offset).min(buffer.len() as u64);
        let left = usize::try_from(left).expect("no more than the buffer");
        let mut done = 0;
        while done < left {
            let place = offset + done as u64;
            let within = (place % SECTOR_BYTES as u64) as usize;
            let count = (left - done).min(SECTOR_BYTES - within);
            let part = &mut buffer[done..done + count];
            match self.sectors.get(&(place / SECTOR_BYTES as u64)) {
                Some(sector) => part.copy_from_slice(&sector[within..within + count]),
                None => part.fill(0),
            }
            done += count;
        }
        left
    }

    fn cut(&mut self, length: u64) {
        let first_gone = length.div_ceil(SECTOR_BYTES as u64);
        self.sectors.split_off(&first_gone);
        let within = (length % SECTOR_BYTES as u64) as usize;
        if let (true, Some(sector)) =
            (within > 0, self.sectors.get_mut(&(length / SECTOR_BYTES as u64)))
        {
            sector[within..].fill(0);
        }
        self.length = length;
    }
}

impl Disk for SimDisk {
    type File = SimFile;

    fn create(&self, name: &str) -> Result<SimFile, DiskError> {
        let mut state = self.state();
        if state.names.contains_key(name) {
            return Err(DiskError::Exists { file: name.into() });
        }
        state.inodes.push(Inode::default());
        let inode = state.inodes.len() - 1;
        state.names.insert(name.into(), inode);
        state.steps.push(Step::Create(name.into(), inode));
        Ok(self.file(name, inode))
    }

    fn open(&self, name: &str) -> Result<SimFile, DiskError> {
        match self.state().names.get(name) {
            Some(inode) => Ok(self.file(name, *inode)),
            None => Err(DiskError::Missing { file: name.into() }),
        }
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        Ok(self.state().names.keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        let mut state = self.state();
        if state.names.remove(name).is_none() {
            return Err(DiskError::Missing { file: name.into() });
        }
        state.steps.push(Step::Remove(name.into()));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let mut state = self.state();
        if !state.names.contains_key(from) {
            return Err(DiskError::Missing { file: from.into() });
        }
        let step = Step::Rename(from.into(), to.into());
        step.clone().apply(&mut state.names);
        state.steps.push(step);
        Ok(())
    }

    fn sync_directory(&self) -> Result<(), DiskError> {
        let mut state = self.state();
        state.sync_may_fail("directory", None)?;
        state.steps.clear();
        state.names_durable = state.names.clone();
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64, DiskError> {
        let state = self.state();
        let quota = state.quota_bytes.unwrap_or(1 << 40);
        Ok(quota.saturating_sub(state.allocated()))
    }
}

impl DiskFile for SimFile {
    fn length(&self) -> Result<u64, DiskError> {
        Ok(self.disk.state().inodes[self.inode].now.length)
    }

    fn preallocate(&self, bytes: u64) -> Result<(), DiskError> {
        let mut state = self.disk.state();
        let length = state.inodes[self.inode].now.length;
        state.room(bytes.saturating_sub(length), &self.name, "preallocate")?;
        let content = &mut state.inodes[self.inode].now;
        if bytes < length {
            content.cut(bytes);
        } else {
            content.length = bytes;
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        Ok(self.disk.state().inodes[self.inode].now.read(offset, buffer))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let mut state = self.disk.state();
        let length = state.inodes[self.inode].now.length;
        let more = (offset + bytes.len() as u64).saturating_sub(length);
        state.room(more, &self.name, "write")?;
        state.inodes[self.inode].write(offset, bytes);
        Ok(())
    }

    fn sync(&self) -> Result<(), DiskError> {
        let mut state = self.disk.state();
        state.sync_may_fail(&self.name, Some(self.inode))?;
        state.inodes[self.inode].sync();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_cut_keeps_what_was_synced_and_loses_names_that_were_not() {
        for seed in 0..50 {
            let disk = SimDisk::new(Rng::new(seed));
            let file = disk.create("kept").expect("a new name");
            file.write_at(500, b"across two sectors").expect("no quota");
            file.sync().expect("no fault");
            disk.sync_directory().expect("no fault");
            file.write_at(500, b"ACROSS").expect("no quota");
            disk.create("perhaps").expect("a new name");
            disk.cut_power();
            let mut bytes = [0; 18];
            let read = disk.open("kept").expect("its name was synced").read_at(500, &mut bytes);
            assert_eq!(read, Ok(18));
            assert_eq!(&bytes[12..], b"ectors", "the second sector was not written again");
        }
    }

    #[test]
    fn a_failed_sync_is_not_mended_by_a_later_one() {
        let lost = (0..50).filter(|seed| {
            let disk = SimDisk::new(Rng::new(*seed));
            let file = disk.create("log").expect("a new name");
            disk.sync_directory().expect("no fault");
            file.preallocate(512).expect("no quota");
            file.sync().expect("no fault");
            file.write_at(0, b"commit").expect("no quota");
            disk.fail_syncs(1);
            assert!(file.sync().is_err());
            assert!(file.sync().is_ok());
            disk.cut_power();
            let mut bytes = [0; 6];
            file.read_at(0, &mut bytes).expect("still there");
            &bytes != b"commit"
        });
        assert!(lost.count() > 5);
    }
}
