//! What the tests share: the command, a site with a volume of files, comparing trees.

use anyhow::{Context, Result, ensure};
use larder_harness::site::{Server, Site};
use larder_harness::tree;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

pub(crate) const VOLUME: &str = "tree";

/// The command of this build: named by `LARDER_BINARY`, else built now.
pub(crate) fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(named) = std::env::var_os("LARDER_BINARY") {
            return named.into();
        }
        let built = Command::new(env!("CARGO")).args(["build", "-q", "-p", "larder-cli"]).status();
        assert!(built.is_ok_and(|status| status.success()), "the `larder` command is not built");
        let own = std::env::current_exe().expect("a test runs from a file");
        own.ancestors().nth(2).expect("target/debug/deps/processes").join("larder")
    })
}

/// A site in a folder of its own.
pub(crate) fn site(name: &str) -> Result<Site> {
    Site::new(binary(), name)
}

/// A small tree with files of every size that the file layer treats apart.
pub(crate) fn source(site: &Site) -> Result<PathBuf> {
    let root = site.path("source");
    for (name, bytes) in
        [("empty", 0), ("inline", 700), ("folder/page", 30_000), ("folder/deep/pages", 3 << 20)]
    {
        let path = root.join(name);
        fs::create_dir_all(path.parent().context("below the root")?)?;
        fs::write(path, pattern(bytes, 1))?;
    }
    for number in 0..40 {
        fs::write(root.join(format!("folder/file-{number}")), pattern(100 * number, number as u8))?;
    }
    Ok(root)
}

/// Bytes that differ everywhere.
pub(crate) fn pattern(length: usize, seed: u8) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(seed);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// An origin with `VOLUME`, which holds [`source`].
pub(crate) fn origin_with_tree(site: &Site, extra: &[&str]) -> Result<Server> {
    let origin = site.origin(&site.path("data"), 0, extra)?;
    let from = source(site)?.display().to_string();
    site.volume(origin.port, &["import", VOLUME, &from, "--create"])?.success()?;
    Ok(origin)
}

/// The volume, copied out, equals a tree of real files; and its check is clean.
pub(crate) fn assert_volume_is(site: &Site, port: u16, wanted: &Path) -> Result<()> {
    let target = site.path("export");
    fs::remove_dir_all(&target).ok();
    let to = target.display().to_string();
    site.volume(port, &["export", VOLUME, &to])?.success()?;
    assert_same(wanted, &target)?;
    site.volume(port, &["check", VOLUME])?.success()?;
    Ok(())
}

/// Two trees of real files are the same.
pub(crate) fn assert_same(wanted: &Path, found: &Path) -> Result<()> {
    let differences = tree::differences(&tree::read(wanted)?, &tree::read(found)?);
    ensure!(differences.is_empty(), "the trees differ:\n{}", differences.join("\n"));
    Ok(())
}

/// Writes a file and syncs it: when this succeeds, it must never be lost.
pub(crate) fn write_synced(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// A small file system in memory, unmounted when dropped.
pub(crate) struct Tmpfs(PathBuf);

impl Tmpfs {
    /// Mounts one of `mebibytes` at `path`.
    pub(crate) fn new(path: &Path, mebibytes: u32) -> Result<Self> {
        fs::create_dir_all(path)?;
        let size = format!("size={mebibytes}m");
        let words = ["-t", "tmpfs", "-o", &size, "larder-test"];
        let done = Command::new("mount").args(words).arg(path).status()?;
        ensure!(done.success(), "no tmpfs at {}: are you root?", path.display());
        Ok(Self(path.into()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        larder_harness::process::unmount(&self.0);
    }
}

/// Copies a folder with all its files, holes kept.
pub(crate) fn copy_all(from: &Path, to: &Path) -> Result<()> {
    let words = ["-a", "--sparse=always"];
    let done = Command::new("cp").args(words).arg(from).arg(to).status()?;
    ensure!(done.success(), "copying {} failed", from.display());
    Ok(())
}
