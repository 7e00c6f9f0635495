//! The page engines: the real one is held to what the model does.

use larder_core::commit::Op;
use larder_core::id::{DomainId, PageId, PageNo, Stamp, VolumeId};
use larder_core::machine::Faults;
use larder_core::record::{Apart, DomainMeta, InstallBatch, InstalledPage, Lsn, StoredPage};
use larder_store::pages::{FjallConfig, FjallPages, ModelPages, Pages, PagesError};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::Path;

const VOLUMES: [VolumeId; 2] = [VolumeId(1), VolumeId(u128::MAX)];

fn fjall(place: &Path) -> Result<FjallPages, PagesError> {
    let config = FjallConfig {
        cache_bytes: 1 << 20,
        memtable_bytes: 1 << 20,
        threads: 1,
        ..FjallConfig::default()
    };
    FjallPages::open(place, &config)
}

fn page(volume: usize, number: u64) -> PageId {
    PageId { volume: VOLUMES[volume], page: PageNo(number) }
}

/// A batch as an origin would make it: the pages' versions rise, the previous ones are known.
fn batch(
    versions: &mut BTreeMap<PageId, Stamp>,
    installed: &mut u64,
    pages: BTreeMap<PageId, Option<usize>>,
) -> InstallBatch {
    let mut batch = InstallBatch::default();
    for (page, image) in pages {
        *installed += 1;
        let version = Stamp(*installed);
        let image = image.map(|bytes| vec![*installed as u8; bytes].into());
        // Of some pages the changes are kept apart, until they are installed.
        if installed.is_multiple_of(3) {
            let write =
                |at| Op::WriteRaw { offset: at, bytes: vec![3; *installed as usize].into() };
            let changes =
                vec![(version, write(1)), (version, write(2)), (version.next(), write(3))];
            batch.apart.push(Apart { page, changes });
            continue;
        }
        let previous = versions.insert(page, version).unwrap_or_default();
        batch.joined.push(page);
        batch.pages.push(InstalledPage { page, previous, stored: StoredPage { version, image } });
    }
    batch.meta = DomainMeta {
        domain: DomainId(3),
        installed_lsn: Lsn(*installed),
        installed: Stamp(*installed),
        ..DomainMeta::default()
    };
    batch
}

fn same(real: &FjallPages, model: &ModelPages, versions: &BTreeMap<PageId, Stamp>) {
    assert_eq!(real.meta(), model.meta());
    assert_eq!(real.apart(), model.apart());
    for page in versions.keys() {
        assert_eq!(real.load(*page), model.load(*page));
    }
    assert_eq!(real.load(page(0, 999)), Ok(None));
    for after in [0, 3, 17] {
        for limit in [1, 5, 1000] {
            let from = (Stamp(after), page(1, 2));
            assert_eq!(real.changed_after(from, limit), model.changed_after(from, limit));
            for volume in VOLUMES {
                assert_eq!(
                    real.removable(volume, PageNo(after), limit),
                    model.removable(volume, PageNo(after), limit)
                );
                assert_eq!(
                    real.pages_of(volume, PageNo(after), limit),
                    model.pages_of(volume, PageNo(after), limit)
                );
            }
        }
    }
}

