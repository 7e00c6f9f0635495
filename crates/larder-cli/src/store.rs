//! `larder volume check --data`: a store that is not running.

use anyhow::{Context, Result};
use larder_store::check::check_directory;
use larder_store::driver::{folder_name, list_at};
use serde_json::{Value, json};
use std::path::Path;

/// Checks every domain of a store; the report, and what does not hold.
pub(crate) fn check(data: &Path) -> Result<(Value, Vec<String>)> {
    let mut faults = Vec::new();
    let mut domains = Vec::new();
    let listed = list_at(data).with_context(|| data.display().to_string())?;
    match &listed {
        Some(listed) => {
            let missing = |number: &usize| !data.join(folder_name(*number)).is_dir();
            for number in (0..listed.len()).filter(missing) {
                let (folder, domain) = (folder_name(number), listed[number]);
                faults.push(format!("{folder} is missing, and domain {:016x} with it", domain.0));
            }
        }
        None => faults.push("the list of domains is missing".into()),
    }
    let entries = std::fs::read_dir(data).with_context(|| data.display().to_string())?;
    let mut folders: Vec<_> = entries.collect::<Result<_, _>>()?;
    folders.sort_by_key(std::fs::DirEntry::file_name);
    for entry in folders.iter().filter(|entry| entry.path().is_dir()) {
        let path = entry.path();
        let report =
            check_directory(&path, &mut |_| {}).with_context(|| path.display().to_string())?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let places = listed.iter().flatten().enumerate();
        let wanted = places.filter(|(number, _)| folder_name(*number) == name).map(|(_, id)| *id);
        for wanted in wanted.filter(|wanted| *wanted != report.domain) {
            faults.push(format!("{name}: the store's list names domain {:016x} there", wanted.0));
        }
        faults.extend(report.problems.iter().map(|problem| format!("{name}: {problem}")));
        if report.problems_more > 0 {
            faults.push(format!("{name}: {} further problems", report.problems_more));
        }
        domains.push(json!({
            "folder": name,
            "domain": format!("{:016x}", report.domain.0),
            "installed": report.installed.0,
            "volumes": report.volumes,
            "log_records": report.log_records,
            "pages": report.pages,
            "page_bytes": report.page_bytes,
            "tombstones": report.tombstones,
        }));
    }
    anyhow::ensure!(!domains.is_empty(), "{} holds no store", data.display());
    Ok((json!({ "domains": domains, "problems": faults.len() }), faults))
}
