//! Child processes that are ended by id, whatever happens to the parent's code.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A child process whose output goes to a file, killed when dropped.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// Where it mounts, if it does.
    point: Option<PathBuf>,
}

impl Process {
    /// Starts `binary` with `arguments`; its output is appended to `folder/NAME.log`.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start(name: &str, binary: &Path, arguments: &[String], folder: &Path) -> Result<Self> {
        Self::spawn(name, Command::new(binary).args(arguments), folder)
    }

    /// The same, in a process group of its own: Ctrl-C at a terminal does not reach it, and whoever
    /// started it ends it when its turn has come. Where `setpriv` (util-linux) is, it is told to end
    /// when the thread that started it is gone, be it killed.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn start_apart(
        name: &str,
        binary: &Path,
        arguments: &[String],
        folder: &Path,
    ) -> Result<Self> {
        let mut command = if can_end_with_its_starter() {
            let mut command = Command::new("setpriv");
            // It becomes the binary: the process is the one that was started.
            command.args(["--pdeathsig", "TERM"]).arg(binary);
            command
        } else {
            Command::new(binary)
        };
        Self::spawn(name, command.args(arguments).process_group(0), folder)
    }

    fn spawn(name: &str, command: &mut Command, folder: &Path) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let out = File::options().create(true).append(true).open(&log)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| {
                format!("starting {name}: {}", Path::new(command.get_program()).display())
            })?;
        Ok(Self { name: name.into(), child, log, point: None })
    }

    /// Says where it mounts: killed, its mount goes with it.
    pub fn mounts_at(&mut self, point: &Path) {
        self.point = Some(point.into());
    }

    /// Ends it as a power cut would: SIGKILL. The mount of one that mounts is ended before it is
    /// waited for: a thread of it may wait in the kernel for an operation that only it could answer,
    /// and nothing ends the thread then but the end of the mount.
    pub fn kill(&mut self) {
        // It may have ended by itself: the state afterwards is the same.
        self.child.kill().ok();
        if let Some(point) = self.point.take() {
            unmount(&point);
        }
        self.child.wait().ok();
    }

    /// Has it stand still (SIGSTOP): nothing of it runs, and nobody is told.
    ///
    /// # Errors
    /// When the system does not let it.
    pub fn pause(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::STOP)?)
    }

    /// Lets it go on (SIGCONT).
    ///
    /// # Errors
    /// When the system does not let it.
    pub fn resume(&self) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::CONT)?)
    }

    /// Asks it to end (SIGTERM) and waits; kills it after `limit`.
    ///
    /// # Errors
    /// When it did not end in time, or not with success.
    pub fn stop(mut self, limit: Duration) -> Result<()> {
        self.terminate(limit)
    }

    /// The same for one whose output is still wanted.
    ///
    /// # Errors
    /// When it did not end in time, or not with success.
    pub fn terminate(&mut self, limit: Duration) -> Result<()> {
        // Not waited for yet, the id is still its own.
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let end = Instant::now() + limit;
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait()? {
                if status.success() {
                    // Another may mount there from now on.
                    self.point = None;
                    return Ok(());
                }
                bail!("{} ended with {status}: see {}", self.name, self.log.display());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill();
        bail!("{} did not end within {limit:?} of SIGTERM: see {}", self.name, self.log.display())
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has ended.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits until it has ended by itself; its exit code, none after a signal.
    ///
    /// # Errors
    /// When it runs on for longer than `limit`.
    pub fn ended(&mut self, limit: Duration) -> Result<Option<i32>> {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.code());
            }
            if Instant::now() > end {
                bail!("{} runs on after {limit:?}:\n{}", self.name, self.tail());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// All that processes of this name printed.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// An error if it has ended.
    ///
    /// # Errors
    /// Names the process and its log when it has ended.
    pub fn alive(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended with {status}:\n{}", self.name, self.tail());
        }
        Ok(())
    }

    /// The last lines it printed.
    #[must_use]
    pub fn tail(&self) -> String {
        let text = self.log();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A folder for the run, removed when dropped unless it is to be kept.
pub struct Folder {
    path: PathBuf,
    keep: bool,
}

impl Folder {
    /// Makes `TMPDIR/larder-NAME-NUMBER`, a folder that was not there.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(name: &str, keep: bool) -> Result<Self> {
        Self::make(name, keep, 0o755)
    }

    /// The same, for nobody else to look into.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn private(name: &str, keep: bool) -> Result<Self> {
        Self::make(name, keep, 0o700)
    }

    /// One that is there already may be somebody else's, who waits for what is put into it.
    fn make(name: &str, keep: bool, mode: u32) -> Result<Self> {
        let within = std::env::temp_dir();
        // The table of mounts knows no links.
        let within = within
            .canonicalize()
            .with_context(|| format!("{} cannot be looked at: set TMPDIR", within.display()))?;
        let first = u64::from(std::process::id());
        for number in (first..).step_by(1 << 22).take(10_000) {
            let path = within.join(format!("larder-{name}-{number}"));
            match DirBuilder::new().mode(mode).create(&path) {
                Ok(()) => return Ok(Self { path, keep }),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("making {}", path.display()));
                }
            }
        }
        bail!("{} is full of folders larder-{name}-*: remove them", within.display())
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Has it stay there: something went wrong.
    pub fn keep(&mut self) {
        self.keep = true;
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Removing what is below a mount would remove it from the volume.
        if self.keep || mounted_below(&self.path) {
            eprintln!("kept {}", self.path.display());
        } else {
            std::fs::remove_dir_all(&self.path).ok();
        }
    }
}

