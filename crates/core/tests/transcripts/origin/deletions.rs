//! Transcripts of volumes that are deleted.

use super::volumes::hello_newest;
use super::*;
use larder_core::commit::{Op, PageKind};
use larder_core::id::{PageNo, RequestId, VolumeId};
use larder_core::message::{Lane, Message, VolumeKey, VolumeSpec};

fn delete(link: u64, request: u64) -> (String, LinkInput) {
    delete_of(link, request, VOLUME.0)
}

pub(super) fn delete_of(link: u64, request: u64, volume: u128) -> (String, LinkInput) {
    let volume = VolumeId(volume);
    received(link, Message::DeleteVolume { request: RequestId(request), volume })
}

fn open_named(link: u64, request: u64) -> (String, LinkInput) {
    let key = VolumeKey::Name("v".into());
    received(link, Message::OpenVolume { request: RequestId(request), key })
}

fn open_id(link: u64, request: u64) -> (String, LinkInput) {
    let key = VolumeKey::Id(VOLUME);
    received(link, Message::OpenVolume { request: RequestId(request), key })
}

fn numbers(link: u64, request: u64) -> (String, LinkInput) {
    let (request, volume) = (RequestId(request), VOLUME);
    received(link, Message::AllocateIds { request, volume, count: 1 })
}

/// Another volume of the same name.
fn create_again(link: u64, request: u64, id: u128) -> (String, LinkInput) {
    let (id, name) = (VolumeId(id), "v".into());
    let spec = VolumeSpec { id, name, page_bytes: 4096, domain: None };
    received(link, Message::CreateVolume { request: RequestId(request), spec })
}

/// Nodes a and b of today's version hold page 1 of volume 7.
fn two_newest(run: &mut Run) {
    run.two_nodes();
    run.quietly(vec![closed(1), closed(2)]);
    for (link, name, boot) in [(3, "a", 10), (4, "b", 20)] {
        run.quietly(vec![opened(link, name), hello_newest(link, name, boot)]);
        run.quietly(vec![resume_new(link, 1), register(link, name, boot)]);
        run.quietly(vec![fetch(link, 2, &[1])]);
    }
}

#[test]
fn a_deletion_takes_its_place_in_the_log() {
    let mut run = Run::new(
        "Deletions. a's commit is gathered before the deletion, b's after it; page numbers are asked \
         for after it too. None of it is told before it is durable. Then a's commit is acknowledged, \
         the streams tell every child, the asker is answered, and what came after is refused. From \
         then on opens, fetches, commits and numbers are refused with the deletion, the name is free, \
         and a deletion that is repeated is answered as it was.",
        OriginConfig::default(),
    );
    two_newest(&mut run);
    run.link(vec![Commit::new(10, 2, 2).put(1, 1, 1, "y").on(3), delete(3, 5)]);
    run.link(vec![Commit::new(20, 1, 2).put(1, 2, 1, "z").on(4), numbers(4, 6), delete(4, 7)]);
    run.link(vec![create_again(3, 8, 8)]);
    run.store(None);
    run.store(None);
    run.link(vec![open_named(4, 9), open_id(4, 10), fetch(4, 11, &[1]), numbers(4, 12)]);
    run.link(vec![Commit::new(20, 2, 4).read(1, 1).on(4), delete(4, 13)]);
    run.settle();
    run.link(vec![create_again(3, 14, 7), create_again(3, 15, 8)]);
    run.settle();
    run.link(vec![open_named(4, 16)]);
    run.t.end("origin_a_deletion_takes_its_place");
}

#[test]
fn a_deletion_that_a_full_store_refuses_is_none() {
    let mut run = Run::new(
        "Deletions. The store has no room for the record: the volume is as it was, and whoever was \
         to be told of the deletion is told why it is not. The same commit passes then.",
        OriginConfig::default(),
    );
    two_newest(&mut run);
    run.link(vec![delete(3, 5)]);
    run.link(vec![Commit::new(20, 1, 2).put(1, 2, 1, "z").on(4), numbers(4, 6)]);
    run.store(Some(StoreFault::Full("no segment left".into())));
    run.link(vec![Commit::new(20, 1, 2).put(1, 2, 1, "z").on(4), open_named(4, 7)]);
    run.settle();
    run.t.end("origin_a_deletion_without_room");
}

