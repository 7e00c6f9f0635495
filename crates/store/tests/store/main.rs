//! Tests of the store: the log and the driver on a disk that fails, the engines against each other,
//! and the real thing under kill.

mod check;
mod driver;
mod engines;
mod golden;
mod kill;
mod log;
mod rot;
