//! Strategies for every message, record and metadata.

use crate::across::{Between, Ended, OriginMessage, Vote};
use crate::commit::*;
use crate::group::*;
use crate::id::*;
use crate::message::*;
use crate::record::*;
use crate::rights::*;
use crate::time::{Duration, Instant, WallTime};
use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn stamp() -> impl Strategy<Value = Stamp> {
    prop_oneof![0..1000u64, 0..Stamp::LIMIT].prop_map(Stamp)
}

fn volume() -> impl Strategy<Value = VolumeId> {
    prop_oneof![4 => 0..4u128, 1 => any::<u128>()].prop_map(VolumeId)
}

fn page() -> impl Strategy<Value = PageId> {
    let number = prop_oneof![4 => 1..100u64, 1 => 1..PageNo::LIMIT].prop_map(PageNo);
    (volume(), number).prop_map(|(volume, page)| PageId { volume, page })
}

fn domain() -> impl Strategy<Value = DomainId> {
    any::<u64>().prop_map(DomainId)
}

fn boot() -> impl Strategy<Value = BootId> {
    any::<u128>().prop_map(BootId)
}

fn request() -> impl Strategy<Value = RequestId> {
    any::<u64>().prop_map(RequestId)
}

fn commit_id() -> impl Strategy<Value = CommitId> {
    let boot = prop_oneof![(0..3u128).prop_map(BootId), boot()];
    (boot, any::<u64>()).prop_map(|(boot, sequence)| CommitId { boot, sequence })
}

fn epoch() -> impl Strategy<Value = Epoch> {
    (any::<u128>(), stamp())
        .prop_map(|(history, first)| Epoch { history: HistoryId(history), first })
}

fn epochs() -> impl Strategy<Value = Vec<Epoch>> {
    vec(epoch(), 0..4)
}

fn pages() -> impl Strategy<Value = Vec<PageId>> {
    vec(page(), 0..20)
}

fn text() -> impl Strategy<Value = String> {
    "[a-z\u{e9} ]{0,20}"
}

fn target() -> impl Strategy<Value = Target> {
    prop_oneof![Just(Target::Page), any::<u16>().prop_map(|slot| Target::Slot(Slot(slot))),]
}

fn named() -> impl Strategy<Value = (Target, Aspect)> {
    let aspect = prop_oneof![Just(Aspect::Existence), Just(Aspect::Value)];
    (target(), aspect)
}

fn read() -> impl Strategy<Value = Read> {
    (page(), named()).prop_map(|(page, (target, aspect))| Read { page, target, aspect })
}

fn payload() -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..300).prop_map(Bytes::from)
}

fn op() -> impl Strategy<Value = Op> {
    let object = (any::<u16>(), any::<u32>()).prop_map(|(s, g)| (Slot(s), Generation(g)));
    let number = (object.clone(), any::<u32>());
    prop_oneof![
        payload().prop_map(|image| Op::RestorePage { image }),
        Just(Op::CreatePage(PageKind::Slotted)),
        Just(Op::CreatePage(PageKind::Raw)),
        Just(Op::DeletePage),
        (object.clone(), payload()).prop_map(|((slot, generation), value)| Op::Put {
            slot,
            generation,
            value
        }),
        object.prop_map(|(slot, generation)| Op::Delete { slot, generation }),
        (number.clone(), any::<i64>()).prop_map(|(((slot, generation), offset), delta)| {
            Op::Add { slot, generation, offset, delta }
        }),
        (number, any::<u64>()).prop_map(|(((slot, generation), offset), value)| Op::Max {
            slot,
            generation,
            offset,
            value
        }),
        (any::<u32>(), payload()).prop_map(|(offset, bytes)| Op::WriteRaw { offset, bytes }),
        any::<u32>().prop_map(|length| Op::TruncateRaw { length }),
    ]
}

