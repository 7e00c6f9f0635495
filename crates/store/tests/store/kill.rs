//! The real store under kill -9: a child process commits and says so; what it said is there.

use larder_core::commit::{Op, PageKind, Write};
use larder_core::id::{BootId, CommitId, DomainId, PageId, PageNo, Stamp, VolumeId};
use larder_core::origin::io::{LoadId, LoadKey, Loaded, OriginInput, OriginOutput, WriteId};
use larder_core::page::Page;
use larder_core::record::{
    DomainMeta, InstallBatch, InstalledPage, LogRecord, Lsn, StoredPage, VolumeMeta,
};
use larder_core::rng::Rng;
use larder_core::time::WallTime;
use larder_core::wire::META_FORMAT;
use larder_store::driver::{PAGES_NAME, RealStore, Recovered, StoreConfig};
use larder_store::log::LogConfig;
use larder_store::pages::{FjallConfig, FjallPages};
use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

const DOMAIN: DomainId = DomainId(0x4b);
const VOLUME: VolumeId = VolumeId(6);
const PLACE: &str = "LARDER_TEST_KILL_PLACE";
/// Commits behind the installed ones.
const LAG: u64 = 25;

fn config() -> StoreConfig {
    StoreConfig {
        log: LogConfig { segment_bytes: 64 << 10, reserve_bytes: 0, ..LogConfig::default() },
        pages: FjallConfig {
            cache_bytes: 1 << 20,
            memtable_bytes: 1 << 20,
            threads: 1,
            ..FjallConfig::default()
        },
    }
}

fn page(stamp: u64) -> PageId {
    PageId { volume: VOLUME, page: PageNo(stamp % 40 + 1) }
}

/// Content that tells its stamp.
fn content(stamp: u64) -> bytes::Bytes {
    vec![stamp as u8; 500 + (stamp % 7) as usize * 300].into()
}

fn record(stamp: u64) -> (Lsn, LogRecord) {
    let op = Op::WriteRaw { offset: 0, bytes: content(stamp) };
    let record = LogRecord::Commit {
        stamp: Stamp(stamp),
        id: CommitId { boot: BootId(1), sequence: stamp },
        time: WallTime(stamp),
        grown: Vec::new(),
        writes: vec![Write { page: page(stamp), op }],
        decided: None,
    };
    (Lsn(stamp), record)
}

fn image(stamp: u64) -> bytes::Bytes {
    let mut image = Page::empty(PageKind::Raw);
    let op = Op::WriteRaw { offset: 0, bytes: content(stamp) };
    image.apply(&op, 4096).expect("it fits");
    image.encode(page(stamp))
}

fn install(stamp: u64) -> OriginOutput {
    OriginOutput::Install {
        domain: DOMAIN,
        write: WriteId(stamp),
        batch: InstallBatch {
            pages: vec![InstalledPage {
                page: page(stamp),
                previous: Stamp(stamp.saturating_sub(40)),
                stored: StoredPage { version: Stamp(stamp), image: Some(image(stamp)) },
            }],
            meta: DomainMeta {
                domain: DOMAIN,
                installed_lsn: Lsn(stamp),
                installed: Stamp(stamp),
                volumes: vec![VolumeMeta {
                    id: VOLUME,
                    name: "six".into(),
                    page_bytes: 4096,
                    next_page: PageNo(41),
                    version: Stamp(stamp),
                    pages: stamp.min(40),
                    bytes: 0,
                    settings: larder_core::record::VolumeSettings::default(),
                    given: Vec::new(),
                }],
                ..DomainMeta::default()
            },
            ..InstallBatch::default()
        },
    }
}

