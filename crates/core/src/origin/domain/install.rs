//! Background installation of changed pages, and giving log space back.

use super::{Context, Domain};
use crate::id::{PageId, Stamp};
use crate::origin::io::{OriginOutput, StoreFault, WriteId};
use crate::record::{DomainMeta, InstallBatch, Lsn};
use crate::time::Instant;
use std::collections::BTreeMap;

/// Most damaged pages whose detail is kept.
const DAMAGED_MAX: usize = 1024;

/// Pages being installed, each with its first change.
type Taken = Vec<(PageId, (Lsn, Stamp))>;

/// Where installation stands.
#[derive(Debug, Default)]
pub(super) struct Installing {
    under_way: Option<(WriteId, Taken, Lsn)>,
    /// When what is not installed is due.
    due_at: Option<Instant>,
    /// The store was full: not before this.
    not_before: Option<Instant>,
    /// Changed pages whose stored image is damaged: they stay in the log.
    damaged: BTreeMap<PageId, String>,
    /// The highest version in the change index.
    index_max: Stamp,
}

impl Installing {
    pub(super) fn recovered(installed: Lsn) -> Self {
        // What an earlier process installed last is not known.
        let index_max = if installed == Lsn(0) { Stamp::ZERO } else { Stamp(u64::MAX) };
        Self { index_max, ..Self::default() }
    }

    /// When it wants to run.
    pub(super) fn due(&self) -> Option<Instant> {
        if self.under_way.is_some() {
            return None;
        }
        self.due_at.map(|due| due.max(self.not_before.unwrap_or_default()))
    }

    /// Log space is wanted.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.due_at = Some(now);
    }

    /// The page cannot be loaded.
    pub(super) fn skip(&mut self, page: PageId, detail: String) {
        if self.damaged.len() < DAMAGED_MAX {
            self.damaged.insert(page, detail);
        }
    }

    /// Whether the change index may name a page after `stamp`.
    pub(super) fn index_may_have(&self, stamp: Stamp) -> bool {
        self.index_max > stamp
    }
}

impl Domain {
    /// Installs a batch if one is due.
    pub(super) fn install(&mut self, cx: &mut Context<'_>) {
        if !self.is_open() || self.install.under_way.is_some() {
            return;
        }
        if self.installed_lsn == self.durable_lsn && self.pages.first_uninstalled().is_none() {
            self.install.due_at = None;
            return;
        }
        let interval = cx.config.install_interval;
        let due = *self.install.due_at.get_or_insert(cx.now.after(interval));
        let late = due <= cx.now || self.pages.dirty_bytes() >= cx.config.install_bytes;
        if !late || self.install.not_before.is_some_and(|at| at > cx.now) {
            return;
        }
        let pages = self.take_oldest(cx);
        let taken: Taken = pages
            .iter()
            .map(|page| (*page, self.pages.since(*page).expect("it is dirty")))
            .collect();
        if taken.is_empty() && self.pages.first_uninstalled().is_some() {
            // All of them are being loaded (or damaged): looked at again when one is there.
            self.install.due_at = Some(cx.now.after(interval));
            return;
        }
        let installed = pages.iter().map(|page| self.pages.take_for_install(*page)).collect();
        for page in &pages {
            self.pages.begin_install(*page);
        }
        let meta = self.meta();
        let batch = InstallBatch { pages: installed, meta };
        let write = self.write_id();
        let versions = batch.pages.iter().map(|page| page.stored.version);
        self.install.index_max = versions.max().unwrap_or_default().max(self.install.index_max);
        self.install.under_way = Some((write, taken, batch.meta.installed_lsn));
        self.install.due_at = None;
        cx.out.push(OriginOutput::Install { domain: self.id, write, batch });
    }

    /// The pages longest not installed that are in memory, ascending; the others are loaded.
    fn take_oldest(&mut self, cx: &mut Context<'_>) -> Vec<PageId> {
        let oldest: Vec<PageId> = self.pages.oldest().take(cx.config.install_pages_max).collect();
        let (mut loaded, absent): (Vec<_>, Vec<_>) =
            oldest.into_iter().partition(|page| self.pages.is_loaded(*page));
        for page in absent {
            if !self.install.damaged.contains_key(&page) {
                self.load(cx, page);
            }
        }
        loaded.sort_unstable();
        loaded
    }

    /// The metadata with everything durable. Records up to `installed_lsn` are never read again;
    /// what later ones say is in it too, and is skipped by their stamps when they are replayed.
    fn meta(&self) -> DomainMeta {
        let first = self.pages.first_uninstalled();
        DomainMeta {
            domain: self.id,
            installed_lsn: first.map_or(self.durable_lsn, |(lsn, _)| Lsn(lsn.0 - 1)),
            installed: first.map_or(self.durable, |(_, stamp)| stamp.previous()),
            epochs: self.epochs.clone(),
            volumes: self.volumes.values().map(|volume| volume.meta.clone()).collect(),
            boots: self.boots.meta(),
        }
    }

    /// An install ended.
    pub(in crate::origin) fn installed(
        &mut self,
        cx: &mut Context<'_>,
        write: WriteId,
        result: Result<(), StoreFault>,
    ) {
        if self.is_failed() {
            return;
        }
        let (under_way, taken, lsn) = self.install.under_way.take().expect("one is under way");
        assert_eq!(under_way, write, "installs are answered in order");
        match result {
            Ok(()) => {
                for (page, _) in taken {
                    self.pages.installed(page);
                }
                self.installed_lsn = lsn;
                cx.out.push(OriginOutput::TrimLog { domain: self.id, through: lsn });
            }
            Err(StoreFault::Full(_)) => {
                for (page, first) in taken {
                    self.pages.install_failed(page, first);
                }
                self.install.not_before = Some(cx.now.after(cx.config.full_retry));
                self.install.hurry(cx.now);
            }
            Err(fault) => self.fail(cx, fault),
        }
    }
}
