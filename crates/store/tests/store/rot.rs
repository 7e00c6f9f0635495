//! Rot in the page engine's own files, and what it costs: the page that it is in.

use larder_core::id::{PageId, PageNo, Stamp, VolumeId};
use larder_core::record::{DomainMeta, InstallBatch, InstalledPage, StoredPage};
use larder_store::pages::{FjallConfig, FjallPages, Pages, PagesError};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const VOLUME: VolumeId = VolumeId(1);
const PAGES: u64 = 2000;
const IMAGE_BYTES: usize = 4096;
/// Begins every image, and is followed by its page's number.
const BEGIN: &[u8; 8] = b"an image";

fn open(place: &Path) -> FjallPages {
    let config = FjallConfig {
        cache_bytes: 1 << 20,
        memtable_bytes: 1 << 20,
        threads: 2,
        ..FjallConfig::default()
    };
    FjallPages::open(place, &config).expect("it is whole")
}

fn page(number: u64) -> PageId {
    PageId { volume: VOLUME, page: PageNo(number) }
}

/// What a test installs, and knows of it.
#[derive(Default)]
struct Writer {
    last: Stamp,
    versions: BTreeMap<u64, Stamp>,
}

impl Writer {
    fn install(&mut self, pages: &FjallPages, numbers: impl Iterator<Item = u64>) {
        let numbers: Vec<u64> = numbers.collect();
        for numbers in numbers.chunks(128) {
            let mut batch = InstallBatch::default();
            for number in numbers {
                self.last = self.last.next();
                let mut image = [&BEGIN[..], &number.to_le_bytes()].concat();
                image.resize(IMAGE_BYTES, self.last.0 as u8);
                let stored = StoredPage { version: self.last, image: Some(image.into()) };
                let previous = self.versions.insert(*number, self.last).unwrap_or_default();
                batch.pages.push(InstalledPage { page: page(*number), previous, stored });
            }
            batch.meta = DomainMeta { installed: self.last, ..DomainMeta::default() };
            pages.install(&batch).expect("a bad page is no fault of the others");
        }
    }

    /// Every page is what was installed last, or, if it rotted, an error that names it.
    fn check(&self, pages: &FjallPages, rotten: &BTreeSet<u64>) {
        for (number, version) in &self.versions {
            let found = pages.load(page(*number));
            if rotten.contains(number) {
                let named = format!("page {}", page(*number));
                let told =
                    matches!(&found, Err(PagesError::Damaged { what, .. }) if *what == named);
                assert!(told, "{number}: {found:?}");
            } else {
                let found = found.expect("no fault").expect("it is there");
                assert_eq!(found.version, *version, "{number}");
            }
        }
    }
}

/// Flips a byte of these pages' images, as many of them as are in files of images by now.
fn rot(place: &Path, mut is_one: impl FnMut(u64) -> bool) -> BTreeSet<u64> {
    let mut rotten = BTreeSet::new();
    for keyspace in std::fs::read_dir(place.join("keyspaces")).expect("it is there") {
        let blobs = keyspace.expect("it is there").path().join("blobs");
        let Ok(blobs) = std::fs::read_dir(blobs) else { continue };
        for blob in blobs {
            let blob = blob.expect("it is there").path();
            let bytes = std::fs::read(&blob).expect("it is there");
            let file = std::fs::File::options().write(true).open(&blob).expect("it is ours");
            for at in 0..bytes.len() - 16 {
                if bytes[at] != BEGIN[0] || bytes[at..at + 8] != BEGIN[..] {
                    continue;
                }
                let number = bytes[at + 8..at + 16].try_into().expect("eight bytes");
                let number = u64::from_le_bytes(number);
                if is_one(number) && rotten.insert(number) {
                    file.write_all_at(&[bytes[at + 99] ^ 1], at as u64 + 99).expect("it is ours");
                }
            }
        }
    }
    rotten
}

/// Has all that is held in memory written to files, for good: else how much of it is depends on threads.
fn write_out(place: &Path) {
    open(place).give_back().expect("nothing is in the way");
}

/// The files of images, and their lengths.
fn blobs(place: &Path) -> BTreeMap<PathBuf, u64> {
    let keyspaces = std::fs::read_dir(place.join("keyspaces")).expect("it is there");
    let folders =
        keyspaces.filter_map(|place| std::fs::read_dir(place.ok()?.path().join("blobs")).ok());
    let files = folders.flatten().map(|file| file.expect("it is there"));
    files.map(|file| (file.path(), file.metadata().expect("it is there").len())).collect()
}

/// The story: a bit of a page's image flipped. The page was answered as damaged and all else was served,
/// until enough images around it had been replaced: the engine then moved what was left out of that file,
/// in the background, met the bad image, and took nothing more (`Poisoned`). All volumes of the domain were out
/// of service, and again right after every start.
#[test]
fn images_that_rot_end_nothing_in_the_background() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let mut writer = Writer::default();
    writer.install(&open(place.path()), 1..=PAGES);
    write_out(place.path());
    let is_kept = |number: u64| number.is_multiple_of(3);
    let rotten = rot(place.path(), |number| is_kept(number) && number.is_multiple_of(5));
    assert!(rotten.len() > 50, "few images are in files: {}", rotten.len());
    for _start in 0..2 {
        let pages = open(place.path());
        for _round in 0..6 {
            writer.install(&pages, (1..=PAGES).filter(|number| !is_kept(*number)));
        }
        writer.check(&pages, &rotten);
    }
}

