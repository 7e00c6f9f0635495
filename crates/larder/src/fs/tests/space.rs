//! Holes: kept, found, made, and left out of copies.

use super::super::memory::Stall;
use super::record::{Extents, Inode, Xattrs};
use super::*;
use larder_core::id::PageNo;
use std::time::Duration;
use tokio::time::Instant;

/// Bytes of content in a raw page.
const PAGE: u64 = PAGE_BYTES as u64 - 32;

/// When nobody waits any more for what is done in a test.
fn later() -> Instant {
    Instant::now() + Duration::from_secs(600)
}

async fn taken(fs: &Fs, id: InodeId) -> u64 {
    fs.bytes_taken(&fs.getattr(id).await.expect("it works").inode)
}

/// Where a file has bytes, as a program that copies it finds out.
async fn extents(fs: &Fs, id: InodeId) -> Vec<(u64, u64)> {
    let (handle, _) = fs.open_file(id).await.expect("it works");
    let (mut at, mut found) = (0, Vec::new());
    while let Ok(start) = fs.seek(&handle, at, Seek::Data).await {
        at = fs.seek(&handle, start, Seek::Hole).await.expect("after bytes there is a hole");
        found.push((start, at));
    }
    fs.release(&handle).await.expect("it works");
    found
}

#[tokio::test]
async fn holes_are_kept_and_found() {
    let (store, fs) = fresh().await;
    let f = make(&fs, fs.root(), "f", &file()).await;
    write_file(&fs, f, 5 * PAGE, &pattern(1000, 1)).await;
    write_file(&fs, f, 2000 * PAGE + 7, &pattern(1000, 2)).await;
    let size = SetAttr { size: Some(3000 * PAGE), ..SetAttr::default() };
    fs.setattr(f, size).await.expect("it works");
    let found = vec![(5 * PAGE, 6 * PAGE), (2000 * PAGE, 2001 * PAGE)];
    assert_eq!(extents(&fs, f).await, found);
    assert_eq!(extents(&open(&store).await, f).await, found);
    assert_eq!(taken(&fs, f).await, 2 * PAGE);
    let (handle, _) = fs.open_file(f).await.expect("it works");
    let seek = async |at, what| fs.seek(&handle, at, what).await;
    assert_eq!(seek(5 * PAGE + 3, Seek::Data).await, Ok(5 * PAGE + 3));
    assert_eq!(seek(3, Seek::Hole).await, Ok(3));
    assert_eq!(seek(2000 * PAGE + 3, Seek::Hole).await, Ok(2001 * PAGE));
    assert_eq!(seek(2001 * PAGE, Seek::Data).await, Err(FsError::NoData));
    assert_eq!(seek(3000 * PAGE, Seek::Hole).await, Err(FsError::NoData));
    // What waits for its commit counts too.
    fs.write(&handle, 9 * PAGE, Bytes::from_static(b"new")).await.expect("it works");
    assert_eq!(seek(8 * PAGE, Seek::Data).await, Ok(9 * PAGE));
    fs.release(&handle).await.expect("it works");
    // A hole that is written into is none any more.
    write_file(&fs, f, 0, &pattern(PAGE as usize, 3)).await;
    assert_eq!(taken(&fs, f).await, 4 * PAGE);
    clean(&fs).await;
}

#[tokio::test]
async fn a_file_without_holes_has_one_at_its_end() {
    let (_, fs) = fresh().await;
    for bytes in [0, 1, 100, 3 * PAGE as usize, 3 * PAGE as usize + 5] {
        let f = make(&fs, fs.root(), &format!("f{bytes}"), &file()).await;
        write_file(&fs, f, 0, &pattern(bytes, 1)).await;
        let expected = if bytes == 0 { vec![] } else { vec![(0, bytes as u64)] };
        assert_eq!(extents(&fs, f).await, expected);
        assert_eq!(taken(&fs, f).await, bytes as u64);
    }
}

