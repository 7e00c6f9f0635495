//! Log records and a domain's metadata.

use super::head::{self, id_field, id_of, need};
use super::message::{Body, open};
use super::packed::{self, Packed};
use super::parts;
use super::reason::{ending_head, ending_of, text};
use super::rights;
use super::varint::{Reader, Sink, unzigzag, zigzag};
use super::{META_FORMAT, META_FORMAT_OLDEST, WireError, down, open};
use crate::commit::{Abort, Op, Outcome, Write};
use crate::id::{BootId, CommitId, DomainId, PageId, PageNo, Stamp, VolumeId};
use crate::message::Epoch;
use crate::record::{
    Apart, BootMeta, DeletedVolume, DomainMeta, Given, LogRecord, Lsn, VolumeMeta, VolumeSettings,
};
use crate::time::WallTime;
use bytes::Bytes;
use prost::Message as _;

/// Numbers of the kinds of log record: for good.
mod kind {
    pub(super) const COMMIT: u32 = 1;
    pub(super) const BOOT: u32 = 2;
    pub(super) const CONFIRMED: u32 = 3;
    pub(super) const IDS: u32 = 4;
    pub(super) const VOLUME: u32 = 5;
    pub(super) const EPOCH: u32 = 6;
    pub(super) const ABORTED: u32 = 7;
    pub(super) const SETTINGS: u32 = 8;
    pub(super) const DELETED: u32 = 9;
    pub(super) const PREPARED: u32 = 10;
    pub(super) const RELEASED: u32 = 11;
}

/// The bytes of a log record.
#[must_use]
pub fn encode_record(record: &LogRecord) -> Bytes {
    let boot_head = |boot: &BootId, upto: u64, name: &str| {
        let boot = id_field(boot.0);
        head::BootOf { boot, upto, name: name.into(), ..head::BootOf::default() }
    };
    let body = match record {
        LogRecord::Commit { stamp, id, time, grown, writes, decided } => {
            let head = head::CommitRecord {
                stamp: stamp.0,
                boot: id_field(id.boot.0),
                sequence: id.sequence,
                time: time.0,
                grown: grown_field(grown),
                decided: decided.as_deref().map(parts::decided_head),
                writes: Bytes::new(),
            };
            Body::with(kind::COMMIT, &head, Packed::Writes(writes))
        }
        LogRecord::Prepared { attempt, coordinator, id, grown, reads, writes } => {
            let head = head::PreparedRecord {
                history: id_field(attempt.history.0),
                number: attempt.number,
                coordinator: parts::field(&[*coordinator]),
                boot: id_field(id.boot.0),
                sequence: id.sequence,
                grown: grown_field(grown),
                ..head::PreparedRecord::default()
            };
            let lists = (Packed::Reads(reads), Packed::Writes(writes));
            Body::with_two(kind::PREPARED, &head, lists)
        }
        LogRecord::Released { attempt } => {
            let (history, number) = (id_field(attempt.history.0), attempt.number);
            Body::plain(kind::RELEASED, &head::ReleasedRecord { history, number })
        }
        LogRecord::Boot { boot, name } => Body::plain(kind::BOOT, &boot_head(boot, 0, name)),
        LogRecord::Confirmed { boot, upto } => {
            Body::plain(kind::CONFIRMED, &boot_head(boot, *upto, ""))
        }
        LogRecord::Aborted { id, abort } => {
            let head =
                head::Committed { boot: id_field(id.boot.0), ..aborted_head(id.sequence, abort) };
            Body::plain(kind::ABORTED, &head)
        }
        LogRecord::Ids { volume, next } => {
            let head =
                head::Range { volume: id_field(volume.0), first: next.0, ..head::Range::default() };
            Body::plain(kind::IDS, &head)
        }
        LogRecord::Volume { stamp, volume } => {
            let head = head::VolumeRecord { stamp: stamp.0, volume: Some(volume_head(volume)) };
            Body::plain(kind::VOLUME, &head)
        }
        LogRecord::Deleted { stamp, volume } => {
            let volume = id_field(volume.0);
            let head = head::DeletedRecord { stamp: stamp.0, volume, ..Default::default() };
            Body::plain(kind::DELETED, &head)
        }
        LogRecord::Settings { volume, settings } => {
            let settings = Some(settings_head(settings));
            let head = head::SettingsRecord { volume: id_field(volume.0), settings };
            Body::plain(kind::SETTINGS, &head)
        }
        LogRecord::Epoch { epoch } => {
            let head = head::Domain::default();
            let epochs = Packed::Epochs(std::slice::from_ref(epoch));
            return Body::with(kind::EPOCH, &head, epochs).encode();
        }
    };
    body.encode()
}