fn writes() -> impl Strategy<Value = Vec<Write>> {
    vec((page(), op()).prop_map(|(page, op)| Write { page, op }), 0..20)
}

fn commit() -> impl Strategy<Value = CommitRequest> {
    let reads = prop::collection::btree_set(read(), 0..40);
    let numbered = (any::<u128>(), 1..1000u32)
        .prop_map(|(history, pages)| Numbered { history: HistoryId(history), pages });
    let numbers = vec(numbered, 0..4);
    let head = (commit_id(), any::<u64>(), any::<u128>(), stamp(), numbers);
    let lists = (reads, writes());
    (head, lists).prop_map(|((id, confirmed, history, base, numbers), (reads, writes))| {
        CommitRequest {
            id,
            confirmed,
            history: HistoryId(history),
            base,
            numbers,
            reads: reads.into_iter().collect(),
            writes,
            across: None,
        }
    })
}

/// Of which a commit of a domain may be one.
fn parts() -> impl Strategy<Value = Vec<PartId>> {
    prop::collection::btree_map(domain(), commit_id(), 1..PARTS_MAX)
        .prop_map(|parts| parts.into_iter().map(|(domain, id)| PartId { domain, id }).collect())
}

/// A part of a transaction over several domains.
fn part() -> impl Strategy<Value = Message> {
    (domain(), commit(), parts(), any::<prop::sample::Index>()).prop_map(
        |(domain, mut commit, mut parts, coordinator)| {
            let own = PartId { domain, id: commit.id };
            parts.retain(|part| part.domain != domain);
            parts.push(own);
            parts.sort_unstable();
            let coordinator = parts[coordinator.index(parts.len())].domain;
            commit.across = Across::new(parts, coordinator).map(Box::new);
            Message::Commit { domain, commit }
        },
    )
}

fn attempt() -> impl Strategy<Value = Attempt> {
    (any::<u128>(), any::<u64>())
        .prop_map(|(history, number)| Attempt { history: HistoryId(history), number })
}

fn decided() -> impl Strategy<Value = Decided> {
    (attempt(), parts()).prop_map(|(attempt, participants)| Decided { attempt, participants })
}

fn prepared() -> impl Strategy<Value = LogRecord> {
    let reads = prop::collection::btree_set(read(), 0..40);
    let part = (domain(), commit_id()).prop_map(|(domain, id)| PartId { domain, id });
    (attempt(), part, commit_id(), any::<Vec<i64>>(), reads, writes()).prop_map(
        |(attempt, coordinator, id, grown, reads, writes)| {
            let reads = reads.into_iter().collect();
            LogRecord::Prepared { attempt, coordinator, id, grown, reads, writes }
        },
    )
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let touched = prop::collection::btree_set(named(), 1..5);
    let pages = prop::collection::btree_map(page(), touched, 0..6);
    let change = (commit_id(), pages);
    let stamps = prop_oneof![1..1000u64, 1..Stamp::LIMIT];
    prop::collection::btree_map(stamps, change, 0..8).prop_map(|changes| {
        let page_change = |(page, touched): (PageId, std::collections::BTreeSet<_>)| PageChange {
            page,
            touched: touched.into_iter().collect(),
        };
        changes
            .into_iter()
            .map(|(stamp, (id, pages))| Change {
                stamp: Stamp(stamp),
                id,
                pages: pages.into_iter().map(page_change).collect(),
            })
            .collect()
    })
}

fn versions() -> impl Strategy<Value = Versions> {
    any::<(u32, u32)>().prop_map(|(oldest, newest)| Versions { oldest, newest })
}

