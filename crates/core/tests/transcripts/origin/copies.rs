//! Transcripts of copies of a volume that is in use, and of pages that are restored.

use super::*;
use larder_core::commit::{Op, PageKind};
use larder_core::id::{HistoryId, RequestId, VolumeId};
use larder_core::message::{CopyAnswer, CopyAsk, CopyCursor, Message, PinId};
use larder_core::page::{Page, Record};

/// Values of which two fill an answer.
fn long(letter: u8) -> Op {
    Op::WriteRaw { offset: 0, bytes: vec![letter; 4000].into() }
}

/// Asks for a part of volume 7.
fn copy(
    request: u64,
    since: (u64, u128),
    pin: Option<u128>,
    cursor: Option<CopyCursor>,
) -> (String, LinkInput) {
    copy_on(1, request, since, pin, cursor)
}

/// The same, over another link.
fn copy_on(
    link: u64,
    request: u64,
    since: (u64, u128),
    pin: Option<u128>,
    cursor: Option<CopyCursor>,
) -> (String, LinkInput) {
    let ask = CopyAsk {
        volume: VOLUME,
        history: HistoryId(since.1),
        since: Stamp(since.0),
        cursor,
        pin: pin.map(PinId),
    };
    received(link, Message::CopyPages { request: RequestId(request), ask })
}

/// The answer among what was sent.
fn copied(out: &[OriginOutput]) -> Option<CopyAnswer> {
    out.iter().find_map(|output| match output {
        OriginOutput::Link(LinkOutput::Send {
            message: Message::Copied { answer, .. }, ..
        }) => Some(answer.clone()),
        _ => None,
    })
}

impl Run {
    /// Asks for a part, and lets the store do its work until the answer is there.
    fn copy(
        &mut self,
        request: u64,
        since: (u64, u128),
        pin: Option<u128>,
        cursor: Option<CopyCursor>,
    ) -> Option<CopyAnswer> {
        let mut out = self.link(vec![copy(request, since, pin, cursor)]);
        while copied(&out).is_none() && !self.store.queue.is_empty() {
            out = self.store(None);
        }
        copied(&out)
    }

    /// All parts of a round.
    fn round(&mut self, request: u64, since: (u64, u128), pin: Option<u128>) {
        let mut cursor = None;
        for part in 0.. {
            let Some(answer) = self.copy(request + part, since, pin, cursor) else { return };
            cursor = answer.cursor;
            if cursor.is_none() {
                return;
            }
        }
    }
}

#[test]
fn a_round_tells_what_changed() {
    let mut run = Run::new(
        "Copies. Volume 7 has page 1, installed at 2, page 2, made at 3 and installed, and page 3, made \
         at 4 and deleted at 5. A round from zero tells what is not installed, then the change index: \
         pages with what they hold, and page 3 as deleted. It ends at 5. Page 2 is written at 6 and \
         installed, page 1 at 7 and not: a round from 5 tells these two. One from 7 tells nothing. All \
         names the numbers given away: restored, no number of the past may be given again.",
        OriginConfig::default(),
    );
    run.two_nodes();
    let ids = larder_core::message::Message::AllocateIds {
        request: RequestId(90),
        volume: VOLUME,
        count: 50,
    };
    run.quietly(vec![received(1, ids)]);
    let make = |kind| Op::CreatePage(kind);
    run.quietly(vec![
        Commit::new(10, 2, 2).op(2, make(PageKind::Slotted)).put(2, 0, 1, "two").on(1),
    ]);
    run.settle_pages();
    run.quietly(vec![Commit::new(10, 3, 3).op(3, make(PageKind::Raw)).on(1)]);
    run.quietly(vec![Commit::new(10, 4, 4).op(3, Op::DeletePage).on(1)]);
    run.round(10, (0, 0), None);
    run.quietly(vec![Commit::new(10, 5, 5).put(2, 0, 1, "deux").on(1)]);
    run.settle_pages();
    run.quietly(vec![Commit::new(10, 6, 6).put(1, 5, 1, "new").on(1)]);
    run.round(20, (5, 1), None);
    run.round(30, (7, 1), None);
    run.t.end("origin_copies_a_round");
}

