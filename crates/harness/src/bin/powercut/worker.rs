//! The process that has the store open: it does what it is told, line by line, says what is durable,
//! and is killed. It judges nothing.
//!
//! As at an origin one thread has the log, one installs, and one gives space back.

use super::work::{Batch, Change, DOMAIN, Words, page_id, stand_in};
use anyhow::{Context, Result, bail, ensure};
use larder_core::commit::Op;
use larder_core::id::{PageId, PageNo, Stamp, VolumeId};
use larder_core::machine::{Fault, Faults};
use larder_core::origin::io::{OriginInput, WriteId};
use larder_core::record::{DomainMeta, LogRecord, Lsn};
use larder_core::rng::Rng;
use larder_core::wire;
use larder_store::check::check;
use larder_store::disk::RealDisk;
use larder_store::driver::{LogHalf, PagesHalf, RealStore, Recovered, StoreConfig, domain_at};
use larder_store::log::LogConfig;
use larder_store::pages::{FjallConfig, FjallPages, Pages, PagesError};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

/// Pages or entries asked for at once: few, so that there are several questions.
const STEP: usize = 50;

/// What the store may use, and what is wrong with it, as words of the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Setup {
    pub(crate) segment_bytes: u64,
    pub(crate) memtable_bytes: u64,
    pub(crate) threads: usize,
    pub(crate) fault: WorkerFault,
}

/// A planted fault of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum WorkerFault {
    #[default]
    None,
    /// The log says that records are durable before it syncs them.
    AppendUnsynced,
    /// Recovery serves what it read without writing and syncing it again.
    RecoveryUnsynced,
    /// An install is answered before it is begun.
    InstallAnsweredFirst,
    /// The log is trimmed before the install is durable.
    TrimFirst,
}

impl WorkerFault {
    const ALL: [(Self, &'static str); 5] = [
        (Self::None, "none"),
        (Self::AppendUnsynced, "append-unsynced"),
        (Self::RecoveryUnsynced, "recovery-unsynced"),
        (Self::InstallAnsweredFirst, "install-answered-first"),
        (Self::TrimFirst, "trim-first"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(fault, _)| *fault == self).map_or("none", |(_, name)| name)
    }

    fn of_log(self) -> Faults {
        match self {
            Self::AppendUnsynced => Faults::only(Fault::AcknowledgeEarly),
            Self::RecoveryUnsynced => Faults::only(Fault::SkipRecoverySync),
            _ => Faults::NONE,
        }
    }
}

impl Setup {
    /// It as words.
    pub(crate) fn words(&self) -> [String; 4] {
        [
            self.segment_bytes.to_string(),
            self.memtable_bytes.to_string(),
            self.threads.to_string(),
            self.fault.name().to_owned(),
        ]
    }

    fn of_words(words: &[String]) -> Result<Self> {
        let [segment, memtable, threads, fault] = words else {
            bail!("a worker is started with four words, not {}", words.len());
        };
        let fault = WorkerFault::ALL.iter().find(|(_, name)| name == fault);
        Ok(Self {
            segment_bytes: segment.parse()?,
            memtable_bytes: memtable.parse()?,
            threads: threads.parse()?,
            fault: fault.context("no such fault")?.0,
        })
    }

    fn store(&self) -> StoreConfig {
        StoreConfig {
            log: LogConfig {
                segment_bytes: self.segment_bytes,
                reserve_bytes: 0,
                faults: self.fault.of_log(),
            },
            pages: FjallConfig {
                cache_bytes: 1 << 20,
                memtable_bytes: self.memtable_bytes,
                threads: self.threads,
                ..FjallConfig::default()
            },
        }
    }
}

/// Runs until its input ends, or until it is killed.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let (place, setup) = words.split_first().context("where is the store?")?;
    let setup = Setup::of_words(setup)?;
    let mut input = BufReader::new(std::io::stdin());
    let mut line = String::new();
    input.read_line(&mut line)?;
    let mut words = Words::new(&line);
    ensure!(words.word()? == "open", "it is opened first");
    let life: u64 = words.number()?;
    let mut volumes = Vec::new();
    while let Ok(volume) = words.number() {
        volumes.push(volume);
    }
    let (store, recovered) = open(Path::new(place), &setup.store(), life)?;
    report(&store, &recovered, &volumes)?;
    serve(store, setup.fault, input)
}

