//! Nodes, relay and origin over TLS sockets: what users see.

use crate::common::{Site, counter, create, eventually, increment, number, session, value};
use larder::client::{Consistency, Error, Event, Freshness, SessionOptions, VolumeOptions};
use larder::core::commit::PageKind;
use larder::core::id::Slot;
use larder::metrics::{Direction, Kind};
use larder::server::OriginServer;
use std::time::Duration;

#[tokio::test(flavor = "multi_thread")]
async fn one_node_reads_what_another_wrote() {
    let site = Site::new();
    let origin = site.origin().await;
    let parent = origin.address().to_string();
    let (one, two) = (site.node("one", &parent).await, site.node("two", &parent).await);
    let volume = create(&one, "shared").await;
    let id = counter(&volume, 1).await;
    assert_eq!(increment(&session(&volume), id).await.expect("commits"), 1);

    let there = two.volume("shared").await.expect("it was made");
    assert_eq!(there.id(), volume.id());
    let reader = session(&there);
    assert_eq!(value(&reader, id).await, 1);
    // A second read is a hit, and a change comes by the stream.
    let fetched = two.metrics().messages(Direction::Sent, Kind::Fetch).0;
    assert_eq!(value(&reader, id).await, 1);
    assert_eq!(two.metrics().messages(Direction::Sent, Kind::Fetch).0, fetched);
    increment(&session(&volume), id).await.expect("commits");
    eventually("the change is seen", || async { value(&reader, id).await == 2 }).await;
    let names: Vec<_> =
        one.volumes().await.expect("lists").into_iter().map(|info| info.name).collect();
    assert_eq!(names, ["shared"]);
    assert!(matches!(two.volume("other").await, Err(Error::NoVolume(_))));
    assert!(matches!(two.create_volume(VolumeOptions::new("shared")).await, Err(Error::Exists(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn increments_of_two_nodes_through_a_relay_lose_nothing() {
    let site = Site::new();
    let origin = site.origin().await;
    let relay = site.relay(&origin.address().to_string()).await;
    let parent = relay.address().to_string();
    let (one, two) = (site.node("one", &parent).await, site.node("two", &parent).await);
    let volume = create(&one, "shared").await;
    let id = counter(&volume, 1).await;
    let there = two.volume("shared").await.expect("it was made");
    let work = |volume: larder::client::Volume| async move {
        let session = session(&volume);
        for _ in 0..50 {
            increment(&session, id).await.expect("commits in the end");
        }
    };
    tokio::join!(tokio::spawn(work(volume.clone())), tokio::spawn(work(there.clone())))
        .0
        .expect("no panic");
    volume.refresh().await.expect("answers");
    assert_eq!(value(&session(&volume), id).await, 100);
    there.refresh().await.expect("answers");
    assert_eq!(value(&session(&there), id).await, 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn additions_commute_and_a_blind_writer_never_waits_for_another() {
    let site = Site::new();
    let origin = site.origin().await;
    let parent = origin.address().to_string();
    let (one, two) = (site.node("one", &parent).await, site.node("two", &parent).await);
    let volume = create(&one, "shared").await;
    let id = counter(&volume, 1).await;
    let there = two.volume("shared").await.expect("it was made");
    let add = |volume: larder::client::Volume| async move {
        let session = session(&volume);
        for _ in 0..50 {
            session.transact(|tx| async move { tx.add(id, 0, 2).await }).await.expect("commits");
        }
    };
    let (a, b) = tokio::join!(tokio::spawn(add(volume.clone())), tokio::spawn(add(there)));
    a.expect("no panic");
    b.expect("no panic");
    assert_eq!(one.metrics().summary().conflicts + two.metrics().summary().conflicts, 0);
    volume.refresh().await.expect("answers");
    assert_eq!(value(&session(&volume), id).await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_outgrow_their_pages_and_keep_their_names() {
    let site = Site::new();
    let origin = site.origin().await;
    let parent = origin.address().to_string();
    let (one, two) = (site.node("one", &parent).await, site.node("two", &parent).await);
    let volume = create(&one, "shared").await;
    let session_one = session(&volume);
    let root = volume.root();
    let id = session_one
        .transact(|tx| async move { tx.create(root, vec![1; 100]).await })
        .await
        .expect("creates");
    let there = two.volume("shared").await.expect("it was made");
    let session_two = session(&there);
    for length in [5000, 100_000, 3 << 20, 10] {
        let bytes: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
        let written = bytes.clone();
        session_one
            .transact(|tx| {
                let bytes = written.clone();
                async move { tx.update(id, bytes).await }
            })
            .await
            .expect("updates");
        there.refresh().await.expect("answers");
        let read = session_two.read(|tx| async move { tx.get(id).await }).await.expect("reads");
        assert!(read == bytes, "{length} bytes came back as {}", read.len());
    }
    session_one.transact(|tx| async move { tx.delete(id).await }).await.expect("deletes");
    there.refresh().await.expect("answers");
    let gone = session_two.read(|tx| async move { tx.get(id).await }).await;
    assert!(matches!(gone, Err(Error::Gone(found)) if found == id), "{gone:?}");
}

/// The largest object there may be, in the smallest pages: 4,129 of them, more than one message may
/// ask for; and one byte more than that, which is refused by name and leaves the transaction's
/// earlier work alone. The largest one tried before was of 3 MiB.
#[tokio::test(flavor = "multi_thread")]
async fn the_largest_object_comes_back_whole_and_a_larger_one_is_refused() {
    const LARGEST: usize = 16 << 20;
    let site = Site::new();
    let origin = site.origin().await;
    let relay = site.relay(&origin.address().to_string()).await;
    let parent = relay.address().to_string();
    let (one, two) = (site.node("one", &parent).await, site.node("two", &parent).await);
    for page_bytes in [4096, 8192, 1 << 20] {
        let name = format!("pages-of-{page_bytes}");
        let options = VolumeOptions { page_bytes, ..VolumeOptions::new(&name) };
        let volume = one.create_volume(options).await.expect("a new volume");
        let writer = session(&volume);
        let root = volume.root();
        let bytes: Vec<u8> = (0..LARGEST as u32).map(|i| (i % 65_521 % 251) as u8).collect();
        let written = bytes.clone();
        let id = writer
            .transact(|tx| {
                let bytes = written.clone();
                async move { tx.create(root, bytes).await }
            })
            .await
            .unwrap_or_else(|error| panic!("{name}: created: {error}"));
        let there = two.volume(&name).await.expect("it was made");
        let reader = session(&there);
        let read = reader.read(|tx| async move { tx.get(id).await }).await;
        let read = read.unwrap_or_else(|error| panic!("{name}: read: {error}"));
        assert!(read == bytes, "{name}: {} bytes came back", read.len());

        let refused = writer
            .transact(|tx| async move { tx.update(id, vec![1; LARGEST + 1]).await })
            .await
            .err();
        assert!(matches!(&refused, Some(Error::TooLarge(what)) if what == "object"), "{refused:?}");
        let refused = writer
            .transact(|tx| async move { tx.create(root, vec![1; LARGEST + 1]).await })
            .await
            .err();
        assert!(matches!(&refused, Some(Error::TooLarge(what)) if what == "object"), "{refused:?}");

        // Written over, one byte shorter, and deleted with all its pages.
        writer
            .transact(|tx| async move { tx.update(id, vec![3; LARGEST - 1]).await })
            .await
            .unwrap_or_else(|error| panic!("{name}: updated: {error}"));
        there.refresh().await.expect("answers");
        let read = reader.read(|tx| async move { tx.get(id).await }).await.expect("reads");
        assert!(read.len() == LARGEST - 1 && read.iter().all(|byte| *byte == 3), "{name}");
        writer.transact(|tx| async move { tx.delete(id).await }).await.expect("deletes");
        there.refresh().await.expect("answers");
        let gone = reader.read(|tx| async move { tx.get(id).await }).await;
        assert!(matches!(gone, Err(Error::Gone(found)) if found == id), "{gone:?}");
    }
}

/// An origin of several domains had been started by tests of its parts alone: volumes in two of
/// them, commits in both, a transaction over both, and a restart that brings both back.
#[tokio::test(flavor = "multi_thread")]
async fn an_origin_serves_two_domains_and_restarts_with_both() {
    let site = Site::new();
    let mut config = site.origin_config("127.0.0.1:0");
    config.origin.domains = 2;
    let origin = OriginServer::start(config.clone()).await.expect("the origin starts");
    let address = origin.address().to_string();
    let domains = origin.domains().to_vec();
    assert_eq!(domains.len(), 2);
    let (one, two) = (site.node("one", &address).await, site.node("two", &address).await);
    let mut volumes = Vec::new();
    for (domain, name) in domains.iter().zip(["left", "right"]) {
        let options = VolumeOptions { domain: Some(*domain), ..VolumeOptions::new(name) };
        let volume = one.create_volume(options).await.expect("a new volume");
        assert_eq!(volume.domain(), *domain);
        let id = counter(&volume, 1).await;
        volumes.push((name, volume, id));
    }
    for round in 1..=5 {
        for (_, volume, id) in &volumes {
            assert_eq!(increment(&session(volume), *id).await.expect("commits"), round);
        }
    }
    let (left, right) = (volumes[0].2, volumes[1].2);
    let both = session(&volumes[0].1)
        .transact(|tx| async move {
            tx.add(left, 0, 1).await?;
            tx.add(right, 0, 1).await
        })
        .await;
    both.expect("a transaction over both domains commits");

    origin.kill().await;
    config.origin.listen = address.clone();
    config.origin.create = false;
    let origin = OriginServer::start(config).await.expect("it starts again");
    let mut found = origin.domains().to_vec();
    found.sort_unstable();
    let mut expected = domains;
    expected.sort_unstable();
    assert_eq!(found, expected);
    let mut names: Vec<_> =
        two.volumes().await.expect("lists").into_iter().map(|info| info.name).collect();
    names.sort();
    assert_eq!(names, ["left", "right"]);
    for (name, volume, id) in &volumes {
        assert_eq!(increment(&session(volume), *id).await.expect("commits"), 7, "{name}");
        let there = two.volume(name).await.expect("it is there");
        assert_eq!(there.domain(), volume.domain());
        there.refresh().await.expect("answers");
        assert_eq!(value(&session(&there), *id).await, 7, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_are_made_written_cut_and_deleted() {
    let site = Site::new();
    let origin = site.origin().await;
    let one = site.node("one", &origin.address().to_string()).await;
    let volume = create(&one, "shared").await;
    let session = session(&volume);
    let id = volume.id();
    let page = session
        .transact(|tx| async move {
            let page = tx.create_page(id, PageKind::Raw).await?;
            tx.write_raw(page, 10, &b"hello"[..]).await?;
            Ok::<_, Error>(page)
        })
        .await
        .expect("commits");
    let read = session
        .read(|tx| async move { tx.read_raw(page).await })
        .await
        .expect("reads")
        .expect("is there");
    assert_eq!(&read[..], b"\0\0\0\0\0\0\0\0\0\0hello");
    let cut = session
        .transact(|tx| async move {
            let before = tx.savepoint()?;
            tx.delete_page(page).await?;
            assert_eq!(tx.read_raw(page).await?, None);
            tx.rollback_to(before)?;
            tx.truncate_raw(page, 12).await?;
            tx.read_raw(page).await
        })
        .await
        .expect("commits");
    assert_eq!(cut.expect("is there").len(), 12);
    session.transact(|tx| async move { tx.delete_page(page).await }).await.expect("commits");
    let gone = session.read(|tx| async move { tx.read_raw(page).await }).await.expect("reads");
    assert_eq!(gone, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_keep_what_they_claim() {
    let site = Site::new();
    let origin = site.origin().await;
    let parent = origin.address().to_string();
    let (one, two) = (site.node("one", &parent).await, site.node("two", &parent).await);
    let volume = create(&one, "shared").await;
    let id = counter(&volume, 1).await;
    let there = two.volume("shared").await.expect("it was made");
    let with = |consistency| SessionOptions { consistency, ..SessionOptions::default() };

    // A snapshot stands still while others commit, and may not write.
    let snapshot = volume.session(with(Consistency::Snapshot));
    let tx = snapshot.begin().await.expect("begins");
    assert_eq!(number(&tx.get(id).await.expect("reads")), 0);
    increment(&session(&there), id).await.expect("commits");
    volume.refresh().await.expect("answers");
    assert_eq!(number(&tx.get(id).await.expect("reads")), 0);
    assert!(matches!(tx.add(id, 0, 1).await, Err(Error::ReadOnly)));
    drop(tx);
    assert_eq!(value(&snapshot, id).await, 1);

    // A strict session sees what was acknowledged anywhere before it began.
    let strict = volume.session(with(Consistency::Strict));
    for expected in 2..10 {
        increment(&session(&there), id).await.expect("commits");
        assert_eq!(value(&strict, id).await, expected);
    }

    // A transaction that read something since changed cannot commit, and says so.
    let tx = session(&volume).begin().await.expect("begins");
    tx.get(id).await.expect("reads");
    increment(&session(&there), id).await.expect("commits");
    volume.refresh().await.expect("answers");
    let late = tx.get(id).await;
    assert!(matches!(late, Err(Error::Conflict { .. })), "{late:?}");
    assert!(tx.is_doomed());
    assert!(matches!(tx.commit().await, Err(Error::Conflict { .. })));

    // A session reads its own writes at once.
    let own = session(&volume);
    let written = increment(&own, id).await.expect("commits");
    assert_eq!(value(&own, id).await, written);
    let tx = session(&volume).begin_read().await.expect("begins");
    assert!(matches!(tx.add(id, 0, 1).await, Err(Error::ReadOnly)));
}

#[tokio::test(flavor = "multi_thread")]
async fn finding_nothing_conflicts_with_its_creation() {
    let site = Site::new();
    let origin = site.origin().await;
    let parent = origin.address().to_string();
    let (one, two) = (site.node("one", &parent).await, site.node("two", &parent).await);
    let volume = create(&one, "shared").await;
    let there = two.volume("shared").await.expect("it was made");
    let root = volume.root();
    let (a, b) = (
        session(&volume).begin().await.expect("begins"),
        session(&there).begin().await.expect("begins"),
    );
    for tx in [&a, &b] {
        assert_eq!(tx.read_slot(root, Slot(7)).await.expect("reads"), None);
        tx.create_at(root, Slot(7), &b"mine"[..]).await.expect("an empty slot");
    }
    a.commit().await.expect("the first wins");
    assert!(matches!(b.commit().await, Err(Error::Conflict { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_hear_of_changes() {
    let site = Site::new();
    let origin = site.origin().await;
    let parent = origin.address().to_string();
    let (one, two) = (site.node("one", &parent).await, site.node("two", &parent).await);
    let volume = create(&one, "shared").await;
    let id = counter(&volume, 1).await;
    let there = two.volume("shared").await.expect("it was made");
    assert_eq!(value(&session(&there), id).await, 0);
    let mut notices = two.notices();
    increment(&session(&volume), id).await.expect("commits");
    let heard = async {
        loop {
            match notices.next().await.expect("the node lives") {
                Event::Changed { pages, .. } if pages.iter().any(|p| p.page == id.page) => break,
                _ => {}
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), heard).await.expect("it is told");
    assert_eq!(value(&session(&there), id).await, 1, "told after it can be seen");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_has_an_age_and_sessions_choose_how_old() {
    let site = Site::new();
    let origin = site.origin().await;
    let proxy = crate::common::proxy(&origin.address().to_string(), Duration::ZERO).await;
    let one = site.node("one", &proxy.address().to_string()).await;
    let volume = create(&one, "shared").await;
    let id = counter(&volume, 1).await;
    let limited = |freshness| {
        let time_limit = Duration::from_millis(300);
        volume.session(SessionOptions { freshness, time_limit, ..SessionOptions::default() })
    };
    let (leased, any) = (limited(Freshness::Leased), limited(Freshness::Any));
    assert_eq!(value(&leased, id).await, 0);
    proxy.cut();
    eventually("the lease lapses", || async {
        let read = leased.read(|tx| async move { tx.get(id).await }).await;
        matches!(read, Err(Error::Stale { age: Some(_) }))
    })
    .await;
    assert_eq!(value(&any, id).await, 0, "served with known age");
    assert!(volume.age().expect("it was confirmed") >= Duration::from_secs(2));
    proxy.heal();
    eventually("it is fresh again", || async {
        leased.read(|tx| async move { tx.get(id).await }).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_finds_every_object_of_a_volume() {
    let site = Site::new();
    let origin = site.origin().await;
    let parent = origin.address().to_string();
    let (one, two) = (site.node("one", &parent).await, site.node("two", &parent).await);
    let volume = create(&one, "shared").await;
    let id = volume.id();
    let mut made = session(&volume)
        .transact(|tx| async move {
            let mut made = Vec::new();
            for number in 0..200u64 {
                let kind = if number % 5 == 0 { PageKind::Raw } else { PageKind::Slotted };
                let page = tx.create_page(id, kind).await?;
                if kind == PageKind::Slotted {
                    made.push(tx.create(page, number.to_le_bytes().to_vec()).await?);
                }
            }
            Ok::<_, Error>(made)
        })
        .await
        .expect("commits");
    let there = two.volume("shared").await.expect("it was made");
    let mut scan = there.scan(&session(&there)).await.expect("begins");
    let mut found = Vec::new();
    while let Some((_, objects)) = scan.next().await.expect("reads") {
        found.extend(objects.into_iter().map(|object| object.id));
    }
    made.sort_unstable();
    assert_eq!(found, made);
}
