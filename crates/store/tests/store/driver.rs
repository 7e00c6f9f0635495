//! The driver: a domain's store from creation through crashes, as the origin machine drives it.

use larder_core::commit::{Op, PageKind, Write};
use larder_core::id::{BootId, CommitId, DomainId, PageId, PageNo, Stamp, VolumeId};
use larder_core::machine::Faults;
use larder_core::origin::io::{
    LoadId, LoadKey, Loaded, OriginInput, OriginOutput, StoreFault, WriteId,
};
use larder_core::record::{
    DomainMeta, InstallBatch, InstalledPage, LogRecord, Lsn, StoredPage, VolumeMeta,
};
use larder_core::rng::Rng;
use larder_core::time::WallTime;
use larder_store::disk::{Disk, RealDisk};
use larder_store::driver::{DomainStore, OpenError, Recovered, domain_of, read_list, write_list};
use larder_store::log::{LogConfig, LogError};
use larder_store::pages::{FjallConfig, FjallPages, ModelPages, Pages};
use larder_store::testing::FaultDisk;
use std::sync::Arc;

const DOMAIN: DomainId = DomainId(0xd0);

fn config() -> LogConfig {
    LogConfig { segment_bytes: 16 << 10, reserve_bytes: 0, ..LogConfig::default() }
}

fn page(number: u64) -> PageId {
    PageId { volume: VolumeId(5), page: PageNo(number) }
}

fn commit(stamp: u64) -> (Lsn, LogRecord) {
    let writes = vec![
        Write { page: page(stamp), op: Op::CreatePage(PageKind::Raw) },
        Write {
            page: page(stamp),
            op: Op::WriteRaw { offset: 0, bytes: vec![stamp as u8; 2000].into() },
        },
    ];
    let record = LogRecord::Commit {
        stamp: Stamp(stamp),
        id: CommitId { boot: BootId(9), sequence: stamp },
        time: WallTime(1),
        grown: Vec::new(),
        writes,
        decided: None,
    };
    (Lsn(stamp), record)
}

fn append(from: u64, to: u64) -> OriginOutput {
    OriginOutput::Append {
        domain: DOMAIN,
        write: WriteId(from),
        records: (from..=to).map(commit).collect(),
    }
}

fn meta(installed: u64) -> DomainMeta {
    DomainMeta {
        domain: DOMAIN,
        installed_lsn: Lsn(installed),
        installed: Stamp(installed),
        epochs: Vec::new(),
        deleted: Vec::new(),
        volumes: vec![VolumeMeta {
            id: VolumeId(5),
            name: "five".into(),
            page_bytes: 4096,
            next_page: PageNo(100),
            version: Stamp(installed),
            pages: installed,
            bytes: 0,
            settings: larder_core::record::VolumeSettings::default(),
            given: Vec::new(),
        }],
        boots: Vec::new(),
        decided: Vec::new(),
    }
}

fn install(from: u64, to: u64) -> OriginOutput {
    let pages = (from..=to).map(|stamp| InstalledPage {
        page: page(stamp),
        previous: Stamp::ZERO,
        stored: StoredPage { version: Stamp(stamp), image: Some(vec![stamp as u8; 2000].into()) },
    });
    OriginOutput::Install {
        domain: DOMAIN,
        write: WriteId(1000 + from),
        batch: InstallBatch { pages: pages.collect(), meta: meta(to), ..InstallBatch::default() },
    }
}

fn is_done(input: Option<OriginInput>) -> bool {
    match input {
        Some(OriginInput::Appended { result, .. } | OriginInput::Installed { result, .. }) => {
            result.is_ok()
        }
        other => panic!("not an answer to a write: {other:?}"),
    }
}

fn create<D: Disk, P: Pages>(disk: D, pages: P) -> DomainStore<D, P> {
    let (store, recovered) = DomainStore::create(disk, pages, config(), DOMAIN, Rng::new(1))
        .expect("nothing fails here");
    assert_eq!(recovered.meta, DomainMeta { domain: DOMAIN, ..DomainMeta::default() });
    assert_eq!(recovered.records, []);
    store
}

fn open<D: Disk, P: Pages>(disk: D, pages: P) -> Result<(DomainStore<D, P>, Recovered), OpenError> {
    DomainStore::open(disk, pages, config(), Rng::new(2))
}

/// A life of a store, the same on every disk and engine.
fn live<D: Disk, P: Pages>(store: &mut DomainStore<D, P>) {
    assert!(is_done(store.carry_out(append(1, 10))));
    assert!(is_done(store.carry_out(append(11, 20))));
    assert!(is_done(store.carry_out(install(1, 15))));
    let trim = OriginOutput::TrimLog { domain: DOMAIN, through: Lsn(15) };
    assert_eq!(store.carry_out(trim), None);
    assert!(is_done(store.carry_out(append(21, 22))));
}

