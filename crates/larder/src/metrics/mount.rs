//! What a mount keeps in memory beside the page copies of its node.

use super::Label;
use crate::fs::Kept;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;

type Figures = Family<Label, Gauge<u64, AtomicU64>>;

/// The figures, by part.
pub(super) struct MountFigures {
    entries: Figures,
    bytes: Figures,
}

impl MountFigures {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let figures = Self { entries: Family::default(), bytes: Family::default() };
        let help = "What a mount keeps beside page copies: entries, by part";
        registry.register("mount_entries", help, figures.entries.clone());
        let help = "Memory of what a mount keeps beside page copies, about, by part";
        registry.register_with_unit("mount", help, Unit::Bytes, figures.bytes.clone());
        figures
    }

    pub(super) fn keeps(&self, what: &'static str, kept: Kept) {
        let label = Label { what };
        self.entries.get_or_create(&label).set(kept.entries);
        self.bytes.get_or_create(&label).set(kept.bytes);
    }
}
