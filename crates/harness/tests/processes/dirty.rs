//! A mount is killed with work in its hands.

use crate::common::{VOLUME, origin_with_tree, pattern, site, write_synced};
use anyhow::{Result, ensure};
use larder_harness::site::Site;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};

/// A workstation loses power while its user saves: some files are synced, some are half written,
/// one is being written over, one was removed while open. What was synced is there, byte for byte;
/// what was not may be old, new or a beginning of it, but never anything else; the tree is sound,
/// and the same name mounts again at once.
#[test]
fn a_mount_killed_with_dirty_files_loses_nothing_that_was_synced() -> Result<()> {
    let site = site("dirty")?;
    let origin = origin_with_tree(&site, &[])?;
    let (old, new) = (pattern(3 << 20, 3), pattern(3 << 20, 4));
    for round in 0..3 {
        // Made and closed without waiting in every other round.
        let waits: &[&str] = if round % 2 == 0 { &[] } else { &["--wait-commits"] };
        let mut mount = site.mount("one", VOLUME, origin.port, waits)?;
        let synced = format!("synced-{round}");
        write_synced(&mount.at(&synced), &old)?;
        let mut over = File::create(mount.at("over"))?;
        over.write_all(&old)?;
        over.sync_all()?;
        over.seek(SeekFrom::Start(0))?;
        over.write_all(&new[..(round + 1) << 20])?;
        let mut half = File::create(mount.at("half"))?;
        half.write_all(&new)?;
        // Renamed over a file that was synced: the name shows one of the two, whole.
        write_synced(&mount.at("saved"), &old)?;
        write_synced(&mount.at("saved.new"), &new)?;
        fs::rename(mount.at("saved.new"), mount.at("saved"))?;
        mount.kill();
        drop((over, half));

        let mount = site.mount("one", VOLUME, origin.port, &[])?;
        ensure!(fs::read(mount.at(&synced))? == old, "a synced file differs");
        ensure!(fs::read(mount.at("saved"))? == new, "a rename that had succeeded is undone");
        let over = fs::read(mount.at("over"))?;
        ensure!(over.len() == old.len(), "a file written over changed its size: {}", over.len());
        for (at, byte) in over.iter().enumerate() {
            ensure!(*byte == old[at] || *byte == new[at], "byte {at} was never written");
        }
        // It may never have come to be.
        if mount.at("half").exists() {
            let half = fs::read(mount.at("half"))?;
            ensure!(new.starts_with(&half), "{} bytes that are no beginning", half.len());
        }
        mount.stop()?;
        check(&site, origin.port)?;
    }
    origin.stop()?;
    Ok(())
}

fn check(site: &Site, port: u16) -> Result<()> {
    site.volume(port, &["check", VOLUME])?.success()?;
    Ok(())
}
