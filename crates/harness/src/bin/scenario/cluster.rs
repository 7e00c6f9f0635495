//! The processes of the scenario: origin, relay, two mounted nodes, 40 ms between relay and origin.

use anyhow::{Context, Result, ensure};
use larder::testing::proxy::Proxy;
use larder_harness::process::{Process, free_port, http_get, is_mounted, unmount, wait_until};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Half of the 40 ms round trip between relay and origin.
const ONE_WAY: Duration = Duration::from_millis(20);
/// The longest that anything may take that must come about. Only a broken build takes as long: on
/// a loaded machine things take many times what they take on an idle one.
pub(crate) const READY: Duration = Duration::from_secs(120);

/// One of the processes that are killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    Origin,
    Relay,
    SiteOne,
    SiteTwo,
}

struct Member {
    part: Part,
    arguments: Vec<String>,
    http: u16,
    process: Option<Process>,
}

pub(crate) struct Cluster {
    binary: PathBuf,
    folder: PathBuf,
    members: Vec<Member>,
    pub(crate) proxy: Proxy,
    pub(crate) origin_port: u16,
    pub(crate) relay_port: u16,
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Part {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Origin => "origin",
            Self::Relay => "relay",
            Self::SiteOne => "site-one",
            Self::SiteTwo => "site-two",
        }
    }
}

impl Cluster {
    /// Makes the certificates and starts the origin and the relay.
    pub(crate) async fn start(binary: &Path, folder: &Path) -> Result<Self> {
        let tls = folder.join("tls").display().to_string();
        run(binary, &strings(&["ca", "init", "--tls", &tls]))?;
        for name in ["origin", "relay", "site-one", "site-two", "admin", "ledger-one", "ledger-two"]
        {
            let role = if matches!(name, "origin" | "relay") { name } else { "node" };
            let issue = ["ca", "issue", name, "--tls", &tls, "--role", role];
            run(binary, &strings(&issue))?;
        }
        let (origin_port, relay_port) = (free_port()?, free_port()?);
        let proxy =
            Proxy::start("127.0.0.1:0", &format!("127.0.0.1:{origin_port}"), ONE_WAY).await?;
        let mut cluster = Self {
            binary: binary.into(),
            folder: folder.into(),
            members: Vec::new(),
            proxy,
            origin_port,
            relay_port,
        };
        let data = folder.join("origin").display().to_string();
        let listen = format!("127.0.0.1:{origin_port}");
        let origin = ["origin", "--data", &data, "--create", "--listen", &listen];
        cluster.add(Part::Origin, &origin)?;
        // For the first start alone.
        cluster.members[0].arguments.retain(|word| word != "--create");
        let listen = format!("127.0.0.1:{relay_port}");
        let parent = cluster.proxy.address().to_string();
        cluster.add(Part::Relay, &["relay", "--parent", &parent, "--listen", &listen])?;
        Ok(cluster)
    }

    fn add(&mut self, part: Part, words: &[&str]) -> Result<()> {
        let http = free_port()?;
        let mut arguments = strings(words);
        let tls = self.folder.join("tls").display().to_string();
        arguments.extend(strings(&["--tls", &tls, "--name", part.name()]));
        arguments.extend(["--http".to_owned(), format!("127.0.0.1:{http}")]);
        self.members.push(Member { part, arguments, http, process: None });
        self.restart(part)
    }

    /// Mounts `volume` as one of the two sites, through the relay.
    pub(crate) fn mount(&mut self, part: Part, volume: &str) -> Result<()> {
        let point = self.mount_point(part);
        std::fs::create_dir_all(&point)?;
        let parent = format!("127.0.0.1:{}", self.relay_port);
        let point = point.display().to_string();
        self.add(part, &["mount", volume, &point, "--foreground", "--parent", &parent])
    }

    pub(crate) fn mount_point(&self, part: Part) -> PathBuf {
        self.folder.join(part.name())
    }

    pub(crate) fn http(&self, part: Part) -> u16 {
        self.member(part).http
    }

    fn member(&self, part: Part) -> &Member {
        self.members.iter().find(|member| member.part == part).expect("the part was added")
    }

    /// Kills a part as a power cut would.
    pub(crate) fn kill(&mut self, part: Part) {
        let member = self.members.iter_mut().find(|m| m.part == part).expect("the part was added");
        if let Some(mut process) = member.process.take() {
            process.kill();
        }
        if matches!(part, Part::SiteOne | Part::SiteTwo) {
            unmount(&self.mount_point(part));
        }
    }

    /// Starts a part and waits until it is ready.
    pub(crate) fn restart(&mut self, part: Part) -> Result<()> {
        let (binary, folder) = (self.binary.clone(), self.folder.clone());
        let member = self.members.iter_mut().find(|m| m.part == part).expect("the part was added");
        let mut process = Process::start(part.name(), &binary, &member.arguments, &folder)?;
        let http = member.http;
        let ready = wait_until(part.name(), READY, || {
            process.alive()?;
            http_get(http, "/readyz")
        });
        ready.with_context(|| format!("{} is not ready:\n{}", part.name(), process.tail()))?;
        member.process = Some(process);
        if matches!(part, Part::SiteOne | Part::SiteTwo) {
            let point = self.mount_point(part);
            wait_until("the mount", READY, || {
                ensure!(is_mounted(&point)?, "{} is not mounted", point.display());
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Waits until a child of the relay that was killed is not there any more: until then its
    /// name is taken, and the one that comes in its place is refused (P12).
    pub(crate) fn gone(&self, name: &str) -> Result<()> {
        wait_until(&format!("the end of {name}"), READY, || {
            let status = http_get(self.http(Part::Relay), "/status")?;
            let status: serde_json::Value = serde_json::from_str(&status)?;
            let children = status["children"].as_array().context("a relay lists its children")?;
            ensure!(children.iter().all(|child| child["name"] != name), "{name} is still there");
            Ok(())
        })
    }

    /// Every part must still run.
    pub(crate) fn alive(&mut self) -> Result<()> {
        self.members
            .iter_mut()
            .filter_map(|member| member.process.as_mut())
            .try_for_each(Process::alive)
    }

    /// Runs `larder volume ...` as the administrator, straight at the origin.
    pub(crate) fn volume(&self, words: &[&str]) -> Result<String> {
        let tls = self.folder.join("tls").display().to_string();
        let parent = format!("127.0.0.1:{}", self.origin_port);
        let mut arguments = strings(&["volume"]);
        arguments.extend(strings(words));
        arguments.extend(strings(&["--tls", &tls, "--name", "admin", "--parent", &parent]));
        run(&self.binary, &arguments)
    }

    /// Ends everything in order: mounts, relay, origin.
    pub(crate) fn stop(mut self) -> Result<()> {
        while let Some(mut member) = self.members.pop() {
            if let Some(process) = member.process.take() {
                process.stop(READY)?;
            }
        }
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        while let Some(mut member) = self.members.pop() {
            drop(member.process.take());
        }
        for part in [Part::SiteOne, Part::SiteTwo] {
            unmount(&self.mount_point(part));
        }
    }
}

/// Runs the binary to its end; its output.
pub(crate) fn run(binary: &Path, arguments: &[String]) -> Result<String> {
    let output = Command::new(binary).args(arguments).output()?;
    ensure!(
        output.status.success(),
        "larder {} ended with {}:\n{}{}",
        arguments.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
