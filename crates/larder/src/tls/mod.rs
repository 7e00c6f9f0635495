//! Mutual TLS from a private authority: TLS 1.3 only, one crypto provider (`ring`), and the
//! peer's name taken from its certificate.
//!
//! A certificate names a Larder identity, not a host: a node may move, and a parent may be reached
//! through a forwarded port. The extended key usage says who may serve and who may connect; URIs say
//! which groups of neighbours it is of (decision 0032).

mod authority;
mod credentials;
mod error;
mod issued;
mod revoked;
mod verify;

pub use authority::{Authority, Revocation, Role, Which, init};
pub use credentials::{CertificateStatus, look_again};
pub(crate) use credentials::{Credentials, Uses};
pub use error::TlsError;
pub use issued::{Issued, Standing, certificates};

use revoked::Revoked;
use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};
use x509_parser::time::ASN1Time;

/// The authority's certificate.
pub const CA_FILE: &str = "ca.pem";
/// The authority's key; on the machine that issues certificates only.
pub const CA_KEY_FILE: &str = "ca-key.pem";

/// The authority's list of revoked certificates.
pub const CRL_FILE: &str = "ca-crl.pem";

/// The file of a name's certificate.
#[must_use]
pub fn certificate_file(name: &str) -> String {
    format!("{name}.pem")
}

/// The file of a name's key.
#[must_use]
pub fn key_file(name: &str) -> String {
    format!("{name}-key.pem")
}

/// Who this process is, and whom it trusts. Loaded from `ca.pem`, `NAME.pem`, `NAME-key.pem` and,
/// if it is there, `ca-crl.pem`, and checked at once, so that a wrong file is named before anything
/// is served.
#[derive(Clone)]
pub struct Identity {
    name: String,
    own: Arc<Own>,
    trusted: Arc<Trusted>,
    provider: Arc<CryptoProvider>,
}

/// Who this process is: `NAME.pem` and `NAME-key.pem`.
struct Own {
    certificate_path: PathBuf,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    key_path: PathBuf,
}

impl Own {
    /// Reads the files of `name` in `dir`. What they are worth depends on who is trusted.
    fn load(dir: &Path, name: &str) -> Result<Self, TlsError> {
        let certificate_path = dir.join(certificate_file(name));
        let key_path = dir.join(key_file(name));
        let issue = format!("issue it with `larder ca issue {name}`");
        let chain = read_certificates(&certificate_path, &issue)?;
        check_key_mode(&key_path)?;
        let key = PrivateKeyDer::from_pem_slice(&read_file(&key_path, &issue)?).map_err(|e| {
            TlsError::Malformed {
                path: key_path.clone(),
                what: "private key",
                detail: e.to_string(),
            }
        })?;
        Ok(Self { certificate_path, chain, key, key_path })
    }
}

/// Whom this process trusts, and whom no more: `ca.pem` and `ca-crl.pem`.
struct Trusted {
    path: PathBuf,
    authorities: Vec<CertificateDer<'static>>,
    roots: Arc<RootCertStore>,
    /// None: there is no list.
    revoked: Option<Arc<Revoked>>,
}

impl Trusted {
    fn load(dir: &Path) -> Result<Self, TlsError> {
        Self::without_list(dir)?.with_list(dir)
    }

    fn without_list(dir: &Path) -> Result<Self, TlsError> {
        let path = dir.join(CA_FILE);
        let authorities = read_certificates(&path, "copy it from where `larder ca init` was run")?;
        let mut roots = RootCertStore::empty();
        for certificate in &authorities {
            roots.add(certificate.clone()).map_err(|e| malformed(&path, &e.to_string()))?;
        }
        Ok(Self { path, authorities, roots: Arc::new(roots), revoked: None })
    }

    fn with_list(self, dir: &Path) -> Result<Self, TlsError> {
        let revoked = Revoked::load(dir, &self.authorities)?.map(Arc::new);
        Ok(Self { revoked, ..self })
    }

