//! What users ask: deadlines, fetches, volumes, page numbers, waits.

use super::calls::Call;
use super::commits::Asked;
use super::link::{Came, violation};
use super::{Cache, CacheOutput, CacheReply, Domain, Out};
use crate::cache::Awaited;
use crate::cache::io::CacheOp;
use crate::cache::read::DomainState;
use crate::commit::PartId;
use crate::id::{CommitId, DomainId, HistoryId, LinkId, PageId, PageNo, RequestId, Stamp};
use crate::machine::Fault;
use crate::message::{CloseReason, RequestError, VolumeInfo};
use crate::time::{Duration, Instant};
use std::collections::BTreeSet;
use std::sync::Arc;

/// So many fetches that failed are remembered, so that late answers to them are known.
const FAILED_MAX: usize = 64;

/// A stream that was refused is asked for again after so many times what the refusal took.
const REFUSED_PAUSE: u32 = 8;
/// But no later than that, unless the refusal itself took longer: the parent may be young.
const REFUSED_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Most pages of one request: a large object of 16 MiB in the smallest pages, and to spare.
const FETCH_PAGES_MAX: usize = 1 << 13;

/// A request of a user that waits.
pub(super) struct User {
    pub(super) deadline: Instant,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    Fetch {
        domain: DomainId,
        /// As asked.
        pages: Vec<PageId>,
        /// Not gathered yet.
        missing: BTreeSet<PageId>,
    },
    Commit {
        domain: DomainId,
        id: CommitId,
    },
    /// Of a transaction over several domains.
    Whole(PartId),
    /// Asked of the parent as it is.
    Call {
        call: Call,
        /// On which link.
        sent: Option<LinkId>,
        /// Parents that have answered, where several are asked.
        asked: BTreeSet<u32>,
        /// Volumes that those have listed.
        volumes: Vec<VolumeInfo>,
        /// Volumes that the one has listed that is being asked.
        listed: Vec<VolumeInfo>,
    },
    Opening {
        domain: DomainId,
    },
    Wait {
        domain: DomainId,
        stamp: Stamp,
    },
    Refresh {
        domain: DomainId,
        asked: Instant,
    },
}

impl User {
    pub(super) fn lose_link(&mut self, link: LinkId) {
        if let Kind::Call { sent, listed, .. } = &mut self.kind
            && *sent == Some(link)
        {
            *sent = None;
            listed.clear();
        }
    }
}

