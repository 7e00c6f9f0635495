//! Daily life of a mount: the background, `/etc/fstab`, the end of a terminal.

use crate::common::{VOLUME, binary, origin_with_tree, pattern, site};
use anyhow::{Context, Result, ensure};
use larder_harness::process::{free_port, http_get, is_mounted, unmount, wait_until};
use larder_harness::site::{READY, Server, Site, within};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A mount without a process of ours; unmounted when dropped, which ends its process.
struct Point(PathBuf);

impl Point {
    fn new(site: &Site, name: &str) -> Result<Self> {
        let point = site.path(name);
        fs::create_dir_all(&point)?;
        Ok(Self(point))
    }

    /// Unmounts as people do, and waits until the process, which answers at `http`, has ended.
    fn umount(&self, http: u16) -> Result<()> {
        ensure!(Command::new("umount").arg(&self.0).status()?.success(), "umount failed");
        wait_until("the end of the process", READY, || {
            ensure!(http_get(http, "/healthz").is_err(), "it still answers");
            Ok(())
        })
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        unmount(&self.0);
    }
}

/// Runs a command with pipes for its output, and waits until nobody holds them any more.
fn ended(program: &Path, words: &[&str]) -> Result<Output> {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null());
    Ok(within(READY, "the command", move || command.output())??)
}

/// The options in the table of mounts.
fn options(point: &Path) -> Result<Vec<String>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let line = mounts.lines().find(|line| line.split(' ').nth(1) == point.to_str());
    let fields = line.context("not mounted")?.split(' ').nth(3).context("options")?;
    Ok(fields.split(',').map(str::to_owned).collect())
}

/// `ssh host larder mount docs /mnt` must come back, with the mount there and usable; what fails must
/// fail in the same words and with the same exit code as in the foreground. Then somebody writes,
/// syncs nothing, and unmounts as they unmount everything else: nothing is lost.
#[test]
fn a_mount_is_usable_when_the_command_ends() -> Result<()> {
    let site = site("background")?;
    let origin = origin_with_tree(&site, &[])?;
    let point = Point::new(&site, "one")?;
    let (at, tls) = (point.0.display().to_string(), site.tls());
    let (parent, port) = (format!("127.0.0.1:{}", origin.port), free_port()?);
    let (http, log) = (format!("127.0.0.1:{port}"), site.path("logs/one.log"));
    let file = log.display().to_string();
    let identity = ["--tls", &tls, "--name", "one", "--parent", &parent, "--log-file", &file];
    let mount = |volume| [&["mount", volume, &at, "--http", &http], &identity[..]].concat();

    let failed = ended(binary(), &mount("nope"))?;
    let text = String::from_utf8_lossy(&failed.stderr).into_owned();
    ensure!(failed.status.code() == Some(3), "{failed:?}");
    ensure!(text.starts_with("larder: ") && text.contains("no volume nope"), "{text}");
    ensure!(!is_mounted(&point.0)?, "mounted what is not there");

    // With a lock that is the caller's: it was the mount's as well, for as long as it stood.
    let lock = site.path("lock").display().to_string();
    let program = binary().display().to_string();
    let words = mount(VOLUME);
    let words = [&[&*lock, &*program], &words[..]].concat();
    let done = ended(Path::new("flock"), &words)?;
    let free = Command::new("flock").args(["--nonblock", &lock, "true"]).status()?;
    ensure!(free.success(), "the mount holds its caller's lock");
    ensure!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    ensure!(fs::read(point.0.join("inline"))?.len() == 700, "the tree is there");
    ensure!(http_get(port, "/metrics")?.contains("larder_log_lines_dropped_total 0"), "counted");
    let text = fs::read_to_string(&log)?;
    ensure!(text.contains("no volume nope") && text.contains("mounted"), "{text}");
    let mode = |path: &Path| fs::metadata(path).map(|about| about.permissions().mode() & 0o777);
    ensure!(mode(&log)? == 0o600 && mode(&site.path("logs"))? == 0o700, "others may read it");

    let bytes = pattern(200_000, 3);
    fs::write(point.0.join("unsynced"), &bytes)?;
    point.umount(port)?;
    let again = site.mount("two", VOLUME, origin.port, &[])?;
    ensure!(fs::read(again.at("unsynced"))? == bytes, "what was written is lost");
    again.stop()?;
    origin.stop()?;
    Ok(())
}

