//! Messages as short text. Ids are written as small numbers: tests use small ones.

use larder_core::across::{Between, OriginMessage};
use larder_core::commit::{
    Aspect, Change, CommitRequest, Op, Outcome, PageChange, Read, Target, Write,
};
use larder_core::group::{GroupMessage, Member};
use larder_core::id::{Attempt, CommitId, DomainId, PageId};
use larder_core::message::{
    CopyCursor, DomainInfo, Epoch, Message, PageAnswer, PageBody, ResumeAnswer, VolumeInfo,
};
use larder_core::page::{Page, Record};
use larder_core::rights::{Right, Rights};

/// A message, on one line.
pub(crate) fn message(message: &Message) -> String {
    match message {
        Message::Hello { name, boot, role, .. } => format!("Hello {name} boot {} {role:?}", boot.0),
        Message::Welcome { name, domains, .. } => {
            let domains = join(domains, |d| format!("d{} {}", d.domain.0, line(&d.epochs)));
            format!("Welcome from {name}: {domains}")
        }
        Message::Goodbye { reason } => format!("Goodbye: {reason}"),
        Message::Resume { request, domain, epochs, through } => {
            let through = through.map_or("nothing".into(), |t| format!("{t} of {}", line(epochs)));
            format!("Resume r{} d{} holding {through}", request.0, domain.0)
        }
        Message::Register { boot, name, life, fresh, .. } => {
            let life = if life == boot { String::new() } else { format!(" of life {}", life.0) };
            let again = if *fresh { "" } else { " again" };
            format!("Register boot {} of {name}{life}{again}", boot.0)
        }
        Message::Left { name } => format!("Left {name}"),
        Message::Fetch { request, pages, prefetch, .. } => {
            let pages = join(pages, |ask| match ask.have {
                Some(have) => format!("{}@{have}", ask.page),
                None => ask.page.to_string(),
            });
            let kind = if *prefetch { "Prefetch" } else { "Fetch" };
            format!("{kind} r{} [{pages}]", request.0)
        }
        Message::Evicted { pages, .. } => format!("Evicted [{}]", list(pages)),
        Message::Holding { pages, done, .. } => {
            format!("Holding [{}]{}", list(pages), if *done { " done" } else { "" })
        }
        Message::Confirm { boot, upto, open, .. } => {
            let left = open.iter().map(|sequence| format!(" but {sequence}"));
            format!("Confirm boot {} upto {upto}{}", boot.0, left.collect::<String>())
        }
        Message::KeepAlive => "KeepAlive".into(),
        Message::Beat { sent, .. } => format!("Beat sent {}", ms(sent.0)),
        Message::Refresh { sent, .. } => format!("Refresh sent {}", ms(sent.0)),
        Message::Credit { lane, bytes } => format!("Credit {lane:?} {bytes}"),
        Message::Commit { domain, commit } => format!("{}{}", request(commit), of_domain(*domain)),
        Message::Registered { boot, .. } => format!("Registered boot {}", boot.0),
        Message::Unregistered { boot, why, .. } => format!("Unregistered boot {}: {why:?}", boot.0),
        Message::Committed { domain, id, outcome, .. } => {
            format!("Committed {}{}: {}", commit_id(*id), of_domain(*domain), ended(outcome))
        }
        Message::CommitDeferred { domain, id, error, passed } => {
            let away = if *passed { "" } else { ", turned away" };
            format!("CommitDeferred {}{}{away}: {error}", commit_id(*id), of_domain(*domain))
        }
        Message::Ids { request, history, range } => {
            format!(
                "Ids r{} volume {} from {} count {} in h{}",
                request.0, range.volume.0, range.first.0, range.count, history.0
            )
        }
        Message::Volume { request, info } => format!("Volume r{} {}", request.0, volume(info)),
        Message::Failed { request, pages, error } if pages.is_empty() => {
            format!("Failed r{}: {error}", request.0)
        }
        Message::Failed { request, pages, error } => {
            format!("Failed r{} [{}]: {error}", request.0, join(pages, ToString::to_string))
        }
        Message::Resumed { request, epochs, answer, stale, through, done, .. } => {
            let answer = match answer {
                ResumeAnswer::From(from) => format!("from {from}"),
                ResumeAnswer::Reset => "reset".into(),
            };
            let done = if *done { " done" } else { " …" };
            format!(
                "Resumed r{} {answer} through {through} of {} stale [{}]{done}",
                request.0,
                line(epochs),
                list(stale)
            )
        }
        Message::Advance { from, through, changes, stale, echo, .. } => {
            let changes = join(changes, change);
            let stale =
                if stale.is_empty() { String::new() } else { format!(" stale [{}]", list(stale)) };
            let echo = echo.map_or(String::new(), |echo| {
                let clock = if echo.by_clock { " by a clock" } else { "" };
                format!(" echo of {} age {:?}{clock}", ms(echo.sent.0), echo.age)
            });
            format!("Advance {from}→{through} [{changes}]{stale}{echo}")
        }
        Message::History { epochs, .. } => format!("History {}", line(epochs)),
        Message::Pages { request, pages, .. } => {
            format!("Pages r{} [{}]", request.0, join(pages, answer))
        }
        Message::AskRights { .. }
        | Message::Rights { .. }
        | Message::VolumeRights { .. }
        | Message::For { .. } => about_rights(message),
        Message::CopyPages { .. } | Message::Copied { .. } => copies(message),
        Message::Group(message) => group(message),
        Message::Origin(message) => between_origins(message),
        message => format!("{message:?}"),
    }
}

