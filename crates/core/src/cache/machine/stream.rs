//! The streams: resume, advances, histories, ages.

use super::domain::Stream;
use super::link::violation;
use super::{Cache, CacheOutput, CacheReply, Notice, Out};
use crate::cache::read::{Batch, RecentChange};
use crate::commit::{Aspect, Change, PageChange, Target};
use crate::id::{DomainId, PageId, RequestId, Stamp};
use crate::machine::Fault;
use crate::message::{CloseReason, EPOCHS_MAX, Echo, Epoch, Message, ResumeAnswer, is_on_line};
use crate::time::Instant;
use std::sync::Arc;

/// What a deletion changes of the page that stands for the volume.
const EXISTENCE: (Target, Aspect) = (Target::Page, Aspect::Existence);

/// A part of the answer to a resume.
pub(super) struct Resumed {
    pub(super) request: RequestId,
    pub(super) epochs: Vec<Epoch>,
    pub(super) answer: ResumeAnswer,
    pub(super) stale: Vec<PageId>,
    pub(super) through: Stamp,
    pub(super) done: bool,
}

/// An advance.
pub(super) struct Advance {
    pub(super) from: Stamp,
    pub(super) through: Stamp,
    pub(super) changes: Vec<Change>,
    pub(super) stale: Vec<PageId>,
    pub(super) echo: Option<Echo>,
}

/// What one message changed, for `Notice::Changed`: most messages change a page or none.
#[derive(Default)]
struct Changed(Vec<(PageId, Target, Aspect)>);

impl Changed {
    fn add(&mut self, change: &PageChange) {
        self.0.extend(change.touched.iter().map(|&(target, aspect)| (change.page, target, aspect)));
    }

    /// Page by page.
    fn notice(mut self, domain: DomainId) -> Option<CacheOutput> {
        self.0.sort_unstable();
        self.0.dedup();
        let of_page = |touched: &[(PageId, Target, Aspect)]| PageChange {
            page: touched[0].0,
            touched: touched.iter().map(|&(_, target, aspect)| (target, aspect)).collect(),
        };
        let pages: Vec<_> = self.0.chunk_by(|one, next| one.0 == next.0).map(of_page).collect();
        (!pages.is_empty()).then_some(CacheOutput::Notice(Notice::Changed { domain, pages }))
    }
}

impl Cache {
    // ---- resume ----

    pub(super) fn resume(&mut self, now: Instant, domain: DomainId, out: &mut Out) {
        let Some(up) = self.next_link(now, domain) else { return };
        let link = &self.links[&up];
        let has_room = link.room() > 0;
        let entry = self.domains.get_mut(&domain).expect("attached");
        if entry.refused.contains(&link.parent) {
            // All were asked.
            entry.refused.clear();
        }
        entry.up = Some(up);
        if !has_room {
            entry.set_stream(Stream::Waits);
            return;
        }
        let request = self.request_id();
        let entry = self.domains.get_mut(&domain).expect("looked up above");
        let through = entry.position;
        let epochs = if through.is_some() { entry.epochs.clone() } else { Vec::new() };
        entry.set_stream(Stream::Asked(request));
        entry.beat_at = now;
        // Whatever is held is listed anew: the registration is for everything now.
        entry.holdings.resume(through.is_some());
        self.standing(domain).outstanding += 1;
        self.send(domain, Message::Resume { request, domain, epochs, through }, out);
        if self.wants_boot(domain) {
            self.register(now, domain, out);
        }
    }

