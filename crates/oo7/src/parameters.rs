//! How large a database is.

use crate::{Error, Result};

/// The sizes that were published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// 20 atomic parts in a composite part, documents of 2,000 bytes, a manual of 100,000.
    Small,
    /// 200, 20,000 and 1,000,000: BuddyCache's.
    Medium,
}

/// How the objects of a composite part lie in its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Layout {
    /// Each atomic part before the connections that begin there: what one visit reads lies together.
    #[default]
    ByVisit,
    /// All atomic parts, then all connections: in the order in which the published program makes them,
    /// and in which a store that fills pages by time of creation has them lie.
    ByCreation,
}

/// What a database is made of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Parameters {
    /// Atomic parts of each composite part: 1 to 400.
    pub atomic_per_composite: u32,
    /// Connections that begin at each atomic part: 1 to 9.
    pub connections_per_atomic: u32,
    /// Bytes of a composite part's document: up to 1 MiB.
    pub document_bytes: u32,
    /// Bytes of a module's manual: up to 8 MiB.
    pub manual_bytes: u32,
    /// Composite parts of a module of one user: up to 100,000.
    pub composites_per_module: u32,
    /// Assemblies below a complex assembly: 1 to 16.
    pub assemblies_per_assembly: u32,
    /// Levels of a module's assemblies, the base assemblies included: 1 to 10.
    pub levels: u32,
    /// Composite parts that a base assembly uses of its own module, and as many of a shared one:
    /// 1 to 16.
    pub composites_per_base: u32,
    /// Users, with a module each: up to 1,000.
    pub users: u32,
    /// Composite parts for each user of one more module that all share; zero: there is none.
    pub shared_composites_per_user: u32,
    /// Levels of that module's assemblies: 1 to 10.
    pub shared_levels: u32,
    /// How composite parts lie.
    pub layout: Layout,
    /// What is random in it.
    pub seed: u64,
}

/// One module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModulePlan {
    /// Its number, from 0.
    pub number: u32,
    /// Composite parts of it.
    pub composites: u32,
    /// The id of its first one.
    pub first_composite: u32,
    /// The id of its first assembly.
    pub first_assembly: u32,
    /// Levels of its assemblies.
    pub levels: u32,
}

impl Parameters {
    /// A published size with 3, 6 or 9 connections for each part, and one module.
    #[must_use]
    pub fn new(size: Size, connections_per_atomic: u32) -> Self {
        let (atomic, document, manual) = match size {
            Size::Small => (20, 2_000, 100_000),
            Size::Medium => (200, 20_000, 1_000_000),
        };
        Self {
            atomic_per_composite: atomic,
            connections_per_atomic,
            document_bytes: document,
            manual_bytes: manual,
            composites_per_module: 500,
            assemblies_per_assembly: 3,
            levels: 7,
            composites_per_base: 3,
            users: 1,
            shared_composites_per_user: 0,
            shared_levels: 7,
            layout: Layout::ByVisit,
            seed: 7,
        }
    }

    /// One of a few hundred objects, for tests.
    #[must_use]
    pub fn tiny() -> Self {
        Self {
            atomic_per_composite: 5,
            document_bytes: 200,
            manual_bytes: 20_000,
            composites_per_module: 10,
            levels: 3,
            shared_levels: 2,
            ..Self::new(Size::Small, 3)
        }
    }

