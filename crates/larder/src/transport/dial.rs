//! The link to the parent: dialled again and again, with pauses that grow and are jittered, so
//! that a returning parent is not stormed.

use super::link::{End, LinkSetup};
use super::prepare;
use crate::clock::{now, random_u64};
use crate::config::LinkConfig;
use crate::metrics::Side;
use crate::planted::{RuntimeFault, planted};
use crate::tls::{Credentials, TlsError, peer_name};
use larder_core::id::LinkId;
use larder_core::machine::LinkInput;
use larder_core::message::{CloseReason, Message};
use larder_core::rng::Rng;
use rustls::pki_types::{CertificateDer, ServerName};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::client::TlsStream;

/// A link that lived this long was a good one: the pauses begin anew.
const GOOD_LINK: Duration = Duration::from_secs(5);

/// Where the link to the parent is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// It is being dialled; what went wrong last, if anything did.
    Down(Option<String>),
    /// The parent welcomed this process.
    Up {
        /// Its name.
        parent: String,
    },
    /// The parent refuses this process in a way that waiting does not mend. Dialled on all the
    /// same, slowly: the operator may mend it at the parent.
    Refused(CloseReason),
    /// A certificate does not do. Dialled on slowly.
    Untrusted(TlsError),
}

impl LinkState {
    /// Why there is no link; none: there is one.
    pub(crate) fn trouble(&self) -> Option<String> {
        match self {
            Self::Up { .. } => None,
            Self::Down(why) => Some(why.clone().unwrap_or_else(|| "not linked yet".into())),
            Self::Refused(reason) => Some(format!("refused by the parent: {reason}")),
            Self::Untrusted(error) => Some(error.to_string()),
        }
    }
}

pub(crate) type LinkWatch = watch::Receiver<LinkState>;

/// Keeps a link to the parent.
pub(crate) struct Dialer {
    /// What links share.
    pub(crate) setup: LinkSetup,
    /// Who this process is, and whom it trusts.
    pub(crate) credentials: Arc<Credentials>,
    /// `host:port`.
    pub(crate) parent: String,
    /// Limits and pauses.
    pub(crate) link: LinkConfig,
    /// Where the state is told.
    pub(crate) state: watch::Sender<LinkState>,
}

/// A connection to the parent, and its certificate.
enum Dialed {
    Tls(Box<TlsStream<TcpStream>>, CertificateDer<'static>),
    #[cfg(feature = "simulated")]
    Pipe(crate::simulated::Stream),
}

/// Why there is no link.
enum Failure {
    Tls(TlsError),
    Other(String),
}

impl Dialer {
    /// Runs until the machine's task is gone.
    pub(crate) async fn run(self, mut next_link: u64) {
        let mut pauses = Pauses::new(&self.link);
        loop {
            match self.connect().await {
                Ok((dialed, peer)) => {
                    let opened = now();
                    let link = LinkId(next_link);
                    next_link += 1;
                    let ended = match dialed {
                        Dialed::Tls(stream, certificate) => {
                            let distrusts = self.credentials.distrusts(&certificate);
                            self.run_link(*stream, link, peer, distrusts).await
                        }
                        #[cfg(feature = "simulated")]
                        Dialed::Pipe(pipe) => {
                            self.run_link(pipe, link, peer, std::future::pending()).await
                        }
                    };
                    let Some(failed) = ended else {
                        return;
                    };
                    if now().since(opened) >= GOOD_LINK {
                        pauses.reset();
                    }
                    self.tell(failed);
                }
                Err(failure) => {
                    self.setup.metrics.link_failed(Side::Up);
                    self.tell(match failure {
                        Failure::Tls(error) => LinkState::Untrusted(error),
                        Failure::Other(why) => LinkState::Down(Some(why)),
                    });
                }
            }
            let hopeless =
                matches!(&*self.state.borrow(), LinkState::Refused(_) | LinkState::Untrusted(_));
            let mut pause = pauses.next(hopeless);
            if planted(RuntimeFault::DialAtOnce) {
                pause = Duration::ZERO;
            }
            if hopeless && planted(RuntimeFault::DialGivesUp) {
                return;
            }
            // New certificate files may be what was missing.
            tokio::select! {
                biased;
                () = sleep(pause) => {}
                () = self.credentials.changed() => pauses.reset(),
            }
        }
    }

