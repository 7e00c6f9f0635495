//! The origin's disk runs full.

use crate::common::{Tmpfs, VOLUME, pattern, site};
use anyhow::{Context, Result, bail, ensure};
use larder::client::{Error, Node, SessionOptions, Transaction, Volume, VolumeOptions};
use larder::config::NodeConfig;
use larder::core::commit::PageKind;
use larder::core::id::{PageId, Slot};
use larder_harness::process::wait_until;
use larder_harness::site::{READY, Site, runtime, within};
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Mebibytes: three log segments of 64, the reserve of 64, and some pages.
const DISK: u32 = 420;
/// A commit that is refused must say so within this.
const SAID: Duration = Duration::from_secs(5);
/// What was committed is installed by then, if there is room.
const INSTALLED: Duration = Duration::from_secs(6);

/// Mebibytes free.
fn free(disk: &Path) -> Result<u64> {
    let output = Command::new("df").args(["--output=avail", "-m"]).arg(disk).output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().nth(1).context("df prints a line")?.trim().parse()?)
}

/// Fills the disk but for `left` mebibytes, by a file of this name.
fn ballast(disk: &Path, left: u64, name: &str) -> Result<()> {
    let bytes = free(disk)?.saturating_sub(left) << 20;
    if bytes == 0 {
        return Ok(());
    }
    let path = disk.join(name);
    let done = Command::new("fallocate").args(["-l", &bytes.to_string()]).arg(path).status()?;
    ensure!(done.success(), "no ballast of {bytes} bytes");
    Ok(())
}

async fn ledger(site: &Site, port: u16) -> Result<(Node, Volume)> {
    let config = NodeConfig::new("two", site.tls(), &format!("127.0.0.1:{port}"));
    let node = Node::connect(config).await?;
    let volume = match node.volume("ledger").await {
        Ok(volume) => volume,
        Err(_) => node.create_volume(VolumeOptions::new("ledger")).await?,
    };
    Ok((node, volume))
}

/// Writes `number` into the ledger's one slot.
async fn commit(volume: &Volume, number: u64) -> Result<(), Error> {
    let options = SessionOptions { time_limit: SAID / 2, ..SessionOptions::default() };
    let root = volume.root();
    let session = volume.session(options);
    session
        .transact(|tx| async move {
            match tx.read_slot(root, Slot(0)).await? {
                Some(object) => tx.update(object.id, number.to_le_bytes().to_vec()).await,
                None => tx.create_at(root, Slot(0), number.to_le_bytes().to_vec()).await.map(drop),
            }
        })
        .await
}

async fn last(volume: &Volume) -> Result<u64> {
    volume.refresh().await?;
    let root = volume.root();
    let session = volume.session(SessionOptions::default());
    let found = session.read(|tx| async move { tx.read_slot(root, Slot(0)).await });
    let object = found.await?.context("the ledger has its number")?;
    Ok(u64::from_le_bytes(object.value.as_ref().try_into()?))
}

/// Somebody's core dumps fill the disk of the origin. Commits are refused at once, by an error
/// that says the store is full, and writers of files are told too; reads go on, and so does
/// everything when the dumps are deleted: nobody needs to restart anything. Nothing acknowledged
/// is lost, neither then nor when the origin is killed and started again.
#[test]
fn a_full_disk_refuses_commits_and_loses_none() -> Result<()> {
    let site = site("full")?;
    let disk = Tmpfs::new(&site.path("disk"), DISK)?;
    let data = disk.path().join("data");
    let mut origin = site.origin(&data, 0, &[])?;
    let port = origin.port;
    site.volume(port, &["create", VOLUME])?.success()?;
    let mount = site.mount("one", VOLUME, port, &[])?;
    let (node, volume) = runtime().block_on(ledger(&site, port))?;
    let mut acknowledged = 0;
    for number in 1..=50 {
        runtime().block_on(commit(&volume, number))?;
        acknowledged = number;
    }
    let synced = pattern(1 << 20, 9);
    crate::common::write_synced(&mount.at("synced"), &synced)?;

    // Less than the log's reserve, so that it must refuse; it gives up what it had made ready first.
    let mut refused = 0;
    for number in 51..=58 {
        ballast(disk.path(), 40, &format!("ballast-{number}"))?;
        let asked = Instant::now();
        match runtime().block_on(commit(&volume, number)) {
            Ok(()) => acknowledged = number,
            Err(error) => {
                let text = error.to_string();
                ensure!(text.contains("full"), "the error does not name it: {text}");
                ensure!(matches!(error, Error::StoreFull(_)), "of another kind: {error:?}");
                refused += 1;
            }
        }
        ensure!(asked.elapsed() < SAID, "it took {:?} to say so", asked.elapsed());
        if refused == 2 {
            break;
        }
    }
    ensure!(refused == 2, "the disk is not full");
    ensure!(runtime().block_on(last(&volume))? == acknowledged, "reads go on");
    let path = mount.at("unsynced");
    let refused = within(READY, "a write of a file", move || {
        File::create(path).and_then(|mut file| {
            file.write_all(b"no room")?;
            file.sync_all()
        })
    })?;
    let error = refused.err().context("a file was synced on a full disk")?;
    ensure!(error.raw_os_error() == Some(28), "ENOSPC is what people know: {error}");
    ensure!(fs::read(mount.at("synced"))? == synced, "reads of files go on");

    for entry in fs::read_dir(disk.path())? {
        let path = entry?.path();
        if path != data {
            fs::remove_file(path)?;
        }
    }
    let number = acknowledged + 100;
    wait_until("service to resume", READY, || Ok(runtime().block_on(commit(&volume, number))?))?;
    let path = mount.at("after");
    wait_until("files to be written", READY, || {
        let path = path.clone();
        Ok(within(READY, "a write", move || crate::common::write_synced(&path, b"room"))??)
    })?;

    origin.kill();
    let origin = site.origin(&data, port, &[])?;
    wait_until("the link", READY, || {
        ensure!(runtime().block_on(last(&volume))? == number, "an acknowledged commit is lost");
        Ok(())
    })?;
    ensure!(fs::read(mount.at("synced"))? == synced, "a synced file is lost");
    runtime().block_on(node.shutdown());
    mount.stop()?;
    origin.stop()?;
    let checked = data.display().to_string();
    site.larder(&["volume", "check", "--data", &checked])?.success()?;
    Ok(())
}

