//! What a volume is to its owner, over TLS sockets: its quota.

use crate::common::{Site, counter, create, eventually, increment, session};
use larder::client::Error;

/// A quota holds for every node, and lets go when it is raised.
#[tokio::test(flavor = "multi_thread")]
async fn a_quota_holds_at_every_node() {
    let site = Site::new();
    let origin = site.origin().await;
    let relay = site.relay(&origin.address().to_string()).await;
    let one = site.node("one", &origin.address().to_string()).await;
    let two = site.node("two", &relay.address().to_string()).await;
    let volume = create(&one, "shared").await;
    let id = counter(&volume, 1).await;
    let there = two.volume("shared").await.expect("it was made");

    let info = two.set_quota(volume.id(), Some(1)).await.expect("it is set, through the relay");
    assert_eq!((info.quota, info.pages), (Some(1), 1));
    assert!(info.bytes > 1, "the counter takes something: {info:?}");
    eventually("the origin says what is free", || async {
        one.volume_info(volume.id()).await.is_ok_and(|info| info.room.is_some())
    })
    .await;
    // What does not grow is taken.
    increment(&session(&volume), id).await.expect("a number is overwritten");
    let grow = |volume: larder::client::Volume| async move {
        let root = volume.root();
        session(&volume).transact(|tx| async move { tx.create(root, &b"more"[..]).await }).await
    };
    for volume in [&volume, &there] {
        let error = grow(volume.clone()).await.expect_err("the quota is passed");
        let Error::QuotaPassed { volume, limit, used, .. } = error else { panic!("{error}") };
        assert_eq!((volume.as_str(), limit, used), ("shared", 1, info.bytes));
    }
    one.set_quota(volume.id(), None).await.expect("it is lifted");
    grow(there).await.expect("there is room");
    let grown = one.volume_info(volume.id()).await.expect("it is there");
    assert!(grown.bytes > info.bytes, "{grown:?} grew from {info:?}");
}
