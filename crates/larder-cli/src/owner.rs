//! What a volume is to its owner: `larder volume quota`, `larder volume rights`, `larder volume delete`.

use crate::args::{Common, Quota, RightsChanges};
use crate::volume::{show, volume_json};
use anyhow::{Result, bail};
use comfy_table::Table;
use indicatif::HumanBytes;
use larder::client::Node;
use larder::config::ConfigError;
use larder_core::message::VolumeInfo;
use larder_core::rights::{Access, EVERYBODY, Right, Rights, RightsEdit};
use serde_json::json;
use std::collections::BTreeSet;
use std::io::IsTerminal;

/// Sets a volume's quota, or shows it.
pub(crate) async fn quota(
    node: &Node,
    name: &str,
    set: Option<Quota>,
    common: &Common,
) -> Result<()> {
    let volume = node.volume(name).await?;
    let info = match set {
        Some(Quota(bytes)) => node.set_quota(volume.id(), bytes).await?,
        None => volume.info().clone(),
    };
    show(&volume_json(&info), common, &quota_text(&info))
}

/// A deletion without a terminal wants `--yes`; on one the name is to be typed.
pub(crate) fn may_delete(name: &str, yes: bool) -> Result<()> {
    if yes {
        return Ok(());
    }
    let usage =
        |detail: &str| ConfigError::Invalid { layer: "--yes".into(), detail: detail.into() };
    if !std::io::stdin().is_terminal() {
        return Err(usage("wanted where nobody can be asked: a deletion is for good").into());
    }
    eprint!("Volume {name} and all that it holds will be deleted, for good. Type its name: ");
    let mut typed = String::new();
    std::io::stdin().read_line(&mut typed)?;
    if typed.trim() != name {
        return Err(usage("another name was typed: nothing is deleted").into());
    }
    Ok(())
}

/// Deletes a volume.
pub(crate) async fn delete(node: &Node, name: &str, common: &Common) -> Result<()> {
    let volume = node.volume(name).await?;
    let info = volume.info();
    node.delete_volume(info.id).await?;
    let value = json!({ "deleted": info.name, "id": info.id.to_string(), "bytes": info.bytes });
    let text = format!("volume {name} deleted, {} to be given back", HumanBytes(info.bytes));
    show(&value, common, &text)
}

fn quota_text(info: &VolumeInfo) -> String {
    let taken = HumanBytes(info.bytes);
    match info.quota {
        None => format!("volume {}: takes {taken}, no quota", info.name),
        Some(quota) if quota < info.bytes => format!(
            "volume {}: takes {taken}, more than its quota of {}: it may only shrink",
            info.name,
            HumanBytes(quota)
        ),
        Some(quota) => format!("volume {}: takes {taken} of {}", info.name, HumanBytes(quota)),
    }
}

/// Changes who may do what with a volume, and shows it.
pub(crate) async fn rights(
    node: &Node,
    name: &str,
    changes: &RightsChanges,
    common: &Common,
) -> Result<()> {
    let volume = node.volume(name).await?;
    let edits = [&changes.forget[..], &changes.revoke, &changes.grant].concat();
    let edits: Vec<RightsEdit> = edits.into_iter().chain(changes.default.clone()).collect();
    let mut named = BTreeSet::new();
    if let Some(twice) = edits.iter().find(|edit| !named.insert(edit.who.as_str())) {
        bail!(larder::client::Error::Invalid(format!("{} is changed twice", twice.who)));
    }
    if !edits.is_empty() {
        node.change_rights(volume.id(), edits, changes.force).await?;
        // The right to look may have been given up with --force.
        if volume.right() < Right::Admin && changes.force {
            return show(&json!({ "name": name }), common, &format!("volume {name}: changed"));
        }
    }
    let (rights, access) = node.rights(volume.id()).await?;
    let entries = rights.entries().map(|(who, right)| json!({ "id": who, "right": right.name() }));
    let value = json!({
        "name": name,
        "rights": entries.collect::<Vec<_>>(),
        "default": rights.of(EVERYBODY).unwrap_or(access.default).name(),
        "origin": { "default_rights": access.default.name(), "admins": access.admins },
    });
    show(&value, common, &rights_text(name, &rights, &access))
}

fn rights_text(name: &str, rights: &Rights, access: &Access) -> String {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(["ID", "RIGHT", "SAID BY"]);
    for admin in &access.admins {
        table.add_row([admin, Right::Admin.name(), "origin.admins"]);
    }
    for (who, right) in rights.entries() {
        table.add_row([who, right.name(), &format!("volume {name}")]);
    }
    if rights.of(EVERYBODY).is_none() {
        table.add_row([EVERYBODY, access.default.name(), "origin.default_rights"]);
    }
    table.to_string()
}