fn between_origins(message: &OriginMessage) -> String {
    match message {
        OriginMessage::Greets { versions, name, accept_fork } => {
            let accepts = if *accept_fork { ", accepts a fork" } else { "" };
            format!("Greets {name}, speaks {versions}{accepts}")
        }
        OriginMessage::Serves { domains } => {
            let line = |info: &DomainInfo| match info.epochs.is_empty() {
                true => format!("d{} not now", info.domain.0),
                false => format!("d{} {}", info.domain.0, line(&info.epochs)),
            };
            format!("Serves [{}]", join(domains, line))
        }
        OriginMessage::Says { from, to, through, between } => {
            format!("d{} at {through} to d{}: {}", from.0, to.0, said(between))
        }
    }
}

fn said(between: &Between) -> String {
    let of = |attempt: &Attempt| format!("h{}/{}", attempt.history.0, attempt.number);
    match between {
        Between::Await { coordinator, part } => {
            format!("Await {} of {}", commit_id(*part), commit_id(*coordinator))
        }
        Between::Arrived { coordinator, part, name } => {
            format!("Arrived {} of {} by {name}", commit_id(*part), commit_id(*coordinator))
        }
        Between::Ended { part, ended, .. } => format!("Ended {}: {ended:?}", commit_id(*part)),
        Between::Prepare { attempt, part, .. } => {
            format!("Prepare {} for {}", commit_id(*part), of(attempt))
        }
        Between::Vote { attempt, vote } => format!("Vote {}: {vote:?}", of(attempt)),
        Between::Decide { attempt } => format!("Decide {}", of(attempt)),
        Between::Release { attempt } => format!("Release {}", of(attempt)),
        Between::Ask { attempt } => format!("Ask {}", of(attempt)),
        Between::Followed { attempt } => format!("Followed {}", of(attempt)),
    }
}

