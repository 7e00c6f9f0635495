use super::revoked::lists;
use super::*;
use rustls::pki_types::CertificateRevocationListDer;
use std::io::{self, Read, Write};

fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("larder-tls-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    dir
}

fn authority(name: &str) -> (PathBuf, Authority) {
    let dir = folder(name);
    let authority = init(&dir, "test authority").expect("a new folder");
    authority.issue(&dir, "origin", Role::Origin, 1).expect("issues");
    authority.issue(&dir, "node-one", Role::Node, 1).expect("issues");
    (dir, authority)
}

/// Runs a handshake over a socket pair and a byte each way; gives both sides' ends.
fn handshake(
    server: &Identity,
    client: &Identity,
    wanted: Option<&str>,
) -> (Result<String, TlsError>, Result<String, TlsError>) {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a socket pair");
    let server_config = server.server_config().expect("the server's files are good");
    let client_config = client.client_config(wanted).expect("the client's files are good");
    std::thread::scope(|scope| {
        let server_end = scope.spawn(move || {
            let connection = rustls::ServerConnection::new(server_config).expect("configuration");
            let mut stream = rustls::StreamOwned::new(connection, theirs);
            let mut byte = [0];
            let result = stream
                .read_exact(&mut byte)
                .and_then(|()| stream.write_all(&byte))
                .and_then(|()| stream.flush());
            let peer = |s: &rustls::StreamOwned<rustls::ServerConnection, _>| {
                s.conn
                    .peer_certificates()
                    .and_then(|chain| peer_name(&chain[0]))
                    .unwrap_or_default()
            };
            match result {
                Ok(()) => Ok(peer(&stream)),
                Err(e) => Err(server.explain("client", &e)),
            }
        });
        let name = "larder.invalid".try_into().expect("a name");
        let connection = rustls::ClientConnection::new(client_config, name).expect("configuration");
        let mut stream = rustls::StreamOwned::new(connection, ours);
        let mut byte = [7];
        let result = stream
            .write_all(&byte)
            .and_then(|()| stream.flush())
            .and_then(|()| stream.read_exact(&mut byte));
        // Who was refused, and closed to, before it wrote hears why all the same, as a link's reader does: a slow machine
        // had this test fail by the pipe that was broken.
        let result = result.map_err(|error| {
            if error.kind() != io::ErrorKind::BrokenPipe {
                return error;
            }
            let told = stream.conn.read_tls(&mut stream.sock);
            match told.map(|_| stream.conn.process_new_packets()) {
                Ok(Err(told)) => io::Error::new(io::ErrorKind::InvalidData, told),
                Ok(Ok(_)) | Err(_) => error,
            }
        });
        let client_end = match result {
            Ok(()) => Ok(peer_name(&stream.conn.peer_certificates().expect("verified")[0])
                .expect("verified")),
            Err(e) => Err(client.explain("server", &e)),
        };
        drop(stream);
        (server_end.join().expect("no panic"), client_end)
    })
}

#[test]
fn both_sides_learn_the_name_in_the_others_certificate() {
    let (dir, _) = authority("names");
    let origin = Identity::load(&dir, "origin").expect("issued");
    let node = Identity::load(&dir, "node-one").expect("issued");
    let (server, client) = handshake(&origin, &node, Some("origin"));
    assert_eq!(server.expect("accepted"), "node-one");
    assert_eq!(client.expect("accepted"), "origin");
}

/// A child's role was what it said of itself: a node's certificate was enough to be a relay, which
/// speaks for others.
#[test]
fn the_certificate_says_who_may_be_a_relay() {
    use larder_core::message::Role as Child;
    let (dir, authority) = authority("relays");
    authority.issue(&dir, "relay", Role::Relay, 1).expect("issues");
    let role = |name: &str| {
        let path = dir.join(certificate_file(name));
        peer_role(&read_certificates(&path, "").expect("issued")[0])
    };
    assert_eq!(role("relay"), Child::Relay);
    assert_eq!(role("node-one"), Child::Node);
    // It connects to other origins, by a usage of its own.
    assert_eq!(role("origin"), Child::Node);
    let proven = |name: &str| {
        let path = dir.join(certificate_file(name));
        let certificate = &read_certificates(&path, "").expect("issued")[0];
        Proven::of(certificate).expect("it has a name").is_origin
    };
    assert_eq!(["origin", "relay", "node-one"].map(proven), [true, false, false]);
}

