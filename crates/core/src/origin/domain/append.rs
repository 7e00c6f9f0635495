//! Group commit: one append under way, the next one gathers meanwhile.

use super::batch::{Batch, Item};
use super::boots::{ENDED, Registering};
use super::volumes::Volume;
use super::{Context, Domain, Event, Service};
use crate::across::Turn;
use crate::commit::{Change, IdRange, Outcome, PageChange};
use crate::confirmed::Confirmed;
use crate::downlink::Recent;
use crate::id::{BootId, CommitId, LinkId, PageId, PageNo, RequestId, Stamp, VolumeId};
use crate::machine::Fault;
use crate::message::{Message, RequestError};
use crate::origin::io::{OriginOutput, StoreFault, WriteId};
use crate::record::{LogRecord, Lsn, VolumeMeta};
use crate::rights::Access;

/// Records of requests other than commits that an append may gather in any case.
const REQUESTS_MIN: usize = 256;
/// Boots that an append logs as ended, and that it forgets.
const ENDED_MAX: usize = 64;

impl Domain {
    /// Whether an append that is gathered takes one more record that changes no page. While the log hangs a
    /// child that comes back again and again would add as many each time as it may ask at once.
    pub(super) fn takes_request(&self, cx: &Context<'_>) -> Result<(), RequestError> {
        let max = (2 * cx.config.append_records_max).max(REQUESTS_MIN);
        if self.gathering.items.len() < max {
            return Ok(());
        }
        crate::probe::probe("gathered-full");
        Err(RequestError::Busy(format!("{max} changes wait for the log")))
    }

    /// Puts a record into the append being gathered.
    pub(super) fn gather(&mut self, record: LogRecord, item: Item) -> Lsn {
        let lsn = self.next_lsn;
        self.next_lsn = Lsn(lsn.0 + 1);
        self.gathering.push(lsn, record, item);
        lsn
    }

    /// Sends the gathered append if none is under way; says whether it did.
    pub(super) fn append(&mut self, cx: &mut Context<'_>) -> bool {
        self.house_after = self.house_after.filter(|at| *at > cx.now);
        let waits = self.append_after.is_some_and(|at| at > cx.now);
        if self.is_failed() || self.flying.is_some() || waits {
            return false;
        }
        self.append_after = None;
        // The epoch goes alone, and is taken back as often as the store is full.
        if self.is_open() {
            self.gather_boots(cx);
        }
        if self.gathering.is_empty() {
            assert!(self.gathering.withheld.is_empty(), "an answer waits for nothing");
            return false;
        }
        let mut batch = std::mem::take(&mut self.gathering);
        for (page, _) in &batch.pages {
            self.pages.fly(*page);
        }
        let write = self.write_id();
        cx.out.push(OriginOutput::Append {
            domain: self.id,
            write,
            records: std::mem::take(&mut batch.records),
        });
        if cx.config.faults.has(Fault::AcknowledgeEarly) {
            self.promote(cx, batch);
            batch = Batch::default();
        }
        self.flying = Some((write, batch));
        true
    }

    /// Boots that wait to be registered; the longest unheard of make room. One that cannot be made
    /// now, or whose node is gone, is asked for again.
    fn gather_boots(&mut self, cx: &mut Context<'_>) {
        let gathered = |items: &[Item], boot: BootId| {
            items.iter().any(|item| matches!(item, Item::Boot { boot: b, .. } if *b == boot))
        };
        for (boot, Registering { name, ended }) in self.registering.clone() {
            if gathered(&self.gathering.items, boot) {
                continue;
            }
            if ended || !cx.links.is_claimed(self.id, boot) || !self.make_room(cx, &name) {
                self.registering.remove(&boot);
                continue;
            }
            let item = Item::Boot { boot, name: name.clone() };
            self.gather(LogRecord::Boot { boot, name }, item);
        }
        if self.house_after.is_none() {
            self.log_ended();
            self.forget_ended(cx);
        }
    }

    /// That boots ended.
    fn log_ended(&mut self) {
        for _ in 0..ENDED_MAX {
            let Some(boot) = self.boots.unlogged_end() else {
                return;
            };
            self.gather(LogRecord::Confirmed { boot, upto: ENDED }, Item::Ended);
        }
    }

