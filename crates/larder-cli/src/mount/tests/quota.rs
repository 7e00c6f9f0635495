//! What a program is told of a quota, and of what the volume takes.

use super::*;
use larder::fs::TxError;
use rustix::io::Errno;

/// The volume's quota holds what a program wrote: it learns so when it syncs, in the words that a local
/// file system has for it. Its bytes wait, and are committed when there is room again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_quota_reaches_the_program() {
    let store = MemoryStore::new(PAGE_BYTES);
    let one = mount(&store, "quota").await;
    let (path, held) = (one.path.join("f"), store.clone());
    host(move || {
        let file = fs::File::create_new(&path).expect("it works");
        let taken = || {
            let usage = rustix::fs::statvfs(&path).expect("it works");
            usage.f_blocks - usage.f_bfree
        };
        let before = taken();
        file.write_all_at(&[7; 4 * PAGE_BYTES as usize], 0).expect("it is taken in");
        held.fail_next_commit(TxError::Quota("volume v would pass its quota".into()));
        let error = file.sync_all().expect_err("the quota is passed");
        assert_eq!(error.raw_os_error(), Some(Errno::DQUOT.raw_os_error()), "{error}");
        file.sync_all().expect("there is room again");
        assert!(taken() >= before + 4, "{} blocks before, {} now", before, taken());
    })
    .await;
    one.end().await;
}