/// Every range of a file of every size is punched out, and what a plain array says is there.
#[tokio::test]
async fn what_is_punched_out_reads_as_zeros() {
    for bytes in [100, 3000, 2 * PAGE as usize + 50, 5 * PAGE as usize] {
        let edges = [0, 1, 60, PAGE, PAGE + 1, 2 * PAGE, 3 * PAGE - 1, 9 * PAGE];
        for from in edges {
            for to in edges.into_iter().filter(|to| *to > from) {
                let (_, fs) = fresh().await;
                let f = make(&fs, fs.root(), "f", &file()).await;
                let mut expected = pattern(bytes, 1);
                write_file(&fs, f, 0, &expected).await;
                let (handle, _) = fs.open_file(f).await.expect("it works");
                let punched = fs.allocate(&handle, from..to, Allocate::PunchHole, later()).await;
                punched.expect("it works");
                let end = (to as usize).min(bytes);
                if (from as usize) < end {
                    expected[from as usize..end].fill(0);
                }
                assert_eq!(fs.read(&handle, 0, bytes + 1).await.expect("it works"), expected);
                fs.release(&handle).await.expect("it works");
                // And again, with what is written into the hole.
                write_file(&fs, f, from / 2, b"anew").await;
                let at = (from / 2) as usize;
                expected.resize(bytes.max(at + 4), 0);
                expected[at..at + 4].copy_from_slice(b"anew");
                assert_eq!(read_file(&fs, f).await, expected, "{from}..{to} of {bytes}");
                clean(&fs).await;
            }
        }
    }
}

#[tokio::test]
async fn room_is_given_back_and_sizes_are_set() {
    let (_, fs) = fresh().await;
    let f = make(&fs, fs.root(), "f", &file()).await;
    write_file(&fs, f, 0, &pattern(600 * PAGE as usize, 1)).await;
    let (handle, _) = fs.open_file(f).await.expect("it works");
    let allocate = async |range, how| fs.allocate(&handle, range, how, later()).await;
    let size = async || fs.getattr(f).await.expect("it works").inode.size;
    // More pages than one transaction touches.
    allocate(PAGE..590 * PAGE, Allocate::PunchHole).await.expect("it works");
    assert_eq!(taken(&fs, f).await, 11 * PAGE);
    assert_eq!(extents(&fs, f).await, [(0, PAGE), (590 * PAGE, 600 * PAGE)]);
    allocate(0..700 * PAGE, Allocate::KeepSize).await.expect("it works");
    assert_eq!(size().await, 600 * PAGE);
    allocate(599 * PAGE..700 * PAGE, Allocate::ZeroRange).await.expect("it works");
    assert_eq!((size().await, taken(&fs, f).await), (700 * PAGE, 10 * PAGE));
    allocate(0..800 * PAGE, Allocate::Extend).await.expect("it works");
    assert_eq!((size().await, taken(&fs, f).await), (800 * PAGE, 10 * PAGE));
    // Cut and made longer, what was cut off is a hole.
    for size in [595 * PAGE, 800 * PAGE] {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        fs.setattr(f, set).await.expect("it works");
    }
    assert_eq!(taken(&fs, f).await, 6 * PAGE);
    assert_eq!(extents(&fs, f).await, [(0, PAGE), (590 * PAGE, 595 * PAGE)]);
    fs.release(&handle).await.expect("it works");
    clean(&fs).await;
}

/// A write past the largest size was taken into the buffer, and told as lost at the close.
#[tokio::test]
async fn beyond_the_largest_file_nothing_is_taken() {
    let (_, fs) = fresh().await;
    let f = make(&fs, fs.root(), "f", &file()).await;
    let most = fs.file_bytes_max();
    let (handle, _) = fs.open_file(f).await.expect("it works");
    fs.write(&handle, most - 3, Bytes::from_static(b"end")).await.expect("it works");
    let refused = fs.write(&handle, most - 2, Bytes::from_static(b"end")).await;
    assert_eq!(refused, Err(FsError::TooLarge));
    let refused = fs.allocate(&handle, 0..most + 1, Allocate::Extend, later()).await;
    assert_eq!(refused, Err(FsError::TooLarge));
    let set = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    assert_eq!(fs.setattr(f, set(most + 1)).await.map(drop), Err(FsError::TooLarge));
    fs.setattr(f, set(most)).await.expect("it works");
    assert_eq!(fs.read(&handle, most - 3, 9).await.expect("it works"), &b"end"[..]);
    assert_eq!(taken(&fs, f).await, PAGE);
    fs.release(&handle).await.expect("it works");
    // Not all of its pages are looked at one by one.
    fs.unlink(fs.root(), b"f").await.expect("it works");
}

