//! Wrong certificates, two nodes of one name, and bytes that are no messages.

use crate::common::{Site, counter, create, eventually, increment, session};
use larder::client::{Error, Node};
use larder::http::Probe;
use larder::tls::{CA_FILE, Identity, Role, TlsError, certificate_file, init, key_file};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_authority_is_refused_and_told_why() {
    let (site, stranger) = (Site::new(), Site::new());
    let origin = site.origin().await;
    let parent = origin.address().to_string();
    let refused = Node::connect(stranger.node_config("one", &parent)).await.err();
    let text = refused.as_ref().map(ToString::to_string).unwrap_or_default();
    assert!(matches!(refused, Some(Error::Tls(TlsError::PeerRefused { .. }))), "{text}");
    assert!(text.contains("another authority"), "{text}");

    // One that trusts our origin, but whom the origin does not trust: told on its first read.
    let mixed = site.dir.join("mixed");
    let other = init(&mixed, "other").expect("a new folder");
    other.issue(&mixed, "one", Role::Node, 1).expect("issues");
    let both = [mixed.join(CA_FILE), site.tls().join(CA_FILE)]
        .map(|path| std::fs::read_to_string(path).expect("is there"))
        .concat();
    std::fs::write(mixed.join(CA_FILE), both).expect("writes");
    let mut config = site.node_config("one", &parent);
    config.tls_dir = mixed;
    let refused = Node::connect(config).await.err();
    let text = refused.as_ref().map(ToString::to_string).unwrap_or_default();
    assert!(matches!(refused, Some(Error::Tls(TlsError::RefusedByPeer { .. }))), "{text}");
    assert!(text.contains("one.pem"), "{text}");

    // The origin serves others all the same.
    site.node("one", &parent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_certificate_of_ones_own_is_named_at_once() {
    let site = Site::new();
    let origin = site.origin().await;
    expired(&site, "late", Role::Node).await;
    let config = site.node_config("late", &origin.address().to_string());
    let refused = Node::connect(config).await.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(refused.contains("late.pem") && refused.contains("expired"), "{refused}");
}

/// A process refuses to start with an expired certificate, so that nothing showed whether the
/// other side would: a program of another make, or a clock set back, decides for itself.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_certificate_is_refused_by_the_listener() {
    let site = Site::new();
    let origin = site.origin().await;
    let address = origin.address().to_string();
    expired(&site, "late", Role::Node).await;
    let answer = dial_without_checks(&site, "late", &address).await;
    assert!(answer.contains("CertificateExpired"), "{answer}");
    let children = origin.status().await["children"].clone();
    assert!(children.as_array().is_some_and(Vec::is_empty), "{children}");
    // A good one is let in that way, and is refused for what it says only.
    let answer = dial_without_checks(&site, "three", &address).await;
    assert!(!answer.contains("Certificate"), "{answer}");
    site.node("one", &address).await;
}

/// The reverse: a parent of another make that serves on with a certificate whose time is over.
#[tokio::test(flavor = "multi_thread")]
async fn an_expired_certificate_of_the_parent_is_refused() {
    let site = Site::new();
    expired(&site, "old", Role::Origin).await;
    let (chain, key) = files(&site, "old");
    let mut config = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("one key");
    config.alpn_protocols = vec![b"larder/1".to_vec()];
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound").to_string();
    let parent = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("accepts");
            // Told by the child why it goes; TLS 1.3 has the child speak last.
            let Err(error) = acceptor.accept(stream).await else {
                panic!("the child took an expired certificate");
            };
            assert!(error.to_string().contains("CertificateExpired"), "{error}");
        }
    });
    let refused = Node::connect(site.node_config("one", &address)).await.err();
    let text = refused.as_ref().map(ToString::to_string).unwrap_or_default();
    assert!(matches!(refused, Some(Error::Tls(TlsError::PeerRefused { .. }))), "{text}");
    assert!(text.contains("expired"), "{text}");
    assert!(!parent.is_finished(), "{:?}", parent.await);
}

