//! The processes: an origin of two domains whose store has a small disk of its own, a relay below it; a mount and a
//! node of transactions at each of two sites. The first site's mount is straight below the origin; all others are below the
//! relay, and the nodes are in a group of neighbours of which it is the redirector. Every link goes over a slow line of its
//! own. The version before knows neither groups nor transactions over two domains: a world that it begins has one domain
//! and no group.

use anyhow::{Context, Result, bail, ensure};
use larder_harness::ledger;
use larder_harness::process::{
    Folder, Process, free_port, http_get, is_mounted, unmount, wait_until,
};
use larder_harness::site::{Line, READY, Server, Site};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The volume of files.
pub(crate) const VOLUME: &str = "work";
/// The sites; a folder of the volume has its site's name.
pub(crate) const SITES: [&str; 2] = ["one", "two"];
/// Half of a round trip over each line.
pub(crate) const ONE_WAY: Duration = Duration::from_millis(3);
/// How long after a confirmed beat a child may call its state current.
pub(crate) const LEASE: Duration = Duration::from_millis(800);
/// A link from which nothing came for this long is closed.
pub(crate) const SILENCE: Duration = Duration::from_secs(2);
/// Mebibytes of the origin's disk: for each domain log segments of 64, and a reserve of 64; and pages.
const DISK_MIB: u32 = 896;
/// The group of neighbours.
const GROUP: &str = "lan";
/// What all are told, so that leases lapse and links are given up within a round.
const QUICK: [&str; 4] = ["--set", "link.silence_max=2s", "--set", "link.back_off_max=300ms"];
const QUICK_NODE: [&str; 2] = ["--set", "node.beat=100ms"];

/// One of the processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Origin,
    Relay,
    /// A site's mount.
    Mount(usize),
    /// A site's node of transactions, a writer of the ledger.
    Writer(usize),
}

pub(crate) const PARTS: [Part; 6] =
    [Part::Origin, Part::Relay, Part::Mount(0), Part::Mount(1), Part::Writer(0), Part::Writer(1)];

/// How many lines there are: the relay's, and one for each mount and writer.
pub(crate) const LINES: usize = 5;

impl Part {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Origin => "origin".into(),
            Self::Relay => "relay".into(),
            Self::Mount(site) => SITES[site].into(),
            Self::Writer(site) => format!("ledger-{}", SITES[site]),
        }
    }

    /// Its line to its parent.
    fn line(self) -> usize {
        match self {
            Self::Origin | Self::Relay => 0,
            Self::Mount(site) => 1 + site,
            Self::Writer(site) => 3 + site,
        }
    }
}

/// Whose line it is.
pub(crate) fn line_of(line: usize) -> String {
    let part =
        PARTS[1..].iter().find(|part| part.line() == line).expect("every line is somebody's");
    part.name()
}

/// A small file system in memory; it goes with this.
struct Disk(PathBuf);

impl Disk {
    fn new(at: &Path) -> Result<Self> {
        std::fs::create_dir_all(at)?;
        let size = format!("size={DISK_MIB}m");
        let words = ["-t", "tmpfs", "-o", &size, "larder-crash"];
        run(Command::new("mount").args(words).arg(at))?;
        Ok(Self(at.into()))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(&self.0);
    }
}

/// What the origin may keep of pages, its page engine, and a mount, so that they are full soon.
pub(crate) const ORIGIN_MIB: u64 = 16;
pub(crate) const ENGINE_MIB: u64 = 12;
pub(crate) const NODE_MIB: u64 = 32;

/// How soon leases lapse and lines are given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    /// Within a round.
    Quick,
    /// As it is shipped.
    Shipped,
}

/// Fields are dropped in their order: what is mounted first, so that nobody is waited for who waits
/// for a mount.
pub(crate) struct World {
    mounts: Vec<Server>,
    /// Processes that work on the mounts.
    pub(crate) workers: Vec<Process>,
    /// Processes that lock and unlock a file of theirs.
    pub(crate) lockers: Vec<Process>,
    writers: Vec<Process>,
    relay: Option<Server>,
    origin: Option<Server>,
    pub(crate) lines: Vec<Line>,
    disk: Disk,
    pub(crate) site: Site,
    ports: [u16; 2],
    seed: u64,
    pace: Pace,
    /// How many domains it has, and shares the ledger has; and the name of the group, if there is one.
    shares: usize,
    group: &'static str,
    /// Starts that were refused since the one before of that name was not known to be gone.
    pub(crate) refused_starts: u32,
    /// How often the origin had to be started again since its disk had run full to the brim.
    pub(crate) ended_services: u32,
}

