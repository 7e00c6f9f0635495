//! The file: as it is written, as it is read, and what is no backup.

use super::format::{FormatError, Header, Held, Part, Parts, Trailer, Writer, Written};
use super::wanted::Wanted;
use super::{BackupError, verify};
use bytes::Bytes;
use larder_core::commit::{Op, PageKind};
use larder_core::id::{DomainId, Generation, HistoryId, PageId, PageNo, Slot, Stamp, VolumeId};
use larder_core::page::{Page, Record};
use std::fmt::Write as _;
use std::path::PathBuf;

const VOLUME: VolumeId = VolumeId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);

fn header() -> Header {
    Header {
        volume: VOLUME,
        domain: DomainId(0xd0d1),
        name: "home".into(),
        page_bytes: 4096,
        begun: 1_700_000_000_000_000_000,
    }
}

fn trailer() -> Trailer {
    Trailer {
        history: HistoryId(0xaaaa),
        stamp: Stamp(1000),
        time: 1_700_000_001_000_000_000,
        next_page: PageNo(300),
        pages: 3,
        deleted: 1,
        left_out: 1,
    }
}

/// A page with one object, of a later generation.
fn slotted(number: u64, value: &str) -> Written {
    let mut page = Page::empty(PageKind::Slotted);
    for generation in [1, 2] {
        let (slot, generation) = (Slot(3), Generation(generation));
        let value = Record::Inline(Bytes::copy_from_slice(value.as_bytes())).encode();
        page.apply(&Op::Put { slot, generation, value }, 4096).expect("it fits");
        if generation.0 == 1 {
            page.apply(&Op::Delete { slot, generation }, 4096).expect("it is there");
        }
    }
    let id = PageId { volume: VOLUME, page: PageNo(number) };
    Written {
        page: PageNo(number),
        version: Stamp(900 + number),
        held: Held::Image(page.encode(id)),
    }
}

fn gone(number: u64) -> Written {
    Written { page: PageNo(number), version: Stamp(990), held: Held::Deleted }
}

fn left_out(number: u64) -> Written {
    Written { page: PageNo(number), version: Stamp(995), held: Held::LeftOut }
}

/// Page 2 is copied again, page 4 is deleted after it was copied, and page 6 cannot be read.
fn file() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &header()).expect("memory");
    writer
        .pages(true, &[slotted(1, "root"), slotted(2, "two"), slotted(4, "four")])
        .expect("memory");
    writer.pages(false, &[slotted(2, "deux"), gone(4), left_out(6)]).expect("memory");
    writer.pages(true, &[slotted(5, "five")]).expect("memory");
    writer.finish(&trailer()).expect("memory").0
}

/// Pages 2 and 6 are in one part twice.
fn twice() -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), &header()).expect("memory");
    writer.pages(true, &[slotted(1, "root"), slotted(2, "two")]).expect("memory");
    writer.pages(false, &[left_out(6), gone(2), left_out(6), slotted(2, "deux")]).expect("memory");
    let held = Trailer { pages: 2, deleted: 0, ..trailer() };
    writer.finish(&held).expect("memory").0
}

/// A tree's page 1, which tells where the table of locks is, and the table's page of who holds any.
fn tree() -> Vec<u8> {
    let seeds = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/files");
    let mut root = Page::empty(PageKind::Slotted);
    for (slot, name) in [(0, "root"), (1, "locks-table")] {
        // After the kind.
        let record = std::fs::read(seeds.join(name)).expect("a seed").split_off(1);
        let (slot, value) = (Slot(slot), Record::Inline(record.into()).encode());
        let put = Op::Put { slot, generation: Generation(1), value };
        root.apply(&put, 4096).expect("it fits");
    }
    let held = Held::Image(root.encode(PageId { volume: VOLUME, page: PageNo(1) }));
    let root = Written { page: PageNo(1), version: Stamp(900), held };
    let mut writer = Writer::new(Vec::new(), &header()).expect("memory");
    writer.pages(true, &[slotted(2, "two"), slotted(300, "a node"), root]).expect("memory");
    let next_page = PageNo(400);
    let held = Trailer { pages: 3, deleted: 0, left_out: 0, next_page, ..trailer() };
    writer.finish(&held).expect("memory").0
}

fn look(bytes: &[u8]) -> Result<super::Summary, BackupError> {
    verify(bytes, &mut |_| {})
}

#[test]
fn a_file_holds_what_was_written() {
    let bytes = file();
    let summary = look(&bytes).expect("it is whole");
    assert_eq!((&summary.header, &summary.trailer), (&header(), &trailer()));
    assert_eq!(summary.bytes, bytes.len() as u64);
    let mut parts = Parts::new(&bytes[..]).expect("a header");
    let Part::Pages { base: true, entries } = parts.next().expect("pages") else {
        panic!("the first copy")
    };
    let (_, page) = entries[1].held.image().expect("it is there");
    let record = Record::Inline(Bytes::from_static(b"two")).encode();
    assert_eq!(page.get(Slot(3)), Some((Generation(2), record)));
    let found = super::look_through(&bytes[..], &mut |_| {}).expect("it is whole");
    assert_eq!(found.last.keys().copied().collect::<Vec<_>>(), [2, 4, 6].map(PageNo));
    assert_eq!(found.summary.left_out, [PageNo(6)]);
    assert!(found.root.is_some(), "page 1");
}

