//! One of everything that has a format, with every field in use.

use bytes::Bytes;
use larder_core::across::{Between, Ended, OriginMessage, Vote};
use larder_core::commit::*;
use larder_core::group::*;
use larder_core::id::*;
use larder_core::message::*;
use larder_core::page::{Page, Record};
use larder_core::record::*;
use larder_core::rights::*;
use larder_core::time::{Duration, Instant, WallTime};

const VOLUME: VolumeId = VolumeId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
const DOMAIN: DomainId = DomainId(0xd0d1_d2d3_d4d5_d6d7);
const BOOT: BootId = BootId(0xb0b1_b2b3_b4b5_b6b7_b8b9_babb_bcbd_bebf);
const REQUEST: RequestId = RequestId(300);
const TIME: WallTime = WallTime(1_700_000_000_000_000_000);

pub(crate) fn page_id() -> PageId {
    page(9)
}

fn page(number: u64) -> PageId {
    PageId { volume: VOLUME, page: PageNo(number) }
}

fn other_page(number: u64) -> PageId {
    PageId { volume: VolumeId(7), page: PageNo(number) }
}

fn commit_id() -> CommitId {
    CommitId { boot: BOOT, sequence: 12 }
}

fn part() -> PartId {
    PartId { domain: DOMAIN, id: commit_id() }
}

fn other_part() -> PartId {
    PartId { domain: DomainId(5), id: CommitId { boot: BOOT, sequence: 300 } }
}

fn attempt() -> Attempt {
    Attempt { history: epochs()[1].history, number: 77 }
}

fn decided() -> Decided {
    Decided { attempt: attempt(), participants: vec![other_part()] }
}

fn epochs() -> Vec<Epoch> {
    vec![
        Epoch { history: HistoryId(0xaaaa_0000_0000_0000_0000_0000_0000_0001), first: Stamp(1) },
        Epoch { history: HistoryId(0xaaaa_0000_0000_0000_0000_0000_0000_0002), first: Stamp(900) },
    ]
}

fn rights() -> Rights {
    let entries = [("alice".into(), Right::Admin), ("render-*".into(), Right::Read)];
    Rights::new(entries, RIGHTS_MAX).expect("a list")
}

fn denied() -> Box<Denied> {
    let (volume, who) = ("home".into(), "alice".into());
    Box::new(Denied { volume, who, has: Right::Read, needs: Right::Write })
}

fn volume_info() -> VolumeInfo {
    VolumeInfo {
        id: VOLUME,
        domain: DOMAIN,
        name: "home".into(),
        page_bytes: 65_536,
        root: PageKind::Slotted,
        version: Stamp(1000),
        pages: 20,
        bytes: 654_321,
        quota: Some(1 << 30),
        room: Some(5 << 30),
        right: Some(Right::Write),
    }
}

fn writes() -> Vec<Write> {
    let object = (Slot(513), Generation(2));
    let (slot, generation) = object;
    let ops = [
        (page(9), Op::CreatePage(PageKind::Slotted)),
        (
            page(9),
            Op::Put {
                slot,
                generation,
                value: Record::Inline(Bytes::from_static(b"an object")).encode(),
            },
        ),
        (page(9), Op::Add { slot, generation, offset: 1, delta: -5 }),
        (page(9), Op::Max { slot, generation, offset: 0, value: 1 << 40 }),
        (page(9), Op::Delete { slot, generation }),
        (page(3), Op::DeletePage),
        (other_page(1 << 40), Op::CreatePage(PageKind::Raw)),
        (
            other_page(1 << 40),
            Op::WriteRaw { offset: 4096, bytes: Bytes::from_static(b"raw bytes") },
        ),
        (other_page(1 << 40), Op::TruncateRaw { length: 100 }),
        (page(9), Op::RestorePage { image: pages()[1].1.encode(page(9)) }),
    ];
    ops.map(|(page, op)| Write { page, op }).into()
}

