//! A file tree with two states: what processes see, and what a power cut leaves.
//!
//! The fault model is that of the simulator's disk (`larder_store::testing`), for a tree:
//! - Bytes written and not synced: each sector of 512 bytes is what it was before, or what one of the
//!   unsynced writes made of it, perhaps with a bit flipped among the bytes that changed. An older
//!   write may be kept where a younger one is lost.
//! - A file made longer or shorter and not synced: the length is kept or lost by itself. One that is
//!   kept without its bytes reads as zeros, or as anything.
//! - Names made, renamed or removed, and their folder not synced: each such step is kept or lost by
//!   itself, a renaming as a whole. A sync of a file says nothing of its name, and one of a folder
//!   nothing of the files in it: as strict as POSIX lets a file system be. (`ext4` and `XFS` keep more:
//!   steps in their order, and the name of a new file that is synced.)
//! - A killed process loses nothing that it wrote: the next one reads it, synced or not.

use larder_core::rng::Rng;
use larder_store::testing::{Inode, Loss};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The number of the root.
pub(crate) const ROOT: u64 = 1;

/// A tree.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    nodes: BTreeMap<u64, Node>,
    /// Never used before, so that the kernel takes nothing for what it was before a cut.
    next: u64,
    /// Steps of folders that are not synced, in their order.
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Node {
    File(Inode),
    Folder { now: Names, durable: Names },
}

type Names = BTreeMap<OsString, u64>;
/// A folder and a name in it.
type Place = (u64, OsString);

#[derive(Clone, Debug)]
enum Step {
    Make(Place, u64),
    Remove(Place),
    Rename(Place, Place),
}

/// What a node is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    File,
    Folder,
}

/// Why something could not be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DiskFault {
    Missing,
    Exists,
    NotAFile,
    NotAFolder,
    NotEmpty,
}

impl Disk {
    /// An empty tree.
    pub(crate) fn new() -> Self {
        let root = Node::Folder { now: Names::new(), durable: Names::new() };
        Self { nodes: BTreeMap::from([(ROOT, root)]), next: ROOT + 1, steps: Vec::new() }
    }

    /// Makes it empty again, whatever was synced.
    pub(crate) fn clear(&mut self) {
        let next = self.next;
        *self = Self { next, ..Self::new() };
    }

    /// What a node is, and its length.
    pub(crate) fn about(&self, node: u64) -> Result<(Kind, u64), DiskFault> {
        match self.nodes.get(&node) {
            None => Err(DiskFault::Missing),
            Some(Node::File(file)) => Ok((Kind::File, file.length())),
            Some(Node::Folder { .. }) => Ok((Kind::Folder, 0)),
        }
    }

    /// What has a name.
    pub(crate) fn look_up(&self, folder: u64, name: &OsStr) -> Result<u64, DiskFault> {
        self.names(folder)?.get(name).copied().ok_or(DiskFault::Missing)
    }

    /// What is in a folder, by name.
    pub(crate) fn list(&self, folder: u64) -> Result<Vec<(OsString, u64)>, DiskFault> {
        Ok(self.names(folder)?.iter().map(|(name, node)| (name.clone(), *node)).collect())
    }

    /// Makes an empty file or folder.
    pub(crate) fn make(&mut self, at: Place, kind: Kind) -> Result<u64, DiskFault> {
        let node = self.next;
        let names = self.names_mut(at.0)?;
        if names.contains_key(&at.1) {
            return Err(DiskFault::Exists);
        }
        names.insert(at.1.clone(), node);
        self.next += 1;
        let made = match kind {
            Kind::File => Node::File(Inode::default()),
            Kind::Folder => Node::Folder { now: Names::new(), durable: Names::new() },
        };
        self.nodes.insert(node, made);
        self.steps.push(Step::Make(at, node));
        Ok(node)
    }

    /// Removes the name of a file, or of an empty folder.
    pub(crate) fn remove(&mut self, at: Place, kind: Kind) -> Result<(), DiskFault> {
        let node = self.look_up(at.0, &at.1)?;
        match (self.nodes.get(&node), kind) {
            (Some(Node::File(_)), Kind::File) => {}
            (Some(Node::Folder { now, .. }), Kind::Folder) if now.is_empty() => {}
            (Some(Node::Folder { .. }), Kind::Folder) => return Err(DiskFault::NotEmpty),
            (Some(Node::Folder { .. }), Kind::File) => return Err(DiskFault::NotAFile),
            _ => return Err(DiskFault::NotAFolder),
        }
        self.names_mut(at.0)?.remove(&at.1);
        self.steps.push(Step::Remove(at));
        Ok(())
    }

