//! A file's bytes: as the process reads them, and as a power cut would leave them.

use larder_core::rng::Rng;
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes that a disk writes as a whole, or not at all.
pub const SECTOR_BYTES: usize = 512;

pub(super) type Sector = [u8; SECTOR_BYTES];

/// A file, by whatever name.
#[derive(Clone, Debug, Default)]
pub struct Inode {
    now: Content,
    durable: Content,
    /// Sectors that the system still means to write: what each write since the last sync made of
    /// them, in order. A power cut may leave any of these, or what was durable before.
    dirty: BTreeMap<u64, Vec<Sector>>,
    /// Bytes other than zeros written since the last sync.
    unsynced: Vec<Range<u64>>,
    /// What durable sectors held before they were last written, where that was anything but zeros.
    previous: BTreeMap<u64, Sector>,
    /// The shortest that it was made since the last sync, if it was made shorter.
    cut_to: Option<u64>,
}

/// What a power cut does to what was not synced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loss {
    /// How many of a hundred sectors, lengths and steps are kept, each drawn by itself.
    pub kept_percent: u64,
    /// Whether a bit of what was being written may be another.
    pub flips: bool,
    /// Whether a length that is kept without its bytes may show anything there, in the place of
    /// zeros.
    pub garbage: bool,
}

impl Loss {
    /// Wild weights: mostly all lost, mostly all kept, or a mixture.
    pub fn draw(rng: &mut Rng, garbage: bool) -> Self {
        let kept_percent = [0, 10, 50, 90, 100][rng.below(5) as usize];
        Self { kept_percent, flips: rng.chance(1, 4), garbage }
    }

    /// Whether one thing is kept.
    pub fn keeps(&self, rng: &mut Rng) -> bool {
        rng.below(100) < self.kept_percent
    }
}

#[derive(Clone, Debug, Default)]
struct Content {
    length: u64,
    sectors: BTreeMap<u64, Sector>,
}

