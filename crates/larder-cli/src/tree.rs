//! The tree of files in a volume, for `larder volume`: with progress for people.

use crate::progress::{Progress, Step};
use anyhow::{Context, Result, ensure};
use larder::client::{Freshness, Volume};
use larder::fs::check::{At, CheckOptions, CheckReport, Found, check as check_tree};
use larder::fs::client::VolumeStore;
use larder::fs::export::{ExportOptions, MARKER, export as export_tree, take_target};
use larder::fs::import::import as import_tree;
use larder::fs::repair::repair as repair_tree;
use larder::fs::{FileSystem, FsError, FsOptions};
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// An operation of a command may take this long: nobody waits at a terminal for a second.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// How far the clocks of those who change files may be apart, in nanoseconds.
const CLOCKS_APART: i64 = 300_000_000_000;

type Tree = Arc<FileSystem<VolumeStore>>;

fn store(volume: &Volume) -> VolumeStore {
    VolumeStore::new(volume.clone(), Freshness::Leased, TIME_LIMIT, TIME_LIMIT, Duration::ZERO)
}

/// Makes an empty tree in an empty volume.
pub(crate) async fn format(volume: &Volume) -> Result<()> {
    let mut key = [0; 16];
    getrandom::fill(&mut key).map_err(|why| anyhow::anyhow!("no random numbers: {why}"))?;
    FileSystem::open_or_format(store(volume), FsOptions::default(), key).await?;
    Ok(())
}

/// Makes an empty tree in a volume that has none: an import that was to make the volume too may
/// have ended before its tree was made. A volume that a program uses is left alone: it has more
/// than the one page that it was made with, or something in that.
pub(crate) async fn format_bare(volume: &Volume) -> Result<()> {
    volume.refresh().await?;
    let unformatted = match FileSystem::open(store(volume), FsOptions::default()).await {
        Err(error @ FsError::Unformatted) => error,
        other => return Ok(other.map(drop)?),
    };
    let name = &volume.info().name;
    if volume.info().pages > 1 {
        return Err(unformatted).with_context(|| format!("volume {name} is not empty"));
    }
    format(volume).await.with_context(|| format!("volume {name}"))
}

async fn open(volume: &Volume) -> Result<Tree> {
    volume.refresh().await?;
    let tree = FileSystem::open(store(volume), FsOptions::default()).await;
    Ok(Arc::new(tree.with_context(|| format!("volume {}", volume.info().name))?))
}

/// Imports a host folder into the root of a volume's tree.
pub(crate) async fn import(volume: &Volume, source: &Path, mut shown: Progress) -> Result<Value> {
    let at = source.display();
    ensure!(source.is_dir(), "{at} is not a folder");
    ensure!(
        !source.join(MARKER).exists(),
        "{at} holds an unfinished export: finish it, or remove the file {MARKER} in it"
    );
    let tree = open(volume).await?;
    let done = import_tree(&tree, source, tree.root(), &mut |progress| {
        let done = progress.files + progress.skipped;
        shown.show(Step { done, known: Some(progress.found), bytes: Some(progress.bytes) });
    })
    .await?;
    Ok(json!({
        "directories": done.directories,
        "files": done.files,
        "skipped": done.skipped,
        "bytes": done.bytes,
        "seconds": shown.finish().as_secs_f64(),
    }))
}

/// Exports a volume's tree into a folder; one that holds an export that was interrupted is gone on
/// with.
pub(crate) async fn export(volume: &Volume, target: &Path, mut shown: Progress) -> Result<Value> {
    let tree = open(volume).await?;
    let keep_before = export_marker(volume, &tree, target).await?;
    let options = ExportOptions { keep_before };
    let done = export_tree(&tree, tree.root(), target, options, &mut |progress| {
        let done = progress.files + progress.skipped + progress.directories;
        shown.show(Step { done, known: Some(progress.found), bytes: Some(progress.bytes) });
    })
    .await?;
    Ok(json!({
        "directories": done.directories,
        "files": done.files,
        "skipped": done.skipped,
        "bytes": done.bytes,
        "seconds": shown.finish().as_secs_f64(),
    }))
}

