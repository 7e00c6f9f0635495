//! What is done to the store, in the words that both processes use: the one that drives and judges
//! sends it as lines, the one that has the store open makes records and batches of it.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use larder_core::commit::{Op, PageKind, Write};
use larder_core::id::{BootId, CommitId, DomainId, PageId, PageNo, Stamp, VolumeId};
use larder_core::page::Page;
use larder_core::record::{
    Apart, DeletedVolume, DomainMeta, InstallBatch, InstalledPage, LogRecord, Lsn, StoredPage,
    VolumeMeta, VolumeSettings,
};
use larder_core::rng::Rng;
use larder_core::time::WallTime;
use std::fmt::Write as _;
use std::str::FromStr;

/// The domain of every store that is made.
pub(crate) const DOMAIN: DomainId = DomainId(0x9077);
/// Bytes of a page.
pub(crate) const PAGE_BYTES: u32 = 8 << 10;
/// Most bytes of content in a page.
pub(crate) const CONTENT_BYTES_MAX: u32 = PAGE_BYTES - 64;

/// A page: volume and number.
pub(crate) type Id = (u64, u64);

/// The page that stands for a volume.
pub(crate) fn stand_in(volume: u64) -> Id {
    (volume, PageNo::VOLUME.0)
}

/// A page's id in the store.
pub(crate) fn page_id((volume, page): Id) -> PageId {
    PageId { volume: VolumeId(u128::from(volume)), page: PageNo(page) }
}

/// Bytes that one process of one stamp wrote: told apart from those of any other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Written {
    pub(crate) stamp: u64,
    /// Which process.
    pub(crate) life: u64,
    pub(crate) bytes: u32,
}

impl Written {
    /// The bytes.
    pub(crate) fn content(self) -> Bytes {
        let mut rng = Rng::new(self.stamp << 20 ^ self.life);
        let mut content = Vec::with_capacity(self.bytes as usize + 8);
        while content.len() < self.bytes as usize {
            content.extend_from_slice(&rng.next_u64().to_le_bytes());
        }
        content.truncate(self.bytes as usize);
        content.into()
    }

    fn op(self) -> Op {
        Op::WriteRaw { offset: 0, bytes: self.content() }
    }

    /// The image of a page that holds them and nothing else.
    pub(crate) fn image(self, page: Id) -> Bytes {
        let mut image = Page::empty(PageKind::Raw);
        image.apply(&self.op(), PAGE_BYTES).expect("no content is longer than a page takes");
        image.encode(page_id(page))
    }
}

/// What a log record does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    Write { page: Id, bytes: u32 },
    Delete { page: Id },
    Make { volume: u64 },
    Remove { volume: u64 },
}

/// A log record: its number is its stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Change {
    pub(crate) stamp: u64,
    pub(crate) life: u64,
    pub(crate) step: Step,
}

impl Change {
    /// It, as the log takes it.
    pub(crate) fn record(&self) -> (Lsn, LogRecord) {
        let stamp = Stamp(self.stamp);
        let commit = |page: Id, op: Op| LogRecord::Commit {
            stamp,
            id: CommitId { boot: BootId(u128::from(self.life)), sequence: self.stamp },
            time: WallTime(self.stamp),
            grown: Vec::new(),
            writes: vec![Write { page: page_id(page), op }],
            decided: None,
        };
        let record = match self.step {
            Step::Write { page, bytes } => {
                commit(page, Written { stamp: self.stamp, life: self.life, bytes }.op())
            }
            Step::Delete { page } => commit(page, Op::DeletePage),
            Step::Make { volume } => {
                let (made, version) = (Volume { version: self.stamp, ..Volume::default() }, stamp);
                LogRecord::Volume { stamp: version, volume: made.meta(volume) }
            }
            Step::Remove { volume } => {
                LogRecord::Deleted { stamp, volume: VolumeId(u128::from(volume)) }
            }
        };
        (Lsn(self.stamp), record)
    }

    /// It as a line.
    pub(crate) fn to_line(self) -> String {
        let Self { stamp, life, step } = self;
        match step {
            Step::Write { page: (volume, page), bytes } => {
                format!("w {stamp} {life} {volume} {page} {bytes}")
            }
            Step::Delete { page: (volume, page) } => format!("d {stamp} {life} {volume} {page}"),
            Step::Make { volume } => format!("m {stamp} {life} {volume}"),
            Step::Remove { volume } => format!("x {stamp} {life} {volume}"),
        }
    }

