//! What others open: links of children and of neighbours, and connections for datagrams.

use super::connect::{broken, lasting, not_an_origin};
use super::link::{Cut, End, LinkSetup};
use super::{datagrams, prepare};
use crate::config::LinkConfig;
use crate::metrics::Side;
use crate::tls::{Credentials, Protocol, Proven, TlsError};
use larder_core::id::LinkId;
use larder_core::machine::LinkInput;
use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 1024;

/// Accepts what comes in at a door.
pub(crate) struct Listener {
    door: Door,
    guests: Guests,
    /// As long as somebody is inside.
    room: Arc<Semaphore>,
    credentials: Arc<Credentials>,
    link: LinkConfig,
}

/// Whom a door lets in, by the protocol that they name. It may change while the door is open.
#[derive(Clone, Default)]
pub(crate) struct Guests(Arc<Mutex<BTreeMap<Protocol, Guest>>>);

#[derive(Clone)]
enum Guest {
    Links(Arc<Links>),
    Datagrams(datagrams::Incoming),
}

impl Guests {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Protocol, Guest>> {
        // The map is whole between any two of its changes.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets links of a side in, from now on.
    pub(crate) fn let_in(&self, links: Links) {
        let protocol = protocol_of(links.side);
        self.lock().insert(protocol, Guest::Links(Arc::new(links)));
    }

    /// Lets datagrams of the group's membership in.
    pub(crate) fn let_datagrams_in(&self, incoming: datagrams::Incoming) {
        self.lock().insert(Protocol::Members, Guest::Datagrams(incoming));
    }

    /// Nobody of a side is let in any more; who is inside stays.
    pub(crate) fn keep_out(&self, side: Side) {
        self.lock().remove(&protocol_of(side));
    }

    /// Who is asked for by one of these names; else anybody: the handshake tells who dialled.
    fn asked<'a>(&self, names: impl Iterator<Item = &'a [u8]>) -> Option<(Protocol, Guest)> {
        let guests = self.lock();
        let spoken = names.flat_map(|name| guests.iter().filter(move |(it, _)| it.alpn() == name));
        let asked = spoken.map(|(protocol, guest)| (*protocol, guest.clone())).next();
        asked.or_else(|| guests.iter().next().map(|(protocol, guest)| (*protocol, guest.clone())))
    }
}

/// Where connections come in.
pub(crate) enum Door {
    Tcp(TcpListener),
    #[cfg(feature = "simulated")]
    Pipes(tokio::sync::mpsc::Receiver<crate::simulated::Incoming>, SocketAddr),
}

/// Who came in.
enum Arrived {
    Tcp(TcpStream),
    #[cfg(feature = "simulated")]
    Pipe(crate::simulated::Incoming),
}

/// Links of a side that others open.
pub(crate) struct Links {
    side: Side,
    setup: LinkSetup,
    credentials: Arc<Credentials>,
    next_link: AtomicU64,
}

impl Links {
    /// Of a side, numbered from `first_link`.
    pub(crate) fn new(
        side: Side,
        setup: LinkSetup,
        credentials: Arc<Credentials>,
        first_link: u64,
    ) -> Self {
        Self { side, setup, credentials, next_link: AtomicU64::new(first_link) }
    }
}

fn protocol_of(side: Side) -> Protocol {
    match side {
        Side::Neighbour => Protocol::Neighbours,
        Side::Peer => Protocol::Origins,
        Side::Up | Side::Down => Protocol::Tree,
    }
}

impl Listener {
    /// At most `link.links_max` are inside at a time.
    pub(crate) fn new(
        door: Door,
        guests: Guests,
        credentials: Arc<Credentials>,
        link: LinkConfig,
    ) -> Self {
        let room = Arc::new(Semaphore::new(link.links_max as usize));
        Self { door, guests, room, credentials, link }
    }

    /// Accepts until dropped.
    pub(crate) async fn run(self) {
        let Self { mut door, guests, room, credentials, link } = self;
        let entrance = Arc::new(Entrance { guests, credentials, link });
        let mut links = JoinSet::new();
        loop {
            let (arrived, address) = match door.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, most likely: they come back when links end.
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            while links.try_join_next().is_some() {}
            let Ok(permit) = room.clone().try_acquire_owned() else {
                entrance.refuse(address, "link.links_max links stand");
                continue;
            };
            let entrance = entrance.clone();
            links.spawn(async move {
                entrance.serve(arrived, address).await;
                drop(permit);
            });
        }
    }
}

impl Door {
    /// Listens at `host:port`.
    pub(crate) async fn open(listen: &str, credentials: &Credentials) -> std::io::Result<Self> {
        #[cfg(feature = "simulated")]
        if let Some(opened) = Self::of_world(listen, credentials) {
            return opened;
        }
        let _ = credentials;
        Ok(Self::Tcp(TcpListener::bind(listen).await?))
    }

    /// Listens at an address, at once.
    pub(crate) fn open_at(listen: SocketAddr, credentials: &Credentials) -> std::io::Result<Self> {
        #[cfg(feature = "simulated")]
        if let Some(opened) = Self::of_world(&listen.to_string(), credentials) {
            return opened;
        }
        let _ = credentials;
        let socket = if listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // As with `TcpListener::bind`: a process that is started anew finds its port free.
        socket.set_reuseaddr(true)?;
        socket.bind(listen)?;
        Ok(Self::Tcp(socket.listen(BACKLOG)?))
    }

    #[cfg(feature = "simulated")]
    fn of_world(listen: &str, credentials: &Credentials) -> Option<std::io::Result<Self>> {
        let opened = crate::simulated::world()?.listen(credentials.name(), listen);
        Some(opened.map(|(arrivals, address)| Self::Pipes(arrivals, address)))
    }

