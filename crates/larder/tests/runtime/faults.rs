//! Lines cut, stalled and healed; origins restarted and killed: nothing acknowledged is lost.

use crate::common::{Site, counter, create, eventually, increment, number, proxy, session, value};
use larder::client::{Error, Freshness, Session, SessionOptions};
use larder::core::id::ObjectId;
use larder::http::{HttpServer, get_text};
use larder::metrics::{Direction, Kind};
use larder::server::OriginServer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_line_is_resumed_in_one_round_trip_and_nothing_unchanged_is_fetched() {
    let site = Site::new();
    let origin = site.origin().await;
    let direct = origin.address().to_string();
    let line = proxy(&direct, Duration::from_millis(5)).await;
    let one = site.node("one", &direct).await;
    let two = site.node("two", &line.address().to_string()).await;
    let volume = create(&one, "shared").await;
    let changed = counter(&volume, 1).await;
    let there = two.volume("shared").await.expect("it was made");
    let id = there.id();
    // Forty pages that do not change, cached at node two, and one that does.
    let kept: Vec<ObjectId> = session(&there)
        .transact(|tx| async move {
            let mut objects = Vec::new();
            for _ in 0..40 {
                let page = tx.create_page(id, larder::core::commit::PageKind::Slotted).await?;
                objects.push(tx.create(page, vec![0; 8]).await?);
            }
            Ok::<_, Error>(objects)
        })
        .await
        .expect("commits");
    let reader =
        there.session(SessionOptions { freshness: Freshness::Any, ..SessionOptions::default() });
    for &id in kept.iter().chain([&changed]) {
        assert_eq!(value(&reader, id).await, 0);
    }
    let before = two.metrics().summary();
    line.cut();
    eventually("the cut is noticed", || async { !two.status().connected }).await;
    increment(&session(&volume), changed).await.expect("commits at the other site");
    assert_eq!(value(&reader, changed).await, 0, "served while cut off");
    line.heal();
    eventually("it is linked again", || async { two.status().connected }).await;
    eventually("the change is seen", || async { value(&reader, changed).await == 1 }).await;
    for &id in &kept {
        assert_eq!(value(&reader, id).await, 0);
    }
    let after = two.metrics().summary();
    assert_eq!(after.connects - before.connects, 1);
    assert_eq!(after.resumes - before.resumes, 1, "one round trip, whatever is cached");
    let pages = |summary: &larder::metrics::Summary| {
        summary.received.get("pages").map_or(0, |count| count.messages)
    };
    assert_eq!(pages(&after) - pages(&before), 1, "only the changed page is fetched");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_on_a_stalled_line_is_done_once() {
    let site = Site::new();
    let origin = site.origin().await;
    let line = proxy(&origin.address().to_string(), Duration::ZERO).await;
    let one = site.node("one", &line.address().to_string()).await;
    let volume = create(&one, "shared").await;
    let id = counter(&volume, 1).await;
    let hasty = volume.session(SessionOptions {
        time_limit: Duration::from_millis(200),
        freshness: Freshness::Any,
        attempts_max: 1,
        ..SessionOptions::default()
    });
    // The answers are held, so the origin commits and the node does not hear of it.
    line.set_line(larder::testing::proxy::Line::StalledDown);
    let lost = hasty.transact(|tx| async move { tx.add(id, 0, 1).await }).await;
    // Its user was told that the outcome is not known, and not of which commit: nobody could ask.
    let Err(Error::OutcomeUnknown(Some(doubt))) = lost else {
        panic!("the outcome is not known, of a commit that has a name: {lost:?}");
    };
    assert_eq!((doubt.domain, doubt.commit.boot), (volume.domain(), one.boot()));
    let again = hasty.outcome(&doubt).await;
    assert!(
        matches!(again, Err(Error::OutcomeUnknown(Some(ref same))) if *same == doubt),
        "{again:?}"
    );
    // The link is given up as silent, its answers are lost, and the node asks again by itself.
    line.cut();
    line.heal();
    let patient = session(&volume);
    eventually("the node is linked again", || async { volume.refresh().await.is_ok() }).await;
    eventually("the addition is there", || async { value(&patient, id).await == 1 }).await;
    let stamp = patient.outcome(&doubt).await.expect("it was committed");
    assert!(patient.floor(doubt.domain) >= stamp, "the session sees it from then on");
    patient.transact(|tx| async move { tx.add(id, 0, 1).await }).await.expect("commits");
    volume.refresh().await.expect("answers");
    assert_eq!(value(&patient, id).await, 2, "done once, not twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_restarts_and_its_children_go_on() {
    let site = Site::new();
    let origin = site.origin().await;
    let address = origin.address().to_string();
    let one = site.node("one", &address).await;
    let volume = create(&one, "shared").await;
    let id = counter(&volume, 1).await;
    let session = session(&volume);
    for round in 1..=3 {
        assert_eq!(increment(&session, id).await.expect("commits"), round);
    }
    origin.shutdown().await;
    eventually("the end is noticed", || async { !one.status().connected }).await;
    let origin = site.origin_at(&address).await;
    assert_eq!(increment(&session, id).await.expect("commits when it is back"), 4);
    drop(origin);
}

/// Raises a counter until told to stop; counts what was acknowledged and what is in doubt.
async fn raise(
    session: Session,
    id: ObjectId,
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    in_doubt: Arc<AtomicU64>,
) {
    while !stop.load(Ordering::Relaxed) {
        match session.transact(|tx| async move { tx.add(id, 0, 1).await }).await {
            Ok(()) => acknowledged.fetch_add(1, Ordering::Relaxed),
            Err(Error::OutcomeUnknown(_)) => in_doubt.fetch_add(1, Ordering::Relaxed),
            // Nothing was done: the origin is away.
            Err(_) => 0,
        };
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_origin_killed_again_and_again_loses_no_acknowledged_commit() {
    let site = Site::new();
    let mut origin: OriginServer = site.origin().await;
    let address = origin.address().to_string();
    let (one, two) = (site.node("one", &address).await, site.node("two", &address).await);
    let volume = create(&one, "shared").await;
    let id = counter(&volume, 1).await;
    let there = two.volume("shared").await.expect("it was made");
    let stop = Arc::new(AtomicBool::new(false));
    let (acknowledged, in_doubt) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let workers: Vec<_> = [&volume, &there]
        .into_iter()
        .map(|volume| {
            let session = session(volume);
            tokio::spawn(raise(session, id, stop.clone(), acknowledged.clone(), in_doubt.clone()))
        })
        .collect();
    for _ in 0..5 {
        let before = acknowledged.load(Ordering::Relaxed);
        eventually("commits go on", || async {
            acknowledged.load(Ordering::Relaxed) > before + 20
        })
        .await;
        origin.kill().await;
        origin = site.origin_at(&address).await;
    }
    stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.expect("no panic");
    }
    eventually("the node is linked again", || async { volume.refresh().await.is_ok() }).await;
    let done = value(&session(&volume), id).await;
    let least = acknowledged.load(Ordering::Relaxed);
    let most = least + in_doubt.load(Ordering::Relaxed);
    assert!((least..=most).contains(&done), "{done} done, {least} to {most} expected");
    drop(origin);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_does_not_read_delays_nobody() {
    let site = Site::new();
    let origin = site.origin().await;
    let direct = origin.address().to_string();
    let line = proxy(&direct, Duration::ZERO).await;
    let one = site.node("one", &direct).await;
    let two = site.node("two", &line.address().to_string()).await;
    let volume = create(&one, "shared").await;
    let id = counter(&volume, 1).await;
    let there = two.volume("shared").await.expect("it was made");
    assert_eq!(value(&session(&there), id).await, 0);
    line.set_line(larder::testing::proxy::Line::StalledDown);
    let writer = session(&volume);
    for _ in 0..2000 {
        writer.transact(|tx| async move { tx.add(id, 0, 1).await }).await.expect("commits");
    }
    line.heal();
    let reader = session(&there);
    eventually("the slow child catches up", || async {
        let read = reader.read(|tx| async move { tx.get(id).await }).await;
        read.is_ok_and(|bytes| number(&bytes) == 2000)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_may_come_and_go() {
    let site = Site::new();
    let origin = site.origin().await;
    let parent = origin.address().to_string();
    let relay = site.relay(&parent).await;
    let line = proxy(&relay.address().to_string(), Duration::ZERO).await;
    let one = site.node("one", &line.address().to_string()).await;
    let two = site.node("two", &parent).await;
    let volume = create(&one, "shared").await;
    let id = counter(&volume, 1).await;
    let there = two.volume("shared").await.expect("it was made");
    for _ in 0..3 {
        line.cut();
        increment(&session(&there), id).await.expect("commits");
        line.heal();
        increment(&session(&volume), id).await.expect("commits");
    }
    relay.shutdown().await;
    increment(&session(&there), id).await.expect("commits");
    there.refresh().await.expect("answers");
    assert_eq!(value(&session(&there), id).await, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_are_told() {
    let site = Site::new();
    let origin = Arc::new(site.origin().await);
    let line = proxy(&origin.address().to_string(), Duration::ZERO).await;
    let one = site.node("one", &line.address().to_string()).await;
    let volume = create(&one, "shared").await;
    let id = counter(&volume, 1).await;
    increment(&session(&volume), id).await.expect("commits");
    let of_node = HttpServer::start("127.0.0.1:0", Arc::new(one.clone())).await.expect("binds");
    let of_origin = HttpServer::start("127.0.0.1:0", origin.clone()).await.expect("binds");
    let ask = |server: &HttpServer, path: &'static str| {
        let address = server.address().to_string();
        async move { get_text(&address, path).await.expect("answers") }
    };
    for server in [&of_node, &of_origin] {
        assert_eq!(ask(server, "/healthz").await, (200, "ok\n".into()));
        assert_eq!(ask(server, "/readyz").await.0, 200);
    }
    let (_, metrics) = ask(&of_node, "/metrics").await;
    assert!(metrics.contains("larder_transactions_total{what=\"committed\"} 2"), "{metrics}");
    let (_, metrics) = ask(&of_origin, "/metrics").await;
    assert!(metrics.contains("larder_append_seconds_count"), "{metrics}");
    let (_, status) = ask(&of_origin, "/status").await;
    let status: serde_json::Value = serde_json::from_str(&status).expect("JSON");
    assert_eq!(status["role"], "origin");
    line.cut();
    eventually("the node is not ready", || async { ask(&of_node, "/readyz").await.0 == 503 }).await;
    assert_eq!(ask(&of_node, "/healthz").await.0, 200, "cut off is not ill");
    assert!(one.metrics().messages(Direction::Received, Kind::Committed).0 >= 2);
}

/// A transaction that had nearly used up its time asked for a fresher state, and its time was over
/// before the answer could come. That was taken for a line that answers nothing: for half a second
/// every transaction of the session was refused as stale, over a healthy line.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_out_of_time_says_nothing_of_the_line() {
    let site = Site::new();
    let origin = site.origin().await;
    let line = proxy(&origin.address().to_string(), Duration::ZERO).await;
    let node = site.node("one", &line.address().to_string()).await;
    let volume = create(&node, "shared").await;
    let id = counter(&volume, 1).await;
    let session = volume.session(SessionOptions {
        freshness: Freshness::AtMost(Duration::from_millis(1)),
        time_limit: Duration::from_secs(3),
        ..SessionOptions::default()
    });
    let late = session.begin_read().await.expect("the line is quick");
    // Slower than what the transaction has left, and far quicker than another's time.
    line.set_delay(Duration::from_millis(300));
    tokio::time::sleep(Duration::from_millis(2800)).await;
    assert!(late.get(id).await.is_err(), "no answer comes in its time");
    let next = session.begin_read().await.expect("asks, and is answered");
    assert_eq!(next.age().map(|age| age < Duration::from_secs(3)), Some(true));
}

/// A node that had opened no volume heard nothing from its parent, took that for a dead line, and
/// linked anew each time `link.silence_max` was over.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_an_open_volume_keeps_its_link() {
    let site = Site::new();
    let origin = site.origin().await;
    let node = site.node("one", &origin.address().to_string()).await;
    let before = node.metrics().summary().connects;
    // Twice as long as silence is borne here.
    tokio::time::sleep(2 * site.link().silence_max.0).await;
    assert!(node.status().connected);
    assert_eq!(node.metrics().summary().connects, before);
}
