//! What the origin answers, held against the durable log: what it says that it did with a volume is there
//! (P1), and a *no* was just at some time between the request and its answer. The outcome of a commit may be
//! kept from its first arrival on, and one that was refused is never done (P11).
//!
//! A value of a volume's settings binds from when its record is durable until the end of the step in which
//! the origin hears that a later one is; what is between is on its way, and either may be told.

use super::expired::Expired;
use super::under_way::UnderWay;
use super::withdrawn::Withdrawn;
use crate::agenda::Time;
use larder_core::commit::{Abort, Outcome};
use larder_core::id::{CommitId, DomainId, RequestId, VolumeId};
use larder_core::message::{Message, RequestError, VolumeChange, certificate_of};
use larder_core::origin::RecoveredDomain;
use larder_core::record::{LogRecord, VolumeSettings};
use larder_core::rights::{Denied, Right, Rights};
use std::collections::{BTreeMap, BTreeSet};

/// What the log says of volumes, and what the origin was asked.
#[derive(Debug, Default)]
pub struct Answers {
    volumes: BTreeMap<VolumeId, Volume>,
    /// Every name that any volume had.
    names: BTreeMap<String, BTreeSet<VolumeId>>,
    asked: BTreeMap<(u32, RequestId), Asked>,
    /// When a commit first arrived.
    commits: BTreeMap<(DomainId, CommitId), Arrived>,
    /// Commits that the log says to be refused.
    refused: BTreeSet<(DomainId, CommitId)>,
    /// Appends of a domain that are durable, and of which the origin was not told.
    untold: BTreeMap<DomainId, u32>,
    /// Which outcomes may be said to be forgotten.
    pub expired: Expired,
    /// What nodes said not to be done.
    pub withdrawn: Withdrawn,
    /// Commits that are neither durable nor answered.
    pub under_way: UnderWay,
}

#[derive(Debug)]
struct Volume {
    domain: DomainId,
    /// Whether it is in the log as it is now, and not deleted, as far as the origin knows.
    there: bool,
    /// Whether its deletion is in the log as it is now.
    deleted: bool,
    /// When its domain started without the deletion that it had had.
    deletion_lost: Option<Time>,
    settings: Vec<Value>,
}

#[derive(Debug)]
struct Value {
    settings: VolumeSettings,
    /// A later one is durable.
    over: bool,
    /// And the origin knows.
    until: Option<Time>,
}

#[derive(Debug)]
struct Asked {
    at: Time,
    change: Option<(VolumeId, VolumeChange)>,
}

/// A commit that arrived.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    at: Time,
    /// Of a transaction over several domains: the domain that decides.
    decided_by: Option<DomainId>,
}

impl Value {
    fn bound_after(&self, time: Time) -> bool {
        self.until.is_none_or(|until| until >= time)
    }
}

impl Volume {
    /// Whether its deletion is a reason of `domain` to refuse this commit: it is in the log; or it was, since the commit
    /// arrived, and another domain than the volume's carries the reason, which decides or tells what was decided.
    fn deleted_for(&self, domain: DomainId, arrived: Arrived) -> bool {
        let carried =
            arrived.decided_by.is_some_and(|by| by != self.domain || domain != self.domain);
        self.deleted || carried && self.deletion_lost.is_some_and(|lost| lost >= arrived.at)
    }
}

impl Answers {
    /// The origin serves a domain from what was recovered.
    pub fn recovered(&mut self, domain: DomainId, found: &RecoveredDomain, now: Time) {
        self.untold.remove(&domain);
        self.expired.recovered(domain, found);
        self.under_way.recovered(domain);
        for volume in self.volumes.values_mut().filter(|volume| volume.domain == domain) {
            if volume.deleted {
                volume.deletion_lost = Some(now);
            }
            (volume.there, volume.deleted) = (false, false);
            volume.settings.iter_mut().for_each(|value| {
                value.until.get_or_insert(now);
            });
        }
        self.refused.retain(|(of, _)| *of != domain);
        for meta in &found.meta.boots {
            let aborted = meta.aborted.iter();
            let ids =
                aborted.map(|(sequence, _)| CommitId { boot: meta.boot, sequence: *sequence });
            self.refused.extend(ids.map(|id| (domain, id)));
        }
        for meta in &found.meta.volumes {
            self.made(domain, meta.id, &meta.name, meta.settings.clone());
        }
        for deleted in &found.meta.deleted {
            self.deletes(domain, deleted.id);
        }
        for (_, record) in &found.records {
            self.take(domain, record);
        }
    }