/// Whether something is mounted at or below `folder`, as far as can be told.
fn mounted_below(folder: &Path) -> bool {
    points().map_or(true, |points| points.iter().any(|point| point.starts_with(folder)))
}

/// Where something is mounted.
fn points() -> Result<Vec<PathBuf>> {
    let mounts = std::fs::read("/proc/self/mounts")?;
    let point = |line: &[u8]| Some(unescape(line.split(|&byte| byte == b' ').nth(1)?));
    Ok(mounts.split(|&byte| byte == b'\n').filter_map(point).collect())
}

/// A path of the table of mounts: spaces and the like are there as octal numbers.
fn unescape(word: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(word.len());
    let mut left = word;
    while let Some((&byte, after)) = left.split_first() {
        let digits = after.first_chunk::<3>().filter(|_| byte == b'\\');
        let octal = digits.and_then(|digits| {
            digits.iter().try_fold(0_u8, |value, digit| {
                let digit = digit.checked_sub(b'0').filter(|digit| *digit < 8)?;
                value.checked_mul(8)?.checked_add(digit)
            })
        });
        bytes.push(octal.unwrap_or(byte));
        left = if octal.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Whether something is mounted there.
///
/// # Errors
/// When the table of mounts cannot be read.
pub fn is_mounted(point: &Path) -> Result<bool> {
    Ok(points()?.iter().any(|mounted| mounted == point))
}

/// Detaches a mount whose process is gone, and ends what waits for it; nothing to do when it is not
/// mounted.
pub fn unmount(point: &Path) {
    while is_mounted(point).unwrap_or(false) {
        let done = Command::new("umount").args(["-f", "-l"]).arg(point).status();
        if !done.is_ok_and(|status| status.success()) {
            return;
        }
    }
}

fn can_end_with_its_starter() -> bool {
    let tried = Command::new("setpriv")
        .args(["--pdeathsig", "TERM", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    tried.is_ok_and(|status| status.success())
}

/// Below those that the system gives to whoever connects: none of them takes a port meanwhile.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// A loopback port that was free a moment ago, and that this process was not given before: asked of
/// the system, the same one came twice, to two servers that were about to start.
///
/// # Errors
/// When none can be had.
pub fn free_port() -> Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let ports = u32::from(PORTS.end - PORTS.start);
    // Processes side by side begin far from each other.
    let first = std::process::id().wrapping_mul(1009);
    for _ in 0..ports {
        let place = first.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % ports;
        let port = PORTS.start + u16::try_from(place)?;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port from {} to {} is free on loopback", PORTS.start, PORTS.end)
}

/// How long an answer may take: on a loaded machine many times what it takes on an idle one.
const ANSWER: Duration = Duration::from_secs(20);

/// The body of `http://127.0.0.1:PORT PATH`, if it is answered with 200 within twenty seconds.
///
/// # Errors
/// When it is not.
pub fn http_get(port: u16, path: &str) -> Result<String> {
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
    stream.set_read_timeout(Some(ANSWER))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("an HTTP answer has a head")?;
    let status = head.lines().next().unwrap_or_default();
    if !status.contains(" 200") {
        bail!("{path} answered {status}: {body}");
    }
    Ok(body.to_owned())
}

/// Waits until `ready` holds, looking every 5 ms.
///
/// # Errors
/// The last error of `ready` when `limit` has passed.
pub fn wait_until<T>(
    what: &str,
    limit: Duration,
    mut ready: impl FnMut() -> Result<T>,
) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        match ready() {
            Ok(value) => return Ok(value),
            Err(error) if Instant::now() > end => {
                return Err(error.context(format!("waited {limit:?} for {what}")));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// A metric's value from `/metrics`, summed over the lines that carry all of `labels`
/// (`kind="resume"`); 0 when there is no such line.
///
/// # Errors
/// When the endpoint does not answer.
pub fn metric(port: u16, name: &str, labels: &[&str]) -> Result<f64> {
    metric_in(&http_get(port, "/metrics")?, name, labels)
}

/// The same of what `/metrics` has said.
///
/// # Errors
/// When a value is no number.
pub fn metric_in(text: &str, name: &str, labels: &[&str]) -> Result<f64> {
    let mut sum = 0.0;
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Some((key, value)) = line.rsplit_once(' ') else { continue };
        let metric = key.split('{').next().unwrap_or_default();
        if metric == name && labels.iter().all(|label| key.contains(label)) {
            sum += value.parse::<f64>()?;
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::ensure;

    /// A quickstart that was killed, by its user or for want of memory, left an origin and two mounts
    /// behind. What it starts ends when the thread that started it is gone.
    #[test]
    fn what_was_started_apart_ends_with_its_starter() {
        let folder = Folder::private("apart-test", false).expect("room");
        let place = folder.path().to_path_buf();
        let starter = std::thread::spawn(move || {
            let words = ["600".to_owned()];
            let started = Process::start_apart("sleep", Path::new("sleep"), &words, &place);
            let started = started.expect("it starts");
            let name = format!("/proc/{}/comm", started.id());
            wait_until("its program", Duration::from_secs(10), || {
                ensure!(std::fs::read_to_string(&name)?.trim() == "sleep", "another one's");
                Ok(())
            })
            .expect("it is there");
            started
        });
        let mut started = starter.join().expect("no panic");
        wait_until("its end", Duration::from_secs(10), || {
            ensure!(started.alive().is_err(), "it runs");
            Ok(())
        })
        .expect("it was told to end");
    }

    /// A folder of a quickstart that had been killed was taken for a new one: "there is an authority
    /// already", or what somebody else had put there.
    #[test]
    fn a_folder_is_never_one_that_was_there() {
        let folders: Vec<_> =
            (0..3).map(|_| Folder::private("folder-test", false).expect("room")).collect();
        assert_ne!(folders[0].path(), folders[1].path());
        assert_ne!(folders[1].path(), folders[2].path());
    }

    #[test]
    fn the_table_of_mounts_is_read_as_it_is_written() {
        assert_eq!(unescape(br"/x\040y\134z"), Path::new(r"/x y\z"));
        assert_eq!(unescape(br"/plain\9\04"), Path::new(r"/plain\9\04"));
    }

    /// An origin was given one port for its links and for its HTTP endpoint.
    #[test]
    fn no_port_is_given_twice() {
        let mut given: Vec<u16> = (0..500).map(|_| free_port().expect("ports are free")).collect();
        given.sort_unstable();
        given.dedup();
        assert_eq!(given.len(), 500);
    }
}
