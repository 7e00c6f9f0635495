//! How the kernel gives this process its memory.

/// Without huge pages: the kernel makes them of memory that is mostly free again, and gives nothing back (bug 140).
pub(crate) fn in_small_pages() {
    // Where it cannot be asked for, memory is larger than it need be, and nothing else is wrong.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
