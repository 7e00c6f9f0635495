//! The threads that carry out what an origin asks of a domain's store. They block; the machine and
//! the runtime's workers never do.

use super::data::OpenDomain;
use super::pace::{Due, Pace};
use crate::clock::now;
use crate::host::Inputs;
use crate::metrics::{Metrics, StorePart};
use larder_core::id::DomainId;
use larder_core::origin::Origin;
use larder_core::origin::io::{LoadId, LoadKey, OriginInput, OriginOutput, WriteId};
use larder_core::record::{InstallBatch, LogRecord, Lsn};
use larder_store::disk::RealDisk;
use larder_store::driver::{LogHalf, PagesHalf};
use larder_store::pages::FjallPages;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel, sync_channel,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Threads that load pages, per domain.
const LOADERS: usize = 2;

enum LogJob {
    Append(WriteId, Vec<(Lsn, LogRecord)>),
    Trim(Lsn),
}

/// A domain's threads. They end when this is dropped and what was asked for is done.
///
/// The queues have no bound of their own: the machine has at most one append, one install,
/// `loads_max` loads of pages and `index_loads_max` of the change index under way.
pub(super) struct StoreThreads {
    log: Sender<LogJob>,
    install: Sender<(WriteId, InstallBatch)>,
    load: Sender<(LoadId, LoadKey)>,
    give_back: SyncSender<()>,
    pages: Arc<PagesHalf<FjallPages>>,
    threads: Vec<JoinHandle<()>>,
}

impl StoreThreads {
    pub(super) fn start(
        domain: OpenDomain,
        inputs: &Inputs<Origin>,
        metrics: &Arc<Metrics>,
    ) -> std::io::Result<Self> {
        let (log, log_jobs) = channel();
        let (install, install_jobs) = channel();
        let (load, load_jobs) = channel();
        // One that waits is enough for all that was removed before it begins.
        let (give_back, give_back_jobs) = sync_channel(1);
        let pages = Arc::new(domain.pages);
        let load_jobs = Arc::new(Mutex::new(load_jobs));
        let mut threads = Vec::new();
        let id = domain.recovered.meta.domain;
        metrics.store(id, StorePart::Log, domain.log.disk_bytes());
        // Without the figure the engine still works; what fails here fails there too.
        if let Ok(bytes) = pages.engine().disk_bytes() {
            metrics.store(id, StorePart::Pages, bytes);
        }
        let appender = Appender {
            domain: id,
            log: domain.log,
            jobs: log_jobs,
            inputs: inputs.clone(),
            metrics: metrics.clone(),
        };
        threads.push(Builder::new().name("larder-log".into()).spawn(|| appender.run())?);
        let worker = Worker {
            domain: id,
            pages: pages.clone(),
            inputs: inputs.clone(),
            metrics: metrics.clone(),
        };
        let installer = worker.clone();
        threads.push(
            Builder::new()
                .name("larder-install".into())
                .spawn(move || installer.install(&install_jobs))?,
        );
        let giver = worker.clone();
        threads.push(
            Builder::new()
                .name("larder-space".into())
                .spawn(move || giver.give_back(&give_back_jobs))?,
        );
        for _ in 0..LOADERS {
            let (loader, jobs) = (worker.clone(), load_jobs.clone());
            threads
                .push(Builder::new().name("larder-load".into()).spawn(move || loader.load(&jobs))?);
        }
        Ok(Self { log, install, load, give_back, pages, threads })
    }

    /// Hands a job to its thread. One that has ended had nobody to answer to.
    pub(super) fn carry_out(&self, output: OriginOutput) {
        match output {
            OriginOutput::Append { write, records, .. } => {
                let _ = self.log.send(LogJob::Append(write, records));
            }
            OriginOutput::TrimLog { through, .. } => {
                let _ = self.log.send(LogJob::Trim(through));
            }
            OriginOutput::Load { load, key, .. } => {
                let _ = self.load.send((load, key));
            }
            OriginOutput::Install { write, batch, .. } => {
                let _ = self.install.send((write, batch));
            }
            OriginOutput::GiveBack { .. } => {
                let _ = self.give_back.try_send(());
            }
            OriginOutput::Link(_)
            | OriginOutput::InstallsWait { .. }
            | OriginOutput::InstallsGoOn { .. }
            | OriginOutput::VolumeRenamed { .. }
            | OriginOutput::PagesUnreadable { .. }
            | OriginOutput::DomainWaits { .. }
            | OriginOutput::DomainServes { .. }
            | OriginOutput::DomainFailed { .. } => {
                unreachable!("no job of a store")
            }
        }
    }

