//! Which copies go when memory is short.
//!
//! A policy orders pages and is asked for victims. It learns of hits late: readers count them in
//! the copy with one relaxed store, and the policy takes the count when the page's turn comes.

use super::PolicyKind;
use super::read::PageMap;
use crate::id::PageId;
use std::collections::VecDeque;

/// What became of a page since its policy last looked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// It may not go now: a request waits for it.
    Pinned,
    /// It was read this often, up to three.
    Hits(u8),
}

/// Chooses which copies go. Pages enter by `insert` and leave by `evict` or `remove`.
pub trait Policy: Send {
    /// A page came in; `cost` in bytes.
    fn insert(&mut self, page: PageId, cost: usize);
    /// A page went for another reason.
    fn remove(&mut self, page: PageId);
    /// Chooses a page and forgets it. None: nothing may go.
    fn evict(&mut self, uses: &mut dyn FnMut(PageId) -> Use) -> Option<PageId>;
    /// Pages it holds.
    fn len(&self) -> usize;
    /// Whether it holds none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Makes a policy.
#[must_use]
pub fn policy(kind: PolicyKind) -> Box<dyn Policy> {
    match kind {
        PolicyKind::S3Fifo => Box::new(S3Fifo::default()),
        PolicyKind::Lru => Box::new(Lru::default()),
    }
}

/// A queue from which pages are removed by leaving their entry to be skipped: an entry counts only
/// with the ticket that the page has now.
#[derive(Default)]
struct Queue {
    entries: VecDeque<(PageId, u64)>,
}

impl Queue {
    fn push(&mut self, page: PageId, ticket: u64) {
        self.entries.push_back((page, ticket));
    }

    /// The oldest entry that counts.
    fn pop(&mut self, counts: impl Fn(PageId, u64) -> bool) -> Option<PageId> {
        while let Some((page, ticket)) = self.entries.pop_front() {
            if counts(page, ticket) {
                return Some(page);
            }
        }
        None
    }

    /// Drops entries that no longer count when they are more than half.
    fn tidy(&mut self, live: usize, counts: impl Fn(PageId, u64) -> bool) {
        if self.entries.len() > 2 * live + 64 {
            self.entries.retain(|&(page, ticket)| counts(page, ticket));
        }
    }
}

/// Least recently used, with hits noticed when a page's turn comes: a page read since then goes to
/// the end of the queue instead of going.
#[derive(Default)]
pub struct Lru {
    queue: Queue,
    tickets: PageMap<u64>,
    next: u64,
}

impl Lru {
    fn push(&mut self, page: PageId) {
        self.next += 1;
        self.queue.push(page, self.next);
        self.tickets.insert(page, self.next);
    }
}

impl Policy for Lru {
    fn insert(&mut self, page: PageId, _cost: usize) {
        self.push(page);
    }

    fn remove(&mut self, page: PageId) {
        let Self { queue, tickets, .. } = self;
        tickets.remove(&page);
        queue.tidy(tickets.len(), |page, t| tickets.get(&page) == Some(&t));
    }

    fn evict(&mut self, uses: &mut dyn FnMut(PageId) -> Use) -> Option<PageId> {
        // Each page gets a second chance once; when all are pinned nothing goes.
        for _ in 0..=2 * self.tickets.len() {
            let tickets = &self.tickets;
            let page = self.queue.pop(|page, ticket| tickets.get(&page) == Some(&ticket))?;
            if uses(page) == Use::Hits(0) {
                self.tickets.remove(&page);
                return Some(page);
            }
            self.push(page);
        }
        None
    }

