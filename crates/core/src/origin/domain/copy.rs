//! Copies of volumes: the pages that changed since a stamp, in parts, while the volume is in use.
//!
//! A round goes through the pages not installed, then through the change index, up to the stamp that
//! was durable when it began. What changes meanwhile comes again in the next round, whose `since` is
//! that stamp; so each round is as long as what was written during the one before.
//!
//! The last round shows one moment. It *pins* the stamp at which it begins: from then on a page of
//! the volume that changes leaves the image that it had at that stamp behind, unless the asker has
//! it from the round before (it did not change after `since`). So what is kept is bounded by what
//! the round has to give, and by what is written while it does; nobody who writes waits for it.
//!
//! 1. A round from 0 gives page 7 at version 3 and ends at 5. Page 7 is written: 6.
//! 2. A pin from 5 on is made at 6. Page 7 is written: 7; its image of 6 is kept. Page 8, last
//!    written at 4, is written: 8. Nothing is kept of it: whoever asks has it.
//! 3. The round gives page 7 as of 6. Page 8 is passed over, since it did not change in (5, 6].
//!
//! A page that is damaged here is told as such, with an empty image: the asker knows which it is, and
//! may go on without it.

use super::limits::not_read;
use super::load_queue::Claimant;
use super::{Context, Domain, LoadFor};
use crate::downlink::COPY_RESERVED;
use crate::id::{LinkId, PageId, PageNo, RequestId, Stamp, VolumeId};
use crate::machine::Fault;
use crate::message::{
    COPY_BYTES, CopyAnswer, CopyAsk, CopyCursor, CopyPart, Epoch, Message, PAGES_PER_MESSAGE_MAX,
    PageAnswer, PageBody, PinId, RequestError, certificate_of, is_on_line,
};
use crate::origin::OriginConfig;
use crate::origin::io::{LoadKey, OriginOutput};
use crate::rights::Right;
use crate::time::{Duration, Instant};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};

/// Parts of the change index that one answer looks through: a volume may have few of its entries.
const INDEX_LOADS_MAX: u32 = 16;
/// After every page of a stamp.
const LAST: PageId = PageId { volume: VolumeId(u128::MAX), page: PageNo(PageNo::LIMIT) };
/// Pages of one copy being loaded at once.
const LOADS_MAX: usize = 32;
/// Pages of one look at what is not installed, or kept.
const LOOK_PAGES: usize = 1024;
/// Memory of a kept image beside its bytes, about.
const KEPT_BYTES: usize = 128;
/// A pin of which nobody asked for so long goes first when memory is short: parts of a round that is
/// under way are asked for one upon the other.
const UNASKED: Duration = Duration::from_secs(5);

/// A page as of some stamp: its version, and its image if it is there.
type State = (Stamp, Option<Bytes>);

/// A page that was loaded for a copy.
#[derive(Clone, Debug)]
enum Loaded {
    Found(State),
    /// Its bytes do not check.
    Damaged,
}

/// All copies of a domain.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Parts being made ready.
    parts: BTreeMap<u64, Part>,
    next: u64,
    pins: BTreeMap<PinId, Pin>,
    /// Of all kept images.
    kept_bytes: usize,
}

/// A state of a volume that is kept.
#[derive(Debug)]
struct Pin {
    volume: VolumeId,
    /// Whose it is: a certificate.
    asker: String,
    since: Stamp,
    stamp: Stamp,
    /// What changed after it, as it was at it.
    kept: BTreeMap<PageNo, State>,
    bytes: usize,
    made: Instant,
    asked: Instant,
    due_at: Instant,
}