/// Marks a folder as an unfinished export of the volume. If it was one before, files of which nothing
/// changed from a time on need not be written again; none: all are to be.
async fn export_marker(volume: &Volume, tree: &Tree, target: &Path) -> Result<Option<i64>> {
    let (marker, shown) = (target.join(MARKER), target.display());
    let root = tree.lookup(tree.root(), MARKER.as_bytes()).await?;
    ensure!(
        root.attr.is_none(),
        "the volume holds a file {MARKER}, which marks exports: rename it"
    );
    // First: whoever owned it could put a link where the mark comes.
    let there = target.is_dir();
    if there && !marker.exists() {
        let mut entries = std::fs::read_dir(target).with_context(|| shown.to_string())?;
        ensure!(entries.next().is_none(), "{shown} is not empty");
    }
    take_target(target)?;
    let (id, run) = (volume.id().to_string(), machine_run());
    match std::fs::read_to_string(&marker) {
        Ok(found) => {
            let mut words = found.split_whitespace();
            ensure!(
                words.next() == Some(&*id),
                "{shown} holds an unfinished export of another volume: choose another folder"
            );
            // After a power cut nobody knows what of it is on the disk.
            let same_run = words.next() == Some(&*run);
            let began = words.next().and_then(|began| began.parse().ok());
            let keep = began.filter(|_| same_run);
            if keep.is_none() {
                std::fs::remove_file(&marker).with_context(|| marker.display().to_string())?;
                write_marker(&marker, &id, &run)?;
            }
            // What is there was left by an export: other kinds of things are replaced.
            return Ok(Some(
                keep.map_or(i64::MIN, |began: i64| began.saturating_sub(CLOCKS_APART)),
            ));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).context(marker.display().to_string()),
    }
    let mut entries = std::fs::read_dir(target).with_context(|| shown.to_string())?;
    ensure!(entries.next().is_none(), "{shown} is not empty");
    write_marker(&marker, &id, &run)?;
    Ok(None)
}

/// Of which volume the export is, in which run of the machine and when it began.
fn write_marker(marker: &Path, id: &str, run: &str) -> Result<()> {
    let began = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
    let at = || marker.display().to_string();
    let mut file = File::create_new(marker).with_context(at)?;
    writeln!(file, "{id} {run} {began}").and_then(|()| file.sync_all()).with_context(at)
}

/// Another one after each start of the machine.
fn machine_run() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    // Where it is not told every run of an export is one by itself.
    id.map_or_else(|_| format!("process-{}", std::process::id()), |id| id.trim().to_owned())
}

/// Checks a volume's tree; the report, and what does not hold. First frees files without a name
/// that nobody has said to be open for `free`.
pub(crate) async fn check(
    volume: &Volume,
    free: Option<Duration>,
    mut shown: Progress,
) -> Result<(Value, Vec<String>)> {
    let tree = open(volume).await?;
    let freed = free_orphans(&tree, free).await?;
    let report =
        check_tree(&tree, &CheckOptions::default(), &mut |progress| show(&mut shown, progress))
            .await?;
    shown.finish();
    let faults = report.problems.iter().map(fault).collect();
    let mut value = report_json(&report);
    if let Some(freed) = freed {
        value["freed"] = freed.into();
    }
    Ok((value, faults))
}

/// Checks a volume's tree and mends what it can; the report, and what does not hold in the end.
pub(crate) async fn repair(
    volume: &Volume,
    free: Option<Duration>,
    mut shown: Progress,
) -> Result<(Value, Vec<String>)> {
    let tree = open(volume).await?;
    let freed = free_orphans(&tree, free).await?;
    let options = CheckOptions::default();
    let report = repair_tree(&tree, &options, &mut |progress| show(&mut shown, progress)).await?;
    shown.finish();
    let reasons = report.left.iter().map(Some).chain(std::iter::repeat(None));
    let left = report.check.problems.iter().zip(reasons);
    let faults = left.map(|(found, why)| match why.filter(|why| !why.is_empty()) {
        Some(why) => format!("{}; not repaired: {why}", fault(found)),
        None => fault(found),
    });
    let faults = faults.collect();
    let mut value = report_json(&report.check);
    let repaired = report.repaired.iter();
    value["repaired"] = repaired
        .map(|repaired| {
            let mut value = place_json(&repaired.problem, repaired.at);
            value["done"] = repaired.done.as_str().into();
            value
        })
        .collect();
    if let Some(freed) = freed {
        value["freed"] = freed.into();
    }
    Ok((value, faults))
}

async fn free_orphans(tree: &Tree, free: Option<Duration>) -> Result<Option<u64>> {
    Ok(match free {
        Some(age) => Some(tree.reap_orphans(age).await?),
        None => None,
    })
}

fn show(shown: &mut Progress, progress: &CheckReport) {
    let done = progress.files + progress.directories;
    shown.show(Step { done, known: None, bytes: Some(progress.bytes) });
}

/// A problem with the place where it was seen.
fn fault(found: &Found) -> String {
    let At { page, slot, generation } = found.at;
    let slot = slot.map_or(String::new(), |slot| format!(" slot {}", slot.0));
    let generation = generation.map_or(String::new(), |of| format!(" generation {}", of.0));
    format!("{found} (page {}{slot}{generation})", page.0)
}

fn place_json(problem: &str, at: At) -> Value {
    json!({
        "problem": problem,
        "page": at.page.0,
        "slot": at.slot.map(|slot| slot.0),
        "generation": at.generation.map(|generation| generation.0),
    })
}

fn report_json(report: &CheckReport) -> Value {
    let found = report.problems.iter();
    json!({
        "directories": report.directories,
        "files": report.files,
        "symlinks": report.symlinks,
        "special": report.special,
        "bytes": report.bytes,
        "orphans": report.orphans,
        "problems": report.problems_total,
        "found": found.map(|found| place_json(&found.to_string(), found.at)).collect::<Value>(),
    })
}
