//! `-o`: the options that `mount` and `/etc/fstab` know, and `mount.larder`, by which they start us.

use fuser::MountOption;
use larder::config::ConfigError;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The names under which `mount -t larder` starts the command, and `umount` where that is mounted.
const HELPER: &str = "mount.larder";
const UNMOUNT_HELPER: &str = "umount.fuse.larder";
/// Of interest to `mount`, systemd and the kernel's own tables alone.
#[rustfmt::skip]
const OTHERS: [&str; 17] = [
    "defaults", "_netdev", "nofail", "auto", "noauto", "user", "nouser", "users", "owner", "group",
    "relatime", "norelatime", "strictatime", "diratime", "nodiratime", "lazytime", "nolazytime",
];

/// What `-o` asked for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct KernelOptions {
    /// `ro`, or `rw`.
    pub(crate) read_only: Option<bool>,
    /// `allow_other`.
    pub(crate) allow_other: bool,
    /// What the kernel is told as it is.
    pub(crate) flags: Vec<MountOption>,
}

impl KernelOptions {
    /// Reads options; of two that contradict each other the later one counts, as with `mount`.
    pub(crate) fn parse(words: &[String]) -> Result<Self, ConfigError> {
        let mut options = Self::default();
        for word in words {
            match word.as_str() {
                "ro" => options.read_only = Some(true),
                "rw" => options.read_only = Some(false),
                "allow_other" => options.allow_other = true,
                word if is_for_others(word) => {}
                word => {
                    let (flag, opposite) = flag(word).ok_or_else(|| unknown(word))?;
                    options
                        .flags
                        .retain(|known| *known != flag && Some(known) != opposite.as_ref());
                    options.flags.push(flag);
                }
            }
        }
        Ok(options)
    }
}

fn is_for_others(word: &str) -> bool {
    word.is_empty()
        || word.starts_with("x-")
        || word.starts_with("comment=")
        || OTHERS.contains(&word)
}

fn unknown(word: &str) -> ConfigError {
    ConfigError::Invalid {
        layer: format!("-o {word}"),
        detail: if word == "remount" {
            "a mount cannot be changed while it is there: unmount it, and mount it anew".into()
        } else {
            "no such option: the kernel's are ro, rw, allow_other, (no)dev, (no)suid, (no)exec, \
                 (no)atime, dirsync, sync and async; all else is a flag of `larder mount`"
                .into()
        },
    }
}

/// An option of the kernel, and the one that it contradicts.
fn flag(word: &str) -> Option<(MountOption, Option<MountOption>)> {
    use MountOption as M;
    Some(match word {
        "dev" => (M::Dev, Some(M::NoDev)),
        "nodev" => (M::NoDev, Some(M::Dev)),
        "suid" => (M::Suid, Some(M::NoSuid)),
        "nosuid" => (M::NoSuid, Some(M::Suid)),
        "exec" => (M::Exec, Some(M::NoExec)),
        "noexec" => (M::NoExec, Some(M::Exec)),
        "atime" => (M::Atime, Some(M::NoAtime)),
        "noatime" => (M::NoAtime, Some(M::Atime)),
        "sync" => (M::Sync, Some(M::Async)),
        "async" => (M::Async, Some(M::Sync)),
        "dirsync" => (M::DirSync, None),
        _ => return None,
    })
}

/// The words of the command line; those of `mount.larder VOLUME POINT [-sfnv] [-N SPACE] [-t TYPE]
/// [-o OPTIONS]` become those of `larder mount`. What `-o` names beside the kernel's options is a
/// flag of `larder mount` (`name=alice` is `--name=alice`, `read_only` is `--read-only`) or, with a
/// dot in it, a key of the settings. None: `mount --fake` wants nothing done.
pub(crate) fn words(given: Vec<OsString>) -> Option<Vec<OsString>> {
    let own = given.first().and_then(|word| Path::new(word).file_name());
    if own == Some(OsStr::new(UNMOUNT_HELPER)) {
        return Some(words_of_unmount(given));
    }
    if own != Some(OsStr::new(HELPER)) {
        return Some(given);
    }
    let mut words: Vec<OsString> = ["larder", "mount"].map(OsString::from).to_vec();
    let mut kernel = Vec::new();
    let mut given = given.into_iter().skip(1);
    while let Some(word) = given.next() {
        match word.to_str() {
            Some("-f") => return None,
            Some("-s" | "-n" | "-v") => {}
            Some("-N" | "-t") => drop(given.next()),
            Some("-o") => {
                let list = given.next().unwrap_or_default();
                for option in list.as_bytes().split(|byte| *byte == b',') {
                    match std::str::from_utf8(option) {
                        Ok(text) if is_of_kernel(text) => kernel.push(text.to_owned()),
                        _ => words.push(flag_of(option)),
                    }
                }
            }
            _ => words.push(word),
        }
    }
    if !kernel.is_empty() {
        words.extend(["-o".into(), kernel.join(",").into()]);
    }
    Some(words)
}

