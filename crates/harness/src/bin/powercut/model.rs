//! What the store must hold: kept by the process that judges, outside of the file system, from what it
//! asked for and what it was told. It shares no code with log and engine; images and the encoding of
//! records are the core's.
//!
//! The promise that is judged. *Log*: whatever was told to be durable, and whatever a recovery has
//! shown, is there; of what was asked for after it a beginning may be there, in order, nothing else.
//! *Engine*: it is as it was after the last batch that was told to be installed, or after the one that
//! was asked for when the process died: all of that or nothing of it, with the pages, the index of
//! changes, what is kept apart, the volumes' counts and what is left to remove of one moment. The
//! store's own check finds nothing.

use super::work::{Batch, CONTENT_BYTES_MAX, Change, Id, Step, Volume, Written, page_id, stand_in};
use super::worker::{name, record_line};
use anyhow::{Result, bail, ensure};
use larder_core::rng::Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Pages of a volume: few, so that they are written again and again.
const PAGES: u64 = 24;
/// Volumes that are there at once, about.
const VOLUMES: usize = 3;
/// Pages removed by one install at most.
const REMOVED_MAX: usize = 9;
/// Lines of a difference that are shown.
const SHOWN: usize = 12;

/// The pages, as of one batch.
#[derive(Clone, Debug, Default)]
struct Installed {
    through: u64,
    /// Version, and what it holds; none: deleted.
    pages: BTreeMap<Id, (u64, Option<Held>)>,
    apart: BTreeMap<Id, Vec<Written>>,
    /// By id: the highest version of its pages.
    volumes: BTreeMap<u64, u64>,
    /// By id: the stamp of its deletion.
    deleted: BTreeMap<u64, u64>,
}

/// What a page holds, with the length and the checksum of its image.
#[derive(Clone, Copy, Debug)]
struct Held {
    written: Written,
    bytes: u64,
    sum: u32,
}

impl Held {
    fn new(page: Id, written: Written) -> Self {
        let image = written.image(page);
        Self { written, bytes: image.len() as u64, sum: crc32c::crc32c(&image) }
    }
}

/// All that was asked for and told.
#[derive(Debug, Default)]
pub(crate) struct Model {
    /// Whether a store was ever told to be there.
    made: bool,
    installed: Installed,
    /// Asked for, and not told yet.
    pending: Option<Installed>,
    /// What is in the log after what is installed, from the next stamp on: durable ones, then those
    /// that were asked for.
    log: VecDeque<Change>,
    durable: u64,
    /// Volumes and pages as of the last change asked for.
    volumes: BTreeMap<u64, BTreeSet<u64>>,
    deleted: BTreeSet<Id>,
    /// Every volume there ever was.
    all_volumes: u64,
}

