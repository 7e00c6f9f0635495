//! Stands in for `larder_core::wire` until that is there; nothing outside a test run may keep files
//! written with it.

use bytes::{Buf, BufMut, Bytes};
use larder_core::commit::{Op, PageKind, Write};
use larder_core::id::{
    BootId, CommitId, DomainId, Generation, HistoryId, PageId, PageNo, Slot, Stamp, VolumeId,
};
use larder_core::message::Epoch;
use larder_core::record::{BootMeta, DomainMeta, LogRecord, Lsn, VolumeMeta};
use larder_core::time::WallTime;

type Out = Vec<u8>;
type R<T> = Result<T, bytes::TryGetError>;

fn put_bytes(out: &mut Out, bytes: &[u8]) {
    out.put_u32_le(bytes.len() as u32);
    out.put_slice(bytes);
}
fn bytes_of(b: &mut Bytes) -> R<Bytes> {
    let n = b.try_get_u32_le()? as usize;
    if b.remaining() < n {
        return Err(bytes::TryGetError { requested: n, available: b.remaining() });
    }
    Ok(b.split_to(n))
}
fn put_page(out: &mut Out, page: PageId) {
    out.put_u128_le(page.volume.0);
    out.put_u64_le(page.page.0);
}
fn page_of(b: &mut Bytes) -> R<PageId> {
    Ok(PageId { volume: VolumeId(b.try_get_u128_le()?), page: PageNo(b.try_get_u64_le()?) })
}
fn put_sg(out: &mut Out, tag: u8, slot: Slot, generation: Generation) {
    out.put_u8(tag);
    out.put_u16_le(slot.0);
    out.put_u32_le(generation.0);
}
fn put_op(out: &mut Out, op: &Op) {
    match op {
        Op::CreatePage(kind) => {
            out.put_u8(0);
            out.put_u8(u8::from(*kind == PageKind::Raw));
        }
        Op::DeletePage => out.put_u8(1),
        Op::Put { slot, generation, value } => {
            put_sg(out, 2, *slot, *generation);
            put_bytes(out, value);
        }
        Op::Delete { slot, generation } => put_sg(out, 3, *slot, *generation),
        Op::Add { slot, generation, offset, delta } => {
            put_sg(out, 4, *slot, *generation);
            out.put_u32_le(*offset);
            out.put_i64_le(*delta);
        }
        Op::Max { slot, generation, offset, value } => {
            put_sg(out, 5, *slot, *generation);
            out.put_u32_le(*offset);
            out.put_u64_le(*value);
        }
        Op::WriteRaw { offset, bytes } => {
            out.put_u8(6);
            out.put_u32_le(*offset);
            put_bytes(out, bytes);
        }
        Op::TruncateRaw { length } => {
            out.put_u8(7);
            out.put_u32_le(*length);
        }
    }
}
fn op_of(b: &mut Bytes) -> R<Op> {
    let tag = b.try_get_u8()?;
    let (slot, generation) = if (2..=5).contains(&tag) {
        (Slot(b.try_get_u16_le()?), Generation(b.try_get_u32_le()?))
    } else {
        (Slot(0), Generation(0))
    };
    Ok(match tag {
        0 => Op::CreatePage(if b.try_get_u8()? == 1 { PageKind::Raw } else { PageKind::Slotted }),
        1 => Op::DeletePage,
        2 => Op::Put { slot, generation, value: bytes_of(b)? },
        3 => Op::Delete { slot, generation },
        4 => Op::Add { slot, generation, offset: b.try_get_u32_le()?, delta: b.try_get_i64_le()? },
        5 => Op::Max { slot, generation, offset: b.try_get_u32_le()?, value: b.try_get_u64_le()? },
        6 => Op::WriteRaw { offset: b.try_get_u32_le()?, bytes: bytes_of(b)? },
        _ => Op::TruncateRaw { length: b.try_get_u32_le()? },
    })
}
fn put_volume(out: &mut Out, v: &VolumeMeta) {
    out.put_u128_le(v.id.0);
    put_bytes(out, v.name.as_bytes());
    out.put_u32_le(v.page_bytes);
    out.put_u64_le(v.next_page.0);
    out.put_u64_le(v.version.0);
    out.put_u64_le(v.pages);
}
fn volume_of(b: &mut Bytes) -> R<VolumeMeta> {
    Ok(VolumeMeta {
        id: VolumeId(b.try_get_u128_le()?),
        name: String::from_utf8_lossy(&bytes_of(b)?).into_owned(),
        page_bytes: b.try_get_u32_le()?,
        next_page: PageNo(b.try_get_u64_le()?),
        version: Stamp(b.try_get_u64_le()?),
        pages: b.try_get_u64_le()?,
    })
}
fn put_epoch(out: &mut Out, e: &Epoch) {
    out.put_u128_le(e.history.0);
    out.put_u64_le(e.first.0);
}
fn epoch_of(b: &mut Bytes) -> R<Epoch> {
    Ok(Epoch { history: HistoryId(b.try_get_u128_le()?), first: Stamp(b.try_get_u64_le()?) })
}

