//! The offline check sees every kind of damage that is planted.

use larder_core::commit::PageKind;
use larder_core::id::{DomainId, PageId, PageNo, Stamp, VolumeId};
use larder_core::machine::Faults;
use larder_core::page::Page;
use larder_core::record::{
    DeletedVolume, DomainMeta, InstallBatch, InstalledPage, LogRecord, Lsn, StoredPage, VolumeMeta,
};
use larder_core::rng::Rng;
use larder_store::check::{Problem, Report, check, check_directory};
use larder_store::driver::{DomainStore, OpenError, RealStore, StoreConfig};
use larder_store::log::LogConfig;
use larder_store::pages::{ModelPages, Pages};
use larder_store::testing::FaultDisk;
use std::sync::Arc;

const DOMAIN: DomainId = DomainId(0xc);

fn page(number: u64) -> PageId {
    PageId { volume: VolumeId(2), page: PageNo(number) }
}

fn installed(number: u64, previous: u64, version: u64) -> InstalledPage {
    let image = (number != 3).then(|| Page::empty(PageKind::Slotted).encode(page(number)));
    InstalledPage {
        page: page(number),
        previous: Stamp(previous),
        stored: StoredPage { version: Stamp(version), image },
    }
}

fn batch(pages: Vec<InstalledPage>) -> InstallBatch {
    InstallBatch {
        pages,
        meta: DomainMeta {
            domain: DOMAIN,
            installed_lsn: Lsn(0),
            installed: Stamp(9),
            volumes: vec![VolumeMeta {
                id: VolumeId(2),
                name: "two".into(),
                page_bytes: 4096,
                next_page: PageNo(10),
                version: Stamp(9),
                pages: 2,
                bytes: 0,
                settings: larder_core::record::VolumeSettings::default(),
                given: Vec::new(),
            }],
            ..DomainMeta::default()
        },
        ..InstallBatch::default()
    }
}

/// A store of two pages, a tombstone, and one log record.
fn store() -> (FaultDisk, Arc<ModelPages>) {
    let disk = FaultDisk::default();
    let pages = Arc::new(ModelPages::new(Faults::NONE));
    let config = LogConfig { segment_bytes: 8192, reserve_bytes: 0, ..LogConfig::default() };
    let (store, _) =
        DomainStore::create(disk.clone(), Arc::clone(&pages), config, DOMAIN, Rng::new(1))
            .expect("nothing fails here");
    let (mut log, _) = store.split();
    let record = LogRecord::Boot { boot: larder_core::id::BootId(1), name: "one".into() };
    log.append(larder_core::origin::io::WriteId(1), &[(Lsn(1), record)]);
    let all = vec![installed(1, 0, 4), installed(2, 0, 5), installed(3, 0, 6)];
    pages.install(&batch(all)).expect("the model does not fail");
    (disk, pages)
}

fn checked(disk: &FaultDisk, pages: &Arc<ModelPages>) -> Report {
    check(disk, pages, &mut |_| {}).expect("it opens")
}

#[test]
fn a_whole_store_is_clean() {
    let (disk, pages) = store();
    let report = checked(&disk, &pages);
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!((report.pages, report.tombstones), (2, 1));
    assert_eq!((report.index_entries, report.log_records), (3, 1));
}

/// A volume was deleted, and one of its pages is removed: what is left is counted and not looked at,
/// and the mark that stays of the volume is no fault, then or later.
#[test]
fn a_volume_half_removed_is_no_fault() {
    let (disk, pages) = store();
    let mark = InstalledPage {
        page: PageId::of_volume(VolumeId(2)),
        previous: Stamp::ZERO,
        stored: StoredPage { version: Stamp(9), image: None },
    };
    let gone = |left| DeletedVolume {
        id: VolumeId(2),
        name: "two".into(),
        page_bytes: 4096,
        stamp: Stamp(9),
        left,
    };
    let removes = |left, pages, removed| {
        let mut batch = InstallBatch { removed, ..batch(pages) };
        (batch.meta.volumes, batch.meta.deleted) = (Vec::new(), vec![gone(left)]);
        batch
    };
    let first = removes(Some(2), vec![mark], vec![(page(1), Stamp(4))]);
    pages.install(&first).expect("the model does not fail");
    assert!(pages.rot(page(2), 77), "nobody will read it");
    let report = checked(&disk, &pages);
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!((report.removing, report.left, report.pages), (1, 2, 0));
    // The version of a page could not be read when it was removed: its entry of the index stays.
    let last = removes(None, Vec::new(), vec![(page(2), Stamp(1)), (page(3), Stamp(6))]);
    pages.install(&last).expect("the model does not fail");
    let report = checked(&disk, &pages);
    assert_eq!((report.removing, report.left), (0, 0));
    assert_eq!(report.problems, [Problem::Superseded { page: page(2), stamp: Stamp(5) }]);
}

