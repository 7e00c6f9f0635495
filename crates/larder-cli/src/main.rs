//! The `larder` command.

mod args;
mod ca;
mod exit;
mod mount;
mod mounting;
mod out;
mod serve;
mod settings;
mod status;
mod store;
mod tree;
mod version;
mod volume;

use anyhow::Result;
use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

/// Most messages are freed by another thread than the one that made them: the system's allocator
/// holds a lock for each, and a sixth of the time of a busy origin went there.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            out::fault(format_args!("larder: {error:#}"));
            ExitCode::from(exit::code(&error))
        }
    }
}

async fn run(cli: Cli) -> Result<()> {
    match &cli.command {
        Command::Ca(command) => ca::run(command),
        Command::Origin(arguments) => serve::origin(arguments, &cli.common).await,
        Command::Relay(arguments) => serve::relay(arguments, &cli.common).await,
        Command::Node(arguments) => serve::node(arguments, &cli.common).await,
        Command::Mount(arguments) => mounting::run(arguments, &cli.common).await,
        Command::Volume(command) => volume::run(command, &cli.common).await,
        Command::Status(arguments) => status::run(arguments, &cli.common).await,
        Command::Version => version::print(cli.common.json),
    }
}
