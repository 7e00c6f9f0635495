//! What each link may be told and answered: rights as they hold now (decision 0016).
//!
//! Only volumes with which not everybody may do everything are kept. A link's right is resolved once
//! and kept until the volume's rights change, so that no page costs a comparison of names.

use super::link::Link;
use super::{Downlinks, Follower};
use crate::id::{DomainId, LinkId, RequestId, VolumeId};
use crate::machine::Fault;
use crate::message::{Message, Role, VolumeInfo};
use crate::rights::{Denied, Effective, Right};
use std::collections::BTreeMap;

/// The protocol version from which on children are told of rights.
pub(super) const RIGHTS_SINCE: u32 = 3;

/// Rights resolved for one link at most; with more they are resolved anew.
const RESOLVED_MAX: usize = 1024;

/// Answers that a link remembers of volumes whose domains its child does not follow, at most.
const ANSWERED_MAX: usize = 1024;

/// A volume with which not everybody may do everything.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Restricted {
    domain: DomainId,
    /// For people: its name, or its id.
    name: String,
    rights: Effective,
    /// Questions up to this one were asked before they were heard of (relay; at the origin none is).
    heard: RequestId,
}

/// An answer that a link has told of a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Answered {
    domain: DomainId,
    right: Right,
    /// The question above whose answer was passed on (relay).
    asked: RequestId,
}

/// All of them. Those that are not here are everybody's.
pub(super) type Table = BTreeMap<VolumeId, Restricted>;

/// Looks up what a link's own child may do: kept with the link.
fn resolve(
    table: &Table,
    resolved: &mut BTreeMap<VolumeId, Right>,
    peer: &str,
    volume: VolumeId,
) -> Right {
    let Some(restricted) = table.get(&volume) else {
        return Right::Admin;
    };
    if let Some(right) = resolved.get(&volume) {
        return *right;
    }
    if resolved.len() == RESOLVED_MAX {
        resolved.clear();
    }
    let right = restricted.rights.of(peer);
    resolved.insert(volume, right);
    right
}

/// What of a domain's stream a child may be told.
pub(super) struct Reader<'a> {
    table: &'a Table,
    resolved: &'a mut BTreeMap<VolumeId, Right>,
    peer: &'a str,
    /// It knows what it is told of rights: else all is told, since its copies would pass for current.
    knows: bool,
    last: Option<(VolumeId, bool)>,
    /// Volumes of which something was withheld.
    withheld: Vec<VolumeId>,
}

impl Reader<'_> {
    /// Whether it may be told of this volume's changes.
    pub(super) fn may_read(&mut self, volume: VolumeId) -> bool {
        if self.table.is_empty() || !self.knows {
            return true;
        }
        if let Some((of, may)) = self.last
            && of == volume
        {
            return may;
        }
        let may = resolve(self.table, self.resolved, self.peer, volume) >= Right::Read;
        self.last = Some((volume, may));
        if !may && !self.withheld.contains(&volume) {
            self.withheld.push(volume);
        }
        may
    }

    /// Volumes of which something was withheld, and of which the child was not told on this link that
    /// it may not read them: it must be, before valid-through passes what it misses.
    pub(super) fn untold(self, follower: &mut Follower) -> Vec<VolumeId> {
        let mut withheld = self.withheld;
        follower.withheld.extend(&withheld);
        withheld.retain(|volume| follower.told.insert(*volume));
        withheld
    }
}

impl Link {
    /// Whether its child knows what it is told of rights.
    pub(super) fn knows_rights(&self) -> bool {
        self.named().is_some_and(|child| child.version >= RIGHTS_SINCE)
    }

    fn is_relay(&self) -> bool {
        self.named().is_some_and(|child| child.role == Role::Relay)
    }
}

/// A reader for a link whose parts are borrowed apart.
pub(super) fn reader<'a>(
    table: &'a Table,
    resolved: &'a mut BTreeMap<VolumeId, Right>,
    peer: &'a str,
    knows: bool,
) -> Reader<'a> {
    Reader { table, resolved, peer, knows, last: None, withheld: Vec::new() }
}

