//! The private certificate authority: `larder ca`.

use super::error::TlsError;
use super::issued::{self, Edition, ISSUED_FILE, Issued, Standing, hexadecimal, serial_bytes};
use super::revoked::{Revoked, lists, no_list};
use super::{
    CA_FILE, CA_KEY_FILE, CRL_FILE, GROUP_URI, certificate_file, check_key_mode, is_group_name,
    key_file, read_certificates, read_file,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose, PublicKeyData,
    RevokedCertParams, SanType, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use time::{OffsetDateTime, PrimitiveDateTime};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};
use x509_parser::time::ASN1Time;

/// How long an authority is valid.
const AUTHORITY_DAYS: u32 = 3650;
/// Certificates begin this long before now, so that a machine whose clock is a little behind may
/// use them at once.
const CLOCK_SLACK: Duration = Duration::from_secs(3600);

/// How long a command waits for another that has the authority open.
const TURN_LIMIT: Duration = Duration::from_secs(10);

/// What a certificate's holder may be: enforced by the extended key usage, so that a node's
/// certificate can never pose as an origin.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Opens links to parents.
    Node,
    /// Opens links and serves them.
    Relay,
    /// Serves links, and opens them to other origins.
    Origin,
}

impl Role {
    fn usages(self) -> Vec<ExtendedKeyUsagePurpose> {
        let both =
            || vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        match self {
            Self::Node => vec![ExtendedKeyUsagePurpose::ClientAuth],
            Self::Relay => both(),
            // It connects to other origins. By these two alone it would be a relay.
            Self::Origin => {
                let origin = ExtendedKeyUsagePurpose::Other(super::ORIGIN_USAGE.to_vec());
                both().into_iter().chain([origin]).collect()
            }
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

/// A certificate authority, kept in a folder: `ca.pem`, the list of revoked certificates
/// `ca-crl.pem`, and for its owner alone `ca-key.pem` and the list of what it issued. While one is
/// open nobody else opens it: commands take turns.
pub struct Authority {
    dir: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate: of `ca.pem`, which may hold others.
    certificate: CertificateDer<'static>,
    _turn: fs::File,
}

/// Which certificates are to be revoked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Which {
    /// All of a name.
    Name(String),
    /// All of a name but the one that is in its file now: what a renewal replaced.
    Replaced(String),
    /// The one with this serial number, in hexadecimal, whether it is known here or not.
    Serial(String),
}

/// What was revoked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Revocation {
    /// Certificates that are known to have been issued here.
    pub known: Vec<Issued>,
    /// The serial number of one that is not: it was issued before there was a list, or elsewhere.
    pub unknown: Option<String>,
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
    let mut params = validity(CertificateParams::default(), seconds(AUTHORITY_DAYS));
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = params.self_signed(&key).map_err(|e| generation_error(dir, &e))?;
    write_file(&dir.join(CA_KEY_FILE), key.serialize_pem().as_bytes(), 0o600)?;
    write_file(&dir.join(CA_FILE), certificate.pem().as_bytes(), 0o644)?;
    let authority = Authority::open(dir)?;
    authority.write_list(Vec::new())?;
    Ok(authority)
}

impl Authority {
    /// Opens the authority kept in `dir`; waits up to ten seconds while another command has it open.
    pub fn open(dir: &Path) -> Result<Self, TlsError> {
        let ca_path = dir.join(CA_FILE);
        let authorities = read_certificates(&ca_path, "make an authority with `larder ca init`")?;
        let key_path = dir.join(CA_KEY_FILE);
        check_key_mode(&key_path)?;
        let remedy = "certificates are issued where the authority was made";
        let turn = fs::File::open(&key_path).map_err(|e| file_error(&key_path, &e, remedy))?;
        take_turn(&turn, &key_path)?;
        let key = String::from_utf8_lossy(&read_file(&key_path, remedy)?).into_owned();
        let key = KeyPair::from_pem(&key).map_err(|e| TlsError::Malformed {
            path: key_path,
            what: "private key",
            detail: e.to_string(),
        })?;
        // While a new authority takes over, the certificate of the old one is in the file too.
        let public = key.subject_public_key_info();
        let is_own = |certificate: &CertificateDer<'_>| {
            X509Certificate::from_der(certificate).is_ok_and(|(_, c)| c.public_key().raw == public)
        };
        let wrong = |detail: String| TlsError::Malformed {
            path: ca_path.clone(),
            what: "authority's certificate",
            detail,
        };
        let own = authorities.into_iter().find(is_own);
        let certificate = own.ok_or_else(|| wrong("none in it is of ca-key.pem".into()))?;
        let issuer =
            Issuer::from_ca_cert_der(&certificate, key).map_err(|e| wrong(e.to_string()))?;
        let authority = Self { dir: dir.to_owned(), issuer, certificate, _turn: turn };
        authority.check_list()?;
        Ok(authority)
    }

