//! Certificates that do not do.

use crate::common::{VOLUME, origin_with_tree, site};
use anyhow::{Context, Result, ensure};
use larder_harness::process::{is_mounted, metric};
use larder_harness::site::{READY, Server, Site};
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

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

/// Waits until `/status` of a process is as wanted.
fn wait_for(server: &Server, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let end = Instant::now() + READY;
    loop {
        let status = server.status()?;
        if wanted(&status) {
            return Ok(status);
        }
        ensure!(Instant::now() < end, "{what} did not come: {status:#}\n{}", server.process.log());
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn ca(site: &Site, words: &[&str]) -> Result<String> {
    let tls = site.tls();
    site.larder(&[&["ca"], words, &["--tls", &tls]].concat())?.success()
}

fn connected(status: &Value) -> bool {
    status["node"]["connected"] == true
}

/// Certificates of a site end, and somebody renews them: with restarts of everything, at night. One
/// machine is stolen: it stays linked for a year. Files that are replaced while all runs are used by
/// themselves, mounts notice nothing of a renewal, whoever is revoked is cut off, behind a relay
/// too, and comes back under the same name once there is a new certificate.
#[test]
fn certificates_are_renewed_and_revoked_while_all_runs() -> Result<()> {
    let site = site("renewal")?.without_terminal();
    let origin = origin_with_tree(&site, &[])?;
    let relay = site.relay(origin.port, &[])?;
    let one = site.mount("one", VOLUME, origin.port, &[])?;
    let two = site.mount("two", VOLUME, relay.port, &[])?;

    let before = one.status()?["node"]["certificate"]["expires"].clone();
    ca(&site, &["renew", "one", "--new-key", "--days", "20"])?;
    ca(&site, &["renew", "origin", "--days", "20"])?;
    wait_for(&one, "the renewed certificate", |status| {
        status["node"]["certificate"]["expires"] != before
    })?;
    fs::write(one.at("after-renewal"), "one")?;
    let status = one.status()?;
    ensure!(connected(&status) && status["figures"]["connects"] == 1, "interrupted: {status:#}");
    let left = metric(one.http, "larder_certificate_expires_seconds", &["what=\"own\""])?;
    ensure!((19.0..20.5).contains(&(left / 86_400.0)), "{left} s are left of 20 days");
    // The replaced one is revoked, as one whose key may be known: the link that was opened with it
    // ends, and the next is opened with the new one.
    ca(&site, &["revoke", "one", "--replaced"])?;
    wait_for(&one, "a link with the new certificate", |status| {
        connected(status) && status["figures"]["connects"] == 2
    })?;
    ensure!(fs::read(one.at("inline"))?.len() == 700, "one is served");

    ca(&site, &["revoke", "two"])?;
    // At first the link is gone, and not yet known why the next is refused.
    let revoked = |status: &Value| {
        status["node"]["trouble"].as_str().is_some_and(|text| text.contains("revoked"))
    };
    wait_for(&two, "the refusal of two", |status| !connected(status) && revoked(status))?;
    wait_for(&relay, "a relay without two", |status| status["children"] == Value::Array(vec![]))?;
    ensure!(relay.process.log().contains("child cut off"), "{}", relay.process.log());
    ensure!(connected(&one.status()?), "one has nothing to do with it");
    let parent = format!("127.0.0.1:{}", origin.port);
    let tls = site.tls();
    let identity = ["--tls", &tls, "--name", "two", "--parent", &parent];
    site.larder(&[&["volume", "list"][..], &identity].concat())?.refused(REFUSED, &["revoked"])?;

    ca(&site, &["issue", "two"])?;
    wait_for(&two, "two with its new certificate", connected)?;
    fs::write(two.at("after-return"), "two")?;
    // Written back when the file is closed: seen at the other site within a stream's delay.
    let seen = Instant::now() + READY;
    while fs::read(one.at("after-return")).is_err() {
        ensure!(Instant::now() < seen, "what two wrote is not seen at one");
        std::thread::sleep(Duration::from_millis(50));
    }
    let listed: Value = serde_json::from_str(&ca(&site, &["list", "--json"])?)?;
    let of_two = listed.as_array().context("a list")?.iter().filter(|one| one["name"] == "two");
    let states: Vec<&str> = of_two.filter_map(|one| one["state"].as_str()).collect();
    ensure!(states.len() == 2 && states.contains(&"revoked") && states.contains(&"valid"));

    // A list that does not do is named, and shuts out nobody and lets in nobody.
    let list = site.path("tls").join("ca-crl.pem");
    fs::rename(&list, site.path("ca-crl.kept"))?;
    Command::new("kill").args(["-HUP", &origin.process.id().to_string()]).status()?;
    wait_for(&origin, "trouble", |status| {
        status["certificate"]["trouble"].as_str().is_some_and(|text| text.contains("ca-crl.pem"))
    })?;
    ensure!(origin.status()?["certificate"]["revoked"] == 2, "the old list is in use");
    fs::rename(site.path("ca-crl.kept"), &list)?;
    wait_for(&origin, "no trouble", |status| status["certificate"]["trouble"].is_null())?;

    two.stop()?;
    one.stop()?;
    relay.stop()?;
    let log = origin.stop()?;
    ensure!(log.contains("looking at the certificate files"), "{log}");
    Ok(())
}
