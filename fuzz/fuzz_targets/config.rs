//! Any text as a configuration: a file, and after a line `---` in each line a variable of the
//! environment (`LARDER_NODE_MEMORY=1GiB`) or a flag (`--node.memory=1GiB`). What is accepted says
//! the same in every layer: written as a file, as variables and as flags.
#![no_main]

use larder::config::{Config, ConfigError, DefaultRight, Names, Period, Size};
use larder_core::message::is_node_name;
use libfuzzer_sys::fuzz_target;
use std::fmt::{Debug, Display};
use std::str::FromStr;
use std::sync::LazyLock;
use toml::{Table, Value};

/// Keys and their values as text.
type Pairs = Vec<(String, String)>;

/// What holds where nothing is said.
static DEFAULTS: LazyLock<Pairs> = LazyLock::new(|| flags_of(&Config::default()));

fuzz_target!(|data: &[u8]| {
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
