//! `larder status`.

use crate::args::{Common, StatusArgs};
use anyhow::{Context, Result, ensure};
use comfy_table::Table;
use serde_json::Value;

pub(crate) async fn run(arguments: &StatusArgs, common: &Common) -> Result<()> {
    let address = &arguments.http;
    let (code, body) = larder::http::get_text(address, "/status").await.with_context(|| {
        format!("no answer from {address}: is the process running with --http {address}?")
    })?;
    ensure!(code == 200, "{address} answered {code}: {body}");
    let value: Value = serde_json::from_str(&body)
        .with_context(|| format!("{address} is not a Larder process"))?;
    if common.json {
        println!("{value}");
        return Ok(());
    }
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    rows("", &value, &mut table);
    println!("{table}");
    Ok(())
}

/// One row a leaf, named by its path.
fn rows(path: &str, value: &Value, table: &mut Table) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| rows(&below(key), value, table))
        }
        Value::Array(items) => {
            items
                .iter()
                .enumerate()
                .for_each(|(at, value)| rows(&below(&at.to_string()), value, table));
        }
        Value::String(text) => drop(table.add_row([path, text])),
        other => drop(table.add_row([path, &other.to_string()])),
    }
}
