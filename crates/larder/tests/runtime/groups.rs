//! Groups over TLS sockets: neighbours share their caches, and nobody else does.

use crate::common::{Site, counter, create, eventually, increment, session, value};
use larder::client::{Error, Node, NodeConfig};
use larder::config::RelayConfig;
use larder::http::Probe;
use larder::metrics::{Direction, Kind, Side};
use larder::server::RelayServer;
use larder::tls::Role;
use serde_json::Value;

/// A site with certificates of a group, and one without.
fn site() -> Site {
    let site = Site::new();
    let (tls, groups) = (site.tls(), ["lan".to_owned()]);
    for (name, role) in [("redirector", Role::Relay), ("one", Role::Node), ("two", Role::Node)] {
        site.authority.issue_in(&tls, (name, role, &groups), 1).expect("issues");
    }
    site
}

fn redirector_config(site: &Site, parent: &str) -> RelayConfig {
    let mut config = site.relay_config(parent);
    config.name = "redirector".into();
    config.group.name = "lan".into();
    config
}

async fn redirector(site: &Site, parent: &str) -> RelayServer {
    RelayServer::start(redirector_config(site, parent)).await.expect("the relay starts")
}

fn member_config(site: &Site, name: &str, parent: &str) -> NodeConfig {
    let mut config = site.node_config(name, parent);
    config.group.name = "lan".into();
    config.group.listen = "127.0.0.1:0".into();
    config.group.redial.0 = std::time::Duration::from_millis(50);
    config
}

async fn member(site: &Site, name: &str, parent: &str) -> Node {
    Node::connect(member_config(site, name, parent)).await.expect("the node links")
}

async fn linked(node: &Node, count: i64) {
    let what = "a link to each neighbour";
    eventually(what, || async { node.metrics().links(Side::Neighbour) == count }).await;
}

/// The origin is asked for a page once, by whoever missed it first.
#[tokio::test(flavor = "multi_thread")]
async fn what_one_member_has_read_its_neighbour_gets_from_it() {
    let site = site();
    let origin = site.origin().await;
    let parent = redirector(&site, &origin.address().to_string()).await;
    let parent = (parent.address().to_string(), parent);
    let founder = site.node("three", &origin.address().to_string()).await;
    let id = counter(&create(&founder, "shared").await, 1).await;
    let (one, two) = (member(&site, "one", &parent.0).await, member(&site, "two", &parent.0).await);
    linked(&one, 1).await;
    linked(&two, 1).await;
    let first = session(&one.volume("shared").await.expect("it was made"));
    assert_eq!(value(&first, id).await, 0);
    let asked = || parent.1.metrics().messages(Direction::Sent, Kind::Fetch).0;
    let before = asked();
    let volume = two.volume("shared").await.expect("it was made");
    let second = session(&volume);
    assert_eq!(value(&second, id).await, 0);
    assert_eq!(asked(), before, "the page came from a neighbour");
    // What one commits its neighbour has with the change, and reads without a message.
    assert_eq!(increment(&first, id).await.expect("commits"), 1);
    let fetched = || two.metrics().messages(Direction::Sent, Kind::Fetch).0;
    let before = fetched();
    eventually("the update is there", || async { value(&second, id).await == 1 }).await;
    assert_eq!(fetched(), before, "new bytes came with the change");
}

/// A neighbour that ends, or dies, is missed for no longer than a look for it takes.
#[tokio::test(flavor = "multi_thread")]
async fn a_neighbour_that_is_gone_is_done_without_and_found_again() {
    let site = site();
    let origin = site.origin().await;
    let parent = redirector(&site, &origin.address().to_string()).await;
    let at = parent.address().to_string();
    let founder = site.node("three", &origin.address().to_string()).await;
    let id = counter(&create(&founder, "shared").await, 1).await;
    let (one, two) = (member(&site, "one", &at).await, member(&site, "two", &at).await);
    linked(&two, 1).await;
    let reader = session(&one.volume("shared").await.expect("it was made"));
    assert_eq!(value(&reader, id).await, 0);
    one.shutdown().await;
    linked(&two, 0).await;
    let second = session(&two.volume("shared").await.expect("it was made"));
    assert_eq!(value(&second, id).await, 0, "from above");
    let one = member(&site, "one", &at).await;
    linked(&two, 1).await;
    let reader = session(&one.volume("shared").await.expect("it was made"));
    let asked = || parent.metrics().messages(Direction::Sent, Kind::Fetch).0;
    let before = asked();
    assert_eq!(value(&reader, id).await, 0);
    assert_eq!(asked(), before, "it has helped whom it was helped by");
}

/// Who names a group without a certificate of it does not start, and is told what to do.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_certificate_of_the_group_nobody_is_in_it() {
    let site = site();
    let origin = site.origin().await;
    let parent = origin.address().to_string();
    let error = Node::start(member_config(&site, "three", &parent)).err().expect("refused");
    let text = error.to_string();
    assert!(matches!(error, Error::Tls(_)), "{text}");
    for word in ["group.name", "larder ca renew three --group lan"] {
        assert!(text.contains(word), "{text}");
    }
    let mut config = redirector_config(&site, &parent);
    config.name = "relay".into();
    let text = RelayServer::start(config).await.err().expect("refused").to_string();
    assert!(text.contains("larder ca renew relay --group lan"), "{text}");
    // The other way round: a member's parent that is not of its group is a parent like any other.
    let relay = site.relay(&parent).await;
    let at = relay.address().to_string();
    let (one, two) = (member(&site, "one", &at).await, member(&site, "two", &at).await);
    let id = counter(&create(&one, "shared").await, 1).await;
    assert_eq!(value(&session(&two.volume("shared").await.expect("made")), id).await, 0);
    assert_eq!(two.metrics().links(Side::Neighbour), 0);
    assert_eq!(one.metrics().links(Side::Neighbour), 0);
    let status: Value = Probe::status(&relay).await;
    assert_eq!(status["children"].as_array().map(Vec::len), Some(2));
}

/// A renewal keeps the groups, and adds what it is told.
#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_into_a_group() {
    let site = site();
    let more = ["lan".to_owned()];
    let renewed = site.authority.renew("three", false, None, &more).expect("renews");
    assert_eq!(renewed.groups, ["lan"]);
    let renewed = site.authority.renew("three", false, None, &[]).expect("renews");
    assert_eq!(renewed.groups, ["lan"]);
    let origin = site.origin().await;
    let node = Node::start(member_config(&site, "three", &origin.address().to_string()));
    node.expect("it is of the group now").shutdown().await;
    let bad = site.authority.renew("three", false, None, &["no name".to_owned()]);
    assert!(bad.expect_err("no name").to_string().contains("no name of a group"));
}

/// What is taken is named, with the key.
#[tokio::test(flavor = "multi_thread")]
async fn an_address_that_is_taken_is_named() {
    let site = site();
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let mut config = member_config(&site, "one", "127.0.0.1:1");
    config.group.listen = taken.local_addr().expect("bound").to_string();
    let text = Node::start(config).err().expect("taken").to_string();
    assert!(text.contains("group.listen"), "{text}");
}
