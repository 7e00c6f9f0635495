//! The folder of an origin's store: which domains it holds, and that they are all there.
//!
//! A store is made only when that is asked for, and lists its domains. A folder that is missing is
//! refused from then on: made anew, in the place of a disk that is not mounted, it would be served
//! as an empty store.

use super::ServerError;
use crate::clock::{random_u64, random_u128};
use crate::config::OriginSection;
use larder_core::id::{DomainId, HistoryId};
use larder_core::origin::RecoveredDomain;
use larder_core::rng::Rng;
use larder_store::disk::{Disk, RealDisk};
use larder_store::driver::{
    LIST_NAME, LogHalf, OpenError, PagesHalf, RealStore, Recovered, StoreConfig, domain_at,
    folder_name, read_list, write_list,
};
use larder_store::pages::{FjallConfig, FjallPages};
use std::path::Path;

/// A domain's store, open, and not yet at work.
pub(super) struct OpenDomain {
    pub(super) parts: Parts,
    pub(super) recovered: RecoveredDomain,
}

/// What a domain's store is made of.
pub(super) enum Parts {
    /// Files.
    Files(LogHalf<RealDisk>, PagesHalf<FjallPages>),
    /// A world's.
    #[cfg(feature = "simulated")]
    World(crate::simulated::SimStore),
}

/// Opens all domains of the store, and makes new ones until there are as many as configured. A
/// store that is not there is made if the configuration says so. Blocks.
pub(super) fn open_all(section: &OriginSection) -> Result<Vec<OpenDomain>, ServerError> {
    let data = &section.data;
    match (section.create, data.join(LIST_NAME).exists()) {
        (false, false) => return Err(ServerError::NoStore { path: data.clone() }),
        // Left in a unit file it would make a new store the day the disk is not mounted.
        (true, true) => return Err(ServerError::StoreExists { path: data.clone() }),
        (false, true) | (true, false) => {}
    }
    let failed = |error: OpenError| ServerError::Store { path: data.clone(), error };
    // Keeps another process out until the domains' own locks do.
    let disk = RealDisk::open(data).map_err(|error| failed(error.into()))?;
    let listed = read_list(&disk).map_err(failed)?.unwrap_or_default();
    // A start that died between the list's renaming and this left it in the system's cache alone.
    disk.sync_directory().map_err(|error| failed(error.into()))?;
    let wanted = listed.len().max(section.domains as usize);
    refuse_unlisted(data, wanted)?;
    let config = store_config(section, wanted);
    let mut domains = Vec::with_capacity(wanted);
    for number in 0..wanted {
        let path = data.join(folder_name(number));
        domains.push(match listed.get(number) {
            Some(domain) => open_listed(&path, *domain, &config)?,
            None => open_new(&path, &config).map_err(|error| ServerError::Store { path, error })?,
        });
    }
    let found: Vec<DomainId> = domains.iter().map(|d| d.recovered.meta.domain).collect();
    if found != listed || domains.is_empty() {
        // Last, so that a list names only what is there; before anything is served.
        write_list(&disk, &found).map_err(failed)?;
    }
    Ok(domains)
}

/// What each of so many domains may use: a third of its engine's memory is the cache, a sixth each of the
/// tables in memory, and some is always left.
fn store_config(section: &OriginSection, domains: usize) -> StoreConfig {
    let share = section.engine_memory.0 / domains.max(1) as u64;
    let pages = FjallConfig {
        cache_bytes: (share / 3).max(1 << 20),
        memtable_bytes: (share / 6).max(512 << 10),
        ..FjallConfig::default()
    };
    StoreConfig { pages, ..StoreConfig::default() }
}

/// A domain beyond those listed and wanted would be left out in silence.
fn refuse_unlisted(data: &Path, wanted: usize) -> Result<(), ServerError> {
    let path = data.join(folder_name(wanted));
    match domain_at(&path) {
        Ok(None) => Ok(()),
        Ok(Some(domain)) => Err(ServerError::Unlisted { path, domain, wanted: wanted + 1 }),
        Err(error) => Err(ServerError::Store { path, error }),
    }
}

fn open_listed(
    path: &Path,
    wanted: DomainId,
    config: &StoreConfig,
) -> Result<OpenDomain, ServerError> {
    let failed = |error| ServerError::Store { path: path.to_owned(), error };
    match domain_at(path).map_err(failed)? {
        None => Err(ServerError::DomainMissing { path: path.to_owned(), domain: wanted }),
        Some(found) if found != wanted => {
            Err(ServerError::OtherDomain { path: path.to_owned(), found, wanted })
        }
        Some(_) => open_one(path, config).map_err(failed),
    }
}

/// Makes a domain. One that is there was made by a start that died before the list was written.
fn open_new(path: &Path, config: &StoreConfig) -> Result<OpenDomain, OpenError> {
    if domain_at(path)?.is_some() {
        return open_one(path, config);
    }
    let rng = Rng::new(random_u64());
    let made = RealStore::create_at(path, config, DomainId(random_u64()), rng)?;
    Ok(open_domain(made))
}

fn open_one(path: &Path, config: &StoreConfig) -> Result<OpenDomain, OpenError> {
    let opened = RealStore::open_at(path, config, Rng::new(random_u64()))?;
    Ok(open_domain(opened))
}