fn reads() -> Vec<Read> {
    let slot = |slot| Target::Slot(Slot(slot));
    [
        (other_page(2), Target::Page, Aspect::Value),
        (page(9), Target::Page, Aspect::Existence),
        (page(9), slot(0), Aspect::Existence),
        (page(9), slot(0), Aspect::Value),
        (page(9), slot(65_535), Aspect::Value),
        (page(10), slot(7), Aspect::Existence),
    ]
    .map(|(page, target, aspect)| Read { page, target, aspect })
    .into()
}

fn changes() -> Vec<Change> {
    let slot = |slot| Target::Slot(Slot(slot));
    vec![
        Change {
            stamp: Stamp(1001),
            id: commit_id(),
            pages: vec![
                PageChange::whole(other_page(5)),
                PageChange {
                    page: page(9),
                    touched: vec![(slot(3), Aspect::Existence), (slot(300), Aspect::Value)],
                },
            ],
        },
        Change { stamp: Stamp(1003), id: CommitId { boot: BOOT, sequence: 13 }, pages: Vec::new() },
    ]
}

/// How many kinds of message there are.
pub(crate) const KINDS: usize = 54;

/// A number for each kind, below [`KINDS`]; a new kind must be entered here, and get a sample.
pub(crate) fn kind(message: &Message) -> usize {
    match message {
        Message::Goodbye { .. } => 0,
        Message::Hello { .. } => 1,
        Message::Resume { .. } => 2,
        Message::Fetch { .. } => 3,
        Message::Evicted { .. } => 4,
        Message::Holding { .. } => 5,
        Message::Confirm { .. } => 6,
        Message::AllocateIds { .. } => 7,
        Message::OpenVolume { .. } => 8,
        Message::ListVolumes { .. } => 9,
        Message::CreateVolume { .. } => 10,
        Message::Beat { .. } => 11,
        Message::Credit { .. } => 12,
        Message::Commit { .. } => 13,
        Message::Welcome { .. } => 14,
        Message::Registered { .. } => 15,
        Message::Committed { .. } => 16,
        Message::CommitDeferred { .. } => 17,
        Message::Ids { .. } => 18,
        Message::Volume { .. } => 19,
        Message::Volumes { .. } => 20,
        Message::Failed { .. } => 21,
        Message::Resumed { .. } => 22,
        Message::Advance { .. } => 23,
        Message::History { .. } => 24,
        Message::Pages { .. } => 25,
        Message::Register { .. } => 26,
        Message::Left { .. } => 27,
        Message::Unregistered { .. } => 28,
        Message::KeepAlive => 29,
        Message::Refresh { .. } => 30,
        Message::ChangeVolume { .. } => 31,
        Message::DeleteVolume { .. } => 32,
        Message::VolumeDeleted { .. } => 33,
        Message::AskRights { .. } => 34,
        Message::Rights { .. } => 35,
        Message::For { .. } => 36,
        Message::VolumeRights { .. } => 37,
        Message::CopyPages { .. } => 38,
        Message::Copied { .. } => 39,
        Message::Group(message) => match message {
            GroupMessage::Join { .. } => 40,
            GroupMessage::Reach { .. } => 41,
            GroupMessage::Helped { .. } => 42,
            GroupMessage::Members { .. } => 43,
            GroupMessage::Pointed { .. } => 44,
            GroupMessage::Help { .. } => 45,
            GroupMessage::Peer { .. } => 46,
            GroupMessage::Lacks { .. } => 47,
            GroupMessage::Update { .. } => 48,
            GroupMessage::Complete { .. } => 49,
            GroupMessage::Acknowledged { .. } => 50,
        },
        Message::Origin(message) => match message {
            OriginMessage::Greets { .. } => 51,
            OriginMessage::Serves { .. } => 52,
            OriginMessage::Says { .. } => 53,
        },
    }
}

pub(crate) fn messages() -> Vec<(&'static str, Message)> {
    let mut messages = control_up();
    messages.extend(about_rights());
    messages.extend(control_down());
    messages.extend(endings());
    messages.extend(flow());
    messages.extend(about_neighbours());
    messages.extend(between_origins());
    messages
}

