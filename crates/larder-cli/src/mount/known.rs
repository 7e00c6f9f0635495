//! What the kernel has been told and may still believe: inodes, names, and for how long.
//!
//! Names are remembered by the slot in which the volume keeps them, for as long as the kernel may
//! believe them; inodes while the kernel refers to them. A change that arrives while an operation
//! is under way may be missing from its answer, so the last changes are kept: an answer that one
//! of them concerns is given with no time to live.

use larder::core::commit::Target;
use larder::core::id::{PageNo, Slot};
use larder::fs::record::Inode;
use larder::fs::{Attr, InodeId, Kept, Kind};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::mem::size_of;
use std::ops::Bound;
use std::time::{Duration, Instant};

/// The kernel's number of the root directory.
pub(super) const ROOT: u64 = 1;
/// Changes remembered for answers under way.
const RECENT_MAX: usize = 4096;
/// Names remembered; further ones are told with no time to live.
const ENTRIES_MAX: usize = 1 << 20;
/// Names remembered of one inode that lead to it: of one with more, the last ones.
const PLACES_MAX: usize = 64;
/// Bytes of a name, mostly.
const NAME_BYTES: usize = 16;
/// Slot of a directory page's header: when it changes, names below may have moved.
const HEADER: Slot = Slot(0);

/// Where the volume keeps a name.
pub(super) type Place = (PageNo, Slot);

/// A name the kernel may believe in, or in whose absence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct KnownName {
    pub(super) parent: u64,
    pub(super) name: Vec<u8>,
    /// None: that it is not there.
    pub(super) id: Option<InodeId>,
    /// It is a directory's.
    pub(super) directory: bool,
    pub(super) place: Place,
    until: Instant,
}

struct KnownInode {
    id: InodeId,
    lookups: u64,
    told: Option<Inode>,
    /// The count of changes when what was told of it was taken back at once, and whether nothing
    /// was told since that may be believed.
    wiped: u64,
    untold: bool,
    /// How many are at telling the kernel that something is taken back.
    taking: u32,
    pages: Pages,
    listing: Listing,
    /// Reads under way: what they bring may be older than what is known here.
    reads: u32,
    /// How often the kernel was told to drop what it keeps.
    drops: u64,
    /// Where names that lead to it were told to be, the last ones.
    places: Vec<Place>,
}

/// A read of a file's bytes under way. To be given back, whatever becomes of it.
#[must_use = "it counts until it is given back"]
pub(super) struct Reading {
    number: u64,
    drops: u64,
}

/// Which update of a file's content the bytes are of that the kernel keeps. It is known apart from
/// the attributes that were told: those may be new while the bytes are old.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Pages {
    /// It keeps none.
    #[default]
    None,
    /// This one.
    Of(u32),
    /// Several, or bytes of its own.
    Mixed,
}

impl Pages {
    fn are_of(self, change: u32) -> bool {
        matches!(self, Self::None) || self == Self::Of(change)
    }
}

/// What the kernel keeps of a directory's listing. Its own check, that the time of modification is
/// as it was, does not find every change: another site's clock may be ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Listing {
    /// Nothing that anybody may be shown.
    #[default]
    None,
    /// What has not changed since it was told at this count of changes, with attributes that may be
    /// believed until then.
    Kept { since: u64, until: Instant },
    /// Something that may be old.
    Mixed,
}

/// What to take back of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TakeBack {
    /// It is as the kernel believes.
    Nothing,
    /// The attributes alone.
    Attributes,
    /// The bytes as well.
    All,
}

/// What a change concerns of what the kernel believes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Concern {
    /// An inode, what was told of it, and the count of changes then; 0: nothing that is believed.
    Inode { number: u64, id: InodeId, told: Option<Inode>, noted: u64 },
    /// A name.
    Name(KnownName),
}

