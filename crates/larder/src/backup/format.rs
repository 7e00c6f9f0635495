//! The file of a backup: parts, each checksummed together with all before it.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use larder_core::id::{DomainId, HistoryId, PageId, PageNo, Stamp, VolumeId};
use larder_core::page::{PAGE_BYTES_MAX, PAGE_BYTES_MIN, Page};
use std::io::{Read, Write};

/// The version that is written, and the only one that is read.
pub const VERSION: u16 = 1;
/// Most bytes of a part.
pub const PART_BYTES_MAX: usize = 8 << 20;
/// Most pages of a part.
pub const PART_PAGES_MAX: usize = 1 << 16;

const MAGIC: [u8; 8] = *b"LRDbackp";
const NAME_BYTES_MAX: usize = 128;
/// Kind, three zeros, length, checksum.
const HEAD_BYTES: usize = 12;

const HEADER: u8 = 1;
const BASE_PAGES: u8 = 2;
const LATER_PAGES: u8 = 3;
const TRAILER: u8 = 4;

/// In the place of an image's length: the page was left out.
const LEFT_OUT: u32 = u32::MAX;

/// Why a file is no whole backup.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FormatError {
    /// It begins with something else.
    #[error("this is no backup of a volume")]
    NoBackup,
    /// It is of another time.
    #[error("backup format {found}; this version reads {VERSION}")]
    Version {
        /// What the file says.
        found: u16,
    },
    /// It ends in the middle.
    #[error("the backup is not whole: it ends after {0} bytes, without its end mark")]
    Cut(u64),
    /// Bytes that make no sense.
    #[error("the backup is damaged: {0}")]
    Damaged(String),
    /// It cannot be read.
    #[error("the backup cannot be read: {0}")]
    Io(String),
}

/// The first part: of which volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Its id.
    pub volume: VolumeId,
    /// Its domain.
    pub domain: DomainId,
    /// Its name.
    pub name: String,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// When the backup began, in nanoseconds since 1970 UTC.
    pub begun: u64,
}

/// The last part: as of when, and what the file holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trailer {
    /// The domain's history that ran.
    pub history: HistoryId,
    /// The stamp as of which the volume is held.
    pub stamp: Stamp,
    /// When that was asked for, in nanoseconds since 1970 UTC.
    pub time: u64,
    /// Page numbers from this on were never given away.
    pub next_page: PageNo,
    /// Pages that are there.
    pub pages: u64,
    /// Pages that were deleted, of which the numbers stay used.
    pub deleted: u64,
    /// Pages that were left out: they could not be read at the origin.
    pub left_out: u64,
}

/// What a file holds of a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Held<T> {
    /// Its image.
    Image(T),
    /// It was deleted.
    Deleted,
    /// It is there, and its image is not: it could not be read at the origin.
    LeftOut,
}

impl<T> Held<T> {
    /// The image, if there is one.
    pub fn image(&self) -> Option<&T> {
        match self {
            Self::Image(image) => Some(image),
            Self::Deleted | Self::LeftOut => None,
        }
    }
}

/// A page in a part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Which.
    pub page: PageId,
    /// The stamp that last changed it.
    pub version: Stamp,
    /// Its image, as bytes and decoded.
    pub held: Held<(Bytes, Page)>,
}

/// A part after the header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// Pages. Of a page that is in several parts the last one counts.
    Pages {
        /// Of the first copy: none of them is in another part of the first copy.
        base: bool,
        /// The pages.
        entries: Vec<Entry>,
    },
    /// The end.
    Trailer(Trailer),
}

fn damaged<T>(what: &str) -> Result<T, FormatError> {
    Err(FormatError::Damaged(what.into()))
}

/// A name of a volume, or none.
fn name_of(bytes: &[u8]) -> Option<String> {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let fits = !bytes.is_empty() && bytes.len() <= NAME_BYTES_MAX && bytes.iter().all(plain);
    fits.then(|| String::from_utf8_lossy(bytes).into_owned())
}

impl Header {
    fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u128_le(self.volume.0);
        out.put_u64_le(self.domain.0);
        out.put_u32_le(self.page_bytes);
        out.put_u64_le(self.begun);
        out.put_u8(u8::try_from(self.name.len()).expect("names are short"));
        out.put_slice(self.name.as_bytes());
        out.freeze()
    }

    fn decode(mut bytes: Bytes) -> Result<Self, FormatError> {
        if bytes.len() < 16 + 8 + 4 + 8 + 1 {
            return damaged("header");
        }
        let (volume, domain) = (VolumeId(bytes.get_u128_le()), DomainId(bytes.get_u64_le()));
        let (page_bytes, begun) = (bytes.get_u32_le(), bytes.get_u64_le());
        let length = usize::from(bytes.get_u8());
        let sizes = PAGE_BYTES_MIN..=PAGE_BYTES_MAX;
        if !sizes.contains(&page_bytes) || !page_bytes.is_power_of_two() || bytes.len() != length {
            return damaged("header");
        }
        let Some(name) = name_of(&bytes) else { return damaged("the volume's name") };
        Ok(Self { volume, domain, name, page_bytes, begun })
    }
}