    /// Records are durable; the origin hears of it later.
    pub fn durable<'a>(&mut self, domain: DomainId, records: impl Iterator<Item = &'a LogRecord>) {
        *self.untold.entry(domain).or_default() += 1;
        records.for_each(|record| self.take(domain, record));
    }

    /// The origin heard of the oldest append of which it had not, and answered all that waited for it.
    pub fn told(&mut self, domain: DomainId, now: Time) {
        let untold = self.untold.entry(domain).or_default();
        *untold = untold.saturating_sub(1);
        if *untold > 0 {
            return;
        }
        for volume in self.volumes.values_mut().filter(|volume| volume.domain == domain) {
            volume.there &= !volume.deleted;
            for value in volume.settings.iter_mut().filter(|value| value.over) {
                value.until.get_or_insert(now);
            }
        }
    }

    fn take(&mut self, domain: DomainId, record: &LogRecord) {
        self.expired.durable(domain, record);
        self.under_way.durable(domain, record);
        self.withdrawn.durable(domain, record);
        match record {
            LogRecord::Volume { volume, .. } => {
                self.made(domain, volume.id, &volume.name, volume.settings.clone());
            }
            LogRecord::Settings { volume, settings } => self.says(*volume, settings.clone()),
            LogRecord::Deleted { volume, .. } => self.deletes(domain, *volume),
            LogRecord::Aborted { id, .. } => {
                self.refused.insert((domain, *id));
            }
            // Whoever was told of the refusal has done something else since (rule 15).
            LogRecord::Commit { stamp, id, .. } => assert!(
                !self.refused.contains(&(domain, *id)),
                "P11: {id:?} is commit {stamp} of {domain:?}, and the log has its refusal"
            ),
            _ => {}
        }
    }

    fn made(&mut self, domain: DomainId, id: VolumeId, name: &str, settings: VolumeSettings) {
        self.names.entry(name.to_owned()).or_default().insert(id);
        self.volume(domain, id).there = true;
        self.says(id, settings);
    }

    fn volume(&mut self, domain: DomainId, id: VolumeId) -> &mut Volume {
        self.volumes.entry(id).or_insert(Volume {
            domain,
            there: false,
            deleted: false,
            deletion_lost: None,
            settings: Vec::new(),
        })
    }

    fn says(&mut self, id: VolumeId, settings: VolumeSettings) {
        let Some(volume) = self.volumes.get_mut(&id) else { return };
        volume.settings.iter_mut().for_each(|value| value.over = true);
        volume.settings.push(Value { settings, over: false, until: None });
    }

    fn deletes(&mut self, domain: DomainId, id: VolumeId) {
        self.volume(domain, id).deleted = true;
    }

    /// The origin is asked something over a connection.
    pub fn asked(&mut self, conn: u32, message: &Message, now: Time) {
        self.expired.asked(message);
        self.under_way.asked(message);
        match message {
            Message::For { message, .. } => self.asked(conn, message, now),
            Message::Commit { domain, commit } => {
                let decided_by = commit.across.as_ref().map(|across| across.coordinator().domain);
                let arrived = Arrived { at: now, decided_by };
                self.commits.entry((*domain, commit.id)).or_insert(arrived);
                // A transaction may be refused for one part before another one comes.
                let parts = commit.across.iter().flat_map(|across| across.parts());
                for part in parts {
                    self.commits.entry((part.domain, part.id)).or_insert(arrived);
                }
            }
            Message::ChangeVolume { request, volume, change } => {
                let change = Some((*volume, change.clone()));
                self.asked.insert((conn, *request), Asked { at: now, change });
            }
            Message::Fetch { request, .. }
            | Message::CopyPages { request, .. }
            | Message::OpenVolume { request, .. }
            | Message::DeleteVolume { request, .. }
            | Message::AllocateIds { request, .. } => {
                self.asked.insert((conn, *request), Asked { at: now, change: None });
            }
            _ => {}
        }
    }

    /// The origin answers. Panics when it says what is not so.
    pub fn answered(&mut self, conn: u32, message: &Message) {
        self.expired.answered(message);
        self.under_way.answered(message);
        match message {
            Message::Volume { request, info } => {
                let there = self.volumes.get(&info.id).is_some_and(|volume| volume.there);
                assert!(there, "P1: {} is told of and is not in the log: {info:?}", info.id);
                if let Some(Asked { at, change: Some((volume, change)) }) =
                    self.asked.get(&(conn, *request))
                {
                    self.check_changed(*volume, change, *at);
                }
            }
            Message::VolumeDeleted { volume, .. } => {
                let gone = self.volumes.get(volume).is_some_and(|volume| volume.deleted);
                assert!(gone, "P1: {volume} is said to be deleted, and the log has it");
            }
            Message::Failed { request, error, .. } => {
                let asked = self.asked.get(&(conn, *request));
                self.check_failed(asked.map_or(Time(0), |asked| asked.at), error);
            }
            Message::Committed { domain, id, outcome: Outcome::Aborted(abort), .. } => {
                let unseen = Arrived { at: Time(0), decided_by: None };
                let arrived = self.commits.get(&(*domain, *id)).copied().unwrap_or(unseen);
                self.check_aborted(*domain, arrived, abort);
            }
            _ => {}
        }
    }

    /// A change that is acknowledged was durable at some time since it was asked for.
    fn check_changed(&self, volume: VolumeId, change: &VolumeChange, since: Time) {
        let done = |settings: &VolumeSettings| match change {
            VolumeChange::Quota(quota) => settings.quota == *quota,
            VolumeChange::Rights { edits, .. } => edits.iter().all(|edit| {
                edit.right.is_none_or(|right| right_of(&settings.rights, &edit.who) == right)
            }),
        };
        assert!(
            self.ever(volume, since, done),
            "P1: {volume} is said to be changed by {change:?}, and the log has {:?}",
            self.volumes.get(&volume).and_then(|volume| volume.settings.last())
        );
    }

    /// Whether something was so at some time since `since`.
    fn ever(&self, volume: VolumeId, since: Time, so: impl Fn(&VolumeSettings) -> bool) -> bool {
        let values = self.volumes.get(&volume).into_iter().flat_map(|volume| &volume.settings);
        values.filter(|value| value.bound_after(since)).any(|value| so(&value.settings))
    }

    fn check_failed(&self, since: Time, error: &RequestError) {
        match error {
            RequestError::Denied(denied) => self.check_denied(since, denied),
            RequestError::Deleted(key) => {
                let deleted = |id: &VolumeId| self.volumes[id].deleted;
                // Of pages of several volumes the first few are named.
                assert!(
                    key.split(", ")
                        .filter(|key| *key != "others")
                        .all(|key| self.called(key).iter().any(deleted)),
                    "refusal: {key} is said to be deleted, and the log knows of no deletion"
                );
            }
            _ => {}
        }
    }

    /// A domain refuses a commit.
    fn check_aborted(&self, domain: DomainId, arrived: Arrived, abort: &Abort) {
        let since = arrived.at;
        match abort {
            Abort::Denied(denied) => self.check_denied(since, denied),
            Abort::Deleted(volume) => assert!(
                self.volumes.get(volume).is_some_and(|volume| volume.deleted_for(domain, arrived)),
                "refusal: {volume} is said to be deleted, and the log knows of no deletion"
            ),
            Abort::Quota { volume, limit, used, more, .. } => assert!(
                used + more > *limit
                    && self.ever(*volume, since, |settings| settings.quota == Some(*limit)),
                "refusal: {volume} is said to pass its quota since {since:?}: {abort:?}; the log \
                 has {:?}",
                self.volumes.get(volume).map(|volume| &volume.settings)
            ),
            _ => {}
        }
    }

    /// Who is refused had the right that is named, and it was too little.
    fn check_denied(&self, since: Time, denied: &Denied) {
        let Denied { volume, who, has, needs } = denied;
        let so = |id: &VolumeId| {
            self.ever(*id, since, |settings| right_of(&settings.rights, who) == *has)
        };
        assert!(
            has < needs && self.called(volume).iter().any(so),
            "refusal: {denied:?}, since {since:?}; the log has {:?}",
            self.called(volume).iter().map(|id| &self.volumes[id].settings).collect::<Vec<_>>()
        );
    }

    /// The volumes of a name, or of what is the text of an id.
    fn called(&self, key: &str) -> BTreeSet<VolumeId> {
        let mut found = self.names.get(key).cloned().unwrap_or_default();
        found.extend(self.volumes.keys().filter(|id| id.to_string() == key));
        found
    }
}