/// What must be found after it.
fn check<D: Disk, P: Pages>(store: &mut DomainStore<D, P>, recovered: &Recovered) {
    assert_eq!(recovered.meta, meta(15));
    let expected: Vec<_> = (16..=22).map(commit).collect();
    assert_eq!(recovered.records, expected);
    let load = |key| OriginOutput::Load { domain: DOMAIN, load: LoadId(3), key };
    let loaded = |result| Some(OriginInput::Loaded { domain: DOMAIN, load: LoadId(3), result });
    let stored = StoredPage { version: Stamp(15), image: Some(vec![15; 2000].into()) };
    let found = store.carry_out(load(LoadKey::Page(page(15))));
    assert_eq!(found, loaded(Ok(Loaded::Page(Some(stored)))));
    let found = store.carry_out(load(LoadKey::Page(page(16))));
    assert_eq!(found, loaded(Ok(Loaded::Page(None))));
    let changed = LoadKey::ChangedAfter { after: (Stamp(12), page(u64::MAX)), limit: 2 };
    let entries = vec![(Stamp(13), page(13)), (Stamp(14), page(14))];
    let more = true;
    let found = store.carry_out(load(changed));
    assert_eq!(found, loaded(Ok(Loaded::Changed { entries, more })));
}

#[test]
fn a_store_in_memory_comes_back_after_a_crash() {
    let disk = FaultDisk::default();
    let pages = Arc::new(ModelPages::new(Faults::NONE));
    let mut store = create(disk.clone(), Arc::clone(&pages));
    live(&mut store);
    pages.answered();
    pages.crash(true);
    let disk = disk.reboot(&mut Rng::new(3));
    let (mut store, recovered) = open(disk, pages).expect("nothing is wrong");
    check(&mut store, &recovered);
}

#[test]
fn a_store_of_files_comes_back_after_its_process() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let real = || RealDisk::open(place.path()).expect("it is ours");
    let fjall = || {
        FjallPages::open(place.path().join("pages"), &FjallConfig::default()).expect("it is ours")
    };
    let mut store = create(real(), fjall());
    live(&mut store);
    drop(store);
    let (mut store, recovered) = open(real(), fjall()).expect("nothing is wrong");
    check(&mut store, &recovered);
}

/// The story: the process dies after an install has reached the page engine and before its answer
/// has reached the origin. The engine may have it or not; the log must serve either.
#[test]
fn an_install_that_was_not_answered_is_there_or_not_and_either_is_whole() {
    for forget in [false, true] {
        let disk = FaultDisk::default();
        let pages = Arc::new(ModelPages::new(Faults::NONE));
        let mut store = create(disk.clone(), Arc::clone(&pages));
        assert!(is_done(store.carry_out(append(1, 3))));
        assert!(is_done(store.carry_out(install(1, 2))));
        pages.answered();
        assert!(is_done(store.carry_out(install(3, 3))));
        pages.crash(forget);
        let (_, recovered) = open(disk, pages).expect("nothing is wrong");
        let installed = if forget { 2 } else { 3 };
        assert_eq!(recovered.meta, meta(installed));
        let expected: Vec<_> = (installed + 1..=3).map(commit).collect();
        assert_eq!(recovered.records, expected);
    }
}

/// The story: the pages are restored from last week's backup and the log is today's.
#[test]
fn pages_restored_from_an_old_copy_are_refused() {
    let disk = FaultDisk::default();
    let pages = Arc::new(ModelPages::new(Faults::NONE));
    let mut store = create(disk.clone(), Arc::clone(&pages));
    let old = ModelPages::clone(&pages);
    live(&mut store);
    let refused = open(disk.clone(), old).map(|_| ()).expect_err("records are missing");
    assert!(matches!(refused, OpenError::Log(LogError::Gap { .. })), "{refused}");
    // The other way round: the log is the old one.
    let other = FaultDisk::default();
    drop(create(other.clone(), ModelPages::new(Faults::NONE)));
    let refused = open(other, pages).map(|_| ()).expect_err("records are missing");
    assert!(matches!(refused, OpenError::Log(LogError::Behind { .. })), "{refused}");
}

