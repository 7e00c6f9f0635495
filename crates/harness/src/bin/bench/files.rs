//! Trees of files: importing one, working in a mounted one that is 40 ms away from its origin, and
//! making files there; each beside the same work on local disk, or beside the line's own round trip.

use anyhow::{Context, Result, ensure};
use larder_harness::process::Process;
use larder_harness::site::{Line, Server, Site};
use larder_harness::{larder_binary, median, tree};
use rustix::fs::{Advice, fadvise};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const VOLUME: &str = "bench";
const DIRECTORIES: u32 = 200;
const FILES: u32 = 20_000;
const FILE_BYTES: usize = 4096;
/// Half of the round trip between the site and the origin.
const ONE_WAY: Duration = Duration::from_millis(20);
/// The file that is read in one go.
const LARGE_BYTES: usize = 1 << 30;
/// Bytes of a read and a write of it.
const PIECE_BYTES: usize = 1 << 20;
/// No import takes as long.
const IMPORT_LIMIT: Duration = Duration::from_secs(900);
/// Operations of each kind that `create` times; the median counts.
const OPERATIONS: u32 = 50;
const DOCUMENTATION: &str = "/usr/share/doc";

/// Twenty thousand files of 4 KiB into a volume, beside `cp -r` and `sync` to the same disk.
pub(crate) fn import() -> Result<Value> {
    let (site, origin) = origin("bench-import")?;
    let source = site.path("source");
    tree::generate(&source, DIRECTORIES, FILES, FILE_BYTES)?;
    sync(&source)?;
    let copy = site.path("copy");
    let started = Instant::now();
    succeed(Command::new("cp").arg("-r").args([&source, &copy]))?;
    sync(&copy)?;
    let cp_sync_s = started.elapsed().as_secs_f64();
    let import_s = import_into(&site, &origin, VOLUME, &source)?;
    origin.stop()?;
    Ok(json!({ "import_s": import_s, "cp_sync_s": cp_sync_s, "files": FILES }))
}

/// `find` and `grep -r` over them at a mount, cold and warm, beside local disk; a large file read
/// from the node's cache; the machine's documentation, cold.
pub(crate) fn mount() -> Result<Value> {
    let (site, origin) = origin("bench-mount")?;
    let source = site.path("source");
    tree::generate(&source, DIRECTORIES, FILES, FILE_BYTES)?;
    import_into(&site, &origin, VOLUME, &source)?;
    let large = site.path("large");
    write_large(&large.join("large"))?;
    import_into(&site, &origin, "large", &large)?;
    let line = Line::to(origin.port, ONE_WAY)?;

    let mount = site.mount("one", VOLUME, line.port(), &[])?;
    let before = mount.requests()?;
    find(&mount.at(""))?;
    grep(&mount.at(""))?;
    let cold_round_trips = mount.requests()? - before;
    let (warm_find_s, warm_grep_s) = (best(|| find(&mount.at("")))?, best(|| grep(&mount.at("")))?);
    let (local_find_s, local_grep_s) = (best(|| find(&source))?, best(|| grep(&source))?);
    mount.stop()?;
    // Through it the kernel opens files without a message.
    let mount = site.mount("one", VOLUME, line.port(), &["--read-only"])?;
    find(&mount.at(""))?;
    grep(&mount.at(""))?;
    let read_only_grep_s = best(|| grep(&mount.at("")))?;
    mount.stop()?;

    let memory = ["--memory", "3GiB"];
    let mount = site.mount("one", "large", line.port(), &memory)?;
    let read_gb_s = read_large(&mount.at("large"))?;
    mount.stop()?;

    let (docs_files, docs_cold_round_trips) = documentation(&site, &origin, &line)?;
    origin.stop()?;
    Ok(json!({
        "files": FILES,
        "warm_find_s": warm_find_s,
        "local_find_s": local_find_s,
        "warm_grep_s": warm_grep_s,
        "local_grep_s": local_grep_s,
        "read_only_grep_s": read_only_grep_s,
        "cold_round_trips": cold_round_trips,
        "read_gb_s": read_gb_s,
        "docs_files": docs_files,
        "docs_cold_round_trips": docs_cold_round_trips,
    }))
}

/// Making, syncing and renaming small files at a mount 40 ms away, beside the line's round trip.
pub(crate) fn create() -> Result<Value> {
    let (site, origin) = origin("bench-create")?;
    site.volume(origin.port, &["create", VOLUME])?.success()?;
    let line = Line::to(origin.port, ONE_WAY)?;
    let mount = site.mount("one", VOLUME, line.port(), &[])?;
    let bytes = [b'x'; FILE_BYTES];
    let create_4k_close_ms = each(|number| {
        let path = mount.at(&format!("file-{number}"));
        timed(|| Ok(File::create(path)?.write_all(&bytes)?))
    })?;
    let fsync_ms = each(|number| {
        let mut file = File::create(mount.at(&format!("synced-{number}")))?;
        file.write_all(&bytes)?;
        timed(|| Ok(file.sync_all()?))
    })?;
    let rename_ms = each(|number| {
        let (from, to) = (format!("file-{number}"), format!("renamed-{number}"));
        timed(|| Ok(fs::rename(mount.at(&from), mount.at(&to))?))
    })?;
    mount.stop()?;
    origin.stop()?;
    Ok(json!({
        "create_4k_close_ms": create_4k_close_ms,
        "fsync_ms": fsync_ms,
        "rename_ms": rename_ms,
        "round_trip_ms": round_trip_ms()?,
    }))
}