fn reason() -> impl Strategy<Value = CloseReason> {
    prop_oneof![
        (versions(), versions()).prop_map(|(parent, child)| CloseReason::Version { parent, child }),
        text().prop_map(CloseReason::Protocol),
        text().prop_map(CloseReason::Malformed),
        text().prop_map(CloseReason::Limit),
        Just(CloseReason::Silent),
        text().prop_map(CloseReason::Identity),
        (domain(), stamp(), stamp()).prop_map(|(domain, seen, fork)| CloseReason::Forked {
            domain,
            seen,
            fork
        }),
        text().prop_map(CloseReason::OutOfService),
        Just(CloseReason::Shutdown),
        text().prop_map(CloseReason::Forbidden),
    ]
}

fn error() -> impl Strategy<Value = RequestError> {
    prop_oneof![
        text().prop_map(RequestError::NoVolume),
        domain().prop_map(RequestError::NoDomain),
        text().prop_map(RequestError::Exists),
        text().prop_map(RequestError::Invalid),
        (page(), text()).prop_map(|(page, detail)| RequestError::Damaged { page, detail }),
        text().prop_map(RequestError::Unavailable),
        Just(RequestError::TimedOut),
        text().prop_map(RequestError::Busy),
        text().prop_map(RequestError::Forbidden),
        text().prop_map(RequestError::Full),
        text().prop_map(RequestError::Deleted),
        denied().prop_map(RequestError::Denied),
    ]
}

