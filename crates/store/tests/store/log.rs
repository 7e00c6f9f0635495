//! The commit log under faults: what was answered is there, in order, and nothing else.

use bytes::Bytes;
use larder_core::id::DomainId;
use larder_core::record::Lsn;
use larder_core::rng::Rng;
use larder_store::disk::{Disk, DiskError};
use larder_store::log::{FIRST, Log, LogConfig, LogError};
use larder_store::testing::FaultDisk;
use proptest::prelude::*;

const DOMAIN: DomainId = DomainId(7);
const SEGMENT: u64 = 16 << 10;

fn config() -> LogConfig {
    LogConfig { segment_bytes: SEGMENT, reserve_bytes: 0, ..LogConfig::default() }
}

fn create(disk: &FaultDisk) -> Log<FaultDisk> {
    Log::create(disk.clone(), config(), DOMAIN, Rng::new(1)).expect("nothing fails here")
}

type Opened = Result<(Log<FaultDisk>, Vec<(Lsn, Bytes)>), LogError>;

fn open(disk: &FaultDisk, from: Lsn) -> Opened {
    Log::open(disk.clone(), config(), DOMAIN, Rng::new(2), from)
}

/// A record that tells its number and which attempt to write that number it was.
fn record(lsn: u64, attempt: u64, bytes: usize) -> (Lsn, Bytes) {
    let mut body = format!("{lsn}.{attempt}:").into_bytes();
    body.resize(body.len() + bytes, lsn as u8);
    (Lsn(lsn), body.into())
}

fn batch(first: u64, count: u64, bytes: usize) -> Vec<(Lsn, Bytes)> {
    (first..first + count).map(|lsn| record(lsn, 0, bytes)).collect()
}

fn segment(sequence: u64) -> String {
    format!("log-{sequence:016x}.seg")
}

/// Offset of record `index` in a segment whose records all have the body length of `record`.
fn offset_of(body: usize, index: usize) -> usize {
    4096 + index * (32 + body).next_multiple_of(8)
}

// ---- the prefix property ----

#[derive(Clone, Debug)]
enum Step {
    Append(Vec<usize>),
    Trim(u64),
    Maintain,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let sizes = prop::collection::vec(prop_oneof![0..40usize, 200..3000usize], 1..5);
    let step = prop_oneof![
        6 => sizes.prop_map(Step::Append),
        1 => (0..30u64).prop_map(Step::Trim),
        2 => Just(Step::Maintain),
    ];
    prop::collection::vec(step, 1..40)
}

/// What must be found after a crash.
#[derive(Default)]
struct Promise {
    /// By number from 1: the last attempt to write each.
    written: Vec<Bytes>,
    answered: u64,
    trimmed: u64,
    attempt: u64,
}

impl Promise {
    /// Carries out steps until the first error.
    fn run(&mut self, log: &mut Log<FaultDisk>, steps: &[Step]) -> Result<(), LogError> {
        for step in steps {
            match step {
                Step::Append(sizes) => {
                    self.attempt += 1;
                    let records: Vec<_> = sizes
                        .iter()
                        .zip(self.answered + 1..)
                        .map(|(bytes, lsn)| record(lsn, self.attempt, *bytes))
                        .collect();
                    self.written.truncate(self.answered as usize);
                    self.written.extend(records.iter().map(|(_, body)| body.clone()));
                    log.append(&records)?;
                    self.answered += records.len() as u64;
                }
                Step::Trim(behind) => {
                    let through = self.answered.saturating_sub(*behind);
                    self.trimmed = self.trimmed.max(through);
                    log.trim(Lsn(self.trimmed))?;
                }
                Step::Maintain => {
                    log.maintain()?;
                }
            }
        }
        Ok(())
    }

