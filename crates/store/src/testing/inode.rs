//! A file's bytes: as the process reads them, and as a power cut would leave them.

use larder_core::rng::Rng;
use std::collections::BTreeMap;
use std::ops::Range;

pub(super) const SECTOR_BYTES: usize = 512;

type Sector = [u8; SECTOR_BYTES];

/// A file, by whatever name.
#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    now: Content,
    durable: Content,
    /// Sectors that the system still means to write: what each write since the last sync made of
    /// them, in order. A power cut may leave any of these, or what was durable before.
    dirty: BTreeMap<u64, Vec<Sector>>,
    /// Bytes other than zeros written since the last sync.
    unsynced: Vec<Range<u64>>,
}

#[derive(Clone, Debug, Default)]
struct Content {
    length: u64,
    sectors: BTreeMap<u64, Sector>,
}

impl Inode {
    pub(super) fn length(&self) -> u64 {
        self.now.length
    }

    pub(super) fn set_length(&mut self, length: u64) {
        if length < self.now.length {
            self.now.cut(length);
        } else {
            self.now.length = length;
        }
    }

    pub(super) fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        self.now.read(offset, buffer)
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.now.write(offset, bytes);
        let end = offset + bytes.len() as u64;
        for sector in offset / SECTOR_BYTES as u64..=(end - 1) / SECTOR_BYTES as u64 {
            let content = self.now.sectors[&sector];
            self.dirty.entry(sector).or_default().push(content);
        }
        if bytes.iter().any(|byte| *byte != 0) {
            self.unsynced.push(offset..end);
        }
    }

    /// All that was written is durable. Gives where anything but zeros was written since the last
    /// sync.
    pub(super) fn sync(&mut self) -> Vec<Range<u64>> {
        for sector in std::mem::take(&mut self.dirty).into_keys() {
            self.persist(sector);
        }
        self.durable.length = self.now.length;
        std::mem::take(&mut self.unsynced)
    }

    fn persist(&mut self, sector: u64) {
        if let Some(bytes) = self.now.sectors.get(&sector) {
            self.durable.sectors.insert(sector, *bytes);
        }
    }

    /// Some sectors reached the disk; of the others a later sync says nothing, and does nothing.
    pub(super) fn sync_fails(&mut self, rng: &mut Rng) {
        for sector in std::mem::take(&mut self.dirty).into_keys() {
            if rng.chance(1, 2) {
                self.persist(sector);
            }
        }
        if rng.chance(1, 2) {
            self.durable.length = self.now.length;
        }
        self.unsynced.clear();
    }

    pub(super) fn cut_power(&mut self, rng: &mut Rng, kept_percent: u64, flips: bool) {
        for (sector, versions) in std::mem::take(&mut self.dirty) {
            if rng.below(100) >= kept_percent {
                continue;
            }
            let before = self.durable.sectors.get(&sector).copied().unwrap_or([0; SECTOR_BYTES]);
            let last = versions.len() - 1;
            let kept = if rng.chance(3, 4) { last } else { rng.below(last as u64 + 1) as usize };
            self.durable.sectors.insert(sector, versions[kept]);
            if flips && rng.chance(1, 3) {
                self.flip_changed(rng, sector, before);
            }
        }
        if self.durable.length != self.now.length && rng.below(100) < kept_percent {
            self.durable.length = self.now.length;
        }
        self.forget_cached();
    }

    /// The process reads what is durable, as after a restart of the machine.
    pub(super) fn forget_cached(&mut self) {
        self.now = self.durable.clone();
        self.dirty.clear();
        self.unsynced.clear();
    }

    /// Flips a bit of a byte that the unsynced write changed.
    fn flip_changed(&mut self, rng: &mut Rng, sector: u64, before: Sector) {
        let Some(bytes) = self.durable.sectors.get_mut(&sector) else {
            return;
        };
        let changed: Vec<usize> =
            (0..SECTOR_BYTES).filter(|place| bytes[*place] != before[*place]).collect();
        if !changed.is_empty() {
            bytes[changed[rng.below(changed.len() as u64) as usize]] ^= 1 << rng.below(8);
        }
    }

    /// Draws the place of a durable byte that is not zero, of a sector that nobody means to write.
    pub(super) fn draw_place(&self, rng: &mut Rng) -> Option<u64> {
        let used = |entry: &(&u64, &Sector)| {
            !self.dirty.contains_key(entry.0) && entry.1.iter().any(|byte| *byte != 0)
        };
        let count = self.durable.sectors.iter().filter(used).count() as u64;
        if count == 0 {
            return None;
        }
        let chosen = usize::try_from(rng.below(count)).expect("an index");
        let (sector, bytes) = self.durable.sectors.iter().filter(used).nth(chosen)?;
        let places: Vec<usize> = (0..SECTOR_BYTES).filter(|place| bytes[*place] != 0).collect();
        let place = places[rng.below(places.len() as u64) as usize];
        Some(sector * SECTOR_BYTES as u64 + place as u64)
    }

    /// Flips bits of one durable byte, behind everybody's back.
    pub(super) fn flip(&mut self, offset: u64, bits: u8) {
        let sector = offset / SECTOR_BYTES as u64;
        for content in [&mut self.now, &mut self.durable] {
            if let Some(bytes) = content.sectors.get_mut(&sector) {
                bytes[(offset % SECTOR_BYTES as u64) as usize] ^= bits;
            }
        }
    }

    /// The durable byte at a place.
    pub(super) fn durable_byte(&self, offset: u64) -> u8 {
        let sector = self.durable.sectors.get(&(offset / SECTOR_BYTES as u64));
        sector.map_or(0, |bytes| bytes[(offset % SECTOR_BYTES as u64) as usize])
    }

    /// Replaces its bytes, durably.
    pub(super) fn replace(&mut self, bytes: &[u8]) {
        self.now = Content::default();
        self.now.write(0, bytes);
        self.durable = self.now.clone();
        self.dirty.clear();
        self.unsynced.clear();
    }
}

impl Content {
    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut offset = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let within = (offset % SECTOR_BYTES as u64) as usize;
            let count = rest.len().min(SECTOR_BYTES - within);
            let sector =
                self.sectors.entry(offset / SECTOR_BYTES as u64).or_insert([0; SECTOR_BYTES]);
            sector[within..within + count].copy_from_slice(&rest[..count]);
            rest = &rest[count..];
            offset += count as u64;
        }
        self.length = self.length.max(offset);
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        let left = self.length.saturating_sub(offset).min(buffer.len() as u64);
        let left = usize::try_from(left).expect("no more than the buffer");
        let mut done = 0;
        while done < left {
            let place = offset + done as u64;
            let within = (place % SECTOR_BYTES as u64) as usize;
            let count = (left - done).min(SECTOR_BYTES - within);
            let part = &mut buffer[done..done + count];
            match self.sectors.get(&(place / SECTOR_BYTES as u64)) {
                Some(sector) => part.copy_from_slice(&sector[within..within + count]),
                None => part.fill(0),
            }
            done += count;
        }
        left
    }

    fn cut(&mut self, length: u64) {
        let first_gone = length.div_ceil(SECTOR_BYTES as u64);
        self.sectors.split_off(&first_gone);
        let within = (length % SECTOR_BYTES as u64) as usize;
        if let (true, Some(sector)) =
            (within > 0, self.sectors.get_mut(&(length / SECTOR_BYTES as u64)))
        {
            sector[within..].fill(0);
        }
        self.length = length;
    }
}
