//! A program that commits without end and writes down what was acknowledged: killed with its node,
//! read afterwards.
//!
//! Every transaction adds one to a counter and writes its own number beside it, so counter and
//! number agree exactly if every commit was done exactly once (P11).

use anyhow::{Context, Result, ensure};
use larder::client::{Error, Node, SessionOptions, Volume, VolumeOptions};
use larder::config::NodeConfig;
use larder::core::id::{ObjectId, Slot};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

pub(crate) const VOLUME: &str = "ledger";

/// Where a writer's counter and last number are: two slots of the root page.
fn slots(writer: u16) -> (Slot, Slot) {
    (Slot(writer * 2), Slot(writer * 2 + 1))
}

pub(crate) async fn connect(tls: &Path, name: &str, parent: &str) -> Result<Node> {
    Ok(Node::connect(NodeConfig::new(name, tls, parent)).await?)
}

/// Makes the ledger with a zeroed pair for each writer.
pub(crate) async fn create(tls: &Path, parent: &str, writers: u16) -> Result<()> {
    let node = connect(tls, "admin", parent).await?;
    let options = VolumeOptions { name: VOLUME.into(), page_bytes: 8192, domain: None };
    let volume = node.create_volume(options).await?;
    let root = volume.root();
    let session = volume.session(SessionOptions::default());
    session
        .transact(|tx| async move {
            for writer in 0..writers {
                let (counter, last) = slots(writer);
                tx.create_at(root, counter, vec![0; 8]).await?;
                tx.create_at(root, last, vec![0; 8]).await?;
            }
            Ok::<_, Error>(())
        })
        .await?;
    node.shutdown().await;
    Ok(())
}

async fn pair(volume: &Volume, writer: u16) -> Result<(u64, u64)> {
    let session = volume.session(SessionOptions::default());
    let root = volume.root();
    let (counter, last) = slots(writer);
    let read = |object: Option<larder::client::Object>| -> Result<u64> {
        let object = object.context("the ledger has a pair for every writer")?;
        Ok(u64::from_le_bytes(object.value.as_ref().try_into().context("a pair holds 8 bytes")?))
    };
    let (counter, last) = session
        .read(|tx| async move {
            Ok::<_, Error>((tx.read_slot(root, counter).await?, tx.read_slot(root, last).await?))
        })
        .await?;
    Ok((read(counter)?, read(last)?))
}

/// Commits until killed. A line of `journal` names each commit acknowledged.
pub(crate) async fn write(
    tls: &Path,
    name: &str,
    parent: &str,
    writer: u16,
    journal: &Path,
) -> Result<()> {
    let mut journal = File::options().create(true).append(true).open(journal)?;
    let node = connect(tls, name, parent).await?;
    let volume = node.volume(VOLUME).await?;
    volume.refresh().await?;
    let (root, (counter, last)) = (volume.root(), slots(writer));
    let session = volume.session(SessionOptions::default());
    loop {
        let done = session
            .transact(|tx| async move {
                let object = |found: Option<larder::client::Object>| -> Result<ObjectId, Error> {
                    found.map(|object| object.id).ok_or(Error::NoPage(root))
                };
                let counter = object(tx.read_slot(root, counter).await?)?;
                let found = tx.read_slot(root, last).await?;
                let number = found.as_ref().map_or(0, |object| {
                    u64::from_le_bytes(object.value.as_ref().try_into().unwrap_or_default())
                }) + 1;
                let last = object(found)?;
                tx.add(counter, 0, 1).await?;
                tx.update(last, number.to_le_bytes().to_vec()).await?;
                Ok::<_, Error>(number)
            })
            .await;
        match done {
            Ok(number) => writeln!(journal, "{number}")?,
            // The line is down, or the outcome is not known yet: what is acknowledged is in the
            // journal; go on from what is there.
            Err(error) => {
                eprintln!("writer {writer}: {error}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// Compares the ledger with a writer's journal: (commits acknowledged, commits lost).
pub(crate) async fn verify(
    tls: &Path,
    parent: &str,
    writer: u16,
    journal: &Path,
) -> Result<(u64, u64)> {
    let node = connect(tls, "admin", parent).await?;
    let volume = node.volume(VOLUME).await?;
    volume.refresh().await?;
    let (counter, last) = pair(&volume, writer).await?;
    node.shutdown().await;
    let text = std::fs::read_to_string(journal)?;
    // A line half written when the writer was killed names no acknowledgement.
    let acknowledged: Vec<u64> = text
        .split_inclusive('\n')
        .filter_map(|line| line.strip_suffix('\n')?.parse().ok())
        .collect();
    ensure!(
        counter == last,
        "writer {writer}: {counter} additions, but the last number is {last}: a commit was done twice or in part"
    );
    ensure!(
        acknowledged.is_sorted_by(|a, b| a < b),
        "writer {writer}: acknowledged numbers repeat"
    );
    let lost = acknowledged.iter().filter(|number| **number > last).count();
    Ok((acknowledged.len() as u64, lost as u64))
}
