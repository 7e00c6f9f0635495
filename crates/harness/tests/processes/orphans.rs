//! Files that were removed while open, by a node that then died.

use crate::common::{VOLUME, origin_with_tree, pattern, site};
use anyhow::{Result, ensure};
use larder_harness::process::wait_until;
use larder_harness::site::{READY, Site};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

/// Short, so that a test sees it pass.
const AGE: &str = "node.orphan_age=1s";

/// Makes a file, keeps it open and removes its name: a temporary file, as many programs use.
fn temporary(path: &Path) -> Result<File> {
    let mut file = File::options().create(true).truncate(true).read(true).write(true).open(path)?;
    file.write_all(&pattern(2 << 20, 1))?;
    file.sync_all()?;
    fs::remove_file(path)?;
    Ok(file)
}

fn check(site: &Site, port: u16, extra: &[&str]) -> Result<Value> {
    let words = ["check", VOLUME, "--json"];
    Ok(serde_json::from_str(&site.volume(port, &[&words, extra].concat())?.success()?)?)
}

/// A workstation dies with temporary files open whose names are gone. Their space is given back by
/// another mount, without anybody asking for it; and the temporary file of the mount that lives is
/// its own for as long as it holds it.
#[test]
fn temporary_files_of_a_dead_node_are_freed_by_the_living() -> Result<()> {
    let site = site("orphans")?;
    let origin = origin_with_tree(&site, &[])?;
    let mut dying = site.mount("one", VOLUME, origin.port, &["--set", AGE])?;
    let living = site.mount("two", VOLUME, origin.port, &["--set", AGE])?;
    let lost = temporary(&dying.at("lost"))?;
    let mut held = temporary(&living.at("held"))?;
    ensure!(check(&site, origin.port, &[])?["orphans"] == 2, "two files without a name");
    dying.kill();
    drop(lost);
    wait_until("the dead node's file to be freed", READY, || {
        std::thread::sleep(Duration::from_millis(200));
        let found = check(&site, origin.port, &[])?;
        ensure!(found["orphans"] == 1, "{found}");
        Ok(())
    })?;
    // Some lives of a lease later the living node's is there.
    std::thread::sleep(Duration::from_secs(3));
    let mut read = Vec::new();
    held.seek(SeekFrom::Start(0))?;
    held.read_to_end(&mut read)?;
    ensure!(read == pattern(2 << 20, 1), "the file that is held open has changed");
    drop(held);
    wait_until("the last close to free it", READY, || {
        ensure!(check(&site, origin.port, &[])?["orphans"] == 0, "it is there");
        Ok(())
    })?;
    living.stop()?;
    origin.stop()?;
    Ok(())
}

/// Nobody mounts the volume any more, and its operator wants the space back now.
#[test]
fn an_operator_may_free_them_at_once() -> Result<()> {
    let site = site("operator")?;
    let origin = origin_with_tree(&site, &[])?;
    let mut dying = site.mount("one", VOLUME, origin.port, &[])?;
    let lost = temporary(&dying.at("lost"))?;
    dying.kill();
    drop(lost);
    let found = check(&site, origin.port, &["--free-orphans", "1d"])?;
    ensure!(found["orphans"] == 1 && found["freed"] == 0, "too young: {found}");
    let found = check(&site, origin.port, &["--free-orphans", "0"])?;
    ensure!(found["orphans"] == 0 && found["freed"] == 1, "freed at once: {found}");
    site.volume(origin.port, &["check", VOLUME, "--free-orphans", "soon"])?
        .refused(2, &["soon"])?;
    origin.stop()?;
    Ok(())
}
