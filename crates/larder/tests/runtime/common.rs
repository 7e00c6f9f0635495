//! An origin, relays and nodes of one process, over real sockets on loopback.

use larder::client::{Node, NodeConfig, Session, SessionOptions, Volume, VolumeOptions};
use larder::config::{
    GroupSection, LinkConfig, OriginConfig, OriginSection, Period, RelayConfig, RelaySection,
};
use larder::core::id::{ObjectId, Slot};
use larder::server::{OriginServer, RelayServer};
use larder::testing::proxy::Proxy;
use larder::tls::{Authority, Role, init};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

static FOLDERS: AtomicU32 = AtomicU32::new(0);

/// A folder with an authority, removed at the end.
pub(crate) struct Site {
    pub(crate) dir: PathBuf,
    pub(crate) authority: Authority,
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Site {
    pub(crate) fn new() -> Self {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("larder-test-{}-{number}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&dir);
        let tls = dir.join("tls");
        let authority = init(&tls, "test").expect("a new folder");
        authority.issue(&tls, "origin", Role::Origin, 1).expect("issues");
        authority.issue(&tls, "relay", Role::Relay, 1).expect("issues");
        for node in ["one", "two", "three"] {
            authority.issue(&tls, node, Role::Node, 1).expect("issues");
        }
        let filter = std::env::var("LARDER_LOG_FILTER").unwrap_or_else(|_| "off".into());
        let log = larder::config::LogConfig { filter, ..Default::default() };
        larder::log::init(&log).expect("a filter");
        Self { dir, authority }
    }

    pub(crate) fn tls(&self) -> PathBuf {
        self.dir.join("tls")
    }

    /// Short limits, so that a broken line is noticed while a test waits.
    pub(crate) fn link(&self) -> LinkConfig {
        LinkConfig {
            back_off_min: Period(Duration::from_millis(10)),
            back_off_max: Period(Duration::from_millis(200)),
            silence_max: Period(Duration::from_secs(2)),
            ..LinkConfig::default()
        }
    }

    pub(crate) fn origin_config(&self, listen: &str) -> OriginConfig {
        OriginConfig {
            name: "origin".into(),
            tls_dir: self.tls(),
            origin: OriginSection {
                listen: listen.into(),
                data: self.dir.join("data"),
                create: !self.dir.join("data").exists(),
                lease: Period(Duration::from_secs(2)),
                ..OriginSection::default()
            },
            link: self.link(),
        }
    }

    pub(crate) async fn origin(&self) -> OriginServer {
        self.origin_at("127.0.0.1:0").await
    }

    pub(crate) async fn origin_at(&self, listen: &str) -> OriginServer {
        OriginServer::start(self.origin_config(listen)).await.expect("the origin starts")
    }

    pub(crate) fn relay_config(&self, parent: &str) -> RelayConfig {
        RelayConfig {
            name: "relay".into(),
            tls_dir: self.tls(),
            relay: RelaySection {
                listen: "127.0.0.1:0".into(),
                parent: parent.into(),
                ..RelaySection::default()
            },
            group: GroupSection::default(),
            link: self.link(),
        }
    }

    pub(crate) async fn relay(&self, parent: &str) -> RelayServer {
        RelayServer::start(self.relay_config(parent)).await.expect("the relay starts")
    }

    pub(crate) fn node_config(&self, name: &str, parent: &str) -> NodeConfig {
        let mut config = NodeConfig::new(name, self.tls(), parent);
        config.link = self.link();
        config.node.beat = Period(Duration::from_millis(200));
        config.node.request_limit = Period(Duration::from_secs(10));
        config
    }

    pub(crate) async fn node(&self, name: &str, parent: &str) -> Node {
        Node::connect(self.node_config(name, parent)).await.expect("the node links")
    }
}

pub(crate) async fn proxy(target: &str, delay: Duration) -> Proxy {
    Proxy::start("127.0.0.1:0", target, delay).await.expect("loopback")
}

pub(crate) fn session(volume: &Volume) -> Session {
    volume.session(SessionOptions::default())
}

pub(crate) async fn create(node: &Node, name: &str) -> Volume {
    node.create_volume(VolumeOptions::new(name)).await.expect("a new volume")
}

/// A counter in the volume's root page.
pub(crate) async fn counter(volume: &Volume, slot: u16) -> ObjectId {
    let root = volume.root();
    session(volume)
        .transact(|tx| async move { tx.create_at(root, Slot(slot), vec![0; 8]).await })
        .await
        .expect("an empty slot")
}

pub(crate) async fn increment(session: &Session, id: ObjectId) -> larder::client::Result<u64> {
    session
        .transact(|tx| async move {
            let value = number(&tx.get(id).await?) + 1;
            tx.update(id, value.to_le_bytes().to_vec()).await?;
            Ok(value)
        })
        .await
}

pub(crate) async fn value(session: &Session, id: ObjectId) -> u64 {
    let value = session.read(|tx| async move { tx.get(id).await }).await;
    number(&value.expect("a counter"))
}

pub(crate) fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("a counter holds eight bytes"))
}

/// Waits until something holds; fails the test when it does not come to hold.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    for _ in 0..1000 {
        if check().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never came to hold: {what}");
}
