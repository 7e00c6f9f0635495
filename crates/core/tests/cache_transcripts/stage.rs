//! The stage: one cache, its transactions, and the parent's lines.

use crate::parent::{committed, failed, listed, offered, put_off, volume_info};
use bytes::Bytes;
use larder_core::cache::io::{CacheInput, CacheOp, CacheOutput, CacheReply, NeighbourOutput};
use larder_core::cache::{
    AgeLimit, Awaited, Cache, CacheConfig, CommitPart, Consistency, Finish, Line, PageCopy,
    ReadCache, Session, SessionOptions, Step, Transaction, commit_ops,
};
use larder_core::commit::{
    Aspect, Change, IdRange, Op, Outcome, PageChange, PageKind, Read, Target, Write,
};
use larder_core::group::{GroupMessage, Lack, Member, MemberConfig};
use larder_core::id::{
    BootId, CommitId, DomainId, Generation, HistoryId, LinkId, ObjectId, PageId, PageNo, RequestId,
    Slot, Stamp, VolumeId,
};
use larder_core::machine::{LinkInput, LinkOutput, Machine};
use larder_core::message::{
    CloseReason, Echo, Epoch, LinkLimits, Message, NoBoot, PageAnswer, PageBody, RequestError,
    ResumeAnswer, Versions, VolumeInfo, VolumeKey, VolumeSpec,
};
use larder_core::page::{Page, Record};
use larder_core::rights::{Effective, Right};
use larder_core::time::{Clock, Duration, Instant, WallTime};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) const VOLUME: VolumeId = VolumeId(7);
pub(crate) const DOMAIN: DomainId = DomainId(1);
/// Of what is said to be of the `other` one.
const OTHER_VOLUME: VolumeId = VolumeId(8);
const OTHER_DOMAIN: DomainId = DomainId(2);
const BOOT: BootId = BootId(100);
pub(crate) const PAGE_BYTES: u32 = 4096;

struct StageClock(Arc<AtomicU64>);

impl Clock for StageClock {
    fn now(&self) -> Instant {
        Instant(self.0.load(Ordering::Relaxed))
    }
}

pub(crate) struct Stage {
    now: Arc<AtomicU64>,
    cache: Cache,
    shared: Arc<ReadCache>,
    session: Session,
    transactions: BTreeMap<String, Transaction>,
    /// The parts of the transaction that asked for its commit last.
    sent: Vec<CommitPart>,
    /// Its session hears how that ended.
    sees: bool,
    asked: u64,
    fetched: Option<(Stamp, Vec<Arc<PageCopy>>)>,
    /// The link on which the parent speaks.
    link: LinkId,
    /// How many parents it has.
    parents: u32,
    /// The boot that was to be registered last.
    boot: BootId,
    /// The protocol version that the parent speaks.
    version: u32,
}

pub(crate) fn page(no: &str) -> PageId {
    if no == "volume" {
        return PageId::of_volume(VOLUME);
    }
    // `o5`: page 5 of the other domain's volume.
    let (volume, no) = no.strip_prefix('o').map_or((VOLUME, no), |no| (OTHER_VOLUME, no));
    let page = PageNo(no.parse().expect("a page number"));
    PageId { volume, page }
}

pub(crate) fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("a number, not {text}"))
}

fn slot(text: &str) -> Slot {
    Slot(u16::try_from(number(text)).expect("a slot"))
}

fn range(text: &str) -> (Stamp, Stamp) {
    let (from, to) = text.split_once("..").expect("FROM..TO");
    (Stamp(number(from)), Stamp(number(to)))
}

fn list(text: &str) -> Vec<PageId> {
    text.split(',').map(page).collect()
}

fn record(value: &str) -> Bytes {
    Record::Inline(Bytes::copy_from_slice(value.as_bytes())).encode()
}

/// A slotted page, written as `0:apple 1:pear`; a slot `0#3:apple` has generation 3.
fn image(words: &[&str]) -> Page {
    let mut page = Page::empty(PageKind::Slotted);
    for word in words {
        let (at, value) = word.split_once(':').expect("SLOT:VALUE");
        let (at, last) = at.split_once('#').map_or((at, 1), |(at, g)| (at, number(g) as u32));
        for generation in (1..=last).map(Generation) {
            let slot = slot(at);
            let value = record(value);
            let put = Op::Put { slot, generation, value };
            page.apply(&put, PAGE_BYTES).expect("fits");
            if generation.0 < last {
                page.apply(&Op::Delete { slot, generation }, PAGE_BYTES).expect("there");
            }
        }
    }
    page
}

/// `5:0v` value of slot 0 of page 5; `5:0e` its existence; `5:*` all of the page.
fn touched(words: &[&str]) -> Vec<PageChange> {
    let mut pages: BTreeMap<PageId, Vec<(Target, Aspect)>> = BTreeMap::new();
    for word in words {
        let (no, what) = word.split_once(':').expect("PAGE:WHAT");
        let what = match what {
            "*" => (Target::Page, Aspect::Existence),
            what if what.ends_with('e') => {
                (Target::Slot(slot(&what[..what.len() - 1])), Aspect::Existence)
            }
            what => (Target::Slot(slot(&what[..what.len() - 1])), Aspect::Value),
        };
        pages.entry(page(no)).or_default().push(what);
    }
    let change = |(page, touched)| PageChange { page, touched };
    pages.into_iter().map(change).collect()
}

