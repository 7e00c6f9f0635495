//! Extended attributes, access control lists among them.

use super::{Adapter, Answer, failed_there, reply_empty};
use fuser::{Errno, INodeNo, ReplyEmpty, ReplyXattr, Request};
use larder::fs::{FsError, TxStore, XattrMode};
use larder::metrics::Asked;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// `XATTR_CREATE` and `XATTR_REPLACE` of `setxattr`.
const CREATE: i32 = 1;
const REPLACE: i32 = 2;
/// The attribute that takes set-group-id from a file when somebody outside its group sets it.
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
/// Attributes that only root is shown.
const ROOT_ONLY: &[u8] = b"trusted.";

fn mode_of(flags: i32) -> Option<XattrMode> {
    match flags {
        0 => Some(XattrMode::Any),
        CREATE => Some(XattrMode::Create),
        REPLACE => Some(XattrMode::Replace),
        _ => None,
    }
}

/// Answers with bytes, or only with how many there are if that is asked for.
fn answer(result: Answer<Vec<u8>>, size: u32, reply: ReplyXattr) {
    match result {
        Err(error) => reply.error(error),
        Ok(bytes) if size == 0 => reply.size(u32::try_from(bytes.len()).unwrap_or(u32::MAX)),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
    }
}

/// The groups of a process, beside its own; none if it is of another namespace, or gone.
fn groups_of(process: u32) -> Vec<u32> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let numbers = line.unwrap_or_default().split_ascii_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
}

impl<S: TxStore> Adapter<S> {
    pub(super) fn get_xattr(&self, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.count(Asked::Attributes);
        let name = name.as_bytes().to_vec();
        self.run(
            move |shared| async move {
                let value = failed_there(shared.fs.xattr(shared.id(ino)?, &name).await)?;
                Ok(value.to_vec())
            },
            move |_, result| answer(result, size, reply),
        );
    }

    pub(super) fn list_xattrs(&self, req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.count(Asked::Attributes);
        let root = req.uid() == 0;
        self.run(
            move |shared| async move {
                let list = failed_there(shared.fs.xattrs(shared.id(ino)?).await)?;
                let shown = list.0.keys().filter(|name| root || !name.starts_with(ROOT_ONLY));
                Ok(shown.flat_map(|name| name.iter().copied().chain([0])).collect())
            },
            move |_, result| answer(result, size, reply),
        );
    }

    pub(super) fn set_xattr(
        &self,
        req: &Request,
        ino: INodeNo,
        (name, value): (&OsStr, &[u8]),
        flags: i32,
        reply: ReplyEmpty,
    ) {
        self.count(Asked::Change);
        let Some(mode) = mode_of(flags) else { return reply.error(Errno::EINVAL) };
        let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
        let outsider = (name == ACCESS_LIST && req.uid() != 0).then(|| {
            let mut groups = groups_of(req.pid());
            groups.push(req.gid());
            groups
        });
        self.run_to_its_end(
            req,
            move |shared| async move {
                let id = shared.id(ino)?;
                let clears = match outsider {
                    None => false,
                    Some(groups) => {
                        let inode = failed_there(shared.fs.getattr(id).await)?.inode;
                        !groups.contains(&inode.gid)
                    }
                };
                let set = shared.fs.set_xattr(id, (&name, &value), mode, clears).await;
                let attr = failed_there(set)?;
                if name == ACCESS_LIST {
                    shared.take_back_before(ino, &attr).await;
                }
                Ok(())
            },
            reply_empty(reply),
        );
    }

    pub(super) fn remove_xattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        reply: ReplyEmpty,
    ) {
        self.count(Asked::Change);
        let name = name.as_bytes().to_vec();
        self.run_to_its_end(
            req,
            move |shared| async move {
                let attr = match shared.fs.remove_xattr(shared.id(ino)?, &name).await {
                    // The kernel removes lists that say no more than the mode, there or not.
                    Err(FsError::NoXattr) if name.starts_with(b"system.") => return Ok(()),
                    removed => failed_there(removed)?,
                };
                if name == ACCESS_LIST {
                    shared.take_back_before(ino, &attr).await;
                }
                Ok(())
            },
            reply_empty(reply),
        );
    }
}
