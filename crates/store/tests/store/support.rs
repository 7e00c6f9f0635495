//! A disk in memory that forgets, tears, fails and fills up as `larder_store::disk` allows.

use larder_core::rng::Rng;
use larder_store::disk::{Disk, DiskError, DiskFile};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

const SECTOR: usize = 512;

/// The disk. Clones share it, as the processes of one machine would.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultDisk(Arc<Mutex<State>>);

/// An open file.
#[derive(Debug)]
pub(crate) struct FaultFile {
    disk: FaultDisk,
    inode: usize,
    name: String,
}

#[derive(Clone, Debug, Default)]
struct State {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    pending_names: Vec<NameChange>,
    /// Changing operations so far.
    changes: u64,
    /// The operation at which the machine stops.
    crash_at: Option<u64>,
    /// The next sync of a file fails, and what it should have kept is dropped but still read.
    fail_sync: bool,
    /// Bytes that fit.
    capacity: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Inode {
    current: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Extend(usize),
}

#[derive(Clone, Debug)]
enum NameChange {
    Link(String, usize),
    Unlink(String),
    Rename(String, String),
}

impl FaultDisk {
    /// Stops the machine at the `after`th changing operation from now.
    pub(crate) fn crash_after(&self, after: u64) {
        let mut state = self.state();
        state.crash_at = Some(state.changes + after);
    }

    /// How many changing operations there were.
    pub(crate) fn changes(&self) -> u64 {
        self.state().changes
    }

    /// The next file sync fails, and what it should have made durable never will be, though it
    /// can still be read.
    pub(crate) fn fail_next_sync(&self) {
        self.state().fail_sync = true;
    }

    /// Bounds the bytes of all files.
    pub(crate) fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// Bytes of all files.
    pub(crate) fn used(&self) -> u64 {
        self.state().used()
    }

    /// The machine after a loss of power: of what was not synced, a random part is there.
    pub(crate) fn reboot(&self, rng: &mut Rng) -> Self {
        let mut state = self.state().clone();
        let mut names = state.durable_names.clone();
        for change in state.pending_names.drain(..) {
            if rng.chance(1, 2) {
                change.apply(&mut names);
            }
        }
        for inode in &mut state.inodes {
            for change in std::mem::take(&mut inode.pending) {
                change.apply_some(&mut inode.durable, rng);
            }
            inode.current = inode.durable.clone();
        }
        state.names = names.clone();
        state.durable_names = names;
        state.crash_at = None;
        state.fail_sync = false;
        Self(Arc::new(Mutex::new(state)))
    }

    /// A file's bytes.
    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        let state = self.state();
        state.inodes[state.names[name]].current.clone()
    }

    /// Changes a file behind everybody's back, durably.
    pub(crate) fn alter(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let index = state.names[name];
        let inode = &mut state.inodes[index];
        change(&mut inode.current);
        inode.pending.clear();
        inode.durable = inode.current.clone();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("tests do not go on after a panic")
    }

    fn change(&self, name: &str) -> Result<MutexGuard<'_, State>, DiskError> {
        let mut state = self.state();
        state.changes += 1;
        match state.crash_at {
            Some(at) if state.changes > at => Err(stopped(name)),
            _ => Ok(state),
        }
    }

    fn file(&self, name: &str, inode: usize) -> FaultFile {
        FaultFile { disk: self.clone(), inode, name: name.into() }
    }
}

impl State {
    fn used(&self) -> u64 {
        let lengths = self.names.values().map(|inode| self.inodes[*inode].current.len() as u64);
        lengths.sum()
    }
}

