//! Databases at an origin in this process, over real sockets.

use larder::client::{Node, NodeConfig, Session, SessionOptions, Volume, VolumeOptions};
use larder::config::{OriginConfig, OriginSection};
use larder::server::OriginServer;
use larder::tls::{Role, init};
use larder_oo7::{Counts, Database, Operation, Parameters, Size, Tally, build, check};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

static FOLDERS: AtomicU32 = AtomicU32::new(0);

/// An origin, a node, and a volume with a database.
struct Site {
    _origin: OriginServer,
    node: Node,
    volume: Volume,
    session: Session,
    // Fields are dropped in their order.
    _folder: Folder,
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl Site {
    async fn new() -> Self {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder =
            std::env::temp_dir().join(format!("larder-oo7-{}-{number}", std::process::id()));
        let tls = folder.join("tls");
        let authority = init(&tls, "test").expect("a new folder");
        authority.issue(&tls, "origin", Role::Origin, 1).expect("issues");
        authority.issue(&tls, "node", Role::Node, 1).expect("issues");
        let origin = OriginConfig {
            name: "origin".into(),
            tls_dir: tls.clone(),
            origin: OriginSection {
                listen: "127.0.0.1:0".into(),
                data: folder.join("data"),
                create: true,
                ..OriginSection::default()
            },
            link: Default::default(),
        };
        let origin = OriginServer::start(origin).await.expect("the origin starts");
        let parent = format!("localhost:{}", origin.address().port());
        let config = NodeConfig::new("node", tls, &parent);
        let node = Node::connect(config).await.expect("the node links");
        let volume = node.create_volume(VolumeOptions::new("design")).await.expect("a new volume");
        let options =
            SessionOptions { time_limit: Duration::from_secs(120), ..SessionOptions::default() };
        let session = volume.session(options);
        Self { _origin: origin, node, volume, session, _folder: Folder(folder) }
    }

    async fn build(&self, parameters: &Parameters) -> Database {
        build(&self.volume, &self.session, parameters, |_| ()).await.expect("it is built")
    }

    async fn run(&self, database: &Database, operation: Operation, seed: u64) -> Tally {
        let run =
            self.session.transact(|tx| async move { operation.run(database, &tx, 0, seed).await });
        run.await.unwrap_or_else(|error| panic!("{operation}: {error}"))
    }

    /// All that there is, of a database that is whole.
    async fn counts(&self, database: &Database) -> Counts {
        let (counts, wrong) = check(database, &self.session).await.expect("it can be read");
        assert_eq!(wrong, Vec::<String>::new());
        counts
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_leaves_a_database_whole() {
    let site = Site::new().await;
    let parameters = Parameters { users: 2, shared_composites_per_user: 10, ..Parameters::tiny() };
    let database = site.build(&parameters).await;
    let before = site.counts(&database).await;
    assert_eq!((before.modules, before.base_assemblies, before.complex_assemblies), (3, 21, 9));
    assert_eq!((before.composites, before.atoms, before.connections), (40, 200, 600));
    for operation in Operation::all().filter(|operation| *operation != Operation::Delete) {
        let tally = site.run(&database, operation, 3).await;
        assert_ne!(tally, Tally::default(), "{operation} finds something");
        assert_eq!(tally.changed > 0, !operation.only_reads(), "{operation}");
    }
    let more = site.counts(&database).await;
    assert_eq!((more.composites, more.atoms, more.connections), (50, 250, 750));
    site.run(&database, Operation::Delete, 0).await;
    let after = site.counts(&database).await;
    let bytes = |counts| Counts { object_bytes: 0, ..counts };
    assert_eq!(bytes(after), bytes(before), "what was inserted is gone");
    site.node.shutdown().await;
}

/// What a walk of a module comes to: nine base assemblies with three parts each.
#[tokio::test(flavor = "multi_thread")]
async fn a_walk_comes_to_each_part_once_a_visit() {
    let site = Site::new().await;
    let database = site.build(&Parameters::tiny()).await;
    let all = site.run(&database, Operation::T1, 0).await;
    assert_eq!((all.assemblies, all.composites, all.atoms, all.connections), (13, 27, 135, 405));
    let roots = site.run(&database, Operation::T6, 0).await;
    assert_eq!((roots.composites, roots.atoms, roots.connections), (27, 27, 0));
    let some = site.run(&database, Operation::Path, 5).await;
    assert_eq!((some.assemblies, some.composites, some.atoms), (3, 1, 5));
    assert_eq!(site.run(&database, Operation::PathChange, 5).await.changed, 5);
    // Twice is never.
    let dates = site.run(&database, Operation::Q3, 0).await;
    assert_ne!(dates.found, 0);
    for _ in 0..2 {
        assert_eq!(site.run(&database, Operation::T3b, 0).await.changed, 135);
        site.counts(&database).await;
    }
    assert_eq!(site.run(&database, Operation::Q3, 0).await, dates);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_seed_makes_the_same_database() {
    let (one, two) = (Site::new().await, Site::new().await);
    let databases = (one.build(&Parameters::tiny()).await, two.build(&Parameters::tiny()).await);
    for operation in Operation::all().filter(|operation| operation.only_reads()) {
        let (one, two) =
            (one.run(&databases.0, operation, 9).await, two.run(&databases.1, operation, 9).await);
        assert_eq!(one, two, "{operation}");
    }
    assert_eq!(one.counts(&databases.0).await, two.counts(&databases.1).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_database_is_said_to_be_none() {
    let site = Site::new().await;
    let tx = site.session.begin_read().await.expect("it begins");
    let error = Database::open(&site.volume, &tx).await.expect_err("it is empty");
    assert_eq!(error.to_string(), "volume design holds no OO7 database");
    drop(tx);
    let database = site.build(&Parameters::tiny()).await;
    let again = build(&site.volume, &site.session, &Parameters::tiny(), |_| ()).await;
    assert_eq!(
        again.expect_err("it is there").to_string(),
        "volume design has an OO7 database, a whole one: delete the volume first"
    );
    let nothing = site.session.transact(|tx| {
        let database = database.clone();
        async move { Operation::Delete.run(&database, &tx, 0, 0).await }
    });
    assert_eq!(nothing.await.expect("there is nothing to delete"), Tally::default());
    let module = site.session.transact(|tx| {
        let database = database.clone();
        async move { Operation::T1.run(&database, &tx, 1, 0).await }
    });
    assert_eq!(module.await.expect_err("there is one").to_string(), "module 1: there are 1");
}

/// The published sizes (small, three connections): 10,000 atomic parts, 30,000 connections, 2,187 visits of
/// composite parts and 43,740 of atomic parts.
#[tokio::test(flavor = "multi_thread")]
async fn the_small_database_has_the_published_counts() {
    let site = Site::new().await;
    let database = site.build(&Parameters::new(Size::Small, 3)).await;
    let counts = site.counts(&database).await;
    assert_eq!((counts.base_assemblies, counts.complex_assemblies), (729, 364));
    assert_eq!((counts.composites, counts.documents), (500, 500));
    assert_eq!((counts.atoms, counts.connections), (10_000, 30_000));
    let walk = site.run(&database, Operation::T1, 0).await;
    assert_eq!((walk.assemblies, walk.composites, walk.atoms), (1_093, 2_187, 43_740));
    // The story: each visit sent what it changed, and most of these passed what a transaction may write.
    for (operation, changed) in [(Operation::T2c, 4 * 43_740), (Operation::T3b, 43_740)] {
        assert_eq!(site.run(&database, operation, 0).await.changed, changed);
    }
    assert_eq!(site.counts(&database).await, counts);
}
