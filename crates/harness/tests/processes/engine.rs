//! The page engine on a disk that is full: here without a process around it, so that its installs
//! do not stop before it needs the room.

use crate::common::{Tmpfs, site};
use anyhow::{Context, Result, bail, ensure};
use larder::core::id::{PageId, PageNo, Stamp, VolumeId};
use larder::core::record::{InstallBatch, InstalledPage, StoredPage};
use larder_harness::site::READY;
use larder_store::pages::{FjallConfig, FjallPages, Pages, PagesError};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Mebibytes of the disk.
const DISK: u32 = 160;
const PAGE_BYTES: usize = 32 << 10;
/// Pages that are installed again and again, a few at once.
const PAGES: u64 = 300;
const AT_ONCE: u64 = 4;
/// A read takes no longer, whatever the engine does.
const READ: Duration = Duration::from_secs(5);

/// What was installed, and what the engine may have beside it.
#[derive(Default)]
struct Model {
    stamp: u64,
    next: u64,
    installed: BTreeMap<PageId, Stamp>,
}

fn image(page: PageId, version: Stamp) -> Vec<u8> {
    let mut bytes = vec![(page.page.0 % 251) as u8; PAGE_BYTES];
    bytes[..8].copy_from_slice(&version.0.to_le_bytes());
    bytes
}

impl Model {
    fn install(&mut self, pages: &FjallPages) -> Result<bool> {
        let numbers = (0..AT_ONCE).map(|step| (self.next + step) % PAGES + 1);
        let mut batch = InstallBatch::default();
        for number in numbers {
            self.stamp += 1;
            let page = PageId { volume: VolumeId(1), page: PageNo(number) };
            let version = Stamp(self.stamp);
            let previous = self.installed.get(&page).copied().unwrap_or(Stamp::ZERO);
            let stored = StoredPage { version, image: Some(image(page, version).into()) };
            batch.pages.push(InstalledPage { page, previous, stored });
        }
        batch.meta.installed = Stamp(self.stamp);
        match pages.install(&batch) {
            Ok(()) => {
                let done = batch.pages.iter().map(|page| (page.page, page.stored.version));
                self.installed.extend(done);
                self.next += AT_ONCE;
                Ok(true)
            }
            Err(PagesError::Full { .. } | PagesError::Behind { .. }) => Ok(false),
            Err(error) => bail!("an install ended the engine: {error}"),
        }
    }

    /// Everything installed can be read, as it was installed or, where that was not told, later.
    fn read(&self, pages: &FjallPages) -> Result<()> {
        for (page, version) in &self.installed {
            let asked = Instant::now();
            match pages.load(*page) {
                Ok(Some(found)) => {
                    ensure!(found.version >= *version, "{page} has gone back");
                    let bytes = found.image.context("a page is gone")?;
                    ensure!(bytes == image(*page, found.version), "{page} is another");
                }
                // Only while it is being opened again, and has no room even for that.
                Err(PagesError::Full { .. }) => {}
                other => bail!("{page}: {other:?}"),
            }
            ensure!(asked.elapsed() < READ, "a read took {:?}", asked.elapsed());
        }
        Ok(())
    }

    /// Installs go on, within the time that people wait for a server.
    fn goes_on(&mut self, pages: &FjallPages) -> Result<()> {
        let begun = Instant::now();
        let mut left = PAGES.div_ceil(AT_ONCE) + 1;
        while left > 0 {
            match self.install(pages)? {
                true => left -= 1,
                false => std::thread::sleep(Duration::from_millis(50)),
            }
            ensure!(begun.elapsed() < READY, "there is room, and it does not go on");
        }
        self.read(pages)?;
        let (index, more) = pages.changed_after((Stamp::ZERO, PageId::default()), 1000)?;
        let index: BTreeMap<_, _> = index.into_iter().map(|(stamp, page)| (page, stamp)).collect();
        ensure!(!more && index == self.installed, "the change index is not that of the installs");
        Ok(())
    }
}

