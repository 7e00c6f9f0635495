//! What import and export ask of the host's file system beyond the standard library.

use super::FsError;
use super::acl::{self, Acl};
use super::record::XattrList;
use super::xattr::check_xattr_name;
use bytes::Bytes;
use rustix::fs::{
    SeekFrom, XattrFlags, fgetxattr, flistxattr, flistxattr_query, lgetxattr, llistxattr,
    llistxattr_query, lsetxattr, seek,
};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bytes of a host's list of names, and of a value, at most.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Names the file in an error of the host.
pub(super) fn host(path: &Path) -> impl FnOnce(std::io::Error) -> FsError + '_ {
    move |error| FsError::Host { path: path.into(), error: error.to_string() }
}

/// A file of the host whose extended attributes are asked for.
#[derive(Clone, Copy)]
pub(super) enum HostFile<'a> {
    /// By its path: the link itself if it is a symbolic link.
    At(&'a Path),
    /// An open one, with its path for errors: the host need not walk the path again.
    Open(&'a File, &'a Path),
}

impl HostFile<'_> {
    fn path(&self) -> &Path {
        match self {
            Self::At(path) | Self::Open(_, path) => path,
        }
    }

    /// How long the list of names is.
    fn names_length(&self) -> Result<usize, Errno> {
        match self {
            Self::At(path) => llistxattr_query(*path),
            Self::Open(file, _) => flistxattr_query(file),
        }
    }

    fn names(&self, names: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::At(path) => llistxattr(*path, names),
            Self::Open(file, _) => flistxattr(file, names),
        }
    }

    fn value(&self, name: &[u8], value: &mut [u8]) -> Result<usize, Errno> {
        let name = OsStr::from_bytes(name);
        match self {
            Self::At(path) => lgetxattr(*path, name, value),
            Self::Open(file, _) => fgetxattr(file, name, value),
        }
    }
}

/// A file's extended attributes.
pub(super) fn xattrs_of(file: HostFile<'_>) -> Result<XattrList, FsError> {
    let path = file.path();
    let mut list = XattrList::default();
    // Most files have none: without a buffer it is only asked how long the list is.
    let length = match file.names_length() {
        Err(Errno::NOTSUP) | Ok(0) => return Ok(list),
        length => length.map_err(|error| host(path)(error.into()))?,
    };
    let mut names = vec![0; XATTR_BYTES_MAX.max(length)];
    let length = file.names(&mut names).map_err(|error| host(path)(error.into()))?;
    let mut value = vec![0; XATTR_BYTES_MAX];
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        match file.value(name, &mut value) {
            Ok(length) => match imported(name, &value[..length]) {
                Imported::As(value) => {
                    list.0.insert(Bytes::copy_from_slice(name), value);
                }
                Imported::InMode => {}
                Imported::Not => {
                    let name = String::from_utf8_lossy(name);
                    tracing::warn!(path = %path.display(), %name, "attribute left out");
                }
            },
            // Removed meanwhile, or not for us to read.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::NOTSUP) => {}
            Err(error) => return Err(host(path)(error.into())),
        }
    }
    if list.fits() {
        return Ok(list);
    }
    let error = "its extended attributes take more than 256 KiB: remove some".into();
    Err(FsError::Host { path: path.into(), error })
}

/// What becomes of an attribute of the host.
enum Imported {
    As(Bytes),
    /// The file's mode says the same.
    InMode,
    /// A file here cannot have it, and nobody could read or remove it.
    Not,
}

fn imported(name: &[u8], value: &[u8]) -> Imported {
    if check_xattr_name(name).is_err() {
        return Imported::Not;
    }
    if name != acl::ACCESS && name != acl::DEFAULT {
        return Imported::As(Bytes::copy_from_slice(value));
    }
    match Acl::decode(value) {
        Ok(Some(list)) if name == acl::DEFAULT || !list.is_mode() => Imported::As(list.encode()),
        Ok(_) => Imported::InMode,
        Err(_) => Imported::Not,
    }
}

/// Gives a file of the host extended attributes. What the host does not allow, does not know, or has
/// no room for, is left out, as owners are.
pub(super) fn set_xattrs(path: &Path, list: &XattrList) -> Result<(), FsError> {
    for (name, value) in &list.0 {
        match lsetxattr(path, OsStr::from_bytes(name), value, XattrFlags::empty()) {
            Ok(()) => {}
            Err(
                error @ (Errno::PERM
                | Errno::ACCESS
                | Errno::NOTSUP
                | Errno::NOSPC
                | Errno::TOOBIG
                | Errno::RANGE
                | Errno::INVAL),
            ) => {
                let name = String::from_utf8_lossy(name);
                let path = path.display();
                tracing::warn!(%path, %name, %error, "attribute refused by this host");
            }
            Err(error) => return Err(host(path)(error.into())),
        }
    }
    Ok(())
}

/// Where the next bytes of a file begin, and the hole after them; none: no bytes follow. A host
/// that knows no holes says that all of it is bytes.
pub(super) fn next_data(
    file: &File,
    offset: u64,
) -> Result<Option<std::ops::Range<u64>>, std::io::Error> {
    match seek(file, SeekFrom::Data(offset)) {
        Ok(start) => Ok(Some(start..seek(file, SeekFrom::Hole(start))?)),
        Err(Errno::NXIO) => Ok(None),
        Err(Errno::INVAL | Errno::NOTSUP) => {
            let end = file.metadata()?.len();
            Ok((offset < end).then_some(offset..end))
        }
        Err(error) => Err(error.into()),
    }
}