fn between_origins() -> Vec<(&'static str, Message)> {
    let versions = Versions { oldest: 5, newest: 6 };
    let attempt = Attempt { history: epochs()[1].history, number: 300 };
    let (coordinator, part) = (commit_id(), other_part().id);
    let ended = |ended| Between::Ended { coordinator, part, ended };
    let vote = |vote| Between::Vote { attempt, vote };
    let busy = || RequestError::Busy("detail".into());
    let says = vec![
        ("says-await", Between::Await { coordinator, part }),
        ("says-arrived", Between::Arrived { coordinator, part, name: "node-one".into() }),
        ("says-ended-refused", ended(Ended::Refused(Abort::Deleted(VOLUME)))),
        ("says-ended-later", ended(Ended::Later(busy()))),
        ("says-ended-unknown", ended(Ended::Unknown)),
        (
            "says-prepare",
            Between::Prepare { attempt, coordinator: other_part(), part: coordinator },
        ),
        ("says-vote-ready", vote(Vote::Ready)),
        ("says-vote-refused", vote(Vote::Refused(Abort::Lost(page(9))))),
        ("says-vote-absent", vote(Vote::Absent)),
        ("says-vote-later", vote(Vote::Later(busy()))),
        ("says-decide", Between::Decide { attempt }),
        ("says-release", Between::Release { attempt }),
        ("says-ask", Between::Ask { attempt }),
        ("says-followed", Between::Followed { attempt }),
    ];
    let (from, to) = (DOMAIN, DomainId(5));
    let says = says.into_iter().map(|(name, between)| {
        (name, OriginMessage::Says { from, to, through: Stamp(41), between })
    });
    let first = [
        (
            "greets",
            OriginMessage::Greets { versions, name: "origin-one".into(), accept_fork: true },
        ),
        (
            "serves",
            OriginMessage::Serves {
                domains: vec![
                    DomainInfo { domain: DomainId(5), epochs: Vec::new() },
                    DomainInfo { domain: DOMAIN, epochs: epochs() },
                ],
            },
        ),
    ];
    first.into_iter().chain(says).map(|(name, said)| (name, Message::Origin(said))).collect()
}

fn about_neighbours() -> Vec<(&'static str, Message)> {
    let pages = || vec![page(9), page(4), other_page(4)];
    let member = |life: u128| Member {
        life: BootId(life),
        name: format!("member-{life}"),
        address: "[fe80::1]:7430".into(),
    };
    let (request, domain) = (REQUEST, DOMAIN);
    let versions = Versions { oldest: 4, newest: 5 };
    let messages = vec![
        ("join", GroupMessage::Join { address: "10.0.0.7:7430".into() }),
        ("reach", GroupMessage::Reach { members: vec![BOOT, BootId(u128::MAX)] }),
        ("helped", GroupMessage::Helped { request, domain, pages: pages(), end: HelpEnd::NotSent }),
        ("complete", GroupMessage::Complete { domain, pages: pages() }),
        ("acknowledged", GroupMessage::Acknowledged { domain, through: Stamp(1003) }),
        ("members", GroupMessage::Members { members: vec![member(7), member(8)] }),
        (
            "pointed",
            GroupMessage::Pointed { request, domain, pages: pages(), helper: BOOT, holes: false },
        ),
        (
            "pointed-to-holes",
            GroupMessage::Pointed { request, domain, pages: pages(), helper: BOOT, holes: true },
        ),
        (
            "help",
            GroupMessage::Help {
                request,
                domain,
                pages: pages(),
                asker: BOOT,
                position: Stamp(1001),
                holes: false,
            },
        ),
        (
            "help-with-holes",
            GroupMessage::Help {
                request,
                domain,
                pages: pages(),
                asker: BOOT,
                position: Stamp(1001),
                holes: true,
            },
        ),
        ("peer", GroupMessage::Peer { versions, name: "member-7/mount".into(), life: BOOT }),
        (
            "update",
            GroupMessage::Update { domain, id: commit_id(), stamp: Stamp(1002), writes: writes() },
        ),
        ("lacks", GroupMessage::Lacks { request, domain, pages: pages(), why: Lack::NotNow }),
    ];
    messages.into_iter().map(|(name, message)| (name, Message::Group(message))).collect()
}