impl Model {
    /// Volumes that may be there.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = u64> + use<> {
        1..=self.all_volumes
    }

    /// Stamps told to be durable and not installed.
    pub(crate) fn behind(&self) -> u64 {
        self.durable - self.installed.through
    }

    /// Whether there are pages of deleted volumes to be removed.
    pub(crate) fn owes_removal(&self) -> bool {
        self.installed.deleted.keys().any(|volume| self.installed.left(*volume) > 0)
    }

    /// The store says that it is being made.
    pub(crate) fn is_being_made(&self) -> Result<()> {
        ensure!(!self.made, "the store is being made, and was there");
        Ok(())
    }

    /// Draws changes that come next in the log.
    pub(crate) fn draw(&mut self, rng: &mut Rng, life: u64) -> Vec<Change> {
        let count = 1 + rng.below(6);
        let mut changes = Vec::new();
        for _ in 0..count {
            let stamp = self.installed.through + self.log.len() as u64 + 1;
            let step = self.draw_step(rng);
            let change = Change { stamp, life, step };
            self.take(&change);
            self.log.push_back(change);
            changes.push(change);
        }
        changes
    }

    fn draw_step(&self, rng: &mut Rng) -> Step {
        let ids: Vec<u64> = self.volumes.keys().copied().collect();
        if ids.is_empty() || (ids.len() < VOLUMES && rng.chance(1, 10)) {
            return Step::Make { volume: self.all_volumes + 1 };
        }
        let volume = ids[rng.below(ids.len() as u64) as usize];
        if rng.chance(1, 120) {
            return Step::Remove { volume };
        }
        let there: Vec<u64> = self.volumes[&volume].iter().copied().collect();
        if there.len() > 4 && rng.chance(1, 25) {
            return Step::Delete { page: (volume, there[rng.below(there.len() as u64) as usize]) };
        }
        // Numbers of deleted pages are never used again.
        let pages = 1 + rng.below(PAGES)..;
        let mut pages = pages.map(|number| (volume, number));
        let page = pages.find(|page| !self.deleted.contains(page)).expect("there are many numbers");
        let most = [16, 600, u64::from(CONTENT_BYTES_MAX)][rng.below(3) as usize];
        Step::Write { page, bytes: 1 + rng.below(most) as u32 }
    }

    /// Notes what a change does, for those drawn after it.
    fn take(&mut self, change: &Change) {
        match change.step {
            Step::Write { page: (volume, page), .. } => {
                self.volumes.entry(volume).or_default().insert(page);
            }
            Step::Delete { page } => {
                self.volumes.entry(page.0).or_default().remove(&page.1);
                self.deleted.insert(page);
            }
            Step::Make { volume } => {
                self.volumes.insert(volume, BTreeSet::new());
                self.all_volumes = self.all_volumes.max(volume);
            }
            Step::Remove { volume } => {
                self.volumes.remove(&volume);
            }
        }
    }

    /// Records up to a stamp were told to be durable.
    pub(crate) fn appended(&mut self, through: u64) {
        self.durable = self.durable.max(through);
    }

    /// Draws a batch to be installed; none: nothing is to be.
    pub(crate) fn draw_batch(&mut self, rng: &mut Rng) -> Option<Batch> {
        let removes = self.owes_removal();
        let count = self.behind().min(u64::from(!removes) + rng.below(20));
        if self.pending.is_some() || (count == 0 && !removes) {
            return None;
        }
        let mut next = self.installed.clone();
        let changes = self.log.iter().take(count as usize);
        let batch = next.install(changes, rng);
        self.pending = Some(next);
        Some(batch)
    }

    /// The batch was told to be installed. Gives the stamp up to which the log is not needed any more.
    pub(crate) fn is_installed(&mut self) -> Result<u64> {
        let Some(next) = self.pending.take() else {
            bail!("nothing was to be installed");
        };
        self.settle(next);
        Ok(self.installed.through)
    }

    fn settle(&mut self, installed: Installed) {
        let done = installed.through - self.installed.through;
        self.log.drain(..done as usize);
        self.installed = installed;
    }

    /// Judges what a store tells of itself after its recovery, and goes on from there.
    pub(crate) fn judge(&mut self, told: &[String]) -> Result<()> {
        let (records, rest): (Vec<&String>, Vec<&String>) =
            told.iter().partition(|line| line.starts_with("record "));
        let mut rest: Vec<&str> = rest.into_iter().map(String::as_str).collect();
        rest.sort_unstable();
        let is = |installed: &Installed| installed.lines() == rest;
        if let Some(pending) = self.pending.take_if(|pending| is(pending)) {
            self.settle(pending);
        } else if !is(&self.installed) {
            // Told against the one that it says it is.
            let first = rest.iter().find(|line| line.starts_with("installed "));
            let says =
                |installed: &&Installed| first.is_some_and(|first| *first == installed.head());
            let candidates = [self.pending.as_ref(), Some(&self.installed)];
            let wanted = candidates.into_iter().flatten().find(says).unwrap_or(&self.installed);
            bail!("the page engine is not as it was: {}", difference(&wanted.lines(), &rest));
        }
        self.pending = None;
        self.judge_log(&records)?;
        self.made = true;
        Ok(())
    }

    fn judge_log(&mut self, records: &[&String]) -> Result<()> {
        let from = self.installed.through;
        let last = from + records.len() as u64;
        ensure!(
            last >= self.durable,
            "the log ends with record {last}, and {} was told to be durable",
            self.durable
        );
        ensure!(records.len() <= self.log.len(), "the log has records after the last asked for");
        for (found, change) in records.iter().zip(&self.log) {
            let (lsn, record) = change.record();
            let wanted = record_line(lsn, &record);
            ensure!(
                **found == wanted,
                "in the log is \"{found}\", and \"{wanted}\" was written ({change:?}, {} is durable)",
                self.durable
            );
        }
        // What it has shown is durable; what is lost never was.
        self.durable = last;
        self.log.truncate(records.len());
        self.volumes.clear();
        self.deleted.clear();
        for ((volume, page), (_, held)) in &self.installed.pages {
            match held {
                Some(_) => {
                    self.volumes.entry(*volume).or_default().insert(*page);
                }
                None => {
                    self.deleted.insert((*volume, *page));
                }
            }
        }
        for volume in self.installed.volumes.keys() {
            self.volumes.entry(*volume).or_default();
        }
        for volume in self.installed.deleted.keys() {
            self.volumes.remove(volume);
        }
        for change in self.log.clone() {
            self.take(&change);
        }
        Ok(())
    }
}

