//! File work at two sites while origin and mounts are killed: whatever was acknowledged as synced is
//! there afterwards, what was cut off happened or did not, and the tree is sound.
//!
//! At each site a worker, a process of its own, does what is drawn from a seed, at the mount and then
//! in a folder of the local disk, and writes into a book what it is about to do. When an operation
//! gets no answer it ends: of that one alone it is not known whether it was done.

use super::{Line, ROUND_TRIP, VOLUME};
use anyhow::{Context, Result, bail, ensure};
use larder_core::rng::Rng;
use larder_harness::operations::{Op, Place, tree};
use larder_harness::process::{Process, wait_until};
use larder_harness::site::{READY, Server, Site, within};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const NAMES: [&str; 2] = ["one", "two"];
/// What an operation says that was cut off.
const CUT_OFF: [Errno; 8] = [
    Errno::NOTCONN,
    Errno::CONNABORTED,
    Errno::IO,
    Errno::TIMEDOUT,
    Errno::HOSTDOWN,
    Errno::SHUTDOWN,
    Errno::INTR,
    Errno::NODEV,
];

type Tree = BTreeMap<PathBuf, String>;

/// What is mounted where a folder is, by a number that is never given twice; none: it cannot be told,
/// or nothing is there.
fn mounted_at(folder: &Path) -> Option<u64> {
    // `STATX_MNT_ID_UNIQUE`, since Linux 6.8.
    let unique = StatxFlags::from_bits_retain(0x4000);
    let about = statx(CWD, folder, AtFlags::STATX_DONT_SYNC, unique).ok()?;
    StatxFlags::from_bits_retain(about.stx_mask).contains(unique).then_some(about.stx_mnt_id)
}

/// A worker: until something is cut off, or it is killed.
pub(super) fn work(place: &Path, model: &Path, seed: u64, book: &Path) -> Result<()> {
    let (folder, mount) = (place, mounted_at(place));
    let mut place = Place::synced(place.into());
    let mut model = Place::new(model.into());
    let mut book = fs::File::create(book)?;
    let mut rng = Rng::new(seed);
    for number in 0u64.. {
        let op = Op::draw(&mut rng);
        if matches!(op, Op::Hold(_) | Op::WriteHeld(..) | Op::ReadHeld) {
            continue;
        }
        // One line, in one write: it is whole or not there.
        book.write_all(format!("{number} {} {op:?}\n", u8::from(op.has_steps())).as_bytes())?;
        let found = place.run(op);
        if let Err(Some(code)) = found
            && CUT_OFF.iter().any(|known| known.raw_os_error() == code)
        {
            return Ok(());
        }
        // Between the end of a mount and the next one at its point there is another folder.
        if mount.is_some() && mounted_at(folder) != mount {
            return Ok(());
        }
        let wanted = model.run(op);
        ensure!(wanted == found, "{number}: {op:?}: {found:?} instead of {wanted:?}");
    }
    Ok(())
}

/// The operation that a worker was at, or did last: by its seed and number.
struct Last {
    op: Op,
    has_steps: bool,
}

fn last(book: &Path, seed: u64) -> Result<Option<Last>> {
    let text = fs::read_to_string(book).unwrap_or_default();
    let Some(line) = text.lines().last() else { return Ok(None) };
    let mut words = line.split(' ');
    let number: u64 = words.next().context("a number")?.parse()?;
    let has_steps = words.next() == Some("1");
    let mut rng = Rng::new(seed);
    let op = (0..=number).map(|_| Op::draw(&mut rng)).last();
    Ok(op.map(|op| Last { op, has_steps }))
}

struct Run {
    site: Site,
    origin: Server,
    lines: [Line; 2],
    mounts: [Server; 2],
    rng: Rng,
    checked: u64,
}

impl Run {
    fn folder(&self, at: usize) -> PathBuf {
        self.mounts[at].at(NAMES[at])
    }

    fn model(&self, at: usize) -> PathBuf {
        self.site.path(&format!("model-{at}"))
    }

    fn book(&self, at: usize) -> PathBuf {
        self.site.path(&format!("book-{at}"))
    }

    fn start_worker(&mut self, at: usize) -> Result<(u64, Process)> {
        let seed = self.rng.next_u64() >> 1;
        let words = [
            "worker".to_owned(),
            self.folder(at).display().to_string(),
            self.model(at).display().to_string(),
            seed.to_string(),
            self.book(at).display().to_string(),
        ];
        let own = std::env::current_exe()?;
        let name = format!("worker-{}", NAMES[at]);
        Ok((seed, Process::start(&name, &own, &words, &self.site.path("."))?))
    }