    /// Makes the revocation list again if it was lost, or is behind what was recorded: a command may
    /// have ended between the two.
    fn check_list(&self) -> Result<(), TlsError> {
        let (recorded, (edition, _)) = (issued::recorded(&self.dir)?, self.own_edition()?);
        if !recorded.exists && edition > 1 {
            return Err(TlsError::File {
                path: self.dir.join(ISSUED_FILE),
                detail: "it is missing, though certificates were revoked here: those that were \
                         replaced are not known without it, and would not be revoked"
                    .into(),
                remedy: "restore it from a backup, or begin it anew by making an empty file".into(),
            });
        }
        if recorded.edition() > edition {
            self.write_list(self.revoked()?)?;
        }
        Ok(())
    }

    /// Issues a certificate for `name`, written to `NAME.pem` and `NAME-key.pem` in `out`, with
    /// copies of the authority's certificate and list when `out` is another folder. `days` from
    /// now.
    pub fn issue(&self, out: &Path, name: &str, role: Role, days: u32) -> Result<(), TlsError> {
        self.issue_in(out, (name, role, &[]), days)
    }

    /// The same for a name that is in groups of neighbours.
    pub fn issue_in(
        &self,
        out: &Path,
        (name, role, groups): (&str, Role, &[String]),
        days: u32,
    ) -> Result<(), TlsError> {
        check_name(name)?;
        fs::create_dir_all(out).map_err(|e| file_error(out, &e, "choose a folder to write to"))?;
        let key = KeyPair::generate().map_err(|e| generation_error(out, &e))?;
        let certificate = self.sign(out, (name, role, groups), &key, seconds(days))?;
        write_file(&out.join(key_file(name)), key.serialize_pem().as_bytes(), 0o600)?;
        write_file(&out.join(certificate_file(name)), certificate.pem().as_bytes(), 0o644)?;
        for file in [CA_FILE, CRL_FILE] {
            let (original, copy) = (self.dir.join(file), out.join(file));
            if original.exists() && !copy.exists() {
                write_file(&copy, &read_file(&original, "restore the authority")?, 0o644)?;
            }
        }
        Ok(())
    }

    /// Issues a certificate once more for the name and role in `NAME.pem`, with its key or a new
    /// one, for `days`, or for as long as it was. The old one stays good until it expires or is
    /// revoked. The key of one that was revoked is not signed again. The groups it was of stay, and
    /// `groups` are added to them.
    pub fn renew(
        &self,
        name: &str,
        new_key: bool,
        days: Option<u32>,
        groups: &[String],
    ) -> Result<Issued, TlsError> {
        check_name(name)?;
        let (path, key_path) =
            (self.dir.join(certificate_file(name)), self.dir.join(key_file(name)));
        let remedy = format!("issue it with `larder ca issue {name}`");
        let old = Issued::of(&path, &read_certificates(&path, &remedy)?[0])?;
        if !new_key && self.revoked()?.iter().any(|entry| is_of(entry, &old)) {
            return Err(TlsError::RevokedKey { path, name: name.to_owned() });
        }
        let key = if new_key {
            KeyPair::generate().map_err(|e| generation_error(&self.dir, &e))?
        } else {
            check_key_mode(&key_path)?;
            let remedy = "renew it with --new-key where its key is elsewhere";
            let text = String::from_utf8_lossy(&read_file(&key_path, remedy)?).into_owned();
            KeyPair::from_pem(&text).map_err(|e| TlsError::Malformed {
                path: key_path.clone(),
                what: "private key",
                detail: e.to_string(),
            })?
        };
        let lasted = Duration::from_secs(u64::try_from(old.until - old.from).unwrap_or(0));
        let lasts = days.map_or(lasted.saturating_sub(CLOCK_SLACK), seconds);
        let groups = [&old.groups, groups].concat();
        let certificate = self.sign(&self.dir, (name, old.role, &groups), &key, lasts)?;
        if new_key {
            write_file(&key_path, key.serialize_pem().as_bytes(), 0o600)?;
        }
        write_file(&path, certificate.pem().as_bytes(), 0o644)?;
        Issued::of(&path, certificate.der())
    }

