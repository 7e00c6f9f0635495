//! Times an append to the log against a bare write and sync of the same bytes:
//! `cargo run --release -p larder-store --example append -- DIRECTORY [BYTES [ROUNDS]]`.

use larder_store::bench::{append_median, bare_sync_median};
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().ok_or("which directory?")?);
    let bytes = arguments.next().map_or(Ok(200), |text| text.parse())?;
    let rounds = arguments.next().map_or(Ok(1000), |text| text.parse())?;
    let bare = bare_sync_median(&path, bytes, rounds)?;
    let append = append_median(&path, bytes, rounds)?;
    println!(
        "{{\"bytes\":{bytes},\"rounds\":{rounds},\"bare_sync_median_us\":{},\"append_median_us\":{}}}",
        bare.as_micros(),
        append.as_micros()
    );
    Ok(())
}