    /// Whether one of its authorities has issued a certificate.
    fn has_issued(&self, certificate: &CertificateDer<'_>) -> bool {
        X509Certificate::from_der(certificate).is_ok_and(|(_, parsed)| {
            self.authorities.iter().any(|authority| issued_by(&parsed, authority))
        })
    }
}

impl Identity {
    /// Loads and checks the files of `name` in `dir`.
    pub fn load(dir: &Path, name: &str) -> Result<Self, TlsError> {
        let trusted = Trusted::without_list(dir)?;
        let own = Arc::new(Own::load(dir, name)?);
        // A foreign certificate is named as such, and not the list that does not fit it either.
        check_certificate(&own, &trusted, name)?;
        Ok(Self::unchecked(name, own, Arc::new(trusted.with_list(dir)?)))
    }

    /// Checks the parts together.
    fn new(name: &str, own: Arc<Own>, trusted: Arc<Trusted>) -> Result<Self, TlsError> {
        check_certificate(&own, &trusted, name)?;
        Ok(Self::unchecked(name, own, trusted))
    }

    /// For parts of which it does not matter that the certificate may have ended meanwhile.
    fn unchecked(name: &str, own: Arc<Own>, trusted: Arc<Trusted>) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        Self { name: name.to_owned(), own, trusted, provider }
    }

    /// The name that the certificate proves.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The certificate's file.
    #[must_use]
    pub fn certificate_path(&self) -> &Path {
        &self.own.certificate_path
    }

    /// For serving links: asks every peer for a certificate of the authority.
    pub fn server_config(&self) -> Result<Arc<rustls::ServerConfig>, TlsError> {
        self.check_usage(true)?;
        self.serving(ALPN)
    }

    /// For what members of a group say to each other by a protocol, accepted and dialled. Who may connect to
    /// a parent may do both: none of them is a parent.
    pub(crate) fn member_configs(
        &self,
        protocol: Protocol,
    ) -> Result<(Arc<rustls::ServerConfig>, Arc<rustls::ClientConfig>), TlsError> {
        self.check_usage(false)?;
        let verifier = verify::NeighbourVerifier(self.child_verifier()?);
        let alpn = protocol.alpn();
        Ok((self.serving(alpn)?, self.connecting(Arc::new(verifier), alpn)?))
    }

    /// For links between origins, accepted and dialled. Whether the other one is an origin, and which, is looked at when it
    /// has shaken hands.
    pub(crate) fn origin_configs(
        &self,
    ) -> Result<(Arc<rustls::ServerConfig>, Arc<rustls::ClientConfig>), TlsError> {
        let (_, certificate) = X509Certificate::from_der(&self.own.chain[0])
            .map_err(|e| malformed(&self.own.certificate_path, &e.to_string()))?;
        if !is_origin(&certificate) {
            return Err(TlsError::WrongRole {
                path: self.own.certificate_path.clone(),
                name: self.name.clone(),
                wanted: "speak to other origins (`origin.peers`)",
            });
        }
        let verifier = Arc::new(verify::ParentVerifier::new(
            self.trusted.roots.clone(),
            self.trusted.revoked.clone(),
            self.provider.clone(),
            None,
        ));
        let alpn = Protocol::Origins.alpn();
        Ok((self.serving(alpn)?, self.connecting(verifier, alpn)?))
    }

    /// Whether its certificate lets it serve links.
    pub(crate) fn may_serve(&self) -> bool {
        self.check_usage(true).is_ok()
    }

    /// Whether its certificate is of a group.
    pub(crate) fn check_group(&self, group: &str) -> Result<(), TlsError> {
        let is_of = Proven::of(&self.own.chain[0]).is_some_and(|own| own.is_of(group));
        is_of.then_some(()).ok_or_else(|| TlsError::NotInGroup {
            path: self.own.certificate_path.clone(),
            name: self.name.clone(),
            group: group.to_owned(),
        })
    }

    fn child_verifier(&self) -> Result<Arc<verify::ChildVerifier>, TlsError> {
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
            self.trusted.roots.clone(),
            self.provider.clone(),
        )
        .build()
        .map_err(|e| malformed(&self.own.certificate_path, &e.to_string()))?;
        let revoked = self.trusted.revoked.clone();
        Ok(Arc::new(verify::ChildVerifier { chains: verifier, revoked }))
    }

    fn serving(&self, alpn: &[u8]) -> Result<Arc<rustls::ServerConfig>, TlsError> {
        let verifier = self.child_verifier()?;
        let mut config = rustls::ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| self.config_error(&e))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(self.own.chain.clone(), self.own.key.clone_key())
            .map_err(|e| self.config_error(&e))?;
        config.alpn_protocols = vec![alpn.to_vec()];
        // A resumed session is not asked for its certificate: it would go on past the end of that.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        Ok(Arc::new(config))
    }

    /// For opening links. `parent`: the name that the parent must prove; none: any name of the
    /// authority that may serve.
    pub fn client_config(
        &self,
        parent: Option<&str>,
    ) -> Result<Arc<rustls::ClientConfig>, TlsError> {
        self.check_usage(false)?;
        let verifier = Arc::new(verify::ParentVerifier::new(
            self.trusted.roots.clone(),
            self.trusted.revoked.clone(),
            self.provider.clone(),
            parent.map(str::to_owned),
        ));
        self.connecting(verifier, ALPN)
    }

    fn connecting(
        &self,
        verifier: Arc<dyn rustls::client::danger::ServerCertVerifier>,
        alpn: &[u8],
    ) -> Result<Arc<rustls::ClientConfig>, TlsError> {
        let mut config = rustls::ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|e| self.config_error(&e))?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_auth_cert(self.own.chain.clone(), self.own.key.clone_key())
            .map_err(|e| self.config_error(&e))?;
        config.alpn_protocols = vec![alpn.to_vec()];
        config.resumption = rustls::client::Resumption::disabled();
        Ok(Arc::new(config))
    }

    fn config_error(&self, error: &rustls::Error) -> TlsError {
        match error {
            rustls::Error::InconsistentKeys(_) => TlsError::KeyMismatch {
                certificate: self.own.certificate_path.clone(),
                key: self.own.key_path.clone(),
                name: self.name.clone(),
            },
            other => malformed(&self.own.certificate_path, &other.to_string()),
        }
    }

    fn check_usage(&self, serves: bool) -> Result<(), TlsError> {
        let (_, certificate) = X509Certificate::from_der(&self.own.chain[0])
            .map_err(|e| malformed(&self.own.certificate_path, &e.to_string()))?;
        let usage = certificate.extended_key_usage().ok().flatten().is_some_and(|usage| {
            // An origin connects to other origins alone.
            if serves {
                usage.value.server_auth
            } else {
                usage.value.client_auth && !is_origin(&certificate)
            }
        });
        usage.then_some(()).ok_or_else(|| TlsError::WrongRole {
            path: self.own.certificate_path.clone(),
            name: self.name.clone(),
            wanted: if serves { "serve links" } else { "open links to a parent" },
        })
    }

    /// Whether a peer's certificate that did once still does: it was not revoked since, and its
    /// authority is still trusted. That it expired meanwhile does not matter to a link that stands.
    pub(crate) fn still_trusts(&self, certificate: &CertificateDer<'_>) -> Result<(), String> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(|e| e.to_string())?;
        let name = peer_name(certificate).unwrap_or_default();
        if let Some(since) =
            self.trusted.revoked.as_ref().and_then(|revoked| revoked.since(&parsed))
        {
            return Err(format!(
                "the certificate of `{name}` was revoked on {since}; issue a new one with `larder \
                 ca issue {name}`"
            ));
        }
        match self.trusted.has_issued(certificate) {
            true => Ok(()),
            false => Err(format!(
                "the authority that issued the certificate of `{name}` is trusted no more: it is \
                 not in ca.pem"
            )),
        }
    }

    /// When this certificate was revoked, if it was.
    fn own_revoked(&self) -> Option<ASN1Time> {
        let (_, own) = X509Certificate::from_der(&self.own.chain[0]).ok()?;
        self.trusted.revoked.as_ref()?.since(&own)
    }

    /// The ends of this certificate and of the authority that issued it.
    fn ends(&self) -> Option<(ASN1Time, ASN1Time)> {
        let (_, own) = X509Certificate::from_der(&self.own.chain[0]).ok()?;
        let issuers =
            self.trusted.authorities.iter().filter(|authority| issued_by(&own, authority));
        let ends = issuers.filter_map(|authority| {
            let (_, authority) = X509Certificate::from_der(authority).ok()?;
            Some(authority.validity().not_after)
        });
        Some((own.validity().not_after, ends.max()?))
    }

    /// Seconds from its beginning to its end.
    fn lifetime(&self) -> Option<i64> {
        let (_, own) = X509Certificate::from_der(&self.own.chain[0]).ok()?;
        let validity = own.validity();
        Some(validity.not_after.timestamp() - validity.not_before.timestamp())
    }

    /// What went wrong in a handshake, or on the first read after it (TLS 1.3 tells a client only
    /// then that its certificate was refused).
    #[must_use]
    pub fn explain(&self, peer: &str, error: &std::io::Error) -> TlsError {
        verify::explain(self, peer, error)
    }
}

