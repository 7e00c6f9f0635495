//! `larder volume`.

use crate::args::{Common, Uplink, VolumeCommand};
use crate::out;
use crate::progress::Progress;
use crate::settings::Flags;
use anyhow::{Context, Result, bail};
use comfy_table::Table;
use indicatif::HumanBytes;
use larder::client::{Error, Node, Volume, VolumeOptions};
use larder::config::{ConfigError, Period, Size};
use larder_core::message::VolumeInfo;
use serde_json::{Value, json};
use std::time::Duration;

/// Bytes of pages that an import keeps in memory at most. It looks at hardly any of them again, and
/// memory that is used for the first time costs more than what it would save.
const IMPORT_MEMORY: Size = Size(64 << 20);

pub(crate) async fn run(command: &VolumeCommand, common: &Common) -> Result<()> {
    match command {
        VolumeCommand::Create { volume: name, page_size, bare, uplink } => {
            let node = connect(uplink, common).await?;
            let volume = create(&node, name, *page_size).await?;
            if !bare {
                crate::tree::format(&volume).await?;
            }
            show(&volume_json(volume.info()), common, &format!("volume {name} made"))?;
            node.shutdown().await;
        }
        VolumeCommand::List { uplink } => {
            let node = connect(uplink, common).await?;
            list(&node.volumes().await?, common)?;
            node.shutdown().await;
        }
        VolumeCommand::Info { volume: name, uplink } => {
            let node = connect(uplink, common).await?;
            let volume = node.volume(name).await?;
            let value = volume_json(volume.info());
            show(&value, common, &format!("{value:#}"))?;
            node.shutdown().await;
        }
        VolumeCommand::Quota { volume: name, bytes, uplink } => {
            let node = connect(uplink, common).await?;
            crate::owner::quota(&node, name, *bytes, common).await?;
            node.shutdown().await;
        }
        VolumeCommand::Delete { volume: name, yes, uplink } => {
            // A mistake of usage is told before anything is asked.
            crate::owner::may_delete(name, *yes)?;
            let node = connect(uplink, common).await?;
            crate::owner::delete(&node, name, common).await?;
            node.shutdown().await;
        }
        VolumeCommand::Rights { volume: name, changes, uplink } => {
            let node = connect(uplink, common).await?;
            crate::owner::rights(&node, name, changes, common).await?;
            node.shutdown().await;
        }
        VolumeCommand::Import { volume: name, source, create: make, page_size, quiet, uplink } => {
            let node = connect_within(uplink, common, IMPORT_MEMORY).await?;
            let volume = match node.volume(name).await {
                Err(Error::NoVolume(_)) if *make => create(&node, name, *page_size).await?,
                other => other?,
            };
            if *make {
                crate::tree::format_bare(&volume).await?;
            }
            let shown = Progress::new("import", common.json, *quiet);
            let report = crate::tree::import(&volume, source, shown).await?;
            show(&report, common, &summary("imported", &report))?;
            node.shutdown().await;
        }
        VolumeCommand::Export { volume: name, target, quiet, uplink } => {
            let node = connect(uplink, common).await?;
            let volume = node.volume(name).await?;
            let shown = Progress::new("export", common.json, *quiet);
            let report = crate::tree::export(&volume, target, shown).await?;
            show(&report, common, &summary("exported", &report))?;
            node.shutdown().await;
        }
        VolumeCommand::Backup { .. }
        | VolumeCommand::Restore { .. }
        | VolumeCommand::Verify { .. } => files(command, common).await?,
        VolumeCommand::Check { data: Some(data), .. } => check_store(data, common)?,
        VolumeCommand::Check { volume: name, free_orphans, repair, quiet, uplink, .. } => {
            let free = free_orphans.as_deref().map(orphan_age).transpose()?;
            let name = name.as_ref().context("a volume's name, or --data, is needed")?;
            let node = connect(uplink, common).await?;
            let volume = node.volume(name).await?;
            let shown = Progress::new("check", common.json, *quiet);
            let (report, faults) = match repair {
                true => crate::tree::repair(&volume, free, shown).await?,
                false => crate::tree::check(&volume, free, shown).await?,
            };
            for repaired in report["repaired"].as_array().into_iter().flatten() {
                let [problem, done] = [&repaired["problem"], &repaired["done"]]
                    .map(|text| text.as_str().unwrap_or_default());
                out::fault(format_args!("{problem}: {done}"));
            }
            node.shutdown().await;
            verdict(&report, &faults, common)?;
        }
    }
    Ok(())
}