fn abort() -> impl Strategy<Value = Abort> {
    let gone = (page(), any::<u16>(), any::<u32>()).prop_map(|(page, slot, generation)| {
        Abort::Gone { page, slot: Slot(slot), generation: Generation(generation) }
    });
    prop_oneof![
        read().prop_map(Abort::Conflict),
        gone,
        page().prop_map(Abort::BadPage),
        page().prop_map(Abort::PageFull),
        page().prop_map(Abort::StaleNumber),
        page().prop_map(Abort::Lost),
        page().prop_map(Abort::BadWrite),
        volume().prop_map(Abort::NoVolume),
        volume().prop_map(Abort::Deleted),
        (volume(), text(), any::<[u64; 3]>()).prop_map(|(volume, name, [limit, used, more])| {
            Abort::Quota { volume, name, limit, used, more }
        }),
        denied().prop_map(Abort::Denied),
        Just(Abort::History),
        prop::sample::select(&LIMIT_NAMES[..]).prop_map(Abort::TooLarge),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![
        stamp().prop_map(Outcome::Committed),
        abort().prop_map(Outcome::Aborted),
        Just(Outcome::Unknown),
    ]
}

fn page_bytes() -> impl Strategy<Value = u32> {
    (12..=20u32).prop_map(|bits| 1 << bits)
}

fn info() -> impl Strategy<Value = VolumeInfo> {
    let root = prop_oneof![Just(PageKind::Slotted), Just(PageKind::Raw)];
    let names = (volume(), domain(), text());
    let taken = any::<(u64, u64, Option<u64>, Option<u64>)>();
    let right = prop::option::of(right());
    (names, page_bytes(), root, stamp(), (taken, right)).prop_map(
        |((id, domain, name), page_bytes, root, version, ((pages, bytes, quota, room), right))| {
            VolumeInfo {
                id,
                domain,
                name,
                page_bytes,
                root,
                version,
                pages,
                bytes,
                quota,
                room,
                right,
            }
        },
    )
}

fn answer() -> impl Strategy<Value = PageAnswer> {
    let body = prop_oneof![
        Just(PageBody::Valid),
        payload().prop_map(PageBody::Data),
        Just(PageBody::Absent),
        (payload(), proptest::collection::btree_set(any::<u16>().prop_map(Slot), 1..6))
            .prop_map(|(image, holes)| PageBody::Holed(image, holes.into_iter().collect())),
    ];
    (page(), stamp(), stamp(), body).prop_map(|(page, version, as_of, body)| PageAnswer {
        page,
        version,
        as_of,
        body,
    })
}

fn upward() -> impl Strategy<Value = Message> {
    let role = prop_oneof![Just(Role::Node), Just(Role::Relay)];
    let ask = (page(), prop::option::of(stamp())).prop_map(|(page, have)| PageAsk { page, have });
    let lane = prop_oneof![Just(Lane::Stream), Just(Lane::Bulk)];
    prop_oneof![
        (any::<(u32, u32)>(), text(), boot(), role).prop_map(|((min, max), name, boot, role)| {
            Message::Hello { min_version: min, max_version: max, name, boot, role }
        }),
        (request(), domain(), epochs(), prop::option::of(stamp())).prop_map(
            |(request, domain, epochs, through)| Message::Resume {
                request,
                domain,
                epochs,
                through,
            }
        ),
        (domain(), boot(), text(), boot(), any::<bool>()).prop_map(
            |(domain, boot, name, life, fresh)| Message::Register {
                domain,
                boot,
                name,
                life,
                fresh,
            }
        ),
        text().prop_map(|name| Message::Left { name }),
        (request(), domain(), vec(ask, 0..20), any::<bool>()).prop_map(
            |(request, domain, pages, prefetch)| Message::Fetch {
                request,
                domain,
                pages,
                prefetch,
            }
        ),
        (domain(), pages()).prop_map(|(domain, pages)| Message::Evicted { domain, pages }),
        (domain(), pages(), any::<bool>()).prop_map(|(domain, pages, done)| Message::Holding {
            domain,
            pages,
            done
        }),
        (domain(), boot(), any::<u64>(), open()).prop_map(|(domain, boot, upto, open)| {
            let open = open.into_iter().filter(|sequence| *sequence <= upto).collect();
            Message::Confirm { domain, boot, upto, open }
        }),
        (domain(), any::<u64>())
            .prop_map(|(domain, sent)| Message::Beat { domain, sent: Instant(sent) }),
        (domain(), any::<u64>())
            .prop_map(|(domain, sent)| Message::Refresh { domain, sent: Instant(sent) }),
        (lane, any::<u32>()).prop_map(|(lane, bytes)| Message::Credit { lane, bytes }),
        (domain(), commit()).prop_map(|(domain, commit)| Message::Commit { domain, commit }),
        part(),
    ]
}

fn about_volumes() -> impl Strategy<Value = Message> {
    let key = prop_oneof![text().prop_map(VolumeKey::Name), volume().prop_map(VolumeKey::Id),];
    let spec = (volume(), text(), any::<u32>(), prop::option::of(domain()))
        .prop_map(|(id, name, page_bytes, domain)| VolumeSpec { id, name, page_bytes, domain });
    let range = (page(), 0..1000u64).prop_map(|(first, count)| IdRange {
        volume: first.volume,
        first: PageNo(first.page.0.min(PageNo::LIMIT - 1000)),
        count,
    });
    prop_oneof![
        (request(), volume(), any::<u64>()).prop_map(|(request, volume, count)| {
            Message::AllocateIds { request, volume, count }
        }),
        (request(), key).prop_map(|(request, key)| Message::OpenVolume { request, key }),
        (request(), text()).prop_map(|(request, after)| Message::ListVolumes { request, after }),
        (request(), spec).prop_map(|(request, spec)| Message::CreateVolume { request, spec }),
        (request(), volume(), any::<Option<u64>>()).prop_map(|(request, volume, quota)| {
            Message::ChangeVolume { request, volume, change: VolumeChange::Quota(quota) }
        }),
        (request(), volume())
            .prop_map(|(request, volume)| Message::DeleteVolume { request, volume }),
        (request(), volume())
            .prop_map(|(request, volume)| Message::VolumeDeleted { request, volume }),
        (request(), any::<u128>(), range).prop_map(|(request, history, range)| {
            Message::Ids { request, history: HistoryId(history), range }
        }),
        (request(), info()).prop_map(|(request, info)| Message::Volume { request, info }),
        (request(), vec(info(), 0..4), any::<bool>())
            .prop_map(|(request, volumes, more)| { Message::Volumes { request, volumes, more } }),
        (request(), vec(page(), 0..4), error())
            .prop_map(|(request, pages, error)| Message::Failed { request, pages, error }),
    ]
}

fn about_copies() -> impl Strategy<Value = Message> {
    let part = || prop_oneof![Just(CopyPart::Recent), Just(CopyPart::Index), Just(CopyPart::Kept)];
    let cursor = move || {
        (stamp(), part(), stamp(), page()).prop_map(|(until, part, stamp, page)| CopyCursor {
            until,
            part,
            stamp,
            page,
        })
    };
    let ask = (volume(), any::<u128>(), stamp(), prop::option::of(cursor()), any::<Option<u128>>())
        .prop_map(|(volume, history, since, cursor, pin)| CopyAsk {
            volume,
            history: HistoryId(history),
            since,
            cursor,
            pin: pin.map(PinId),
        });
    let body = prop_oneof![payload().prop_map(PageBody::Data), Just(PageBody::Absent)];
    let answer = (page(), stamp(), stamp(), body)
        .prop_map(|(page, version, as_of, body)| PageAnswer { page, version, as_of, body });
    let copied =
        (any::<u128>(), stamp(), page(), vec(answer, 0..6), part(), prop::option::of(cursor()))
            .prop_map(|(history, through, next, pages, part, cursor)| CopyAnswer {
                history: HistoryId(history),
                through,
                next_page: next.page,
                pages,
                part,
                cursor,
            });
    prop_oneof![
        (request(), ask).prop_map(|(request, ask)| Message::CopyPages { request, ask }),
        (request(), copied).prop_map(|(request, answer)| Message::Copied { request, answer }),
    ]
}

fn welcome() -> impl Strategy<Value = Message> {
    let info = (domain(), epochs()).prop_map(|(domain, epochs)| DomainInfo { domain, epochs });
    (any::<(u32, u64)>(), text(), any::<(u32, u32, u32, u64)>(), vec(info, 0..4)).prop_map(
        |((version, time), name, limits, domains)| Message::Welcome {
            version,
            name,
            time: WallTime(time),
            limits: LinkLimits {
                requests_max: limits.0,
                stream_window_bytes: limits.1,
                bulk_window_bytes: limits.2,
                lease: Duration::from_nanos(limits.3),
            },
            domains,
        },
    )
}

fn stream() -> impl Strategy<Value = Message> {
    let answer = prop_oneof![stamp().prop_map(ResumeAnswer::From), Just(ResumeAnswer::Reset),];
    let echo = any::<(u64, u64, bool)>().prop_map(|(sent, age, by_clock)| Echo {
        sent: Instant(sent),
        age: Duration::from_nanos(age),
        by_clock,
    });
    prop_oneof![
        ((request(), domain(), epochs()), answer, pages(), (stamp(), any::<u64>(), any::<bool>()))
            .prop_map(|((request, domain, epochs), answer, stale, (through, time, done))| {
                Message::Resumed {
                    request,
                    domain,
                    epochs,
                    answer,
                    stale,
                    through,
                    time: WallTime(time),
                    done,
                }
            }),
        ((domain(), stamp(), stamp(), any::<u64>()), changes(), pages(), prop::option::of(echo))
            .prop_map(|((domain, from, through, time), changes, stale, echo)| {
                Message::Advance {
                    domain,
                    from,
                    through,
                    time: WallTime(time),
                    changes,
                    stale,
                    echo,
                }
            }),
        (domain(), epochs()).prop_map(|(domain, epochs)| Message::History { domain, epochs }),
    ]
}

fn between_origins() -> impl Strategy<Value = Message> {
    let versions = any::<(u32, u32)>().prop_map(|(oldest, newest)| Versions { oldest, newest });
    let domains = prop::collection::btree_map(domain(), epochs(), 0..6);
    let says = (domain(), domain(), stamp(), between());
    let message = prop_oneof![
        1 => (versions, text(), any::<bool>()).prop_map(|(versions, name, accept_fork)| {
            OriginMessage::Greets { versions, name, accept_fork }
        }),
        1 => domains.prop_map(|domains| {
            let info = |(domain, epochs)| DomainInfo { domain, epochs };
            OriginMessage::Serves { domains: domains.into_iter().map(info).collect() }
        }),
        4 => says.prop_map(|(from, to, through, between)| OriginMessage::Says { from, to, through, between }),
    ];
    message.prop_map(Message::Origin)
}

fn between() -> impl Strategy<Value = Between> {
    let ended = prop_oneof![
        abort().prop_map(Ended::Refused),
        error().prop_map(Ended::Later),
        Just(Ended::Unknown)
    ];
    let vote = prop_oneof![
        Just(Vote::Ready),
        abort().prop_map(Vote::Refused),
        Just(Vote::Absent),
        error().prop_map(Vote::Later)
    ];
    let both = || (commit_id(), commit_id());
    prop_oneof![
        both().prop_map(|(coordinator, part)| Between::Await { coordinator, part }),
        (both(), text()).prop_map(|((coordinator, part), name)| Between::Arrived {
            coordinator,
            part,
            name
        }),
        (both(), ended).prop_map(|((coordinator, part), ended)| Between::Ended {
            coordinator,
            part,
            ended
        }),
        (attempt(), domain(), both()).prop_map(|(attempt, domain, (id, part))| Between::Prepare {
            attempt,
            coordinator: PartId { domain, id },
            part
        }),
        (attempt(), vote).prop_map(|(attempt, vote)| Between::Vote { attempt, vote }),
        attempt().prop_map(|attempt| Between::Decide { attempt }),
        attempt().prop_map(|attempt| Between::Release { attempt }),
        attempt().prop_map(|attempt| Between::Ask { attempt }),
        attempt().prop_map(|attempt| Between::Followed { attempt }),
    ]
}

fn about_neighbours() -> impl Strategy<Value = Message> {
    let member =
        (boot(), text(), text()).prop_map(|(life, name, address)| Member { life, name, address });
    const ENDS: [HelpEnd; 4] = [HelpEnd::Came, HelpEnd::Lacked, HelpEnd::Late, HelpEnd::NotSent];
    const LACKS: [Lack; 3] = [Lack::Lacks, Lack::Waits, Lack::NotNow];
    let (end, why) = (prop::sample::select(&ENDS[..]), prop::sample::select(&LACKS[..]));
    let of = || (request(), domain(), pages());
    let versions = any::<(u32, u32)>().prop_map(|(oldest, newest)| Versions { oldest, newest });
    let message = prop_oneof![
        text().prop_map(|address| GroupMessage::Join { address }),
        vec(boot(), 0..5).prop_map(|members| GroupMessage::Reach { members }),
        (of(), end).prop_map(|((request, domain, pages), end)| {
            GroupMessage::Helped { request, domain, pages, end }
        }),
        (domain(), pages()).prop_map(|(domain, pages)| GroupMessage::Complete { domain, pages }),
        (domain(), stamp())
            .prop_map(|(domain, through)| GroupMessage::Acknowledged { domain, through }),
        vec(member, 0..4).prop_map(|members| GroupMessage::Members { members }),
        (of(), boot(), any::<bool>()).prop_map(|((request, domain, pages), helper, holes)| {
            GroupMessage::Pointed { request, domain, pages, helper, holes }
        }),
        (of(), boot(), stamp(), any::<bool>()).prop_map(
            |((request, domain, pages), asker, position, holes)| GroupMessage::Help {
                request,
                domain,
                pages,
                asker,
                position,
                holes
            }
        ),
        (domain(), commit_id(), stamp(), writes()).prop_map(|(domain, id, stamp, writes)| {
            GroupMessage::Update { domain, id, stamp, writes }
        }),
        (versions, text(), boot()).prop_map(|(versions, name, life)| GroupMessage::Peer {
            versions,
            name,
            life
        }),
        (of(), why).prop_map(|((request, domain, pages), why)| {
            GroupMessage::Lacks { request, domain, pages, why }
        }),
    ];
    message.prop_map(Message::Group)
}

pub(super) fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        4 => about_neighbours(),
        3 => between_origins(),
        9 => upward(),
        8 => about_volumes(),
        4 => about_rights(),
        2 => for_somebody(),
        2 => about_copies(),
        1 => reason().prop_map(|reason| Message::Goodbye { reason }),
        1 => Just(Message::KeepAlive),
        1 => welcome(),
        1 => (domain(), boot()).prop_map(|(domain, boot)| Message::Registered { domain, boot }),
        1 => (domain(), boot(), prop_oneof![Just(NoBoot::Unknown), Just(NoBoot::Taken)]).prop_map(
            |(domain, boot, why)| Message::Unregistered { domain, boot, why }
        ),
        2 => (domain(), commit_id(), outcome(), any::<u128>()).prop_map(|(domain, id, outcome, history)| {
            Message::Committed { domain, id, outcome, history: HistoryId(history) }
        }),
        1 => (domain(), commit_id(), error(), any::<bool>()).prop_map(
            |(domain, id, error, passed)| Message::CommitDeferred { domain, id, error, passed }
        ),
        4 => stream(),
        1 => (request(), domain(), vec(answer(), 0..10)).prop_map(|(request, domain, pages)| {
            Message::Pages { request, domain, pages }
        }),
    ]
}