    pub(super) fn on_resumed(
        &mut self,
        now: Instant,
        domain: DomainId,
        part: Resumed,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let Some(entry) = self.domains.get(&domain) else {
            return violation("an answer for a domain that was not asked for");
        };
        let (first, stream) = match entry.stream() {
            Stream::Asked(request) if request == part.request => (true, Stream::Begun(request)),
            // A reset in the middle names no pages, so what overtook a fetch in flight would be
            // lost: only a new link, which loses its fetches, can begin with one.
            Stream::Live(request)
                if request == part.request && matches!(part.answer, ResumeAnswer::From(_)) =>
            {
                crate::probe::probe("stream-resumed-again");
                (true, Stream::Again(request))
            }
            same @ (Stream::Begun(request) | Stream::Again(request)) if request == part.request => {
                (false, same)
            }
            _ => return violation("an answer to no resume"),
        };
        let Some(epoch) = part.epochs.last().copied() else {
            return violation("an answer without a history");
        };
        if part.epochs.len() > EPOCHS_MAX {
            return violation("too many histories");
        }
        if self.is_foreign(domain, part.stale.iter().copied()) {
            return violation("a page of another domain");
        }
        let mut notices = Out::new();
        if first {
            self.begin_resumed(domain, &part, &mut notices, out)?;
        }
        let entry = self.domains.get_mut(&domain).expect("looked up above");
        if entry.position.is_some_and(|position| part.through < position) {
            return violation("a resume that ends below its beginning");
        }
        entry.set_stream(stream);
        if entry.epochs.last() != Some(&epoch) {
            // The origin was started again, perhaps from a copy of before a deletion that a failed
            // fetch had told of, ahead of the stream.
            self.forget_deleted(domain);
        }
        let entry = self.domains.get_mut(&domain).expect("looked up above");
        entry.epochs = part.epochs;
        let state = Arc::clone(&entry.state);
        let mut changed = Changed::default();
        let batch = state.batch();
        state.forget_ahead(part.through);
        batch.set_history(epoch.history);
        if !self.config.faults.has(Fault::StaleKept) {
            self.note_stale(domain, &part.stale, part.through, &batch, &mut changed);
        }
        if part.done {
            batch.set_through(Some(part.through));
        }
        drop(batch);
        out.append(&mut notices);
        out.extend(changed.notice(domain));
        if part.done {
            let entry = self.domains.get_mut(&domain).expect("looked up above");
            entry.set_stream(Stream::Live(part.request));
            entry.position = Some(part.through);
            self.doubts.append(&mut entry.denied);
            let link = self.standing(domain);
            let lease = link.limits.expect("it is welcomed").lease;
            let new = link.offers.insert(domain);
            if stream == Stream::Begun(part.request) {
                link.outstanding -= 1;
            }
            if new {
                // It was sought at each parent: calls may wait until one has it.
                self.unpark_calls();
            }
            let entry = self.domains.get_mut(&domain).expect("looked up above");
            entry.lease = lease;
            entry.refused.clear();
            self.send_beat(now, domain, out);
            if self.domains[&domain].wants_refresh() {
                self.send_refresh(now, domain, out);
            }
            self.advanced(domain, part.through, out);
            self.open_users(domain, out);
        }
        Ok(())
    }

    /// The first part says what becomes of the copies as a whole. Notices come once all of it is well.
    fn begin_resumed(
        &mut self,
        domain: DomainId,
        part: &Resumed,
        notices: &mut Out,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let entry = self.domains.get_mut(&domain).expect("looked up by the caller");
        if part.answer == ResumeAnswer::Reset {
            entry.holdings.reset();
        }
        let Some(position) = entry.position else {
            return Ok(());
        };
        let lost = entry.told.is_lost(&entry.epochs, &part.epochs, part.through);
        let from = match part.answer {
            ResumeAnswer::From(from) if from > position => {
                return violation("a resume from above what was seen");
            }
            ResumeAnswer::From(from) if from == position && !lost => return Ok(()),
            ResumeAnswer::From(from) => Some(from),
            ResumeAnswer::Reset
                if !lost && is_on_line(&entry.epochs, position, &part.epochs, part.through) =>
            {
                // The parent could not name the changes, but it is the same line still: sessions
                // keep their floors (P4). Running transactions can no longer be checked.
                let state = Arc::clone(&entry.state);
                let batch = state.batch();
                crate::probe::probe("reset-on-the-same-line");
                batch.forget_recent(part.through);
                // In the batch that says nothing of it: who begins after that is told nothing.
                state.forget_ahead(part.through);
                self.drop_above(domain, None);
                drop(batch);
                notices.push(CacheOutput::Notice(Notice::Reset { domain }));
                return Ok(());
            }
            ResumeAnswer::Reset => None,
        };
        // A branch was lost, and the operator accepted it: stamps of before and after cannot be
        // compared. Running transactions are doomed; sessions learn it at their next begin.
        crate::probe::probe("line-lost");
        entry.position = from;
        entry.told.clear();
        let state = Arc::clone(&entry.state);
        let batch = state.batch();
        batch.new_line(from.unwrap_or(part.through));
        batch.set_through(None);
        if !self.config.faults.has(Fault::KeepLostCopies) {
            self.drop_above(domain, from);
        }
        drop(batch);
        notices.push(CacheOutput::Notice(Notice::Reset { domain }));
        self.end_waits(domain, from.unwrap_or_default(), out);
        Ok(())
    }

