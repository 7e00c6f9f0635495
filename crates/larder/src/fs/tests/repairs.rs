//! What `volume check` finds is made by raw transactions, one kind after another; `--repair` mends it,
//! and a second one changes nothing.

use super::super::check::{CheckOptions, CheckReport, Problem, check};
use super::super::record::{
    Content, Entry, Inode, TrieHeader, Xattrs, decode_entries, encode_entries,
};
use super::super::repair::{RepairReport, repair};
use super::super::trie::HEADER_SLOT;
use super::super::{Mode, Tx};
use super::*;
use larder_core::id::Generation;

async fn mend(fs: &Fs) -> RepairReport {
    repair(fs, &CheckOptions::default(), &mut |_| {}).await.expect("it works")
}

async fn look(fs: &Fs) -> CheckReport {
    check(fs, &CheckOptions::default(), &mut |_| {}).await.expect("it works")
}

/// One of the problems is this one, all are mended, and a second repair finds nothing to do.
async fn mended(store: &MemoryStore, wanted: impl Fn(&Problem) -> bool) -> Fs {
    // A node of its own: nothing that another one remembers helps it.
    let fs = open(store).await;
    let found = look(&fs).await;
    assert!(found.problems.iter().any(|found| wanted(&found.problem)), "{:#?}", found.problems);
    let report = mend(&fs).await;
    assert!(report.check.is_clean(), "{report:#?}");
    assert!(!report.repaired.is_empty());
    let again = mend(&fs).await;
    assert_eq!(again.repaired, [], "nothing is left to do");
    fs
}

/// The slot and its bytes that hold a name.
async fn place(fs: &Fs, directory: InodeId, name: &str) -> (PageNo, Slot, Generation, Vec<Entry>) {
    let (page, slot) = fs.lookup(directory, name.as_bytes()).await.expect("it works").place;
    let tx = fs.store.begin(Mode::Normal).await.expect("it works");
    let (generation, bytes) = tx.get(page, slot).await.expect("it works").expect("it is there");
    (page, slot, generation, decode_entries(&bytes).expect("names"))
}

async fn set_entries(fs: &Fs, at: (PageNo, Slot, Generation), entries: &[Entry]) {
    let tx = fs.store.begin(Mode::Normal).await.expect("it works");
    tx.put(at.0, at.1, at.2, encode_entries(entries)).await.expect("room");
    tx.commit().await.expect("nobody else writes");
}

async fn set_inode(fs: &Fs, id: InodeId, change: impl FnOnce(&mut Inode)) {
    let tx = fs.store.begin(Mode::Normal).await.expect("it works");
    let (_, bytes) = tx.get(id.page, id.slot).await.expect("it works").expect("it is there");
    let mut inode = Inode::decode(&bytes).expect("an inode");
    change(&mut inode);
    tx.put(id.page, id.slot, id.generation, inode.encode()).await.expect("room");
    tx.commit().await.expect("nobody else writes");
}

async fn delete(fs: &Fs, id: InodeId) {
    let tx = fs.store.begin(Mode::Normal).await.expect("it works");
    tx.delete(id.page, id.slot, id.generation).await.expect("it is there");
    tx.commit().await.expect("nobody else writes");
}

async fn put(fs: &Fs, page: PageNo, slot: Slot, bytes: Bytes) {
    let tx = fs.store.begin(Mode::Normal).await.expect("it works");
    match tx.get(page, slot).await.expect("it works") {
        Some((generation, _)) => tx.put(page, slot, generation, bytes).await.expect("room"),
        None => {
            tx.create(page, slot, bytes).await.expect("room");
        }
    }
    tx.commit().await.expect("nobody else writes");
}

async fn trie_page(fs: &Fs, id: InodeId) -> PageNo {
    fs.getattr(id).await.expect("it works").inode.trie().expect("a directory")
}

