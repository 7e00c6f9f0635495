//! Tests of the store: the log and the driver on a disk that fails, the engines against each other,
//! and the real thing under kill.

mod driver;
mod log;
mod support;
