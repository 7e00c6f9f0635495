//! What the version before wrote.

use crate::common::site;
use anyhow::{Context, Result, ensure};
use larder_harness::ledger::Book;
use larder_harness::operations::tree;
use larder_harness::site::{READY, runtime, within};
use larder_store::pages::{FjallConfig, FjallPages};
use std::path::Path;
use std::process::Command;

/// The volume of files.
const WORK: &str = "work";
/// Written by `crash previous --save` with the binary of the version before (2), which was killed.
const ARCHIVE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/previous/v2.tar.gz");

/// An origin is replaced by one of the next version, on the store as it lies there after a kill: all
/// that was acknowledged is there, transactions and files, and it goes on. From then on the version
/// before refuses the store: it would pass over what it does not know.
#[test]
fn a_store_of_the_version_before_is_taken_over() -> Result<()> {
    let site = site("previous")?;
    let folder = site.path("archive");
    std::fs::create_dir(&folder)?;
    let done = Command::new("tar").arg("-xzf").arg(ARCHIVE).arg("-C").arg(&folder).status()?;
    ensure!(done.success(), "the archive is not whole");
    let data = folder.join("data");
    let mut origin = site.origin(&data, 0, &[])?;
    let (tls, parent) = (site.tls(), format!("127.0.0.1:{}", origin.port));
    let journals = ["journal-0", "journal-1"].map(|name| folder.join(name));
    let mut book = Book::new(1);
    let found = runtime().block_on(book.verify(Path::new(&tls), &parent, &journals))?;
    ensure!(found.acknowledged > 10, "the archive holds transactions: {found:?}");
    site.volume(origin.port, &["check", WORK, "--quiet"])?.success()?;

    let mount = site.mount("one", WORK, origin.port, &[])?;
    for (model, at) in [("model-0", "one"), ("model-1", "two")] {
        let (wanted, at) = (tree(&folder.join(model))?, mount.at(at));
        let seen = within(READY, "a look at the tree", move || tree(&at))??;
        ensure!(seen == wanted, "{model}: {seen:#?} instead of {wanted:#?}");
    }
    crate::common::write_synced(&mount.at("gone-on"), b"by this version")?;
    origin.kill();
    let engine = data.join("domain-0").join("pages");
    let pages = FjallPages::open(&engine, &FjallConfig::default())?;
    let format = pages.meta_format()?.context("the engine has metadata")?;
    drop(pages);
    ensure!(format == larder_core::wire::META_FORMAT, "format {format} is not this version's");
    let origin = site.origin(&data, origin.port, &[])?;
    let path = mount.at("gone-on");
    let seen = within(READY, "a read", move || std::fs::read(path))??;
    ensure!(seen == b"by this version", "what was synced is lost");
    mount.stop()?;
    site.volume(origin.port, &["check", WORK, "--quiet"])?.success()?;
    origin.stop()?;
    Ok(())
}