/// A part being made ready.
#[derive(Debug)]
struct Part {
    link: LinkId,
    request: RequestId,
    /// For whom, if it is not the link's own child.
    asker: Option<String>,
    ask: CopyAsk,
    began: Instant,
    /// What the answer is of.
    of: CopyPart,
    /// Where the answer so far ends.
    cursor: CopyCursor,
    /// Pages to be looked at, in order: where each stands, and the version that the change index
    /// has for it.
    queue: VecDeque<(CopyCursor, Option<Stamp>)>,
    /// Where looking goes on after those; none: there are no more.
    rest: Option<CopyCursor>,
    /// Pages of the queue that were loaded.
    loaded: BTreeMap<PageNo, Loaded>,
    index_loads: u32,
    /// A part of the index is on its way.
    index_asked: bool,
    pages: Vec<PageAnswer>,
    bytes: usize,
}

/// What a look at a page of the queue came to.
enum Look {
    Give(State),
    /// It is told of elsewhere, or did not change.
    Pass,
    /// It is loaded first.
    Wait,
}

impl Copies {
    pub(super) fn has(&self, copy: u64) -> bool {
        self.parts.contains_key(&copy)
    }

    /// Parts being made ready.
    #[cfg(feature = "faults")]
    pub(super) fn parts(&self) -> usize {
        self.parts.len()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.parts.is_empty()
    }

    /// When a pin ends.
    pub(super) fn due(&self) -> Option<Instant> {
        self.pins.values().map(|pin| pin.due_at).min()
    }

    /// A link is gone: nobody waits behind it. A pin stays for a while: its asker may come back. Gives the
    /// pages that may be being loaded for it.
    pub(super) fn gone(&mut self, link: LinkId) -> Vec<PageId> {
        let gone = self.parts.values().filter(|part| part.link == link);
        let pages = gone.flat_map(|part| part.queue.iter().map(|(at, _)| at.page)).collect();
        self.parts.retain(|_, part| part.link != link);
        pages
    }

    /// Pins that nobody asks for, or that are too old.
    pub(super) fn expire(&mut self, cx: &Context<'_>) {
        let late = |pin: &Pin| pin.due_at <= cx.now;
        let late: Vec<PinId> =
            self.pins.iter().filter(|(_, pin)| late(pin)).map(|(id, _)| *id).collect();
        for id in late {
            self.unpin(id);
        }
    }

    /// A pin that has to make room for one of this asker, when all places are taken: of whoever has
    /// more than he would have left, so that all have the same share in the end; the one that was not
    /// asked for the longest.
    fn over_share(&self, asker: &str) -> Option<PinId> {
        let mut shares: BTreeMap<&str, usize> = BTreeMap::new();
        for pin in self.pins.values() {
            *shares.entry(&pin.asker).or_default() += 1;
        }
        let own = shares.get(asker).copied().unwrap_or(0);
        let (most, of) = shares.into_iter().map(|(asker, count)| (count, asker)).max()?;
        let theirs = self.pins.iter().filter(|(_, pin)| pin.asker == of);
        let oldest = theirs.min_by_key(|(id, pin)| (pin.asked, **id)).map(|(id, _)| *id);
        oldest.filter(|_| most > own + 1)
    }

    /// The pin that is given up when memory is short: one that nobody asks for, else the one that
    /// needs most.
    fn least_wanted(&self, now: Instant) -> Option<PinId> {
        let unasked = self.pins.iter().filter(|(_, pin)| pin.asked.after(UNASKED) <= now);
        let unasked = unasked.filter(|(_, pin)| pin.bytes > 0);
        let oldest = unasked.min_by_key(|(id, pin)| (pin.asked, **id));
        let largest = || self.pins.iter().max_by_key(|(id, pin)| (pin.bytes, **id));
        oldest.or_else(largest).map(|(id, _)| *id)
    }

    fn unpin(&mut self, id: PinId) {
        if let Some(pin) = self.pins.remove(&id) {
            self.kept_bytes -= pin.bytes;
        }
    }

