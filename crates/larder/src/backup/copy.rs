//! Copying a volume that is in use.

use super::format::{Header, Held, Trailer, Writer, Written};
use super::tally::Tally;
use super::{BackupError, BackupProgress, Summary};
use crate::client::{Error, NotCopied, Volume};
use crate::clock::{random_u128, wall_time};
use bytes::Bytes;
use larder_core::id::{HistoryId, PageId, PageNo, Stamp};
use larder_core::message::{CopyAnswer, CopyAsk, CopyCursor, CopyPart, PageBody, PinId};
use larder_core::page::Page;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::time::{Duration, Instant};

/// How to copy.
#[derive(Clone, Debug)]
pub struct BackupOptions {
    /// Rounds before the last one, at most: each copies what was written during the one before.
    pub rounds_max: u32,
    /// A round that brought no more bytes than this is followed by the last one.
    pub settled_bytes: u64,
    /// How often the last round is tried.
    pub attempts_max: u32,
    /// How long nothing may come before the backup fails.
    pub patience: Duration,
    /// How long it waits for its turn while the origin is busy with the backups of others. They hold
    /// their places for half an hour at most.
    pub busy_patience: Duration,
    /// Leave out pages that are damaged at the origin. Otherwise the first of them ends the backup.
    pub leave_out_damaged: bool,
}

impl Default for BackupOptions {
    fn default() -> Self {
        Self {
            rounds_max: 8,
            settled_bytes: 16 << 20,
            attempts_max: 5,
            patience: Duration::from_secs(120),
            busy_patience: Duration::from_secs(45 * 60),
            leave_out_damaged: false,
        }
    }
}

/// A first round that took no longer is followed by the last one at once.
const SHORT: Duration = Duration::from_secs(2);
/// How often a part of the last round is asked for again before its state is taken for lost.
const PART_ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(200);
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// Writes a volume to `out`, as it is at one stamp of its domain while this runs. Everything that was
/// committed before the call is in it. The file is whole when this returns, and not before: it ends
/// with a mark. The volume may be written to all the time; if it is written to faster than it can be
/// read, this ends with [`BackupError::TooBusy`] after a bounded number of rounds.
pub async fn back_up<W: Write>(
    volume: &Volume,
    out: W,
    options: &BackupOptions,
    progress: &mut (dyn FnMut(BackupProgress) + Send),
) -> Result<(Summary, W), BackupError> {
    let info = volume.node().volume_info(volume.id()).await?;
    let header = Header {
        volume: info.id,
        domain: info.domain,
        name: info.name,
        page_bytes: info.page_bytes,
        begun: wall_time().0,
    };
    let mut copier = Copier {
        volume,
        options,
        writer: Writer::new(out, &header)?,
        tally: Tally::default(),
        ahead: BTreeSet::new(),
        pin: PinId(random_u128()),
        position: (HistoryId::default(), Stamp::ZERO),
        next_page: PageNo(1),
        done: BackupProgress { known: info.pages, ..BackupProgress::default() },
        progress,
    };
    let (mut begun, mut last) = (Instant::now(), u64::MAX);
    for _ in 0..options.rounds_max {
        let bytes = copier.round(None).await?.bytes;
        // Once rounds no longer shrink they are as long as what is written over and over.
        if begun.elapsed() <= SHORT || bytes <= options.settled_bytes || bytes > last / 2 {
            break;
        }
        (begun, last) = (Instant::now(), bytes);
    }
    let (round, time) = copier.last_round().await?;
    if let Some(page) = copier.ahead.first() {
        let detail = format!("the origin told of page {} ahead of the copy's state only", page.0);
        return Err(Error::Unavailable(detail).into());
    }
    let trailer = Trailer {
        history: round.history,
        stamp: round.through,
        time,
        next_page: copier.next_page,
        pages: copier.tally.pages(),
        deleted: copier.tally.deleted(),
        left_out: copier.tally.count_left_out(),
    };
    let left_out = copier.tally.left_out();
    let (out, bytes) = copier.writer.finish(&trailer)?;
    Ok((Summary { header, trailer, bytes, left_out }, out))
}

/// What a round came to.
struct Round {
    history: HistoryId,
    through: Stamp,
    bytes: u64,
}

struct Copier<'a, W: Write> {
    volume: &'a Volume,
    options: &'a BackupOptions,
    writer: Writer<W>,
    tally: Tally,
    /// Pages of which only a state after the last round's stamp is in the file: the next round
    /// tells of them again.
    ahead: BTreeSet<PageNo>,
    /// The name of every last round: one that is tried again takes the place of the one before.
    pin: PinId,
    /// All that changed up to here is in the file.
    position: (HistoryId, Stamp),
    next_page: PageNo,
    done: BackupProgress,
    progress: &'a mut (dyn FnMut(BackupProgress) + Send),
}

/// Whether it is worth asking again.
fn passes(error: &Error) -> bool {
    matches!(error, Error::Unavailable(_) | Error::TimedOut(_))
}

