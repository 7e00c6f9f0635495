//! What the kernel asks a mount for.

use prometheus_client::metrics::counter::Counter;

/// A kind of request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Asked {
    /// For a name in a directory.
    Lookup,
    /// For an inode's attributes.
    Attributes,
    /// To open a file.
    Open,
    /// For bytes of a file.
    Read,
    /// To take bytes of a file.
    Write,
    /// To commit a file's bytes.
    Commit,
    /// For the names in a directory.
    List,
    /// To make, change, move or remove something.
    Change,
}

impl Asked {
    /// In the order of their numbers.
    pub(super) const ALL: [Self; 8] = [
        Self::Lookup,
        Self::Attributes,
        Self::Open,
        Self::Read,
        Self::Write,
        Self::Commit,
        Self::List,
        Self::Change,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Attributes => "attributes",
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Commit => "commit",
            Self::List => "list",
            Self::Change => "change",
        }
    }
}

/// How often each was asked for. A clone counts the same; the default counts for nobody.
#[derive(Clone, Debug, Default)]
pub struct AskedCounts(pub(super) [Counter; 8]);

impl AskedCounts {
    /// Counts one.
    pub fn count(&self, asked: Asked) {
        self.0[asked as usize].inc();
    }

    /// How many were counted.
    #[must_use]
    pub fn so_far(&self, asked: Asked) -> u64 {
        self.0[asked as usize].get()
    }
}