fn control_up() -> Vec<(&'static str, Message)> {
    vec![
        (
            "hello",
            Message::Hello {
                min_version: 1,
                max_version: 1,
                name: "node-one".into(),
                boot: BOOT,
                role: Role::Relay,
            },
        ),
        (
            "resume",
            Message::Resume {
                request: REQUEST,
                domain: DOMAIN,
                epochs: epochs(),
                through: Some(Stamp(950)),
            },
        ),
        (
            "resume-empty",
            Message::Resume { request: REQUEST, domain: DOMAIN, epochs: Vec::new(), through: None },
        ),
        (
            "register",
            Message::Register {
                domain: DOMAIN,
                boot: BOOT,
                name: "node-one/mount".into(),
                life: BOOT,
                fresh: true,
            },
        ),
        ("left", Message::Left { name: "node-one".into() }),
        (
            "fetch",
            Message::Fetch {
                request: REQUEST,
                domain: DOMAIN,
                pages: vec![
                    PageAsk { page: page(9), have: Some(Stamp(940)) },
                    PageAsk { page: page(1), have: None },
                ],
                prefetch: true,
            },
        ),
        (
            "evicted",
            Message::Evicted { domain: DOMAIN, pages: vec![page(1), page(2), other_page(3)] },
        ),
        ("holding", Message::Holding { domain: DOMAIN, pages: vec![page(5), page(4)], done: true }),
        ("confirm", Message::Confirm { domain: DOMAIN, boot: BOOT, upto: 11, open: Vec::new() }),
        (
            "confirm-open",
            Message::Confirm { domain: DOMAIN, boot: BOOT, upto: 1011, open: vec![11, 12, 700] },
        ),
        ("allocate-ids", Message::AllocateIds { request: REQUEST, volume: VOLUME, count: 256 }),
        (
            "open-volume-name",
            Message::OpenVolume { request: REQUEST, key: VolumeKey::Name("home".into()) },
        ),
        ("open-volume-id", Message::OpenVolume { request: REQUEST, key: VolumeKey::Id(VOLUME) }),
        ("list-volumes", Message::ListVolumes { request: REQUEST, after: "a".into() }),
        (
            "create-volume",
            Message::CreateVolume {
                request: REQUEST,
                spec: VolumeSpec {
                    id: VOLUME,
                    name: "home".into(),
                    page_bytes: 8192,
                    domain: Some(DOMAIN),
                },
            },
        ),
        (
            "change-volume-quota",
            Message::ChangeVolume {
                request: REQUEST,
                volume: VOLUME,
                change: VolumeChange::Quota(Some(10 << 30)),
            },
        ),
        ("delete-volume", Message::DeleteVolume { request: REQUEST, volume: VOLUME }),
        ("copy-pages", Message::CopyPages { request: REQUEST, ask: copy_ask(None) }),
        (
            "copy-pages-on",
            Message::CopyPages { request: REQUEST, ask: copy_ask(Some(copy_cursor())) },
        ),
        ("beat", Message::Beat { domain: DOMAIN, sent: Instant(123_456_789) }),
        ("refresh", Message::Refresh { domain: DOMAIN, sent: Instant(123_456_789) }),
        ("credit", Message::Credit { lane: Lane::Bulk, bytes: 70_000 }),
    ]
}

fn about_rights() -> Vec<(&'static str, Message)> {
    vec![
        (
            "change-volume-rights",
            Message::ChangeVolume {
                request: REQUEST,
                volume: VOLUME,
                change: VolumeChange::Rights {
                    edits: vec![
                        RightsEdit { who: "render-*".into(), right: Some(Right::Read) },
                        RightsEdit { who: "alice".into(), right: None },
                    ],
                    force: true,
                },
            },
        ),
        ("ask-rights", Message::AskRights { request: REQUEST, volume: VOLUME }),
        (
            "for",
            Message::For {
                name: "alice/mount".into(),
                message: Box::new(Message::OpenVolume {
                    request: REQUEST,
                    key: VolumeKey::Name("home".into()),
                }),
            },
        ),
    ]
}

