//! What the kernel gives this process: its memory, and how many files it may have open.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Descriptors that a server takes beside its links, about: of the page engines of a few domains, of logs, and its own.
const BESIDE_LINKS: u64 = 1024;

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

/// The same for a server of so many links at most, which says so when they may be too few.
pub(crate) fn allow_links(links_max: u32) {
    let needed = u64::from(links_max) + BESIDE_LINKS;
    if let Some(allowed) = allow_descriptors().filter(|allowed| *allowed < needed) {
        tracing::warn!(
            allowed,
            needed,
            "descriptors may run out before link.links_max is reached: raise the limit (ulimit -Hn, or LimitNOFILE \
             of the service), or lower link.links_max"
        );
    }
}