/// See the module's documentation.
pub(super) struct Known {
    root: InodeId,
    inodes: HashMap<u64, KnownInode>,
    /// Kernel numbers of inodes by page.
    by_page: BTreeSet<(PageNo, Slot, u64)>,
    names: BTreeMap<Place, Vec<KnownName>>,
    names_count: usize,
    expiry: VecDeque<(Instant, Place)>,
    sequence: u64,
    recent: VecDeque<(u64, PageNo, Target)>,
    /// Of changes up to this one, some are not in `recent` any more.
    forgotten: u64,
    /// With this one everything may have changed.
    all_changed: u64,
}

impl Known {
    pub(super) fn new(root: InodeId) -> Self {
        let mut known = Self {
            root,
            inodes: HashMap::new(),
            by_page: BTreeSet::new(),
            names: BTreeMap::new(),
            names_count: 0,
            expiry: VecDeque::new(),
            sequence: 0,
            recent: VecDeque::new(),
            forgotten: 0,
            all_changed: 0,
        };
        known.count(ROOT, root, 1);
        known
    }

    /// Inodes that the kernel refers to.
    pub(super) fn inodes_kept(&self) -> Kept {
        // Each has an entry by its page, and most one name: nodes of a tree map are two thirds full.
        let by_page = size_of::<(PageNo, Slot, u64)>() * 3 / 2;
        Kept::of(self.inodes.len(), size_of::<(u64, KnownInode)>() + by_page + size_of::<Place>())
    }

    /// Names that it believes.
    pub(super) fn names_kept(&self) -> Kept {
        let place = size_of::<(Place, Vec<KnownName>)>() * 3 / 2;
        let each = size_of::<KnownName>() + place + size_of::<(Instant, Place)>();
        Kept::of(self.names_count, each + NAME_BYTES)
    }

    /// The kernel's number for an inode.
    pub(super) fn number(&self, id: InodeId) -> u64 {
        if id == self.root { ROOT } else { id.number() }
    }

    /// The inode the kernel means.
    pub(super) fn id(&self, number: u64) -> Option<InodeId> {
        self.inodes.get(&number).map(|inode| inode.id)
    }

    /// Whether the kernel refers to an inode, by any number.
    pub(super) fn refers_to(&self, id: InodeId) -> bool {
        let there = (id.page, id.slot, 0)..=(id.page, id.slot, u64::MAX);
        let mut numbers = self.by_page.range(there).map(|place| place.2);
        numbers.any(|number| self.inodes.get(&number).is_some_and(|known| known.id == id))
    }

    /// The inodes that the kernel may mean by the number that attributes have, with its own numbers
    /// for them.
    pub(super) fn numbers_like(&self, number: u64) -> Vec<(u64, InodeId)> {
        let (page, slot) = (PageNo(number >> 16), Slot((number & 0xffff) as u16));
        let there = self.by_page.range((page, slot, 0)..=(page, slot, u64::MAX));
        let of = |number: u64| self.inodes.get(&number).map(|known| (number, known.id));
        there.filter_map(|place| of(place.2)).collect()
    }

    /// To be taken before an operation reads, and given back to `tell_…`.
    pub(super) fn position(&self) -> u64 {
        self.sequence
    }

    fn count(&mut self, number: u64, id: InodeId, lookups: u64) {
        let known = self.inodes.entry(number).or_insert(KnownInode {
            id,
            lookups: 0,
            told: None,
            wiped: 0,
            untold: false,
            taking: 0,
            pages: Pages::None,
            listing: Listing::None,
            reads: 0,
            drops: 0,
            places: Vec::new(),
        });
        if known.id != id {
            // The slot was used anew: what was told of its old inode is of no use.
            self.by_page.remove(&(known.id.page, known.id.slot, number));
            (known.id, known.told, known.pages) = (id, None, Pages::Mixed);
            (known.listing, known.untold) = (Listing::Mixed, false);
        }
        known.lookups += lookups;
        self.by_page.insert((id.page, id.slot, number));
    }

    /// The kernel refers to an inode by `lookups` less; says whether it does no more.
    pub(super) fn forget(&mut self, number: u64, lookups: u64) -> bool {
        if number == ROOT {
            return false;
        }
        let Some(known) = self.inodes.get_mut(&number) else { return false };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups > 0 {
            return false;
        }
        let id = known.id;
        self.inodes.remove(&number);
        self.by_page.remove(&(id.page, id.slot, number));
        true
    }

