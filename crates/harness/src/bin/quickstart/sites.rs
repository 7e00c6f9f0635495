//! The processes of the quickstart: an origin, and two sites, each at the far end of a line of its
//! own. A site is a group of two mounts, neighbours that link to each other and not over the line: that is
//! crossed by one of them alone, whom they have made their redirector.

use crate::neighbours::Members;
use crate::report::{counted, print, say, size};
use crate::work::{Cost, Pass, Seen};
use crate::{ONE_WAY, Stop};
use anyhow::{Context, Result, ensure};
use larder_harness::group::{Group, together};
use larder_harness::process::{Folder, metric, unmount};
use larder_harness::site::{Line, READY, Server, Site, within};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const VOLUME: &str = "quickstart";
/// The sites; the group of each is called the same.
pub(crate) const SITES: [&str; 2] = ["one", "two"];
/// The members of each, and their mounts.
const MEMBERS: [[&str; 2]; 2] = [["one-a", "one-b"], ["two-a", "two-b"]];
/// A neighbour helps within bounds, of time too: what passes them comes from above, as it should, and says
/// nothing about who had what. These are as wide as a link (8,192 pages asked for at once), and do on a machine
/// that has much else to do.
const BOUNDS: &[&str] = &[
    "group.help_wait=5s",
    "group.helping_max=8192",
    "group.asking_max=8192",
    "group.queue=256MiB",
];
/// Edits that are timed; the median counts.
const EDITS: usize = 6;

/// How long an edit takes, from its beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edit {
    /// Until the other site reads it.
    pub(crate) visible_ms: f64,
    /// Until it is durable at the origin, and the one who wrote it knows.
    pub(crate) synced_ms: f64,
}

/// All processes. Dropped, they are ended in the order of these fields.
pub(crate) struct Sites {
    /// By site and member.
    mounts: [Vec<Server>; 2],
    lines: [Line; 2],
    groups: [Group; 2],
    origin: Server,
    site: Site,
}

impl Sites {
    /// Starts the origin and opens the lines.
    pub(crate) fn start(folder: Folder, stop: &Stop) -> Result<Self> {
        say(format_args!("starting an origin in {}", folder.path().display()));
        let site = Site::apart(&larder_harness::larder_binary()?, folder)?;
        stop.check()?;
        let origin = site.origin(&site.path("data"), 0, &[])?;
        let lines = [Line::to(origin.port, ONE_WAY)?, Line::to(origin.port, ONE_WAY)?];
        let group = |at: usize| Group::new(&site, SITES[at], &MEMBERS[at]);
        let groups = [group(0)?, group(1)?];
        Ok(Self { mounts: [Vec::new(), Vec::new()], lines, groups, origin, site })
    }

