//! What an authority has issued and revoked: `ca-issued.jsonl`, a line of JSON a certificate, so that
//! one that was replaced, and lies on a machine that is lost, can still be revoked; and a line an
//! edition of the revocation list, so that a list that was lost is made again, and never one that
//! knows less.

use super::authority::{Role, file_error, write_file};
use super::{TlsError, malformed, peer_groups, peer_name, read_certificates, read_file};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};
use std::path::Path;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The list of issued certificates, beside the authority's key.
pub(super) const ISSUED_FILE: &str = "ca-issued.jsonl";

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Issued(Issued),
    Edition(Edition),
}

/// The last second that a list can name, of the year 9999.
const TIME_MAX: i64 = 253_402_300_799;

impl Line {
    /// Whether a revocation list can be made of it.
    fn check(&self) -> Result<(), &'static str> {
        let (serials, time) = match self {
            Self::Issued(issued) => (std::slice::from_ref(&issued.serial), None),
            Self::Edition(edition) => (&*edition.revoked, Some(edition.at)),
        };
        if serials.iter().any(|serial| serial_bytes(serial).is_none()) {
            return Err("a serial number is none");
        }
        if time.is_some_and(|time| !(0..=TIME_MAX).contains(&time)) {
            return Err("a time is not from 1970 to 9999");
        }
        Ok(())
    }
}

/// An edition of the revocation list: what it adds to the one before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Edition {
    /// Its number.
    pub(super) edition: u64,
    /// Serial numbers, in hexadecimal.
    pub(super) revoked: Vec<String>,
    /// When, in seconds since 1970.
    pub(super) at: i64,
}

/// What the file holds.
#[derive(Default)]
pub(super) struct Recorded {
    /// Whether there is one.
    pub(super) exists: bool,
    pub(super) editions: Vec<Edition>,
    issued: Vec<Issued>,
}

impl Recorded {
    /// The number of the last edition; zero: none is known of.
    pub(super) fn edition(&self) -> u64 {
        self.editions.iter().map(|edition| edition.edition).max().unwrap_or(0)
    }
}

/// Whether a certificate may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// It may.
    Valid,
    /// Its time is over.
    Expired,
    /// It was taken back.
    Revoked,
}

/// One certificate that an authority issued.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Issued {
    /// Its serial number, in hexadecimal.
    pub serial: String,
    /// The Larder name in it.
    pub name: String,
    /// What its holder may be.
    pub role: Role,
    /// The groups it is of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Its beginning, in seconds since 1970.
    pub from: i64,
    /// Its end, likewise.
    pub until: i64,
}

impl Issued {
    /// What a certificate says of itself.
    pub(super) fn of(path: &Path, certificate: &CertificateDer<'_>) -> Result<Self, TlsError> {
        let (_, parsed) =
            X509Certificate::from_der(certificate).map_err(|e| malformed(path, &e.to_string()))?;
        let usage = parsed.extended_key_usage().ok().flatten();
        let (serves, connects) =
            usage.map_or((false, false), |u| (u.value.server_auth, u.value.client_auth));
        let role = match (serves, connects) {
            _ if super::is_origin(&parsed) => Role::Origin,
            (true, true) => Role::Relay,
            (true, false) => Role::Origin,
            (false, true) => Role::Node,
            (false, false) => return Err(malformed(path, "it has no role")),
        };
        Ok(Self {
            serial: hexadecimal(&parsed.tbs_certificate.serial.to_bytes_be()),
            name: peer_name(certificate).ok_or_else(|| malformed(path, "it holds no name"))?,
            role,
            groups: peer_groups(certificate),
            from: parsed.validity().not_before.timestamp(),
            until: parsed.validity().not_after.timestamp(),
        })
    }
}

/// A serial number as bytes; none: it is not one.
pub(super) fn serial_bytes(serial: &str) -> Option<Vec<u8>> {
    let digits = serial.bytes().all(|byte| byte.is_ascii_hexdigit());
    if serial.is_empty() || !serial.len().is_multiple_of(2) || !digits {
        return None;
    }
    let digits = |at: usize| u8::from_str_radix(serial.get(at..at + 2)?, 16).ok();
    (0..serial.len()).step_by(2).map(digits).collect()
}

