//! A LAN of machines, each a network of its own at one switch, as the members of a group are in earnest: they find
//! each other by multicast, and one may go without a word, so that nothing closes its connections.

use crate::common::{VOLUME, binary, site};
use crate::elections::{Work, assert_all, leader_of};
use anyhow::{Context, Result, bail, ensure};
use larder_harness::process::{Process, is_mounted, wait_until};
use larder_harness::site::{Server, Site};
use serde_json::Value;
use std::fs;
use std::path::Path;
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

/// Nobody names an address: members find each other by multicast. Then the redirector's machine is unplugged while
/// another member makes one durable file after the other. Its connections stand, and nobody says goodbye; the two that
/// are left have a redirector again, and lose nothing. Plugged in again it follows.
#[test]
fn a_machine_that_goes_without_a_word_is_replaced() -> Result<()> {
    let site = site("lan")?;
    let switch = Switch::new(&site)?;
    let machine = switch.machine(&site, "origin", "10.77.0.1")?;
    let data = site.path("data").display().to_string();
    let words = ["origin", "--name", "origin", "--create", "--data", &data, "--listen", ORIGIN];
    let mut origin = machine.serve(&site, "origin", &words)?;
    let tls = site.tls();
    let volume = |words: &[&str]| {
        let identity = ["--tls", &tls, "--name", "admin", "--parent", ORIGIN];
        machine.run(binary(), &[&["volume"], words, &identity].concat())
    };
    wait_until("the origin", LIMIT, || {
        origin.process.alive()?;
        volume(&["list"])
    })?;
    volume(&["create", VOLUME])?;
    let members: Vec<Member> = (0..NAMES.len())
        .map(|number| Member::mount(&site, &switch, number))
        .collect::<Result<_>>()?;
    let agreed = |members: &[&Member], there: usize| {
        wait_until("one redirector", LIMIT, || {
            let each = members.iter().map(|member| member.redirector(there));
            let each: Vec<String> = each.collect::<Result<_>>()?;
            ensure!(each.iter().all(|one| *one == each[0]), "they follow {each:?}");
            Ok(each[0].clone())
        })
    };
    let first = agreed(&members.iter().collect::<Vec<_>>(), 3)?;
    let gone = NAMES.iter().position(|name| *name == first).context("one of ours")?;
    let left: Vec<&Member> =
        (0..NAMES.len()).filter(|number| *number != gone).map(|number| &members[number]).collect();
    let work = Work::begin(left[0].mount.at("work"));
    std::thread::sleep(Duration::from_secs(2));
    switch.pull(&first)?;
    let begun = Instant::now();
    let next = agreed(&left, 2)?;
    let took = begun.elapsed();
    ensure!(next != first, "who is gone is followed");
    std::thread::sleep(Duration::from_secs(3));
    let (count, longest) = work.end()?;
    println!("another redirector after {took:?}; {count} files, the slowest took {longest:?}");
    ensure!(count > 10, "{count} files only");
    ensure!(longest < Duration::from_secs(10), "{longest:?} without a commit");
    assert_all(&left[1].mount.at("work"), count)?;
    switch.plug(&first)?;
    let followed = agreed(&members.iter().collect::<Vec<_>>(), 3)?;
    ensure!(followed == next, "whoever comes back follows, and not {followed}");
    assert_all(&members[gone].mount.at("work"), count)?;
    for member in members {
        member.mount.stop()?;
    }
    volume(&["check", VOLUME])?;
    origin.stop()?;
    Ok(())
}
