//! Nodes and relays with several parents (decision 0037): each has domains of its own.

use crate::common::{Site, counter, create, eventually, increment, session, value};
use larder::client::{Error, Node, Session, VolumeOptions};
use larder::core::id::ObjectId;
use larder::http::Probe;
use larder::server::{OriginServer, RelayServer};
use larder::tls::Role;

async fn second_origin(site: &Site) -> OriginServer {
    let mut config = site.origin_config("127.0.0.1:0");
    config.origin.data = site.dir.join("second");
    config.origin.create = true;
    OriginServer::start(config).await.expect("the origin starts")
}

/// The second origin on its own store, where it was.
async fn starts_again(site: &Site, address: &str) -> OriginServer {
    let mut config = site.origin_config(address);
    (config.origin.data, config.origin.create) = (site.dir.join("second"), false);
    OriginServer::start(config).await.expect("the origin starts again")
}

/// The node makes a counter in a new volume, which goes to the first origin, and adds to that one and to the second's.
async fn works_with_both(node: &Node, far: ObjectId) -> (ObjectId, Session, Session) {
    let near = counter(&create(node, "near").await, 1).await;
    let near_session = session(&node.volume("near").await.expect("the first has it"));
    let far_session = session(&node.volume("far").await.expect("the second has it"));
    assert_eq!(increment(&near_session, near).await.expect("commits"), 1);
    assert_eq!(increment(&far_session, far).await.expect("commits"), 1);
    let names: Vec<String> =
        node.volumes().await.expect("lists").into_iter().map(|volume| volume.name).collect();
    assert_eq!(names, ["far", "near"]);
    (near, near_session, far_session)
}

/// One node works with the volumes of two origins. One of them ends: what the other has is read and written on, and
/// when it is back it is resumed.
#[tokio::test(flavor = "multi_thread")]
async fn one_parent_that_is_gone_is_missed_by_its_own_volumes_alone() {
    let site = Site::new();
    let (one, two) = (site.origin().await, second_origin(&site).await);
    let (first, second) = (one.address().to_string(), two.address().to_string());
    let founder = site.node("three", &second).await;
    let far = counter(&create(&founder, "far").await, 1).await;
    let node = site.node("one", &format!("{first}, {second}")).await;
    eventually("both are linked", || async { node.status().connected }).await;
    let (near, near_session, far_session) = works_with_both(&node, far).await;

    two.shutdown().await;
    eventually("that is noticed", || async { !node.status().connected }).await;
    let status = node.status();
    assert_eq!(
        status.parents.iter().map(|parent| parent.connected).collect::<Vec<_>>(),
        [true, false]
    );
    assert!(status.trouble.expect("it is said").starts_with(&second));
    assert!(node.ready().is_ok(), "what is to be had from the first is served");
    assert_eq!(node.notes().len(), 1, "the other one is noted");
    assert_eq!(increment(&near_session, near).await.expect("commits"), 2);
    // What is in the cache is read on.
    assert_eq!(value(&far_session, far).await, 1);

    let _two = starts_again(&site, &second).await;
    eventually("it is linked again", || async { node.status().connected }).await;
    assert_eq!(increment(&far_session, far).await.expect("commits"), 2);
}

/// A transaction over domains of two origins is refused at once, and nothing of it is done.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_over_two_origins_is_refused() {
    let site = Site::new();
    let (one, two) = (site.origin().await, second_origin(&site).await);
    let founder = site.node("three", &two.address().to_string()).await;
    let far = counter(&create(&founder, "far").await, 1).await;
    let parents = format!("{},{}", one.address(), two.address());
    let node = site.node("one", &parents).await;
    eventually("both are linked", || async { node.status().connected }).await;
    let volume = node.create_volume(VolumeOptions::new("near")).await.expect("is made");
    let near = counter(&volume, 1).await;
    let far_volume = node.volume("far").await.expect("the second has it");
    let session = session(&volume);
    let both = session.transact(|tx| async move {
        tx.update(near, 7_u64.to_le_bytes().to_vec()).await?;
        tx.update(far, 7_u64.to_le_bytes().to_vec()).await
    });
    let refused = both.await;
    let Err(Error::Invalid(why)) = refused else { panic!("{refused:?}") };
    assert!(why.contains("origin.peers"), "{why}");
    let far_session = crate::common::session(&far_volume);
    assert_eq!((value(&session, near).await, value(&far_session, far).await), (0, 0));
}

/// A relay of two origins: whoever is below it has the volumes of both over one link. One of them ends, and what the other has
/// is read and written on; the relay stays ready, and says what is missing. When it is back all goes on.
#[tokio::test(flavor = "multi_thread")]
async fn below_a_relay_of_two_origins_there_are_the_volumes_of_both() {
    let site = Site::new();
    let (one, two) = (site.origin().await, second_origin(&site).await);
    let (first, second) = (one.address().to_string(), two.address().to_string());
    let founder = site.node("three", &second).await;
    let far = counter(&create(&founder, "far").await, 1).await;
    let relay = site.relay(&format!("{first}, {second}")).await;
    eventually("it follows both", || async { relay.notes().is_empty() && relay.ready().is_ok() })
        .await;
    let node = site.node("one", &relay.address().to_string()).await;
    let (near, near_session, far_session) = works_with_both(&node, far).await;
    let missing = node.volume("nowhere").await.err().expect("neither has it");
    assert!(missing.to_string().contains("nowhere"), "{missing}");
    // What another node changes at its own origin comes through.
    assert_eq!(
        increment(&session(&founder.volume("far").await.expect("there")), far)
            .await
            .expect("commits"),
        2
    );
    eventually("it is seen", || async { value(&far_session, far).await == 2 }).await;

    two.shutdown().await;
    eventually("that is noticed", || async { relay.notes().len() == 1 }).await;
    assert!(relay.ready().is_ok(), "what is to be had from the first is served");
    let status = relay.status().await;
    let connected: Vec<bool> = status["parents"]
        .as_array()
        .expect("each of them")
        .iter()
        .map(|parent| parent["connected"].as_bool().expect("it is told"))
        .collect();
    assert_eq!(connected, [true, false]);
    assert!(status["trouble"].as_str().expect("it is said").starts_with(&second));
    assert_eq!(increment(&near_session, near).await.expect("commits"), 2);
    // What is in the cache is read on.
    assert_eq!(value(&far_session, far).await, 2);

    let _two = starts_again(&site, &second).await;
    eventually("it is linked again", || async { relay.notes().is_empty() }).await;
    assert_eq!(increment(&far_session, far).await.expect("commits"), 3);
    assert_eq!(increment(&near_session, near).await.expect("commits"), 3);
}

/// A relay that has two ways to one origin takes the first that welcomes it, and says that it does not have the other.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_with_two_ways_to_one_origin_is_told() {
    let site = Site::new();
    let origin = site.origin().await;
    let between = site.relay(&origin.address().to_string()).await;
    let mut config = site.relay_config(&format!("{}, {}", origin.address(), between.address()));
    site.authority.issue(&site.tls(), "second", Role::Relay, 1).expect("issues");
    config.name = "second".into();
    let both = RelayServer::start(config).await.expect("the relay starts");
    eventually("one of them is refused", || async {
        both.notes().len() == 1 && both.ready().is_ok()
    })
    .await;
}
