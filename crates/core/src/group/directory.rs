//! The redirector's directory: which member has which page complete, as far as is known, and which
//! transfers between neighbours are under way (BuddyCache, section 3.1).
//!
//! What is registered says what a member has to be told of; the directory says of what it can help with. It
//! is a hint: it may be forgotten at any time, and a helper looks for itself.

use super::{GroupConfig, HelpEnd, MEMBERS_MAX, Member, MemberStatus};
use crate::downlink::PageSet;
use crate::id::{BootId, DomainId, LinkId, PageId, PageNo, RequestId, VolumeId};
use crate::time::Instant;
use std::collections::{BTreeMap, BTreeSet};

/// A page that travels between neighbours: whose fetch, and which page of it.
type Key = (LinkId, RequestId, PageId);

/// A member, and what it can help with.
#[derive(Debug)]
struct Joined {
    member: Member,
    /// Neighbours to whom a link of its stands.
    reaches: BTreeSet<BootId>,
    /// Pages of which its copy is complete, or on its way from above.
    complete: BTreeMap<DomainId, PageSet>,
    /// Pages of which its copy has holes, where neighbours send such copies.
    holed: BTreeMap<DomainId, PageSet>,
    /// Pages that it awaits from neighbours; whether they have changed since.
    awaits: BTreeMap<(DomainId, PageId), bool>,
    /// Pages that did not come from a neighbour: its next request for one goes up.
    above: BTreeSet<(DomainId, PageId)>,
    /// Pages under way from it, and to it from neighbours.
    helping: usize,
    asking: usize,
    /// Pages for which it was chosen: who was chosen least goes first, of several that are idle.
    chosen: u64,
    /// It is not chosen before then.
    rests_until: Option<Instant>,
}

/// A page on its way from a neighbour.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    domain: DomainId,
    helper: LinkId,
    /// The copy that is sent may have holes.
    holes: bool,
    deadline: Instant,
}

/// Who helps with a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Helper {
    /// At which link.
    pub(crate) link: LinkId,
    /// With a copy that may have holes: nobody who may be asked has a complete one.
    pub(crate) holes: bool,
}

impl Joined {
    /// Bytes of what is known of it in a domain.
    fn bytes(&self, domain: DomainId) -> usize {
        let sets = [self.complete.get(&domain), self.holed.get(&domain)];
        sets.into_iter().flatten().map(PageSet::bytes).sum()
    }

    fn has_holed(&self, domain: DomainId, page: PageId) -> bool {
        self.holed.get(&domain).is_some_and(|holed| holed.contains(page))
    }

    /// What is known of it in a domain, complete or not.
    fn sets(&mut self, domain: DomainId) -> impl Iterator<Item = &mut PageSet> {
        let sets = [&mut self.complete, &mut self.holed];
        sets.into_iter().filter_map(move |set| set.get_mut(&domain))
    }

    fn forget(&mut self, domain: DomainId) {
        self.complete.remove(&domain);
        self.holed.remove(&domain);
    }
}

/// Members, what they have, and what is under way between them.
#[derive(Debug)]
pub(crate) struct Directory {
    config: GroupConfig,
    members: BTreeMap<LinkId, Joined>,
    /// Who found the group full, and is let in when there is room.
    outside: BTreeMap<LinkId, Member>,
    transfers: BTreeMap<Key, Transfer>,
    deadlines: BTreeSet<(Instant, Key)>,
    /// Somebody came or went: when all members are told of it.
    tell_at: Option<Instant>,
    /// They are not told before then.
    quiet_until: Instant,
}

impl Directory {
    /// A group without members.
    pub(crate) fn new(config: GroupConfig) -> Self {
        Self {
            config,
            members: BTreeMap::new(),
            outside: BTreeMap::new(),
            transfers: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            tell_at: None,
            quiet_until: Instant(0),
        }
    }

    // ---- members ----