fn text(record: &Bytes) -> String {
    match Record::decode(record.clone()) {
        Ok(Record::Inline(value)) => String::from_utf8_lossy(&value).into_owned(),
        other => format!("{other:?}"),
    }
}

pub(crate) fn epochs(histories: &[(u128, u64)]) -> Vec<Epoch> {
    let epoch = |&(history, first)| Epoch { history: HistoryId(history), first: Stamp(first) };
    histories.iter().map(epoch).collect()
}

impl Stage {
    pub(crate) fn new() -> Self {
        let now = Arc::new(AtomicU64::new(0));
        let clock = Arc::new(StageClock(Arc::clone(&now)));
        let (cache, shared) = Cache::new(Self::config(clock, 1 << 20));
        Self {
            now,
            cache,
            shared,
            session: Session::default(),
            transactions: BTreeMap::new(),
            sent: Vec::new(),
            sees: false,
            asked: 0,
            fetched: None,
            link: LinkId(0),
            parents: 1,
            boot: BOOT,
            version: 1,
        }
    }

    fn config(clock: Arc<StageClock>, memory_bytes: usize) -> CacheConfig {
        CacheConfig { memory_bytes, ..CacheConfig::new("node", BOOT, clock) }
    }

    pub(crate) fn check(&self) {
        self.cache.check();
    }

    fn time(&self) -> Instant {
        Instant(self.now.load(Ordering::Relaxed))
    }