#[test]
fn a_rotten_image_is_named() {
    let (disk, pages) = store();
    assert!(pages.rot(page(2), 77));
    let report = checked(&disk, &pages);
    assert!(
        matches!(report.problems[..], [Problem::Page { page: found, .. }] if found == page(2)),
        "{:?}",
        report.problems
    );
}

#[test]
fn an_index_that_does_not_match_is_named() {
    let (disk, pages) = store();
    // The previous version is given wrongly: the old entry stays.
    let wrong = batch(vec![installed(1, 3, 7)]);
    pages.install(&wrong).expect("the model does not fail");
    let stale = Problem::Superseded { page: page(1), stamp: Stamp(4) };
    assert_eq!(checked(&disk, &pages).problems, [stale]);
    // A batch names another page's entry as superseded: that page's last change is lost.
    let (disk, pages) = store();
    let mut wrong = batch(vec![installed(1, 4, 7)]);
    wrong.pages[0].stored.version = Stamp(4);
    wrong.pages[0].previous = Stamp(4);
    pages.install(&wrong).expect("the model does not fail");
    assert!(checked(&disk, &pages).is_clean());
    let mut foreign = batch(vec![installed(1, 4, 8)]);
    foreign.pages[0].page.volume = VolumeId(77);
    pages.install(&foreign).expect("the model does not fail");
    let mut lost = foreign.pages[0].page;
    lost.page = PageNo(1);
    assert_eq!(checked(&disk, &pages).problems, [Problem::NoVolume { page: lost }]);
}

/// A page restored from an older copy: both stamps are named.
#[test]
fn a_page_that_is_not_the_one_last_installed_is_named() {
    let (disk, pages) = store();
    let copy = ModelPages::clone(&pages);
    pages.install(&batch(vec![installed(1, 4, 7)])).expect("the model does not fail");
    pages.restore_page(page(1), &copy);
    let (page, version, stamp) = (page(1), Stamp(4), Stamp(7));
    let expected = [Problem::Superseded { page, stamp }, Problem::NotIndexed { page, version }];
    let mut found = checked(&disk, &pages).problems;
    found.sort_by_key(|problem| matches!(problem, Problem::NotIndexed { .. }));
    assert_eq!(found, expected);
}

#[test]
fn rot_in_what_is_kept_apart_is_named() {
    let (disk, pages) = store();
    let changes = vec![(Stamp(10), larder_core::commit::Op::DeletePage)];
    let mut batch = batch(Vec::new());
    batch.apart = vec![larder_core::record::Apart { page: page(2), changes }];
    pages.install(&batch).expect("the model does not fail");
    assert!(checked(&disk, &pages).is_clean());
    pages.rot_apart(page(2));
    let report = checked(&disk, &pages);
    assert!(matches!(report.problems[..], [Problem::Pages(_)]), "{:?}", report.problems);
}

#[test]
fn a_damaged_log_is_named() {
    let (disk, pages) = store();
    disk.alter("log-0000000000000001.seg", |bytes| bytes[20] ^= 1);
    let report = checked(&disk, &pages);
    assert!(matches!(report.problems[..], [Problem::Log(_)]), "{:?}", report.problems);
}

#[test]
fn a_directory_is_checked_and_an_empty_one_is_not_touched() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let refused = check_directory(place.path(), &mut |_| {});
    assert_eq!(refused, Err(OpenError::NoDomain));
    let left = std::fs::read_dir(place.path()).expect("it is there").count();
    assert_eq!(left, 0);
    let mut config = StoreConfig::default();
    config.log.segment_bytes = 8192;
    let made = RealStore::create_at(place.path(), &config, DOMAIN, Rng::new(1));
    drop(made.expect("nothing is there"));
    let report = check_directory(place.path(), &mut |_| {}).expect("it opens");
    assert!(report.is_clean(), "{:?}", report.problems);
}