fn volume_meta() -> impl Strategy<Value = VolumeMeta> {
    let given = vec((any::<u128>(), page()), 0..3);
    let taken = (any::<(u64, u64)>(), settings());
    (volume(), text(), page_bytes(), page(), stamp(), taken, given).prop_map(
        |(id, name, page_bytes, next, version, ((pages, bytes), settings), given)| VolumeMeta {
            id,
            name,
            page_bytes,
            next_page: next.page,
            version,
            pages,
            bytes,
            settings,
            given: given
                .into_iter()
                .map(|(history, page)| Given { history: HistoryId(history), first: page.page })
                .collect(),
        },
    )
}

fn settings() -> impl Strategy<Value = VolumeSettings> {
    (any::<Option<u64>>(), rights()).prop_map(|(quota, rights)| VolumeSettings { quota, rights })
}

pub(super) fn right() -> impl Strategy<Value = Right> {
    prop::sample::select(&Right::ALL[..])
}

/// A name or a pattern.
fn pattern() -> impl Strategy<Value = String> {
    "[a-z0-9.-]{1,12}[*]?".prop_map(|pattern| pattern)
}

fn rights() -> impl Strategy<Value = Rights> {
    vec((pattern(), right()), 0..5)
        .prop_map(|entries| Rights::new(entries, RIGHTS_MAX).expect("few, and patterns"))
}