    /// One line of a story; gives what the cache said.
    pub(crate) fn run(&mut self, line: &str) -> Vec<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let rest = &words[1..];
        match words[0] {
            "memory" => self.resize(number(rest[0]) as usize),
            "notices" => self.few_notices(number(rest[0]) as usize),
            "sent" => self.few_bytes(number(rest[0]) as usize),
            "open-after" => self.leaves_open(number(rest[0])),
            "setup" => self.setup(number(rest[0]), rest.get(1) != Some(&"unregistered")),
            "link" => self.link(rest),
            "parents" => self.several_parents(number(rest[0]) as u32),
            // From here on the parent at this link speaks.
            "on" => {
                self.link = LinkId(number(rest[0]));
                Vec::new()
            }
            "rights-of" => self.rights_of_many(number(rest[0]), rest[1]),
            "list" => self.ask(CacheOp::ListVolumes),
            "make-volume" => self.make_volume(number(rest[0])),
            // The same so many times, said by the last of them.
            count if count.bytes().all(|byte| byte.is_ascii_digit()) => {
                let repeated = rest.join(" ");
                let said = (0..number(count)).map(|_| self.run(&repeated));
                said.last().unwrap_or_default()
            }
            "open-named" => self.ask(CacheOp::OpenVolume(VolumeKey::Name(rest[0].into()))),
            "open-other" => self.ask(CacheOp::OpenVolume(VolumeKey::Id(OTHER_VOLUME))),
            "fetch-other" => {
                let (domain, pages, prefetch) = (OTHER_DOMAIN, list(rest[0]), false);
                self.ask(CacheOp::Fetch { domain, pages, prefetch })
            }
            "member" => self.member("here"),
            "member-nowhere" => self.member(""),
            "reachable" => self.input(CacheInput::Reachable(rest[0].into())),
            "group" => self.group(rest),
            "neighbour" => self.neighbour(rest),
            "reader-helps" => self.reader_helps(rest),
            "at" => self.at(number(rest[0])),
            "fetch" | "prefetch" => {
                let pages = list(rest[0]);
                let prefetch = words[0] == "prefetch";
                let domain = DOMAIN;
                self.ask(CacheOp::Fetch { domain, pages, prefetch })
            }
            "huge" => self.huge(number(rest[0]), number(rest[1]), number(rest[2]) as usize),
            "refresh" => self.ask(CacheOp::Refresh { domain: DOMAIN }),
            "quick" => self.quick_beats(),
            "refreshes" => self.refreshes(number(rest[0])),
            "numbers" => self.ask(CacheOp::AllocateIds { volume: VOLUME, count: number(rest[0]) }),
            "open" if rest.contains(&"other") => {
                self.ask(CacheOp::OpenVolume(VolumeKey::Id(OTHER_VOLUME)))
            }
            "open" => self.ask(CacheOp::OpenVolume(VolumeKey::Id(VOLUME))),
            "version" => {
                self.version = number(rest[0]) as u32;
                Vec::new()
            }
            "wait" => {
                // `wait 5 on 1`: of that line, whichever stands.
                let line = match rest.get(2) {
                    Some(line) => Line(number(line)),
                    None => self.shared.line(DOMAIN),
                };
                let stamp = Stamp(number(rest[0]));
                self.ask(CacheOp::WaitThrough(Awaited { domain: DOMAIN, line, stamp }))
            }
            // `outcome 2` asks about the node's second commit, under its first boot.
            "outcome" => {
                let commit = CommitId { boot: BOOT, sequence: number(rest[0]) };
                self.ask(CacheOp::Outcome { domain: DOMAIN, commit })
            }
            "end" => self.input(CacheInput::End),
            "cancel" => {
                let id = RequestId(number(rest[0]));
                self.input(CacheInput::Cancel { id })
            }
            "begin" | "read" | "exists" | "slots" | "make" | "put" | "add" | "delete"
            | "remove" | "supply" | "finish" | "commit" | "drop" | "object" | "age" | "waits" => {
                self.transaction(words[0], rest)
            }
            other => self.parent(other, rest),
        }
    }

    fn make_volume(&mut self, domain: u64) -> Vec<String> {
        self.ask(CacheOp::CreateVolume(VolumeSpec {
            id: VolumeId(9),
            name: "new".into(),
            page_bytes: 4096,
            domain: Some(DomainId(domain)),
        }))
    }

    /// A cache whose beats are 10 ms apart.
    fn quick_beats(&mut self) -> Vec<String> {
        let clock = Arc::new(StageClock(Arc::clone(&self.now)));
        let beat_every = Duration::from_millis(10);
        let config = CacheConfig { beat_every, ..Self::config(clock, 1 << 20) };
        (self.cache, self.shared) = Cache::new(config);
        Vec::new()
    }

    /// So many refreshes, a millisecond apart, and those of them that are sent.
    fn refreshes(&mut self, count: u64) -> Vec<String> {
        let mut sent = 0;
        for _ in 0..count {
            self.now.fetch_add(1_000_000, Ordering::Relaxed);
            let said = self.ask(CacheOp::Refresh { domain: DOMAIN });
            sent += said.iter().filter(|line| line.contains("send Refresh")).count();
        }
        vec![format!("({sent} sent)")]
    }

    /// A cache that is a member of a group, and where neighbours reach it, if it knows.
    fn member(&mut self, address: &str) -> Vec<String> {
        let clock = Arc::new(StageClock(Arc::clone(&self.now)));
        let group = Some(MemberConfig { address: address.into(), ..MemberConfig::default() });
        let config = CacheConfig { group, ..Self::config(clock, 1 << 20) };
        (self.cache, self.shared) = Cache::new(config);
        self.version = 4;
        Vec::new()
    }

    /// A cache of so many parents, each with domains of its own.
    fn several_parents(&mut self, parents: u32) -> Vec<String> {
        let clock = Arc::new(StageClock(Arc::clone(&self.now)));
        self.parents = parents;
        (self.cache, self.shared) =
            Cache::new(CacheConfig { parents, ..Self::config(clock, 1 << 20) });
        Vec::new()
    }

    /// `group b,c`: it is told of these members, greeted by them at links 11, 12, … and said whom it reaches.
    fn group(&mut self, words: &[&str]) -> Vec<String> {
        let said = self.run(&format!("members {}", words[0]));
        for name in words[0].split(',') {
            self.neighbour(&["open", name]);
            self.neighbour(&["hello", name]);
        }
        said.into_iter().chain([format!("(neighbours {} are reached)", words[0])]).collect()
    }

    /// `neighbour open b`, `stranger b` (its certificate is not of the group), `hello b`, `closed b`, `page b 3 5 2..4 0:apple`, `lacks b 3 5`, `waits b 3 5`,
    /// `not-now b 3 5`.
    fn neighbour(&mut self, words: &[&str]) -> Vec<String> {
        let link = neighbour_link(words[1]);
        let (peer, life) = (words[1].to_owned(), neighbour_life(words[1]));
        let lacks = |why| GroupMessage::Lacks {
            request: RequestId(number(words[2])),
            domain: DOMAIN,
            pages: list(words[3]),
            why,
        };
        let message = match words[0] {
            "open" | "stranger" => {
                let in_group = words[0] == "open";
                let opened = LinkInput::UpOpened { link, parent: 0, peer, in_group };
                return self.input(CacheInput::Neighbour(opened));
            }
            "closed" => {
                let closed = LinkInput::Closed { link, reason: None };
                return self.input(CacheInput::Neighbour(closed));
            }
            "hello" => {
                let versions = Versions { oldest: 4, newest: 4 };
                Message::Group(GroupMessage::Peer { versions, name: peer, life })
            }
            "page" => self.answer(&words[2..]),
            "lacks" => Message::Group(lacks(Lack::Lacks)),
            "waits" => Message::Group(lacks(Lack::Waits)),
            "not-now" => Message::Group(lacks(Lack::NotNow)),
            other => panic!("neighbour {other}?"),
        };
        let received = LinkInput::Received { link, message, bytes: 100 };
        self.input(CacheInput::Neighbour(received))
    }

    /// `reader-helps 5,6 2`: what the task that reads the parent's link sends of these pages, whose help the
    /// redirector asks for at a position, whatever the machine is at.
    fn reader_helps(&self, words: &[&str]) -> Vec<String> {
        let asked = (Stamp(number(words[1])), words.contains(&"holes"));
        let (sent, left) = self.shared.help_with(DOMAIN, list(words[0]), asked);
        let told = |one: &PageAnswer| {
            let holes = one.body.holes().iter().map(|slot| format!(" but {}", slot.0));
            let holes: String = holes.collect();
            format!("sends {} {}..{}{holes}", one.page, one.version, one.as_of)
        };
        let sent = sent.iter().map(told);
        let left = left.iter().map(|page| format!("leaves {page} to the machine"));
        sent.chain(left).collect()
    }

    fn resize(&mut self, bytes: usize) -> Vec<String> {
        let clock = Arc::new(StageClock(Arc::clone(&self.now)));
        (self.cache, self.shared) = Cache::new(Self::config(clock, bytes));
        Vec::new()
    }

    /// `rights-of 5000 none`: the parent tells this of so many volumes that nobody opened.
    fn rights_of_many(&mut self, count: u64, right: &str) -> Vec<String> {
        let right = Right::ALL.into_iter().find(|known| known.name() == right).expect("a right");
        let tell = |volume| Message::VolumeRights {
            domain: DOMAIN,
            volume: VolumeId(1_000 + u128::from(volume)),
            rights: Effective::same(right),
        };
        (0..count).flat_map(|volume| self.message(tell(volume))).collect()
    }

    /// A cache that may owe so many notices.
    fn few_notices(&mut self, notices_max: usize) -> Vec<String> {
        let clock = Arc::new(StageClock(Arc::clone(&self.now)));
        let config = CacheConfig { notices_max, ..Self::config(clock, 1 << 20) };
        (self.cache, self.shared) = Cache::new(config);
        Vec::new()
    }

    /// A cache that confirms others when so many commits came after one without an outcome.
    fn leaves_open(&mut self, open_after: u64) -> Vec<String> {
        let clock = Arc::new(StageClock(Arc::clone(&self.now)));
        let config = CacheConfig { open_after, ..Self::config(clock, 1 << 20) };
        (self.cache, self.shared) = Cache::new(config);
        Vec::new()
    }

    /// A cache that sends so many bytes of commits at once, and has four times as many without an outcome.
    fn few_bytes(&mut self, sent_bytes_max: usize) -> Vec<String> {
        let clock = Arc::new(StageClock(Arc::clone(&self.now)));
        let commit_bytes_max = 4 * sent_bytes_max;
        let config =
            CacheConfig { sent_bytes_max, commit_bytes_max, ..Self::config(clock, 1 << 20) };
        (self.cache, self.shared) = Cache::new(config);
        Vec::new()
    }

    /// A link, the volume open, the domain at `through`, the boot registered: said in one word.
    fn setup(&mut self, through: u64, registered: bool) -> Vec<String> {
        self.link(&["up", "1"]);
        self.run("welcome");
        self.ask(CacheOp::OpenVolume(VolumeKey::Name("v".into())));
        self.run("volume 1");
        self.run(&format!("resumed 2 from 0 through={through}"));
        if registered {
            self.run("registered");
        }
        vec![format!("(link 1 is up, domain 1 stands at {through}, request 1 opened volume 7)")]
    }

    fn at(&mut self, milliseconds: u64) -> Vec<String> {
        let to = Instant(milliseconds * 1_000_000);
        let mut said = Vec::new();
        while let Some(next) = self.cache.next_timeout().filter(|&next| next <= to) {
            self.now.store(next.0.max(self.time().0), Ordering::Relaxed);
            let mut out = Vec::new();
            self.cache.handle_timeout(self.time(), &mut out);
            said.extend(self.say(out));
        }
        self.now.store(to.0, Ordering::Relaxed);
        // Beats of idle seconds say nothing after the first.
        let mut beats = 0;
        said.retain(|line| {
            let beat = line.starts_with("send Beat") || line.starts_with("send KeepAlive");
            beats += usize::from(beat);
            beats < 2 || !beat
        });
        said
    }

    fn link(&mut self, words: &[&str]) -> Vec<String> {
        match words[0] {
            "up" | "stranger" => {
                self.link = LinkId(number(words[1]));
                let link = self.link;
                let (peer, in_group) = ("origin".into(), words[0] == "up");
                self.input(CacheInput::Link(LinkInput::UpOpened {
                    link,
                    parent: words.get(2).map_or(0, |parent| number(parent) as u32),
                    peer,
                    in_group,
                }))
            }
            "down" => {
                let link = self.link;
                let reason = None;
                self.input(CacheInput::Link(LinkInput::Closed { link, reason }))
            }
            other => panic!("link {other}?"),
        }
    }

    /// `huge 3 2 100`: a commit of three reads and two writes of 100 bytes each, to as many pages.
    fn huge(&mut self, reads: u64, writes: u64, bytes: usize) -> Vec<String> {
        let page = |no| PageId { volume: VOLUME, page: PageNo(no) };
        // Far apart, so that each number takes all its bytes.
        let apart = 1 << 24;
        let read =
            |no| Read { page: page(no * apart), target: Target::Page, aspect: Aspect::Value };
        let value = Bytes::from(vec![1; bytes]);
        let write = |no: u64| {
            let (slot, generation) = (Slot(40_000), Generation(1 << 30));
            let put = Op::Put { slot, generation, value: value.clone() };
            Write { page: page(no % 2 * apart * (1 << 20) + no), op: put }
        };
        let said = self.ask(CacheOp::Commit {
            domain: DOMAIN,
            history: HistoryId(1),
            checked: Stamp(1),
            reads: (1..=reads).map(read).collect(),
            writes: (1..=writes).map(write).collect(),
            named: Vec::new(),
        });
        let cut = |said: String| said.chars().take(60).collect();
        said.into_iter().map(cut).collect()
    }

    fn ask(&mut self, op: CacheOp) -> Vec<String> {
        self.asked += 1;
        let deadline = self.time().after(Duration::from_secs(30));
        let id = RequestId(self.asked);
        self.input(CacheInput::Request { id, op, deadline })
    }

    fn input(&mut self, input: CacheInput) -> Vec<String> {
        let mut out = Vec::new();
        self.cache.handle(self.time(), input, &mut out);
        self.say(out)
    }

    fn message(&mut self, message: Message) -> Vec<String> {
        let link = self.link;
        let bytes = 100;
        self.input(CacheInput::Link(LinkInput::Received { link, message, bytes }))
    }

    // ---- the parent ----

    fn parent(&mut self, kind: &str, words: &[&str]) -> Vec<String> {
        let option = |key: &str| words.iter().find_map(|word| word.strip_prefix(key));
        let in_other = words.contains(&"other");
        let domain = if in_other { OTHER_DOMAIN } else { DOMAIN };
        let message = match kind {
            "welcome" => Message::Welcome {
                version: self.version,
                name: "origin".into(),
                time: WallTime(0),
                limits: LinkLimits {
                    requests_max: option("requests=").map_or(64, number) as u32,
                    stream_window_bytes: 1 << 20,
                    bulk_window_bytes: 1 << 20,
                    lease: Duration::from_millis(option("lease=").map_or(3000, number)),
                },
                domains: option("has=").map_or(Vec::new(), |has| vec![offered(has)]),
            },
            "volumes" => Message::Volumes {
                request: RequestId(number(words[0])),
                volumes: words[1..].iter().map(|name| listed(name)).collect(),
                more: false,
            },
            "volume" => {
                let named = |name| Right::ALL.into_iter().find(|right| right.name() == name);
                let right = option("right=").map_or(volume_info().right, named);
                let mut info = VolumeInfo { right, ..volume_info() };
                info.page_bytes =
                    option("bytes=").map_or(info.page_bytes, |bytes| number(bytes) as u32);
                if in_other {
                    (info.id, info.domain) = (OTHER_VOLUME, OTHER_DOMAIN);
                }
                Message::Volume { request: RequestId(number(words[0])), info }
            }
            "keep_alive" => Message::KeepAlive,
            "registered" => Message::Registered { domain, boot: self.boot },
            "unregistered" => {
                Message::Unregistered { domain: DOMAIN, boot: self.boot, why: NoBoot::Unknown }
            }
            "resumed" => Message::Resumed {
                request: RequestId(number(words[0])),
                domain,
                epochs: match option("history=") {
                    Some(first) => epochs(&[(1, 1), (2, number(first))]),
                    None => epochs(&[(1, 1)]),
                },
                answer: match words[1] {
                    "from" => ResumeAnswer::From(Stamp(number(words[2]))),
                    _ => ResumeAnswer::Reset,
                },
                stale: option("stale=").map_or(Vec::new(), list),
                through: Stamp(number(option("through=").expect("through"))),
                time: WallTime(0),
                done: !words.contains(&"more"),
            },
            "history" => Message::History {
                domain: DOMAIN,
                epochs: epochs(&[(1, 1), (2, number(words[0]))]),
            },
            "rights" => {
                let right = Right::ALL.into_iter().find(|right| right.name() == words[0]);
                let rights = Effective::same(right.expect("a right"));
                Message::VolumeRights { domain: DOMAIN, volume: VOLUME, rights }
            }
            "advance" => self.advance(words),
            "page" => self.answer(words),
            // `renewed`: under the boot that was to be registered last.
            "committed" => {
                let boot = if words.contains(&"renewed") { self.boot } else { BOOT };
                committed(domain, boot, words)
            }
            "deferred" | "full" | "damaged" | "invalid" | "unavailable" => {
                let id = CommitId { boot: BOOT, sequence: number(words[0]) };
                // `away`: it was not passed on.
                let (error, passed) = (put_off(kind), !words.contains(&"away"));
                Message::CommitDeferred { domain, id, error, passed }
            }
            // `ids 3 100 10 history=1` answers request 3 with the numbers 100 to 109.
            "ids" => Message::Ids {
                request: RequestId(number(words[0])),
                history: HistoryId(option("history=").map_or(1, |no| number(no).into())),
                range: IdRange {
                    volume: VOLUME,
                    first: PageNo(number(words[1])),
                    count: number(words[2]),
                },
            },
            "failed" => failed(words),
            "members" | "pointed" | "help" | "update" => redirector_says(kind, words),
            "goodbye" => Message::Goodbye {
                reason: CloseReason::Forked {
                    domain: DOMAIN,
                    seen: Stamp(number(words[0])),
                    fork: Stamp(number(words[1])),
                },
            },
            other => panic!("{other}?"),
        };
        self.message(message)
    }

    /// `advance 3..5 @4 5:0v @5 own=1 6:0v stale=9 echo=20 age=4 by-clock`; times in milliseconds, `20+1` a nanosecond later.
    fn advance(&self, words: &[&str]) -> Message {
        let (from, through) = range(words[0]);
        let mut changes: Vec<Change> = Vec::new();
        let (mut stale, mut echo, mut age) = (Vec::new(), None, Duration::ZERO);
        let mut by_clock = false;
        for word in &words[1..] {
            if let Some(stamp) = word.strip_prefix('@') {
                let id = CommitId { boot: BootId(200), sequence: number(stamp) };
                changes.push(Change { stamp: Stamp(number(stamp)), id, pages: Vec::new() });
            } else if let Some(pages) = word.strip_prefix("stale=") {
                stale = list(pages);
            } else if let Some(sent) = word.strip_prefix("echo=") {
                let (millis, nanos) = sent.split_once('+').unwrap_or((sent, "0"));
                echo = Some(Instant(number(millis) * 1_000_000 + number(nanos)));
            } else if let Some(of) = word.strip_prefix("age=") {
                age = Duration::from_millis(number(of));
            } else if *word == "by-clock" {
                by_clock = true;
            } else if let Some(sequence) = word.strip_prefix("own=") {
                let change = changes.last_mut().expect("a stamp first");
                change.id = CommitId { boot: BOOT, sequence: number(sequence) };
            } else if let Some(sequence) = word.strip_prefix("renewed=") {
                let change = changes.last_mut().expect("a stamp first");
                change.id = CommitId { boot: self.boot, sequence: number(sequence) };
            } else {
                let change = changes.last_mut().expect("a stamp first");
                change.pages.extend(touched(&[word]));
            }
        }
        let echo = echo.map(|sent| Echo { sent, age, by_clock });
        Message::Advance { domain: DOMAIN, from, through, time: WallTime(0), changes, stale, echo }
    }

    /// `page 3 5 2..4 0:apple` answers request 3 with page 5, exact in 2..4.
    fn answer(&self, words: &[&str]) -> Message {
        let id = page(words[1]);
        let (version, as_of) = range(words[2]);
        let body = match words.get(3) {
            Some(&"absent") => PageBody::Absent,
            Some(&"valid") => PageBody::Valid,
            Some(&"rotten") => PageBody::Data(Bytes::from_static(&[0; 64])),
            // `holes=1,3-5`: those slots are not known.
            Some(first) if first.starts_with("holes=") => {
                let holes = first["holes=".len()..].split(',').flat_map(|some| {
                    let (from, to) = some.split_once('-').unwrap_or((some, some));
                    (slot(from).0..=slot(to).0).map(Slot)
                });
                PageBody::Holed(image(&words[4..]).encode(id), holes.collect())
            }
            _ => PageBody::Data(image(&words[3..]).encode(id)),
        };
        let answer = PageAnswer { page: id, version, as_of, body };
        Message::Pages { request: RequestId(number(words[0])), domain: DOMAIN, pages: vec![answer] }
    }

    // ---- transactions ----

    fn transaction(&mut self, what: &str, words: &[&str]) -> Vec<String> {
        let name = words[0].to_string();
        if what == "begin" {
            let mut options = SessionOptions::default();
            for word in &words[1..] {
                match *word {
                    "strict" => options.consistency = Consistency::Strict,
                    "snapshot" => options.consistency = Consistency::Snapshot,
                    "leased" => options.age_limit = AgeLimit::Lease,
                    "ahead" => options.ahead = true,
                    other => panic!("{other}?"),
                }
            }
            let begun = Transaction::begin(&self.shared, options, &self.session.floors);
            return match begun {
                Ok(transaction) => {
                    self.transactions.insert(name, transaction);
                    Vec::new()
                }
                Err(error) => vec![format!("{name}: {error}")],
            };
        }
        if matches!(what, "finish" | "commit" | "drop") {
            // `sees`: the session hears how it ended.
            self.sees = words.contains(&"sees");
            return self.end(what, name);
        }
        let said = self.step(what, &name, &words[1..]);
        vec![format!("{name}: {said}")]
    }

    fn step(&mut self, what: &str, name: &str, words: &[&str]) -> String {
        let supplied = self.fetched.clone();
        let transaction = self.transactions.get_mut(name).expect("begun before");
        match what {
            "read" => told(transaction.read_slot(page(words[0]), slot(words[1])), |held| {
                held.map_or("nothing".into(), |(generation, record)| {
                    format!("{} (generation {})", text(&record), generation.0)
                })
            }),
            "exists" => {
                told(transaction.exists(page(words[0]), slot(words[1])), |held| format!("{held:?}"))
            }
            "slots" => told(transaction.slots(page(words[0])), |slots| format!("{slots:?}")),
            "object" => {
                let object = ObjectId {
                    page: page(words[0]),
                    slot: slot(words[1]),
                    generation: Generation(number(words[2]) as u32),
                };
                told(transaction.read_object(object), |value| match value {
                    Some(value) => String::from_utf8_lossy(&value).into_owned(),
                    None => "gone".into(),
                })
            }
            // `named`: with a number that it has read.
            "make" => {
                let (page, kind) = (page(words[0]), PageKind::Slotted);
                let made = if words.contains(&"named") {
                    transaction.create_named_page(page, kind)
                } else {
                    transaction.write(page, Op::CreatePage(kind))
                };
                told(made, |()| "made".into())
            }
            "remove" => {
                told(transaction.write(page(words[0]), Op::DeletePage), |()| "removed".into())
            }
            "put" => {
                let op = Op::Put {
                    slot: slot(words[1]),
                    generation: Generation(number(words[2]) as u32),
                    value: record(words[3]),
                };
                told(transaction.write(page(words[0]), op), |()| "written".into())
            }
            "add" => {
                let op = Op::Add {
                    slot: slot(words[1]),
                    generation: Generation(1),
                    offset: 0,
                    delta: number(words[2]) as i64,
                };
                told(transaction.write(page(words[0]), op), |()| "added".into())
            }
            "delete" => {
                let op = Op::Delete {
                    slot: slot(words[1]),
                    generation: Generation(number(words[2]) as u32),
                };
                told(transaction.write(page(words[0]), op), |()| "deleted".into())
            }
            "supply" => {
                let (through, pages) = supplied.expect("fetched before");
                told(transaction.supply(through, &pages), |()| "supplied".into())
            }
            "waits" => match transaction.waits() {
                Some(Awaited { domain, stamp, .. }) => {
                    format!("waits for {stamp} of domain {}", domain.0)
                }
                None => "waits for nothing".into(),
            },
            "age" => {
                format!("{:?}", self.shared.age(DOMAIN, Instant(self.now.load(Ordering::Relaxed))))
            }
            other => panic!("{other}?"),
        }
    }

    fn end(&mut self, what: &str, name: String) -> Vec<String> {
        let transaction = self.transactions.remove(&name).expect("begun before");
        if what == "drop" {
            return Vec::new();
        }
        match transaction.finish() {
            Finish::Local { seen, per_domain } => {
                self.session.saw(&seen);
                let stamps: Vec<u64> = seen.iter().map(|seen| seen.stamp.0).collect();
                vec![format!("{name}: committed here, at {stamps:?}, per domain: {per_domain}")]
            }
            Finish::Send { parts, .. } if what == "commit" => {
                self.sent.clone_from(&parts);
                let ops = commit_ops(parts).into_iter();
                ops.flat_map(|op| self.ask(op)).collect()
            }
            Finish::Send { parts, .. } => vec![format!("{name}: to be sent: {parts:?}")],
            Finish::Doomed(doom) => vec![format!("{name}: doomed: {doom}")],
            Finish::Refused(error) => vec![format!("{name}: refused: {error}")],
        }
    }

    fn say(&mut self, out: Vec<CacheOutput>) -> Vec<String> {
        out.into_iter().map(|output| self.say_one(output)).collect()
    }

    /// The session sees what it was told to be done of its last transaction.
    fn floors_by(&mut self, result: &Result<CacheReply, RequestError>) {
        let done: Vec<(DomainId, Stamp)> = match result {
            _ if !self.sees => return,
            Ok(CacheReply::Committed(stamps)) => stamps.clone(),
            Ok(CacheReply::Outcome(Outcome::Committed(stamp))) => {
                self.sent.iter().map(|part| (part.domain, *stamp)).collect()
            }
            _ => return,
        };
        for (domain, stamp) in done {
            let part = self.sent.iter().find(|part| part.domain == domain);
            self.session.saw(&part.map(|part| part.seen(stamp)).into_iter().collect::<Vec<_>>());
        }
    }

    fn say_one(&mut self, output: CacheOutput) -> String {
        if let CacheOutput::Link(LinkOutput::Send { message, .. }) = &output
            && let Message::Register { boot, .. } = message
        {
            self.boot = *boot;
        }
        match output {
            CacheOutput::Link(LinkOutput::Send { link, message }) if self.parents > 1 => {
                format!("send on {}: {message:?}", link.0)
            }
            CacheOutput::Link(LinkOutput::Send { message, .. }) => format!("send {message:?}"),
            CacheOutput::Link(LinkOutput::Close { link, reason }) => {
                format!("close link {}: {reason}", link.0)
            }
            CacheOutput::Reply { id, result: Ok(CacheReply::Fetched { through, pages }) } => {
                let copies: Vec<String> = pages.iter().map(|copy| held(copy)).collect();
                self.fetched = Some((through, pages));
                format!("reply {}: through {through}: {}", id.0, copies.join("; "))
            }
            CacheOutput::Reply { id, result } => {
                self.floors_by(&result);
                match result {
                    Ok(reply) => format!("reply {}: {reply:?}", id.0),
                    Err(error) => format!("reply {}: error: {error}", id.0),
                }
            }
            CacheOutput::Notice(notice) => format!("notice {notice:?}"),
            CacheOutput::Neighbour(output) => to_neighbour(output),
        }
    }
}

