//! Who may do what, with real processes: rights are given and taken while volumes are mounted.

use crate::common::{VOLUME, origin_with_tree, site, write_synced};
use anyhow::{Context, Result, ensure};
use larder_harness::process::wait_until;
use larder_harness::site::{READY, Site, within};
use rustix::io::Errno;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Refused.
const REFUSED: i32 = 4;
/// "At once": far below a request's limit, far above the time that a busy machine takes.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Changes rights as the administrator; gives what holds.
fn rights(site: &Site, port: u16, changes: &[&str]) -> Result<Value> {
    let words = [&["rights", VOLUME, "--json"], changes].concat();
    Ok(serde_json::from_str(&site.volume(port, &words)?.success()?)?)
}

/// Something that must end at once, and with this error.
fn fails_at_once<T: Send + 'static>(
    what: &str,
    wanted: Errno,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<()> {
    match within(AT_ONCE, what, work)? {
        Ok(_) => anyhow::bail!("{what} is allowed"),
        Err(error) => {
            ensure!(error.raw_os_error() == Some(wanted.raw_os_error()), "{what}: {error}");
            Ok(())
        }
    }
}

fn read_fails(path: &Path) -> Result<()> {
    let path = path.to_path_buf();
    fails_at_once("a read", Errno::ACCESS, move || fs::read(path))
}

fn write_fails(path: &Path, wanted: Errno) -> Result<()> {
    let path = path.to_path_buf();
    fails_at_once("a write", wanted, move || write_synced(&path, b"not allowed"))
}

/// Somebody who has a certificate and no right, directly and through a relay.
fn strangers_are_told(site: &Site, ports: &[u16]) -> Result<()> {
    site.issue("eve", "node", 10)?;
    let tls = site.tls();
    let point = site.path("eve");
    fs::create_dir_all(&point)?;
    let at = point.display().to_string();
    for port in ports {
        let parent = format!("127.0.0.1:{port}");
        let as_eve = ["--tls", &tls, "--name", "eve", "--parent", &parent];
        let listed = site.larder(&[&["volume", "list", "--json"], &as_eve[..]].concat())?;
        ensure!(listed.success()?.trim() == "[]", "eve sees it");
        let named = ["eve", VOLUME, "--grant eve=read"];
        let info = site.larder(&[&["volume", "info", VOLUME], &as_eve[..]].concat())?;
        info.refused(REFUSED, &named)?;
        site.larder(&[&["mount", "-f", VOLUME, &at], &as_eve[..]].concat())?
            .refused(REFUSED, &named)?;
        let mine = ["volume", "rights", VOLUME, "--grant", "eve=admin"];
        site.larder(&[&mine, &as_eve[..]].concat())?.refused(REFUSED, &["eve"])?;
    }
    Ok(())
}