    /// Boots of nodes that said long ago that they end: each start of a command would be kept otherwise, until its
    /// certificate has as many as it may.
    fn forget_ended(&mut self, cx: &Context<'_>) {
        for _ in 0..ENDED_MAX {
            let (id, prepared) = (self.id, self.parts.boot_of_prepared());
            // A part that is prepared has an outcome yet to come.
            let connected = |boot| cx.links.is_claimed(id, boot) || prepared == Some(boot);
            let after = cx.config.boot_forget_after;
            let Some(boot) = self.boots.over(cx.now, after, connected) else {
                return;
            };
            crate::probe::probe("boot-that-ended-forgotten");
            self.forget_boot(boot);
        }
    }

    fn forget_boot(&mut self, boot: BootId) {
        self.boots.leave(boot);
        self.gather(LogRecord::Confirmed { boot, upto: u64::MAX }, Item::Forgotten(boot));
    }

    /// Whether the table has room for a boot of this name; forgets one if it must.
    fn make_room(&mut self, cx: &Context<'_>, name: &str) -> bool {
        let prepared = self.parts.boot_of_prepared();
        let connected = |boot| cx.links.is_claimed(self.id, boot) || prepared == Some(boot);
        let of_name = self.boots.of_certificate(name) >= cx.config.boots_per_name_max;
        let spare = if of_name {
            self.boots.spare(name, connected)
        } else if self.boots.len() >= cx.config.boots_max {
            self.boots.oldest(cx.now, cx.config.boot_forget_after, connected)
        } else {
            return true;
        };
        let Some(boot) = spare else {
            return false;
        };
        crate::probe::probe("boot-makes-room");
        self.forget_boot(boot);
        true
    }

    /// An append ended.
    pub(in crate::origin) fn appended(
        &mut self,
        cx: &mut Context<'_>,
        write: WriteId,
        result: Result<(), StoreFault>,
    ) {
        let Some((flying, _)) = &self.flying else {
            return;
        };
        assert_eq!(*flying, write, "appends are answered in order");
        let (_, batch) = self.flying.take().expect("just seen");
        match result {
            Ok(()) => self.promote(cx, batch),
            Err(_) if cx.config.faults.has(Fault::IgnoreSyncError) => self.promote(cx, batch),
            Err(StoreFault::Full(detail)) if self.service == Service::Open => {
                self.roll_back(cx, batch, &detail);
            }
            Err(fault @ StoreFault::Full(_)) => self.wait_for_room(cx, fault),
            Err(fault) => {
                self.flying = Some((write, batch));
                self.fail(cx, fault);
            }
        }
    }

    /// The store took nothing of the epoch, since it is full. It is asked again: when an install
    /// of what was recovered has given space of the log back, and after a while, since an operator
    /// may have made room.
    fn wait_for_room(&mut self, cx: &mut Context<'_>, fault: StoreFault) {
        assert!(self.gathering.is_empty(), "nothing comes before the epoch");
        self.next_lsn = Lsn(self.durable_lsn.0 + 1);
        self.gather_epoch();
        self.append_after = Some(cx.now.after(cx.config.full_retry));
        self.install.hurry(cx.now);
        if self.service == Service::Full {
            return;
        }
        crate::probe::probe("start-waits-for-room");
        self.service = Service::Full;
        // What an earlier process installed and died before it gave the space back.
        let (domain, through) = (self.id, self.installed_lsn);
        cx.out.push(OriginOutput::TrimLog { domain, through });
        cx.out.push(OriginOutput::DomainWaits { domain, fault });
        cx.events.push(Event::Waits);
    }