#[test]
fn a_pin_shows_one_moment() {
    let mut run = Run::new(
        "Copies. A round ended at 4. Pages 2 and 3 are written at 5 and 6, and the last round begins with \
         a pin: it shows 6. Before its next part is asked for, page 2 (told of at 5) is written at 7, page \
         1 (last written at 2, which the asker has) at 8, and page 4 is made at 9. The rest of the round \
         tells page 2 once more as of 5, since its image is kept, nothing of pages 1 and 4, and ends. The \
         pin is gone with the last part: asked for once more with a cursor it is refused, so that nobody \
         takes a later state for it.",
        OriginConfig { install_pages_max: 1, ..OriginConfig::default() },
    );
    run.two_nodes();
    run.quietly(vec![received(
        1,
        Message::AllocateIds { request: RequestId(90), volume: VOLUME, count: 50 },
    )]);
    let make = || Op::CreatePage(PageKind::Raw);
    run.quietly(vec![Commit::new(10, 2, 2).op(2, make()).op(2, long(b'a')).on(1)]);
    run.quietly(vec![Commit::new(10, 3, 3).op(3, make()).op(3, long(b'b')).on(1)]);
    run.settle_pages();
    run.quietly(vec![Commit::new(10, 4, 4).op(2, long(b'c')).on(1)]);
    run.quietly(vec![Commit::new(10, 5, 5).op(3, Op::TruncateRaw { length: 3 }).on(1)]);
    let first = run.copy(10, (4, 1), Some(77), None).expect("a part");
    let cursor = first.cursor;
    run.quietly(vec![Commit::new(10, 6, 6).op(2, Op::TruncateRaw { length: 7 }).on(1)]);
    run.quietly(vec![Commit::new(10, 7, 7).put(1, 5, 1, "late").on(1)]);
    run.quietly(vec![Commit::new(10, 8, 8).op(4, make()).on(1)]);
    run.settle_pages();
    let second = run.copy(11, (4, 1), Some(77), cursor).expect("a part");
    let mut at = second.cursor;
    let mut request = 12;
    while let Some(cursor) = at {
        at = run.copy(request, (4, 1), Some(77), Some(cursor)).expect("a part").cursor;
        request += 1;
    }
    run.link(vec![copy(20, (4, 1), Some(77), cursor)]);
    run.t.end("origin_copies_a_pin");
}

#[test]
fn a_pin_is_bounded() {
    let mut run = Run::new(
        "Copies. At most one pin is kept here, with 5,000 bytes of images. Another one is refused, to be \
         asked for later. Two pages of 4,000 bytes are written under the pin: more than is kept, so it is \
         given up, and its next part refused; nobody who writes waits. Another pin of which nobody asks \
         for a minute is given up as well.",
        OriginConfig { pins_max: 1, pinned_copy_bytes_max: 5000, ..OriginConfig::default() },
    );
    run.two_nodes();
    run.quietly(vec![received(
        1,
        Message::AllocateIds { request: RequestId(90), volume: VOLUME, count: 50 },
    )]);
    let make = || Op::CreatePage(PageKind::Raw);
    run.quietly(vec![Commit::new(10, 2, 2).op(2, make()).op(2, long(b'a')).on(1)]);
    run.quietly(vec![Commit::new(10, 3, 3).op(3, make()).op(3, long(b'b')).on(1)]);
    let first = run.copy(10, (0, 0), Some(77), None).expect("a part");
    run.link(vec![copy(11, (0, 0), Some(78), None)]);
    run.quietly(vec![Commit::new(10, 4, 4).op(2, Op::TruncateRaw { length: 7 }).on(1)]);
    run.quietly(vec![Commit::new(10, 5, 5).op(3, Op::TruncateRaw { length: 7 }).on(1)]);
    run.link(vec![copy(12, (0, 0), Some(77), first.cursor)]);
    let again = run.copy(13, (0, 0), Some(79), None).expect("a part");
    run.pass(61);
    run.node(1, "a", 10);
    run.link(vec![copy(14, (0, 0), Some(79), again.cursor)]);
    run.t.end("origin_copies_a_pin_is_bounded");
}