/// What is done with backups.
async fn files(command: &VolumeCommand, common: &Common) -> Result<()> {
    match command {
        VolumeCommand::Backup { volume: name, file, leave_out_damaged, quiet, uplink } => {
            let node = connect_within(uplink, common, IMPORT_MEMORY).await?;
            let volume = node.volume(name).await?;
            let shown = Progress::of_pages("backup", common.json, *quiet);
            let report = crate::backup::back_up(&volume, file, *leave_out_damaged, shown).await?;
            // Standard output is the file's.
            if file.as_os_str() == "-" {
                out::fault(summary("backed up", &report));
            } else {
                show(&report, common, &summary("backed up", &report))?;
            }
            node.shutdown().await;
            crate::backup::verdict(&report)?;
        }
        VolumeCommand::Restore { file, volume: name, grant, default, quiet, uplink } => {
            let node = connect_within(uplink, common, IMPORT_MEMORY).await?;
            let shown = Progress::of_pages("restore", common.json, *quiet);
            let options = crate::backup::rights(grant, *default);
            let report = crate::backup::restore(&node, file, name, &options, shown).await?;
            show(&report, common, &summary("restored", &report))?;
            if !common.json {
                out::fault(crate::backup::who_may(name, &report));
            }
            node.shutdown().await;
            crate::backup::verdict(&report)?;
        }
        VolumeCommand::Verify { file, quiet } => {
            let shown = Progress::of_pages("verify", common.json, *quiet);
            let report = crate::backup::verify(file, shown)?;
            show(&report, common, &summary("whole", &report))?;
            crate::backup::verdict(&report)?;
        }
        other => unreachable!("{other:?} is of no backup"),
    }
    Ok(())
}

fn orphan_age(age: &str) -> Result<Duration> {
    let age: Result<Period, _> = age.parse();
    let invalid = |detail| ConfigError::Invalid { layer: "--free-orphans".into(), detail };
    Ok(age.map_err(invalid)?.0)
}

async fn connect(uplink: &Uplink, common: &Common) -> Result<Node> {
    connect_within(uplink, common, Size(u64::MAX)).await
}

/// Connects with no more memory than so much, whatever the settings give a node.
async fn connect_within(uplink: &Uplink, common: &Common, memory: Size) -> Result<Node> {
    let mut config = Flags::default().uplink(uplink).load(common)?;
    config.node.memory = config.node.memory.min(memory);
    if config.log.filter.is_empty() {
        // It does one thing, and says what came of it.
        config.log.filter = "warn".into();
    }
    larder::log::init(&config.log)?;
    Ok(Node::connect(config.node().for_task("volume")).await?)
}

async fn create(node: &Node, name: &str, page_bytes: u32) -> Result<Volume> {
    Ok(node.create_volume(VolumeOptions { page_bytes, ..VolumeOptions::new(name) }).await?)
}

pub(crate) fn volume_json(info: &VolumeInfo) -> Value {
    json!({
        "name": info.name,
        "id": info.id.to_string(),
        "domain": format!("{:016x}", info.domain.0),
        "page_bytes": info.page_bytes,
        "pages": info.pages,
        "bytes": info.bytes,
        "quota": info.quota,
        "version": info.version.0,
        "right": info.right.map(|right| right.name()),
    })
}

fn list(volumes: &[VolumeInfo], common: &Common) -> Result<()> {
    if common.json {
        return out::line(Value::from_iter(volumes.iter().map(volume_json)));
    }
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(["NAME", "SIZE", "QUOTA", "PAGES", "PAGE SIZE", "VERSION", "RIGHT", "ID"]);
    for info in volumes {
        table.add_row([
            info.name.clone(),
            HumanBytes(info.bytes).to_string(),
            info.quota.map_or("none".into(), |quota| HumanBytes(quota).to_string()),
            info.pages.to_string(),
            info.page_bytes.to_string(),
            info.version.to_string(),
            info.right.map_or("", |right| right.name()).into(),
            info.id.to_string(),
        ]);
    }
    out::line(table)
}

pub(crate) fn show(value: &Value, common: &Common, text: &str) -> Result<()> {
    if common.json { out::line(value) } else { out::line(text) }
}

fn summary(verb: &str, report: &Value) -> String {
    let parts: Vec<String> = report
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| match value.as_array() {
            // Each is told on a line of its own.
            Some(list) => format!("{} {}", key.replace('_', " "), list.len()),
            None => format!("{} {value}", key.replace('_', " ")),
        })
        .collect();
    format!("{verb}: {}", parts.join(", "))
}

fn check_store(data: &std::path::Path, common: &Common) -> Result<()> {
    let (report, faults) = crate::store::check(data)?;
    verdict(&report, &faults, common)
}

pub(crate) fn verdict(report: &Value, faults: &[String], common: &Common) -> Result<()> {
    show(report, common, &summary(if faults.is_empty() { "clean" } else { "damaged" }, report))?;
    for fault in faults.iter().take(100) {
        out::fault(fault);
    }
    if !faults.is_empty() {
        bail!(crate::exit::Damaged(faults.len()));
    }
    Ok(())
}
