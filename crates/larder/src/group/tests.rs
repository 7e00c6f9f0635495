use crate::client::{Node, NodeConfig, SessionOptions, VolumeOptions};
use crate::config::{Config, OriginConfig, RelayConfig};
use crate::http::Probe;
use crate::metrics::{Direction, Kind, Side};
use crate::server::{OriginServer, RelayServer};
use crate::tls::{Role, init};
use larder_core::commit::PageKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const GROUP: &str = "lan";
const PATIENCE: Duration = Duration::from_secs(30);

/// A folder with certificates of the group.
fn folder() -> PathBuf {
    let folder = std::env::temp_dir().join(format!("larder-group-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let authority = init(&folder, "test").expect("a new folder");
    let groups = [GROUP.to_owned()];
    for (name, role) in [
        ("origin", Role::Origin),
        ("redirector", Role::Relay),
        ("one", Role::Node),
        ("two", Role::Node),
    ] {
        authority.issue_in(&folder, (name, role, &groups), 1).expect("issues");
    }
    folder
}

async fn origin(folder: &Path) -> OriginServer {
    let mut config: OriginConfig = Config::default().origin();
    (config.name, config.tls_dir) = ("origin".into(), folder.into());
    config.origin.listen = "127.0.0.1:0".into();
    config.origin.data = folder.join("data");
    config.origin.create = true;
    OriginServer::start(config).await.expect("it starts")
}

async fn redirector(folder: &Path, origin: &OriginServer) -> RelayServer {
    let mut config: RelayConfig = Config::default().relay();
    (config.name, config.tls_dir) = ("redirector".into(), folder.into());
    config.relay.listen = "127.0.0.1:0".into();
    config.relay.parent = origin.address().to_string();
    config.group.name = GROUP.into();
    RelayServer::start(config).await.expect("it starts")
}

async fn member(folder: &Path, name: &str, redirector: &RelayServer) -> Node {
    let mut config = NodeConfig::new(name, folder, &redirector.address().to_string());
    config.group.name = GROUP.into();
    // Longer than the test: who waited for the busy machine would be seen to.
    config.group.help_wait.0 = PATIENCE;
    config.group.help_wait_long.0 = PATIENCE;
    Node::connect(config).await.expect("it links")
}

async fn linked(node: &Node) {
    let begun = Instant::now();
    while node.metrics().links(Side::Neighbour) == 0 {
        assert!(begun.elapsed() < PATIENCE, "no link to the neighbour");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The redirector hears of it.
    tokio::time::sleep(Duration::from_millis(200)).await;
}

/// Decision 0031: a helper whose machine is at something else for long answers all the same, since the task
/// that reads its link looks into the read cache. Nobody waits, and the line is not crossed.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_helper_whose_machine_is_busy_delays_nobody() {
    let folder = folder();
    let origin = origin(&folder).await;
    let redirector = redirector(&folder, &origin).await;
    let one = member(&folder, "one", &redirector).await;
    let two = member(&folder, "two", &redirector).await;
    let volume = one.create_volume(VolumeOptions::new("shared")).await.expect("a new one");
    let (session, id) = (volume.session(SessionOptions::default()), volume.id());
    let made = session.transact(|tx| async move {
        let page = tx.create_page(id, PageKind::Slotted).await?;
        tx.create(page, vec![7; 1000]).await
    });
    let object = made.await.expect("it is made");
    session.read(|tx| async move { tx.get(object).await }).await.expect("it is here");
    let reader = two.volume("shared").await.expect("it was made");
    let reader = reader.session(SessionOptions::default());
    linked(&two).await;

    const BUSY: Duration = Duration::from_millis(1500);
    let busy = tokio::spawn({
        let one = one.clone();
        async move { one.keep_busy(BUSY).await }
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let crossed = || redirector.metrics().messages(Direction::Sent, Kind::Fetch).0;
    let before = crossed();
    let begun = Instant::now();
    let read = reader.read(|tx| async move { tx.get(object).await }).await.expect("it comes");
    let took = begun.elapsed();
    assert_eq!(read.len(), 1000);
    assert_eq!(crossed(), before, "it came from the neighbour");
    assert!(took < BUSY / 2, "{took:?}, as long as the helper's machine was busy");
    busy.await.expect("no panic");
    for node in [one, two] {
        node.shutdown().await;
    }
    let _ = std::fs::remove_dir_all(&folder);
}