    fn sign(
        &self,
        out: &Path,
        (name, role, groups): (&str, Role, &[String]),
        key: &KeyPair,
        lasts: Duration,
    ) -> Result<rcgen::Certificate, TlsError> {
        let mut params = validity(CertificateParams::default(), lasts);
        params.distinguished_name.push(DnType::CommonName, name);
        let san = name.try_into().map_err(|_| TlsError::BadName(name.to_owned()))?;
        params.subject_alt_names.push(SanType::DnsName(san));
        for group in groups.iter().collect::<BTreeSet<_>>() {
            let bad = || TlsError::BadGroup(group.clone());
            let uri =
                is_group_name(group).then(|| format!("{GROUP_URI}{group}")).ok_or_else(bad)?;
            params.subject_alt_names.push(SanType::URI(uri.try_into().map_err(|_| bad())?));
        }
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = role.usages();
        params.use_authority_key_identifier_extension = true;
        // By itself it would be made of the key, and a renewal with the same key would be revoked
        // together with what it replaces. Positive, and as long as every other one.
        let number = crate::clock::random_u128() >> 1 | 1 << 126;
        params.serial_number = Some(SerialNumber::from(number.to_be_bytes().to_vec()));
        let certificate =
            params.signed_by(key, &self.issuer).map_err(|e| generation_error(out, &e))?;
        let issued = Issued::of(out, certificate.der())?;
        issued::add(&self.dir, out, &issued, |certificate| self.has_issued(certificate))?;
        Ok(certificate)
    }

    /// All certificates that were issued here, by name, each with what it is worth now.
    pub fn list(&self) -> Result<Vec<(Issued, Standing)>, TlsError> {
        let revoked = self.revoked()?;
        let now = ASN1Time::now().timestamp();
        let standing = |issued: &Issued| {
            if revoked.iter().any(|entry| is_of(entry, issued)) {
                Standing::Revoked
            } else if issued.until < now {
                Standing::Expired
            } else {
                Standing::Valid
            }
        };
        Ok(self.issued()?.into_iter().map(|issued| (issued.clone(), standing(&issued))).collect())
    }

    fn issued(&self) -> Result<Vec<Issued>, TlsError> {
        issued::load(&self.dir, |certificate| self.has_issued(certificate))
    }

    fn has_issued(&self, certificate: &X509Certificate<'_>) -> bool {
        super::issued_by(certificate, &self.certificate)
    }

    /// Revokes certificates: writes the next edition of `ca-crl.pem`. Gives what it revoked; an
    /// error if that would be nothing.
    pub fn revoke(&self, which: &Which) -> Result<Revocation, TlsError> {
        let kept = match which {
            Which::Replaced(name) => Some(self.current(name)?.serial),
            _ => None,
        };
        let which = match which {
            // Other tools write capitals and colons.
            Which::Serial(serial) => &Which::Serial(serial.replace(':', "").to_lowercase()),
            other => other,
        };
        let mut entries = self.revoked()?;
        let chosen: Vec<Issued> = self
            .list()?
            .into_iter()
            .filter(|(issued, standing)| {
                *standing != Standing::Revoked
                    && match which {
                        Which::Name(name) => issued.name == *name,
                        Which::Replaced(name) => {
                            issued.name == *name && Some(&issued.serial) != kept.as_ref()
                        }
                        Which::Serial(serial) => issued.serial == *serial,
                    }
            })
            .map(|(issued, _)| issued)
            .collect();
        let unknown = match which {
            Which::Serial(serial) if chosen.is_empty() => serial_bytes(serial)
                .filter(|bytes| entries.iter().all(|e| e.serial_number.to_bytes() != *bytes))
                .map(|_| serial.clone()),
            _ => None,
        };
        if chosen.is_empty() && unknown.is_none() {
            let what = match which {
                Which::Name(name) => format!("no certificate of `{name}` is left to be revoked"),
                Which::Replaced(name) => format!("no replaced certificate of `{name}` is left"),
                Which::Serial(serial) => format!("no certificate {serial} is left to be revoked"),
            };
            return Err(TlsError::NotIssued { what });
        }
        let now = OffsetDateTime::from(SystemTime::now());
        let serials = chosen.iter().map(|issued| &issued.serial).chain(&unknown);
        entries.extend(serials.filter_map(|serial| revoked_entry(serial, now)));
        self.write_list(entries)?;
        Ok(Revocation { known: chosen, unknown })
    }

