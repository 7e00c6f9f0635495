//! By how much a process grows that holds 1 GiB of pages: a node, and its rival. The allocator is
//! that of the binary which calls this.

use crate::servers::connect;
use anyhow::{Context, Result, ensure};
use larder::client::SessionOptions;
use larder::core::id::{PageId, PageNo};
use std::collections::HashMap;
use std::path::Path;
use std::sync::RwLock;

/// Bytes of a page.
pub const PAGE_BYTES: u64 = 8192;
/// A raw page's content: what the header leaves.
pub const CONTENT_BYTES: usize = 8192 - larder::core::page::HEADER_BYTES;
/// How many pages there are: 1 GiB.
pub const PAGES: u64 = (1 << 30) / PAGE_BYTES;
/// Pages made, and read, by one transaction.
pub const PAGES_PER_TRANSACTION: u64 = 512;

/// A node reads all pages of the volume `pages`, in runs that begin at `runs`; the bytes by which
/// this process's resident set grew.
///
/// # Errors
/// When it cannot be linked, or a page is not as it was written.
pub async fn node(tls: &str, parent: &str, runs: &str) -> Result<u64> {
    let node = connect(Path::new(tls), "node-1", parent).await?;
    let volume = node.volume("pages").await?;
    let session = volume.session(SessionOptions::default());
    let before = resident()?;
    for run in runs.split(',') {
        let first: u64 = run.parse()?;
        let pages: Vec<PageId> = (first..first + PAGES_PER_TRANSACTION)
            .map(|number| volume.page(PageNo(number)))
            .collect();
        let tx = session.begin_read().await?;
        tx.fetch(&pages).await?;
        for page in &pages {
            let content = tx.read_raw(*page).await?.context("the page was written")?;
            ensure!(content.len() == CONTENT_BYTES, "a page came back short");
        }
        tx.commit().await?;
    }
    let grown = resident()?.saturating_sub(before);
    node.shutdown().await;
    Ok(grown)
}

/// The same pages in a locked hash map, which keeps nothing coherent; the growth as for a node.
///
/// # Errors
/// When the system does not tell the resident set.
pub fn rival() -> Result<u64> {
    let before = resident()?;
    let map: RwLock<HashMap<u64, Vec<u8>>> = RwLock::default();
    for number in 0..PAGES {
        let page = vec![number as u8; PAGE_BYTES as usize];
        map.write().expect("nobody panics").insert(number, page);
    }
    let grown = resident()?.saturating_sub(before);
    let pages = map.read().expect("nobody panics");
    ensure!(pages.len() as u64 == PAGES, "the map lost a page");
    Ok(grown)
}

/// This process's resident set, in bytes.
fn resident() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    let kibibytes: u64 = line.split_whitespace().nth(1).context("VmRSS has a figure")?.parse()?;
    Ok(kibibytes << 10)
}
