//! A site of real processes for tests: certificates, an origin, mounts, commands run to their end.

use crate::process::{Folder, Process, free_port, http_get, is_mounted, metric_in};
use anyhow::{Context, Result, bail, ensure};
use larder::testing::proxy::Proxy;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// How long a process may take until it is ready, and a command until it has ended.
pub const READY: Duration = Duration::from_secs(30);

/// What a reading node asks its parent for, and waits for the answer.
const REQUESTS: [&str; 5] = ["fetch", "resume", "open_volume", "list_volumes", "allocate_ids"];

/// The runtime for what tests do with the library: proxies and nodes of their own.
///
/// # Panics
/// When no threads can be had.
pub fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().expect("threads for a runtime"))
}

/// Does something that must end within `limit`, in a thread of its own: a file operation on a
/// mount that hangs cannot be interrupted.
///
/// # Errors
/// When it took longer; it goes on meanwhile.
pub fn within<T: Send + 'static>(
    limit: Duration,
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || send.send(work()));
    receive.recv_timeout(limit).with_context(|| format!("{what} took more than {limit:?}"))
}

/// How a command ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its exit code; none: a signal ended it.
    pub code: Option<i32>,
    /// What it printed as results.
    pub out: String,
    /// What it printed beside them.
    pub err: String,
}

impl Ended {
    /// Its results.
    ///
    /// # Errors
    /// When it did not end with success.
    pub fn success(self) -> Result<String> {
        ensure!(self.code == Some(0), "ended with {:?}:\n{}{}", self.code, self.out, self.err);
        Ok(self.out)
    }

    /// Whether it failed with this code and named all of this.
    ///
    /// # Errors
    /// When it did not: says what it did instead.
    pub fn refused(&self, code: i32, named: &[&str]) -> Result<()> {
        ensure!(self.code == Some(code), "wanted exit code {code}: {self:?}");
        for text in named {
            ensure!(self.err.contains(text), "`{text}` is not named: {}", self.err);
        }
        Ok(())
    }
}

/// A slow, breakable line between processes.
pub struct Line {
    /// What it does.
    pub proxy: Proxy,
}

impl Line {
    /// A line to `port`, each way `delay` long.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn to(port: u16, delay: Duration) -> Result<Self> {
        let target = format!("127.0.0.1:{port}");
        let proxy = runtime().block_on(Proxy::start("127.0.0.1:0", &target, delay))?;
        Ok(Self { proxy })
    }

    /// The port at its near end.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.proxy.address().port()
    }
}

/// A process that serves.
pub struct Server {
    /// The process.
    pub process: Process,
    /// Where it serves links; 0: nowhere.
    pub port: u16,
    /// Where it answers HTTP.
    pub http: u16,
    /// Where it is mounted, if it is.
    pub point: Option<PathBuf>,
}

impl Server {
    /// A path in its mount.
    ///
    /// # Panics
    /// When it is no mount.
    #[must_use]
    pub fn at(&self, name: &str) -> PathBuf {
        self.point.as_ref().expect("a mount").join(name)
    }

    /// Says where it mounts.
    pub fn mounts_at(&mut self, point: PathBuf) {
        self.process.mounts_at(&point);
        self.point = Some(point);
    }

