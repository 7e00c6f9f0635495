//! A process's seat in its group: who is there, and who is the redirector (decision 0036). It drives the machine
//! of membership, and carries its datagrams.

use super::discovery;
use super::line::OwnLine;
use crate::clock::{now, random_u128};
use crate::config::{GroupSection, LinkConfig};
use crate::host::Inputs;
use crate::tls::{Credentials, Protocol};
use crate::transport::{Datagrams, Guests};
use bytes::Bytes;
use larder_core::cache::Cache;
use larder_core::cache::io::CacheInput;
use larder_core::group::membership::{
    Candidacy, Membership, MembershipConfig, MembershipInput, MembershipOutput, Participant,
};
use larder_core::id::BootId;
use larder_core::machine::Machine;
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UdpSocket, lookup_host};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

/// Datagrams that wait for the machine.
const WAITING_MAX: usize = 256;
/// A machine is woken this late at most.
const WAKE_MAX: Duration = Duration::from_secs(1);
/// Of nobody that is followed by then it is known that there is nobody. Whoever may be elected has claimed by then.
const UNKNOWN_MAX: Duration = Duration::from_secs(1);
/// How long it may take until the others know that this process leaves, and have another redirector.
const LEAVE_LIMIT: Duration = Duration::from_millis(300);
/// Between two attempts to find out by which address this process is reached.
const ADDRESS_EVERY: Duration = Duration::from_secs(1);
/// The same once it is known: it may change.
const ADDRESS_AGAIN: Duration = Duration::from_secs(10);
/// How long a name may take to be resolved.
const ADDRESS_LIMIT: Duration = Duration::from_secs(2);
/// Addresses beyond every network that there is (RFC 5737, RFC 3849): what leads there leads outward.
const BEYOND: &str = "192.0.2.1:9";
const BEYOND_IPV6: &str = "[2001:db8::1]:9";

/// Who takes a seat.
pub(crate) struct Candidate {
    pub(crate) section: GroupSection,
    /// As its certificate proves it.
    pub(crate) name: String,
    /// Where it listens, for whoever is of the group.
    pub(crate) listen: SocketAddr,
    /// It is a relay for good, and not beside a cache.
    pub(crate) is_relay: bool,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) link: LinkConfig,
    pub(crate) line: OwnLine,
    /// Whether its link to the redirector broke, and none has stood since; none: it is linked to none.
    pub(crate) broke: Option<watch::Receiver<bool>>,
    /// A member, whose neighbours reach it there too.
    pub(crate) member: Option<Inputs<Cache>>,
}

impl Candidate {
    /// Whether it may be the redirector: its certificate may have been renewed, and lost its role.
    fn candidacy(&self) -> Candidacy {
        let may_serve = self.credentials.current().server(Protocol::Tree).is_some();
        match self.is_relay {
            true => self.section.role.of_relay(may_serve),
            false => self.section.role.of_node(may_serve),
        }
    }
}

/// Who is the redirector, as this process sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Followed {
    /// It has just begun to look.
    Unknown,
    /// Nobody.
    Nobody {
        /// Somebody is there who may be elected: there will be one in a moment.
        awaited: bool,
    },
    /// This process, which listens there.
    Own(String),
    /// Who listens there.
    Other(String),
}

enum Ask {
    Leave(oneshot::Sender<()>),
    Look(oneshot::Sender<Value>),
}

/// Has a process leave its group.
pub(crate) struct Leaver(mpsc::Sender<Ask>);

impl Leaver {
    /// Says that this process leaves, so that it is not missed.
    pub(crate) async fn leave(&self) {
        let (done, left) = oneshot::channel();
        if self.0.send(Ask::Leave(done)).await.is_ok() && left.await.is_ok() {
            sleep(LEAVE_LIMIT).await;
        }
    }
}

