//! `larder volume backup`, `restore` and `verify`: the files.

use crate::progress::{Progress, Step};
use anyhow::{Context, Result, bail};
use larder::backup::{self, BackupOptions, BackupProgress, Summary};
use larder::client::{Node, Volume};
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

fn step(progress: BackupProgress) -> Step {
    let known = (progress.known > 0).then_some(progress.known.max(progress.pages));
    Step { done: progress.pages, known, bytes: progress.bytes }
}

/// The file's name with an end that says that it is not whole.
fn partial(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Fails if the backup lacks pages, after all else is done and told.
pub(crate) fn verdict(report: &Value) -> Result<()> {
    match report["left_out"].as_u64() {
        Some(0) | None => Ok(()),
        Some(pages) => bail!(crate::exit::LeftOut(pages)),
    }
}

/// Writes a volume into a file beside the one that is wanted, and renames it in the end.
pub(crate) async fn back_up(
    volume: &Volume,
    file: &Path,
    leave_out_damaged: bool,
    mut shown: Progress,
) -> Result<Value> {
    let options = BackupOptions { leave_out_damaged, ..BackupOptions::default() };
    let mut progress = |done| shown.show(step(done));
    if file.as_os_str() == "-" {
        let out = BufWriter::with_capacity(1 << 20, std::io::stdout());
        let (summary, mut out) = backup::back_up(volume, out, &options, &mut progress).await?;
        out.flush().context("standard output")?;
        return Ok(report(&summary, &shown));
    }
    let part = partial(file);
    let at = || part.display().to_string();
    let out = File::create(&part).with_context(at)?;
    let out = BufWriter::with_capacity(1 << 20, out);
    let (summary, out) =
        backup::back_up(volume, out, &options, &mut progress).await.with_context(at)?;
    let out = out.into_inner().map_err(std::io::IntoInnerError::into_error).with_context(at)?;
    out.sync_all().with_context(at)?;
    std::fs::rename(&part, file).with_context(|| file.display().to_string())?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
    folder.context("the folder of the backup")?;
    Ok(report(&summary, &shown))
}

/// Makes a volume of a file.
pub(crate) async fn restore(
    node: &Node,
    file: &Path,
    name: &str,
    mut shown: Progress,
) -> Result<Value> {
    let at = || file.display().to_string();
    let opened = File::open(file).with_context(at)?;
    let mut progress = |done| shown.show(step(done));
    let restored = backup::restore(node, opened, name, &mut progress).await.with_context(at)?;
    let mut value = report(&restored.summary, &shown);
    value["restored"] = name.into();
    value["restored_id"] = restored.volume.to_string().into();
    value["kept"] = restored.kept.into();
    value["freed"] = restored.freed.into();
    Ok(value)
}

/// Looks through a file.
pub(crate) fn verify(file: &Path, mut shown: Progress) -> Result<Value> {
    let at = || file.display().to_string();
    let mut progress = |done| shown.show(step(done));
    let summary = if file.as_os_str() == "-" {
        backup::verify(std::io::stdin().lock(), &mut progress)
    } else {
        let opened = File::open(file).with_context(at)?;
        backup::verify(BufReader::with_capacity(1 << 20, opened), &mut progress)
    };
    Ok(report(&summary.with_context(at)?, &shown))
}

fn report(summary: &Summary, shown: &Progress) -> Value {
    let (header, trailer) = (&summary.header, &summary.trailer);
    json!({
        "volume": header.name,
        "id": header.volume.to_string(),
        "domain": format!("{:016x}", header.domain.0),
        "page_bytes": header.page_bytes,
        "stamp": trailer.stamp.0,
        "history": format!("{:032x}", trailer.history.0),
        "unix_time": trailer.time / 1_000_000_000,
        "pages": trailer.pages,
        "deleted": trailer.deleted,
        "left_out": trailer.left_out,
        "left_out_pages": summary.left_out.iter().map(|page| page.0).collect::<Vec<_>>(),
        "file_bytes": summary.bytes,
        "seconds": shown.finish().as_secs_f64(),
    })
}