impl Installed {
    /// Installs changes that come next; gives the batch that does it.
    fn install<'a>(&mut self, changes: impl Iterator<Item = &'a Change>, rng: &mut Rng) -> Batch {
        let before = self.clone();
        let mut apart = BTreeMap::new();
        let mut joined = BTreeSet::new();
        let mut touched = BTreeSet::new();
        for change in changes {
            self.through = change.stamp;
            let (stamp, life) = (change.stamp, change.life);
            match change.step {
                Step::Write { page, bytes } => {
                    self.volumes.insert(page.0, stamp);
                    let written = Written { stamp, life, bytes };
                    let kept = self.apart.contains_key(&page);
                    let can = kept || before.pages.contains_key(&page);
                    let begins = can && !touched.contains(&page) && rng.chance(1, 30);
                    if begins || (kept && rng.chance(2, 3)) {
                        let changes = self.apart.entry(page).or_default();
                        changes.push(written);
                        apart.insert(page, changes.clone());
                    } else {
                        if self.apart.remove(&page).is_some() {
                            apart.remove(&page);
                            joined.insert(page);
                        }
                        self.pages.insert(page, (stamp, Some(Held::new(page, written))));
                        touched.insert(page);
                    }
                }
                Step::Delete { page } => {
                    self.volumes.insert(page.0, stamp);
                    if self.apart.remove(&page).is_some() {
                        apart.remove(&page);
                        joined.insert(page);
                    }
                    self.pages.insert(page, (stamp, None));
                    touched.insert(page);
                }
                Step::Make { volume } => {
                    self.volumes.insert(volume, stamp);
                }
                Step::Remove { volume } => {
                    self.volumes.remove(&volume);
                    self.deleted.insert(volume, stamp);
                    self.pages.insert(stand_in(volume), (stamp, None));
                    touched.insert(stand_in(volume));
                }
            }
        }
        // Kept apart by a later change of the batch: no page is in both parts.
        touched.retain(|page| !apart.contains_key(page));
        let removed = self.remove(&before, &touched);
        let pages = touched.iter().map(|page| {
            let (version, held) = self.pages[page];
            let previous = before.pages.get(page).map_or(0, |(version, _)| *version);
            (*page, previous, version, held.map(|held| held.written))
        });
        Batch {
            through: self.through,
            pages: pages.collect(),
            apart: apart.into_iter().collect(),
            joined: joined.into_iter().collect(),
            removed,
            volumes: self.counted(),
            deleted: self.told_deleted().collect(),
        }
    }

    /// Removes some pages of volumes that were deleted before this batch.
    fn remove(&mut self, before: &Self, touched: &BTreeSet<Id>) -> Vec<(Id, u64)> {
        let of_deleted = |page: &&Id| {
            before.deleted.contains_key(&page.0)
                && **page != stand_in(page.0)
                && !touched.contains(page)
        };
        let removed: Vec<Id> =
            self.pages.keys().filter(of_deleted).take(REMOVED_MAX).copied().collect();
        let version = |page: Id| (page, self.pages[&page].0);
        let removed: Vec<(Id, u64)> = removed.into_iter().map(version).collect();
        for (page, _) in &removed {
            self.pages.remove(page);
            self.apart.remove(page);
        }
        removed
    }

    fn left(&self, volume: u64) -> u64 {
        let of = self.pages.range((volume, 0)..stand_in(volume));
        of.count() as u64
    }

    /// The volumes, counted.
    fn counted(&self) -> Vec<(u64, Volume)> {
        let counted = self.volumes.iter().map(|(id, version)| {
            let mut volume = Volume { version: *version, ..Volume::default() };
            let pages = self.pages.range((*id, 0)..stand_in(*id));
            for held in pages.filter_map(|(_, (_, held))| held.as_ref()) {
                volume.pages += 1;
                volume.bytes += held.bytes;
            }
            (*id, volume)
        });
        counted.collect()
    }

    fn told_deleted(&self) -> impl Iterator<Item = (u64, u64, Option<u64>)> + '_ {
        self.deleted.iter().map(|(volume, stamp)| {
            let left = self.left(*volume);
            (*volume, *stamp, (left > 0).then_some(left))
        })
    }

    fn head(&self) -> String {
        format!("installed {0} {0}", self.through)
    }

    /// What a store must tell that holds this, in order.
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.head()];
        for (id, volume) in self.counted() {
            let Volume { version, pages, bytes } = volume;
            lines.push(format!("volume {id} {version} {pages} {bytes}"));
        }
        for (volume, stamp, left) in self.told_deleted() {
            lines.push(format!("deleted {volume} {stamp} {left:?}"));
            for (page, (version, _)) in self.pages.range((volume, 0)..stand_in(volume)) {
                lines.push(format!("removable {} {version}", name(page_id(*page))));
            }
        }
        for (page, (version, held)) in &self.pages {
            let name = name(page_id(*page));
            let image = held.map(|held| held.sum);
            lines.push(format!("page {name} {version} {image:?}"));
            lines.push(format!("index {name} {version}"));
        }
        for (page, changes) in &self.apart {
            for written in changes {
                let sum = crc32c::crc32c(&written.content());
                lines.push(format!("apart {} {} {sum}", name(page_id(*page)), written.stamp));
            }
        }
        lines.sort_unstable();
        lines
    }
}

/// What differs, as lines.
fn difference(wanted: &[String], found: &[&str]) -> String {
    let wanted: BTreeSet<&str> = wanted.iter().map(String::as_str).collect();
    let there: BTreeSet<&str> = found.iter().copied().collect();
    let missing = wanted.difference(&there).map(|line| format!("wanted: {line}"));
    let more = there.difference(&wanted).map(|line| format!("found:  {line}"));
    let mut lines: Vec<String> = missing.chain(more).collect();
    if lines.is_empty() {
        lines.push("something is told twice".into());
    }
    let count = lines.len();
    lines.truncate(SHOWN);
    if count > SHOWN {
        lines.push(format!("and {} lines more", count - SHOWN));
    }
    format!("\n  {}", lines.join("\n  "))
}