/// What a child is told of a volume: a node its own right, a relay those of all below it, as far as
/// its own goes.
pub(super) fn told(
    table: &Table,
    domain: DomainId,
    volume: VolumeId,
    (peer, role): (&str, Role),
) -> Message {
    let rights = table.get(&volume).map_or_else(
        || Effective::same(Right::Admin),
        |restricted| {
            let own = restricted.rights.of(peer);
            match role {
                Role::Node => Effective::same(own),
                Role::Relay => restricted.rights.capped(own),
            }
        },
    );
    Message::VolumeRights { domain, volume, rights }
}

/// Whether nobody may read a volume, by what is told of it.
pub(super) fn is_lost(message: &Message) -> bool {
    let Message::VolumeRights { rights, .. } = message else {
        return false;
    };
    is_nobodys(rights)
}

fn is_nobodys(rights: &Effective) -> bool {
    rights.list().entries().all(|(_, right)| right < Right::Read)
}

impl Follower {
    /// The child was told that it may read a volume of which something was withheld from it. What its stream has passed it
    /// drops itself; what that has not passed is looked at again, or, in the middle of an answer to a resume, the volume is
    /// named as a whole (bug 226):
    ///
    /// 1. The child stands at 10. The right is taken, page x changes at 14, which is withheld: nothing is to be sent of it, and
    ///    an advance that carries nothing waits; or a part of an answer without a page is not sent at all.
    /// 2. The right is given back, at 10. An answer with x as of 12 comes, or the child wrote x itself as of 12, ahead of its
    ///    stream. The stream goes on behind what was looked at, to 20, and tells nothing of x: what was committed at
    ///    14 is lost to who reads x now (P2).
    pub(super) fn may_read_again(&mut self, volume: VolumeId) {
        if !self.withheld.remove(&volume) {
            return;
        }
        if matches!(self.phase, super::Phase::Answering(..)) {
            crate::probe::probe("regained-within-an-answer");
            self.regained.insert(volume);
        } else if self.scanned > self.cursor {
            crate::probe::probe("withheld-is-looked-at-again");
            self.scanned = self.cursor;
        }
    }
}

impl Follower {
    /// The child was told by an answer what may be done with a volume, of which something is known here.
    fn right_answered(
        &mut self,
        (volume, answered): (VolumeId, Answered),
        known: Option<&Restricted>,
        (now, is_relay): (Right, bool),
    ) {
        let Some(known) = known else {
            if answered.right < now {
                self.owed.insert(volume);
            }
            return;
        };
        let more =
            if is_relay { known.rights.least() < answered.right } else { now < answered.right };
        let stale = known.heard > answered.asked;
        if answered.right < now && !is_relay || more && stale {
            self.owed.insert(volume);
        } else if more {
            // Too many, and what is in force here is said at once.
            let full = self.hopes.len() >= ANSWERED_MAX;
            let of = if full { &mut self.owed } else { &mut self.hopes };
            of.insert(volume);
        }
    }
}