    /// What the kernel knows as one inode is another from now on: its number for it, if it knows it.
    pub(super) fn becomes(&mut self, id: InodeId, other: InodeId) -> Option<u64> {
        let number = self.number(id);
        let known = self.inodes.get_mut(&number).filter(|known| known.id == id)?;
        (known.id, known.told, known.pages) = (other, None, Pages::None);
        known.untold = false;
        known.drops += 1;
        self.by_page.remove(&(id.page, id.slot, number));
        self.by_page.insert((other.page, other.slot, number));
        Some(number)
    }

    fn changed_since(&self, position: u64, place: Place, header: bool) -> bool {
        if position == self.sequence {
            return false;
        }
        if position < self.forgotten {
            return true;
        }
        self.recent.iter().any(|(sequence, page, target)| {
            *sequence > position
                && *page == place.0
                && match target {
                    Target::Page => true,
                    Target::Slot(slot) => *slot == place.1 || (header && *slot == HEADER),
                }
        })
    }

    /// The kernel is about to be told attributes; gives how long it may believe them.
    pub(super) fn tell_attr(&mut self, position: u64, attr: &Attr, ttl: Duration) -> Duration {
        let number = self.number(attr.id);
        let changed = self.changed_since(position, (attr.id.page, attr.id.slot), false);
        match self.inodes.get_mut(&number) {
            Some(known) if known.id == attr.id => {
                known.told = (!changed).then(|| attr.inode.clone());
                known.untold &= changed;
            }
            _ => return Duration::ZERO,
        }
        if changed { Duration::ZERO } else { ttl }
    }

    /// The kernel asks for bytes.
    pub(super) fn begin_read(&mut self, number: u64) -> Reading {
        let drops = self.inodes.get_mut(&number).map_or(0, |known| {
            known.reads = known.reads.saturating_add(1);
            known.drops
        });
        Reading { number, drops }
    }

    /// It is given none.
    pub(super) fn end_read(&mut self, reading: &Reading) {
        self.read_ended(reading);
    }

    fn read_ended(&mut self, reading: &Reading) -> Option<&mut KnownInode> {
        let known = self.inodes.get_mut(&reading.number)?;
        known.reads = known.reads.saturating_sub(1);
        Some(known)
    }

    /// The kernel is about to be given bytes, of this update of the content or of none that could
    /// be named.
    pub(super) fn tell_pages(&mut self, reading: &Reading, change: Option<u32>) {
        let Some(known) = self.read_ended(reading) else { return };
        if known.drops != reading.drops {
            // The kernel was told to drop them: it waits for them, and does.
            return;
        }
        known.pages = match (known.pages, change) {
            (pages, Some(change)) if pages.are_of(change) => Pages::Of(change),
            _ => Pages::Mixed,
        };
    }

    /// The kernel is to drop what it keeps of a file's bytes: its numbers for the file.
    pub(super) fn drop_pages(&mut self, id: InodeId) -> Vec<u64> {
        let there = (id.page, id.slot, 0)..=(id.page, id.slot, u64::MAX);
        let mut numbers: Vec<u64> = self.by_page.range(there).map(|place| place.2).collect();
        numbers.retain(|number| {
            let Some(known) = self.inodes.get_mut(number).filter(|known| known.id == id) else {
                return false;
            };
            (known.pages, known.told, known.listing) = (Pages::None, None, Listing::None);
            known.drops += 1;
            true
        });
        numbers
    }

    /// The kernel keeps bytes that it writes: of no update yet.
    pub(super) fn take_pages(&mut self, number: u64) {
        if let Some(known) = self.inodes.get_mut(&number) {
            known.pages = Pages::Mixed;
        }
    }

    /// Whether the kernel keeps bytes of a file that are not of this update of its content.
    pub(super) fn keeps_other_pages(&self, attr: &Attr) -> bool {
        let known = self.inodes.get(&self.number(attr.id));
        known.is_some_and(|known| known.id == attr.id && !known.pages.are_of(attr.inode.change))
    }

