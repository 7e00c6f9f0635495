//! `larder volume backup`, `restore` and `verify`: the files.

use crate::progress::{Progress, Step};
use anyhow::{Context, Result, bail};
use larder::backup::{self, BackupOptions, BackupProgress, RestoreOptions, Summary};
use larder::client::{Node, Volume};
use larder_core::rights::{Right, RightsEdit};
use serde_json::{Value, json};
use std::fs::{File, TryLockError};
use std::io::{BufReader, BufWriter, ErrorKind, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

fn step(progress: BackupProgress) -> Step {
    let known = (progress.known > 0).then_some(progress.known.max(progress.pages));
    Step { done: progress.pages, known, bytes: Some(progress.bytes) }
}

/// The file's name with an end that says that it is not whole.
fn partial(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Opens a file that nobody else writes a backup into, empty. One that somebody does is left as it is.
fn take(part: &Path) -> Result<File> {
    let busy = "another backup into this file is under way: wait for it, or name another file";
    loop {
        let file = File::options().create(true).truncate(false).write(true).open(part)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => bail!(busy),
            // A file system without locks.
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        // The other one may have ended in between: then this is the whole one, under its own name.
        let (ours, named) = (file.metadata()?, std::fs::metadata(part));
        if named.is_ok_and(|named| (named.dev(), named.ino()) == (ours.dev(), ours.ino())) {
            file.set_len(0)?;
            return Ok(file);
        }
    }
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
    let out = take(&part).with_context(at)?;
    let out = BufWriter::with_capacity(1 << 20, out);
    let (summary, out) =
        backup::back_up(volume, out, &options, &mut progress).await.with_context(at)?;
    let out = out.into_inner().map_err(std::io::IntoInnerError::into_error).with_context(at)?;
    out.sync_all().with_context(at)?;
    // Locked until it has its name.
    std::fs::rename(&part, file).with_context(|| file.display().to_string())?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
    folder.context("the folder of the backup")?;
    Ok(report(&summary, &shown))
}

/// The rights that a restored volume is to have.
pub(crate) fn rights(grants: &[RightsEdit], default_right: Right) -> RestoreOptions {
    RestoreOptions { default_right, grants: grants.to_vec() }
}

/// What is to be known of a restored volume's rights.
pub(crate) fn who_may(name: &str, report: &Value) -> String {
    let admin = report["admin"].as_str().unwrap_or_default();
    format!(
        "volume {name} has rights of its own, and none of those of the volume that was backed up: {admin} \
         administers it; see and change them with `larder volume rights {name}`"
    )
}

/// Makes a volume of a file.
pub(crate) async fn restore(
    node: &Node,
    file: &Path,
    name: &str,
    options: &RestoreOptions,
    mut shown: Progress,
) -> Result<Value> {
    let at = || file.display().to_string();
    let opened = File::open(file).with_context(at)?;
    let mut progress = |done| shown.show(step(done));
    let restored = backup::restore(node, opened, name, options, &mut progress).await;
    let restored = restored.with_context(at)?;
    let mut value = report(&restored.summary, &shown);
    value["restored"] = name.into();
    value["restored_id"] = restored.volume.to_string().into();
    value["kept"] = restored.kept.into();
    value["freed"] = restored.freed.into();
    value["admin"] = restored.admin.into();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: a nightly backup of a large volume was not done when the next night's began: that one cut the
    /// file, both wrote into it, and whichever ended first gave the mixture the name of the good one of before.
    #[test]
    fn two_backups_into_one_file_are_refused_and_the_first_one_stays_whole() {
        let folder = std::env::temp_dir().join(format!("larder-backup-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("it is ours");
        let file = folder.join("docs.backup");
        let part = partial(&file);
        let mut first = take(&part).expect("nobody else writes it");
        first.write_all(b"the first one's").expect("there is room");
        let refused = take(&part).expect_err("it is the first one's");
        assert!(refused.to_string().contains("under way"), "{refused}");
        assert_eq!(std::fs::read(&part).expect("it is there"), b"the first one's");
        // It ends: under its own name it is nobody's to cut.
        std::fs::rename(&part, &file).expect("it is ours");
        drop(take(&part).expect("it is another file"));
        drop(first);
        assert_eq!(std::fs::read(&file).expect("it is there"), b"the first one's");
        // What an interrupted one left is begun anew.
        std::fs::write(&part, b"half").expect("it is ours");
        drop(take(&part).expect("nobody writes it"));
        assert_eq!(std::fs::read(&part).expect("it is there"), b"");
        std::fs::remove_dir_all(folder).expect("it is ours");
    }
}