fn batches() -> impl Strategy<Value = Vec<BTreeMap<PageId, Option<usize>>>> {
    let id = (0..2usize, 1..20u64).prop_map(|(volume, number)| page(volume, number));
    let image = prop::option::weighted(0.9, prop_oneof![0..64usize, 1000..9000usize]);
    let pages = prop::collection::btree_map(id, image, 1..8);
    prop::collection::vec(pages, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn fjall_does_what_the_model_does(batches in batches(), reopen in 0..12usize) {
        let place = tempfile::tempdir().expect("a directory for the test");
        let model = ModelPages::new(Faults::NONE);
        let mut real = fjall(place.path()).expect("it is new");
        assert_eq!(real.meta(), Ok(None));
        let (mut versions, mut installed) = (BTreeMap::new(), 0);
        for (index, pages) in batches.into_iter().enumerate() {
            let batch = batch(&mut versions, &mut installed, pages);
            assert_eq!(real.install(&batch), Ok(()));
            assert_eq!(model.install(&batch), Ok(()));
            if index == reopen {
                drop(real);
                real = fjall(place.path()).expect("nothing is wrong");
            }
            same(&real, &model, &versions);
        }
        // Then the first volume is removed, a few pages at a time, and space is given back.
        loop {
            let removed = model.removable(VOLUMES[0], PageNo(0), 3).expect("no fault");
            if removed.is_empty() {
                break;
            }
            installed += 1;
            let mut batch = batch(&mut versions, &mut installed, BTreeMap::new());
            batch.removed = removed;
            assert_eq!(real.install(&batch), Ok(()));
            assert_eq!(model.install(&batch), Ok(()));
            same(&real, &model, &versions);
        }
        assert_eq!(real.give_back(), Ok(()));
        drop(real);
        same(&fjall(place.path()).expect("nothing is wrong"), &model, &versions);
    }

    /// The model forgets an unanswered install wholly or not at all, and a copy stays what it was.
    #[test]
    fn the_model_forgets_whole_installs(batches in batches(), forget in any::<bool>()) {
        let model = ModelPages::new(Faults::NONE);
        let (mut versions, mut installed) = (BTreeMap::new(), 0);
        for pages in batches {
            model.answered();
            let before = model.clone();
            let batch = batch(&mut versions, &mut installed, pages);
            assert_eq!(model.install(&batch), Ok(()));
            assert!(model.unanswered());
            let crashed = model.clone();
            crashed.crash(forget);
            let expected = if forget { &before } else { &model };
            assert_eq!(crashed.all(), expected.all());
            assert_eq!(crashed.meta(), expected.meta());
            assert_eq!(crashed.apart(), expected.apart());
            let from = (Stamp::ZERO, PageId::default());
            assert_eq!(
                crashed.changed_after(from, 1000),
                expected.changed_after(from, 1000)
            );
        }
    }
}

/// A volume of 64 MiB is removed beside another one: the files of the engine shrink to about what the
/// other one takes, which is untouched.
#[test]
fn the_space_of_a_removed_volume_is_given_back() {
    const PAGES: u64 = 4096;
    const PAGE_BYTES: usize = 16 << 10;
    let place = tempfile::tempdir().expect("a directory for the test");
    let real = fjall(place.path()).expect("it is new");
    let (mut versions, mut installed) = (BTreeMap::new(), 0);
    let mut fill = |volume: usize, pages: u64| {
        for first in (1..=pages).step_by(128) {
            let mut batch = InstallBatch::default();
            for number in first..first + 128 {
                installed += 1;
                let (page, version) = (page(volume, number), Stamp(installed));
                // Not to be compressed.
                let mut rng = larder_core::rng::Rng::new(installed);
                let words = (0..PAGE_BYTES / 8).flat_map(|_| rng.below(u64::MAX).to_le_bytes());
                let image = Some(words.collect::<Vec<u8>>().into());
                versions.insert(page, version);
                let stored = StoredPage { version, image };
                batch.pages.push(InstalledPage { page, previous: Stamp::ZERO, stored });
            }
            batch.meta = DomainMeta { installed: Stamp(installed), ..DomainMeta::default() };
            real.install(&batch).expect("there is room");
        }
    };
    fill(1, 512);
    fill(0, PAGES);
    real.give_back().expect("no fault");
    let before = real.disk_bytes().expect("no fault");
    let volume = PAGES * PAGE_BYTES as u64;
    assert!(before > volume, "{before}");
    let mut after = PageNo(0);
    loop {
        let removed = real.removable(VOLUMES[0], after, 512).expect("no fault");
        let Some((last, _)) = removed.last() else { break };
        after = last.page;
        let meta = DomainMeta { installed: Stamp(installed), ..DomainMeta::default() };
        let batch = InstallBatch { removed, meta, ..InstallBatch::default() };
        real.install(&batch).expect("there is room");
    }
    real.give_back().expect("no fault");
    let after = real.disk_bytes().expect("no fault");
    println!("before {before}, after {after} bytes, of a volume of {volume}");
    assert!(before - after > volume * 9 / 10, "before {before}, after {after}");
    for number in 1..=512 {
        let found = real.load(page(1, number)).expect("no fault").expect("it is there");
        assert_eq!(found.version, versions[&page(1, number)]);
    }
    assert_eq!(real.load(page(0, 1)), Ok(None));
}

#[test]
fn a_second_opening_of_the_engine_is_refused() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let _first = fjall(place.path()).expect("it is new");
    let second = fjall(place.path()).expect_err("it is the first one's");
    assert!(matches!(second, PagesError::Locked { .. }), "{second}");
}