/// Tells Larder's links from other protocols on the same port.
const ALPN: &[u8] = b"larder/1";

/// What somebody who dials wants to speak. Several may be served at one port: who dials names his (ALPN), and
/// is told so where it is not spoken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Protocol {
    /// Links between parents and children.
    Tree,
    /// Links between neighbours.
    Neighbours,
    /// Datagrams of a group's membership.
    Members,
    /// Links between origins.
    Origins,
}

impl Protocol {
    pub(crate) fn alpn(self) -> &'static [u8] {
        match self {
            Self::Tree => ALPN,
            Self::Neighbours => b"larder-group/1",
            Self::Members => b"larder-members/1",
            Self::Origins => b"larder-origins/1",
        }
    }
}

/// The usage by which a certificate is an origin's, beside those of who serves and who connects: one of Larder's own, as a
/// number below 2.25.
const ORIGIN_USAGE: &[u64] = &[2, 25, 7_813_586_407_434_252_897];

/// Whether a certificate says that its holder is an origin, to other origins too (decision 0038).
fn is_origin(certificate: &X509Certificate<'_>) -> bool {
    let usage = certificate.extended_key_usage().ok().flatten();
    usage.is_some_and(|usage| {
        let all = usage.value.server_auth && usage.value.client_auth;
        let own = |oid: &x509_parser::der_parser::Oid<'_>| {
            oid.iter().is_some_and(|arcs| arcs.eq(ORIGIN_USAGE.iter().copied()))
        };
        all && usage.value.other.iter().any(own)
    })
}