fn origin(name: &str) -> Result<(Site, Server)> {
    let site = Site::new(&larder_binary()?, name)?;
    let origin = site.origin(&site.path("data"), 0, &[])?;
    Ok((site, origin))
}

/// The seconds that `larder volume import` takes.
fn import_into(site: &Site, origin: &Server, volume: &str, source: &Path) -> Result<f64> {
    let started = Instant::now();
    let from = source.display().to_string();
    let mut import: Process =
        site.start_volume(origin.port, &["import", volume, &from, "--create", "--json"])?;
    let code = import.ended(IMPORT_LIMIT)?;
    ensure!(code == Some(0), "the import ended with {code:?}:\n{}", import.tail());
    Ok(started.elapsed().as_secs_f64())
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status()?;
    ensure!(status.success(), "{command:?} ended with {status}");
    Ok(())
}

/// Writes out what the file system of `path` has waiting.
fn sync(path: &Path) -> Result<()> {
    succeed(Command::new("sync").arg("-f").arg(path))
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed().as_secs_f64())
}

/// The least of three times: what is warm is a matter of processors alone.
fn best(mut work: impl FnMut() -> Result<f64>) -> Result<f64> {
    Ok(work()?.min(work()?).min(work()?))
}

/// Milliseconds: the median of many.
fn each(mut work: impl FnMut(u32) -> Result<f64>) -> Result<f64> {
    let times = (0..OPERATIONS).map(|number| Ok(work(number)? * 1e3)).collect::<Result<_>>()?;
    median(times).context("several were done")
}

/// Looks at every name: by its size, which the names alone do not tell.
fn find(root: &Path) -> Result<f64> {
    timed(|| succeed(Command::new("find").arg(root).args(["-size", "+0"]).stdout(Stdio::null())))
}

/// Reads every file, for a word that is in none.
fn grep(root: &Path) -> Result<f64> {
    timed(|| {
        let status = Command::new("grep").args(["-r", "-F", "no such word"]).arg(root).status()?;
        ensure!(status.code() == Some(1), "grep found it, or ended with {status}");
        Ok(())
    })
}

fn write_large(path: &Path) -> Result<()> {
    fs::create_dir_all(path.parent().context("in a folder")?)?;
    let mut file = File::create(path)?;
    for number in 0..LARGE_BYTES / PIECE_BYTES {
        let piece: Vec<u8> = (0..PIECE_BYTES).map(|at| (at ^ number) as u8).collect();
        file.write_all(&piece)?;
    }
    Ok(())
}

/// Gigabytes a second of a file that the node has in memory and the kernel has not; the median of
/// three.
fn read_large(path: &Path) -> Result<f64> {
    let mut rates = Vec::new();
    let mut piece = vec![0; PIECE_BYTES];
    for round in 0..4 {
        let mut file = File::open(path)?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
        let (started, mut total) = (Instant::now(), 0);
        loop {
            let count = file.read(&mut piece)?;
            if count == 0 {
                break;
            }
            total += count;
        }
        ensure!(total == LARGE_BYTES, "{total} bytes read of {LARGE_BYTES}");
        // The first round brings it to the node.
        if round > 0 {
            rates.push(total as f64 / 1e9 / started.elapsed().as_secs_f64());
        }
    }
    median(rates).context("three rounds")
}

/// Files of the machine's documentation, and round trips to find and search them cold; none where
/// there is none.
fn documentation(site: &Site, origin: &Server, line: &Line) -> Result<(u64, u64)> {
    let source = Path::new(DOCUMENTATION);
    if !source.is_dir() {
        return Ok((0, 0));
    }
    import_into(site, origin, "docs", source)?;
    let mount = site.mount("two", "docs", line.port(), &[])?;
    let before = mount.requests()?;
    let walked = tree::walk(&mount.at(""))?;
    let requests = mount.requests()? - before;
    mount.stop()?;
    Ok((walked.files, requests))
}

/// What a byte there and back takes over a line of the same length.
fn round_trip_ms() -> Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let line = Line::to(listener.local_addr()?.port(), ONE_WAY)?;
    // It ends with its only connection.
    let echo = std::thread::spawn(move || -> std::io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut byte = [0];
        while stream.read(&mut byte)? == 1 {
            stream.write_all(&byte)?;
        }
        Ok(())
    });
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, line.port()))?;
    stream.set_nodelay(true)?;
    let mut byte = [0];
    let mut there_and_back = || {
        timed(|| {
            stream.write_all(&byte)?;
            Ok(stream.read_exact(&mut byte)?)
        })
    };
    // The first one opened the line too.
    there_and_back()?;
    let median = each(|_| there_and_back())?;
    drop(stream);
    echo.join().expect("it does not panic")?;
    Ok(median)
}
