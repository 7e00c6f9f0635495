//! The benchmarks that count allocations, which costs an atomic addition each: apart from those
//! that measure throughput.

mod local_read;
mod memory;

use anyhow::{Result, bail};

#[tokio::main]
async fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [command, tls, parent, runs] = &words[..]
        && command == "memory-node"
    {
        println!("{}", larder_harness::resident::node(tls, parent, runs).await?);
        return Ok(());
    }
    let json = words.iter().any(|word| word == "--json");
    let result = match words.first().map(String::as_str) {
        Some("memory") => memory::run().await?,
        Some("local-read") => local_read::run().await?,
        _ => bail!("bench-counted is run by `bench`"),
    };
    println!("{}", if json { result.to_string() } else { format!("{result:#}") });
    Ok(())
}