    /// The change of a line.
    pub(crate) fn of_line(line: &str) -> Result<Self> {
        let mut words = Words::new(line);
        let kind = words.word()?;
        let (stamp, life) = (words.number()?, words.number()?);
        let step = match kind {
            "w" => {
                let page = (words.number()?, words.number()?);
                Step::Write { page, bytes: words.number()? }
            }
            "d" => Step::Delete { page: (words.number()?, words.number()?) },
            "m" => Step::Make { volume: words.number()? },
            "x" => Step::Remove { volume: words.number()? },
            other => bail!("a change of kind {other}"),
        };
        Ok(Self { stamp, life, step })
    }
}

/// What is kept of a volume beside its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Volume {
    pub(crate) version: u64,
    pub(crate) pages: u64,
    pub(crate) bytes: u64,
}

impl Volume {
    fn meta(self, volume: u64) -> VolumeMeta {
        VolumeMeta {
            id: VolumeId(u128::from(volume)),
            name: format!("volume {volume}"),
            page_bytes: PAGE_BYTES,
            next_page: PageNo(1 << 20),
            version: Stamp(self.version),
            pages: self.pages,
            bytes: self.bytes,
            settings: VolumeSettings::default(),
            given: Vec::new(),
        }
    }
}

/// What is installed in one step.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Batch {
    pub(crate) through: u64,
    /// Page, the version before, the version, and what it holds: none: deleted.
    pub(crate) pages: Vec<(Id, u64, u64, Option<Written>)>,
    pub(crate) apart: Vec<(Id, Vec<Written>)>,
    pub(crate) joined: Vec<Id>,
    pub(crate) removed: Vec<(Id, u64)>,
    pub(crate) volumes: Vec<(u64, Volume)>,
    /// Volume, the stamp of its deletion, and the pages left.
    pub(crate) deleted: Vec<(u64, u64, Option<u64>)>,
}

impl Batch {
    /// It, as the engine takes it.
    pub(crate) fn install(&self) -> InstallBatch {
        let stored = |page: Id, version: u64, written: Option<Written>| StoredPage {
            version: Stamp(version),
            image: written.map(|written| written.image(page)),
        };
        let pages = self.pages.iter().map(|(page, previous, version, written)| InstalledPage {
            page: page_id(*page),
            previous: Stamp(*previous),
            stored: stored(*page, *version, *written),
        });
        let apart = self.apart.iter().map(|(page, changes)| Apart {
            page: page_id(*page),
            changes: changes.iter().map(|written| (Stamp(written.stamp), written.op())).collect(),
        });
        let deleted = self.deleted.iter().map(|(volume, stamp, left)| DeletedVolume {
            id: VolumeId(u128::from(*volume)),
            name: format!("volume {volume}"),
            page_bytes: PAGE_BYTES,
            stamp: Stamp(*stamp),
            left: *left,
        });
        let removed = self.removed.iter();
        InstallBatch {
            pages: pages.collect(),
            apart: apart.collect(),
            joined: self.joined.iter().map(|page| page_id(*page)).collect(),
            removed: removed.map(|(page, version)| (page_id(*page), Stamp(*version))).collect(),
            meta: DomainMeta {
                domain: DOMAIN,
                installed_lsn: Lsn(self.through),
                installed: Stamp(self.through),
                volumes: self.volumes.iter().map(|(id, volume)| volume.meta(*id)).collect(),
                deleted: deleted.collect(),
                ..DomainMeta::default()
            },
        }
    }