    /// A link's child is a member, or has another address now. Who finds the group full waits until a
    /// member leaves.
    pub(crate) fn join(&mut self, now: Instant, link: LinkId, member: Member) {
        if let Some(joined) = self.members.get_mut(&link) {
            if joined.member != member {
                joined.member = member;
                self.members_changed(now);
            }
            return;
        }
        if self.members.len() >= MEMBERS_MAX {
            crate::probe::probe("group-full");
            self.outside.insert(link, member);
            return;
        }
        self.members_changed(now);
        let joined = Joined {
            member,
            reaches: BTreeSet::new(),
            complete: BTreeMap::new(),
            holed: BTreeMap::new(),
            awaits: BTreeMap::new(),
            above: BTreeSet::new(),
            helping: 0,
            asking: 0,
            chosen: 0,
            rests_until: None,
        };
        self.members.insert(link, joined);
    }

    /// All members are to be told of each other: at once, or a while after they were told last.
    fn members_changed(&mut self, now: Instant) {
        let at = now.max(self.quiet_until);
        self.tell_at.get_or_insert(at);
    }

    /// What each member is to be told of the others, if it is time.
    pub(crate) fn news(&mut self, now: Instant) -> Vec<(LinkId, Vec<Member>)> {
        if self.tell_at.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.tell_at = None;
        self.quiet_until = now.after(self.config.members_every);
        self.members.keys().map(|link| (*link, self.neighbours(*link))).collect()
    }

    /// A link is gone. Gives the pages of transfers to it, which are over; none: it was no member's.
    pub(crate) fn leave(&mut self, now: Instant, link: LinkId) -> Option<Vec<(DomainId, PageId)>> {
        self.outside.remove(&link);
        self.members.remove(&link)?;
        self.members_changed(now);
        if let Some((link, member)) = self.outside.pop_first() {
            self.join(now, link, member);
        }
        let all = (link, RequestId(0), PageId::default())..;
        let of = self.transfers.range(all).take_while(|((asker, ..), _)| *asker == link);
        let keys: Vec<Key> = of.map(|(key, _)| *key).collect();
        let over = keys.into_iter().filter_map(|key| self.over(key));
        Some(over.map(|(domain, page, _)| (domain, page)).collect())
    }

    /// All members but the one at a link, ascending.
    fn neighbours(&self, link: LinkId) -> Vec<Member> {
        let others = self.members.iter().filter(|(other, _)| **other != link);
        let mut others: Vec<Member> = others.map(|(_, joined)| joined.member.clone()).collect();
        others.sort_unstable();
        others
    }

    /// The life of the member at a link.
    pub(crate) fn life(&self, link: LinkId) -> Option<BootId> {
        self.members.get(&link).map(|joined| joined.member.life)
    }

    /// A member says to whom its links stand.
    pub(crate) fn reach(&mut self, link: LinkId, members: Vec<BootId>) {
        if let Some(joined) = self.members.get_mut(&link) {
            joined.reaches = members.into_iter().collect();
        }
    }

    // ---- what they have ----

    /// A member has the page complete, or will.
    pub(crate) fn has(&mut self, link: LinkId, domain: DomainId, page: PageId) {
        let Some(joined) = self.members.get_mut(&link) else { return };
        if let Some(holed) = joined.holed.get_mut(&domain) {
            holed.remove(page);
        }
        let complete = joined.complete.entry(domain).or_default();
        complete.insert(page);
        if joined.bytes(domain) > self.config.directory_bytes_max {
            crate::probe::probe("directory-forgets");
            joined.forget(domain);
        }
    }

    /// A member has the page with holes.
    fn has_holed(&mut self, link: LinkId, domain: DomainId, page: PageId) {
        let Some(joined) = self.members.get_mut(&link) else { return };
        if let Some(complete) = joined.complete.get_mut(&domain) {
            complete.remove(page);
        }
        joined.holed.entry(domain).or_default().insert(page);
        if joined.bytes(domain) > self.config.directory_bytes_max {
            crate::probe::probe("directory-forgets-holes");
            // But for this one: it would be pointed to holes again.
            joined.forget(domain);
            joined.holed.entry(domain).or_default().insert(page);
        }
    }