fn denied() -> impl Strategy<Value = Box<Denied>> {
    (text(), text(), right(), right())
        .prop_map(|(volume, who, has, needs)| Box::new(Denied { volume, who, has, needs }))
}

/// What a relay asks for a node below.
fn for_somebody() -> impl Strategy<Value = Message> {
    let asks = prop_oneof![upward(), about_volumes(), about_copies()];
    let asks = asks.prop_filter("a request", Message::is_for_somebody);
    (text(), asks).prop_map(|(name, message)| Message::For { name, message: Box::new(message) })
}

fn about_rights() -> impl Strategy<Value = Message> {
    let edit =
        (pattern(), prop::option::of(right())).prop_map(|(who, right)| RightsEdit { who, right });
    let edits = (vec(edit, 0..5), any::<bool>());
    let access =
        (right(), vec(pattern(), 0..3)).prop_map(|(default, admins)| Access { default, admins });
    prop_oneof![
        (request(), volume(), edits).prop_map(|(request, volume, (edits, force))| {
            let change = VolumeChange::Rights { edits, force };
            Message::ChangeVolume { request, volume, change }
        }),
        (request(), volume()).prop_map(|(request, volume)| Message::AskRights { request, volume }),
        (request(), rights(), access).prop_map(|(request, rights, access)| Message::Rights {
            request,
            rights,
            access
        }),
        (domain(), volume(), rights()).prop_map(|(domain, volume, rights)| {
            Message::VolumeRights { domain, volume, rights: Effective::of_list(rights) }
        }),
    ]
}