impl<W: Write> Copier<'_, W> {
    /// The round that shows one moment, and the time at which it was begun.
    async fn last_round(&mut self) -> Result<(Round, u64), BackupError> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let time = wall_time().0;
            let reason = match self.round(Some(self.pin)).await {
                Ok(round) => return Ok((round, time)),
                Err(BackupError::Client(error)) if passes(&error) => error.to_string(),
                Err(error) => return Err(error),
            };
            if attempts >= self.options.attempts_max {
                return Err(BackupError::TooBusy { attempts, reason });
            }
            // The next one has less to tell.
            self.round(None).await?;
        }
    }

    /// One round: all that changed after the position.
    async fn round(&mut self, pin: Option<PinId>) -> Result<Round, BackupError> {
        let mut cursor: Option<CopyCursor> = None;
        let mut first: Option<(HistoryId, Stamp)> = None;
        let mut bytes = 0;
        loop {
            let answer = self.part(pin, cursor).await?;
            let (history, through) = *first.get_or_insert((answer.history, answer.through));
            if through != answer.through {
                return Err(Error::Unavailable("parts of two rounds".into()).into());
            }
            if history != answer.history {
                // The origin was started anew: is it on the line of which the parts before are?
                let ask = CopyAsk { cursor: None, pin: None, ..self.ask((history, through)) };
                self.patiently(ask, None).await?;
            }
            cursor = answer.cursor;
            let last = cursor.is_none();
            bytes += self.take(pin.is_some(), answer)?;
            if last {
                self.position = (history, through);
                return Ok(Round { history, through, bytes });
            }
        }
    }

    fn ask(&self, (history, since): (HistoryId, Stamp)) -> CopyAsk {
        CopyAsk { volume: self.volume.id(), history, since, cursor: None, pin: None }
    }

    async fn part(
        &mut self,
        pin: Option<PinId>,
        cursor: Option<CopyCursor>,
    ) -> Result<CopyAnswer, BackupError> {
        let ask = CopyAsk { cursor, pin, ..self.ask(self.position) };
        self.patiently(ask, pin.map(|_| PART_ATTEMPTS)).await
    }

    /// Asks again while nothing comes, and while the origin has no place for another copy.
    async fn patiently(
        &mut self,
        ask: CopyAsk,
        most: Option<u32>,
    ) -> Result<CopyAnswer, BackupError> {
        let (mut began, mut attempts, mut busy) = (Instant::now(), 0, None);
        loop {
            match self.volume.copy_pages(ask.clone()).await {
                Err(NotCopied::Busy(reason)) => {
                    let waited = busy.get_or_insert_with(Instant::now).elapsed();
                    if waited > self.options.busy_patience {
                        return Err(BackupError::OriginBusy { waited, reason });
                    }
                    tokio::time::sleep(BUSY_PAUSE).await;
                    // It answers.
                    began = Instant::now();
                }
                Err(NotCopied::Failed(error)) if passes(&error) => {
                    attempts += 1;
                    let over = most.is_some_and(|most| attempts >= most);
                    if over || began.elapsed() > self.options.patience {
                        return Err(error.into());
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                other => return Ok(other?),
            }
        }
    }

    /// What is held of a page that was answered.
    fn held(&self, body: PageBody, page: PageId) -> Result<Held<Bytes>, Error> {
        let damaged = |detail: &str| Error::Damaged { page, detail: detail.into() };
        let image = match body {
            PageBody::Absent | PageBody::Valid => return Ok(Held::Deleted),
            PageBody::Holed(..) => return Err(damaged("it has holes")),
            PageBody::Data(image) if image.is_empty() && self.options.leave_out_damaged => {
                return Ok(Held::LeftOut);
            }
            PageBody::Data(image) if image.is_empty() => {
                return Err(damaged(
                    "its bytes do not check; `--leave-out-damaged` leaves such pages out",
                ));
            }
            PageBody::Data(image) => image,
        };
        Page::decode(page, image.clone()).map_err(|error| damaged(&error.to_string()))?;
        if image.len() > self.volume.page_bytes() as usize {
            return Err(damaged("it is longer than a page"));
        }
        Ok(Held::Image(image))
    }

    /// Checks the pages of an answer and writes them; gives their bytes.
    fn take(&mut self, pinned: bool, answer: CopyAnswer) -> Result<u64, BackupError> {
        let first = self.position.1 == Stamp::ZERO && !pinned;
        let base = first && answer.part == CopyPart::Index;
        self.next_page = self.next_page.max(answer.next_page);
        let mut bytes = 0;
        let mut written = Vec::with_capacity(answer.pages.len());
        // One that cannot be read may be told of for each time that it changed.
        let mut left_out = BTreeMap::new();
        for page in answer.pages {
            let (id, number, version) = (page.page, page.page.page, page.version);
            if pinned && version > answer.through {
                let detail = "it is ahead of the state asked for".into();
                return Err(Error::Damaged { page: id, detail }.into());
            }
            let held = self.held(page.body, id)?;
            if version > answer.through {
                self.ahead.insert(number);
            } else {
                self.ahead.remove(&number);
            }
            bytes += held.image().map_or(0, |image| image.len() as u64);
            let readable = !matches!(held, Held::LeftOut);
            self.tally.add(number, base && readable, &held)?;
            let page = Written { page: number, version, held };
            if readable {
                left_out.remove(&number);
                written.push(page);
            } else {
                left_out.insert(number, page);
            }
        }
        let left_out: Vec<Written> = left_out.into_values().collect();
        self.done.pages += (written.len() + left_out.len()) as u64;
        self.done.bytes += bytes;
        for (base, pages) in [(base, &written), (false, &left_out)] {
            if !pages.is_empty() {
                self.writer.pages(base, pages)?;
            }
        }
        (self.progress)(BackupProgress {
            known: self.done.known.max(self.done.pages),
            ..self.done
        });
        Ok(bytes)
    }
}
