//! Two of one name, and an origin that has forgotten.

use crate::common::{VOLUME, origin_with_tree, site, write_synced};
use anyhow::{Result, ensure};
use larder_harness::process::is_mounted;
use std::fs;

/// A machine was cloned with its certificate, and both mount at once. The second is refused by
/// name, with the exit code of a refusal, and the first does not notice. When the first is killed
/// the second may come in its place.
#[test]
fn the_second_of_two_nodes_with_one_identity_is_refused() -> Result<()> {
    let site = site("identity")?;
    let origin = origin_with_tree(&site, &[])?;
    let mut first = site.mount("one", VOLUME, origin.port, &[])?;
    let point = site.path("second");
    fs::create_dir_all(&point)?;
    let (at, parent) = (point.display().to_string(), format!("127.0.0.1:{}", origin.port));
    let (tls, limit) = (site.tls(), "5s");
    let identity = ["--tls", &tls, "--name", "one", "--parent", &parent, "--request-limit", limit];
    for command in [&["mount", VOLUME, &at][..], &["node"]] {
        let ended = site.larder(&[command, &identity].concat())?;
        ended.refused(4, &["refused", "one"])?;
    }
    ensure!(!is_mounted(&point)?, "the second has mounted");
    write_synced(&first.at("still"), b"here")?;
    ensure!(first.status()?["figures"]["connects"] == 1, "the first lost its link");
    first.kill();
    let second = site.mount("one", VOLUME, origin.port, &[])?;
    ensure!(fs::read(second.at("still"))? == b"here", "the second serves");
    second.stop()?;
    origin.stop()?;
    Ok(())
}