/// A seat that is taken: given up when dropped, without a word.
pub(crate) struct Seat {
    asks: mpsc::Sender<Ask>,
    followed: watch::Receiver<Followed>,
    task: AbortHandle,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Seat {
    /// Takes part from now on. Others of the group come in as `guests`.
    pub(crate) fn take(candidate: Candidate, guests: &Guests) -> Self {
        let (asks, asked) = mpsc::channel(4);
        let (follows, followed) = watch::channel(Followed::Unknown);
        let sits = sit(candidate, guests.clone(), asked, follows);
        Self { asks, followed, task: tokio::spawn(sits).abort_handle() }
    }

    /// Who is the redirector, from now on.
    pub(crate) fn followed(&self) -> watch::Receiver<Followed> {
        self.followed.clone()
    }

    /// Whether this process is the redirector.
    pub(crate) fn leads(&self) -> bool {
        matches!(*self.followed.borrow(), Followed::Own(_))
    }

    /// Says that this process leaves, so that it is not missed.
    pub(crate) async fn leave(&self) {
        self.leaver().leave().await;
    }

    /// Whoever has it leave.
    pub(crate) fn leaver(&self) -> Leaver {
        Leaver(self.asks.clone())
    }

    /// Waits until it is given up: it has left, or a broken invariant has ended it.
    pub(crate) async fn ended(&self) {
        self.asks.closed().await;
    }

    /// Whether that has happened.
    pub(crate) fn has_ended(&self) -> bool {
        self.asks.is_closed()
    }

    /// What is to be seen of it.
    pub(crate) async fn told(&self) -> Value {
        let (send, told) = oneshot::channel();
        if self.asks.try_send(Ask::Look(send)).is_err() {
            return Value::Null;
        }
        timeout(WAKE_MAX, told).await.ok().and_then(Result::ok).unwrap_or_default()
    }
}

/// A task that ends with whoever started it.
struct Owned(AbortHandle);

impl Drop for Owned {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn sit(
    candidate: Candidate,
    guests: Guests,
    mut asked: mpsc::Receiver<Ask>,
    follows: watch::Sender<Followed>,
) {
    let unknown_until = Instant::now() + UNKNOWN_MAX;
    loop {
        let told = (unknown_until, &follows);
        let Some(address) = begin(&candidate, &mut asked, told).await else { return };
        if let Some(member) = &candidate.member
            && member.send(CacheInput::Reachable(address.clone())).await.is_err()
        {
            return;
        }
        let sitting = Sitting::begin(&candidate, &guests, address);
        if !sitting.run(&candidate, &mut asked, told).await {
            return;
        }
    }
}

/// A seat under one address, with one right to be elected. Under another one the process is another participant.
struct Sitting {
    machine: Membership,
    own: Participant,
    datagrams: Datagrams,
    coming: mpsc::Receiver<(String, Bytes)>,
    finding: mpsc::Receiver<String>,
    /// The last look at its own line, and where it says what it found.
    looks: Option<Owned>,
    looked: (mpsc::Sender<bool>, mpsc::Receiver<bool>),
    /// It is known to be cut, as was logged last.
    cut: bool,
    /// Carries datagrams, and looks for others.
    _tasks: Vec<Owned>,
}

impl Sitting {
    fn begin(candidate: &Candidate, guests: &Guests, address: String) -> Self {
        let Candidate { section, name, credentials, link, .. } = candidate;
        let group = section.group().expect("who takes a seat is of a group");
        let candidacy = candidate.candidacy();
        tracing::info!(%group, %address, ?candidacy, "others of the group reach this process there");
        let (came, coming) = mpsc::channel(WAITING_MAX);
        let (datagrams, incoming, carries) =
            Datagrams::start(address.clone(), credentials.clone(), link.clone(), came);
        guests.let_datagrams_in(incoming);
        let (found, finding) = mpsc::channel(WAITING_MAX);
        let looks = discovery::start(section, group, &address, found);
        let life = BootId(random_u128());
        let own = Participant { life, name: name.clone(), address, candidacy };
        let seeds = section.seeds().map(str::to_owned).collect();
        let mut config = MembershipConfig { seeds, ..MembershipConfig::new(group, own.clone()) };
        // Nobody is cut who still connects, and no look is given up before it has ended.
        config.line.begun_after = config.line.begun_after.max(link.connect_limit.0 * 3 / 2);
        let machine = Membership::new(config);
        let tasks = std::iter::once(carries).chain(looks).map(Owned).collect();
        let (looks, looked, cut) = (None, mpsc::channel(1), false);
        Self { machine, own, datagrams, coming, finding, looks, looked, cut, _tasks: tasks }
    }