/// Neighbours are called by letters.
fn neighbour_letter(name: &str) -> u64 {
    u64::from(name.as_bytes()[0] - b'a')
}

/// b is at link 11.
fn neighbour_link(name: &str) -> LinkId {
    LinkId(10 + neighbour_letter(name))
}

/// b has life 1: below this node's, which dials.
fn neighbour_life(name: &str) -> BootId {
    BootId(u128::from(neighbour_letter(name)))
}

fn redirector_says(kind: &str, words: &[&str]) -> Message {
    match kind {
        // `members b,c`
        "members" => {
            let member = |name: &str| Member {
                life: neighbour_life(name),
                name: name.to_owned(),
                address: format!("at-{name}"),
            };
            let names = words[0].split(',').filter(|name| *name != "nobody");
            Message::Group(GroupMessage::Members { members: names.map(member).collect() })
        }
        // `pointed 3 5,6 b`: these pages of fetch 3 come from b; with `holes` copies with holes do as well.
        "pointed" => Message::Group(GroupMessage::Pointed {
            request: RequestId(number(words[0])),
            domain: DOMAIN,
            pages: list(words[1]),
            helper: neighbour_life(words[2]),
            holes: words.contains(&"holes"),
        }),
        // `update 4 5 put 0 apple add 1 0 3`: what the commit that the change at 4 names wrote to page 5.
        "update" => {
            let stamp = number(words[0]);
            let id = CommitId { boot: BootId(200), sequence: stamp };
            let write = |op| Write { page: page(words[1]), op };
            let writes = ops(&words[2..]).into_iter().map(write).collect();
            Message::Group(GroupMessage::Update { domain: DOMAIN, id, stamp: Stamp(stamp), writes })
        }
        // `help b 9 5 2`: b's fetch 9 of page 5, asked at 2; with `holes` a copy with holes does as well.
        "help" => Message::Group(GroupMessage::Help {
            request: RequestId(number(words[1])),
            domain: DOMAIN,
            pages: list(words[2]),
            asker: neighbour_life(words[0]),
            position: Stamp(number(words[3])),
            holes: words.contains(&"holes"),
        }),
        other => panic!("{other}?"),
    }
}

