//! Groups of neighbours on one machine: mounts that find their redirector among themselves.

use crate::process::{free_port, wait_until};
use crate::site::{READY, Server, Site};
use anyhow::{Result, ensure};

/// Members of a group: each has a port of its own, at which the others find it, and a certificate with
/// which it may be their redirector.
pub struct Group {
    name: String,
    members: Vec<String>,
    /// Of each, where the others find it.
    addresses: Vec<String>,
}

impl Group {
    /// Issues certificates for members that are to be mounted.
    ///
    /// # Errors
    /// When they cannot be issued, or a port cannot be had.
    pub fn new(site: &Site, name: &str, members: &[&str]) -> Result<Self> {
        let mut group = Self { name: name.into(), members: Vec::new(), addresses: Vec::new() };
        for member in members {
            site.issue_in(member, "relay", 30, &[name])?;
            group.members.push((*member).to_owned());
            group.addresses.push(format!("127.0.0.1:{}", free_port()?));
        }
        Ok(group)
    }

    /// Mounts a volume as the member of this number, and waits until it is there. The parent is the
    /// redirector's, whoever that is.
    ///
    /// # Errors
    /// When it is not mounted in time.
    pub fn mount(
        &self,
        site: &Site,
        member: usize,
        (volume, parent): (&str, u16),
        extra: &[&str],
    ) -> Result<Server> {
        let (listen, seeds) = (&self.addresses[member], self.addresses.join(","));
        let words = ["--group", &self.name, "--group-listen", listen, "--group-seeds", &seeds];
        site.mount(&self.members[member], volume, parent, &[&words, extra].concat())
    }
}

/// Waits until these, and no others, are together in a group: all follow one of them, their redirector,
/// which knows that each of them reaches all others.
///
/// # Errors
/// When it takes more than [`READY`].
pub fn together(members: &[Server]) -> Result<()> {
    wait_until("the members of a group to find each other", READY, || {
        let mut redirectors = 0;
        for member in members {
            let status = member.status()?;
            let group = &status["group"];
            ensure!(group["redirected"] == true, "a member follows no redirector: {group}");
            let Some(known) = group["redirects"]["members"].as_array() else { continue };
            redirectors += 1;
            let others = members.len() - 1;
            let reaching = known.iter().filter(|one| one["reaches"] == others).count();
            let all = known.len() == members.len() && reaching == members.len();
            ensure!(all, "{reaching} of its members reach all others: {group}");
        }
        ensure!(redirectors == 1, "{redirectors} redirectors");
        Ok(())
    })
}
