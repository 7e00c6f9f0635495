//! Wrong names and wrong usage.

use crate::common::{VOLUME, origin_with_tree, site};
use anyhow::{Result, ensure};
use larder_harness::process::{free_port, is_mounted};
use std::fs;

/// A volume's name is misspelt in a mount unit: every command says so at once, by name, with the
/// exit code for "not found", and nothing is mounted. A parent that nobody serves at is "not
/// available" within the limit; words that make no sense are "wrong usage".
#[test]
fn an_unknown_volume_is_named() -> Result<()> {
    let site = site("usage")?;
    let origin = origin_with_tree(&site, &[])?;
    let (point, target) = (site.path("one"), site.path("target"));
    fs::create_dir_all(&point)?;
    let (at, to) = (point.display().to_string(), target.display().to_string());
    let parent = format!("127.0.0.1:{}", origin.port);
    let tls = site.tls();
    let identity = ["--tls", &tls, "--name", "one", "--parent", &parent];
    for command in [
        &["mount", "--foreground", "nope", &at][..],
        &["node", "--volume", "nope"],
        &["volume", "info", "nope"],
        &["volume", "check", "nope"],
        &["volume", "export", "nope", &to],
        &["volume", "import", "nope", &at],
    ] {
        site.larder(&[command, &identity].concat())?.refused(3, &["no volume nope"])?;
    }
    ensure!(!is_mounted(&point)? && !target.exists(), "something was made for it");
    site.volume(origin.port, &["create", VOLUME])?.refused(1, &["exists", VOLUME])?;

    let nobody = free_port()?;
    let ended = site.volume(nobody, &["list", "--request-limit", "300ms"])?;
    ended.refused(5, &[&nobody.to_string()])?;
    site.larder(&["mount"])?.refused(2, &["Usage"])?;
    site.volume(nobody, &["list", "--set", "nonsense"])?.refused(2, &["KEY=VALUE"])?;
    site.volume(nobody, &["list", "--set", "node.memroy=1GiB"])?.refused(2, &["node.memroy"])?;
    origin.stop()?;
    Ok(())
}
