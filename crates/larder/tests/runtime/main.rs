//! The runtime over real sockets with real TLS, all roles in one process.

mod backups;
mod common;
mod elections;
mod end_to_end;
mod faults;
mod files;
mod groups;
mod hostile;
mod parents;
mod peers;
mod volumes;
