//! What people do with a file system, at mounts of two sites: `git`, a build by `cargo`, and SQLite
//! with its own speed test. Origin and mounts are processes of their own, each site a slow line away.

mod builds;
mod git;
mod sqlite;

use anyhow::{Context, Result, bail, ensure};
use larder_harness::site::{Line, Server, Site};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const USAGE: &str = "usage: realuse [--json] [--speedtest PROGRAM] [git|cargo|sqlite]...\n\n\
  --json             end with one JSON object on the last line\n\
  --speedtest PATH   SQLite's speedtest1; without it that part is left out, and said to be\n\n\
LARDER_KEEP=1 keeps the folder with logs and data";
const VOLUME: &str = "work";
/// How long a request and its answer take between a site and the origin.
const ROUND_TRIP: Duration = Duration::from_millis(10);
/// How long one program may take.
const LIMIT: Duration = Duration::from_secs(900);

struct Options {
    json: bool,
    speedtest: Option<PathBuf>,
    parts: Vec<String>,
}

fn options(mut words: impl Iterator<Item = String>) -> Result<Options> {
    let mut options = Options { json: false, speedtest: None, parts: Vec::new() };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--json" => options.json = true,
            "--speedtest" => {
                options.speedtest = Some(words.next().context("a program must follow")?.into());
            }
            "-h" | "--help" => {
                println!("{USAGE}");
                std::process::exit(0);
            }
            "git" | "cargo" | "sqlite" => options.parts.push(word),
            _ => bail!("unknown word {word}\n{USAGE}"),
        }
    }
    Ok(options)
}

fn main() -> Result<()> {
    let options = options(std::env::args().skip(1))?;
    let wanted = |part: &str| options.parts.is_empty() || options.parts.iter().any(|p| p == part);
    let binary = larder_harness::larder_binary()?;
    let mut report = serde_json::Map::new();
    let sites = Sites::new(&binary, "realuse")?;
    for part in ["git", "cargo", "sqlite"].into_iter().filter(|part| wanted(part)) {
        let since = Instant::now();
        let mut figures = match part {
            "git" => git::run_all(&sites)?,
            "cargo" => builds::run_all(&sites)?,
            _ => sqlite::run_all(&sites, options.speedtest.as_deref())?,
        };
        figures["seconds"] = json!(since.elapsed().as_secs_f64());
        eprintln!("{part}: {figures}");
        report.insert(part.into(), figures);
    }
    sites.end()?;
    if options.json {
        println!("{}", serde_json::Value::Object(report));
    }
    Ok(())
}

/// An origin, and two sites with a mount each.
struct Sites {
    site: Site,
    origin: Server,
    _lines: [Line; 2],
    mounts: [Server; 2],
}

impl Sites {
    fn new(binary: &Path, name: &str) -> Result<Self> {
        let site = Site::new(binary, name)?;
        let empty = site.path("empty");
        std::fs::create_dir_all(&empty)?;
        let origin = site.origin(&site.path("data"), 0, &[])?;
        let from = empty.display().to_string();
        site.volume(origin.port, &["import", VOLUME, &from, "--create"])?.success()?;
        let line = || Line::to(origin.port, ROUND_TRIP / 2);
        let lines = [line()?, line()?];
        let mounts = [
            site.mount("one", VOLUME, lines[0].port(), &[])?,
            site.mount("two", VOLUME, lines[1].port(), &[])?,
        ];
        Ok(Self { site, origin, _lines: lines, mounts })
    }

    /// A path at the first site, and at the second.
    fn at(&self, name: &str) -> [PathBuf; 2] {
        [self.mounts[0].at(name), self.mounts[1].at(name)]
    }

    /// Ends all, and checks the volume.
    fn end(self) -> Result<()> {
        for mount in self.mounts {
            mount.stop()?;
        }
        self.site.volume(self.origin.port, &["check", VOLUME])?.success()?;
        self.origin.stop()?;
        Ok(())
    }
}

/// Runs a program to its end; gives what it printed, both kinds together.
fn run(command: &mut Command) -> Result<String> {
    let (code, text) = outcome(command)?;
    ensure!(code == Some(0), "{command:?} ended with {code:?}:\n{text}");
    Ok(text)
}

/// The same for one that may fail; killed when it takes too long.
fn outcome(command: &mut Command) -> Result<(Option<i32>, String)> {
    let (out, err) = (tempfile()?, tempfile()?);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(err.try_clone()?)
        .spawn()
        .with_context(|| format!("{command:?} cannot be started"))?;
    let end = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > end {
            child.kill()?;
            bail!("{command:?} did not end within {LIMIT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let mut text = String::new();
    for mut file in [out, err] {
        use std::io::{Read, Seek};
        let mut bytes = Vec::new();
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        text.push_str(&String::from_utf8_lossy(&bytes));
    }
    Ok((status.code(), text))
}

/// A file without a name on the local disk.
fn tempfile() -> Result<std::fs::File> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(std::env::temp_dir(), flags, Mode::RUSR | Mode::WUSR)?;
    Ok(file.into())
}

/// Does something at both sites at once.
fn at_both<T: Send>(work: impl Fn(usize) -> Result<T> + Sync) -> Result<[T; 2]> {
    let work = &work;
    std::thread::scope(|scope| {
        let two = scope.spawn(move || work(1));
        let one = work(0);
        Ok([one?, two.join().expect("it does not panic")?])
    })
}
