//! Bad input and bad luck on real processes: every test starts the `larder` command as people do,
//! and opens with its story. Needs root, /dev/fuse, and `unshare`, `nsenter`, `flock` and
//! `mount` of util-linux, `ip`, and `sqlite3`.

mod backups;
mod certificates;
mod clocks;
mod common;
mod consistency;
mod daily;
mod damage;
mod deletion;
mod dirty;
mod elections;
mod full_disk;
mod groups;
mod guides;
mod identity;
mod lan;
mod lease;
mod locks;
mod operators;
mod origins;
mod orphans;
mod quickstart;
mod rights;
mod support;
mod transfer;
mod two_sites;
mod usage;
mod users;
mod versions;
