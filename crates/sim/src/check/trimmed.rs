//! What a log still holds when it has given space back: whatever is not installed. A start after that would
//! show it too, but only one that comes before the next install.

use larder_core::id::DomainId;
use larder_core::record::Lsn;
use larder_store::disk::{Disk, DiskFile};
use larder_store::pages::{ModelPages, Pages};
use larder_store::testing::FaultDisk;

/// Panics when a record is neither installed nor in the log. Not for a disk with damage that was not mended:
/// the header of a segment may be what is damaged.
pub fn check(domain: DomainId, disk: &FaultDisk, pages: &ModelPages) {
    let meta = pages.meta().expect("the model has its metadata in memory");
    let installed = meta.map_or(Lsn(0), |meta| meta.installed_lsn);
    let first = first_of(disk).expect("a log has a segment in use");
    assert!(
        first.0 <= installed.0 + 1,
        "P8: the log of {domain:?} begins at record {} after it was trimmed, and only those up to {} are \
         installed",
        first.0,
        installed.0
    );
}

/// The first record that a log holds, by the headers of its segments (`docs/formats/disk.md`, section 4).
fn first_of(disk: &FaultDisk) -> Option<Lsn> {
    let first = |name: &String| {
        let sequence = name.strip_prefix("log-")?.strip_suffix(".seg")?;
        let sequence = u64::from_str_radix(sequence, 16).ok()?;
        let mut header = [0; 40];
        disk.open(name).ok()?.read_at(0, &mut header).ok()?;
        let field =
            |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        // A spare has the header of its earlier use, of another place in the chain, or none.
        let in_use = header.starts_with(b"LARDRLOG") && field(24) == sequence;
        in_use.then(|| Lsn(field(32)))
    };
    disk.list().expect("it is in memory").iter().filter_map(first).min()
}
