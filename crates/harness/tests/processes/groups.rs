//! Groups of real processes: neighbours behind one slow line share what one of them has fetched, nobody else
//! does, and one that stands still holds nobody up.

use crate::common::{VOLUME, assert_same, origin_with_tree, site, write_synced};
use anyhow::{Result, ensure};
use larder_harness::median;
use larder_harness::process::{metric, wait_until};
use larder_harness::site::{Line, Server, Site, within};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// Each way, to the origin.
const DELAY: Duration = Duration::from_millis(40);
const GROUP: &str = "lan";

/// Certificates of the group.
fn in_group(site: &Site, names: &[&str]) -> Result<()> {
    for name in names {
        let tls = site.tls();
        site.larder(&["ca", "renew", name, "--group", GROUP, "--tls", &tls])?.success()?;
    }
    Ok(())
}

/// What the origin was asked for that somebody waits for.
fn asked(origin: &Server) -> Result<f64> {
    let mut sum = 0.0;
    for kind in ["fetch", "resume", "open_volume", "list_volumes", "allocate_ids", "ask_rights"] {
        let labels = [&*format!("kind=\"{kind}\""), "direction=\"received\""];
        sum += metric(origin.http, "larder_messages_total", &labels)?;
    }
    Ok(sum)
}

/// A member that is mounted, once it is linked to so many neighbours.
fn member(site: &Site, name: &str, parent: u16, neighbours: f64) -> Result<Server> {
    let mount = site.mount(name, VOLUME, parent, &["--group", GROUP])?;
    linked(&mount, neighbours)?;
    Ok(mount)
}

fn linked(member: &Server, neighbours: f64) -> Result<()> {
    wait_until("links to neighbours", LIMIT, || {
        let links = metric(member.http, "larder_links", &["what=\"neighbour\""])?;
        ensure!(links == neighbours, "{links} links to neighbours");
        Ok(())
    })
}

/// What `larder group` shows of a group of two of which one has read what the other had.
fn told(site: &Site, redirector: &Server, member: &Server) -> Result<()> {
    let shown = |server: &Server, more: &[&str]| {
        let http = format!("127.0.0.1:{}", server.http);
        site.larder(&[&["group", "--http", &http], more].concat())?.success()
    };
    let json = |server: &Server| -> Result<Value> {
        Ok(serde_json::from_str(&shown(server, &["--json"])?)?)
    };
    let (above, below) = (json(redirector)?, json(member)?);
    ensure!(above["name"] == GROUP && above["role"] == "redirector", "{above}");
    ensure!(above["members"].as_array().is_some_and(|members| members.len() == 2), "{above}");
    ensure!(above["directory"]["pages"].as_u64() > Some(0), "{above}");
    ensure!(below["role"] == "member" && below["redirected"] == true, "{below}");
    ensure!(
        below["members"][0]["name"] == "one" && below["members"][0]["reached"] == true,
        "{below}"
    );
    ensure!(below["sources"]["neighbour"].as_f64() > Some(0.0), "{below}");
    ensure!(below["peer_fetch"]["median_us"].as_f64() > Some(0.0), "{below}");
    let text = shown(redirector, &[])?;
    ensure!(text.contains("MEMBER") && text.contains("updates.count"), "{text}");
    let text = shown(member, &[])?;
    ensure!(text.contains("NEIGHBOUR") && text.contains("sources.origin"), "{text}");
    Ok(())
}

/// The tree of a mount, copied out: all of it is read.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &target)?,
            false => fs::write(&target, fs::read(entry.path())?)?,
        }
    }
    Ok(())
}

/// Two sites of one LAN read the same tree behind 80 ms. The line is crossed by the first alone: the origin
/// is asked for nothing by the second.
#[test]
fn the_second_member_reads_what_the_first_has_read_without_the_line() -> Result<()> {
    let site = site("group-reads")?;
    in_group(&site, &["relay", "one", "two"])?;
    let origin = origin_with_tree(&site, &[])?;
    let line = Line::to(origin.port, DELAY)?;
    let relay = site.relay(line.port(), &["--group", GROUP])?;
    let one = member(&site, "one", relay.port, 0.0)?;
    let two = member(&site, "two", relay.port, 1.0)?;
    linked(&one, 1.0)?;
    let (wanted, first, second) = (site.path("source"), site.path("first"), site.path("second"));
    copy(one.at("").as_path(), &first)?;
    assert_same(&wanted, &first)?;
    let before = asked(&origin)?;
    let begun = Instant::now();
    copy(two.at("").as_path(), &second)?;
    let took = begun.elapsed();
    assert_same(&wanted, &second)?;
    let crossed = asked(&origin)? - before;
    ensure!(crossed == 0.0, "{crossed} requests of the second member crossed the line");
    ensure!(took < Duration::from_secs(10), "{took:?} for what a neighbour has");
    told(&site, &relay, &two)?;
    // What one writes the other has with the change.
    write_synced(&one.at("note"), b"written at one")?;
    let before = asked(&origin)?;
    wait_until("the note", LIMIT, || Ok(fs::metadata(two.at("note")).map(|_| ())?))?;
    ensure!(fs::read(two.at("note"))? == b"written at one");
    let crossed = asked(&origin)? - before;
    ensure!(crossed == 0.0, "{crossed} requests for what a neighbour wrote crossed the line");
    for server in [one, two, relay] {
        server.stop()?;
    }
    origin.stop()?;
    Ok(())
}

