//! A client that copies a volume while it is written to, as a backup does: rounds of all that changed
//! since the round before, the last of them pinned. What it holds then must be the volume as of one
//! stamp, page by page, with all that was acknowledged before it began.

use super::Stage;
use crate::agenda::MILLI;
use crate::check::copies::check_copy;
use crate::world::World;
use larder_core::cache::PageCopy;
use larder_core::cache::io::{CacheOp, CacheReply};
use larder_core::id::{DomainId, HistoryId, PageId, PageNo, Stamp, VolumeId};
use larder_core::message::{
    CopyAnswer, CopyAsk, CopyCursor, PageAnswer, PageBody, PinId, RequestError,
};
use larder_core::page::Page;
use std::collections::BTreeMap;

/// Rounds before the last one, at most.
const ROUNDS_MAX: u64 = 2;
/// Questions that are asked again before it gives up.
const PATIENCE: u32 = 4;

/// A copy being made.
#[derive(Debug)]
pub(super) struct Copying {
    volume: VolumeId,
    domain: DomainId,
    /// Restores of the domain before it began, and what had been acknowledged.
    branches: usize,
    acknowledged: Stamp,
    /// The history of the answers.
    history: Option<HistoryId>,
    /// Up to which stamp the rounds before tell all.
    since: Stamp,
    rounds: u64,
    /// The last round's.
    pin: Option<PinId>,
    cursor: Option<CopyCursor>,
    /// What the round under way shows.
    through: Option<Stamp>,
    pages: BTreeMap<PageNo, PageAnswer>,
    patience: u32,
}

impl World {
    pub(super) fn client_copies(&mut self, index: usize) {
        let number = self.rng.below(self.volumes.len() as u64) as usize;
        let (volume, domain) = (self.volumes[number].spec.id, self.volumes[number].domain);
        let truth = self.oracle.truth(domain);
        let copying = Copying {
            volume,
            domain,
            branches: truth.branch_count(),
            acknowledged: truth.real_time_floor(),
            history: None,
            since: Stamp::ZERO,
            rounds: self.rng.below(ROUNDS_MAX + 1),
            pin: None,
            cursor: None,
            through: None,
            pages: BTreeMap::new(),
            patience: PATIENCE,
        };
        self.client_copies_on(index, Box::new(copying));
    }

    /// Asks for the next part.
    pub(super) fn client_copies_on(&mut self, index: usize, mut copying: Box<Copying>) {
        if copying.rounds == 0 && copying.pin.is_none() {
            copying.pin = Some(PinId(self.rng.next_u128()));
        }
        let ask = CopyAsk {
            volume: copying.volume,
            history: copying.history.unwrap_or_default(),
            since: copying.since,
            cursor: copying.cursor,
            pin: copying.pin,
        };
        self.clients[index].stage = Stage::Copy(copying);
        self.client_asks(index, CacheOp::CopyPages(Box::new(ask)));
    }

    /// A part has come, or none.
    pub(super) fn client_copied(
        &mut self,
        index: usize,
        mut copying: Box<Copying>,
        result: Result<CacheReply, RequestError>,
    ) {
        let answer = match result {
            Ok(CacheReply::Copied(answer)) => *answer,
            Ok(other) => panic!("{other:?} is no part of a copy"),
            Err(RequestError::Busy(_)) if !self.clients_drain() => {
                // A relay answers so at once: fifty clients that ask again at once leave no time to others.
                let pause = (20 * MILLI) << (PATIENCE - copying.patience);
                if copying.patience > 0 {
                    copying.patience -= 1;
                    self.clients[index].stage = Stage::Copy(copying);
                }
                return self.client_goes_on(index, pause);
            }
            // A pin that was given up, a volume that is gone, or nobody there.
            Err(_) => return self.client_thinks(index),
        };
        let restored = self.oracle.truth(copying.domain).branch_count() != copying.branches;
        if restored || copying.history.is_some_and(|history| history != answer.history) {
            return self.client_thinks(index);
        }
        copying.history = Some(answer.history);
        if !copying.take(index, answer) {
            return self.client_copies_on(index, copying);
        }
        let through = copying.through.take().expect("a part was taken");
        copying.since = through;
        if copying.pin.is_none() {
            copying.rounds -= 1;
            return self.client_copies_on(index, copying);
        }
        self.check_copied(index, &copying, through);
        self.client_thinks(index);
    }

    fn check_copied(&mut self, index: usize, copying: &Copying, through: Stamp) {
        let who = format_args!("the copy of client {index}");
        assert!(
            through >= copying.acknowledged,
            "{who} is of {through}, and {} was acknowledged before it was begun",
            copying.acknowledged
        );
        let branch = self.oracle.truth(copying.domain).current();
        assert!(through <= branch.durable(), "P1: {who} is of {through}, which is not durable");
        if branch.deleted(copying.volume).is_some_and(|stamp| stamp <= through)
            || branch.is_silent()
        {
            return;
        }
        let there = branch.pages().filter(|page| page.volume == copying.volume);
        for page in there.filter(|page| branch.kind(*page, through).is_some()) {
            assert!(copying.pages.contains_key(&page.page), "P3: {who} lacks {page} at {through}");
        }
        for answer in copying.pages.values() {
            check_copy(branch, &copy_of(answer), through, &who);
            self.tally.copies_checked += 1;
        }
        self.tally.copied += 1;
    }
}

impl Copying {
    /// Takes a part; says whether it was the last of its round.
    fn take(&mut self, index: usize, answer: CopyAnswer) -> bool {
        let through = *self.through.get_or_insert(answer.through);
        assert!(
            self.pin.is_none() || through == answer.through,
            "P5: the copy of client {index} is pinned at {through}, and a part of it is of {}",
            answer.through
        );
        self.through = Some(answer.through);
        for page in answer.pages {
            assert!(
                page.page.volume == self.volume && page.page.page < answer.next_page,
                "client {index} is told of {} in a copy of {} below {:?}",
                page.page,
                self.volume,
                answer.next_page
            );
            let before = self.pages.get(&page.page.page);
            // A part of what is not installed may be older than what the index told.
            if before.is_none_or(|before| before.version <= page.version) {
                self.pages.insert(page.page.page, page);
            }
        }
        self.cursor = answer.cursor;
        self.cursor.is_none()
    }
}

fn copy_of(answer: &PageAnswer) -> PageCopy {
    let PageAnswer { page: id, version, body, .. } = answer;
    let page = match body {
        PageBody::Absent => None,
        PageBody::Data(image) => Some(decoded(*id, image)),
        PageBody::Valid => panic!("a copy that says of {id} that it is known"),
        PageBody::Holed(..) => panic!("a copy that does not say all of {id}"),
    };
    PageCopy { id: *id, version: *version, page, holes: Vec::new() }
}

fn decoded(id: PageId, image: &bytes::Bytes) -> Page {
    Page::decode(id, image.clone())
        .unwrap_or_else(|error| panic!("P9: damage where none was done: {id} in a copy: {error}"))
}
