//! File work at both sites: whatever was acknowledged as synced is there afterwards, what was cut off
//! happened or did not, and both sites see the same.
//!
//! At each site a worker, a process of its own, does what is drawn from a seed in the site's folder at
//! the mount, and then in a folder of the local disk, the model; into a book it writes what it is about
//! to do. When an operation gets no answer it ends: of that one alone it is not known whether it was
//! done. Looks are taken by processes of their own as well: a mount that does not answer holds up
//! nobody else.

use crate::world::{SITES, World, run};
use anyhow::{Context, Result, bail, ensure};
use larder_core::rng::Rng;
use larder_harness::operations::{Op, Place, tree};
use larder_harness::process::Process;
use larder_harness::site::READY;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// What an operation says that was cut off, or found no room.
const CUT_OFF: [Errno; 9] = [
    Errno::NOTCONN,
    Errno::CONNABORTED,
    Errno::IO,
    Errno::TIMEDOUT,
    Errno::HOSTDOWN,
    Errno::SHUTDOWN,
    Errno::INTR,
    Errno::NODEV,
    Errno::NOSPC,
];

/// Where operations are done, below a site's folder: links lead one folder up, and no further.
const WITHIN: &str = "in";
/// Directories are moved into each other: a tree of more names is cleared before work begins.
const NAMES_MAX: usize = 150;

/// What is at a folder: each name below it, and what it looks like.
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
pub(crate) fn work(place: &Path, model: &Path, seed: u64, book: &Path) -> Result<()> {
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

/// Writes down what is at a folder, for who asked for a look.
pub(crate) fn look(folder: &Path, into: &Path) -> Result<()> {
    let seen: BTreeMap<_, _> =
        tree(folder)?.into_iter().map(|(path, text)| (path.display().to_string(), text)).collect();
    fs::write(into, serde_json::to_vec(&seen)?)?;
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

/// The files of both sites, and what they must be.
pub(crate) struct Files {
    /// Of the workers that are, or were, at work.
    seeds: [u64; 2],
    /// Operations that workers began.
    pub(crate) steps: u64,
    /// Names compared.
    pub(crate) checked: u64,
}

impl Files {
    pub(crate) fn new(world: &World) -> Result<Self> {
        for (site, name) in SITES.iter().enumerate() {
            fs::create_dir_all(model(world, site).join(WITHIN))?;
            fs::create_dir(world.mounted(site).join(name).join(WITHIN))?;
        }
        Ok(Self { seeds: [0; 2], steps: 0, checked: 0 })
    }

    /// Starts a worker at each site.
    pub(crate) fn start(&mut self, world: &mut World, rng: &mut Rng) -> Result<()> {
        for (site, name) in SITES.iter().enumerate() {
            self.seeds[site] = rng.next_u64() >> 1;
            let (model, place) = (model(world, site), world.mounted(site).join(name));
            if tree(&model)?.len() > NAMES_MAX {
                for folder in [&model, &place] {
                    run(Command::new("rm").arg("-rf").arg(folder.join(WITHIN)))?;
                    run(Command::new("mkdir").arg(folder.join(WITHIN)))?;
                }
            }
            let words = [
                "worker".to_owned(),
                place.join(WITHIN).display().to_string(),
                model.join(WITHIN).display().to_string(),
                self.seeds[site].to_string(),
                book(world, site).display().to_string(),
            ];
            let worker = world.worker(&format!("worker-{name}"), &words)?;
            world.workers.push(worker);
        }
        Ok(())
    }

    /// Whether a worker has ended: since something was cut off.
    pub(crate) fn has_ended(&self, world: &mut World) -> Result<bool> {
        for worker in &mut world.workers {
            if let Some(code) = worker.status()? {
                ensure!(code.success(), "{}", worker.tail());
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends the workers; what one saw that was wrong has ended it with a failure.
    pub(crate) fn stop(&mut self, world: &mut World) -> Result<()> {
        for mut worker in world.workers.drain(..) {
            if let Some(code) = worker.status()? {
                ensure!(code.success(), "{}", worker.tail());
            }
            worker.kill();
        }
        for site in 0..2 {
            let text = fs::read_to_string(book(world, site)).unwrap_or_default();
            self.steps += text.lines().count() as u64;
        }
        Ok(())
    }

    /// Compares what is there with what was acknowledged.
    pub(crate) fn verify(&mut self, world: &World) -> Result<()> {
        for (site, name) in SITES.iter().enumerate() {
            self.verify_site(world, site).with_context(|| format!("files of site {name}"))?;
        }
        Ok(())
    }

    fn verify_site(&mut self, world: &World, site: usize) -> Result<()> {
        let model = model(world, site);
        let before = tree(&model)?;
        let last = last(&book(world, site), self.seeds[site])?;
        if let Some(last) = &last {
            // Done, though not heard of: in a copy, which is what counts from here on.
            let _either = Place::new(model.join(WITHIN)).run(last.op);
        }
        let after = tree(&model)?;
        let end = Instant::now() + READY;
        let found = loop {
            // Bytes that wait for their commit are seen at their own site alone.
            let (here, there) = (seen(world, site, site)?, seen(world, 1 - site, site)?);
            let between = last
                .as_ref()
                .is_some_and(|last| last.has_steps && differ_in_bytes_alone(&here, &after));
            let as_it_must_be = here == before || here == after || between;
            if here == there && as_it_must_be {
                break here;
            }
            if Instant::now() > end {
                let op = last.map(|last| last.op);
                bail!(
                    "{op:?} was the last operation; before it:\n{before:#?}\nafter it:\n{after:#?}\n\
                     seen here:\n{here:#?}\nseen at the other site:\n{there:#?}"
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        self.checked += found.len() as u64;
        if found != after {
            // What is at the mount is what is wanted from here on.
            fs::remove_dir_all(&model)?;
            let folder = world.mounted(site).join(SITES[site]);
            run(Command::new("cp").arg("-a").arg(folder).arg(&model))?;
            ensure!(tree(&model)? == found, "it changed while it was copied");
        }
        Ok(())
    }
}

fn model(world: &World, site: usize) -> PathBuf {
    world.site.path(&format!("model-{site}"))
}

fn book(world: &World, site: usize) -> PathBuf {
    world.site.path(&format!("book-{site}"))
}

/// What a site's folder holds, seen at a mount.
fn seen(world: &World, at: usize, of: usize) -> Result<Tree> {
    let into = world.site.path("look");
    let folder = world.mounted(at).join(SITES[of]);
    let words = ["look".to_owned(), folder.display().to_string(), into.display().to_string()];
    let mut looker: Process = world.worker("look", &words)?;
    let code = looker.ended(READY).context("a look at the tree")?;
    ensure!(code == Some(0), "a look at {}: {}", folder.display(), looker.tail());
    let text: BTreeMap<String, String> = serde_json::from_slice(&fs::read(into)?)?;
    Ok(text.into_iter().map(|(path, text)| (path.into(), text)).collect())
}

/// Whether two trees have the same names, and the same of each but for size and bytes.
fn differ_in_bytes_alone(one: &Tree, two: &Tree) -> bool {
    let about = |text: &String| text.split(" size ").next().map(str::to_owned);
    one.len() == two.len()
        && one.iter().zip(two).all(|((a, one), (b, two))| a == b && about(one) == about(two))
}
