//! The guides, line by line: what they say to type is typed, in their order, as root, in folders and on
//! a network of its own.

use crate::common::binary;
use anyhow::{Context, Result, ensure};
use larder_harness::site::within;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const GUIDES: [&str; 2] = ["operator.md", "user.md"];
/// Folders that the guides use, and that are this test's own here.
const FOLDERS: [&str; 6] =
    ["/etc/larder", "/var/lib/larder", "/var/log/larder", "/run/larder", "/mnt", "/tmp"];
/// Where the command is installed.
const PROGRAMS: &str = "/usr/local/bin";
const LIMIT: Duration = Duration::from_secs(180);

/// The blocks of a guide that are to be run, each with its line.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut inside = false;
    for (number, line) in text.lines().enumerate() {
        match line {
            "```sh" => {
                inside = true;
                blocks.push((number + 2, String::new()));
            }
            "```" => inside = false,
            _ if inside => {
                let (_, block) = blocks.last_mut().expect("one was begun");
                block.push_str(line);
                block.push('\n');
            }
            _ => {}
        }
    }
    blocks
}

/// A guide is a promise that what it says works. Each of its commands ends with success, or this does
/// not.
#[test]
fn the_guides_can_be_typed() -> Result<()> {
    let guides = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides");
    let mut script = String::from("set -euo pipefail\nip link set lo up\n");
    writeln!(script, "mount -t tmpfs none {PROGRAMS}")?;
    writeln!(script, "cp '{}' {PROGRAMS}/larder", binary().display())?;
    for own in FOLDERS {
        writeln!(script, "mount -t tmpfs -o mode=0755 none {own}")?;
    }
    // Where it stood is out of reach by now.
    writeln!(script, "cd /")?;
    let mut count = 0;
    for guide in GUIDES {
        let text = fs::read_to_string(guides.join(guide)).context("docs/guides")?;
        for (line, block) in blocks(&text) {
            writeln!(script, "echo '== {guide}:{line}' >&2\n{block}")?;
            count += 1;
        }
    }
    ensure!(count >= 10, "only {count} blocks: are they marked?");
    let made: Vec<&str> = FOLDERS.into_iter().filter(|own| !Path::new(own).exists()).collect();
    for own in &made {
        fs::create_dir_all(own)?;
    }
    let search = format!("{PROGRAMS}:{}", std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("unshare");
    shell
        .args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["bash", "-c", &script])
        .env("PATH", search)
        .env_remove("LARDER_BINARY")
        .stdin(Stdio::null());
    let ended = within(LIMIT, "the guides", move || shell.output());
    for own in made {
        // Another test may use it by now.
        let _left = fs::remove_dir(own);
    }
    let ended = ended??;
    let told = String::from_utf8_lossy(&ended.stderr);
    let tail: Vec<&str> = told.lines().rev().take(20).collect();
    let tail: Vec<&str> = tail.into_iter().rev().collect();
    ensure!(ended.status.success(), "{}:\n{}", ended.status, tail.join("\n"));
    Ok(())
}