/// Makes pages 2 to `last` of the volume.
fn fill(run: &mut Run, last: u64) {
    for number in 2..=last {
        let commit = Commit::new(10, number, number).op(number, Op::CreatePage(PageKind::Slotted));
        run.quietly(vec![commit.on(3)]);
    }
}

#[test]
fn what_a_deleted_volume_left_is_removed_in_batches() {
    let mut run = Run::new(
        "Deletions. Pages 1 to 5 are installed, 6 is not. Batches have at most 2 pages. The volume is \
         deleted: its pages leave memory, 6 is never installed, the engine lists what it has, and it \
         is removed batch by batch, each with an install, and each with its entries of the change \
         index. In the middle the origin dies after a batch that was listed and not removed: the next \
         one begins anew, and removes what is left. At the end the log is trimmed, space is given \
         back, and the change index names the volume only.",
        OriginConfig { install_pages_max: 2, ..OriginConfig::default() },
    );
    two_newest(&mut run);
    fill(&mut run, 5);
    run.settle_pages();
    run.quietly(vec![Commit::new(10, 6, 6).op(6, Op::CreatePage(PageKind::Slotted)).on(3)]);
    run.link(vec![delete(3, 5)]);
    run.store(None);
    run.store(None);
    run.store(None);
    run.store(None);
    run.restart_midway(2);
    run.settle();
    run.wait(3);
    run.settle();
    run.say_index();
    run.restart(3);
    run.wait(3);
    run.t.end("origin_what_a_deleted_volume_left");
}

#[test]
fn what_cannot_be_listed_is_in_nobodys_way() {
    let mut run = Run::new(
        "Deletions (bug 64). The engine cannot list what is left of volume 7: it was asked for the same, \
         second after second, nobody was told, and nothing was ever removed of a volume that was deleted later. \
         Now the operator is told once, volume 8 goes first, and 7 is asked for again after it. Once it can be \
         listed that is told, and it is removed.",
        OriginConfig::default(),
    );
    two_newest(&mut run);
    fill(&mut run, 2);
    run.settle_pages();
    let key = VolumeSpec { id: VolumeId(8), name: "w".into(), page_bytes: 4096, domain: None };
    let request = RequestId(4);
    run.quietly(vec![received(3, Message::CreateVolume { request, spec: key })]);
    let unread = || Some(StoreFault::Failed("input/output error".into()));
    run.link(vec![delete(3, 5)]);
    run.store(None);
    run.settle_until_listing();
    run.store(unread());
    run.link(vec![delete_of(3, 6, 8)]);
    run.store(None);
    run.wait(2);
    run.settle_until_listing();
    run.store(None);
    run.wait(1);
    run.settle_until_listing();
    run.store(unread());
    run.wait(2);
    run.settle();
    run.t.end("origin_what_cannot_be_listed");
}

#[test]
fn pages_of_a_deleted_volume_are_forgotten_in_steps() {
    let mut run = Run::new(
        "Deletions. Pages 1 to 6 are changed and not installed, 2 in a step are forgotten. All of them \
         were looked at in the step that makes the deletion durable, with commits waiting behind it: a \
         hundred thousand took tens of milliseconds. Now the deletion is told at once, and the others \
         are forgotten in the steps after it; meanwhile nothing is installed, nobody who comes back is \
         told of them, and at the end nothing of them ever was installed.",
        OriginConfig { forget_pages_max: 2, ..OriginConfig::default() },
    );
    two_newest(&mut run);
    fill(&mut run, 6);
    run.quietly(vec![opened(5, "c"), hello_newest(5, "c", 30)]);
    run.link(vec![delete(3, 5)]);
    run.store(None);
    run.link(vec![resume(5, 1, &[(1, 1)], 1)]);
    run.settle();
    run.wait(3);
    run.settle();
    assert!(run.store.pages.keys().all(|page| page.is_volume()), "none was installed");
    run.t.end("origin_pages_of_a_deleted_volume_in_steps");
}

