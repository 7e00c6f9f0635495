//! Slotted pages: a sorted directory growing from the front, records from the back.
//!
//! ```text
//! header | entry entry … | slack | … record record
//! ```
//!
//! An entry is (slot u16, generation u32, offset u24, length u24). Offsets count from the image's
//! *end* to the record's start, so that slack can be given and taken without touching them. An
//! entry of length 0 remembers the last generation of an emptied slot. An encoded image has no
//! slack, and its records lie in the order of their slots, the last one at the end.
//!
//! Slots that are not listed continue after the page's generation floor. Remembered generations
//! are forgotten, lowest first, when they need more than an eighth of the page or when their room
//! is wanted for objects; the floor rises to the highest forgotten (decision 0004).

use super::record::{self, inline_mut};
use super::{ENTRY_BYTES, HEADER_BYTES, OpError, Page, PageError, RECORD_BYTES_MIN};
use crate::commit::{Aspect, Target};
use crate::id::{Generation, Slot};
use std::ops::Range;

/// A slot whose last object had this generation is retired.
const GENERATION_LAST: u32 = u32::MAX;
/// Remembered generations may use this part of a page.
const REMEMBERED_PART: usize = 8;
/// A copied image gets this part of its length, and some bytes, as slack: so the copying that
/// growth costs is in proportion to the growth.
const SLACK_PART: usize = 8;
const SLACK_BYTES: usize = 64;

/// What is in a slotted page.
#[derive(Clone, Copy, Default)]
pub(super) struct Tally {
    /// Entries of the directory.
    pub(super) entries: u32,
    /// Of these: filled slots.
    pub(super) filled: u32,
    /// Of these: retired slots, never forgotten.
    retired: u32,
    /// Slots not listed continue after this generation.
    pub(super) floor: u32,
    /// Bytes of the filled slots' records.
    live: u32,
    /// The same, with room for a forward in each.
    reserved: u32,
    /// Of the filled slots: those whose record says where the object's bytes are. While there is
    /// none, the directory tells all of an object but its bytes.
    pub(super) elsewhere: u32,
    /// Bytes at the end of the image that hold records or the remains of replaced ones.
    area: u32,
}

impl Tally {
    /// Bytes of the page that only deletions can free.
    pub(super) fn used(&self) -> usize {
        HEADER_BYTES + ENTRY_BYTES * (self.filled + self.retired) as usize + self.reserved as usize
    }

    /// Entries that may be forgotten.
    fn remembered(&self) -> usize {
        (self.entries - self.filled - self.retired) as usize
    }

    /// Bytes of the image without slack and remains.
    pub(super) fn compact_bytes(&self) -> usize {
        HEADER_BYTES + ENTRY_BYTES * self.entries as usize + self.live as usize
    }

    /// The image has been made compact.
    pub(super) fn settle(&mut self) {
        self.area = self.live;
    }

    /// Counts an entry with its record (no bytes: an empty slot).
    fn gain(&mut self, entry: &Entry, record: &[u8]) {
        self.entries += 1;
        self.filled += u32::from(entry.is_filled());
        self.retired += u32::from(entry.is_retired());
        self.live += entry.length;
        self.reserved += reserve(entry.length);
        self.elsewhere += u32::from(record::elsewhere(record));
    }

    /// Takes back what [`Tally::gain`] counted.
    fn lose(&mut self, entry: &Entry, record: &[u8]) {
        self.entries -= 1;
        self.filled -= u32::from(entry.is_filled());
        self.retired -= u32::from(entry.is_retired());
        self.live -= entry.length;
        self.reserved -= reserve(entry.length);
        self.elsewhere -= u32::from(record::elsewhere(record));
    }
}

/// Bytes set aside for a record: none for an empty slot.
fn reserve(length: u32) -> u32 {
    if length == 0 { 0 } else { length.max(RECORD_BYTES_MIN as u32) }
}

/// One entry of the directory.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) slot: Slot,
    pub(super) generation: Generation,
    /// From the image's end to the record's start.
    offset: u32,
    /// Of the record; 0: the slot is empty.
    length: u32,
}