    /// The kernel is about to open a file whose content is of this update; says whether it may
    /// keep the bytes it has. Else it drops them.
    pub(super) fn open_pages(&mut self, number: u64, change: u32) -> bool {
        let Some(known) = self.inodes.get_mut(&number) else {
            return false;
        };
        if known.pages.are_of(change) {
            return true;
        }
        // An answer to a read on its way comes before: the kernel waits for it and drops it too.
        known.pages = Pages::None;
        known.drops += 1;
        false
    }

    /// The kernel is about to open a directory; says whether it may show the listing it keeps to
    /// who lists it now, for at least `margin`. Else it drops it.
    pub(super) fn open_listing(&mut self, number: u64, margin: Duration) -> bool {
        let Some(known) = self.inodes.get_mut(&number) else { return false };
        if let Listing::Kept { since, until } = known.listing
            && since >= self.all_changed
            && until > Instant::now() + margin
        {
            return true;
        }
        known.listing = Listing::None;
        known.drops += 1;
        false
    }

    /// The kernel is about to be given a part of a directory's listing, which it keeps: what was
    /// read after `position`, with attributes that it may believe for as long. The handle knows how
    /// often such was dropped when its first part was told. Says whether the kernel is to drop what
    /// it has of it before: it may have put a part there after it was told to.
    pub(super) fn tell_listing(
        &mut self,
        position: u64,
        number: u64,
        ttl: Duration,
        (first, drops): (bool, &mut u64),
    ) -> bool {
        let Some(id) = self.id(number) else { return false };
        let changed = self.changed_since(position, (id.page, id.slot), false);
        let Some(known) = self.inodes.get_mut(&number) else { return false };
        if first {
            *drops = known.drops;
        } else if *drops != known.drops || known.listing == Listing::Mixed {
            known.listing = Listing::Mixed;
            return true;
        }
        let (since, until) = (self.sequence, Instant::now() + ttl);
        known.listing = match known.listing {
            _ if changed => Listing::Mixed,
            Listing::None => Listing::Kept { since, until },
            Listing::Kept { since, until: before } => {
                Listing::Kept { since, until: before.min(until) }
            }
            Listing::Mixed => Listing::Mixed,
        };
        false
    }

    /// What to take back, at once, of an inode that `now` is like this.
    pub(super) fn take_back_now(&mut self, number: u64, now: &Inode) -> TakeBack {
        let told = self.inodes.get(&number).and_then(|known| known.told.clone());
        let what = match self.take_back(number, &told, Some(now)) {
            // What was told may have been taken back by somebody who has yet to say so.
            TakeBack::Nothing if told.is_none() => TakeBack::Attributes,
            what => what,
        };
        if what != TakeBack::Nothing
            && let Some(known) = self.inodes.get_mut(&number)
        {
            (known.wiped, known.untold) = (self.sequence, true);
        }
        what
    }

    /// What to take back of an inode for a change that was noted at this count of changes, when this
    /// was told. What was told before it and taken back since need not be once more: that may have
    /// the kernel drop what it was told after it.
    pub(super) fn take_back_noted(
        &mut self,
        number: u64,
        (noted, told): (u64, &Option<Inode>),
        now: Option<&Inode>,
    ) -> TakeBack {
        match self.inodes.get(&number) {
            Some(known) if noted <= known.wiped => self.take_back(number, &now.cloned(), now),
            _ => self.take_back(number, told, now),
        }
    }

    /// Somebody is about to tell the kernel what is taken back of an inode.
    pub(super) fn begin_taking(&mut self, number: u64) {
        if let Some(known) = self.inodes.get_mut(&number) {
            known.taking += 1;
        }
    }

    /// The kernel was told.
    pub(super) fn end_taking(&mut self, number: u64) {
        if let Some(known) = self.inodes.get_mut(&number) {
            // Of an inode that was forgotten and told anew, nobody counted it.
            known.taking = known.taking.saturating_sub(1);
        }
    }