    /// Imports `source` on the origin's side of the lines; the seconds it took.
    pub(crate) fn import(&mut self, source: &Path, seen: Seen, stop: &Stop) -> Result<f64> {
        say(format_args!("importing {}, {}", counted(seen.files, "file"), size(seen.bytes)));
        let started = Instant::now();
        let from = source.display().to_string();
        let words = ["import", VOLUME, &from, "--create", "--json"];
        let mut import = self.site.start_volume(self.origin.port, &words)?;
        loop {
            stop.check()?;
            if let Some(status) = import.status()? {
                ensure!(status.success(), "the import ended with {status}:\n{}", import.tail());
                return Ok(started.elapsed().as_secs_f64());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Mounts the members of a site one after the other, and has each list and search the tree when it comes,
    /// and once more when both have.
    pub(crate) fn measure(&mut self, at: usize, seen: Seen, stop: &Stop) -> Result<Members> {
        let cold = [self.cold((at, 0), seen, stop)?, self.cold((at, 1), seen, stop)?];
        let kept_all = kept_all(&self.mounts[at][0])?;
        let pass = |member| self.pass((at, member), "warm", seen, stop);
        let warm = [pass(0)?, pass(1)?];
        Ok(Members { cold, warm, kept_all })
    }

    /// Mounts the next member of a site, which then lists and searches the tree.
    fn cold(&mut self, (at, member): (usize, usize), seen: Seen, stop: &Stop) -> Result<Pass> {
        stop.check()?;
        say(format_args!("mounting {} at site {}", MEMBERS[at][member], SITES[at]));
        let bounds: Vec<&str> = BOUNDS.iter().flat_map(|bound| ["--set", *bound]).collect();
        let parent = self.lines[at].port();
        let mount = self.groups[at].mount(&self.site, member, (VOLUME, parent), &bounds)?;
        self.mounts[at].push(mount);
        together(&self.mounts[at])?;
        self.pass((at, member), "cold", seen, stop)
    }

    /// A member lists and searches the tree, which must be as it was imported.
    fn pass(
        &self,
        (at, member): (usize, usize),
        how: &str,
        seen: Seen,
        stop: &Stop,
    ) -> Result<Pass> {
        let mount = &self.mounts[at][member];
        let what = format!("{}, {how}", MEMBERS[at][member]);
        say(format_args!("{what}: listing and searching"));
        let before = self.cost(at, mount)?;
        let mut pass = Pass::over(&mount.at(""), &what, stop)?;
        pass.cost = self.cost(at, mount)? - before;
        ensure!(pass.seen == seen, "{what}: {:?} seen, {seen:?} imported", pass.seen);
        Ok(pass)
    }

    /// What the origin, the line of a site and a member of it have counted so far. Only one member works at a
    /// time: what comes to the origin meanwhile is for that one.
    fn cost(&self, at: usize, mount: &Server) -> Result<Cost> {
        let requests = self.origin.asked()?;
        let traffic = self.lines[at].proxy.traffic();
        let line_bytes = traffic.up_bytes + traffic.down_bytes;
        let [origin_pages, neighbour_pages] = mount.pages_come()?;
        Ok(Cost { requests, line_bytes, origin_pages, neighbour_pages })
    }

    /// Edits a file at the sites in turn, and watches it at the other one.
    pub(crate) fn edit(&self, stop: &Stop) -> Result<Edit> {
        let name = "quickstart-edit.txt";
        let paths = [self.mounts[0][0].at(name), self.mounts[1][0].at(name)];
        // The file is made before: a change to what both sites know is what counts.
        edit_once(&paths[0], &paths[1], "made\n")?;
        let mut edits = Vec::new();
        for round in 0..EDITS {
            stop.check()?;
            let (here, there) = (&paths[round % 2], &paths[1 - round % 2]);
            edits.push(edit_once(here, there, &format!("edit {round}\n"))?);
        }
        fs::remove_file(&paths[0])?;
        let median = |figure: fn(&Edit) -> f64| {
            larder_harness::median(edits.iter().map(figure).collect()).expect("several were made")
        };
        Ok(Edit {
            visible_ms: median(|edit| edit.visible_ms),
            synced_ms: median(|edit| edit.synced_ms),
        })
    }

    /// Says what there is to try.
    pub(crate) fn tell(&self) {
        let at = |site: usize, member: usize| {
            let path = self.mounts[site][member].at("");
            path.display().to_string().trim_end_matches('/').to_owned()
        };
        let (one, one_too, two, two_too) = (at(0, 0), at(0, 1), at(1, 0), at(1, 1));
        let http = self.mounts[1][1].http;
        let larder = larder_harness::larder_binary().unwrap_or_else(|_| "larder".into());
        let larder = larder.display();
        print(format_args!(
            "\nBoth sites stay up. Site one: {one} and {one_too}\n\
             \x20                   site two: {two} and {two_too}\nTry:\n  \
             ls {one}\n  \
             echo hello > {one}/hello.txt; sleep 0.2; cat {two}/hello.txt {two_too}/hello.txt\n  \
             mv {two}/hello.txt {two}/moved.txt; sleep 0.2; ls -l {one}/moved.txt\n  \
             time grep -r cache {two_too} | wc -l\n  \
             {larder} status --http 127.0.0.1:{http}\n  \
             {larder} group --http 127.0.0.1:{http}\n\
             Ctrl-C ends everything, and removes what was made."
        ));
    }

    /// Every process must still run.
    pub(crate) fn alive(&mut self) -> Result<()> {
        let mounts = self.mounts.iter_mut().flatten();
        mounts.chain([&mut self.origin]).try_for_each(|server| server.process.alive())
    }

    /// Ends everything in order: the sites first, then the origin. What does not end is killed, and
    /// a mount in which somebody stands is detached.
    pub(crate) fn stop(mut self) {
        // The first of a site, mostly its redirector, comes last: nobody is left who needs another.
        for mount in std::mem::take(&mut self.mounts).into_iter().flatten().rev() {
            let point = mount.point.clone();
            if let Err(error) = mount.stop() {
                say(format_args!("a mount did not end in order, and was ended: {error:#}"));
            }
            point.as_deref().map(unmount);
        }
        if let Err(error) = self.origin.stop() {
            say(format_args!("the origin did not end in order, and was ended: {error:#}"));
        }
    }
}

/// Whether all that a member has read is still in its memory, if nothing was changed meanwhile: pages leave for
/// want of room alone, and who has let one go is full to within a few others.
fn kept_all(member: &Server) -> Result<bool> {
    let used = metric(member.http, "larder_cache_bytes", &[])?;
    let most = metric(member.http, "larder_cache_max_bytes", &[])?;
    ensure!(used > 0.0 && most > 0.0, "{used} bytes of {most} are in a member's memory");
    Ok(used < 0.9 * most)
}

fn edit_once(here: &Path, there: &Path, text: &str) -> Result<Edit> {
    let started = Instant::now();
    let (path, wanted) = (there.to_path_buf(), text.to_owned());
    let watcher = std::thread::spawn(move || watch(&path, &wanted, started));
    let (path, content) = (here.to_path_buf(), text.to_owned());
    let synced = within(READY, "an edit", move || -> Result<Duration> {
        let mut file = File::create(&path).with_context(|| path.display().to_string())?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        Ok(started.elapsed())
    })??;
    let visible = watcher.join().expect("the watcher does not panic")?;
    Ok(Edit { visible_ms: visible.as_secs_f64() * 1e3, synced_ms: synced.as_secs_f64() * 1e3 })
}

/// Reads a file until it holds `wanted`; the time since `started`.
fn watch(path: &PathBuf, wanted: &str, started: Instant) -> Result<Duration> {
    loop {
        if fs::read_to_string(path).is_ok_and(|text| text == wanted) {
            return Ok(started.elapsed());
        }
        ensure!(started.elapsed() < READY, "{} is still old after {READY:?}", path.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}
