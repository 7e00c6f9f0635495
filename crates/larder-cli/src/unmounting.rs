//! `larder unmount`, and `umount.fuse.larder`, by which `umount` starts it: the mount ends, and the
//! command when all that was written is committed.

use crate::args::UnmountArgs;
use crate::out;
use crate::standing_mounts::{self, Server};
use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long the process of a mount that was ended by force is waited for.
const FORCED_LIMIT: Duration = Duration::from_secs(5);
/// How often it is looked whether the process has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Mounts ended, one after the other: what is wrong with one does not keep the others.
pub(crate) async fn run(arguments: &UnmountArgs) -> Result<()> {
    let mut first = None;
    for point in &arguments.points {
        if let Err(error) = unmount(point, arguments).await {
            let error = error.context(format!("unmounting {}", point.display()));
            if let Some(before) = first.replace(error) {
                out::fault(format_args!("larder: {before:#}"));
            }
        }
    }
    first.map_or(Ok(()), Err)
}

async fn unmount(point: &Path, arguments: &UnmountArgs) -> Result<()> {
    let standing = standing_mounts::at(point)?.context("nothing is mounted there")?;
    ensure!(
        standing.kind == "fuse.larder",
        "it is no mount of Larder but {}: umount {}",
        standing.kind,
        point.display()
    );
    // Before the mount is gone: nothing would name it any more.
    let Some(server) = Server::of(&standing) else {
        detach(point, arguments)?;
        out::fault(format_args!(
            "larder: {}: its process is not known, and was not waited for",
            point.display()
        ));
        return Ok(());
    };
    let last = server.ends_with(&standing);
    if last && arguments.lazy && !arguments.force {
        // It detaches the mount if somebody is in it, and commits what they wrote.
        let process = i32::try_from(server.process()).ok().and_then(Pid::from_raw);
        kill_process(process.context("no such process")?, Signal::TERM)?;
    } else {
        detach(point, arguments)?;
    }
    if !last {
        // It goes on elsewhere.
        return Ok(());
    }
    let limit = arguments.timeout.0;
    wait(&server, if arguments.force { limit.min(FORCED_LIMIT) } else { limit }).await
}

/// Has the kernel unmount it.
fn detach(point: &Path, arguments: &UnmountArgs) -> Result<()> {
    if !geteuid().is_root() {
        let mut helper = Command::new("fusermount3");
        helper.arg("-u");
        if arguments.lazy || arguments.force {
            helper.arg("-z");
        }
        let ended = helper.arg("--").arg(point).stdin(Stdio::null()).output();
        let ended = ended.context("fusermount3 cannot be started (apt-get install fuse3)")?;
        let why = String::from_utf8_lossy(&ended.stderr);
        ensure!(ended.status.success(), "{}", why.trim());
        return Ok(());
    }
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::FORCE, arguments.force);
    flags.set(UnmountFlags::DETACH, arguments.force || arguments.lazy);
    match rustix::mount::unmount(point, flags) {
        Err(Errno::BUSY) => bail!(
            "somebody is in it (fuser -vm {} names them): `--lazy` ends it all the same, and commits \
             what they wrote until then",
            point.display()
        ),
        other => Ok(other?),
    }
}

/// Waits until the process has committed what was written, and ended.
async fn wait(server: &Server, limit: Duration) -> Result<()> {
    let since = Instant::now();
    let style = ProgressStyle::with_template("{spinner} {msg} {elapsed}")?;
    let bar = ProgressBar::new_spinner().with_style(style);
    while server.is_there() {
        let process = server.process();
        ensure!(
            since.elapsed() < limit,
            "unmounted, and process {process} is there still after {limit:?}: it may be committing what was \
             written"
        );
        if since.elapsed() > Duration::from_secs(1) {
            bar.set_message("committing what was written");
            bar.tick();
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    bar.finish_and_clear();
    match server.lost() {
        Some(lost) => bail!("unmounted, and not all that was written could be committed: {lost}"),
        None => Ok(()),
    }
}