/// However a file was cut off or damaged, it is never taken for a whole one.
#[test]
fn nothing_less_than_a_whole_file_is_taken() {
    let bytes = file();
    for length in 0..bytes.len() {
        let error = look(&bytes[..length]).expect_err("it is cut");
        let cut = matches!(error, BackupError::Format(FormatError::Cut(_) | FormatError::NoBackup));
        assert!(cut, "{length}: {error}");
    }
    for at in 0..bytes.len() {
        let mut torn = bytes.clone();
        torn[at] ^= 0x10;
        assert!(look(&torn).is_err(), "byte {at} is another");
    }
    let longer = [&bytes[..], b"x"].concat();
    assert!(look(&longer).is_err(), "bytes after the end");
    assert!(matches!(
        look(b"PK\x03\x04 and more than 16 bytes"),
        Err(BackupError::Format(FormatError::NoBackup))
    ));
}

/// Each part is whole by itself: only its checksum, which follows from the part before, tells that one
/// is missing.
#[test]
fn a_part_that_was_left_out_is_noticed() {
    let bytes = file();
    let mut parts = Parts::new(&bytes[..]).expect("a header");
    let first = parts.position() as usize;
    parts.next().expect("pages");
    let second = parts.position() as usize;
    let without = [&bytes[..first], &bytes[second..]].concat();
    assert!(matches!(look(&without), Err(BackupError::Format(FormatError::Damaged(_)))));
}

#[test]
fn counts_that_do_not_fit_are_refused() {
    let wrong = Trailer { pages: 4, ..trailer() };
    let mut writer = Writer::new(Vec::new(), &header()).expect("memory");
    writer.pages(true, &[slotted(1, "root")]).expect("memory");
    let (bytes, _) = writer.finish(&wrong).expect("memory");
    let error = look(&bytes).expect_err("it holds one page").to_string();
    assert!(error.contains("1 pages") && error.contains("4"), "{error}");
    let mut writer = Writer::new(Vec::new(), &header()).expect("memory");
    writer.pages(true, &[slotted(1, "root"), slotted(1, "root")]).expect("memory");
    let (bytes, _) = writer.finish(&trailer()).expect("memory");
    assert!(look(&bytes).is_err(), "a page twice in the first copy");
}

/// A file with a page of a number that was never given away was whole, and a restoration of it refused
/// by the origin when the volume was half made.
#[test]
fn no_page_has_a_number_that_was_never_given_away() {
    let wrong = Trailer { pages: 2, deleted: 0, left_out: 0, ..trailer() };
    let mut writer = Writer::new(Vec::new(), &header()).expect("memory");
    writer.pages(true, &[slotted(1, "root"), slotted(300, "three hundred")]).expect("memory");
    let (bytes, _) = writer.finish(&wrong).expect("memory");
    let error = look(&bytes).expect_err("numbers end at 299").to_string();
    assert!(error.contains("page 300"), "{error}");
}

/// The story: a page that could not be read was told of twice in one answer of the origin, and was in one part of
/// the file twice. A restoration of it made and deleted the page twice in one commit, which the origin refused,
/// each time anew, after the volume was half made.
#[test]
fn a_page_that_is_in_a_part_twice_is_made_once() {
    let bytes = twice();
    let verified = super::look_through(&bytes[..], &mut |_| {}).expect("it is whole");
    let mut wanted = Wanted::new(&bytes[..], &verified).expect("it is whole");
    let mut made = Vec::new();
    while let Some(entries) = wanted.next().expect("it is whole") {
        made.extend(entries.into_iter().map(|entry| (entry.page.page.0, entry.held)));
    }
    assert_eq!(made.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [6, 2]);
    let (_, page) = made[1].1.image().expect("the last one counts");
    let record = Record::Inline(Bytes::from_static(b"deux")).encode();
    assert_eq!(page.get(Slot(3)), Some((Generation(2), record)));
    super::check_restoration(&bytes);
}

/// What is asked of an origin for files of every sort it takes.
#[test]
fn a_restoration_is_what_an_origin_takes() {
    for bytes in [file(), twice(), tree()] {
        look(&bytes).expect("it is whole");
        super::check_restoration(&bytes);
    }
    let found = super::look_through(&tree()[..], &mut |_| {}).expect("it is whole");
    let holders = crate::fs::lock_holders_page(&found.root.expect("page 1"));
    assert_eq!(holders, Some(PageNo(300)));
}

/// The bytes of version 1 of the format (`docs/formats/backup.md`): they must go on to be read.
/// `LARDER_GOLDEN=write` writes them anew, and the fuzz target's seeds.
#[test]
fn the_format_is_as_it_was() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = folder.join("tests/golden-backup/v1.hex");
    let mut text = String::new();
    for line in file().chunks(16) {
        let line: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(text, "{}", line.join(" ")).expect("writing to a string");
    }
    if std::env::var_os("LARDER_GOLDEN").is_some_and(|value| value == "write") {
        let seeds = folder.join("../../fuzz/seeds/backup");
        for folder in [path.parent().expect("a folder"), &seeds] {
            std::fs::create_dir_all(folder).expect("writable");
        }
        std::fs::write(&path, &text).expect("writable");
        for (name, bytes) in [("whole", file()), ("twice", twice()), ("tree", tree())] {
            std::fs::write(seeds.join(name), bytes).expect("writable");
        }
    }
    let golden = std::fs::read_to_string(&path).expect("the golden file");
    let bytes: Vec<u8> = golden
        .split_whitespace()
        .map(|byte| u8::from_str_radix(byte, 16).expect("hexadecimal bytes"))
        .collect();
    assert_eq!(look(&bytes).expect("it is read").trailer, trailer());
    assert_eq!(text, golden, "a change of the format: it needs another version");
}
