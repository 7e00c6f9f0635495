//! A simulator without the file layer: for those who work on the machines alone.

use crate::client::VolumePlan;
use crate::decisions::Decision;
use crate::net::Proc;
use crate::plan::Plan;
use crate::world::World;
use larder_core::cache::io::CacheReply;
use larder_core::id::{DomainId, RequestId};
use larder_core::message::RequestError;

/// Clients of the file layer: there are none.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub enum FilesPlan {}

/// No processes of files.
#[derive(Clone, Copy, Debug, Default)]
pub struct Files;

/// No seed has files.
#[must_use]
pub fn draw(_seed: u64, _store_nanos: u64) -> Option<FilesPlan> {
    None
}

/// No run has a volume of files.
#[must_use]
pub fn volume_of(_plan: &Plan, _domains: &[DomainId]) -> Option<VolumePlan> {
    None
}

impl Files {
    /// None.
    #[must_use]
    pub fn new(_plan: &Plan, _domains: &[DomainId]) -> Self {
        Self
    }

    pub(crate) fn given(&mut self, _decisions: &[Decision]) {}

    pub(crate) fn decide_alone(&mut self, _rest: bool) {}
}

impl World {
    pub(crate) fn files_start(&mut self, _proc: Proc) {}

    pub(crate) fn files_end(&mut self, _proc: Proc) {}

    pub(crate) fn files_step(&mut self, _proc: Proc, _incarnation: u32) {}

    pub(crate) fn files_reply(
        &mut self,
        _proc: Proc,
        _id: RequestId,
        result: Result<CacheReply, RequestError>,
    ) -> Result<(), Result<CacheReply, RequestError>> {
        Err(result)
    }

    pub(crate) fn files_unrest(&self) -> Option<String> {
        None
    }

    pub(crate) fn files_at_rest(&mut self) {}
}