#[test]
fn places_for_pins_are_shared() {
    let mut run = Run::new(
        "Copies. Three places for pins, all taken by a: every attempt at a last round took a new one, and the \
         old ones stayed for a minute; b was told that its volume is written to too fast. Now an attempt \
         under the name of the one before takes its place, from another stamp on. b, who asks while a has \
         three, is given the place of the one that a did not ask for the longest; a, who has as many as his \
         share then, is told that the origin is busy when he asks for another. When memory is short, what \
         nobody asked for lately goes before the larger one that is being read.",
        OriginConfig { pins_max: 3, pinned_copy_bytes_max: 9000, ..OriginConfig::default() },
    );
    run.two_nodes();
    run.quietly(vec![received(
        1,
        Message::AllocateIds { request: RequestId(90), volume: VOLUME, count: 50 },
    )]);
    let make = || Op::CreatePage(PageKind::Raw);
    run.quietly(vec![Commit::new(10, 2, 2).op(2, make()).op(2, long(b'a')).on(1)]);
    run.quietly(vec![Commit::new(10, 3, 3).op(3, make()).op(3, long(b'b')).on(1)]);
    let first = run.copy(10, (0, 0), Some(70), None).expect("a part");
    // The same name from elsewhere on: the place of the one before, of which nothing more is told.
    run.copy(11, (3, 1), Some(70), None).expect("a part");
    run.link(vec![copy(12, (0, 0), Some(70), first.cursor)]);
    run.copy(13, (0, 0), Some(71), None).expect("a part");
    let third = run.copy(14, (0, 0), Some(72), None).expect("a part");
    let theirs = run.link(vec![copy_on(2, 15, (0, 0), Some(80), None)]);
    let theirs = copied(&theirs).expect("a part").cursor;
    run.link(vec![copy(16, (0, 0), Some(73), None)]);
    run.pass(6);
    let more = run.copy(17, (0, 0), Some(72), third.cursor).expect("a part");
    // Both are kept for each of the pins, of which one alone has room.
    run.quietly(vec![Commit::new(10, 4, 4).op(2, Op::TruncateRaw { length: 7 }).on(1)]);
    run.quietly(vec![Commit::new(10, 5, 5).op(3, Op::TruncateRaw { length: 7 }).on(1)]);
    run.link(vec![copy_on(2, 19, (0, 0), Some(80), theirs)]);
    run.copy(18, (0, 0), Some(72), more.cursor).expect("a part");
    run.t.end("origin_copies_pins_are_shared");
}

#[test]
fn what_cannot_be_copied_is_said() {
    let mut run = Run::new(
        "Copies. Refused with what is wrong: a volume that is not there; a position of a history that this \
         origin does not have, or ahead of it; a cursor ahead of it. A page that is damaged is told of \
         as such, and the others with it: it was the end of every copy. When the link goes in the middle, the load's end answers nobody. Over a \
         start of the origin a position stays good, and what the log alone holds is told.",
        OriginConfig::default(),
    );
    run.two_nodes();
    let unknown = CopyAsk {
        volume: VolumeId(70),
        history: HistoryId(1),
        since: Stamp::ZERO,
        cursor: None,
        pin: None,
    };
    run.link(vec![received(1, Message::CopyPages { request: RequestId(9), ask: unknown })]);
    run.link(vec![copy(10, (1, 9), None, None), copy(11, (50, 1), None, None)]);
    let first = run.copy(12, (0, 0), None, None).and_then(|part| part.cursor);
    let ahead = first.map(|cursor| CopyCursor { until: Stamp(50), ..cursor });
    run.link(vec![copy(13, (0, 0), None, ahead)]);
    run.settle_pages();
    run.restart(2);
    run.node(1, "a", 10);
    run.store.damaged.insert(page(1));
    run.link(vec![copy(14, (0, 0), None, None)]);
    run.settle();
    run.store.damaged.clear();
    run.link(vec![copy(15, (0, 0), None, None)]);
    run.store(None);
    run.link(vec![closed(1)]);
    run.settle();
    run.node(1, "a", 10);
    run.quietly(vec![Commit::new(10, 2, 2).in_history(2).put(1, 5, 1, "logged").on(1)]);
    run.restart(3);
    run.node(1, "a", 10);
    run.round(20, (2, 2), None);
    run.t.end("origin_copies_refused");
}