#[test]
fn a_node_cannot_pose_as_an_origin() {
    let (dir, _) = authority("roles");
    let node = Identity::load(&dir, "node-one").expect("issued");
    assert!(matches!(node.server_config(), Err(TlsError::WrongRole { .. })));
    let origin = Identity::load(&dir, "origin").expect("issued");
    assert!(matches!(origin.client_config(None), Err(TlsError::WrongRole { .. })));
    assert!(origin.origin_configs().is_ok());
    assert!(matches!(node.origin_configs(), Err(TlsError::WrongRole { .. })));
}

#[test]
fn another_name_than_configured_is_refused() {
    let (dir, _) = authority("wanted");
    let origin = Identity::load(&dir, "origin").expect("issued");
    let node = Identity::load(&dir, "node-one").expect("issued");
    let (_, client) = handshake(&origin, &node, Some("head-office"));
    let text = client.expect_err("the name differs").to_string();
    assert!(text.contains("`origin`") && text.contains("`head-office`"), "{text}");
}

#[test]
fn certificates_of_another_authority_are_refused_by_both_sides() {
    let (dir, _) = authority("ours");
    let (other_dir, _) = authority("theirs");
    let origin = Identity::load(&dir, "origin").expect("issued");
    let stranger = Identity::load(&other_dir, "node-one").expect("issued");
    let (_, client) = handshake(&origin, &stranger, None);
    assert!(matches!(client, Err(TlsError::PeerRefused { .. })), "{client:?}");

    // The stranger copied our ca.pem, so that it trusts us; its certificate is still foreign, and
    // named as such before anything is dialled.
    std::fs::copy(dir.join(CA_FILE), other_dir.join(CA_FILE)).expect("copies");
    let error = Identity::load(&other_dir, "node-one").err();
    assert!(matches!(error, Some(TlsError::Foreign { .. })), "{error:?}");
}

#[test]
fn an_expired_certificate_is_named_with_its_remedy() {
    let (dir, authority) = authority("expired");
    authority.issue(&dir, "late", Role::Node, 0).expect("issues");
    // Validity is kept in whole seconds.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let error = Identity::load(&dir, "late").err().expect("expired");
    let text = error.to_string();
    assert!(matches!(error, TlsError::Expired { .. }), "{text}");
    assert!(text.contains("late.pem") && text.contains("larder ca issue late"), "{text}");
}

#[test]
fn wrong_files_are_named() {
    let (dir, _) = authority("files");
    let error = |name| Identity::load(&dir, name).err().map(|e| e.to_string());
    let missing = error("nobody").expect("missing");
    assert!(missing.contains("nobody.pem") && missing.contains("larder ca issue nobody"));

    std::fs::copy(dir.join("node-one.pem"), dir.join("double.pem")).expect("copies");
    std::fs::copy(dir.join("node-one-key.pem"), dir.join("double-key.pem")).expect("copies");
    assert!(error("double").expect("wrong name").contains("`node-one`"));

    let key = dir.join("node-one-key.pem");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    assert!(error("node-one").expect("exposed").contains("chmod 600"));
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).expect("chmod");

    std::fs::copy(dir.join("origin-key.pem"), &key).expect("copies");
    let identity = Identity::load(&dir, "node-one").expect("each file is good by itself");
    assert!(matches!(identity.client_config(None), Err(TlsError::KeyMismatch { .. })));

    std::fs::write(dir.join("node-one.pem"), "garbage").expect("writes");
    assert!(error("node-one").expect("garbage").contains("node-one.pem"));
}

