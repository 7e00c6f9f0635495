//! The line is cut in the middle of a large file.

use crate::common::{VOLUME, origin_with_tree, pattern, site};
use anyhow::{Result, ensure};
use larder_harness::process::wait_until;
use larder_harness::site::{Line, READY, within};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::time::Duration;

const BYTES: usize = 40 << 20;
/// Where the line is cut.
const CUT: u64 = 12 << 20;

/// A render farm sends a frame home and another office reads it, and each time the line is cut
/// when a good part is through, for a second. Both go on by themselves when it is back: the file
/// is whole, nobody got an error, and what had come through is not sent all over again.
#[test]
fn a_line_cut_in_a_large_transfer_costs_the_time_it_was_cut() -> Result<()> {
    let site = site("transfer")?;
    let origin = origin_with_tree(&site, &[])?;
    let line = Line::to(origin.port, Duration::from_millis(5))?;
    let mount = site.mount("one", VOLUME, line.port(), &[])?;
    let bytes = pattern(BYTES, 7);

    let (path, content) = (mount.at("frame"), bytes.clone());
    let writer = std::thread::spawn(move || -> std::io::Result<()> {
        let mut file = File::create(path)?;
        for piece in content.chunks(1 << 20) {
            file.write_all(piece)?;
        }
        file.sync_all()
    });
    let start = line.proxy.traffic().up_bytes;
    wait_until("a part to be sent", READY, || {
        ensure!(line.proxy.traffic().up_bytes > start + CUT, "not yet");
        Ok(())
    })?;
    line.proxy.cut();
    std::thread::sleep(Duration::from_secs(1));
    ensure!(!writer.is_finished(), "the line was cut too late: a larger file is needed");
    line.proxy.heal();
    within(READY, "the write", move || writer.join().expect("no panic"))??;
    let sent = line.proxy.traffic().up_bytes - start;
    ensure!(sent < 2 * BYTES as u64, "{sent} bytes were sent for {BYTES}");

    let near = site.mount("two", VOLUME, origin.port, &[])?;
    ensure!(fs::read(near.at("frame"))? == bytes, "the file differs at another site");
    near.stop()?;

    mount.stop()?;
    let mount = site.mount("one", VOLUME, line.port(), &[])?;
    let path = mount.at("frame");
    let reader = std::thread::spawn(move || -> std::io::Result<Vec<u8>> {
        let mut read = Vec::new();
        File::open(path)?.read_to_end(&mut read)?;
        Ok(read)
    });
    let start = line.proxy.traffic().down_bytes;
    wait_until("a part to be read", READY, || {
        ensure!(line.proxy.traffic().down_bytes > start + CUT, "not yet");
        Ok(())
    })?;
    line.proxy.cut();
    std::thread::sleep(Duration::from_secs(1));
    ensure!(!reader.is_finished(), "the line was cut too late: a larger file is needed");
    line.proxy.heal();
    let read = within(READY, "the read", move || reader.join().expect("no panic"))??;
    ensure!(read == bytes, "the file differs after the cut");
    let fetched = line.proxy.traffic().down_bytes - start;
    ensure!(fetched < BYTES as u64 * 3 / 2, "{fetched} bytes were fetched for {BYTES}");
    mount.stop()?;
    origin.stop()?;
    Ok(())
}