/// A tree with a directory `d`, in it files `a` and `b` and a directory `e` with a file `c`.
async fn planted() -> (MemoryStore, Fs, InodeId, [InodeId; 4]) {
    let (store, fs) = fresh().await;
    let d = make(&fs, fs.root(), "d", &directory()).await;
    let a = make(&fs, d, "a", &file()).await;
    let b = make(&fs, d, "b", &file()).await;
    let e = make(&fs, d, "e", &directory()).await;
    let c = make(&fs, e, "c", &file()).await;
    write_file(&fs, a, 0, b"the bytes of a").await;
    write_file(&fs, b, 0, &pattern(200_000, 2)).await;
    write_file(&fs, c, 0, b"the bytes of c").await;
    clean(&fs).await;
    (store, fs, d, [a, b, c, e])
}

async fn lost(fs: &Fs) -> Vec<String> {
    let directory = fs.lookup(fs.root(), b"lost+found").await.expect("it works").attr;
    names(fs, directory.expect("it was made").id).await
}

#[tokio::test]
async fn a_name_that_leads_nowhere_goes() {
    let (store, fs, d, [a, ..]) = planted().await;
    delete(&fs, a).await;
    let fs = mended(&store, |problem| matches!(problem, Problem::Missing { .. })).await;
    assert_eq!(names(&fs, d).await, ["b", "e"]);
    assert_eq!(fs.getattr(d).await.expect("it works").inode.size, 2);
}

#[tokio::test]
async fn a_name_of_the_wrong_kind_says_what_is_there() {
    let (store, fs, d, _) = planted().await;
    let (page, slot, generation, mut entries) = place(&fs, d, "a").await;
    entries[0].kind = Kind::Symlink;
    set_entries(&fs, (page, slot, generation), &entries).await;
    let fs = mended(&store, |problem| matches!(problem, Problem::WrongKind { .. })).await;
    let (.., entries) = place(&fs, d, "a").await;
    assert_eq!(entries[0].kind, Kind::File);
    // A file that is named as a directory.
    let (page, slot, generation, mut entries) = place(&fs, d, "a").await;
    entries[0].kind = Kind::Directory;
    set_entries(&fs, (page, slot, generation), &entries).await;
    mended(&store, |problem| matches!(problem, Problem::WrongKind { .. })).await;
}

#[tokio::test]
async fn a_name_in_the_wrong_place_is_found_again() {
    let (store, fs, d, [a, ..]) = planted().await;
    let (page, slot, generation, entries) = place(&fs, d, "a").await;
    let elsewhere = Slot(slot.0 ^ 1);
    let tx = fs.store.begin(Mode::Normal).await.expect("it works");
    tx.delete(page, slot, generation).await.expect("it is there");
    tx.create(page, elsewhere, encode_entries(&entries)).await.expect("room");
    tx.commit().await.expect("nobody else writes");
    assert_eq!(fs.lookup(d, b"a").await.expect("it works").attr, None);
    let fs = mended(&store, |problem| matches!(problem, Problem::Misplaced { .. })).await;
    assert_eq!(read_file(&fs, a).await, b"the bytes of a");
    assert_eq!(fs.lookup(d, b"a").await.expect("it works").attr.expect("it is there").id, a);
}

/// The name is where it belongs, and once more elsewhere, for another file: that one is not lost.
#[tokio::test]
async fn a_name_that_is_there_twice_is_there_once() {
    let (store, fs, d, [a, b, ..]) = planted().await;
    let (page, slot, generation, mut entries) = place(&fs, d, "b").await;
    entries[0].name = Bytes::from_static(b"a");
    set_entries(&fs, (page, slot, generation), &entries).await;
    let fs = mended(&store, |problem| matches!(problem, Problem::Twice { .. })).await;
    assert_eq!(fs.lookup(d, b"a").await.expect("it works").attr.expect("it is there").id, a);
    assert_eq!(lost(&fs).await, [format!("#{b}")]);
    assert_eq!(read_file(&fs, b).await, pattern(200_000, 2));
    // The very same entry twice in one slot.
    let (page, slot, generation, mut entries) = place(&fs, d, "a").await;
    entries.push(entries[0].clone());
    set_entries(&fs, (page, slot, generation), &entries).await;
    mended(&store, |problem| matches!(problem, Problem::Twice { .. })).await;
}

