//! Transcripts: the protocol's rules and named races as inputs and outputs that people review.

mod identity;
mod notation;
mod origin;
mod parent;
mod relay;
mod rights;
mod transcript;