impl Entry {
    #[inline]
    fn read(bytes: &[u8]) -> Self {
        let bytes: &[u8; ENTRY_BYTES] = bytes.try_into().expect("an entry's bytes");
        let u24 = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], 0]);
        Self {
            slot: Slot(u16::from_le_bytes([bytes[0], bytes[1]])),
            generation: Generation(super::u32_at(bytes, 2)),
            offset: u24(6),
            length: u24(9),
        }
    }

    fn write(&self, bytes: &mut [u8]) {
        bytes[..2].copy_from_slice(&self.slot.0.to_le_bytes());
        bytes[2..6].copy_from_slice(&self.generation.0.to_le_bytes());
        bytes[6..9].copy_from_slice(&self.offset.to_le_bytes()[..3]);
        bytes[9..12].copy_from_slice(&self.length.to_le_bytes()[..3]);
    }

    #[inline]
    pub(super) fn is_filled(&self) -> bool {
        self.length > 0
    }

    fn is_retired(&self) -> bool {
        !self.is_filled() && self.generation.0 == GENERATION_LAST
    }

    /// Whether its generation may be forgotten, and is at most `floor`.
    fn is_forgotten(&self, floor: u32) -> bool {
        !self.is_filled() && self.generation.0 <= floor && !self.is_retired()
    }

    /// Where in the image its record lies.
    #[inline]
    pub(super) fn range(&self, bytes: &[u8]) -> Range<usize> {
        let start = bytes.len() - self.offset as usize;
        start..start + self.length as usize
    }

    /// Its record; no bytes: the slot is empty.
    fn record<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        if self.is_filled() { &bytes[self.range(bytes)] } else { &[] }
    }

    /// What makes two entries equal, wherever their records lie.
    pub(super) fn content<'a>(&self, bytes: &'a [u8]) -> (Slot, Generation, &'a [u8]) {
        (self.slot, self.generation, self.record(bytes))
    }
}

#[inline]
fn entry_at(bytes: &[u8], index: usize) -> Entry {
    Entry::read(&bytes[HEADER_BYTES + index * ENTRY_BYTES..][..ENTRY_BYTES])
}

/// All entries, ascending by slot.
pub(super) fn entries(page: &Page) -> impl Iterator<Item = Entry> + '_ {
    page.bytes[HEADER_BYTES..][..page.tally.entries as usize * ENTRY_BYTES]
        .chunks_exact(ENTRY_BYTES)
        .map(Entry::read)
}

