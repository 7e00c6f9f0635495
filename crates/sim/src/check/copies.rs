//! P3: a copy that a reader could be given, and that is no hole, is what its domain held at
//! valid-through.

use super::history::Branch;
use larder_core::cache::PageCopy;
use larder_core::commit::PageKind;
use larder_core::id::{Slot, Stamp};
use larder_core::page::Record;
use std::fmt::Debug;

/// Panics unless the copy agrees with `branch` at `through`.
pub fn check_copy(branch: &Branch, copy: &PageCopy, through: Stamp, who: &dyn Debug) {
    let id = copy.id;
    assert!(
        copy.version <= through,
        "P3: {who:?} shows {id} of version {} at valid-through {through}",
        copy.version
    );
    let truth = branch.kind(id, through);
    let Some(page) = &copy.page else {
        assert!(
            truth.is_none(),
            "P3: {who:?} shows {id} as absent at {through}; it is {truth:?} since {}",
            branch.version(id, through)
        );
        return;
    };
    assert!(
        truth == Some(page.kind()),
        "P3: {who:?} shows {id} as {:?} at {through}; it is {truth:?}",
        page.kind()
    );
    let stale = |slot: Slot| copy.holes.binary_search(&slot).is_ok();
    if page.kind() == PageKind::Raw {
        assert!(
            stale(Slot(0)) || page.raw().as_ref() == branch.raw(id, through),
            "P3: {who:?} shows other bytes of raw page {id} at {through} than were written at {}",
            branch.version(id, through)
        );
        return;
    }
    let mut shown = page.slots().filter(|(slot, _)| !stale(*slot));
    let mut held = branch.slots(id, through).filter(|(slot, _)| !stale(*slot));
    loop {
        let (shown, held) = (shown.next(), held.next());
        assert!(
            shown == held.map(|(slot, held)| (slot, held.0)),
            "P3: {who:?} shows {shown:?} of {id} at {through}; there is {held:?} since {}",
            branch.version(id, through)
        );
        let Some((slot, (_, record))) = held else {
            return;
        };
        let (_, bytes) = page.get(slot).expect("a slot that is listed is filled");
        let found = Record::decode(bytes);
        assert!(
            found.as_ref() == Ok(record),
            "P3: {who:?} shows {found:?} in {id} {slot:?} at {through}; it is {record:?} since {}",
            branch.version(id, through)
        );
    }
}