    /// A member does not have it, or not complete.
    pub(crate) fn lacks(&mut self, link: LinkId, domain: DomainId, page: PageId) {
        let Some(joined) = self.members.get_mut(&link) else { return };
        for set in joined.sets(domain) {
            set.remove(page);
        }
    }

    /// A member does not have it complete: with holes, perhaps.
    fn lacks_complete(&mut self, link: LinkId, domain: DomainId, page: PageId) {
        let joined = self.members.get_mut(&link);
        if let Some(complete) = joined.and_then(|joined| joined.complete.get_mut(&domain)) {
            complete.remove(page);
        }
    }

    /// All pages of a volume may have changed: nobody has one of them complete.
    pub(crate) fn volume_changed(&mut self, domain: DomainId, volume: VolumeId) {
        let of_volume = PageId { volume, page: PageNo(0) }..=PageId::of_volume(volume);
        let of_volume = (domain, *of_volume.start())..=(domain, *of_volume.end());
        for joined in self.members.values_mut() {
            joined.awaits.range_mut(of_volume.clone()).for_each(|(_, changed)| *changed = true);
            joined.sets(domain).for_each(|set| set.remove_volume(volume));
        }
    }

    /// The page changed: nobody has it complete, but who changed it. Others may have it with holes.
    pub(crate) fn changed(&mut self, domain: DomainId, page: PageId, by: Option<LinkId>) {
        let holes = self.config.holes;
        let mut holed = Vec::new();
        for (link, joined) in &mut self.members {
            if let Some(changed) = joined.awaits.get_mut(&(domain, page)) {
                *changed = true;
            }
            if Some(*link) != by
                && let Some(complete) = joined.complete.get_mut(&domain)
                && complete.remove(page)
                && holes
            {
                holed.push(*link);
            }
        }
        holed.into_iter().for_each(|link| self.has_holed(link, domain, page));
    }

    /// Nobody knows how the page changed, or all of it did: who had a copy of it has none, but who changed it.
    pub(crate) fn stale(&mut self, domain: DomainId, page: PageId, by: Option<LinkId>) {
        for (link, joined) in &mut self.members {
            if let Some(changed) = joined.awaits.get_mut(&(domain, page)) {
                *changed = true;
            }
            if Some(*link) != by {
                for set in joined.sets(domain) {
                    set.remove(page);
                }
            }
        }
    }

    /// The page changed, and all are told how: copies stay complete, but for those on their way.
    pub(crate) fn updated(&mut self, domain: DomainId, page: PageId) {
        for joined in self.members.values_mut() {
            if let Some(changed) = joined.awaits.get_mut(&(domain, page)) {
                *changed = true;
            }
        }
    }

    /// Whether what one member commits concerns another.
    pub(crate) fn has_neighbours(&self) -> bool {
        self.members.len() > 1
    }

    /// What a member has is not known any more; none: of all members.
    pub(crate) fn forget(&mut self, link: Option<LinkId>, domain: DomainId) {
        for (other, joined) in &mut self.members {
            if link.is_none_or(|link| link == *other) {
                joined.forget(domain);
                let first = (domain, PageId::default());
                let of = joined.awaits.range_mut(first..).take_while(|((d, _), _)| *d == domain);
                of.for_each(|(_, changed)| *changed = true);
            }
        }
    }

    // ---- who helps whom ----