#[test]
fn an_authority_is_never_overwritten() {
    let (dir, _) = authority("again");
    assert!(matches!(init(&dir, "second"), Err(TlsError::AuthorityExists(_))));
    let mode = std::fs::metadata(dir.join(CA_KEY_FILE)).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn names_that_would_be_paths_are_refused() {
    let (dir, authority) = authority("badnames");
    for name in ["", "../x", "a/b", "ca", "x-key", "-x", "ä"] {
        assert!(
            matches!(authority.issue(&dir, name, Role::Node, 1), Err(TlsError::BadName(_))),
            "{name}"
        );
    }
}

fn uses(serves: bool) -> Uses {
    Uses { serves, dials: !serves, ..Uses::default() }
}

/// Revoked certificates were a matter of waiting until they expire: a stolen laptop stayed in for a
/// year. Both sides refuse one by the list, name it as revoked, and go on with its successor of
/// the same name.
#[test]
fn a_revoked_certificate_is_refused_by_both_sides_and_its_successor_is_not() {
    let (dir, authority) = authority("revoked");
    let stolen = Identity::load(&dir, "node-one").expect("issued");
    let old_origin = Identity::load(&dir, "origin").expect("issued");
    authority.renew("node-one", true, None, &[]).expect("renews");
    authority.renew("origin", false, Some(2), &[]).expect("renews");
    for name in ["node-one", "origin"] {
        let revoked = authority.revoke(&Which::Replaced(name.into())).expect("one was replaced");
        assert_eq!(revoked.known.len(), 1, "{name}");
    }
    let origin = Identity::load(&dir, "origin").expect("renewed");
    let node = Identity::load(&dir, "node-one").expect("renewed");

    let (server, client) = handshake(&origin, &stolen, None);
    let text = server.expect_err("it was revoked").to_string();
    assert!(text.contains("revoked"), "{text}");
    let text = client.expect_err("it is told so").to_string();
    assert!(text.contains("revoked") && text.contains("larder ca issue node-one"), "{text}");

    let (_, client) = handshake(&old_origin, &node, None);
    let text = client.expect_err("the parent's was revoked").to_string();
    assert!(text.contains("revoked"), "{text}");

    let (server, client) = handshake(&origin, &node, Some("origin"));
    assert_eq!(server.expect("accepted"), "node-one");
    assert_eq!(client.expect("accepted"), "origin");
}

/// A certificate's serial number was made of its key: one renewed with the same key had the number
/// of the one it replaces, and would have been revoked with it.
#[test]
fn a_renewal_with_the_same_key_has_a_number_of_its_own() {
    let (dir, authority) = authority("numbers");
    let key = std::fs::read(dir.join("node-one-key.pem")).expect("issued");
    let renewed = authority.renew("node-one", false, None, &[]).expect("renews");
    assert_eq!(std::fs::read(dir.join("node-one-key.pem")).expect("still there"), key);
    let all = authority.list().expect("a good folder");
    let of_node: Vec<_> = all.iter().filter(|(issued, _)| issued.name == "node-one").collect();
    assert_eq!(of_node.len(), 2, "{all:?}");
    let old = of_node.iter().find(|(issued, _)| issued.serial != renewed.serial).expect("another");
    authority.revoke(&Which::Serial(old.0.serial.clone())).expect("it is there");
    for (issued, standing) in authority.list().expect("a good folder") {
        let revoked = issued.serial == old.0.serial;
        assert_eq!(standing == Standing::Revoked, revoked, "{issued:?}");
    }
    let nothing = authority.revoke(&Which::Serial(old.0.serial.clone()));
    assert!(matches!(nothing, Err(TlsError::NotIssued { .. })), "{nothing:?}");
}

/// Files arrive one by one, half, wrong, or not at all. Whatever does not do is named and not used,
/// and what was in use stays.
#[test]
fn only_whole_and_good_files_take_the_place_of_those_in_use() {
    let (dir, authority) = authority("watched");
    let credentials = Credentials::load(&dir, "node-one", uses(false)).expect("good files");
    let serial = || {
        let trust = credentials.current();
        let path = dir.join("node-one.pem");
        Issued::of(&path, &trust.identity.own.chain[0]).expect("a certificate").serial
    };
    let trouble = || credentials.status().trouble.unwrap_or_default();
    let first = serial();

    // A new certificate and its key are two files: between them nothing changes.
    let old_key = std::fs::read(dir.join("node-one-key.pem")).expect("there");
    authority.renew("node-one", true, None, &[]).expect("renews");
    let new_key = std::fs::read(dir.join("node-one-key.pem")).expect("there");
    std::fs::write(dir.join("node-one-key.pem"), old_key).expect("writes");
    credentials.look(true);
    assert_eq!(serial(), first);
    assert!(trouble().contains("node-one-key.pem is not the key"), "{}", trouble());
    std::fs::write(dir.join("node-one-key.pem"), new_key).expect("writes");
    credentials.look(false);
    assert_eq!(serial(), first, "files that have just changed may change again");
    credentials.look(false);
    assert_ne!(serial(), first);
    assert_eq!(trouble(), "");
    let second = serial();

    // A list that is damaged, gone, or older than the one in use; and no authority.
    authority.issue(&dir, "other", Role::Node, 1).expect("issues");
    let empty = std::fs::read(dir.join(CRL_FILE)).expect("made with the authority");
    authority.revoke(&Which::Name("other".into())).expect("revokes");
    credentials.look(true);
    assert_eq!((credentials.status().revoked, trouble().as_str()), (Some(1), ""));
    let good = std::fs::read(dir.join(CRL_FILE)).expect("there");
    let ca = std::fs::read(dir.join(CA_FILE)).expect("there");
    type Damage<'a> = (&'a str, Option<&'a [u8]>, &'a str);
    let damages: [Damage<'_>; 6] = [
        (CRL_FILE, None, "ca-crl.pem is missing"),
        (CRL_FILE, Some(&empty), "older"),
        (CRL_FILE, Some(&good[..good.len() / 2]), "ca-crl.pem"),
        (CRL_FILE, Some(b""), "holds no list"),
        (CA_FILE, None, "ca.pem"),
        (CA_FILE, Some(b"garbage"), "ca.pem"),
    ];
    for (file, bytes, wanted) in damages {
        let path = dir.join(file);
        match bytes {
            Some(bytes) => std::fs::write(&path, bytes).expect("writes"),
            None => std::fs::remove_file(&path).expect("was there"),
        }
        credentials.look(true);
        assert!(trouble().contains(wanted), "{file}: {} is not {wanted}", trouble());
        assert_eq!((credentials.status().revoked, serial()), (Some(1), second.clone()), "{wanted}");
        std::fs::write(&path, if file == CA_FILE { &ca } else { &good }).expect("writes");
        credentials.look(true);
        assert_eq!(trouble(), "", "{file} is good again");
    }
}

