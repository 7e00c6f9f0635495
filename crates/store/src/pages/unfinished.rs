//! What a power cut leaves of the engine's files and the engine refuses: looked at before it is opened.
//!
//! *A torn batch*, as `journal` says. It is cut off here.
//!
//! *Names that are not durable yet.* A process that was killed leaves names as it last saw them, synced or
//! not. The engine removes, at its start, what those do not need: were a renaming lost after that and the
//! removal kept, nothing would be left of either. So all its folders are synced first (rule 14).
//!
//! *An engine that was never made.* Its files are made one after the other, and its keyspaces after them. What
//! a power cut leaves of that is refused at the next start, or, worse, at the one after: the engine makes a
//! keyspace anew whose folder is gone, under the number of another, whose settings are still noted as the
//! newer ones. So an engine is made in a folder beside its place and gets its name once it is whole and durable.

use super::fjall::{KEYSPACES_NAME, sync_folder};
use super::{PagesError, journal};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Names of the engine's files.
const LOCK_NAME: &str = "lock";
const VERSION_NAME: &str = "version";
const JOURNAL_SUFFIX: &str = "jnl";
/// Follows the name of the engine's folder while it is being made.
const ASIDE_SUFFIX: &str = ".new";

/// The markers of the formats that the engine knows.
const VERSIONS: [&[u8]; 3] = [b"FJL\x01", b"FJL\x02", b"FJL\x03"];

/// Makes an engine with `make` where there is none, or only what an earlier version left of one that it never
/// finished. Whoever calls this keeps others from the folder above. A cut leaves no engine or a whole one.
///
/// # Errors
/// Failures, those of `make` too; something beside a marker that is gone.
pub(super) fn make(
    place: &Path,
    make: impl FnOnce(&Path) -> Result<(), PagesError>,
) -> Result<(), PagesError> {
    let failed = |error: io::Error| PagesError::Failed {
        place: place.display().to_string(),
        detail: error.to_string(),
    };
    if is_made(place).map_err(failed)? {
        return Ok(());
    }
    for (_, journal) in &journals(place).map_err(failed)? {
        if !data(journal).map_err(failed)?.iter().all(|byte| *byte == 0) {
            return Err(lost(place, journal));
        }
    }
    let keyspaces = place.join(KEYSPACES_NAME);
    if !is_empty(&keyspaces).map_err(failed)? {
        return Err(lost(place, &keyspaces));
    }
    let mut name = place.file_name().unwrap_or_default().to_owned();
    name.push(ASIDE_SUFFIX);
    let aside = place.with_file_name(name);
    remove(&aside).map_err(failed)?;
    make(&aside)?;
    sync(&aside, true).map_err(failed)?;
    remove(place).map_err(failed)?;
    std::fs::rename(&aside, place).map_err(failed)?;
    match place.parent() {
        Some(parent) => sync_folder(parent).map_err(failed),
        None => Ok(()),
    }
}

fn lost(place: &Path, beside: &Path) -> PagesError {
    PagesError::Lost {
        place: place.display().to_string(),
        what: VERSION_NAME.into(),
        detail: format!("it is gone or not known, and {} holds something", beside.display()),
    }
}

/// Mends what the engine would refuse in its folder, if there is any such thing. Nothing is done in one
/// that another process uses.
///
/// # Errors
/// Failures.
pub(super) fn mend(place: &Path) -> Result<(), PagesError> {
    let failed = |error: io::Error| PagesError::Failed {
        place: place.display().to_string(),
        detail: error.to_string(),
    };
    let lock = match OpenOptions::new().read(true).write(true).open(place.join(LOCK_NAME)) {
        Ok(lock) => Some(lock),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    match lock.as_ref().map(File::try_lock) {
        Some(Err(TryLockError::WouldBlock)) => return Ok(()),
        Some(Err(TryLockError::Error(error))) => return Err(failed(error)),
        Some(Ok(())) => {}
        None => File::create(place.join(LOCK_NAME)).map(drop).map_err(failed)?,
    }
    sync(place, false).map_err(failed)?;
    match journals(place).map_err(failed)?.last() {
        Some((_, newest)) => cut_torn_batch(newest).map_err(failed),
        None => Ok(()),
    }
}

/// Syncs a folder and all folders below it, or all files too.
fn sync(folder: &Path, files: bool) -> io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync(&entry.path(), files)?;
        } else if files {
            File::open(entry.path())?.sync_all()?;
        }
    }
    File::open(folder)?.sync_all()
}

