//! Background installation of changed pages, and giving log space back.

use super::{Context, Domain, Service};
use crate::id::{PageId, Stamp};
use crate::message::{Epoch, RequestError};
use crate::origin::io::{OriginOutput, StoreFault, WriteId};
use crate::record::{DomainMeta, InstallBatch, Lsn};
use crate::time::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// A damaged page is looked at again after this long: an operator may have mended it.
const DAMAGED_RETRY: Duration = Duration::from_secs(60);

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
    /// Pages of the batch that was refused since the store was full; the next one has half.
    refused_pages: Option<usize>,
    /// Changed pages that could not be loaded, and when each is tried again. They stay in the log,
    /// and must not keep others from being installed.
    unreadable: BTreeMap<PageId, Instant>,
    /// Pages that are being loaded to be installed.
    wanted: BTreeSet<PageId>,
    /// Nothing is looked for before this, or before those are there.
    wanted_until: Option<Instant>,
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
        let not_before = self.not_before.max(self.wanted_until).unwrap_or_default();
        self.due_at.map(|due| due.max(not_before))
    }

    /// Log space is wanted.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.due_at = Some(now);
    }

    /// A page was loaded, or cannot be before an instant.
    pub(super) fn loaded(&mut self, page: PageId, retry_at: Option<Instant>) {
        match retry_at {
            Some(at) => self.unreadable.insert(page, at),
            None => self.unreadable.remove(&page),
        };
        if self.wanted.remove(&page) && self.wanted.is_empty() {
            self.wanted_until = None;
        }
    }

    /// Whether a page is loaded for it.
    pub(super) fn wants(&self, page: PageId) -> bool {
        self.wanted.contains(&page)
    }

    /// Whether the change index may name a page after `stamp`.
    pub(super) fn index_may_have(&self, stamp: Stamp) -> bool {
        self.index_max > stamp
    }
}

impl Domain {
    /// Installs a batch if one is due.
    pub(super) fn install(&mut self, cx: &mut Context<'_>) {
        // A store that is full at the start is given its space back; any other may wait.
        let serves = matches!(self.service, Service::Open | Service::Full);
        if !serves || self.install.under_way.is_some() {
            return;
        }
        if self.installed_lsn == self.durable_lsn && self.pages.first_uninstalled().is_none() {
            self.install.due_at = None;
            return;
        }
        let interval = cx.config.install_interval;
        let due = *self.install.due_at.get_or_insert(cx.now.after(interval));
        let late = due <= cx.now || self.pages.dirty_bytes() >= cx.config.install_bytes;
        let not_before = self.install.not_before.max(self.install.wanted_until);
        if !late || not_before.is_some_and(|at| at > cx.now) {
            return;
        }
        let pages = self.take_oldest(cx);
        let taken: Taken = pages
            .iter()
            .map(|page| (*page, self.pages.since(*page).expect("it is dirty")))
            .collect();
        if taken.is_empty() && self.pages.first_uninstalled().is_some() {
            // All of them are being loaded, or cannot be.
            self.install.wanted_until = Some(cx.now.after(interval));
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

    /// The pages longest not installed that are in memory, ascending; the others are loaded, if
    /// they can be.
    fn take_oldest(&mut self, cx: &mut Context<'_>) -> Vec<PageId> {
        let install = &self.install;
        let most = install.refused_pages.map_or(usize::MAX, |pages| (pages / 2).max(1));
        let retried = |page: &PageId| install.unreadable.get(page).is_none_or(|at| *at <= cx.now);
        let loaded = |page: &PageId| self.pages.is_loaded(*page);
        let oldest = self.pages.oldest().filter(|page| loaded(page) || retried(page));
        let oldest = oldest.take(most.min(cx.config.install_pages_max));
        let (mut loaded, absent): (Vec<_>, Vec<_>) = oldest.partition(loaded);
        for page in absent {
            self.load(cx, page);
            self.install.wanted.insert(page);
        }
        loaded.sort_unstable();
        loaded
    }

    /// A page that is not installed was loaded, or could not be.
    pub(super) fn loaded_to_install(
        &mut self,
        cx: &Context<'_>,
        page: PageId,
        failed: Option<&RequestError>,
    ) {
        let retry = match failed {
            None => None,
            Some(RequestError::Damaged { .. }) => Some(DAMAGED_RETRY),
            Some(_) => Some(cx.config.full_retry),
        };
        let retry = retry.filter(|_| self.pages.since(page).is_some());
        self.install.loaded(page, retry.map(|after| cx.now.after(after)));
    }

    /// The metadata with everything durable. Records up to `installed_lsn` are never read again;
    /// what later ones say is in it too, and is skipped by their stamps when they are replayed.
    fn meta(&self) -> DomainMeta {
        let first = self.pages.first_uninstalled();
        DomainMeta {
            domain: self.id,
            installed_lsn: first.map_or(self.durable_lsn, |(lsn, _)| Lsn(lsn.0 - 1)),
            installed: first.map_or(self.durable, |(_, stamp)| stamp.previous()),
            epochs: self.durable_epochs().to_vec(),
            volumes: self.volumes.values().map(|volume| volume.meta.clone()).collect(),
            boots: self.boots.meta(),
        }
    }

    fn durable_epochs(&self) -> &[Epoch] {
        let undurable = usize::from(!self.is_open());
        &self.epochs[..self.epochs.len() - undurable]
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
                self.install.refused_pages = None;
                cx.out.push(OriginOutput::TrimLog { domain: self.id, through: lsn });
                if self.service == Service::Full {
                    // Space was given back: perhaps enough.
                    self.append_after = None;
                    self.install.hurry(cx.now);
                }
            }
            Err(StoreFault::Full(_)) => {
                self.install.refused_pages = Some(taken.len());
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
