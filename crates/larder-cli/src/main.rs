//! The `larder` command.

mod args;
mod background;
mod backup;
mod bench;
mod bundle;
mod ca;
mod documents;
mod exit;
mod group;
mod kernel_options;
mod limits;
mod mount;
mod mounting;
mod out;
mod owner;
mod progress;
mod serve;
mod settings;
mod standing_mounts;
mod status;
mod store;
mod top;
mod tree;
mod unmounting;
mod version;
mod volume;

use anyhow::Result;
use args::{Cli, Command};
use clap::Parser;
use std::ffi::OsString;
use std::process::ExitCode;

/// Most messages are freed by another thread than the one that made them: the system's allocator
/// holds a lock for each, and a sixth of the time of a busy origin went there. This one also gives back
/// what is freed in such a way, with mixed sizes and for hours (bug 198).
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[tokio::main]
async fn main() -> ExitCode {
    limits::in_small_pages();
    let Some(words) = kernel_options::words(std::env::args_os().collect()) else {
        return ExitCode::SUCCESS;
    };
    let ended = run(Cli::parse_from(&words), &words).await;
    larder::log::flush();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            out::fault(format_args!("larder: {error:#}"));
            ExitCode::from(exit::code(&error))
        }
    }
}

async fn run(cli: Cli, words: &[OsString]) -> Result<()> {
    match &cli.command {
        Command::Ca(command) => ca::run(command, &cli.common),
        Command::Origin(arguments) => serve::origin(arguments, &cli.common).await,
        Command::Relay(arguments) => serve::relay(arguments, &cli.common).await,
        Command::Node(arguments) => serve::node(arguments, &cli.common).await,
        Command::Mount(arguments) if arguments.foreground => {
            mounting::run(arguments, &cli.common, |note| {
                note.into_iter().for_each(|note| out::fault(format!("larder: {note}")));
                Ok(())
            })
            .await
        }
        Command::Mount(arguments) if cli.in_background => {
            background::run(arguments, &cli.common).await
        }
        Command::Mount(arguments) => background::start(arguments, &cli.common, &words[1..]).await,
        Command::Unmount(arguments) => unmounting::run(arguments).await,
        Command::Volume(command) => volume::run(command, &cli.common).await,
        Command::Status(arguments) => status::run(arguments, &cli.common).await,
        Command::Group(arguments) => group::run(arguments, &cli.common).await,
        Command::Top(arguments) => top::run(arguments, &cli.common).await,
        Command::Bench(command) => bench::run(command, &cli.common).await,
        Command::SupportBundle(arguments) => bundle::run(arguments, &cli.common).await,
        Command::Manual { folder } => documents::manual(folder),
        Command::Completions { shell } => documents::completions(*shell),
        Command::Version => version::print(cli.common.json),
    }
}