/// A line of `/etc/fstab`: `mount` starts `mount.larder` with the kernel's options and ours in one
/// list. What the kernel is to hold to, it holds to; a word that is misspelt is wrong usage.
#[test]
fn fstab_mounts_by_the_helpers_name() -> Result<()> {
    let site = site("fstab")?;
    let origin = origin_with_tree(&site, &[])?;
    let helper = site.path("mount.larder");
    symlink(binary(), &helper)?;
    let point = Point::new(&site, "one")?;
    let (at, port) = (point.0.display().to_string(), free_port()?);
    let ours = format!(
        "ro,noexec,_netdev,private,tls={},name=one,parent=127.0.0.1:{},http=127.0.0.1:{port},\
         node.memory=64MiB,log_file={}",
        site.tls(),
        origin.port,
        site.path("one.log").display()
    );
    let misspelt = ended(&helper, &[VOLUME, &at, "-o", "ro,nmae=one"])?;
    let text = String::from_utf8_lossy(&misspelt.stderr).into_owned();
    ensure!(misspelt.status.code() == Some(2) && text.contains("--nmae"), "{misspelt:?}");

    let done = ended(&helper, &[VOLUME, &at, "-n", "-o", &ours])?;
    ensure!(done.status.success(), "{done:?}");
    let options = options(&point.0)?;
    let has = |word: &str| options.iter().any(|option| option == word);
    ensure!(has("ro") && has("noexec") && has("nosuid") && !has("allow_other"), "{options:?}");
    let refused = fs::write(point.0.join("new"), "").expect_err("read-only");
    ensure!(refused.kind() == std::io::ErrorKind::ReadOnlyFilesystem, "{refused}");
    ensure!(fs::read(point.0.join("inline"))?.len() == 700, "the tree is there");
    point.umount(port)?;
    origin.stop()?;
    Ok(())
}

/// A terminal is closed on a mount in the foreground while a shell stands in it. The mount used to
/// die of the hangup with what was not committed, or was left behind because it was busy. It ends
/// in order now, commits, and is gone.
#[test]
fn a_hangup_ends_a_busy_mount_in_order() -> Result<()> {
    let site = site("hangup")?;
    let origin = origin_with_tree(&site, &[])?;
    let mut mount = site.mount("one", VOLUME, origin.port, &[])?;
    let bytes = pattern(100_000, 5);
    fs::write(mount.at("unsynced"), &bytes)?;
    let mut standing = Command::new("sleep").arg("600").current_dir(mount.at("folder")).spawn()?;
    let ended = hang_up(&mut mount);
    let left = is_mounted(mount.point.as_deref().context("a mount")?)?;
    standing.kill()?;
    standing.wait()?;
    ensure!(ended? == Some(0), "{}", mount.process.tail());
    ensure!(!left, "the mount is left behind");
    let again = site.mount("two", VOLUME, origin.port, &[])?;
    ensure!(fs::read(again.at("unsynced"))? == bytes, "what was written is lost");
    again.stop()?;
    origin.stop()?;
    Ok(())
}

fn hang_up(mount: &mut Server) -> Result<Option<i32>> {
    Command::new("kill").args(["-HUP", &mount.process.id().to_string()]).status()?;
    mount.process.ended(READY)
}

