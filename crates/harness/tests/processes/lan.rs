//! A LAN of machines, each a network of its own at one switch, as the members of a group are in earnest: they find
//! each other by multicast, and one may go without a word, so that nothing closes its connections.

use crate::common::{VOLUME, binary, site, write_synced};
use crate::elections::{Work, assert_all, leader_of};
use anyhow::{Context, Result, bail, ensure};
use larder_harness::process::{Process, is_mounted, wait_until};
use larder_harness::site::{Server, Site};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const GROUP: &str = "lan";
const MULTICAST: &str = "239.255.47.85:4785";
const ORIGIN: &str = "10.77.0.1:4780";
const NAMES: [&str; 3] = ["ann", "ben", "cid"];

/// A network namespace, which is there for as long as its process.
struct Network {
    holder: Process,
}

impl Network {
    fn new(site: &Site, name: &str) -> Result<Self> {
        let words = ["--net", "sleep", "3600"].map(str::to_owned);
        let holder = Process::start(name, Path::new("unshare"), &words, &site.path(""))?;
        let own = fs::read_link("/proc/self/ns/net")?;
        let theirs = format!("/proc/{}/ns/net", holder.id());
        wait_until("a network of its own", LIMIT, || {
            ensure!(fs::read_link(&theirs)? != own, "it is ours");
            Ok(())
        })?;
        let network = Self { holder };
        network.ip("link set lo up")?;
        Ok(network)
    }

    fn entering(&self) -> [String; 3] {
        ["-t".into(), self.holder.id().to_string(), "-n".into()]
    }

    /// What a program printed there.
    fn run(&self, program: &Path, words: &[&str]) -> Result<String> {
        let mut command = Command::new("nsenter");
        let ended = command.args(self.entering()).arg(program).args(words).output()?;
        if !ended.status.success() {
            bail!("{} {words:?}: {}", program.display(), String::from_utf8_lossy(&ended.stderr));
        }
        Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
    }

    fn ip(&self, words: &str) -> Result<()> {
        let words: Vec<&str> = words.split_whitespace().collect();
        self.run(Path::new("ip"), &words).map(drop)
    }

    /// Starts a server there.
    fn serve(&self, site: &Site, name: &str, words: &[&str]) -> Result<Server> {
        let entering = self.entering();
        let entering: Vec<&str> = entering.iter().map(String::as_str).collect();
        site.start_as(name, Path::new("nsenter"), &entering, words)
    }
}

/// A switch, and the machines at it.
struct Switch(Network);

impl Switch {
    fn new(site: &Site) -> Result<Self> {
        let switch = Network::new(site, "switch")?;
        switch.ip("link add lan type bridge mcast_snooping 0")?;
        switch.ip("link set lan up")?;
        Ok(Self(switch))
    }

    /// A machine of this name, with an address.
    fn machine(&self, site: &Site, name: &str, address: &str) -> Result<Network> {
        let machine = Network::new(site, &format!("net-{name}"))?;
        let id = machine.holder.id();
        self.0.ip(&format!("link add {name} type veth peer name eth0 netns {id}"))?;
        self.0.ip(&format!("link set {name} master lan up"))?;
        machine.ip(&format!("addr add {address}/24 dev eth0"))?;
        machine.ip("link set eth0 up")?;
        machine.ip("route add 224.0.0.0/4 dev eth0")?;
        Ok(machine)
    }

    /// Pulls a machine's plug: nothing comes or goes, and nobody is told.
    fn pull(&self, name: &str) -> Result<()> {
        self.0.ip(&format!("link set {name} down"))
    }

    fn plug(&self, name: &str) -> Result<()> {
        self.0.ip(&format!("link set {name} up"))
    }
}

/// A member of the group at a machine of its own.
struct Member {
    machine: Network,
    mount: Server,
}

impl Member {
    fn mount(site: &Site, switch: &Switch, number: usize) -> Result<Self> {
        let (name, address) = (NAMES[number], format!("10.77.0.{}", 11 + number));
        site.issue_in(name, "relay", 30, &[GROUP])?;
        let machine = switch.machine(site, name, &address)?;
        let point = site.path(name);
        fs::create_dir_all(&point)?;
        let (at, listen) = (point.display().to_string(), format!("{address}:4785"));
        let words = ["mount", VOLUME, &at, "--foreground", "--name", name, "--parent", ORIGIN];
        let group = ["--group", GROUP, "--group-listen", &listen, "--group-multicast", MULTICAST];
        let mut mount = machine.serve(site, name, &[&words[..], &group].concat())?;
        mount.mounts_at(point.clone());
        wait_until("the mount", LIMIT, || {
            mount.process.alive()?;
            ensure!(is_mounted(&point)?, "it is not mounted");
            Ok(())
        })?;
        Ok(Self { machine, mount })
    }

    /// What `larder group` tells there.
    fn group(&self) -> Result<Value> {
        let http = format!("127.0.0.1:{}", self.mount.http);
        let told = self.machine.run(binary(), &["group", "--json", "--http", &http])?;
        Ok(serde_json::from_str(&told)?)
    }

    /// The redirector that it follows, once so many are there with it.
    fn redirector(&self, there: usize) -> Result<String> {
        let told = self.group()?;
        let known = told["election"]["there"].as_array().map_or(0, Vec::len);
        ensure!(known == there, "{known} are there: {told}");
        ensure!(told["redirected"] == true, "it follows nobody: {told}");
        Ok(leader_of(&told)?.to_owned())
    }
}

/// A group at a LAN, with its origin.
struct Lan {
    members: Vec<Member>,
    switch: Switch,
    machine: Network,
    origin: Server,
    site: Site,
}

