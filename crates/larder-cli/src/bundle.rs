//! `larder support-bundle`: what somebody who helps from afar wants to see, and no secrets.
//!
//! Only what is named here is put in: no key, no content of a file of a volume, no page of a store.
//! Names of files may be in logs.

use crate::args::Common;
use crate::out;
use crate::settings::Flags;
use anyhow::{Context, Result};
use clap::Args;
use flate2::Compression;
use flate2::write::GzEncoder;
use indicatif::HumanBytes;
use larder::config::Config;
use rustix::fs::statvfs;
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Of a log, its last bytes.
const LOG_BYTES: u64 = 1 << 20;
/// Logs, the newest first.
const LOGS_MAX: usize = 16;
/// Of what a process or the system tells.
const TEXT_BYTES: usize = 16 << 20;
/// What stands where a private key was.
const REMOVED: &str = "[a private key was here]";

#[derive(Args, Debug)]
pub(crate) struct BundleArgs {
    /// Where to write it: must not be there [default: larder-support-SECONDS.tar.gz here]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// HTTP endpoint of a process to ask; may be repeated [default: 127.0.0.1:4790]
    #[arg(long, value_name = "HOST:PORT")]
    http: Vec<String>,
    /// A further log file to take the end of; may be repeated. Those of `log.file`, of
    /// /var/log/larder and ~/.local/state/larder are taken anyway
    #[arg(long, value_name = "FILE")]
    take_log: Vec<PathBuf>,
}

/// Collects, writes the archive, and says what is in it.
pub(crate) async fn run(arguments: &BundleArgs, common: &Common) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let file = arguments.file.clone();
    let file = file.unwrap_or_else(|| format!("larder-support-{now}.tar.gz").into());
    let mut parts = Parts::default();
    parts.add("version.txt", version());
    let config = settings(common, &mut parts);
    let default = ["127.0.0.1:4790".to_owned()];
    let asked = if arguments.http.is_empty() { &default[..] } else { &arguments.http };
    for address in asked {
        process(address, &mut parts).await;
    }
    logs(&config, &arguments.take_log, &mut parts);
    parts.add("mounts.txt", mounts());
    parts.add("room.txt", room(&config));
    parts.add("certificates.txt", certificates(&config.tls_dir));
    system(&mut parts);

    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file);
    let made = made.with_context(|| file.display().to_string())?;
    let written = write(made, &parts, now);
    if written.is_err() {
        // Whoever finds half of it would take it for all.
        let _ = fs::remove_file(&file);
    }
    let bytes = written.with_context(|| file.display().to_string())?;
    report(&file, bytes, &parts, common)
}

/// What goes in: a name and a text each.
#[derive(Default)]
struct Parts(Vec<(String, String)>);