fn say(line: std::fmt::Arguments<'_>) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}")?;
    out.flush().context("somebody listens")
}

/// Opens the store as an origin does: a domain that is not there is made.
fn open(place: &Path, config: &StoreConfig, life: u64) -> Result<(RealStore, Recovered)> {
    let rng = Rng::new(life);
    if domain_at(place)?.is_some() {
        return Ok(RealStore::open_at(place, config, rng)?);
    }
    say(format_args!("making"))?;
    Ok(RealStore::create_at(place, config, DOMAIN, rng)?)
}

/// Says all that the store holds.
fn report(store: &RealStore, recovered: &Recovered, volumes: &[u64]) -> Result<()> {
    let pages = store.pages().engine();
    let mut lines = vec![format!(
        "installed {} {}",
        recovered.meta.installed_lsn.0, recovered.meta.installed.0
    )];
    report_meta(&recovered.meta, &mut lines);
    for (lsn, record) in &recovered.records {
        lines.push(record_line(*lsn, record));
    }
    for apart in &recovered.apart {
        let apart = apart.as_ref().map_err(|lost| anyhow::anyhow!("{lost:?}"))?;
        for (stamp, op) in &apart.changes {
            let Op::WriteRaw { bytes, .. } = op else {
                bail!("nothing but writes is kept apart, and not {op:?}");
            };
            lines.push(format!("apart {} {stamp} {}", name(apart.page), crc32c::crc32c(bytes)));
        }
    }
    for volume in volumes {
        report_pages(pages, *volume, &mut lines)?;
    }
    let mut after = (Stamp::ZERO, PageId::default());
    loop {
        let (entries, more) = pages.changed_after(after, STEP)?;
        for (stamp, page) in &entries {
            lines.push(format!("index {} {stamp}", name(*page)));
        }
        match entries.last() {
            Some(last) if more => after = *last,
            _ => break,
        }
    }
    for deleted in recovered.meta.deleted.iter().filter(|deleted| deleted.left.is_some()) {
        for (page, version) in pages.removable(deleted.id, PageNo(0), usize::MAX)? {
            lines.push(format!("removable {} {version}", name(page)));
        }
    }
    for problem in check(store.log().log().disk(), pages, &mut |_| {})?.problems {
        lines.push(format!("problem {problem}"));
    }
    lines.push("ready".into());
    say(format_args!("{}", lines.join("\n")))
}

fn report_meta(meta: &DomainMeta, lines: &mut Vec<String>) {
    for volume in &meta.volumes {
        let (id, version) = (volume.id.0, volume.version.0);
        lines.push(format!("volume {id} {version} {} {}", volume.pages, volume.bytes));
    }
    for deleted in &meta.deleted {
        let (id, stamp, left) = (deleted.id.0, deleted.stamp.0, deleted.left);
        lines.push(format!("deleted {id} {stamp} {left:?}"));
    }
}

fn report_pages(pages: &FjallPages, volume: u64, lines: &mut Vec<String>) -> Result<()> {
    let mut found = vec![page_id(stand_in(volume))];
    let mut after = PageNo(0);
    loop {
        let more = pages.pages_of(VolumeId(u128::from(volume)), after, STEP)?;
        found.extend(&more);
        match more.last() {
            Some(last) if more.len() == STEP => after = last.page,
            _ => break,
        }
    }
    for page in found {
        match pages.load(page)? {
            None if page.is_volume() => {}
            None => bail!("page {page} is listed and not there"),
            Some(stored) => {
                let image = stored.image.as_deref().map(crc32c::crc32c);
                lines.push(format!("page {} {} {image:?}", name(page), stored.version));
            }
        }
    }
    Ok(())
}

/// The line that tells of a record.
pub(crate) fn record_line(lsn: Lsn, record: &LogRecord) -> String {
    format!("record {} {}", lsn.0, crc32c::crc32c(&wire::encode_record(record)))
}

