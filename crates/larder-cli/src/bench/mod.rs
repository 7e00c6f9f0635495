//! `larder bench`: published workloads on volumes of a running origin.

mod oo7;
mod report;

use crate::args::Common;
use anyhow::Result;
use clap::Subcommand;
use oo7::Oo7Command;

#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    /// OO7, engineers who share designs: the workload that BuddyCache was measured by
    #[command(subcommand)]
    Oo7(Oo7Command),
}

pub(crate) async fn run(command: &BenchCommand, common: &Common) -> Result<()> {
    match command {
        BenchCommand::Oo7(command) => oo7::run(command, common).await,
    }
}