    /// Renames, replacing what has the new name.
    pub(crate) fn rename(&mut self, from: Place, to: Place) -> Result<(), DiskFault> {
        let node = self.look_up(from.0, &from.1)?;
        if let Ok(replaced) = self.look_up(to.0, &to.1)
            && !self.list(replaced).unwrap_or_default().is_empty()
        {
            return Err(DiskFault::NotEmpty);
        }
        self.names_mut(to.0)?;
        self.names_mut(from.0)?.remove(&from.1);
        self.names_mut(to.0)?.insert(to.1.clone(), node);
        self.steps.push(Step::Rename(from, to));
        Ok(())
    }

    /// A file's bytes.
    pub(crate) fn file(&mut self, node: u64) -> Result<&mut Inode, DiskFault> {
        match self.nodes.get_mut(&node) {
            Some(Node::File(file)) => Ok(file),
            Some(Node::Folder { .. }) => Err(DiskFault::NotAFile),
            None => Err(DiskFault::Missing),
        }
    }

    /// A new file that was synced has a durable name, as on `ext4`, `XFS` and `btrfs`.
    pub(crate) fn sync_name(&mut self, node: u64) {
        let made = |step: &Step| matches!(step, Step::Make(_, made) if *made == node);
        if let Some(at) = self.steps.iter().position(made) {
            let step = self.steps.remove(at);
            self.apply(step);
        }
    }

    /// A folder's names are durable, and what was renamed out of it or into it.
    pub(crate) fn sync_folder(&mut self, folder: u64) -> Result<(), DiskFault> {
        let names = self.names(folder)?.clone();
        let mut kept = Vec::new();
        for step in std::mem::take(&mut self.steps) {
            match &step {
                Step::Make(at, _) | Step::Remove(at) if at.0 == folder => {}
                Step::Rename(from, to) if from.0 == folder || to.0 == folder => {
                    self.apply(step);
                }
                _ => kept.push(step),
            }
        }
        self.steps = kept;
        if let Some(Node::Folder { durable, .. }) = self.nodes.get_mut(&folder) {
            *durable = names;
        }
        Ok(())
    }

    /// The power is cut.
    pub(crate) fn cut_power(&mut self, rng: &mut Rng) {
        let loss = Loss::draw(rng, true);
        // Files of one moment in which the system had written more of one than of another.
        let apart = rng.chance(1, 3);
        for node in self.nodes.values_mut() {
            if let Node::File(file) = node {
                let own = if apart { Loss::draw(rng, true) } else { loss };
                file.cut_power(rng, &own);
            }
        }
        for step in std::mem::take(&mut self.steps) {
            if loss.keeps(rng) {
                self.apply(step);
            }
        }
        self.restart();
    }

    /// Makes a step durable.
    fn apply(&mut self, step: Step) {
        match step {
            Step::Make((folder, name), node) => {
                self.durable(folder).map(|names| names.insert(name, node));
            }
            Step::Remove((folder, name)) => {
                self.durable(folder).map(|names| names.remove(&name));
            }
            Step::Rename(from, to) => {
                if let Some(node) = self.durable(from.0).and_then(|names| names.remove(&from.1)) {
                    self.durable(to.0).map(|names| names.insert(to.1, node));
                }
            }
        }
    }

    fn durable(&mut self, folder: u64) -> Option<&mut Names> {
        match self.nodes.get_mut(&folder) {
            Some(Node::Folder { durable, .. }) => Some(durable),
            _ => None,
        }
    }