/// Outcomes that are left open, ascending.
fn open() -> impl Strategy<Value = BTreeSet<u64>> {
    prop_oneof![
        3 => Just(BTreeSet::new()),
        1 => proptest::collection::btree_set(prop_oneof![1u64..300, 1u64..], 0..6),
    ]
}

/// Never empty.
fn node_name() -> impl Strategy<Value = String> {
    text().prop_map(|name| format!("n{name}"))
}

fn option_decided() -> impl Strategy<Value = Option<Box<Decided>>> {
    prop::option::of(decided().prop_map(Box::new))
}

pub(super) fn record() -> impl Strategy<Value = LogRecord> {
    prop_oneof![
        (stamp(), commit_id(), any::<u64>(), any::<Vec<i64>>(), writes(), option_decided())
            .prop_map(|(stamp, id, time, grown, writes, decided)| {
                LogRecord::Commit { stamp, id, time: WallTime(time), grown, writes, decided }
            }),
        prepared(),
        attempt().prop_map(|attempt| LogRecord::Released { attempt }),
        (volume(), settings())
            .prop_map(|(volume, settings)| { LogRecord::Settings { volume, settings } }),
        (stamp(), volume()).prop_map(|(stamp, volume)| LogRecord::Deleted { stamp, volume }),
        (boot(), node_name()).prop_map(|(boot, name)| LogRecord::Boot { boot, name }),
        (boot(), any::<u64>()).prop_map(|(boot, upto)| LogRecord::Confirmed { boot, upto }),
        (commit_id(), abort()).prop_map(|(id, abort)| LogRecord::Aborted { id, abort }),
        page().prop_map(|page| LogRecord::Ids { volume: page.volume, next: page.page }),
        (stamp(), volume_meta()).prop_map(|(stamp, volume)| LogRecord::Volume { stamp, volume }),
        epoch().prop_map(|epoch| LogRecord::Epoch { epoch }),
    ]
}