    fn len(&self) -> usize {
        self.tickets.len()
    }
}

struct Place {
    ticket: u64,
    cost: usize,
    main: bool,
    /// Uses not yet spent on staying, up to three.
    credit: u8,
}

/// S3-FIFO (Yang et al., SOSP 2023): a small queue that most pages leave unseen, a main queue with
/// second chances, and a memory of the pages that left the small one lately.
#[derive(Default)]
pub struct S3Fifo {
    small: Queue,
    main: Queue,
    ghosts: Queue,
    places: PageMap<Place>,
    ghost_tickets: PageMap<u64>,
    small_cost: usize,
    main_cost: usize,
    small_len: usize,
    next: u64,
}

impl S3Fifo {
    /// The small queue's share of all bytes: one part in this many.
    const SMALL_PART: usize = 10;
    /// Uses that count, at most.
    const CREDIT_MAX: u8 = 3;

    fn push(&mut self, page: PageId, cost: usize, main: bool, credit: u8) {
        self.next += 1;
        let ticket = self.next;
        if main {
            self.main.push(page, ticket);
            self.main_cost += cost;
        } else {
            self.small.push(page, ticket);
            self.small_cost += cost;
            self.small_len += 1;
        }
        let place = Place { ticket, cost, main, credit };
        self.places.insert(page, place);
    }

    fn take(&mut self, page: PageId) -> Option<Place> {
        let place = self.places.remove(&page)?;
        if place.main {
            self.main_cost -= place.cost;
        } else {
            self.small_cost -= place.cost;
            self.small_len -= 1;
        }
        Some(place)
    }

    fn pop(&mut self, main: bool) -> Option<(PageId, Place)> {
        let places = &self.places;
        let queue = if main { &mut self.main } else { &mut self.small };
        let page =
            queue.pop(|page, ticket| places.get(&page).is_some_and(|p| p.ticket == ticket))?;
        let place = self.take(page).expect("its entry counted");
        Some((page, place))
    }

    fn remember(&mut self, page: PageId) {
        self.next += 1;
        self.ghosts.push(page, self.next);
        self.ghost_tickets.insert(page, self.next);
        // As many as the main queue holds, so that the memory is in proportion to the cache.
        while self.ghost_tickets.len() > self.places.len().max(1) {
            let tickets = &self.ghost_tickets;
            let oldest = self.ghosts.pop(|page, ticket| tickets.get(&page) == Some(&ticket));
            let Some(oldest) = oldest else { return };
            self.ghost_tickets.remove(&oldest);
        }
    }
}

impl Policy for S3Fifo {
    fn insert(&mut self, page: PageId, cost: usize) {
        self.take(page);
        let returned = self.ghost_tickets.remove(&page).is_some();
        self.push(page, cost, returned, 0);
        let tickets = &self.ghost_tickets;
        self.ghosts.tidy(tickets.len(), |page, t| tickets.get(&page) == Some(&t));
    }

    fn remove(&mut self, page: PageId) {
        self.take(page);
        let places = &self.places;
        let counts = |page, ticket| places.get(&page).is_some_and(|p| p.ticket == ticket);
        self.small.tidy(self.small_len, counts);
        self.main.tidy(places.len() - self.small_len, counts);
    }

    fn evict(&mut self, uses: &mut dyn FnMut(PageId) -> Use) -> Option<PageId> {
        // Every page has at most three chances and one move from small to main.
        for _ in 0..=(usize::from(Self::CREDIT_MAX) + 2) * self.places.len() {
            let total = self.small_cost + self.main_cost;
            let from_small =
                self.small_cost * Self::SMALL_PART > total || self.places.len() == self.small_len;
            let (page, place) = match self.pop(!from_small) {
                Some(found) => found,
                None => self.pop(from_small)?,
            };
            let hits = match uses(page) {
                Use::Pinned => {
                    self.push(page, place.cost, place.main, place.credit);
                    continue;
                }
                Use::Hits(hits) => hits,
            };
            let credit = Self::CREDIT_MAX.min(place.credit + hits);
            if !place.main && credit > 1 {
                self.push(page, place.cost, true, 0);
            } else if place.main && credit > 0 {
                self.push(page, place.cost, true, credit - 1);
            } else {
                if !place.main {
                    self.remember(page);
                }
                return Some(page);
            }
        }
        None
    }

    fn len(&self) -> usize {
        self.places.len()
    }
}

#[cfg(test)]
mod tests;