    /// Pages changed, nobody knows how any more.
    fn note_stale(
        &mut self,
        domain: DomainId,
        pages: &[PageId],
        stamp: Stamp,
        batch: &Batch<'_>,
        changed: &mut Changed,
    ) {
        // Rule 2: else a transaction that read a page goes on although nobody knows what changed.
        let spare = self.config.faults.has(Fault::ResumeSparesReaders);
        // A list follows a resume that begins.
        let listed = !matches!(self.domains[&domain].stream(), Stream::Begun(_));
        for &page in pages {
            if page.is_volume() {
                self.drop_volume(domain, page.volume, stamp, batch);
                self.doubt_volume(page.volume);
                changed.add(&PageChange::whole(page));
                continue;
            }
            let change = PageChange::whole(page);
            if !spare {
                batch.note(RecentChange { stamp, page, touched: change.touched.as_slice().into() });
            }
            self.keep_for_flight(domain, stamp, &change);
            if listed {
                self.named_in_vain(domain, page);
            } else {
                // That list cannot take back what a commit that is sent again registers for.
                self.domains.get_mut(&domain).expect("attached").commits.named(page);
            }
            self.suspect(domain, page);
            changed.add(&change);
        }
    }

    /// Whether one of the pages is of a volume that is known to be in another domain: its copy is
    /// not this stream's to change.
    fn is_foreign(&self, domain: DomainId, pages: impl Iterator<Item = PageId>) -> bool {
        let mut last = None;
        pages.into_iter().any(|page| {
            // Neighbours are mostly of one volume.
            let new = last.replace(page.volume) != Some(page.volume);
            new && self.shared.volume(page.volume).is_some_and(|known| known.domain != domain)
        })
    }

    // ---- advances ----

    pub(super) fn on_advance(
        &mut self,
        domain: DomainId,
        advance: Advance,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let Some(entry) = self.domains.get_mut(&domain).filter(|entry| entry.live()) else {
            return violation("an advance of a domain whose stream has not begun");
        };
        if entry.position != Some(advance.from) || advance.through < advance.from {
            return violation("an advance from another valid-through");
        }
        let mut last = advance.from;
        for change in &advance.changes {
            if change.stamp <= last || change.stamp > advance.through {
                return violation("changes out of order");
            }
            last = change.stamp;
        }
        let changed = advance.changes.iter().flat_map(|change| &change.pages);
        let named = changed.map(|change| change.page).chain(advance.stale.iter().copied());
        if self.is_foreign(domain, named) {
            return violation("a page of another domain");
        }
        let entry = self.domains.get_mut(&domain).expect("looked up above");
        if entry.told.is_lost(&entry.epochs, &entry.epochs, advance.through) {
            self.lose_told(domain, advance.from, out);
        }
        let entry = self.domains.get_mut(&domain).expect("looked up above");
        let state = Arc::clone(&entry.state);
        let mut changed = Changed::default();
        let batch = state.batch();
        for change in &advance.changes {
            self.apply(domain, advance.from, change, &batch, &mut changed);
        }
        self.note_stale(domain, &advance.stale, advance.through, &batch, &mut changed);
        batch.set_through(Some(advance.through));
        drop(batch);
        let entry = self.domains.get_mut(&domain).expect("looked up above");
        entry.position = Some(advance.through);
        if let Some(echo) = advance.echo {
            self.on_echo(domain, echo, out)?;
        }
        self.advanced(domain, advance.through, out);
        out.extend(changed.notice(domain));
        for change in advance.changes.iter().flat_map(|change| &change.pages) {
            if change.page.is_volume() && change.touched.first() == Some(&EXISTENCE) {
                self.note_deleted(domain, change.page.volume, out);
            }
        }
        Ok(())
    }

    /// One commit's changes: to the ring, to pages in flight, to the copies.
    fn apply(
        &mut self,
        domain: DomainId,
        from: Stamp,
        change: &Change,
        batch: &Batch<'_>,
        changed: &mut Changed,
    ) {
        let entry = self.domains.get(&domain).expect("looked up by the caller");
        let own = entry.commits.retained(change.id);
        let mut stale = Vec::new();
        for page in &change.pages {
            if page.page.is_volume() && page.touched.first() == Some(&EXISTENCE) {
                self.drop_volume(domain, page.page.volume, change.stamp, batch);
                changed.add(page);
                continue;
            }
            batch.note(RecentChange {
                stamp: change.stamp,
                page: page.page,
                touched: page.touched.as_slice().into(),
            });
            let spares = self.config.faults.has(Fault::UpdateSparesFlight);
            if !spares || !self.domains[&domain].updates.has(change.id, change.stamp) {
                self.keep_for_flight(domain, change.stamp, page);
            }
            let ops = own.as_ref().and_then(|own| own.get(&page.page));
            match ops {
                Some(ops) => self.update(domain, from, page, change.stamp, ops),
                None => {
                    let unasked = self.domains[&domain].companions.is_unasked(page.page);
                    if unasked && self.shared.is_read(page.page) {
                        let entry = self.domains.get_mut(&domain).expect("looked up above");
                        entry.companions.used(page.page);
                    }
                    let id = (change.id, change.stamp);
                    if self.update_or_invalidate(domain, from, id, page) {
                        stale.push(page.page);
                    }
                }
            }
            changed.add(page);
        }
        let entry = self.domains.get_mut(&domain).expect("looked up by the caller");
        entry.companions.stale(stale, self.config.companions_max);
    }