/// Beginning of the URI under which a certificate names a group.
const GROUP_URI: &str = "larder-group:";

/// Whether a group can have this name: 1 to 63 letters, digits, `-`, `_` and `.`, beginning with a letter or
/// digit.
#[must_use]
pub fn is_group_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.as_bytes()[0].is_ascii_alphanumeric()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// Who is at the other end of a link, as its certificate proves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Proven {
    /// Its name.
    pub(crate) name: String,
    /// What it may be.
    pub(crate) role: larder_core::message::Role,
    /// The groups it is of.
    pub(crate) groups: Vec<String>,
    /// It is an origin, and may speak to others.
    pub(crate) is_origin: bool,
}

impl Proven {
    /// What a certificate says; none: it holds no name.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let (role, groups) = (peer_role(certificate), peer_groups(certificate));
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        let is_origin = is_origin(&parsed);
        Some(Self { name: peer_name(certificate)?, role, groups, is_origin })
    }

    /// Whether it is of a group.
    pub(crate) fn is_of(&self, group: &str) -> bool {
        self.groups.iter().any(|of| of == group)
    }
}

/// The Larder identity that a certificate names.
pub fn peer_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let names = certificate.subject_alternative_name().ok()??;
    names.value.general_names.iter().find_map(|name| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    })
}

