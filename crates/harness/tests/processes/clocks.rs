//! Clocks that are wrong or set back.

use crate::common::{VOLUME, assert_volume_is, origin_with_tree, site, write_synced};
use anyhow::{Result, ensure};
use larder_harness::process::wait_until;
use larder_harness::site::{READY, within};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The origin's machine had been up for four months when it was rebooted: the clock that leases
/// are counted by starts at zero again, far before every time it had told. A mount's machine has
/// been up for ten years, so that their clocks have nothing in common. Nobody may hang, and
/// nobody may believe a lease that ended in the old life.
#[test]
fn clocks_that_count_from_different_starts_are_never_compared() -> Result<()> {
    let site = site("boottime")?;
    drop(origin_with_tree(&site, &[])?);
    let up_for = |seconds: u64| {
        ["--time", "--boottime"]
            .map(str::to_owned)
            .into_iter()
            .chain([seconds.to_string()])
            .collect::<Vec<_>>()
    };
    let data = site.path("data").display().to_string();
    let port = larder_harness::process::free_port()?;
    let listen = format!("127.0.0.1:{port}");
    let words = ["origin", "--name", "origin", "--data", &data, "--listen", &listen];
    let origin = |uptime: u64| {
        let before = up_for(uptime);
        let before: Vec<&str> = before.iter().map(String::as_str).collect();
        site.ready(site.start_as("origin", Path::new("unshare"), &before, &words)?)
    };

    let mut old = origin(120 * 86_400)?;
    let mount = site.mount("one", VOLUME, port, &[])?;
    write_synced(&mount.at("before"), b"before")?;
    old.kill();
    let rebooted = origin(0)?;
    let path = mount.at("after");
    within(READY, "a write after the reboot", move || write_synced(&path, b"after"))??;
    ensure!(fs::read(mount.at("before"))? == b"before", "lost over the reboot");
    mount.stop()?;
    rebooted.stop()?;
    Ok(())
}

/// An administrator sets the wall clock back by two days on the origin's and on the mount's
/// machine while they run: times of files may go back, as on any file system, and nothing else
/// may notice. Leases, beats and waits go by a clock that nobody can set.
#[test]
fn a_wall_clock_set_back_changes_the_times_of_files_and_nothing_else() -> Result<()> {
    let site = site("wall")?;
    let clock = site.path("clock-shift");
    fs::write(&clock, "0")?;
    // Read by debug builds alone.
    let variable = format!("LARDER_TEST_CLOCK_SHIFT={}", clock.display());
    let env = Path::new("env");
    let (data, port) =
        (site.path("data").display().to_string(), larder_harness::process::free_port()?);
    let (listen, parent) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{port}"));
    let words = ["origin", "--name", "origin", "--data", &data, "--create", "--listen", &listen];
    let origin = site.ready(site.start_as("origin", env, &[&variable], &words)?)?;
    site.volume(port, &["create", VOLUME])?.success()?;
    let point = site.path("one");
    fs::create_dir_all(&point)?;
    let at = point.display().to_string();
    let words = ["mount", VOLUME, &at, "--foreground", "--name", "one", "--parent", &parent];
    let mut mount = site.start_as("one", env, &[&variable], &words)?;
    mount.mounts_at(point.clone());
    let mount = site.mounted(mount)?;
    let expected = site.path("expected");
    fs::create_dir_all(&expected)?;

    let modified = |name: &str| -> Result<std::time::SystemTime> {
        let bytes = name.repeat(1000);
        fs::write(expected.join(name), &bytes)?;
        wait_until("a write", READY, || Ok(write_synced(&mount.at(name), bytes.as_bytes())?))?;
        Ok(fs::metadata(mount.at(name))?.modified()?)
    };
    let before = modified("before")?;
    fs::write(&clock, format!("-{}", 2 * 86_400))?;
    std::thread::sleep(Duration::from_millis(1500));
    let after = modified("after")?;
    let back = before.duration_since(after)?;
    ensure!(back > Duration::from_secs(86_400), "the clock was not set back: {back:?}");

    let status = mount.status()?;
    ensure!(status["node"]["connected"] == true, "{status}");
    ensure!(status["node"]["domains"][0]["leased"] == true, "{status}");
    ensure!(status["figures"]["connects"] == 1, "the link was given up: {status}");
    fs::write(&clock, format!("{}", 400 * 86_400))?;
    modified("far-ahead")?;
    assert_volume_is(&site, port, &expected)?;
    mount.stop()?;
    origin.stop()?;
    Ok(())
}