/// The log record in bytes. Values written share the bytes' memory.
pub fn decode_record(bytes: Bytes) -> Result<LogRecord, WireError> {
    let (kind, body) = open(bytes)?;
    Ok(match kind {
        kind::COMMIT => {
            let head: head::CommitRecord = head::read(body)?;
            LogRecord::Commit {
                stamp: Stamp(head.stamp),
                id: CommitId { boot: BootId(id_of(&head.boot)?), sequence: head.sequence },
                time: WallTime(head.time),
                grown: grown_of(head.grown)?,
                writes: packed::read_writes(head.writes)?,
                decided: head.decided.map(parts::decided_of).transpose()?.map(Box::new),
            }
        }
        kind::PREPARED => prepared_of(head::read(body)?)?,
        kind::RELEASED => {
            let head: head::ReleasedRecord = head::read(body)?;
            LogRecord::Released { attempt: parts::attempt_of(&head.history, head.number)? }
        }
        kind::BOOT => {
            let head: head::BootOf = head::read(body)?;
            LogRecord::Boot { boot: BootId(id_of(&head.boot)?), name: name_of_node(head.name)? }
        }
        kind::CONFIRMED => {
            let head: head::BootOf = head::read(body)?;
            LogRecord::Confirmed { boot: BootId(id_of(&head.boot)?), upto: head.upto }
        }
        kind::ABORTED => {
            let head: head::Committed = head::read(body)?;
            let boot = BootId(id_of(&head.boot)?);
            let (sequence, abort) = aborted_of(head)?;
            LogRecord::Aborted { id: CommitId { boot, sequence }, abort }
        }
        kind::IDS => {
            let head: head::Range = head::read(body)?;
            LogRecord::Ids { volume: VolumeId(id_of(&head.volume)?), next: next_page(head.first)? }
        }
        kind::VOLUME => {
            let head: head::VolumeRecord = head::read(body)?;
            LogRecord::Volume { stamp: Stamp(head.stamp), volume: volume_of(need(head.volume)?)? }
        }
        kind::DELETED => {
            let head: head::DeletedRecord = head::read(body)?;
            LogRecord::Deleted { stamp: Stamp(head.stamp), volume: VolumeId(id_of(&head.volume)?) }
        }
        kind::SETTINGS => {
            let head: head::SettingsRecord = head::read(body)?;
            let volume = VolumeId(id_of(&head.volume)?);
            LogRecord::Settings { volume, settings: settings_of(need(head.settings)?)? }
        }
        kind::EPOCH => {
            let head: head::Domain = head::read(body)?;
            let epochs = packed::read_epochs(head.epochs)?;
            let [epoch] = epochs[..] else {
                return Err(WireError::Malformed("not one history"));
            };
            LogRecord::Epoch { epoch }
        }
        _ => return Err(WireError::UnknownKind(kind)),
    })
}

fn prepared_of(head: head::PreparedRecord) -> Result<LogRecord, WireError> {
    let [coordinator] = parts::parts_of(head.coordinator)?[..] else {
        return Err(WireError::Malformed("not one coordinator"));
    };
    Ok(LogRecord::Prepared {
        attempt: parts::attempt_of(&head.history, head.number)?,
        coordinator,
        id: CommitId { boot: BootId(id_of(&head.boot)?), sequence: head.sequence },
        grown: grown_of(head.grown)?,
        reads: packed::read_reads(head.reads)?,
        writes: packed::read_writes(head.writes)?,
    })
}

/// The bytes of a domain's metadata.
#[must_use]
pub fn encode_meta(meta: &DomainMeta) -> Bytes {
    let mut epochs = Vec::new();
    Packed::Epochs(&meta.epochs).write(&mut epochs);
    let volumes = meta.volumes.iter();
    let head = head::Meta {
        format: META_FORMAT,
        domain: meta.domain.0,
        installed_lsn: meta.installed_lsn.0,
        installed: meta.installed.0,
        volumes: volumes.map(|v| volume_head(v).encode_to_vec().into()).collect(),
        boots: meta.boots.iter().map(boot_field).collect(),
        deleted: meta.deleted.iter().map(deleted_field).collect(),
        decided: meta.decided.iter().map(parts::decided_field).collect(),
        epochs: epochs.into(),
    };
    head.encode_to_vec().into()
}

