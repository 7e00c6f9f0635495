//! The origin machine.

pub mod io;