/// Whether nothing is in the folder; none is there: nothing is.
fn is_empty(folder: &Path) -> io::Result<bool> {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

/// Removes a folder and all in it, if it is there.
fn remove(folder: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether the marker is there that is written last, with its bytes.
fn is_made(place: &Path) -> io::Result<bool> {
    match std::fs::read(place.join(VERSION_NAME)) {
        // Of an earlier version a power cut may have left another one, as long as it was not synced.
        Ok(bytes) => Ok(VERSIONS.contains(&bytes.as_slice())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The journals, oldest first.
fn journals(place: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let entries = match std::fs::read_dir(place) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let number = path.file_stem().and_then(|stem| stem.to_str()?.parse().ok());
        if let (Some(number), true) =
            (number, path.extension().is_some_and(|suffix| suffix == JOURNAL_SUFFIX))
        {
            found.push((number, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// A file's bytes up to where only a hole follows: a journal's room is reserved.
fn data(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut end = 0;
    while end < length {
        let begin = match rustix::fs::seek(&file, SeekFrom::Data(end)) {
            Ok(begin) => begin,
            Err(Errno::NXIO) => break,
            // A file system that does not know its holes.
            Err(_) => {
                end = length;
                break;
            }
        };
        end = rustix::fs::seek(&file, SeekFrom::Hole(begin)).unwrap_or(length);
    }
    rustix::fs::seek(&file, SeekFrom::Start(0))?;
    let mut bytes = Vec::new();
    file.take(end).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn cut_torn_batch(path: &Path) -> io::Result<()> {
    let Some(whole) = journal::torn_at(&data(path)?) else { return Ok(()) };
    let file = OpenOptions::new().write(true).open(path)?;
    file.set_len(whole as u64)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::journal::whole_batch;
    use crate::pages::{FjallConfig, FjallPages, Pages};
    use larder_core::id::{PageId, PageNo, Stamp, VolumeId};
    use larder_core::record::{InstallBatch, InstalledPage, StoredPage};
    use std::os::unix::fs::FileExt;

    const JOURNAL: &str = "0.jnl";

    fn page(stamp: u64) -> PageId {
        PageId { volume: VolumeId(1), page: PageNo(stamp) }
    }

    fn open(place: &Path) -> Result<FjallPages, PagesError> {
        FjallPages::open(place, &FjallConfig::default())
    }

    /// An engine with two installs; where the second one begins in the journal, and its length.
    fn two_installs(place: &Path) -> (usize, usize) {
        installs(place, [vec![7; 6000], vec![7; 6000]])
    }

    fn installs(place: &Path, images: [Vec<u8>; 2]) -> (usize, usize) {
        let pages = open(place).expect("it is new");
        for (stamp, image) in (1..).zip(images) {
            let stored = StoredPage { version: Stamp(stamp), image: Some(image.into()) };
            let installed = InstalledPage { page: page(stamp), previous: Stamp(0), stored };
            let batch = InstallBatch { pages: vec![installed], ..InstallBatch::default() };
            pages.install(&batch).expect("there is room");
        }
        drop(pages);
        let bytes = std::fs::read(place.join(JOURNAL)).expect("it is there");
        let first = whole_batch(&bytes).expect("the first install");
        (first, whole_batch(&bytes[first..]).expect("the second install"))
    }

    /// The story: the power was cut in the middle of an install, and of what was being written to the
    /// engine's journal one sector within an image was lost and all others were kept. The engine refused
    /// to open (`ChecksumMismatch`), and with it the domain, though nothing was lost that had been answered.
    #[test]
    fn an_install_that_was_torn_anywhere_is_not_there_and_all_before_it_is() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let (first, length) = two_installs(place.path());
        let clean = std::fs::read(place.path().join(JOURNAL)).expect("it is there");
        let begin = first.next_multiple_of(512);
        for sector in (begin..first + length).step_by(3 * 512) {
            let copy = tempfile::tempdir().expect("a directory for the test");
            copy_tree(place.path(), copy.path());
            let journal = File::options().write(true).open(copy.path().join(JOURNAL));
            let lost = clean.len().min(sector + 512).min(first + length) - sector;
            journal
                .expect("it is there")
                .write_all_at(&vec![0; lost], sector as u64)
                .expect("it is ours");
            let pages = open(copy.path()).unwrap_or_else(|error| panic!("{sector}: {error}"));
            assert!(pages.load(page(1)).expect("no fault").is_some(), "{sector}");
            assert_eq!(pages.load(page(2)), Ok(None), "{sector}");
        }
    }

    /// The story: somebody kept the files of an engine in a volume, and the power was cut in the middle of the
    /// install of a page that held a whole batch of its journal. That batch passed for a later install of the
    /// origin's own engine, the torn one for damage, and the domain was refused, though nothing was lost.
    #[test]
    fn a_torn_install_of_a_page_that_holds_a_batch_is_not_there() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let other = tempfile::tempdir().expect("a directory for the test");
        let (batch, _) = installs(other.path(), [vec![8; 100], vec![8; 100]]);
        let mut image = std::fs::read(other.path().join(JOURNAL)).expect("it is there");
        image.truncate(batch);
        image.resize(6000, 7);
        let (first, length) = installs(place.path(), [vec![7; 6000], image]);
        let journal = place.path().join(JOURNAL);
        let sector = (first + length / 2).next_multiple_of(512);
        let file = File::options().write(true).open(&journal).expect("it is there");
        file.write_all_at(&[0; 512], sector as u64).expect("it is ours");
        let pages = open(place.path()).expect("nothing is lost");
        assert!(pages.load(page(1)).expect("no fault").is_some());
        assert_eq!(pages.load(page(2)), Ok(None));
    }

    /// An install that was durable once, and does not check, is damage: it is not cut off, with all that
    /// came after it.
    #[test]
    fn a_damaged_install_before_a_whole_one_is_left_to_be_refused() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let (first, _) = two_installs(place.path());
        let journal = place.path().join(JOURNAL);
        let file = File::options().write(true).open(&journal).expect("it is there");
        file.write_all_at(&[9], first as u64 / 2).expect("it is ours");
        let damaged = std::fs::read(&journal).expect("it is there");
        mend(place.path()).expect("nothing fails");
        assert!(std::fs::read(&journal).expect("it is there") == damaged, "nothing is cut off");
        open(place.path()).expect_err("the engine refuses");
    }

    /// The story: the power was cut while a store was being made, or right after it, and left the engine's
    /// files in part, without the marker, without its bytes, or without the lock. Every further start failed:
    /// the engine did not make what was there already.
    #[test]
    fn an_engine_that_was_never_made_is_made() {
        type Leave = fn(&Path) -> io::Result<()>;
        let leave: [Leave; 4] = [
            |place| File::create(place.join(JOURNAL))?.set_len(64 << 20),
            |place| File::create(place.join(VERSION_NAME)).map(drop),
            |place| std::fs::create_dir(place.join("keyspaces")),
            |place| File::create(place.join(LOCK_NAME)).map(drop),
        ];
        for which in [0b0001, 0b0010, 0b0111, 0b1101] {
            let place = tempfile::tempdir().expect("a directory for the test");
            for (number, leave) in leave.iter().enumerate() {
                if which & 1 << number != 0 {
                    leave(place.path()).expect("it is ours");
                }
            }
            drop(open(place.path()).unwrap_or_else(|error| panic!("{which:b}: {error}")));
            std::fs::remove_file(place.path().join(LOCK_NAME)).expect("it is there");
            drop(open(place.path()).unwrap_or_else(|error| panic!("{which:b}: {error}")));
        }
    }

    /// The story: the power was cut while the engine's keyspaces were being made, twice; of the second of
    /// them the engine had noted settings under a number that it then gave to the first, and read the older ones as
    /// the newer. The store was served, and two starts later it was refused (`Unrecoverable`), with all it held.
    #[test]
    fn an_engine_gets_its_name_once_it_is_whole() {
        let above = tempfile::tempdir().expect("a directory for the test");
        let place = above.path().join("pages");
        let detail = String::from("cut");
        let cut = |aside: &Path| {
            drop(open(aside).expect("it is new"));
            std::fs::remove_dir_all(aside.join(KEYSPACES_NAME).join("1")).expect("it is there");
            Err(PagesError::Failed { place: aside.display().to_string(), detail })
        };
        make(&place, cut).expect_err("the power was cut");
        assert!(!place.exists(), "nothing has its name yet");
        two_installs(&place);
        for _ in 0..3 {
            let pages = open(&place).expect("it is whole");
            assert!(pages.load(page(2)).expect("no fault").is_some());
        }
        assert_eq!(
            std::fs::read_dir(above.path()).expect("it is there").count(),
            1,
            "none is left over"
        );
    }

    #[test]
    fn journals_beside_a_marker_that_is_gone_are_not_removed() {
        let place = tempfile::tempdir().expect("a directory for the test");
        two_installs(place.path());
        std::fs::remove_file(place.path().join(VERSION_NAME)).expect("it is there");
        let refused = open(place.path()).expect_err("something is lost");
        assert!(matches!(refused, PagesError::Lost { .. }), "{refused}");
    }

    fn copy_tree(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).expect("it is ours");
        for entry in std::fs::read_dir(from).expect("it is there") {
            let entry = entry.expect("it is there");
            let to = to.join(entry.file_name());
            if entry.file_type().expect("it is there").is_dir() {
                copy_tree(&entry.path(), &to);
            } else {
                std::fs::copy(entry.path(), to).expect("there is room");
            }
        }
    }
}
