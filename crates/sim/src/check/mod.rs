//! Checkers. They share no code with what they check but the plain data types and the accessors of
//! a page; a violation panics with the promise's number, and the runner turns the panic into a
//! report.

pub mod acks;
pub mod answers;
pub mod copies;
pub mod cycles;
pub mod expired;
pub mod history;
pub mod installed;
pub mod oracle;
pub mod passing;
pub mod quota;
pub mod reading;
pub mod refusals;
pub mod rights;
#[cfg(feature = "second-opinion")]
pub mod second;
pub mod seen;
pub mod trimmed;
pub mod under_way;
pub mod withdrawn;