    fn current(&self, name: &str) -> Result<Issued, TlsError> {
        check_name(name)?;
        let path = self.dir.join(certificate_file(name));
        let remedy = format!("to revoke all of the name: `larder ca revoke {name}`");
        Issued::of(&path, &read_certificates(&path, &remedy)?[0])
    }

    /// What this authority's list holds, and what was recorded to be in it.
    fn revoked(&self) -> Result<Vec<RevokedCertParams>, TlsError> {
        let (_, mut entries) = self.own_edition()?;
        for edition in issued::recorded(&self.dir)?.editions {
            let at = OffsetDateTime::from_unix_timestamp(edition.at)
                .unwrap_or(OffsetDateTime::UNIX_EPOCH);
            for entry in edition.revoked.iter().filter_map(|serial| revoked_entry(serial, at)) {
                if entries.iter().all(|known| known.serial_number != entry.serial_number) {
                    entries.push(entry);
                }
            }
        }
        Ok(entries)
    }

    /// The number of this authority's list, zero if there is none, and what it holds.
    fn own_edition(&self) -> Result<(u64, Vec<RevokedCertParams>), TlsError> {
        let (mut edition, mut entries) = (0, Vec::new());
        let path = self.dir.join(CRL_FILE);
        for (_, list) in self.lists()? {
            let (_, list) = CertificateRevocationList::from_der(&list)
                .map_err(|e| no_list(&path, &e.to_string()))?;
            if !self.is_own(&list) {
                continue;
            }
            let number = list.crl_number().and_then(|number| u64::try_from(number).ok());
            edition = number.ok_or_else(|| no_list(&path, "its number is not one of ours"))?;
            for entry in list.iter_revoked_certificates() {
                entries.push(RevokedCertParams {
                    serial_number: SerialNumber::from(entry.serial().to_bytes_be()),
                    revocation_time: entry.revocation_date.to_datetime(),
                    reason_code: None,
                    invalidity_date: None,
                });
            }
        }
        Ok((edition, entries))
    }

    /// The lists in `ca-crl.pem`: ours, and while it takes over from an older authority, that
    /// one's; each as text and decoded from its armour. Every one is checked.
    fn lists(&self) -> Result<Vec<(String, Vec<u8>)>, TlsError> {
        let authorities = read_certificates(&self.dir.join(CA_FILE), "restore the authority")?;
        if Revoked::load(&self.dir, &authorities)?.is_none() {
            return Ok(Vec::new());
        }
        let path = self.dir.join(CRL_FILE);
        let bytes = read_file(&path, "restore it from a backup")?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let texts = text.split_inclusive("-----END X509 CRL-----").map(str::to_owned);
        Ok(texts.zip(lists(&path, &bytes)?.iter().map(|list| list.as_ref().to_vec())).collect())
    }

    fn is_own(&self, list: &CertificateRevocationList<'_>) -> bool {
        X509Certificate::from_der(&self.certificate)
            .is_ok_and(|(_, own)| list.verify_signature(own.public_key()).is_ok())
    }

