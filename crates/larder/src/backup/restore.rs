//! Making a volume from a backup.

use super::format::Trailer;
use super::wanted::{Found, Kept, Wanted, fingerprint, kept};
use super::{BackupError, BackupProgress, Summary, Verified, look_through};
use crate::client::{Error, Freshness, Node, Volume, VolumeOptions};
use crate::clock::wall_time;
use crate::fs::client::VolumeStore;
use crate::fs::{FileSystem, FsError, FsOptions};
use larder_core::commit::{Op, PageKind, Write};
use larder_core::id::{PageNo, VolumeId};
use larder_core::message::{PageBody, certificate_of};
use larder_core::page::Page;
use larder_core::rights::{EVERYBODY, Right, RightsEdit};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::time::Duration;
use tokio::task::JoinSet;

/// Bytes and pages of one commit.
const COMMIT_BYTES: usize = 4 << 20;
const COMMIT_PAGES: usize = 1024;
/// Commits under way at once.
const COMMITS_MAX: usize = 4;
/// Most page numbers that are given away: an origin gives 2^24 of them in a step.
pub(super) const NUMBERS_MAX: u64 = 1 << 40;
/// How often a commit is tried that the origin cannot take at present.
const ATTEMPTS: u32 = 60;
const PAUSE: Duration = Duration::from_secs(1);
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Who may do what with the volume that is made. The file does not tell: what only some might read is not to
/// be everybody's for having been restored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RestoreOptions {
    /// What everybody may; by default nothing. Whoever restores it administers it.
    pub default_right: Right,
    /// What others may, beside that.
    pub grants: Vec<RightsEdit>,
}

/// What was restored.
#[derive(Clone, Debug)]
pub struct Restored {
    /// What the file holds.
    pub summary: Summary,
    /// The new volume's id.
    pub volume: VolumeId,
    /// Pages that were there already: an earlier restoration was gone on with.
    pub kept: u64,
    /// Files without a name that were freed: whoever held them open is no more.
    pub freed: u64,
    /// Who may administer the volume, and had its rights set.
    pub admin: String,
}

/// Makes volume `name` of a backup, or goes on where an earlier call was interrupted, be it at the very
/// end. The file is
/// looked through first, so that nothing is made of one that is damaged. The volume has an id of its
/// own: no cache takes it for the one that was backed up. Its page 1, without which a tree of files
/// cannot be opened, is made last: until then it is of no use to anybody. Of pages that were left out the
/// numbers stay used, and nothing is there. Its rights are set before the first page is made.
pub async fn restore<F: Read + Seek>(
    node: &Node,
    mut file: F,
    name: &str,
    options: &RestoreOptions,
    progress: &mut (dyn FnMut(BackupProgress) + Send),
) -> Result<Restored, BackupError> {
    let verified = look_through(BufReader::new(&mut file), &mut |_| {})?;
    let header = &verified.summary.header;
    let next = verified.summary.trailer.next_page;
    if next.0 > NUMBERS_MAX {
        return Err(BackupError::TooManyNumbers { next: next.0 });
    }
    let (volume, kept) = match node.volume(name).await {
        Ok(volume) => {
            let kept = begun_before(&volume, &mut file, name, &verified).await?;
            (volume, kept)
        }
        Err(Error::NoVolume(_)) => {
            let page_bytes = header.page_bytes;
            let options = VolumeOptions { page_bytes, ..VolumeOptions::new(name) };
            (node.create_volume(options).await?, Kept::default())
        }
        Err(error) => return Err(error.into()),
    };
    // An origin that is too old says so before anything is done.
    volume.copy_again(&volume.copy_from_zero()).await?;
    let admin = certificate_of(&node.status().name).to_owned();
    if !kept.contains(&PageNo(1)) {
        set_rights(node, &volume, &admin, options).await?;
    }
    volume.give_away_below(next).await?;
    file.seek(SeekFrom::Start(0))?;
    let mut making = Making {
        volume: &volume,
        batch: Vec::new(),
        bytes: 0,
        under_way: JoinSet::new(),
        done: BackupProgress {
            known: verified.summary.trailer.pages + verified.summary.trailer.deleted,
            ..BackupProgress::default()
        },
        progress,
    };
    making.pages(BufReader::new(&mut file), &verified, &kept).await?;
    if let Some(root) = &verified.root
        && !kept.contains(&PageNo(1))
    {
        let image = root.encode(volume.root());
        making.add(vec![Write { page: volume.root(), op: Op::RestorePage { image } }]).await?;
    }
    making.finish().await?;
    let freed = free_orphans(&volume, &verified.summary.trailer).await?;
    let (volume, kept) = (volume.id(), kept.len() as u64);
    Ok(Restored { summary: verified.summary, volume, kept, freed, admin })
}

/// Sets the rights of a volume of which nobody has said any: not those that somebody set since it was begun.
async fn set_rights(
    node: &Node,
    volume: &Volume,
    admin: &str,
    options: &RestoreOptions,
) -> Result<(), BackupError> {
    let (said, _) = node.rights(volume.id()).await?;
    if said.entries().next().is_some() {
        return Ok(());
    }
    let edit = |who: &str, right| RightsEdit { who: who.into(), right: Some(right) };
    let own = [edit(EVERYBODY, options.default_right), edit(admin, Right::Admin)];
    let edits = own.into_iter().chain(options.grants.iter().cloned()).collect();
    node.change_rights(volume.id(), edits, false).await?;
    Ok(())
}

