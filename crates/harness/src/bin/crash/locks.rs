//! Additions to a number in a file, each under a lock on it, at both sites: none may get lost.

use crate::world::{SITES, World};
use anyhow::{Context, Result, ensure};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the number is, at the volume's root.
const NAME: &str = "counted";
/// Between two additions of a worker.
const PAUSE: Duration = Duration::from_millis(50);

/// A worker: adds one again and again until killed, and notes how many it has added.
pub(crate) fn work(file: &Path, notes: &Path) -> Result<()> {
    let mut notes = File::options().create(true).append(true).open(notes)?;
    loop {
        let mut file = File::options().read(true).write(true).open(file)?;
        flock(&file, FlockOperation::LockExclusive)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let number: u64 = text.trim().parse().context("a number")?;
        file.rewind()?;
        // As long as every other: it is replaced as a whole.
        file.write_all(format!("{:020}\n", number + 1).as_bytes())?;
        file.sync_all()?;
        notes.write_all(b"+")?;
        flock(&file, FlockOperation::Unlock)?;
        drop(file);
        std::thread::sleep(PAUSE);
    }
}

fn notes(world: &World, site: usize) -> PathBuf {
    world.site.path(&format!("added-{}", SITES[site]))
}

/// Makes the file, and starts a worker at each site.
pub(crate) fn start(world: &mut World) -> Result<()> {
    fs::write(world.mounted(0).join(NAME), format!("{:020}\n", 0))?;
    larder_harness::process::wait_until("the file", larder_harness::site::READY, || {
        Ok(fs::metadata(world.mounted(1).join(NAME))?)
    })?;
    for (site, name) in SITES.iter().enumerate() {
        let file = world.mounted(site).join(NAME).display().to_string();
        let words = ["lock-worker".to_owned(), file, notes(world, site).display().to_string()];
        let worker = world.worker(&format!("locks-{name}"), &words)?;
        world.lockers.push(worker);
    }
    Ok(())
}

/// Ends the workers and compares; how many additions there are.
pub(crate) fn stop(world: &mut World) -> Result<u64> {
    for mut worker in world.lockers.drain(..) {
        worker.alive().context("additions under a lock")?;
        worker.kill();
    }
    let noted: u64 = (0..SITES.len())
        .map(|site| fs::metadata(notes(world, site)).map_or(0, |file| file.len()))
        .sum();
    let found: u64 = fs::read_to_string(world.mounted(0).join(NAME))?.trim().parse()?;
    // Each may have been killed between an addition and its note, or before its commit.
    ensure!(
        (noted..=noted + SITES.len() as u64).contains(&found),
        "{noted} additions were noted, and the number is {found}"
    );
    Ok(found)
}
