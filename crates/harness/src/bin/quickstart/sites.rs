//! The processes of the quickstart: an origin, and two sites, each at the far end of a line of its
//! own.

use crate::report::{counted, print, say, size};
use crate::work::{Pass, Seen};
use crate::{ONE_WAY, Stop};
use anyhow::{Context, Result, ensure};
use larder_harness::process::{Folder, unmount};
use larder_harness::site::{Line, READY, Server, Site, within};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const VOLUME: &str = "quickstart";
const NAMES: [&str; 2] = ["one", "two"];
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
    mounts: Vec<Server>,
    lines: [Line; 2],
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
        Ok(Self { mounts: Vec::new(), lines, origin, site })
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

    /// Mounts the volume at a site.
    pub(crate) fn mount(&mut self, place: usize) -> Result<()> {
        say(format_args!("mounting at site {}", NAMES[place]));
        let mount = self.site.mount(NAMES[place], VOLUME, self.lines[place].port(), &[])?;
        self.mounts.push(mount);
        Ok(())
    }

    /// Lists and searches the tree at a site, which must be as it was imported.
    pub(crate) fn pass(&self, place: usize, how: &str, seen: Seen, stop: &Stop) -> Result<Pass> {
        let (mount, line) = (&self.mounts[place], &self.lines[place]);
        let carried = || line.proxy.traffic().up_bytes + line.proxy.traffic().down_bytes;
        let what = format!("site {}, {how}", NAMES[place]);
        say(format_args!("{what}: listing and searching"));
        let (requests, bytes) = (mount.requests()?, carried());
        let mut pass = Pass::over(&mount.at(""), &what, stop)?;
        pass.requests = mount.requests()? - requests;
        pass.line_bytes = carried() - bytes;
        ensure!(pass.seen == seen, "{what}: {:?} seen, {seen:?} imported", pass.seen);
        Ok(pass)
    }

    /// Edits a file at the sites in turn, and watches it at the other one.
    pub(crate) fn edit(&self, stop: &Stop) -> Result<Edit> {
        let name = "quickstart-edit.txt";
        let paths = [self.mounts[0].at(name), self.mounts[1].at(name)];
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
        let [one, two] = [self.mounts[0].at(""), self.mounts[1].at("")]
            .map(|path| path.display().to_string().trim_end_matches('/').to_owned());
        let http = self.mounts[0].http;
        let larder = larder_harness::larder_binary().unwrap_or_else(|_| "larder".into());
        let larder = larder.display();
        print(format_args!(
            "\nBoth sites stay up. Site one: {one}\n                    site two: {two}\nTry:\n  \
             ls {one}\n  \
             echo hello > {one}/hello.txt; sleep 0.2; cat {two}/hello.txt\n  \
             mv {two}/hello.txt {two}/moved.txt; sleep 0.2; ls -l {one}/moved.txt\n  \
             time grep -r cache {two} | wc -l\n  \
             {larder} status --http 127.0.0.1:{http}\n\
             Ctrl-C ends everything, and removes what was made."
        ));
    }

    /// Every process must still run.
    pub(crate) fn alive(&mut self) -> Result<()> {
        let mounts = self.mounts.iter_mut();
        mounts.chain([&mut self.origin]).try_for_each(|server| server.process.alive())
    }

    /// Ends everything in order: the sites first, then the origin. What does not end is killed, and
    /// a mount in which somebody stands is detached.
    pub(crate) fn stop(mut self) {
        for mount in std::mem::take(&mut self.mounts) {
            let point = mount.point.clone();
            if let Err(error) = mount.stop() {
                say(format_args!("a site did not end in order, and was ended: {error:#}"));
            }
            point.as_deref().map(unmount);
        }
        if let Err(error) = self.origin.stop() {
            say(format_args!("the origin did not end in order, and was ended: {error:#}"));
        }
    }
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