impl Downlinks {
    /// These are a volume's rights from now on. Children that are concerned are told with their
    /// streams. Also of what was known here, where an answer has told of more: in between it may have been more
    /// (bug 187). A relay says which question it asks next.
    pub(crate) fn set_rights(
        &mut self,
        (domain, volume): (DomainId, VolumeId),
        name: &str,
        rights: Effective,
        heard: RequestId,
    ) {
        let untold = self.faults.has(Fault::RevokedUntold);
        let Self { links, restricted: table, .. } = self;
        let of = |rights: Option<&Restricted>, peer: &str| {
            rights.map_or(Right::Admin, |restricted| restricted.rights.of(peer))
        };
        let before = table.remove(&volume);
        if rights.least() < Right::Admin {
            let name = name.to_owned();
            table.insert(volume, Restricted { domain, name, rights, heard });
        }
        let after = table.get(&volume);
        let rights_of = |known: Option<&Restricted>| known.map(|known| known.rights.clone());
        let changes = rights_of(before.as_ref()) != rights_of(after);
        self.rights_changes += u64::from(changes);
        for link in links.values_mut() {
            link.resolved.remove(&volume);
            if !link.knows_rights() || untold {
                continue;
            }
            let (relay, right) = (link.is_relay(), of(after, &link.peer));
            let concerns = if relay { changes } else { of(before.as_ref(), &link.peer) != right };
            let Some(follower) = link.followers.get_mut(&domain) else { continue };
            if concerns || follower.hopes.contains(&volume) {
                follower.owed.insert(volume);
                if right < Right::Read {
                    follower.lost.insert(volume);
                }
            }
        }
    }

    /// A volume was made, and these are its rights. Nobody holds anything of it: a node hears its own
    /// right when it asks for the volume, and need not be told that what is withheld of it is.
    pub(crate) fn set_first_rights(
        &mut self,
        domain: DomainId,
        volume: VolumeId,
        name: &str,
        rights: Effective,
    ) {
        if rights.least() == Right::Admin {
            return;
        }
        self.rights_changes += 1;
        for link in self.links.values_mut().filter(|link| link.knows_rights()) {
            let (relay, right) = (link.is_relay(), rights.of(&link.peer));
            match link.followers.get_mut(&domain) {
                Some(follower) if relay => {
                    follower.owed.insert(volume);
                    if right < Right::Read {
                        follower.lost.insert(volume);
                    }
                }
                Some(follower) if right < Right::Read => {
                    follower.told.insert(volume);
                }
                _ => {}
            }
        }
        let (name, heard) = (name.to_owned(), RequestId(0));
        self.restricted.insert(volume, Restricted { domain, name, rights, heard });
    }

    /// A volume was deleted: nothing is withheld of it any more.
    pub(super) fn forget_rights(&mut self, volume: VolumeId) {
        let Some(restricted) = self.restricted.remove(&volume) else { return };
        for link in self.links.values_mut() {
            link.resolved.remove(&volume);
            if let Some(follower) = link.followers.get_mut(&restricted.domain) {
                follower.told.remove(&volume);
                follower.withheld.remove(&volume);
                follower.regained.remove(&volume);
            }
        }
    }

    /// Of volumes of a domain more stands in the ring now, or ought to have been told in what was looked at: that is looked at
    /// again, and whose resume is to be answered is told that all of them has changed.
    pub(crate) fn look_again(&mut self, domain: DomainId, volumes: &[VolumeId]) {
        for follower in self.links.values_mut().filter_map(|link| link.followers.get_mut(&domain)) {
            follower.scanned = follower.cursor;
            if !matches!(follower.phase, super::Phase::Streaming) {
                follower.regained.extend(volumes);
            }
        }
    }

    /// Whether somebody may read a volume with these rights, of which nobody might, as far as is known here: a relay was not told of
    /// what changed of it meanwhile.
    pub(crate) fn is_regained(&self, volume: VolumeId, rights: &Effective) -> bool {
        let known = self.restricted.get(&volume);
        known.is_some_and(|known| is_nobodys(&known.rights)) && !is_nobodys(rights)
    }

