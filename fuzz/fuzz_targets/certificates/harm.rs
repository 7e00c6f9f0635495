//! What may happen to a file.

use pem::{EncodeConfig, LineEnding, Pem};

/// A file as it came out of the harm that `data` tells: its first byte says of which kind. `pieces`
/// are what a file may be put together of.
pub fn harm(original: &[u8], pieces: &[Vec<u8>], data: &[u8]) -> Vec<u8> {
    match data.split_first() {
        None => original.to_vec(),
        Some((how, data)) => match how % 4 {
            0 => data.to_vec(),
            1 => data.iter().take(8).flat_map(|which| piece(pieces, *which)).copied().collect(),
            2 => altered(original, data),
            _ => below_armour(original, data).unwrap_or_else(|| altered(original, data)),
        },
    }
}

/// One piece; from 128 on without the end of its last line.
fn piece(pieces: &[Vec<u8>], which: u8) -> &[u8] {
    let piece = &pieces[usize::from(which & 127) % pieces.len()];
    if which & 128 == 0 { piece } else { piece.trim_ascii_end() }
}

/// Four bytes each: what is done, where (two bytes), and with what.
pub fn altered(original: &[u8], mut data: &[u8]) -> Vec<u8> {
    let mut bytes = original.to_vec();
    while let Some(([how, low, high, value], rest)) = data.split_first_chunk::<4>() {
        data = rest;
        let place = usize::from(u16::from_le_bytes([*low, *high])) % (bytes.len() + 1);
        match how % 4 {
            0 => {
                if let Some(byte) = bytes.get_mut(place) {
                    *byte ^= value;
                }
            }
            1 => drop(bytes.drain(place..(place + usize::from(*value)).min(bytes.len()))),
            2 => bytes.insert(place, *value),
            _ => bytes.truncate(place),
        }
    }
    bytes
}

/// The same below the armour of one section (the first byte says which), so that what reads the
/// armour is passed.
fn below_armour(original: &[u8], data: &[u8]) -> Option<Vec<u8>> {
    let (which, data) = data.split_first()?;
    let mut sections = pem::parse_many(original).ok().filter(|sections| !sections.is_empty())?;
    let count = sections.len();
    let section = &mut sections[usize::from(*which) % count];
    *section = Pem::new(section.tag(), altered(section.contents(), data));
    let lines = EncodeConfig::new().set_line_ending(LineEnding::LF);
    Some(sections.iter().flat_map(|one| pem::encode_config(one, lines).into_bytes()).collect())
}
