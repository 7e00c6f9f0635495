//! The plain fields of each kind, as protobuf. Field numbers are for good; 14 and 15 hold packed
//! lists. Ids of 128 bits are 16 bytes, little-endian; domains are `fixed64`, being random.
//!
//! Kinds of the stream and bulk lanes have no repeated fields: their messages are long, and a
//! repeated field can make 2 bytes of input 32 bytes of memory.

use super::WireError;
use crate::id::{RequestId, Stamp, VolumeId};
use bytes::Bytes;

macro_rules! heads {
    ($($name:ident { $($field:ident: $type:ty = $attributes:tt,)* })*) => {$(
        #[derive(Clone, PartialEq, prost::Message)]
        pub(super) struct $name {
            $(#[prost $attributes] pub(super) $field: $type,)*
        }
    )*};
}

heads! {
    KeepAlive {
    }
    // ---- parts ----
    Reason {
        code: u32 = (uint32, tag = "1"),
        text: String = (string, tag = "2"),
        min: u32 = (uint32, tag = "3"),
        max: u32 = (uint32, tag = "4"),
        child_min: u32 = (uint32, tag = "8"),
        child_max: u32 = (uint32, tag = "9"),
        domain: u64 = (fixed64, tag = "5"),
        seen: u64 = (uint64, tag = "6"),
        fork: u64 = (uint64, tag = "7"),
    }
    Failure {
        code: u32 = (uint32, tag = "1"),
        text: String = (string, tag = "2"),
        domain: u64 = (fixed64, tag = "3"),
        volume: Vec<u8> = (bytes = "vec", tag = "4"),
        page: u64 = (uint64, tag = "5"),
        who: String = (string, tag = "10"),
        has: u32 = (uint32, tag = "11"),
        needs: u32 = (uint32, tag = "12"),
    }
    Ending {
        code: u32 = (uint32, tag = "1"),
        stamp: u64 = (uint64, tag = "2"),
        volume: Vec<u8> = (bytes = "vec", tag = "3"),
        page: u64 = (uint64, tag = "4"),
        slot: Option<u32> = (uint32, optional, tag = "5"),
        value: bool = (bool, tag = "6"),
        generation: u32 = (uint32, tag = "7"),
        text: String = (string, tag = "8"),
        limit: u64 = (uint64, tag = "9"),
        used: u64 = (uint64, tag = "10"),
        more: u64 = (uint64, tag = "11"),
        who: String = (string, tag = "16"),
        has: u32 = (uint32, tag = "17"),
        needs: u32 = (uint32, tag = "18"),
    }
    Domain {
        domain: u64 = (fixed64, tag = "1"),
        epochs: Bytes = (bytes = "bytes", tag = "15"),
    }
    Settings {
        quota: Option<u64> = (uint64, optional, tag = "1"),
        rights: Bytes = (bytes = "bytes", tag = "5"),
    }
    VolumeHead {
        id: Vec<u8> = (bytes = "vec", tag = "1"),
        domain: u64 = (fixed64, tag = "2"),
        name: String = (string, tag = "3"),
        page_bytes: u32 = (uint32, tag = "4"),
        raw_root: bool = (bool, tag = "5"),
        version: u64 = (uint64, tag = "6"),
        pages: u64 = (uint64, tag = "7"),
        next_page: u64 = (uint64, tag = "8"),
        bytes: u64 = (uint64, tag = "9"),
        settings: Option<Settings> = (message, optional, tag = "10"),
        room: Option<u64> = (uint64, optional, tag = "11"),
        right: Option<u32> = (uint32, optional, tag = "13"),
        given: Bytes = (bytes = "bytes", tag = "15"),
    }
    Boot {
        boot: Vec<u8> = (bytes = "vec", tag = "1"),
        confirmed: u64 = (uint64, tag = "2"),
        name: String = (string, tag = "3"),
        aborted: Vec<Bytes> = (bytes = "bytes", repeated, tag = "4"),
        open: Bytes = (bytes = "bytes", tag = "5"),
        committed: Bytes = (bytes = "bytes", tag = "15"),
    }

    // ---- control lane ----
    Goodbye {
        reason: Option<Reason> = (message, optional, tag = "1"),
    }
    Hello {
        min_version: u32 = (uint32, tag = "1"),
        max_version: u32 = (uint32, tag = "2"),
        name: String = (string, tag = "3"),
        boot: Vec<u8> = (bytes = "vec", tag = "4"),
        role: u32 = (uint32, tag = "5"),
    }
    Resume {
        request: u64 = (uint64, tag = "1"),
        domain: u64 = (fixed64, tag = "2"),
        through: Option<u64> = (uint64, optional, tag = "3"),
        epochs: Bytes = (bytes = "bytes", tag = "15"),
    }
    Fetch {
        request: u64 = (uint64, tag = "1"),
        domain: u64 = (fixed64, tag = "2"),
        prefetch: bool = (bool, tag = "3"),
        asks: Bytes = (bytes = "bytes", tag = "15"),
    }
    Held {
        domain: u64 = (fixed64, tag = "1"),
        done: bool = (bool, tag = "2"),
        pages: Bytes = (bytes = "bytes", tag = "15"),
    }
    BootOf {
        domain: u64 = (fixed64, tag = "1"),
        boot: Vec<u8> = (bytes = "vec", tag = "2"),
        upto: u64 = (uint64, tag = "3"),
        name: String = (string, tag = "4"),
        open: Bytes = (bytes = "bytes", tag = "5"),
    }
    Register {
        domain: u64 = (fixed64, tag = "1"),
        boot: Vec<u8> = (bytes = "vec", tag = "2"),
        name: String = (string, tag = "3"),
        life: Vec<u8> = (bytes = "vec", tag = "4"),
        fresh: bool = (bool, tag = "5"),
    }
    Left {
        name: String = (string, tag = "1"),
    }
    Range {
        request: u64 = (uint64, tag = "1"),
        volume: Vec<u8> = (bytes = "vec", tag = "2"),
        first: u64 = (uint64, tag = "3"),
        count: u64 = (uint64, tag = "4"),
        history: Vec<u8> = (bytes = "vec", tag = "5"),
    }
    OpenVolume {
        request: u64 = (uint64, tag = "1"),
        name: Option<String> = (string, optional, tag = "2"),
        id: Option<Vec<u8>> = (bytes = "vec", optional, tag = "3"),
    }
    ListVolumes {
        request: u64 = (uint64, tag = "1"),
        after: String = (string, tag = "2"),
    }
    CreateVolume {
        request: u64 = (uint64, tag = "1"),
        id: Vec<u8> = (bytes = "vec", tag = "2"),
        name: String = (string, tag = "3"),
        page_bytes: u32 = (uint32, tag = "4"),
        domain: Option<u64> = (fixed64, optional, tag = "5"),
    }
    ChangeVolume {
        request: u64 = (uint64, tag = "1"),
        volume: Vec<u8> = (bytes = "vec", tag = "2"),
        what: u32 = (uint32, tag = "3"),
        quota: Option<u64> = (uint64, optional, tag = "4"),
        edits: Bytes = (bytes = "bytes", tag = "8"),
        force: bool = (bool, tag = "9"),
    }
    AskRights {
        request: u64 = (uint64, tag = "1"),
        volume: Vec<u8> = (bytes = "vec", tag = "2"),
    }
    For {
        name: String = (string, tag = "1"),
        message: Bytes = (bytes = "bytes", tag = "2"),
    }
    Beat {
        domain: u64 = (fixed64, tag = "1"),
        sent: u64 = (uint64, tag = "2"),
    }
    Credit {
        lane: u32 = (uint32, tag = "1"),
        bytes: u32 = (uint32, tag = "2"),
    }
    Welcome {
        version: u32 = (uint32, tag = "1"),
        name: String = (string, tag = "2"),
        time: u64 = (uint64, tag = "3"),
        requests_max: u32 = (uint32, tag = "4"),
        stream_window_bytes: u32 = (uint32, tag = "5"),
        bulk_window_bytes: u32 = (uint32, tag = "6"),
        lease_ns: u64 = (uint64, tag = "7"),
        domains: Vec<Bytes> = (bytes = "bytes", repeated, tag = "8"),
    }
    Committed {
        domain: u64 = (fixed64, tag = "1"),
        boot: Vec<u8> = (bytes = "vec", tag = "2"),
        sequence: u64 = (uint64, tag = "3"),
        outcome: Option<Ending> = (message, optional, tag = "4"),
        deferred: Option<Failure> = (message, optional, tag = "5"),
        history: Vec<u8> = (bytes = "vec", tag = "6"),
        not_passed: bool = (bool, tag = "7"),
    }
    Volume {
        request: u64 = (uint64, tag = "1"),
        info: Option<VolumeHead> = (message, optional, tag = "2"),
    }
    Volumes {
        request: u64 = (uint64, tag = "1"),
        volumes: Vec<Bytes> = (bytes = "bytes", repeated, tag = "2"),
        more: bool = (bool, tag = "3"),
    }
    Rights {
        request: u64 = (uint64, tag = "1"),
        rights: Bytes = (bytes = "bytes", tag = "2"),
        default: u32 = (uint32, tag = "3"),
        admins: Bytes = (bytes = "bytes", tag = "4"),
    }
    Failed {
        request: u64 = (uint64, tag = "1"),
        error: Option<Failure> = (message, optional, tag = "2"),
        pages: Bytes = (bytes = "bytes", tag = "15"),
    }

    // ---- stream lane ----
    Resumed {
        request: u64 = (uint64, tag = "1"),
        domain: u64 = (fixed64, tag = "2"),
        from: Option<u64> = (uint64, optional, tag = "3"),
        through: u64 = (uint64, tag = "4"),
        time: u64 = (uint64, tag = "5"),
        done: bool = (bool, tag = "6"),
        epochs: Bytes = (bytes = "bytes", tag = "14"),
        stale: Bytes = (bytes = "bytes", tag = "15"),
    }
    Advance {
        domain: u64 = (fixed64, tag = "1"),
        from: u64 = (uint64, tag = "2"),
        through: u64 = (uint64, tag = "3"),
        time: u64 = (uint64, tag = "4"),
        echo_sent: Option<u64> = (uint64, optional, tag = "5"),
        echo_age_ns: u64 = (uint64, tag = "6"),
        echo_by_clock: bool = (bool, tag = "7"),
        changes: Bytes = (bytes = "bytes", tag = "14"),
        stale: Bytes = (bytes = "bytes", tag = "15"),
    }
    VolumeRights {
        domain: u64 = (fixed64, tag = "1"),
        volume: Vec<u8> = (bytes = "vec", tag = "2"),
        rights: Bytes = (bytes = "bytes", tag = "3"),
    }

    // ---- bulk lane ----
    Commit {
        domain: u64 = (fixed64, tag = "1"),
        boot: Vec<u8> = (bytes = "vec", tag = "2"),
        sequence: u64 = (uint64, tag = "3"),
        confirmed: u64 = (uint64, tag = "4"),
        history: Vec<u8> = (bytes = "vec", tag = "5"),
        base: u64 = (uint64, tag = "6"),
        numbers: Vec<u8> = (bytes = "vec", tag = "7"),
        parts: Vec<u8> = (bytes = "vec", tag = "8"),
        coordinator: u64 = (fixed64, tag = "9"),
        reads: Bytes = (bytes = "bytes", tag = "14"),
        writes: Bytes = (bytes = "bytes", tag = "15"),
    }
    Pages {
        request: u64 = (uint64, tag = "1"),
        domain: u64 = (fixed64, tag = "2"),
        answers: Bytes = (bytes = "bytes", tag = "15"),
    }

    CopyPages {
        request: u64 = (uint64, tag = "1"),
        volume: Vec<u8> = (bytes = "vec", tag = "2"),
        history: Vec<u8> = (bytes = "vec", tag = "3"),
        since: u64 = (uint64, tag = "4"),
        pin: Option<Vec<u8>> = (bytes = "vec", optional, tag = "5"),
        cursor: Option<CopyAt> = (message, optional, tag = "6"),
    }
    CopyAt {
        until: u64 = (uint64, tag = "1"),
        part: u32 = (uint32, tag = "2"),
        stamp: u64 = (uint64, tag = "3"),
        volume: Vec<u8> = (bytes = "vec", tag = "4"),
        page: u64 = (uint64, tag = "5"),
    }
    Copied {
        request: u64 = (uint64, tag = "1"),
        history: Vec<u8> = (bytes = "vec", tag = "2"),
        through: u64 = (uint64, tag = "3"),
        next_page: u64 = (uint64, tag = "4"),
        part: u32 = (uint32, tag = "5"),
        cursor: Option<CopyAt> = (message, optional, tag = "6"),
        answers: Bytes = (bytes = "bytes", tag = "15"),
    }

    // ---- groups ----
    Join {
        address: String = (string, tag = "1"),
    }
    Reach {
        members: Bytes = (bytes = "bytes", tag = "15"),
    }
    Transfer {
        request: u64 = (uint64, tag = "1"),
        domain: u64 = (fixed64, tag = "2"),
        end: u32 = (uint32, tag = "3"),
        neighbour: Vec<u8> = (bytes = "vec", tag = "4"),
        position: u64 = (uint64, tag = "5"),
        holes: bool = (bool, tag = "6"),
        pages: Bytes = (bytes = "bytes", tag = "15"),
    }
    Update {
        domain: u64 = (fixed64, tag = "1"),
        boot: Vec<u8> = (bytes = "vec", tag = "2"),
        sequence: u64 = (uint64, tag = "3"),
        stamp: u64 = (uint64, tag = "4"),
        writes: Bytes = (bytes = "bytes", tag = "15"),
    }
    Member {
        life: Vec<u8> = (bytes = "vec", tag = "1"),
        name: String = (string, tag = "2"),
        address: String = (string, tag = "3"),
    }
    Members {
        members: Vec<Bytes> = (bytes = "bytes", repeated, tag = "1"),
    }

    // ---- between origins ----
    Greets {
        min_version: u32 = (uint32, tag = "1"),
        max_version: u32 = (uint32, tag = "2"),
        name: String = (string, tag = "3"),
        accept_fork: bool = (bool, tag = "4"),
    }
    Serves {
        domains: Vec<Bytes> = (bytes = "bytes", repeated, tag = "1"),
    }
    CommitName {
        boot: Vec<u8> = (bytes = "vec", tag = "1"),
        sequence: u64 = (uint64, tag = "2"),
    }
    Says {
        from: u64 = (fixed64, tag = "1"),
        to: u64 = (fixed64, tag = "2"),
        what: u32 = (uint32, tag = "3"),
        history: Vec<u8> = (bytes = "vec", tag = "4"),
        number: u64 = (uint64, tag = "5"),
        domain: u64 = (fixed64, tag = "6"),
        coordinator: Option<CommitName> = (message, optional, tag = "7"),
        part: Option<CommitName> = (message, optional, tag = "8"),
        name: String = (string, tag = "9"),
        ready: bool = (bool, tag = "10"),
        refused: Option<Ending> = (message, optional, tag = "11"),
        later: Option<Failure> = (message, optional, tag = "12"),
        through: u64 = (uint64, tag = "13"),
    }

    // ---- log records and metadata ----
    CommitRecord {
        stamp: u64 = (uint64, tag = "1"),
        boot: Vec<u8> = (bytes = "vec", tag = "2"),
        sequence: u64 = (uint64, tag = "3"),
        time: u64 = (uint64, tag = "4"),
        grown: Vec<u8> = (bytes = "vec", tag = "5"),
        decided: Option<Decided> = (message, optional, tag = "6"),
        writes: Bytes = (bytes = "bytes", tag = "15"),
    }
    Decided {
        history: Vec<u8> = (bytes = "vec", tag = "1"),
        number: u64 = (uint64, tag = "2"),
        participants: Vec<u8> = (bytes = "vec", tag = "3"),
    }
    PreparedRecord {
        history: Vec<u8> = (bytes = "vec", tag = "1"),
        number: u64 = (uint64, tag = "2"),
        coordinator: Vec<u8> = (bytes = "vec", tag = "3"),
        boot: Vec<u8> = (bytes = "vec", tag = "4"),
        sequence: u64 = (uint64, tag = "5"),
        grown: Vec<u8> = (bytes = "vec", tag = "6"),
        reads: Bytes = (bytes = "bytes", tag = "14"),
        writes: Bytes = (bytes = "bytes", tag = "15"),
    }
    ReleasedRecord {
        history: Vec<u8> = (bytes = "vec", tag = "1"),
        number: u64 = (uint64, tag = "2"),
    }
    VolumeRecord {
        stamp: u64 = (uint64, tag = "1"),
        volume: Option<VolumeHead> = (message, optional, tag = "2"),
    }
    SettingsRecord {
        volume: Vec<u8> = (bytes = "vec", tag = "1"),
        settings: Option<Settings> = (message, optional, tag = "2"),
    }
    ApartPage {
        changes: Vec<Bytes> = (bytes = "bytes", repeated, tag = "1"),
    }
    Meta {
        format: u32 = (uint32, tag = "1"),
        domain: u64 = (fixed64, tag = "2"),
        installed_lsn: u64 = (uint64, tag = "3"),
        installed: u64 = (uint64, tag = "4"),
        volumes: Vec<Bytes> = (bytes = "bytes", repeated, tag = "5"),
        boots: Vec<Bytes> = (bytes = "bytes", repeated, tag = "6"),
        deleted: Vec<Bytes> = (bytes = "bytes", repeated, tag = "7"),
        decided: Vec<Bytes> = (bytes = "bytes", repeated, tag = "8"),
        epochs: Bytes = (bytes = "bytes", tag = "15"),
    }
    DeletedRecord {
        stamp: u64 = (uint64, tag = "1"),
        volume: Vec<u8> = (bytes = "vec", tag = "2"),
        name: String = (string, tag = "3"),
        page_bytes: u32 = (uint32, tag = "4"),
        left: Option<u64> = (uint64, optional, tag = "5"),
    }
}

/// A request that names a volume and nothing else, or its answer.
pub(super) fn named_volume(request: RequestId, volume: VolumeId) -> Range {
    Range { request: request.0, volume: id_field(volume.0), ..Range::default() }
}

/// Reads a head. Fields that it does not know are skipped.
pub(super) fn read<T: prost::Message + Default>(bytes: Bytes) -> Result<T, WireError> {
    T::decode(bytes).map_err(|_| WireError::Malformed("the fields do not parse"))
}

/// A stamp that is one: the last number is none ([`Stamp::LIMIT`]).
pub(super) fn stamp_of(number: u64) -> Result<Stamp, WireError> {
    if number == Stamp::LIMIT {
        return Err(WireError::Malformed("no stamp"));
    }
    Ok(Stamp(number))
}

/// A part that must be there.
pub(super) fn need<T>(part: Option<T>) -> Result<T, WireError> {
    part.ok_or(WireError::Malformed("a part is missing"))
}

/// An id of 128 bits as a field.
pub(super) fn id_field(id: u128) -> Vec<u8> {
    id.to_le_bytes().to_vec()
}

/// The id in a field; an absent field is id 0.
pub(super) fn id_of(field: &[u8]) -> Result<u128, WireError> {
    if field.is_empty() {
        return Ok(0);
    }
    field
        .try_into()
        .map(u128::from_le_bytes)
        .map_err(|_| WireError::Malformed("an id without 16 bytes"))
}