    /// The batch is durable: it may be shown, told and acknowledged, in stamp order.
    fn promote(&mut self, cx: &mut Context<'_>, batch: Batch) {
        self.durable_lsn = self.durable_lsn.max(batch.last);
        self.durable = batch.last_stamp(self.durable);
        for (page, first) in batch.pages {
            self.keep_for_copies(cx, page);
            self.pages.promote(page, first);
        }
        let mut outcomes = Vec::with_capacity(batch.items.len());
        let mut made = Vec::new();
        for item in batch.items {
            match item {
                Item::Commit { stamp, id, changes, grown, turn } => {
                    for growth in grown {
                        let volume = self.volumes.get_mut(&growth.volume).expect("checked before");
                        volume.grow(stamp, growth);
                        self.removal.freed(growth.bytes);
                    }
                    self.boots.committed(id, stamp);
                    let pages = changes;
                    self.ring.push(Recent::Change(Change { stamp, id, pages }));
                    outcomes.push((id, Outcome::Committed(stamp)));
                    match turn {
                        None => {}
                        Some(Turn::Own(attempt)) => self.has_decided(cx, attempt),
                        Some(Turn::Part(attempt, id)) => self.has_followed(cx, attempt, id),
                    }
                }
                Item::Prepared { attempt, at, .. } => self.is_prepared(cx, attempt, at),
                Item::Released => {}
                Item::Aborted { id, abort } => {
                    self.boots.aborted(id, &abort);
                    self.transaction_refused(cx, id, &abort);
                    outcomes.push((id, Outcome::Aborted(abort)));
                }
                Item::Boot { boot, name } => {
                    let ended = self.registering.remove(&boot).is_some_and(|it| it.ended);
                    self.boots.register(boot, &name, cx.now);
                    if ended {
                        self.boots.told(boot, &Confirmed::new(ENDED, []), cx.now);
                    }
                    cx.links.registered(self.id, boot, cx.out);
                }
                Item::Ended => {}
                Item::Forgotten(boot) => self.boots.forget(boot),
                Item::Ids { link, request, volume, first, count } => {
                    let next = PageNo(first.0 + count);
                    let given = &mut self.volumes.get_mut(&volume).expect("checked before").meta;
                    given.next_page = given.next_page.max(next);
                    let range = IdRange { volume, first, count };
                    let history = self.history();
                    cx.links.reply(link, Message::Ids { request, history, range }, cx.out);
                }
                Item::Volume { stamp, meta } => {
                    made.push(meta.id);
                    self.made(stamp, meta, &cx.config.access);
                }
                Item::Settings { link, request, volume, settings } => {
                    self.changed(cx, (link, request), volume, settings);
                }
                Item::Deleted { stamp, volume } => self.deleted(cx, stamp, volume),
                Item::Epoch => {
                    self.service = Service::Open;
                    // What an earlier process left in doubt, or did not tell.
                    self.say_again(cx);
                    cx.out.push(OriginOutput::DomainServes { domain: self.id });
                    cx.events.push(Event::Ready);
                }
            }
        }
        self.tell_late_votes(cx);
        self.pump_all(cx);
        if cx.config.faults.has(Fault::AcknowledgeInAnyOrder) {
            outcomes.reverse();
        }
        for (id, outcome) in outcomes {
            self.answer(cx, id, &outcome);
        }
        for withheld in batch.withheld {
            self.answer(cx, withheld.id, &withheld.outcome);
        }
        for (link, request, error) in batch.refused {
            cx.links.fail(link, request, error, cx.out);
        }
        cx.events.extend(made.into_iter().map(Event::VolumeMade));
    }

    fn made(&mut self, stamp: Stamp, meta: VolumeMeta, access: &Access) {
        let root = PageId { volume: meta.id, page: PageNo(1) };
        self.ring.push(Recent::Change(Change {
            stamp,
            id: CommitId::default(),
            pages: vec![PageChange::whole(root)],
        }));
        self.volumes.insert(meta.id, Volume::new(meta, access));
    }

    /// The store is full and took nothing of the append: it is as if its commits had never been
    /// executed, and so are those gathered since, which were validated on top of them.
    fn roll_back(&mut self, cx: &mut Context<'_>, flying: Batch, detail: &str) {
        crate::probe::probe("append-taken-back");
        let gathering = std::mem::take(&mut self.gathering);
        self.stamped = self.durable;
        self.next_lsn = Lsn(self.durable_lsn.0 + 1);
        self.recent.roll_back(self.durable);
        let access = &cx.config.access;
        self.volumes.values_mut().for_each(|volume| volume.roll_back(access));
        self.rights_changes += 1;
        let error = RequestError::Full(detail.into());
        for batch in [flying, gathering] {
            for (page, _) in &batch.pages {
                self.pages.roll_back(*page);
            }
            self.refuse_batch(cx, batch, &error, Event::VolumeNotMade);
        }
        self.take_back_votes(cx, &error);
        self.house_after = Some(cx.now.after(cx.config.full_retry));
        self.install.hurry(cx.now);
    }