    /// Panics when an invariant is broken.
    pub(super) fn check(&self, config: &OriginConfig) {
        assert!(self.parts.len() <= config.copies_max, "too many copies");
        assert!(self.pins.len() <= config.pins_max, "too many pins");
        let kept: usize = self.pins.values().map(|pin| pin.bytes).sum();
        assert_eq!(kept, self.kept_bytes, "kept images are miscounted");
        for pin in self.pins.values() {
            let bytes = pin.kept.values().map(kept_bytes).sum::<usize>();
            assert_eq!(bytes, pin.bytes, "kept images of a pin are miscounted");
            for (version, _) in pin.kept.values() {
                assert!(*version > pin.since && *version <= pin.stamp, "kept in vain");
            }
        }
    }
}

fn kept_bytes((_, image): &State) -> usize {
    KEPT_BYTES + image.as_ref().map_or(0, Bytes::len)
}

impl Domain {
    /// A child asks for a part of a copy.
    pub(in crate::origin) fn copy(
        &mut self,
        cx: &mut Context<'_>,
        (link, request): (LinkId, RequestId),
        asker: Option<&str>,
        ask: CopyAsk,
    ) {
        let certificate = certificate_of(cx.links.asker(link, asker)).to_owned();
        let cursor = match self.begin_part(cx, &certificate, &ask) {
            Ok(cursor) => cursor,
            Err(error) => return end(cx, link, request, Err(error)),
        };
        let id = self.copies.next;
        self.copies.next += 1;
        let part = Part {
            link,
            request,
            asker: asker.map(str::to_owned),
            ask,
            began: cx.now,
            of: cursor.part,
            cursor,
            queue: VecDeque::new(),
            rest: Some(cursor),
            loaded: BTreeMap::new(),
            index_loads: 0,
            index_asked: false,
            pages: Vec::new(),
            bytes: 0,
        };
        self.copies.parts.insert(id, part);
        self.go_on_with_copy(cx, id);
    }

    /// Whether it can be told, and from where.
    fn begin_part(
        &mut self,
        cx: &Context<'_>,
        asker: &str,
        ask: &CopyAsk,
    ) -> Result<CopyCursor, RequestError> {
        if self.copies.parts.len() >= cx.config.copies_max {
            return Err(RequestError::Busy(format!("{} copies are made", cx.config.copies_max)));
        }
        let position = [Epoch { history: ask.history, first: Stamp::ZERO }];
        if ask.since != Stamp::ZERO && !is_on_line(&position, ask.since, &self.epochs, self.durable)
        {
            return Err(RequestError::Invalid(
                "the position is of a history that this origin does not have: it was restored from \
                 an old copy, or the position is too old; copy the volume anew"
                    .into(),
            ));
        }
        let first = CopyCursor {
            until: self.durable,
            part: CopyPart::Recent,
            stamp: ask.since,
            page: PageId { volume: ask.volume, page: PageNo(0) },
        };
        if let Some(id) = ask.pin {
            let until = self.pin(cx, (id, asker), ask)?;
            return Ok(ask.cursor.unwrap_or(CopyCursor { until, ..first }));
        }
        let cursor = ask.cursor.unwrap_or(first);
        if cursor.until > self.durable || cursor.part == CopyPart::Kept {
            return Err(RequestError::Invalid("no place in a copy".into()));
        }
        Ok(cursor)
    }

