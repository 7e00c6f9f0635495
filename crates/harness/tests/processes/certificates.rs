//! Certificates that do not do.

use crate::common::{VOLUME, origin_with_tree, site};
use anyhow::{Result, ensure};
use larder_harness::process::is_mounted;
use std::fs;
use std::time::Duration;

/// Refused.
const REFUSED: i32 = 4;

/// Somebody copied another machine's files and renamed them; somebody's certificate has run out
/// over the weekend; somebody made an authority of their own at the other office. Each is told
/// which file does not do and what to do about it, within a moment, with the exit code of a
/// refusal; nothing is mounted; and those who have good certificates notice nothing.
#[test]
fn a_certificate_that_does_not_do_is_refused_and_named() -> Result<()> {
    let site = site("certificates")?;
    let mut origin = origin_with_tree(&site, &[])?;
    let tls = site.path("tls");

    for (from, to) in [("one.pem", "wrong.pem"), ("one-key.pem", "wrong-key.pem")] {
        fs::copy(tls.join(from), tls.join(to))?;
    }
    site.issue("late", "node", 0)?;
    let other = site.path("other").display().to_string();
    site.larder(&["ca", "init", "--tls", &other, "--name", "other"])?.success()?;
    site.larder(&["ca", "issue", "foreign", "--tls", &other])?.success()?;
    // Its own authority beside it: this side is content, the origin is not.
    for file in ["foreign.pem", "foreign-key.pem"] {
        fs::copy(site.path("other").join(file), tls.join(file))?;
    }
    std::thread::sleep(Duration::from_millis(1100));

    let (good, parent) = (site.tls(), format!("127.0.0.1:{}", origin.port));
    let point = site.path("one");
    fs::create_dir_all(&point)?;
    let at = point.display().to_string();
    for (folder, name, named) in [
        (&good, "wrong", &["wrong.pem", "`one`", "`wrong`"][..]),
        (&good, "late", &["late.pem", "expired", "larder ca issue late"]),
        (&good, "foreign", &["foreign.pem", "ca.pem", "not issued by the authority"]),
        (&other, "foreign", &["another authority"]),
        (&good, "nobody", &["nobody.pem", "larder ca issue nobody"]),
    ] {
        let identity = ["--tls", folder, "--name", name, "--parent", &parent];
        for command in [&["volume", "list"][..], &["mount", "-f", VOLUME, &at], &["node"]] {
            let ended = site.larder(&[command, &identity].concat())?;
            ended.refused(REFUSED, named)?;
        }
        ensure!(!is_mounted(&point)?, "{name} has mounted");
    }

    // A certificate that may only connect does not serve, and one of another authority is no
    // origin that anybody follows.
    let data = site.path("other-data").display().to_string();
    let serve = ["origin", "--data", &data, "--listen", "127.0.0.1:0", "--tls", &good];
    site.larder(&[&serve[..], &["--name", "one"]].concat())?
        .refused(REFUSED, &["one.pem", "--role"])?;
    site.larder(&[&serve[..], &["--name", "late"]].concat())?.refused(REFUSED, &["late.pem"])?;

    origin.process.alive()?;
    let log = origin.process.log();
    ensure!(log.contains("connection refused"), "the origin tells of nobody refused:\n{log}");
    let mount = site.mount("one", VOLUME, origin.port, &[])?;
    ensure!(fs::read(mount.at("inline"))?.len() == 700, "the good are served");
    mount.stop()?;
    origin.stop()?;
    Ok(())
}
