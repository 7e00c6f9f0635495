//! The lease lapses: the kernel's caches are dropped, whatever is in them.

use super::super::invalidate::{CALLERS, QUEUE_MAX};
use super::super::signal_of;
use super::*;
use larder::core::id::{Generation, Slot};
use larder::metrics::Asked;
use std::sync::mpsc::{Sender, channel};

const DOMAIN: DomainId = DomainId(7);

/// A mount whose signals the test gives.
pub(super) async fn signalled(store: &MemoryStore, name: &str) -> (Mount, Sender<Signal>) {
    signalled_with(store, name, MountOptions::default()).await
}

pub(super) async fn signalled_with(
    store: &MemoryStore,
    name: &str,
    options: MountOptions,
) -> (Mount, Sender<Signal>) {
    let point = Point::new(name);
    let path = point.0.clone();
    let files = FileSystem::open_or_format(store.clone(), FsOptions::default(), [3; 16]);
    let files = Arc::new(files.await.expect("it works"));
    let (sender, receiver) = channel();
    let signals = move || receiver.recv().ok();
    let mounted = Mounted::mount(files.clone(), &path, options, signals).expect("it works");
    (Mount { path, fs: files, mounted, _point: point }, sender)
}

fn first_byte(file: &fs::File) -> u8 {
    let mut bytes = [0; 100];
    file.read_exact_at(&mut bytes, 0).expect("it works");
    bytes[0]
}

/// A watcher fell behind, and what it missed was a lapse: a mount that compared what the kernel
/// has with its own state, which is as it was told, dropped nothing.
#[test]
fn what_was_missed_may_be_a_lapse() {
    let volume = VolumeId(1);
    let signal = |event| signal_of(&event, DOMAIN, volume);
    assert_eq!(signal(Event::LeaseLapsed { domain: DOMAIN }), Some(Signal::Lapsed));
    assert_eq!(signal(Event::Overflow), Some(Signal::Lapsed));
    assert_eq!(signal(Event::LeaseLapsed { domain: DomainId(8) }), None);
    assert_eq!(signal(Event::LeaseRegained { domain: DOMAIN }), None);
    assert_eq!(signal(Event::Reset { domain: DOMAIN }), Some(Signal::Everything));
}

/// The lease lapsed at a mount that serves what is stale. It compared what the kernel had with its
/// own state, found it the same, and dropped nothing: an open file's bytes stayed for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lapse_takes_back_what_is_as_it_was() {
    let store = MemoryStore::new(PAGE_BYTES);
    let (mount, signals) = signalled(&store, "lapse").await;
    let path = mount.path.clone();
    let asked = mount.mounted.shared.options.asked.clone();
    host(move || {
        fs::create_dir(path.join("folder")).expect("it works");
        let mut file = fs::File::create(path.join("folder/f")).expect("it works");
        file.write_all(&[b'a'; 8000]).expect("it works");
        // Committed before it is looked at: nobody hears of the change here.
        file.sync_all().expect("it works");
        let file = fs::File::open(path.join("folder/f")).expect("it works");
        let all = || {
            assert_eq!(first_byte(&file), b'a');
            fs::metadata(path.join("folder/f")).expect("it works");
            fs::metadata(path.join("folder")).expect("it works");
            [Asked::Read, Asked::Lookup, Asked::Attributes].map(|what| asked.so_far(what))
        };
        // What this kernel wrote itself is of no update that is known, and is taken back once.
        all();
        signals.send(Signal::Everything).expect("the mount stands");
        std::thread::sleep(Duration::from_millis(300));
        let before = all();
        signals.send(Signal::Everything).expect("the mount stands");
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(all(), before, "nothing has changed, and the kernel keeps what it has");
        signals.send(Signal::Lapsed).expect("the mount stands");
        eventually("it asks for everything again", || {
            all().iter().zip(before).all(|(now, before)| *now > before)
        });
        std::thread::sleep(Duration::from_millis(300));
        let after = all();
        assert_eq!(all(), after, "and believes again what it is told");
        // The directory's own name is not taken back: whoever works in it stays in it.
        assert_eq!(after[1], before[1] + 1, "the file's name was asked for, and no other");
    })
    .await;
    mount.end().await;
}

/// A thread that takes back was held up in the kernel by a read that got no answer, its queue was
/// full, and then the lease lapsed: what did not fit was taken back at the next signal, if there
/// came one, and the lapse with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lapse_is_not_lost_when_a_queue_is_full() {
    let store = MemoryStore::new(PAGE_BYTES);
    let (mount, signals) = signalled(&store, "lapse-full").await;
    let (path, stalled) = (mount.path.clone(), store.clone());
    let asked = mount.mounted.shared.options.asked.clone();
    host(move || {
        // Two files of one caller, so that the second waits for the first.
        let shard = |path: &PathBuf| fs::metadata(path).expect("it works").ino() % CALLERS as u64;
        let paths: Vec<PathBuf> = (0..=CALLERS).map(|n| path.join(n.to_string())).collect();
        for path in &paths {
            fs::write(path, vec![b'a'; 8000]).expect("it works");
            // What waits is read without asking the store, which is to make a reader wait.
            fs::File::open(path).expect("it works").sync_all().expect("it works");
        }
        let shards: Vec<u64> = paths.iter().map(shard).collect();
        let of_both = |one: &usize| (0..*one).find(|two| shards[*two] == shards[*one]);
        let one = (0..paths.len()).find(|one| of_both(one).is_some()).expect("they share one");
        let two = of_both(&one).expect("just found");
        let kept = fs::File::open(&paths[two]).expect("it works");
        // What was written is told to the kernel a moment later, and dropped then: only what it keeps over that is kept.
        let keeps = || {
            let before = asked.so_far(Asked::Read);
            first_byte(&kept);
            asked.so_far(Asked::Read) == before
        };
        eventually("the kernel to keep it", || {
            let kept = keeps();
            std::thread::sleep(Duration::from_millis(300));
            kept && keeps()
        });
        let before = asked.so_far(Asked::Read);

        stalled.stall(Stall::Looked);
        // Opening it drops what the kernel kept of its writing: so it asks, and waits.
        let reader = fs::File::open(&paths[one]).expect("it works");
        let ino = reader.metadata().expect("it works").ino();
        let reading = std::thread::spawn(move || first_byte(&reader));
        eventually("the read to wait", || stalled.stalled() > 0);
        let inode = InodeId {
            page: PageNo(ino >> 16),
            slot: Slot((ino & 0xffff) as u16),
            generation: Generation(0),
        };
        let change = vec![(inode.page, Target::Slot(inode.slot))];
        for _ in 0..QUEUE_MAX + 2 {
            signals.send(Signal::Changed(change.clone())).expect("the mount stands");
        }
        signals.send(Signal::Lapsed).expect("the mount stands");
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(asked.so_far(Asked::Read), before + 1, "the one that waits");
        stalled.stall(Stall::Nowhere);
        assert_eq!(reading.join().expect("it works"), b'a');
        eventually("the bytes of the other to be asked for again", || {
            first_byte(&kept);
            asked.so_far(Asked::Read) > before + 1
        });
    })
    .await;
    mount.end().await;
}
