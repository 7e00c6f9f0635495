//! `larder group`.

use crate::args::{Common, StatusArgs};
use crate::out;
use crate::status::{bytes, items, number, rows, table, told};
use anyhow::{Result, ensure};
use comfy_table::Table;
use serde_json::Value;

pub(crate) async fn run(arguments: &StatusArgs, common: &Common) -> Result<()> {
    let address = &arguments.http;
    let mut group = told(address).await?.get("group").cloned().unwrap_or_default();
    ensure!(
        !group.is_null(),
        "the process at {address} is in no group: name one in group.name (--group) where it is started"
    );
    if common.json {
        return out::line(group);
    }
    let members = take_members(&mut group);
    let there = take_there(&mut group);
    let mut redirects = group.as_object_mut().and_then(|group| group.remove("redirects"));
    let redirected = redirects.as_mut().map(take_members);
    let mut general = table();
    rows("", &group, &mut general);
    if let Some(redirects) = &redirects {
        rows("redirects", redirects, &mut general);
    }
    out::line(general)?;
    for table in [there, Some(members), redirected].into_iter().flatten() {
        out::line(format_args!("\n{table}"))?;
    }
    Ok(())
}

/// Who is there, one a line, of a group that finds its redirector itself; taken out of what is told of it.
fn take_there(group: &mut Value) -> Option<Table> {
    let there = group.get_mut("election")?.as_object_mut()?.remove("there")?;
    let mut table = table();
    table.set_header(["PROCESS", "ADDRESS", "MAY BE", "REDIRECTOR", "LINE"]);
    for one in items(&there) {
        let text = |key: &str| one[key].as_str().unwrap_or("-").to_owned();
        let marks = if one["redirector"] == true { "yes" } else { "" };
        let line = if one["cut"] == true { "cut" } else { "" };
        let (marks, line) = (marks.to_owned(), line.to_owned());
        table.add_row([text("name"), text("address"), text("candidacy"), marks, line]);
    }
    Some(table)
}

/// A group's members, one a line, taken out of what is told of it.
pub(crate) fn take_members(group: &mut Value) -> Table {
    let members = group.get_mut("members").map(Value::take).unwrap_or_default();
    if let Some(fields) = group.as_object_mut() {
        fields.remove("members");
    }
    let mut table = table();
    let by_redirector = group["role"] != "member";
    match by_redirector {
        true => table.set_header([
            "MEMBER",
            "ADDRESS",
            "REACHES",
            "PAGES",
            "DIRECTORY",
            "HELPING",
            "ASKING",
            "CHOSEN",
        ]),
        false => table.set_header(["NEIGHBOUR", "ADDRESS", "REACHED"]),
    };
    for member in items(&members) {
        let text = |key: &str| member[key].as_str().unwrap_or("-").to_owned();
        let who = [text("name"), text("address")].into_iter();
        let told: Vec<String> = match by_redirector {
            true => vec![
                number(&member["reaches"]),
                number(&member["pages"]),
                bytes(&member["bytes"]),
                number(&member["helping"]),
                number(&member["asking"]),
                number(&member["chosen"]),
            ],
            false => vec![if member["reached"] == true { "yes" } else { "no" }.to_owned()],
        };
        table.add_row(who.chain(told));
    }
    table
}