    /// It as lines; the last one is `end`.
    pub(crate) fn to_lines(&self) -> String {
        let mut lines = String::new();
        let mut line = |text: std::fmt::Arguments<'_>| {
            let _always = writeln!(lines, "{text}");
        };
        for ((volume, page), previous, version, written) in &self.pages {
            match written {
                Some(Written { life, bytes, .. }) => {
                    line(format_args!("p {volume} {page} {previous} {version} {life} {bytes}"))
                }
                None => line(format_args!("t {volume} {page} {previous} {version}")),
            }
        }
        for ((volume, page), changes) in &self.apart {
            for Written { stamp, life, bytes } in changes {
                line(format_args!("a {volume} {page} {stamp} {life} {bytes}"));
            }
        }
        for (volume, page) in &self.joined {
            line(format_args!("j {volume} {page}"));
        }
        for ((volume, page), version) in &self.removed {
            line(format_args!("r {volume} {page} {version}"));
        }
        for (id, Volume { version, pages, bytes }) in &self.volumes {
            line(format_args!("v {id} {version} {pages} {bytes}"));
        }
        for (id, stamp, left) in &self.deleted {
            let left = left.map_or(-1, |left| i64::try_from(left).unwrap_or(i64::MAX));
            line(format_args!("x {id} {stamp} {left}"));
        }
        lines.push_str("end\n");
        lines
    }

    /// Takes one of its lines.
    pub(crate) fn take_line(&mut self, line: &str) -> Result<()> {
        let mut words = Words::new(line);
        let kind = words.word()?;
        let mut id = || -> Result<Id> { Ok((words.number()?, words.number()?)) };
        match kind {
            "p" | "t" => {
                let (page, previous, version) = (id()?, words.number()?, words.number()?);
                let written = match kind {
                    "p" => Some(Written {
                        stamp: version,
                        life: words.number()?,
                        bytes: words.number()?,
                    }),
                    _ => None,
                };
                self.pages.push((page, previous, version, written));
            }
            "a" => {
                let page = id()?;
                let (stamp, life) = (words.number()?, words.number()?);
                let written = Written { stamp, life, bytes: words.number()? };
                match self.apart.last_mut() {
                    Some((last, changes)) if *last == page => changes.push(written),
                    _ => self.apart.push((page, vec![written])),
                }
            }
            "j" => self.joined.push(id()?),
            "r" => self.removed.push((id()?, words.number()?)),
            "v" => {
                let (volume, version) = id()?;
                let (pages, bytes) = (words.number()?, words.number()?);
                self.volumes.push((volume, Volume { version, pages, bytes }));
            }
            "x" => {
                let (volume, stamp) = id()?;
                let left: i64 = words.number()?;
                self.deleted.push((volume, stamp, u64::try_from(left).ok()));
            }
            other => bail!("a line of kind {other} in a batch"),
        }
        Ok(())
    }
}

/// The words of a line.
pub(crate) struct Words<'a>(std::str::SplitWhitespace<'a>);

impl<'a> Words<'a> {
    pub(crate) fn new(line: &'a str) -> Self {
        Self(line.split_whitespace())
    }

    pub(crate) fn word(&mut self) -> Result<&'a str> {
        self.0.next().context("a line that ends too early")
    }

    pub(crate) fn number<T: FromStr>(&mut self) -> Result<T>
    where
        T::Err: std::error::Error + Send + Sync + 'static,
    {
        let word = self.word()?;
        word.parse().with_context(|| format!("{word} is no number"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_and_batches_read_back() {
        let steps = [
            Step::Write { page: (1, 2), bytes: 3 },
            Step::Delete { page: (1, 2) },
            Step::Make { volume: 4 },
            Step::Remove { volume: 4 },
        ];
        for step in steps {
            let change = Change { stamp: 8, life: 2, step };
            assert_eq!(Change::of_line(&change.to_line()).expect("it is one"), change);
        }
        let written = |stamp| Written { stamp, life: 3, bytes: 700 };
        let batch = Batch {
            through: 9,
            pages: vec![((1, 2), 5, 9, Some(written(9))), (stand_in(3), 0, 8, None)],
            apart: vec![((1, 5), vec![written(6), written(7)]), ((1, 6), vec![written(8)])],
            joined: vec![(1, 7)],
            removed: vec![((2, 1), 4)],
            volumes: vec![(1, Volume { version: 9, pages: 3, bytes: 2000 })],
            deleted: vec![(2, 3, Some(7)), (3, 4, None)],
        };
        let mut read = Batch { through: 9, ..Batch::default() };
        let lines = batch.to_lines();
        let mut lines = lines.lines();
        assert_eq!(lines.next_back(), Some("end"));
        lines.for_each(|line| read.take_line(line).expect("it is one of a batch"));
        assert_eq!(read, batch);
    }
}
