//! Helping neighbours: pages that they miss and that are complete here, or known but for some slots (BuddyCache, section
//! 3.1; decision 0041).
//!
//! A helper answers when its valid-through has reached the position that the redirector named (rule 11):
//! its copy is exact up to there. A page that is on its way here, from above, is sent when it has come. One
//! that is to come from a neighbour is not waited for, or two would wait for each other.

use super::{Cache, CacheOutput, Out};
use crate::cache::io::NeighbourOutput;
use crate::cache::read::Help;
use crate::group::{GroupMessage, Lack, messages};
use crate::id::{BootId, DomainId, PageId, RequestId, Stamp};
use crate::machine::LinkOutput;
use crate::message::{Message, PageAnswer};
use crate::time::Instant;
use std::collections::BTreeMap;

/// A page that a neighbour misses.
#[derive(Clone, Copy)]
struct Wanted {
    asker: BootId,
    request: RequestId,
    domain: DomainId,
    page: PageId,
    position: Stamp,
    /// A copy with holes does as well.
    holes: bool,
    /// It is not waited for longer: nor does who asked.
    deadline: Instant,
    /// The neighbour was told that it waits.
    told: bool,
}

/// Pages that neighbours miss, and that cannot be sent yet.
#[derive(Default)]
pub(super) struct Helps {
    waiting: Vec<Wanted>,
    /// Something happened for which one may have waited.
    due: bool,
}

impl Helps {
    /// The stream went on, or a page in flight is none any more.
    pub(super) fn look_again(&mut self) {
        self.due = !self.waiting.is_empty();
    }

    /// A neighbour is gone.
    pub(super) fn forget(&mut self, asker: BootId) {
        self.waiting.retain(|wanted| wanted.asker != asker);
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.waiting.iter().map(|wanted| wanted.deadline).min()
    }

    /// Pages that wait to be sent.
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }
}

impl Cache {
    /// The redirector asks for help with pages.
    pub(super) fn on_help(
        &mut self,
        now: Instant,
        (asker, request): (BootId, RequestId),
        (domain, position, holes): (DomainId, Stamp, bool),
        pages: Vec<PageId>,
        out: &mut Out,
    ) {
        let Some(group) = &self.neighbours else { return };
        let room = group.config.helps_max.saturating_sub(self.helps.waiting.len());
        let deadline = now.after(group.config.help_wait_long);
        let wanted = pages.into_iter().map(|page| Wanted {
            asker,
            request,
            domain,
            page,
            position,
            holes,
            deadline,
            told: false,
        });
        let wanted = wanted.collect();
        let waits = self.help(wanted, out);
        if waits.len() > room {
            crate::probe::probe("helps-full");
        }
        let (waits, over) = waits.split_at(waits.len().min(room));
        self.helps.waiting.extend_from_slice(waits);
        let over = over.iter().map(|wanted| wanted.page).collect();
        self.lacks((asker, request, domain), over, Lack::NotNow, out);
    }

    /// Looks again at what waits, if anything has happened since, or the time of one is up.
    pub(super) fn help_waiting(&mut self, now: Instant, out: &mut Out) {
        if self.helps.next_timeout().is_some_and(|at| at <= now) {
            crate::probe::probe("help-waited-in-vain");
            let waiting = std::mem::take(&mut self.helps.waiting);
            let (late, waiting) = waiting.into_iter().partition(|wanted| wanted.deadline <= now);
            self.helps.waiting = waiting;
            self.not_now(late, out);
        }
        if std::mem::take(&mut self.helps.due) {
            let waiting = std::mem::take(&mut self.helps.waiting);
            self.helps.waiting = self.help(waiting, out);
        }
    }

    /// The link to the redirector is gone: what it asked is of a state that it may not be on any more.
    pub(super) fn help_no_longer(&mut self, out: &mut Out) {
        let waiting = std::mem::take(&mut self.helps.waiting);
        self.not_now(waiting, out);
    }

    fn not_now(&self, wanted: Vec<Wanted>, out: &mut Out) {
        for Wanted { asker, request, domain, page, .. } in wanted {
            self.lacks((asker, request, domain), vec![page], Lack::NotNow, out);
        }
    }

    /// Sends what can be sent, says what is not to be had; gives what waits.
    fn help(&mut self, wanted: Vec<Wanted>, out: &mut Out) -> Vec<Wanted> {
        let mut waits = Vec::new();
        let mut sends: BTreeMap<_, Vec<PageAnswer>> = BTreeMap::new();
        let mut says: BTreeMap<_, Vec<PageId>> = BTreeMap::new();
        for one in wanted {
            let of = (one.asker, one.request, one.domain);
            match self.help_with(&one) {
                Ok(answer) => sends.entry(of).or_default().push(answer),
                Err(why) => {
                    if why != Lack::Waits || !one.told {
                        says.entry((of, why)).or_default().push(one.page);
                    }
                    if why == Lack::Waits {
                        waits.push(Wanted { told: true, ..one });
                    }
                }
            }
        }
        for ((of, why), pages) in says {
            self.lacks(of, pages, why, out);
        }
        for ((asker, request, domain), answers) in sends {
            for message in messages(request, domain, answers) {
                self.send_to_neighbour(asker, message, out);
            }
        }
        waits
    }

    /// The page, or why it is not sent: [`Lack::Waits`] until the stream, or the page, is here.
    fn help_with(&self, wanted: &Wanted) -> Result<PageAnswer, Lack> {
        let Wanted { domain, page, position, holes, .. } = *wanted;
        match self.shared.help(domain, page, (position, holes)) {
            Help::Send(answer) => Ok(answer),
            Help::NotNow => Err(Lack::NotNow),
            Help::Behind => {
                crate::probe::probe("help-waits-for-the-stream");
                Err(Lack::Waits)
            }
            Help::Lacks if self.is_on_its_way(domain, page) => {
                crate::probe::probe("help-waits-for-the-page");
                Err(Lack::Waits)
            }
            Help::Lacks => Err(Lack::Lacks),
        }
    }

    /// Whether a page is asked for above, and will be here.
    fn is_on_its_way(&self, domain: DomainId, page: PageId) -> bool {
        let flights = &self.domains[&domain].flights;
        let link = self.link_of(domain).expect("a live stream has a link");
        !self.shared.is_unreadable(page.volume)
            && flights
                .sent_by(page)
                .is_some_and(|request| !link.transfers.contains((request, page)))
    }

    fn lacks(
        &self,
        (asker, request, domain): (BootId, RequestId, DomainId),
        pages: Vec<PageId>,
        why: Lack,
        out: &mut Out,
    ) {
        if !pages.is_empty() {
            let message = GroupMessage::Lacks { request, domain, pages, why };
            self.send_to_neighbour(asker, Message::Group(message), out);
        }
    }

    /// To one whose link is gone nothing is sent: it knows.
    fn send_to_neighbour(&self, life: BootId, message: Message, out: &mut Out) {
        let link = self.neighbours.as_ref().and_then(|group| group.link_to(life));
        if let Some(link) = link {
            let send = LinkOutput::Send { link, message };
            out.push(CacheOutput::Neighbour(NeighbourOutput::Link(send)));
        }
    }
}