/// As above, in what gives space back: an image that nothing refers to any more and that rotted is nobody's
/// loss; one that is in use stays, with its file, and all others are moved.
///
/// This test once found more bytes after than before, on a slow machine: how many images a file gets depends on
/// the engine's threads, and those with a bad one, which stay, held most of all. Now each of ten files is written
/// on its own.
#[test]
fn images_that_rot_are_left_where_they_are_when_space_is_given_back() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let mut writer = Writer::default();
    for first in (1..=PAGES).step_by(200) {
        writer.install(&open(place.path()), first..first + 200);
        write_out(place.path());
    }
    let made = blobs(place.path());
    assert_eq!(made.len(), 10, "{made:?}");
    let is_kept = |number: u64| number.is_multiple_of(3);
    let mut rotten = rot(place.path(), |number| [300, 601, 900].contains(&number));
    assert_eq!(rotten.len(), 3);
    rotten.retain(|number| is_kept(*number));
    let pages = open(place.path());
    writer.install(&pages, (1..=PAGES).filter(|number| !is_kept(*number)));
    assert_eq!(pages.owes_space(), Ok(false), "it is little; and all is in files now");
    let before = blobs(place.path());
    for _ in 0..2 {
        pages.give_back().expect("rot is no reason");
        writer.check(&pages, &rotten);
    }
    drop(pages);
    let pages = open(place.path());
    let after = blobs(place.path());
    let left = made.keys().filter(|file| after.contains_key(*file)).count();
    assert_eq!(left, rotten.len(), "only files with an image that cannot be moved are left");
    let [before, after] = [before, after].map(|files| files.values().sum::<u64>());
    assert!(after < before, "before {before}, after {after}");
    writer.check(&pages, &rotten);
}

/// A store that an earlier version made kept what the engine had been told then.
#[test]
fn a_store_of_an_earlier_version_moves_no_images_in_the_background_either() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let separated = || {
        let separation = fjall::KvSeparationOptions::default().separation_threshold(1024);
        let separation = separation.compression(fjall::CompressionType::None);
        fjall::KeyspaceCreateOptions::default().with_kv_separation(Some(separation))
    };
    let moved_part = |keyspace: &fjall::Keyspace| {
        keyspace.config.kv_separation_opts.as_ref().map(|options| options.age_cutoff)
    };
    {
        let database = fjall::Database::builder(place.path()).open().expect("it is new");
        for name in ["pages", "apart"] {
            let keyspace = database.keyspace(name, separated).expect("it is new");
            assert_eq!(moved_part(&keyspace), Some(0.25));
        }
        let plain = fjall::KeyspaceCreateOptions::default;
        drop(["index", "meta"].map(|name| database.keyspace(name, plain).expect("it is new")));
    }
    let mut writer = Writer::default();
    for _start in 0..2 {
        let pages = open(place.path());
        writer.install(&pages, 1..=PAGES);
        writer.check(&pages, &BTreeSet::new());
    }
    let database = fjall::Database::builder(place.path()).open().expect("it is ours");
    for name in ["pages", "apart"] {
        let keyspace = database.keyspace(name, separated).expect("it is there");
        assert_eq!(moved_part(&keyspace), Some(0.0), "{name}");
    }
}

/// The story: a page of a volume rotted, and the volume was deleted, as the operator's guide says, once all else
/// of it was restored elsewhere. The list of what is to be removed failed at that page, for good: nothing of
/// the volume was removed any more, and nothing of those that were deleted after it.
#[test]
fn a_page_that_rotted_is_removed_like_any_other() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let mut writer = Writer::default();
    writer.install(&open(place.path()), 1..=PAGES);
    write_out(place.path());
    let rotten = rot(place.path(), |number| number % 50 == 7);
    assert!(rotten.len() > 9, "few images are in files: {}", rotten.len());
    let pages = open(place.path());
    let mut removed_pages = 0;
    loop {
        let removed = pages.removable(VOLUME, PageNo(0), 512).expect("rot is no reason");
        for (page, version) in &removed {
            let known = writer.versions[&page.page.0];
            let expected = if rotten.contains(&page.page.0) { Stamp::ZERO } else { known };
            assert_eq!(*version, expected, "{page}");
        }
        if removed.is_empty() {
            break;
        }
        removed_pages += removed.len() as u64;
        let meta = DomainMeta { installed: writer.last, ..DomainMeta::default() };
        let batch = InstallBatch { removed, meta, ..InstallBatch::default() };
        pages.install(&batch).expect("there is room");
    }
    assert_eq!(removed_pages, PAGES);
    for number in rotten {
        assert_eq!(pages.load(page(number)), Ok(None), "{number}");
    }
}
