#!/usr/bin/env bash
# deb.sh BINARY FOLDER: packs the `larder` command with its man pages, completions and units into
# FOLDER/larder_VERSION_ARCHITECTURE.deb, and names it. Needs dpkg-deb.
set -euo pipefail
[ $# = 2 ] || { echo "usage: deb.sh BINARY FOLDER" >&2; exit 2; }
binary=$(realpath "$1") target=$(realpath "$2") here=$(dirname "$(realpath "$0")")
version=$("$binary" --version | cut -d' ' -f2)
architecture=$(dpkg --print-architecture)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

install -D -m 755 "$binary" "$root/usr/bin/larder"
install -d "$root/sbin" "$root/etc/larder" "$root/DEBIAN"
# What `mount -t larder` and /etc/fstab start, and `umount`.
ln -s /usr/bin/larder "$root/sbin/mount.larder"
ln -s /usr/bin/larder "$root/sbin/umount.fuse.larder"
"$binary" manual "$root/usr/share/man/man1"
gzip -9n "$root"/usr/share/man/man1/*.1
completions() { install -D -m 644 /dev/stdin "$root/usr/share/$2" < <("$binary" completions "$1"); }
completions bash bash-completion/completions/larder
completions zsh zsh/vendor-completions/_larder
completions fish fish/vendor_completions.d/larder.fish
install -D -m 644 -t "$root/usr/lib/systemd/system" "$here"/systemd/*.service
install -D -m 644 "$here/../LICENSE" "$root/usr/share/doc/larder/copyright"
install -D -m 644 "$here/../THIRD-PARTY.md" "$root/usr/share/doc/larder/THIRD-PARTY.md"
install -D -m 644 -t "$root/usr/share/doc/larder" "$here/../docs/settings.md"
chmod 700 "$root/etc/larder"
cat >"$root/DEBIAN/control" <<CONTROL
Package: larder
Version: $version
Architecture: $architecture
Section: net
Priority: optional
Maintainer: The Larder authors <larder@localhost>
Installed-Size: $(du -sk "$root" | cut -f1)
Recommends: fuse3, mount
Description: coherent wide-area cache for shared, changing data
 An origin keeps volumes durable; nodes near the people who use the data keep it in memory and keep it
 right. A volume is mounted as a tree of files, at any number of sites at once.
CONTROL
package="$target/larder_${version}_$architecture.deb"
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
echo "$package"
