//! Whether a commit that was refused had to be: by what its pages held, from the state that it was based on up to
//! now. What is refused without a reason costs its user a transaction, and nobody else would notice.

use super::history::Branch;
use larder_core::commit::{Abort, Aspect, Op, PageKind, Read, Target, Write};
use larder_core::id::{Generation, PageId, Slot, Stamp};
use larder_core::page::Record;

/// What a transaction asked one domain for.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// All that it read held at this stamp.
    pub base: Stamp,
    /// What it read.
    pub reads: &'a [Read],
    /// What it wanted to write.
    pub writes: &'a [Write],
}

/// So few slots that were emptied make no page forget their generations that has room.
const EMPTIED_FEW: usize = 8;

/// Bytes beside its value that an object takes in a page, at most.
const OBJECT_HEAD: usize = 32;

/// Whether something read changed after the base, and that is durable.
#[must_use]
pub fn had_conflict(
    branch: &Branch,
    asked: Asked<'_>,
    read: &Read,
    (known_from, page_bytes): (Stamp, u32),
) -> bool {
    let may_forget = may_forget(branch, asked.base, read.page, page_bytes);
    if may_forget && fills_beside_what_it_empties(asked, read) {
        return true;
    }
    if asked.base < known_from || may_forget {
        return branch.version(read.page, branch.durable()) > asked.base;
    }
    let changes = branch.changes(read.page, asked.base).filter(|stamp| *stamp <= branch.durable());
    let mut touched = changes.flat_map(|stamp| {
        let commit = branch.commit(stamp).expect("it changed a page");
        commit.touched.get(&read.page).into_iter().flatten()
    });
    touched.any(|change| concerns(*read, *change))
}

/// Whether a transaction empties slots of a page, and fills the one that it read to be empty: which generation that has
/// next was learned while it ran, and what came until its base, of slots that it has not read, may have changed that
/// (bug 171; seed 20647200013301).
fn fills_beside_what_it_empties(asked: Asked<'_>, read: &Read) -> bool {
    let of_page = || asked.writes.iter().filter(|write| write.page == read.page);
    let fills = |write: &Write| matches!(write.op, Op::Put { slot, .. } if read.target == Target::Slot(slot));
    let empties = |write: &Write| matches!(write.op, Op::Delete { slot, .. } if read.target != Target::Slot(slot));
    read.aspect == Aspect::Existence && of_page().any(fills) && of_page().any(empties)
}

/// Whether a page may have forgotten the generations of empty slots, of all its slots together: since there are too
/// many, or it is nearly full.
fn may_forget(branch: &Branch, base: Stamp, page: PageId, page_bytes: u32) -> bool {
    let emptied = branch.emptied(page);
    let full = |stamp| 3 * filled(branch, page, stamp) >= 2 * page_bytes as usize;
    emptied > EMPTIED_FEW || emptied > 0 && states(branch, base, page).any(full)
}

/// Bytes of a page's objects, about.
fn filled(branch: &Branch, page: PageId, stamp: Stamp) -> usize {
    let objects = branch.slots(page, stamp).map(|(_, held)| length(&held.1) + OBJECT_HEAD);
    objects.sum::<usize>() + branch.raw(page, stamp).map_or(0, bytes::Bytes::len)
}

/// Whether a change is one of what was read: who read a value is concerned by all that changes it, who read whether
/// something is there only by what makes or removes it, and the page's own making and removal concern all.
fn concerns(read: Read, (target, aspect): (Target, Aspect)) -> bool {
    let same = match (read.target, target) {
        (Target::Slot(read), Target::Slot(changed)) => read == changed,
        (Target::Page, _) | (_, Target::Page) => true,
    };
    same && (read.aspect == Aspect::Value || aspect == Aspect::Existence)
}

/// Why a refusal for another reason than a conflict, a volume, or a right was not just; none: it was, or nothing
/// can be said.
#[must_use]
pub fn unjust(
    parts: &[(&Branch, Asked<'_>)],
    abort: &Abort,
    page_bytes: u32,
) -> Option<&'static str> {
    let any = |just: &dyn Fn(&Branch, Asked<'_>) -> bool| {
        parts.iter().any(|(branch, asked)| just(branch, *asked))
    };
    match abort {
        Abort::Gone { page, slot, generation } => {
            (!any(&|branch, asked| was_gone(branch, asked, (*page, *slot, *generation))))
                .then_some("the object was there all the time")
        }
        Abort::BadPage(page) => (!any(&|branch, asked| was_bad(branch, asked, *page)))
            .then_some("the page was there all the time, or was never made"),
        Abort::PageFull(page) => {
            (!any(&|branch, asked| was_full(branch, asked, *page, page_bytes as usize)))
                .then_some("the page had room all the time")
        }
        Abort::BadWrite(_) => Some("no client writes what makes no sense"),
        Abort::TooLarge(_) => Some("no client passes a limit"),
        Abort::Lost(_) => Some("no page was damaged"),
        Abort::Conflict(_)
        | Abort::StaleNumber(_)
        | Abort::NoVolume(_)
        | Abort::Deleted(_)
        | Abort::History
        | Abort::Quota { .. }
        | Abort::Denied(_) => None,
    }
}

/// Bytes of an object in its page.
fn length(record: &Record) -> usize {
    match record {
        Record::Inline(bytes) => bytes.len(),
        Record::Forward(_) | Record::Large { .. } => 0,
    }
}

/// The state that a commit was based on, and each one that a page was in since.
fn states(branch: &Branch, base: Stamp, page: PageId) -> impl Iterator<Item = Stamp> + '_ {
    std::iter::once(base).chain(branch.changes(page, base))
}

fn was_gone(
    branch: &Branch,
    asked: Asked<'_>,
    (page, slot, generation): (PageId, Slot, Generation),
) -> bool {
    let there = |stamp| branch.slot(page, slot, stamp).is_some_and(|held| held.0 == generation);
    let mut of_page = asked.writes.iter().filter(|write| write.page == page);
    // What it removed itself is not there for what comes after.
    let removes =
        of_page.any(|write| matches!(write.op, Op::Delete { slot: of, .. } if of == slot));
    removes || states(branch, asked.base, page).any(|stamp| !there(stamp))
}

fn was_bad(branch: &Branch, asked: Asked<'_>, page: PageId) -> bool {
    let mut of_page = asked.writes.iter().filter(|write| write.page == page);
    of_page.any(|write| match &write.op {
        Op::CreatePage(_) | Op::RestorePage { .. } => branch.was_made(page),
        op => {
            let raw = matches!(op, Op::WriteRaw { .. } | Op::TruncateRaw { .. });
            let wanted = |kind| match op {
                Op::DeletePage => true,
                _ => raw == (kind == PageKind::Raw),
            };
            let fits = |stamp| branch.kind(page, stamp).is_some_and(wanted);
            states(branch, asked.base, page).any(|stamp| !fits(stamp))
        }
    })
}

/// Roughly: who is told so has at least half of it filled, its own writes among that.
fn was_full(branch: &Branch, asked: Asked<'_>, page: PageId, page_bytes: usize) -> bool {
    let of_page = asked.writes.iter().filter(|write| write.page == page);
    let end = |op: &Op| match op {
        Op::WriteRaw { offset, .. } => *offset as usize,
        _ => 0,
    };
    let own = of_page.map(|write| write.op.payload_bytes() + OBJECT_HEAD + end(&write.op));
    let own: usize = own.sum();
    let full = |stamp| 2 * (filled(branch, page, stamp) + own) >= page_bytes;
    states(branch, asked.base, page).any(full)
}