    /// # Errors
    /// [`Error::Invalid`] names what is out of its range.
    pub fn check(&self) -> Result<()> {
        let ranges = [
            ("atomic parts of a composite part", self.atomic_per_composite, 1..=400),
            ("connections of an atomic part", self.connections_per_atomic, 1..=9),
            ("bytes of a document", self.document_bytes, 0..=1 << 20),
            ("bytes of a manual", self.manual_bytes, 0..=8 << 20),
            ("composite parts of a module", self.composites_per_module, 1..=100_000),
            ("assemblies of an assembly", self.assemblies_per_assembly, 1..=16),
            ("levels of assemblies", self.levels, 1..=10),
            ("levels of the shared module's assemblies", self.shared_levels, 1..=10),
            (
                "composite parts for each user of a shared module",
                self.shared_composites_per_user,
                0..=100_000,
            ),
            ("composite parts of a base assembly", self.composites_per_base, 1..=16),
            ("users", self.users, 1..=1_000),
        ];
        for (what, value, range) in ranges {
            if !range.contains(&value) {
                let (least, most) = (range.start(), range.end());
                return Err(Error::Invalid(format!("{what}: {value} is not {least} to {most}")));
            }
        }
        let (per_base, users) = (u64::from(self.composites_per_base), u64::from(self.users));
        let bases = [self.levels, self.shared_levels].map(|levels| self.base_assemblies(levels));
        let (own, shared) = (self.composites_per_module, self.shared_composites_per_user);
        let composites = (u64::from(own) + u64::from(shared)) * users;
        // Uses of all base assemblies, of which one composite part may have all.
        let uses = (bases[0] * users + if shared > 0 { bases[1] } else { 0 }) * per_base;
        let totals = [
            ("parts used by the base assemblies of a module", bases[0] * per_base, 1 << 17),
            (
                "parts used by the base assemblies of the shared module",
                bases[1] * per_base,
                1 << 17,
            ),
            ("parts used by all base assemblies", uses, 1 << 19),
            ("composite parts in all", composites, 250_000),
            ("atomic parts in all", composites * u64::from(self.atomic_per_composite), 5_000_000),
        ];
        match totals.into_iter().find(|(_, value, most)| value > most) {
            Some((what, value, most)) => {
                Err(Error::Invalid(format!("{what}: {value} is more than {most}")))
            }
            None => Ok(()),
        }
    }

    /// All modules: one for each user, and the one that they share.
    #[must_use]
    pub fn modules(&self) -> Vec<ModulePlan> {
        let own = (self.composites_per_module, self.levels);
        let more = self.shared_composites_per_user;
        let shared = (more > 0).then_some((more * self.users, self.shared_levels));
        let (mut first_composite, mut first_assembly) = (0, 0);
        let all = (0..self.users).map(|_| own).chain(shared).zip(0..);
        let modules = all.map(|((composites, levels), number)| {
            let plan = ModulePlan { number, composites, first_composite, first_assembly, levels };
            first_composite += composites;
            let assemblies = self.base_assemblies(levels) + self.complex_assemblies(levels);
            first_assembly += u32::try_from(assemblies).unwrap_or(u32::MAX - first_assembly);
            plan
        });
        modules.collect()
    }

    /// Whether there is a module that users share.
    #[must_use]
    pub fn shares(&self) -> bool {
        self.shared_composites_per_user > 0
    }

    /// Base assemblies of a module with so many levels.
    #[must_use]
    pub fn base_assemblies(&self, levels: u32) -> u64 {
        u64::from(self.assemblies_per_assembly).pow(levels - 1)
    }

    /// Complex assemblies of it.
    #[must_use]
    pub fn complex_assemblies(&self, levels: u32) -> u64 {
        (0..levels - 1).map(|level| u64::from(self.assemblies_per_assembly).pow(level)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published counts: 729 base and 364 complex assemblies, and 500 composite parts.
    #[test]
    fn counts_are_those_published() {
        for size in [Size::Small, Size::Medium] {
            let parameters = Parameters::new(size, 3);
            let counts = (parameters.base_assemblies(7), parameters.complex_assemblies(7));
            assert_eq!(counts, (729, 364));
            assert_eq!(parameters.modules()[0].composites, 500);
            parameters.check().expect("what is published is allowed");
        }
    }

    #[test]
    fn what_users_share_grows_with_them() {
        let parameters =
            Parameters { users: 3, shared_composites_per_user: 10, ..Parameters::tiny() };
        let modules = parameters.modules();
        assert_eq!(modules.iter().map(|m| m.composites).collect::<Vec<_>>(), [10, 10, 10, 30]);
        assert_eq!((modules[3].first_composite, modules[3].levels), (30, 2));
        assert_eq!(modules[3].first_assembly, 3 * 13);
        let error = Parameters { levels: 0, ..parameters }.check().expect_err("no level");
        assert_eq!(error.to_string(), "levels of assemblies: 0 is not 1 to 10");
    }
}
