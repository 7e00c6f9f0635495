//! Harm to certificates, keys and revocation lists. The first byte says to which: a file of a
//! process, a file of the authority, or a certificate that a peer presents. The rest says how. Harm
//! never gives a right: nobody is believed whose certificate was not signed so, and who was revoked
//! stays shut out.
#![no_main]

#[path = "certificates/handshake.rs"]
mod handshake;
#[path = "certificates/harm.rs"]
mod harm;
#[path = "certificates/site.rs"]
mod site;

use handshake::{Presents, handshake};
use harm::{altered, harm};
use larder::testing::certificates::Watched;
use larder::tls::{
    Authority, CA_FILE, CA_KEY_FILE, CRL_FILE, Identity, Issued, Standing, TlsError, Which,
    certificate_file, certificates, key_file, peer_name, peer_role,
};
use libfuzzer_sys::fuzz_target;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ServerConfig};
use site::{Folder, ISSUED_FILE, Site};
use std::sync::{Arc, LazyLock};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Files of a process.
const OF_A_PROCESS: [&str; 7] =
    [CA_FILE, CRL_FILE, "alice.pem", "alice-key.pem", "bob.pem", "origin.pem", "origin-key.pem"];
/// Files of an authority.
const OF_AN_AUTHORITY: [&str; 6] =
    [CA_FILE, CRL_FILE, CA_KEY_FILE, ISSUED_FILE, "alice.pem", "bob.pem"];
/// Who presents a certificate.
const PEERS: [&str; 4] = ["alice", "bob", "carol", "origin"];

/// Who was revoked, of the new authority and of the old one.
const REVOKED: [&str; 2] = ["bob", "carol"];

static SITE: LazyLock<Site> = LazyLock::new(Site::new);

fuzz_target!(|data: &[u8]| {
    let Some((which, data)) = data.split_first() else {
        return;
    };
    let site = &*SITE;
    let harmed = |folder: &Folder, file: &str| harm(&folder.files[file], &site.pieces, data);
    let mut which =
        usize::from(*which) % (OF_A_PROCESS.len() + OF_AN_AUTHORITY.len() + PEERS.len());
    if let Some(file) = OF_A_PROCESS.get(which) {
        return of_a_process(site, file, &harmed(&site.place, file));
    }
    which -= OF_A_PROCESS.len();
    match OF_AN_AUTHORITY.get(which) {
        Some(file) => of_an_authority(site, file, &harmed(&site.authority, file)),
        None => presented(site, PEERS[which - OF_AN_AUTHORITY.len()], data),
    }
});

fn of_a_process(site: &Site, file: &str, harmed: &[u8]) {
    site.place.put(file, harmed);
    let _ = certificates(&site.place.dir);
    starts(site, file, harmed);
    if concerns(file, "origin") {
        runs(site);
    }
    site.place.restore(&[file]);
    let status = site.running.look();
    assert_eq!(status.trouble, None, "whole files are used again");
    assert_eq!(status.revoked, Some(REVOKED.len()));
}

/// A process that runs, and looks at what lies there.
fn runs(site: &Site) {
    let before = site.running.server_config().expect("it serves");
    let status = site.running.look();
    assert_eq!(status.revoked, Some(REVOKED.len()), "a list went back: {status:?}");
    let now = site.running.server_config().expect("it serves");
    if !Arc::ptr_eq(&before, &now) {
        shuts_out(site, &now, |_| false);
    }
}

/// Processes that start over the files as they lie there.
fn starts(site: &Site, file: &str, harmed: &[u8]) {
    let dir = &site.place.dir;
    let silent = |name: &str| file == CRL_FILE && site.silent(harmed, name);
    for name in REVOKED.into_iter().filter(|name| concerns(file, name)) {
        let loaded = Watched::load(dir, name, false);
        assert!(loaded.is_err() || silent(name), "{name} was revoked, and starts");
    }
    if let Some(origin) = own(site, "origin", file, harmed) {
        assert!(matches!(origin.client_config(None), Err(TlsError::WrongRole { .. })));
        if let Ok(server) = origin.server_config() {
            believed(&server, &site.clients["alice"]);
            shuts_out(site, &server, silent);
        }
    }
    if let Some(alice) = own(site, "alice", file, harmed) {
        assert!(matches!(alice.server_config(), Err(TlsError::WrongRole { .. })));
        if let Ok(client) = alice.client_config(Some("origin")) {
            believed(&site.server, &client);
        }
    }
}

/// Whether a file is looked at by the process of `name`.
fn concerns(file: &str, name: &str) -> bool {
    file == CA_FILE || file == CRL_FILE || file.starts_with(name)
}

