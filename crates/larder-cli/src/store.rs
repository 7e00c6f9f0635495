//! `larder volume check --data`: a store that is not running.

use crate::exit::NoStore;
use crate::out;
use anyhow::{Context, Result};
use larder_core::id::DomainId;
use larder_store::check::check_directory;
use larder_store::driver::{domain_at, folder_name, list_at};
use serde_json::{Value, json};
use std::path::Path;

/// Checks every domain of a store; the report, and what does not hold. As for an origin, what
/// belongs to the store is what its list names: the root of a file system has a `lost+found`, and
/// an operator may have put a copy of a domain there.
pub(crate) fn check(data: &Path) -> Result<(Value, Vec<String>)> {
    let mut faults = Vec::new();
    let mut domains = Vec::new();
    let listed = list_at(data).with_context(|| named(data))?;
    let wanted: Vec<Option<DomainId>> = match &listed {
        Some(listed) => listed.iter().copied().map(Some).collect(),
        None => vec![None; unlisted(data)?],
    };
    anyhow::ensure!(!wanted.is_empty(), NoStore(named(data)));
    if listed.is_none() {
        faults.push("the list of domains is missing".into());
    }
    for (number, wanted) in wanted.iter().enumerate() {
        let folder = folder_name(number);
        let path = data.join(&folder);
        let there = domain_at(&path).with_context(|| named(&path))?;
        match (there, wanted) {
            (None, Some(wanted)) => {
                faults.push(format!("{folder} is missing, and domain {:016x} with it", wanted.0));
                continue;
            }
            (Some(there), Some(wanted)) if there != *wanted => {
                let wanted = wanted.0;
                faults.push(format!("{folder}: the store's list names domain {wanted:016x} there"));
            }
            _ => {}
        }
        domains.push(check_domain(&path, &folder, &mut faults)?);
    }
    for stranger in strangers(data, wanted.len())? {
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
    }))
}

fn named(path: &Path) -> String {
    path.display().to_string()
}

/// How many domains a folder without a list has.
fn unlisted(data: &Path) -> Result<usize> {
    let mut count = 0;
    loop {
        let path = data.join(folder_name(count));
        if domain_at(&path).with_context(|| named(&path))?.is_none() {
            return Ok(count);
        }
        count += 1;
    }
}

/// Other folders beside the store's domains, in the order of their names.
fn strangers(data: &Path, domains: usize) -> Result<Vec<String>> {
    let own: Vec<String> = (0..domains).map(folder_name).collect();
    let mut names = Vec::new();
    for entry in std::fs::read_dir(data).with_context(|| named(data))? {
        let entry = entry.with_context(|| named(data))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_dir() && !own.contains(&name) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