    /// Recovers, and compares.
    fn recover(&mut self, disk: &FaultDisk) -> Result<Log<FaultDisk>, LogError> {
        let (log, records) = open(disk, Lsn(self.trimmed + 1))?;
        let mut expected = self.trimmed + 1;
        for (lsn, body) in &records {
            assert_eq!(lsn.0, expected, "in order, without gaps");
            let written = self.written.get(lsn.0 as usize - 1);
            assert_eq!(Some(body), written, "nothing invented: record {}", lsn.0);
            expected += 1;
        }
        assert!(expected > self.answered, "what was answered is there");
        assert_eq!(log.next(), Lsn(expected));
        self.answered = expected - 1;
        self.written.truncate(self.answered as usize);
        Ok(log)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Crashes at any operation, recovery's own included, five lives long.
    #[test]
    fn what_was_answered_is_there_after_any_crash(
        lives in prop::collection::vec((steps(), 0..120u64, any::<u64>()), 1..6),
    ) {
        let mut disk = FaultDisk::default();
        let mut promise = Promise::default();
        drop(create(&disk));
        for (steps, crash, seed) in lives {
            disk.crash_after(crash);
            if let Ok(mut log) = promise.recover(&disk) {
                let _stopped = promise.run(&mut log, &steps);
            }
            disk = disk.reboot(&mut Rng::new(seed));
        }
        let recovered = promise.recover(&disk);
        prop_assert!(recovered.is_ok(), "{recovered:?}");
    }
}

#[test]
fn every_crash_point_of_one_script_keeps_the_promise() {
    let script = [
        Step::Append(vec![10, 3000, 10]),
        Step::Maintain,
        Step::Append(vec![6000]),
        Step::Append(vec![5000, 5000, 5000]),
        Step::Trim(2),
        Step::Append(vec![100; 4]),
        Step::Maintain,
        Step::Append(vec![9000]),
        Step::Trim(0),
        Step::Append(vec![9000]),
    ];
    let quiet = FaultDisk::default();
    let mut log = create(&quiet);
    let before = quiet.changes();
    Promise::default().run(&mut log, &script).expect("no fault yet");
    let points = quiet.changes() - before;
    for point in 0..=points {
        for seed in 0..20 {
            let disk = FaultDisk::default();
            let mut log = create(&disk);
            let mut promise = Promise::default();
            disk.crash_after(point);
            let _stopped = promise.run(&mut log, &script);
            let disk = disk.reboot(&mut Rng::new(seed));
            let recovered = promise.recover(&disk);
            assert!(recovered.is_ok(), "point {point} seed {seed}: {recovered:?}");
        }
    }
}

// ---- torn or damaged ----

/// The story: a batch of three records is under way when power fails. The disk has kept the
/// second and third record's sectors and not the first's. Nothing of it was answered, so this is a
/// torn tail; taking the valid records after the hole for proof of damage would refuse to start
/// after an ordinary power failure.
#[test]
fn a_hole_in_the_write_under_way_is_a_torn_tail() {
    let disk = FaultDisk::default();
    let mut log = create(&disk);
    log.append(&batch(1, 2, 600)).expect("no fault");
    log.append(&batch(3, 3, 600)).expect("no fault");
    let third = offset_of(604, 2);
    disk.alter(&segment(1), |bytes| bytes[third..third + 512].fill(0));
    let (log, records) = open(&disk, FIRST).expect("a torn tail is cut off");
    assert_eq!(records, batch(1, 2, 600));
    assert_eq!(log.next(), Lsn(3));
}

/// The story: as above, and recovery leaves records 4 and 5 of the torn batch where they are. The
/// next record 3 has the same size; after a restart the old 4 and 5 follow it, with the right
/// numbers and checksums, and two commits that were never made appear.
#[test]
fn records_left_by_a_torn_write_never_follow_new_ones() {
    let disk = FaultDisk::default();
    let mut log = create(&disk);
    log.append(&batch(1, 2, 600)).expect("no fault");
    log.append(&batch(3, 3, 600)).expect("no fault");
    let third = offset_of(604, 2);
    disk.alter(&segment(1), |bytes| bytes[third..third + 512].fill(0));
    let (mut log, _) = open(&disk, FIRST).expect("a torn tail is cut off");
    log.append(&[record(3, 1, 600)]).expect("no fault");
    let (_, records) = open(&disk, FIRST).expect("nothing is wrong");
    assert_eq!(records.last(), Some(&record(3, 1, 600)));
}

#[test]
fn damage_before_a_later_write_is_refused_and_named() {
    let disk = FaultDisk::default();
    let mut log = create(&disk);
    for lsn in 1..=4 {
        log.append(&batch(lsn, 1, 600)).expect("no fault");
    }
    let second = offset_of(604, 1);
    disk.alter(&segment(1), |bytes| bytes[second + 300] ^= 4);
    let expected = LogError::Damaged {
        file: segment(1),
        offset: second as u64,
        detail: "a record does not check, and later ones do",
    };
    assert_eq!(open(&disk, FIRST).map(|_| ()), Err(expected.clone()));
    assert_eq!(open(&disk, Lsn(4)).map(|_| ()), Err(expected));
}

#[test]
fn any_flipped_bit_before_the_last_write_is_damage_or_harmless() {
    let disk = FaultDisk::default();
    let mut log = create(&disk);
    for lsn in 1..=3 {
        log.append(&batch(lsn, 1, 20)).expect("no fault");
    }
    let written = batch(1, 3, 20);
    let body = written[0].1.len();
    // From the segment's header to the end of the second record, padding included.
    for at in (0..64).chain(4096..offset_of(body, 2)) {
        for bit in 0..8 {
            disk.alter(&segment(1), |bytes| bytes[at] ^= 1 << bit);
            match open(&disk, FIRST) {
                Ok((_, records)) => assert_eq!(records, written, "byte {at}"),
                Err(LogError::Damaged { .. }) => {}
                Err(error) => panic!("byte {at}: {error}"),
            }
            disk.alter(&segment(1), |bytes| bytes[at] ^= 1 << bit);
        }
    }
}

/// A repair tool cut the newest segment in half. What was left of it checked, so its end was taken
/// for the log's end: a hundred acknowledged commits were gone, and nobody was told.
#[test]
fn a_segment_that_was_cut_short_is_refused_and_named() {
    let disk = FaultDisk::default();
    let mut log = create(&disk);
    for lsn in 1..=4 {
        log.append(&batch(lsn, 1, 100)).expect("no fault");
    }
    drop(log);
    let (length, body) = (disk.bytes(&segment(1)).len(), batch(1, 1, 100)[0].1.len());
    // In the middle of a record, between two, and in the zeros after the last.
    for kept in [offset_of(body, 2) + 8, offset_of(body, 2), offset_of(body, 4) + 64, length - 1] {
        let cut = disk.copy();
        cut.alter(&segment(1), |bytes| bytes.truncate(kept));
        let expected = LogError::Damaged {
            file: segment(1),
            offset: kept as u64,
            detail: "the file was cut short",
        };
        assert_eq!(open(&cut, FIRST).map(|_| ()), Err(expected));
    }
}

#[test]
fn damage_in_a_full_segment_is_refused_even_in_its_last_record() {
    let disk = FaultDisk::default();
    let mut log = create(&disk);
    log.append(&batch(1, 1, 9000)).expect("no fault");
    log.append(&batch(2, 1, 9000)).expect("no fault");
    disk.alter(&segment(1), |bytes| bytes[5000] ^= 1);
    assert_eq!(
        open(&disk, FIRST).map(|_| ()),
        Err(LogError::Damaged {
            file: segment(1),
            offset: 4096,
            detail: "a record does not check",
        })
    );
    // Its records are installed and will never be read again.
    let (_, records) = open(&disk, Lsn(2)).expect("the damage concerns nobody");
    assert_eq!(records, batch(2, 1, 9000));
}

/// The story: the header of the segment being filled rots. Without a look at its first record it
/// would pass for a spare one, and every commit in it would be gone without a word.
#[test]
fn a_rotten_header_of_the_newest_segment_is_seen() {
    let disk = FaultDisk::default();
    let mut log = create(&disk);
    log.append(&batch(1, 1, 9000)).expect("no fault");
    log.append(&batch(2, 1, 9000)).expect("no fault");
    disk.alter(&segment(2), |bytes| bytes[20] ^= 1);
    let error = open(&disk, FIRST).map(|_| ()).expect_err("it holds record 2");
    assert!(matches!(&error, LogError::Damaged { file, .. } if *file == segment(2)), "{error}");
}

#[test]
fn files_of_another_domain_or_format_are_refused_by_name() {
    let disk = FaultDisk::default();
    drop(create(&disk));
    let other = Log::open(disk.clone(), config(), DomainId(8), Rng::new(1), FIRST);
    assert!(matches!(other, Err(LogError::OtherDomain { .. })));
    disk.alter(&segment(1), |bytes| {
        bytes[8] = 9;
        let crc = crc32c::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&crc.to_le_bytes());
    });
    let expected = LogError::Format { file: segment(1), found: 9 };
    assert_eq!(open(&disk, FIRST).map(|_| ()), Err(expected));
}

