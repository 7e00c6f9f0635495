//! Mounts of another user than root.

use crate::common::{VOLUME, binary, site};
use anyhow::{Result, ensure};
use larder_harness::site::within;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use std::time::Duration;

/// The user and group `nobody`.
const NOBODY: u32 = 65534;
const LIMIT: Duration = Duration::from_secs(60);

/// As root, in a mount namespace of its own, where everybody may open `/dev/fuse` as on most machines.
const AS_ROOT: &str = r#"
    mount -t tmpfs none "$D/dev"; mknod "$D/dev/fuse" c 10 229; chmod 666 "$D/dev/fuse"
    mount --bind "$D/dev/fuse" /dev/fuse
    exec setpriv --reuid 65534 --regid 65534 --clear-groups env HOME="$D/home" sh -exc "$AS_NOBODY"
"#;

/// Mounts in the background, works, unmounts in both ways, and finds what was written.
const AS_NOBODY: &str = r#"
    cd "$D/home"
    larder() { "$D/larder" "$@"; }
    mounts() { larder mount tree "$D/home/m" --tls tls --name one --parent "127.0.0.1:$PORT"; }
    mounts
    grep -q " $D/home/m fuse.larder .*user_id=65534" /proc/self/mounts
    echo text > m/file; mkdir m/folder; mv m/file m/folder/file; ln -s folder/file m/link
    test "$(cat m/link)" = text
    flock m/folder/file sh -c 'echo more >> m/folder/file'
    for i in 1 2 3; do flock m/folder/file true; done
    exec 3< m/folder/file; rm m/folder/file; test "$(cat <&3)" = "text
more"; exec 3<&-
    echo kept > m/kept
    larder unmount m
    mounts
    test "$(cat m/kept)" = kept; test ! -e m/folder/file
    echo again > m/again
    fusermount3 -u m
    # Its process commits what was closed, and lets go of the name.
    for i in $(seq 100); do if mounts; then break; fi; sleep 0.1; done
    test "$(cat m/again)" = again
    larder unmount m
"#;

/// A mount of a user's own: by `fusermount3`, in the background, with a log in the user's home. Nothing
/// tells such a mount of closes, so its kernel asks.
#[test]
fn another_user_than_root_mounts_and_works() -> Result<()> {
    let site = site("users")?;
    let origin = site.origin(&site.path("data"), 0, &[])?;
    site.volume(origin.port, &["create", VOLUME])?.success()?;
    let mount = site.mount("two", VOLUME, origin.port, &[])?;
    chown(mount.at(""), Some(NOBODY), Some(NOBODY))?;
    mount.stop()?;

    let folder = site.path("home");
    for name in ["home/m", "home/tls", "dev"] {
        fs::create_dir_all(site.path(name))?;
    }
    fs::copy(binary(), site.path("larder"))?;
    for entry in fs::read_dir(site.path("tls"))? {
        let entry = entry?;
        let copy = folder.join("tls").join(entry.file_name());
        fs::copy(entry.path(), &copy)?;
        chown(&copy, Some(NOBODY), Some(NOBODY))?;
    }
    for own in [folder.clone(), folder.join("m"), folder.join("tls")] {
        chown(own, Some(NOBODY), Some(NOBODY))?;
    }
    let all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(site.path(""), all.clone())?;
    fs::set_permissions(site.path("larder"), all)?;

    let mut shell = Command::new("unshare");
    shell.args(["--mount", "--propagation", "private", "sh", "-exc", AS_ROOT]);
    shell.env("D", folder.parent().expect("it is in the site's folder"));
    shell.env("AS_NOBODY", AS_NOBODY);
    shell.env("PORT", origin.port.to_string());
    let ended = within(LIMIT, "the work of another user", move || shell.output())??;
    let told = String::from_utf8_lossy(&ended.stderr);
    ensure!(ended.status.success(), "{}:\n{told}", ended.status);
    let logs = fs::read_dir(folder.join(".local/state/larder"))?.count();
    ensure!(logs > 0, "no log in the user's home");
    origin.stop()?;
    Ok(())
}
