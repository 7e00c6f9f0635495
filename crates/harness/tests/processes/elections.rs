//! Groups of real processes that find their redirectors themselves: one that is killed is replaced while others
//! work, and one after the other can be stopped and started again.

use crate::common::{VOLUME, origin_with_tree, site, write_synced};
use anyhow::{Context, Result, ensure};
use larder_harness::group::Group;
use larder_harness::process::{metric, wait_until};
use larder_harness::site::{Line, Server, Site};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// Each way, to the origin.
const DELAY: Duration = Duration::from_millis(40);
const GROUP: &str = "lan";

/// Three members, each of which may be the redirector, behind a slow line.
struct Lan<'a> {
    site: &'a Site,
    line: &'a Line,
    group: Group,
}

const NAMES: [&str; 3] = ["ann", "ben", "cid"];

impl<'a> Lan<'a> {
    fn new(site: &'a Site, line: &'a Line) -> Result<Self> {
        Ok(Self { site, line, group: Group::new(site, GROUP, &NAMES)? })
    }

    /// Mounts one of them, and waits until it is linked to so many neighbours.
    fn mount(&self, number: usize, neighbours: f64) -> Result<Server> {
        let mount = self.group.mount(self.site, number, (VOLUME, self.line.port()), &[])?;
        wait_until("links to neighbours", LIMIT, || {
            let links = metric(mount.http, "larder_links", &["what=\"neighbour\""])?;
            ensure!(links == neighbours, "{links} links to neighbours");
            Ok(())
        })?;
        Ok(mount)
    }

    /// Mounts them all, one after the other.
    fn mount_all(&self) -> Result<Vec<Server>> {
        (0..NAMES.len()).map(|number| self.mount(number, number as f64)).collect()
    }

    /// The number of the redirector, as `larder group` tells of it at a member.
    fn redirector(&self, member: &Server) -> Result<usize> {
        let http = format!("127.0.0.1:{}", member.http);
        let told = self.site.larder(&["group", "--json", "--http", &http])?.success()?;
        let told: Value = serde_json::from_str(&told)?;
        let leads = leader_of(&told)?;
        NAMES
            .iter()
            .position(|name| *name == leads)
            .with_context(|| format!("{leads} is none of ours"))
    }
}

/// The redirector's name, as `larder group` tells of it.
pub(crate) fn leader_of(told: &Value) -> Result<&str> {
    let there = told["election"]["there"].as_array().context("nobody is there")?;
    let leads = there.iter().find(|one| one["redirector"] == true).context("nobody leads")?;
    leads["name"].as_str().context("it has a name")
}

/// Somebody who makes one durable file after the other.
pub(crate) struct Work {
    stops: Arc<AtomicBool>,
    thread: JoinHandle<Result<(u32, Duration)>>,
}

impl Work {
    pub(crate) fn begin(folder: PathBuf) -> Self {
        let stops = Arc::new(AtomicBool::new(false));
        let stop = stops.clone();
        let thread = std::thread::spawn(move || {
            fs::create_dir(&folder)?;
            let (mut count, mut longest) = (0, Duration::ZERO);
            while !stop.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let text = format!("{count} of this work");
                write_synced(&folder.join(format!("n{count}")), text.as_bytes())?;
                (count, longest) = (count + 1, longest.max(begun.elapsed()));
            }
            Ok((count, longest))
        });
        Self { stops, thread }
    }

    /// How many files were acknowledged, and what the slowest took.
    pub(crate) fn end(self) -> Result<(u32, Duration)> {
        self.stops.store(true, Ordering::Relaxed);
        self.thread.join().expect("no panic")
    }
}

/// All that was acknowledged is there, once.
pub(crate) fn assert_all(folder: &std::path::Path, count: u32) -> Result<()> {
    let names = fs::read_dir(folder)?.count();
    ensure!(names == count as usize, "{names} files of {count}");
    for number in 0..count {
        let text = fs::read_to_string(folder.join(format!("n{number}")))?;
        ensure!(text == format!("{number} of this work"), "n{number}: {text:?}");
    }
    Ok(())
}

/// The redirector is killed (SIGKILL) while another member makes one durable file after the other: the group has
/// another one soon, and whatever was acknowledged is there.
#[test]
fn a_redirector_that_is_killed_is_replaced_while_others_work() -> Result<()> {
    let site = site("elections-killed")?;
    let origin = origin_with_tree(&site, &[])?;
    let line = Line::to(origin.port, DELAY)?;
    let lan = Lan::new(&site, &line)?;
    let mut mounts = lan.mount_all()?;
    let leader = lan.redirector(&mounts[0])?;
    ensure!(leader == 0, "the first one stays, and not {leader}");
    let text = site.larder(&["group", "--http", &format!("127.0.0.1:{}", mounts[0].http)])?;
    let text = text.success()?;
    ensure!(text.contains("MAY BE") && text.contains("CHOSEN"), "{text}");
    let work = Work::begin(mounts[1].at("work"));
    std::thread::sleep(Duration::from_secs(2));
    mounts[0].kill();
    let next = wait_until("another redirector", LIMIT, || {
        let next = lan.redirector(&mounts[1])?;
        ensure!(next != 0, "the dead one is followed");
        Ok(next)
    })?;
    std::thread::sleep(Duration::from_secs(3));
    let (count, longest) = work.end()?;
    println!("{count} files; with the redirector's death the slowest took {longest:?}");
    ensure!(count > 10, "{count} files only");
    ensure!(longest < Duration::from_secs(10), "{longest:?} without a commit");
    // Its kernel told them at once.
    for mount in &mounts[1..] {
        let log = mount.process.log();
        ensure!(log.contains("the link to the redirector broke"), "{log}");
    }
    assert_all(&mounts[2].at("work"), count)?;
    let back = lan.mount(0, 2.0)?;
    ensure!(lan.redirector(&back)? == next, "whoever comes back follows");
    assert_all(&back.at("work"), count)?;
    back.stop()?;
    drop(mounts.remove(0));
    for mount in mounts {
        mount.stop()?;
    }
    site.volume(origin.port, &["check", VOLUME])?.success()?;
    origin.stop()?;
    Ok(())
}

/// One after the other is stopped and started again, as in an upgrade: each hands over what it is.
#[test]
fn a_group_is_upgraded_one_by_one_while_it_works() -> Result<()> {
    let site = site("elections-upgrade")?;
    let origin = origin_with_tree(&site, &[])?;
    let line = Line::to(origin.port, DELAY)?;
    let lan = Lan::new(&site, &line)?;
    let mut mounts = lan.mount_all()?;
    let work = Work::begin(mounts[2].at("work"));
    for number in 0..2 {
        // Files are made before, between and after.
        std::thread::sleep(Duration::from_secs(1));
        let old = mounts.remove(0);
        old.stop()?;
        mounts.push(lan.mount(number, 2.0)?);
        let leader = lan.redirector(&mounts[0])?;
        ensure!(leader != number, "whoever is started anew follows");
    }
    let (count, longest) = work.end()?;
    println!("{count} files; the slowest took {longest:?}");
    ensure!(count > 5, "{count} files only");
    ensure!(longest < Duration::from_secs(10), "{longest:?} without a commit");
    assert_all(&mounts[1].at("work"), count)?;
    for mount in mounts {
        mount.stop()?;
    }
    site.volume(origin.port, &["check", VOLUME])?.success()?;
    origin.stop()?;
    Ok(())
}
