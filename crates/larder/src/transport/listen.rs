//! Links that others open: children, and neighbours.

use super::connect::{broken, lasting};
use super::link::{End, LinkSetup};
use super::prepare;
use crate::config::LinkConfig;
use crate::metrics::Side;
use crate::tls::{Credentials, Proven, TlsError};
use larder_core::id::LinkId;
use larder_core::machine::LinkInput;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: u32 = 1024;

/// Accepts links.
pub(crate) struct Listener {
    door: Door,
    shared: Arc<Shared>,
    room: Arc<Semaphore>,
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

struct Shared {
    side: Side,
    setup: LinkSetup,
    credentials: Arc<Credentials>,
    link: LinkConfig,
    next_link: AtomicU64,
}

impl Listener {
    /// Of links of a side, which are numbered from `first_link`.
    pub(crate) fn new(
        door: Door,
        side: Side,
        setup: LinkSetup,
        credentials: Arc<Credentials>,
        link: LinkConfig,
        first_link: u64,
    ) -> Self {
        let room = Arc::new(Semaphore::new(link.links_max as usize));
        let next_link = AtomicU64::new(first_link);
        let shared = Arc::new(Shared { side, setup, credentials, link, next_link });
        Self { door, shared, room }
    }

    /// Accepts until dropped.
    pub(crate) async fn run(mut self) {
        let mut links = JoinSet::new();
        loop {
            let (arrived, address) = match self.door.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, most likely: they come back when links end.
                    tracing::warn!(%error, "a connection could not be accepted");
                    sleep(Duration::from_millis(50)).await;
                    continue;
                }
            };
            while links.try_join_next().is_some() {}
            let Ok(permit) = self.room.clone().try_acquire_owned() else {
                tracing::warn!(%address, "refused: link.links_max links stand");
                self.shared.setup.metrics.link_failed(self.shared.side);
                continue;
            };
            let shared = self.shared.clone();
            links.spawn(async move {
                shared.serve(arrived, address).await;
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

impl Shared {
    async fn serve(&self, arrived: Arrived, address: SocketAddr) {
        let stream = match arrived {
            Arrived::Tcp(stream) => stream,
            #[cfg(feature = "simulated")]
            Arrived::Pipe(incoming) => {
                let crate::simulated::Incoming { stream, peer, role, .. } = incoming;
                let peer = crate::simulated::proven(peer, role);
                return self.serve_link(stream, address, peer, std::future::pending()).await;
            }
        };
        let handshake = async {
            prepare(&stream, self.link.write_limit.0).map_err(|e| e.to_string())?;
            let trust = self.credentials.current();
            let acceptor = tokio_rustls::TlsAcceptor::from(trust.server(self.side));
            let stream = acceptor.accept(stream).await;
            stream.map_err(|e| trust.identity.explain(&address.to_string(), &e).to_string())
        };
        let stream = match timeout(self.link.connect_limit.0, handshake).await {
            Ok(Ok(stream)) => stream,
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
        self.serve_link(stream, address, peer, distrusts).await;
    }

    async fn serve_link<S: AsyncRead + AsyncWrite + Send + 'static>(
        &self,
        stream: S,
        address: SocketAddr,
        peer: Proven,
        distrusts: impl Future<Output = TlsError>,
    ) {
        let link = LinkId(self.next_link.fetch_add(1, Ordering::Relaxed));
        let (who, at) = (self.who(), address.to_string());
        let in_group = self.credentials.in_group(&peer);
        let Proven { name: peer, role, .. } = peer;
        tracing::info!(%address, %peer, link = link.0, "{who} linked");
        let opened = LinkInput::DownOpened { link, peer: peer.clone(), role, in_group };
        let opened = (opened, at.as_str());
        let end = self.setup.run(stream, self.side, link, opened, Some, distrusts).await;
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
            End::Stopped => return,
        };
        tracing::info!(%address, %peer, link = link.0, why, "{who} gone");
    }

    /// Who links here.
    fn who(&self) -> &'static str {
        if self.side == Side::Neighbour { "neighbour" } else { "child" }
    }

    fn refuse(&self, address: SocketAddr, why: &str) {
        self.setup.metrics.link_failed(self.side);
        tracing::warn!(%address, why, "connection refused");
    }
}
