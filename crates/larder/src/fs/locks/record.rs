//! Locks as bytes (`docs/formats/files.md`).

use super::super::FsError;
use super::super::record::InodeId;
use super::NodeRef;
use super::ranges::{Holder, Lock, LockKind};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use larder_core::id::{Generation, PageNo, Slot};

/// Version of these records.
const FORMAT: u8 = 1;
/// Bytes of one lock.
const LOCK_BYTES: usize = 2 + 4 + 8 + 4 + 1 + 8 + 8;

fn damaged(what: &str) -> FsError {
    FsError::Damaged(format!("locks: {what}"))
}

fn version(bytes: &mut &[u8], what: &'static str) -> Result<(), FsError> {
    match bytes.try_get_u8() {
        Ok(FORMAT) => Ok(()),
        Ok(found) => Err(FsError::Format { what, found, reads: FORMAT }),
        Err(_) => Err(damaged(what)),
    }
}

/// Where the locks of a volume are: pages in a row, the first for nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Table {
    pub(super) first: PageNo,
    pub(super) pages: u16,
}

impl Table {
    pub(super) fn encode(self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(FORMAT);
        out.put_slice(b"LCK");
        out.put_u64_le(self.first.0);
        out.put_u16_le(self.pages);
        out.freeze()
    }

    pub(super) fn decode(mut bytes: &[u8]) -> Result<Self, FsError> {
        version(&mut bytes, "table of locks")?;
        if bytes.len() != 3 + 8 + 2 || &bytes[..3] != b"LCK" {
            return Err(damaged("table"));
        }
        bytes.advance(3);
        let (first, pages) = (bytes.get_u64_le(), bytes.get_u16_le());
        if first == 0 || first >= PageNo::LIMIT - u64::from(pages) || pages < 2 {
            return Err(damaged("pages of the table"));
        }
        Ok(Self { first: PageNo(first), pages })
    }
}

/// What a node says of itself again and again, so that others see that it lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lease {
    /// How often it has been said.
    pub(super) count: u64,
    /// How long it holds, in nanoseconds, by the clock of whoever looks.
    pub(super) nanos: u64,
}

impl Lease {
    pub(super) fn encode(self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(FORMAT);
        out.put_u64_le(self.count);
        out.put_u64_le(self.nanos);
        out.freeze()
    }

    pub(super) fn decode(mut bytes: &[u8]) -> Result<Self, FsError> {
        version(&mut bytes, "lease of locks")?;
        if bytes.len() != 16 {
            return Err(damaged("lease"));
        }
        Ok(Self { count: bytes.get_u64_le(), nanos: bytes.get_u64_le() })
    }
}

/// The locks of the files whose slot this is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Held(pub(super) Vec<(InodeId, Vec<Lock>)>);

impl Held {
    /// A file's locks.
    pub(super) fn of(&mut self, id: InodeId) -> &mut Vec<Lock> {
        let place = self.0.iter().position(|(of, _)| *of == id).unwrap_or_else(|| {
            self.0.push((id, Vec::new()));
            self.0.len() - 1
        });
        &mut self.0[place].1
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|(_, locks)| locks.is_empty())
    }

    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(FORMAT);
        for (id, locks) in self.0.iter().filter(|(_, locks)| !locks.is_empty()) {
            out.put_u64_le(id.page.0);
            out.put_u16_le(id.slot.0);
            out.put_u32_le(id.generation.0);
            out.put_u16_le(u16::try_from(locks.len()).expect("a file has few"));
            for lock in locks {
                out.put_u16_le(lock.holder.node.slot.0);
                out.put_u32_le(lock.holder.node.generation.0);
                out.put_u64_le(lock.holder.owner);
                out.put_u32_le(lock.pid);
                out.put_u8(u8::from(lock.kind == LockKind::Write));
                out.put_u64_le(lock.start);
                out.put_u64_le(lock.end);
            }
        }
        out.freeze()
    }

    pub(super) fn decode(mut bytes: &[u8]) -> Result<Self, FsError> {
        version(&mut bytes, "locks")?;
        let mut held = Self::default();
        while bytes.has_remaining() {
            if bytes.len() < 16 {
                return Err(damaged("of which file"));
            }
            let id = InodeId {
                page: PageNo(bytes.get_u64_le()),
                slot: Slot(bytes.get_u16_le()),
                generation: Generation(bytes.get_u32_le()),
            };
            let count = usize::from(bytes.get_u16_le());
            if bytes.len() < count * LOCK_BYTES {
                return Err(damaged("length"));
            }
            let mut locks = Vec::with_capacity(count);
            for _ in 0..count {
                let slot = Slot(bytes.get_u16_le());
                let node = NodeRef { slot, generation: Generation(bytes.get_u32_le()) };
                let holder = Holder { node, owner: bytes.get_u64_le() };
                let pid = bytes.get_u32_le();
                let kind = match bytes.get_u8() {
                    0 => LockKind::Read,
                    1 => LockKind::Write,
                    _ => return Err(damaged("kind")),
                };
                let (start, end) = (bytes.get_u64_le(), bytes.get_u64_le());
                if start > end {
                    return Err(damaged("range"));
                }
                locks.push(Lock { holder, kind, start, end, pid });
            }
            held.0.push((id, locks));
        }
        Ok(held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held() -> Held {
        let node = NodeRef { slot: Slot(34), generation: Generation(3) };
        let lock = |kind, start, end| Lock {
            holder: Holder { node, owner: 0x1122_3344_5566_7788 },
            kind,
            start,
            end,
            pid: 4321,
        };
        let id = |page| InodeId { page: PageNo(page), slot: Slot(4), generation: Generation(1) };
        Held(vec![
            (id(9), vec![lock(LockKind::Read, 0, 9), lock(LockKind::Write, 10, u64::MAX)]),
            (id(77), vec![lock(LockKind::Write, 1 << 30, 1 << 31)]),
        ])
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The format for good: another one gets another version.
    #[test]
    fn records_are_as_they_were() {
        let table = Table { first: PageNo(300), pages: 17 };
        assert_eq!(hex(&table.encode()), "014c434b2c010000000000001100");
        assert_eq!(Table::decode(&table.encode()), Ok(table));
        let lease = Lease { count: 5, nanos: 30_000_000_000 };
        assert_eq!(hex(&lease.encode()), "01050000000000000000ac23fc06000000");
        assert_eq!(Lease::decode(&lease.encode()), Ok(lease));
        let bytes = held().encode();
        assert_eq!(bytes.len(), 1 + 2 * 16 + 3 * LOCK_BYTES);
        let file = "09000000000000000400010000000200";
        let holder = "2200030000008877665544332211e1100000";
        let first = "0000000000000000000900000000000000";
        let wanted = ["01", file, holder, first, holder, "010a"].concat();
        assert!(hex(&bytes).starts_with(&wanted), "{}", hex(&bytes));
        assert_eq!(Held::decode(&bytes), Ok(held()));
    }

    #[test]
    fn what_is_cut_or_wrong_is_damage() {
        let bytes = held().encode();
        for length in 0..bytes.len() {
            let cut = Held::decode(&bytes[..length]);
            assert!(cut.is_err() || cut.is_ok_and(|cut| cut != held()), "{length} bytes");
        }
        for wrong in [&[2][..], &[1, 1, 2, 3]] {
            assert!(Held::decode(wrong).is_err() && Table::decode(wrong).is_err());
        }
    }
}
