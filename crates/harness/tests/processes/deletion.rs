//! A volume is deleted while it is mounted, read and written to.

use crate::common::{VOLUME, origin_with_tree, pattern, site, write_synced};
use anyhow::{Context, Result, ensure};
use larder_harness::process::{metric, wait_until};
use larder_harness::site::{READY, Server, within};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::time::Duration;

/// "At once": far below a request's limit, far above the time that a busy machine takes.
const AT_ONCE: Duration = Duration::from_secs(10);

/// Whether an operation is refused at once, and as one on a volume that is not there any more.
fn stale<T: Send + 'static>(
    what: &str,
    work: impl Fn() -> std::io::Result<T> + Send + Sync + 'static,
) -> Result<()> {
    // Until its relay has its line back, a node may be told that there is no such volume there.
    let work = std::sync::Arc::new(work);
    wait_until(what, READY, || {
        let once = work.clone();
        let result = within(AT_ONCE, what, move || once())?;
        let error = result.err().with_context(|| format!("{what} is served"))?;
        ensure!(error.raw_os_error() == Some(Errno::STALE.raw_os_error()), "{what}: {error}");
        Ok(())
    })
}

/// Appends to a file until that fails.
fn write_on(path: PathBuf) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    loop {
        file.write_all(&pattern(64 << 10, 1))?;
        file.sync_all()?;
    }
}

fn removed(origin: &Server) -> Result<()> {
    wait_until("what the volume left to be removed", READY, || {
        let left = metric(origin.http, "larder_removing_pages", &[])?;
        ensure!(left == 0.0, "{left} pages are left");
        Ok(())
    })
}

/// An owner deletes a volume that two sites have mounted, one of them behind a relay: it reads what it
/// has cached, a program there appends to a file, and something written waits for its commit. All of
/// them are refused at once, the status and the log say why, unmounting says what is lost. The name is
/// free for another volume; the origin, killed in the middle, goes on with the removal.
#[test]
fn a_volume_deleted_under_its_users() -> Result<()> {
    let site = site("deletion")?;
    let mut origin = origin_with_tree(&site, &[])?;
    site.volume(origin.port, &["create", "other"])?.success()?;
    let relay = site.relay(origin.port, &[])?;
    let near = site.mount("one", VOLUME, origin.port, &[])?;
    let far = site.mount("two", VOLUME, relay.port, &[])?;
    for mount in [&near, &far] {
        ensure!(fs::read(mount.at("folder/page"))?.len() == 30_000, "it is cached");
    }
    write_synced(&near.at("synced"), b"committed")?;
    let held = File::create(far.at("held"))?;
    (&held).write_all(b"not committed")?;
    let path = far.at("growing");
    let writer = std::thread::spawn(move || write_on(path));
    wait_until("the writer", READY, || Ok(fs::metadata(far.at("growing"))?))?;

    site.volume(origin.port, &["delete", VOLUME])?.refused(2, &["--yes"])?;
    let told = site.volume(relay.port, &["delete", VOLUME, "--yes", "--json"])?.success()?;
    ensure!(told.contains(&format!("\"deleted\":\"{VOLUME}\"")), "{told}");
    origin.kill();
    let origin = site.origin(&site.path("data"), origin.port, &[])?;

    wait_until("both to be told", READY, || {
        for mount in [&near, &far] {
            // Its name is taken back, and then nobody opens it any more.
            let error = fs::metadata(mount.at("folder/page")).err().context("served")?;
            ensure!(error.kind() == ErrorKind::StaleNetworkFileHandle, "{error}");
        }
        Ok(())
    })?;
    for mount in [&near, &far] {
        let (read, look, make) = (mount.at("folder/page"), mount.at("inline"), mount.at("new"));
        stale("a read of what was cached", move || fs::read(&read))?;
        stale("a look", move || fs::metadata(&look))?;
        stale("a creation", move || File::create(&make))?;
        // A page that is refused may tell of it before the volume itself is asked after.
        wait_until("the status", READY, || {
            let status = mount.status()?.to_string();
            ensure!(status.contains("the volume was deleted"), "{status}");
            Ok(())
        })?;
    }
    let wrote = within(AT_ONCE, "the writer", move || writer.join())?;
    let error = wrote.expect("it does not panic").err().context("it goes on")?;
    ensure!(error.kind() != ErrorKind::TimedOut, "{error}");
    // What the relay tells of its new link may come in between: then at the sync.
    stale("a write", move || (&held).write_all(b"and more").and_then(|()| held.sync_all()))?;

    site.volume(origin.port, &["info", VOLUME])?.refused(3, &["no volume"])?;
    site.volume(origin.port, &["create", VOLUME])?.success()?;
    let listed = site.volume(origin.port, &["list"])?.success()?;
    ensure!(listed.contains(VOLUME) && listed.contains("other"), "{listed}");
    removed(&origin)?;
    for mut mount in [near, far] {
        let point = mount.at("").display().to_string();
        let ended = within(AT_ONCE * 3, "unmounting", {
            let larder = site.larder(&["unmount", &point]);
            move || larder
        })??;
        ensure!(ended.err.is_empty() || ended.err.contains("deleted"), "{}", ended.err);
        let log = mount.process.log();
        ensure!(log.contains("the volume was deleted"), "{log}");
        mount.kill();
    }
    relay.stop()?;
    origin.stop()?;
    let data = site.path("data").display().to_string();
    site.larder(&["volume", "check", "--data", &data])?.success()?;
    Ok(())
}
