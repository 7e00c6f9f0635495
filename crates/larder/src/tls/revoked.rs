//! Certificates that were taken back: the authority's revocation list, `ca-crl.pem`.
//!
//! The list is X.509's (RFC 5280), so that other tools read it. Larder looks certificates up in it
//! by itself, since the same look-up ends links that stand: a handshake is checked once, a link
//! lasts for months. One authority may sign for another of the same name, which is how a renewed
//! authority goes on with the list of the one before it.

use super::{CRL_FILE, TlsError, malformed, read_file};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use std::collections::BTreeMap;
use std::path::Path;
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};
use x509_parser::time::ASN1Time;

/// The lines around a list.
const BEGIN: &[u8] = b"-----BEGIN X509 CRL-----";
const END: &[u8] = b"-----END X509 CRL-----";

/// Revoked certificates of one file: of one authority, or of several.
#[derive(Clone, Default, Debug)]
pub(super) struct Revoked {
    /// Each authority's list, by the authority's key.
    lists: BTreeMap<Vec<u8>, List>,
}

/// One authority's list.
#[derive(Clone, PartialEq, Eq, Debug)]
struct List {
    edition: Edition,
    /// The authority's name, encoded.
    issuer: Vec<u8>,
    /// When each was revoked, by its serial number.
    since: BTreeMap<Vec<u8>, ASN1Time>,
}

/// The number of a list, which only grows: big endian, without leading zeros.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Edition(Vec<u8>);

impl Edition {
    fn is_before(&self, other: &Self) -> bool {
        (self.0.len(), &self.0) < (other.0.len(), &other.0)
    }
}

impl Revoked {
    /// Reads a file of lists, each signed by one of `authorities`; none: there is no such file.
    pub(super) fn load(
        dir: &Path,
        authorities: &[CertificateDer<'_>],
    ) -> Result<Option<Self>, TlsError> {
        let path = dir.join(CRL_FILE);
        if !path.try_exists().unwrap_or(true) {
            return Ok(None);
        }
        let bytes = read_file(&path, "copy it anew from where the authority is")?;
        let mut revoked = Self::default();
        for list in lists(&path, &bytes)? {
            revoked.add(&path, &list, authorities)?;
        }
        if revoked.lists.is_empty() {
            return Err(no_list(&path, "it holds no list"));
        }
        Ok(Some(revoked))
    }

    pub(super) fn add(
        &mut self,
        path: &Path,
        list: &CertificateRevocationListDer<'_>,
        authorities: &[CertificateDer<'_>],
    ) -> Result<(), TlsError> {
        let wrong = |detail: &str| no_list(path, detail);
        let (rest, list) =
            CertificateRevocationList::from_der(list).map_err(|e| wrong(&e.to_string()))?;
        // Another list, perhaps, whose beginning was lost.
        if !rest.is_empty() {
            return Err(wrong("there is more behind a list, before its last line"));
        }
        let mut signer = None;
        for authority in authorities {
            let (_, authority) = X509Certificate::from_der(authority)
                .map_err(|e| malformed(path, &e.to_string()))?;
            if authority.subject().as_raw() == list.issuer().as_raw()
                && list.verify_signature(authority.public_key()).is_ok()
            {
                signer = Some(authority.public_key().raw.to_vec());
            }
        }
        let signer = signer.ok_or_else(|| wrong("no authority in ca.pem has signed it"))?;
        // One that covers only some certificates, or only what changed, has such an extension, and
        // would leave out what we take for allowed.
        if let Some(odd) = list.extensions().iter().find(|e| e.critical) {
            return Err(wrong(&format!("extension {} is not understood", odd.oid)));
        }
        let edition = list.crl_number().ok_or_else(|| wrong("it has no number"))?;
        let edition = Edition(edition.to_bytes_be());
        let since = list
            .iter_revoked_certificates()
            .map(|entry| (entry.serial().to_bytes_be(), entry.revocation_date))
            .collect();
        let issuer = list.issuer().as_raw().to_vec();
        match self.lists.insert(signer, List { edition, issuer, since }) {
            Some(_) => Err(wrong("it holds two lists of one authority")),
            None => Ok(()),
        }
    }

    /// Since when a certificate is revoked; none: it is not.
    pub(super) fn since(&self, certificate: &X509Certificate<'_>) -> Option<ASN1Time> {
        let serial = certificate.tbs_certificate.serial.to_bytes_be();
        let issuer = certificate.issuer().as_raw();
        let of_issuer = self.lists.values().filter(|list| list.issuer == issuer);
        of_issuer.filter_map(|list| list.since.get(&serial).copied()).next()
    }

    /// How many are revoked.
    pub(super) fn len(&self) -> usize {
        self.lists.values().map(|list| list.since.len()).sum()
    }

    /// Whether this may stand where `now` stands: nothing in it is older, and nothing is missing, of
    /// any authority that is still trusted. An old copy of a list would let in who was shut out
    /// since, and so would one of an authority that lost its list and began again.
    pub(super) fn may_follow(
        &self,
        now: &Self,
        authorities: &[CertificateDer<'_>],
    ) -> Result<(), &'static str> {
        for (key, used) in &now.lists {
            let trusted = authorities.iter().any(|authority| {
                X509Certificate::from_der(authority)
                    .is_ok_and(|(_, authority)| authority.public_key().raw == key.as_slice())
            });
            let Some(next) = self.lists.get(key) else {
                if trusted {
                    return Err("an authority's list that was in it is missing");
                }
                continue;
            };
            if next.edition.is_before(&used.edition) {
                return Err("it is older than the one in use");
            }
            if used.since.keys().any(|serial| !next.since.contains_key(serial)) {
                return Err("a certificate that the list in use names is not in it");
            }
            if next.edition == used.edition && next.since != used.since {
                return Err("it has the number of the one in use, and says something else");
            }
        }
        Ok(())
    }
}

/// The lists in a file. Who reads armour passes over what he does not know, and so over a list of
/// which only the first line or the last is harmed, or follows another without a line break: every
/// such line must be one of a list that was read.
pub(super) fn lists(
    path: &Path,
    bytes: &[u8],
) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    let lists = CertificateRevocationListDer::pem_slice_iter(bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| no_list(path, &e.to_string()))?;
    let lines = bytes.split(|byte| matches!(byte, b'\n' | b'\r')).map(<[u8]>::trim_ascii_end);
    let marks = lines.filter(|line| line.windows(5).any(|part| part == b"-----"));
    let (whole, odd): (Vec<_>, Vec<_>) = marks.partition(|line| matches!(*line, BEGIN | END));
    if !odd.is_empty() || whole.len() != 2 * lists.len() {
        let detail = "a line of `-----` in it is not the first or the last one of a list: it may \
                      be harmed, or a line break may be missing between two lists";
        return Err(no_list(path, detail));
    }
    Ok(lists)
}

/// A file that is no list, or none to be used.
pub(super) fn no_list(path: &Path, detail: &str) -> TlsError {
    TlsError::BadList { path: path.to_owned(), detail: detail.to_owned() }
}