/// A project for some, at two sites, one of them behind a relay. Who is not named does not see it and
/// is told by name what he lacks. Then people leave: the right to write is taken from one who is
/// writing, the right to read from one who is reading; neither hangs, neither is shown what he has read
/// before, and what cannot be committed any more is told as lost. Given again, a right holds without a
/// restart.
#[test]
fn rights_are_given_and_taken_while_volumes_are_mounted() -> Result<()> {
    let site = site("rights")?;
    let origin = origin_with_tree(&site, &[])?;
    let relay = site.relay(origin.port, &[])?;
    let some = ["--grant", "admin=admin", "--grant", "one=write", "--grant", "two=write"];
    let relayed = ["--grant", "rel*=write", "--default", "none"];
    let told = rights(&site, origin.port, &[&some[..], &relayed].concat())?;
    ensure!(told["default"] == "none" && told["rights"][1]["id"] == "admin", "{told:#}");
    let one = site.mount("one", VOLUME, origin.port, &[])?;
    let two = site.mount("two", VOLUME, relay.port, &[])?;

    strangers_are_told(&site, &[origin.port, relay.port])?;
    let locked = ["rights", VOLUME, "--grant", "admin=read"];
    site.volume(origin.port, &locked)?.refused(2, &["--force"])?;

    // Both work.
    write_synced(&one.at("from-one"), b"one")?;
    wait_until("what one wrote at two", READY, || Ok(fs::read(two.at("from-one"))?))?;
    write_synced(&two.at("from-two"), b"two")?;
    ensure!(fs::read(two.at("folder/page"))?.len() == 30_000, "two reads");

    // The right to write goes, with bytes on their way: who writes is told, who reads goes on.
    let waiting = File::create(one.at("waiting"))?;
    waiting.write_all_at(b"committed", 0)?;
    waiting.sync_all()?;
    rights(&site, origin.port, &["--grant", "one=read"])?;
    wait_until("refused writes at one", READY, || write_fails(&one.at("late"), Errno::ROFS))?;
    ensure!(fs::read(one.at("waiting"))? == b"committed", "one reads");
    write_synced(&two.at("meanwhile"), b"two")?;
    wait_until("what two wrote at one", READY, || Ok(fs::read(one.at("meanwhile"))?))?;
    rights(&site, origin.port, &["--grant", "one=write"])?;
    wait_until("a write at one", READY, || Ok(write_synced(&one.at("again"), b"one")?))?;

    // The right to read goes, behind the relay: nothing is shown, of what was read either.
    rights(&site, origin.port, &["--revoke", "two"])?;
    wait_until("refused reads at two", READY, || read_fails(&two.at("folder/page")))?;
    read_fails(&two.at("from-one"))?;
    write_fails(&two.at("from-two"), Errno::ACCESS)?;
    let folder = two.at("folder");
    fails_at_once("a listing", Errno::ACCESS, move || {
        fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()
    })?;
    ensure!(fs::read(one.at("folder/page"))?.len() == 30_000, "one has nothing to do with it");
    rights(&site, origin.port, &["--grant", "two=write"])?;
    let again = || Ok(fs::read(two.at("folder/page"))?);
    ensure!(wait_until("a read at two", READY, again)?.len() == 30_000, "in part");
    write_synced(&two.at("from-two"), b"again")?;
    two.stop()?;

    // A mount of one who may only read is read-only, and says so.
    rights(&site, origin.port, &["--grant", "two=read"])?;
    let reads = site.mount("two", VOLUME, relay.port, &[])?;
    write_fails(&reads.at("from-two"), Errno::ROFS)?;
    ensure!(fs::read(reads.at("from-two"))? == b"again", "it reads");
    let log = reads.stop()?;
    ensure!(log.contains("mounted read-only") && log.contains("--grant two=write"), "{log}");
    let (tls, parent) = (site.tls(), format!("127.0.0.1:{}", relay.port));
    let at = site.path("two").display().to_string();
    let words = ["mount", "-f", "-o", "rw", VOLUME, &at, "--tls", &tls, "--name", "two"];
    site.larder(&[&words[..], &["--parent", &parent]].concat())?
        .refused(REFUSED, &["--grant two=write"])?;

    // What was not committed when the right went is told as lost. A process of its own writes: whatever
    // is started by one that has the file open closes it, and so commits what was written.
    drop(waiting);
    let left = one.at("left");
    let mut writer = Command::new("dd")
        .arg(format!("of={}", left.display()))
        .args(["bs=4", "status=none"])
        .stdin(Stdio::piped())
        .spawn()?;
    writer.stdin.as_mut().context("piped")?.write_all(b"7777")?;
    wait_until("what it wrote", READY, || {
        ensure!(fs::metadata(&left)?.len() == 4, "not yet");
        Ok(())
    })?;
    rights(&site, origin.port, &["--revoke", "one"])?;
    wait_until("refused reads at one", READY, || read_fails(&one.at("waiting")))?;
    let point = site.path("one").display().to_string();
    let ended = site.larder(&["unmount", "--lazy", &point])?;
    ensure!(ended.code != Some(0) && ended.err.contains("may not"), "{ended:?}");
    drop(writer.stdin.take());
    within(READY, "the end of the writer", move || writer.wait())??;
    let log = one.process.log();
    ensure!(log.contains("what was written could not be committed"), "{log}");
    drop(one);
    let listed: Value =
        serde_json::from_str(&site.volume(origin.port, &["list", "--json"])?.success()?)?;
    ensure!(listed[0]["right"] == "admin", "{listed:#}");
    relay.stop()?;
    origin.stop().context("the origin ends in order")?;
    Ok(())
}
