//! Any text as the configuration's file, and any words as its variables and flags: a line of
//! `KEY=VALUE` each, behind a line of dashes.
#![no_main]

use larder::config::{Config, ConfigError, DefaultRight, Names, Period, Size};
use libfuzzer_sys::fuzz_target;
use std::fmt::{Debug, Display};
use std::str::FromStr;

/// What is read is written so that the same is read.
fn round<T: FromStr<Err = String> + Display + PartialEq + Debug>(text: &str) {
    match text.parse::<T>() {
        Ok(value) => assert_eq!(value.to_string().parse(), Ok(value), "of {text:?}"),
        Err(why) => assert!(!why.is_empty()),
    }
}

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (file, words) = text.split_once("\n---\n").unwrap_or((text, ""));
    let pairs = |of_environment: bool| {
        let words = words.lines().filter_map(|line| line.split_once('='));
        let words = words.map(|(key, value)| (key.to_owned(), value.to_owned()));
        words.filter(move |(key, _)| key.starts_with("LARDER_") == of_environment)
    };
    for (_, value) in words.lines().filter_map(|line| line.split_once('=')) {
        round::<Size>(value);
        round::<Period>(value);
        round::<Names>(value);
        round::<DefaultRight>(value);
    }
    match Config::from_text(file, "larder.toml", pairs(true), pairs(false)) {
        Ok(config) => {
            let again = Config::from_text(&config.to_toml(), "again", [], []);
            assert_eq!(again.expect("what was accepted is accepted again"), config);
        }
        Err(ConfigError::Invalid { layer, detail }) => {
            assert!(!layer.is_empty() && !detail.is_empty());
        }
        Err(error) => panic!("no file was read: {error}"),
    }
});