    /// The stamp of a pin, which is made for the first part of its round. A round that begins anew, from
    /// elsewhere, takes the place of the one that was given up.
    fn pin(
        &mut self,
        cx: &Context<'_>,
        (id, asker): (PinId, &str),
        ask: &CopyAsk,
    ) -> Result<Stamp, RequestError> {
        if let Some(pin) = self.copies.pins.get_mut(&id) {
            let theirs = pin.volume == ask.volume && pin.asker == asker;
            let same = theirs && pin.since == ask.since;
            if same && ask.cursor.is_none_or(|cursor| cursor.until == pin.stamp) {
                pin.asked = cx.now;
                pin.due_at = due_at(pin, cx.config);
                return Ok(pin.stamp);
            }
            if !theirs || ask.cursor.is_some() {
                return Err(RequestError::Invalid("a pin of another copy".into()));
            }
            self.copies.unpin(id);
        }
        if ask.cursor.is_some() {
            return Err(not_kept());
        }
        if self.copies.pins.len() >= cx.config.pins_max {
            let Some(other) = self.copies.over_share(asker) else {
                return Err(RequestError::Busy(format!("{} states are kept", cx.config.pins_max)));
            };
            self.copies.unpin(other);
        }
        let mut pin = Pin {
            volume: ask.volume,
            asker: asker.to_owned(),
            since: ask.since,
            stamp: self.durable,
            kept: BTreeMap::new(),
            bytes: 0,
            made: cx.now,
            asked: cx.now,
            due_at: cx.now,
        };
        pin.due_at = due_at(&pin, cx.config);
        self.copies.pins.insert(id, pin);
        Ok(self.durable)
    }

    /// A page is about to get another durable image: what it was is kept for the pins that want it.
    pub(super) fn keep_for_copies(&mut self, cx: &Context<'_>, page: PageId) {
        if self.copies.pins.is_empty() || cx.config.faults.has(Fault::PinUnkept) {
            return;
        }
        let version = self.pages.version(page);
        let loses = cx.config.faults.has(Fault::PinLosesLast);
        let wants = |pin: &Pin| {
            pin.volume == page.volume
                && version > pin.since
                && (version < pin.stamp || version == pin.stamp && !loses)
                && !pin.kept.contains_key(&page.page)
        };
        let ids: Vec<PinId> =
            self.copies.pins.iter().filter(|(_, pin)| wants(pin)).map(|(id, _)| *id).collect();
        for id in ids {
            let state = (version, self.pages.seal(page));
            let bytes = kept_bytes(&state);
            let copies = &mut self.copies;
            let pin = copies.pins.get_mut(&id).expect("just listed");
            pin.bytes += bytes;
            pin.kept.insert(page.page, state);
            copies.kept_bytes += bytes;
        }
        while self.copies.kept_bytes > cx.config.pinned_copy_bytes_max {
            let given_up = self.copies.least_wanted(cx.now);
            self.copies.unpin(given_up.expect("something is kept"));
        }
    }

    /// Makes a part ready as far as it goes now, and answers it when it is.
    fn go_on_with_copy(&mut self, cx: &mut Context<'_>, id: u64) {
        loop {
            if let Err(error) = self.check_copy(cx, id) {
                return self.fail_copy(cx, id, error);
            }
            let Some(part) = self.copies.parts.get(&id) else {
                return;
            };
            if part.bytes >= COPY_BYTES || part.pages.len() >= PAGES_PER_MESSAGE_MAX {
                return self.answer_copy(cx, id, false);
            }
            let Some(&(at, indexed)) = part.queue.front() else {
                let Some(rest) = part.rest else {
                    return self.answer_copy(cx, id, true);
                };
                if rest.part != part.of && !part.pages.is_empty() {
                    // The next answer is of what comes next.
                    return self.answer_copy(cx, id, false);
                }
                if self.look_for_more(cx, id, rest) {
                    continue;
                }
                return;
            };
            let as_now = cx.config.faults.has(Fault::PinAsNow);
            let look = self.look_at(id, at, indexed, as_now);
            let durable = self.durable;
            let part = self.copies.parts.get_mut(&id).expect("just seen");
            match look {
                Look::Wait => return self.load_for_copy(cx, id),
                Look::Give((version, image)) => {
                    part.bytes += 32 + image.as_ref().map_or(0, Bytes::len);
                    part.pages.push(PageAnswer {
                        page: at.page,
                        version,
                        as_of: if part.ask.pin.is_some() { at.until } else { durable },
                        body: image.map_or(PageBody::Absent, PageBody::Data),
                    });
                }
                Look::Pass => {}
            }
            part.loaded.remove(&at.page.page);
            part.queue.pop_front();
            part.cursor = at;
        }
    }

