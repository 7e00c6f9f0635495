//! The files of certificates, keys and revocations, harmed: any bytes in the place of one, or some bytes of one
//! changed inside of its encoding, beside the others as they were issued. And any bytes as a
//! peer's certificate.
#![no_main]

use larder::tls::{
    Authority, Identity, Role, Standing, Which, certificates, init, peer_name, peer_role,
};
use libfuzzer_sys::fuzz_target;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// An authority's folder with somebody who was revoked; what each of the files holds.
struct Issued {
    folder: tempfile::TempDir,
    files: Vec<(PathBuf, Vec<u8>)>,
}

static ISSUED: LazyLock<Issued> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a new folder");
    let path = folder.path();
    let authority = init(path, "fuzz").expect("a new authority");
    for name in ["alice", "bob"] {
        authority.issue(path, name, Role::Node, 30).expect("a new certificate");
    }
    authority.revoke(&Which::Name("bob".into())).expect("it was issued");
    let entries = std::fs::read_dir(path).expect("the folder is there");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("the folder is there").path())
        .filter(|path| path.is_file())
        .map(|path| (path.clone(), std::fs::read(path).expect("own file")))
        .collect();
    files.sort();
    Issued { folder, files }
});

/// A file of PEM with the bytes inside changed: each change is a place (two bytes) and what is
/// laid over it.
fn changed(whole: &[u8], changes: &[u8]) -> Vec<u8> {
    let change = |der: &[u8]| {
        let mut der = der.to_vec();
        for change in changes.chunks_exact(3) {
            let place = usize::from(u16::from_le_bytes([change[0], change[1]])) % der.len().max(1);
            if let Some(byte) = der.get_mut(place) {
                *byte ^= change[2];
            }
        }
        der
    };
    let pem = |label: &str, der: &[u8]| {
        let line = |bytes: &[u8]| base64(&change(bytes));
        format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", line(der)).into_bytes()
    };
    if let Ok(der) = CertificateDer::from_pem_slice(whole) {
        return pem("CERTIFICATE", &der);
    }
    if let Ok(der) = CertificateRevocationListDer::from_pem_slice(whole) {
        return pem("X509 CRL", &der);
    }
    change(whole)
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let whole = part.iter().fold(0_u32, |sum, byte| sum << 8 | u32::from(*byte));
        let whole = whole << (8 * (3 - part.len()));
        for place in 0..4 {
            let digit = DIGITS[(whole >> (18 - 6 * place) & 63) as usize];
            text.push(if place > part.len() { '=' } else { digit.into() });
        }
    }
    text
}

/// Loads all that lies there. Whatever list is accepted names the one who was revoked: only its
/// authority could have made it otherwise.
fn load(folder: &Path) {
    let mut accepted = true;
    for name in ["alice", "bob"] {
        match Identity::load(folder, name) {
            Ok(identity) => {
                assert_eq!(identity.name(), name);
                let _ = (identity.server_config(), identity.client_config(Some("origin")));
            }
            Err(error) => {
                assert!(!error.to_string().is_empty());
                accepted = false;
            }
        }
    }
    let _ = certificates(folder);
    let listed = Authority::open(folder).and_then(|authority| authority.list());
    if let (true, Ok(listed)) = (accepted, listed) {
        let bob = listed.iter().find(|(issued, _)| issued.name == "bob").expect("he is known");
        assert_eq!(bob.1, Standing::Revoked);
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&which, data)) = data.split_first() else { return };
    let certificate = CertificateDer::from(data.to_vec());
    let _ = (peer_name(&certificate), peer_role(&certificate));
    let issued = &*ISSUED;
    let (path, whole) = &issued.files[usize::from(which >> 1) % issued.files.len()];
    let harmed = if which & 1 == 0 { data.to_vec() } else { changed(whole, data) };
    std::fs::write(path, &harmed).expect("own file");
    load(issued.folder.path());
    std::fs::write(path, whole).expect("own file");
});
