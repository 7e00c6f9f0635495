//! Which process serves which mount: a file for each mount, by which `larder unmount` finds whom to
//! wait for, and hears what became of what was written.
//!
//! The files are in `/run/larder`, or `$XDG_RUNTIME_DIR/larder` for others than root, named by the
//! number that the kernel gave the mount's device and by the process: that number is given anew as soon
//! as the mount is gone. Their folder is its owner's alone. Root looks for everybody's.

use anyhow::{Context, Result, ensure};
use rustix::process::{geteuid, getpid};
use serde_json::{Value, json};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A line of the kernel's table of mounts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Standing {
    /// The kernel's number of this mount: a bind mount of it has another.
    pub(crate) id: u64,
    /// The device's number, `MAJOR:MINOR`: the file system's, wherever it is mounted.
    pub(crate) device: String,
    /// `fuse.larder` for one of ours.
    pub(crate) kind: String,
    /// Lines of the table with this device.
    pub(crate) times: usize,
}

/// What is mounted at a path, the topmost; none: nothing is. A mount that answers nobody is found too.
pub(crate) fn at(point: &Path) -> Result<Option<Standing>> {
    let point = std::path::absolute(point)?;
    // To read a link asks the file system that it is in, not the one that is mounted there.
    let point = if fs::read_link(&point).is_ok() { point.canonicalize()? } else { point };
    let point = match (point.parent().map(Path::canonicalize), point.file_name()) {
        (Some(Ok(parent)), Some(name)) => parent.join(name),
        _ => point,
    };
    Ok(found(&fs::read("/proc/self/mountinfo")?, &point))
}

/// Paths are bytes there, whatever else is mounted.
fn found(table: &[u8], point: &Path) -> Option<Standing> {
    let lines = table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut words = line.split(|byte| *byte == b' ');
        let text = |word: Option<&_>| std::str::from_utf8(word?).ok().map(str::to_owned);
        let id = text(words.next())?.parse().ok()?;
        let (_parent, device) = (words.next()?, text(words.next())?);
        let (_root, at) = (words.next()?, words.next()?);
        let kind = words.skip_while(|word| *word != b"-").nth(1);
        Some((id, device, at, text(kind)?))
    });
    let lines: Vec<(u64, String, &[u8], String)> = lines.collect();
    let point = point.as_os_str().as_encoded_bytes();
    let (id, device, _, kind) = lines.iter().rfind(|(_, _, at, _)| plain(at) == point)?;
    let times = lines.iter().filter(|(_, other, _, _)| other == device).count();
    Some(Standing { id: *id, device: device.clone(), kind: kind.clone(), times })
}

/// A path as it is, of one as the kernel's table has it: with `\ooo` for what would end a word.
fn plain(bytes: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let octal = bytes.get(at + 1..at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(code) if *byte == b'\\' => {
                out.push(code);
                at += 4;
            }
            _ => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    out
}

/// The folder of this user's files; made if asked, and refused when it is another's.
fn folder(make: bool) -> Result<PathBuf> {
    let folder = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        Some(own) if !geteuid().is_root() && own.is_absolute() => own.join("larder"),
        _ if geteuid().is_root() => PathBuf::from("/run/larder"),
        _ => PathBuf::from(format!("/tmp/larder-{}", geteuid().as_raw())),
    };
    if make {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    }
    match fs::symlink_metadata(&folder) {
        Ok(about) => {
            let own =
                about.is_dir() && about.uid() == geteuid().as_raw() && about.mode() & 0o22 == 0;
            ensure!(own, "{} is not a folder that only its owner may change", folder.display());
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| folder.display().to_string()),
    }
    Ok(folder)
}

/// Folders in which somebody may have said that it serves a mount: root is told by everybody.
fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = folder(false).into_iter().collect();
    if geteuid().is_root() {
        let users = fs::read_dir("/run/user").into_iter().flatten().flatten();
        folders.extend(users.map(|user| user.path().join("larder")));
    }
    folders
}

/// The beginning of the names of a device's files.
fn prefix(device: &str) -> String {
    format!("mount-{}-", device.replace(':', "-"))
}

/// When a process began, in the kernel's ticks: with its number it names it for good. None: it is
/// gone, or about to be.
fn began(process: u64) -> Option<u64> {
    let stat = fs::read(format!("/proc/{process}/stat")).ok()?;
    // After the name, which may hold anything: the state, and the 22nd word in all.
    let stat = String::from_utf8_lossy(&stat);
    let mut words = stat.rsplit_once(") ")?.1.split(' ');
    let state = words.next()?;
    if state == "Z" { None } else { words.nth(18)?.parse().ok() }
}

/// This process's entry for its mount: removed when it is dropped, unless something was lost.
pub(crate) struct Registered {
    file: PathBuf,
    own: Value,
}

