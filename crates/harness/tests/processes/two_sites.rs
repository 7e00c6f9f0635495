//! The namespace tests at two sites: what is done at one is what the other finds, in every case in
//! which a local file system would find it; and who does the same at once at both meets the other.

use crate::common::{VOLUME, origin_with_tree, site};
use anyhow::{Context, Result, ensure};
use larder_core::rng::Rng;
use larder_harness::operations::{Op, Place, tree};
use larder_harness::process::wait_until;
use larder_harness::site::{Server, within};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// Operations drawn from a seed, by turns at two sites that are `strict`, and each in a folder of the
/// local disk too: the answers are the same ones, the errors among them, and so is the tree, at both
/// sites. Files are held open at one site while the other renames, cuts and removes them.
#[test]
fn two_sites_are_one_file_system() -> Result<()> {
    const OPERATIONS: usize = 700;
    let site = site("two-sites")?;
    let origin = origin_with_tree(&site, &[])?;
    let strict = ["--consistency", "strict"];
    let one = site.mount("one", VOLUME, origin.port, &strict)?;
    let two = site.mount("two", VOLUME, origin.port, &strict)?;
    for seed in 0..4 {
        let folder = format!("seed-{seed}");
        fs::create_dir(one.at(&folder))?;
        let local = site.path(&folder);
        fs::create_dir(&local)?;
        // One model for each site, since each holds a file of its own open.
        let mut places = [Place::new(one.at(&folder)), Place::new(two.at(&folder))];
        let mut models = [Place::new(local.clone()), Place::new(local.clone())];
        let mut rng = Rng::new(seed);
        for number in 0..OPERATIONS {
            let (op, at) = (Op::draw(&mut rng), rng.below(2) as usize);
            let (wanted, found) = (models[at].run(op), places[at].run(op));
            // A file that another site removed is gone for those who hold it open here.
            let gone = models[at].held_links() == Some(0) && wanted != found;
            if gone && found == Err(Some(Errno::STALE.raw_os_error())) {
                models[at].let_go();
                places[at].let_go();
                continue;
            }
            ensure!(
                wanted == found,
                "seed {seed}, {number}: {op:?} at site {}: {found:?} instead of {wanted:?}",
                at + 1
            );
        }
        let wanted = tree(&local)?;
        ensure!(!wanted.is_empty(), "nothing was made");
        for place in &places {
            let found = tree(&place.root)?;
            ensure!(found == wanted, "seed {seed}: {found:#?} instead of {wanted:#?}");
        }
    }
    for server in [one, two] {
        server.stop()?;
    }
    site.volume(origin.port, &["check", VOLUME, "--free-orphans", "0s"])?.success()?;
    origin.stop()?;
    Ok(())
}

/// What one worker did.
#[derive(Default)]
struct Done {
    /// By name: how often it was made less how often it was removed.
    there: BTreeMap<usize, i64>,
}

fn work(root: &Path, seed: u64, rounds: u32) -> Result<Done> {
    const NAMES: u64 = 4;
    let (mut rng, mut done) = (Rng::new(seed), Done::default());
    let expected = [Errno::EXIST, Errno::NOENT];
    for _ in 0..rounds {
        let (name, other) = (rng.below(NAMES) as usize, rng.below(NAMES) as usize);
        let at = |name: usize| root.join(format!("n{name}"));
        let mut note = |name: usize, by: i64| *done.there.entry(name).or_default() += by;
        let result = match rng.below(4) {
            0 => {
                let made = OpenOptions::new().write(true).create_new(true).open(at(name));
                made.map(|_| note(name, 1))
            }
            1 => fs::hard_link(at(name), at(other)).map(|()| note(other, 1)),
            2 if name != other => {
                let flags = RenameFlags::NOREPLACE;
                let moved = rustix::fs::renameat_with(CWD, at(name), CWD, at(other), flags);
                moved.map_err(Into::into).map(|()| {
                    note(name, -1);
                    note(other, 1);
                })
            }
            _ => fs::remove_file(at(name)).map(|()| note(name, -1)),
        };
        if let Err(error) = result {
            let known = expected.iter().any(|one| error.raw_os_error() == Some(one.raw_os_error()));
            ensure!(known, "{error}");
        }
    }
    Ok(done)
}

fn folder_of(server: &Server) -> PathBuf {
    server.at("busy")
}

/// Programs at both sites make, link, move and remove the same four names at once. Each name is made
/// once before it is removed once, whoever does it, and link counts are right at the end.
#[test]
fn the_same_names_at_two_sites_at_once() -> Result<()> {
    const ROUNDS: u32 = 120;
    let site = site("same-names")?;
    site.issue("three", "node", 30)?;
    let origin = origin_with_tree(&site, &[])?;
    let servers = [
        site.mount("one", VOLUME, origin.port, &[])?,
        site.mount("two", VOLUME, origin.port, &[])?,
    ];
    fs::create_dir(folder_of(&servers[0]))?;
    wait_until("the folder at both", LIMIT, || {
        Ok(fs::metadata(folder_of(&servers[1])).map(|_| ())?)
    })?;
    let workers: Vec<_> = (0..4u64)
        .map(|number| {
            let root = folder_of(&servers[number as usize % 2]);
            std::thread::spawn(move || work(&root, number, ROUNDS))
        })
        .collect();
    let mut there: BTreeMap<usize, i64> = BTreeMap::new();
    for worker in workers {
        let done = within(LIMIT, "a worker", move || worker.join().expect("no panic"))??;
        for (name, by) in done.there {
            *there.entry(name).or_default() += by;
        }
    }
    // The state within one delay of the stream is shown; an operation has the latest.
    for server in servers {
        server.stop()?;
    }
    let fresh = site.mount("three", VOLUME, origin.port, &[])?;
    let mut links: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for name in 0..4 {
        let about = fs::symlink_metadata(folder_of(&fresh).join(format!("n{name}")));
        let count = there.get(&name).copied().unwrap_or_default();
        ensure!(
            i64::from(about.is_ok()) == count,
            "n{name} was made {count} times more than removed"
        );
        if let Ok(about) = about {
            let entry = links.entry(about.ino()).or_insert((about.nlink(), 0));
            entry.1 += 1;
        }
    }
    ensure!(links.values().all(|(told, counted)| told == counted), "link counts: {links:?}");
    fresh.stop()?;
    site.volume(origin.port, &["check", VOLUME])?.success().context("volume check")?;
    origin.stop()?;
    Ok(())
}
