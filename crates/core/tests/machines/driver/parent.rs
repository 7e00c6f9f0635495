//! What a lying parent says: answers to what was asked, more or less true, and what nobody asked.

use super::choices::{Choices, DOMAIN, Hints, PAGE_BYTES, VOLUME};
use super::neighbours::Fetch;
use larder_core::commit::PageKind;
use larder_core::id::{BootId, CommitId, DomainId, PageId, PageNo, RequestId, Stamp, VolumeId};
use larder_core::message::{
    CopyAnswer, CopyAsk, CopyPart, DomainInfo, Echo, LinkLimits, Message, NoBoot, PageAnswer,
    PageAsk, PageBody, ResumeAnswer, Versions, VolumeInfo,
};
use larder_core::rights::{Access, Effective};
use larder_core::time::{Duration, Instant, WallTime};

/// Questions that are kept for answers.
const ASKED_MAX: usize = 64;

/// The parent's side of a link up.
#[derive(Debug)]
pub(super) struct Parent {
    pub(super) hints: Hints,
    /// Whom it speaks with, for commits.
    pub(super) boot: BootId,
    /// What was asked and not answered.
    asked: Vec<Message>,
    /// The request of the stream's resume.
    resumed: u64,
    /// The stream's resume was answered on this link.
    streams: bool,
    /// The last beat.
    beat: Instant,
}

impl Parent {
    pub(super) fn new(boot: BootId) -> Self {
        let (hints, asked, beat) = (Hints::new(5), Vec::new(), Instant::default());
        Self { hints, boot, asked, resumed: 1, streams: false, beat }
    }

    /// The link is a new one.
    pub(super) fn opened(&mut self) {
        self.asked.clear();
        self.streams = false;
    }

    /// Takes what the machine says.
    pub(super) fn hears(&mut self, message: &Message) {
        match message {
            // Nothing of this is answered.
            Message::Hello { .. }
            | Message::Credit { .. }
            | Message::Goodbye { .. }
            | Message::Group(_)
            | Message::Evicted { .. }
            | Message::Holding { .. }
            | Message::Confirm { .. } => return,
            Message::Beat { sent, .. } => self.beat = *sent,
            Message::Register { boot, .. } => self.boot = *boot,
            _ => {}
        }
        if self.asked.len() == ASKED_MAX {
            self.asked.remove(0);
        }
        self.asked.push(message.clone());
    }

    /// A fetch that was asked of it, answered or not.
    pub(super) fn fetch_to_answer(&self, c: &mut Choices<'_>) -> Option<Fetch> {
        let fetches = self.asked.iter().filter_map(|message| match message {
            Message::Fetch { request, domain, pages, .. } => {
                Some((*request, *domain, pages.iter().map(|ask| ask.page).collect()))
            }
            _ => None,
        });
        let fetches: Vec<Fetch> = fetches.collect();
        fetches.get(c.below(fetches.len().max(1))).cloned()
    }

    pub(super) fn welcome(&self, c: &mut Choices<'_>) -> Message {
        let truthful = !c.rarely(12);
        let mut number = |truth: u64| if truthful { truth } else { c.near(truth) };
        let limits = LinkLimits {
            requests_max: number(64) as u32,
            stream_window_bytes: number(1 << 20) as u32,
            bulk_window_bytes: number(1 << 20) as u32,
            lease: Duration::from_nanos(number(3_000_000_000)),
        };
        let version = number(Versions::SPOKEN.newest.into()) as u32;
        let epochs = if truthful { self.hints.line.clone() } else { c.line(&self.hints.line) };
        let domains = vec![DomainInfo { domain: DOMAIN, epochs }];
        let (name, time) = ("origin".into(), WallTime(1));
        Message::Welcome { version, name, time, limits, domains }
    }

