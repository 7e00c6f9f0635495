//! Packed lists: one `bytes` field each. The layouts are in `docs/formats/wire.md`.

use super::WireError;
use super::head::stamp_of;
use super::varint::{Reader, Sink, unzigzag, zigzag};
use crate::commit::{
    Aspect, COMMIT_BYTES_MAX, COMMIT_READS_MAX, COMMIT_WRITES_MAX, Change, Op, PageChange,
    PageKind, Read, Target, Write,
};
use crate::id::{BootId, CommitId, Generation, HistoryId, PageId, PageNo, Slot, Stamp, VolumeId};
use crate::message::{
    CHANGES_PER_ADVANCE_MAX, EPOCHS_MAX, Epoch, HOLES_MAX, PAGES_PER_MESSAGE_MAX, PageAnswer,
    PageAsk, PageBody, TOUCHED_PER_ADVANCE_MAX,
};
use crate::page::PAGE_BYTES_MAX;
use bytes::Bytes;

/// A list to be packed.
pub(super) enum Packed<'a> {
    Epochs(&'a [Epoch]),
    Pages(&'a [PageId]),
    Asks(&'a [PageAsk]),
    Answers(&'a [PageAnswer]),
    Reads(&'a [Read]),
    Writes(&'a [Write]),
    Changes(&'a [Change]),
}

impl Packed<'_> {
    pub(super) fn write(&self, out: &mut impl Sink) {
        match self {
            Self::Epochs(epochs) => write_epochs(epochs, out),
            Self::Pages(pages) => write_runs(
                out,
                pages,
                |page| *page,
                |_, delta, out| {
                    out.varint(delta);
                },
            ),
            Self::Asks(asks) => write_runs(
                out,
                asks,
                |ask| ask.page,
                |ask, delta, out| {
                    out.varint(delta << 1 | u64::from(ask.have.is_some()));
                    if let Some(have) = ask.have {
                        out.varint(have.0);
                    }
                },
            ),
            Self::Answers(answers) => write_runs(out, answers, |a| a.page, write_answer),
            Self::Reads(reads) => write_reads(reads, out),
            Self::Writes(writes) => write_writes(writes, out),
            Self::Changes(changes) => write_changes(changes, out),
        }
    }
}

/// Refuses one more than `limit`.
fn check_limit(count: usize, limit: usize, what: &'static str) -> Result<(), WireError> {
    if count < limit { Ok(()) } else { Err(WireError::Limit { what, limit }) }
}

fn page_no(number: u64) -> Result<PageNo, WireError> {
    if number == 0 || number >= PageNo::LIMIT {
        return Err(WireError::Malformed("no page number"));
    }
    Ok(PageNo(number))
}

// ---- epochs: (history, first stamp), 24 bytes each ----

fn write_epochs(epochs: &[Epoch], out: &mut impl Sink) {
    for epoch in epochs {
        out.u128(epoch.history.0);
        out.bytes(&epoch.first.0.to_le_bytes());
    }
}

pub(super) fn read_epochs(bytes: Bytes) -> Result<Vec<Epoch>, WireError> {
    let mut reader = Reader::new(bytes);
    let mut epochs = Vec::new();
    while !reader.is_empty() {
        check_limit(epochs.len(), EPOCHS_MAX, "histories")?;
        let history = HistoryId(reader.u128()?);
        let first = reader.take(8)?[..].try_into().expect("took eight bytes");
        epochs.push(Epoch { history, first: Stamp(u64::from_le_bytes(first)) });
    }
    Ok(epochs)
}

// ---- runs: items of one volume after another, in the order given ----

/// Writes items as runs of one volume; `write` is handed each page's distance from the one
/// before, zigzag.
fn write_runs<T, S: Sink>(
    out: &mut S,
    items: &[T],
    page_of: impl Fn(&T) -> PageId,
    write: impl Fn(&T, u64, &mut S),
) {
    for run in items.chunk_by(|a, b| page_of(a).volume == page_of(b).volume) {
        out.u128(page_of(&run[0]).volume.0);
        out.varint(run.len() as u64);
        let mut before = 0;
        for item in run {
            let number = page_of(item).page.0;
            assert!(number < PageNo::LIMIT, "page numbers have 48 bits");
            write(item, zigzag(number as i64 - before), out);
            before = number as i64;
        }
    }
}

/// Reads what [`write_runs`] wrote; `read` returns the distance and the rest of the item, from
/// which `make` makes it.
fn read_runs<T, R>(
    bytes: Bytes,
    limit: usize,
    read: impl Fn(&mut Reader) -> Result<(u64, R), WireError>,
    make: impl Fn(PageId, R) -> T,
) -> Result<Vec<T>, WireError> {
    let mut reader = Reader::new(bytes);
    let mut items = Vec::new();
    while !reader.is_empty() {
        let volume = VolumeId(reader.u128()?);
        let mut before = 0i64;
        for _ in 0..reader.varint()? {
            check_limit(items.len(), limit, "pages")?;
            let (delta, rest) = read(&mut reader)?;
            let number = before.wrapping_add(unzigzag(delta));
            let page = page_no(number as u64)?;
            before = number;
            items.push(make(PageId { volume, page }, rest));
        }
    }
    Ok(items)
}

pub(super) fn read_pages(bytes: Bytes, limit: usize) -> Result<Vec<PageId>, WireError> {
    let read = |reader: &mut Reader| Ok((reader.varint()?, ()));
    read_runs(bytes, limit, read, |page, ()| page)
}

pub(super) fn read_asks(bytes: Bytes) -> Result<Vec<PageAsk>, WireError> {
    let read = |reader: &mut Reader| {
        let code = reader.varint()?;
        let have = if code & 1 == 0 { None } else { Some(stamp_of(reader.varint()?)?) };
        Ok((code >> 1, have))
    };
    read_runs(bytes, PAGES_PER_MESSAGE_MAX, read, |page, have| PageAsk { page, have })
}

fn write_answer(answer: &PageAnswer, delta: u64, out: &mut impl Sink) {
    let body = match answer.body {
        PageBody::Valid => 0,
        PageBody::Data(_) => 1,
        PageBody::Absent => 2,
        PageBody::Holed(..) => 3,
    };
    out.varint(delta << 2 | body);
    out.varint(answer.version.0);
    out.varint(zigzag(answer.as_of.0.wrapping_sub(answer.version.0) as i64));
    if let Some(bytes) = answer.body.image() {
        out.varint(bytes.len() as u64);
        out.bytes(bytes);
    }
    if let PageBody::Holed(_, holes) = &answer.body {
        out.varint(holes.len() as u64);
        let mut next = 0;
        for slot in holes {
            out.varint(u64::from(slot.0.wrapping_sub(next)));
            next = slot.0.wrapping_add(1);
        }
    }
}

pub(super) fn read_answers(bytes: Bytes) -> Result<Vec<PageAnswer>, WireError> {
    let read = |reader: &mut Reader| {
        let code = reader.varint()?;
        let version = reader.varint()?;
        let as_of = version.wrapping_add_signed(unzigzag(reader.varint()?));
        let body = match code & 3 {
            0 => PageBody::Valid,
            1 => PageBody::Data(read_payload(reader)?),
            2 => PageBody::Absent,
            3 => {
                let image = read_payload(reader)?;
                PageBody::Holed(image, read_holes(reader)?)
            }
            _ => return Err(WireError::Malformed("no page body")),
        };
        Ok((code >> 2, (stamp_of(version)?, stamp_of(as_of)?, body)))
    };
    read_runs(bytes, PAGES_PER_MESSAGE_MAX, read, |page, (version, as_of, body)| PageAnswer {
        page,
        version,
        as_of,
        body,
    })
}

/// How many slots of a page are not known, at least one, and which: each the distance from the one after the one before.
fn read_holes(reader: &mut Reader) -> Result<Vec<Slot>, WireError> {
    let bad = Err(WireError::Malformed("holes out of order, or too many"));
    let count = reader.varint()?;
    if !(1..=HOLES_MAX as u64).contains(&count) {
        return bad;
    }
    let (mut holes, mut next) = (Vec::new(), 0u64);
    for _ in 0..count {
        let slot = next.checked_add(reader.varint()?);
        let Some(slot) = slot.and_then(|slot| u16::try_from(slot).ok()) else { return bad };
        holes.push(Slot(slot));
        next = u64::from(slot) + 1;
    }
    Ok(holes)
}

/// Length and bytes: a page's image, a record or a part of a raw page.
fn read_payload(reader: &mut Reader) -> Result<Bytes, WireError> {
    let length = reader.varint()?;
    if length > u64::from(PAGE_BYTES_MAX) {
        return Err(WireError::Limit { what: "bytes of one page", limit: PAGE_BYTES_MAX as usize });
    }
    reader.take(length)
}

// ---- groups: what is named of each page, ascending ----

/// (target, aspect) as a number that rises with them.
fn code((target, aspect): (Target, Aspect)) -> u64 {
    let target = match target {
        Target::Page => 0,
        Target::Slot(slot) => u64::from(slot.0) + 1,
    };
    target << 1 | u64::from(aspect == Aspect::Value)
}

fn uncode(code: u64) -> Result<(Target, Aspect), WireError> {
    let aspect = if code & 1 == 0 { Aspect::Existence } else { Aspect::Value };
    let target = match code >> 1 {
        0 => Target::Page,
        slot => Target::Slot(Slot(
            u16::try_from(slot - 1).map_err(|_| WireError::Malformed("no slot"))?,
        )),
    };
    Ok((target, aspect))
}

/// Writes a number above the one before (0 at first) as the distance.
fn write_rise(out: &mut impl Sink, before: &mut u64, number: u64, what: &'static str) {
    assert!(number > *before, "{what} must ascend without repeats");
    out.varint(number - *before);
    *before = number;
}

/// Reads a number written by [`write_rise`].
fn read_rise(reader: &mut Reader, before: &mut u64) -> Result<u64, WireError> {
    let rise = reader.varint()?;
    let number = before.checked_add(rise);
    *before =
        number.filter(|_| rise > 0).ok_or(WireError::Malformed("numbers that do not ascend"))?;
    Ok(*before)
}

/// Writes groups: volumes ascending, pages ascending, codes ascending. None may be empty.
fn write_groups<G, S: Sink>(
    out: &mut S,
    groups: &[G],
    page_of: impl Fn(&G) -> PageId,
    write_codes: impl Fn(&G, &mut S),
) {
    let runs = || groups.chunk_by(|a, b| page_of(a).volume == page_of(b).volume);
    out.varint(runs().count() as u64);
    let mut volume_before = None;
    for run in runs() {
        let volume = page_of(&run[0]).volume;
        assert!(volume_before < Some(volume), "volumes must ascend");
        volume_before = Some(volume);
        out.u128(volume.0);
        out.varint(run.len() as u64);
        let mut before = 0;
        for group in run {
            write_rise(out, &mut before, page_of(group).page.0, "pages");
            write_codes(group, out);
        }
    }
}

fn write_codes(out: &mut impl Sink, codes: impl ExactSizeIterator<Item = (Target, Aspect)>) {
    assert!(codes.len() > 0, "a page without anything named");
    out.varint(codes.len() as u64);
    let mut before = 0;
    for named in codes {
        // From 1, so that the first rises as well.
        write_rise(out, &mut before, code(named) + 1, "what is named of a page");
    }
}

/// Reads groups, handing each to `take`; `budget` is how many things may still be named.
fn read_groups(
    reader: &mut Reader,
    budget: &mut usize,
    limit: WireError,
    mut take: impl FnMut(PageId, Vec<(Target, Aspect)>),
) -> Result<(), WireError> {
    let mut volume_before = None;
    for _ in 0..reader.varint()? {
        let volume = VolumeId(reader.u128()?);
        if volume_before >= Some(volume) {
            return Err(WireError::Malformed("volumes that do not ascend"));
        }
        volume_before = Some(volume);
        let pages = reader.varint()?;
        if pages == 0 {
            return Err(WireError::Malformed("an empty group"));
        }
        let mut page_before = 0;
        for _ in 0..pages {
            let page = page_no(read_rise(reader, &mut page_before)?)?;
            let named = read_codes(reader, budget, &limit)?;
            take(PageId { volume, page }, named);
        }
    }
    Ok(())
}

fn read_codes(
    reader: &mut Reader,
    budget: &mut usize,
    limit: &WireError,
) -> Result<Vec<(Target, Aspect)>, WireError> {
    let count = reader.varint()?;
    if count == 0 {
        return Err(WireError::Malformed("an empty group"));
    }
    let mut named = Vec::with_capacity(count.min(8) as usize);
    let mut before = 0;
    for _ in 0..count {
        *budget = budget.checked_sub(1).ok_or_else(|| limit.clone())?;
        named.push(uncode(read_rise(reader, &mut before)? - 1)?);
    }
    Ok(named)
}

fn write_reads(reads: &[Read], out: &mut impl Sink) {
    let groups: Vec<&[Read]> = reads.chunk_by(|a, b| a.page == b.page).collect();
    write_groups(
        out,
        &groups,
        |group| group[0].page,
        |group, out| {
            write_codes(out, group.iter().map(|read| (read.target, read.aspect)));
        },
    );
}

pub(super) fn read_reads(bytes: Bytes) -> Result<Vec<Read>, WireError> {
    let mut reads = Vec::new();
    if bytes.is_empty() {
        return Ok(reads);
    }
    let mut reader = Reader::new(bytes);
    let mut budget = COMMIT_READS_MAX;
    let limit = WireError::Limit { what: "reads", limit: COMMIT_READS_MAX };
    read_groups(&mut reader, &mut budget, limit, |page, named| {
        reads.extend(named.into_iter().map(|(target, aspect)| Read { page, target, aspect }));
    })?;
    finish(&reader)?;
    Ok(reads)
}

fn write_changes(changes: &[Change], out: &mut impl Sink) {
    let (mut stamp, mut boot) = (0, None);
    for change in changes {
        write_rise(out, &mut stamp, change.stamp.0, "stamps");
        if boot == Some(change.id.boot) {
            out.bytes(&[0]);
        } else {
            out.bytes(&[1]);
            out.u128(change.id.boot.0);
            boot = Some(change.id.boot);
        }
        out.varint(change.id.sequence);
        write_groups(
            out,
            &change.pages,
            |page| page.page,
            |page, out| {
                write_codes(out, page.touched.iter().copied());
            },
        );
    }
}

pub(super) fn read_changes(bytes: Bytes) -> Result<Vec<Change>, WireError> {
    let mut reader = Reader::new(bytes);
    let mut changes = Vec::new();
    let mut budget = TOUCHED_PER_ADVANCE_MAX;
    let (mut stamp, mut boot) = (0, None);
    while !reader.is_empty() {
        check_limit(changes.len(), CHANGES_PER_ADVANCE_MAX, "changes")?;
        let stamp = stamp_of(read_rise(&mut reader, &mut stamp)?)?;
        match reader.byte()? {
            0 => {}
            1 => boot = Some(BootId(reader.u128()?)),
            _ => return Err(WireError::Malformed("no boot")),
        }
        let boot = boot.ok_or(WireError::Malformed("the first change names no boot"))?;
        let sequence = reader.varint()?;
        let mut pages = Vec::new();
        let limit = WireError::Limit { what: "things changed", limit: TOUCHED_PER_ADVANCE_MAX };
        read_groups(&mut reader, &mut budget, limit, |page, touched| {
            pages.push(PageChange { page, touched });
        })?;
        changes.push(Change { stamp, id: CommitId { boot, sequence }, pages });
    }
    Ok(changes)
}

fn finish(reader: &Reader) -> Result<(), WireError> {
    if reader.is_empty() { Ok(()) } else { Err(WireError::Malformed("bytes after the end")) }
}

// ---- writes: in the order given, runs of ops to one page ----

const CREATE_SLOTTED: u8 = 1;
const CREATE_RAW: u8 = 2;
const DELETE_PAGE: u8 = 3;
const PUT: u8 = 4;
const DELETE: u8 = 5;
const ADD: u8 = 6;
const MAX: u8 = 7;
const WRITE_RAW: u8 = 8;
const TRUNCATE_RAW: u8 = 9;
const RESTORE_PAGE: u8 = 10;

fn write_writes(writes: &[Write], out: &mut impl Sink) {
    let mut before = PageId::default();
    for run in writes.chunk_by(|a, b| a.page == b.page) {
        let page = run[0].page;
        // The count's lowest bit says whether another volume follows.
        let other_volume = page.volume != before.volume;
        out.varint((run.len() as u64) << 1 | u64::from(other_volume));
        if other_volume {
            out.u128(page.volume.0);
            before = PageId::default();
        }
        assert!(page.page.0 < PageNo::LIMIT, "page numbers have 48 bits");
        out.varint(zigzag(page.page.0 as i64 - before.page.0 as i64));
        before = page;
        for write in run {
            write_op(&write.op, out);
        }
    }
}

fn write_op(op: &Op, out: &mut impl Sink) {
    let object = |tag: u8, slot: &Slot, generation: &Generation, out: &mut dyn FnMut(u64)| {
        out(u64::from(tag));
        out(u64::from(slot.0));
        out(u64::from(generation.0));
    };
    let mut number = |value: u64| out.varint(value);
    match op {
        Op::CreatePage(PageKind::Slotted) => number(u64::from(CREATE_SLOTTED)),
        Op::CreatePage(PageKind::Raw) => number(u64::from(CREATE_RAW)),
        Op::DeletePage => number(u64::from(DELETE_PAGE)),
        Op::RestorePage { image } => {
            number(u64::from(RESTORE_PAGE));
            number(image.len() as u64);
            out.bytes(image);
        }
        Op::Put { slot, generation, value } => {
            object(PUT, slot, generation, &mut number);
            number(value.len() as u64);
            out.bytes(value);
        }
        Op::Delete { slot, generation } => object(DELETE, slot, generation, &mut number),
        Op::Add { slot, generation, offset, delta } => {
            object(ADD, slot, generation, &mut number);
            number(u64::from(*offset));
            number(zigzag(*delta));
        }
        Op::Max { slot, generation, offset, value } => {
            object(MAX, slot, generation, &mut number);
            number(u64::from(*offset));
            number(*value);
        }
        Op::WriteRaw { offset, bytes } => {
            number(u64::from(WRITE_RAW));
            number(u64::from(*offset));
            number(bytes.len() as u64);
            out.bytes(bytes);
        }
        Op::TruncateRaw { length } => {
            number(u64::from(TRUNCATE_RAW));
            number(u64::from(*length));
        }
    }
}

pub(super) fn read_writes(bytes: Bytes) -> Result<Vec<Write>, WireError> {
    let mut reader = Reader::new(bytes);
    let mut writes = Vec::new();
    let mut payload = 0;
    let mut before = PageId::default();
    while !reader.is_empty() {
        let code = reader.varint()?;
        if code & 1 == 1 {
            before = PageId { volume: VolumeId(reader.u128()?), page: PageNo::default() };
        }
        let number = (before.page.0 as i64).wrapping_add(unzigzag(reader.varint()?));
        let page = PageId { page: page_no(number as u64)?, ..before };
        before = page;
        for _ in 0..code >> 1 {
            check_limit(writes.len(), COMMIT_WRITES_MAX, "writes")?;
            let op = read_op(&mut reader)?;
            payload += op.payload_bytes();
            if payload > COMMIT_BYTES_MAX {
                return Err(WireError::Limit { what: "bytes written", limit: COMMIT_BYTES_MAX });
            }
            writes.push(Write { page, op });
        }
    }
    Ok(writes)
}

fn read_op(reader: &mut Reader) -> Result<Op, WireError> {
    let tag = reader.byte()?;
    let mut object =
        || -> Result<_, WireError> { Ok((Slot(reader.number()?), Generation(reader.number()?))) };
    Ok(match tag {
        CREATE_SLOTTED => Op::CreatePage(PageKind::Slotted),
        CREATE_RAW => Op::CreatePage(PageKind::Raw),
        DELETE_PAGE => Op::DeletePage,
        RESTORE_PAGE => Op::RestorePage { image: read_payload(reader)? },
        PUT => {
            let (slot, generation) = object()?;
            Op::Put { slot, generation, value: read_payload(reader)? }
        }
        DELETE => {
            let (slot, generation) = object()?;
            Op::Delete { slot, generation }
        }
        ADD => {
            let (slot, generation) = object()?;
            Op::Add {
                slot,
                generation,
                offset: reader.number()?,
                delta: unzigzag(reader.varint()?),
            }
        }
        MAX => {
            let (slot, generation) = object()?;
            Op::Max { slot, generation, offset: reader.number()?, value: reader.varint()? }
        }
        WRITE_RAW => Op::WriteRaw { offset: reader.number()?, bytes: read_payload(reader)? },
        TRUNCATE_RAW => Op::TruncateRaw { length: reader.number()? },
        _ => return Err(WireError::Malformed("no such op")),
    })
}