#[tokio::test]
async fn copies_leave_out_what_is_zero_beyond_the_end() {
    let (_, fs) = fresh().await;
    let f = make(&fs, fs.root(), "f", &file()).await;
    let g = make(&fs, fs.root(), "g", &file()).await;
    write_file(&fs, f, 0, &pattern(5000, 1)).await;
    write_file(&fs, f, 100 * PAGE, &pattern(5000, 2)).await;
    let set = SetAttr { size: Some(200 * PAGE), ..SetAttr::default() };
    fs.setattr(f, set).await.expect("it works");
    write_file(&fs, g, 0, &pattern(100, 3)).await;
    let (from, _) = fs.open_file(f).await.expect("it works");
    let (to, _) = fs.open_file(g).await.expect("it works");
    assert_eq!(fs.copy_range((&from, 0), (&to, 0), u64::MAX, later()).await, Ok(200 * PAGE));
    assert_eq!(fs.copy_range((&from, 200 * PAGE), (&to, 0), 10, later()).await, Ok(0));
    assert_eq!(fs.copy_range((&from, 10), (&to, 200 * PAGE), 20, later()).await, Ok(20));
    fs.release(&to).await.expect("it works");
    fs.release(&from).await.expect("it works");
    let (copy, original) = (read_file(&fs, g).await, read_file(&fs, f).await);
    assert_eq!(copy[..original.len()], original);
    assert_eq!(copy[original.len()..], original[10..30]);
    assert!(taken(&fs, g).await < 100 * PAGE);
    clean(&fs).await;
}

/// `printf x > f; truncate -s 500G f`, and a hole from end to end: as many zeros were made as the file
/// was long, which no machine has room for. Such a file was also told as full.
#[tokio::test]
async fn a_few_bytes_beside_an_inode_that_was_made_long() {
    let (_, fs) = fresh().await;
    let f = make(&fs, fs.root(), "f", &file()).await;
    write_file(&fs, f, 0, b"few").await;
    let long = 500 << 30;
    fs.setattr(f, SetAttr { size: Some(long), ..SetAttr::default() }).await.expect("it works");
    assert!(taken(&fs, f).await <= fs.inline_bytes_max());
    assert_eq!(extents(&fs, f).await, [(0, 3)]);
    let (handle, _) = fs.open_file(f).await.expect("it works");
    fs.allocate(&handle, 1..long, Allocate::PunchHole, later()).await.expect("it works");
    assert_eq!(fs.read(&handle, 0, 5).await.expect("it works"), &b"f\0\0\0\0"[..]);
    fs.release(&handle).await.expect("it works");
    assert_eq!(fs.getattr(f).await.expect("it works").inode.size, long);
    clean(&fs).await;
}

/// A search for a hole in a file that was cut in a page answered past the file's end.
#[tokio::test]
async fn a_file_that_was_cut_ends_where_it_was_cut() {
    for size in [1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 100, 4 * PAGE, 5 * PAGE - 1] {
        let (_, fs) = fresh().await;
        let f = make(&fs, fs.root(), "f", &file()).await;
        write_file(&fs, f, 0, &pattern(5 * PAGE as usize, 1)).await;
        fs.setattr(f, SetAttr { size: Some(size), ..SetAttr::default() }).await.expect("it works");
        assert_eq!(extents(&fs, f).await, [(0, size)]);
        assert_eq!(taken(&fs, f).await, size);
        // Longer again, with a hole behind the cut.
        let set = SetAttr { size: Some(9 * PAGE), ..SetAttr::default() };
        fs.setattr(f, set).await.expect("it works");
        assert_eq!(extents(&fs, f).await, [(0, size.div_ceil(PAGE) * PAGE)]);
        clean(&fs).await;
    }
}

fn pages_of(attr: Attr) -> Extents {
    match attr.inode.content {
        Content::Pages(extents) => extents,
        other => panic!("{other:?} in place of pages"),
    }
}

/// A file that was cut, or of which a range was punched out, was taken for one whose pages may not be
/// there: every cut, write and removal read the pages from the origin that it was about to replace.
#[tokio::test]
async fn what_is_known_of_pages_that_were_emptied() {
    let (_, fs) = fresh().await;
    let f = make(&fs, fs.root(), "f", &file()).await;
    write_file(&fs, f, 0, &pattern(600 * PAGE as usize, 1)).await;
    let set = SetAttr { size: Some(3 * PAGE + 7), ..SetAttr::default() };
    let extents = pages_of(fs.setattr(f, set).await.expect("it works"));
    assert_eq!((extents.sparse, extents.missing, extents.high), (false, 596, 600));
    assert!(!extents.has_holes(4) && !extents.looks_at(3, 4) && !extents.looks_at(4, 4));
    // Two pieces in one page behind the end count once.
    let (handle, _) = fs.open_file(f).await.expect("it works");
    for at in [5 * PAGE + 9, 5 * PAGE + 90] {
        fs.write(&handle, at, Bytes::from_static(b"piece")).await.expect("it works");
    }
    fs.flush(&handle).await.expect("it works");
    let extents = pages_of(fs.getattr(f).await.expect("it works"));
    assert_eq!((extents.sparse, extents.missing, extents.high), (false, 595, 600));
    // Page 4 is a hole now, and counted: pages before the end take a look.
    assert!(extents.has_holes(6) && extents.looks_at(4, 6) && !extents.looks_at(6, 6));
    fs.write(&handle, 4 * PAGE, Bytes::from_static(b"filled")).await.expect("it works");
    fs.flush(&handle).await.expect("it works");
    let extents = pages_of(fs.getattr(f).await.expect("it works"));
    assert_eq!((extents.missing, extents.has_holes(6)), (594, false));
    // A punch reads nothing of a file without holes; two of one range count it once.
    for _ in 0..2 {
        fs.allocate(&handle, PAGE..3 * PAGE, Allocate::PunchHole, later()).await.expect("it works");
        assert_eq!(pages_of(fs.getattr(f).await.expect("it works")).missing, 596);
    }
    fs.release(&handle).await.expect("it works");
    clean(&fs).await;
}

