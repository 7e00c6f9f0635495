//! The command as a program: its help, its exit codes for wrong usage.

use std::process::{Command, Output};

fn larder(words: &[&str]) -> Output {
    let binary = env!("CARGO_BIN_EXE_larder");
    Command::new(binary).args(words).output().expect("the command was built with this test")
}

/// Scripts branch on exit codes: the help names them, and every command has a help that ends with
/// success.
#[test]
fn the_help_tells_of_every_command_and_of_the_exit_codes() {
    let help = larder(&["--help"]);
    assert!(help.status.success());
    let text = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(text.contains("Exit codes"), "{text}");
    for command in ["ca", "origin", "relay", "node", "mount", "volume", "status", "version"] {
        assert!(text.contains(&format!("\n  {command} ")), "{command} is not in the help:\n{text}");
        assert!(larder(&[command, "--help"]).status.success(), "{command} has no help");
    }
}

/// Cargo compiles one core for all packages of a call: a release of the whole workspace had the
/// simulator's faults in the command, as switches that anybody with a debugger could turn. The
/// command says so now, and a release build with them fails.
#[test]
fn the_version_tells_whether_planted_faults_are_compiled_in() {
    let told = larder(&["version", "--json"]);
    assert!(told.status.success());
    let text = String::from_utf8_lossy(&told.stdout).into_owned();
    let faults = larder_core::machine::Faults::COMPILED_IN;
    assert!(text.contains(&format!("\"faults\":{faults}")), "{text}");
    assert!(text.contains(env!("CARGO_PKG_VERSION")), "{text}");
}

#[test]
fn wrong_usage_is_told_from_failure() {
    for words in [&["nonsense"][..], &["mount"], &["volume", "check"], &["origin", "--set", "x"]] {
        assert_eq!(larder(words).status.code(), Some(2), "{words:?}");
    }
}
