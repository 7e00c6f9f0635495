//! Groups that find their redirectors themselves, over TLS sockets.

use crate::common::{Site, counter, create, eventually, increment, session, value};
use larder::client::{Node, NodeConfig};
use larder::config::{GroupRole, RelayConfig};
use larder::http::Probe;
use larder::metrics::{Direction, Kind, Side};
use larder::server::RelayServer;
use larder::tls::Role;
use serde_json::Value;
use std::sync::atomic::{AtomicU16, Ordering};

const GROUP: &str = "lan";

/// A site whose group has a relay, three members that may become its redirector, and one that may not.
struct Lan {
    site: Site,
    seeds: String,
}

impl Lan {
    /// The ports of those who are seeds are free by now.
    fn new(seeds: &[u16]) -> Self {
        let site = Site::new();
        let (tls, groups) = (site.tls(), [GROUP.to_owned()]);
        let relays = ["redirector", "a", "b", "c"].map(|name| (name, Role::Relay));
        for (name, role) in relays.into_iter().chain([("low", Role::Node)]) {
            site.authority.issue_in(&tls, (name, role, &groups), 1).expect("issues");
        }
        // By a name, as people write it: participants know each other by addresses.
        let seeds: Vec<String> = seeds.iter().map(|port| format!("localhost:{port}")).collect();
        Self { site, seeds: seeds.join(",") }
    }

    fn config(&self, name: &str, port: u16, parent: &str) -> NodeConfig {
        let mut config = self.site.node_config(name, parent);
        config.group.name = GROUP.into();
        config.group.seeds = self.seeds.clone();
        config.group.listen = format!("127.0.0.1:{port}");
        config.group.redial.0 = std::time::Duration::from_millis(50);
        config
    }

    async fn member(&self, name: &str, port: u16, parent: &str) -> Node {
        let node = Node::connect(self.config(name, port, parent)).await;
        node.unwrap_or_else(|error| panic!("{name} links: {error}"))
    }

    async fn relay(&self, port: u16, parent: &str, role: GroupRole) -> RelayServer {
        RelayServer::start(self.relay_config(port, parent, role)).await.expect("the relay starts")
    }

    fn relay_config(&self, port: u16, parent: &str, role: GroupRole) -> RelayConfig {
        let mut config = self.site.relay_config(parent);
        config.name = "redirector".into();
        config.group.name = GROUP.into();
        config.group.seeds = self.seeds.clone();
        config.group.role = role;
        config.relay.listen = format!("127.0.0.1:{port}");
        config
    }
}

/// Ports that nobody listens at. Not of those that the system gives to whoever asks for any: another test would
/// be given one of them in the moment before it is used here.
fn ports<const N: usize>() -> [u16; N] {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 12_000 + (std::process::id() % 400) as u16 * 40;
    [(); N].map(|()| {
        loop {
            let port = first + NEXT.fetch_add(1, Ordering::Relaxed) % 40;
            if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
                return port;
            }
        }
    })
}

/// Who is the redirector, as a process tells.
async fn followed(process: &impl Probe) -> Option<String> {
    let status: Value = Probe::status(process).await;
    let there = status["group"]["election"]["there"].as_array()?.clone();
    let redirector = there.into_iter().find(|one| one["redirector"] == true)?;
    redirector["name"].as_str().map(str::to_owned)
}

async fn follows(process: &impl Probe, name: &str) {
    let what = format!("{name} is followed");
    eventually(&what, || async { followed(process).await.as_deref() == Some(name) }).await;
}

async fn linked(node: &Node, count: i64) {
    let what = "a link to each neighbour";
    eventually(what, || async { node.metrics().links(Side::Neighbour) == count }).await;
}