/// Parts were judged together: an own certificate that had ended kept the list that came with it out
/// of force, so that who was revoked stayed in; and a list that was refused kept a renewed
/// certificate out of use, until the old one had ended. Each part is told of by itself.
#[test]
fn a_part_that_does_not_do_keeps_no_other_out() {
    let other_authority = authority;
    let (dir, authority) = authority("parts");
    authority.issue(&dir, "lost", Role::Node, 1).expect("issues");
    let lost = Identity::load(&dir, "lost").expect("issued");
    let origin = Credentials::load(&dir, "origin", uses(true)).expect("good files");
    let serial = || {
        let trust = origin.current();
        let path = dir.join("origin.pem");
        Issued::of(&path, &trust.identity.own.chain[0]).expect("a certificate").serial
    };
    let trouble = || origin.status().trouble.unwrap_or_default();
    let first = serial();
    let accepts = |node: &Identity| handshake(&origin.current().identity, node, None).0.is_ok();
    assert!(accepts(&lost));

    // A certificate that has ended, and a list.
    authority.renew("origin", false, Some(0), &[]).expect("renews");
    // Validity is kept in whole seconds.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    authority.revoke(&Which::Name("lost".into())).expect("revokes");
    origin.look(true);
    assert_eq!((origin.status().revoked, serial()), (Some(1), first.clone()));
    assert!(!accepts(&lost));
    let text = trouble();
    assert!(text.contains("origin.pem expired") && text.contains("in force as they lie"), "{text}");
    assert!(!text.contains("not in force"), "{text}");

    // A list of half its length, and a certificate.
    let good = std::fs::read(dir.join(CRL_FILE)).expect("there");
    authority.renew("origin", true, Some(1), &[]).expect("renews");
    std::fs::write(dir.join(CRL_FILE), &good[..good.len() / 2]).expect("writes");
    origin.look(true);
    assert_ne!(serial(), first);
    assert!(!accepts(&lost));
    let text = trouble();
    assert!(text.contains("ca-crl.pem") && text.contains("not in force"), "{text}");
    assert!(!text.contains("origin.pem"), "{text}");

    // Both wrong: a line each. Nothing changes.
    let second = serial();
    std::fs::write(dir.join("origin.pem"), "garbage").expect("writes");
    origin.look(true);
    let text = trouble();
    assert!(text.contains("ca-crl.pem") && text.contains("origin.pem"), "{text}");
    assert_eq!((origin.status().revoked, serial()), (Some(1), second));

    // Authorities that nobody's certificate here is of are not taken: it would be believed nowhere.
    std::fs::write(dir.join(CRL_FILE), &good).expect("writes");
    authority.renew("origin", true, None, &[]).expect_err("it is garbage");
    authority.issue(&dir, "origin", Role::Origin, 1).expect("issues");
    let (other, _other_authority) = other_authority("parts-other");
    let ours = std::fs::read(dir.join(CA_FILE)).expect("there");
    for file in [CA_FILE, CRL_FILE] {
        std::fs::copy(other.join(file), dir.join(file)).expect("copies");
    }
    let before = serial();
    origin.look(true);
    assert_ne!(serial(), before, "the certificate is of an authority in use");
    assert!(trouble().contains("not in force") && !accepts(&lost), "{}", trouble());
    std::fs::write(dir.join(CA_FILE), ours).expect("writes");
    std::fs::write(dir.join(CRL_FILE), &good).expect("writes");
    origin.look(true);
    assert_eq!(trouble(), "");
}