    /// What a new valid-through sets free: pages that waited for it, retained writes, users.
    fn advanced(&mut self, domain: DomainId, through: Stamp, out: &mut Out) {
        self.install_waiting(domain, through, out);
        self.helps.look_again();
        let entry = self.domains.get_mut(&domain).expect("looked up by the caller");
        if !self.config.faults.has(Fault::WritesRetained) {
            entry.commits.release(through);
        }
        if !self.config.faults.has(Fault::UpdatesStay) {
            entry.updates.reached(through);
        }
        entry.told.reached(through);
        entry.state.passed_ahead(through);
        self.acknowledge(domain, through, out);
        self.answer_waits(domain, through, out);
    }

    /// Users who wait for a stamp when the line is lost that it is of (bug 139): none of it will come, and their sessions
    /// learn it at their next begin.
    fn end_waits(&mut self, domain: DomainId, through: Stamp, out: &mut Out) {
        let entry = self.domains.get_mut(&domain).expect("looked up by the caller");
        for (_, user) in std::mem::take(&mut entry.waits) {
            crate::probe::probe("waits-of-a-lost-line");
            self.reply(user, Ok(CacheReply::Through(through)), out);
        }
    }

    /// Users who wait for a stamp up to this one.
    fn answer_waits(&mut self, domain: DomainId, through: Stamp, out: &mut Out) {
        let forgets = self.config.faults.has(Fault::WaitForgotten);
        let entry = self.domains.get_mut(&domain).expect("looked up by the caller");
        let mut ready = Vec::new();
        while let Some(&(stamp, user)) = entry.waits.first()
            && stamp <= through
            && !(forgets && stamp == through)
        {
            entry.waits.pop_first();
            ready.push(user);
        }
        for user in ready {
            self.reply(user, Ok(CacheReply::Through(through)), out);
        }
    }

    pub(super) fn on_history(
        &mut self,
        domain: DomainId,
        epochs: Vec<Epoch>,
        out: &mut Out,
    ) -> Result<(), CloseReason> {
        let Some(entry) = self.domains.get_mut(&domain).filter(|entry| entry.live()) else {
            return violation("a history of a domain whose stream has not begun");
        };
        let Some(last) = epochs.last().filter(|_| epochs.len() <= EPOCHS_MAX) else {
            return violation("no history, or too many");
        };
        if entry.position.is_some_and(|position| last.first <= position) {
            return violation("a history that begins below what was seen");
        }
        let lost = entry.told.is_lost(&entry.epochs, &epochs, Stamp::ZERO);
        entry.state.batch().set_history(last.history);
        self.forget_deleted(domain);
        let entry = self.domains.get_mut(&domain).expect("looked up above");
        entry.epochs = epochs;
        let position = entry.position.filter(|_| lost);
        if let Some(position) = position {
            self.lose_told(domain, position, out);
        }
        Ok(())
    }

    /// What an outcome told is not on the stream's line: a restore lost it, though nothing that the
    /// stream told. Stamps of before and after cannot be compared: sessions learn it at their next
    /// begin, running transactions are doomed. The copies hold.
    fn lose_told(&mut self, domain: DomainId, position: Stamp, out: &mut Out) {
        let entry = self.domains.get_mut(&domain).expect("looked up by the caller");
        crate::probe::probe("told-lost");
        entry.told.clear();
        entry.state.batch().new_line(position);
        out.push(CacheOutput::Notice(Notice::Reset { domain }));
        self.end_waits(domain, position, out);
    }

    // ---- age ----

    pub(super) fn send_beat(&mut self, now: Instant, domain: DomainId, out: &mut Out) {
        let every = self.beat_interval(domain);
        let entry = self.domains.get_mut(&domain).expect("attached");
        entry.beat_at = now.after(every);
        if entry.beats.back().is_some_and(|sent| *sent >= now) {
            // One echo is for both.
            return;
        }
        let sent = entry.beat(now);
        self.send(domain, Message::Beat { domain, sent }, out);
    }