/// The groups that a certificate names.
pub fn peer_groups(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok((_, certificate)) = X509Certificate::from_der(certificate) else { return Vec::new() };
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.into_iter().flat_map(|names| names.value.general_names.iter());
    let groups = names.filter_map(|name| match name {
        GeneralName::URI(uri) => uri.strip_prefix(GROUP_URI),
        _ => None,
    });
    groups.map(str::to_owned).collect()
}

/// What a certificate lets a child be: a relay only if it may serve as well.
pub fn peer_role(certificate: &CertificateDer<'_>) -> larder_core::message::Role {
    let serves = X509Certificate::from_der(certificate).is_ok_and(|(_, certificate)| {
        let usage = certificate.extended_key_usage().ok().flatten();
        let both = usage.is_some_and(|usage| usage.value.server_auth && usage.value.client_auth);
        both && !is_origin(&certificate)
    });
    if serves { larder_core::message::Role::Relay } else { larder_core::message::Role::Node }
}

fn issued_by(certificate: &X509Certificate<'_>, authority: &CertificateDer<'_>) -> bool {
    X509Certificate::from_der(authority)
        .is_ok_and(|(_, ca)| certificate.verify_signature(Some(ca.public_key())).is_ok())
}

fn check_certificate(own: &Own, trusted: &Trusted, name: &str) -> Result<(), TlsError> {
    let (path, certificate) = (own.certificate_path.as_path(), &own.chain[0]);
    let (ca_path, authorities) = (trusted.path.as_path(), &trusted.authorities);
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|e| malformed(path, &e.to_string()))?;
    // Two authorities are trusted while one takes over from the other.
    let mut issuer = None;
    for ca in authorities {
        let (_, ca) =
            X509Certificate::from_der(ca).map_err(|e| malformed(ca_path, &e.to_string()))?;
        if parsed.verify_signature(Some(ca.public_key())).is_ok() {
            issuer = Some(ca);
        }
    }
    let ca = issuer
        .ok_or_else(|| TlsError::Foreign { path: path.to_owned(), ca: ca_path.to_owned() })?;
    let found = peer_name(certificate).unwrap_or_default();
    if found != name {
        return Err(TlsError::WrongName {
            path: path.to_owned(),
            expected: name.to_owned(),
            found,
        });
    }
    let now = x509_parser::time::ASN1Time::now();
    if now < parsed.validity().not_before {
        return Err(TlsError::NotYetValid {
            path: path.to_owned(),
            from: parsed.validity().not_before.to_string(),
        });
    }
    if now > ca.validity().not_after {
        return Err(TlsError::File {
            path: ca_path.to_owned(),
            detail: format!("the authority expired on {}", ca.validity().not_after),
            remedy: "make a new one with `larder ca init`, and issue all certificates by it".into(),
        });
    }
    if now > parsed.validity().not_after {
        return Err(TlsError::Expired {
            path: path.to_owned(),
            name: name.to_owned(),
            until: parsed.validity().not_after.to_string(),
        });
    }
    Ok(())
}

fn malformed(path: &Path, detail: &str) -> TlsError {
    TlsError::Malformed { path: path.to_owned(), what: "certificate", detail: detail.to_owned() }
}

fn read_file(path: &Path, remedy: &str) -> Result<Vec<u8>, TlsError> {
    std::fs::read(path).map_err(|e| TlsError::File {
        path: path.to_owned(),
        detail: e.to_string(),
        remedy: remedy.to_owned(),
    })
}

fn read_certificates(path: &Path, remedy: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = read_file(path, remedy)?;
    let certificates = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| malformed(path, &e.to_string()))?;
    if certificates.is_empty() {
        return Err(malformed(path, "it holds no certificate"));
    }
    Ok(certificates)
}

fn check_key_mode(path: &Path) -> Result<(), TlsError> {
    // A missing file is reported by whoever reads it, with a better remedy.
    let Ok(metadata) = std::fs::metadata(path) else {
        return Ok(());
    };
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(TlsError::KeyExposed { path: path.to_owned(), mode });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
