//! What a process is in its group (decisions 0031, 0032 and 0036): a member, its redirector, or nothing. It is
//! decided here alone.

mod discovery;
mod line;
mod places;
mod seat;

pub(crate) use discovery::check_message;
pub(crate) use line::{OwnLine, Uplink};
pub(crate) use places::{Places, Stage};
pub(crate) use seat::{Candidate, Seat};

use crate::config::{GroupRole, GroupSection, LinkConfig};
use crate::host::{Inputs, Queues};
use crate::metrics::{Metrics, Side};
use crate::tls::{Credentials, Uses};
use crate::transport::{Door, Guests, LinkSender, LinkSetup, Links, Listener, NeighbourDialer};
use larder_core::cache::io::{CacheInput, NeighbourOutput};
use larder_core::cache::{Cache, ReadCache};
use larder_core::group::{
    GroupConfig, GroupMessage, GroupStatus, MEMBERS_MAX, Member, MemberConfig, MemberStatus,
    MembershipStatus, NeighbourStatus, messages,
};
use larder_core::id::{BootId, LinkId};
use larder_core::message::Message;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

/// Links to neighbours are numbered apart from the one to the parent: those that are accepted, and those that
/// are dialled.
const FIRST_ACCEPTED: u64 = 1 << 41;
const FIRST_DIALLED: u64 = 1 << 42;

/// What the redirector of a group is made with; none: the relay is none.
pub(crate) fn redirector(section: &GroupSection) -> Option<GroupConfig> {
    section.group().map(|_| GroupConfig {
        directory_bytes_max: bytes(section.directory.0),
        helping_max: section.helping_max as usize,
        asking_max: section.asking_max as usize,
        rest: section.rest.0,
        update_bytes_max: bytes(section.update.0),
        updates_bytes_max: bytes(section.updates.0),
        holes: section.holes,
        ack: section.ack,
        ..GroupConfig::default()
    })
}

/// What the certificates of a relay are for beside its links to children and parent.
pub(crate) fn redirector_uses(section: &GroupSection, uses: Uses) -> Uses {
    Uses { group: section.group().map(str::to_owned), elects: section.elects(), ..uses }
}

/// The same of a node.
pub(crate) fn member_uses(section: &GroupSection, uses: Uses) -> Uses {
    let (group, elects) = (section.group().map(str::to_owned), section.elects());
    Uses {
        neighbours: group.is_some(),
        group,
        elects,
        serves: elects && section.role == GroupRole::Pinned,
        may_serve: elects && section.role == GroupRole::Elected,
        ..uses
    }
}

/// Links to neighbours that come in, at most.
const NEIGHBOURS_MAX: u32 = 2 * MEMBERS_MAX as u32;

fn with_room(link: &LinkConfig, more: u32) -> LinkConfig {
    LinkConfig { links_max: link.links_max.saturating_add(more), ..link.clone() }
}

/// What holds at the door of a relay: where its group finds its redirector itself there is room for datagrams.
pub(crate) fn room_of_door(section: &GroupSection, link: &LinkConfig) -> LinkConfig {
    with_room(link, if section.elects() { NEIGHBOURS_MAX } else { 0 })
}

