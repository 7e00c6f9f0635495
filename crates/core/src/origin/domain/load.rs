//! Reading from the page engine.

use super::load_queue::Claimant;
use super::pages::Image;
use super::{Context, Domain, IndexWanted, LoadFor, Loading};
use crate::commit::Write;
use crate::downlink::Downlinks;
use crate::id::{LinkId, PageId, PageNo, Stamp, VolumeId};
use crate::machine::{Fault, Faults};
use crate::message::RequestError;
use crate::origin::io::{LoadId, LoadKey, Loaded, OriginOutput, StoreFault};
use crate::page::Page;
use crate::record::StoredPage;
use std::collections::BTreeSet;
use std::collections::btree_map::Entry;

impl Domain {
    /// Sees to it that a page is being loaded; gives those who wait for it.
    pub(super) fn load(
        &mut self,
        cx: &mut Context<'_>,
        page: PageId,
        claimant: Claimant,
    ) -> &mut Loading {
        match self.loading.entry(page) {
            Entry::Vacant(vacant) => {
                vacant.insert(Loading::default());
                self.load_queue.push(page, claimant);
                self.start_loads(cx);
            }
            Entry::Occupied(_) => self.load_queue.claim(page, claimant),
        }
        self.loading.get_mut(&page).expect("inserted above")
    }

    fn start_loads(&mut self, cx: &mut Context<'_>) {
        while self.page_loads < cx.config.loads_max
            && let Some(page) = self.load_queue.pop()
        {
            self.page_loads += 1;
            let load = self.load_id();
            self.loads.insert(load, LoadFor::Page(page));
            cx.out.push(OriginOutput::Load { domain: self.id, load, key: LoadKey::Page(page) });
        }
    }

    /// A link is gone, and with it the copies for which these pages were wanted: loads that were not started
    /// and for which nobody waits any more go with it. They would be done first, before those of others.
    pub(super) fn gone_from_loads(&mut self, link: LinkId, copied: Vec<PageId>) {
        let page = |volume, page| PageId { volume: VolumeId(volume), page: PageNo(page) };
        let all = (link, page(u128::MIN, u64::MIN))..=(link, page(u128::MAX, u64::MAX));
        let fetched: Vec<PageId> = self.fetching.range(all).map(|(_, page)| *page).collect();
        for page in &fetched {
            self.fetching.remove(&(link, *page));
            let loading = self.loading.get_mut(page).expect("a link waits for it");
            loading.fetches.retain(|(waiting, ..)| *waiting != link);
        }
        fetched.into_iter().chain(copied).for_each(|page| self.drop_unwanted_load(page));
    }

    /// The same for a page, and whoever does not wait for it any more.
    fn drop_unwanted_load(&mut self, page: PageId) {
        let Self { loading, loading_commits, install, load_queue, copies, .. } = self;
        let Some(waits) = loading.get_mut(&page) else { return };
        waits.commits.retain(|ticket| loading_commits.contains_key(ticket));
        waits.copies.retain(|copy| copies.has(*copy));
        if !load_queue.has(page) {
            return;
        }
        let boot = |ticket: &u64| loading_commits[ticket].request.id.boot;
        let commits = waits.commits.iter().map(|ticket| Claimant::Commit(boot(ticket), *ticket));
        let fetches =
            waits.fetches.iter().map(|(link, asked, _)| Claimant::Fetch(*link, asked.request));
        let copies = waits.copies.iter().map(|copy| Claimant::Copy(*copy));
        let own = install.wants(page).then_some(Claimant::Own);
        if !load_queue.keep(page, commits.chain(fetches).chain(copies).chain(own)) {
            crate::probe::probe("load-dropped-unstarted");
            loading.remove(&page);
        }
    }

    /// Loads that were not started and for which nobody waits any more.
    pub(super) fn drop_unwanted_loads(&mut self) {
        let pages: Vec<PageId> = self.loading.keys().copied().collect();
        pages.into_iter().for_each(|page| self.drop_unwanted_load(page));
    }

    /// Nobody is told of what is loaded from here on.
    pub(super) fn forget_loads(&mut self) {
        self.loading.clear();
        self.load_queue.clear();
        self.fetching.clear();
    }

    /// Panics when an invariant of loads is broken.
    pub(super) fn check_loads(&self, links: &Downlinks) {
        let waiting: BTreeSet<(LinkId, PageId)> = self
            .loading
            .iter()
            .flat_map(|(page, loading)| loading.fetches.iter().map(|(link, ..)| (*link, *page)))
            .collect();
        assert_eq!(waiting, self.fetching, "links that wait for pages are miscounted");
        let stand = self.fetching.iter().all(|(link, _)| links.get(*link).is_some());
        assert!(stand, "a page is loaded for a link that is gone (P7)");
        self.load_queue.check();
        let queued = self.loading.keys().filter(|page| self.load_queue.has(**page)).count();
        assert_eq!(queued, self.load_queue.len(), "a page waits to be loaded for nobody");
        assert!(self.loading.len() - queued <= self.page_loads, "loads are miscounted");
    }

    /// Starts the index loads that streams asked for, as many as there may be.
    pub(super) fn load_index(&mut self, cx: &mut Context<'_>) {
        let since = cx.now;
        let wanted = std::mem::take(&mut self.index_wanted).into_iter();
        self.index_queue.extend(wanted.map(|(link, after)| IndexWanted { link, after, since }));
        while self.index_loads < cx.config.index_loads_max
            && let Some(IndexWanted { link, after, since }) = self.index_queue.pop_front()
        {
            let load = self.load_id();
            self.index_loads += 1;
            self.loads.insert(load, LoadFor::Index(link, since));
            let limit = self.index_part_max;
            cx.out.push(OriginOutput::Load {
                domain: self.id,
                load,
                key: LoadKey::ChangedAfter { after, limit },
            });
        }
    }