impl Cache {
    pub(super) fn ask(
        &mut self,
        now: Instant,
        id: RequestId,
        op: CacheOp,
        deadline: Instant,
        out: &mut Out,
    ) {
        if self.users.len() >= self.config.requests_max {
            let error = RequestError::Busy(format!("{} requests wait", self.users.len()));
            return answer(id, Err(error), out);
        }
        match op {
            CacheOp::OpenVolume(key) => self.call(id, deadline, Call::Open(key)),
            CacheOp::ListVolumes => self.call(id, deadline, Call::List),
            CacheOp::CreateVolume(spec) => self.call(id, deadline, Call::Create(spec)),
            CacheOp::ChangeVolume(volume, change) => {
                self.call(id, deadline, Call::Change(volume, change));
            }
            CacheOp::DeleteVolume(volume) => self.call(id, deadline, Call::Delete(volume)),
            CacheOp::AskRights(volume) => self.call(id, deadline, Call::Rights(volume)),
            CacheOp::AllocateIds { volume, count } => {
                self.call(id, deadline, Call::Ids(volume, count));
            }
            CacheOp::CopyPages(ask) => self.call(id, deadline, Call::Copy(*ask)),
            CacheOp::Fetch { domain, .. }
            | CacheOp::Commit { domain, .. }
            | CacheOp::WaitThrough(Awaited { domain, .. })
            | CacheOp::Refresh { domain }
                if !self.domains.contains_key(&domain) =>
            {
                answer(id, Err(RequestError::NoDomain(domain)), out);
            }
            CacheOp::Fetch { domain, pages, prefetch } => {
                self.ask_pages(id, deadline, domain, pages, prefetch, out)
            }
            CacheOp::Commit { domain, history, checked, reads, writes, named } => {
                let asked = Asked { history, base: checked, reads, writes, named };
                match self.take_commit(domain, id, asked) {
                    Ok(commit) => self.wait(id, deadline, Kind::Commit { domain, id: commit }),
                    Err(refused) => answer(id, refused, out),
                }
            }
            CacheOp::CommitAcross(parts) => {
                let missing = parts.iter().find(|part| !self.domains.contains_key(&part.domain));
                if let Some(part) = missing {
                    return answer(id, Err(RequestError::NoDomain(part.domain)), out);
                }
                let asked = parts.into_iter().map(|part| (part.domain, Asked::of(part)));
                match self.take_across(id, asked.collect()) {
                    Ok(name) => self.wait(id, deadline, Kind::Whole(name)),
                    Err(refused) => answer(id, refused, out),
                }
            }
            CacheOp::Outcome { domain, commit }
                if self.wholes.knows(PartId { domain, id: commit }) =>
            {
                let name = PartId { domain, id: commit };
                match self.wholes.ask_about(name, id) {
                    Some(known) => answer(id, known, out),
                    None => self.wait(id, deadline, Kind::Whole(name)),
                }
            }
            CacheOp::Outcome { domain, commit } => {
                let lost = Some(Ok(CacheReply::InDoubt { commit, lost: true }));
                let entry = self.domains.get_mut(&domain);
                match entry.map_or(lost, |entry| entry.commits.ask_about(commit, id)) {
                    Some(known) => answer(id, known, out),
                    None => self.wait(id, deadline, Kind::Commit { domain, id: commit }),
                }
            }
            CacheOp::WaitThrough(Awaited { domain, line, stamp }) => {
                let entry = self.domains.get_mut(&domain).expect("looked at above");
                let through = entry.state.through();
                let lost = entry.state.line() != line.0;
                match through.is_some_and(|through| through >= stamp) || lost {
                    true => {
                        answer(id, Ok(CacheReply::Through(through.unwrap_or_default())), out);
                    }
                    false => {
                        entry.waits.insert((stamp, id));
                        self.wait(id, deadline, Kind::Wait { domain, stamp });
                    }
                }
            }
            CacheOp::Refresh { domain } => {
                let entry = self.domains.get_mut(&domain).expect("looked at above");
                let asked = entry.beat_clock.after_sent(now);
                entry.refreshes.insert((asked, id));
                self.send_refresh(now, domain, out);
                self.wait(id, deadline, Kind::Refresh { domain, asked });
            }
        }
    }

    pub(super) fn wait(&mut self, id: RequestId, deadline: Instant, kind: Kind) {
        let forgotten = self.config.faults.has(Fault::PatienceForgotten);
        let deadline =
            if forgotten { deadline.after(Duration::from_secs(3_600)) } else { deadline };
        let fresh = self.users.insert(id, User { deadline, kind }).is_none();
        assert!(fresh, "request ids are never used twice");
        self.deadlines.insert((deadline, id));
    }

    /// Answers a request and forgets it.
    pub(super) fn reply(
        &mut self,
        id: RequestId,
        result: Result<CacheReply, RequestError>,
        out: &mut Out,
    ) {
        if self.forget(id).is_some() {
            answer(id, result, out);
        }
    }

    /// The user is gone. A commit goes on all the same.
    pub(super) fn cancel(&mut self, id: RequestId) {
        let kind = self.forget(id);
        if let Some(Kind::Commit { domain, id: commit }) = kind
            && let Some(entry) = self.domains.get_mut(&domain)
        {
            entry.commits.forget_user(commit, id);
        } else if let Some(Kind::Whole(name)) = kind {
            self.wholes.forget_user(name, id);
        }
    }

