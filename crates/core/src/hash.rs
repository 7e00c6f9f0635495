//! A hash map with a fixed hasher: the same layout in every run. Still never iterated (clippy bans
//! it), since its order means nothing.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map with the fixed hasher.
pub(crate) type FixedMap<K, V> = HashMap<K, V, BuildHasherDefault<FixedHasher>>;

/// Folded 128-bit multiplication per word: fast for ids. Keys of hostile children reach it only
/// in numbers that the limits bound.
#[derive(Default, Clone, Copy, Debug)]
pub(crate) struct FixedHasher(u64);

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

impl FixedHasher {
    #[inline]
    fn fold(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word ^ 0xa076_1d64_78bd_642f) * u128::from(MULTIPLIER);
        self.0 = (wide as u64) ^ ((wide >> 64) as u64);
    }
}

impl Hasher for FixedHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.fold(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.fold(u64::from(value));
    }

    fn write_u16(&mut self, value: u16) {
        self.fold(u64::from(value));
    }

    fn write_u32(&mut self, value: u32) {
        self.fold(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.fold(value);
    }

    fn write_u128(&mut self, value: u128) {
        self.fold(value as u64);
        self.fold((value >> 64) as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
