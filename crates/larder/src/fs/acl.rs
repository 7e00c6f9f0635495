//! POSIX access control lists, as the kernel hands them over: the values of two extended
//! attributes. The kernel checks accesses by them; what is here keeps list and mode the same, and
//! gives new names what their directory says.

use super::FsError;
use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The attribute that says who may use a file or directory.
pub(super) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The attribute of a directory that says what its new names are given.
pub(super) const DEFAULT: &[u8] = b"system.posix_acl_default";
/// Version of these attributes' values: the kernel's.
const VERSION: u32 = 2;
/// Bytes of an entry.
const ENTRY_BYTES: usize = 8;

/// Whom an entry is about; in the order in which they stand.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Tag {
    Owner = 0x01,
    User = 0x02,
    OwningGroup = 0x04,
    Group = 0x08,
    /// What users and groups, but for the owner, are allowed at most.
    Mask = 0x10,
    Other = 0x20,
}

impl Tag {
    fn from_number(number: u16) -> Option<Self> {
        use Tag::{Group, Mask, Other, Owner, OwningGroup, User};
        [Owner, User, OwningGroup, Group, Mask, Other].into_iter().find(|tag| *tag as u16 == number)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry {
    tag: Tag,
    /// Read 4, write 2, execute 1.
    permission: u16,
    /// Of a user or group.
    id: u32,
}

/// An access control list. See the module's documentation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Acl {
    entries: Vec<Entry>,
}

impl Acl {
    /// From an attribute's value; none: a list without entries, which stands for no list.
    pub(super) fn decode(mut value: &[u8]) -> Result<Option<Self>, FsError> {
        let invalid = || FsError::Invalid("access control list");
        if value.try_get_u32_le().map_err(|_| invalid())? != VERSION
            || !value.len().is_multiple_of(ENTRY_BYTES)
        {
            return Err(invalid());
        }
        let mut entries = Vec::with_capacity(value.len() / ENTRY_BYTES);
        while value.has_remaining() {
            let tag = Tag::from_number(value.get_u16_le()).ok_or_else(invalid)?;
            let (permission, id) = (value.get_u16_le(), value.get_u32_le());
            entries.push(Entry { tag, permission, id });
        }
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Self { entries };
        if acl.is_valid() { Ok(Some(acl)) } else { Err(invalid()) }
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.entries.iter().filter(|entry| entry.tag == tag).count();
        let once = [Tag::Owner, Tag::OwningGroup, Tag::Other].into_iter().all(|t| count(t) == 1);
        let named = count(Tag::User) + count(Tag::Group) > 0;
        once && count(Tag::Mask) <= 1
            && (count(Tag::Mask) == 1 || !named)
            && self.entries.is_sorted_by_key(|entry| entry.tag)
            && self.entries.iter().all(|entry| entry.permission <= 7)
    }

    /// As the attribute's value.
    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(4 + self.entries.len() * ENTRY_BYTES);
        out.put_u32_le(VERSION);
        for entry in &self.entries {
            out.put_u16_le(entry.tag as u16);
            out.put_u16_le(entry.permission);
            out.put_u32_le(entry.id);
        }
        out.freeze()
    }

    /// Whether it says no more than a mode does.
    pub(super) fn is_mode(&self) -> bool {
        self.entries.len() == 3
    }

    fn entry(&self, tag: Tag) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.tag == tag)
    }

    fn permission(&self, tag: Tag) -> u16 {
        self.entry(tag).map_or(0, |entry| entry.permission)
    }

    /// What the mode's bits for the group stand for.
    fn group_tag(&self) -> Tag {
        if self.entry(Tag::Mask).is_some() { Tag::Mask } else { Tag::OwningGroup }
    }

    /// The nine permission bits of its file's mode.
    pub(super) fn mode(&self) -> u16 {
        let group = self.permission(self.group_tag());
        self.permission(Tag::Owner) << 6 | group << 3 | self.permission(Tag::Other)
    }

    fn change(&mut self, tag: Tag, permission: impl Fn(u16) -> u16) {
        for entry in self.entries.iter_mut().filter(|entry| entry.tag == tag) {
            entry.permission = permission(entry.permission);
        }
    }

    /// Follows a change of its file's mode.
    pub(super) fn set_mode(&mut self, mode: u16) {
        self.change(Tag::Owner, |_| mode >> 6 & 7);
        self.change(self.group_tag(), |_| mode >> 3 & 7);
        self.change(Tag::Other, |_| mode & 7);
    }

    /// Of a directory's default list: the list of a new name in it that is made with this mode,
    /// and the mode that it gets, of which only the permission bits change.
    pub(super) fn inherit(&self, mode: u16) -> (Self, u16) {
        let mut acl = self.clone();
        acl.change(Tag::Owner, |permission| permission & mode >> 6);
        acl.change(acl.group_tag(), |permission| permission & mode >> 3);
        acl.change(Tag::Other, |permission| permission & mode);
        let mode = mode & !0o777 | acl.mode();
        (acl, mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `setfacl -m u:7:rw,m:r` of a file of mode 640.
    fn value() -> Vec<u8> {
        let mut value = vec![2, 0, 0, 0];
        for (tag, permission, id) in
            [(1_u16, 6_u16, u32::MAX), (2, 6, 7), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, 0)]
        {
            value.extend(tag.to_le_bytes());
            value.extend(permission.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    #[test]
    fn a_list_and_a_mode_say_the_same() {
        let mut acl = Acl::decode(&value()).expect("valid").expect("a list");
        assert_eq!((acl.mode(), acl.is_mode()), (0o640, false));
        assert_eq!(&acl.encode()[..], value());
        acl.set_mode(0o4571);
        assert_eq!(acl.mode(), 0o571);
        // The owning group's own entry is not what the mode shows.
        assert_eq!(acl.permission(Tag::OwningGroup), 4);
        assert_eq!(acl.permission(Tag::User), 6);
    }

    #[test]
    fn a_new_name_gets_no_more_than_it_asked_for() {
        let acl = Acl::decode(&value()).expect("valid").expect("a list");
        let (access, mode) = acl.inherit(0o2666);
        assert_eq!((access.mode(), mode), (0o640, 0o2640));
        let (access, mode) = acl.inherit(0o400);
        assert_eq!((access.mode(), mode, access.permission(Tag::User)), (0o400, 0o400, 6));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut value = value();
            change(&mut value);
            assert_eq!(Acl::decode(&value), Err(FsError::Invalid("access control list")));
        };
        refused(&|value| value[0] = 1);
        refused(&|value| value.truncate(3));
        refused(&|value| value.truncate(11));
        // Another tag, another order, no mask beside a user, too many permissions.
        refused(&|value| value[4] = 3);
        refused(&|value| value[4] = 4);
        refused(&|value| drop(value.drain(28..36)));
        refused(&|value| value[6] = 8);
        assert_eq!(Acl::decode(&[2, 0, 0, 0]), Ok(None));
    }
}
