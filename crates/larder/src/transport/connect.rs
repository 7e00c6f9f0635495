//! Opening a connection, and running it as a link: to the parent, and to neighbours.

use super::link::{Cut, End, LinkSetup};
use super::prepare;
use crate::clock::random_u64;
use crate::config::LinkConfig;
use crate::metrics::Side;
use crate::tls::{Credentials, Protocol, Proven, TlsError};
use larder_core::id::LinkId;
use larder_core::machine::LinkInput;
use larder_core::message::{CloseReason, Message};
use larder_core::rng::Rng;
use rustls::pki_types::{CertificateDer, ServerName};
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

/// Where a connection goes, and as whom.
#[derive(Clone)]
pub(super) struct Target {
    pub(super) side: Side,
    /// `host:port`.
    pub(super) address: String,
    /// Which of the parents it is; 0 of a neighbour.
    pub(super) parent: u32,
    pub(super) credentials: Arc<Credentials>,
    pub(super) link: LinkConfig,
    /// It is the redirector that the group has found: who is not of the group is not linked to.
    pub(super) found: bool,
    /// The name that must be proved there; empty: any that may serve.
    pub(super) expects: String,
}

/// A connection that stands.
pub(super) struct Dialed {
    pub(super) stream: Stream,
    peer: Proven,
    /// The address by which this process is seen at the other end; none: it has none.
    pub(super) local: Option<IpAddr>,
}

pub(super) enum Stream {
    Tls(Box<TlsStream<TcpStream>>, CertificateDer<'static>),
    #[cfg(feature = "simulated")]
    Pipe(crate::simulated::Stream),
}

/// Why there is no link.
pub(super) enum Failure {
    Tls(TlsError),
    Other(String),
}

impl Target {
    /// Connects, within the limit of the configuration.
    pub(super) async fn connect(&self) -> Result<Dialed, Failure> {
        let limit = self.link.connect_limit.0;
        let late = || Failure::Other(format!("{}: no connection within {limit:?}", self.address));
        timeout(limit, self.attempt()).await.unwrap_or_else(|_| Err(late()))
    }

    async fn attempt(&self) -> Result<Dialed, Failure> {
        let other = |e: std::io::Error| Failure::Other(format!("{}: {e}", self.address));
        #[cfg(feature = "simulated")]
        if let Some(opening) = self.pipe() {
            let (pipe, peer) = opening.await.map_err(other)?;
            // Nobody asks what an answering process's certificate lets it be.
            let peer = crate::simulated::proven(peer, larder_core::message::Role::Relay);
            return Ok(Dialed { stream: Stream::Pipe(pipe), peer, local: None });
        }
        let stream = TcpStream::connect(&self.address).await.map_err(other)?;
        prepare(&stream, self.link.write_limit.0).map_err(other)?;
        let local = stream.local_addr().ok().map(|address| address.ip());
        let stream = open_tls(self.config(), stream).await;
        let stream = stream.map_err(|e| self.handshake_failure(&e))?;
        let chain = stream.get_ref().1.peer_certificates();
        let certificate = chain.and_then(|chain| Some(chain.first()?.clone().into_owned()));
        let known = certificate.and_then(|one| Some((Proven::of(&one)?, one)));
        let (peer, certificate) =
            known.ok_or_else(|| Failure::Other(format!("{} has no name", self.address)))?;
        if self.side == Side::Peer && !peer.is_origin {
            return Err(Failure::Other(not_an_origin(&peer.name)));
        }
        if !self.expects.is_empty() && self.expects != peer.name {
            let (address, wanted) = (&self.address, &self.expects);
            let why =
                format!("at {address} is {}, and not {wanted}: see `origin.peers`", peer.name);
            return Err(Failure::Other(why));
        }
        if self.found && !self.credentials.in_group(&peer) {
            let Proven { name, .. } = peer;
            return Err(Failure::Other(format!("the certificate of {name} is not of the group")));
        }
        Ok(Dialed { stream: Stream::Tls(Box::new(stream), certificate), peer, local })
    }

    fn config(&self) -> Arc<rustls::ClientConfig> {
        let trust = self.credentials.current();
        match self.side {
            Side::Neighbour => trust.client(Protocol::Neighbours),
            Side::Peer => trust.client(Protocol::Origins),
            Side::Up | Side::Down if self.found => trust.redirector(),
            Side::Up | Side::Down => trust.client(Protocol::Tree),
        }
    }

