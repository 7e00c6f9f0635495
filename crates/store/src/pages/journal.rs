//! The engine's journal, as far as it has to be understood from outside: which batches are whole.
//!
//! `fjall` cuts off what follows the last whole batch of its journal where an entry of it cannot be read.
//! Where all entries can, and the checksum of the batch is another one, or there are more or fewer of them than it
//! says, it refuses to open: so it is when a power cut, in the middle of an install that nobody was ever answered, kept
//! the sectors with the entries' beginnings, and lost one within an image or a length. Only such a batch is cut off by us. An install begins only when the
//! one before was synced: a whole batch after one that does not check proves that this one had been durable.
//! That is damage, and left for the engine to refuse. What lies within a batch proves nothing: an image is what
//! its writer wants it to be; but of one that the engine refuses before its end nobody knows where that is, and what is
//! taken for a batch behind that place may be an image's: then the engine is left to refuse, and the domain has to be
//! restored.

use xxhash_rust::xxh3::Xxh3;

const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;
/// Bytes of an item before its key, of which the last ten are the lengths of key and value (the value's
/// twice: nothing is compressed).
const ITEM_BYTES: usize = 21;
/// Ends a batch.
const MAGIC: &[u8] = b"FJL\x03";

/// Where a journal is to be cut off; none: as it is the engine opens it, or is to refuse it.
pub(super) fn torn_at(bytes: &[u8]) -> Option<usize> {
    let mut whole = 0;
    while let Some(length) = whole_batch(&bytes[whole..]) {
        whole += length;
    }
    let Batch::Refused(length) = Batch::read(&bytes[whole..]) else { return None };
    let after = &bytes[whole + length..];
    let is_whole = |at: usize| after[at] == START && whole_batch(&after[at..]).is_some();
    (!(0..after.len()).any(is_whole)).then_some(whole)
}

/// Bytes of the batch that begins here, if it is whole.
pub(super) fn whole_batch(bytes: &[u8]) -> Option<usize> {
    match Batch::read(bytes) {
        Batch::Whole(length) => Some(length),
        Batch::Refused(_) | Batch::Unreadable => None,
    }
}

/// What begins somewhere, as the engine reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Batch {
    /// A batch of so many bytes.
    Whole(usize),
    /// One that the engine refuses when it has read so many bytes: its checksum is another one, or an end comes
    /// before all entries, or an entry where the end is due.
    Refused(usize),
    /// Something of it cannot be read: the engine cuts it off.
    Unreadable,
}

impl Batch {
    fn read(bytes: &[u8]) -> Self {
        let mut rest = bytes;
        let refused = Self::entries(&mut rest);
        let length = bytes.len() - rest.len();
        match refused {
            Some(true) => Self::Refused(length),
            Some(false) => Self::Whole(length),
            None => Self::Unreadable,
        }
    }

