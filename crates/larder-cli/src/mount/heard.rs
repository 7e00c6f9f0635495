//! Closes that the kernel tells of beside the mount's connection
//! (`docs/decisions/0018-opens-without-a-message.md`).
//!
//! Where files are opened and closed without a message, the kernel is asked by `fanotify` to say
//! which files that could be written were closed. It says so before `close` returns, but nobody
//! waits for it: so whatever is to come after what was closed first waits until all has been heard of
//! that happened before ([`Heard::all`]).
//!
//! One thread listens. To learn which file an event is of the kernel opens that file for us, and to
//! let go of it may write out what was stored through a mapping: both may need an answer of this
//! mount, so none of the threads that answer may do it.

use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{AtFlags, StatxFlags, statx};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::watch;

/// What was closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Closed {
    /// The file of this number.
    File(u64),
    /// Any may have been: the kernel lost count, or could not say which.
    Any,
}

/// What hears of closes, before it listens.
pub(super) struct Ear {
    group: Fanotify,
}

impl Ear {
    /// None: it is not allowed here, or the kernel cannot do it.
    pub(super) fn new() -> Option<Self> {
        if !may_look_at_others() {
            return None;
        }
        let flags = InitFlags::FAN_CLOEXEC
            | InitFlags::FAN_NONBLOCK
            | InitFlags::FAN_CLASS_NOTIF
            | InitFlags::FAN_UNLIMITED_QUEUE;
        // What is opened to say which file it is must not wait for the other end of a pipe.
        let opens = EventFFlags::O_RDONLY
            | EventFFlags::O_LARGEFILE
            | EventFFlags::O_CLOEXEC
            | EventFFlags::O_NOATIME
            | EventFFlags::O_NONBLOCK;
        match Fanotify::init(flags, opens) {
            Ok(group) => Some(Self { group }),
            Err(error) => {
                tracing::debug!(%error, "closes cannot be heard of: every open is a message");
                None
            }
        }
    }

    /// Listens to all of the file system that is mounted at a point, in a thread of its own, until
    /// it is told to end.
    pub(super) fn listen(
        self,
        point: &Path,
        heard: Arc<Heard>,
        mut tell: impl FnMut(Closed) + Send + 'static,
    ) -> io::Result<()> {
        let what = MarkFlags::FAN_MARK_ADD | MarkFlags::FAN_MARK_FILESYSTEM;
        self.group.mark(what, MaskFlags::FAN_CLOSE_WRITE, rustix::fs::CWD, Some(point))?;
        std::thread::Builder::new().name("closes".into()).spawn(move || {
            let _ended = Ended(heard.clone());
            while !heard.ended.load(Ordering::SeqCst) {
                self.wait(&heard.wake);
                let asked = heard.asked.load(Ordering::SeqCst);
                self.tell_all(&mut tell);
                heard.done.send_replace(asked);
            }
            drop(self);
        })?;
        Ok(())
    }

    fn wait(&self, wake: &OwnedFd) {
        let mut ends = [PollFd::new(&self.group, PollFlags::IN), PollFd::new(wake, PollFlags::IN)];
        if let Err(error) = poll(&mut ends, None)
            && error != rustix::io::Errno::INTR
        {
            tracing::error!(%error, "closes cannot be waited for");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let mut count = [0; 8];
        let _none_yet = rustix::io::read(wake, &mut count);
    }

    fn tell_all(&self, tell: &mut impl FnMut(Closed)) {
        loop {
            match self.group.read_events() {
                Ok(events) if events.is_empty() => return,
                Ok(events) => {
                    for event in events {
                        tell(event.fd().and_then(number_of).map_or(Closed::Any, Closed::File));
                    }
                }
                Err(nix::errno::Errno::EAGAIN) => return,
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => {
                    // The event is gone.
                    tracing::debug!(%error, "a file was closed, and it cannot be told which");
                    tell(Closed::Any);
                    return;
                }
            }
        }
    }
}

/// Whether this process may look at what others do: who holds locks has to be found out too.
fn may_look_at_others() -> bool {
    const SYS_PTRACE: u32 = 19;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = held.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    held >> SYS_PTRACE & 1 == 1
}

/// Nobody waits for what nobody does, however that came.
struct Ended(Arc<Heard>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.done.send_replace(u64::MAX);
    }
}

/// The kernel's number of a file, without asking the mount.
fn number_of(file: BorrowedFd<'_>) -> Option<u64> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let about = statx(file, "", flags, StatxFlags::INO).ok()?;
    Some(about.stx_ino)
}

/// How far closes have been heard of.
pub(super) struct Heard {
    wake: OwnedFd,
    /// How often somebody wanted to have heard of all.
    asked: AtomicU64,
    /// The highest of those who have.
    done: watch::Sender<u64>,
    ended: AtomicBool,
}

impl Heard {
    pub(super) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (asked, done) = (AtomicU64::new(0), watch::Sender::new(0));
        Ok(Self { wake, asked, done, ended: AtomicBool::new(false) })
    }

    /// Waits until all that was closed by now has been heard of.
    pub(super) async fn all(&self) {
        let mut done = self.done.subscribe();
        let number = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.wake();
        // The sender lives as long as this.
        let _ = done.wait_for(|done| *done >= number).await;
    }

    /// Has the thread that listens hear of what came until now, and end.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.wake();
    }

    fn wake(&self) {
        if let Err(error) = rustix::io::write(&self.wake, &1_u64.to_ne_bytes()) {
            // It counts up to more than anybody asks.
            tracing::error!(%error, "who listens for closes cannot be woken");
        }
    }
}

impl std::fmt::Debug for Heard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Heard").field("asked", &self.asked).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
    use std::fs::{self, File};
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;
    use std::sync::Mutex;

    /// A file system in memory, mounted by root, as all who run these tests are.
    struct Memory(PathBuf);

    impl Memory {
        fn mount(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("larder-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("it works");
            let mounted = mount("none", &path, "tmpfs", MountFlags::empty(), None);
            mounted.expect("run as root");
            Self(path)
        }
    }

    impl Drop for Memory {
        fn drop(&mut self) {
            let _or_not = unmount(&self.0, UnmountFlags::DETACH);
            let _or_not = fs::remove_dir(&self.0);
        }
    }

    #[tokio::test]
    async fn a_close_has_been_heard_of_before_what_is_asked_after_it() {
        let memory = Memory::mount("heard");
        let folder = &memory.0;
        let heard = Arc::new(Heard::new().expect("it works"));
        let told = Arc::new(Mutex::new(Vec::new()));
        let (ear, tell) = (Ear::new().expect("run as root"), told.clone());
        let listening = ear.listen(folder, heard.clone(), move |closed| {
            tell.lock().expect("nobody panics").push(closed);
        });
        listening.expect("it works");
        for count in 0..100 {
            let path = folder.join(format!("{count}"));
            let mut file = File::create(&path).expect("it works");
            file.write_all(b"x").expect("it works");
            let number = file.metadata().expect("it works").ino();
            drop(file);
            heard.all().await;
            let told = told.lock().expect("nobody panics").clone();
            assert!(told.contains(&Closed::File(number)), "{number} in {told:?}");
        }
        heard.end();
        heard.all().await;
        let before = told.lock().expect("nobody panics").len();
        fs::write(folder.join("later"), b"x").expect("it works");
        heard.all().await;
        assert_eq!(told.lock().expect("nobody panics").len(), before);
    }
}
