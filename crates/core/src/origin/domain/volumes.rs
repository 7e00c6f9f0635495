//! A domain's volumes.

use super::batch::Item;
use super::pages::Image;
use super::{Context, Domain};
use crate::commit::{Op, PageChange, PageKind};
use crate::id::{HistoryId, PageId, PageNo, Stamp, VolumeId};
use crate::message::{VolumeInfo, VolumeSpec};
use crate::page::Page;
use crate::record::{GIVEN_MAX, Given, LogRecord, Lsn, VolumeMeta};

/// A volume of a domain.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    /// Its durable state.
    pub(super) meta: VolumeMeta,
    /// The first page number not given, answers not yet durable included.
    pub(super) given: PageNo,
    /// What the recovered metadata counted: commits up to this stamp.
    counted: Stamp,
}

impl Volume {
    pub(super) fn new(meta: VolumeMeta) -> Self {
        let (given, counted) = (meta.next_page, meta.version);
        Self { meta, given, counted }
    }

    /// A history begins: numbers are given in it from now on.
    pub(super) fn begin(&mut self, history: HistoryId) {
        let VolumeMeta { given, next_page, .. } = &mut self.meta;
        if given.last().is_some_and(|last| last.first == *next_page) {
            // In that one none was.
            given.pop();
        }
        given.push(Given { history, first: *next_page });
        let surplus = given.len().saturating_sub(GIVEN_MAX);
        given.drain(..surplus);
    }

    /// Whether a page number was given away in a history; the default history: in any. A number that
    /// was given in a history of a branch that is lost, or after the copy was made from which the
    /// domain was restored, may have been given to another node since. One that a node has read in
    /// what is committed was given before that commit, and its reads are validated: it names none.
    pub(super) fn gave(&self, page: PageNo, history: HistoryId) -> bool {
        let given = &self.meta.given;
        if history == HistoryId::default() {
            return page < self.meta.next_page;
        }
        let Some(place) = given.iter().position(|given| given.history == history) else {
            // Of histories that are forgotten by now, one may be meant that lasted until then.
            return given.len() == GIVEN_MAX && page < given[0].first;
        };
        let end = given.get(place + 1).map_or(self.meta.next_page, |next| next.first);
        (given[place].first..end).contains(&page)
    }

    /// A recovered commit wrote to it.
    pub(super) fn replayed(&mut self, stamp: Stamp, op: &Op) {
        if stamp > self.counted {
            let by = match op {
                Op::CreatePage(_) => 1,
                Op::DeletePage => -1,
                _ => 0,
            };
            self.grow(stamp, by);
        }
    }

    /// A commit made (or removed) pages of it.
    pub(super) fn grow(&mut self, stamp: Stamp, by: i64) {
        self.meta.version = stamp;
        self.meta.pages = self.meta.pages.saturating_add_signed(by);
    }
}

impl Domain {
    /// A volume as its users see it, once it is durable.
    pub(in crate::origin) fn volume(&self, id: VolumeId) -> Option<VolumeInfo> {
        let meta = &self.volumes.get(&id)?.meta;
        Some(VolumeInfo {
            id,
            domain: self.id,
            name: meta.name.clone(),
            page_bytes: meta.page_bytes,
            root: PageKind::Slotted,
            version: meta.version,
            pages: meta.pages,
        })
    }

    /// Ids and names of all volumes, ascending by id.
    pub(in crate::origin) fn volumes(&self) -> impl Iterator<Item = (VolumeId, &str)> + '_ {
        self.volumes.iter().map(|(id, volume)| (*id, volume.meta.name.as_str()))
    }

    pub(in crate::origin) fn volume_count(&self) -> usize {
        self.volumes.len()
    }

    /// Makes a volume with its page 1; told as an event when it is durable, or is not to be.
    pub(in crate::origin) fn create_volume(&mut self, cx: &mut Context<'_>, spec: VolumeSpec) {
        let stamp = self.stamped.next();
        self.stamped = stamp;
        let root = PageId { volume: spec.id, page: PageNo(1) };
        let meta = VolumeMeta {
            id: spec.id,
            name: spec.name.clone(),
            page_bytes: spec.page_bytes,
            next_page: PageNo(2),
            version: stamp,
            pages: 1,
            given: vec![Given { history: self.history(), first: PageNo(2) }],
        };
        let info = VolumeInfo {
            id: spec.id,
            domain: self.id,
            name: spec.name,
            page_bytes: spec.page_bytes,
            root: PageKind::Slotted,
            version: stamp,
            pages: 1,
        };
        let record = LogRecord::Volume { stamp, volume: meta };
        let lsn = self.gather(record, Item::Volume { stamp, info });
        self.recent.record(stamp, &[PageChange::whole(root)]);
        self.make_root(root, (lsn, stamp));
        self.append(cx);
    }

    /// Volume ids are never reused, so that nothing is known of the page.
    fn make_root(&mut self, root: PageId, at: (Lsn, Stamp)) {
        if !self.pages.is_loaded(root) {
            let absent = Image { version: Stamp::ZERO, page: None };
            let next = self.after_durable();
            self.pages.loaded(root, Stamp::ZERO, absent, next);
        }
        let entry = self.pages.get_mut(root).expect("loaded above");
        let (image, _) = entry.gather();
        *image = Image { version: at.1, page: Some(Page::empty(PageKind::Slotted)) };
        self.gathering.pages.push((root, at));
    }
}