/// The metadata in bytes.
pub fn decode_meta(bytes: Bytes) -> Result<DomainMeta, WireError> {
    let head: head::Meta = head::read(bytes)?;
    if !(META_FORMAT_OLDEST..=META_FORMAT).contains(&head.format) {
        return Err(WireError::Format {
            found: head.format,
            oldest: META_FORMAT_OLDEST,
            newest: META_FORMAT,
        });
    }
    let volumes = head.volumes.into_iter().map(head::read);
    let decided = head.decided.into_iter().map(head::read);
    Ok(DomainMeta {
        domain: DomainId(head.domain),
        installed_lsn: Lsn(head.installed_lsn),
        installed: Stamp(head.installed),
        epochs: packed::read_epochs(head.epochs)?,
        volumes: volumes.map(|volume| volume_of(volume?)).collect::<Result<_, _>>()?,
        deleted: head.deleted.into_iter().map(deleted_of).collect::<Result<_, _>>()?,
        boots: head.boots.into_iter().map(boot_of).collect::<Result<_, _>>()?,
        decided: decided.map(|bytes| parts::decided_of(bytes?)).collect::<Result<_, _>>()?,
    })
}

/// The bytes of changes kept apart from their page.
#[must_use]
pub fn encode_apart(apart: &Apart) -> Bytes {
    let commits = apart.changes.chunk_by(|a, b| a.0 == b.0);
    let changes = commits.map(|commit| {
        let write = |op: &Op| Write { page: apart.page, op: op.clone() };
        let ops: Vec<Write> = commit.iter().map(|(_, op)| write(op)).collect();
        let mut writes = Vec::new();
        Packed::Writes(&ops).write(&mut writes);
        let stamp = commit[0].0.0;
        let head =
            head::CommitRecord { stamp, writes: writes.into(), ..head::CommitRecord::default() };
        head.encode_to_vec().into()
    });
    head::ApartPage { changes: changes.collect() }.encode_to_vec().into()
}

/// The changes in bytes, of a page that is known.
pub fn decode_apart(page: PageId, bytes: Bytes) -> Result<Apart, WireError> {
    let head: head::ApartPage = head::read(bytes)?;
    let mut changes: Vec<(Stamp, Op)> = Vec::new();
    for bytes in head.changes {
        let commit: head::CommitRecord = head::read(bytes)?;
        let stamp = Stamp(commit.stamp);
        if changes.last().is_some_and(|last| last.0 >= stamp) {
            return Err(WireError::Malformed("changes out of order"));
        }
        for write in packed::read_writes(commit.writes)? {
            if write.page != page {
                return Err(WireError::Malformed("a change of another page"));
            }
            changes.push((stamp, write.op));
        }
    }
    Ok(Apart { page, changes })
}

fn grown_field(grown: &[i64]) -> Vec<u8> {
    let mut field = Vec::new();
    grown.iter().for_each(|bytes| field.varint(zigzag(*bytes)));
    field
}

fn grown_of(field: Vec<u8>) -> Result<Vec<i64>, WireError> {
    let (mut reader, mut grown) = (Reader::new(field.into()), Vec::new());
    while !reader.is_empty() {
        grown.push(unzigzag(reader.varint()?));
    }
    Ok(grown)
}

/// The metadata format that the bytes are of: in the first, what volumes take was not counted.
pub fn meta_format(bytes: Bytes) -> Result<u32, WireError> {
    Ok(head::read::<head::Meta>(bytes)?.format)
}

fn settings_head(settings: &VolumeSettings) -> head::Settings {
    head::Settings { quota: settings.quota, rights: rights::field(&settings.rights) }
}

fn settings_of(head: head::Settings) -> Result<VolumeSettings, WireError> {
    Ok(VolumeSettings { quota: head.quota, rights: rights::rights_of(head.rights)? })
}

fn volume_head(volume: &VolumeMeta) -> head::VolumeHead {
    let given = volume.given.iter();
    let given: Vec<Epoch> =
        given.map(|given| Epoch { history: given.history, first: Stamp(given.first.0) }).collect();
    let mut packed = Vec::new();
    Packed::Epochs(&given).write(&mut packed);
    head::VolumeHead {
        id: id_field(volume.id.0),
        domain: 0,
        name: volume.name.clone(),
        page_bytes: volume.page_bytes,
        raw_root: false,
        version: volume.version.0,
        pages: volume.pages,
        next_page: volume.next_page.0,
        bytes: volume.bytes,
        settings: Some(settings_head(&volume.settings)),
        room: None,
        right: None,
        given: packed.into(),
    }
}