    /// Answers the oldest question, or another one.
    pub(super) fn answers(&mut self, c: &mut Choices<'_>) -> Message {
        if self.asked.is_empty() {
            let early = !self.streams && !c.rarely(12);
            return if early { Message::KeepAlive } else { self.advance(c) };
        }
        let mut place = if c.rarely(3) { c.below(self.asked.len()) } else { 0 };
        let resume = |asked: &Message| matches!(asked, Message::Resume { .. });
        if let Some(first) = self.asked.iter().position(resume).filter(|_| !c.rarely(12)) {
            place = first;
        }
        // Now and then it is answered twice.
        let asked = if c.rarely(16) { self.asked[place].clone() } else { self.asked.remove(place) };
        let asked = if let Message::For { message, .. } = asked { *message } else { asked };
        match asked {
            Message::Resume { request, domain, through, .. } => {
                (self.resumed, self.streams) = (request.0, true);
                self.resumed(c, (request, domain), through)
            }
            Message::Register { domain, boot, .. } if !c.rarely(6) => {
                Message::Registered { domain, boot }
            }
            Message::Register { domain, boot, .. } => {
                let why = if c.rarely(2) { NoBoot::Taken } else { NoBoot::Unknown };
                Message::Unregistered { domain, boot, why }
            }
            Message::Fetch { request, domain, pages, .. } => self.pages(c, request, domain, &pages),
            Message::AllocateIds { request, volume, count } => {
                let history = c.history(self.hints.history());
                let count = if c.rarely(4) { c.near(count) } else { count };
                Message::Ids { request, history, range: c.range(volume, 100, count) }
            }
            Message::OpenVolume { request, .. } => {
                Message::Volume { request, info: self.info(c, VOLUME) }
            }
            Message::ChangeVolume { request, volume, .. } => {
                Message::Volume { request, info: self.info(c, volume) }
            }
            Message::DeleteVolume { request, volume } => {
                let volume = if c.rarely(4) { c.volume() } else { volume };
                Message::VolumeDeleted { request, volume }
            }
            Message::CopyPages { request, ask } => self.copied(c, request, &ask),
            Message::CreateVolume { request, spec } => {
                Message::Volume { request, info: self.info(c, spec.id) }
            }
            Message::ListVolumes { request, .. } => {
                let volumes = vec![self.info(c, VOLUME)];
                Message::Volumes { request, volumes, more: c.rarely(3) }
            }
            Message::AskRights { request, .. } => {
                let (rights, access) = (c.rights(), Access::default());
                Message::Rights { request, rights, access }
            }
            Message::KeepAlive => Message::KeepAlive,
            Message::Commit { domain, commit } => self.committed(c, domain, commit.id),
            _ if !self.streams && !c.rarely(12) => Message::KeepAlive,
            _ => self.advance(c),
        }
    }

    /// What nobody asked for.
    pub(super) fn says(&mut self, c: &mut Choices<'_>) -> Message {
        let request = RequestId(c.near(self.resumed));
        match c.below(21) {
            0..=6 => self.advance(c),
            20 => {
                let rights = Effective::of_list(c.rights());
                Message::VolumeRights { domain: c.domain(), volume: c.volume(), rights }
            }
            7 | 8 => Message::History { domain: c.domain(), epochs: c.line(&self.hints.line) },
            9 | 10 => self.resumed(c, (request, DOMAIN), Some(Stamp(self.hints.through))),
            11 => {
                let pages: Vec<PageAsk> =
                    c.pages().into_iter().map(|page| PageAsk { page, have: None }).collect();
                self.pages(c, request, DOMAIN, &pages)
            }
            12 => {
                let id = c.commit_id(self.boot, 1);
                let domain = c.domain();
                self.committed(c, domain, id)
            }
            13 => {
                let pages = if c.rarely(2) { c.pages() } else { Vec::new() };
                Message::Failed { request, pages, error: c.error() }
            }
            14 => {
                let boot = c.boot(self.boot);
                let why = if c.rarely(2) { NoBoot::Taken } else { NoBoot::Unknown };
                Message::Unregistered { domain: c.domain(), boot, why }
            }
            15 => {
                let boot = c.boot(self.boot);
                Message::Registered { domain: c.domain(), boot }
            }
            16 => Message::Volume { request, info: self.info(c, VOLUME) },
            17 => {
                let history = c.history(self.hints.history());
                Message::Ids { request, history, range: c.range(VOLUME, 100, 5) }
            }
            18 if c.rarely(6) => Message::Goodbye { reason: c.reason() },
            19 if c.rarely(6) => self.welcome(c),
            _ => self.advance(c),
        }
    }

    fn copied(&self, c: &mut Choices<'_>, request: RequestId, ask: &CopyAsk) -> Message {
        let lies = c.rarely(6);
        let page =
            |page: PageId| PageId { volume: if lies { page.volume } else { ask.volume }, ..page };
        let pages = c.page_set().into_iter().map(|of| PageAnswer {
            page: page(of),
            version: Stamp(1),
            as_of: Stamp(1),
            body: PageBody::Absent,
        });
        let answer = CopyAnswer {
            history: c.history(self.hints.history()),
            through: Stamp(self.hints.through),
            next_page: PageNo(100),
            pages: pages.collect(),
            part: CopyPart::Index,
            cursor: None,
        };
        Message::Copied { request, answer }
    }

