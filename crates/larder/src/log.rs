//! Structured logs.
//!
//! Whoever logs puts a line into a bounded queue and goes on; a thread of its own writes it. A
//! reader that stands still, or a disk that does not answer, delays nobody: what does not fit into
//! the queue is dropped and counted (`larder_log_lines_dropped_total`).

use crate::config::{ConfigError, LogConfig};
use prometheus_client::metrics::counter::Counter;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait to be written.
const LINES_MAX: usize = 4096;
/// How long the end of a process waits for its last lines.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);
/// Libraries that tell of what is usual: they are heard when the filter names them. What fails in
/// them fails here, and is told here.
const QUIET: &str = "fjall=warn,lsm_tree=warn,fuser=error";
/// Dropped lines are told of once in this time at most.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// The queue of this process, once it logs.
static QUEUE: OnceLock<Queue> = OnceLock::new();

/// Lines dropped by this process.
pub(crate) fn dropped() -> &'static Counter {
    static DROPPED: OnceLock<Counter> = OnceLock::new();
    DROPPED.get_or_init(Counter::default)
}

/// Starts logging, to `log.file` or standard error; what libraries write to the `log` crate is
/// among it, and every panic. What cannot be written is dropped: whoever read it is gone, or its
/// disk is full, and nobody else would hear of it either. A second call changes nothing: a
/// library's user may have chosen a subscriber of its own.
///
/// # Errors
/// When the filter is none, or the file cannot be opened: with its name.
pub fn init(config: &LogConfig) -> Result<(), ConfigError> {
    let wanted = if config.filter.is_empty() { "info" } else { &config.filter };
    let filter = EnvFilter::try_new(format!("{QUIET},{wanted}"))
        .map_err(|e| ConfigError::Invalid { layer: "log.filter".into(), detail: e.to_string() })?;
    let (out, ansi): (Box<dyn Write + Send>, bool) = if config.file.as_os_str().is_empty() {
        // A log with escape codes in it is no use to `grep`.
        (Box::new(io::stderr()), io::stderr().is_terminal())
    } else {
        (Box::new(open(&config.file)?), false)
    };
    let (queue, lines) = Queue::new(dropped().clone());
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(ansi)
        // Told on standard error, by a macro that panics when that fails.
        .log_internal_errors(false)
        .with_writer(queue.clone());
    let begun = if config.json { builder.json().try_init() } else { builder.try_init() };
    if begun.is_err() {
        return Ok(());
    }
    let count = queue.dropped.clone();
    std::thread::Builder::new()
        .name("log".into())
        .spawn(move || write_all(&lines, out, &count))
        .map_err(|e| ConfigError::Invalid { layer: "log".into(), detail: e.to_string() })?;
    if QUEUE.set(queue).is_ok() {
        log_panics();
    }
    Ok(())
}

/// Waits until what was logged so far is written, at most a second. For the end of a process.
pub fn flush() {
    if let Some(queue) = QUEUE.get() {
        queue.flush(FLUSH_LIMIT);
    }
}

/// Opens a log file to append to. Logs name files and people: what is made here is its owner's.
fn open(path: &Path) -> Result<File, ConfigError> {
    let failed = |e: io::Error| ConfigError::File {
        path: path.to_owned(),
        detail: format!("the log cannot be written there: {e}; name another by log.file"),
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(path).map_err(failed)
}

/// A process in the background has nobody who reads its standard error.
fn log_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tracing::error!("{panic}");
        flush();
        before(panic);
    }));
}

enum Line {
    Text(Vec<u8>),
    /// Answered when all before it is written.
    Flush(SyncSender<()>),
}

/// The near end of the queue. A clone is the same queue.
#[derive(Clone)]
struct Queue {
    lines: SyncSender<Line>,
    dropped: Counter,
}

impl Queue {
    fn new(dropped: Counter) -> (Self, Receiver<Line>) {
        let (lines, receive) = sync_channel(LINES_MAX);
        (Self { lines, dropped }, receive)
    }

    fn flush(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let (written, wait) = sync_channel(1);
        let mut mark = Line::Flush(written);
        loop {
            match self.lines.try_send(mark) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) if Instant::now() < end => mark = back,
                Err(_) => return,
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        // In time or not: nobody may wait longer for a log.
        let _ = wait.recv_timeout(end.saturating_duration_since(Instant::now()));
    }
}

impl Write for Queue {
    /// One event, whole: the subscriber hands it over at once.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.lines.try_send(Line::Text(line.to_vec())).is_err() {
            self.dropped.inc();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// Writes lines until nobody can log any more.
fn write_all(lines: &Receiver<Line>, mut out: impl Write, dropped: &Counter) {
    let mut told = (0, Instant::now());
    for line in lines {
        match line {
            Line::Text(text) => {
                if out.write_all(&text).and_then(|()| out.flush()).is_err() {
                    dropped.inc();
                }
            }
            // Whoever waited has left by itself otherwise.
            Line::Flush(written) => drop(written.send(())),
        }
        let lost = dropped.get();
        if lost > told.0 && told.1.elapsed() >= TELL_EVERY {
            tracing::warn!(lines = lost - told.0, "log lines were dropped");
            told = (lost, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A mount's log went to a pipe whose reader stood still. The thread that logged waited for it
    /// without limit, and with it every file operation that had something to say. Now who logs
    /// never waits; the queue keeps what it can, the rest is counted, and what was kept is written
    /// when the reader goes on.
    #[test]
    fn a_reader_that_stands_still_delays_nobody() {
        let (far, near) = io::pipe().expect("a pipe");
        let (mut queue, lines) = Queue::new(Counter::default());
        let count = queue.dropped.clone();
        let writer = std::thread::spawn(move || write_all(&lines, near, &count));
        // More than the pipe and the queue hold together.
        let line = [b'x'; 1024];
        let total = 3 * LINES_MAX;
        for _ in 0..total {
            assert_eq!(queue.write(&line).expect("it never fails"), line.len());
        }
        let dropped = queue.dropped.get();
        assert!(dropped > 0 && dropped < total as u64, "{dropped} of {total} dropped");
        queue.flush(Duration::from_millis(50));

        let reader = std::thread::spawn(move || io::read_to_string(far).expect("text").len());
        drop(queue);
        writer.join().expect("no panic");
        let read = reader.join().expect("no panic");
        assert_eq!(read as u64, (total as u64 - dropped) * 1024, "what was kept is whole");
    }

    /// Logs name people and their files: others of the machine must not read them. What is already
    /// there is kept.
    #[test]
    fn a_log_file_is_its_owners_alone() {
        let folder = std::env::temp_dir().join(format!("larder-log-{}", std::process::id()));
        let path = folder.join("deep/mount.log");
        open(&path).expect("it is made").write_all(b"first\n").expect("writes");
        open(&path).expect("it is there").write_all(b"second\n").expect("writes");
        let mode = |path: &Path| {
            std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777
        };
        assert_eq!((mode(&path), mode(&folder.join("deep"))), (0o600, 0o700));
        assert_eq!(std::fs::read_to_string(&path).expect("text"), "first\nsecond\n");
        let refused = open(&path.join("below")).expect_err("a file is no folder").to_string();
        assert!(refused.contains("mount.log/below") && refused.contains("log.file"), "{refused}");
        std::fs::remove_dir_all(&folder).expect("removes");
    }
}