/// A child's certificate was checked at its first link only: every later one was opened by the
/// session of the one before, a ticket from each, for years past the certificate's end.
#[test]
fn sessions_are_never_resumed() {
    let (dir, _) = authority("resumed");
    let origin = Identity::load(&dir, "origin").expect("issued");
    let node = Identity::load(&dir, "node-one").expect("issued");
    let server = origin.server_config().expect("it serves");
    let client = node.client_config(None).expect("it connects");
    // One that would go on with a session if it got one, and an origin that would give it.
    let mut eager = (*client).clone();
    eager.resumption = rustls::client::Resumption::default();
    let mut generous = (*server).clone();
    generous.send_tls13_tickets = 2;
    generous.session_storage = rustls::server::ServerSessionMemoryCache::new(16);
    let second = |server: rustls::ServerConfig, client: rustls::ClientConfig| {
        let (server, client) = (Arc::new(server), Arc::new(client));
        let mut kind = None;
        for _ in 0..2 {
            let name = "larder.invalid".try_into().expect("a name");
            let mut near = rustls::ClientConnection::new(client.clone(), name).expect("good");
            let mut far = rustls::ServerConnection::new(server.clone()).expect("good");
            // Tickets come after the handshake.
            for _ in 0..8 {
                let mut bytes = Vec::new();
                while near.wants_write() {
                    near.write_tls(&mut bytes).expect("to memory");
                }
                far.read_tls(&mut &bytes[..]).expect("from memory");
                far.process_new_packets().expect("accepted");
                bytes.clear();
                while far.wants_write() {
                    far.write_tls(&mut bytes).expect("to memory");
                }
                near.read_tls(&mut &bytes[..]).expect("from memory");
                near.process_new_packets().expect("accepted");
            }
            kind = near.handshake_kind();
        }
        kind.expect("the handshake is done")
    };
    use rustls::HandshakeKind::{Full, Resumed};
    assert_eq!(second(generous.clone(), eager.clone()), Resumed, "what the rest is measured by");
    assert_eq!(second((*server).clone(), eager), Full);
    assert_eq!(second(generous, (*client).clone()), Full);
}

/// A process that starts cannot know that a list was there: asked to, it refuses to do without.
#[test]
fn a_list_may_be_asked_for_from_the_start() {
    let (dir, _) = authority("required");
    let required = || Uses { crl_required: true, ..uses(true) };
    assert!(Credentials::load(&dir, "origin", required()).is_ok());
    std::fs::remove_file(dir.join(CRL_FILE)).expect("made with the authority");
    assert!(Credentials::load(&dir, "origin", uses(true)).is_ok());
    let error = Credentials::load(&dir, "origin", required()).err();
    assert!(matches!(error, Some(TlsError::NoList { .. })), "{error:?}");
}

/// An authority ends, and another takes over. While both are in `ca.pem`, certificates of either
/// do, and both lists hold; when the old one is taken out, its certificates do no more.
#[test]
fn a_new_authority_takes_over_from_an_old_one() {
    let (old_dir, old) = authority("old");
    let (dir, new) = authority("new");
    old.issue(&old_dir, "lost", Role::Node, 1).expect("issues");
    old.revoke(&Which::Name("lost".into())).expect("revokes");
    let new_ca = std::fs::read_to_string(dir.join(CA_FILE)).expect("there");
    for file in [CA_FILE, CRL_FILE] {
        let [new, old] =
            [&dir, &old_dir].map(|dir| std::fs::read_to_string(dir.join(file)).expect("there"));
        for dir in [&dir, &old_dir] {
            // The old first: an authority finds its own certificate wherever it is in the file.
            std::fs::write(dir.join(file), format!("{old}{new}")).expect("writes");
        }
    }
    let [lost, old_node] =
        ["lost", "node-one"].map(|name| Identity::load(&old_dir, name).expect("issued"));
    drop(new);
    let new = Authority::open(&dir).expect("both are in it");
    new.issue(&dir, "node-two", Role::Node, 1).expect("issues");
    new.issue(&dir, "node-three", Role::Node, 1).expect("issues");
    new.revoke(&Which::Name("node-three".into())).expect("revokes");
    let origin = Credentials::load(&dir, "origin", uses(true)).expect("both are trusted");
    assert_eq!(origin.status().revoked, Some(2));
    let accepts = |node: &Identity| {
        let trust = origin.current();
        let held = trust.identity.still_trusts(&node.own.chain[0]).is_ok();
        let (server, _) = handshake(&trust.identity, node, None);
        let accepted = server.is_ok();
        assert_eq!(held, accepted, "a link that stands and a new one are judged alike: {server:?}");
        accepted
    };
    let [two, three] =
        ["node-two", "node-three"].map(|name| Identity::load(&dir, name).expect("issued"));
    assert!(accepts(&two) && accepts(&old_node));
    assert!(!accepts(&three) && !accepts(&lost));

    std::fs::write(dir.join(CA_FILE), new_ca).expect("writes");
    let list = std::fs::read_to_string(dir.join(CRL_FILE)).expect("there");
    let end = "-----END X509 CRL-----";
    // The others' stay where they are, before the edition that was written last.
    let own = list.split_inclusive(end).nth(1).expect("two lists");
    std::fs::write(dir.join(CRL_FILE), own).expect("writes");
    origin.look(true);
    assert_eq!(origin.status().trouble, None);
    assert!(accepts(&two) && !accepts(&old_node) && !accepts(&three));
}