    /// Whether the engine refuses a batch when it has read what is taken from `rest`; none: it cannot read on.
    fn entries(rest: &mut &[u8]) -> Option<bool> {
        if take(rest, 1)? != [START] {
            return None;
        }
        let mut items = u32::from_le_bytes(take(rest, 4)?.try_into().ok()?);
        let _sequence_number = take(rest, 8)?;
        let mut sum = Xxh3::new();
        loop {
            let length = match *rest.first()? {
                ITEM => {
                    let head = rest.get(..ITEM_BYTES)?;
                    let key = u16::from_le_bytes(head[11..13].try_into().ok()?);
                    let value = u32::from_le_bytes(head[17..21].try_into().ok()?);
                    ITEM_BYTES + usize::from(key) + value as usize
                }
                CLEAR => 1 + 8,
                END => {
                    let told = u64::from_le_bytes(rest.get(1..9)?.try_into().ok()?);
                    let magic = rest.get(9..9 + MAGIC.len())?;
                    if magic != MAGIC {
                        return None;
                    }
                    take(rest, 9 + MAGIC.len())?;
                    return Some(items > 0 || told != sum.digest());
                }
                _ => return None,
            };
            sum.update(take(rest, length)?);
            let Some(left) = items.checked_sub(1) else { return Some(true) };
            items = left;
        }
    }
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

/// See [`super::check_journal`]. As batches: how many items one has; of each how long its key and its value
/// are, of what bytes; after the batches, at 0, what is lost of the last of them: where, and to what.
#[cfg(feature = "testing")]
pub(super) fn check(bytes: &[u8]) {
    if let Some(at) = torn_at(bytes) {
        assert_eq!(torn_at(&bytes[..at]), None, "it was cut off, and is torn");
    }
    let (mut journal, mut begins, mut rest) = (Vec::new(), Vec::new(), bytes);
    while let Some((items @ 1.., after)) = rest.split_first() {
        begins.push(journal.len());
        (journal, rest) = with_batch(journal, *items, after);
    }
    let (begin, all) = (begins.last().copied().unwrap_or(0), journal.len());
    journal.resize(all + 64, 0);
    assert_eq!(torn_at(&journal), None, "nothing is torn");
    let harm = rest.get(1..).unwrap_or_default();
    let mut is_harmed = false;
    for [low, high, byte] in harm.chunks_exact(3).map(|harm| [harm[0], harm[1], harm[2]]) {
        let at = begin + usize::from(u16::from_le_bytes([low, high])) % (all - begin).max(1);
        is_harmed |= at < all && journal[at] != byte;
        if at < all {
            journal[at] = byte;
        }
    }
    // What the last one was is not known any more; all before it stays, whatever its images hold.
    let cut = torn_at(&journal);
    let last = Batch::read(&journal[begin..]);
    if matches!(last, Batch::Whole(_)) {
        // Another one was made of it, and something lies behind that.
        return;
    }
    assert!(cut.is_none_or(|cut| is_harmed && cut == begin), "{cut:?} of {begins:?}");
    // Behind where the engine stops its image may hold whole ones.
    let torn = matches!(last, Batch::Refused(length) if length == all - begin);
    assert!(cut.is_some() || !torn, "the engine is left with what it refuses");
}

#[cfg(feature = "testing")]
fn with_batch(mut journal: Vec<u8>, items: u8, mut bytes: &[u8]) -> (Vec<u8>, &[u8]) {
    journal.push(START);
    journal.extend(u32::from(items).to_le_bytes());
    journal.extend(7_u64.to_le_bytes());
    let mut sum = Xxh3::new();
    for _ in 0..items {
        let begin = journal.len();
        let (lengths, rest) = bytes.split_first_chunk::<2>().unwrap_or((&[0; 2], &[]));
        let [key, value] = lengths.map(usize::from);
        let (body, rest) = rest.split_at((key + value).min(rest.len()));
        bytes = rest;
        if lengths == &[0; 2] {
            journal.extend([CLEAR, 1, 0, 0, 0, 0, 0, 0, 0]);
        } else {
            let key = key.min(body.len());
            let value = ((body.len() - key) as u32).to_le_bytes();
            journal.extend([ITEM, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
            journal.extend((key as u16).to_le_bytes());
            journal.extend([value, value].concat());
            journal.extend(body);
        }
        sum.update(&journal[begin..]);
    }
    journal.push(END);
    journal.extend(sum.digest().to_le_bytes());
    journal.extend(MAGIC);
    (journal, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only from the bytes of a batch to its end marker it is known how long it is: whatever harms these is
    /// left for the engine, which cuts it off.
    #[test]
    fn what_cannot_be_read_is_left_for_the_engine() {
        let (journal, _) = with_batch(Vec::new(), 2, b"\x01\x04kvalu\x01\x02kva");
        assert_eq!(whole_batch(&journal), Some(journal.len()));
        assert_eq!(torn_at(&journal), None, "it is whole");
        for length in 0..journal.len() {
            assert_eq!(torn_at(&journal[..length]), None, "{length}");
        }
        let mut torn = journal.clone();
        torn[13 + ITEM_BYTES + 1] ^= 1;
        assert_eq!(torn_at(&torn), Some(0), "a value is another");
        assert_eq!(torn_at(&[&torn[..], &journal].concat()), None, "it was durable once");
    }

    /// A length lost two of its bytes, and what was read in the place of the next entry was the image's own: an entry
    /// where the end was due, or an end where entries were. The engine refuses both, and its domain would not serve.
    #[test]
    fn a_batch_of_more_or_fewer_entries_than_it_says_is_cut_off() {
        let (journal, _) = with_batch(Vec::new(), 2, b"\x01\x04kvalu\x01\x02kva");
        let end = [&[END][..], &[7; 8], MAGIC].concat();
        let first = 13 + ITEM_BYTES + 1 + 4;
        let fewer = [&journal[..first], &end, &[0; 40]].concat();
        assert_eq!(Batch::read(&fewer), Batch::Refused(first + end.len()));
        assert_eq!(torn_at(&fewer), Some(0));
        let last = journal.len() - end.len();
        let more = [&journal[..last], &[CLEAR; 9], &end, &[0; 40]].concat();
        assert_eq!(Batch::read(&more), Batch::Refused(last + 9));
        assert_eq!(torn_at(&more), Some(0));
        assert_eq!(torn_at(&[&journal[..], &more].concat()), Some(journal.len()));
    }
}
