//! Numbers of variable length (protobuf's), and where they are written and read.

use super::WireError;
use bytes::Bytes;

/// Takes what is written: counts it, or keeps it.
pub(super) trait Sink {
    fn bytes(&mut self, bytes: &[u8]);

    fn varint(&mut self, mut value: u64) {
        let mut buffer = [0; 10];
        let mut length = 0;
        while value >= 0x80 {
            buffer[length] = value as u8 | 0x80;
            value >>= 7;
            length += 1;
        }
        buffer[length] = value as u8;
        self.bytes(&buffer[..=length]);
    }

    fn u128(&mut self, value: u128) {
        self.bytes(&value.to_le_bytes());
    }
}

impl Sink for Vec<u8> {
    fn bytes(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Counts bytes only.
#[derive(Default)]
pub(super) struct Counter(pub(super) usize);

impl Sink for Counter {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0 += bytes.len();
    }
}

/// A signed number as an unsigned one that is small when it is near zero.
pub(super) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
pub(super) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

/// Reads bytes front to back.
pub(super) struct Reader(Bytes);

impl Reader {
    pub(super) fn new(bytes: Bytes) -> Self {
        Self(bytes)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> Result<u8, WireError> {
        Ok(self.take(1)?[0])
    }

    /// The next bytes, without copying.
    pub(super) fn take(&mut self, count: u64) -> Result<Bytes, WireError> {
        match usize::try_from(count) {
            Ok(count) if count <= self.0.len() => Ok(self.0.split_to(count)),
            _ => Err(WireError::Malformed("it breaks off")),
        }
    }

    pub(super) fn varint(&mut self) -> Result<u64, WireError> {
        let mut value = 0;
        for (index, byte) in self.0.iter().take(10).enumerate() {
            let bits = u64::from(byte & 0x7f);
            if index == 9 && bits > 1 {
                break;
            }
            value |= bits << (7 * index);
            if byte & 0x80 == 0 {
                let _read = self.0.split_to(index + 1);
                return Ok(value);
            }
        }
        Err(WireError::Malformed("a number breaks off or is too long"))
    }

    /// A number of a smaller type.
    pub(super) fn number<T: TryFrom<u64>>(&mut self) -> Result<T, WireError> {
        T::try_from(self.varint()?).map_err(|_| WireError::Malformed("a number is too large"))
    }

    pub(super) fn u128(&mut self) -> Result<u128, WireError> {
        let bytes = self.take(16)?;
        Ok(u128::from_le_bytes(bytes[..].try_into().expect("took sixteen bytes")))
    }
}