#[test]
fn pages_are_restored_once() {
    let mut run = Run::new(
        "Restoring. Volume 7 was just made. A commit makes page 9, of which the number was given away, as an \
         image says: with slot 3 of generation 5, which no other op could make. Refused are: the same page \
         again; a number never given away; an image sealed for another page; page 1 that holds something. \
         Page 1 as it was made is replaced. After a start all is there, and is counted as before.",
        OriginConfig::default(),
    );
    run.quietly(vec![opened(1, "a"), hello(1, "a", 10)]);
    run.quietly(vec![create_volume(1, 1), resume_new(1, 2), register(1, "a", 10)]);
    run.quietly(vec![received(
        1,
        Message::AllocateIds { request: RequestId(90), volume: VOLUME, count: 20 },
    )]);
    let image = |number: u64| {
        let mut image = Page::empty(PageKind::Slotted);
        for generation in 1..=5 {
            let value = Record::Inline("kept".into()).encode();
            let (slot, generation) =
                (larder_core::id::Slot(3), larder_core::id::Generation(generation));
            image.apply(&Op::Put { slot, generation, value }, 4096).expect("it fits");
            if generation.0 < 5 {
                image.apply(&Op::Delete { slot, generation }, 4096).expect("it is there");
            }
        }
        Op::RestorePage { image: image.encode(page(number)) }
    };
    let restore = |sequence: u64, number: u64, of: u64| {
        let (_, input) = Commit::new(10, sequence, 1).op(number, image(of)).on(1);
        (format!("link 1 > Commit 10#{sequence} restores page {number} as {of}"), input)
    };
    run.link(vec![restore(1, 9, 9)]);
    run.settle();
    for (sequence, number, of) in [(2, 9, 9), (3, 30, 30), (4, 10, 11)] {
        run.link(vec![restore(sequence, number, of)]);
        run.settle();
    }
    run.link(vec![restore(5, 1, 1)]);
    run.settle();
    run.link(vec![restore(6, 1, 1)]);
    run.settle();
    run.restart(2);
    run.node(1, "a", 10);
    run.round(20, (0, 0), None);
    let key = larder_core::message::VolumeKey::Id(VOLUME);
    run.link(vec![received(1, Message::OpenVolume { request: RequestId(40), key })]);
    run.t.end("origin_restored_pages");
}

/// The story: the first page of a copy was on a slow sector, and each page that came behind it let one more be
/// asked for: thousands of them waited in memory, of a mebibyte each, for each of many copies.
#[test]
fn pages_that_wait_behind_a_slow_one_are_bounded() {
    const PAGES: u64 = 60;
    const AT_ONCE: usize = 32;
    let mut run = Run::new("", OriginConfig::default());
    run.two_nodes();
    run.pages(PAGES);
    run.restart(2);
    run.node(1, "a", 10);
    run.link(vec![copy(9, (0, 0), None, None)]);
    let loads = |run: &Run| {
        let page =
            |work: &&OriginOutput| matches!(work, OriginOutput::Load { key: LoadKey::Page(_), .. });
        run.store.queue.iter().filter(page).count()
    };
    while loads(&run) == 0 {
        run.store(None);
    }
    assert_eq!(loads(&run), AT_ONCE);
    let mut answered = 0;
    while loads(&run) > 1 {
        run.store_last();
        answered += 1;
    }
    assert_eq!(answered, AT_ONCE - 1, "no more are asked for, while the first is slow");
    let mut out = Vec::new();
    while copied(&out).is_none() {
        out = run.store(None);
    }
}
