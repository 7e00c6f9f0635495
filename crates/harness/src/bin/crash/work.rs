//! What goes on in a world, transactions and file work, and whether all of it is there.

use crate::files::Files;
use crate::world::{VOLUME, World};
use anyhow::{Context, Result};
use larder_core::rng::Rng;
use larder_harness::ledger::{Book, Found};
use larder_harness::site::runtime;
use std::path::Path;

/// The work of a world whose writers make transfers all the time.
pub(crate) struct Work {
    pub(crate) files: Files,
    book: Book,
    /// What the last look found.
    pub(crate) found: Found,
}

impl Work {
    /// Of a world that was just made.
    pub(crate) fn new(world: &World, seed: u64) -> Result<Self> {
        Ok(Self { files: Files::new(world)?, book: Book::new(seed), found: Found::default() })
    }

    /// Starts work on files at both sites.
    pub(crate) fn start(&mut self, world: &mut World, rng: &mut Rng) -> Result<()> {
        self.files.start(world, rng)
    }

    /// Ends the work on files, wherever it is, and compares all that there is with what must be.
    ///
    /// # Errors
    /// When anything acknowledged is lost, is there twice or in part, or the volume is not sound.
    pub(crate) fn verify(&mut self, world: &mut World) -> Result<()> {
        self.files.stop(world)?;
        world.writers_go_on().context("the ledger")?;
        let (tls, parent, journals) = (world.site.tls(), world.at_origin(), world.journals());
        let verified = self.book.verify(Path::new(&tls), &parent, &journals);
        self.found = runtime().block_on(verified).context("the ledger")?;
        self.files.verify(world)?;
        world.volume(&["check", VOLUME, "--quiet"]).context("volume check")?;
        Ok(())
    }
}