    /// Whether a part can still be told.
    fn check_copy(&self, cx: &mut Context<'_>, id: u64) -> Result<(), RequestError> {
        let Some(part) = self.copies.parts.get(&id) else {
            return Ok(());
        };
        // Rights may have been taken while it waited.
        cx.links
            .check_right(part.link, part.asker.as_deref(), part.ask.volume, Right::Read)
            .map_err(RequestError::Denied)?;
        if !self.volumes.contains_key(&part.ask.volume) {
            return Err(self.no_volume(part.ask.volume));
        }
        match part.ask.pin {
            Some(pin) if !self.copies.pins.contains_key(&pin) => Err(not_kept()),
            _ => Ok(()),
        }
    }

    /// A page as the copy is to have it.
    fn look_at(&mut self, id: u64, at: CopyCursor, indexed: Option<Stamp>, as_now: bool) -> Look {
        let part = &self.copies.parts[&id];
        let since = part.ask.since;
        let pin = part.ask.pin.map(|pin| &self.copies.pins[&pin]);
        if let Some(kept) = pin.and_then(|pin| pin.kept.get(&at.page.page)) {
            // Told of at the end.
            let kept = kept.clone();
            return match at.part {
                CopyPart::Kept if as_now && self.pages.is_loaded(at.page) => {
                    Look::Give(self.state(at.page))
                }
                CopyPart::Kept => Look::Give(kept),
                CopyPart::Recent | CopyPart::Index => Look::Pass,
            };
        }
        let stamp = pin.map(|pin| pin.stamp);
        let loaded = part.loaded.get(&at.page.page).cloned();
        let (version, image) = match loaded {
            Some(Loaded::Found(state)) => state,
            Some(Loaded::Damaged) => {
                // What it is cannot be known: it is told of wherever it is come to.
                let version = indexed.or_else(|| self.pages.uninstalled(at.page));
                let version = version.map_or(at.until, |version| version.min(at.until));
                return Look::Give((version, Some(Bytes::new())));
            }
            None if self.pages.is_loaded(at.page) => self.state(at.page),
            None => return Look::Wait,
        };
        let changed_after = stamp.is_some_and(|stamp| version > stamp);
        let superseded = indexed.is_some_and(|indexed| indexed != version);
        if version <= since || changed_after || superseded {
            return Look::Pass;
        }
        Look::Give((version, image))
    }

    /// A page in memory, as it is durable.
    fn state(&mut self, page: PageId) -> State {
        (self.pages.touch(page), self.pages.seal(page))
    }

