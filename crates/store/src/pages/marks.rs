//! Marks of installs, which tell a whole engine from one that has lost some of them.
//!
//! `fjall` writes a batch to its journal, keeps it in memory, and writes each keyspace's memory to
//! tables when that is full. At a start it reads the journals again, and where one does not check it
//! cuts it off there, without a word. What was in tables already stays. So a damaged journal may give
//! any mixture: pages of install 9, metadata of 7, a change index without 5.
//!
//! Every install therefore leaves its number in each keyspace, in its own batch, and says of the one
//! before that it was followed. An engine is whole when all keyspaces end with the same number and
//! none is missing before: it is then as it was after that install, and the log has what came later,
//! or says that it has not.

use super::PagesError;
use fjall::{Database, Keyspace, OwnedWriteBatch, Readable};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// After so many installs every keyspace's memory is written to tables, where nothing is cut off.
const WRITTEN_OUT_EVERY: u64 = if cfg!(test) { 8 } else { 1024 };
/// Marks kept: the engine lets nobody go on with four tables of a keyspace still to be written, so
/// that no journal is needed for an install that is older than five times `WRITTEN_OUT_EVERY`.
const KEPT: u64 = 8 * WRITTEN_OUT_EVERY;

/// The last install.
const LAST: u8 = 1;
/// An install that another one followed.
const FOLLOWED: u8 = 2;

/// The number of the last install.
#[derive(Debug)]
pub(super) struct Marks(AtomicU64);

impl Marks {
    /// Looks at the marks of an engine that was opened; says what is missing.
    pub(super) fn check(
        database: &Database,
        place: &Path,
        keyspaces: &[(&str, &Keyspace)],
        fault: impl Fn(fjall::Error) -> PagesError,
    ) -> Result<Self, PagesError> {
        let lost = |what: &str, detail: String| PagesError::Lost {
            place: place.display().to_string(),
            what: what.to_owned(),
            detail,
        };
        let snapshot = database.snapshot();
        let mut newest = None;
        for (name, keyspace) in keyspaces {
            let mut marks = Vec::new();
            for item in snapshot.range::<[u8; 16], _>(keyspace, key(0)..=key(u64::MAX)) {
                // Pages of a volume with a small id lie between them: their images are not read.
                let (key, value) = item.into_inner_if(|key| is_mark(key)).map_err(&fault)?;
                if let (Some(number), Some(value)) = (number(&key), value) {
                    marks.push((number, value.first().copied()));
                }
            }
            let last = follow(&marks).map_err(|detail| lost(name, detail))?;
            match newest.replace(last) {
                Some(other) if other != last => {
                    let detail = format!("it ends with install {last}, and others with {other}");
                    return Err(lost(name, detail));
                }
                _ => {}
            }
        }
        Ok(Self(AtomicU64::new(newest.unwrap_or_default())))
    }

    /// Whether there was an install.
    pub(super) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Puts the next install's marks into its batch.
    pub(super) fn put(&self, batch: &mut OwnedWriteBatch, keyspaces: &[&Keyspace]) {
        let number = self.0.load(Ordering::Relaxed) + 1;
        for keyspace in keyspaces {
            batch.insert(keyspace, key(number), [LAST]);
            if number > 1 {
                batch.insert(keyspace, key(number - 1), [FOLLOWED]);
            }
            if number > KEPT {
                batch.remove(keyspace, key(number - KEPT));
            }
        }
    }

    /// The install is durable.
    pub(super) fn done(&self, keyspaces: &[&Keyspace]) -> fjall::Result<()> {
        let number = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        if number.is_multiple_of(WRITTEN_OUT_EVERY) {
            for keyspace in keyspaces {
                keyspace.rotate_memtable()?;
            }
        }
        Ok(())
    }
}

/// The last of a keyspace's marks, if none is missing.
fn follow(marks: &[(u64, Option<u8>)]) -> Result<u64, String> {
    let Some((last, _)) = marks.last() else {
        return Ok(0);
    };
    if *last == u64::MAX {
        return Err(format!("no install has the number {last}"));
    }
    let first = last.saturating_sub(KEPT) + 1;
    for (wanted, (number, state)) in (first..).zip(marks) {
        if *number != wanted {
            return Err(format!("install {} is not there, {last} is", wanted.min(*number)));
        }
        if *state != Some(if number == last { LAST } else { FOLLOWED }) {
            return Err(format!("install {number} is not where it was, {last} is there"));
        }
    }
    Ok(*last)
}

