//! Transcripts of volumes that were deleted so long ago that the origin's memory does not have them.

use super::deletions::delete_of;
use super::volumes::hello_newest;
use super::*;
use larder_core::id::{RequestId, VolumeId};
use larder_core::message::{Message, VolumeSpec};
use larder_core::record::DELETED_MAX;

fn create(link: u64, request: u64, id: u128) -> (String, LinkInput) {
    let (id, name) = (VolumeId(id), format!("n{id}"));
    let spec = VolumeSpec { id, name, page_bytes: 4096, domain: None };
    received(link, Message::CreateVolume { request: RequestId(request), spec })
}

/// As many volumes as are kept in memory when they are deleted.
fn others() -> impl Iterator<Item = u128> {
    (100..).take(DELETED_MAX)
}

impl Run {
    /// Feeds inputs; the store does all its work but installs, unwritten.
    fn without_installs(&mut self, inputs: Vec<(String, LinkInput)>) {
        for (_, input) in inputs {
            let (mut out, input) = (Vec::new(), OriginInput::Link(input));
            larder_core::machine::Machine::handle(&mut self.t.machine, self.t.now, input, &mut out);
            self.keep(&out);
            let is_other = |work: &OriginOutput| !matches!(work, OriginOutput::Install { .. });
            while let Some(place) = self.store.queue.iter().position(is_other) {
                let other = self.store.queue.remove(place);
                self.store.queue.insert(0, other);
                self.store_quietly(None);
            }
        }
    }

    /// Whether the store's next work removes pages of this volume.
    fn removes_next(&self, volume: u128) -> bool {
        let of = |(page, _): &(PageId, Stamp)| page.volume == VolumeId(volume);
        match self.store.queue.first() {
            Some(OriginOutput::Install { batch, .. }) => batch.removed.iter().any(of),
            _ => false,
        }
    }
}

/// Node a (link 3); volume 7 is deleted, and more others after it than are kept in memory.
fn long_after() -> Vec<(String, LinkInput)> {
    let others = others().chain([99]).flat_map(|id| [create(3, 4, id), delete_of(3, 4, id)]);
    [delete_of(3, 3, 7)].into_iter().chain(others).collect()
}

#[test]
fn a_volume_that_was_deleted_long_ago() {
    let mut run = Run::new(
        "Deletions. Volume 7 is deleted, then 257 others: of 7 the origin's memory knows nothing more. \
         The requests to make 7 and to delete it come again, their answers were lost: 7 was made anew, \
         empty, under the id of a deleted one, and its deletion was answered with 'no such volume'. \
         Now the page that stands for the volume is looked for in the page engine: it was deleted, and \
         so both are answered. A new id is looked for as well, and made; a request for it that comes \
         meanwhile waits for the same. Of an id that was never there a deletion is told that. An engine \
         that cannot tell has the request refused; one that does not answer too, after its limit.",
        OriginConfig { wait_max: Duration::from_secs(4), ..OriginConfig::default() },
    );
    run.two_nodes();
    run.quietly(vec![closed(1), closed(2), opened(3, "a"), hello_newest(3, "a", 10)]);
    run.quietly(vec![resume_new(3, 1), register(3, "a", 10)]);
    run.quietly(long_after());
    run.pass(3);
    run.restart(2);
    run.quietly(vec![opened(3, "a"), hello_newest(3, "a", 10)]);
    run.quietly(vec![resume_new(3, 1), register(3, "a", 10)]);
    run.link(vec![create(3, 5, 7)]);
    run.settle();
    run.link(vec![delete_of(3, 6, 7)]);
    run.settle();
    run.link(vec![create(3, 7, 8), create(3, 8, 8), delete_of(3, 9, 9)]);
    run.settle();
    run.link(vec![create(3, 10, 11)]);
    run.store(Some(StoreFault::Failed("input/output error".into())));
    run.link(vec![create(3, 11, 11)]);
    run.wait(5);
    run.settle();
    run.link(vec![create(3, 12, 11)]);
    run.settle();
    run.t.end("origin_a_volume_that_was_deleted_long_ago");
}

#[test]
fn a_last_batch_that_is_refused_is_not_forgotten() {
    let mut run = Run::new(
        "Deletions. Volume 900 is deleted before 256 others, and removed after them. Its last batch is \
         under way when volume 7 is deleted: 257 volumes of which nothing is left, if that batch is \
         installed, and 900 is the oldest of them. It was forgotten; the engine was full, and refused \
         the batch; the removal found nobody whose it was, and no volume was removed any more until \
         the next start. Now it is kept until its batch is answered. When there is room again the batch \
         goes, and then 7 is removed.",
        OriginConfig::default(),
    );
    run.two_nodes();
    run.quietly(vec![closed(1), closed(2), opened(3, "a"), hello_newest(3, "a", 10)]);
    run.quietly(vec![resume_new(3, 1), register(3, "a", 10)]);
    run.quietly(others().chain([900]).map(|id| create(3, 4, id)).collect());
    run.pass(3);
    run.quietly(vec![Commit::new(10, 2, 2).put(1, 1, 1, "y").on(3)]);
    run.pass_without_store(3);
    run.without_installs(vec![delete_of(3, 4, 900)]);
    run.without_installs(others().map(|id| delete_of(3, 4, id)).collect());
    while !run.removes_next(900) {
        run.store_quietly(None);
    }
    run.link(vec![delete_of(3, 5, 7)]);
    run.store_last();
    run.store(Some(StoreFault::Full("no room".into())));
    run.wait(2);
    run.settle();
    run.wait(3);
    run.settle();
    assert!(run.store.pages.keys().all(|page| page.is_volume()), "all are removed");
    run.t.end("origin_a_last_batch_that_is_refused");
}