    /// Runs a connection as a link until it ends, or until `elsewhere` does.
    pub(super) async fn run(
        &self,
        dialed: Dialed,
        setup: &LinkSetup,
        link: LinkId,
        first: impl FnMut(Message) -> Option<Message>,
        elsewhere: impl Future<Output = ()>,
    ) -> End {
        let Dialed { stream, peer, .. } = dialed;
        let in_group = self.credentials.in_group(&peer);
        if self.side == Side::Up && self.credentials.has_neighbours() && !in_group {
            tracing::warn!(
                parent = %peer.name,
                "the parent's certificate is not of the group in group.name: nothing is shared with \
                 neighbours; is it the group's redirector?"
            );
        }
        let opened = LinkInput::UpOpened { link, parent: self.parent, peer: peer.name, in_group };
        let opened = (opened, self.address.as_str());
        match stream {
            Stream::Tls(stream, certificate) => {
                let cuts = async {
                    tokio::select! {
                        error = self.credentials.distrusts(&certificate) => Cut::Distrusted(error),
                        () = elsewhere => Cut::Elsewhere,
                    }
                };
                setup.run(*stream, self.side, link, opened, first, cuts).await
            }
            #[cfg(feature = "simulated")]
            Stream::Pipe(pipe) => {
                let cuts = async {
                    elsewhere.await;
                    Cut::Elsewhere
                };
                setup.run(pipe, self.side, link, opened, first, cuts).await
            }
        }
    }

    /// What a link that broke says of our own certificate, if it says something: TLS 1.3 tells only after the
    /// handshake that it was refused.
    pub(super) fn refused(&self, error: &std::io::Error) -> Option<TlsError> {
        match self.credentials.current().identity.explain(&self.address, error) {
            refused @ TlsError::RefusedByPeer { .. } => Some(refused),
            _ => None,
        }
    }

    /// The world's connection, if this thread has a world.
    #[cfg(feature = "simulated")]
    fn pipe(
        &self,
    ) -> Option<crate::simulated::Later<std::io::Result<(crate::simulated::Stream, String)>>> {
        use larder_core::message::Role;
        let role = if self.credentials.serves() { Role::Relay } else { Role::Node };
        Some(crate::simulated::world()?.connect(self.credentials.name(), role, &self.address))
    }

    fn handshake_failure(&self, error: &std::io::Error) -> Failure {
        match self.credentials.current().identity.explain(&self.address, error) {
            TlsError::Handshake { peer, detail } => {
                Failure::Other(format!("TLS handshake with {peer} failed: {detail}"))
            }
            certificate => Failure::Tls(certificate),
        }
    }
}

/// Shakes hands as a client. Certificates name identities, not hosts; the verifier ignores the dialled name.
pub(super) async fn open_tls(
    config: Arc<rustls::ClientConfig>,
    stream: TcpStream,
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("larder.invalid").expect("a valid name");
    tokio_rustls::TlsConnector::from(config).connect(name, stream).await
}

/// Why somebody is no other origin.
pub(super) fn not_an_origin(name: &str) -> String {
    format!(
        "the certificate of {name} is not that of an origin which speaks to others: renew it with `larder ca renew \
         {name}`, or issue it with `--role origin`"
    )
}

/// How a link broke, in words.
pub(super) fn broken(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => "the other side ended it without a goodbye".into(),
        _ => format!("the link broke: {error}"),
    }
}

/// Whether waiting does not mend it.
pub(super) fn lasting(reason: &CloseReason) -> bool {
    matches!(
        reason,
        CloseReason::Version { .. }
            | CloseReason::Identity(_)
            | CloseReason::Forked { .. }
            | CloseReason::Forbidden(_)
    )
}

/// Pauses between attempts: each twice the last one, up to a limit, and half of it random.
pub(super) struct Pauses {
    min: Duration,
    max: Duration,
    next: Duration,
    rng: Rng,
}

impl Pauses {
    pub(super) fn new(link: &LinkConfig) -> Self {
        Self {
            min: link.back_off_min.0,
            max: link.back_off_max.0,
            next: link.back_off_min.0,
            rng: Rng::new(random_u64()),
        }
    }

    pub(super) fn reset(&mut self) {
        self.next = self.min;
    }

    pub(super) fn next(&mut self, hopeless: bool) -> Duration {
        let pause = if hopeless { self.max } else { self.next };
        self.next = (self.next * 2).min(self.max);
        let half = pause / 2;
        let nanos = u64::try_from(half.as_nanos()).unwrap_or(u64::MAX);
        half + Duration::from_nanos(self.rng.below(nanos.max(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_their_limit_and_are_jittered() {
        let config = LinkConfig::default();
        let (min, max) = (config.back_off_min.0, config.back_off_max.0);
        let mut pauses = Pauses::new(&config);
        let mut expected = min;
        for _ in 0..12 {
            let pause = pauses.next(false);
            assert!(pause >= expected / 2 && pause <= expected, "{pause:?} of {expected:?}");
            expected = (expected * 2).min(max);
        }
        pauses.reset();
        assert!(pauses.next(false) <= min);
        assert!(pauses.next(true) >= max / 2);
        let drawn: std::collections::BTreeSet<_> = (0..8).map(|_| pauses.next(true)).collect();
        assert!(drawn.len() > 1, "two nodes must not come back in step");
    }
}
