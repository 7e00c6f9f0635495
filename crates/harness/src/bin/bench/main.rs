//! Larder's figures, each with its rival measured in the same run.

mod commit;
mod local_read;
mod memory;
mod servers;

use anyhow::{Result, bail};
use serde_json::Value;

const USAGE: &str = "usage: bench NAME [--json]\n\n\
  local-read  a cached object read inside a transaction, beside a locked hash map\n\
  commit      durable small commits between processes, beside an append and sync of the same bytes\n\
  memory      1 GiB of cached pages, beside the bytes of the pages themselves\n\
  simulator   events a second with checks on";

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [command, tls, parent, runs] = &words[..]
        && command == "memory-node"
    {
        return memory::node(tls, parent, runs).await;
    }
    let json = words.iter().any(|word| word == "--json");
    let names: Vec<_> = words.iter().filter(|word| *word != "--json").collect();
    let [name] = names[..] else { bail!("{USAGE}") };
    let result: Value = match name.as_str() {
        "memory" => memory::run().await?,
        "local-read" => local_read::run().await?,
        "commit" => commit::run().await?,
        "simulator" => return simulator(json),
        _ => bail!("no benchmark {name}\n{USAGE}"),
    };
    if json {
        println!("{result}");
    } else {
        println!("{result:#}");
    }
    Ok(())
}

/// The simulator measures itself.
fn simulator(json: bool) -> Result<()> {
    let binary = larder_harness::larder_binary()?.with_file_name("larder-sim");
    let mut command = std::process::Command::new(&binary);
    command.arg("bench");
    if json {
        command.arg("--json");
    }
    let status = command.status()?;
    if !status.success() {
        bail!("{} ended with {status}", binary.display());
    }
    Ok(())
}
