//! A process's seat in its group: who is there, and who is the redirector (decision 0036). It drives the machine
//! of membership, and carries its datagrams.

use super::discovery;
use crate::clock::now;
use crate::config::{GroupSection, LinkConfig};
use crate::host::Inputs;
use crate::tls::Credentials;
use crate::transport::{Datagrams, Guests};
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
/// Of nobody that is followed by then it is known that there is nobody.
const UNKNOWN_MAX: Duration = Duration::from_secs(2);
/// How long it may take until the others know that this process leaves.
const LEAVE_LIMIT: Duration = Duration::from_millis(100);
/// Between two attempts to find out by which address this process is reached.
const ADDRESS_EVERY: Duration = Duration::from_secs(1);

/// Who takes a seat.
pub(crate) struct Candidate {
    pub(crate) section: GroupSection,
    /// As its certificate proves it.
    pub(crate) name: String,
    /// Where it listens, for whoever is of the group.
    pub(crate) port: u16,
    /// The same as an address, if it listens at one alone.
    pub(crate) given: Option<String>,
    pub(crate) candidacy: Candidacy,
    pub(crate) life: BootId,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) link: LinkConfig,
    /// A member, whose neighbours reach it there too.
    pub(crate) member: Option<Inputs<Cache>>,
}

/// Who is the redirector, as this process sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Followed {
    /// It has just begun to look.
    Unknown,
    /// Nobody.
    Nobody,
    /// This process, which listens there.
    Own(String),
    /// Who listens there.
    Other(String),
}

enum Ask {
    Leave(oneshot::Sender<()>),
    Look(oneshot::Sender<Value>),
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

    /// Says that this process leaves, so that it is not missed.
    pub(crate) async fn leave(&self) {
        let (done, left) = oneshot::channel();
        if self.asks.send(Ask::Leave(done)).await.is_ok() && left.await.is_ok() {
            sleep(LEAVE_LIMIT).await;
        }
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
    let Some(address) = begin(&candidate, &mut asked, (unknown_until, &follows)).await else {
        return;
    };
    let Candidate { section, name, candidacy, life, credentials, link, member, .. } = candidate;
    let group = section.group().expect("who takes a seat is of a group").to_owned();
    tracing::info!(%group, %address, ?candidacy, "others of the group reach this process there");
    if let Some(member) = &member
        && member.send(CacheInput::Reachable(address.clone())).await.is_err()
    {
        return;
    }
    let (came, mut coming) = mpsc::channel(WAITING_MAX);
    let carried = Datagrams::start(address.clone(), credentials, link, came);
    let (datagrams, incoming, carries) = carried;
    let _carries = Owned(carries);
    guests.let_datagrams_in(incoming);
    let (found, mut finding) = mpsc::channel(WAITING_MAX);
    let looks = discovery::start(&section, &group, &address, found);
    let _looks = looks.map(Owned);
    let own = Participant { life, name, address, candidacy };
    let seeds = section.seeds().map(str::to_owned).collect();
    let config = MembershipConfig { seeds, ..MembershipConfig::new(&group, own) };
    let mut machine = Membership::new(config);
    let mut outputs = Vec::new();
    loop {
        for output in outputs.drain(..) {
            match output {
                MembershipOutput::Send { to, datagram } => datagrams.send(to, datagram),
                MembershipOutput::Redirector(followed) => follow(followed, life, &follows),
            }
        }
        is_nobody(unknown_until, &follows);
        let at = now();
        let next = machine.next_timeout().map_or(WAKE_MAX, |wake| wake.since(at).min(WAKE_MAX));
        tokio::select! {
            biased;
            ask = asked.recv() => match ask {
                Some(Ask::Leave(done)) => {
                    machine.handle(now(), MembershipInput::Leave, &mut outputs);
                    let _ = done.send(());
                }
                Some(Ask::Look(send)) => drop(send.send(told(&machine, life))),
                None => return,
            },
            Some((from, datagram)) = coming.recv() => {
                let input = MembershipInput::Received { from, datagram };
                machine.handle(now(), input, &mut outputs);
            }
            Some(seed) = finding.recv() => {
                machine.handle(now(), MembershipInput::Seed(seed), &mut outputs);
            }
            () = sleep(next) => {}
        }
        let at = now();
        if machine.next_timeout().is_some_and(|wake| wake <= at) {
            machine.handle_timeout(at, &mut outputs);
        }
    }
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
        follows.send_replace(Followed::Nobody);
    }
}

fn follow(redirector: Option<Participant>, life: BootId, follows: &watch::Sender<Followed>) {
    let followed = match redirector {
        None => Followed::Nobody,
        Some(own) if own.life == life => Followed::Own(own.address),
        Some(other) => Followed::Other(other.address),
    };
    match &followed {
        Followed::Own(_) => tracing::info!("this process is the group's redirector"),
        Followed::Other(address) => tracing::info!(%address, "the group's redirector"),
        Followed::Nobody | Followed::Unknown => tracing::warn!("the group has no redirector"),
    }
    follows.send_replace(followed);
}

fn told(machine: &Membership, life: BootId) -> Value {
    let claim = machine.claim();
    let there = machine.participants().into_values().map(|one| {
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
            "own": one.life == life,
        })
    });
    json!({ "term": claim.map(|claim| claim.term), "there": there.collect::<Vec<_>>() })
}

/// By which address others reach this process: the one that is configured, or by which it reaches them.
async fn own_address(candidate: &Candidate) -> String {
    let section = &candidate.section;
    if !section.address.is_empty() {
        return section.address.clone();
    }
    if let Some(given) = &candidate.given {
        return given.clone();
    }
    let mut told = false;
    loop {
        for target in section.seeds().chain(Some(section.multicast.as_str())) {
            if let Some(address) = toward(target).await {
                return SocketAddr::new(address, candidate.port).to_string();
            }
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

/// The address from which this machine would send there. Nothing is sent.
async fn toward(target: &str) -> Option<IpAddr> {
    let target = lookup_host(target).await.ok()?.next()?;
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(any).await.ok()?;
    socket.connect(target).await.ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified()).then_some(address)
}