#[test]
fn a_log_that_does_not_reach_the_pages_is_refused() {
    let disk = FaultDisk::default();
    assert_eq!(open(&disk, FIRST).map(|_| ()), Err(LogError::Missing));
    let mut log = create(&disk);
    log.append(&batch(1, 3, 9000)).expect("no fault");
    let expected = LogError::Behind { next: Lsn(4), wanted: Lsn(9) };
    assert_eq!(open(&disk, Lsn(9)).map(|_| ()), Err(expected));
    log.trim(Lsn(2)).expect("no fault");
    let expected = LogError::Gap { wanted: Lsn(1), oldest: Lsn(3) };
    assert_eq!(open(&disk, FIRST).map(|_| ()), Err(expected));
}

// ---- what no disk may do ----

/// A log after some appends and trims, with all records that it holds from the first one wanted on.
fn used_log(disk: &FaultDisk, rng: &mut Rng) -> (Lsn, Vec<(Lsn, Bytes)>) {
    let mut log = create(disk);
    let mut written = Vec::new();
    let mut from = FIRST;
    for _ in 0..2 + rng.below(30) {
        let first = written.len() as u64 + 1;
        let records = batch(first, 1 + rng.below(3), rng.below(1500) as usize);
        log.append(&records).expect("no fault");
        log.maintain().expect("no fault");
        written.extend(records);
        if rng.chance(1, 6) {
            from = from.max(Lsn(1 + rng.below(written.len() as u64)));
            log.trim(Lsn(from.0 - 1)).expect("no fault");
        }
    }
    written.drain(..from.0 as usize - 1);
    (from, written)
}