fn bytes(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// What a redirector tells of its group.
pub(crate) fn told_by_redirector(section: &GroupSection, status: &GroupStatus) -> Value {
    let member = |of: &MemberStatus| {
        json!({
            "name": of.member.name,
            "address": of.member.address,
            "life": of.member.life.to_string(),
            "reaches": of.reaches,
            "pages": of.pages,
            "bytes": of.bytes,
            "helping": of.helping,
            "asking": of.asking,
            "chosen": of.chosen,
        })
    };
    json!({
        "name": section.name,
        "role": "redirector",
        "members": status.members.iter().map(member).collect::<Vec<_>>(),
        "directory": {
            "pages": status.members.iter().map(|member| member.pages).sum::<usize>(),
            "bytes": status.members.iter().map(|member| member.bytes).sum::<usize>(),
        },
        "transfers": status.transfers,
        "updates": { "count": status.updates, "bytes": status.updates_bytes },
    })
}

/// What a member tells of it.
pub(crate) fn told_by_member(
    section: &GroupSection,
    status: &MembershipStatus,
    metrics: &Metrics,
) -> Value {
    let member = |of: &NeighbourStatus| {
        json!({
            "name": of.member.name,
            "address": of.member.address,
            "life": of.member.life.to_string(),
            "reached": of.link.is_some(),
        })
    };
    let figures = metrics.summary();
    json!({
        "name": section.name,
        "role": "member",
        "address": status.address,
        "redirected": status.redirector,
        "members": status.neighbours.iter().map(member).collect::<Vec<_>>(),
        "asking": status.asking,
        "helping": status.helping,
        "sources": metrics.group().sources(figures.hits, figures.misses),
        "peer_fetch": metrics.peer_fetches(),
    })
}

/// A member's doors: open, and nothing comes in yet.
pub(crate) struct Membership {
    /// What its machine is made with.
    pub(crate) config: MemberConfig,
    /// Where what it says of neighbours goes.
    pub(crate) neighbours: Neighbours,
    /// Whom its door lets in.
    pub(crate) guests: Guests,
    /// Where that is.
    pub(crate) listen: SocketAddr,
    /// Who it is to the others is told by its seat.
    elects: bool,
    wanted: mpsc::Receiver<Member>,
    door: Door,
    queue_bytes: usize,
}

impl Membership {
    /// Listens for neighbours; none: the node is no member. An error if that cannot be done.
    pub(crate) fn open(
        section: &GroupSection,
        credentials: &Credentials,
        metrics: &Arc<Metrics>,
    ) -> std::io::Result<Option<Self>> {
        if section.group().is_none() {
            return Ok(None);
        }
        let listen: SocketAddr = section.listen.parse().map_err(std::io::Error::other)?;
        let door = Door::open_at(listen, credentials)?;
        let at = door.address()?;
        let address = match section.address.as_str() {
            "" if at.ip().is_unspecified() => String::new(),
            "" => at.to_string(),
            given => given.to_owned(),
        };
        let config = MemberConfig {
            address,
            help_wait: section.help_wait.0,
            help_wait_long: section.help_wait_long.0,
            helps_max: section.helps_max as usize,
            redial: section.redial.0,
            ack: section.ack,
            ..MemberConfig::default()
        };
        let (dials, wanted) = mpsc::channel(MEMBERS_MAX);
        let neighbours = Neighbours { dials, reached: Arc::default(), metrics: metrics.clone() };
        let queue_bytes = bytes(section.queue.0);
        let (guests, elects) = (Guests::default(), section.elects());
        Ok(Some(Self { config, neighbours, guests, listen: at, elects, wanted, door, queue_bytes }))
    }

    /// Lets neighbours in, and dials them. `local`: by which address the parent sees this process.
    pub(crate) fn start(
        self,
        queues: &Queues<Cache>,
        metrics: &Arc<Metrics>,
        (credentials, link): (&Arc<Credentials>, &LinkConfig),
        local: watch::Receiver<Option<IpAddr>>,
    ) -> Vec<AbortHandle> {
        let Self { config, wanted, door, guests, listen, elects, queue_bytes, .. } = self;
        // A budget of its own: what neighbours send takes no room from what the parent sends.
        let setup =
            LinkSetup::new(queues.links.clone(), metrics.clone(), queue_bytes, link.write_limit.0);
        let accepted = match elects {
            // Children come as well, while it is the redirector.
            true => with_room(link, 2 * NEIGHBOURS_MAX),
            false => LinkConfig { links_max: link.links_max.min(NEIGHBOURS_MAX), ..link.clone() },
        };
        let links = Links::new(Side::Neighbour, setup.clone(), credentials.clone(), FIRST_ACCEPTED);
        guests.let_in(links);
        let listener = Listener::new(door, guests, credentials.clone(), accepted);
        let (credentials, link) = (credentials.clone(), link.clone());
        let dialer = NeighbourDialer { setup, credentials, link, wanted };
        let mut tasks = vec![
            tokio::spawn(listener.run()).abort_handle(),
            tokio::spawn(dialer.run(FIRST_DIALLED)).abort_handle(),
        ];
        if config.address.is_empty() && !elects {
            let told = tell_address(queues.inputs.clone(), local, listen.port());
            tasks.push(tokio::spawn(told).abort_handle());
        }
        tasks
    }
}

/// Who is greeted, and where to send to them.
type Reached = Arc<Mutex<BTreeMap<BootId, LinkSender>>>;

fn lock(reached: &Reached) -> MutexGuard<'_, BTreeMap<BootId, LinkSender>> {
    // The map is whole between any two of its changes.
    reached.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a member's machine says of its neighbours.
#[derive(Clone)]
pub(crate) struct Neighbours {
    /// Who is to be dialled.
    dials: mpsc::Sender<Member>,
    reached: Reached,
    metrics: Arc<Metrics>,
}

impl Neighbours {
    /// Carries out what is not for a link.
    pub(crate) fn carry_out(&self, output: NeighbourOutput, links: &BTreeMap<LinkId, LinkSender>) {
        match output {
            NeighbourOutput::Link(_) => unreachable!("the host keeps what is of links"),
            NeighbourOutput::Came { pages, took } => self.metrics.group().peer_fetch(pages, took),
            // Without room it is asked for again.
            NeighbourOutput::Dial(member) => drop(self.dials.try_send(member)),
            NeighbourOutput::Reached(reached) => {
                let sender = |(life, link)| Some((life, links.get(&link)?.clone()));
                *lock(&self.reached) = reached.into_iter().filter_map(sender).collect();
            }
        }
    }

    /// What answers their misses while the machine is busy.
    pub(crate) fn helper(&self, cache: Arc<ReadCache>) -> Helper {
        Helper { cache, reached: self.reached.clone() }
    }
}

/// Answers misses of neighbours in the task that reads the parent's link: a busy machine delays nobody by more
/// than it takes to look into the read cache.
pub(crate) struct Helper {
    cache: Arc<ReadCache>,
    reached: Reached,
}

impl Helper {
    /// Sends what can be sent at once of what a message asks for; gives what is left for the machine.
    pub(crate) fn help(&self, message: Message) -> Option<Message> {
        let Message::Group(GroupMessage::Help { request, domain, pages, asker, position, holes }) =
            message
        else {
            return Some(message);
        };
        let help = |pages| {
            Message::Group(GroupMessage::Help { request, domain, pages, asker, position, holes })
        };
        let Some(sender) = lock(&self.reached).get(&asker).cloned() else {
            return Some(help(pages));
        };
        let (answers, left) = self.cache.help_with(domain, pages, (position, holes));
        let mut wakes = false;
        for message in messages(request, domain, answers) {
            wakes |= sender.queue(message);
        }
        if wakes {
            sender.wake();
        }
        (!left.is_empty()).then(|| help(left))
    }
}

/// Tells the machine where neighbours reach it, whenever that is another address than before.
async fn tell_address(
    inputs: Inputs<Cache>,
    mut local: watch::Receiver<Option<IpAddr>>,
    port: u16,
) {
    loop {
        let address = *local.borrow_and_update();
        if let Some(address) = address {
            let address = SocketAddr::new(address, port).to_string();
            tracing::info!(%address, "neighbours reach this node there");
            if inputs.send(CacheInput::Reachable(address)).await.is_err() {
                return;
            }
        }
        if local.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