    /// Who can help a member with a page: of those whom it reaches, and who `may` (they are registered for
    /// it, and read its volume), the one with the fewest pages under way. What did not come from a neighbour
    /// comes from above: a miss costs one wait.
    pub(crate) fn choose(
        &mut self,
        now: Instant,
        key: Key,
        domain: DomainId,
        knows_holes: bool,
        mut may: impl FnMut(Helper) -> bool,
    ) -> Option<Helper> {
        let (asker, _, page) = key;
        if self.members.get_mut(&asker)?.above.remove(&(domain, page)) {
            crate::probe::probe("neighbour-did-not-help");
            return None;
        }
        let asks = &self.members[&asker];
        // One that names a page of a fetch twice, or a fetch's number, is not helped with it again.
        if asks.asking >= self.config.asking_max || self.transfers.contains_key(&key) {
            return None;
        }
        // Who has a copy with holes misses one of them.
        let with_holes = self.config.holes && knows_holes && !asks.has_holed(domain, page);
        let complete = |joined: &Joined| {
            joined.complete.get(&domain).is_some_and(|complete| complete.contains(page))
        };
        let helps = |(link, joined): &(&LinkId, &Joined)| {
            **link != asker
                && joined.helping < self.config.helping_max
                && (complete(joined) || with_holes && joined.has_holed(domain, page))
                && asks.reaches.contains(&joined.member.life)
                && joined.rests_until.is_none_or(|until| until <= now)
                && may(Helper { link: **link, holes: !complete(joined) })
        };
        let load =
            |(_, joined): &(&LinkId, &Joined)| (!complete(joined), joined.helping, joined.chosen);
        let (link, joined) = self.members.iter().filter(helps).min_by_key(load)?;
        Some(Helper { link: *link, holes: !complete(joined) })
    }

    /// A page is on its way from one member to another.
    pub(crate) fn point(&mut self, now: Instant, key: Key, domain: DomainId, helper: Helper) {
        let deadline = now.after(self.config.transfer_max);
        let Helper { link: helper, holes } = helper;
        let transfer = Transfer { domain, helper, holes, deadline };
        let new = self.transfers.insert(key, transfer).is_none();
        assert!(new, "a page of a fetch is pointed once");
        self.deadlines.insert((deadline, key));
        if let Some(asks) = self.members.get_mut(&key.0) {
            asks.asking += 1;
            asks.awaits.insert((domain, key.2), false);
        }
        if let Some(helps) = self.members.get_mut(&helper) {
            helps.helping += 1;
            helps.chosen += 1;
        }
    }

    /// An asker says how a transfer ended. Gives the domain; none: there was no such transfer.
    pub(crate) fn ended(&mut self, now: Instant, key: Key, end: HelpEnd) -> Option<DomainId> {
        let Transfer { helper, holes, .. } = *self.transfers.get(&key)?;
        let (domain, page, changed) = self.over(key)?;
        match end {
            HelpEnd::Came if changed => {
                crate::probe::probe("transfer-overtaken");
                if self.config.holes {
                    self.has_holed(key.0, domain, page);
                }
            }
            HelpEnd::Came if holes => self.has_holed(key.0, domain, page),
            HelpEnd::Came => self.has(key.0, domain, page),
            HelpEnd::Lacked if holes => self.lacks(helper, domain, page),
            HelpEnd::Lacked => self.lacks_complete(helper, domain, page),
            HelpEnd::NotSent => {}
            HelpEnd::Late => {
                crate::probe::probe("helper-late");
                if let Some(helps) = self.members.get_mut(&helper) {
                    helps.rests_until = Some(now.after(self.config.rest));
                }
            }
        }
        if end != HelpEnd::Came
            && let Some(asks) = self.members.get_mut(&key.0)
        {
            // Who gives up what he missed does not ask again: a bound, and no loss.
            if asks.above.len() >= self.config.asking_max {
                asks.above.clear();
            }
            asks.above.insert((domain, page));
        }
        Some(domain)
    }

    /// Gives the domain, the page, and whether it has changed since it was pointed.
    fn over(&mut self, key: Key) -> Option<(DomainId, PageId, bool)> {
        let Transfer { domain, helper, deadline, .. } = self.transfers.remove(&key)?;
        self.deadlines.remove(&(deadline, key));
        let mut changed = true;
        if let Some(asks) = self.members.get_mut(&key.0) {
            asks.asking -= 1;
            // Of two fetches of a page the first that is over takes it along.
            changed = asks.awaits.remove(&(domain, key.2)).unwrap_or(true);
        }
        if let Some(helps) = self.members.get_mut(&helper) {
            helps.helping -= 1;
        }
        Some((domain, key.2, changed))
    }