    /// Where it is.
    pub(crate) fn address(&self) -> std::io::Result<SocketAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr(),
            #[cfg(feature = "simulated")]
            Self::Pipes(_, address) => Ok(*address),
        }
    }

    async fn accept(&mut self) -> std::io::Result<(Arrived, SocketAddr)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                Ok((Arrived::Tcp(stream), address))
            }
            #[cfg(feature = "simulated")]
            Self::Pipes(arrivals, _) => match arrivals.recv().await {
                Some(incoming) => {
                    let address = incoming.address;
                    Ok((Arrived::Pipe(incoming), address))
                }
                None => std::future::pending().await,
            },
        }
    }
}

/// What one connection after the other goes through.
struct Entrance {
    guests: Guests,
    credentials: Arc<Credentials>,
    link: LinkConfig,
}

impl Entrance {
    async fn serve(&self, arrived: Arrived, address: SocketAddr) {
        let stream = match arrived {
            Arrived::Tcp(stream) => stream,
            #[cfg(feature = "simulated")]
            Arrived::Pipe(incoming) => {
                let crate::simulated::Incoming { stream, peer, role, .. } = incoming;
                let peer = crate::simulated::proven(peer, role);
                let Some((_, Guest::Links(links))) = self.guests.asked(std::iter::empty()) else {
                    return;
                };
                return links.serve(stream, address, peer, std::future::pending()).await;
            }
        };
        let (stream, guest) =
            match timeout(self.link.connect_limit.0, self.greet(stream, address)).await {
                Ok(Ok(greeted)) => greeted,
                Ok(Err(error)) => return self.refuse(address, &error),
                Err(_) => return self.refuse(address, "the handshake took too long"),
            };
        let chain = stream.get_ref().1.peer_certificates();
        let known = chain.and_then(|chain| {
            let certificate = chain.first()?.clone().into_owned();
            Some((Proven::of(&certificate)?, certificate))
        });
        let Some((peer, certificate)) = known else {
            return self.refuse(address, "the certificate holds no name");
        };
        let distrusts = self.credentials.distrusts(&certificate);
        match guest {
            Guest::Links(links) => links.serve(stream, address, peer, distrusts).await,
            Guest::Datagrams(_) if !self.credentials.in_group(&peer) => {
                self.refuse(address, "its certificate is not of the group in group.name");
            }
            Guest::Datagrams(incoming) => incoming.serve(stream, &peer.name, distrusts).await,
        }
    }

    /// Shakes hands, by the protocol that is asked for.
    async fn greet(
        &self,
        stream: TcpStream,
        address: SocketAddr,
    ) -> Result<(TlsStream<TcpStream>, Guest), String> {
        prepare(&stream, self.link.write_limit.0).map_err(|e| e.to_string())?;
        let trust = self.credentials.current();
        let explain =
            |e: std::io::Error| trust.identity.explain(&address.to_string(), &e).to_string();
        let start = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream);
        let start = start.await.map_err(explain)?;
        let (protocol, guest) = {
            let hello = start.client_hello();
            let asked = self.guests.asked(hello.alpn().into_iter().flatten());
            asked.ok_or("nobody is let in here now")?
        };
        let config = trust.server(protocol).ok_or("the certificate lets nobody be served")?;
        let stream = start.into_stream(config).await.map_err(explain)?;
        Ok((stream, guest))
    }

    fn refuse(&self, address: SocketAddr, why: &str) {
        if let Some((_, Guest::Links(links))) = self.guests.asked(std::iter::empty()) {
            links.setup.metrics.link_failed(links.side);
        }
        tracing::warn!(%address, why, "connection refused");
    }
}

impl Links {
    async fn serve<S: AsyncRead + AsyncWrite + Send + 'static>(
        &self,
        stream: S,
        address: SocketAddr,
        peer: Proven,
        distrusts: impl Future<Output = TlsError>,
    ) {
        let link = LinkId(self.next_link.fetch_add(1, Ordering::Relaxed));
        let (who, at) = (self.who(), address.to_string());
        let in_group = self.credentials.in_group(&peer);
        let Proven { name: peer, role, is_origin, .. } = peer;
        if self.side == Side::Peer && !is_origin {
            self.setup.metrics.link_failed(self.side);
            let why = not_an_origin(&peer);
            return tracing::warn!(%address, why, "connection refused");
        }
        if self.side != Side::Peer && is_origin {
            self.setup.metrics.link_failed(self.side);
            let why = format!("the certificate of {peer} is an origin's: it is nobody's child");
            return tracing::warn!(%address, why, "connection refused");
        }
        tracing::info!(%address, %peer, link = link.0, "{who} linked");
        let opened = LinkInput::DownOpened { link, peer: peer.clone(), role, in_group };
        let opened = (opened, at.as_str());
        let cuts = async { Cut::Distrusted(distrusts.await) };
        let end = self.setup.run(stream, self.side, link, opened, Some, cuts).await;
        let why = match end {
            // Somebody has to see to it.
            End::Closed(reason) if lasting(&reason) => {
                tracing::warn!(%address, %peer, link = link.0, %reason, "{who} refused");
                return;
            }
            End::Goodbye(reason) => format!("it said: {reason}"),
            End::Closed(reason) => format!("closed here: {reason}"),
            End::Broken(error) => broken(&error),
            End::Distrusted(error) => {
                tracing::warn!(%address, link = link.0, %error, "{who} cut off");
                return;
            }
            End::Stopped | End::Elsewhere => return,
        };
        tracing::info!(%address, %peer, link = link.0, why, "{who} gone");
    }

    /// Who links here.
    fn who(&self) -> &'static str {
        match self.side {
            Side::Neighbour => "neighbour",
            Side::Peer => "origin",
            Side::Up | Side::Down => "child",
        }
    }
}
