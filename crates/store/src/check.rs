//! Checks a domain's store without serving it: the log from end to end, every page's image, changes
//! kept apart, and the change index against the pages' versions.

use crate::disk::Disk;
use crate::driver::{self, OpenError};
use crate::log::{LogError, scan};
use crate::pages::{FjallConfig, Pages, PagesError};
use larder_core::id::{DomainId, PageId, PageNo, Stamp, VolumeId};
use larder_core::machine::Faults;
use larder_core::page::Page;
use larder_core::record::{DomainMeta, Lsn, StoredPage};
use std::collections::BTreeMap;
use std::path::Path;

/// Most problems listed; further ones are counted.
const PROBLEMS_MAX: usize = 1000;
/// Pages or index entries read at a time.
const STEP: usize = 1024;

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The domain.
    pub domain: DomainId,
    /// The stamp up to which commits are installed.
    pub installed: Stamp,
    /// Volumes.
    pub volumes: u64,
    /// Records in the log that are not installed yet.
    pub log_records: u64,
    /// Pages that are there.
    pub pages: u64,
    /// Bytes of their images.
    pub page_bytes: u64,
    /// Volumes that were deleted and of which something is left to be removed.
    pub removing: u64,
    /// Pages left of those.
    pub left: u64,
    /// Pages deleted, whose numbers stay taken.
    pub tombstones: u64,
    /// Entries of the change index.
    pub index_entries: u64,
    /// What is wrong, the first thousand.
    pub problems: Vec<Problem>,
    /// How many problems there are beyond those listed.
    pub problems_more: u64,
}

/// Something wrong with a store.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Problem {
    /// The log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A log record that cannot be read.
    #[error("log record {} cannot be read: {detail}", .lsn.0)]
    Record {
        /// Its number.
        lsn: Lsn,
        /// What is wrong.
        detail: String,
    },
    /// The page engine.
    #[error(transparent)]
    Pages(#[from] PagesError),
    /// A page's image.
    #[error("page {page}: {detail}")]
    Page {
        /// Which.
        page: PageId,
        /// What is wrong.
        detail: String,
    },
    /// A page that the change index does not name at its version: one that was restored from an older
    /// copy, or a returning cache is not told of its last change.
    #[error("page {page} has version {version} and no entry of the change index says so")]
    NotIndexed {
        /// Which.
        page: PageId,
        /// Its version.
        version: Stamp,
    },
    /// An entry of the change index that is not a page's version: harmless but for its space.
    #[error("the change index names page {page} at stamp {stamp}, which is not its version")]
    Superseded {
        /// Which.
        page: PageId,
        /// The entry's stamp.
        stamp: Stamp,
    },
    /// A page in a volume that the metadata does not name.
    #[error("page {page} belongs to no volume of this domain")]
    NoVolume {
        /// Which.
        page: PageId,
    },
}

impl Report {
    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    fn add(&mut self, problem: impl Into<Problem>) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(problem.into());
        } else {
            self.problems_more += 1;
        }
    }
}

/// Checks the domain in a directory, which no process may serve meanwhile. `progress` is told the
/// number of pages checked so far, now and then.
///
/// # Errors
/// What keeps it from being opened at all; everything else is in the report.
pub fn check_directory(path: &Path, progress: &mut dyn FnMut(u64)) -> Result<Report, OpenError> {
    let (disk, pages) = driver::parts_at(path, &FjallConfig::default())?;
    check(&disk, &pages, progress)
}

/// Checks a domain's store.
///
/// # Errors
/// What keeps it from being opened at all; everything else is in the report.
pub fn check<D: Disk, P: Pages>(
    disk: &D,
    pages: &P,
    progress: &mut dyn FnMut(u64),
) -> Result<Report, OpenError> {
    let domain = driver::domain_of(disk)?.ok_or(OpenError::NoDomain)?;
    let meta = driver::meta_of(pages, domain)?;
    let mut report = Report {
        domain,
        installed: meta.installed,
        volumes: meta.volumes.len() as u64,
        ..Report::default()
    };
    check_log(disk, &meta, &mut report);
    match pages.apart() {
        Ok(apart) => apart.into_iter().filter_map(Result::err).for_each(|(_, e)| report.add(e)),
        Err(error) => report.add(error),
    }
    let mut versions = BTreeMap::new();
    for volume in &meta.volumes {
        let checked = check_volume(pages, volume.id, &mut versions, &mut report, progress);
        if let Err(error) = checked {
            report.add(error);
        }
    }
    let left = meta.deleted.iter().filter(|volume| volume.left.is_some());
    for volume in left {
        report.removing += 1;
        if let Err(error) = count_left(pages, volume.id, &mut report) {
            report.add(error);
        }
    }
    match check_index(pages, &meta, &mut versions, &mut report) {
        // What the index has not named.
        Ok(()) => {
            for (page, version) in versions {
                report.add(Problem::NotIndexed { page, version });
            }
        }
        Err(error) => report.add(error),
    }
    Ok(report)
}