    /// Whether the kernel was told all that was to be taken back of an inode.
    pub(super) fn is_taken(&self, number: u64) -> bool {
        self.inodes.get(&number).is_none_or(|known| known.taking == 0)
    }

    /// What to take back of an inode that `now` is like this, as far as is known here; it is
    /// noted as taken back.
    pub(super) fn take_back(
        &mut self,
        number: u64,
        told: &Option<Inode>,
        now: Option<&Inode>,
    ) -> TakeBack {
        let Some(known) = self.inodes.get_mut(&number) else {
            return TakeBack::Nothing;
        };
        if known.listing != Listing::None {
            // Its names may be others, whatever its attributes are.
            (known.listing, known.told) = (Listing::None, None);
            known.drops += 1;
            return TakeBack::All;
        }
        // What a read under way saw is not known yet, and the kernel keeps it when it comes.
        let pages_kept = known.reads == 0 && now.is_some_and(|now| known.pages.are_of(now.change));
        if pages_kept && now == told.as_ref() {
            return TakeBack::Nothing;
        }
        if known.told == *told {
            known.told = None;
        }
        if pages_kept {
            return TakeBack::Attributes;
        }
        known.pages = Pages::None;
        known.drops += 1;
        TakeBack::All
    }

    /// The kernel is about to be told a name and will refer to its inode once more; gives how
    /// long it may believe the attributes and the name.
    pub(super) fn tell_name(
        &mut self,
        position: u64,
        (parent, name): (u64, &[u8]),
        place: Place,
        attr: Option<&Attr>,
        (ttl, kept): (Duration, Duration),
    ) -> (Duration, Duration) {
        let mut attr_ttl = ttl;
        if let Some(attr) = attr {
            self.count(self.number(attr.id), attr.id, 1);
            attr_ttl = self.tell_attr(position, attr, ttl);
        }
        let now = Instant::now();
        self.expire(now);
        let full = self.names_count >= ENTRIES_MAX;
        let ttl = match full || self.changed_since(position, place, true) {
            true => Duration::ZERO,
            false => ttl,
        };
        let until = now + ttl.max(kept);
        if full || until == now {
            return (attr_ttl, Duration::ZERO);
        }
        let known = KnownName {
            parent,
            name: name.to_vec(),
            id: attr.map(|attr| attr.id),
            directory: attr.is_some_and(|attr| attr.inode.kind == Kind::Directory),
            place,
            until,
        };
        let names = self.names.entry(place).or_default();
        names.retain(|old| (old.parent, &old.name[..]) != (parent, name));
        names.push(known);
        self.names_count += 1;
        self.expiry.push_back((until, place));
        let led = attr.and_then(|attr| self.inodes.get_mut(&self.number(attr.id)));
        if let Some(inode) = led {
            inode.places.retain(|old| *old != place);
            if inode.places.len() == PLACES_MAX {
                inode.places.remove(0);
            }
            inode.places.push(place);
        }
        (attr_ttl, ttl)
    }

    /// Names that were told to lead to an inode, and that the kernel may use still.
    pub(super) fn names_of(&self, number: u64) -> Vec<KnownName> {
        let Some(inode) = self.inodes.get(&number) else { return Vec::new() };
        let now = Instant::now();
        let there = inode.places.iter().filter_map(|place| self.names.get(place)).flatten();
        let names = there.filter(|name| name.id == Some(inode.id) && name.until > now);
        names.cloned().collect()
    }

    /// Names that the kernel believes, kept in the pages in which an inode's own were told to be: at
    /// most so many. Its own may not be believed any more.
    pub(super) fn beside(&self, number: u64, most: usize) -> Vec<KnownName> {
        let Some(inode) = self.inodes.get(&number) else { return Vec::new() };
        let now = Instant::now();
        let pages: BTreeSet<PageNo> = inode.places.iter().map(|place| place.0).collect();
        let there = pages.into_iter().flat_map(|page| {
            let kept = self.names.range((page, Slot(0))..=(page, Slot(u16::MAX)));
            kept.flat_map(|(_, names)| names).filter(|name| name.until > now)
        });
        there.take(most).cloned().collect()
    }