    pub(super) fn expire(&mut self, id: RequestId, out: &mut Out) {
        let result = match self.forget(id) {
            Some(Kind::Commit { domain, id: commit }) => self.leave_commit(domain, commit, id),
            Some(Kind::Whole(name)) => self.leave_whole(name, id),
            kind => Err(self.why_late(kind)),
        };
        answer(id, result, out);
    }

    /// Why there is no answer in time.
    fn why_late(&self, kind: Option<Kind>) -> RequestError {
        let link = match kind {
            Some(Kind::Call { sent: Some(_), .. }) => return RequestError::TimedOut,
            Some(Kind::Call { call, asked, .. }) => self.link_for(&call, &asked),
            Some(
                Kind::Fetch { domain, .. }
                | Kind::Commit { domain, .. }
                | Kind::Opening { domain }
                | Kind::Wait { domain, .. }
                | Kind::Refresh { domain, .. },
            ) => self.source_of(domain),
            Some(Kind::Whole(_)) | None => None,
        };
        match link {
            Some(_) => RequestError::TimedOut,
            None if self.connected() => {
                let which = "no link to the parent that has it, or may have it (a name is asked \
                             for in the order of the parents, an id at all of them)";
                RequestError::Unavailable(which.into())
            }
            None => RequestError::Unavailable("no link to the parent".into()),
        }
    }

    /// Takes a request out of everything that would answer it.
    fn forget(&mut self, id: RequestId) -> Option<Kind> {
        let user = self.users.remove(&id)?;
        self.deadlines.remove(&(user.deadline, id));
        match &user.kind {
            Kind::Fetch { domain, pages, missing } => {
                let given_up = !missing.is_empty();
                let keeps = given_up && self.config.faults.has(Fault::GatheredKept);
                for &page in pages {
                    if missing.contains(&page) {
                        self.leave(*domain, page, id);
                    } else if !keeps {
                        self.memory.unpin(page, id);
                    }
                }
            }
            Kind::Opening { domain } => {
                self.domain_mut(*domain).openings.remove(&id);
            }
            Kind::Wait { domain, stamp } => {
                self.domain_mut(*domain).waits.remove(&(*stamp, id));
            }
            Kind::Refresh { domain, asked } => {
                self.domain_mut(*domain).refreshes.remove(&(*asked, id));
            }
            Kind::Commit { .. } | Kind::Whole(_) | Kind::Call { .. } => {}
        }
        Some(user.kind)
    }

    pub(super) fn domain_mut(&mut self, domain: DomainId) -> &mut Domain {
        self.domains.get_mut(&domain).expect("users wait in attached domains only")
    }

    // ---- pages ----

    fn ask_pages(
        &mut self,
        id: RequestId,
        deadline: Instant,
        domain: DomainId,
        pages: Vec<PageId>,
        prefetch: bool,
        out: &mut Out,
    ) {
        let known = |page: &PageId| {
            let volume = self.shared.volume(page.volume);
            let number = page.page.0 > 0 && page.page.0 < PageNo::LIMIT;
            number && volume.is_some_and(|volume| volume.domain == domain)
        };
        if pages.len() > FETCH_PAGES_MAX || !pages.iter().all(known) {
            let what = "too many pages, or pages of no open volume of the domain";
            return answer(id, Err(RequestError::Invalid(what.into())), out);
        }
        if let Some(page) = pages.iter().find(|page| self.shared.is_deleted(page.volume)) {
            let error = RequestError::Deleted(page.volume.to_string());
            return answer(id, Err(error), out);
        }
        let whole = |page: &PageId| {
            let copy = self.shared.peek(*page);
            copy.is_some_and(|copy| copy.complete())
        };
        let missing: BTreeSet<PageId> = pages.iter().copied().filter(|p| !whole(p)).collect();
        if prefetch {
            for page in missing {
                self.prefetch(domain, page);
            }
            let through = self.domains[&domain].position.unwrap_or(Stamp::ZERO);
            let pages = Vec::new();
            return answer(id, Ok(CacheReply::Fetched { through, pages }), out);
        }
        for &page in &pages {
            if missing.contains(&page) {
                self.want(domain, page, id);
            } else {
                self.memory.pin(page, id);
            }
        }
        for &page in &missing {
            self.ask_for_companions(domain, page);
        }
        self.wait(id, deadline, Kind::Fetch { domain, pages, missing });
        self.complete(id, out);
    }

