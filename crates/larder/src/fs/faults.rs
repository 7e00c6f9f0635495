//! Planted faults: single switches that break the file layer. They exist for the simulator, whose
//! checkers must catch every one of them (`docs/planted-faults.md`). Without the crate feature
//! `faults` the switches cannot be set.

/// Which faults are planted; none by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FsFaults(u64);

/// One planted fault.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum FsFault {
    /// A rename to another directory leaves the old name.
    RenameKeepsName,
    /// A rename over a file does not take a link from it.
    RenameLeavesLink,
    /// A removal of one of several names does not take a link.
    UnlinkKeepsLink,
    /// A directory with names in it is removed.
    RemoveFullDirectory,
    /// A directory moved to another names its old parent still.
    ForgetParent,
    /// A removal frees a file that is open here.
    FreeOpenFile,
    /// A cut leaves bytes behind the end.
    CutLeavesBytes,
    /// A hole made in a page keeps what was there.
    HoleKeepsBytes,
    /// A full bucket loses a name when it is split.
    SplitLosesName,
    /// A listing ends with its first bucket.
    ListFirstBucket,
    /// Another name does not add a link.
    LinkUncounted,
    /// What could not be committed is forgotten, and nobody is told.
    ForgetUncommitted,
    /// An `fsync` begins the commit and does not wait for it.
    SyncLate,
    /// A commit without an answer is taken for done.
    UnknownIsDone,
    /// A commit without an answer is made again without a look.
    AgainUnseen,
    /// A lock is granted beside one that is in its way.
    LockBesideAnother,
    /// A directory is moved into itself.
    MoveIntoItself,
    /// A file without a name is freed though another node says that it is open there.
    FreeHeldOrphan,
    /// A change of the size loses extended attributes.
    ResizeLosesXattrs,
    /// A file's pages stay when it is removed.
    LeavePages,
    /// Of what waits only the last piece is committed.
    CommitLastPiece,
}

impl FsFaults {
    /// A correct file layer.
    pub const NONE: Self = Self(0);

    /// Whether the switches can be set in this build.
    pub const COMPILED_IN: bool = cfg!(feature = "faults");

    /// Just this one.
    #[must_use]
    pub fn only(fault: FsFault) -> Self {
        Self(1 << fault as u8)
    }

    /// Whether `fault` is planted. Always false without the `faults` feature.
    #[must_use]
    #[inline]
    pub fn has(self, fault: FsFault) -> bool {
        Self::COMPILED_IN && self.0 & (1 << fault as u8) != 0
    }
}