/// The story: a page's image rotted; an operator put back that of an older backup, which checks. The
/// recovered changes were applied to it, and what was committed between the two was lost without a
/// word: the page was served and installed, and who held the right one was told that it is valid.
#[test]
fn a_page_from_an_older_backup_is_refused() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let model = ModelPages::new(Faults::NONE);
    let page = page(0, 7);
    let install = |version: u64, previous: u64| {
        let stored = StoredPage { version: Stamp(version), image: Some(vec![7; 2000].into()) };
        let installed = InstalledPage { page, previous: Stamp(previous), stored };
        InstallBatch { pages: vec![installed], ..InstallBatch::default() }
    };
    let raw = || {
        let database = fjall::Database::builder(place.path()).open().expect("it is ours");
        let pages = database.keyspace("pages", fjall::KeyspaceCreateOptions::default);
        (database, pages.expect("it is there"))
    };
    let mut key = page.volume.0.to_be_bytes().to_vec();
    key.extend(page.page.0.to_be_bytes());
    fjall(place.path()).expect("it is new").install(&install(7, 0)).expect("there is room");
    model.install(&install(7, 0)).expect("there is room");
    let copy = model.clone();
    let value = {
        let (_database, pages) = raw();
        pages.get(&key).expect("no fault").expect("it is there")
    };
    fjall(place.path()).expect("it is whole").install(&install(10, 7)).expect("there is room");
    model.install(&install(10, 7)).expect("there is room");
    assert_eq!(model.load(page), fjall(place.path()).expect("it is whole").load(page));
    {
        let (database, pages) = raw();
        pages.insert(&key, value).expect("no fault");
        database.persist(fjall::PersistMode::SyncAll).expect("no fault");
    }
    model.restore_page(page, &copy);
    let real = fjall(place.path()).expect("nothing is missing");
    for refused in [real.load(page), model.load(page)] {
        let older = matches!(
            refused,
            Err(PagesError::NotInstalled { page: named, version: Stamp(7), .. }) if named == page
        );
        assert!(older, "{refused:?}");
    }
}

/// The story: changes of one page that were kept apart rotted, and the whole domain did not start any
/// more; the offline check, which did not look at them, called its store clean.
#[test]
fn changes_kept_apart_that_rot_are_told_beside_others() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let kept = |number: u64| Apart {
        page: page(0, number),
        changes: vec![(Stamp(number), Op::WriteRaw { offset: 1, bytes: vec![3; 9].into() })],
    };
    let batch = InstallBatch { apart: vec![kept(7), kept(8)], ..InstallBatch::default() };
    fjall(place.path()).expect("it is new").install(&batch).expect("there is room");
    let found = fjall(place.path()).expect("it is whole").apart();
    assert_eq!(found, Ok(vec![Ok(kept(7)), Ok(kept(8))]));
    {
        let database = fjall::Database::builder(place.path()).open().expect("it is ours");
        let apart = database.keyspace("apart", fjall::KeyspaceCreateOptions::default);
        let apart = apart.expect("it is there");
        let key = [&page(0, 7).volume.0.to_be_bytes()[..], &7u64.to_be_bytes()[..]].concat();
        let mut value = apart.get(&key).expect("no fault").expect("it is there").to_vec();
        *value.last_mut().expect("it has bytes") ^= 1;
        apart.insert(&key, value).expect("no fault");
        database.persist(fjall::PersistMode::SyncAll).expect("no fault");
    }
    let real = fjall(place.path()).expect("nothing is missing");
    let found = real.apart().expect("the others can be read");
    assert!(
        matches!(&found[..], [Err((named, _)), Ok(other)] if *named == page(0, 7) && *other == kept(8)),
        "{found:?}"
    );
}