    /// A user waits for a page: those that became stale with it are asked for as well.
    fn ask_for_companions(&mut self, domain: DomainId, page: PageId) {
        let max = self.config.companions_max;
        let entry = self.domains.get_mut(&domain).expect("attached");
        if !entry.live() {
            return;
        }
        for page in entry.companions.asked(page) {
            let complete = self.shared.peek(page).is_some_and(|copy| copy.complete());
            let Some(volume) = self.shared.volume(page.volume) else { continue };
            let readable = volume.domain == domain
                && !self.shared.is_deleted(page.volume)
                && !self.shared.is_unreadable(page.volume);
            if readable && !complete && self.prefetch(domain, page) {
                crate::probe::probe("companion-asked-for");
                // What was read before does not count.
                self.shared.take_heat(page);
                let entry = self.domains.get_mut(&domain).expect("attached");
                entry.companions.asked_ahead(page, max);
            }
        }
    }

    /// A page that the user waits for is here.
    pub(super) fn arrived(&mut self, id: RequestId, page: PageId, out: &mut Out) {
        if let Some(User { kind: Kind::Fetch { missing, .. }, .. }) = self.users.get_mut(&id) {
            missing.remove(&page);
            self.memory.pin(page, id);
            self.complete(id, out);
        }
    }

    /// A page that the user had gathered is gone again.
    pub(super) fn departed(&mut self, id: RequestId, page: PageId) {
        if let Some(User { kind: Kind::Fetch { missing, .. }, .. }) = self.users.get_mut(&id) {
            missing.insert(page);
        }
    }

    fn complete(&mut self, id: RequestId, out: &mut Out) {
        let Some(User { kind: Kind::Fetch { domain, pages, missing }, .. }) = self.users.get(&id)
        else {
            return;
        };
        let Some(through) = self.domains[domain].position.filter(|_| missing.is_empty()) else {
            return;
        };
        let copy = |page: &PageId| self.shared.peek(*page).expect("pinned pages stay");
        let pages = pages.iter().map(copy).collect();
        self.reply(id, Ok(CacheReply::Fetched { through, pages }), out);
    }

    // ---- calls ----

    /// The user whose call is answered; none: it waits no longer.
    pub(super) fn answered(&mut self, (link, request): Came) -> Result<RequestId, CloseReason> {
        let link = self.links.get_mut(&link).expect("it came on this link");
        let Some(user) = link.calls.remove(&request) else {
            return violation("an answer to no request");
        };
        link.outstanding -= 1;
        Ok(user)
    }

    pub(super) fn attach(&mut self, domain: DomainId) {
        let state = Arc::new(DomainState::new(
            domain,
            HistoryId::default(),
            self.config.recent_max,
            self.config.snapshot_bytes,
            self.config.ahead,
        ));
        self.shared.attach(Arc::clone(&state));
        let entry = Domain::new(state, self.config.boot);
        self.domains.insert(domain, entry);
    }

    /// The domain's stream has begun: its volumes are open.
    pub(super) fn open_users(&mut self, domain: DomainId, out: &mut Out) {
        let openings = std::mem::take(&mut self.domain_mut(domain).openings);
        for (user, info) in openings {
            self.reply(user, Ok(CacheReply::Volume(info)), out);
        }
    }

