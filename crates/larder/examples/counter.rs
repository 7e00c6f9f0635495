//! A counter that many nodes raise at once: a whole program to copy.
//!
//! ```sh
//! larder ca init --tls tls && larder ca issue origin --role origin --tls tls
//! larder ca issue node-one --role node --tls tls
//! larder origin --name origin --tls tls --data /tmp/larder --create &
//! cargo run --example counter -- tls node-one localhost:4780
//! ```

use larder::client::{Error, Node, NodeConfig, Result, SessionOptions, Volume, VolumeOptions};
use larder::core::id::Slot;

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut argument = |default: &str| arguments.next().unwrap_or_else(|| default.into());
    let (tls, name, parent) = (argument("tls"), argument("node-one"), argument("localhost:4780"));

    // The node is a cache in this process. It stays linked to its parent by itself.
    let node = Node::connect(NodeConfig::new(&name, tls, &parent)).await?;
    let volume = open_or_create(&node, "counters").await?;
    let session = volume.session(SessionOptions::default());

    // Slot 0 of the root page is left to whoever manages the volume; this program takes slot 1.
    let slot = Slot(1);
    let before = session
        .transact(|tx| {
            let root = volume.root();
            async move {
                // Finding nothing is a read too: two programs that both find no counter cannot
                // both create it. One of them is run again, and finds the other's.
                let Some(counter) = tx.read_slot(root, slot).await? else {
                    tx.create_at(root, slot, 1u64.to_le_bytes().to_vec()).await?;
                    return Ok(0);
                };
                let bytes = counter
                    .value
                    .as_ref()
                    .try_into()
                    .map_err(|_| Error::Invalid("the counter has another length".into()))?;
                // An addition, not an overwrite: two of them do not conflict. The read above does,
                // and makes this the classic read, change, write.
                tx.add(counter.id, 0, 1).await?;
                Ok::<u64, Error>(u64::from_le_bytes(bytes))
            }
        })
        .await?;
    println!("the counter was {before} and is {} now", before + 1);

    // A transaction that only reads costs no message when its pages are cached: it is valid at
    // the stamp up to which the cache knows every change.
    let (value, stamp) = session
        .read(|tx| {
            let root = volume.root();
            async move {
                let counter = tx.read_slot(root, slot).await?;
                Ok::<_, Error>((counter.map(|object| object.value), tx.stamp()))
            }
        })
        .await?;
    println!("read again: {value:?} at stamp {stamp}, {:?} old", volume.age());
    node.shutdown().await;
    Ok(())
}

async fn open_or_create(node: &Node, name: &str) -> Result<Volume> {
    match node.volume(name).await {
        Err(Error::NoVolume(_)) => match node.create_volume(VolumeOptions::new(name)).await {
            // Another program was faster.
            Err(Error::Exists(_)) => node.volume(name).await,
            made => made,
        },
        opened => opened,
    }
}