    /// Takes part until the process is to be another participant (true), or ends.
    async fn run(
        mut self,
        candidate: &Candidate,
        asked: &mut mpsc::Receiver<Ask>,
        (unknown_until, follows): (Instant, &watch::Sender<Followed>),
    ) -> bool {
        let mut outputs = Vec::new();
        let own = self.own.clone();
        let mut changes = std::pin::pin!(candidate.is_another(&own));
        let (mut line, mut broke) = (candidate.line.clone(), candidate.broke.clone());
        loop {
            self.carry_out(&mut outputs, candidate, follows);
            self.tells_of_its_line();
            is_nobody(unknown_until, follows);
            let wake = self.machine.next_timeout();
            let next = wake.map_or(WAKE_MAX, |wake| wake.since(now()).min(WAKE_MAX));
            tokio::select! {
                biased;
                ask = asked.recv() => match ask {
                    Some(Ask::Leave(done)) => {
                        self.machine.handle(now(), MembershipInput::Leave, &mut outputs);
                        self.carry_out(&mut outputs, candidate, follows);
                        let _ = done.send(());
                        // What was said goes out; the seat is not taken again.
                        sleep(LEAVE_LIMIT).await;
                        return false;
                    }
                    Some(Ask::Look(send)) => drop(send.send(self.told())),
                    None => return false,
                },
                Some((from, datagram)) = self.coming.recv() => {
                    let input = MembershipInput::Received { from, datagram };
                    self.machine.handle(now(), input, &mut outputs);
                }
                Some(seed) = self.finding.recv() => {
                    self.machine.handle(now(), MembershipInput::Seed(seed), &mut outputs);
                }
                stands = line.changes() => {
                    self.machine.handle(now(), MembershipInput::Line(stands), &mut outputs);
                }
                broke = told(&mut broke) => {
                    let input = if broke { MembershipInput::Broke } else { MembershipInput::Linked };
                    if broke {
                        tracing::info!("the link to the redirector broke: it is asked whether it is there");
                    }
                    self.machine.handle(now(), input, &mut outputs);
                }
                Some(stands) = self.looked.1.recv() => {
                    self.machine.handle(now(), MembershipInput::Looked(stands), &mut outputs);
                }
                () = &mut changes => {
                    tracing::warn!("this process's address or certificate has changed: it leaves, and comes back");
                    self.machine.handle(now(), MembershipInput::Leave, &mut outputs);
                    self.carry_out(&mut outputs, candidate, follows);
                    sleep(LEAVE_LIMIT).await;
                    return true;
                }
                () = sleep(next) => {}
            }
            let at = now();
            if self.machine.next_timeout().is_some_and(|wake| wake <= at) {
                self.machine.handle_timeout(at, &mut outputs);
            }
        }
    }

    fn carry_out(
        &mut self,
        outputs: &mut Vec<MembershipOutput>,
        candidate: &Candidate,
        follows: &watch::Sender<Followed>,
    ) {
        for output in outputs.drain(..) {
            match output {
                MembershipOutput::Look => {
                    let leads = self.machine.leads();
                    self.looks = candidate.line.look(leads, &self.looked.0).map(Owned);
                }
                MembershipOutput::Send { to, datagram } => self.datagrams.send(to, datagram),
                MembershipOutput::Redirector(followed) => self.follow(followed, follows),
            }
        }
    }

    fn follow(&self, redirector: Option<Participant>, follows: &watch::Sender<Followed>) {
        let followed = match redirector {
            None => {
                let there = self.machine.participants();
                let awaited = there.values().any(|one| one.candidacy != Candidacy::Never);
                Followed::Nobody { awaited }
            }
            Some(own) if own.life == self.own.life => Followed::Own(own.address),
            Some(other) => Followed::Other(other.address),
        };
        match &followed {
            Followed::Own(_) => tracing::info!("this process is the group's redirector"),
            Followed::Other(address) => tracing::info!(%address, "the group's redirector"),
            Followed::Nobody { .. } | Followed::Unknown => {
                tracing::warn!("the group has no redirector");
            }
        }
        follows.send_replace(followed);
    }

    /// Logged once each time.
    fn tells_of_its_line(&mut self) {
        let cut = self.machine.is_cut(self.own.life);
        if std::mem::replace(&mut self.cut, cut) == cut {
            return;
        }
        match cut {
            true => tracing::warn!(
                "this redirector's line to its parent is cut: another one of the group whose own line stands is \
                 the redirector in its place, if there is any"
            ),
            false => tracing::info!("the line to the group's parent stands again"),
        }
    }