/// All that an engine holds.
type State = (Option<DomainMeta>, BTreeMap<PageId, StoredPage>, Vec<(Stamp, PageId)>);

fn state(real: &FjallPages) -> Result<State, PagesError> {
    let mut pages = BTreeMap::new();
    for volume in VOLUMES {
        for page in real.pages_of(volume, PageNo(0), 1000)? {
            pages.extend(real.load(page)?.map(|stored| (page, stored)));
        }
    }
    let (index, _) = real.changed_after((Stamp::ZERO, PageId::default()), 1000)?;
    Ok((real.meta()?, pages, index))
}

/// Harms the engine's files, one at a time, and finds out what it then holds: the state after one
/// of its installs, whole, which the log goes on from or refuses; or an error. Says how often it
/// was an error, and how often an earlier state.
fn harmed(original: &Path, copy: &Path, states: &[State]) -> (usize, usize) {
    let (mut refused, mut earlier) = (0, 0);
    for (file, length) in files_of(original) {
        for (part, cut) in [(0, false), (1, false), (2, false), (3, false), (0, true), (2, true)] {
            let at = length * part / 4 + part;
            copy_tree(original, copy);
            if cut {
                let file = std::fs::File::options().write(true).open(copy.join(&file));
                file.and_then(|file| file.set_len(at as u64)).expect("it is ours");
            } else {
                flip(&copy.join(&file), at);
            }
            let found = std::panic::catch_unwind(|| state(&fjall(copy)?));
            let name = format!("{} byte {at}, cut {cut}", file.display());
            match found {
                Ok(Ok(found)) => {
                    let known = states.iter().position(|state| *state == found);
                    let known = known.unwrap_or_else(|| panic!("{name}: a state that never was"));
                    earlier += usize::from(known + 1 < states.len());
                }
                Ok(Err(_)) => refused += 1,
                Err(_) => panic!("{name}: a panic"),
            }
            std::fs::remove_dir_all(copy).expect("it is ours");
        }
    }
    (refused, earlier)
}

/// The story: the engine's journal rotted. The engine cut it off where it did not check, without a
/// word. Pages were in its tables by then, the change index and the metadata were not, or the other
/// way round: an engine with pages of one install and the metadata of another was opened as if it were
/// whole.
#[test]
fn rot_in_the_engines_files_is_an_earlier_install_or_an_error() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let original = place.path().join("original");
    let (mut versions, mut installed) = (BTreeMap::new(), 0);
    let mut states = Vec::new();
    {
        let real = fjall(&original).expect("it is new");
        states.push(state(&real).expect("it is whole"));
        for round in 0..9 {
            // Small ones at the end, so that some are in the journal alone.
            let bytes = if round < 6 { 60_000 } else { 100 };
            let pages = (1..9).map(|number| (page(0, number), Some(bytes + round)));
            let batch = batch(&mut versions, &mut installed, pages.collect());
            assert_eq!(real.install(&batch), Ok(()));
            states.push(state(&real).expect("it is whole"));
        }
    }
    // It cuts off the room of its journal that is not used: less to copy.
    drop(fjall(&original).expect("nothing is wrong"));
    let (refused, earlier) = harmed(&original, &place.path().join("copy"), &states);
    eprintln!("{refused} refused, {earlier} earlier");
    assert!(refused > 10, "the harm did no harm: {refused}");
}

