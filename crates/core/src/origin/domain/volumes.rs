//! A domain's volumes.

use super::batch::{Batch, Item};
use super::pages::Image;
use super::pending::Passer;
use super::{Context, Domain};
use crate::commit::{Abort, CommitRequest, Op, PageChange, PageKind, Write};
use crate::id::{HistoryId, LinkId, PageId, PageNo, RequestId, Stamp, VolumeId};
use crate::machine::Fault;
use crate::message::{Message, RequestError, VolumeChange, VolumeInfo, VolumeSpec, certificate_of};
use crate::page::Page;
use crate::record::{GIVEN_MAX, Given, LogRecord, Lsn, VolumeMeta, VolumeSettings};
use crate::rights::{Access, Denied, Effective, Right, Rights, RightsEdit};

/// So much may a commit that deletes something grow a volume past its quota: a name is removed by
/// writing a little elsewhere, and what it led to is freed by the commits after it.
const FREEING_BYTES: u64 = 64 << 10;

/// A volume of a domain.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    /// Its durable state.
    pub(super) meta: VolumeMeta,
    /// The first page number not given, answers not yet durable included.
    pub(super) given: PageNo,
    /// What it takes after all commits, tentative ones included.
    pub(super) taken: u64,
    /// Its quota, one that is not durable yet included.
    pub(super) quota: Option<u64>,
    /// Its deletion is on its way to the log: those who wait for it, and those who asked for something
    /// else since.
    pub(super) deleting: Option<Deleting>,
    /// What was said of its rights, changes that are not durable yet included.
    rights: Rights,
    /// What holds: commits are held against it from its place in the log on.
    pub(super) effective: Effective,
    /// What the recovered metadata counted: commits up to this stamp.
    counted: Stamp,
}

/// A deletion that is not durable yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Deleting {
    pub(super) askers: Vec<(LinkId, RequestId)>,
    /// Told that the volume was deleted, when it is: what they asked for came after it.
    pub(super) refused: Vec<(LinkId, RequestId)>,
}

/// Who asks for a change of a volume, by their certificates.
#[derive(Debug)]
pub(in crate::origin) struct Asker {
    pub(in crate::origin) name: String,
    /// The relay through which he comes: nobody may do more there than it.
    pub(in crate::origin) relay: Option<String>,
}

impl Asker {
    /// Which of the two may do less, and what.
    fn least<'a>(&'a self, rights: &Effective) -> (&'a str, Right) {
        let of = |who: &'a String| (who.as_str(), rights.of(who));
        let own = of(&self.name);
        self.relay.as_ref().map(of).filter(|relay| relay.1 < own.1).unwrap_or(own)
    }

    /// Whether he may administer a volume still: the right may have been taken from him by a change
    /// that is not durable yet.
    pub(super) fn check_admin(&self, volume: &Volume) -> Result<(), RequestError> {
        let (who, has) = self.least(&volume.effective);
        if has == Right::Admin {
            return Ok(());
        }
        let (volume, who) = (volume.meta.name.clone(), who.to_owned());
        Err(RequestError::Denied(Box::new(Denied { volume, who, has, needs: Right::Admin })))
    }
}

/// By how much a commit grows a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Growth {
    pub(super) volume: VolumeId,
    pub(super) pages: i64,
    /// Of page images.
    pub(super) bytes: i64,
}

/// By how much each of a commit's writes grows its volume, added up for each volume.
#[derive(Debug, Default)]
pub(super) struct Grown(pub(super) Vec<Growth>);

impl Grown {
    /// A write was applied: bytes of the page's image before and after.
    pub(super) fn add(&mut self, write: &Write, (before, after): (usize, usize)) {
        let volume = write.page.volume;
        let place = self.0.iter().position(|growth| growth.volume == volume);
        let place = place.unwrap_or_else(|| {
            self.0.push(Growth { volume, pages: 0, bytes: 0 });
            self.0.len() - 1
        });
        let growth = &mut self.0[place];
        growth.pages += pages_by(write);
        growth.bytes += signed(after) - signed(before);
    }
}