/// Where a slot's entry is (`Ok`) or would be (`Err`).
#[inline]
fn find(page: &Page, slot: Slot) -> Result<usize, usize> {
    let directory = &page.bytes[HEADER_BYTES..][..page.tally.entries as usize * ENTRY_BYTES];
    let slot_at = |index: usize| {
        let at = index * ENTRY_BYTES;
        u16::from_le_bytes([directory[at], directory[at + 1]])
    };
    // Slots ascend without repeats: a slot's entry is never behind the place of its number, and
    // right there in a page without gaps before it.
    let place = usize::from(slot.0);
    let (mut low, mut high) = (0, page.tally.entries as usize);
    if place < high {
        if slot_at(place) == slot.0 {
            return Ok(place);
        }
        high = place;
    }
    while low < high {
        let middle = low.midpoint(high);
        if slot_at(middle) < slot.0 {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if low < page.tally.entries as usize && entry_at(&page.bytes, low).slot == slot {
        Ok(low)
    } else {
        Err(low)
    }
}

/// A filled slot's entry. Raw pages have no entries.
#[inline]
pub(super) fn filled(page: &Page, slot: Slot) -> Option<Entry> {
    let index = find(page, slot).ok()?;
    Some(entry_at(&page.bytes, index)).filter(Entry::is_filled)
}

/// The generation that a new object in an empty slot must have.
pub(super) fn next_generation(page: &Page, slot: Slot) -> Option<Generation> {
    let last = match find(page, slot) {
        Ok(index) => {
            let entry = entry_at(&page.bytes, index);
            if entry.is_filled() {
                return None;
            }
            entry.generation.0
        }
        Err(_) => page.tally.floor,
    };
    last.checked_add(1).map(Generation)
}

/// The lowest slot that can be filled.
pub(super) fn free_slot(page: &Page) -> Option<Slot> {
    let mut expected = 0u32;
    for entry in entries(page) {
        let fits_before = u32::from(entry.slot.0) > expected && page.tally.floor < GENERATION_LAST;
        if fits_before {
            break;
        }
        if !entry.is_filled() && !entry.is_retired() {
            return Some(entry.slot);
        }
        expected = u32::from(entry.slot.0) + 1;
    }
    let slot = u16::try_from(expected).ok()?;
    (page.tally.floor < GENERATION_LAST).then_some(Slot(slot))
}

/// Checks the directory and records of an encoded image, and counts them.
pub(super) fn validate(image: &[u8], count: u32, floor: u32) -> Result<Tally, PageError> {
    let room = (image.len() - HEADER_BYTES) / ENTRY_BYTES;
    if count as usize > room {
        return Err(PageError::Damaged("the directory is longer than the page"));
    }
    let mut tally = Tally { floor, ..Tally::default() };
    let mut slot_before = None;
    // Records must follow one another from the directory to the end: none can overlap.
    let mut start = HEADER_BYTES + ENTRY_BYTES * count as usize;
    for index in 0..count as usize {
        let entry = entry_at(image, index);
        if slot_before.is_some_and(|before| before >= entry.slot) {
            return Err(PageError::Damaged("slots out of order"));
        }
        slot_before = Some(entry.slot);
        if entry.generation.0 == 0 {
            return Err(PageError::Damaged("generation 0"));
        }
        if entry.is_filled() {
            let end = start + entry.length as usize;
            if entry.offset as usize != image.len() - start || end > image.len() {
                return Err(PageError::Damaged("a record is not in its place"));
            }
            record::check(&image[start..end])?;
            start = end;
        } else if entry.offset != 0 || entry.is_forgotten(floor) {
            return Err(PageError::Damaged("a needless entry"));
        }
        tally.gain(&entry, entry.record(image));
    }
    if start != image.len() {
        return Err(PageError::Damaged("bytes after the last record"));
    }
    tally.settle();
    Ok(tally)
}

/// The image without slack and remains; header not set.
pub(super) fn compact(page: &Page) -> Vec<u8> {
    lay_out(&contents(page, None, page.tally.floor), page.tally.compact_bytes())
}

/// Creates or overwrites an object.
pub(super) fn put(
    page: &mut Page,
    slot: Slot,
    generation: Generation,
    value: &[u8],
    page_bytes: usize,
) -> Result<(Target, Aspect), OpError> {
    let too_long = HEADER_BYTES + ENTRY_BYTES + value.len().max(RECORD_BYTES_MIN) > page_bytes;
    let record = record::check(value).is_ok() && record::fits_volume(value, page_bytes);
    if too_long || !record {
        return Err(OpError::Malformed);
    }
    let found = find(page, slot);
    let old = found.ok().map(|index| entry_at(&page.bytes, index));
    let aspect = match old {
        Some(old) if old.is_filled() => {
            same_generation(generation, old.generation)?;
            let record = &page.bytes[old.range(&page.bytes)];
            if record::same_kind(record, value) { Aspect::Value } else { Aspect::Existence }
        }
        _ => {
            let next = next_generation(page, slot).ok_or(OpError::Gone)?;
            same_generation(generation, next)?;
            Aspect::Existence
        }
    };
    let new = Entry { slot, generation, offset: 0, length: bounded(value.len()) };
    let mut after = page.tally;
    if let Some(old) = old {
        after.lose(&old, old.record(&page.bytes));
    }
    after.gain(&new, value);
    if after.used() > page_bytes {
        return Err(OpError::Full);
    }
    let kept_max = (page_bytes - after.used()) / ENTRY_BYTES;
    if after.remembered() > kept_max {
        let floor = floor_to_keep(page, slot, kept_max.min(after.remembered() / 2));
        rebuild(page, Some((new, value)), floor, page_bytes);
        return Ok((Target::Page, Aspect::Existence));
    }
    place(page, found, new, value, page_bytes);
    Ok((Target::Slot(slot), aspect))
}

/// Puts a record where there is room for it, and its entry into the directory.
fn place(
    page: &mut Page,
    found: Result<usize, usize>,
    mut new: Entry,
    value: &[u8],
    page_bytes: usize,
) {
    let old = found.ok().map(|index| entry_at(&page.bytes, index));
    let entries = page.tally.entries as usize;
    let slack = page.bytes.len() - HEADER_BYTES - ENTRY_BYTES * entries - page.tally.area as usize;
    let shrinks = old.is_some_and(|old| new.length <= old.length);
    let needed = value.len() + if old.is_none() { ENTRY_BYTES } else { 0 };
    if !shrinks && needed > slack {
        rebuild(page, Some((new, value)), page.tally.floor, page_bytes);
        return;
    }
    if let Some(old) = old {
        page.tally.lose(&old, old.record(&page.bytes));
    }
    match old {
        Some(old) if shrinks => new.offset = old.offset,
        _ => {
            page.tally.area += new.length;
            new.offset = page.tally.area;
        }
    }
    page.modify(|bytes| {
        let (Ok(index) | Err(index)) = found;
        let at = HEADER_BYTES + index * ENTRY_BYTES;
        if old.is_none() {
            let end = HEADER_BYTES + entries * ENTRY_BYTES;
            bytes.copy_within(at..end, at + ENTRY_BYTES);
        }
        new.write(&mut bytes[at..]);
        let range = new.range(bytes);
        bytes[range].copy_from_slice(value);
    });
    page.tally.gain(&new, value);
    tidy(page, page_bytes);
}

/// Removes an object.
pub(super) fn delete(
    page: &mut Page,
    slot: Slot,
    generation: Generation,
    page_bytes: usize,
) -> Result<(Target, Aspect), OpError> {
    let index = holder(page, slot, generation)?;
    let old = entry_at(&page.bytes, index);
    let new = Entry { offset: 0, length: 0, ..old };
    page.tally.lose(&old, old.record(&page.bytes));
    page.modify(|bytes| new.write(&mut bytes[HEADER_BYTES + index * ENTRY_BYTES..]));
    page.tally.gain(&new, &[]);
    if new.is_forgotten(page.tally.floor) {
        // The floor says all that this entry would.
        rebuild(page, None, page.tally.floor, page_bytes);
        return Ok((Target::Slot(slot), Aspect::Existence));
    }
    let remembered_max = page_bytes / REMEMBERED_PART / ENTRY_BYTES;
    if page.tally.remembered() > remembered_max {
        let floor = floor_to_keep(page, None, remembered_max / 2);
        rebuild(page, None, floor, page_bytes);
        return Ok((Target::Page, Aspect::Existence));
    }
    tidy(page, page_bytes);
    Ok((Target::Slot(slot), Aspect::Existence))
}

/// Gives memory back when most of the image is remains.
fn tidy(page: &mut Page, page_bytes: usize) {
    let content = page.tally.compact_bytes() - HEADER_BYTES;
    if (page.bytes.len() - HEADER_BYTES) / 2 > content + SLACK_BYTES {
        rebuild(page, None, page.tally.floor, page_bytes);
    }
}

/// Changes a number in an inline object's value.
pub(super) fn edit_number(
    page: &mut Page,
    (slot, generation): (Slot, Generation),
    offset: u32,
    edit: impl FnOnce(&mut [u8]) -> Result<(), OpError>,
) -> Result<(Target, Aspect), OpError> {
    let index = holder(page, slot, generation)?;
    let range = entry_at(&page.bytes, index).range(&page.bytes);
    let value = record::inline(&page.bytes[range.clone()]).ok_or(OpError::Malformed)?;
    record::number(value, offset).ok_or(OpError::Malformed)?;
    page.modify(|bytes| {
        let value = inline_mut(&mut bytes[range]).expect("seen to be inline");
        edit(value).expect("the number was seen to be there");
    });
    Ok((Target::Slot(slot), Aspect::Value))
}

/// The entry of the slot that holds this generation.
fn holder(page: &Page, slot: Slot, generation: Generation) -> Result<usize, OpError> {
    match find(page, slot) {
        Ok(index) if entry_at(&page.bytes, index).is_filled() => {
            same_generation(generation, entry_at(&page.bytes, index).generation)?;
            Ok(index)
        }
        _ => {
            let next = next_generation(page, slot);
            if next.is_none_or(|next| generation < next) {
                Err(OpError::Gone)
            } else {
                Err(OpError::Malformed)
            }
        }
    }
}

/// A generation that was is gone; one that is still to come is nonsense.
fn same_generation(named: Generation, actual: Generation) -> Result<(), OpError> {
    match named.cmp(&actual) {
        std::cmp::Ordering::Less => Err(OpError::Gone),
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(OpError::Malformed),
    }
}

/// The lowest floor that leaves at most `kept_max` remembered generations; those of `spare` do
/// not count, since the slot is about to be filled.
fn floor_to_keep(page: &Page, spare: impl Into<Option<Slot>>, kept_max: usize) -> u32 {
    crate::probe::probe("generations-forgotten");
    let spare = spare.into();
    let mut generations: Vec<u32> = entries(page)
        .filter(|entry| !entry.is_filled() && !entry.is_retired() && Some(entry.slot) != spare)
        .map(|entry| entry.generation.0)
        .collect();
    generations.sort_unstable_by(|a, b| b.cmp(a));
    generations.get(kept_max).copied().unwrap_or(page.tally.floor)
}

/// A slot with its record; no record: empty, remembered.
type Content<'a> = (Slot, Generation, &'a [u8]);

/// What the page holds after `put` was put and the floor has risen to `floor`, ascending.
fn contents<'a>(page: &'a Page, put: Option<(Entry, &'a [u8])>, floor: u32) -> Vec<Content<'a>> {
    let mut contents = Vec::with_capacity(page.tally.entries as usize + 1);
    let mut put = put.map(|(entry, value)| (entry.slot, entry.generation, value));
    for entry in entries(page) {
        if let Some(new) = put.take_if(|new| new.0 <= entry.slot) {
            contents.push(new);
            if new.0 == entry.slot {
                continue;
            }
        }
        if !entry.is_forgotten(floor) {
            contents.push(entry.content(&page.bytes));
        }
    }
    contents.extend(put);
    contents
}

/// Makes an image of `length` bytes, header not set, records in order at its end.
fn lay_out(contents: &[Content<'_>], length: usize) -> Vec<u8> {
    let live: usize = contents.iter().map(|(_, _, record)| record.len()).sum();
    let mut bytes = vec![0; length];
    let mut left = live;
    for (index, (slot, generation, record)) in contents.iter().enumerate() {
        let entry = Entry {
            slot: *slot,
            generation: *generation,
            offset: if record.is_empty() { 0 } else { bounded(left) },
            length: bounded(record.len()),
        };
        entry.write(&mut bytes[HEADER_BYTES + index * ENTRY_BYTES..]);
        bytes[length - left..][..record.len()].copy_from_slice(record);
        left -= record.len();
    }
    bytes
}

/// Copies the page into an image without remains and with some slack, with `put` put and the
/// floor at `floor`.
fn rebuild(page: &mut Page, put: Option<(Entry, &[u8])>, floor: u32, page_bytes: usize) {
    let contents = contents(page, put, floor);
    let mut tally = Tally { floor, ..Tally::default() };
    for (slot, generation, record) in &contents {
        let (slot, generation, length) = (*slot, *generation, bounded(record.len()));
        tally.gain(&Entry { slot, generation, offset: 0, length }, record);
    }
    tally.settle();
    let compact = tally.compact_bytes();
    let slack = (compact / SLACK_PART + SLACK_BYTES).min(page_bytes.saturating_sub(compact));
    let bytes = lay_out(&contents, compact + slack);
    page.replace(bytes);
    page.tally = tally;
}

/// A length within a page.
fn bounded(length: usize) -> u32 {
    u32::try_from(length).expect("shorter than a page")
}