    /// Runs a link to its end; none: the machine's task is gone.
    async fn run_link<S: AsyncRead + AsyncWrite + Send + 'static>(
        &self,
        stream: S,
        link: LinkId,
        peer: String,
        distrusts: impl Future<Output = TlsError>,
    ) -> Option<LinkState> {
        let seen = |message: &Message| {
            if let Message::Welcome { name, .. } = message {
                tracing::info!(parent = %name, address = %self.parent, "linked");
                self.state.send_replace(LinkState::Up { parent: name.clone() });
            }
        };
        let opened = LinkInput::UpOpened { link, peer };
        let opened = (opened, self.parent.as_str());
        let end = self.setup.run(stream, Side::Up, link, opened, seen, distrusts).await;
        Some(match end {
            // This process ends: nothing is wrong, and nothing is dialled any more.
            End::Stopped | End::Closed(CloseReason::Shutdown) => return None,
            End::Goodbye(reason) | End::Closed(reason) if lasting(&reason) => {
                LinkState::Refused(reason)
            }
            End::Goodbye(reason) | End::Closed(reason) => LinkState::Down(Some(reason.to_string())),
            End::Distrusted(error) => LinkState::Untrusted(error),
            // TLS 1.3 tells only now that our certificate was refused.
            End::Broken(error) => {
                match self.credentials.current().identity.explain(&self.parent, &error) {
                    refused @ TlsError::RefusedByPeer { .. } => LinkState::Untrusted(refused),
                    _ => LinkState::Down(Some(broken(&error))),
                }
            }
        })
    }

    /// Says where the link is; logged once, not at every attempt.
    fn tell(&self, state: LinkState) {
        if *self.state.borrow() == state {
            return;
        }
        match &state {
            LinkState::Down(why) => {
                let why = why.as_deref().unwrap_or_default();
                tracing::warn!(parent = %self.parent, why, "no link to the parent");
            }
            LinkState::Refused(reason) => {
                tracing::error!(parent = %self.parent, %reason, "refused by the parent");
            }
            LinkState::Untrusted(error) => {
                tracing::error!(parent = %self.parent, %error, "no trust between parent and us");
            }
            LinkState::Up { .. } => {}
        }
        self.state.send_replace(state);
    }

    /// A connection to the parent, and its name.
    async fn connect(&self) -> Result<(Dialed, String), Failure> {
        let attempt = async {
            let other = |e: std::io::Error| Failure::Other(format!("{}: {e}", self.parent));
            #[cfg(feature = "simulated")]
            if let Some(opening) = self.pipe() {
                let (pipe, peer) = opening.await.map_err(other)?;
                return Ok((Dialed::Pipe(pipe), peer));
            }
            let stream = TcpStream::connect(&self.parent).await.map_err(other)?;
            prepare(&stream, self.link.write_limit.0).map_err(other)?;
            // Certificates name identities, not hosts; the verifier ignores the dialled name.
            let name = ServerName::try_from("larder.invalid").expect("a valid name");
            let stream = tokio_rustls::TlsConnector::from(self.credentials.current().client())
                .connect(name, stream)
                .await
                .map_err(|e| self.handshake_failure(&e))?;
            let chain = stream.get_ref().1.peer_certificates();
            let certificate = chain.and_then(|chain| Some(chain.first()?.clone().into_owned()));
            let known = certificate.and_then(|certificate| {
                let peer = peer_name(&certificate)?;
                Some((peer, certificate))
            });
            let known = known.ok_or_else(|| Failure::Other("the parent has no name".into()))?;
            Ok((Dialed::Tls(Box::new(stream), known.1), known.0))
        };
        let limit = self.link.connect_limit.0;
        match timeout(limit, attempt).await {
            Ok(result) => result,
            Err(_) => {
                Err(Failure::Other(format!("{}: no connection within {limit:?}", self.parent)))
            }
        }
    }

    /// The world's connection, if this thread has a world.
    #[cfg(feature = "simulated")]
    fn pipe(
        &self,
    ) -> Option<crate::simulated::Later<std::io::Result<(crate::simulated::Stream, String)>>> {
        use larder_core::message::Role;
        let role = if self.credentials.serves() { Role::Relay } else { Role::Node };
        Some(crate::simulated::world()?.connect(self.credentials.name(), role, &self.parent))
    }

    fn handshake_failure(&self, error: &std::io::Error) -> Failure {
        match self.credentials.current().identity.explain(&self.parent, error) {
            TlsError::Handshake { peer, detail } => {
                Failure::Other(format!("TLS handshake with {peer} failed: {detail}"))
            }
            certificate => Failure::Tls(certificate),
        }
    }
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
struct Pauses {
    min: Duration,
    max: Duration,
    next: Duration,
    rng: Rng,
}

impl Pauses {
    fn new(link: &LinkConfig) -> Self {
        Self {
            min: link.back_off_min.0,
            max: link.back_off_max.0,
            next: link.back_off_min.0,
            rng: Rng::new(random_u64()),
        }
    }

    fn reset(&mut self) {
        self.next = self.min;
    }

    fn next(&mut self, hopeless: bool) -> Duration {
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