impl NameChange {
    fn apply(self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Link(name, inode) => {
                names.insert(name, inode);
            }
            Self::Unlink(name) => {
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

impl Change {
    fn apply_all(self, bytes: &mut Vec<u8>) {
        match self {
            Self::Extend(length) => bytes.resize(length.max(bytes.len()), 0),
            Self::Write(offset, written) => write(bytes, offset, &written),
        }
    }

    fn apply_some(self, bytes: &mut Vec<u8>, rng: &mut Rng) {
        match self {
            Self::Extend(length) => {
                if bytes.len() < length && rng.chance(1, 2) {
                    bytes.resize(length, 0);
                }
            }
            Self::Write(offset, written) => {
                // All, none, or any sectors.
                let luck = rng.below(4);
                let mut at = 0;
                while at < written.len() {
                    let sector_end = (offset + at + SECTOR) / SECTOR * SECTOR;
                    let end = written.len().min(sector_end - offset);
                    if luck == 0 || (luck > 1 && rng.chance(1, 2)) {
                        write(bytes, offset + at, &written[at..end]);
                    }
                    at = end;
                }
            }
        }
    }
}

fn write(bytes: &mut Vec<u8>, offset: usize, written: &[u8]) {
    let end = offset + written.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(written);
}

impl Disk for FaultDisk {
    type File = FaultFile;

    fn create(&self, name: &str) -> Result<FaultFile, DiskError> {
        let mut state = self.change(name)?;
        if state.names.contains_key(name) {
            return Err(DiskError::Exists { file: name.into() });
        }
        state.inodes.push(Inode::default());
        let inode = state.inodes.len() - 1;
        state.names.insert(name.into(), inode);
        state.pending_names.push(NameChange::Link(name.into(), inode));
        Ok(self.file(name, inode))
    }

    fn open(&self, name: &str) -> Result<FaultFile, DiskError> {
        match self.state().names.get(name) {
            Some(inode) => Ok(self.file(name, *inode)),
            None => Err(DiskError::Missing { file: name.into() }),
        }
    }

    fn list(&self) -> Result<Vec<String>, DiskError> {
        Ok(self.state().names.keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> Result<(), DiskError> {
        let mut state = self.change(name)?;
        if state.names.remove(name).is_none() {
            return Err(DiskError::Missing { file: name.into() });
        }
        state.pending_names.push(NameChange::Unlink(name.into()));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), DiskError> {
        let mut state = self.change(from)?;
        let change = NameChange::Rename(from.into(), to.into());
        change.clone().apply(&mut state.names);
        state.pending_names.push(change);
        Ok(())
    }

    fn sync_directory(&self) -> Result<(), DiskError> {
        let mut state = self.change("the directory")?;
        state.durable_names = state.names.clone();
        state.pending_names.clear();
        Ok(())
    }

    fn free_bytes(&self) -> Result<u64, DiskError> {
        let state = self.state();
        let free = state.capacity.map(|bytes| bytes - state.used().min(bytes));
        Ok(free.unwrap_or(u64::MAX))
    }
}

impl DiskFile for FaultFile {
    fn length(&self) -> Result<u64, DiskError> {
        Ok(self.disk.state().inodes[self.inode].current.len() as u64)
    }

    fn preallocate(&self, bytes: u64) -> Result<(), DiskError> {
        let mut state = self.disk.change(&self.name)?;
        let length = bytes as usize;
        let more = length.saturating_sub(state.inodes[self.inode].current.len()) as u64;
        if state.capacity.is_some_and(|most| state.used() + more > most) {
            return Err(DiskError::Full { file: self.name.clone(), operation: "extend" });
        }
        let inode = &mut state.inodes[self.inode];
        inode.current.resize(length, 0);
        inode.pending.push(Change::Extend(length));
        Ok(())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, DiskError> {
        let state = self.disk.state();
        let bytes = &state.inodes[self.inode].current;
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let mut state = self.disk.change(&self.name).inspect_err(|_| {
            // The write under way at a crash may be kept in part.
            let mut state = self.disk.state();
            if state.crash_at.is_some_and(|at| state.changes == at + 1) {
                let change = Change::Write(offset as usize, bytes.to_vec());
                state.inodes[self.inode].pending.push(change);
            }
        })?;
        let inode = &mut state.inodes[self.inode];
        write(&mut inode.current, offset as usize, bytes);
        let change = Change::Write(offset as usize, bytes.to_vec());
        inode.pending.push(change);
        Ok(())
    }

    fn sync(&self) -> Result<(), DiskError> {
        let mut state = self.disk.change(&self.name)?;
        let fails = std::mem::take(&mut state.fail_sync);
        let inode = &mut state.inodes[self.inode];
        let pending = std::mem::take(&mut inode.pending);
        if fails {
            return Err(DiskError::Failed {
                file: self.name.clone(),
                operation: "sync",
                detail: "input/output error".into(),
            });
        }
        for change in pending {
            change.apply_all(&mut inode.durable);
        }
        Ok(())
    }
}

fn stopped(name: &str) -> DiskError {
    DiskError::Failed {
        file: name.into(),
        operation: "change",
        detail: "the machine stopped".into(),
    }
}