/// No other key is as long. No volume's range holds it, whose bounds are longer; and it comes before
/// every entry of the index, whose stamps are not 0.
fn key(number: u64) -> [u8; 16] {
    u128::from(number).to_be_bytes()
}

/// Whether a key is that of a mark.
pub(super) fn is_mark(key: &[u8]) -> bool {
    number(key).is_some()
}

fn number(key: &[u8]) -> Option<u64> {
    u64::try_from(u128::from_be_bytes(key.try_into().ok()?)).ok()
}

/// Bytes as a key; and as marks, each of how much its number is above that of the one before, and what it
/// says. What is taken for whole is so without a gap, and goes on.
#[cfg(feature = "testing")]
pub(super) fn check_decoders(bytes: &[u8]) {
    if let Some(number) = number(bytes) {
        assert_eq!(key(number)[..], *bytes);
    }
    let Some((begin, steps)) = bytes.split_first_chunk() else { return };
    let (mut at, mut marks) = (u64::from_le_bytes(*begin), Vec::new());
    for step in steps.chunks_exact(2) {
        marks.push((at, Some(step[1])));
        let Some(next) = at.checked_add(u64::from(step[0])) else { break };
        at = next;
    }
    if let Ok(last) = follow(&marks) {
        assert_eq!(last, marks.last().map_or(0, |(number, _)| *number));
        assert!(marks.windows(2).all(|two| two[0].0 + 1 == two[1].0), "a mark is missing");
        assert!(number(&key(last + 1)).is_some_and(|next| next > last), "it cannot go on");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::{FjallConfig, FjallPages, Pages};
    use larder_core::id::{PageId, PageNo, Stamp, VolumeId};
    use larder_core::record::{InstallBatch, InstalledPage, StoredPage};

    /// Longer than marks are kept, with starts in between: nothing is missed, and old marks go.
    #[test]
    fn marks_follow_each_other_for_good() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let open = || FjallPages::open(place.path(), &FjallConfig::default());
        let mut pages = open().expect("it is new");
        let page = PageId { volume: VolumeId(1), page: PageNo(1) };
        for stamp in 1..=3 * KEPT {
            let stored = StoredPage { version: Stamp(stamp), image: Some(vec![7; 40].into()) };
            let installed = InstalledPage { page, previous: Stamp(stamp - 1), stored };
            let batch = InstallBatch { pages: vec![installed], ..InstallBatch::default() };
            pages.install(&batch).expect("there is room");
            if stamp % 31 == 0 {
                drop(pages);
                pages = open().expect("nothing is missing");
            }
        }
        assert_eq!(pages.apart(), Ok(Vec::new()));
        assert_eq!(pages.pages_of(page.volume, PageNo(0), 100), Ok(vec![page]));
        let index = pages.changed_after((Stamp::ZERO, PageId::default()), 100);
        assert_eq!(index, Ok((vec![(Stamp(3 * KEPT), page)], false)));
    }

    #[test]
    fn marks_tell_what_is_missing() {
        let marks = |numbers: &[u64]| {
            let last = numbers.last().copied();
            let state = |number| if Some(number) == last { LAST } else { FOLLOWED };
            let marks: Vec<_> = numbers.iter().map(|n| (*n, Some(state(*n)))).collect();
            follow(&marks)
        };
        assert_eq!(marks(&[]), Ok(0));
        assert_eq!(marks(&[1]), Ok(1));
        assert_eq!(marks(&[1, 2, 3]), Ok(3));
        assert!(marks(&[2, 3]).is_err(), "the first is lost");
        assert!(marks(&[1, 3]).is_err(), "one between is lost");
        let many: Vec<u64> = (2..=KEPT + 1).collect();
        assert_eq!(marks(&many), Ok(KEPT + 1), "the first was no longer kept");
        assert!(marks(&many[1..]).is_err(), "one that is kept is lost");
        // Nothing could follow it: the next start would end in an overflow.
        assert!(marks(&(u64::MAX - KEPT + 1..=u64::MAX).collect::<Vec<_>>()).is_err());
        // The batch of install 2 has sunk below that of 1, whose word on itself then stands.
        assert!(follow(&[(1, Some(LAST)), (2, Some(FOLLOWED)), (3, Some(LAST))]).is_err());
        assert!(follow(&[(1, Some(FOLLOWED)), (2, Some(FOLLOWED))]).is_err());
    }
}
