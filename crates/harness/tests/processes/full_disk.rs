//! The origin's disk runs full.

use crate::common::{Tmpfs, site};
use anyhow::{Context, Result, ensure};
use larder::client::{Error, Node, SessionOptions, Volume, VolumeOptions};
use larder::config::NodeConfig;
use larder::core::id::Slot;
use larder_harness::site::{Site, runtime};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Mebibytes: three log segments of 64, the reserve of 64, and some pages.
const DISK: u32 = 420;
/// A commit that is refused must say so within this.
const SAID: Duration = Duration::from_secs(5);

/// Fills the disk but for `free` mebibytes.
fn ballast(disk: &Path, free: u64) -> Result<()> {
    let output = Command::new("df").args(["--output=avail", "-m"]).arg(disk).output()?;
    let text = String::from_utf8(output.stdout)?;
    let available: u64 = text.lines().nth(1).context("df prints a line")?.trim().parse()?;
    let bytes = available.saturating_sub(free) << 20;
    let path = disk.join("ballast");
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
    ballast(disk.path(), 1)?;
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
