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
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait to be written, and their bytes.
const LINES_MAX: usize = 4096;
const BYTES_MAX: usize = 8 << 20;
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
    let writer = Writer::new(&queue, out);
    let tell = |lines| tracing::warn!(lines, "log lines were dropped");
    std::thread::Builder::new()
        .name("log".into())
        .spawn(move || writer.write_all(&lines, tell))
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
    /// Of the lines that wait.
    bytes: Arc<AtomicUsize>,
    dropped: Counter,
}

impl Queue {
    fn new(dropped: Counter) -> (Self, Receiver<Line>) {
        let (lines, receive) = sync_channel(LINES_MAX);
        (Self { lines, bytes: Arc::default(), dropped }, receive)
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
        let waiting = self.bytes.fetch_add(line.len(), Ordering::Relaxed) + line.len();
        if waiting > BYTES_MAX || self.lines.try_send(Line::Text(line.to_vec())).is_err() {
            self.bytes.fetch_sub(line.len(), Ordering::Relaxed);
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

/// The far end of the queue.
struct Writer<W: Write> {
    out: W,
    bytes: Arc<AtomicUsize>,
    dropped: Counter,
    /// Of those, how many were told of.
    told: u64,
    /// The last line was cut off: what comes next must not go on with it.
    torn: bool,
}

impl<W: Write> Writer<W> {
    fn new(queue: &Queue, out: W) -> Self {
        let (bytes, dropped) = (queue.bytes.clone(), queue.dropped.clone());
        Self { out, bytes, dropped, told: 0, torn: false }
    }

    /// Writes lines until nobody can log any more. `tell` logs how many were dropped.
    fn write_all(mut self, lines: &Receiver<Line>, tell: impl Fn(u64)) {
        let mut told = Instant::now();
        for line in lines {
            match line {
                Line::Text(text) => self.take(&text),
                Line::Flush(written) => {
                    // It may be the last one.
                    self.tell(&tell);
                    for line in lines.try_iter().take(LINES_MAX) {
                        match line {
                            Line::Text(text) => self.take(&text),
                            Line::Flush(written) => {
                                let _ = written.send(());
                            }
                        }
                    }
                    // Whoever waited has left by itself otherwise.
                    let _ = written.send(());
                }
            }
            if told.elapsed() >= TELL_EVERY {
                self.tell(&tell);
                told = Instant::now();
            }
        }
    }

    fn tell(&mut self, tell: impl Fn(u64)) {
        let lost = self.dropped.get();
        if lost > self.told {
            tell(lost - self.told);
            self.told = lost;
        }
    }

    /// Writes a line that waited.
    fn take(&mut self, text: &[u8]) {
        self.bytes.fetch_sub(text.len(), Ordering::Relaxed);
        self.line(text);
    }

    fn line(&mut self, text: &[u8]) {
        if self.torn && self.put(b"\n").is_ok() {
            self.torn = false;
        }
        if self.torn || self.put(text).is_err() {
            self.dropped.inc();
        }
    }

    /// Writes bytes, and takes note when only some of them were.
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            match self.out.write(&bytes[written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => written += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            self.torn = written < bytes.len();
        }
        self.out.flush()
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
        let writer = Writer::new(&queue, near);
        let writer = std::thread::spawn(move || writer.write_all(&lines, |_| ()));
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

    /// A disk that has room for so many bytes now, and for more later.
    #[derive(Clone, Default)]
    struct Disk(Arc<std::sync::Mutex<(Vec<u8>, usize)>>);

    impl Disk {
        fn lock(&self) -> std::sync::MutexGuard<'_, (Vec<u8>, usize)> {
            self.0.lock().expect("no holder panics")
        }

        fn text(&self) -> String {
            String::from_utf8(self.lock().0.clone()).expect("text")
        }
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let (held, room) = &mut *self.lock();
            let taken = bytes.len().min(*room);
            held.extend(&bytes[..taken]);
            *room -= taken;
            if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A full disk cut a line off, and the next one that was written, when there was room again, went on
    /// with it. How many were lost was told with the next line only: a process that ended took the
    /// number with it.
    #[test]
    fn a_line_that_was_cut_off_stands_alone_and_losses_are_told_at_the_end() {
        let disk = Disk::default();
        disk.lock().1 = 10;
        let (queue, lines) = Queue::new(Counter::default());
        let mut writer = Writer::new(&queue, disk.clone());
        writer.line(b"first\n");
        writer.line(b"second\n");
        writer.line(b"third\n");
        assert_eq!((disk.text().as_str(), queue.dropped.get()), ("first\nseco", 2));
        disk.lock().1 = 1000;
        writer.line(b"fourth\n");
        assert_eq!(disk.text(), "first\nseco\nfourth\n");
        // The end of a process: nothing is logged after it.
        let (written, done) = sync_channel(1);
        queue.lines.try_send(Line::Flush(written)).expect("room");
        let teller = queue.clone();
        let tell = move |lost| {
            teller.clone().write_all(format!("{lost} dropped\n").as_bytes()).expect("room");
        };
        drop(queue);
        let writer = std::thread::spawn(move || writer.write_all(&lines, tell));
        done.recv().expect("it is written");
        assert!(disk.text().ends_with("\n2 dropped\n"), "{}", disk.text());
        drop(writer);
    }

    /// Lines are bounded in bytes too: four thousand of a megabyte each would be memory for nothing.
    #[test]
    fn long_lines_are_bounded_in_bytes() {
        let (mut queue, lines) = Queue::new(Counter::default());
        let line = vec![b'x'; 1 << 20];
        for _ in 0..20 {
            assert_eq!(queue.write(&line).expect("it never fails"), line.len());
        }
        assert_eq!(queue.dropped.get(), 20 - (BYTES_MAX >> 20) as u64);
        let mut writer = Writer::new(&queue, io::sink());
        for line in lines.try_iter() {
            if let Line::Text(text) = line {
                writer.take(&text);
            }
        }
        assert_eq!(queue.bytes.load(Ordering::Relaxed), 0, "all of it is given back");
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