pub(crate) fn encode_record(record: &LogRecord) -> Bytes {
    let mut out = Out::new();
    match record {
        LogRecord::Commit { stamp, id, time, writes } => {
            out.put_u8(0);
            out.put_u64_le(stamp.0);
            out.put_u128_le(id.boot.0);
            out.put_u64_le(id.sequence);
            out.put_u64_le(time.0);
            out.put_u32_le(writes.len() as u32);
            for w in writes {
                put_page(&mut out, w.page);
                put_op(&mut out, &w.op);
            }
        }
        LogRecord::Boot { boot } => {
            out.put_u8(1);
            out.put_u128_le(boot.0);
        }
        LogRecord::Confirmed { boot, upto } => {
            out.put_u8(2);
            out.put_u128_le(boot.0);
            out.put_u64_le(*upto);
        }
        LogRecord::Ids { volume, next } => {
            out.put_u8(3);
            out.put_u128_le(volume.0);
            out.put_u64_le(next.0);
        }
        LogRecord::Volume { stamp, volume } => {
            out.put_u8(4);
            out.put_u64_le(stamp.0);
            put_volume(&mut out, volume);
        }
        LogRecord::Epoch { epoch } => {
            out.put_u8(5);
            put_epoch(&mut out, epoch);
        }
    }
    out.into()
}

pub(crate) fn decode_record(mut b: Bytes) -> R<LogRecord> {
    let b = &mut b;
    Ok(match b.try_get_u8()? {
        0 => LogRecord::Commit {
            stamp: Stamp(b.try_get_u64_le()?),
            id: CommitId { boot: BootId(b.try_get_u128_le()?), sequence: b.try_get_u64_le()? },
            time: WallTime(b.try_get_u64_le()?),
            writes: {
                let n = b.try_get_u32_le()?;
                (0..n)
                    .map(|_| Ok(Write { page: page_of(b)?, op: op_of(b)? }))
                    .collect::<R<Vec<_>>>()?
            },
        },
        1 => LogRecord::Boot { boot: BootId(b.try_get_u128_le()?) },
        2 => LogRecord::Confirmed { boot: BootId(b.try_get_u128_le()?), upto: b.try_get_u64_le()? },
        3 => LogRecord::Ids {
            volume: VolumeId(b.try_get_u128_le()?),
            next: PageNo(b.try_get_u64_le()?),
        },
        4 => LogRecord::Volume { stamp: Stamp(b.try_get_u64_le()?), volume: volume_of(b)? },
        _ => LogRecord::Epoch { epoch: epoch_of(b)? },
    })
}

pub(crate) fn encode_meta(meta: &DomainMeta) -> Bytes {
    let mut out = Out::new();
    out.put_u64_le(meta.domain.0);
    out.put_u64_le(meta.installed_lsn.0);
    out.put_u64_le(meta.installed.0);
    out.put_u32_le(meta.epochs.len() as u32);
    meta.epochs.iter().for_each(|e| put_epoch(&mut out, e));
    out.put_u32_le(meta.volumes.len() as u32);
    meta.volumes.iter().for_each(|v| put_volume(&mut out, v));
    out.put_u32_le(meta.boots.len() as u32);
    for boot in &meta.boots {
        out.put_u128_le(boot.boot.0);
        out.put_u64_le(boot.confirmed);
        out.put_u32_le(boot.committed.len() as u32);
        for (s, t) in &boot.committed {
            out.put_u64_le(*s);
            out.put_u64_le(t.0);
        }
    }
    out.into()
}

pub(crate) fn decode_meta(mut b: Bytes) -> R<DomainMeta> {
    let b = &mut b;
    Ok(DomainMeta {
        domain: DomainId(b.try_get_u64_le()?),
        installed_lsn: Lsn(b.try_get_u64_le()?),
        installed: Stamp(b.try_get_u64_le()?),
        epochs: {
            let n = b.try_get_u32_le()?;
            (0..n).map(|_| epoch_of(b)).collect::<R<Vec<_>>>()?
        },
        volumes: {
            let n = b.try_get_u32_le()?;
            (0..n).map(|_| volume_of(b)).collect::<R<Vec<_>>>()?
        },
        boots: {
            let n = b.try_get_u32_le()?;
            (0..n)
                .map(|_| {
                    Ok(BootMeta {
                        boot: BootId(b.try_get_u128_le()?),
                        confirmed: b.try_get_u64_le()?,
                        committed: {
                            let n = b.try_get_u32_le()?;
                            (0..n)
                                .map(|_| Ok((b.try_get_u64_le()?, Stamp(b.try_get_u64_le()?))))
                                .collect::<R<Vec<_>>>()?
                        },
                    })
                })
                .collect::<R<Vec<_>>>()?
        },
    })
}