/// Writes that the disk lost, or put in the place of others, long after it had said that they were done.
/// The log refuses to open, or gives every record: never another one, and never fewer, but for the newest
/// write, which nobody can tell from one that was torn and never answered. What was mended is whole.
///
/// The story of one of them: the sector of the newest segment's first record was written over its header.
/// Without a header, and without that record, it passed for a spare file: all records of the segment were gone
/// without a word.
#[test]
fn lost_and_misdirected_writes_are_refused_or_concern_nobody() {
    let (mut refused, mut whole, mut newest) = (0, 0, 0);
    for seed in 0..2_000 {
        let disk = FaultDisk::new(Rng::new(seed));
        let (from, written) = used_log(&disk, &mut Rng::new(seed + 10_000));
        let rot = if seed % 2 == 0 { disk.lose_write() } else { disk.misdirect_write() };
        let Some(rot) = rot else { continue };
        let is_newest = disk.is_newest(&rot);
        // Recovery changes the disk: what is mended is another one.
        let mended = disk.reboot(&mut Rng::new(seed));
        match open(&disk, from) {
            Err(_) => refused += 1,
            Ok((_, records)) if is_newest => {
                newest += 1;
                assert!(written.starts_with(&records), "{rot:?} of seed {seed}");
            }
            Ok((_, records)) => {
                whole += 1;
                let count = (records.len(), written.len());
                assert!(records == written, "{rot:?} of seed {seed}: {count:?}");
            }
        }
        mended.mend_rot(&rot);
        let (_, records) = open(&mended, from).expect("it is whole again");
        assert!(records == written, "seed {seed}");
    }
    assert!(refused > 100 && whole > 100 && newest > 10, "{refused} {whole} {newest}");
}

// ---- failed syncs ----

/// The story: a sync fails, the system drops the bytes but keeps them readable and reports the next
/// sync as a success (Linux does). A retry, or a restarted server that reads and syncs, would
/// acknowledge a commit that is not on the disk.
#[test]
fn a_failed_sync_ends_the_log_and_a_restart_writes_again_what_it_read() {
    let disk = FaultDisk::default();
    let mut log = create(&disk);
    log.append(&batch(1, 1, 100)).expect("no fault");
    disk.fail_syncs(1);
    let failed = log.append(&batch(2, 1, 100));
    assert!(matches!(failed, Err(LogError::Disk(DiskError::Failed { .. }))));
    for lsn in [2, 3] {
        let next = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            log.append(&batch(lsn, 1, 100))
        }));
        assert!(matches!(next, Ok(Err(LogError::Poisoned(_)))));
    }
    assert!(matches!(log.trim(Lsn(1)), Err(LogError::Poisoned(_))));
    assert!(matches!(log.maintain(), Err(LogError::Poisoned(_))));
    drop(log);
    // The process is started again; the machine was up all the time.
    let (_, served) = open(&disk, FIRST).expect("it can be read");
    for seed in 0..20 {
        let rebooted = disk.reboot(&mut Rng::new(seed));
        let (_, found) = open(&rebooted, FIRST).expect("nothing is wrong");
        assert_eq!(found, served, "what was served is durable");
    }
}

