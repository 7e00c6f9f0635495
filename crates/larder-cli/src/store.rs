//! `larder volume check --data`: a store that is not running.

use crate::exit::NoStore;
use crate::out;
use anyhow::{Context, Result};
use larder_core::id::DomainId;
use larder_store::check::check_directory;
use larder_store::driver::{domain_at, folder_name, folder_number, list_at};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Checks every domain of a store; the report, and what does not hold. The store's domains are those
/// that its list names, and those in folders of theirs beside it, with which an origin would not
/// start. Other folders are named and left alone: the root of a file system has a `lost+found`, and
/// an operator may have put a copy of a domain there.
pub(crate) fn check(data: &Path) -> Result<(Value, Vec<String>)> {
    anyhow::ensure!(data.is_dir(), NoStore(named(data)));
    let mut faults = Vec::new();
    let mut domains = Vec::new();
    let listed = list_at(data).with_context(|| named(data))?;
    let Folders { found, strangers } = folders(data)?;
    // A folder's number may be anything: a copy may be named by its date.
    let named_or_found = (0..listed.as_ref().map_or(0, Vec::len)).chain(found.keys().copied());
    let places: BTreeSet<usize> = named_or_found.collect();
    anyhow::ensure!(!places.is_empty(), NoStore(named(data)));
    if listed.is_none() {
        faults.push("the list of domains is missing".into());
        if !found.contains_key(&0) {
            faults.push(format!("{} is missing", folder_name(0)));
        }
    }
    for number in places {
        let folder = folder_name(number);
        let wanted = listed.as_ref().and_then(|listed| listed.get(number));
        match (found.get(&number), wanted) {
            (None, Some(wanted)) => {
                faults.push(format!("{folder} is missing, and domain {:016x} with it", wanted.0));
                continue;
            }
            (None, None) => continue,
            (Some(there), Some(wanted)) if there != wanted => {
                let wanted = wanted.0;
                faults.push(format!("{folder}: the store's list names domain {wanted:016x} there"));
            }
            (Some(there), None) if listed.is_some() => faults.push(format!(
                "{folder}: the store's list does not name domain {:016x}, and an origin will not \
                 start beside it: put back the list that does, or move the folder away",
                there.0
            )),
            _ => {}
        }
        domains.push(check_domain(&data.join(&folder), &folder, &mut faults)?);
    }
    for stranger in strangers {
        out::fault(format_args!("{stranger}: not in the store's list of domains, and not checked"));
    }
    Ok((json!({ "domains": domains, "problems": faults.len() }), faults))
}

fn check_domain(path: &Path, folder: &str, faults: &mut Vec<String>) -> Result<Value> {
    let report = check_directory(path, &mut |_| {}).with_context(|| named(path))?;
    faults.extend(report.problems.iter().map(|problem| format!("{folder}: {problem}")));
    if report.problems_more > 0 {
        faults.push(format!("{folder}: {} further problems", report.problems_more));
    }
    Ok(json!({
        "folder": folder,
        "domain": format!("{:016x}", report.domain.0),
        "installed": report.installed.0,
        "volumes": report.volumes,
        "log_records": report.log_records,
        "pages": report.pages,
        "page_bytes": report.page_bytes,
        "tombstones": report.tombstones,
        "removing_volumes": report.removing,
        "removing_pages": report.left,
    }))
}

fn named(path: &Path) -> String {
    path.display().to_string()
}

/// What lies in a store's folder.
struct Folders {
    /// Domains, by their place.
    found: BTreeMap<usize, DomainId>,
    /// Names of other folders, ascending.
    strangers: Vec<String>,
}

fn folders(data: &Path) -> Result<Folders> {
    let (mut found, mut strangers) = (BTreeMap::new(), Vec::new());
    for entry in std::fs::read_dir(data).with_context(|| named(data))? {
        let path = entry.with_context(|| named(data))?.path();
        if !path.is_dir() {
            continue;
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let number = folder_number(&name);
        let domain = match number {
            Some(_) => domain_at(&path).with_context(|| named(&path))?,
            None => None,
        };
        match number.zip(domain) {
            Some((number, domain)) => {
                found.insert(number, domain);
            }
            None => strangers.push(name),
        }
    }
    strangers.sort();
    Ok(Folders { found, strangers })
}
