//! Watchers: each keeps what some pages hold, and reads again only what its node's events name. In
//! the end that is what the pages hold.

use super::env::{Shared, lock};
use larder::client::{Error, Event, Freshness, Node, Object, SessionOptions, Volume};
use larder_core::id::PageId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::sleep;

/// What a page holds, or that it is not there.
pub(super) type Held = Option<Vec<Object>>;

/// What a watcher believes.
#[derive(Default)]
pub(super) struct View {
    pub(super) pages: BTreeMap<PageId, Held>,
    dirty: BTreeSet<PageId>,
    /// It has read all that it was told of.
    pub(super) idle: bool,
}

/// What pages hold, as a node shows them now.
pub(super) async fn look(volume: &Volume, page: PageId) -> Result<Held, Error> {
    let options = SessionOptions {
        freshness: Freshness::Any,
        time_limit: Duration::from_secs(2),
        ..SessionOptions::default()
    };
    volume.session(options).read(|tx| async move { tx.read_all(page).await }).await
}

/// Watches pages until the node ends; with a pause after each event while others work.
pub(super) async fn watch(
    shared: Arc<Shared>,
    node: Node,
    volume: Volume,
    pages: Vec<PageId>,
    pause: Duration,
    (view, stop): (Arc<Mutex<View>>, Arc<AtomicBool>),
) {
    let mut notices = node.notices();
    lock(&view).dirty = pages.iter().copied().collect();
    loop {
        let next = lock(&view).dirty.pop_first();
        if let Some(page) = next {
            match look(&volume, page).await {
                Ok(held) => {
                    lock(&view).pages.insert(page, held);
                }
                Err(Error::ShutDown) => return,
                Err(_) => {
                    lock(&view).dirty.insert(page);
                    sleep(Duration::from_millis(20)).await;
                }
            }
            continue;
        }
        lock(&view).idle = true;
        let Some(event) = notices.next().await else { return };
        {
            let mut view = lock(&view);
            view.idle = false;
            match &event {
                Event::Changed { pages: changed, .. } => {
                    let changed = changed.iter().map(|change| change.page);
                    view.dirty.extend(changed.filter(|page| pages.contains(page)));
                }
                Event::Reset { .. } | Event::Overflow => view.dirty.extend(&pages),
                _ => {}
            }
        }
        lock(&shared.tally).heard += 1;
        let kind = match &event {
            Event::Changed { pages, .. } => pages.len() as u64,
            Event::Reset { .. } => 1 << 32,
            Event::Overflow => 2 << 32,
            _ => 3 << 32,
        };
        shared.saw(&[kind], || {
            let what: String = format!("{event:?}").chars().take(300).collect();
            format!("{} tells {what}", node.status().name)
        });
        if !stop.load(Ordering::Relaxed) {
            sleep(pause).await;
        }
    }
}
