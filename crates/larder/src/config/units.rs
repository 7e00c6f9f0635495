//! Sizes and durations with suffixes, as people write them.

use larder_core::rights::{ADMINS_MAX, Right, is_pattern};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Bytes: `4096`, `8KiB`, `64MiB`, `1.5GiB`; `k`, `M`, `G` and `KB`, `MB`, `GB` are decimal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Size(pub u64);

/// A length of time: `250ms`, `30s`, `5m`, `2h`, `1d`; `0` alone needs no suffix.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Period(pub Duration);

const SIZES: &[(&str, u64)] = &[
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("K", 1000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("KB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

const PERIODS: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];

/// Splits a number from its suffix and multiplies; none: not a number, or too large.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let unit = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(suffix.trim()))?.1;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.len() > 9 || (whole.is_empty() && fraction.is_empty()) {
        return None;
    }
    let parse = |digits: &str| match digits {
        "" => Some(0),
        digits => digits.parse::<u64>().ok(),
    };
    let tenths = 10u64.pow(u32::try_from(fraction.len()).ok()?);
    let fraction = u128::from(parse(fraction)?) * u128::from(unit) / u128::from(tenths);
    let total = u128::from(parse(whole)?) * u128::from(unit) + fraction;
    u64::try_from(total).ok()
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        scaled(text, SIZES)
            .map(Self)
            .ok_or_else(|| format!("`{text}` is no size: write 4096, 64MiB or 1.5GiB"))
    }
}

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "0" {
            return Ok(Self(Duration::ZERO));
        }
        scaled(text, PERIODS)
            .map(|nanos| Self(Duration::from_nanos(nanos)))
            .ok_or_else(|| format!("`{text}` is no length of time: write 250ms, 30s or 5m"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, unit) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            if self.0 != 0 && self.0.trailing_zeros() >= unit {
                return write!(f, "{}{name}", self.0 >> unit);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX);
        for (name, unit) in PERIODS.iter().rev() {
            if nanos != 0 && nanos.is_multiple_of(*unit) {
                return write!(f, "{}{name}", nanos / unit);
            }
        }
        write!(f, "0")
    }
}

/// Names and patterns of certificates, with commas between them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Names(pub Vec<String>);

impl FromStr for Names {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = text.split(',').map(str::trim).filter(|name| !name.is_empty());
        let names: Vec<String> = names.map(str::to_owned).collect();
        match names.iter().find(|name| !is_pattern(name)) {
            Some(bad) => Err(format!(
                "{bad:?} is no name of a certificate, and no beginning of one with `*` at its end"
            )),
            None if names.len() > ADMINS_MAX => Err(format!("more than {ADMINS_MAX} names")),
            None => Ok(Self(names)),
        }
    }
}

impl fmt::Display for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(","))
    }
}

/// A right: `none`, `read`, `write` or `admin`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DefaultRight(pub Right);

impl FromStr for DefaultRight {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self)
    }
}

impl fmt::Display for DefaultRight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

macro_rules! as_text {
    ($($name:ident),*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                #[derive(Deserialize)]
                #[serde(untagged)]
                enum Written { Number(u64), Text(String) }
                let text = match Written::deserialize(deserializer)? {
                    Written::Number(number) => number.to_string(),
                    Written::Text(text) => text,
                };
                text.parse().map_err(serde::de::Error::custom)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )*};
}
as_text!(Size, Period, Names, DefaultRight);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_people_write_and_writes_it_back() {
        for (text, bytes, shown) in [
            ("0", 0, "0"),
            ("4096", 4096, "4KiB"),
            ("1.5 GiB", 3 << 29, "1536MiB"),
            ("64mib", 64 << 20, "64MiB"),
            ("2G", 2_000_000_000, "1953125KiB"),
        ] {
            let size: Size = text.parse().expect(text);
            assert_eq!((size.0, size.to_string().as_str()), (bytes, shown), "{text}");
            assert_eq!(shown.parse::<Size>().expect(shown), size);
        }
        for (text, millis, shown) in [
            ("0", 0, "0"),
            ("250ms", 250, "250ms"),
            ("1.5s", 1500, "1500ms"),
            ("5m", 300_000, "5m"),
            ("24h", 86_400_000, "1d"),
        ] {
            let period: Period = text.parse().expect(text);
            assert_eq!(period.0, Duration::from_millis(millis), "{text}");
            assert_eq!(period.to_string(), shown);
        }
        for text in ["", "x", "1.2.3", "5 parsecs", "99999999999GiB", ".", "-1", "1e9"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
            assert!(text.parse::<Period>().is_err(), "{text}");
        }
        assert!("30".parse::<Period>().is_err(), "a bare number has no unit");
    }
}