impl Inode {
    /// Its length, as the process sees it.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.now.length
    }

    /// Where the last of its bytes ends that was ever written, about: what follows is zeros.
    #[must_use]
    pub fn used(&self) -> u64 {
        let last = self.now.sectors.last_key_value();
        let end = last.map_or(0, |(sector, _)| (sector + 1) * SECTOR_BYTES as u64);
        end.min(self.now.length)
    }

    /// Makes it longer, with zeros, or shorter.
    pub fn set_length(&mut self, length: u64) {
        if length < self.now.length {
            self.now.cut(length);
            self.dirty.split_off(&length.div_ceil(SECTOR_BYTES as u64));
            let last = length / SECTOR_BYTES as u64;
            if let (Some(versions), Some(bytes)) =
                (self.dirty.get_mut(&last), self.now.sectors.get(&last))
            {
                versions.push(*bytes);
            }
            self.cut_to = Some(self.cut_to.map_or(length, |shortest| shortest.min(length)));
        } else {
            self.now.length = length;
        }
    }

    /// Reads until `buffer` is full or the file ends; says how many bytes were read.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> usize {
        self.now.read(offset, buffer)
    }

    /// Writes bytes, not durably.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
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
    pub fn sync(&mut self) -> Vec<Range<u64>> {
        self.persist_cut();
        for sector in std::mem::take(&mut self.dirty).into_keys() {
            self.persist(sector);
        }
        self.durable.length = self.now.length;
        std::mem::take(&mut self.unsynced)
    }

    fn persist_cut(&mut self) {
        if let Some(shortest) = self.cut_to.take()
            && shortest < self.durable.length
        {
            self.durable.cut(shortest);
        }
    }

    fn persist(&mut self, sector: u64) {
        if let Some(bytes) = self.now.sectors.get(&sector) {
            match self.durable.sectors.insert(sector, *bytes) {
                Some(before) if before != [0; SECTOR_BYTES] => {
                    self.previous.insert(sector, before);
                }
                _ => {
                    self.previous.remove(&sector);
                }
            }
        }
    }

    /// A sync failed: some sectors reached the disk; of the others a later sync says nothing, and does nothing.
    pub fn sync_fails(&mut self, rng: &mut Rng) {
        for sector in std::mem::take(&mut self.dirty).into_keys() {
            if rng.chance(1, 2) {
                self.persist(sector);
            }
        }
        if rng.chance(1, 2) {
            self.durable.length = self.now.length;
        }
        self.unsynced.clear();
        self.cut_to = None;
    }

    /// The power is cut: of what was not synced each sector, and the length, is kept or lost.
    pub fn cut_power(&mut self, rng: &mut Rng, loss: &Loss) {
        if self.cut_to.is_some() && loss.keeps(rng) {
            self.persist_cut();
        }
        let length_before = self.durable.length;
        let mut lost = Vec::new();
        for (sector, versions) in std::mem::take(&mut self.dirty) {
            if !loss.keeps(rng) {
                lost.push(sector);
                continue;
            }
            let before = self.durable.sectors.get(&sector).copied().unwrap_or([0; SECTOR_BYTES]);
            let last = versions.len() - 1;
            let kept = if rng.chance(3, 4) { last } else { rng.below(last as u64 + 1) as usize };
            self.durable.sectors.insert(sector, versions[kept]);
            if loss.flips && rng.chance(1, 3) {
                self.flip_changed(rng, sector, before);
            }
        }
        if self.durable.length != self.now.length && loss.keeps(rng) {
            self.durable.length = self.now.length;
        }
        if loss.garbage {
            self.show_garbage(rng, length_before, &lost);
        }
        // What was kept of sectors beyond a length that was not is not in the file.
        self.durable.cut(self.durable.length);
        self.forget_cached();
    }

    /// Where the file grew and the bytes were lost, something else may be found.
    fn show_garbage(&mut self, rng: &mut Rng, length_before: u64, lost: &[u64]) {
        let new = length_before.div_ceil(SECTOR_BYTES as u64);
        for sector in lost.iter().filter(|sector| **sector >= new) {
            if rng.chance(1, 4) {
                let bytes = std::array::from_fn(|_| rng.next_u64() as u8);
                self.durable.sectors.insert(*sector, bytes);
            }
        }
    }

    /// The process reads what is durable, as after a restart of the machine.
    pub fn forget_cached(&mut self) {
        self.now = self.durable.clone();
        self.dirty.clear();
        self.unsynced.clear();
        self.cut_to = None;
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

    /// Sets one durable byte, behind everybody's back.
    pub(super) fn set(&mut self, offset: u64, byte: u8) {
        let sector = offset / SECTOR_BYTES as u64;
        for content in [&mut self.now, &mut self.durable] {
            if let Some(bytes) = content.sectors.get_mut(&sector) {
                bytes[(offset % SECTOR_BYTES as u64) as usize] = byte;
            }
        }
    }

    /// The durable bytes of the sector at a place, and those that it held before they were written.
    pub(super) fn durable_sector(&self, offset: u64) -> (Sector, Sector) {
        let sector = offset / SECTOR_BYTES as u64;
        let of = |sectors: &BTreeMap<u64, Sector>| {
            sectors.get(&sector).copied().unwrap_or([0; SECTOR_BYTES])
        };
        (of(&self.durable.sectors), of(&self.previous))
    }

    /// The durable byte at a place.
    pub(super) fn durable_byte(&self, offset: u64) -> u8 {
        let sector = self.durable.sectors.get(&(offset / SECTOR_BYTES as u64));
        sector.map_or(0, |bytes| bytes[(offset % SECTOR_BYTES as u64) as usize])
    }

    /// Whether a place holds a byte, durably, and nothing else was written there since.
    pub(super) fn still_is(&self, offset: u64, byte: u8) -> bool {
        let mut now = [0];
        self.now.read(offset, &mut now);
        self.durable_byte(offset) == byte && now == [byte]
    }

    /// Replaces its bytes, durably.
    pub(super) fn replace(&mut self, bytes: &[u8]) {
        self.now = Content::default();
        self.now.write(0, bytes);
        self.durable = self.now.clone();
        self.previous.clear();
        self.dirty.clear();
        self.unsynced.clear();
        self.cut_to = None;
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