/// A certificate of the authority, but not of the group: it does for everything else, and neither node, mount
/// nor relay comes into the group with it. Each names the key and the command that mends it.
#[test]
fn a_certificate_without_the_group_cannot_join() -> Result<()> {
    let site = site("group-strangers")?;
    let origin = origin_with_tree(&site, &[])?;
    let (tls, parent) = (site.tls(), format!("127.0.0.1:{}", origin.port));
    let point = site.path("one");
    fs::create_dir_all(&point)?;
    let at = point.display().to_string();
    let common = ["--tls", &tls, "--parent", &parent, "--group", GROUP];
    let mount = ["mount", VOLUME, &at, "--foreground", "--name", "one"];
    for (name, words) in [
        ("one", &["node", "--name", "one"][..]),
        ("one", &mount[..]),
        ("relay", &["relay", "--name", "relay", "--listen", "127.0.0.1:0"][..]),
    ] {
        let remedy = format!("larder ca renew {name} --group {GROUP}");
        site.larder(&[words, &common].concat())?.refused(4, &["group.name", &remedy])?;
    }
    let bad = ["ca", "issue", "five", "--group", "the LAN", "--tls", &tls];
    site.larder(&bad)?.refused(4, &["`the LAN` is no name of a group"])?;
    // A member below a redirector whose certificate is of no group has a parent like any other.
    in_group(&site, &["one", "two"])?;
    let relay = site.relay(origin.port, &[])?;
    let one = member(&site, "one", relay.port, 0.0)?;
    let two = member(&site, "two", relay.port, 0.0)?;
    let found = site.path("found");
    copy(two.at("").as_path(), &found)?;
    assert_same(&site.path("source"), &found)?;
    linked(&two, 0.0)?;
    for server in [one, two, relay] {
        server.stop()?;
    }
    origin.stop()?;
    Ok(())
}

/// Milliseconds of each of some durable writes.
fn commits(member: &Server, folder: &str) -> Result<Vec<f64>> {
    let folder = member.at(folder);
    fs::create_dir(&folder)?;
    let mut times = Vec::new();
    for number in 0..15 {
        let begun = Instant::now();
        write_synced(&folder.join(format!("n{number}")), b"some bytes")?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(times)
}

/// A member stands still with its links open (SIGSTOP). Its neighbour, pointed to it, waits once, and reads
/// the page over the line; its commits take what they took.
#[test]
fn a_member_that_stands_still_holds_nobody_up() -> Result<()> {
    let site = site("group-stopped")?;
    in_group(&site, &["relay", "one", "two"])?;
    let origin = origin_with_tree(&site, &[])?;
    let line = Line::to(origin.port, DELAY)?;
    let relay = site.relay(line.port(), &["--group", GROUP])?;
    let one = member(&site, "one", relay.port, 0.0)?;
    let two = member(&site, "two", relay.port, 1.0)?;
    copy(one.at("").as_path(), &site.path("first"))?;
    let before = commits(&two, "before")?;
    one.process.pause()?;
    let after = commits(&two, "after")?;
    let slowest = {
        let (from, to) = (two.at("folder"), site.path("second"));
        fs::create_dir_all(&to)?;
        let reads = move || -> Result<Duration> {
            let mut slowest = Duration::ZERO;
            for number in 20..36 {
                let begun = Instant::now();
                let name = format!("file-{number}");
                fs::write(to.join(&name), fs::read(from.join(&name))?)?;
                slowest = slowest.max(begun.elapsed());
            }
            Ok(slowest)
        };
        within(LIMIT, "reading beside a member that stands still", reads)??
    };
    one.process.resume()?;
    // One wait of 100 ms for the helper, and what the line takes for a few pages one after the other.
    ensure!(slowest < Duration::from_millis(900), "{slowest:?} for one file");
    let (before, after) = (median(before).unwrap_or(0.0), median(after).unwrap_or(0.0));
    ensure!(after < 1.3 * before + 10.0, "commits took {after:.1} ms, and {before:.1} ms before");
    linked(&one, 1.0)?;
    for server in [one, two, relay] {
        server.stop()?;
    }
    origin.stop()?;
    Ok(())
}