impl Trailer {
    fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u128_le(self.history.0);
        let counts = [self.pages, self.deleted, self.left_out];
        for number in [self.stamp.0, self.time, self.next_page.0].into_iter().chain(counts) {
            out.put_u64_le(number);
        }
        out.freeze()
    }

    fn decode(mut bytes: Bytes) -> Result<Self, FormatError> {
        if bytes.len() != 16 + 6 * 8 {
            return damaged("end mark");
        }
        let trailer = Self {
            history: HistoryId(bytes.get_u128_le()),
            stamp: Stamp(bytes.get_u64_le()),
            time: bytes.get_u64_le(),
            next_page: PageNo(bytes.get_u64_le()),
            pages: bytes.get_u64_le(),
            deleted: bytes.get_u64_le(),
            left_out: bytes.get_u64_le(),
        };
        if trailer.next_page.0 == 0 || trailer.next_page.0 > PageNo::LIMIT {
            return damaged("end mark: page numbers");
        }
        Ok(trailer)
    }
}

/// A page to be written.
#[derive(Clone, Debug)]
pub struct Written {
    /// Which.
    pub page: PageNo,
    /// The stamp that last changed it.
    pub version: Stamp,
    /// Its image.
    pub held: Held<Bytes>,
}

/// Writes a file, part by part.
pub struct Writer<W: Write> {
    out: W,
    crc: u32,
    bytes: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a file.
    pub fn new(mut out: W, header: &Header) -> std::io::Result<Self> {
        let mut start = BytesMut::from(&MAGIC[..]);
        start.put_u16_le(VERSION);
        start.put_slice(&[0; 6]);
        out.write_all(&start)?;
        let mut writer = Self { out, crc: crc32c::crc32c(&start), bytes: start.len() as u64 };
        writer.part(HEADER, &header.encode())?;
        Ok(writer)
    }

    fn part(&mut self, kind: u8, payload: &[u8]) -> std::io::Result<()> {
        let mut head = BytesMut::with_capacity(HEAD_BYTES);
        head.put_slice(&[kind, 0, 0, 0]);
        head.put_u32_le(u32::try_from(payload.len()).expect("parts are small"));
        self.crc = chained(self.crc, &head, payload);
        head.put_u32_le(self.crc);
        self.out.write_all(&head)?;
        self.out.write_all(payload)?;
        self.bytes += (head.len() + payload.len()) as u64;
        Ok(())
    }

    /// Appends pages: together no more than a part's limits.
    pub fn pages(&mut self, base: bool, pages: &[Written]) -> std::io::Result<()> {
        let mut payload = BytesMut::new();
        for page in pages {
            payload.put_u64_le(page.page.0);
            payload.put_u64_le(page.version.0);
            match &page.held {
                Held::Image(image) => {
                    payload.put_u32_le(u32::try_from(image.len()).expect("at most 1 MiB"));
                    payload.put_slice(image);
                }
                Held::Deleted => payload.put_u32_le(0),
                Held::LeftOut => payload.put_u32_le(LEFT_OUT),
            }
        }
        assert!(
            payload.len() <= PART_BYTES_MAX && pages.len() <= PART_PAGES_MAX,
            "too long a part"
        );
        self.part(if base { BASE_PAGES } else { LATER_PAGES }, &payload)
    }

    /// Ends the file; gives back what was written to, and how much it was.
    pub fn finish(mut self, trailer: &Trailer) -> std::io::Result<(W, u64)> {
        self.part(TRAILER, &trailer.encode())?;
        self.out.flush()?;
        Ok((self.out, self.bytes))
    }
}

/// The checksum of a part follows from that of the one before: none can be left out or moved.
fn chained(before: u32, head: &[u8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(before, &head[..8]), payload)
}

/// Reads a file, part by part. Allocates no more than a part, and that only as bytes come.
pub struct Parts<R: Read> {
    file: R,
    header: Header,
    crc: u32,
    at: u64,
}