    /// Processes see what is durable; what no name leads to is gone; every node has a new number.
    fn restart(&mut self) {
        let mut old = std::mem::take(&mut self.nodes);
        // By old number: the new one. A folder that two steps left under two names is under one.
        let mut numbers = BTreeMap::from([(ROOT, ROOT)]);
        let mut waiting = vec![ROOT];
        while let Some(node) = waiting.pop() {
            let number = numbers[&node];
            match old.remove(&node) {
                Some(Node::File(file)) => {
                    self.nodes.insert(number, Node::File(file));
                }
                Some(Node::Folder { durable, .. }) => {
                    let mut names = Names::new();
                    for (name, below) in durable {
                        if numbers.contains_key(&below) || !old.contains_key(&below) {
                            continue;
                        }
                        numbers.insert(below, self.next);
                        names.insert(name, self.next);
                        self.next += 1;
                        waiting.push(below);
                    }
                    let folder = Node::Folder { now: names.clone(), durable: names };
                    self.nodes.insert(number, folder);
                }
                None => {}
            }
        }
    }

    /// Writes the tree, as processes see it, to a folder of the host: for whoever looks for a cause.
    pub(crate) fn write_out(&self, folder: u64, to: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(to)?;
        for (name, node) in self.list(folder).unwrap_or_default() {
            match &self.nodes[&node] {
                Node::File(file) => {
                    let used = file.used();
                    let mut bytes = vec![0; usize::try_from(used).unwrap_or_default()];
                    file.read(0, &mut bytes);
                    let out = std::fs::File::create(to.join(&name))?;
                    std::io::Write::write_all(&mut &out, &bytes)?;
                    out.set_len(file.length())?;
                }
                Node::Folder { .. } => self.write_out(node, &to.join(&name))?,
            }
        }
        Ok(())
    }

    /// Whether a node is below a folder, named by its way from the root: for planted faults.
    pub(crate) fn is_below(&self, node: u64, way: &[&str]) -> bool {
        let mut top = ROOT;
        for name in way {
            match self.look_up(top, OsStr::new(name)) {
                Ok(next) => top = next,
                Err(_) => return false,
            }
        }
        let mut waiting = vec![top];
        while let Some(at) = waiting.pop() {
            if at == node {
                return true;
            }
            waiting.extend(self.list(at).unwrap_or_default().into_iter().map(|(_, node)| node));
        }
        false
    }

    fn names(&self, folder: u64) -> Result<&Names, DiskFault> {
        match self.nodes.get(&folder) {
            Some(Node::Folder { now, .. }) => Ok(now),
            Some(Node::File(_)) => Err(DiskFault::NotAFolder),
            None => Err(DiskFault::Missing),
        }
    }

