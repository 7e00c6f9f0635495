//! Any text as a configuration: a file, and after a line `---` in each line a variable of the
//! environment (`LARDER_NODE_MEMORY=1GiB`) or a flag (`--node.memory=1GiB`). What is accepted says
//! the same in every layer: written as a file, as variables and as flags. And each line as a word with which
//! `mount` starts us, and its pieces between commas as options of `-o`.
#![no_main]

// What the command takes from the crate of that name, which would double what is built here.
extern crate self as fuser;

#[path = "../../crates/larder-cli/src/kernel_options.rs"]
mod kernel_options;

use kernel_options::{KernelOptions, words};
use larder::config::{Config, ConfigError, DefaultRight, Names, Period, Size};
use larder_core::message::is_node_name;
use libfuzzer_sys::fuzz_target;
use std::ffi::{OsStr, OsString};
use std::fmt::{Debug, Display};
use std::os::unix::ffi::OsStrExt;
use std::str::FromStr;
use std::sync::LazyLock;
use toml::{Table, Value};

/// The kernel's options that are told it as they are.
#[derive(Clone, PartialEq, Eq, Debug)]
#[rustfmt::skip]
pub enum MountOption {
    Dev, NoDev, Suid, NoSuid, Exec, NoExec, Atime, NoAtime, Sync, Async, DirSync,
}

/// Keys and their values as text.
type Pairs = Vec<(String, String)>;

/// What holds where nothing is said.
static DEFAULTS: LazyLock<Pairs> = LazyLock::new(|| flags_of(&Config::default()));

fuzz_target!(|data: &[u8]| {
    started_by_mount(data);
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    for piece in text.split(['\n', '=', '"', '\'']) {
        same_again::<Size>(piece);
        same_again::<Period>(piece);
        same_again::<Names>(piece);
        same_again::<DefaultRight>(piece);
    }
    let (file, lines) = text.split_once("\n---\n").unwrap_or((text, ""));
    let (mut environment, mut flags) = (Pairs::new(), Pairs::new());
    for (key, value) in lines.lines().filter_map(|line| line.split_once('=')) {
        let (layer, key) = match key.strip_prefix("--") {
            Some(key) => (&mut flags, key),
            None => (&mut environment, key),
        };
        layer.push((key.to_owned(), value.to_owned()));
    }
    match Config::from_text(file, "fuzzed.toml", environment, flags) {
        Ok(config) => accepted(&config),
        Err(ConfigError::Invalid { layer, detail }) => {
            assert!(!layer.is_empty() && !detail.is_empty(), "{layer:?}: {detail:?}");
        }
        Err(other) => panic!("no file is read: {other}"),
    }
});

/// What is read from a text is written so that it is read again.
fn same_again<T: FromStr + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        let written = value.to_string();
        assert_eq!(written.parse::<T>().ok(), Some(value), "{text:?} was written as {written:?}");
    }
}

fn accepted(config: &Config) {
    let read = |text: &str, environment: Pairs, flags: Pairs| {
        let config = Config::from_text(text, "written.toml", environment, flags);
        config.unwrap_or_else(|error| panic!("what was accepted is refused: {error}"))
    };
    assert_eq!(&read(&config.to_toml(), Pairs::new(), Pairs::new()), config, "as a file");
    let mut flags = flags_of(config);
    flags.retain(|pair| !DEFAULTS.contains(pair));
    let variable = |(key, value): &(String, String)| {
        (format!("LARDER_{}", key.replace('.', "_").to_uppercase()), value.clone())
    };
    let variables = flags.iter().map(variable).collect();
    assert_eq!(&read("", variables, Pairs::new()), config, "as variables");
    assert_eq!(&read("", Pairs::new(), flags), config, "as flags");

    // What the processes are started with.
    let (node, origin, relay) = (config.node(), config.origin(), config.relay());
    assert!([&node.name, &origin.name, &relay.name].iter().all(|name| **name == config.name));
    let full = node.full_name();
    assert!(is_node_name(&full), "{full:?} is no name of a node");
    let (name, instance) = full.split_once('/').unwrap_or((&full, ""));
    assert_eq!((name, instance), (&*config.name, &*config.node.instance), "the name says another");
    assert!(!node.for_task("fuzz").node.instance.is_empty());
}

/// Of the words of `mount` those are ours that say something to us, the kernel's options the last of them.
fn started_by_mount(data: &[u8]) {
    let lines: Vec<&[u8]> = data.split(|byte| *byte == b'\n').collect();
    let given = |name: &str| {
        let own = [OsString::from(name)].into_iter();
        own.chain(lines.iter().map(|line| OsStr::from_bytes(line).to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(words(given("/usr/bin/larder")), Some(given("/usr/bin/larder")));
    let unmount = words(given("umount.fuse.larder")).expect("it is never faked");
    assert!(unmount.starts_with(&["larder".into(), "unmount".into()]));
    if let Some(words) = words(given("/sbin/mount.larder")) {
        assert!(words.starts_with(&["larder".into(), "mount".into()]));
        let (mut flags, said) = (&words[2..], String::from_utf8_lossy(data).replace('_', "-"));
        if let [before @ .., option, list] = flags
            && option == "-o"
        {
            flags = before;
            let list = list.to_str().expect("they are known").split(',');
            options(&list.filter(|word| *word != "remount").collect::<Vec<_>>(), true);
        }
        for word in flags {
            assert!(word != "-o", "there is one list");
            let word = word.to_string_lossy().replace('_', "-");
            let told = word.strip_prefix("--set=").or_else(|| word.strip_prefix("--"));
            assert!(said.contains(told.unwrap_or(&word)), "{word:?} was never said");
        }
    } else {
        assert!(lines.contains(&b"-f".as_slice()), "nobody asked for nothing");
    }
    let pieces = data.split(|byte| matches!(byte, b'\n' | b','));
    options(&pieces.filter_map(|piece| std::str::from_utf8(piece).ok()).collect::<Vec<_>>(), false);
}

/// Of options that contradict each other the later one counts; said twice they say the same.
fn options(given: &[&str], are_known: bool) {
    let given: Vec<String> = given.iter().map(|word| (*word).to_owned()).collect();
    match KernelOptions::parse(&given) {
        Err(ConfigError::Invalid { layer, detail }) => {
            assert!(!are_known, "{layer}: {detail}");
            let refused = layer.strip_prefix("-o ").expect("it says which");
            assert!(given.iter().any(|word| word == refused) && !detail.is_empty());
        }
        Err(other) => panic!("no file is read: {other}"),
        Ok(options) => {
            let last = given.iter().rev().find(|word| matches!(word.as_str(), "ro" | "rw"));
            assert_eq!(options.read_only, last.map(|word| word == "ro"));
            assert_eq!(options.allow_other, given.iter().any(|word| word == "allow_other"));
            assert!(options.flags.len() <= 6, "two contradict each other: {options:?}");
            assert_eq!(KernelOptions::parse(&[&given[..], &given].concat()).ok(), Some(options));
        }
    }
}

/// All keys of a configuration with their sections, and their values as somebody would type them.
fn flags_of(config: &Config) -> Pairs {
    let table: Table = config.to_toml().parse().expect("written as a file");
    let mut flags = Pairs::new();
    for (name, value) in table {
        match value {
            Value::Table(section) => {
                let pairs = section.into_iter();
                flags.extend(pairs.map(|(key, value)| (format!("{name}.{key}"), typed(value))));
            }
            value => flags.push((name, typed(value))),
        }
    }
    flags
}

fn typed(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}
