//! An origin's links to other origins (decision 0038): dialled again and again, and accepted at its door.

use crate::config::{LinkConfig, OriginConfig};
use crate::host::Inputs;
use crate::tls::Credentials;
use crate::transport::{Dialer, LinkSetup, LinkState, LinkWatch, Parent};
use larder_core::origin::{Origin, PeerStatus};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// Links to them that others open are numbered from here on, those that are dialled a step further for each.
pub(super) const FIRST_PEER_LINK: u64 = 1 << 60;
const LINKS_OF_PEER: u64 = 1 << 48;

/// The other origins of the configuration.
pub(super) struct PeerLinks {
    dialled: Vec<(String, String, LinkWatch)>,
}

impl PeerLinks {
    /// Dials them all, as long as the tasks live.
    pub(super) fn start(
        config: &OriginConfig,
        setup: &LinkSetup,
        credentials: &Arc<Credentials>,
    ) -> (Self, Vec<AbortHandle>) {
        let (mut dialled, mut tasks) = (Vec::new(), Vec::new());
        for (number, (name, address)) in (1..).zip(config.origin.peers()) {
            let (state, link) = watch::channel(LinkState::Down(None));
            let (keys, limits): (_, LinkConfig) = (credentials.clone(), config.link.clone());
            let parent = Parent::configured(address).only();
            let dialer = Dialer::new(parent, setup.clone(), keys, limits, state).of_peer(name);
            let dials = dialer.run(FIRST_PEER_LINK + number * LINKS_OF_PEER);
            tasks.push(tokio::spawn(dials).abort_handle());
            dialled.push((name.to_owned(), address.to_owned(), link));
        }
        (Self { dialled }, tasks)
    }

    /// What operators are told of them: that one is not reached.
    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        self.dialled.iter().filter_map(|(name, address, link)| {
            let trouble = link.borrow().trouble()?;
            Some(format!(
                "the origin {name} is not reached at {address}: {trouble}; unless it reaches this one, transactions over \
                 its domains wait"
            ))
        })
    }

    /// They and what the machine knows of them, as fields.
    pub(super) async fn status(&self, inputs: &Inputs<Origin>) -> Vec<Value> {
        let seen = match self.dialled.is_empty() {
            true => Vec::new(),
            false => inputs.look(|origin, _| origin.peers()).await.unwrap_or_default(),
        };
        self.fields(&seen)
    }

    fn fields(&self, seen: &[PeerStatus]) -> Vec<Value> {
        let each = self.dialled.iter().map(|(name, address, link)| {
            let known = seen.iter().find(|peer| peer.name == *name);
            let domains = known.iter().flat_map(|peer| &peer.domains);
            json!({
                "name": name,
                "address": address,
                "connected": known.is_some_and(|peer| peer.links > 0),
                "trouble": link.borrow().trouble(),
                "forked": known
                    .iter()
                    .flat_map(|peer| &peer.forked)
                    .map(|domain| super::status::domain_name(*domain))
                    .collect::<Vec<_>>(),
                "domains": domains.map(|domain| super::status::domain_name(*domain)).collect::<Vec<_>>(),
            })
        });
        each.collect()
    }
}
