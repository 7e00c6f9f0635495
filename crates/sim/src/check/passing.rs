//! What relays pass on for relays below them: through a relay nobody may do more than the relay itself, and of
//! one that is below another the origin knows nothing (decision 0016). And whom redirectors point to a neighbour: the
//! origin does not hear of that. Held against what the upper one was told on the link over which it passes on, or has
//! at that moment. Names only, no patterns: that is what runs say.

use larder_core::group::GroupMessage;
use larder_core::id::{CommitId, DomainId, VolumeId};
use larder_core::message::{Message, certificate_of};
use larder_core::rights::{EVERYBODY, Right, Rights};
use std::collections::{BTreeMap, BTreeSet};

/// Who came with what, and what was told of their rights.
#[derive(Debug, Default)]
pub struct Passing {
    /// Nothing is noted in a run in which nobody changes rights.
    watches: bool,
    /// Rights by connection up and volume.
    told: BTreeMap<(u32, VolumeId), Rights>,
    /// Who brought a commit to a relay, by place: relays by their names, or a node.
    brought: BTreeMap<(u16, DomainId, CommitId), BTreeSet<Option<String>>>,
}

impl Passing {
    /// Of a run in which rights change, or do not.
    #[must_use]
    pub fn new(watches: bool) -> Self {
        Self { watches, ..Self::default() }
    }

    /// A relay is told something by its parent.
    pub fn told(&mut self, conn: u32, message: &Message) {
        if let (Message::VolumeRights { volume, rights, .. }, true) = (message, self.watches) {
            self.told.insert((conn, *volume), rights.list().clone());
        }
    }

    /// A commit comes to a relay: from another one, of this name, or from a node.
    pub fn comes(&mut self, relay: u16, from: Option<String>, message: &Message) {
        if let (Message::Commit { domain, commit }, true) = (message, self.watches) {
            self.brought.entry((relay, *domain, commit.id)).or_default().insert(from);
        }
    }

    /// A relay passes a commit on. Panics when none of those who brought it may write what it writes.
    pub fn passes(&self, relay: u16, conn: u32, message: &Message) {
        let Message::Commit { domain, commit } = message else { return };
        let Some(brought) = self.brought.get(&(relay, *domain, commit.id)) else { return };
        for write in &commit.writes {
            let volume = write.page.volume;
            let Some(told) = self.told.get(&(conn, volume)) else { continue };
            let may = |who: &Option<String>| {
                who.as_ref().is_none_or(|name| right_of(told, name) >= Right::Write)
            };
            assert!(
                brought.iter().any(may),
                "rights: relay {relay} passes on {:?}, which writes to {volume}; it came from \
                 {brought:?}, and the relay was told of {told:?}",
                commit.id
            );
        }
    }

    /// A redirector sends a child something, and has this link up. Panics when it points the child to a neighbour for
    /// what it may not read, as far as the redirector was told.
    pub fn points(&self, relay: u16, up: Option<u32>, child: &str, message: &Message) {
        let (Message::Group(GroupMessage::Pointed { pages, .. }), Some(up)) = (message, up) else {
            return;
        };
        for volume in pages.iter().map(|page| page.volume) {
            let told = self.told.get(&(up, volume));
            let may = told.is_none_or(|told| right_of(told, certificate_of(child)) >= Right::Read);
            assert!(
                may,
                "rights: redirector {relay} points {child} to a neighbour for {volume}, and was told of {told:?}"
            );
        }
    }
}

/// What somebody may do by a complete list.
fn right_of(told: &Rights, who: &str) -> Right {
    let said = |name: &str| told.entries().find(|(entry, _)| *entry == name);
    said(who).or_else(|| said(EVERYBODY)).map_or(Right::None, |(_, right)| right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::commit::{CommitRequest, Op, Write};
    use larder_core::id::{BootId, HistoryId, PageId, PageNo, RequestId, Stamp};
    use larder_core::rights::Effective;

    const VOLUME: VolumeId = VolumeId(7);

    /// Relay 1, which was told that the relay `low` may only read, passes on what these brought.
    fn passes(from: &[Option<&str>]) {
        let write = Write { page: PageId { volume: VOLUME, page: PageNo(2) }, op: Op::DeletePage };
        let commit = CommitRequest {
            id: CommitId { boot: BootId(1), sequence: 1 },
            confirmed: 0,
            history: HistoryId(1),
            base: Stamp(1),
            numbers: Vec::new(),
            reads: Vec::new(),
            writes: vec![write],
            across: None,
        };
        let message = Message::Commit { domain: DomainId(1), commit };
        let list = [("low".to_owned(), Right::Read), (EVERYBODY.to_owned(), Right::Admin)];
        let rights = Effective::of_list(Rights::new(list, 4).expect("a short list"));
        let mut passing = Passing::new(true);
        let told = Message::VolumeRights { domain: DomainId(1), volume: VOLUME, rights };
        passing.told(3, &told);
        from.iter().for_each(|from| passing.comes(1, from.map(str::to_owned), &message));
        passing.passes(1, 4, &message);
        passing.passes(1, 3, &message);
    }

    /// A redirector that was told that `node1` may not read, and `node2` may, points them to a neighbour.
    fn points(to: &str, up: Option<u32>) {
        let list = [("node1".to_owned(), Right::None), (EVERYBODY.to_owned(), Right::Read)];
        let rights = Effective::of_list(Rights::new(list, 4).expect("a short list"));
        let mut passing = Passing::new(true);
        passing.told(3, &Message::VolumeRights { domain: DomainId(1), volume: VOLUME, rights });
        let pages = vec![PageId { volume: VOLUME, page: PageNo(2) }];
        let (request, domain, helper) = (RequestId(1), DomainId(1), BootId(9));
        let pointed = GroupMessage::Pointed { request, domain, pages, helper, holes: false };
        passing.points(1, up, to, &Message::Group(pointed));
    }

    #[test]
    fn who_may_read_is_pointed_to_a_neighbour() {
        points("node2", Some(3));
        // Over another link nothing was told yet, and without one nothing is known to be current.
        points("node1", Some(4));
        points("node1", None);
    }

    #[test]
    #[should_panic(expected = "rights: redirector 1 points node1")]
    fn who_may_not_read_is_not() {
        points("node1", Some(3));
    }

    #[test]
    fn what_a_node_or_another_relay_brings_is_passed_on() {
        passes(&[None]);
        passes(&[Some("other")]);
        passes(&[Some("low"), None]);
    }

    #[test]
    #[should_panic(expected = "rights: relay 1 passes on")]
    fn what_a_relay_brings_that_may_only_read_is_not() {
        passes(&[Some("low")]);
    }
}