#[test]
fn an_end_that_comes_near_is_warned_of() {
    let (dir, authority) = authority("ending");
    let status =
        |name: &str| Credentials::load(&dir, name, uses(false)).expect("still good").status();
    authority.issue(&dir, "long", Role::Node, 365).expect("issues");
    authority.issue(&dir, "month", Role::Node, 90).expect("issues");
    assert_eq!(status("long").trouble, None);
    assert_eq!(status("month").trouble, None);
    assert_eq!(status("node-one").trouble, None, "a day of a day is left");
    authority.issue(&dir, "soon", Role::Node, 0).expect("issues");
    let soon = Credentials::load(&dir, "soon", uses(false));
    // Of whole seconds: it may be over by now, which `load` says as well.
    let text = match soon {
        Ok(soon) => soon.status().trouble.expect("it ends now"),
        Err(error) => error.to_string(),
    };
    assert!(text.contains("soon.pem") && text.contains("expire"), "{text}");
}

/// The list of what was issued came later than the first authorities: the first renewal wrote over
/// the only trace of a certificate from before, and `ca revoke NAME` told of success and revoked its
/// successor alone.
#[test]
fn certificates_from_before_the_list_are_remembered_when_they_are_replaced() {
    let (dir, authority) = authority("before");
    let serial = |name: &str| {
        let path = dir.join(certificate_file(name));
        let certificate = &read_certificates(&path, "").expect("issued")[0];
        Issued::of(&path, certificate).expect("a certificate").serial
    };
    let (node, origin) = (serial("node-one"), serial("origin"));
    std::fs::remove_file(dir.join(ISSUED)).expect("as authorities were");
    authority.renew("node-one", true, None, &[]).expect("renews");
    authority.issue(&dir, "origin", Role::Origin, 1).expect("issues");
    for (name, old) in [("node-one", node), ("origin", origin)] {
        let revoked = authority.revoke(&Which::Name(name.into())).expect("there are two").known;
        assert_eq!(revoked.len(), 2, "{name}");
        assert!(revoked.iter().any(|one| one.serial == old), "{revoked:?} lacks {old}");
    }

    // One of which there is no trace at all is revoked by its number, as other tools write it.
    let revoked = authority.revoke(&Which::Serial("0A:FF".into())).expect("any number does");
    assert_eq!((revoked.known.len(), revoked.unknown.as_deref()), (0, Some("0aff")));
    for none in ["0aff", "", "0", "no number"] {
        let nothing = authority.revoke(&Which::Serial(none.into()));
        assert!(matches!(nothing, Err(TlsError::NotIssued { .. })), "{none}: {nothing:?}");
    }

    // Without the list of what was issued nobody can say what is left to be revoked.
    drop(authority);
    std::fs::remove_file(dir.join(ISSUED)).expect("there");
    let error = Authority::open(&dir).err().expect("it is missing").to_string();
    assert!(error.contains(ISSUED) && error.contains("backup"), "{error}");
    std::fs::write(dir.join(ISSUED), "").expect("writes");
    assert!(Authority::open(&dir).is_ok(), "begun anew");
}

/// `ca-issued.jsonl`.
const ISSUED: &str = issued::ISSUED_FILE;

/// An authority that was restored without its list began again at the first edition with nothing
/// revoked, and processes took what had a higher number: whoever was revoked was back.
#[test]
fn a_list_that_was_lost_is_made_again_with_all_that_was_revoked() {
    let (dir, authority) = authority("lost-list");
    authority.issue(&dir, "stolen", Role::Node, 1).expect("issues");
    let early = std::fs::read(dir.join(CRL_FILE)).expect("made with the authority");
    authority.revoke(&Which::Name("stolen".into())).expect("revokes");
    let origin = Credentials::load(&dir, "origin", uses(true)).expect("good files");
    drop(authority);
    for old in [None, Some(&early)] {
        match old {
            None => std::fs::remove_file(dir.join(CRL_FILE)).expect("there"),
            Some(bytes) => std::fs::write(dir.join(CRL_FILE), bytes).expect("writes"),
        }
        let authority = Authority::open(&dir).expect("what was revoked was recorded");
        let standing = |name: &str| {
            let all = authority.list().expect("a good folder");
            all.into_iter().find(|(one, _)| one.name == name).expect("issued").1
        };
        assert_eq!((standing("stolen"), standing("origin")), (Standing::Revoked, Standing::Valid));
        origin.look(true);
        assert_eq!((origin.status().trouble, origin.status().revoked), (None, Some(1)));
    }
}