impl Parts {
    fn add(&mut self, name: &str, text: impl Into<String>) {
        let mut text = without_keys(&text.into());
        if text.len() > TEXT_BYTES {
            let end = (0..=TEXT_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            text.truncate(end);
            text.push_str("\n[cut here]\n");
        }
        self.0.push((name.to_owned(), text));
    }
}

/// A text in which blocks of private keys, as PEM has them, are left out: whatever somebody put
/// into a log or a variable. One that has no end takes the rest with it.
fn without_keys(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("-----BEGIN ") {
        let head = &rest[at..];
        let kind = head["-----BEGIN ".len()..].split("-----").next().unwrap_or_default();
        if !kind.contains("PRIVATE KEY") {
            let after = at + "-----BEGIN ".len();
            out.push_str(&rest[..after]);
            rest = &rest[after..];
            continue;
        }
        out.push_str(&rest[..at]);
        out.push_str(REMOVED);
        let end = head.find("-----END ").map(|end| &head[end + "-----END ".len()..]);
        rest = end.and_then(|tail| Some(&tail[tail.find("-----")? + 5..])).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

fn version() -> String {
    let binary = std::env::current_exe().map(|path| path.display().to_string()).unwrap_or_default();
    format!("larder {}\n{binary}\n", env!("CARGO_PKG_VERSION"))
}

/// The settings as this command sees them; defaults, if they cannot be read.
fn settings(common: &Common, parts: &mut Parts) -> Config {
    let variables: Vec<String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, _)| name.starts_with("LARDER_"))
        .map(|(name, value)| match is_secret(&name) {
            true => format!("{name}=[removed]"),
            false => format!("{name}={}", value.to_string_lossy()),
        })
        .collect();
    parts.add("variables.txt", variables.join("\n") + "\n");
    match Flags::default().load(common) {
        Ok(config) => {
            parts.add("settings.toml", config.to_toml());
            config
        }
        Err(error) => {
            parts.add("settings.error.txt", format!("{error:#}\n"));
            Config::default()
        }
    }
}

/// Whether a variable of somebody else's, under our prefix, may hold what nobody is to see.
fn is_secret(name: &str) -> bool {
    ["KEY", "SECRET", "TOKEN", "PASS", "CREDENTIAL"].iter().any(|word| name.contains(word))
}

async fn process(address: &str, parts: &mut Parts) {
    let folder = address.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "_");
    for (path, file) in
        [("/status", "status.json"), ("/metrics", "metrics.txt"), ("/readyz", "readyz.txt")]
    {
        let (file, text) = match larder::http::get_text(address, path).await {
            Ok((200, body)) => (file.to_owned(), body),
            Ok((code, body)) => (format!("{file}.{code}"), body),
            Err(error) => (format!("{file}.error"), format!("{address}{path}: {error}\n")),
        };
        parts.add(&format!("processes/{folder}/{file}"), text);
    }
}

fn logs(config: &Config, more: &[PathBuf], parts: &mut Parts) {
    let mut found: Vec<PathBuf> = more.to_vec();
    if !config.log.file.as_os_str().is_empty() {
        found.push(config.log.file.clone());
    }
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/state/larder"));
    for folder in [Some(PathBuf::from("/var/log/larder")), home].into_iter().flatten() {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let logs = entries.map(|entry| entry.path());
        found.extend(logs.filter(|path| path.extension().is_some_and(|e| e == "log")));
    }
    let changed = |path: &PathBuf| fs::metadata(path).and_then(|about| about.modified()).ok();
    found.sort_by_key(|path| std::cmp::Reverse(changed(path)));
    found.dedup();
    for (number, path) in found.iter().take(LOGS_MAX).enumerate() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let text = tail(path).unwrap_or_else(|error| format!("{}: {error}\n", path.display()));
        parts.add(&format!("logs/{number}-{name}"), text);
    }
}

/// The last bytes of a file, from the beginning of a line on.
fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("not a plain file"));
    }
    let skipped = file.metadata()?.len().saturating_sub(LOG_BYTES);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(match text.split_once('\n') {
        Some((_, rest)) if skipped > 0 => format!("[{skipped} bytes before]\n{rest}"),
        _ => text,
    })
}

/// Mounts of file systems in user space: not every kernel says which of them are Larder's.
fn mounts() -> String {
    let mounts = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = String::from_utf8_lossy(&mounts);
    mounts.lines().filter(|line| line.contains(" - fuse")).fold(String::new(), |mut all, line| {
        all.push_str(line);
        all.push('\n');
        all
    })
}

