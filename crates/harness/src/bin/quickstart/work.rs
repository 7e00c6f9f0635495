//! The work that is timed: listing a tree with all that its names are, and searching its files.

use crate::Stop;
use crate::report::say;
use anyhow::{Context, Result};
use std::fs::{self, File};
use std::io::Read;
use std::ops::Sub;
use std::path::Path;
use std::time::{Duration, Instant};

/// What is searched for.
const WORD: &[u8] = b"cache";
/// Bytes of a file that are searched at a time: files may be longer than memory.
const PIECE_BYTES: usize = 1 << 20;
/// How often a long pass says how far it is.
const SAY_EVERY: Duration = Duration::from_secs(3);

/// What a pass saw: the same everywhere, or something is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) directories: u64,
    /// Regular files.
    pub(crate) files: u64,
    /// Everything else: symbolic links, mostly.
    pub(crate) others: u64,
    /// Of the regular files.
    pub(crate) bytes: u64,
    /// How often the word was found.
    pub(crate) found: u64,
}

/// One pass over a tree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass {
    /// Listing every directory and looking at every name in it (`ls -lR`).
    pub(crate) list_s: f64,
    /// Reading and searching every file (`grep -r`).
    pub(crate) grep_s: f64,
    pub(crate) seen: Seen,
    /// What it took that was not in the node's memory.
    pub(crate) cost: Cost,
}

/// What came from elsewhere.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    /// Requests for data that came to the origin. Some overlap: the round trips that were waited for are
    /// no more.
    pub(crate) requests: u64,
    /// Bytes over the site's line, both ways, keep-alive included.
    pub(crate) line_bytes: u64,
    /// Pages that crossed the line.
    pub(crate) origin_pages: u64,
    /// Pages that a neighbour sent.
    pub(crate) neighbour_pages: u64,
}

impl Sub for Cost {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            line_bytes: self.line_bytes - before.line_bytes,
            origin_pages: self.origin_pages - before.origin_pages,
            neighbour_pages: self.neighbour_pages - before.neighbour_pages,
        }
    }
}

impl Pass {
    /// Lists, then searches, the tree at `root`. What it costs elsewhere is left at 0.
    pub(crate) fn over(root: &Path, what: &str, stop: &Stop) -> Result<Self> {
        let started = Instant::now();
        let mut seen = list(root, &mut Progress::new(what, "listed"), stop)?;
        let list_s = started.elapsed().as_secs_f64();
        let started = Instant::now();
        (seen.bytes, seen.found) = grep(root, &mut Progress::new(what, "searched"), stop)?;
        let grep_s = started.elapsed().as_secs_f64();
        Ok(Self { list_s, grep_s, seen, cost: Cost::default() })
    }

    pub(crate) fn both_s(&self) -> f64 {
        self.list_s + self.grep_s
    }
}

struct Progress<'a> {
    what: &'a str,
    verb: &'static str,
    names: u64,
    next: Instant,
}

impl<'a> Progress<'a> {
    fn new(what: &'a str, verb: &'static str) -> Self {
        Self { what, verb, names: 0, next: Instant::now() + SAY_EVERY }
    }

    fn step(&mut self, stop: &Stop) -> Result<()> {
        self.names += 1;
        if Instant::now() >= self.next {
            say(format_args!("{}: {} names {}", self.what, self.names, self.verb));
            self.next = Instant::now() + SAY_EVERY;
        }
        stop.check()
    }
}

fn list(root: &Path, progress: &mut Progress<'_>, stop: &Stop) -> Result<Seen> {
    let mut seen = Seen::default();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let path = entry?.path();
            let about = fs::symlink_metadata(&path).with_context(|| path.display().to_string())?;
            if about.is_dir() {
                seen.directories += 1;
                folders.push(path);
            } else if about.is_file() {
                seen.files += 1;
            } else {
                seen.others += 1;
            }
            progress.step(stop)?;
        }
    }
    Ok(seen)
}

/// Bytes read, and how often the word is in them.
fn grep(root: &Path, progress: &mut Progress<'_>, stop: &Stop) -> Result<(u64, u64)> {
    let (mut bytes, mut found) = (0, 0);
    let mut piece = vec![0; PIECE_BYTES];
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                let here = search(&path, &mut piece, stop);
                let here = here.with_context(|| path.display().to_string())?;
                (bytes, found) = (bytes + here.0, found + here.1);
            }
            progress.step(stop)?;
        }
    }
    Ok((bytes, found))
}

/// Bytes of a file, and how often the word is in it.
fn search(path: &Path, piece: &mut [u8], stop: &Stop) -> Result<(u64, u64)> {
    let mut file = File::open(path)?;
    let (mut bytes, mut found, mut kept) = (0, 0, 0);
    loop {
        let read = file.read(&mut piece[kept..])?;
        if read == 0 {
            return Ok((bytes, found));
        }
        bytes += read as u64;
        let held = kept + read;
        found += piece[..held].windows(WORD.len()).filter(|part| *part == WORD).count() as u64;
        // The beginning of a word that goes on in the next piece.
        kept = held.min(WORD.len() - 1);
        piece.copy_within(held - kept..held, 0);
        stop.check()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_harness::process::Folder;

    /// A word that lies across two pieces is one, and is found once.
    #[test]
    fn a_search_in_pieces_finds_what_one_in_whole_does() {
        let folder = Folder::private("quickstart-search", false).expect("room");
        let path = folder.path().join("file");
        let text = b"cache cache ca cach ecachecachecac".repeat(5);
        fs::write(&path, &text).expect("room");
        let whole = text.windows(WORD.len()).filter(|part| *part == WORD).count() as u64;
        let stop = Stop(std::sync::Arc::default());
        for piece in [WORD.len(), 6, 7, 11, 64, 4096] {
            let found = search(&path, &mut vec![0; piece], &stop).expect("it is there");
            assert_eq!(found, (text.len() as u64, whole), "in pieces of {piece} bytes");
        }
    }
}