fn check_log<D: Disk>(disk: &D, meta: &DomainMeta, report: &mut Report) {
    let from = Lsn(meta.installed_lsn.0 + 1);
    let scan = match scan::scan(disk, meta.domain, from, Faults::NONE) {
        Ok(scan) => scan,
        Err(error) => return report.add(error),
    };
    report.log_records = scan.records.len() as u64;
    for (lsn, bytes) in scan.records {
        if let Err(error) = larder_core::wire::decode_record(bytes) {
            let detail = error.to_string();
            report.add(Problem::Record { lsn, detail });
        }
    }
}

fn check_volume<P: Pages>(
    pages: &P,
    volume: VolumeId,
    versions: &mut BTreeMap<PageId, Stamp>,
    report: &mut Report,
    progress: &mut dyn FnMut(u64),
) -> Result<(), PagesError> {
    let mut after = PageNo(0);
    loop {
        let found = pages.pages_of(volume, after, STEP)?;
        for page in &found {
            check_page(pages, *page, versions, report);
        }
        progress(report.pages + report.tombstones);
        match found.last() {
            Some(last) if found.len() == STEP => after = last.page,
            _ => return Ok(()),
        }
    }
}

/// What is left of a deleted volume is not served any more: it is counted, and not read.
fn count_left<P: Pages>(
    pages: &P,
    volume: VolumeId,
    report: &mut Report,
) -> Result<(), PagesError> {
    let mut after = PageNo(0);
    loop {
        let found = pages.pages_of(volume, after, STEP)?;
        report.left += found.len() as u64;
        match found.last() {
            Some(last) if found.len() == STEP => after = last.page,
            _ => return Ok(()),
        }
    }
}

/// Whether a volume that the metadata does not name was deleted: its stand-in is a tombstone.
fn was_deleted<P: Pages>(pages: &P, volume: VolumeId) -> bool {
    matches!(pages.load(PageId::of_volume(volume)), Ok(Some(StoredPage { image: None, .. })))
}

fn check_page<P: Pages>(
    pages: &P,
    page: PageId,
    versions: &mut BTreeMap<PageId, Stamp>,
    report: &mut Report,
) {
    let stored = match pages.load(page) {
        Ok(Some(stored)) => stored,
        Ok(None) => return,
        // The index may name another, which is told with it.
        Err(PagesError::NotInstalled { version, .. }) => {
            return report.add(Problem::NotIndexed { page, version });
        }
        // Its version is not known: nothing more can be said of it.
        Err(error) => return report.add(error),
    };
    versions.insert(page, stored.version);
    let Some(image) = stored.image else {
        report.tombstones += 1;
        return;
    };
    report.pages += 1;
    report.page_bytes += image.len() as u64;
    if let Err(error) = Page::decode(page, image) {
        let detail = error.to_string();
        report.add(Problem::Page { page, detail });
    }
}

/// Takes out of `versions` what the index names.
fn check_index<P: Pages>(
    pages: &P,
    meta: &DomainMeta,
    versions: &mut BTreeMap<PageId, Stamp>,
    report: &mut Report,
) -> Result<(), PagesError> {
    let mut after = (Stamp::ZERO, PageId::default());
    loop {
        let (entries, more) = pages.changed_after(after, STEP)?;
        for (stamp, page) in &entries {
            report.index_entries += 1;
            if versions.get(page) == Some(stamp) {
                versions.remove(page);
            } else if meta.volumes.iter().all(|volume| volume.id != page.volume) {
                match was_deleted(pages, page.volume) {
                    // Its own entry, or one of a page that is left.
                    true if page.is_volume() || pages.load(*page)?.is_some() => {}
                    true => report.add(Problem::Superseded { page: *page, stamp: *stamp }),
                    false => report.add(Problem::NoVolume { page: *page }),
                }
            } else {
                report.add(Problem::Superseded { page: *page, stamp: *stamp });
            }
        }
        match entries.last() {
            Some(last) if more => after = *last,
            _ => return Ok(()),
        }
    }
}