/// The same at the beginning of a segment: the sync that fails is that of its header.
#[test]
fn a_segment_whose_header_was_not_synced_is_made_sure_of_by_recovery() {
    let disk = FaultDisk::default();
    let mut log = create(&disk);
    log.append(&batch(1, 1, 9000)).expect("no fault");
    while log.maintain().expect("no fault") {}
    disk.fail_syncs(1);
    log.append(&batch(2, 1, 9000)).expect_err("a sync failed");
    let (mut log, records) = open(&disk, FIRST).expect("it can be read");
    assert_eq!(records, batch(1, 1, 9000));
    log.append(&batch(2, 1, 5000)).expect("no fault");
    for seed in 0..20 {
        let rebooted = disk.reboot(&mut Rng::new(seed));
        let (_, found) = open(&rebooted, FIRST).expect("nothing is wrong");
        assert_eq!(found.len(), 2, "what was answered is durable");
    }
}

#[test]
fn recovery_whose_sync_fails_serves_nothing() {
    let disk = FaultDisk::default();
    let mut log = create(&disk);
    log.append(&batch(1, 1, 100)).expect("no fault");
    disk.fail_syncs(1);
    let error = open(&disk, FIRST).map(|_| ()).expect_err("its sync failed");
    assert!(matches!(error, LogError::Disk(DiskError::Failed { .. })));
}

// ---- space ----

#[test]
fn trimmed_segments_are_used_again_or_given_back() {
    let disk = FaultDisk::default();
    let mut log = create(&disk);
    let mut most = 0;
    for lsn in 1..200 {
        log.append(&batch(lsn, 1, 5000)).expect("no fault");
        log.maintain().expect("no fault");
        log.trim(Lsn(lsn)).expect("no fault");
        most = most.max(disk.used());
        assert_eq!(disk.used(), log.disk_bytes());
    }
    assert!(most <= 4 * SEGMENT, "{most}");
    // A long log is given back but for the spares.
    log.append(&batch(200, 40, 9000)).expect("no fault");
    assert!(disk.used() > 30 * SEGMENT);
    log.trim(Lsn(239)).expect("no fault");
    assert!(disk.used() <= 4 * SEGMENT);
    let (_, records) = open(&disk, Lsn(239)).expect("nothing is wrong");
    assert_eq!(records.len(), 1);
}

#[test]
fn stale_bytes_of_a_recycled_segment_are_never_records() {
    let disk = FaultDisk::default();
    let mut log = create(&disk);
    // Four records a segment, all of one length: in a recycled file every old frame stands where
    // a new one would.
    for lsn in 1..=30 {
        log.append(&batch(lsn, 1, 2900)).expect("no fault");
        log.trim(Lsn(lsn - 1)).expect("no fault");
        let (_, records) = open(&disk, Lsn(lsn)).expect("nothing is wrong");
        assert_eq!(records, batch(lsn, 1, 2900));
    }
}

/// The story: a file that once was a segment of the same log, in a line that a restore from a
/// backup has abandoned, is used again. It holds the very numbers that come next.
#[test]
fn records_of_another_use_of_a_file_are_never_taken() {
    let abandoned = FaultDisk::default();
    let mut log = Log::create(abandoned.clone(), config(), DOMAIN, Rng::new(5)).expect("no fault");
    log.append(&batch(1, 4, 2900)).expect("no fault");
    log.append(&batch(5, 4, 2900)).expect("no fault");
    let stale = abandoned.bytes(&segment(2));

    let disk = FaultDisk::default();
    let mut log = create(&disk);
    log.append(&batch(1, 4, 2900)).expect("no fault");
    while log.maintain().expect("no fault") {}
    disk.alter(&segment(2), |bytes| bytes[4096..].copy_from_slice(&stale[4096..]));
    log.append(&[record(5, 1, 2900)]).expect("no fault");
    let (_, records) = open(&disk, Lsn(5)).expect("nothing is wrong");
    assert_eq!(records, [record(5, 1, 2900)]);
}