/// A page's name in lines.
pub(crate) fn name(page: PageId) -> String {
    format!("{}/{}", page.volume.0, page.page.0)
}

/// Does what it is told until its input ends.
fn serve(store: RealStore, fault: WorkerFault, input: impl BufRead) -> Result<()> {
    let (log, pages) = store.split();
    let pages = Arc::new(pages);
    let (to_log, logged) = channel();
    let (to_installer, installs) = channel();
    let (to_space, space) = channel();
    let (installs_into, gives) = (pages.clone(), pages.clone());
    let threads = [
        start(move || append_all(log, &logged)),
        start(move || install_all(&installs_into, &installs, fault)),
        start(move || give_back_all(&gives, &space)),
    ];
    let mut lines = input.lines();
    while let Some(line) = lines.next() {
        let line = line?;
        let mut words = Words::new(&line);
        match words.word()? {
            "append" => {
                let count: usize = words.number()?;
                let changes = lines.by_ref().take(count);
                let changes = changes.map(|line| Change::of_line(&line?)).collect::<Result<_>>()?;
                to_log.send(LogWork::Append(changes))?;
            }
            "trim" => to_log.send(LogWork::Trim(words.number()?))?,
            "install" => {
                let mut batch = Batch { through: words.number()?, ..Batch::default() };
                for line in lines.by_ref() {
                    let line = line?;
                    if line == "end" {
                        break;
                    }
                    batch.take_line(&line)?;
                }
                if fault == WorkerFault::TrimFirst {
                    to_log.send(LogWork::Trim(batch.through))?;
                }
                to_installer.send(batch)?;
            }
            "give-back" => to_space.send(())?,
            "quit" => break,
            other => bail!("no command {other}"),
        }
    }
    pages.engine().stop_giving_back();
    drop((to_log, to_installer, to_space));
    for thread in threads {
        thread.join().map_err(|_panic| anyhow::anyhow!("a thread panicked"))?;
    }
    Ok(())
}

/// Starts a thread that ends the process when it cannot go on.
fn start(run: impl FnOnce() -> Result<()> + Send + 'static) -> JoinHandle<()> {
    std::thread::spawn(|| {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        match done {
            Ok(Ok(())) => return,
            Ok(Err(error)) => eprintln!("{error:#}"),
            // It has said why.
            Err(_panic) => {}
        }
        std::process::exit(3);
    })
}

enum LogWork {
    Append(Vec<Change>),
    Trim(u64),
}

fn append_all(mut log: LogHalf<RealDisk>, work: &Receiver<LogWork>) -> Result<()> {
    while let Ok(work) = work.recv() {
        match work {
            LogWork::Append(changes) => {
                let records: Vec<_> = changes.iter().map(Change::record).collect();
                let last = records.last().context("an append of nothing")?.0;
                let OriginInput::Appended { result, .. } = log.append(WriteId(last.0), &records)
                else {
                    bail!("an append is answered with something else");
                };
                result?;
                say(format_args!("appended {}", last.0))?;
                log.maintain();
            }
            LogWork::Trim(through) => log.trim(Lsn(through)),
        }
    }
    Ok(())
}

fn install_all(
    pages: &PagesHalf<FjallPages>,
    work: &Receiver<Batch>,
    fault: WorkerFault,
) -> Result<()> {
    while let Ok(batch) = work.recv() {
        let through = batch.through;
        if fault == WorkerFault::InstallAnsweredFirst {
            say(format_args!("installed {through}"))?;
        }
        let answer = pages.install(WriteId(through), &batch.install());
        let OriginInput::Installed { result, .. } = answer else {
            bail!("an install is answered with something else");
        };
        result?;
        if fault != WorkerFault::InstallAnsweredFirst {
            say(format_args!("installed {through}"))?;
        }
    }
    Ok(())
}

fn give_back_all(pages: &PagesHalf<FjallPages>, work: &Receiver<()>) -> Result<()> {
    while work.recv().is_ok() {
        match pages.give_back() {
            Ok(()) | Err(PagesError::PutOff { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        say(format_args!("gave-back"))?;
    }
    Ok(())
}