/// Pages that an op makes, or removes.
fn pages_by(write: &Write) -> i64 {
    match write.op {
        Op::CreatePage(_) => 1,
        // Page 1 is made with its volume.
        Op::RestorePage { .. } => i64::from(write.page.page != PageNo(1)),
        Op::DeletePage => -1,
        _ => 0,
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).expect("a page fits in memory")
}

/// Bytes of an image, or of none.
pub(super) fn image_bytes(page: Option<&Page>) -> usize {
    page.map_or(0, Page::encoded_bytes)
}

impl Volume {
    pub(super) fn new(meta: VolumeMeta, access: &Access) -> Self {
        let (given, counted) = (meta.next_page, meta.version);
        let (taken, quota) = (meta.bytes, meta.settings.quota);
        let rights = meta.settings.rights.clone();
        let effective = access.effective(&rights);
        Self { meta, given, taken, quota, deleting: None, rights, effective, counted }
    }

    /// A request that came after its deletion, which is not durable yet.
    pub(super) fn refused(&mut self, link: LinkId, request: RequestId) {
        let deleting = self.deleting.as_mut().expect("looked at by the caller");
        deleting.refused.push((link, request));
    }

    /// Settings that the log says.
    pub(super) fn replay_settings(&mut self, settings: VolumeSettings, access: &Access) {
        self.meta.settings = settings;
        self.take_settings(access);
    }

    /// What is durable is what holds.
    fn take_settings(&mut self, access: &Access) {
        self.quota = self.meta.settings.quota;
        if self.rights != self.meta.settings.rights {
            self.rights = self.meta.settings.rights.clone();
            self.effective = access.effective(&self.rights);
        }
    }

    /// A history begins: numbers are given in it from now on.
    pub(super) fn begin(&mut self, history: HistoryId) {
        let VolumeMeta { given, next_page, .. } = &mut self.meta;
        if given.last().is_some_and(|last| last.first == *next_page) {
            // In that one none was.
            given.pop();
        }
        given.push(Given { history, first: *next_page });
        let surplus = given.len().saturating_sub(GIVEN_MAX);
        given.drain(..surplus);
    }

    /// Whether a page number was given away in a history; the default history: in any. A number that
    /// was given in a history of a branch that is lost, or after the copy was made from which the
    /// domain was restored, may have been given to another node since. One that a node has read in
    /// what is committed was given before that commit, and its reads are validated: it names none.
    pub(super) fn gave(&self, page: PageNo, history: HistoryId) -> bool {
        let given = &self.meta.given;
        if history == HistoryId::default() {
            return page < self.meta.next_page;
        }
        let Some(place) = given.iter().position(|given| given.history == history) else {
            // Of another branch, or forgotten by now: nobody can tell which of its numbers this line has
            // given since to others (bug 163).
            return false;
        };
        let end = given.get(place + 1).map_or(self.meta.next_page, |next| next.first);
        (given[place].first..end).contains(&page)
    }

    /// A recovered commit grew it.
    pub(super) fn replayed(&mut self, stamp: Stamp, growth: Growth) {
        if stamp > self.counted {
            self.grow(stamp, growth);
        }
        self.taken = self.meta.bytes;
    }

    /// A commit made (or removed) pages of it.
    pub(super) fn grow(&mut self, stamp: Stamp, by: Growth) {
        self.meta.version = stamp;
        self.meta.pages = self.meta.pages.saturating_add_signed(by.pages);
        self.meta.bytes = self.meta.bytes.saturating_add_signed(by.bytes);
    }

    /// What is durable is what counts: tentative commits and settings were taken back.
    pub(super) fn roll_back(&mut self, access: &Access) {
        self.taken = self.meta.bytes;
        self.take_settings(access);
    }

