//! Man pages and shell completions, made from the command's own definition.

use crate::args::Cli;
use crate::out;
use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use std::path::Path;

/// `larder manual`.
pub(crate) fn manual(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    clap_mangen::generate_to(Cli::command(), folder)
        .with_context(|| format!("{}: no pages can be written there", folder.display()))
}

/// `larder completions`.
pub(crate) fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "larder", &mut script);
    out::line(String::from_utf8(script)?.trim_end())
}
