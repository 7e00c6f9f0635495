//! What a mount remembers of what was made and is gone.

use super::*;
use larder::fs::KeptPart;

/// Entries of what is remembered for as long as it is there: inodes of the kernel's, and each part of the
/// tree's. Names are for as long as the kernel may believe them.
fn remembered(shared: &Shared<MemoryStore>) -> Vec<(&'static str, u64)> {
    let inodes = ("inodes", shared.known().inodes_kept().entries);
    let handles = ("handles", shared.handles().len() as u64);
    let parts = KeptPart::ALL.map(|part| (part.name(), shared.fs.kept(part).entries));
    [inodes, handles].into_iter().chain(parts).collect()
}

/// Files and directories that are made, read, listed, renamed, linked and removed, so many times.
fn come_and_go(path: &Path, rounds: usize) {
    for round in 0..rounds {
        let (d, e) = (path.join("d"), path.join("e"));
        fs::create_dir_all(d.join("below")).expect("it works");
        for name in ["f", "g", "below/h"] {
            fs::write(d.join(name), vec![b'x'; 100 + round * 50]).expect("it works");
            assert_eq!(fs::read(d.join(name)).expect("it works").len(), 100 + round * 50);
        }
        fs::hard_link(d.join("f"), d.join("below/f")).expect("it works");
        std::os::unix::fs::symlink("f", d.join("link")).expect("it works");
        assert_eq!(fs::read_dir(&d).expect("it works").count(), 4);
        assert!(fs::metadata(d.join("absent")).is_err());
        let held = fs::File::open(d.join("g")).expect("it works");
        fs::remove_file(d.join("g")).expect("it works");
        fs::rename(&d, &e).expect("it works");
        assert_eq!(held.metadata().expect("it works").len(), 100 + round as u64 * 50);
        drop(held);
        fs::remove_dir_all(&e).expect("it works");
    }
}

/// The memory of mounts rose in a soak, and nobody could say what for.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nothing_is_remembered_of_what_is_gone() {
    let store = MemoryStore::new(PAGE_BYTES);
    let one = mount(&store, "remembered").await;
    let (path, shared) = (one.path.clone(), one.mounted.shared.clone());
    host(move || {
        come_and_go(&path, 20);
        // Pages that are made ahead, a directory that is looked at last: as many however long it goes on.
        // What the kernel gives back, and what is freed, comes a little later.
        come_and_go(&path, 100);
        eventually("nothing is remembered", || {
            let most = |part: &str| match part {
                // Those that were left lately are to be looked at.
                "inode_pages" => 16 + 1 + 4 * 120,
                "walk" => 4,
                _ => 2,
            };
            remembered(&shared).iter().all(|(part, entries)| *entries <= most(part))
        });
    })
    .await;
    one.end().await;
}

/// A file that turned out to be another, and was told of anew, is kept by one page alone.
#[test]
fn an_inode_is_known_by_the_page_where_it_is() {
    let (mut known, number, _) = known_file();
    assert_eq!(known.becomes(file_of(4), file_of(6)), Some(number));
    let (ttl, place) = (Duration::from_secs(60), (PageNo(3), larder::core::id::Slot(77)));
    let again = told(file_of(4), 9);
    known.tell_name(known.position(), (1, b"f"), place, Some(&again), (ttl, Duration::ZERO));
    assert_eq!(known.numbers_like(file_of(6).number()), []);
    assert_eq!(known.numbers_like(file_of(4).number()), [(number, file_of(4))]);
    assert!(known.forget(number, 2));
    assert_eq!(known.inodes_kept().entries, 1, "the root");
}
