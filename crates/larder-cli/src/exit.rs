//! Exit codes, as the help documents them.

use larder::client::Error;
use larder::config::ConfigError;
use larder::server::ServerError;
use larder::tls::TlsError;
use larder_store::driver::OpenError;
use larder_store::log::LogError;
use larder_store::pages::PagesError;

/// A check found faults.
#[derive(Debug, thiserror::Error)]
#[error("{0} fault(s) found")]
pub(crate) struct Damaged(pub(crate) usize);

/// The code for an error: by the first of its causes that says something of its kind.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if cause.is::<Damaged>() {
            return DAMAGED;
        }
        if cause.is::<ConfigError>() {
            return 2;
        }
        if let Some(error) = cause.downcast_ref::<Error>() {
            return of(error);
        }
        if let Some(error) = cause.downcast_ref::<ServerError>() {
            return of_server(error);
        }
        if let Some(error) = cause.downcast_ref::<OpenError>() {
            return of_store(error);
        }
        if cause.is::<TlsError>() {
            return REFUSED;
        }
    }
    1
}

/// Not allowed, or not trusted.
const REFUSED: u8 = 4;
/// Bytes that do not check.
const DAMAGED: u8 = 6;

fn of_server(error: &ServerError) -> u8 {
    match error {
        ServerError::Tls(_) => REFUSED,
        ServerError::Store { error, .. } => of_store(error),
        ServerError::NoStore { .. } | ServerError::DomainMissing { .. } => 3,
        ServerError::OtherDomain { .. } | ServerError::Unlisted { .. } => REFUSED,
        ServerError::Recover(_) => DAMAGED,
        _ => 1,
    }
}

/// What a restart may mend is a failure, the rest is damage.
fn of_store(error: &OpenError) -> u8 {
    match error {
        OpenError::NoDomain => 3,
        OpenError::Disk(_)
        | OpenError::Exists(_)
        | OpenError::Pages(PagesError::Locked { .. } | PagesError::Failed { .. })
        | OpenError::Pages(PagesError::Full { .. })
        | OpenError::Log(LogError::Disk(_) | LogError::Full(_) | LogError::Poisoned(_)) => 1,
        _ => DAMAGED,
    }
}

fn of(error: &Error) -> u8 {
    match error {
        Error::NoVolume(_) | Error::Gone(_) | Error::NoPage(_) => 3,
        Error::Refused(_) | Error::Forbidden(_) | Error::HistoryForked { .. } | Error::Tls(_) => {
            REFUSED
        }
        Error::Unavailable(_)
        | Error::StoreFull(_)
        | Error::TimedOut(_)
        | Error::Stale { .. }
        | Error::OutcomeUnknown(_) => 5,
        Error::Damaged { .. } => DAMAGED,
        Error::Invalid(_) => 2,
        _ => 1,
    }
}