/// Writes all of some raw pages anew, 1 MiB each: more than the page engine keeps in memory.
async fn write_pages(volume: &Volume, pages: &mut Vec<PageId>, fill: u8) -> Result<(), Error> {
    let options = SessionOptions { time_limit: SAID, ..SessionOptions::default() };
    let session = volume.session(options);
    let bytes = vec![fill; (1 << 20) - 64];
    while pages.len() < 48 {
        let id = volume.id();
        let made = session.transact(|tx| async move { tx.create_page(id, PageKind::Raw).await });
        pages.push(made.await?);
    }
    for page in pages {
        let (page, bytes) = (*page, bytes.clone());
        let write = |tx: Transaction| {
            let bytes = bytes.clone();
            async move { tx.write_raw(page, 0, bytes).await }
        };
        session.transact(write).await?;
    }
    Ok(())
}

/// The other program takes the last byte, the reserve included, while pages are being installed and
/// the page engine writes and merges them in the background: an engine that met the end of the disk
/// there took nothing more, and its domain's service ended until somebody started it again. It says
/// that it is full, serves reads, and goes on when there is room; nothing acknowledged is lost.
#[test]
fn a_disk_without_a_byte_refuses_and_goes_on_by_itself() -> Result<()> {
    let site = site("brim")?;
    let disk = Tmpfs::new(&site.path("disk"), 2 * DISK)?;
    let data = disk.path().join("data");
    let mut origin = site.origin(&data, 0, &[])?;
    let port = origin.port;
    let (node, volume) = runtime().block_on(ledger(&site, port))?;
    let bulk = VolumeOptions { page_bytes: 1 << 20, ..VolumeOptions::new("bulk") };
    let bulk = runtime().block_on(node.create_volume(bulk))?;
    let mut pages = Vec::new();
    let mut acknowledged = 0;
    for round in 1..=3 {
        runtime().block_on(write_pages(&bulk, &mut pages, round))?;
        for number in acknowledged + 1..=acknowledged + 20 {
            runtime().block_on(commit(&volume, number))?;
            acknowledged = number;
        }
        // As much is left as lets installs begin, and not what the engine writes out after them.
        let mut rest = File::create(disk.path().join("rest"))?;
        let bytes = vec![0; 1 << 20];
        let left = free(disk.path())?.saturating_sub(54 + 6 * u64::from(round));
        for _ in 0..left {
            rest.write_all(&bytes)?;
        }
        std::thread::sleep(INSTALLED);
        while rest.write_all(&bytes).is_ok() {}
        for number in acknowledged + 1..=acknowledged + 4 {
            let asked = Instant::now();
            match runtime().block_on(commit(&volume, number)) {
                Ok(()) => acknowledged = number,
                Err(Error::StoreFull(_)) => {}
                Err(error) => bail!("of another kind: {error:?}"),
            }
            ensure!(asked.elapsed() < 2 * SAID, "it took {:?} to say so", asked.elapsed());
        }
        ensure!(runtime().block_on(last(&volume))? == acknowledged, "reads go on");
        fs::remove_file(disk.path().join("rest"))?;
        acknowledged += 100;
        let number = acknowledged;
        wait_until(
            "service to resume",
            READY,
            || Ok(runtime().block_on(commit(&volume, number))?),
        )?;
    }
    origin.kill();
    runtime().block_on(node.shutdown());
    let origin = site.origin(&data, port, &[])?;
    let (node, volume) = runtime().block_on(ledger(&site, port))?;
    let found = runtime().block_on(last(&volume))?;
    ensure!(found >= acknowledged, "{acknowledged} was acknowledged and {found} is there");
    let bulk = runtime().block_on(node.volume("bulk"))?;
    let session = bulk.session(SessionOptions::default());
    for page in pages {
        let read = session.read(|tx| async move { tx.read_raw(page).await });
        let bytes = runtime().block_on(read)?.context("a page is there")?;
        ensure!(bytes.iter().all(|byte| *byte == 3), "a page has gone back");
    }
    runtime().block_on(node.shutdown());
    origin.stop()?;
    Ok(())
}
