//! What a cached page costs: in a node beside its bytes, and in its parent's directory.

use anyhow::{Result, ensure};
use larder::client::{Error, SessionOptions, VolumeOptions};
use larder::core::commit::PageKind;
use larder::core::id::{
    BootId, DomainId, HistoryId, LinkId, PageId, PageNo, RequestId, Stamp, VolumeId,
};
use larder::core::machine::{LinkInput, Machine};
use larder::core::message::{Message, PAGES_PER_MESSAGE_MAX, Role};
use larder::core::origin::io::{OriginInput, OriginOutput};
use larder::core::origin::{Origin as Machinery, OriginConfig, RecoveredDomain};
use larder::core::record::{DomainMeta, VolumeMeta};
use larder::core::time::{Instant, WallTime};
use larder_harness::resident::{CONTENT_BYTES, PAGE_BYTES, PAGES, PAGES_PER_TRANSACTION};
use larder_harness::servers::Origin;
use serde_json::{Value, json};
use stats_alloc::Region;
use std::path::Path;

/// As many as the node caches. A list may be longer only as far as `registered_bytes_max` allows.
const LISTED_PAGES: u64 = PAGES;

pub(crate) async fn run() -> Result<Value> {
    let mut origin = Origin::start("bench-memory", 2)?;
    let writer = origin.node(0).await?;
    let options = VolumeOptions { page_bytes: PAGE_BYTES as u32, ..VolumeOptions::new("pages") };
    let volume = writer.create_volume(options).await?;
    let (session, id) = (volume.session(SessionOptions::default()), volume.id());
    let mut runs = Vec::new();
    for _ in 0..PAGES / PAGES_PER_TRANSACTION {
        let first = session
            .transact(|tx| async move {
                let first = tx.create_pages(id, PageKind::Raw, PAGES_PER_TRANSACTION).await?;
                for number in 0..PAGES_PER_TRANSACTION {
                    let page = PageId { page: PageNo(first.page.0 + number), ..first };
                    tx.write_raw(page, 0, vec![number as u8; CONTENT_BYTES]).await?;
                }
                Ok::<_, Error>(first)
            })
            .await?;
        runs.push(first.page.0.to_string());
    }
    writer.shutdown().await;
    origin.alive()?;

    let tls = origin.folder().join("tls").display().to_string();
    let node = ["memory-node", &tls, &origin.parent(), &runs.join(",")];
    let shipped = std::env::current_exe()?.with_file_name("bench");
    let with_shipped = overhead(&shipped, &node).await?;
    let with_system = overhead(&std::env::current_exe()?, &node).await?;
    Ok(json!({
        "node_overhead_percent": with_shipped.max(with_system),
        "node_overhead_percent_shipped_allocator": with_shipped,
        "node_overhead_percent_system_allocator": with_system,
        "rival_overhead_percent": overhead(&shipped, &["memory-rival"]).await?,
        "directory_bytes_per_page": directory(64)?,
        "directory_bytes_per_page_neighbours": directory(1)?,
        "page_bytes": PAGE_BYTES,
        "pages": PAGES,
    }))
}

/// By how much the resident set of a process of its own grows above the bytes of the pages.
async fn overhead(binary: &Path, words: &[&str]) -> Result<f64> {
    let output = tokio::process::Command::new(binary).args(words).output().await?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let resident: f64 = String::from_utf8(output.stdout)?.trim().parse()?;
    let bytes = (PAGES * PAGE_BYTES) as f64;
    Ok((resident - bytes) / bytes * 100.0)
}

/// Bytes of heap that an origin spends for each page a child lists as held; pages lie `apart`
/// numbers from each other.
fn directory(apart: u64) -> Result<f64> {
    const DOMAIN: DomainId = DomainId(1);
    const LINK: LinkId = LinkId(1);
    let (now, mut out) = (Instant(0), Vec::new());
    // It keeps lists only of pages that it may have.
    let volume = VolumeMeta {
        id: VolumeId(7),
        name: "pages".into(),
        page_bytes: PAGE_BYTES as u32,
        next_page: PageNo(LISTED_PAGES * apart + 1),
        version: Stamp::default(),
        pages: LISTED_PAGES,
        bytes: 0,
        settings: larder_core::record::VolumeSettings::default(),
        given: Vec::new(),
    };
    let meta = DomainMeta { domain: DOMAIN, volumes: vec![volume], ..DomainMeta::default() };
    let start =
        RecoveredDomain { meta, apart: Vec::new(), records: Vec::new(), history: HistoryId(1) };
    let mut origin =
        Machinery::new(OriginConfig::default(), now, WallTime(0), vec![start], &mut out)?;
    let mut feed = |origin: &mut Machinery, input: OriginInput| {
        origin.handle(now, input, &mut out);
        while let Some(at) = out.iter().position(|o| matches!(o, OriginOutput::Append { .. })) {
            if let OriginOutput::Append { domain, write, .. } = out.remove(at) {
                let done = OriginInput::Appended { domain, write, result: Ok(()) };
                origin.handle(now, done, &mut out);
            }
        }
        out.clear();
    };
    feed(&mut origin, OriginInput::WallClock(WallTime(0)));
    let received =
        |message| OriginInput::Link(LinkInput::Received { link: LINK, message, bytes: 100 });
    let (peer, in_group) = ("node".to_owned(), false);
    let opened = LinkInput::DownOpened { link: LINK, peer, role: Role::Node, in_group };
    feed(&mut origin, OriginInput::Link(opened));
    let (name, boot, role) = ("node".to_owned(), BootId(1), Role::Node);
    let hello = Message::Hello { min_version: 1, max_version: 1, name, boot, role };
    feed(&mut origin, received(hello));
    let (request, epochs) = (RequestId(1), Vec::new());
    let resume = Message::Resume { request, domain: DOMAIN, epochs, through: None };
    feed(&mut origin, received(resume));
    let region = Region::new(super::local_read::ALLOCATOR);
    let numbers: Vec<u64> = (1..=LISTED_PAGES).map(|number| number * apart).collect();
    let listing = region.change();
    for part in numbers.chunks(PAGES_PER_MESSAGE_MAX) {
        let page = |number: &u64| PageId { volume: VolumeId(7), page: PageNo(*number) };
        let done = part.last() == numbers.last();
        let pages = part.iter().map(page).collect();
        feed(&mut origin, received(Message::Holding { domain: DOMAIN, pages, done }));
    }
    let change = region.change();
    let held = |c: &stats_alloc::Stats| {
        c.bytes_allocated as f64 + c.bytes_reallocated as f64 - c.bytes_deallocated as f64
    };
    let bytes = held(&change) - held(&listing);
    drop(numbers);
    ensure!(bytes > 0.0, "the origin kept nothing of the list");
    Ok(bytes / LISTED_PAGES as f64)
}
