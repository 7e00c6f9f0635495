//! Pages that cannot be read and have changes that are not installed. The changes are kept apart in
//! the page engine, with the next install, so that the log can be trimmed past them; they are applied
//! when the page can be read again, by whoever reads it first, and installed with it.
//!
//! Only recovered changes wait for a stored page: a page that is changed otherwise is in memory. So
//! what is kept apart of a page does not grow while its process lives, and a page that cannot be read
//! cannot be written either. What is kept apart is bounded all the same, over many starts; beyond the
//! bound the log keeps the changes, as if the page had not been tried yet, and the operator is told.
//!
//! What is kept apart may rot as well. Then nobody knows what the page was last: it is never served or
//! written, nothing is installed over it, and whoever resumes is told of it, until the domain is
//! restored; the other pages are served.

use super::load_queue::Claimant;
use super::pages::KeptApart;
use super::{Context, Domain};
use crate::id::{PageId, Stamp, VolumeId};
use crate::message::RequestError;
use crate::origin::io::{OriginOutput, Unreadable};
use crate::record::{Apart, LostApart, Lsn};
use crate::time::{Duration, Instant};
use std::collections::BTreeMap;

/// A page that cannot be read is tried again after this long: an operator may have restored it.
const RETRY: Duration = Duration::from_secs(60);
/// An error of the device may pass: such a page is tried this often before its changes are kept apart.
const TRIES: u32 = 10;
/// Bytes of changes that one install keeps apart, about (one page may have more).
const INSTALL_BYTES: usize = 8 << 20;
/// Pages named to the operator.
const NAMED_MAX: usize = 16;

/// A page that could not be read.
#[derive(Debug)]
struct Damaged {
    /// What is wrong with it.
    detail: String,
    /// When it is tried again.
    retry_at: Instant,
    /// Its bytes are wrong, or it was tried often enough.
    lasting: bool,
    tries: u32,
}

/// The pages that could not be read and have changes, at most as many as are not installed.
#[derive(Debug, Default)]
pub(super) struct Damage {
    pages: BTreeMap<PageId, Damaged>,
    /// There was no room to keep more apart.
    full: bool,
    /// Something changed since the operator was told.
    changed: bool,
    told: Unreadable,
}

/// Changes that an install keeps apart: whose, the first of them, and what was kept apart before.
pub(super) type Parted = Vec<(PageId, (Lsn, Stamp), Option<KeptApart>)>;

impl Damage {
    pub(super) fn has(&self, page: PageId) -> bool {
        self.pages.contains_key(&page)
    }

    /// When a page is to be tried again.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pages.values().map(|damaged| damaged.retry_at).min()
    }

    /// The engine kept changes of this page apart when the process began.
    pub(super) fn recovered(&mut self, page: PageId) {
        let detail = "it could not be read before this start".into();
        let retry_at = Instant::default();
        self.pages.insert(page, Damaged { detail, retry_at, lasting: true, tries: 0 });
        self.changed = true;
    }

    /// It kept some of this page apart, and they are damaged.
    pub(super) fn lost(&mut self, lost: &LostApart) {
        let retry_at = Instant::default();
        let damaged = Damaged { detail: lost.detail.clone(), retry_at, lasting: true, tries: 0 };
        self.pages.insert(lost.page, damaged);
        self.changed = true;
    }

    /// Its volume was deleted.
    pub(super) fn forget_volume(&mut self, volume: VolumeId) {
        let before = self.pages.len();
        self.pages.retain(|page, _| page.volume != volume);
        self.changed |= before != self.pages.len();
    }

    fn readable(&mut self, page: PageId) {
        self.changed |= self.pages.remove(&page).is_some();
    }

    fn unreadable(&mut self, page: PageId, error: &RequestError, (now, soon): (Instant, Duration)) {
        let tries = self.pages.get(&page).map_or(0, |damaged| damaged.tries) + 1;
        let bytes_wrong = matches!(error, RequestError::Damaged { .. });
        let lasting = bytes_wrong || tries >= TRIES;
        let retry_at = now.after(if lasting { RETRY } else { soon });
        let damaged = Damaged { detail: error.to_string(), retry_at, lasting, tries };
        self.pages.insert(page, damaged);
        self.changed = true;
    }

    /// What is kept apart has changed.
    pub(super) fn note(&mut self) {
        self.changed = true;
    }
}

impl Domain {
    /// A page was loaded, or could not be.
    pub(super) fn note_loaded(
        &mut self,
        cx: &Context<'_>,
        page: PageId,
        failed: Option<&RequestError>,
    ) {
        let damage = &mut self.install.damage;
        match failed.filter(|_| self.pages.is_uninstalled(page)) {
            Some(error) => damage.unreadable(page, error, (cx.now, cx.config.full_retry)),
            None => damage.readable(page),
        }
    }

    /// Tries pages whose time has come.
    pub(super) fn retry_unreadable(&mut self, cx: &mut Context<'_>) {
        let most = cx.config.install_pages_max;
        let damaged = self.install.damage.pages.iter_mut();
        let due = damaged.filter(|(_, damaged)| damaged.retry_at <= cx.now).take(most);
        let mut pages = Vec::new();
        for (page, damaged) in due {
            damaged.retry_at = cx.now.after(RETRY);
            pages.push(*page);
        }
        for page in pages {
            self.install.want(page);
            self.load(cx, page, Claimant::Own);
        }
    }

    /// Changes that the next install keeps apart, of `most` pages at most; the log keeps the others.
    pub(super) fn take_apart(&mut self, cx: &Context<'_>, most: usize) -> (Vec<Apart>, Parted) {
        let Self { pages, install, .. } = self;
        let room = cx.config.apart_bytes_max;
        let (mut taken, mut parted, mut bytes) = (Vec::new(), Vec::new(), 0);
        let full = std::mem::take(&mut install.damage.full);
        for (page, damaged) in &install.damage.pages {
            let Some(first) = pages.since(*page).filter(|_| !pages.is_loaded(*page)) else {
                continue;
            };
            if !damaged.lasting || taken.len() >= most || bytes >= INSTALL_BYTES {
                continue;
            }
            let apart = pages.changes(*page);
            // All of it is in the place of what is kept apart of the page already.
            if pages.apart_bytes() - pages.apart_bytes_of(*page) + apart.bytes() > room {
                install.damage.full = true;
                continue;
            }
            bytes += apart.bytes();
            parted.push((*page, first, pages.begin_apart(&apart)));
            taken.push(apart);
        }
        install.damage.changed |= full != install.damage.full;
        (taken, parted)
    }

    /// Tells the operator what has changed.
    pub(super) fn tell_unreadable(&mut self, cx: &mut Context<'_>) {
        let Self { pages, install, .. } = self;
        let parting = install.parting();
        let damage = &mut install.damage;
        if !damage.changed || parting {
            // Or it is told when that is done, or was refused.
            return;
        }
        damage.changed = false;
        let named = damage.pages.iter().take(NAMED_MAX);
        let in_log = damage.pages.keys().filter(|page| pages.since(**page).is_some());
        let unreadable = Unreadable {
            pages: damage.pages.len(),
            named: named.map(|(page, damaged)| (*page, damaged.detail.clone())).collect(),
            apart_bytes: pages.apart_bytes(),
            in_log: in_log.count(),
            full: damage.full,
        };
        if unreadable != damage.told {
            damage.told = unreadable.clone();
            cx.out.push(OriginOutput::PagesUnreadable { domain: self.id, unreadable });
        }
    }
}