    /// What `/status` says.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn status(&self) -> Result<serde_json::Value> {
        Ok(serde_json::from_str(&http_get(self.http, "/status")?)?)
    }

    /// Requests for data that it has sent to its parent so far: what reading waits for. Some overlap;
    /// the round trips that were waited for are no more.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn requests(&self) -> Result<u64> {
        self.messages(&REQUESTS, "sent")
    }

    /// The same of those that have come to it from below; what a relay asks for somebody else is counted as a
    /// kind of its own.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn asked(&self) -> Result<u64> {
        self.messages(&[&REQUESTS[..], &["for"]].concat(), "received")
    }

    fn messages(&self, kinds: &[&str], direction: &str) -> Result<u64> {
        let told = http_get(self.http, "/metrics")?;
        let direction = format!("direction=\"{direction}\"");
        let mut sum = 0.0;
        for kind in kinds {
            let labels = [&*format!("kind=\"{kind}\""), &*direction];
            sum += metric_in(&told, "larder_messages_total", &labels)?;
        }
        Ok(sum as u64)
    }

    /// Pages with their bytes that have come to it so far: from its parent, and from neighbours.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn pages_come(&self) -> Result<[u64; 2]> {
        let told = http_get(self.http, "/metrics")?;
        let from = |end: &str| {
            let label = format!("what=\"from_{end}\"");
            metric_in(&told, "larder_pages_moved_total", &[&*label])
        };
        Ok([from("parent")? as u64, from("neighbour")? as u64])
    }

    /// Ends it as a power cut would, and detaches its mount.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Ends it in order; gives all that it logged in its life.
    ///
    /// # Errors
    /// When it does not end with success within 20 s.
    pub fn stop(mut self) -> Result<String> {
        self.process.terminate(Duration::from_secs(20))?;
        Ok(self.process.log())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A folder with certificates, in which processes are started.
pub struct Site {
    folder: Folder,
    binary: PathBuf,
    apart: bool,
    /// Servers have a session of their own.
    without_terminal: bool,
}

/// One administrator, two sites, a relay and an origin: what most tests need.
const NAMES: &[(&str, &str)] = &[
    ("origin", "origin"),
    ("relay", "relay"),
    ("admin", "node"),
    ("one", "node"),
    ("two", "node"),
];

impl Site {
    /// Makes a folder (kept at the end if `LARDER_KEEP` is set) with an authority and certificates for `origin`, `relay`, `admin`, `one` and
    /// `two`.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(binary: &Path, name: &str) -> Result<Self> {
        let folder = Folder::new(name, std::env::var_os("LARDER_KEEP").is_some())?;
        Self { folder, binary: binary.into(), apart: false, without_terminal: false }.certified()
    }

    /// The same in a folder made before. Ctrl-C at a terminal does not reach its processes: whoever
    /// starts them ends them in their order.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn apart(binary: &Path, folder: Folder) -> Result<Self> {
        Self { folder, binary: binary.into(), apart: true, without_terminal: false }.certified()
    }

    /// Servers have no terminal, whoever runs this: to one that has, SIGHUP is the terminal's end.
    #[must_use]
    pub fn without_terminal(self) -> Self {
        Self { without_terminal: true, ..self }
    }

    fn certified(self) -> Result<Self> {
        let site = self;
        site.larder(&["ca", "init", "--tls", &site.tls()])?.success()?;
        for (name, role) in NAMES {
            site.issue(name, role, 30)?;
        }
        Ok(site)
    }

    /// Where everything is.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Has the folder stay there at the end: something went wrong.
    pub fn keep(&mut self) {
        self.folder.keep();
    }

    /// From now on processes are those of another build.
    pub fn use_binary(&mut self, binary: &Path) {
        self.binary = binary.into();
    }

    /// Whether processes are those of this build, and not of another version's.
    #[must_use]
    pub fn is_of_this_build(&self) -> bool {
        crate::larder_binary().is_ok_and(|binary| binary == self.binary)
    }

    /// Where the certificates are.
    #[must_use]
    pub fn tls(&self) -> String {
        self.path("tls").display().to_string()
    }

    /// Issues a certificate.
    ///
    /// # Errors
    /// When it cannot be done.
    pub fn issue(&self, name: &str, role: &str, days: u32) -> Result<()> {
        self.issue_in(name, role, days, &[])
    }

    /// Issues a certificate of groups of neighbours.
    ///
    /// # Errors
    /// When it cannot be done.
    pub fn issue_in(&self, name: &str, role: &str, days: u32, groups: &[&str]) -> Result<()> {
        let (days, tls) = (days.to_string(), self.tls());
        let mut words = vec!["ca", "issue", name, "--tls", &tls, "--role", role, "--days", &days];
        words.extend(groups.iter().flat_map(|group| ["--group", group]));
        self.larder(&words)?.success()?;
        Ok(())
    }

    /// Runs `larder` to its end.
    ///
    /// # Errors
    /// When it does not end within [`READY`]: it is killed then.
    pub fn larder(&self, words: &[&str]) -> Result<Ended> {
        let (out, err) = (self.path("command.out"), self.path("command.err"));
        let mut command = Command::new(&self.binary);
        if self.apart {
            command.process_group(0);
        }
        let mut child = command
            .args(words)
            // Not the caller's: what lies there is not the test's.
            .env("HOME", self.folder.path())
            .env_remove("XDG_STATE_HOME")
            .stdin(Stdio::null())
            .stdout(File::create(&out)?)
            .stderr(File::create(&err)?)
            .spawn()?;
        let end = Instant::now() + READY;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() > end {
                child.kill()?;
                child.wait()?;
                bail!("larder {} did not end within {READY:?}", words.join(" "));
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let read = |path| {
            Ok::<_, anyhow::Error>(String::from_utf8_lossy(&std::fs::read(path)?).into_owned())
        };
        Ok(Ended { code: status.code(), out: read(out)?, err: read(err)? })
    }

    /// Starts `larder volume …` as the administrator, straight at `port`: for what takes longer
    /// than [`READY`].
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_volume(&self, port: u16, words: &[&str]) -> Result<Process> {
        let (tls, parent) = (self.tls(), format!("127.0.0.1:{port}"));
        let identity = ["--tls", &tls, "--name", "admin", "--parent", &parent];
        let words = [&["volume"], words, &identity].concat();
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        let start = if self.apart { Process::start_apart } else { Process::start };
        start("volume", &self.binary, &words, self.folder.path())
    }

    /// Runs `larder volume …` as the administrator, straight at `port`.
    ///
    /// # Errors
    /// See [`Site::larder`].
    pub fn volume(&self, port: u16, words: &[&str]) -> Result<Ended> {
        let (tls, parent) = (self.tls(), format!("127.0.0.1:{port}"));
        let identity = ["--tls", &tls, "--name", "admin", "--parent", &parent];
        self.larder(&[&["volume"], words, &identity].concat())
    }

    /// Starts an origin on `data`, whose store is made if it is not there, and waits until it is
    /// ready. `port` 0: any.
    ///
    /// # Errors
    /// When it does not become ready: with what it printed.
    pub fn origin(&self, data: &Path, port: u16, extra: &[&str]) -> Result<Server> {
        self.origin_as("origin", data, port, extra)
    }

    /// The same under another name, of which there is a certificate of an origin.
    ///
    /// # Errors
    /// When it does not become ready: with what it printed.
    pub fn origin_as(&self, name: &str, data: &Path, port: u16, extra: &[&str]) -> Result<Server> {
        let port = if port == 0 { free_port()? } else { port };
        let (data, listen) = (data.display().to_string(), format!("127.0.0.1:{port}"));
        let words = ["origin", "--name", name, "--data", &data, "--listen", &listen];
        let create: &[&str] = if Path::new(&data).exists() { &[] } else { &["--create"] };
        let mut server = self.start(name, &[&words, create, extra].concat())?;
        server.port = port;
        self.ready(server)
    }

    /// Starts a relay below `parent` and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn relay(&self, parent: u16, extra: &[&str]) -> Result<Server> {
        self.relay_as("relay", parent, extra)
    }

    /// The same under another name.
    ///
    /// # Errors
    /// When it does not become ready.
    pub fn relay_as(&self, name: &str, parent: u16, extra: &[&str]) -> Result<Server> {
        let port = free_port()?;
        let (parent, listen) = (format!("127.0.0.1:{parent}"), format!("127.0.0.1:{port}"));
        let words = ["relay", "--name", name, "--parent", &parent, "--listen", &listen];
        let mut server = self.start(name, &[&words, extra].concat())?;
        server.port = port;
        self.ready(server)
    }

    /// Mounts a volume as `name` and waits until it is there.
    ///
    /// # Errors
    /// When it is not mounted in time.
    pub fn mount(&self, name: &str, volume: &str, parent: u16, extra: &[&str]) -> Result<Server> {
        let point = self.path(name);
        std::fs::create_dir_all(&point)?;
        let (at, parent) = (point.display().to_string(), format!("127.0.0.1:{parent}"));
        let words = ["mount", volume, &at, "--foreground", "--name", name, "--parent", &parent];
        let mut server = self.start(name, &[&words, extra].concat())?;
        server.mounts_at(point);
        self.mounted(server)
    }

    /// Waits until a mount is ready: it stands by then, or whoever starts a program on it when it
    /// is ready would see an empty folder.
    ///
    /// # Errors
    /// When it has ended, is not ready in time, or does not stand when it says that it is.
    pub fn mounted(&self, server: Server) -> Result<Server> {
        let server = self.ready(server)?;
        let point = server.point.as_ref().context("it was told where to mount")?;
        ensure!(is_mounted(point)?, "{} is ready and not mounted", point.display());
        Ok(server)
    }

    /// Starts a process that serves, and does not wait for it.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self, name: &str, words: &[&str]) -> Result<Server> {
        if self.without_terminal {
            // It becomes the server itself: the process is the one that was started.
            return self.start_as(name, Path::new("setsid"), &["--wait"], words);
        }
        self.start_as(name, &self.binary, &[], words)
    }

    /// The same, started by another program: `unshare`, for another clock.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_as(
        &self,
        name: &str,
        program: &Path,
        before: &[&str],
        words: &[&str],
    ) -> Result<Server> {
        let http = free_port()?;
        let mut arguments: Vec<String> = before.iter().map(|word| (*word).to_owned()).collect();
        if !before.is_empty() {
            arguments.push(self.binary.display().to_string());
        }
        arguments.extend(words.iter().map(|word| (*word).to_owned()));
        arguments.extend(["--tls".to_owned(), self.tls()]);
        arguments.extend(["--http".to_owned(), format!("127.0.0.1:{http}")]);
        let start = if self.apart { Process::start_apart } else { Process::start };
        let process = start(name, program, &arguments, self.folder.path())?;
        Ok(Server { process, port: 0, http, point: None })
    }

    /// Waits until a process is ready.
    ///
    /// # Errors
    /// When it has ended, or is not ready in time: with what it printed.
    pub fn ready(&self, mut server: Server) -> Result<Server> {
        let end = Instant::now() + READY;
        loop {
            // One that has ended will never be ready.
            server.process.alive()?;
            match http_get(server.http, "/readyz") {
                Ok(_) => return Ok(server),
                Err(error) if Instant::now() > end => {
                    return Err(error.context(server.process.tail()));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}