/// The room on the disks that are used.
fn room(config: &Config) -> String {
    let log = config.log.file.parent().map(Path::to_path_buf).unwrap_or_default();
    let places =
        [&config.origin.data, &config.tls_dir, &log, Path::new("/var/log"), Path::new("/")];
    let mut text = String::new();
    for place in places.into_iter().map(AsRef::<Path>::as_ref) {
        if place.as_os_str().is_empty() {
            continue;
        }
        let line = match statvfs(place) {
            Ok(s) => format!(
                "{}: {} free of {}, {} inodes free of {}",
                place.display(),
                HumanBytes(s.f_bavail * s.f_frsize),
                HumanBytes(s.f_blocks * s.f_frsize),
                s.f_favail,
                s.f_files
            ),
            Err(error) => format!("{}: {error}", place.display()),
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// The files of the folder of certificates with their modes, and what certificates say. No bytes of
/// any file.
fn certificates(folder: &Path) -> String {
    let mut text = format!("{}:\n", folder.display());
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    for path in files {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match fs::metadata(&path) {
            Ok(about) => text.push_str(&format!(
                "{name}: mode {:o}, user {}, {} bytes\n",
                about.mode() & 0o7777,
                about.uid(),
                about.len()
            )),
            Err(error) => text.push_str(&format!("{name}: {error}\n")),
        }
    }
    match larder::tls::certificates(folder) {
        Ok(all) => {
            for one in all {
                let value = serde_json::to_string(&one).unwrap_or_default();
                text.push_str(&format!("{value}\n"));
            }
        }
        Err(error) => text.push_str(&format!("{error}\n")),
    }
    text
}

/// What the machine is.
fn system(parts: &mut Parts) {
    for (path, name) in [
        ("/proc/version", "system/version.txt"),
        ("/etc/os-release", "system/os-release.txt"),
        ("/proc/meminfo", "system/memory.txt"),
        ("/proc/loadavg", "system/load.txt"),
        ("/proc/uptime", "system/uptime.txt"),
        ("/proc/self/limits", "system/limits.txt"),
        ("/proc/sys/fs/file-nr", "system/open-files.txt"),
        ("/proc/pressure/io", "system/pressure-io.txt"),
    ] {
        let text = fs::read_to_string(path).unwrap_or_else(|error| format!("{path}: {error}\n"));
        parts.add(name, text);
    }
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let fuse = fs::metadata("/dev/fuse").map(|about| format!("mode {:o}", about.mode()));
    let fuse = fuse.unwrap_or_else(|error| error.to_string());
    parts.add("system/facts.txt", format!("processors: {processors}\n/dev/fuse: {fuse}\n"));
}

/// Writes the archive; its size in bytes.
fn write(file: File, parts: &Parts, now: u64) -> std::io::Result<u64> {
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for (name, text) in &parts.0 {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now);
        archive.append_data(&mut header, format!("larder-support/{name}"), text.as_bytes())?;
    }
    let written = archive.into_inner()?.finish()?;
    written.sync_all()?;
    Ok(written.metadata()?.len())
}

fn report(file: &Path, bytes: u64, parts: &Parts, common: &Common) -> Result<()> {
    if common.json {
        let names: Vec<Value> = parts
            .0
            .iter()
            .map(|(name, text)| json!({ "name": name, "bytes": text.len() }))
            .collect();
        return out::line(json!({
            "file": file.display().to_string(),
            "bytes": bytes,
            "parts": names,
        }));
    }
    for (name, text) in &parts.0 {
        out::line(format_args!("{:>12}  {name}", HumanBytes(text.len() as u64).to_string()))?;
    }
    out::line(format_args!(
        "{} written ({}): no keys and no content of files; logs may name files and users",
        file.display(),
        HumanBytes(bytes)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody logs what he was given, and it was a key.
    #[test]
    fn keys_are_left_out_wherever_they_are() {
        let key = |kind: &str| format!("-----BEGIN {kind}-----\nSECRET\n-----END {kind}-----");
        let text = format!(
            "a\n{}\nb {} c\n{}\nd -----BEGIN PRIVATE KEY-----\nSECRET without an end",
            key("PRIVATE KEY"),
            key("EC PRIVATE KEY"),
            key("CERTIFICATE").replace("SECRET", "public"),
        );
        let safe = without_keys(&text);
        assert!(!safe.contains("SECRET"), "{safe}");
        assert!(
            safe.contains("public") && safe.contains("c\n") && safe.starts_with("a\n"),
            "{safe}"
        );
        assert_eq!(safe.matches(REMOVED).count(), 3, "{safe}");
        assert_eq!(without_keys("nothing -----BEGIN here"), "nothing -----BEGIN here");
    }
}