/// A list was judged by its number alone.
#[test]
fn a_list_never_lacks_what_the_one_before_named() {
    let (dir, authority) = authority("lacking");
    authority.issue(&dir, "stolen", Role::Node, 1).expect("issues");
    authority.issue(&dir, "other", Role::Node, 1).expect("issues");
    // The same authority twice, of which one forgets.
    let twin = folder("lacking-twin");
    std::fs::create_dir(&twin).expect("a new folder");
    for entry in std::fs::read_dir(&dir).expect("there") {
        let path = entry.expect("there").path();
        std::fs::copy(&path, twin.join(path.file_name().expect("a file"))).expect("copies");
    }
    authority.revoke(&Which::Name("stolen".into())).expect("revokes");
    let origin = Credentials::load(&dir, "origin", uses(true)).expect("good files");
    let authorities = read_certificates(&dir.join(CA_FILE), "").expect("there");
    let forgetful = Authority::open(&twin).expect("the same");
    for (serial, wanted) in [("other", "is not in it"), ("node-one", "is not in it")] {
        forgetful.revoke(&Which::Name(serial.into())).expect("revokes");
        std::fs::copy(twin.join(CRL_FILE), dir.join(CRL_FILE)).expect("copies");
        origin.look(true);
        let text = origin.status().trouble.expect("it un-revokes");
        assert!(text.contains(wanted), "{text}");
        assert_eq!(origin.status().revoked, Some(1));
    }
    // More than the one in use, and its number.
    let load = |dir: &Path| Revoked::load(dir, &authorities).expect("good").expect("there");
    let third = load(&twin);
    drop(forgetful);
    let _ = std::fs::remove_file(twin.join(CRL_FILE));
    let empty = Revoked::default();
    assert_eq!(third.may_follow(&empty, &authorities), Ok(()));
    assert_eq!(third.may_follow(&third, &authorities), Ok(()));
}

/// The key of a stolen laptop was signed again by `ca renew`, after all of its name was revoked.
#[test]
fn the_key_of_a_revoked_certificate_is_not_signed_again() {
    let (dir, authority) = authority("stolen-key");
    authority.revoke(&Which::Name("node-one".into())).expect("revokes");
    let before = authority.list().expect("a good folder").len();
    let error = authority.renew("node-one", false, None, &[]).expect_err("its key was stolen");
    let text = error.to_string();
    assert!(text.contains("--new-key") && text.contains("larder ca issue node-one"), "{text}");
    assert_eq!(authority.list().expect("a good folder").len(), before, "nothing was signed");
    authority.renew("node-one", true, None, &[]).expect("another key");
    assert!(Credentials::load(&dir, "node-one", uses(false)).is_ok());
}

/// Names of files of the authority's own.
#[test]
fn a_name_never_stands_in_the_way_of_the_authoritys_files() {
    let (dir, authority) = authority("reserved");
    for name in ["ca", "ca-crl", "ca-key"] {
        let refused = authority.issue(&dir, name, Role::Node, 1);
        assert!(matches!(refused, Err(TlsError::BadName(_))), "{name}");
    }
}

/// Two lists in a file, while one authority takes over from another; whoever the older one shuts out
/// is revoked in the folder `dir`.
fn two_lists(name: &str) -> (PathBuf, [Vec<u8>; 2]) {
    let (old, former) = authority(&format!("{name}-old"));
    former.revoke(&Which::Name("node-one".into())).expect("revokes");
    drop(former);
    let dir = folder(name);
    let new = init(&dir, "test authority 2").expect("a new folder");
    new.issue(&dir, "origin", Role::Origin, 1).expect("issues");
    let read = |dir: &Path, file: &str| std::fs::read(dir.join(file)).expect("written");
    let lists = [read(&dir, CRL_FILE), read(&old, CRL_FILE)];
    std::fs::write(dir.join(CA_FILE), [read(&dir, CA_FILE), read(&old, CA_FILE)].concat())
        .expect("writes");
    for file in ["node-one.pem", "node-one-key.pem"] {
        std::fs::copy(old.join(file), dir.join(file)).expect("copies");
    }
    (dir, lists)
}

