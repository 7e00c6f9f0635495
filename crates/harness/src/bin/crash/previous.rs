//! What the version before wrote, taken over by this one: its binary, built from its last commit, does
//! the work of a world; then it is ended in order, or killed while at it, and today's goes on.

use crate::work::Work;
use crate::world::{PARTS, Pace, Part, World, run as run_program};
use anyhow::{Context, Result, ensure};
use larder_core::rng::Rng;
use larder_harness::site::READY;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// How long there is work between two steps.
const WORK: Duration = Duration::from_millis(1500);

/// How the version before ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    InOrder,
    Killed,
    /// The origin alone; relay and mounts stay what they are for a while.
    OriginFirst,
}

/// Runs each of them. The archive that is to be saved holds the store as the version before left it
/// when it was killed, the trees that the sites' folders must hold, and the writers' journals.
///
/// # Errors
/// When something is lost, or the version before starts on what this one wrote.
pub(crate) fn run(
    (old, new): (&Path, &Path),
    seed: u64,
    keep: bool,
    save: Option<&Path>,
) -> Result<Value> {
    let mut transfers = Vec::new();
    for end in [End::InOrder, End::Killed, End::OriginFirst] {
        let mut world = World::new(old, seed, Pace::Quick, keep)?;
        let mut rng = Rng::new(seed);
        let mut work = Work::new(&world, seed)?;
        let mut done = Ok(());
        for step in [before, after] {
            done = done.and_then(|()| step(&mut world, &mut work, &mut rng, (end, new, save)));
        }
        if done.is_err() {
            world.site.keep();
        }
        done.with_context(|| format!("{end:?}"))?;
        transfers.push(work.found.done);
        let refused = world.stop_and_refuse(old, new)?;
        eprintln!(
            "crash: {end:?}: {} transfers; the version before says: {refused}",
            work.found.done
        );
    }
    Ok(json!({ "transfers": transfers, "lost": 0 }))
}

type Step<'a> = (End, &'a Path, Option<&'a Path>);

/// The version before at work, and its end.
fn before(
    world: &mut World,
    work: &mut Work,
    rng: &mut Rng,
    (end, _, save): Step<'_>,
) -> Result<()> {
    work.start(world, rng)?;
    std::thread::sleep(WORK);
    work.verify(world).context("with the version before alone")?;
    if end == End::Killed {
        if let Some(save) = save {
            world.process(Part::Origin).kill();
            archive(world, save)?;
        }
        work.start(world, rng)?;
        std::thread::sleep(WORK / 2);
        for part in PARTS {
            world.process(part).kill();
        }
        return Ok(());
    }
    work.start(world, rng)?;
    std::thread::sleep(WORK / 2);
    work.verify(world)?;
    let ended: &[Part] = match end {
        End::OriginFirst => &[Part::Origin],
        _ => &[Part::Mount(0), Part::Mount(1), Part::Relay, Part::Origin],
    };
    for part in ended {
        world.process(*part).terminate(READY)?;
    }
    // Writers of the ledger have nothing to end: they are this version's, at a parent of that one.
    for writer in 0..2 {
        world.process(Part::Writer(writer)).kill();
    }
    Ok(())
}

/// This version goes on with it.
fn after(world: &mut World, work: &mut Work, rng: &mut Rng, (end, new, _): Step<'_>) -> Result<()> {
    world.site.use_binary(new);
    let started: &[Part] = match end {
        End::OriginFirst => &[Part::Origin, Part::Writer(0), Part::Writer(1)],
        _ => &PARTS,
    };
    for part in started {
        world.start(*part)?;
    }
    for part in PARTS {
        world.ready(part)?;
    }
    work.verify(world).context("taken over")?;
    work.start(world, rng)?;
    std::thread::sleep(WORK / 2);
    world.process(Part::Origin).kill();
    world.start(Part::Origin)?;
    world.ready(Part::Origin)?;
    work.verify(world).context("gone on with")?;
    if end == End::OriginFirst {
        for part in [Part::Mount(0), Part::Mount(1), Part::Relay] {
            world.process(part).kill();
            world.start(part)?;
        }
        for part in PARTS {
            world.ready(part)?;
        }
        work.verify(world).context("with no process of the version before left")?;
    }
    Ok(())
}

fn archive(world: &World, into: &Path) -> Result<()> {
    let (site, data) = (world.site.path("."), world.data());
    let store = data.parent().context("the store lies on a disk")?;
    let mut tar = Command::new("tar");
    tar.arg("--create")
        .arg("--gzip")
        .arg("--sparse")
        .arg("--numeric-owner")
        .arg("--file")
        .arg(into);
    tar.arg("--directory").arg(store).arg("data").arg("--directory").arg(&site);
    for name in ["model-0", "model-1", "journal-0", "journal-1"] {
        tar.arg(name);
    }
    run_program(&mut tar)?;
    ensure!(into.exists(), "{} was not written", into.display());
    Ok(())
}