impl World {
    /// Starts all, in a folder that is kept at the end if LARDER_KEEP is set, or `keep`.
    pub(crate) fn new(binary: &Path, seed: u64, pace: Pace, keep: bool) -> Result<Self> {
        let site = Site::apart(binary, Folder::new("crash", keep)?)?;
        let (shares, group) = if site.is_of_this_build() { (2, GROUP) } else { (1, "") };
        let groups: &[&str] = if group.is_empty() { &[] } else { &[group] };
        for writer in 0..ledger::WRITERS {
            site.issue_in(&Part::Writer(writer).name(), "node", 30, groups)?;
        }
        if !group.is_empty() {
            let words = ["ca", "renew", "relay", "--group", group, "--tls", &site.tls()];
            site.larder(&words)?.success()?;
        }
        let ports = [free_port()?, free_port()?];
        let first_writer = if group.is_empty() { ports[0] } else { ports[1] };
        let parents = [ports[0], ports[0], ports[1], first_writer, ports[1]];
        let lines = parents.iter().map(|port| Line::to(*port, ONE_WAY));
        let mut world = Self {
            mounts: Vec::new(),
            workers: Vec::new(),
            lockers: Vec::new(),
            writers: Vec::new(),
            relay: None,
            origin: None,
            lines: lines.collect::<Result<_>>()?,
            disk: Disk::new(&site.path("disk"))?,
            site,
            ports,
            seed,
            pace,
            shares,
            group,
            refused_starts: 0,
            ended_services: 0,
        };
        world.start(Part::Origin)?;
        world.ready(Part::Origin)?;
        world.make_volumes()?;
        for part in &PARTS[1..] {
            world.start(*part)?;
        }
        for part in PARTS {
            world.ready(part)?;
        }
        world.writers_go_on()?;
        world.writers_are_neighbours()?;
        Ok(world)
    }

    /// Waits until the writers have linked to each other, where they are in a group.
    fn writers_are_neighbours(&self) -> Result<()> {
        if self.group.is_empty() {
            return Ok(());
        }
        let relay = self.relay.as_ref().expect("it was started");
        wait_until("the writers to reach each other", READY, || {
            let status = relay.status()?;
            let members = status["group"]["members"].as_array().map_or(&[][..], Vec::as_slice);
            let reaching = members.iter().filter(|one| one["reaches"] == ledger::WRITERS - 1);
            ensure!(reaching.count() == ledger::WRITERS, "{}", status["group"]);
            Ok(())
        })
    }

    fn make_volumes(&self) -> Result<()> {
        let empty = self.site.path("empty");
        std::fs::create_dir_all(&empty)?;
        for site in SITES {
            std::fs::create_dir(empty.join(site))?;
        }
        let from = empty.display().to_string();
        self.volume(&["import", VOLUME, &from, "--create"])?;
        let (tls, parent) = (self.site.tls(), self.at_origin());
        let made = ledger::create(Path::new(&tls), &parent, self.shares);
        larder_harness::site::runtime().block_on(made)
    }

    /// Where the origin serves.
    pub(crate) fn at_origin(&self) -> String {
        format!("127.0.0.1:{}", self.ports[0])
    }

    /// Where the origin answers HTTP.
    pub(crate) fn origin_http(&self) -> u16 {
        self.origin.as_ref().expect("it was started").http
    }

    /// Where a site's mount answers HTTP.
    pub(crate) fn mount_http(&self, site: usize) -> u16 {
        self.mounts[site].http
    }

    /// Where the origin's store is.
    pub(crate) fn data(&self) -> PathBuf {
        self.disk.0.join("data")
    }

    /// Where a site's volume is mounted.
    pub(crate) fn mounted(&self, site: usize) -> PathBuf {
        self.site.path(SITES[site])
    }

    pub(crate) fn journals(&self) -> Vec<PathBuf> {
        let journal = |writer| self.site.path(&format!("journal-{writer}"));
        (0..ledger::WRITERS).map(journal).collect()
    }