fn open_domain((store, recovered): (RealStore, Recovered)) -> OpenDomain {
    let (log, pages) = store.split();
    OpenDomain { parts: Parts::Files(log, pages), recovered: in_a_new_history(recovered) }
}

fn in_a_new_history(recovered: Recovered) -> RecoveredDomain {
    RecoveredDomain {
        meta: recovered.meta,
        apart: recovered.apart,
        records: recovered.records,
        history: HistoryId(random_u128()),
    }
}

/// The same in a world of the simulator; none: this thread has none.
#[cfg(feature = "simulated")]
pub(super) fn open_world(section: &OriginSection) -> Option<Result<Vec<OpenDomain>, ServerError>> {
    let opened = crate::simulated::world()?.open(&section.data);
    Some(match opened {
        Ok(domains) => Ok(domains
            .into_iter()
            .map(|(store, recovered)| OpenDomain {
                parts: Parts::World(store),
                recovered: in_a_new_history(recovered),
            })
            .collect()),
        Err(error) => Err(ServerError::Store { path: section.data.clone(), error }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A store's folder, removed at the end.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Self {
            let name = format!("larder-data-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = std::fs::remove_dir_all(&path);
            Self(path)
        }

        fn open(&self, domains: u32, create: bool) -> Result<Vec<DomainId>, ServerError> {
            let data = self.0.join("data");
            let section = OriginSection { data, domains, create, ..OriginSection::default() };
            let opened = open_all(&section)?;
            Ok(opened.iter().map(|domain| domain.recovered.meta.domain).collect())
        }

        fn refused(&self, domains: u32, create: bool) -> String {
            self.open(domains, create).expect_err("it is refused").to_string()
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// The disk of a store was not mounted when its origin was started: the origin made a new,
    /// empty store in the folder below, and served that. Commits went there until somebody noticed
    /// that the volumes were gone.
    #[test]
    fn a_store_that_is_missing_is_refused_and_not_made_anew() {
        let place = Place::new("missing");
        let made = place.open(2, true).expect("a new store");
        let again = place.open(2, false).expect("it is there");
        assert_eq!(again, made);
        std::fs::rename(place.0.join("data"), place.0.join("away")).expect("renames");
        let text = place.refused(2, false);
        assert!(text.contains("data holds no store") && text.contains("--create"), "{text}");
        assert!(!place.0.join("data").exists(), "a refused start leaves nothing");
        std::fs::create_dir(place.0.join("data")).expect("an empty mount point");
        let text = place.refused(2, false);
        assert!(text.contains("data holds no store"), "{text}");
    }

    /// One of two domains was on a disk of its own, which was not mounted: its folder was made
    /// anew, empty, and its volumes were gone, though a commit to them had been acknowledged.
    #[test]
    fn a_domain_that_is_missing_is_refused_by_its_name() {
        let place = Place::new("domain");
        let made = place.open(2, true).expect("a new store");
        let (second, away) = (place.0.join("data/domain-1"), place.0.join("away"));
        std::fs::rename(&second, &away).expect("renames");
        for domains in [1, 2, 3] {
            let text = place.refused(domains, false);
            assert!(text.contains("domain-1 is missing") && text.contains("mount"), "{text}");
            assert!(text.contains(&format!("{:016x}", made[1].0)), "{text}");
            assert!(!second.exists(), "a refused start leaves nothing");
        }
        // An empty mount point is as good as none.
        std::fs::create_dir(&second).expect("a new folder");
        assert!(place.refused(2, false).contains("domain-1 is missing"));
        std::fs::remove_dir(&second).expect("it is empty");
        std::fs::rename(&away, &second).expect("renames");
        assert_eq!(place.open(1, false).expect("all are there"), made);
        // Two disks mounted in each other's place.
        std::fs::rename(&second, &away).expect("renames");
        std::fs::rename(place.0.join("data/domain-0"), &second).expect("renames");
        std::fs::rename(&away, place.0.join("data/domain-0")).expect("renames");
        let text = place.refused(2, false);
        assert!(text.contains("domain-0 holds domain"), "{text}");
    }

    /// `--create` was left in a unit file after the first start. The day the store's disk was not
    /// mounted, the origin made a new, empty store in its place, and served that.
    #[test]
    fn a_store_that_is_there_refuses_to_be_made() {
        let place = Place::new("create");
        let made = place.open(1, true).expect("a new store");
        let text = place.refused(1, true);
        assert!(text.contains("holds a store") && text.contains("without --create"), "{text}");
        assert_eq!(place.open(1, false).expect("it is there"), made);
    }

    #[test]
    fn domains_are_added_and_a_creation_that_died_goes_on() {
        let place = Place::new("added");
        let first = place.open(1, true).expect("a new store");
        let two = place.open(2, false).expect("one more");
        assert_eq!(two[0], first[0]);
        // As if the start had died before the list was written.
        let list = place.0.join("data").join(LIST_NAME);
        std::fs::remove_file(&list).expect("it was written");
        assert!(place.refused(2, false).contains("holds no store"));
        assert!(place.refused(1, true).contains("domain-1 holds domain"));
        assert_eq!(place.open(2, true).expect("it goes on"), two);
        assert_eq!(place.open(1, false).expect("listed"), two);
    }
}
