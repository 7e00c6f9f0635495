//! Backups of a volume that two sites write to, as operators type them.

use crate::common::{VOLUME, origin_with_tree, pattern, site};
use anyhow::{Context, Result, ensure};
use larder_harness::process::wait_until;
use larder_harness::site::{Line, READY, Server};
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A line of a journal: its number, and bytes that follow from it.
fn line_of(number: u64) -> String {
    let sum = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!("{number} {sum:016x} {}\n", "x".repeat(40 + (number % 60) as usize))
}

/// Appends lines to a journal, syncs each, renames a file from number to number beside it, and counts
/// what is acknowledged.
fn write_journal(
    folder: PathBuf,
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
) -> JoinHandle<Result<()>> {
    std::thread::spawn(move || {
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("at-0"), b"moved")?;
        let mut journal =
            OpenOptions::new().create(true).append(true).open(folder.join("journal"))?;
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            number += 1;
            journal.write_all(line_of(number).as_bytes())?;
            journal.sync_all()?;
            fs::rename(
                folder.join(format!("at-{}", number - 1)),
                folder.join(format!("at-{number}")),
            )?;
            done.store(number, Ordering::Relaxed);
        }
        Ok(())
    })
}

/// A journal holds a prefix of what was written, and the file beside it the name of that moment.
fn check_journal(folder: &PathBuf, at_least: u64, at_most: u64) -> Result<()> {
    let journal = fs::read_to_string(folder.join("journal"))?;
    let lines = journal.lines().count() as u64;
    let wanted: String = (1..=lines).map(line_of).collect();
    ensure!(journal == wanted, "{}: no prefix of what was written", folder.display());
    ensure!((at_least..=at_most).contains(&lines), "{at_least} ≤ {lines} ≤ {at_most}");
    let moved: Vec<String> = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<std::io::Result<Vec<_>>>()?
        .into_iter()
        .filter(|name| name.starts_with("at-"))
        .collect();
    let [moved] = &moved[..] else { anyhow::bail!("one file was moved: {moved:?}") };
    let number: u64 = moved["at-".len()..].parse()?;
    ensure!(lines == number || lines == number + 1, "{lines} lines, and {moved}");
    Ok(())
}

/// Two offices write all day. The nightly backup is made meanwhile and restored: both journals are
/// prefixes of their histories with everything that was synced before it began, the file that is
/// renamed all the time is there once, and the check of the restored volume is clean.
#[test]
fn a_backup_while_two_sites_write_is_of_one_moment() -> Result<()> {
    let site = site("backup")?;
    let origin = origin_with_tree(&site, &[])?;
    let line = Line::to(origin.port, Duration::from_millis(5))?;
    let mounts = [
        site.mount("one", VOLUME, origin.port, &[])?,
        site.mount("two", VOLUME, line.port(), &[])?,
    ];
    let stop = Arc::new(AtomicBool::new(false));
    let counts = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    let writers: Vec<JoinHandle<Result<()>>> = mounts
        .iter()
        .zip(&counts)
        .enumerate()
        .map(|(i, (mount, done))| {
            write_journal(mount.at(&format!("journal-{i}")), stop.clone(), done.clone())
        })
        .collect();
    wait_until("both to write", READY, || {
        ensure!(counts.iter().all(|done| done.load(Ordering::Relaxed) > 20), "not yet");
        Ok(())
    })?;
    let count = || counts.iter().map(|done| done.load(Ordering::Relaxed)).collect::<Vec<u64>>();
    let file = site.path("tree.backup").display().to_string();
    let before = count();
    let said = site.volume(origin.port, &["backup", VOLUME, &file, "--json"])?.success()?;
    let after = count();
    let report: Value = serde_json::from_str(&said)?;
    ensure!(report["stamp"].as_u64() > Some(0) && report["volume"] == VOLUME, "{report}");
    ensure!(!site.path("tree.backup.partial").exists(), "it was renamed");
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().expect("no panic")?;
    }

    let verified = site.larder(&["volume", "verify", &file, "--json"])?.success()?;
    let verified: Value = serde_json::from_str(&verified)?;
    ensure!(verified["pages"] == report["pages"], "{verified}");
    // It is the restorer's alone, but for whom he names.
    let restore = ["restore", &file, "again", "--grant", "three=write"];
    site.volume(origin.port, &restore)?.success()?;
    site.volume(origin.port, &["check", "again"])?.success()?;
    site.issue("three", "node", 30)?;
    let again = site.mount("three", "again", origin.port, &[])?;
    for (i, (before, after)) in before.into_iter().zip(after).enumerate() {
        // One more may have been done that was not counted yet.
        check_journal(&again.at(&format!("journal-{i}")), before, after + 1)?;
    }
    ensure!(fs::read(again.at("folder/page"))? == pattern(30_000, 1), "what was there before");
    // It is done, whoever was told; once it is used it is a volume of its own.
    site.volume(origin.port, &["restore", &file, "again"])?.success()?;
    let mut new = fs::File::create(again.at("new"))?;
    new.write_all(b"new")?;
    new.sync_all()?;
    site.volume(origin.port, &["restore", &file, "again"])?.refused(4, &["again"])?;
    for server in mounts {
        server.stop()?;
    }
    again.stop()?;
    origin.stop()?;
    Ok(())
}

/// Ends in the middle: the command is killed, the file cut off. Nothing of it passes for a backup, and
/// one that was there before stays.
#[test]
fn a_backup_that_ends_in_the_middle_is_none() -> Result<()> {
    let site = site("backup-cut")?;
    let origin = origin_with_tree(&site, &[])?;
    let path = site.path("tree.backup");
    let file = path.display().to_string();
    site.volume(origin.port, &["backup", VOLUME, &file])?.success()?;
    let whole = fs::read(&path)?;
    let line = Line::to(origin.port, Duration::from_millis(1))?;
    let mut killed = site.start_volume(line.port(), &["backup", VOLUME, &file])?;
    wait_until("it to begin", READY, || {
        let begun = fs::metadata(site.path("tree.backup.partial")).is_ok();
        ensure!(begun || fs::read(&path)? != whole, "not yet");
        Ok(())
    })?;
    killed.kill();
    site.larder(&["volume", "verify", &file])?.success()?;
    let cut = site.path("cut.backup");
    fs::write(&cut, &whole[..whole.len() / 2])?;
    let cut = cut.display().to_string();
    site.larder(&["volume", "verify", &cut])?.refused(6, &["not whole"])?;
    site.volume(origin.port, &["restore", &cut, "cut"])?.refused(6, &["not whole"])?;
    site.volume(origin.port, &["info", "cut"])?.refused(3, &["cut"])?;
    stop(origin)
}

fn stop(origin: Server) -> Result<()> {
    origin.stop().map(drop).context("the origin")
}
