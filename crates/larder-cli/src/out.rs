//! What commands print.
//!
//! `println!` panics when nobody reads: `larder status | head` ended in a backtrace. Here what is
//! printed to a closed pipe is left out in silence, and the command goes on to its end and its own
//! exit code: an import whose report nobody reads is an import all the same.

use anyhow::{Context, Result};
use std::fmt::Display;
use std::io::{ErrorKind, Write};

/// Prints a result to standard output, with a newline.
pub(crate) fn line(text: impl Display) -> Result<()> {
    line_read(text).map(drop)
}

/// The same; false: nobody reads any more. For those who print on and on.
pub(crate) fn line_read(text: impl Display) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        other => {
            other.context("standard output cannot be written to")?;
            Ok(true)
        }
    }
}

/// Tells of a fault on standard error, with a newline. When that fails there is nobody to tell.
pub(crate) fn fault(text: impl Display) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}