impl Registered {
    /// Says that this process serves the mount at a point. None: it cannot be said, and whoever
    /// unmounts will not wait.
    pub(crate) fn begin(point: &Path, volume: &str) -> Option<Self> {
        let said = || -> Result<Self> {
            let standing = at(point)?.context("it is not in the table of mounts")?;
            let process = u64::try_from(getpid().as_raw_nonzero().get())?;
            let own = json!({
                "process": process, "began": began(process), "mount": standing.id, "volume": volume,
            });
            let file = folder(true)?.join(format!("{}{process}", prefix(&standing.device)));
            let registered = Self { file, own };
            registered.write(&registered.own)?;
            Ok(registered)
        };
        let warn = |error: &anyhow::Error| {
            let error = format!("{error:#}");
            tracing::warn!(error, "`larder unmount` will not wait for what is written");
        };
        said().inspect_err(warn).ok()
    }

    fn write(&self, what: &Value) -> Result<()> {
        let new = self.file.with_extension("new");
        fs::write(&new, what.to_string())?;
        Ok(fs::rename(new, &self.file)?)
    }

    /// It has ended, and this was lost.
    pub(crate) fn lost(&mut self, error: &anyhow::Error) {
        self.own["lost"] = format!("{error:#}").into();
        if let Err(error) = self.write(&self.own) {
            tracing::warn!(%error, "whoever unmounts is not told");
        }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if self.own.get("lost").is_none() {
            // Nothing to be told of.
            let _gone = fs::remove_file(&self.file);
        }
    }
}

/// The process that serves a mount, as somebody who waits for it sees it.
pub(crate) struct Server {
    file: PathBuf,
    process: u64,
    began: u64,
    mount: u64,
}

impl Server {
    /// Who serves a file system that is mounted; none: it did not say, or is gone. What those left
    /// who are gone, and lost nothing, is removed.
    pub(crate) fn of(standing: &Standing) -> Option<Self> {
        let prefix = prefix(&standing.device);
        let files = folders().into_iter().filter_map(|folder| fs::read_dir(folder).ok());
        let files = files.flatten().flatten().map(|entry| entry.path());
        let own = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with(&prefix) && !name.ends_with(".new"))
        };
        files.filter(own).find_map(|file| {
            let told: Value = serde_json::from_slice(&fs::read(&file).ok()?).ok()?;
            let [process, since, mount] =
                ["process", "began", "mount"].map(|key| told[key].as_u64());
            let server = Self { file, process: process?, began: since?, mount: mount? };
            if server.is_there() {
                return Some(server);
            }
            if told.get("lost").is_none() {
                let _gone = fs::remove_file(&server.file);
            }
            None
        })
    }

    /// Its number.
    pub(crate) fn process(&self) -> u64 {
        self.process
    }

    /// Whether a mount is the one that it made, and the last one: a bind mount ends by itself.
    pub(crate) fn ends_with(&self, standing: &Standing) -> bool {
        standing.id == self.mount && standing.times == 1
    }

    /// Whether it is there still.
    pub(crate) fn is_there(&self) -> bool {
        began(self.process) == Some(self.began)
    }

    /// What it lost, once it is gone. Told once.
    pub(crate) fn lost(&self) -> Option<String> {
        let told: Value = serde_json::from_slice(&fs::read(&self.file).ok()?).ok()?;
        let lost = told["lost"].as_str()?.to_owned();
        let _gone = fs::remove_file(&self.file);
        Some(lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn the_topmost_mount_at_a_path_is_found() {
        let table = "22 1 0:21 / / rw - ext4 /dev/a rw\n\
                     30 22 0:40 / /mnt/a\\040b rw,nosuid shared:5 - fuse.larder docs rw\n\
                     31 22 0:41 / /mnt/a\\040b rw - fuse.larder other rw\n\
                     32 22 0:41 / /bound rw - fuse.larder other rw\n";
        // A path that is no text, somewhere else, was taken for the end of the table.
        let table = &[b"29 22 0:39 / /mnt/\xff rw - ext4 /dev/b rw\n", table.as_bytes()].concat();
        let standing = found(table, Path::new("/mnt/a b")).expect("it is there");
        let wanted =
            Standing { id: 31, device: "0:41".into(), kind: "fuse.larder".into(), times: 2 };
        assert_eq!(standing, wanted);
        assert_eq!(found(table, Path::new("/mnt/a")), None);
        let elsewhere = Path::new(std::ffi::OsStr::from_bytes(b"/mnt/\xff"));
        assert_eq!(found(table, elsewhere).map(|it| it.id), Some(29));
        assert_eq!(found(b"torn line\n - \n", Path::new("/")), None);
        assert_eq!(plain(b"a\\134b\\9"), b"a\\b\\9");
    }

    #[test]
    fn a_process_is_named_by_its_number_and_its_beginning() {
        let own = u64::from(std::process::id());
        assert!(began(own).is_some_and(|ticks| ticks > 0));
        assert_eq!(began(u64::MAX), None);
    }
}