#[tokio::test]
async fn a_directory_with_two_names_keeps_the_first() {
    let (store, fs, _, [.., e]) = planted().await;
    let entry = Entry { name: Bytes::from_static(b"second"), id: e, kind: Kind::Directory };
    let root = trie_page(&fs, fs.root()).await;
    let tx = fs.store.begin(Mode::Normal).await.expect("it works");
    fs.insert_entry(&tx, root, entry).await.expect("room");
    fs.touch_parent(&tx, fs.root(), 1, 1, 5).await.expect("it is there");
    tx.commit().await.expect("nobody else writes");
    mended(&store, |problem| matches!(problem, Problem::Twice { .. })).await;
}

#[tokio::test]
async fn a_directory_says_where_it_is() {
    let (store, fs, d, [.., e]) = planted().await;
    let page = trie_page(&fs, e).await;
    let header = TrieHeader { parent: Some(fs.root()), children: None };
    put(&fs, page, HEADER_SLOT, header.encode()).await;
    let fs = mended(&store, |problem| matches!(problem, Problem::WrongParent { .. })).await;
    assert_eq!(fs.parent(e).await, Ok(d));
}

#[tokio::test]
async fn counts_are_set_right() {
    let (store, fs, d, [a, ..]) = planted().await;
    set_inode(&fs, a, |inode| inode.links = 7).await;
    set_inode(&fs, d, |inode| (inode.links, inode.size) = (9, 99)).await;
    let fs = mended(&store, |problem| matches!(problem, Problem::WrongLinks { .. })).await;
    assert_eq!(fs.getattr(a).await.expect("it works").inode.links, 1);
    let inode = fs.getattr(d).await.expect("it works").inode;
    assert_eq!((inode.links, inode.size), (3, 3));
    set_inode(&fs, d, |inode| inode.size = 0).await;
    mended(&store, |problem| matches!(problem, Problem::WrongSize { .. })).await;
}

/// A file made between the check and the repair has a name more: its links stay as they are.
#[tokio::test]
async fn what_has_changed_since_is_left_alone() {
    let (store, fs, d, [a, ..]) = planted().await;
    set_inode(&fs, a, |inode| inode.links = 7).await;
    let found = look(&fs).await;
    let other = open(&store).await;
    other.link(a, d, b"another").await.expect("it works");
    for problem in &found.problems {
        fs.mend(problem).await.expect("it works");
    }
    assert_eq!(fs.getattr(a).await.expect("it works").inode.links, 8, "seen with 7, and 1 name");
    mended(&store, |problem| matches!(problem, Problem::WrongLinks { .. })).await;
    assert_eq!(other.getattr(a).await.expect("it works").inode.links, 2);
}

#[tokio::test]
async fn what_has_no_name_comes_to_lost_and_found() {
    let (store, fs, d, [a, _, c, e]) = planted().await;
    for name in ["a", "e"] {
        let (page, slot, generation, _) = place(&fs, d, name).await;
        let tx = fs.store.begin(Mode::Normal).await.expect("it works");
        tx.delete(page, slot, generation).await.expect("it is there");
        tx.commit().await.expect("nobody else writes");
    }
    let fs = mended(&store, |problem| matches!(problem, Problem::Unnamed { .. })).await;
    let mut expected = [format!("#{a}"), format!("#{e}")];
    expected.sort();
    assert_eq!(lost(&fs).await, expected, "and not what is in a directory that has a name again");
    assert_eq!(names(&fs, e).await, ["c"]);
    assert_eq!(read_file(&fs, c).await, b"the bytes of c");
    assert_eq!(read_file(&fs, a).await, b"the bytes of a");
}