fn control_down() -> Vec<(&'static str, Message)> {
    vec![
        (
            "welcome",
            Message::Welcome {
                version: 1,
                name: "origin".into(),
                time: TIME,
                limits: LinkLimits {
                    requests_max: 1024,
                    stream_window_bytes: 1 << 20,
                    bulk_window_bytes: 4 << 20,
                    lease: Duration::from_secs(10),
                },
                domains: vec![DomainInfo { domain: DOMAIN, epochs: epochs() }],
            },
        ),
        ("registered", Message::Registered { domain: DOMAIN, boot: BOOT }),
        ("keep_alive", Message::KeepAlive),
        ("unregistered", Message::Unregistered { domain: DOMAIN, boot: BOOT, why: NoBoot::Taken }),
        (
            "ids",
            Message::Ids {
                request: REQUEST,
                history: epochs()[1].history,
                range: IdRange { volume: VOLUME, first: PageNo(1000), count: 256 },
            },
        ),
        ("volume", Message::Volume { request: REQUEST, info: volume_info() }),
        ("volume-deleted", Message::VolumeDeleted { request: REQUEST, volume: VOLUME }),
        (
            "volumes",
            Message::Volumes {
                request: REQUEST,
                volumes: vec![
                    volume_info(),
                    VolumeInfo { name: "raw".into(), root: PageKind::Raw, ..volume_info() },
                ],
                more: true,
            },
        ),
        (
            "rights",
            Message::Rights {
                request: REQUEST,
                rights: rights(),
                access: Access { default: Right::None, admins: vec!["ops".into()] },
            },
        ),
    ]
}

/// Every reason, outcome and error.
fn endings() -> Vec<(&'static str, Message)> {
    let goodbye = |reason| Message::Goodbye { reason };
    let failed = |error| Message::Failed { request: REQUEST, pages: Vec::new(), error };
    let page_failed =
        Message::Failed { request: REQUEST, pages: vec![page(9)], error: RequestError::TimedOut };
    let history = epochs()[1].history;
    let committed =
        |outcome| Message::Committed { domain: DOMAIN, id: commit_id(), outcome, history };
    let aborted = |abort| committed(Outcome::Aborted(abort));
    let detail = || "detail".to_owned();
    vec![
        (
            "goodbye-version",
            goodbye(CloseReason::Version {
                parent: Versions { oldest: 2, newest: 3 },
                child: Versions { oldest: 4, newest: 5 },
            }),
        ),
        ("goodbye-protocol", goodbye(CloseReason::Protocol(detail()))),
        ("goodbye-malformed", goodbye(CloseReason::Malformed(detail()))),
        ("goodbye-limit", goodbye(CloseReason::Limit(detail()))),
        ("goodbye-silent", goodbye(CloseReason::Silent)),
        ("goodbye-identity", goodbye(CloseReason::Identity(detail()))),
        (
            "goodbye-forked",
            goodbye(CloseReason::Forked { domain: DOMAIN, seen: Stamp(95), fork: Stamp(80) }),
        ),
        ("goodbye-out-of-service", goodbye(CloseReason::OutOfService(detail()))),
        ("goodbye-shutdown", goodbye(CloseReason::Shutdown)),
        ("goodbye-forbidden", goodbye(CloseReason::Forbidden(detail()))),
        ("failed-no-volume", failed(RequestError::NoVolume(detail()))),
        ("failed-no-domain", failed(RequestError::NoDomain(DOMAIN))),
        ("failed-exists", failed(RequestError::Exists(detail()))),
        ("failed-invalid", failed(RequestError::Invalid(detail()))),
        ("failed-damaged", failed(RequestError::Damaged { page: page(9), detail: detail() })),
        ("failed-unavailable", failed(RequestError::Unavailable(detail()))),
        ("failed-timed-out", failed(RequestError::TimedOut)),
        ("failed-busy", failed(RequestError::Busy(detail()))),
        ("failed-forbidden", failed(RequestError::Forbidden(detail()))),
        ("failed-deleted", failed(RequestError::Deleted("home".into()))),
        ("failed-full", failed(RequestError::Full(detail()))),
        (
            "commit-deferred",
            Message::CommitDeferred {
                domain: DOMAIN,
                id: commit_id(),
                error: RequestError::Busy(detail()),
                passed: true,
            },
        ),
        (
            "commit-turned-away",
            Message::CommitDeferred {
                domain: DOMAIN,
                id: commit_id(),
                error: RequestError::Unavailable(detail()),
                passed: false,
            },
        ),
        ("committed", committed(Outcome::Committed(Stamp(1001)))),
        ("committed-unknown", committed(Outcome::Unknown)),
        ("aborted-conflict-page", aborted(Abort::Conflict(reads()[0]))),
        ("aborted-conflict-slot", aborted(Abort::Conflict(reads()[2]))),
        (
            "aborted-gone",
            aborted(Abort::Gone { page: page(9), slot: Slot(0), generation: Generation(4) }),
        ),
        ("failed-page", page_failed),
        ("aborted-stale-number", aborted(Abort::StaleNumber(page(9)))),
        ("aborted-lost", aborted(Abort::Lost(page(9)))),
        ("aborted-bad-page", aborted(Abort::BadPage(page(9)))),
        ("aborted-page-full", aborted(Abort::PageFull(page(9)))),
        ("aborted-bad-write", aborted(Abort::BadWrite(page(9)))),
        ("aborted-no-volume", aborted(Abort::NoVolume(VOLUME))),
        ("aborted-deleted", aborted(Abort::Deleted(VOLUME))),
        (
            "aborted-quota",
            aborted(Abort::Quota {
                volume: VOLUME,
                name: "home".into(),
                limit: 1 << 30,
                used: 1_073_741_000,
                more: 4096,
            }),
        ),
        ("aborted-denied", aborted(Abort::Denied(denied()))),
        ("aborted-history", aborted(Abort::History)),
        ("aborted-too-large", aborted(Abort::TooLarge("writes"))),
    ]
}

