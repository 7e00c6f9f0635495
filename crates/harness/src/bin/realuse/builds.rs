//! A build by `cargo`, with sources and target folder at a mount: locks, memory-mapped programs, times
//! that say what is fresh; and builds at two sites that share one target folder.

use super::{Sites, at_both, run};
use anyhow::{Result, ensure};
use larder_harness::process::wait_until;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const MODULES: usize = 24;

/// Two crates, one of which uses the other.
fn project(at: &Path) -> Result<()> {
    for (name, more) in
        [("parts", ""), ("whole", "[dependencies]\nparts = { path = \"../parts\" }\n")]
    {
        fs::create_dir_all(at.join(name).join("src"))?;
        let about = format!(
            "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2021\"\n{more}"
        );
        fs::write(at.join(name).join("Cargo.toml"), about)?;
    }
    fs::write(
        at.join("Cargo.toml"),
        "[workspace]\nresolver = \"2\"\nmembers = [\"parts\", \"whole\"]\n",
    )?;
    let mut root = String::new();
    for number in 0..MODULES {
        let text = format!(
            "pub fn value() -> u64 {{ {number} }}\n\
             #[test]\nfn is_itself() {{ assert_eq!(value(), {number}); }}\n"
        );
        fs::write(at.join(format!("parts/src/m{number}.rs")), text)?;
        writeln!(root, "pub mod m{number};")?;
    }
    fs::write(at.join("parts/src/lib.rs"), &root)?;
    let sum: Vec<_> = (0..MODULES).map(|number| format!("parts::m{number}::value()")).collect();
    let main = format!("fn main() {{ println!(\"{{}}\", {}); }}\n", sum.join(" + "));
    Ok(fs::write(at.join("whole/src/main.rs"), main)?)
}

fn cargo(at: &Path, target: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(at).args(words).args(["--offline", "-v"]);
    command.env("CARGO_TARGET_DIR", target).env("CARGO_INCREMENTAL", "0").env_remove("RUSTFLAGS");
    command
}

pub(super) fn run_all(sites: &Sites) -> Result<Value> {
    let roots = sites.at("cargo");
    fs::create_dir(&roots[0])?;
    wait_until("the folder", Duration::from_secs(30), || Ok(fs::metadata(&roots[1]).map(|_| ())?))?;
    let sum = (0..MODULES).sum::<usize>().to_string();
    at_both(|site| {
        let at = roots[site].join(format!("project-{site}"));
        fs::create_dir(&at)?;
        project(&at)?;
        // Of one folder for both: each waits while the other holds its lock.
        let target = roots[site].join("target");
        run(&mut cargo(&at, &target, &["build"]))?;
        let printed = run(&mut cargo(&at, &target, &["run"]))?;
        ensure!(printed.lines().any(|line| line == sum), "the program says {printed}");
        run(&mut cargo(&at, &target, &["test", "--workspace"]))
    })?;
    let (at, target) = (roots[0].join("project-0"), roots[0].join("own"));
    run(&mut cargo(&at, &target, &["build"]))?;
    let again = run(&mut cargo(&at, &target, &["build"]))?;
    ensure!(again.contains("Fresh whole") && !again.contains("Compiling"), "built anew: {again}");
    fs::write(at.join("parts/src/m0.rs"), "pub fn value() -> u64 { 1000 }\n")?;
    let changed = run(&mut cargo(&at, &target, &["run"]))?;
    let sum = ((0..MODULES).sum::<usize>() + 1000).to_string();
    ensure!(changed.lines().any(|line| line == sum), "not built anew: {changed}");
    // The program that one site built runs at the other.
    let program = roots[1].join("own/debug/whole");
    wait_until("the program at the second site", Duration::from_secs(30), || {
        ensure!(run(&mut Command::new(&program))?.trim() == sum, "another sum");
        Ok(())
    })?;
    Ok(json!({ "modules": MODULES }))
}
