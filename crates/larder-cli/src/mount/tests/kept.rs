//! What the kernel keeps of listings and of files that it opens without a message.

use super::*;
use larder::metrics::Asked;
use std::collections::BTreeSet;

fn names(path: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(path).expect("it works");
    let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("it works").file_name();
    entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect()
}

/// The same by a handle that is held open, without opening anything anew.
fn names_by(held: &fs::File) -> BTreeSet<String> {
    rustix::fs::seek(held, rustix::fs::SeekFrom::Start(0)).expect("it works");
    let mut buffer = vec![std::mem::MaybeUninit::uninit(); 32 << 10];
    let mut entries = rustix::fs::RawDir::new(held, &mut buffer);
    let mut names = BTreeSet::new();
    while let Some(entry) = entries.next() {
        let entry = entry.expect("it works");
        names.insert(entry.file_name().to_string_lossy().into_owned());
    }
    names.retain(|name| name != "." && name != "..");
    names
}

/// A part of a listing was on its way to a program when a name changed and the listing was taken back:
/// the kernel put the old part to what it keeps after that, the parts of later to it, and showed the
/// whole to everybody for as long as attributes are believed.
#[test]
fn a_part_on_its_way_when_a_listing_is_taken_back_is_not_kept() {
    use super::super::known::{Concern, TakeBack};
    let ttl = Duration::from_secs(60);
    let (mut known, number, now) = known_file();
    let (mut early, mut late) = (0, 0);
    let tell = |known: &mut Known, first: bool, drops: &mut u64| {
        known.tell_listing(known.position(), number, ttl, (first, drops))
    };
    let change = |known: &mut Known| {
        let concerns = known.change(&[(PageNo(9), Target::Slot(larder::core::id::Slot(4)))]);
        let [Concern::Inode { told, .. }] = &concerns[..] else { panic!("{concerns:?}") };
        assert_eq!(known.take_back(number, told, Some(&now)), TakeBack::All);
    };
    // Nothing happens: it is kept.
    assert!(!known.open_listing(number, ttl / 2));
    assert!(!tell(&mut known, true, &mut early) && !tell(&mut known, false, &mut early));
    assert!(known.open_listing(number, ttl / 2));
    // It is taken back after the first part of one was told.
    assert!(!tell(&mut known, true, &mut early));
    change(&mut known);
    assert!(tell(&mut known, false, &mut early), "the kernel may have it");
    assert!(!known.open_listing(number, ttl / 2), "nor is it shown");
    // The same, and somebody else begins in between.
    assert!(!tell(&mut known, true, &mut early));
    change(&mut known);
    assert!(!known.open_listing(number, ttl / 2));
    assert!(!tell(&mut known, true, &mut late));
    assert!(tell(&mut known, false, &mut early));
    assert!(tell(&mut known, false, &mut late), "some of it may be the other's");
    assert!(!known.open_listing(number, ttl / 2));
    // A change that is heard of while a part is read.
    let position = known.position();
    known.change(&[(PageNo(9), Target::Slot(larder::core::id::Slot(4)))]);
    assert!(!known.tell_listing(position, number, ttl, (true, &mut early)));
    assert!(tell(&mut known, false, &mut early));
}

