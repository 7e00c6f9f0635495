//! The file that says which domain a directory holds. It is written last when a domain is made:
//! a directory without it was never served.

use super::OpenError;
use crate::disk::{Disk, DiskError, DiskFile, read_all};
use larder_core::id::DomainId;

/// Its name.
pub(crate) const IDENTITY_NAME: &str = "domain";
const UNFINISHED_NAME: &str = "domain.new";
/// The format written, and the only one there was.
const FORMAT: u32 = 1;

/// Writes the identity, durably.
pub(crate) fn write<D: Disk>(disk: &D, domain: DomainId) -> Result<(), DiskError> {
    replace(disk, UNFINISHED_NAME, IDENTITY_NAME, &text(domain))
}

/// Gives a small file new content: after a crash it has the old one or the new one.
pub(super) fn replace<D: Disk>(
    disk: &D,
    unfinished: &str,
    name: &str,
    text: &str,
) -> Result<(), DiskError> {
    match disk.remove(unfinished) {
        Ok(()) | Err(DiskError::Missing { .. }) => {}
        Err(error) => return Err(error),
    }
    let file = disk.create(unfinished)?;
    file.write_at(0, text.as_bytes())?;
    file.sync()?;
    disk.rename(unfinished, name)?;
    disk.sync_directory()
}

/// Lines with a last one that checks them.
pub(super) fn checked(lines: &str) -> String {
    format!("{lines}check {:08x}\n", crc32c::crc32c(lines.as_bytes()))
}

/// Reads the identity; none: there is no domain here.
pub(crate) fn read<D: Disk>(disk: &D) -> Result<Option<DomainId>, OpenError> {
    let file = match disk.open(IDENTITY_NAME) {
        Ok(file) => file,
        Err(DiskError::Missing { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let bytes = read_all(&file, IDENTITY_NAME)?;
    parse(&bytes).map(Some)
}

fn text(domain: DomainId) -> String {
    checked(&format!("larder domain\nformat {FORMAT}\nid {:016x}\n", domain.0))
}

fn parse(bytes: &[u8]) -> Result<DomainId, OpenError> {
    let found = String::from_utf8_lossy(bytes);
    let value = |key: &str| found.lines().find_map(|line| line.strip_prefix(key));
    if let Some(format) = value("format ").and_then(|format| format.parse().ok())
        && format != FORMAT
    {
        return Err(OpenError::IdentityFormat { found: format, known: FORMAT });
    }
    value("id ")
        .and_then(|id| u64::from_str_radix(id, 16).ok())
        .map(DomainId)
        .filter(|domain| text(*domain).as_bytes() == bytes)
        .ok_or(OpenError::IdentityDamaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_reads_back_and_any_flipped_bit_is_seen() {
        let bytes = text(DomainId(0xfeed)).into_bytes();
        assert_eq!(parse(&bytes), Ok(DomainId(0xfeed)));
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_format_is_named() {
        let found = parse(b"larder domain\nformat 7\nid 0\ncheck 0\n");
        assert_eq!(found, Err(OpenError::IdentityFormat { found: 7, known: 1 }));
    }
}