    fn names_mut(&mut self, folder: u64) -> Result<&mut Names, DiskFault> {
        match self.nodes.get_mut(&folder) {
            Some(Node::Folder { now, .. }) => Ok(now),
            Some(Node::File(_)) => Err(DiskFault::NotAFolder),
            None => Err(DiskFault::Missing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(folder: u64, name: &str) -> Place {
        (folder, name.into())
    }

    /// How many of 200 cuts leave what `left` asks for, of what `write` did.
    fn count(write: impl Fn(&mut Disk), left: impl Fn(&mut Disk) -> bool) -> usize {
        let cut = |seed: &u64| {
            let mut disk = Disk::new();
            write(&mut disk);
            disk.cut_power(&mut Rng::new(*seed));
            left(&mut disk)
        };
        (0..200).filter(cut).count()
    }

    fn bytes(disk: &mut Disk, name: &str) -> Option<Vec<u8>> {
        let node = disk.look_up(ROOT, OsStr::new(name)).ok()?;
        let file = disk.file(node).ok()?;
        let mut bytes = vec![0; file.length() as usize];
        file.read(0, &mut bytes);
        Some(bytes)
    }

    #[test]
    fn a_name_needs_its_folder_and_bytes_need_their_file() {
        let make = |disk: &mut Disk, file: bool, folder: bool| {
            let node = disk.make(at(ROOT, "a"), Kind::File).expect("a new name");
            disk.file(node).expect("it is one").write(0, b"bytes");
            if file {
                disk.file(node).expect("it is one").sync();
            }
            if folder {
                disk.sync_folder(ROOT).expect("it is there");
            }
        };
        let whole = |disk: &mut Disk| bytes(disk, "a").as_deref() == Some(b"bytes");
        assert_eq!(count(|disk| make(disk, true, true), whole), 200);
        for (file, folder) in [(false, true), (true, false), (false, false)] {
            let kept = count(|disk| make(disk, file, folder), whole);
            assert!((20..180).contains(&kept), "{file} {folder}: {kept}");
        }
        let named = count(|disk| make(disk, false, true), |disk| bytes(disk, "a").is_some());
        assert_eq!(named, 200);
    }

    #[test]
    fn a_file_that_is_replaced_is_the_old_or_the_new_one() {
        let write = |disk: &mut Disk| {
            for (name, content) in [("a", b"old"), ("b", b"new")] {
                let node = disk.make(at(ROOT, name), Kind::File).expect("a new name");
                disk.file(node).expect("it is one").write(0, content);
                disk.file(node).expect("it is one").sync();
            }
            disk.sync_folder(ROOT).expect("it is there");
            disk.rename(at(ROOT, "b"), at(ROOT, "a")).expect("both are there");
        };
        let is = |content: &'static [u8]| {
            move |disk: &mut Disk| bytes(disk, "a").as_deref() == Some(content)
        };
        let (old, new) = (count(write, is(b"old")), count(write, is(b"new")));
        assert_eq!(old + new, 200);
        assert!(old > 20 && new > 20, "{old} {new}");
    }

    #[test]
    fn a_folder_that_is_lost_takes_what_is_in_it() {
        let write = |disk: &mut Disk| {
            let folder = disk.make(at(ROOT, "folder"), Kind::Folder).expect("a new name");
            let node = disk.make(at(folder, "a"), Kind::File).expect("a new name");
            disk.file(node).expect("it is one").sync();
            disk.sync_folder(folder).expect("it is there");
        };
        let there = |disk: &mut Disk| match disk.look_up(ROOT, OsStr::new("folder")) {
            Ok(folder) => disk.look_up(folder, OsStr::new("a")).is_ok(),
            Err(_) => false,
        };
        let gone = |disk: &mut Disk| disk.nodes.len() == 1;
        let (kept, lost) = (count(write, there), count(write, gone));
        assert_eq!(kept + lost, 200);
        assert!(kept > 20 && lost > 20, "{kept} {lost}");
    }

    /// Cut short, and not synced: as long as before with all that was there, or as short.
    #[test]
    fn a_file_cut_short_is_as_it_was_or_as_it_is() {
        let write = |disk: &mut Disk| {
            let node = disk.make(at(ROOT, "a"), Kind::File).expect("a new name");
            let file = disk.file(node).expect("it is one");
            file.write(0, &[7; 5000]);
            file.sync();
            file.set_length(700);
            disk.sync_folder(ROOT).expect("it is there");
        };
        let is = |length: usize| move |disk: &mut Disk| bytes(disk, "a") == Some(vec![7; length]);
        let (long, short) = (count(write, is(5000)), count(write, is(700)));
        assert_eq!(long + short, 200);
        assert!(long > 20 && short > 20, "{long} {short}");
    }

    #[test]
    fn names_are_kept_by_rules() {
        let mut disk = Disk::new();
        let folder = disk.make(at(ROOT, "folder"), Kind::Folder).expect("a new name");
        let file = disk.make(at(folder, "a"), Kind::File).expect("a new name");
        assert_eq!(disk.make(at(ROOT, "folder"), Kind::File), Err(DiskFault::Exists));
        assert_eq!(disk.remove(at(ROOT, "folder"), Kind::Folder), Err(DiskFault::NotEmpty));
        assert_eq!(disk.remove(at(ROOT, "folder"), Kind::File), Err(DiskFault::NotAFile));
        assert_eq!(disk.remove(at(folder, "a"), Kind::Folder), Err(DiskFault::NotAFolder));
        assert_eq!(disk.look_up(file, OsStr::new("a")), Err(DiskFault::NotAFolder));
        assert_eq!(disk.about(99), Err(DiskFault::Missing));
        assert!(disk.is_below(file, &["folder"]) && !disk.is_below(ROOT, &["folder"]));
        disk.rename(at(folder, "a"), at(ROOT, "b")).expect("it is there");
        assert_eq!(disk.remove(at(ROOT, "folder"), Kind::Folder), Ok(()));
        assert_eq!(disk.list(ROOT), Ok(vec![("b".into(), file)]));
    }
}
