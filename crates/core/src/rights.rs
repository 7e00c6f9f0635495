//! Who may do what with a volume (`docs/decisions/0016-rights.md`).
//!
//! A volume's [`Rights`] name identities, or patterns of them, and what each may do. What holds for
//! somebody is said by the entry that fits best: the name itself, else the longest pattern, else
//! what the origin gives everybody. [`Effective`] is that list with everything added that the origin
//! says: complete, so that whoever has it can answer for any name.

use crate::message::{INSTANCE_MARK, NAME_BYTES_MAX, certificate_of};
use std::collections::BTreeMap;

/// What somebody may do with a volume. Each includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Right {
    /// Nothing: it is not even listed.
    #[default]
    None,
    /// Read it.
    Read,
    /// Write to it.
    Write,
    /// Change its settings and its rights, and delete it.
    Admin,
}

impl Right {
    /// All of them, ascending.
    pub const ALL: [Self; 4] = [Self::None, Self::Read, Self::Write, Self::Admin];

    /// Its name, as people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        }
    }

    /// Its number in messages and records: for good.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::None => 0,
            Self::Read => 1,
            Self::Write => 2,
            Self::Admin => 3,
        }
    }

    /// The right of a number.
    #[must_use]
    pub fn of_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|right| right.number() == number)
    }
}

impl std::fmt::Display for Right {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Right {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|right| right.name() == text);
        named.ok_or_else(|| format!("{text:?} is no right: none, read, write or admin"))
    }
}

/// Most entries of a volume's list.
pub const RIGHTS_MAX: usize = 256;
/// Most administrators of an origin.
pub const ADMINS_MAX: usize = 64;
/// The pattern of everybody.
pub const EVERYBODY: &str = "*";

/// Whether an entry may be called so: a certificate's name, or the beginning of names and `*`.
#[must_use]
pub fn is_pattern(text: &str) -> bool {
    let stem = text.strip_suffix('*').unwrap_or(text);
    let plain = |c: char| !c.is_control() && !matches!(c, '*' | '=' | ',' | INSTANCE_MARK);
    !text.is_empty() && text.len() <= NAME_BYTES_MAX && stem.chars().all(plain)
}

/// Whether whoever fits `inner` fits `outer` too.
fn covers(outer: &str, inner: &str) -> bool {
    match outer.strip_suffix('*') {
        Some(stem) => inner.strip_suffix('*').unwrap_or(inner).starts_with(stem),
        None => outer == inner,
    }
}

/// Why a list of rights is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RightsError {
    /// Too many entries.
    #[error("more than {RIGHTS_MAX} entries: use patterns such as `render-*`")]
    TooMany,
    /// No name and no pattern.
    #[error("{0:?} is no name of a certificate, and no beginning of one with `*` at its end")]
    NoPattern(String),
}

/// One change of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RightsEdit {
    /// Whose: a name or a pattern.
    pub who: String,
    /// What it may do from now on; none: its entry goes, and what else fits holds.
    pub right: Option<Right>,
}

/// A list of names and patterns with their rights, ascending by name, each once; at most
/// [`RIGHTS_MAX`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rights {
    entries: Vec<(String, Right)>,
}

impl Rights {
    /// The list of these entries; of two of one name the last holds.
    pub fn new(
        entries: impl IntoIterator<Item = (String, Right)>,
        most: usize,
    ) -> Result<Self, RightsError> {
        let mut list = BTreeMap::new();
        for (who, right) in entries {
            if !is_pattern(&who) {
                return Err(RightsError::NoPattern(who));
            }
            list.insert(who, right);
            if list.len() > most {
                return Err(RightsError::TooMany);
            }
        }
        Ok(Self { entries: list.into_iter().collect() })
    }

