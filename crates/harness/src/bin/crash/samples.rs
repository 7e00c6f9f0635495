//! What the processes take: memory, descriptors, threads, and the origin's disk.

use crate::world::{PARTS, Part, World};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// What one process takes at a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Sample {
    /// Resident memory without the pages of files that the system may drop, in bytes.
    pub(crate) memory: u64,
    /// Without those of the page engine's tables, which come and go.
    pub(crate) descriptors: u64,
    /// Those: they have a limit of their own.
    pub(crate) open_tables: u64,
    pub(crate) threads: u64,
    /// Bytes of disk: the origin's alone, without its logs and its engine's journals.
    pub(crate) disk: u64,
}

/// The names of its figures, in their order.
pub(crate) const FIGURES: [&str; 4] = ["memory", "descriptors", "threads", "disk"];
/// The place of memory among them.
pub(crate) const MEMORY: usize = 0;

impl Sample {
    pub(crate) fn figures(self) -> [u64; 4] {
        [self.memory, self.descriptors, self.threads, self.disk]
    }

    fn of(id: u32) -> Result<Self> {
        let status = fs::read_to_string(format!("/proc/{id}/status"))?;
        let figure = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let words = line.with_context(|| format!("no {name}"))?;
            Ok(words.split_whitespace().next().context("a figure")?.parse()?)
        };
        let memory = figure("RssAnon:")? << 10;
        let open = fs::read_dir(format!("/proc/{id}/fd"))?.flatten();
        let files = open.filter_map(|entry| fs::read_link(entry.path()).ok());
        let (tables, others): (Vec<_>, Vec<_>) = files.partition(|file| is_table(file));
        let (descriptors, open_tables) = (others.len() as u64, tables.len() as u64);
        Ok(Self { memory, descriptors, open_tables, threads: figure("Threads:")?, disk: 0 })
    }
}

/// Whether this is a table of a page engine, which may have been removed meanwhile.
fn is_table(file: &Path) -> bool {
    let folder = file.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    matches!(folder, Some("tables" | "blobs"))
}

/// What lies below a folder takes on its disk, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Disk {
    pub(crate) log: u64,
    /// The page engine's journals, of what its tables do not hold yet.
    pub(crate) journals: u64,
    rest: u64,
}

impl Disk {
    /// What goes meanwhile takes nothing.
    fn of(folder: &Path) -> Self {
        let mut all = Self::default();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(about) = entry.metadata() else { continue };
            let path = entry.path();
            let place = match path.extension().and_then(|extension| extension.to_str()) {
                Some("seg") => &mut all.log,
                Some("jnl") => &mut all.journals,
                _ => &mut all.rest,
            };
            *place += about.blocks() * 512;
            if about.is_dir() {
                let below = Self::of(&path);
                all.log += below.log;
                all.journals += below.journals;
                all.rest += below.rest;
            }
        }
        all
    }
}

/// Of the origin's domains what the longest log, and what the longest journals take.
pub(crate) fn longest(world: &World) -> Disk {
    let domains = fs::read_dir(world.data()).into_iter().flatten().flatten();
    domains.map(|entry| Disk::of(&entry.path())).fold(Disk::default(), |most, of| Disk {
        log: most.log.max(of.log),
        journals: most.journals.max(of.journals),
        rest: most.rest.max(of.rest),
    })
}

/// What every process takes now, by its name.
pub(crate) fn sample(world: &mut World) -> Result<Vec<(String, Sample)>> {
    let data = world.data();
    PARTS
        .into_iter()
        .map(|part| {
            let mut sample = Sample::of(world.process(part).id())
                .with_context(|| format!("looking at {}", part.name()))?;
            if part == Part::Origin {
                sample.disk = Disk::of(&data).rest;
            }
            Ok((part.name(), sample))
        })
        .collect()
}

pub(crate) fn to_json(samples: &[(String, Sample)]) -> Value {
    let figures = |sample: &Sample| {
        let pairs = FIGURES.into_iter().zip(sample.figures());
        pairs
            .map(|(name, figure)| (name.to_owned(), json!(figure)))
            .collect::<serde_json::Map<_, _>>()
    };
    samples.iter().map(|(name, sample)| (name.clone(), Value::Object(figures(sample)))).collect()
}
