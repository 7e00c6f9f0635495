//! What a mount promises of how new its state is, over slow lines and below a relay.

use crate::common::{VOLUME, origin_with_tree, site};
use anyhow::{Context, Result, ensure};
use larder_harness::process::wait_until;
use larder_harness::site::{Line, READY, Server, Site, within};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Duration;

/// Each way of a line: what is not asked for comes so much later.
const ONE_WAY: Duration = Duration::from_millis(20);
/// Far above what an operation takes that is refused, far below a hang.
const REFUSED_WITHIN: Duration = Duration::from_secs(20);
/// "Host is down".
const EHOSTDOWN: i32 = 112;

/// Two mounts, one below a relay and a slow line, one behind a slow line of its own.
struct Sites {
    site: Site,
    origin: Server,
    lines: [Line; 2],
    relay: Server,
    one: Server,
    two: Server,
}

impl Sites {
    fn new(name: &str, consistency: &str) -> Result<Self> {
        let site = site(name)?;
        let origin = origin_with_tree(&site, &[])?;
        // A loaded machine may stand still for a second.
        let quiet = ["--set", "link.silence_max=60s", "--set", "node.refuse_after=8s"];
        let lines = [Line::to(origin.port, ONE_WAY)?, Line::to(origin.port, ONE_WAY)?];
        let relay = site.relay(lines[0].port(), &quiet)?;
        let options = [&["--consistency", consistency], &quiet[..]].concat();
        let one = site.mount("one", VOLUME, relay.port, &options)?;
        let two = site.mount("two", VOLUME, lines[1].port(), &options)?;
        Ok(Self { site, origin, lines, relay, one, two })
    }

    /// Both, the writer of a round first.
    fn turns(&self, round: usize) -> (&Server, &Server) {
        if round.is_multiple_of(2) { (&self.one, &self.two) } else { (&self.two, &self.one) }
    }

    fn end(self) -> Result<()> {
        for server in [self.one, self.two, self.relay, self.origin] {
            server.stop()?;
        }
        Ok(())
    }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// Somebody writes a file and tells a colleague at the other site by telephone, who looks at once.
/// With `strict` the colleague sees it: no close, no fsync, in a file that was open before, by its
/// size and by its name. Below a relay that answered by its own beat, 2 s apart, nearly every look
/// was refused after a second.
#[test]
fn strict_shows_the_latest_at_every_operation() -> Result<()> {
    let sites = Sites::new("strict", "strict")?;
    fs::write(sites.one.at("shared"), "begin")?;
    let open =
        |server: &Server| OpenOptions::new().read(true).write(true).open(server.at("shared"));
    let files = [open(&sites.one)?, open(&sites.two)?];
    for round in 0..4 {
        let (from, to) = (&files[round % 2], &files[1 - round % 2]);
        let text = format!("round {round}: {}", "x".repeat(round * 100));
        from.write_all_at(text.as_bytes(), 0)?;
        ensure!(to.metadata()?.len() == text.len() as u64, "round {round}: the size is old");
        let mut seen = vec![0; text.len()];
        to.read_exact_at(&mut seen, 0)?;
        ensure!(seen == text.as_bytes(), "round {round}: {}", String::from_utf8_lossy(&seen));

        let (writer, reader) = sites.turns(round);
        let name = format!("name-{round}");
        ensure!(fs::metadata(reader.at(&name)).is_err(), "it is not there yet");
        fs::write(writer.at(&name), &text)?;
        ensure!(read(&reader.at(&name))? == text, "round {round}: not by its name");
        fs::rename(writer.at(&name), writer.at("moved"))?;
        ensure!(read(&reader.at("moved"))? == text, "round {round}: not after a rename");
        ensure!(fs::metadata(reader.at(&name)).is_err(), "round {round}: the old name is there");
    }
    drop(files);
    sites.end()
}

/// A log that programs at two sites append to at once. The kernel chooses the place of an append by
/// the size it knows; both sites wrote to the same place, and one's lines were gone.
#[test]
fn strict_appends_from_two_sites_are_all_kept() -> Result<()> {
    const LINES: usize = 15;
    let sites = Sites::new("append", "strict")?;
    fs::write(sites.one.at("log"), "")?;
    let both = Arc::new(Barrier::new(2));
    let appender = |server: &Server, who: &'static str| {
        let (path, both) = (server.at("log"), both.clone());
        std::thread::spawn(move || -> Result<()> {
            let mut file = OpenOptions::new().append(true).open(path)?;
            both.wait();
            for number in 0..LINES {
                file.write_all(format!("{who} {number}\n").as_bytes())?;
            }
            Ok(())
        })
    };
    let threads = [appender(&sites.one, "one"), appender(&sites.two, "two")];
    for thread in threads {
        thread.join().expect("no panic")?;
    }
    for server in [&sites.one, &sites.two] {
        let log = read(&server.at("log"))?;
        for who in ["one", "two"] {
            let own = log.lines().filter(|line| line.starts_with(who));
            let wanted: Vec<String> = (0..LINES).map(|number| format!("{who} {number}")).collect();
            ensure!(own.eq(wanted.iter().map(String::as_str)), "of {who}:\n{log}");
        }
        ensure!(log.lines().count() == 2 * LINES, "{log}");
    }
    sites.end()
}

