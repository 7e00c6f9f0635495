//! Handshakes in memory, and peers that present what they like.

use rustls::client::ResolvesClientCert;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, ClientConnection, Connection, Error, ServerConfig, ServerConnection,
    SignatureScheme,
};
use std::sync::Arc;

/// The certificates that both sides believe of each other.
pub struct Believed {
    pub child: CertificateDer<'static>,
    pub parent: CertificateDer<'static>,
}

/// As many turns as a handshake may take.
const TURNS: usize = 8;

/// A handshake, until both sides believe or one refuses.
pub fn handshake(
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
) -> Result<Believed, Error> {
    let name = ServerName::try_from("larder.invalid").expect("a name");
    let mut parent = Connection::from(ServerConnection::new(server.clone())?);
    let mut child = Connection::from(ClientConnection::new(client.clone(), name)?);
    for _ in 0..TURNS {
        pass(&mut child, &mut parent)?;
        pass(&mut parent, &mut child)?;
    }
    assert!(!parent.is_handshaking() && !child.is_handshaking(), "neither refused nor done");
    let of =
        |peer: &Connection| peer.peer_certificates().expect("asked for")[0].clone().into_owned();
    Ok(Believed { child: of(&parent), parent: of(&child) })
}

fn pass(from: &mut Connection, to: &mut Connection) -> Result<(), Error> {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).expect("memory");
    }
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        to.read_tls(&mut rest).expect("memory");
        to.process_new_packets()?;
    }
    Ok(())
}

/// Presents a certificate without a look at it.
#[derive(Debug)]
pub struct Presents(Arc<CertifiedKey>);

impl Presents {
    pub fn new(certificate: CertificateDer<'static>, key: &PrivateKeyDer<'_>) -> Arc<Self> {
        let key = rustls::crypto::ring::sign::any_supported_type(key).expect("a good key");
        Arc::new(Self(Arc::new(CertifiedKey::new(vec![certificate], key))))
    }
}

impl ResolvesClientCert for Presents {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for Presents {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}
