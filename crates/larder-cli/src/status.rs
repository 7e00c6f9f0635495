//! `larder status`.

use crate::args::{Common, StatusArgs};
use crate::exit::NoAnswer;
use crate::group::take_members;
use crate::out;
use anyhow::{Context, Result, ensure};
use comfy_table::Table;
use indicatif::{HumanBytes, HumanDuration};
use larder::config::ConfigError;
use serde_json::Value;
use std::io::ErrorKind;
use std::time::Duration;

pub(crate) async fn run(arguments: &StatusArgs, common: &Common) -> Result<()> {
    let mut value = told(&arguments.http).await?;
    if common.json {
        return out::line(value);
    }
    let mut tables = Vec::new();
    let damage: Vec<String> = items(&value["domains"]).filter_map(unreadable).collect();
    if let Some(fields) = value.as_object_mut() {
        tables.extend(fields.remove("domains").map(|domains| domains_table(&domains)));
        tables.extend(fields.remove("children").map(|children| children_table(&children)));
        let peers = fields.remove("peers").filter(|peers| items(peers).next().is_some());
        tables.extend(peers.map(|peers| peers_table(&peers)));
        tables.extend(fields.get_mut("group").map(take_members));
    }
    let mut general = table();
    rows("", &value, &mut general);
    out::line(general)?;
    for table in &tables {
        out::line(format_args!("\n{table}"))?;
    }
    for line in damage {
        out::line(format_args!("\n{line}"))?;
    }
    Ok(())
}

/// What the process at an address tells of itself.
pub(crate) async fn told(address: &str) -> Result<Value> {
    let (code, body) = match larder::http::get_text(address, "/status").await {
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            let detail = format!("{address}: {error}");
            return Err(ConfigError::Invalid { layer: "--http".into(), detail }.into());
        }
        other => other.map_err(|error| NoAnswer { address: address.to_owned(), error })?,
    };
    ensure!(code == 200, "{address} answered {code}: {body}");
    serde_json::from_str(&body).with_context(|| format!("{address} is not a Larder process"))
}

pub(crate) fn table() -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table
}

pub(crate) fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

pub(crate) fn number(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".into(), |number| number.to_string())
}

pub(crate) fn bytes(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".into(), |bytes| HumanBytes(bytes).to_string())
}

/// An origin's or a relay's domains, one a line.
fn domains_table(domains: &Value) -> Table {
    let mut table = table();
    table.set_header(["DOMAIN", "SERVES", "STAMP", "DIRECTORY", "MEMORY", "LOG", "STORE"]);
    for domain in items(domains) {
        let serves = match (domain["fault"].as_str(), &domain["open"], &domain["following"]) {
            (Some(fault), ..) => fault,
            (None, Value::Bool(true), _) | (None, _, Value::Bool(true)) => "yes",
            _ => "not yet",
        };
        let directory = &domain["directory"];
        table.add_row([
            domain["domain"].as_str().unwrap_or("-").to_owned(),
            serves.to_owned(),
            number(&domain["stamp"]),
            registered(directory),
            bytes(&directory["bytes"]),
            bytes(&domain["log_bytes"]),
            bytes(&domain["store_bytes"]),
        ]);
    }
    table
}

/// The pages of a domain that have changes and cannot be read.
fn unreadable(domain: &Value) -> Option<String> {
    let unreadable = domain.get("unreadable").filter(|pages| !pages.is_null())?;
    let mut text = format!(
        "{} changed page(s) of domain {} cannot be read ({} of changes kept apart, {} page(s) in the log):",
        number(&unreadable["pages"]),
        domain["domain"].as_str().unwrap_or("-"),
        bytes(&unreadable["apart_bytes"]),
        number(&unreadable["in_log"]),
    );
    for page in items(&unreadable["named"]) {
        let part = |key: &str| page[key].as_str().unwrap_or("-").to_owned();
        text.push_str(&format!("\n  {}: {}", part("page"), part("detail")));
    }
    Some(text)
}

/// Pages registered one by one, and how many children are registered for everything.
fn registered(directory: &Value) -> String {
    match (number(&directory["pages"]), directory["whole"].as_u64()) {
        (pages, None | Some(0)) => format!("{pages} pages"),
        (pages, Some(whole)) => format!("{pages} pages + {whole} all"),
    }
}

/// Other origins: one line for each.
fn peers_table(peers: &Value) -> Table {
    let mut table = table();
    table.set_header(["ORIGIN", "ADDRESS", "CONNECTED", "DOMAINS", "TROUBLE"]);
    for peer in items(peers) {
        let text = |key: &str| peer[key].as_str().unwrap_or("-").to_owned();
        let connected = if peer["connected"].as_bool() == Some(true) { "yes" } else { "no" };
        let listed = |key: &str| {
            let names: Vec<&str> = items(&peer[key]).filter_map(Value::as_str).collect();
            names.join(" ")
        };
        let trouble = match listed("forked") {
            forked if forked.is_empty() => text("trouble"),
            forked => format!("its copy of {forked} was restored from before, and is not heard"),
        };
        let row = [text("name"), text("address"), connected.to_owned(), listed("domains"), trouble];
        table.add_row(row);
    }
    table
}

/// The links to children: one line for each domain that a child follows.
fn children_table(children: &Value) -> Table {
    let mut table = table();
    let head =
        ["CHILD", "ROLE", "ADDRESS", "SINCE", "QUEUED", "DOMAIN", "STAMP", "BEHIND", "DIRECTORY"];
    table.set_header(head);
    for child in items(children) {
        let text = |key: &str| child[key].as_str().unwrap_or("-").to_owned();
        let since = child["connected_s"].as_f64().map_or_else(
            || "-".into(),
            |seconds| HumanDuration(Duration::from_secs_f64(seconds.max(0.0))).to_string(),
        );
        let link =
            [text("name"), text("role"), text("address"), since, bytes(&child["queued_bytes"])];
        let mut followed = false;
        for domain in items(&child["domains"]) {
            followed = true;
            let stream = [
                domain["domain"].as_str().unwrap_or("-").to_owned(),
                number(&domain["stamp"]),
                number(&domain["lag"]),
                registered(&domain["directory"]),
            ];
            table.add_row(link.iter().chain(&stream));
        }
        if !followed {
            table.add_row(&link);
        }
    }
    table
}

/// One row a leaf, named by its path.
pub(crate) fn rows(path: &str, value: &Value, table: &mut Table) {
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
        Value::Null => drop(table.add_row([path, "-"])),
        other => drop(table.add_row([path, &other.to_string()])),
    }
}
