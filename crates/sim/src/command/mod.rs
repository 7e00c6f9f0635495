//! What the command line offers, where it takes more than a few lines.

#[cfg(feature = "runtime")]
pub(crate) mod experiments;
#[cfg(feature = "runtime")]
pub(crate) mod oo7;
pub(crate) mod options;
pub(crate) mod planted;
pub(crate) mod recorded;
#[cfg(feature = "runtime")]
pub(crate) mod runtime;