    /// Tells those who wait for an append that it is not to be.
    fn refuse_batch(
        &mut self,
        cx: &mut Context<'_>,
        batch: Batch,
        error: &RequestError,
        volume: fn(VolumeId, String) -> Event,
    ) {
        for item in batch.items {
            match item {
                // It is decided, and tried again: nobody has to ask.
                Item::Commit { turn: Some(Turn::Part(..)), .. } if self.is_open() => {
                    self.following_taken_back();
                }
                Item::Commit { id, turn: Some(Turn::Own(attempt)), .. } if self.is_open() => {
                    self.defer(cx, id, error);
                    self.decision_taken_back(cx, attempt, error);
                }
                Item::Aborted { id, .. } => {
                    self.defer(cx, id, error);
                    self.refusal_taken_back(cx, id, error);
                }
                Item::Commit { id, .. } => self.defer(cx, id, error),
                Item::Prepared { attempt, again: false, .. } if self.is_open() => {
                    self.preparation_taken_back(cx, attempt, error);
                }
                Item::Prepared { .. } | Item::Released => {}
                Item::Ids { link, request, .. } | Item::Settings { link, request, .. } => {
                    cx.links.fail(link, request, error.clone(), cx.out);
                }
                Item::Volume { meta, .. } => {
                    let words = match error {
                        RequestError::Unavailable(detail) => detail.clone(),
                        other => other.to_string(),
                    };
                    cx.events.push(volume(meta.id, words));
                }
                Item::Deleted { volume, .. } => self.not_deleted(cx, volume, error),
                // Nobody waits for these with a limit: the node asks again.
                Item::Boot { boot, .. } => {
                    self.registering.remove(&boot);
                }
                Item::Forgotten(boot) => self.boots.stay(boot, cx.now),
                Item::Ended | Item::Epoch => {}
            }
        }
        for withheld in batch.withheld {
            self.defer(cx, withheld.id, error);
        }
        for (link, request, _) in batch.refused {
            cx.links.fail(link, request, error.clone(), cx.out);
        }
    }

    /// Service has ended: whoever waits on a link that does not follow the domain is told, and may
    /// ask the next process. The other links are closed.
    pub(super) fn refuse_all(&mut self, cx: &mut Context<'_>, fault: &StoreFault) {
        let error = RequestError::Unavailable(format!("the domain is out of service: {fault}"));
        // First: what is said of a decision that the log may have would be wrong at the next start.
        self.fail_parts(cx, &error);
        if let Some((_, flying)) = self.flying.take() {
            // The log may have it or not. A volume's name stays taken: were it given to another
            // one meanwhile, the next start might find two.
            self.refuse_batch(cx, flying, &error, Event::VolumeUnsure);
        }
        let gathering = std::mem::take(&mut self.gathering);
        self.refuse_batch(cx, gathering, &error, Event::VolumeNotMade);
        let loading = std::mem::take(&mut self.loading_commits).into_values();
        let line = self.line.take_out(|_| true);
        for waiting in loading.chain(line).chain(std::mem::take(&mut self.ready)) {
            self.defer(cx, waiting.request.id, &error);
        }
        (self.waiting_bytes, self.pinned_bytes) = (0, 0);
        assert!(self.pending.is_empty(), "a commit waits for nothing");
    }

    /// Gives page numbers, once that is durable.
    pub(in crate::origin) fn allocate(
        &mut self,
        cx: &mut Context<'_>,
        link: LinkId,
        request: RequestId,
        volume: VolumeId,
        count: u64,
    ) {
        let takes = self.takes_request(cx);
        let error = match self.volumes.get_mut(&volume) {
            None => self.no_volume(volume),
            Some(entry) if entry.deleting.is_some() => {
                crate::probe::probe("numbers-of-a-volume-being-deleted");
                return entry.refused(link, request);
            }
            Some(_) if count == 0 || count > cx.config.ids_max => {
                RequestError::Invalid(format!("1 to {} page numbers at a time", cx.config.ids_max))
            }
            // The last number stands for the volume.
            Some(entry) if entry.given.0 + count > PageNo::VOLUME.0 => {
                RequestError::Unavailable("the volume's page numbers are used up".into())
            }
            Some(entry) => {
                if let Err(full) = takes {
                    return cx.links.fail(link, request, full, cx.out);
                }
                let first = entry.given;
                entry.given = PageNo(first.0 + count);
                let next = entry.given;
                let item = Item::Ids { link, request, volume, first, count };
                self.gather(LogRecord::Ids { volume, next }, item);
                return;
            }
        };
        cx.links.fail(link, request, error, cx.out);
    }
}