/// As above, with journals that the engine keeps after it has begun another: one of them is cut
/// short, and what the next one holds is applied all the same, over a gap.
#[test]
fn a_gap_in_the_engines_journals_is_an_error() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let original = place.path().join("original");
    let (mut versions, mut installed) = (BTreeMap::new(), 0);
    {
        let (memtable_bytes, journals_bytes) = (16 << 20, 512 << 20);
        let config = FjallConfig { memtable_bytes, journals_bytes, ..FjallConfig::default() };
        let real = FjallPages::open(&original, &config).expect("it is new");
        // It begins another in the background, after 64 MB; some installs must be in that one.
        let mut left = 400;
        while left > 0 {
            let pages = (1..2).map(|number| (page(0, number), Some(1_000_000)));
            let batch = batch(&mut versions, &mut installed, pages.collect());
            assert_eq!(real.install(&batch), Ok(()));
            left = if journals(&original) > 1 { left.min(5) - 1 } else { left - 1 };
        }
    }
    let mut journals: Vec<_> = files_of(&original);
    journals.retain(|(name, _)| is_journal(name));
    assert!(journals.len() > 1, "there is one journal: {journals:?}");
    let (first, length) = &journals[0];
    let file = std::fs::File::options().write(true).open(original.join(first));
    file.and_then(|file| file.set_len(*length as u64 / 2)).expect("it is ours");
    let error = fjall(&original).expect_err("installs are missing");
    assert!(matches!(error, PagesError::Lost { .. }), "{error}");
}

/// A store had up to half a gigabyte of journals beside what it held: each waited for the keyspaces in which there was
/// little, which were written out after a thousand installs.
#[test]
fn journals_do_not_pile_up() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let (mut versions, mut installed) = (BTreeMap::new(), 0);
    let real = fjall(place.path()).expect("it is new");
    let mut most = 0;
    for _ in 0..80 {
        let pages = (1..7).map(|number| (page(0, number), Some(1_000_000)));
        let batch = batch(&mut versions, &mut installed, pages.collect());
        assert_eq!(real.install(&batch), Ok(()));
        most = most.max(journals(place.path()));
    }
    // 320 MB were written: five journals. One is sealed, and goes in the background while the next one is filled.
    assert!(most <= 3, "{most} journals");
}

fn is_journal(name: &Path) -> bool {
    name.extension().is_some_and(|end| end == "jnl")
}

fn journals(engine: &Path) -> usize {
    let entries = std::fs::read_dir(engine).expect("it is there").flatten();
    entries.filter(|entry| is_journal(&entry.path())).count()
}

fn files_of(root: &Path) -> Vec<(std::path::PathBuf, usize)> {
    let mut files = Vec::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).expect("it is there") {
            let entry = entry.expect("it is there");
            let path = entry.path();
            if path.is_dir() {
                open.push(path);
                continue;
            }
            // Journals are preallocated: only what is written counts.
            let bytes = std::fs::read(&path).expect("it is there");
            if let Some(last) = bytes.iter().rposition(|byte| *byte != 0) {
                let length = last + 1;
                let name = path.strip_prefix(root).expect("it is below");
                files.push((name.to_path_buf(), length));
            }
        }
    }
    files.sort();
    files
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("it is ours");
    for entry in std::fs::read_dir(from).expect("it is there") {
        let entry = entry.expect("it is there");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_tree(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).expect("it is ours");
        }
    }
}

fn flip(file: &Path, at: usize) {
    let mut bytes = std::fs::read(file).expect("it is there");
    let at = at.min(bytes.len() - 1);
    bytes[at] ^= 0x10;
    std::fs::write(file, bytes).expect("it is ours");
}