#[test]
fn an_install_under_way_does_not_bring_back_what_was_deleted() {
    let mut run = Run::new(
        "Deletions. An install of pages of the volume is under way when the volume is deleted. The \
         engine is not asked what there is to be removed before that install has ended: it would not \
         name them. Once it has, they are found and removed. Failed for lack of room, it is not \
         repeated.",
        OriginConfig::default(),
    );
    two_newest(&mut run);
    fill(&mut run, 3);
    run.wait(3);
    run.link(vec![delete(3, 5)]);
    run.store_last();
    run.settle();
    run.say_index();
    run.t.end("origin_an_install_under_way_and_a_deletion");
}

#[test]
fn a_resume_from_before_a_deletion_is_told_of_it() {
    let mut run = Run::new(
        "Deletions. c was there at stamp 3 and comes back after the deletion at 4: from the ring, the \
         commits not yet installed, and, after a start of the origin and the removal of all pages, \
         from the change index, it is told that the volume as a whole has changed.",
        OriginConfig::default(),
    );
    two_newest(&mut run);
    fill(&mut run, 2);
    run.quietly(vec![delete(3, 5)]);
    run.quietly(vec![opened(5, "c"), hello_newest(5, "c", 30)]);
    run.link(vec![resume(5, 1, &[(1, 1)], 3)]);
    run.settle();
    run.restart(2);
    run.quietly(vec![opened(6, "c"), hello_newest(6, "c", 30)]);
    run.link(vec![resume(6, 1, &[(1, 1)], 3)]);
    run.settle();
    run.settle_pages();
    run.restart(3);
    run.quietly(vec![opened(7, "c"), hello_newest(7, "c", 30)]);
    run.link(vec![resume(7, 1, &[(1, 1)], 3)]);
    run.settle();
    run.t.end("origin_a_resume_from_before_a_deletion");
}

#[test]
fn a_deletion_is_found_in_the_log() {
    let mut run = Run::new(
        "Deletions. The origin dies after the deletion was logged, with commits of the volume before \
         it that were not installed: at the start the volume is not there, its name is free, its pages \
         are not installed, and the deletion, asked for again since its answer was lost, is answered; \
         who asks for its pages is told that it was deleted, not that there is no such volume. \
         Then another volume of the name is made, and the origin dies again: that one is there.",
        OriginConfig::default(),
    );
    two_newest(&mut run);
    fill(&mut run, 3);
    run.link(vec![delete(3, 5)]);
    run.store_quietly(None);
    run.restart(2);
    run.quietly(vec![opened(5, "a"), hello_newest(5, "a", 11)]);
    run.quietly(vec![resume_new(5, 1)]);
    run.link(vec![open_named(5, 2), open_id(5, 3), delete(5, 4), fetch(5, 6, &[1])]);
    run.link(vec![create_again(5, 5, 8)]);
    run.settle();
    run.restart(3);
    run.quietly(vec![opened(6, "a"), hello_newest(6, "a", 12)]);
    run.quietly(vec![resume_new(6, 1)]);
    run.link(vec![open_named(6, 2), delete(6, 3)]);
    run.t.end("origin_a_deletion_is_found_in_the_log");
}

#[test]
fn a_child_of_an_older_version_is_told_what_it_knows() {
    let mut run = Run::new(
        "Deletions. a speaks protocol version 1: it is told that there is no such volume, by its \
         stream of a page that it has never heard of, and nothing that it does not know.",
        OriginConfig::default(),
    );
    two_newest(&mut run);
    run.quietly(vec![opened(5, "c"), hello(5, "c", 30), resume_new(5, 1)]);
    run.quietly(vec![register(5, "c", 30), fetch(5, 2, &[1])]);
    run.link(vec![delete(3, 5)]);
    run.store(None);
    run.link(vec![open_id(5, 3), fetch(5, 4, &[1]), Commit::new(30, 1, 2).put(1, 2, 1, "z").on(5)]);
    run.settle();
    run.t.end("origin_a_deletion_and_an_older_child");
}