    /// Whether a commit may grow it so. What frees or shrinks always may; what deletes may write a
    /// little to do so.
    fn check_quota(&self, by: Growth, frees: bool) -> Result<(), Abort> {
        let reserve = if frees { FREEING_BYTES } else { 0 };
        let Some(limit) = self.quota.filter(|_| by.bytes > 0) else {
            return Ok(());
        };
        let after = self.taken.saturating_add_signed(by.bytes);
        if after <= limit.saturating_add(reserve) {
            return Ok(());
        }
        Err(Abort::Quota {
            volume: self.meta.id,
            name: self.meta.name.clone(),
            limit,
            used: self.taken,
            more: by.bytes.unsigned_abs(),
        })
    }
}

/// By how much each volume grows that a recovered commit wrote to. Pages are counted from the
/// writes; bytes were noted with the commit, or are not known of one that is older than that.
pub(super) fn recovered(writes: &[Write], bytes: &[i64]) -> Vec<Growth> {
    let mut grown = Grown::default();
    writes.iter().for_each(|write| grown.add(write, (0, 0)));
    for (growth, bytes) in grown.0.iter_mut().zip(bytes) {
        growth.bytes = *bytes;
    }
    grown.0
}

impl Domain {
    /// A volume as its users see it, once it is durable.
    pub(in crate::origin) fn volume(&self, id: VolumeId) -> Option<VolumeInfo> {
        let meta = &self.volumes.get(&id)?.meta;
        Some(VolumeInfo {
            id,
            domain: self.id,
            name: meta.name.clone(),
            page_bytes: meta.page_bytes,
            root: PageKind::Slotted,
            version: meta.version,
            pages: meta.pages,
            bytes: meta.bytes,
            quota: meta.settings.quota,
            room: self.room,
            right: None,
        })
    }