    /// Fills the queue; false: that has to be waited for, or the answer was given.
    fn look_for_more(&mut self, cx: &mut Context<'_>, id: u64, rest: CopyCursor) -> bool {
        let part = self.copies.parts.get_mut(&id).expect("looked up by the caller");
        let (volume, since) = (part.ask.volume, part.ask.since);
        part.of = rest.part;
        match rest.part {
            CopyPart::Recent => {
                let pages = self.pages.uninstalled_after(rest.page);
                let of_volume = pages.take_while(|(page, _)| page.volume == volume);
                let looked: Vec<_> = of_volume.take(LOOK_PAGES).collect();
                part.rest = match looked.last() {
                    Some((page, _)) if looked.len() == LOOK_PAGES => {
                        Some(CopyCursor { page: *page, ..rest })
                    }
                    _ => {
                        Some(CopyCursor { part: CopyPart::Index, stamp: since, page: LAST, ..rest })
                    }
                };
                let changed = looked.into_iter().filter(|(_, version)| *version > since);
                part.queue = changed.map(|(page, _)| (CopyCursor { page, ..rest }, None)).collect();
                true
            }
            CopyPart::Index => {
                // Others of the last page's stamp may follow it.
                let after = if rest.page == LAST { rest.stamp } else { rest.stamp.previous() };
                if !self.install.index_may_have(after) {
                    part.rest = after_index(&part.ask, rest);
                    return true;
                }
                if part.index_loads >= INDEX_LOADS_MAX {
                    part.cursor = rest;
                    self.answer_copy(cx, id, false);
                    return false;
                }
                if !part.index_asked && self.index_loads < cx.config.index_loads_max {
                    part.index_asked = true;
                    part.index_loads += 1;
                    self.index_loads += 1;
                    let load = self.load_id();
                    self.loads.insert(load, LoadFor::Copy(id));
                    let after = (rest.stamp, rest.page);
                    let key = LoadKey::ChangedAfter { after, limit: PAGES_PER_MESSAGE_MAX };
                    cx.out.push(OriginOutput::Load { domain: self.id, load, key });
                }
                false
            }
            CopyPart::Kept => {
                let pin = part.ask.pin.and_then(|pin| self.copies.pins.get(&pin));
                let after = PageNo(rest.page.page.0 + 1);
                let kept = pin.map(|pin| pin.kept.range(after..).map(|(page, _)| *page));
                let of = |page| PageId { volume, page };
                part.queue = kept
                    .into_iter()
                    .flatten()
                    .map(|page| (CopyCursor { page: of(page), ..rest }, None))
                    .collect();
                part.rest = None;
                true
            }
        }
    }

    /// Part of the change index came for a copy.
    pub(super) fn copy_index_loaded(
        &mut self,
        cx: &mut Context<'_>,
        id: u64,
        entries: Vec<(Stamp, PageId)>,
        more: bool,
    ) {
        let Some(part) = self.copies.parts.get_mut(&id) else {
            return;
        };
        part.index_asked = false;
        let at = part.rest.expect("the index is looked through");
        let until = at.until;
        let last = entries.last().copied().filter(|(stamp, _)| more && *stamp <= until);
        part.rest = match last {
            Some((stamp, page)) => Some(CopyCursor { stamp, page, ..at }),
            None => after_index(&part.ask, at),
        };
        let volume = part.ask.volume;
        let of =
            entries.into_iter().filter(|(stamp, page)| page.volume == volume && *stamp <= until);
        part.queue =
            of.map(|(stamp, page)| (CopyCursor { stamp, page, ..at }, Some(stamp))).collect();
        self.go_on_with_copy(cx, id);
    }

    /// Loads the next pages of a copy, some at once.
    fn load_for_copy(&mut self, cx: &mut Context<'_>, id: u64) {
        let part = &self.copies.parts[&id];
        let next = part.queue.iter().map(|(at, _)| at.page);
        let missing = next
            .filter(|page| !part.loaded.contains_key(&page.page) && !self.pages.is_loaded(*page));
        // Those that wait behind one that is slow count as well; that one itself is always asked for.
        let most = LOADS_MAX.saturating_sub(part.loaded.len()).max(1);
        let missing: Vec<PageId> = missing.take(most).collect();
        for page in missing {
            let waits = self.load(cx, page, Claimant::Copy(id));
            if !waits.copies.contains(&id) {
                waits.copies.push(id);
            }
        }
    }

    /// A page was loaded for a copy, or could not be. It may not be in memory for long.
    pub(super) fn copy_page_loaded(
        &mut self,
        cx: &mut Context<'_>,
        id: u64,
        page: PageId,
        failed: Option<&RequestError>,
    ) {
        if !self.copies.has(id) {
            return;
        }
        let loaded = match failed {
            None => Loaded::Found(self.state(page)),
            Some(RequestError::Damaged { .. }) => Loaded::Damaged,
            Some(error) => return self.fail_copy(cx, id, error.clone()),
        };
        let part = self.copies.parts.get_mut(&id).expect("just seen");
        part.loaded.insert(page.page, loaded);
        self.go_on_with_copy(cx, id);
    }