#[test]
fn a_full_disk_refuses_whole_batches_and_serves_again_when_there_is_room() {
    let disk = FaultDisk::default();
    let mut log = create(&disk);
    log.append(&batch(1, 1, 5000)).expect("there is room");
    disk.set_capacity(Some(2 * SEGMENT));
    // One fits the segment being filled and the next one fits a new segment; the third does not.
    let too_much = batch(2, 3, 9000);
    let before = (disk.bytes(&segment(1)), disk.list());
    assert!(matches!(log.append(&too_much), Err(LogError::Full(_))));
    assert_eq!(disk.bytes(&segment(1)), before.0, "nothing was written");
    log.append(&batch(2, 1, 9000)).expect("one fits");
    assert!(matches!(log.append(&batch(3, 1, 9000)), Err(LogError::Full(_))));
    assert!(!log.maintain().expect("a full disk is no failure"));
    log.append(&batch(3, 1, 1000)).expect("a small one fits still");
    disk.set_capacity(None);
    log.append(&batch(4, 1, 9000)).expect("there is room again");
    let (_, records) = open(&disk, FIRST).expect("nothing is wrong");
    assert_eq!(records.len(), 4);
}

#[test]
fn a_reserve_is_left_to_the_page_engine() {
    let disk = FaultDisk::default();
    let reserved = LogConfig { reserve_bytes: 5000, ..config() };
    let mut log = Log::create(disk.clone(), reserved, DOMAIN, Rng::new(1)).expect("no fault");
    disk.set_capacity(Some(SEGMENT + 4999));
    assert!(matches!(log.append(&batch(1, 1, 10)), Err(LogError::Full(_))));
    disk.set_capacity(Some(SEGMENT + 5000));
    log.append(&batch(1, 1, 10)).expect("the reserve is there");
}

/// The disk was full; installs gave segments of the log back, which kept them as spares, up to
/// two, and went on to refuse every append: the domain wrote nothing until an operator deleted
/// something else.
#[test]
fn spares_are_given_up_before_an_append_is_refused() {
    let disk = FaultDisk::default();
    let reserved = LogConfig { reserve_bytes: 5000, ..config() };
    let mut log = Log::create(disk.clone(), reserved, DOMAIN, Rng::new(1)).expect("no fault");
    for first in 1..=4 {
        log.append(&batch(first, 1, 9000)).expect("there is room");
    }
    disk.set_capacity(Some(disk.used()));
    assert!(matches!(log.append(&batch(5, 1, 10)), Err(LogError::Full(_))));
    log.trim(Lsn(3)).expect("no fault");
    log.append(&batch(5, 1, 10)).expect("a spare is given up");
    let used = disk.used();
    log.append(&batch(6, 1, 9000)).expect("the other one is used");
    assert_eq!(disk.used(), used);
    let (_, records) = open(&disk, Lsn(4)).expect("nothing is wrong");
    assert_eq!(records.len(), 3);
}

#[test]
fn maintain_makes_the_next_segment_before_it_is_needed() {
    let disk = FaultDisk::default();
    let mut log = create(&disk);
    while log.maintain().expect("no fault") {}
    assert_eq!(disk.used(), 2 * SEGMENT);
    // From now on a full disk is not met.
    disk.set_capacity(Some(2 * SEGMENT));
    log.append(&batch(1, 2, 9000)).expect("the spare is there");
}

#[test]
fn a_record_too_large_for_a_segment_is_refused() {
    let disk = FaultDisk::default();
    let mut log = create(&disk);
    let max = SEGMENT as usize - 4096 - 32;
    let (lsn, body) = (FIRST, Bytes::from(vec![0; max + 1]));
    assert!(matches!(log.append(&[(lsn, body.clone())]), Err(LogError::TooLarge { .. })));
    log.append(&[(lsn, body.slice(..max))]).expect("it fits");
    let (_, records) = open(&disk, FIRST).expect("nothing is wrong");
    assert_eq!(records, [(lsn, body.slice(..max))]);
}

#[test]
fn a_new_log_is_never_laid_over_one_that_holds_records() {
    let disk = FaultDisk::default();
    drop(create(&disk));
    let mut log = create(&disk);
    log.append(&batch(1, 1, 10)).expect("no fault");
    let again = Log::create(disk, config(), DOMAIN, Rng::new(1));
    assert!(matches!(again, Err(LogError::Damaged { .. })));
}
