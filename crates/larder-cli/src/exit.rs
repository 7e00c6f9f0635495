//! Exit codes, as the help documents them.

use larder::client::Error;
use larder::config::ConfigError;

/// A check found faults.
#[derive(Debug, thiserror::Error)]
#[error("{0} fault(s) found")]
pub(crate) struct Damaged(pub(crate) usize);

/// The code for an error: by the first of its causes that says something of its kind.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if cause.is::<Damaged>() {
            return 6;
        }
        if cause.is::<ConfigError>() {
            return 2;
        }
        if let Some(error) = cause.downcast_ref::<Error>() {
            return of(error);
        }
    }
    1
}

fn of(error: &Error) -> u8 {
    match error {
        Error::NoVolume(_) | Error::Gone(_) | Error::NoPage(_) => 3,
        Error::Refused(_) | Error::Forbidden(_) | Error::HistoryForked { .. } | Error::Tls(_) => 4,
        Error::Unavailable(_)
        | Error::TimedOut(_)
        | Error::Stale { .. }
        | Error::OutcomeUnknown(_) => 5,
        Error::Damaged { .. } => 6,
        Error::Invalid(_) => 2,
        _ => 1,
    }
}