/// `put 0 apple`, `make`, `delete 0`, `add 0 8`: of first generations.
fn ops(words: &[&str]) -> Vec<Op> {
    let generation = Generation(1);
    let mut words = words.iter();
    let mut ops = Vec::new();
    while let Some(what) = words.next() {
        let mut next = || *words.next().expect("one word more");
        ops.push(match *what {
            "make" => Op::CreatePage(PageKind::Slotted),
            "put" => Op::Put { slot: slot(next()), generation, value: record(next()) },
            "delete" => Op::Delete { slot: slot(next()), generation },
            "add" => {
                let (slot, delta) = (slot(next()), number(next()) as i64);
                Op::Add { slot, generation, offset: 0, delta }
            }
            other => panic!("{other}?"),
        });
    }
    ops
}

fn to_neighbour(output: NeighbourOutput) -> String {
    let name = |link: LinkId| char::from(b'a' + (link.0 - 10) as u8);
    match output {
        NeighbourOutput::Dial(member) => format!("dial {} {}", member.name, member.address),
        NeighbourOutput::Came { pages, took } => format!("{pages} came after {took:?}"),
        NeighbourOutput::Reached(reached) => {
            let names: String = reached.iter().map(|(_, link)| name(*link)).collect();
            format!("reached: {names}")
        }
        NeighbourOutput::Link(LinkOutput::Send {
            link,
            message: Message::Pages { request, pages, .. },
        }) => {
            let answer = |one: &PageAnswer| format!("{} {}..{}", one.page, one.version, one.as_of);
            let pages: Vec<String> = pages.iter().map(answer).collect();
            format!("to {}: Pages r{} [{}]", name(link), request.0, pages.join(", "))
        }
        NeighbourOutput::Link(LinkOutput::Send { link, message }) => {
            format!("to {}: {message:?}", name(link))
        }
        NeighbourOutput::Link(LinkOutput::Close { link, reason }) => {
            format!("close the link to {}: {reason}", name(link))
        }
    }
}

fn held(copy: &PageCopy) -> String {
    let slots = copy.page.as_ref().map_or("absent".into(), |page| {
        let slots = page.records().map(|(slot, _, record)| {
            format!("{}:{}", slot.0, text(&Bytes::copy_from_slice(record)))
        });
        slots.collect::<Vec<_>>().join(" ")
    });
    let holes: Vec<u16> = copy.holes.iter().map(|slot| slot.0).collect();
    format!("{} version {} [{slots}] holes {holes:?}", copy.id, copy.version)
}

fn told<T>(step: Step<T>, tell: impl FnOnce(T) -> String) -> String {
    match step {
        Step::Ready(value) => tell(value),
        Step::Need { pages, .. } => format!("needs {pages:?}"),
        Step::NeedIds { count, .. } => format!("needs {count} page numbers"),
        Step::Wait(Awaited { domain, stamp, .. }) => {
            format!("waits for {stamp} of domain {}", domain.0)
        }
        Step::Doomed(doom) => format!("doomed: {doom}"),
        Step::Refused(error) => format!("refused: {error}"),
    }
}
