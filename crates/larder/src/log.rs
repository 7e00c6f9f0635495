//! Structured logs.

use crate::config::{ConfigError, LogConfig};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging to standard error. What cannot be written there is dropped: whoever read it is
/// gone, and nobody else would hear of it either. A second call changes nothing: a library's user
/// may have chosen a subscriber of its own.
pub fn init(config: &LogConfig) -> Result<(), ConfigError> {
    let filter = EnvFilter::try_new(&config.filter)
        .map_err(|e| ConfigError::Invalid { layer: "log.filter".into(), detail: e.to_string() })?;
    // A log file with escape codes in it is no use to `grep`.
    let ansi = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(ansi)
        // Told on standard error, by a macro that panics when that fails.
        .log_internal_errors(false)
        .with_writer(std::io::stderr);
    let _already = if config.json { builder.json().try_init() } else { builder.try_init() };
    Ok(())
}
