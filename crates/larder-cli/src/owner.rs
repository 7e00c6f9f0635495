//! What a volume is to its owner: `larder volume quota`.

use crate::args::{Common, Quota};
use crate::volume::{show, volume_json};
use anyhow::Result;
use indicatif::HumanBytes;
use larder::client::Node;
use larder_core::message::VolumeInfo;

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