fn group(message: &GroupMessage) -> String {
    match message {
        GroupMessage::Join { address } => format!("Join {address}"),
        GroupMessage::Reach { members } => {
            format!("Reach [{}]", join(members, |life| life.0.to_string()))
        }
        GroupMessage::Helped { request, pages, end, .. } => {
            format!("Helped r{} [{}]: {end:?}", request.0, list(pages))
        }
        GroupMessage::Complete { pages, .. } => format!("Complete [{}]", list(pages)),
        GroupMessage::Acknowledged { through, .. } => format!("Acknowledged {through}"),
        GroupMessage::Members { members } => {
            let member = |one: &Member| format!("{} {} {}", one.life.0, one.name, one.address);
            format!("Members [{}]", join(members, member))
        }
        GroupMessage::Pointed { request, pages, helper, holes, .. } => {
            let holes = if *holes { ", with holes perhaps" } else { "" };
            format!("Pointed r{} [{}] to {}{holes}", request.0, list(pages), helper.0)
        }
        GroupMessage::Help { request, pages, asker, position, holes, .. } => {
            let holes = if *holes { ", holes do as well" } else { "" };
            format!("Help {} r{} [{}] at {position}{holes}", asker.0, request.0, list(pages))
        }
        GroupMessage::Update { id, stamp, writes: made, .. } => {
            format!("Update {} at {stamp} [{}]", commit_id(*id), writes(made))
        }
        GroupMessage::Peer { name, life, .. } => format!("Peer {name} {}", life.0),
        GroupMessage::Lacks { request, pages, why, .. } => {
            format!("Lacks r{} [{}]: {why:?}", request.0, list(pages))
        }
    }
}

fn volume(info: &VolumeInfo) -> String {
    let quota = info.quota.map_or(String::new(), |quota| format!(" of {quota}"));
    let right = match info.right {
        None | Some(Right::Admin) => String::new(),
        Some(right) => format!(", may {right}"),
    };
    format!(
        "{} id {} version {} pages {} bytes {}{quota}{right}",
        info.name, info.id.0, info.version, info.pages, info.bytes
    )
}

fn about_rights(message: &Message) -> String {
    match message {
        Message::AskRights { request, .. } => format!("AskRights r{}", request.0),
        Message::Rights { request, rights, .. } => {
            format!("Rights r{} [{}]", request.0, rights_list(rights))
        }
        Message::VolumeRights { volume, rights, .. } => {
            format!("VolumeRights of {} [{}]", volume.0, rights_list(rights.list()))
        }
        Message::For { name, message: asked } => {
            format!("For {name}: {}", self::message(asked))
        }
        other => unreachable!("the caller sorts kinds: {other:?}"),
    }
}

/// Who may do what.
pub(crate) fn rights_list(rights: &Rights) -> String {
    let entries: Vec<String> =
        rights.entries().map(|(who, right)| format!("{who} {right}")).collect();
    entries.join(", ")
}

/// Questions of copies, and answers.
fn copies(message: &Message) -> String {
    match message {
        Message::CopyPages { request, ask } => {
            let pin = ask.pin.map_or(String::new(), |pin| format!(" pin {}", pin.0));
            let at = ask.cursor.map_or(String::new(), |at| format!(" from {}", cursor(at)));
            let since = format!("since {} of h{}", ask.since, ask.history.0);
            format!("CopyPages r{} volume {} {since}{pin}{at}", request.0, ask.volume.0)
        }
        Message::Copied { request, answer: copied } => {
            let at = copied.cursor.map_or("the last".into(), cursor);
            format!(
                "Copied r{} through {} of h{} numbers below {} {:?} [{}] {at}",
                request.0,
                copied.through,
                copied.history.0,
                copied.next_page.0,
                copied.part,
                join(&copied.pages, answer)
            )
        }
        other => format!("{other:?}"),
    }
}

fn cursor(at: CopyCursor) -> String {
    format!("{:?} {} {} until {}", at.part, at.stamp, at.page, at.until)
}

fn ms(nanoseconds: u64) -> String {
    let (whole, rest) = (nanoseconds / 1_000_000, nanoseconds % 1_000_000);
    if rest == 0 { format!("{whole} ms") } else { format!("{whole} ms and {rest} ns") }
}

fn join<T>(items: &[T], write: impl Fn(&T) -> String) -> String {
    items.iter().map(write).collect::<Vec<_>>().join(", ")
}