#[test]
fn a_directory_says_what_it_is() {
    let disk = FaultDisk::default();
    assert_eq!(domain_of(&disk), Ok(None));
    let refused = open(disk.clone(), ModelPages::default()).map(|_| ());
    assert_eq!(refused, Err(OpenError::NoDomain));
    drop(create(disk.clone(), ModelPages::default()));
    assert_eq!(domain_of(&disk), Ok(Some(DOMAIN)));
    let again = DomainStore::create(
        disk.clone(),
        ModelPages::default(),
        config(),
        DomainId(1),
        Rng::new(1),
    );
    assert_eq!(again.map(|_| ()), Err(OpenError::Exists(DOMAIN)));
    // Pages of another domain.
    let pages = ModelPages::default();
    let batch = InstallBatch {
        meta: DomainMeta { domain: DomainId(1), ..DomainMeta::default() },
        ..InstallBatch::default()
    };
    pages.install(&batch).expect("the model does not fail");
    let refused = open(disk.clone(), pages.clone()).map(|_| ());
    let expected = OpenError::OtherDomain { found: DomainId(1), wanted: DOMAIN };
    assert_eq!(refused, Err(expected));
    let empty = FaultDisk::default();
    let refused = DomainStore::create(empty, pages, config(), DOMAIN, Rng::new(1));
    assert_eq!(refused.map(|_| ()), Err(OpenError::PagesInUse(DomainId(1))));
}

#[test]
fn an_unfinished_creation_is_begun_anew() {
    for point in 0..20 {
        for seed in 0..10 {
            let disk = FaultDisk::default();
            disk.crash_after(point);
            let made = DomainStore::create(
                disk.clone(),
                ModelPages::default(),
                config(),
                DOMAIN,
                Rng::new(1),
            );
            let disk = disk.reboot(&mut Rng::new(seed));
            let found = domain_of(&disk).expect("whole or not there");
            assert!(made.is_err() || found == Some(DOMAIN), "point {point}");
            if found.is_none() {
                drop(create(disk.clone(), ModelPages::default()));
            }
            open(disk, ModelPages::default()).expect("there is a domain");
        }
    }
}

/// The list of domains keeps a start from making a missing one anew: a power cut in the middle of
/// replacing it must leave the old one or the new one.
#[test]
fn the_list_of_domains_is_the_old_or_the_new_one_after_a_power_cut() {
    let (old, new) = (vec![DOMAIN], vec![DOMAIN, DomainId(2)]);
    let mut kept = [false; 2];
    for point in 0..8 {
        for seed in 0..10 {
            let disk = FaultDisk::default();
            assert_eq!(read_list(&disk), Ok(None));
            write_list(&disk, &old).expect("no fault");
            disk.crash_after(point);
            let written = write_list(&disk, &new);
            let disk = disk.reboot(&mut Rng::new(seed));
            let found = read_list(&disk).expect("it is whole").expect("it is there");
            assert!(found == new || (written.is_err() && found == old), "point {point}: {found:?}");
            kept[usize::from(found == new)] = true;
            write_list(&disk, &new).expect("what was left over is replaced");
        }
    }
    assert_eq!(kept, [true; 2], "both are met");
}

#[test]
fn faults_of_the_store_are_told_apart() {
    let disk = FaultDisk::default();
    let pages = Arc::new(ModelPages::new(Faults::NONE));
    let mut store = create(disk.clone(), Arc::clone(&pages));
    let result = |input| match input {
        Some(OriginInput::Appended { result, .. } | OriginInput::Installed { result, .. }) => {
            result
        }
        other => panic!("not an answer to a write: {other:?}"),
    };
    disk.set_capacity(Some(disk.used()));
    let full = result(store.carry_out(append(1, 20)));
    assert!(matches!(full, Err(StoreFault::Full(_))), "{full:?}");
    disk.set_capacity(None);
    assert_eq!(result(store.carry_out(append(1, 20))), Ok(()));
    disk.fail_syncs(1);
    let failed = result(store.carry_out(append(21, 21)));
    assert!(matches!(failed, Err(StoreFault::Failed(_))), "{failed:?}");
    let failed = result(store.carry_out(append(21, 21)));
    assert!(matches!(failed, Err(StoreFault::Failed(_))), "{failed:?}");
    pages.fail_next(larder_store::pages::PagesError::Full { place: "here".into() });
    let full = result(store.carry_out(install(1, 1)));
    assert!(matches!(full, Err(StoreFault::Full(_))), "{full:?}");
}

#[test]
fn a_second_process_is_kept_out() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let first = RealDisk::open(place.path()).expect("it is ours");
    let second = RealDisk::open(place.path()).expect_err("it is the first one's");
    assert!(second.to_string().contains("another process"), "{second}");
    drop(first);
    RealDisk::open(place.path()).expect("it is free again");
}