/// The redirector dies: one of the others takes its place, nothing that was committed is lost or done twice, what
/// a member holds it goes on with, and whoever was the redirector comes back as a member.
#[tokio::test(flavor = "multi_thread")]
async fn a_redirector_that_dies_is_replaced_by_one_of_its_group() {
    let ports: [u16; 3] = ports();
    let lan = Lan::new(&ports);
    let origin = lan.site.origin().await;
    let parent = origin.address().to_string();
    let founder = lan.site.node("three", &parent).await;
    let id = counter(&create(&founder, "shared").await, 1).await;
    let a = lan.member("a", ports[0], &parent).await;
    follows(&a, "a").await;
    let (b, c) =
        (lan.member("b", ports[1], &parent).await, lan.member("c", ports[2], &parent).await);
    follows(&b, "a").await;
    follows(&c, "a").await;
    for node in [&a, &b, &c] {
        linked(node, 2).await;
    }
    let sessions =
        [&b, &c].map(|node| async { session(&node.volume("shared").await.expect("it was made")) });
    let [on_b, on_c] = sessions;
    let (on_b, on_c) = (on_b.await, on_c.await);
    let mut count = 0;
    for _ in 0..5 {
        count += 1;
        assert_eq!(increment(&on_b, id).await.expect("commits"), count);
        count += 1;
        assert_eq!(increment(&on_c, id).await.expect("commits"), count);
    }
    // Its links break without a word.
    drop(a);
    let begun = std::time::Instant::now();
    for _ in 0..5 {
        count += 1;
        assert_eq!(increment(&on_b, id).await.expect("commits"), count);
        count += 1;
        assert_eq!(increment(&on_c, id).await.expect("commits"), count);
    }
    eprintln!("ten commits after the redirector died took {:?}", begun.elapsed());
    let leader = followed(&b).await.expect("somebody is followed");
    assert!(leader == "b" || leader == "c", "{leader}");
    follows(&c, &leader).await;
    assert_eq!(value(&session(&founder.volume("shared").await.expect("made")), id).await, count);
    // What it has it reads on without a message.
    let fetched = || b.metrics().messages(Direction::Sent, Kind::Fetch).0;
    let before = fetched();
    eventually("b has the last commit", || async { value(&on_b, id).await == count }).await;
    assert_eq!(fetched(), before, "caches are kept");
    let a = lan.member("a", ports[0], &parent).await;
    follows(&a, &leader).await;
    for node in [&a, &b, &c] {
        linked(node, 2).await;
    }
    let on_a = session(&a.volume("shared").await.expect("it was made"));
    assert_eq!(increment(&on_a, id).await.expect("commits"), count + 1);
}

/// A redirector that is told to end hands over before it is missed, and a relay that is pinned is the redirector
/// whenever it runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_pinned_relay_hands_over_and_takes_back() {
    let ports: [u16; 3] = ports();
    let lan = Lan::new(&ports[..1]);
    let origin = lan.site.origin().await;
    let parent = origin.address().to_string();
    let relay = lan.relay(ports[0], &parent, GroupRole::Pinned).await;
    let (b, c) =
        (lan.member("b", ports[1], &parent).await, lan.member("c", ports[2], &parent).await);
    follows(&b, "redirector").await;
    follows(&c, "redirector").await;
    let id = counter(&create(&b, "shared").await, 1).await;
    let (on_b, on_c) = (
        session(&b.volume("shared").await.expect("made")),
        session(&c.volume("shared").await.expect("made")),
    );
    assert_eq!(increment(&on_b, id).await.expect("commits"), 1);
    relay.shutdown().await;
    drop(relay);
    assert_eq!(increment(&on_c, id).await.expect("commits"), 2);
    let leader = followed(&b).await.expect("somebody is followed");
    assert!(leader == "b" || leader == "c", "{leader}");
    let relay = lan.relay(ports[0], &parent, GroupRole::Pinned).await;
    follows(&b, "redirector").await;
    follows(&c, "redirector").await;
    assert_eq!(increment(&on_b, id).await.expect("commits"), 3);
    assert_eq!(increment(&on_c, id).await.expect("commits"), 4);
    eventually("both are its children", || async {
        let status: Value = Probe::status(&relay).await;
        status["group"]["members"].as_array().is_some_and(|members| members.len() == 2)
    })
    .await;
}