#[tokio::test]
async fn pages_that_are_missing_are_zeros() {
    let (store, fs, _, [_, b, ..]) = planted().await;
    let Content::Pages(extents) = fs.getattr(b).await.expect("it works").inode.content else {
        panic!("pages")
    };
    let tx = fs.store.begin(Mode::Normal).await.expect("it works");
    tx.delete_page(extents.page(1).expect("its second")).await.expect("it is there");
    tx.commit().await.expect("nobody else writes");
    let fs = mended(&store, |problem| matches!(problem, Problem::MissingPage { .. })).await;
    let bytes = read_file(&fs, b).await;
    assert_eq!(bytes.len(), 200_000);
    assert_eq!(bytes[..1000], pattern(200_000, 2)[..1000]);
}

/// The page of a directory's names is gone: what was in it, files and all, as far as it was elsewhere.
#[tokio::test]
async fn a_directory_without_its_page_gets_one() {
    let (store, fs, d, [.., e]) = planted().await;
    for i in 0..900 {
        make(&fs, d, &format!("a-name-that-fills-the-bucket-{i}"), &file()).await;
    }
    let root = trie_page(&fs, d).await;
    let tx = fs.store.begin(Mode::Normal).await.expect("it works");
    let (_, bytes) = tx.get(root, HEADER_SLOT).await.expect("it works").expect("a header");
    let children = TrieHeader::decode(&bytes).expect("a header").children.expect("it was split");
    tx.delete_page(children[3]).await.expect("it is there");
    tx.delete_page(trie_page(&fs, e).await).await.expect("it is there");
    tx.commit().await.expect("nobody else writes");
    let fs = mended(&store, |problem| matches!(problem, Problem::MissingPage { .. })).await;
    assert!(lost(&fs).await.len() > 5, "those of the bucket");
    make(&fs, e, "new", &file()).await;
    clean(&fs).await;
}

#[tokio::test]
async fn pages_that_two_use_are_given_to_both() {
    let (store, fs, d, [_, b, ..]) = planted().await;
    let other = make(&fs, d, "other", &file()).await;
    let content = fs.getattr(b).await.expect("it works").inode.content;
    set_inode(&fs, other, |inode| (inode.content, inode.size) = (content, 200_000)).await;
    let fs = mended(&store, |problem| matches!(problem, Problem::SharedPage { .. })).await;
    for id in [b, other] {
        assert_eq!(read_file(&fs, id).await, pattern(200_000, 2));
    }
    write_file(&fs, other, 0, b"mine").await;
    assert_eq!(read_file(&fs, b).await, pattern(200_000, 2));
}

/// Bytes that make no sense, wherever they are.
#[tokio::test]
async fn what_cannot_be_read_is_taken_away() {
    let (store, fs, d, [a, b, _, e]) = planted().await;
    // Names: what they led to is not lost.
    let (page, slot, ..) = place(&fs, d, "b").await;
    put(&fs, page, slot, Bytes::from_static(&[1, 99, 1, 2, 3])).await;
    let fs = mended(&store, |problem| matches!(problem, Problem::Damaged { .. })).await;
    assert_eq!(lost(&fs).await, [format!("#{b}")]);
    // The bytes beside an inode.
    let tx = fs.store.begin(Mode::Normal).await.expect("it works");
    let (generation, _) = tx.get(a.page, a.data_slot()).await.expect("it works").expect("bytes");
    tx.delete(a.page, a.data_slot(), generation).await.expect("it is there");
    tx.commit().await.expect("nobody else writes");
    let fs = mended(&store, |problem| matches!(problem, Problem::Damaged { .. })).await;
    assert_eq!(read_file(&fs, a).await, [0; 14]);
    // Attributes in pages that are not there.
    let nowhere = fs.store.allocate(1).await.expect("a number");
    set_inode(&fs, a, |inode| inode.xattrs = Xattrs::Pages(nowhere)).await;
    let fs = mended(&store, |problem| matches!(problem, Problem::Damaged { .. })).await;
    assert!(fs.xattrs(a).await.expect("it works").0.is_empty());
    // The header of a directory's page, and an inode.
    put(&fs, trie_page(&fs, e).await, HEADER_SLOT, Bytes::from_static(&[2])).await;
    let fs = mended(&store, |problem| matches!(problem, Problem::Damaged { .. })).await;
    put(&fs, a.page, a.slot, Bytes::from_static(&[1, 99])).await;
    let fs = mended(&store, |problem| matches!(problem, Problem::Damaged { .. })).await;
    assert_eq!(fs.lookup(d, b"a").await.expect("it works").attr, None);
}

