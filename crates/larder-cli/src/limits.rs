//! What the kernel gives this process: its memory, and how many files it may have open.

use larder_store::pages::FjallConfig;
use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors that a server takes beside its links and its tables, about: of logs, of neighbours, and its own.
const BESIDE_LINKS: u64 = 512;

/// Without huge pages: the kernel makes them of memory that is mostly free again, and gives nothing back (bug 140).
pub(crate) fn in_small_pages() {
    // Where it cannot be asked for, memory is larger than it need be, and nothing else is wrong.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Takes as many descriptors as the system allows, in place of the 1,024 that a shell gives: links, the files of page
/// engines, holders of locks, and closes that are heard of, take one each. Gives how many there are; none: no limit.
pub(crate) fn allow_descriptors() -> Option<u64> {
    let mut limits = getrlimit(Resource::Nofile);
    limits.current = limits.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limits) {
        tracing::debug!(%error, "no more descriptors than before");
    }
    getrlimit(Resource::Nofile).current
}

/// Says so when so many descriptors may be too few for the links and the domains of a server.
pub(crate) fn tell_of_few(allowed: Option<u64>, links_max: u32, domains: usize) {
    let tables = FjallConfig::default().open_files as u64;
    let needed = u64::from(links_max) + tables * domains as u64 + BESIDE_LINKS;
    if let Some(allowed) = allowed.filter(|allowed| *allowed < needed) {
        tracing::warn!(
            allowed,
            needed,
            "descriptors may run out before link.links_max is reached: raise the limit (ulimit -Hn, or LimitNOFILE \
             of the service), or lower link.links_max"
        );
    }
}