    /// A load is done.
    pub(in crate::origin) fn loaded(
        &mut self,
        cx: &mut Context<'_>,
        load: LoadId,
        result: Result<Loaded, StoreFault>,
    ) {
        if self.is_failed() {
            return;
        }
        let what = self.loads.remove(&load).expect("a load is answered once");
        match what {
            LoadFor::Page(_) => self.page_loads -= 1,
            LoadFor::Index(..) | LoadFor::Copy(_) => self.index_loads -= 1,
            LoadFor::Removal | LoadFor::Deleted(_) => {}
        }
        match (what, result) {
            (LoadFor::Page(page), Ok(Loaded::Page(stored))) => {
                let result = self.materialise(page, stored, cx.config.faults);
                self.page_loaded(cx, page, result);
            }
            (LoadFor::Page(page), Err(fault)) => {
                crate::probe::probe("load-fails");
                self.page_loaded(cx, page, Err(load_error(page, fault)));
            }
            (LoadFor::Index(link, _), Ok(Loaded::Changed { entries, more })) => {
                self.index_loaded(cx, link, entries, more);
            }
            (LoadFor::Copy(copy), Ok(Loaded::Changed { entries, more })) => {
                self.copy_index_loaded(cx, copy, entries, more);
            }
            (LoadFor::Copy(copy), Err(fault)) => {
                let error = RequestError::Unavailable(format!("the change index: {fault}"));
                self.fail_copy(cx, copy, error);
            }
            (LoadFor::Index(link, _), Err(fault)) => {
                let reason = crate::message::CloseReason::OutOfService(fault.to_string());
                self.close(cx, link, reason);
            }
            (LoadFor::Removal, Ok(Loaded::Removable(pages))) => {
                self.removable_loaded(cx, Ok(pages));
            }
            (LoadFor::Removal, Err(fault)) => self.removable_loaded(cx, Err(fault)),
            (LoadFor::Deleted(volume), Ok(Loaded::Page(stored))) => {
                let deleted = stored.is_some_and(|stored| stored.image.is_none());
                self.looked(cx, volume, Ok(deleted));
            }
            (LoadFor::Deleted(volume), Err(fault)) => self.looked(cx, volume, Err(fault)),
            (what, Ok(found)) => panic!("asked for {what:?}, the driver answered {found:?}"),
        }
        self.start_loads(cx);
        self.load_index(cx);
    }

    /// Checks what was stored and applies the recovered ops that are later.
    fn materialise(
        &mut self,
        page: PageId,
        stored: Option<StoredPage>,
        faults: Faults,
    ) -> Result<(), RequestError> {
        if self.pages.is_loaded(page) {
            // A deletion has written it meanwhile: a read may name what stands for a volume.
            return Ok(());
        }
        let damaged = |detail: String| RequestError::Damaged { page, detail };
        if let Some(detail) = self.pages.lost(page) {
            return Err(damaged(detail.to_owned()));
        }
        let (version, image) =
            stored.map_or((Stamp::ZERO, None), |stored| (stored.version, stored.image));
        let image = image
            .map(|bytes| Page::decode(page, bytes))
            .transpose()
            .map_err(|error| damaged(error.to_string()))?;
        let mut latest = Image { version, page: image };
        let page_bytes = self.volumes.get(&page.volume).map(|volume| volume.meta.page_bytes);
        for (stamp, op) in self.pages.lazy(page) {
            if *stamp <= version && !faults.has(Fault::AppliedAgain) {
                continue;
            }
            // The op applied when it was committed: a page on which it does not is not the one
            // that was installed.
            let page_bytes = page_bytes.ok_or_else(|| damaged("its volume is gone".into()))?;
            let write = Write { page, op: op.clone() };
            super::execute::apply_op(&mut latest, &write, page_bytes, Faults::NONE)
                .map_err(|error| damaged(format!("its commit {stamp} does not apply: {error}")))?;
            crate::probe::probe("recovered-ops-applied");
            latest.version = *stamp;
        }
        if version > self.durable {
            return Err(damaged(format!("its version {version} was never committed")));
        }
        let next = self.after_durable();
        self.pages.loaded(page, version, latest, next);
        Ok(())
    }

    /// Tells those who wait for a page.
    fn page_loaded(
        &mut self,
        cx: &mut Context<'_>,
        page: PageId,
        result: Result<(), RequestError>,
    ) {
        let loading = self.loading.remove(&page).expect("a load has its waiters");
        let mut failed = result.err();
        if !self.volumes.contains_key(&page.volume) {
            // It was deleted meanwhile, and the page may be removed by now.
            self.pages.forget(&[page]);
            failed = Some(self.no_volume(page.volume));
        }
        for ticket in loading.commits {
            self.commit_loaded(cx, ticket, page, failed.as_ref());
        }
        for (link, asked, _) in loading.fetches {
            self.fetching.remove(&(link, page));
            if let Some(error) = &failed {
                cx.links.fail_page(link, (asked.request, page), error.clone(), cx.out);
            } else if let Some(follower) = cx.links.follower(link, self.id) {
                follower.loaded.push_back(asked);
                self.serve.insert(link);
            }
        }
        self.loaded_to_install(cx, page, failed.as_ref());
        for copy in loading.copies {
            self.copy_page_loaded(cx, copy, page, failed.as_ref());
        }
    }
}

fn load_error(page: PageId, fault: StoreFault) -> RequestError {
    match fault {
        StoreFault::Damaged(detail) => RequestError::Damaged { page, detail },
        StoreFault::Failed(detail) | StoreFault::Full(detail) => {
            RequestError::Unavailable(format!("page {page} cannot be read: {detail}"))
        }
    }
}