/// The inode of a directory could not be read: where its names are stood there alone. Once a repair
/// deleted it, and all of its files were in nobody's reach; then it was left as it was, for ever. Its
/// pages are found by looking through all of the volume, and it comes back as a whole.
#[tokio::test]
async fn what_a_directory_held_that_cannot_be_read_is_found() {
    let (store, fs, d, [a, b, c, e]) = planted().await;
    let page = trie_page(&fs, d).await;
    put(&fs, d.page, d.slot, Bytes::from_static(&[1, 99])).await;
    let fs = mended(&store, |problem| matches!(problem, Problem::Damaged { .. })).await;
    assert_eq!(fs.lookup(fs.root(), b"d").await.expect("it works").attr, None);
    assert_eq!(lost(&fs).await, [format!("#{}", page.0)]);
    let home = fs.lookup(fs.root(), b"lost+found").await.expect("it works").attr.expect("made").id;
    let name = format!("#{}", page.0);
    let back = fs.lookup(home, name.as_bytes()).await.expect("it works").attr.expect("made").id;
    assert_eq!(names(&fs, back).await, ["a", "b", "e"]);
    assert_eq!(fs.parent(e).await, Ok(back));
    for (id, bytes) in [(a, b"the bytes of a".to_vec()), (b, pattern(200_000, 2))] {
        assert_eq!(read_file(&fs, id).await, bytes);
    }
    assert_eq!(read_file(&fs, c).await, b"the bytes of c");
}

/// The first page of a large directory led to 32 others with its names. When it was gone it was made
/// anew, empty, and the names were found by nobody: no link to them is elsewhere.
#[tokio::test]
async fn pages_of_names_are_found_when_what_led_to_them_is_gone() {
    for gone in [true, false] {
        let (store, fs, d, _) = planted().await;
        for i in 0..900 {
            make(&fs, d, &format!("a-name-that-fills-the-bucket-{i}"), &file()).await;
        }
        let page = trie_page(&fs, d).await;
        if gone {
            let tx = fs.store.begin(Mode::Normal).await.expect("it works");
            tx.delete_page(page).await.expect("it is there");
            tx.commit().await.expect("nobody else writes");
        } else {
            put(&fs, page, HEADER_SLOT, Bytes::from_static(&[2])).await;
        }
        let fs = mended(&store, |problem| {
            matches!(problem, Problem::Damaged { .. } | Problem::MissingPage { .. })
        })
        .await;
        assert!(names(&fs, d).await.is_empty(), "it has a page again");
        let home = fs.lookup(fs.root(), b"lost+found").await.expect("it works").attr;
        let mut found = 0;
        for name in lost(&fs).await {
            let there = fs.lookup(home.as_ref().expect("made").id, name.as_bytes()).await;
            let there = there.expect("it works").attr.expect("listed");
            if there.inode.kind == Kind::Directory {
                found += names(&fs, there.id).await.len();
            } else {
                found += 1;
            }
        }
        // What was beside the names in the first page went with it.
        assert!(found > 600, "{gone}: {found}");
        if !gone {
            assert_eq!(found, 903);
        }
    }
}