    /// Ids and names of all volumes, ascending by id.
    pub(in crate::origin) fn volumes(&self) -> impl Iterator<Item = (VolumeId, &str)> + '_ {
        self.volumes.iter().map(|(id, volume)| (*id, volume.meta.name.as_str()))
    }

    /// Gives a volume another name. It is in the metadata of the next install, and until then the
    /// same is done at every start.
    pub(in crate::origin) fn rename(&mut self, id: VolumeId, name: &str) {
        self.volumes.get_mut(&id).expect("it is there").meta.name = name.to_owned();
    }

    pub(in crate::origin) fn volume_count(&self) -> usize {
        self.volumes.len()
    }

    /// Makes a volume with its page 1; told as an event when it is durable, or is not to be.
    pub(in crate::origin) fn create_volume(&mut self, cx: &mut Context<'_>, spec: VolumeSpec) {
        let stamp = self.stamped.next();
        self.stamped = stamp;
        let root = PageId { volume: spec.id, page: PageNo(1) };
        let meta = VolumeMeta {
            id: spec.id,
            name: spec.name,
            page_bytes: spec.page_bytes,
            next_page: PageNo(2),
            version: stamp,
            pages: 1,
            bytes: Page::empty(PageKind::Slotted).encoded_bytes() as u64,
            settings: VolumeSettings::default(),
            given: vec![Given { history: self.history(), first: PageNo(2) }],
        };
        let record = LogRecord::Volume { stamp, volume: meta.clone() };
        let lsn = self.gather(record, Item::Volume { stamp, meta });
        self.recent.record(stamp, &[PageChange::whole(root)]);
        self.make_root(root, (lsn, stamp));
        self.append(cx);
    }

    /// A volume's name and what holds of its rights, once that is durable.
    pub(in crate::origin) fn rights(&self, id: VolumeId, access: &Access) -> (&str, Effective) {
        let meta = &self.volumes[&id].meta;
        (&meta.name, access.effective(&meta.settings.rights))
    }

    /// What was said of a volume's rights, once that is durable.
    pub(in crate::origin) fn rights_said(&self, id: VolumeId) -> Option<&Rights> {
        Some(&self.volumes.get(&id)?.meta.settings.rights)
    }

    /// The rights after a change. Refused: one that takes the asker's own right to administer, unless
    /// he says that he wants it.
    fn rights_after(
        &self,
        cx: &Context<'_>,
        asker: &Asker,
        volume: &Volume,
        (edits, force): (&[RightsEdit], bool),
    ) -> Result<(Rights, Effective), RequestError> {
        let rights = volume.rights.edited(edits);
        let rights = rights.map_err(|error| RequestError::Invalid(error.to_string()))?;
        let effective = cx.config.access.effective(&rights);
        let name = &volume.meta.name;
        let (who, has) = asker.least(&effective);
        if force || has == Right::Admin {
            return Ok((rights, effective));
        }
        Err(RequestError::Invalid(if effective.has_admin() {
            format!("{who} would lose the right to administer volume {name}: --force does it")
        } else {
            format!(
                "nobody could administer volume {name} any more, but whom `origin.admins` names: --force does it"
            )
        }))
    }

    /// Whether a commit has the rights it needs: that of its node, and of the relay that it came
    /// through. Both are looked at as the log has them, changes that are not durable yet included.
    pub(super) fn check_rights(
        &self,
        cx: &Context<'_>,
        passers: &[Passer],
        request: &CommitRequest,
    ) -> Result<(), Abort> {
        if cx.config.faults.has(Fault::CommitUnchecked) {
            return Ok(());
        }
        let written = request.writes.iter().map(|write| (write.page.volume, Right::Write));
        let read = request.reads.iter().map(|read| (read.page.volume, Right::Read));
        let mut last = None;
        for (id, needs) in written.chain(read) {
            // Neighbours are mostly of one volume.
            if last.replace((id, needs)) == Some((id, needs)) {
                continue;
            }
            let Some(volume) = self.volumes.get(&id).filter(|v| v.effective.least() < needs) else {
                continue;
            };
            let node = self.boots.name(request.id.boot).expect("looked up before");
            let short = |who: &str| {
                let (who, has) = (certificate_of(who), volume.effective.of(who));
                let (volume, who) = (volume.meta.name.clone(), who.to_owned());
                let unjust = has == needs && cx.config.faults.has(Fault::RefusedWithRight);
                (has < needs || unjust)
                    .then(|| Abort::Denied(Box::new(Denied { volume, who, has, needs })))
            };
            if let Some(abort) = short(node) {
                return Err(abort);
            }
            // It may have come over several links: one that may pass it on is enough.
            let mut relays = passers.iter().map(|passer| passer.relay.as_deref().and_then(short));
            if let Some(Some(abort)) = relays.next()
                && relays.all(|short| short.is_some())
            {
                return Err(abort);
            }
        }
        Ok(())
    }

    /// Changes a volume, once that is durable.
    pub(in crate::origin) fn change_volume(
        &mut self,
        cx: &mut Context<'_>,
        (link, request): (LinkId, RequestId),
        asker: &Asker,
        volume: VolumeId,
        change: &VolumeChange,
    ) {
        let Some(entry) = self.volumes.get_mut(&volume) else {
            let error = self.no_volume(volume);
            return cx.links.fail(link, request, error, cx.out);
        };
        if entry.deleting.is_some() {
            return entry.refused(link, request);
        }
        let entry = &self.volumes[&volume];
        if let Err(error) = asker.check_admin(entry) {
            return self.refuse_for_rights(cx, (link, request), volume, error);
        }
        if let Err(full) = self.takes_request(cx) {
            return cx.links.fail(link, request, full, cx.out);
        }
        let mut settings = VolumeSettings { quota: entry.quota, rights: entry.rights.clone() };
        let mut effective = None;
        match change {
            VolumeChange::Quota(quota) => settings.quota = *quota,
            VolumeChange::Rights { edits, force } => {
                match self.rights_after(cx, asker, entry, (edits, *force)) {
                    Ok((rights, holds)) => (settings.rights, effective) = (rights, Some(holds)),
                    Err(error) => {
                        return self.refuse_for_rights(cx, (link, request), volume, error);
                    }
                }
            }
        }
        let entry = self.volumes.get_mut(&volume).expect("just seen");
        (entry.quota, entry.rights) = (settings.quota, settings.rights.clone());
        if let Some(effective) = effective {
            entry.effective = effective;
            self.rights_changes += 1;
        }
        if cx.config.faults.has(Fault::ChangedEarly) {
            let info = self.volume(volume).expect("just seen");
            cx.links.reply(link, Message::Volume { request, info }, cx.out);
        }
        let record = LogRecord::Settings { volume, settings: settings.clone() };
        self.gather(record, Item::Settings { link, request, volume, settings });
        self.append(cx);
    }

    /// Refuses a request for rights that the log has, once they are durable: what would be taken back
    /// with its append is told to nobody (rule 14).
    pub(super) fn refuse_for_rights(
        &mut self,
        cx: &mut Context<'_>,
        (link, request): (LinkId, RequestId),
        volume: VolumeId,
        error: RequestError,
    ) {
        let of_it =
            |item: &Item| matches!(item, Item::Settings { volume: id, .. } if *id == volume);
        let says = |batch: &Batch| batch.items.iter().any(of_it);
        let flying = self.flying.as_mut().map(|(_, batch)| batch);
        let batches = [Some(&mut self.gathering), flying];
        match batches.into_iter().flatten().find(|batch| says(batch)) {
            Some(batch) => batch.refused.push((link, request, error)),
            None => cx.links.fail(link, request, error, cx.out),
        }
    }

    /// A link is gone: nobody waits behind it for a change or a deletion that hangs. Each new link would
    /// add as many.
    pub(super) fn gone_from_batches(&mut self, link: LinkId) {
        let flying = self.flying.as_mut().map(|(_, batch)| batch);
        for batch in [Some(&mut self.gathering), flying].into_iter().flatten() {
            batch.refused.retain(|(waiting, ..)| *waiting != link);
            for item in &batch.items {
                if let Item::Deleted { volume, .. } = item
                    && let Some(volume) = self.volumes.get_mut(volume)
                    && let Some(deleting) = &mut volume.deleting
                {
                    deleting.askers.retain(|(waiting, _)| *waiting != link);
                    deleting.refused.retain(|(waiting, _)| *waiting != link);
                }
            }
        }
    }

    /// Links on which somebody waits for a change or a deletion.
    pub(super) fn waiting_for_batches(&self) -> impl Iterator<Item = LinkId> + '_ {
        let batches = self.flying.iter().map(|(_, batch)| batch).chain([&self.gathering]);
        let refused = batches.flat_map(|batch| batch.refused.iter().map(|(link, ..)| *link));
        let deleting = self.volumes.values().filter_map(|volume| volume.deleting.as_ref());
        let deleting = deleting.flat_map(|of| of.askers.iter().chain(&of.refused));
        refused.chain(deleting.map(|(link, _)| *link))
    }

    /// A volume's settings are durable.
    pub(super) fn changed(
        &mut self,
        cx: &mut Context<'_>,
        (link, request): (LinkId, RequestId),
        volume: VolumeId,
        settings: VolumeSettings,
    ) {
        let entry = self.volumes.get_mut(&volume).expect("checked before");
        let before = std::mem::replace(&mut entry.meta.settings, settings);
        if before.rights != entry.meta.settings.rights {
            let (name, rights) = self.rights(volume, &cx.config.access);
            cx.links.set_rights((self.id, volume), name, rights, RequestId(0));
        }
        if cx.config.faults.has(Fault::ChangedEarly) {
            return;
        }
        let info = self.volume(volume).expect("just seen");
        cx.links.reply(link, Message::Volume { request, info }, cx.out);
    }

    /// Panics when a volume takes something else than its commits made of it.
    pub(super) fn check_taken(&self) {
        for (id, volume) in &self.volumes {
            let batches = self.flying.iter().map(|(_, batch)| batch);
            let items = batches.chain([&self.gathering]).flat_map(|batch| &batch.items);
            let tentative = items.flat_map(|item| match item {
                Item::Commit { grown, .. } => &grown[..],
                _ => &[],
            });
            let prepared = self.parts.growth();
            // It is counted with its commit as soon as that is gathered.
            let follows = || self.flying.iter().map(|(_, b)| b).chain([&self.gathering]);
            let follows = follows().flat_map(|batch| &batch.items).any(|item| {
                matches!(item, Item::Commit { turn: Some(crate::across::Turn::Part(..)), .. })
            });
            let prepared = prepared.iter().filter(|_| !follows);
            let tentative = tentative.filter(|growth| growth.volume == *id);
            let prepared = prepared.filter(|growth| growth.volume == *id);
            let by = tentative.map(|growth| growth.bytes);
            let by = by.chain(prepared.map(|growth| growth.bytes.max(0)));
            let taken = volume.meta.bytes.saturating_add_signed(by.sum());
            assert_eq!(taken, volume.taken, "what volume {id} takes is miscounted");
        }
    }

    /// Whether the volumes may grow so.
    pub(super) fn check_quotas(&self, grown: &Grown, writes: &[Write]) -> Result<(), Abort> {
        let frees = |volume| {
            let mut of = writes.iter().filter(|write| write.page.volume == volume);
            of.any(|write| matches!(write.op, Op::DeletePage | Op::Delete { .. }))
        };
        for growth in &grown.0 {
            let volume = self.volumes.get(&growth.volume).expect("its writes were applied");
            // Only what grows past the quota is looked at twice.
            if let Err(abort) = volume.check_quota(*growth, false)
                && volume.check_quota(*growth, frees(growth.volume)).is_err()
            {
                return Err(abort);
            }
        }
        Ok(())
    }

    /// Volume ids are never reused, so that nothing is known of the page.
    fn make_root(&mut self, root: PageId, at: (Lsn, Stamp)) {
        if !self.pages.is_loaded(root) {
            let absent = Image { version: Stamp::ZERO, page: None };
            let next = self.after_durable();
            self.pages.loaded(root, Stamp::ZERO, absent, next);
        }
        let entry = self.pages.get_mut(root).expect("loaded above");
        let (image, _) = entry.gather();
        *image = Image { version: at.1, page: Some(Page::empty(PageKind::Slotted)) };
        self.gathering.pages.push((root, at));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bug 163. A node was given numbers 16 to 20 in a history that was lost: the origin was restored from a copy of
    /// before, and gave them to another node. Then it started sixteen times, and numbers were given after each
    /// start. The first node made page 18: of its history nothing was known any more, and it passed for one of
    /// long ago. What nobody can tell is refused, and other numbers are taken.
    #[test]
    fn bug_163_a_number_of_a_history_that_is_not_known_is_refused() {
        let meta = VolumeMeta {
            id: VolumeId(7),
            name: "v".into(),
            page_bytes: 4096,
            next_page: PageNo(16),
            version: Stamp(1),
            pages: 1,
            bytes: 32,
            settings: VolumeSettings::default(),
            given: Vec::new(),
        };
        let mut volume = Volume::new(meta, &Access::default());
        let histories = |from: u128| (from..from + GIVEN_MAX as u128).map(HistoryId);
        for history in histories(100) {
            volume.begin(history);
            volume.meta.next_page.0 += 5;
        }
        assert!(volume.gave(PageNo(18), HistoryId(100)), "given in that one");
        assert!(!volume.gave(PageNo(18), HistoryId(101)), "given before it");
        assert!(!volume.gave(PageNo(18), HistoryId(7)), "of a lost branch");
        assert!(volume.gave(PageNo(18), HistoryId::default()), "read in what is committed");
        for history in histories(200) {
            volume.begin(history);
            volume.meta.next_page.0 += 5;
        }
        assert!(!volume.gave(PageNo(18), HistoryId(7)), "of a lost branch");
        assert!(!volume.gave(PageNo(18), HistoryId(100)), "forgotten by now");
        assert!(volume.gave(PageNo(18), HistoryId::default()), "read in what is committed");
    }
}