/// Bug 116. The numbers of a file's run are in its record. Whoever makes its next page has read the number there,
/// and must say so: he may have been given the same one in a branch that is lost, and would be refused for
/// that. Of a run that he begins himself he was given the numbers.
#[tokio::test]
async fn bug116_a_number_that_was_read_in_a_record_is_told_from_one_that_was_given() {
    let (store, fs) = fresh().await;
    let other = open(&store).await;
    let f = make(&fs, fs.root(), "f", &file()).await;
    write_file(&fs, f, 0, &pattern(3 * PAGE as usize, 1)).await;
    write_file(&other, f, 3 * PAGE, &pattern(14 * PAGE as usize, 2)).await;
    let extents = pages_of(fs.getattr(f).await.expect("it works"));
    let named: Vec<u64> = (0..extents.high)
        .filter(|index| store.was_named(extents.page(*index).expect("a run covers it")))
        .collect();
    assert_eq!((extents.high, named), (17, (3..16).collect::<Vec<_>>()), "page 16 begins a run");
    clean(&fs).await;
}

/// Bug 125. A write far behind the end of a file takes numbers for several runs, and makes a page of the last.
/// The numbers of the first were given before the origin was restored, those of the last after it: by the one
/// page that was made the origin could not see that the others were of the lost branch, and gave them to
/// another file as well. They are taken at once.
#[tokio::test]
async fn bug125_runs_of_which_no_page_is_made_were_given_with_one_of_which_a_page_is() {
    let (store, fs) = fresh().await;
    for (at, runs) in [(0, 1), (16, 2), (272, 3), (271, 2), (4368, 4)] {
        let f = make(&fs, fs.root(), &format!("f{at}"), &file()).await;
        write_file(&fs, f, at * PAGE, &pattern(PAGE as usize, 1)).await;
        let extents = pages_of(fs.getattr(f).await.expect("it works"));
        let first = extents.firsts[0].0;
        let together: Vec<PageNo> =
            (0..runs).map(|run| PageNo(first + Extents::capacity(run))).collect();
        assert_eq!(extents.firsts, together, "a page at {at}");
    }
    // The longest run is as long as what is given at once: an empty page is made of those before it.
    let f = make(&fs, fs.root(), "f", &file()).await;
    let before = store.pages();
    write_file(&fs, f, Extents::capacity(5) * PAGE, b"far away").await;
    let extents = pages_of(fs.getattr(f).await.expect("it works"));
    assert_eq!((extents.firsts.len(), store.pages() - before), (6, 2));
    assert_eq!(taken(&fs, f).await, PAGE, "an empty page is a hole");
    write_file(&fs, f, 0, b"first").await;
    assert_eq!((taken(&fs, f).await, store.pages() - before), (2 * PAGE, 2));
    clean(&fs).await;
}

/// A file was to be made to reach to 1 MiB; another site had written at 2 MiB meanwhile, and its bytes
/// were cut off. What is made to reach somewhere is never made shorter, and past its limit nothing
/// more is done.
#[tokio::test]
async fn room_is_never_taken_away_by_asking_for_it() {
    let (store, fs) = fresh().await;
    let other = open(&store).await;
    let f = make(&fs, fs.root(), "f", &file()).await;
    let (handle, _) = fs.open_file(f).await.expect("it works");
    write_file(&other, f, 200 * PAGE, b"theirs").await;
    for how in [Allocate::Extend, Allocate::ZeroRange] {
        fs.allocate(&handle, 0..100 * PAGE, how, later()).await.expect("it works");
        assert_eq!(fs.getattr(f).await.expect("it works").inode.size, 200 * PAGE + 6);
    }
    let late = fs.allocate(&handle, 0..201 * PAGE, Allocate::PunchHole, Instant::now()).await;
    assert_eq!(late, Err(TxError::TimedOut.into()));
    assert_eq!(fs.read(&handle, 200 * PAGE, 9).await.expect("it works"), &b"theirs"[..]);
    fs.release(&handle).await.expect("it works");
    clean(&fs).await;
}