    /// Answers a part: the last one, or up to its cursor.
    fn answer_copy(&mut self, cx: &mut Context<'_>, id: u64, last: bool) {
        let part = self.copies.parts.remove(&id).expect("looked up by the caller");
        let given = self.volumes.get(&part.ask.volume).map(|volume| volume.meta.next_page);
        // What was looked at and passed over is not looked at again.
        let cursor = match part.rest {
            Some(rest) if part.queue.is_empty() => rest,
            _ => part.cursor,
        };
        let answer = CopyAnswer {
            history: self.history(),
            through: part.cursor.until,
            next_page: given.unwrap_or_default(),
            pages: part.pages,
            part: part.of,
            cursor: (!last).then_some(cursor),
        };
        if let Some(pin) = part.ask.pin.filter(|_| last) {
            self.copies.unpin(pin);
        }
        end(cx, part.link, part.request, Ok(answer));
    }

    pub(super) fn fail_copy(&mut self, cx: &mut Context<'_>, id: u64, error: RequestError) {
        if let Some(part) = self.copies.parts.remove(&id) {
            end(cx, part.link, part.request, Err(error));
        }
    }

    /// All of them: the domain's service ends.
    pub(super) fn fail_copies(&mut self, cx: &mut Context<'_>, error: &RequestError) {
        let ids: Vec<u64> = self.copies.parts.keys().copied().collect();
        for id in ids {
            self.fail_copy(cx, id, error.clone());
        }
    }

    /// Those that wait for the store for too long.
    pub(super) fn limit_copies(&mut self, cx: &mut Context<'_>) {
        let late = |part: &Part| part.began.after(cx.config.wait_max) <= cx.now;
        let parts = self.copies.parts.iter();
        let late: Vec<u64> = parts.filter(|(_, part)| late(part)).map(|(id, _)| *id).collect();
        for id in late {
            let error = RequestError::Unavailable(not_read("part of a copy", cx));
            self.fail_copy(cx, id, error);
        }
    }

    /// Copies that wait for their turn to read the change index.
    pub(super) fn start_copy_loads(&mut self, cx: &mut Context<'_>) {
        let waits = |part: &Part| {
            let index = part.rest.is_some_and(|rest| rest.part == CopyPart::Index);
            part.queue.is_empty() && index && !part.index_asked
        };
        let parts = self.copies.parts.iter();
        let waiting: Vec<u64> = parts.filter(|(_, part)| waits(part)).map(|(id, _)| *id).collect();
        for id in waiting {
            if self.index_loads < cx.config.index_loads_max {
                self.go_on_with_copy(cx, id);
            }
        }
    }
}

/// Where a round goes on after the change index.
fn after_index(ask: &CopyAsk, at: CopyCursor) -> Option<CopyCursor> {
    let page = PageId { volume: ask.volume, page: PageNo(0) };
    ask.pin.map(|_| CopyCursor { part: CopyPart::Kept, page, ..at })
}

/// Answers a question, and gives back the credit that was reserved for it.
fn end(
    cx: &mut Context<'_>,
    link: LinkId,
    request: RequestId,
    result: Result<CopyAnswer, RequestError>,
) {
    cx.links.unreserve(link, COPY_RESERVED);
    match result {
        Ok(answer) => cx.links.reply(link, Message::Copied { request, answer }, cx.out),
        Err(error) => cx.links.fail(link, request, error, cx.out),
    }
}

fn not_kept() -> RequestError {
    RequestError::Unavailable(
        "the volume's state is kept no longer: more was written meanwhile than the origin keeps, \
         nobody asked for it for long, or the origin was started anew"
            .into(),
    )
}

fn due_at(pin: &Pin, config: &OriginConfig) -> Instant {
    pin.asked.after(config.pin_idle_max).min(pin.made.after(config.pin_age_max))
}
