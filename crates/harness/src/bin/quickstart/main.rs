//! Larder's main job in one command: a folder imported at an origin, mounted by two neighbours at each of
//! two sites that are 40 ms away from it, listed and searched by all of them, edited at one site and seen
//! at the other; and then left running, to play with. It fails when the second of two neighbours fetches over
//! the line what the first one has.

mod neighbours;
mod report;
mod sites;
mod uncached;
mod work;

use anyhow::{Context, Result, bail, ensure};
use larder_harness::process::Folder;
use larder_harness::site::runtime;
use report::{Figures, say};
use sites::Sites;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use work::{Pass, Seen};

const USAGE: &str = "usage: quickstart [DIR] [--once] [--json] [--keep]\n\n\
  DIR     the folder to import (default /usr/share/doc)\n\
  --once  end when everything is measured, instead of staying up\n\
  --json  print the figures as one JSON object on one line\n\
  --keep  keep the folder with data, certificates and logs";

/// The machine's documentation: thousands of small files on most.
const DOCUMENTATION: &str = "/usr/share/doc";
/// Half of the round trip between a site and the origin.
const ONE_WAY: Duration = Duration::from_millis(20);
/// How often it is looked whether everything still runs.
const LOOK_EVERY: Duration = Duration::from_millis(250);

struct Options {
    source: PathBuf,
    once: bool,
    json: bool,
    keep: bool,
}

fn options(words: impl Iterator<Item = OsString>) -> Result<Options> {
    let mut options =
        Options { source: DOCUMENTATION.into(), once: false, json: false, keep: false };
    let mut named = false;
    for word in words {
        // A folder's name may be any bytes; what begins with a dash is one of the words above.
        match word.to_string_lossy().as_ref() {
            "--once" => options.once = true,
            "--json" => options.json = true,
            "--keep" => options.keep = true,
            "-h" | "--help" => {
                println!("{USAGE}");
                std::process::exit(0);
            }
            text if text.starts_with('-') || named => bail!("unexpected {text}\n{USAGE}"),
            _ => {
                options.source = word.into();
                named = true;
            }
        }
    }
    Ok(options)
}

/// Whether somebody asked the quickstart to end.
#[derive(Clone)]
struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Listens for Ctrl-C, SIGTERM and the end of the terminal from now on.
    fn listen() -> Result<Self> {
        let stop = Self(Arc::default());
        let _within = runtime().enter();
        for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
            let (mut signal, stop) = (signal(kind)?, stop.clone());
            runtime().spawn(async move {
                while signal.recv().await.is_some() {
                    stop.0.store(true, Ordering::Relaxed);
                }
            });
        }
        Ok(stop)
    }

    fn asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error when it was asked.
    fn check(&self) -> Result<()> {
        ensure!(!self.asked(), "stopped before everything was measured");
        Ok(())
    }
}

fn main() -> ExitCode {
    let run = || {
        let options = options(std::env::args_os().skip(1))?;
        run(&options, &Stop::listen()?)
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options, stop: &Stop) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "mounting for all users of this machine takes root: sudo ./x quickstart"
    );
    let source = look(&options.source)?;
    let folder = Folder::private("quickstart", options.keep)?;
    ensure!(
        !folder.path().starts_with(&source),
        "{} holds {}, where the sites are kept: name another folder, or set TMPDIR to one outside",
        source.display(),
        folder.path().display()
    );
    say(format_args!("looking at {}", source.display()));
    let seen = Pass::over(&source, "on local disk", stop)?.seen;
    ensure!(
        seen.files > 0,
        "{} holds no files: name a folder that holds some: ./x quickstart DIR",
        source.display()
    );
    has_room(folder.path(), seen.bytes)?;
    let mut sites = Sites::start(folder, stop)?;
    let figures = measure(&mut sites, &source, seen, stop);
    let done = figures.and_then(|figures| {
        figures.print(options.json);
        figures.judge()?;
        if options.once { Ok(()) } else { stay(&mut sites, stop) }
    });
    say("ending: unmounting, and removing what was made");
    sites.stop();
    done
}

/// The origin keeps all of it, in a log and in pages: an error when that does not fit.
fn has_room(folder: &Path, bytes: u64) -> Result<()> {
    const MEBIBYTE: u64 = 1 << 20;
    let room = rustix::fs::statvfs(folder)?;
    let (free, needed) = (room.f_bavail * room.f_frsize, 3 * bytes + 256 * MEBIBYTE);
    ensure!(
        free >= needed,
        "{} has room for {} MiB, and {} are needed: name a smaller folder, or set TMPDIR to one \
         with more room",
        folder.display(),
        free / MEBIBYTE,
        needed / MEBIBYTE
    );
    Ok(())
}

/// The folder to import, without links on the way.
fn look(source: &Path) -> Result<PathBuf> {
    let remedy = "name a folder that holds files: ./x quickstart DIR";
    let found = source
        .canonicalize()
        .with_context(|| format!("{} cannot be looked at: {remedy}", source.display()))?;
    ensure!(found.is_dir(), "{} is not a folder: {remedy}", source.display());
    Ok(found)
}

fn measure(sites: &mut Sites, source: &Path, seen: Seen, stop: &Stop) -> Result<Figures> {
    let import_s = sites.import(source, seen, stop)?;
    let members = [sites.measure(0, seen, stop)?, sites.measure(1, seen, stop)?];
    let local = Pass::over(source, "on local disk", stop)?;
    ensure!(
        local.seen == seen,
        "{} changed meanwhile, so that nothing can be compared: name a folder that stands still",
        source.display()
    );
    say("asking without a cache, over a line of the same length");
    let uncached = uncached::measure(source, ONE_WAY, stop)?;
    say("editing at one site, watching at the other");
    let edit = sites.edit(stop)?;
    Ok(Figures { seen, import_s, local, members, uncached, edit })
}

/// Says what there is to try, and waits until somebody asks for the end.
fn stay(sites: &mut Sites, stop: &Stop) -> Result<()> {
    sites.tell();
    while !stop.asked() {
        std::thread::sleep(LOOK_EVERY);
        sites.alive()?;
    }
    Ok(())
}
