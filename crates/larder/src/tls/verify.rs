//! Checks a parent's certificate, and puts handshake failures into words.

use super::revoked::Revoked;
use super::{Identity, TlsError, peer_name};
use crate::config::parents::listed;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    AlertDescription, CertificateError, DigitallySignedStruct, DistinguishedName, Error,
    RootCertStore, SignatureScheme,
};
use std::sync::Arc;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Whether a certificate that is good by itself was revoked.
fn check_revoked(
    revoked: Option<&Revoked>,
    certificate: &CertificateDer<'_>,
) -> Result<(), CertificateError> {
    let Some(revoked) = revoked else {
        return Ok(());
    };
    let parsed = X509Certificate::from_der(certificate);
    let (_, parsed) = parsed.map_err(|_| CertificateError::BadEncoding)?;
    match revoked.since(&parsed) {
        Some(_) => Err(CertificateError::Revoked),
        None => Ok(()),
    }
}

/// Accepts a certificate of the authority that may connect. The library can check revocation by
/// itself, and refuses every certificate of a renewed authority then, as long as the list is still
/// signed by the old one of that name.
#[derive(Debug)]
pub(super) struct ChildVerifier {
    pub(super) chains: Arc<dyn ClientCertVerifier>,
    pub(super) revoked: Option<Arc<Revoked>>,
}

impl ClientCertVerifier for ChildVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chains.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chains.verify_client_cert(end_entity, intermediates, now)?;
        check_revoked(self.revoked.as_deref(), end_entity)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// Accepts a certificate of the authority that may connect, of whoever listens for neighbours.
#[derive(Debug)]
pub(super) struct NeighbourVerifier(pub(super) Arc<ChildVerifier>);

impl ServerCertVerifier for NeighbourVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _dialled: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.0.verify_client_cert(end_entity, intermediates, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

/// Accepts a certificate of the authority that may serve, with the name wanted if one is: the
/// address that was dialled plays no part.
#[derive(Debug)]
pub(super) struct ParentVerifier {
    roots: Arc<RootCertStore>,
    revoked: Option<Arc<Revoked>>,
    provider: Arc<CryptoProvider>,
    wanted: Option<String>,
}

impl ParentVerifier {
    pub(super) fn new(
        roots: Arc<RootCertStore>,
        revoked: Option<Arc<Revoked>>,
        provider: Arc<CryptoProvider>,
        wanted: Option<String>,
    ) -> Self {
        Self { roots, revoked, provider, wanted }
    }
}

impl ServerCertVerifier for ParentVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _dialled: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        check_revoked(self.revoked.as_deref(), end_entity)?;
        let found = peer_name(end_entity).ok_or(CertificateError::BadEncoding)?;
        match &self.wanted {
            Some(wanted) if !listed(wanted).any(|name| name == found) => Err(Error::General(
                format!("it names `{found}`, but `{wanted}` is configured as the parent's name"),
            )),
            _ => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken".into()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

pub(super) fn explain(identity: &Identity, peer: &str, error: &std::io::Error) -> TlsError {
    let peer = peer.to_owned();
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match tls {
        Some(Error::InvalidCertificate(reason)) => {
            TlsError::PeerRefused { peer, detail: certificate_text(reason) }
        }
        Some(Error::General(detail)) => TlsError::PeerRefused { peer, detail: detail.clone() },
        Some(Error::NoCertificatesPresented) => {
            TlsError::PeerRefused { peer, detail: "it presented none".into() }
        }
        Some(Error::AlertReceived(alert)) => match alert_text(*alert, identity.name()) {
            Some(detail) => TlsError::RefusedByPeer {
                peer,
                path: identity.certificate_path().to_owned(),
                detail,
            },
            None => TlsError::Handshake { peer, detail: format!("it answered {alert:?}") },
        },
        Some(other) => TlsError::Handshake { peer, detail: other.to_string() },
        None => TlsError::Handshake { peer, detail: error.to_string() },
    }
}

fn certificate_text(reason: &CertificateError) -> String {
    match reason {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it expired; issue a new one there with `larder ca issue`".into()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet; check the clocks of both machines".into()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "it was issued by another authority than our ca.pem; one of the two has the wrong files"
                .into()
        }
        CertificateError::Revoked => {
            "it was revoked; issue a new one there with `larder ca issue`".into()
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its role does not allow this; issue it with the right `--role`".into()
        }
        other => other.to_string(),
    }
}

fn alert_text(alert: AlertDescription, name: &str) -> Option<String> {
    match alert {
        AlertDescription::CertificateExpired => Some(format!(
            "it says expired (or the clocks differ); issue a new one with `larder ca issue {name}`"
        )),
        AlertDescription::CertificateRevoked => {
            Some(format!("it was revoked; issue a new one with `larder ca issue {name}`"))
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => Some(
            "it was issued by an authority that the other side does not trust; use one authority \
             for both"
                .into(),
        ),
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown
        | AlertDescription::CertificateRequired
        | AlertDescription::AccessDenied => Some(format!(
            "its name or role does not do there ({alert:?}); look at the other side's log"
        )),
        _ => None,
    }
}