/// The child: goes on from what it finds until it is killed. Told apart from an ordinary test run
/// by the variable.
#[test]
fn child() {
    let Some(place) = std::env::var_os(PLACE) else {
        return;
    };
    let (mut store, recovered) =
        RealStore::open_at(Path::new(&place), &config(), Rng::new(1)).expect("it is whole");
    let mut next = recovered.meta.installed.0 + recovered.records.len() as u64 + 1;
    let mut installed = recovered.meta.installed.0;
    let mut out = std::io::stdout();
    loop {
        let count = next % 4 + 1;
        let append = OriginOutput::Append {
            domain: DOMAIN,
            write: WriteId(next),
            records: (next..next + count).map(record).collect(),
        };
        let answer = store.carry_out(append);
        assert!(matches!(answer, Some(OriginInput::Appended { result: Ok(()), .. })));
        next += count;
        writeln!(out, "durable {}", next - 1).expect("the parent reads");
        while installed + LAG < next {
            installed += 1;
            let answer = store.carry_out(install(installed));
            assert!(matches!(answer, Some(OriginInput::Installed { result: Ok(()), .. })));
            let through = Lsn(installed);
            store.carry_out(OriginOutput::TrimLog { domain: DOMAIN, through });
        }
    }
}

/// Runs the child until it has said a number of commits, kills it, and returns the last one said.
fn run_and_kill(place: &Path, lines: usize) -> u64 {
    let mut child = Command::new(std::env::current_exe().expect("this is a process"))
        .args(["--exact", "kill::child", "--nocapture", "--test-threads=1"])
        .env(PLACE, place)
        .stdout(Stdio::piped())
        .spawn()
        .expect("this binary runs");
    let said = BufReader::new(child.stdout.take().expect("it is piped"));
    let mut durable = 0;
    let mut left = lines;
    for line in said.lines() {
        let line = line.expect("it is text");
        // The harness may have put its own words before the first one.
        if let Some(number) = line.split("durable ").nth(1) {
            durable = number.parse().expect("it is a number");
            left = left.saturating_sub(1);
            if left == 0 {
                child.kill().expect("it is ours");
            }
        }
    }
    let status = child.wait().expect("it is ours");
    assert!(left == 0, "the child ended by itself: {status}");
    durable
}

fn verify(store: &mut RealStore, recovered: &Recovered, durable: u64) {
    let installed = recovered.meta.installed.0;
    for ((lsn, found), stamp) in recovered.records.iter().zip(installed + 1..) {
        assert_eq!((*lsn, found.clone()), record(stamp));
    }
    let last = installed + recovered.records.len() as u64;
    assert!(last >= durable, "{last} recovered, {durable} answered");
    for stamp in installed.saturating_sub(39).max(1)..=installed {
        let answer = store.carry_out(OriginOutput::Load {
            domain: DOMAIN,
            load: LoadId(stamp),
            key: LoadKey::Page(page(stamp)),
        });
        let Some(OriginInput::Loaded { result: Ok(Loaded::Page(Some(stored))), .. }) = answer
        else {
            panic!("page of stamp {stamp}: {answer:?}");
        };
        assert_eq!(stored.version, Stamp(stamp));
        assert_eq!(stored.image, Some(image(stamp)));
    }
}

#[test]
fn what_a_killed_process_answered_is_there() {
    let place = tempfile::tempdir().expect("a directory for the test");
    drop(
        RealStore::create_at(place.path(), &config(), DOMAIN, Rng::new(1))
            .expect("nothing is there"),
    );
    let pages = FjallPages::open(place.path().join(PAGES_NAME), &config().pages);
    let format = pages.expect("it is whole").meta_format();
    assert_eq!(format, Ok(Some(META_FORMAT)), "older versions refuse it from the beginning");
    for round in 0..8 {
        let durable = run_and_kill(place.path(), 3 + round * 7);
        let (mut store, recovered) =
            RealStore::open_at(place.path(), &config(), Rng::new(2)).expect("nothing is wrong");
        verify(&mut store, &recovered, durable);
        drop(store);
        let report =
            larder_store::check::check_directory(place.path(), &mut |_| {}).expect("it opens");
        assert!(report.is_clean(), "{:?}", report.problems);
        assert!(report.pages > 0 || recovered.meta.installed == Stamp::ZERO);
    }
}