/// The identity of `name`, if it can be loaded: it is as it was signed.
fn own(site: &Site, name: &str, file: &str, harmed: &[u8]) -> Option<Identity> {
    if !concerns(file, name) {
        return None;
    }
    let identity = match Identity::load(&site.place.dir, name) {
        Ok(identity) => identity,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return None;
        }
    };
    let own = certificate_file(name);
    if file == own {
        let first = CertificateDer::from_pem_slice(harmed).expect("it was loaded");
        let signed = CertificateDer::from_pem_slice(&site.place.files[&own]).expect("issued");
        assert_eq!(said(&first), said(&signed), "{name} says what was not signed");
    }
    Some(identity)
}

/// Nobody who was revoked is let in, but for whom the list may be `silent` about.
fn shuts_out(site: &Site, server: &Arc<ServerConfig>, silent: impl Fn(&str) -> bool) {
    for name in REVOKED {
        let let_in = handshake(server, &site.clients[name]).is_ok();
        assert!(!let_in || silent(name), "{name} was revoked, and is let in");
    }
}

/// Who believe each other are `alice` and `origin`.
fn believed(server: &Arc<ServerConfig>, client: &Arc<ClientConfig>) {
    if let Ok(both) = handshake(server, client) {
        let names = (peer_name(&both.child), peer_name(&both.parent));
        assert_eq!(names, (Some("alice".into()), Some("origin".into())));
    }
}

fn of_an_authority(site: &Site, file: &str, harmed: &[u8]) {
    site.authority.put(file, harmed);
    if let Err(error) = goes_on(site, file, harmed) {
        assert!(!error.to_string().is_empty());
    }
    site.authority.restore(&[file, CRL_FILE, ISSUED_FILE]);
}

/// What the authority says of its certificates; and what it makes of its lists, when it makes new
/// ones.
fn goes_on(site: &Site, file: &str, harmed: &[u8]) -> Result<(), TlsError> {
    let dir = &site.authority.dir;
    let authority = Authority::open(dir)?;
    let list = authority.list()?;
    assert!(all(&list, &site.bob, Standing::Revoked), "bob was revoked: {list:?}");
    if file != ISSUED_FILE {
        assert!(all(&list, &site.alice, Standing::Valid), "alice was not revoked: {list:?}");
        assert!(list.iter().any(|(issued, _)| *issued == site.alice), "not as issued: {list:?}");
    }
    authority.revoke(&Which::Serial(site.alice.serial.clone()))?;
    drop(authority);
    let list = Authority::open(dir)?.list()?;
    for issued in [&site.alice, &site.bob] {
        assert!(all(&list, issued, Standing::Revoked), "{} was revoked: {list:?}", issued.name);
        let loaded = Watched::load(dir, &issued.name, false);
        assert!(loaded.is_err(), "{} was revoked, and starts", issued.name);
    }
    let silent = file == CRL_FILE && site.silent(harmed, "carol");
    let loaded = Watched::load(dir, "carol", false);
    assert!(loaded.is_err() || silent, "the other authority's list was lost");
    Ok(())
}

/// Whether a certificate is known, and all that is said of it is `standing`.
fn all(list: &[(Issued, Standing)], certificate: &Issued, standing: Standing) -> bool {
    let mut said = list.iter().filter(|(issued, _)| issued.serial == certificate.serial).peekable();
    said.peek().is_some() && said.all(|(_, said)| *said == standing)
}

/// A peer that has a key, and presents what it likes.
fn presented(site: &Site, name: &str, data: &[u8]) {
    let files = &site.place.files;
    let signed = CertificateDer::from_pem_slice(&files[&certificate_file(name)]).expect("issued");
    let key = PrivateKeyDer::from_pem_slice(&files[&key_file(name)]).expect("issued");
    let harmed = CertificateDer::from(match data.split_first() {
        Some((how, data)) if how % 2 == 0 => data.to_vec(),
        Some((_, data)) => altered(&signed, data),
        None => signed.to_vec(),
    });
    let _ = (peer_name(&harmed), peer_role(&harmed));
    let presents = Presents::new(harmed, &key);
    let shown = if name == "origin" {
        let mut server = (*site.server).clone();
        server.cert_resolver = presents;
        handshake(&Arc::new(server), &site.clients["alice"]).map(|both| both.parent)
    } else {
        let mut client = (*site.clients["alice"]).clone();
        client.client_auth_cert_resolver = presents;
        handshake(&site.server, &Arc::new(client)).map(|both| both.child)
    };
    if let Ok(shown) = shown {
        assert!(!REVOKED.contains(&name), "{name} was revoked, and is let in");
        assert_eq!(said(&shown), said(&signed), "{name} says what was not signed");
        assert_eq!(peer_name(&shown).as_deref(), Some(name));
    }
}

/// What a certificate says, and its authority has signed.
fn said(certificate: &CertificateDer<'_>) -> Vec<u8> {
    let (_, parsed) = X509Certificate::from_der(certificate).expect("it was believed");
    parsed.tbs_certificate.as_ref().to_vec()
}
