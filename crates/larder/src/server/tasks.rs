//! The threads of a domain's store as tasks, in a world of the simulator: the same jobs, over the
//! world's disk, with its delays.

use super::store::{Appender, Engine, LogJob, Worker};
use crate::host::Inputs;
use crate::metrics::Metrics;
use crate::simulated::{Job, SimStore, appends, delays};
use larder_core::id::DomainId;
use larder_core::origin::Origin;
use larder_core::origin::io::{LoadId, LoadKey, OriginOutput, WriteId};
use larder_core::record::InstallBatch;
use larder_store::driver::PagesHalf;
use larder_store::pages::ModelPages;
use larder_store::testing::FaultDisk;
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;
use tokio::time::sleep;

/// Tasks that load pages.
const LOADERS: usize = 2;

type Pages = Arc<PagesHalf<Arc<ModelPages>>>;

impl Engine for Arc<ModelPages> {
    fn bytes(&self) -> Option<u64> {
        None
    }

    fn memory(&self) -> Option<(u64, u64)> {
        None
    }
}

/// A domain's tasks. They end when this is dropped, with whatever was asked for.
pub(super) struct StoreTasks {
    log: UnboundedSender<LogJob>,
    install: UnboundedSender<(WriteId, InstallBatch)>,
    load: UnboundedSender<(LoadId, LoadKey)>,
    tasks: Vec<AbortHandle>,
}

impl Drop for StoreTasks {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl StoreTasks {
    pub(super) fn start(
        domain: DomainId,
        store: SimStore,
        inputs: &Inputs<Origin>,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let (log_half, pages) = store.split();
        let (log, log_jobs) = unbounded_channel();
        let (install, install_jobs) = unbounded_channel();
        let (load, load_jobs) = unbounded_channel();
        let pages: Pages = Arc::new(pages);
        let appender = Appender::new(domain, log_half, metrics);
        let worker = Worker::new(domain, pages.clone(), metrics);
        let mut tasks = vec![
            tokio::spawn(append_all(domain, appender, log_jobs, inputs.clone())).abort_handle(),
            tokio::spawn(install_all(domain, worker.clone(), pages, install_jobs, inputs.clone()))
                .abort_handle(),
        ];
        let load_jobs = Arc::new(Mutex::new(load_jobs));
        for _ in 0..LOADERS {
            let loads = load_all(domain, worker.clone(), load_jobs.clone(), inputs.clone());
            tasks.push(tokio::spawn(loads).abort_handle());
        }
        Self { log, install, load, tasks }
    }

    /// Hands a job to its task. One that has ended had nobody to answer to.
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
            // The model has no space to give back; no other output is a job.
            _ => {}
        }
    }
}

async fn append_all(
    domain: DomainId,
    mut appender: Appender<FaultDisk>,
    mut jobs: UnboundedReceiver<LogJob>,
    inputs: Inputs<Origin>,
) {
    while let Some(job) = jobs.recv().await {
        let (before, after) = delays(domain, Job::Append);
        if let LogJob::Append(_, records) = &job {
            sleep(before).await;
            appends(domain, records);
        }
        let Some(answer) = appender.carry_out(job) else {
            continue;
        };
        sleep(after).await;
        if inputs.send(answer).await.is_err() {
            return;
        }
        appender.answered();
    }
}

async fn install_all(
    domain: DomainId,
    worker: Worker<Arc<ModelPages>>,
    pages: Pages,
    mut jobs: UnboundedReceiver<(WriteId, InstallBatch)>,
    inputs: Inputs<Origin>,
) {
    while let Some((write, batch)) = jobs.recv().await {
        let (before, after) = delays(domain, Job::Install);
        sleep(before).await;
        let answer = worker.install(write, &batch);
        sleep(after).await;
        // From here on a crash does not forget it.
        pages.engine().answered();
        if let Some(answer) = answer
            && inputs.send(answer).await.is_err()
        {
            return;
        }
    }
}

async fn load_all(
    domain: DomainId,
    worker: Worker<Arc<ModelPages>>,
    jobs: Arc<Mutex<UnboundedReceiver<(LoadId, LoadKey)>>>,
    inputs: Inputs<Origin>,
) {
    loop {
        let job = jobs.lock().await.recv().await;
        let Some((load, key)) = job else {
            return;
        };
        let (before, after) = delays(domain, Job::Load);
        sleep(before).await;
        let answer = worker.load(load, &key);
        sleep(after).await;
        if inputs.send(answer).await.is_err() {
            return;
        }
    }
}