    /// Asks for the origin's own state, for users that wait for it: by a beat, and before it by what makes a
    /// relay pass it up.
    pub(super) fn send_refresh(&mut self, now: Instant, domain: DomainId, out: &mut Out) {
        let every = self.beat_interval(domain);
        let entry = self.domains.get_mut(&domain).expect("attached");
        let waits = !entry.refreshes_sent.is_empty();
        if let Some(sent) = entry.refresh(now, self.config.refreshes_max) {
            // A relay echoes it when it is answered from above. Where that takes long the next beat is due as it was:
            // its echo tells that the parent is there, and how old its state is.
            if !waits {
                entry.beat_at = now.after(every);
            }
            self.send(domain, Message::Refresh { domain, sent }, out);
            self.send(domain, Message::Beat { domain, sent }, out);
        }
    }

    /// The state holds all that the origin had when the beat was sent, less the age of the
    /// parent's own state.
    fn on_echo(&mut self, domain: DomainId, echo: Echo, out: &mut Out) -> Result<(), CloseReason> {
        let entry = self.domains.get_mut(&domain).expect("looked up by the caller");
        let lease = entry.lease;
        // A refresh's answer may come after younger beats were echoed.
        let asked = entry.refreshed_at.is_some_and(|newest| echo.sent <= newest);
        if !asked && entry.forgotten.is_some_and(|newest| echo.sent <= newest) {
            // The line was held up for so long that we forgot it; younger ones are still to come.
            return Ok(());
        }
        if !asked && !entry.beats.contains(&echo.sent) {
            return violation("the echo of no beat");
        }
        entry.beats.retain(|&sent| sent > echo.sent);
        if entry.holdings.echoed(echo.sent) {
            entry.begin_listing();
        }
        let mut age = u64::try_from(echo.age.as_nanos()).unwrap_or(u64::MAX);
        if self.config.faults.has(Fault::AgeFromZero) {
            age = age.min(echo.sent.0);
        }
        let Some(confirmed) = echo.sent.0.checked_sub(age).map(Instant) else {
            crate::probe::probe("echo-of-before-the-clock");
            // Older than our clock, which began with this process: no instant of ours tells of it,
            // and its beginning would pass for younger.
            return Ok(());
        };
        // What users who ask for the latest are answered by: never by what a clock above tells.
        let latest = Some(confirmed).filter(|_| !echo.by_clock);
        let confirmed = entry.confirmed_at.map_or(confirmed, |at| at.max(confirmed));
        entry.confirmed_at = Some(confirmed);
        entry.state.set_confirmed(confirmed, lease);
        entry.refreshes_sent.retain(|sent| latest.is_none_or(|latest| *sent > latest));
        let heard = self.standing(domain).heard;
        let entry = self.domains.get_mut(&domain).expect("looked up by the caller");
        if entry.lapsed && heard.since(confirmed) <= lease {
            entry.lapsed = false;
            out.push(CacheOutput::Notice(Notice::LeaseRegained { domain }));
        }
        let mut ready = Vec::new();
        while let Some(&(asked, user)) = entry.refreshes.first()
            && latest.is_some_and(|latest| asked <= latest)
        {
            entry.refreshes.pop_first();
            ready.push(user);
        }
        let through = entry.position.expect("a live stream has a position");
        let wants = entry.wants_refresh();
        for user in ready {
            self.reply(user, Ok(CacheReply::Through(through)), out);
        }
        if wants {
            self.send_refresh(heard, domain, out);
        }
        Ok(())
    }

    /// Tells of leases that have lapsed.
    pub(super) fn lapse(&mut self, now: Instant, out: &mut Out) {
        for (&domain, entry) in &mut self.domains {
            if entry.lapses_at().is_some_and(|at| at <= now) {
                crate::probe::probe("lease-lapses");
                entry.lapsed = true;
                out.push(CacheOutput::Notice(Notice::LeaseLapsed { domain }));
            }
        }
    }

    /// Regular work: a stream that did not begin is asked for again; beats.
    pub(super) fn tick_stream(&mut self, now: Instant, domain: DomainId, out: &mut Out) {
        let entry = &self.domains[&domain];
        match entry.stream() {
            Stream::Off if entry.asks_again_at > now => {}
            Stream::Off => self.resume(now, domain, out),
            Stream::Waits | Stream::Asked(_) | Stream::Begun(_) | Stream::Again(_) => {}
            Stream::Live(_) => {
                // A relay that passes no refresh up answers by its own beats: several are needed.
                let asks_again = entry.commits.asks_again(now) && self.wants_boot(domain);
                if entry.beat_at <= now || !entry.refreshes.is_empty() {
                    self.send_beat(now, domain, out);
                }
                if asks_again {
                    self.register(now, domain, out);
                }
            }
        }
    }
}
