//! What an origin's domain keeps: a commit log and a page engine, behind two small traits.
//!
//! Durability of commits rests on the [`log`] alone, which runs over a [`disk::Disk`]: the real one
//! or the simulator's. The [`pages`] engine takes over what the origin installs in the background,
//! and the log's space is then given back. [`driver::DomainStore`] opens both, recovers, and carries
//! out what the origin machine asks of its store. `docs/formats/disk.md` defines every byte.

pub mod bench;
pub mod check;
pub mod disk;
pub mod driver;
pub mod log;
pub mod pages;
#[cfg(feature = "testing")]
pub mod testing;