    /// Runs `larder volume …`, straight at the origin.
    pub(crate) fn volume(&self, words: &[&str]) -> Result<String> {
        let end = Instant::now() + READY;
        loop {
            let ended = self.site.volume(self.ports[0], words)?;
            // Unavailable, says the help: a loaded machine is late for leases as short as these.
            if ended.code != Some(5) || Instant::now() > end {
                return ended.success();
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Starts a part, whose last life is over, and does not wait for it.
    pub(crate) fn start(&mut self, part: Part) -> Result<()> {
        let name = part.name();
        let parent = format!("127.0.0.1:{}", self.lines[part.line()].port());
        match part {
            Part::Origin => {
                let (data, listen) = (self.data(), self.at_origin());
                let path = data.display().to_string();
                let lease = format!("origin.lease={}ms", LEASE.as_millis());
                let domains = self.shares.to_string();
                let words = ["origin", "--name", "origin", "--data", &path, "--listen", &listen];
                let words = [&words[..], &["--domains", &domains]].concat();
                let pages = format!("origin.memory={ORIGIN_MIB}MiB");
                let engine = format!("origin.engine_memory={ENGINE_MIB}MiB");
                let small = self.small(&[&pages, &engine]);
                let lease = ["--set", &*lease];
                let create: &[&str] = if data.exists() { &[] } else { &["--create"] };
                let quick = self.quick(&[&lease, &QUICK]);
                let words = [&words[..], &small, &quick, create].concat();
                self.origin = Some(self.site.start("origin", &words)?);
            }
            Part::Relay => {
                let listen = format!("127.0.0.1:{}", self.ports[1]);
                let words = ["relay", "--name", "relay", "--parent", &parent, "--listen", &listen];
                let small = self.small(&["relay.recent_memory=2MiB"]);
                let group: &[&str] =
                    if self.group.is_empty() { &[] } else { &["--group", self.group] };
                let words = [&words[..], &small, &self.quick(&[&QUICK]), group].concat();
                self.relay = Some(self.site.start("relay", &words)?);
            }
            Part::Mount(site) => {
                let point = self.mounted(site);
                std::fs::create_dir_all(&point)?;
                let at = point.display().to_string();
                let words =
                    ["mount", VOLUME, &at, "--foreground", "--name", &name, "--parent", &parent];
                let copies = format!("node.memory={NODE_MIB}MiB");
                let small = self.small(&[&copies]);
                let words = [&words[..], &small, &self.quick(&[&QUICK, &QUICK_NODE])].concat();
                let mut server = self.site.start(&name, &words)?;
                server.mounts_at(point);
                put(&mut self.mounts, site, server);
            }
            Part::Writer(writer) => {
                let journal = self.journals()[writer].display().to_string();
                let tls = self.site.tls();
                let words = ["ledger-writer", &tls, &name, &parent, self.group].map(str::to_owned);
                let more = [self.seed.to_string(), writer.to_string(), journal];
                let words = [&words[..], &more].concat();
                let process = self.worker(&name, &words)?;
                put(&mut self.writers, writer, process);
            }
        }
        Ok(())
    }

    /// These settings, so small that what fills up with work is full long before a soak is over. The
    /// version before does not know all of them.
    fn small<'a>(&self, settings: &[&'a str]) -> Vec<&'a str> {
        let known = settings.iter().filter(|_| self.site.is_of_this_build());
        known.flat_map(|setting| ["--set", setting]).collect()
    }