    /// When members are told of each other, or the first transfer is taken for over, whatever its asker says.
    pub(crate) fn next_timeout(&self) -> Option<Instant> {
        let transfer = self.deadlines.first().map(|(at, _)| *at);
        [self.tell_at, transfer].into_iter().flatten().min()
    }

    /// Transfers of which nothing was said for too long: their pages.
    pub(crate) fn timeouts(&mut self, now: Instant) -> Vec<(DomainId, PageId)> {
        let mut over = Vec::new();
        while let Some((at, key)) = self.deadlines.first().copied()
            && at <= now
        {
            crate::probe::probe("transfer-unsaid");
            over.extend(self.over(key).map(|(domain, page, _)| (domain, page)));
        }
        over
    }

    /// Pages on their way between neighbours.
    pub(crate) fn transfers(&self) -> usize {
        self.transfers.len()
    }

    /// Its members, for operators.
    pub(crate) fn status(&self) -> Vec<MemberStatus> {
        let status = |(link, joined): (&LinkId, &Joined)| MemberStatus {
            member: joined.member.clone(),
            link: *link,
            reaches: joined.reaches.len(),
            pages: joined.complete.values().map(PageSet::len).sum(),
            bytes: joined.complete.values().chain(joined.holed.values()).map(PageSet::bytes).sum(),
            helping: joined.helping,
            asking: joined.asking,
            chosen: joined.chosen,
        };
        self.members.iter().map(status).collect()
    }