    /// An answer tells a node of its right. It counts as told on the stream, which tells when the node may do
    /// more, now or when it begins:
    ///
    /// 1. A node asks for a volume of a domain that it does not follow, and hears that it may not read it.
    /// 2. It asks for the domain's stream. The right is given to it before that comes: no stream of its
    ///    is there to tell.
    /// 3. It takes each page that it is sent for one from before, and asks again for ever (bug 115).
    ///
    /// A relay passes answers on that may be older than what it heard of rights itself, or newer, and cannot
    /// tell which. It tells of more than was answered, and not of less: a right that was just given, and
    /// of which it has not heard yet, would pass for lost. Of less it tells when it hears of the volume again,
    /// or at once if it did since it asked above. Below another relay it may be of anybody.
    pub(super) fn right_answered(&mut self, link: LinkId, info: &VolumeInfo, asked: RequestId) {
        let Self { links, restricted, .. } = self;
        let Some(entry) = links.get_mut(&link).filter(|link| link.knows_rights()) else { return };
        // It takes for everything what is not said.
        let right = info.right.unwrap_or(Right::Admin);
        let answered = Answered { domain: info.domain, right, asked };
        let is_relay = entry.is_relay();
        let Link { answered: kept, unremembered, resolved, peer, followers, .. } = entry;
        match followers.get_mut(&info.domain) {
            Some(follower) => {
                let now = resolve(restricted, resolved, peer, info.id);
                let known = restricted.get(&info.id);
                follower.right_answered((info.id, answered), known, (now, is_relay));
            }
            None if right == Right::Admin && !restricted.contains_key(&info.id) => {
                kept.remove(&info.id);
            }
            None if kept.len() < ANSWERED_MAX || kept.contains_key(&info.id) => {
                kept.insert(info.id, answered);
            }
            None => *unremembered = true,
        }
    }

    /// A child's stream of a domain begins. First a relay is told of all rights, and a node of those that
    /// are more than what answers told.
    pub(crate) fn owe_rights(&mut self, link: LinkId, domain: DomainId) {
        let Self { links, restricted, .. } = self;
        let Some(entry) = links.get_mut(&link).filter(|link| link.knows_rights()) else {
            return;
        };
        let is_relay = entry.is_relay();
        let Link { answered, unremembered, resolved, peer, followers, .. } = entry;
        let Some(follower) = followers.get_mut(&domain) else { return };
        answered.retain(|volume, of| {
            if of.domain == domain {
                let now = resolve(restricted, resolved, peer, *volume);
                if of.right != now {
                    crate::probe::probe("right-changed-before-the-stream");
                }
                follower.right_answered((*volume, *of), restricted.get(volume), (now, is_relay));
            }
            of.domain != domain
        });
        if is_relay || *unremembered {
            let of_domain = restricted.iter().filter(|(_, volume)| volume.domain == domain);
            follower.owed.extend(of_domain.map(|(volume, _)| *volume));
        }
    }

    /// A child comes back to a relay, which does not hear itself of what changed in volumes that it
    /// may not read: the child is told that it may not read them either, before its copies pass for
    /// current.
    pub(crate) fn owe_unread(&mut self, link: LinkId, domain: DomainId) {
        let Self { links, restricted, .. } = self;
        let Some(entry) = links.get_mut(&link).filter(|link| link.knows_rights()) else {
            return;
        };
        let peer = &entry.peer;
        if let Some(follower) = entry.followers.get_mut(&domain) {
            let unread = restricted.iter().filter(|(_, volume)| {
                volume.domain == domain && volume.rights.of(peer) < Right::Read
            });
            let unread: Vec<VolumeId> = unread.map(|(volume, _)| *volume).collect();
            // Also if a right comes before that is said: what changed until then is not heard of.
            follower.lost.extend(&unread);
            follower.owed.extend(unread);
        }
    }

    /// A child lists pages of a volume that it may not read: it must hear that.
    pub(super) fn owe_unreadable(&mut self, link: LinkId, domain: DomainId, volume: VolumeId) {
        let entry = self.links.get_mut(&link).filter(|link| link.knows_rights());
        let Some(follower) = entry.and_then(|entry| entry.followers.get_mut(&domain)) else {
            return;
        };
        if !follower.told.contains(&volume) {
            follower.owed.insert(volume);
        }
    }

    /// Volumes of a domain with which not everybody may do everything.
    pub(crate) fn restricted(&self, domain: DomainId) -> Vec<VolumeId> {
        let of_domain = self.restricted.iter().filter(|(_, volume)| volume.domain == domain);
        of_domain.map(|(volume, _)| *volume).collect()
    }

