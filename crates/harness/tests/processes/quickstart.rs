//! What a newcomer starts first, and how it ends.

use crate::common::{binary, write_synced};
use anyhow::{Context, Result, ensure};
use larder_harness::process::{Folder, Process, is_mounted, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

const QUICKSTART: &str = env!("CARGO_BIN_EXE_quickstart");
/// Everything is measured by then, also on a loaded machine.
const MEASURED: Duration = Duration::from_secs(120);

/// Somebody whose shell stands in a mount, ended when dropped.
struct Standing(Child);

impl Standing {
    fn at(folder: &Path) -> Result<Self> {
        Ok(Self(Command::new("sleep").arg("600").current_dir(folder).spawn()?))
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn start(folder: &Path, words: &[&str]) -> Result<Process> {
    // The quickstart finds the command beside itself.
    binary();
    let temporary = folder.join("tmp");
    fs::create_dir_all(&temporary)?;
    let mut arguments = vec![format!("TMPDIR={}", temporary.display()), QUICKSTART.to_owned()];
    arguments.extend(words.iter().map(|word| (*word).to_owned()));
    Process::start("quickstart", Path::new("env"), &arguments, folder)
}

/// The folder in which a quickstart works.
fn work(folder: &Path) -> Result<PathBuf> {
    let mut made = fs::read_dir(folder.join("tmp"))?;
    Ok(made.next().context("it made no folder")??.path())
}

/// Somebody tries the quickstart, plays with it, and ends it while a shell stands in one of its
/// mounts: it ends all the same, with success, and leaves no mount, no process and no folder.
#[test]
fn a_quickstart_leaves_nothing_behind() -> Result<()> {
    let folder = Folder::new("quickstart-test", false)?;
    let source = folder.path().join("source");
    fs::create_dir_all(source.join("deep"))?;
    for number in 0..40 {
        fs::write(source.join(format!("deep/{number}")), "a cache\n".repeat(number * 30))?;
    }
    let mut quickstart = start(folder.path(), &[&source.display().to_string()])?;
    wait_until("the figures", MEASURED, || {
        quickstart.alive()?;
        ensure!(quickstart.log().contains("Ctrl-C"), "{}", quickstart.tail());
        Ok(())
    })?;
    let log = quickstart.log();
    ensure!(log.contains("40 files") && log.contains("without a cache"), "{log}");
    ensure!(log.contains("its neighbour, cold") && !log.contains("is not judged"), "{log}");
    let work = work(folder.path())?;
    let mounts = ["one-a", "one-b", "two-a", "two-b"].map(|name| work.join(name));
    write_synced(&mounts[0].join("hello"), b"hello")?;
    for mount in &mounts[1..] {
        wait_until("the new file at the others", MEASURED, || {
            ensure!(fs::read(mount.join("hello"))? == b"hello", "it is not whole yet");
            Ok(())
        })?;
    }

    let standing = Standing::at(&mounts[2].join("deep"))?;
    quickstart.terminate(MEASURED).with_context(|| quickstart.tail())?;
    for mount in &mounts {
        ensure!(!is_mounted(mount)?, "{} is left", mount.display());
    }
    ensure!(!work.exists(), "{} is left", work.display());
    drop(standing);
    Ok(())
}

/// A machine without documentation, or a word that is misspelt: what is wrong is said before
/// anything is started, and what to do instead.
#[test]
fn a_folder_without_files_is_named() -> Result<()> {
    let folder = Folder::new("quickstart-empty", false)?;
    let empty = folder.path().join("empty");
    fs::create_dir_all(empty.join("deep"))?;
    let missing = folder.path().join("missing");
    for source in [&empty, &missing] {
        let source = source.display().to_string();
        let mut quickstart = start(folder.path(), &[&source, "--once"])?;
        ensure!(quickstart.ended(MEASURED)? == Some(1), "{}", quickstart.tail());
        let log = quickstart.log();
        ensure!(log.contains(&source) && log.contains("./x quickstart DIR"), "{log}");
    }
    ensure!(work(folder.path()).is_err(), "something was made");
    Ok(())
}
