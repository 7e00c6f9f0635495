//! A number for every message, for the trace hash: cheap, and different whenever what matters is.

use larder_core::across::OriginMessage;
use larder_core::commit::Outcome;
use larder_core::group::GroupMessage;
use larder_core::id::PageId;
use larder_core::message::{CopyAnswer, Message, PageBody, ResumeAnswer};

/// Mixes numbers in order.
struct Mixer(u64);

impl Mixer {
    fn add(&mut self, number: u64) -> &mut Self {
        self.0 = (self.0.rotate_left(29) ^ number).wrapping_mul(0xd6e8_feb8_6659_fd93);
        self
    }
}

/// The number of a message.
#[must_use]
pub fn digest(message: &Message) -> u64 {
    let mut mixer = Mixer(message_kind(message));
    mix(&mut mixer, message);
    mixer.0
}

fn mix<'a>(mixer: &'a mut Mixer, message: &Message) -> &'a mut Mixer {
    match message {
        Message::Goodbye { .. } | Message::Hello { .. } | Message::Welcome { .. } => mixer,
        Message::Resume { request, domain, through, .. } => {
            mixer.add(request.0).add(domain.0).add(through.map_or(u64::MAX, |stamp| stamp.0))
        }
        Message::Fetch { request, pages, .. } => {
            let have = pages.iter().filter_map(|ask| ask.have).map(|stamp| stamp.0).sum();
            let numbers = pages.iter().map(|ask| ask.page.page.0).sum();
            mixer.add(request.0).add(numbers).add(have)
        }
        Message::Evicted { pages, .. } | Message::Holding { pages, .. } => {
            mixer.add(pages.iter().map(|page| page.page.0).sum())
        }
        Message::Confirm { upto, open, .. } => mixer.add(*upto).add(open.iter().sum()),
        Message::AllocateIds { request, count, .. } => mixer.add(request.0).add(*count),
        Message::OpenVolume { request, .. }
        | Message::ListVolumes { request, .. }
        | Message::CreateVolume { request, .. }
        | Message::ChangeVolume { request, .. }
        | Message::DeleteVolume { request, .. }
        | Message::VolumeDeleted { request, .. }
        | Message::AskRights { request, .. }
        | Message::Rights { request, .. }
        | Message::CopyPages { request, .. }
        | Message::Volume { request, .. }
        | Message::Volumes { request, .. }
        | Message::Failed { request, .. } => mixer.add(request.0),
        Message::KeepAlive => mixer,
        Message::Group(message) => mix_group(mixer, message),
        Message::Origin(message) => match message {
            OriginMessage::Greets { name, .. } => mixer.add(name.len() as u64),
            OriginMessage::Serves { domains } => mixer.add(domains.len() as u64),
            OriginMessage::Says { from, to, .. } => mixer.add(from.0).add(to.0),
        },
        Message::For { name, message } => {
            mixer.add(name.len() as u64).add(message_kind(message));
            mix(mixer, message)
        }
        Message::VolumeRights { volume, rights, .. } => {
            mixer.add(volume.0 as u64).add(u64::from(rights.least().number()))
        }
        Message::Beat { sent, .. } | Message::Refresh { sent, .. } => mixer.add(sent.0),
        Message::Credit { bytes, .. } => mixer.add(u64::from(*bytes)),
        Message::Commit { commit, .. } => mixer
            .add(commit.id.sequence)
            .add(commit.base.0)
            .add(commit.reads.len() as u64)
            .add(commit.writes.len() as u64),
        Message::Register { boot, fresh, .. } => mixer.add(boot.0 as u64).add(u64::from(*fresh)),
        Message::Left { name } => mixer.add(name.len() as u64),
        Message::Registered { boot, .. } | Message::Unregistered { boot, .. } => {
            mixer.add(boot.0 as u64)
        }
        Message::Committed { id, outcome, .. } => mixer.add(id.sequence).add(match outcome {
            Outcome::Committed(stamp) => stamp.0,
            Outcome::Aborted(_) => u64::MAX,
            Outcome::Unknown => u64::MAX - 1,
        }),
        Message::CommitDeferred { id, passed, .. } => mixer.add(id.sequence).add((*passed).into()),
        Message::Ids { range, .. } => mixer.add(range.first.0).add(range.count),
        Message::Resumed { answer, stale, through, done, .. } => mixer
            .add(match answer {
                ResumeAnswer::From(stamp) => stamp.0,
                ResumeAnswer::Reset => u64::MAX,
            })
            .add(stale.iter().map(|page| page.page.0).sum())
            .add(through.0)
            .add(u64::from(*done)),
        Message::Advance { from, through, changes, stale, .. } => {
            let pages: usize = changes.iter().map(|change| change.pages.len()).sum();
            mixer.add(from.0).add(through.0).add(pages as u64).add(stale.len() as u64)
        }
        Message::History { epochs, .. } => {
            mixer.add(epochs.last().map_or(0, |epoch| epoch.history.0 as u64))
        }
        Message::Pages { request, pages, .. }
        | Message::Copied { request, answer: CopyAnswer { pages, .. } } => {
            mixer.add(request.0);
            for page in pages {
                let body = match &page.body {
                    PageBody::Valid => 1,
                    PageBody::Data(bytes) => bytes.len() as u64,
                    PageBody::Holed(bytes, holes) => (bytes.len() + holes.len()) as u64,
                    PageBody::Absent => 2,
                };
                mixer.add(page.page.page.0).add(page.version.0).add(page.as_of.0).add(body);
            }
            mixer
        }
    }
}

