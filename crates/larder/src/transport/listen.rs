//! Links from children.

use super::dial::{broken, lasting};
use super::link::{End, LinkSetup};
use super::prepare;
use crate::config::LinkConfig;
use crate::metrics::Side;
use crate::tls::{Credentials, TlsError, peer_name, peer_role};
use larder_core::id::LinkId;
use larder_core::machine::LinkInput;
use larder_core::message::Role;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Accepts links.
pub(crate) struct Listener {
    door: Door,
    shared: Arc<Shared>,
    room: Arc<Semaphore>,
}

/// Where connections come in.
enum Door {
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
    setup: LinkSetup,
    credentials: Arc<Credentials>,
    link: LinkConfig,
    next_link: AtomicU64,
}

impl Listener {
    /// Binds. Links are numbered from `first_link`.
    pub(crate) async fn bind(
        listen: &str,
        setup: LinkSetup,
        credentials: Arc<Credentials>,
        link: LinkConfig,
        first_link: u64,
    ) -> std::io::Result<Self> {
        let door = Door::open(listen, &credentials).await?;
        let room = Arc::new(Semaphore::new(link.links_max as usize));
        Ok(Self {
            door,
            shared: Arc::new(Shared {
                setup,
                credentials,
                link,
                next_link: AtomicU64::new(first_link),
            }),
            room,
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> std::io::Result<SocketAddr> {
        match &self.door {
            Door::Tcp(listener) => listener.local_addr(),
            #[cfg(feature = "simulated")]
            Door::Pipes(_, address) => Ok(*address),
        }
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
                self.shared.setup.metrics.link_failed(Side::Down);
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
    async fn open(listen: &str, credentials: &Credentials) -> std::io::Result<Self> {
        #[cfg(feature = "simulated")]
        if let Some(world) = crate::simulated::world() {
            let (arrivals, address) = world.listen(credentials.name(), listen)?;
            return Ok(Self::Pipes(arrivals, address));
        }
        let _ = credentials;
        Ok(Self::Tcp(TcpListener::bind(listen).await?))
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
                return self
                    .serve_link(stream, address, (peer, role), std::future::pending())
                    .await;
            }
        };
        let handshake = async {
            prepare(&stream, self.link.write_limit.0).map_err(|e| e.to_string())?;
            let trust = self.credentials.current();
            let stream = tokio_rustls::TlsAcceptor::from(trust.server()).accept(stream).await;
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
            Some((peer_name(&certificate)?, peer_role(&certificate), certificate))
        });
        let Some((peer, role, certificate)) = known else {
            return self.refuse(address, "the certificate holds no name");
        };
        let distrusts = self.credentials.distrusts(&certificate);
        self.serve_link(stream, address, (peer, role), distrusts).await;
    }

    async fn serve_link<S: AsyncRead + AsyncWrite + Send + 'static>(
        &self,
        stream: S,
        address: SocketAddr,
        (peer, role): (String, Role),
        distrusts: impl Future<Output = TlsError>,
    ) {
        let link = LinkId(self.next_link.fetch_add(1, Ordering::Relaxed));
        tracing::info!(%address, %peer, link = link.0, "child linked");
        let opened =
            (LinkInput::DownOpened { link, peer: peer.clone(), role }, address.to_string());
        let opened = (opened.0, opened.1.as_str());
        let end = self.setup.run(stream, Side::Down, link, opened, |_| {}, distrusts).await;
        let why = match end {
            // Somebody has to see to it.
            End::Closed(reason) if lasting(&reason) => {
                tracing::warn!(%address, %peer, link = link.0, %reason, "child refused");
                return;
            }
            End::Goodbye(reason) => format!("it said: {reason}"),
            End::Closed(reason) => format!("closed here: {reason}"),
            End::Broken(error) => broken(&error),
            End::Distrusted(error) => {
                tracing::warn!(%address, link = link.0, %error, "child cut off");
                return;
            }
            End::Stopped => return,
        };
        tracing::info!(%address, %peer, link = link.0, why, "child gone");
    }

    fn refuse(&self, address: SocketAddr, why: &str) {
        self.setup.metrics.link_failed(Side::Down);
        tracing::warn!(%address, why, "connection refused");
    }
}
