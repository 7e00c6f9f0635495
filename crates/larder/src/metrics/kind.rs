//! Kinds of messages, as figures count them.

use larder_core::message::{Lane, Message};

macro_rules! kinds {
    ($($variant:ident $name:literal $lane:ident),* $(,)?) => {
        /// A kind of message.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum Kind {
            $(#[doc = concat!("`", stringify!($variant), "`")] $variant),*
        }

        impl Kind {
            /// All kinds, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// A message's kind.
            #[must_use]
            pub fn of(message: &Message) -> Self {
                match message {
                    $(Message::$variant { .. } => Self::$variant),*
                }
            }

            /// Its name in figures.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The lane it travels in.
            #[must_use]
            pub fn lane(self) -> Lane {
                match self { $(Self::$variant => Lane::$lane),* }
            }
        }
    };
}

kinds! {
    Goodbye "goodbye" Control,
    KeepAlive "keep_alive" Control,
    Group "group" Control,
    Origin "origin" Control,
    Hello "hello" Control,
    Resume "resume" Control,
    Register "register" Control,
    Left "left" Control,
    Fetch "fetch" Control,
    Evicted "evicted" Control,
    Holding "holding" Control,
    Confirm "confirm" Control,
    AllocateIds "allocate_ids" Control,
    OpenVolume "open_volume" Control,
    ListVolumes "list_volumes" Control,
    CreateVolume "create_volume" Control,
    ChangeVolume "change_volume" Control,
    DeleteVolume "delete_volume" Control,
    AskRights "ask_rights" Control,
    For "for" Control,
    CopyPages "copy_pages" Control,
    Beat "beat" Control,
    Refresh "refresh" Control,
    Credit "credit" Control,
    Commit "commit" Bulk,
    Welcome "welcome" Control,
    Registered "registered" Control,
    Unregistered "unregistered" Control,
    Committed "committed" Control,
    CommitDeferred "commit_deferred" Control,
    Ids "ids" Control,
    Volume "volume" Control,
    VolumeDeleted "volume_deleted" Control,
    Volumes "volumes" Control,
    Rights "rights" Control,
    Failed "failed" Control,
    Resumed "resumed" Stream,
    Advance "advance" Stream,
    History "history" Stream,
    VolumeRights "volume_rights" Stream,
    Pages "pages" Bulk,
    Copied "copied" Bulk,
}