/// A file is saved at one site, in place, by renaming another over it, or under a name that was not
/// there when the other site looked; after the close it is opened at the other site. What the kernel
/// there had been told before must not be what is opened.
#[test]
fn close_to_open_shows_at_an_open_what_was_closed_before() -> Result<()> {
    let sites = Sites::new("close-to-open", "close-to-open")?;
    fs::write(sites.one.at("place"), "begin")?;
    fs::write(sites.one.at("name"), "begin")?;
    fs::create_dir(sites.one.at("dir"))?;
    fs::write(sites.one.at("dir/in"), "begin")?;
    for round in 0..6 {
        let (writer, reader) = sites.turns(round);
        // The kernel there is told of all, and of an absence.
        for path in ["place", "name", "dir/in"] {
            read(&reader.at(path))?;
            fs::metadata(reader.at(path))?;
        }
        let new = format!("new-{round}");
        ensure!(File::open(reader.at(&new)).is_err(), "it is not there yet");

        let text = format!("round {round}: {}", "x".repeat(9000 * (round % 3)));
        fs::write(writer.at("place"), &text)?;
        ensure!(read(&reader.at("place"))? == text, "round {round}: written in place");
        let mut file = File::open(reader.at("place"))?;
        ensure!(file.metadata()?.len() == text.len() as u64, "round {round}: its size");
        let mut seen = String::new();
        file.read_to_string(&mut seen)?;
        ensure!(seen == text, "round {round}: read again");

        fs::write(writer.at("temporary"), &text)?;
        fs::rename(writer.at("temporary"), writer.at("name"))?;
        ensure!(read(&reader.at("name"))? == text, "round {round}: renamed over");

        fs::write(writer.at(&new), &text)?;
        ensure!(read(&reader.at(&new))? == text, "round {round}: made anew");

        // The directory on the way is another one.
        fs::create_dir(writer.at("dir.new"))?;
        fs::write(writer.at("dir.new/in"), &text)?;
        fs::rename(writer.at("dir"), writer.at(&format!("dir.{round}")))?;
        fs::rename(writer.at("dir.new"), writer.at("dir"))?;
        ensure!(read(&reader.at("dir/in"))? == text, "round {round}: another directory");
        let listed = fs::read_dir(reader.at("dir"))?.count();
        ensure!(listed == 1, "round {round}: {listed} names");
    }
    sites.end()
}

/// A router between the offices swallows all packets. What needs the latest state is refused, by a
/// name that says what is wrong and in the log, and neither hangs nor is made good for later: a
/// write that was refused stayed in memory, and was committed over another's when the line was back.
#[test]
fn a_cut_line_refuses_and_leaves_nothing_behind() -> Result<()> {
    let sites = Sites::new("cut", "strict")?;
    fs::write(sites.two.at("shared"), "before the cut")?;
    let file = OpenOptions::new().read(true).write(true).open(sites.one.at("shared"))?;
    ensure!(file.metadata()?.len() == 14, "both see it");

    sites.lines[0].proxy.stall();
    let refused = |what: &str, result: std::io::Result<()>| -> Result<()> {
        let error = result.err().with_context(|| format!("{what} is not refused"))?;
        ensure!(error.raw_os_error() == Some(EHOSTDOWN), "{what}: {error}");
        Ok(())
    };
    for _ in 0..2 {
        let handle = file.try_clone()?;
        let write = move || handle.write_all_at(b"refused", 0);
        refused("a write", within(REFUSED_WITHIN, "a write", write)?)?;
        let handle = file.try_clone()?;
        let cut = move || handle.set_len(3);
        refused("a cut", within(REFUSED_WITHIN, "a cut", cut)?)?;
        let handle = file.try_clone()?;
        let look = move || handle.read_at(&mut [0; 4], 0).map(|_| ());
        refused("a read", within(REFUSED_WITHIN, "a read", look)?)?;
        let path = sites.one.at("refused");
        let create = move || fs::write(path, "refused");
        refused("a creation", within(REFUSED_WITHIN, "a creation", create)?)?;
    }
    fs::write(sites.two.at("shared"), "meanwhile")?;
    let log = sites.one.process.log();
    ensure!(log.contains("the latest state cannot be had"), "nothing is said:\n{log}");
    within(REFUSED_WITHIN, "a close", move || drop(file))?;

    sites.lines[0].proxy.heal();
    wait_until("the line", READY, || read(&sites.one.at("shared")))?;
    ensure!(read(&sites.one.at("shared"))? == "meanwhile", "the other's write is gone");
    fs::write(sites.one.at("after"), "after")?;
    ensure!(read(&sites.two.at("shared"))? == "meanwhile", "a refused write was made good");
    ensure!(fs::metadata(sites.two.at("refused")).is_err(), "a refused creation was made good");
    sites.site.volume(sites.origin.port, &["check", VOLUME])?.success()?;
    sites.end()
}
