//! The origin's disk runs full.

use crate::common::{Tmpfs, VOLUME, pattern, site};
use anyhow::{Context, Result, ensure};
use larder::client::{Error, Node, SessionOptions, Volume, VolumeOptions};
use larder::config::NodeConfig;
use larder::core::id::Slot;
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

/// Fills the disk but for `free` mebibytes, by a file of this name.
fn ballast(disk: &Path, free: u64, name: &str) -> Result<()> {
    let output = Command::new("df").args(["--output=avail", "-m"]).arg(disk).output()?;
    let text = String::from_utf8(output.stdout)?;
    let available: u64 = text.lines().nth(1).context("df prints a line")?.trim().parse()?;
    let bytes = available.saturating_sub(free) << 20;
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

/// The other program takes the last byte, the reserve included, while pages are being installed.
/// The domain may have to end its service; but it says why, acknowledges nothing that it has not
/// synced, and has all of it when it is started again with room.
#[test]
fn a_disk_without_a_byte_ends_service_at_worst_and_loses_nothing() -> Result<()> {
    let site = site("brim")?;
    let disk = Tmpfs::new(&site.path("disk"), DISK)?;
    let data = disk.path().join("data");
    let mut origin = site.origin(&data, 0, &[])?;
    let port = origin.port;
    let (node, volume) = runtime().block_on(ledger(&site, port))?;
    let mut acknowledged = 0;
    for number in 1..=200 {
        runtime().block_on(commit(&volume, number))?;
        acknowledged = number;
    }
    // What is free changes meanwhile: the second time takes what the first left.
    ballast(disk.path(), 1, "ballast")?;
    let rest = vec![0; 64 << 20];
    ensure!(fs::write(disk.path().join("rest"), rest).is_err(), "there is room still");
    for number in 201..=206 {
        let asked = Instant::now();
        if runtime().block_on(commit(&volume, number)).is_ok() {
            acknowledged = number;
        }
        ensure!(asked.elapsed() < 2 * SAID, "it took {:?} to say so", asked.elapsed());
    }
    origin.kill();
    runtime().block_on(node.shutdown());
    for name in ["ballast", "rest"] {
        fs::remove_file(disk.path().join(name))?;
    }
    let origin = site.origin(&data, port, &[])?;
    let (node, volume) = runtime().block_on(ledger(&site, port))?;
    let found = runtime().block_on(last(&volume))?;
    ensure!(found >= acknowledged, "{acknowledged} was acknowledged and {found} is there");
    runtime().block_on(commit(&volume, 1000))?;
    runtime().block_on(node.shutdown());
    origin.stop()?;
    Ok(())
}
