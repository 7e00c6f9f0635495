//! The threads that carry out what an origin asks of a domain's store. They block; the machine and
//! the runtime's workers never do.

use super::pace::{Due, Pace};
use crate::clock::now;
use crate::host::Inputs;
use crate::metrics::{MemoryPart, Metrics, StorePart};
use crate::planted::{RuntimeFault, planted};
use larder_core::id::DomainId;
use larder_core::origin::Origin;
use larder_core::origin::io::{LoadId, LoadKey, OriginInput, OriginOutput, WriteId};
use larder_core::record::{InstallBatch, LogRecord, Lsn};
use larder_store::disk::{Disk, RealDisk};
use larder_store::driver::{LogHalf, PagesHalf};
use larder_store::pages::{FjallPages, Pages};
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel, sync_channel,
};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

/// Threads that load pages, per domain.
const LOADERS: usize = 2;

/// What the log is asked for.
pub(super) enum LogJob {
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
        id: DomainId,
        (log_half, pages): (LogHalf<RealDisk>, PagesHalf<FjallPages>),
        inputs: &Inputs<Origin>,
        metrics: &Arc<Metrics>,
    ) -> std::io::Result<Self> {
        let (log, log_jobs) = channel();
        let (install, install_jobs) = channel();
        let (load, load_jobs) = channel();
        // One that waits is enough for all that was removed before it begins.
        let (give_back, give_back_jobs) = sync_channel(1);
        let pages = Arc::new(pages);
        let load_jobs = Arc::new(Mutex::new(load_jobs));
        let mut threads = Vec::new();
        let appender = Appender::new(id, log_half, metrics);
        let answers = inputs.clone();
        threads.push(
            Builder::new()
                .name("larder-log".into())
                .spawn(move || appender.run(&log_jobs, &answers))?,
        );
        let worker = Worker::new(id, pages.clone(), metrics);
        let installer = worker.clone();
        let answers = inputs.clone();
        threads.push(
            Builder::new()
                .name("larder-install".into())
                .spawn(move || installer.install_all(&install_jobs, &answers))?,
        );
        let giver = worker.clone();
        threads.push(
            Builder::new()
                .name("larder-space".into())
                .spawn(move || giver.give_back(&give_back_jobs))?,
        );
        for _ in 0..LOADERS {
            let (loader, jobs) = (worker.clone(), load_jobs.clone());
            let answers = inputs.clone();
            threads.push(
                Builder::new()
                    .name("larder-load".into())
                    .spawn(move || loader.load_all(&jobs, &answers))?,
            );
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
            | OriginOutput::RemovalWaits { .. }
            | OriginOutput::RemovalGoesOn { .. }
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

/// Carries out what the log is asked for: on a thread, or in a world of the simulator on a task.
pub(super) struct Appender<D: Disk> {
    domain: DomainId,
    log: LogHalf<D>,
    metrics: Arc<Metrics>,
}

impl<D: Disk> Appender<D> {
    pub(super) fn new(domain: DomainId, log: LogHalf<D>, metrics: &Arc<Metrics>) -> Self {
        metrics.store(domain, StorePart::Log, log.disk_bytes());
        Self { domain, log, metrics: metrics.clone() }
    }

    fn run(mut self, jobs: &Receiver<LogJob>, inputs: &Inputs<Origin>) {
        // Segments are prepared when nobody waits for an append.
        let mut more_to_prepare = true;
        loop {
            let job = match jobs.try_recv() {
                Ok(job) => job,
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) if more_to_prepare => {
                    more_to_prepare = self.log.maintain();
                    continue;
                }
                Err(TryRecvError::Empty) => match jobs.recv() {
                    Ok(job) => job,
                    Err(_) => return,
                },
            };
            let Some(answer) = self.carry_out(job) else {
                continue;
            };
            if inputs.send_blocking(answer).is_err() {
                return;
            }
            more_to_prepare = self.answered();
        }
    }

    /// Carries a job out; what it is answered, if it is.
    pub(super) fn carry_out(&mut self, job: LogJob) -> Option<OriginInput> {
        match job {
            LogJob::Append(write, records) => {
                let begun = now();
                let mut answer = self.log.append(write, &records);
                self.metrics.append(records.len(), now().since(begun));
                if let OriginInput::Appended { result, .. } = &mut answer
                    && planted(RuntimeFault::AppendUnchecked)
                {
                    *result = Ok(());
                }
                Some(answer)
            }
            LogJob::Trim(through) => {
                self.log.trim(through);
                None
            }
        }
    }

    /// An append was answered. Whether there is more to prepare for the next.
    pub(super) fn answered(&mut self) -> bool {
        let more_to_prepare = self.log.maintain();
        self.metrics.store(self.domain, StorePart::Log, self.log.disk_bytes());
        more_to_prepare
    }
}

/// A page engine that knows what it takes on its disk.
pub(super) trait Engine: Pages {
    /// Bytes of its files; none: it cannot say.
    fn bytes(&self) -> Option<u64>;
    /// Memory that its cache takes, and its tables; none: it cannot say.
    fn memory(&self) -> Option<(u64, u64)>;
}

impl Engine for FjallPages {
    fn bytes(&self) -> Option<u64> {
        // Without the figure the engine still works; what fails here fails there too.
        self.disk_bytes().ok()
    }

    fn memory(&self) -> Option<(u64, u64)> {
        Some(self.memory_bytes())
    }
}

/// Carries out what the page engine is asked for.
pub(super) struct Worker<P: Engine> {
    domain: DomainId,
    pages: Arc<PagesHalf<P>>,
    metrics: Arc<Metrics>,
}

impl<P: Engine> Clone for Worker<P> {
    fn clone(&self) -> Self {
        Self { domain: self.domain, pages: self.pages.clone(), metrics: self.metrics.clone() }
    }
}

impl<P: Engine> Worker<P> {
    pub(super) fn new(domain: DomainId, pages: Arc<PagesHalf<P>>, metrics: &Arc<Metrics>) -> Self {
        let worker = Self { domain, pages, metrics: metrics.clone() };
        worker.measure();
        worker
    }

    fn measure(&self) {
        if let Some(bytes) = self.pages.engine().bytes() {
            self.metrics.store(self.domain, StorePart::Pages, bytes);
        }
        if let Some((cache, tables)) = self.pages.engine().memory() {
            self.metrics.memory(self.domain, MemoryPart::EngineCache, cache);
            self.metrics.memory(self.domain, MemoryPart::EngineTables, tables);
        }
    }

    fn install_all(self, jobs: &Receiver<(WriteId, InstallBatch)>, inputs: &Inputs<Origin>) {
        while let Ok((write, batch)) = jobs.recv() {
            let Some(answer) = self.install(write, &batch) else {
                continue;
            };
            if inputs.send_blocking(answer).is_err() {
                return;
            }
        }
    }

    /// Installs a batch; what that is answered.
    pub(super) fn install(&self, write: WriteId, batch: &InstallBatch) -> Option<OriginInput> {
        let begun = now();
        let answer: OriginInput = self.pages.install(write, batch);
        match &answer {
            OriginInput::Installed { result: Err(_), .. } => self.metrics.install_refused(),
            _ => self.metrics.install(batch.pages.len(), now().since(begun)),
        }
        self.measure();
        (!planted(RuntimeFault::InstallLost)).then_some(answer)
    }

    fn load_all(self, jobs: &Mutex<Receiver<(LoadId, LoadKey)>>, inputs: &Inputs<Origin>) {
        loop {
            // Held while waiting: the other loaders wait for the lock instead.
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((load, key)) = job else {
                return;
            };
            if inputs.send_blocking(self.load(load, &key)).is_err() {
                return;
            }
        }
    }

    /// Loads; what that is answered.
    pub(super) fn load(&self, load: LoadId, key: &LoadKey) -> OriginInput {
        self.metrics.load();
        self.pages.load(load, key)
    }
}

impl Worker<FjallPages> {
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
}
