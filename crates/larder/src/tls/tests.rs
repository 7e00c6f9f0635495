use super::*;
use std::io::{Read, Write};

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
    assert_eq!(role("origin"), Child::Node);
}

#[test]
fn a_node_cannot_pose_as_an_origin() {
    let (dir, _) = authority("roles");
    let node = Identity::load(&dir, "node-one").expect("issued");
    assert!(matches!(node.server_config(), Err(TlsError::WrongRole { .. })));
    let origin = Identity::load(&dir, "origin").expect("issued");
    assert!(matches!(origin.client_config(None), Err(TlsError::WrongRole { .. })));
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
