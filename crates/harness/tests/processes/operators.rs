//! What operators see: the state of links and stores, and no noise at a normal end.

use crate::common::{VOLUME, origin_with_tree, site, write_synced};
use anyhow::{Context, Result, bail, ensure};
use larder_harness::process::{free_port, http_get, metric, wait_until};
use larder_harness::site::{Line, READY};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Who is linked, and does the far office keep up? The operator asks the origin and the relay:
/// each child by name, role and address, since when, what waits for it and how far it is behind;
/// what the directory takes; what log and store take. A child whose line stalls is seen to be
/// silent. What fits is a metric too.
#[test]
fn status_shows_links_lag_directory_and_sizes() -> Result<()> {
    let site = site("status")?;
    let origin = origin_with_tree(&site, &[])?;
    let relay = site.relay(origin.port, &[])?;
    let line = Line::to(relay.port, Duration::from_millis(1))?;
    let far = site.mount("one", VOLUME, line.port(), &[])?;
    let near = site.mount("two", VOLUME, origin.port, &[])?;
    fs::read(far.at("folder/page"))?;

    let status = |http: u16, extra: &[&str]| {
        let address = format!("127.0.0.1:{http}");
        site.larder(&[&["status", "--http", &address], extra].concat())?.success()
    };
    let json =
        |http: u16| -> Result<Value> { Ok(serde_json::from_str(&status(http, &["--json"])?)?) };
    let of_origin = json(origin.http)?;
    let children = of_origin["children"].as_array().context("the children")?;
    for (name, role) in [("relay", "relay"), ("two", "node")] {
        let child = children.iter().find(|child| child["name"] == name).context("a child")?;
        ensure!(child["role"] == role, "{child}");
        ensure!(
            child["address"].as_str().is_some_and(|at| at.starts_with("127.0.0.1:")),
            "{child}"
        );
        ensure!(child["connected_s"].as_f64().is_some_and(|since| since > 0.0), "{child}");
        ensure!(child["queued_bytes"].is_u64() && child["domains"][0]["lag"].is_u64(), "{child}");
    }
    let domain = &of_origin["domains"][0];
    ensure!(domain["directory"]["pages"].as_u64() > Some(0), "{domain}");
    ensure!(domain["directory"]["bytes"].as_u64() > Some(0), "{domain}");
    ensure!(domain["log_bytes"].as_u64() > Some(0), "{domain}");
    ensure!(domain["store_bytes"].is_u64() && domain["open"] == true, "{domain}");
    let of_relay = json(relay.http)?;
    ensure!(of_relay["children"][0]["name"] == "one", "{of_relay}");
    ensure!(of_relay["domains"][0]["following"] == true, "{of_relay}");
    let text = status(origin.http, &[])?;
    for word in ["CHILD", "BEHIND", "relay", "two", "STORE", "MiB"] {
        ensure!(text.contains(word), "`{word}` is missing:\n{text}");
    }

    // Nothing is heard of it any more, and that is seen before it is given up.
    line.proxy.stall();
    wait_until("the far site's silence to be seen", READY, || {
        let child = &json(relay.http)?["children"][0];
        ensure!(child["heard_s"].as_f64() > Some(2.0), "{child}");
        Ok(())
    })?;
    line.proxy.heal();
    for name in ["larder_queued_bytes", "larder_lag_stamps", "larder_directory_pages"] {
        let text = http_get(relay.http, "/metrics")?;
        ensure!(text.contains(name), "{name} is no metric");
    }
    ensure!(metric(origin.http, "larder_store_bytes", &["part=\"log\""])? > 0.0, "the log's size");
    wait_until("what the origin's memory is for", READY, || {
        for part in ["part=\"clean\"", "part=\"recent\"", "part=\"engine_tables\""] {
            let bytes = metric(origin.http, "larder_memory_bytes", &[part])?;
            ensure!(bytes > 0.0, "{part} takes {bytes} bytes");
        }
        Ok(())
    })?;
    for server in [far, near, relay, origin] {
        server.stop()?;
    }
    Ok(())
}

