//! Helpers shared by the scenario and the benchmarks: processes, folders, figures.

pub mod group;
pub mod ledger;
pub mod operations;
pub mod process;
pub mod resident;
pub mod servers;
pub mod site;
pub mod tree;

/// Where the binaries of this build are: beside the running one.
///
/// # Errors
/// When the `larder` binary has not been built with this one.
pub fn larder_binary() -> anyhow::Result<std::path::PathBuf> {
    let own = std::env::current_exe()?;
    let binary = own.with_file_name("larder");
    anyhow::ensure!(
        binary.exists(),
        "{} is missing: build it with `cargo build --release -p larder-cli`",
        binary.display()
    );
    Ok(binary)
}

/// The figure below which so many hundredths of some lie; `None` of none.
#[must_use]
pub fn percentile(mut figures: Vec<f64>, hundredths: usize) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let place = (figures.len() * hundredths).div_ceil(100).max(1) - 1;
    figures.get(place).copied()
}

/// The median of some figures; `None` of none.
#[must_use]
pub fn median(mut figures: Vec<f64>) -> Option<f64> {
    if figures.is_empty() {
        return None;
    }
    figures.sort_by(f64::total_cmp);
    Some(figures[figures.len() / 2])
}