    /// The domain of a volume with which not everybody may do everything.
    pub(crate) fn domain_of_restricted(&self, volume: VolumeId) -> Option<DomainId> {
        self.restricted.get(&volume).map(|restricted| restricted.domain)
    }

    /// What a link's own child may do with a volume.
    pub(crate) fn right_of_link(&mut self, link: LinkId, volume: VolumeId) -> Right {
        let Self { links, restricted, .. } = self;
        let Some(entry) = links.get_mut(&link) else {
            return Right::None;
        };
        resolve(restricted, &mut entry.resolved, &entry.peer, volume)
    }

    /// What may be done with a volume over a link, for its own child or for somebody below it: through
    /// a relay nobody may do more than the relay itself.
    pub(crate) fn right(&mut self, link: LinkId, of: Option<&str>, volume: VolumeId) -> Right {
        let own = self.right_of_link(link, volume);
        let of = of.filter(|_| !self.faults.has(Fault::RelayAsksForAll));
        match (of, self.restricted.get(&volume)) {
            (Some(name), Some(restricted)) => own.min(restricted.rights.of(name)),
            _ => own,
        }
    }

    /// Whether so much may be done with a volume over a link, for its own child or for somebody below.
    pub(crate) fn check_right(
        &mut self,
        link: LinkId,
        of: Option<&str>,
        volume: VolumeId,
        needs: Right,
    ) -> Result<(), Box<Denied>> {
        if self.restricted.is_empty() || self.right(link, of, volume) >= needs {
            return Ok(());
        }
        let own = self.right_of_link(link, volume);
        let peer = self.links.get(&link).map_or("", |entry| entry.peer.as_str());
        let name = of.map_or(peer, crate::message::certificate_of);
        let restricted = self.restricted.get(&volume);
        let theirs = restricted.map_or(Right::Admin, |restricted| restricted.rights.of(name));
        // The relay's right is named where that of the asker would do.
        let (who, has) = if theirs < needs { (name, theirs) } else { (peer, own) };
        let who = who.to_owned();
        let name = restricted.map_or_else(|| volume.to_string(), |known| known.name.clone());
        Err(Box::new(Denied { volume: name, who, has, needs }))
    }

    /// The certificate of a link's child, if it is a relay.
    pub(crate) fn relay_of(&self, link: LinkId) -> Option<&str> {
        let entry = self.links.get(&link).filter(|link| link.is_relay())?;
        Some(&entry.peer)
    }

    /// The certificate of whoever asks over a link.
    pub(crate) fn asker<'a>(&'a self, link: LinkId, of: Option<&'a str>) -> &'a str {
        let peer = self.links.get(&link).map_or("", |entry| entry.peer.as_str());
        of.map_or(peer, crate::message::certificate_of)
    }

    /// For whom a fetch was asked: by a child for itself, or for somebody below it.
    pub(crate) fn fetched_for(&self, link: LinkId, request: RequestId) -> Option<String> {
        let entry = self.links.get(&link)?;
        let of = entry.fetches.get(&request).and_then(|fetching| fetching.of.clone());
        of.or_else(|| Some(entry.child()?.name.clone()))
    }

    /// Whether a page of a fetch that was taken may be answered still: rights may have changed while it
    /// waited.
    pub(crate) fn may_answer(
        &mut self,
        link: LinkId,
        request: RequestId,
        volume: VolumeId,
    ) -> Result<(), Box<Denied>> {
        let fetching = self.links.get(&link).and_then(|entry| entry.fetches.get(&request));
        let Some(fetching) = fetching.filter(|f| f.rights_seen != self.rights_changes) else {
            return Ok(());
        };
        let of = fetching.of.clone();
        if self.faults.has(Fault::FetchUnchecked) {
            return Ok(());
        }
        self.check_right(link, of.as_deref(), volume, Right::Read)
    }
}
