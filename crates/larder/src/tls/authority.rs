//! The private certificate authority: `larder ca init` and `larder ca issue`.

use super::error::TlsError;
use super::{CA_FILE, CA_KEY_FILE, certificate_file, key_file};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;

/// How long an authority is valid.
const AUTHORITY_DAYS: u32 = 3650;
/// Certificates begin this long before now, so that a machine whose clock is a little behind may
/// use them at once.
const CLOCK_SLACK: Duration = Duration::from_secs(3600);

/// What a certificate's holder may be: enforced by the extended key usage, so that a node's
/// certificate can never pose as an origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Role {
    /// Opens links to parents.
    Node,
    /// Opens links and serves them.
    Relay,
    /// Serves links.
    Origin,
}

impl Role {
    fn usages(self) -> &'static [ExtendedKeyUsagePurpose] {
        match self {
            Self::Node => &[ExtendedKeyUsagePurpose::ClientAuth],
            Self::Relay => {
                &[ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth]
            }
            Self::Origin => &[ExtendedKeyUsagePurpose::ServerAuth],
        }
    }
}

impl std::str::FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "node" => Ok(Self::Node),
            "relay" => Ok(Self::Relay),
            "origin" => Ok(Self::Origin),
            other => Err(format!("`{other}` is no role: node, relay or origin")),
        }
    }
}

/// A certificate authority, kept in a folder: `ca.pem`, and `ca-key.pem` which only its owner may
/// read.
pub struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// Makes an authority in `dir`. Never overwrites one.
pub fn init(dir: &Path, name: &str) -> Result<Authority, TlsError> {
    fs::create_dir_all(dir).map_err(|e| file_error(dir, &e, "choose a folder to write to"))?;
    for file in [CA_FILE, CA_KEY_FILE] {
        if dir.join(file).exists() {
            return Err(TlsError::AuthorityExists(dir.join(file)));
        }
    }
    let key = KeyPair::generate().map_err(|e| generation_error(dir, &e))?;
    let mut params = validity(CertificateParams::default(), AUTHORITY_DAYS);
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key).map_err(|e| generation_error(dir, &e))?;
    write_file(&dir.join(CA_KEY_FILE), key.serialize_pem().as_bytes(), 0o600)?;
    write_file(&dir.join(CA_FILE), certificate.pem().as_bytes(), 0o644)?;
    Authority::open(dir)
}

impl Authority {
    /// Opens the authority kept in `dir`.
    pub fn open(dir: &Path) -> Result<Self, TlsError> {
        let ca = super::read_file(&dir.join(CA_FILE), "make an authority with `larder ca init`")?;
        let key_path = dir.join(CA_KEY_FILE);
        super::check_key_mode(&key_path)?;
        let key =
            super::read_file(&key_path, "certificates are issued where the authority was made")?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let key = KeyPair::from_pem(&text(key)).map_err(|e| TlsError::Malformed {
            path: key_path,
            what: "private key",
            detail: e.to_string(),
        })?;
        let issuer = Issuer::from_ca_cert_pem(&text(ca), key).map_err(|e| TlsError::Malformed {
            path: dir.join(CA_FILE),
            what: "authority's certificate",
            detail: e.to_string(),
        })?;
        Ok(Self { dir: dir.to_owned(), issuer })
    }

    /// Issues a certificate for `name`, written to `NAME.pem` and `NAME-key.pem` in `out`, with a
    /// copy of the authority's certificate when `out` is another folder. `days` from now.
    pub fn issue(&self, out: &Path, name: &str, role: Role, days: u32) -> Result<(), TlsError> {
        check_name(name)?;
        fs::create_dir_all(out).map_err(|e| file_error(out, &e, "choose a folder to write to"))?;
        let key = KeyPair::generate().map_err(|e| generation_error(out, &e))?;
        let mut params = validity(CertificateParams::default(), days);
        params.distinguished_name.push(DnType::CommonName, name);
        let san = name.try_into().map_err(|_| TlsError::BadName(name.to_owned()))?;
        params.subject_alt_names.push(SanType::DnsName(san));
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = role.usages().to_vec();
        params.use_authority_key_identifier_extension = true;
        let certificate =
            params.signed_by(&key, &self.issuer).map_err(|e| generation_error(out, &e))?;
        write_file(&out.join(key_file(name)), key.serialize_pem().as_bytes(), 0o600)?;
        write_file(&out.join(certificate_file(name)), certificate.pem().as_bytes(), 0o644)?;
        let ca_copy = out.join(CA_FILE);
        if !ca_copy.exists() {
            let ca = super::read_file(&self.dir.join(CA_FILE), "restore the authority")?;
            write_file(&ca_copy, &ca, 0o644)?;
        }
        Ok(())
    }
}

fn validity(mut params: CertificateParams, days: u32) -> CertificateParams {
    let now = SystemTime::now();
    params.not_before = OffsetDateTime::from(now - CLOCK_SLACK);
    params.not_after = OffsetDateTime::from(now + Duration::from_secs(u64::from(days) * 86_400));
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
}

/// A name that a certificate can be issued for: it also names files.
fn check_name(name: &str) -> Result<(), TlsError> {
    let good = (1..=63).contains(&name.len())
        && name.as_bytes()[0].is_ascii_alphanumeric()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && !name.ends_with("-key")
        && !matches!(name, "ca");
    good.then_some(()).ok_or_else(|| TlsError::BadName(name.to_owned()))
}

fn write_file(path: &Path, bytes: &[u8], mode: u32) -> Result<(), TlsError> {
    let write = || {
        // The mode holds for new files only: an old key that others may read must go first.
        match fs::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|e| file_error(path, &e, "choose a folder to write to"))
}

fn file_error(path: &Path, error: &std::io::Error, remedy: &str) -> TlsError {
    TlsError::File { path: path.to_owned(), detail: error.to_string(), remedy: remedy.to_owned() }
}

fn generation_error(dir: &Path, error: &rcgen::Error) -> TlsError {
    TlsError::Malformed {
        path: dir.to_owned(),
        what: "place to issue certificates for",
        detail: error.to_string(),
    }
}
