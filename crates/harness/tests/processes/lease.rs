//! The lease runs out at a mount.

use crate::common::{VOLUME, origin_with_tree, site, write_synced};
use anyhow::{Result, ensure};
use larder_harness::process::wait_until;
use larder_harness::site::{Line, READY, Server, within};
use std::fs;
use std::time::{Duration, Instant};

/// Each way of the line: a round trip takes 60 ms.
const ONE_WAY: Duration = Duration::from_millis(30);
/// "At once": far below a request's limit, far above the time that a busy machine takes.
const AT_ONCE: Duration = Duration::from_secs(2);

fn leased(mount: &Server) -> Result<bool> {
    Ok(mount.status()?["node"]["domains"][0]["leased"] == true)
}

/// A router between two offices stalls: no error, no reset, packets just vanish. The lease lapses
/// at both mounts. The one that serves what it has goes on at once, the one that refuses says so
/// at once; neither hangs. The router comes back before anybody gave up the link: both are current
/// again one round trip later, with nothing fetched anew and no resume.
#[test]
fn a_lapsed_lease_serves_or_refuses_at_once_and_is_regained_in_a_round_trip() -> Result<()> {
    let site = site("lease")?;
    let origin = origin_with_tree(&site, &["--set", "origin.lease=1s"])?;
    let line = Line::to(origin.port, ONE_WAY)?;
    let beats = ["--set", "node.beat=200ms", "--set", "link.silence_max=20s"];
    let serves = site.mount("one", VOLUME, line.port(), &beats)?;
    let refuse = [&beats[..], &["--when-stale", "refuse"]].concat();
    let refuses = site.mount("two", VOLUME, line.port(), &refuse)?;
    for mount in [&serves, &refuses] {
        ensure!(fs::read(mount.at("folder/page"))?.len() == 30_000, "both have read it");
        fs::metadata(mount.at("inline"))?;
    }
    let resumes = |mount: &Server| -> Result<u64> {
        Ok(mount.status()?["figures"]["resumes"].as_u64().unwrap_or_default())
    };
    let before = (resumes(&serves)?, resumes(&refuses)?);

    line.proxy.stall();
    wait_until("the lease to lapse", READY, || {
        ensure!(!leased(&serves)? && !leased(&refuses)?, "leased still");
        Ok(())
    })?;
    // Three times over: the kernel's caches must not make a difference.
    for _ in 0..3 {
        let path = serves.at("folder/page");
        let read = within(AT_ONCE, "a read that is to be served", move || fs::read(path))??;
        ensure!(read.len() == 30_000, "served in part");
        let path = refuses.at("folder/page");
        let read = within(AT_ONCE, "a read that is to be refused", move || fs::read(path))?;
        ensure!(read.is_err(), "served although the lease has lapsed");
        let path = refuses.at("inline");
        let stat = within(AT_ONCE, "a look that is to be refused", move || fs::metadata(path))?;
        ensure!(stat.is_err(), "attributes are given although the lease has lapsed");
    }

    line.proxy.heal();
    let healed = Instant::now();
    wait_until("trust", READY, || {
        ensure!(leased(&serves)? && leased(&refuses)?, "not yet");
        Ok(())
    })?;
    // The beats held by the line arrive, and their echoes come one round trip later.
    let took = healed.elapsed();
    ensure!(took < 4 * ONE_WAY + Duration::from_millis(500), "trusted after {took:?} only");
    let path = refuses.at("folder/page");
    ensure!(within(AT_ONCE, "a read", move || fs::read(path))??.len() == 30_000, "served again");
    ensure!(before == (resumes(&serves)?, resumes(&refuses)?), "a resume was needed");

    // And the same when the link was given up meanwhile: one resume each.
    line.proxy.cut();
    wait_until("the lease to lapse", READY, || {
        ensure!(!leased(&serves)? && !leased(&refuses)?, "leased still");
        Ok(())
    })?;
    let path = refuses.at("folder/page");
    let read = within(AT_ONCE, "a read without a link", move || fs::read(path))?;
    ensure!(read.is_err(), "served without a lease");
    line.proxy.heal();
    wait_until("trust", READY, || {
        ensure!(leased(&serves)? && leased(&refuses)?, "not yet");
        Ok(())
    })?;
    ensure!((before.0 + 1, before.1 + 1) == (resumes(&serves)?, resumes(&refuses)?), "one each");
    write_synced(&refuses.at("again"), b"again")?;
    wait_until("the write at the other", READY, || Ok(fs::read(serves.at("again"))?))?;
    for mount in [serves, refuses] {
        mount.stop()?;
    }
    origin.stop()?;
    Ok(())
}
