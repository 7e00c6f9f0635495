//! A mount in the background: the command ends when its mount is usable, and its exit code says
//! whether it is.
//!
//! A process with threads cannot be forked; so the command starts itself once more, in a session of
//! its own, with a pipe as its standard output. What comes through the pipe is the exit code and, of
//! a start that failed, why. Its log goes to a file from the beginning.

use crate::args::{Common, MountArgs};
use crate::exit::{self, Reported};
use crate::mounting;
use crate::out;
use crate::serve::Stopping;
use anyhow::{Context, Result, bail};
use larder::config::{Config, ConfigError};
use rustix::process::{Pid, Signal, geteuid, kill_process, setsid};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};

/// The word by which the command starts itself: before all others.
const WORD: &str = "--in-background";
/// The first descriptor after those for input, output and errors.
const FIRST_OTHER: i32 = 3;
/// Bytes of a report that are read at most.
const REPORT_BYTES_MAX: u64 = 64 << 10;
/// How long a start takes at most beside what it waits for answers.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long a start that was given up may take to end.
const END_LIMIT: Duration = Duration::from_secs(30);

/// Starts the mount that `words` ask for, and waits until it is usable.
pub(crate) async fn start(
    arguments: &MountArgs,
    common: &Common,
    words: &[OsString],
) -> Result<()> {
    let config = mounting::config(arguments, common)?;
    let log = log_file(&config, &arguments.volume)?;
    let mut stopping = Stopping::listen()?;
    // What the caller left open for its children is not the mount's: a lock of `flock`, say, would be
    // held for as long as it stands.
    close_fds::set_fds_cloexec_threadsafe(FIRST_OTHER, &[]);
    let mut child = Command::new(std::env::current_exe()?)
        // Whatever the file is called: `mount.larder` would read its words in another way.
        .arg0("larder")
        .arg(WORD)
        .args(words)
        // Given by a flag, this is under it.
        .env("LARDER_LOG_FILE", &log)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("the mount cannot be started")?;
    let out = child.stdout.take().context("its output is a pipe")?;
    let mut report = String::new();
    // A volume is looked up, and its root read: each waits for answers.
    let limit = START_LIMIT + 2 * config.node.request_limit.0;
    let why = tokio::select! {
        read = async { out.take(REPORT_BYTES_MAX).read_to_string(&mut report).await } => {
            read?;
            return verdict(child, &report, &log).await;
        }
        () = stopping.asked() => "stopped",
        () = tokio::time::sleep(limit) => "not usable in time",
    };
    end(child).await;
    bail!("{why}, and given up: {} tells how far it came", log.display())
}

/// What became of a start.
async fn verdict(mut child: Child, report: &str, log: &std::path::Path) -> Result<()> {
    let (code, message) = report.split_once('\n').unwrap_or((report, ""));
    match code.parse() {
        Ok(0) => {
            if !message.is_empty() {
                out::fault(format!("larder: {message}"));
            }
            Ok(())
        }
        Ok(code) => bail!(Reported { code, message: message.trim_end().to_owned() }),
        Err(_) => {
            let status = child.wait().await?;
            bail!("it ended with {status} before it was usable: {} tells of it", log.display())
        }
    }
}

/// Ends a start that is given up: in order if it can be.
async fn end(mut child: Child) {
    let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    if let Some(pid) = pid {
        // It may have ended meanwhile.
        let _ = kill_process(pid, Signal::TERM);
    }
    if tokio::time::timeout(END_LIMIT, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

/// Where a mount in the background logs: `log.file`, or a file of its own.
fn log_file(config: &Config, volume: &str) -> Result<PathBuf> {
    if !config.log.file.as_os_str().is_empty() {
        return Ok(std::path::absolute(&config.log.file)?);
    }
    let folder = if geteuid().is_root() {
        PathBuf::from("/var/log/larder")
    } else {
        let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
        let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
        let state = state.filter(|path| path.is_absolute()).or_else(home);
        let unknown = || ConfigError::Invalid {
            layer: "log.file".into(),
            detail: "HOME is not set: say by --log-file where to log, or use --foreground".into(),
        };
        state.ok_or_else(unknown)?.join("larder")
    };
    let name = format!("{volume}-{}", config.node().full_name());
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = name.chars().map(plain).collect();
    Ok(folder.join(format!("mount-{name}.log")))
}

/// The other end: mounts, and tells whoever started it what became of it.
pub(crate) async fn run(arguments: &MountArgs, common: &Common) -> Result<()> {
    // The end of the terminal, and what is typed there, are not for it.
    setsid().context("no session of its own")?;
    let told = AtomicBool::new(false);
    let usable = |note: Option<String>| {
        told.store(true, Ordering::Relaxed);
        tell(&format!("0\n{}", note.unwrap_or_default()))
    };
    let ended = mounting::run(arguments, common, usable).await;
    if let Err(error) = &ended {
        tracing::error!("{error:#}");
        if !told.load(Ordering::Relaxed) {
            tell(&format!("{}\n{error:#}\n", exit::code(error)))?;
        }
    }
    ended
}

/// Reports, and lets go of everything that keeps others waiting or a file system busy.
fn tell(report: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    // Whoever asked may have been killed: the mount is made all the same.
    let _ = out.write_all(report.as_bytes()).and_then(|()| out.flush());
    let nowhere = File::options().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nowhere)?;
    std::env::set_current_dir("/")?;
    Ok(())
}