    /// Ends the threads when what was asked for is done, so that the store can be opened anew.
    pub(super) fn end(self) {
        let Self { log, install, load, give_back, pages, threads } = self;
        pages.engine().stop_giving_back();
        drop((log, install, load, give_back, pages));
        for thread in threads {
            // A thread that panicked has said so.
            let _ = thread.join();
        }
    }
}

struct Appender {
    domain: DomainId,
    log: LogHalf<RealDisk>,
    jobs: Receiver<LogJob>,
    inputs: Inputs<Origin>,
    metrics: Arc<Metrics>,
}

impl Appender {
    fn run(mut self) {
        // Segments are prepared when nobody waits for an append.
        let mut more_to_prepare = true;
        loop {
            let job = match self.jobs.try_recv() {
                Ok(job) => job,
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) if more_to_prepare => {
                    more_to_prepare = self.log.maintain();
                    continue;
                }
                Err(TryRecvError::Empty) => match self.jobs.recv() {
                    Ok(job) => job,
                    Err(_) => return,
                },
            };
            match job {
                LogJob::Append(write, records) => {
                    let begun = now();
                    let answer = self.log.append(write, &records);
                    self.metrics.append(records.len(), now().since(begun));
                    if self.inputs.send_blocking(answer).is_err() {
                        return;
                    }
                    more_to_prepare = self.log.maintain();
                    self.metrics.store(self.domain, StorePart::Log, self.log.disk_bytes());
                }
                LogJob::Trim(through) => self.log.trim(through),
            }
        }
    }
}

#[derive(Clone)]
struct Worker {
    domain: DomainId,
    pages: Arc<PagesHalf<FjallPages>>,
    inputs: Inputs<Origin>,
    metrics: Arc<Metrics>,
}

impl Worker {
    fn install(self, jobs: &Receiver<(WriteId, InstallBatch)>) {
        while let Ok((write, batch)) = jobs.recv() {
            let begun = now();
            let answer: OriginInput = self.pages.install(write, &batch);
            match &answer {
                OriginInput::Installed { result: Err(_), .. } => self.metrics.install_refused(),
                _ => self.metrics.install(batch.pages.len(), now().since(begun)),
            }
            // Without the figure the engine still works; what fails here fails there too.
            if let Ok(bytes) = self.pages.engine().disk_bytes() {
                self.metrics.store(self.domain, StorePart::Pages, bytes);
            }
            if self.inputs.send_blocking(answer).is_err() {
                return;
            }
        }
    }

    /// Gives space back in the background: as much as it was asked for, and as long as it takes, but no
    /// more than a part of the time.
    fn give_back(self, jobs: &Receiver<()>) {
        let mut pace = Pace::new(now());
        loop {
            let asked = match pace.wait(now()) {
                None => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => jobs.recv_timeout(wait),
            };
            match asked {
                Ok(()) => pace.asked(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            match pace.due(now()) {
                // Without an answer the engine still works; what fails here fails there too.
                Some(Due::Look) if self.pages.engine().owes_space() == Ok(true) => pace.asked(),
                Some(Due::GiveBack) => {
                    let begun = now();
                    let done = self.give_back_once();
                    pace.ended(done, begun, now());
                }
                Some(Due::Look) | None => {}
            }
        }
    }

    /// Says whether it was done.
    fn give_back_once(&self) -> bool {
        let before = self.pages.engine().disk_bytes();
        let result = self.pages.give_back();
        let after = self.pages.engine().disk_bytes();
        if let Ok(after) = after {
            self.metrics.store(self.domain, StorePart::Pages, after);
        }
        match (result, before, after) {
            (Err(error), ..) => {
                tracing::warn!(%error, "space of removed pages was not given back");
                return false;
            }
            (Ok(()), Ok(before), Ok(after)) => {
                tracing::info!(before, after, "space of removed pages was given back");
            }
            (Ok(()), ..) => {}
        }
        true
    }

    fn load(self, jobs: &Mutex<Receiver<(LoadId, LoadKey)>>) {
        loop {
            // Held while waiting: the other loaders wait for the lock instead.
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((load, key)) = job else {
                return;
            };
            self.metrics.load();
            if self.inputs.send_blocking(self.pages.load(load, &key)).is_err() {
                return;
            }
        }
    }
}