    /// Writes the next edition of this authority's list, beside those of others.
    fn write_list(&self, revoked_certs: Vec<RevokedCertParams>) -> Result<(), TlsError> {
        let path = self.dir.join(CRL_FILE);
        let recorded = issued::recorded(&self.dir)?;
        let edition = self.own_edition()?.0.max(recorded.edition()).checked_add(1);
        let edition = edition.ok_or_else(|| no_list(&path, "there is no number above its own"))?;
        let mut text = String::new();
        for (armoured, list) in self.lists()? {
            let (_, parsed) = CertificateRevocationList::from_der(&list)
                .map_err(|e| no_list(&path, &e.to_string()))?;
            if !self.is_own(&parsed) {
                text.push_str(armoured.trim_start());
                text.push('\n');
            }
        }
        let serials = revoked_certs.iter().map(|entry| hexadecimal(entry.serial_number.as_ref()));
        let is_new =
            |serial: &String| recorded.editions.iter().all(|e| !e.revoked.contains(serial));
        let revoked = serials.filter(is_new).collect();
        let at = OffsetDateTime::from(SystemTime::now()).unix_timestamp();
        issued::add_edition(&self.dir, Edition { edition, revoked, at })?;
        let now = SystemTime::now();
        let list = CertificateRevocationListParams {
            this_update: OffsetDateTime::from(now - CLOCK_SLACK),
            // Larder goes by the number, not by this time; other tools may not.
            next_update: OffsetDateTime::from(now + seconds(AUTHORITY_DAYS)),
            crl_number: SerialNumber::from(edition),
            issuing_distribution_point: None,
            revoked_certs,
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuer).map_err(|e| generation_error(&self.dir, &e))?;
        text.push_str(&list.pem().map_err(|e| generation_error(&self.dir, &e))?);
        write_file(&path, text.as_bytes(), 0o644)
    }
}

/// Whether an entry of a list revokes a certificate.
fn is_of(entry: &RevokedCertParams, issued: &Issued) -> bool {
    Some(entry.serial_number.to_bytes()) == serial_bytes(&issued.serial)
}

fn revoked_entry(serial: &str, revocation_time: OffsetDateTime) -> Option<RevokedCertParams> {
    let serial_number = SerialNumber::from(serial_bytes(serial)?);
    Some(RevokedCertParams {
        serial_number,
        revocation_time,
        reason_code: None,
        invalidity_date: None,
    })
}

/// Waits until nobody else has the authority open.
fn take_turn(key: &fs::File, path: &Path) -> Result<(), TlsError> {
    let end = Instant::now() + TURN_LIMIT;
    loop {
        let error = match key.try_lock() {
            Ok(()) => return Ok(()),
            Err(fs::TryLockError::WouldBlock) if Instant::now() < end => {
                std::thread::sleep(TURN_LIMIT / 100);
                continue;
            }
            Err(fs::TryLockError::WouldBlock) => std::io::Error::other("in use"),
            Err(fs::TryLockError::Error(error)) => error,
        };
        return Err(file_error(path, &error, "wait until no other `larder ca` is running"));
    }
}

fn seconds(days: u32) -> Duration {
    Duration::from_secs(u64::from(days) * 86_400)
}

fn validity(mut params: CertificateParams, lasts: Duration) -> CertificateParams {
    let now = OffsetDateTime::from(SystemTime::now());
    params.not_before = now - CLOCK_SLACK;
    let end = time::Duration::try_from(lasts).ok().and_then(|lasts| now.checked_add(lasts));
    // No later end can be written than that of the year 9999, which stands for none.
    params.not_after = end.unwrap_or(PrimitiveDateTime::MAX.assume_utc());
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
}

/// A name that a certificate can be issued for: it also names files.
fn check_name(name: &str) -> Result<(), TlsError> {
    let good = (1..=63).contains(&name.len())
        && name.as_bytes()[0].is_ascii_alphanumeric()
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && !name.ends_with("-key")
        && !matches!(name, "ca" | "ca-crl");
    good.then_some(()).ok_or_else(|| TlsError::BadName(name.to_owned()))
}

/// Writes a file in the place of one that may be there: whoever reads meanwhile sees either whole.
pub(super) fn write_file(path: &Path, bytes: &[u8], mode: u32) -> Result<(), TlsError> {
    let write = || {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        // The mode holds for new files only: one that was left behind must go first.
        match fs::remove_file(&beside) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let new = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&beside);
        let mut file = new?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        path.parent().map_or(Ok(()), |folder| fs::File::open(folder)?.sync_all())
    };
    write().map_err(|e| file_error(path, &e, "choose a folder to write to"))
}

pub(super) fn file_error(path: &Path, error: &std::io::Error, remedy: &str) -> TlsError {
    TlsError::File { path: path.to_owned(), detail: error.to_string(), remedy: remedy.to_owned() }
}

fn generation_error(dir: &Path, error: &rcgen::Error) -> TlsError {
    TlsError::Malformed {
        path: dir.to_owned(),
        what: "place to issue certificates for",
        detail: error.to_string(),
    }
}