/// Stream and bulk.
fn flow() -> Vec<(&'static str, Message)> {
    let resumed = |answer| Message::Resumed {
        request: REQUEST,
        domain: DOMAIN,
        epochs: epochs(),
        answer,
        stale: vec![page(9), page(300)],
        through: Stamp(1000),
        time: TIME,
        done: true,
    };
    let advance = |by_clock| Message::Advance {
        domain: DOMAIN,
        from: Stamp(1000),
        through: Stamp(1003),
        time: TIME,
        changes: changes(),
        stale: vec![page(400)],
        echo: Some(Echo { sent: Instant(123_456_789), age: Duration::from_millis(7), by_clock }),
    };
    vec![
        ("resumed-from", resumed(ResumeAnswer::From(Stamp(0)))),
        ("resumed-reset", resumed(ResumeAnswer::Reset)),
        ("advance", advance(false)),
        ("advance-by-clock", advance(true)),
        ("history", Message::History { domain: DOMAIN, epochs: epochs() }),
        (
            "commit",
            Message::Commit {
                domain: DOMAIN,
                commit: CommitRequest {
                    id: commit_id(),
                    confirmed: 11,
                    history: epochs()[1].history,
                    base: Stamp(1000),
                    numbers: vec![
                        Numbered { history: epochs()[0].history, pages: 1 },
                        Numbered { history: HistoryId::default(), pages: 300 },
                    ],
                    reads: reads(),
                    writes: writes(),
                    across: None,
                },
            },
        ),
        (
            "commit-part",
            Message::Commit {
                domain: DOMAIN,
                commit: CommitRequest {
                    id: commit_id(),
                    confirmed: 11,
                    history: epochs()[1].history,
                    base: Stamp(1000),
                    numbers: Vec::new(),
                    reads: reads(),
                    writes: writes(),
                    across: Across::new(vec![other_part(), part()], DOMAIN).map(Box::new),
                },
            },
        ),
        (
            "volume-rights",
            Message::VolumeRights {
                domain: DOMAIN,
                volume: VOLUME,
                rights: Access::default().effective(&rights()),
            },
        ),
        (
            "pages-with-holes",
            Message::Pages {
                request: REQUEST,
                domain: DOMAIN,
                pages: vec![answer(
                    9,
                    PageBody::Holed(pages()[1].1.encode(page(9)), vec![Slot(0), Slot(1), Slot(9)]),
                )],
            },
        ),
        (
            "pages",
            Message::Pages {
                request: REQUEST,
                domain: DOMAIN,
                pages: vec![
                    answer(9, PageBody::Data(pages()[1].1.encode(page(9)))),
                    answer(10, PageBody::Valid),
                    answer(8, PageBody::Absent),
                ],
            },
        ),
        ("copied", copied(Some(copy_cursor()))),
        ("copied-last", copied(None)),
    ]
}