/// Everything is stopped in order, as at every update: nobody may find a warning in the logs that
/// makes them look for a fault where there is none.
#[test]
fn a_normal_end_leaves_no_warning_in_the_logs() -> Result<()> {
    let site = site("quiet")?;
    let origin = origin_with_tree(&site, &[])?;
    let relay = site.relay(origin.port, &[])?;
    let mount = site.mount("one", VOLUME, relay.port, &[])?;
    write_synced(&mount.at("file"), b"content")?;
    let command = site.volume(origin.port, &["list"])?;
    ensure!(!command.err.contains("WARN"), "a command warns: {}", command.err);
    for server in [mount, relay, origin] {
        let log = server.stop()?;
        let noise: Vec<&str> =
            log.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
        ensure!(noise.is_empty(), "warnings at a normal end:\n{}", noise.join("\n"));
        ensure!(!log.contains("no link to the parent"), "{log}");
    }
    Ok(())
}

/// Servers were started as `larder origin 2>&1 | …`, and what read their logs ended. Each of their
/// threads that had something to say panicked then: tasks of links and of the store with them.
#[test]
fn servers_go_on_when_nobody_takes_their_logs() -> Result<()> {
    let site = site("unheard")?;
    // It reads a line and ends: from then on every write is an error.
    let before = ["-c", "exec \"$@\" 2> >(head -n 1 > /dev/null)", "bash"];
    let start = |name: &str, words: &[&str]| {
        let loud = ["--set", "log.filter=debug"];
        site.start_as(name, Path::new("bash"), &before, &[words, &loud].concat())
    };
    let port = free_port()?;
    let (data, listen) = (site.path("data").display().to_string(), format!("127.0.0.1:{port}"));
    let words = ["origin", "--name", "origin", "--data", &data, "--listen", &listen, "--create"];
    let mut origin = site.ready(start("origin", &words)?)?;
    let from = crate::common::source(&site)?.display().to_string();
    site.volume(port, &["import", VOLUME, &from, "--create"])?.success()?;

    let point = site.path("one");
    fs::create_dir_all(&point)?;
    let at = point.display().to_string();
    let words = ["mount", VOLUME, &at, "--foreground", "--name", "one", "--parent", &listen];
    let mut mount = start("one", &words)?;
    mount.mounts_at(point);
    let mut mount = site.mounted(mount)?;
    for round in 0..3 {
        write_synced(&mount.at("file"), format!("{round}").as_bytes())?;
        // Who comes, who goes, and who is no peer at all: each is logged.
        site.volume(port, &["list"])?.success()?;
        http_get(port, "/").map_or(Ok(()), |answer| bail!("an origin's link says {answer}"))?;
    }
    ensure!(fs::read(mount.at("file"))? == b"2", "the last of them");
    for server in [&mut origin, &mut mount] {
        server.process.alive()?;
        http_get(server.http, "/readyz")?;
    }
    mount.stop()?;
    origin.stop()?;
    Ok(())
}

/// A shell gives a process 1,024 descriptors, and the origin left it at that: with about as many nodes, or the files
/// of a few grown domains, the next one was refused, and a page engine that could not open a table of its own had its
/// domain out of service. It takes what the system allows, and says so when that is too little.
#[test]
fn a_server_takes_the_descriptors_that_the_system_allows() -> Result<()> {
    let site = site("descriptors")?;
    let port = free_port()?;
    let (data, listen) = (site.path("data").display().to_string(), format!("127.0.0.1:{port}"));
    let words = ["origin", "--name", "origin", "--data", &data, "--listen", &listen, "--create"];
    let server = site.start_as("origin", Path::new("prlimit"), &["--nofile=64:4096"], &words)?;
    let origin = site.ready(server)?;
    let limits = fs::read_to_string(format!("/proc/{}/limits", origin.process.id()))?;
    let line = limits.lines().find(|line| line.starts_with("Max open files")).context("a limit")?;
    let soft = line.split_whitespace().nth(3).context("the soft limit")?;
    ensure!(soft == "4096", "{line}");
    let log = fs::read_to_string(site.path("origin.log"))?;
    ensure!(
        log.contains("link.links_max") && log.contains("ulimit -Hn"),
        "it is too little: {log}"
    );
    origin.stop().map(drop)
}