fn list(pages: &[PageId]) -> String {
    join(pages, ToString::to_string)
}

fn line(epochs: &[Epoch]) -> String {
    let epochs = join(epochs, |e| format!("h{}:{}", e.history.0, e.first));
    format!("({epochs})")
}

/// Nothing of the first domain, which most transcripts have alone.
fn of_domain(domain: DomainId) -> String {
    if domain == DomainId(1) { String::new() } else { format!(" of d{}", domain.0) }
}

fn commit_id(id: CommitId) -> String {
    format!("{}#{}", id.boot.0, id.sequence)
}

fn target((target, aspect): (Target, Aspect)) -> String {
    let target = match target {
        Target::Page => "all".into(),
        Target::Slot(slot) => format!("s{}", slot.0),
    };
    match aspect {
        Aspect::Existence => format!("{target}!"),
        Aspect::Value => target,
    }
}

fn page_change(change: &PageChange) -> String {
    let touched: Vec<String> = change.touched.iter().map(|t| target(*t)).collect();
    format!("{}:{}", change.page, touched.join("+"))
}

fn change(change: &Change) -> String {
    let id = if change.id == CommitId::default() {
        String::new()
    } else {
        format!(" {}", commit_id(change.id))
    };
    format!("{}{id} {{{}}}", change.stamp, join(&change.pages, page_change))
}

fn ended(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Committed(stamp) => format!("stamp {stamp}"),
        Outcome::Aborted(abort) => format!("aborted, {abort}"),
        Outcome::Unknown => "unknown".into(),
    }
}

/// A page's answer, with what its slots hold.
fn answer(answer: &PageAnswer) -> String {
    let body = match &answer.body {
        PageBody::Valid => "valid".into(),
        PageBody::Absent => "absent".into(),
        PageBody::Holed(_, holes) => format!("with {} holes", holes.len()),
        PageBody::Data(bytes) if bytes.is_empty() => "damaged".into(),
        PageBody::Data(bytes) => match Page::decode(answer.page, bytes.clone()) {
            Ok(page) => content(&page),
            Err(error) => error.to_string(),
        },
    };
    format!("{} [{}, {}] {body}", answer.page, answer.version, answer.as_of)
}

fn content(page: &Page) -> String {
    if let Some(raw) = page.raw() {
        return format!("raw {} bytes", raw.len());
    }
    let slots: Vec<String> = page
        .slots()
        .map(|(slot, generation)| {
            let bytes = page.get(slot).map(|(_, bytes)| bytes).unwrap_or_default();
            let value = match Record::decode(bytes) {
                Ok(Record::Inline(value)) => String::from_utf8_lossy(&value).into_owned(),
                Ok(other) => format!("{other:?}"),
                Err(error) => error.to_string(),
            };
            format!("s{}g{}={value}", slot.0, generation.0)
        })
        .collect();
    format!("{{{}}}", slots.join(" "))
}

/// A commit request.
pub(crate) fn request(commit: &CommitRequest) -> String {
    let reads = join(&commit.reads, |Read { page, target: t, aspect }| {
        format!("{page}:{}", target((*t, *aspect)))
    });
    let writes = writes(&commit.writes);
    format!(
        "Commit {} base {} of h{} reads [{reads}] writes [{writes}]",
        commit_id(commit.id),
        commit.base,
        commit.history.0
    )
}

fn writes(writes: &[Write]) -> String {
    join(writes, |write| format!("{}:{}", write.page, op(&write.op)))
}

fn op(op: &Op) -> String {
    match op {
        Op::Put { slot, generation, value } => {
            let value = match Record::decode(value.clone()) {
                Ok(Record::Inline(value)) => String::from_utf8_lossy(&value).into_owned(),
                other => format!("{other:?}"),
            };
            format!("s{}g{}={value}", slot.0, generation.0)
        }
        Op::Delete { slot, generation } => format!("delete s{}g{}", slot.0, generation.0),
        other => format!("{other:?}"),
    }
}