    /// Panics when an invariant is broken.
    pub(crate) fn check(&self) {
        assert!(self.members.len() <= MEMBERS_MAX, "too many members");
        assert_eq!(self.transfers.len(), self.deadlines.len(), "every transfer has its limit");
        for (link, joined) in &self.members {
            let asking = self.transfers.keys().filter(|(asker, ..)| asker == link).count();
            let helping = self.transfers.values().filter(|one| one.helper == *link).count();
            assert_eq!(asking, joined.asking, "pages pointed for a member are counted");
            assert_eq!(helping, joined.helping, "pages under way from a member are counted");
            assert!(joined.awaits.len() <= joined.asking, "it awaits what is under way to it");
            assert!(joined.above.len() <= self.config.asking_max, "what did not come is bounded");
            for domain in joined.complete.keys().chain(joined.holed.keys()) {
                let most = self.config.directory_bytes_max;
                let bytes = joined.bytes(*domain);
                assert!(bytes <= most, "a part of the directory outgrew its bound");
            }
        }
        for (key, transfer) in &self.transfers {
            assert!(self.members.contains_key(&key.0), "a transfer to nobody");
            assert!(self.deadlines.contains(&(transfer.deadline, *key)), "each has its own limit");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    const DOMAIN: DomainId = DomainId(1);

    fn page(number: u64) -> PageId {
        PageId { volume: VolumeId(1), page: PageNo(number) }
    }

    /// Members at links 1 to `count`, with lives of ten times that, who all reach one another.
    fn group(config: GroupConfig, count: u64) -> Directory {
        let mut directory = Directory::new(config);
        let life = |link: u64| BootId(u128::from(link) * 10);
        for link in 1..=count {
            let (name, address) = (format!("n{link}"), format!("at {link}"));
            let member = Member { life: life(link), name, address };
            directory.join(Instant(0), LinkId(link), member);
        }
        assert_eq!(directory.news(Instant(0)).len() as u64, count);
        for link in 1..=count {
            directory.reach(LinkId(link), (1..=count).map(life).collect());
        }
        directory
    }

    fn choose(directory: &mut Directory, asker: u64, number: u64) -> Option<u64> {
        choose_at(directory, Instant(0), asker, number)
    }

    fn choose_at(directory: &mut Directory, at: Instant, asker: u64, number: u64) -> Option<u64> {
        let key = (LinkId(asker), RequestId(99), page(number));
        directory.choose(at, key, DOMAIN, true, |_| true).map(|helper| helper.link.0)
    }

    fn complete(link: u64) -> Helper {
        Helper { link: LinkId(link), holes: false }
    }

    /// Who has page 7 with holes helps who has no copy of it, where nobody has it complete and copies with holes are sent; and
    /// who had it so has it with holes then.
    #[test]
    fn copies_with_holes_are_sent_where_nobody_has_a_complete_one() {
        let mut directory = group(GroupConfig { holes: true, ..GroupConfig::default() }, 4);
        let helper = |directory: &mut Directory, asker: u64, knows_holes| {
            let key = (LinkId(asker), RequestId(asker), page(7));
            let helper = directory.choose(Instant(0), key, DOMAIN, knows_holes, |_| true);
            helper.map(|helper| (helper.link.0, helper.holes))
        };
        directory.has(LinkId(1), DOMAIN, page(7));
        directory.has(LinkId(2), DOMAIN, page(7));
        directory.changed(DOMAIN, page(7), Some(LinkId(2)));
        assert_eq!(helper(&mut directory, 3, true), Some((2, false)), "one is complete");
        directory.changed(DOMAIN, page(7), None);
        assert_eq!(helper(&mut directory, 3, false), None, "of a version of before");
        assert_eq!(helper(&mut directory, 3, true), Some((1, true)));
        assert_eq!(helper(&mut directory, 2, true), None, "it misses what it has not itself");
        let key = (LinkId(3), RequestId(3), page(7));
        directory.point(Instant(0), key, DOMAIN, Helper { link: LinkId(1), holes: true });
        assert_eq!(directory.ended(Instant(0), key, HelpEnd::Came), Some(DOMAIN));
        directory.check();
        assert_eq!(helper(&mut directory, 3, true), None, "what it misses comes from above");
        directory.has(LinkId(3), DOMAIN, page(7));
        assert_eq!(helper(&mut directory, 1, true), Some((3, false)));
        directory.lacks(LinkId(3), DOMAIN, page(7));
        directory.lacks(LinkId(2), DOMAIN, page(7));
        assert_eq!(helper(&mut directory, 4, true), Some((1, true)));
        directory.volume_changed(DOMAIN, page(7).volume);
        assert_eq!(helper(&mut directory, 4, true), None);
    }

    #[test]
    fn pages_are_spread_over_those_who_have_them() {
        let mut directory = group(GroupConfig { helping_max: 2, ..GroupConfig::default() }, 4);
        for link in 1..=3 {
            directory.has(LinkId(link), DOMAIN, page(7));
        }
        let mut helpers = Vec::new();
        for request in 0..7 {
            let helper = choose(&mut directory, 4, 7);
            helpers.extend(helper);
            if let Some(helper) = helper {
                let key = (LinkId(4), RequestId(request), page(7));
                directory.point(Instant(0), key, DOMAIN, complete(helper));
            }
            directory.check();
        }
        assert_eq!(helpers, [1, 2, 3, 1, 2, 3], "the seventh comes from above");
        directory.ended(Instant(0), (LinkId(4), RequestId(1), page(7)), HelpEnd::Came);
        assert_eq!(choose(&mut directory, 4, 7), Some(2), "there is room again");
        assert_eq!(choose(&mut directory, 1, 7), Some(4), "the asker has it now, and is idle");
        directory.check();
    }

    #[test]
    fn nobody_is_pointed_to_who_lacks_it_rests_or_is_not_reached() {
        let mut directory = group(GroupConfig::default(), 3);
        directory.has(LinkId(1), DOMAIN, page(7));
        assert_eq!(choose(&mut directory, 1, 7), None, "not to itself");
        assert_eq!(choose(&mut directory, 2, 8), None, "another page");
        assert_eq!(choose(&mut directory, 2, 7), Some(1));
        directory.changed(DOMAIN, page(7), Some(LinkId(1)));
        assert_eq!(choose(&mut directory, 2, 7), Some(1), "its own change");
        directory.changed(DOMAIN, page(7), None);
        assert_eq!(choose(&mut directory, 2, 7), None, "another's");
        let other = PageId { volume: VolumeId(2), page: PageNo(7) };
        for id in [page(0), page(7), page(700), other] {
            directory.has(LinkId(1), DOMAIN, id);
        }
        directory.volume_changed(DOMAIN, VolumeId(1));
        let of_volume = [0, 7, 700].map(|number| choose(&mut directory, 2, number));
        assert_eq!(of_volume, [None; 3], "all of the volume");
        let key = (LinkId(3), RequestId(98), page(700));
        directory.has(LinkId(1), DOMAIN, page(700));
        directory.point(Instant(0), key, DOMAIN, complete(1));
        directory.volume_changed(DOMAIN, VolumeId(1));
        directory.ended(Instant(0), key, HelpEnd::Came);
        assert_eq!(choose(&mut directory, 2, 700), None, "it was on its way when it changed");
        let key = (LinkId(2), RequestId(99), other);
        assert_eq!(
            directory.choose(Instant(0), key, DOMAIN, true, |_| true),
            Some(complete(1)),
            "another's"
        );

        directory.has(LinkId(1), DOMAIN, page(7));
        directory.has(LinkId(1), DOMAIN, page(8));
        let key = (LinkId(2), RequestId(1), page(7));
        directory.point(Instant(0), key, DOMAIN, complete(1));
        assert_eq!(directory.ended(Instant(0), key, HelpEnd::Late), Some(DOMAIN));
        assert_eq!(directory.ended(Instant(0), key, HelpEnd::Late), None, "said twice");
        let after = Instant(0).after(Duration::from_secs(1));
        assert_eq!(choose(&mut directory, 3, 8), None, "it rests");
        assert_eq!(choose_at(&mut directory, after, 3, 8), Some(1));
        assert_eq!(choose_at(&mut directory, after, 3, 7), Some(1), "and has what it had");
        assert_eq!(choose_at(&mut directory, after, 2, 7), None, "a miss costs one wait");
        assert_eq!(choose_at(&mut directory, after, 2, 7), Some(1), "another miss");
        let key = (LinkId(3), RequestId(1), page(7));
        directory.point(after, key, DOMAIN, complete(1));
        directory.ended(after, key, HelpEnd::Lacked);
        assert_eq!(choose_at(&mut directory, after, 2, 7), None, "it lacks it after all");

        directory.reach(LinkId(3), vec![BootId(20)]);
        assert_eq!(choose_at(&mut directory, after, 3, 8), None, "not reached");
        directory.check();
    }

    #[test]
    fn transfers_end_with_their_asker_or_after_a_limit() {
        let mut directory = group(GroupConfig::default(), 3);
        let keys = [1, 2].map(|asker| (LinkId(asker), RequestId(1), page(7)));
        for key in keys {
            directory.point(Instant(0), key, DOMAIN, complete(3));
        }
        let now = Instant(1);
        assert_eq!(directory.leave(now, LinkId(3)), Some(Vec::new()), "the asker decides");
        directory.check();
        assert_eq!(directory.leave(now, LinkId(1)), Some(vec![(DOMAIN, page(7))]));
        assert_eq!(directory.leave(now, LinkId(1)), None);
        let quiet = Instant(0).after(GroupConfig::default().members_every);
        assert_eq!(directory.next_timeout(), Some(quiet), "they were told just now");
        assert!(directory.news(now).is_empty());
        assert_eq!(directory.news(quiet).len(), 1, "of two that left, at once");
        let limit = directory.next_timeout().expect("one is under way");
        assert_eq!(directory.timeouts(limit), vec![(DOMAIN, page(7))]);
        assert_eq!(directory.next_timeout(), None);
        directory.check();
    }

    #[test]
    fn a_part_that_grows_too_large_is_forgotten() {
        let config = GroupConfig { directory_bytes_max: 400, ..GroupConfig::default() };
        let mut directory = group(config, 2);
        for number in 1..=5 {
            directory.has(LinkId(1), DOMAIN, page(number * 64));
            directory.check();
        }
        assert_eq!(choose(&mut directory, 2, 64), None);
        directory.has(LinkId(1), DOMAIN, page(64));
        assert_eq!(choose(&mut directory, 2, 64), Some(1));
        directory.forget(Some(LinkId(1)), DOMAIN);
        assert_eq!(choose(&mut directory, 2, 64), None);
    }
}