    fn kill(&mut self, what: usize) -> Result<()> {
        if what == 2 {
            self.origin.kill();
            self.origin = self.site.origin(&self.site.path("data"), self.origin.port, &[])?;
            return Ok(());
        }
        self.mounts[what].kill();
        let port = self.lines[what].port();
        self.mounts[what] = self.site.mount(NAMES[what], VOLUME, port, &[])?;
        Ok(())
    }

    /// What a site's folder holds, seen at a mount.
    fn seen(&self, at: usize, of: usize) -> Result<Tree> {
        let root = self.mounts[at].at(NAMES[of]);
        Ok(within(READY, "a look at the tree", move || tree(&root))??)
    }

    /// Compares what is there with what was acknowledged.
    fn verify(&mut self, at: usize, seed: u64) -> Result<()> {
        let model = self.model(at);
        let before = tree(&model)?;
        let found = self.seen(at, at)?;
        self.checked += found.len() as u64;
        if found != before {
            let Some(last) = last(&self.book(at), seed)? else {
                bail!(
                    "site {at}: nothing was begun, and {found:#?} is there instead of {before:#?}"
                );
            };
            // Done, though not heard of: in a copy, which is what counts from here on.
            let _either = Place::new(model.clone()).run(last.op);
            let after = tree(&model)?;
            let between = last.has_steps && differ_in_bytes_alone(&found, &after);
            ensure!(
                found == after || between,
                "site {at}, {:?}: {found:#?} is neither {before:#?} nor {after:#?}",
                last.op
            );
            adopt(&self.folder(at), &model)?;
        }
        let wanted = tree(&model)?;
        let other = 1 - at;
        wait_until("the same at the other site", READY, || {
            ensure!(self.seen(other, at)? == wanted, "the other site sees something else");
            Ok(())
        })
    }
}

/// Whether two trees have the same names, and the same of each but for size and bytes.
fn differ_in_bytes_alone(one: &Tree, two: &Tree) -> bool {
    let about = |text: &String| text.split(" size ").next().map(str::to_owned);
    one.len() == two.len()
        && one.iter().zip(two).all(|((a, one), (b, two))| a == b && about(one) == about(two))
}

/// Takes what is at a mount as what is wanted from here on.
fn adopt(from: &Path, model: &Path) -> Result<()> {
    fs::remove_dir_all(model)?;
    super::run(Command::new("cp").arg("-a").arg(from).arg(model))?;
    Ok(())
}

pub(super) fn run(binary: &Path, rounds: u32) -> Result<Value> {
    let site = Site::new(binary, "kills")?;
    let empty = site.path("empty");
    fs::create_dir_all(&empty)?;
    let origin = site.origin(&site.path("data"), 0, &[])?;
    let from = empty.display().to_string();
    site.volume(origin.port, &["import", VOLUME, &from, "--create"])?.success()?;
    let line = || Line::to(origin.port, ROUND_TRIP / 2);
    let lines = [line()?, line()?];
    let mount = |at: usize| site.mount(NAMES[at], VOLUME, lines[at].port(), &[]);
    let mounts = [mount(0)?, mount(1)?];
    let mut run = Run { site, origin, lines, mounts, rng: Rng::new(1), checked: 0 };
    for at in 0..2 {
        fs::create_dir(run.folder(at))?;
        fs::create_dir(run.model(at))?;
    }
    for round in 0..rounds {
        let what = run.rng.below(3) as usize;
        let mut workers = [run.start_worker(0)?, run.start_worker(1)?];
        std::thread::sleep(Duration::from_millis(300 + run.rng.below(1500)));
        run.kill(what)?;
        std::thread::sleep(Duration::from_millis(run.rng.below(500)));
        for (_, worker) in &mut workers {
            // What it saw that was wrong ends it with a failure.
            if let Some(code) = worker.status()? {
                ensure!(code.success(), "round {round}: {}", worker.tail());
            }
            worker.kill();
        }
        for (at, (seed, _)) in workers.iter().enumerate() {
            run.verify(at, *seed).with_context(|| format!("round {round}, killed {what}"))?;
        }
    }
    let Run { site, origin, mounts, checked, .. } = run;
    for mount in mounts {
        mount.stop()?;
    }
    site.volume(origin.port, &["check", VOLUME, "--free-orphans", "0s"])?.success()?;
    origin.stop()?;
    Ok(json!({ "rounds": rounds, "checked": checked }))
}