/// A directory that nothing names, with one that cannot be read in it: what the first leads to is its
/// own, and comes back with it.
#[tokio::test]
async fn what_an_unnamed_directory_leads_to_stays_its_own() {
    let (store, fs, d, [.., e]) = planted().await;
    let other = make(&fs, fs.root(), "other", &directory()).await;
    make(&fs, other, "kept", &file()).await;
    let (page, slot, generation, _) = place(&fs, fs.root(), "d").await;
    let tx = fs.store.begin(Mode::Normal).await.expect("it works");
    tx.delete(page, slot, generation).await.expect("it is there");
    tx.commit().await.expect("nobody else writes");
    put(&fs, other.page, other.slot, Bytes::from_static(&[1, 99])).await;
    let fs = mended(&store, |problem| matches!(problem, Problem::Damaged { .. })).await;
    assert_eq!(names(&fs, d).await, ["a", "b", "e"]);
    assert_eq!(names(&fs, e).await, ["c"]);
    assert_eq!(lost(&fs).await.len(), 2, "the one, and what the other held");
}

/// A page that was damaged at the origin was the end of every check of its volume, and nothing else was
/// looked at. It is told of; nothing is given up that it may lead to, and all is well when it is back.
#[tokio::test]
async fn a_page_that_is_damaged_at_the_origin_is_told_and_left() {
    let (store, fs, d, [_, b, ..]) = planted().await;
    for i in 0..900 {
        make(&fs, d, &format!("a-name-that-fills-the-bucket-{i}"), &file()).await;
    }
    // Of a file's content: what else is wrong is mended.
    let Content::Pages(extents) = fs.getattr(b).await.expect("it works").inode.content else {
        panic!("pages")
    };
    let page = extents.page(1).expect("its second");
    store.damage(page, true);
    set_inode(&fs, b, |inode| inode.links = 7).await;
    let fs = open(&store).await;
    let report = mend(&fs).await;
    assert_eq!(report.repaired.len(), 1, "{report:#?}");
    assert!(matches!(&report.check.problems[..], [found] if found.at.page == page), "{report:#?}");
    assert!(report.left[0].contains("backup"), "{report:#?}");
    store.damage(page, false);
    clean(&fs).await;
    // Of names: whatever stands on names is left as it is.
    let root = trie_page(&fs, d).await;
    store.damage(root, true);
    let fs = open(&store).await;
    let report = mend(&fs).await;
    assert_eq!(report.repaired, [], "{report:#?}");
    assert!(report.check.problems.iter().any(|found| found.at.page == root), "{report:#?}");
    store.damage(root, false);
    clean(&fs).await;
}

/// What a later version wrote is not this one's to mend: it is told, and left.
#[tokio::test]
async fn what_another_version_wrote_is_left_and_told() {
    let (store, fs, _, [a, ..]) = planted().await;
    put(&fs, a.page, a.slot, Bytes::from_static(&[9; 128])).await;
    let fs = open(&store).await;
    let report = mend(&fs).await;
    assert_eq!(report.repaired, []);
    assert!(!report.check.is_clean());
    assert!(report.left.iter().all(|why| !why.is_empty()), "{report:?}");
}

/// Pages of names that hold one another had no end.
#[tokio::test]
async fn a_circle_of_pages_comes_to_an_end() {
    let (store, fs, _, [.., e]) = planted().await;
    let page = trie_page(&fs, e).await;
    let children = Some(vec![page; 32]);
    let header = TrieHeader { parent: Some(e), children };
    put(&fs, page, HEADER_SLOT, header.encode()).await;
    let fs = open(&store).await;
    let report = mend(&fs).await;
    assert!(
        !report.check.is_clean() && report.left.iter().any(|why| !why.is_empty()),
        "{report:?}"
    );
}