/// Takes all room but this many bytes.
fn fill(disk: &Path, free: u64) -> Result<()> {
    let output = Command::new("df").args(["--output=avail", "-B1"]).arg(disk).output()?;
    let text = String::from_utf8(output.stdout)?;
    let available: u64 = text.lines().nth(1).context("df prints a line")?.trim().parse()?;
    let bytes = available.saturating_sub(free);
    if bytes > 0 {
        let path = disk.join("ballast");
        let written =
            Command::new("fallocate").args(["-l", &bytes.to_string()]).arg(path).status()?;
        ensure!(written.success(), "no ballast of {bytes} bytes");
    }
    Ok(())
}

/// The disk was full when the engine wrote its memory to tables, or merged some, which it does in
/// the background and which may need more than any margin: it took nothing more, and its domain's
/// service ended until somebody started it again. Here a few mebibytes are left each time, so that
/// it meets the end of the disk at another point of its work.
#[test]
fn a_page_engine_goes_on_after_its_background_work_met_a_full_disk() -> Result<()> {
    let site = site("engine")?;
    let disk = Tmpfs::new(&site.path("disk"), DISK)?;
    let place = disk.path().join("pages");
    let config = FjallConfig {
        cache_bytes: 1 << 20,
        memtable_bytes: 4 << 20,
        margin_bytes: 0,
        ..FjallConfig::default()
    };
    let pages = FjallPages::open(&place, &config)?;
    let mut model = Model::default();
    model.goes_on(&pages)?;
    for free in [2, 5, 9] {
        fill(disk.path(), free << 20)?;
        let begun = Instant::now();
        let mut refused = 0;
        while refused < 20 && begun.elapsed() < READY {
            if !model.install(&pages)? {
                refused += 1;
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        ensure!(refused == 20, "with {free} MiB it was never full");
        model.read(&pages)?;
        fs::remove_file(disk.path().join("ballast"))?;
        model.goes_on(&pages)?;
    }
    drop(pages);
    let pages = FjallPages::open(&place, &config)?;
    model.read(&pages)?;
    model.goes_on(&pages)
}

/// Another program takes all of the disk for moments, in the middle of installs too: after that
/// nobody could tell how much of one was done, which ended the domain's service.
#[test]
fn a_page_engine_goes_on_after_an_install_met_a_full_disk() -> Result<()> {
    let site = site("brimful")?;
    let disk = Tmpfs::new(&site.path("disk"), DISK)?;
    let place = disk.path().join("pages");
    let config = FjallConfig {
        cache_bytes: 1 << 20,
        memtable_bytes: 4 << 20,
        margin_bytes: 0,
        ..FjallConfig::default()
    };
    let pages = FjallPages::open(&place, &config)?;
    let mut model = Model::default();
    model.goes_on(&pages)?;
    let stop = AtomicBool::new(false);
    let met = std::thread::scope(|scope| {
        let filler = scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                // Whoever comes first has the last byte: that is the point.
                let _full = fill(disk.path(), 0);
                std::thread::sleep(Duration::from_millis(5));
                let _gone = fs::remove_file(disk.path().join("ballast"));
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let begun = Instant::now();
        let mut refused = 0;
        let mut result = Ok(());
        while begun.elapsed() < Duration::from_secs(12) && result.is_ok() {
            match model.install(&pages) {
                Ok(true) => {}
                Ok(false) => {
                    refused += 1;
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => result = Err(error),
            }
        }
        stop.store(true, Ordering::Relaxed);
        let _ended = filler.join();
        result.map(|()| refused)
    })?;
    ensure!(met > 0, "the disk was never full");
    let _gone = fs::remove_file(disk.path().join("ballast"));
    model.goes_on(&pages)?;
    drop(pages);
    let pages = FjallPages::open(&place, &config)?;
    model.goes_on(&pages)
}