/// What an interrupted restoration of this very file made already; an error if it is no such. One that
/// was interrupted after page 1 has made everything.
async fn begun_before<F: Read + Seek>(
    volume: &Volume,
    file: &mut F,
    name: &str,
    verified: &Verified,
) -> Result<Kept, BackupError> {
    let mut whole = false;
    if volume.page_bytes() != verified.summary.header.page_bytes {
        return Err(BackupError::Taken(name.into()));
    }
    let mut found = Found::new();
    let mut ask = volume.copy_from_zero();
    loop {
        let answer = volume.copy_again(&ask).await?;
        for page in answer.pages {
            let there = match page.body {
                PageBody::Data(image) => Some(image),
                PageBody::Absent | PageBody::Valid | PageBody::Holed(..) => None,
            };
            if page.page.page == PageNo(1) {
                // Made with the volume, and not restored yet; or the last one that was restored.
                let made = Page::empty(PageKind::Slotted).encode(page.page);
                let last = verified.root.as_ref().map(|root| root.encode(page.page));
                let fresh = there.as_ref() == Some(&made);
                whole = !fresh && there.is_some() && there == last;
                if !fresh && !whole {
                    return Err(BackupError::Taken(name.into()));
                }
                continue;
            }
            found.insert(page.page.page, there.as_deref().map(fingerprint));
        }
        match answer.cursor {
            Some(cursor) => ask.cursor = Some(cursor),
            None => break,
        }
    }
    file.seek(SeekFrom::Start(0))?;
    let Some(mut kept) = kept(BufReader::new(file), verified, volume.id(), (found, whole))? else {
        return Err(match whole {
            true => BackupError::Changed(name.into()),
            false => BackupError::Taken(name.into()),
        });
    };
    if whole {
        kept.insert(PageNo(1));
    }
    Ok(kept)
}

struct Making<'a> {
    volume: &'a Volume,
    batch: Vec<Write>,
    bytes: usize,
    under_way: JoinSet<Result<(), Error>>,
    done: BackupProgress,
    progress: &'a mut (dyn FnMut(BackupProgress) + Send),
}

impl Making<'_> {
    /// All pages but page 1.
    async fn pages(
        &mut self,
        file: impl Read,
        verified: &Verified,
        kept: &Kept,
    ) -> Result<(), BackupError> {
        let mut wanted = Wanted::new(file, verified)?;
        while let Some(entries) = wanted.next()? {
            for entry in entries.iter().filter(|entry| !kept.contains(&entry.page.page)) {
                self.add(wanted.writes(self.volume.id(), entry)).await?;
            }
        }
        self.flush().await?;
        self.settle(0).await
    }

    async fn add(&mut self, writes: Vec<Write>) -> Result<(), BackupError> {
        let bytes: usize = writes.iter().map(|write| write.op.payload_bytes()).sum();
        self.batch.extend(writes);
        self.bytes += bytes;
        self.done.pages += 1;
        self.done.bytes += bytes as u64;
        if self.bytes >= COMMIT_BYTES || self.batch.len() >= COMMIT_PAGES {
            self.flush().await?;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), BackupError> {
        let writes = std::mem::take(&mut self.batch);
        self.bytes = 0;
        if writes.is_empty() {
            return Ok(());
        }
        self.settle(COMMITS_MAX - 1).await?;
        let volume = self.volume.clone();
        self.under_way.spawn(async move { commit(&volume, writes).await });
        (self.progress)(self.done);
        Ok(())
    }

    /// Waits until no more than so many commits are under way.
    async fn settle(&mut self, most: usize) -> Result<(), BackupError> {
        while self.under_way.len() > most {
            match self.under_way.join_next().await {
                Some(Ok(result)) => result?,
                Some(Err(panicked)) => return Err(Error::Unavailable(panicked.to_string()).into()),
                None => {}
            }
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<(), BackupError> {
        self.flush().await?;
        self.settle(0).await
    }
}

/// Commits, again while the origin cannot take it: nothing is done then.
async fn commit(volume: &Volume, writes: Vec<Write>) -> Result<(), Error> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match volume.commit_writes(writes.clone()).await {
            Ok(_) => return Ok(()),
            Err(
                Error::Unavailable(_)
                | Error::NotDone(_)
                | Error::TimedOut(_)
                | Error::StoreFull(_),
            ) if attempt < ATTEMPTS => {
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Frees the files without a name of a volume of files: nobody has them open.
async fn free_orphans(volume: &Volume, trailer: &Trailer) -> Result<u64, BackupError> {
    let store =
        VolumeStore::new(volume.clone(), Freshness::Leased, TIME_LIMIT, TIME_LIMIT, Duration::ZERO);
    volume.refresh().await?;
    let tree = match FileSystem::open(store, FsOptions::default()).await {
        Ok(tree) => tree,
        // Of a program that uses the library.
        Err(FsError::Unformatted) => return Ok(0),
        Err(error) => return Err(Error::Unavailable(error.to_string()).into()),
    };
    // Not those that were made here since.
    let age = Duration::from_nanos(wall_time().0.saturating_sub(trailer.time));
    let freed = tree.reap_orphans(age).await;
    freed.map_err(|error| Error::Unavailable(error.to_string()).into())
}
