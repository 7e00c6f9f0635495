//! What a volume is to its owner: `larder volume quota`, `larder volume delete`.

use crate::args::{Common, Quota};
use crate::volume::{show, volume_json};
use anyhow::Result;
use indicatif::HumanBytes;
use larder::client::Node;
use larder::config::ConfigError;
use larder_core::message::VolumeInfo;
use serde_json::json;
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