    /// These settings, if leases are to lapse within a round.
    fn quick<'a>(&self, settings: &[&[&'a str]]) -> Vec<&'a str> {
        if self.pace == Pace::Quick { settings.concat() } else { Vec::new() }
    }

    /// Starts this program as a worker.
    pub(crate) fn worker(&self, name: &str, words: &[String]) -> Result<Process> {
        Process::start_apart(name, &std::env::current_exe()?, words, &self.site.path("."))
    }

    fn server(&mut self, part: Part) -> Option<&mut Server> {
        match part {
            Part::Origin => self.origin.as_mut(),
            Part::Relay => self.relay.as_mut(),
            Part::Mount(site) => self.mounts.get_mut(site),
            Part::Writer(_) => None,
        }
    }

    pub(crate) fn process(&mut self, part: Part) -> &mut Process {
        match part {
            Part::Writer(writer) => &mut self.writers[writer],
            part => &mut self.server(part).expect("all were started").process,
        }
    }

    /// Waits until a part that was started, or that went on, serves.
    pub(crate) fn ready(&mut self, part: Part) -> Result<()> {
        if matches!(part, Part::Writer(_)) {
            return self.process(part).alive();
        }
        let end = Instant::now() + READY;
        loop {
            let server = self.server(part).expect("all were started");
            if let Some(status) = server.process.status()? {
                // The one of this name that was killed may not be known to be gone (P12).
                let refused = matches!(status.code(), Some(4 | 5)) && part != Part::Origin;
                if !refused || Instant::now() > end {
                    bail!("{} ended with {status}:\n{}", part.name(), server.process.tail());
                }
                self.refused_starts += 1;
                std::thread::sleep(Duration::from_millis(50));
                self.start(part)?;
                continue;
            }
            let answer = http_get(server.http, "/readyz");
            let stands = server.point.as_ref().is_none_or(|at| is_mounted(at).unwrap_or(false));
            match answer {
                Ok(_) if stands => return Ok(()),
                answer if Instant::now() > end => {
                    let tail = server.process.tail();
                    answer.with_context(|| format!("{} is not ready:\n{tail}", part.name()))?;
                    bail!("{} is ready and not mounted", part.name());
                }
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// What an operator does about a domain that ended its service, and says so.
    pub(crate) fn restart_if_it_ended_service(&mut self) -> Result<()> {
        let http = self.origin_http();
        let serves = wait_until("the origin", SILENCE, || http_get(http, "/readyz"));
        if serves.is_err() {
            self.ended_services += 1;
            self.process(Part::Origin).kill();
            self.start(Part::Origin)?;
        }
        Ok(())
    }

    /// Takes room from the origin's disk until `free` bytes are left.
    pub(crate) fn fill(&self, free: u64) -> Result<()> {
        let about = rustix::fs::statvfs(&self.disk.0)?;
        let bytes = (about.f_bavail * about.f_frsize).saturating_sub(free);
        if bytes == 0 {
            return Ok(());
        }
        let file = std::fs::File::create(self.disk.0.join("ballast"))?;
        let none = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(&file, none, 0, bytes) {
            // The origin took some of it meanwhile: it is as full as can be.
            Err(rustix::io::Errno::NOSPC) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Gives that room back.
    pub(crate) fn free(&self) -> Result<()> {
        match std::fs::remove_file(self.disk.0.join("ballast")) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Waits until every writer has had another transfer acknowledged.
    pub(crate) fn writers_go_on(&mut self) -> Result<()> {
        let journals = self.journals();
        let length = |at: usize| std::fs::metadata(&journals[at]).map_or(0, |file| file.len());
        let before: Vec<u64> = (0..ledger::WRITERS).map(length).collect();
        let writers = &mut self.writers;
        wait_until("another transfer of each writer", READY, || {
            for (at, writer) in writers.iter_mut().enumerate() {
                ensure!(length(at) > before[at], "{} stands still", writer.tail());
            }
            Ok(())
        })?;
        self.writers.iter_mut().try_for_each(Process::alive)
    }

    /// Ends all in order, and starts another build's origin on the store, which it must refuse: what it
    /// says then. It must leave the store as it is, for this version's.
    pub(crate) fn stop_and_refuse(mut self, old: &Path, new: &Path) -> Result<String> {
        self.end()?;
        self.site.use_binary(old);
        self.start(Part::Origin)?;
        let origin = self.process(Part::Origin);
        let code =
            origin.ended(READY).context("it runs on a store of a version it does not know")?;
        ensure!(code != Some(0), "it ended with success");
        let said = origin.tail().lines().last().unwrap_or_default().to_owned();
        ensure!(said.contains("version"), "it does not say why: {said}");
        self.site.use_binary(new);
        self.start(Part::Origin)?;
        self.ready(Part::Origin)?;
        self.end().context("after the version before had looked at it")?;
        Ok(said)
    }

    /// Ends all in order, and checks the volume with no node there.
    pub(crate) fn stop(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        self.workers.clear();
        for mount in self.mounts.drain(..) {
            mount.stop()?;
        }
        self.writers.clear();
        self.volume(&["check", VOLUME, "--free-orphans", "0s"])?;
        for server in [self.relay.take(), self.origin.take()].into_iter().flatten() {
            server.stop()?;
        }
        Ok(())
    }
}

fn put<T>(list: &mut Vec<T>, at: usize, value: T) {
    match list.get_mut(at) {
        Some(place) => *place = value,
        None => list.push(value),
    }
}

/// Runs a program to its end, for [`READY`] at most.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let mut child = command.stdin(Stdio::null()).spawn()?;
    let end = Instant::now() + READY;
    loop {
        if let Some(status) = child.try_wait()? {
            ensure!(status.success(), "{command:?} ended with {status}");
            return Ok(());
        }
        if Instant::now() > end {
            child.kill()?;
            bail!("{command:?} did not end within {READY:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