fn copy_cursor() -> CopyCursor {
    CopyCursor { until: Stamp(1000), part: CopyPart::Index, stamp: Stamp(940), page: page(9) }
}

fn copy_ask(cursor: Option<CopyCursor>) -> CopyAsk {
    CopyAsk {
        volume: VOLUME,
        history: epochs()[1].history,
        since: Stamp(930),
        cursor,
        pin: cursor.map(|_| PinId(0x0102)),
    }
}

fn copied(cursor: Option<CopyCursor>) -> Message {
    let data = PageBody::Data(pages()[1].1.encode(page(9)));
    let answer = CopyAnswer {
        history: epochs()[1].history,
        through: Stamp(1000),
        next_page: PageNo(1256),
        pages: vec![answer(9, data), answer(8, PageBody::Absent)],
        part: if cursor.is_some() { CopyPart::Recent } else { CopyPart::Kept },
        cursor,
    };
    Message::Copied { request: REQUEST, answer }
}

fn answer(number: u64, body: PageBody) -> PageAnswer {
    PageAnswer { page: page(number), version: Stamp(940), as_of: Stamp(1000), body }
}

/// A message of two fragments.
pub(crate) fn long_pages() -> Message {
    Message::Pages {
        request: REQUEST,
        domain: DOMAIN,
        pages: vec![answer(9, PageBody::Data(Bytes::from(vec![0x5a; 17_000])))],
    }
}

pub(crate) fn records() -> Vec<(&'static str, LogRecord)> {
    vec![
        (
            "commit",
            LogRecord::Commit {
                stamp: Stamp(1001),
                id: commit_id(),
                time: TIME,
                grown: vec![4096, -64],
                writes: writes(),
                decided: None,
            },
        ),
        (
            "commit-decided",
            LogRecord::Commit {
                stamp: Stamp(1001),
                id: commit_id(),
                time: TIME,
                grown: vec![4096, -64],
                writes: writes(),
                decided: Some(Box::new(decided())),
            },
        ),
        (
            "prepared",
            LogRecord::Prepared {
                attempt: attempt(),
                coordinator: part(),
                id: other_part().id,
                grown: vec![4096, -64],
                reads: reads(),
                writes: writes(),
            },
        ),
        ("released", LogRecord::Released { attempt: attempt() }),
        ("boot", LogRecord::Boot { boot: BOOT, name: "node-one".into() }),
        ("confirmed", LogRecord::Confirmed { boot: BOOT, upto: u64::MAX }),
        ("aborted", LogRecord::Aborted { id: commit_id(), abort: Abort::PageFull(page_id()) }),
        ("ids", LogRecord::Ids { volume: VOLUME, next: PageNo(1256) }),
        ("volume", LogRecord::Volume { stamp: Stamp(1002), volume: volume_meta() }),
        (
            "settings",
            LogRecord::Settings {
                volume: VOLUME,
                settings: VolumeSettings { quota: Some(1 << 30), rights: rights() },
            },
        ),
        ("deleted", LogRecord::Deleted { stamp: Stamp(1003), volume: VOLUME }),
        ("epoch", LogRecord::Epoch { epoch: epochs()[1] }),
    ]
}

fn volume_meta() -> VolumeMeta {
    VolumeMeta {
        id: VOLUME,
        name: "home".into(),
        page_bytes: 65_536,
        next_page: PageNo(1256),
        version: Stamp(1000),
        pages: 20,
        bytes: 654_321,
        settings: VolumeSettings { quota: Some(1 << 30), rights: rights() },
        given: vec![
            Given { history: epochs()[0].history, first: PageNo(2) },
            Given { history: epochs()[1].history, first: PageNo(1000) },
        ],
    }
}