pub(super) fn meta() -> impl Strategy<Value = DomainMeta> {
    let committed = vec((any::<u64>(), stamp()), 0..5);
    let aborted = vec((any::<u64>(), abort()), 0..3);
    let confirmed = (any::<u64>(), open());
    let boot = (boot(), node_name(), confirmed, committed, aborted).prop_map(
        |(boot, name, (confirmed, open), committed, aborted)| BootMeta {
            boot,
            name,
            confirmed,
            open: open.into_iter().filter(|sequence| *sequence <= confirmed).collect(),
            committed,
            aborted,
        },
    );
    let deleted = (volume(), text(), page_bytes(), stamp(), any::<Option<u64>>()).prop_map(
        |(id, name, page_bytes, stamp, left)| DeletedVolume { id, name, page_bytes, stamp, left },
    );
    let volumes = (vec(volume_meta(), 0..3), vec(deleted, 0..3));
    let kept = (vec(boot, 0..3), vec(decided(), 0..3));
    ((domain(), any::<u64>(), stamp()), epochs(), volumes, kept).prop_map(
        |((domain, lsn, installed), epochs, (volumes, deleted), (boots, decided))| DomainMeta {
            domain,
            installed_lsn: Lsn(lsn),
            installed,
            epochs,
            volumes,
            deleted,
            boots,
            decided,
        },
    )
}
