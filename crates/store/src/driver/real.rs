//! A domain in a directory of the operating system: the log's files and, in `pages/`, the engine's.

use super::{DomainStore, OpenError, Recovered};
use crate::disk::RealDisk;
use crate::log::LogConfig;
use crate::pages::{FjallConfig, FjallPages};
use larder_core::id::DomainId;
use larder_core::rng::Rng;
use std::path::Path;

/// A domain in a directory.
pub type RealStore = DomainStore<RealDisk, FjallPages>;

/// Where the page engine is in a domain's directory.
pub const PAGES_NAME: &str = "pages";

/// What a domain's store may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreConfig {
    /// Its log.
    pub log: LogConfig,
    /// Its page engine.
    pub pages: FjallConfig,
}

impl RealStore {
    /// Makes a domain in a directory, which is made too if need be. See [`DomainStore::create`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn create_at(
        path: &Path,
        config: &StoreConfig,
        domain: DomainId,
        rng: Rng,
    ) -> Result<(Self, Recovered), OpenError> {
        let disk = RealDisk::open(path)?;
        let pages = FjallPages::open(path.join(PAGES_NAME), &config.pages)?;
        let made = Self::create(disk, pages, config.log, domain, rng)?;
        made.0.pages.engine().claim(domain)?;
        Ok(made)
    }

    /// Opens the domain of a directory. See [`DomainStore::open`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_at(
        path: &Path,
        config: &StoreConfig,
        rng: Rng,
    ) -> Result<(Self, Recovered), OpenError> {
        let (disk, pages) = parts_at(path, &config.pages)?;
        let opened = Self::open(disk, pages, config.log, rng)?;
        opened.0.pages.engine().claim(opened.0.domain())?;
        Ok(opened)
    }
}

/// The domain of a directory, which is neither made nor kept open; none: no domain was made there.
///
/// # Errors
/// See [`super::domain_of`].
pub fn domain_at(path: &Path) -> Result<Option<DomainId>, OpenError> {
    if !is_domain(path) {
        return Ok(None);
    }
    super::domain_of(&RealDisk::open(path)?)
}

/// The list of domains of a directory, which is neither made nor kept open; none: no store was
/// made there.
///
/// # Errors
/// See [`super::read_list`].
pub fn list_at(path: &Path) -> Result<Option<Vec<DomainId>>, OpenError> {
    if !path.join(super::LIST_NAME).exists() {
        return Ok(None);
    }
    super::read_list(&RealDisk::open(path)?)
}

fn is_domain(path: &Path) -> bool {
    path.join(super::identity::IDENTITY_NAME).exists()
}

/// The disk and the page engine of a domain that is there.
pub(crate) fn parts_at(
    path: &Path,
    config: &FjallConfig,
) -> Result<(RealDisk, FjallPages), OpenError> {
    // Nothing is made in a directory that holds no domain.
    if !is_domain(path) {
        return Err(OpenError::NoDomain);
    }
    let disk = RealDisk::open(path)?;
    let pages = FjallPages::open(path.join(PAGES_NAME), config)?;
    Ok((disk, pages))
}