#[test]
fn pages_that_are_being_loaded_of_a_deleted_volume() {
    let mut run = Run::new(
        "Deletions. Page 2 is not in memory. b fetches it, and commits to it: both wait for the load \
         when the volume is deleted. When it comes, both are told of the deletion.",
        OriginConfig { page_cache_bytes: 0, ..OriginConfig::default() },
    );
    two_newest(&mut run);
    fill(&mut run, 2);
    run.settle_pages();
    run.link(vec![fetch(4, 5, &[2])]);
    run.link(vec![Commit::new(20, 1, 3).put(2, 2, 1, "z").on(4), delete(3, 6)]);
    run.store_last();
    run.settle();
    assert_eq!(run.store.pages.keys().filter(|page| page.page != PageNo::VOLUME).count(), 0);
    run.t.end("origin_loads_of_a_deleted_volume");
}

#[test]
fn bug_162_a_list_that_comes_after_the_deletion() {
    let mut config = OriginConfig::default();
    config.downlink.limits.stream_window_bytes = 1;
    let mut run = Run::new(
        "Deletions (bug 162). c comes back with page 1 as of stamp 2, and its line is slow: it is told one thing \
         after the other. Page 1 changes at 3, and the volume is deleted at 4, before c's list comes. The list was \
         taken for one of nothing, since the volume was not there any more, and c was not told of 3: between that \
         and the deletion it showed page 1 of before. It is told of both.",
        config,
    );
    run.two_nodes();
    let more = |bytes| received(5, Message::Credit { lane: Lane::Stream, bytes });
    run.quietly(vec![opened(5, "c"), hello_newest(5, "c", 30)]);
    run.link(vec![resume(5, 1, &[(1, 1)], 2)]);
    run.quietly(vec![Commit::new(10, 2, 2).put(1, 1, 1, "y").on(1)]);
    run.quietly(vec![delete(1, 5)]);
    run.link(vec![holding(5, &[1])]);
    run.link(vec![more(500)]);
    run.t.end("origin_bug_162_a_list_after_the_deletion");
}

#[test]
fn bug_164_pages_are_not_removed_before_the_deletion_is_in_the_index() {
    let mut config = OriginConfig::default();
    config.downlink.ring_commits_max = 1;
    let mut run = Run::new(
        "Deletions (bug 164). c comes back after stamp 2, which the ring does not reach any more, and the change \
         index is asked what changed since; that takes a while. The volume is deleted meanwhile, and its pages \
         are removed, with their entries of the index: c was told that nothing of it had changed up to 4. The \
         page that stands for the volume is installed with that, at the latest: c is told that the volume as a \
         whole has changed.",
        config,
    );
    two_newest(&mut run);
    fill(&mut run, 3);
    run.settle_pages();
    run.quietly(vec![opened(5, "c"), hello_newest(5, "c", 30)]);
    run.link(vec![resume(5, 1, &[(1, 1)], 2)]);
    run.link(vec![delete(3, 5)]);
    for _ in 0..3 {
        run.store_last();
    }
    run.settle();
    run.t.end("origin_bug_164_removed_before_it_was_told");
}

/// The page that stands for a deleted volume goes with the removal of its pages. That counted for an install of what
/// else was changed, which was put off by as long again: where a volume was deleted every second nothing was
/// installed any more, and the log was never trimmed.
#[test]
fn deletions_put_no_install_off() {
    let mut run = Run::new("Not written", OriginConfig::default());
    two_newest(&mut run);
    run.settle_pages();
    run.quietly(vec![Commit::new(10, 2, 2).put(1, 1, 1, "y").on(3)]);
    let changed = crate::parent::page(1);
    let before = run.store.pages[&changed].version;
    for number in 0..5 {
        let (id, name) = (VolumeId(900 + number), format!("w{number}"));
        let spec = VolumeSpec { id, name, page_bytes: 4096, domain: None };
        let (request, delete) = (RequestId(50 + 2 * number as u64), 51 + 2 * number as u64);
        run.quietly(vec![received(3, Message::CreateVolume { request, spec })]);
        run.quietly(vec![delete_of(3, delete, id.0)]);
        run.pass(1);
    }
    assert!(run.store.pages[&changed].version > before, "it is installed when it is due");
}