    fn info(&self, c: &mut Choices<'_>, id: VolumeId) -> VolumeInfo {
        let lies = c.rarely(6);
        VolumeInfo {
            id: if lies { c.volume() } else { id },
            domain: if lies { c.domain() } else { DOMAIN },
            name: "v".into(),
            page_bytes: if lies { 1 << (12 + c.below(9)) } else { PAGE_BYTES },
            root: if lies { PageKind::Raw } else { PageKind::Slotted },
            version: c.stamp(self.hints.through),
            pages: c.near(3),
            bytes: 0,
            quota: None,
            room: None,
            right: None,
        }
    }

    fn resumed(
        &mut self,
        c: &mut Choices<'_>,
        (request, domain): (RequestId, DomainId),
        through: Option<Stamp>,
    ) -> Message {
        let from = through.map_or(self.hints.through, |through| through.0);
        let reset = through.is_some() && c.rarely(5);
        let answer = if reset { ResumeAnswer::Reset } else { ResumeAnswer::From(c.stamp(from)) };
        let mut to = c.stamp(self.hints.through);
        if to.0 > 1 << 40 && !c.rarely(12) {
            to = Stamp(self.hints.through);
        }
        let done = !c.rarely(4);
        let epochs = c.line(&self.hints.line);
        if domain == DOMAIN && done {
            self.hints.through = to.0;
            if c.rarely(2) {
                self.hints.line.clone_from(&epochs);
            }
        }
        let (stale, time) = (c.page_set(), WallTime(2));
        Message::Resumed { request, domain, epochs, answer, stale, through: to, time, done }
    }

    fn advance(&mut self, c: &mut Choices<'_>) -> Message {
        let from = self.hints.through;
        // Most are true: links that end with the first message get nowhere.
        let lies = c.rarely(4);
        let truth = from.saturating_add(c.below(4) as u64);
        let mut through = if lies { c.near(from.saturating_add(3)) } else { truth };
        if through > 1 << 40 && !c.rarely(12) {
            // Nothing can follow it.
            through = from;
        }
        let changes = c.changes(from, through, self.boot);
        let stale = if c.rarely(4) { c.page_set() } else { Vec::new() };
        let echo = c.rarely(3).then(|| Echo {
            sent: Instant(c.near(self.beat.0)),
            age: Duration::from_nanos(c.near(0)),
            by_clock: c.rarely(4),
        });
        let (domain, time) = (if lies { c.domain() } else { DOMAIN }, WallTime(3));
        let told = Stamp(if lies && c.rarely(3) { c.near(from) } else { from });
        if domain == DOMAIN && through >= from {
            self.hints.through = through;
        }
        let through = Stamp(through);
        Message::Advance { domain, from: told, through, time, changes, stale, echo }
    }

    fn pages(
        &mut self,
        c: &mut Choices<'_>,
        request: RequestId,
        domain: DomainId,
        asked: &[PageAsk],
    ) -> Message {
        if c.rarely(10) {
            let some = c.rarely(2).then(|| asked.iter().map(|ask| ask.page).collect());
            let pages = some.unwrap_or_default();
            return Message::Failed { request, pages, error: c.error() };
        }
        let (mut pages, lies) = (Vec::new(), c.rarely(3));
        for ask in asked {
            if c.rarely(10) {
                continue;
            }
            let through = self.hints.through;
            if !lies {
                let (version, as_of) = (Stamp(through.saturating_sub(1).max(1)), Stamp(through));
                let body = PageBody::Data(c.image(ask.page));
                pages.push(PageAnswer { page: ask.page, version, as_of, body });
                continue;
            }
            let page: PageId = if c.rarely(16) { c.page() } else { ask.page };
            let version = c.stamp(through.saturating_sub(1));
            let as_of = c.stamp(through);
            let body = match c.below(6) {
                0 => PageBody::Absent,
                1 => PageBody::Valid,
                _ => PageBody::Data(c.image(page)),
            };
            pages.push(PageAnswer { page, version, as_of, body });
        }
        Message::Pages { request, domain, pages }
    }

    fn committed(&mut self, c: &mut Choices<'_>, domain: DomainId, id: CommitId) -> Message {
        if c.rarely(6) {
            let (error, passed) = (c.error(), !c.rarely(3));
            return Message::CommitDeferred { domain, id, error, passed };
        }
        let history = c.history(self.hints.history());
        Message::Committed { domain, id, outcome: c.outcome(self.hints.through), history }
    }
}
