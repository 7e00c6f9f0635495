//! Who is there below, by name: at most one process a name, over whatever parents it comes, and
//! its boots are its own (decision 0004).

use crate::id::{BootId, DomainId, LinkId};
use crate::message::INSTANCE_MARK;
use std::collections::{BTreeMap, BTreeSet};

/// A process below.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Named {
    /// Which: the boot of its `Hello`.
    life: BootId,
    /// The link it is reached over: its own, or a relay's.
    link: LinkId,
    /// Under which boot it may commit, a domain.
    boots: BTreeMap<DomainId, BootId>,
}

/// A process that is there no longer, and its boots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Gone {
    pub(crate) name: String,
    pub(crate) boots: Vec<(DomainId, BootId)>,
}

/// A boot is another name's.
#[derive(Debug)]
pub(crate) struct Anothers;

/// All processes below.
#[derive(Debug, Default)]
pub(crate) struct Names {
    named: BTreeMap<String, Named>,
    /// Whose a boot is. One for each of `Named::boots`.
    owners: BTreeMap<(DomainId, BootId), String>,
    /// The names that each link brought.
    brought: BTreeMap<LinkId, BTreeSet<String>>,
}

impl Names {
    /// Who has a name, and over which link.
    pub(crate) fn holder(&self, name: &str) -> Option<(BootId, LinkId)> {
        self.named.get(name).map(|named| (named.life, named.link))
    }

    /// How many names a link brought.
    pub(crate) fn brought(&self, link: LinkId) -> usize {
        self.brought.get(&link).map_or(0, BTreeSet::len)
    }

    /// How many processes of one certificate are there.
    pub(crate) fn of_certificate(&self, certificate: &str) -> usize {
        let first = format!("{certificate}{INSTANCE_MARK}");
        let instances = self.named.range(first.clone()..);
        let instances = instances.take_while(|(name, _)| name.starts_with(&first)).count();
        instances + usize::from(self.named.contains_key(certificate))
    }

    /// The process is there, over this link. Gives the boots that came over another link before.
    pub(crate) fn arrive(
        &mut self,
        name: &str,
        life: BootId,
        link: LinkId,
    ) -> Vec<(DomainId, BootId)> {
        let named = self.named.entry(name.to_owned()).or_insert_with(|| Named {
            life,
            link,
            boots: BTreeMap::new(),
        });
        assert_eq!(named.life, life, "a name has one process");
        let before = std::mem::replace(&mut named.link, link);
        let moved = if before == link { Vec::new() } else { boots(named) };
        if before != link {
            self.forget_brought(before, name);
        }
        self.brought.entry(link).or_default().insert(name.to_owned());
        moved
    }

    /// The process is gone.
    pub(crate) fn leave(&mut self, name: &str) -> Option<Gone> {
        let named = self.named.remove(name)?;
        self.forget_brought(named.link, name);
        let boots = boots(&named);
        for key in &boots {
            self.owners.remove(key);
        }
        Some(Gone { name: name.to_owned(), boots })
    }

    /// A link is gone, and with it all that came over it.
    pub(crate) fn leave_link(&mut self, link: LinkId) -> Vec<Gone> {
        let names = self.brought.remove(&link).unwrap_or_default();
        names.iter().filter_map(|name| self.leave(name)).collect()
    }

    fn forget_brought(&mut self, link: LinkId, name: &str) {
        if let Some(names) = self.brought.get_mut(&link) {
            names.remove(name);
            if names.is_empty() {
                self.brought.remove(&link);
            }
        }
    }

    /// A process that is there claims a boot in a domain. Gives the one it had there before,
    /// which is nobody's now; an error: another name has this one.
    pub(crate) fn claim(
        &mut self,
        name: &str,
        domain: DomainId,
        boot: BootId,
    ) -> Result<Option<BootId>, Anothers> {
        if self.owners.get(&(domain, boot)).is_some_and(|owner| owner != name) {
            return Err(Anothers);
        }
        let named = self.named.get_mut(name).ok_or(Anothers)?;
        let before = named.boots.insert(domain, boot).filter(|before| *before != boot);
        if let Some(before) = before {
            self.owners.remove(&(domain, before));
        }
        self.owners.insert((domain, boot), name.to_owned());
        Ok(before)
    }

    /// A boot is nobody's any more. Gives the link it was used over.
    pub(crate) fn unclaim(&mut self, domain: DomainId, boot: BootId) -> Option<LinkId> {
        let name = self.owners.remove(&(domain, boot))?;
        let named = self.named.get_mut(&name)?;
        named.boots.remove(&domain);
        Some(named.link)
    }

    /// The name and the link of a boot.
    pub(crate) fn owner(&self, domain: DomainId, boot: BootId) -> Option<(&str, LinkId)> {
        let name = self.owners.get(&(domain, boot))?;
        Some((name, self.named.get(name)?.link))
    }

    /// Whether a boot is somebody's here.
    pub(crate) fn is_claimed(&self, domain: DomainId, boot: BootId) -> bool {
        self.owners.contains_key(&(domain, boot))
    }

    /// All that are there, with their lives.
    #[cfg(feature = "faults")]
    pub(crate) fn present(&self) -> Vec<(String, BootId)> {
        self.named.iter().map(|(name, named)| (name.clone(), named.life)).collect()
    }

    /// Panics when an invariant is broken.
    pub(crate) fn check(&self) {
        let mut boots = 0;
        for (name, named) in &self.named {
            boots += named.boots.len();
            for (domain, boot) in &named.boots {
                assert_eq!(self.owners.get(&(*domain, *boot)), Some(name), "a boot of two names");
            }
            let brought = self.brought.get(&named.link);
            assert!(brought.is_some_and(|names| names.contains(name)), "a name without its link");
        }
        assert_eq!(boots, self.owners.len(), "a boot without its name");
        let brought: usize = self.brought.values().map(BTreeSet::len).sum();
        assert_eq!(brought, self.named.len(), "a name brought by two links");
    }
}

fn boots(named: &Named) -> Vec<(DomainId, BootId)> {
    named.boots.iter().map(|(domain, boot)| (*domain, *boot)).collect()
}
