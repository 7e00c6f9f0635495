//! Store files that were cut short or whose bits have flipped.

use crate::common::{Tmpfs, VOLUME, assert_same, copy_all, pattern, site, source};
use anyhow::{Context, Result, ensure};
use larder_harness::process::{http_get, wait_until};
use larder_harness::site::{READY, Server, Site};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longer than an origin waits before it installs.
const QUIET: Duration = Duration::from_secs(5);

/// What is done to a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Harm {
    /// Its second half is gone.
    Half,
    /// Nothing is left of it.
    Nothing,
    /// A bit is flipped at this thousandth of what it holds.
    Flip(u64),
}

const HARMS: &[Harm] =
    &[Harm::Half, Harm::Nothing, Harm::Flip(0), Harm::Flip(500), Harm::Flip(1000)];

/// Bytes up to the last one that is not zero: a log segment is zeros from there on.
fn held(file: &Path) -> Result<u64> {
    const PIECE: usize = 4096;
    let bytes = fs::read(file)?;
    let pieces = bytes.chunks(PIECE).rev();
    let zeros = pieces.take_while(|piece| **piece == [0; PIECE][..piece.len()]).map(<[u8]>::len);
    let rest = bytes.len() - zeros.sum::<usize>();
    Ok(bytes[..rest].iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u64 + 1))
}

fn harm(path: &Path, harm: Harm, held: u64) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    match harm {
        Harm::Half => file.set_len(held / 2)?,
        Harm::Nothing => file.set_len(0)?,
        Harm::Flip(place) => {
            let at = (held * place / 1000).min(held - 1);
            let mut byte = [0];
            file.read_exact_at(&mut byte, at)?;
            file.write_all_at(&[byte[0] ^ 0x10], at)?;
        }
    }
    Ok(())
}

fn files_of(folder: &Path, into: &mut Vec<PathBuf>) -> Result<()> {
    let mut entries: Vec<_> = fs::read_dir(folder)?.collect::<Result<_, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        if entry.file_type()?.is_dir() {
            files_of(&entry.path(), into)?;
        } else {
            into.push(entry.path());
        }
    }
    Ok(())
}

/// Everything that was ever acknowledged, or an error: nothing else.
fn serves_right_or_refuses(site: &Site, data: &Path, wanted: &Path) -> Result<&'static str> {
    let origin: Server = match site.origin(data, 0, &[]) {
        Ok(origin) => origin,
        Err(error) => {
            // It said why, and ended: it did not hang, and did not panic.
            let text = format!("{error:#}");
            ensure!(text.contains("ended with exit status: 6"), "no orderly refusal: {text}");
            ensure!(!text.contains("panicked"), "a panic: {text}");
            return Ok("refused");
        }
    };
    let target = site.path("export");
    fs::remove_dir_all(&target).ok();
    let to = target.display().to_string();
    let exported = site.volume(origin.port, &["export", VOLUME, &to])?;
    if exported.code != Some(0) {
        ensure!(!exported.err.is_empty(), "failed without a word");
        return Ok("partly served");
    }
    assert_same(wanted, &target)?;
    Ok("served")
}

/// What harm did.
#[derive(Default)]
struct Outcome {
    /// How often the origin refused to start, or to serve some of it.
    refused: usize,
    /// How often the check named the damage.
    named: usize,
    /// How often all was served though the page engine's journal was damaged.
    journal_served: usize,
}

/// Puts every harm of `harms_of` to every file of a store, one at a time.
fn harm_each(
    site: &Site,
    disk: &Tmpfs,
    wanted: &Path,
    harms_of: impl Fn(&Path) -> Vec<Harm>,
) -> Result<Outcome> {
    let (whole, data) = (disk.path().join("whole"), disk.path().join("data"));
    let mut files = Vec::new();
    files_of(&whole, &mut files)?;
    ensure!(files.len() > 5, "a store has more files than {files:?}");
    let damaged = |name: &Path, what: Harm, held: u64| -> Result<()> {
        fs::remove_dir_all(&data).ok();
        copy_all(&whole, &data)?;
        harm(&data.join(name), what, held)
    };
    let (mut silent, mut outcome) = (Vec::new(), Outcome::default());
    for file in &files {
        let (name, held) = (file.strip_prefix(&whole)?, held(file)?);
        // Nothing to be harmed in a lock, or in a segment that is ready and not begun.
        for what in harms_of(name).into_iter().filter(|_| held > 0) {
            damaged(name, what, held)?;
            let served = serves_right_or_refuses(site, &data, wanted);
            let text = match &served {
                Ok(how) => format!("{} {what:?}: {how}", name.display()),
                Err(error) => format!("{} {what:?}: {error:#}", name.display()),
            };
            eprintln!("{text}");
            outcome.refused += usize::from(matches!(served, Ok("refused" | "partly served")));
            let journal = name.extension().is_some_and(|end| end == "jnl");
            outcome.journal_served += usize::from(journal && matches!(served, Ok("served")));
            if served.is_err() {
                silent.push(text);
            }
            if !matches!(what, Harm::Flip(500)) {
                continue;
            }
            damaged(name, what, held)?;
            let at = data.display().to_string();
            let checked = site.larder(&["volume", "check", "--data", &at])?;
            ensure!(!checked.err.contains("panicked"), "{}: {}", name.display(), checked.err);
            eprintln!("    check: {:?} {}", checked.code, checked.err.lines().next().unwrap_or(""));
            outcome.named += usize::from(checked.code == Some(6));
            let right = matches!(served, Ok("served"));
            ensure!(right || checked.code != Some(0), "{}: not named by the check", name.display());
        }
    }
    ensure!(silent.is_empty(), "served wrong in silence:\n{}", silent.join("\n"));
    Ok(outcome)
}

