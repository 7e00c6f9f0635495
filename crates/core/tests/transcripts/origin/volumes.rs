//! Transcripts of what a volume is to its owner: what it takes, its quota.

use super::*;
use larder_core::commit::{Op, PageKind};
use larder_core::id::RequestId;
use larder_core::message::{Message, VolumeChange, VolumeKey};

fn change(link: u64, request: u64, change: VolumeChange) -> (String, LinkInput) {
    received(link, Message::ChangeVolume { request: RequestId(request), volume: VOLUME, change })
}

fn quota(link: u64, request: u64, bytes: Option<u64>) -> (String, LinkInput) {
    change(link, request, VolumeChange::Quota(bytes))
}

/// The handshake of a node of today's version.
pub(super) fn hello_newest(link: u64, name: &str, boot: u128) -> (String, LinkInput) {
    let (boot, role) = (larder_core::id::BootId(boot), larder_core::message::Role::Node);
    let max_version = larder_core::message::PROTOCOL_VERSION;
    received(link, Message::Hello { min_version: 1, max_version, name: name.into(), boot, role })
}

/// Asks what the volume takes.
fn look(link: u64, request: u64) -> (String, LinkInput) {
    let key = VolumeKey::Id(VOLUME);
    received(link, Message::OpenVolume { request: RequestId(request), key })
}

/// Of a record that is no smaller than any.
const TEN: &str = "ten bytes.";

#[test]
fn a_quota_is_held_exactly() {
    let mut run = Run::new(
        "Quotas. Volume 7 takes 46 bytes: page 1 with one object. Its quota becomes 81 bytes, and \
         holds for what is stamped after that record, before it is durable. a's commit (23 bytes) fits. \
         c's, gathered beside it, does not: of a's, which is not durable yet, it must know, and so it \
         is refused with volume, quota and what the volume takes, when a's is durable. So is b's, which \
         speaks protocol version 1 and is told what it knows: too large. The refusals are kept (they \
         may pass). A commit that shrinks is taken (of the object its generation stays, 12 bytes), and \
         then b's next one fits, to the byte.",
        OriginConfig::default(),
    );
    run.two_nodes();
    run.quietly(vec![opened(3, "c"), hello_newest(3, "c", 30)]);
    run.quietly(vec![resume_new(3, 1), register(3, "c", 30)]);
    run.link(vec![look(1, 5)]);
    run.link(vec![quota(1, 6, Some(81)), Commit::new(10, 2, 2).put(1, 2, 1, TEN).on(1)]);
    run.link(vec![Commit::new(30, 1, 2).put(1, 3, 1, TEN).on(3)]);
    run.link(vec![Commit::new(20, 1, 2).put(1, 3, 1, TEN).on(2)]);
    run.settle();
    run.link(vec![Commit::new(10, 3, 3).delete(1, 2, 1).on(1)]);
    run.settle();
    run.link(vec![Commit::new(20, 2, 3).put(1, 3, 1, TEN).on(2)]);
    run.settle();
    run.link(vec![look(1, 7)]);
    run.t.end("origin_a_quota_is_held_exactly");
}

#[test]
fn a_quota_that_is_passed_lets_the_volume_shrink() {
    let mut run = Run::new(
        "Quotas. Volume 7 takes 46 bytes and gets a quota of 10. A commit that overwrites with fewer \
         bytes is taken, one with as many too, one with a byte more is not. A commit that deletes may \
         write a little elsewhere, as the removal of a name does. Without a quota all is as before.",
        OriginConfig::default(),
    );
    run.two_nodes();
    run.quietly(vec![quota(1, 5, Some(10))]);
    run.link(vec![Commit::new(10, 2, 2).put(1, 1, 1, "").on(1)]);
    run.settle();
    run.link(vec![Commit::new(10, 3, 3).put(1, 1, 1, "").on(1)]);
    run.settle();
    run.link(vec![Commit::new(10, 4, 4).put(1, 1, 1, "y").on(1)]);
    run.settle();
    run.link(vec![Commit::new(10, 5, 4).delete(1, 1, 1).put(1, 2, 1, TEN).on(1)]);
    run.settle();
    run.link(vec![quota(1, 6, None)]);
    run.settle();
    run.link(vec![Commit::new(10, 6, 5).put(1, 3, 1, TEN).on(1)]);
    run.settle();
    run.t.end("origin_a_quota_that_is_passed");
}

#[test]
fn what_a_volume_takes_survives() {
    let mut run = Run::new(
        "Quotas. What a volume takes, and its quota, are the same after a start from the log alone, \
         after an install, and after a start from what was installed; pages made, cut and deleted are \
         counted with the bytes of their images. What a full store takes back is not counted: the \
         commit that was refused then passes.",
        OriginConfig::default(),
    );
    run.two_nodes();
    run.quietly(vec![quota(1, 5, Some(200))]);
    let raw = Op::CreatePage(PageKind::Raw);
    let write = Op::WriteRaw { offset: 0, bytes: vec![7; 100].into() };
    run.quietly(vec![Commit::new(10, 2, 2).op(2, raw).op(2, write).on(1)]);
    run.quietly(vec![Commit::new(10, 3, 3).op(2, Op::TruncateRaw { length: 40 }).on(1)]);
    run.link(vec![look(1, 6)]);
    run.link(vec![Commit::new(10, 4, 4).put(1, 2, 1, TEN).on(1), quota(1, 7, Some(50))]);
    run.store(Some(StoreFault::Full("no segment left".into())));
    run.settle();
    run.link(vec![Commit::new(10, 4, 4).put(1, 2, 1, TEN).on(1)]);
    run.settle();
    run.restart(2);
    run.node(1, "a", 10);
    run.link(vec![look(1, 8)]);
    run.settle_pages();
    run.restart(3);
    run.node(1, "a", 10);
    run.link(vec![look(1, 9)]);
    run.quietly(vec![Commit::new(10, 5, 5).in_history(3).op(2, Op::DeletePage).on(1)]);
    run.link(vec![look(1, 10)]);
    run.t.end("origin_what_a_volume_takes");
}