pub(crate) fn meta() -> DomainMeta {
    DomainMeta {
        domain: DOMAIN,
        installed_lsn: Lsn(5000),
        installed: Stamp(1000),
        epochs: epochs(),
        volumes: vec![volume_meta()],
        deleted: vec![
            DeletedVolume {
                id: VolumeId(7),
                name: "scratch".into(),
                page_bytes: 4096,
                stamp: Stamp(990),
                left: Some(12_345),
            },
            DeletedVolume {
                id: VolumeId(8),
                name: "old".into(),
                page_bytes: 65_536,
                stamp: Stamp(20),
                left: None,
            },
        ],
        boots: vec![BootMeta {
            boot: BOOT,
            name: "node-one".into(),
            confirmed: 10,
            open: vec![4, 9],
            committed: vec![(9, Stamp(990)), (11, Stamp(998)), (12, Stamp(1001))],
            aborted: vec![(13, Abort::BadPage(page_id()))],
        }],
        decided: vec![decided()],
    }
}

pub(crate) fn apart() -> Apart {
    let changes = |stamp| writes().into_iter().map(move |write| (Stamp(stamp), write.op));
    Apart { page: page_id(), changes: changes(1001).chain(changes(1003)).collect() }
}

pub(crate) fn pages() -> Vec<(&'static str, Page)> {
    let apply = |kind, ops: &[Op]| {
        let mut page = Page::empty(kind);
        for op in ops {
            page.apply(op, 4096).expect("the samples' ops apply");
        }
        page
    };
    let put = |slot, generation, record: Record| Op::Put {
        slot: Slot(slot),
        generation: Generation(generation),
        value: record.encode(),
    };
    let inline = |text: &'static str| Record::Inline(Bytes::from_static(text.as_bytes()));
    let delete =
        |slot, generation| Op::Delete { slot: Slot(slot), generation: Generation(generation) };
    let forward =
        Record::Forward(ObjectId { page: page(77), slot: Slot(5), generation: Generation(6) });
    let large = Record::Large { length: 100_000, first: PageNo(1000), count: 25 };
    let slotted = [
        put(40_000, 1, inline("the last slot comes first")),
        put(2, 1, inline("two")),
        put(7, 1, forward),
        put(8, 1, large),
        put(3, 1, inline("to be deleted")),
        delete(3, 1),
        put(4, 1, inline("")),
    ];
    let raw = [Op::WriteRaw { offset: 3, bytes: Bytes::from_static(b"raw bytes") }];
    vec![
        ("slotted-empty", Page::empty(PageKind::Slotted)),
        ("slotted", apply(PageKind::Slotted, &slotted)),
        ("slotted-floor", forgetful_page()),
        ("raw-empty", Page::empty(PageKind::Raw)),
        ("raw", apply(PageKind::Raw, &raw)),
    ]
}

/// A commit whose ops apply to some sample page each.
pub(crate) fn page_ops() -> LogRecord {
    let mut writes = writes();
    let object = |slot, text: &'static str| Op::Put {
        slot: Slot(slot),
        generation: Generation(1),
        value: Record::Inline(Bytes::from_static(text.as_bytes())).encode(),
    };
    let delete = Op::Delete { slot: Slot(0), generation: Generation(1) };
    for op in [object(0, "new"), object(1, "next"), delete, object(2, "longer than two")] {
        writes.push(Write { page: page(9), op });
    }
    let (stamp, grown) = (Stamp(1), vec![0]);
    LogRecord::Commit { stamp, id: commit_id(), time: TIME, grown, writes, decided: None }
}

/// A page that has seen so many objects come and go that it raised its generation floor.
fn forgetful_page() -> Page {
    let mut page = Page::empty(PageKind::Slotted);
    for slot in (0..50).map(Slot) {
        let generation = page.next_generation(slot).expect("the slot is empty");
        let value = Record::Inline(Bytes::from_static(b"short-lived")).encode();
        for op in [Op::Put { slot, generation, value }, Op::Delete { slot, generation }] {
            page.apply(&op, 4096).expect("the page has room");
        }
    }
    page
}