/// Every opening of a directory listed it anew, and warm `find` took three times as long as on local
/// disk. What is kept must be taken back by changes that the kernel could not tell by the directory's
/// time: another site's clock may be ahead.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_listing_is_kept_until_a_name_in_it_changes() {
    let store = MemoryStore::new(PAGE_BYTES);
    let one = mount(&store, "listed-one").await;
    let two = mount(&store, "listed-two").await;
    let (a, b) = (one.path.join("d"), two.path.join("d"));
    let asked = two.mounted.shared.options.asked.clone();
    host(move || {
        fs::create_dir(&a).expect("it works");
        for number in 0..300 {
            fs::write(a.join(number.to_string()), "").expect("it works");
        }
        run(&format!("touch -d 2100-01-01T00:00:00Z {}", a.display()));
        eventually("all names", || names(&b).len() == 300);
        // Until what came of making it has been heard of.
        eventually("the kernel to ask no more", || {
            let before = asked.so_far(Asked::List);
            assert_eq!(names(&b).len(), 300);
            asked.so_far(Asked::List) == before
        });
        // A change of each kind, each seen by who opens it anew, and by who holds it open.
        let held = fs::File::open(&b).expect("it works");
        let changes: [(&str, &dyn Fn()); 5] = [
            ("a file made", &|| fs::write(a.join("new"), "").expect("it works")),
            ("one renamed", &|| fs::rename(a.join("new"), a.join("newer")).expect("it works")),
            ("a link", &|| fs::hard_link(a.join("newer"), a.join("link")).expect("it works")),
            ("one removed", &|| fs::remove_file(a.join("newer")).expect("it works")),
            ("a directory", &|| fs::create_dir(a.join("below")).expect("it works")),
        ];
        for (what, change) in changes {
            change();
            let wanted = names(&a);
            eventually(what, || names(&b) == wanted);
            eventually(&format!("{what}, by who holds it open"), || names_by(&held) == wanted);
        }
        let time = fs::metadata(&b).expect("it works").mtime();
        assert!(time > 4_000_000_000, "the time is as it was: {time}");
        // What the last change takes back may be on its way.
        let wanted = names(&b);
        eventually("the listing to be kept again", || {
            let before = asked.so_far(Asked::List);
            assert_eq!(names(&b), wanted);
            asked.so_far(Asked::List) == before
        });
        // And through this mount.
        fs::write(b.join("own"), "").expect("it works");
        assert!(names(&b).contains("own"));
    })
    .await;
    two.end().await;
    one.end().await;
}

/// Warm `grep -r` took ten times as long as on local disk: every file was asked for as it was opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_read_only_mount_opens_without_a_message() {
    let store = MemoryStore::new(PAGE_BYTES);
    let one = mount(&store, "opens-one").await;
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let two = mount_with(&store, "opens-two", options).await;
    let (a, b) = (one.path.clone(), two.path.clone());
    let asked = two.mounted.shared.options.asked.clone();
    host(move || {
        fs::write(a.join("f"), vec![b'a'; 9000]).expect("it works");
        fs::write(a.join("large"), vec![b'l'; 3 << 20]).expect("it works");
        eventually("the files", || {
            fs::read(b.join("f")).is_ok_and(|bytes| bytes == [b'a'; 9000])
                && fs::read(b.join("large")).is_ok_and(|bytes| bytes == vec![b'l'; 3 << 20])
        });
        let all = || [Asked::Open, Asked::Read, Asked::Commit].map(|what| asked.so_far(what));
        let before = all();
        for _ in 0..10 {
            assert_eq!(fs::read(b.join("f")).expect("it works"), [b'a'; 9000]);
        }
        assert_eq!(all(), before);
        assert!(before[0] <= 2, "two tried to open at once, at most: {before:?}");
        // What it keeps is taken back, also of who has it open.
        let open = fs::File::open(b.join("f")).expect("it works");
        fs::write(a.join("f"), vec![b'b'; 9000]).expect("it works");
        eventually("other bytes", || fs::read(b.join("f")).expect("it works") == [b'b'; 9000]);
        let mut byte = [0];
        open.read_exact_at(&mut byte, 8000).expect("it works");
        assert_eq!(&byte, b"b");
        open.sync_all().expect("there is nothing to do");
        fs::write(a.join("f.new"), "other").expect("it works");
        fs::rename(a.join("f.new"), a.join("f")).expect("it works");
        eventually("another file", || fs::read(b.join("f")).is_ok_and(|bytes| bytes == b"other"));
        let error = fs::write(b.join("x"), "").expect_err("it is read-only");
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    })
    .await;
    two.end().await;
    one.end().await;
}