    /// The list after these changes.
    pub fn edited(&self, edits: &[RightsEdit]) -> Result<Self, RightsError> {
        let mut entries: BTreeMap<String, Right> = self.entries.iter().cloned().collect();
        for RightsEdit { who, right } in edits {
            match right {
                Some(right) => entries.insert(who.clone(), *right),
                None => entries.remove(who),
            };
        }
        Self::new(entries, RIGHTS_MAX)
    }

    /// Names and patterns with their rights, ascending by name.
    pub fn entries(&self) -> impl Iterator<Item = (&str, Right)> + '_ {
        self.entries.iter().map(|(who, right)| (who.as_str(), *right))
    }

    /// How many entries it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing was said.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What the entry says that fits a certificate's name best; none: no one fits.
    #[must_use]
    pub fn of(&self, certificate: &str) -> Option<Right> {
        let exact = self.entries.binary_search_by(|(who, _)| who.as_str().cmp(certificate));
        if let Ok(place) = exact {
            return Some(self.entries[place].1);
        }
        let patterns = self.entries.iter().filter(|(who, _)| who.ends_with('*'));
        let fitting = patterns.filter(|(who, _)| covers(who, certificate));
        fitting.max_by_key(|(who, _)| who.len()).map(|(_, right)| *right)
    }
}

/// What an origin says of all its volumes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// What everybody may do of whom a volume's list says nothing.
    pub default: Right,
    /// Who may do everything, and make volumes: names and patterns. At most [`ADMINS_MAX`].
    pub admins: Vec<String>,
}

impl Default for Access {
    /// Everybody may do everything.
    fn default() -> Self {
        Self { default: Right::Admin, admins: Vec::new() }
    }
}

impl Access {
    /// What holds with a volume's list.
    #[must_use]
    pub fn effective(&self, rights: &Rights) -> Effective {
        let mut entries: BTreeMap<String, Right> = rights.entries.iter().cloned().collect();
        entries.entry(EVERYBODY.into()).or_insert(self.default);
        for admin in &self.admins {
            for (who, right) in &mut entries {
                if covers(admin, who) {
                    *right = Right::Admin;
                }
            }
            entries.insert(admin.clone(), Right::Admin);
        }
        Effective::of_list(Rights { entries: entries.into_iter().collect() })
    }

    /// Whether a certificate's holder may make volumes.
    #[must_use]
    pub fn may_create(&self, certificate: &str) -> bool {
        self.effective(&Rights::default()).of(certificate) == Right::Admin
    }
}

/// A complete list: it answers for every name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Effective {
    list: Rights,
    /// What everybody has, whoever it is.
    least: Right,
}

impl Effective {
    /// The most entries of one.
    pub const ENTRIES_MAX: usize = RIGHTS_MAX + ADMINS_MAX + 1;

    /// Of a list as a parent told it: whom it does not name has none.
    #[must_use]
    pub fn of_list(list: Rights) -> Self {
        let everybody = list.of(EVERYBODY).unwrap_or_default();
        let least = list.entries().map(|(_, right)| right).min().unwrap_or_default();
        Self { least: least.min(everybody), list }
    }

    /// The same for everybody.
    #[must_use]
    pub fn same(right: Right) -> Self {
        Self::of_list(Rights { entries: vec![(EVERYBODY.into(), right)] })
    }

    /// What a node of this name (its instance does not matter) may do.
    #[must_use]
    pub fn of(&self, name: &str) -> Right {
        if self.least == Right::Admin {
            return Right::Admin;
        }
        self.list.of(certificate_of(name)).unwrap_or_default()
    }

    /// What everybody may do at least.
    #[must_use]
    pub fn least(&self) -> Right {
        self.least
    }

    /// Whether somebody may administer.
    #[must_use]
    pub fn has_admin(&self) -> bool {
        self.list.entries().any(|(_, right)| right == Right::Admin)
    }

    /// The list without its names, as somebody is told it who may know his own right alone, or none
    /// above `most`.
    #[must_use]
    pub fn capped(&self, most: Right) -> Self {
        if most == Right::None {
            return Self::same(most);
        }
        let entries = self.list.entries.iter().map(|(who, right)| (who.clone(), *right.min(&most)));
        Self::of_list(Rights { entries: entries.collect() })
    }

