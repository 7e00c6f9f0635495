//! The tree of files in a volume, for `larder volume`: with progress for people.

use anyhow::{Context, Result, ensure};
use indicatif::{HumanBytes, HumanDuration, ProgressBar, ProgressStyle};
use larder::client::{Freshness, Volume};
use larder::fs::check::{CheckOptions, check as check_tree};
use larder::fs::client::VolumeStore;
use larder::fs::export::export as export_tree;
use larder::fs::import::import as import_tree;
use larder::fs::{FileSystem, FsError, FsOptions};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An operation of a command may take this long: nobody waits at a terminal for a second.
const TIME_LIMIT: Duration = Duration::from_secs(120);

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

fn bar(quiet: bool, total: Option<u64>) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let style = "{spinner} {wide_bar} {pos}/{len} files {msg} {eta} left";
    let bar = match total {
        Some(total) => ProgressBar::new(total)
            .with_style(ProgressStyle::with_template(style).expect("the template is valid")),
        None => ProgressBar::new_spinner(),
    };
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn rate(bytes: u64, started: Instant) -> String {
    let seconds = started.elapsed().as_secs_f64().max(1e-3);
    format!("{} ({}/s)", HumanBytes(bytes), HumanBytes((bytes as f64 / seconds) as u64))
}

/// Imports a host folder into the root of a volume's tree.
pub(crate) async fn import(volume: &Volume, source: &Path, quiet: bool) -> Result<Value> {
    ensure!(source.is_dir(), "{} is not a folder", source.display());
    let tree = open(volume).await?;
    let (started, shown) = (Instant::now(), bar(quiet, Some(0)));
    let done = import_tree(&tree, source, tree.root(), &mut |progress| {
        shown.set_length(progress.found);
        shown.set_position(progress.files + progress.skipped);
        shown.set_message(rate(progress.bytes, started));
    })
    .await?;
    shown.finish_and_clear();
    Ok(json!({
        "directories": done.directories,
        "files": done.files,
        "skipped": done.skipped,
        "bytes": done.bytes,
        "seconds": started.elapsed().as_secs_f64(),
    }))
}

/// Exports a volume's tree into a folder.
pub(crate) async fn export(volume: &Volume, target: &Path, quiet: bool) -> Result<Value> {
    if let Ok(mut entries) = std::fs::read_dir(target) {
        ensure!(entries.next().is_none(), "{} is not empty", target.display());
    }
    let tree = open(volume).await?;
    let (started, shown) = (Instant::now(), bar(quiet, None));
    let done = export_tree(&tree, tree.root(), target, &mut |progress| {
        shown.set_message(format!("{} files, {}", progress.files, rate(progress.bytes, started)));
    })
    .await?;
    shown.finish_and_clear();
    Ok(json!({
        "directories": done.directories,
        "files": done.files,
        "bytes": done.bytes,
        "seconds": started.elapsed().as_secs_f64(),
    }))
}

/// Checks a volume's tree; the report, and what does not hold. First frees files without a name
/// that nobody has said to be open for `free`.
pub(crate) async fn check(volume: &Volume, free: Option<Duration>) -> Result<(Value, Vec<String>)> {
    let tree = open(volume).await?;
    let freed = match free {
        Some(age) => Some(tree.reap_orphans(age).await?),
        None => None,
    };
    let (started, shown) = (Instant::now(), bar(false, None));
    let report = check_tree(&tree, &CheckOptions::default(), &mut |progress| {
        let after = HumanDuration(started.elapsed());
        shown.set_message(format!("{} files checked after {after}", progress.files));
    })
    .await?;
    shown.finish_and_clear();
    let faults = report.problems.iter().map(ToString::to_string).collect();
    let mut value = json!({
        "directories": report.directories,
        "files": report.files,
        "symlinks": report.symlinks,
        "special": report.special,
        "bytes": report.bytes,
        "orphans": report.orphans,
        "problems": report.problems_total,
    });
    if let Some(freed) = freed {
        value["freed"] = freed.into();
    }
    Ok((value, faults))
}
