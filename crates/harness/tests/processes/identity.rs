//! Two of one name, and an origin that has forgotten.

use crate::common::{VOLUME, assert_same, copy_all, origin_with_tree, site, source, write_synced};
use anyhow::{Result, ensure};
use larder_harness::process::{http_get, is_mounted, wait_until};
use larder_harness::site::{READY, within};
use std::fs;
use std::time::Duration;

/// "Stale file handle".
const ESTALE: i32 = 116;

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
    for command in [&["mount", "-f", VOLUME, &at][..], &["node"]] {
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

/// The origin's disk died and was restored from last night's backup. A mount has seen today's
/// commits: it must not go on as if they had never been, and must not lose them in silence. It
/// is refused, by a message that says what happened and how the loss is accepted; what it has
/// cached it still serves. Once the operator has said `--accept-fork` the mount ends every operation
/// by `ESTALE`, and a new one goes on from the backup.
#[test]
fn an_origin_restored_from_an_old_copy_is_refused_until_the_loss_is_accepted() -> Result<()> {
    let site = site("restored")?;
    let origin = origin_with_tree(&site, &[])?;
    let (port, data, backup) = (origin.port, site.path("data"), site.path("backup"));
    origin.stop()?;
    copy_all(&data, &backup)?;

    let mut origin = site.origin(&data, port, &[])?;
    let mount = site.mount("one", VOLUME, port, &[])?;
    for number in 0..20 {
        write_synced(&mount.at(&format!("today-{number}")), b"today")?;
    }
    origin.kill();
    fs::rename(&data, site.path("dead"))?;
    copy_all(&backup, &data)?;
    let mut origin = site.origin(&data, port, &[])?;

    let trouble = wait_until("the refusal", READY, || {
        let trouble = mount.status()?["node"]["trouble"].to_string();
        ensure!(trouble.contains("old copy"), "{trouble}");
        Ok(trouble)
    })?;
    ensure!(trouble.contains("--accept-fork"), "the remedy is not told: {trouble}");
    ensure!(http_get(mount.http, "/readyz").is_err(), "a refused node is not ready");
    let log = origin.process.log();
    ensure!(log.contains("--accept-fork"), "the origin's operator is not told:\n{log}");
    let cached = mount.at("today-3");
    let read = within(READY, "a cached read", move || fs::read(cached))??;
    ensure!(read == b"today", "what is cached is served");
    origin.kill();

    let origin = site.origin(&data, port, &["--accept-fork"])?;
    // What the old mount knows is of a branch that is gone: it says so, and never mixes the two.
    let again = mount.at("tomorrow");
    wait_until("the end of the old mount", READY, || {
        let again = again.clone();
        let written = within(READY, "a write", move || write_synced(&again, b"tomorrow"))?;
        let stale = written.as_ref().err().and_then(std::io::Error::raw_os_error) == Some(ESTALE);
        ensure!(stale, "{written:?}");
        Ok(())
    })?;
    // What it could not commit on that branch is lost, and its end says so.
    let mut mount = mount;
    let ended = mount.process.terminate(READY);
    let log = mount.process.log();
    ensure!(
        ended.is_ok() || log.contains("not all is committed: the origin was restored"),
        "{log}"
    );
    drop(mount);
    let mount = site.mount("one", VOLUME, port, &[])?;
    ensure!(!mount.at("today-3").exists(), "a lost file is shown");
    let again = mount.at("tomorrow");
    write_synced(&again, b"tomorrow")?;
    fs::remove_file(&again)?;
    assert_same(&source(&site)?, mount.point.as_ref().expect("a mount"))?;
    mount.stop()?;
    origin.stop()?;
    std::thread::sleep(Duration::ZERO);
    Ok(())
}