    /// One page of a fetch cannot be had.
    pub(super) fn on_page_failed(
        &mut self,
        (link, request): Came,
        page: PageId,
        error: &RequestError,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let link = self.links.get_mut(&link).expect("it came on this link");
        if link.failed.get_mut(&request).is_some_and(|fetch| fetch.pages.remove(&page)) {
            return Ok(());
        }
        let Some(fetch) = link.fetches.get_mut(&request).filter(|f| f.pages.contains(&page)) else {
            return violation("the failure of a page that was not asked for");
        };
        fetch.pages.remove(&page);
        let (domain, over) = (fetch.domain, fetch.pages.is_empty());
        if over {
            link.fetches.remove(&request);
        }
        link.outstanding -= 1;
        self.fetch_failed(domain, page, request, error, out);
        if matches!(error, RequestError::Deleted(_)) {
            self.note_deleted(domain, page.volume, out);
        }
        Ok(())
    }

    pub(super) fn on_failed(
        &mut self,
        came: Came,
        error: RequestError,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let (id, request) = came;
        let link = self.links.get_mut(&id).expect("it came on this link");
        if let Some(fetch) = link.fetches.remove(&request) {
            link.outstanding -= fetch.pages.len();
            for &page in &fetch.pages {
                self.fetch_failed(fetch.domain, page, request, &error, out);
            }
            let failed = &mut self.links.get_mut(&id).expect("looked at above").failed;
            failed.insert(request, fetch);
            if failed.len() > FAILED_MAX {
                failed.pop_first();
            }
            return Ok(());
        }
        if let Some(volume) = self.doubt_answered(came) {
            match error {
                RequestError::Deleted(_) => {
                    if let Some(known) = self.shared.volume(volume) {
                        self.note_deleted(known.domain, volume, out);
                    }
                }
                RequestError::NoVolume(_) => self.note_missing(volume, request, out),
                RequestError::Denied(_) => self.still_denied(request, volume),
                // The line above was cut, perhaps: it is still not known. What is refused for another
                // reason is refused again.
                RequestError::Unavailable(_) | RequestError::Busy(_) | RequestError::TimedOut => {
                    let link = self.links.get_mut(&id).expect("it came on this link");
                    link.unanswered.insert(volume);
                }
                _ => {}
            }
            return Ok(());
        }
        if self.links[&id].calls.contains_key(&request) {
            let user = self.answered(came)?;
            if !self.asks_elsewhere(user, id, &error) {
                self.reply(user, Err(error), out);
            }
            return Ok(());
        }
        let link = self.links.get_mut(&id).expect("looked at above");
        if link.abandoned.remove(&request) {
            link.outstanding -= 1;
            return Ok(());
        }
        let resumed = super::domain::Stream::Asked(request);
        let asked = |entry: &Domain| entry.stream() == resumed && entry.up == Some(id);
        let domains = self.domains.iter().find(|(_, entry)| asked(entry));
        let Some(domain) = domains.map(|(&domain, _)| domain) else {
            return violation("the failure of no request");
        };
        let link = self.links.get_mut(&id).expect("it came on this link");
        let entry = self.domains.get_mut(&domain).expect("just found");
        // Another parent may have it.
        entry.refused.insert(link.parent);
        let parents = self.config.parents as usize;
        if parents > 1 && !link.offers.contains(&domain) {
            crate::probe::probe("domain-sought-elsewhere");
        }
        let over = entry.refused.len() >= parents || link.offers.contains(&domain);
        entry.set_stream(super::domain::Stream::Off);
        // Whatever finds no room goes before all else: domains that are out of service must not take all
        // the time that their refusals need.
        let took = link.heard.since(entry.beat_at);
        let pause = (took * REFUSED_PAUSE).min(took.max(REFUSED_PAUSE_MAX));
        entry.asks_again_at = link.heard.after(pause);
        link.outstanding -= 1;
        if !over {
            return Ok(());
        }
        for (user, _) in std::mem::take(&mut entry.openings) {
            self.reply(user, Err(error.clone()), out);
        }
        Ok(())
    }
}

fn answer(id: RequestId, result: Result<CacheReply, RequestError>, out: &mut Out) {
    out.push(CacheOutput::Reply { id, result });
}