/// What somebody may do: names only, no patterns, as runs say them. Of whom nothing is said may do all.
fn right_of(rights: &Rights, who: &str) -> Right {
    let mut entries = rights.entries();
    let said = entries.find(|(name, _)| *name == certificate_of(who)).map(|(_, right)| right);
    said.unwrap_or(Right::Admin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_core::id::{HistoryId, Stamp};
    use larder_core::message::VolumeSpec;
    use larder_core::record::DomainMeta;
    use larder_core::rights::RIGHTS_MAX;

    const ONE: DomainId = DomainId(1);
    const TWO: DomainId = DomainId(2);
    const ID: VolumeId = VolumeId(7);

    fn said(quota: Option<u64>, right: Right) -> VolumeSettings {
        let entries = [("bob".to_owned(), right)];
        VolumeSettings { quota, rights: Rights::new(entries, RIGHTS_MAX).expect("a list") }
    }

    /// Bob may write until 20, when the origin hears that he may only read; then the volume is deleted.
    fn history(deleted: bool) -> Answers {
        let mut answers = Answers::default();
        let meta = VolumeSpec { id: ID, name: "v".into(), page_bytes: 4096, domain: Some(ONE) };
        answers.made(ONE, meta.id, &meta.name, said(Some(100), Right::Write));
        let less = LogRecord::Settings { volume: ID, settings: said(None, Right::Read) };
        answers.durable(ONE, [&less].into_iter());
        answers.told(ONE, Time(20));
        if deleted {
            let gone = LogRecord::Deleted { stamp: Stamp(3), volume: ID };
            answers.durable(ONE, [&gone].into_iter());
        }
        answers
    }

    /// To before all that.
    fn restored() -> RecoveredDomain {
        let meta = DomainMeta { domain: ONE, ..DomainMeta::default() };
        RecoveredDomain { meta, apart: Vec::new(), records: Vec::new(), history: HistoryId(9) }
    }

    fn refused(answers: &Answers, since: u64, has: Right, needs: Right) {
        let (volume, who) = ("v".to_owned(), "bob".to_owned());
        let denied = Denied { volume, who, has, needs };
        let arrived = Arrived { at: Time(since), decided_by: None };
        answers.check_aborted(ONE, arrived, &Abort::Denied(Box::new(denied)));
    }

    fn over_quota(since: u64, used: u64) {
        let (volume, name) = (ID, "v".to_owned());
        let abort = Abort::Quota { volume, name, limit: 100, used, more: 10 };
        let arrived = Arrived { at: Time(since), decided_by: None };
        history(false).check_aborted(ONE, arrived, &abort);
    }

    #[test]
    fn what_was_so_since_it_was_asked_is_just() {
        refused(&history(false), 20, Right::Write, Right::Admin);
        refused(&history(false), 30, Right::Read, Right::Write);
        over_quota(20, 95);
        history(true).check_failed(Time(0), &RequestError::Deleted("v".into()));
        history(true).check_aborted(
            ONE,
            Arrived { at: Time(0), decided_by: None },
            &Abort::Deleted(ID),
        );
    }

    #[test]
    #[should_panic(expected = "refusal")]
    fn a_right_that_was_over_before_it_was_asked_is_no_reason() {
        refused(&history(false), 21, Right::Write, Right::Admin);
    }

    #[test]
    #[should_panic(expected = "refusal")]
    fn a_right_that_is_enough_is_no_reason() {
        refused(&history(false), 0, Right::Write, Right::Write);
    }

    #[test]
    #[should_panic(expected = "refusal")]
    fn a_quota_that_is_not_passed_is_no_reason() {
        over_quota(0, 90);
    }

    #[test]
    #[should_panic(expected = "refusal")]
    fn a_quota_that_is_not_said_any_more_is_no_reason() {
        over_quota(21, 95);
    }

    #[test]
    #[should_panic(expected = "refusal")]
    fn a_volume_that_is_there_was_not_deleted() {
        history(false).check_failed(Time(0), &RequestError::Deleted("v".into()));
    }

    /// After a restore to before the deletion `domain` says that the volume is deleted, to who asked then.
    fn refused_for_what_was_lost(domain: DomainId, at: u64, decided_by: Option<DomainId>) {
        let mut answers = history(true);
        answers.recovered(ONE, &restored(), Time(40));
        answers.check_aborted(domain, Arrived { at: Time(at), decided_by }, &Abort::Deleted(ID));
    }

    /// Seed 22360952444785: a domain had a vote on its way that refused a part, since a volume was deleted. It was restored to
    /// before that deletion, and the domain that decides told the node of the refusal: true when it was asked.
    #[test]
    fn a_deletion_that_a_restore_lost_is_a_reason_that_others_carry() {
        refused_for_what_was_lost(TWO, 40, Some(TWO));
        refused_for_what_was_lost(ONE, 40, Some(TWO));
        refused_for_what_was_lost(TWO, 40, Some(ONE));
    }

    #[test]
    #[should_panic(expected = "refusal")]
    fn a_deletion_that_a_restore_lost_is_no_reason_of_its_own_domain() {
        refused_for_what_was_lost(ONE, 40, Some(ONE));
    }

    #[test]
    #[should_panic(expected = "refusal")]
    fn a_deletion_that_a_restore_lost_is_no_reason_for_one_domain_alone() {
        refused_for_what_was_lost(ONE, 40, None);
    }

    #[test]
    #[should_panic(expected = "refusal")]
    fn a_deletion_that_a_restore_lost_is_none_for_who_asked_after() {
        refused_for_what_was_lost(TWO, 41, Some(TWO));
    }

    #[test]
    #[should_panic(expected = "P1")]
    fn a_deletion_that_is_not_durable_is_not_acknowledged() {
        let message = Message::VolumeDeleted { request: RequestId(1), volume: ID };
        history(false).answered(1, &message);
    }

    #[test]
    #[should_panic(expected = "P1")]
    fn a_change_that_is_not_durable_is_not_acknowledged() {
        history(false).check_changed(ID, &VolumeChange::Quota(Some(8)), Time(0));
    }

    /// What was lost with an old copy of the origin is not there any more.
    #[test]
    #[should_panic(expected = "P1")]
    fn a_change_that_was_lost_is_not_acknowledged() {
        let mut answers = history(false);
        for volume in answers.volumes.values_mut() {
            volume.settings.iter_mut().for_each(|value| value.until = Some(Time(30)));
        }
        answers.check_changed(ID, &VolumeChange::Quota(None), Time(31));
    }
}