impl<R: Read> Parts<R> {
    /// Reads the beginning of a file.
    pub fn new(mut file: R) -> Result<Self, FormatError> {
        let mut start = [0; 16];
        read_exact(&mut file, &mut start, 0)?;
        if start[..8] != MAGIC {
            return Err(FormatError::NoBackup);
        }
        let found = u16::from_le_bytes([start[8], start[9]]);
        if found != VERSION {
            return Err(FormatError::Version { found });
        }
        if start[10..] != [0; 6] {
            return damaged("beginning");
        }
        let crc = crc32c::crc32c(&start);
        let nobody = Header {
            volume: VolumeId(0),
            domain: DomainId(0),
            name: String::new(),
            page_bytes: PAGE_BYTES_MIN,
            begun: 0,
        };
        let mut parts = Self { file, header: nobody, crc, at: 16 };
        let (kind, payload) = parts.read()?;
        if kind != HEADER {
            return damaged("no header");
        }
        parts.header = Header::decode(payload)?;
        Ok(parts)
    }

    /// Of which volume it is.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Where the next part begins, in bytes from the beginning.
    pub fn position(&self) -> u64 {
        self.at
    }

    /// The next part. After the trailer the file has to end.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Result<Part, FormatError> {
        let (kind, payload) = self.read()?;
        match kind {
            BASE_PAGES | LATER_PAGES => {
                Ok(Part::Pages { base: kind == BASE_PAGES, entries: self.entries(payload)? })
            }
            TRAILER => {
                let trailer = Trailer::decode(payload)?;
                match self.file.read(&mut [0]) {
                    Ok(0) => Ok(Part::Trailer(trailer)),
                    Ok(_) => damaged("bytes after its end"),
                    Err(error) => Err(FormatError::Io(error.to_string())),
                }
            }
            _ => damaged("no such part"),
        }
    }

    fn read(&mut self) -> Result<(u8, Bytes), FormatError> {
        let mut head = [0; HEAD_BYTES];
        read_exact(&mut self.file, &mut head, self.at)?;
        let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four"));
        let length = number(4) as usize;
        if head[1..4] != [0; 3] || length > PART_BYTES_MAX {
            return damaged(&format!("the part at {}", self.at));
        }
        let mut payload = Vec::new();
        let mut limited = (&mut self.file).take(length as u64);
        limited.read_to_end(&mut payload).map_err(|error| FormatError::Io(error.to_string()))?;
        if payload.len() < length {
            return Err(FormatError::Cut(self.at + (HEAD_BYTES + payload.len()) as u64));
        }
        let crc = chained(self.crc, &head, &payload);
        if crc != number(8) {
            return damaged(&format!("checksum of the part at {}", self.at));
        }
        self.crc = crc;
        self.at += (HEAD_BYTES + length) as u64;
        Ok((head[0], payload.into()))
    }

    fn entries(&self, mut payload: Bytes) -> Result<Vec<Entry>, FormatError> {
        let mut entries = Vec::new();
        while !payload.is_empty() {
            if payload.len() < 20 || entries.len() >= PART_PAGES_MAX {
                return damaged("pages");
            }
            let (number, version) = (payload.get_u64_le(), payload.get_u64_le());
            let length = payload.get_u32_le();
            if number == 0 || number >= PageNo::LIMIT || version == Stamp::LIMIT {
                return damaged("page number");
            }
            let page = PageId { volume: self.header.volume, page: PageNo(number) };
            let held = match length {
                0 => Held::Deleted,
                LEFT_OUT => Held::LeftOut,
                length => Held::Image(self.image(page, length as usize, &mut payload)?),
            };
            entries.push(Entry { page, version: Stamp(version), held });
        }
        Ok(entries)
    }

    fn image(
        &self,
        page: PageId,
        length: usize,
        payload: &mut Bytes,
    ) -> Result<(Bytes, Page), FormatError> {
        let number = page.page.0;
        if length > self.header.page_bytes as usize || length > payload.len() {
            return damaged(&format!("page {number}: length"));
        }
        let image = payload.split_to(length);
        match Page::decode(page, image.clone()) {
            Ok(page) => Ok((image, page)),
            Err(error) => damaged(&format!("page {number}: {error}")),
        }
    }
}

fn read_exact(file: &mut impl Read, bytes: &mut [u8], at: u64) -> Result<(), FormatError> {
    let mut read = 0;
    while read < bytes.len() {
        match file.read(&mut bytes[read..]) {
            Ok(0) if at == 0 => return Err(FormatError::NoBackup),
            Ok(0) => return Err(FormatError::Cut(at + read as u64)),
            Ok(more) => read += more,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(FormatError::Io(error.to_string())),
        }
    }
    Ok(())
}
