//! What processes say of themselves that they keep in memory on purpose: when one grows, whether that is
//! why, and which part of it did.

use crate::world::{SITES, World};
use anyhow::Result;
use larder::fs::KeptPart;
use larder_harness::process::{http_get, metric_in};

/// Parts of a domain at the origin.
const ORIGIN: [&str; 5] = ["clean", "uninstalled", "recent", "engine_cache", "engine_tables"];
/// What a mount keeps of what the kernel knows.
const KERNEL: [&str; 2] = ["inodes", "names"];

/// What a mount keeps of pages: it has a limit too.
const COPIES: &str = "copies";

/// Whether a part has a limit of its own that the process keeps to.
pub(crate) fn is_limited(part: &str) -> bool {
    part == COPIES || may_fill(part)
}

/// Whether a part of the origin's may still be filling up, and is not judged as growth. What mounts keep of pages is:
/// copies of what is gone once filled it (bug 155).
pub(crate) fn may_fill(part: &str) -> bool {
    ORIGIN.contains(&part)
}

/// Bytes that each process keeps now, by its name and the part's.
pub(crate) fn keeps(world: &World) -> Result<Vec<((String, &'static str), u64)>> {
    let mut all = Vec::new();
    let told = http_get(world.origin_http(), "/metrics")?;
    for part in ORIGIN {
        let label = format!("part=\"{part}\"");
        let bytes = metric_in(&told, "larder_memory_bytes", &[&label])?;
        all.push((("origin".to_owned(), part), bytes as u64));
    }
    for (site, name) in SITES.iter().enumerate() {
        let told = http_get(world.mount_http(site), "/metrics")?;
        let mut tell = |part, bytes: f64| all.push((((*name).to_owned(), part), bytes as u64));
        tell(COPIES, metric_in(&told, "larder_cache_bytes", &[])?);
        for part in KERNEL.into_iter().chain(KeptPart::ALL.map(KeptPart::name)) {
            let label = format!("what=\"{part}\"");
            tell(part, metric_in(&told, "larder_mount_bytes", &[&label])?);
        }
    }
    Ok(all)
}