/// Who may never be the redirector, and finds none, has its parent itself; once there is one it goes there.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_alone_is_linked_to_the_parent_itself() {
    let ports: [u16; 2] = ports();
    let lan = Lan::new(&ports);
    let origin = lan.site.origin().await;
    let parent = origin.address().to_string();
    let low = lan.member("low", ports[0], &parent).await;
    let id = counter(&create(&low, "shared").await, 1).await;
    let on_low = session(&low.volume("shared").await.expect("made"));
    assert_eq!(increment(&on_low, id).await.expect("commits"), 1);
    assert_eq!(followed(&low).await, None);
    let b = lan.member("b", ports[1], &parent).await;
    follows(&low, "b").await;
    linked(&low, 1).await;
    assert_eq!(increment(&on_low, id).await.expect("commits"), 2);
    let on_b = session(&b.volume("shared").await.expect("made"));
    assert_eq!(increment(&on_b, id).await.expect("commits"), 3);
}

/// Somebody is the redirector, and says so to all, but announces an address at which nobody is reached: whoever
/// follows it is linked to the parent itself after a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_redirector_that_is_not_reached_is_done_without() {
    let ports: [u16; 3] = ports();
    let lan = Lan::new(&ports[..2]);
    let origin = lan.site.origin().await;
    let parent = origin.address().to_string();
    let mut config = lan.relay_config(ports[0], &parent, GroupRole::Pinned);
    config.group.address = format!("127.0.0.1:{}", ports[2]);
    let _relay = RelayServer::start(config).await.expect("the relay starts");
    let low = lan.member("low", ports[1], &parent).await;
    follows(&low, "redirector").await;
    let id = counter(&create(&low, "shared").await, 1).await;
    let on_low = session(&low.volume("shared").await.expect("made"));
    assert_eq!(increment(&on_low, id).await.expect("commits"), 1);
    assert_eq!(low.status().parent, parent);
}

/// Somebody is the redirector, and whoever listens at its address is not of the group, as when its certificate has
/// expired while its links stand. Whoever started then was told that its parent is not trusted, and ended, though its
/// own parent would have had it.
#[tokio::test(flavor = "multi_thread")]
async fn a_redirector_that_is_not_trusted_is_done_without() {
    let ports: [u16; 2] = ports();
    let lan = Lan::new(&ports);
    let origin = lan.site.origin().await;
    let parent = origin.address().to_string();
    let mut config = lan.relay_config(ports[0], &parent, GroupRole::Pinned);
    config.group.address.clone_from(&parent);
    let _relay = RelayServer::start(config).await.expect("the relay starts");
    let low = lan.member("low", ports[1], &parent).await;
    let id = counter(&create(&low, "shared").await, 1).await;
    let on_low = session(&low.volume("shared").await.expect("made"));
    assert_eq!(increment(&on_low, id).await.expect("commits"), 1);
    follows(&low, "redirector").await;
    assert_eq!(increment(&on_low, id).await.expect("commits"), 2);
}

/// A certificate of the authority that is not of the group says nothing in it, and hears nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_takes_no_part_in_an_election() {
    let ports: [u16; 2] = ports();
    let lan = Lan::new(&ports);
    let origin = lan.site.origin().await;
    let parent = origin.address().to_string();
    let a = lan.member("a", ports[0], &parent).await;
    follows(&a, "a").await;
    // Of another group, though it calls it by this one's name.
    let other = ["other".to_owned()];
    lan.site.authority.issue_in(&lan.site.tls(), ("d", Role::Relay, &other), 1).expect("issues");
    let error = Node::start(lan.config("d", ports[1], &parent)).err().expect("refused");
    assert!(error.to_string().contains("group.name"), "{error}");
    let mut config = lan.config("d", ports[1], &parent);
    config.group.name = "other".into();
    let d = Node::connect(config).await.expect("it is alone in its group");
    follows(&d, "d").await;
    let status: Value = Probe::status(&a).await;
    assert_eq!(status["group"]["election"]["there"].as_array().map(Vec::len), Some(1), "{status}");
}