/// Bug 112: a file of two lists of which one had lost its first line, or followed the other without a
/// line break, was taken for the other alone: a process that started let in whom it shuts out, and an
/// authority left it out of the next edition.
#[test]
fn a_list_that_cannot_be_read_is_not_passed_over() {
    let (dir, [new, old]) = two_lists("passed-over");
    let set = |bytes: &[u8]| std::fs::write(dir.join(CRL_FILE), bytes).expect("writes");
    let error = || Identity::load(&dir, "origin").err().map(|error| error.to_string());
    set(&[&new[..], &old].concat());
    assert_eq!(error(), None);
    let revoked = Credentials::load(&dir, "node-one", uses(false)).err();
    assert!(matches!(revoked, Some(TlsError::Revoked { .. })), "{revoked:?}");

    let (first, last) = ("-----BEGIN X509 CRL-----", "-----END X509 CRL-----");
    let text = String::from_utf8(old).expect("text");
    let without_break = [new.trim_ascii_end(), text.as_bytes()].concat();
    let harmed = |from: &str, to: &str| [&new[..], text.replace(from, to).as_bytes()].concat();
    let harms = [
        without_break,
        harmed(first, "-----BEGIN X509 CRM-----"),
        harmed(first, "----BEGIN X509 CRL-----"),
        harmed(first, " -----BEGIN X509 CRL-----"),
        harmed(first, ""),
        harmed(last, ""),
        harmed("X509 CRL", "X509 LRC"),
        harmed(last, &format!("{last} {last}")),
    ];
    for harm in harms {
        set(&harm);
        let harm = String::from_utf8_lossy(&harm).into_owned();
        let text = error().unwrap_or_else(|| panic!("taken: {harm}"));
        assert!(text.contains(CRL_FILE), "{text}");
        assert!(Authority::open(&dir).is_err(), "{harm}");
    }

    // Both lists under the lines of one: what is behind the first is not passed over either.
    let decoded = |pem: &[u8]| lists(&dir, pem).expect("a list")[0].as_ref().to_vec();
    let both =
        CertificateRevocationListDer::from([decoded(&new), decoded(text.as_bytes())].concat());
    let authorities = read_certificates(&dir.join(CA_FILE), "").expect("there");
    let error = Revoked::default().add(&dir, &both, &authorities).expect_err("more behind it");
    assert!(error.to_string().contains("more behind a list"), "{error}");
}

/// Bug 113: harm to `ca-issued.jsonl` was found when a list was made of it, by a panic: a time that
/// cannot be written, or a number above which there is none (which began again at zero where
/// overflows are not looked for). A serial number that is none was left out of the list.
#[test]
fn lines_of_which_no_list_can_be_made_are_named() {
    let (dir, authority) = authority("no-list");
    authority.revoke(&Which::Name("node-one".into())).expect("revokes");
    drop(authority);
    let whole = std::fs::read_to_string(dir.join(ISSUED)).expect("there");
    let lines = whole.lines().count();
    let harms = [
        (r#"{"edition":9,"revoked":["0a"],"at":-99999999999}"#, "a time"),
        (r#"{"edition":9,"revoked":["0a"],"at":253402300800}"#, "a time"),
        (r#"{"edition":9,"revoked":["0x"],"at":1}"#, "a serial number"),
        (r#"{"edition":9,"revoked":["+a"],"at":1}"#, "a serial number"),
        (r#"{"edition":18446744073709551615,"revoked":[],"at":1}"#, "no number above"),
    ];
    for (line, wanted) in harms {
        std::fs::write(dir.join(ISSUED), format!("{whole}{line}\n")).expect("writes");
        let text = Authority::open(&dir).err().expect("refused").to_string();
        assert!(text.contains(wanted), "{line}: {text}");
        let named = wanted.contains("above") || text.contains(&format!("line {}", lines + 1));
        assert!(named, "{line}: {text}");
    }
    std::fs::write(dir.join(ISSUED), &whole).expect("writes");
    assert!(Authority::open(&dir).is_ok());
}

/// Bug 114: `larder ca issue --days 3000000` was answered by a panic, since no end after the year
/// 9999 can be written.
#[test]
fn a_certificate_lasts_no_longer_than_can_be_written() {
    let (dir, authority) = authority("for-ever");
    for days in [2_000_000, 3_000_000, u32::MAX] {
        authority.issue(&dir, "ever", Role::Node, days).expect("issues");
        let origin = Identity::load(&dir, "origin").expect("issued");
        let ever = Identity::load(&dir, "ever").expect("issued");
        assert_eq!(handshake(&origin, &ever, None).0.expect("accepted"), "ever");
    }
    let renewed = authority.renew("ever", false, None, &[]).expect("renews");
    assert_eq!(renewed.until, 253_402_300_799, "the last second that can be written");
}
