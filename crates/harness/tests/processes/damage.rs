//! Store files that were cut short or whose bits have flipped.

use crate::common::{Tmpfs, VOLUME, assert_same, copy_all, pattern, site, source};
use anyhow::{Result, ensure};
use larder_harness::site::{Server, Site};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

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

/// A disk rots, and a repair tool cuts files short. For every file of an origin's store, and every
/// harm: the origin refuses to start, or `volume check --data` names the damage, or what is served
/// is exactly what was acknowledged. Never is anything wrong served in silence.
#[test]
fn a_damaged_store_is_refused_or_named_and_never_served_wrong() -> Result<()> {
    let site = site("damage")?;
    let disk = Tmpfs::new(&site.path("disk"), 1000)?;
    let wanted = source(&site)?;
    let whole = disk.path().join("whole");
    let mut origin = site.origin(&whole, 0, &[])?;
    let from = wanted.display().to_string();
    site.volume(origin.port, &["import", VOLUME, &from, "--create"])?.success()?;
    // Commits that only the log holds: killed before they are installed.
    for round in 0..3 {
        fs::write(wanted.join("late"), format!("{round}"))?;
        fs::write(wanted.join(format!("late-{round}")), pattern(5000, round))?;
        site.volume(origin.port, &["import", VOLUME, &from])?.success()?;
    }
    origin.kill();

    let mut files = Vec::new();
    files_of(&whole, &mut files)?;
    ensure!(files.len() > 5, "a store has more files than {files:?}");
    let data = disk.path().join("data");
    let damaged = |name: &Path, what: Harm, held: u64| -> Result<()> {
        fs::remove_dir_all(&data).ok();
        copy_all(&whole, &data)?;
        harm(&data.join(name), what, held)
    };
    let (mut silent, mut refused, mut named) = (Vec::new(), 0, 0);
    for file in &files {
        let (name, held) = (file.strip_prefix(&whole)?, held(file)?);
        // Nothing to be harmed in a lock, or in a segment that is ready and not begun.
        for what in HARMS.iter().filter(|_| held > 0) {
            // Rot in the last write of the log looks as if that write had been torn: nobody can
            // tell (`docs/formats/disk.md`).
            if name.extension().is_some_and(|end| end == "seg") && *what == Harm::Flip(1000) {
                continue;
            }
            damaged(name, *what, held)?;
            let served = serves_right_or_refuses(&site, &data, &wanted);
            let text = match &served {
                Ok(how) => format!("{} {what:?}: {how}", name.display()),
                Err(error) => format!("{} {what:?}: {error:#}", name.display()),
            };
            eprintln!("{text}");
            refused += usize::from(matches!(served, Ok("refused" | "partly served")));
            if served.is_err() {
                silent.push(text);
            }
            if !matches!(what, Harm::Flip(500)) {
                continue;
            }
            damaged(name, *what, held)?;
            let at = data.display().to_string();
            let checked = site.larder(&["volume", "check", "--data", &at])?;
            ensure!(!checked.err.contains("panicked"), "{}: {}", name.display(), checked.err);
            eprintln!("    check: {:?} {}", checked.code, checked.err.lines().next().unwrap_or(""));
            named += usize::from(checked.code == Some(6));
            let right = matches!(served, Ok("served"));
            ensure!(right || checked.code != Some(0), "{}: not named by the check", name.display());
        }
    }
    ensure!(silent.is_empty(), "served wrong in silence:\n{}", silent.join("\n"));
    ensure!(refused > 5 && named > 2, "the harm did no harm: {refused} refused, {named} named");
    Ok(())
}
