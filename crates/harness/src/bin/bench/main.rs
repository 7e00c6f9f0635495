//! Larder's figures, each with its rival measured in the same run.

mod commit;
mod files;
mod group;
mod versions;

use anyhow::{Result, bail};
use larder_harness::resident;
use serde_json::Value;

const USAGE: &str = "usage: bench NAME [--json]\n\n\
  local-read  a cached object read inside a transaction, beside a locked hash map\n\
  commit      durable small commits between processes, beside an append and sync of the same bytes\n\
  group       crossing a redirector, and pages from a neighbour, beside a direct link to the origin\n\
  import      20,000 small files into a volume, beside `cp -r` and `sync`\n\
  mount       find, grep and a large read at a mount 40 ms away, beside local disk\n\
  create      making, syncing, renaming small files there, beside the line's round trip\n\
  versions    200 objects committed ahead of their stream, beside a locked hash map\n\
  memory      1 GiB of cached pages, beside a locked hash map of the same pages\n\
  simulator   events a second with checks on, beside an empty event loop";

/// As the `larder` command has it: these processes are the nodes.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words[..] {
        // Processes of `bench memory`, with the shipped allocator.
        [command, tls, parent, runs] if command == "memory-node" => {
            println!("{}", resident::node(tls, parent, runs).await?);
            return Ok(());
        }
        // The helper of `bench group`.
        [command, tls, parent, folder] if command == "group-helper" => {
            return group::help(tls, parent, folder).await;
        }
        [command, origin] if command == "group-relay" => return group::relay(origin),
        [command] if command == "memory-rival" => {
            println!("{}", resident::rival()?);
            return Ok(());
        }
        [command] if ["help", "-h", "--help"].contains(&command.as_str()) => {
            println!("{USAGE}");
            return Ok(());
        }
        _ => {}
    }
    let json = words.iter().any(|word| word == "--json");
    let names: Vec<_> = words.iter().filter(|word| *word != "--json").collect();
    let [name] = names[..] else { bail!("{USAGE}") };
    let result: Value = match name.as_str() {
        // A binary of its own: counting allocations would slow the commits down.
        "memory" | "local-read" => return sibling("bench-counted", &[name], json),
        "commit" => commit::run().await?,
        "group" => group::run().await?,
        "versions" => versions::run()?,
        // They wait for processes and file systems, not for tasks.
        "import" => tokio::task::spawn_blocking(files::import).await??,
        "mount" => tokio::task::spawn_blocking(files::mount).await??,
        "create" => tokio::task::spawn_blocking(files::create).await??,
        "simulator" => return sibling("larder-sim", &["bench"], json),
        _ => bail!("no benchmark {name}\n{USAGE}"),
    };
    if json {
        println!("{result}");
    } else {
        println!("{result:#}");
    }
    Ok(())
}

/// A binary beside this one measures, and prints what it found.
fn sibling(name: &str, words: &[&str], json: bool) -> Result<()> {
    let binary = larder_harness::larder_binary()?.with_file_name(name);
    let mut command = std::process::Command::new(&binary);
    command.args(words);
    if json {
        command.arg("--json");
    }
    let status = command.status()?;
    if !status.success() {
        bail!("{} ended with {status}", binary.display());
    }
    Ok(())
}