    /// As a list.
    #[must_use]
    pub fn list(&self) -> &Rights {
        &self.list
    }
}

/// Somebody may not do what he asks for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "{who} may not {} volume {volume} (it has {has}, and needs {needs}): an administrator of it gives the right with `larder volume rights {volume} --grant {who}={needs}`", verb(*.needs)
)]
pub struct Denied {
    /// The volume's name, or its id where no name is known.
    pub volume: String,
    /// Whose right is short: the name of a certificate. That of a relay, if it is the relay's.
    pub who: String,
    /// The right it has.
    pub has: Right,
    /// The right it needs.
    pub needs: Right,
}

fn verb(needs: Right) -> &'static str {
    match needs {
        Right::None | Right::Read => "read",
        Right::Write => "write to",
        Right::Admin => "administer",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(&str, Right)]) -> Rights {
        let entries = entries.iter().map(|(who, right)| ((*who).to_owned(), *right));
        Rights::new(entries, RIGHTS_MAX).expect("a list")
    }

    #[test]
    fn the_best_fit_holds() {
        let rights = list(&[
            ("render-*", Right::Read),
            ("render-7", Right::Write),
            ("render-1*", Right::None),
            ("*", Right::None),
        ]);
        let effective = Access::default().effective(&rights);
        assert_eq!(effective.of("render-7"), Right::Write);
        assert_eq!(effective.of("render-7/mount"), Right::Write);
        assert_eq!(effective.of("render-2"), Right::Read);
        assert_eq!(effective.of("render-12"), Right::None);
        assert_eq!(effective.of("alice"), Right::None);
        assert_eq!(effective.least(), Right::None);
    }

    #[test]
    fn administrators_of_the_origin_pass_every_entry() {
        let access = Access { default: Right::Read, admins: vec!["ops*".into(), "eve".into()] };
        let rights = list(&[("ops-2", Right::None), ("eve", Right::None), ("bob", Right::Write)]);
        let effective = access.effective(&rights);
        let of = |name| effective.of(name);
        assert_eq!([of("ops-1"), of("ops-2"), of("eve")], [Right::Admin; 3]);
        assert_eq!((of("bob"), of("carol")), (Right::Write, Right::Read));
        assert!(access.may_create("ops-2") && !access.may_create("bob"));
        assert_eq!(effective.capped(Right::Read).of("ops-1"), Right::Read);
        assert_eq!(effective.capped(Right::None), Effective::same(Right::None));
    }

    #[test]
    fn without_configuration_everybody_may_do_everything() {
        let effective = Access::default().effective(&Rights::default());
        assert_eq!((effective.least(), effective.of("anybody")), (Right::Admin, Right::Admin));
        assert!(Access::default().may_create("anybody"));
    }

    #[test]
    fn lists_are_bounded_and_checked() {
        let edit = |who: &str, right| RightsEdit { who: who.into(), right };
        for bad in ["", "a*b", "a/b", "a=b", "a,b", &"x".repeat(NAME_BYTES_MAX + 1)] {
            let edits = [edit(bad, Some(Right::Read))];
            assert!(Rights::default().edited(&edits).is_err(), "{bad:?} is no pattern");
        }
        let many: Vec<_> =
            (0..=RIGHTS_MAX).map(|n| edit(&format!("n{n}"), Some(Right::Read))).collect();
        assert_eq!(Rights::default().edited(&many), Err(RightsError::TooMany));
        let some = Rights::default().edited(&many[1..]).expect("as many as may be");
        let less = some.edited(&[edit("n1", None), edit("other", Some(Right::None))]);
        assert_eq!(less.map(|list| (list.len(), list.of("n1"))), Ok((RIGHTS_MAX, None)));
    }
}