/// A certificate of the authority whose time is over.
async fn expired(site: &Site, name: &str, role: Role) {
    site.authority.issue(&site.tls(), name, role, 0).expect("issues");
    // It ends in this second.
    tokio::time::sleep(Duration::from_millis(2100)).await;
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn files(site: &Site, name: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = CertificateDer::pem_file_iter(site.tls().join(certificate_file(name)));
    let chain = chain.expect("it is there").map(|found| found.expect("a certificate")).collect();
    let key = PrivateKeyDer::from_pem_file(site.tls().join(key_file(name))).expect("a key");
    (chain, key)
}

/// Links as a program would that does not look at its own certificate, and says nothing of sense;
/// the other side's last word.
async fn dial_without_checks(site: &Site, name: &str, address: &str) -> String {
    let mut roots = rustls::RootCertStore::empty();
    for ca in CertificateDer::pem_file_iter(site.tls().join(CA_FILE)).expect("it is there") {
        roots.add(ca.expect("a certificate")).expect("an authority");
    }
    let (chain, key) = files(site, name);
    let mut config = rustls::ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("TLS 1.3")
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .expect("one key");
    config.alpn_protocols = vec![b"larder/1".to_vec()];
    let stream = TcpStream::connect(address).await.expect("accepted");
    let name = "origin".try_into().expect("a name");
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    // TLS 1.3 tells a client only after the handshake that its certificate was refused.
    let mut stream = connector.connect(name, stream).await.expect("the origin's is good");
    let _ = stream.write_all(&[0xff; 64]).await;
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest)).await;
    match ended.expect("the other side ends it") {
        Ok(_) => String::from_utf8_lossy(&rest).into_owned(),
        Err(error) => error.to_string(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_node_of_one_name_is_refused_while_the_first_lives() {
    let site = Site::new();
    let origin = site.origin().await;
    let parent = origin.address().to_string();
    let first = site.node("one", &parent).await;
    let volume = create(&first, "shared").await;
    let id = counter(&volume, 1).await;
    let mut config = site.node_config("one", &parent);
    config.node.request_limit = larder::config::Period(Duration::from_secs(5));
    let second = Node::connect(config).await.err();
    let text = second.as_ref().map(ToString::to_string).unwrap_or_default();
    assert!(matches!(second, Some(Error::Refused(_))), "{text}");
    assert!(text.contains("one"), "it is named: {text}");
    increment(&session(&volume), id).await.expect("the first goes on");
}

/// A person has one certificate; a command was refused under the name of a mount that runs.
#[tokio::test(flavor = "multi_thread")]
async fn processes_of_one_name_run_side_by_side_under_instances() {
    let site = Site::new();
    let origin = site.origin().await;
    let parent = origin.address().to_string();
    let relay = site.relay(&parent).await;
    let mount = site.node("one", &parent).await;
    let volume = create(&mount, "shared").await;
    let id = counter(&volume, 1).await;
    let config = site.node_config("one", &relay.address().to_string());
    let command =
        Node::connect(config.clone().for_task("check")).await.expect("it has an instance");
    assert!(command.status().name.starts_with("one/check-"), "{}", command.status().name);
    let theirs = command.volume("shared").await.expect("it is there");
    assert_eq!(increment(&session(&theirs), id).await.expect("it commits"), 1);

    // A true duplicate is refused, below another parent too, and named.
    let second = Node::start(config).expect("its certificate does");
    eventually("the second is refused", || async {
        let _ = second.volume("shared").await;
        let trouble = second.status().trouble.unwrap_or_default();
        trouble.contains("refused") && trouble.contains("the name one;")
    })
    .await;
    assert_eq!(increment(&session(&volume), id).await.expect("the first goes on"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_that_is_not_there_is_an_error_within_the_limit() {
    let site = Site::new();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = nobody.local_addr().expect("bound").to_string();
    drop(nobody);
    let mut config = site.node_config("one", &address);
    config.node.request_limit = larder::config::Period(Duration::from_millis(300));
    let error = Node::connect(config).await.err();
    assert!(matches!(error, Some(Error::Unavailable(_))), "{error:?}");
}

/// Sends bytes over a good TLS link and reads until the other side ends it.
async fn send_over_tls(site: &Site, address: &str, bytes: &[u8]) {
    let identity = Identity::load(&site.tls(), "three").expect("issued");
    let config = identity.client_config(None).expect("good files");
    let stream = TcpStream::connect(address).await.expect("accepted");
    let name = "larder.invalid".try_into().expect("a name");
    let connector = tokio_rustls::TlsConnector::from(config);
    let mut stream = connector.connect(name, stream).await.expect("a good certificate");
    // The origin may end the link before all is written.
    let _ = stream.write_all(bytes).await;
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the link is ended for {} bytes", bytes.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_bytes_end_their_own_link_and_no_other() {
    let site = Site::new();
    let origin = site.origin().await;
    let address = origin.address().to_string();
    let one = site.node("one", &address).await;
    let volume = create(&one, "shared").await;
    let id = counter(&volume, 1).await;

    let mut random = larder::core::rng::Rng::new(7);
    let mut noise =
        |length: usize| -> Vec<u8> { (0..length).map(|_| random.next_u64() as u8).collect() };
    for length in [0, 1, 7, 8, 9, 100, 20_000] {
        // Without TLS at all.
        let mut stream = TcpStream::connect(&address).await.expect("accepted");
        let _ = stream.write_all(&noise(length)).await;
        drop(stream);
        // Over a good link: noise, zeros (frames that never complete a message), ones.
        send_over_tls(&site, &address, &noise(length.max(8))).await;
        send_over_tls(&site, &address, &vec![0; length.max(8)]).await;
        send_over_tls(&site, &address, &vec![0xff; length.max(8)]).await;
    }
    for round in 1..=3 {
        assert_eq!(increment(&session(&volume), id).await.expect("commits"), round);
    }
}
