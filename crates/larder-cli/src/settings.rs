//! From flags to the configuration.

use crate::args::{Common, Election, Identity, Membership, Parent, Uplink};
use anyhow::Result;
use larder::config::{Config, ConfigError};
use std::path::PathBuf;

/// Flags as configuration keys, in the order given.
#[derive(Default)]
pub(crate) struct Flags {
    given: Vec<(String, String)>,
    /// A path that no setting can hold.
    unfit: Option<ConfigError>,
}

impl Flags {
    /// Lays a flag over its key, if the flag was given.
    pub(crate) fn set(mut self, key: &str, value: Option<impl ToString>) -> Self {
        self.given.extend(value.map(|value| (key.to_owned(), value.to_string())));
        self
    }

    /// The same of a path. One that is not UTF-8 would become another one: it is refused when all is loaded.
    pub(crate) fn path(mut self, key: &str, path: Option<&PathBuf>) -> Self {
        let Some(path) = path else { return self };
        if path.to_str().is_none() {
            self.unfit.get_or_insert(ConfigError::Invalid {
                layer: "command line".into(),
                detail: format!("{key}: {} is not UTF-8: choose another path", path.display()),
            });
        }
        self.set(key, path.to_str())
    }

    /// Who this process is.
    pub(crate) fn identity(self, identity: &Identity) -> Self {
        self.path("tls_dir", identity.tls.as_ref()).set("name", identity.name.as_ref())
    }

    /// The link to the parent, in section `section`.
    pub(crate) fn parent(self, section: &str, parent: &Parent) -> Self {
        self.identity(&parent.identity)
            .set(&format!("{section}.parent"), parent.parent.as_ref())
            .set(&format!("{section}.parent_name"), parent.parent_name.as_ref())
    }

    /// A node's link to its parent.
    pub(crate) fn uplink(self, uplink: &Uplink) -> Self {
        self.parent("node", &uplink.parent)
            .set("node.instance", uplink.instance.as_ref())
            .set("node.request_limit", uplink.request_limit.as_ref())
    }

    /// A member's place in a group.
    pub(crate) fn membership(self, membership: &Membership) -> Self {
        self.set("group.name", membership.group.as_ref())
            .set("group.listen", membership.group_listen.as_ref())
            .election(&membership.election)
    }

    /// How a group finds its redirector.
    pub(crate) fn election(self, election: &Election) -> Self {
        self.set("group.seeds", election.group_seeds.as_ref())
            .set("group.multicast", election.group_multicast.as_ref())
            .set("group.role", election.group_role.as_ref())
            .set("group.address", election.group_address.as_ref())
    }

    /// The configuration: defaults, file, environment, these flags, each over the one before.
    pub(crate) fn load(mut self, common: &Common) -> Result<Config> {
        self = self.set("log.filter", common.log.as_ref());
        self = self.path("log.file", common.log_file.as_ref());
        self = self.set("log.json", common.log_json.then_some(true));
        for pair in &common.set {
            let (key, value) = pair.split_once('=').ok_or_else(|| ConfigError::Invalid {
                layer: format!("--set {pair}"),
                detail: "KEY=VALUE is wanted".into(),
            })?;
            self.given.push((key.trim().to_owned(), value.trim().to_owned()));
        }
        if let Some(unfit) = self.unfit {
            return Err(unfit.into());
        }
        Ok(Config::load(common.config.as_deref(), environment()?, self.given)?)
    }
}

/// The environment's settings. Of other variables nothing is read, text or not.
fn environment() -> Result<Vec<(String, String)>, ConfigError> {
    let ours =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
    ours.filter(|(name, _)| name.starts_with("LARDER_")).map(text_of).collect()
}

fn text_of((name, value): (String, std::ffi::OsString)) -> Result<(String, String), ConfigError> {
    value.into_string().map(|value| (name.clone(), value)).map_err(|value| ConfigError::Invalid {
        layer: "environment".into(),
        detail: format!("{name}: {} is not UTF-8: choose another value", value.display()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    /// Bytes of a path that are no text became others: another file was named.
    #[test]
    fn a_path_that_is_no_text_is_refused_and_named() {
        let path = PathBuf::from(OsStr::from_bytes(b"/var/log/gr\xfc\xdfe"));
        let flags = Flags::default().path("log.file", Some(&path));
        let unfit = flags.unfit.map(|unfit| unfit.to_string()).unwrap_or_default();
        assert!(unfit.contains("log.file") && unfit.contains("UTF-8"), "{unfit}");
        let flags = Flags::default().path("log.file", Some(&PathBuf::from("/var/log/größe")));
        assert!(flags.unfit.is_none() && flags.given.len() == 1);
    }

    /// Any variable of the environment that was no text ended the process by a panic.
    #[test]
    fn a_variable_that_is_no_text_is_refused_and_named() {
        let value = OsStr::from_bytes(b"gr\xfc\xdfe").to_owned();
        let unfit = text_of(("LARDER_TLS_DIR".into(), value)).expect_err("no text").to_string();
        assert!(unfit.contains("LARDER_TLS_DIR") && unfit.contains("UTF-8"), "{unfit}");
        environment().expect("nothing of ours is set so");
    }
}
