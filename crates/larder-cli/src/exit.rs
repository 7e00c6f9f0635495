//! Exit codes, as the help documents them.

use larder::backup::BackupError;
use larder::backup::format::FormatError;
use larder::client::Error;
use larder::config::ConfigError;
use larder::fs::{FsError, TxError};
use larder::server::ServerError;
use larder::tls::TlsError;
use larder_store::driver::OpenError;
use larder_store::log::LogError;
use larder_store::pages::PagesError;

/// A check found faults.
#[derive(Debug, thiserror::Error)]
#[error("{0} fault(s) found")]
pub(crate) struct Damaged(pub(crate) usize);

/// A backup lacks pages that could not be read at the origin.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0} page(s) are not in the backup: they were damaged at the origin, and left out; restored they \
     are gone, and `larder volume check --repair` mends what stood on them"
)]
pub(crate) struct LeftOut(pub(crate) u64);

/// A folder without a store is to be checked.
#[derive(Debug, thiserror::Error)]
#[error("{0} holds no store")]
pub(crate) struct NoStore(pub(crate) String);

/// A process that is asked for its state does not answer.
#[derive(Debug, thiserror::Error)]
#[error("no answer from {address}: is the process running with --http {address}?")]
pub(crate) struct NoAnswer {
    pub(crate) address: String,
    #[source]
    pub(crate) error: std::io::Error,
}

/// What a process that was started for this one failed with.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Reported {
    pub(crate) code: u8,
    pub(crate) message: String,
}

/// The code for an error: by the first of its causes that says something of its kind.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(reported) = cause.downcast_ref::<Reported>() {
            return reported.code;
        }
        if cause.is::<Damaged>() || cause.is::<LeftOut>() {
            return DAMAGED;
        }
        if cause.is::<NoStore>() {
            return 3;
        }
        if cause.is::<NoAnswer>() {
            return UNAVAILABLE;
        }
        if cause.is::<ConfigError>() {
            return 2;
        }
        if let Some(error) = cause.downcast_ref::<BackupError>() {
            return of_backup(error);
        }
        if let Some(error) = cause.downcast_ref::<larder_oo7::Error>() {
            return of_oo7(error);
        }
        if let Some(error) = cause.downcast_ref::<FsError>() {
            return of_files(error);
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
        if let Some(error) = cause.downcast_ref::<TlsError>() {
            return if matches!(error, TlsError::NotIssued { .. }) { 3 } else { REFUSED };
        }
    }
    1
}

/// Not allowed, or not trusted.
const REFUSED: u8 = 4;
/// Nobody answers, or not in time.
const UNAVAILABLE: u8 = 5;
/// Bytes that do not check.
const DAMAGED: u8 = 6;

fn of_backup(error: &BackupError) -> u8 {
    match error {
        BackupError::Format(FormatError::Io(_)) | BackupError::Io(_) => 1,
        BackupError::Format(_) => DAMAGED,
        BackupError::Client(error) => of(error),
        BackupError::Taken(_) | BackupError::Changed(_) => REFUSED,
        BackupError::TooManyNumbers { .. } => DAMAGED,
        BackupError::TooBusy { .. } | BackupError::OriginBusy { .. } => UNAVAILABLE,
    }
}

fn of_oo7(error: &larder_oo7::Error) -> u8 {
    match error {
        larder_oo7::Error::Store(error) => of(error),
        larder_oo7::Error::NoDatabase(_) => 3,
        larder_oo7::Error::Damaged(_) => DAMAGED,
        larder_oo7::Error::Invalid(_) => 2,
        _ => 1,
    }
}

fn of_files(error: &FsError) -> u8 {
    match error {
        FsError::NotFound | FsError::Unformatted | FsError::Store(TxError::Deleted) => 3,
        FsError::Damaged(_) => DAMAGED,
        FsError::Store(error) => of_transaction(error),
        _ => 1,
    }
}

/// As for the client's errors, which these were made of.
fn of_transaction(error: &TxError) -> u8 {
    match error {
        TxError::TimedOut
        | TxError::OutcomeUnknown
        | TxError::Stale(_)
        | TxError::Unavailable(_)
        | TxError::NoSpace(_) => UNAVAILABLE,
        TxError::Damaged(_) => DAMAGED,
        TxError::Deleted => 3,
        TxError::Denied(_) | TxError::NoRight(_) | TxError::Forked | TxError::Quota(_) => REFUSED,
        TxError::Conflict(_) | TxError::Full(_) | TxError::Gone(_) | TxError::TooLarge(_) => 1,
    }
}

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
        OpenError::Pages(PagesError::Format { .. }) | OpenError::Log(LogError::Format { .. }) => {
            REFUSED
        }
        _ => DAMAGED,
    }
}

fn of(error: &Error) -> u8 {
    match error {
        Error::NoVolume(_) | Error::VolumeDeleted(_) | Error::Gone(_) | Error::NoPage(_) => 3,
        Error::Refused(_)
        | Error::Forbidden(_)
        | Error::Denied(_)
        | Error::QuotaPassed { .. }
        | Error::HistoryForked { .. }
        | Error::Tls(_) => REFUSED,
        Error::Unavailable(_)
        | Error::NotDone(_)
        | Error::StoreFull(_)
        | Error::TimedOut(_)
        | Error::Stale { .. }
        | Error::OutcomeUnknown(_) => UNAVAILABLE,
        Error::Damaged { .. } => DAMAGED,
        Error::Invalid(_) => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    fn in_files(error: impl Into<FsError>) -> u8 {
        let failed: Result<(), FsError> = Err(error.into());
        code(&failed.context("volume v").expect_err("it failed"))
    }

    /// The file layer's errors were not known here: an import cut off by its time limit, and a tree
    /// with damaged records, both ended with 1, and a script that runs an import again when it was
    /// unavailable gave up.
    #[test]
    fn the_file_layers_errors_have_the_codes_of_the_help() {
        for unavailable in [
            TxError::TimedOut,
            TxError::OutcomeUnknown,
            TxError::Stale("old".into()),
            TxError::Unavailable("down".into()),
            TxError::NoSpace("full".into()),
        ] {
            assert_eq!(in_files(unavailable.clone()), 5, "{unavailable}");
        }
        assert_eq!(in_files(TxError::Damaged("page".into())), 6);
        assert_eq!(in_files(FsError::Damaged("record".into())), 6);
        assert_eq!(in_files(TxError::Denied("no".into())), 4);
        assert_eq!(in_files(TxError::Forked), 4);
        assert_eq!(in_files(TxError::Quota("passed".into())), 4);
        assert_eq!(in_files(TxError::Deleted), 3);
        assert_eq!(in_files(FsError::NotFound), 3);
        assert_eq!(in_files(FsError::Unformatted), 3);
        assert_eq!(in_files(FsError::NotEmpty), 1);
    }

    /// A script that backs up every night is told of pages that could not be, though all else is done.
    #[test]
    fn a_backup_that_lacks_pages_is_told() {
        let told = crate::backup::verdict(&serde_json::json!({ "left_out": 3 }));
        let told = told.expect_err("three are not in it");
        assert_eq!(code(&told), DAMAGED);
        assert!(told.to_string().contains('3') && told.to_string().contains("--repair"), "{told}");
        assert!(crate::backup::verdict(&serde_json::json!({ "left_out": 0 })).is_ok());
    }
}
