//! Transactions over domains of two origins (decision 0038), over real lines between them.

use crate::common::{Site, counter, create, eventually, session, value};
use larder::client::{Error, Node, Session};
use larder::config::{OriginConfig, Period};
use larder::core::id::ObjectId;
use larder::http::Probe;
use larder::server::OriginServer;
use larder::tls::Role;
use std::time::Duration;

/// An address where nobody listens now.
fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    listener.local_addr().expect("it is bound").to_string()
}

/// An origin of this name, which lists others.
fn config(site: &Site, name: &str, listen: &str, peers: &str) -> OriginConfig {
    let mut config = site.origin_config(listen);
    config.name = name.into();
    config.origin.data = site.dir.join(name);
    config.origin.create = !config.origin.data.exists();
    config.origin.peers = peers.into();
    config
}

async fn start(config: OriginConfig) -> OriginServer {
    OriginServer::start(config).await.expect("the origin starts")
}

/// Two origins that list each other.
struct Two {
    site: Site,
    east_at: String,
    west_at: String,
}

impl Two {
    fn new() -> Self {
        let site = Site::new();
        for name in ["east", "west"] {
            site.authority.issue(&site.tls(), name, Role::Origin, 1).expect("issues");
        }
        Self { site, east_at: free_address(), west_at: free_address() }
    }

    async fn east(&self) -> OriginServer {
        start(config(&self.site, "east", &self.east_at, &format!("west={}", self.west_at))).await
    }

    async fn west(&self) -> OriginServer {
        start(config(&self.site, "west", &self.west_at, &format!("east={}", self.east_at))).await
    }

    /// A node of both, and an object of each.
    async fn node(&self) -> (Node, [ObjectId; 2], [Session; 2]) {
        let founder = self.site.node("three", &self.west_at).await;
        let far = counter(&create(&founder, "far").await, 1).await;
        let mut config =
            self.site.node_config("one", &format!("{},{}", self.east_at, self.west_at));
        config.node.request_limit = Period(Duration::from_secs(5));
        let node = Node::connect(config).await.expect("the node links");
        eventually("both are linked", || async { node.status().connected }).await;
        let near = counter(&create(&node, "near").await, 1).await;
        let near_session = session(&node.volume("near").await.expect("the first has it"));
        let far_session = session(&node.volume("far").await.expect("the second has it"));
        (node, [near, far], [near_session, far_session])
    }
}

async fn writes(session: &Session, [near, far]: [ObjectId; 2], number: u64) -> Result<(), Error> {
    let both = session.transact(|tx| async move {
        tx.update(near, number.to_le_bytes().to_vec()).await?;
        tx.update(far, number.to_le_bytes().to_vec()).await
    });
    both.await.map(|_| ())
}

async fn are_linked(origin: &OriginServer) -> bool {
    origin.status().await["peers"][0]["connected"].as_bool().expect("it is told")
}

/// A transaction over both is done in both. While one of them is away nothing of it is done, and its user hears why; when it
/// is back all goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_over_two_origins() {
    let two = Two::new();
    let (east, west) = (two.east().await, two.west().await);
    eventually("they hear each other", || async {
        are_linked(&east).await && are_linked(&west).await
    })
    .await;
    let domains = east.status().await["peers"][0]["domains"].clone();
    assert_eq!(domains.as_array().map(Vec::len), Some(1), "{domains}");
    let (_node, both, sessions) = two.node().await;
    for number in 1..=20 {
        writes(&sessions[0], both, number).await.expect("it is done in both");
    }
    eventually("both are seen", || async {
        value(&sessions[0], both[0]).await == 20 && value(&sessions[1], both[1]).await == 20
    })
    .await;

    west.kill().await;
    eventually("that is noticed", || async { !are_linked(&east).await }).await;
    assert!(east.notes().iter().any(|note| note.contains("west")), "{:?}", east.notes());
    let failed = writes(&sessions[0], both, 30).await.expect_err("it cannot be done");
    assert!(!matches!(failed, Error::Invalid(_)), "{failed}");
    assert_eq!(value(&sessions[0], both[0]).await, 20);

    let west = two.west().await;
    eventually("it is back", || async { are_linked(&east).await && are_linked(&west).await }).await;
    let mut number = 40;
    eventually("it is done", || {
        number += 1;
        let session = sessions[0].clone();
        async move { writes(&session, both, number).await.is_ok() }
    })
    .await;
    let (near, far) = (value(&sessions[0], both[0]).await, value(&sessions[1], both[1]).await);
    assert_eq!(near, far, "both or none");
    assert!(near > 30);
}

/// Who may be another origin: whose certificate says so, and who is listed.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_be_another_origin() {
    let two = Two::new();
    let site = &two.site;
    let peers = format!("west={}", two.west_at);
    // A relay's certificate serves and connects, and is none of an origin.
    let refused = OriginServer::start(config(site, "relay", "127.0.0.1:0", &peers)).await;
    let refused = refused.err().expect("its certificate is a relay's").to_string();
    assert!(refused.contains("origin.peers"), "{refused}");
    // One that is not listed is turned away, and says so.
    site.authority.issue(&site.tls(), "north", Role::Origin, 1).expect("issues");
    let _west = two.west().await;
    let north = start(config(site, "north", "127.0.0.1:0", &peers)).await;
    eventually("it hears why", || async {
        north.notes().iter().any(|note| note.contains("north is not a peer"))
    })
    .await;
    // An origin's certificate is nobody's child: no relay's, and no node's.
    let as_relay = site.relay_config(&two.west_at);
    let as_relay = larder::config::RelayConfig { name: "north".into(), ..as_relay };
    let refused =
        larder::server::RelayServer::start(as_relay).await.err().expect("it is no relay's");
    assert!(refused.to_string().contains("north"), "{refused}");
}