impl Lan {
    fn new(name: &str) -> Result<Self> {
        let site = site(name)?;
        let switch = Switch::new(&site)?;
        let machine = switch.machine(&site, "origin", "10.77.0.1")?;
        let data = site.path("data").display().to_string();
        let words = ["origin", "--name", "origin", "--create", "--data", &data, "--listen", ORIGIN];
        let origin = machine.serve(&site, "origin", &words)?;
        let mut lan = Self { members: Vec::new(), switch, machine, origin, site };
        wait_until("the origin", LIMIT, || {
            lan.origin.process.alive()?;
            lan.volume(&["list"])
        })?;
        lan.volume(&["create", VOLUME])?;
        for number in 0..NAMES.len() {
            lan.members.push(Member::mount(&lan.site, &lan.switch, number)?);
        }
        Ok(lan)
    }

    fn volume(&self, words: &[&str]) -> Result<String> {
        let tls = self.site.tls();
        let identity = ["--tls", &tls, "--name", "admin", "--parent", ORIGIN];
        self.machine.run(binary(), &[&["volume"], words, &identity].concat())
    }

    /// The number of the redirector that these follow, who are so many.
    fn agreed(&self, members: &[usize], there: usize) -> Result<usize> {
        wait_until("one redirector", LIMIT, || {
            let each = members.iter().map(|member| self.members[*member].redirector(there));
            let each: Vec<String> = each.collect::<Result<_>>()?;
            ensure!(each.iter().all(|one| *one == each[0]), "they follow {each:?}");
            NAMES.iter().position(|name| *name == each[0]).context("one of ours")
        })
    }

    fn at(&self, member: usize, name: &str) -> PathBuf {
        self.members[member].mount.at(name)
    }

    fn end(mut self) -> Result<()> {
        for member in self.members.drain(..) {
            member.mount.stop()?;
        }
        self.volume(&["check", VOLUME])?;
        self.origin.stop()?;
        Ok(())
    }
}

/// Nobody names an address: members find each other by multicast. Then the redirector's machine is unplugged while
/// another member makes one durable file after the other. Its connections stand, and nobody says goodbye; the two that
/// are left have a redirector again, and lose nothing. Plugged in again it follows.
#[test]
fn a_machine_that_goes_without_a_word_is_replaced() -> Result<()> {
    let lan = Lan::new("lan-silent")?;
    let gone = lan.agreed(&[0, 1, 2], 3)?;
    let left = [(gone + 1) % 3, (gone + 2) % 3];
    let work = Work::begin(lan.at(left[0], "work"));
    std::thread::sleep(Duration::from_secs(2));
    lan.switch.pull(NAMES[gone])?;
    let begun = Instant::now();
    let next = lan.agreed(&left, 2)?;
    let took = begun.elapsed();
    ensure!(next != gone, "who is gone is followed");
    std::thread::sleep(Duration::from_secs(3));
    let (count, longest) = work.end()?;
    println!("another redirector after {took:?}; {count} files, the slowest took {longest:?}");
    ensure!(count > 10, "{count} files only");
    ensure!(longest < Duration::from_secs(10), "{longest:?} without a commit");
    assert_all(&lan.at(left[1], "work"), count)?;
    lan.switch.plug(NAMES[gone])?;
    let followed = lan.agreed(&[0, 1, 2], 3)?;
    ensure!(followed == next, "whoever comes back follows");
    assert_all(&lan.at(gone, "work"), count)?;
    lan.end()
}

/// The redirector's own way to the origin is cut, and nobody else's: it stayed the redirector, and nobody had anything
/// new (finding 428). Another one is it in its place, and works by a line of his own. Then the origin itself is away: a
/// first mend had the group taken apart by that.
#[test]
fn a_redirector_that_is_cut_off_is_replaced() -> Result<()> {
    let lan = Lan::new("lan-cut-off")?;
    let first = lan.agreed(&[0, 1, 2], 3)?;
    let other = (first + 1) % 3;
    let work = Work::begin(lan.at(other, "work"));
    std::thread::sleep(Duration::from_secs(2));
    let (origin, _) = ORIGIN.split_once(':').context("an address")?;
    let machine = &lan.members[first].machine;
    machine.ip(&format!("route add blackhole {origin}/32"))?;
    let begun = Instant::now();
    wait_until("another redirector", LIMIT, || {
        let next = lan.agreed(&[0, 1, 2], 3)?;
        ensure!(next != first, "who is cut off is followed");
        Ok(())
    })?;
    let took = begun.elapsed();
    let there = lan.members[other].group()?["election"]["there"].clone();
    let cut = there.as_array().context("who is there")?.iter().filter(|one| one["cut"] == true);
    let cut: Vec<&Value> = cut.map(|one| &one["name"]).collect();
    ensure!(cut == [NAMES[first]], "{cut:?} are named as cut");
    std::thread::sleep(Duration::from_secs(3));
    let (count, longest) = work.end()?;
    println!("another redirector after {took:?}; {count} files, the slowest took {longest:?}");
    ensure!(count > 10, "{count} files only");
    assert_all(&lan.at(first, "work"), count)?;
    write_synced(&lan.at(first, "here"), b"by another line")?;
    ensure!(fs::read(lan.at(other, "here"))? == b"by another line", "it came");
    machine.ip(&format!("route del blackhole {origin}/32"))?;
    let next = lan.agreed(&[0, 1, 2], 3)?;
    lan.switch.pull("origin")?;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(25) {
        for member in &lan.members {
            let told = member.group()?;
            ensure!(leader_of(&told)? == NAMES[next], "the group is taken apart: {told}");
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    lan.switch.plug("origin")?;
    write_synced(&lan.at(first, "again"), b"the origin is back")?;
    ensure!(lan.agreed(&[0, 1, 2], 3)? == next, "nothing has changed");
    lan.end()
}
