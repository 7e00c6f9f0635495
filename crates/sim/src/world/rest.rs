//! Rest: when all is mended and clients have ended, nothing is under way in any machine, and no parent
//! counts a child for a page that the child does not have (decision 0026). Asked only when everything
//! else is as it must be, so that it costs nothing on the way there.

use super::process::{SharedCache, lock};
use super::seconds::first_name;
use super::{Machinery, World};
use crate::net::{Proc, conn_of};
use crate::plan::Budget;
use larder_core::downlink::ParentStatus;
use larder_core::id::{BootId, DomainId, LinkId, PageId};
use larder_core::message::Message;

impl World {
    /// What is still under way in the machines of the core.
    pub(super) fn under_way(&self) -> Option<String> {
        if self.plan.budget == Budget::Beyond {
            // What was lost leaves a trace now and then, which ends with the next link (finding 323).
            return None;
        }
        let numbers = (0..self.processes.len() as u16).map(Proc);
        let core: Vec<Proc> = numbers.filter(|proc| self.is_in_core(*proc)).collect();
        let of = |proc: &Proc| {
            let what = self.machine_under_way(*proc)?;
            Some(format!("{} has under way: {what}", self.process(*proc).name))
        };
        let in_vain = || {
            core.iter().find_map(|proc| {
                self.believed_present(*proc).or_else(|| self.registered_in_vain(*proc))
            })
        };
        core.iter().find_map(of).or_else(in_vain)
    }

    fn machine_under_way(&self, proc: Proc) -> Option<String> {
        match &self.process(proc).machinery {
            Machinery::Origin(host) => host.machine.as_ref()?.under_way(),
            Machinery::Relay(host) => host.machine.as_ref()?.under_way(),
            Machinery::Node(node) => lock(node.machine.as_ref()?).under_way(),
        }
    }

    /// A process below that is gone, and that the parent believes to be there.
    fn believed_present(&self, parent: Proc) -> Option<String> {
        let present: Vec<(String, BootId)> = match &self.process(parent).machinery {
            Machinery::Origin(host) => host.machine.as_ref()?.present(),
            Machinery::Relay(host) => host.machine.as_ref()?.present(),
            Machinery::Node(_) => Vec::new(),
        };
        let lives = |life: BootId| {
            (0..self.processes.len() as u16).map(Proc).any(|proc| {
                let there = self.is_in_core(proc);
                match &self.process(proc).machinery {
                    // A relay's life is known to the relay alone: its link says that it is there.
                    Machinery::Relay(_) | Machinery::Origin(_) => false,
                    Machinery::Node(node) => there && node.boot == life && node.machine.is_some(),
                }
            })
        };
        let relay = |name: &str| {
            let mut processes = self.processes.iter();
            let name = first_name(name);
            processes.any(|it| it.name == name && matches!(it.machinery, Machinery::Relay(_)))
        };
        let gone = present.into_iter().find(|(name, life)| !relay(name) && !lives(*life));
        let parent = &self.process(parent).name;
        gone.map(|(name, life)| format!("{parent} believes {name} ({life:?}) to be there"))
    }

    /// A page for which a parent counts a child that does not have it.
    fn registered_in_vain(&self, parent: Proc) -> Option<String> {
        let status: ParentStatus = match &self.process(parent).machinery {
            Machinery::Origin(host) => host.machine.as_ref()?.status(),
            Machinery::Relay(host) => host.machine.as_ref()?.status(),
            Machinery::Node(_) => return None,
        };
        status.children.iter().find_map(|child| {
            let proc = self.net.conn(conn_of(child.link)).child;
            let registered = self.registered_at(parent, child.link);
            registered.into_iter().find_map(|(domain, pages)| {
                // None: for everything, since what the child named was too much to be kept.
                let vain = pages?.into_iter().find(|page| self.is_in_vain(proc, domain, *page))?;
                let (parent, child) = (&self.process(parent).name, &child.name);
                Some(format!("{parent} counts {child} for {vain}, which it does not have"))
            })
        })
    }

    fn registered_at(&self, parent: Proc, link: LinkId) -> Vec<(DomainId, Option<Vec<PageId>>)> {
        match &self.process(parent).machinery {
            Machinery::Origin(host) => {
                host.machine.as_ref().map_or_else(Vec::new, |machine| machine.registrations(link))
            }
            Machinery::Relay(host) => {
                host.machine.as_ref().map_or_else(Vec::new, |machine| machine.registrations(link))
            }
            Machinery::Node(_) => Vec::new(),
        }
    }

    /// A child hears that it cannot have pages, or gets them after all.
    pub(super) fn note_failed_pages(&mut self, child: Proc, message: &Message) {
        match message {
            Message::Failed { pages, .. } => {
                self.failed.extend(pages.iter().map(|page| (child, *page)));
            }
            Message::Pages { pages, .. } if !self.failed.is_empty() => {
                pages.iter().for_each(|answer| {
                    self.failed.remove(&(child, answer.page));
                });
            }
            _ => {}
        }
    }

    /// Whether a child is registered for a page without a reason. There is one for a page that is not
    /// there, and for one that it could not have, which it may take for one: a notice could be overtaken
    /// by the commit that makes the page, so it is owed when the child is told of a change.
    fn is_in_vain(&self, child: Proc, domain: DomainId, page: PageId) -> bool {
        let branch = self.oracle.truth(domain).current();
        let there = branch.kind(page, branch.durable()).is_some();
        if !there || self.failed.contains(&(child, page)) {
            return false;
        }
        match &self.process(child).machinery {
            Machinery::Relay(host) => {
                host.machine.as_ref().is_some_and(|machine| !machine.keeps(domain, page))
            }
            Machinery::Node(node) => {
                // Nor is it told of a change to what it may not read any more (seed 3947).
                let read = node.read.as_ref();
                let unread = read.is_some_and(|read| read.is_unreadable(page.volume));
                let keeps = |machine: &SharedCache| lock(machine).keeps(domain, page);
                !unread && node.machine.as_ref().is_some_and(|machine| !keeps(machine))
            }
            Machinery::Origin(_) => false,
        }
    }
}
