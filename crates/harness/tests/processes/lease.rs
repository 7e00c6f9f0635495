//! The lease runs out at a mount.

use crate::common::{VOLUME, origin_with_tree, site, write_synced};
use anyhow::{Context, Result, ensure};
use larder_harness::process::{metric, wait_until};
use larder_harness::site::{Line, READY, Server, within};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
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

/// A shell that runs from the mount: its program is mapped, and comes in page by page.
struct Shell {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Shell {
    fn start(mount: &Server) -> Result<Self> {
        fs::copy("/bin/sh", mount.at("shell"))?;
        let mut child = Command::new(mount.at("shell"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let (asks, answers) = (child.stdin.take(), child.stdout.take());
        let answers = BufReader::new(answers.context("piped")?);
        Ok(Self { child, asks: asks.context("piped")?, answers })
    }

    fn says(&mut self, word: &str) -> Result<()> {
        writeln!(self.asks, "echo $((6 * 7)) {word}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(line == format!("42 {word}\n"), "the shell says {line:?}");
        Ok(())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // It may have ended by itself: the state afterwards is the same.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// How often the kernel asked a mount for bytes.
fn asked(mount: &Server) -> Result<f64> {
    metric(mount.http, "larder_kernel_requests_total", &["what=\"read\""])
}

/// Looks, which never takes long, until the kernel has asked the mount for bytes by that.
fn asks_again(
    mount: &Server,
    what: &str,
    look: impl Fn() -> Result<()> + Clone + Send + 'static,
) -> Result<()> {
    let before = asked(mount)?;
    wait_until(what, READY, || {
        within(AT_ONCE, what, look.clone())??;
        ensure!(asked(mount)? > before, "the kernel does not ask");
        Ok(())
    })
}

/// The line to the other office is down for longer than the lease, and the mount goes on serving
/// what it has, as it was told to. But the kernel went on too, without asking: it kept the pages of
/// files that were open or mapped for as long as they were, however old they became. When the lease
/// lapses it must ask for all of it again; what is cached is served at once, and nothing hangs.
#[test]
fn when_the_lease_lapses_the_kernel_asks_again() -> Result<()> {
    let site = site("kernel")?;
    let origin = origin_with_tree(&site, &["--set", "origin.lease=2s"])?;
    let line = Line::to(origin.port, ONE_WAY)?;
    let beats = ["--set", "node.beat=200ms", "--set", "link.silence_max=20s"];
    let mount = site.mount("one", VOLUME, line.port(), &beats)?;
    let mut shell = Shell::start(&mount)?;
    shell.says("hello")?;
    let page = File::open(mount.at("folder/page"))?;
    let read = |file: &File| -> Result<u8> {
        let mut bytes = [0; 30_000];
        file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes[29_999])
    };
    let first = read(&page)?;

    // While the lease holds, beat after beat, the kernel keeps what it has.
    shell.says("again")?;
    let before = asked(&mount)?;
    std::thread::sleep(Duration::from_secs(3));
    shell.says("again")?;
    ensure!(
        read(&page)? == first && asked(&mount)? == before,
        "read again although nothing changed"
    );

    line.proxy.cut();
    wait_until("the lease to lapse", READY, || {
        ensure!(!leased(&mount)?, "leased still");
        Ok(())
    })?;
    // Each by itself, the mapped one first: nothing else may do the asking for it.
    let shell = Arc::new(Mutex::new(shell));
    let mapped = shell.clone();
    let says = move |word: &str| mapped.lock().expect("nobody panicked").says(word);
    let of_shell = says.clone();
    asks_again(&mount, "the mapped file", move || of_shell("stale"))?;
    let page = Arc::new(page);
    asks_again(&mount, "the open file", move || {
        ensure!(read(&page)? == first, "other bytes");
        Ok(())
    })?;

    line.proxy.heal();
    wait_until("trust", READY, || {
        ensure!(leased(&mount)?, "not yet");
        Ok(())
    })?;
    within(AT_ONCE, "the shell", move || says("current"))??;
    drop(shell);
    mount.stop()?;
    origin.stop()?;
    Ok(())
}