/// Any node that may write can make a record. One that counted more missing pages than there are, or
/// named pages beyond all numbers, was taken, and ended what reckoned with it.
#[test]
fn records_that_no_reckoning_survives() {
    let with = |extents: Extents| golden::inode(Kind::File, Content::Pages(extents));
    let refused = |extents: Extents| {
        let inode = with(extents);
        assert!(matches!(Inode::decode(&inode.encode()), Err(FsError::Damaged(_))), "{inode:?}");
    };
    let good = Extents { firsts: vec![PageNo(7)], high: 2, sparse: true, missing: 1 };
    refused(Extents { missing: u32::MAX, ..good.clone() });
    refused(Extents { missing: 3, ..good.clone() });
    refused(Extents { firsts: vec![PageNo(u64::MAX)], ..good.clone() });
    refused(Extents { firsts: vec![PageNo(0)], ..good.clone() });
    refused(Extents { firsts: vec![PageNo(PageNo::LIMIT - 15)], ..good.clone() });
    refused(Extents { high: 17, ..good.clone() });
    let mut inode = with(good);
    assert_eq!(Inode::decode(&inode.encode()), Ok(inode.clone()));
    inode.xattrs = Xattrs::Pages(PageNo(PageNo::LIMIT - 1));
    assert!(matches!(Inode::decode(&inode.encode()), Err(FsError::Damaged(_))));
}

/// Bug 89. A file of many pages lost its last name; while it was freed the link broke, which is told at
/// once ("no link to the parent"). Only what had waited in vain was tried again: the file stayed until
/// nobody had said for `orphan_age` that it is open.
#[tokio::test]
async fn what_could_not_be_freed_without_a_link_is_freed_later() {
    let (store, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    write_file(&fs, id, 300 * u64::from(PAGE_BYTES), b"far out").await;
    fs.unlink(fs.root(), b"f").await.expect("it works");
    store.fail_next_commit(TxError::Unavailable("no link to the parent".into()));
    let first = fs.reap_waiting().await;
    assert!(matches!(first, Err(FsError::Store(TxError::Unavailable(_)))), "{first:?}");
    fs.reap_waiting().await.expect("it works");
    assert_eq!(fs.orphans().await, Ok(Vec::new()));
}

/// A large file was cut to nothing: what it had held went to those without a name, and stayed there
/// until nobody had said for a day that it is open.
#[tokio::test]
async fn what_a_large_file_held_is_freed_soon_after_it_was_cut_to_nothing() {
    let (_, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    write_file(&fs, id, 300 * u64::from(PAGE_BYTES), b"far out").await;
    let cut = SetAttr { size: Some(0), ..SetAttr::default() };
    fs.setattr(id, cut).await.expect("it works");
    assert_eq!(fs.orphans().await.map(|orphans| orphans.len()), Ok(1));
    fs.reap_waiting().await.expect("it works");
    assert_eq!(fs.orphans().await, Ok(Vec::new()));
}

/// Bug 152. A mount was ended while its background freed a large file: the task was dropped in the middle,
/// with the file's number, which it had taken from those that wait. The end of the mount found nothing to free,
/// and the file stayed for a day.
#[tokio::test]
async fn what_was_being_freed_is_freed_after_all_when_that_is_dropped() {
    let (store, fs) = fresh().await;
    let id = make(&fs, fs.root(), "f", &file()).await;
    write_file(&fs, id, 300 * u64::from(PAGE_BYTES), b"far out").await;
    fs.unlink(fs.root(), b"f").await.expect("it works");
    for stall in [Stall::Before, Stall::After] {
        store.stall(stall);
        {
            let freeing = std::pin::pin!(fs.reap_waiting());
            let cut = tokio::time::timeout(Duration::from_millis(20), freeing).await;
            assert!(cut.is_err(), "its commit waits");
        }
        store.stall(Stall::Nowhere);
        // So is the settling of what it left.
        store.stall(Stall::Before);
        let cut = tokio::time::timeout(Duration::from_millis(20), fs.settle_unknown()).await;
        assert!(cut.is_err(), "its commit waits");
        store.stall(Stall::Nowhere);
        fs.settle_unknown().await.expect("it works");
    }
    fs.reap_waiting().await.expect("it works");
    assert_eq!(fs.orphans().await, Ok(Vec::new()));
}