/// Those of `umount.fuse.larder POINT [-flnrv] [-N SPACE] [-t TYPE]`.
fn words_of_unmount(given: Vec<OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = ["larder", "unmount"].map(OsString::from).to_vec();
    let mut given = given.into_iter().skip(1);
    while let Some(word) = given.next() {
        match word.to_str() {
            Some("-n" | "-r" | "-v") => {}
            Some("-N" | "-t") => drop(given.next()),
            _ => words.push(word),
        }
    }
    words
}

fn is_of_kernel(option: &str) -> bool {
    option == "remount"
        || is_for_others(option)
        || KernelOptions::parse(&[option.to_owned()]).is_ok()
}

/// Byte by byte: paths need not be text.
fn flag_of(option: &[u8]) -> OsString {
    let key = option.iter().position(|byte| *byte == b'=').unwrap_or(option.len());
    let (key, value) = option.split_at(key);
    if key.contains(&b'.') && !value.is_empty() {
        return OsString::from_vec([b"--set=", option].concat());
    }
    let key: Vec<u8> = key.iter().map(|byte| if *byte == b'_' { b'-' } else { *byte }).collect();
    OsString::from_vec([b"--", &key[..], value].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    #[test]
    fn of_two_options_that_contradict_the_later_counts() {
        let options =
            KernelOptions::parse(&list("rw,defaults,noexec,_netdev,ro,exec,noatime,x-a=b"));
        let options = options.expect("all are known");
        assert_eq!(options.read_only, Some(true));
        assert_eq!(options.flags, [MountOption::Exec, MountOption::NoAtime]);
        let error = KernelOptions::parse(&list("rw,noexc")).expect_err("misspelt").to_string();
        assert!(error.contains("-o noexc") && error.contains("larder mount"), "{error}");
    }

    /// A line of `/etc/fstab`, as `mount` hands it on.
    #[test]
    fn a_line_of_fstab_is_a_mount() {
        let given = "/sbin/mount.larder docs /mnt -n -o \
                     rw,nosuid,_netdev,config=/etc/larder/larder.toml,name=alice,node.memory=2GiB,private";
        let given = given.split_whitespace().map(OsString::from).collect();
        let wanted = "larder mount docs /mnt --config=/etc/larder/larder.toml --name=alice \
                      --set=node.memory=2GiB --private -o rw,nosuid,_netdev";
        let wanted: Vec<_> = wanted.split_whitespace().map(OsString::from).collect();
        assert_eq!(words(given), Some(wanted));
        let given = "/sbin/umount.fuse.larder /mnt -n -l -t fuse.larder";
        let given = given.split_whitespace().map(OsString::from).collect();
        assert_eq!(
            words(given),
            Some(["larder", "unmount", "/mnt", "-l"].map(OsString::from).into())
        );
        // A path is what it is: it came with another letter in the place of what is no text.
        let given = ["mount.larder", "docs", "/mnt", "-o"].map(OsString::from);
        let list = OsString::from_vec(b"log_file=/var/log/gr\xfc\xdfe,ro".to_vec());
        let found = words(given.into_iter().chain([list]).collect()).expect("a mount");
        let path = OsString::from_vec(b"--log-file=/var/log/gr\xfc\xdfe".to_vec());
        assert_eq!(found[4..], [path, "-o".into(), "ro".into()]);
        let fake = ["mount.larder", "docs", "/mnt", "-f"].map(OsString::from).to_vec();
        assert_eq!(words(fake), None);
        let plain = ["larder", "mount", "-f", "docs", "/mnt"].map(OsString::from).to_vec();
        assert_eq!(words(plain.clone()), Some(plain));
    }
}
