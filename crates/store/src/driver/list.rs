//! The list of an origin's domains, in the folder that holds theirs. It is what tells a domain
//! whose disk is not mounted from one that never was: without it a folder that is missing would be
//! made anew, and an empty origin would be served in the place of a full one.

use super::OpenError;
use super::identity::{checked, replace};
use crate::disk::{Disk, DiskError, read_all};
use larder_core::id::DomainId;

/// Its name.
pub const LIST_NAME: &str = "domains";
const UNFINISHED_NAME: &str = "domains.new";
/// The format written, and the only one there was.
const FORMAT: u32 = 1;

/// The name of a domain's folder beside the list: its place in it.
#[must_use]
pub fn folder_name(number: usize) -> String {
    format!("domain-{number}")
}

/// Which place in the list a folder of this name is for; none: it is no domain's.
#[must_use]
pub fn folder_number(name: &str) -> Option<usize> {
    let number = name.strip_prefix("domain-")?.parse().ok()?;
    (folder_name(number) == name).then_some(number)
}

/// Writes the list, durably: the domains of `domain-0`, `domain-1`, and so on.
///
/// # Errors
/// Disk errors; after one the list is the old one or this one.
pub fn write_list<D: Disk>(disk: &D, domains: &[DomainId]) -> Result<(), OpenError> {
    Ok(replace(disk, UNFINISHED_NAME, LIST_NAME, &text(domains))?)
}

/// Reads the list; none: no store was made here.
///
/// # Errors
/// A damaged list; disk errors.
pub fn read_list<D: Disk>(disk: &D) -> Result<Option<Vec<DomainId>>, OpenError> {
    let file = match disk.open(LIST_NAME) {
        Ok(file) => file,
        Err(DiskError::Missing { .. }) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    parse(&read_all(&file, LIST_NAME)?).map(Some)
}

fn text(domains: &[DomainId]) -> String {
    let line = |(number, domain): (usize, &DomainId)| {
        format!("{} {:016x}\n", folder_name(number), domain.0)
    };
    let lines: String = domains.iter().enumerate().map(line).collect();
    checked(&format!("larder store\nformat {FORMAT}\n{lines}"))
}

fn parse(bytes: &[u8]) -> Result<Vec<DomainId>, OpenError> {
    let found = String::from_utf8_lossy(bytes);
    let mut lines = found.lines().skip(1);
    let format = lines.next().and_then(|line| line.strip_prefix("format ")?.parse().ok());
    if let Some(format) = format
        && format != FORMAT
    {
        return Err(OpenError::ListFormat { found: format, known: FORMAT });
    }
    let id = |line: &str| u64::from_str_radix(line.split_once(' ')?.1, 16).ok();
    let domains: Vec<DomainId> = lines
        .take_while(|line| line.starts_with("domain-"))
        .filter_map(|line| id(line).map(DomainId))
        .collect();
    // Whatever was misread does not give the same bytes again.
    if text(&domains).as_bytes() != bytes {
        return Err(OpenError::ListDamaged);
    }
    Ok(domains)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_reads_back_and_any_flipped_bit_is_seen() {
        let domains = [DomainId(0xfeed), DomainId(1)];
        let bytes = text(&domains).into_bytes();
        assert_eq!(parse(&bytes), Ok(domains.to_vec()));
        assert_eq!(parse(text(&[]).as_bytes()), Ok(Vec::new()));
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn another_format_is_named() {
        let found = parse(b"larder store\nformat 7\ndomain-0 0\ncheck 0\n");
        assert_eq!(found, Err(OpenError::ListFormat { found: 7, known: 1 }));
    }
}