fn mix_group<'a>(mixer: &'a mut Mixer, message: &GroupMessage) -> &'a mut Mixer {
    let sum = |pages: &[PageId]| pages.iter().map(|page| page.page.0).sum();
    match message {
        GroupMessage::Join { address } => mixer.add(address.len() as u64),
        GroupMessage::Reach { members } => mixer.add(members.len() as u64),
        GroupMessage::Members { members } => mixer.add(members.len() as u64),
        GroupMessage::Complete { pages, .. } => mixer.add(sum(pages)),
        GroupMessage::Acknowledged { through, .. } => mixer.add(through.0),
        GroupMessage::Peer { life, .. } => mixer.add(life.0 as u64),
        GroupMessage::Helped { request, pages, end, .. } => {
            mixer.add(request.0).add(sum(pages)).add(*end as u64)
        }
        GroupMessage::Pointed { request, pages, helper, holes, .. } => {
            mixer.add(request.0).add(sum(pages)).add(helper.0 as u64).add(u64::from(*holes))
        }
        GroupMessage::Help { request, pages, asker, position, holes, .. } => {
            let mixer = mixer.add(request.0).add(sum(pages)).add(asker.0 as u64);
            mixer.add(position.0).add(u64::from(*holes))
        }
        GroupMessage::Update { id, stamp, writes, .. } => {
            mixer.add(id.sequence).add(stamp.0).add(writes.len() as u64)
        }
        GroupMessage::Lacks { request, pages, why, .. } => {
            mixer.add(request.0).add(sum(pages)).add(*why as u64)
        }
    }
}

/// A number for each kind of message.
fn message_kind(message: &Message) -> u64 {
    match message {
        Message::Goodbye { .. } => 1,
        Message::Hello { .. } => 2,
        Message::Resume { .. } => 3,
        Message::Fetch { .. } => 4,
        Message::Evicted { .. } => 5,
        Message::Holding { .. } => 6,
        Message::Confirm { .. } => 7,
        Message::AllocateIds { .. } => 8,
        Message::OpenVolume { .. } => 9,
        Message::ListVolumes { .. } => 10,
        Message::CreateVolume { .. } => 11,
        Message::Beat { .. } => 12,
        Message::Credit { .. } => 13,
        Message::Commit { .. } => 14,
        Message::Welcome { .. } => 15,
        Message::Registered { .. } => 16,
        Message::Committed { .. } => 17,
        Message::CommitDeferred { .. } => 18,
        Message::Ids { .. } => 19,
        Message::Volume { .. } => 20,
        Message::Volumes { .. } => 21,
        Message::Failed { .. } => 22,
        Message::Resumed { .. } => 23,
        Message::Advance { .. } => 24,
        Message::History { .. } => 25,
        Message::Pages { .. } => 26,
        Message::Register { .. } => 27,
        Message::Left { .. } => 28,
        Message::Unregistered { .. } => 29,
        Message::KeepAlive => 30,
        Message::Refresh { .. } => 31,
        Message::ChangeVolume { .. } => 32,
        Message::DeleteVolume { .. } => 33,
        Message::VolumeDeleted { .. } => 34,
        Message::AskRights { .. } => 36,
        Message::Rights { .. } => 37,
        Message::For { .. } => 38,
        Message::VolumeRights { .. } => 50,
        Message::CopyPages { .. } => 40,
        Message::Copied { .. } => 41,
        Message::Group(message) => match message {
            GroupMessage::Join { .. } => 60,
            GroupMessage::Reach { .. } => 61,
            GroupMessage::Helped { .. } => 62,
            GroupMessage::Members { .. } => 63,
            GroupMessage::Pointed { .. } => 64,
            GroupMessage::Help { .. } => 65,
            GroupMessage::Peer { .. } => 66,
            GroupMessage::Lacks { .. } => 67,
            GroupMessage::Update { .. } => 68,
            GroupMessage::Complete { .. } => 69,
            GroupMessage::Acknowledged { .. } => 70,
        },
        Message::Origin(message) => match message {
            OriginMessage::Greets { .. } => 71,
            OriginMessage::Serves { .. } => 72,
            OriginMessage::Says { .. } => 73,
        },
    }
}