/// Commits that only the log holds: killed before they are installed.
fn late_commits(site: &Site, origin: &mut Server, wanted: &Path) -> Result<()> {
    let from = wanted.display().to_string();
    for round in 0..3 {
        fs::write(wanted.join("late"), format!("{round}"))?;
        fs::write(wanted.join(format!("late-{round}")), pattern(5000, round))?;
        site.volume(origin.port, &["import", VOLUME, &from])?.success()?;
    }
    origin.kill();
    Ok(())
}

/// A disk rots, and a repair tool cuts files short. For every file of an origin's store, and every
/// harm: the origin refuses to start, or `volume check --data` names the damage, or what is served
/// is exactly what was acknowledged. Never is anything wrong served in silence.
#[test]
fn a_damaged_store_is_refused_or_named_and_never_served_wrong() -> Result<()> {
    let site = site("damage")?;
    let disk = Tmpfs::new(&site.path("disk"), 1000)?;
    let wanted = source(&site)?;
    let mut origin = site.origin(&disk.path().join("whole"), 0, &[])?;
    let from = wanted.display().to_string();
    site.volume(origin.port, &["import", VOLUME, &from, "--create"])?.success()?;
    installed(&origin)?;
    late_commits(&site, &mut origin, &wanted)?;
    let outcome = harm_each(&site, &disk, &wanted, |name| {
        // Rot in the last write of the log looks as if that write had been torn: nobody can
        // tell (`docs/formats/disk.md`).
        let log = name.extension().is_some_and(|end| end == "seg");
        HARMS.iter().copied().filter(|what| !(log && *what == Harm::Flip(1000))).collect()
    })?;
    let Outcome { refused, named, journal_served } = outcome;
    ensure!(refused > 5 && named > 2, "the harm did no harm: {refused} refused, {named} named");
    // Nothing is in the engine's tables yet, and the log has everything.
    ensure!(journal_served > 0, "the log made up for no loss of the engine's journal");
    Ok(())
}

/// The story: only stores were harmed in which nothing was installed yet. The page engine cuts its
/// journal off where it does not check, and says nothing. Here pages are in its tables, and its
/// journal alone has the change index and the metadata: cut short it leaves a mixture, which is
/// refused, as a table that is damaged is.
#[test]
fn a_damaged_page_engine_is_refused_or_named_and_never_served_wrong() -> Result<()> {
    let site = site("damage-pages")?;
    let disk = Tmpfs::new(&site.path("disk"), 1000)?;
    let wanted = source(&site)?;
    // More than the engine keeps in memory: it writes tables.
    fs::write(wanted.join("large"), pattern(40 << 20, 7))?;
    let mut origin = site.origin(&disk.path().join("whole"), 0, &[])?;
    let from = wanted.display().to_string();
    site.volume(origin.port, &["import", VOLUME, &from, "--create"])?.success()?;
    installed(&origin)?;
    late_commits(&site, &mut origin, &wanted)?;
    let outcome = harm_each(&site, &disk, &wanted, |name| {
        if !name.components().any(|part| part.as_os_str() == "pages") {
            return Vec::new();
        }
        // A blob file has most of the bytes, a journal is what is cut off in silence.
        let all = name.extension().is_some_and(|end| end == "jnl");
        let few = [Harm::Half, Harm::Flip(500)];
        if all { HARMS.to_vec() } else { few.to_vec() }
    })?;
    let Outcome { refused, named, .. } = outcome;
    ensure!(refused > 5 && named > 2, "the harm did no harm: {refused} refused, {named} named");
    Ok(())
}

/// Waits until an origin has installed what it was given: nothing more comes for two intervals.
fn installed(origin: &Server) -> Result<()> {
    let pages = || -> Result<u64> {
        let text = http_get(origin.http, "/metrics")?;
        let line = text.lines().find_map(|line| line.strip_prefix("larder_install_pages_total "));
        Ok(line.context("installs are counted")?.trim().parse()?)
    };
    let (mut seen, mut since) = (0, Instant::now());
    wait_until("the installs", READY, || {
        let now = pages()?;
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        ensure!(seen > 0 && since.elapsed() > QUIET, "{seen} pages, the last just now");
        Ok(())
    })
}