    /// A name was taken back.
    pub(super) fn lose_name(&mut self, lost: &KnownName) {
        if let Some(names) = self.names.get_mut(&lost.place) {
            names.retain(|name| (name.parent, &name.name) != (lost.parent, &lost.name));
        }
    }

    /// Forgets names that the kernel believes no longer.
    fn expire(&mut self, now: Instant) {
        while let Some((until, place)) = self.expiry.front().copied() {
            if until > now {
                break;
            }
            self.expiry.pop_front();
            self.names_count -= 1;
            if let Some(names) = self.names.get_mut(&place) {
                names.retain(|name| name.until > now);
                if names.is_empty() {
                    self.names.remove(&place);
                }
            }
        }
    }

    /// Notes changes; gives what they concern.
    pub(super) fn change(&mut self, changes: &[(PageNo, Target)]) -> Vec<Concern> {
        self.sequence += 1;
        let mut concerns = Vec::new();
        for (page, target) in changes {
            self.recent.push_back((self.sequence, *page, *target));
            let (from, to) = match target {
                Target::Page | Target::Slot(HEADER) => (Slot(0), Slot(u16::MAX)),
                Target::Slot(slot) => (*slot, *slot),
            };
            for names in self.names.range((*page, from)..=(*page, to)) {
                concerns.extend(names.1.iter().cloned().map(Concern::Name));
            }
            let inodes = if *target == Target::Slot(HEADER) { (from, from) } else { (from, to) };
            let there = (*page, inodes.0, 0)..=(*page, inodes.1, u64::MAX);
            for (_, _, number) in self.by_page.range(there) {
                // Who lists it from here on is shown what it is like now, and the kernel told later.
                if let Some(known) = self.inodes.get_mut(number)
                    && known.listing != Listing::None
                {
                    known.listing = Listing::Mixed;
                }
                concerns.extend(inode_concern(&self.inodes, *number, self.sequence));
            }
        }
        while self.recent.len() > RECENT_MAX {
            if let Some((sequence, ..)) = self.recent.pop_front() {
                self.forgotten = sequence;
            }
        }
        concerns
    }

    /// Everything may have changed: no answer read before is given any time to live.
    pub(super) fn change_all(&mut self) {
        self.sequence += 1;
        (self.forgotten, self.all_changed) = (self.sequence, self.sequence);
        self.recent.clear();
    }

    /// Inodes that the kernel refers to, of `most` places after one, and the last of the places;
    /// none: there are no more.
    pub(super) fn inodes_after(
        &self,
        after: Option<Place>,
        most: usize,
    ) -> (Option<Place>, Vec<Concern>) {
        let from =
            after.map_or(Bound::Unbounded, |(page, slot)| Bound::Excluded((page, slot, u64::MAX)));
        let mut found = (None, Vec::new());
        let mut places = 0;
        for (page, slot, number) in self.by_page.range((from, Bound::Unbounded)) {
            if found.0 != Some((*page, *slot)) {
                places += 1;
                if places > most {
                    break;
                }
            }
            found.0 = Some((*page, *slot));
            found.1.extend(inode_concern(&self.inodes, *number, self.sequence));
        }
        found
    }

    /// Names that the kernel believes still, those of `most` places after one, and the last of the
    /// places; none: there are no more.
    pub(super) fn names_after(
        &mut self,
        after: Option<Place>,
        most: usize,
    ) -> (Option<Place>, Vec<KnownName>) {
        self.expire(Instant::now());
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let places = self.names.range((from, Bound::Unbounded)).take(most);
        let mut found = (None, Vec::new());
        for (place, names) in places {
            found.0 = Some(*place);
            found.1.extend(names.iter().cloned());
        }
        found
    }
}

fn inode_concern(inodes: &HashMap<u64, KnownInode>, number: u64, sequence: u64) -> Option<Concern> {
    let known = inodes.get(&number)?;
    let noted = if known.untold { 0 } else { sequence };
    Some(Concern::Inode { number, id: known.id, told: known.told.clone(), noted })
}