fn volume_of(head: head::VolumeHead) -> Result<VolumeMeta, WireError> {
    let given = packed::read_epochs(head.given)?.into_iter().map(|epoch| {
        let first = next_page(epoch.first.0)?;
        Ok(Given { history: epoch.history, first })
    });
    Ok(VolumeMeta {
        id: VolumeId(id_of(&head.id)?),
        name: text(head.name)?,
        page_bytes: down::page_bytes(head.page_bytes)?,
        next_page: next_page(head.next_page)?,
        version: Stamp(head.version),
        pages: head.pages,
        bytes: head.bytes,
        settings: head.settings.map(settings_of).transpose()?.unwrap_or_default(),
        given: given.collect::<Result<_, _>>()?,
    })
}

fn deleted_field(deleted: &DeletedVolume) -> Bytes {
    let head = head::DeletedRecord {
        stamp: deleted.stamp.0,
        volume: id_field(deleted.id.0),
        name: deleted.name.clone(),
        page_bytes: deleted.page_bytes,
        left: deleted.left,
    };
    head.encode_to_vec().into()
}

fn deleted_of(bytes: Bytes) -> Result<DeletedVolume, WireError> {
    let head: head::DeletedRecord = head::read(bytes)?;
    Ok(DeletedVolume {
        id: VolumeId(id_of(&head.volume)?),
        name: text(head.name)?,
        page_bytes: down::page_bytes(head.page_bytes)?,
        stamp: Stamp(head.stamp),
        left: head.left,
    })
}

/// One past the last page number given away: may be one past the last there is.
fn next_page(number: u64) -> Result<PageNo, WireError> {
    if number > PageNo::LIMIT {
        return Err(WireError::Malformed("no page number"));
    }
    Ok(PageNo(number))
}

/// The name of a boot's node. Without it, as before boots had names, a node that is known by the boot
/// would be told that it is another's.
fn name_of_node(name: String) -> Result<String, WireError> {
    if name.is_empty() {
        return Err(WireError::Nameless);
    }
    text(name)
}

/// A refusal, without its boot.
fn aborted_head(sequence: u64, abort: &Abort) -> head::Committed {
    let outcome = Some(ending_head(&Outcome::Aborted(abort.clone())));
    head::Committed { sequence, outcome, ..head::Committed::default() }
}

fn aborted_of(head: head::Committed) -> Result<(u64, Abort), WireError> {
    match ending_of(need(head.outcome)?)? {
        Outcome::Aborted(abort) => Ok((head.sequence, abort)),
        Outcome::Committed(_) | Outcome::Unknown => Err(WireError::Malformed("no refusal")),
    }
}

/// Outcomes as (sequence, stamp), both as the distance from the one before.
fn boot_field(boot: &BootMeta) -> Bytes {
    let mut committed = Vec::new();
    let (mut sequence_before, mut stamp_before) = (0, 0);
    for (sequence, stamp) in &boot.committed {
        committed.varint(sequence.wrapping_sub(sequence_before));
        committed.varint(stamp.0.wrapping_sub(stamp_before));
        (sequence_before, stamp_before) = (*sequence, stamp.0);
    }
    let head = head::Boot {
        boot: id_field(boot.boot.0),
        confirmed: boot.confirmed,
        name: boot.name.clone(),
        open: open::field(&boot.open),
        aborted: boot
            .aborted
            .iter()
            .map(|(sequence, abort)| aborted_head(*sequence, abort).encode_to_vec().into())
            .collect(),
        committed: committed.into(),
    };
    head.encode_to_vec().into()
}

fn boot_of(bytes: Bytes) -> Result<BootMeta, WireError> {
    let head: head::Boot = head::read(bytes)?;
    let aborted = head.aborted.into_iter().map(|bytes| aborted_of(head::read(bytes)?));
    let aborted = aborted.collect::<Result<_, _>>()?;
    let mut reader = Reader::new(head.committed);
    let mut committed = Vec::new();
    let (mut sequence, mut stamp) = (0u64, 0u64);
    while !reader.is_empty() {
        sequence = sequence.wrapping_add(reader.varint()?);
        stamp = stamp.wrapping_add(reader.varint()?);
        committed.push((sequence, Stamp(stamp)));
    }
    Ok(BootMeta {
        boot: BootId(id_of(&head.boot)?),
        name: name_of_node(head.name)?,
        confirmed: head.confirmed,
        open: open::of(head.open, head.confirmed, usize::MAX)?,
        committed,
        aborted,
    })
}