    fn told(&self) -> Value {
        let claim = self.machine.claim();
        let there = self.machine.participants().into_values().map(|one| {
            json!({
                "name": one.name,
                "address": one.address,
                "life": one.life.to_string(),
                "candidacy": match one.candidacy {
                    Candidacy::Pinned => "pinned",
                    Candidacy::May(_) => "elected",
                    Candidacy::Never => "member",
                },
                "redirector": claim.is_some_and(|claim| claim.leader == one.life),
                "own": one.life == self.own.life,
                "cut": self.machine.is_cut(one.life),
            })
        });
        json!({ "term": claim.map(|claim| claim.term), "there": there.collect::<Vec<_>>() })
    }
}

/// Waits until it is another one, and gives it; where there is nobody to say so, for ever.
async fn told(watched: &mut Option<watch::Receiver<bool>>) -> bool {
    if let Some(watched) = watched
        && watched.changed().await.is_ok()
    {
        return *watched.borrow_and_update();
    }
    std::future::pending().await
}

/// Finds out by which address this process is reached; none: it ends before.
async fn begin(
    candidate: &Candidate,
    asked: &mut mpsc::Receiver<Ask>,
    (unknown_until, follows): (Instant, &watch::Sender<Followed>),
) -> Option<String> {
    let mut address = std::pin::pin!(own_address(candidate));
    loop {
        tokio::select! {
            biased;
            address = &mut address => return Some(address),
            ask = asked.recv() => match ask? {
                Ask::Leave(done) => {
                    let _ = done.send(());
                    return None;
                }
                Ask::Look(send) => drop(send.send(Value::Null)),
            },
            () = sleep(WAKE_MAX) => {}
        }
        is_nobody(unknown_until, follows);
    }
}

/// Who has not heard of anybody by then follows nobody.
fn is_nobody(unknown_until: Instant, follows: &watch::Sender<Followed>) {
    if Instant::now() >= unknown_until && *follows.borrow() == Followed::Unknown {
        follows.send_replace(Followed::Nobody { awaited: false });
    }
}

impl Candidate {
    /// Waits until it is reached by another address than a participant's, or may be elected and that one may not,
    /// or the reverse.
    async fn is_another(&self, own: &Participant) {
        let mut missed = 0;
        loop {
            tokio::select! {
                () = sleep(ADDRESS_AGAIN) => {}
                () = self.credentials.changed() => {}
            }
            if self.candidacy() != own.candidacy {
                return;
            }
            // A name may lead nowhere for a moment, or now to one network, now to another.
            let found = self.addresses().await;
            let stands = found.is_empty() || found.contains(&own.address);
            // Nor is it its own name alone any more that leads anywhere: the network has come.
            let better =
                is_loopback(&own.address) && found.first().is_some_and(|first| !is_loopback(first));
            missed = if stands && !better { 0 } else { missed + 1 };
            if missed == 2 {
                return;
            }
        }
    }

    /// By which addresses others may reach this process, the first before all: the one that is configured, or by
    /// which it reaches them.
    async fn addresses(&self) -> Vec<String> {
        if !self.section.address.is_empty() {
            return vec![self.section.address.clone()];
        }
        if !self.listen.ip().is_unspecified() {
            return vec![self.listen.to_string()];
        }
        let ipv4 = self.listen.is_ipv4();
        let targets = self.section.seeds().chain(Some(self.section.multicast.as_str()));
        // All at once: a name server that does not answer takes its time for each.
        let mut looks = Vec::new();
        for target in targets.map(str::to_owned) {
            looks.push(tokio::spawn(async move { toward(&target, ipv4).await }));
        }
        let mut found = Vec::new();
        for look in looks {
            found.extend(look.await.ok().flatten());
        }
        // This machine's own name may lead to itself alone, and others would seek it at themselves.
        found.sort_by_key(IpAddr::is_loopback);
        let only_itself = !found.is_empty() && found.iter().all(IpAddr::is_loopback);
        if only_itself && !self.section.seeds().all(is_of_this_machine) {
            let beyond = if ipv4 { BEYOND } else { BEYOND_IPV6 };
            let outward = toward(beyond, ipv4).await;
            found.splice(0..0, outward);
        }
        let port = self.listen.port();
        found.into_iter().map(|address| SocketAddr::new(address, port).to_string()).collect()
    }
}

/// Whether a seed is written as one that is reached from this machine alone.
fn is_of_this_machine(seed: &str) -> bool {
    seed.starts_with("localhost:") || is_loopback(seed)
}

fn is_loopback(address: &str) -> bool {
    address.parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
}

/// Waits until it is known by which address others reach this process.
async fn own_address(candidate: &Candidate) -> String {
    let mut told = false;
    loop {
        if let Some(address) = candidate.addresses().await.into_iter().next() {
            return address;
        }
        if !std::mem::replace(&mut told, true) {
            tracing::warn!(
                "no address of group.seeds leads anywhere yet, so that it is not known by which address \
                 others reach this process: set group.address"
            );
        }
        sleep(ADDRESS_EVERY).await;
    }
}

/// The address from which this machine would send there, of the family in which it listens. Nothing is sent.
async fn toward(target: &str, ipv4: bool) -> Option<IpAddr> {
    let mut targets = timeout(ADDRESS_LIMIT, lookup_host(target)).await.ok()?.ok()?;
    let target = targets.find(|target| target.is_ipv4() == ipv4)?;
    let any = if ipv4 { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).await.ok()?;
    socket.connect(target).await.ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified()).then_some(address)
}