/// The certificates of Larder in a folder, its authorities aside; no key is looked at.
pub fn certificates(folder: &Path) -> Result<Vec<Issued>, TlsError> {
    load(folder, |_| true)
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// All that is known to have been issued in `dir`: the list, and certificates of the folder that
/// were issued before there was one. By name, then by beginning.
pub(super) fn load(
    dir: &Path,
    is_ours: impl Fn(&X509Certificate<'_>) -> bool,
) -> Result<Vec<Issued>, TlsError> {
    let mut all = recorded(dir)?.issued;
    all.extend(unrecorded(dir, &all, is_ours)?);
    all.sort_by(|a, b| (&a.name, a.from, &a.serial).cmp(&(&b.name, b.from, &b.serial)));
    Ok(all)
}

/// What `ca-issued.jsonl` holds.
pub(super) fn recorded(dir: &Path) -> Result<Recorded, TlsError> {
    let path = dir.join(ISSUED_FILE);
    let mut recorded = Recorded::default();
    if !path.try_exists().unwrap_or(true) {
        return Ok(recorded);
    }
    recorded.exists = true;
    let text = String::from_utf8_lossy(&read_file(&path, "restore it from a backup")?).into_owned();
    for (number, line) in text.lines().enumerate() {
        let wrong = |detail: String| TlsError::File {
            path: path.clone(),
            detail: format!("line {}: {detail}", number + 1),
            remedy: "mend it by hand, or restore it from a backup".into(),
        };
        let line: Line = serde_json::from_str(line).map_err(|e| wrong(e.to_string()))?;
        line.check().map_err(|detail| wrong(detail.into()))?;
        match line {
            Line::Issued(issued) => recorded.issued.push(issued),
            Line::Edition(edition) => recorded.editions.push(edition),
        }
    }
    Ok(recorded)
}

/// Certificates in a folder that are not among those known.
fn unrecorded(
    folder: &Path,
    known: &[Issued],
    is_ours: impl Fn(&X509Certificate<'_>) -> bool,
) -> Result<Vec<Issued>, TlsError> {
    let mut found: Vec<Issued> = Vec::new();
    let entries =
        std::fs::read_dir(folder).map_err(|e| file_error(folder, &e, "is it the authority's?"))?;
    for entry in entries {
        let path = entry.map_err(|e| file_error(folder, &e, "is it the authority's?"))?.path();
        if path.extension().is_none_or(|extension| extension != "pem") {
            continue;
        }
        // Keys, lists and authorities lie there too.
        let Ok(certificates) = read_certificates(&path, "") else {
            continue;
        };
        let Ok(issued) = Issued::of(&path, &certificates[0]) else {
            continue;
        };
        let ours = X509Certificate::from_der(&certificates[0]).is_ok_and(|(_, c)| is_ours(&c));
        if ours && known.iter().chain(&found).all(|known| known.serial != issued.serial) {
            found.push(issued);
        }
    }
    Ok(found)
}

/// Adds one to the list, before its files are written: none is ever out of it. With it those in
/// `out` that were issued before there was a list: one of them may be written over.
pub(super) fn add(
    dir: &Path,
    out: &Path,
    issued: &Issued,
    is_ours: impl Fn(&X509Certificate<'_>) -> bool,
) -> Result<(), TlsError> {
    let mut known = recorded(dir)?.issued;
    let recorded = known.len();
    for folder in [dir, out] {
        let found = unrecorded(folder, &known, &is_ours)?;
        known.extend(found);
    }
    known.push(issued.clone());
    append(dir, known.into_iter().skip(recorded).map(Line::Issued))
}

/// Adds an edition, before the revocation list is written.
pub(super) fn add_edition(dir: &Path, edition: Edition) -> Result<(), TlsError> {
    append(dir, std::iter::once(Line::Edition(edition)))
}

fn append(dir: &Path, lines: impl Iterator<Item = Line>) -> Result<(), TlsError> {
    let path = dir.join(ISSUED_FILE);
    let mut text = match std::fs::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(file_error(&path, &error, "restore it from a backup")),
    };
    for line in lines {
        let line = serde_json::to_string(&line).expect("plain values");
        text.extend_from_slice(line.as_bytes());
        text.push(b'\n');
    }
    write_file(&path, &text, 0o600)
}