/// A program writes into a file of a mount that is ended under it. The mount was detached, and what the
/// program wrote between the last commit and the end of the process was acknowledged and lost.
#[test]
fn what_a_detached_mount_acknowledges_is_committed() -> Result<()> {
    let site = site("detached")?;
    let origin = origin_with_tree(&site, &[])?;
    for round in 0..3 {
        let mount = site.mount("one", VOLUME, origin.port, &[])?;
        let name = format!("log-{round}");
        let mut file = File::create(mount.at(&name))?;
        let written = Arc::new(AtomicU64::new(0));
        let count = written.clone();
        let writer = std::thread::spawn(move || {
            while file.write_all(b"a line of it\n").is_ok() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
        wait_until("the writer", READY, || {
            ensure!(written.load(Ordering::SeqCst) > 100 * (round + 1), "it has just begun");
            Ok(())
        })?;
        let log = mount.stop()?;
        ensure!(log.contains("detached"), "somebody was in it: {log}");
        within(READY, "the writer's end", move || writer.join().expect("no panic"))?;
        let again = site.mount("two", VOLUME, origin.port, &[])?;
        let kept = fs::read(again.at(&name))?.len() as u64 / 13;
        let acknowledged = written.load(Ordering::SeqCst);
        ensure!(kept >= acknowledged, "{acknowledged} lines were acknowledged, {kept} are there");
        again.stop()?;
    }
    origin.stop()?;
    Ok(())
}

/// `larder unmount`, also by the name by which `umount` starts it, ends when all is committed: then
/// the process is gone. Who stands in the mount keeps it, unless asked otherwise; what cannot be
/// committed is told.
#[test]
fn unmount_waits_for_what_is_written_and_tells_what_is_lost() -> Result<()> {
    let site = site("unmount")?;
    let mut origin = origin_with_tree(&site, &[])?;
    let point = Point::new(&site, "one")?;
    let helper = site.path("umount.fuse.larder");
    symlink(binary(), &helper)?;
    let (at, port) = (point.0.display().to_string(), free_port()?);
    let mount = || -> Result<()> {
        let (tls, log) = (site.tls(), site.path("one.log").display().to_string());
        let (parent, http) = (format!("127.0.0.1:{}", origin.port), format!("127.0.0.1:{port}"));
        let words = [
            &["mount", VOLUME, &at, "--tls", &tls, "--name", "one", "--parent", &parent][..],
            &["--http", &http, "--log-file", &log, "--set", "node.request_limit=3s"][..],
        ];
        let done = ended(binary(), &words.concat())?;
        ensure!(done.status.success(), "{done:?}");
        Ok(())
    };
    let gone = || ensure_gone(&point.0, port);

    mount()?;
    fs::write(point.0.join("a"), "text")?;
    let done = ended(&helper, &[&at, "-n", "-t", "fuse.larder"])?;
    ensure!(done.status.success() && done.stderr.is_empty(), "{done:?}");
    gone()?;
    // At once: nobody holds its name any more.
    mount()?;
    ensure!(fs::read(point.0.join("a"))? == b"text", "it was written");

    let mut held = File::create(point.0.join("b"))?;
    held.write_all(b"held")?;
    let busy = ended(binary(), &["unmount", &at])?;
    let text = String::from_utf8_lossy(&busy.stderr).into_owned();
    ensure!(!busy.status.success() && text.contains("--lazy"), "{busy:?}");
    let done = ended(binary(), &["unmount", "--lazy", &at])?;
    ensure!(done.status.success(), "{done:?}");
    gone()?;
    drop(held);
    mount()?;
    ensure!(fs::read(point.0.join("b"))? == b"held", "what was written until then is committed");

    let mut held = File::create(point.0.join("c"))?;
    held.write_all(b"never")?;
    origin.kill();
    let lost = ended(binary(), &["unmount", "--lazy", &at])?;
    let text = String::from_utf8_lossy(&lost.stderr).into_owned();
    ensure!(!lost.status.success() && text.contains("not all"), "{lost:?}");
    gone()?;
    drop(held);
    let nothing = ended(binary(), &["unmount", &at])?;
    let text = String::from_utf8_lossy(&nothing.stderr).into_owned();
    ensure!(!nothing.status.success() && text.contains("nothing is mounted"), "{nothing:?}");
    Ok(())
}

fn ensure_gone(point: &Path, http: u16) -> Result<()> {
    ensure!(!is_mounted(point)?, "it is mounted still");
    ensure!(http_get(http, "/healthz").is_err(), "its process answers still");
    Ok(())
}
