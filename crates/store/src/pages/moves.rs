//! Moving images out of files of which much is gone.
//!
//! The engine can do that itself, as part of any of its compactions: it then reads such a file from its
//! beginning to its end, images that nothing refers to any more included, and one that does not check ends the
//! compaction; after a compaction that failed in the background the engine takes nothing more, and the next
//! start begins with the same one. A bit of one page would end the service of its domain. So the engine is told
//! never to move any, also where the store was made by an earlier version, and images are moved here, one by
//! one, while space is given back: what cannot be read stays where it is, for whoever asks for it.

use fjall::compaction::filter::ItemAccessor;
use fjall::{AbstractTree, Keyspace, KvSeparationOptions, SeqNo, UserValue};
use lsm_tree::{SequenceNumberCounter, ValueType};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The part of its oldest files with room to be gained that the engine moves images out of in a compaction.
const MOVED_BY_ENGINE: f32 = 0.0;
/// Images are moved out of a file of which at least one in so many bytes is gone.
const GONE_PART: u64 = 4;
/// At most this part of what is free is written again in one compaction.
const FREE_PART: u64 = 4;
/// The engine's folder of what it knows of its keyspaces.
const SETTINGS_FOLDER: &str = "keyspaces/0";
/// How the engine calls [`MOVED_BY_ENGINE`] there: a four-byte number behind the keyspace.
const SETTING: &[u8] = b"blob_age_cutoff";

/// Values from so many bytes on are kept apart from their keys.
pub(super) fn separation(from_bytes: u32) -> KvSeparationOptions {
    KvSeparationOptions::default()
        .separation_threshold(from_bytes)
        .compression(fjall::CompressionType::None)
        .age_cutoff(MOVED_BY_ENGINE)
}

/// Whether the engine would move a keyspace's images: what a keyspace was made with is what it keeps.
pub(super) fn engine_moves(keyspace: &Keyspace) -> bool {
    let separation = keyspace.config.kv_separation_opts.as_ref();
    separation.is_some_and(|options| options.age_cutoff != MOVED_BY_ENGINE)
}

/// Tells the engine in a directory, which is not open, that it is to move no images.
///
/// # Errors
/// Failures.
pub(super) fn forbid_engine(place: &Path) -> fjall::Result<()> {
    let (sequence, visible) = (SequenceNumberCounter::default(), SequenceNumberCounter::default());
    let folder = place.join(SETTINGS_FOLDER);
    let settings = lsm_tree::Config::new(folder, sequence.clone(), visible).open()?;
    // Of two entries of one key the later one counts.
    sequence.fetch_max(settings.get_highest_seqno().map_or(0, |highest| highest + 1));
    let mut changed = BTreeSet::new();
    for item in settings.iter(SeqNo::MAX, None) {
        let key = lsm_tree::Guard::key(item)?;
        if key.ends_with(SETTING) {
            changed.insert(key);
        }
    }
    let mut writing = settings.ingestion()?;
    for key in changed {
        writing.write(key, UserValue::from(MOVED_BY_ENGINE.to_le_bytes()))?;
    }
    Ok(writing.finish()?)
}

/// The files that images are to be moved out of, if any.
#[derive(Default)]
pub(super) struct Moving(Option<Files>);

struct Files {
    keyspace: Keyspace,
    numbers: BTreeSet<u64>,
    /// Something was moved.
    moved: AtomicBool,
}

impl Moving {
    /// The emptiest ones, as far as what is to be written again is little beside what is free.
    pub(super) fn out_of_emptiest(keyspace: &Keyspace, free: u64) -> fjall::Result<Self> {
        let version = keyspace.tree.current_version();
        let mut used: BTreeMap<u64, u64> = BTreeMap::new();
        for table in version.iter_tables() {
            for file in table.list_blob_file_references()?.into_iter().flatten() {
                *used.entry(file.blob_file_id).or_default() += file.on_disk_bytes;
            }
        }
        let mut emptiest = Vec::new();
        for file in version.blob_files.iter() {
            let all = std::fs::metadata(file.path()).map_or(0, |metadata| metadata.len());
            // One that nothing refers to is removed as a whole.
            let Some(used) = used.get(&file.id()) else { continue };
            if all.saturating_sub(*used) >= all / GONE_PART {
                emptiest.push((*used, file.id()));
            }
        }
        emptiest.sort_unstable();
        let mut left = free / FREE_PART;
        emptiest.retain(|(used, _)| {
            let fits = *used <= left;
            left = if fits { left - used } else { 0 };
            fits
        });
        let numbers: BTreeSet<u64> = emptiest.into_iter().map(|(_, file)| file).collect();
        let any = !numbers.is_empty();
        Ok(Self(any.then(|| Files {
            keyspace: keyspace.clone(),
            numbers,
            moved: AtomicBool::new(false),
        })))
    }

    pub(super) fn has_moved(&self) -> bool {
        self.0.as_ref().is_some_and(|files| files.moved.load(Ordering::Relaxed))
    }

    /// The image to be written again for an item; none: it stays where it is.
    pub(super) fn moved(&self, item: &ItemAccessor<'_>) -> Option<UserValue> {
        let files = self.0.as_ref().filter(|_| item.is_indirection())?;
        // What the item refers to is not told. If the key has another value by now, this may be the wrong
        // file: then an image is moved that need not have been, or stays.
        let newest = files.keyspace.tree.get_internal_entry(item.key(), SeqNo::MAX).ok()??;
        let file =
            (newest.key.value_type == ValueType::Indirection).then(|| file_of(&newest.value))??;
        let image = files.numbers.contains(&file).then(|| item.value().ok())??;
        files.moved.store(true, Ordering::Relaxed);
        Some(image)
    }
}

/// The file of what the engine keeps of an image beside its key: its place in the file, the number of the
/// file, and lengths; seven bits in a byte, the lowest first.
pub(super) fn file_of(reference: &[u8]) -> Option<u64> {
    let mut numbers = reference.split_inclusive(|byte| byte & 0x80 == 0);
    let _place = numbers.next()?;
    let number = numbers.next()?.iter().rev();
    Some(number.fold(0, |sum, byte| sum << 7 | u64::from(byte & 0x7f)))
}
